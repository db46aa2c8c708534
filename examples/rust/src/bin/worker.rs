//! A worker in Rust: takes jobs of type `greet` from the queue of a running Tidegate, or from the Redis it uses.
//!
//! `REDIS_URL=redis://127.0.0.1:6380 cargo run -p tidegate-examples --bin worker`, then from anywhere
//! `tidegate jobs dispatch greet '{"name":"Ann"}'`. With `--drain` it ends when nothing is left to do.

use std::time::Duration;

use jobs::worker::{Attempt, Reporter, State};
use jobs::{Config, Fault, Jobs, Labels, NewJob, Task, Worker};
use serde::{Deserialize, Serialize};
use store::Store;
use tokio_util::sync::CancellationToken;

/// The payload. A job that does not fit is a dead letter at once: no retry would make it fit.
#[derive(Debug, Serialize, Deserialize)]
struct Greet {
    name: String,
}

/// Ties the payload to its job type, so that producers and workers cannot disagree.
impl Task for Greet {
    const TYPE: &'static str = "greet";

    /// What a job of this type has unless its producer says otherwise.
    fn defaults(job: NewJob) -> NewJob {
        job.attempts(5).timeout(Duration::from_secs(30))
    }
}

/// What handlers share: connections, settings, clients.
#[derive(Debug, Clone)]
struct Shared {
    word: String,
}

/// The result of a job.
#[derive(Debug, Serialize)]
struct Greeting {
    greeting: String,
}

/// The handler takes the payload, and of the rest whatever it names. It may run twice: a worker that dies in the
/// middle is replaced by another one.
async fn greet(
    Greet { name }: Greet,
    State(shared): State<Shared>,
    progress: Reporter,
    attempt: Attempt,
) -> Result<Greeting, Fault> {
    progress.set(50.0, "found the word").await;
    if name.is_empty() {
        // Its producer made a mistake: to the dead letters, without another attempt.
        return Err(Fault::dead("a greeting needs a name"));
    }
    if name == "busy" && attempt.number == 1 {
        // Every other error is retried by the job's policy; this one says when.
        return Err(Fault::retry_in(Duration::from_millis(100), "busy just now"));
    }
    Ok(Greeting { greeting: format!("{}, {name}!", shared.word) })
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6380".to_owned());
    let jobs = Jobs::new(Store::open(&url).await?, Config::default())?;
    let labels = Labels::new(format!("rust-{}", std::process::id()))?.stack("rust");
    let shared = Shared { word: "Hello".to_owned() };
    let worker = Worker::new(&jobs, labels, shared).task(greet).concurrency(4);

    // Cancelled, it claims no more jobs, ends those it has, and hands back what does not end in time.
    let stop = CancellationToken::new();
    let running = tokio::spawn(worker.run(stop.clone()));
    if std::env::args().any(|argument| argument == "--drain") {
        while has_work(&jobs).await? {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    } else {
        tokio::signal::ctrl_c().await?;
    }
    stop.cancel();
    running.await??;
    Ok(())
}

/// Tells whether any job waits for a worker, for its time, or runs.
async fn has_work(jobs: &Jobs) -> anyhow::Result<bool> {
    let counts = jobs.stats().await?;
    Ok(counts.waiting + counts.active + counts.delayed > 0)
}
