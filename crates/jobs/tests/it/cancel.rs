//! Cancelling, pausing, replaying.

use std::time::Duration;

use jobs::{Cancelled, EndedAs, JobError, JobType, Renewal, Status, Verdict, Which};

use crate::support::*;

testkit::each_store! {
    async fn a_job_that_has_not_started_ends_when_cancelled(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let waiting = put(&jobs, job("a")).await;
        let delayed = put(&jobs, job("a").delay(Duration::from_secs(9))).await;
        let other = put(&jobs, job("a")).await;
        for id in [&waiting, &delayed] {
            assert_eq!(jobs.cancel(id, "not needed").await.unwrap(), Cancelled::Ended);
            assert_eq!(raw.status(id).await.as_deref(), Some("failed"));
            let result = raw.json(&format!("bridge:jobs:result:{id}")).await;
            assert_eq!(result["error"]["name"], "Cancelled");
            assert_eq!(result["error"]["message"], "not needed");
            assert!(matches!(jobs.cancel(id, "").await, Err(jobs::Error::Conflict { .. })));
        }
        assert_eq!(raw.list("bridge:jobs:waiting").await, [other.as_str()]);
        assert_eq!(take_ids(&mut worker(&jobs, "w1"), 9).await, [other]);
        let nobody = jobs::JobId::parse("nobody").unwrap();
        assert!(matches!(jobs.cancel(&nobody, "").await, Err(jobs::Error::NotFound(_))));
        check_invariants(&raw).await;
    }

    async fn a_running_job_is_asked_to_stop(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("a")).await;
        let lease = take(&mut worker(&jobs, "w1")).await;
        assert_eq!(jobs.cancel(&id, "enough").await.unwrap(), Cancelled::Asked);
        assert_eq!(jobs.renew(&[&lease]).await.unwrap().0, [Renewal::Cancelled]);
        jobs.stop(&lease, "enough", NO_TIME).await.unwrap();
        assert_eq!(jobs.status(&id).await.unwrap(), Some(Status::Failed));
        let left: i64 = raw.call(&["EXISTS", "bridge:jobs:cancelled"]).await;
        assert_eq!(left, 0);
        check_invariants(&raw).await;
    }

    async fn a_paused_type_does_not_start_and_starts_again(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let kind = JobType::parse("a").unwrap();
        let a = put(&jobs, job("a")).await;
        let b = put(&jobs, job("b")).await;
        jobs.pause(&kind).await.unwrap();
        assert_eq!(raw.set("bridge:queues:paused").await, ["a"]);
        let mut w = worker(&jobs, "w1");
        assert_eq!(take_ids(&mut w, 9).await, [b]);
        assert!(take_ids(&mut w, 9).await.is_empty());
        assert!(jobs.lanes().await.unwrap()[0].paused);
        jobs.resume(&kind).await.unwrap();
        assert_eq!(take_ids(&mut w, 9).await, [a]);
    }

    async fn a_dead_job_is_replayed_with_all_its_attempts(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("a").attempts(0).priority(8)).await;
        let mut w = worker(&jobs, "w1");
        let lease = take(&mut w).await;
        jobs.fail(&lease, JobError::new("Oops", "no"), NO_TIME).await.unwrap();
        let dead = jobs.list(Which::Dead, 0, 10).await.unwrap();
        assert_eq!(dead[0].0, id);
        jobs.replay(&id).await.unwrap();
        assert!(matches!(jobs.replay(&id).await, Err(jobs::Error::Conflict { .. })));
        assert!(raw.list("bridge:jobs:deadletter").await.is_empty());
        check_invariants(&raw).await;
        let lease = take(&mut w).await;
        assert_eq!(lease.attempt(), 1);
        jobs.complete(&lease, None, NO_TIME).await.unwrap();
        assert_eq!(jobs.view(&id).await.unwrap().unwrap().history.len(), 1, "the past is kept");
    }

    async fn dead_jobs_are_replayed_by_choice(t: TestStore) {
        let jobs = queue(&t);
        let mut w = worker(&jobs, "w1");
        for n in 0..6 {
            put(&jobs, job(if n % 2 == 0 { "a" } else { "b" }).attempts(0)).await;
            let lease = take(&mut w).await;
            jobs.bury(&lease, JobError::new("Oops", ""), NO_TIME).await.unwrap();
        }
        let replayed = jobs.replay_dead(2, |job| job.kind == "a").await.unwrap();
        assert_eq!(replayed.len(), 2);
        assert_eq!(jobs.stats().await.unwrap().dead, 4);
        assert_eq!(jobs.replay_dead(100, |_| true).await.unwrap().len(), 4);
        assert_eq!(jobs.stats().await.unwrap().dead, 0);
        check_invariants(&Raw::of(&t)).await;
    }

    async fn an_ended_job_can_be_removed(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("a").attempts(0)).await;
        assert!(matches!(jobs.remove(&id).await, Err(jobs::Error::Conflict { .. })));
        let lease = take(&mut worker(&jobs, "w1")).await;
        jobs.bury(&lease, JobError::new("Oops", ""), NO_TIME).await.unwrap();
        jobs.remove(&id).await.unwrap();
        assert!(jobs.view(&id).await.unwrap().is_none());
        assert!(raw.list("bridge:jobs:deadletter").await.is_empty());
    }
}

testkit::each_store! {
    async fn a_cancelled_job_never_runs_again_however_its_attempt_ends(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let mut w = worker(&jobs, "w1");
        for way in ["fail", "retry_in", "bury", "release", "snooze", "stop", "lost"] {
            let id = put(&jobs, job("a").attempts(5)).await;
            let lease = take(&mut w).await;
            assert_eq!(lease.id(), &id);
            assert_eq!(jobs.cancel(&id, "user \"asked\"").await.unwrap(), Cancelled::Asked);
            let oops = || JobError::new("Oops", "no");
            match way {
                "fail" => {
                    let verdict = jobs.fail(&lease, oops(), NO_TIME).await.unwrap();
                    assert_eq!(verdict, Verdict::Cancelled);
                }
                "retry_in" => {
                    let soon = Duration::from_millis(1);
                    let verdict = jobs.retry_in(&lease, soon, oops(), NO_TIME).await.unwrap();
                    assert_eq!(verdict, Verdict::Cancelled);
                }
                "bury" => _ = jobs.bury(&lease, oops(), NO_TIME).await.unwrap(),
                "release" => {
                    assert_eq!(jobs.release_one(&lease).await.unwrap(), EndedAs::Cancelled);
                }
                "snooze" => {
                    let ended = jobs.snooze(&lease, Duration::from_millis(1)).await.unwrap();
                    assert_eq!(ended, EndedAs::Cancelled);
                }
                "stop" => jobs.stop(&lease, "cancelled while it ran", NO_TIME).await.unwrap(),
                _ => {
                    t.clock.advance(Duration::from_secs(60));
                    jobs.keeper().tick().await.unwrap();
                }
            }
            t.clock.advance(Duration::from_secs(600));
            jobs.scheduler().tick().await.unwrap();
            assert!(take_ids(&mut w, 9).await.is_empty(), "{way}: it runs again");
            assert_eq!(raw.status(&id).await.as_deref(), Some("failed"), "{way}");
            let result = raw.json(&format!("bridge:jobs:result:{id}")).await;
            assert_eq!(result["error"]["name"], "Cancelled", "{way}");
            assert_eq!(result["error"]["message"], "user \"asked\"", "{way}");
            let left: i64 = raw.call(&["EXISTS", "bridge:jobs:cancelled"]).await;
            assert_eq!(left, 0, "{way}");
            check_invariants(&raw).await;
        }
    }

    async fn a_schedule_is_not_cancelled_as_a_job(t: TestStore) {
        let jobs = queue(&t);
        let id = jobs.schedule(job("a").cron("* * * * *")).await.unwrap().id;
        assert!(matches!(jobs.cancel(&id, "").await, Err(jobs::Error::IsSchedule(_))));
        assert_eq!(jobs.schedules(0, 9).await.unwrap().len(), 1);
        // What runs of it is asked to stop, and does not come back before its next occurrence.
        t.clock.advance(Duration::from_secs(60));
        jobs.scheduler().tick().await.unwrap();
        let mut w = worker(&jobs, "w1");
        let lease = take(&mut w).await;
        assert_eq!(jobs.cancel(&id, "enough").await.unwrap(), Cancelled::Asked);
        jobs.fail(&lease, JobError::new("Oops", ""), NO_TIME).await.unwrap();
        assert!(take_ids(&mut w, 9).await.is_empty());
        assert!(matches!(jobs.cancel(&id, "").await, Err(jobs::Error::IsSchedule(_))));
    }
}
