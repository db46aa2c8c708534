//! What happened, for those who want to follow: a capped stream per queue.
//!
//! Every event is written by the script that made the change, so none is lost or told twice. There
//! are none for heartbeats.

use std::time::Duration;

use serde_json::{Map, Value};
use store::{
    Millis,
    events::{EventId, Feed, Follower},
    redis,
};

use crate::{Error, QueueId, Room};

/// Something that happened in a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its place in the queue's stream; with the queue it is unique.
    pub id: EventId,
    /// What happened: `position.enqueued`, `position.admitted`, `position.returned`,
    /// `position.expired`, `position.cancelled`, `session.started`, `session.completed`,
    /// `session.expired`, `session.terminated`, `queue.created`, `queue.updated`, `queue.paused`,
    /// `queue.resumed`, `queue.maintenance`.
    pub kind: String,
    /// When.
    pub at: Millis,
    /// Where.
    pub queue: QueueId,
    /// Whom or what it is about: ids, reasons.
    pub data: Map<String, Value>,
}

impl Event {
    /// The name under which the event goes out: `waitingroom.position.admitted.v1`.
    pub fn subject(&self) -> String {
        format!("waitingroom.{}.v1", self.kind)
    }

    fn read(queue: &QueueId, event: &store::events::Event) -> Self {
        let text = |name: &str| {
            event
                .get(name)
                .map(|value| String::from_utf8_lossy(value).into_owned())
                .unwrap_or_default()
        };
        Self {
            id: event.id,
            kind: text("type"),
            at: Millis(text("timestamp").parse().unwrap_or(0)),
            queue: queue.clone(),
            data: serde_json::from_str(&text("data")).unwrap_or_default(),
        }
    }
}

/// Events after a place in the stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Events {
    /// Oldest first.
    pub events: Vec<Event>,
    /// Some between that place and these may be gone already.
    pub missed: bool,
}

/// Events a queue keeps, about.
pub(crate) const KEPT: usize = 10_000;

impl Room {
    /// At most `count` events of a queue after a place, without waiting.
    pub async fn events(
        &self,
        queue: &QueueId,
        after: EventId,
        count: usize,
    ) -> Result<Events, Error> {
        self.pulse(queue).await?;
        let batch = self.feed(queue).after(after, count).await?;
        let events = batch.events.iter().map(|event| Event::read(queue, event)).collect();
        Ok(Events { events, missed: batch.missed })
    }

    /// The newest events of a queue, newest first; a thousand at most.
    pub async fn newest_events(&self, queue: &QueueId, count: usize) -> Result<Vec<Event>, Error> {
        self.pulse(queue).await?;
        let found: Vec<store::events::Event> = redis::cmd("XREVRANGE")
            .arg(&self.known(queue).events)
            .arg("+")
            .arg("-")
            .arg("COUNT")
            .arg(count.clamp(1, store::events::BATCH_MOST))
            .query_async(&mut self.0.store.clone())
            .await?;
        Ok(found.iter().map(|event| Event::read(queue, event)).collect())
    }

    /// The id of a queue's newest event.
    pub async fn latest_event(&self, queue: &QueueId) -> Result<EventId, Error> {
        self.pulse(queue).await?;
        Ok(self.feed(queue).latest().await?.unwrap_or(EventId::START))
    }

    /// A reader that waits for events of a queue after a place. It has a connection of its own:
    /// share it among listeners.
    pub async fn follow(&self, queue: &QueueId, after: EventId) -> Result<Following, Error> {
        self.pulse(queue).await?;
        let follower = self.feed(queue).follow(after).await?;
        Ok(Following { queue: queue.clone(), follower })
    }

    fn feed(&self, queue: &QueueId) -> Feed {
        Feed::new(&self.0.store, self.known(queue).events.clone(), KEPT)
    }
}

/// A reader that waits.
#[derive(Debug)]
pub struct Following {
    queue: QueueId,
    follower: Follower,
}

impl Following {
    /// What came since the last call, waiting up to `wait` for something. Nothing came if it is
    /// empty. After an error call again; no event is lost by it.
    pub async fn next(&mut self, wait: Duration) -> Result<Events, Error> {
        let batch = self.follower.next(wait).await?;
        let events = batch.events.iter().map(|event| Event::read(&self.queue, event)).collect();
        Ok(Events { events, missed: batch.missed })
    }

    /// The id of the last event handed out.
    pub fn place(&self) -> EventId {
        self.follower.place()
    }
}
