//! A virtual waiting room: holds a crowd outside a site, shows each visitor a true position, lets in
//! what the site can take.
//!
//! # What a room promises
//! - **Order.** Within a priority level, first come is first served; the position shown is one more
//!   than the number of visitors who will be let in before, if nobody joins or leaves.
//! - **Two limits, both hard.** Never more than `max_active` admitted and active together; never
//!   more admissions than the burst and the rate allow over any span of time, however many
//!   instances admit at once and however often they try.
//! - **A place is not lost by accident.** Refreshing, a sleeping phone, a pause, a crash of the
//!   service or of the store do not cost it; clocks stand still meanwhile.
//! - **An offer is a lease.** Who is admitted and does not come gives the slot back, returns once to
//!   the head of the lane, then loses the place. No session outlives its limits.
//!
//! # How it works
//! Everything that must be atomic is a script in `lua/`, run by the built-in store and by a Redis
//! server alike; every key a script touches is declared. A place goes
//! `waiting → admitted → active → completed`, or ends as expired, cancelled or revoked with a
//! [`Reason`]. [`Keeper`] does what time brings: admits, takes offers back, ends the silent.
//!
//! Read in this order: `config.rs`, `keys.rs`, `place.rs` (what is shown), then a verb per file:
//! `queue.rs`, `join.rs`, `status.rs`, `admit.rs`, `claim.rs`, `session.rs`, `leave.rs`,
//! `keeper.rs`; `token.rs`, `pass.rs`, `invite.rs` for what visitors carry; and `gate.rs` for what a
//! protected site asks with every request.
//!
//! ```no_run
//! # async fn example() -> Result<(), room::Error> {
//! use room::{NewPlace, QueueConfig, QueueId, Rate, Room, State};
//!
//! let store = store::Store::open("embedded:").await?;
//! let room = Room::open(store, room::Options::default()).await?;
//! let queue = QueueId::parse("concert-tickets")?;
//! let config = QueueConfig { admission: Rate::new(500, 60), ..QueueConfig::default() };
//! room.create_queue(&queue, config).await?;
//!
//! let joined = room.join(&queue, NewPlace::default()).await?;
//! match joined.place.state {
//!     State::Waiting => println!("you are number {:?}", joined.place.position),
//!     State::Admitted => println!("come in"),
//!     other => println!("{other:?}"),
//! }
//! # Ok(()) }
//! ```

mod address;
mod admit;
mod claim;
mod config;
mod error;
mod estimate;
mod events;
mod gate;
mod ids;
mod invite;
mod join;
mod keeper;
mod keys;
mod leave;
mod limit;
mod list;
mod pass;
mod place;
mod pulse;
mod queue;
mod reply;
mod scripts;
mod session;
mod signing;
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
use parking_lot::RwLock;
use store::{Millis, Store, gather::Gather};

pub use store::{events::EventId, limit::Verdict};

pub use crate::{
    admit::Admitted,
    claim::{Claim, Visitor},
    config::{
        Bound, CLAIM_WINDOW, Duplicates, HEARTBEAT_INTERVAL, HOLD, MAX_ACTIVE,
        MAX_ACTIVE_PER_ADDRESS, MAX_QUEUE_SIZE, POLL_CEILING, POLL_FLOOR, PROVISIONAL_TIMEOUT,
        Policy, QueueConfig, QueueStatus, RATE_BURST, RATE_COUNT, RATE_PER, RESERVED_SHARE, Rate,
        SESSION_MAX, SESSION_TIMEOUT, USER_AGENT_BYTES,
    },
    error::Error,
    estimate::{Estimate, NoEstimate, POLL_DIVISOR},
    events::{Event, Events, Following},
    gate::{Arrival, Inside},
    ids::{Level, PositionId, QueueId, SessionId},
    invite::{Invite, NewInvite},
    join::{Joined, NewPlace, Proof, check_key},
    keeper::{Keeper, Swept},
    keys::SECRET_KEYS,
    leave::Left,
    list::{PAGE, Which},
    pass::Pass,
    place::{Place, Reason, State},
    queue::{Ended, Queue},
    session::{End, Session, SessionStatus},
    signing::Algorithm,
    stats::{Hour, Stats, Totals},
    token::{Fault, PlaceToken},
};
use crate::{
    join::Join,
    keys::{QueueKeys, RoomKeys},
    pulse::Pulse,
    status::{Ask, Beat},
};

/// How a room works, apart from what each queue is set to.
#[derive(Clone)]
pub struct Options {
    /// How often the keeper looks. Default 100 ms; the limits do not depend on it.
    pub tick: Duration,
    /// A gap in the keeper's work after which it counts as an outage and clocks start afresh.
    /// Default 10 s.
    pub stall: Duration,
    /// How long a repeated idempotency key finds its place. Default 10 min.
    pub idempotency: Duration,
    /// Who signs passes (`iss`). Default `tidegate`.
    pub issuer: String,
    /// Seals private keys in the store; the same for all instances. Without it whoever can read
    /// the store can sign.
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
    /// Known queues, at most [`KNOWN_QUEUES`].
    queues: RwLock<HashMap<QueueId, Arc<Known>>>,
    /// What is the same for every visitor of a queue, a second old at most.
    pulses: RwLock<HashMap<QueueId, Arc<Pulse>>>,
    /// The last ticket proposed here.
    ticket: AtomicU64,
    addresses: address::Addresses,
    signing: ArcSwap<signing::KeySet>,
    gate: gate::Gate,
}

/// What is kept of a known queue: its spelled-out keys, and where calls for it meet.
#[derive(Debug)]
struct Known {
    queue: QueueId,
    keys: QueueKeys,
    asks: Gather<Ask>,
    beats: Gather<Beat>,
    joins: Gather<Join>,
}

/// What calls that meet are made with: the room, and the queue they are for.
#[derive(Debug)]
struct Here {
    room: Room,
    known: Arc<Known>,
}

impl std::ops::Deref for Known {
    type Target = QueueKeys;

    fn deref(&self) -> &QueueKeys {
        &self.keys
    }
}

/// Calls of one kind for one queue that are under way at the same time on a server, which may be far
/// away. The built-in store carries out one at a time anyway.
const LEADS: usize = 4;

/// How many queues are remembered between calls. Above it the memory starts anew, so that asking
/// for made-up names cannot fill it.
const KNOWN_QUEUES: usize = 4_096;

impl Room {
    /// Opens the waiting room on a store. Makes signing keys if there are none yet.
    pub async fn open(store: Store, options: Options) -> Result<Self, Error> {
        let keys = RoomKeys::new();
        let signing = signing::open(&store, &keys, options.secret.as_ref()).await?;
        Ok(Self(Arc::new(Inner {
            store,
            options,
            keys,
            queues: RwLock::default(),
            pulses: RwLock::default(),
            ticket: AtomicU64::new(0),
            addresses: address::Addresses::default(),
            signing: ArcSwap::from_pointee(signing),
            gate: gate::Gate::default(),
        })))
    }

    /// The store the room lives in.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// How the room works.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    fn now(&self) -> Millis {
        self.0.store.now()
    }

    fn here(&self, queue: &QueueId) -> Here {
        Here { room: self.clone(), known: self.known(queue) }
    }

    fn known(&self, queue: &QueueId) -> Arc<Known> {
        if let Some(keys) = self.0.queues.read().get(queue) {
            return Arc::clone(keys);
        }
        let leads = if self.0.store.embedded().is_some() { 1 } else { LEADS };
        let keys = Arc::new(Known {
            queue: queue.clone(),
            keys: QueueKeys::of(self.0.store.layout(), queue),
            asks: Gather::new(leads),
            beats: Gather::new(leads),
            joins: Gather::new(leads),
        });
        let mut known = self.0.queues.write();
        if known.len() >= KNOWN_QUEUES {
            known.clear();
        }
        // Somebody else may have been quicker: calls of one queue are to meet in one place.
        Arc::clone(known.entry(queue.clone()).or_insert(keys))
    }

    /// A ticket to propose: the current microsecond, and more than the last one proposed here.
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

/// The hour of a moment as statistics name it: `YYYYMMDDHH`, UTC.
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
