//! The log writer: effects become records; a reply is sent only after its record is in the file.
//!
//! Lives under the store's lock. A batch adds its records and writes them with one call before its
//! replies go out, so a killed process loses nothing it has answered. When writing fails the bytes
//! stay, the store refuses writes, and the same bytes are written to the same place later.

use std::{io, sync::Arc};

use engine::{Error, persist};

use super::{
    disk::{Disk, DiskFile},
    files::{HEADER, Manifest},
};

/// Space that is reserved ahead in one go, so that a full disk is met before a command runs and
/// not after. Smaller steps are tried when there is less left.
const RESERVE_BYTES: [u64; 4] = [4 << 20, 1 << 20, 256 << 10, 64 << 10];
/// The least space that must be left ahead when a command runs: room for what most commands and
/// scripts change.
const AHEAD_BYTES: u64 = 32 << 10;
/// A buffer of records that was larger than this once is not kept.
const KEPT_BUFFER_BYTES: usize = 1 << 20;

/// The log being written.
#[derive(Debug)]
pub(super) struct LogWriter {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) manifest: Manifest,
    pub(super) file: Arc<dyn DiskFile>,
    /// Logs that are complete and may not be on disk yet.
    pub(super) sealed: Vec<Arc<dyn DiskFile>>,
    /// Bytes of whole records in the file: where the next goes.
    end: u64,
    /// Up to where space is reserved.
    reserved: u64,
    /// Does the file system know how to?
    can_reserve: bool,
    /// Records that are not in the file yet.
    pending: Vec<u8>,
    /// The last record made.
    pub(super) lsn: u64,
    /// The last record in the file.
    pub(super) written: u64,
    /// The last record known to be on disk.
    pub(super) synced: u64,
    /// The last record that must be on disk within a second; later ones may wait longer.
    pub(super) strict: u64,
    /// Bytes of the base, and of logs before this one.
    pub(super) base_bytes: u64,
    pub(super) sealed_bytes: u64,
    pub(super) trouble: Option<LogFailure>,
}

/// The reason why nothing can be written now.
#[derive(Debug, Clone)]
pub(super) struct LogFailure {
    pub(super) reason: String,
    pub(super) cure: LogRecovery,
}

/// The recovery from a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogRecovery {
    /// Writing the same bytes again, once there is room.
    WriteAgain,
    /// A new base and a new log: the file cannot be trusted any more.
    StartOver,
}

impl LogFailure {
    /// Returns the error for clients, in Redis's words.
    pub(super) fn reply(&self) -> Error {
        Error::new(format!("MISCONF Errors writing to the AOF file: {}", self.reason))
    }
}

/// The begin of a log.
pub(super) struct Start {
    pub(super) lsn: u64,
    /// Good bytes of the file.
    pub(super) end: u64,
    pub(super) base_bytes: u64,
    pub(super) sealed_bytes: u64,
}

impl LogWriter {
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        manifest: Manifest,
        file: Arc<dyn DiskFile>,
        start: Start,
    ) -> Self {
        let Start { lsn, end, base_bytes, sealed_bytes } = start;
        Self {
            disk,
            manifest,
            file,
            sealed: Vec::new(),
            end,
            reserved: end,
            can_reserve: true,
            pending: Vec::new(),
            lsn,
            written: lsn,
            synced: lsn,
            strict: lsn,
            base_bytes,
            sealed_bytes,
            trouble: None,
        }
    }

    /// Bytes of all logs since the base.
    pub(super) fn bytes(&self) -> u64 {
        self.sealed_bytes + self.end
    }

    /// Makes sure that there is room for what a command usually changes. On failure the log is in
    /// trouble; records that found room before are written then.
    pub(super) fn make_room(&mut self) -> Result<(), &LogFailure> {
        if let Err(error) = self.room_for(0)
            && self.write().is_ok()
        {
            self.fail(&error);
        }
        match &self.trouble {
            None => Ok(()),
            Some(trouble) => Err(trouble),
        }
    }

    /// Makes sure that there is room for a command with arguments of `more` bytes. On failure that
    /// one command is refused.
    pub(super) fn make_room_for(&mut self, more: usize) -> Result<(), Error> {
        self.room_for(more as u64).map_err(|error| {
            LogFailure { reason: reason(&error), cure: LogRecovery::WriteAgain }.reply()
        })
    }

    fn room_for(&mut self, more: u64) -> io::Result<()> {
        let needed = self.end + self.pending.len() as u64 + AHEAD_BYTES + more;
        if needed > self.reserved && self.can_reserve && self.trouble.is_none() {
            return self.reserve(needed);
        }
        Ok(())
    }

    fn reserve(&mut self, needed: u64) -> io::Result<()> {
        let mut result = Ok(());
        for step in RESERVE_BYTES {
            let length = needed.saturating_sub(self.reserved) + step;
            result = self.file.reserve(self.reserved, length);
            match &result {
                Ok(()) => {
                    self.reserved += length;
                    return Ok(());
                }
                Err(error) if is_full(error) => {}
                // Not every file system can; then the write itself finds out.
                Err(error) => {
                    tracing::debug!(%error, "disk space cannot be reserved here");
                    self.can_reserve = false;
                    return Ok(());
                }
            }
        }
        result
    }

    /// Makes a record of these effects. If it is relaxed, its fsync may wait.
    pub(super) fn append(&mut self, effects: &[u8], is_relaxed: bool) {
        self.lsn += 1;
        if !is_relaxed {
            self.strict = self.lsn;
        }
        persist::append_record(&mut self.pending, self.lsn, effects);
    }

    /// Bytes that are not in the file yet.
    pub(super) fn unwritten(&self) -> usize {
        self.pending.len()
    }

    /// Writes what was added to the file.
    pub(super) fn write(&mut self) -> Result<(), &LogFailure> {
        if self.trouble.is_none()
            && self.written < self.lsn
            && let Err(error) = self.write_pending()
        {
            self.fail(&error);
        }
        match &self.trouble {
            None => Ok(()),
            Some(trouble) => Err(trouble),
        }
    }

    fn write_pending(&mut self) -> io::Result<()> {
        self.file.write(self.end, &self.pending)?;
        self.end += self.pending.len() as u64;
        self.written = self.lsn;
        self.pending.clear();
        if self.pending.capacity() > KEPT_BUFFER_BYTES {
            self.pending = Vec::new();
        }
        Ok(())
    }

    /// Notes that nothing can be written, and why.
    pub(super) fn fail(&mut self, error: &io::Error) {
        let cure = if is_full(error) { LogRecovery::WriteAgain } else { LogRecovery::StartOver };
        tracing::error!(folder = %self.disk.shown(), %error, "the store cannot write its log and refuses writes");
        let reason = reason(error);
        self.trouble = Some(LogFailure { reason, cure });
    }

    /// Handles a failed fsync: the file is not trusted any more. What the disk
    /// has of it is unknown, and a second fsync would not tell.
    pub(super) fn fail_sync(&mut self, error: &io::Error) {
        self.fail(error);
        if let Some(trouble) = &mut self.trouble {
            trouble.cure = LogRecovery::StartOver;
        }
    }

    /// Handles a file that was removed or replaced: what is written to it is lost. Only a new base
    /// keeps what there is.
    pub(super) fn vanish(&mut self) {
        let reason = "the data folder was removed or replaced".to_owned();
        tracing::error!(
            folder = %self.disk.shown(),
            "the store's log was removed or replaced: writes are refused until the folder is there \
             again, empty or as it was"
        );
        self.trouble = Some(LogFailure { reason, cure: LogRecovery::StartOver });
    }

    /// Tries to write what could not be written before.
    pub(super) fn write_again(&mut self) -> io::Result<()> {
        let needed = self.end + self.pending.len() as u64 + AHEAD_BYTES;
        if self.can_reserve && needed > self.reserved {
            self.reserve(needed)?;
        }
        self.write_pending()?;
        self.trouble = None;
        Ok(())
    }

    /// Records up to `lsn` are on disk. A mark says so in the log, with the next batch.
    pub(super) fn synced(&mut self, lsn: u64) {
        if lsn > self.synced {
            self.synced = lsn;
            if self.trouble.is_none() {
                persist::append_mark(&mut self.pending, self.lsn, lsn);
            }
        }
    }

    /// Goes on in another file, which is empty but for its header.
    pub(super) fn rotate(&mut self, file: Arc<dyn DiskFile>) {
        let old = std::mem::replace(&mut self.file, file);
        self.sealed.push(old);
        self.sealed_bytes += self.end;
        self.end = HEADER as u64;
        self.reserved = self.end;
    }

    /// Forgets records that are not written: a base that is made now will hold what they did.
    pub(super) fn forget_pending(&mut self) {
        self.pending.clear();
    }

    /// Starts over with a base that holds everything up to `base_lsn`, and an empty log. Nothing
    /// of the old file counts any more.
    pub(super) fn start_over(
        &mut self,
        manifest: Manifest,
        file: Arc<dyn DiskFile>,
        base_lsn: u64,
        base_bytes: u64,
    ) -> io::Result<()> {
        self.manifest = manifest;
        self.file = file;
        self.sealed.clear();
        self.sealed_bytes = 0;
        self.base_bytes = base_bytes;
        self.end = HEADER as u64;
        self.reserved = self.end;
        self.synced = base_lsn;
        self.write_again()
    }

    /// Brings everything to disk at the end, and gives back what was reserved.
    pub(super) fn close(&mut self) -> io::Result<()> {
        if self.trouble.is_some() {
            return Ok(());
        }
        self.write_pending()?;
        for file in self.sealed.drain(..) {
            file.sync()?;
        }
        self.file.sync()?;
        persist::append_mark(&mut self.pending, self.lsn, self.lsn);
        self.write_pending()?;
        self.file.cut(self.end)?;
        self.file.sync()
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::WriteZero
    )
}

/// The system's words without the number.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}
