//! One declaration per script in `lua/`.

use store::script;

script!(pub(crate) dispatch {
    keys: [waiting, index, strays, delayed, expiring, events, ..keys],
    args: [now_ms, wake, events_max, lanes, ..rest],
    lib: ["spread", "chunked", "weight", "emit", "line_open", "line_push", "line_close"],
});

script!(pub(crate) claim {
    keys: [active, claims, terms, held, events, blocked, waiting, paused, index, strays],
    args: [
        now_ms, prefix, events_max, server, request, most, lock_ttl_s, lease_until_ms, record,
        routes, ..rest
    ],
    lib: ["spread", "chunked", "emit", "line_open", "line_take", "line_close", "take"],
});

script!(pub(crate) exchange {
    keys: [
        active, claims, terms, held, events, blocked, waiting, paused, index, strays, leases,
        finished, parents, settled, processed, spent, cancelled
    ],
    args: [
        now_ms, prefix, events_max, server, request, most, lock_ttl_s, lease_until_ms, record,
        routes, ..rest
    ],
    lib: [
        "spread", "chunked", "emit", "free", "settle", "part", "finish", "line_open", "line_take",
        "line_close", "take"
    ],
});

script!(pub(crate) complete {
    keys: [
        active, claims, terms, held, events, blocked, leases, finished, parents, settled, processed,
        spent, cancelled, ..keys
    ],
    args: [now_ms, prefix, events_max, result_ttl_s, done, wake, spent_ms, ..rest],
    lib: ["spread", "chunked", "emit", "free", "settle", "part", "finish"],
});

script!(pub(crate) fail {
    keys: [
        waiting, index, strays, delayed, deadletter, active, claims, leases, finished, parents,
        settled, blocked, failed, cancelled, events, terms, held, ..keys
    ],
    args: [
        now_ms, wake, done, events_max, result_ttl_s, history_max, only_expired, lanes, types,
        ..rest
    ],
    lib: [
        "spread", "chunked", "weight", "emit", "cancelled_result", "free", "settle", "part", "line_open", "line_push", "line_close"
    ],
});

script!(pub(crate) renew {
    keys: [claims, leases, cancelled, terms, held, ..locks],
    args: [lock_ttl_s, lease_until_ms, server, ..rest],
    lib: ["part"],
});

script!(pub(crate) ingest {
    keys: [waiting, index, strays, limbo, deadletter, events, ..keys],
    args: [now_ms, wake, events_max, limbo_until_ms, result_ttl_s, lanes, ..rest],
    lib: ["spread", "chunked", "weight", "emit", "line_open", "line_push", "line_take", "line_close"],
});

script!(pub(crate) once {
    keys: [
        waiting, index, strays, delayed, expiring, parents, events, once, pending, registry, lane,
        data, status, ..keys
    ],
    args: [
        now_ms, wake, events_max, once_until_ms, once_ttl_s, rid, priority, spec, server, id, place,
        due_ms, expires_ms, body, policy, digest, gone, ..parents
    ],
    lib: ["spread", "chunked", "weight", "emit", "line_open", "line_push", "line_close"],
});

script!(pub(crate) resolve {
    keys: [waiting, index, strays, delayed, parents, settled, finished, children, events, ..keys],
    args: [now_ms, wake, done, events_max, result_ttl_s, parent, lanes, ..rest],
    lib: ["spread", "chunked", "weight", "emit", "settle", "line_open", "line_push", "line_close"],
});

script!(pub(crate) schedule {
    keys: [cron, data, status, events],
    args: [now_ms, events_max, id, next_ms, body],
    lib: ["emit"],
});

script!(pub(crate) promote {
    keys: [waiting, index, strays, delayed, deadletter, events, ..keys],
    args: [now_ms, wake, events_max, result_ttl_s, lanes, ..rest],
    lib: ["spread", "chunked", "weight", "emit", "line_open", "line_push", "line_close"],
});

script!(pub(crate) occur {
    keys: [
        waiting, index, strays, cron, delayed, claims, events, registry, lane, lock, ..keys
    ],
    args: [
        now_ms, wake, events_max, schedule, due_ms, next_ms, rid, priority, spec, server, place,
        ..rest
    ],
    lib: ["spread", "chunked", "weight", "emit", "line_open", "line_push", "line_close"],
});

script!(pub(crate) cancel {
    keys: [
        waiting, index, strays, delayed, expiring, finished, parents, settled, claims, cancelled,
        events, data, status, result, pending, cron
    ],
    args: [now_ms, done, signal, events_max, result_ttl_s, id, outcome, reason, event, running],
    lib: ["spread", "chunked", "emit", "settle", "line_open", "line_take", "line_close"],
});

script!(pub(crate) replay {
    keys: [
        waiting, index, strays, deadletter, events, registry, lane, data, status, result
    ],
    args: [now_ms, wake, events_max, id, rid, priority, spec, server, place, before, after],
    lib: ["spread", "chunked", "weight", "emit", "line_open", "line_push", "line_close"],
});

script!(pub(crate) remove {
    keys: [finished, deadletter, cron, ..keys],
    args: [from, ..rest],
});

script!(pub(crate) recover {
    keys: [
        waiting, index, strays, active, claims, deadletter, blocked, events, running, registry,
        lane, lock, status, data, result, cancelled, finished
    ],
    args: [
        now_ms, wake, events_max, result_ttl_s, id, kind, mode, rid, priority, spec, server, body,
        outcome
    ],
    lib: ["spread", "chunked", "weight", "emit", "cancelled_result", "free", "line_open", "line_push", "line_close"],
});

script!(pub(crate) adopt {
    keys: [
        waiting, index, strays, delayed, cron, active, finished, events, registry, lane, data,
        status, lock, result
    ],
    args: [now_ms, wake, events_max, id, kind, rid, priority, spec, server, place, body],
    lib: ["spread", "chunked", "weight", "emit", "line_open", "line_push", "line_close"],
});

script!(pub(crate) compact {
    keys: [waiting, index, strays, ..lanes],
    args: [now_ms, anew, ..rids],
    lib: ["spread", "chunked", "line_open", "line_close"],
});

script!(pub(crate) forget {
    keys: [index, ..keys],
    args: [..rest],
    lib: ["spread", "chunked"],
});

script!(pub(crate) lead {
    keys: [lock],
    args: [scheduler, ttl_s],
});

script!(pub(crate) walk {
    keys: [waiting],
    args: [cursor, pattern, count],
});

#[cfg(test)]
mod tests {
    use super::*;

    testkit::scripts_test!(
        "jobs",
        [
            adopt, cancel, claim, compact, complete, dispatch, exchange, fail, forget, ingest,
            lead, occur, once, promote, recover, remove, renew, replay, resolve, schedule, walk,
        ]
    );

    /// Lua's stack ends at about 8000 values, so a list is only spread where it has a bound.
    #[test]
    fn no_script_of_the_tree_spreads_a_list_without_a_bound() {
        use std::{fs, path::Path};

        // Batches of concurrent calls, which the store's gather bounds; the fields of one event.
        const BATCHES: [&str; 3] =
            ["room/lua/join.lua", "room/lua/heartbeat.lua", "store/lua/events_append.lua"];

        fn look(folder: &Path, found: &mut Vec<String>) -> usize {
            let mut count = 0;
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    count += look(&path, found);
                } else if path.extension().is_some_and(|end| end == "lua") {
                    count += 1;
                    if path.ends_with("jobs/lua/lib/spread.lua")
                        || BATCHES.iter().any(|file| path.ends_with(file))
                    {
                        continue;
                    }
                    let text = fs::read_to_string(&path).unwrap();
                    for (at, line) in text.lines().enumerate() {
                        let code = line.split("--").next().unwrap_or_default();
                        let spreads = code.contains("unpack") || code.contains("spread(");
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
