//! From the archive to the store: the outbox.
//!
//! A change of a conversation leaves an outbox row in its transaction, with a number that counts up
//! in the conversation. Rows are delivered by one script, in the order of these numbers and each once,
//! by whoever comes first: the instance that wrote them, or the sweep that looks for what a killed
//! process left behind. A row is deleted after it was delivered.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::{AnyConnection, Row};
use store::Millis;
use tokio::sync::mpsc;

use super::{
    Chat, ChatInner, Conversation, ConversationStatus, DeliveryQueue, EVENTS_MOST, Message,
    PUBLISHED_TTL_S,
    record::{AgentNames, MESSAGE_SELECT},
    unreadable,
};
use crate::{
    AgentId, ConversationId, Error, TeamId,
    archive::statement::{Statement, execute_all},
    scripts::{deliver, fill_messages, put_conversation},
};

/// The event of a new message.
pub(crate) const MESSAGE_CREATED: &str = "message.created";

/// Queues of deliveries; a conversation is always in the same.
const LANES: usize = 8;

/// Changes that wait in one queue.
const LANE_MOST: usize = 2_048;

/// Attempts before a delivery is left to the sweep.
const ATTEMPTS: usize = 10;

/// Rows that one sweep reads.
const SWEEP_ROWS: i64 = 1_000;

/// Age from which the sweep delivers a row: its writer had time to.
const SWEEP_AGE: Duration = Duration::from_secs(1);

/// Last messages in the published list.
const LISTED: i64 = 100;

/// Fields of an event that visitors see, too. Reasons and names of those who act are for agents.
const VISITOR_FIELDS: [&str; 3] = ["reader", "seq", "merged_into"];

/// An event of a conversation, ready to be delivered.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) conversation: ConversationId,
    pub(crate) event_no: i64,
    pub(crate) envelope: Arc<Envelope>,
}

/// The contents of an outbox row.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    kind: String,
    visitor: String,
    data: String,
    /// Empty when it is not for the visitor.
    visitor_data: String,
    /// `first`, `add`, `rewrite` or nothing.
    list_change: String,
    message: String,
    status: String,
    rank: i64,
    active_ms: Option<i64>,
    unread_score: Option<i64>,
    queue_score: Option<i64>,
    waiting_ms: Option<i64>,
    queued_ms: Option<i64>,
    team: String,
    skills: String,
    last_agent: String,
    owner: String,
}

/// An event that a change makes.
#[derive(Clone, Debug)]
pub(crate) struct ChatEvent<'a> {
    pub(crate) kind: &'static str,
    /// The message it is about.
    pub(crate) message: Option<&'a Message>,
    /// The visitor must not see it.
    pub(crate) is_internal: bool,
    /// More fields, for agents; of these the visitor sees [`VISITOR_FIELDS`] unless it is internal.
    pub(crate) more: Value,
}

impl ChatEvent<'_> {
    pub(crate) fn new(kind: &'static str) -> Self {
        Self { kind, message: None, is_internal: false, more: Value::Null }
    }
}

/// The statements that write a changed conversation, and the events to deliver once they are committed.
pub(crate) struct ConversationWrite {
    pub(crate) statements: Vec<Statement>,
    pub(crate) deliveries: Vec<Delivery>,
}

impl ConversationWrite {
    /// The write of a changed conversation, with its events and the messages they are about, if these are new.
    pub(crate) fn new(
        conversation: &mut Conversation,
        events: &[ChatEvent<'_>],
        names: &dyn AgentNames,
        owner_before: Option<&AgentId>,
        now: Millis,
        is_new: bool,
    ) -> Result<Self, Error> {
        conversation.version += 1;
        let first = conversation.event_no + 1;
        conversation.event_no += i64::try_from(events.len()).unwrap_or(0);
        let write = if is_new { conversation.insert() } else { conversation.update() };
        let mut statements = vec![write];
        let mut deliveries = Vec::with_capacity(events.len());
        for (event_no, event) in (first..).zip(events) {
            if event.kind == MESSAGE_CREATED {
                statements.extend(event.message.map(Message::insert));
            }
            let envelope = envelope(conversation, event, names, owner_before);
            let body = serde_json::to_string(&envelope)
                .map_err(|error| Error::archive(error.to_string()))?;
            statements.push(
                Statement::new(
                    "INSERT INTO outbox (conversation_id, event_no, body, created_ms) \
                     VALUES ($1, $2, $3, $4)",
                )
                .bind(conversation.id.as_str())
                .bind(event_no)
                .bind(body)
                .bind(now.0),
            );
            statements.extend(super::push::statement_of_event(conversation, event, names, now));
            deliveries.push(Delivery {
                conversation: conversation.id.clone(),
                event_no,
                envelope: Arc::new(envelope),
            });
        }
        Ok(Self { statements, deliveries })
    }

    /// Writes it. The last thing of every change of one conversation.
    pub(crate) async fn commit(self, tx: &mut AnyConnection) -> Result<Vec<Delivery>, Error> {
        execute_all(tx, self.statements).await?;
        Ok(self.deliveries)
    }
}

fn envelope(
    conversation: &Conversation,
    event: &ChatEvent<'_>,
    names: &dyn AgentNames,
    owner_before: Option<&AgentId>,
) -> Envelope {
    let body = |view: Value, is_for_visitor: bool| {
        let mut data = serde_json::Map::new();
        data.insert("conversation".to_owned(), view);
        if let Some(message) = event.message {
            data.insert("message".to_owned(), message.to_json());
        }
        if let Value::Object(more) = &event.more {
            let may_see = |name: &str| !is_for_visitor || VISITOR_FIELDS.contains(&name);
            let seen = more.iter().filter(|(name, _)| may_see(name));
            data.extend(seen.map(|(name, value)| (name.clone(), value.clone())));
        }
        Value::Object(data).to_string()
    };
    let is_resolved = conversation.status == ConversationStatus::Resolved;
    let is_open = conversation.status == ConversationStatus::Open;
    let listed = event.message.filter(|message| !message.is_note());
    let list_change = match listed {
        None => "",
        Some(_) if event.kind != MESSAGE_CREATED => "rewrite",
        Some(message) if message.seq == 1 => "first",
        Some(_) => "add",
    };
    let owner = conversation.assignee.as_ref().or(owner_before);
    Envelope {
        kind: event.kind.to_owned(),
        visitor: conversation.visitor.id.to_string(),
        data: body(conversation.agent_json(names), false),
        visitor_data: if event.is_internal {
            String::new()
        } else {
            body(conversation.visitor_json(names), true)
        },
        list_change: list_change.to_owned(),
        message: listed.map(Message::cached_json).unwrap_or_default(),
        status: conversation.status.as_str().to_owned(),
        rank: conversation.priority.rank(),
        active_ms: (!is_resolved).then_some(conversation.last_message_at.0),
        unread_score: conversation.unread_score(),
        queue_score: conversation.queue_score(),
        // Asleep, nobody waits: no deadline takes it from its agent.
        waiting_ms: conversation.waiting_since.filter(|_| is_open).map(|at| at.0),
        queued_ms: conversation.queued_since.map(|at| at.0),
        team: conversation.team.as_ref().map(TeamId::to_string).unwrap_or_default(),
        skills: conversation.skills.join(","),
        last_agent: conversation.last_agent.as_ref().map(AgentId::to_string).unwrap_or_default(),
        owner: owner.map(AgentId::to_string).unwrap_or_default(),
    }
}

/// The queues of deliveries.
#[derive(Debug)]
pub(crate) struct Lanes(Vec<mpsc::Sender<Vec<Delivery>>>);

impl Lanes {
    pub(crate) fn new() -> (Self, Vec<DeliveryQueue>) {
        let (senders, queues) = (0..LANES).map(|_| mpsc::channel(LANE_MOST)).unzip();
        (Self(senders), queues)
    }
}

/// Delivers what comes into one queue, until the chat is dropped.
pub(crate) async fn run_lane(chat: Weak<ChatInner>, mut queue: DeliveryQueue) {
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, 64).await > 0 {
        let Some(inner) = chat.upgrade() else { return };
        let (chat, count) = (Chat(inner), batch.len());
        let mut done: BTreeMap<ConversationId, i64> = BTreeMap::new();
        for delivery in batch.drain(..).flatten() {
            match chat.deliver(&delivery).await {
                Ok(()) => {
                    let last = done.entry(delivery.conversation).or_default();
                    *last = delivery.event_no.max(*last);
                }
                Err(error) => {
                    tracing::warn!(%error, conversation = %delivery.conversation,
                        "event not delivered yet; it is tried again");
                }
            }
        }
        if let Err(error) = chat.forget_delivered(done).await {
            tracing::warn!(%error, "delivered events stay in the outbox; they are not sent twice");
        }
        chat.0.dispatch.notify_one();
        chat.0.in_flight.fetch_sub(count, Ordering::SeqCst);
        chat.0.settled.notify_waiters();
    }
}

impl Chat {
    /// Queues the events of one change.
    pub(crate) async fn publish(&self, deliveries: Vec<Delivery>) {
        let Some(first) = deliveries.first() else { return };
        if self.0.roster.load().takes_push() {
            self.wake_outgoing();
        }
        let sum = first
            .conversation
            .as_str()
            .bytes()
            .fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte)));
        self.0.in_flight.fetch_add(1, Ordering::SeqCst);
        if self.0.lanes.0[sum % LANES].send(deliveries).await.is_err() {
            // The sweep of another instance delivers them.
            self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Delivers an event, and those before it that are not delivered yet.
    pub(crate) async fn deliver(&self, delivery: &Delivery) -> Result<(), Error> {
        let mut owner = delivery.envelope.owner.clone();
        for attempt in 0..ATTEMPTS {
            let reply = self.run_deliver(delivery, &owner, None).await?;
            let reply: Vec<&str> = reply.iter().map(String::as_str).collect();
            match reply.as_slice() {
                ["delivered", _, listed] => {
                    if *listed == "unlisted" {
                        self.fill_messages(&delivery.conversation).await?;
                    }
                    self.tell_sink(delivery).await;
                    return Ok(());
                }
                ["known"] => {
                    // Whoever delivered it may have been killed before it told others; it has an id of
                    // its own, so that told twice it counts once.
                    self.tell_sink(delivery).await;
                    return Ok(());
                }
                ["owner", actual] => owner = (*actual).to_owned(),
                ["missing"] => self.put_conversation(&delivery.conversation).await?,
                ["gap", _] => {
                    if self.deliver_earlier(delivery).await? == 0 {
                        // Somebody else delivers them at this moment.
                        tokio::time::sleep(Duration::from_millis(5 << attempt.min(5))).await;
                    }
                }
                ["stale"] => self.ensure_ready().await?,
                _ => return Err(unreadable("deliver")),
            }
        }
        Err(Error::conflict("NOT_DELIVERED", "the event found no place among those before it"))
    }

    /// Delivers everything of a conversation that is committed, without waiting for others.
    ///
    /// # Errors
    /// The store or the archive is away; it is delivered later.
    pub async fn deliver_now(&self, id: &ConversationId) -> Result<(), Error> {
        for delivery in self.undelivered(id, i64::MAX).await? {
            self.deliver(&delivery).await?;
        }
        Ok(())
    }

    async fn run_deliver(
        &self,
        delivery: &Delivery,
        owner: &str,
        base: Option<i64>,
    ) -> Result<Vec<String>, Error> {
        let (keys, envelope) = (&self.0.keys, &delivery.envelope);
        // Without an owner the key is not used; it must be one of the group all the same.
        let owned = match AgentId::parse(owner) {
            Ok(agent) => keys.assignments(&agent),
            Err(_) => keys.waiting.clone(),
        };
        Ok(deliver::run(
            &self.0.store,
            deliver::Keys {
                ready: &keys.ready,
                state: keys.conversation(&delivery.conversation),
                active: &keys.active,
                unread: &keys.unread,
                waiting: &keys.waiting,
                due: &keys.due,
                messages: keys.messages(&delivery.conversation),
                events: &keys.events,
                owned,
            },
            deliver::Args {
                now_ms: self.now(),
                id: delivery.conversation.as_str(),
                event_no: delivery.event_no,
                base: base.map(|base| base.to_string()),
                owner,
                status: envelope.status.as_str(),
                rank: envelope.rank,
                active_ms: text(envelope.active_ms),
                unread_score: text(envelope.unread_score),
                queue_score: text(envelope.queue_score),
                waiting_ms: text(envelope.waiting_ms),
                queued_ms: text(envelope.queued_ms),
                team: envelope.team.as_str(),
                skills: envelope.skills.as_str(),
                last_agent: envelope.last_agent.as_str(),
                list_change: envelope.list_change.as_str(),
                message: envelope.message.as_str(),
                visitor: envelope.visitor.as_str(),
                kind: envelope.kind.as_str(),
                data: envelope.data.as_str(),
                visitor_data: envelope.visitor_data.as_str(),
                ttl_s: PUBLISHED_TTL_S,
                events_most: EVENTS_MOST,
            },
        )
        .await?)
    }

    /// Delivers the events before this one that the archive still has. Everything before the first of
    /// them has been delivered, so the store's number may be behind only because it was lost.
    async fn deliver_earlier(&self, to: &Delivery) -> Result<usize, Error> {
        let earlier = self.undelivered(&to.conversation, to.event_no).await?;
        let Some(first) = earlier.first() else { return Ok(0) };
        let base = first.event_no - 1;
        let mut count = 0;
        for delivery in &earlier {
            let reply = self.run_deliver(delivery, &delivery.envelope.owner, Some(base)).await?;
            match reply.first().map(String::as_str) {
                Some("delivered") => {
                    count += 1;
                    self.tell_sink(delivery).await;
                    if reply.get(2).is_some_and(|listed| listed == "unlisted") {
                        self.fill_messages(&delivery.conversation).await?;
                    }
                }
                Some("known") => {}
                _ => break,
            }
        }
        Ok(count)
    }

    async fn undelivered(
        &self,
        conversation: &ConversationId,
        up_to: i64,
    ) -> Result<Vec<Delivery>, Error> {
        let rows = sqlx::query(
            "SELECT conversation_id, event_no, body FROM outbox \
             WHERE conversation_id = $1 AND event_no <= $2 ORDER BY event_no LIMIT 1000",
        )
        .bind(conversation.as_str().to_owned())
        .bind(up_to)
        .fetch_all(self.0.archive.readers())
        .await?;
        rows.iter().map(read_delivery).collect()
    }

    /// Puts the state of a conversation into the store that does not have it.
    async fn put_conversation(&self, id: &ConversationId) -> Result<(), Error> {
        let row = sqlx::query(
            "SELECT c.event_no AS event_no, c.assign_no AS assign_no, c.status AS status, \
             (SELECT MIN(o.event_no) FROM outbox o WHERE o.conversation_id = c.id) AS undelivered \
             FROM conversations c WHERE c.id = $1",
        )
        .bind(id.as_str().to_owned())
        .fetch_optional(self.0.archive.readers())
        .await?
        .ok_or(Error::NotFound { what: "conversation" })?;
        let event_no: i64 = row.try_get("event_no")?;
        let undelivered: Option<i64> = row.try_get("undelivered")?;
        let assign_no: i64 = row.try_get("assign_no")?;
        let status: String = row.try_get("status")?;
        let _: Vec<String> = put_conversation::run(
            &self.0.store,
            put_conversation::Keys { state: self.0.keys.conversation(id) },
            put_conversation::Args {
                event_no: undelivered.map_or(event_no, |first| first - 1),
                assign_no,
                status,
                ttl_s: PUBLISHED_TTL_S,
            },
        )
        .await?;
        Ok(())
    }

    /// Puts the last messages of a conversation back into its list.
    pub(crate) async fn fill_messages(&self, id: &ConversationId) -> Result<(), Error> {
        // One statement: a message that is committed between two of them would be in the list before its own
        // event adds it once more.
        let sql = format!(
            "SELECT m.*, c.event_no AS event_no FROM ({MESSAGE_SELECT} WHERE conversation_id = $1 \
             AND type <> 'note' ORDER BY seq DESC LIMIT $2) m JOIN conversations c ON c.id = $1 \
             ORDER BY m.seq DESC"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(id.as_str().to_owned())
            .bind(LISTED)
            .fetch_all(self.0.archive.readers())
            .await?;
        let Some(first) = rows.first() else { return Ok(()) };
        let event_no: i64 = first.try_get("event_no")?;
        let messages = rows.iter().map(Message::read).collect::<Result<Vec<_>, _>>()?;
        // With a newer event under way the script refuses, and that event fills the list.
        let _: Vec<String> = fill_messages::run(
            &self.0.store,
            fill_messages::Keys {
                state: self.0.keys.conversation(id),
                messages: self.0.keys.messages(id),
            },
            fill_messages::Args {
                event_no,
                ttl_s: PUBLISHED_TTL_S,
                items: messages.iter().map(Message::cached_json),
            },
        )
        .await?;
        Ok(())
    }

    async fn tell_sink(&self, delivery: &Delivery) {
        let sink = self.0.sink.read().clone();
        if let Some(sink) = sink {
            let (kind, data) = (&delivery.envelope.kind, &delivery.envelope.data);
            sink.take(kind, delivery.conversation.as_str(), delivery.event_no, data).await;
        }
    }

    async fn forget_delivered(&self, done: BTreeMap<ConversationId, i64>) -> Result<(), Error> {
        if done.is_empty() {
            return Ok(());
        }
        let statements: Vec<Statement> = done
            .iter()
            .map(|(id, last)| {
                Statement::new("DELETE FROM outbox WHERE conversation_id = $1 AND event_no <= $2")
                    .bind(id.as_str())
                    .bind(*last)
            })
            .collect();
        self.0
            .archive
            .write(move |tx| {
                let statements = statements.clone();
                Box::pin(async move { execute_all(tx, statements).await })
            })
            .await
    }

    /// Delivers what a killed process left behind. Returns the number of rows found.
    ///
    /// # Errors
    /// The archive or the store is away.
    pub async fn sweep_outbox(&self) -> Result<usize, Error> {
        let before = self.now().0 - super::millis(SWEEP_AGE);
        let rows = sqlx::query(
            "SELECT conversation_id, event_no, body FROM outbox WHERE created_ms <= $1 \
             ORDER BY number LIMIT $2",
        )
        .bind(before)
        .bind(SWEEP_ROWS)
        .fetch_all(self.0.archive.readers())
        .await?;
        let mut by_conversation: HashMap<ConversationId, Vec<Delivery>> = HashMap::new();
        for row in &rows {
            let delivery = read_delivery(row)?;
            by_conversation.entry(delivery.conversation.clone()).or_default().push(delivery);
        }
        let mut done = BTreeMap::new();
        for (id, mut deliveries) in by_conversation {
            deliveries.sort_by_key(|delivery| delivery.event_no);
            for delivery in &deliveries {
                self.deliver(delivery).await?;
                done.insert(id.clone(), delivery.event_no);
            }
        }
        self.forget_delivered(done).await?;
        Ok(rows.len())
    }
}

fn read_delivery(row: &sqlx::any::AnyRow) -> Result<Delivery, Error> {
    let id: String = row.try_get("conversation_id")?;
    let body: String = row.try_get("body")?;
    let envelope: Envelope =
        serde_json::from_str(&body).map_err(|error| Error::archive(error.to_string()))?;
    Ok(Delivery {
        conversation: ConversationId::parse(&id)?,
        event_no: row.try_get("event_no")?,
        envelope: Arc::new(envelope),
    })
}

fn text(number: Option<i64>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}
