//! The archive: conversations, messages and agents, kept for good in SQLite or Postgres.
//!
//! One set of queries serves both. All changes go through one writer, which commits whatever waits
//! as one transaction (group commit). Invariants: a change is acknowledged after its commit; changes
//! of all instances are serial (SQLite by its lock, Postgres by an advisory lock), so the order of
//! commits is the order of sequence numbers; a change that refuses has written nothing.
//!
//! Read in this order: [`Archive`] here, then `schema.rs` (tables and their versions), `copy.rs` (moves and
//! backups), `check.rs`.

mod check;
mod copy;
mod facts;
mod schema;
pub(crate) mod statement;

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use sqlx::{
    AnyConnection, AnyPool, Connection, Executor, Row,
    any::{AnyConnectOptions, AnyPoolOptions, AnyRow},
};
use store::Millis;
use tokio::sync::{mpsc, oneshot};

pub use self::{
    check::{ArchiveCheck, CheckResult},
    copy::{BackupReport, CopyReport, TableCount},
    facts::{ArchiveContents, ArchiveFacts},
};
use crate::{Error, random::random_hex};

/// Most changes in one transaction.
const BATCH_MOST: usize = 128;

/// Most changes that wait for the writer; more wait in their callers.
const QUEUE_MOST: usize = 4_096;

/// Connections that read.
const READERS: u32 = 6;

/// Number of the advisory lock that makes the changes of all instances serial on Postgres.
const WRITE_LOCK: i64 = 0x7469_6465_6465_736b;

/// Time to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause between two attempts to switch a file to the write-ahead log.
const SWITCH_PAUSE: Duration = Duration::from_millis(5);

/// The place of an archive.
#[derive(Clone, PartialEq, Eq)]
pub enum ArchivePlace {
    /// A SQLite file.
    Sqlite(PathBuf),
    /// A Postgres database, by URL.
    Postgres(String),
}

impl ArchivePlace {
    /// Parses a setting: `postgres://…`, or the path of a file.
    ///
    /// # Errors
    /// The text is empty, or a URL of another scheme.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            AnyConnectOptions::from_str(text)
                .map_err(|error| Error::invalid("archive", error.to_string()))?;
            return Ok(Self::Postgres(text.to_owned()));
        }
        if text.is_empty() || text.contains("://") {
            return Err(Error::invalid("archive", "a file, or postgres://user@host/database"));
        }
        Ok(Self::Sqlite(PathBuf::from(text)))
    }

    /// Returns true for a file that only this machine can open.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Sqlite(_))
    }

    fn url(&self) -> String {
        match self {
            Self::Postgres(url) => url.clone(),
            Self::Sqlite(path) => {
                use std::fmt::Write;
                let mut url = "sqlite://".to_owned();
                for byte in path.to_string_lossy().bytes() {
                    if byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'-' | b'_') {
                        url.push(char::from(byte));
                    } else {
                        let _ = write!(url, "%{byte:02X}"); // writing to a String cannot fail
                    }
                }
                url + "?mode=rwc"
            }
        }
    }
}

/// Without the password.
impl fmt::Display for ArchivePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "{}", path.display()),
            Self::Postgres(url) => match url.split_once("://").and_then(|(scheme, rest)| {
                rest.rsplit_once('@').map(|(_, host)| format!("{scheme}://{host}"))
            }) {
                Some(bare) => f.write_str(&bare),
                None => f.write_str(url),
            },
        }
    }
}

impl fmt::Debug for ArchivePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArchivePlace({self})")
    }
}

/// The SQL dialect, for the few statements that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

/// The purpose for which an archive is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenPurpose {
    /// To serve chats from it: tables are brought up to date.
    Use,
    /// To look at it: nothing is changed by opening it.
    Look,
    /// To be filled by a move.
    Fill,
}

/// Durability of a commit in a SQLite file; Postgres has its own setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArchiveSync {
    /// Every commit is synced to the disk: it survives a power failure.
    Always,
    /// A commit survives the end of the process; a power failure may lose the last ones.
    #[default]
    Checkpoint,
    /// The system decides.
    Never,
}

impl ArchiveSync {
    fn pragma(self) -> &'static str {
        match self {
            Self::Always => "PRAGMA synchronous = FULL",
            Self::Checkpoint => "PRAGMA synchronous = NORMAL",
            Self::Never => "PRAGMA synchronous = OFF",
        }
    }
}

/// The archive. A cheap clone.
#[derive(Clone)]
pub struct Archive(Arc<ArchiveInner>);

struct ArchiveInner {
    place: ArchivePlace,
    dialect: Dialect,
    id: String,
    connector: Connector,
    readers: AnyPool,
    writes: mpsc::Sender<Box<dyn QueuedWrite>>,
}

impl fmt::Debug for Archive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archive").field("place", &self.0.place).finish_non_exhaustive()
    }
}

impl Archive {
    /// Opens an archive, makes it if there is none, and brings its tables up to date.
    ///
    /// # Errors
    /// It cannot be opened or written; its tables are newer than this program; it was moved elsewhere, or
    /// a move into it was interrupted.
    pub async fn open(place: &ArchivePlace, sync: ArchiveSync) -> Result<Self, Error> {
        Self::open_as(place, sync, OpenPurpose::Use).await
    }

    /// Opens an archive that exists, for a tool. One whose tables are older is not changed: it is refused.
    ///
    /// # Errors
    /// There is none; as of [`open`](Self::open), except that one that was moved may be looked at.
    pub async fn open_existing(place: &ArchivePlace, sync: ArchiveSync) -> Result<Self, Error> {
        if let ArchivePlace::Sqlite(path) = place
            && !path.is_file()
        {
            return Err(Error::invalid(
                "archive",
                format!("there is no file {}; name the archive with desk.archive", path.display()),
            ));
        }
        Self::open_as(place, sync, OpenPurpose::Look).await
    }

    /// Opens the target of a move: an empty archive, or one that a move was interrupted in.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub async fn open_target(place: &ArchivePlace, sync: ArchiveSync) -> Result<Self, Error> {
        Self::open_as(place, sync, OpenPurpose::Fill).await
    }

    async fn open_as(
        place: &ArchivePlace,
        sync: ArchiveSync,
        purpose: OpenPurpose,
    ) -> Result<Self, Error> {
        sqlx::any::install_default_drivers();
        if let ArchivePlace::Sqlite(path) = place
            && let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty())
        {
            std::fs::create_dir_all(folder)
                .map_err(|error| Error::archive(format!("{}: {error}", folder.display())))?;
        }
        let dialect = match place {
            ArchivePlace::Sqlite(_) => Dialect::Sqlite,
            ArchivePlace::Postgres(_) => Dialect::Postgres,
        };
        let options =
            AnyConnectOptions::from_str(&place.url()).map_err(|error| opening(place, &error))?;
        let connector = Connector { options: options.clone(), dialect, sync };
        let mut writer = connector.connect().await.map_err(|error| opening(place, &error))?;
        let id = schema::prepare(&mut writer, dialect, purpose).await?;
        let readers = AnyPoolOptions::new()
            .max_connections(READERS)
            .acquire_timeout(CONNECT_TIMEOUT)
            .after_connect(move |connection, _| Box::pin(prepare(connection, dialect, sync)))
            .connect_lazy_with(options);
        let (writes, queue) = mpsc::channel(QUEUE_MOST);
        tokio::spawn(run_writer(connector.clone(), writer, queue));
        let place = place.clone();
        Ok(Self(Arc::new(ArchiveInner { place, dialect, id, connector, readers, writes })))
    }

    /// Returns the place.
    pub fn place(&self) -> &ArchivePlace {
        &self.0.place
    }

    /// Returns the id of the archive: random, made with it.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.0.dialect
    }

    /// Returns the connections that read.
    pub(crate) fn readers(&self) -> &AnyPool {
        &self.0.readers
    }

    /// Makes a change and returns after its commit. It may be run twice, the second time after what
    /// it did was rolled back, and refuses before it writes.
    pub(crate) async fn write<T, F>(&self, change: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: for<'c> Fn(&'c mut AnyConnection) -> BoxFuture<'c, Result<T, Error>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let write = PendingWrite { change, outcome: None, reply };
        self.0.writes.send(Box::new(write)).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// Opens a connection whose reads all see the archive as it is now. With `alone`, nobody writes as
    /// long as it is open.
    pub(crate) async fn snapshot(&self, alone: bool) -> Result<AnyConnection, Error> {
        let mut connection = self.0.connector.connect().await?;
        match (self.dialect(), alone) {
            (Dialect::Sqlite, true) => {
                connection.execute("BEGIN IMMEDIATE").await?;
            }
            (Dialect::Sqlite, false) => {
                connection.execute("BEGIN").await?;
            }
            (Dialect::Postgres, alone) => {
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
                if alone {
                    sqlx::query("SELECT pg_advisory_xact_lock($1)")
                        .bind(WRITE_LOCK)
                        .execute(&mut connection)
                        .await?;
                }
            }
        }
        // SQLite begins to read with the first statement.
        sqlx::query("SELECT value FROM meta WHERE name = 'archive_id'")
            .fetch_optional(&mut connection)
            .await?;
        Ok(connection)
    }

    /// Makes running instances read everything anew: what they publish, agents and teams. They notice
    /// within half a minute.
    pub(crate) async fn raise_generation(&self) -> Result<(), Error> {
        self.write(|tx| {
            Box::pin(async move {
                sqlx::query(
                    "UPDATE meta SET value = CAST(CAST(value AS BIGINT) + 1 AS TEXT) \
                     WHERE name = 'generation'",
                )
                .execute(&mut *tx)
                .await?;
                Ok(())
            })
        })
        .await
    }

    /// Checks that the archive can be read and written.
    ///
    /// # Errors
    /// It cannot.
    pub async fn check(&self) -> Result<(), Error> {
        sqlx::query("SELECT 1").execute(self.readers()).await?;
        self.write(|tx| {
            Box::pin(async move {
                sqlx::query("UPDATE meta SET value = value WHERE name = 'archive_id'")
                    .execute(&mut *tx)
                    .await?;
                Ok(())
            })
        })
        .await
    }

    async fn note_backup(&self, now: Millis) -> Result<(), Error> {
        let now = (now.0 / 1_000).to_string();
        self.write(move |tx| {
            let now = now.clone();
            Box::pin(async move {
                sqlx::query(
                    "INSERT INTO meta (name, value) VALUES ('backup_at', $1) \
                     ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                )
                .bind(now)
                .execute(&mut *tx)
                .await?;
                Ok(())
            })
        })
        .await
    }

    /// Returns the Unix seconds of the last backup made by this program.
    ///
    /// # Errors
    /// The archive cannot be read.
    pub async fn last_backup(&self) -> Result<Option<i64>, Error> {
        let row = sqlx::query("SELECT value FROM meta WHERE name = 'backup_at'")
            .fetch_optional(self.readers())
            .await?;
        Ok(row.and_then(|row| row.try_get::<String, _>(0).ok()?.parse().ok()))
    }
}

fn opening(place: &ArchivePlace, error: &sqlx::Error) -> Error {
    Error::archive(format!("cannot open the archive {place}: {error}"))
}

fn closed() -> Error {
    Error::archive("the archive is closed")
}

/// Makes connections that are set up alike.
#[derive(Clone)]
struct Connector {
    options: AnyConnectOptions,
    dialect: Dialect,
    sync: ArchiveSync,
}

impl Connector {
    async fn connect(&self) -> Result<AnyConnection, sqlx::Error> {
        let connecting = AnyConnection::connect_with(&self.options);
        let mut connection = tokio::time::timeout(CONNECT_TIMEOUT, connecting)
            .await
            .map_err(|_| sqlx::Error::PoolTimedOut)??;
        prepare(&mut connection, self.dialect, self.sync).await?;
        Ok(connection)
    }
}

async fn prepare(
    connection: &mut AnyConnection,
    dialect: Dialect,
    sync: ArchiveSync,
) -> Result<(), sqlx::Error> {
    if dialect == Dialect::Sqlite {
        connection.execute("PRAGMA busy_timeout = 10000").await?;
        switch_to_wal(connection).await?;
        connection.execute(sync.pragma()).await?;
    }
    Ok(())
}

/// Switches a file to the write-ahead log. Of two that do so at the same moment SQLite refuses one at once,
/// whatever its busy timeout; the other needs a few milliseconds.
async fn switch_to_wal(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    let deadline = tokio::time::Instant::now() + CONNECT_TIMEOUT;
    loop {
        match connection.execute("PRAGMA journal_mode = WAL").await {
            Err(error) if is_busy(&error) && tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(SWITCH_PAUSE).await;
            }
            outcome => return outcome.map(drop),
        }
    }
}

#[cfg(test)]
impl Archive {
    /// Opens a new archive on SQLite, in a folder that goes with the guard.
    pub(crate) async fn open_new() -> (Self, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let place = ArchivePlace::Sqlite(folder.path().join("desk.sqlite3"));
        (Self::open(&place, ArchiveSync::Never).await.unwrap(), folder)
    }
}

/// Returns true if SQLite refused because another connection has the file.
fn is_busy(error: &sqlx::Error) -> bool {
    const SQLITE_BUSY: i32 = 5;
    let code = error.as_database_error().and_then(|error| error.code()?.parse::<i32>().ok());
    // The upper bits tell why.
    code.is_some_and(|code| code & 0xff == SQLITE_BUSY)
}

/// A change that waits for the writer.
trait QueuedWrite: Send {
    /// Runs the change; true when the transaction can go on.
    fn run<'c>(&'c mut self, tx: &'c mut AnyConnection) -> BoxFuture<'c, bool>;

    /// Hands the outcome to the caller. With an error of the commit, nothing was written.
    fn settle(self: Box<Self>, commit: Result<(), Error>);
}

struct PendingWrite<T, F> {
    change: F,
    outcome: Option<Result<T, Error>>,
    reply: oneshot::Sender<Result<T, Error>>,
}

impl<T, F> QueuedWrite for PendingWrite<T, F>
where
    T: Send + 'static,
    F: for<'c> Fn(&'c mut AnyConnection) -> BoxFuture<'c, Result<T, Error>> + Send,
{
    fn run<'c>(&'c mut self, tx: &'c mut AnyConnection) -> BoxFuture<'c, bool> {
        let work = (self.change)(tx);
        let outcome = &mut self.outcome;
        Box::pin(async move {
            let done = work.await;
            let is_sound = !matches!(done, Err(Error::Archive { .. }));
            *outcome = Some(done);
            is_sound
        })
    }

    fn settle(self: Box<Self>, commit: Result<(), Error>) {
        let outcome = match (commit, self.outcome) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(outcome)) => outcome,
            (Ok(()), None) => Err(closed()),
        };
        // A caller that went away does not want to know.
        let _ = self.reply.send(outcome);
    }
}

/// Commits what waits, until the archive is dropped.
async fn run_writer(
    connector: Connector,
    connection: AnyConnection,
    mut queue: mpsc::Receiver<Box<dyn QueuedWrite>>,
) {
    let mut connection = Some(connection);
    let mut batch: Vec<Box<dyn QueuedWrite>> = Vec::with_capacity(BATCH_MOST);
    while queue.recv_many(&mut batch, BATCH_MOST).await > 0 {
        let mut open = match connection.take() {
            Some(open) => open,
            None => match connector.connect().await {
                Ok(open) => open,
                Err(error) => {
                    let error = Error::from(error);
                    batch.drain(..).for_each(|write| write.settle(Err(error.clone())));
                    continue;
                }
            },
        };
        let mut is_alive = true;
        let together = run_together(&mut open, connector.dialect, &mut batch).await;
        match together {
            Ok(()) => batch.drain(..).for_each(|write| write.settle(Ok(()))),
            Err(_) => {
                // One of them failed, and all were rolled back: each for itself.
                for mut write in batch.drain(..) {
                    let alone = std::slice::from_mut(&mut write);
                    let done = run_together(&mut open, connector.dialect, alone).await;
                    is_alive &= done.is_ok() || open.ping().await.is_ok();
                    write.settle(done);
                }
            }
        }
        if is_alive {
            connection = Some(open);
        }
    }
    if let Some(open) = connection {
        let _ = open.close().await; // nothing is under way
    }
}

/// Runs changes in one transaction. An error means that all of them were rolled back.
async fn run_together(
    connection: &mut AnyConnection,
    dialect: Dialect,
    batch: &mut [Box<dyn QueuedWrite>],
) -> Result<(), Error> {
    match dialect {
        Dialect::Sqlite => connection.execute("BEGIN IMMEDIATE").await?,
        Dialect::Postgres => connection.execute("BEGIN").await?,
    };
    let done = async {
        if dialect == Dialect::Postgres {
            sqlx::query("SELECT pg_advisory_xact_lock($1)")
                .bind(WRITE_LOCK)
                .execute(&mut *connection)
                .await?;
        }
        for write in batch.iter_mut() {
            if !write.run(&mut *connection).await {
                return Err(Error::archive("a change of this transaction failed"));
            }
        }
        connection.execute("COMMIT").await?;
        Ok(())
    }
    .await;
    if done.is_err() {
        let _ = connection.execute("ROLLBACK").await; // it may have ended by itself
    }
    done
}

/// Reads a column of text that may be missing.
pub(crate) fn text_of(row: &AnyRow, column: &str) -> Result<Option<String>, Error> {
    Ok(row.try_get::<Option<String>, _>(column)?)
}

/// Reads a column of numbers that may be missing.
pub(crate) fn number_of(row: &AnyRow, column: &str) -> Result<Option<i64>, Error> {
    Ok(row.try_get::<Option<i64>, _>(column)?)
}

/// A new random id of an archive.
fn fresh_id() -> Result<String, Error> {
    random_hex::<16>()
}
