//! Support chat: conversations, messages, live events, presence and assignment.
//!
//! The archive is the truth about conversations and messages; the store publishes their state under
//! the names of the schema, decides who is assigned, and carries live events. Invariants: a message
//! is acknowledged after its commit and has the sequence number 1, 2, 3 … of its conversation; its
//! event follows, also when the process that wrote it is killed; a conversation has at most one owner
//! and no agent more conversations than their capacity; what is published is rebuilt from the archive
//! before it is used whenever a part of it is missing.
//!
//! Read in this order: `record.rs` (what is stored), `send.rs` (messages), `outbox.rs` (from the
//! archive to the store), `rebuild.rs`, `live.rs` (events for clients), `presence.rs`, `assign.rs`,
//! `manage.rs` (changes of a conversation), `merge.rs`, `lists.rs`, `agents.rs`, `login.rs`, `hours.rs`;
//! `outgoing.rs` (what leaves the desk), `email.rs`, `push.rs`;
//! `lines.rs`, `export.rs` and `import.rs` turn an archive into JSON lines and back.

mod agents;
mod assign;
mod email;
mod export;
mod files;
mod hours;
mod import;
mod lines;
mod lists;
mod live;
mod login;
mod manage;
mod merge;
mod outbox;
mod outgoing;
mod presence;
mod push;
mod rebuild;
mod record;
mod reports;
mod send;
mod sla;
mod visitors;

use std::{
    collections::HashMap,
    fmt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use store::{Millis, Store, events::Feed, redis::AsyncCommands};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

pub(crate) use self::files::{file_path, hash_of};
use self::{agents::Roster, live::Hub, outbox::Lanes};
pub use self::{
    agents::{Agent, AgentChange, AgentRole, CannedResponse, NewAgent, Team},
    assign::{AssignRequest, AssignmentMode, WaitingPlace},
    export::{ExportReport, ExportScope, export_archive},
    files::{ChatFile, StoredFile},
    hours::{BusinessHours, Holiday},
    import::{BadLine, ImportCount, ImportReport, OpenLines, import_archive},
    lines::{LINES_FORMAT, LINES_VERSION},
    lists::{ConversationCounts, ConversationList, ConversationView, MessagePage},
    live::{Listener, LiveEncoding, LiveEvent, LiveStart, LiveSubscription, SUBSCRIBER_BUFFER},
    login::{LoginOutcome, PasswordHasher, TotpSetup},
    manage::ConversationChange,
    outgoing::{
        Courier, CourierOutcome, Email, OutgoingItem, OutgoingKind, OutgoingState, PushMessage,
    },
    presence::{AgentPresence, CONNECTION_LEASE, HEARTBEAT_LEASE, PresenceStatus},
    push::PushSubscription,
    record::{
        AgentNames, ChatPriority, ChatVisitor, Conversation, ConversationChannel,
        ConversationStatus, Message, MessageType, SenderRole, rfc3339, urgency_score,
    },
    reports::{ChatDashboard, ReportGroup, ReportRow},
    send::{MessageDraft, NewConversation, Sender, SentMessage},
    sla::{SlaTarget, SlaTargets},
    visitors::{VisitorChange, VisitorClaim},
};
use crate::{
    ConversationId, Error, InstanceId, Prefix, archive::Archive, keys::ChatKeys, scripts::announce,
    users::Users,
};

/// TTL of what is published, in seconds.
pub(crate) const PUBLISHED_TTL_S: i64 = 3_600;

/// TTL of the mark that what is published is whole, in seconds; shorter, so that it goes first.
pub(crate) const READY_TTL_S: i64 = 1_800;

/// Live events that are kept for clients that come back.
pub(crate) const EVENTS_MOST: usize = 10_000;

/// Options of the chat.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatOptions {
    /// The way agents are chosen.
    pub mode: AssignmentMode,
    /// Capacity of a new agent.
    pub default_capacity: u32,
    /// A conversation that waits gets the next higher rank each time this passes; zero never.
    pub ageing: Duration,
    /// An agent who does not reply within this loses the conversation; zero never.
    pub first_reply: Duration,
    /// An agent who is offline for this loses the conversations that wait for a reply.
    pub offline_grace: Duration,
    /// An agent without activity for this is away; zero never.
    pub away_after: Duration,
    /// A message to a conversation resolved at most this ago reopens it.
    pub reopen: Duration,
    /// Resolved conversations are deleted after this; zero keeps them.
    pub retention: Duration,
    /// Visitors without a login may chat.
    pub anonymous_chat: bool,
    /// Largest file in bytes.
    pub max_file_bytes: u64,
    /// Most bytes of files of one person.
    pub max_person_file_bytes: u64,
    /// Most bytes of all files.
    pub max_total_file_bytes: u64,
    /// Secret with which a site proves who its users are; empty refuses all proofs.
    pub widget_secret: String,
    /// Answers follow visitors who have left by e-mail; transcripts and invitations go out by it, too.
    pub email: bool,
    /// Time after which an answer follows by e-mail; those that come until then are in the same one.
    pub email_delay: Duration,
    /// Agents' browsers are notified.
    pub push: bool,
    /// Address of this program for links, without a slash at the end; empty: unknown.
    pub public_url: String,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self {
            mode: AssignmentMode::LeastLoaded,
            default_capacity: 10,
            ageing: Duration::from_secs(600),
            first_reply: Duration::from_secs(180),
            offline_grace: Duration::from_secs(60),
            away_after: Duration::from_secs(600),
            reopen: Duration::from_secs(7 * 86_400),
            retention: Duration::ZERO,
            anonymous_chat: true,
            max_file_bytes: 10 << 20,
            max_person_file_bytes: 100 << 20,
            max_total_file_bytes: 10 << 30,
            widget_secret: String::new(),
            email: false,
            email_delay: Duration::from_secs(120),
            push: false,
            public_url: String::new(),
        }
    }
}

/// Parts that a chat is opened with.
#[derive(Debug)]
pub struct ChatParts {
    /// The store.
    pub store: Store,
    /// Start of every key.
    pub prefix: Prefix,
    /// The archive.
    pub archive: Archive,
    /// Users and sessions: visitors and agents are among them.
    pub users: Users,
    /// This instance.
    pub instance: InstanceId,
    /// Folder of files.
    pub files: PathBuf,
    /// Options.
    pub options: ChatOptions,
}

/// Receives every event of a conversation, in order, at least once; for webhooks and the like.
pub trait EventSink: fmt::Debug + Send + Sync {
    /// Takes an event: its type, its conversation, a number that grows in the conversation, and its data.
    fn take<'a>(
        &'a self,
        kind: &'a str,
        conversation: &'a str,
        event_no: i64,
        data: &'a str,
    ) -> futures_util::future::BoxFuture<'a, ()>;
}

/// Support chat. A cheap clone.
#[derive(Clone)]
pub struct Chat(Arc<ChatInner>);

pub(crate) struct ChatInner {
    pub(crate) store: Store,
    pub(crate) keys: ChatKeys,
    pub(crate) archive: Archive,
    pub(crate) users: Users,
    pub(crate) instance: InstanceId,
    pub(crate) files: PathBuf,
    pub(crate) options: ArcSwap<ChatOptions>,
    pub(crate) roster: ArcSwap<Roster>,
    /// Agents are read and published by one task at a time.
    pub(crate) roster_turn: tokio::sync::Mutex<()>,
    pub(crate) hub: Hub,
    pub(crate) hasher: PasswordHasher,
    pub(crate) sink: RwLock<Option<Arc<dyn EventSink>>>,
    pub(crate) courier: RwLock<Option<Arc<dyn Courier>>>,
    /// Rings when something may be due to be sent.
    pub(crate) outgoing: Notify,
    /// Signs links back to conversations.
    pub(crate) link_key: tokio::sync::OnceCell<ring::hmac::Key>,
    lanes: Lanes,
    /// Deliveries under way.
    in_flight: AtomicUsize,
    settled: Notify,
    /// One rebuild at a time on this instance; the lease counts for the others.
    rebuilding: tokio::sync::Mutex<()>,
    /// Rings when a conversation may need an agent or an agent has room.
    dispatch: Notify,
    /// Connections of agents on this instance, for renewal.
    connections: Mutex<presence::LocalConnections>,
    /// Places that visitors were told.
    told_places: Mutex<HashMap<ConversationId, WaitingPlace>>,
    /// Availability by team at the last sweep.
    told_states: Mutex<String>,
    /// Measured seconds an agent spends on a conversation, in milliseconds; 0 unknown.
    handling_ms: AtomicI64,
}

impl fmt::Debug for Chat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chat").field("archive", &self.0.archive).finish_non_exhaustive()
    }
}

impl Chat {
    /// Opens the chat of a store and an archive.
    ///
    /// # Errors
    /// Other instances on this store use another archive; options out of bounds.
    pub async fn open(parts: ChatParts) -> Result<Self, Error> {
        let keys = ChatKeys::new(parts.store.layout(), &parts.prefix);
        let feed = Feed::new(&parts.store, keys.events.clone(), EVENTS_MOST);
        let (lanes, queues) = Lanes::new();
        let chat = Self(Arc::new(ChatInner {
            hub: Hub::open(feed).await?,
            store: parts.store,
            keys,
            archive: parts.archive,
            users: parts.users,
            instance: parts.instance,
            files: parts.files,
            options: ArcSwap::from_pointee(parts.options),
            roster: ArcSwap::default(),
            roster_turn: tokio::sync::Mutex::new(()),
            hasher: PasswordHasher::new(),
            sink: RwLock::default(),
            courier: RwLock::default(),
            outgoing: Notify::new(),
            link_key: tokio::sync::OnceCell::new(),
            lanes,
            in_flight: AtomicUsize::new(0),
            settled: Notify::new(),
            rebuilding: tokio::sync::Mutex::new(()),
            dispatch: Notify::new(),
            connections: Mutex::default(),
            told_places: Mutex::default(),
            told_states: Mutex::default(),
            handling_ms: AtomicI64::new(0),
        }));
        chat.check_archive().await?;
        chat.load_roster().await?;
        for queue in queues {
            tokio::spawn(outbox::run_lane(Arc::downgrade(&chat.0), queue));
        }
        Ok(chat)
    }

    /// Changes the options; they count for what happens from now on.
    pub fn configure(&self, options: ChatOptions) {
        self.0.options.store(Arc::new(options));
        self.0.dispatch.notify_one();
    }

    /// Hands every event to a receiver, besides clients.
    pub fn set_sink(&self, sink: Arc<dyn EventSink>) {
        *self.0.sink.write() = Some(sink);
    }

    /// Returns the options.
    pub fn options(&self) -> Arc<ChatOptions> {
        self.0.options.load_full()
    }

    /// Returns the archive.
    pub fn archive(&self) -> &Archive {
        &self.0.archive
    }

    /// Returns the users, of which visitors and agents are part.
    pub fn users(&self) -> &Users {
        &self.0.users
    }

    pub(crate) fn now(&self) -> Millis {
        self.0.store.now()
    }

    /// Sees that every instance on this store uses the same archive.
    async fn check_archive(&self) -> Result<(), Error> {
        let (mut store, key) = (self.0.store.clone(), &self.0.keys.archive);
        let id = self.0.archive.id();
        let _: bool = store.set_nx(key, id).await?;
        let found: Option<String> = store.get(key).await?;
        if found.as_deref() == Some(id) {
            return Ok(());
        }
        Err(Error::conflict(
            "OTHER_ARCHIVE",
            format!(
                "other instances on this store use another archive than {}; set desk.archive to theirs \
                 (postgres://… where they run on other machines), leave desk out of server.only if this \
                 instance need not serve it, or delete the key {key} when they are gone for good",
                self.0.archive.place(),
            ),
        ))
    }

    /// Returns the id of the archive that instances on a store use; none if none has begun yet.
    ///
    /// # Errors
    /// The store is away.
    pub async fn archive_id_in(store: &Store, prefix: &Prefix) -> Result<Option<String>, Error> {
        let keys = ChatKeys::new(store.layout(), prefix);
        Ok(store.clone().get(&keys.archive).await?)
    }

    /// Announces an event that leaves no trace: typing, presence, the length of the queue.
    pub(crate) async fn announce(
        &self,
        kind: &str,
        conversation: Option<(&ConversationId, &str)>,
        data: &serde_json::Value,
        is_for_visitor: bool,
    ) -> Result<(), Error> {
        let (id, visitor) = conversation.map_or(("", ""), |(id, visitor)| (id.as_str(), visitor));
        let data = data.to_string();
        let _: (String, String) = announce::run(
            &self.0.store,
            announce::Keys { events: &self.0.keys.events },
            announce::Args {
                now_ms: self.now(),
                conversation: id,
                visitor,
                kind,
                visitor_data: if is_for_visitor { data.as_str() } else { "" },
                data: data.as_str(),
                events_most: EVENTS_MOST,
            },
        )
        .await?;
        Ok(())
    }

    /// Waits until everything that was committed on this instance is published.
    pub async fn settle(&self) {
        loop {
            let settled = self.0.settled.notified();
            if self.0.in_flight.load(Ordering::SeqCst) == 0 {
                return;
            }
            settled.await;
        }
    }

    /// Does the background work until told to stop: follows events, hands out conversations, renews
    /// what is published, sends what a killed process left behind.
    pub async fn run(&self, stop: CancellationToken) {
        tokio::join!(
            self.follow(stop.clone()),
            self.run_dispatcher(stop.clone()),
            self.run_maintenance(stop.clone()),
            self.run_outgoing(stop),
        );
        self.settle().await;
    }
}

pub(crate) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

pub(crate) fn unreadable(script: &str) -> Error {
    Error::Store(store::Error::Decode {
        message: format!("the script {script} gave no known reply"),
    })
}

/// A queue of deliveries.
pub(crate) type DeliveryQueue = mpsc::Receiver<Vec<outbox::Delivery>>;
