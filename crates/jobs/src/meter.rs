//! Metrics: what this process dispatches, claims and ends, by job type.
//!
//! Reported through the `metrics` facade, so a program that installs no recorder pays next to
//! nothing. Handles are kept by type, because finding one by its labels takes longer than counting.

use std::{collections::HashMap, sync::Arc, time::Duration};

use metrics::{Counter, Histogram, counter, histogram};
use parking_lot::RwLock;
use store::Millis;

use crate::{AckOutcome, Job};

/// Types whose handles are kept; further ones share those of the type `other`.
const TYPES_MAX: usize = 500;

/// The type that stands for all those that are too many.
const OTHER: &str = "other";

/// Ends of an attempt or a job, as the label `outcome` names them.
const OUTCOMES: [&str; 8] =
    ["completed", "retried", "rerouted", "dead", "cancelled", "expired", "snoozed", "released"];

/// The metrics of a queue, by type.
#[derive(Default)]
pub(crate) struct JobMeter(RwLock<HashMap<String, Arc<TypeMeter>>>);

/// The metrics of one type.
pub(crate) struct TypeMeter {
    pub(crate) dispatched: Counter,
    attempts: Counter,
    retries: Counter,
    wait: Histogram,
    run: Histogram,
    outcomes: [Counter; OUTCOMES.len()],
}

impl TypeMeter {
    fn new(job_type: &str) -> Self {
        let label = || ("type", job_type.to_owned());
        Self {
            dispatched: counter!("tidegate_jobs_dispatched_total", &[label()]),
            attempts: counter!("tidegate_jobs_attempts_total", &[label()]),
            retries: counter!("tidegate_jobs_retries_total", &[label()]),
            wait: histogram!("tidegate_jobs_wait_seconds", &[label()]),
            run: histogram!("tidegate_jobs_run_seconds", &[label()]),
            outcomes: OUTCOMES.map(|outcome| {
                let labels = [label(), ("outcome", outcome.to_owned())];
                counter!("tidegate_jobs_outcomes_total", &labels)
            }),
        }
    }

    /// Counts an attempt that begins, and the wait of a job that starts for the first time.
    pub(crate) fn claimed(&self, job: &Job, now: Millis) {
        self.attempts.increment(1);
        // Of a retry and of an occurrence of a schedule nobody knows since when they wait.
        if job.attempts == 0 && !job.is_cron() && job.created_at.0 > 0 {
            let waited = now.0.saturating_sub(job.due().0).max(0).unsigned_abs();
            self.wait.record(Duration::from_millis(waited));
        }
    }

    /// Counts the end of an attempt. `ran` is the run time, where there was one.
    pub(crate) fn ended(&self, outcome: &str, ran: Option<Duration>) {
        if let Some(at) = OUTCOMES.iter().position(|known| *known == outcome)
            && let Some(counter) = self.outcomes.get(at)
        {
            counter.increment(1);
        }
        if matches!(outcome, "retried" | "rerouted") {
            self.retries.increment(1);
        }
        if let Some(ran) = ran {
            self.run.record(ran);
        }
    }
}

impl JobMeter {
    /// Returns the metrics of a type.
    pub(crate) fn of(&self, job_type: &str) -> Arc<TypeMeter> {
        if let Some(found) = self.0.read().get(job_type) {
            return Arc::clone(found);
        }
        let mut types = self.0.write();
        let name = if types.len() < TYPES_MAX { job_type } else { OTHER };
        let make = || Arc::new(TypeMeter::new(name));
        Arc::clone(types.entry(name.to_owned()).or_insert_with(make))
    }
}

/// Names the outcome of an attempt that did not succeed, by the event it was stored with.
pub(crate) fn outcome_of(event: &str, ack: AckOutcome) -> Option<&str> {
    match (ack, event) {
        (AckOutcome::Lost | AckOutcome::Overdue, _) => None,
        (AckOutcome::Cancelled, _) => Some("cancelled"),
        (AckOutcome::Asked, "retrying") => Some("retried"),
        (AckOutcome::Asked, event) => Some(event),
    }
}
