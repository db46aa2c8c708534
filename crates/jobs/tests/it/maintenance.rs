//! What was lost comes back, and what nobody needs goes.

use std::time::Duration;

use jobs::{Config, Jobs, Labels, Renewal, Status};

use crate::support::*;

const LEASE: Duration = Duration::from_secs(30);

testkit::each_store! {
    async fn a_job_whose_lease_ran_out_goes_to_another_worker(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("a").max_concurrent(1)).await;
        let lost = take(&mut worker(&jobs, "w1")).await;
        t.clock.advance(LEASE - Duration::from_millis(1));
        assert_eq!(jobs.maintenance().tick().await.unwrap().reclaimed, 0);
        t.clock.advance(Duration::from_millis(1));
        assert_eq!(jobs.maintenance().tick().await.unwrap().reclaimed, 1);
        check_invariants(&raw).await;
        let lease = take(&mut worker(&jobs, "w2")).await;
        assert_eq!((lease.id(), lease.attempt()), (&id, 2));
        assert!(matches!(
            jobs.complete(&lost, None, NO_TIME).await,
            Err(jobs::Error::LeaseLost(_))
        ), "the first worker comes too late");
        jobs.complete(&lease, None, NO_TIME).await.unwrap();
        let view = jobs.view(&id).await.unwrap().unwrap();
        assert_eq!(view.history[0].error.name.as_deref(), Some("WorkerLost"));
        assert_eq!(view.history[0].worker_id, "w1");
        check_invariants(&raw).await;
    }

    async fn a_lost_job_is_found_among_very_many_that_run(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("a")).await;
        take(&mut worker(&jobs, "w1")).await;
        // More than are looked at in one round.
        for first in (0..25_000).step_by(1_000) {
            let names: Vec<String> = (first..first + 1_000).map(|n| format!("other{n}")).collect();
            let mut line = vec!["HSET", "bridge:jobs:claims"];
            line.extend(names.iter().flat_map(|name| [name.as_str(), "99 w9 b"]));
            let _: i64 = raw.call(&line).await;
        }
        t.clock.advance(LEASE);
        let (maintenance, mut reclaimed) = (jobs.maintenance(), 0);
        for _ in 0..4 {
            reclaimed += maintenance.tick().await.unwrap().reclaimed;
        }
        assert_eq!(reclaimed, 1);
        assert_eq!(raw.status(&id).await.as_deref(), Some("waiting"));
        let terms: i64 = raw.call(&["ZCARD", "bridge:jobs:terms"]).await;
        assert_eq!(terms, 0);
    }

    async fn a_renewed_lease_is_left_alone(t: TestStore) {
        let jobs = queue(&t);
        put(&jobs, job("a")).await;
        let lease = take(&mut worker(&jobs, "w1")).await;
        t.clock.advance(LEASE - Duration::from_secs(1));
        jobs.renew(&[&lease]).await.unwrap();
        t.clock.advance(LEASE - Duration::from_secs(1));
        assert_eq!(jobs.maintenance().tick().await.unwrap().reclaimed, 0);
        jobs.complete(&lease, None, NO_TIME).await.unwrap();
    }

    async fn a_job_that_takes_its_workers_down_is_put_away(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("a").attempts(100)).await;
        for n in 1..=3 {
            take(&mut worker(&jobs, &format!("w{n}"))).await;
            t.clock.advance(LEASE);
            assert_eq!(jobs.maintenance().tick().await.unwrap().reclaimed, 1);
        }
        assert_eq!(raw.status(&id).await.as_deref(), Some("dead"));
        let result = raw.json(&format!("bridge:jobs:result:{id}")).await;
        assert_eq!(result["error"]["name"], "WorkerLost");
        check_invariants(&raw).await;
    }

    async fn a_lost_worker_costs_no_more_attempts_than_there_are(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("a").attempts(1)).await;
        for _ in 0..2 {
            take(&mut worker(&jobs, "w")).await;
            t.clock.advance(LEASE);
            jobs.maintenance().tick().await.unwrap();
        }
        assert_eq!(raw.status(&id).await.as_deref(), Some("dead"));
        assert_eq!(raw.json(&format!("bridge:jobs:data:{id}")).await["attempts"], 1);
    }

    async fn a_silent_worker_is_taken_off_and_its_jobs_back(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let labels = Labels::new("w1").unwrap();
        jobs.register(&labels, None, "host", None).await.unwrap();
        let info = raw.json("bridge:workers:w1").await;
        assert_eq!(info["serverId"], "w1");
        assert_eq!(raw.set("bridge:workers:active").await, ["w1"]);
        assert!((1..=30).contains(&raw.ttl("bridge:workers:heartbeat:w1").await));
        put(&jobs, job("a")).await;
        let mut claimer = jobs.claimer(labels);
        let long = Duration::from_secs(3_600);
        assert_eq!(claimer.claim_for(1, long).await.unwrap().leases.len(), 1);
        let maintenance = jobs.maintenance();
        assert_eq!(maintenance.tick().await.unwrap().workers, 0);
        let () = raw.call(&["DEL", "bridge:workers:heartbeat:w1"]).await;
        assert_eq!(maintenance.tick().await.unwrap().workers, 0, "it may be late");
        t.clock.advance(LEASE);
        let kept = maintenance.tick().await.unwrap();
        assert_eq!((kept.workers, kept.reclaimed), (1, 1), "an hour before its lease ends");
        assert!(raw.set("bridge:workers:active").await.is_empty());
        check_invariants(&raw).await;
    }

    async fn a_job_of_a_v1_worker_that_died_comes_back(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("a").max_concurrent(1)).await;
        // What v1's claim script leaves, without the lock that has run out.
        let () = raw.call(&["LREM", "bridge:jobs:waiting", "1", id.as_str()]).await;
        let () = raw.call(&["SADD", "bridge:jobs:active", id.as_str()]).await;
        let () = raw.call(&["INCR", "bridge:ratelimit:concurrent:a"]).await;
        let () = raw.call(&["SET", &format!("bridge:jobs:status:{id}"), "active"]).await;
        let () = raw.call(&["SET", &format!("bridge:jobs:lock:{id}"), "v1", "EX", "30"]).await;
        let maintenance = jobs.maintenance();
        for _ in 0..3 {
            t.clock.advance(Duration::from_secs(5));
            assert_eq!(maintenance.tick().await.unwrap().reclaimed, 0, "it holds its lock");
        }
        let () = raw.call(&["DEL", &format!("bridge:jobs:lock:{id}")]).await;
        assert_eq!(maintenance.tick().await.unwrap().reclaimed, 0, "it may be about to finish");
        t.clock.advance(Duration::from_secs(5));
        assert_eq!(maintenance.tick().await.unwrap().reclaimed, 1);
        assert_eq!(raw.get("bridge:ratelimit:concurrent:a").await.as_deref(), Some("0"));
        check_invariants(&raw).await;
        assert_eq!(take(&mut worker(&jobs, "w1")).await.attempt(), 2);
    }

    async fn a_job_that_expires_in_line_ends_without_a_worker(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let at = jobs.now() + Duration::from_secs(5);
        let a = put(&jobs, job("a").expires_at(at)).await;
        let b = put(&jobs, job("a").expires_at(at).delay(Duration::from_secs(60))).await;
        let c = put(&jobs, job("b").expires_at(at)).await;
        let mut w = worker(&jobs, "w1").types([jobs::JobType::parse("b").unwrap()]);
        let running = take(&mut w).await;
        t.clock.advance(Duration::from_secs(5));
        assert_eq!(jobs.maintenance().tick().await.unwrap().expired, 2);
        for id in [&a, &b] {
            assert_eq!(jobs.status(id).await.unwrap(), Some(Status::Failed));
            assert_eq!(raw.json(&format!("bridge:jobs:result:{id}")).await["error"]["name"], "Expired");
        }
        assert_eq!(running.id(), &c);
        jobs.complete(&running, None, NO_TIME).await.unwrap();
        assert!(raw.zset("bridge:jobs:expiring").await.is_empty());
        check_invariants(&raw).await;
    }

    async fn ended_jobs_are_kept_by_number_and_by_age(t: TestStore) {
        let config = Config { keep_finished: 5, keep_dead: 2, ..Config::default() };
        let jobs = Jobs::new(t.store.clone(), config).unwrap();
        let raw = Raw::of(&t);
        let mut w = worker(&jobs, "w1");
        let mut ids = Vec::new();
        for _ in 0..8 {
            ids.push(put(&jobs, job("a").attempts(0)).await);
            let lease = take(&mut w).await;
            jobs.complete(&lease, None, NO_TIME).await.unwrap();
        }
        let mut dead = Vec::new();
        for _ in 0..4 {
            dead.push(put(&jobs, job("a").attempts(0)).await);
            let lease = take(&mut w).await;
            jobs.fail(&lease, jobs::JobError::new("Oops", ""), NO_TIME).await.unwrap();
        }
        assert_eq!(jobs.maintenance().tick().await.unwrap().removed, 3 + 2);
        for (n, id) in ids.iter().enumerate() {
            assert_eq!(jobs.get(id).await.unwrap().is_some(), n >= 3, "{n}");
            assert_eq!(raw.status(id).await.is_some(), n >= 3, "{n}");
            assert_eq!(jobs.result(id).await.unwrap().is_some(), n >= 3, "{n}");
        }
        let newest: Vec<_> = dead[2..].iter().rev().map(ToString::to_string).collect();
        assert_eq!(raw.list("bridge:jobs:deadletter").await, newest);
        t.clock.advance(Duration::from_secs(24 * 3_600));
        assert_eq!(jobs.maintenance().tick().await.unwrap().removed, 5);
        t.clock.advance(Duration::from_secs(29 * 24 * 3_600));
        assert_eq!(jobs.maintenance().tick().await.unwrap().removed, 2);
        let left: Vec<String> = raw.call(&["KEYS", "bridge:jobs:data:*"]).await;
        assert!(left.is_empty());
        let left: Vec<String> = raw.call(&["KEYS", "bridge:jobs:history:*"]).await;
        assert!(left.is_empty());
    }

    async fn tombs_are_cleared_out_of_a_long_line(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let gpu = || job("render").target(jobs::JobTarget::default().capability("gpu"));
        let mixed = (0..1_200).map(|n| if n % 3 == 0 { job("a") } else { gpu() });
        for outcome in jobs.dispatch_all(mixed).await {
            outcome.unwrap();
        }
        let mut w = worker(&jobs, "w1");
        let mut taken = 0;
        while taken < 400 {
            taken += take_ids(&mut w, 100).await.len();
        }
        let tombs = |list: &[String]| list.iter().filter(|id| *id == "-").count();
        assert!(tombs(&raw.list("bridge:jobs:waiting").await) > 100);
        assert_eq!(jobs.stats().await.unwrap().waiting, 800);
        jobs.maintenance().tick().await.unwrap();
        let line = raw.list("bridge:jobs:waiting").await;
        assert_eq!((line.len(), tombs(&line)), (800, 0));
        let mut gpu = jobs.claimer(Labels::new("w2").unwrap().capabilities(["gpu"]));
        let mut taken = Vec::new();
        while taken.len() < 800 {
            let ids = take_ids(&mut gpu, 128).await;
            assert!(!ids.is_empty());
            taken.extend(ids.iter().map(ToString::to_string));
        }
        assert_eq!(taken, line);
        check_invariants(&raw).await;
    }

    async fn lanes_that_were_lost_are_made_anew(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let mut all = Vec::new();
        for _ in 0..10 {
            all.push(put(&jobs, job("a")).await);
        }
        let lanes: Vec<String> = raw.call(&["KEYS", "bridge:jobs:lane:*"]).await;
        for lane in &lanes {
            let () = raw.call(&["DEL", lane]).await;
        }
        let mut w = worker(&jobs, "w1");
        assert!(take_ids(&mut w, 50).await.is_empty());
        let maintenance = jobs.maintenance();
        for _ in 0..3 {
            t.clock.advance(Duration::from_secs(10));
            maintenance.tick().await.unwrap();
        }
        assert_eq!(take_ids(&mut w, 50).await, all);
        check_invariants(&raw).await;
    }

    async fn an_attempt_that_runs_longer_than_its_timeout_ends_as_one(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let second = Duration::from_secs(1);
        let retry = jobs::Retry { attempts: 1, ..jobs::Retry::default() };
        let id = put(&jobs, job("a").timeout(second).retry(retry).max_concurrent(1)).await;
        let mut w = worker(&jobs, "w1").starting(NO_TIME);
        let lease = take(&mut w).await;
        t.clock.advance(second - Duration::from_millis(1));
        assert_eq!(jobs.renew(&[&lease]).await.unwrap().0, [Renewal::Held]);
        assert_eq!(jobs.maintenance().tick().await.unwrap().reclaimed, 0);
        t.clock.advance(Duration::from_millis(1));
        assert_eq!(jobs.renew(&[&lease]).await.unwrap().0, [Renewal::TimedOut]);
        let overdue = |error| matches!(error, jobs::Error::Overdue(_));
        assert!(overdue(jobs.complete(&lease, None, NO_TIME).await.unwrap_err()));
        let (counted, _) = w.complete_and_claim([(&lease, None, NO_TIME)], 1).await.unwrap();
        assert_eq!(counted, [false]);
        assert!(overdue(jobs.release_one(&lease).await.unwrap_err()));
        assert!(overdue(jobs.snooze(&lease, second).await.unwrap_err()));
        assert_eq!(raw.status(&id).await.as_deref(), Some("active"));
        assert_eq!(jobs.maintenance().tick().await.unwrap().reclaimed, 1);
        check_invariants(&raw).await;
        let lost = jobs.complete(&lease, None, NO_TIME).await.unwrap_err();
        assert!(matches!(lost, jobs::Error::LeaseLost(_)), "{lost}");
        // Its policy decides: once more, and then it is dead with its true reason.
        t.clock.advance(Duration::from_secs(60));
        jobs.scheduler().tick().await.unwrap();
        let again = take(&mut w).await;
        assert_eq!(again.attempt(), 2);
        t.clock.advance(second);
        assert_eq!(jobs.maintenance().tick().await.unwrap().reclaimed, 1);
        let (status, result) = jobs.wait(&id, second).await.unwrap();
        assert_eq!(status, Status::Dead);
        let error = result.unwrap().error.unwrap();
        assert_eq!(error.name.as_deref(), Some("Timeout"));
        assert_eq!(error.message, "it ran longer than 1000 ms");
        let left: i64 = raw.call(&["EXISTS", "bridge:jobs:deadlines"]).await;
        assert_eq!(left, 0);
        check_invariants(&raw).await;
    }

    async fn a_timeout_begins_when_the_attempt_does_and_ends_with_it(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let second = Duration::from_secs(1);
        for _ in 0..2 {
            put(&jobs, job("a").timeout(second)).await;
        }
        let mut w = worker(&jobs, "w1");
        let (first, other) = (take(&mut w).await, take(&mut w).await);
        // A worker that claims ahead starts the clock with the handler.
        t.clock.advance(5 * second);
        jobs.start(&[&first], second).await.unwrap();
        t.clock.advance(2 * second - Duration::from_millis(1));
        assert_eq!(jobs.maintenance().tick().await.unwrap().reclaimed, 0);
        jobs.complete(&first, None, NO_TIME).await.unwrap();
        let deadlines: i64 = raw.call(&["ZCARD", "bridge:jobs:deadlines"]).await;
        assert_eq!(deadlines, 0);
        // Who does not hold a job starts no clock.
        jobs.start(&[&first], NO_TIME).await.unwrap();
        jobs.complete(&other, None, NO_TIME).await.unwrap();
        let deadlines: i64 = raw.call(&["ZCARD", "bridge:jobs:deadlines"]).await;
        assert_eq!(deadlines, 0);
        check_invariants(&raw).await;
    }

    async fn entries_of_lanes_that_were_lost_or_left_over_are_made_true(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(put(&jobs, job("a").max_concurrent(9)).await);
        }
        let sets: Vec<String> = raw.call(&["KEYS", "bridge:jobs:ready:*"]).await;
        assert_eq!(sets.len(), 2, "one of the pool, one of the type");
        let lanes: Vec<(String, i64)> = raw.zset(&sets[0]).await;
        let [(lane, score)] = &lanes[..] else { panic!("one lane: {lanes:?}") };
        // An entry is lost, and one is left over.
        let gone = "00000000000 9   a".to_owned();
        for set in &sets {
            let _: i64 = raw.call(&["ZREM", set, lane]).await;
            let _: i64 = raw.call(&["ZADD", set, "1", &gone]).await;
        }
        let mut w = worker(&jobs, "w1");
        assert!(take_ids(&mut w, 50).await.is_empty());
        let maintenance = jobs.maintenance();
        for _ in 0..3 {
            t.clock.advance(Duration::from_secs(10));
            maintenance.tick().await.unwrap();
        }
        for set in &sets {
            assert_eq!(raw.zset(set).await, [(lane.clone(), *score)], "{set}");
        }
        // A lane that counts as parked, though nothing would bring it back.
        for set in &sets {
            let parked = (2_000_000_000_000_000 + score).to_string();
            let _: i64 = raw.call(&["ZADD", set, &parked, lane]).await;
        }
        assert!(take_ids(&mut w, 50).await.is_empty());
        t.clock.advance(Duration::from_secs(10));
        maintenance.tick().await.unwrap();
        assert_eq!(take_ids(&mut w, 50).await, all);
        let sets: Vec<String> = raw.call(&["KEYS", "bridge:jobs:ready:*"]).await;
        assert!(sets.is_empty(), "{sets:?}");
        check_invariants(&raw).await;
    }

    async fn jobs_of_the_earlier_layout_are_taken_over_in_their_order(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let worker_id = jobs::WorkerId::parse("w1").unwrap();
        let gpu = jobs::JobTarget::default().capability("gpu").capability("tpu");
        let mut all = vec![
            put(&jobs, job("a").priority(9)).await,
            put(&jobs, job("a").priority(9)).await,
            put(&jobs, job("b").target(jobs::JobTarget::default().worker(&worker_id))).await,
            put(&jobs, job("c").target(gpu)).await,
        ];
        // As the earlier layout was: routes in registries, masks in the index.
        let lanes: Vec<String> = raw.call(&["KEYS", "bridge:jobs:lane:*"]).await;
        let texts = [
            (r#"{"type":"a"}"#, "bridge:jobs:routes"),
            (r#"{"type":"b","server":"w1"}"#, "bridge:jobs:routes:w1"),
            (r#"{"type":"c","capabilities":["gpu","tpu"]}"#, "bridge:jobs:routes"),
        ];
        for (text, registry) in texts {
            let _: i64 = raw.call(&["HSET", registry, text, text]).await;
        }
        for lane in &lanes {
            let route = lane.rsplit(':').nth(1).unwrap();
            let _: i64 = raw.call(&["HSET", "bridge:jobs:index", &format!("m:{route}"), "1"]).await;
        }
        let _: i64 = raw.call(&["HDEL", "bridge:jobs:index", "v:"]).await;
        let _: i64 = raw.call(&["SADD", "bridge:jobs:blocked", "a"]).await;
        for pattern in ["bridge:jobs:ready:*", "bridge:jobs:pools", "bridge:jobs:pinned"] {
            let keys: Vec<String> = raw.call(&["KEYS", pattern]).await;
            for key in &keys {
                let _: i64 = raw.call(&["DEL", key]).await;
            }
        }
        all.push(put(&jobs, job("a").priority(9)).await);
        let mut w = jobs.claimer(Labels::new("w1").unwrap().capabilities(["tpu"]));
        assert!(take_ids(&mut w, 9).await.is_empty(), "nothing is listed");
        jobs.maintenance().tick().await.unwrap();
        let expected = [0, 1, 4, 2, 3].map(|n| all[n].clone());
        assert_eq!(take_ids(&mut w, 9).await, expected);
        let index = raw.hash("bridge:jobs:index").await;
        assert!(!index.keys().any(|field| field.starts_with("m:")), "{index:?}");
        for key in ["bridge:jobs:routes", "bridge:jobs:routes:w1", "bridge:jobs:blocked"] {
            let left: i64 = raw.call(&["EXISTS", key]).await;
            assert_eq!(left, 0, "{key}");
        }
        check_invariants(&raw).await;
    }

    async fn idle_pools_are_forgotten_and_come_back(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let gpu = || jobs::JobTarget::default().capability("gpu");
        put(&jobs, job("a").target(gpu())).await;
        let worker_id = jobs::WorkerId::parse("w1").unwrap();
        put(&jobs, job("b").target(jobs::JobTarget::default().worker(&worker_id))).await;
        let mut w = jobs.claimer(Labels::new("w1").unwrap().capabilities(["gpu"]));
        for lease in w.claim(9).await.unwrap().leases {
            jobs.complete(&lease, None, NO_TIME).await.unwrap();
        }
        let registered = async |count: i64| {
            for key in ["bridge:jobs:pools", "bridge:jobs:pinned"] {
                let left: i64 = raw.call(&["ZCARD", key]).await;
                assert_eq!(left, count, "{key}");
            }
        };
        registered(1).await;
        let maintenance = jobs.maintenance();
        for _ in 0..2 {
            maintenance.tick().await.unwrap();
            t.clock.advance(Duration::from_secs(600));
        }
        registered(0).await;
        let ids = [
            put(&jobs, job("a").target(gpu())).await,
            put(&jobs, job("b").target(jobs::JobTarget::default().worker(&worker_id))).await,
        ];
        assert_eq!(take_ids(&mut w, 9).await, ids);
        // So does a worker that comes new.
        let id = put(&jobs, job("a").target(gpu())).await;
        let mut other = queue(&t).claimer(Labels::new("w2").unwrap().capabilities(["gpu"]));
        assert_eq!(take_ids(&mut other, 9).await, [id]);
    }

    async fn jobs_no_live_worker_can_take_are_visible(t: TestStore) {
        let jobs = queue(&t);
        put(&jobs, job("a")).await;
        put(&jobs, job("a").target(jobs::JobTarget::default().capability("gpu"))).await;
        put(&jobs, job("b").priority(9)).await;
        assert_eq!(jobs.unroutable().await.unwrap().len(), 3, "nobody is there");
        let job_types = [jobs::JobType::parse("a").unwrap()];
        jobs.register(&Labels::new("w1").unwrap(), Some(&job_types), "host", None).await.unwrap();
        let mut stuck = jobs.unroutable().await.unwrap();
        stuck.sort_by_key(|lane| lane.route.job_type.to_string());
        assert_eq!(stuck.len(), 2);
        assert_eq!(stuck[0].route.target.capabilities, ["gpu"]);
        assert_eq!(stuck[1].waiting[8], 1, "one of priority 9");
        let labels = Labels::new("w2").unwrap().capabilities(["gpu"]);
        jobs.register(&labels, None, "host", None).await.unwrap();
        assert!(jobs.unroutable().await.unwrap().is_empty());
        assert_eq!(jobs.stats().await.unwrap().workers, 2);
    }
}
