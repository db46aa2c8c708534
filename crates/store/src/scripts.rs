//! The scripts of this crate's building blocks, one declaration per file in `lua/`.

crate::script_library!(pub(crate) LIBRARY {
    files: [
        "add_units", "bucket_charge", "bucket_state", "calendar_charge", "calendar_state",
        "check_each", "concurrent_charge", "concurrent_state", "counter_age", "counter_charge",
        "counter_state", "fixed_charge", "fixed_state", "sliding_charge", "sliding_state",
    ],
});

crate::script!(pub(crate) lease_take {
    keys: [lease],
    args: [now_ms, owner, ttl_ms, keep_ms],
});

crate::script!(pub(crate) lease_renew {
    keys: [lease],
    args: [now_ms, owner, token, ttl_ms, keep_ms],
});

crate::script!(pub(crate) lease_release {
    keys: [lease],
    args: [owner, token],
});

crate::script!(pub(crate) limit_sliding {
    keys: [..limits],
    args: [now_ms, ..checks],
    library: LIBRARY,
});

crate::script!(pub(crate) limit_fixed {
    keys: [..limits],
    args: [now_ms, ..checks],
    library: LIBRARY,
});

crate::script!(pub(crate) limit_counter {
    keys: [..limits],
    args: [now_ms, ..checks],
    library: LIBRARY,
});

crate::script!(pub(crate) limit_bucket {
    keys: [..limits],
    args: [now_ms, ..checks],
    library: LIBRARY,
});

crate::script!(pub(crate) limit_calendar {
    keys: [..limits],
    args: [now_ms, ..checks],
    library: LIBRARY,
});

crate::script!(pub(crate) limit_concurrent {
    keys: [..limits],
    args: [now_ms, ..checks],
    library: LIBRARY,
});

crate::script!(pub(crate) limit_take {
    keys: [..limits],
    args: [now_ms, request_id, ..rules],
    library: LIBRARY,
});

crate::script!(pub(crate) limit_release {
    keys: [limit],
    args: [request_id, units, keep_ms],
});

crate::script!(pub(crate) limit_renew {
    keys: [limit],
    args: [now_ms, request_id, units, lease_ms],
});

crate::script!(pub(crate) limit_refund {
    keys: [limit, refunds],
    args: [now_ms, refund_id, algorithm, units, charged_ms, a, b, c, keep_ms],
});

crate::script!(pub(crate) events_append {
    keys: [stream],
    args: [now_ms, most, request_id, ..fields],
});

crate::script!(pub(crate) expiry_claim {
    keys: [deadlines],
    args: [now_ms, most, again_ms],
});

crate::script!(pub(crate) expiry_done {
    keys: [deadlines],
    args: [again_ms, ..members],
});

crate::script!(pub(crate) history_register {
    keys: [series],
    args: [day, most, keep_days, ..names],
});

crate::script!(pub(crate) history_write {
    keys: [chunk],
    args: [epoch, ring, keep_ms, ..rows],
});

crate::script!(pub(crate) webhook_emit {
    keys: [due, deliveries, pending, seen, alarms, ..lanes],
    args: [now_ms, event_id, alarm_mode, alarm, pending_max, seen_max, ..targets],
});

crate::script!(pub(crate) webhook_take {
    keys: [due, lane, deliveries],
    args: [now_ms, until_ms, member],
});

crate::script!(pub(crate) webhook_settle {
    keys: [due, lane, deliveries, pending, dead, log],
    args: [now_ms, member, target, id, until_ms, outcome, next_ms, delivery, entry, log_max, dead_max],
});

crate::script!(pub(crate) webhook_resend {
    keys: [due, lane, deliveries, pending, dead],
    args: [now_ms, member, target, id, delivery],
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lua_files_match_their_declarations() {
        let scripts = [
            lease_take::SCRIPT,
            lease_renew::SCRIPT,
            lease_release::SCRIPT,
            limit_sliding::SCRIPT,
            limit_fixed::SCRIPT,
            limit_counter::SCRIPT,
            limit_bucket::SCRIPT,
            limit_calendar::SCRIPT,
            limit_concurrent::SCRIPT,
            limit_take::SCRIPT,
            limit_release::SCRIPT,
            limit_renew::SCRIPT,
            limit_refund::SCRIPT,
            events_append::SCRIPT,
            expiry_claim::SCRIPT,
            expiry_done::SCRIPT,
            history_register::SCRIPT,
            history_write::SCRIPT,
            webhook_emit::SCRIPT,
            webhook_take::SCRIPT,
            webhook_settle::SCRIPT,
            webhook_resend::SCRIPT,
        ];
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
        assert_eq!(crate::script::tidy::faults("store", &folder, &scripts), Vec::<String>::new());
    }
}
