//! The keys closed to the key browser and to the default user of the RESP port. The one list: our own control keys, and what each service
//! lists as secret.

/// Starts of the names of keys that nobody reads, changes or deletes through the key browser, nor
/// through the RESP port without its password.
pub fn starts() -> impl Iterator<Item = &'static str> {
    std::iter::once("tidegate:").chain(room::SECRET_KEYS)
}

/// Whether a key is closed to the key browser.
pub(crate) fn is_protected(name: &[u8]) -> bool {
    starts().any(|start| name.starts_with(start.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys;

    #[test]
    fn every_key_of_ours_is_protected_and_those_of_services_are_not() {
        let ours = [
            keys::tokens(),
            keys::revoked(),
            keys::login("00"),
            keys::session("00"),
            keys::audit(),
            keys::audit_pending(),
        ];
        assert!(ours.iter().all(|key| is_protected(key.as_str().as_bytes())));
        for open in ["queues", "queue:spring:meta", "bridge:jobs:data:1", "room", ""] {
            assert!(!is_protected(open.as_bytes()), "{open}");
        }
    }
}
