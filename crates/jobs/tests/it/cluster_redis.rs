//! The whole story on a cluster of six servers: there, every key of a queue shares a slot by its
//! namespace's hash tag, and every script runs where that slot is. One test, because a cluster takes
//! seconds to start.

use std::time::Duration;

use jobs::{
    Config, Fault, JobTarget, Jobs, Labels, NewJob, Status,
    worker::{Payload, Worker},
};
use testkit::TestStore;
use tokio_util::sync::CancellationToken;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_story_on_a_cluster() {
    let t = TestStore::cluster().await;
    let jobs = Jobs::new(t.store.clone(), Config::default()).unwrap();
    let soon = Duration::from_secs(60);

    // By hand: targets, priorities, failure, dead letter, replay, cancel.
    let low = put(&jobs, job("mail").priority(2)).await;
    let high = put(&jobs, job("mail").priority(9)).await;
    let other = put(&jobs, job("mail").target(JobTarget::default().region("us"))).await;
    let mut w = jobs.claimer(Labels::new("w1").unwrap().region("eu"));
    assert_eq!(take_ids(&mut w, 10).await, [high.clone(), low.clone()]);
    assert_eq!(jobs.unroutable().await.unwrap().len(), 1);
    t.clock.advance(Duration::from_secs(31));
    assert_eq!(jobs.maintenance().tick().await.unwrap().reclaimed, 2, "their worker said nothing");
    // A lost worker counts as a failed attempt, and waits as one does.
    t.clock.advance(Duration::from_secs(10));
    jobs.scheduler().tick().await.unwrap();
    let first = take(&mut w).await;
    assert_eq!(first.id(), &high);
    jobs.complete(&first, None, NO_TIME).await.unwrap();
    let second = take(&mut w).await;
    jobs.bury(&second, jobs::JobError::new("Odd", "no"), NO_TIME).await.unwrap();
    assert_eq!(jobs.status(&low).await.unwrap(), Some(Status::Dead));
    jobs.replay(&low).await.unwrap();
    jobs.cancel(&low, "enough").await.unwrap();
    assert_eq!(jobs.status(&low).await.unwrap(), Some(Status::Failed));
    jobs.cancel(&other, "nobody there").await.unwrap();

    // Idempotency, delay, dependency, schedule.
    let once = |key: &str| job("mail").once(key, Duration::from_secs(60));
    let one = jobs.dispatch(once("k")).await.unwrap();
    assert_eq!(jobs.dispatch(once("k")).await.unwrap().id, one.id);
    let child = put(&jobs, job("mail").depends_on([one.id.clone()])).await;
    let later = put(&jobs, job("mail").delay(Duration::from_secs(5))).await;
    jobs.schedule(
        NewJob::new("tick", &()).unwrap().id(jobs::JobId::parse("tick").unwrap()).cron("* * * * *"),
    )
    .await
    .unwrap();
    t.clock.advance(Duration::from_secs(61));
    jobs.scheduler().tick().await.unwrap();

    // What a v1 producer of the tagged namespace left half done is found where the namespace is.
    let raw = Raw::of(&t);
    let data = r#"{"jobId":"v-1","type":"mail","payload":"half","createdAt":1}"#;
    let () = raw.call(&["SET", "bridge:jobs:data:v-1", data]).await;
    let maintenance = jobs.maintenance();
    for _ in 0..3 {
        maintenance.tick().await.unwrap();
    }
    assert_eq!(raw.get("bridge:jobs:status:v-1").await.as_deref(), Some("waiting"));
    jobs.cancel(&jobs::JobId::parse("v-1").unwrap(), "enough").await.unwrap();

    // By the worker.
    async fn mail(Payload(body): Payload<serde_json::Value>) -> Result<serde_json::Value, Fault> {
        Ok(body["a"].clone())
    }
    async fn tick() {}
    let cancel = CancellationToken::new();
    let worker = Worker::new(&jobs, Labels::new("w2").unwrap(), ())
        .handle("mail", mail)
        .handle("tick", tick);
    let running = tokio::spawn(worker.run(cancel.clone()));
    for id in [&one.id, &child, &later] {
        let (status, result) = jobs.wait(id, soon).await.unwrap();
        assert_eq!(status, Status::Completed);
        assert_eq!(result.unwrap().data.unwrap().get(), "1");
    }
    let batch: Vec<NewJob> = (0..300).map(|_| job("mail")).collect();
    let ids: Vec<_> =
        jobs.dispatch_all(batch).await.into_iter().map(|done| done.unwrap().id).collect();
    for id in &ids {
        assert_eq!(jobs.wait(id, soon).await.unwrap().0, Status::Completed);
    }
    cancel.cancel();
    running.await.unwrap().unwrap();
    let stats = jobs.stats().await.unwrap();
    assert_eq!(
        (stats.waiting, stats.active, stats.delayed, stats.dead, stats.cron),
        (0, 0, 0, 0, 1)
    );
}
