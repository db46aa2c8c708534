//! Rate limits: exactness, all or nothing, waiting times, unique members.
#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use std::{sync::Arc, time::Duration};

use store::{
    Error, Key, Millis, Store,
    limit::{self, CALENDAR_MOST, CheckBatcher, CheckOutcome, LimitCheck, Rule},
    redis::AsyncCommands,
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

async fn check(store: &Store, id: &str, rule: Rule) -> CheckOutcome {
    limit::check(store, &check_of("l", rule, 1, id)).await.unwrap()
}

fn rules() -> [Rule; 6] {
    rules_of(5)
}

/// Every algorithm with the same limit. The calendar's period is the first day of the test.
fn rules_of(limit: u32) -> [Rule; 6] {
    let (start, end) = (testkit::each_store::START, testkit::each_store::START + 1_440 * MINUTE);
    [
        Rule::Sliding { limit, window: MINUTE },
        Rule::Counter { limit, window: MINUTE },
        Rule::Fixed { limit, window: MINUTE },
        Rule::Bucket { burst: limit, count: limit, per: MINUTE },
        Rule::Calendar { limit: u64::from(limit), start, end },
        Rule::Concurrent { limit, lease: MINUTE },
    ]
}

fn check_of(key: &str, rule: Rule, cost: u64, request_id: &str) -> LimitCheck {
    LimitCheck { key: Key::raw(key), rule, cost, request_id: request_id.to_owned() }
}

testkit::each_store! {
    async fn what_is_free_goes_down_to_none_and_no_further(t: TestStore) {
        for rule in rules() {
            limit::reset(&t.store, &Key::raw("l")).await.unwrap();
            for left in (0..5).rev() {
                let outcome = check(&t.store, &format!("r{left}"), rule).await;
                assert!(outcome.allowed, "{rule:?}");
                assert_eq!((outcome.limit, outcome.remaining), (5, left), "{rule:?}");
            }
            for _ in 0..3 {
                let outcome = check(&t.store, "late", rule).await;
                assert!(!outcome.allowed, "{rule:?}");
                assert_eq!(outcome.remaining, 0);
                assert!(outcome.retry > Duration::ZERO);
            }
        }
    }

    async fn one_who_waits_as_told_is_allowed_and_not_a_millisecond_earlier(t: TestStore) {
        for rule in rules().into_iter().filter(|rule| rule.algorithm() != "calendar") {
            for cost in [1, 2, 5] {
                limit::reset(&t.store, &Key::raw("l")).await.unwrap();
                for number in 0..5 {
                    check(&t.store, &format!("{cost}-{number}"), rule).await;
                    t.clock.advance(Duration::from_millis(1_370));
                }
                let ask = async |id: &str| {
                    let check = check_of("l", rule, cost, &format!("{id}{cost}"));
                    limit::check(&t.store, &check).await.unwrap()
                };
                let outcome = ask("again").await;
                if outcome.allowed {
                    continue;
                }
                let wait = outcome.retry;
                t.clock.advance(wait - Duration::from_millis(1));
                let early = ask("early").await;
                assert!(!early.allowed, "{rule:?} cost {cost}: told {wait:?}");
                assert_eq!(early.retry, Duration::from_millis(1), "{rule:?} cost {cost}");
                t.clock.advance(Duration::from_millis(1));
                let due = ask("due").await;
                assert!(due.allowed, "{rule:?} cost {cost}: told {wait:?}, then {:?}", due.retry);
            }
        }
    }

    async fn the_next_unit_comes_when_told(t: TestStore) {
        for rule in rules().into_iter().filter(|rule| rule.algorithm() != "calendar") {
            limit::reset(&t.store, &Key::raw("l")).await.unwrap();
            let look = async || limit::peek(&t.store, &Key::raw("l"), rule).await.unwrap();
            assert_eq!(look().await.next, Duration::ZERO, "{rule:?}: all are free");
            check(&t.store, "a", rule).await;
            t.clock.advance(Duration::from_millis(777));
            let state = check(&t.store, "b", rule).await;
            assert_eq!(look().await.next, state.next, "{rule:?}: looking changes nothing");
            t.clock.advance(state.next - Duration::from_millis(1));
            assert_eq!(look().await.remaining, state.remaining, "{rule:?}");
            t.clock.advance(Duration::from_millis(1));
            assert!(look().await.remaining > state.remaining, "{rule:?}");
        }
    }

    async fn of_many_at_once_exactly_the_limit_is_allowed(t: TestStore) {
        let other = t.another().await;
        for (number, rule) in rules_of(100).into_iter().enumerate() {
            let mut tasks = tokio::task::JoinSet::new();
            for request in 0..400 {
                let store = if request % 2 == 0 { t.store.clone() } else { other.clone() };
                let check = check_of(&format!("l{number}"), rule, 1, &request.to_string());
                tasks.spawn(async move { limit::check(&store, &check).await.unwrap().allowed });
            }
            let allowed = tasks.join_all().await.into_iter().filter(|allowed| *allowed).count();
            assert_eq!(allowed, 100, "{rule:?}: all within one millisecond");
        }
    }

    async fn of_many_at_once_exactly_the_limit_is_allowed_when_batched(t: TestStore) {
        let batchers = [CheckBatcher::new(&t.store), CheckBatcher::new(&t.another().await)].map(Arc::new);
        for rule in rules_of(100) {
            let mut tasks = tokio::task::JoinSet::new();
            for request in 0..600 {
                let batcher = batchers[request % 2].clone();
                let key = format!("l{}{}", rule.algorithm(), request % 3);
                let check = check_of(&key, rule, 1, &request.to_string());
                tasks.spawn(async move { (check.key.clone(), batcher.check(check).await.unwrap()) });
            }
            let outcomes = tasks.join_all().await;
            for which in 0..3 {
                let key = Key::raw(format!("l{}{which}", rule.algorithm()));
                let own = outcomes.iter().filter(|(of, _)| *of == key);
                let mut left: Vec<u64> = own.filter(|(_, o)| o.allowed).map(|(_, o)| o.remaining).collect();
                left.sort_unstable();
                assert_eq!(left, (0..100).collect::<Vec<_>>(), "{rule:?}: each unit is given once");
            }
        }
    }

    async fn a_bad_key_in_a_batch_fails_alone(t: TestStore) {
        let batcher = Arc::new(CheckBatcher::new(&t.store));
        t.store.clone().rpush::<_, _, ()>("{b}bad", "a list").await.unwrap();
        for rule in rules() {
            let mut tasks = tokio::task::JoinSet::new();
            for number in 0..40 {
                let (batcher, bad) = (batcher.clone(), number % 8 == 3);
                let key = if bad { "{b}bad".to_owned() } else { format!("{{b}}{}{number}", rule.algorithm()) };
                let check = check_of(&key, rule, 1, "r");
                tasks.spawn(async move { (bad, batcher.check(check).await) });
            }
            for (bad, outcome) in tasks.join_all().await {
                assert_eq!(outcome.is_err(), bad, "{rule:?}: {outcome:?}");
            }
        }
    }

    async fn state_of_another_algorithm_is_forgotten_and_foreign_data_is_not(t: TestStore) {
        for (before, after) in rules().into_iter().flat_map(|rule| rules().map(|after| (rule, after))) {
            limit::reset(&t.store, &Key::raw("l")).await.unwrap();
            assert!(check(&t.store, "r1", before).await.allowed);
            assert!(check(&t.store, "r2", after).await.allowed, "{before:?} then {after:?}");
            limit::reset(&t.store, &Key::raw("{l}")).await.unwrap();
            limit::check(&t.store, &check_of("{l}", before, 1, "r1")).await.unwrap();
            let both = [check_of("{l}", after, 1, "r2"), check_of("{l}other", after, 1, "r2")];
            limit::reset(&t.store, &Key::raw("{l}other")).await.unwrap();
            let outcomes = limit::check_all(&t.store, &both).await.unwrap();
            assert!(outcomes[1].allowed && outcomes[1].remaining == 4, "{before:?} then {after:?}");
        }
        t.store.clone().rpush::<_, _, ()>("{l}list", "a list").await.unwrap();
        let list = check_of("{l}list", rules()[0], 1, "r");
        assert!(limit::check(&t.store, &list).await.is_err());
        assert_eq!(t.store.clone().llen::<_, usize>("{l}list").await.unwrap(), 1);
    }

    async fn a_fixed_window_and_its_denials_are_what_the_schema_says(t: TestStore) {
        let rule = Rule::Fixed { limit: 2, window: MINUTE };
        for number in 0..2 {
            assert!(check(&t.store, &number.to_string(), rule).await.allowed);
            t.clock.advance(SECOND);
        }
        let mut store = t.store.clone();
        assert_eq!(store::redis::cmd("TYPE").arg("l").query_async::<String>(&mut store).await.unwrap(), "zset");
        let before: Vec<(String, f64)> = store.zrange_withscores("l", 0, -1).await.unwrap();
        for number in 0..50 {
            assert!(!check(&t.store, &format!("denied{number}"), rule).await.allowed);
        }
        let after: Vec<(String, f64)> = store.zrange_withscores("l", 0, -1).await.unwrap();
        assert_eq!(before, after, "a denied request writes nothing");
        assert_eq!(before[0].1 as i64, testkit::each_store::START.0, "the score is the time in ms");
        let ttl: i64 = store.pttl("l").await.unwrap();
        assert!(ttl > 50_000 && ttl <= 61_000, "{ttl}: until the window closes, and a second");
    }

    async fn a_fixed_window_lives_on_when_its_first_unit_is_given_back(t: TestStore) {
        let rule = Rule::Fixed { limit: 2, window: MINUTE };
        let first = check_of("l", rule, 1, "first");
        assert!(limit::check(&t.store, &first).await.unwrap().allowed);
        t.clock.advance(50 * SECOND);
        assert!(check(&t.store, "second", rule).await.allowed);
        assert_eq!(limit::release(&t.store, &first).await.unwrap(), 1);
        let left = limit::peek(&t.store, &Key::raw("l"), rule).await.unwrap();
        assert_eq!((left.remaining, left.next), (1, MINUTE), "it opens with the second now");
        let ttl: i64 = t.store.clone().pttl("l").await.unwrap();
        assert!(ttl > 59_000 && ttl <= 61_000, "{ttl}: and is not forgotten before it closes");
    }

    async fn a_fixed_window_counts_what_another_program_wrote(t: TestStore) {
        let rule = Rule::Fixed { limit: 3, window: MINUTE };
        let now = t.clock.now().0;
        let mut store = t.store.clone();
        // Older than the window, never removed; then one that opens it.
        for back in [400_000, 300_000, 200_000, 30_000] {
            let at = now - back;
            store.zadd::<_, _, _, ()>("l", at.to_string(), at).await.unwrap();
        }
        let first = check(&t.store, "a", rule).await;
        assert!(first.allowed);
        assert_eq!((first.remaining, first.next), (1, 30 * SECOND));
    }

    async fn a_calendar_period_ends_when_told_and_the_next_one_is_whole(t: TestStore) {
        let period = |number: i64| {
            let start = testkit::each_store::START + u32::try_from(number).unwrap() * MINUTE;
            Rule::Calendar { limit: CALENDAR_MOST, start, end: start + MINUTE }
        };
        let first = limit::check(&t.store, &check_of("l", period(0), CALENDAR_MOST - 1, "a")).await.unwrap();
        assert!(first.allowed);
        assert_eq!((first.remaining, first.next), (1, MINUTE));
        t.clock.advance(59 * SECOND);
        assert!(limit::check(&t.store, &check_of("l", period(0), 1, "b")).await.unwrap().allowed);
        let denied = limit::check(&t.store, &check_of("l", period(0), 1, "c")).await.unwrap();
        assert_eq!((denied.allowed, denied.remaining, denied.retry), (false, 0, SECOND));
        t.clock.advance(SECOND);
        let next = limit::check(&t.store, &check_of("l", period(1), 5, "d")).await.unwrap();
        assert_eq!((next.allowed, next.remaining), (true, CALENDAR_MOST - 5));
        // Another instance whose clock is behind charges the period that is counted, not a past one.
        let behind = limit::check(&t.store, &check_of("l", period(0), 1, "e")).await.unwrap();
        assert_eq!(behind.remaining, CALENDAR_MOST - 6);
    }

    async fn a_lease_is_renewed_released_and_expires(t: TestStore) {
        let rule = Rule::Concurrent { limit: 2, lease: MINUTE };
        let (a, b, c) = (check_of("l", rule, 1, "a"), check_of("l", rule, 1, "b"), check_of("l", rule, 1, "c"));
        for check in [&a, &b, &a] {
            assert!(limit::check(&t.store, check).await.unwrap().allowed, "a repeated one holds one lease");
        }
        t.clock.advance(30 * SECOND);
        assert!(limit::renew(&t.store, &a).await.unwrap());
        let full = limit::check(&t.store, &c).await.unwrap();
        assert_eq!((full.allowed, full.retry), (false, 30 * SECOND), "when b expires");
        assert_eq!(limit::release(&t.store, &a).await.unwrap(), 1);
        assert_eq!(limit::release(&t.store, &a).await.unwrap(), 0, "once");
        assert!(limit::check(&t.store, &c).await.unwrap().allowed);
        t.clock.advance(30 * SECOND);
        assert!(!limit::renew(&t.store, &b).await.unwrap(), "an expired lease is not brought back");
        assert!(limit::check(&t.store, &a).await.unwrap().allowed);
        assert!(!limit::check(&t.store, &b).await.unwrap().allowed);
        let ttl: i64 = t.store.clone().pttl("l").await.unwrap();
        assert!(ttl > 55_000 && ttl <= 61_000, "{ttl}");
    }

    async fn a_refund_gives_back_once_and_only_where_it_was_charged(t: TestStore) {
        for rule in rules() {
            let key = format!("{{l}}{}", rule.algorithm());
            let check = check_of(&key, rule, 3, "a");
            let charged = t.store.now();
            assert_eq!(limit::check(&t.store, &check).await.unwrap().remaining, 2);
            let refunds = Key::raw(format!("{key}:refunds"));
            t.faults.lose_next_replies(1);
            assert!(limit::refund(&t.store, &check, charged, &refunds, "1").await.is_err(), "the reply is lost");
            assert_eq!(limit::refund(&t.store, &check, charged, &refunds, "1").await.unwrap(), 0, "{rule:?}: repeated");
            assert_eq!(limit::peek(&t.store, &check.key, rule).await.unwrap().remaining, 5, "{rule:?}");
            // More than was ever taken does not make room for more than the limit.
            limit::refund(&t.store, &check_of(&key, rule, 5, "b"), charged, &refunds, "2").await.unwrap();
            assert_eq!(limit::peek(&t.store, &check.key, rule).await.unwrap().remaining, 5, "{rule:?}");
            if !rule.remembers_requests() {
                let ttl: i64 = t.store.clone().pttl(&refunds).await.unwrap();
                assert!(ttl > 0 && ttl <= 60_000, "{rule:?}: {ttl}");
            }
        }
        // Units of a window that is over do not come back to another one.
        let rule = Rule::Counter { limit: 5, window: MINUTE };
        let charged = t.store.now();
        assert!(limit::check(&t.store, &check_of("{l}late", rule, 5, "a")).await.unwrap().allowed);
        t.clock.advance(3 * MINUTE);
        assert!(limit::check(&t.store, &check_of("{l}late", rule, 5, "b")).await.unwrap().allowed);
        let late = check_of("{l}late", rule, 5, "a");
        assert_eq!(limit::refund(&t.store, &late, charged, &Key::raw("{l}late:refunds"), "1").await.unwrap(), 0);
        assert_eq!(limit::peek(&t.store, &late.key, rule).await.unwrap().remaining, 0);
    }

    async fn an_evenly_used_counter_is_exact_and_any_other_stays_below_twice_the_limit(t: TestStore) {
        let rule = Rule::Counter { limit: 10, window: SECOND };
        // All at the end of one window, then as many as it gives.
        t.clock.advance(Duration::from_millis(999));
        let mut allowed = Vec::new();
        for number in 0..1_000 {
            if check(&t.store, &number.to_string(), rule).await.allowed {
                allowed.push(t.clock.now().0);
            }
            if number >= 10 {
                t.clock.advance(Duration::from_millis(1));
            }
        }
        let most = allowed.iter().map(|from| allowed.iter().filter(|at| (*from..from + 1_000).contains(at)).count());
        let most = most.max().unwrap();
        assert!(most > 10 && most < 20, "{most} in one second: the documented error");
        // From then on it gives ten a second.
        let late = allowed.iter().filter(|at| **at >= allowed[0] + 500).count();
        assert!((4..=10).contains(&late), "{late}");
    }

    async fn any_window_holds_at_most_the_limit(t: TestStore) {
        let rule = Rule::Sliding { limit: 7, window: SECOND };
        let mut random = fastrand::Rng::with_seed(7);
        let mut allowed: Vec<i64> = Vec::new();
        for number in 0..400 {
            t.clock.advance(Duration::from_millis(random.u64(0..200)));
            if check(&t.store, &number.to_string(), rule).await.allowed {
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
            allowed += i64::from(check(&t.store, &number.to_string(), rule).await.allowed);
            let elapsed = t.clock.now().0 - start.0;
            assert!(allowed <= 4 + elapsed * 7 / 3_000, "{allowed} after {elapsed} ms");
        }
        // Asked far more often than the rate, so all that came was taken.
        assert!(allowed >= 4 + 60_000 * 7 / 3_000 - 1, "{allowed}");
    }

    async fn a_refused_request_is_charged_nowhere(t: TestStore) {
        let wide = Rule::Sliding { limit: 10, window: MINUTE };
        let narrow = Rule::Bucket { burst: 1, count: 1, per: MINUTE };
        let both = |id: &str| [check_of("{t}wide", wide, 1, id), check_of("{t}narrow", narrow, 1, id)];
        let first = limit::check_all(&t.store, &both("1")).await.unwrap();
        assert!(first.iter().all(|outcome| outcome.allowed));
        let second = limit::check_all(&t.store, &both("2")).await.unwrap();
        assert!(second.iter().all(|outcome| !outcome.allowed));
        assert_eq!(second[0].remaining, 9, "the wide one has lost nothing");
        assert_eq!((second[0].retry, second[1].retry), (Duration::ZERO, MINUTE));
        assert_eq!(t.store.clone().zcard::<_, i64>("{t}wide").await.unwrap(), 1);
    }

    async fn a_request_repeated_after_a_lost_reply_never_allows_more(t: TestStore) {
        for rule in rules() {
            let key = format!("l{}", rule.algorithm());
            let check = check_of(&key, rule, 2, "same");
            for repeat in 0..5 {
                t.faults.lose_next_replies(1);
                assert!(limit::check(&t.store, &check).await.is_err());
                let outcome = limit::check(&t.store, &check).await.unwrap();
                if rule.remembers_requests() {
                    assert_eq!((outcome.allowed, outcome.remaining), (true, 3), "{rule:?}, repeat {repeat}");
                }
            }
            // Also when the limit is full: what was allowed stays allowed.
            if rule.remembers_requests() {
                assert!(limit::check(&t.store, &check_of(&key, rule, 3, "rest")).await.unwrap().allowed);
                assert!(limit::check(&t.store, &check).await.unwrap().allowed, "{rule:?}");
                assert!(!limit::check(&t.store, &check_of(&key, rule, 1, "new")).await.unwrap().allowed);
            }
        }
    }

    async fn time_that_steps_back_frees_nothing(t: TestStore) {
        for rule in rules() {
            limit::reset(&t.store, &Key::raw("l")).await.unwrap();
            for number in 0..5 {
                assert!(check(&t.store, &number.to_string(), rule).await.allowed);
            }
            let now = t.clock.now();
            t.clock.set(Millis(now.0 - 3_600_000));
            assert!(!check(&t.store, "back", rule).await.allowed, "{rule:?}");
            t.clock.set(now);
            assert!(!check(&t.store, "again", rule).await.allowed, "{rule:?}");
        }
    }

    async fn state_goes_by_itself_when_idle(t: TestStore) {
        for (number, rule) in rules().into_iter().enumerate() {
            let key = format!("l{number}");
            limit::check(&t.store, &check_of(&key, rule, 1, "a")).await.unwrap();
            let ttl: i64 = t.store.clone().pttl(&key).await.unwrap();
            let most = if matches!(rule, Rule::Calendar { .. }) { 86_401_000 } else { 121_000 };
            assert!(ttl > 0 && ttl <= most, "{rule:?}: {ttl}");
        }
    }

    async fn a_counter_takes_any_limit_over_any_window(t: TestStore) {
        let year = Duration::from_secs(86_400 * 365);
        let rule = Rule::Counter { limit: u32::MAX, window: year };
        let most = u64::from(u32::MAX);
        let all = limit::check(&t.store, &check_of("l", rule, most - 1, "a")).await.unwrap();
        assert_eq!((all.allowed, all.remaining), (true, 1));
        assert!(!limit::check(&t.store, &check_of("l", rule, 2, "b")).await.unwrap().allowed);
        let last = limit::check(&t.store, &check_of("l", rule, 1, "c")).await.unwrap();
        assert_eq!((last.allowed, last.remaining), (true, 0));
        let full = limit::check(&t.store, &check_of("l", rule, 1, "d")).await.unwrap();
        assert!(!full.allowed && full.retry > Duration::ZERO && full.retry <= 2 * year);
        t.clock.advance(full.retry + Duration::from_millis(1));
        assert!(limit::check(&t.store, &check_of("l", rule, 1, "e")).await.unwrap().allowed);
    }

    async fn rules_that_cannot_work_are_refused(t: TestStore) {
        for (rule, cost) in [
            (Rule::Sliding { limit: 1_001, window: MINUTE }, 1),
            (Rule::Sliding { limit: 0, window: MINUTE }, 0),
            (Rule::Fixed { limit: 1, window: Duration::ZERO }, 1),
            (Rule::Bucket { burst: 1, count: 0, per: MINUTE }, 1),
            (Rule::Bucket { burst: 5, count: 1, per: MINUTE }, 6),
            (Rule::Fixed { limit: 1_001, window: MINUTE }, 1),
            (Rule::Concurrent { limit: 1_001, lease: MINUTE }, 1),
            (Rule::Calendar { limit: 0, start: Millis(0), end: Millis(1) }, 0),
            (Rule::Calendar { limit: CALENDAR_MOST + 1, start: Millis(0), end: Millis(1) }, 0),
            (Rule::Calendar { limit: 1, start: Millis(1), end: Millis(1) }, 1),
            (Rule::Bucket { burst: u32::MAX, count: 1, per: Duration::from_secs(86_400 * 365) }, 1),
        ] {
            let error = limit::check(&t.store, &check_of("l", rule, cost, "a")).await.unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{rule:?}: {error:?}");
        }
        assert!(limit::check_all(&t.store, &[]).await.is_err());
        assert!(!t.store.clone().exists::<_, bool>("l").await.unwrap());
    }
}
