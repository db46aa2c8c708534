//! The traps of the schema, one by one: what must hold instead, and the tests that show it. The list
//! is checked: each number has its line, and each test named there exists.

use std::{collections::BTreeSet, path::Path};

/// Number of the trap, what must hold, the tests.
const TRAPS: &[(&str, &str, &[&str])] = &[
    (
        "R1",
        "of concurrent hits a fixed window allows exactly its limit",
        &[
            "of_a_thousand_concurrent_hits_exactly_the_limit_is_allowed",
            "the_schemas_own_commands_allow_more_than_the_limit",
        ],
    ),
    (
        "R2",
        "of concurrent hits a sliding window allows exactly its limit, in any window",
        &[
            "of_a_thousand_concurrent_hits_exactly_the_limit_is_allowed",
            "any_window_holds_at_most_the_limit",
            "model_and_store_agree_after_every_step",
        ],
    ),
    ("R3", "two policies never share a key", &["charging_one_policy_leaves_every_other_unchanged"]),
    ("R4", "a denied hit writes nothing", &["a_thousand_denied_hits_write_nothing"]),
    (
        "R5",
        "an algorithm that remembers each unit has at most 1,000",
        &["a_policy_that_cannot_be_kept_is_refused_and_says_what_to_use"],
    ),
    (
        "R6",
        "a key goes with its window, also below a second",
        &["a_window_below_a_second_has_a_key_that_goes_by_itself"],
    ),
    (
        "R7",
        "instances go by the server's clock, and a step back frees nothing",
        &["time_that_steps_back_frees_nothing", "model_and_store_agree_after_every_step"],
    ),
    (
        "R8",
        "a fixed window allows at most twice its limit across an edge",
        &["model_and_store_agree_after_every_step"],
    ),
    (
        "R9",
        "a made-up address changes nothing, and an IPv6 network is one identity",
        &[
            "two_addresses_of_one_network_share_an_identity_and_others_do_not",
            "a_made_up_address_or_host_changes_nothing_and_a_trusted_proxy_does",
        ],
    ),
    (
        "R10",
        "two identities never share a key, and its length is bounded",
        &[
            "no_two_identities_share_a_spelling_and_its_length_is_bounded",
            "a_raw_identifier_cannot_reach_another_key_or_slot",
        ],
    ),
    (
        "R11",
        "a store out of reach costs at most the timeout, and the policy decides",
        &[
            "a_store_out_of_reach_is_decided_by_the_policy_and_recovers",
            "a_slow_store_costs_at_most_the_timeout",
        ],
    ),
    (
        "R12",
        "who waits as told is allowed",
        &[
            "who_waits_as_told_is_allowed_also_when_told_from_memory",
            "a_denial_that_blocks_tells_the_time_of_the_block",
        ],
    ),
    (
        "R13",
        "a request is charged to all its policies or to none",
        &[
            "a_request_denied_by_one_policy_is_charged_to_none",
            "a_denial_by_one_limit_leaves_all_others_unchanged",
        ],
    ),
    (
        "R14",
        "keys of one script share a slot",
        &[
            "cluster_names_of_one_identity_share_a_slot",
            "limits_traffic_and_users_work_on_a_cluster",
        ],
    ),
    (
        "M1",
        "a killed instance's connections drop out, and no number goes below 0",
        &["connections_are_the_sum_over_live_instances_and_never_below_zero"],
    ),
    (
        "M2",
        "the maximum is the true one since the first live instance started",
        &[
            "of_concurrent_reports_the_true_maximum_stays",
            "connections_are_the_sum_over_live_instances_and_never_below_zero",
        ],
    ),
    (
        "M3",
        "the speed is that of all instances over whole seconds",
        &["the_speed_is_measured_over_whole_seconds_of_all_instances_and_a_restart_is_no_spike"],
    ),
    (
        "M4",
        "a restart is no peak",
        &["the_speed_is_measured_over_whole_seconds_of_all_instances_and_a_restart_is_no_spike"],
    ),
    (
        "M5",
        "endpoints are bounded, whatever paths clients make up",
        &[
            "invented_routes_and_methods_stay_within_the_bound",
            "a_name_holds_nothing_that_could_be_a_hash_tag",
        ],
    ),
    (
        "M7",
        "classes of outcome add up to the total",
        &["totals_add_up_over_instances_and_kinds_of_outcome"],
    ),
    ("M8", "total is accepted and refused", &["totals_add_up_over_instances_and_kinds_of_outcome"]),
    (
        "M9",
        "probes are excluded by an attribute of their route",
        &["probes_are_in_the_metrics_and_are_no_traffic"],
    ),
    (
        "M12",
        "response times are stored, and quantiles are within 10 %",
        &["response_times_of_instances_are_merged", "quantiles_are_within_ten_percent"],
    ),
    ("M13", "reading scans no keys", &["reading_traffic_scans_no_keys"]),
    (
        "M14",
        "counts are batched, and an outage loses none",
        &["what_could_not_be_written_is_written_later_and_once"],
    ),
    (
        "M10",
        "a store that evicts counters is found by doctor",
        &["a_store_that_evicts_counters_is_found"],
    ),
    (
        "M15",
        "a request whose client is gone is counted, and leaves nothing open",
        &[
            "clients_that_hang_up_are_counted_as_aborted_and_leave_nothing_open",
            "the_sum_of_connections_is_right_after_one_of_three_instances_was_killed",
        ],
    ),
    (
        "S1",
        "a login as the example or the field list writes it is understood",
        &[
            "a_login_is_stored_as_the_schema_and_its_example_say",
            "a_login_that_another_program_wrote_is_understood",
            "the_example_usage_runs_from_node_redis",
            "the_example_usage_runs_from_ioredis",
        ],
    ),
    (
        "S2",
        "ids and a dump of the store give no valid token",
        &["a_dump_of_the_store_and_every_id_give_no_valid_token"],
    ),
    (
        "S3",
        "devices are independent",
        &["two_devices_are_independent_and_logout_everywhere_ends_both"],
    ),
    ("S4", "a block outlives sessions", &["a_block_outlives_logout_login_and_eight_idle_days"]),
    (
        "S5",
        "nothing revives a session",
        &[
            "no_request_succeeds_after_logout_and_nothing_is_revived",
            "deleting_the_users_hash_is_a_logout",
        ],
    ),
    (
        "S6",
        "every key of a session has a TTL",
        &["every_key_but_the_status_has_a_ttl_after_every_step"],
    ),
    (
        "S7",
        "a session is written at most once a minute",
        &["a_session_is_written_at_most_once_a_minute"],
    ),
    ("S9", "a status grants what the schema says", &["a_status_grants_what_the_schema_says"]),
    (
        "S10",
        "a plain write blocks on every instance",
        &["a_plain_hset_blocks_on_every_instance_and_lifts_again"],
    ),
    (
        "S11",
        "a block gives back the status before it",
        &[
            "a_block_with_an_end_ends_and_the_status_before_comes_back",
            "a_lifted_block_gives_back_the_status_before_it_and_no_more",
        ],
    ),
    (
        "S12",
        "an address is stored as the setting says",
        &["an_address_is_stored_as_the_setting_says"],
    ),
    (
        "S13",
        "failed logins are limited by address and account; passwords of users are the app's",
        &["failed_logins_are_limited_by_address_and_then_blocked"],
    ),
    (
        "P1",
        "who lost every connection gets nothing after the lease",
        &[
            "presence_is_a_lease_per_connection_apart_from_what_was_chosen",
            "chat_presence_ends_with_its_lease_and_conversations_go_to_somebody_else",
        ],
    ),
    (
        "P2",
        "a published presence has its TTL",
        &["presence_is_a_lease_per_connection_apart_from_what_was_chosen"],
    ),
    (
        "P3",
        "offline is computed",
        &["presence_is_a_lease_per_connection_apart_from_what_was_chosen"],
    ),
    (
        "P4",
        "one of two connections keeps an agent there, and what was chosen survives",
        &["presence_is_a_lease_per_connection_apart_from_what_was_chosen"],
    ),
    ("P5", "available agents are found without a scan", &["presence_and_assignment_scan_no_keys"]),
    (
        "P6",
        "no interleaving exceeds a capacity",
        &[
            "agents_get_exactly_their_capacity_in_the_right_order",
            "the_examples_way_gives_every_agent_a_hundred",
            "whatever_happens_the_invariants_hold",
        ],
    ),
    (
        "P7",
        "owner and set of the owner agree",
        &["whatever_happens_the_invariants_hold", "by_hand_is_compare_and_set_within_capacity"],
    ),
    (
        "P8",
        "an idle hour does not empty the load",
        &["what_is_published_comes_back_from_the_archive"],
    ),
    (
        "P9",
        "an assignment is no activity",
        &["agents_get_exactly_their_capacity_in_the_right_order"],
    ),
    (
        "P10",
        "nobody waits for an agent who is gone",
        &["unanswered_conversations_of_who_is_gone_return_to_the_head_of_the_queue"],
    ),
    (
        "P11",
        "nobody waits while an eligible agent has room",
        &["whatever_happens_the_invariants_hold"],
    ),
    (
        "P12",
        "busy and away keep theirs and get nothing new",
        &["presence_is_a_lease_per_connection_apart_from_what_was_chosen"],
    ),
    (
        "P15",
        "the keys of a script share a slot",
        &["chat_on_a_cluster_from_the_first_message_to_the_rating"],
    ),
    (
        "P16",
        "who does not reply loses the conversation",
        &["who_does_not_reply_loses_the_conversation_and_is_away_after_three"],
    ),
    (
        "P17",
        "two instances that sweep at once hand out each once",
        &["agents_get_exactly_their_capacity_in_the_right_order"],
    ),
    (
        "Q1",
        "the higher priority is first, then the longer wait",
        &[
            "a_higher_priority_is_first_then_the_longer_wait",
            "agents_get_exactly_their_capacity_in_the_right_order",
        ],
    ),
    ("Q3", "low is not starved", &["low_priority_is_not_starved_and_places_are_told"]),
    ("Q4", "ten more messages change no place", &["ten_more_messages_change_no_place"]),
    (
        "Q6",
        "what is open in the archive is published, also after a loss",
        &["what_is_published_comes_back_from_the_archive", "whatever_happens_the_invariants_hold"],
    ),
    (
        "Q7",
        "unread counts conversations, for the desk and for an agent",
        &["whatever_happens_the_invariants_hold"],
    ),
    (
        "Q8",
        "the assignee's reading or a reply clears unread",
        &["read_marks_only_grow_and_only_the_assignee_clears"],
    ),
    (
        "Q9",
        "a changed priority counts at once",
        &["low_priority_is_not_starved_and_places_are_told"],
    ),
    (
        "Q10",
        "a list that expired is whole again",
        &["a_list_that_expired_is_filled_before_it_grows"],
    ),
    ("Q11", "a list tells edits and deletions", &["a_list_that_expired_is_filled_before_it_grows"]),
    (
        "Q12",
        "numbers have no gaps and no repeats",
        &["two_instances_number_one_conversation_without_gaps_and_publish_in_order"],
    ),
    ("Q13", "a repeated send is one message", &["a_repeated_send_is_one_message"]),
    (
        "Q14",
        "what is acknowledged survives a kill",
        &[
            "what_a_killed_process_left_behind_is_delivered_once",
            "chat_loses_nothing_when_instances_are_killed_at_random_moments",
        ],
    ),
    ("Q15", "the dashboard is what the archive has", &["whatever_happens_the_invariants_hold"]),
    ("Q17", "a message reopens or starts anew", &["a_message_reopens_or_starts_anew"]),
    (
        "Q18",
        "nothing of an erased person is left",
        &["nothing_of_an_erased_person_is_left_in_rows_keys_files_or_search"],
    ),
];

/// Traps that need no test, or one outside this crate.
const ELSEWHERE: &[(&str, &str)] = &[
    ("R15", "covered by R9: an identity is an address that the frame worked out"),
    ("M6", "one spelling: EndpointName"),
    ("M11", "numbers are i64, as Redis has them"),
    ("S8", "times are Unix milliseconds everywhere"),
    ("P13", "ids are opaque: AgentId, ConversationId"),
    ("P14", "a capacity is a setting and a field of an agent"),
    ("Q2", "the example's score follows from no rule; ours is Q1"),
    ("Q5", "times are Unix milliseconds everywhere"),
    ("Q16", "averages have their unit in their name; the schema's are minutes"),
    ("Q19", "a prefix is checked by Prefix"),
];

/// The text of every file of tests and code in which a named test may stand.
fn sources() -> String {
    fn collect(folder: &Path, text: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, text);
            } else if path.extension().is_some_and(|end| end == "rs") {
                text.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    let elsewhere = [
        "../store/src",
        "../store/tests",
        "../web/src",
        "../desk-web/src",
        "../desk-web/tests",
        "../tidegate/tests/e2e",
    ];
    for folder in ["src", "tests"].into_iter().chain(elsewhere) {
        collect(&here.join(folder), &mut text);
    }
    text
}

#[test]
fn every_trap_has_its_line_and_every_test_exists() {
    let mut expected = BTreeSet::new();
    for (letter, last) in [("R", 15), ("M", 15), ("S", 13), ("P", 17), ("Q", 19)] {
        expected.extend((1..=last).map(|number| format!("{letter}{number}")));
    }
    let listed = TRAPS.iter().map(|(number, ..)| *number);
    let listed: Vec<String> =
        listed.chain(ELSEWHERE.iter().map(|(number, _)| *number)).map(str::to_owned).collect();
    assert_eq!(listed.len(), expected.len(), "each once");
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected);
    let sources = sources();
    for (number, _, tests) in TRAPS {
        for test in *tests {
            assert!(sources.contains(&format!("fn {test}(")), "{number}: there is no test {test}");
        }
    }
}
