//! Opening a folder: lock it, read it back, cut what was torn, go on writing where it ended.

use std::{io, path::Path, sync::Arc, sync::atomic::AtomicBool};

use engine::Engine;

use super::{
    disk::{Disk, Folder},
    files::{self, HEADER, Manifest, ManifestFault},
    log::{LogWriter, Start},
    replay::{self, ReplayError, ReplaySummary, ReplayTarget},
};
use crate::Error;

/// Locks a folder for this process, and makes it if need be.
pub(super) fn lock(path: &Path) -> Result<Folder, Error> {
    Folder::open(path).map_err(|error| unusable(path, &error))
}

/// Opens a folder that exists to look at it.
pub(super) fn look(path: &Path) -> Result<Folder, Error> {
    Folder::look(path).map_err(|error| unusable(path, &error))
}

fn unusable(path: &Path, error: &io::Error) -> Error {
    let folder = path.display().to_string();
    match error.kind() {
        io::ErrorKind::ResourceBusy => Error::Locked { folder, pid: Folder::holder(path) },
        io::ErrorKind::ReadOnlyFilesystem => Error::ReadOnlyDisk { folder },
        _ => Error::invalid(format!("cannot use {folder}: {error}")),
    }
}

/// Fills the engine from a folder, and opens the log to go on with.
pub(super) fn open(disk: Arc<dyn Disk>, engine: &mut Engine) -> Result<LogWriter, Error> {
    let shown = disk.shown();
    let refuse = |fault| refused(&shown, fault);
    let found = Manifest::read(disk.as_ref()).map_err(|fault| refuse(fault.into()))?;
    let Some(mut manifest) = found else { return create(disk) };
    let session = engine.connect_loader();
    let stop = AtomicBool::new(false);
    let mut target = ReplayTarget { engine, session, stop: &stop, part: None };
    let replayed = replay::replay(disk.as_ref(), &manifest, &mut target).map_err(refuse)?;
    engine.disconnect(session);
    tell(&shown, &manifest, &replayed);
    let io = |error| Error::invalid(format!("cannot write in {shown}: {error}"));
    let last = replayed.log_bytes.len().saturating_sub(1);
    let generation = manifest.logs.get(last).copied().unwrap_or_default();
    let end = replayed.log_bytes.get(last).copied().unwrap_or(HEADER as u64);
    let sealed_bytes = replayed.log_bytes.iter().rev().skip(1).sum();
    let file = disk.open(&files::log_name(generation)).map_err(io)?;
    if replayed.tear.is_some() {
        file.cut(end).map_err(io)?;
        file.sync().map_err(io)?;
    }
    if manifest.logs.len() > last + 1 {
        manifest.logs.truncate(last + 1);
        manifest.write(disk.as_ref()).map_err(io)?;
    }
    manifest.tidy(disk.as_ref());
    let start = Start { lsn: replayed.lsn, end, base_bytes: replayed.base_bytes, sealed_bytes };
    Ok(LogWriter::new(disk, manifest, file, start))
}

/// Makes the files of a store that is new.
fn create(disk: Arc<dyn Disk>) -> Result<LogWriter, Error> {
    let io = |error| Error::invalid(format!("cannot write in {}: {error}", disk.shown()));
    let manifest = Manifest { base: None, logs: vec![1] };
    let file = files::create_log(disk.as_ref(), 1).map_err(io)?;
    manifest.write(disk.as_ref()).map_err(io)?;
    let start = Start { lsn: 0, end: HEADER as u64, base_bytes: 0, sealed_bytes: 0 };
    Ok(LogWriter::new(disk, manifest, file, start))
}

fn tell(shown: &str, manifest: &Manifest, replayed: &ReplaySummary) {
    if let Some(tear) = &replayed.tear {
        let file = manifest.logs.get(tear.log).map(|log| files::log_name(*log));
        tracing::warn!(
            folder = shown,
            file = file.unwrap_or_default(),
            offset = tear.offset,
            bytes = tear.bytes,
            after_power_cut = tear.hole,
            "the log was torn at its end; what was not complete is cut off"
        );
    }
    if replayed.errors > 0 {
        tracing::warn!(
            folder = shown,
            errors = replayed.errors,
            "some commands of the log answered with an error, as they may have at first"
        );
    }
    tracing::info!(
        folder = shown,
        records = replayed.records,
        commands = replayed.commands,
        lsn = replayed.lsn,
        "store loaded"
    );
}

/// The fault of a folder as the store's error.
pub(super) fn refused(folder: &str, fault: ReplayError) -> Error {
    match fault {
        ReplayError::Damaged { file, offset, why } => {
            Error::Damaged { file: format!("{folder}/{file}"), offset, message: why }
        }
        ReplayError::Manifest(fault @ (ManifestFault::Missing(_) | ManifestFault::Damaged)) => {
            let file = format!("{folder}/manifest");
            Error::Damaged { file, offset: 0, message: fault.to_string() }
        }
        other => {
            let mut message = format!("cannot read the store in {folder}: {other}");
            if let Some(source) = std::error::Error::source(&other) {
                message.push_str(&format!(": {source}"));
            }
            Error::invalid(message)
        }
    }
}
