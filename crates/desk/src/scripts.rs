//! The desk's scripts: one declaration per file in `lua/`.

use store::{script, script_library};

script_library!(pub(crate) LIBRARY {
    files: ["user_state"],
});

script!(pub(crate) admit_endpoints {
    keys: [endpoints],
    args: [most, ..names],
});

script!(pub(crate) report_connections {
    keys: [instances, current, max],
    args: [now_ms, instance, connections, until_ms],
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

#[cfg(test)]
mod tests {
    use super::*;

    testkit::scripts_test!(
        "desk",
        [
            admit_endpoints,
            report_connections,
            raise,
            open_session,
            check_session,
            check_user,
            set_user_status,
            end_session,
            end_all_sessions,
        ]
    );
}
