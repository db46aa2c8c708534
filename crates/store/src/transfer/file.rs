//! The backup file.
//!
//! ```text
//! "TIDEBACK" | version u32 | length u32 | header, JSON (length bytes) | crc32c u32 of all before
//! record …    the commands that rebuild keys, in records as of the built-in store's log
//! mark        the end: how many keys there are
//! ```
//! Little endian. Records have a checksum and are numbered, so a file that is cut, altered or put
//! together of two is noticed. A newer version is refused by number.

use std::{
    fs, io,
    io::{Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use engine::persist::{self, DecodedRecord, EffectReader, RecordKind};
use serde::{Deserialize, Serialize};

use super::{invalid, key_of};
use crate::{Error, Layout};

const MAGIC: &[u8; 8] = b"TIDEBACK";
const VERSION: u32 = 1;
/// The longest header that is read.
const HEADER_MOST: u32 = 1 << 16;
/// Bytes of commands in one record.
const RECORD_BYTES: usize = 64 << 10;
/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

/// The facts a backup file tells about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupHeader {
    /// The store it was made from, without secrets.
    pub source: String,
    /// The layout of its keys: `standalone` or `cluster`.
    pub layout: String,
    /// Time at which it was made, in ms since 1970.
    pub created_at_ms: i64,
    /// Version of the program that made it.
    pub program: String,
    /// True if it holds everything as it was at one moment.
    pub consistent: bool,
}

impl BackupHeader {
    pub(crate) fn layout(&self) -> Result<Layout, Error> {
        match self.layout.as_str() {
            "standalone" => Ok(Layout::Standalone),
            "cluster" => Ok(Layout::Cluster),
            other => Err(invalid(format!("the backup has keys in an unknown layout, {other:?}"))),
        }
    }
}

/// The content of a backup file, as far as can be told without restoring it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileReport {
    /// The header.
    pub header: BackupHeader,
    /// Number of keys.
    pub keys: u64,
    /// Number of commands.
    pub commands: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Reads a whole backup file and checks every record of it.
///
/// # Errors
/// It is not a backup, is damaged or cut off, or is of a newer version.
pub fn check_file(path: &Path) -> Result<FileReport, Error> {
    let mut file = BackupFile::open(path)?;
    let mut commands = 0;
    while let Some(effects) = file.next_record()? {
        let (mut reader, mut argv) = (EffectReader::new(&effects), Vec::new());
        while reader.next(&mut argv).map_err(|_| file.damaged("it holds no commands"))?.is_some() {
            commands += 1;
        }
    }
    Ok(FileReport { header: file.header.clone(), keys: file.keys, commands, bytes: file.offset })
}

/// A backup file that is read from beginning to end.
#[derive(Debug)]
pub struct BackupFile {
    path: String,
    reader: fs::File,
    header: BackupHeader,
    buffer: Vec<u8>,
    start: usize,
    /// Offset of the next record.
    offset: u64,
    expected: u64,
    keys: u64,
    is_done: bool,
}

impl BackupFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// It is not a backup, or one of a newer version.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let shown = path.display().to_string();
        let io = |error: io::Error| invalid(format!("cannot read {shown}: {error}"));
        let mut reader = fs::File::open(path).map_err(io)?;
        let short = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                invalid(format!("{shown} is not a backup, or was cut off at its beginning"))
            }
            _ => io(error),
        };
        let mut head = [0; 16];
        reader.read_exact(&mut head).map_err(short)?;
        let word = |at: usize| {
            let bytes = head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            u32::from_le_bytes(bytes.unwrap_or_default())
        };
        if !head.starts_with(MAGIC) {
            return Err(invalid(format!("{shown} is not a backup made by tidegate")));
        }
        let (version, length) = (word(8), word(12));
        if version > VERSION {
            return Err(invalid(format!(
                "{shown} was made by a newer version: its format is {version}, this program reads up \
                 to {VERSION}; use the version that made it, or a later one"
            )));
        }
        if version == 0 || length > HEADER_MOST {
            return Err(damaged(&shown, 8, "its header is damaged"));
        }
        let mut json = vec![0; length as usize];
        reader.read_exact(&mut json).map_err(short)?;
        let mut crc = [0; 4];
        reader.read_exact(&mut crc).map_err(short)?;
        let found = crc32c::crc32c_append(crc32c::crc32c(&head), &json);
        let header = serde_json::from_slice(&json).ok();
        let header = header.filter(|_| found == u32::from_le_bytes(crc));
        let header = header.ok_or_else(|| damaged(&shown, 16, "its header is damaged"))?;
        Ok(Self {
            path: shown,
            reader,
            header,
            buffer: Vec::new(),
            start: 0,
            offset: 16 + u64::from(length) + 4,
            expected: 1,
            keys: 0,
            is_done: false,
        })
    }

    /// The header.
    pub fn header(&self) -> &BackupHeader {
        &self.header
    }

    /// The commands of the next record, encoded; none at the end, which must be there.
    pub(crate) fn next_record(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let mut whole = Vec::new();
        while !self.is_done {
            let rest = self.buffer.get(self.start..).unwrap_or_default();
            match persist::decode(rest) {
                DecodedRecord::Record { kind, lsn, payload, length } => {
                    if lsn != self.expected {
                        return Err(self.damaged("a record is missing or out of place"));
                    }
                    if kind == RecordKind::Mark {
                        let keys = payload.try_into().map(u64::from_le_bytes);
                        self.keys = keys.map_err(|_| self.damaged("its end is damaged"))?;
                        self.offset += length as u64;
                        self.start += length;
                        self.is_done = true;
                        return self.expect_end().map(|()| None);
                    }
                    whole.extend_from_slice(payload);
                    self.start += length;
                    self.offset += length as u64;
                    if kind == RecordKind::Effects {
                        self.expected += 1;
                        return Ok(Some(whole));
                    }
                }
                DecodedRecord::Bad(_) => return Err(self.damaged("a checksum does not fit")),
                DecodedRecord::End | DecodedRecord::Short(_) => {
                    if self.fill()? == 0 {
                        return Err(self.damaged("it ends early: it was cut off"));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Reads more of the file: how many bytes.
    fn fill(&mut self) -> Result<usize, Error> {
        self.buffer.drain(..self.start);
        self.start = 0;
        let mut piece = vec![0; READ_BYTES];
        let count = self
            .reader
            .read(&mut piece)
            .map_err(|error| invalid(format!("cannot read {}: {error}", self.path)))?;
        self.buffer.extend_from_slice(piece.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn expect_end(&mut self) -> Result<(), Error> {
        if self.start < self.buffer.len() || self.fill()? > 0 {
            return Err(self.damaged("there is something after its end"));
        }
        Ok(())
    }

    fn damaged(&self, why: &str) -> Error {
        damaged(&self.path, self.offset, why)
    }
}

fn damaged(file: &str, offset: u64, why: &str) -> Error {
    Error::Damaged { file: file.to_owned(), offset, message: why.to_owned() }
}

/// Writes a backup file under a name of its own, which becomes the real one at the end.
pub(crate) struct BackupWriter {
    path: PathBuf,
    partial: PathBuf,
    file: io::BufWriter<fs::File>,
    effects: Vec<u8>,
    record: u64,
    key: Vec<u8>,
    pub(crate) keys: u64,
    pub(crate) commands: u64,
    pub(crate) bytes: u64,
    is_done: bool,
}

impl BackupWriter {
    /// Refuses a file that exists.
    pub(crate) fn create(path: &Path, header: &BackupHeader) -> Result<Self, Error> {
        let shown = path.display();
        if path.exists() {
            return Err(invalid(format!("{shown} exists: name a new file")));
        }
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let io = |error: io::Error| invalid(format!("cannot write {}: {error}", partial.display()));
        // It holds whatever the store does, secrets too.
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = io::BufWriter::with_capacity(1 << 20, file.open(&partial).map_err(io)?);
        let json = serde_json::to_vec(header).map_err(|error| invalid(error.to_string()))?;
        let length = u32::try_from(json.len()).unwrap_or(u32::MAX).to_le_bytes();
        let mut head = MAGIC.to_vec();
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&length);
        head.extend_from_slice(&json);
        head.extend_from_slice(&crc32c::crc32c(&head).to_le_bytes());
        file.write_all(&head).map_err(io)?;
        Ok(Self {
            path: path.to_owned(),
            partial,
            file,
            effects: Vec::new(),
            record: 0,
            key: Vec::new(),
            keys: 0,
            commands: 0,
            bytes: head.len() as u64,
            is_done: false,
        })
    }

    /// Adds a command. Those of one key must come one after another.
    pub(crate) fn add<T: AsRef<[u8]>>(&mut self, argv: &[T]) -> Result<(), Error> {
        let Some(key) = key_of(argv) else { return Ok(()) };
        if key != self.key || self.commands == 0 {
            self.keys += 1;
            self.key.clear();
            self.key.extend_from_slice(key);
            if self.effects.len() >= RECORD_BYTES {
                self.write_record()?;
            }
        }
        self.commands += 1;
        persist::append_effect(&mut self.effects, 0, argv);
        // A large key goes over several records.
        if self.effects.len() >= RECORD_BYTES * 16 {
            self.write_record()?;
        }
        Ok(())
    }

    fn write_record(&mut self) -> Result<(), Error> {
        if self.effects.is_empty() {
            return Ok(());
        }
        self.record += 1;
        let mut failed = Ok(());
        for (head, payload) in persist::frames(self.record, &self.effects) {
            let written = self.file.write_all(&head).and_then(|()| self.file.write_all(payload));
            self.bytes += (head.len() + payload.len()) as u64;
            failed = failed.and(written);
        }
        self.effects.clear();
        failed.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> Error {
        invalid(format!("cannot write {}: {error}", self.partial.display()))
    }

    /// Ends the file: on disk, under its name.
    pub(crate) fn finish(mut self) -> Result<FinishedFile, Error> {
        self.write_record()?;
        let mut mark = Vec::new();
        persist::append_mark(&mut mark, self.record + 1, self.keys);
        self.bytes += mark.len() as u64;
        let written = self.file.write_all(&mark).and_then(|()| self.file.flush());
        written
            .and_then(|()| self.file.get_ref().sync_all())
            // Not over a file that has come into being meanwhile.
            .and_then(|()| match self.path.exists() {
                true => Err(io::ErrorKind::AlreadyExists.into()),
                false => fs::rename(&self.partial, &self.path),
            })
            .map_err(|error| self.failed(&error))?;
        if let Some(folder) = self.path.parent() {
            // The file itself is on disk; a folder that cannot be synced loses the name at most.
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            let _ = fs::File::open(folder).and_then(|folder| folder.sync_all());
        }
        self.is_done = true;
        Ok(FinishedFile { keys: self.keys, commands: self.commands, bytes: self.bytes })
    }
}

/// Figures of a file that was written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FinishedFile {
    pub(crate) keys: u64,
    pub(crate) commands: u64,
    pub(crate) bytes: u64,
}

impl Drop for BackupWriter {
    fn drop(&mut self) {
        if !self.is_done {
            // What is not whole is of no use.
            let _ = fs::remove_file(&self.partial);
        }
    }
}
