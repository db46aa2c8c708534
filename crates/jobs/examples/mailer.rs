//! A producer and a worker in one process, on a store in memory.
//!
//! Run with `cargo run -p tidegate-jobs --example mailer`, or on a server with
//! `STORE=redis://127.0.0.1:6379 cargo run -p tidegate-jobs --example mailer`.

extern crate tidegate_jobs as jobs;

use std::time::Duration;

use jobs::{
    Config, Fault, Jobs, Labels, NewJob, Task, Worker,
    worker::{Attempt, Reporter, State},
};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

#[derive(Serialize, Deserialize)]
struct SendMail {
    to: String,
}

impl Task for SendMail {
    const TYPE: &'static str = "send-mail";

    fn defaults(job: NewJob) -> NewJob {
        job.attempts(5).timeout(Duration::from_secs(30))
    }
}

#[derive(Clone)]
struct App {
    from: String,
}

async fn send_mail(
    mail: SendMail,
    State(app): State<App>,
    progress: Reporter,
    attempt: Attempt,
) -> Result<String, Fault> {
    progress.set(50.0, "connected").await;
    if mail.to.starts_with("busy") && attempt.number == 1 {
        return Err(Fault::retry_in(Duration::from_millis(100), "try again"));
    }
    if !mail.to.contains('@') {
        return Err(Fault::dead("not an address"));
    }
    Ok(format!("{} -> {}", app.from, mail.to))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("STORE").unwrap_or_else(|_| "embedded:".to_owned());
    let jobs = Jobs::new(store::Store::open(&url).await?, Config::default())?;

    let cancel = CancellationToken::new();
    let app = App { from: "us@example.org".to_owned() };
    let worker = Worker::new(&jobs, Labels::new("mailer-1")?, app).task(send_mail).concurrency(4);
    let worker = tokio::spawn(worker.run(cancel.clone()));

    for to in ["ann@example.org", "busy@example.org", "nobody"] {
        let mail = SendMail { to: to.to_owned() };
        let id = jobs.dispatch(NewJob::of(&mail)?).await?.id;
        let (status, result) = jobs.wait(&id, Duration::from_secs(10)).await?;
        let result = result.map(|result| serde_json::to_string(&result)).transpose()?;
        eprintln!("{to}: {status} {}", result.unwrap_or_default());
    }

    cancel.cancel();
    worker.await??;
    Ok(())
}
