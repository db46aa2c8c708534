//! The room's scripts: one declaration per file in `lua/`.

use store::script;

script!(pub(crate) create {
    keys: [meta, state, tokens, last_update, events],
    args: [now_ms, burst, request_id, ..fields],
    lib: ["int", "num", "emit", "put_bucket"],
});

script!(pub(crate) change {
    keys: [meta, state, positions, lane1, lane2, lane3, tokens, last_update, events],
    args: [now_ms, expected_version, policy, ..fields],
    lib: ["int", "num", "emit", "rate_of", "bucket", "put_bucket", "drop_tombstones"],
});

script!(pub(crate) set_status {
    keys: [meta, state, tokens, last_update, events],
    args: [now_ms, status],
    lib: ["int", "num", "emit", "rate_of", "bucket", "put_bucket"],
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
    lib: [
        "int", "num", "emit", "rate_of", "bucket", "put_bucket", "free_slots", "line_of", "shown_position",
        "enqueued_ms", "admit_one", "count_admitted", "count_one", "drop_tombstones", "finish", "score_at",
        "address_limit", "address_full", "count_address",
    ],
});

script!(pub(crate) peek {
    keys: [meta, state, positions, admitted, active, tokens, last_update],
    args: [now_ms, most, by_hand, skip_higher, skip_normal],
    lib: ["int", "num", "rate_of", "bucket", "free_slots", "line_of", "next_in_line"],
});

script!(pub(crate) admit {
    keys: [
        meta, state, positions, lane0, lane1, lane2, lane3, heartbeat, admitted, active, tokens,
        last_update, stats, events, ..records,
    ],
    args: [now_ms, queue_id, by_hand, skip_higher, skip_normal, ..ids],
    lib: [
        "int", "num", "emit", "rate_of", "bucket", "put_bucket", "free_slots", "line_of",
        "next_in_line", "enqueued_ms", "admit_one", "count_admitted", "drop_tombstones", "address_limit",
        "address_full", "count_address",
    ],
});

script!(pub(crate) status {
    keys: [meta, state, positions, admitted, ..records],
    args: [now_ms],
    lib: ["int", "num", "line_of", "shown_position", "read_queue", "append_position"],
});

script!(pub(crate) read_positions {
    keys: [meta, state, positions],
    args: [now_ms, ..ids],
    lib: ["int", "num", "line_of", "shown_position"],
});

script!(pub(crate) heartbeat {
    keys: [meta, state, positions, admitted, heartbeat, ..records],
    args: [now_ms, queue_id, priorities],
    lib: ["int", "num", "line_of", "shown_position", "enqueued_ms", "read_queue", "append_position"],
});

script!(pub(crate) leave {
    keys: [meta, state, positions, heartbeat, admitted, stats, events, position],
    args: [now_ms, id, reason, detail],
    lib: ["int", "emit", "count_one", "finish"],
});

script!(pub(crate) expire {
    keys: [meta, state, positions, heartbeat, stats, events, ..records],
    args: [now_ms, stall_ms, ..ids],
    lib: ["int", "num", "emit", "clocks_stopped", "finish", "count_one"],
});

script!(pub(crate) no_show {
    keys: [
        meta, state, positions, lane0, lane1, lane2, lane3, heartbeat, admitted, stats, events,
        ..records,
    ],
    args: [now_ms, stall_ms, queue_id, ..ids],
    lib: ["int", "num", "emit", "clocks_stopped", "finish", "count_one", "drop_tombstones", "return_to_lane"],
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
    lib: ["int", "num", "emit", "count_one", "address_limit", "address_full", "count_address"],
});

script!(pub(crate) check_address {
    keys: [meta, admitted, active, address],
    args: [now_ms],
    lib: ["int", "num", "address_limit", "address_full"],
});

script!(pub(crate) touch {
    keys: [meta, state, active, deadlines, session, revocation],
    args: [now_ms, session_id, page_views, epoch],
    lib: ["int", "num"],
});

script!(pub(crate) end_session {
    keys: [meta, state, active, deadlines, stats, events, session, position, revocation],
    args: [
        now_ms, session_id, session_status, position_status, reason, event, counter, void, detail,
    ],
    lib: ["int", "num", "emit", "finish", "count_one", "close_session"],
});

script!(pub(crate) expire_sessions {
    keys: [meta, state, active, deadlines, stats, events, ..sessions],
    args: [now_ms, stall_ms, ..ids],
    lib: ["int", "num", "emit", "clocks_stopped", "finish", "count_one", "close_session"],
});

script!(pub(crate) survey {
    keys: [meta, state, positions, admitted, active, deadlines, tokens, last_update, ..lists],
    args: [now_ms, stall_ms, most],
    lib: ["int", "num", "rate_of", "bucket", "put_bucket", "free_slots", "line_of", "next_in_line"],
});

script!(pub(crate) adopt {
    keys: [meta, positions, heartbeat, active, deadlines, events],
    args: [now_ms, position_count, ..ids],
    lib: ["int", "emit"],
});

script!(pub(crate) compact {
    keys: [lane, spare, positions],
    args: [most],
    lib: ["int"],
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
