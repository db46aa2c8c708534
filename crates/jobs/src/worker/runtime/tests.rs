//! What the loops tell each other, one step at a time.

use super::*;
use crate::{Config, NewJob, Worker};

/// A worker whose leases are renewed so rarely that only a signal can be why a job stops, and a job
/// that it has claimed.
async fn with_a_job() -> (WorkerRuntime, JobLease) {
    let store = store::Store::open("embedded:").await.unwrap();
    let config = Config { lock_ttl: Duration::from_secs(86_400), ..Config::default() };
    let jobs = Jobs::new(store, config).unwrap();
    let worker = Worker::new(&jobs, Labels::new("w1").unwrap(), ()).handle("a", async || ());
    let worker = worker.prepare().unwrap();
    jobs.dispatch(NewJob::new("a", &1).unwrap()).await.unwrap();
    let lease = worker.claimer().claim(1).await.unwrap().leases.remove(0);
    (worker, lease)
}

/// The token that tells the only job in flight to stop.
fn stop_of(shared: &WorkerState) -> CancellationToken {
    shared.in_flight.lock().values().next().unwrap().cancel.clone()
}

/// Runs the renewer until `wanted` has come about.
async fn renewing(
    worker: &WorkerRuntime,
    shared: &WorkerState,
    signals: Option<SignalReceiver>,
    wanted: impl Future<Output = ()>,
) {
    let never = CancellationToken::new();
    tokio::select! {
        () = worker.renew(shared, signals, &never) => unreachable!(),
        () = wanted => {}
        () = tokio::time::sleep(Duration::from_secs(30)) => panic!("the job was not told"),
    }
}

#[tokio::test]
async fn a_job_cancelled_before_the_renewer_listened_is_told() {
    for late in [false, true] {
        let (worker, lease) = with_a_job().await;
        let id = lease.id().clone();
        let shared = WorkerState::default();
        shared.add_in_flight(vec![lease]);
        worker.jobs.cancel(&id, "enough").await.unwrap();
        let signals = match late {
            true => None,
            false => Some(worker.jobs.signals(SignalTopic::Running).await.unwrap()),
        };
        let stop = stop_of(&shared);
        renewing(&worker, &shared, signals, stop.cancelled()).await;
        let why = shared.in_flight.lock().get(&id).unwrap().why.lock().clone();
        assert!(matches!(why, Some(StopCause::Cancelled(reason)) if reason == "enough"));
    }
}

#[tokio::test]
async fn a_job_cancelled_between_its_claim_and_its_arrival_is_told() {
    let (worker, lease) = with_a_job().await;
    let id = lease.id().clone();
    let shared = WorkerState::default();
    let signals = worker.jobs.signals(SignalTopic::Running).await.unwrap();
    shared.claims_under_way(true);
    let arrival = async {
        worker.jobs.cancel(&id, "enough").await.unwrap();
        testkit::until("it is named", async || {
            (!shared.cancel_pending.lock().ids.is_empty()).then_some(())
        })
        .await;
        shared.add_in_flight(vec![lease]);
        shared.claims_under_way(false);
        stop_of(&shared).cancelled().await;
    };
    renewing(&worker, &shared, Some(signals), arrival).await;
    assert!(shared.cancel_pending.lock().ids.is_empty(), "nothing is kept");
}

#[tokio::test]
async fn names_are_kept_only_while_a_claim_may_bring_them_and_not_without_end() {
    let shared = WorkerState::default();
    shared.cancel_pending(&"x".into());
    assert!(shared.cancel_pending.lock().ids.is_empty());
    shared.claims_under_way(true);
    for n in 0..=PENDING_CANCELS_MAX {
        shared.cancel_pending(&n.to_string().into());
    }
    assert_eq!(shared.cancel_pending.lock().ids.len(), PENDING_CANCELS_MAX);
    assert!(shared.cancel_pending.lock().any);
    shared.claims_under_way(false);
    assert!(!shared.cancel_pending.lock().any);
}
