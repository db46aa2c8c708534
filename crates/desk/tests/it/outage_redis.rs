//! Limits under load while the way to a real server drops, hangs and resets.

use std::time::Duration;

use desk::{
    Identity,
    limit::{LimitAlgorithm, Limiter, Policy, WhenStoreDown},
};
use testkit::{Proxy, RedisServer};
use tokio::time::Instant;

use crate::support::{limiter, policy};

const TIMEOUT: Duration = Duration::from_millis(50);
/// What a busy machine adds to a timeout before a task runs again.
const SLACK: Duration = Duration::from_millis(150);
const LIMIT: u64 = 40;

/// One way in which a server is not there.
#[derive(Clone, Copy, Debug)]
enum Outage {
    Drop,
    Hang,
    Reset,
}

impl Outage {
    fn begin(self, proxy: &Proxy) {
        match self {
            Outage::Drop => proxy.cut(),
            Outage::Hang => proxy.swallow(),
            Outage::Reset => {
                proxy.reset();
                proxy.cut();
            }
        }
    }
}

fn down(name: &str, then: WhenStoreDown) -> Policy {
    policy(name, LimitAlgorithm::Sliding, LIMIT).when_store_down(then, TIMEOUT).unwrap()
}

/// Decisions of 20 callers who ask ten times each: allowed, degraded, and the time each took.
async fn load(limiter: &Limiter, policy: &Policy, who: &str) -> Vec<(bool, bool, Duration)> {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (limiter, policy, who) = (limiter.clone(), policy.clone(), Identity::user(who));
        tasks.spawn(async move {
            let mut seen = Vec::new();
            for _ in 0..10 {
                let started = Instant::now();
                let decision = limiter.check(&who, &[&policy], 1).await.unwrap();
                seen.push((decision.allowed, decision.degraded, started.elapsed()));
            }
            seen
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

fn p99(seen: &[(bool, bool, Duration)]) -> Duration {
    let mut times: Vec<Duration> = seen.iter().map(|(_, _, took)| *took).collect();
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

fn run(outage: Outage) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port(), 1).await.unwrap();
        let store = store::Store::open(&proxy.url()).await.unwrap();
        let limiter = limiter(&store);
        let local = down("local", WhenStoreDown::Local);
        let open = down("open", WhenStoreDown::Open);
        let closed = down("closed", WhenStoreDown::Closed);
        // The store that limits alone is opened before it is needed in a hurry.
        outage.begin(&proxy);
        load(&limiter, &local, "warm-up").await;

        for (policy, least, most) in [(&local, LIMIT, LIMIT), (&open, 200, 200), (&closed, 0, 0)] {
            let seen = load(&limiter, policy, "a").await;
            let allowed = seen.iter().filter(|(allowed, ..)| *allowed).count() as u64;
            assert!((least..=most).contains(&allowed), "{outage:?}, {policy:?}: {allowed}");
            assert!(seen.iter().all(|(_, degraded, _)| *degraded), "{outage:?}: all are told");
            let added = p99(&seen);
            assert!(added <= TIMEOUT + SLACK, "{outage:?}: p99 is {added:?}");
            assert_eq!(
                limiter.stats()[&policy.name().cloned()].degraded,
                if policy == &local { 400 } else { 200 }
            );
        }

        // Recovery needs no restart, and what each instance allowed alone is not held against anybody.
        proxy.heal();
        testkit::until("the store is asked again", async || {
            let decision = limiter.check(&Identity::user("b"), &[&local], 1).await.unwrap();
            (!decision.degraded).then_some(())
        })
        .await;
        let seen = load(&limiter, &policy("local", LimitAlgorithm::Sliding, LIMIT), "c").await;
        let allowed = seen.iter().filter(|(allowed, ..)| *allowed).count() as u64;
        assert_eq!(allowed, LIMIT, "{outage:?}: exact again");
    });
}

#[test]
fn a_server_that_drops_costs_the_timeout_and_the_policies_decide() {
    run(Outage::Drop);
}

#[test]
fn a_server_that_hangs_costs_the_timeout_and_the_policies_decide() {
    run(Outage::Hang);
}

#[test]
fn a_server_that_resets_costs_the_timeout_and_the_policies_decide() {
    run(Outage::Reset);
}
