//! Streams of published messages.
//!
//! A [`Subscription`] is a bounded buffer that a task (or the built-in engine) fills. Publishing is
//! at most once by nature, so the reader learns where messages may be missing:
//! [`PubsubMessage::Gap`] comes after a reconnect and after an overflow. Invariant: between two
//! gaps no message is missing and none comes twice.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use redis::{RedisResult, aio::PubSub};
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

#[cfg(feature = "embedded")]
use crate::embedded::{Embedded, OwnSession};
#[cfg(not(feature = "embedded"))]
use crate::no_embedded::{NoEmbedded as Embedded, NoSession as OwnSession};
use crate::{
    Error, Timeouts, error,
    link::{self, Connector},
};

/// Messages buffered for a reader before they are dropped and a gap is reported.
pub const BUFFER: usize = 1_024;

/// A message of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PubsubMessage {
    /// A message was published.
    Published {
        /// The channel it was published on.
        channel: String,
        /// The pattern that matched, when it came by a pattern.
        pattern: Option<String>,
        /// The payload.
        payload: Bytes,
    },
    /// Messages may be missing here: the connection was lost and is back, or the reader was too
    /// slow. Read what matters from the data itself.
    Gap,
}

/// A stream of messages that mends itself. Ends only with the store's own end.
pub struct Subscription {
    receiver: mpsc::Receiver<PubsubMessage>,
    missed: Arc<AtomicBool>,
    _task: Option<AbortOnDropHandle<()>>,
    /// The session on the built-in store, which ends with the subscription.
    _session: Option<OwnSession>,
}

impl Subscription {
    /// The next message.
    pub async fn recv(&mut self) -> Option<PubsubMessage> {
        self.next().await
    }
}

impl Stream for Subscription {
    type Item = PubsubMessage;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<PubsubMessage>> {
        match self.receiver.poll_recv(cx) {
            // Everything that came before the overflow has been read; now comes the gap. Tokio also
            // says "pending" to a reader that has used up its turn, hence the second look.
            Poll::Pending
                if self.receiver.is_empty() && self.missed.swap(false, Ordering::AcqRel) =>
            {
                Poll::Ready(Some(PubsubMessage::Gap))
            }
            polled => polled,
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("waiting", &self.receiver.len())
            .finish_non_exhaustive()
    }
}

/// The writing end of a subscription. Never waits.
#[derive(Debug)]
pub(crate) struct Publisher {
    sender: mpsc::Sender<PubsubMessage>,
    missed: Arc<AtomicBool>,
}

impl Publisher {
    /// Hands a message to the reader, or notes that one was missed. `false` when there is no reader
    /// any more.
    pub(crate) fn deliver(&self, message: PubsubMessage) -> bool {
        if self.missed.load(Ordering::Acquire) {
            match self.sender.try_send(PubsubMessage::Gap) {
                Ok(()) => self.missed.store(false, Ordering::Release),
                Err(mpsc::error::TrySendError::Full(_)) => return true,
                Err(mpsc::error::TrySendError::Closed(_)) => return false,
            }
        }
        match self.sender.try_send(message) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.missed.store(true, Ordering::Release);
                true
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }
}

/// Both ends of a bounded buffer; `task` is what fills it, if a task does.
pub(crate) fn buffer(size: usize) -> (Publisher, Subscription) {
    let (sender, receiver) = mpsc::channel(size.max(1));
    let missed = Arc::new(AtomicBool::new(false));
    let publisher = Publisher { sender, missed: Arc::clone(&missed) };
    (publisher, Subscription { receiver, missed, _task: None, _session: None })
}

/// Subscribes with a session of its own on the built-in store, which fills the buffer itself.
pub(crate) async fn on_embedded(
    embedded: &Embedded,
    channels: &[&str],
    patterns: &[&str],
) -> Result<Subscription, Error> {
    if channels.is_empty() && patterns.is_empty() {
        return Err(Error::invalid("a subscription needs a channel or a pattern"));
    }
    let (publisher, mut subscription) = buffer(BUFFER);
    subscription._session =
        Some(OwnSession::listen(embedded, publisher, channels, patterns).await?);
    Ok(subscription)
}

/// Subscribes on a connection of its own. Returns once the server has confirmed, so that what is
/// published from then on arrives.
pub(crate) async fn on_server(
    connector: Arc<dyn Connector>,
    timeouts: Timeouts,
    channels: &[&str],
    patterns: &[&str],
) -> Result<Subscription, Error> {
    let wanted = SubscriptionSet {
        channels: channels.iter().map(|name| (*name).to_owned()).collect(),
        patterns: patterns.iter().map(|name| (*name).to_owned()).collect(),
    };
    if wanted.channels.is_empty() && wanted.patterns.is_empty() {
        return Err(Error::invalid("a subscription needs a channel or a pattern"));
    }
    let place = connector.place();
    let first = wanted.open(connector.as_ref(), timeouts).await?;
    let (publisher, mut subscription) = buffer(BUFFER);
    let task = tokio::spawn(async move {
        let mut pubsub = first;
        while forward(pubsub, &place, &publisher, timeouts).await {
            tracing::warn!(channels = ?wanted.channels, patterns = ?wanted.patterns, "subscription lost");
            let mut attempt = 0;
            pubsub = loop {
                tokio::time::sleep(link::backoff(attempt, fastrand::f64())).await;
                if publisher.sender.is_closed() {
                    return;
                }
                match wanted.open(connector.as_ref(), timeouts).await {
                    Ok(pubsub) => break pubsub,
                    Err(error) => {
                        tracing::debug!(%error, attempt, "subscription still lost");
                        attempt = attempt.saturating_add(1);
                    }
                }
            };
            if !publisher.deliver(PubsubMessage::Gap) {
                return;
            }
        }
    });
    subscription._task = Some(AbortOnDropHandle::new(task));
    Ok(subscription)
}

struct SubscriptionSet {
    channels: Vec<String>,
    patterns: Vec<String>,
}

impl SubscriptionSet {
    async fn open(
        &self,
        connector: &dyn Connector,
        timeouts: Timeouts,
    ) -> RedisResult<(PubSub, String)> {
        let opening = async {
            let (mut pubsub, address) = connector.pubsub().await?;
            if !self.channels.is_empty() {
                pubsub.subscribe(&self.channels[..]).await?;
            }
            if !self.patterns.is_empty() {
                pubsub.psubscribe(&self.patterns[..]).await?;
            }
            Ok((pubsub, address))
        };
        match tokio::time::timeout(timeouts.connect * 4 + timeouts.response, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(error::timed_out("subscribing took too long")),
        }
    }
}

/// Forwards messages until the connection ends or leads to the wrong server (`true`), or there is
/// no reader (`false`).
async fn forward(
    (pubsub, address): (PubSub, String),
    place: &Option<watch::Receiver<String>>,
    publisher: &Publisher,
    timeouts: Timeouts,
) -> bool {
    let (mut sink, mut stream) = pubsub.split();
    loop {
        tokio::select! {
            message = tokio::time::timeout(timeouts.heartbeat, stream.next()) => match message {
                Ok(Some(message)) => {
                    let message = PubsubMessage::Published {
                        channel: message.get_channel_name().to_owned(),
                        pattern: message.get_pattern().ok().flatten(),
                        payload: Bytes::copy_from_slice(message.get_payload_bytes()),
                    };
                    if !publisher.deliver(message) {
                        return false;
                    }
                }
                Ok(None) => return true,
                // Silence: is the server still there?
                Err(_) => {
                    let pong = tokio::time::timeout(timeouts.response, sink.ping::<redis::Value>()).await;
                    if !matches!(pong, Ok(Ok(_))) {
                        return true;
                    }
                }
            },
            () = publisher.sender.closed() => return false,
            () = link::moved_from(place, &address) => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(text: &'static str) -> PubsubMessage {
        PubsubMessage::Published {
            channel: "c".to_owned(),
            pattern: None,
            payload: Bytes::from_static(text.as_bytes()),
        }
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_of_the_gap_where_it_is() {
        let (publisher, mut subscription) = buffer(2);
        for text in ["1", "2", "3", "4"] {
            assert!(publisher.deliver(published(text)));
        }
        assert_eq!(subscription.recv().await, Some(published("1")));
        // Room for one: the gap goes first, so the message after it waits for more room.
        assert!(publisher.deliver(published("5")));
        assert_eq!(subscription.recv().await, Some(published("2")));
        assert_eq!(subscription.recv().await, Some(PubsubMessage::Gap));
        assert_eq!(
            subscription.recv().await,
            Some(PubsubMessage::Gap),
            "5 had no room behind the gap"
        );
        assert!(publisher.deliver(published("6")));
        assert_eq!(subscription.recv().await, Some(published("6")));
    }

    #[tokio::test]
    async fn a_reader_that_used_up_its_turn_is_not_told_of_the_gap_too_early() {
        let (publisher, mut subscription) = buffer(1_000);
        (0..1_001).for_each(|_| _ = publisher.deliver(published("x")));
        for _ in 0..1_000 {
            assert_eq!(subscription.recv().await, Some(published("x")));
        }
        assert_eq!(subscription.recv().await, Some(PubsubMessage::Gap));
    }

    #[tokio::test]
    async fn a_gap_at_the_end_is_told_without_another_message() {
        let (publisher, mut subscription) = buffer(1);
        publisher.deliver(published("1"));
        publisher.deliver(published("2"));
        assert_eq!(subscription.recv().await, Some(published("1")));
        assert_eq!(subscription.recv().await, Some(PubsubMessage::Gap));
    }

    #[tokio::test]
    async fn a_publisher_without_a_reader_is_told() {
        let (publisher, subscription) = buffer(1);
        drop(subscription);
        assert!(!publisher.deliver(published("1")));
    }
}
