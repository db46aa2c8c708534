//! The desk's whole story on a real cluster of three nodes, which takes seconds to start.

use std::time::Duration;

use desk::{
    Identity, InstanceId, Prefix, UserId,
    limit::LimitAlgorithm,
    traffic::{FinishedRequest, RequestOutcome, Traffic},
    users::{OpenOutcome, UserCheck, UserOptions, Users, VerifiedLogin},
};
use testkit::TestStore;

use crate::support::{algorithms, limiter, policy};

#[test]
fn limits_traffic_and_users_work_on_a_cluster() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let t = TestStore::cluster().await;
        limits(&t).await;
        traffic(&t).await;
        users(&t).await;
    });
}

async fn limits(t: &TestStore) {
    let limiter = limiter(&t.store);
    // Identities of many slots at once: a batch is split by slot.
    for algorithm in algorithms() {
        let policy = policy("api", algorithm, 10);
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..400 {
            let (limiter, policy) = (limiter.clone(), policy.clone());
            let identity = Identity::user(&(number % 20).to_string());
            tasks.spawn(async move {
                let decision = limiter.check(&identity, &[&policy], 1).await.unwrap();
                assert!(!decision.degraded);
                decision.allowed
            });
        }
        let allowed = tasks.join_all().await.into_iter().filter(|allowed| *allowed).count();
        assert_eq!(allowed, 200, "ten for each of twenty: {policy:?}");
    }
    let both = [policy("a", LimitAlgorithm::Counter, 5), policy("b", LimitAlgorithm::Sliding, 1)];
    let both: Vec<_> = both.iter().collect();
    let somebody = Identity::ip([192, 0, 2, 1].into());
    assert!(limiter.check(&somebody, &both, 1).await.unwrap().allowed);
    let denied = limiter.check(&somebody, &both, 1).await.unwrap();
    assert_eq!((denied.allowed, denied.limits[0].remaining), (false, 4));
}

async fn traffic(t: &TestStore) {
    let instance = InstanceId::parse("a").unwrap();
    let traffic = Traffic::new(&t.store, &Prefix::default(), None, instance);
    let _connection = traffic.open_connection();
    for number in 0..300 {
        let route = format!("/route/{}", number % 100);
        traffic.record(&FinishedRequest {
            method: "GET",
            route: Some(&route),
            outcome: RequestOutcome::Status(200),
            is_refused: false,
            duration: Duration::from_millis(3),
        });
    }
    traffic.flush().await.unwrap();
    let seen = traffic.snapshot().await.unwrap();
    assert_eq!((seen.total, seen.accepted, seen.connections), (300, 300, 1));
    let endpoints = traffic.endpoints().await.unwrap();
    assert_eq!((endpoints.len(), endpoints[0].requests), (100, 3));
    traffic.reset().await.unwrap();
    assert_eq!(traffic.snapshot().await.unwrap().total, 0);
}

async fn users(t: &TestStore) {
    let users = Users::new(&t.store, &Prefix::default(), UserOptions::default()).unwrap();
    for name in ["anna", "bert", "ünïcode"] {
        let user = UserId::parse(name).unwrap();
        let login = VerifiedLogin { device_id: "x", ip_address: None, replaces: None };
        let OpenOutcome::Opened(token) = users.open_session(&user, login).await.unwrap() else {
            panic!("blocked")
        };
        let token = token.to_string();
        assert!(matches!(users.check_token(&token).await.unwrap(), UserCheck::Valid { .. }));
        users.block(&user, "spam", None).await.unwrap();
        assert!(matches!(users.check_token(&token).await.unwrap(), UserCheck::Blocked(_)));
        users.erase(&user).await.unwrap();
        assert_eq!(users.check_token(&token).await.unwrap(), UserCheck::Unknown);
    }
}
