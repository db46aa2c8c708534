//! Files of the query log: numbered segments of large blocks, and a tail of small ones.
//!
//! Invariants: a segment is only appended to and deleted as a whole; a change of many files
//! ([`LogFiles::replace_all`]) writes the new segments first, under higher numbers, then a mark that
//! says from which number on segments count, then deletes the old ones. A crash in between leaves
//! either the old state or the new one.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use store::Millis;

use super::block::{Block, EncodedBlock};

/// Length from which on a new segment is begun.
const SEGMENT_BYTES: u64 = 8 << 20;

/// Longest file that is believed to be ours; a segment is far below.
const FILE_MAX_BYTES: u64 = 1 << 30;

const TAIL: &str = "tail.qlog";
const MARK: &str = "first";

/// Position of a block.
#[derive(Clone, Debug)]
pub(super) struct BlockLocation {
    path: Arc<Path>,
    /// Number of the segment; 0 for the tail.
    segment: u64,
    start: u64,
    length: u64,
}

impl BlockLocation {
    pub(super) fn with_length(self, length: u64) -> Self {
        Self { length, ..self }
    }

    pub(super) fn is_tail(&self) -> bool {
        self.segment == 0
    }

    pub(super) fn segment(&self) -> u64 {
        self.segment
    }

    /// Reads the bytes of the block.
    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.start))?;
        let mut bytes = vec![0; usize::try_from(self.length).map_err(io::Error::other)?];
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// A segment and what is needed to delete it in time.
#[derive(Debug)]
struct Segment {
    number: u64,
    path: Arc<Path>,
    bytes: u64,
    last_at: Millis,
}

/// The files of a folder.
#[derive(Debug)]
pub(super) struct LogFiles {
    folder: PathBuf,
    segments: Vec<Segment>,
    tail_path: Arc<Path>,
    tail_bytes: u64,
}

impl LogFiles {
    /// Opens a folder; returns its blocks, ascending by the number of their rows. What is damaged at
    /// the end of a file is cut off, and tail blocks whose rows are in a segment are left out.
    pub(super) fn open(folder: &Path) -> io::Result<(Self, Vec<Arc<Block>>)> {
        std::fs::create_dir_all(folder)?;
        let first = read_mark(folder);
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(".qlog")?.parse().ok());
            numbers.extend(number.filter(|number: &u64| *number > 0));
        }
        numbers.sort_unstable();
        let mut files = Self {
            folder: folder.to_owned(),
            segments: Vec::new(),
            tail_path: folder.join(TAIL).into(),
            tail_bytes: 0,
        };
        let mut blocks = Vec::new();
        for number in numbers {
            let path: Arc<Path> = segment_path(folder, number).into();
            if number < first {
                // Replaced, and a crash came before it was deleted.
                std::fs::remove_file(&path)?;
                continue;
            }
            let (found, bytes) = read_blocks(&path, number)?;
            let last_at = found.iter().map(Block::last_at).max().unwrap_or(Millis(0));
            files.segments.push(Segment { number, path, bytes, last_at });
            blocks.extend(found.into_iter().map(Arc::new));
        }
        let stored = blocks.last().map_or(0, |block: &Arc<Block>| block.last_number());
        if files.tail_path.exists() {
            let (found, bytes) = read_blocks(&files.tail_path, 0)?;
            files.tail_bytes = bytes;
            blocks
                .extend(found.into_iter().filter(|one| one.first_number() > stored).map(Arc::new));
        }
        Ok((files, blocks))
    }

    /// Returns the bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum::<u64>() + self.tail_bytes
    }

    /// Writes a block at the end of the tail. The system brings it to the disk in its own time: a few
    /// rows every few seconds would cost whole pages each time. A killed process loses nothing by it,
    /// a power cut half a minute.
    pub(super) fn append_tail(&mut self, block: EncodedBlock) -> io::Result<Block> {
        let start = self.tail_bytes;
        append(&self.tail_path, start, &block.bytes)?;
        let length = block.bytes.len() as u64;
        self.tail_bytes += length;
        let path = Arc::clone(&self.tail_path);
        Ok(block.at(BlockLocation { path, segment: 0, start, length }))
    }

    /// Writes a block at the end of the last segment, or of a new one.
    pub(super) fn append_segment(&mut self, block: EncodedBlock) -> io::Result<Block> {
        if self.segments.last().is_none_or(|last| last.bytes >= SEGMENT_BYTES) {
            let number = self.segments.last().map_or(1, |last| last.number + 1);
            self.begin_segment(number.max(read_mark(&self.folder)));
        }
        let Some(segment) = self.segments.last_mut() else {
            return Err(io::Error::other("there is no segment"));
        };
        let (start, length) = (segment.bytes, block.bytes.len() as u64);
        append(&segment.path, start, &block.bytes)?.sync_data()?;
        segment.bytes += length;
        let (path, number) = (Arc::clone(&segment.path), segment.number);
        let block = block.at(BlockLocation { path, segment: number, start, length });
        segment.last_at = segment.last_at.max(block.last_at());
        Ok(block)
    }

    fn begin_segment(&mut self, number: u64) {
        let path = segment_path(&self.folder, number).into();
        self.segments.push(Segment { number, path, bytes: 0, last_at: Millis(0) });
    }

    /// Empties the tail, once its rows are in a segment.
    pub(super) fn clear_tail(&mut self) -> io::Result<()> {
        if self.tail_bytes > 0 {
            OpenOptions::new().write(true).open(&self.tail_path)?.set_len(0)?;
            self.tail_bytes = 0;
        }
        Ok(())
    }

    /// Deletes segments whose rows are all too old, and the oldest ones while all files take too much.
    /// Returns the numbers of the deleted ones.
    pub(super) fn expire(&mut self, oldest: Millis, max_bytes: u64) -> io::Result<Vec<u64>> {
        let mut deleted = Vec::new();
        while let Some(first) = self.segments.first() {
            let is_old = first.last_at < oldest;
            // The segment that is written to stays, if there is but one.
            let is_too_much = self.bytes() > max_bytes && self.segments.len() > 1;
            if !is_old && !is_too_much {
                break;
            }
            remove(&first.path)?;
            deleted.push(first.number);
            self.segments.remove(0);
        }
        Ok(deleted)
    }

    /// Replaces everything by new blocks.
    pub(super) fn replace_all(&mut self, blocks: Vec<EncodedBlock>) -> io::Result<Vec<Block>> {
        let old = std::mem::take(&mut self.segments);
        let first = old.last().map_or(1, |last| last.number + 1).max(read_mark(&self.folder));
        self.begin_segment(first);
        let written: io::Result<Vec<Block>> =
            blocks.into_iter().map(|block| self.append_segment(block)).collect();
        let marked = written.and_then(|written| {
            write_mark(&self.folder, first)?;
            Ok(written)
        });
        let written = match marked {
            Ok(written) => written,
            Err(error) => {
                // The old files still count.
                for segment in std::mem::replace(&mut self.segments, old) {
                    remove(&segment.path)?;
                }
                return Err(error);
            }
        };
        for segment in old {
            remove(&segment.path)?;
        }
        self.clear_tail()?;
        Ok(written)
    }
}

fn segment_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:08}.qlog"))
}

/// Returns the number from which on segments count.
fn read_mark(folder: &Path) -> u64 {
    let text = std::fs::read_to_string(folder.join(MARK)).unwrap_or_default();
    text.trim().parse().unwrap_or(1)
}

/// Writes the mark so that it is there whole, or as it was.
fn write_mark(folder: &Path, first: u64) -> io::Result<()> {
    let new = folder.join("first.new");
    let mut file = File::create(&new)?;
    file.write_all(first.to_string().as_bytes())?;
    file.sync_all()?;
    std::fs::rename(new, folder.join(MARK))?;
    File::open(folder)?.sync_all()
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Appends bytes at a position. What a failed write left behind it is cut off first.
fn append(path: &Path, start: u64, bytes: &[u8]) -> io::Result<File> {
    let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    file.set_len(start)?;
    file.seek(SeekFrom::Start(start))?;
    file.write_all(bytes)?;
    Ok(file)
}

/// Reads the blocks of a file up to the first that is damaged, and cuts off the rest.
fn read_blocks(path: &Arc<Path>, segment: u64) -> io::Result<(Vec<Block>, u64)> {
    let length = std::fs::metadata(path)?.len();
    if length > FILE_MAX_BYTES {
        return Err(io::Error::other(format!("{} is too long to be a log", path.display())));
    }
    let bytes = std::fs::read(path)?;
    let (mut blocks, mut start) = (Vec::new(), 0);
    loop {
        let rest = bytes.get(start..).unwrap_or_default();
        let location =
            BlockLocation { path: Arc::clone(path), segment, start: start as u64, length: 0 };
        let Some((block, length)) = Block::decode_header(rest, location) else { break };
        blocks.push(block);
        start += length;
    }
    if start < bytes.len() {
        tracing::warn!(file = %path.display(), bytes = bytes.len() - start,
            "the end of a file of the query log is damaged and left out");
        OpenOptions::new().write(true).open(path)?.set_len(start as u64)?;
    }
    Ok((blocks, start as u64))
}
