//! Messages: start a conversation, send, edit, delete, mark as read, show typing.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use sqlx::{AnyConnection, Row};
use store::Millis;

use super::{
    AgentNames, Chat, ChatOptions, ChatPriority, ChatVisitor, Conversation, ConversationChannel,
    ConversationStatus, Message, MessageType, SenderRole,
    agents::Roster,
    outbox::{ChatEvent, ConversationWrite, Delivery, MESSAGE_CREATED},
    outgoing, push, visitors,
};
use crate::{AgentId, ConversationId, Error, TeamId, UserId, archive::statement::execute_all, ids};

/// Most characters of a message.
pub(crate) const CONTENT_MOST: usize = 4_000;

/// Most files of a message.
const ATTACHMENTS_MOST: usize = 10;

/// Time within which a message may be edited and deleted.
const EDIT_TIME: Duration = Duration::from_secs(300);

/// Time after which typing ends by itself.
const TYPING_MS: i64 = 6_000;

/// Most open conversations of one visitor.
const OPEN_MOST: i64 = 1;

/// The one who writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The visitor.
    Visitor(UserId),
    /// An agent.
    Agent(AgentId),
    /// A program, under this name.
    Bot(String),
}

impl Sender {
    fn role(&self) -> SenderRole {
        match self {
            Self::Visitor(_) => SenderRole::User,
            Self::Agent(_) => SenderRole::Admin,
            Self::Bot(_) => SenderRole::Bot,
        }
    }

    fn id(&self) -> Option<String> {
        match self {
            Self::Visitor(id) => Some(id.to_string()),
            Self::Agent(id) => Some(id.to_string()),
            Self::Bot(_) => None,
        }
    }

    fn name(&self, visitor: &ChatVisitor, names: &Roster) -> Option<String> {
        match self {
            Self::Visitor(_) => visitor.name.clone(),
            Self::Agent(id) => names.name_of(id),
            Self::Bot(name) => Some(name.clone()),
        }
    }

    /// Refuses visitors of another conversation, as if it did not exist.
    pub(crate) fn check(&self, conversation: &Conversation) -> Result<(), Error> {
        match self {
            Self::Visitor(id) if *id != conversation.visitor.id => {
                Err(Error::NotFound { what: "conversation" })
            }
            _ => Ok(()),
        }
    }
}

/// A message to be sent.
#[derive(Clone, Debug)]
pub struct MessageDraft {
    /// The one who writes.
    pub sender: Sender,
    /// An id the client chose: sent again, it is the same message.
    pub client_id: Option<String>,
    /// For agents only.
    pub is_note: bool,
    /// The text, as written: 1 to 4,000 characters, or none with files.
    pub content: String,
    /// Ids of files the sender has uploaded.
    pub attachments: Vec<String>,
}

impl MessageDraft {
    /// A text.
    pub fn text(sender: Sender, content: &str) -> Self {
        Self {
            sender,
            client_id: None,
            is_note: false,
            content: content.to_owned(),
            attachments: Vec::new(),
        }
    }

    /// Refuses what no message can be.
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_content(&self.content, !self.attachments.is_empty())?;
        if self.attachments.len() > ATTACHMENTS_MOST {
            return Err(Error::invalid("attachments", "at most 10 files"));
        }
        check_client_id(self.client_id.as_deref())?;
        if self.is_note && !matches!(self.sender, Sender::Agent(_)) {
            return Err(Error::forbidden("NOT_ALLOWED", "only agents write notes"));
        }
        Ok(())
    }
}

pub(crate) fn check_client_id(client_id: Option<&str>) -> Result<(), Error> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match client_id {
        Some(id) if !(1..=64).contains(&id.len()) || !id.chars().all(is_plain) => {
            Err(Error::invalid("client_id", "1 to 64 characters of a-z, A-Z, 0-9, -, _ and ."))
        }
        _ => Ok(()),
    }
}

pub(crate) fn check_content(content: &str, may_be_empty: bool) -> Result<(), Error> {
    let characters = content.chars().count();
    if characters > CONTENT_MOST || content.contains('\0') {
        return Err(Error::invalid("content", "1 to 4,000 characters, none of them NUL"));
    }
    if content.trim().is_empty() && !may_be_empty {
        return Err(Error::invalid("content", "1 to 4,000 characters, not only spaces"));
    }
    Ok(())
}

/// A message that was sent.
#[derive(Clone, Debug)]
pub struct SentMessage {
    /// The message.
    pub message: Message,
    /// Its conversation: another one than it was sent to when that was resolved too long ago.
    pub conversation: Conversation,
    /// It had been sent before.
    pub is_repeated: bool,
}

/// A conversation to be started.
#[derive(Clone, Debug)]
pub struct NewConversation {
    /// The visitor.
    pub visitor: UserId,
    /// Its first message.
    pub message: MessageDraft,
    /// Priority.
    pub priority: ChatPriority,
    /// Subject.
    pub subject: Option<String>,
    /// Team that shall answer.
    pub team: Option<TeamId>,
    /// Skills that an agent must have.
    pub skills: Vec<String>,
    /// The way it comes.
    pub channel: ConversationChannel,
    /// A program answers first.
    pub bot: bool,
    /// Nobody is there: it is left for later.
    pub is_offline: bool,
}

impl Chat {
    /// Starts a conversation with its first message.
    ///
    /// # Errors
    /// `OPEN_CONVERSATION_EXISTS` when the visitor has one already; an invalid message.
    pub async fn start_conversation(&self, new: NewConversation) -> Result<SentMessage, Error> {
        new.message.check()?;
        check_line("subject", new.subject.as_deref(), 200)?;
        let roster = self.0.roster.load_full();
        if let Some(team) = &new.team
            && !roster.teams.contains_key(team)
        {
            return Err(Error::NotFound { what: "team" });
        }
        let (now, id) = (self.now(), ConversationId::fresh());
        let (new, options) = (Arc::new(new), self.options());
        let (sent, deliveries) = self
            .0
            .archive
            .write(move |tx| {
                let (new, roster) = (Arc::clone(&new), Arc::clone(&roster));
                let (id, options) = (id.clone(), Arc::clone(&options));
                Box::pin(async move {
                    if let Some(client_id) = &new.message.client_id
                        && let Some(sent) = find_repeated(tx, &new.visitor, client_id).await?
                    {
                        return Ok((sent, Vec::new()));
                    }
                    if let Sender::Visitor(visitor) = &new.message.sender {
                        refuse_second(tx, visitor).await?;
                    }
                    let visitor = visitors::load_or_insert(tx, &new.visitor, now).await?;
                    let conversation = fresh(&new, id, visitor, now);
                    append(tx, conversation, &new.message, &roster, &options, now, true).await
                })
            })
            .await?;
        self.publish(deliveries).await;
        metrics::counter!("tidegate_desk_conversations_total").increment(1);
        Ok(sent)
    }

    /// Sends a message. Returns after it is committed; sent again with the same `client_id`, it is the
    /// same message. A visitor's message to a resolved conversation reopens it or starts a new one.
    ///
    /// # Errors
    /// There is no such conversation, for this sender; an invalid message.
    pub async fn send(
        &self,
        id: &ConversationId,
        draft: MessageDraft,
    ) -> Result<SentMessage, Error> {
        draft.check()?;
        let (now, id, next) = (self.now(), id.clone(), ConversationId::fresh());
        let (roster, options, draft) = (self.0.roster.load_full(), self.options(), Arc::new(draft));
        let by_agent = match &draft.sender {
            Sender::Agent(agent) if !draft.is_note => Some(agent.clone()),
            _ => None,
        };
        let (sent, deliveries) = self
            .0
            .archive
            .write(move |tx| {
                let (draft, roster) = (Arc::clone(&draft), Arc::clone(&roster));
                let (options, id, next) = (Arc::clone(&options), id.clone(), next.clone());
                Box::pin(async move {
                    let client_id = draft.client_id.as_deref();
                    let (mut conversation, mut known) =
                        Conversation::load_with_message(tx, &id, client_id).await?;
                    draft.sender.check(&conversation)?;
                    loop {
                        if let Some(message_id) = known
                            && let Some(message) =
                                Message::load(tx, &conversation.id, "id", &message_id).await?
                        {
                            let sent = SentMessage { message, conversation, is_repeated: true };
                            return Ok((sent, Vec::new()));
                        }
                        // What is written to a merged conversation goes to the one it was merged into.
                        let Some(other) = conversation.merged_into.clone() else { break };
                        (conversation, known) =
                            Conversation::load_with_message(tx, &other, client_id).await?;
                    }
                    let is_late = conversation
                        .resolved_at
                        .is_some_and(|resolved| now.0 - resolved.0 > super::millis(options.reopen));
                    if conversation.status == ConversationStatus::Resolved
                        && is_late
                        && matches!(draft.sender, Sender::Visitor(_))
                    {
                        if let Some(client_id) = &draft.client_id
                            && let Some(sent) =
                                find_repeated(tx, &conversation.visitor.id, client_id).await?
                        {
                            return Ok((sent, Vec::new()));
                        }
                        let new = NewConversation {
                            visitor: conversation.visitor.id.clone(),
                            message: (*draft).clone(),
                            priority: ChatPriority::Normal,
                            subject: None,
                            team: conversation.team.clone(),
                            skills: conversation.skills.clone(),
                            channel: ConversationChannel::Widget,
                            bot: false,
                            is_offline: false,
                        };
                        let started = fresh(&new, next, conversation.visitor, now);
                        return append(tx, started, &draft, &roster, &options, now, true).await;
                    }
                    append(tx, conversation, &draft, &roster, &options, now, false).await
                })
            })
            .await?;
        self.publish(deliveries).await;
        if !sent.is_repeated {
            metrics::counter!("tidegate_desk_messages_total",
                "sender" => sent.message.sender_role.as_str())
            .increment(1);
            if let Some(agent) = by_agent {
                self.own_by_reply(&sent.conversation, &agent).await?;
            }
        }
        Ok(sent)
    }

    /// Changes the text of one's own message, within 5 minutes.
    ///
    /// # Errors
    /// There is no such message of this sender; it is too late; it was deleted.
    pub async fn edit(
        &self,
        id: &ConversationId,
        message_id: &str,
        sender: Sender,
        content: &str,
    ) -> Result<Message, Error> {
        check_content(content, false)?;
        self.rewrite(id, message_id, sender, Some(content.to_owned())).await
    }

    /// Deletes one's own message, within 5 minutes. Its files go with it.
    ///
    /// # Errors
    /// There is no such message of this sender; it is too late.
    pub async fn delete_message(
        &self,
        id: &ConversationId,
        message_id: &str,
        sender: Sender,
    ) -> Result<Message, Error> {
        let message = self.rewrite(id, message_id, sender, None).await?;
        self.remove_files_of(id, Some(message.seq)).await?;
        Ok(message)
    }

    async fn rewrite(
        &self,
        id: &ConversationId,
        message_id: &str,
        sender: Sender,
        content: Option<String>,
    ) -> Result<Message, Error> {
        let (now, id, roster) = (self.now(), id.clone(), self.0.roster.load_full());
        let message_id = message_id.to_owned();
        let (message, deliveries) = self
            .0
            .archive
            .write(move |tx| {
                let (id, message_id, sender) = (id.clone(), message_id.clone(), sender.clone());
                let (content, roster) = (content.clone(), Arc::clone(&roster));
                Box::pin(async move {
                    let mut conversation = Conversation::load(tx, &id).await?;
                    sender.check(&conversation)?;
                    let missing = Error::NotFound { what: "message" };
                    let found = Message::load(tx, &id, "id", &message_id).await?;
                    let mut message = found.ok_or_else(|| missing.clone())?;
                    let is_own =
                        message.sender_role == sender.role() && (message.sender_id == sender.id());
                    if !is_own || message.kind == MessageType::Event {
                        return Err(missing);
                    }
                    if message.deleted {
                        if content.is_none() {
                            return Ok((message, Vec::new()));
                        }
                        return Err(Error::conflict("MESSAGE_DELETED", "the message was deleted"));
                    }
                    if now.0 - message.created_at.0 > super::millis(EDIT_TIME) {
                        return Err(Error::conflict(
                            "TOO_LATE",
                            "a message may be changed for 5 minutes",
                        ));
                    }
                    let kind = match content {
                        Some(content) => {
                            message.content = content;
                            message.edited_at = Some(now);
                            "message.updated"
                        }
                        None => {
                            message.content.clear();
                            message.attachments.clear();
                            message.deleted = true;
                            "message.deleted"
                        }
                    };
                    sqlx::query(
                        "UPDATE messages SET content = $1, attachments = $2, edited_ms = $3, \
                         deleted = $4 WHERE id = $5",
                    )
                    .bind(message.content.clone())
                    .bind(Value::Array(message.attachments.clone()).to_string())
                    .bind(message.edited_at.map(|at| at.0))
                    .bind(i64::from(message.deleted))
                    .bind(message.id.clone())
                    .execute(&mut *tx)
                    .await?;
                    let last = sqlx::query(
                        "SELECT MAX(seq) FROM messages WHERE conversation_id = $1 AND type = 'text'",
                    )
                    .bind(id.to_string())
                    .fetch_one(&mut *tx)
                    .await?;
                    if last.try_get::<Option<i64>, _>(0)? == Some(message.seq) {
                        conversation.last_preview = preview(&message);
                    }
                    let event = ChatEvent {
                        message: Some(&message),
                        is_internal: message.is_note(),
                        ..ChatEvent::new(kind)
                    };
                    let deliveries =
                        ConversationWrite::new(&mut conversation, &[event], &*roster, None, now, false)?.commit(tx).await?;
                    Ok((message, deliveries))
                })
            })
            .await?;
        self.publish(deliveries).await;
        Ok(message)
    }

    /// Marks messages up to a number as read. A mark only grows; for agents the assignee's counts, or
    /// anybody's while there is none.
    ///
    /// # Errors
    /// There is no such conversation, for this reader; the number is beyond its last message.
    pub async fn mark_read(
        &self,
        id: &ConversationId,
        reader: Sender,
        seq: i64,
    ) -> Result<Conversation, Error> {
        let (now, id, roster) = (self.now(), id.clone(), self.0.roster.load_full());
        let (conversation, deliveries) = self
            .0
            .archive
            .write(move |tx| {
                let (id, reader, roster) = (id.clone(), reader.clone(), Arc::clone(&roster));
                Box::pin(async move {
                    let mut conversation = Conversation::load(tx, &id).await?;
                    reader.check(&conversation)?;
                    if seq < 0 || seq > conversation.last_seq {
                        return Err(Error::invalid(
                            "seq",
                            format!("the last message is {}", conversation.last_seq),
                        ));
                    }
                    let (mark, role) = match &reader {
                        Sender::Visitor(_) => (&mut conversation.visitor_read_seq, "user"),
                        Sender::Agent(agent) => {
                            let is_observer =
                                conversation.assignee.as_ref().is_some_and(|own| own != agent);
                            if is_observer {
                                return Ok((conversation, Vec::new()));
                            }
                            (&mut conversation.agent_read_seq, "admin")
                        }
                        Sender::Bot(_) => return Ok((conversation, Vec::new())),
                    };
                    if seq <= *mark {
                        return Ok((conversation, Vec::new()));
                    }
                    *mark = seq;
                    let unread = count_unread(tx, &id, role, seq).await?;
                    match role {
                        "user" => conversation.unread_visitor = unread,
                        _ => conversation.unread_agent = unread,
                    }
                    let more = json!({ "reader": role, "seq": seq });
                    let event = ChatEvent { more, ..ChatEvent::new("read") };
                    let deliveries = ConversationWrite::new(
                        &mut conversation,
                        &[event],
                        &*roster,
                        None,
                        now,
                        false,
                    )?
                    .commit(tx)
                    .await?;
                    Ok((conversation, deliveries))
                })
            })
            .await?;
        self.publish(deliveries).await;
        Ok(conversation)
    }

    /// Shows that somebody types, for 6 seconds, or stopped. What is typed as a note is not shown to
    /// the visitor.
    ///
    /// # Errors
    /// There is no such conversation, for this sender.
    pub async fn show_typing(
        &self,
        id: &ConversationId,
        sender: &Sender,
        is_on: bool,
        is_note: bool,
    ) -> Result<(), Error> {
        let conversation = self.conversation(id).await?;
        sender.check(&conversation)?;
        let roster = self.0.roster.load_full();
        let data = json!({
            "conversation_id": id.as_str(),
            "sender_role": sender.role().as_str(),
            "sender": { "id": sender.id(), "name": sender.name(&conversation.visitor, &roster) },
            "on": is_on,
            "until": is_on.then(|| super::rfc3339(Millis(self.now().0 + TYPING_MS))),
        });
        let visitor = conversation.visitor.id.as_str();
        let is_shown = !is_note && !matches!(sender, Sender::Visitor(_));
        self.announce("typing", Some((id, visitor)), &data, is_shown).await
    }
}

/// Counts messages of the other side after a mark.
async fn count_unread(
    tx: &mut AnyConnection,
    id: &ConversationId,
    reader: &str,
    seq: i64,
) -> Result<i64, Error> {
    let sql = if reader == "user" {
        "SELECT COUNT(*) FROM messages WHERE conversation_id = $1 AND seq > $2 \
         AND sender_role IN ('admin', 'bot') AND type = 'text'"
    } else {
        "SELECT COUNT(*) FROM messages WHERE conversation_id = $1 AND seq > $2 AND sender_role = 'user'"
    };
    let row = sqlx::query(sql).bind(id.as_str().to_owned()).bind(seq).fetch_one(&mut *tx).await?;
    Ok(row.try_get(0)?)
}

/// Finds a message of a visitor by the id their client gave it, in any of their conversations.
async fn find_repeated(
    tx: &mut AnyConnection,
    visitor: &UserId,
    client_id: &str,
) -> Result<Option<SentMessage>, Error> {
    let row = sqlx::query(
        "SELECT m.conversation_id AS id FROM messages m JOIN conversations c ON c.id = m.conversation_id \
         WHERE c.visitor_id = $1 AND m.client_id = $2 AND m.sender_role = 'user'",
    )
    .bind(visitor.as_str().to_owned())
    .bind(client_id.to_owned())
    .fetch_optional(&mut *tx)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let id = ConversationId::parse(&row.try_get::<String, _>("id")?)?;
    let conversation = Conversation::load(tx, &id).await?;
    let message = Message::load(tx, &id, "client_id", client_id).await?;
    Ok(message.map(|message| SentMessage { message, conversation, is_repeated: true }))
}

async fn refuse_second(tx: &mut AnyConnection, visitor: &UserId) -> Result<(), Error> {
    let row = sqlx::query(
        "SELECT COUNT(*) AS n, MIN(id) AS id FROM conversations WHERE visitor_id = $1 AND status <> 'resolved'",
    )
    .bind(visitor.as_str().to_owned())
    .fetch_one(&mut *tx)
    .await?;
    if row.try_get::<i64, _>("n")? >= OPEN_MOST {
        let id: Option<String> = row.try_get("id")?;
        return Err(Error::conflict(
            "OPEN_CONVERSATION_EXISTS",
            format!("there is an open conversation: {}", id.unwrap_or_default()),
        ));
    }
    Ok(())
}

fn fresh(
    new: &NewConversation,
    id: ConversationId,
    visitor: ChatVisitor,
    now: Millis,
) -> Conversation {
    Conversation {
        id,
        visitor,
        status: if new.is_offline { ConversationStatus::Pending } else { ConversationStatus::Open },
        priority: new.priority,
        subject: new.subject.clone(),
        tags: Vec::new(),
        channel: new.channel.as_str().to_owned(),
        team: new.team.clone(),
        skills: new.skills.clone(),
        assignee: None,
        assign_no: 0,
        last_agent: None,
        missed: Vec::new(),
        bot: new.bot,
        waiting_since: None,
        queued_since: None,
        last_seq: 0,
        event_no: 0,
        last_message_at: now,
        last_preview: String::new(),
        last_role: String::new(),
        agent_read_seq: 0,
        visitor_read_seq: 0,
        unread_agent: 0,
        unread_visitor: 0,
        mentions: Vec::new(),
        wakes_at: None,
        sla_due_at: None,
        sla_kind: None,
        sla_state: "none".to_owned(),
        first_reply_at: None,
        rating: None,
        rating_comment: None,
        created_at: now,
        assigned_at: None,
        resolved_at: None,
        version: 0,
        merged_into: None,
    }
}

pub(crate) fn preview(message: &Message) -> String {
    if message.content.is_empty() && !message.attachments.is_empty() {
        return "📎".to_owned();
    }
    message.content.chars().take(120).collect::<String>().replace('\n', " ")
}

/// Adds a message to a conversation, inside a change.
async fn append(
    tx: &mut AnyConnection,
    mut conversation: Conversation,
    draft: &MessageDraft,
    roster: &Roster,
    options: &ChatOptions,
    now: Millis,
    is_new: bool,
) -> Result<(SentMessage, Vec<Delivery>), Error> {
    let attachments =
        super::files::attach(tx, &draft.attachments, draft.sender.id().as_deref()).await?;
    // Two messages of one millisecond: later ones are not earlier.
    let now = Millis(now.0.max(conversation.last_message_at.0));
    let message = Message {
        id: ids::fresh("msg"),
        conversation: conversation.id.clone(),
        seq: conversation.last_seq + 1,
        client_id: draft.client_id.clone(),
        sender_role: draft.sender.role(),
        sender_id: draft.sender.id(),
        sender_name: draft.sender.name(&conversation.visitor, roster),
        kind: if draft.is_note { MessageType::Note } else { MessageType::Text },
        content: draft.content.clone(),
        attachments,
        created_at: now,
        edited_at: None,
        deleted: false,
    };
    let mut events = Vec::new();
    if is_new {
        events.push(ChatEvent::new("conversation.created"));
    }
    let is_reopened = conversation.status != ConversationStatus::Open && !is_new && !draft.is_note;
    if is_reopened {
        let was_resolved = conversation.status == ConversationStatus::Resolved;
        conversation.status = ConversationStatus::Open;
        conversation.wakes_at = None;
        conversation.resolved_at = None;
        if was_resolved {
            events.push(ChatEvent::new("conversation.reopened"));
            conversation.queued_since = Some(now);
            conversation.missed.clear();
        }
    }
    conversation.last_seq = message.seq;
    if !draft.is_note {
        conversation.last_message_at = now;
        conversation.last_preview = preview(&message);
        conversation.last_role = message.sender_role.as_str().to_owned();
    }
    let mut mentioned = Vec::new();
    match &draft.sender {
        Sender::Visitor(_) => take_question(&mut conversation, &message, roster, now),
        Sender::Agent(agent) if !draft.is_note => {
            take_reply(tx, &mut conversation, agent, &message, now).await?;
        }
        Sender::Agent(_) => {
            mentioned = mentions_of(&draft.content, roster);
            for agent in &mentioned {
                if !conversation.mentions.contains(agent) {
                    conversation.mentions.push(agent.clone());
                }
            }
        }
        Sender::Bot(_) => conversation.unread_visitor += 1,
    }
    super::files::settle(tx, &draft.attachments, &conversation.id, message.seq).await?;
    events.push(ChatEvent {
        message: Some(&message),
        is_internal: draft.is_note,
        ..ChatEvent::new(MESSAGE_CREATED)
    });
    let deliveries = ConversationWrite::new(&mut conversation, &events, roster, None, now, is_new)?
        .commit(tx)
        .await?;
    let is_reply = matches!(draft.sender, Sender::Agent(_)) && !draft.is_note;
    if is_reply && options.email && conversation.visitor.email.is_some() {
        outgoing::put_reply(tx, &conversation, options.email_delay, now).await?;
    }
    let notifications = mentioned
        .iter()
        .filter_map(|id| AgentId::parse(id).ok())
        .filter(|agent| roster.has_push(agent) && draft.sender != Sender::Agent(agent.clone()))
        .map(|agent| push::statement(&agent, &conversation, "mention", message.seq, now));
    execute_all(tx, notifications.collect()).await?;
    Ok((SentMessage { message, conversation, is_repeated: false }, deliveries))
}

/// A visitor wrote: from the first unanswered message on they wait.
fn take_question(conversation: &mut Conversation, message: &Message, roster: &Roster, now: Millis) {
    conversation.unread_agent += 1;
    conversation.visitor_read_seq = message.seq;
    conversation.unread_visitor = 0;
    if conversation.status == ConversationStatus::Pending {
        return;
    }
    conversation.queued_since.get_or_insert(now);
    if conversation.bot {
        return;
    }
    if conversation.waiting_since.is_none() || conversation.sla_due_at.is_none() {
        // Asleep, it had no promise any more.
        conversation.waiting_since.get_or_insert(now);
        roster.start_sla(conversation, now);
    }
}

/// An agent replied: nobody waits any more.
async fn take_reply(
    tx: &mut AnyConnection,
    conversation: &mut Conversation,
    agent: &AgentId,
    message: &Message,
    now: Millis,
) -> Result<(), Error> {
    conversation.unread_visitor += 1;
    conversation.agent_read_seq = message.seq;
    conversation.unread_agent = 0;
    conversation.bot = false;
    conversation.queued_since.get_or_insert(now);
    if let Some(since) = conversation.waiting_since.take() {
        let in_time = conversation.sla_due_at.map(|due| i64::from(now <= due));
        sqlx::query(
            "INSERT INTO replies (conversation_id, seq, agent_id, first, waited_ms, at_ms, in_time) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(conversation.id.as_str().to_owned())
        .bind(message.seq)
        .bind(agent.as_str().to_owned())
        .bind(i64::from(conversation.first_reply_at.is_none()))
        .bind(now.0 - since.0)
        .bind(now.0)
        .bind(in_time)
        .execute(&mut *tx)
        .await?;
    }
    conversation.first_reply_at.get_or_insert(now);
    conversation.sla_due_at = None;
    conversation.sla_kind = None;
    conversation.sla_state = "none".to_owned();
    Ok(())
}

/// Returns the agents that a note mentions: `@` and their e-mail address, their name, or their first name
/// where no longer name of a colleague stands there.
fn mentions_of(content: &str, roster: &Roster) -> Vec<String> {
    let lower = content.to_lowercase();
    let mut found = Vec::new();
    for (at, _) in lower.match_indices('@') {
        let rest = &lower[at + 1..];
        let names = |name: &str| {
            let name = name.to_lowercase();
            let after = rest.strip_prefix(name.as_str()).filter(|_| !name.is_empty())?;
            let is_whole = !after.starts_with(|c: char| c.is_alphanumeric() || c == '_');
            is_whole.then_some(name.len())
        };
        let agents = roster.agents.values().filter_map(|agent| {
            let first = agent.name.split_whitespace().next().unwrap_or_default();
            let longest = [agent.email.as_str(), agent.name.as_str(), first];
            Some((longest.iter().filter_map(|name| names(name)).max()?, agent.id.to_string()))
        });
        let agents: Vec<(usize, String)> = agents.collect();
        let longest = agents.iter().map(|(length, _)| *length).max();
        for (length, id) in agents {
            if Some(length) == longest && !found.contains(&id) {
                found.push(id);
            }
        }
    }
    found
}

/// Refuses a line that is too long or has control characters.
pub(crate) fn check_line(
    field: &'static str,
    text: Option<&str>,
    most: usize,
) -> Result<(), Error> {
    match text {
        Some(text) if text.chars().count() > most || text.contains(char::is_control) => {
            Err(Error::invalid(field, format!("at most {most} characters on one line")))
        }
        _ => Ok(()),
    }
}
