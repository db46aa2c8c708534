//! Counters that are added to often and written seldom.
//!
//! [`Counters`] sums increments in memory and writes them in batches. Invariants: the buffer is
//! bounded by the number of different counters in it; an increment is written at most once. What
//! cannot be kept or may be lost is counted and reported, never silently dropped: an increment that
//! finds the buffer full, and a batch whose reply got lost, because writing it again could count
//! it twice.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redis::RedisResult;
use tokio_util::sync::CancellationToken;

use crate::{Error, Key, Store, StoreKind};

/// Most counters in one pipeline.
const PIPELINE_MAX_COUNTERS: usize = 500;

/// The target of an increment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CounterTarget {
    /// A number in a key of its own, which lives on for `keep` after its last increment if given.
    Key {
        /// The key.
        key: Key,
        /// Time it is kept.
        keep: Option<Duration>,
    },
    /// A number in a field of a hash, which lives on for `keep` after its last increment if given.
    Field {
        /// The hash.
        key: Key,
        /// The field.
        field: String,
        /// Time the hash is kept.
        keep: Option<Duration>,
    },
}

/// Increments on their way to the store. A cheap clone; all clones share the buffer.
///
/// ```no_run
/// # async fn example(store: tidegate_store::Store, key: tidegate_store::Key) -> Result<(), tidegate_store::Error> {
/// use tidegate_store::counter::{CounterTarget, Counters};
///
/// let counters = Counters::new(&store, 10_000);
/// counters.add(CounterTarget::Field { key, field: "requests".to_owned(), keep: None }, 1);
/// counters.flush().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Counters(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    most: usize,
    buffer: Mutex<Buffer>,
    /// One flush at a time, so that a failed batch goes back before the next is taken.
    flushing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Buffer {
    sums: HashMap<CounterTarget, i64>,
    refused: u64,
    lost: u64,
}

/// Increments lost since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Calls of [`Counters::add`] that found the buffer full.
    pub refused: u64,
    /// Counters that were refused, or whose batch was sent and not answered, so that it may or may
    /// not have been counted.
    pub lost: u64,
}

impl Counters {
    /// A buffer for at most `most` different counters.
    pub fn new(store: &Store, most: usize) -> Self {
        Self(Arc::new(Inner {
            store: store.clone(),
            most: most.max(1),
            buffer: Mutex::default(),
            flushing: tokio::sync::Mutex::default(),
        }))
    }

    /// Adds to a counter. `false` when it is a new one and the buffer is full.
    pub fn add(&self, target: CounterTarget, by: i64) -> bool {
        let mut buffer = self.0.buffer.lock();
        if let Some(sum) = buffer.sums.get_mut(&target) {
            *sum = sum.saturating_add(by);
            return true;
        }
        if buffer.sums.len() >= self.0.most {
            buffer.refused += 1;
            return false;
        }
        buffer.sums.insert(target, by);
        true
    }

    /// Number of different counters that wait.
    pub fn waiting(&self) -> usize {
        self.0.buffer.lock().sums.len()
    }

    /// The increments that were lost.
    pub fn missing(&self) -> Missing {
        let buffer = self.0.buffer.lock();
        Missing { refused: buffer.refused, lost: buffer.lost }
    }

    /// Writes what waits and returns how many counters were written. What certainly was not sent
    /// goes back into the buffer.
    pub async fn flush(&self) -> Result<usize, Error> {
        let _one = self.0.flushing.lock().await;
        let mut sums: Vec<_> = self.0.buffer.lock().sums.drain().collect();
        sums.retain(|(_, by)| *by != 0);
        // Keys of one slot together, so that a cluster can take each chunk as one pipeline.
        let clustered = self.0.store.kind() == StoreKind::Cluster;
        if clustered {
            sums.sort_by_key(|(target, _)| slot(target));
        }
        let same = |a: &(CounterTarget, i64), b: &(CounterTarget, i64)| {
            !clustered || slot(&a.0) == slot(&b.0)
        };
        let mut written = 0;
        let mut rest = sums.as_slice();
        while !rest.is_empty() {
            let group = rest
                .chunk_by(same)
                .next()
                .map_or(rest.len(), <[_]>::len)
                .min(PIPELINE_MAX_COUNTERS);
            let (chunk, later) = rest.split_at(group);
            match self.write(chunk).await {
                Ok(done) => {
                    written += done;
                    self.0.buffer.lock().lost += (chunk.len() - done) as u64;
                }
                Err(error) => {
                    let unsent = matches!(error, Error::Unavailable { maybe_done: false, .. });
                    self.put_back(if unsent { rest } else { later });
                    if !unsent {
                        self.0.buffer.lock().lost += chunk.len() as u64;
                    }
                    return Err(error);
                }
            }
            rest = later;
        }
        Ok(written)
    }

    /// Flushes every `pause` until cancelled, and once more then.
    pub async fn run(&self, pause: Duration, cancel: CancellationToken) {
        let mut stop = false;
        while !stop {
            tokio::select! {
                () = cancel.cancelled() => stop = true,
                () = tokio::time::sleep(pause) => {}
            }
            if let Err(error) = self.flush().await {
                tracing::warn!(%error, waiting = self.waiting(), "counters not written");
            }
        }
    }

    /// Writes a chunk and returns how many of it were counted; one that is refused, because its key
    /// holds something else, does not keep the others back.
    async fn write(&self, chunk: &[(CounterTarget, i64)]) -> Result<usize, Error> {
        let mut pipe = redis::pipe();
        pipe.ignore_errors();
        for (target, by) in chunk {
            match target {
                CounterTarget::Key { key, .. } => pipe.cmd("INCRBY").arg(key).arg(by),
                CounterTarget::Field { key, field, .. } => {
                    pipe.cmd("HINCRBY").arg(key).arg(field).arg(by)
                }
            };
            if let CounterTarget::Key { key, keep: Some(keep) }
            | CounterTarget::Field { key, keep: Some(keep), .. } = target
            {
                let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX).max(1);
                pipe.cmd("PEXPIRE").arg(key).arg(keep_ms).ignore();
            }
        }
        let mut store = self.0.store.clone();
        let counted: Vec<RedisResult<i64>> = pipe.query_async(&mut store).await?;
        for error in counted.iter().filter_map(|result| result.as_ref().err()) {
            tracing::warn!(%error, "a counter was refused");
        }
        Ok(counted.iter().filter(|result| result.is_ok()).count())
    }

    fn put_back(&self, sums: &[(CounterTarget, i64)]) {
        for (target, by) in sums {
            self.add(target.clone(), *by);
        }
    }
}

fn slot(target: &CounterTarget) -> u16 {
    match target {
        CounterTarget::Key { key, .. } | CounterTarget::Field { key, .. } => key.slot(),
    }
}
