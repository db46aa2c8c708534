//! Who gets which job, and in which order.

use std::time::Duration;

use jobs::{Claimer, JobId, JobLease, JobTarget, JobType, Labels};

use crate::support::*;

/// Hands in jobs without a result and takes more: which of them counted, and what came.
async fn swap(w: &mut Claimer, done: &[&JobLease], most: usize) -> (Vec<bool>, Vec<JobLease>) {
    let done = done.iter().map(|lease| (*lease, None, NO_TIME));
    let (counted, claimed) = w.complete_and_claim(done, most).await.unwrap();
    (counted, claimed.leases)
}

testkit::each_store! {
    async fn what_is_done_goes_with_the_next_claim(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let mut ids = Vec::new();
        for job_type in ["a", "b", "a", "a"] {
            ids.push(put(&jobs, job(job_type)).await);
        }
        let mut w = worker(&jobs, "w1");
        let first = w.claim(3).await.unwrap().leases;
        let data = serde_json::value::to_raw_value(&7).unwrap();
        let done = first
            .iter()
            .zip([Some(data), None, None])
            .map(|(lease, data)| (lease, data, Duration::from_millis(5)));
        let (counted, claimed) = w.complete_and_claim(done, 5).await.unwrap();
        assert_eq!(counted, [true; 3]);
        assert_eq!(claimed.leases[0].id(), &ids[3]);
        for id in &ids[..3] {
            assert_eq!(raw.status(id).await.as_deref(), Some("completed"));
            assert_eq!(raw.get(&format!("bridge:jobs:lock:{id}")).await, None);
        }
        let result = raw.json(&format!("bridge:jobs:result:{}", ids[0])).await;
        assert_eq!((&result["data"], &result["processingTime"]), (&7.into(), &5.into()));
        let ttl: i64 = raw.call(&["TTL", &format!("bridge:jobs:result:{}", ids[1])]).await;
        assert!((86_000..=86_400).contains(&ttl), "{ttl}");
        assert_eq!(raw.status(&ids[3]).await.as_deref(), Some("active"));
        let stats = jobs.stats().await.unwrap();
        assert_eq!((stats.processed, stats.active, stats.waiting), (3, 1, 0));
        check_invariants(&raw).await;
        let last: Vec<&JobLease> = claimed.leases.iter().collect();
        assert_eq!(swap(&mut w, &last, 0).await.0, [true]);
        assert_eq!(jobs.stats().await.unwrap().processed, 4);
        check_invariants(&raw).await;
    }

    async fn a_claim_that_took_something_along_may_be_repeated(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        for _ in 0..5 {
            put(&jobs, job("a")).await;
        }
        let mut w = worker(&jobs, "w1");
        let first = w.claim(2).await.unwrap().leases;
        let first: Vec<&JobLease> = first.iter().collect();
        let (counted, next) = swap(&mut w, &first, 2).await;
        let request: String = raw.call(&["HGET", "bridge:jobs:index", "r:w1"]).await;
        // Its reply got lost: the same again.
        w.repeat(request.split('\n').next().unwrap());
        let (again, same) = swap(&mut w, &first, 2).await;
        assert_eq!((&counted, &again), (&vec![true; 2], &vec![true; 2]));
        let ids = |leases: &[JobLease]| leases.iter().map(|l| (l.id().clone(), l.token)).collect::<Vec<_>>();
        assert_eq!(ids(&next), ids(&same));
        let stats = jobs.stats().await.unwrap();
        assert_eq!((stats.processed, stats.active, stats.waiting), (2, 2, 1));
        check_invariants(&raw).await;
    }

    async fn of_what_goes_with_a_claim_only_what_is_held_counts(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        for _ in 0..4 {
            put(&jobs, job("a")).await;
        }
        let (mut w, mut other) = (worker(&jobs, "w1"), worker(&jobs, "w2"));
        let held = w.claim(3).await.unwrap().leases;
        // The second is another's by now; the third was renewed.
        jobs.release(&held[1..2]).await.unwrap();
        let taken = take(&mut other).await;
        assert_eq!(taken.id(), held[1].id());
        jobs.renew(&[&held[2]]).await.unwrap();
        check_invariants(&raw).await;
        let (counted, next) = swap(&mut w, &[&held[0], &held[1], &held[2], &held[0]], 5).await;
        assert_eq!(counted, [true, false, true, true], "and what is named twice is done once");
        assert_eq!(next.len(), 1);
        let stats = jobs.stats().await.unwrap();
        assert_eq!((stats.processed, stats.active, stats.waiting), (2, 2, 0));
        assert_eq!(raw.status(taken.id()).await.as_deref(), Some("active"));
        check_invariants(&raw).await;
        jobs.complete(&taken, None, NO_TIME).await.unwrap();
        check_invariants(&raw).await;
    }

    async fn places_freed_by_what_is_done_are_taken_and_pauses_hold(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        for _ in 0..4 {
            put(&jobs, job("narrow").max_concurrent(2)).await;
        }
        let mut w = worker(&jobs, "w1");
        let first = w.claim(9).await.unwrap().leases;
        assert_eq!(first.len(), 2, "two may run");
        let (counted, next) = swap(&mut w, &[&first[0]], 9).await;
        assert_eq!((counted, next.len()), (vec![true], 1), "one place is free");
        let narrow = JobType::parse("narrow").unwrap();
        jobs.pause(&narrow).await.unwrap();
        let (counted, none) = swap(&mut w, &[&first[1], &next[0]], 9).await;
        assert_eq!((counted, none.len()), (vec![true; 2], 0), "nothing starts while it is paused");
        check_invariants(&raw).await;
        jobs.resume(&narrow).await.unwrap();
        assert_eq!(take_ids(&mut w, 9).await.len(), 1);
        check_invariants(&raw).await;
    }

    async fn jobs_that_were_never_renewed_come_back_when_their_term_ends(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        for _ in 0..3 {
            put(&jobs, job("a")).await;
        }
        let held = worker(&jobs, "w1").claim(3).await.unwrap().leases;
        t.clock.advance(Duration::from_secs(20));
        jobs.renew(&[&held[0]]).await.unwrap();
        t.clock.advance(Duration::from_secs(11));
        // A term that nobody counts down is cleared away.
        let _: i64 = raw.call(&["ZADD", "bridge:jobs:terms", "1", "99"]).await;
        let _: i64 = raw.call(&["HSET", "bridge:jobs:held", "99", "4"]).await;
        jobs.maintenance().tick().await.unwrap();
        check_invariants(&raw).await;
        assert_eq!(raw.set("bridge:jobs:active").await, [held[0].id().as_str()]);
        assert_eq!(jobs.stats().await.unwrap().active, 1);
        jobs.complete(&held[0], None, NO_TIME).await.unwrap();
        check_invariants(&raw).await;
    }

    async fn higher_priorities_go_first_and_within_one_the_longest_waiting(t: TestStore) {
        let jobs = queue(&t);
        let mut expected = Vec::new();
        for (n, priority) in [3, 9, 5, 9, 1, 10, 5, 7, 3, 8, 10].into_iter().enumerate() {
            // Types differ, so order holds across lanes.
            let id = put(&jobs, job(&format!("t{}", n % 3)).priority(priority)).await;
            expected.push((10 - priority, n, id));
        }
        expected.sort();
        let expected: Vec<JobId> = expected.into_iter().map(|(_, _, id)| id).collect();
        let mut w = worker(&jobs, "w1");
        let mut order = Vec::new();
        loop {
            let ids = take_ids(&mut w, 2).await;
            if ids.is_empty() {
                break;
            }
            order.extend(ids);
        }
        assert_eq!(order, expected);
        check_invariants(&Raw::of(&t)).await;
    }

    async fn a_worker_finds_its_job_behind_any_number_of_others(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let gpu = || job("render").target(JobTarget::default().capability("gpu"));
        let mut foreign = Vec::new();
        for outcome in jobs.dispatch_all((0..1_500).map(|_| gpu())).await {
            foreign.push(outcome.unwrap().id.to_string());
        }
        let mut mine = Vec::new();
        for _ in 0..300 {
            mine.push(put(&jobs, job("mail")).await);
        }
        for outcome in jobs.dispatch_all((0..1_500).map(|_| gpu())).await {
            foreign.push(outcome.unwrap().id.to_string());
        }
        let mut w = worker(&jobs, "w1");
        let mut order = Vec::new();
        for most in [1, 7, 32, 100, 128, 128] {
            order.extend(take_ids(&mut w, most).await);
        }
        assert_eq!(order, mine);
        check_invariants(&raw).await;
        assert_eq!(jobs.stats().await.unwrap().waiting, 3_000);
        let left = raw.list("bridge:jobs:waiting").await;
        let left: Vec<_> = left.into_iter().filter(|id| id != "-").collect();
        assert_eq!(left, foreign, "the others keep their order");
        // And the others are found behind the holes.
        let labels = Labels::new("w2").unwrap().capabilities(["gpu"]);
        let mut gpu = jobs.claimer(labels);
        let mut found = 0;
        while found < 3_000 {
            let ids = take_ids(&mut gpu, 128).await;
            assert!(!ids.is_empty(), "after {found}");
            for id in ids {
                assert_eq!(id.as_str(), foreign[found]);
                found += 1;
            }
        }
        assert!(raw.list("bridge:jobs:waiting").await.is_empty());
        check_invariants(&raw).await;
    }

    async fn a_named_worker_is_the_only_one(t: TestStore) {
        let jobs = queue(&t);
        let worker_id = jobs::WorkerId::parse("w2").unwrap();
        let id = put(&jobs, job("a").target(JobTarget::default().worker(&worker_id))).await;
        assert!(take_ids(&mut worker(&jobs, "w1"), 5).await.is_empty());
        assert_eq!(take_ids(&mut worker(&jobs, "w2"), 5).await, [id]);
    }

    async fn a_worker_of_some_types_leaves_the_others(t: TestStore) {
        let jobs = queue(&t);
        put(&jobs, job("a")).await;
        let b = put(&jobs, job("b")).await;
        let mut w = worker(&jobs, "w1").types([jobs::JobType::parse("b").unwrap()]);
        assert_eq!(take_ids(&mut w, 5).await, [b]);
        assert!(take_ids(&mut w, 5).await.is_empty());
    }

    async fn no_more_of_a_type_run_than_it_allows(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        for _ in 0..5 {
            put(&jobs, job("a").max_concurrent(2)).await;
        }
        let other = put(&jobs, job("b")).await;
        let mut w = worker(&jobs, "w1");
        let claimed = w.claim(10).await.unwrap();
        let ids: Vec<_> = claimed.leases.iter().map(|lease| lease.id().clone()).collect();
        assert_eq!(ids.len(), 3, "two of the type and the other one");
        assert_eq!(ids[2], other);
        assert!(take_ids(&mut worker(&jobs, "w2"), 10).await.is_empty());
        jobs.complete(&claimed.leases[0], None, NO_TIME).await.unwrap();
        assert_eq!(take_ids(&mut w, 10).await.len(), 1);
        check_invariants(&raw).await;
    }

    async fn no_more_of_a_type_start_in_any_minute_than_it_allows(t: TestStore) {
        let jobs = queue(&t);
        for _ in 0..7 {
            put(&jobs, job("a").max_per_minute(3)).await;
        }
        let mut w = worker(&jobs, "w1");
        assert_eq!(take_ids(&mut w, 2).await.len(), 2);
        t.clock.advance(Duration::from_secs(40));
        assert_eq!(take_ids(&mut w, 10).await.len(), 1);
        t.clock.advance(Duration::from_millis(19_999));
        let claimed = w.claim(10).await.unwrap();
        assert!(claimed.leases.is_empty());
        assert_eq!(claimed.wait, Some(Duration::from_millis(1)));
        t.clock.advance(Duration::from_millis(1));
        assert_eq!(take_ids(&mut w, 10).await.len(), 2, "the first two are a minute ago");
        t.clock.advance(Duration::from_secs(39));
        assert!(take_ids(&mut w, 10).await.is_empty());
        t.clock.advance(Duration::from_secs(1));
        assert_eq!(take_ids(&mut w, 10).await.len(), 1);
        check_invariants(&Raw::of(&t)).await;
    }

    async fn a_claim_whose_reply_got_lost_gets_the_same_jobs(t: TestStore) {
        // What a client does after a lost reply: the same request once more.
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        put(&jobs, job("a")).await;
        put(&jobs, job("a")).await;
        let mut w = worker(&jobs, "w1");
        let lease = take(&mut w).await;
        let requests: Option<String> =
            raw.call(&["HGET", "bridge:jobs:index", "r:w1"]).await;
        let request = requests.unwrap();
        let request = request.split('\n').next().unwrap().to_owned();
        w.repeat(&request);
        let again = take(&mut w).await;
        assert_eq!((again.id(), again.token), (lease.id(), lease.token));
        assert_eq!(raw.list("bridge:jobs:waiting").await.len(), 1);
        check_invariants(&raw).await;
    }

    async fn an_expired_job_does_not_start(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let at = jobs.now() + Duration::from_secs(5);
        let id = put(&jobs, job("a").expires_at(at)).await;
        let fine = put(&jobs, job("a")).await;
        t.clock.advance(Duration::from_secs(5));
        assert_eq!(take_ids(&mut worker(&jobs, "w1"), 5).await, [fine]);
        assert_eq!(raw.status(&id).await.as_deref(), Some("failed"));
        assert_eq!(raw.json(&format!("bridge:jobs:result:{id}")).await["error"]["name"], "Expired");
        check_invariants(&raw).await;
    }

    async fn many_workers_share_the_jobs_without_overlap(t: TestStore) {
        let jobs = queue(&t);
        for outcome in jobs.dispatch_all((0..400).map(|_| job("a"))).await {
            outcome.unwrap();
        }
        let mut all = Vec::new();
        let tasks: Vec<_> = (0..8)
            .map(|n| {
                let jobs = jobs.clone();
                tokio::spawn(async move {
                    let mut w = worker(&jobs, &format!("w{n}"));
                    let mut mine = Vec::new();
                    loop {
                        let claimed = w.claim(5).await.unwrap();
                        if claimed.leases.is_empty() {
                            return mine;
                        }
                        for lease in claimed.leases {
                            jobs.complete(&lease, None, NO_TIME).await.unwrap();
                            mine.push(lease.id().clone());
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            all.extend(task.await.unwrap());
        }
        assert_eq!(all.len(), 400);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 400, "each job once");
        check_invariants(&Raw::of(&t)).await;
    }
}

testkit::each_store! {
    async fn ten_thousand_types_are_claimed(t: TestStore) {
        let jobs = queue(&t);
        let all = (0..10_000).map(|n| job(&format!("type-{n}")));
        assert!(jobs.dispatch_all(all).await.iter().all(Result::is_ok));
        let mut w = worker(&jobs, "w1");
        assert_eq!(take_ids(&mut w, 128).await.len(), 128);
        jobs.pause(&JobType::parse("type-300").unwrap()).await.unwrap();
        assert!(take_ids(&mut w, 128).await.len() >= 127);
        // One that names a new type finds it soon.
        let last = put(&jobs, job("the-last")).await;
        let mut named = worker(&jobs, "w2").types([JobType::parse("the-last").unwrap()]);
        let (lease, wait) = (Duration::from_secs(30), Duration::from_secs(30));
        let found = named.claim_wait(1, lease, wait).await.unwrap();
        assert_eq!(found.leases[0].id(), &last);
    }

    async fn a_claim_costs_the_same_however_many_types_and_targets_there_are(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let labels = || Labels::new("w1").unwrap().capabilities(["gpu", "tenant-7"]).region("eu");
        let mut all = jobs.claimer(labels());
        let mut named = jobs.claimer(labels()).types([JobType::parse("own").unwrap()]);
        let mut before = None;
        for routes in [10, 2_000] {
            let new = (0..routes).flat_map(|n| {
                let target = jobs::JobTarget::default();
                let (foreign, mine) = (format!("tenant-x{n}"), target.clone().capability("gpu"));
                [
                    job(&format!("type-{n}")),
                    job("own").target(target.clone().capability(&foreign)),
                    job("own").target(target.worker(&jobs::WorkerId::parse(&foreign).unwrap())),
                    job("some").target(mine.capability(foreign).region("eu").region("us")),
                ]
            });
            assert!(Box::pin(jobs.dispatch_all(new)).await.iter().all(Result::is_ok));
            for _ in 0..9 {
                put(&jobs, job("own")).await;
            }
            // What is new is learnt once.
            assert_eq!(take_ids(&mut named, 1).await.len(), 1);
            assert_eq!(take_ids(&mut all, 1).await.len(), 1);
            let mut costs = Vec::new();
            for claimer in [&mut all, &mut named] {
                let start = commands(&raw).await;
                for _ in 0..8 {
                    assert_eq!(take_ids(claimer, 1).await.len(), 1);
                }
                costs.push(commands(&raw).await - start);
            }
            let before = before.get_or_insert_with(|| costs.clone());
            for (cost, before) in costs.iter().zip(before) {
                assert!(cost <= &mut (2 * *before), "{cost} commands, {before} with ten");
            }
            loop {
                let claimed = all.claim(128).await.unwrap();
                if claimed.leases.is_empty() && !claimed.more {
                    break;
                }
            }
            // Only what is for others is left.
            assert_eq!(jobs.stats().await.unwrap().waiting, if routes == 10 { 20 } else { 4_020 });
        }
    }

    async fn order_is_exact_over_many_types_targets_and_priorities(t: TestStore) {
        let jobs = queue(&t);
        fastrand::seed(7);
        let labels = Labels::new("w1").unwrap().capabilities(["a", "b"]).stack("rust").region("eu");
        let mut all = jobs.claimer(labels.clone());
        let few = ["t0", "t1"].map(|job_type| JobType::parse(job_type).unwrap());
        let many: Vec<JobType> =
            (0..20).map(|n| JobType::parse(format!("t{}", 2 * n)).unwrap()).collect();
        let mut of_few = jobs.claimer(labels.clone()).types(few.clone());
        let mut of_many = jobs.claimer(labels.clone()).types(many.clone());
        let mut line: Vec<(u8, usize, JobId, String)> = Vec::new();
        let mut count = 0;
        for _ in 0..60 {
            for _ in 0..fastrand::usize(0..40) {
                let list = |from: &[&str]| -> Vec<String> {
                    let some = from.iter().filter(|_| fastrand::usize(0..4) == 0);
                    some.map(ToString::to_string).collect()
                };
                let target = jobs::JobTarget {
                    capabilities: list(&["a", "b", "c"]),
                    stack: list(&["rust", "node"]),
                    region: list(&["eu", "us"]),
                    mode: if fastrand::bool() { jobs::MatchMode::Any } else { jobs::MatchMode::All },
                    ..jobs::JobTarget::default()
                };
                let (priority, job_type) =
                    (fastrand::u8(1..=10), format!("t{}", fastrand::usize(0..40)));
                let matches = target.matches(&labels);
                let id = put(&jobs, job(&job_type).priority(priority).target(target)).await;
                if matches {
                    line.push((10 - priority, count, id, job_type));
                }
                count += 1;
            }
            line.sort();
            let most = fastrand::usize(1..12);
            let (claimer, types): (_, Option<&[JobType]>) = match fastrand::usize(0..3) {
                0 => (&mut all, None),
                1 => (&mut of_few, Some(&few)),
                _ => (&mut of_many, Some(&many)),
            };
            let wanted = |job_type: &str| types.is_none_or(|types| types.iter().any(|t| t == job_type));
            let expected: Vec<JobId> = line
                .iter()
                .filter(|(_, _, _, job_type)| wanted(job_type))
                .map(|(_, _, id, _)| id.clone())
                .take(most)
                .collect();
            assert_eq!(take_ids(claimer, most).await, expected);
            line.retain(|(_, _, id, _)| !expected.contains(id));
        }
        check_invariants(&Raw::of(&t)).await;
    }

    async fn types_at_their_limit_do_not_hide_what_may_start(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let limited = |n: usize| job(&format!("limited-{n}")).max_concurrent(1);
        for _ in 0..2 {
            let all = (0..400).map(limited);
            assert!(jobs.dispatch_all(all).await.iter().all(Result::is_ok));
        }
        let free = put(&jobs, job("free")).await;
        let mut w = worker(&jobs, "w1");
        let mut held = Vec::new();
        loop {
            let claimed = w.claim(64).await.unwrap();
            if claimed.leases.is_empty() && !claimed.more {
                break;
            }
            held.extend(claimed.leases);
        }
        assert_eq!(held.len(), 401, "one of each, and what has no limit");
        assert!(held.iter().any(|lease| *lease.id() == free));
        let start = commands(&raw).await;
        assert!(take_ids(&mut w, 1).await.is_empty());
        let idle = commands(&raw).await - start;
        assert!(idle < 60, "{idle} commands to see that all are at their limit");
        // A place that is given back is taken at once, whichever it is.
        let done = held.iter().find(|lease| lease.job.job_type == "limited-333").unwrap();
        jobs.complete(done, None, NO_TIME).await.unwrap();
        let next = take(&mut w).await;
        assert_eq!(next.job.job_type, "limited-333");
        // A v1 worker gives a place back without a word; maintenance sees it.
        let job_type = "bridge:ratelimit:concurrent:limited-5";
        let _: i64 = raw.call(&["DECR", job_type]).await;
        assert!(take_ids(&mut w, 1).await.is_empty());
        let maintenance = jobs.maintenance();
        for _ in 0..4 {
            maintenance.tick().await.unwrap();
        }
        let next = take(&mut w).await;
        assert_eq!(next.job.job_type, "limited-5");
    }

    async fn a_paused_type_is_put_aside_and_comes_back_in_its_order(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let job_type = |name: &str| JobType::parse(name).unwrap();
        let paused = [put(&jobs, job("p")).await, put(&jobs, job("p").priority(9)).await];
        let other = put(&jobs, job("o")).await;
        jobs.pause(&job_type("p")).await.unwrap();
        let mut w = worker(&jobs, "w1");
        assert_eq!(take_ids(&mut w, 9).await, [other]);
        assert!(take_ids(&mut w, 9).await.is_empty());
        let later = put(&jobs, job("o").priority(5)).await;
        jobs.resume(&job_type("p")).await.unwrap();
        assert_eq!(take_ids(&mut w, 1).await, [paused[1].clone()]);
        // Programs that know only the documented keys resume a type too.
        jobs.pause(&job_type("p")).await.unwrap();
        assert_eq!(take_ids(&mut w, 9).await, [later]);
        let _: i64 = raw.call(&["SREM", "bridge:queues:paused", "p"]).await;
        jobs.maintenance().tick().await.unwrap();
        assert_eq!(take_ids(&mut w, 9).await, [paused[0].clone()]);
    }

    async fn jobs_of_more_pools_than_one_call_looks_at_are_all_found(t: TestStore) {
        let jobs = queue(&t);
        let names: Vec<String> = (0..40).map(|n| format!("c{n}")).collect();
        let mut count = 0;
        for (n, a) in names.iter().enumerate() {
            for b in names.iter().skip(n + 1) {
                let target = jobs::JobTarget::default().capability(a).capability(b).all();
                put(&jobs, job("x").target(target)).await;
                count += 1;
            }
        }
        let mut w = jobs.claimer(Labels::new("w1").unwrap().capabilities(&names));
        let mut found = 0;
        loop {
            let claimed = w.claim(50).await.unwrap();
            found += claimed.leases.len();
            if claimed.leases.is_empty() && !claimed.more {
                break;
            }
        }
        assert_eq!(found, count);
    }
}

/// How many commands the store has run, those of scripts included.
async fn commands(raw: &Raw) -> u64 {
    let info: String = raw.call(&["INFO", "commandstats"]).await;
    let calls = info.lines().filter_map(|line| line.split_once("calls=")?.1.split(',').next());
    calls.map(|calls| calls.parse::<u64>().unwrap()).sum()
}
