//! Limits by descriptors, as Envoy asks for them, on every store.

use desk::{
    Error,
    limit::{
        CalendarPeriod, Descriptor, DescriptorDomain, DescriptorLimit, DescriptorRule,
        WhenStoreDown,
    },
};
use testkit::each_store;

use crate::support::{SECOND, limiter};

fn limit(requests_per_unit: u64) -> DescriptorLimit {
    DescriptorLimit { requests_per_unit, unit: CalendarPeriod::Minute }
}

fn rule(key: &str, value: Option<&str>, per_minute: u64) -> DescriptorRule {
    DescriptorRule {
        key: key.to_owned(),
        value: value.map(str::to_owned),
        limit: Some(limit(per_minute)),
        ..DescriptorRule::default()
    }
}

fn domain(rules: Vec<DescriptorRule>) -> DescriptorDomain {
    named("web", rules)
}

/// A domain that waits for a busy machine.
fn named(name: &str, rules: Vec<DescriptorRule>) -> DescriptorDomain {
    let domain = DescriptorDomain::new(name, rules).unwrap();
    domain.when_store_down(WhenStoreDown::Closed, 10 * SECOND)
}

fn descriptor(pairs: &[(&str, &str)], hits: u64) -> Descriptor {
    let entries = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Descriptor { entries: entries.collect(), hits, ..Descriptor::default() }
}

each_store! {
    async fn exactly_the_limit_of_a_descriptor_passes_over_two_instances(t: TestStore) {
        let web = domain(vec![rule("ip", None, 100)]);
        let instances = [limiter(&t.store), limiter(&t.another().await)];
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..400 {
            let (limiter, web) = (instances[number % 2].clone(), web.clone());
            tasks.spawn(async move {
                let asked = [descriptor(&[("ip", "192.0.2.7")], 1)];
                limiter.check_descriptors(&web, &asked).await.unwrap().allowed
            });
        }
        let allowed = tasks.join_all().await.into_iter().filter(|allowed| *allowed).count();
        assert_eq!(allowed, 100);
        let other = [descriptor(&[("ip", "192.0.2.8")], 1)];
        assert!(instances[0].check_descriptors(&web, &other).await.unwrap().allowed);
    }

    async fn a_request_is_charged_to_all_its_descriptors_or_to_none(t: TestStore) {
        let web = domain(vec![rule("ip", None, 10), rule("path", Some("/login"), 2)]);
        let limiter = limiter(&t.store);
        let asked = |hits| [
            descriptor(&[("ip", "192.0.2.7")], hits),
            descriptor(&[("path", "/login")], hits),
            descriptor(&[("path", "/free")], hits),
        ];
        for round in 0..5 {
            let decision = limiter.check_descriptors(&web, &asked(1)).await.unwrap();
            assert_eq!(decision.allowed, round < 2);
            assert_eq!(decision.states.len(), 3);
            assert_eq!(decision.states[2], None, "without a rule there is no limit");
        }
        let seen = limiter.check_descriptors(&web, &asked(0)).await.unwrap();
        let remaining: Vec<_> = seen.states.iter().flatten().map(|state| state.remaining).collect();
        assert_eq!(remaining, [8, 0], "three denied requests were charged nowhere");
    }

    async fn without_the_store_a_denied_request_is_charged_nowhere_either(t: TestStore) {
        let web = DescriptorDomain::new("web", vec![rule("ip", None, 10), rule("path", None, 1)]).unwrap();
        let web = web.when_store_down(WhenStoreDown::Local, 10 * SECOND);
        let limiter = limiter(&t.store);
        t.faults.go_away();
        // On a cluster the two are in different slots, now one of them first, now the other.
        for number in 0..6 {
            let (ip, path) = (format!("192.0.2.{number}"), format!("/{number}"));
            let asked = |hits| [descriptor(&[("ip", &ip)], hits), descriptor(&[("path", &path)], hits)];
            for round in 0..4 {
                let decision = limiter.check_descriptors(&web, &asked(1)).await.unwrap();
                assert!(decision.degraded);
                assert_eq!(decision.allowed, round == 0);
            }
            let seen = limiter.check_descriptors(&web, &asked(0)).await.unwrap();
            let remaining: Vec<_> = seen.states.iter().flatten().map(|state| state.remaining).collect();
            assert_eq!(remaining, [9, 0], "{ip}");
        }
    }

    async fn each_state_tells_limit_remaining_and_the_end_of_the_period(t: TestStore) {
        let per_address = DescriptorRule { name: Some("per address".to_owned()), ..rule("ip", None, 1) };
        let web = domain(vec![per_address]);
        let limiter = limiter(&t.store);
        let asked = [descriptor(&[("ip", "192.0.2.7")], 1)];
        let first = limiter.check_descriptors(&web, &asked).await.unwrap();
        let state = first.states[0].as_ref().unwrap();
        let left_ms = 60_000 - t.store.now().0.rem_euclid(60_000);
        assert_eq!((state.allowed, state.limit, state.remaining), (true, limit(1), 0));
        assert_eq!((state.name.as_str(), state.reset.as_millis()), ("per address", left_ms as u128));
        let second = limiter.check_descriptors(&web, &asked).await.unwrap();
        assert!(!second.allowed && !second.states[0].as_ref().unwrap().allowed);
        assert_eq!(second.retry_after().as_millis(), left_ms as u128);
        t.clock.advance(second.retry_after());
        assert!(limiter.check_descriptors(&web, &asked).await.unwrap().allowed);
    }

    async fn hits_of_a_request_count_and_can_be_given_back(t: TestStore) {
        let web = domain(vec![rule("ip", None, 10)]);
        let limiter = limiter(&t.store);
        let call = |hits: u64, is_refund: bool| {
            let asked = Descriptor { is_refund, ..descriptor(&[("ip", "192.0.2.7")], hits) };
            let (limiter, web) = (limiter.clone(), web.clone());
            async move {
                let made = limiter.check_descriptors(&web, &[asked]).await.unwrap();
                (made.allowed, made.states[0].as_ref().unwrap().remaining)
            }
        };
        assert_eq!(call(7, false).await, (true, 3));
        assert_eq!(call(4, false).await, (false, 3));
        assert_eq!(call(2, true).await, (true, 5));
        assert_eq!(call(4, false).await, (true, 1));
        assert_eq!(call(11, false).await, (false, 1), "more than can ever be allowed");
    }

    async fn a_limit_that_comes_with_the_descriptor_takes_the_place_of_the_rule(t: TestStore) {
        let web = domain(vec![rule("ip", None, 10)]);
        let limiter = limiter(&t.store);
        let own = Descriptor { limit: Some(limit(1)), ..descriptor(&[("ip", "192.0.2.7")], 1) };
        assert!(limiter.check_descriptors(&web, std::slice::from_ref(&own)).await.unwrap().allowed);
        assert!(!limiter.check_descriptors(&web, std::slice::from_ref(&own)).await.unwrap().allowed);
        let unknown = limiter.check_descriptors(&named("shop", Vec::new()), &[own]).await.unwrap();
        assert!(unknown.allowed && unknown.states[0].is_some(), "also where the domain has no rules");
        let none = descriptor(&[("ip", "192.0.2.7")], 1);
        let free = limiter.check_descriptors(&named("shop", Vec::new()), &[none]).await.unwrap();
        assert_eq!((free.allowed, free.states), (true, vec![None]));
    }

    async fn zero_denies_shadow_and_unlimited_never_do_and_a_limit_can_replace_another(t: TestStore) {
        let called = |name: &str, rule: DescriptorRule| DescriptorRule { name: Some(name.to_owned()), ..rule };
        let shadow = DescriptorRule { shadow: true, ..rule("shadow", None, 1) };
        let unlimited = DescriptorRule { unlimited: true, limit: None, ..rule("ip", Some("127.0.0.1"), 1) };
        let premium = DescriptorRule { replaces: vec!["per address".to_owned()], ..rule("plan", Some("premium"), 50) };
        let web = domain(vec![rule("closed", None, 0), shadow, unlimited, called("per address", rule("ip", None, 1)), premium]);
        let limiter = limiter(&t.store);
        let call = |pairs: Vec<Vec<(&'static str, &'static str)>>| {
            let asked: Vec<_> = pairs.iter().map(|pairs| descriptor(pairs, 1)).collect();
            let (limiter, web) = (limiter.clone(), web.clone());
            async move { limiter.check_descriptors(&web, &asked).await.unwrap() }
        };
        assert!(!call(vec![vec![("closed", "x")]]).await.allowed);
        for _ in 0..3 {
            assert!(call(vec![vec![("shadow", "x")]]).await.allowed);
            assert!(call(vec![vec![("ip", "127.0.0.1")]]).await.allowed);
            let replaced = call(vec![vec![("ip", "192.0.2.7")], vec![("plan", "premium")]]).await;
            assert!(replaced.allowed && replaced.states[0].is_none() && replaced.states[1].is_some());
        }
        assert!(call(vec![vec![("ip", "192.0.2.7")]]).await.allowed);
        assert!(!call(vec![vec![("ip", "192.0.2.7")]]).await.allowed);
        // The one that is closed denies, so the other is not charged.
        let both = call(vec![vec![("closed", "x")], vec![("plan", "premium")]]).await;
        assert_eq!((both.allowed, both.states[1].as_ref().unwrap().remaining), (false, 47));
    }

    async fn more_descriptors_than_one_call_can_charge_are_refused(t: TestStore) {
        let web = domain(vec![rule("ip", None, 10)]);
        let asked: Vec<_> = (0..17).map(|n| descriptor(&[("ip", &n.to_string())], 1)).collect();
        let refused = limiter(&t.store).check_descriptors(&web, &asked).await;
        assert!(matches!(refused, Err(Error::Invalid { field: "descriptors", .. })), "{refused:?}");
    }
}
