//! Job events: a stream that can be read from any position.

use std::time::Duration;

use store::events::{EventId, Feed, Follower};

use crate::{Error, JobId, Jobs};

/// One event: something happened to some jobs at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEvent {
    /// Its place in the stream.
    pub id: EventId,
    /// Name of the event: `dispatched`, `scheduled`, `due`, `started`, `completed`, `retrying`,
    /// `rerouted`, `snoozed`, `released`, `dead`, `failed`, `cancelled`, `expired`, `skipped`,
    /// `ready`, `replayed`, `recovered` or `adopted`.
    pub event: String,
    /// Time in milliseconds since 1970.
    pub at: i64,
    /// To which jobs.
    pub jobs: Vec<JobId>,
    /// More about it: the worker, the parent, the reason.
    pub why: Option<String>,
}

/// Reads events as they come.
#[derive(Debug)]
pub struct JobEvents(Follower);

impl Jobs {
    /// The latest place in the stream.
    pub async fn events_latest(&self) -> Result<EventId, Error> {
        Ok(self.feed().latest().await?.unwrap_or(EventId::START))
    }

    /// Events after a place, oldest first, at most `most`; and whether some are gone already.
    pub async fn events_after(
        &self,
        place: EventId,
        most: usize,
    ) -> Result<(Vec<JobEvent>, bool), Error> {
        let batch = self.feed().after(place, most).await?;
        Ok((batch.events.into_iter().map(read).collect(), batch.missed))
    }

    /// Reads events after a place as they come. Each reader has a connection of its own.
    pub async fn events(&self, place: EventId) -> Result<JobEvents, Error> {
        Ok(JobEvents(self.feed().follow(place).await?))
    }

    fn feed(&self) -> Feed {
        Feed::new(self.store(), self.keys().events(), self.config().events_max)
    }
}

impl JobEvents {
    /// Returns the events since the last call, waiting up to `wait` for one; and whether some events
    /// are gone already.
    pub async fn next(&mut self, wait: Duration) -> Result<(Vec<JobEvent>, bool), Error> {
        let batch = self.0.next(wait).await?;
        Ok((batch.events.into_iter().map(read).collect(), batch.missed))
    }
}

fn read(event: store::events::FeedEvent) -> JobEvent {
    let text = |name: &str| {
        event.get(name).map(|value| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
    };
    JobEvent {
        id: event.id,
        event: text("event"),
        at: text("at").parse().unwrap_or(0),
        jobs: text("ids").lines().map(JobId::stored).collect(),
        why: Some(text("why")).filter(|why| !why.is_empty()),
    }
}
