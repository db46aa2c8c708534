//! Changes of a conversation: status, priority, tags, team, snooze; ratings, promises, retention.

use std::{collections::HashMap, sync::Arc};

use serde_json::json;
use sqlx::Row;
use store::{Millis, redis::AsyncCommands};

use super::{
    AssignRequest, Chat, ChatPriority, Conversation, ConversationStatus, MessageDraft, Sender,
    agents::check_words,
    millis,
    outbox::{ChatEvent, ConversationWrite},
    send::check_line,
};
use crate::{AgentId, ConversationId, Error, TeamId, UserId};

/// Share of the time to reply, in percent, from which a promise counts as at risk.
const WARN_BEFORE_MS: i64 = 60_000;

/// Conversations that one sweep deals with.
const RETENTION_BATCH: usize = 500;

/// Changes of a conversation; what is left out stays.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the fields are those of a conversation")]
pub struct ConversationChange {
    pub status: Option<ConversationStatus>,
    pub priority: Option<ChatPriority>,
    pub subject: Option<String>,
    pub tags: Option<Vec<String>>,
    pub skills: Option<Vec<String>>,
    pub team: Option<Option<TeamId>>,
    pub wakes_at: Option<Millis>,
    /// A program hands over to people (`Some(false)`), with a reason, or takes over.
    pub bot: Option<bool>,
    pub reason: Option<String>,
}

impl Chat {
    /// Changes a conversation. `version` is the one the caller saw; with another one it is refused.
    ///
    /// # Errors
    /// `VERSION_MISMATCH`; there is no such conversation or team; an invalid value.
    pub async fn change_conversation(
        &self,
        id: &ConversationId,
        change: ConversationChange,
        version: Option<i64>,
        by: Option<&AgentId>,
    ) -> Result<Conversation, Error> {
        check_line("subject", change.subject.as_deref(), 200)?;
        check_line("reason", change.reason.as_deref(), 500)?;
        check_words("tags", change.tags.as_deref().unwrap_or_default())?;
        check_words("skills", change.skills.as_deref().unwrap_or_default())?;
        let (now, roster) = (self.now(), self.0.roster.load_full());
        if let Some(Some(team)) = &change.team
            && !roster.teams.contains_key(team)
        {
            return Err(Error::NotFound { what: "team" });
        }
        if change.wakes_at.is_some_and(|until| until <= now) {
            return Err(Error::invalid("wakes_at", "a time in the future"));
        }
        if change.status == Some(ConversationStatus::Pending) && change.wakes_at.is_none() {
            return Err(Error::invalid(
                "wakes_at",
                "the time at which a pending one is open again",
            ));
        }
        let (wanted, change) = (id.clone(), Arc::new(change));
        let by = by.cloned();
        let (conversation, deliveries) = self
            .0
            .archive
            .write(move |tx| {
                let (id, change, roster) = (wanted.clone(), Arc::clone(&change), Arc::clone(&roster));
                let by = by.clone();
                Box::pin(async move {
                    let mut conversation = Conversation::load(tx, &id).await?;
                    if version.is_some_and(|version| version != conversation.version) {
                        return Err(Error::conflict(
                            "VERSION_MISMATCH",
                            format!("the conversation is at version {} by now", conversation.version),
                        ));
                    }
                    if let Some(other) = &conversation.merged_into
                        && change.status.is_some_and(|to| to != ConversationStatus::Resolved)
                    {
                        return Err(Error::conflict(
                            "CONVERSATION_MERGED",
                            format!("it was merged into {other} and stays resolved"),
                        ));
                    }
                    let owner = conversation.assignee.clone();
                    let before = conversation.status;
                    let waited_since = waits_since(&conversation);
                    apply(&mut conversation, &change, now);
                    let kind = match (before, conversation.status) {
                        (ConversationStatus::Resolved, ConversationStatus::Resolved) => "conversation.updated",
                        (_, ConversationStatus::Resolved) => {
                            let began = conversation.assigned_at.unwrap_or(conversation.created_at);
                            sqlx::query(
                                "INSERT INTO resolutions (conversation_id, at_ms, agent_id, handled_ms) \
                                 VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
                            )
                            .bind(conversation.id.to_string())
                            .bind(now.0)
                            .bind(by.or_else(|| owner.clone()).map(|agent| agent.to_string()))
                            .bind((now.0 - began.0).max(0))
                            .execute(&mut *tx)
                            .await?;
                            "conversation.resolved"
                        }
                        (ConversationStatus::Resolved, _) => "conversation.reopened",
                        _ => "conversation.updated",
                    };
                    match (waited_since, waits_since(&conversation)) {
                        // Handed over by a program, or no longer asleep: promised from now on.
                        (None, Some(_)) => roster.start_sla(&mut conversation, now),
                        (Some(_), Some(since)) if change.priority.is_some() => {
                            roster.start_sla(&mut conversation, since);
                        }
                        _ => {}
                    }
                    let more = json!({ "reason": change.reason });
                    let event = ChatEvent { more, ..ChatEvent::new(kind) };
                    let deliveries = ConversationWrite::new(&mut conversation, &[event], &*roster, owner.as_ref(), now, false)?.commit(tx)
                    .await?;
                    Ok((conversation, deliveries))
                })
            })
            .await?;
        self.publish(deliveries).await;
        Ok(conversation)
    }

    /// Puts a conversation into the queue of a team or gives it to an agent, with a note for them.
    ///
    /// # Errors
    /// As of an assignment; there is no such team.
    pub async fn transfer(
        &self,
        id: &ConversationId,
        to: Result<AgentId, TeamId>,
        note: Option<&str>,
        by: &AgentId,
    ) -> Result<Conversation, Error> {
        let note = note.filter(|note| !note.trim().is_empty());
        let draft = note.map(|note| MessageDraft {
            is_note: true,
            ..MessageDraft::text(Sender::Agent(by.clone()), note)
        });
        if let Some(draft) = &draft {
            draft.check()?;
        }
        let agent = match to {
            Ok(agent) => Some(agent),
            Err(team) => {
                let found = self.conversation(id).await?;
                if found.status == ConversationStatus::Resolved {
                    return Err(Error::conflict(
                        "CONVERSATION_RESOLVED",
                        "the conversation is resolved; a message reopens it",
                    ));
                }
                let change = ConversationChange { team: Some(Some(team)), ..Default::default() };
                self.change_conversation(id, change, None, Some(by)).await?;
                self.deliver_now(id).await?;
                None
            }
        };
        let request = AssignRequest {
            agent,
            expected: None,
            over_capacity: false,
            needs_presence: true,
            by: by.to_string(),
            reason: "transferred",
        };
        let moved = self.assign(id, request).await?;
        match draft {
            // A transfer that was refused leaves no note.
            Some(draft) => Ok(self.send(id, draft).await?.conversation),
            None => Ok(moved),
        }
    }

    /// Rates a conversation, once.
    ///
    /// # Errors
    /// `ALREADY_RATED`; there is no such conversation of this visitor; a score that is not 1 to 5.
    pub async fn rate(
        &self,
        id: &ConversationId,
        visitor: &UserId,
        score: i64,
        comment: Option<String>,
    ) -> Result<(), Error> {
        if !(1..=5).contains(&score) {
            return Err(Error::invalid("score", "1 to 5"));
        }
        if comment.as_ref().is_some_and(|text| text.chars().count() > 1_000 || text.contains('\0'))
        {
            return Err(Error::invalid("comment", "at most 1,000 characters"));
        }
        let (now, roster, id) = (self.now(), self.0.roster.load_full(), id.clone());
        let sender = Sender::Visitor(visitor.clone());
        let deliveries = self
            .0
            .archive
            .write(move |tx| {
                let (id, sender, comment) = (id.clone(), sender.clone(), comment.clone());
                let roster = Arc::clone(&roster);
                Box::pin(async move {
                    let mut conversation = Conversation::load(tx, &id).await?;
                    sender.check(&conversation)?;
                    if conversation.rating.is_some() {
                        return Err(Error::conflict(
                            "ALREADY_RATED",
                            "the conversation is rated already",
                        ));
                    }
                    conversation.rating = Some(score);
                    conversation.rating_comment = comment;
                    let event = ChatEvent::new("conversation.rated");
                    ConversationWrite::new(&mut conversation, &[event], &*roster, None, now, false)?
                        .commit(tx)
                        .await
                })
            })
            .await?;
        self.publish(deliveries).await;
        Ok(())
    }

    /// Opens conversations whose time to sleep is over.
    ///
    /// # Errors
    /// The archive is away.
    pub async fn sweep_snoozed(&self) -> Result<usize, Error> {
        let due = self
            .due_ids(
                "SELECT id FROM conversations WHERE status = 'pending' AND snooze_ms <= $1 LIMIT 200",
                self.now(),
            )
            .await?;
        for id in &due {
            let change = ConversationChange {
                status: Some(ConversationStatus::Open),
                ..ConversationChange::default()
            };
            self.change_conversation(id, change, None, None).await?;
        }
        Ok(due.len())
    }

    /// Opens conversations that were left while nobody was there, once somebody is: they wait since they were
    /// written, so the oldest goes first.
    ///
    /// # Errors
    /// The store or the archive is away.
    pub async fn sweep_left(&self) -> Result<usize, Error> {
        let rows = sqlx::query(
            "SELECT id, team_id FROM conversations WHERE status = 'pending' AND snooze_ms IS NULL LIMIT 200",
        )
        .fetch_all(self.0.archive.readers())
        .await?;
        let mut is_there: HashMap<Option<TeamId>, bool> = HashMap::new();
        let mut count = 0;
        for row in &rows {
            let id = ConversationId::parse(&row.try_get::<String, _>("id")?)?;
            let team: Option<String> = row.try_get("team_id")?;
            let team = team.map(|team| TeamId::parse(&team)).transpose()?;
            let is_open = match is_there.get(&team) {
                Some(known) => *known,
                None => {
                    let found = self.availability(team.as_ref()).await?;
                    let found = found["agents_online"].as_i64().is_some_and(|count| count > 0);
                    is_there.insert(team, found);
                    found
                }
            };
            if !is_open {
                continue;
            }
            let change = ConversationChange {
                status: Some(ConversationStatus::Open),
                ..ConversationChange::default()
            };
            self.change_conversation(&id, change, None, None).await?;
            count += 1;
        }
        Ok(count)
    }

    /// Warns of promises at risk, and notes those that were broken.
    ///
    /// # Errors
    /// The archive is away.
    pub async fn sweep_sla(&self) -> Result<usize, Error> {
        let now = self.now();
        let mut count = 0;
        for (sql, at, state, kind) in [
            (
                "SELECT id FROM conversations WHERE sla_state = 'running' AND sla_due_ms <= $1 LIMIT 200",
                Millis(now.0 + WARN_BEFORE_MS),
                "at_risk",
                "sla.warning",
            ),
            (
                "SELECT id FROM conversations WHERE sla_state = 'at_risk' AND sla_due_ms <= $1 LIMIT 200",
                now,
                "breached",
                "sla.breached",
            ),
        ] {
            for id in self.due_ids(sql, at).await? {
                count += 1;
                let roster = self.0.roster.load_full();
                let deliveries = self
                    .0
                    .archive
                    .write(move |tx| {
                        let (id, roster) = (id.clone(), Arc::clone(&roster));
                        Box::pin(async move {
                            let mut conversation = Conversation::load(tx, &id).await?;
                            if conversation.sla_due_at.is_none_or(|due| due > at) {
                                return Ok(Vec::new());
                            }
                            conversation.sla_state = state.to_owned();
                            let event = ChatEvent { is_internal: true, ..ChatEvent::new(kind) };
                            ConversationWrite::new(
                                &mut conversation,
                                &[event],
                                &*roster,
                                None,
                                now,
                                false,
                            )?
                            .commit(tx)
                            .await
                        })
                    })
                    .await?;
                self.publish(deliveries).await;
            }
        }
        Ok(count)
    }

    /// Deletes resolved conversations that are older than the retention.
    ///
    /// # Errors
    /// The store or the archive is away.
    pub async fn sweep_retention(&self) -> Result<usize, Error> {
        let retention = millis(self.options().retention);
        if retention == 0 {
            return Ok(0);
        }
        let before = Millis(self.now().0 - retention);
        let sql = "SELECT id FROM conversations WHERE status = 'resolved' AND resolved_ms <= $1 \
                   ORDER BY resolved_ms LIMIT 500";
        let old = self.due_ids(sql, before).await?;
        for id in old.iter().take(RETENTION_BATCH) {
            self.delete_conversation(id).await?;
        }
        Ok(old.len())
    }

    /// Deletes a conversation with everything that belongs to it.
    ///
    /// # Errors
    /// The store or the archive is away.
    pub async fn delete_conversation(&self, id: &ConversationId) -> Result<(), Error> {
        let conversation = self.conversation(id).await?;
        if conversation.status != ConversationStatus::Resolved {
            let change = ConversationChange {
                status: Some(ConversationStatus::Resolved),
                ..ConversationChange::default()
            };
            self.change_conversation(id, change, None, None).await?;
        }
        self.deliver_now(id).await?;
        self.remove_files_of(id, None).await?;
        let text = id.to_string();
        self.0
            .archive
            .write(move |tx| {
                let id = text.clone();
                Box::pin(async move {
                    for sql in [
                        "DELETE FROM messages WHERE conversation_id = $1",
                        "DELETE FROM outbox WHERE conversation_id = $1",
                        "DELETE FROM replies WHERE conversation_id = $1",
                        "DELETE FROM resolutions WHERE conversation_id = $1",
                        "DELETE FROM outgoing WHERE conversation_id = $1",
                        "UPDATE conversations SET merged_into = NULL WHERE merged_into = $1",
                        "DELETE FROM conversations WHERE id = $1",
                    ] {
                        sqlx::query(sql).bind(id.clone()).execute(&mut *tx).await?;
                    }
                    Ok(())
                })
            })
            .await?;
        let keys = &self.0.keys;
        let own = [keys.conversation(id), keys.messages(id), keys.viewers(id)];
        let () = self.0.store.clone().del(&own[..]).await?;
        let () = self.0.store.clone().hdel(&keys.pending, id.as_str()).await?;
        Ok(())
    }

    /// Erases everything about a visitor: conversations, messages, files, search, and live events.
    /// Returns the number of conversations.
    ///
    /// # Errors
    /// The store or the archive is away; it may be called again.
    pub async fn erase_visitor(&self, visitor: &UserId) -> Result<usize, Error> {
        let mut count = 0;
        loop {
            let rows = sqlx::query("SELECT id FROM conversations WHERE visitor_id = $1 LIMIT 100")
                .bind(visitor.as_str().to_owned())
                .fetch_all(self.0.archive.readers())
                .await?;
            if rows.is_empty() {
                break;
            }
            for row in &rows {
                self.delete_conversation(&ConversationId::parse(&row.try_get::<String, _>(0)?)?)
                    .await?;
                count += 1;
            }
        }
        self.remove_files_by(visitor.as_str()).await?;
        let id = visitor.to_string();
        let known = self
            .0
            .archive
            .write(move |tx| {
                let id = id.clone();
                Box::pin(async move {
                    let gone = sqlx::query("DELETE FROM visitors WHERE id = $1")
                        .bind(id)
                        .execute(&mut *tx)
                        .await?;
                    Ok(gone.rows_affected())
                })
            })
            .await?;
        if count > 0 || known > 0 {
            self.remove_events_of(visitor).await?;
        }
        Ok(count)
    }

    /// Removes a visitor's events from the stream.
    async fn remove_events_of(&self, visitor: &UserId) -> Result<(), Error> {
        let mut place = store::events::EventId::START;
        loop {
            let batch = self.0.hub.feed.after(place, 1_000).await?;
            let Some(last) = batch.events.last() else { return Ok(()) };
            place = last.id;
            let own: Vec<String> = batch
                .events
                .iter()
                .filter(|event| {
                    let holds = |name: &str| {
                        event.get(name).is_some_and(|value| {
                            String::from_utf8_lossy(value).contains(visitor.as_str())
                        })
                    };
                    holds("visitor") || holds("data")
                })
                .map(|event| event.id.to_string())
                .collect();
            if !own.is_empty() {
                let () = self.0.store.clone().xdel(&self.0.keys.events, &own).await?;
            }
        }
    }
}

/// Returns since when the visitor waits for people; none asleep, resolved, or while a program answers.
fn waits_since(conversation: &Conversation) -> Option<Millis> {
    let is_open = conversation.status == ConversationStatus::Open && !conversation.bot;
    conversation.waiting_since.filter(|_| is_open)
}

fn apply(conversation: &mut Conversation, change: &ConversationChange, now: Millis) {
    if let Some(priority) = change.priority {
        conversation.priority = priority;
    }
    if let Some(subject) = &change.subject {
        conversation.subject = (!subject.is_empty()).then(|| subject.clone());
    }
    if let Some(tags) = &change.tags {
        conversation.tags.clone_from(tags);
    }
    if let Some(skills) = &change.skills {
        conversation.skills.clone_from(skills);
    }
    if let Some(team) = &change.team {
        conversation.team.clone_from(team);
        conversation.missed.clear();
    }
    if let Some(bot) = change.bot {
        if conversation.bot && !bot {
            // From now on people are waited for.
            conversation.queued_since = Some(now);
            if conversation.unread_agent > 0 {
                conversation.waiting_since.get_or_insert(now);
            }
        }
        conversation.bot = bot;
    }
    let was_left =
        conversation.status == ConversationStatus::Pending && conversation.wakes_at.is_none();
    match change.status {
        Some(ConversationStatus::Resolved)
            if conversation.status != ConversationStatus::Resolved =>
        {
            conversation.status = ConversationStatus::Resolved;
            conversation.resolved_at = Some(now);
            conversation.last_agent =
                conversation.assignee.take().or(conversation.last_agent.take());
            conversation.waiting_since = None;
            conversation.queued_since = None;
            conversation.wakes_at = None;
            conversation.unread_agent = 0;
            conversation.agent_read_seq = conversation.last_seq;
            conversation.sla_due_at = None;
            conversation.sla_state = "none".to_owned();
            conversation.mentions.clear();
            conversation.missed.clear();
        }
        Some(ConversationStatus::Open) if conversation.status != ConversationStatus::Open => {
            conversation.status = ConversationStatus::Open;
            conversation.resolved_at = None;
            conversation.wakes_at = None;
            let since = if was_left { conversation.last_message_at } else { now };
            conversation.queued_since.get_or_insert(since);
            if conversation.unread_agent > 0 {
                conversation.waiting_since.get_or_insert(since);
            }
        }
        Some(ConversationStatus::Pending) => {
            conversation.status = ConversationStatus::Pending;
            conversation.resolved_at = None;
            conversation.wakes_at = change.wakes_at;
            conversation.sla_due_at = None;
            conversation.sla_state = "none".to_owned();
        }
        _ => {}
    }
}
