//! The room's scripts: one declaration per file in `lua/`.

use store::{script, script_library};

script_library!(pub(crate) LIBRARY {
    files: [
        "address_full", "address_limit", "admit_one", "append_position", "bucket",
        "clocks_stopped", "close_session", "count_address", "count_admitted", "count_one", "drop_tombstones",
        "emit", "enqueued_ms", "finish", "free_slots", "int", "line_of", "next_in_line", "num",
        "put_bucket", "rate_of", "read_queue", "return_to_lane", "score_at", "shown_position",
    ],
});

script!(pub(crate) create {
    keys: [meta, state, tokens, last_update, events],
    args: [now_ms, burst, request_id, ..fields],
    library: LIBRARY,
});

script!(pub(crate) change {
    keys: [meta, state, positions, lane1, lane2, lane3, tokens, last_update, events],
    args: [now_ms, expected_version, policy, ..fields],
    library: LIBRARY,
});

script!(pub(crate) set_status {
    keys: [meta, state, tokens, last_update, events],
    args: [now_ms, status],
    library: LIBRARY,
});

script!(pub(crate) delete {
    keys: [meta, positions, admitted, active, ..others],
});

script!(pub(crate) enqueue {
    keys: [
        meta, state, positions, lane0, lane1, lane2, lane3, heartbeat, admitted, active, tokens,
        last_update, stats, events, ..records,
    ],
    args: [now_ms, queue_id, by_address, by_share, ..requests],
    library: LIBRARY,
});

script!(pub(crate) peek {
    keys: [meta, state, positions, admitted, active, tokens, last_update],
    args: [now_ms, most, by_hand, skip_higher, skip_normal],
    library: LIBRARY,
});

script!(pub(crate) admit {
    keys: [
        meta, state, positions, lane0, lane1, lane2, lane3, heartbeat, admitted, active, tokens,
        last_update, stats, events, ..records,
    ],
    args: [now_ms, queue_id, by_hand, skip_higher, skip_normal, ..ids],
    library: LIBRARY,
});

script!(pub(crate) status {
    keys: [meta, state, positions, admitted, ..records],
    args: [now_ms],
    library: LIBRARY,
});

script!(pub(crate) read_positions {
    keys: [meta, state, positions],
    args: [now_ms, ..ids],
    library: LIBRARY,
});

script!(pub(crate) heartbeat {
    keys: [meta, state, positions, admitted, heartbeat, ..records],
    args: [now_ms, queue_id, priorities],
    library: LIBRARY,
});

script!(pub(crate) leave {
    keys: [meta, state, positions, heartbeat, admitted, stats, events, position],
    args: [now_ms, id, reason, detail],
    library: LIBRARY,
});

script!(pub(crate) expire {
    keys: [meta, state, positions, heartbeat, stats, events, ..records],
    args: [now_ms, stall_ms, ..ids],
    library: LIBRARY,
});

script!(pub(crate) no_show {
    keys: [
        meta, state, positions, lane0, lane1, lane2, lane3, heartbeat, admitted, stats, events,
        ..records,
    ],
    args: [now_ms, stall_ms, queue_id, ..ids],
    library: LIBRARY,
});

script!(pub(crate) start_session {
    keys: [
        meta, state, positions, admitted, active, deadlines, stats, events, position, session,
        address,
    ],
    args: [
        now_ms, queue_id, id, session_id, user_id, ip_address, user_agent, token, priority, by_address,
        provisional,
    ],
    library: LIBRARY,
});

script!(pub(crate) check_address {
    keys: [meta, admitted, active, address],
    args: [now_ms],
    library: LIBRARY,
});

script!(pub(crate) touch {
    keys: [meta, state, active, deadlines, session, revocation],
    args: [now_ms, session_id, page_views, epoch],
    library: LIBRARY,
});

script!(pub(crate) end_session {
    keys: [meta, state, active, deadlines, stats, events, session, position, revocation],
    args: [
        now_ms, session_id, session_status, position_status, reason, event, counter, void, detail,
    ],
    library: LIBRARY,
});

script!(pub(crate) expire_sessions {
    keys: [meta, state, active, deadlines, stats, events, ..sessions],
    args: [now_ms, stall_ms, ..ids],
    library: LIBRARY,
});

script!(pub(crate) survey {
    keys: [meta, state, positions, admitted, active, deadlines, tokens, last_update, ..lists],
    args: [now_ms, stall_ms, most],
    library: LIBRARY,
});

script!(pub(crate) adopt {
    keys: [meta, positions, heartbeat, active, deadlines, events],
    args: [now_ms, position_count, ..ids],
    library: LIBRARY,
});

script!(pub(crate) compact {
    keys: [lane, spare, positions],
    args: [most],
    library: LIBRARY,
});

#[cfg(test)]
mod tests {
    use super::*;

    testkit::scripts_test!(
        "room",
        [
            create,
            change,
            set_status,
            delete,
            enqueue,
            peek,
            admit,
            status,
            read_positions,
            heartbeat,
            leave,
            expire,
            no_show,
            start_session,
            check_address,
            touch,
            end_session,
            expire_sessions,
            survey,
            adopt,
            compact,
        ]
    );
}
