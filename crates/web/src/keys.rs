//! Every key the HTTP side keeps for itself. Nothing else builds a key in this crate.
//!
//! Single keys only, never two in one script, so both layouts spell them the same.
#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use store::Key;

/// hash: sha-256 of a token in hex → its record as JSON (`id`, `name`, `role`, `scopes`, …).
pub(crate) fn tokens() -> Key {
    Key::raw("tidegate:tokens")
}

/// hash: sha-256 of a revoked admin token in hex → when it was revoked, in ms. A start adds none of
/// these again.
pub(crate) fn revoked() -> Key {
    Key::raw("tidegate:revoked")
}

/// zset: failed logins from one address (named by its sha-256); score = when, in ms.
pub(crate) fn login(address_hash: &str) -> Key {
    Key::raw(format!("tidegate:login:{address_hash}"))
}

/// string: one dashboard session as JSON; the name carries the sha-256 of the cookie in hex.
pub(crate) fn session(cookie_hash: &str) -> Key {
    Key::raw(format!("tidegate:session:{cookie_hash}"))
}

/// stream: the audit trail, capped; one entry for every change made by a person or a program.
pub(crate) fn audit() -> Key {
    Key::raw("tidegate:audit")
}

/// string: when an instance last tried whether the store takes writes, in milliseconds since 1970;
/// gone after a minute.
pub(crate) fn write_probe() -> Key {
    Key::raw("tidegate:write-probe")
}

/// hash: request id → the audit entry of a change under way, as JSON. What a crash leaves here goes
/// to the trail with the outcome `unknown`.
pub(crate) fn audit_pending() -> Key {
    Key::raw("tidegate:audit-pending")
}
