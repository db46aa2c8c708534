//! Moves and backups: copies an archive, and compares.
//!
//! A copy is read from one snapshot. Its target is marked as unfinished before the first row and is not
//! used by anybody until the mark is gone, so that a copy that was interrupted can begin again.

use std::path::{Path, PathBuf};

use futures_util::TryStreamExt;
use ring::digest;
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Row, any::AnyRow};
use store::Millis;

use super::{
    Archive, ArchivePlace, ArchiveSync, Dialect,
    schema::{self, COPY_OF, ColumnKind, MOVED_TO, TABLES},
    statement::{SqlValue, bind_all},
};
use crate::{
    Error,
    chat::{file_path, hash_of},
};

/// Rows written in one transaction.
const ROWS: usize = 500;

/// Name of the archive in a backup.
const BACKUP_ARCHIVE: &str = "desk.sqlite3";

/// Name of the files' folder in a backup.
const BACKUP_FILES: &str = "files";

/// The outcome of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyReport {
    /// Rows of each table on both sides.
    pub tables: Vec<TableCount>,
}

impl CopyReport {
    /// Returns true if both sides have the same rows.
    pub fn is_equal(&self) -> bool {
        self.tables.iter().all(|table| table.from == table.to && table.is_same)
    }
}

/// Rows of a table on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableCount {
    /// The table.
    pub table: &'static str,
    /// Rows in the archive that was copied.
    pub from: u64,
    /// Rows in the copy.
    pub to: u64,
    /// The contents of both are the same, by their checksums.
    pub is_same: bool,
}

/// The outcome of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupReport {
    /// The archive in it.
    pub archive: PathBuf,
    /// Its bytes.
    pub archive_bytes: u64,
    /// Files copied, or there already from a backup that was interrupted.
    pub files: u64,
    /// Files that were missing, deleted meanwhile or damaged, by name.
    pub missing: Vec<String>,
}

/// Number and checksum of a table's rows, whatever their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RowSum {
    rows: u64,
    sum: u128,
}

impl RowSum {
    fn add(&mut self, row: &[SqlValue]) {
        let mut text = digest::Context::new(&digest::SHA256);
        for value in row {
            match value {
                SqlValue::Text(None) | SqlValue::Number(None) => text.update(b"n"),
                SqlValue::Text(Some(value)) => {
                    text.update(format!("t{}:", value.len()).as_bytes());
                    text.update(value.as_bytes());
                }
                SqlValue::Number(Some(value)) => text.update(format!("i{value};").as_bytes()),
            }
        }
        let digest = text.finish();
        let half: [u8; 16] = digest.as_ref()[..16].try_into().unwrap_or_default();
        self.rows += 1;
        self.sum = self.sum.wrapping_add(u128::from_be_bytes(half));
    }
}

impl Archive {
    /// Moves everything into another archive, which must be empty, and compares both row by row. The other
    /// one takes over the id; this one is marked as moved and does not open again for chats. Nobody can
    /// write meanwhile. A move that was interrupted begins again.
    ///
    /// # Errors
    /// The other one is not empty; one of them cannot be read or written; they differ in the end.
    pub async fn move_to(&self, to: &Archive) -> Result<CopyReport, Error> {
        if self.place() == to.place() {
            return Err(Error::invalid("to", "it is the archive itself"));
        }
        let mut source = self.snapshot(true).await?;
        let report = copy(self, &mut source, to).await?;
        if report.is_equal() {
            // In the transaction that kept everybody from writing: it is moved before somebody can. The other one
            // opens last, so that they are never in use both; interrupted in between, it begins again.
            schema::write(&mut source, MOVED_TO, &to.place().to_string()).await?;
            sqlx::raw_sql("COMMIT").execute(&mut source).await?;
            finish(to, self.id()).await?;
        }
        Ok(report)
    }

    /// Writes a backup into a folder: the archive as a SQLite file, wherever it is, and the files of chats.
    /// It is consistent while chats go on. Begun again in the same folder, it finishes what was interrupted.
    ///
    /// # Errors
    /// There is a finished backup in the folder; it cannot be written.
    pub async fn backup(
        &self,
        files: &Path,
        folder: &Path,
        now: Millis,
    ) -> Result<BackupReport, Error> {
        let (done, part) = (folder.join(BACKUP_ARCHIVE), folder.join("desk.sqlite3.part"));
        if done.exists() {
            return Err(Error::invalid(
                "folder",
                format!("{} has a backup already; name a new folder", folder.display()),
            ));
        }
        let failed = |error: std::io::Error| {
            Error::archive(format!("cannot write to {}: {error}", folder.display()))
        };
        std::fs::create_dir_all(folder).map_err(failed)?;
        let (path, copied) =
            (part.to_string_lossy().into_owned(), folder.join("desk.sqlite3.copy"));
        remove_database(&part).and_then(|()| remove_database(&copied)).map_err(failed)?;
        match self.dialect() {
            Dialect::Sqlite => {
                sqlx::query("VACUUM INTO $1").bind(path).execute(self.readers()).await?;
            }
            Dialect::Postgres => {
                let place = ArchivePlace::Sqlite(copied.clone());
                let to = Archive::open_target(&place, ArchiveSync::Never).await?;
                let mut source = self.snapshot(false).await?;
                if !copy(self, &mut source, &to).await?.is_equal() {
                    return Err(Error::archive("the copy differs from the archive; try again"));
                }
                finish(&to, self.id()).await?;
                sqlx::query("VACUUM INTO $1").bind(path).execute(to.readers()).await?;
                to.readers().close().await;
                remove_database(&copied).map_err(failed)?;
            }
        }
        let (count, missing) = copy_files(&part, files, &folder.join(BACKUP_FILES)).await?;
        // The name tells that it is complete.
        std::fs::File::open(&part).and_then(|file| file.sync_all()).map_err(failed)?;
        std::fs::rename(&part, &done).map_err(failed)?;
        self.note_backup(now).await?;
        let archive_bytes = std::fs::metadata(&done).map(|file| file.len()).unwrap_or(0);
        Ok(BackupReport { archive: done, archive_bytes, files: count, missing })
    }
}

/// Deletes a SQLite file with what belongs to it.
fn remove_database(path: &Path) -> std::io::Result<()> {
    for rest in ["", "-wal", "-shm"] {
        let mut path = path.to_owned().into_os_string();
        path.push(rest);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Copies all tables and compares them. The target stays marked as unfinished.
async fn copy(
    from: &Archive,
    source: &mut AnyConnection,
    to: &Archive,
) -> Result<CopyReport, Error> {
    begin(to, from.id()).await?;
    let mut sums = Vec::with_capacity(TABLES.len());
    for (table, columns) in TABLES {
        sums.push(copy_table(source, to, table, columns).await?);
    }
    copy_meta(source, to).await?;
    let mut target = to.snapshot(false).await?;
    let mut tables = Vec::with_capacity(TABLES.len());
    for ((table, columns), sum) in TABLES.iter().zip(sums) {
        let copied = sum_of(&mut target, table, columns).await?;
        let is_same = copied.sum == sum.sum;
        tables.push(TableCount { table, from: sum.rows, to: copied.rows, is_same });
    }
    Ok(CopyReport { tables })
}

/// Marks the target as an unfinished copy. One that a copy of the same archive was interrupted in is
/// emptied; any other must be empty.
async fn begin(to: &Archive, source_id: &str) -> Result<(), Error> {
    let (id, place) = (source_id.to_owned(), to.place().to_string());
    to.write(move |tx| {
        let (id, place) = (id.clone(), place.clone());
        Box::pin(async move {
            let is_interrupted = match schema::read(tx, COPY_OF).await? {
                Some(earlier) if earlier == id => true,
                Some(_) => {
                    return Err(Error::invalid(
                        "to",
                        format!("a copy of another archive into {place} was interrupted; name another target"),
                    ));
                }
                None => false,
            };
            for (table, _) in TABLES {
                if is_interrupted {
                    let delete = format!("DELETE FROM {table}");
                    sqlx::query(AssertSqlSafe(delete)).execute(&mut *tx).await?;
                    continue;
                }
                let first = format!("SELECT 1 AS one FROM {table} LIMIT 1");
                let first = sqlx::query(AssertSqlSafe(first)).fetch_optional(&mut *tx).await?;
                if first.is_some() {
                    return Err(Error::invalid(
                        "to",
                        format!("{place} is not empty: it has {table}; name a new archive"),
                    ));
                }
            }
            schema::write(tx, COPY_OF, &id).await
        })
    })
    .await
}

/// Gives the target the id of the archive it is a copy of, and removes the mark.
async fn finish(to: &Archive, id: &str) -> Result<(), Error> {
    let id = id.to_owned();
    to.write(move |tx| {
        let id = id.clone();
        Box::pin(async move {
            schema::write(tx, "archive_id", &id).await?;
            sqlx::query("DELETE FROM meta WHERE name = $1").bind(COPY_OF).execute(&mut *tx).await?;
            Ok(())
        })
    })
    .await
}

/// Copies what the archive knows about itself, but for what a copy has of its own.
async fn copy_meta(source: &mut AnyConnection, to: &Archive) -> Result<(), Error> {
    let rows = sqlx::query("SELECT name, value FROM meta").fetch_all(&mut *source).await?;
    for row in &rows {
        let (name, value): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        if ["schema", "archive_id", COPY_OF, MOVED_TO].contains(&name.as_str()) {
            continue;
        }
        to.write(move |tx| {
            let (name, value) = (name.clone(), value.clone());
            Box::pin(async move { schema::write(tx, &name, &value).await })
        })
        .await?;
    }
    Ok(())
}

fn select(table: &str, columns: &[(&str, ColumnKind)]) -> String {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    // Where rows are numbered, the copy numbers them in the same order.
    let is_numbered = ["messages", "outbox", "outgoing"].contains(&table);
    let order = if is_numbered { " ORDER BY number" } else { "" };
    format!("SELECT {} FROM {table}{order}", names.join(", "))
}

fn values_of(row: &AnyRow, columns: &[(&str, ColumnKind)]) -> Result<Vec<SqlValue>, Error> {
    let mut values = Vec::with_capacity(columns.len());
    for (at, (_, kind)) in columns.iter().enumerate() {
        values.push(match kind {
            ColumnKind::Text => SqlValue::Text(row.try_get(at)?),
            ColumnKind::Number => SqlValue::Number(row.try_get(at)?),
        });
    }
    Ok(values)
}

async fn sum_of(
    connection: &mut AnyConnection,
    table: &'static str,
    columns: &'static [(&'static str, ColumnKind)],
) -> Result<RowSum, Error> {
    let mut sum = RowSum::default();
    let query = sqlx::query(AssertSqlSafe(select(table, columns)));
    let mut rows = query.fetch(&mut *connection);
    while let Some(row) = rows.try_next().await? {
        sum.add(&values_of(&row, columns)?);
    }
    Ok(sum)
}

async fn copy_table(
    source: &mut AnyConnection,
    to: &Archive,
    table: &'static str,
    columns: &'static [(&'static str, ColumnKind)],
) -> Result<RowSum, Error> {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let marks: Vec<String> = (1..=columns.len()).map(|at| format!("${at}")).collect();
    let insert =
        format!("INSERT INTO {table} ({}) VALUES ({})", names.join(", "), marks.join(", "));
    let mut sum = RowSum::default();
    let query = sqlx::query(AssertSqlSafe(select(table, columns)));
    let mut rows = query.fetch(&mut *source);
    let mut batch = Vec::with_capacity(ROWS);
    loop {
        let row = rows.try_next().await?;
        let is_last = row.is_none();
        if let Some(row) = row {
            let values = values_of(&row, columns)?;
            sum.add(&values);
            batch.push(values);
        }
        if batch.len() == ROWS || (is_last && !batch.is_empty()) {
            write_rows(to, insert.clone(), std::mem::take(&mut batch)).await?;
        }
        if is_last {
            return Ok(sum);
        }
    }
}

async fn write_rows(to: &Archive, insert: String, rows: Vec<Vec<SqlValue>>) -> Result<(), Error> {
    let rows = std::sync::Arc::new(rows);
    to.write(move |tx| {
        let (insert, rows) = (insert.clone(), std::sync::Arc::clone(&rows));
        Box::pin(async move {
            for row in rows.iter() {
                let query = sqlx::query(AssertSqlSafe(insert.clone()));
                bind_all(query, row.iter().cloned()).execute(&mut *tx).await?;
            }
            Ok(())
        })
    })
    .await
}

/// Copies the files that an archive names. One of the right contents is not copied again.
async fn copy_files(archive: &Path, from: &Path, to: &Path) -> Result<(u64, Vec<String>), Error> {
    // As it is, without a log beside it.
    let url = ArchivePlace::Sqlite(archive.to_owned()).url();
    let url = url.replace("?mode=rwc", "?mode=ro&immutable=true");
    let mut copy = AnyConnection::connect(&url).await?;
    let rows = sqlx::query("SELECT hash, MIN(name) AS name FROM files GROUP BY hash ORDER BY hash")
        .fetch_all(&mut copy)
        .await?;
    copy.close().await?;
    let (mut count, mut missing) = (0, Vec::new());
    for row in &rows {
        let (hash, name): (String, String) = (row.try_get("hash")?, row.try_get("name")?);
        let (source, target) = (file_path(from, &hash), file_path(to, &hash));
        if std::fs::read(&target).is_ok_and(|bytes| hash_of(&bytes) == hash) {
            count += 1;
            continue;
        }
        match std::fs::read(&source) {
            Ok(bytes) if hash_of(&bytes) == hash => {
                let written = target
                    .parent()
                    .map_or(Ok(()), std::fs::create_dir_all)
                    .and_then(|()| std::fs::write(&target, bytes));
                written.map_err(|error| {
                    Error::archive(format!("cannot write {}: {error}", target.display()))
                })?;
                count += 1;
            }
            _ => missing.push(name),
        }
    }
    Ok((count, missing))
}
