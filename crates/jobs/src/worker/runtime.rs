//! What feeds the handlers: claim, run, renew, acknowledge, stop.
//!
//! Four loops share the jobs in hand. The *claimer* keeps as many jobs in hand as can run, and a few
//! more when they are quick, claiming while others run; each job *runs* as a task of its own; the *acknowledger* writes
//! outcomes, many in one call; the *renewer* keeps every lease in hand alive and stops what was lost
//! or cancelled. Invariants: a job in hand is renewed until its outcome is written or it is handed
//! back; every task is joined before [`Prepared::run`] returns.

use std::{
    collections::{HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use store::Millis;
use tokio::{sync::mpsc, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tower::{Service as _, ServiceExt as _};

use super::{Call, JobService, Options, Outcome};
use crate::{
    Claimer, Error, JobError, JobId, JobType, Jobs, Labels, Lease, Renewal,
    claim::{CLAIM_MAX, Claimed},
    complete::Success,
    fail::{Failure, Verdict},
    signals::{Signal, Signals},
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
    why: Option<Why>,
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
    in_hand: Mutex<HashMap<JobId, InHand>>,
    /// How long a handler takes, as a running mean in microseconds.
    mean_us: AtomicU64,
}

/// An attempt that has ended.
struct Ended {
    lease: Arc<Lease>,
    outcome: Ending,
    took: Duration,
}

enum Ending {
    Handler(Outcome),
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
        let (ended, receiver) = mpsc::channel(1_024);
        // Roles, heartbeat and renewal go on until the last outcome is written.
        let finished = CancellationToken::new();
        let roles = async {
            if self.options.roles {
                let name = format!("{}-{}", self.labels.server, JobId::random());
                self.jobs.run_roles(&name, cancel.clone()).await;
            }
        };
        let work = async {
            self.work(&shared, ended, &cancel).await;
            finished.cancel();
        };
        tokio::join!(
            work,
            self.acknowledge(&shared, receiver),
            self.renew(&shared, &finished),
            self.heartbeat(&finished),
            roles,
        );
        if let Err(error) = self.jobs.unregister(&self.labels.server).await {
            tracing::debug!(%error, "worker not taken off the list");
        }
        Ok(())
    }

    /// Claims and starts jobs until told to stop, then sees the running ones off.
    async fn work(
        &self,
        shared: &Arc<Shared>,
        ended: mpsc::Sender<Ended>,
        cancel: &CancellationToken,
    ) {
        // A claim is under way while jobs start and end, so that neither waits for the other.
        let mut idle = Some(self.claimer());
        let mut claiming: Option<Claiming> = None;
        let mut signals: Option<Signals> = None;
        let mut running = JoinSet::new();
        let mut ahead: VecDeque<Arc<Lease>> = VecDeque::new();
        // Until when there is nothing to claim, unless somebody calls.
        let mut rest: Option<Instant> = None;
        while !cancel.is_cancelled() {
            while let Some(result) = running.try_join_next() {
                log_join(result);
            }
            while running.len() < self.options.concurrency
                && let Some(lease) = ahead.pop_front()
            {
                self.start(shared, &ended, &mut running, lease);
            }
            if signals.is_none() {
                signals = self.jobs.signals().await.ok();
            }
            let free = self.options.concurrency - running.len();
            let prefetch = self.prefetch(shared);
            let wanted = (free + prefetch).saturating_sub(ahead.len());
            // A round trip for one more job ahead is not worth it.
            let worth = free > 0 || 2 * ahead.len() <= prefetch && prefetch > 0;
            if wanted > 0
                && worth
                && rest.is_none_or(|until| until <= Instant::now())
                && let Some(mut claimer) = idle.take()
            {
                rest = None;
                claiming = Some(Box::pin(async move {
                    let claimed = claimer.claim(wanted.min(CLAIM_MAX)).await;
                    (claimer, claimed)
                }));
            }
            let until = rest.unwrap_or_else(|| Instant::now() + IDLE);
            tokio::select! {
                biased;
                () = cancel.cancelled() => {}
                (claimer, claimed) = claim_done(&mut claiming) => {
                    claiming = None;
                    idle = Some(claimer);
                    match claimed {
                        Ok(claimed) => {
                            if claimed.leases.is_empty() && !claimed.more {
                                let wait = claimed.wait.unwrap_or(IDLE).min(IDLE);
                                rest = Some(Instant::now() + wait);
                            }
                            shared.take_in_hand(claimed.leases, &mut ahead);
                        }
                        Err(error) => {
                            tracing::warn!(%error, "claim failed");
                            rest = Some(Instant::now() + TROUBLE);
                        }
                    }
                }
                Some(result) = running.join_next() => log_join(result),
                () = tokio::time::sleep_until(until), if idle.is_some() && wanted > 0 => rest = None,
                () = called(idle.as_ref(), &mut signals), if wanted > 0 => rest = None,
            }
        }
        if claiming.is_some() {
            // What it takes is handed back with the rest.
            let (_, claimed) = claim_done(&mut claiming).await;
            shared.take_in_hand(
                claimed.map(|claimed| claimed.leases).unwrap_or_default(),
                &mut ahead,
            );
        }
        self.see_off(shared, ahead, running).await;
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

    fn start(
        &self,
        shared: &Arc<Shared>,
        ended: &mpsc::Sender<Ended>,
        running: &mut JoinSet<()>,
        lease: Arc<Lease>,
    ) {
        let cancel = {
            let in_hand = shared.in_hand.lock();
            match in_hand.get(lease.id()) {
                Some(held) if held.lease.token == lease.token => held.cancel.clone(),
                // It was lost or cancelled before it could start.
                _ => return,
            }
        };
        let now = self.jobs.now();
        let timeout = lease.job.timeout;
        let deadline = timeout.map(|timeout| now + timeout);
        let context = Context { jobs: self.jobs.clone(), cancel: cancel.clone(), deadline };
        let call = Call { lease: Arc::clone(&lease), context };
        let service = self.service.clone();
        let (shared, ended) = (Arc::clone(shared), ended.clone());
        running.spawn(async move {
            let started = Instant::now();
            let outcome = attempt(service, call, timeout, &cancel).await;
            let took = started.elapsed();
            shared.note(took);
            let why = {
                let in_hand = shared.in_hand.lock();
                in_hand.get(lease.id()).and_then(|held| held.why.clone())
            };
            let outcome = match (why, outcome) {
                (Some(Why::Lost), _) => Ending::Lost,
                // A handler that ended by itself, in spite of being told, has ended.
                (_, Some(outcome @ Outcome::Done(_))) => Ending::Handler(outcome),
                (Some(Why::Cancelled(reason)), _) => Ending::Handler(Outcome::Cancelled(reason)),
                (Some(Why::Stopping), _) | (None, None) => Ending::Release,
                (None, Some(outcome)) => Ending::Handler(outcome),
            };
            // The acknowledger outlives every handler.
            let _ = ended.send(Ended { lease, outcome, took }).await;
        });
    }

    /// Hands back what has not started, and sees the running jobs off: first they may end, then
    /// they are told, then they are dropped.
    async fn see_off(
        &self,
        shared: &Arc<Shared>,
        ahead: VecDeque<Arc<Lease>>,
        mut running: JoinSet<()>,
    ) {
        self.hand_back(shared, ahead.iter().map(|lease| Lease::clone(lease)).collect()).await;
        let grace = async {
            while let Some(result) = running.join_next().await {
                log_join(result)
            }
        };
        if tokio::time::timeout(self.options.grace, grace).await.is_ok() {
            return;
        }
        shared.stop_all();
        let stopping = async {
            while let Some(result) = running.join_next().await {
                log_join(result)
            }
        };
        if tokio::time::timeout(STOPPING, stopping).await.is_ok() {
            return;
        }
        running.shutdown().await;
        let left: Vec<Lease> =
            shared.in_hand.lock().values().map(|held| Lease::clone(&held.lease)).collect();
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

    /// Writes outcomes, as many in one call as have come in the meantime.
    async fn acknowledge(&self, shared: &Shared, mut ended: mpsc::Receiver<Ended>) {
        let mut batch = Vec::with_capacity(CLAIM_MAX);
        while ended.recv_many(&mut batch, CLAIM_MAX).await > 0 {
            self.gather(shared, &mut ended, &mut batch).await;
            let (mut successes, mut failures, mut releases) = (Vec::new(), Vec::new(), Vec::new());
            for Ended { lease, outcome, took } in &batch {
                match self.judge(lease, outcome, *took) {
                    Judged::Success(success) => successes.push(success),
                    Judged::Failure(failure) => failures.push(*failure),
                    Judged::Release => releases.push(Lease::clone(lease)),
                    Judged::Nothing => {}
                }
            }
            self.write(successes, failures).await;
            if !releases.is_empty()
                && let Err(error) = self.jobs.release(&releases).await
            {
                tracing::warn!(%error, "jobs not handed back; their leases run out");
            }
            let mut in_hand = shared.in_hand.lock();
            for Ended { lease, .. } in batch.drain(..) {
                if in_hand.get(lease.id()).is_some_and(|held| held.lease.token == lease.token) {
                    in_hand.remove(lease.id());
                }
            }
        }
    }

    /// Lets more outcomes come before they are written, when jobs are quick and more are in hand: a
    /// store that answers at once would otherwise be called for each of them. The last job in hand
    /// and jobs that take their time wait for nobody.
    async fn gather(
        &self,
        shared: &Shared,
        ended: &mut mpsc::Receiver<Ended>,
        batch: &mut Vec<Ended>,
    ) {
        let until = Instant::now() + GATHER;
        while batch.len() < CLAIM_MAX && shared.is_quick() {
            if shared.in_hand.lock().len() <= batch.len() {
                return;
            }
            let room = CLAIM_MAX - batch.len();
            tokio::select! {
                biased;
                count = ended.recv_many(batch, room) => if count == 0 { return },
                () = tokio::time::sleep_until(until) => return,
            }
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
    async fn renew(&self, shared: &Shared, finished: &CancellationToken) {
        let every = self.jobs.config().lock_ttl / 3;
        let mut next = Instant::now() + every;
        let mut signals: Option<Signals> = None;
        loop {
            if signals.is_none() {
                signals = self.jobs.signals().await.ok();
            }
            tokio::select! {
                () = finished.cancelled() => return,
                () = tokio::time::sleep_until(next) => next = Instant::now() + every,
                () = asked(shared, &mut signals) => {}
            }
            let leases: Vec<Arc<Lease>> = {
                let in_hand = shared.in_hand.lock();
                in_hand.values().map(|held| Arc::clone(&held.lease)).collect()
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
        let outcome = attempt(self.service.clone(), call, timeout, &cancel).await;
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
    fn take_in_hand(&self, leases: Vec<Lease>, ahead: &mut VecDeque<Arc<Lease>>) {
        let mut in_hand = self.in_hand.lock();
        for lease in leases {
            let (lease, cancel) = (Arc::new(lease), CancellationToken::new());
            let held = InHand { lease: Arc::clone(&lease), cancel, why: None };
            in_hand.insert(lease.id().clone(), held);
            ahead.push_back(lease);
        }
    }

    /// Tells a handler to stop.
    fn stop(&self, lease: &Lease, why: Why) {
        let mut in_hand = self.in_hand.lock();
        if let Some(held) = in_hand.get_mut(lease.id())
            && held.lease.token == lease.token
        {
            held.why = Some(why);
            held.cancel.cancel();
        }
    }

    fn stop_all(&self) {
        for held in self.in_hand.lock().values_mut() {
            held.why.get_or_insert(Why::Stopping);
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

/// Runs one attempt: the handler with all layers, within its time, its panic caught. `None` is one
/// that was dropped after it had been told to stop.
async fn attempt(
    mut service: JobService,
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

/// A claim under way, which gives its claimer back.
type Claiming = BoxFuture<'static, (Claimer, Result<Claimed, Error>)>;

/// Waits until a claim under way is done; for ever when there is none.
async fn claim_done(claiming: &mut Option<Claiming>) -> (Claimer, Result<Claimed, Error>) {
    match claiming {
        Some(claiming) => claiming.await,
        None => std::future::pending().await,
    }
}

/// Waits until a job in hand is named, or something may have been missed.
async fn asked(shared: &Shared, signals: &mut Option<Signals>) {
    let Some(signals) = signals else { return std::future::pending().await };
    loop {
        match signals.recv().await {
            Signal::Job(id) if shared.in_hand.lock().contains_key(&*id) => return,
            Signal::Gap => return,
            Signal::Closed => std::future::pending().await,
            _ => {}
        }
    }
}
