//! Attempts that did not succeed: what becomes of the job.
//!
//! The policy is here and pure ([`FailureAction::of`]); the script only carries it out. Invariants: a job
//! is retried at most as often as it says; only the lease that holds a job ends its attempt.

use std::{collections::HashMap, time::Duration};

use serde::{Deserialize, Serialize};
use store::{Key, Millis, redis::AsyncCommands as _, script::Arg};

use crate::{
    Error, Job, JobEndReason, JobError, JobId, JobLease, JobResult, Jobs,
    claim::claim_time,
    config::seconds,
    job::MalformedJob,
    json::Fields,
    lanes::{LaneRef, Lanes},
    meter::outcome_of,
    route::TargetWorker,
    scripts,
};

/// The next step for a job after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureAction {
    /// It is tried again after this long.
    Retry(Duration),
    /// It is tried again at once, by another worker.
    Reroute,
    /// It goes to the dead letters.
    Dead,
    /// It was cancelled meanwhile and has ended for good.
    Cancelled,
}

impl FailureAction {
    /// Applies the retry policy of a job to an error. `chance` is uniform in 0 to 1.
    pub fn of(job: &Job, error: &JobError, chance: f64) -> Self {
        let named = |list: &[String]| error.name.as_ref().is_some_and(|name| list.contains(name));
        if named(&job.retry.skip_on) || job.attempts >= job.retry.attempts {
            Self::Dead
        } else if named(&job.retry.reroute_on) {
            Self::Reroute
        } else {
            Self::Retry(job.retry.backoff.wait(job.attempts, chance))
        }
    }
}

/// The result of ending an attempt that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckOutcome {
    /// As its worker asked.
    Asked,
    /// For good, because the job was cancelled while it ran.
    Cancelled,
    /// Not at all: the attempt has run longer than it may, and ends as a timeout.
    Overdue,
    /// Not at all: the job is not this worker's any more.
    Lost,
}

/// One failed attempt, as it is remembered.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailedAttempt {
    /// Number of the attempt, starting at 1.
    pub attempt: u32,
    /// Time at which it ended, in milliseconds since 1970.
    pub at: i64,
    /// The worker that made it.
    #[serde(rename = "server")]
    pub worker_id: String,
    /// Run time in milliseconds.
    #[serde(default)]
    pub processing_time: u64,
    /// Time at which it was claimed, in milliseconds since 1970, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_at: Option<i64>,
    /// Reason for which the job ended with it, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<JobEndReason>,
    /// The error.
    pub error: JobError,
}

/// Returns the error of an attempt that ran longer than its timeout.
pub(crate) fn timed_out(timeout: Duration) -> JobError {
    JobError::new("Timeout", format!("it ran longer than {} ms", timeout.as_millis()))
}

/// The name of the error of an attempt whose worker went away.
pub(crate) const WORKER_LOST: &str = "WorkerLost";

/// The name of the error of a job that cannot be understood.
pub(crate) const MALFORMED: &str = "Malformed";

/// The state of a job after its attempt has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextState {
    Later(Millis),
    Now,
    Front,
    Dead,
    Failed,
}

/// An attempt that ended without success, ready to be stored.
#[derive(Clone, Debug)]
pub(crate) struct AttemptFailure {
    id: JobId,
    job_type: String,
    claim: String,
    place: Option<LaneRef>,
    ending: NextState,
    event: &'static str,
    result: Option<String>,
    data: Option<String>,
    entry: Option<FailedAttempt>,
    keep: bool,
    timed: bool,
    /// Run time, of an attempt that is counted.
    took: Option<Duration>,
}

impl AttemptFailure {
    /// A failed attempt with its error.
    pub(crate) fn of(lease: &JobLease, error: JobError, now: Millis, took: Duration) -> Self {
        let error = error.clipped();
        let spent = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let entry = FailedAttempt {
            attempt: lease.attempt(),
            at: now.0,
            worker_id: lease.worker_id().to_owned(),
            processing_time: spent,
            claimed_at: lease.claimed_at().map(|at| at.0),
            reason: None,
            error: error.clone(),
        };
        let result = Some(failed_result(error, now, spent));
        Self { result, entry: Some(entry), took: Some(took), ..Self::quiet(lease) }
    }

    /// Notes why the job ends with this attempt.
    pub(crate) fn because(mut self, reason: JobEndReason) -> Self {
        if let Some(entry) = &mut self.entry {
            entry.reason = Some(reason);
        }
        self
    }

    /// An attempt that is given up without being counted.
    pub(crate) fn quiet(lease: &JobLease) -> Self {
        Self {
            id: lease.id().clone(),
            job_type: lease.job.job_type.to_string(),
            claim: lease.claim.to_string(),
            place: Some(LaneRef::of(&lease.job)),
            ending: NextState::Front,
            event: "released",
            result: None,
            data: None,
            entry: None,
            keep: lease.job.is_cron(),
            timed: lease.job.timeout.is_some(),
            took: None,
        }
    }

    /// A job that cannot be understood.
    pub(crate) fn malformed(id: JobId, claim: String, error: &MalformedJob, now: Millis) -> Self {
        let mut words = claim.splitn(3, ' ');
        let token = words.next().and_then(|token| token.parse().ok()).unwrap_or(0);
        let worker_id = words.next().unwrap_or_default().to_owned();
        let job_type = words.next().unwrap_or_default().to_owned();
        let error = JobError::new(MALFORMED, error.to_string()).clipped();
        let entry = FailedAttempt {
            attempt: 1,
            at: now.0,
            worker_id,
            processing_time: 0,
            claimed_at: claim_time(token).map(|at| at.0),
            reason: Some(JobEndReason::Malformed),
            error: error.clone(),
        };
        Self {
            id,
            job_type,
            claim,
            place: None,
            ending: NextState::Dead,
            event: "dead",
            result: Some(failed_result(error, now, 0)),
            data: None,
            entry: Some(entry),
            keep: false,
            timed: false,
            took: None,
        }
    }

    /// Returns the worker whose attempt failed; nobody's for one that was only given back.
    fn failed_worker(&self) -> Option<String> {
        self.entry.as_ref().map(|entry| entry.worker_id.clone())
    }

    /// Sets the next state of the job.
    pub(crate) fn end(mut self, ending: NextState, event: &'static str) -> Self {
        self.ending = ending;
        self.event = event;
        self
    }

    /// Counts a retry. `avoid` names the worker that shall not get it again.
    fn counted(mut self, lease: &JobLease, avoid: Option<&str>) -> Self {
        let Ok(mut fields) = Fields::parse(&lease.text) else { return self };
        let mut job = lease.job.clone();
        job.attempts = job.attempts.saturating_add(1);
        fields.set("attempts", job.attempts.to_string());
        if let Some(worker_id) = avoid {
            if job.target.worker == TargetWorker::Only(worker_id.to_owned()) {
                job.target.worker = TargetWorker::Any;
                let mut target = String::new();
                job.target.write(&mut target);
                fields.set("target", target);
            }
            if !job.avoid.iter().any(|avoided| avoided == worker_id) {
                job.avoid.push(worker_id.to_owned());
            }
            let mut list = String::new();
            crate::json::push_list(&mut list, &job.avoid);
            fields.set("avoid", list);
        }
        self.place = Some(LaneRef::of(&job));
        self.data = Some(fields.to_text());
        self
    }
}

/// Encodes the result of an attempt that failed.
pub(crate) fn failed_result(error: JobError, now: Millis, spent: u64) -> String {
    let result = JobResult {
        success: false,
        data: None,
        error: Some(error),
        completed_at: now.0,
        processing_time: spent,
    };
    // Texts and numbers serialise always.
    serde_json::to_string(&result).unwrap_or_default()
}

impl Jobs {
    /// Ends an attempt with an error; the job's own policy says what comes next.
    ///
    /// Fails with [`Error::LeaseLost`] when the job is not this worker's any more.
    pub async fn fail(
        &self,
        lease: &JobLease,
        error: JobError,
        took: Duration,
    ) -> Result<FailureAction, Error> {
        let verdict = FailureAction::of(&lease.job, &error, fastrand::f64());
        let ended = self.end_one(self.failure(lease, verdict, error, took)).await?;
        Ok(if ended == AckOutcome::Cancelled { FailureAction::Cancelled } else { verdict })
    }

    /// Ends an attempt with an error, to be tried again after a while of the caller's choice if
    /// the job may be retried at all.
    pub async fn retry_in(
        &self,
        lease: &JobLease,
        wait: Duration,
        error: JobError,
        took: Duration,
    ) -> Result<FailureAction, Error> {
        let verdict = match FailureAction::of(&lease.job, &error, 0.0) {
            FailureAction::Dead => FailureAction::Dead,
            _ => FailureAction::Retry(wait),
        };
        let ended = self.end_one(self.failure(lease, verdict, error, took)).await?;
        Ok(if ended == AckOutcome::Cancelled { FailureAction::Cancelled } else { verdict })
    }

    /// Ends an attempt with an error that no retry can mend.
    pub async fn bury(
        &self,
        lease: &JobLease,
        error: JobError,
        took: Duration,
    ) -> Result<FailureAction, Error> {
        let ended = self.end_one(self.failure(lease, FailureAction::Dead, error, took)).await?;
        Ok(if ended == AckOutcome::Cancelled {
            FailureAction::Cancelled
        } else {
            FailureAction::Dead
        })
    }

    /// Puts a job off without counting an attempt. One that was cancelled ends instead.
    pub async fn snooze(&self, lease: &JobLease, wait: Duration) -> Result<AckOutcome, Error> {
        self.end_one(self.snoozed(lease, wait)).await
    }

    /// Hands one job back to the head of the line without counting an attempt. One that was
    /// cancelled ends instead.
    pub async fn release_one(&self, lease: &JobLease) -> Result<AckOutcome, Error> {
        self.end_one(AttemptFailure::quiet(lease)).await
    }

    /// Hands jobs back to the head of the line without counting an attempt. Returns how many were
    /// still held.
    pub async fn release(&self, leases: &[JobLease]) -> Result<usize, Error> {
        let mut released = 0;
        for chunk in leases.chunks(crate::claim::CLAIM_MAX) {
            let done = self.end(chunk.iter().map(AttemptFailure::quiet).collect(), false).await?;
            let held = |done: &AckOutcome| !matches!(done, AckOutcome::Lost | AckOutcome::Overdue);
            released += done.into_iter().filter(held).count();
        }
        Ok(released)
    }

    /// Ends a running job for good, because it was cancelled or gave itself up.
    pub async fn stop(&self, lease: &JobLease, reason: &str, took: Duration) -> Result<(), Error> {
        self.end_one(self.stopped(lease, reason, took)).await.map(drop)
    }

    pub(crate) fn failure(
        &self,
        lease: &JobLease,
        verdict: FailureAction,
        error: JobError,
        took: Duration,
    ) -> AttemptFailure {
        let now = self.now();
        let reason = JobEndReason::of_policy(&lease.job, &error);
        let failure = AttemptFailure::of(lease, error, now, took);
        match verdict {
            FailureAction::Dead => failure.because(reason).end(NextState::Dead, "dead"),
            FailureAction::Cancelled => failure.end(NextState::Failed, "cancelled"),
            FailureAction::Retry(wait) if wait.is_zero() => {
                failure.counted(lease, None).end(NextState::Now, "retrying")
            }
            FailureAction::Retry(wait) => {
                failure.counted(lease, None).end(NextState::Later(now + wait), "retrying")
            }
            FailureAction::Reroute => {
                failure.counted(lease, Some(lease.worker_id())).end(NextState::Now, "rerouted")
            }
        }
    }

    pub(crate) fn snoozed(&self, lease: &JobLease, wait: Duration) -> AttemptFailure {
        AttemptFailure::quiet(lease).end(NextState::Later(self.now() + wait), "snoozed")
    }

    pub(crate) fn stopped(&self, lease: &JobLease, reason: &str, took: Duration) -> AttemptFailure {
        AttemptFailure::of(lease, cancelled(reason), self.now(), took)
            .because(JobEndReason::Cancelled)
            .end(NextState::Failed, "cancelled")
    }

    async fn end_one(&self, failure: AttemptFailure) -> Result<AckOutcome, Error> {
        let id = failure.id.clone();
        match self.end(vec![failure], false).await?.first() {
            Some(AckOutcome::Overdue) => Err(Error::Overdue(id)),
            Some(AckOutcome::Lost) | None => Err(self.why_lost(&id).await),
            Some(ended) => Ok(*ended),
        }
    }

    /// Stores ended attempts in one call, and says of each whether it counts. With `only_expired`
    /// those whose lease has not run out are left alone.
    pub(crate) async fn end(
        &self,
        batch: Vec<AttemptFailure>,
        only_expired: bool,
    ) -> Result<Vec<AckOutcome>, Error> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let keys = self.keys();
        let comes_again = |failure: &&AttemptFailure| {
            failure.timed && !matches!(failure.ending, NextState::Dead | NextState::Failed)
        };
        self.watch(batch.iter().filter(comes_again).map(|failure| failure.id.as_str())).await?;
        let failed: Vec<Option<String>> = batch.iter().map(AttemptFailure::failed_worker).collect();
        let mut lanes = Lanes::default();
        let mut types: HashMap<String, ()> = HashMap::new();
        let (mut type_keys, mut type_args): (Vec<Key>, Vec<Arg>) = (Vec::new(), Vec::new());
        let (mut job_keys, mut job_args) = (Vec::new(), Vec::new());
        let count = batch.len();
        let ends: Vec<(String, &'static str, Option<Duration>)> = batch
            .iter()
            .map(|failure| (failure.job_type.clone(), failure.event, failure.took))
            .collect();
        for failure in batch {
            types.entry(failure.job_type.clone()).or_insert_with(|| {
                type_keys.push(keys.running(&failure.job_type));
                type_args.push(Arg::String(failure.job_type.clone()));
            });
            let id = failure.id.as_str();
            job_keys.extend([
                keys.lock(id),
                keys.status(id),
                keys.result(id),
                keys.data(id),
                keys.history(id),
            ]);
            let in_line = matches!(failure.ending, NextState::Now | NextState::Front);
            let lane = match &failure.place {
                Some(place) if in_line => lanes.number(keys, place),
                _ => 0,
            };
            let (mode, due) = match failure.ending {
                NextState::Later(at) => ("later", at.0),
                NextState::Now => ("now", 0),
                NextState::Front => ("head", 0),
                NextState::Dead if failure.keep => ("kept", 0),
                NextState::Dead => ("dead", 0),
                NextState::Failed => ("failed", 0),
            };
            let text = |text: Option<String>| text.map_or(Arg::Str(""), Arg::String);
            job_args.extend([
                Arg::String(failure.id.to_string()),
                failure.claim.into(),
                Arg::Str(mode),
                lane.into(),
                Arg::Number(due),
                Arg::Str(failure.event),
                text(failure.result),
                text(failure.data),
                text(failure.entry.and_then(|entry| serde_json::to_string(&entry).ok())),
            ]);
        }
        let lanes_count = lanes.count();
        let (mut all_keys, mut rest) = lanes.into_parts();
        all_keys.append(&mut type_keys);
        all_keys.append(&mut job_keys);
        rest.append(&mut type_args);
        rest.append(&mut job_args);
        let reply: Vec<String> = scripts::fail::run(
            self.store(),
            scripts::fail::Keys {
                waiting: keys.waiting(),
                index: keys.index(),
                unindexed: keys.unindexed(),
                delayed: keys.delayed(),
                deadletter: keys.deadletter(),
                active: keys.active(),
                claims: keys.claims(),
                leases: keys.leases(),
                claim_leases: keys.claim_leases(),
                claim_counts: keys.claim_counts(),
                deadlines: keys.deadlines(),
                finished: keys.finished(),
                parents: keys.parents(),
                settled: keys.settled(),
                parked: keys.parked(),
                failed: keys.failed(),
                cancelled: keys.cancelled(),
                events: keys.events(),
                keys: all_keys,
            },
            scripts::fail::Args {
                now_ms: self.now(),
                wake: keys.wake(),
                done: keys.done(),
                events_max: self.config().events_max,
                result_ttl_s: seconds(self.config().result_ttl),
                history_max: self.config().history_max,
                only_expired: i32::from(only_expired),
                lanes: lanes_count,
                types: types.len(),
                rest,
            },
        )
        .await?;
        if reply.len() != count + 1 {
            let message = format!("{} answers for {count} jobs", reply.len());
            return Err(store::Error::Decode { message }.into());
        }
        self.settle_if(&reply).await;
        let counted = reply.iter().skip(1).map(|word| word == "done");
        let failed = failed
            .iter()
            .zip(counted)
            .filter_map(|(worker, done)| worker.as_deref().filter(|_| done));
        failed.for_each(|worker_id| self.tally(worker_id, 0, 1));
        let outcomes: Vec<AckOutcome> = reply
            .iter()
            .skip(1)
            .map(|word| match word.as_str() {
                "done" => AckOutcome::Asked,
                "cancelled" => AckOutcome::Cancelled,
                "late" => AckOutcome::Overdue,
                _ => AckOutcome::Lost,
            })
            .collect();
        for ((job_type, event, took), outcome) in ends.iter().zip(&outcomes) {
            if let Some(word) = outcome_of(event, *outcome) {
                self.inner.meter.of(job_type).ended(word, *took);
            }
        }
        Ok(outcomes)
    }

    /// Returns the claim on a job; empty if no worker runs it.
    pub(crate) async fn claim_of(&self, id: &JobId) -> Result<String, Error> {
        let mut store = self.store().clone();
        let claim: Option<String> = store.hget(self.keys().claims(), id.as_str()).await?;
        Ok(claim.unwrap_or_default())
    }
}

/// Returns the error of a cancelled job.
pub(crate) fn cancelled(reason: &str) -> JobError {
    JobError::new("Cancelled", reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_of_a_job_decides() {
        let job = |attempts: u32| {
            let text = format!(
                r#"{{"type":"x","attempts":{attempts},"retry":{{"attempts":2,"backoff":{{"type":"fixed","delay":50}},"skipOn":["Fatal"],"rerouteOn":["Gpu"]}}}}"#
            );
            Job::parse(JobId::stored("j"), text.as_bytes()).unwrap()
        };
        let verdict =
            |attempts, name: &str| FailureAction::of(&job(attempts), &JobError::new(name, ""), 0.5);
        assert_eq!(verdict(0, "Oops"), FailureAction::Retry(Duration::from_millis(50)));
        assert_eq!(verdict(1, "Oops"), FailureAction::Retry(Duration::from_millis(50)));
        assert_eq!(verdict(2, "Oops"), FailureAction::Dead);
        assert_eq!(verdict(9, "Oops"), FailureAction::Dead);
        assert_eq!(verdict(0, "Fatal"), FailureAction::Dead);
        assert_eq!(verdict(0, "Gpu"), FailureAction::Reroute);
        assert_eq!(verdict(2, "Gpu"), FailureAction::Dead);
    }

    #[test]
    fn a_reroute_drops_the_pin_and_avoids_the_worker() {
        let text = r#"{"jobId":"j","type":"x","target":{"server":"w1","stack":["rust"]},"attempts":0,"extra":1.0}"#;
        let job = Job::parse(JobId::stored("j"), text.as_bytes()).unwrap();
        let lease = JobLease::from_parts(job, text.to_owned(), "w1", 7, Millis(0));
        let failure = AttemptFailure::of(&lease, JobError::default(), Millis(1), Duration::ZERO)
            .counted(&lease, Some("w1"));
        assert_eq!(
            failure.data.unwrap(),
            r#"{"jobId":"j","type":"x","target":{"stack":["rust"]},"attempts":1,"extra":1.0,"avoid":["w1"]}"#
        );
    }
}
