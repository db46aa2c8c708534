//! Web push: browsers of agents that take notifications while no tab of the console is open, and
//! what is worth one.
//!
//! A browser belongs to one session of an agent and is forgotten with it. A notification has a name
//! and a short preview of what the visitor wrote; of a note it has nothing.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::digest;
use serde_json::{Value, json};
use sqlx::{AnyConnection, Row};
use store::{Millis, redis::AsyncCommands};

use super::{
    AgentNames, Chat, Conversation, ConversationStatus, Message, SenderRole,
    login::user_of,
    millis,
    outbox::{ChatEvent, MESSAGE_CREATED},
    outgoing::{Courier, OutgoingRow, PushMessage, RowOutcome},
};
use crate::{
    AgentId, Error,
    archive::{statement::Statement, text_of},
    users::UserSessionId,
};

/// Most browsers of one agent; the oldest goes.
const BROWSERS_MOST: i64 = 10;

/// Longest address of a browser.
const ENDPOINT_MOST: usize = 2_000;

/// Characters of a visitor's message in a notification.
const PREVIEW_CHARS: usize = 120;

/// A notification that could not be sent for this long is not news any more. Also the time for which a
/// push service keeps one.
const NEWS: Duration = Duration::from_secs(3_600);

/// Time for which a tab counts as in the foreground; its socket renews it.
const FOREGROUND: Duration = Duration::from_secs(45);

/// A browser that takes notifications, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushSubscription {
    /// Its address at its push service.
    pub endpoint: String,
    /// Its public key (P-256, uncompressed), base64url.
    pub p256dh: String,
    /// Its secret of 16 bytes, base64url.
    pub auth: String,
}

impl PushSubscription {
    fn check(&self) -> Result<(), Error> {
        if self.endpoint.len() > ENDPOINT_MOST
            || self.endpoint.contains(|c: char| c.is_control() || c.is_whitespace())
            || !(self.endpoint.starts_with("https://") || self.endpoint.starts_with("http://"))
        {
            return Err(Error::invalid("endpoint", "the address of a push service, https://…"));
        }
        let bytes = |text: &str| URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok();
        if bytes(&self.p256dh).is_none_or(|key| key.len() != 65 || key[0] != 4) {
            return Err(Error::invalid("p256dh", "an uncompressed P-256 key, base64url"));
        }
        if bytes(&self.auth).is_none_or(|auth| auth.len() != 16) {
            return Err(Error::invalid("auth", "16 bytes, base64url"));
        }
        Ok(())
    }
}

/// Returns the statement that queues the notifications of an event; none if nobody gets one.
pub(crate) fn statement_of_event(
    conversation: &Conversation,
    event: &ChatEvent<'_>,
    names: &dyn AgentNames,
    now: Millis,
) -> Option<Statement> {
    let agent = conversation.assignee.as_ref().filter(|agent| names.has_push(agent))?;
    match (event.kind, event.message) {
        ("conversation.assigned", _) => {
            Some(statement(agent, conversation, "assigned", conversation.assign_no, now))
        }
        (MESSAGE_CREATED, Some(message)) if message.sender_role == SenderRole::User => {
            Some(statement(agent, conversation, "message", message.seq, now))
        }
        _ => None,
    }
}

/// Returns the statement that queues a notification for every browser of an agent.
pub(crate) fn statement(
    agent: &AgentId,
    conversation: &Conversation,
    about: &str,
    number: i64,
    now: Millis,
) -> Statement {
    Statement::new(
        "INSERT INTO outgoing (kind, target, conversation_id, body, due_ms, attempts, state, created_ms, dedup) \
         SELECT 'push', endpoint, $1, $2, $3, 0, 'waiting', $4, $5 || endpoint FROM push_subscriptions \
         WHERE agent_id = $6 ON CONFLICT (dedup) DO NOTHING",
    )
    .bind(conversation.id.as_str())
    .bind(json!({ "about": about, "number": number }).to_string())
    .bind(now.0)
    .bind(now.0)
    .bind(format!("push:{}:{about}:{number}:", conversation.id))
    .bind(agent.as_str())
}

/// Forgets a browser, inside a change.
pub(crate) async fn forget(tx: &mut AnyConnection, endpoint: &str) -> Result<(), Error> {
    sqlx::query("DELETE FROM push_subscriptions WHERE endpoint = $1")
        .bind(endpoint.to_owned())
        .execute(&mut *tx)
        .await?;
    Ok(())
}

impl Chat {
    /// Registers a browser for the notifications of an agent, for as long as this session of theirs lasts.
    ///
    /// # Errors
    /// `PUSH_OFF`; what a browser would not say of itself.
    pub async fn subscribe_push(
        &self,
        agent: &AgentId,
        session: &UserSessionId,
        subscription: PushSubscription,
    ) -> Result<(), Error> {
        subscription.check()?;
        if !self.options().push {
            return Err(Error::conflict("PUSH_OFF", "web push is switched off: desk.push"));
        }
        let (agent, session, now) = (agent.to_string(), session.to_string(), self.now().0);
        let subscription = Arc::new(subscription);
        self.0
            .archive
            .write(move |tx| {
                let (agent, session) = (agent.clone(), session.clone());
                let subscription = Arc::clone(&subscription);
                Box::pin(async move {
                    sqlx::query(
                        "INSERT INTO push_subscriptions (endpoint, agent_id, session_id, p256dh, auth, created_ms) \
                         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (endpoint) DO UPDATE SET \
                         agent_id = excluded.agent_id, session_id = excluded.session_id, \
                         p256dh = excluded.p256dh, auth = excluded.auth, created_ms = excluded.created_ms",
                    )
                    .bind(subscription.endpoint.clone())
                    .bind(agent.clone())
                    .bind(session)
                    .bind(subscription.p256dh.clone())
                    .bind(subscription.auth.clone())
                    .bind(now)
                    .execute(&mut *tx)
                    .await?;
                    sqlx::query(
                        "DELETE FROM push_subscriptions WHERE agent_id = $1 AND endpoint NOT IN \
                         (SELECT endpoint FROM push_subscriptions WHERE agent_id = $2 \
                         ORDER BY created_ms DESC, endpoint LIMIT $3)",
                    )
                    .bind(agent.clone())
                    .bind(agent)
                    .bind(BROWSERS_MOST)
                    .execute(&mut *tx)
                    .await?;
                    Ok(())
                })
            })
            .await?;
        self.roster_changed().await
    }

    /// Forgets a browser of an agent. Returns false if it was not known.
    ///
    /// # Errors
    /// The archive is away.
    pub async fn unsubscribe_push(&self, agent: &AgentId, endpoint: &str) -> Result<bool, Error> {
        let (agent, endpoint) = (agent.to_string(), endpoint.to_owned());
        let gone = self
            .0
            .archive
            .write(move |tx| {
                let (agent, endpoint) = (agent.clone(), endpoint.clone());
                Box::pin(async move {
                    let done = sqlx::query(
                        "DELETE FROM push_subscriptions WHERE endpoint = $1 AND agent_id = $2",
                    )
                    .bind(endpoint)
                    .bind(agent)
                    .execute(&mut *tx)
                    .await?;
                    Ok(done.rows_affected())
                })
            })
            .await?;
        self.roster_changed().await?;
        Ok(gone > 0)
    }

    /// Forgets the browsers of a session that has ended.
    ///
    /// # Errors
    /// The archive is away; they are forgotten with the next notification.
    pub async fn end_push_of(&self, session: &UserSessionId) -> Result<(), Error> {
        let session = session.to_string();
        self.0
            .archive
            .write(move |tx| {
                let session = session.clone();
                Box::pin(async move {
                    sqlx::query("DELETE FROM push_subscriptions WHERE session_id = $1")
                        .bind(session)
                        .execute(&mut *tx)
                        .await?;
                    Ok(())
                })
            })
            .await
    }

    /// Returns the number of browsers of an agent that take notifications.
    ///
    /// # Errors
    /// The archive is away.
    pub async fn push_browsers(&self, agent: &AgentId) -> Result<i64, Error> {
        let row = sqlx::query("SELECT COUNT(*) FROM push_subscriptions WHERE agent_id = $1")
            .bind(agent.as_str().to_owned())
            .fetch_one(self.0.archive.readers())
            .await?;
        Ok(row.try_get(0)?)
    }

    /// Notes that a tab of an agent is in the foreground, for a while, or no longer.
    ///
    /// # Errors
    /// The store is away.
    pub async fn show_foreground(
        &self,
        agent: &AgentId,
        connection: &str,
        is_on: bool,
    ) -> Result<(), Error> {
        let (mut store, key) = (self.0.store.clone(), self.0.keys.foreground(agent));
        if is_on {
            let until = self.now().0 + millis(FOREGROUND);
            let () = store.zadd(&key, connection, until).await?;
            let () = store.expire(&key, 120).await?;
        } else {
            let () = store.zrem(&key, connection).await?;
        }
        Ok(())
    }

    /// Tells whether an agent has a tab in the foreground.
    ///
    /// # Errors
    /// The store is away.
    pub async fn is_in_foreground(&self, agent: &AgentId) -> Result<bool, Error> {
        let key = self.0.keys.foreground(agent);
        let now = format!("({}", self.now().0);
        let count: i64 = self.0.store.clone().zcount(&key, now, "+inf").await?;
        Ok(count > 0)
    }

    pub(crate) async fn send_push(
        &self,
        courier: &dyn Courier,
        row: &OutgoingRow,
    ) -> Result<RowOutcome, Error> {
        let needless = RowOutcome::Needless { seq: 0 };
        if !self.options().push || self.now().0 - row.created_at.0 > millis(NEWS) {
            return Ok(needless);
        }
        let found = sqlx::query("SELECT * FROM push_subscriptions WHERE endpoint = $1")
            .bind(row.target.clone())
            .fetch_optional(self.0.archive.readers())
            .await?;
        let (Some(found), Some(id)) = (found, &row.conversation) else { return Ok(needless) };
        let text = |column: &str| Ok::<_, Error>(text_of(&found, column)?.unwrap_or_default());
        let agent = AgentId::parse(&text("agent_id")?)?;
        if !self.has_session(&agent, &text("session_id")?).await? {
            return Ok(RowOutcome::Gone);
        }
        let conversation = match self.conversation(id).await {
            Ok(conversation) => conversation,
            Err(Error::NotFound { .. }) => return Ok(needless),
            Err(error) => return Err(error),
        };
        let about = row.body["about"].as_str().unwrap_or_default();
        let number = row.number_in("number");
        let Some(body) = self.news(&agent, &conversation, about, number).await? else {
            return Ok(needless);
        };
        if self.is_in_foreground(&agent).await? {
            return Ok(needless);
        }
        let push = PushMessage {
            endpoint: row.target.clone(),
            p256dh: text("p256dh")?,
            auth: text("auth")?,
            payload: payload(&conversation, about, &body).to_string(),
            topic: topic(&conversation),
            ttl: NEWS,
        };
        Ok(courier.send_push(&push).await.into())
    }

    /// Tells whether an agent may still log in, and this session of theirs lasts.
    async fn has_session(&self, agent: &AgentId, session: &str) -> Result<bool, Error> {
        if self.agent(agent).is_ok_and(|agent| agent.disabled) {
            return Ok(false);
        }
        let sessions = self.0.users.sessions(&user_of(agent)?).await?;
        Ok(sessions.iter().any(|one| one.id.to_string() == session))
    }

    /// Returns the text of a notification; none if it is no news any more.
    async fn news(
        &self,
        agent: &AgentId,
        conversation: &Conversation,
        about: &str,
        number: i64,
    ) -> Result<Option<String>, Error> {
        let is_theirs = conversation.assignee.as_ref() == Some(agent)
            && conversation.status != ConversationStatus::Resolved;
        match about {
            "assigned" if is_theirs => Ok(Some("A conversation is assigned to you.".to_owned())),
            "message" if is_theirs && conversation.agent_read_seq < number => {
                let page =
                    self.messages(&conversation.id, Some(number - 1), None, 1, false).await?;
                let message = page.messages.first();
                let message = message.filter(|one| one.seq == number && !one.deleted);
                Ok(message.map(preview))
            }
            "mention" if conversation.mentions.iter().any(|one| one == agent.as_str()) => {
                Ok(Some("You are mentioned in a note.".to_owned()))
            }
            _ => Ok(None),
        }
    }
}

/// The first words of what a visitor wrote.
fn preview(message: &Message) -> String {
    if message.content.trim().is_empty() {
        return "A file".to_owned();
    }
    let words: Vec<&str> = message.content.split_whitespace().collect();
    let line = words.join(" ");
    if line.chars().count() <= PREVIEW_CHARS {
        return line;
    }
    line.chars().take(PREVIEW_CHARS - 1).chain(['…']).collect()
}

fn payload(conversation: &Conversation, about: &str, body: &str) -> Value {
    let visitor = &conversation.visitor;
    let name = visitor.name.as_deref().or(visitor.email.as_deref()).unwrap_or("Visitor");
    let name: String = name.chars().take(60).collect();
    json!({
        "title": name,
        "body": body,
        "conversation_id": conversation.id.as_str(),
        "about": about,
    })
}

/// A word for a conversation of at most 32 characters, which tells nobody its id.
fn topic(conversation: &Conversation) -> String {
    let hash = digest::digest(&digest::SHA256, conversation.id.as_str().as_bytes());
    URL_SAFE_NO_PAD.encode(&hash.as_ref()[..18])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_must_have_an_address_and_keys() {
        let good = PushSubscription {
            endpoint: "https://push.example/abc".to_owned(),
            p256dh: URL_SAFE_NO_PAD.encode([[4].as_slice(), &[7; 64]].concat()),
            auth: URL_SAFE_NO_PAD.encode([1; 16]),
        };
        assert!(good.check().is_ok());
        for bad in [
            PushSubscription { endpoint: "ftp://push.example/".to_owned(), ..good.clone() },
            PushSubscription { endpoint: format!("https://{}", "x".repeat(2_000)), ..good.clone() },
            PushSubscription { endpoint: "https://a b/".to_owned(), ..good.clone() },
            PushSubscription { p256dh: URL_SAFE_NO_PAD.encode([4; 64]), ..good.clone() },
            PushSubscription { p256dh: URL_SAFE_NO_PAD.encode([5; 65]), ..good.clone() },
            PushSubscription { auth: "*".to_owned(), ..good.clone() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
