//! Rate limits: exactness, all or nothing, waiting times, unique members.
#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use std::time::Duration;

use store::{
    Error, Key, Millis, Store,
    limit::{self, Charge, LimitVerdict, Rule},
    redis::AsyncCommands,
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

async fn take(store: &Store, id: &str, rule: Rule) -> LimitVerdict {
    limit::take(store, id, &[Charge::one(Key::raw("l"), rule)]).await.unwrap()
}

fn rules() -> [Rule; 4] {
    [
        Rule::Window { limit: 5, window: MINUTE },
        Rule::Counter { limit: 5, window: MINUTE },
        Rule::Fixed { limit: 5, window: MINUTE },
        Rule::Bucket { burst: 5, count: 5, per: MINUTE },
    ]
}

testkit::each_store! {
    async fn what_is_free_goes_down_to_none_and_no_further(t: TestStore) {
        for rule in rules() {
            limit::reset(&t.store, &Key::raw("l")).await.unwrap();
            for left in (0..5).rev() {
                let verdict = take(&t.store, &format!("r{left}"), rule).await;
                assert!(verdict.allowed, "{rule:?}");
                assert_eq!((verdict.limits[0].limit, verdict.limits[0].remaining), (5, left), "{rule:?}");
            }
            for _ in 0..3 {
                let verdict = take(&t.store, "late", rule).await;
                assert!(!verdict.allowed, "{rule:?}");
                assert_eq!(verdict.limits[0].remaining, 0);
                assert!(verdict.retry() > Duration::ZERO);
            }
        }
    }

    async fn one_who_waits_as_told_is_allowed_and_not_a_millisecond_earlier(t: TestStore) {
        for rule in rules() {
            for cost in [1, 2, 5] {
                limit::reset(&t.store, &Key::raw("l")).await.unwrap();
                for number in 0..5 {
                    take(&t.store, &format!("{cost}-{number}"), rule).await;
                    t.clock.advance(Duration::from_millis(1_370));
                }
                let charge = [Charge { key: Key::raw("l"), rule, cost }];
                let verdict = limit::take(&t.store, &format!("again{cost}"), &charge).await.unwrap();
                if verdict.allowed {
                    continue;
                }
                let wait = verdict.retry();
                t.clock.advance(wait - Duration::from_millis(1));
                let early = limit::take(&t.store, &format!("early{cost}"), &charge).await.unwrap();
                assert!(!early.allowed, "{rule:?} cost {cost}: told {wait:?}");
                assert_eq!(early.retry(), Duration::from_millis(1), "{rule:?} cost {cost}");
                t.clock.advance(Duration::from_millis(1));
                let due = limit::take(&t.store, &format!("due{cost}"), &charge).await.unwrap();
                assert!(due.allowed, "{rule:?} cost {cost}: told {wait:?}, then {:?}", due.retry());
            }
        }
    }

    async fn the_next_unit_comes_when_told(t: TestStore) {
        for rule in rules() {
            limit::reset(&t.store, &Key::raw("l")).await.unwrap();
            let looked = limit::take(&t.store, "look", &[Charge { key: Key::raw("l"), rule, cost: 0 }]).await.unwrap();
            assert_eq!(looked.limits[0].next, Duration::ZERO, "{rule:?}: all are free");
            take(&t.store, "a", rule).await;
            t.clock.advance(Duration::from_millis(777));
            let state = take(&t.store, "b", rule).await.limits[0];
            let look = async || {
                limit::take(&t.store, "look", &[Charge { key: Key::raw("l"), rule, cost: 0 }]).await.unwrap().limits[0]
            };
            assert_eq!(look().await.next, state.next, "{rule:?}: looking changes nothing");
            t.clock.advance(state.next - Duration::from_millis(1));
            assert_eq!(look().await.remaining, state.remaining, "{rule:?}");
            t.clock.advance(Duration::from_millis(1));
            assert!(look().await.remaining > state.remaining, "{rule:?}");
        }
    }

    async fn of_many_at_once_exactly_the_limit_is_allowed(t: TestStore) {
        let other = t.another().await;
        for (number, rule) in [
            Rule::Window { limit: 100, window: MINUTE },
            Rule::Counter { limit: 100, window: MINUTE },
            Rule::Fixed { limit: 100, window: MINUTE },
            Rule::Bucket { burst: 100, count: 1, per: MINUTE },
        ].into_iter().enumerate() {
            let mut tasks = tokio::task::JoinSet::new();
            for request in 0..400 {
                let store = if request % 2 == 0 { t.store.clone() } else { other.clone() };
                let key = Key::raw(format!("l{number}"));
                tasks.spawn(async move {
                    limit::take(&store, &request.to_string(), &[Charge::one(key, rule)]).await.unwrap().allowed
                });
            }
            let allowed = tasks.join_all().await.into_iter().filter(|allowed| *allowed).count();
            assert_eq!(allowed, 100, "{rule:?}: all within one millisecond");
        }
    }

    async fn any_window_holds_at_most_the_limit(t: TestStore) {
        let rule = Rule::Window { limit: 7, window: SECOND };
        let mut random = fastrand::Rng::with_seed(7);
        let mut allowed: Vec<i64> = Vec::new();
        for number in 0..400 {
            t.clock.advance(Duration::from_millis(random.u64(0..200)));
            if take(&t.store, &number.to_string(), rule).await.allowed {
                allowed.push(t.clock.now().0);
            }
        }
        assert!(allowed.len() > 100);
        for end in &allowed {
            let inside = allowed.iter().filter(|at| **at > end - 1_000 && *at <= end).count();
            assert!(inside <= 7, "{inside} in the window that ends at {end}");
        }
    }

    async fn a_bucket_gives_burst_and_rate_exactly(t: TestStore) {
        // 7 per 3 seconds divides into nothing round; after an hour not one is missing or too many.
        let rule = Rule::Bucket { burst: 4, count: 7, per: Duration::from_secs(3) };
        let mut random = fastrand::Rng::with_seed(11);
        let start = t.clock.now();
        let mut allowed = 0;
        let mut number = 0;
        while t.clock.now().since(start) < Duration::from_secs(60) {
            t.clock.advance(Duration::from_millis(random.u64(1..100)));
            number += 1;
            allowed += i64::from(take(&t.store, &number.to_string(), rule).await.allowed);
            let elapsed = t.clock.now().0 - start.0;
            assert!(allowed <= 4 + elapsed * 7 / 3_000, "{allowed} after {elapsed} ms");
        }
        // Asked far more often than the rate, so all that came was taken.
        assert!(allowed >= 4 + 60_000 * 7 / 3_000 - 1, "{allowed}");
    }

    async fn a_refused_request_is_charged_nowhere(t: TestStore) {
        let wide = Rule::Window { limit: 10, window: MINUTE };
        let narrow = Rule::Bucket { burst: 1, count: 1, per: MINUTE };
        let charges = [Charge::one(Key::raw("{t}wide"), wide), Charge::one(Key::raw("{t}narrow"), narrow)];
        let first = limit::take(&t.store, "1", &charges).await.unwrap();
        assert!(first.allowed);
        let second = limit::take(&t.store, "2", &charges).await.unwrap();
        assert!(!second.allowed);
        assert_eq!(second.limits[0].remaining, 9, "the wide one has lost nothing");
        assert_eq!((second.limits[0].retry, second.limits[1].retry), (Duration::ZERO, MINUTE));
        assert_eq!(second.retry(), MINUTE);
        assert_eq!(second.tightest().unwrap().limit, 1);
        assert_eq!(t.store.clone().zcard::<_, i64>("{t}wide").await.unwrap(), 1);
    }

    async fn a_repeated_request_counts_once_in_a_window(t: TestStore) {
        let rule = Rule::Window { limit: 3, window: MINUTE };
        for _ in 0..5 {
            let verdict = take(&t.store, "same", rule).await;
            assert!(verdict.allowed);
            assert_eq!(verdict.limits[0].remaining, 2);
        }
    }

    async fn time_that_steps_back_frees_nothing(t: TestStore) {
        for rule in rules() {
            limit::reset(&t.store, &Key::raw("l")).await.unwrap();
            for number in 0..5 {
                assert!(take(&t.store, &number.to_string(), rule).await.allowed);
            }
            let now = t.clock.now();
            t.clock.set(Millis(now.0 - 3_600_000));
            assert!(!take(&t.store, "back", rule).await.allowed, "{rule:?}");
            t.clock.set(now);
            assert!(!take(&t.store, "again", rule).await.allowed, "{rule:?}");
        }
    }

    async fn state_goes_by_itself_when_idle(t: TestStore) {
        for (number, rule) in rules().into_iter().enumerate() {
            let key = format!("l{number}");
            limit::take(&t.store, "a", &[Charge::one(Key::raw(&key), rule)]).await.unwrap();
            let ttl: i64 = t.store.clone().pttl(&key).await.unwrap();
            assert!(ttl > 0 && ttl <= 121_000, "{rule:?}: {ttl}");
        }
    }

    async fn rules_that_cannot_work_are_refused(t: TestStore) {
        for (rule, cost) in [
            (Rule::Window { limit: 1_001, window: MINUTE }, 1),
            (Rule::Window { limit: 0, window: MINUTE }, 0),
            (Rule::Fixed { limit: 1, window: Duration::ZERO }, 1),
            (Rule::Bucket { burst: 1, count: 0, per: MINUTE }, 1),
            (Rule::Bucket { burst: 5, count: 1, per: MINUTE }, 6),
            (Rule::Counter { limit: u32::MAX, window: Duration::from_secs(86_400 * 365) }, 1),
        ] {
            let error = limit::take(&t.store, "a", &[Charge { key: Key::raw("l"), rule, cost }]).await.unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{rule:?}: {error:?}");
        }
        assert!(limit::take(&t.store, "a", &[]).await.is_err());
        assert!(!t.store.clone().exists::<_, bool>("l").await.unwrap());
    }
}
