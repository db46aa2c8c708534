//! Merges a conversation into another one of the same visitor.
//!
//! The messages of the first are copied to the end of the second, in their order and with the next numbers, so
//! that no number changes for anybody who has seen it. The first stays as it was: resolved, and pointing to the
//! second, to which what its visitor writes from then on goes.

use std::sync::Arc;

use serde_json::json;
use sqlx::{AnyConnection, AssertSqlSafe, Row};
use store::Millis;

use super::{
    Chat, Conversation, ConversationStatus, Message, MessageType, SenderRole,
    outbox::{ChatEvent, ConversationWrite, Delivery, MESSAGE_CREATED},
    record::MESSAGE_SELECT,
    send::preview,
};
use crate::{AgentId, ConversationId, Error, ids, random::random_hex};

/// Most messages of a conversation that is merged into another.
const MESSAGES_MOST: i64 = 500;

impl Chat {
    /// Merges a conversation into another one of the same visitor, and returns that one.
    ///
    /// # Errors
    /// `OTHER_VISITOR`; `ALREADY_MERGED`; `CONVERSATION_RESOLVED` when the other one is; `TOO_LONG` with more
    /// than 500 messages; there is no such conversation; both are the same.
    pub async fn merge(
        &self,
        id: &ConversationId,
        into: &ConversationId,
        by: Option<&AgentId>,
    ) -> Result<Conversation, Error> {
        if id == into {
            return Err(Error::invalid("into", "another conversation of the same visitor"));
        }
        let (now, roster) = (self.now(), self.0.roster.load_full());
        let (from_id, into_id, by) = (id.clone(), into.clone(), by.cloned());
        let (target, first, second) = self
            .0
            .archive
            .write(move |tx| {
                let (from_id, into_id) = (from_id.clone(), into_id.clone());
                let (by, roster) = (by.clone(), Arc::clone(&roster));
                Box::pin(async move {
                    let mut source = Conversation::load(tx, &from_id).await?;
                    let mut target = Conversation::load(tx, &into_id).await?;
                    check(&source, &target)?;
                    let copies = copies_of(tx, &source, &target, now).await?;
                    let owner = source.assignee.clone();
                    let target_owner = target.assignee.clone();
                    join(&mut source, &mut target, &copies, now);
                    let merged = json!({ "merged_into": into_id.as_str() });
                    let resolved =
                        ChatEvent { more: merged, ..ChatEvent::new("conversation.resolved") };
                    if let Some(agent) = by.or_else(|| owner.clone()) {
                        note_resolution(tx, &source, &agent, now).await?;
                    }
                    let first = ConversationWrite::new(
                        &mut source,
                        &[resolved],
                        &*roster,
                        owner.as_ref(),
                        now,
                        false,
                    )?
                    .commit(tx)
                    .await?;
                    let events: Vec<ChatEvent<'_>> = copies
                        .iter()
                        .map(|message| ChatEvent {
                            message: Some(message),
                            is_internal: message.is_note(),
                            ..ChatEvent::new(MESSAGE_CREATED)
                        })
                        .collect();
                    let second = ConversationWrite::new(
                        &mut target,
                        &events,
                        &*roster,
                        target_owner.as_ref(),
                        now,
                        false,
                    )?
                    .commit(tx)
                    .await?;
                    Ok::<(Conversation, Vec<Delivery>, Vec<Delivery>), Error>((
                        target, first, second,
                    ))
                })
            })
            .await?;
        // Each conversation has a queue of its own.
        self.publish(first).await;
        self.publish(second).await;
        Ok(target)
    }
}

fn check(source: &Conversation, target: &Conversation) -> Result<(), Error> {
    if source.visitor.id != target.visitor.id {
        return Err(Error::conflict("OTHER_VISITOR", "both conversations must be of one visitor"));
    }
    if let Some(other) = &source.merged_into {
        return Err(Error::conflict(
            "ALREADY_MERGED",
            format!("it was merged into {other} before"),
        ));
    }
    if target.status == ConversationStatus::Resolved {
        return Err(Error::conflict(
            "CONVERSATION_RESOLVED",
            "the conversation to merge into is resolved; open it first, or merge the other way",
        ));
    }
    if source.last_seq > MESSAGES_MOST {
        return Err(Error::conflict(
            "TOO_LONG",
            "a conversation of more than 500 messages is not merged",
        ));
    }
    Ok(())
}

/// Makes the messages that the target gets: a note that tells where they are from, then copies.
async fn copies_of(
    tx: &mut AnyConnection,
    source: &Conversation,
    target: &Conversation,
    now: Millis,
) -> Result<Vec<Message>, Error> {
    let sql = format!("{MESSAGE_SELECT} WHERE conversation_id = $1 AND deleted = 0 ORDER BY seq");
    let rows =
        sqlx::query(AssertSqlSafe(sql)).bind(source.id.to_string()).fetch_all(&mut *tx).await?;
    let mut copies = vec![Message {
        id: ids::fresh("msg"),
        conversation: target.id.clone(),
        seq: target.last_seq + 1,
        client_id: None,
        sender_role: SenderRole::System,
        sender_id: None,
        sender_name: None,
        kind: MessageType::Note,
        content: format!("Merged from conversation {}. Its messages follow.", source.id),
        attachments: Vec::new(),
        created_at: now,
        edited_at: None,
        deleted: false,
    }];
    for row in &rows {
        let mut message = Message::read(row)?;
        if message.kind == MessageType::Event {
            continue;
        }
        let old_seq = message.seq;
        message.id = ids::fresh("msg");
        message.conversation = target.id.clone();
        message.seq = target.last_seq + 1 + i64::try_from(copies.len()).unwrap_or(0);
        message.client_id = None;
        message.attachments = copy_files(tx, source, &message, old_seq).await?;
        copies.push(message);
    }
    Ok(copies)
}

/// Gives the copy of a message files of its own, with the same contents: they go with their message.
async fn copy_files(
    tx: &mut AnyConnection,
    source: &Conversation,
    message: &Message,
    old_seq: i64,
) -> Result<Vec<serde_json::Value>, Error> {
    let mut copied = Vec::new();
    for attachment in &message.attachments {
        let row =
            sqlx::query("SELECT * FROM files WHERE id = $1 AND conversation_id = $2 AND seq = $3")
                .bind(attachment["id"].as_str().unwrap_or_default().to_owned())
                .bind(source.id.to_string())
                .bind(old_seq)
                .fetch_optional(&mut *tx)
                .await?;
        let Some(row) = row else { continue };
        let mut file = super::files::read(&row)?;
        file.id = format!("file_{}", random_hex::<16>()?);
        sqlx::query(
            "INSERT INTO files (id, hash, name, mime, size, owner, conversation_id, seq, created_ms) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        )
        .bind(file.id.clone())
        .bind(file.hash.clone())
        .bind(file.name.clone())
        .bind(file.mime.clone())
        .bind(file.size)
        .bind(file.owner.clone())
        .bind(message.conversation.to_string())
        .bind(message.seq)
        .bind(row.try_get::<i64, _>("created_ms")?)
        .execute(&mut *tx)
        .await?;
        copied.push(file.to_json());
    }
    Ok(copied)
}

/// Moves what is waited for from one to the other, and resolves the first.
fn join(source: &mut Conversation, target: &mut Conversation, copies: &[Message], now: Millis) {
    let earlier = |a: Option<Millis>, b: Option<Millis>| match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let last_seq = copies.last().map_or(target.last_seq, |one| one.seq);
    let count = |is_counted: &dyn Fn(&Message) -> bool| {
        i64::try_from(copies.iter().filter(|one| is_counted(one)).count()).unwrap_or(0)
    };
    // What was read in both is read; else the copies count as unread, too.
    if source.unread_agent + target.unread_agent == 0 {
        target.agent_read_seq = last_seq;
    } else {
        target.unread_agent += count(&|one| one.sender_role == SenderRole::User);
    }
    if source.unread_visitor + target.unread_visitor == 0 {
        target.visitor_read_seq = last_seq;
    } else {
        target.unread_visitor += count(&|one| {
            matches!(one.sender_role, SenderRole::Admin | SenderRole::Bot)
                && one.kind == MessageType::Text
        });
    }
    if target.status == ConversationStatus::Open && !target.bot {
        target.waiting_since = earlier(target.waiting_since, source.waiting_since);
        target.queued_since = earlier(target.queued_since, source.queued_since);
    }
    if source.priority.rank() > target.priority.rank() {
        target.priority = source.priority;
    }
    for tag in &source.tags {
        if !target.tags.contains(tag) && target.tags.len() < 20 {
            target.tags.push(tag.clone());
        }
    }
    for agent in &source.mentions {
        if !target.mentions.contains(agent) {
            target.mentions.push(agent.clone());
        }
    }
    target.last_seq = last_seq;
    if let Some(last) = copies.iter().rev().find(|one| !one.is_note()) {
        target.last_preview = preview(last);
        target.last_role = last.sender_role.as_str().to_owned();
        target.last_message_at = target.last_message_at.max(last.created_at);
    }
    target.first_reply_at = earlier(target.first_reply_at, source.first_reply_at);
    if target.sla_due_at.is_none()
        || source.sla_due_at.is_some_and(|due| Some(due) < target.sla_due_at)
    {
        target.sla_due_at = source.sla_due_at;
        target.sla_kind = source.sla_kind.clone();
        target.sla_state.clone_from(&source.sla_state);
    }
    source.status = ConversationStatus::Resolved;
    source.merged_into = Some(target.id.clone());
    source.resolved_at.get_or_insert(now);
    source.last_agent = source.assignee.take().or(source.last_agent.take());
    source.waiting_since = None;
    source.queued_since = None;
    source.wakes_at = None;
    source.unread_agent = 0;
    source.agent_read_seq = source.last_seq;
    source.sla_due_at = None;
    source.sla_kind = None;
    source.sla_state = "none".to_owned();
    source.mentions.clear();
    source.missed.clear();
}

async fn note_resolution(
    tx: &mut AnyConnection,
    source: &Conversation,
    agent: &AgentId,
    now: Millis,
) -> Result<(), Error> {
    let began = source.assigned_at.unwrap_or(source.created_at);
    sqlx::query(
        "INSERT INTO resolutions (conversation_id, at_ms, agent_id, handled_ms) \
         VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
    )
    .bind(source.id.to_string())
    .bind(now.0)
    .bind(agent.to_string())
    .bind((now.0 - began.0).max(0))
    .execute(&mut *tx)
    .await?;
    Ok(())
}
