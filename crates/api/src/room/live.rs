//! Live streams of operators: what happens in a queue, in order, none left out.
//!
//! One task per queue and process follows the queue's events, however many look on, and hands each
//! out encoded. A listener that asks for older ones, or was too slow, reads what it lacks from the
//! store and then listens again; ids tell what it has seen already, so nothing is told twice.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use room::{Error, Event, EventId, QueueId, Room};
use tokio::sync::broadcast::{self, error::RecvError};

use super::stream::Open;
use super::view::EventView;
use crate::app::App;
use crate::sse;

/// Open streams of one process.
const MOST: usize = 256;
/// Events a listener may be behind before it reads from the store again.
const BEHIND: usize = 256;
/// Events read from the store at once.
const BATCH: usize = 500;
/// How long the reader waits for an event before it looks whether anybody still listens.
const WAIT: Duration = Duration::from_secs(1);
/// Time between tries while the store is away.
const AGAIN: Duration = Duration::from_millis(500);
/// What browsers are told about coming back after a break.
const HELLO: &[u8] = b"retry: 2000\n: hello\n\n";

/// The queues operators look at.
#[derive(Debug, Default)]
pub(super) struct Lives {
    queues: Mutex<HashMap<QueueId, broadcast::Sender<Told>>>,
    open: Arc<AtomicUsize>,
}

/// An event, encoded; none says that some are gone, so that each listener looks for itself.
type Told = Option<(EventId, Bytes)>;

impl Lives {
    /// What happens in a queue after `after`; none if too many listen. `latest` is an event that
    /// was the newest before this call.
    pub(super) fn follow(
        &self,
        app: &App,
        room: &Room,
        queue: QueueId,
        after: EventId,
        latest: EventId,
    ) -> Option<impl Stream<Item = Bytes> + Send + 'static> {
        let open = Open::one_of(&self.open, MOST)?;
        let mut queues = self.queues.lock();
        let receiver = if let Some(sender) = queues.get(&queue) {
            sender.subscribe()
        } else {
            let (sender, receiver) = broadcast::channel(BEHIND);
            queues.insert(queue.clone(), sender.clone());
            tokio::spawn(read(app.clone(), room.clone(), queue.clone(), latest, sender));
            receiver
        };
        drop(queues);
        let listener = Listener {
            room: room.clone(),
            queue,
            place: after,
            receiver,
            behind: true,
            _open: open,
        };
        let hello = stream::once(async { Bytes::from_static(HELLO) });
        Some(hello.chain(stream::unfold(listener, Listener::next).flatten()))
    }

    /// Forgets a queue nobody looks at; says whether it did.
    fn forget(&self, queue: &QueueId, sender: &broadcast::Sender<Told>) -> bool {
        let mut queues = self.queues.lock();
        let unseen = sender.receiver_count() == 0;
        if unseen {
            queues.remove(queue);
        }
        unseen
    }
}

/// Follows one queue until nobody listens or it is taken away; the streams end with the sender.
async fn read(
    app: App,
    room: Room,
    queue: QueueId,
    latest: EventId,
    sender: broadcast::Sender<Told>,
) {
    let lives = &app.room_streams().lives;
    let mut following = None;
    while !lives.forget(&queue, &sender) {
        let step = async {
            let following = match &mut following {
                Some(following) => following,
                none => none.insert(room.follow(&queue, latest).await?),
            };
            let found = following.next(WAIT).await?;
            if found.events.is_empty() {
                room.queue_lately(&queue).await?;
            }
            Ok(found)
        };
        let found = tokio::select! {
            found = step => found,
            () = app.stopped() => break,
        };
        match found {
            Ok(found) => {
                // Nobody there to hear it is no failure: the next round ends.
                if found.missed {
                    let _ = sender.send(None);
                }
                for event in found.events {
                    let _ = sender.send(Some((event.id, encoded(event))));
                }
            }
            Err(Error::UnknownQueue) => break,
            // The store is away: nothing is lost, the place in the stream is kept.
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
    let mut queues = lives.queues.lock();
    if queues.get(&queue).is_some_and(|own| own.same_channel(&sender)) {
        queues.remove(&queue);
    }
}

fn encoded(event: Event) -> Bytes {
    let (kind, id) = (event.kind.clone(), event.id.to_string());
    let data = serde_json::to_string(&EventView::of(event)).unwrap_or_default();
    sse::event(&kind, Some(&id), &data)
}

/// An operator who looks.
struct Listener {
    room: Room,
    queue: QueueId,
    /// The last event told.
    place: EventId,
    receiver: broadcast::Receiver<Told>,
    /// There may be events in the store that were not heard.
    behind: bool,
    _open: Open,
}

impl Listener {
    /// The next events to tell, waiting for one.
    async fn next(mut self) -> Option<(stream::Iter<std::vec::IntoIter<Bytes>>, Self)> {
        loop {
            let mut out = Vec::new();
            if self.behind {
                let found = match self.room.events(&self.queue, self.place, BATCH).await {
                    Ok(found) => found,
                    Err(Error::UnknownQueue) => return None,
                    Err(_) => {
                        tokio::time::sleep(AGAIN).await;
                        continue;
                    }
                };
                if found.missed {
                    out.push(sse::event("missed", None, "{}"));
                }
                self.behind = found.events.len() == BATCH;
                for event in found.events {
                    self.place = event.id;
                    out.push(encoded(event));
                }
                if !out.is_empty() {
                    return Some((stream::iter(out), self));
                }
            }
            match self.receiver.recv().await {
                Ok(Some((id, event))) if id > self.place => {
                    self.place = id;
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
