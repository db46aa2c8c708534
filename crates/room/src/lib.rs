//! A virtual waiting room: holds a crowd outside a site, shows each visitor a true position, and
//! admits as many as the site can take.
//!
//! # Guarantees
//! - **Order.** Within a priority, first come is first served; the position shown is one more than
//!   the number of visitors who will be admitted before, if nobody enqueues or leaves.
//! - **Two hard limits.** Never more than `max_active` admitted and active together; never more
//!   admissions than the burst and the rate allow over any span of time, however many instances
//!   admit at once and however often they try.
//! - **A position is not lost by accident.** Refreshing, a sleeping phone, a pause, a crash of the
//!   service or of the store do not cost it; clocks stand still meanwhile.
//! - **An admission is a lease.** A visitor who is admitted and starts no session within the admission
//!   window gives the slot back, returns once to the head of the lane, then loses the position. No
//!   session outlives its limits.
//!
//! # Mechanism
//! Everything that must be atomic is a script in `lua/`, run by the built-in store and by a Redis
//! server alike; every key a script touches is declared. A position goes
//! `waiting → admitted → active → completed`, or ends as expired, cancelled or revoked with an
//! [`EndReason`]. [`RoomMaintenance`] is the background task: it admits, takes back admissions that
//! were not used, and expires positions without heartbeats.
//!
//! Read in this order: `config.rs`, `keys.rs`, `position.rs` (what a visitor is shown), then a verb per
//! file: `queue.rs`, `enqueue.rs`, `status.rs`, `admit.rs`, `start_session.rs`, `session.rs`,
//! `leave.rs`, `maintenance.rs`; `token.rs`, `pass.rs`, `invite.rs` for credentials; and
//! `pass_check.rs` for the check a protected site makes with every request.
//!
//! ```no_run
//! # async fn example() -> Result<(), tidegate_room::Error> {
//! use tidegate_room::{AdmissionRate, NewPosition, PositionState, QueueConfig, QueueId, Room};
//!
//! let store = tidegate_room::store::Store::open("embedded:").await?;
//! let room = Room::open(store, tidegate_room::Options::default()).await?;
//! let queue = QueueId::parse("concert-tickets")?;
//! let config = QueueConfig { admission: AdmissionRate::new(500, 60), ..QueueConfig::default() };
//! room.create_queue(&queue, config).await?;
//!
//! let enqueued = room.enqueue(&queue, NewPosition::default()).await?;
//! match enqueued.position.state {
//!     PositionState::Waiting => println!("you are number {:?}", enqueued.position.number),
//!     PositionState::Admitted => println!("start a session"),
//!     other => println!("{other:?}"),
//! }
//! # Ok(()) }
//! ```

mod address;
mod admit;
mod config;
mod enqueue;
mod error;
mod estimate;
mod events;
mod figures;
mod find;
mod ids;
mod invite;
mod keys;
mod leave;
mod limit;
mod list;
mod maintenance;
mod pass;
mod pass_check;
mod position;
mod queue;
mod reply;
mod scripts;
mod session;
mod signing;
mod snapshot;
mod start_session;
mod stats;
mod status;
mod token;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use store::{Millis, Store, StoreKind, batcher::Batcher};

pub use store::{self, events::EventId, limit::CheckOutcome};

pub use crate::{
    admit::Admission,
    config::{
        ADMISSION_WINDOW, AdmissionRate, Bound, Duplicates, HEARTBEAT_INTERVAL, HOLD, MAX_ACTIVE,
        MAX_ACTIVE_PER_ADDRESS, MAX_QUEUE_SIZE, POLL_CEILING, POLL_FLOOR, PROVISIONAL_TIMEOUT,
        PriorityPolicy, QueueConfig, QueueStatus, RATE_BURST, RATE_COUNT, RATE_PER, RESERVED_SHARE,
        SESSION_MAX, SESSION_TIMEOUT, USER_AGENT_BYTES,
    },
    enqueue::{EnqueueOutcome, NewPosition, Proof, check_key},
    error::Error,
    estimate::{Estimate, NoEstimate, POLL_DIVISOR},
    events::{QueueFollower, RoomEvent, RoomEvents},
    figures::QueueFigures,
    find::{FIND_MAX_BYTES, VisitorMatch, WaitReason, email_hash},
    ids::{PositionId, QueueId, SessionId, VisitorPriority},
    invite::{Invite, NewInvite},
    keys::{RoomKeyMap, SECRET_KEYS},
    leave::LeaveOutcome,
    limit::POLLS_PER_MINUTE,
    list::{PAGE, PositionList},
    maintenance::{RoomMaintenance, RoomTickReport},
    pass::Pass,
    pass_check::{ActivePass, Arrival},
    position::{EndReason, Position, PositionState},
    queue::{EndCounts, Queue},
    session::{SessionEnd, SessionStatus, VisitorSession},
    signing::Algorithm,
    start_session::{SessionStart, Visitor},
    stats::{HISTORY_DAYS, Hour, QueueStats, StatsStep, Totals},
    token::{PositionToken, TokenError},
};
use crate::{
    admit::BlockedCursor,
    enqueue::EnqueueCall,
    keys::{QueueKeys, RoomKeys},
    snapshot::QueueSnapshot,
    status::{HeartbeatCall, StatusCall},
};

/// Options of a room that are the same for all of its queues.
#[derive(Clone)]
pub struct Options {
    /// Interval between rounds of [`RoomMaintenance`]. Default 100 ms; the limits do not depend on it.
    pub tick: Duration,
    /// Gap between rounds that counts as an outage, after which clocks start afresh. Default 10 s.
    pub stall: Duration,
    /// Time for which a repeated idempotency key finds its position. Default 10 min.
    pub idempotency: Duration,
    /// Issuer of passes (`iss`). Default `tidegate`.
    pub issuer: String,
    /// Secret that seals private keys in the store; the same for all instances. Without it, read access
    /// to the store is enough to sign.
    pub secret: Option<[u8; 32]>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("tick", &self.tick)
            .field("stall", &self.stall)
            .field("idempotency", &self.idempotency)
            .field("issuer", &self.issuer)
            .field("secret", &self.secret.map(|_| "…"))
            .finish()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(100),
            stall: Duration::from_secs(10),
            idempotency: Duration::from_secs(600),
            issuer: "tidegate".to_owned(),
            secret: None,
        }
    }
}

/// The waiting room. A cheap clone; all clones and all instances on one store share its queues.
#[derive(Clone)]
pub struct Room(Arc<Inner>);

struct Inner {
    store: Store,
    options: Options,
    keys: RoomKeys,
    /// Keys and batchers by queue, at most [`CACHED_QUEUES`].
    queues: RwLock<HashMap<QueueId, Arc<QueueCache>>>,
    /// Snapshots by queue, at most a second old.
    snapshots: RwLock<HashMap<QueueId, Arc<QueueSnapshot>>>,
    /// The last ticket proposed here.
    ticket: AtomicU64,
    addresses: address::AddressHasher,
    signing: ArcSwap<signing::KeySet>,
    passes: pass_check::PassCache,
    polls: store::limit::LimitCache<limit::PollName>,
}

/// Cached state of one queue: its keys, and the batchers of concurrent calls.
#[derive(Debug)]
struct QueueCache {
    queue: QueueId,
    keys: QueueKeys,
    status_batcher: Batcher<StatusCall>,
    heartbeat_batcher: Batcher<HeartbeatCall>,
    enqueue_batcher: Batcher<EnqueueCall>,
    /// Progress of admission past positions whose address has its share.
    blocked: Mutex<BlockedCursor>,
    /// Revocations and epoch of the queue that the cached passes know of.
    revocations: Mutex<Option<(u64, u64)>>,
}

/// Context a batch is sent with: the room and the queue.
#[derive(Debug)]
struct BatchContext {
    room: Room,
    cache: Arc<QueueCache>,
}

impl std::ops::Deref for QueueCache {
    type Target = QueueKeys;

    fn deref(&self) -> &QueueKeys {
        &self.keys
    }
}

/// Batches of one kind in flight per queue on a remote server. The built-in store runs one at a time
/// anyway.
const MAX_IN_FLIGHT: usize = 4;

/// Capacity of the caches by queue. A full cache is cleared, so that requests for made-up names cannot
/// grow it.
const CACHED_QUEUES: usize = 4_096;

impl Room {
    /// Opens the waiting room on a store. Creates signing keys if there are none.
    pub async fn open(store: Store, options: Options) -> Result<Self, Error> {
        let keys = RoomKeys::new();
        let signing = signing::open(&store, &keys, options.secret.as_ref()).await?;
        let polls = limit::poll_cache(&store);
        Ok(Self(Arc::new(Inner {
            store,
            options,
            keys,
            queues: RwLock::default(),
            snapshots: RwLock::default(),
            ticket: AtomicU64::new(0),
            addresses: address::AddressHasher::default(),
            signing: ArcSwap::from_pointee(signing),
            passes: pass_check::PassCache::default(),
            polls,
        })))
    }

    /// Returns the store.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    fn now(&self) -> Millis {
        self.0.store.now()
    }

    fn batch_context(&self, queue: &QueueId) -> BatchContext {
        BatchContext { room: self.clone(), cache: self.queue_cache(queue) }
    }

    fn queue_cache(&self, queue: &QueueId) -> Arc<QueueCache> {
        if let Some(keys) = self.0.queues.read().get(queue) {
            return Arc::clone(keys);
        }
        let max_in_flight =
            if self.0.store.kind() == StoreKind::Embedded { 1 } else { MAX_IN_FLIGHT };
        let keys = Arc::new(QueueCache {
            queue: queue.clone(),
            keys: QueueKeys::of(self.0.store.layout(), queue),
            status_batcher: Batcher::new(max_in_flight),
            heartbeat_batcher: Batcher::new(max_in_flight),
            enqueue_batcher: Batcher::new(max_in_flight),
            blocked: Mutex::default(),
            revocations: Mutex::default(),
        });
        let mut known = self.0.queues.write();
        if known.len() >= CACHED_QUEUES {
            known.clear();
        }
        // Another thread may have inserted it first: calls of one queue must share one batcher.
        Arc::clone(known.entry(queue.clone()).or_insert(keys))
    }

    /// Proposes a ticket: the current microsecond, but higher than any proposed here before.
    fn propose_ticket(&self, now: Millis, after: u64) -> u64 {
        let now_us = u64::try_from(now.0).unwrap_or(0).saturating_mul(1000);
        let least = now_us.max(after.saturating_add(1));
        let mut proposed = least;
        let _ = self.0.ticket.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
            proposed = least.max(last.saturating_add(1));
            Some(proposed)
        }); // always Some, so it cannot fail
        proposed
    }

    fn stall_ms(&self) -> i64 {
        i64::try_from(self.0.options.stall.as_millis()).unwrap_or(i64::MAX)
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").field("options", &self.0.options).finish_non_exhaustive()
    }
}

/// Formats the hour of a time as statistics keys do: `YYYYMMDDHH`, UTC.
fn hour(now: Millis) -> String {
    let hours = now.0.div_euclid(3_600_000);
    let (days, hour) = (hours.div_euclid(24), hours.rem_euclid(24));
    // Days to a date by the civil calendar of 400-year eras, which start on 1 March.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}{hour:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_named_by_its_date() {
        for (ms, name) in [
            (0, "1970010100"),
            (1_704_110_400_000, "2024010112"),
            (1_709_164_799_999, "2024022823"),
            (1_709_164_800_000, "2024022900"),
            (1_767_225_599_999, "2025123123"),
            (4_107_542_400_000, "2100030100"),
        ] {
            assert_eq!(hour(Millis(ms)), name);
        }
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
