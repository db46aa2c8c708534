//! The keys closed to the key browser and to the default user of the RESP listener: our own control
//! keys, and those each service lists as secret.

use crate::service::Services;

/// Prefixes of keys that nobody reads, changes or deletes through the key browser, nor through the
/// RESP listener without its password.
#[derive(Debug, Clone)]
pub struct ProtectedKeys(Vec<&'static str>);

impl ProtectedKeys {
    /// Collects the prefixes of the frame and of all services of the product.
    pub fn of(services: Services) -> ProtectedKeys {
        let of_services = services.iter().flat_map(|service| service.secret_keys());
        ProtectedKeys(std::iter::once("tidegate:").chain(of_services.copied()).collect())
    }

    /// The prefixes.
    pub fn prefixes(&self) -> &[&'static str] {
        &self.0
    }

    /// Tells whether a key is closed.
    pub(crate) fn contain(&self, name: &[u8]) -> bool {
        self.0.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys;

    #[test]
    fn every_key_of_ours_is_protected_and_others_are_not() {
        let protected = ProtectedKeys::of(&[]);
        let ours = [
            keys::tokens(),
            keys::revoked(),
            keys::login("00"),
            keys::session("00"),
            keys::audit(),
            keys::audit_pending(),
        ];
        assert!(ours.iter().all(|key| protected.contain(key.as_str().as_bytes())));
        for open in ["queues", "queue:spring:meta", "bridge:jobs:data:1", "room", ""] {
            assert!(!protected.contain(open.as_bytes()), "{open}");
        }
    }
}
