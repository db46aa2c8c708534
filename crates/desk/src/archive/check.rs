//! Checks a whole archive: its file, its sequences, what refers to what, files, the search index.

use std::{collections::HashSet, path::Path};

use sqlx::{AssertSqlSafe, Row};

use super::{Archive, Dialect, schema};
use crate::{
    Error,
    chat::{file_path, hash_of},
};

/// Most lines about one thing.
const LINES_MOST: usize = 50;

/// The outcome of a check of a whole archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveCheck {
    /// One for each thing that was checked.
    pub results: Vec<CheckResult>,
}

impl ArchiveCheck {
    /// Returns true if nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.results.iter().all(|result| result.faults.is_empty())
    }
}

/// One thing that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// The thing: `sequences`.
    pub name: &'static str,
    /// The number of rows or files that were looked at, in words.
    pub seen: String,
    /// Faults, each with what to do; at most 50.
    pub faults: Vec<String>,
}

/// References that must lead to a row: table, column, target, its column, and what a fault means.
const REFERENCES: &[(&str, &str, &str, &str)] = &[
    ("messages", "conversation_id", "conversations", "id"),
    ("outbox", "conversation_id", "conversations", "id"),
    ("replies", "conversation_id", "conversations", "id"),
    ("resolutions", "conversation_id", "conversations", "id"),
    ("files", "conversation_id", "conversations", "id"),
    ("outgoing", "conversation_id", "conversations", "id"),
    ("conversations", "visitor_id", "visitors", "id"),
    ("conversations", "assignee", "agents", "id"),
    ("conversations", "team_id", "teams", "id"),
    ("conversations", "merged_into", "conversations", "id"),
    ("team_members", "team_id", "teams", "id"),
    ("team_members", "agent_id", "agents", "id"),
    ("push_subscriptions", "agent_id", "agents", "id"),
];

impl Archive {
    /// Checks the sequences and, of a SQLite archive, the file. Returns what is wrong, at most 100 lines.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn verify(&self) -> Result<Vec<String>, Error> {
        let mut found = self.check_file().await?.faults;
        found.extend(self.check_sequences().await?.faults);
        Ok(found)
    }

    /// Checks the whole archive, with the files of chats in their folder.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn inspect(&self, files: &Path) -> Result<ArchiveCheck, Error> {
        Ok(ArchiveCheck {
            results: vec![
                self.check_schema().await?,
                self.check_file().await?,
                self.check_sequences().await?,
                self.check_references().await?,
                self.check_files(files).await?,
                self.check_search().await?,
            ],
        })
    }

    async fn check_schema(&self) -> Result<CheckResult, Error> {
        let row = sqlx::query("SELECT value FROM meta WHERE name = 'schema'")
            .fetch_optional(self.readers())
            .await?;
        let found: Option<String> = row.map(|row| row.try_get(0)).transpose()?;
        let is_known = found.as_deref() == Some(&schema::VERSION.to_string());
        let version = found.unwrap_or_else(|| "none".to_owned());
        let mut faults = Vec::new();
        if !is_known {
            faults.push(format!("it has schema {version}, this program makes {}", schema::VERSION));
        }
        Ok(CheckResult { name: "schema", seen: format!("version {version}"), faults })
    }

    async fn check_file(&self) -> Result<CheckResult, Error> {
        let (mut faults, mut seen) = (Vec::new(), "Postgres checks its own pages".to_owned());
        if self.dialect() == Dialect::Sqlite {
            let rows = sqlx::query("PRAGMA integrity_check(50)").fetch_all(self.readers()).await?;
            let lines = rows.iter().filter_map(|row| row.try_get::<String, _>(0).ok());
            faults.extend(lines.filter(|line| line != "ok"));
            seen = "every page".to_owned();
        }
        Ok(CheckResult { name: "pages", seen, faults })
    }

    async fn check_sequences(&self) -> Result<CheckResult, Error> {
        let rows = sqlx::query(
            "SELECT c.id AS id FROM conversations c LEFT JOIN messages m ON m.conversation_id = c.id \
             GROUP BY c.id, c.last_seq HAVING COUNT(m.seq) <> c.last_seq \
             OR COALESCE(MAX(m.seq), 0) <> c.last_seq LIMIT 50",
        )
        .fetch_all(self.readers())
        .await?;
        let mut faults = Vec::new();
        for row in rows {
            let id: String = row.try_get("id")?;
            faults.push(format!("conversation {id}: its messages are not 1, 2, 3 …"));
        }
        let count = self.count("conversations").await?;
        Ok(CheckResult { name: "sequences", seen: format!("{count} conversations"), faults })
    }

    async fn check_references(&self) -> Result<CheckResult, Error> {
        let mut faults = Vec::new();
        for (table, column, target, key) in REFERENCES {
            let select = format!(
                "SELECT COUNT(*) AS n, MIN(t.{column}) AS example FROM {table} t \
                 WHERE t.{column} IS NOT NULL \
                 AND NOT EXISTS (SELECT 1 FROM {target} o WHERE o.{key} = t.{column})"
            );
            let row = sqlx::query(AssertSqlSafe(select)).fetch_one(self.readers()).await?;
            let count: i64 = row.try_get("n")?;
            if count > 0 {
                let example: Option<String> = row.try_get("example")?;
                faults.push(format!(
                    "{count} rows of {table} name {column}s that {target} does not have, such as {}",
                    example.unwrap_or_default()
                ));
            }
        }
        // A file that was sent must have the message it was sent with.
        let row = sqlx::query(
            "SELECT COUNT(*) AS n, MIN(f.id) AS example FROM files f WHERE f.conversation_id IS NOT NULL \
             AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.conversation_id = f.conversation_id AND m.seq = f.seq)",
        )
        .fetch_one(self.readers())
        .await?;
        let count: i64 = row.try_get("n")?;
        if count > 0 {
            let example: Option<String> = row.try_get("example")?;
            let example = example.unwrap_or_default();
            faults.push(format!("{count} files have no message, such as {example}"));
        }
        let seen = format!("{} kinds", REFERENCES.len() + 1);
        Ok(CheckResult { name: "references", seen, faults })
    }

    async fn check_files(&self, folder: &Path) -> Result<CheckResult, Error> {
        let rows = sqlx::query(
            "SELECT hash, MIN(id) AS id, MIN(name) AS name FROM files GROUP BY hash ORDER BY hash",
        )
        .fetch_all(self.readers())
        .await?;
        let (mut faults, mut known) = (Vec::new(), HashSet::new());
        for row in &rows {
            let (hash, id): (String, String) = (row.try_get("hash")?, row.try_get("id")?);
            let name: String = row.try_get("name")?;
            let path = file_path(folder, &hash);
            match std::fs::read(&path) {
                Ok(bytes) if hash_of(&bytes) == hash => {}
                Ok(_) => faults.push(format!(
                    "{id} ({name}) is damaged: {} does not have the contents its name says; restore it",
                    path.display()
                )),
                Err(error) => faults.push(format!(
                    "{id} ({name}) is missing: {}: {error}; restore it",
                    path.display()
                )),
            }
            known.insert(hash);
        }
        faults.truncate(LINES_MOST);
        Ok(CheckResult { name: "files", seen: format!("{} files", known.len()), faults })
    }

    async fn check_search(&self) -> Result<CheckResult, Error> {
        let mut faults = Vec::new();
        match self.dialect() {
            Dialect::Sqlite => {
                // Compares every message with its entries; an error is a difference.
                let check =
                    "INSERT INTO messages_text (messages_text, rank) VALUES ('integrity-check', 1)";
                if let Err(error) = sqlx::query(check).execute(self.readers()).await {
                    faults.push(format!(
                        "it is not in step with the messages ({error}); rebuild it: \
                         INSERT INTO messages_text (messages_text) VALUES ('rebuild')"
                    ));
                }
            }
            Dialect::Postgres => {
                // The words are a generated column; what can be missing is the index.
                let row = sqlx::query(
                    "SELECT COUNT(*) AS n FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
                     WHERE c.relname = 'messages_text' AND i.indisvalid",
                )
                .fetch_one(self.readers())
                .await?;
                if row.try_get::<i64, _>("n")? == 0 {
                    faults.push(
                        "the index messages_text is missing or invalid: REINDEX INDEX messages_text"
                            .to_owned(),
                    );
                }
                let row = sqlx::query("SELECT COUNT(*) AS n FROM messages WHERE words IS NULL")
                    .fetch_one(self.readers())
                    .await?;
                let count: i64 = row.try_get("n")?;
                if count > 0 {
                    faults.push(format!("{count} messages have no words to be found by"));
                }
            }
        }
        let count = self.count("messages").await?;
        Ok(CheckResult { name: "search", seen: format!("{count} messages"), faults })
    }

    async fn count(&self, table: &'static str) -> Result<i64, Error> {
        let select = format!("SELECT COUNT(*) FROM {table}");
        let row = sqlx::query(AssertSqlSafe(select)).fetch_one(self.readers()).await?;
        Ok(row.try_get(0)?)
    }
}
