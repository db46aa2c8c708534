//! Pass check: the check a protected site makes with every request.
//!
//! The usual answer costs no round trip to the store. A pass is verified once and cached by its
//! digest; from then on the session is refreshed from the store at most every [`REFRESH_MS`], and the
//! same call reports the activity in between. So whatever ends a session takes effect within that time
//! on every instance, and at once on the instance that ended it. A revocation takes effect with the next
//! round of [`RoomMaintenance`](crate::RoomMaintenance), which reads the sessions revoked since. A visitor whose pass is valid is not
//! turned away while the store is unavailable.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use ring::digest;
use store::{Millis, redis};
use tokio::sync::Notify;

use crate::{
    EnqueueOutcome, Error, Estimate, NewPosition, Pass, Position, PositionState, QueueCache,
    QueueId, QueueStatus, Room, SessionId, SessionStart, Visitor, VisitorSession,
    estimate::estimate, reply::Reply, scripts, token::TokenError,
};

/// Maximum age of the cached state of a session, in milliseconds. A quarter of the session timeout if
/// that is less.
const REFRESH_MS: i64 = 5_000;
/// Delay before a store that did not answer is asked again.
const RETRY_MS: i64 = 1_000;
/// Timeout of the store's answer about a visitor with a pass.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);
/// With fewer free slots than this, every newcomer invalidates the snapshot.
const FEW_SLOTS: u64 = 64;
/// Sessions kept in `state` after they were revoked, as in `end_session.lua`.
const REVOKED_KEPT: u64 = 64;
/// Capacity of one generation of cached passes; there are two.
const GENERATION_CAPACITY: usize = 65_536;

/// A valid pass of an active session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivePass {
    /// The claims of the pass.
    pub pass: Pass,
    /// Time at which the session ends without further activity.
    pub until: Millis,
    /// Hard limit of the session.
    pub hard_until: Millis,
    /// A pass with a later expiry, to replace this one.
    pub renewed: Option<String>,
}

/// The outcome for a visitor without a pass.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrival {
    /// A slot was free: the session has started.
    Started {
        /// The session.
        session: Box<VisitorSession>,
        /// Its pass.
        pass: String,
    },
    /// The visitor waits in the queue.
    Waiting(Box<Position>),
    /// Others wait, or nobody is admitted at the moment. The visitor was not enqueued.
    MustWait,
    /// The queue is full or closed.
    Closed,
}

/// Cache of verified passes.
#[derive(Debug, Default)]
pub(crate) struct PassCache {
    verified: Mutex<PassGenerations>,
    /// Sessions that were ended before their deadline: by this instance, or revoked by any.
    ended: Mutex<EndedSessions>,
    /// Number of times all cached state was voided.
    validity: AtomicU64,
    /// Told of every session that was ended.
    changed: Notify,
    /// After a timeout, the time until which the store is not asked, so that requests do not wait in vain.
    unavailable_until: AtomicI64,
}

type Digest = [u8; 32];

/// Generational cache: an entry not used while the young map fills up is dropped with the old one.
#[derive(Debug, Default)]
struct PassGenerations {
    young: HashMap<Digest, Arc<CachedPass>>,
    old: HashMap<Digest, Arc<CachedPass>>,
}

/// Cached state of a pass and its session.
#[derive(Debug)]
struct CachedPass {
    pass: Pass,
    /// Time of the last refresh from the store.
    refreshed: AtomicI64,
    until: AtomicI64,
    hard_until: AtomicI64,
    /// Maximum age of this state, in milliseconds.
    max_age: AtomicI64,
    /// [`PassCache::validity`] at the last refresh.
    validity: AtomicU64,
    /// Requests since the last refresh.
    views: AtomicU32,
    /// The store has confirmed that the session is active.
    confirmed: AtomicBool,
    /// The store has said that the session has ended, which is final.
    over: AtomicBool,
}

impl PassGenerations {
    fn get(&mut self, digest: &Digest) -> Option<Arc<CachedPass>> {
        if let Some(known) = self.young.get(digest) {
            return Some(Arc::clone(known));
        }
        let known = self.old.remove(digest)?;
        self.put(*digest, Arc::clone(&known));
        Some(known)
    }

    fn put(&mut self, digest: Digest, known: Arc<CachedPass>) {
        if self.young.len() >= GENERATION_CAPACITY {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(digest, known);
    }
}

/// Ended sessions, in two generations as [`PassGenerations`].
#[derive(Debug, Default)]
struct EndedSessions {
    young: HashSet<SessionId>,
    old: HashSet<SessionId>,
}

impl PassCache {
    /// Records that a session was ended before its deadline: its cached state is void.
    pub(crate) fn session_ended(&self, id: &SessionId) {
        let mut ended = self.ended.lock();
        if ended.young.len() >= GENERATION_CAPACITY {
            ended.old = std::mem::take(&mut ended.young);
        }
        ended.young.insert(*id);
        drop(ended);
        self.changed.notify_waiters();
    }

    /// Records that any session may have been ended: all cached state is void.
    fn invalidate_all(&self) {
        self.validity.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    fn has_ended(&self, id: &SessionId) -> bool {
        let ended = self.ended.lock();
        ended.young.contains(id) || ended.old.contains(id)
    }
}

impl CachedPass {
    fn new(pass: Pass) -> Self {
        let until = pass.expires.0;
        Self {
            pass,
            refreshed: AtomicI64::new(i64::MIN),
            until: AtomicI64::new(until),
            hard_until: AtomicI64::new(until),
            max_age: AtomicI64::new(REFRESH_MS),
            validity: AtomicU64::new(u64::MAX),
            views: AtomicU32::new(0),
            confirmed: AtomicBool::new(false),
            over: AtomicBool::new(false),
        }
    }

    /// Returns true if this caller must refresh from the store. When the state is only old, one caller
    /// refreshes and the others use it meanwhile, so that a page with a hundred images causes one read;
    /// if the state does not prove an active session, every caller refreshes.
    fn needs_refresh(&self, now: Millis, ended: bool, validity: u64) -> bool {
        let good = self.confirmed.load(Ordering::Acquire)
            && !ended
            && self.validity.load(Ordering::Acquire) == validity
            && now.0 < self.until.load(Ordering::Acquire);
        if !good {
            return true;
        }
        let refreshed = self.refreshed.load(Ordering::Acquire);
        let age = now.0.saturating_sub(refreshed);
        if (0..self.max_age.load(Ordering::Relaxed)).contains(&age) {
            return false;
        }
        self.refreshed
            .compare_exchange(refreshed, now.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Returns true if the pass or its cached state is valid while the store is unavailable.
    fn is_valid_without_store(&self, now: Millis) -> bool {
        now.0 < self.until.load(Ordering::Acquire).max(self.pass.expires.0)
    }

    fn to_active(&self, renewed: Option<String>) -> ActivePass {
        ActivePass {
            pass: self.pass.clone(),
            until: Millis(self.until.load(Ordering::Acquire)),
            hard_until: Millis(self.hard_until.load(Ordering::Acquire)),
            renewed,
        }
    }
}

impl Room {
    /// Verifies a pass and that its session is active, from the cache where possible. Counts as activity
    /// of the session. An invalid pass is [`Error::Token`]; a pass that has not expired is accepted while
    /// the store is unavailable.
    ///
    /// An expired pass is valid as long as its session is active.
    pub async fn verify_pass(&self, queue: &QueueId, token: &str) -> Result<ActivePass, Error> {
        let now = self.now();
        let digest = digest_of(token);
        let known = self.0.passes.verified.lock().get(&digest);
        let known = match known {
            Some(known) if known.pass.queue == *queue => known,
            _ => {
                let known =
                    Arc::new(CachedPass::new(self.read_pass_of_any_age(queue, token).await?));
                self.0.passes.verified.lock().put(digest, Arc::clone(&known));
                known
            }
        };
        if known.over.load(Ordering::Acquire) {
            return Err(TokenError::Over.into());
        }
        let passes = &self.0.passes;
        let ended = passes.has_ended(&known.pass.session);
        if !known.needs_refresh(now, ended, passes.validity.load(Ordering::Acquire)) {
            known.views.fetch_add(1, Ordering::Relaxed);
            return Ok(known.to_active(None));
        }
        self.refresh_session(&known, now).await
    }

    /// Reports the session's activity to the store and reads whether it is still active.
    async fn refresh_session(&self, known: &CachedPass, now: Millis) -> Result<ActivePass, Error> {
        let views = known.views.swap(0, Ordering::Relaxed).saturating_add(1);
        let pass = &known.pass;
        let passes = &self.0.passes;
        let away = now.0 < passes.unavailable_until.load(Ordering::Relaxed);
        let validity = passes.validity.load(Ordering::Acquire);
        let touched = async {
            let touched = self.touch(&pass.queue, &pass.session, views, Some(pass.epoch)).await?;
            let timeout = self.snapshot(&pass.queue).await?.config.session_timeout;
            Ok::<_, Error>((touched, timeout))
        };
        let answer = match away && known.is_valid_without_store(now) {
            true => None,
            false => tokio::time::timeout(STORE_TIMEOUT, touched).await.ok(),
        };
        let (touched, timeout) = match answer {
            Some(Ok(answer)) => answer,
            Some(Err(Error::UnknownQueue)) => return Err(TokenError::Over.into()),
            Some(Err(error)) if !error.is_unavailable() => return Err(error),
            unavailable => {
                known.views.fetch_add(views, Ordering::Relaxed);
                if !away {
                    passes
                        .unavailable_until
                        .store(now.0.saturating_add(RETRY_MS), Ordering::Relaxed);
                }
                return match unavailable {
                    _ if known.is_valid_without_store(now) => Ok(known.to_active(None)),
                    Some(Err(error)) => Err(error),
                    _ => Err(Error::Busy),
                };
            }
        };
        match touched {
            TouchReply::Active { until, hard_until, proven } => {
                known.until.store(until.0, Ordering::Release);
                known.hard_until.store(hard_until.0, Ordering::Release);
                known.refreshed.store(now.0, Ordering::Release);
                known.validity.store(validity, Ordering::Release);
                known.confirmed.store(true, Ordering::Release);
                let quarter = i64::try_from(timeout.as_millis() / 4).unwrap_or(REFRESH_MS);
                known.max_age.store(quarter.clamp(1, REFRESH_MS), Ordering::Relaxed);
                let renewed = self.renew_pass(pass, until, now, proven).await?;
                Ok(known.to_active(renewed))
            }
            TouchReply::Over => {
                known.over.store(true, Ordering::Release);
                Err(TokenError::Over.into())
            }
            // A revocation may be temporary.
            TouchReply::Revoked => {
                known.confirmed.store(false, Ordering::Release);
                Err(TokenError::Revoked.into())
            }
        }
    }

    /// Signs a pass with the session's current deadline, if that is later and half of this pass's
    /// lifetime is spent, or it was just proven that the visitor keeps cookies.
    async fn renew_pass(
        &self,
        pass: &Pass,
        until: Millis,
        now: Millis,
        proven: bool,
    ) -> Result<Option<String>, Error> {
        let half = pass.issued.0 + (pass.expires.0 - pass.issued.0) / 2;
        if (now.0 < half && !proven) || until.as_secs() <= pass.expires.as_secs() {
            return Ok(None);
        }
        let new = Pass { issued: now, expires: until, ..pass.clone() };
        Ok(Some(self.sign_pass(&new).await?))
    }

    /// Voids the cached state of sessions that were revoked, on whichever instance: `now` are the numbers
    /// of the queue's revocations and its epoch.
    pub(crate) async fn notice_revocations(
        &self,
        keys: &QueueCache,
        now: (u64, u64),
    ) -> Result<(), Error> {
        let seen = *keys.revocations.lock();
        if seen == Some(now) {
            return Ok(());
        }
        let passes = &self.0.passes;
        match seen {
            Some((count, epoch)) if epoch == now.1 && now.0.wrapping_sub(count) <= REVOKED_KEPT => {
                let fields: Vec<String> = std::iter::once("revocations".to_owned())
                    .chain((count + 1..=now.0).map(|n| format!("revoked_{}", n % REVOKED_KEPT)))
                    .collect();
                let read: Vec<Option<String>> = redis::cmd("HMGET")
                    .arg(&keys.state)
                    .arg(&fields)
                    .query_async(&mut self.0.store.clone())
                    .await?;
                let mut read = read.into_iter().flatten();
                let latest: u64 = read.next().and_then(|count| count.parse().ok()).unwrap_or(0);
                if latest.wrapping_sub(count) > REVOKED_KEPT {
                    passes.invalidate_all();
                }
                read.filter_map(|id| SessionId::parse(&id).ok())
                    .for_each(|id| passes.session_ended(&id));
            }
            _ => passes.invalidate_all(),
        }
        *keys.revocations.lock() = Some(now);
        Ok(())
    }

    /// Voids the cached state of all sessions: the next check of each asks the store.
    pub(crate) fn invalidate_passes(&self) {
        self.0.passes.invalidate_all();
    }

    /// Waits until a session should be looked at again: it may have been revoked, or `limit` has passed.
    pub async fn session_in_doubt(&self, id: &SessionId, limit: Duration) {
        let passes = &self.0.passes;
        let validity = passes.validity.load(Ordering::Acquire);
        // It was looked at after that and was active: do not look again all the time.
        let known = passes.has_ended(id);
        let limit = if known { limit.min(Duration::from_secs(1)) } else { limit };
        let changed = async {
            loop {
                let changed = passes.changed.notified();
                let revoked = !known && passes.has_ended(id);
                if revoked || passes.validity.load(Ordering::Acquire) != validity {
                    return;
                }
                changed.await;
            }
        };
        // Either way it is time.
        let _ = tokio::time::timeout(limit, changed).await;
    }

    /// Returns the outcome for a visitor without a pass if no session can start now: others wait, or
    /// the address has reached its limit of sessions, or the queue is closed. Enqueues nobody.
    pub async fn turn_away(
        &self,
        queue: &QueueId,
        visitor: &Visitor,
    ) -> Result<Option<Arrival>, Error> {
        let snapshot = self.snapshot(queue).await?;
        match snapshot.status {
            QueueStatus::Maintenance => return Ok(Some(Arrival::Closed)),
            QueueStatus::Paused => return Ok(Some(Arrival::MustWait)),
            QueueStatus::Active => {}
        }
        if snapshot.waiting > 0 || snapshot.free() == Some(0) {
            return Ok(Some(Arrival::MustWait));
        }
        let Some(ip) = visitor.address else { return Ok(None) };
        let hash = self.0.addresses.hash(&self.0.store, &self.0.keys, ip).await?;
        let keys = self.queue_cache(queue);
        let reply = scripts::check_address::run(
            &self.0.store,
            scripts::check_address::Keys {
                meta: &keys.meta,
                admitted: &keys.admitted,
                active: &keys.active,
                address: keys.address_sessions(&hash),
            },
            scripts::check_address::Args { now_ms: self.now() },
        )
        .await?;
        let reply = Reply::of(scripts::check_address::SCRIPT, reply)?;
        match reply.word() {
            "free" => Ok(None),
            "full" => Ok(Some(Arrival::MustWait)),
            _ => Err(reply.unexpected()),
        }
    }

    /// Returns the number in line a visitor would get by enqueueing now, and the estimated wait.
    pub async fn next_position(&self, queue: &QueueId) -> Result<(u64, Option<Estimate>), Error> {
        let snapshot = self.snapshot(queue).await?;
        let number = snapshot.waiting + 1;
        let wait = match snapshot.status {
            QueueStatus::Active => estimate(number, &snapshot).ok(),
            _ => None,
        };
        Ok((number, wait))
    }

    /// Handles a visitor without a pass. If a slot is free and nobody waits, the session starts;
    /// otherwise the visitor is not enqueued, unless the slot was lost by a moment.
    ///
    /// The session is provisional unless the visitor sent a key that was set before: until its
    /// pass comes back once, it lasts only for the queue's `provisional_timeout`.
    pub async fn arrive(
        &self,
        queue: &QueueId,
        new: NewPosition,
        visitor: &Visitor,
    ) -> Result<Arrival, Error> {
        if let Some(arrival) = self.turn_away(queue, visitor).await? {
            return Ok(arrival);
        }
        let snapshot = self.snapshot(queue).await?;
        let provisional = new.idempotency_key.is_none() && new.held.is_none();
        let enqueued = match self.enqueue(queue, new).await {
            Ok(enqueued) => enqueued,
            Err(Error::Full { .. } | Error::Maintenance) => return Ok(Arrival::Closed),
            Err(error) => return Err(error),
        };
        let EnqueueOutcome { position, new } = enqueued;
        // The next newcomer must not try in vain: that would enqueue somebody who did not ask for it.
        if position.state == PositionState::Waiting
            || snapshot.free().is_some_and(|free| free <= FEW_SLOTS)
        {
            self.invalidate(queue);
        }
        let id = position.id;
        match self.enter(position, visitor, provisional).await {
            // Others from the same address were faster. Give the slot back.
            Err(Error::AddressFull { .. }) if new => {
                self.leave(queue, &id).await?;
                Ok(Arrival::MustWait)
            }
            arrival => arrival,
        }
    }

    /// Handles a visitor with a position: starts the session if admitted, else the visitor still waits. A
    /// position that has ended is [`Arrival::MustWait`].
    pub async fn arrive_with_position(
        &self,
        position: Position,
        visitor: &Visitor,
    ) -> Result<Arrival, Error> {
        let kept = position.clone();
        match self.enter(position, visitor, false).await {
            // Admitted, but the session can start only when another one of the same address ends.
            Err(Error::AddressFull { .. }) => Ok(Arrival::Waiting(Box::new(kept))),
            arrival => arrival,
        }
    }

    async fn enter(
        &self,
        position: Position,
        visitor: &Visitor,
        provisional: bool,
    ) -> Result<Arrival, Error> {
        match position.state {
            PositionState::Waiting => return Ok(Arrival::Waiting(Box::new(position))),
            PositionState::Admitted | PositionState::Active => {}
            _ => return Ok(Arrival::MustWait),
        }
        match self.start_session_with(&position.queue, &position.id, visitor, provisional).await? {
            SessionStart::Active { session, .. } => {
                let pass = self.issue_pass(&session).await?;
                Ok(Arrival::Started { session: Box::new(session), pass })
            }
            SessionStart::Waiting => Ok(Arrival::Waiting(Box::new(position))),
            SessionStart::Over(..) => Ok(Arrival::MustWait),
        }
    }

    /// Records activity of a session and reads its deadlines. `epoch` is that of the pass, if there is one.
    pub(crate) async fn touch(
        &self,
        queue: &QueueId,
        id: &SessionId,
        page_views: u32,
        epoch: Option<u32>,
    ) -> Result<TouchReply, Error> {
        let keys = self.queue_cache(queue);
        let reply = scripts::touch::run(
            &self.0.store,
            scripts::touch::Keys {
                meta: &keys.meta,
                state: &keys.state,
                active: &keys.active,
                deadlines: &keys.deadlines,
                session: keys.session(id),
                revocation: keys.revocation(&id.to_string()),
            },
            scripts::touch::Args {
                now_ms: self.now(),
                session_id: id.to_string(),
                page_views,
                epoch: epoch.map(|epoch| epoch.to_string()),
            },
        )
        .await?;
        let reply = Reply::of(scripts::touch::SCRIPT, reply)?;
        match reply.word() {
            "active" => Ok(TouchReply::Active {
                until: reply.moment(1)?,
                hard_until: reply.moment(2)?,
                proven: reply.text(4) == "1",
            }),
            "ended" => Ok(TouchReply::Over),
            "revoked" => Ok(TouchReply::Revoked),
            "unknown" if epoch.is_some() => Ok(TouchReply::Over),
            "unknown" => Err(Error::UnknownSession),
            _ => Err(reply.unexpected()),
        }
    }
}

/// Reply of `touch.lua`.
pub(crate) enum TouchReply {
    /// `proven`: a provisional session became a regular one.
    Active {
        until: Millis,
        hard_until: Millis,
        proven: bool,
    },
    Over,
    Revoked,
}

fn digest_of(token: &str) -> Digest {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, token.as_bytes()).as_ref());
    out
}
