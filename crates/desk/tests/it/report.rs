//! Traffic that other programs report, on every store.

use std::time::Duration;

use desk::{
    AppName, InstanceId, Prefix,
    traffic::{ReportedRequests, Traffic},
};
use store::Store;
use testkit::each_store;

fn shop(store: &Store) -> Traffic {
    let app = AppName::parse("shop").unwrap();
    Traffic::new(store, &Prefix::default(), Some(&app), InstanceId::parse("tidegate-1").unwrap())
}

fn worker(name: &str) -> InstanceId {
    InstanceId::parse(name).unwrap()
}

fn requests(route: &str, status: u16, count: u64, since_start: Option<u64>) -> ReportedRequests {
    ReportedRequests {
        method: "GET".to_owned(),
        route: Some(route.to_owned()),
        status,
        requests: count,
        times: vec![(Duration::from_millis(20), count)],
        since_start,
    }
}

async fn total(traffic: &Traffic) -> (u64, u64) {
    traffic.flush().await.unwrap();
    let seen = traffic.snapshot().await.unwrap();
    (seen.total, seen.errors)
}

each_store! {
    async fn counts_since_the_start_of_a_program_are_counted_once_by_whichever_instance(t: TestStore) {
        let (one, other) = (shop(&t.store), shop(&t.another().await));
        let start = Some(1_000);
        one.report(&worker("w1"), &[requests("/a", 200, 10, start), requests("/a", 500, 1, start)]).await.unwrap();
        other.report(&worker("w1"), &[requests("/a", 200, 15, start), requests("/a", 500, 1, start)]).await.unwrap();
        // Sent again, as after a lost reply.
        one.report(&worker("w1"), &[requests("/a", 200, 15, start), requests("/a", 500, 1, start)]).await.unwrap();
        one.report(&worker("w2"), &[requests("/a", 200, 4, start)]).await.unwrap();
        other.flush().await.unwrap();
        assert_eq!(total(&one).await, (20, 1));
    }

    async fn a_new_start_is_a_restart_and_an_old_one_comes_too_late(t: TestStore) {
        let traffic = shop(&t.store);
        for (count, start, expected) in [(10, 5, 10), (3, 9, 13), (11, 5, 13), (4, 9, 14), (2, 9, 16)] {
            traffic.report(&worker("w1"), &[requests("/a", 200, count, Some(start))]).await.unwrap();
            assert_eq!(total(&traffic).await.0, expected, "{count} since {start}");
        }
    }

    async fn counts_since_the_last_report_are_added(t: TestStore) {
        let traffic = shop(&t.store);
        for _ in 0..3 {
            traffic.report(&worker("w1"), &[requests("/a", 200, 5, None)]).await.unwrap();
        }
        assert_eq!(total(&traffic).await, (15, 0));
        let seen = traffic.endpoints().await.unwrap();
        assert_eq!((seen.len(), seen[0].requests), (1, 15));
        let p50 = seen[0].p50.unwrap().as_secs_f64();
        assert!((p50 / 0.02 - 1.0).abs() < 0.1, "{p50}");
    }

    async fn invented_routes_stay_a_thousand_series_and_one(t: TestStore) {
        let traffic = shop(&t.store);
        for round in 1..=2 {
            let many: Vec<_> = (0..2_000).map(|n| requests(&format!("/{n}"), 200, round, Some(7))).collect();
            traffic.report(&worker("w1"), &many).await.unwrap();
        }
        assert_eq!(total(&traffic).await.0, 2 * 2_000);
        assert_eq!(traffic.endpoints().await.unwrap().len(), 1_001);
    }

    async fn connections_of_a_program_are_those_of_its_live_instances(t: TestStore) {
        let traffic = shop(&t.store);
        traffic.report_connections(&worker("w1"), 7).await.unwrap();
        traffic.report_connections(&worker("w2"), 5).await.unwrap();
        assert_eq!(traffic.snapshot().await.unwrap().connections, 12);
        t.clock.advance(Duration::from_secs(100));
        traffic.report_connections(&worker("w2"), 1).await.unwrap();
        t.clock.advance(Duration::from_secs(60));
        traffic.report_connections(&worker("w2"), 1).await.unwrap();
        assert_eq!(traffic.snapshot().await.unwrap().connections, 1);
    }
}
