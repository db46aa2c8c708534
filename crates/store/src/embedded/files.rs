//! File names of a store, and the manifest that lists the files in use.
//!
//! ```text
//! manifest        which base and which logs make up the data, in order
//! base-7.tide     a snapshot: everything up to some record
//! log-7.tide      records since then; the last log is the one being written
//! lock            locked by the process that uses the folder
//! ```
//! The manifest is replaced by a rename, so that there is always one that is whole. A file that it
//! does not name is left over from an interruption and is deleted.

use std::{fmt::Write as _, io, io::Read as _};

use super::disk::{Disk, DiskFile};

/// Bytes before the first record of a base or a log.
pub(super) const HEADER: usize = 24;

const MANIFEST: &str = "manifest";
const MANIFEST_NEW: &str = "manifest.new";
/// The longest manifest that is read: far beyond one with a thousand logs.
const MANIFEST_MOST: u64 = 1 << 16;
const FORM: &str = "tidegate store 1";

/// The files that make up the data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    /// The snapshot to begin with; none for a store that never had one.
    pub(super) base: Option<Base>,
    /// The logs since, in order; the last is being written.
    pub(super) logs: Vec<u64>,
}

/// A snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Base {
    /// Tells it from others.
    pub(super) generation: u64,
    /// The last record that is in it.
    pub(super) lsn: u64,
}

impl Manifest {
    /// A number that no file has had.
    pub(super) fn next_generation(&self) -> u64 {
        let base = self.base.map_or(0, |base| base.generation);
        self.logs.iter().copied().chain([base]).max().unwrap_or(0) + 1
    }

    /// The names of all files that count.
    pub(super) fn names(&self) -> impl Iterator<Item = String> + '_ {
        let base = self.base.map(|base| base_name(base.generation));
        base.into_iter().chain(self.logs.iter().map(|log| log_name(*log)))
    }

    fn text(&self) -> String {
        let mut text = format!("{FORM}\n");
        if let Some(base) = self.base {
            // Writing to a string does not fail.
            let _ = writeln!(text, "base {} {}", base.generation, base.lsn);
        }
        for log in &self.logs {
            let _ = writeln!(text, "log {log}");
        }
        let crc = crc32c::crc32c(text.as_bytes());
        let _ = writeln!(text, "crc {crc:08x}");
        text
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (body, crc) = text.strip_suffix('\n')?.rsplit_once("\ncrc ")?;
        let body = text.get(..body.len() + 1)?;
        if crc != format!("{:08x}", crc32c::crc32c(body.as_bytes())) {
            return None;
        }
        let mut manifest = Manifest::default();
        let mut lines = body.lines();
        if lines.next()? != FORM {
            return None;
        }
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["base", generation, lsn] => {
                    let (generation, lsn) = (generation.parse().ok()?, lsn.parse().ok()?);
                    manifest.base = Some(Base { generation, lsn });
                }
                ["log", generation] => manifest.logs.push(generation.parse().ok()?),
                _ => return None,
            }
        }
        (!manifest.logs.is_empty()).then_some(manifest)
    }

    /// Reads the manifest of a folder; none if there is no data in it.
    pub(super) fn read(disk: &dyn Disk) -> Result<Option<Self>, ManifestFault> {
        let names = disk.names()?;
        if !names.iter().any(|name| name == MANIFEST) {
            // Without the list nobody can tell what belongs together: better to stop than to
            // begin with nothing. But a process that was killed while it made the store leaves a
            // log without a record, in which nothing can be lost: no record is written to a log
            // before the manifest names it.
            for name in names.into_iter().filter(|name| is_data(name)) {
                if !is_empty_log(disk, &name)? {
                    return Err(ManifestFault::Missing(name));
                }
            }
            return Ok(None);
        }
        let mut text = Vec::new();
        disk.read(MANIFEST)?.take(MANIFEST_MOST).read_to_end(&mut text)?;
        Self::parse(&text).map(Some).ok_or(ManifestFault::Damaged)
    }

    /// Makes this the manifest of the folder, for good.
    pub(super) fn write(&self, disk: &dyn Disk) -> io::Result<()> {
        let file = disk.create(MANIFEST_NEW)?;
        file.write(0, self.text().as_bytes())?;
        file.sync()?;
        disk.rename(MANIFEST_NEW, MANIFEST)?;
        disk.sync()
    }

    /// Deletes files that are not in use. A file that cannot be deleted now is left for the next
    /// time.
    pub(super) fn tidy(&self, disk: &dyn Disk) {
        let Ok(names) = disk.names() else { return };
        let count: Vec<String> = self.names().collect();
        for name in names {
            let ours = is_data(&name) || name == MANIFEST_NEW;
            if ours
                && !count.contains(&name)
                && let Err(error) = disk.remove(&name)
            {
                tracing::debug!(name, %error, "an obsolete file of the store could not be deleted");
            }
        }
    }
}

/// The reason why there is no usable manifest.
#[derive(Debug, thiserror::Error)]
pub(super) enum ManifestFault {
    #[error("the file \"manifest\" is missing, but there is data in {0}")]
    Missing(String),
    #[error("the file \"manifest\" is damaged")]
    Damaged,
    #[error(transparent)]
    Io(#[from] io::Error),
}

pub(super) fn base_name(generation: u64) -> String {
    format!("base-{generation}.tide")
}

pub(super) fn log_name(generation: u64) -> String {
    format!("log-{generation}.tide")
}

/// Is this the name of a file of a store?
pub(super) fn is_ours(name: &str) -> bool {
    is_data(name) || name == MANIFEST
}

fn is_data(name: &str) -> bool {
    (name.starts_with("base-") || name.starts_with("log-")) && name.ends_with(".tide")
}

/// Is this a log without a record?
fn is_empty_log(disk: &dyn Disk, name: &str) -> io::Result<bool> {
    if !name.starts_with("log-") {
        return Ok(false);
    }
    let mut start = Vec::with_capacity(HEADER + 1);
    disk.read(name)?.take(HEADER as u64 + 1).read_to_end(&mut start)?;
    Ok(start.len() <= HEADER)
}

/// The role of a file, in its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileRole {
    Base,
    Log,
}

/// The first bytes of a file.
pub(super) fn header(role: FileRole, generation: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let magic: &[u8; 8] = match role {
        FileRole::Base => b"TIDEBAS1",
        FileRole::Log => b"TIDELOG1",
    };
    let (first, rest) = header.split_at_mut(8);
    first.copy_from_slice(magic);
    let (number, rest) = rest.split_at_mut(8);
    number.copy_from_slice(&generation.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(magic), &generation.to_le_bytes());
    let (check, _) = rest.split_at_mut(4);
    check.copy_from_slice(&crc.to_le_bytes());
    header
}

/// Makes an empty log.
pub(super) fn create_log(
    disk: &dyn Disk,
    generation: u64,
) -> io::Result<std::sync::Arc<dyn DiskFile>> {
    let file = disk.create(&log_name(generation))?;
    file.write(0, &header(FileRole::Log, generation))?;
    file.sync()?;
    disk.sync()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_whose_making_was_cut_off_is_made_again_and_one_without_its_manifest_is_not() {
        use crate::embedded::disk::Folder;
        let folder = tempfile::tempdir().unwrap();
        let disk = Folder::open(folder.path()).unwrap();
        assert_eq!(Manifest::read(&disk).unwrap(), None);
        // Killed before the manifest has its name: the log may have no header yet, or all of it.
        for length in [0, 7, HEADER] {
            let start = &header(FileRole::Log, 1)[..length];
            std::fs::write(folder.path().join(log_name(1)), start).unwrap();
            std::fs::write(folder.path().join(MANIFEST_NEW), "tide").unwrap();
            assert_eq!(Manifest::read(&disk).unwrap(), None, "{length}");
        }
        let mut record = header(FileRole::Log, 1).to_vec();
        record.push(0);
        std::fs::write(folder.path().join(log_name(1)), record).unwrap();
        assert!(matches!(Manifest::read(&disk), Err(ManifestFault::Missing(_))));
        std::fs::remove_file(folder.path().join(log_name(1))).unwrap();
        std::fs::write(folder.path().join(base_name(1)), header(FileRole::Base, 1)).unwrap();
        assert!(matches!(Manifest::read(&disk), Err(ManifestFault::Missing(_))));
    }

    #[test]
    fn a_manifest_reads_back_and_every_flipped_bit_is_noticed() {
        let manifest =
            Manifest { base: Some(Base { generation: 3, lsn: 900 }), logs: vec![3, 4, 5] };
        let text = manifest.text().into_bytes();
        assert_eq!(Manifest::parse(&text), Some(manifest));
        for bit in 0..text.len() * 8 {
            let mut flipped = text.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Manifest::parse(&flipped), None, "bit {bit}");
        }
        for end in 0..text.len() {
            assert_eq!(Manifest::parse(&text[..end]), None, "cut at {end}");
        }
    }
}
