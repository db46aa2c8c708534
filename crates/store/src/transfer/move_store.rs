//! Moving everything from one store to another.
//!
//! 1. Copy all keys, while the source may go on taking writes.
//! 2. Copy what changed meanwhile, until little is left. Compare all keys.
//! 3. For a source in use: refuse writes there, copy the last changes, compare those.
//! 4. Compare the number of keys, take the mark from the target.
//!
//! No acknowledged write is lost: a write is acknowledged before writes are refused, so its event, or
//! the comparison of all keys where there are no events, comes before the end; or it is refused. An
//! interrupted move is continued by starting it again: keys that are the same already stay.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use redis::cmd;

use super::{
    Checksum, KeyMaps, TransferProgress,
    changes::ChangeTracker,
    copy::{Comparison, Copier},
    invalid,
    target::{KeyWalk, count_keys, finish, prepare, refuse_other_databases},
};
use crate::{Error, Store, StoreKind};

/// With so few changed keys left, writes are refused for the last of them.
const FEW_KEYS: usize = 1_000;
/// Rounds of copying changes after which it is not waited any longer that they become few.
const ROUNDS: usize = 20;
/// Comparisons of everything after which a source that is not held is taken to be in use.
const COMPARISONS: usize = 3;
/// Attempts for one step while a store is unavailable, and the pause between them.
const ATTEMPTS: u32 = 30;
const BETWEEN: Duration = Duration::from_secs(1);

/// Refuses writes at the source for the last step of a move.
pub trait WriteHold: Send + Sync {
    /// Refuses writes from now on: those that were accepted before are done when it returns.
    fn begin(&self) -> BoxFuture<'_, Result<(), Error>>;
    /// Makes sure that writes were refused all the time since.
    fn confirm(&self) -> BoxFuture<'_, Result<(), Error>>;
    /// Accepts writes again, because the move failed.
    fn release(&self) -> BoxFuture<'_, ()>;
}

/// Options of a move.
pub struct MoveOptions<'a> {
    /// The name of the source, without secrets: by it an interrupted move is recognised.
    pub source: &'a str,
    /// Refuses writes at a source in use. Without it the source must not change.
    pub hold: Option<&'a dyn WriteHold>,
    /// The keys of all services.
    pub maps: &'a KeyMaps,
    /// Counts keys.
    pub progress: &'a TransferProgress,
    /// Told of each step.
    pub on_step: &'a (dyn Fn(MoveStep) + Send + Sync),
}

impl std::fmt::Debug for MoveOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MoveOptions").field("source", &self.source).finish_non_exhaustive()
    }
}

/// The step a move is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveStep {
    /// All keys are copied; true if an earlier attempt is continued.
    Copying(bool),
    /// So many keys changed meanwhile and are copied again.
    CatchingUp(usize),
    /// All keys are compared.
    Comparing,
    /// Writes are refused now.
    Holding,
    /// The last so many keys are copied.
    Finishing(usize),
}

/// The result of a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveReport {
    /// Number of keys at the target.
    pub keys: u64,
    /// Sum over the keys that were compared, the same on both sides.
    pub checksum: Checksum,
    /// Keys that no service knows, which were copied as they are.
    pub foreign: u64,
    /// Heartbeats of positions that do not exist any more, which were left out.
    pub dropped: u64,
    /// Time for which writes have been refused so far.
    pub held: Option<Duration>,
}

/// Moves all keys of one store to another, which must be empty or hold an interrupted attempt.
///
/// # Errors
/// The target is not empty, the source keeps changing, or a store failed. The source is unchanged and
/// takes writes again; the same move can be started again.
pub async fn move_store(
    from: &Store,
    to: &Store,
    options: MoveOptions<'_>,
) -> Result<MoveReport, Error> {
    if from.kind() == StoreKind::Embedded {
        refuse_other_databases(from).await?;
    }
    let is_continued = prepare(to, options.source).await?;
    let mut copier = Copier::new(from, to, options.maps, options.progress).await?;
    let tracker = match options.hold {
        // Events of a cluster come from each node for itself.
        Some(_) if from.kind() != StoreKind::Cluster => match ChangeTracker::start(from).await {
            Ok(tracker) => Some(tracker),
            Err(error) => {
                tracing::warn!(%error, "the source reports no changes: all keys are compared while writes are refused");
                None
            }
        },
        _ => None,
    };
    let mut work = MoveWork { copier, tracker, options: &options, held: None };
    let moved = work.run(is_continued).await;
    let (tracker, held) = (work.tracker.take(), work.held);
    copier = work.copier;
    if let Some(tracker) = tracker {
        // The source may be gone by now; the setting matters to nobody then.
        let _ = tracker.stop().await;
    }
    match (moved, options.hold) {
        (Ok(checksum), _) => Ok(MoveReport {
            keys: count_keys(to).await?,
            checksum,
            foreign: copier.foreign,
            dropped: copier.dropped,
            held: held.map(|began: Instant| began.elapsed()),
        }),
        (Err(error), Some(hold)) if held.is_some() => {
            hold.release().await;
            Err(error)
        }
        (Err(error), _) => Err(error),
    }
}

struct MoveWork<'a> {
    copier: Copier,
    tracker: Option<ChangeTracker>,
    options: &'a MoveOptions<'a>,
    held: Option<Instant>,
}

impl MoveWork<'_> {
    async fn run(&mut self, is_continued: bool) -> Result<Checksum, Error> {
        self.tell(MoveStep::Copying(is_continued));
        self.copier.read_scopes().await?;
        let first = if is_continued { self.compare_all().await?.differing.len() } else { 0 };
        if !is_continued {
            self.copy_all().await?;
        }
        tracing::debug!(first, "first pass done");
        let checksum = match self.options.hold {
            None => self.settle().await?,
            Some(hold) => self.switch(hold).await?,
        };
        let expected = count_keys(&self.copier.from).await?;
        if count_keys(&self.copier.to).await? != expected + 1 {
            // Left over from an earlier attempt, or in another layout more or fewer by nature.
            let purged = self.copier.purge().await?;
            tracing::debug!(purged, "keys that the source does not have were deleted");
        }
        if let Some(hold) = self.options.hold {
            hold.confirm().await?;
        }
        finish(&self.copier.to).await?;
        Ok(checksum)
    }

    /// Copies and compares until nothing differs, with a source that nobody writes to.
    async fn settle(&mut self) -> Result<Checksum, Error> {
        self.copier.copy_deferred().await?;
        for _ in 0..COMPARISONS {
            self.tell(MoveStep::Comparing);
            let comparison = self.compare_all().await?;
            if comparison.is_same() && self.copier.compare_deferred().await? {
                return Ok(comparison.source);
            }
            self.copier.copy_deferred().await?;
        }
        Err(invalid(
            "the source keeps changing: stop the programs that write to it and start the move again, \
             or add --switch to refuse writes there at the end",
        ))
    }

    /// Copies changes until few are left, then refuses writes and copies the last ones.
    async fn switch(&mut self, hold: &dyn WriteHold) -> Result<Checksum, Error> {
        self.catch_up().await?;
        self.copier.copy_deferred().await?;
        self.tell(MoveStep::Comparing);
        let mut comparison = self.compare_all().await?;
        self.catch_up().await?;
        self.tell(MoveStep::Holding);
        self.held = Some(Instant::now());
        hold.begin().await?;
        self.copier.read_scopes().await?;
        let changed = match &mut self.tracker {
            Some(tracker) => tracker.take().await?,
            None => None,
        };
        match changed {
            Some(mut changed) => {
                changed.extend(self.copier.grouped.iter().cloned());
                // Copied again after the comparison, and not compared since.
                changed.append(&mut comparison.differing);
                changed.sort();
                changed.dedup();
                self.tell(MoveStep::Finishing(changed.len()));
                self.copy_again(&changed).await?;
                self.copier.copy_deferred().await?;
                let mut last = Comparison::default();
                self.copier.compare_keys(&changed, &mut last).await?;
                if !last.is_same() {
                    return Err(differing(&last));
                }
            }
            None => {
                self.tell(MoveStep::Finishing(
                    usize::try_from(self.copier.progress.total()).unwrap_or(0),
                ));
                self.compare_all().await?;
                self.copier.copy_deferred().await?;
                comparison = self.compare_all().await?;
                if !comparison.is_same() {
                    return Err(differing(&comparison));
                }
            }
        }
        if !self.copier.compare_deferred().await? {
            return Err(invalid(
                "sets that are divided differently do not agree: start the move again",
            ));
        }
        Ok(comparison.source)
    }

    /// Copies what has changed until few changes are left.
    async fn catch_up(&mut self) -> Result<(), Error> {
        for _ in 0..ROUNDS {
            let Some(tracker) = &mut self.tracker else { return Ok(()) };
            match tracker.take().await? {
                Some(changed) => {
                    self.tell(MoveStep::CatchingUp(changed.len()));
                    self.copier.read_scopes().await?;
                    self.copy_again(&changed).await?;
                    if changed.len() <= FEW_KEYS {
                        return Ok(());
                    }
                }
                None => _ = self.compare_all().await?,
            }
        }
        Ok(())
    }

    async fn copy_all(&mut self) -> Result<(), Error> {
        self.copier.progress.begin(count_keys(&self.copier.from).await?);
        let mut walk = KeyWalk::new(&self.copier.from).await?;
        while let Some(keys) = walk.next().await? {
            // What a server gives twice must be deleted first the second time.
            let mut fresh = true;
            for attempt in 1.. {
                match self.copier.copy_keys(&keys, fresh).await {
                    Ok(()) => break,
                    Err(error) => {
                        self.pause_or_fail(error, attempt).await?;
                        fresh = false;
                    }
                }
            }
        }
        Ok(())
    }

    async fn copy_again(&mut self, keys: &[Vec<u8>]) -> Result<(), Error> {
        for attempt in 1.. {
            match self.copier.copy_keys(keys, false).await {
                Ok(()) => break,
                Err(error) => self.pause_or_fail(error, attempt).await?,
            }
        }
        Ok(())
    }

    /// Compares all keys, and copies again what differs. The sums are of the time before that.
    async fn compare_all(&mut self) -> Result<Comparison, Error> {
        self.copier.read_scopes().await?;
        self.copier.progress.begin(count_keys(&self.copier.from).await?);
        let mut walk = KeyWalk::new(&self.copier.from).await?;
        let mut all = Comparison::default();
        while let Some(keys) = walk.next().await? {
            let mut some = Comparison::default();
            for attempt in 1.. {
                some = Comparison::default();
                match self.copier.compare_keys(&keys, &mut some).await {
                    Ok(()) => break,
                    Err(error) => self.pause_or_fail(error, attempt).await?,
                }
            }
            self.copy_again(&some.differing).await?;
            all.keys += some.keys;
            all.source += some.source;
            all.target += some.target;
            all.differing.extend(some.differing);
        }
        Ok(all)
    }

    /// Waits before another attempt if a store is unavailable.
    async fn pause_or_fail(&mut self, error: Error, attempt: u32) -> Result<(), Error> {
        self.copier.clear();
        if !error.is_unavailable() || attempt >= ATTEMPTS {
            return Err(error);
        }
        tracing::warn!(%error, attempt, "a store is unavailable; trying again");
        tokio::time::sleep(BETWEEN).await;
        Ok(())
    }

    fn tell(&self, step: MoveStep) {
        (self.options.on_step)(step);
    }
}

fn differing(comparison: &Comparison) -> Error {
    invalid(format!(
        "{} keys differ although writes are refused: does another program write to the target? stop \
         it and start the move again",
        comparison.differing.len()
    ))
}

/// Refuses writes at a server for everybody, by asking for more replicas than there can be.
#[derive(Debug)]
pub struct ServerHold {
    store: Store,
}

const REPLICAS: &str = "min-replicas-to-write";
/// More replicas than any server has.
const TOO_MANY: &str = "1000000";

impl ServerHold {
    /// For this server, or all servers of a cluster.
    pub fn new(store: &Store) -> Self {
        Self { store: store.clone() }
    }

    async fn set(&self, value: &str) -> Result<(), Error> {
        let mut set = cmd("CONFIG");
        set.arg("SET").arg(REPLICAS).arg(value);
        self.store.on_every_node(&set).await.map(drop)
    }
}

impl WriteHold for ServerHold {
    fn begin(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async {
            self.set(TOO_MANY).await.map_err(|error| {
                invalid(format!(
                    "the source does not let this user refuse writes ({error}): stop the programs \
                     that write to it, and move without --switch"
                ))
            })
        })
    }

    fn confirm(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async {
            let mut get = cmd("CONFIG");
            get.arg("GET").arg(REPLICAS);
            for (_, reply) in self.store.on_every_node(&get).await? {
                let found: Vec<String> = redis::from_redis_value(reply).map_err(Error::from)?;
                if found.get(1).map(String::as_str) != Some(TOO_MANY) {
                    return Err(invalid("the source took writes again before the move was done"));
                }
            }
            Ok(())
        })
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Err(error) = self.set("0").await {
                tracing::error!(%error, "the source still refuses writes: CONFIG SET min-replicas-to-write 0");
            }
        })
    }
}
