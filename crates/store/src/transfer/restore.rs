//! Restoring a backup file into an empty store.
//!
//! The file is read completely and checked before anything is written. Then each key is written and
//! read back. A restore that was interrupted is continued by restoring the same file again.

use std::path::Path;

use engine::persist::EffectReader;

use super::{
    Argv, Checksum, KeyMaps, TransferProgress,
    checksum::KeySum,
    copy::{BATCH, Comparison, ExpectedKey, TargetStore},
    file::{BackupFile, BackupHeader, FileReport, check_file},
    invalid, key_of,
    layout::Spelling,
    renamed,
    target::{count_keys, finish, prepare},
};
use crate::{Error, Store, key_map::Place};

/// The result of a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreReport {
    /// Keys of the file.
    pub keys: u64,
    /// Keys that the store has now; keys whose time is over are not among them.
    pub keys_now: u64,
    /// The sum over the keys of the file, and over those that were read back.
    pub checksum: Checksum,
    /// Keys that no service knows, which were copied as they are.
    pub foreign: u64,
    /// The header of the file.
    pub header: BackupHeader,
}

/// Restores a backup into an empty store.
///
/// # Errors
/// The file is damaged, cut off or of a newer version, or the store is not empty: then nothing was
/// changed. Or the store failed meanwhile: then the same restore can be started again.
pub async fn restore(
    path: &Path,
    store: &Store,
    maps: &KeyMaps,
    progress: &TransferProgress,
) -> Result<RestoreReport, Error> {
    let report = check(path).await?;
    let header = report.header.clone();
    let mut spelling = Spelling::new(maps, header.layout()?, store.layout());
    add_scopes(path, &mut spelling).await?;
    let source = format!("the backup made of {} at {} ms", header.source, header.created_at_ms);
    prepare(store, &source).await?;
    progress.begin(report.keys);
    let target = TargetStore::new(store, spelling).await?;
    let mut work = RestoreWork {
        target,
        progress: progress.clone(),
        current: None,
        unverified: Vec::new(),
        result: Comparison::default(),
        has_deferred: false,
        foreign: 0,
    };
    let mut commands = Commands::open(path)?;
    while let Some(argv) = commands.next().await? {
        work.add(argv).await?;
    }
    work.end_key().await?;
    work.verify().await?;
    if work.has_deferred {
        work.restore_deferred(path).await?;
    }
    if !work.result.is_same() {
        return Err(invalid(format!(
            "{} of {} keys are not what the backup says: another program writes to the target; \
             stop it, empty the target, and restore again",
            work.result.differing.len(),
            work.result.keys
        )));
    }
    finish(store).await?;
    Ok(RestoreReport {
        keys: report.keys,
        keys_now: count_keys(store).await?,
        checksum: work.result.source,
        foreign: work.foreign,
        header,
    })
}

async fn check(path: &Path) -> Result<FileReport, Error> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || check_file(&path))
        .await
        .map_err(|_| invalid("checking the backup was interrupted"))?
}

/// Finds in the file what keys may be tagged with.
async fn add_scopes(path: &Path, spelling: &mut Spelling) -> Result<(), Error> {
    let indexes = spelling.scope_indexes();
    if indexes.is_empty() {
        return Ok(());
    }
    let mut commands = Commands::open(path)?;
    while let Some(argv) = commands.next().await? {
        let index = indexes.iter().find(|(_, name)| key_of(&argv) == Some(name.as_bytes()));
        if let Some((at, _)) = index
            && argv.first().is_some_and(|name| name == b"SADD")
        {
            spelling.add_scopes(*at, argv.into_iter().skip(2));
        }
    }
    Ok(())
}

/// The commands of a file, one by one.
struct Commands {
    file: BackupFile,
    record: std::collections::VecDeque<Argv>,
}

impl Commands {
    fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self { file: BackupFile::open(path)?, record: std::collections::VecDeque::new() })
    }

    async fn next(&mut self) -> Result<Option<Argv>, Error> {
        while self.record.is_empty() {
            // A file is read fast, but others must have their turn.
            tokio::task::coop::consume_budget().await;
            let Some(effects) = self.file.next_record()? else { return Ok(None) };
            let (mut reader, mut argv) = (EffectReader::new(&effects), Vec::new());
            while reader
                .next(&mut argv)
                .map_err(|_| invalid("the backup holds no commands"))?
                .is_some()
            {
                self.record.push_back(argv.iter().map(|word| word.to_vec()).collect());
            }
        }
        Ok(self.record.pop_front())
    }
}

struct RestoreWork {
    target: TargetStore,
    progress: TransferProgress,
    /// The key being written.
    current: Option<ExpectedKey>,
    unverified: Vec<ExpectedKey>,
    result: Comparison,
    has_deferred: bool,
    foreign: u64,
}

impl RestoreWork {
    async fn add(&mut self, argv: Argv) -> Result<(), Error> {
        let Some(key) = key_of(&argv).map(<[u8]>::to_vec) else { return Ok(()) };
        if self.current.as_ref().is_none_or(|current| current.key != key) {
            self.end_key().await?;
            let (place, is_known) = self.target.spelling.place(&key);
            self.foreign += u64::from(!is_known);
            let targets = if place.is_deferred() {
                self.has_deferred = true;
                Vec::new()
            } else {
                place.resolve(&key, std::slice::from_ref(&argv))
            };
            self.target.writer.delete(&targets).await?;
            self.current = Some(ExpectedKey { key, targets, sum: KeySum::default() });
        }
        let Some(ExpectedKey { targets, sum, .. }) = &mut self.current else { return Ok(()) };
        sum.add(&argv);
        for target in targets {
            self.target.writer.add(&renamed(&argv, target)).await?;
        }
        Ok(())
    }

    async fn end_key(&mut self) -> Result<(), Error> {
        if let Some(current) = self.current.take() {
            self.progress.add(1);
            if !current.targets.is_empty() {
                self.unverified.push(current);
            }
        }
        if self.unverified.len() >= BATCH { self.verify().await } else { Ok(()) }
    }

    /// Reads back what was written.
    async fn verify(&mut self) -> Result<(), Error> {
        self.target.writer.flush().await?;
        let written = std::mem::take(&mut self.unverified);
        self.target.compare(&written, &mut self.result).await
    }

    /// Writes the keys that wait for others.
    async fn restore_deferred(&mut self, path: &Path) -> Result<(), Error> {
        let mut begun = std::collections::BTreeSet::new();
        let mut commands = Commands::open(path)?;
        while let Some(argv) = commands.next().await? {
            let Some(key) = key_of(&argv).map(<[u8]>::to_vec) else { continue };
            match self.target.spelling.place(&key).0 {
                Place::Members(places) => {
                    if begun.insert(key) {
                        self.target.begin_members(&places).await?;
                    }
                    self.target.add_members(&places, &argv).await?;
                }
                Place::Merged(target) if argv.first().is_some_and(|name| name == b"ZADD") => {
                    if begun.insert(target.clone()) {
                        self.target.writer.delete(std::slice::from_ref(&target)).await?;
                    }
                    self.target.writer.add(&renamed(&argv, &target)).await?;
                }
                _ => {}
            }
        }
        self.target.writer.flush().await
    }
}
