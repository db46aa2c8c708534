//! Facts about an archive that tell whether a desk is in working order.

use sqlx::Row;

use super::{Archive, Dialect, schema};
use crate::Error;

/// Facts about an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArchiveFacts {
    /// Agents who may log in.
    pub agents: i64,
    /// Those of them who have set a password.
    pub ready_agents: i64,
    /// Browsers of agents that take notifications.
    pub browsers: i64,
    /// The key that signs notifications is there.
    pub has_push_key: bool,
    /// E-mails and notifications that were given up.
    pub dead_letters: i64,
}

/// Contents of an archive, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArchiveContents {
    /// Version of its tables.
    pub schema: usize,
    /// Bytes of the file, or of the database.
    pub bytes: i64,
    /// Conversations that are open or pending.
    pub open_conversations: i64,
    /// Conversations that are resolved.
    pub resolved_conversations: i64,
    /// Messages and notes.
    pub messages: i64,
    /// Visitors.
    pub visitors: i64,
    /// Files that were sent.
    pub files: i64,
    /// Their bytes.
    pub file_bytes: i64,
}

impl Archive {
    /// Counts the contents of this archive.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn contents(&self) -> Result<ArchiveContents, Error> {
        let row = sqlx::query(
            "SELECT (SELECT COUNT(*) FROM conversations WHERE status <> 'resolved') AS open, \
             (SELECT COUNT(*) FROM conversations WHERE status = 'resolved') AS resolved, \
             (SELECT COUNT(*) FROM messages) AS messages, (SELECT COUNT(*) FROM visitors) AS visitors, \
             (SELECT COUNT(*) FROM files) AS files, \
             (SELECT CAST(COALESCE(SUM(size), 0) AS BIGINT) FROM files) AS file_bytes",
        )
        .fetch_one(self.readers())
        .await?;
        let size = match self.dialect() {
            Dialect::Sqlite => {
                "SELECT CAST(p.page_count * s.page_size AS BIGINT) \
                 FROM pragma_page_count() AS p, pragma_page_size() AS s"
            }
            Dialect::Postgres => "SELECT CAST(pg_database_size(current_database()) AS BIGINT)",
        };
        let size = sqlx::query(size).fetch_one(self.readers()).await?;
        Ok(ArchiveContents {
            schema: schema::VERSION,
            bytes: size.try_get(0)?,
            open_conversations: row.try_get("open")?,
            resolved_conversations: row.try_get("resolved")?,
            messages: row.try_get("messages")?,
            visitors: row.try_get("visitors")?,
            files: row.try_get("files")?,
            file_bytes: row.try_get("file_bytes")?,
        })
    }

    /// Returns facts about this archive.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn facts(&self) -> Result<ArchiveFacts, Error> {
        let row = sqlx::query(
            "SELECT (SELECT COUNT(*) FROM agents WHERE disabled = 0) AS agents, \
             (SELECT COUNT(*) FROM agents WHERE disabled = 0 AND password IS NOT NULL) AS ready, \
             (SELECT COUNT(*) FROM push_subscriptions) AS browsers, \
             (SELECT COUNT(*) FROM secrets WHERE name = 'push_key') AS push_keys, \
             (SELECT COUNT(*) FROM outgoing WHERE state = 'dead') AS dead",
        )
        .fetch_one(self.readers())
        .await?;
        Ok(ArchiveFacts {
            agents: row.try_get("agents")?,
            ready_agents: row.try_get("ready")?,
            browsers: row.try_get("browsers")?,
            has_push_key: row.try_get::<i64, _>("push_keys")? > 0,
            dead_letters: row.try_get("dead")?,
        })
    }
}
