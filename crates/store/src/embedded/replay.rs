//! Reading a folder back: the base, then the logs, record by record.
//!
//! Three ends are possible. Everything is whole. Or the last bytes are not: a write was cut off by
//! the end of the process or of power, nothing that was acknowledged as safe is behind it, and the
//! data ends before it. Or something is damaged that was whole once: then nothing is loaded, and
//! the fault names the file and the place.
//!
//! Torn tail or damage: a torn tail has no valid record after it. There may be one
//! after a power cut, because the disk writes blocks in any order; then blocks in between are
//! missing, so they read as zeros, and no mark says that they had been on disk. A mark is written
//! after each fsync, and what it vouches for can only be damaged, not cut.

use std::{
    io::{self, Read},
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use engine::{
    Engine, SessionId,
    persist::{self, DecodedRecord, Part, PartPlan, RecordKind},
};

use super::{
    disk::Disk,
    files::{self, FileRole, HEADER, Manifest, ManifestFault},
};

/// A summary of a replay.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct ReplaySummary {
    /// The last record.
    pub(super) lsn: u64,
    /// Records in the logs.
    pub(super) records: u64,
    /// Commands that were run, from base and logs.
    pub(super) commands: u64,
    /// Number of them that answered with an error.
    pub(super) errors: u64,
    /// Bytes of the base.
    pub(super) base_bytes: u64,
    /// Good bytes of each log.
    pub(super) log_bytes: Vec<u64>,
    /// Torn tail of the logs.
    pub(super) tear: Option<Tear>,
}

/// A place where the logs end early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tear {
    /// Index into the manifest's logs; those after it hold nothing that counts.
    pub(super) log: usize,
    pub(super) offset: u64,
    /// Bytes behind it, in all logs.
    pub(super) bytes: u64,
    /// Whole records are behind it that are lost with what is missing before them.
    pub(super) hole: bool,
}

/// Bytes read of snapshots and logs.
static READ: AtomicU64 = AtomicU64::new(0);

/// Number of bytes of snapshots and logs this process has read so far, all stores together: against
/// the size of a folder, how far opening or checking it is.
pub fn bytes_read() -> u64 {
    READ.load(Ordering::Relaxed)
}

/// The reason why a folder cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplayError {
    #[error("{file} is damaged at byte {offset}: {why}")]
    Damaged { file: String, offset: u64, why: String },
    #[error("cannot read {file}")]
    Io {
        file: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Manifest(#[from] ManifestFault),
    #[error("stopped")]
    Stopped,
}

/// The engine that effects are applied to.
pub(super) struct ReplayTarget<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) session: SessionId,
    /// Set from another thread to stop half way.
    pub(super) stop: &'a AtomicBool,
    /// The part of the keyspace that is wanted; none for all of it.
    pub(super) part: Option<Part<'a>>,
}

/// Reads everything the manifest names.
pub(super) fn replay(
    disk: &dyn Disk,
    manifest: &Manifest,
    target: &mut ReplayTarget<'_>,
) -> Result<ReplaySummary, ReplayError> {
    let mut done = ReplaySummary::default();
    replay_into(disk, manifest, target, &mut done)?;
    Ok(done)
}

/// Reads everything the manifest names; returns also what was read before a fault.
pub(super) fn replay_into(
    disk: &dyn Disk,
    manifest: &Manifest,
    target: &mut ReplayTarget<'_>,
    done: &mut ReplaySummary,
) -> Result<(), ReplayError> {
    if let Some(base) = manifest.base {
        replay_base(disk, base, target, done)?;
        done.lsn = base.lsn;
    }
    let mut proved = 0;
    for (index, generation) in manifest.logs.iter().enumerate() {
        let file = files::log_name(*generation);
        let mut records = Records::open(disk, &file, FileRole::Log, *generation)?;
        match replay_log(&mut records, target, done, &mut proved)? {
            LogEnd::Clean => done.log_bytes.push(records.offset),
            LogEnd::Broken { offset, why } => {
                let place = LogBreak { log: index, offset, why, next: done.lsn + 1, proved };
                done.log_bytes.push(offset);
                done.tear = judge(disk, manifest, records, place)?;
                return Ok(());
            }
        }
        // A log that ends between two records, while the next one does not go on where it ended.
        if let Some(next) = manifest.logs.get(index + 1)
            && let Some(first) = first_lsn(disk, *next)?
            && first > done.lsn + 1
        {
            let why = format!("record {} is missing", done.lsn + 1);
            let offset = records.offset;
            let place = LogBreak { log: index, offset, why, next: done.lsn + 1, proved };
            done.tear = judge(disk, manifest, records, place)?;
            return Ok(());
        }
    }
    Ok(())
}

fn replay_base(
    disk: &dyn Disk,
    base: files::Base,
    target: &mut ReplayTarget<'_>,
    done: &mut ReplaySummary,
) -> Result<(), ReplayError> {
    let file = files::base_name(base.generation);
    let mut records = Records::open(disk, &file, FileRole::Base, base.generation)?;
    let mut expected = 1;
    let mut parts: Vec<u8> = Vec::new();
    loop {
        let at = records.offset;
        let damaged =
            |why: &str| ReplayError::Damaged { file: file.clone(), offset: at, why: why.into() };
        match records.next()? {
            NextRecord::Record { kind: RecordKind::Part, lsn, payload } if lsn == expected => {
                join(&mut parts, records.payload(payload));
            }
            NextRecord::Record { kind: RecordKind::Effects, lsn, payload } if lsn == expected => {
                let applied = if parts.is_empty() {
                    target.apply(records.payload(payload), done)
                } else {
                    let mut whole = std::mem::take(&mut parts);
                    join(&mut whole, records.payload(payload));
                    target.apply(&whole, done)
                };
                applied.map_err(|why| damaged(&why))?;
                target.go_on()?;
                expected += 1;
            }
            // The end of a snapshot tells which record it goes up to.
            NextRecord::Record { kind: RecordKind::Mark, lsn, payload } if lsn == expected => {
                if records.payload(payload) != base.lsn.to_le_bytes() {
                    return Err(damaged("it is another snapshot than the manifest says"));
                }
                done.base_bytes = records.offset;
                return Ok(());
            }
            NextRecord::Record { .. } => {
                return Err(damaged("a record is missing or out of place"));
            }
            NextRecord::End => return Err(damaged("it ends early")),
            NextRecord::Broken(why) => return Err(damaged(why)),
        }
    }
}

/// The end of a log: where it should be, or before that.
enum LogEnd {
    Clean,
    Broken { offset: u64, why: String },
}

fn replay_log(
    records: &mut Records,
    target: &mut ReplayTarget<'_>,
    done: &mut ReplaySummary,
    proved: &mut u64,
) -> Result<LogEnd, ReplayError> {
    // Parts of a record that is not complete yet, and where it began.
    let mut parts: Vec<u8> = Vec::new();
    let mut began = None;
    loop {
        let at = records.offset;
        let start = began.unwrap_or(at);
        let broken = |why: &str| Ok(LogEnd::Broken { offset: start, why: why.to_owned() });
        let (kind, lsn, payload) = match records.next()? {
            NextRecord::Record { kind, lsn, payload } => (kind, lsn, payload),
            NextRecord::End if began.is_some() => return broken("the record is not complete"),
            NextRecord::End => return Ok(LogEnd::Clean),
            NextRecord::Broken(why) => return broken(why),
        };
        let payload = records.payload(payload);
        match kind {
            RecordKind::Mark => {
                if let Ok(synced) = payload.try_into().map(u64::from_le_bytes) {
                    *proved = (*proved).max(synced);
                }
                continue;
            }
            // In the base already.
            _ if lsn <= done.lsn => continue,
            _ if lsn != done.lsn + 1 => {
                return broken(&format!("record {lsn} stands where {} should", done.lsn + 1));
            }
            RecordKind::Part => {
                began = Some(start);
                join(&mut parts, payload);
                continue;
            }
            RecordKind::Effects => {}
        }
        let applied = if began.take().is_some() {
            let mut whole = std::mem::take(&mut parts);
            join(&mut whole, payload);
            target.apply(&whole, done)
        } else {
            target.apply(payload, done)
        };
        if let Err(why) = applied {
            // Its checksum is right, so it was not cut off.
            return Err(ReplayError::Damaged { file: records.file.clone(), offset: start, why });
        }
        done.records += 1;
        done.lsn = lsn;
        target.go_on()?;
    }
}

/// A break: the position at which the logs do not go on.
struct LogBreak {
    log: usize,
    offset: u64,
    why: String,
    /// The record that should be there.
    next: u64,
    /// The last record known to have been on disk.
    proved: u64,
}

/// Is it a cut or damage?
fn judge(
    disk: &dyn Disk,
    manifest: &Manifest,
    mut records: Records,
    place: LogBreak,
) -> Result<Option<Tear>, ReplayError> {
    let file = records.file.clone();
    let behind = records.rest_from(place.offset)?;
    let mut bytes = behind.len() as u64;
    let mut evidence = Evidence { proved: place.proved, first: None, records: false };
    evidence.gather(&behind, place.next);
    let missing = behind.get(..evidence.first.unwrap_or(behind.len())).unwrap_or_default();
    // The log was cut short before the next one, or has blocks that were never written.
    let hole = behind.is_empty() || has_zero_block(missing, place.offset);
    for generation in manifest.logs.iter().skip(place.log + 1) {
        let mut later =
            Records::open(disk, &files::log_name(*generation), FileRole::Log, *generation)?;
        let rest = later.rest_from(HEADER as u64)?;
        bytes += rest.len() as u64;
        evidence.gather(&rest, place.next);
    }
    if evidence.proved >= place.next || (evidence.records && !hole) {
        return Err(ReplayError::Damaged { file, offset: place.offset, why: place.why });
    }
    Ok(Some(Tear { log: place.log, offset: place.offset, bytes, hole: evidence.records }))
}

/// Valid records found after a break in a log.
struct Evidence {
    proved: u64,
    /// Offset of the first valid record in the first bytes searched.
    first: Option<usize>,
    /// Is there a whole record at all?
    records: bool,
}

impl Evidence {
    fn gather(&mut self, bytes: &[u8], next: u64) {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..)
            && let Some(found) = persist::resync(rest, next.saturating_sub(1))
        {
            let DecodedRecord::Record { kind, payload, length, .. } =
                persist::decode(rest.get(found..).unwrap_or_default())
            else {
                break;
            };
            self.first.get_or_insert(at + found);
            self.records = true;
            if kind == RecordKind::Mark
                && let Ok(synced) = payload.try_into().map(u64::from_le_bytes)
            {
                self.proved = self.proved.max(synced);
            }
            at += found + length;
        }
    }
}

/// The smallest unit a disk writes.
const BLOCK: usize = 512;

/// Are there blocks, or the rest of one, that read as zeros, as a disk has it where nothing was
/// written? `offset` is where in the file `bytes` begin. No record begins with a zero, but for one
/// whose length is a multiple of 256.
fn has_zero_block(bytes: &[u8], offset: u64) -> bool {
    let zeros = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let lead = ((BLOCK as u64 - offset % BLOCK as u64) % BLOCK as u64) as usize;
    let Some((first, whole)) = bytes.split_at_checked(lead) else { return false };
    (lead > 0 && zeros(first)) || whole.chunks_exact(BLOCK).any(zeros)
}

/// The number of the first record of a log; none if it has none, or not a whole one.
fn first_lsn(disk: &dyn Disk, generation: u64) -> Result<Option<u64>, ReplayError> {
    let mut records = Records::open(disk, &files::log_name(generation), FileRole::Log, generation)?;
    loop {
        match records.next()? {
            NextRecord::Record { kind: RecordKind::Mark, .. } => {}
            NextRecord::Record { lsn, .. } => return Ok(Some(lsn)),
            NextRecord::End | NextRecord::Broken(_) => return Ok(None),
        }
    }
}

impl ReplayTarget<'_> {
    fn apply(&mut self, effects: &[u8], done: &mut ReplaySummary) -> Result<(), String> {
        let applied = match self.part {
            None => self.engine.apply(self.session, effects),
            Some(part) => self.engine.apply_part(self.session, effects, part),
        };
        let applied = applied.map_err(|bad| bad.to_string())?;
        done.commands += applied.commands;
        done.errors += applied.errors;
        Ok(())
    }

    fn go_on(&self) -> Result<(), ReplayError> {
        go_on(self.stop)
    }
}

fn go_on(stop: &AtomicBool) -> Result<(), ReplayError> {
    if stop.load(Ordering::Relaxed) { Err(ReplayError::Stopped) } else { Ok(()) }
}

/// Reports to a plan which keys the logs link; a base links none. Damage is left for the replay to
/// find.
pub(super) fn link(
    disk: &dyn Disk,
    manifest: &Manifest,
    plan: &mut PartPlan,
    stop: &AtomicBool,
) -> Result<(), ReplayError> {
    for generation in &manifest.logs {
        let file = files::log_name(*generation);
        let mut records = Records::open(disk, &file, FileRole::Log, *generation)?;
        let mut parts: Vec<u8> = Vec::new();
        while let NextRecord::Record { kind, payload, .. } = records.next()? {
            go_on(stop)?;
            let payload = records.payload(payload);
            let linked = match kind {
                RecordKind::Mark => continue,
                RecordKind::Part => {
                    join(&mut parts, payload);
                    continue;
                }
                RecordKind::Effects if parts.is_empty() => plan.link(payload),
                RecordKind::Effects => {
                    join(&mut parts, payload);
                    plan.link(&std::mem::take(&mut parts))
                }
            };
            linked.map_err(|bad| {
                let (offset, why) = (records.offset, bad.to_string());
                ReplayError::Damaged { file: file.clone(), offset, why }
            })?;
        }
    }
    Ok(())
}

/// Adds the next piece of a record that is very long; doubling would take as much again.
fn join(parts: &mut Vec<u8>, payload: &[u8]) {
    parts.reserve_exact(payload.len());
    parts.extend_from_slice(payload);
}

/// The records of one file, read in large pieces.
struct Records {
    reader: Box<dyn Read + Send>,
    file: String,
    buffer: Vec<u8>,
    /// Offset of the next record in the buffer.
    start: usize,
    /// Its offset in the file.
    offset: u64,
    at_end: bool,
}

/// The next record of a file.
enum NextRecord {
    Record { kind: RecordKind, lsn: u64, payload: Range<usize> },
    End,
    Broken(&'static str),
}

/// Bytes read at once.
const READ_BYTES: usize = 1 << 20;

impl Records {
    fn open(
        disk: &dyn Disk,
        file: &str,
        role: FileRole,
        generation: u64,
    ) -> Result<Self, ReplayError> {
        let io = |source| ReplayError::Io { file: file.to_owned(), source };
        let mut reader = disk.read(file).map_err(io)?;
        let mut found = [0; HEADER];
        let whole = match reader.read_exact(&mut found) {
            Ok(()) => found == files::header(role, generation),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
            Err(source) => return Err(io(source)),
        };
        if !whole {
            let why = "it does not begin as a file of this store".to_owned();
            return Err(ReplayError::Damaged { file: file.to_owned(), offset: 0, why });
        }
        Ok(Self {
            reader,
            file: file.to_owned(),
            buffer: Vec::new(),
            start: 0,
            offset: HEADER as u64,
            at_end: false,
        })
    }

    fn next(&mut self) -> Result<NextRecord, ReplayError> {
        loop {
            let wanted = match persist::decode(self.buffer.get(self.start..).unwrap_or_default()) {
                DecodedRecord::Record { kind, lsn, payload, length } => {
                    let end = self.start + length;
                    let payload = end - payload.len()..end;
                    self.start = end;
                    self.offset += length as u64;
                    return Ok(NextRecord::Record { kind, lsn, payload });
                }
                DecodedRecord::Bad(persist::RecordFault::Length) => {
                    return Ok(NextRecord::Broken("a record has an impossible length"));
                }
                DecodedRecord::Bad(persist::RecordFault::Checksum) => {
                    return Ok(NextRecord::Broken("the checksum of a record does not fit"));
                }
                DecodedRecord::End if self.at_end => return Ok(NextRecord::End),
                DecodedRecord::Short(_) if self.at_end => {
                    return Ok(NextRecord::Broken("a record is not complete"));
                }
                DecodedRecord::End => 1,
                DecodedRecord::Short(wanted) => wanted,
            };
            self.fill(wanted)?;
        }
    }

    fn payload(&self, range: Range<usize>) -> &[u8] {
        self.buffer.get(range).unwrap_or_default()
    }

    /// Reads until so many bytes are there from `start` on, or the file ends.
    fn fill(&mut self, wanted: usize) -> Result<(), ReplayError> {
        self.buffer.drain(..self.start);
        self.start = 0;
        let most = wanted.max(READ_BYTES);
        if self.buffer.capacity() > 4 * most {
            self.buffer.shrink_to(most);
        }
        let missing = wanted.saturating_sub(self.buffer.len()).max(READ_BYTES) as u64;
        // Else it would grow by doubling.
        self.buffer.reserve_exact(missing as usize + 64);
        let read = self.reader.by_ref().take(missing).read_to_end(&mut self.buffer);
        let read = read.map_err(|source| ReplayError::Io { file: self.file.clone(), source })?;
        READ.fetch_add(read as u64, Ordering::Relaxed);
        self.at_end = (read as u64) < missing;
        Ok(())
    }

    /// All bytes from an offset on that has not been read past by more than the buffer.
    fn rest_from(&mut self, offset: u64) -> Result<Vec<u8>, ReplayError> {
        self.reader
            .read_to_end(&mut self.buffer)
            .map_err(|source| ReplayError::Io { file: self.file.clone(), source })?;
        let back = usize::try_from(self.offset.saturating_sub(offset)).unwrap_or(usize::MAX);
        let start = self.start.saturating_sub(back);
        Ok(self.buffer.get(start..).unwrap_or_default().to_vec())
    }
}
