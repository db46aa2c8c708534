//! Dispatching: once, many, again.

use std::time::Duration;

use jobs::JobId;

use crate::support::*;

const HOUR: Duration = Duration::from_secs(3_600);

testkit::each_store! {
    async fn under_one_key_there_is_one_job_until_its_time_is_over(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let first = put(&jobs, job("a").once("order-7", HOUR)).await;
        for _ in 0..3 {
            let again = jobs.dispatch(job("b").once("order-7", HOUR)).await.unwrap();
            assert_eq!((again.id, again.new), (first.clone(), false));
        }
        let other = put(&jobs, job("a").once("order-8", HOUR)).await;
        assert_ne!(other, first);
        assert_eq!(raw.list("bridge:jobs:waiting").await.len(), 2);
        t.clock.advance(HOUR);
        let later = put(&jobs, job("a").once("order-7", HOUR)).await;
        assert_ne!(later, first);
        check_invariants(&raw).await;
    }

    async fn many_at_once_under_one_key_make_one_job(t: TestStore) {
        let jobs = queue(&t);
        let all = (0..20).map(|_| jobs.dispatch(job("a").once("k", HOUR)));
        let outcomes: Vec<_> =
            futures_util::future::join_all(all).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(outcomes.iter().filter(|outcome| outcome.new).count(), 1);
        assert!(outcomes.iter().all(|outcome| outcome.id == outcomes[0].id));
        assert_eq!(jobs.stats().await.unwrap().waiting, 1);
    }

    async fn an_id_of_ones_own_is_dispatched_once(t: TestStore) {
        let jobs = queue(&t);
        let id = JobId::parse("invoice-2026-01").unwrap();
        put(&jobs, job("a").id(id.clone())).await;
        let again = jobs.dispatch(job("b").id(id.clone())).await.unwrap();
        assert_eq!((&again.id, again.new), (&id, false));
        assert_eq!(jobs.get(&id).await.unwrap().unwrap().kind, "a");
        assert_eq!(jobs.stats().await.unwrap().waiting, 1);
    }

    async fn many_jobs_keep_their_order_and_each_has_its_outcome(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let all = (0..600).map(|n| match n {
            100 => job("a").priority(99),
            200 => job("a").once("k", HOUR),
            _ => job("a"),
        });
        let outcomes = jobs.dispatch_all(all).await;
        assert_eq!(outcomes.len(), 600);
        assert!(outcomes[100].is_err());
        let ids: Vec<_> =
            outcomes.into_iter().filter_map(|o| o.ok().map(|o| o.id.to_string())).collect();
        assert_eq!(ids.len(), 599);
        assert_eq!(raw.list("bridge:jobs:waiting").await, ids);
        check_invariants(&raw).await;
    }

    async fn calls_at_the_same_time_share_round_trips(t: TestStore) {
        let jobs = queue(&t);
        let all = (0..300).map(|_| jobs.dispatch(job("a")));
        for outcome in futures_util::future::join_all(all).await {
            assert!(outcome.unwrap().new);
        }
        assert_eq!(jobs.stats().await.unwrap().waiting, 300);
        let (events, _) = jobs.events_after(jobs::EventId::START, 1_000).await.unwrap();
        // The built-in store answers at once, so there calls do not meet.
        if t.store.health().kind != store::Kind::Embedded {
            assert!(events.len() < 50, "{} calls for 300 jobs", events.len());
        }
        let told: usize = events.iter().map(|event| event.jobs.len()).sum();
        assert_eq!(told, 300);
        check_invariants(&Raw::of(&t)).await;
    }

    async fn a_bad_job_is_refused_and_nothing_is_changed(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        assert!(jobs.dispatch(job("a").priority(0)).await.is_err());
        let id = JobId::parse("x").unwrap();
        assert!(jobs.dispatch(job("a").id(id.clone()).depends_on([id])).await.is_err());
        let keys: Vec<String> = raw.call(&["KEYS", "*"]).await;
        assert!(keys.is_empty(), "{keys:?}");
    }

    async fn many_jobs_under_chosen_ids_are_dispatched_once(t: TestStore) {
        let jobs = queue(&t);
        let id = |n: usize| jobs::JobId::parse(format!("j{n}")).unwrap();
        let batch = |range: std::ops::Range<usize>| range.map(|n| job("a").id(id(n))).collect::<Vec<_>>();
        let mut first = batch(0..300);
        first.push(job("a").id(id(7)));
        first.push(job("a"));
        let outcomes = jobs.dispatch_all(first).await;
        let new: Vec<bool> = outcomes.iter().map(|done| done.as_ref().unwrap().new).collect();
        assert!(new[..300].iter().all(|new| *new) && !new[300] && new[301], "the second j7 is none");
        let again = jobs.dispatch_all(batch(200..400)).await;
        let new = again.iter().filter(|done| done.as_ref().unwrap().new).count();
        assert_eq!(new, 100);
        assert_eq!(jobs.stats().await.unwrap().waiting, 401);
        check_invariants(&Raw::of(&t)).await;
    }
}
