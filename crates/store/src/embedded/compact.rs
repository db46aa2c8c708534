//! Making the log short again: a new base, without stopping anybody.
//!
//! The log goes on in a new file; a thread of its own reads the old base and the old logs into a
//! second keyspace, exactly as a restart would, and writes that out as the new base. So callers
//! never wait, what is kept is what a restart would see, and the price is the memory of a second
//! keyspace while it runs. Until the manifest names the new base, the old files count.
//!
//! When the log itself cannot be trusted, the base is made from the live keyspace instead, which
//! stands still because writes are refused meanwhile.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use engine::{
    Config, Engine,
    persist::{self, SnapshotCursor},
};

use super::{
    Shared,
    disk::{Disk, DiskFile},
    files::{self, Base, HEADER, Manifest, Role},
    replay::{self, Fault, Target},
};

/// Keys that are written out at a time: when they are taken from the live keyspace, callers wait
/// that long.
const KEYS: usize = 256;
/// Bytes of effects in one record of a base.
const RECORD: usize = 64 << 10;
/// Bytes that are written at once.
const PIECE: usize = 1 << 20;

/// Why there is no new base.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Replay(#[from] Fault),
    #[error("reading the log back gave record {found}, but {expected} was the last written")]
    Differs { found: u64, expected: u64 },
    #[error("the log cannot be written now")]
    Refused,
    #[error("stopped")]
    Stopped,
}

/// Makes a new base from the files, while the log goes on.
pub(super) fn compact(shared: &Shared, config: Config, stop: &AtomicBool) -> Result<(), Failed> {
    let Some((disk, old, generation)) = shared.begin_compaction() else {
        return Err(Failed::Refused);
    };
    let disk = disk.as_ref();
    // The new log must be in the manifest before a record is in it.
    let file = files::create_log(disk, generation)?;
    let mut manifest = old.clone();
    manifest.logs.push(generation);
    manifest.write(disk)?;
    let Some(lsn) = shared.rotate(&manifest, file) else { return Err(Failed::Refused) };

    let mut engine = Engine::new(config);
    let session = engine.connect_loader();
    let mut target = Target { engine: &mut engine, session, stop };
    let replayed = replay::replay(disk, &old, &mut target)?;
    if replayed.lsn != lsn {
        return Err(Failed::Differs { found: replayed.lsn, expected: lsn });
    }
    engine.disconnect(session);
    let mut writer = BaseWriter::create(disk, generation)?;
    let mut cursor = Some(SnapshotCursor::default());
    while let Some(at) = cursor {
        if stop.load(Ordering::Relaxed) {
            return Err(Failed::Stopped);
        }
        cursor = engine.snapshot(at, writer.keys, &mut writer.effects).next;
        writer.step()?;
    }
    // Free before the files are waited for.
    drop(engine);
    let base_bytes = writer.finish(lsn)?;
    let manifest = Manifest { base: Some(Base { generation, lsn }), logs: vec![generation] };
    manifest.write(disk)?;
    manifest.tidy(disk);
    shared.end_compaction(manifest, base_bytes);
    Ok(())
}

/// Makes a new base from the live keyspace, and a new log. Writes must be refused meanwhile.
pub(super) fn start_over(shared: &Shared, stop: &AtomicBool) -> Result<(), Failed> {
    let Some((disk, generation, lsn)) = shared.begin_start_over() else { return Ok(()) };
    let disk = disk.as_ref();
    disk.reclaim()?;
    let mut writer = BaseWriter::create(disk, generation)?;
    let mut cursor = Some(SnapshotCursor::default());
    while let Some(at) = cursor {
        if stop.load(Ordering::Relaxed) {
            return Err(Failed::Stopped);
        }
        let state = shared.lock();
        cursor = state.engine.snapshot(at, writer.keys, &mut writer.effects).next;
        drop(state);
        writer.step()?;
    }
    let base_bytes = writer.finish(lsn)?;
    let file = files::create_log(disk, generation)?;
    let manifest = Manifest { base: Some(Base { generation, lsn }), logs: vec![generation] };
    manifest.write(disk)?;
    shared.end_start_over(manifest.clone(), file, lsn, base_bytes)?;
    manifest.tidy(disk);
    Ok(())
}

impl Shared {
    /// What a compaction works on; none if the log is in trouble.
    fn begin_compaction(&self) -> Option<(Arc<dyn Disk>, Manifest, u64)> {
        let state = self.lock();
        let log = state.log.as_ref().filter(|log| log.trouble.is_none())?;
        let manifest = log.manifest.clone();
        let generation = manifest.next_generation();
        Some((Arc::clone(&log.disk), manifest, generation))
    }

    /// Lets the log go on in a new file: the last record of the old ones. None if the log has come
    /// into trouble meanwhile; the new file then stays empty.
    fn rotate(&self, manifest: &Manifest, file: Arc<dyn DiskFile>) -> Option<u64> {
        let mut state = self.lock();
        let log = state.log.as_mut()?;
        log.manifest = manifest.clone();
        if log.trouble.is_some() || self.write(&mut state).is_err() {
            return None;
        }
        let log = state.log.as_mut()?;
        log.rotate(file);
        Some(log.lsn)
    }

    fn end_compaction(&self, manifest: Manifest, base_bytes: u64) {
        let mut state = self.lock();
        if let Some(log) = &mut state.log {
            log.manifest = manifest;
            log.base_bytes = base_bytes;
            log.sealed_bytes = 0;
            // What was in them is in the base, which is on disk.
            log.sealed.clear();
        }
    }

    fn begin_start_over(&self) -> Option<(Arc<dyn Disk>, u64, u64)> {
        let mut state = self.lock();
        let log = state.log.as_mut()?;
        log.forget_pending();
        Some((Arc::clone(&log.disk), log.manifest.next_generation(), log.lsn))
    }

    fn end_start_over(
        &self,
        manifest: Manifest,
        file: Arc<dyn DiskFile>,
        lsn: u64,
        base_bytes: u64,
    ) -> io::Result<()> {
        let mut state = self.lock();
        let Some(log) = &mut state.log else { return Ok(()) };
        log.start_over(manifest, file, lsn, base_bytes)?;
        state.after_sync();
        self.after_write(&mut state);
        self.tell_durable(&state);
        Ok(())
    }
}

/// Writes a base under a name that does not count until the manifest says so.
pub(super) struct BaseWriter {
    file: Arc<dyn DiskFile>,
    /// Effects for the next record.
    pub(super) effects: Vec<u8>,
    /// Records for the next write.
    piece: Vec<u8>,
    end: u64,
    records: u64,
    /// Keys to add at the next step: fewer where values are large, so that not many of them are
    /// held at once.
    pub(super) keys: usize,
}

impl BaseWriter {
    pub(super) fn create(disk: &dyn Disk, generation: u64) -> io::Result<Self> {
        let file = disk.create(&files::base_name(generation))?;
        let piece = files::header(Role::Base, generation).to_vec();
        debug_assert_eq!(piece.len(), HEADER);
        Ok(Self { file, effects: Vec::new(), piece, end: 0, records: 0, keys: 1 })
    }

    /// To be called whenever effects were added.
    pub(super) fn step(&mut self) -> io::Result<()> {
        self.keys = if self.effects.len() >= RECORD { 1 } else { (self.keys * 2).min(KEYS) };
        if self.effects.len() >= RECORD {
            self.record();
        }
        if self.piece.len() >= PIECE { self.write() } else { Ok(()) }
    }

    fn record(&mut self) {
        if !self.effects.is_empty() {
            self.records += 1;
            persist::append_record(&mut self.piece, self.records, &self.effects);
            self.effects.clear();
            self.effects.shrink_to(PIECE);
        }
    }

    fn write(&mut self) -> io::Result<()> {
        self.file.write(self.end, &self.piece)?;
        self.end += self.piece.len() as u64;
        self.piece.clear();
        self.piece.shrink_to(PIECE);
        Ok(())
    }

    /// Ends the base, which holds everything up to record `lsn`: its length.
    pub(super) fn finish(mut self, lsn: u64) -> io::Result<u64> {
        self.record();
        persist::append_mark(&mut self.piece, self.records + 1, lsn);
        self.write()?;
        self.file.sync()?;
        Ok(self.end)
    }
}
