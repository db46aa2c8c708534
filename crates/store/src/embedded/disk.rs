//! The folder of a store: the few things that are done with files, so that tests can make each of
//! them fail.
//!
//! Writing is always at a given place, so that what failed half way is simply written again.

use std::{
    fmt, fs, io,
    os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

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
    /// Makes what was created, renamed and removed last through a power cut.
    fn sync(&self) -> io::Result<()>;
    /// Where it is, for people.
    fn shown(&self) -> String;
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
}

/// A folder on this machine.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Held as long as the folder is open; the lock goes with it.
    _lock: fs::File,
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
    pub(super) fn lock(path: &Path) -> io::Result<Self> {
        let lock = options().create(true).truncate(false).open(path.join(LOCK))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    "another process uses this folder",
                ));
            }
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
        Ok(Self { path: path.to_owned(), _lock: lock })
    }
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
}
