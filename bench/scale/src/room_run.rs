//! Visitors: a crowd arrives at four queues, and `room` admits whom it may.
//!
//! In each queue the arrivals are three waves (sine squared) at up to three times the rate of admission, so lines grow and
//! melt away. One in fifty has priority 1 and one in two hundred priority 2; one in twenty closes the browser
//! while waiting, one in a hundred is admitted and does not come. Waiting visitors call as often as the answer
//! tells them to; sessions last from ten seconds to two minutes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use futures_util::future::try_join_all;
use room::{
    AdmissionRate, NewPosition, Options, PositionId, PositionState, Proof, QueueConfig, QueueId,
    Room, RoomMaintenance, SessionId, SessionStart, Visitor, VisitorPriority,
};

use crate::open;
use crate::plot::{Line, plot_over_time};
use crate::report::{COLOURS, Meter, Waits, heading, jain, write};

const QUEUES: usize = 4;
/// Admissions per second and queue.
const RATE: u32 = 1_500;
const WAVES: f64 = 3.0;
/// Calls that are made at the same time, and so share batches as those of many connections do.
const TOGETHER: usize = 128;

/// A visitor who waits, between two calls.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    arrived_ms: i64,
    priority: u8,
    /// Closes the browser before this call.
    leaves: bool,
}

struct Queue {
    id: QueueId,
    waiting: HashMap<PositionId, Waiting>,
    /// When each calls next.
    calls: BinaryHeap<Reverse<(i64, PositionId)>>,
    /// When each session ends.
    ends: BinaryHeap<Reverse<(i64, SessionId)>>,
    waits: [Waits; 4],
    /// Time of arrival of the latest who was admitted, by priority.
    latest: [i64; 4],
    overtaken: u64,
    length: Vec<(f64, f64)>,
    mean_wait: Vec<(f64, f64)>,
    recent: (f64, u64),
    arrived: u64,
    left: u64,
}

pub async fn run(visitors: u64, folder: &Path) -> Result<()> {
    let (store, clock) = open().await?;
    let room = Room::open(store.clone(), Options::default()).await?;
    let upkeep = RoomMaintenance::new(room.clone());
    let mut queues = Vec::new();
    for number in 0..QUEUES {
        let id = QueueId::parse(&format!("queue-{number}"))?;
        let config = QueueConfig {
            max_active: 200_000,
            max_queue_size: 0,
            admission: AdmissionRate::new(RATE, 1),
            ..QueueConfig::default()
        };
        room.create_queue(&id, config).await?;
        queues.push(Queue {
            id,
            waiting: HashMap::new(),
            calls: BinaryHeap::new(),
            ends: BinaryHeap::new(),
            waits: Default::default(),
            latest: [0; 4],
            overtaken: 0,
            length: Vec::new(),
            mean_wait: Vec::new(),
            recent: (0.0, 0),
            arrived: 0,
            left: 0,
        });
    }
    let each = visitors / QUEUES as u64;
    // Sine squared has a mean of a half, and the crest is three times the rate.
    let span = each as f64 / (1.5 * f64::from(RATE));
    let start = store.now().0;
    let mut meter = Meter::new(&store).await?;
    let mut fairness = Vec::new();
    let mut second = 0_u64;
    loop {
        let now = store.now().0;
        let at = second as f64;
        for queue in &mut queues {
            let due = arrivals(at, span, each);
            queue.arrive(&room, now, due.saturating_sub(queue.arrived)).await?;
            queue.call(&room, now).await?;
            queue.leave(&room, now).await?;
        }
        upkeep.tick().await?;
        if second.is_multiple_of(10) {
            meter.sample(at).await?;
            let mut means = Vec::with_capacity(QUEUES);
            for queue in &mut queues {
                queue.length.push((at, queue.waiting.len() as f64));
                let (sum, count) = std::mem::take(&mut queue.recent);
                if count > 0 {
                    queue.mean_wait.push((at, sum / count as f64));
                    means.push(sum / count as f64);
                }
            }
            if means.len() > 1 {
                fairness.push((at, jain(&means)));
            }
            let waiting: usize = queues.iter().map(|queue| queue.waiting.len()).sum();
            eprint!("\r{second} s, {waiting} wait   ");
        }
        let done = queues.iter().all(|queue| {
            queue.arrived >= each && queue.waiting.is_empty() && queue.ends.is_empty()
        });
        if done {
            break;
        }
        second += 1;
        clock.advance(Duration::from_secs(1));
    }
    eprintln!();
    meter.sample((store.now().0 - start) as f64 / 1000.0 + 1.0).await?;
    tell(&queues, &meter, visitors);
    meter.draw(folder, "room")?;
    let lines = |pick: fn(&Queue) -> &Vec<(f64, f64)>| -> Vec<Line> {
        let line = |(queue, colour): (&Queue, &&'static str)| Line {
            name: queue.id.to_string(),
            colour: *colour,
            points: pick(queue).clone(),
        };
        queues.iter().zip(&COLOURS).map(line).collect()
    };
    let waits = plot_over_time(
        "mean wait of those admitted, in seconds",
        "virtual seconds",
        &lines(|queue| &queue.mean_wait),
    );
    write(folder, "room-waits.svg", &waits)?;
    let equal = Line { name: "queues".to_owned(), colour: COLOURS[2], points: fairness };
    let title = "Jain's index of the mean waits of four queues, 1 is equal";
    write(folder, "room-fairness.svg", &plot_over_time(title, "virtual seconds", &[equal]))?;
    let length =
        plot_over_time("visitors waiting", "virtual seconds", &lines(|queue| &queue.length));
    write(folder, "room-length.svg", &length)
}

fn lane(priority: u8) -> VisitorPriority {
    match priority {
        0 => VisitorPriority::NORMAL,
        1 => VisitorPriority::ELEVATED,
        _ => VisitorPriority::VIP,
    }
}

/// Visitors of a queue that have arrived by a moment: the integral of the waves.
fn arrivals(at: f64, span: f64, all: u64) -> u64 {
    let part = (at / span).min(1.0);
    let turn = 2.0 * std::f64::consts::PI * WAVES * part;
    let share = part - turn.sin() / (2.0 * std::f64::consts::PI * WAVES);
    (share * all as f64).round() as u64
}

impl Queue {
    async fn arrive(&mut self, room: &Room, now: i64, count: u64) -> Result<()> {
        let count = usize::try_from(count)?;
        for start in (0..count).step_by(TOGETHER) {
            let newcomers: Vec<u8> = (start..count.min(start + TOGETHER))
                .map(|_| match fastrand::u32(..200) {
                    0 => 2,
                    1..5 => 1,
                    _ => 0,
                })
                .collect();
            let calls = newcomers.iter().map(|priority| {
                let proof = Proof::Operator(lane(*priority));
                room.enqueue(&self.id, NewPosition { proof, ..NewPosition::default() })
            });
            let outcomes = try_join_all(calls).await?;
            for (priority, outcome) in newcomers.iter().zip(outcomes) {
                let position = outcome.position;
                let leaves = fastrand::u32(..20) == 0;
                let waiting = Waiting { arrived_ms: now, priority: *priority, leaves };
                self.arrived += 1;
                self.waiting.insert(position.id, waiting);
                let next = if position.state == PositionState::Waiting {
                    now + i64::try_from(position.next_poll.as_millis())?
                } else {
                    now
                };
                self.calls.push(Reverse((next, position.id)));
            }
        }
        Ok(())
    }

    /// Lets everybody call whose time has come.
    async fn call(&mut self, room: &Room, now: i64) -> Result<()> {
        loop {
            let mut due = Vec::with_capacity(TOGETHER);
            while due.len() < TOGETHER
                && let Some(Reverse((at, id))) = self.calls.peek().copied()
                && at <= now
            {
                self.calls.pop();
                let Some(waiting) = self.waiting.get(&id) else { continue };
                if waiting.leaves && at > waiting.arrived_ms + 20_000 {
                    // It says nothing, and expires.
                    self.waiting.remove(&id);
                    self.left += 1;
                    continue;
                }
                due.push((id, waiting.priority));
            }
            if due.is_empty() {
                return Ok(());
            }
            let calls = due
                .iter()
                .map(|(id, priority)| room.heartbeat(&self.id, id, Some(lane(*priority)), None));
            let positions = try_join_all(calls).await?;
            let mut admitted = Vec::new();
            for position in positions {
                match position.state {
                    PositionState::Waiting => {
                        let wait = i64::try_from(position.next_poll.as_millis())?.max(1_000);
                        self.calls.push(Reverse((now + wait, position.id)));
                    }
                    PositionState::Admitted => admitted.push(position.id),
                    _ => {
                        self.waiting.remove(&position.id);
                        self.left += 1;
                    }
                }
            }
            self.start_sessions(room, now, &admitted).await?;
        }
    }

    async fn start_sessions(&mut self, room: &Room, now: i64, ids: &[PositionId]) -> Result<()> {
        let mut coming = Vec::new();
        for id in ids {
            let Some(waiting) = self.waiting.remove(id) else { continue };
            // Until it learns of its admission, at its next call.
            let wait = now - waiting.arrived_ms;
            let lane = usize::from(waiting.priority);
            self.waits[lane].add(wait.unsigned_abs());
            self.recent = (self.recent.0 + wait as f64 / 1000.0, self.recent.1 + 1);
            if fastrand::u32(..100) == 0 {
                self.left += 1;
                continue;
            }
            coming.push((*id, lane, waiting.arrived_ms));
        }
        let visitor = Visitor::default();
        let starts = coming.iter().map(|(id, ..)| room.start_session(&self.id, id, &visitor));
        for ((_, lane, arrived), start) in coming.iter().zip(try_join_all(starts).await?) {
            // Within a priority, those who came a whole poll interval earlier must not come in later.
            let latest = &mut self.latest[*lane];
            if *arrived + 120_000 < *latest {
                self.overtaken += 1;
            }
            *latest = (*latest).max(*arrived);
            let length = fastrand::i64(10_000..120_000);
            match start {
                SessionStart::Active { session, .. } => {
                    self.ends.push(Reverse((now + length, session.id)));
                }
                // Its admission window was over before it called.
                SessionStart::Waiting | SessionStart::Over(..) => self.left += 1,
            }
        }
        Ok(())
    }

    /// Ends the sessions whose time is over.
    async fn leave(&mut self, room: &Room, now: i64) -> Result<()> {
        loop {
            let mut over = Vec::with_capacity(TOGETHER);
            while over.len() < TOGETHER
                && let Some(Reverse((at, id))) = self.ends.peek().copied()
                && at <= now
            {
                self.ends.pop();
                over.push(id);
            }
            if over.is_empty() {
                return Ok(());
            }
            try_join_all(over.iter().map(|id| room.complete(&self.id, id))).await?;
        }
    }
}

fn tell(queues: &[Queue], meter: &Meter, visitors: u64) {
    meter.tell(visitors, "visitors");
    heading("queue, priority");
    for queue in queues {
        for (priority, waits) in queue.waits.iter().enumerate().filter(|(_, waits)| waits.count > 0)
        {
            waits.row(&format!("{}, {priority}", queue.id));
        }
    }
    let overtaken: u64 = queues.iter().map(|queue| queue.overtaken).sum();
    let left: u64 = queues.iter().map(|queue| queue.left).sum();
    println!(
        "\n{overtaken} came in after somebody of the same priority who had arrived more than two poll intervals later; \
         {left} left or did not come."
    );
}
