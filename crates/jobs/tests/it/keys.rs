//! The exact state of the documented keys after each step of a job's life.

use std::time::Duration;

use jobs::{FailureAction, JobError, JobTarget, Renewal, Status};
use testkit::each_store::START;

use crate::support::*;

const TOOK: Duration = Duration::from_millis(234);

testkit::each_store! {
    async fn dispatch_stores_data_status_and_a_place_at_the_back(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let a = put(&jobs, job("mail")).await;
        let b = put(&jobs, job("mail")).await;
        assert_eq!(raw.list("bridge:jobs:waiting").await, [a.as_str(), b.as_str()]);
        assert_eq!(raw.status(&a).await.as_deref(), Some("waiting"));
        assert_eq!(
            raw.get(&format!("bridge:jobs:data:{a}")).await.unwrap(),
            format!(
                r#"{{"jobId":"{a}","type":"mail","payload":{{"a":1}},"retry":{{"attempts":3}},"createdAt":{START},"attempts":0}}"#
            )
        );
        assert_eq!(raw.ttl(&format!("bridge:jobs:data:{a}")).await, -1);
        check_invariants(&raw).await;
    }

    async fn high_priorities_go_to_the_front_as_a_stack_for_v1(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let low = put(&jobs, job("a").priority(6)).await;
        let first = put(&jobs, job("a").priority(7)).await;
        let second = put(&jobs, job("a").priority(10)).await;
        let expected = [second.as_str(), first.as_str(), low.as_str()];
        assert_eq!(raw.list("bridge:jobs:waiting").await, expected);
        check_invariants(&raw).await;
    }

    async fn delayed_jobs_wait_in_a_sorted_set(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let a = put(&jobs, job("a").delay(Duration::from_secs(5))).await;
        let b = put(&jobs, job("a").delay(Duration::from_secs(9)).run_at(jobs::Millis(START.0 + 1))).await;
        assert_eq!(
            raw.zset("bridge:jobs:delayed").await,
            [(b.to_string(), START.0 + 1), (a.to_string(), START.0 + 5_000)]
        );
        assert_eq!(raw.status(&a).await.as_deref(), Some("delayed"));
        assert!(raw.list("bridge:jobs:waiting").await.is_empty());
        assert_eq!(raw.json(&format!("bridge:jobs:data:{a}")).await["schedule"]["delay"], 5_000);
        check_invariants(&raw).await;
    }

    async fn cron_jobs_wait_for_their_next_occurrence(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("a").cron("*/10 * * * *").timezone("Europe/Berlin")).await;
        assert_eq!(raw.zset("bridge:jobs:cron").await, [(id.to_string(), START.0 + 600_000)]);
        assert_eq!(raw.status(&id).await.as_deref(), Some("cron"));
        let data = raw.json(&format!("bridge:jobs:data:{id}")).await;
        assert_eq!(data["schedule"]["cron"], "*/10 * * * *");
        assert_eq!(data["schedule"]["timezone"], "Europe/Berlin");
        assert!(jobs.dispatch(job("a").cron("nonsense")).await.is_err());
    }

    async fn claim_locks_moves_and_counts(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let a = put(&jobs, job("mail")).await;
        let b = put(&jobs, job("mail")).await;
        let lease = take(&mut worker(&jobs, "w1")).await;
        assert_eq!(lease.id(), &a);
        assert_eq!(raw.list("bridge:jobs:waiting").await, [b.as_str()]);
        assert_eq!(raw.set("bridge:jobs:active").await, [a.as_str()]);
        assert_eq!(raw.get(&format!("bridge:jobs:lock:{a}")).await.as_deref(), Some("w1"));
        assert!((1..=30).contains(&raw.ttl(&format!("bridge:jobs:lock:{a}")).await));
        assert_eq!(raw.status(&a).await.as_deref(), Some("active"));
        assert_eq!(raw.get("bridge:ratelimit:concurrent:mail").await.as_deref(), Some("1"));
        let stored = raw.get(&format!("bridge:jobs:data:{a}")).await.unwrap();
        assert_eq!(lease.text(), stored, "the job is handed out as it is stored");
        check_invariants(&raw).await;
    }

    async fn completion_leaves_result_status_and_data(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("mail")).await;
        let lease = take(&mut worker(&jobs, "w1")).await;
        let data = serde_json::value::to_raw_value(&serde_json::json!({"sent": 3})).unwrap();
        jobs.complete(&lease, Some(data), TOOK).await.unwrap();
        assert_eq!(
            raw.get(&format!("bridge:jobs:result:{id}")).await.unwrap(),
            format!(r#"{{"success":true,"data":{{"sent":3}},"completedAt":{START},"processingTime":234}}"#)
        );
        assert!((86_300..=86_400).contains(&raw.ttl(&format!("bridge:jobs:result:{id}")).await));
        assert_eq!(raw.status(&id).await.as_deref(), Some("completed"));
        assert!(raw.get(&format!("bridge:jobs:lock:{id}")).await.is_none());
        assert!(raw.get(&format!("bridge:jobs:data:{id}")).await.is_some());
        assert!(raw.set("bridge:jobs:active").await.is_empty());
        assert_eq!(raw.get("bridge:ratelimit:concurrent:mail").await.as_deref(), Some("0"));
        assert_eq!(jobs.status(&id).await.unwrap(), Some(Status::Completed));
        // Once more, as after a lost reply: the same answer, and nothing counted twice.
        let data = serde_json::value::to_raw_value(&serde_json::json!({"sent": 3})).unwrap();
        jobs.complete(&lease, Some(data), TOOK).await.unwrap();
        assert_eq!(raw.get("bridge:metrics:jobs:processed").await.as_deref(), Some("1"));
        // Another outcome is refused.
        assert!(matches!(
            jobs.complete(&lease, None, NO_TIME).await,
            Err(jobs::Error::LeaseLost(lost)) if lost == id
        ));
        check_invariants(&raw).await;
    }

    async fn a_result_of_nothing_has_no_data(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("mail")).await;
        let lease = take(&mut worker(&jobs, "w1")).await;
        let nothing = serde_json::value::to_raw_value(&()).unwrap();
        jobs.complete(&lease, Some(nothing), NO_TIME).await.unwrap();
        assert_eq!(
            raw.get(&format!("bridge:jobs:result:{id}")).await.unwrap(),
            format!(r#"{{"success":true,"completedAt":{START},"processingTime":0}}"#)
        );
    }

    async fn a_failure_is_retried_after_its_backoff(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("mail").priority(9)).await;
        let lease = take(&mut worker(&jobs, "w1")).await;
        let error = JobError::new("Timeout", "no answer");
        let verdict = jobs.fail(&lease, error, TOOK).await.unwrap();
        assert_eq!(verdict, FailureAction::Retry(Duration::from_secs(2)));
        assert_eq!(raw.zset("bridge:jobs:delayed").await, [(id.to_string(), START.0 + 2_000)]);
        assert_eq!(raw.status(&id).await.as_deref(), Some("delayed"));
        assert_eq!(raw.json(&format!("bridge:jobs:data:{id}")).await["attempts"], 1);
        assert_eq!(
            raw.get(&format!("bridge:jobs:result:{id}")).await.unwrap(),
            format!(r#"{{"success":false,"error":{{"message":"no answer","name":"Timeout"}},"completedAt":{START},"processingTime":234}}"#)
        );
        assert!(raw.get(&format!("bridge:jobs:lock:{id}")).await.is_none());
        check_invariants(&raw).await;
        let view = jobs.view(&id).await.unwrap().unwrap();
        assert_eq!(view.history.len(), 1);
        assert_eq!(view.history[0].error.name.as_deref(), Some("Timeout"));
        assert_eq!(view.due, Some(jobs::Millis(START.0 + 2_000)));
    }

    async fn a_job_without_retries_left_is_dead(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let first = put(&jobs, job("mail").attempts(0)).await;
        let second = put(&jobs, job("mail").attempts(0)).await;
        let mut w = worker(&jobs, "w1");
        for _ in 0..2 {
            let lease = take(&mut w).await;
            let verdict = jobs.fail(&lease, JobError::new("Oops", "no"), TOOK).await.unwrap();
            assert_eq!(verdict, FailureAction::Dead);
        }
        let newest_first = [second.as_str(), first.as_str()];
        assert_eq!(raw.list("bridge:jobs:deadletter").await, newest_first);
        assert_eq!(raw.status(&first).await.as_deref(), Some("dead"));
        assert_eq!(raw.json(&format!("bridge:jobs:data:{first}")).await["attempts"], 0);
        assert_eq!(raw.json(&format!("bridge:jobs:result:{first}")).await["success"], false);
        check_invariants(&raw).await;
    }

    async fn a_released_job_is_next_in_line_and_costs_no_attempt(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let a = put(&jobs, job("mail")).await;
        let b = put(&jobs, job("mail")).await;
        let mut w = worker(&jobs, "w1");
        let lease = take(&mut w).await;
        assert_eq!(jobs.release(std::slice::from_ref(&lease)).await.unwrap(), 1);
        assert_eq!(raw.list("bridge:jobs:waiting").await, [a.as_str(), b.as_str()]);
        assert_eq!(raw.status(&a).await.as_deref(), Some("waiting"));
        assert_eq!(raw.json(&format!("bridge:jobs:data:{a}")).await["attempts"], 0);
        assert!(raw.get(&format!("bridge:jobs:lock:{a}")).await.is_none());
        assert_eq!(raw.get("bridge:ratelimit:concurrent:mail").await.as_deref(), Some("0"));
        assert_eq!(jobs.release(&[lease]).await.unwrap(), 0, "it is not held any more");
        check_invariants(&raw).await;
        assert_eq!(take_ids(&mut w, 9).await, [a, b]);
    }

    async fn a_renewed_lease_runs_on_and_a_lost_one_does_not(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("mail")).await;
        let lease = take(&mut worker(&jobs, "w1")).await;
        t.clock.advance(Duration::from_secs(20));
        let (outcome, until) = jobs.renew(&[&lease]).await.unwrap();
        assert_eq!((outcome, until.0), (vec![Renewal::Held], START.0 + 50_000));
        assert_eq!(raw.zset("bridge:jobs:leases").await, [(id.to_string(), START.0 + 50_000)]);
        jobs.release(std::slice::from_ref(&lease)).await.unwrap();
        let again = take(&mut worker(&jobs, "w1")).await;
        assert!(again.token > lease.token, "tokens grow");
        assert_eq!(jobs.renew(&[&lease, &again]).await.unwrap().0, [Renewal::Lost, Renewal::Held]);
        assert!(matches!(
            jobs.complete(&lease, None, NO_TIME).await,
            Err(jobs::Error::LeaseLost(_))
        ), "an old lease of the same worker does not complete");
        jobs.complete(&again, None, NO_TIME).await.unwrap();
        check_invariants(&raw).await;
    }

    async fn an_error_to_reroute_sends_the_job_to_another_worker(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let reroute_on = vec!["NoGpu".to_owned()];
        let retry = jobs::Retry { reroute_on, ..jobs::Retry::default() };
        let target = JobTarget::default().worker(&jobs::WorkerId::parse("w1").unwrap());
        let id = put(&jobs, job("render").retry(retry).target(target)).await;
        let (mut w1, mut w2) = (worker(&jobs, "w1"), worker(&jobs, "w2"));
        assert!(take_ids(&mut w2, 1).await.is_empty());
        let lease = take(&mut w1).await;
        let verdict = jobs.fail(&lease, JobError::new("NoGpu", ""), NO_TIME).await.unwrap();
        assert_eq!(verdict, FailureAction::Reroute);
        assert_eq!(raw.status(&id).await.as_deref(), Some("waiting"));
        assert!(take_ids(&mut w1, 1).await.is_empty(), "not to the same worker again");
        assert_eq!(take_ids(&mut w2, 1).await, [id]);
        check_invariants(&raw).await;
    }

    async fn another_namespace_is_another_queue(t: TestStore) {
        let config = jobs::Config {
            namespace: jobs::Namespace::parse("mail").unwrap(),
            ..jobs::Config::default()
        };
        let (jobs, other) = (queue(&t), jobs::Jobs::new(t.store.clone(), config).unwrap());
        let id = put(&other, job("a")).await;
        assert!(take_ids(&mut worker(&jobs, "w1"), 1).await.is_empty());
        assert_eq!(Raw::of(&t).list("mail:jobs:waiting").await, [id.as_str()]);
        assert_eq!(take_ids(&mut worker(&other, "w1"), 1).await, [id]);
    }
}
