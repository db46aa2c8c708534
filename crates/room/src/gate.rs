//! The gate: what a protected site asks with every request. May this visitor come in?
//!
//! The usual answer costs no round trip to the store. A pass is checked once and remembered by its
//! digest; from then on the session is looked at in the store at most every [`LOOK_MS`], and that
//! same look tells the store of the activity in between. So whatever ends a session is honoured
//! within that time on every instance, and at once on the instance that ended it. A visitor whose
//! pass is good is not turned away because the store is away.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use ring::digest;
use store::Millis;

use crate::{
    Claim, Error, Estimate, Joined, NewPlace, Pass, Place, QueueId, QueueStatus, Room, Session,
    SessionId, State, Visitor, estimate::estimate, reply::Reply, scripts, token::Fault,
};

/// How old the knowledge of a session may be, in milliseconds. A quarter of the session timeout if
/// that is less.
const LOOK_MS: i64 = 5_000;
/// How soon a store that did not answer is asked again.
const AGAIN_MS: i64 = 1_000;
/// How long a request waits for the store's answer about a visitor with a pass.
const PATIENCE: Duration = Duration::from_secs(1);
/// With so few slots free, what is known of them is read anew for every newcomer.
const NARROW: u64 = 64;
/// Passes remembered: two generations of this many at most.
const REMEMBERED: usize = 65_536;

/// A visitor with a good pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inside {
    /// What the pass says.
    pub pass: Pass,
    /// When the session ends if nothing more happens.
    pub until: Millis,
    /// When the session ends whatever happens.
    pub hard_until: Millis,
    /// A pass that lasts longer, to give to the visitor in place of this one.
    pub renewed: Option<String>,
}

/// What a visitor without a pass finds.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrival {
    /// There was room: the session runs.
    In {
        /// The session.
        session: Box<Session>,
        /// Its pass.
        pass: String,
    },
    /// There is a line, and the visitor has a place in it.
    InLine(Box<Place>),
    /// There is a line, or nobody is let in just now. No place was taken.
    Line,
    /// The queue is full or closed.
    Closed,
}

/// Passes that were checked.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    known: Mutex<Generations>,
    /// Sessions that were ended here lately, before their time.
    ended: Mutex<Ended>,
    /// The store did not answer: until then it is not asked, so that nobody waits for it in vain.
    away_until: AtomicI64,
}

type Digest = [u8; 32];

/// Two maps: what is not asked for while the young one fills up is forgotten with the old one.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Digest, Arc<Known>>,
    old: HashMap<Digest, Arc<Known>>,
}

/// What is known of a pass and its session.
#[derive(Debug)]
struct Known {
    pass: Pass,
    /// When the session was last looked at in the store.
    looked: AtomicI64,
    until: AtomicI64,
    hard_until: AtomicI64,
    /// How long the knowledge is good.
    good_for: AtomicI64,
    /// Requests since the last look.
    views: AtomicU32,
    /// The store has said that the session runs.
    confirmed: AtomicBool,
    /// The store has said that the session is over, which is for ever.
    over: AtomicBool,
}

impl Generations {
    fn get(&mut self, digest: &Digest) -> Option<Arc<Known>> {
        if let Some(known) = self.young.get(digest) {
            return Some(Arc::clone(known));
        }
        let known = self.old.remove(digest)?;
        self.put(*digest, Arc::clone(&known));
        Some(known)
    }

    fn put(&mut self, digest: Digest, known: Arc<Known>) {
        if self.young.len() >= REMEMBERED {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(digest, known);
    }
}

/// As [`Generations`], of sessions.
#[derive(Debug, Default)]
struct Ended {
    young: HashSet<SessionId>,
    old: HashSet<SessionId>,
}

impl Gate {
    /// A session was ended before its time: what is known of it does not count any more.
    pub(crate) fn session_ended(&self, id: &SessionId) {
        let mut ended = self.ended.lock();
        if ended.young.len() >= REMEMBERED {
            ended.old = std::mem::take(&mut ended.young);
        }
        ended.young.insert(*id);
    }

    fn has_ended(&self, id: &SessionId) -> bool {
        let ended = self.ended.lock();
        ended.young.contains(id) || ended.old.contains(id)
    }
}

impl Known {
    fn new(pass: Pass) -> Self {
        let until = pass.expires.0;
        Self {
            pass,
            looked: AtomicI64::new(i64::MIN),
            until: AtomicI64::new(until),
            hard_until: AtomicI64::new(until),
            good_for: AtomicI64::new(LOOK_MS),
            views: AtomicU32::new(0),
            confirmed: AtomicBool::new(false),
            over: AtomicBool::new(false),
        }
    }

    /// Must this caller look in the store? When the knowledge is only old, one caller does and the
    /// others go by it meanwhile, so that a page with a hundred pictures asks once. When it is not
    /// good enough to let anybody in, every caller looks.
    fn needs_look(&self, now: Millis, ended: bool) -> bool {
        let good = self.confirmed.load(Ordering::Acquire)
            && !ended
            && now.0 < self.until.load(Ordering::Acquire);
        if !good {
            return true;
        }
        let looked = self.looked.load(Ordering::Acquire);
        let age = now.0.saturating_sub(looked);
        if (0..self.good_for.load(Ordering::Relaxed)).contains(&age) {
            return false;
        }
        self.looked.compare_exchange(looked, now.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Is the visitor let in on what was known or signed, while the store is away?
    fn good_without_store(&self, now: Millis) -> bool {
        now.0 < self.until.load(Ordering::Acquire).max(self.pass.expires.0)
    }

    fn inside(&self, renewed: Option<String>) -> Inside {
        Inside {
            pass: self.pass.clone(),
            until: Millis(self.until.load(Ordering::Acquire)),
            hard_until: Millis(self.hard_until.load(Ordering::Acquire)),
            renewed,
        }
    }
}

impl Room {
    /// May the bearer of this pass come in? Counts as activity of the session. Refuses with
    /// [`Error::Token`]; a store that is away is no reason to refuse a pass that has not run out.
    ///
    /// A pass whose own time is over is good as long as its session runs.
    pub async fn gate(&self, queue: &QueueId, token: &str) -> Result<Inside, Error> {
        let now = self.now();
        let digest = digest_of(token);
        let known = self.0.gate.known.lock().get(&digest);
        let known = match known {
            Some(known) if known.pass.queue == *queue => known,
            _ => {
                let known = Arc::new(Known::new(self.read_pass_of_any_age(queue, token).await?));
                self.0.gate.known.lock().put(digest, Arc::clone(&known));
                known
            }
        };
        if known.over.load(Ordering::Acquire) {
            return Err(Fault::Over.into());
        }
        if !known.needs_look(now, self.0.gate.has_ended(&known.pass.session)) {
            known.views.fetch_add(1, Ordering::Relaxed);
            return Ok(known.inside(None));
        }
        self.look(&known, now).await
    }

    /// Tells the store of the session's activity and learns whether it still runs.
    async fn look(&self, known: &Known, now: Millis) -> Result<Inside, Error> {
        let views = known.views.swap(0, Ordering::Relaxed).saturating_add(1);
        let pass = &known.pass;
        let gate = &self.0.gate;
        let away = now.0 < gate.away_until.load(Ordering::Relaxed);
        let touched = async {
            let touched = self.touch(&pass.queue, &pass.session, views, Some(pass.epoch)).await?;
            let timeout = self.pulse(&pass.queue).await?.config.session_timeout;
            Ok::<_, Error>((touched, timeout))
        };
        let answer = match away && known.good_without_store(now) {
            true => None,
            false => tokio::time::timeout(PATIENCE, touched).await.ok(),
        };
        let (touched, timeout) = match answer {
            Some(Ok(answer)) => answer,
            Some(Err(Error::UnknownQueue)) => return Err(Fault::Over.into()),
            Some(Err(error)) if !error.is_unavailable() => return Err(error),
            unavailable => {
                known.views.fetch_add(views, Ordering::Relaxed);
                if !away {
                    gate.away_until.store(now.0.saturating_add(AGAIN_MS), Ordering::Relaxed);
                }
                return match unavailable {
                    _ if known.good_without_store(now) => Ok(known.inside(None)),
                    Some(Err(error)) => Err(error),
                    _ => Err(Error::Busy),
                };
            }
        };
        match touched {
            Touched::Active { until, hard_until, proven } => {
                known.until.store(until.0, Ordering::Release);
                known.hard_until.store(hard_until.0, Ordering::Release);
                known.looked.store(now.0, Ordering::Release);
                known.confirmed.store(true, Ordering::Release);
                let quarter = i64::try_from(timeout.as_millis() / 4).unwrap_or(LOOK_MS);
                known.good_for.store(quarter.clamp(1, LOOK_MS), Ordering::Relaxed);
                let renewed = self.renewed(pass, until, now, proven).await?;
                Ok(known.inside(renewed))
            }
            Touched::Over => {
                known.over.store(true, Ordering::Release);
                Err(Fault::Over.into())
            }
            // A token may be void for a while only.
            Touched::Revoked => {
                known.confirmed.store(false, Ordering::Release);
                Err(Fault::Revoked.into())
            }
        }
    }

    /// A pass that lasts as long as the session does now, if a new one lasts longer and half of this
    /// one's time is over, or it was `proven` just now that the visitor keeps it.
    async fn renewed(
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

    /// What a visitor without a pass finds if nobody can come straight in now: there is a line, or
    /// the address has its share of the sessions, or the queue is closed. Takes no position.
    pub async fn turn_away(
        &self,
        queue: &QueueId,
        visitor: &Visitor,
    ) -> Result<Option<Arrival>, Error> {
        let pulse = self.pulse(queue).await?;
        match pulse.status {
            QueueStatus::Maintenance => return Ok(Some(Arrival::Closed)),
            QueueStatus::Paused => return Ok(Some(Arrival::Line)),
            QueueStatus::Active => {}
        }
        if pulse.waiting > 0 || pulse.free() == Some(0) {
            return Ok(Some(Arrival::Line));
        }
        let Some(ip) = visitor.address else { return Ok(None) };
        let hash = self.0.addresses.hash(&self.0.store, &self.0.keys, ip).await?;
        let keys = self.known(queue);
        let reply = scripts::check_address::run(
            &self.0.store,
            scripts::check_address::Keys {
                meta: &keys.meta,
                active: &keys.active,
                address: keys.address_sessions(&hash),
            },
            scripts::check_address::Args { now_ms: self.now() },
        )
        .await?;
        let reply = Reply::of(scripts::check_address::SCRIPT, reply)?;
        match reply.word() {
            "free" => Ok(None),
            "full" => Ok(Some(Arrival::Line)),
            _ => Err(reply.unexpected()),
        }
    }

    /// The position a visitor would get by enqueueing now, and how long it would wait there.
    pub async fn next_position(&self, queue: &QueueId) -> Result<(u64, Option<Estimate>), Error> {
        let pulse = self.pulse(queue).await?;
        let position = pulse.waiting + 1;
        let wait = match pulse.status {
            QueueStatus::Active => estimate(position, &pulse).ok(),
            _ => None,
        };
        Ok((position, wait))
    }

    /// A visitor without a pass comes to the gate. If there is room and nobody waits, the visitor
    /// is in; if not, no position is taken unless the chance was missed by a moment.
    ///
    /// The session is provisional unless the visitor showed a key that was given before: until its
    /// pass comes back once, it lasts only for the queue's `provisional_timeout`.
    pub async fn arrive(
        &self,
        queue: &QueueId,
        new: NewPlace,
        visitor: &Visitor,
    ) -> Result<Arrival, Error> {
        if let Some(arrival) = self.turn_away(queue, visitor).await? {
            return Ok(arrival);
        }
        let pulse = self.pulse(queue).await?;
        let provisional = new.idempotency_key.is_none() && new.held.is_none();
        let joined = match self.join(queue, new).await {
            Ok(joined) => joined,
            Err(Error::Full { .. } | Error::Maintenance) => return Ok(Arrival::Closed),
            Err(error) => return Err(error),
        };
        let Joined { place, new } = joined;
        // The next one must not try in vain: that would be a place in line that nobody asked for.
        if place.state == State::Waiting || pulse.free().is_some_and(|free| free <= NARROW) {
            self.forget(queue);
        }
        let id = place.id;
        match self.enter(place, visitor, provisional).await {
            // Others of the same address were faster. Nobody else is to wait for this one.
            Err(Error::AddressFull { .. }) if new => {
                self.leave(queue, &id).await?;
                Ok(Arrival::Line)
            }
            arrival => arrival,
        }
    }

    /// The holder of a place comes to the gate: in if admitted, else still in line. A place that is
    /// over is [`Arrival::Line`]: the visitor has none.
    pub async fn come_in(&self, place: Place, visitor: &Visitor) -> Result<Arrival, Error> {
        let kept = place.clone();
        match self.enter(place, visitor, false).await {
            // Admitted, but not before somebody else of the same address is done.
            Err(Error::AddressFull { .. }) => Ok(Arrival::InLine(Box::new(kept))),
            arrival => arrival,
        }
    }

    async fn enter(
        &self,
        place: Place,
        visitor: &Visitor,
        provisional: bool,
    ) -> Result<Arrival, Error> {
        match place.state {
            State::Waiting => return Ok(Arrival::InLine(Box::new(place))),
            State::Admitted | State::Active => {}
            _ => return Ok(Arrival::Line),
        }
        match self.start_session(&place.queue, &place.id, visitor, provisional).await? {
            Claim::Session { session, .. } => {
                let pass = self.issue_pass(&session).await?;
                Ok(Arrival::In { session: Box::new(session), pass })
            }
            Claim::Waiting => Ok(Arrival::InLine(Box::new(place))),
            Claim::Over(..) => Ok(Arrival::Line),
        }
    }

    /// One look at a session, with its activity. `epoch` is that of the pass, if there is one.
    pub(crate) async fn touch(
        &self,
        queue: &QueueId,
        id: &SessionId,
        page_views: u32,
        epoch: Option<u32>,
    ) -> Result<Touched, Error> {
        let keys = self.known(queue);
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
            "active" => Ok(Touched::Active {
                until: reply.moment(1)?,
                hard_until: reply.moment(2)?,
                proven: reply.text(4) == "1",
            }),
            "ended" => Ok(Touched::Over),
            "revoked" => Ok(Touched::Revoked),
            "unknown" if epoch.is_some() => Ok(Touched::Over),
            "unknown" => Err(Error::UnknownSession),
            _ => Err(reply.unexpected()),
        }
    }
}

/// What a look at a session came to.
pub(crate) enum Touched {
    /// `proven`: a provisional session is now a whole one.
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
