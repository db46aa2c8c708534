//! Making a backup file.
//!
//! From the files of a built-in store it is exact: everything as it was at one moment, while the
//! server goes on (`embedded/freeze.rs`). From a server it is exact too if writes pause meanwhile
//! (`CLIENT PAUSE … WRITE`, which ends by itself should this process die); without the pause each key
//! is as it was at some moment during the backup.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use redis::cmd;

use super::{
    TransferProgress,
    file::{BackupHeader, BackupWriter},
    invalid,
    read::KeyReader,
    target::{KeyWalk, count_keys},
};
use crate::{Clock, Error, Layout, Store, StoreKind, embedded};

/// Time for which a server is asked to hold writes, and how often that is renewed.
const PAUSE: Duration = Duration::from_secs(10);
const RENEW: Duration = Duration::from_secs(1);
/// Keys that are read together.
const BATCH: usize = 256;

/// The store a backup is made from.
#[derive(Debug)]
pub enum BackupSource {
    /// A built-in store in this folder, in use or not.
    Folder(PathBuf),
    /// A store that is open.
    Store {
        /// The store.
        store: Store,
        /// Its URL, without secrets.
        shown: String,
        /// Holds writes until the backup is made.
        pause_writes: bool,
    },
}

/// The result of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupReport {
    /// Number of keys in it.
    pub keys: u64,
    /// Number of commands that rebuild them.
    pub commands: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// True if it holds everything as it was at one moment.
    pub consistent: bool,
    /// Time for which writes were held.
    pub paused: Option<Duration>,
}

/// Writes a backup into a new file.
///
/// # Errors
/// The file exists or cannot be written, or the store cannot be read; then there is no file.
pub async fn back_up(
    source: BackupSource,
    path: &Path,
    progress: &TransferProgress,
) -> Result<BackupReport, Error> {
    match source {
        BackupSource::Folder(folder) => {
            let (path, progress) = (path.to_owned(), progress.clone());
            tokio::task::spawn_blocking(move || from_folder(&folder, &path, &progress))
                .await
                .map_err(|_| invalid("the backup was interrupted"))?
        }
        BackupSource::Store { store, shown, pause_writes } => {
            // The built-in store in memory of this very process has no other writers to hold.
            let pause_writes = pause_writes && store.kind() != StoreKind::Embedded;
            from_store(&store, &shown, pause_writes, path, progress).await
        }
    }
}

fn header(source: String, layout: Layout, consistent: bool) -> BackupHeader {
    let layout = match layout {
        Layout::Standalone => "standalone",
        Layout::Cluster => "cluster",
    };
    BackupHeader {
        source,
        layout: layout.to_owned(),
        created_at_ms: Clock::system().now().0,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        consistent,
    }
}

fn from_folder(
    folder: &Path,
    path: &Path,
    progress: &TransferProgress,
) -> Result<BackupReport, Error> {
    let shown = format!("embedded:{}", folder.display());
    let mut file = BackupWriter::create(path, &header(shown, Layout::Standalone, true))?;
    embedded::rebuild(folder, |db, argv| {
        if db > 0 && argv.first().is_some_and(|name| *name != b"FUNCTION") {
            return Err(invalid(format!(
                "the store has keys in database {db}, and only database 0 can be backed up: move \
                 them with redis-cli (MOVE), or delete them"
            )));
        }
        file.add(argv)?;
        progress.begin(file.keys);
        progress.add(usize::try_from(file.keys).unwrap_or(usize::MAX));
        Ok(())
    })?;
    let done = file.finish()?;
    Ok(BackupReport {
        keys: done.keys,
        commands: done.commands,
        bytes: done.bytes,
        consistent: true,
        paused: None,
    })
}

async fn from_store(
    store: &Store,
    shown: &str,
    pause_writes: bool,
    path: &Path,
    progress: &TransferProgress,
) -> Result<BackupReport, Error> {
    let consistent = pause_writes || store.kind() == StoreKind::Embedded;
    let mut file =
        BackupWriter::create(path, &header(shown.to_owned(), store.layout(), consistent))?;
    let mut pause = match pause_writes {
        true => Some(WritePause::begin(store).await?),
        false => None,
    };
    let copied = read_all(store, &mut file, pause.as_mut(), progress).await;
    let paused = match pause {
        Some(pause) => Some(pause.end().await?),
        None => None,
    };
    copied?;
    let done = file.finish()?;
    Ok(BackupReport {
        keys: done.keys,
        commands: done.commands,
        bytes: done.bytes,
        consistent,
        paused,
    })
}

async fn read_all(
    store: &Store,
    file: &mut BackupWriter,
    mut pause: Option<&mut WritePause>,
    progress: &TransferProgress,
) -> Result<(), Error> {
    let mut reader = KeyReader::new(store).await?;
    let mut walk = KeyWalk::new(store).await?;
    progress.begin(count_keys(store).await?);
    while let Some(keys) = walk.next().await? {
        for keys in keys.chunks(BATCH) {
            let pieces = reader.begin(keys).await?;
            for (key, piece) in keys.iter().zip(pieces) {
                let mut piece = piece;
                while let Some(some) = piece {
                    for argv in &some.commands {
                        file.add(argv)?;
                    }
                    if let Some(pause) = pause.as_mut() {
                        pause.renew().await?;
                    }
                    piece = match some.next {
                        Some(next) => reader.go_on(key, next).await?,
                        None => None,
                    };
                }
            }
            progress.add(keys.len());
        }
    }
    match pause {
        Some(pause) => pause.renew().await,
        None => Ok(()),
    }
}

/// Writes of all clients of a server held for a while. They wait, or fail by their own timeouts.
struct WritePause {
    store: Store,
    began: Instant,
    renewed: Instant,
}

impl WritePause {
    async fn begin(store: &Store) -> Result<Self, Error> {
        let began = Instant::now();
        let mut pause = Self { store: store.clone(), began, renewed: began };
        pause.hold().await?;
        Ok(pause)
    }

    async fn hold(&mut self) -> Result<(), Error> {
        let mut hold = cmd("CLIENT");
        hold.arg("PAUSE").arg(PAUSE.as_millis() as u64).arg("WRITE");
        let asked = Instant::now();
        self.store.on_every_node(&hold).await.map_err(|error| match error {
            Error::Denied { .. } | Error::Refused(_) => invalid(format!(
                "the server does not let this user hold writes ({error}): use --without-pause, which \
                 gives a backup that is not of one moment"
            )),
            other => other,
        })?;
        self.renewed = asked;
        Ok(())
    }

    /// Holds on. Fails if writes may have gone on since.
    async fn renew(&mut self) -> Result<(), Error> {
        if self.renewed.elapsed() >= PAUSE {
            return Err(invalid(
                "the server was not reached in time to hold writes: the backup would not be of one \
                 moment; try again",
            ));
        }
        if self.renewed.elapsed() >= RENEW { self.hold().await } else { Ok(()) }
    }

    async fn end(self) -> Result<Duration, Error> {
        let mut go_on = cmd("CLIENT");
        go_on.arg("UNPAUSE");
        self.store.on_every_node(&go_on).await?;
        Ok(self.began.elapsed())
    }
}
