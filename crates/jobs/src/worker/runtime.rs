//! What feeds the handlers: claim, run, renew, acknowledge, stop.
//!
//! Three loops and some tasks share the jobs in hand. The *claimer* keeps as many jobs in hand as can
//! run, and a few more when they are quick, claiming while others run; what has succeeded goes to the
//! store with the next claim, in one call. *Runners*, as many as jobs may run at once, work off what
//! is ahead. The *acknowledger* writes the outcomes that no claim takes along, many in one call; the
//! *renewer* keeps every lease in hand alive and stops what was lost or cancelled. Invariants: a job
//! in hand is renewed until its outcome is written or it is handed back; every task is joined before
//! [`Prepared::run`] returns.

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
use store::{Millis, gather::BYTES_MAX};
use tokio::{sync::Notify, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tower::{Service as _, ServiceExt as _};

use super::{Call, JobService, Options, Outcome};
use crate::{
    Claimer, Error, JobError, JobId, JobType, Jobs, Labels, Lease, Renewal,
    claim::{CLAIM_MAX, Claimed},
    complete::Success,
    fail::{Failure, Verdict},
    signals::{About, Signal, Signals},
};

/// How long to sleep when nobody calls: v1 producers push without telling.
const IDLE: Duration = Duration::from_secs(1);

/// How long to wait after the store failed.
const TROUBLE: Duration = Duration::from_millis(500);

/// What is claimed ahead is what is worked off in this time.
const AHEAD: Duration = Duration::from_millis(20);

/// How many jobs are claimed ahead at most: while the jobs of one claim run, the next is under way.
const AHEAD_MAX: usize = 2 * CLAIM_MAX;

/// How long the outcomes of quick jobs may wait for one another.
const GATHER: Duration = Duration::from_millis(1);

/// How many outcomes are worth a second claim while one is under way.
const SECOND: usize = CLAIM_MAX / 2;

/// How long they may wait for a claim that is under way: the next one takes them along.
const TOGETHER: Duration = Duration::from_millis(5);

/// How many quick jobs a runner should find ahead of it. More runners would cost more than they do.
const WORTH_A_RUNNER: usize = 16;

/// How long a runner keeps its thread before others get a turn, and how long no job may end before
/// one more runner looks at what is ahead.
const TURN: Duration = Duration::from_millis(1);

/// How many names of jobs that are not in hand are kept while a claim is under way.
const NAMED_MAX: usize = 256;

/// How long a handler that was told to stop may take to do so.
const STOPPING: Duration = Duration::from_secs(2);

/// What belongs to one attempt.
#[derive(Clone, Debug)]
pub struct Context {
    /// The queue.
    pub jobs: Jobs,
    /// Tells the handler to stop.
    pub cancel: CancellationToken,
    /// Until when it may run.
    pub deadline: Option<Millis>,
}

/// A worker ready to run.
pub(crate) struct Prepared {
    pub(crate) jobs: Jobs,
    pub(crate) labels: Labels,
    pub(crate) types: Vec<JobType>,
    pub(crate) service: JobService,
    pub(crate) options: Options,
}

/// A job in hand.
#[derive(Debug)]
struct InHand {
    lease: Arc<Lease>,
    cancel: CancellationToken,
    why: Mutex<Option<Why>>,
}

/// Why a handler was told to stop.
#[derive(Clone, Debug)]
enum Why {
    Lost,
    Cancelled(String),
    Stopping,
}

/// What the loops share.
#[derive(Debug, Default)]
struct Shared {
    in_hand: Mutex<HashMap<JobId, Arc<InHand>>>,
    /// Jobs in hand that no runner has taken yet.
    ahead: Mutex<VecDeque<Arc<InHand>>>,
    /// The claimer is called when so many are left ahead.
    low: AtomicUsize,
    /// Outcomes that nobody has begun to write.
    outbox: Mutex<Vec<Ended>>,
    /// Calls the claimer: there is an outcome, or little is left ahead.
    called: Notify,
    /// Calls the acknowledger: there are outcomes that no claim takes along for now.
    write: Notify,
    /// Calls the renewer: a job was named before it was in hand.
    look: Notify,
    /// A claim is under way.
    claiming: AtomicBool,
    /// What was named while a claim was under way. Locked only by whoever has locked `in_hand`.
    named: Mutex<Named>,
    /// Nothing is claimed any more.
    stopping: AtomicBool,
    /// No further outcome will come.
    closed: AtomicBool,
    /// How many runners have not looked at what is ahead yet.
    fresh: AtomicUsize,
    /// How many runners wait for their jobs, as opposed to working on them.
    waiting: AtomicUsize,
    /// How many attempts have ended.
    ended: AtomicU64,
    /// How long a handler takes, as a running mean in microseconds.
    mean_us: AtomicU64,
}

/// Jobs that shall stop and are not in hand, though a claim that is under way may bring them.
#[derive(Debug, Default)]
struct Named {
    ids: Vec<Arc<str>>,
    /// There were more than are kept.
    any: bool,
}

/// An attempt that has ended.
#[derive(Debug)]
struct Ended {
    held: Arc<InHand>,
    outcome: Ending,
    took: Duration,
}

#[derive(Debug)]
enum Ending {
    Handler(Outcome),
    /// It succeeded, and that may have been written: it is written again in the same words.
    Told(Success),
    /// It was stopped and shall be handed back.
    Release,
    /// It is not ours any more.
    Lost,
}

impl Prepared {
    /// A claimer for this worker.
    pub(crate) fn claimer(&self) -> Claimer {
        self.jobs.claimer(self.labels.clone()).types(self.types.iter().cloned())
    }

    pub(crate) async fn run(self, cancel: CancellationToken) -> Result<(), Error> {
        self.jobs.register(&self.labels, Some(&self.types), &self.options.hostname).await?;
        let shared = Arc::new(Shared::default());
        // Roles, heartbeat and renewal go on until the last outcome is written.
        let finished = CancellationToken::new();
        // Whoever cancels a job that runs here is heard, so listening comes before claiming.
        let stops = self.jobs.signals(About::Running).await.ok();
        let roles = async {
            if self.options.roles {
                let name = format!("{}-{}", self.labels.server, JobId::random());
                self.jobs.run_roles(&name, cancel.clone()).await;
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
        // Each is polled only when it was called itself: there is always something to do for one of
        // them and hardly ever for all.
        let mut loops = FuturesUnordered::<BoxFuture<'_, ()>>::new();
        loops.push(Box::pin(work));
        loops.push(Box::pin(acknowledge));
        loops.push(Box::pin(self.renew(&shared, stops, &finished)));
        loops.push(Box::pin(self.heartbeat(&finished)));
        loops.push(Box::pin(roles));
        while loops.next().await.is_some() {}
        drop(loops);
        if let Err(error) = self.jobs.unregister(&self.labels.server).await {
            tracing::debug!(%error, "worker not taken off the list");
        }
        Ok(())
    }

    /// Claims jobs and has them run until told to stop, then sees the running ones off.
    async fn work(&self, shared: &Arc<Shared>, cancel: &CancellationToken) {
        // A claim is under way while jobs start and end, so that neither waits for the other.
        // Two may be, when jobs are quick: the store works on one while the reply of the other is
        // read here.
        let mut idle = vec![self.claimer().second(), self.claimer()];
        let mut claiming = FuturesUnordered::<Claiming>::new();
        let mut asked = 0;
        let mut signals: Option<Signals> = None;
        let mut runners = JoinSet::new();
        // Until when there is nothing to claim, unless somebody calls.
        let mut rest: Option<Instant> = None;
        // How many runners there are on top, because jobs that should be quick are not.
        let (mut extra, mut ended) = (0, 0);
        while !cancel.is_cancelled() {
            while let Some(result) = runners.try_join_next() {
                log_join(result);
            }
            let ahead = self.start(shared, &mut runners, &mut extra);
            if signals.is_none() {
                signals = self.jobs.signals(About::Line).await.ok();
                if signals.is_some() {
                    // Nobody listened until now.
                    rest = None;
                }
            }
            let prefetch = self.prefetch(shared);
            shared.low.store(prefetch / 2, Ordering::Relaxed);
            let (most, in_hand) = (self.options.concurrency, ahead + runners.len());
            let wanted = (most + prefetch).saturating_sub(in_hand + asked).min(CLAIM_MAX);
            let worth = match claiming.len() {
                // A round trip for one more job ahead is not worth it.
                0 => in_hand < most || prefetch > 0 && 2 * ahead <= prefetch,
                _ => ahead + asked <= prefetch && shared.outbox.lock().len() >= SECOND,
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
            let until = rest.unwrap_or_else(|| Instant::now() + IDLE);
            // Those who are about to start take what they were started for.
            let more_could_run =
                ahead > shared.fresh.load(Ordering::Relaxed) && runners.len() < most;
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
                () = shared.called.notified() => {}
                () = tokio::time::sleep(TURN), if more_could_run => {
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

    /// A call that takes along what has succeeded, and claims.
    fn claim(&self, shared: &Shared, mut claimer: Claimer, wanted: usize) -> Claiming {
        let (carried, successes) = self.carry(shared);
        let lease = self.jobs.config().lock_ttl;
        Box::pin(async move {
            let done: Vec<&Success> = successes.iter().collect();
            let (counted, claimed) = claimer.exchange(wanted, lease, &done).await;
            drop(done);
            Claim { claimer, wanted, claimed, carried, successes, counted }
        })
    }

    /// Takes from the outbox what has succeeded, as much as goes into one call.
    fn carry(&self, shared: &Shared) -> (Vec<Ended>, Vec<Success>) {
        let (mut carried, mut successes, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut outbox = shared.outbox.lock();
        let mut left = Vec::new();
        for ended in outbox.drain(..) {
            if carried.len() < CLAIM_MAX
                && bytes < BYTES_MAX
                && matches!(&ended.outcome, Ending::Handler(Outcome::Done(_)) | Ending::Told(_))
                && let Judged::Success(success) =
                    self.judge(&ended.held.lease, &ended.outcome, ended.took)
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
    fn claimed(&self, shared: &Shared, claim: Claim) -> (Claimer, Result<(), Duration>) {
        let Claim { claimer, claimed, carried, successes, counted, .. } = claim;
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
                let again = carried
                    .into_iter()
                    .zip(successes)
                    .map(|(ended, success)| Ended { outcome: Ending::Told(success), ..ended });
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
                    false => Err(claimed.wait.unwrap_or(IDLE).min(IDLE)),
                };
                shared.take_in_hand(claimed.leases);
                next
            }
            Err(error) => {
                tracing::warn!(%error, "claim failed");
                Err(TROUBLE)
            }
        };
        (claimer, next)
    }

    /// How many jobs to claim ahead.
    fn prefetch(&self, shared: &Shared) -> usize {
        match self.options.prefetch {
            Some(prefetch) => prefetch,
            None => match shared.mean_us.load(Ordering::Relaxed) {
                // Nothing is known yet.
                0 => 0,
                mean => {
                    let worked_off = AHEAD.as_micros() as u64 / mean;
                    let most = worked_off.saturating_mul(self.options.concurrency as u64);
                    usize::try_from(most).unwrap_or(AHEAD_MAX).min(AHEAD_MAX)
                }
            },
        }
    }

    /// Starts runners for what is ahead, and says how much that is.
    fn start(&self, shared: &Arc<Shared>, runners: &mut JoinSet<()>, extra: &mut usize) -> usize {
        let ahead = shared.ahead.lock().len();
        if ahead == 0 {
            *extra = 0;
            return 0;
        }
        // Quick jobs need few runners, as long as none of these has to wait for its job.
        let enough = match shared.is_quick() {
            true => {
                ahead.div_ceil(WORTH_A_RUNNER) + shared.waiting.load(Ordering::Relaxed) + *extra
            }
            false => ahead + runners.len(),
        };
        while runners.len() < enough.min(self.options.concurrency) {
            let (shared, jobs) = (Arc::clone(shared), self.jobs.clone());
            shared.fresh.fetch_add(1, Ordering::Relaxed);
            runners.spawn(run(shared, jobs, self.service.clone()));
        }
        ahead
    }

    /// Hands back what has not started, and sees the running jobs off: first they may end, then
    /// they are told, then they are dropped.
    async fn see_off(&self, shared: &Arc<Shared>, mut runners: JoinSet<()>) {
        let ahead: Vec<Lease> =
            shared.ahead.lock().drain(..).map(|held| Lease::clone(&held.lease)).collect();
        self.hand_back(shared, ahead).await;
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
        if tokio::time::timeout(STOPPING, stopping).await.is_ok() {
            return;
        }
        runners.shutdown().await;
        let left = shared.unfinished();
        tracing::warn!(jobs = left.len(), "handlers did not stop in time; jobs handed back");
        self.hand_back(shared, left).await;
    }

    async fn hand_back(&self, shared: &Shared, leases: Vec<Lease>) {
        if leases.is_empty() {
            return;
        }
        if let Err(error) = self.jobs.release(&leases).await {
            tracing::warn!(%error, jobs = leases.len(), "jobs not handed back; their leases run out");
        }
        let mut in_hand = shared.in_hand.lock();
        for lease in &leases {
            in_hand.remove(lease.id());
        }
    }

    /// Writes the outcomes that no claim takes along, as many in one call as there are.
    async fn acknowledge(&self, shared: &Shared) {
        loop {
            let batch = shared.outcomes().await;
            if batch.is_empty() {
                return;
            }
            let (mut successes, mut failures, mut releases) = (Vec::new(), Vec::new(), Vec::new());
            for Ended { held, outcome, took } in &batch {
                match self.judge(&held.lease, outcome, *took) {
                    Judged::Success(success) => successes.push(success),
                    Judged::Failure(failure) => failures.push(*failure),
                    Judged::Release => releases.push(Lease::clone(&held.lease)),
                    Judged::Nothing => {}
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

    fn judge(&self, lease: &Lease, outcome: &Ending, took: Duration) -> Judged {
        let failed = |verdict, error: &JobError| {
            Judged::Failure(Box::new(self.jobs.failure(lease, verdict, error.clone(), took)))
        };
        match outcome {
            Ending::Lost => {
                tracing::info!(job = %lease.id(), "lease lost; the outcome does not count");
                Judged::Nothing
            }
            Ending::Release => Judged::Release,
            Ending::Told(success) => Judged::Success(success.clone()),
            Ending::Handler(Outcome::Done(data)) => {
                match self.jobs.success(lease, data.clone(), took) {
                    Ok(success) => Judged::Success(success),
                    Err(error) => {
                        failed(Verdict::Dead, &JobError::new("BadResult", error.to_string()))
                    }
                }
            }
            Ending::Handler(Outcome::Failed(error)) => {
                failed(Verdict::of(&lease.job, error, fastrand::f64()), error)
            }
            Ending::Handler(Outcome::RetryIn(wait, error)) => {
                match Verdict::of(&lease.job, error, 0.0) {
                    Verdict::Dead => failed(Verdict::Dead, error),
                    _ => failed(Verdict::Retry(*wait), error),
                }
            }
            Ending::Handler(Outcome::Dead(error)) => failed(Verdict::Dead, error),
            Ending::Handler(Outcome::Snooze(wait)) => {
                Judged::Failure(Box::new(self.jobs.snoozed(lease, *wait)))
            }
            Ending::Handler(Outcome::Cancelled(reason)) => {
                Judged::Failure(Box::new(self.jobs.stopped(lease, reason, took)))
            }
        }
    }

    /// Writes outcomes until the store has them, or their leases must have run out.
    async fn write(&self, successes: Vec<Success>, failures: Vec<Failure>) {
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
            tokio::time::sleep(TROUBLE).await;
        }
    }

    /// Keeps every lease in hand alive, and stops what was lost or cancelled.
    async fn renew(
        &self,
        shared: &Shared,
        mut signals: Option<Signals>,
        finished: &CancellationToken,
    ) {
        let every = self.jobs.config().lock_ttl / 3;
        let mut next = Instant::now() + every;
        // What was told before anybody listened is seen by a look at all of them.
        let mut look = true;
        loop {
            if signals.is_none() {
                signals = self.jobs.signals(About::Running).await.ok();
                look = signals.is_some();
            }
            let retry = match signals {
                Some(_) => next,
                None => next.min(Instant::now() + TROUBLE),
            };
            let named = match std::mem::take(&mut look) {
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
                    named = asked(shared, &mut signals) => named,
                },
            };
            let leases: Vec<Arc<Lease>> = match named {
                Some(held) => vec![Arc::clone(&held.lease)],
                None => {
                    let in_hand = shared.in_hand.lock();
                    in_hand.values().map(|held| Arc::clone(&held.lease)).collect()
                }
            };
            if leases.is_empty() {
                continue;
            }
            let borrowed: Vec<&Lease> = leases.iter().map(Arc::as_ref).collect();
            match self.jobs.renew(&borrowed).await {
                Ok((renewals, _)) => {
                    for (lease, renewal) in leases.iter().zip(renewals) {
                        match renewal {
                            Renewal::Held => {}
                            Renewal::Lost => shared.stop(lease, Why::Lost),
                            Renewal::Cancelled => {
                                let reason = self.reason(lease.id()).await;
                                shared.stop(lease, Why::Cancelled(reason));
                            }
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "leases not renewed");
                    next = Instant::now() + TROUBLE;
                }
            }
        }
    }

    /// Why a job was cancelled.
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
            if let Err(error) = self.jobs.heartbeat(&self.labels.server).await {
                tracing::warn!(%error, "heartbeat not sent");
            }
        }
    }

    /// Runs one job here and now, for tests.
    pub(crate) async fn run_one(&self, lease: Lease) {
        let lease = Arc::new(lease);
        let cancel = CancellationToken::new();
        let timeout = lease.job.timeout;
        let deadline = timeout.map(|timeout| self.jobs.now() + timeout);
        let context = Context { jobs: self.jobs.clone(), cancel: cancel.clone(), deadline };
        let call = Call { lease: Arc::clone(&lease), context };
        let outcome = attempt(&mut self.service.clone(), call, timeout, &cancel).await;
        let outcome = outcome.map_or(Ending::Release, Ending::Handler);
        match self.judge(&lease, &outcome, Duration::ZERO) {
            Judged::Success(success) => self.write(vec![success], Vec::new()).await,
            Judged::Failure(failure) => self.write(Vec::new(), vec![*failure]).await,
            Judged::Release | Judged::Nothing => {}
        }
    }
}

/// What is to be written about an attempt.
enum Judged {
    Success(Success),
    Failure(Box<Failure>),
    Release,
    Nothing,
}

impl Shared {
    /// Takes jobs in hand, to be started in this order.
    fn take_in_hand(&self, leases: Vec<Lease>) {
        let mut in_hand = self.in_hand.lock();
        let mut ahead = self.ahead.lock();
        let named = self.named.lock();
        for lease in leases {
            let id = lease.id().clone();
            if named.any || named.ids.iter().any(|named| id == **named) {
                self.look.notify_one();
            }
            let held = Arc::new(InHand {
                lease: Arc::new(lease),
                cancel: CancellationToken::new(),
                why: Mutex::new(None),
            });
            in_hand.insert(id, Arc::clone(&held));
            ahead.push_back(held);
        }
    }

    /// Notes whether a claim is under way, which may bring jobs that are not in hand yet.
    fn claims_under_way(&self, some: bool) {
        let _in_hand = self.in_hand.lock();
        self.claiming.store(some, Ordering::Relaxed);
        if !some {
            *self.named.lock() = Named::default();
        }
    }

    /// The job of that name, if it is in hand; if it may be about to be, the name is kept.
    fn named(&self, id: &Arc<str>) -> Option<Arc<InHand>> {
        let in_hand = self.in_hand.lock();
        let held = in_hand.get(&**id).map(Arc::clone);
        if held.is_none() && self.claiming.load(Ordering::Relaxed) {
            let mut named = self.named.lock();
            match named.ids.len() < NAMED_MAX {
                true => named.ids.push(Arc::clone(id)),
                false => named.any = true,
            }
        }
        held
    }

    /// The next job for a runner.
    fn next(&self) -> Option<Arc<InHand>> {
        let mut ahead = self.ahead.lock();
        let next = ahead.pop_front();
        if next.is_some() && ahead.len() == self.low.load(Ordering::Relaxed) {
            self.called.notify_one();
        }
        next
    }

    /// Takes an outcome, and calls whoever has to see to it.
    fn end(&self, ended: Ended) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        let first = {
            let mut outbox = self.outbox.lock();
            outbox.push(ended);
            matches!(outbox.len(), 1 | SECOND)
        };
        if self.stopping.load(Ordering::Relaxed) {
            self.write.notify_one();
        } else if first {
            self.called.notify_one();
        }
    }

    /// Waits for outcomes that are to be written without a claim. None: there will be no more.
    ///
    /// When jobs are quick and more are in hand, more outcomes may come first: a store that answers
    /// at once would otherwise be called for each of them. The last job in hand and jobs that take
    /// their time wait for nobody.
    async fn outcomes(&self) -> Vec<Ended> {
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

    /// How long so many outcomes may wait.
    fn patience(&self, outcomes: usize) -> Duration {
        if self.stopping.load(Ordering::Relaxed) || outcomes >= AHEAD_MAX || !self.is_quick() {
            Duration::ZERO
        } else if self.claiming.load(Ordering::Relaxed) {
            TOGETHER
        } else if outcomes < CLAIM_MAX && self.in_hand.lock().len() > outcomes {
            GATHER
        } else {
            Duration::ZERO
        }
    }

    /// Lets go of jobs whose outcomes are written.
    fn let_go(&self, batch: &[Ended]) {
        let mut in_hand = self.in_hand.lock();
        for Ended { held, .. } in batch {
            let id = held.lease.id();
            if in_hand.get(id).is_some_and(|now| now.lease.token == held.lease.token) {
                in_hand.remove(id);
            }
        }
    }

    /// No further outcome will come.
    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.write.notify_one();
    }

    /// What is in hand and has no outcome.
    fn unfinished(&self) -> Vec<Lease> {
        let outbox = self.outbox.lock();
        let ended = |id: &JobId| outbox.iter().any(|ended| ended.held.lease.id() == id);
        let in_hand = self.in_hand.lock();
        let left = in_hand.values().filter(|held| !ended(held.lease.id()));
        left.map(|held| Lease::clone(&held.lease)).collect()
    }

    /// Tells a handler to stop.
    fn stop(&self, lease: &Lease, why: Why) {
        let in_hand = self.in_hand.lock();
        if let Some(held) = in_hand.get(lease.id())
            && held.lease.token == lease.token
        {
            *held.why.lock() = Some(why);
            held.cancel.cancel();
        }
    }

    fn stop_all(&self) {
        for held in self.in_hand.lock().values() {
            held.why.lock().get_or_insert(Why::Stopping);
            held.cancel.cancel();
        }
    }

    /// Do handlers end before waiting for them makes a difference?
    fn is_quick(&self) -> bool {
        let mean = self.mean_us.load(Ordering::Relaxed);
        mean > 0 && u128::from(mean) < GATHER.as_micros() / 4
    }

    /// Takes note of how long a handler took.
    fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let mean = self.mean_us.load(Ordering::Relaxed);
        let next = if mean == 0 { took } else { (mean * 7).saturating_add(took) / 8 };
        self.mean_us.store(next.max(1), Ordering::Relaxed);
    }
}

/// A runner: works off what is ahead, one job after the other.
async fn run(shared: Arc<Shared>, jobs: Jobs, mut service: JobService) {
    let mut turn = Instant::now();
    shared.fresh.fetch_sub(1, Ordering::Relaxed);
    while let Some(held) = shared.next() {
        let started = Instant::now();
        let outcome = held.run(&shared, &jobs, &mut service).await;
        let now = Instant::now();
        let took = now - started;
        shared.note(took);
        shared.end(Ended { held, outcome, took });
        if now - turn >= TURN {
            tokio::task::yield_now().await;
            turn = Instant::now();
        }
    }
}

impl InHand {
    /// Runs the job, and says how that ended.
    async fn run(&self, shared: &Shared, jobs: &Jobs, service: &mut JobService) -> Ending {
        let lease = Arc::clone(&self.lease);
        let timeout = lease.job.timeout;
        let deadline = timeout.map(|timeout| jobs.now() + timeout);
        let context = Context { jobs: jobs.clone(), cancel: self.cancel.clone(), deadline };
        let call = Call { lease, context };
        let outcome = if self.cancel.is_cancelled() {
            // It was lost or cancelled before it could start.
            None
        } else {
            let mut attempt = pin!(attempt(service, call, timeout, &self.cancel));
            match futures_util::poll!(attempt.as_mut()) {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => {
                    let _waiting = Waiting::new(shared);
                    attempt.await
                }
            }
        };
        let why = self.why.lock().clone();
        match (why, outcome) {
            (Some(Why::Lost), _) => Ending::Lost,
            // A handler that ended by itself, in spite of being told, has ended.
            (_, Some(outcome @ Outcome::Done(_))) => Ending::Handler(outcome),
            (Some(Why::Cancelled(reason)), _) => Ending::Handler(Outcome::Cancelled(reason)),
            (Some(Why::Stopping), _) | (None, None) => Ending::Release,
            (None, Some(outcome)) => Ending::Handler(outcome),
        }
    }
}

/// Counts a runner that waits for its job, for as long as this lives.
struct Waiting<'a>(&'a Shared);

impl<'a> Waiting<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.waiting.fetch_add(1, Ordering::Relaxed);
        // Another runner may be needed for what is ahead.
        shared.called.notify_one();
        Self(shared)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs one attempt: the handler with all layers, within its time, its panic caught. `None` is one
/// that was dropped after it had been told to stop.
async fn attempt(
    service: &mut JobService,
    call: Call,
    timeout: Option<Duration>,
    cancel: &CancellationToken,
) -> Option<Outcome> {
    let run = async {
        let outcome = match service.ready().await {
            Ok(service) => service.call(call).await,
            Err(error) => Err(error),
        };
        outcome.unwrap_or_else(|error| {
            Outcome::Failed(JobError::new(layer_error_name(error.as_ref()), error.to_string()))
        })
    };
    let run = AssertUnwindSafe(run).catch_unwind();
    let caught = |result: Result<Outcome, Box<dyn std::any::Any + Send>>| match result {
        Ok(outcome) => outcome,
        Err(panic) => Outcome::Failed(JobError::new("Panic", panic_message(panic.as_ref()))),
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
            let ms = timeout.unwrap_or_default().as_millis();
            let error = JobError::new("Timeout", format!("it ran longer than {ms} ms"));
            // What it does after its time does not count, but it may clean up.
            let _ = tokio::time::timeout(STOPPING, &mut run).await;
            return Some(Outcome::Failed(error));
        }
        () = cancel.cancelled() => {}
    }
    tokio::time::timeout(STOPPING, run).await.ok().map(caught)
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
async fn called(claimer: Option<&Claimer>, signals: &mut Option<Signals>) {
    match (claimer, signals) {
        (Some(claimer), Some(signals)) => claimer.called(signals).await,
        _ => std::future::pending().await,
    }
}

/// What a call that claims came to.
struct Claim {
    claimer: Claimer,
    /// How many jobs it asked for.
    wanted: usize,
    claimed: Result<Claimed, Error>,
    /// The outcomes it took along.
    carried: Vec<Ended>,
    /// What it said of them.
    successes: Vec<Success>,
    /// Which of them counted, if the store has told.
    counted: Option<Vec<bool>>,
}

/// A claim under way.
type Claiming = BoxFuture<'static, Claim>;

/// Waits until a job in hand is named, or, without a name, until something may have been missed.
async fn asked(shared: &Shared, signals: &mut Option<Signals>) -> Option<Arc<InHand>> {
    let Some(signals) = signals else { return std::future::pending().await };
    loop {
        match signals.recv().await {
            Signal::Job(id) => match shared.named(&id) {
                None => {}
                held => return held,
            },
            Signal::Gap => return None,
            Signal::Closed => std::future::pending().await,
            _ => {}
        }
    }
}
