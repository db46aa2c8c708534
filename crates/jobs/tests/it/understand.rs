//! Jobs that can be understood: why they ended, who ran them and when, lists that filter and sort,
//! workers that drain, runs of schedules.

use std::{slice::from_ref, time::Duration};

use jobs::{
    DeadGroups, Error, Filter, FoundJob, JobEndReason, JobError, JobId, JobList, JobType, Jobs,
    Labels, NewJob, Overlap, RunOutcome, SortKey, WorkerId,
};
use testkit::each_store::START;

use crate::support::*;

const SECOND: Duration = Duration::from_secs(1);

fn dead() -> Filter {
    Filter { which: Some(JobList::Dead), ..Filter::default() }
}

/// The reason of a job, as the list and as its own view tell it.
async fn reason(jobs: &Jobs, id: &JobId) -> Option<JobEndReason> {
    let view = jobs.view(id).await.unwrap().unwrap();
    let filter = Filter { text: Some(id.to_string()), ..Filter::default() };
    let (found, _) = jobs.find(&filter, None, 10).await.unwrap();
    assert_eq!(found.len(), 1, "{id} is in one list");
    assert_eq!(found[0].reason, view.reason, "list and view agree on {id}");
    view.reason
}

async fn fail_next(jobs: &Jobs, worker_id: &str, name: &str, message: &str) -> JobId {
    let lease = take(&mut worker(jobs, worker_id)).await;
    jobs.fail(&lease, JobError::new(name, message), SECOND).await.unwrap();
    lease.id().clone()
}

testkit::each_store! {
    async fn a_job_that_ended_tells_why(t: TestStore) {
        let jobs = queue(&t);
        let used = put(&jobs, job("a").attempts(0)).await;
        assert_eq!(fail_next(&jobs, "w1", "Oops", "").await, used);
        let policy = jobs::Retry { skip_on: vec!["Declined".to_owned()], ..jobs::Retry::default() };
        let skipped = put(&jobs, job("a").retry(policy)).await;
        assert_eq!(fail_next(&jobs, "w1", "Declined", "").await, skipped);
        let fatal = put(&jobs, job("a")).await;
        let lease = take(&mut worker(&jobs, "w1")).await;
        jobs.bury(&lease, JobError::new("NoSuchUser", ""), SECOND).await.unwrap();
        let cancelled = put(&jobs, job("a")).await;
        jobs.cancel(&cancelled, "enough").await.unwrap();
        let expired = put(&jobs, job("a").expires_at(jobs.now() + SECOND)).await;
        t.clock.advance(2 * SECOND);
        jobs.maintenance().tick().await.unwrap();
        let parent = put(&jobs, job("a").attempts(0)).await;
        let child = put(&jobs, job("a").depends_on([parent.clone()])).await;
        assert_eq!(fail_next(&jobs, "w1", "Oops", "").await, parent);
        jobs.maintenance().tick().await.unwrap();
        for (id, wanted) in [
            (&used, JobEndReason::AttemptsUsed),
            (&skipped, JobEndReason::SkipOn),
            (&fatal, JobEndReason::Fatal),
            (&cancelled, JobEndReason::Cancelled),
            (&expired, JobEndReason::Expired),
            (&child, JobEndReason::Dependency),
        ] {
            assert_eq!(reason(&jobs, id).await, Some(wanted), "{id}");
        }
        // Results are kept for a day, dead letters for longer: the reason stays with the letter.
        let () = Raw::of(&t).call(&["DEL", &format!("bridge:jobs:result:{skipped}")]).await;
        assert_eq!(reason(&jobs, &skipped).await, Some(JobEndReason::SkipOn));
    }

    async fn a_job_that_takes_its_workers_down_is_poison(t: TestStore) {
        let jobs = queue(&t);
        let id = put(&jobs, job("a").attempts(9)).await;
        for _ in 0..3 {
            take(&mut worker(&jobs, "w1")).await;
            t.clock.advance(60 * SECOND);
            jobs.maintenance().tick().await.unwrap();
            jobs.scheduler().tick().await.unwrap();
        }
        assert_eq!(reason(&jobs, &id).await, Some(JobEndReason::Poison));
    }

    async fn a_job_tells_who_ran_it_and_when_also_after_it_is_done(t: TestStore) {
        let jobs = queue(&t);
        let id = put(&jobs, job("a").attempts(1)).await;
        t.clock.advance(3 * SECOND);
        fail_next(&jobs, "w1", "Oops", "").await;
        t.clock.advance(10 * SECOND);
        jobs.scheduler().tick().await.unwrap();
        let lease = take(&mut worker(&jobs, "w2")).await;
        let view = jobs.view(&id).await.unwrap().unwrap();
        assert_eq!(view.worker_id.as_deref(), Some("w2"));
        assert_eq!(view.claimed_at, Some(jobs::Millis(START.0 + 13_000)));
        t.clock.advance(7 * SECOND);
        let found = jobs.find(&Filter::default(), None, 10).await.unwrap().0;
        assert_eq!(found[0].took(jobs.now()), Some(7 * SECOND), "since its claim");
        jobs.complete(&lease, None, 5 * SECOND).await.unwrap();
        let view = jobs.view(&id).await.unwrap().unwrap();
        assert_eq!(view.worker_id.as_deref(), Some("w2"));
        assert_eq!(view.claimed_at, Some(jobs::Millis(START.0 + 13_000)));
        let first = &view.history[0];
        assert_eq!((first.worker_id.as_str(), first.claimed_at), ("w1", Some(START.0 + 3_000)));
        let found = jobs.find(&Filter::default(), None, 10).await.unwrap().0;
        assert_eq!(found[0].worker_id.as_deref(), Some("w2"));
        assert_eq!(found[0].took(jobs.now()), Some(5 * SECOND));
        assert_eq!(found[0].waited(jobs.now()), None, "it was not its first attempt");
        // Nothing of it is left when it is removed.
        jobs.remove(&id).await.unwrap();
        let left = Raw::of(&t).get(&format!("bridge:jobs:attempt:{id}")).await;
        assert_eq!(left, None);
    }

    async fn lists_are_filtered_by_worker_priority_error_and_time(t: TestStore) {
        let jobs = queue(&t);
        let old = put(&jobs, job("a").priority(3)).await;
        t.clock.advance(60 * SECOND);
        let new = put(&jobs, job("b").priority(8)).await;
        let ids = async |filter: Filter| -> Vec<JobId> {
            let found = jobs.find(&filter, None, 10).await.unwrap().0;
            found.into_iter().map(|found| found.id).collect()
        };
        let all = Filter::default();
        assert_eq!(ids(Filter { priority: Some(8), ..all.clone() }).await, from_ref(&new));
        let recent = Some(jobs.now() - SECOND);
        assert_eq!(ids(Filter { earliest_created_at: recent, ..all.clone() }).await, from_ref(&new));
        assert_eq!(ids(Filter { latest_created_at: recent, ..all.clone() }).await, from_ref(&old));
        fail_next(&jobs, "w1", "Timeout", "no Answer from host 7").await;
        let by_error = Filter { error: Some("no answer".to_owned()), ..all.clone() };
        assert_eq!(ids(by_error).await, from_ref(&new));
        take(&mut worker(&jobs, "w2")).await;
        assert_eq!(ids(Filter { worker_id: Some("w2".to_owned()), ..all }).await, [old]);
    }

    async fn lists_are_sorted_and_paged_in_that_order(t: TestStore) {
        let jobs = queue(&t);
        let mut wanted = Vec::new();
        for priority in [4, 9, 1, 7] {
            let id = put(&jobs, job("a").priority(priority)).await;
            wanted.push((priority, id));
            t.clock.advance(SECOND);
        }
        wanted.sort();
        wanted.reverse();
        let filter = Filter { which: Some(JobList::Waiting), ..Filter::default() };
        let sort = (SortKey::Priority, true);
        let (first, more) = jobs.find_sorted(&filter, sort, 0, 3).await.unwrap();
        assert!(more);
        let (second, more) = jobs.find_sorted(&filter, sort, 3, 3).await.unwrap();
        assert!(!more);
        let ids: Vec<JobId> = first.into_iter().chain(second).map(|found| found.id).collect();
        assert_eq!(ids, wanted.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
        let longest = jobs.find_sorted(&filter, (SortKey::Waited, true), 0, 1).await.unwrap().0;
        assert_eq!(longest[0].waited(jobs.now()), Some(4 * SECOND));
    }

    async fn dead_letters_are_grouped_by_error_and_acted_on_as_a_group(t: TestStore) {
        let jobs = queue(&t);
        for n in 0..5 {
            put(&jobs, job("mail").attempts(0)).await;
            let (name, message) = if n < 3 { ("NoUser", "no user") } else { ("Timeout", "host") };
            fail_next(&jobs, "w1", name, &format!("{message} {n}")).await;
            t.clock.advance(SECOND);
        }
        let DeadGroups { groups, is_whole, newest, next } =
            jobs.dead_groups(&Filter::default(), 2).await.unwrap();
        assert!(is_whole);
        let ids = |found: &[FoundJob]| found.iter().map(|found| found.id.clone()).collect::<Vec<_>>();
        let (all, _) = jobs.find(&dead(), None, 100).await.unwrap();
        assert_eq!(ids(&newest), ids(&all)[..2], "the newest two beside");
        let (rest, end) = jobs.find(&dead(), next, 100).await.unwrap();
        assert_eq!((ids(&rest), end), (ids(&all)[2..].to_vec(), None));
        let told: Vec<_> = groups.iter().map(|g| (g.error.name.as_deref(), g.count)).collect();
        assert_eq!(told, [(Some("NoUser"), 3), (Some("Timeout"), 2)]);
        assert_eq!(groups[0].error.message, "no user 2", "the newest is the example");
        assert_eq!(groups[0].reason, Some(JobEndReason::AttemptsUsed));
        let filter = Filter { group: Some(groups[0].group.clone()), ..dead() };
        let removed = jobs.bulk(&filter, &jobs::BulkAction::Remove, None, 100).await.unwrap();
        assert_eq!((removed.done.len(), removed.next), (3, None));
        let left = jobs.dead_groups(&Filter::default(), 2).await.unwrap();
        assert_eq!((left.groups.len(), left.newest.len(), left.next), (1, 2, None));
    }

    async fn what_others_left_under_keys_of_jobs_spoils_no_overview(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        put(&jobs, job("report").attempts(0)).await;
        let dead = fail_next(&jobs, "w2", "Oops", "no").await;
        let waiting = put(&jobs, job("mail")).await;
        put(&jobs, job("video")).await;
        let labels = Labels::new("w1").unwrap();
        let mut claimer = jobs.claimer(labels).types([JobType::parse("video").unwrap()]);
        let active = take(&mut claimer).await;
        let keys = [
            format!("bridge:jobs:data:{waiting}"),
            format!("bridge:jobs:data:{}", active.id()),
            format!("bridge:jobs:progress:{}", active.id()),
            format!("bridge:jobs:result:{dead}"),
            "bridge:ratelimit:concurrent:video".to_owned(),
        ];
        for key in &keys {
            let () = raw.call(&["DEL", key]).await;
            let () = raw.call(&["RPUSH", key, "no text"]).await;
        }
        let overview = jobs.overview(10).await.unwrap();
        assert_eq!((overview.counts.waiting, overview.counts.active, overview.counts.dead), (1, 1, 1));
        let job = &overview.active[0];
        assert!(job.id == *active.id() && job.job.is_none() && job.with.is_none());
        assert!(overview.dead[0].job.is_some() && overview.dead[0].with.is_none());
        assert_eq!(overview.census.types["mail"].waiting, 1);
    }

    async fn a_drained_worker_completes_what_it_holds_and_claims_nothing(t: TestStore) {
        let jobs = queue(&t);
        let (w1, w2) = (WorkerId::parse("w1").unwrap(), WorkerId::parse("w2").unwrap());
        assert!(matches!(jobs.drain(&w1).await, Err(Error::NoWorker(_))));
        for name in ["w1", "w2"] {
            jobs.register(&Labels::new(name).unwrap(), None, "host", Some(4)).await.unwrap();
        }
        for _ in 0..4 {
            put(&jobs, job("a")).await;
        }
        let mut first = worker(&jobs, "w1");
        let held = take(&mut first).await;
        jobs.drain(&w1).await.unwrap();
        let (counted, claimed) =
            first.complete_and_claim([(&held, None, SECOND)], 5).await.unwrap();
        assert_eq!(counted, [true], "what it holds counts");
        assert!(claimed.leases.is_empty() && claimed.draining && !claimed.more);
        // Another process of the same worker is not served either, and others are.
        assert!(worker(&jobs, "w1").claim(5).await.unwrap().leases.is_empty());
        take(&mut worker(&jobs, "w2")).await;
        let workers = jobs.workers().await.unwrap();
        let draining: Vec<bool> = workers.iter().map(|worker| worker.draining).collect();
        assert_eq!(draining, [true, false]);
        jobs.undrain(&w1).await.unwrap();
        take(&mut first).await;
        // A worker that leaves is not drained when it comes again.
        jobs.drain(&w2).await.unwrap();
        jobs.unregister(&w2).await.unwrap();
        jobs.register(&Labels::new("w2").unwrap(), None, "host", None).await.unwrap();
        take(&mut worker(&jobs, "w2")).await;
    }

    async fn workers_tell_what_they_run_and_get_done(t: TestStore) {
        let jobs = queue(&t);
        let labels = Labels::new("w1").unwrap();
        jobs.register(&labels, None, "host", Some(3)).await.unwrap();
        for _ in 0..4 {
            put(&jobs, job("a").attempts(0)).await;
        }
        let mut claimer = worker(&jobs, "w1");
        let done = take(&mut claimer).await;
        jobs.complete(&done, None, SECOND).await.unwrap();
        fail_next(&jobs, "w1", "Oops", "").await;
        let held = take(&mut claimer).await;
        jobs.heartbeat(&labels.worker_id).await.unwrap();
        let activity = jobs.worker_activity(&["w1", "w9"]).await.unwrap();
        assert_eq!((activity[0].completed, activity[0].failed, activity[0].running), (1, 1, 1));
        assert_eq!(activity[0].jobs[0].id, *held.id());
        assert_eq!(activity[0].jobs[0].job_type, "a");
        assert_eq!(activity[0].jobs[0].claimed_at, Some(START));
        assert!(activity[0].per_minute > 0.0);
        assert_eq!((activity[1].running, activity[1].completed), (0, 0));
        assert_eq!(jobs.workers().await.unwrap()[0].slots, Some(3));
        // Minutes that are past count no more, and are dropped.
        t.clock.advance(600 * SECOND);
        assert_eq!(jobs.worker_activity(&["w1"]).await.unwrap()[0].completed, 0);
    }

    async fn a_schedule_remembers_its_latest_five_runs_and_how_they_ended(t: TestStore) {
        let jobs = queue(&t);
        let id = JobId::parse("nightly").unwrap();
        let schedule = NewJob::new("a", &()).unwrap().id(id.clone()).cron("* * * * *").attempts(0);
        jobs.schedule(schedule).await.unwrap();
        let runs = async || jobs.schedule_view(&id).await.unwrap().unwrap().runs;
        assert!(runs().await.is_empty());
        for n in 0..7 {
            let next = jobs.schedule_view(&id).await.unwrap().unwrap().next;
            t.clock.advance(next.since(jobs.now()));
            assert_eq!(jobs.scheduler().tick().await.unwrap().occurred, 1);
            let lease = take(&mut worker(&jobs, "w1")).await;
            assert_eq!(runs().await[0].outcome, RunOutcome::Active);
            t.clock.advance(SECOND);
            match n % 3 {
                0 => jobs.complete(&lease, None, SECOND).await.unwrap(),
                1 => _ = jobs.fail(&lease, JobError::new("Oops", ""), SECOND).await.unwrap(),
                _ => jobs.stop(&lease, "enough", SECOND).await.unwrap(),
            }
        }
        let seen = runs().await;
        let outcomes: Vec<RunOutcome> = seen.iter().map(|run| run.outcome).collect();
        use RunOutcome::{Completed, Dead, Failed};
        assert_eq!(outcomes, [Completed, Failed, Dead, Completed, Failed]);
        assert!(seen.iter().all(|run| run.ended.is_some()), "{seen:?}");
        jobs.unschedule(&id).await.unwrap();
        assert!(Raw::of(&t).list("bridge:jobs:runs:nightly").await.is_empty());
    }

    async fn a_schedule_runs_now_beside_its_occurrences(t: TestStore) {
        let jobs = queue(&t);
        let id = JobId::parse("hourly").unwrap();
        jobs.schedule(NewJob::new("a", &()).unwrap().id(id.clone()).cron("0 * * * *")).await.unwrap();
        let next = jobs.schedule_view(&id).await.unwrap().unwrap().next;
        jobs.pause_schedule(&id).await.unwrap();
        assert_eq!(jobs.run_schedule(&id).await.unwrap(), id);
        let view = jobs.schedule_view(&id).await.unwrap().unwrap();
        assert_eq!((view.next, view.runs[0].outcome), (next, RunOutcome::Waiting));
        // Its own job is in line, and runs must not overlap.
        assert!(matches!(jobs.run_schedule(&id).await, Err(Error::Conflict { .. })));
        let view = jobs.schedule_view(&id).await.unwrap().unwrap();
        assert_eq!((view.runs.len(), view.runs[0].outcome), (2, RunOutcome::Skipped));
        let lease = take(&mut worker(&jobs, "w1")).await;
        jobs.complete(&lease, None, SECOND).await.unwrap();
        let apart = JobId::parse("apart").unwrap();
        let schedule = NewJob::new("a", &()).unwrap().id(apart.clone()).cron("0 * * * *");
        jobs.schedule(schedule.overlap(Overlap::Allow)).await.unwrap();
        let first = jobs.run_schedule(&apart).await.unwrap();
        t.clock.advance(SECOND);
        let second = jobs.run_schedule(&apart).await.unwrap();
        assert!(first != second && first != apart);
        assert_eq!(jobs.schedule_view(&apart).await.unwrap().unwrap().runs.len(), 2);
        let none = JobId::parse("none").unwrap();
        assert!(matches!(jobs.run_schedule(&none).await, Err(Error::NotFound(_))));
    }
}
