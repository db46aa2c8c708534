//! The secret that seals the waiting room's signing keys, so that reading the store is not enough
//! to sign passes. It is not in the store, and not in the configuration either: in a file, or in
//! the environment.

use std::io;
use std::path::{Path, PathBuf};

use web::cli::{Failure, Outcome, admin_token};

use crate::config::RoomSettings;

/// The environment variable with the digits themselves.
pub(crate) const VARIABLE: &str = "TIDEGATE_ROOM_SECRET";

/// A secret, and the file that was made for it just now, if one was.
#[derive(Debug)]
pub(crate) struct RoomSecret {
    pub(crate) secret: [u8; 32],
    made: Option<PathBuf>,
}

impl RoomSecret {
    /// Removes the file made just now, because the store has keys under another secret: the next
    /// start should ask for that one, not find this.
    pub(crate) fn discard(&self) {
        if let Some(path) = &self.made
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove an unused secret");
        }
    }
}

impl From<[u8; 32]> for RoomSecret {
    fn from(secret: [u8; 32]) -> RoomSecret {
        RoomSecret { secret, made: None }
    }
}

/// The secret: given, kept in the data folder, or made there. Instances that share a store share
/// the secret; one that makes its own where others have sealed keys is refused when the room opens.
pub(crate) fn find(settings: &RoomSettings, data: &Path) -> Outcome<RoomSecret> {
    if let Ok(digits) = std::env::var(VARIABLE)
        && !digits.is_empty()
    {
        return parse(&digits).map(RoomSecret::from).ok_or_else(|| wrong(VARIABLE));
    }
    let file = &settings.secret_file;
    if !file.as_os_str().is_empty() {
        return read(file).map(RoomSecret::from);
    }
    let kept = path(data);
    if kept.exists() {
        return read(&kept).map(RoomSecret::from);
    }
    Ok(RoomSecret { secret: make(&kept)?, made: Some(kept) })
}

/// Returns the default path of the secret.
pub(crate) fn path(data: &Path) -> PathBuf {
    data.join("room-secret")
}

fn read(path: &Path) -> Outcome<[u8; 32]> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let failure = Failure::usage(format!("cannot read {}: {error}", path.display()));
        match error.kind() {
            io::ErrorKind::NotFound => failure.next(format!(
                "make one: (umask 077; head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \\n' > {})",
                path.display()
            )),
            _ => failure.next("check room.secret_file"),
        }
    })?;
    let secret = parse(&text).ok_or_else(|| wrong(&path.display().to_string()))?;
    // A mounted secret may be read-only; then its owner decides who can read it.
    if let Err(error) = admin_token::close(path) {
        tracing::warn!(path = %path.display(), %error, "cannot close the secret to other users");
    }
    Ok(secret)
}

fn make(path: &Path) -> Outcome<[u8; 32]> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret)
        .map_err(|error| Failure::failed(format!("the system gives no random bytes: {error}")))?;
    let digits: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    admin_token::write_private(path, &digits)?;
    Ok(secret)
}

fn parse(text: &str) -> Option<[u8; 32]> {
    let digits = text.trim().as_bytes();
    let mut secret = [0; 32];
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in secret.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(secret)
}

fn wrong(what: &str) -> Failure {
    Failure::usage(format!("{what} does not hold 64 hexadecimal digits"))
        .next("head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \\n'   (makes some)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_64_digits() {
        assert_eq!(parse(&format!("{}\n", "0f".repeat(32))), Some([15; 32]));
        for bad in ["", "0f", &"0g".repeat(32), &"0f".repeat(33), &"+f".repeat(32), &"ä".repeat(32)]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
