//! Settings of the job queue.

use std::time::Duration;

use web::config::value::{Bounds, Value};

web::settings! {
    /// The job queue.
    jobs: JobsSettings {
        /// Whose keys: every key of the queue starts with it. v1 clients use `bridge`.
        namespace: NamespaceName = "bridge", restart;
        /// Time after which the job of a worker without a heartbeat goes to another worker.
        lock_ttl: Duration = "30s", "1s" ..= "1d", restart;
        /// Heartbeat interval of workers in this process. Less than `lock_ttl`.
        heartbeat: Duration = "10s", "100ms" ..= "1d", restart;
        /// Time for which results are kept.
        result_ttl: Duration = "1d", "1s" ..= "365d", restart;
        /// Ended jobs kept at most; the oldest go first.
        keep_finished: usize = "100000", "0" ..= "100000000", restart;
        /// Time for which completed and failed jobs are kept.
        keep_finished_for: Duration = "1d", "1s" ..= "365d", restart;
        /// Dead letters kept at most; the oldest go first.
        keep_dead: usize = "10000", "0" ..= "100000000", restart;
        /// Time for which dead letters are kept.
        keep_dead_for: Duration = "30d", "1s" ..= "3650d", restart;
        /// Events kept, about; 0 writes none.
        events: usize = "10000", "0" ..= "10000000", restart;
        /// Failed attempts remembered of each job.
        history: usize = "20", "1" ..= "1000", restart;
        /// Log lines kept of each job.
        log_lines: usize = "200", "1" ..= "10000", restart;
        /// Number of times a job may take its worker down before it becomes a dead letter (poison).
        poison_after: u32 = "3", "1" ..= "1000", restart;
        /// Time an id without data, as some v1 producers leave behind for a moment, may stay
        /// in line before it is dropped.
        limbo: Duration = "1m", "1s" ..= "1d", restart;
        /// Write every field of a job as v1 does, also those at their default. Costs memory.
        full_jobs: bool = "false", restart;
        /// Time without a live worker, while jobs wait, after which webhooks are notified
        /// (`jobs.workers_gone`).
        alert_workers_gone: Duration = "1m", "1s" ..= "1d", restart;
    }
}

impl JobsSettings {
    /// The settings as the queue takes them.
    pub(crate) fn to_config(&self) -> jobs::Config {
        jobs::Config {
            namespace: self.namespace.0.clone(),
            lock_ttl: self.lock_ttl,
            heartbeat: self.heartbeat,
            result_ttl: self.result_ttl,
            keep_finished: self.keep_finished,
            keep_finished_for: self.keep_finished_for,
            keep_dead: self.keep_dead,
            keep_dead_for: self.keep_dead_for,
            events_max: self.events,
            history_max: self.history,
            log_max: self.log_lines,
            poison_after: self.poison_after,
            limbo: self.limbo,
            shape: if self.full_jobs { jobs::JobFormat::Full } else { jobs::JobFormat::Lean },
        }
    }
}

/// The namespace of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceName(pub jobs::Namespace);

impl Value for NamespaceName {
    fn kind() -> &'static str {
        "namespace"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<NamespaceName, String> {
        jobs::Namespace::parse(text).map(NamespaceName).map_err(|error| error.to_string())
    }
}
