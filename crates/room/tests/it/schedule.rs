//! The same random schedule for the model and for the real room; after every step both must show
//! the same.
//!
//! A failure prints the seed and the steps that led to it; `ROOM_SEED=n` runs that one alone,
//! `ROOM_SCHEDULES=n` runs more of them than the usual few.

use std::{collections::HashMap, env, time::Duration};

use fastrand::Rng;
use room::{
    AdmissionRate, Error, NewPosition, Options, PositionId, PositionState, PriorityPolicy, Proof,
    QueueConfig, QueueStatus, Room, RoomMaintenance, SessionId, SessionStart, Visitor,
    VisitorPriority,
};
use testkit::{TestStore, each_store};

use crate::{
    model::{EnqueueCall, Model},
    support::{Bench, key, open_queue, seconds},
};

const STEPS: usize = 150;
const VISITORS: usize = 60;

struct Run {
    b: Bench,
    /// Two instances, used in turn; a restart replaces one.
    rooms: Vec<Room>,
    keepers: Vec<RoomMaintenance>,
    model: Model,
    ids: Vec<PositionId>,
    sessions: HashMap<usize, SessionId>,
    rng: Rng,
    trace: Vec<String>,
}

fn pick(rng: &mut Rng, values: &[u32]) -> u32 {
    values[rng.usize(..values.len())]
}

fn config(rng: &mut Rng) -> QueueConfig {
    QueueConfig {
        max_active: pick(rng, &[0, 1, 2, 5, 8]),
        max_queue_size: pick(rng, &[0, 0, 5, 12]),
        admission: rate(rng),
        policy: if rng.bool() { PriorityPolicy::Skip } else { PriorityPolicy::Strict },
        reserved_share: pick(rng, &[0, 2, 3, 5]),
        admission_window: seconds(pick(rng, &[5, 20, 120]).into()),
        hold: seconds(60),
        poll_ceiling: seconds(10),
        session_timeout: seconds(pick(rng, &[10, 60, 300]).into()),
        session_max: seconds(300),
        session_renewal: rng.u8(..4) > 0,
        ..open_queue()
    }
}

fn rate(rng: &mut Rng) -> AdmissionRate {
    let rates = [(0, 1), (1, 1), (7, 60), (3, 7), (20, 1), (1, 10)];
    let (count, per) = rates[rng.usize(..rates.len())];
    AdmissionRate::new(count, per).with_burst(pick(rng, &[1, 2, 5]))
}

impl Run {
    async fn new(t: TestStore, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let config = config(&mut rng);
        let b = Bench::new(t, config.clone()).await;
        let other = Room::open(b.test.another().await, Options::default()).await.unwrap();
        let rooms = vec![b.room.clone(), other];
        let keepers = rooms.iter().map(|room| RoomMaintenance::new(room.clone())).collect();
        let stall = Options::default().stall.as_millis() as i64;
        let model = Model::new(b.clock.now().0, config.clone(), stall);
        let trace = vec![format!("{config:?}")];
        Self { b, rooms, keepers, model, ids: vec![], sessions: HashMap::new(), rng, trace }
    }

    fn room(&mut self) -> Room {
        let n = self.rng.usize(..self.rooms.len());
        self.rooms[n].clone()
    }

    fn visitor(&mut self) -> Option<usize> {
        let known: Vec<usize> = (0..self.ids.len()).filter(|v| !self.model.forgotten(*v)).collect();
        (!known.is_empty()).then(|| known[self.rng.usize(..known.len())])
    }

    /// Somebody in this state, if there is anybody.
    fn someone(&mut self, state: PositionState) -> Option<usize> {
        let those: Vec<usize> =
            (0..self.ids.len()).filter(|v| self.model.visitors[*v].state == state).collect();
        (!those.is_empty()).then(|| those[self.rng.usize(..those.len())])
    }

    fn advance(&mut self, by: Duration) {
        self.b.clock.advance(by);
        self.model.now = self.b.clock.now().0;
    }

    fn note(&mut self, step: impl Into<String>) {
        let step = step.into();
        self.trace.push(format!("{} {step}", self.model.now));
    }

    async fn tick(&mut self) {
        let n = self.rng.usize(..self.keepers.len());
        self.keepers[n].tick().await.unwrap();
        self.model.tick();
        self.note("tick");
    }

    async fn enqueue(&mut self, held: Option<usize>) {
        if self.ids.len() >= VISITORS && held.is_none() {
            return;
        }
        let priority = pick(&mut self.rng, &[0, 0, 0, 0, 0, 1, 2, 3]) as u8;
        let new = NewPosition {
            held: held.map(|v| self.ids[v]),
            proof: Proof::Operator(VisitorPriority::parse(priority).unwrap()),
            idempotency_key: (self.rng.u8(..4) == 0).then(|| key(self.rng.u64(..))),
            ..NewPosition::default()
        };
        let queue = self.b.queue.clone();
        let room = self.room();
        let enqueued = room.enqueue(&queue, new.clone()).await;
        let ticket =
            enqueued.as_ref().ok().and_then(|enqueued| enqueued.position.ticket).unwrap_or(0);
        let expected = self.model.enqueue(priority, held, ticket as f64);
        self.note(format!("enqueue priority {priority} held {held:?}: {expected:?}"));
        match (expected, enqueued) {
            (EnqueueCall::New(v), Ok(enqueued)) => {
                assert!(enqueued.new && v == self.ids.len());
                self.ids.push(enqueued.position.id);
                // A repeated call with the same key finds the same position.
                if new.idempotency_key.is_some() {
                    let again = self
                        .room()
                        .enqueue(&queue, NewPosition { held: None, ..new })
                        .await
                        .unwrap();
                    assert_eq!((again.position.id, again.new), (enqueued.position.id, false));
                }
            }
            (EnqueueCall::Existing(v), Ok(enqueued)) => {
                assert_eq!((enqueued.position.id, enqueued.new), (self.ids[v], false));
            }
            (EnqueueCall::Full, Err(Error::Full { .. }))
            | (EnqueueCall::Closed, Err(Error::Maintenance)) => {}
            (expected, enqueued) => panic!("expected {expected:?}, got {enqueued:?}"),
        }
    }

    async fn step(&mut self) {
        let queue = self.b.queue.clone();
        let room = self.room();
        match self.rng.u8(..100) {
            0..25 => self.enqueue(None).await,
            25..30 => {
                let held = self.visitor();
                self.enqueue(held).await;
            }
            30..36 => {
                if let Some(v) = self.visitor() {
                    self.model.heartbeat(v);
                    self.note(format!("heartbeat {v}"));
                    room.heartbeat(&queue, &self.ids[v], None, None).await.unwrap();
                }
            }
            36..40 => {
                if let Some(v) = self.visitor() {
                    self.model.leave(v);
                    self.note(format!("leave {v}"));
                    room.leave(&queue, &self.ids[v]).await.unwrap();
                }
            }
            40..50 => {
                let v = if self.rng.bool() {
                    self.someone(PositionState::Admitted)
                } else {
                    self.visitor()
                };
                if let Some(v) = v {
                    self.start_session(v).await;
                }
            }
            50..54 => {
                if let Some(v) = self.visitor().filter(|v| self.sessions.contains_key(v)) {
                    self.model.activity(v);
                    self.note(format!("activity {v}"));
                    let session = room.activity(&queue, &self.sessions[&v], 1).await.unwrap();
                    if self.model.visitors[v].state == PositionState::Active {
                        assert_eq!(session.expires.0, self.model.until(v));
                    }
                }
            }
            54..57 => {
                if let Some(v) = self.someone(PositionState::Active) {
                    self.model.complete(v);
                    self.note(format!("complete {v}"));
                    room.complete(&queue, &self.sessions[&v]).await.unwrap();
                }
            }
            57..59 => {
                if let Some(v) = self.visitor().filter(|v| self.sessions.contains_key(v)) {
                    self.model.terminate(v);
                    self.note(format!("terminate {v}"));
                    room.terminate(&queue, &self.sessions[&v]).await.unwrap();
                }
            }
            59..74 => {
                let ms = match self.rng.u8(..3) {
                    0 => self.rng.u64(1..200),
                    1 => self.rng.u64(200..2_000),
                    _ => self.rng.u64(2_000..9_000),
                };
                self.advance(Duration::from_millis(ms));
                self.tick().await;
            }
            74..80 => self.tick().await,
            // A while in which the service runs and nobody does anything.
            80..84 => {
                for _ in 0..self.rng.u32(1..20) {
                    self.advance(seconds(7));
                    self.tick().await;
                }
            }
            84..86 => {
                let away = seconds(self.rng.u64(8..700));
                self.advance(away);
                self.note(format!("away for {away:?}"));
                self.tick().await;
            }
            86..88 => {
                let back = self.rng.u64(1..5_000) as i64;
                self.b.clock.set(store::Millis(self.b.clock.now().0 - back));
                self.model.now = self.b.clock.now().0;
                self.note(format!("clock back by {back}"));
            }
            88..90 => {
                self.model.set_status(QueueStatus::Paused);
                self.note("pause");
                room.pause_queue(&queue).await.unwrap();
            }
            90..94 => {
                self.model.set_status(QueueStatus::Active);
                self.note("resume");
                room.resume_queue(&queue).await.unwrap();
            }
            94 => {
                self.model.set_status(QueueStatus::Maintenance);
                self.note("maintenance");
                room.close_queue(&queue).await.unwrap();
            }
            95..97 => self.change().await,
            97 => {
                let n = self.rng.usize(1..4);
                self.model.admit(n, true);
                self.note(format!("admit {n} by hand"));
                room.admit_by_hand(&queue, n).await.unwrap();
            }
            _ => {
                let n = self.rng.usize(..self.rooms.len());
                self.rooms[n] =
                    Room::open(self.b.test.another().await, Options::default()).await.unwrap();
                self.keepers[n] = RoomMaintenance::new(self.rooms[n].clone());
                self.note(format!("restart {n}"));
            }
        }
    }

    async fn start_session(&mut self, v: usize) {
        let before = self.model.visitors[v].state;
        self.model.start_session(v);
        self.note(format!("start session {v}"));
        let queue = self.b.queue.clone();
        let claimed =
            self.room().start_session(&queue, &self.ids[v], &Visitor::default()).await.unwrap();
        match (before, claimed) {
            (PositionState::Admitted, SessionStart::Active { session, started: true }) => {
                assert_eq!(session.expires.0, self.model.until(v));
                self.sessions.insert(v, session.id);
            }
            (PositionState::Active, SessionStart::Active { session, started: false }) => {
                assert_eq!(session.id, self.sessions[&v]);
            }
            (PositionState::Waiting, SessionStart::Waiting) => {}
            (before, SessionStart::Over(state, reason)) => {
                assert_eq!((before, self.model.visitors[v].reason), (state, reason));
            }
            (before, claimed) => panic!("{before:?} {claimed:?}"),
        }
    }

    async fn change(&mut self) {
        let mut config = self.model.config.clone();
        match self.rng.u8(..4) {
            0 => config.admission = rate(&mut self.rng),
            1 => config.max_active = pick(&mut self.rng, &[0, 1, 3, 8]),
            2 => config.max_queue_size = pick(&mut self.rng, &[0, 4, 20]),
            _ => config.admission_window = seconds(pick(&mut self.rng, &[5, 30]).into()),
        }
        self.note(format!(
            "change to {:?} {} {} {:?}",
            config.admission, config.max_active, config.max_queue_size, config.admission_window
        ));
        self.model.change(config.clone());
        let queue = self.b.queue.clone();
        self.room().change_queue(&queue, None, |c| *c = config.clone()).await.unwrap();
    }

    /// Everything anybody can see is the same on both sides.
    async fn compare(&mut self) {
        let queue = self.b.queue.clone();
        let room = self.room();
        let line = self.model.line();
        let statuses = self.ids.iter().map(|id| room.status(&queue, id));
        let positions = futures_util::future::join_all(statuses).await;
        for (v, position) in positions.into_iter().enumerate() {
            let position = match position {
                Err(Error::UnknownPosition) if self.model.forgotten(v) => continue,
                position => position.unwrap(),
            };
            let expected = &self.model.visitors[v];
            let number = line.iter().position(|w| *w == v).map(|n| n as u64 + 1);
            assert_eq!(
                (
                    position.state,
                    position.reason,
                    position.number,
                    position.start_by.map(|m| m.0),
                    position.priority.number()
                ),
                (
                    expected.state,
                    expected.reason,
                    number,
                    self.model.start_by(v),
                    expected.priority
                ),
                "visitor {v}"
            );
            assert_eq!(position.waiting, line.len() as u64);
            assert_eq!(position.queue_status, self.model.status);
        }
        let seen = room.queue(&queue).await.unwrap();
        let counts = [PositionState::Waiting, PositionState::Admitted, PositionState::Active]
            .map(|s| self.model.count(s) as u64);
        assert_eq!([seen.waiting, seen.admitted, seen.active], counts);
    }

    /// What is stored agrees with itself and with the documented types.
    async fn tidy(&mut self) {
        let b = &self.b;
        let q = "queue:concert-tickets";
        let line: Vec<String> = b.redis(&["ZRANGE", &format!("{q}:positions"), "0", "-1"]).await;
        let mut heartbeat_batcher: Vec<String> =
            b.redis(&["ZRANGE", "heartbeat:active", "0", "-1"]).await;
        let mut waiting = line.clone();
        waiting.sort();
        heartbeat_batcher.sort();
        assert_eq!(
            waiting, heartbeat_batcher,
            "one armed timer per waiting position, none for others"
        );
        for priority in 0..4u8 {
            let lane: Vec<String> =
                b.redis(&["LRANGE", &format!("{q}:waiting:{priority}"), "0", "-1"]).await;
            let live: Vec<&String> = lane.iter().filter(|id| line.contains(id)).collect();
            let wanted: Vec<&String> = line
                .iter()
                .filter(|id| {
                    let v = self.ids.iter().position(|other| other.to_string() == **id).unwrap();
                    self.model.visitors[v].priority == priority
                })
                .collect();
            assert_eq!(
                live, wanted,
                "the list of priority {priority} is the line of priority {priority}"
            );
        }
        let mut active: Vec<String> = b.redis(&["SMEMBERS", &format!("{q}:sessions:active")]).await;
        let mut ending: Vec<String> =
            b.redis(&["ZRANGE", &format!("{q}:sessions:deadlines"), "0", "-1"]).await;
        active.sort();
        ending.sort();
        assert_eq!(active, ending, "no session without a deadline");
        for id in &self.ids {
            let ttl: i64 = b.redis(&["TTL", &format!("position:{id}")]).await;
            assert_ne!(ttl, -1, "no record without a lifetime");
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let from = self.trace.len().saturating_sub(60);
            eprintln!("{}\n…", self.trace[0]);
            for step in &self.trace[from..] {
                eprintln!("{step}");
            }
        }
    }
}

async fn run(t: TestStore, seed: u64) {
    let mut run = Run::new(t, seed).await;
    for step in 0..STEPS {
        run.step().await;
        run.compare().await;
        if step % 10 == 9 {
            run.tidy().await;
        }
    }
}

/// Runs some schedules, each in a store of its own.
async fn schedules(first: TestStore, fresh: impl AsyncFn() -> TestStore) {
    let number = |name: &str| env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seeds: Vec<u64> = match number("ROOM_SEED") {
        Some(seed) => vec![seed],
        None => {
            (0..number("ROOM_SCHEDULES").unwrap_or(4)).map(|_| fastrand::u64(..1 << 48)).collect()
        }
    };
    let mut next = Some(first);
    for seed in seeds {
        let t = match next.take() {
            Some(t) => t,
            None => fresh().await,
        };
        eprintln!("seed {seed}");
        run(t, seed).await;
    }
}

each_store! {
    async fn model_and_room_show_the_same_after_every_step(t: TestStore) {
        let redis = t.url().starts_with("redis");
        schedules(t, async || if redis { TestStore::redis().await } else { TestStore::embedded().await }).await;
    }
}
