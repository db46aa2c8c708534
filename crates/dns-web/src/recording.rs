//! Records answered queries, off the hot path.
//!
//! One task takes records off the queue and gives them to the log, the statistics and the metrics; others
//! write the log, add up statistics, announce the instance and answer searches of other instances. All end
//! with the token they are given, after what waits was written.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dns::{
    CacheTier, DomainName, InstanceInfo, Labels, QueryBatch, QueryLog, QueryOutcome, QueryRecord,
    QueryRecorder, Resolver, SharedLog, Statistics,
};
use parking_lot::Mutex;
use store::Store;
use tokio_util::sync::CancellationToken;
use web::error::chain;

use crate::notes::{Notes, QueryNote};

/// Pause between two looks at the queue.
const DRAIN_EVERY: Duration = Duration::from_millis(50);

/// Interval of writing the log.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Interval of announcing the instance, and of a look at which statistics are due.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(5);

/// Counts of this process.
#[derive(Debug, Default, Clone)]
pub(crate) struct QueryCounts {
    pub(crate) queries: u64,
    pub(crate) blocked: u64,
    pub(crate) memory_hits: u64,
    pub(crate) store_hits: u64,
    /// By protocol, outcome and response code.
    pub(crate) by_label: HashMap<(&'static str, &'static str, u16), u64>,
    pub(crate) by_type: HashMap<u16, u64>,
}

impl QueryCounts {
    fn add(&mut self, record: &QueryRecord, queries: u64) {
        let when = |is_so: bool| if is_so { queries } else { 0 };
        self.queries += queries;
        self.blocked += when(record.outcome == QueryOutcome::Blocked);
        self.memory_hits += when(record.tier == CacheTier::Memory);
        self.store_hits += when(record.tier == CacheTier::Store);
        let label = (record.protocol.as_str(), record.outcome.as_str(), record.rcode.min(23));
        *self.by_label.entry(label).or_insert(0) += queries;
        let qtype = if LABELLED_TYPES.contains(&record.qtype) { record.qtype } else { 0 };
        *self.by_type.entry(qtype).or_insert(0) += queries;
    }

    /// Returns the queries of an outcome.
    pub(crate) fn by_outcome(&self, outcome: QueryOutcome) -> u64 {
        let of_it = self.by_label.iter().filter(|((_, word, _), _)| *word == outcome.as_str());
        of_it.map(|(_, queries)| queries).sum()
    }

    /// Returns the queries answered from the cache with a stale answer.
    pub(crate) fn stale_hits(&self) -> u64 {
        self.by_outcome(QueryOutcome::Stale)
    }

    /// Returns the queries answered from the cache with a fresh answer.
    pub(crate) fn fresh_hits(&self) -> u64 {
        (self.memory_hits + self.store_hits).saturating_sub(self.stale_hits())
    }

    fn merge(&mut self, other: QueryCounts) {
        self.queries += other.queries;
        self.blocked += other.blocked;
        self.memory_hits += other.memory_hits;
        self.store_hits += other.store_hits;
        for (label, queries) in other.by_label {
            *self.by_label.entry(label).or_insert(0) += queries;
        }
        for (qtype, queries) in other.by_type {
            *self.by_type.entry(qtype).or_insert(0) += queries;
        }
    }
}

/// Types that have a label of their own; all others share one.
pub(crate) const LABELLED_TYPES: [u16; 12] = [1, 2, 5, 6, 12, 15, 16, 28, 33, 64, 65, 257];

/// Takes records of answered queries. A cheap clone.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    pub(crate) query_log: QueryLog,
    pub(crate) log: SharedLog,
    pub(crate) statistics: Statistics,
    pub(crate) notes: Notes,
    recorder: QueryRecorder,
    labels: Labels,
    counts: Arc<Mutex<QueryCounts>>,
}

impl Recording {
    /// Begins to record the queries of a queue.
    pub(crate) async fn open(
        store: &Store,
        instance: &str,
        query_log: QueryLog,
        resolver: &Resolver,
    ) -> Recording {
        let log = SharedLog::new(store, instance, query_log.clone());
        // Without the store the key is one of this process: hashes of before and after differ.
        let hash_key = match log.hash_key().await {
            Ok(key) => key,
            Err(error) => {
                tracing::warn!(error = chain(&error), "creating a new key for hashed addresses");
                let mut key = [0; 32];
                // Without random numbers either, hashes are of a known key; nothing else depends on it.
                let _ = getrandom::fill(&mut key);
                key
            }
        };
        let (queue, labels) = (resolver.queries().clone(), resolver.labels().clone());
        let policy = &resolver.policy().policy;
        let recorder =
            QueryRecorder::new(queue, labels.clone(), query_log.clone(), hash_key, policy);
        Recording {
            query_log,
            log,
            statistics: Statistics::new(store),
            notes: Notes::default(),
            recorder,
            labels,
            counts: Arc::default(),
        }
    }

    /// Returns the counts of this process.
    pub(crate) fn counts(&self) -> QueryCounts {
        self.counts.lock().clone()
    }

    /// Returns the counts of the recorder.
    pub(crate) fn recorder_stats(&self) -> dns::RecorderStats {
        self.recorder.stats()
    }

    /// Returns the records that found no room in the queue, and those the log could not keep.
    pub(crate) fn dropped(&self) -> (u64, u64) {
        (self.recorder.stats().dropped, self.query_log.stats().dropped)
    }

    fn drain(&self, batch: &mut QueryBatch) {
        let mut added = QueryCounts::default();
        self.recorder.drain(batch, |record, name, is_kept, queries| {
            self.count(record, name, is_kept, queries);
            added.add(record, queries);
        });
        if added.queries > 0 {
            self.counts.lock().merge(added);
        }
    }

    fn count(&self, record: &QueryRecord, name: &DomainName, is_kept: bool, queries: u64) {
        let id = self.labels.name(record.client_id);
        let client = if id.is_empty() {
            self.recorder.logged_address(record.client)
        } else {
            id.to_string()
        };
        let shown = is_kept.then_some(name);
        self.statistics.count_many(record, &self.labels, &client, shown, queries);
        if record.outcome == QueryOutcome::Upstream {
            // Upstreams are as many as an operator has set.
            let upstream = self.labels.name(record.upstream).to_string();
            let times = usize::try_from(queries).unwrap_or(usize::MAX);
            metrics::histogram!("tidegate_dns_upstream_seconds", "upstream" => upstream)
                .record_many(f64::from(record.duration_us) / 1_000_000.0, times);
        }
        if !is_kept {
            return;
        }
        self.notes.see(&client);
        if self.notes.wants(record.outcome) {
            let note = QueryNote {
                at: record.at,
                name: name.to_string(),
                qtype: record.qtype,
                client,
                group: self.labels.name(record.group).to_string(),
                outcome: record.outcome,
                list: self.labels.name(record.list).to_string(),
                upstream: self.labels.name(record.upstream).to_string(),
                duration_us: record.duration_us,
            };
            self.notes.add(&note, queries);
        }
    }

    /// Takes records off the queue until told to stop, and then what is left. What is logged follows the
    /// policy in force.
    pub(crate) async fn run_drain(self, resolver: Resolver, stop: CancellationToken) {
        let mut batch = QueryBatch::default();
        let mut generation = resolver.filter_generation();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(DRAIN_EVERY) => {}
            }
            if generation != resolver.filter_generation() {
                generation = resolver.filter_generation();
                self.recorder.set_policy(&resolver.policy().policy);
            }
            self.drain(&mut batch);
        }
        self.drain(&mut batch);
    }

    /// Writes the log until told to stop, and then what is left.
    pub(crate) async fn run_log(self, store: Store, stop: CancellationToken) {
        let mut is_failing = false;
        loop {
            let is_over = tokio::select! {
                () = stop.cancelled() => true,
                () = tokio::time::sleep(LOG_EVERY) => false,
            };
            let (log, now) = (self.query_log.clone(), store.now());
            let flushed = tokio::task::spawn_blocking(move || log.flush(now)).await;
            match flushed {
                Ok(Ok(())) if is_failing => {
                    tracing::info!("query log writable again");
                    is_failing = false;
                }
                Ok(Err(error)) if !is_failing => {
                    tracing::error!(%error, "query log not written; queries are answered all the same");
                    is_failing = true;
                }
                _ => {}
            }
            if is_over {
                return;
            }
        }
    }

    /// Adds up statistics and announces the instance until told to stop; then takes it off the list.
    pub(crate) async fn run_announce(
        self,
        describe: impl Fn() -> InstanceInfo + Send + 'static,
        stop: CancellationToken,
    ) {
        loop {
            if let Err(error) = self.log.announce(&describe()).await {
                tracing::debug!(error = chain(&error), "the instance is not announced");
            }
            let is_over = tokio::select! {
                () = stop.cancelled() => true,
                () = tokio::time::sleep(ANNOUNCE_EVERY) => false,
            };
            let added = match is_over {
                true => self.statistics.flush().await,
                false => self.statistics.flush_due().await,
            };
            if let Err(error) = added {
                tracing::debug!(error = chain(&error), "statistics wait in memory");
            }
            if is_over {
                break;
            }
        }
        // A process that ends without it is forgotten after a while.
        let _ = self.log.leave().await;
    }
}
