//! Making the log short again: a new base, without stopping anybody.
//!
//! The log goes on in a new file; a thread of its own reads the old base and the old logs into a
//! second keyspace, exactly as a restart would, and writes that out as the new base. So callers
//! never wait, and what is kept is what a restart would see. The second keyspace is made in parts,
//! one after another (`engine::persist::KeyParts`), so that about a fourth of the data is in memory
//! twice, unless one key, or keys linked by commands such as `RENAME`, are more than that. The
//! price is that the files are read once per part. Until the manifest names the new base, the old
//! files count.
//!
//! If the log itself cannot be trusted, the base is made from the live keyspace instead, which
//! stands still because writes are refused meanwhile.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use engine::{
    Engine,
    persist::{self, KeyParts, Part, PartPlan, SnapshotCursor},
};

use super::{
    StoreInner,
    background::Compaction,
    disk::{Disk, DiskFile},
    files::{self, Base, FileRole, HEADER, Manifest},
    replay::{self, ReplayError, ReplayTarget},
};

/// Keys that are written out or weighed at a time: when they are taken from the live keyspace,
/// callers wait that long.
const STEP_KEYS: usize = 256;
/// The share of the data in one part, as a fraction: so much of it is in memory twice.
const SHARE: u64 = 4;
/// Bytes of effects in one record of a base.
const RECORD_BYTES: usize = 64 << 10;
/// Bytes that are written at once.
const WRITE_BYTES: usize = 1 << 20;

/// The reason why there is no new base.
#[derive(Debug, thiserror::Error)]
pub(super) enum CompactionError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error("reading the log back gave record {found}, but {expected} was the last written")]
    Differs { found: u64, expected: u64 },
    #[error("the log cannot be written now")]
    Refused,
    #[error("stopped")]
    Stopped,
}

/// Makes a new base from the files, while the log goes on.
pub(super) fn compact(
    shared: &StoreInner,
    compaction: &Compaction,
    stop: &AtomicBool,
) -> Result<(), CompactionError> {
    let Some((disk, old, generation)) = shared.begin_compaction() else {
        return Err(CompactionError::Refused);
    };
    let disk = disk.as_ref();
    // The new log must be in the manifest before a record is in it.
    let file = files::create_log(disk, generation)?;
    let mut manifest = old.clone();
    manifest.logs.push(generation);
    manifest.write(disk)?;
    let Some((lsn, bytes)) = shared.rotate(&manifest, file) else {
        return Err(CompactionError::Refused);
    };

    let parts = match bytes < compaction.least_part {
        true => KeyParts::whole(),
        false => shared.divide(disk, &old, compaction.least_part, stop)?,
    };
    let mut writer = BaseWriter::create(disk, generation)?;
    for part in parts.iter() {
        let mut engine = Engine::new(compaction.config.clone());
        let session = engine.connect_loader();
        let mut target = ReplayTarget { engine: &mut engine, session, stop, part: Some(part) };
        let replayed = replay::replay(disk, &old, &mut target)?;
        if replayed.lsn != lsn {
            return Err(CompactionError::Differs { found: replayed.lsn, expected: lsn });
        }
        engine.disconnect(session);
        let mut cursor = Some(SnapshotCursor::default());
        while let Some(at) = cursor {
            if stop.load(Ordering::Relaxed) {
                return Err(CompactionError::Stopped);
            }
            cursor = writer.add_part(&engine, at, part)?;
        }
    }
    let base_bytes = writer.finish(lsn)?;
    let manifest = Manifest { base: Some(Base { generation, lsn }), logs: vec![generation] };
    manifest.write(disk)?;
    manifest.tidy(disk);
    shared.end_compaction(manifest, base_bytes);
    Ok(())
}

/// Makes a new base from the live keyspace, and a new log. Writes must be refused meanwhile.
pub(super) fn start_over(shared: &StoreInner, stop: &AtomicBool) -> Result<(), CompactionError> {
    let Some((disk, generation, lsn)) = shared.begin_start_over() else { return Ok(()) };
    let disk = disk.as_ref();
    disk.reclaim()?;
    let mut writer = BaseWriter::create(disk, generation)?;
    let mut cursor = Some(SnapshotCursor::default());
    while let Some(at) = cursor {
        if stop.load(Ordering::Relaxed) {
            return Err(CompactionError::Stopped);
        }
        let state = shared.lock();
        cursor = writer.take(&state.engine, at);
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

impl StoreInner {
    /// Returns the input of a compaction; none if the log failed.
    fn begin_compaction(&self) -> Option<(Arc<dyn Disk>, Manifest, u64)> {
        let state = self.lock();
        let log = state.log.as_ref().filter(|log| log.trouble.is_none())?;
        let manifest = log.manifest.clone();
        let generation = manifest.next_generation();
        Some((Arc::clone(&log.disk), manifest, generation))
    }

    /// Lets the log go on in a new file: the last record of the old ones, and their bytes with
    /// those of the base. None if the log has come into trouble meanwhile; the new file then stays
    /// empty.
    fn rotate(&self, manifest: &Manifest, file: Arc<dyn DiskFile>) -> Option<(u64, u64)> {
        let mut state = self.lock();
        let log = state.log.as_mut()?;
        log.manifest = manifest.clone();
        if log.trouble.is_some() || self.write(&mut state).is_err() {
            return None;
        }
        let log = state.log.as_mut()?;
        let bytes = log.base_bytes + log.bytes();
        log.rotate(file);
        Some((log.lsn, bytes))
    }

    /// Divides the keyspace into parts, by what the logs link and what the live keys weigh.
    fn divide(
        &self,
        disk: &dyn Disk,
        old: &Manifest,
        least: u64,
        stop: &AtomicBool,
    ) -> Result<KeyParts, CompactionError> {
        let mut plan = PartPlan::new(fastrand::u64(..));
        replay::link(disk, old, &mut plan, stop)?;
        let mut cursor = Some(SnapshotCursor::default());
        while let Some(at) = cursor {
            if stop.load(Ordering::Relaxed) {
                return Err(CompactionError::Stopped);
            }
            cursor = self.lock().engine.weigh(at, STEP_KEYS, &mut plan);
        }
        Ok(plan.split(SHARE, least))
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
    records: RecordWriter,
    /// Effects for the next record.
    effects: Vec<u8>,
    /// Keys to add at the next step: fewer where values are large, so that not many of them are
    /// held at once.
    keys: usize,
}

impl BaseWriter {
    pub(super) fn create(disk: &dyn Disk, generation: u64) -> io::Result<Self> {
        let file = disk.create(&files::base_name(generation))?;
        let piece = files::header(FileRole::Base, generation).to_vec();
        debug_assert_eq!(piece.len(), HEADER);
        let records = RecordWriter { file, piece, end: 0, count: 0, failed: None };
        Ok(Self { records, effects: Vec::new(), keys: 1 })
    }

    /// Takes some keys from `cursor` on, and writes nothing before [`BaseWriter::step`]: where to
    /// go on.
    pub(super) fn take(
        &mut self,
        engine: &Engine,
        cursor: SnapshotCursor,
    ) -> Option<SnapshotCursor> {
        engine.snapshot(cursor, self.keys, &mut self.effects).next
    }

    /// To be called whenever keys were taken.
    pub(super) fn step(&mut self) -> io::Result<()> {
        self.keys =
            if self.effects.len() >= RECORD_BYTES { 1 } else { (self.keys * 2).min(STEP_KEYS) };
        if self.effects.len() >= RECORD_BYTES {
            self.records.add(&mut self.effects);
        }
        self.records.result()
    }

    /// Adds some keys of a part from `cursor` on: where to go on. A large value is written while it
    /// is taken.
    fn add_part(
        &mut self,
        engine: &Engine,
        cursor: SnapshotCursor,
        part: Part<'_>,
    ) -> io::Result<Option<SnapshotCursor>> {
        let Self { records, effects, .. } = self;
        let mut add = |effects: &mut Vec<u8>| records.add(effects);
        let step = engine.snapshot_part(cursor, STEP_KEYS, part, effects, RECORD_BYTES, &mut add);
        records.result()?;
        Ok(step.next)
    }

    /// Ends the base, which holds everything up to record `lsn`: its length.
    pub(super) fn finish(mut self, lsn: u64) -> io::Result<u64> {
        self.records.add(&mut self.effects);
        self.records.finish(lsn)
    }
}

/// Writes the records of a base in large pieces.
struct RecordWriter {
    file: Arc<dyn DiskFile>,
    /// Bytes for the next write.
    piece: Vec<u8>,
    end: u64,
    count: u64,
    /// The first write that failed; nothing is written after it.
    failed: Option<io::Error>,
}

impl RecordWriter {
    /// Makes a record of these effects, and takes them out.
    fn add(&mut self, effects: &mut Vec<u8>) {
        if effects.is_empty() {
            return;
        }
        self.count += 1;
        if effects.len() < WRITE_BYTES {
            persist::append_record(&mut self.piece, self.count, effects);
        } else {
            // Not copied: there is one such value in memory here already.
            for (head, payload) in persist::frames(self.count, effects) {
                self.piece.extend_from_slice(&head);
                self.write_piece();
                self.write(payload);
            }
        }
        effects.clear();
        effects.shrink_to(WRITE_BYTES);
        if self.piece.len() >= WRITE_BYTES {
            self.write_piece();
        }
    }

    fn write_piece(&mut self) {
        let mut piece = std::mem::take(&mut self.piece);
        self.write(&piece);
        piece.clear();
        self.piece = piece;
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        match self.file.write(self.end, bytes) {
            Ok(()) => self.end += bytes.len() as u64,
            Err(error) => self.failed = Some(error),
        }
    }

    /// The error of the first write that failed.
    fn result(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn finish(mut self, lsn: u64) -> io::Result<u64> {
        persist::append_mark(&mut self.piece, self.count + 1, lsn);
        self.write_piece();
        self.result()?;
        self.file.sync()?;
        Ok(self.end)
    }
}
