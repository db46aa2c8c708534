//! Query log: answered queries in files of this instance, to be searched, followed and exported.
//!
//! ```text
//!  append ─▶ open rows (memory) ─ every 10 s ─▶ tail.qlog: small blocks
//!                 │ 65,536 rows at once            │ 65,536 rows
//!                 └──────────────────────┐         ▼
//!                                         ▶ 00000042.qlog: large blocks ─▶ deleted by size and age
//! ```
//!
//! Every row has a number; numbers only grow. A block is written whole, with a checksum, and is read
//! whole or not at all: what a crash left half written is cut off when the log is opened. Invariants: a
//! row is found exactly once, whether it is open, in the tail or in a segment (a tail block whose rows
//! are in a segment already is dropped when the log is opened); searching reads a consistent list of
//! blocks without stopping the writer; files never take more than the bound by more than one block.
//!
//! Read on in `query_log/row.rs` (a row and the filter), `query_log/block.rs` (rows in columns),
//! `query_log/files.rs` (blocks in files), `query_log/recorder.rs` (what of the records is logged),
//! `query_log/shared.rs` (the logs of all instances).

mod block;
mod files;
mod recorder;
mod row;
mod shared;

use std::{collections::VecDeque, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::{Mutex, RwLock};
use store::Millis;
use tokio::sync::broadcast;

use self::{block::Block, files::LogFiles};
pub use self::{
    recorder::{QueryRecorder, RecorderStats},
    row::{LogFilter, LoggedQuery},
    shared::{InstanceInfo, SharedLog, SharedPage, SharedRow},
};

/// Rows of a large block.
const BLOCK_ROWS: usize = 65_536;

/// Batches that a reader of the live tail may be behind.
const TAIL_BATCHES: usize = 256;

/// Most rows of one page of a search.
const PAGE_MAX: usize = 1_000;

/// Rows that wait in memory; more are dropped, and counted, while the disk does not take them.
const OPEN_ROWS_MAX: usize = 4 * BLOCK_ROWS;

/// Options of the query log.
#[derive(Clone, Debug)]
pub struct QueryLogOptions {
    /// Folder of the files.
    pub folder: PathBuf,
    /// Most bytes of all files. Default 256 MiB.
    pub max_bytes: u64,
    /// Longest time for which a row is kept. Default 30 days.
    pub max_age: Duration,
}

impl QueryLogOptions {
    /// Returns the defaults for a folder.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, max_bytes: 256 << 20, max_age: Duration::from_secs(30 * 86_400) }
    }
}

/// Size of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueryLogStats {
    /// Rows.
    pub rows: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Time of the oldest row.
    pub oldest: Option<Millis>,
    /// Rows dropped because the disk did not take them.
    pub dropped: u64,
    /// True while the disk does not take rows.
    pub is_failing: bool,
}

/// A page of a search, newest row first.
#[derive(Clone, Debug, Default)]
pub struct LogPage {
    /// Rows.
    pub rows: Vec<LoggedQuery>,
    /// Number to continue before; none at the end.
    pub next: Option<u64>,
}

/// The log. A cheap clone.
#[derive(Clone, Debug)]
pub struct QueryLog(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: QueryLogOptions,
    /// Held while files change. Always taken before `state`.
    files: Mutex<LogFiles>,
    state: RwLock<LogState>,
    tail: broadcast::Sender<Arc<[LoggedQuery]>>,
}

/// Files and rows that a search reads.
#[derive(Debug, Default)]
struct LogState {
    /// Large blocks, then small ones; ascending by number.
    blocks: Vec<Arc<Block>>,
    /// Rows that are being written, older than the open ones.
    writing: Arc<Vec<LoggedQuery>>,
    /// Rows that are not written yet, in chunks of a block's rows.
    open: VecDeque<Vec<LoggedQuery>>,
    next_number: u64,
    bytes: u64,
    dropped: u64,
    is_failing: bool,
}

impl LogState {
    /// Returns the number of rows in memory.
    fn unwritten(&self) -> usize {
        self.writing.len() + self.open.iter().map(Vec::len).sum::<usize>()
    }

    /// Returns the rows in memory, oldest first.
    fn memory_rows(&self) -> impl DoubleEndedIterator<Item = &LoggedQuery> {
        self.writing.iter().chain(self.open.iter().flatten())
    }

    /// Adds rows behind the open ones.
    fn push_open(&mut self, rows: impl IntoIterator<Item = LoggedQuery>) {
        for row in rows {
            match self.open.back_mut() {
                Some(chunk) if chunk.len() < BLOCK_ROWS => chunk.push(row),
                _ => self.open.push_back(vec![row]),
            }
        }
    }

    /// Moves the oldest chunk to where it is written from. Returns none without any.
    fn begin_writing(&mut self) -> Option<Arc<Vec<LoggedQuery>>> {
        // Rows that the disk did not take the last time come first.
        if self.writing.is_empty() {
            self.writing = Arc::new(self.open.pop_front()?);
        }
        Some(Arc::clone(&self.writing))
    }
}

impl QueryLog {
    /// Opens the log of a folder, which is made if it does not exist. Blocks: call it off the runtime.
    pub fn open(options: QueryLogOptions) -> std::io::Result<Self> {
        let (files, blocks) = LogFiles::open(&options.folder)?;
        let next_number = blocks.last().map_or(1, |block| block.last_number() + 1);
        let state = LogState { bytes: files.bytes(), blocks, next_number, ..LogState::default() };
        Ok(Self(Arc::new(Inner {
            options,
            files: Mutex::new(files),
            state: RwLock::new(state),
            tail: broadcast::channel(TAIL_BATCHES).0,
        })))
    }

    /// Adds rows. They can be searched and followed from now on, and are written by the next
    /// [`flush`](Self::flush). Their numbers are given here.
    pub fn append(&self, mut rows: Vec<LoggedQuery>) {
        if rows.is_empty() {
            return;
        }
        let mut state = self.0.state.write();
        let room = OPEN_ROWS_MAX.saturating_sub(state.unwritten());
        state.dropped += rows.len().saturating_sub(room) as u64;
        rows.truncate(room);
        for row in &mut rows {
            row.number = state.next_number;
            state.next_number += 1;
        }
        if self.0.tail.receiver_count() == 0 {
            state.push_open(rows);
            return;
        }
        state.push_open(rows.iter().cloned());
        drop(state);
        // An error means that the last follower has just gone.
        let _ = self.0.tail.send(rows.into());
    }

    /// Returns the number of rows that find room until the next [`flush`](Self::flush), followers aside.
    pub(super) fn room(&self) -> usize {
        OPEN_ROWS_MAX.saturating_sub(self.0.state.read().unwritten())
    }

    /// Counts rows that were dropped before they were made.
    pub(super) fn count_dropped(&self, rows: u64) {
        self.0.state.write().dropped += rows;
    }

    /// Follows new rows. A reader that is too slow misses some, and is told how many batches.
    pub fn follow(&self) -> broadcast::Receiver<Arc<[LoggedQuery]>> {
        self.0.tail.subscribe()
    }

    /// Writes the open rows, merges the tail into a large block when it is long enough, and deletes
    /// what is too old or too much. Blocks: call it off the runtime, every 10 s. An error leaves the
    /// rows in memory for the next time.
    pub fn flush(&self, now: Millis) -> std::io::Result<()> {
        let mut files = self.0.files.lock();
        let flushed = self.write_open(&mut files);
        let flushed = flushed.and_then(|()| self.merge_tail(&mut files, BLOCK_ROWS));
        let flushed = flushed.and_then(|()| self.expire(&mut files, now));
        let mut state = self.0.state.write();
        state.is_failing = flushed.is_err();
        state.bytes = files.bytes();
        flushed
    }

    fn write_open(&self, files: &mut LogFiles) -> std::io::Result<()> {
        loop {
            // Encoded without the lock: searches and new rows go on meanwhile.
            let Some(rows) = self.0.state.write().begin_writing() else { return Ok(()) };
            let Some(block) = Block::encode(&rows) else { return Ok(()) };
            let block = match rows.len() {
                // As many as a large block has: without the detour through the tail, whose rows come
                // before them.
                BLOCK_ROWS.. => {
                    self.merge_tail(files, 1)?;
                    files.append_segment(block)?
                }
                _ => files.append_tail(block)?,
            };
            let mut state = self.0.state.write();
            state.writing = Arc::default();
            state.blocks.push(Arc::new(block));
        }
    }

    /// Makes large blocks of the tail if it has so many rows.
    fn merge_tail(&self, files: &mut LogFiles, min_rows: usize) -> std::io::Result<()> {
        let tail: Vec<Arc<Block>> = {
            let state = self.0.state.read();
            let first = state.blocks.iter().position(|block| block.is_tail());
            let Some(first) = first else { return Ok(()) };
            state.blocks.get(first..).unwrap_or_default().to_vec()
        };
        if tail.iter().map(|block| block.rows()).sum::<usize>() < min_rows {
            return Ok(());
        }
        let mut rows = Vec::new();
        for block in &tail {
            rows.extend(block.read_all()?);
        }
        let mut merged = Vec::new();
        for chunk in rows.chunks(BLOCK_ROWS) {
            if let Some(block) = Block::encode(chunk) {
                merged.push(Arc::new(files.append_segment(block)?));
            }
        }
        // Until here the rows are in both; their numbers tell so after a crash.
        files.clear_tail()?;
        let mut state = self.0.state.write();
        state.blocks.retain(|block| !block.is_tail());
        state.blocks.extend(merged);
        Ok(())
    }

    fn expire(&self, files: &mut LogFiles, now: Millis) -> std::io::Result<()> {
        let oldest = now - self.0.options.max_age;
        let deleted = files.expire(oldest, self.0.options.max_bytes)?;
        if !deleted.is_empty() {
            let mut state = self.0.state.write();
            state.blocks.retain(|block| block.is_tail() || !deleted.contains(&block.file()));
        }
        // The tail is no segment: it goes when all of it is too old.
        let is_old = {
            let state = self.0.state.read();
            let mut tail = state.blocks.iter().filter(|block| block.is_tail()).peekable();
            tail.peek().is_some() && tail.all(|block| block.last_at() < oldest)
        };
        if is_old {
            files.clear_tail()?;
            self.0.state.write().blocks.retain(|block| !block.is_tail());
        }
        Ok(())
    }

    /// Finds rows that fit a filter, newest first, before a number (`None`: the newest). Blocks: call
    /// it off the runtime. A block that cannot be read any more is left out.
    pub fn search(&self, filter: &LogFilter, before: Option<u64>, limit: usize) -> LogPage {
        let limit = limit.clamp(1, PAGE_MAX);
        let before = before.unwrap_or(u64::MAX);
        let mut page = LogPage::default();
        let blocks = {
            let state = self.0.state.read();
            let open = state.memory_rows().rev().filter(|row| row.number < before);
            page.rows.extend(open.filter(|row| filter.matches(row)).take(limit).cloned());
            state.blocks.clone()
        };
        for block in blocks.iter().rev() {
            let missing = limit - page.rows.len();
            if missing == 0 {
                break;
            }
            if block.first_number() >= before
                || !filter.may_overlap(block.first_at(), block.last_at())
            {
                continue;
            }
            match block.search(filter, before, missing) {
                Ok(rows) => page.rows.extend(rows),
                Err(error) => tracing::debug!(%error, "a block of the query log cannot be read"),
            }
        }
        if page.rows.len() == limit {
            page.next = page.rows.last().map(|row| row.number);
        }
        page
    }

    /// Deletes every row of a client, given by address or id as the log has it. Returns their number.
    /// Blocks: call it off the runtime.
    pub fn delete_client(&self, client: &str) -> std::io::Result<u64> {
        let mut files = self.0.files.lock();
        self.write_open(&mut files)?;
        let blocks = self.0.state.read().blocks.clone();
        let mut deleted = 0;
        let mut kept = Vec::with_capacity(blocks.len());
        for block in &blocks {
            let rows = block.read_all()?;
            let count = rows.len();
            let rest: Vec<_> = rows.into_iter().filter(|row| !row.is_of_client(client)).collect();
            deleted += (count - rest.len()) as u64;
            kept.push(rest);
        }
        if deleted > 0 {
            // Written anew as a whole, so that no copy stays behind in a file.
            let chunks: Vec<Vec<LoggedQuery>> =
                kept.concat().chunks(BLOCK_ROWS).map(<[LoggedQuery]>::to_vec).collect();
            let encoded = chunks.iter().filter_map(|rows| Block::encode(rows)).collect();
            let blocks = files.replace_all(encoded)?;
            self.0.state.write().blocks = blocks.into_iter().map(Arc::new).collect();
        }
        Ok(deleted)
    }

    /// Deletes every row. Blocks: call it off the runtime.
    pub fn clear(&self) -> std::io::Result<()> {
        let mut files = self.0.files.lock();
        files.replace_all(Vec::new())?;
        let mut state = self.0.state.write();
        state.blocks.clear();
        state.writing = Arc::default();
        state.open.clear();
        state.bytes = files.bytes();
        Ok(())
    }

    /// Returns the size of the log.
    pub fn stats(&self) -> QueryLogStats {
        let state = self.0.state.read();
        let stored: usize = state.blocks.iter().map(|block| block.rows()).sum();
        let first = state.blocks.first().map(|block| block.first_at());
        QueryLogStats {
            rows: (stored + state.unwritten()) as u64,
            bytes: state.bytes,
            oldest: first.or_else(|| state.memory_rows().next().map(|row| row.at)),
            dropped: state.dropped,
            is_failing: state.is_failing,
        }
    }
}

#[cfg(test)]
mod tests;
