//! Live streams of visitors: where a place stands, told by the server.
//!
//! One task per queue and process looks for all of its visitors at once, at every beat in which
//! something happened in the queue, whichever instance it happened on. A visitor's stream is a
//! bounded channel; who reads too slowly gets the newest state instead of every one. An open stream
//! counts as a sign of life. The first event is always the state as it is, so nothing is lost by
//! coming back.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;
use room::{Error, Place, PositionId, QueueId, QueueStatus, Room, State};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use super::live::Lives;
use super::view::PlaceView;
use crate::app::App;
use crate::sse;
use crate::waiting::words::Words;

/// Time between looks.
const BEAT: Duration = Duration::from_millis(500);
/// Least time between events to one visitor far from the front.
const FAR: Duration = Duration::from_secs(2);
/// Positions up to here are told at every beat.
const NEAR: u64 = 100;
/// Whoever may still wait this long polls.
const HORIZON: Duration = Duration::from_secs(120);
/// An open stream is a sign of life this often.
const SIGN_OF_LIFE: Duration = Duration::from_secs(20);
/// Open streams of one process; further visitors poll.
const MOST: usize = 20_000;
/// Open streams of one place; the oldest gives way.
const PER_PLACE: usize = 4;
/// Events a visitor may be behind.
const BEHIND: usize = 4;
/// What browsers are told about coming back after a break.
const HELLO: &[u8] = b"retry: 5000\n: hello\n\n";

/// The queues whose visitors have open streams.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    queues: Mutex<HashMap<QueueId, Arc<Mutex<Vec<Watcher>>>>>,
    open: Arc<AtomicUsize>,
    /// Those of operators.
    pub(super) lives: Lives,
}

/// A visitor with an open stream.
#[derive(Debug)]
struct Watcher {
    place: Place,
    address: IpAddr,
    words: Option<&'static Words>,
    sender: mpsc::Sender<Bytes>,
    /// What was last sent; nothing yet.
    told: Option<Told>,
    told_at: Instant,
    alive_at: Instant,
    /// Something happened since the last look.
    stale: bool,
}

/// What makes an event worth sending.
#[derive(Debug, Clone, PartialEq)]
struct Told {
    state: State,
    position: Option<u64>,
    waiting: u64,
    queue: QueueStatus,
    message: String,
}

/// Whether a place is near enough to the front for a stream.
pub(super) fn is_near(place: &Place) -> bool {
    place.state == State::Waiting
        && (place.position.is_some_and(|position| position <= NEAR)
            || place.estimate.is_ok_and(|wait| wait.high <= HORIZON))
}

/// Counts an open stream for as long as it is there.
pub(super) struct Open(Arc<AtomicUsize>);

impl Open {
    /// One more open stream; none if there are `most` already.
    pub(super) fn one_of(open: &Arc<AtomicUsize>, most: usize) -> Option<Open> {
        // Counted first, so that two who come at once do not both take the last one.
        let before = open.fetch_add(1, Ordering::Relaxed);
        let one = Open(Arc::clone(open));
        (before < most).then_some(one)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Streams {
    /// How many streams are open.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// A stream for a place; none if there are too many.
    pub(super) fn follow(
        &self,
        app: &App,
        place: Place,
        address: IpAddr,
        words: Option<&'static Words>,
    ) -> Option<impl Stream<Item = Bytes> + Send + 'static> {
        let open = Open::one_of(&self.open, MOST)?;
        let (sender, receiver) = mpsc::channel(BEHIND);
        let queue = place.queue.clone();
        let now = Instant::now();
        let watcher = Watcher {
            place,
            address,
            words,
            sender,
            told: None,
            told_at: now,
            alive_at: now,
            stale: true,
        };
        let mut queues = self.queues.lock();
        if let Some(inbox) = queues.get(&queue) {
            inbox.lock().push(watcher);
        } else {
            let inbox = Arc::new(Mutex::new(vec![watcher]));
            queues.insert(queue.clone(), Arc::clone(&inbox));
            tokio::spawn(run(app.clone(), queue, inbox));
        }
        drop(queues);
        let events = ReceiverStream::new(receiver).map(move |event| {
            let _counted = &open;
            event
        });
        Some(futures_util::stream::once(async { Bytes::from_static(HELLO) }).chain(events))
    }

    /// Forgets a queue nobody watches; says whether it did.
    fn forget(&self, queue: &QueueId, inbox: &Mutex<Vec<Watcher>>) -> bool {
        let mut queues = self.queues.lock();
        let unseen = inbox.lock().is_empty();
        if unseen {
            queues.remove(queue);
        }
        unseen
    }
}

/// Looks for the visitors of one queue until none is left.
async fn run(app: App, queue: QueueId, inbox: Arc<Mutex<Vec<Watcher>>>) {
    let mut watchers: Vec<Watcher> = Vec::new();
    let mut seen = String::new();
    let mut beat = tokio::time::interval(BEAT);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            () = app.stopped() => return,
        }
        watchers.retain(|watcher| !watcher.sender.is_closed());
        let new = std::mem::take(&mut *inbox.lock());
        if !new.is_empty() {
            watchers.extend(new);
            oldest_give_way(&mut watchers);
        }
        if watchers.is_empty() {
            if app.room_streams().forget(&queue, &inbox) {
                return;
            }
            continue;
        }
        let Some(room) = app.services().room.as_ref() else { return };
        // While the store is away nothing is told; pings keep the streams open.
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
        if let Err(error) = round(room, &app, &queue, &mut watchers, &latest, changed).await {
            tracing::debug!(error = %error, queue = %queue, "live streams wait for the store");
            continue;
        }
        seen = latest;
    }
}

/// One look for everybody who is due.
async fn round(
    room: &Room,
    app: &App,
    queue: &QueueId,
    watchers: &mut Vec<Watcher>,
    latest: &str,
    changed: bool,
) -> Result<(), Error> {
    let now = Instant::now();
    // Who is far from the front is told rarely, and of the newest state then.
    let due = |watcher: &Watcher| {
        let near = watcher.place.position.is_some_and(|position| position <= NEAR);
        let rested = now.duration_since(watcher.told_at) >= FAR;
        watcher.told.is_none() || watcher.stale && (near || rested)
    };
    for watcher in watchers.iter_mut() {
        watcher.stale |= changed;
    }
    let mut indexes: Vec<usize> = Vec::new();
    let mut places: Vec<Place> = Vec::new();
    for (index, watcher) in watchers.iter().enumerate().filter(|(_, watcher)| due(watcher)) {
        indexes.push(index);
        places.push(watcher.place.clone());
    }
    let gone = room.look_at(queue, &mut places).await?;
    for lost in gone {
        let Some(place) = places.get_mut(lost) else { continue };
        match room.status(queue, &place.id).await {
            Ok(found) => *place = found,
            Err(Error::UnknownPosition) => place.state = State::Expired,
            Err(error) => return Err(error),
        }
    }
    for (index, place) in indexes.into_iter().zip(places) {
        if let Some(watcher) = watchers.get_mut(index) {
            watcher.place = place;
            watcher.told_at = now;
            watcher.stale = !watcher.tell(app, latest);
        }
    }
    // Whoever came in or lost the place needs no more.
    watchers
        .retain(|watcher| watcher.told.as_ref().is_none_or(|told| told.state == State::Waiting));
    for watcher in watchers.iter_mut() {
        if now.duration_since(watcher.alive_at) >= SIGN_OF_LIFE {
            watcher.alive_at = now;
            let place = &watcher.place;
            room.heartbeat(queue, &place.id, Some(place.level), Some(watcher.address)).await?;
        }
    }
    Ok(())
}

impl Watcher {
    /// Sends the state if it is another than the last one sent; says whether the visitor has it.
    fn tell(&mut self, app: &App, latest: &str) -> bool {
        let place = &self.place;
        let new = Told {
            state: place.state,
            position: place.position,
            waiting: place.waiting,
            queue: place.queue_status,
            message: serde_json::to_string(&place.message).unwrap_or_default(),
        };
        if self.told.as_ref() == Some(&new) {
            return true;
        }
        let name = match (&self.told, place.state) {
            (_, State::Admitted | State::Active) => "admitted",
            (_, state) if state.is_over() => "expired",
            (Some(old), _) if old.queue != place.queue_status => match place.queue_status {
                QueueStatus::Active => "resumed",
                QueueStatus::Paused => "paused",
                QueueStatus::Maintenance => "maintenance",
            },
            (Some(old), _) if old.message != new.message => "message",
            _ => "position",
        };
        let view = PlaceView::of(place, app.store().now()).worded(place, self.words);
        let Ok(data) = serde_json::to_string(&view) else { return false };
        // A full channel keeps what was told, so that the next beat tries again with the newest.
        let sent = self.sender.try_send(sse::event(name, Some(latest), &data)).is_ok();
        if sent {
            self.told = Some(new);
        }
        sent
    }
}

/// Of more than a few streams of one place the oldest end.
fn oldest_give_way(watchers: &mut Vec<Watcher>) {
    let mut counts: HashMap<PositionId, usize> = HashMap::new();
    for watcher in watchers.iter() {
        *counts.entry(watcher.place.id).or_default() += 1;
    }
    watchers.retain(|watcher| {
        let count = counts.entry(watcher.place.id).or_default();
        let stays = *count <= PER_PLACE;
        *count -= usize::from(!stays);
        stays
    });
}
