//! The programs run as their pages say.
#![allow(clippy::unwrap_used, missing_docs)]

use std::process::{Command, Stdio};
use std::time::Duration;

use jobs::{Config, Jobs, NewJob};
use serde_json::{Value, json};
use store::Store;
use testkit::RedisServer;

#[tokio::test(flavor = "multi_thread")]
async fn the_worker_runs_jobs_and_ends_in_order() {
    let redis = RedisServer::start();
    let jobs = Jobs::new(Store::open(&redis.url()).await.unwrap(), Config::default()).unwrap();
    let mut worker = Command::new(env!("CARGO_BIN_EXE_worker"))
        .env("REDIS_URL", redis.url())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let run = async |payload: Value| {
        let job = NewJob::new("greet", &payload).unwrap();
        let id = jobs.dispatch(job).await.unwrap().id;
        let (status, result) = jobs.wait(&id, Duration::from_secs(20)).await.unwrap();
        (status.to_string(), serde_json::to_value(result.unwrap()).unwrap())
    };
    let (status, result) = run(json!({ "name": "Ann" })).await;
    assert_eq!(
        (status.as_str(), &result["data"]),
        ("completed", &json!({ "greeting": "Hello, Ann!" }))
    );
    let (status, result) = run(json!({ "name": "" })).await;
    assert_eq!(
        (status.as_str(), &result["error"]["message"]),
        ("dead", &json!("a greeting needs a name"))
    );
    let pid = worker.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert!(worker.wait().unwrap().success());
    assert_eq!(jobs.stats().await.unwrap().workers, 0, "it has left");
}

#[test]
fn a_program_with_the_built_in_store_finds_its_data_again() {
    let folder = tempfile::tempdir().unwrap();
    let run = || {
        let program = env!("CARGO_BIN_EXE_embedded_store");
        let done = Command::new(program).arg(folder.path().join("data")).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    assert_eq!(
        run(),
        "Ann was here 1 times; first: run 1; visits: 1; greeting for 60 s; run 1 of 3\n"
    );
    assert_eq!(
        run(),
        "Ann was here 2 times; first: run 1; visits: 2; greeting for 60 s; run 2 of 3\n"
    );
}
