//! Jobs: of two hundred types for workers of three stacks and four regions, and `jobs` routes them.
//!
//! Jobs arrive in waves (sine squared) at up to twice what all workers can do. A tenth has a high priority, a
//! third asks for a region, a fifth for a capability, one in a hundred names its worker. Types are not alike: the
//! busiest has a tenth of all jobs. A job takes 5 to 15 virtual seconds, and a worker has 50 slots.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use jobs::{Claimer, Config, JobLease, JobTarget, Jobs, Labels, NewJob, WorkerId};

use crate::open;
use crate::plot::{Line, plot_over_time};
use crate::report::{COLOURS, Meter, Waits, heading, jain, write};

const TYPES: usize = 200;
const STACKS: [&str; 3] = ["rust", "node", "python"];
const REGIONS: [&str; 4] = ["eu", "us", "ap", "sa"];
const WORKERS: usize = 48;
const SLOTS: usize = 50;
const WAVES: f64 = 3.0;
/// The mean length of a job, in seconds.
const MEAN: f64 = 10.0;

struct SimulatedWorker {
    claimer: Claimer,
    /// When each of its jobs ends.
    running: BinaryHeap<Reverse<Ending>>,
    done: u64,
}

/// A job that runs, ordered by its end.
struct Ending {
    at: i64,
    lease: JobLease,
    took: Duration,
}

impl PartialEq for Ending {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Ending {}

impl PartialOrd for Ending {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ending {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

#[derive(Default)]
struct Tally {
    /// By kind of target.
    plain: Waits,
    region: Waits,
    capability: Waits,
    named: Waits,
    urgent: Waits,
    /// By type: waits of jobs of normal priority without a target.
    types: Vec<Waits>,
    /// By type: the same since the last sample, as sum in seconds and count.
    recent_types: Vec<(f64, u64)>,
    fairness: Vec<(f64, f64)>,
    recent: [(f64, u64); 2],
    wait: Vec<(f64, f64)>,
    urgent_wait: Vec<(f64, f64)>,
    waiting: Vec<(f64, f64)>,
}

pub async fn run(count: u64, folder: &Path) -> Result<()> {
    let (store, clock) = open().await?;
    // What has ended is not looked at here.
    let config = Config { keep_finished: 1_000, events_max: 1_000, ..Config::default() };
    let jobs = Jobs::new(store.clone(), config)?;
    let upkeep = jobs.maintenance();
    let mut workers = Vec::new();
    for number in 0..WORKERS {
        let mut labels = Labels::new(format!("worker-{number}"))?
            .stack(STACKS[number % STACKS.len()])
            .region(REGIONS[number % REGIONS.len()]);
        if number % 2 == 0 {
            labels = labels.capabilities(["gpu"]);
        }
        jobs.register(&labels, None, "simulated", None).await?;
        workers.push(SimulatedWorker {
            claimer: jobs.claimer(labels),
            running: BinaryHeap::new(),
            done: 0,
        });
    }
    let capacity = (WORKERS * SLOTS) as f64 / MEAN;
    // Sine squared has a mean of a half: on the average 95 % of what the workers can do.
    let span = count as f64 / (0.95 * capacity);
    let mut meter = Meter::new(&store).await?;
    let mut tally = Tally {
        types: vec![Waits::default(); TYPES],
        recent_types: vec![(0.0, 0); TYPES],
        ..Tally::default()
    };
    let (mut arrived, mut done, mut second) = (0, 0, 0_u64);
    while done < count {
        let now = store.now().0;
        let due = arrivals(second as f64, span, count);
        let fresh: Vec<NewJob> = (arrived..due).map(|_| draw_job()).collect::<Result<_>>()?;
        arrived = due;
        for outcome in jobs.dispatch_all(fresh).await {
            outcome?;
        }
        // In another order each second, as they would be.
        fastrand::shuffle(&mut workers);
        for worker in &mut workers {
            done += worker.work(now, &mut tally).await?;
        }
        if second.is_multiple_of(10) {
            upkeep.tick().await?;
            meter.sample(second as f64).await?;
            let counts = jobs.stats().await?;
            tally.waiting.push((second as f64, counts.waiting as f64));
            let [plain, urgent] = std::mem::take(&mut tally.recent);
            for ((sum, count), points) in
                [(plain, &mut tally.wait), (urgent, &mut tally.urgent_wait)]
            {
                if count > 0 {
                    points.push((second as f64, sum / count as f64));
                }
            }
            tally.sample_fairness(second as f64);
            for worker in &workers {
                jobs.heartbeat(&worker.claimer.labels().worker_id).await?;
            }
            eprint!("\r{second} s, {done} of {count} done   ");
        }
        second += 1;
        clock.advance(Duration::from_secs(1));
    }
    eprintln!();
    meter.sample(second as f64).await?;
    tell(&tally, &workers, &meter, count);
    meter.draw(folder, "jobs")?;
    let line = |name: &str, colour, points: &[(f64, f64)]| Line {
        name: name.to_owned(),
        colour,
        points: points.to_vec(),
    };
    let waits = [
        line("priority 5", COLOURS[0], &tally.wait),
        line("priority 9", COLOURS[1], &tally.urgent_wait),
    ];
    let svg = plot_over_time("mean wait of those claimed, in seconds", "virtual seconds", &waits);
    write(folder, "jobs-waits.svg", &svg)?;
    let fairness = [line("types", COLOURS[2], &tally.fairness)];
    let title = "Jain's index of the mean waits of 200 types, 1 is equal";
    write(folder, "jobs-fairness.svg", &plot_over_time(title, "virtual seconds", &fairness))?;
    let waiting = [line("jobs", COLOURS[0], &tally.waiting)];
    let svg = plot_over_time("jobs waiting", "virtual seconds", &waiting);
    write(folder, "jobs-length.svg", &svg)
}

fn arrivals(at: f64, span: f64, all: u64) -> u64 {
    let part = (at / span).min(1.0);
    let turn = 2.0 * std::f64::consts::PI * WAVES * part;
    let share = part - turn.sin() / (2.0 * std::f64::consts::PI * WAVES);
    (share * all as f64).round() as u64
}

fn draw_job() -> Result<NewJob> {
    // The busiest type has a tenth, the others share the rest.
    let number = if fastrand::u32(..10) == 0 { 0 } else { fastrand::usize(1..TYPES) };
    let mut job = NewJob::new(format!("type-{number}"), &number)?;
    if fastrand::u32(..10) == 0 {
        job = job.priority(9);
    }
    let region = REGIONS[fastrand::usize(..REGIONS.len())];
    Ok(match fastrand::u32(..100) {
        0 => {
            let worker = WorkerId::parse(format!("worker-{}", fastrand::usize(..WORKERS)))?;
            job.target(JobTarget::default().worker(&worker))
        }
        1..33 => job.target(JobTarget::default().region(region)),
        33..53 => job.target(JobTarget::default().capability("gpu")),
        _ => job,
    })
}

impl SimulatedWorker {
    /// Hands in what has ended and claims as much as fits, in one call as a worker does. Returns how many
    /// jobs ended.
    async fn work(&mut self, now: i64, tally: &mut Tally) -> Result<u64> {
        let mut ended = Vec::new();
        while self.running.peek().is_some_and(|Reverse(ending)| ending.at <= now)
            && let Some(Reverse(ending)) = self.running.pop()
        {
            ended.push(ending);
        }
        let free = SLOTS - self.running.len();
        if free == 0 && ended.is_empty() {
            return Ok(0);
        }
        let done = ended.iter().map(|ending| (&ending.lease, None, ending.took));
        let (counted, claimed) = self.claimer.complete_and_claim(done, free).await?;
        anyhow::ensure!(counted.iter().all(|counts| *counts), "a lease was lost");
        for lease in claimed.leases {
            tally.add(&lease, now);
            let took = Duration::from_millis(fastrand::u64(5_000..15_000));
            let at = now + i64::try_from(took.as_millis())?;
            self.running.push(Reverse(Ending { at, lease, took }));
        }
        self.done += ended.len() as u64;
        Ok(ended.len() as u64)
    }
}

impl Tally {
    /// Notes how equal the mean waits of the types were since the last sample.
    fn sample_fairness(&mut self, now: f64) {
        let recent = self.recent_types.iter_mut().map(std::mem::take);
        let means: Vec<f64> =
            recent.filter(|(_, count)| *count > 0).map(|(sum, count)| sum / count as f64).collect();
        if means.len() > 1 {
            self.fairness.push((now, jain(&means)));
        }
    }

    fn add(&mut self, lease: &JobLease, now: i64) {
        let job = &lease.job;
        let wait = now.saturating_sub(job.created_at.0).unsigned_abs();
        let urgent = job.priority.get() > 5;
        let kind = match () {
            () if urgent => &mut self.urgent,
            () if !job.target.capabilities.is_empty() => &mut self.capability,
            () if !job.target.region.is_empty() => &mut self.region,
            () if job.target == JobTarget::default() => {
                let number = job.job_type.as_str().trim_start_matches("type-").parse::<usize>();
                if let Some(number) = number.ok().filter(|number| *number < TYPES) {
                    self.types[number].add(wait);
                    let recent = &mut self.recent_types[number];
                    *recent = (recent.0 + wait as f64 / 1000.0, recent.1 + 1);
                }
                &mut self.plain
            }
            () => &mut self.named,
        };
        kind.add(wait);
        let recent = &mut self.recent[usize::from(urgent)];
        *recent = (recent.0 + wait as f64 / 1000.0, recent.1 + 1);
    }
}

fn tell(tally: &Tally, workers: &[SimulatedWorker], meter: &Meter, count: u64) {
    meter.tell(count, "jobs");
    heading("jobs");
    tally.urgent.row("priority 9, any target");
    tally.plain.row("priority 5, no target");
    tally.region.row("priority 5, a region");
    tally.capability.row("priority 5, a capability");
    tally.named.row("priority 5, one worker");
    let means: Vec<f64> = tally.types.iter().map(Waits::mean).collect();
    let done: Vec<f64> = workers.iter().map(|worker| worker.done as f64).collect();
    println!(
        "\nFairness (Jain's index, 1 is equal): {:.4} of the mean waits of {TYPES} types, the busiest of which has a tenth of \
         all jobs ({:.1} s against {:.1} s in all); {:.4} of the jobs that {WORKERS} workers did.",
        jain(&means),
        means[0],
        tally.plain.mean(),
        jain(&done)
    );
}
