//! Live streams of operators: the events of a queue, in order and without gaps.
//!
//! One task per queue and process follows the queue's events, however many listeners there are, and
//! broadcasts each event encoded. A listener that wants older events, or fell behind, reads them from
//! the store and then listens again; event ids prevent duplicates.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use room::{Error, EventId, QueueId, Room, RoomEvent};
use tokio::sync::broadcast::{self, error::RecvError};

use super::stream::StreamSlot;
use super::view::RoomEventView;
use crate::service::RoomState;
use web::sse;

/// Maximum of open streams per process.
const MAX_STREAMS: usize = 256;
/// Events a listener may lag behind before it reads from the store again.
const CHANNEL_CAPACITY: usize = 256;
/// Events read from the store at once.
const BATCH: usize = 500;
/// Time the reader waits for an event before it checks for listeners.
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay between attempts while the store is unavailable.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Reconnection delay for browsers.
const HELLO: &[u8] = b"retry: 2000\n: hello\n\n";

/// Live streams of operators, by queue.
#[derive(Debug, Default)]
pub(super) struct OperatorStreams {
    queues: Mutex<HashMap<QueueId, broadcast::Sender<LiveEvent>>>,
    open: Arc<AtomicUsize>,
}

/// An encoded event; `None` says that events were lost, so that each listener reads from the store.
type LiveEvent = Option<(EventId, Bytes)>;

impl OperatorStreams {
    /// Returns the events of a queue after `after`; `None` if too many streams are open. `latest` is the
    /// newest event before this call.
    pub(super) fn follow(
        &self,
        state: &RoomState,
        room: &Room,
        queue: QueueId,
        after: EventId,
        latest: EventId,
    ) -> Option<impl Stream<Item = Bytes> + Send + 'static> {
        let slot = StreamSlot::acquire(&self.open, MAX_STREAMS)?;
        let mut queues = self.queues.lock();
        let receiver = if let Some(sender) = queues.get(&queue) {
            sender.subscribe()
        } else {
            let (sender, receiver) = broadcast::channel(CHANNEL_CAPACITY);
            queues.insert(queue.clone(), sender.clone());
            state.app.tasks().spawn(read(
                state.clone(),
                room.clone(),
                queue.clone(),
                latest,
                sender,
            ));
            receiver
        };
        drop(queues);
        let listener = OperatorStream {
            room: room.clone(),
            queue,
            last_id: after,
            receiver,
            behind: true,
            _slot: slot,
        };
        let hello = stream::once(async { Bytes::from_static(HELLO) });
        Some(hello.chain(stream::unfold(listener, OperatorStream::next).flatten()))
    }

    /// Removes a queue without listeners; returns whether it did.
    fn remove_unused(&self, queue: &QueueId, sender: &broadcast::Sender<LiveEvent>) -> bool {
        let mut queues = self.queues.lock();
        let unused = sender.receiver_count() == 0;
        if unused {
            queues.remove(queue);
        }
        unused
    }
}

/// Follows one queue until nobody listens or it is deleted; the streams end with the sender.
async fn read(
    state: RoomState,
    room: Room,
    queue: QueueId,
    latest: EventId,
    sender: broadcast::Sender<LiveEvent>,
) {
    let lives = &state.streams.lives;
    let mut following = None;
    while !lives.remove_unused(&queue, &sender) {
        let step = async {
            let following = match &mut following {
                Some(following) => following,
                none => none.insert(room.follow(&queue, latest).await?),
            };
            let found = following.next(READ_TIMEOUT).await?;
            if found.events.is_empty() {
                room.cached_queue(&queue).await?;
            }
            Ok(found)
        };
        let found = tokio::select! {
            found = step => found,
            () = state.app.stopped() => break,
        };
        match found {
            Ok(found) => {
                // An error means no receivers: the next round ends.
                if found.missed {
                    let _ = sender.send(None);
                }
                for event in found.events {
                    let _ = sender.send(Some((event.id, encoded(event))));
                }
            }
            Err(Error::UnknownQueue) => break,
            // The store is unavailable: nothing is lost, the follower keeps its event id.
            Err(_) => tokio::time::sleep(RETRY_DELAY).await,
        }
    }
    let mut queues = lives.queues.lock();
    if queues.get(&queue).is_some_and(|own| own.same_channel(&sender)) {
        queues.remove(&queue);
    }
}

fn encoded(event: RoomEvent) -> Bytes {
    let (kind, id) = (event.kind.clone(), event.id.to_string());
    let data = serde_json::to_string(&RoomEventView::of(event)).unwrap_or_default();
    sse::event(&kind, Some(&id), &data)
}

/// The stream of one operator.
struct OperatorStream {
    room: Room,
    queue: QueueId,
    /// The last event sent.
    last_id: EventId,
    receiver: broadcast::Receiver<LiveEvent>,
    /// There may be events in the store that were not received.
    behind: bool,
    _slot: StreamSlot,
}

impl OperatorStream {
    /// Waits for the next events.
    async fn next(mut self) -> Option<(stream::Iter<std::vec::IntoIter<Bytes>>, Self)> {
        loop {
            let mut out = Vec::new();
            if self.behind {
                let found = match self.room.events(&self.queue, self.last_id, BATCH).await {
                    Ok(found) => found,
                    Err(Error::UnknownQueue) => return None,
                    Err(_) => {
                        tokio::time::sleep(RETRY_DELAY).await;
                        continue;
                    }
                };
                if found.missed {
                    out.push(sse::event("missed", None, "{}"));
                }
                self.behind = found.events.len() == BATCH;
                for event in found.events {
                    self.last_id = event.id;
                    out.push(encoded(event));
                }
                if !out.is_empty() {
                    return Some((stream::iter(out), self));
                }
            }
            match self.receiver.recv().await {
                Ok(Some((id, event))) if id > self.last_id => {
                    self.last_id = id;
                    out.push(event);
                    return Some((stream::iter(out), self));
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(RecvError::Lagged(_)) => self.behind = true,
                Err(RecvError::Closed) => return None,
            }
        }
    }
}
