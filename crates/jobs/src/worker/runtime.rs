//! The worker runtime: claim, run, renew, acknowledge, stop.
//!
//! Three loops and some tasks share the jobs in flight:
//!
//! ```text
//!  claimer ── claims, and acknowledges successes in the same call ──┐
//!     │ prefetched                                                  │
//!     ▼                                                             │ outbox
//!  runners ── run handlers, as many as `concurrency` ───────────────┤
//!                                                                   ▼
//!  renewer ── renews leases, cancels handlers     acknowledger ── writes what no claim carries
//! ```
//!
//! The claimer keeps as many jobs in flight as can run, and prefetches a few more when they are quick.
//! Invariants: a job in flight is renewed until its outcome is written or it is released; every task
//! is joined before [`WorkerRuntime::run`] returns.

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use parking_lot::Mutex;
use store::{
    Millis,
    batcher::BYTES_MAX,
    trace::{self, SpanKind, TraceContext, TraceSpan},
};
use tokio::{sync::Notify, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tower::{Service as _, ServiceExt as _};
use tracing::{Instrument as _, Span};

use super::{JobOutcome, JobRequest, JobService, Options};
use crate::{
    Claimer, Error, JobError, JobId, JobLease, JobType, Jobs, Labels, Renewal,
    claim::{CLAIM_MAX, ClaimBatch},
    complete::Success,
    fail::{AttemptFailure, FailureAction, timed_out},
    signals::{Signal, SignalReceiver, SignalTopic},
};

/// Poll interval without a wake-up: v1 producers push without publishing.
const IDLE_POLL: Duration = Duration::from_secs(1);

/// Delay before a retry after the store failed.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Prefetches as many jobs as are finished in this time.
const PREFETCH_TARGET: Duration = Duration::from_millis(20);

/// Most prefetched jobs: while the jobs of one claim run, the next claim is in flight.
const PREFETCH_MAX: usize = 2 * CLAIM_MAX;

/// Longest wait of an acknowledgement for others to share its batch.
const ACK_BATCH_DELAY: Duration = Duration::from_millis(1);

/// Acknowledgements that are worth a second claim while one is in flight.
const SECOND_CLAIM_MIN_ACKS: usize = CLAIM_MAX / 2;

/// Longest wait of acknowledgements for a claim in flight: the next one carries them.
const CLAIM_WAIT_MAX: Duration = Duration::from_millis(5);

/// Prefetched quick jobs per runner. More runners would cost more than they gain.
const JOBS_PER_RUNNER: usize = 16;

/// Time a runner keeps its thread before it yields, and time without a finished job before
/// one more runner looks at the prefetched jobs.
const RUNNER_TURN: Duration = Duration::from_millis(1);

/// Most cancelled ids kept for jobs that a claim in flight may bring.
const PENDING_CANCELS_MAX: usize = 256;

/// Time a handler has to stop after it was cancelled.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit for acknowledging that a handler ran too long.
const TIMEOUT_ACK_TIMEOUT: Duration = Duration::from_secs(3);

/// Context of one attempt.
#[derive(Clone, Debug)]
pub struct AttemptContext {
    /// The queue.
    pub jobs: Jobs,
    /// Tells the handler to stop.
    pub cancel: CancellationToken,
    /// Time by which it must have ended.
    pub deadline: Option<Millis>,
}

/// A worker ready to run.
pub(crate) struct WorkerRuntime {
    pub(crate) jobs: Jobs,
    pub(crate) labels: Labels,
    pub(crate) types: Vec<JobType>,
    pub(crate) service: JobService,
    pub(crate) options: Options,
}

/// A job in flight.
#[derive(Debug)]
struct InFlightJob {
    lease: Arc<JobLease>,
    cancel: CancellationToken,
    why: Mutex<Option<StopCause>>,
}

/// The reason why a handler was cancelled.
#[derive(Clone, Debug)]
enum StopCause {
    Lost,
    Cancelled(String),
    Stopping,
}

/// State that the loops share.
#[derive(Debug, Default)]
struct WorkerState {
    in_flight: Mutex<HashMap<JobId, Arc<InFlightJob>>>,
    /// Jobs in flight that no runner has taken yet.
    prefetched: Mutex<VecDeque<Arc<InFlightJob>>>,
    /// Low-water mark: the claimer is woken when only so many prefetched jobs are left.
    low_water: AtomicUsize,
    /// Outcomes that nobody has begun to write.
    outbox: Mutex<Vec<Ack>>,
    /// Wakes the claimer: there is an outcome, or the low-water mark was reached.
    wake_claimer: Notify,
    /// Wakes the acknowledger: there are outcomes that no claim carries for now.
    write: Notify,
    /// Wakes the renewer: a job was cancelled before it was in flight.
    look: Notify,
    /// A claim is in flight.
    claiming: AtomicBool,
    /// Jobs cancelled while a claim was in flight. Lock order: after `in_flight`.
    cancel_pending: Mutex<PendingCancels>,
    /// Nothing is claimed any more.
    stopping: AtomicBool,
    /// No further outcome will come.
    closed: AtomicBool,
    /// Number of runners that have not taken their first job yet.
    starting: AtomicUsize,
    /// Number of runners that await their jobs, as opposed to polling them.
    waiting: AtomicUsize,
    /// Number of attempts that have ended.
    ended: AtomicU64,
    /// Running mean of the handlers' run time in microseconds.
    mean_us: AtomicU64,
}

/// Jobs that shall stop and are not in flight, though a claim that is in flight may bring them.
#[derive(Debug, Default)]
struct PendingCancels {
    ids: Vec<Arc<str>>,
    /// There were more than are kept.
    any: bool,
}

/// An attempt that has ended.
#[derive(Debug)]
struct Ack {
    held: Arc<InFlightJob>,
    outcome: AttemptResult,
    took: Duration,
}

#[derive(Debug)]
enum AttemptResult {
    Handler(JobOutcome),
    /// Succeeded, but the reply to its acknowledgement was lost. It is retried with the identical
    /// payload, so that the script recognizes it.
    AckRetry(Success),
    /// It was stopped and shall be handed back.
    Release,
    /// It is not ours any more.
    Lost,
}

impl WorkerRuntime {
    /// A claimer for this worker.
    pub(crate) fn claimer(&self) -> Claimer {
        self.jobs.claimer(self.labels.clone()).types(self.types.iter().cloned())
    }

    pub(crate) async fn run(self, cancel: CancellationToken) -> Result<(), Error> {
        let slots = u32::try_from(self.options.concurrency).unwrap_or(u32::MAX);
        let hostname = &self.options.hostname;
        self.jobs.register(&self.labels, Some(&self.types), hostname, Some(slots)).await?;
        let shared = Arc::new(WorkerState::default());
        // Roles, heartbeat and renewal go on until the last outcome is written.
        let finished = CancellationToken::new();
        // Whoever cancels a job that runs here is heard, so listening comes before claiming.
        let stops = self.jobs.signals(SignalTopic::Running).await.ok();
        let background = async {
            if self.options.background {
                let name = format!("{}-{}", self.labels.worker_id, JobId::random());
                self.jobs.run_background(&name, cancel.clone()).await;
            }
        };
        let work = async {
            self.work(&shared, &cancel).await;
            shared.close();
        };
        let acknowledge = async {
            self.acknowledge(&shared).await;
            finished.cancel();
        };
        // `FuturesUnordered`, not `join!`, so that a wake-up polls only the loop it is for.
        let mut loops = FuturesUnordered::<BoxFuture<'_, ()>>::new();
        loops.push(Box::pin(work));
        loops.push(Box::pin(acknowledge));
        loops.push(Box::pin(self.renew(&shared, stops, &finished)));
        loops.push(Box::pin(self.heartbeat(&finished)));
        loops.push(Box::pin(background));
        while loops.next().await.is_some() {}
        drop(loops);
        if let Err(error) = self.jobs.unregister(&self.labels.worker_id).await {
            tracing::debug!(%error, "worker not taken off the list");
        }
        Ok(())
    }

    /// Claims jobs and has them run until told to stop, then sees the running ones off.
    async fn work(&self, shared: &Arc<WorkerState>, cancel: &CancellationToken) {
        // A claim is in flight while jobs start and end, so that neither waits for the other.
        // Two may be, when jobs are quick: the store works on one while the reply of the other is
        // read here.
        let mut idle = vec![self.claimer().pipelined(), self.claimer()];
        let mut claiming = FuturesUnordered::<ClaimFuture>::new();
        let mut asked = 0;
        let mut signals: Option<SignalReceiver> = None;
        let mut runners = JoinSet::new();
        // Until when there is nothing to claim, unless somebody calls.
        let mut rest: Option<Instant> = None;
        // How many runners there are on top, because jobs that should be quick are not.
        let (mut extra, mut ended) = (0, 0);
        while !cancel.is_cancelled() {
            while let Some(result) = runners.try_join_next() {
                log_join(result);
            }
            let prefetched = self.start(shared, &mut runners, &mut extra);
            if signals.is_none() {
                signals = self.jobs.signals(SignalTopic::Line).await.ok();
                if signals.is_some() {
                    // Nobody listened until now.
                    rest = None;
                }
            }
            let prefetch = self.prefetch(shared);
            shared.low_water.store(prefetch / 2, Ordering::Relaxed);
            let (limit, in_flight) = (self.options.concurrency, prefetched + runners.len());
            let wanted = (limit + prefetch).saturating_sub(in_flight + asked).min(CLAIM_MAX);
            let worth = match claiming.len() {
                // A round trip for one more prefetched job is not worth it.
                0 => in_flight < limit || prefetch > 0 && 2 * prefetched <= prefetch,
                _ => {
                    prefetched + asked <= prefetch
                        && shared.outbox.lock().len() >= SECOND_CLAIM_MIN_ACKS
                }
            };
            if wanted > 0
                && worth
                && rest.is_none_or(|until| until <= Instant::now())
                && let Some(claimer) = idle.pop()
            {
                rest = None;
                asked += wanted;
                shared.claims_under_way(true);
                claiming.push(self.claim(shared, claimer, wanted));
            } else if !shared.outbox.lock().is_empty() {
                shared.write.notify_one();
            }
            let until = rest.unwrap_or_else(|| Instant::now() + IDLE_POLL);
            // Those who are about to start take what they were started for.
            let more_could_run =
                prefetched > shared.starting.load(Ordering::Relaxed) && runners.len() < limit;
            tokio::select! {
                biased;
                () = cancel.cancelled() => {}
                Some(claim) = claiming.next() => {
                    asked -= claim.wanted;
                    let (claimer, claimed) = self.claimed(shared, claim);
                    shared.claims_under_way(!claiming.is_empty());
                    idle.push(claimer);
                    rest = claimed.err().map(|wait| Instant::now() + wait);
                }
                Some(result) = runners.join_next() => log_join(result),
                () = shared.wake_claimer.notified() => {}
                () = tokio::time::sleep(RUNNER_TURN), if more_could_run => {
                    let before = std::mem::replace(&mut ended, shared.ended.load(Ordering::Relaxed));
                    extra += usize::from(ended == before);
                }
                () = tokio::time::sleep_until(until), if claiming.is_empty() && wanted > 0 => rest = None,
                () = called(idle.last(), &mut signals), if claiming.is_empty() && wanted > 0 => {
                    rest = None;
                }
            }
        }
        shared.stopping.store(true, Ordering::Relaxed);
        while let Some(claim) = claiming.next().await {
            // What it takes is handed back with the rest.
            let _ = self.claimed(shared, claim);
        }
        shared.write.notify_one();
        self.see_off(shared, runners).await;
    }

    /// A call that carries what has succeeded, and claims.
    fn claim(&self, shared: &WorkerState, mut claimer: Claimer, wanted: usize) -> ClaimFuture {
        let (carried, successes) = self.carry(shared);
        let lease = self.jobs.config().lock_ttl;
        Box::pin(async move {
            let done: Vec<&Success> = successes.iter().collect();
            let (counted, claimed) = claimer.complete_and_claim_batch(wanted, lease, &done).await;
            drop(done);
            ClaimReturn { claimer, wanted, claimed, carried, successes, counted }
        })
    }

    /// Takes from the outbox what has succeeded, as much as goes into one call.
    fn carry(&self, shared: &WorkerState) -> (Vec<Ack>, Vec<Success>) {
        let (mut carried, mut successes, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut outbox = shared.outbox.lock();
        let mut left = Vec::new();
        for ended in outbox.drain(..) {
            if carried.len() < CLAIM_MAX
                && bytes < BYTES_MAX
                && matches!(
                    &ended.outcome,
                    AttemptResult::Handler(JobOutcome::Done(_)) | AttemptResult::AckRetry(_)
                )
                && let Disposition::Success(success) =
                    self.disposition(&ended.held.lease, &ended.outcome, ended.took)
            {
                bytes += success.result.len();
                successes.push(success);
                carried.push(ended);
            } else {
                left.push(ended);
            }
        }
        *outbox = left;
        (carried, successes)
    }

    /// Takes note of what a call came to. The error is how long to wait before the next.
    fn claimed(&self, shared: &WorkerState, claim: ClaimReturn) -> (Claimer, Result<(), Duration>) {
        let ClaimReturn { claimer, claimed, carried, successes, counted, .. } = claim;
        match counted {
            Some(counted) => {
                for (ended, counted) in carried.iter().zip(counted) {
                    if !counted {
                        tracing::info!(job = %ended.held.lease.id(), "lease lost; the result does not count");
                    }
                }
                shared.let_go(&carried);
            }
            // Whether they were written is not known; the acknowledger writes them, or again.
            None => {
                let again = carried.into_iter().zip(successes).map(|(ended, success)| Ack {
                    outcome: AttemptResult::AckRetry(success),
                    ..ended
                });
                shared.outbox.lock().splice(0..0, again);
                shared.write.notify_one();
            }
        }
        let next = match claimed {
            Ok(claimed) => {
                // A claim that took all there was need not be followed by one that finds nothing:
                // whatever comes to an empty lane calls.
                let next = match claimed.more {
                    true => Ok(()),
                    false => Err(claimed.wait.unwrap_or(IDLE_POLL).min(IDLE_POLL)),
                };
                shared.add_in_flight(claimed.leases);
                next
            }
            Err(error) => {
                tracing::warn!(%error, "claim failed");
                Err(RETRY_DELAY)
            }
        };
        (claimer, next)
    }

    /// Returns the number of jobs to prefetch.
    fn prefetch(&self, shared: &WorkerState) -> usize {
        match self.options.prefetch {
            Some(prefetch) => prefetch,
            None => match shared.mean_us.load(Ordering::Relaxed) {
                // Nothing is known yet.
                0 => 0,
                mean => {
                    let worked_off = PREFETCH_TARGET.as_micros() as u64 / mean;
                    let limit = worked_off.saturating_mul(self.options.concurrency as u64);
                    usize::try_from(limit).unwrap_or(PREFETCH_MAX).min(PREFETCH_MAX)
                }
            },
        }
    }

    /// Starts runners for the prefetched jobs, and says how much that is.
    fn start(
        &self,
        shared: &Arc<WorkerState>,
        runners: &mut JoinSet<()>,
        extra: &mut usize,
    ) -> usize {
        let prefetched = shared.prefetched.lock().len();
        if prefetched == 0 {
            *extra = 0;
            return 0;
        }
        // Quick jobs need few runners, as long as none of these has to wait for its job.
        let enough = match shared.is_quick() {
            true => {
                prefetched.div_ceil(JOBS_PER_RUNNER)
                    + shared.waiting.load(Ordering::Relaxed)
                    + *extra
            }
            false => prefetched + runners.len(),
        };
        while runners.len() < enough.min(self.options.concurrency) {
            let (shared, jobs) = (Arc::clone(shared), self.jobs.clone());
            shared.starting.fetch_add(1, Ordering::Relaxed);
            runners.spawn(run(shared, jobs, self.service.clone()));
        }
        prefetched
    }

    /// Hands back what has not started, and sees the running jobs off: first they may end, then
    /// they are told, then they are dropped.
    async fn see_off(&self, shared: &Arc<WorkerState>, mut runners: JoinSet<()>) {
        let prefetched: Vec<JobLease> =
            shared.prefetched.lock().drain(..).map(|held| JobLease::clone(&held.lease)).collect();
        self.hand_back(shared, prefetched).await;
        let grace = async {
            while let Some(result) = runners.join_next().await {
                log_join(result)
            }
        };
        if tokio::time::timeout(self.options.grace, grace).await.is_ok() {
            return;
        }
        shared.stop_all();
        let stopping = async {
            while let Some(result) = runners.join_next().await {
                log_join(result)
            }
        };
        if tokio::time::timeout(STOP_TIMEOUT, stopping).await.is_ok() {
            return;
        }
        runners.shutdown().await;
        let left = shared.unfinished();
        tracing::warn!(jobs = left.len(), "handlers did not stop in time; jobs handed back");
        self.hand_back(shared, left).await;
    }

    async fn hand_back(&self, shared: &WorkerState, leases: Vec<JobLease>) {
        if leases.is_empty() {
            return;
        }
        if let Err(error) = self.jobs.release(&leases).await {
            tracing::warn!(%error, jobs = leases.len(), "jobs not handed back; their leases run out");
        }
        let mut in_flight = shared.in_flight.lock();
        for lease in &leases {
            in_flight.remove(lease.id());
        }
    }

    /// Writes the outcomes that no claim carries, as many in one call as there are.
    async fn acknowledge(&self, shared: &WorkerState) {
        loop {
            let batch = shared.outcomes().await;
            if batch.is_empty() {
                return;
            }
            let (mut successes, mut failures, mut releases) = (Vec::new(), Vec::new(), Vec::new());
            for Ack { held, outcome, took } in &batch {
                match self.disposition(&held.lease, outcome, *took) {
                    Disposition::Success(success) => successes.push(success),
                    Disposition::Failure(failure) => failures.push(*failure),
                    Disposition::Release => releases.push(JobLease::clone(&held.lease)),
                    Disposition::Nothing => {}
                }
            }
            self.write(successes, failures).await;
            if !releases.is_empty()
                && let Err(error) = self.jobs.release(&releases).await
            {
                tracing::warn!(%error, "jobs not handed back; their leases run out");
            }
            shared.let_go(&batch);
        }
    }

    fn disposition(
        &self,
        lease: &JobLease,
        outcome: &AttemptResult,
        took: Duration,
    ) -> Disposition {
        let failed = |verdict, error: &JobError| {
            Disposition::Failure(Box::new(self.jobs.failure(lease, verdict, error.clone(), took)))
        };
        match outcome {
            AttemptResult::Lost => {
                tracing::info!(job = %lease.id(), "lease lost; the outcome does not count");
                Disposition::Nothing
            }
            AttemptResult::Release => Disposition::Release,
            AttemptResult::AckRetry(success) => Disposition::Success(success.clone()),
            AttemptResult::Handler(JobOutcome::Done(data)) => {
                match self.jobs.success(lease, data.clone(), took) {
                    Ok(success) => Disposition::Success(success),
                    Err(error) => {
                        failed(FailureAction::Dead, &JobError::new("BadResult", error.to_string()))
                    }
                }
            }
            AttemptResult::Handler(JobOutcome::Failed(error)) => {
                failed(FailureAction::of(&lease.job, error, fastrand::f64()), error)
            }
            AttemptResult::Handler(JobOutcome::RetryIn(wait, error)) => {
                match FailureAction::of(&lease.job, error, 0.0) {
                    FailureAction::Dead => failed(FailureAction::Dead, error),
                    _ => failed(FailureAction::Retry(*wait), error),
                }
            }
            AttemptResult::Handler(JobOutcome::Dead(error)) => failed(FailureAction::Dead, error),
            AttemptResult::Handler(JobOutcome::Snooze(wait)) => {
                Disposition::Failure(Box::new(self.jobs.snoozed(lease, *wait)))
            }
            AttemptResult::Handler(JobOutcome::Cancelled(reason)) => {
                Disposition::Failure(Box::new(self.jobs.stopped(lease, reason, took)))
            }
        }
    }

    /// Writes outcomes until the store has them, or their leases must have run out.
    async fn write(&self, successes: Vec<Success>, failures: Vec<AttemptFailure>) {
        let until = Instant::now() + self.jobs.config().lock_ttl;
        let mut written = successes.is_empty();
        let mut ended = failures.is_empty();
        while !(written && ended) {
            if !written {
                match self.jobs.store_successes(&successes).await {
                    Ok(counted) => {
                        written = true;
                        for (success, counted) in successes.iter().zip(counted) {
                            if !counted {
                                tracing::info!(job = %success.id, "lease lost; the result does not count");
                            }
                        }
                    }
                    Err(error) => tracing::warn!(%error, "results not written yet"),
                }
            }
            if !ended {
                match self.jobs.end(failures.clone(), false).await {
                    Ok(_) => ended = true,
                    Err(error) => tracing::warn!(%error, "failures not written yet"),
                }
            }
            if written && ended {
                return;
            }
            if Instant::now() >= until {
                tracing::error!("outcomes given up; the jobs run again when their leases end");
                return;
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Keeps every lease in flight alive, and stops what was lost or cancelled.
    async fn renew(
        &self,
        shared: &WorkerState,
        mut signals: Option<SignalReceiver>,
        finished: &CancellationToken,
    ) {
        let every = self.jobs.config().lock_ttl / 3;
        let mut next = Instant::now() + every;
        // What was told before anybody listened is seen by a look at all of them.
        let mut look = true;
        loop {
            if signals.is_none() {
                signals = self.jobs.signals(SignalTopic::Running).await.ok();
                look = signals.is_some();
            }
            let retry = match signals {
                Some(_) => next,
                None => next.min(Instant::now() + RETRY_DELAY),
            };
            let cancel_pending = match std::mem::take(&mut look) {
                true => None,
                false => tokio::select! {
                    () = finished.cancelled() => return,
                    () = tokio::time::sleep_until(retry) => {
                        if retry < next {
                            continue;
                        }
                        next = Instant::now() + every;
                        None
                    }
                    () = shared.look.notified() => None,
                    cancel_pending = asked(shared, &mut signals) => cancel_pending,
                },
            };
            let leases: Vec<Arc<JobLease>> = match cancel_pending {
                Some(held) => vec![Arc::clone(&held.lease)],
                None => {
                    let in_flight = shared.in_flight.lock();
                    in_flight.values().map(|held| Arc::clone(&held.lease)).collect()
                }
            };
            if leases.is_empty() {
                continue;
            }
            let borrowed: Vec<&JobLease> = leases.iter().map(Arc::as_ref).collect();
            match self.jobs.renew(&borrowed).await {
                Ok((renewals, _)) => {
                    for (lease, renewal) in leases.iter().zip(renewals) {
                        match renewal {
                            Renewal::Held => {}
                            Renewal::Lost | Renewal::TimedOut => {
                                shared.stop(lease, StopCause::Lost)
                            }
                            Renewal::Cancelled => {
                                let reason = self.reason(lease.id()).await;
                                shared.stop(lease, StopCause::Cancelled(reason));
                            }
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "leases not renewed");
                    next = Instant::now() + RETRY_DELAY;
                }
            }
        }
    }

    /// Returns the reason for the cancellation of a job.
    async fn reason(&self, id: &JobId) -> String {
        use store::redis::AsyncCommands as _;
        let mut store = self.jobs.store().clone();
        let reason: Result<Option<String>, _> =
            store.hget(self.jobs.keys().cancelled(), id.as_str()).await;
        reason.ok().flatten().unwrap_or_default()
    }

    async fn heartbeat(&self, finished: &CancellationToken) {
        loop {
            tokio::select! {
                () = finished.cancelled() => return,
                () = tokio::time::sleep(self.jobs.config().heartbeat) => {}
            }
            if let Err(error) = self.jobs.heartbeat(&self.labels.worker_id).await {
                tracing::warn!(%error, "heartbeat not sent");
            }
        }
    }

    /// Runs one job here and now, for tests.
    pub(crate) async fn run_one(&self, lease: JobLease) {
        let lease = Arc::new(lease);
        let cancel = CancellationToken::new();
        let timeout = lease.job.timeout;
        let deadline = timeout.map(|timeout| self.jobs.now() + timeout);
        let context = AttemptContext { jobs: self.jobs.clone(), cancel: cancel.clone(), deadline };
        let call = JobRequest { lease: Arc::clone(&lease), context };
        let mut service = self.service.clone();
        let span = attempt_trace(&lease);
        let outcome = attempt(&mut service, call, timeout, &cancel);
        let outcome = outcome.instrument(attempt_span(&lease, span.context()));
        let outcome = trace::scope_if(span.context(), outcome).await;
        drop(span);
        let outcome = outcome.map_or(AttemptResult::Release, AttemptResult::Handler);
        match self.disposition(&lease, &outcome, Duration::ZERO) {
            Disposition::Success(success) => self.write(vec![success], Vec::new()).await,
            Disposition::Failure(failure) => self.write(Vec::new(), vec![*failure]).await,
            Disposition::Release | Disposition::Nothing => {}
        }
    }
}

/// The write that acknowledges an attempt.
enum Disposition {
    Success(Success),
    Failure(Box<AttemptFailure>),
    Release,
    Nothing,
}

impl WorkerState {
    /// Adds claimed jobs, to be started in this order.
    fn add_in_flight(&self, leases: Vec<JobLease>) {
        let mut in_flight = self.in_flight.lock();
        let mut prefetched = self.prefetched.lock();
        let cancel_pending = self.cancel_pending.lock();
        for lease in leases {
            let id = lease.id().clone();
            if cancel_pending.any
                || cancel_pending.ids.iter().any(|cancel_pending| id == **cancel_pending)
            {
                self.look.notify_one();
            }
            let held = Arc::new(InFlightJob {
                lease: Arc::new(lease),
                cancel: CancellationToken::new(),
                why: Mutex::new(None),
            });
            in_flight.insert(id, Arc::clone(&held));
            prefetched.push_back(held);
        }
    }

    /// Notes whether a claim is in flight, which may bring jobs that are not in flight yet.
    fn claims_under_way(&self, some: bool) {
        let _in_hand = self.in_flight.lock();
        self.claiming.store(some, Ordering::Relaxed);
        if !some {
            *self.cancel_pending.lock() = PendingCancels::default();
        }
    }

    /// The job of that name, if it is in flight; if it may be about to be, the name is kept.
    fn cancel_pending(&self, id: &Arc<str>) -> Option<Arc<InFlightJob>> {
        let in_flight = self.in_flight.lock();
        let held = in_flight.get(&**id).map(Arc::clone);
        if held.is_none() && self.claiming.load(Ordering::Relaxed) {
            let mut cancel_pending = self.cancel_pending.lock();
            match cancel_pending.ids.len() < PENDING_CANCELS_MAX {
                true => cancel_pending.ids.push(Arc::clone(id)),
                false => cancel_pending.any = true,
            }
        }
        held
    }

    /// The next job for a runner.
    fn next(&self) -> Option<Arc<InFlightJob>> {
        let mut prefetched = self.prefetched.lock();
        let next = prefetched.pop_front();
        if next.is_some() && prefetched.len() == self.low_water.load(Ordering::Relaxed) {
            self.wake_claimer.notify_one();
        }
        next
    }

    /// Takes an outcome, and calls whoever has to see to it.
    fn end(&self, ended: Ack) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        let first = {
            let mut outbox = self.outbox.lock();
            outbox.push(ended);
            matches!(outbox.len(), 1 | SECOND_CLAIM_MIN_ACKS)
        };
        if self.stopping.load(Ordering::Relaxed) {
            self.write.notify_one();
        } else if first {
            self.wake_claimer.notify_one();
        }
    }

    /// Waits for outcomes that are to be written without a claim. None: there will be no more.
    ///
    /// While jobs are quick and more are in flight, it waits for more outcomes: a store that answers
    /// at once would otherwise be called for each of them. The last job in flight and jobs that take
    /// their time wait for nobody.
    async fn outcomes(&self) -> Vec<Ack> {
        let mut since = None;
        loop {
            let until = {
                let mut outbox = self.outbox.lock();
                if outbox.is_empty() {
                    if self.closed.load(Ordering::Relaxed) {
                        return Vec::new();
                    }
                    since = None;
                    None
                } else {
                    let until =
                        *since.get_or_insert_with(Instant::now) + self.patience(outbox.len());
                    if until <= Instant::now() {
                        let count = outbox.len().min(CLAIM_MAX);
                        return outbox.drain(..count).collect();
                    }
                    Some(until)
                }
            };
            match until {
                None => self.write.notified().await,
                Some(until) => _ = tokio::time::timeout_at(until, self.write.notified()).await,
            }
        }
    }

    /// Returns the longest wait of so many outcomes.
    fn patience(&self, outcomes: usize) -> Duration {
        if self.stopping.load(Ordering::Relaxed) || outcomes >= PREFETCH_MAX || !self.is_quick() {
            Duration::ZERO
        } else if self.claiming.load(Ordering::Relaxed) {
            CLAIM_WAIT_MAX
        } else if outcomes < CLAIM_MAX && self.in_flight.lock().len() > outcomes {
            ACK_BATCH_DELAY
        } else {
            Duration::ZERO
        }
    }

    /// Lets go of jobs whose outcomes are written.
    fn let_go(&self, batch: &[Ack]) {
        let mut in_flight = self.in_flight.lock();
        for Ack { held, .. } in batch {
            let id = held.lease.id();
            if in_flight.get(id).is_some_and(|now| now.lease.token == held.lease.token) {
                in_flight.remove(id);
            }
        }
    }

    /// No further outcome will come.
    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.write.notify_one();
    }

    /// Returns the jobs in flight that have no outcome.
    fn unfinished(&self) -> Vec<JobLease> {
        let outbox = self.outbox.lock();
        let ended = |id: &JobId| outbox.iter().any(|ended| ended.held.lease.id() == id);
        let in_flight = self.in_flight.lock();
        let left = in_flight.values().filter(|held| !ended(held.lease.id()));
        left.map(|held| JobLease::clone(&held.lease)).collect()
    }

    /// Tells a handler to stop.
    fn stop(&self, lease: &JobLease, why: StopCause) {
        let in_flight = self.in_flight.lock();
        if let Some(held) = in_flight.get(lease.id())
            && held.lease.token == lease.token
        {
            *held.why.lock() = Some(why);
            held.cancel.cancel();
        }
    }

    fn stop_all(&self) {
        for held in self.in_flight.lock().values() {
            held.why.lock().get_or_insert(StopCause::Stopping);
            held.cancel.cancel();
        }
    }

    /// Do handlers end before waiting for them makes a difference?
    fn is_quick(&self) -> bool {
        let mean = self.mean_us.load(Ordering::Relaxed);
        mean > 0 && u128::from(mean) < ACK_BATCH_DELAY.as_micros() / 4
    }

    /// Takes note of how long a handler took.
    fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let mean = self.mean_us.load(Ordering::Relaxed);
        let next = if mean == 0 { took } else { (mean * 7).saturating_add(took) / 8 };
        self.mean_us.store(next.max(1), Ordering::Relaxed);
    }
}

/// A runner: works off the prefetched jobs, one job after the other.
async fn run(shared: Arc<WorkerState>, jobs: Jobs, mut service: JobService) {
    let mut turn = Instant::now();
    shared.starting.fetch_sub(1, Ordering::Relaxed);
    while let Some(held) = shared.next() {
        let started = Instant::now();
        let outcome = held.run(&shared, &jobs, &mut service).await;
        let now = Instant::now();
        let took = now - started;
        shared.note(took);
        shared.end(Ack { held, outcome, took });
        if now - turn >= RUNNER_TURN {
            tokio::task::yield_now().await;
            turn = Instant::now();
        }
    }
}

impl InFlightJob {
    /// Runs the job, and says how that ended.
    async fn run(
        &self,
        shared: &WorkerState,
        jobs: &Jobs,
        service: &mut JobService,
    ) -> AttemptResult {
        let lease = Arc::clone(&self.lease);
        let timeout = lease.job.timeout;
        let deadline = timeout.map(|timeout| jobs.now() + timeout);
        let context = AttemptContext { jobs: jobs.clone(), cancel: self.cancel.clone(), deadline };
        let call = JobRequest { lease, context };
        let outcome = if self.cancel.is_cancelled() {
            // It was lost or cancelled before it could start.
            None
        } else {
            let attempt = async {
                if timeout.is_some() {
                    // It has been waiting here; its time begins now.
                    let started =
                        jobs.start(&[&self.lease], STOP_TIMEOUT + TIMEOUT_ACK_TIMEOUT).await;
                    if let Err(error) = started {
                        tracing::warn!(%error, "timeout kept here only");
                    }
                }
                attempt(service, call, timeout, &self.cancel).await
            };
            let mut span = attempt_trace(&self.lease);
            let context = span.context();
            let attempt = attempt.instrument(attempt_span(&self.lease, context));
            let mut attempt = pin!(trace::scope_if(context, attempt));
            let outcome = match futures_util::poll!(attempt.as_mut()) {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => {
                    let _waiting = WaitingRunner::new(shared);
                    attempt.await
                }
            };
            if let Some(JobOutcome::Failed(error)) = &outcome {
                span.fail(|| error.to_string());
            }
            outcome
        };
        let why = self.why.lock().clone();
        match (why, outcome) {
            (Some(StopCause::Lost), _) => AttemptResult::Lost,
            // A handler that ended by itself, in spite of being told, has ended.
            (_, Some(outcome @ JobOutcome::Done(_))) => AttemptResult::Handler(outcome),
            (Some(StopCause::Cancelled(reason)), _) => {
                AttemptResult::Handler(JobOutcome::Cancelled(reason))
            }
            (Some(StopCause::Stopping), _) | (None, None) => AttemptResult::Release,
            (None, Some(outcome)) => AttemptResult::Handler(outcome),
        }
    }
}

/// Counts a runner that waits for its job, for as long as this lives.
struct WaitingRunner<'a>(&'a WorkerState);

impl<'a> WaitingRunner<'a> {
    fn new(shared: &'a WorkerState) -> Self {
        shared.waiting.fetch_add(1, Ordering::Relaxed);
        // Another runner may be needed for the prefetched jobs.
        shared.wake_claimer.notify_one();
        Self(shared)
    }
}

impl Drop for WaitingRunner<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The span around one attempt: everything that the handler logs is in it.
fn attempt_span(lease: &JobLease, context: Option<TraceContext>) -> Span {
    let trace_id = context.map(|context| tracing::field::display(context.trace_id_text()));
    tracing::info_span!(
        "attempt",
        job = %lease.id(),
        job_type = %lease.job.job_type,
        attempt = lease.attempt(),
        worker = %lease.worker_id(),
        trace_id,
    )
}

/// The attempt in the trace of the job: whatever the handler does is part of it.
fn attempt_trace(lease: &JobLease) -> TraceSpan {
    let name = || format!("attempt {}", lease.job.job_type).into();
    let mut span = TraceSpan::begin(SpanKind::Consumer, lease.trace(), name);
    span.set("messaging.system", || "tidegate");
    span.set("messaging.operation.type", || "process");
    span.set("messaging.destination.name", || lease.job.job_type.to_string());
    span.set("messaging.message.id", || lease.id().to_string());
    span.set("tidegate.worker.id", || lease.worker_id().to_owned());
    span.set("tidegate.job.attempt", || lease.attempt());
    span
}

/// Runs one attempt: the handler with all layers, within its time, its panic caught. `None` is one
/// that was dropped after it had been told to stop.
async fn attempt(
    service: &mut JobService,
    call: JobRequest,
    timeout: Option<Duration>,
    cancel: &CancellationToken,
) -> Option<JobOutcome> {
    let run = async {
        let outcome = match service.ready().await {
            Ok(service) => service.call(call).await,
            Err(error) => Err(error),
        };
        outcome.unwrap_or_else(|error| {
            JobOutcome::Failed(JobError::new(layer_error_name(error.as_ref()), error.to_string()))
        })
    };
    let run = AssertUnwindSafe(run).catch_unwind();
    let caught = |result: Result<JobOutcome, Box<dyn std::any::Any + Send>>| match result {
        Ok(outcome) => outcome,
        Err(panic) => JobOutcome::Failed(JobError::new("Panic", panic_message(panic.as_ref()))),
    };
    tokio::pin!(run);
    let limit = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        result = &mut run => return Some(caught(result)),
        () = limit => {
            cancel.cancel();
            let error = timed_out(timeout.unwrap_or_default());
            // What it does after its time does not count, but it may clean up.
            let _ = tokio::time::timeout(STOP_TIMEOUT, &mut run).await;
            return Some(JobOutcome::Failed(error));
        }
        () = cancel.cancelled() => {}
    }
    tokio::time::timeout(STOP_TIMEOUT, run).await.ok().map(caught)
}

fn layer_error_name(error: &(dyn std::error::Error + Send + Sync + 'static)) -> &'static str {
    // Layers give all sorts of errors; the most common one is worth a name of its own.
    if error.to_string().contains("timed out") { "Timeout" } else { "Layer" }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "the handler panicked".to_owned())
}

fn log_join(result: Result<(), tokio::task::JoinError>) {
    if let Err(error) = result
        && error.is_panic()
    {
        tracing::error!(%error, "a job task panicked");
    }
}

/// Waits until there may be something to claim.
async fn called(claimer: Option<&Claimer>, signals: &mut Option<SignalReceiver>) {
    match (claimer, signals) {
        (Some(claimer), Some(signals)) => claimer.called(signals).await,
        _ => std::future::pending().await,
    }
}

/// The result of a call that claims.
struct ClaimReturn {
    claimer: Claimer,
    /// Number of jobs it asked for.
    wanted: usize,
    claimed: Result<ClaimBatch, Error>,
    /// The outcomes it took along.
    carried: Vec<Ack>,
    /// Their encoded results.
    successes: Vec<Success>,
    /// Tells for each whether it counts, if the store has answered.
    counted: Option<Vec<bool>>,
}

/// A claim under way.
type ClaimFuture = BoxFuture<'static, ClaimReturn>;

/// Waits until a job in flight is named, or, without a name, until something may have been missed.
async fn asked(
    shared: &WorkerState,
    signals: &mut Option<SignalReceiver>,
) -> Option<Arc<InFlightJob>> {
    let Some(signals) = signals else { return std::future::pending().await };
    loop {
        match signals.recv().await {
            Signal::Job(id) => match shared.cancel_pending(&id) {
                None => {}
                held => return held,
            },
            Signal::Gap => return None,
            Signal::Closed => std::future::pending().await,
            _ => {}
        }
    }
}
