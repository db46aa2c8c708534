//! Rate limits by policy, on every store. The numbers in brackets are those of the list of traps.

use std::time::Duration;

use desk::{
    Error, Identity, PolicyName, Prefix,
    limit::{LimitAlgorithm, Policy, PolicyBook, PolicySpec, WhenStoreDown},
};
use store::redis::AsyncCommands;
use testkit::each_store;

use crate::support::{MINUTE, SECOND, algorithms, limit_key, limiter, policy};

fn somebody() -> Identity {
    Identity::raw("192.168.1.100").unwrap()
}

each_store! {
    async fn a_change_is_seen_at_once_whoever_changes_something_meanwhile(t: TestStore) {
        let named = |name: String| PolicySpec { name, limit: 5, window_ms: 1_000, ..PolicySpec::default() };
        // Many, so that it takes a while to make a copy of what was read.
        let defaults = (0..500).map(|number| named(format!("default-{number}"))).collect();
        let book = PolicyBook::new(&t.store, &Prefix::default(), defaults, SECOND).unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..4 {
            let book = book.clone();
            tasks.spawn(async move {
                for number in 0..50 {
                    let name = PolicyName::parse(&format!("p-{writer}-{number}")).unwrap();
                    assert!(book.put(&named(name.to_string())).await.unwrap());
                    assert!(book.find(&name).is_some(), "{name} was stored");
                    assert!(book.remove(&name).await.unwrap());
                    assert!(book.find(&name).is_none(), "{name} was removed");
                }
            });
        }
        tasks.spawn(async move {
            let name = PolicyName::parse("default-0").unwrap();
            for _ in 0..500 {
                book.block(&name, &somebody(), MINUTE).await.unwrap();
                assert_eq!(book.blocks(&name).len(), 1, "it blocks");
                assert!(book.unblock(&name, &somebody()).await.unwrap());
                assert_eq!(book.blocks(&name), [], "it no longer does");
            }
        });
        tasks.join_all().await;
    }

    // R1, R2
    async fn of_a_thousand_concurrent_hits_exactly_the_limit_is_allowed(t: TestStore) {
        let mut instances = Vec::new();
        for store in [t.store.clone(), t.another().await, t.another().await, t.another().await] {
            instances.push(limiter(&store));
        }
        for algorithm in algorithms() {
            let policy = policy("api", algorithm, 100);
            let mut tasks = tokio::task::JoinSet::new();
            for number in 0..1_000 {
                let (limiter, policy) = (instances[number % 4].clone(), policy.clone());
                tasks.spawn(async move {
                    let decision = limiter.check(&somebody(), &[&policy], 1).await.unwrap();
                    assert!(!decision.degraded);
                    decision.allowed
                });
            }
            let allowed = tasks.join_all().await.into_iter().filter(|allowed| *allowed).count();
            assert_eq!(allowed, 100, "{policy:?}");
        }
    }

    // R3
    async fn charging_one_policy_leaves_every_other_unchanged(t: TestStore) {
        let limiter = limiter(&t.store);
        for algorithm in algorithms() {
            let (api, login) = (policy("api", algorithm.clone(), 10), policy("login", algorithm.clone(), 2));
            let bare = policy("", algorithm, 5);
            for _ in 0..3 {
                limiter.check(&somebody(), &[&login], 1).await.unwrap();
            }
            assert!(!limiter.check(&somebody(), &[&login], 1).await.unwrap().allowed);
            for (policy, free) in [(&api, 10), (&bare, 5)] {
                let seen = limiter.peek(&somebody(), &[policy]).await.unwrap();
                assert_eq!(seen.limits[0].remaining, free, "{policy:?}");
            }
            let other = limiter.check(&Identity::user("9"), &[&login], 1).await.unwrap();
            assert_eq!(other.limits[0].remaining, 1, "another identity has its own");
        }
    }

    // R4
    async fn a_thousand_denied_hits_write_nothing(t: TestStore) {
        let mut store = t.store.clone();
        for (algorithm, name) in [(LimitAlgorithm::Fixed, "rate_limit"), (LimitAlgorithm::Sliding, "sliding_limit")] {
            let policy = policy("", algorithm, 3);
            let key = limit_key(&t.store, name, &somebody(), "");
            for round in 0..1_000 {
                // A limiter of its own remembers no denial.
                limiter(&t.store).check(&somebody(), &[&policy], 1).await.unwrap();
                if round % 100 == 3 {
                    let count: usize = store.zcard(&key).await.unwrap();
                    assert_eq!(count, 3);
                }
            }
            assert_eq!(store.zcard::<_, usize>(&key).await.unwrap(), 3);
        }
    }

    // R6
    async fn a_window_below_a_second_has_a_key_that_goes_by_itself(t: TestStore) {
        let window = Duration::from_millis(500);
        for (algorithm, name) in [
            (LimitAlgorithm::Fixed, "rate_limit"),
            (LimitAlgorithm::Sliding, "sliding_limit"),
            (LimitAlgorithm::Counter, "counter_limit"),
            (LimitAlgorithm::Bucket { burst: None }, "bucket_limit"),
            (LimitAlgorithm::Concurrent, "concurrent_limit"),
        ] {
            let policy = Policy::new(None, algorithm, 3, window).unwrap();
            let policy = policy.when_store_down(WhenStoreDown::Closed, 10 * SECOND).unwrap();
            assert!(limiter(&t.store).check(&somebody(), &[&policy], 1).await.unwrap().allowed);
            let ttl: i64 = t.store.clone().pttl(limit_key(&t.store, name, &somebody(), "")).await.unwrap();
            assert!(ttl > 0 && ttl <= 2_000, "{name}: {ttl}");
        }
    }

    // R12
    async fn who_waits_as_told_is_allowed_also_when_told_from_memory(t: TestStore) {
        for algorithm in algorithms() {
            if matches!(algorithm, LimitAlgorithm::Calendar { .. }) {
                continue;
            }
            let (limiter, policy) = (limiter(&t.store), policy("w", algorithm, 2));
            for _ in 0..2 {
                assert!(limiter.check(&somebody(), &[&policy], 1).await.unwrap().allowed);
                t.clock.advance(Duration::from_millis(1_234));
            }
            let first = limiter.check(&somebody(), &[&policy], 1).await.unwrap();
            assert!(!first.allowed && first.retry_after() > Duration::ZERO, "{policy:?}");
            let step = Duration::from_millis(300);
            t.clock.advance(step);
            let second = limiter.check(&somebody(), &[&policy], 1).await.unwrap();
            assert_eq!(second.retry_after(), first.retry_after() - step, "{policy:?}");
            assert!(second.limits[0].reset <= second.retry_after(), "{policy:?}");
            t.clock.advance(second.retry_after() - Duration::from_millis(1));
            assert!(!limiter.check(&somebody(), &[&policy], 1).await.unwrap().allowed, "{policy:?}");
            t.clock.advance(Duration::from_millis(1));
            assert!(limiter.check(&somebody(), &[&policy], 1).await.unwrap().allowed, "{policy:?}");
        }
    }

    async fn a_reset_elsewhere_ends_a_remembered_denial_within_a_second(t: TestStore) {
        let (here, there) = (limiter(&t.store), limiter(&t.another().await));
        let policy = policy("login", LimitAlgorithm::Sliding, 1);
        assert!(here.check(&somebody(), &[&policy], 1).await.unwrap().allowed);
        assert!(!here.check(&somebody(), &[&policy], 1).await.unwrap().allowed);
        there.reset(&somebody(), &policy).await.unwrap();
        t.clock.advance(SECOND);
        assert!(here.check(&somebody(), &[&policy], 1).await.unwrap().allowed);
        // One made here ends it at once.
        assert!(!here.check(&somebody(), &[&policy], 1).await.unwrap().allowed);
        here.reset(&somebody(), &policy).await.unwrap();
        assert!(here.check(&somebody(), &[&policy], 1).await.unwrap().allowed);
    }

    async fn a_request_repeated_under_its_id_stays_allowed_and_counts_once(t: TestStore) {
        let limiter = limiter(&t.store);
        let policy = policy("once", LimitAlgorithm::Sliding, 2);
        for _ in 0..3 {
            let decision = limiter.check_as("order-1", &somebody(), &[&policy], 1).await.unwrap();
            assert_eq!((decision.allowed, decision.limits[0].remaining), (true, 1));
        }
        assert!(limiter.check(&somebody(), &[&policy], 1).await.unwrap().allowed);
        assert!(!limiter.check(&somebody(), &[&policy], 1).await.unwrap().allowed);
        assert!(limiter.check_as("order-1", &somebody(), &[&policy], 1).await.unwrap().allowed);
        for bad in ["", &"x".repeat(129)] {
            assert!(limiter.check_as(bad, &somebody(), &[&policy], 1).await.is_err());
        }
    }

    // R13
    async fn a_request_denied_by_one_policy_is_charged_to_none(t: TestStore) {
        let limiter = limiter(&t.store);
        let [organisation, project, key] = [
            policy("organisation", LimitAlgorithm::Counter, 100),
            policy("project", LimitAlgorithm::Bucket { burst: None }, 10),
            policy("key", LimitAlgorithm::Sliding, 2),
        ];
        let all = [&organisation, &project, &key];
        for left in [1, 0] {
            let decision = limiter.check(&somebody(), &all, 1).await.unwrap();
            assert!(decision.allowed);
            assert_eq!(decision.limits[2].remaining, left);
        }
        for _ in 0..5 {
            let decision = limiter.check(&somebody(), &all, 1).await.unwrap();
            assert!(!decision.allowed);
            let left: Vec<u64> = decision.limits.iter().map(|limit| limit.remaining).collect();
            assert_eq!(left, [98, 8, 0]);
            assert_eq!(decision.retry_after(), decision.limits[2].retry_after);
        }
    }

    // R11
    async fn a_store_out_of_reach_is_decided_by_the_policy_and_recovers(t: TestStore) {
        let limiter = limiter(&t.store);
        let down = |then| policy("d", LimitAlgorithm::Sliding, 2).when_store_down(then, 10 * SECOND).unwrap();
        let (open, local, closed) =
            (down(WhenStoreDown::Open), down(WhenStoreDown::Local), down(WhenStoreDown::Closed));
        t.faults.go_away();
        for number in 0..4 {
            let decision = limiter.check(&somebody(), &[&open], 1).await.unwrap();
            assert!(decision.allowed && decision.degraded);
            let decision = limiter.check(&somebody(), &[&closed], 1).await.unwrap();
            assert!(!decision.allowed && decision.degraded && decision.retry_after() >= SECOND);
            let decision = limiter.check(&somebody(), &[&local], 1).await.unwrap();
            assert_eq!((decision.allowed, decision.degraded), (number < 2, true), "still limits by itself");
        }
        assert_eq!(limiter.stats()[&local.name().cloned()].degraded, 12);
        t.faults.come_back();
        let decision = limiter.check(&somebody(), &[&local], 1).await.unwrap();
        assert!(decision.allowed && !decision.degraded, "no restart is needed");
        assert_eq!(decision.limits[0].remaining, 1);
    }

    async fn a_shadow_policy_denies_nothing_while_the_store_is_away(t: TestStore) {
        let limiter = limiter(&t.store);
        let local = |policy: Policy| policy.when_store_down(WhenStoreDown::Local, 10 * SECOND).unwrap();
        let api = local(policy("api", LimitAlgorithm::Counter, 3));
        let trial = local(policy("trial", LimitAlgorithm::Counter, 1)).in_shadow();
        t.faults.go_away();
        for number in 0..4 {
            let decision = limiter.check(&somebody(), &[&api, &trial], 1).await.unwrap();
            assert_eq!((decision.allowed, decision.degraded), (number < 3, true), "request {number}");
        }
        assert_eq!(limiter.stats()[&trial.name().cloned()].shadow, 2, "counted while allowed by the other");
    }

    // R11
    async fn a_slow_store_costs_at_most_the_timeout(t: TestStore) {
        let limiter = limiter(&t.store);
        let quick = policy("q", LimitAlgorithm::Counter, 5);
        let quick = quick.when_store_down(WhenStoreDown::Open, Duration::from_millis(50)).unwrap();
        t.faults.delay(Duration::from_secs(200));
        let started = tokio::time::Instant::now();
        let decision = limiter.check(&somebody(), &[&quick], 1).await.unwrap();
        assert!(decision.allowed && decision.degraded);
        assert!(started.elapsed() < testkit::HANG, "{:?}", started.elapsed());
        t.faults.come_back();
    }

    async fn a_shadow_policy_counts_and_never_denies(t: TestStore) {
        let limiter = limiter(&t.store);
        let shadow = policy("shadow", LimitAlgorithm::Counter, 2).in_shadow();
        let real = policy("real", LimitAlgorithm::Counter, 4);
        for number in 0..4 {
            let decision = limiter.check(&somebody(), &[&shadow, &real], 1).await.unwrap();
            assert!(decision.allowed && decision.retry_after() == Duration::ZERO, "{number}");
        }
        assert!(!limiter.check(&somebody(), &[&shadow, &real], 1).await.unwrap().allowed);
        assert!(limiter.check(&somebody(), &[&shadow], 1).await.unwrap().allowed, "alone, too");
        let stats = limiter.stats();
        assert_eq!(stats[&shadow.name().cloned()].shadow, 3);
        assert_eq!((stats[&real.name().cloned()].allowed, stats[&real.name().cloned()].denied), (4, 1));
        assert_eq!(stats[&real.name().cloned()].near, 1, "the last of four");
    }

    async fn an_override_gives_one_identity_a_limit_of_its_own(t: TestStore) {
        let limiter = limiter(&t.store);
        let vip = Identity::user("vip");
        for algorithm in algorithms() {
            let policy = policy("o", algorithm, 1).with_override(vip.clone(), 3).unwrap();
            let mut allowed = 0;
            for _ in 0..5 {
                allowed += u32::from(limiter.check(&vip, &[&policy], 1).await.unwrap().allowed);
            }
            assert_eq!(allowed, 3);
            let other = limiter.check(&Identity::user("x"), &[&policy], 1).await.unwrap();
            assert_eq!((other.allowed, other.limits[0].limit, other.limits[0].remaining), (true, 1, 0));
        }
    }

    async fn a_request_is_refunded_once(t: TestStore) {
        let limiter = limiter(&t.store);
        for algorithm in algorithms() {
            let policy = policy("r", algorithm, 5);
            let charged = t.store.now();
            let decision = limiter.check(&somebody(), &[&policy], 4).await.unwrap();
            assert!(!limiter.check(&somebody(), &[&policy], 4).await.unwrap().allowed);
            for _ in 0..3 {
                limiter.refund(&somebody(), &policy, &decision.request_id, 4, charged).await.unwrap();
            }
            let seen = limiter.check(&somebody(), &[&policy], 4).await.unwrap();
            assert_eq!((seen.allowed, seen.limits[0].remaining), (true, 1), "{policy:?}");
        }
    }

    async fn leases_are_acquired_renewed_and_released(t: TestStore) {
        let limiter = limiter(&t.store);
        let policy = policy("downloads", LimitAlgorithm::Concurrent, 1);
        let first = limiter.check(&somebody(), &[&policy], 1).await.unwrap();
        assert!(!limiter.check(&somebody(), &[&policy], 1).await.unwrap().allowed);
        t.clock.advance(50 * SECOND);
        assert!(limiter.renew(&somebody(), &policy, &first.request_id, 1).await.unwrap());
        t.clock.advance(50 * SECOND);
        assert!(!limiter.check(&somebody(), &[&policy], 1).await.unwrap().allowed);
        assert_eq!(limiter.release(&somebody(), &policy, &first.request_id, 1).await.unwrap(), 1);
        assert!(limiter.check(&somebody(), &[&policy], 1).await.unwrap().allowed, "at once");
        t.clock.advance(MINUTE);
        assert!(limiter.check(&somebody(), &[&policy], 1).await.unwrap().allowed, "expired");
    }

    async fn bad_input_is_refused_and_nothing_is_charged(t: TestStore) {
        let limiter = limiter(&t.store);
        let (api, copy) = (policy("api", LimitAlgorithm::Counter, 5), policy("api", LimitAlgorithm::Counter, 5));
        let many: Vec<Policy> =
            (0..17).map(|number| policy(&format!("p{number}"), LimitAlgorithm::Counter, 5)).collect();
        let many: Vec<&Policy> = many.iter().collect();
        for (policies, cost) in [(vec![], 1), (vec![&api], 6), (vec![&api, &copy], 1), (many, 1)] {
            let error = limiter.check(&somebody(), &policies, cost).await.unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        }
        let left: Vec<String> = store::redis::cmd("KEYS").arg("*").query_async(&mut t.store.clone()).await.unwrap();
        assert_eq!(left, Vec::<String>::new());
    }
}

// R5
#[test]
fn a_policy_that_cannot_be_kept_is_refused_and_says_what_to_use() {
    let name = || Some(PolicyName::parse("p").unwrap());
    let hour = Duration::from_secs(3_600);
    for algorithm in [LimitAlgorithm::Fixed, LimitAlgorithm::Sliding] {
        assert!(Policy::new(name(), algorithm.clone(), 1_000, hour).is_ok());
        let error = Policy::new(name(), algorithm, 1_001, hour).unwrap_err();
        assert!(error.to_string().contains("use a counter"), "{error}");
    }
    for algorithm in algorithms() {
        assert!(Policy::new(name(), algorithm.clone(), 0, hour).is_err(), "{algorithm:?}");
        if !matches!(algorithm, LimitAlgorithm::Calendar { .. }) {
            for window in [Duration::ZERO, Duration::from_secs(367 * 86_400)] {
                assert!(
                    Policy::new(name(), algorithm.clone(), 5, window).is_err(),
                    "{algorithm:?}"
                );
            }
        }
        let prepay = Policy::new(name(), algorithm.clone(), 5, hour).unwrap().with_prepay(2);
        let can = !matches!(
            algorithm,
            LimitAlgorithm::Fixed | LimitAlgorithm::Sliding | LimitAlgorithm::Concurrent
        );
        assert_eq!(prepay.is_ok(), can, "{algorithm:?}");
    }
}
