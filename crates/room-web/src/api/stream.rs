//! Live streams of visitors: the status of a position as server-sent events.
//!
//! One task per queue and process refreshes all of its visitors at once, at every tick in which the
//! queue had an event, on whichever instance it happened. A visitor's stream is a bounded channel; a
//! slow reader gets the newest state instead of every one. An open stream counts as a heartbeat. The
//! first event is always the current state, so nothing is lost by reconnecting.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;
use room::{Error, Position, PositionId, PositionState, QueueId, QueueStatus, Room};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use super::live::OperatorStreams;
use super::view::PositionView;
use crate::service::RoomState;
use crate::waiting_page::i18n::Translation;
use web::sse;

/// Interval of refreshes.
const TICK: Duration = Duration::from_millis(500);
/// Minimum interval of events to a visitor far from the front.
const FAR_INTERVAL: Duration = Duration::from_secs(2);
/// Positions up to this number get an event at every tick.
const NEAR: u64 = 100;
/// Visitors with a longer estimated wait poll instead.
const MAX_STREAM_WAIT: Duration = Duration::from_secs(120);
/// An open stream is a heartbeat this often.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(20);
/// Maximum of open streams per process; further visitors poll.
const MAX_STREAMS: usize = 20_000;
/// Maximum of open streams per position; the oldest is closed.
const MAX_PER_POSITION: usize = 4;
/// Events a visitor may lag behind.
const CHANNEL_CAPACITY: usize = 4;
/// Reconnection delay for browsers.
const HELLO: &[u8] = b"retry: 5000\n: hello\n\n";

/// Live streams of visitors, by queue.
#[derive(Debug, Default)]
pub(crate) struct VisitorStreams {
    queues: Mutex<HashMap<QueueId, Arc<Mutex<Vec<Watcher>>>>>,
    open: Arc<AtomicUsize>,
    /// Live streams of operators.
    pub(super) lives: OperatorStreams,
}

/// A visitor with an open stream.
#[derive(Debug)]
struct Watcher {
    position: Position,
    address: IpAddr,
    texts: Option<&'static Translation>,
    sender: mpsc::Sender<Bytes>,
    /// The last state sent.
    sent: Option<SentState>,
    sent_at: Instant,
    alive_at: Instant,
    /// The queue had an event since the last refresh.
    stale: bool,
}

/// State last sent; another one is worth an event.
#[derive(Debug, Clone, PartialEq)]
struct SentState {
    state: PositionState,
    position: Option<u64>,
    waiting: u64,
    queue: QueueStatus,
    message: String,
}

/// Returns true if a position is near enough to the front for a stream.
pub(super) fn is_near(position: &Position) -> bool {
    position.state == PositionState::Waiting
        && (position.number.is_some_and(|position| position <= NEAR)
            || position.estimate.is_ok_and(|wait| wait.high <= MAX_STREAM_WAIT))
}

/// Counts an open stream until it is dropped.
pub(super) struct StreamSlot(Arc<AtomicUsize>);

impl StreamSlot {
    /// Acquires a slot; `None` if there are `most` already.
    pub(super) fn acquire(open: &Arc<AtomicUsize>, most: usize) -> Option<StreamSlot> {
        // Counted first, so that two callers cannot both take the last slot.
        let before = open.fetch_add(1, Ordering::Relaxed);
        let one = StreamSlot(Arc::clone(open));
        (before < most).then_some(one)
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl VisitorStreams {
    /// Returns the number of open streams.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Opens a stream for a position; `None` if there are too many.
    pub(super) fn follow(
        &self,
        state: &RoomState,
        position: Position,
        address: IpAddr,
        texts: Option<&'static Translation>,
    ) -> Option<impl Stream<Item = Bytes> + Send + 'static> {
        let slot = StreamSlot::acquire(&self.open, MAX_STREAMS)?;
        let (sender, receiver) = mpsc::channel(CHANNEL_CAPACITY);
        let queue = position.queue.clone();
        let now = Instant::now();
        let watcher = Watcher {
            position,
            address,
            texts,
            sender,
            sent: None,
            sent_at: now,
            alive_at: now,
            stale: true,
        };
        let mut queues = self.queues.lock();
        if let Some(inbox) = queues.get(&queue) {
            inbox.lock().push(watcher);
        } else {
            let inbox = Arc::new(Mutex::new(vec![watcher]));
            queues.insert(queue.clone(), Arc::clone(&inbox));
            state.app.tasks().spawn(run(state.clone(), queue, inbox));
        }
        drop(queues);
        let events = ReceiverStream::new(receiver).map(move |event| {
            let _counted = &slot;
            event
        });
        Some(futures_util::stream::once(async { Bytes::from_static(HELLO) }).chain(events))
    }

    /// Removes a queue without watchers; returns whether it did.
    fn remove_unused(&self, queue: &QueueId, inbox: &Mutex<Vec<Watcher>>) -> bool {
        let mut queues = self.queues.lock();
        let unused = inbox.lock().is_empty();
        if unused {
            queues.remove(queue);
        }
        unused
    }
}

/// Serves the visitors of one queue until none is left.
async fn run(state: RoomState, queue: QueueId, inbox: Arc<Mutex<Vec<Watcher>>>) {
    let mut watchers: Vec<Watcher> = Vec::new();
    let mut seen = String::new();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = state.app.stopped() => return,
        }
        watchers.retain(|watcher| !watcher.sender.is_closed());
        let new = std::mem::take(&mut *inbox.lock());
        if !new.is_empty() {
            watchers.extend(new);
            close_oldest(&mut watchers);
        }
        if watchers.is_empty() {
            if state.streams.remove_unused(&queue, &inbox) {
                return;
            }
            continue;
        }
        let room = &state.room;
        // While the store is unavailable nothing is sent; pings keep the streams open.
        let latest = match room.latest_event(&queue).await {
            Ok(id) => id.to_string(),
            Err(Error::UnknownQueue) => {
                // The streams end with their senders.
                watchers.clear();
                continue;
            }
            Err(_) => continue,
        };
        let changed = latest != seen;
        if let Err(error) = round(room, &state, &queue, &mut watchers, &latest, changed).await {
            tracing::debug!(error = %error, queue = %queue, "live streams are waiting for the store");
            continue;
        }
        seen = latest;
    }
}

/// Refreshes and notifies the watchers that are due.
async fn round(
    room: &Room,
    state: &RoomState,
    queue: &QueueId,
    watchers: &mut Vec<Watcher>,
    latest: &str,
    changed: bool,
) -> Result<(), Error> {
    let now = Instant::now();
    // Visitors far from the front get fewer events, each with the newest state.
    let due = |watcher: &Watcher| {
        let near = watcher.position.number.is_some_and(|position| position <= NEAR);
        let rested = now.duration_since(watcher.sent_at) >= FAR_INTERVAL;
        watcher.sent.is_none() || watcher.stale && (near || rested)
    };
    for watcher in watchers.iter_mut() {
        watcher.stale |= changed;
    }
    let mut indexes: Vec<usize> = Vec::new();
    let mut positions: Vec<Position> = Vec::new();
    for (index, watcher) in watchers.iter().enumerate().filter(|(_, watcher)| due(watcher)) {
        indexes.push(index);
        positions.push(watcher.position.clone());
    }
    let gone = room.refresh_positions(queue, &mut positions).await?;
    for lost in gone {
        let Some(position) = positions.get_mut(lost) else { continue };
        match room.status(queue, &position.id).await {
            Ok(found) => *position = found,
            Err(Error::UnknownPosition) => position.state = PositionState::Expired,
            Err(error) => return Err(error),
        }
    }
    for (index, position) in indexes.into_iter().zip(positions) {
        if let Some(watcher) = watchers.get_mut(index) {
            watcher.position = position;
            watcher.sent_at = now;
            watcher.stale = !watcher.send_if_changed(state, latest);
        }
    }
    // Admitted and ended positions need no more events.
    watchers.retain(|watcher| {
        watcher.sent.as_ref().is_none_or(|sent| sent.state == PositionState::Waiting)
    });
    for watcher in watchers.iter_mut() {
        if now.duration_since(watcher.alive_at) >= HEARTBEAT_EVERY {
            watcher.alive_at = now;
            let position = &watcher.position;
            room.heartbeat(queue, &position.id, Some(position.priority), Some(watcher.address))
                .await?;
        }
    }
    Ok(())
}

impl Watcher {
    /// Sends the state if it changed; returns whether the visitor has it.
    fn send_if_changed(&mut self, state: &RoomState, latest: &str) -> bool {
        let position = &self.position;
        let new = SentState {
            state: position.state,
            position: position.number,
            waiting: position.waiting,
            queue: position.queue_status,
            message: serde_json::to_string(&position.message).unwrap_or_default(),
        };
        if self.sent.as_ref() == Some(&new) {
            return true;
        }
        let name = match (&self.sent, position.state) {
            (_, PositionState::Admitted | PositionState::Active) => "admitted",
            (_, state) if state.is_over() => "expired",
            (Some(old), _) if old.queue != position.queue_status => match position.queue_status {
                QueueStatus::Active => "resumed",
                QueueStatus::Paused => "paused",
                QueueStatus::Maintenance => "maintenance",
            },
            (Some(old), _) if old.message != new.message => "message",
            _ => "position",
        };
        let view =
            PositionView::of(position, state.app.store().now()).with_texts(position, self.texts);
        let Ok(data) = serde_json::to_string(&view) else { return false };
        // If the channel is full, the next tick tries again with the newest state.
        let sent = self.sender.try_send(sse::event(name, Some(latest), &data)).is_ok();
        if sent {
            self.sent = Some(new);
        }
        sent
    }
}

/// Closes the oldest streams of a position that has too many.
fn close_oldest(watchers: &mut Vec<Watcher>) {
    let mut counts: HashMap<PositionId, usize> = HashMap::new();
    for watcher in watchers.iter() {
        *counts.entry(watcher.position.id).or_default() += 1;
    }
    watchers.retain(|watcher| {
        let count = counts.entry(watcher.position.id).or_default();
        let stays = *count <= MAX_PER_POSITION;
        *count -= usize::from(!stays);
        stays
    });
}
