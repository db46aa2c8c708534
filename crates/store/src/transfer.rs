//! Moving data: backup to a file, restore from it, copies from store to store.
//!
//! Everything that moves is a sequence of commands that rebuild keys (`SET`, `HSET`, `RPUSH`, `XADD`,
//! `PEXPIREAT` …), whatever it comes from: the files of a built-in store (`embedded/freeze.rs`), any
//! store by reading its keys piece by piece (`read.rs`), or a backup file (`file.rs`). Commands of one
//! key come one after another, so a checksum per key (`checksum.rs`) is made in passing, and what was
//! written is compared with what was read key by key. No key is in memory as a whole if it is large.
//!
//! If the two sides spell keys in different layouts, each service says where its keys go
//! ([`KeyMap`](crate::key_map::KeyMap)); keys that no service knows are copied as they are.
//!
//! Invariant: a store that is being filled carries [`MARK`] until everything in it was compared, so
//! an interrupted copy is never taken for a whole one and can be continued.
//!
//! Read in this order: `layout.rs`, `checksum.rs`, `read.rs`, `write.rs`, `file.rs`, `backup.rs`,
//! `restore.rs`, `copy.rs`, `changes.rs`, `move_store.rs`.

mod backup;
mod changes;
mod checksum;
mod copy;
mod file;
mod layout;
mod move_store;
mod read;
mod restore;
mod target;
mod write;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

pub use self::{
    backup::{BackupReport, BackupSource, back_up},
    checksum::Checksum,
    file::{BackupFile, BackupHeader, FileReport, check_file},
    move_store::{MoveOptions, MoveReport, MoveStep, ServerHold, WriteHold, move_store},
    restore::{RestoreReport, restore},
    target::{MARK, unfinished},
};
use crate::{Error, Options, Timeouts, key_map::KeyMaps};

/// Arguments of one command.
pub(crate) type Argv = Vec<Vec<u8>>;

/// Bytes of a string that are read, written and summed up at a time.
pub(crate) const STRING_PIECE: usize = 64 << 10;

/// Options for opening a store to copy from or to: calls are larger than those of services, and
/// nobody waits in front of a page for them.
pub fn options() -> Options {
    let timeouts = Timeouts {
        connect: std::time::Duration::from_secs(5),
        response: std::time::Duration::from_secs(60),
        patience: std::time::Duration::from_secs(10),
        ..Timeouts::default()
    };
    Options { timeouts, ..Options::default() }
}

/// Number of keys done so far and in total, for a progress bar. A cheap clone.
#[derive(Clone, Debug, Default)]
pub struct TransferProgress(Arc<ProgressCounts>);

#[derive(Debug, Default)]
struct ProgressCounts {
    done: AtomicU64,
    total: AtomicU64,
}

impl TransferProgress {
    /// Number of keys done in this pass.
    pub fn done(&self) -> u64 {
        self.0.done.load(Ordering::Relaxed)
    }

    /// Number of keys there are to do in this pass, as far as is known.
    pub fn total(&self) -> u64 {
        self.0.total.load(Ordering::Relaxed)
    }

    fn begin(&self, total: u64) {
        self.0.done.store(0, Ordering::Relaxed);
        self.0.total.store(total, Ordering::Relaxed);
    }

    fn add(&self, keys: usize) {
        self.0.done.fetch_add(keys as u64, Ordering::Relaxed);
    }
}

/// The key of a command that rebuilds one; none for what belongs to no key.
fn key_of<T: AsRef<[u8]>>(argv: &[T]) -> Option<&[u8]> {
    let at = match argv.first()?.as_ref() {
        b"FUNCTION" => return None,
        b"XGROUP" => 2,
        _ => 1,
    };
    argv.get(at).map(AsRef::as_ref)
}

/// The same command for another key, in the spelling every store knows.
fn renamed(argv: &[Vec<u8>], key: &[u8]) -> Argv {
    let at = if argv.first().is_some_and(|name| name == b"XGROUP") { 2 } else { 1 };
    // An option of our own files, by which the built-in store keeps negative zeros.
    let is_own = |index: usize, word: &[u8]| index == 2 && word == b"PASTLIMITS";
    argv.iter()
        .enumerate()
        .filter(|(index, word)| !is_own(*index, word))
        .map(|(index, word)| if index == at { key.to_vec() } else { word.clone() })
        .collect()
}

/// A failure of a transfer that says what to do.
fn invalid(message: impl Into<String>) -> Error {
    Error::Invalid { message: message.into() }
}
