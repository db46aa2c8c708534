//! Looking at a folder from outside: is everything whole, and if not, what can be kept?

use std::{path::Path, sync::Arc, sync::atomic::AtomicBool};

use engine::{Config, Engine, persist::SnapshotCursor};

use super::{
    compact::BaseWriter,
    disk::Disk,
    files::{self, Base, Manifest},
    open,
    replay::{self, ReplayError, ReplaySummary, ReplayTarget},
};
use crate::Error;

/// The findings of a check of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    /// The last record that can be read.
    pub lsn: u64,
    /// Records in the logs.
    pub records: u64,
    /// Commands in base and logs.
    pub commands: u64,
    /// Commands that answered with an error when they were run again.
    pub errors: u64,
    /// Keys there are.
    pub keys: usize,
    /// Bytes of the snapshot.
    pub base_bytes: u64,
    /// Bytes of the logs, as far as they are good.
    pub log_bytes: u64,
    /// Torn tail of the log, which the next start would cut off.
    pub torn: Option<TornTail>,
    /// Damage because of which the next start would refuse: always [`Error::Damaged`].
    pub damage: Option<String>,
}

/// A log that ends early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    /// The file.
    pub file: String,
    /// Offset in it.
    pub offset: u64,
    /// Number of bytes to cut off.
    pub bytes: u64,
}

/// Looks at the store in a folder, without changing anything. Refuses if a process uses it.
pub fn check(path: &Path) -> Result<CheckReport, Error> {
    let folder = open::look(path)?;
    look(&folder).map(|(report, _)| report)
}

/// Copies everything that is good of the store in a folder, up to the first damage, into a new
/// folder, which must not exist or be empty. The old folder is left as it is.
pub fn repair(path: &Path, into: &Path) -> Result<CheckReport, Error> {
    let folder = open::look(path)?;
    let copy = open::lock(into)?;
    let io = |error| Error::invalid(format!("cannot write in {}: {error}", into.display()));
    if !copy.names().map_err(io)?.is_empty() {
        return Err(Error::invalid(format!("{} is not empty", into.display())));
    }
    let (report, engine) = look(&folder)?;
    let copy: Arc<dyn Disk> = Arc::new(copy);
    let mut writer = BaseWriter::create(copy.as_ref(), 1).map_err(io)?;
    let mut cursor = Some(SnapshotCursor::default());
    while let Some(at) = cursor {
        cursor = writer.take(&engine, at);
        writer.step().map_err(io)?;
    }
    writer.finish(report.lsn).map_err(io)?;
    files::create_log(copy.as_ref(), 1).map_err(io)?;
    let base = Some(Base { generation: 1, lsn: report.lsn });
    Manifest { base, logs: vec![1] }.write(copy.as_ref()).map_err(io)?;
    Ok(report)
}

/// Reads a folder as far as it is good.
fn look(disk: &dyn Disk) -> Result<(CheckReport, Engine), Error> {
    let shown = disk.shown();
    let manifest = Manifest::read(disk).map_err(|fault| open::refused(&shown, fault.into()))?;
    let manifest =
        manifest.ok_or_else(|| Error::invalid(format!("there is no store in {shown}")))?;
    let mut engine = Engine::new(Config::default());
    let session = engine.connect_loader();
    let stop = AtomicBool::new(false);
    let mut done = ReplaySummary::default();
    let mut target = ReplayTarget { engine: &mut engine, session, stop: &stop, part: None };
    let damage = match replay::replay_into(disk, &manifest, &mut target, &mut done) {
        Ok(()) => None,
        Err(fault @ ReplayError::Damaged { .. }) => Some(open::refused(&shown, fault).to_string()),
        Err(fault) => return Err(open::refused(&shown, fault)),
    };
    engine.disconnect(session);
    let torn = done.tear.as_ref().map(|tear| TornTail {
        file: manifest.logs.get(tear.log).map(|log| files::log_name(*log)).unwrap_or_default(),
        offset: tear.offset,
        bytes: tear.bytes,
    });
    let report = CheckReport {
        lsn: done.lsn,
        records: done.records,
        commands: done.commands,
        errors: done.errors,
        keys: engine.key_count(),
        base_bytes: done.base_bytes,
        log_bytes: done.log_bytes.iter().sum(),
        torn,
        damage,
    };
    Ok((report, engine))
}
