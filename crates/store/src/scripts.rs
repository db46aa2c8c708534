//! The scripts of this crate's building blocks, one declaration per file in `lua/`.

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

crate::script!(pub(crate) limit_take {
    keys: [..limits],
    args: [now_ms, request_id, ..rules],
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lua_files_match_their_declarations() {
        let scripts = [
            lease_take::SCRIPT,
            lease_renew::SCRIPT,
            lease_release::SCRIPT,
            limit_take::SCRIPT,
            events_append::SCRIPT,
            expiry_claim::SCRIPT,
            expiry_done::SCRIPT,
        ];
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
        assert_eq!(crate::script::tidy::faults("store", &folder, &scripts), Vec::<String>::new());
    }
}
