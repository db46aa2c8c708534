//! Jobs that wait for others.

use std::time::Duration;

use jobs::{JobError, JobId, OnParentFailure, Status};

use crate::support::*;

testkit::each_store! {
    async fn a_job_starts_after_the_last_it_depends_on(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let a = put(&jobs, job("a")).await;
        let b = put(&jobs, job("b")).await;
        let child = put(&jobs, job("c").depends_on([a.clone(), b.clone()])).await;
        assert_eq!(raw.status(&child).await.as_deref(), Some("delayed"));
        assert_eq!(jobs.view(&child).await.unwrap().unwrap().pending.len(), 2);
        let mut w = worker(&jobs, "w1");
        let first = take(&mut w).await;
        let second = take(&mut w).await;
        assert!(take_ids(&mut w, 9).await.is_empty());
        jobs.complete(&first, None, NO_TIME).await.unwrap();
        assert!(take_ids(&mut w, 9).await.is_empty());
        let data = serde_json::value::to_raw_value(&7).unwrap();
        jobs.complete(&second, Some(data), NO_TIME).await.unwrap();
        let lease = take(&mut w).await;
        assert_eq!(lease.id(), &child);
        let results = jobs.parent_results(&lease.job).await.unwrap();
        assert_eq!(results[&b].data.as_ref().unwrap().get(), "7");
        for key in ["bridge:jobs:parents", "bridge:jobs:settled"] {
            let left: i64 = raw.call(&["EXISTS", key]).await;
            assert_eq!(left, 0, "{key}");
        }
        let left: Vec<String> = raw.call(&["KEYS", "bridge:jobs:children:*"]).await;
        assert!(left.is_empty());
        check_invariants(&raw).await;
    }

    async fn a_job_that_depends_on_ended_ones_starts_at_once(t: TestStore) {
        let jobs = queue(&t);
        let a = put(&jobs, job("a")).await;
        let mut w = worker(&jobs, "w1");
        let lease = take(&mut w).await;
        jobs.complete(&lease, None, NO_TIME).await.unwrap();
        let child = put(&jobs, job("c").depends_on([a])).await;
        assert_eq!(take_ids(&mut w, 9).await, [child]);
    }

    async fn a_failed_parent_fails_its_children_and_theirs(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let a = put(&jobs, job("a").attempts(0)).await;
        let b = put(&jobs, job("b").depends_on([a.clone()])).await;
        let c = put(&jobs, job("c").depends_on([b.clone()])).await;
        let any = job("d").depends_on([b.clone()]).on_parent_failure(OnParentFailure::Run);
        let d = put(&jobs, any).await;
        let mut w = worker(&jobs, "w1");
        let lease = take(&mut w).await;
        jobs.fail(&lease, JobError::new("Oops", ""), NO_TIME).await.unwrap();
        for id in [&b, &c] {
            assert_eq!(jobs.status(id).await.unwrap(), Some(Status::Failed), "{id}");
            let result = jobs.result(id).await.unwrap().unwrap();
            assert_eq!(result.error.unwrap().name.as_deref(), Some("ParentFailed"));
        }
        assert_eq!(take_ids(&mut w, 9).await, [d]);
        let late = job("e").depends_on([a.clone()]);
        assert!(matches!(jobs.dispatch(late).await, Err(jobs::Error::Conflict { id, .. }) if id == a));
        check_invariants(&raw).await;
    }

    async fn cancelling_a_parent_fails_what_waits_for_it(t: TestStore) {
        let jobs = queue(&t);
        let a = put(&jobs, job("a")).await;
        let b = put(&jobs, job("b").depends_on([a.clone()])).await;
        jobs.cancel(&a, "no").await.unwrap();
        assert_eq!(jobs.status(&b).await.unwrap(), Some(Status::Failed));
    }

    async fn a_cancelled_child_does_not_start(t: TestStore) {
        let jobs = queue(&t);
        let a = put(&jobs, job("a")).await;
        let b = put(&jobs, job("b").depends_on([a])).await;
        jobs.cancel(&b, "no").await.unwrap();
        let mut w = worker(&jobs, "w1");
        let lease = take(&mut w).await;
        jobs.complete(&lease, None, NO_TIME).await.unwrap();
        assert!(take_ids(&mut w, 9).await.is_empty());
        assert_eq!(jobs.status(&b).await.unwrap(), Some(Status::Failed));
    }

    async fn an_unknown_parent_is_refused(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let nobody = JobId::parse("nobody").unwrap();
        let refused = jobs.dispatch(job("a").depends_on([nobody.clone()])).await;
        assert!(matches!(refused, Err(jobs::Error::NoParent(id)) if id == nobody));
        let stored: Vec<String> = raw.call(&["KEYS", "bridge:jobs:data:*"]).await;
        assert!(stored.is_empty(), "nothing was changed");
    }

    async fn many_children_are_told_in_turns(t: TestStore) {
        let jobs = queue(&t);
        let a = put(&jobs, job("a")).await;
        for _ in 0..250 {
            put(&jobs, job("c").depends_on([a.clone()])).await;
        }
        let mut w = worker(&jobs, "w1");
        let lease = take(&mut w).await;
        jobs.complete(&lease, None, NO_TIME).await.unwrap();
        assert_eq!(jobs.stats().await.unwrap().waiting, 250);
        check_invariants(&Raw::of(&t)).await;
    }

    async fn a_keeper_tells_those_that_a_crash_left_waiting(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let a = put(&jobs, job("a")).await;
        let child = put(&jobs, job("c").depends_on([a.clone()]).delay(Duration::from_secs(5))).await;
        // The parent ended, and whoever ended it died before telling.
        let () = raw.call(&["DEL", "bridge:jobs:waiting"]).await;
        let () = raw.call(&["SET", &format!("bridge:jobs:status:{a}"), "completed"]).await;
        let () = raw.call(&["RPUSH", "bridge:jobs:settled", a.as_str()]).await;
        jobs.maintenance().tick().await.unwrap();
        assert_eq!(jobs.stats().await.unwrap().delayed, 1, "its delay starts now");
        t.clock.advance(Duration::from_secs(5));
        jobs.scheduler().tick().await.unwrap();
        assert_eq!(take_ids(&mut worker(&jobs, "w1"), 9).await, [child]);
    }

    async fn a_replayed_child_waits_for_parents_that_run_again(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let mut w = worker(&jobs, "w1");
        let parent = put(&jobs, job("p")).await;
        let child = put(&jobs, job("c").depends_on([parent.clone()])).await;
        for id in [&parent, &child] {
            let lease = take(&mut w).await;
            assert_eq!(lease.id(), id);
            jobs.complete(&lease, None, NO_TIME).await.unwrap();
        }
        // Parents that have succeeded are not waited for.
        jobs.replay(&child).await.unwrap();
        jobs.complete(&take(&mut w).await, None, NO_TIME).await.unwrap();
        jobs.replay(&parent).await.unwrap();
        jobs.replay(&child).await.unwrap();
        assert_eq!(raw.status(&child).await.as_deref(), Some("delayed"));
        let lease = take(&mut w).await;
        assert_eq!(lease.id(), &parent);
        assert!(take_ids(&mut w, 9).await.is_empty(), "the child waits");
        jobs.complete(&lease, None, NO_TIME).await.unwrap();
        assert_eq!(take_ids(&mut w, 9).await, [child]);
    }

    async fn a_replayed_parent_brings_back_the_children_it_failed(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let mut w = worker(&jobs, "w1");
        let retry = || jobs::Retry { attempts: 0, ..jobs::Retry::default() };
        let parent = put(&jobs, job("p").retry(retry())).await;
        let child = put(&jobs, job("c").depends_on([parent.clone()])).await;
        let grandchild = put(&jobs, job("g").depends_on([child.clone()])).await;
        let other = put(&jobs, job("o").depends_on([parent.clone()])).await;
        jobs.fail(&take(&mut w).await, jobs::JobError::new("Oops", "no"), NO_TIME).await.unwrap();
        jobs.maintenance().tick().await.unwrap();
        for id in [&child, &grandchild, &other] {
            assert_eq!(raw.status(id).await.as_deref(), Some("failed"), "{id}");
        }
        // Alone it would do without what it needs.
        let refused = jobs.replay(&child).await.unwrap_err();
        assert!(refused.to_string().contains(parent.as_str()), "{refused}");
        jobs.remove(&other).await.unwrap();
        jobs.replay(&parent).await.unwrap();
        for id in [&child, &grandchild] {
            assert_eq!(raw.status(id).await.as_deref(), Some("delayed"), "{id}");
        }
        for id in [&parent, &child, &grandchild] {
            let lease = take(&mut w).await;
            assert_eq!(lease.id(), id);
            jobs.complete(&lease, None, NO_TIME).await.unwrap();
        }
        let left: Vec<String> = raw.call(&["KEYS", "bridge:jobs:orphans:*"]).await;
        assert!(left.is_empty(), "{left:?}");
        let left: Vec<String> = raw.call(&["KEYS", "bridge:jobs:pending:*"]).await;
        assert!(left.is_empty(), "{left:?}");
        check_invariants(&raw).await;
    }
}
