//! A random walk through everything clients of both kinds may do, with the truth checked on the way:
//! every job in one state, one owner, attempts within their limit, counts equal to reality, and in
//! the end no job lost. A failure names its seed.

use std::{collections::BTreeMap, time::Duration};

use jobs::{JobError, JobId, JobLease, JobTarget, Labels, Status};

use crate::support::*;

const STEPS: usize = 150;

/// What the model knows of a job that was acknowledged.
#[derive(Debug)]
struct Known {
    attempts: u32,
    runs: u32,
    completions: u32,
}

async fn walk(t: &testkit::TestStore, seed: u64) {
    let (jobs, raw) = (queue(t), Raw::of(t));
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut workers = [
        jobs.claimer(Labels::new("w1").unwrap()),
        jobs.claimer(Labels::new("w2").unwrap().capabilities(["gpu"])),
        jobs.claimer(Labels::new("w3").unwrap().region("eu")),
    ];
    let (scheduler, maintenance) = (jobs.scheduler(), jobs.maintenance());
    let mut known: BTreeMap<JobId, Known> = BTreeMap::new();
    let mut held: Vec<JobLease> = Vec::new();
    for step in 0..STEPS {
        match chance.u32(0..12) {
            0..=2 => {
                let mut new = job(["a", "b"][chance.usize(0..2)])
                    .priority(chance.u8(1..=10))
                    .attempts(chance.u32(0..3));
                if chance.u32(0..3) == 0 {
                    new = new.target(JobTarget::default().capability("gpu"));
                }
                if chance.u32(0..4) == 0 {
                    new = new.delay(Duration::from_millis(chance.u64(1..5_000)));
                }
                if chance.u32(0..4) == 0 {
                    new = new.max_concurrent(2);
                }
                let attempts = chance.u32(0..3);
                let id = put(&jobs, new.attempts(attempts)).await;
                known.insert(id, Known { attempts, runs: 0, completions: 0 });
            }
            3 => {
                let id = format!("v-{seed}-{step}");
                let data = format!(
                    r#"{{"jobId":"{id}","type":"a","retry":{{"attempts":1}},"attempts":0}}"#
                );
                let () = raw.call(&["SET", &format!("bridge:jobs:data:{id}"), &data]).await;
                let push = if chance.bool() { "LPUSH" } else { "RPUSH" };
                let () = raw.call(&[push, "bridge:jobs:waiting", &id]).await;
                let () = raw.call(&["SET", &format!("bridge:jobs:status:{id}"), "waiting"]).await;
                let id = JobId::parse(id).unwrap();
                known.insert(id, Known { attempts: 1, runs: 0, completions: 0 });
            }
            4..=5 => {
                let which = chance.usize(0..3);
                let claimed = workers[which].claim(chance.usize(1..4)).await.unwrap();
                for lease in claimed.leases {
                    let job = known.get_mut(lease.id()).unwrap();
                    job.runs += 1;
                    assert!(lease.job.attempts <= job.attempts, "seed {seed}: {lease:?}");
                    let twice = held
                        .iter()
                        .any(|other| other.id() == lease.id() && other.until > jobs.now());
                    assert!(!twice, "seed {seed}: {} has two owners", lease.id());
                    held.push(lease);
                }
            }
            6..=9 if !held.is_empty() => {
                let lease = held.swap_remove(chance.usize(0..held.len()));
                let outcome = match chance.u32(0..4) {
                    0 => jobs.fail(&lease, JobError::new("Oops", ""), NO_TIME).await.map(drop),
                    1 => jobs.release(std::slice::from_ref(&lease)).await.map(drop),
                    _ => {
                        let done = jobs.complete(&lease, None, NO_TIME).await;
                        if done.is_ok() {
                            known.get_mut(lease.id()).unwrap().completions += 1;
                        }
                        done
                    }
                };
                match outcome {
                    Ok(()) | Err(jobs::Error::LeaseLost(_)) => {}
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
            10 => {
                t.clock.advance(Duration::from_millis(chance.u64(1..12_000)));
                scheduler.tick().await.unwrap();
                maintenance.tick().await.unwrap();
            }
            _ => {
                if let Some(id) = chance.choice(known.keys()) {
                    // Whatever it says, nothing may be out of order afterwards.
                    let _ = jobs.cancel(id, "").await;
                }
            }
        }
        check_invariants(&raw).await;
    }
    // Everything comes to an end.
    for _ in 0..400 {
        t.clock.advance(Duration::from_secs(31));
        scheduler.tick().await.unwrap();
        maintenance.tick().await.unwrap();
        for worker in &mut workers {
            for lease in worker.claim(100).await.unwrap().leases {
                if jobs.complete(&lease, None, NO_TIME).await.is_ok() {
                    known.get_mut(lease.id()).unwrap().completions += 1;
                }
            }
        }
        let stats = jobs.stats().await.unwrap();
        if stats.waiting + stats.active + stats.delayed == 0 {
            break;
        }
    }
    check_invariants(&raw).await;
    for (id, job) in &known {
        let status = jobs.status(id).await.unwrap();
        assert!(status.is_some_and(Status::is_final), "seed {seed}: {id} is {status:?}, {job:?}");
        let completed = u32::from(status == Some(Status::Completed));
        assert_eq!(job.completions, completed, "seed {seed}: {id} {job:?}");
    }
}

testkit::each_store! {
    async fn no_walk_breaks_the_rules(t: TestStore) {
        for seed in 0..6 {
            let () = Raw::of(&t).call(&["FLUSHALL"]).await;
            walk(&t, seed).await;
        }
    }
}
