//! A job queue on the BridgeMQ v1 schema: routes jobs to workers in any language.
//!
//! The keys and JSON documents of v1 are the contract: a v1 producer or worker in any language
//! works beside this library on the same keys at the same time. Beside them stand keys of our own
//! (`keys.rs` lists both) that make claims cheap, fair and fenced.
//!
//! Invariants: a job that was acknowledged is in exactly one state until it is removed; it is run
//! by one worker at a time, and only that one can end it; it is retried at most as often as it
//! says; what a type may run at once is counted exactly.
//!
//! Read in this order: [`Jobs`] here, `job.rs` (what a job is), `route.rs` (who may take it),
//! `dispatch.rs`, `claim.rs`, `complete.rs`, `fail.rs`, then `lua/`.

mod backoff;
mod cancel;
mod cancellations;
mod census;
mod claim;
mod complete;
mod config;
pub mod cron;
mod depend;
mod dispatch;
mod elect;
mod error;
mod events;
mod fail;
mod find;
mod ids;
mod ingest;
mod inspect;
mod job;
mod json;
pub mod keys;
mod lanes;
mod maintenance;
mod meter;
mod overview;
mod pause;
mod progress;
mod reads;
mod reason;
mod renew;
mod replay;
mod route;
mod run;
mod schedule;
mod scheduler;
mod scripts;
mod signals;
pub mod testing;
mod text;
mod wait;
pub mod worker;
mod workers;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicUsize},
};

use parking_lot::Mutex;
pub use store::{self, Millis, events::EventId};
use store::{Store, batcher::Batcher};
use tokio::sync::OnceCell;

pub use crate::{
    backoff::{Growth, WAIT_MAX},
    cancel::CancelOutcome,
    cancellations::{Cancellation, Cancellations},
    census::{Census, TypeCounts},
    claim::{CLAIM_MAX, ClaimBatch, Claimer, JobLease},
    complete::RESULT_MAX,
    config::Config,
    cron::Cron,
    dispatch::DispatchReceipt,
    elect::Leader,
    error::Error,
    events::{JobEvent, JobEvents},
    fail::{AckOutcome, FailedAttempt, FailureAction},
    find::{
        BulkAction, BulkReport, Cursor, DeadGroups, DeadLetterGroup, Filter, FoundJob, LOOK_MAX,
        RetryOutcome, SortKey,
    },
    ids::{JobId, JobType, NAME_MAX, Namespace, WorkerId},
    inspect::{JobCounts, JobList, JobView, LaneView, PAGE_MAX},
    job::{
        Backoff, CatchUp, Job, JobError, JobFormat, JobProgress, JobResult, MalformedJob, NewJob,
        OnParentFailure, Overlap, PARENTS_MAX, PAYLOAD_MAX, Priority, RateLimit, Retry, Schedule,
        Status, Task,
    },
    maintenance::{JobsMaintenance, MaintenanceReport},
    overview::{ListedJob, Overview},
    progress::LINE_MAX,
    reason::JobEndReason,
    renew::Renewal,
    route::{JobRoute, JobTarget, Labels, MatchMode, TargetWorker},
    run::{RUNS_MAX, RunOutcome, ScheduleRun},
    schedule::{Preview, ScheduleView},
    scheduler::{Scheduler, Tick},
    text::{DEPTH_MAX, MESSAGE_MAX, METADATA_MAX, NOTE_MAX, REASON_MAX, STACK_MAX},
    worker::{Fault, JobOutcome, Worker},
    workers::{HeldJob, WorkerActivity, WorkerInfo, WorkerView},
};
use crate::{
    census::KnownTypes, claim::Registry, complete::Success, dispatch::Ready, keys::Keys,
    meter::JobMeter, signals::SignalHub, workers::Tallies,
};

/// A job queue: one namespace of a store. A cheap clone.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tidegate_jobs::{Config, Jobs, NewJob};
///
/// let store = tidegate_jobs::store::Store::open("redis://127.0.0.1:6379").await?;
/// let jobs = Jobs::new(store, Config::default())?;
/// jobs.dispatch(NewJob::new("hello", &"world")?).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Jobs {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    keys: Keys,
    config: Config,
    dispatches: Batcher<Ready>,
    completions: Batcher<Success>,
    hub: OnceCell<SignalHub>,
    ends: OnceCell<SignalHub>,
    registry: Mutex<Registry>,
    tallies: Mutex<Tallies>,
    turn: AtomicUsize,
    meter: JobMeter,
    known_types: Mutex<KnownTypes>,
}

/// Calls of one kind that may be on their way at once. Two, so that the next is put together while
/// one is in flight.
const LEADS: usize = 2;

impl Jobs {
    /// The queue of a namespace on a store.
    pub fn new(store: Store, config: Config) -> Result<Self, Error> {
        config.check()?;
        let keys = Keys::new(&config.namespace, store.layout());
        let inner = Inner {
            store,
            keys,
            config,
            dispatches: Batcher::new(LEADS),
            completions: Batcher::new(LEADS),
            hub: OnceCell::new(),
            ends: OnceCell::new(),
            registry: Mutex::default(),
            tallies: Mutex::default(),
            turn: AtomicUsize::new(0),
            meter: JobMeter::default(),
            known_types: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The store it is on.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// Returns the settings.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The keys it uses.
    pub fn keys(&self) -> &Keys {
        &self.inner.keys
    }

    /// Returns the time of the store's clock.
    pub fn now(&self) -> Millis {
        self.inner.store.now()
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs")
            .field("namespace", &self.inner.config.namespace)
            .field("store", &self.inner.store)
            .finish_non_exhaustive()
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
