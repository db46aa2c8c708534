//! Who gets which job, and in which order.

use std::time::Duration;

use jobs::{JobId, Labels, Target};

use crate::support::*;

testkit::each_store! {
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
        let gpu = || job("render").target(Target::default().capability("gpu"));
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
        let server = jobs::ServerId::parse("w2").unwrap();
        let id = put(&jobs, job("a").target(Target::default().server(&server))).await;
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
