//! Reading a folder at one point in time, also while a process writes there.
//!
//! The log is written before replies go out, so its file at any moment holds every change that was
//! acknowledged until then. Taking the manifest, opening the files it names and noting how long they
//! are is therefore a snapshot: the rest of a log that grows is not read, and a file that a
//! compaction deletes stays readable while it is open. A compaction between the manifest and the
//! opening shows as a missing file; then it is done again.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use engine::{
    Config, Engine,
    persist::{EffectReader, KeyParts, PartPlan, SnapshotCursor},
};

use super::{
    disk::{Disk, DiskFile},
    files::Manifest,
    open,
    replay::{self, ReplayError, ReplayTarget},
};
use crate::Error;

/// Attempts to find all files of a manifest before a compaction takes one away.
const ATTEMPTS: usize = 20;
/// Bytes of files for which the keyspace is rebuilt at a time, so that memory stays bounded.
const PART_BYTES: u64 = 256 << 20;
/// Keys taken from a part at a time.
const STEP_KEYS: usize = 256;
/// Bytes of effects that are handed out together.
const STEP_BYTES: usize = 64 << 10;
const MANIFEST: &str = "manifest";

/// The files of a store as they are at one moment. Nothing can be written through it.
#[derive(Debug)]
pub(super) struct FrozenFolder {
    shown: String,
    manifest: Vec<u8>,
    files: BTreeMap<String, (Arc<fs::File>, u64)>,
}

impl FrozenFolder {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for _ in 0..ATTEMPTS {
            match Self::attempt(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => last = error,
                frozen => return frozen,
            }
        }
        Err(last)
    }

    fn attempt(path: &Path) -> io::Result<Self> {
        let manifest = fs::read(path.join(MANIFEST))?;
        let mut frozen =
            Self { shown: path.display().to_string(), manifest, files: BTreeMap::new() };
        let named = Manifest::read(&frozen).ok().flatten();
        // From the newest to the oldest: a log must not end before one that comes after it.
        for name in named.iter().flat_map(Manifest::names).collect::<Vec<_>>().into_iter().rev() {
            let file = fs::File::open(path.join(&name))?;
            let length = file.metadata()?.len();
            frozen.files.insert(name, (Arc::new(file), length));
        }
        Ok(frozen)
    }

    fn bytes(&self) -> u64 {
        self.files.values().map(|(_, length)| length).sum()
    }
}

fn read_only() -> io::Error {
    io::ErrorKind::ReadOnlyFilesystem.into()
}

impl Disk for FrozenFolder {
    fn create(&self, _: &str) -> io::Result<Arc<dyn DiskFile>> {
        Err(read_only())
    }

    fn open(&self, _: &str) -> io::Result<Arc<dyn DiskFile>> {
        Err(read_only())
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn io::Read + Send>> {
        if name == MANIFEST {
            return Ok(Box::new(io::Cursor::new(self.manifest.clone())));
        }
        let (file, length) = self.files.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(FrozenFile { file: Arc::clone(file), at: 0, length: *length }))
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        Err(read_only())
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Err(read_only())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.files.keys().cloned().chain([MANIFEST.to_owned()]).collect())
    }

    fn sync(&self) -> io::Result<()> {
        Err(read_only())
    }

    fn shown(&self) -> String {
        self.shown.clone()
    }

    fn holds(&self, _: &str, _: &dyn DiskFile) -> bool {
        false
    }

    fn reclaim(&self) -> io::Result<()> {
        Err(read_only())
    }
}

/// Reads a file up to the length it had.
struct FrozenFile {
    file: Arc<fs::File>,
    at: u64,
    length: u64,
}

impl io::Read for FrozenFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.length - self.at).unwrap_or(usize::MAX);
        let count = buffer.len().min(left);
        let buffer = buffer.get_mut(..count).unwrap_or_default();
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// Shows the commands that rebuild every key of the store in a folder, as it is at this moment; the
/// process that uses it goes on. Commands of one key come one after another.
///
/// The keyspace is rebuilt in memory in parts of about 256 MiB of files each, for which the files are
/// read once per part.
///
/// # Errors
/// There is no store in the folder, or it is damaged; or `show` refused.
pub(crate) fn rebuild(
    path: &Path,
    mut show: impl FnMut(usize, &[&[u8]]) -> Result<(), Error>,
) -> Result<(), Error> {
    let shown = path.display().to_string();
    let folder = FrozenFolder::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::invalid(format!("there is no store in {shown}")),
        _ => Error::invalid(format!("cannot read the store in {shown}: {error}")),
    })?;
    let refused = |fault: ReplayError| open::refused(&shown, fault);
    let manifest = Manifest::read(&folder).map_err(|fault| refused(fault.into()))?;
    let manifest =
        manifest.ok_or_else(|| Error::invalid(format!("there is no store in {shown}")))?;
    let stop = AtomicBool::new(false);
    let count = folder.bytes() / PART_BYTES + 1;
    let parts = if count == 1 {
        KeyParts::whole()
    } else {
        let mut plan = PartPlan::new(fastrand::u64(..));
        replay::link(&folder, &manifest, &mut plan, &stop).map_err(refused)?;
        plan.split_evenly(count)
    };
    for part in parts.iter() {
        let mut engine = Engine::new(Config { seed: fastrand::u64(..), ..Config::default() });
        let session = engine.connect_loader();
        let mut target =
            ReplayTarget { engine: &mut engine, session, stop: &stop, part: Some(part) };
        replay::replay(&folder, &manifest, &mut target).map_err(refused)?;
        engine.disconnect(session);
        let mut cursor = Some(SnapshotCursor::default());
        let mut effects = Vec::new();
        let mut failed = Ok(());
        while let Some(at) = cursor {
            let mut take = |effects: &mut Vec<u8>| {
                if failed.is_ok() {
                    failed = hand_out(effects, &mut show);
                }
                effects.clear();
            };
            let step =
                engine.snapshot_part(at, STEP_KEYS, part, &mut effects, STEP_BYTES, &mut take);
            take(&mut effects);
            std::mem::replace(&mut failed, Ok(()))?;
            cursor = step.next;
        }
    }
    Ok(())
}

fn hand_out(
    effects: &[u8],
    show: &mut impl FnMut(usize, &[&[u8]]) -> Result<(), Error>,
) -> Result<(), Error> {
    let (mut reader, mut argv) = (EffectReader::new(effects), Vec::new());
    while let Some(db) = reader.next(&mut argv).map_err(|bad| Error::invalid(bad.to_string()))? {
        show(db, &argv)?;
    }
    Ok(())
}
