//! Background maintenance: admits, takes back unused admissions, expires sessions and positions,
//! compacts lanes.
//!
//! [`RoomMaintenance::tick`] runs one bounded round and is what tests call; [`RoomMaintenance::run`]
//! repeats it until it is cancelled. Any number of instances may run on the same store: the script that
//! makes a change also decides whether it is due, so two of them do no more than one.

use std::{
    borrow::Borrow,
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use store::{Key, Layout, Millis, Store, redis, redis::AsyncCommands as _};
use tokio_util::sync::CancellationToken;

use crate::{
    Error, PositionId, QueueId, Room, SessionId, admit::BlockedCursor, hour, keys::QueueKeys,
    reply::Reply, scripts,
};

/// The background task of a room, for all of its queues.
#[derive(Debug)]
pub struct RoomMaintenance {
    room: Room,
    /// Number of entries the search for positions without heartbeats has skipped because they may not
    /// expire yet.
    passed: AtomicUsize,
    /// Progress of the search for entries without a deadline, by queue.
    adopting: Mutex<HashMap<QueueId, AdoptionCursor>>,
    /// Time at which the hourly counters were last copied to the daily ones, by queue.
    archived: Mutex<HashMap<QueueId, Millis>>,
}

/// Cursor of the search for entries without a deadline.
#[derive(Clone, Copy, Debug, Default)]
struct AdoptionCursor {
    /// Time of the last step.
    done: Millis,
    /// Cursor of the scan over active sessions.
    cursor: u64,
    /// Rank in the queue.
    rank: isize,
}

/// Counts of one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomTickReport {
    /// Positions admitted.
    pub admitted: u64,
    /// Admissions taken back after the admission window: returned to the queue, or expired.
    pub no_shows: u64,
    /// Positions expired for lack of heartbeats.
    pub expired: u64,
    /// Sessions expired.
    pub sessions: u64,
}

impl RoomTickReport {
    fn add(&mut self, other: RoomTickReport) {
        self.admitted += other.admitted;
        self.no_shows += other.no_shows;
        self.expired += other.expired;
        self.sessions += other.sessions;
    }
}

/// Items of each kind handled per queue and round.
const BATCH: usize = 200;
/// Positions admitted per queue and round: with ten rounds a second, 16,000 a second.
const ADMIT_MAX: usize = 8 * BATCH;
/// Positions checked for missing heartbeats in one step, and steps per round.
const EXPIRE_BATCH: usize = 500;
const EXPIRE_STEPS: usize = 4;
/// Queues maintained concurrently.
const MAX_CONCURRENT_QUEUES: usize = 16;
/// Sessions and positions checked for a missing deadline in one step, and the interval of steps.
const ADOPT_BATCH: isize = 500;
const ADOPT_INTERVAL_MS: u64 = 1_000;
/// Interval at which hourly counters are copied to those of their day.
const ARCHIVE_INTERVAL_MS: u64 = 60_000;
/// Entries of a lane compacted in one step.
const COMPACT_BATCH: usize = 1_000;

impl RoomMaintenance {
    /// Creates the task for a room.
    pub fn new(room: Room) -> Self {
        Self {
            room,
            passed: AtomicUsize::new(0),
            adopting: Mutex::default(),
            archived: Mutex::default(),
        }
    }

    /// Runs until cancelled. A round that fails is logged and retried with the next tick, and less often
    /// while the store is unavailable.
    pub async fn run(&self, cancel: CancellationToken) {
        let mut failures = 0u32;
        loop {
            let pause = self.room.0.options.tick.saturating_mul(1 << failures.min(4));
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            match self.tick().await {
                Ok(report) => {
                    if failures > 0 {
                        tracing::info!("waiting room maintenance works again");
                    }
                    failures = 0;
                    if report.expired + report.no_shows > 0 {
                        tracing::debug!(?report, "positions expired");
                    }
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "waiting room maintenance failed; it is retried"
                        );
                    }
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// Runs one round over all queues. Bounded: the rest is left to the next round.
    pub async fn tick(&self) -> Result<RoomTickReport, Error> {
        let queues = self.room.queue_ids().await?;
        self.forget_deleted(&queues);
        let mut report = RoomTickReport::default();
        let mut maintained = Vec::with_capacity(queues.len());
        let mut failed = None;
        let mut rounds = stream::iter(queues)
            .map(|queue| async move {
                let done = self.maintain(&queue).await;
                (queue, done)
            })
            .buffer_unordered(MAX_CONCURRENT_QUEUES);
        while let Some((queue, done)) = rounds.next().await {
            match done {
                Ok(done) => {
                    report.add(done);
                    maintained.push(queue);
                }
                Err(Error::UnknownQueue) => {}
                // A queue that fails does not stop the others.
                Err(error) => failed = Some(error),
            }
        }
        match self.expire_silent(&maintained).await {
            Ok(expired) => report.expired += expired,
            Err(error) => failed = Some(error),
        }
        failed.map_or(Ok(report), Err)
    }

    /// Forgets queues that were deleted: their sessions have ended.
    fn forget_deleted(&self, queues: &[QueueId]) {
        let mut adopting = self.adopting.lock();
        let before = adopting.len();
        let queues: HashSet<&QueueId> = queues.iter().collect();
        self.archived.lock().retain(|queue, _| queues.contains(queue));
        adopting.retain(|queue, _| queues.contains(queue));
        if adopting.len() < before {
            self.room.invalidate_passes();
        }
    }

    async fn maintain(&self, queue: &QueueId) -> Result<RoomTickReport, Error> {
        let room = &self.room;
        let keys = room.queue_cache(queue);
        let mut report = RoomTickReport::default();
        type Survey = (String, Vec<String>, Vec<String>, Vec<String>, Vec<u64>, (u64, u64));
        let (word, mut next, late, over, lengths, revocations): Survey = scripts::survey::run(
            &room.0.store,
            scripts::survey::Keys {
                meta: &keys.meta,
                state: &keys.state,
                positions: &keys.positions,
                admitted: &keys.admitted,
                active: &keys.active,
                deadlines: &keys.deadlines,
                tokens: &keys.tokens,
                last_update: &keys.last_update,
                lists: keys.lanes.iter().chain(&keys.spares),
            },
            scripts::survey::Args { now_ms: room.now(), stall_ms: room.stall_ms(), most: BATCH },
        )
        .await?;
        match word.as_str() {
            "unknown_queue" => return Err(Error::UnknownQueue),
            "returned" => {
                room.invalidate(queue);
                tracing::warn!(%queue, "maintenance was interrupted; clocks start afresh and no position is lost");
            }
            _ => {}
        }
        room.notice_revocations(&keys, revocations).await?;
        if !over.is_empty() {
            report.sessions += self.expire_sessions(queue, &keys, &over).await?;
        }
        if !late.is_empty() {
            report.no_shows += self.take_back_admissions(queue, &keys, &late).await?;
        }
        let at_front = keys.blocked.lock().is_at_front();
        if !over.is_empty() || !late.is_empty() || !at_front {
            // Slots became free, and the queue may have a new head; or its head may not be admitted yet.
            report.admitted += room.admit(queue, ADMIT_MAX).await?.ids.len() as u64;
        } else {
            drop_foreign(room, &keys, &mut next).await?;
            if !next.is_empty() {
                let step = room.admit_these(&keys, BlockedCursor::default(), &next, false).await?;
                report.admitted += step.ids.len() as u64;
                // A full batch, an order that changed since, or visitors that were passed over: there may
                // be more to admit.
                if next.len() == BATCH || step.moved || !step.cursor.is_at_front() {
                    report.admitted += room.admit(queue, ADMIT_MAX).await?.ids.len() as u64;
                }
            }
        }
        self.compact(&keys, &lengths).await?;
        self.adopt(queue, &keys).await?;
        self.archive(queue).await?;
        Ok(report)
    }

    /// Copies the hourly counters to the daily ones, once a minute; after a start those of a whole day.
    async fn archive(&self, queue: &QueueId) -> Result<(), Error> {
        let now = self.room.now();
        let last = self.archived.lock().get(queue).copied();
        let hours = match last {
            None => 24,
            Some(last) if now.0.abs_diff(last.0) >= ARCHIVE_INTERVAL_MS => 2,
            Some(_) => return Ok(()),
        };
        self.room.archive_stats(queue, hours).await?;
        self.archived.lock().insert(queue.clone(), now);
        Ok(())
    }

    /// Finds entries that another program wrote without a deadline, a step at a time, and gives them one:
    /// sessions that would hold their slot for ever, positions that would never expire.
    async fn adopt(&self, queue: &QueueId, keys: &QueueKeys) -> Result<(), Error> {
        let room = &self.room;
        let mut store = room.0.store.clone();
        let mut at = self.adopting.lock().get(queue).copied().unwrap_or_default();
        let now = room.now();
        if now.0.abs_diff(at.done.0) < ADOPT_INTERVAL_MS {
            return Ok(());
        }
        type Page = ((u64, Vec<String>), Vec<String>);
        let ((cursor, sessions), positions): Page = redis::pipe()
            .cmd("SSCAN")
            .arg(&keys.active)
            .arg(at.cursor)
            .arg("COUNT")
            .arg(ADOPT_BATCH)
            .zrange(&keys.positions, at.rank, at.rank + ADOPT_BATCH - 1)
            .query_async(&mut store)
            .await?;
        at.cursor = cursor;
        at.rank = if positions.len() < ADOPT_BATCH as usize { 0 } else { at.rank + ADOPT_BATCH };
        at.done = now;
        let positions = without_score(&mut store, &keys.heartbeat, positions).await?;
        let sessions = without_score(&mut store, &keys.deadlines, sessions).await?;
        if !positions.is_empty() || !sessions.is_empty() {
            let mut pipe = redis::pipe();
            for id in sessions.iter().filter_map(|id| SessionId::parse(id).ok()) {
                pipe.hget(keys.session(&id), "expires_at");
            }
            let mut ends = match pipe.is_empty() {
                true => Vec::new(),
                false => pipe.query_async::<Vec<Option<String>>>(&mut store).await?,
            }
            .into_iter();
            let count = positions.len();
            let mut ids = positions;
            for id in sessions {
                let end = match SessionId::parse(&id) {
                    Ok(_) => ends.next().flatten().filter(|end| end.parse::<u32>().is_ok()),
                    Err(_) => None,
                };
                ids.extend([id, end.unwrap_or_else(|| "0".to_owned())]);
            }
            let reply = scripts::adopt::run(
                &room.0.store,
                scripts::adopt::Keys {
                    meta: &keys.meta,
                    positions: &keys.positions,
                    heartbeat: &keys.heartbeat,
                    active: &keys.active,
                    deadlines: &keys.deadlines,
                    events: &keys.events,
                },
                scripts::adopt::Args { now_ms: now, position_count: count, ids },
            )
            .await?;
            let reply = Reply::of(scripts::adopt::SCRIPT, reply)?;
            let (positions, sessions): (u64, u64) = (reply.number(1)?, reply.number(2)?);
            if positions + sessions > 0 {
                tracing::warn!(
                    %queue, positions, sessions,
                    "another program wrote positions or sessions without a deadline; they have one now"
                );
            }
        }
        self.adopting.lock().insert(queue.clone(), at);
        Ok(())
    }

    async fn take_back_admissions(
        &self,
        queue: &QueueId,
        keys: &QueueKeys,
        late: &[String],
    ) -> Result<u64, Error> {
        let room = &self.room;
        let (ids, foreign) = readable(late, PositionId::parse);
        if !foreign.is_empty() {
            tracing::warn!(%queue, count = foreign.len(), "admitted ids that are not UUIDs removed");
            let () = room.0.store.clone().zrem(&keys.admitted, &foreign).await?;
        }
        if ids.is_empty() {
            return Ok(foreign.len() as u64);
        }
        let now = room.now();
        let reply = scripts::no_show::run(
            &room.0.store,
            scripts::no_show::Keys {
                meta: &keys.meta,
                state: &keys.state,
                positions: &keys.positions,
                lane0: &keys.lanes[0],
                lane1: &keys.lanes[1],
                lane2: &keys.lanes[2],
                lane3: &keys.lanes[3],
                heartbeat: &keys.heartbeat,
                admitted: &keys.admitted,
                stats: keys.stats(&hour(now)),
                events: &keys.events,
                records: ids.iter().map(|id| keys.position(id)).collect::<Vec<Key>>(),
            },
            scripts::no_show::Args {
                now_ms: now,
                stall_ms: room.stall_ms(),
                queue_id: queue.as_str(),
                ids: ids.iter().map(PositionId::to_string).collect::<Vec<_>>(),
            },
        )
        .await?;
        let reply = Reply::of(scripts::no_show::SCRIPT, reply)?;
        match reply.word() {
            "done" => Ok(reply.number::<u64>(1)? + reply.number::<u64>(2)?),
            "stopped" => {
                let ttl = room.snapshot(queue).await?.config.position_ttl();
                self.refresh(ids.iter().map(|id| keys.position(id)), ttl).await?;
                Ok(0)
            }
            _ => Err(reply.unexpected()),
        }
    }

    async fn expire_sessions(
        &self,
        queue: &QueueId,
        keys: &QueueKeys,
        over: &[String],
    ) -> Result<u64, Error> {
        let room = &self.room;
        let (ids, foreign) = readable(over, SessionId::parse);
        if !foreign.is_empty() {
            // Adopted from another program, and expired.
            tracing::warn!(%queue, count = foreign.len(), "expired sessions of another program removed");
            redis::pipe()
                .srem(&keys.active, &foreign)
                .ignore()
                .zrem(&keys.deadlines, &foreign)
                .ignore()
                .query_async::<()>(&mut room.0.store.clone())
                .await?;
        }
        if ids.is_empty() {
            return Ok(foreign.len() as u64);
        }
        let mut pipe = redis::pipe();
        for id in &ids {
            pipe.hget(keys.session(id), "position_id");
        }
        let positions: Vec<Option<String>> = pipe.query_async(&mut room.0.store.clone()).await?;
        let records: Vec<Key> = ids
            .iter()
            .zip(&positions)
            .flat_map(|(id, position)| {
                let session = keys.session(id);
                let position = position.as_deref().and_then(|id| PositionId::parse(id).ok());
                // Without a record nothing is marked; only the indexes are cleaned up.
                let position = position.map_or(session.clone(), |id| keys.position(&id));
                [session, position]
            })
            .collect();
        let now = room.now();
        let reply = scripts::expire_sessions::run(
            &room.0.store,
            scripts::expire_sessions::Keys {
                meta: &keys.meta,
                state: &keys.state,
                active: &keys.active,
                deadlines: &keys.deadlines,
                stats: keys.stats(&hour(now)),
                events: &keys.events,
                sessions: &records,
            },
            scripts::expire_sessions::Args {
                now_ms: now,
                stall_ms: room.stall_ms(),
                ids: ids.iter().map(SessionId::to_string).collect::<Vec<_>>(),
            },
        )
        .await?;
        let reply = Reply::of(scripts::expire_sessions::SCRIPT, reply)?;
        match reply.word() {
            "expired" => Ok(reply.number::<u64>(1)? + foreign.len() as u64),
            "stopped" => {
                let config = &room.snapshot(queue).await?.config;
                self.refresh(&records, config.session_ttl() + config.session_max.as_secs()).await?;
                Ok(0)
            }
            _ => Err(reply.unexpected()),
        }
    }

    /// Removes tombstones from lanes once more than half of the entries are tombstones.
    async fn compact(&self, keys: &QueueKeys, lengths: &[u64]) -> Result<(), Error> {
        let [waiting, lists @ ..] = lengths else { return Ok(()) };
        let entries: u64 = lists.iter().sum();
        let many_dead = entries > 2 * waiting + COMPACT_BATCH as u64;
        for lane in 0..4 {
            let length = lists.get(lane).copied().unwrap_or(0);
            let begun = lists.get(4 + lane).copied().unwrap_or(0) > 0;
            if begun || (many_dead && length > 0) {
                let _: Vec<String> = scripts::compact::run(
                    &self.room.0.store,
                    scripts::compact::Keys {
                        lane: &keys.lanes[lane],
                        spare: &keys.spares[lane],
                        positions: &keys.positions,
                    },
                    scripts::compact::Args { most: COMPACT_BATCH },
                )
                .await?;
            }
        }
        Ok(())
    }

    /// Expires the positions whose last heartbeat is too old.
    async fn expire_silent(&self, queues: &[QueueId]) -> Result<u64, Error> {
        match self.room.0.store.layout() {
            // One set for all queues: scan its oldest entries, skip those whose queue is paused or
            // holds longer, and go on from there next time.
            Layout::Standalone => {
                let Some(queue) = queues.first() else { return Ok(0) };
                let keys = self.room.queue_cache(queue);
                let mut passed = self.passed.load(Ordering::Relaxed);
                let ended = self.expire_in_set(&keys.heartbeat, queues, &mut passed).await;
                self.passed.store(passed, Ordering::Relaxed);
                ended
            }
            Layout::Cluster => {
                let mut ended = 0;
                for queue in queues {
                    let keys = self.room.queue_cache(queue);
                    let only = std::slice::from_ref(queue);
                    ended += self.expire_in_set(&keys.heartbeat, only, &mut 0).await?;
                }
                Ok(ended)
            }
        }
    }

    async fn expire_in_set(
        &self,
        heartbeat: &Key,
        queues: &[QueueId],
        passed: &mut usize,
    ) -> Result<u64, Error> {
        let room = &self.room;
        let mut least = Duration::MAX;
        for queue in queues {
            match room.snapshot(queue).await {
                Ok(snapshot) => least = least.min(snapshot.config.heartbeat_timeout()),
                Err(Error::UnknownQueue) => {}
                Err(error) => return Err(error),
            }
        }
        if least == Duration::MAX {
            return Ok(0);
        }
        let mut ended = 0;
        for _ in 0..EXPIRE_STEPS {
            let now = room.now();
            let oldest: Vec<(String, f64)> = redis::cmd("ZRANGE")
                .arg(heartbeat)
                .arg(*passed)
                .arg(*passed + EXPIRE_BATCH - 1)
                .arg("WITHSCORES")
                .query_async(&mut room.0.store.clone())
                .await?;
            let due = |seen: f64| {
                Millis((seen as i64).saturating_add(1).saturating_mul(1000)) + least <= now
            };
            let silent: Vec<&str> = oldest
                .iter()
                .take_while(|(_, seen)| due(*seen))
                .map(|(id, _)| id.as_str())
                .collect();
            let counts = self.expire_batch(&silent, queues).await?;
            ended += counts.expired;
            *passed += silent.len().saturating_sub(counts.removed);
            if silent.len() < EXPIRE_BATCH {
                *passed = 0;
                break;
            }
        }
        Ok(ended)
    }

    /// Expires those of these positions that are due by their own queue's rules.
    async fn expire_batch(
        &self,
        silent: &[&str],
        queues: &[QueueId],
    ) -> Result<ExpiryCounts, Error> {
        let room = &self.room;
        let mut store = room.0.store.clone();
        let mut counts = ExpiryCounts::default();
        let Some(first) = queues.first() else { return Ok(counts) };
        if silent.is_empty() {
            return Ok(counts);
        }
        let any = room.queue_cache(first);
        let mut foreign = Vec::new();
        let mut ids = Vec::new();
        for text in silent {
            match PositionId::parse(text) {
                Ok(id) => ids.push(id),
                Err(_) => foreign.push(*text),
            }
        }
        if !foreign.is_empty() {
            tracing::warn!(count = foreign.len(), "heartbeats of ids that are not UUIDs removed");
            redis::cmd("ZREM")
                .arg(&any.heartbeat)
                .arg(&foreign)
                .query_async::<()>(&mut store)
                .await?;
            counts.removed += foreign.len();
        }
        let mut pipe = redis::pipe();
        for id in &ids {
            pipe.hget(any.position(id), "queue_id");
        }
        let owners: Vec<Option<String>> = pipe.query_async(&mut store).await?;
        let mut by_queue: HashMap<QueueId, Vec<PositionId>> = HashMap::new();
        for (id, owner) in ids.into_iter().zip(owners) {
            let owner = owner.as_deref().and_then(|owner| QueueId::parse(owner).ok());
            let owner = match owner {
                Some(owner) => Some(owner),
                None => self.owner(&id, queues).await?,
            };
            // Of no queue: the first queue's step drops it.
            by_queue.entry(owner.unwrap_or_else(|| first.clone())).or_default().push(id);
        }
        for (queue, ids) in by_queue {
            let step = self.expire_in_queue(&queue, &ids).await?;
            counts.expired += step.expired;
            counts.removed += step.removed;
        }
        Ok(counts)
    }

    /// Finds the queue of a position without a record.
    async fn owner(&self, id: &PositionId, queues: &[QueueId]) -> Result<Option<QueueId>, Error> {
        let mut store = self.room.0.store.clone();
        for queue in queues {
            let keys = self.room.queue_cache(queue);
            let score: Option<f64> = redis::cmd("ZSCORE")
                .arg(&keys.positions)
                .arg(id.to_string())
                .query_async(&mut store)
                .await?;
            if score.is_some() {
                return Ok(Some(queue.clone()));
            }
        }
        Ok(None)
    }

    async fn expire_in_queue(
        &self,
        queue: &QueueId,
        ids: &[PositionId],
    ) -> Result<ExpiryCounts, Error> {
        let room = &self.room;
        let keys = room.queue_cache(queue);
        let now = room.now();
        let reply = scripts::expire::run(
            &room.0.store,
            scripts::expire::Keys {
                meta: &keys.meta,
                state: &keys.state,
                positions: &keys.positions,
                heartbeat: &keys.heartbeat,
                stats: keys.stats(&hour(now)),
                events: &keys.events,
                records: ids.iter().map(|id| keys.position(id)).collect::<Vec<Key>>(),
            },
            scripts::expire::Args {
                now_ms: now,
                stall_ms: room.stall_ms(),
                ids: ids.iter().map(PositionId::to_string).collect::<Vec<_>>(),
            },
        )
        .await?;
        let mut store = room.0.store.clone();
        let reply = match Reply::of(scripts::expire::SCRIPT, reply) {
            // The queue was deleted, and its positions with it.
            Err(Error::UnknownQueue) => {
                let members: Vec<String> = ids.iter().map(PositionId::to_string).collect();
                redis::cmd("ZREM")
                    .arg(&keys.heartbeat)
                    .arg(&members)
                    .query_async::<()>(&mut store)
                    .await?;
                return Ok(ExpiryCounts { expired: 0, removed: ids.len() });
            }
            reply => reply?,
        };
        match reply.word() {
            "expired" => Ok(ExpiryCounts {
                expired: reply.number(1)?,
                removed: reply.number::<usize>(1)? + reply.number::<usize>(2)?,
            }),
            "stopped" => {
                let ttl = room.snapshot(queue).await?.config.position_ttl();
                self.refresh(ids.iter().map(|id| keys.position(id)), ttl).await?;
                Ok(ExpiryCounts::default())
            }
            _ => Err(reply.unexpected()),
        }
    }

    /// Extends the TTL of records whose clocks stand still.
    async fn refresh(
        &self,
        records: impl IntoIterator<Item: Borrow<Key>>,
        ttl: u64,
    ) -> Result<(), Error> {
        let mut pipe = redis::pipe();
        for record in records {
            pipe.expire(record.borrow(), i64::try_from(ttl).unwrap_or(3_600)).ignore();
        }
        pipe.query_async::<()>(&mut self.room.0.store.clone()).await?;
        Ok(())
    }
}

/// Splits ids into those that are ours and those another program wrote.
fn readable<T>(ids: &[String], parse: fn(&str) -> Result<T, Error>) -> (Vec<T>, Vec<&String>) {
    let (mut ours, mut foreign) = (Vec::new(), Vec::new());
    for id in ids {
        match parse(id) {
            Ok(parsed) => ours.push(parsed),
            Err(_) => foreign.push(id),
        }
    }
    (ours, foreign)
}

/// Returns the members that a sorted set does not have.
async fn without_score(
    store: &mut Store,
    key: &Key,
    mut members: Vec<String>,
) -> Result<Vec<String>, Error> {
    if members.is_empty() {
        return Ok(members);
    }
    let scores: Vec<Option<f64>> =
        redis::cmd("ZMSCORE").arg(key).arg(&members).query_async(store).await?;
    let mut scores = scores.into_iter();
    members.retain(|_| scores.next().flatten().is_none());
    Ok(members)
}

/// Counts of positions that seemed to lack heartbeats.
#[derive(Clone, Copy, Debug, Default)]
struct ExpiryCounts {
    /// Expired.
    expired: u64,
    /// Removed from the set of heartbeats.
    removed: usize,
}

/// Removes ids that are not ours (written by another program) from the queue: they cannot be admitted
/// and would block everybody behind them.
pub(crate) async fn drop_foreign(
    room: &Room,
    keys: &QueueKeys,
    next: &mut Vec<String>,
) -> Result<(), Error> {
    let foreign: Vec<String> =
        next.iter().filter(|id| PositionId::parse(id).is_err()).cloned().collect();
    if foreign.is_empty() {
        return Ok(());
    }
    tracing::warn!(count = foreign.len(), "ids that are not UUIDs removed from the queue");
    next.retain(|id| !foreign.contains(id));
    redis::pipe()
        .zrem(&keys.positions, &foreign)
        .ignore()
        .zrem(&keys.heartbeat, &foreign)
        .ignore()
        .query_async::<()>(&mut room.0.store.clone())
        .await?;
    Ok(())
}
