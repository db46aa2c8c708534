//! Clients that know only the documented keys, played command by command as v1 sends them.

use std::time::Duration;

use jobs::{CancelOutcome, JobId, Jobs, JobsMaintenance, Labels, Worker, worker::State};
use testkit::TestStore;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;

use crate::support::*;

/// What v1's dispatch sends, one command after the other.
async fn v1_dispatch(raw: &Raw, id: &str, job_type: &str, priority: i32, target: &str) {
    v1_half_dispatch(raw, id, job_type, priority, target).await;
    let () = raw.call(&["SET", &format!("bridge:jobs:status:{id}"), "waiting"]).await;
}

async fn v1_half_dispatch(raw: &Raw, id: &str, job_type: &str, priority: i32, target: &str) {
    let data = format!(
        r#"{{"jobId":"{id}","type":"{job_type}","payload":{{}},"schedule":{{}},"retry":{{"attempts":3,"backoff":{{"type":"exponential","delay":2000}}}},"priority":{priority},"dependsOn":[],"target":{target},"metadata":{{}},"createdAt":1732376323000,"attempts":0}}"#
    );
    let () = raw.call(&["SET", &format!("bridge:jobs:data:{id}"), &data]).await;
    let push = if priority >= 7 { "LPUSH" } else { "RPUSH" };
    let () = raw.call(&[push, "bridge:jobs:waiting", id]).await;
}

/// What v1's class worker does to get a job.
async fn v1_pop(raw: &Raw, server: &str) -> Option<String> {
    let id: Option<String> = raw.call(&["LPOP", "bridge:jobs:waiting"]).await;
    let id = id?;
    raw.get(&format!("bridge:jobs:data:{id}")).await?;
    let locked: Option<String> =
        raw.call(&["SET", &format!("bridge:jobs:lock:{id}"), server, "NX", "EX", "30"]).await;
    if locked.is_none() {
        let () = raw.call(&["RPUSH", "bridge:jobs:waiting", &id]).await;
        let () = raw.call(&["SET", &format!("bridge:jobs:status:{id}"), "waiting"]).await;
        return None;
    }
    let () = raw.call(&["SET", &format!("bridge:jobs:status:{id}"), "active"]).await;
    Some(id)
}

async fn v1_finish(raw: &Raw, id: &str) {
    let result = r#"{"success":true,"completedAt":1,"processingTime":1}"#;
    let () = raw.call(&["SET", &format!("bridge:jobs:result:{id}"), result, "EX", "86400"]).await;
    let () = raw.call(&["SET", &format!("bridge:jobs:status:{id}"), "completed"]).await;
    let () = raw.call(&["DEL", &format!("bridge:jobs:lock:{id}")]).await;
    let () = raw.call(&["SREM", "bridge:jobs:active", id]).await;
}

/// What v1's class worker sends when a job has failed that may be retried.
async fn v1_fail(raw: &Raw, id: &str, server: &str) {
    let result = r#"{"success":false,"error":{"message":"no"},"completedAt":1,"processingTime":1}"#;
    let () = raw.call(&["SET", &format!("bridge:jobs:result:{id}"), result, "EX", "86400"]).await;
    let () = raw.call(&["RPUSH", "bridge:jobs:waiting", id]).await;
    let () = raw.call(&["SET", &format!("bridge:jobs:status:{id}"), "waiting"]).await;
    v1_unlock(raw, id, server).await;
}

/// Ends with success, and unlocks as v1 does: only what it has locked itself.
async fn v1_finish_late(raw: &Raw, id: &str, server: &str) {
    let result = r#"{"success":true,"completedAt":1,"processingTime":1}"#;
    let () = raw.call(&["SET", &format!("bridge:jobs:result:{id}"), result, "EX", "86400"]).await;
    let () = raw.call(&["SET", &format!("bridge:jobs:status:{id}"), "completed"]).await;
    v1_unlock(raw, id, server).await;
}

async fn v1_unlock(raw: &Raw, id: &str, server: &str) {
    let lock = format!("bridge:jobs:lock:{id}");
    if raw.get(&lock).await.as_deref() == Some(server) {
        let () = raw.call(&["DEL", &lock]).await;
    }
    let () = raw.call(&["SREM", "bridge:jobs:active", id]).await;
}

/// A job of two seconds at most, run by a v1 worker for as long as that, and maintenance that saw it.
async fn overrun(t: &TestStore, jobs: &Jobs, retries: u32) -> (JobId, JobsMaintenance) {
    let raw = Raw::of(t);
    let id = put(jobs, job("slow").timeout(Duration::from_secs(2)).attempts(retries)).await;
    assert_eq!(v1_pop(&raw, "v1").await.as_deref(), Some(id.as_str()));
    let maintenance = jobs.maintenance();
    maintenance.tick().await.unwrap();
    t.clock.advance(Duration::from_millis(1_900));
    maintenance.tick().await.unwrap();
    assert_eq!(raw.status(&id).await.as_deref(), Some("active"), "it has some time left");
    t.clock.advance(Duration::from_millis(100));
    maintenance.tick().await.unwrap();
    assert_eq!(raw.json(&format!("bridge:jobs:result:{id}")).await["error"]["name"], "Timeout");
    check_invariants(&raw).await;
    (id, maintenance)
}

testkit::each_store! {
    async fn an_attempt_of_a_v1_worker_that_runs_too_long_ends_as_a_timeout(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let (id, maintenance) = overrun(&t, &jobs, 1).await;
        assert_eq!(raw.status(&id).await.as_deref(), Some("delayed"), "it may be retried");
        let history = raw.list(&format!("bridge:jobs:history:{id}")).await;
        assert!(history[0].contains("Timeout") && history[0].contains("\"v1\""), "{history:?}");
        // The v1 worker knows nothing of that, and says that it is done.
        v1_finish_late(&raw, id.as_str(), "v1").await;
        maintenance.tick().await.unwrap();
        assert_eq!(raw.status(&id).await.as_deref(), Some("delayed"));
        let result = raw.json(&format!("bridge:jobs:result:{id}")).await;
        assert_eq!(result["error"]["name"], "Timeout");
        // The retry is another worker's, and what that comes to counts.
        t.clock.advance(Duration::from_secs(60));
        jobs.scheduler().tick().await.unwrap();
        let lease = take(&mut worker(&jobs, "w1")).await;
        jobs.complete(&lease, None, NO_TIME).await.unwrap();
        maintenance.tick().await.unwrap();
        assert_eq!(raw.status(&id).await.as_deref(), Some("completed"));
        assert!(raw.hash("bridge:jobs:overruns").await.is_empty());
        t.clock.advance(Duration::from_secs(6));
        maintenance.tick().await.unwrap();
        assert!(raw.hash("bridge:jobs:timed").await.is_empty());
        check_invariants(&raw).await;
    }

    async fn a_dead_letter_stays_dead_when_its_v1_worker_succeeds_too_late(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let (id, maintenance) = overrun(&t, &jobs, 0).await;
        assert_eq!(raw.status(&id).await.as_deref(), Some("dead"));
        v1_finish_late(&raw, id.as_str(), "v1").await;
        maintenance.tick().await.unwrap();
        assert_eq!(raw.status(&id).await.as_deref(), Some("dead"));
        let result = raw.json(&format!("bridge:jobs:result:{id}")).await;
        assert_eq!(result["error"]["name"], "Timeout");
        // Or fails too late, for good.
        let () = raw.call(&["LPUSH", "bridge:jobs:deadletter", id.as_str()]).await;
        maintenance.tick().await.unwrap();
        assert_eq!(raw.list("bridge:jobs:deadletter").await, [id.to_string()]);
        check_invariants(&raw).await;
    }

    async fn a_v1_worker_that_fails_too_late_does_not_put_its_job_in_line_twice(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let (id, maintenance) = overrun(&t, &jobs, 3).await;
        v1_fail(&raw, id.as_str(), "v1").await;
        maintenance.tick().await.unwrap();
        assert_eq!(raw.status(&id).await.as_deref(), Some("delayed"));
        assert!(raw.list("bridge:jobs:waiting").await.is_empty());
        check_invariants(&raw).await;
        // Nor when somebody else runs it by then.
        t.clock.advance(Duration::from_secs(60));
        jobs.scheduler().tick().await.unwrap();
        let lease = take(&mut worker(&jobs, "w1")).await;
        v1_fail(&raw, id.as_str(), "v1").await;
        maintenance.tick().await.unwrap();
        assert_eq!(raw.status(&id).await.as_deref(), Some("active"));
        assert!(raw.list("bridge:jobs:waiting").await.is_empty());
        check_invariants(&raw).await;
        v1_finish_late(&raw, id.as_str(), "v1").await;
        maintenance.tick().await.unwrap();
        assert_eq!(raw.status(&id).await.as_deref(), Some("active"));
        jobs.complete(&lease, None, NO_TIME).await.unwrap();
        assert_eq!(raw.status(&id).await.as_deref(), Some("completed"));
        check_invariants(&raw).await;
    }

    async fn what_a_v1_worker_ends_in_time_is_left_alone(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let maintenance = jobs.maintenance();
        let done = put(&jobs, job("slow").timeout(Duration::from_secs(2))).await;
        assert_eq!(v1_pop(&raw, "v1").await.as_deref(), Some(done.as_str()));
        maintenance.tick().await.unwrap();
        v1_finish(&raw, done.as_str()).await;
        let again = put(&jobs, job("slow").timeout(Duration::from_secs(2))).await;
        assert_eq!(v1_pop(&raw, "v1").await.as_deref(), Some(again.as_str()));
        maintenance.tick().await.unwrap();
        // It fails there, and another one takes it at once: the clock begins anew.
        t.clock.advance(Duration::from_millis(1_500));
        v1_fail(&raw, again.as_str(), "v1").await;
        assert_eq!(v1_pop(&raw, "other").await.as_deref(), Some(again.as_str()));
        maintenance.tick().await.unwrap();
        t.clock.advance(Duration::from_secs(1));
        maintenance.tick().await.unwrap();
        assert_eq!(raw.status(&again).await.as_deref(), Some("active"));
        t.clock.advance(Duration::from_secs(1));
        maintenance.tick().await.unwrap();
        assert_eq!(raw.status(&again).await.as_deref(), Some("delayed"));
        t.clock.advance(Duration::from_secs(6));
        maintenance.tick().await.unwrap();
        assert_eq!(raw.status(&done).await.as_deref(), Some("completed"));
        let timed = raw.hash("bridge:jobs:timed").await;
        assert_eq!(timed.keys().collect::<Vec<_>>(), [again.as_str()]);
        check_invariants(&raw).await;
    }

    async fn a_timeout_of_a_job_that_v1s_script_claimed_gives_its_slot_back(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let maintenance = jobs.maintenance();
        let timeout = Duration::from_secs(2);
        let id = put(&jobs, job("slow").timeout(timeout).attempts(0)).await;
        // As claim_job.lua does; the status is left to its caller, who may leave it, too.
        let () = raw.call(&["SET", &format!("bridge:jobs:lock:{id}"), "v1", "EX", "30"]).await;
        let () = raw.call(&["LREM", "bridge:jobs:waiting", "1", id.as_str()]).await;
        let () = raw.call(&["SADD", "bridge:jobs:active", id.as_str()]).await;
        let () = raw.call(&["INCR", "bridge:ratelimit:concurrent:slow"]).await;
        maintenance.tick().await.unwrap();
        t.clock.advance(timeout);
        maintenance.tick().await.unwrap();
        assert_eq!(raw.status(&id).await.as_deref(), Some("dead"));
        assert!(raw.set("bridge:jobs:active").await.is_empty());
        let slots = raw.get("bridge:ratelimit:concurrent:slow").await;
        assert_eq!(slots.as_deref(), Some("0"));
        check_invariants(&raw).await;
    }

    async fn a_v1_producer_feeds_our_worker(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let mut w = worker(&jobs, "w1");
        assert!(take_ids(&mut w, 5).await.is_empty());
        v1_dispatch(&raw, "v-1", "mail", 5, "{}").await;
        v1_dispatch(&raw, "v-2", "mail", 9, "{}").await;
        v1_dispatch(&raw, "v-3", "mail", 5, r#"{"server":"other"}"#).await;
        let ids = take_ids(&mut w, 5).await;
        assert_eq!(ids, ["v-2", "v-1"], "by priority");
        assert_eq!(raw.list("bridge:jobs:waiting").await, ["v-3"]);
        check_invariants(&raw).await;
    }

    async fn producers_of_both_kinds_take_turns(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let mut w = worker(&jobs, "w1");
        let mut expected = Vec::new();
        for n in 0..40 {
            match n % 3 {
                0 => expected.push(put(&jobs, job("a")).await.to_string()),
                _ => {
                    let id = format!("v-{n}");
                    v1_dispatch(&raw, &id, "a", 5, "{}").await;
                    expected.push(id);
                }
            }
        }
        let mut found = Vec::new();
        while found.len() < 40 {
            let ids = take_ids(&mut w, 7).await;
            assert!(!ids.is_empty(), "after {}", found.len());
            found.extend(ids.iter().map(ToString::to_string));
        }
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        assert!(raw.list("bridge:jobs:waiting").await.is_empty());
        check_invariants(&raw).await;
    }

    async fn a_v1_worker_takes_our_jobs_beside_our_worker(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let mut w = worker(&jobs, "w1");
        let mut all = Vec::new();
        for _ in 0..30 {
            all.push(put(&jobs, job("a")).await.to_string());
        }
        let mut seen = Vec::new();
        while seen.len() < 30 {
            if let Some(id) = v1_pop(&raw, "v1").await {
                v1_finish(&raw, &id).await;
                seen.push(id);
            }
            let claimed = w.claim(2).await.unwrap();
            for lease in claimed.leases {
                jobs.complete(&lease, None, NO_TIME).await.unwrap();
                seen.push(lease.id().to_string());
            }
        }
        seen.sort();
        all.sort();
        assert_eq!(seen, all, "each job once");
        assert!(take_ids(&mut w, 9).await.is_empty());
        check_invariants(&raw).await;
    }

    async fn a_quick_worker_of_ours_and_a_v1_worker_share_a_line_at_full_speed(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        // Claimed in large batches, under terms, each taking along what is done.
        let (ran, mut runs) = tokio::sync::mpsc::unbounded_channel();
        let handler = async |id: JobId, State(ran): State<UnboundedSender<String>>| {
            ran.send(id.to_string()).unwrap();
        };
        let ours = Worker::new(&jobs, Labels::new("w1").unwrap(), ran).handle("a", handler);
        let (count, mut all) = (1_200, Vec::new());
        for n in 0..count / 4 {
            let batch = (0..3).map(|k| job("a").priority(if (n + k) % 5 == 0 { 8 } else { 5 }));
            for new in jobs.dispatch_all(batch).await {
                all.push(new.unwrap().id.to_string());
            }
            let id = format!("v-{n}");
            v1_dispatch(&raw, &id, "a", if n % 7 == 0 { 9 } else { 5 }, "{}").await;
            all.push(id);
        }
        let cancel = CancellationToken::new();
        let task = tokio::spawn(ours.run(cancel.clone()));
        let mut seen = Vec::new();
        let theirs = async {
            while seen.len() < count {
                if let Some(id) = v1_pop(&raw, "v1").await {
                    v1_finish(&raw, &id).await;
                    seen.push(id);
                }
                while let Ok(id) = runs.try_recv() {
                    seen.push(id);
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), theirs).await.expect("all have run");
        cancel.cancel();
        task.await.unwrap().unwrap();
        seen.sort();
        all.sort();
        assert_eq!(seen, all, "each job once");
        for id in &all {
            let status = raw.get(&format!("bridge:jobs:status:{id}")).await;
            assert_eq!(status.as_deref(), Some("completed"), "{id}");
        }
        check_invariants(&raw).await;
    }

    async fn a_job_a_v1_worker_has_just_popped_is_not_taken_from_it(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = put(&jobs, job("a")).await;
        let mut w = worker(&jobs, "w1");
        // Between LPOP and SET lock nothing but the list tells.
        let popped: String = raw.call(&["LPOP", "bridge:jobs:waiting"]).await;
        assert_eq!(popped, id.as_str());
        assert!(take_ids(&mut w, 5).await.is_empty());
        // It has no handler for it and puts it back.
        let () = raw.call(&["RPUSH", "bridge:jobs:waiting", id.as_str()]).await;
        let () = raw.call(&["SET", &format!("bridge:jobs:status:{id}"), "waiting"]).await;
        assert_eq!(take_ids(&mut w, 5).await, [id]);
        check_invariants(&raw).await;
    }

    async fn what_a_v1_producer_calls_its_types_is_claimed_paused_and_completed(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        for (n, job_type) in ["send mail", "größe:ü", "a{b}:c  d"].into_iter().enumerate() {
            let job_type = jobs::JobType::foreign(job_type).unwrap();
            let id = format!("job {n} ü");
            v1_dispatch(&raw, &id, job_type.as_str(), 5, "{}").await;
            let mut named = worker(&jobs, "w1").types([job_type.clone()]);
            jobs.pause(&job_type).await.unwrap();
            assert!(take_ids(&mut named, 1).await.is_empty());
            jobs.resume(&job_type).await.unwrap();
            let lease = take(&mut named).await;
            assert_eq!(lease.id(), &JobId::foreign(&id).unwrap());
            assert_eq!(lease.job.job_type, job_type);
            jobs.renew(&[&lease]).await.unwrap();
            jobs.complete(&lease, None, NO_TIME).await.unwrap();
            assert_eq!(raw.status(lease.id()).await.as_deref(), Some("completed"));
            check_invariants(&raw).await;
        }
        assert!(jobs::JobType::foreign("a\nb").is_err());
    }

    async fn a_v1_job_whose_id_no_call_can_name_is_put_away_with_its_reason(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let id = "two\nlines";
        v1_dispatch(&raw, id, "mail", 5, "{}").await;
        v1_dispatch(&raw, "after", "mail", 5, "{}").await;
        let mut w = worker(&jobs, "w1");
        assert_eq!(take(&mut w).await.id(), &JobId::foreign("after").unwrap());
        assert_eq!(raw.list("bridge:jobs:deadletter").await, [id]);
        let result = raw.json(&format!("bridge:jobs:result:{id}")).await;
        assert_eq!(result["error"]["name"], "Malformed");
        assert!(raw.set("bridge:jobs:active").await == ["after"]);
    }

    async fn a_job_cancelled_while_a_v1_worker_runs_it_does_not_run_again(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let maintenance = jobs.maintenance();
        for (id, gives_back) in [("retried", true), ("done", false)] {
            v1_dispatch(&raw, id, "mail", 5, "{}").await;
            assert_eq!(v1_pop(&raw, "v1").await.as_deref(), Some(id));
            let job = JobId::foreign(id).unwrap();
            assert_eq!(jobs.cancel(&job, "enough").await.unwrap(), CancelOutcome::Asked);
            maintenance.tick().await.unwrap();
            assert_eq!(raw.status(&job).await.as_deref(), Some("active"), "it still runs");
            if gives_back {
                // It fails there, and v1 puts it back in the queue at once.
                let () = raw.call(&["RPUSH", "bridge:jobs:waiting", id]).await;
                let () = raw.call(&["SET", &format!("bridge:jobs:status:{id}"), "waiting"]).await;
                let () = raw.call(&["DEL", &format!("bridge:jobs:lock:{id}")]).await;
            } else {
                v1_finish(&raw, id).await;
            }
            maintenance.tick().await.unwrap();
            // As with workers of ours: what succeeds before it can be stopped has succeeded.
            let status = if gives_back { "failed" } else { "completed" };
            assert_eq!(raw.status(&job).await.as_deref(), Some(status));
            assert!(raw.list("bridge:jobs:waiting").await.is_empty());
            let result = raw.json(&format!("bridge:jobs:result:{id}")).await;
            if gives_back {
                assert_eq!(result["error"]["message"], "enough");
            }
            let marks: i64 = raw.call(&["EXISTS", "bridge:jobs:cancelled"]).await;
            assert_eq!(marks, 0);
        }
        assert!(take_ids(&mut worker(&jobs, "w1"), 5).await.is_empty());
    }

    async fn a_half_pushed_v1_job_is_taken_once_its_data_is_there(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let mut w = worker(&jobs, "w1");
        // Pushed, but the producer has not written the status yet.
        v1_half_dispatch(&raw, "v-1", "a", 5, "{}").await;
        let lease = take(&mut w).await;
        assert_eq!(lease.id(), &"v-1");
        jobs.complete(&lease, None, NO_TIME).await.unwrap();
        // A producer of another order: the id is there before the data.
        let () = raw.call(&["RPUSH", "bridge:jobs:waiting", "v-2"]).await;
        let () = raw.call(&["RPUSH", "bridge:jobs:waiting", "v-3"]).await;
        assert!(take_ids(&mut w, 5).await.is_empty());
        assert_eq!(raw.list("bridge:jobs:waiting").await, ["v-2", "v-3"], "they are not dropped");
        let data = r#"{"jobId":"v-2","type":"a"}"#;
        let () = raw.call(&["SET", "bridge:jobs:data:v-2", data]).await;
        t.clock.advance(Duration::from_secs(59));
        jobs.maintenance().tick().await.unwrap();
        assert_eq!(take_ids(&mut w, 5).await, ["v-2"]);
        t.clock.advance(Duration::from_secs(1));
        jobs.maintenance().tick().await.unwrap();
        assert!(raw.list("bridge:jobs:waiting").await.is_empty(), "a name without a job goes");
    }

    async fn a_job_its_v1_producer_stored_but_did_not_push_is_pushed(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let created = jobs.now();
        let data = format!(r#"{{"jobId":"v-1","type":"a","createdAt":{created}}}"#);
        let () = raw.call(&["SET", "bridge:jobs:data:v-1", &data]).await;
        // One that was pushed and only lacks its status must not be pushed twice.
        let data = format!(r#"{{"jobId":"v-2","type":"b","createdAt":{created}}}"#);
        let () = raw.call(&["SET", "bridge:jobs:data:v-2", &data]).await;
        let () = raw.call(&["RPUSH", "bridge:jobs:waiting", "v-2"]).await;
        let maintenance = jobs.maintenance();
        maintenance.tick().await.unwrap();
        assert_eq!(raw.list("bridge:jobs:waiting").await, ["v-2"], "it may be about to be pushed");
        t.clock.advance(Duration::from_secs(60));
        for _ in 0..3 {
            maintenance.tick().await.unwrap();
        }
        assert_eq!(raw.list("bridge:jobs:waiting").await, ["v-2", "v-1"]);
        assert_eq!(take_ids(&mut worker(&jobs, "w1"), 5).await, ["v-2", "v-1"]);
        check_invariants(&raw).await;
    }

    async fn a_status_that_a_slow_v1_producer_wrote_too_late_is_put_right(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        v1_half_dispatch(&raw, "v-1", "a", 5, "{}").await;
        let lease = take(&mut worker(&jobs, "w1")).await;
        jobs.complete(&lease, None, NO_TIME).await.unwrap();
        let () = raw.call(&["SET", "bridge:jobs:status:v-1", "waiting"]).await;
        let id = lease.id();
        assert_eq!(jobs.status(id).await.unwrap(), Some(jobs::Status::Completed), "results count");
        for _ in 0..3 {
            jobs.maintenance().tick().await.unwrap();
        }
        assert_eq!(raw.status(id).await.as_deref(), Some("completed"));
    }

    async fn poison_goes_to_the_dead_letters_and_stops_nobody(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let mut w = worker(&jobs, "w1");
        let poison = [
            ("p-1", "not json"),
            ("p-2", r#"{"payload":{}}"#),
            ("p-3", r#"{"type":"a","target":null}"#),
            ("p-4", r#"{"type":"a","target":{"stack":"rust"}}"#),
        ];
        for (id, data) in poison {
            let () = raw.call(&["SET", &format!("bridge:jobs:data:{id}"), data]).await;
            let () = raw.call(&["RPUSH", "bridge:jobs:waiting", id]).await;
        }
        v1_dispatch(&raw, "v-1", "a", 5, "{}").await;
        assert_eq!(take_ids(&mut w, 5).await, ["v-1"]);
        assert!(raw.list("bridge:jobs:waiting").await.is_empty());
        assert_eq!(raw.list("bridge:jobs:deadletter").await, ["p-4", "p-3", "p-2", "p-1"]);
        let result = raw.json("bridge:jobs:result:p-4").await;
        assert_eq!(result["error"]["name"], "Malformed");
        assert!(result["error"]["message"].as_str().unwrap().contains("target.stack"));
    }
}
