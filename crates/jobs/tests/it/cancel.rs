//! Cancelling, pausing, replaying.

use std::time::Duration;

use jobs::{AckOutcome, CancelOutcome, FailureAction, JobError, JobList, JobType, Renewal, Status};

use crate::support::*;

testkit::each_store! {
    async fn a_job_that_has_not_started_ends_when_cancelled(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let waiting = put(&jobs, job("a")).await;
        let delayed = put(&jobs, job("a").delay(Duration::from_secs(9))).await;
        let other = put(&jobs, job("a")).await;
        for id in [&waiting, &delayed] {
            assert_eq!(jobs.cancel(id, "not needed").await.unwrap(), CancelOutcome::Ended);
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
        assert_eq!(jobs.cancel(&id, "enough").await.unwrap(), CancelOutcome::Asked);
        assert_eq!(jobs.renew(&[&lease]).await.unwrap().0, [Renewal::Cancelled]);
        jobs.stop(&lease, "enough", NO_TIME).await.unwrap();
        assert_eq!(jobs.status(&id).await.unwrap(), Some(Status::Failed));
        let left: i64 = raw.call(&["EXISTS", "bridge:jobs:cancelled"]).await;
        assert_eq!(left, 0);
        check_invariants(&raw).await;
    }

    async fn a_paused_type_does_not_start_and_starts_again(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let job_type = JobType::parse("a").unwrap();
        let a = put(&jobs, job("a")).await;
        let b = put(&jobs, job("b")).await;
        jobs.pause(&job_type).await.unwrap();
        assert_eq!(raw.set("bridge:queues:paused").await, ["a"]);
        let mut w = worker(&jobs, "w1");
        assert_eq!(take_ids(&mut w, 9).await, [b]);
        assert!(take_ids(&mut w, 9).await.is_empty());
        assert!(jobs.lanes().await.unwrap()[0].paused);
        jobs.resume(&job_type).await.unwrap();
        assert_eq!(take_ids(&mut w, 9).await, [a]);
    }

    async fn a_dead_job_is_replayed_with_all_its_attempts(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("a").attempts(0).priority(8)).await;
        let mut w = worker(&jobs, "w1");
        let lease = take(&mut w).await;
        jobs.fail(&lease, JobError::new("Oops", "no"), NO_TIME).await.unwrap();
        let dead = jobs.list(JobList::Dead, 0, 10).await.unwrap();
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
        let replayed = jobs.replay_dead(2, |job| job.job_type == "a").await.unwrap();
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
            assert_eq!(jobs.cancel(&id, "user \"asked\"").await.unwrap(), CancelOutcome::Asked);
            let oops = || JobError::new("Oops", "no");
            match way {
                "fail" => {
                    let verdict = jobs.fail(&lease, oops(), NO_TIME).await.unwrap();
                    assert_eq!(verdict, FailureAction::Cancelled);
                }
                "retry_in" => {
                    let soon = Duration::from_millis(1);
                    let verdict = jobs.retry_in(&lease, soon, oops(), NO_TIME).await.unwrap();
                    assert_eq!(verdict, FailureAction::Cancelled);
                }
                "bury" => _ = jobs.bury(&lease, oops(), NO_TIME).await.unwrap(),
                "release" => {
                    assert_eq!(jobs.release_one(&lease).await.unwrap(), AckOutcome::Cancelled);
                }
                "snooze" => {
                    let ended = jobs.snooze(&lease, Duration::from_millis(1)).await.unwrap();
                    assert_eq!(ended, AckOutcome::Cancelled);
                }
                "stop" => jobs.stop(&lease, "cancelled while it ran", NO_TIME).await.unwrap(),
                _ => {
                    t.clock.advance(Duration::from_secs(60));
                    jobs.maintenance().tick().await.unwrap();
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
        assert_eq!(jobs.cancel(&id, "enough").await.unwrap(), CancelOutcome::Asked);
        jobs.fail(&lease, JobError::new("Oops", ""), NO_TIME).await.unwrap();
        assert!(take_ids(&mut w, 9).await.is_empty());
        assert!(matches!(jobs.cancel(&id, "").await, Err(jobs::Error::IsSchedule(_))));
    }

    async fn many_jobs_are_cancelled_replayed_and_removed_in_a_few_calls(t: TestStore) {
        use jobs::{BulkAction, Filter};

        const MANY: usize = 3_000;
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let all = (0..MANY).map(|n| job(if n % 3 == 0 { "keep" } else { "go" }));
        assert!(jobs.dispatch_all(all).await.iter().all(Result::is_ok));
        let run = async |which: JobList, job_type: Option<&str>, what: BulkAction, most: usize| {
            let job_type = job_type.map(str::to_owned);
            let filter = Filter { which: Some(which), job_type, ..Filter::default() };
            let (mut from, mut done, mut refused, mut calls) = (None, 0, 0, 0);
            loop {
                let part = jobs.bulk(&filter, &what, from, most).await.unwrap();
                assert!(part.done.len() + part.refused.len() <= most);
                done += part.done.len();
                refused += part.refused.len();
                calls += 1;
                from = part.next;
                if from.is_none() {
                    break (done, refused, calls);
                }
            }
        };
        let cancel = || BulkAction::Cancel("enough".to_owned());
        let go = Some("go");
        assert_eq!(run(JobList::Waiting, go, cancel(), 700).await, (2_000, 0, 3));
        let waiting = raw.list("bridge:jobs:waiting").await;
        assert_eq!(waiting.iter().filter(|id| *id != "-").count(), 1_000);
        // What runs is asked; what has ended is told of.
        let held = worker(&jobs, "w1").claim(2).await.unwrap().leases;
        assert_eq!(run(JobList::Active, None, cancel(), 10).await, (2, 0, 1));
        for lease in &held {
            jobs.stop(lease, "", NO_TIME).await.unwrap();
        }
        assert_eq!(run(JobList::Finished, go, BulkAction::Replay, 900).await, (2_000, 0, 3));
        assert_eq!(run(JobList::Waiting, None, cancel(), MANY).await, (2_998, 0, 1));
        // Entries of the first cancellation are still in the list; each job counts once.
        let (done, refused, _) = run(JobList::Finished, None, BulkAction::Remove, MANY).await;
        assert_eq!((done, refused), (MANY, 0));
        let left: Vec<String> = raw.call(&["KEYS", "bridge:jobs:data:*"]).await;
        assert!(left.is_empty(), "{}", left.len());
        assert!(take_ids(&mut worker(&jobs, "w1"), 9).await.is_empty());
        check_invariants(&raw).await;
    }
}
