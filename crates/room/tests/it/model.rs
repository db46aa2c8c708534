//! A waiting room that is easy to believe: one thread, plain vectors, everything sorted anew.
//!
//! It says what the real one must show after each step. It knows nothing of scores in a sorted set,
//! of lists, tombstones or scripts.

use room::{EndReason, PositionState, PriorityPolicy, QueueConfig, QueueStatus};

/// A position.
#[derive(Clone, Debug)]
pub(crate) struct Visitor {
    pub(crate) state: PositionState,
    pub(crate) reason: Option<EndReason>,
    pub(crate) priority: u8,
    /// Where it stands among the others.
    score: f64,
    /// The order of enqueueing, which decides between equal scores.
    seq: i64,
    seen_s: i64,
    pub(crate) start_by: Option<i64>,
    returned: bool,
    until: i64,
    hard: i64,
    ended: i64,
    replaced_by: Option<usize>,
}

impl Visitor {
    fn end(&mut self, now: i64, state: PositionState, reason: EndReason) {
        self.state = state;
        self.ended = now;
        self.reason = Some(reason);
        self.start_by = None;
    }
}

/// What enqueueing says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnqueueCall {
    New(usize),
    Existing(usize),
    Full,
    Closed,
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) now: i64,
    pub(crate) config: QueueConfig,
    pub(crate) status: QueueStatus,
    pub(crate) visitors: Vec<Visitor>,
    stall: i64,
    seq: i64,
    /// Whole tokens, the rest in parts of a token, and when that was true.
    tokens: i64,
    rest: i64,
    at: i64,
    floor: i64,
    up: i64,
    beat: i64,
    /// Admissions of higher priorities since the last one of priority 0.
    since: i64,
}

impl Model {
    pub(crate) fn new(now: i64, config: QueueConfig, stall: i64) -> Self {
        Self {
            now,
            tokens: if config.admission.count == 0 { 0 } else { config.admission.burst.into() },
            config,
            status: QueueStatus::Active,
            visitors: Vec::new(),
            stall,
            seq: 0,
            rest: 0,
            at: now,
            floor: 0,
            up: 0,
            beat: now,
            since: 0,
        }
    }

    fn indexes(&self, state: PositionState) -> Vec<usize> {
        (0..self.visitors.len()).filter(|v| self.visitors[*v].state == state).collect()
    }

    pub(crate) fn count(&self, state: PositionState) -> usize {
        self.indexes(state).len()
    }

    fn share(&self) -> i64 {
        match self.config.policy {
            PriorityPolicy::Strict => i64::from(self.config.reserved_share),
            PriorityPolicy::Skip => 0,
        }
    }

    /// Who waits, by rank alone.
    fn ranked(&self) -> Vec<usize> {
        let mut line = self.indexes(PositionState::Waiting);
        let key = |v: &usize| (self.visitors[*v].score, self.visitors[*v].seq);
        line.sort_by(|a, b| key(a).partial_cmp(&key(b)).unwrap());
        line
    }

    /// Who waits, in the order of admission if nobody enqueues or leaves.
    pub(crate) fn line(&self) -> Vec<usize> {
        let ranked = self.ranked();
        if self.share() < 2 {
            return ranked;
        }
        let (mut normal, mut higher): (Vec<_>, Vec<_>) =
            ranked.into_iter().rev().partition(|v| self.visitors[*v].priority == 0);
        let (mut order, mut since) = (Vec::new(), self.since);
        while !normal.is_empty() || !higher.is_empty() {
            let turn = higher.is_empty() || since >= self.share() - 1;
            match if turn { normal.pop() } else { None } {
                Some(v) => {
                    order.push(v);
                    since = 0;
                }
                None => {
                    order.extend(higher.pop());
                    since += 1;
                }
            }
        }
        order
    }

    /// What the rate allows now: tokens, rest, instant.
    fn refilled(&self) -> (i64, i64, i64) {
        let rate = &self.config.admission;
        let (count, per) = (i64::from(rate.count), i64::from(rate.per_seconds) * 1000);
        let burst = i64::from(rate.burst);
        let passed = self.now - self.at;
        if count == 0 {
            return (0, 0, self.now);
        }
        if passed < 0 {
            let at = if passed < -1000 { self.now } else { self.at };
            return (self.tokens.min(burst), self.rest, at);
        }
        let parts = i128::from(self.tokens) * i128::from(per)
            + i128::from(self.rest)
            + i128::from(passed) * i128::from(count);
        if parts >= i128::from(burst) * i128::from(per) {
            return (burst, 0, self.now);
        }
        ((parts / i128::from(per)) as i64, (parts % i128::from(per)) as i64, self.now)
    }

    fn free(&self) -> usize {
        match self.config.max_active as usize {
            0 => usize::MAX,
            most => most.saturating_sub(
                self.count(PositionState::Admitted) + self.count(PositionState::Active),
            ),
        }
    }

    fn let_in(&mut self, v: usize) {
        if self.share() >= 2 {
            let normal = self.visitors[v].priority == 0;
            self.since = if normal { 0 } else { (self.since + 1).min(self.share() - 1) };
        }
        let start_by = self.now + self.config.admission_window.as_millis() as i64;
        let visitor = &mut self.visitors[v];
        visitor.state = PositionState::Admitted;
        visitor.start_by = Some(start_by);
    }

    /// Somebody enqueues who drew this ticket.
    pub(crate) fn enqueue(
        &mut self,
        priority: u8,
        held: Option<usize>,
        ticket: f64,
    ) -> EnqueueCall {
        let mut upgrade = None;
        if let Some(held) = held {
            match self.visitors[held].state {
                PositionState::Waiting if priority > self.visitors[held].priority => {
                    upgrade = Some(held)
                }
                PositionState::Waiting | PositionState::Admitted | PositionState::Active => {
                    return EnqueueCall::Existing(held);
                }
                _ => {
                    if let Some(better) = self.visitors[held].replaced_by
                        && matches!(
                            self.visitors[better].state,
                            PositionState::Waiting | PositionState::Admitted
                        )
                    {
                        return EnqueueCall::Existing(better);
                    }
                }
            }
        }
        if self.status == QueueStatus::Maintenance {
            return EnqueueCall::Closed;
        }
        let most = self.config.max_queue_size as usize;
        if most > 0 && self.count(PositionState::Waiting) >= most && upgrade.is_none() {
            return EnqueueCall::Full;
        }
        if let Some(old) = upgrade {
            self.visitors[old].replaced_by = Some(self.visitors.len());
            self.visitors[old].end(self.now, PositionState::Cancelled, EndReason::Upgraded);
        }
        self.seq += 1;
        let seq = self.seq;
        let promised = self.promised(priority);
        let score = match self.config.policy {
            PriorityPolicy::Strict => ticket - f64::from(priority) * 1e15,
            PriorityPolicy::Skip => self.skip(priority, promised, ticket),
        };
        self.visitors.push(Visitor {
            state: PositionState::Waiting,
            reason: None,
            priority,
            score,
            seq,
            seen_s: self.now.div_euclid(1000),
            start_by: None,
            returned: false,
            until: 0,
            hard: 0,
            ended: 0,
            replaced_by: None,
        });
        let v = self.visitors.len() - 1;
        if self.config.policy == PriorityPolicy::Skip {
            assert_eq!(self.ranked()[promised], v, "the table's rank");
        }
        if self.line()[0] == v && self.status == QueueStatus::Active && self.free() > 0 {
            let (tokens, rest, at) = self.refilled();
            if tokens >= 1 {
                (self.tokens, self.rest, self.at) = (tokens - 1, rest, at);
                self.let_in(v);
            }
        }
        EnqueueCall::New(v)
    }

    /// Behind all, 90 %, half or none of the line, but never before an earlier one of the same priority.
    fn promised(&self, priority: u8) -> usize {
        let line = self.ranked();
        let ahead = (line.len() * [10, 9, 5, 0][usize::from(priority)]).div_ceil(10);
        let last = line.iter().rposition(|v| self.visitors[*v].priority == priority);
        ahead.max(last.map_or(0, |last| last + 1))
    }

    /// A score for that rank. Numbers matter only for those who return with theirs.
    fn skip(&mut self, priority: u8, rank: usize, ticket: f64) -> f64 {
        let line = self.ranked();
        let score = |model: &Self, rank: usize| line.get(rank).map(|v| model.visitors[*v].score);
        let natural = if priority == 3 { ticket - 3e15 } else { ticket };
        let Some(behind) = score(self, rank) else { return ticket };
        if rank == 0 {
            return natural.min(behind.ceil() - 1.0);
        }
        let before = score(self, rank - 1).unwrap();
        let first = (before / 0.5).floor() * 0.5 + 0.5;
        if before < natural && natural < behind {
            return natural;
        }
        if first < behind {
            return first;
        }
        if before < behind {
            return before;
        }
        let mut width = 32;
        loop {
            let rest = line.len() - rank;
            let (count, top) = match score(self, rank + width) {
                Some(top) => (width, top),
                None => (rest, ticket.max(first + (rest as f64 + 2.0))),
            };
            let free = ((top - first) / 0.5).ceil();
            if free * 3.0 >= (count as f64 + 1.0) * 4.0 {
                for i in 1..=count {
                    let even = (i as f64 * free / (count as f64 + 1.0)).floor() * 0.5;
                    let visitor = &mut self.visitors[line[rank + i - 1]];
                    visitor.score = visitor.score.max(first + even);
                }
                return first;
            }
            width *= 2;
        }
    }

    pub(crate) fn heartbeat(&mut self, v: usize) {
        if self.visitors[v].state == PositionState::Waiting {
            self.visitors[v].seen_s = self.now.div_euclid(1000);
        }
    }

    pub(crate) fn leave(&mut self, v: usize) {
        match self.visitors[v].state {
            PositionState::Waiting | PositionState::Admitted => {
                self.visitors[v].end(self.now, PositionState::Cancelled, EndReason::Cancelled);
            }
            PositionState::Active => self.complete(v),
            _ => {}
        }
    }

    pub(crate) fn start_session(&mut self, v: usize) {
        let visitor = &mut self.visitors[v];
        if visitor.state == PositionState::Admitted {
            visitor.state = PositionState::Active;
            visitor.start_by = None;
            visitor.hard = self.now + self.config.session_max.as_millis() as i64;
            let idle = self.now + self.config.session_timeout.as_millis() as i64;
            visitor.until = idle.min(visitor.hard);
        }
    }

    pub(crate) fn activity(&mut self, v: usize) {
        let visitor = &mut self.visitors[v];
        if visitor.state == PositionState::Active && self.config.session_renewal {
            let idle = self.now + self.config.session_timeout.as_millis() as i64;
            visitor.until = visitor.until.max(idle).min(visitor.hard);
        }
    }

    /// Is it over for so long that its record may be gone? A real server's lifetimes do not move
    /// with the clock of a test, the built-in store's do.
    pub(crate) fn forgotten(&self, v: usize) -> bool {
        let visitor = &self.visitors[v];
        visitor.state.is_over() && self.now - visitor.ended > 1_700_000
    }

    pub(crate) fn until(&self, v: usize) -> i64 {
        self.visitors[v].until
    }

    pub(crate) fn complete(&mut self, v: usize) {
        if self.visitors[v].state == PositionState::Active {
            self.visitors[v].end(self.now, PositionState::Completed, EndReason::Completed);
        }
    }

    pub(crate) fn terminate(&mut self, v: usize) {
        if self.visitors[v].state == PositionState::Active {
            self.visitors[v].end(self.now, PositionState::Revoked, EndReason::AdminRevoked);
        }
    }

    /// Until when an admitted visitor is told to come: nobody's time runs while the queue stands
    /// still, and a deadline that is over while the offer stands is none.
    pub(crate) fn start_by(&self, v: usize) -> Option<i64> {
        let running = self.status == QueueStatus::Active;
        self.visitors[v].start_by.filter(|by| running && *by > self.now)
    }

    pub(crate) fn set_status(&mut self, status: QueueStatus) {
        if self.status == status {
            return;
        }
        if self.status == QueueStatus::Active {
            (self.tokens, self.rest, self.at) = self.refilled();
        }
        if status == QueueStatus::Active {
            self.at = self.now;
            self.floor = self.now;
        }
        self.status = status;
    }

    pub(crate) fn change(&mut self, config: QueueConfig) {
        if self.status == QueueStatus::Active || self.config.admission.count == 0 {
            (self.tokens, self.rest, self.at) = self.refilled();
        }
        if self.config.admission.per_seconds != config.admission.per_seconds {
            self.rest = 0;
        }
        self.config = config;
    }

    pub(crate) fn admit(&mut self, most: usize, by_hand: bool) {
        let open = match self.status {
            QueueStatus::Active => true,
            QueueStatus::Paused => by_hand,
            QueueStatus::Maintenance => false,
        };
        let (tokens, rest, at) = self.refilled();
        let credit = if by_hand { usize::MAX } else { tokens.max(0) as usize };
        let n = most.min(self.free()).min(credit);
        if !open || n == 0 {
            return;
        }
        let next: Vec<usize> = self.line().into_iter().take(n).collect();
        if next.is_empty() {
            return;
        }
        if !by_hand {
            (self.tokens, self.rest, self.at) = (tokens - next.len() as i64, rest, at);
        }
        for v in next {
            self.let_in(v);
        }
    }

    pub(crate) fn tick(&mut self) {
        let now = self.now;
        if now - self.beat > self.stall {
            (self.beat, self.floor, self.up) = (now, now, now);
        } else if now - self.beat >= 1000 || now < self.beat {
            self.beat = now;
        }
        let active = self.status == QueueStatus::Active;
        if active && now - self.at < -1000 {
            (self.tokens, self.rest, self.at) = self.refilled();
        }
        if self.up + self.config.session_timeout.as_millis() as i64 <= now {
            for v in self.indexes(PositionState::Active) {
                let visitor = &mut self.visitors[v];
                if visitor.until <= now {
                    let capped = visitor.hard <= now;
                    let reason =
                        if capped { EndReason::SessionCap } else { EndReason::SessionIdle };
                    visitor.end(now, PositionState::Expired, reason);
                }
            }
        }
        if active && self.floor + self.config.admission_window.as_millis() as i64 <= now {
            for v in self.indexes(PositionState::Admitted) {
                let visitor = &mut self.visitors[v];
                if visitor.start_by.is_some_and(|by| by <= now) {
                    if visitor.returned {
                        visitor.end(now, PositionState::Expired, EndReason::AdmissionTimeout);
                    } else {
                        visitor.state = PositionState::Waiting;
                        visitor.returned = true;
                        visitor.start_by = None;
                        visitor.seen_s = now.div_euclid(1000);
                    }
                }
            }
        }
        self.admit(usize::MAX, false);
        let timeout = self.config.heartbeat_timeout().as_millis() as i64;
        if active && self.floor + timeout <= now {
            for v in self.indexes(PositionState::Waiting) {
                let visitor = &mut self.visitors[v];
                if (visitor.seen_s + 1) * 1000 + timeout <= now {
                    visitor.end(now, PositionState::Expired, EndReason::HoldTimeout);
                }
            }
        }
    }
}
