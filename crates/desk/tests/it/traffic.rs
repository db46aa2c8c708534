//! Traffic over several instances. The numbers in brackets are those of the list of traps.

use std::time::Duration;

use desk::{
    AppName, InstanceId, Prefix,
    traffic::{
        ENDPOINTS_MAX, EndpointName, FinishedRequest, READ_MAX_BUCKETS, RequestOutcome, Traffic,
        TrafficFinder, TrafficSnapshot,
    },
};
use store::{
    Layout, Store,
    redis::{self, AsyncCommands},
};
use testkit::{TestStore, each_store};

use crate::support::{MINUTE, SECOND};

fn traffic(store: &Store, instance: &str) -> Traffic {
    Traffic::new(store, &Prefix::default(), None, InstanceId::parse(instance).unwrap())
}

fn request(route: Option<&'static str>, status: u16) -> FinishedRequest<'static> {
    FinishedRequest {
        method: "GET",
        route,
        outcome: RequestOutcome::Status(status),
        is_refused: false,
        duration: Duration::from_millis(20),
    }
}

/// The key of the connections as the store at hand spells it.
fn connections(t: &TestStore, rest: &str) -> String {
    match t.store.layout() {
        Layout::Standalone => format!("ha:connections:{rest}"),
        Layout::Cluster => format!("ha:{{connections}}:{rest}"),
    }
}

/// Every key of the store.
async fn all_keys(t: &TestStore) -> Vec<String> {
    redis::cmd("KEYS").arg("*").query_async(&mut t.store.clone()).await.unwrap()
}

fn assert_consistent(seen: &TrafficSnapshot) {
    assert_eq!(seen.total, seen.accepted + seen.refused, "{seen:?}");
    assert_eq!(seen.total, seen.by_class.iter().sum::<u64>() + seen.aborted, "{seen:?}");
    assert_eq!(seen.errors, seen.by_class[2] + seen.by_class[3], "{seen:?}");
}

each_store! {
    // M7, M8
    async fn totals_add_up_over_instances_and_kinds_of_outcome(t: TestStore) {
        let instances = [traffic(&t.store, "a"), traffic(&t.another().await, "b")];
        let mut random = fastrand::Rng::with_seed(8);
        let mut sent = 0;
        for _ in 0..20 {
            for instance in &instances {
                for _ in 0..random.u32(0..40) {
                    let status = [200, 204, 302, 400, 401, 404, 429, 500, 503, 101][random.usize(..10)];
                    let outcome = if random.u8(0..9) == 0 { RequestOutcome::Aborted } else { RequestOutcome::Status(status) };
                    let is_refused = matches!(outcome, RequestOutcome::Status(401 | 429));
                    instance.record(&FinishedRequest { outcome, is_refused, ..request(Some("/a"), 200) });
                    sent += 1;
                }
                instance.flush().await.unwrap();
                assert_consistent(&instance.snapshot().await.unwrap());
            }
            t.clock.advance(SECOND);
        }
        let seen = instances[0].snapshot().await.unwrap();
        assert_eq!(seen.total, sent);
        assert!(seen.limited > 0 && seen.refused > seen.limited && seen.aborted > 0);
        let endpoints = instances[1].endpoints().await.unwrap();
        assert_eq!((endpoints.len(), endpoints[0].requests, endpoints[0].errors), (1, sent, seen.errors));
    }

    async fn plain_increments_of_other_programs_count_along(t: TestStore) {
        let traffic = traffic(&t.store, "a");
        traffic.record(&request(Some("/api/forum/questions"), 200));
        traffic.flush().await.unwrap();
        let mut store = t.store.clone();
        store.incr::<_, _, ()>("ha:requests:total", 1).await.unwrap();
        store.incr::<_, _, ()>("ha:requests:endpoint:GET /api/forum/questions", 1).await.unwrap();
        assert_eq!(traffic.snapshot().await.unwrap().total, 2);
        assert_eq!(traffic.endpoints().await.unwrap()[0].requests, 2);
        assert_eq!(store.get::<_, String>("ha:requests:accepted").await.unwrap(), "1", "a plain number");
        // What is not a number is not one, and spoils nothing else.
        store.set::<_, _, ()>("ha:errors:total", "many").await.unwrap();
        traffic.record(&request(Some("/x"), 500));
        traffic.flush().await.unwrap();
        let seen = traffic.snapshot().await.unwrap();
        assert_eq!((seen.total, seen.errors), (3, 0));
        assert_eq!(traffic.missing().lost, 1, "and it is told");
    }

    // M1, M2
    async fn a_total_that_others_raise_alone_is_told_apart(t: TestStore) {
        let (own, mut store) = (traffic(&t.store, "a"), t.store.clone());
        own.record(&request(Some("/a"), 200));
        own.record(&FinishedRequest { is_refused: true, ..request(Some("/a"), 429) });
        own.flush().await.unwrap();
        let seen = own.snapshot().await.unwrap();
        assert_eq!((seen.total, seen.total_only, seen.without_outcome), (2, 0, 0), "what is counted here adds up");
        // As the example of the schema does.
        store.incr::<_, _, ()>("ha:requests:total", 3).await.unwrap();
        let seen = own.snapshot().await.unwrap();
        assert_eq!((seen.total, seen.accepted, seen.refused), (5, 1, 1));
        assert_eq!((seen.total_only, seen.without_outcome), (3, 3));
        // Whoever raises a part alone raises the total that is shown.
        store.incr::<_, _, ()>("ha:requests:accepted", 10).await.unwrap();
        let seen = own.snapshot().await.unwrap();
        assert_eq!((seen.total, seen.accepted, seen.refused), (12, 11, 1));
        assert_eq!((seen.total_only, seen.without_outcome), (0, 10));
    }

    async fn what_others_count_by_themselves_is_found_and_listed_within_the_bounds(t: TestStore) {
        let mut store = t.store.clone();
        let finder = TrafficFinder::new(&t.store, &Prefix::default());
        for (key, by) in [
            ("ha:requests:endpoint:GET /api/forum/questions", 3),
            ("ha:errors:endpoint:GET /api/forum/questions", 1),
            ("ha:app:forum:requests:total", 5),
            ("ha:app:forum:requests:endpoint:PUT /api/forum/questions/123", 2),
            ("ha:app:bad name:requests:total", 1),
            ("ha:requests:endpoint:GET {x}", 1),
        ] {
            store.incr::<_, _, ()>(key, by).await.unwrap();
        }
        while !finder.step(1_000).await.unwrap() {}
        let own = traffic(&t.store, "a").endpoints().await.unwrap();
        let own: Vec<(String, u64, u64)> = own.iter().map(|one| (one.endpoint.to_string(), one.requests, one.errors)).collect();
        assert_eq!(own, [("GET /api/forum/questions".to_owned(), 3, 1)]);
        let apps = desk::traffic::apps(&t.store, &Prefix::default()).await.unwrap();
        assert_eq!(apps.iter().map(AppName::as_str).collect::<Vec<_>>(), ["forum"]);
        let forum = Traffic::new(&t.store, &Prefix::default(), apps.first(), InstanceId::parse("a").unwrap());
        assert_eq!((forum.snapshot().await.unwrap().total, forum.endpoints().await.unwrap()[0].requests), (5, 2));

        // After a reset nothing is listed, until it is counted again.
        forum.reset().await.unwrap();
        t.clock.advance(MINUTE);
        while !finder.step(1_000).await.unwrap() {}
        assert_eq!(desk::traffic::apps(&t.store, &Prefix::default()).await.unwrap(), []);
        for number in 0..50 {
            store.incr::<_, _, ()>(format!("ha:requests:endpoint:GET /{number}"), 1).await.unwrap();
        }
        while !finder.step(10).await.unwrap() {}
        assert!(traffic(&t.store, "a").endpoints().await.unwrap().len() <= 10, "the list stays within its bound");
    }

    async fn a_reset_on_one_instance_loses_no_endpoint_of_another(t: TestStore) {
        let (a, b) = (traffic(&t.store, "a"), traffic(&t.another().await, "b"));
        b.record(&request(Some("/x"), 200));
        b.flush().await.unwrap();
        a.reset().await.unwrap();
        assert_eq!(a.endpoints().await.unwrap().len(), 0);
        t.clock.advance(MINUTE);
        b.record(&request(Some("/x"), 200));
        b.flush().await.unwrap();
        assert_eq!(a.endpoints().await.unwrap()[0].requests, 1);
    }

    async fn connections_are_the_sum_over_live_instances_and_never_below_zero(t: TestStore) {
        let mut store = t.store.clone();
        let (current, max) = (connections(&t, "http:current"), connections(&t, "http:max_since_startup"));
        let read = async |store: &mut Store| -> (i64, i64) {
            (store.get(&current).await.unwrap(), store.get(&max).await.unwrap())
        };
        let instances = ["a", "b", "c"].map(|name| traffic(&t.store, name));
        let mut open: Vec<_> = instances.iter().map(|one| vec![one.open_connection(), one.open_connection()]).collect();
        for instance in &instances {
            instance.flush().await.unwrap();
        }
        assert_eq!(read(&mut store).await, (6, 6));
        open[1].pop();
        instances[1].flush().await.unwrap();
        assert_eq!(read(&mut store).await, (5, 6));
        // One is killed: nobody tells, and fifteen seconds later it does not count.
        for _ in 0..15 {
            t.clock.advance(SECOND);
            instances[0].flush().await.unwrap();
            instances[1].flush().await.unwrap();
        }
        assert_eq!(read(&mut store).await, (3, 6));
        drop(open);
        for instance in &instances[..2] {
            assert_eq!(instance.connections(), 0);
            instance.flush().await.unwrap();
        }
        assert_eq!(read(&mut store).await, (0, 6));
        // All are gone; the first to come starts anew.
        t.clock.advance(16 * SECOND);
        let later = traffic(&t.store, "d");
        let _one = later.open_connection();
        later.flush().await.unwrap();
        assert_eq!(read(&mut store).await, (1, 1));
        let live: i64 = store.hlen(connections(&t, "instances")).await.unwrap();
        assert_eq!(live, 1, "those that are gone are removed");
    }

    // M2
    async fn of_concurrent_reports_the_true_maximum_stays(t: TestStore) {
        let instance = traffic(&t.store, "a");
        let guards: Vec<_> = (0..50).map(|_| instance.open_connection()).collect();
        instance.flush().await.unwrap();
        drop(guards);
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..50 {
            let one = traffic(&t.store, &format!("i{number}"));
            tasks.spawn(async move {
                let _guard = one.open_connection();
                one.flush().await.unwrap();
            });
        }
        tasks.join_all().await;
        let seen = instance.snapshot().await.unwrap();
        assert_eq!((seen.connections, seen.connections_max), (100, 100));
    }

    // M3, M4
    async fn the_speed_is_measured_over_whole_seconds_of_all_instances_and_a_restart_is_no_spike(t: TestStore) {
        let mut instances = ["a", "b", "c"].map(|name| traffic(&t.store, name));
        for second in 0..30 {
            for instance in &instances {
                (0..100).for_each(|_| instance.record(&request(Some("/"), 200)));
                instance.flush().await.unwrap();
            }
            if second == 20 {
                // A restart finds a great total and nothing else.
                instances = ["d", "e", "f"].map(|name| traffic(&t.store, name));
            }
            t.clock.advance(SECOND);
        }
        instances[0].flush().await.unwrap();
        let seen = instances[0].snapshot().await.unwrap();
        assert_eq!((seen.speed_per_second, seen.max_speed_per_second), (300, 300));
        let first = t.clock.now().as_secs() - 30;
        let counts = instances[0].seconds(first, first + 29).await.unwrap();
        assert_eq!(counts, vec![300; 30]);
        let minute = first.div_euclid(60);
        assert_eq!(instances[0].minutes(minute, minute).await.unwrap(), [9_000]);
        for (first, last) in [(0, READ_MAX_BUCKETS), (i64::MIN, i64::MAX), (-5, i64::MAX)] {
            assert!(instances[0].minutes(first, last).await.is_err(), "{first} to {last}");
        }
        for edge in [i64::MIN, i64::MAX] {
            assert_eq!(instances[0].minutes(edge, edge).await.unwrap(), [0]);
        }
        assert!(instances[0].minutes(minute, minute - 1).await.unwrap().is_empty());
        t.clock.advance(20 * SECOND);
        instances[0].flush().await.unwrap();
        let seen = instances[0].snapshot().await.unwrap();
        assert_eq!((seen.speed_per_second, seen.max_speed_per_second), (0, 300));
    }

    // M5
    async fn invented_routes_and_methods_stay_within_the_bound(t: TestStore) {
        let instances = [traffic(&t.store, "a"), traffic(&t.store, "b")];
        let mut sent = 0;
        for round in 0..4 {
            for (which, instance) in instances.iter().enumerate() {
                for number in 0..900 {
                    let route = format!("/{which}/{round}/{number}");
                    instance.record(&FinishedRequest { route: Some(&route), ..request(None, 200) });
                    instance.record(&FinishedRequest { method: "BREW", ..request(None, 404) });
                    sent += 2;
                }
                instance.flush().await.unwrap();
            }
        }
        let endpoints = instances[0].endpoints().await.unwrap();
        assert!(endpoints.len() <= ENDPOINTS_MAX + 1, "{}", endpoints.len());
        assert_eq!(endpoints.iter().map(|endpoint| endpoint.requests).sum::<u64>(), sent);
        let unmatched = endpoints.iter().find(|one| one.endpoint == EndpointName::unmatched());
        assert_eq!(unmatched.unwrap().requests, sent / 2, "one series");
        let keys = all_keys(&t).await;
        let of = |start: &str| keys.iter().filter(|key| key.starts_with(start)).count();
        assert!(of("ha:requests:endpoint:") <= ENDPOINTS_MAX + 1);
        assert!(of("ha:response_times:") <= ENDPOINTS_MAX + 1);
        assert!(keys.iter().all(|key| !key["ha:".len()..].contains('{') || key.contains("{connections}")));
    }

    // M12
    async fn response_times_of_instances_are_merged(t: TestStore) {
        let instances = [traffic(&t.store, "a"), traffic(&t.store, "b")];
        for number in 1..=1_000_u64 {
            let instance = &instances[usize::from(number % 2 == 0)];
            instance.record(&FinishedRequest { duration: Duration::from_millis(number), ..request(Some("/a"), 200) });
        }
        for instance in &instances {
            instance.flush().await.unwrap();
        }
        let seen = &instances[0].endpoints().await.unwrap()[0];
        for (told, exact) in [(seen.p50, 500.0), (seen.p90, 900.0), (seen.p99, 990.0)] {
            let told = told.unwrap().as_secs_f64() * 1_000.0;
            assert!((told / exact - 1.0).abs() < 0.1, "{told} for {exact}");
        }
    }

    // M14
    async fn what_could_not_be_written_is_written_later_and_once(t: TestStore) {
        let traffic = traffic(&t.store, "a");
        for round in 0..5 {
            (0..10).for_each(|_| traffic.record(&request(Some("/a"), 200)));
            match round {
                0 => t.faults.go_away(),
                2 => t.faults.come_back(),
                _ => {}
            }
            assert_eq!(traffic.flush().await.is_ok(), round >= 2, "round {round}");
        }
        let seen = traffic.snapshot().await.unwrap();
        assert_eq!((seen.total, traffic.missing().lost), (50, 0));
        assert_consistent(&seen);
    }

    async fn apps_are_counted_apart_and_reset_apart(t: TestStore) {
        let own = traffic(&t.store, "a");
        let name = AppName::parse("shop").unwrap();
        let shop = Traffic::new(&t.store, &Prefix::default(), Some(&name), InstanceId::parse("a").unwrap());
        for _ in 0..3 {
            own.record(&request(Some("/a"), 200));
            shop.record(&request(Some("/b"), 500));
        }
        own.flush().await.unwrap();
        shop.flush().await.unwrap();
        let mut store = t.store.clone();
        assert_eq!(store.get::<_, i64>("ha:app:shop:requests:total").await.unwrap(), 3);
        store.set::<_, _, ()>("ha:rate_limit:x", "a limit stays").await.unwrap();
        shop.reset().await.unwrap();
        assert_eq!(shop.snapshot().await.unwrap().total, 0);
        assert_eq!(shop.endpoints().await.unwrap(), []);
        assert_eq!(own.snapshot().await.unwrap().total, 3);
        let left = all_keys(&t).await;
        let left: Vec<_> = left.iter().filter(|key| key.starts_with("ha:app:")).collect();
        assert!(left.iter().all(|key| key.contains("connections")), "{left:?}");
        assert!(store.exists::<_, bool>("ha:rate_limit:x").await.unwrap());
        // It counts on after the reset.
        shop.record(&request(Some("/b"), 200));
        shop.flush().await.unwrap();
        assert_eq!(shop.endpoints().await.unwrap()[0].requests, 1);
    }
}

// M13. On a real server, which counts its commands.
#[test]
fn reading_traffic_scans_no_keys() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = testkit::RedisServer::start();
        let traffic = traffic(&Store::open(&server.url()).await.unwrap(), "a");
        for route in ["/a", "/b", "/c"] {
            traffic.record(&request(Some(route), 200));
        }
        traffic.flush().await.unwrap();
        traffic.snapshot().await.unwrap();
        assert_eq!(traffic.endpoints().await.unwrap().len(), 3);
        traffic.reset().await.unwrap();
        let used: String = server.query(&["INFO", "commandstats"]).unwrap();
        assert!(used.contains("cmdstat_incrby:"), "{used}");
        for scan in ["cmdstat_keys:", "cmdstat_scan:"] {
            assert!(!used.contains(scan), "{used}");
        }
    });
}
