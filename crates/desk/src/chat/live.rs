//! Live events: one follower of the store's stream per instance, and bounded buffers for its clients.
//!
//! A client that comes back names the last event it saw and gets what followed, as long as the stream
//! has it; else it is told to fetch anew. Invariant: between the catch-up and what is buffered
//! meanwhile nothing is missing and nothing is twice, because ids only grow and both are compared.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use store::events::{EventBatch, EventId, Feed, FeedEvent};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Chat;
use crate::{AgentId, Error, UserId};

/// Events that may wait for one client; one more, and it is cut off and comes back.
pub const SUBSCRIBER_BUFFER: usize = 256;

/// Events that a client which comes back is given; with more it fetches anew.
const CATCH_UP_MOST: usize = 5_000;

/// Wait before a follower that failed is made anew.
const RETRY: Duration = Duration::from_millis(200);

/// Pause of the follower for each event handed to a client, at most [`PAUSE_MOST`]. With many clients several
/// events are then sent in one write, which costs about as much as one event; with few there is no pause.
const PAUSE_PER_DELIVERY: Duration = Duration::from_micros(20);

/// Longest pause of the follower.
const PAUSE_MOST: Duration = Duration::from_millis(10);

/// Shortest pause; timers are not finer.
const PAUSE_LEAST: Duration = Duration::from_millis(1);

/// The one who listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listener {
    /// An agent, who sees every conversation.
    Agent(AgentId),
    /// A visitor, who sees their own.
    Visitor(UserId),
}

/// The form in which an event is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveEncoding {
    /// A frame of a WebSocket.
    Socket,
    /// A server-sent event.
    ServerSent,
}

/// A live event.
#[derive(Clone)]
pub struct LiveEvent {
    /// Place in the stream.
    pub id: EventId,
    /// Type: `message.created`. `resync` tells clients to fetch everything anew.
    pub kind: String,
    /// The visitor it concerns; `*` all of them.
    visitor: String,
    /// JSON for agents.
    data: String,
    /// JSON for the visitor; empty if it is not for them.
    visitor_data: String,
    /// What is sent, made once for all clients: by encoding, for agents and for visitors.
    encoded: [OnceLock<Bytes>; 4],
}

impl fmt::Debug for LiveEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LiveEvent({} {})", self.id, self.kind)
    }
}

impl LiveEvent {
    fn read(event: &FeedEvent) -> Self {
        let text = |name: &str| {
            event
                .get(name)
                .map(|value| String::from_utf8_lossy(value).into_owned())
                .unwrap_or_default()
        };
        Self {
            id: event.id,
            kind: text("kind"),
            visitor: text("visitor"),
            data: text("data"),
            visitor_data: text("visitor_data"),
            encoded: Default::default(),
        }
    }

    fn resync(id: EventId) -> Self {
        let all = "{}".to_owned();
        Self {
            id,
            kind: "resync".to_owned(),
            visitor: "*".to_owned(),
            data: all.clone(),
            visitor_data: all,
            encoded: Default::default(),
        }
    }

    /// Returns the JSON for a listener; none if it does not concern them.
    pub fn data_for(&self, listener: &Listener) -> Option<&str> {
        match listener {
            Listener::Agent(_) => Some(&self.data),
            Listener::Visitor(id) => {
                let is_theirs = self.visitor == "*" || self.visitor == id.as_str();
                (is_theirs && !self.visitor_data.is_empty()).then_some(self.visitor_data.as_str())
            }
        }
    }

    /// Returns what is sent to a listener; none if the event does not concern them. `encode` is given the
    /// JSON and called by the first of all clients only.
    pub fn encoded_for(
        &self,
        listener: &Listener,
        encoding: LiveEncoding,
        encode: impl FnOnce(&str) -> Bytes,
    ) -> Option<Bytes> {
        let data = self.data_for(listener)?;
        let by_listener = match listener {
            Listener::Agent(_) => 0,
            Listener::Visitor(_) => 1,
        };
        let by_encoding = match encoding {
            LiveEncoding::Socket => 0,
            LiveEncoding::ServerSent => 2,
        };
        Some(self.encoded[by_encoding + by_listener].get_or_init(|| encode(data)).clone())
    }

    /// Returns true for the one that tells clients to fetch everything anew.
    pub fn is_resync(&self) -> bool {
        self.kind == "resync"
    }
}

/// The clients of this instance.
pub(crate) struct Hub {
    pub(crate) feed: Feed,
    /// Latest event when the chat was opened, before any client could listen: followed from here, no event
    /// falls between what a client was given as backlog and what is handed to it live.
    opened_at: EventId,
    next: AtomicU64,
    clients: Mutex<Clients>,
}

#[derive(Default)]
struct Clients {
    agents: HashMap<u64, Client>,
    visitors: HashMap<UserId, HashMap<u64, Client>>,
}

struct Client {
    events: mpsc::Sender<Arc<LiveEvent>>,
    is_behind: Arc<AtomicBool>,
}

impl Client {
    /// Hands over an event; false when the client is too far behind or gone.
    fn send(&self, event: &Arc<LiveEvent>) -> bool {
        match self.events.try_send(Arc::clone(event)) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.is_behind.store(true, Ordering::Relaxed);
                false
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }
}

impl Hub {
    /// Opens the hub at the latest event.
    ///
    /// # Errors
    /// The store is away.
    pub(crate) async fn open(feed: Feed) -> Result<Self, Error> {
        let opened_at = feed.latest().await?.unwrap_or(EventId::START);
        Ok(Self { feed, opened_at, next: AtomicU64::new(1), clients: Mutex::default() })
    }

    /// Hands an event to the clients it concerns. Returns their number.
    fn fan_out(&self, event: LiveEvent) -> u32 {
        let event = Arc::new(event);
        let mut sent = 0;
        let mut send = |client: &Client| {
            sent += 1;
            client.send(&event)
        };
        let mut clients = self.clients.lock();
        clients.agents.retain(|_, client| send(client));
        if event.visitor_data.is_empty() {
            return sent;
        }
        if event.visitor == "*" {
            clients.visitors.retain(|_, own| {
                own.retain(|_, client| send(client));
                !own.is_empty()
            });
        } else if let Ok(visitor) = UserId::parse(&event.visitor)
            && let Some(own) = clients.visitors.get_mut(&visitor)
        {
            own.retain(|_, client| send(client));
            if own.is_empty() {
                clients.visitors.remove(&visitor);
            }
        }
        sent
    }

    /// Returns the visitors who are connected to this instance.
    pub(crate) fn visitors(&self) -> Vec<UserId> {
        self.clients.lock().visitors.keys().cloned().collect()
    }

    /// Tells whether a visitor is connected to this instance.
    pub(crate) fn has_visitor(&self, visitor: &UserId) -> bool {
        self.clients.lock().visitors.contains_key(visitor)
    }

    fn count(&self) -> (usize, usize) {
        let clients = self.clients.lock();
        (clients.agents.len(), clients.visitors.values().map(HashMap::len).sum())
    }
}

/// A client's events. Dropped, it is forgotten.
pub struct LiveSubscription {
    chat: Chat,
    listener: Listener,
    number: u64,
    events: mpsc::Receiver<Arc<LiveEvent>>,
    is_behind: Arc<AtomicBool>,
    last: EventId,
}

impl fmt::Debug for LiveSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveSubscription").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl LiveSubscription {
    /// Waits for the next event that concerns the listener. None when they were cut off because they
    /// are too far behind, or the chat is gone.
    pub async fn next(&mut self) -> Option<Arc<LiveEvent>> {
        loop {
            let event = self.events.recv().await?;
            if self.is_news(&event) {
                return Some(event);
            }
        }
    }

    /// Returns the next event that concerns the listener if it is here already.
    pub fn next_now(&mut self) -> Option<Arc<LiveEvent>> {
        loop {
            let event = self.events.try_recv().ok()?;
            if self.is_news(&event) {
                return Some(event);
            }
        }
    }

    /// Tells whether an event concerns the listener and was not handed out before.
    fn is_news(&mut self, event: &LiveEvent) -> bool {
        if event.is_resync() {
            return true;
        }
        if event.id <= self.last {
            return false;
        }
        self.last = event.id;
        event.data_for(&self.listener).is_some()
    }

    /// Tells whether the listener was cut off because they are too far behind.
    pub fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// Returns the listener.
    pub fn listener(&self) -> &Listener {
        &self.listener
    }
}

impl Drop for LiveSubscription {
    fn drop(&mut self) {
        let mut clients = self.chat.0.hub.clients.lock();
        match &self.listener {
            Listener::Agent(_) => {
                clients.agents.remove(&self.number);
            }
            Listener::Visitor(visitor) => {
                if let Some(own) = clients.visitors.get_mut(visitor) {
                    own.remove(&self.number);
                    if own.is_empty() {
                        clients.visitors.remove(visitor);
                    }
                }
            }
        }
    }
}

/// The beginning of a client's events.
#[derive(Debug)]
pub struct LiveStart {
    /// Events that follow.
    pub subscription: LiveSubscription,
    /// Events since the one the client named.
    pub backlog: Vec<LiveEvent>,
    /// Nothing between that event and these is missing. If not, the client fetches anew.
    pub is_resumed: bool,
    /// The place to resume from as long as no event came: before the backlog, so that a client cut off
    /// within it gets the rest.
    pub place: EventId,
}

impl Chat {
    /// Begins a client's events, after the one it names.
    ///
    /// # Errors
    /// The store is away.
    pub async fn listen(
        &self,
        listener: Listener,
        resume: Option<EventId>,
    ) -> Result<LiveStart, Error> {
        let (events, receiver) = mpsc::channel(SUBSCRIBER_BUFFER);
        let (hub, is_behind) = (&self.0.hub, Arc::new(AtomicBool::new(false)));
        let number = hub.next.fetch_add(1, Ordering::Relaxed);
        let client = Client { events, is_behind: Arc::clone(&is_behind) };
        match &listener {
            Listener::Agent(_) => {
                hub.clients.lock().agents.insert(number, client);
            }
            Listener::Visitor(id) => {
                hub.clients.lock().visitors.entry(id.clone()).or_default().insert(number, client);
            }
        }
        // From here on everything is buffered; what is read now and buffered too is dropped by id.
        let mut subscription = LiveSubscription {
            chat: self.clone(),
            listener: listener.clone(),
            number,
            events: receiver,
            is_behind,
            last: EventId::START,
        };
        let latest = hub.feed.latest().await?.unwrap_or(EventId::START);
        let (mut backlog, mut is_resumed, mut place) = (Vec::new(), false, latest);
        let mut start = latest;
        if let Some(from) = resume.filter(|from| *from <= latest) {
            (start, place) = (from, from);
            let mut read = 0;
            is_resumed = loop {
                let batch = hub.feed.after(place, 1_000).await?;
                if batch.missed {
                    break false;
                }
                let Some(last) = batch.events.last() else { break true };
                place = last.id;
                read += batch.events.len();
                let concerned = batch.events.iter().map(LiveEvent::read);
                backlog.extend(concerned.filter(|event| event.data_for(&listener).is_some()));
                if read > CATCH_UP_MOST {
                    break false;
                }
            };
            if !is_resumed {
                backlog.clear();
                place = hub.feed.latest().await?.unwrap_or(EventId::START);
                start = place;
            }
        }
        subscription.last = place;
        Ok(LiveStart { subscription, backlog, is_resumed, place: start })
    }

    /// Returns the number of clients of this instance: agents and visitors.
    pub fn clients(&self) -> (usize, usize) {
        self.0.hub.count()
    }

    /// Follows the stream and hands events to this instance's clients, until told to stop.
    pub(crate) async fn follow(&self, stop: CancellationToken) {
        let work = async {
            let mut place = self.0.hub.opened_at;
            loop {
                if let Err(error) = self.follow_from(&mut place).await {
                    tracing::debug!(%error, "live events interrupted; none is lost");
                }
                tokio::time::sleep(RETRY).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = work => {}
        }
    }

    async fn follow_from(&self, place: &mut EventId) -> Result<(), Error> {
        let mut follower = self.0.hub.feed.follow(*place).await?;
        loop {
            let batch: EventBatch = follower.next(Duration::from_secs(5)).await?;
            if batch.missed {
                self.0.hub.fan_out(LiveEvent::resync(*place));
            }
            let (mut has_new_roster, mut sent) = (false, 0_u32);
            for event in &batch.events {
                let event = LiveEvent::read(event);
                has_new_roster |= event.kind == "roster.updated";
                *place = event.id;
                sent = sent.saturating_add(self.0.hub.fan_out(event));
            }
            if has_new_roster {
                self.load_roster().await?;
            }
            if batch.events.is_empty()
                && *place > EventId::START
                && self.0.hub.feed.latest().await?.is_none_or(|id| id < *place)
            {
                // The stream is gone, and with it what clients may have missed.
                self.0.hub.fan_out(LiveEvent::resync(*place));
                *place = EventId::START;
                return Ok(());
            }
            let pause = PAUSE_PER_DELIVERY.saturating_mul(sent).min(PAUSE_MOST);
            if pause >= PAUSE_LEAST {
                tokio::time::sleep(pause).await;
            }
        }
    }
}
