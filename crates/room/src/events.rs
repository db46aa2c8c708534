//! Events of a queue: a capped stream per queue.
//!
//! Each event is written by the script that made the change, so none is lost or duplicated. Heartbeats
//! emit none.

use std::time::Duration;

use serde_json::{Map, Value};
use store::{
    Millis,
    events::{EventId, Feed, Follower},
    redis,
};

use crate::{Error, QueueId, Room};

/// An event of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct RoomEvent {
    /// Its id in the queue's stream; unique together with the queue.
    pub id: EventId,
    /// The event type: `position.enqueued`, `position.admitted`, `position.returned`,
    /// `position.expired`, `position.cancelled`, `session.started`, `session.completed`,
    /// `session.expired`, `session.terminated`, `queue.created`, `queue.updated`, `queue.paused`,
    /// `queue.resumed`, `queue.maintenance`.
    pub kind: String,
    /// Time of the event.
    pub at: Millis,
    /// The queue.
    pub queue: QueueId,
    /// Ids and reasons.
    pub data: Map<String, Value>,
}

impl RoomEvent {
    /// Returns the public name of the event: `waitingroom.position.admitted.v1`.
    pub fn subject(&self) -> String {
        format!("waitingroom.{}.v1", self.kind)
    }

    fn read(queue: &QueueId, event: &store::events::FeedEvent) -> Self {
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

/// A batch of events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoomEvents {
    /// Oldest first.
    pub events: Vec<RoomEvent>,
    /// True if events before these may have been trimmed.
    pub missed: bool,
}

/// Events kept per queue, about.
pub(crate) const KEPT: usize = 10_000;

impl Room {
    /// Returns at most `count` events of a queue after an id, without waiting.
    pub async fn events(
        &self,
        queue: &QueueId,
        after: EventId,
        count: usize,
    ) -> Result<RoomEvents, Error> {
        self.snapshot(queue).await?;
        let batch = self.feed(queue).after(after, count).await?;
        let events = batch.events.iter().map(|event| RoomEvent::read(queue, event)).collect();
        Ok(RoomEvents { events, missed: batch.missed })
    }

    /// Returns the newest events of a queue, newest first; at most 1,000.
    pub async fn newest_events(
        &self,
        queue: &QueueId,
        count: usize,
    ) -> Result<Vec<RoomEvent>, Error> {
        self.snapshot(queue).await?;
        let found: Vec<store::events::FeedEvent> = redis::cmd("XREVRANGE")
            .arg(&self.queue_cache(queue).events)
            .arg("+")
            .arg("-")
            .arg("COUNT")
            .arg(count.clamp(1, store::events::BATCH_MOST))
            .query_async(&mut self.0.store.clone())
            .await?;
        Ok(found.iter().map(|event| RoomEvent::read(queue, event)).collect())
    }

    /// Returns the id of a queue's newest event.
    pub async fn latest_event(&self, queue: &QueueId) -> Result<EventId, Error> {
        self.snapshot(queue).await?;
        Ok(self.feed(queue).latest().await?.unwrap_or(EventId::START))
    }

    /// Returns a reader that waits for events of a queue after an id. It has a connection of its own:
    /// share it among listeners.
    pub async fn follow(&self, queue: &QueueId, after: EventId) -> Result<QueueFollower, Error> {
        self.snapshot(queue).await?;
        let follower = self.feed(queue).follow(after).await?;
        Ok(QueueFollower { queue: queue.clone(), follower })
    }

    fn feed(&self, queue: &QueueId) -> Feed {
        Feed::new(&self.0.store, self.queue_cache(queue).events.clone(), KEPT)
    }
}

/// Waits for events of a queue.
#[derive(Debug)]
pub struct QueueFollower {
    queue: QueueId,
    follower: Follower,
}

impl QueueFollower {
    /// Returns the events since the last call, waiting up to `wait` for one; an empty batch after a
    /// timeout. After an error call again; no event is lost.
    pub async fn next(&mut self, wait: Duration) -> Result<RoomEvents, Error> {
        let batch = self.follower.next(wait).await?;
        let events = batch.events.iter().map(|event| RoomEvent::read(&self.queue, event)).collect();
        Ok(RoomEvents { events, missed: batch.missed })
    }

    /// Returns the id of the last event returned.
    pub fn last_id(&self) -> EventId {
        self.follower.place()
    }
}
