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
        "an IPv6 network is one identity",
        &["two_addresses_of_one_network_share_an_identity_and_others_do_not"],
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
        &["who_waits_as_told_is_allowed_also_when_told_from_memory"],
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
        &["a_block_with_an_end_ends_and_the_status_before_comes_back"],
    ),
    (
        "S12",
        "an address is stored as the setting says",
        &["an_address_is_stored_as_the_setting_says"],
    ),
];

/// Traps that need no test, or one outside this crate.
const ELSEWHERE: &[(&str, &str)] = &[
    ("R15", "covered by R9: an identity is an address that the frame worked out"),
    ("M6", "one spelling: EndpointName"),
    ("M9", "the frame excludes by an attribute of the route"),
    ("M10", "a check of the store's eviction policy belongs to doctor"),
    ("M11", "numbers are i64, as Redis has them"),
    ("M15", "the frame holds the guard of a request; that of a connection is tested with M1"),
    ("S8", "times are Unix milliseconds everywhere"),
    ("S13", "passwords are the app's; logins of the program are limited by the frame"),
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
    for folder in ["src", "tests", "../store/tests"] {
        collect(&here.join(folder), &mut text);
    }
    text
}

#[test]
fn every_trap_has_its_line_and_every_test_exists() {
    let mut expected = BTreeSet::new();
    for (letter, last) in [("R", 15), ("M", 15), ("S", 13)] {
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
