//! One declaration per script in `lua/`.

use store::script;

script!(pub(crate) dispatch {
    keys: [waiting, index, strays, delayed, expiring, events, ..keys],
    args: [now_ms, wake, events_max, lanes, ..rest],
    lib: ["spread", "weight", "emit", "line_open", "line_push", "line_close"],
});

script!(pub(crate) claim {
    keys: [active, claims, terms, held, events, blocked, waiting, paused, index, strays],
    args: [
        now_ms, prefix, events_max, server, request, most, lock_ttl_s, lease_until_ms, record,
        routes, ..rest
    ],
    lib: ["spread", "emit", "line_open", "line_take", "line_close", "take"],
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
        "spread", "emit", "free", "settle", "part", "finish", "line_open", "line_take",
        "line_close", "take"
    ],
});

script!(pub(crate) complete {
    keys: [
        active, claims, terms, held, events, blocked, leases, finished, parents, settled, processed,
        spent, cancelled, ..keys
    ],
    args: [now_ms, prefix, events_max, result_ttl_s, done, wake, spent_ms, ..rest],
    lib: ["spread", "emit", "free", "settle", "part", "finish"],
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
        "spread", "weight", "emit", "free", "settle", "part", "line_open", "line_push", "line_close"
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
    lib: ["spread", "weight", "emit", "line_open", "line_push", "line_take", "line_close"],
});

script!(pub(crate) once {
    keys: [
        waiting, index, strays, delayed, expiring, parents, events, once, pending, registry, lane,
        data, status, ..keys
    ],
    args: [
        now_ms, wake, events_max, once_until_ms, once_ttl_s, rid, priority, spec, server, id, place,
        due_ms, expires_ms, body, policy, ..parents
    ],
    lib: ["spread", "weight", "emit", "line_open", "line_push", "line_close"],
});

script!(pub(crate) resolve {
    keys: [waiting, index, strays, delayed, parents, settled, finished, children, events, ..keys],
    args: [now_ms, wake, done, events_max, result_ttl_s, parent, lanes, ..rest],
    lib: ["spread", "weight", "emit", "settle", "line_open", "line_push", "line_close"],
});

script!(pub(crate) schedule {
    keys: [cron, data, status, events],
    args: [now_ms, events_max, id, next_ms, body],
    lib: ["emit"],
});

script!(pub(crate) promote {
    keys: [waiting, index, strays, delayed, deadletter, events, ..keys],
    args: [now_ms, wake, events_max, result_ttl_s, lanes, ..rest],
    lib: ["spread", "weight", "emit", "line_open", "line_push", "line_close"],
});

script!(pub(crate) occur {
    keys: [
        waiting, index, strays, cron, delayed, claims, events, registry, lane, lock, ..keys
    ],
    args: [
        now_ms, wake, events_max, schedule, due_ms, next_ms, rid, priority, spec, server, place,
        ..rest
    ],
    lib: ["spread", "weight", "emit", "line_open", "line_push", "line_close"],
});

script!(pub(crate) cancel {
    keys: [
        waiting, index, strays, delayed, expiring, finished, parents, settled, claims, cancelled,
        events, data, status, result, pending
    ],
    args: [now_ms, done, signal, events_max, result_ttl_s, id, outcome, reason, event, running],
    lib: ["spread", "emit", "settle", "line_open", "line_take", "line_close"],
});

script!(pub(crate) replay {
    keys: [
        waiting, index, strays, deadletter, events, registry, lane, data, status, result
    ],
    args: [now_ms, wake, events_max, id, rid, priority, spec, server, place, before, after],
    lib: ["spread", "weight", "emit", "line_open", "line_push", "line_close"],
});

script!(pub(crate) remove {
    keys: [finished, deadletter, cron, ..keys],
    args: [from, ..rest],
});

script!(pub(crate) recover {
    keys: [
        waiting, index, strays, active, claims, deadletter, blocked, events, running, registry,
        lane, lock, status, data, result
    ],
    args: [
        now_ms, wake, events_max, result_ttl_s, id, kind, mode, rid, priority, spec, server, body,
        outcome
    ],
    lib: ["spread", "weight", "emit", "free", "line_open", "line_push", "line_close"],
});

script!(pub(crate) adopt {
    keys: [
        waiting, index, strays, delayed, cron, active, finished, events, registry, lane, data,
        status, lock, result
    ],
    args: [now_ms, wake, events_max, id, kind, rid, priority, spec, server, place, body],
    lib: ["spread", "weight", "emit", "line_open", "line_push", "line_close"],
});

script!(pub(crate) compact {
    keys: [waiting, index, strays, ..lanes],
    args: [now_ms, anew, ..rids],
    lib: ["spread", "line_open", "line_close"],
});

script!(pub(crate) forget {
    keys: [index, ..keys],
    args: [..rest],
    lib: ["spread"],
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
}
