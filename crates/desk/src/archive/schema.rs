//! Tables of the archive, and the steps from one version of them to the next.
//!
//! A step is a list of statements per dialect and never changes once released; a new one is added at
//! the end. Steps run in one transaction under the writers' lock, so that two instances that start at
//! once do not meet.

use sqlx::{AnyConnection, Executor, Row};

use super::{Dialect, OpenPurpose, WRITE_LOCK, fresh_id};
use crate::Error;

/// Statements of one step. `{number}` is the type of a number that counts up, `{folded}` a message's
/// text in lower case.
struct Step {
    both: &'static [&'static str],
    sqlite: &'static [&'static str],
    postgres: &'static [&'static str],
}

/// The version that this program makes.
pub(super) const VERSION: usize = STEPS.len();

/// The row of `meta` that an unfinished copy has: the id of the archive it is a copy of.
pub(super) const COPY_OF: &str = "copy_of";

/// The row of `meta` that an archive has that was moved: the place of the new one.
pub(super) const MOVED_TO: &str = "moved_to";

const STEPS: &[Step] = &[FIRST, MERGES, DELIVERY, LISTS, PRESENCE, COUNTS];

/// Counts open conversations by view without reading a row of theirs.
const COUNTS: Step = Step {
    both: &[
        "CREATE INDEX conversations_counts ON conversations (status, assignee, team_id, unread_agent, bot) \
         WHERE status = 'open'",
        "CREATE INDEX conversations_mentions ON conversations (status, last_message_ms) \
         WHERE status = 'open' AND mentions <> '[]'",
    ],
    sqlite: &[],
    postgres: &[],
};

/// Lets a status that an agent chose end at a time.
const PRESENCE: Step = Step {
    both: &["ALTER TABLE agents ADD COLUMN chosen_until_ms BIGINT"],
    sqlite: &[],
    postgres: &[],
};

/// Lets a conversation that was merged point to the other one.
const MERGES: Step = Step {
    both: &[
        "ALTER TABLE conversations ADD COLUMN merged_into TEXT",
        "CREATE INDEX conversations_merged ON conversations (merged_into)",
    ],
    sqlite: &[],
    postgres: &[],
};

/// Binds a browser that takes notifications to a session, and keeps what signs links and notifications.
const DELIVERY: Step = Step {
    both: &[
        "ALTER TABLE push_subscriptions ADD COLUMN session_id TEXT NOT NULL DEFAULT ''",
        "CREATE INDEX push_subscriptions_session ON push_subscriptions (session_id)",
        "CREATE TABLE secrets (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    ],
    sqlite: &[],
    postgres: &[],
};

/// Lists conversations by urgency without sorting all that are open, and finds visitors by the beginning of their
/// name, of what follows their first name, or of their address.
const LISTS: Step = Step {
    both: &[
        // As `URGENCY_ORDER` of chat/lists.rs.
        "CREATE INDEX conversations_urgency ON conversations (status, \
         (CASE WHEN unread_agent > 0 AND bot = 0 THEN 0 ELSE 1 END), \
         (CASE priority WHEN 'urgent' THEN 0 WHEN 'high' THEN 1 WHEN 'normal' THEN 2 ELSE 3 END), \
         (COALESCE(waiting_ms, 9000000000000000)), last_message_ms DESC, id)",
    ],
    sqlite: &[
        "CREATE INDEX visitors_name ON visitors (name COLLATE NOCASE)",
        "CREATE INDEX visitors_last_name ON visitors (substr(name, instr(name, ' ') + 1) COLLATE NOCASE)",
        "CREATE INDEX visitors_email ON visitors (email COLLATE NOCASE)",
    ],
    postgres: &[
        "CREATE INDEX visitors_name ON visitors (lower(name) text_pattern_ops)",
        "CREATE INDEX visitors_last_name ON visitors \
         (lower(substr(name, strpos(name, ' ') + 1)) text_pattern_ops)",
        "CREATE INDEX visitors_email ON visitors (lower(email) text_pattern_ops)",
    ],
};

const FIRST: Step = Step {
    both: &[
        "CREATE TABLE agents (id TEXT PRIMARY KEY, email TEXT NOT NULL UNIQUE, name TEXT NOT NULL, \
         role TEXT NOT NULL, capacity BIGINT NOT NULL, skills TEXT NOT NULL, disabled BIGINT NOT NULL, \
         password TEXT, totp TEXT, totp_pending TEXT, totp_used BIGINT NOT NULL, recovery TEXT NOT NULL, invite TEXT, \
         invite_until_ms BIGINT, chosen TEXT NOT NULL, created_ms BIGINT NOT NULL)",
        "CREATE TABLE teams (id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, hours TEXT NOT NULL, \
         created_ms BIGINT NOT NULL)",
        "CREATE TABLE team_members (team_id TEXT NOT NULL, agent_id TEXT NOT NULL, \
         PRIMARY KEY (team_id, agent_id))",
        "CREATE INDEX team_members_agent ON team_members (agent_id)",
        "CREATE TABLE visitors (id TEXT PRIMARY KEY, name TEXT, email TEXT, verified BIGINT NOT NULL, \
         notes TEXT NOT NULL, attributes TEXT NOT NULL, page_url TEXT, locale TEXT, \
         created_ms BIGINT NOT NULL, seen_ms BIGINT NOT NULL)",
        "CREATE TABLE conversations (id TEXT PRIMARY KEY, visitor_id TEXT NOT NULL, status TEXT NOT NULL, \
         priority TEXT NOT NULL, subject TEXT, tags TEXT NOT NULL, channel TEXT NOT NULL, team_id TEXT, \
         skills TEXT NOT NULL, assignee TEXT, assign_no BIGINT NOT NULL, last_agent TEXT, \
         missed TEXT NOT NULL, bot BIGINT NOT NULL, waiting_ms BIGINT, queued_ms BIGINT, \
         last_seq BIGINT NOT NULL, event_no BIGINT NOT NULL, last_message_ms BIGINT NOT NULL, \
         last_preview TEXT NOT NULL, last_role TEXT NOT NULL, agent_read_seq BIGINT NOT NULL, \
         visitor_read_seq BIGINT NOT NULL, unread_agent BIGINT NOT NULL, unread_visitor BIGINT NOT NULL, \
         mentions TEXT NOT NULL, snooze_ms BIGINT, sla_due_ms BIGINT, sla_kind TEXT, \
         sla_state TEXT NOT NULL, first_reply_ms BIGINT, rating BIGINT, rating_comment TEXT, \
         created_ms BIGINT NOT NULL, assigned_ms BIGINT, resolved_ms BIGINT, version BIGINT NOT NULL)",
        "CREATE INDEX conversations_status ON conversations (status, last_message_ms, id)",
        "CREATE INDEX conversations_assignee ON conversations (assignee, status, last_message_ms, id)",
        "CREATE INDEX conversations_visitor ON conversations (visitor_id, last_message_ms, id)",
        "CREATE INDEX conversations_team ON conversations (team_id, status, last_message_ms, id)",
        "CREATE INDEX conversations_snooze ON conversations (status, snooze_ms)",
        "CREATE INDEX conversations_sla ON conversations (sla_state, sla_due_ms)",
        "CREATE INDEX conversations_created ON conversations (created_ms, id)",
        "CREATE INDEX conversations_resolved ON conversations (resolved_ms, id)",
        "CREATE TABLE messages (number {number}, id TEXT NOT NULL UNIQUE, conversation_id TEXT NOT NULL, \
         seq BIGINT NOT NULL, client_id TEXT, sender_role TEXT NOT NULL, sender_id TEXT, sender_name TEXT, \
         type TEXT NOT NULL, content TEXT NOT NULL, attachments TEXT NOT NULL, created_ms BIGINT NOT NULL, \
         edited_ms BIGINT, deleted BIGINT NOT NULL)",
        "CREATE UNIQUE INDEX messages_seq ON messages (conversation_id, seq)",
        "CREATE UNIQUE INDEX messages_client ON messages (conversation_id, client_id)",
        "CREATE TABLE outbox (number {number}, conversation_id TEXT NOT NULL, event_no BIGINT NOT NULL, \
         body TEXT NOT NULL, created_ms BIGINT NOT NULL)",
        "CREATE UNIQUE INDEX outbox_event ON outbox (conversation_id, event_no)",
        "CREATE TABLE replies (conversation_id TEXT NOT NULL, seq BIGINT NOT NULL, agent_id TEXT NOT NULL, \
         first BIGINT NOT NULL, waited_ms BIGINT NOT NULL, at_ms BIGINT NOT NULL, in_time BIGINT, \
         PRIMARY KEY (conversation_id, seq))",
        "CREATE INDEX replies_at ON replies (at_ms)",
        "CREATE TABLE resolutions (conversation_id TEXT NOT NULL, at_ms BIGINT NOT NULL, agent_id TEXT, \
         handled_ms BIGINT NOT NULL, PRIMARY KEY (conversation_id, at_ms))",
        "CREATE INDEX resolutions_at ON resolutions (at_ms)",
        "CREATE TABLE canned (id TEXT PRIMARY KEY, short_code TEXT NOT NULL UNIQUE, content TEXT NOT NULL, \
         created_ms BIGINT NOT NULL)",
        "CREATE TABLE files (id TEXT PRIMARY KEY, hash TEXT NOT NULL, name TEXT NOT NULL, mime TEXT NOT NULL, \
         size BIGINT NOT NULL, owner TEXT NOT NULL, conversation_id TEXT, seq BIGINT, created_ms BIGINT NOT NULL)",
        "CREATE INDEX files_owner ON files (owner)",
        "CREATE INDEX files_hash ON files (hash)",
        "CREATE INDEX files_conversation ON files (conversation_id, seq)",
        "CREATE TABLE outgoing (number {number}, kind TEXT NOT NULL, target TEXT NOT NULL, \
         conversation_id TEXT, body TEXT NOT NULL, due_ms BIGINT NOT NULL, attempts BIGINT NOT NULL, \
         state TEXT NOT NULL, error TEXT, created_ms BIGINT NOT NULL, dedup TEXT UNIQUE)",
        "CREATE INDEX outgoing_due ON outgoing (state, due_ms)",
        "CREATE INDEX outgoing_conversation ON outgoing (conversation_id)",
        "CREATE TABLE push_subscriptions (endpoint TEXT PRIMARY KEY, agent_id TEXT NOT NULL, p256dh TEXT NOT NULL, \
         auth TEXT NOT NULL, created_ms BIGINT NOT NULL)",
        "CREATE INDEX push_subscriptions_agent ON push_subscriptions (agent_id)",
        "INSERT INTO meta (name, value) VALUES ('generation', '0')",
    ],
    sqlite: &[
        "CREATE VIRTUAL TABLE messages_text USING fts5(content, content = 'messages', \
         content_rowid = 'number', tokenize = 'unicode61 remove_diacritics 2')",
        "CREATE TRIGGER messages_text_insert AFTER INSERT ON messages BEGIN \
         INSERT INTO messages_text (rowid, content) VALUES (new.number, new.content); END",
        "CREATE TRIGGER messages_text_delete AFTER DELETE ON messages BEGIN \
         INSERT INTO messages_text (messages_text, rowid, content) VALUES ('delete', old.number, old.content); END",
        "CREATE TRIGGER messages_text_update AFTER UPDATE OF content ON messages BEGIN \
         INSERT INTO messages_text (messages_text, rowid, content) VALUES ('delete', old.number, old.content); \
         INSERT INTO messages_text (rowid, content) VALUES (new.number, new.content); END",
    ],
    postgres: &[
        "ALTER TABLE messages ADD COLUMN words tsvector \
         GENERATED ALWAYS AS (to_tsvector('simple', {folded})) STORED",
        "CREATE INDEX messages_text ON messages USING GIN (words)",
    ],
};

/// Brings the tables up to date and returns the archive's id.
pub(super) async fn prepare(
    connection: &mut AnyConnection,
    dialect: Dialect,
    purpose: OpenPurpose,
) -> Result<String, Error> {
    if purpose == OpenPurpose::Look {
        return look(connection).await;
    }
    match dialect {
        Dialect::Sqlite => connection.execute("BEGIN IMMEDIATE").await?,
        Dialect::Postgres => connection.execute("BEGIN").await?,
    };
    let done = migrate(connection, dialect, purpose).await;
    let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
    connection.execute(end).await?;
    done
}

/// Returns the id of an archive whose tables are those of this program.
async fn look(connection: &mut AnyConnection) -> Result<String, Error> {
    let none = || Error::invalid("archive", "it has no tables of the chat; is it the right one?");
    let version = read(connection, "schema").await.map_err(|_| none())?.ok_or_else(none)?;
    if version.parse() != Ok(VERSION) {
        return Err(Error::archive(format!(
            "the archive has schema {version}, and this program makes {VERSION}; \
             start the server once, or use the program that made it"
        )));
    }
    refuse_unfinished(connection).await?;
    read(connection, "archive_id").await?.ok_or_else(none)
}

async fn refuse_unfinished(connection: &mut AnyConnection) -> Result<(), Error> {
    match read(connection, COPY_OF).await? {
        Some(_) => Err(Error::archive(
            "a move into this archive was interrupted; run `tidegate desk archive move` again, or use another one",
        )),
        None => Ok(()),
    }
}

async fn migrate(
    connection: &mut AnyConnection,
    dialect: Dialect,
    purpose: OpenPurpose,
) -> Result<String, Error> {
    if dialect == Dialect::Postgres {
        sqlx::query("SELECT pg_advisory_xact_lock($1)")
            .bind(WRITE_LOCK)
            .execute(&mut *connection)
            .await?;
    }
    connection
        .execute("CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        .await?;
    if purpose == OpenPurpose::Use {
        refuse_unfinished(connection).await?;
        if let Some(place) = read(connection, MOVED_TO).await? {
            return Err(Error::archive(format!(
                "this archive was moved to {place}: set desk.archive to that; to go on with this one \
                 all the same, delete the row moved_to of its table meta"
            )));
        }
    }
    let version = read(connection, "schema").await?;
    let version: usize = version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0);
    if version > STEPS.len() {
        return Err(Error::archive(format!(
            "the archive has schema {version}, and this program knows {}; use a newer program",
            STEPS.len()
        )));
    }
    let folded = match dialect {
        Dialect::Postgres if version < STEPS.len() => folded(connection).await?,
        _ => "content",
    };
    for step in &STEPS[version..] {
        apply(connection, dialect, step, folded).await?;
    }
    write(connection, "schema", &STEPS.len().to_string()).await?;
    match read(connection, "archive_id").await? {
        Some(id) => Ok(id),
        None => {
            let id = fresh_id()?;
            write(connection, "archive_id", &id).await?;
            Ok(id)
        }
    }
}

async fn apply(
    connection: &mut AnyConnection,
    dialect: Dialect,
    step: &Step,
    folded: &str,
) -> Result<(), Error> {
    let (own, number) = match dialect {
        Dialect::Sqlite => (step.sqlite, "INTEGER PRIMARY KEY AUTOINCREMENT"),
        Dialect::Postgres => (step.postgres, "BIGSERIAL PRIMARY KEY"),
    };
    for statement in step.both.iter().chain(own) {
        let statement = statement.replace("{number}", number).replace("{folded}", folded);
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut *connection).await?;
    }
    Ok(())
}

/// Lower case by Unicode, where Postgres was built with it (packages are). By itself it goes by the locale
/// of the database, and that of `C` knows ASCII only.
async fn folded(connection: &mut AnyConnection) -> Result<&'static str, Error> {
    let found = sqlx::query("SELECT 1 FROM pg_collation WHERE collname = 'und-x-icu'")
        .fetch_optional(&mut *connection)
        .await?;
    Ok(if found.is_some() { "lower(content COLLATE \"und-x-icu\")" } else { "content" })
}

pub(super) async fn read(
    connection: &mut AnyConnection,
    name: &str,
) -> Result<Option<String>, Error> {
    let row = sqlx::query("SELECT value FROM meta WHERE name = $1")
        .bind(name.to_owned())
        .fetch_optional(&mut *connection)
        .await?;
    Ok(row.map(|row| row.try_get::<String, _>(0)).transpose()?)
}

pub(super) async fn write(
    connection: &mut AnyConnection,
    name: &str,
    value: &str,
) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO meta (name, value) VALUES ($1, $2) \
         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    )
    .bind(name.to_owned())
    .bind(value.to_owned())
    .execute(&mut *connection)
    .await?;
    Ok(())
}

/// Tables in the order in which they are copied, with their columns. `number` counts anew.
pub(super) const TABLES: &[(&str, &[(&str, ColumnKind)])] = {
    use ColumnKind::{Number as N, Text as T};
    &[
        (
            "agents",
            &[
                ("id", T),
                ("email", T),
                ("name", T),
                ("role", T),
                ("capacity", N),
                ("skills", T),
                ("disabled", N),
                ("password", T),
                ("totp", T),
                ("totp_pending", T),
                ("totp_used", N),
                ("recovery", T),
                ("invite", T),
                ("invite_until_ms", N),
                ("chosen", T),
                ("chosen_until_ms", N),
                ("created_ms", N),
            ],
        ),
        ("teams", &[("id", T), ("name", T), ("hours", T), ("created_ms", N)]),
        ("team_members", &[("team_id", T), ("agent_id", T)]),
        (
            "visitors",
            &[
                ("id", T),
                ("name", T),
                ("email", T),
                ("verified", N),
                ("notes", T),
                ("attributes", T),
                ("page_url", T),
                ("locale", T),
                ("created_ms", N),
                ("seen_ms", N),
            ],
        ),
        (
            "conversations",
            &[
                ("id", T),
                ("visitor_id", T),
                ("status", T),
                ("priority", T),
                ("subject", T),
                ("tags", T),
                ("channel", T),
                ("team_id", T),
                ("skills", T),
                ("assignee", T),
                ("assign_no", N),
                ("last_agent", T),
                ("missed", T),
                ("bot", N),
                ("waiting_ms", N),
                ("queued_ms", N),
                ("last_seq", N),
                ("event_no", N),
                ("last_message_ms", N),
                ("last_preview", T),
                ("last_role", T),
                ("agent_read_seq", N),
                ("visitor_read_seq", N),
                ("unread_agent", N),
                ("unread_visitor", N),
                ("mentions", T),
                ("snooze_ms", N),
                ("sla_due_ms", N),
                ("sla_kind", T),
                ("sla_state", T),
                ("first_reply_ms", N),
                ("rating", N),
                ("rating_comment", T),
                ("created_ms", N),
                ("assigned_ms", N),
                ("resolved_ms", N),
                ("version", N),
                ("merged_into", T),
            ],
        ),
        (
            "messages",
            &[
                ("id", T),
                ("conversation_id", T),
                ("seq", N),
                ("client_id", T),
                ("sender_role", T),
                ("sender_id", T),
                ("sender_name", T),
                ("type", T),
                ("content", T),
                ("attachments", T),
                ("created_ms", N),
                ("edited_ms", N),
                ("deleted", N),
            ],
        ),
        ("outbox", &[("conversation_id", T), ("event_no", N), ("body", T), ("created_ms", N)]),
        (
            "replies",
            &[
                ("conversation_id", T),
                ("seq", N),
                ("agent_id", T),
                ("first", N),
                ("waited_ms", N),
                ("at_ms", N),
                ("in_time", N),
            ],
        ),
        (
            "resolutions",
            &[("conversation_id", T), ("at_ms", N), ("agent_id", T), ("handled_ms", N)],
        ),
        ("canned", &[("id", T), ("short_code", T), ("content", T), ("created_ms", N)]),
        (
            "files",
            &[
                ("id", T),
                ("hash", T),
                ("name", T),
                ("mime", T),
                ("size", N),
                ("owner", T),
                ("conversation_id", T),
                ("seq", N),
                ("created_ms", N),
            ],
        ),
        (
            "outgoing",
            &[
                ("kind", T),
                ("target", T),
                ("conversation_id", T),
                ("body", T),
                ("due_ms", N),
                ("attempts", N),
                ("state", T),
                ("error", T),
                ("created_ms", N),
                ("dedup", T),
            ],
        ),
        (
            "push_subscriptions",
            &[
                ("endpoint", T),
                ("agent_id", T),
                ("session_id", T),
                ("p256dh", T),
                ("auth", T),
                ("created_ms", N),
            ],
        ),
        ("secrets", &[("name", T), ("value", T)]),
    ]
};

/// The kind of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnKind {
    Text,
    Number,
}

#[cfg(test)]
mod tests {
    use sqlx::Connection;

    use super::*;
    use crate::archive::{Archive, ArchivePlace, ArchiveSync};

    /// Brings the tables of a version up to date, with what is in them; returns a description of what is there then.
    async fn upgraded(place: &ArchivePlace, dialect: Dialect, version: usize) -> Vec<String> {
        let mut old = AnyConnection::connect(&place.url()).await.unwrap();
        if version > 0 {
            let folded = match dialect {
                Dialect::Sqlite => "content",
                Dialect::Postgres => folded(&mut old).await.unwrap(),
            };
            old.execute("CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
                .await
                .unwrap();
            for step in &STEPS[..version] {
                apply(&mut old, dialect, step, folded).await.unwrap();
            }
            write(&mut old, "schema", &version.to_string()).await.unwrap();
            write(&mut old, "archive_id", "kept").await.unwrap();
            for row in [
                "INSERT INTO visitors (id, verified, notes, attributes, created_ms, seen_ms) \
                 VALUES ('v', 0, 'kept', '{}', 1, 1)",
                "INSERT INTO agents (id, email, name, role, capacity, skills, disabled, totp_used, recovery, chosen, \
                 created_ms) VALUES ('agt_1', 'a@example.org', 'kept', 'agent', 5, '', 0, 0, '[]', 'busy', 1)",
            ] {
                old.execute(row).await.unwrap();
            }
        }
        old.close().await.unwrap();
        let archive = Archive::open(place, ArchiveSync::Never).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        assert!(archive.inspect(folder.path()).await.unwrap().is_sound(), "{version}");
        let texts = async |sql: &'static str| -> Vec<String> {
            let rows = sqlx::query(sql).fetch_all(archive.readers()).await.unwrap();
            rows.iter().map(|row| row.try_get::<String, _>(0).unwrap()).collect()
        };
        if version > 0 {
            assert_eq!(archive.id(), "kept");
            let rows = texts("SELECT notes FROM visitors UNION ALL SELECT name FROM agents").await;
            assert_eq!(rows, ["kept", "kept"], "{version}");
        }
        texts(match dialect {
            Dialect::Sqlite => {
                "SELECT type || ' ' || name || ' ' || COALESCE(sql, '') FROM sqlite_master ORDER BY 1"
            }
            Dialect::Postgres => {
                "SELECT CAST(table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable AS TEXT) AS part \
                 FROM information_schema.columns WHERE table_schema = 'public' \
                 UNION ALL SELECT CAST(indexdef AS TEXT) FROM pg_indexes WHERE schemaname = 'public' ORDER BY part"
            }
        })
        .await
    }

    /// Every version of the tables comes up to date, and they are what a new archive has.
    #[tokio::test]
    async fn tables_of_every_version_are_brought_up_to_date() {
        sqlx::any::install_default_drivers();
        let folder = tempfile::tempdir().unwrap();
        let mut described = Vec::new();
        for version in 0..=STEPS.len() {
            let place = ArchivePlace::Sqlite(folder.path().join(format!("{version}.sqlite3")));
            described.push(upgraded(&place, Dialect::Sqlite, version).await);
        }
        assert!(described.windows(2).all(|pair| pair[0] == pair[1]), "{described:?}");
    }

    /// The same on Postgres, with a database for each version.
    #[tokio::test]
    async fn tables_of_every_version_are_brought_up_to_date_on_postgres() {
        if testkit::is_left_out("postgres") {
            return;
        }
        sqlx::any::install_default_drivers();
        let server = testkit::PostgresServer::start();
        let mut described = Vec::new();
        for version in 0..=STEPS.len() {
            let mut admin = AnyConnection::connect(&server.url()).await.unwrap();
            let made = format!("CREATE DATABASE v{version}");
            sqlx::raw_sql(sqlx::AssertSqlSafe(made)).execute(&mut admin).await.unwrap();
            admin.close().await.unwrap();
            let url = server.url();
            let (start, _) = url.rsplit_once('/').unwrap();
            let place = ArchivePlace::Postgres(format!("{start}/v{version}"));
            described.push(upgraded(&place, Dialect::Postgres, version).await);
        }
        assert!(described.windows(2).all(|pair| pair[0] == pair[1]), "{described:?}");
        assert!(described[0].iter().any(|part| part.starts_with("agents.chosen_until_ms")));
    }

    /// A move copies every table that there is.
    #[tokio::test]
    async fn every_table_is_copied() {
        let (archive, _folder) = Archive::open_new().await;
        let columns = "SELECT m.name AS owner, c.name AS name FROM sqlite_master m JOIN pragma_table_info(m.name) c \
                       WHERE m.type = 'table' AND m.name NOT LIKE 'messages_text%' AND m.name NOT LIKE 'sqlite_%' \
                       AND m.name <> 'meta' AND c.name <> 'number'";
        for row in sqlx::query(columns).fetch_all(archive.readers()).await.unwrap() {
            let (table, column): (String, String) =
                (row.try_get("owner").unwrap(), row.try_get("name").unwrap());
            let copied = TABLES.iter().find(|(name, _)| *name == table);
            let copied = copied.unwrap_or_else(|| panic!("{table} is not copied"));
            assert!(
                copied.1.iter().any(|(name, _)| *name == column),
                "{table}.{column} is not copied"
            );
        }
    }
}
