//! Jobs whose time has come, and schedules.

use std::time::Duration;

use jobs::{CatchUp, JobError, JobId, Leader, Overlap, Status};
use testkit::each_store::START;

use crate::support::*;

const MINUTE: Duration = Duration::from_secs(60);

testkit::each_store! {
    async fn a_delayed_job_is_put_in_line_at_its_time_and_not_before(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("a").delay(Duration::from_secs(5))).await;
        let scheduler = jobs.scheduler();
        t.clock.advance(Duration::from_millis(4_999));
        let tick = scheduler.tick().await.unwrap();
        assert_eq!((tick.promoted, tick.next), (0, Some(jobs::Millis(START.0 + 5_000))));
        t.clock.advance(Duration::from_millis(1));
        assert_eq!(scheduler.tick().await.unwrap().promoted, 1);
        assert_eq!(scheduler.tick().await.unwrap().promoted, 0);
        assert_eq!(raw.list("bridge:jobs:waiting").await, [id.as_str()]);
        assert_eq!(raw.status(&id).await.as_deref(), Some("waiting"));
        assert!(raw.zset("bridge:jobs:delayed").await.is_empty());
        check_invariants(&raw).await;
        assert_eq!(take_ids(&mut worker(&jobs, "w1"), 5).await, [id]);
    }

    async fn many_due_jobs_are_put_in_line_by_several_schedulers_once(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let all = (1..=1_000).map(|n| job("a").delay(Duration::from_millis(n)));
        for outcome in jobs.dispatch_all(all).await {
            outcome.unwrap();
        }
        t.clock.advance(Duration::from_secs(1));
        let (a, b, c) = (jobs.scheduler(), jobs.scheduler(), jobs.scheduler());
        let (a, b, c) = tokio::join!(a.tick(), b.tick(), c.tick());
        let promoted = a.unwrap().promoted + b.unwrap().promoted + c.unwrap().promoted;
        assert_eq!(promoted, 1_000);
        assert_eq!(raw.list("bridge:jobs:waiting").await.len(), 1_000);
        check_invariants(&raw).await;
    }

    async fn a_v1_job_for_later_is_put_in_line_as_well(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let data = r#"{"jobId":"v-1","type":"a","schedule":{"delay":1000}}"#;
        let () = raw.call(&["SET", "bridge:jobs:data:v-1", data]).await;
        let () = raw.call(&["ZADD", "bridge:jobs:delayed", "-5", "v-1"]).await;
        let () = raw.call(&["ZADD", "bridge:jobs:delayed", "1", "ghost"]).await;
        let () = raw.call(&["SET", "bridge:jobs:data:bad", "{"]).await;
        let () = raw.call(&["ZADD", "bridge:jobs:delayed", "1", "bad"]).await;
        assert_eq!(jobs.scheduler().tick().await.unwrap().promoted, 2);
        assert_eq!(take_ids(&mut worker(&jobs, "w1"), 5).await, ["v-1"]);
        assert_eq!(raw.list("bridge:jobs:deadletter").await, ["bad"]);
        assert!(raw.zset("bridge:jobs:delayed").await.is_empty());
    }

    async fn a_retried_job_comes_back_with_its_count(t: TestStore) {
        let jobs = queue(&t);
        let id = put(&jobs, job("a").attempts(2)).await;
        let mut w = worker(&jobs, "w1");
        for (attempt, wait) in [(1, Some(2)), (2, Some(4)), (3, None)] {
            let lease = take(&mut w).await;
            assert_eq!(lease.attempt(), attempt);
            jobs.fail(&lease, JobError::new("Oops", ""), NO_TIME).await.unwrap();
            if let Some(wait) = wait {
                t.clock.advance(Duration::from_secs(wait));
                assert_eq!(jobs.scheduler().tick().await.unwrap().promoted, 1);
            }
        }
        assert_eq!(jobs.status(&id).await.unwrap(), Some(Status::Dead));
        assert_eq!(jobs.view(&id).await.unwrap().unwrap().history.len(), 3);
        check_invariants(&Raw::of(&t)).await;
    }

    async fn an_occurrence_runs_once_for_any_number_of_schedulers(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("a").cron("* * * * *")).await;
        let mut w = worker(&jobs, "w1");
        for minute in 1..=5 {
            t.clock.advance(MINUTE);
            let (a, b, c) = (jobs.scheduler(), jobs.scheduler(), jobs.scheduler());
            let (a, b, c) = tokio::join!(a.tick(), b.tick(), c.tick());
            let occurred = a.unwrap().occurred + b.unwrap().occurred + c.unwrap().occurred;
            assert_eq!(occurred, 1, "minute {minute}");
            assert_eq!(raw.list("bridge:jobs:waiting").await, [id.as_str()], "the same id, as in v1");
            assert_eq!(raw.status(&id).await.as_deref(), Some("waiting"));
            let next = START.0 + (minute + 1) * 60_000;
            assert_eq!(raw.zset("bridge:jobs:cron").await, [(id.to_string(), next)]);
            let lease = take(&mut w).await;
            assert_eq!(lease.attempt(), 1, "attempts start anew each time");
            match minute {
                1 => drop(jobs.fail(&lease, JobError::new("Oops", ""), NO_TIME).await.unwrap()),
                _ => jobs.complete(&lease, None, NO_TIME).await.unwrap(),
            }
            if minute == 1 {
                // The retry runs before the next occurrence.
                t.clock.advance(Duration::from_secs(2));
                jobs.scheduler().tick().await.unwrap();
                let lease = take(&mut w).await;
                assert_eq!(lease.attempt(), 2);
                jobs.complete(&lease, None, NO_TIME).await.unwrap();
                t.clock.set(jobs::Millis(START.0 + 60_000));
            }
        }
        assert!(raw.get(&format!("bridge:jobs:data:{id}")).await.is_some());
        assert!(raw.list("bridge:jobs:finished").await.is_empty(), "a schedule is not cleared away");
    }

    async fn an_occurrence_is_left_out_while_the_one_before_runs(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("a").cron("* * * * *")).await;
        t.clock.advance(MINUTE);
        assert_eq!(jobs.scheduler().tick().await.unwrap().occurred, 1);
        t.clock.advance(MINUTE);
        assert_eq!(jobs.scheduler().tick().await.unwrap().occurred, 0, "it is still in line");
        let lease = take(&mut worker(&jobs, "w1")).await;
        t.clock.advance(MINUTE);
        assert_eq!(jobs.scheduler().tick().await.unwrap().occurred, 0, "it runs");
        jobs.complete(&lease, None, NO_TIME).await.unwrap();
        t.clock.advance(MINUTE);
        assert_eq!(jobs.scheduler().tick().await.unwrap().occurred, 1);
        assert_eq!(raw.list("bridge:jobs:waiting").await, [id.as_str()]);
    }

    async fn occurrences_that_may_overlap_are_jobs_of_their_own(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("a").cron("* * * * *").overlap(Overlap::Allow)).await;
        for _ in 0..3 {
            t.clock.advance(MINUTE);
            assert_eq!(jobs.scheduler().tick().await.unwrap().occurred, 1);
        }
        let expected: Vec<_> =
            (1..=3).map(|n| format!("{id}@{}", START.0 + n * 60_000)).collect();
        assert_eq!(raw.list("bridge:jobs:waiting").await, expected);
        assert_eq!(raw.status(&id).await.as_deref(), Some("cron"));
        let data = raw.json(&format!("bridge:jobs:data:{}", expected[0])).await;
        assert_eq!(data["jobId"], expected[0].as_str());
        assert!(data.get("schedule").is_none());
        check_invariants(&raw).await;
    }

    async fn missed_occurrences_are_made_up_for_as_the_schedule_says(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let schedule = |name: &str| job("a").id(JobId::parse(name).unwrap()).cron("*/10 * * * *");
        put(&jobs, schedule("last")).await;
        put(&jobs, schedule("none").catch_up(CatchUp::None)).await;
        put(&jobs, schedule("all").catch_up(CatchUp::All).overlap(Overlap::Allow)).await;
        t.clock.advance(Duration::from_secs(35 * 60));
        let tick = jobs.scheduler().tick().await.unwrap();
        assert_eq!(tick.occurred, 1 + 3);
        assert_eq!(tick.next, Some(jobs::Millis(START.0 + 40 * 60_000)));
        let mut waiting = raw.list("bridge:jobs:waiting").await;
        waiting.sort();
        let at = |n: i64| format!("all@{}", START.0 + n * 600_000);
        assert_eq!(waiting, [at(1), at(2), at(3), "last".to_owned()]);
    }

    async fn a_paused_schedule_lets_its_occurrences_pass(t: TestStore) {
        let jobs = queue(&t);
        let id = put(&jobs, job("a").cron("* * * * *")).await;
        jobs.pause_schedule(&id).await.unwrap();
        t.clock.advance(MINUTE);
        assert_eq!(jobs.scheduler().tick().await.unwrap().occurred, 0);
        assert!(jobs.schedules(0, 10).await.unwrap()[0].paused);
        jobs.resume_schedule(&id).await.unwrap();
        assert_eq!(jobs.scheduler().tick().await.unwrap().occurred, 0, "what passed stays passed");
        t.clock.advance(MINUTE);
        assert_eq!(jobs.scheduler().tick().await.unwrap().occurred, 1);
        jobs.unschedule(&id).await.unwrap();
        assert!(matches!(jobs.unschedule(&id).await, Err(jobs::Error::NotFound(_))));
        assert!(jobs.schedules(0, 10).await.unwrap().is_empty());
    }

    async fn a_deleted_schedule_leaves_nothing_and_can_be_stored_again(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = JobId::parse("nightly").unwrap();
        let nightly = || job("a").id(id.clone()).cron("* * * * *");
        put(&jobs, nightly()).await;
        t.clock.advance(MINUTE);
        assert_eq!(jobs.scheduler().tick().await.unwrap().occurred, 1);
        let lease = take(&mut worker(&jobs, "w1")).await;
        jobs.complete(&lease, None, NO_TIME).await.unwrap();
        jobs.unschedule(&id).await.unwrap();
        assert!(jobs.get(&id).await.unwrap().is_none());
        assert_eq!(raw.status(&id).await, None);
        assert!(jobs.dispatch(nightly()).await.unwrap().new);
        assert_eq!(raw.status(&id).await.as_deref(), Some("cron"));
        t.clock.advance(MINUTE);
        assert_eq!(jobs.scheduler().tick().await.unwrap().occurred, 1);
        check_invariants(&raw).await;
    }

    async fn a_schedule_deleted_while_it_runs_can_be_stored_again_and_is_removed_in_its_turn(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = JobId::parse("nightly").unwrap();
        let nightly = || job("a").id(id.clone()).cron("* * * * *");
        put(&jobs, nightly()).await;
        t.clock.advance(MINUTE);
        assert_eq!(jobs.scheduler().tick().await.unwrap().occurred, 1);
        jobs.unschedule(&id).await.unwrap();
        assert_eq!(raw.list("bridge:jobs:waiting").await, [id.as_str()], "its run goes on");
        assert!(jobs.dispatch(nightly()).await.unwrap().new);
        assert_eq!(jobs.schedules(0, 10).await.unwrap().len(), 1);
        check_invariants(&raw).await;

        jobs.unschedule(&id).await.unwrap();
        let lease = take(&mut worker(&jobs, "w1")).await;
        jobs.complete(&lease, None, NO_TIME).await.unwrap();
        assert!(jobs.get(&id).await.unwrap().is_some(), "its result can be read");
        t.clock.advance(Duration::from_secs(2 * 24 * 60 * 60));
        jobs.maintenance().tick().await.unwrap();
        assert!(jobs.get(&id).await.unwrap().is_none());
    }

    async fn a_job_that_is_no_schedule_keeps_its_id(t: TestStore) {
        let jobs = queue(&t);
        let id = put(&jobs, job("a")).await;
        let refused = jobs.dispatch(job("a").id(id.clone()).cron("* * * * *")).await;
        assert!(matches!(refused, Err(jobs::Error::Conflict { .. })), "{refused:?}");
        assert!(jobs.schedules(0, 10).await.unwrap().is_empty());
    }

    async fn a_schedule_is_changed_by_dispatching_it_again(t: TestStore) {
        let jobs = queue(&t);
        let id = JobId::parse("nightly").unwrap();
        let nightly = |cron: &str| job("a").id(id.clone()).cron(cron).timezone("Europe/Berlin");
        put(&jobs, nightly("0 3 * * *")).await;
        assert!(!jobs.dispatch(nightly("0 3 * * *")).await.unwrap().new);
        assert!(!jobs.dispatch(nightly("0 4 * * *")).await.unwrap().new);
        let all = jobs.schedules(0, 10).await.unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].next, jobs::Millis(START.0 + 3 * 3_600_000), "four in Berlin");
        put(&jobs, job("b").id(JobId::parse("plain").unwrap())).await;
        let taken = job("a").id(JobId::parse("plain").unwrap()).cron("* * * * *");
        assert!(matches!(jobs.dispatch(taken).await, Err(jobs::Error::Conflict { .. })));
    }

    async fn one_scheduler_leads_and_another_follows_when_it_resigns(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let (a, b) = (Leader::new(&jobs, "a"), Leader::new(&jobs, "b"));
        assert!(a.elect().await.unwrap());
        assert!(!b.elect().await.unwrap());
        assert_eq!(raw.get("bridge:scheduler:lock").await.as_deref(), Some("a"));
        assert!((1..=30).contains(&raw.ttl("bridge:scheduler:lock").await));
        assert!(a.elect().await.unwrap());
        b.resign().await.unwrap();
        assert!(!b.elect().await.unwrap(), "who does not lead cannot resign for another");
        a.resign().await.unwrap();
        assert!(b.elect().await.unwrap());
    }

    async fn the_running_scheduler_wakes_for_what_comes_earlier(t: TestStore) {
        use tokio_util::sync::CancellationToken;
        let jobs = queue(&t);
        let cancel = CancellationToken::new();
        let task = {
            let (jobs, cancel) = (jobs.clone(), cancel.clone());
            tokio::spawn(async move { jobs.run_background("s1", cancel).await })
        };
        let id = put(&jobs, job("a").delay(Duration::from_millis(50))).await;
        t.clock.advance(Duration::from_millis(50));
        let mut w = worker(&jobs, "w1");
        let claimed = w.claim_wait(1, Duration::from_secs(30), Duration::from_secs(20)).await.unwrap();
        assert_eq!(claimed.leases[0].id(), &id);
        cancel.cancel();
        task.await.unwrap();
        assert!(Raw::of(&t).get("bridge:scheduler:lock").await.is_none(), "it resigned");
    }
}
