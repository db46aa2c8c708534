//! One declaration per script in `lua/`.

use store::{script, script_library};

script_library!(pub(crate) LIBRARY {
    files: [
        "add_candidate", "best_lane", "cancelled_result", "chunked", "claim_from", "claim_jobs",
        "count_starts", "emit", "finish", "first_jobs", "list_lane", "lock_job", "mark_parents",
        "may_start", "next_lane", "open_lanes", "queue_close", "queue_open", "queue_push",
        "queue_remove", "rank", "read_lanes", "ready_sets", "record_claim", "release_slots",
        "release_term", "relist_lane", "repeat_claim", "rival_score", "trim_front", "unpack_all",
        "unpark",
    ],
    constants: crate::keys::SCRIPT_CONSTANTS,
});

script!(pub(crate) dispatch {
    keys: [waiting, index, unindexed, delayed, expiring, events, ..keys],
    args: [now_ms, wake, events_max, lanes, ..rest],
    library: LIBRARY,
});

script!(pub(crate) claim {
    keys: [active, claims, claim_leases, claim_counts, events, parked, waiting, paused, index, unindexed],
    args: [
        now_ms, prefix, events_max, worker_id, request, limit, lock_ttl_s, lease_until_ms, request_slot,
        pools, types, version, ..rest
    ],
    library: LIBRARY,
});

script!(pub(crate) complete_and_claim {
    keys: [
        active, claims, claim_leases, claim_counts, events, parked, waiting, paused, index, unindexed, leases,
        finished, parents, settled, processed, spent, cancelled, deadlines
    ],
    args: [
        now_ms, prefix, events_max, worker_id, request, limit, lock_ttl_s, lease_until_ms, request_slot,
        pools, types, version, ..rest
    ],
    library: LIBRARY,
});

script!(pub(crate) complete {
    keys: [
        active, claims, claim_leases, claim_counts, events, parked, leases, finished, parents, settled, processed,
        spent, cancelled, deadlines, ..keys
    ],
    args: [now_ms, prefix, events_max, result_ttl_s, done, wake, spent_ms, ..rest],
    library: LIBRARY,
});

script!(pub(crate) fail {
    keys: [
        waiting, index, unindexed, delayed, deadletter, active, claims, leases, finished, parents,
        settled, parked, failed, cancelled, events, claim_leases, claim_counts, deadlines, ..keys
    ],
    args: [
        now_ms, wake, done, events_max, result_ttl_s, history_max, only_expired, lanes, types,
        ..rest
    ],
    library: LIBRARY,
});

script!(pub(crate) renew {
    keys: [claims, leases, cancelled, claim_leases, claim_counts, deadlines, ..locks],
    args: [lock_ttl_s, lease_until_ms, worker_id, now_ms, ..rest],
    library: LIBRARY,
});

script!(pub(crate) start {
    keys: [claims, deadlines, timed],
    args: [..rest],
});

script!(pub(crate) seize {
    keys: [claims, deadlines, active, timed, overruns, running, lock, status, data],
    args: [now_ms, id, worker, claim, body],
});

script!(pub(crate) restore {
    keys: [waiting, index, unindexed, claims, delayed, deadletter, active, overruns, lock, status, result],
    args: [now_ms, result_ttl_s, id, outcome],
    library: LIBRARY,
});

script!(pub(crate) ingest {
    keys: [waiting, index, unindexed, limbo, deadletter, events, ..keys],
    args: [now_ms, wake, events_max, limbo_until_ms, result_ttl_s, lanes, ..rest],
    library: LIBRARY,
});

script!(pub(crate) dispatch_unique {
    keys: [
        waiting, index, unindexed, delayed, expiring, parents, events, once, pending, data, status,
        ..keys
    ],
    args: [
        now_ms, wake, events_max, once_until_ms, once_ttl_s, id, place, due_ms, expires_ms, body,
        policy, digest, gone, ..rest
    ],
    library: LIBRARY,
});

script!(pub(crate) resolve {
    keys: [waiting, index, unindexed, delayed, parents, settled, finished, children, events, orphans, ..keys],
    args: [now_ms, wake, done, events_max, result_ttl_s, parent, lanes, ..rest],
    library: LIBRARY,
});

script!(pub(crate) schedule {
    keys: [cron, data, status, events],
    args: [now_ms, events_max, id, next_ms, body, deleted],
    library: LIBRARY,
});

script!(pub(crate) unschedule {
    keys: [cron, paused, delayed, claims, finished, lock, ..keys],
    args: [now_ms, id],
});

script!(pub(crate) promote {
    keys: [waiting, index, unindexed, delayed, deadletter, events, ..keys],
    args: [now_ms, wake, events_max, result_ttl_s, lanes, ..rest],
    library: LIBRARY,
});

script!(pub(crate) fire_schedule {
    keys: [waiting, index, unindexed, cron, delayed, claims, events, lock, runs, ..keys],
    args: [now_ms, wake, events_max, schedule, due_ms, next_ms, place, ended_ms, ..rest],
    library: LIBRARY,
});

script!(pub(crate) cancel {
    keys: [
        waiting, index, unindexed, delayed, expiring, finished, parents, settled, claims, cancelled,
        events, cron, ..keys
    ],
    args: [
        now_ms, done, signal, events_max, result_ttl_s, outcome, reason, event, running, ..ids
    ],
    library: LIBRARY,
});

script!(pub(crate) replay {
    keys: [waiting, index, unindexed, deadletter, events, parents, ..keys],
    args: [now_ms, wake, events_max, lanes, ..rest],
    library: LIBRARY,
});

script!(pub(crate) remove {
    keys: [finished, deadletter, cron, ..keys],
    args: [from, ..rest],
});

script!(pub(crate) recover {
    keys: [
        waiting, index, unindexed, active, claims, deadletter, parked, events, running, lock, status,
        data, result, cancelled, finished, ..keys
    ],
    args: [now_ms, wake, events_max, result_ttl_s, id, job_type, mode, body, outcome, ..lane],
    library: LIBRARY,
});

script!(pub(crate) adopt {
    keys: [
        waiting, index, unindexed, delayed, cron, active, finished, events, data, status, lock, result,
        ..keys
    ],
    args: [now_ms, wake, events_max, id, case, place, body, ..lane],
    library: LIBRARY,
});

script!(pub(crate) compact {
    keys: [waiting, index, unindexed],
    args: [now_ms, anew],
    library: LIBRARY,
});

script!(pub(crate) forget {
    keys: [index, ..keys],
    args: [..rest],
});

script!(pub(crate) list {
    keys: [index, ..keys],
    args: [wake, lanes, ..rest],
    library: LIBRARY,
});

script!(pub(crate) reindex {
    keys: [..keys],
    args: [mode, ..members],
    library: LIBRARY,
});

script!(pub(crate) elect {
    keys: [lock],
    args: [scheduler, ttl_s],
});

script!(pub(crate) scan_jobs {
    keys: [waiting],
    args: [cursor, pattern, count],
});

#[cfg(test)]
mod tests {
    use super::*;

    testkit::scripts_test!(
        "jobs",
        [
            adopt,
            cancel,
            claim,
            compact,
            complete,
            dispatch,
            complete_and_claim,
            fail,
            forget,
            ingest,
            elect,
            list,
            reindex,
            fire_schedule,
            dispatch_unique,
            promote,
            recover,
            remove,
            renew,
            replay,
            resolve,
            restore,
            schedule,
            seize,
            start,
            scan_jobs,
            unschedule,
        ]
    );

    /// Lua's stack ends at about 8000 values, so a list is only spread where it has a bound.
    #[test]
    fn no_script_of_the_tree_unpacks_a_list_without_a_bound() {
        use std::{fs, path::Path};

        // Batches of concurrent calls, which the store's batcher bounds; the fields of one event.
        const BATCHES: [&str; 3] =
            ["room/lua/enqueue.lua", "room/lua/heartbeat.lua", "store/lua/events_append.lua"];

        fn look(folder: &Path, found: &mut Vec<String>) -> usize {
            let mut count = 0;
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    count += look(&path, found);
                } else if path.extension().is_some_and(|end| end == "lua") {
                    count += 1;
                    if path.ends_with("jobs/lua/lib/unpack_all.lua")
                        || BATCHES.iter().any(|file| path.ends_with(file))
                    {
                        continue;
                    }
                    let text = fs::read_to_string(&path).unwrap();
                    for (at, line) in text.lines().enumerate() {
                        let code = line.split("--").next().unwrap_or_default();
                        let spreads = code.contains("unpack") || code.contains("unpack_all(");
                        if spreads && !line.contains("-- bounded: ") {
                            found.push(format!("{}:{}: {line}", path.display(), at + 1));
                        }
                    }
                }
            }
            count
        }
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let (mut found, mut count) = (Vec::new(), 0);
        for entry in fs::read_dir(crates).unwrap() {
            let folder = entry.unwrap().path().join("lua");
            if folder.is_dir() {
                count += look(&folder, &mut found);
            }
        }
        assert!(count > 40, "the scripts were found: {count}");
        assert!(found.is_empty(), "use chunked, or say `-- bounded: why`: {found:#?}");
    }
}
