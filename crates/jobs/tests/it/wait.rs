//! Waiting for results, progress, logs, events.

use std::time::Duration;

use jobs::{EventId, JobError, Status};

use crate::support::*;

const SOON: Duration = Duration::from_secs(20);

testkit::each_store! {
    async fn whoever_waits_for_a_job_is_told_when_it_ends(t: TestStore) {
        let jobs = queue(&t);
        let id = put(&jobs, job("a")).await;
        let waiting = {
            let (jobs, id) = (jobs.clone(), id.clone());
            tokio::spawn(async move { jobs.wait(&id, SOON).await })
        };
        let lease = take(&mut worker(&jobs, "w1")).await;
        let data = serde_json::value::to_raw_value(&"done").unwrap();
        jobs.complete(&lease, Some(data), NO_TIME).await.unwrap();
        let (status, result) = waiting.await.unwrap().unwrap();
        assert_eq!(status, Status::Completed);
        assert_eq!(result.unwrap().data.unwrap().get(), "\"done\"");
        let (status, _) = jobs.wait(&id, SOON).await.unwrap();
        assert_eq!(status, Status::Completed, "it has ended already");
    }

    async fn a_wait_ends_in_time_and_an_unknown_job_is_told(t: TestStore) {
        let jobs = queue(&t);
        let id = put(&jobs, job("a")).await;
        let waited = jobs.wait(&id, Duration::from_millis(20)).await;
        assert!(matches!(waited, Err(jobs::Error::TimedOut(_))));
        let nobody = jobs::JobId::parse("nobody").unwrap();
        assert!(matches!(jobs.wait(&nobody, SOON).await, Err(jobs::Error::NotFound(_))));
    }

    async fn a_dead_job_ends_the_wait_and_a_retried_one_does_not(t: TestStore) {
        let jobs = queue(&t);
        let id = put(&jobs, job("a").attempts(1)).await;
        let mut w = worker(&jobs, "w1");
        let lease = take(&mut w).await;
        jobs.retry_in(&lease, Duration::ZERO, JobError::new("Oops", ""), NO_TIME).await.unwrap();
        assert!(jobs.wait(&id, Duration::from_millis(20)).await.is_err());
        let lease = take(&mut w).await;
        jobs.fail(&lease, JobError::new("Oops", "again"), NO_TIME).await.unwrap();
        let (status, result) = jobs.wait(&id, SOON).await.unwrap();
        assert_eq!(status, Status::Dead);
        assert_eq!(result.unwrap().error.unwrap().message, "again");
    }

    async fn an_idle_worker_is_called_when_a_job_comes(t: TestStore) {
        let jobs = queue(&t);
        let mut w = worker(&jobs, "w1");
        let claiming = tokio::spawn(async move {
            w.claim_wait(5, Duration::from_secs(30), SOON).await
        });
        let id = put(&jobs, job("a")).await;
        let claimed = claiming.await.unwrap().unwrap();
        assert_eq!(claimed.leases[0].id(), &id);
    }

    async fn a_worker_waits_for_a_place_of_a_limited_type(t: TestStore) {
        let jobs = queue(&t);
        put(&jobs, job("a").max_concurrent(1)).await;
        let second = put(&jobs, job("a").max_concurrent(1)).await;
        let lease = take(&mut worker(&jobs, "w1")).await;
        let mut w = worker(&jobs, "w2");
        let claiming = tokio::spawn(async move {
            w.claim_wait(5, Duration::from_secs(30), SOON).await
        });
        jobs.complete(&lease, None, NO_TIME).await.unwrap();
        let claimed = claiming.await.unwrap().unwrap();
        assert_eq!(claimed.leases[0].id(), &second);
    }

    async fn progress_and_logs_are_kept_as_v1_writes_them(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("a")).await;
        jobs.set_progress(&id, 75.0, Some("step 3 of 4".into()), None).await.unwrap();
        let progress = raw.json(&format!("bridge:jobs:progress:{id}")).await;
        assert_eq!(progress["percent"], 75.0);
        assert_eq!(progress["message"], "step 3 of 4");
        assert!(progress.get("data").is_none());
        assert_eq!(jobs.progress(&id).await.unwrap().unwrap().percent, 75.0);
        for n in 0..250 {
            jobs.log(&id, &format!("line {n}")).await.unwrap();
        }
        let lines = jobs.logs(&id).await.unwrap();
        assert_eq!(lines.len(), 200);
        assert_eq!(lines[199].1, "line 249");
        jobs.log(&id, &"ü".repeat(4_000)).await.unwrap();
        assert_eq!(jobs.logs(&id).await.unwrap()[199].1.len(), 4_096);
        assert!(jobs.set_progress(&id, f64::NAN, None, None).await.is_err());
    }

    async fn the_events_tell_a_jobs_life(t: TestStore) {
        let jobs = queue(&t);
        let id = put(&jobs, job("a")).await;
        let lease = take(&mut worker(&jobs, "w1")).await;
        jobs.fail(&lease, JobError::new("Oops", ""), NO_TIME).await.unwrap();
        t.clock.advance(Duration::from_secs(2));
        jobs.scheduler().tick().await.unwrap();
        let lease = take(&mut worker(&jobs, "w1")).await;
        jobs.complete(&lease, None, NO_TIME).await.unwrap();
        let (events, missed) = jobs.events_after(EventId::START, 100).await.unwrap();
        assert!(!missed);
        let names: Vec<_> = events.iter().map(|event| event.event.as_str()).collect();
        assert_eq!(names, ["dispatched", "started", "retrying", "due", "started", "completed"]);
        assert!(events.iter().all(|event| event.jobs == [id.clone()]));
        assert_eq!(events[1].why.as_deref(), Some("w1"));
        let mut reader = jobs.events(events[4].id).await.unwrap();
        let (rest, _) = reader.next(Duration::from_millis(10)).await.unwrap();
        assert_eq!(rest.len(), 1);
        let next = tokio::spawn(async move { reader.next(SOON).await.unwrap().0 });
        put(&jobs, job("b")).await;
        assert_eq!(next.await.unwrap()[0].event, "dispatched");
    }
}
