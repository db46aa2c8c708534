//! Writes an archive, or everything about one person, as JSON lines.
//!
//! All of it is read from one snapshot, so that an export is consistent while chats go on. Memory holds one
//! page of rows and one file.

use std::{io::Write, path::Path};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Serialize;
use sqlx::{AnyConnection, AssertSqlSafe, Row};
use store::Millis;

use super::{
    ChatVisitor, Conversation, Message,
    agents::{Agent, read_canned, read_team},
    files::{self, ChatFile, file_path},
    lines::{
        AgentLine, CannedLine, ConversationLine, FileLine, HeaderLine, LINES_FORMAT, LINES_VERSION,
        LineTime, MessageLine, ReplyLine, ResolutionLine, SenderLine, SlaLine, TeamLine,
        VisitorLine, line_of,
    },
    record::{CONVERSATION_SELECT, MESSAGE_SELECT},
};
use crate::{AgentId, ConversationId, Error, TeamId, UserId, archive::Archive};

/// Rows read at a time.
const PAGE: i64 = 200;

/// The part of an archive that is exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportScope {
    /// Everything.
    All,
    /// Everything about one visitor.
    User(UserId),
}

/// Lines that were written, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are kinds of lines")]
pub struct ExportReport {
    pub agents: u64,
    pub teams: u64,
    pub canned: u64,
    pub visitors: u64,
    pub conversations: u64,
    pub messages: u64,
    pub files: u64,
    /// Files whose contents are lost.
    pub lost_files: u64,
}

/// Writes an archive as JSON lines. Passwords, second factors, undelivered events and mail are not in it.
///
/// # Errors
/// The archive cannot be read; the lines cannot be written.
pub async fn export_archive(
    archive: &Archive,
    folder: &Path,
    scope: &ExportScope,
    now: Millis,
    to: &mut (dyn Write + Send),
) -> Result<ExportReport, Error> {
    let connection = archive.snapshot(false).await?;
    let mut export = Export { connection, folder, to, report: ExportReport::default() };
    let user = match scope {
        ExportScope::All => None,
        ExportScope::User(id) => Some(id.to_string()),
    };
    let header = HeaderLine {
        format: LINES_FORMAT.to_owned(),
        version: LINES_VERSION,
        exported_at: Some(LineTime(now)),
        user: user.clone(),
    };
    export.put("header", &header)?;
    match user {
        None => {
            export.teams().await?;
            export.agents().await?;
            export.canned().await?;
            export.visitors().await?;
            export.conversations(None).await?;
            export.unsent_files(None).await?;
        }
        Some(user) => export.person(&user).await?,
    }
    export.to.flush().map_err(unwritten)?;
    Ok(export.report)
}

fn unwritten(error: std::io::Error) -> Error {
    Error::archive(format!("the export cannot be written: {error}"))
}

struct Export<'a> {
    connection: AnyConnection,
    folder: &'a Path,
    to: &'a mut (dyn Write + Send),
    report: ExportReport,
}

impl Export<'_> {
    fn put(&mut self, kind: &str, fields: &impl Serialize) -> Result<(), Error> {
        let line = line_of(kind, fields).map_err(|error| Error::archive(error.to_string()))?;
        self.to.write_all(line.as_bytes()).map_err(unwritten)
    }

    /// Writes a person with their conversations. Agents are in the messages, by their names.
    async fn person(&mut self, user: &str) -> Result<(), Error> {
        let row = sqlx::query("SELECT * FROM visitors WHERE id = $1")
            .bind(user.to_owned())
            .fetch_optional(&mut self.connection)
            .await?;
        if let Some(row) = row {
            self.visitor(&ChatVisitor::read(&row)?)?;
        }
        self.conversations(Some(user)).await?;
        self.unsent_files(Some(user)).await
    }

    async fn agents(&mut self) -> Result<(), Error> {
        let rows =
            sqlx::query("SELECT * FROM agents ORDER BY id").fetch_all(&mut self.connection).await?;
        for row in &rows {
            let agent = Agent::read(row)?;
            let members = sqlx::query(
                "SELECT team_id FROM team_members WHERE agent_id = $1 ORDER BY team_id",
            )
            .bind(agent.id.to_string())
            .fetch_all(&mut self.connection)
            .await?;
            let team_ids = members.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
            self.put(
                "agent",
                &AgentLine {
                    id: agent.id.to_string(),
                    email: agent.email,
                    name: agent.name,
                    role: agent.role.as_str().to_owned(),
                    capacity: Some(agent.capacity),
                    skills: agent.skills,
                    team_ids,
                    disabled: agent.disabled,
                    created_at: LineTime(agent.created_at),
                },
            )?;
            self.report.agents += 1;
        }
        Ok(())
    }

    async fn teams(&mut self) -> Result<(), Error> {
        let rows =
            sqlx::query("SELECT * FROM teams ORDER BY id").fetch_all(&mut self.connection).await?;
        for row in &rows {
            let team = read_team(row)?;
            let hours = team.hours.to_json().as_object().cloned().unwrap_or_default();
            let created_at = LineTime(team.created_at);
            let line = TeamLine { id: team.id.to_string(), name: team.name, hours, created_at };
            self.put("team", &line)?;
            self.report.teams += 1;
        }
        Ok(())
    }

    async fn canned(&mut self) -> Result<(), Error> {
        let rows =
            sqlx::query("SELECT id, short_code, content, created_ms FROM canned ORDER BY id")
                .fetch_all(&mut self.connection)
                .await?;
        for row in &rows {
            let canned = read_canned(row)?;
            self.put(
                "canned",
                &CannedLine {
                    id: canned.id,
                    short_code: canned.short_code,
                    content: canned.content,
                    created_at: LineTime(canned.created_at),
                },
            )?;
            self.report.canned += 1;
        }
        Ok(())
    }

    async fn visitors(&mut self) -> Result<(), Error> {
        let mut after = String::new();
        loop {
            let rows = sqlx::query("SELECT * FROM visitors WHERE id > $1 ORDER BY id LIMIT $2")
                .bind(after.clone())
                .bind(PAGE)
                .fetch_all(&mut self.connection)
                .await?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = last.try_get("id")?;
            for row in &rows {
                self.visitor(&ChatVisitor::read(row)?)?;
            }
        }
    }

    fn visitor(&mut self, visitor: &ChatVisitor) -> Result<(), Error> {
        self.report.visitors += 1;
        self.put(
            "visitor",
            &VisitorLine {
                id: visitor.id.to_string(),
                name: visitor.name.clone(),
                email: visitor.email.clone(),
                verified: Some(visitor.verified),
                notes: visitor.notes.clone(),
                attributes: visitor.attributes.as_object().cloned().unwrap_or_default(),
                page_url: visitor.page_url.clone(),
                locale: visitor.locale.clone(),
                created_at: LineTime(visitor.created_at),
                seen_at: Some(LineTime(visitor.seen_at)),
            },
        )
    }

    async fn conversations(&mut self, user: Option<&str>) -> Result<(), Error> {
        let mut after = String::new();
        loop {
            let sql = format!(
                "{CONVERSATION_SELECT} WHERE c.id > $1 AND ($2 = '' OR c.visitor_id = $2) \
                 ORDER BY c.id LIMIT $3"
            );
            let rows = sqlx::query(AssertSqlSafe(sql))
                .bind(after.clone())
                .bind(user.unwrap_or_default().to_owned())
                .bind(PAGE)
                .fetch_all(&mut self.connection)
                .await?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = last.try_get("id")?;
            for row in &rows {
                self.conversation(&Conversation::read(row)?).await?;
            }
        }
    }

    async fn conversation(&mut self, one: &Conversation) -> Result<(), Error> {
        let time = |at: Option<Millis>| at.map(LineTime);
        let text = |id: &Option<AgentId>| id.as_ref().map(AgentId::to_string);
        let line = ConversationLine {
            id: one.id.to_string(),
            visitor_id: one.visitor.id.to_string(),
            status: one.status.as_str().to_owned(),
            priority: one.priority.as_str().to_owned(),
            subject: one.subject.clone(),
            tags: one.tags.clone(),
            channel: one.channel.clone(),
            team_id: one.team.as_ref().map(TeamId::to_string),
            skills: one.skills.clone(),
            assignee: text(&one.assignee),
            last_agent: text(&one.last_agent),
            missed: one.missed.clone(),
            bot: one.bot,
            waiting_since: Some(time(one.waiting_since)),
            queued_since: Some(time(one.queued_since)),
            agent_read_seq: Some(one.agent_read_seq),
            visitor_read_seq: Some(one.visitor_read_seq),
            mentions: one.mentions.clone(),
            wakes_at: time(one.wakes_at),
            sla: Some(SlaLine {
                kind: one.sla_kind.clone(),
                due_at: time(one.sla_due_at),
                state: one.sla_state.clone(),
            }),
            first_reply_at: time(one.first_reply_at),
            rating: one.rating,
            rating_comment: one.rating_comment.clone(),
            created_at: LineTime(one.created_at),
            assigned_at: time(one.assigned_at),
            resolved_at: time(one.resolved_at),
            merged_into: one.merged_into.as_ref().map(ConversationId::to_string),
            replies: self.replies(&one.id).await?,
            resolutions: self.resolutions(&one.id).await?,
        };
        self.put("conversation", &line)?;
        self.report.conversations += 1;
        self.messages(&one.id).await
    }

    async fn replies(&mut self, id: &ConversationId) -> Result<Vec<ReplyLine>, Error> {
        let rows = sqlx::query(
            "SELECT seq, agent_id, first, waited_ms, at_ms, in_time FROM replies \
             WHERE conversation_id = $1 ORDER BY seq",
        )
        .bind(id.to_string())
        .fetch_all(&mut self.connection)
        .await?;
        rows.iter()
            .map(|row| {
                Ok(ReplyLine {
                    seq: row.try_get("seq")?,
                    agent_id: row.try_get("agent_id")?,
                    first: row.try_get::<i64, _>("first")? != 0,
                    waited_ms: row.try_get("waited_ms")?,
                    at: LineTime(Millis(row.try_get("at_ms")?)),
                    in_time: row.try_get::<Option<i64>, _>("in_time")?.map(|kept| kept != 0),
                })
            })
            .collect()
    }

    async fn resolutions(&mut self, id: &ConversationId) -> Result<Vec<ResolutionLine>, Error> {
        let rows = sqlx::query(
            "SELECT at_ms, agent_id, handled_ms FROM resolutions WHERE conversation_id = $1 ORDER BY at_ms",
        )
        .bind(id.to_string())
        .fetch_all(&mut self.connection)
        .await?;
        rows.iter()
            .map(|row| {
                Ok(ResolutionLine {
                    at: LineTime(Millis(row.try_get("at_ms")?)),
                    agent_id: row.try_get("agent_id")?,
                    handled_ms: row.try_get("handled_ms")?,
                })
            })
            .collect()
    }

    async fn messages(&mut self, id: &ConversationId) -> Result<(), Error> {
        let mut after = 0_i64;
        loop {
            let sql = format!(
                "{MESSAGE_SELECT} WHERE conversation_id = $1 AND seq > $2 ORDER BY seq LIMIT $3"
            );
            let rows = sqlx::query(AssertSqlSafe(sql))
                .bind(id.to_string())
                .bind(after)
                .bind(PAGE)
                .fetch_all(&mut self.connection)
                .await?;
            if rows.is_empty() {
                return Ok(());
            }
            for row in &rows {
                let message = Message::read(row)?;
                after = message.seq;
                self.message(message).await?;
            }
        }
    }

    async fn message(&mut self, message: Message) -> Result<(), Error> {
        let attachments: Vec<String> = message
            .attachments
            .iter()
            .filter_map(|file| file["id"].as_str().map(str::to_owned))
            .collect();
        self.put(
            "message",
            &MessageLine {
                id: Some(message.id),
                conversation_id: message.conversation.to_string(),
                seq: Some(message.seq),
                client_id: message.client_id,
                sender_role: message.sender_role.as_str().to_owned(),
                sender: SenderLine { id: message.sender_id, name: message.sender_name },
                message_type: message.kind.as_str().to_owned(),
                content: message.content,
                created_at: LineTime(message.created_at),
                edited_at: message.edited_at.map(LineTime),
                deleted: message.deleted,
            },
        )?;
        self.report.messages += 1;
        for file in attachments {
            let row = sqlx::query("SELECT * FROM files WHERE id = $1")
                .bind(file)
                .fetch_optional(&mut self.connection)
                .await?;
            if let Some(row) = row {
                self.file(&row)?;
            }
        }
        Ok(())
    }

    /// Writes files that were uploaded and not sent: all, or those of a person.
    async fn unsent_files(&mut self, user: Option<&str>) -> Result<(), Error> {
        let rows = sqlx::query(
            "SELECT * FROM files WHERE conversation_id IS NULL AND ($1 = '' OR owner = $1) ORDER BY id",
        )
        .bind(user.unwrap_or_default().to_owned())
        .fetch_all(&mut self.connection)
        .await?;
        rows.iter().try_for_each(|row| self.file(row))
    }

    fn file(&mut self, row: &sqlx::any::AnyRow) -> Result<(), Error> {
        let file: ChatFile = files::read(row)?;
        let contents = std::fs::read(file_path(self.folder, &file.hash)).ok();
        self.report.lost_files += u64::from(contents.is_none());
        self.report.files += 1;
        self.put(
            "file",
            &FileLine {
                id: file.id,
                name: file.name,
                mime: Some(file.mime),
                size: Some(file.size),
                owner: file.owner,
                conversation_id: file.conversation.map(|id| id.to_string()),
                seq: row.try_get("seq")?,
                created_at: LineTime(Millis(row.try_get("created_ms")?)),
                data: contents.map(|bytes| STANDARD.encode(bytes)),
            },
        )
    }
}
