//! Dispatching: once, many, again.

use std::time::Duration;

use jobs::{JobId, NewJob};

use crate::support::*;

const HOUR: Duration = Duration::from_secs(3_600);

testkit::each_store! {
    async fn under_one_key_there_is_one_job_until_its_time_is_over(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let first = put(&jobs, job("a").once("order-7", HOUR)).await;
        for _ in 0..3 {
            let again = jobs.dispatch(job("a").once("order-7", HOUR)).await.unwrap();
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
        assert_eq!(jobs.get(&id).await.unwrap().unwrap().job_type, "a");
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
        if t.store.health().kind != store::StoreKind::Embedded {
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

testkit::each_store! {
    async fn an_idempotency_key_belongs_to_a_type_and_to_a_request(t: TestStore) {
        let jobs = queue(&t);
        let card = put(&jobs, job("charge-card").once("order-7", HOUR)).await;
        let mail = put(&jobs, job("send-receipt").once("order-7", HOUR)).await;
        assert_ne!(card, mail);
        for other in [
            NewJob::new("charge-card", &serde_json::json!({"a": 2})).unwrap(),
            job("charge-card").priority(9),
        ] {
            match jobs.dispatch(other.once("order-7", HOUR)).await {
                Err(jobs::Error::KeyReused(id)) => assert_eq!(id, card),
                other => panic!("another request under the same key: {other:?}"),
            }
        }
        let again = jobs.dispatch(job("charge-card").once("order-7", HOUR)).await.unwrap();
        assert_eq!((again.id, again.new), (card, false));
    }

    async fn a_removed_job_frees_its_idempotency_key(t: TestStore) {
        let jobs = queue(&t);
        let first = put(&jobs, job("a").attempts(0).once("k", HOUR)).await;
        let lease = take(&mut worker(&jobs, "w1")).await;
        jobs.fail(&lease, jobs::JobError::new("Oops", ""), NO_TIME).await.unwrap();
        let dead = jobs.dispatch(job("a").attempts(0).once("k", HOUR)).await.unwrap();
        assert_eq!((&dead.id, dead.new), (&first, false), "a dead job still holds its key");
        jobs.remove(&first).await.unwrap();
        let second = put(&jobs, job("a").attempts(0).once("k", HOUR)).await;
        assert_ne!(first, second);
        let again = jobs.dispatch(job("a").attempts(0).once("k", HOUR)).await.unwrap();
        assert_eq!((again.id, again.new), (second, false));
    }

    async fn what_makes_no_sense_is_refused(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let text = |payload: &str| {
            NewJob::raw("a", serde_json::value::RawValue::from_string(payload.to_owned()).unwrap())
        };
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(text(r#"{"a":"\ud800"}"#).is_err(), "half a character");
        assert!(text(&deep(1_200)).is_err(), "too deep");
        let minute = Duration::from_secs(60);
        for (new, why) in [
            (job("a").max_concurrent(0), "none may run"),
            (job("a").max_per_minute(0), "none may start"),
            (job("a").timezone("Europe/Berlin"), "a time zone of nothing"),
            (job("a").overlap(jobs::Overlap::Allow), "an overlap of nothing"),
            (job("a").cron("* * * * *").delay(minute), "a schedule with a delay"),
            (job("a").cron("* * * * *").run_at(jobs::Millis(7)), "a schedule with a moment"),
            (job("a").metadata("m", "x".repeat(70_000)), "too much metadata"),
        ] {
            let refused = jobs.dispatch(new).await;
            assert!(matches!(refused, Err(jobs::Error::Invalid { .. })), "{why}: {refused:?}");
        }
        let nobody = JobId::parse("nobody").unwrap();
        match jobs.dispatch(job("a").depends_on([nobody.clone()])).await {
            Err(jobs::Error::NoParent(id)) => assert_eq!(id, nobody),
            other => panic!("a parent that is not there: {other:?}"),
        }
        let keys: Vec<String> = raw.call(&["KEYS", "*"]).await;
        assert!(keys.is_empty(), "{keys:?}");
    }

    async fn text_kept_with_a_job_has_a_bound(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("a").attempts(0)).await;
        let lease = take(&mut worker(&jobs, "w1")).await;
        jobs.set_progress(&id, 1.0, Some("y".repeat(100_000)), None).await.unwrap();
        let error = jobs::JobError::new("Oops", "é".repeat(500_000));
        jobs.fail(&lease, error, NO_TIME).await.unwrap();
        for key in ["result", "history", "progress"] {
            let key = format!("bridge:jobs:{key}:{id}");
            let size: usize = match key.contains("history") {
                true => raw.list(&key).await.iter().map(String::len).sum(),
                false => raw.get(&key).await.unwrap().len(),
            };
            assert!(size < 10_000, "{key} has {size} bytes");
        }
    }
}
