//! Conversations, messages and visitors: rows of the archive, and their JSON.
//!
//! The JSON here is stored: in the list of messages that other programs read, and in the stream of
//! live events. Answers of the API have the same shape, so that a client needs one reader.

use std::collections::HashMap;

use serde_json::{Value, json};
use sqlx::{AnyConnection, any::AnyRow};
use store::Millis;

use crate::{
    AgentId, ConversationId, Error, TeamId, UserId,
    archive::{number_of, statement::Statement, text_of},
};

/// Most conversations that one query loads.
const LOADED_TOGETHER_MOST: usize = 64;

/// Makes an enum whose values are stored and shown as words.
macro_rules! chat_words {
    ($(#[$meta:meta])* $name:ident, $field:literal { $($(#[$doc:meta])* $value:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$doc])* $value,)* }

        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$value,)*];

            /// Returns the word.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$value => $word,)* }
            }

            /// Parses the word.
            pub fn parse(text: &str) -> Result<Self, Error> {
                match text {
                    $($word => Ok($name::$value),)*
                    _ => Err(Error::invalid($field, format!("use one of {}", [$($word),*].join(", ")))),
                }
            }
        }
    };
}
pub(crate) use chat_words;

chat_words! {
    /// Status of a conversation.
    ConversationStatus, "status" {
        /// Somebody deals with it, or it waits for somebody.
        Open = "open",
        /// Snoozed, or left while nobody was there.
        Pending = "pending",
        /// Done.
        Resolved = "resolved",
    }
}

chat_words! {
    /// The way a conversation came.
    ConversationChannel, "channel" {
        /// The visitor began it in the widget, or on its full page.
        Widget = "widget",
        /// The visitor left a message while nobody was there.
        Offline = "offline",
        /// An agent or a program began it.
        Api = "api",
        /// It was imported.
        Import = "import",
    }
}

chat_words! {
    /// Priority of a conversation.
    ChatPriority, "priority" {
        /// Before all others.
        Urgent = "urgent",
        /// Before normal ones.
        High = "high",
        /// As most are.
        Normal = "normal",
        /// After all others.
        Low = "low",
    }
}

chat_words! {
    /// The one who wrote a message.
    SenderRole, "sender_role" {
        /// The visitor.
        User = "user",
        /// An agent.
        Admin = "admin",
        /// The desk.
        System = "system",
        /// A program.
        Bot = "bot",
    }
}

chat_words! {
    /// Kind of a message.
    MessageType, "type" {
        /// Text, with files or without.
        Text = "text",
        /// For agents only.
        Note = "note",
        /// Told by the desk: somebody came, left, or the visitor is back in the queue.
        Event = "event",
    }
}

impl ChatPriority {
    /// Returns its rank in scores: 4 for urgent, 1 for low.
    pub fn rank(self) -> i64 {
        match self {
            Self::Urgent => 4,
            Self::High => 3,
            Self::Normal => 2,
            Self::Low => 1,
        }
    }
}

/// 10¹³: later than any time in milliseconds until the year 2286.
const SCORE_STEP: i64 = 10_000_000_000_000;

/// Returns the score of a conversation of this rank that waits since then: the highest rank first,
/// then the longest waiting. Exact in a double.
pub fn urgency_score(rank: i64, since: Millis) -> i64 {
    rank * SCORE_STEP + (SCORE_STEP - since.0.clamp(0, SCORE_STEP))
}

/// A time as JSON has it.
pub fn rfc3339(at: Millis) -> String {
    match jiff::Timestamp::from_millisecond(at.0) {
        Ok(at) => format!("{at:.3}"),
        Err(_) => String::new(),
    }
}

pub(crate) fn time_or_null(at: Option<Millis>) -> Value {
    at.map_or(Value::Null, |at| Value::String(rfc3339(at)))
}

/// A conversation.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are described with the JSON, in docs/desk.md")]
pub struct Conversation {
    pub id: ConversationId,
    pub visitor: ChatVisitor,
    pub status: ConversationStatus,
    pub priority: ChatPriority,
    pub subject: Option<String>,
    pub tags: Vec<String>,
    pub channel: String,
    pub team: Option<TeamId>,
    pub skills: Vec<String>,
    pub assignee: Option<AgentId>,
    pub assign_no: i64,
    pub last_agent: Option<AgentId>,
    pub missed: Vec<String>,
    pub bot: bool,
    pub waiting_since: Option<Millis>,
    pub queued_since: Option<Millis>,
    pub last_seq: i64,
    pub event_no: i64,
    pub last_message_at: Millis,
    pub last_preview: String,
    pub last_role: String,
    pub agent_read_seq: i64,
    pub visitor_read_seq: i64,
    pub unread_agent: i64,
    pub unread_visitor: i64,
    pub mentions: Vec<String>,
    pub wakes_at: Option<Millis>,
    pub sla_due_at: Option<Millis>,
    pub sla_kind: Option<String>,
    pub sla_state: String,
    pub first_reply_at: Option<Millis>,
    pub rating: Option<i64>,
    pub rating_comment: Option<String>,
    pub created_at: Millis,
    pub assigned_at: Option<Millis>,
    pub resolved_at: Option<Millis>,
    pub version: i64,
    pub merged_into: Option<ConversationId>,
}

/// The person who asks.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are described with the JSON, in docs/desk.md")]
pub struct ChatVisitor {
    pub id: UserId,
    pub name: Option<String>,
    pub email: Option<String>,
    pub verified: bool,
    pub notes: String,
    pub attributes: Value,
    pub page_url: Option<String>,
    pub locale: Option<String>,
    pub created_at: Millis,
    pub seen_at: Millis,
}

/// Columns of a conversation together with its visitor.
pub(crate) const CONVERSATION_SELECT: &str = "SELECT c.*, v.name AS visitor_name, \
    v.email AS visitor_email, v.verified AS visitor_verified, v.notes AS visitor_notes, \
    v.attributes AS visitor_attributes, v.page_url AS visitor_page_url, v.locale AS visitor_locale, \
    v.created_ms AS visitor_created_ms, v.seen_ms AS visitor_seen_ms \
    FROM conversations c LEFT JOIN visitors v ON v.id = c.visitor_id";

/// Tells agents' names; those of agents who are gone stay unknown.
pub trait AgentNames: Send + Sync {
    /// Returns the name of an agent.
    fn name_of(&self, agent: &AgentId) -> Option<String>;

    /// Tells whether an agent has a browser that takes notifications.
    fn has_push(&self, _agent: &AgentId) -> bool {
        false
    }
}

impl Conversation {
    /// Tells whether it needs an agent as long as it has none.
    pub fn needs_agent(&self) -> bool {
        self.status == ConversationStatus::Open && !self.bot && self.queued_since.is_some()
    }

    /// Returns its score among those that wait for an agent, without ageing.
    pub(crate) fn queue_score(&self) -> Option<i64> {
        let since = self.waiting_since.or(self.queued_since)?;
        self.needs_agent().then(|| urgency_score(self.priority.rank(), since))
    }

    /// Returns its score among the unread ones.
    pub(crate) fn unread_score(&self) -> Option<i64> {
        let is_unread =
            self.status == ConversationStatus::Open && !self.bot && self.unread_agent > 0;
        let since = self.waiting_since.unwrap_or(self.last_message_at);
        is_unread.then(|| urgency_score(self.priority.rank(), since))
    }

    /// Returns the text of its tag for caches.
    pub fn etag(&self) -> String {
        format!("\"v{}\"", self.version)
    }

    fn assignee_json(&self, names: &dyn AgentNames) -> Value {
        match &self.assignee {
            Some(agent) => json!({ "id": agent.as_str(), "name": names.name_of(agent) }),
            None => Value::Null,
        }
    }

    /// Returns the JSON that the visitor may see.
    pub fn visitor_json(&self, names: &dyn AgentNames) -> Value {
        json!({
            "id": self.id.as_str(),
            "status": self.status.as_str(),
            "queue_state": self.queue_state(),
            "subject": self.subject,
            "assignee": self.assignee_json(names),
            "bot": self.bot,
            "last_seq": self.last_seq,
            "unread_visitor": self.unread_visitor,
            "agent_read_seq": self.agent_read_seq,
            "visitor_read_seq": self.visitor_read_seq,
            "last_message_at": rfc3339(self.last_message_at),
            "rating": self.rating,
            "created_at": rfc3339(self.created_at),
            "resolved_at": time_or_null(self.resolved_at),
            "merged_into": self.merged_into.as_ref().map(ConversationId::as_str),
            "version": self.version,
        })
    }

    /// Returns the JSON that agents see.
    pub fn agent_json(&self, names: &dyn AgentNames) -> Value {
        let mut json = self.visitor_json(names);
        let more = json!({
            "priority": self.priority.as_str(),
            "tags": self.tags,
            "channel": self.channel,
            "team_id": self.team.as_ref().map(TeamId::as_str),
            "skills": self.skills,
            "visitor": {
                "id": self.visitor.id.as_str(),
                "name": self.visitor.name,
                "email": self.visitor.email,
                "verified": self.visitor.verified,
                "page_url": self.visitor.page_url,
                "locale": self.visitor.locale,
            },
            "waiting_since": time_or_null(self.waiting_since),
            "unread_agent": self.unread_agent,
            "last_message": { "preview": self.last_preview, "sender_role": self.last_role },
            "mentions": self.mentions,
            "wakes_at": time_or_null(self.wakes_at),
            "sla": {
                "kind": self.sla_kind,
                "due_at": time_or_null(self.sla_due_at),
                "state": self.sla_state,
            },
            "first_reply_at": time_or_null(self.first_reply_at),
            "rating_comment": self.rating_comment,
            "assigned_at": time_or_null(self.assigned_at),
        });
        if let (Value::Object(json), Value::Object(more)) = (&mut json, more) {
            json.extend(more);
        }
        json
    }

    /// Returns `waiting`, `assigned` or `idle` (assigned or not, nothing unanswered).
    pub fn queue_state(&self) -> &'static str {
        match (&self.assignee, self.needs_agent(), self.waiting_since) {
            (None, true, _) => "waiting",
            (Some(_), _, Some(_)) => "assigned",
            _ => "idle",
        }
    }

    pub(crate) fn read(row: &AnyRow) -> Result<Self, Error> {
        let text = |column: &str| text_of(row, column);
        let must = |column: &str| Ok::<_, Error>(text_of(row, column)?.unwrap_or_default());
        let number = |column: &str| Ok::<_, Error>(number_of(row, column)?.unwrap_or(0));
        let time = |column: &str| Ok::<_, Error>(number_of(row, column)?.map(Millis));
        Ok(Self {
            id: ConversationId::parse(&must("id")?)?,
            visitor: ChatVisitor {
                id: UserId::parse(&must("visitor_id")?)?,
                name: text("visitor_name")?,
                email: text("visitor_email")?,
                verified: number("visitor_verified")? != 0,
                notes: must("visitor_notes")?,
                attributes: object(&must("visitor_attributes")?),
                page_url: text("visitor_page_url")?,
                locale: text("visitor_locale")?,
                created_at: Millis(number("visitor_created_ms")?),
                seen_at: Millis(number("visitor_seen_ms")?),
            },
            status: ConversationStatus::parse(&must("status")?)?,
            priority: ChatPriority::parse(&must("priority")?)?,
            subject: text("subject")?,
            tags: list(&must("tags")?),
            channel: must("channel")?,
            team: text("team_id")?.map(|id| TeamId::parse(&id)).transpose()?,
            skills: list(&must("skills")?),
            assignee: text("assignee")?.map(|id| AgentId::parse(&id)).transpose()?,
            assign_no: number("assign_no")?,
            last_agent: text("last_agent")?.map(|id| AgentId::parse(&id)).transpose()?,
            missed: list(&must("missed")?),
            bot: number("bot")? != 0,
            waiting_since: time("waiting_ms")?,
            queued_since: time("queued_ms")?,
            last_seq: number("last_seq")?,
            event_no: number("event_no")?,
            last_message_at: Millis(number("last_message_ms")?),
            last_preview: must("last_preview")?,
            last_role: must("last_role")?,
            agent_read_seq: number("agent_read_seq")?,
            visitor_read_seq: number("visitor_read_seq")?,
            unread_agent: number("unread_agent")?,
            unread_visitor: number("unread_visitor")?,
            mentions: list(&must("mentions")?),
            wakes_at: time("snooze_ms")?,
            sla_due_at: time("sla_due_ms")?,
            sla_kind: text("sla_kind")?,
            sla_state: must("sla_state")?,
            first_reply_at: time("first_reply_ms")?,
            rating: number_of(row, "rating")?,
            rating_comment: text("rating_comment")?,
            created_at: Millis(number("created_ms")?),
            assigned_at: time("assigned_ms")?,
            resolved_at: time("resolved_ms")?,
            version: number("version")?,
            merged_into: text("merged_into")?.map(|id| ConversationId::parse(&id)).transpose()?,
        })
    }

    /// Loads a conversation inside a change.
    pub(crate) async fn load(tx: &mut AnyConnection, id: &ConversationId) -> Result<Self, Error> {
        let sql = const_format_select();
        let row = sqlx::query(sql).bind(id.as_str().to_owned()).fetch_optional(&mut *tx).await?;
        row.map_or(Err(Error::NotFound { what: "conversation" }), |row| Self::read(&row))
    }

    /// Loads conversations inside a change; those that are not there are left out.
    pub(crate) async fn load_many(
        tx: &mut AnyConnection,
        ids: &[&ConversationId],
    ) -> Result<HashMap<ConversationId, Self>, Error> {
        let mut found = HashMap::with_capacity(ids.len());
        for ids in ids.chunks(LOADED_TOGETHER_MOST) {
            // Each number of places is prepared and kept by itself: the last id fills up to a power of two.
            let places = ids.len().next_power_of_two();
            let list: Vec<String> = (1..=places).map(|place| format!("${place}")).collect();
            let sql = format!("{CONVERSATION_SELECT} WHERE c.id IN ({})", list.join(", "));
            let mut query = sqlx::query(sqlx::AssertSqlSafe(sql));
            for place in 0..places {
                let id = ids[place.min(ids.len() - 1)];
                query = query.bind(id.as_str().to_owned());
            }
            for row in query.fetch_all(&mut *tx).await? {
                let conversation = Self::read(&row)?;
                found.insert(conversation.id.clone(), conversation);
            }
        }
        Ok(found)
    }

    /// Loads it inside a change together with the id of its message that has this client id.
    pub(crate) async fn load_with_message(
        tx: &mut AnyConnection,
        id: &ConversationId,
        client_id: Option<&str>,
    ) -> Result<(Self, Option<String>), Error> {
        let sql = format!(
            "SELECT m.id AS message_id, k.* FROM ({CONVERSATION_SELECT} WHERE c.id = $1) AS k \
             LEFT JOIN messages m ON m.conversation_id = k.id AND m.client_id = $2"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(id.as_str().to_owned())
            .bind(client_id.map(str::to_owned))
            .fetch_optional(&mut *tx)
            .await?;
        let row = row.ok_or(Error::NotFound { what: "conversation" })?;
        Ok((Self::read(&row)?, text_of(&row, "message_id")?))
    }

    /// Returns the statement that writes all of it back.
    pub(crate) fn update(&self) -> Statement {
        self.bind(Statement::new(
            "UPDATE conversations SET visitor_id = $2, status = $3, priority = $4, subject = $5, \
             tags = $6, channel = $7, team_id = $8, skills = $9, assignee = $10, assign_no = $11, \
             last_agent = $12, missed = $13, bot = $14, waiting_ms = $15, queued_ms = $16, \
             last_seq = $17, event_no = $18, last_message_ms = $19, last_preview = $20, \
             last_role = $21, agent_read_seq = $22, visitor_read_seq = $23, unread_agent = $24, \
             unread_visitor = $25, mentions = $26, snooze_ms = $27, sla_due_ms = $28, sla_kind = $29, \
             sla_state = $30, first_reply_ms = $31, rating = $32, rating_comment = $33, \
             created_ms = $34, assigned_ms = $35, resolved_ms = $36, version = $37, \
             merged_into = $38 WHERE id = $1",
        ))
    }

    /// Returns the statement that inserts it.
    pub(crate) fn insert(&self) -> Statement {
        self.bind(Statement::new(
            "INSERT INTO conversations (id, visitor_id, status, priority, subject, tags, channel, \
             team_id, skills, assignee, assign_no, last_agent, missed, bot, waiting_ms, queued_ms, \
             last_seq, event_no, last_message_ms, last_preview, last_role, agent_read_seq, \
             visitor_read_seq, unread_agent, unread_visitor, mentions, snooze_ms, sla_due_ms, \
             sla_kind, sla_state, first_reply_ms, rating, rating_comment, created_ms, assigned_ms, \
             resolved_ms, version, merged_into) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, \
             $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, \
             $31, $32, $33, $34, $35, $36, $37, $38)",
        ))
    }

    fn bind(&self, statement: Statement) -> Statement {
        let millis = |at: Option<Millis>| at.map(|at| at.0);
        let own = |text: &str| text.to_owned();
        statement
            .bind(self.id.as_str())
            .bind(self.visitor.id.as_str())
            .bind(self.status.as_str())
            .bind(self.priority.as_str())
            .bind(self.subject.clone())
            .bind(json_list(&self.tags))
            .bind(self.channel.clone())
            .bind(self.team.as_ref().map(|id| own(id.as_str())))
            .bind(json_list(&self.skills))
            .bind(self.assignee.as_ref().map(|id| own(id.as_str())))
            .bind(self.assign_no)
            .bind(self.last_agent.as_ref().map(|id| own(id.as_str())))
            .bind(json_list(&self.missed))
            .bind(i64::from(self.bot))
            .bind(millis(self.waiting_since))
            .bind(millis(self.queued_since))
            .bind(self.last_seq)
            .bind(self.event_no)
            .bind(self.last_message_at.0)
            .bind(self.last_preview.clone())
            .bind(self.last_role.clone())
            .bind(self.agent_read_seq)
            .bind(self.visitor_read_seq)
            .bind(self.unread_agent)
            .bind(self.unread_visitor)
            .bind(json_list(&self.mentions))
            .bind(millis(self.wakes_at))
            .bind(millis(self.sla_due_at))
            .bind(self.sla_kind.clone())
            .bind(self.sla_state.clone())
            .bind(millis(self.first_reply_at))
            .bind(self.rating)
            .bind(self.rating_comment.clone())
            .bind(self.created_at.0)
            .bind(millis(self.assigned_at))
            .bind(millis(self.resolved_at))
            .bind(self.version)
            .bind(self.merged_into.as_ref().map(|id| own(id.as_str())))
    }
}

fn const_format_select() -> sqlx::AssertSqlSafe<String> {
    sqlx::AssertSqlSafe(format!("{CONVERSATION_SELECT} WHERE c.id = $1"))
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are described with the JSON, in docs/desk.md")]
pub struct Message {
    pub id: String,
    pub conversation: ConversationId,
    pub seq: i64,
    pub client_id: Option<String>,
    pub sender_role: SenderRole,
    pub sender_id: Option<String>,
    pub sender_name: Option<String>,
    pub kind: MessageType,
    pub content: String,
    pub attachments: Vec<Value>,
    pub created_at: Millis,
    pub edited_at: Option<Millis>,
    pub deleted: bool,
}

pub(crate) const MESSAGE_SELECT: &str = "SELECT id, conversation_id, seq, client_id, sender_role, \
    sender_id, sender_name, type, content, attachments, created_ms, edited_ms, deleted FROM messages";

impl Message {
    /// Returns true for what visitors must not see.
    pub fn is_note(&self) -> bool {
        self.kind == MessageType::Note
    }

    /// Returns its JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "conversation_id": self.conversation.as_str(),
            "seq": self.seq,
            "client_id": self.client_id,
            "sender_role": self.sender_role.as_str(),
            "sender": { "id": self.sender_id, "name": self.sender_name },
            "type": self.kind.as_str(),
            "content": if self.deleted { "" } else { &self.content },
            "attachments": if self.deleted { Vec::new() } else { self.attachments.clone() },
            "created_at": rfc3339(self.created_at),
            "edited_at": time_or_null(self.edited_at),
            "deleted": self.deleted,
        })
    }

    /// Returns the JSON for the list that other programs read: with the time under the name that its
    /// schema has.
    pub(crate) fn cached_json(&self) -> String {
        let mut json = self.to_json();
        if let Value::Object(fields) = &mut json {
            fields.insert("timestamp".to_owned(), Value::String(rfc3339(self.created_at)));
        }
        json.to_string()
    }

    pub(crate) fn read(row: &AnyRow) -> Result<Self, Error> {
        let must = |column: &str| Ok::<_, Error>(text_of(row, column)?.unwrap_or_default());
        let number = |column: &str| Ok::<_, Error>(number_of(row, column)?.unwrap_or(0));
        Ok(Self {
            id: must("id")?,
            conversation: ConversationId::parse(&must("conversation_id")?)?,
            seq: number("seq")?,
            client_id: text_of(row, "client_id")?,
            sender_role: SenderRole::parse(&must("sender_role")?)?,
            sender_id: text_of(row, "sender_id")?,
            sender_name: text_of(row, "sender_name")?,
            kind: MessageType::parse(&must("type")?)?,
            content: must("content")?,
            attachments: serde_json::from_str(&must("attachments")?).unwrap_or_default(),
            created_at: Millis(number("created_ms")?),
            edited_at: number_of(row, "edited_ms")?.map(Millis),
            deleted: number("deleted")? != 0,
        })
    }

    /// Returns the statement that inserts it.
    pub(crate) fn insert(&self) -> Statement {
        Statement::new(
            "INSERT INTO messages (id, conversation_id, seq, client_id, sender_role, sender_id, \
             sender_name, type, content, attachments, created_ms, edited_ms, deleted) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
        )
        .bind(self.id.clone())
        .bind(self.conversation.as_str())
        .bind(self.seq)
        .bind(self.client_id.clone())
        .bind(self.sender_role.as_str())
        .bind(self.sender_id.clone())
        .bind(self.sender_name.clone())
        .bind(self.kind.as_str())
        .bind(self.content.clone())
        .bind(Value::Array(self.attachments.clone()).to_string())
        .bind(self.created_at.0)
        .bind(self.edited_at.map(|at| at.0))
        .bind(i64::from(self.deleted))
    }

    /// Loads a message by one of its names inside a change.
    pub(crate) async fn load(
        tx: &mut AnyConnection,
        conversation: &ConversationId,
        column: &'static str,
        value: &str,
    ) -> Result<Option<Self>, Error> {
        let sql = format!("{MESSAGE_SELECT} WHERE conversation_id = $1 AND {column} = $2");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(conversation.as_str().to_owned())
            .bind(value.to_owned())
            .fetch_optional(&mut *tx)
            .await?;
        row.map(|row| Self::read(&row)).transpose()
    }
}

impl ChatVisitor {
    /// Returns the JSON that agents see.
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id.as_str(),
            "name": self.name,
            "email": self.email,
            "verified": self.verified,
            "notes": self.notes,
            "attributes": self.attributes,
            "page_url": self.page_url,
            "locale": self.locale,
            "created_at": rfc3339(self.created_at),
            "seen_at": rfc3339(self.seen_at),
        })
    }

    pub(crate) fn read(row: &AnyRow) -> Result<Self, Error> {
        let must = |column: &str| Ok::<_, Error>(text_of(row, column)?.unwrap_or_default());
        let number = |column: &str| Ok::<_, Error>(number_of(row, column)?.unwrap_or(0));
        Ok(Self {
            id: UserId::parse(&must("id")?)?,
            name: text_of(row, "name")?,
            email: text_of(row, "email")?,
            verified: number("verified")? != 0,
            notes: must("notes")?,
            attributes: object(&must("attributes")?),
            page_url: text_of(row, "page_url")?,
            locale: text_of(row, "locale")?,
            created_at: Millis(number("created_ms")?),
            seen_at: Millis(number("seen_ms")?),
        })
    }
}

pub(crate) fn list(text: &str) -> Vec<String> {
    serde_json::from_str(text).unwrap_or_default()
}

pub(crate) fn json_list(items: &[String]) -> String {
    Value::from(items.to_vec()).to_string()
}

pub(crate) fn object(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(value @ Value::Object(_)) => value,
        _ => json!({}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_higher_priority_is_first_and_then_the_longest_waiting() {
        let now = Millis(1_767_225_600_000);
        let earlier = Millis(now.0 - 5_000);
        for pair in ChatPriority::ALL.windows(2) {
            assert!(urgency_score(pair[0].rank(), now) > urgency_score(pair[1].rank(), Millis(1)));
            assert!(urgency_score(pair[0].rank(), earlier) > urgency_score(pair[0].rank(), now));
        }
        // The score of the schema's example, computed by this rule.
        assert_eq!(urgency_score(3, Millis(1_672_531_800_000)), 38_327_468_200_000);
        assert!(urgency_score(4, Millis(0)) < 1 << 53);
        // With the schema's sum a fresh `low` is above an `urgent` of 5 s ago.
        let sum = |weight: i64, at: Millis| weight + at.0;
        assert!(sum(1, now) > sum(1_000, earlier));
        assert!(urgency_score(1, now) < urgency_score(4, earlier));
    }

    #[test]
    fn times_have_milliseconds_and_words_are_read_as_written() {
        assert_eq!(rfc3339(Millis(1_767_225_600_000)), "2026-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(Millis(1_767_225_600_007)), "2026-01-01T00:00:00.007Z");
        for status in ConversationStatus::ALL {
            assert_eq!(ConversationStatus::parse(status.as_str()).unwrap(), *status);
        }
        assert!(ChatPriority::parse("Urgent").is_err());
    }
}
