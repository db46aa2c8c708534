//! What a claim costs when others' jobs are ahead, and a job when nothing else is there, counted by
//! the server itself: its command statistics have every command a script calls. The built-in store
//! keeps no such statistics.

use std::{collections::BTreeMap, time::Duration};

use jobs::{Claimer, JobTarget, Labels, NewJob, Worker, worker::State};
use testkit::TestStore;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;

use crate::support::*;

/// How often each command was called.
async fn calls(raw: &Raw) -> BTreeMap<String, u64> {
    let text: String = raw.call(&["INFO", "commandstats"]).await;
    let call = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    text.lines().filter_map(call).collect()
}

/// How many commands it takes to claim sixteen jobs, one by one, and to find that there are no more.
async fn cost(raw: &Raw, claimer: &mut Claimer) -> u64 {
    // The first claim may have to learn the routes.
    assert!(claimer.claim(1).await.unwrap().leases.len() == 1);
    let () = raw.call(&["CONFIG", "RESETSTAT"]).await;
    for _ in 0..16 {
        assert_eq!(take_ids(claimer, 1).await.len(), 1);
    }
    assert_eq!(take_ids(claimer, 1).await.len(), 0);
    let calls = calls(raw).await;
    calls.iter().filter(|(name, _)| !name.starts_with("config")).map(|(_, count)| count).sum()
}

async fn mine(jobs: &jobs::Jobs) {
    for _ in 0..17 {
        put(jobs, job("mine").target(JobTarget::default().region("eu"))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_jobs_for_others_do_not_make_a_claim_dearer() {
    let t = TestStore::redis().await;
    let (jobs, raw) = (queue(&t), Raw::of(&t));
    let mut claimer = jobs.claimer(Labels::new("w1").unwrap().region("eu"));
    mine(&jobs).await;
    let alone = cost(&raw, &mut claimer).await;

    // Half of them for one worker that is not there, half for two hundred kinds of worker.
    let foreign = |n: usize| {
        let target = match n % 2 {
            0 => JobTarget::default().region("us"),
            _ => JobTarget::default().capability(format!("c{}", n % 400)),
        };
        NewJob::new("other", &n).unwrap().target(target)
    };
    for first in (0..100_000).step_by(1_000) {
        let batch: Vec<NewJob> = (first..first + 1_000).map(foreign).collect();
        assert!(jobs.dispatch_all(batch).await.iter().all(Result::is_ok));
    }
    mine(&jobs).await;
    let crowded = cost(&raw, &mut claimer).await;
    assert!(crowded <= 3 * alone, "{crowded} commands with 100,000 ahead, {alone} with none");
    let lanes = jobs.unroutable().await.unwrap();
    let unroutable: usize = lanes.iter().map(|lane| lane.waiting.iter().sum::<usize>()).sum();
    assert_eq!(unroutable, 100_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_worker_makes_two_calls_for_a_job() {
    let t = TestStore::redis().await;
    let (jobs, raw) = (queue(&t), Raw::of(&t));
    let (ran, mut runs) = tokio::sync::mpsc::unbounded_channel();
    let handler = async |State(ran): State<UnboundedSender<()>>| ran.send(()).unwrap();
    let worker = Worker::new(&jobs, Labels::new("w1").unwrap(), ran).handle("a", handler);
    let worker = worker.background(false);
    let cancel = CancellationToken::new();
    let task = tokio::spawn(worker.run(cancel.clone()));
    // The first one teaches the scripts and the routes.
    let mut since = tokio::time::Instant::now();
    let count = 40;
    for n in 0..=count {
        let id = put(&jobs, job("a")).await;
        runs.recv().await.unwrap();
        let done = async || raw.status(&id).await.filter(|status| status == "completed");
        testkit::until("it is done", done).await;
        if n == 0 {
            let () = raw.call(&["CONFIG", "RESETSTAT"]).await;
            since = tokio::time::Instant::now();
        }
    }
    let calls = calls(&raw).await["evalsha"];
    // It is claimed and completed; besides it was dispatched. An idle worker looks each second.
    let most = 3 * count + since.elapsed().as_secs() + count / 4;
    assert!(calls <= most, "{calls} calls for {count} jobs");
    cancel.cancel();
    tokio::time::timeout(Duration::from_secs(60), task).await.unwrap().unwrap().unwrap();
}
