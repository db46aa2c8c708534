//! The index of a list: for each name the line it is in, sorted by hash.
//!
//! A list of a million names has an index of 16 MB that nobody needs in memory. So it is sorted on
//! disk: sorted runs of some lines each, merged into one file. Only the table of names stays.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashSet},
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use super::{hash::FLAG_BITS, rule::LINE_MAX_BYTES};

/// A line of the index: word, offset and number of the line in the text.
pub(super) type IndexLine = (u64, u32, u32);

/// Bytes of a line on disk.
pub(super) const INDEX_LINE_BYTES: usize = 16;

/// Lines of a run.
const RUN_LINES: usize = 32_768;

/// Buffer of each run while runs are merged.
const RUN_BUFFER_BYTES: usize = 8 << 10;

/// Returns a line as it is on disk.
pub(super) fn encode(line: IndexLine) -> [u8; INDEX_LINE_BYTES] {
    let (word, offset, number) = line;
    let mut bytes = [0; INDEX_LINE_BYTES];
    let (left, right) = bytes.split_at_mut(8);
    left.copy_from_slice(&word.to_le_bytes());
    let (middle, right) = right.split_at_mut(4);
    middle.copy_from_slice(&offset.to_le_bytes());
    right.copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Reads a line as it is on disk.
pub(super) fn decode(bytes: [u8; INDEX_LINE_BYTES]) -> IndexLine {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
    let word = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    (word, u32::from_le_bytes([i, j, k, l]), u32::from_le_bytes([m, n, o, p]))
}

/// Calls with each line of a text, its offset and its number. Of a line that is too long, no more is
/// given than what shows that it is. Returns the bytes of the text.
pub(super) fn for_each_line(
    mut text: impl BufRead,
    mut each: impl FnMut(&[u8], usize, usize),
) -> io::Result<u64> {
    let (mut offset, mut number) = (0, 1);
    let mut line = Vec::new();
    loop {
        line.clear();
        let (mut length, mut is_ended) = (0, false);
        while !is_ended {
            let buffer = text.fill_buf()?;
            if buffer.is_empty() {
                break;
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let part = buffer.get(..end.unwrap_or(buffer.len())).unwrap_or_default();
            let room = (LINE_MAX_BYTES + 1).saturating_sub(line.len()).min(part.len());
            line.extend_from_slice(part.get(..room).unwrap_or_default());
            is_ended = end.is_some();
            let used = part.len() + usize::from(is_ended);
            length += used;
            text.consume(used);
        }
        each(&line, offset, number);
        offset += length;
        number += 1;
        if !is_ended {
            return Ok(offset as u64);
        }
    }
}

/// Collects the lines of an index: in memory, or in runs in a file.
#[derive(Debug, Default)]
pub(super) struct IndexBuilder {
    lines: Vec<IndexLine>,
    runs: Option<RunFile>,
    /// First error of the file.
    error: Option<io::Error>,
}

#[derive(Debug)]
struct RunFile {
    path: PathBuf,
    file: BufWriter<File>,
    /// Lines of each run.
    runs: Vec<usize>,
}

impl IndexBuilder {
    /// Collects in a file, which is removed at the end.
    pub(super) fn on_disk(path: &Path) -> io::Result<Self> {
        let file = BufWriter::with_capacity(RUN_BUFFER_BYTES, File::create(path)?);
        let runs = Some(RunFile { path: path.to_owned(), file, runs: Vec::new() });
        Ok(Self { lines: Vec::with_capacity(RUN_LINES), runs, error: None })
    }

    pub(super) fn push(&mut self, line: IndexLine) {
        self.lines.push(line);
        if self.lines.len() >= RUN_LINES
            && let Some(runs) = &mut self.runs
        {
            let written = runs.write(&mut self.lines);
            self.error = self.error.take().or(written.err());
        }
    }

    /// Returns the lines in memory, sorted, each word once, without some words.
    pub(super) fn into_lines(mut self, without: &HashSet<u64>) -> Vec<IndexLine> {
        self.lines.sort_unstable();
        // The same name twice is one rule; the first line is shown for it.
        self.lines.dedup_by_key(|(word, ..)| *word);
        self.lines.retain(|(word, ..)| !without.contains(word));
        std::mem::take(&mut self.lines)
    }

    /// Merges the runs into another file: sorted, each word once, without some words.
    pub(super) fn into_file(
        mut self,
        path: &Path,
        without: &HashSet<u64>,
    ) -> io::Result<IndexFile> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let Some(mut runs) = self.runs.take() else {
            return Err(io::Error::other("the index was collected in memory"));
        };
        runs.write(&mut self.lines)?;
        runs.file.flush()?;
        self.lines = Vec::new();
        let mut merge = RunMerge::open(&runs)?;
        let mut file = BufWriter::new(File::create(path)?);
        let (mut lines, mut names, mut last) = (0, 0, None);
        while let Some(line) = merge.next()? {
            let word = line.0;
            if last == Some(word) || without.contains(&word) {
                continue;
            }
            let is_new = last.is_none_or(|last: u64| last & !FLAG_BITS != word & !FLAG_BITS);
            names += usize::from(is_new);
            lines += 1;
            last = Some(word);
            file.write_all(&encode(line))?;
        }
        file.flush()?;
        Ok(IndexFile { path: path.to_owned(), lines, names })
    }
}

impl RunFile {
    fn write(&mut self, lines: &mut Vec<IndexLine>) -> io::Result<()> {
        lines.sort_unstable();
        for line in lines.iter() {
            self.file.write_all(&encode(*line))?;
        }
        self.runs.push(lines.len());
        lines.clear();
        Ok(())
    }
}

impl Drop for RunFile {
    fn drop(&mut self) {
        // Left behind it takes room, nothing else; the next refresh writes over it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// One run while runs are merged.
struct RunReader {
    file: BufReader<File>,
    left: usize,
}

impl RunReader {
    fn next(&mut self) -> io::Result<Option<IndexLine>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        let mut bytes = [0; INDEX_LINE_BYTES];
        self.file.read_exact(&mut bytes)?;
        Ok(Some(decode(bytes)))
    }
}

/// Merges sorted runs.
struct RunMerge {
    readers: Vec<RunReader>,
    /// The next line of each run.
    heads: BinaryHeap<Reverse<(IndexLine, usize)>>,
}

impl RunMerge {
    fn open(runs: &RunFile) -> io::Result<Self> {
        let mut merge = Self { readers: Vec::new(), heads: BinaryHeap::new() };
        let mut start = 0;
        for (index, lines) in runs.runs.iter().enumerate() {
            let mut file = File::open(&runs.path)?;
            file.seek(SeekFrom::Start((start * INDEX_LINE_BYTES) as u64))?;
            let file = BufReader::with_capacity(RUN_BUFFER_BYTES, file);
            let mut reader = RunReader { file, left: *lines };
            merge.heads.extend(reader.next()?.map(|line| Reverse((line, index))));
            merge.readers.push(reader);
            start += lines;
        }
        Ok(merge)
    }

    fn next(&mut self) -> io::Result<Option<IndexLine>> {
        let Some(mut head) = self.heads.peek_mut() else { return Ok(None) };
        let Reverse((line, index)) = *head;
        match self.readers.get_mut(index).map(RunReader::next).transpose()?.flatten() {
            Some(next) => *head = Reverse((next, index)),
            None => _ = std::collections::binary_heap::PeekMut::pop(head),
        }
        Ok(Some(line))
    }
}

/// A merged index in a file, which is removed at the end.
#[derive(Debug)]
pub(super) struct IndexFile {
    path: PathBuf,
    lines: usize,
    /// Different names.
    names: usize,
}

impl IndexFile {
    pub(super) fn lines(&self) -> usize {
        self.lines
    }

    pub(super) fn names(&self) -> usize {
        self.names
    }

    /// Calls with each line.
    pub(super) fn for_each(&self, mut each: impl FnMut(IndexLine)) -> io::Result<()> {
        let mut reader = RunReader { file: BufReader::new(self.open()?), left: self.lines };
        while let Some(line) = reader.next()? {
            each(line);
        }
        Ok(())
    }

    pub(super) fn open(&self) -> io::Result<File> {
        File::open(&self.path)
    }
}

impl Drop for IndexFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_a_split_gives_them() {
        let long = [&b"a".repeat(9_000)[..], b"\nb"].concat();
        for text in [&b""[..], b"a", b"a\n", b"\n\nab\r\nc", &long] {
            for capacity in [1, 3, 10_000] {
                let mut seen = Vec::new();
                let reader = BufReader::with_capacity(capacity, text);
                let bytes = for_each_line(reader, |line, offset, number| {
                    seen.push((line.to_vec(), offset, number));
                });
                assert_eq!(bytes.unwrap(), text.len() as u64);
                let mut offset = 0;
                let split = text.split(|byte| *byte == b'\n').enumerate().map(|(index, line)| {
                    let start = offset;
                    offset += line.len() + 1;
                    (line[..line.len().min(LINE_MAX_BYTES + 1)].to_vec(), start, index + 1)
                });
                assert_eq!(seen, split.collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn runs_on_disk_are_merged_as_memory_is_sorted() {
        let scratch = tempfile::tempdir().unwrap();
        let mut random = fastrand::Rng::with_seed(7);
        for count in [0, 1, RUN_LINES, 3 * RUN_LINES + 5] {
            // Words from a small range, so that many are there twice.
            let lines: Vec<IndexLine> = (0..count)
                .map(|n| (random.u64(16..2_000_000), u32::try_from(n * 20).unwrap(), 1))
                .collect();
            let without: HashSet<u64> = lines.iter().step_by(100).map(|line| line.0).collect();
            let mut memory = IndexBuilder::default();
            let mut disk = IndexBuilder::on_disk(&scratch.path().join("runs")).unwrap();
            for line in &lines {
                memory.push(*line);
                disk.push(*line);
            }
            let expected = memory.into_lines(&without);
            let file = disk.into_file(&scratch.path().join("index"), &without).unwrap();
            let mut merged = Vec::new();
            file.for_each(|line| merged.push(line)).unwrap();
            assert!(merged == expected, "{count} lines");
            let names: HashSet<u64> = expected.iter().map(|line| line.0 & !FLAG_BITS).collect();
            assert_eq!((file.lines(), file.names()), (expected.len(), names.len()));
            drop(file);
            assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "nothing is left");
        }
    }
}
