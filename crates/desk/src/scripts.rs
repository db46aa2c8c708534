//! The desk's scripts: one declaration per file in `lua/`.

use store::{script, script_library};

script_library!(pub(crate) LIBRARY {
    files: ["append_event", "is_ready", "user_state"],
});

script!(pub(crate) admit_names {
    keys: [known],
    args: [most, ..names],
});

script!(pub(crate) report_connections {
    keys: [instances, current, max],
    args: [now_ms, instance, connections, until_ms],
});

script!(pub(crate) count_since_report {
    keys: [reports],
    args: [keep_ms, most, ..series],
});

script!(pub(crate) raise {
    keys: [number],
    args: [value],
});

script!(pub(crate) open_session {
    keys: [user, record, sessions, session],
    args: [
        now_ms, session_id, token_hash, device_id, ip_address, idle_ms, max_ms, most, replaces,
    ],
    library: LIBRARY,
});

script!(pub(crate) check_session {
    keys: [user, record, sessions, session],
    args: [now_ms, session_id, token_hash, idle_ms, max_ms, touch_ms],
    library: LIBRARY,
});

script!(pub(crate) check_user {
    keys: [user, record],
    args: [now_ms, idle_ms, touch_ms],
    library: LIBRARY,
});

script!(pub(crate) set_user_status {
    keys: [user, record],
    args: [now_ms, status, reason, until_ms],
    library: LIBRARY,
});

script!(pub(crate) end_session {
    keys: [user, sessions, session],
    args: [session_id],
});

script!(pub(crate) end_all_sessions {
    keys: [user, sessions],
    args: [most],
});

script!(pub(crate) read_user {
    keys: [user, record, sessions],
    args: [now_ms],
    library: LIBRARY,
});

script!(pub(crate) put_policy {
    keys: [policies, version],
    args: [name, json, most],
});

script!(pub(crate) remove_policy {
    keys: [policies, version],
    args: [name],
});

script!(pub(crate) set_block {
    keys: [blocks, version],
    args: [now_ms, member, until_ms, most],
});

script!(pub(crate) deliver {
    keys: [ready, state, active, unread, waiting, due, messages, events, owned],
    args: [
        now_ms, id, event_no, base, owner, status, rank, active_ms, unread_score, queue_score,
        waiting_ms, queued_ms, team, skills, last_agent, list_change, message, visitor, kind, data,
        visitor_data, ttl_s, events_most,
    ],
    library: LIBRARY,
});

script!(pub(crate) announce {
    keys: [events],
    args: [now_ms, conversation, visitor, kind, data, visitor_data, events_most],
    library: LIBRARY,
});

script!(pub(crate) fill_messages {
    keys: [state, messages],
    args: [event_no, ttl_s, ..items],
});

script!(pub(crate) put_conversation {
    keys: [state],
    args: [event_no, assign_no, status, ttl_s],
});

script!(pub(crate) set_owner {
    keys: [ready, state, active, unread, waiting, due, pending, agents, leases, from, to],
    args: [
        now_ms, id, owner, agent, reason, is_forced, needs_lease, first_reply_ms, missed, ttl_s,
        only_waiting, by,
    ],
    library: LIBRARY,
});

script!(pub(crate) assign {
    keys: [ready, active, unread, waiting, due, pending, agents, leases, ..group],
    args: [now_ms, mode, first_reply_ms, ttl_s, offset, conversations, ..names],
    library: LIBRARY,
});

script!(pub(crate) settle_assignments {
    keys: [pending],
    args: [generation, ..assignments],
});

script!(pub(crate) touch_presence {
    keys: [connections, leases, agents, presence],
    args: [now_ms, agent, connection, until_ms, chosen, chosen_until_ms, active_ms, away_ms, ttl_s],
});

#[cfg(test)]
mod tests {
    use super::*;

    testkit::scripts_test!(
        "desk",
        [
            admit_names,
            report_connections,
            count_since_report,
            raise,
            open_session,
            check_session,
            check_user,
            set_user_status,
            end_session,
            end_all_sessions,
            read_user,
            put_policy,
            remove_policy,
            set_block,
            deliver,
            announce,
            fill_messages,
            put_conversation,
            set_owner,
            assign,
            settle_assignments,
            touch_presence,
        ]
    );
}
