//! The traps of the design documents, one by one: what must hold instead, and the tests that show
//! it. The list is checked: each number has its line, and each test named there exists.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use room::{NewPosition, PositionState, QueueId};
use testkit::each_store;

use crate::support::{Bench, seconds};

/// Number of the trap, what must hold, the tests.
const TRAPS: &[(u8, &str, &[&str])] = &[
    (
        1,
        "the highest priority is admitted first",
        &["higher_levels_go_first_under_the_strict_policy"],
    ),
    (
        2,
        "within a priority first come is first served",
        &["the_first_to_come_is_the_first_in_line", "those_who_return_keep_their_order"],
    ),
    (
        3,
        "the position shown is the order of admission",
        &[
            "level_0_gets_its_share_and_positions_stay_true",
            "model_and_room_show_the_same_after_every_step",
        ],
    ),
    (
        4,
        "two named policies, and priority 0 does not starve",
        &[
            "level_0_gets_its_share_and_positions_stay_true",
            "under_the_skip_policy_levels_skip_their_part_of_the_line",
            "a_skipper_never_passes_an_earlier_one_of_its_level",
        ],
    ),
    (
        5,
        "tickets are unique and grow, whatever clocks say",
        &["tickets_are_unique_and_grow_whatever_the_clock_does", "ids_sort_as_their_tickets"],
    ),
    (
        6,
        "a priority in a body proves nothing",
        &["priority_comes_only_from_proof", "a_priority_needs_proof"],
    ),
    (
        7,
        "a better proof moves the one position",
        &["a_better_proof_moves_the_place_and_never_makes_a_second_one"],
    ),
    (8, "nobody is both admitted and expired", &["an_expired_place_is_never_admitted"]),
    (
        9,
        "leaving does not walk the line",
        &["no_script_walks_a_whole_queue", "tombstones_are_compacted_and_order_is_kept"],
    ),
    (
        10,
        "no ghost records, and memory comes back",
        &[
            "a_record_that_ran_out_does_not_come_back_as_a_ghost",
            "nothing_is_left_after_many_joins_and_expiries",
        ],
    ),
    (
        11,
        "one deadline per position",
        &["a_silent_place_ends_once_when_its_time_is_over_and_not_before"],
    ),
    (12, "a heartbeat revives nobody", &["a_heartbeat_does_not_bring_back_the_dead"]),
    (
        13,
        "a position is at least 1, and only while waiting",
        &["a_position_is_shown_exactly_while_waiting"],
    ),
    (14, "queues expire apart", &["expiry_in_one_queue_never_touches_another"]),
    (
        15,
        "whoever is admitted has another clock",
        &["an_admitted_visitor_is_not_ended_by_the_search_for_the_silent"],
    ),
    (
        16,
        "an expiry is one step, whatever crashes",
        &[
            "model_and_room_show_the_same_after_every_step",
            "nobody_who_polls_as_told_is_lost_across_a_killed_server",
        ],
    ),
    (
        17,
        "admitting and expiring at once is decided once",
        &[
            "three_running_instances_never_over_admit",
            "lost_replies_make_no_second_place_and_no_second_admission",
        ],
    ),
    (
        18,
        "clocks stand still in an outage and a pause",
        &["nobody_loses_a_place_to_an_outage", "clocks_stand_still_while_paused"],
    ),
    (
        19,
        "a hidden tab keeps its position",
        &["a_client_that_polls_once_a_minute_never_loses_its_place"],
    ),
    (20, "sweeps are bounded", &["many_places_that_may_not_end_yet_do_not_hide_those_that_must"]),
    (21, "the refill of the rate is kept", &["the_rate_does_not_depend_on_how_often_it_is_asked"]),
    (22, "the first burst is the burst", &["tokens_and_their_instant_are_stored_together"]),
    (
        23,
        "one name per key",
        &[
            "tokens_and_their_instant_are_stored_together",
            "standalone_names_are_the_documented_ones",
        ],
    ),
    (
        24,
        "the rate does not depend on the tick",
        &["the_rate_does_not_depend_on_how_often_it_is_asked"],
    ),
    (
        25,
        "scripts run on every Lua",
        &["every_script_is_understood", "lua_files_match_their_declarations"],
    ),
    (
        26,
        "every key is declared, and a queue is one slot",
        &[
            "every_script_is_understood",
            "cluster_names_of_one_queue_share_a_slot",
            "the_room_works_on_a_cluster",
        ],
    ),
    (
        27,
        "admitted and active never exceed the limit",
        &["admitted_and_active_never_exceed_the_limit"],
    ),
    (
        28,
        "no-shows give the slot back",
        &[
            "a_no_show_gives_the_slot_back_returns_once_and_then_ends",
            "no_shows_do_not_hold_capacity_for_ever",
        ],
    ),
    (
        29,
        "sessions that are gone hold no slot",
        &["a_session_whose_record_is_gone_does_not_leak_its_slot"],
    ),
    (
        30,
        "every state has a way in and a way out",
        &["completing_terminating_and_revoking_follow_the_documented_table"],
    ),
    (
        31,
        "admission is one step, credentials are made on demand",
        &[
            "claiming_twice_finds_the_first_session",
            "lost_replies_make_no_second_place_and_no_second_admission",
        ],
    ),
    (
        32,
        "who holds a position is never told that it is full",
        &["a_visitor_who_holds_a_place_gets_it_back_even_when_full_paused_or_closed"],
    ),
    (
        33,
        "the size of the queue is a hard limit",
        &["the_queue_never_holds_more_than_it_may_under_concurrent_joins"],
    ),
    (34, "resuming lets in no more than the burst", &["resuming_admits_no_more_than_the_burst"]),
    (
        35,
        "a caller's clock mints no tokens",
        &["a_clock_set_back_neither_freezes_the_rate_nor_frees_a_burst"],
    ),
    (36, "500 a minute can be said", &["a_rate_of_500_a_minute_is_just_that"]),
    (
        37,
        "an address is not a person",
        &[
            "strangers_behind_one_address_have_places_of_their_own",
            "with_duplicates_by_address_a_place_that_is_over_does_not_count",
            "a_heartbeat_keeps_the_address_mapped",
        ],
    ),
    (38, "retries make one position", &["retries_with_one_idempotency_key_make_one_place"]),
    (
        39,
        "no address is kept in the clear",
        &["no_address_is_kept_in_the_clear", "what_counts_is_the_customer"],
    ),
    (
        40,
        "a limit does not lock a campus out",
        &[
            "joining_too_often_from_one_network_is_refused_with_headers",
            "polling_as_told_is_never_refused_and_hammering_is",
        ],
    ),
    (
        41,
        "names and metadata are bounded",
        &["a_queues_name_cannot_reach_other_keys", "metadata_has_bounds"],
    ),
    (
        42,
        "the algorithm is the key's",
        &["forged_passes_are_refused", "an_operators_rsa_key_signs_rs256"],
    ),
    (43, "rotation logs nobody out", &["rotation_logs_nobody_out_and_every_instance_follows"]),
    (
        44,
        "the token of a living position does not run out",
        &["the_token_of_a_living_place_does_not_run_out"],
    ),
    (
        45,
        "an old token does not cost a living position",
        &["the_token_of_a_living_place_does_not_run_out"],
    ),
    (46, "a heartbeat signs nothing", &["a_place_token_proves_the_place_and_nothing_else"]),
    (
        47,
        "a position follows its holder to another network",
        &["a_place_follows_its_holder_to_another_network"],
    ),
    (48, "the cookie comes along from other sites", &["a_visitor_joins_waits_comes_in_and_goes"]),
    (
        49,
        "revoking ends the session, not one token",
        &["a_pass_is_void_once_revoked_expired_or_reset"],
    ),
    (
        50,
        "leaving the page is not leaving the line",
        &[
            "a_visitor_without_javascript_joins_waits_and_lands_on_the_target",
            "nothing_but_a_navigation_joins",
        ],
    ),
    (
        51,
        "the pass reaches the site by itself",
        &[
            "a_visitor_without_javascript_joins_waits_and_lands_on_the_target",
            "another_site_gets_a_token_for_one_arrival",
        ],
    ),
    (52, "one unit per field", &["a_place_has_the_documented_fields_types_and_lifetimes"]),
    (
        53,
        "a record has all documented fields",
        &[
            "a_place_has_the_documented_fields_types_and_lifetimes",
            "a_session_has_the_documented_fields_types_and_lifetimes",
        ],
    ),
    (54, "one set of states", &["the_documented_words_become_the_api_states"]),
    (
        55,
        "a peak is the greatest, an average has its count",
        &["the_peak_of_an_hour_is_never_overwritten_by_less", "statistics_count_what_happened"],
    ),
    (56, "heartbeats are no events", &["every_change_is_an_event_and_no_heartbeat_is"]),
    (
        57,
        "events are written with the change and can be resumed",
        &[
            "every_change_is_an_event_and_no_heartbeat_is",
            "an_operators_stream_resumes_where_it_broke_off",
        ],
    ),
    (
        58,
        "what a position costs is given back (its size is measured in bench/)",
        &["nothing_is_left_after_many_joins_and_expiries"],
    ),
    (
        59,
        "an estimate is never zero, and none while paused",
        &["it_is_never_zero_and_never_known_while_paused", "a_wait_is_said_as_a_range_or_about"],
    ),
    (
        60,
        "45,000 at 500 a minute wait 90 minutes at most, 45 on average",
        &["a_whole_sale_takes_what_the_rate_says"],
    ),
    (
        61,
        "ids are whole, fields say what they count",
        &["an_id_has_one_spelling", "a_visitor_joins_waits_comes_in_and_goes"],
    ),
    (
        62,
        "the way back leads to the site only",
        &["open_redirects_are_not_followed", "another_site_gets_a_token_for_one_arrival"],
    ),
];

#[test]
fn every_trap_has_a_test_that_exists() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut text = String::new();
    for folder in [
        "room/src",
        "room/tests/it",
        "room-web/src",
        "room-web/tests/it",
        "web/src",
        "web/tests/it",
        "testkit/src",
    ] {
        read(&crates.join(folder), &mut text);
    }
    let numbers: Vec<u8> = TRAPS.iter().map(|(number, ..)| *number).collect();
    assert_eq!(numbers, (1..=62).collect::<Vec<u8>>());
    let named: BTreeSet<&str> =
        TRAPS.iter().flat_map(|(.., tests)| tests.iter().copied()).collect();
    for name in named {
        assert!(text.contains(&format!("fn {name}(")), "there is no test {name}");
    }
}

fn read(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn no_script_walks_a_whole_queue() {
    let mut text = Vec::new();
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/lua")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            text.push((path.clone(), std::fs::read_to_string(path).unwrap()));
        }
    }
    assert!(text.len() > 10);
    for (path, script) in text {
        for word in ["'LREM'", "'KEYS'", "'SMEMBERS'", "'HGETALL'", "'HKEYS'", "'LPOS'", "'SCAN'"] {
            assert!(!script.contains(word), "{} uses {word}", path.display());
        }
    }
}

#[test]
fn a_queues_name_cannot_reach_other_keys() {
    for bad in ["", "a:waiting:0", "A", "a b", "a{b}", "-a", "a*", "a\n", "ä", &"a".repeat(64)] {
        assert!(QueueId::parse(bad).is_err(), "{bad:?}");
    }
    assert!(QueueId::parse(&"a".repeat(63)).is_ok());
}

each_store! {
    async fn a_position_is_shown_exactly_while_waiting(t: TestStore) {
        let b = Bench::still(t).await;
        let ids = [b.enqueue().await.id, b.enqueue().await.id, b.enqueue().await.id];
        b.room.admit_by_hand(&b.queue, 1).await.unwrap();
        b.room.leave(&b.queue, &ids[1]).await.unwrap();
        for (id, state, number) in [(ids[0], PositionState::Admitted, None), (ids[1], PositionState::Cancelled, None), (ids[2], PositionState::Waiting, Some(1))] {
            let position = b.room.status(&b.queue, &id).await.unwrap();
            assert_eq!((position.state, position.number, position.ahead()), (state, number, number.map(|n| n - 1)));
            assert!(state == PositionState::Waiting || position.estimate.is_err(), "no estimate but in the line");
        }
        let stranger = room::PositionId::parse("0190a0a0-0000-7000-8000-000000000000").unwrap();
        assert!(matches!(b.room.status(&b.queue, &stranger).await, Err(room::Error::UnknownPosition)), "and nobody is the front by mistake");
    }

    async fn no_address_is_kept_in_the_clear(t: TestStore) {
        let b = Bench::still(t).await;
        let address: IpAddr = "203.0.113.77".parse().unwrap();
        let new = NewPosition { address: Some(address), ..NewPosition::default() };
        let position = b.room.enqueue(&b.queue, new).await.unwrap().position;
        b.room.heartbeat(&b.queue, &position.id, Some(position.priority), Some(address)).await.unwrap();
        let client = b.room.client_of(address).await.unwrap();
        b.room.charge_call(&client, "enqueue", 10, seconds(60), "r1").await.unwrap();
        let keys: Vec<String> = b.redis(&["KEYS", "*"]).await;
        assert!(keys.iter().any(|key| key.starts_with("ratelimit:")), "{keys:?}");
        let mut all = keys.join(" ");
        for key in &keys {
            let kind: String = b.redis(&["TYPE", key]).await;
            let read: &[&str] = match kind.as_str() {
                "hash" => &["HGETALL"],
                "string" => &["GET"],
                _ => continue,
            };
            let value: store::redis::Value = b.redis(&[read[0], key]).await;
            all.push_str(&format!("{value:?}"));
        }
        assert!(!all.contains("203.0.113"), "{all}");
    }

    async fn the_token_of_a_living_place_does_not_run_out(t: TestStore) {
        let b = Bench::still(t).await;
        let position = b.enqueue().await;
        let token = b.room.position_token(&position).await.unwrap();
        // Two days of polling once in a while, in steps an outage is longer than.
        for hour in 0..48 {
            b.clock.advance(seconds(3_600));
            b.keeper.tick().await.unwrap();
            let held = b.room.check_position_token(&b.queue, &token).await.unwrap();
            let position = b.room.heartbeat(&b.queue, &held.position, Some(held.priority), None).await.unwrap();
            assert_eq!((position.state, position.number), (PositionState::Waiting, Some(1)), "hour {hour}");
        }
    }

    async fn a_place_follows_its_holder_to_another_network(t: TestStore) {
        let b = Bench::still(t).await;
        let at = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        let new = NewPosition { address: at("203.0.113.1"), user_agent: "phone".into(), ..NewPosition::default() };
        let position = b.room.enqueue(&b.queue, new).await.unwrap().position;
        let token = b.room.position_token(&position).await.unwrap();
        for address in ["198.51.100.7", "2001:db8::1"] {
            let held = b.room.check_position_token(&b.queue, &token).await.unwrap();
            let again = NewPosition { held: Some(held.position), address: at(address), user_agent: "tablet".into(), ..NewPosition::default() };
            let enqueued = b.room.enqueue(&b.queue, again).await.unwrap();
            assert!(!enqueued.new && enqueued.position.id == position.id);
            let beat = b.room.heartbeat(&b.queue, &position.id, Some(position.priority), at(address)).await.unwrap();
            assert_eq!(beat.number, Some(1));
        }
    }
}
