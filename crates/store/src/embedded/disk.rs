//! The folder of a store: the few things that are done with files, so that tests can make each of
//! them fail.
//!
//! Writing is always at a given place, so that what failed half way is simply written again.

use std::{
    fmt, fs, io,
    io::{Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;

use super::files;

/// A folder that files are kept in.
pub(super) trait Disk: Send + Sync + fmt::Debug {
    /// Makes an empty file, in place of one that has the name.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file to write on.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file to read from its beginning.
    fn read(&self, name: &str) -> io::Result<Box<dyn io::Read + Send>>;
    /// Gives a file another name, in place of one that has it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Takes a file away.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// The names of all files.
    fn names(&self) -> io::Result<Vec<String>>;
    /// Fsyncs the directory so that creates, renames and unlinks are durable.
    fn sync(&self) -> io::Result<()>;
    /// Returns the path, for messages.
    fn shown(&self) -> String;
    /// Returns true if this file is still the one of that name: false once it was removed or
    /// replaced.
    fn holds(&self, name: &str, file: &dyn DiskFile) -> bool;
    /// Takes the folder again after it was removed or replaced. Refuses one with another store in
    /// it: that must not be overwritten.
    fn reclaim(&self) -> io::Result<()>;
}

/// A file that is written.
pub(super) trait DiskFile: Send + Sync + fmt::Debug {
    /// Writes all of `bytes` from offset `at` on.
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes what was written last through a power cut.
    fn sync(&self) -> io::Result<()>;
    /// Takes `length` bytes of disk space from offset `at` on without changing the file's length,
    /// so that writing there does not find the disk full.
    fn reserve(&self, at: u64, length: u64) -> io::Result<()>;
    /// Cuts the file off, which also gives back what was reserved.
    fn cut(&self, length: u64) -> io::Result<()>;
    /// The device and the number of the file on it.
    fn id(&self) -> io::Result<(u64, u64)>;
}

/// A folder on this machine.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Held as long as the folder is open; the lock goes with it. None for a folder that is only
    /// looked at and has no file to lock.
    lock: Mutex<Option<fs::File>>,
}

/// The file that is locked while a process uses the folder.
const LOCK: &str = "lock";

impl Folder {
    /// Opens a folder for this process alone, and makes it if need be.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Self::lock(path)
    }

    /// Opens a folder that exists for this process alone.
    fn lock(path: &Path) -> io::Result<Self> {
        let lock = options().create(true).truncate(false).open(path.join(LOCK))?;
        let lock = locked(lock)?;
        // Shown to a process that finds the folder locked. A full disk is noticed later.
        let _ = lock.set_len(0).and_then(|()| writeln!(&lock, "{}", std::process::id()));
        Ok(Self { path: path.to_owned(), lock: Mutex::new(Some(lock)) })
    }

    /// Opens a folder to look at it. Nothing is written, so it may be on a read-only file system;
    /// where there is a file to lock it is locked.
    pub(super) fn look(path: &Path) -> io::Result<Self> {
        let lock = match fs::File::open(path.join(LOCK)) {
            Ok(file) => Some(locked(file)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(Self { path: path.to_owned(), lock: Mutex::new(lock) })
    }

    /// The process that has the folder locked, as far as it left its number.
    pub(super) fn holder(path: &Path) -> Option<u32> {
        let mut text = String::new();
        fs::File::open(path.join(LOCK)).ok()?.take(16).read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }
}

fn locked(file: fs::File) -> io::Result<fs::File> {
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(io::ErrorKind::ResourceBusy.into()),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

fn id_of(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn options() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

impl Disk for Folder {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = options().create(true).truncate(true).open(self.path.join(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(options().open(self.path.join(name))?)))
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn io::Read + Send>> {
        Ok(Box::new(fs::File::open(self.path.join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.path)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .filter(|name| !matches!(name, Ok(name) if name == LOCK))
            .collect()
    }

    fn sync(&self) -> io::Result<()> {
        fs::File::open(&self.path)?.sync_all()
    }

    fn shown(&self) -> String {
        self.path.display().to_string()
    }

    fn holds(&self, name: &str, file: &dyn DiskFile) -> bool {
        match (fs::metadata(self.path.join(name)), file.id()) {
            (Ok(there), Ok(id)) => id_of(&there) == id,
            (Err(error), _) => error.kind() != io::ErrorKind::NotFound,
            // What cannot be asked now is asked again.
            (_, Err(_)) => true,
        }
    }

    fn reclaim(&self) -> io::Result<()> {
        let mut lock = self.lock.lock();
        let ours = lock.as_ref().and_then(|lock| lock.metadata().ok()).map(|ours| id_of(&ours));
        match fs::metadata(self.path.join(LOCK)) {
            Ok(there) if Some(id_of(&there)) == ours => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let taken = Self::lock(&self.path)?;
        if taken.names()?.iter().any(|name| files::is_ours(name)) {
            return Err(io::Error::other("the folder in its place holds another store"));
        }
        *lock = taken.lock.into_inner();
        Ok(())
    }
}

#[derive(Debug)]
struct RealFile(fs::File);

impl DiskFile for RealFile {
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn reserve(&self, at: u64, length: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        Ok(fallocate(&self.0, FallocateFlags::KEEP_SIZE, at, length)?)
    }

    fn cut(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn id(&self) -> io::Result<(u64, u64)> {
        Ok(id_of(&self.0.metadata()?))
    }
}
