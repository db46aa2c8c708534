//! Units drawn ahead: never more than the limit, and what is not spent comes back.

use std::time::Duration;

use desk::{
    Identity,
    limit::{LimitAlgorithm, Limiter, Policy},
};
use testkit::each_store;

use crate::support::{SECOND, calendar, limiter, policy};

const DRAWN: u64 = 10;

fn hot() -> Identity {
    Identity::user("hot")
}

fn prepaid(limit: u64) -> [Policy; 3] {
    [LimitAlgorithm::Counter, LimitAlgorithm::Bucket { burst: None }, calendar()]
        .map(|algorithm| policy("hot", algorithm, limit).with_prepay(10).unwrap())
}

async fn allowed(limiters: &[Limiter], policy: &Policy, hits: usize) -> u64 {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..hits {
        let (limiter, policy) = (limiters[number % limiters.len()].clone(), policy.clone());
        tasks.spawn(async move { limiter.check(&hot(), &[&policy], 1).await.unwrap().allowed });
    }
    tasks.join_all().await.into_iter().map(u64::from).sum()
}

each_store! {
    async fn two_instances_allow_at_most_the_limit_and_at_least_all_but_what_they_hold(t: TestStore) {
        for policy in prepaid(100) {
            let two = [limiter(&t.store), limiter(&t.another().await)];
            let count = allowed(&two, &policy, 1_000).await;
            assert!((100 - 2 * DRAWN..=100).contains(&count), "{count}: {policy:?}");
        }
    }

    async fn a_hot_identity_costs_a_call_per_draw(t: TestStore) {
        for policy in prepaid(1_000) {
            let limiter = limiter(&t.store);
            let first = limiter.check(&hot(), &[&policy], 1).await.unwrap();
            assert_eq!(first.limits[0].remaining, 999);
            // Nine more are in process: the store may be away.
            t.faults.go_away();
            for left in (990..999).rev() {
                let decision = limiter.check(&hot(), &[&policy], 1).await.unwrap();
                assert!(decision.allowed && !decision.degraded);
                assert_eq!(decision.limits[0].remaining, left, "{policy:?}");
            }
            assert!(limiter.check(&hot(), &[&policy], 1).await.unwrap().degraded, "the eleventh asks");
            t.faults.come_back();
        }
    }

    async fn units_not_spent_within_a_second_come_back_and_are_not_spent_later(t: TestStore) {
        for policy in prepaid(20) {
            let (here, there) = (limiter(&t.store), limiter(&t.another().await));
            assert!(here.check(&hot(), &[&policy], 1).await.unwrap().allowed);
            assert_eq!(there.peek(&hot(), &[&policy]).await.unwrap().limits[0].remaining, 10);
            assert_eq!(here.give_back(false).await, 0, "not yet");
            t.clock.advance(SECOND);
            t.faults.lose_next_replies(1);
            here.give_back(false).await;
            assert_eq!(here.give_back(false).await, 0, "once");
            let free = there.peek(&hot(), &[&policy]).await.unwrap().limits[0].remaining;
            // A second of 20 a minute is a third of a unit.
            assert_eq!(free, 19, "{policy:?}");
            assert_eq!(allowed(&[here, there], &policy, 50).await, 19, "{policy:?}");
            t.clock.advance(Duration::from_secs(86_400));
        }
    }

    async fn an_instance_that_dies_takes_its_units_with_it(t: TestStore) {
        for policy in prepaid(30) {
            let (dies, lives) = (limiter(&t.store), limiter(&t.another().await));
            let before = allowed(&[dies], &policy, 3).await;
            let after = allowed(&[lives], &policy, 100).await;
            assert_eq!((before, after), (3, 20), "{policy:?}");
        }
    }

    async fn a_stop_gives_everything_back(t: TestStore) {
        for policy in prepaid(30) {
            let (stops, stays) = (limiter(&t.store), limiter(&t.another().await));
            assert_eq!(allowed(std::slice::from_ref(&stops), &policy, 3).await, 3);
            let cancel = tokio_util::sync::CancellationToken::new();
            cancel.cancel();
            stops.run(cancel).await;
            assert_eq!(allowed(&[stays], &policy, 100).await, 27, "{policy:?}");
        }
    }

    async fn a_unit_of_one_calendar_period_is_not_spent_in_the_next(t: TestStore) {
        let policy = policy("daily", calendar(), 10).with_prepay(10).unwrap();
        let limiter = limiter(&t.store);
        // The test starts at one in the morning in Berlin: go to just before midnight.
        t.clock.advance(Duration::from_millis(23 * 3_600_000 - 100));
        assert!(limiter.check(&hot(), &[&policy], 1).await.unwrap().allowed);
        t.clock.advance(Duration::from_millis(100));
        let mut next_day = 0;
        for _ in 0..30 {
            next_day += u64::from(limiter.check(&hot(), &[&policy], 1).await.unwrap().allowed);
        }
        assert_eq!(next_day, 10, "a whole day's, and not the nine left of yesterday");
    }
}
