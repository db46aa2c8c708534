//! Events: capped streams that a reader can resume.
//!
//! A [`Feed`] keeps the last so many events. A reader remembers the id of the last event it saw and
//! asks for what came after; if that is no longer kept, the batch says so. Invariants: ids only
//! grow; a reader sees events in order and none twice.

use std::{fmt, str::FromStr, time::Duration};

use bytes::Bytes;
use redis::{FromRedisValue, ParsingError, RedisWrite, ToRedisArgs, ToSingleRedisArg, Value};

use crate::{BlockingConnection, Error, Key, Store, scripts::events_append};

/// The most events one call returns.
pub const BATCH_MOST: usize = 1_000;

/// An event's place in its stream: milliseconds and a number within them.
///
/// ```
/// use tidegate_store::events::EventId;
/// let id: EventId = "1767225600000-2".parse().unwrap();
/// assert!(id > EventId::START && id.to_string() == "1767225600000-2");
/// assert!("1767225600000".parse::<EventId>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId {
    ms: u64,
    seq: u64,
}

impl EventId {
    /// Before every event.
    pub const START: EventId = EventId { ms: 0, seq: 0 };
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

impl FromStr for EventId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse().ok()).flatten()
        };
        text.split_once('-')
            .and_then(|(ms, seq)| Some(Self { ms: number(ms)?, seq: number(seq)? }))
            .ok_or_else(|| Error::invalid(format!("{text:?} is not an event id (MILLIS-NUMBER)")))
    }
}

impl ToRedisArgs for EventId {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.write_arg_fmt(self);
    }
}

impl ToSingleRedisArg for EventId {}

impl FromRedisValue for EventId {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let text = String::from_redis_value(value)?;
        text.parse().map_err(|error: Error| ParsingError::from(error.to_string()))
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedEvent {
    /// Its place.
    pub id: EventId,
    /// Fields, in the order they were written.
    pub fields: Vec<(String, Bytes)>,
}

impl FeedEvent {
    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }
}

impl FromRedisValue for FeedEvent {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let (id, fields): (EventId, Vec<(String, Bytes)>) =
            FromRedisValue::from_redis_value(value)?;
        Ok(Self { id, fields })
    }
}

/// Events after a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventBatch {
    /// Oldest first.
    pub events: Vec<FeedEvent>,
    /// Events between that place and these may be gone already.
    pub missed: bool,
}

/// A capped stream in one key.
///
/// ```no_run
/// # async fn example(store: tidegate_store::Store, key: tidegate_store::Key) -> Result<(), tidegate_store::Error> {
/// use tidegate_store::events::{EventId, Feed};
///
/// let feed = Feed::new(&store, key, 10_000);
/// feed.append("req-81f2", &[("kind", "joined"), ("who", "p-1")]).await?;
/// let batch = feed.after(EventId::START, 100).await?;
/// assert_eq!(batch.events[0].get("kind").unwrap(), "joined");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Feed {
    store: Store,
    key: Key,
    most: usize,
}

impl Feed {
    /// A stream in `key` that keeps about `most` events, at least that many.
    pub fn new(store: &Store, key: Key, most: usize) -> Self {
        Self { store: store.clone(), key, most: most.max(1) }
    }

    /// Adds an event and returns its id. `request_id` makes a repeated call harmless while the
    /// event is among the last 32; an empty one is not remembered.
    pub async fn append<N, V>(&self, request_id: &str, fields: &[(N, V)]) -> Result<EventId, Error>
    where
        N: AsRef<str>,
        V: AsRef<[u8]>,
    {
        if fields.is_empty() {
            return Err(Error::invalid("an event has at least one field"));
        }
        let flat =
            fields.iter().flat_map(|(name, value)| [name.as_ref().as_bytes(), value.as_ref()]);
        let keys = events_append::Keys { stream: &self.key };
        let args = events_append::Args {
            now_ms: self.store.now(),
            most: self.most,
            request_id,
            fields: flat,
        };
        let (_, id): (String, EventId) = events_append::run(&self.store, keys, args).await?;
        Ok(id)
    }

    /// The id of the newest event.
    pub async fn latest(&self) -> Result<Option<EventId>, Error> {
        let mut store = self.store.clone();
        let cmd =
            redis::cmd("XREVRANGE").arg(&self.key).arg("+").arg("-").arg("COUNT").arg(1).to_owned();
        let events: Vec<FeedEvent> = cmd.query_async(&mut store).await?;
        Ok(events.first().map(|event| event.id))
    }

    /// At most `count` events after a place, without waiting.
    pub async fn after(&self, place: EventId, count: usize) -> Result<EventBatch, Error> {
        let count = count.clamp(1, BATCH_MOST);
        let mut store = self.store.clone();
        let mut pipe = redis::pipe();
        pipe.atomic();
        pipe.cmd("XRANGE").arg(&self.key).arg("-").arg("+").arg("COUNT").arg(1);
        // From the place itself on: whether it is still there tells whether something is missing.
        pipe.cmd("XRANGE").arg(&self.key).arg(place).arg("+").arg("COUNT").arg(count + 1);
        let (oldest, mut events): (Vec<FeedEvent>, Vec<FeedEvent>) =
            pipe.query_async(&mut store).await?;
        let oldest = oldest.first().map(|event| event.id);
        let present = events.first().is_some_and(|event| event.id == place);
        if present {
            events.remove(0);
        }
        events.truncate(count);
        let missed =
            place > EventId::START && !present && oldest.is_some_and(|oldest| oldest > place);
        Ok(EventBatch { events, missed })
    }

    /// A reader that waits for events after a place, on a connection of its own.
    pub async fn follow(&self, place: EventId) -> Result<Follower, Error> {
        Ok(Follower { feed: self.clone(), place, own: self.store.blocking().await? })
    }
}

/// A reader that waits. One connection each: share it among listeners.
#[derive(Debug)]
pub struct Follower {
    feed: Feed,
    place: EventId,
    own: BlockingConnection,
}

impl Follower {
    /// The id of the last event handed out.
    pub fn place(&self) -> EventId {
        self.place
    }

    /// Returns the events since the last call, waiting up to `wait` for one. An empty batch means
    /// that nothing came; after an error call again, no event is lost by it.
    pub async fn next(&mut self, wait: Duration) -> Result<EventBatch, Error> {
        let batch = self.feed.after(self.place, BATCH_MOST).await?;
        if batch.events.is_empty() && !batch.missed {
            let mut cmd = redis::cmd("XREAD");
            cmd.arg("COUNT").arg(BATCH_MOST).arg("BLOCK").arg(wait.as_millis().max(1) as u64);
            cmd.arg("STREAMS").arg(&self.feed.key).arg(self.place);
            let read: Option<Vec<(String, Vec<FeedEvent>)>> =
                cmd.query_async(&mut self.own).await?;
            let events = read.into_iter().flatten().flat_map(|(_, events)| events).collect();
            return Ok(self.take(EventBatch { events, missed: false }));
        }
        Ok(self.take(batch))
    }

    fn take(&mut self, batch: EventBatch) -> EventBatch {
        if let Some(last) = batch.events.last() {
            self.place = last.id;
        }
        batch
    }
}
