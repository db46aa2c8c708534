//! What time brings: admissions, offers nobody claimed, sessions and places that ran out, lanes to
//! tidy.
//!
//! [`Keeper::tick`] does one bounded round and is what tests call; [`Keeper::run`] does it until it
//! is cancelled. Any number of instances may run one on the same store: every step is judged by the
//! script that does it, so two keepers do no more than one.

use std::{
    borrow::Borrow,
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use store::{Key, Layout, Millis, Store, redis, redis::AsyncCommands as _};
use tokio_util::sync::CancellationToken;

use crate::{
    Error, PositionId, QueueId, Room, SessionId, hour, keys::QueueKeys, reply::Reply, scripts,
};

/// Looks after all queues of a room.
#[derive(Debug)]
pub struct Keeper {
    room: Room,
    /// How far the search for the silent has gone past places that may not end yet.
    passed: AtomicUsize,
    /// How far the search for what has no deadline has gone, by queue.
    adopting: Mutex<HashMap<QueueId, Adopting>>,
}

/// Where the search for what has no deadline goes on.
#[derive(Clone, Copy, Debug, Default)]
struct Adopting {
    /// When the last step was done.
    done: Millis,
    /// Cursor of the scan over running sessions.
    cursor: u64,
    /// Rank in the line.
    rank: isize,
}

/// What one round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Places admitted.
    pub admitted: u64,
    /// Admitted places whose claim window was over: gone back to the line, or ended.
    pub no_shows: u64,
    /// Silent places ended.
    pub expired: u64,
    /// Sessions that ran out.
    pub sessions: u64,
}

impl Swept {
    fn add(&mut self, other: Swept) {
        self.admitted += other.admitted;
        self.no_shows += other.no_shows;
        self.expired += other.expired;
        self.sessions += other.sessions;
    }
}

/// Items of each kind handled per queue and round.
const BATCH: usize = 200;
/// Silent places looked at in one step, and steps per round.
const SILENT: usize = 500;
const SILENT_STEPS: usize = 4;
/// Queues looked after at the same time.
const AT_ONCE: usize = 16;
/// Sessions and positions looked at for a missing deadline in one step, and how often there is one.
const ADOPT: isize = 500;
const ADOPT_MS: u64 = 1_000;
/// Entries of a lane gone through in one step of compaction.
const COMPACT: usize = 1_000;

impl Keeper {
    /// A keeper for a room.
    pub fn new(room: Room) -> Self {
        Self { room, passed: AtomicUsize::new(0), adopting: Mutex::default() }
    }

    /// Works until cancelled. A round that fails is logged and tried again with the next beat, and
    /// less often while the store is away.
    pub async fn run(&self, cancel: CancellationToken) {
        let mut failures = 0u32;
        loop {
            let pause = self.room.0.options.tick.saturating_mul(1 << failures.min(4));
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            match self.tick().await {
                Ok(swept) => {
                    if failures > 0 {
                        tracing::info!("the waiting room is kept again");
                    }
                    failures = 0;
                    if swept.expired + swept.no_shows > 0 {
                        tracing::debug!(?swept, "places ended");
                    }
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "the waiting room could not be kept"
                        );
                    }
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// One round over all queues. Bounded: what is left over is for the next one.
    pub async fn tick(&self) -> Result<Swept, Error> {
        let queues = self.room.queue_ids().await?;
        let mut swept = Swept::default();
        let mut kept = Vec::with_capacity(queues.len());
        let mut failed = None;
        let mut rounds = stream::iter(queues)
            .map(|queue| async move {
                let done = self.keep(&queue).await;
                (queue, done)
            })
            .buffer_unordered(AT_ONCE);
        while let Some((queue, done)) = rounds.next().await {
            match done {
                Ok(done) => {
                    swept.add(done);
                    kept.push(queue);
                }
                Err(Error::UnknownQueue) => {}
                // One queue's trouble does not stop the others.
                Err(error) => failed = Some(error),
            }
        }
        match self.end_silent(&kept).await {
            Ok(expired) => swept.expired += expired,
            Err(error) => failed = Some(error),
        }
        failed.map_or(Ok(swept), Err)
    }

    async fn keep(&self, queue: &QueueId) -> Result<Swept, Error> {
        let room = &self.room;
        let keys = room.known(queue);
        let mut swept = Swept::default();
        type Survey = (String, Vec<String>, Vec<String>, Vec<String>, Vec<u64>);
        let (word, mut next, late, over, lengths): Survey = scripts::survey::run(
            &room.0.store,
            scripts::survey::Keys {
                meta: &keys.meta,
                state: &keys.state,
                positions: &keys.positions,
                claims: &keys.claims,
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
                room.forget(queue);
                tracing::warn!(%queue, "the service was away; nobody loses a place");
            }
            _ => {}
        }
        if !over.is_empty() {
            swept.sessions += self.end_sessions(queue, &keys, &over).await?;
        }
        if !late.is_empty() {
            swept.no_shows += self.take_back(queue, &keys, &late).await?;
        }
        if !over.is_empty() || !late.is_empty() {
            // Slots became free, and the line may have a new head.
            swept.admitted += room.admit(queue, BATCH).await?.ids.len() as u64;
        } else {
            drop_foreign(room, &keys, &mut next).await?;
            if !next.is_empty() {
                let step = room.admit_these(queue, &keys, &next, false).await?;
                swept.admitted += step.ids.len() as u64;
                // More than the batch that was seen, or another line than was seen.
                if next.len() == BATCH || step.moved {
                    swept.admitted += room.admit(queue, 8 * BATCH).await?.ids.len() as u64;
                }
            }
        }
        self.compact(&keys, &lengths).await?;
        self.adopt(queue, &keys).await?;
        Ok(swept)
    }

    /// Finds what another program wrote without a deadline, a step at a time, and gives it one: sessions
    /// that would hold their slot for ever, positions whose silence would never be noticed.
    async fn adopt(&self, queue: &QueueId, keys: &QueueKeys) -> Result<(), Error> {
        let room = &self.room;
        let mut store = room.0.store.clone();
        let mut at = self.adopting.lock().get(queue).copied().unwrap_or_default();
        let now = room.now();
        if now.0.abs_diff(at.done.0) < ADOPT_MS {
            return Ok(());
        }
        type Page = ((u64, Vec<String>), Vec<String>);
        let ((cursor, sessions), positions): Page = redis::pipe()
            .cmd("SSCAN")
            .arg(&keys.active)
            .arg(at.cursor)
            .arg("COUNT")
            .arg(ADOPT)
            .zrange(&keys.positions, at.rank, at.rank + ADOPT - 1)
            .query_async(&mut store)
            .await?;
        at.cursor = cursor;
        at.rank = if positions.len() < ADOPT as usize { 0 } else { at.rank + ADOPT };
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

    async fn take_back(
        &self,
        queue: &QueueId,
        keys: &QueueKeys,
        late: &[String],
    ) -> Result<u64, Error> {
        let room = &self.room;
        let (ids, foreign) = readable(late, PositionId::parse);
        if !foreign.is_empty() {
            tracing::warn!(%queue, count = foreign.len(), "admitted ids that are no UUIDs dropped");
            let () = room.0.store.clone().zrem(&keys.claims, &foreign).await?;
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
                claims: &keys.claims,
                stats: keys.stats(&hour(now)),
                events: &keys.events,
                places: ids.iter().map(|id| keys.position(id)).collect::<Vec<Key>>(),
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
                let ttl = room.pulse(queue).await?.config.position_ttl();
                self.refresh(ids.iter().map(|id| keys.position(id)), ttl).await?;
                Ok(0)
            }
            _ => Err(reply.unexpected()),
        }
    }

    async fn end_sessions(
        &self,
        queue: &QueueId,
        keys: &QueueKeys,
        over: &[String],
    ) -> Result<u64, Error> {
        let room = &self.room;
        let (ids, foreign) = readable(over, SessionId::parse);
        if !foreign.is_empty() {
            // Adopted from another program, and their time is over.
            tracing::warn!(%queue, count = foreign.len(), "sessions of another program dropped");
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
        let places: Vec<Option<String>> = pipe.query_async(&mut room.0.store.clone()).await?;
        let records: Vec<Key> = ids
            .iter()
            .zip(&places)
            .flat_map(|(id, place)| {
                let session = keys.session(id);
                let place = place.as_deref().and_then(|id| PositionId::parse(id).ok());
                // Without a record nothing is marked; only the indexes are tidied.
                let place = place.map_or(session.clone(), |id| keys.position(&id));
                [session, place]
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
                let config = &room.pulse(queue).await?.config;
                self.refresh(&records, config.session_ttl() + config.session_max.as_secs()).await?;
                Ok(0)
            }
            _ => Err(reply.unexpected()),
        }
    }

    /// Takes tombstones out of lanes once more than half of the entries are.
    async fn compact(&self, keys: &QueueKeys, lengths: &[u64]) -> Result<(), Error> {
        let [waiting, lists @ ..] = lengths else { return Ok(()) };
        let entries: u64 = lists.iter().sum();
        let many_dead = entries > 2 * waiting + COMPACT as u64;
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
                    scripts::compact::Args { most: COMPACT },
                )
                .await?;
            }
        }
        Ok(())
    }

    /// Ends the places whose holders have been silent for too long.
    async fn end_silent(&self, queues: &[QueueId]) -> Result<u64, Error> {
        match self.room.0.store.layout() {
            // One set for all queues: go through its oldest entries, passing by those whose queue
            // stands still or holds longer, and go on from there next time.
            Layout::Standalone => {
                let Some(queue) = queues.first() else { return Ok(0) };
                let keys = self.room.known(queue);
                let mut passed = self.passed.load(Ordering::Relaxed);
                let ended = self.silent_in(&keys.heartbeat, queues, &mut passed).await;
                self.passed.store(passed, Ordering::Relaxed);
                ended
            }
            Layout::Cluster => {
                let mut ended = 0;
                for queue in queues {
                    let keys = self.room.known(queue);
                    let only = std::slice::from_ref(queue);
                    ended += self.silent_in(&keys.heartbeat, only, &mut 0).await?;
                }
                Ok(ended)
            }
        }
    }

    async fn silent_in(
        &self,
        heartbeat: &Key,
        queues: &[QueueId],
        passed: &mut usize,
    ) -> Result<u64, Error> {
        let room = &self.room;
        let mut least = Duration::MAX;
        for queue in queues {
            match room.pulse(queue).await {
                Ok(pulse) => least = least.min(pulse.config.heartbeat_timeout()),
                Err(Error::UnknownQueue) => {}
                Err(error) => return Err(error),
            }
        }
        if least == Duration::MAX {
            return Ok(0);
        }
        let mut ended = 0;
        for _ in 0..SILENT_STEPS {
            let now = room.now();
            let oldest: Vec<(String, f64)> = redis::cmd("ZRANGE")
                .arg(heartbeat)
                .arg(*passed)
                .arg(*passed + SILENT - 1)
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
            let gone = self.end_these(&silent, queues).await?;
            ended += gone.expired;
            *passed += silent.len().saturating_sub(gone.removed);
            if silent.len() < SILENT {
                *passed = 0;
                break;
            }
        }
        Ok(ended)
    }

    /// Ends those of these places who are silent by their own queue's rules.
    async fn end_these(&self, silent: &[&str], queues: &[QueueId]) -> Result<Gone, Error> {
        let room = &self.room;
        let mut store = room.0.store.clone();
        let mut gone = Gone::default();
        let Some(first) = queues.first() else { return Ok(gone) };
        if silent.is_empty() {
            return Ok(gone);
        }
        let any = room.known(first);
        let mut foreign = Vec::new();
        let mut ids = Vec::new();
        for text in silent {
            match PositionId::parse(text) {
                Ok(id) => ids.push(id),
                Err(_) => foreign.push(*text),
            }
        }
        if !foreign.is_empty() {
            tracing::warn!(count = foreign.len(), "heartbeats of unknown ids dropped");
            redis::cmd("ZREM")
                .arg(&any.heartbeat)
                .arg(&foreign)
                .query_async::<()>(&mut store)
                .await?;
            gone.removed += foreign.len();
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
            // Nobody's: let the first queue's step drop it.
            by_queue.entry(owner.unwrap_or_else(|| first.clone())).or_default().push(id);
        }
        for (queue, ids) in by_queue {
            let step = self.end_in(&queue, &ids).await?;
            gone.expired += step.expired;
            gone.removed += step.removed;
        }
        Ok(gone)
    }

    /// In whose line a place without a record stands.
    async fn owner(&self, id: &PositionId, queues: &[QueueId]) -> Result<Option<QueueId>, Error> {
        let mut store = self.room.0.store.clone();
        for queue in queues {
            let keys = self.room.known(queue);
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

    async fn end_in(&self, queue: &QueueId, ids: &[PositionId]) -> Result<Gone, Error> {
        let room = &self.room;
        let keys = room.known(queue);
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
                places: ids.iter().map(|id| keys.position(id)).collect::<Vec<Key>>(),
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
            // The queue is gone; so is whoever waited there.
            Err(Error::UnknownQueue) => {
                let members: Vec<String> = ids.iter().map(PositionId::to_string).collect();
                redis::cmd("ZREM")
                    .arg(&keys.heartbeat)
                    .arg(&members)
                    .query_async::<()>(&mut store)
                    .await?;
                return Ok(Gone { expired: 0, removed: ids.len() });
            }
            reply => reply?,
        };
        match reply.word() {
            "expired" => Ok(Gone {
                expired: reply.number(1)?,
                removed: reply.number::<usize>(1)? + reply.number::<usize>(2)?,
            }),
            "stopped" => {
                let ttl = room.pulse(queue).await?.config.position_ttl();
                self.refresh(ids.iter().map(|id| keys.position(id)), ttl).await?;
                Ok(Gone::default())
            }
            _ => Err(reply.unexpected()),
        }
    }

    /// Clocks stand still: these records must not run out meanwhile.
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

/// Those of these members that a sorted set does not have.
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

/// What became of places that looked silent.
#[derive(Clone, Copy, Debug, Default)]
struct Gone {
    /// Ended.
    expired: u64,
    /// No longer in the set of signs of life.
    removed: usize,
}

/// Takes ids that are not ours (written by another program) out of the line, because nothing can
/// be done with them and they would stand in everybody's way.
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
    tracing::warn!(count = foreign.len(), "unreadable ids dropped from the line");
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
