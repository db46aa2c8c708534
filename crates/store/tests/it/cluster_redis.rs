//! A cluster. On real servers only: the built-in store has no nodes.
#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use store::{
    Error, Key, Layout, Options, Store, StoreKind, Timeouts,
    counter::{CounterTarget, Counters},
    events::{EventId, Feed},
    lease::{FencedLease, LeaseOutcome},
    limit::{self, LimitCheck, Rule},
    redis::{self, AsyncCommands},
};
use testkit::{Cluster, until};

fn options() -> Options {
    Options {
        timeouts: Timeouts {
            connect: Duration::from_secs(1),
            response: Duration::from_secs(2),
            patience: Duration::from_millis(100),
            heartbeat: Duration::from_millis(500),
        },
        ..Options::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_a_service_uses_works_on_a_cluster() {
    let cluster = Cluster::start();
    let mut store = Store::open_with(&cluster.url(), options()).await.unwrap();
    assert_eq!((store.health().kind, store.layout()), (StoreKind::Cluster, Layout::Cluster));
    store.ping().await.unwrap();

    // Commands and pipelines over all slots.
    let keys: Vec<String> = (0..200).map(|number| format!("k{number}")).collect();
    assert!(keys.iter().map(|key| Key::raw(key).slot() / 5462).collect::<BTreeSet<_>>().len() == 3);
    let mut pipe = redis::pipe();
    for (number, key) in keys.iter().enumerate() {
        pipe.set(key, number).ignore();
    }
    pipe.cmd("PUBLISH").arg("c").arg("x").ignore();
    pipe.query_async::<()>(&mut store).await.unwrap();
    let mut pipe = redis::pipe();
    for key in &keys {
        pipe.get(key);
    }
    let values: Vec<usize> = pipe.query_async(&mut store).await.unwrap();
    assert!(values.into_iter().eq(0..200), "replies come in the order of the commands");
    assert_eq!(redis::cmd("DBSIZE").query_async::<i64>(&mut store).await.unwrap(), 200);
    let error = redis::pipe()
        .get("k1")
        .lpush("k2", "x")
        .get("k3")
        .query_async::<()>(&mut store)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");

    // A transaction needs one slot.
    let (n,): (i64,) = redis::pipe()
        .atomic()
        .set("{t}a", 1)
        .ignore()
        .incr("{t}a", 1)
        .query_async(&mut store)
        .await
        .unwrap();
    assert_eq!(n, 2);
    let error = redis::pipe()
        .atomic()
        .set("k1", 1)
        .set("k2", 1)
        .query_async::<()>(&mut store)
        .await
        .unwrap_err();
    assert!(error.to_string().to_lowercase().contains("cross"), "{error}");

    // Scripts, also when a node has forgotten them.
    let lease = FencedLease::new(&store, Key::raw("lock"), "a", Duration::from_secs(30));
    for _ in 0..2 {
        assert!(matches!(lease.take().await.unwrap(), LeaseOutcome::Held(_)));
        redis::cmd("SCRIPT").arg("FLUSH").query_async::<()>(&mut store).await.unwrap();
    }
    let rule = Rule::Bucket { burst: 2, count: 1, per: Duration::from_secs(60) };
    let check = |key: &str| {
        let (key, request_id) = (Key::raw(key), "1".to_owned());
        LimitCheck { key, rule, cost: 1, request_id }
    };
    let outcomes = limit::check_all(&store, &[check("{u}a"), check("{u}b")]).await.unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.allowed));
    let apart = [check("k1"), check("k2")];
    assert!(limit::check_all(&store, &apart).await.is_err(), "keys of two slots");

    // Waiting calls go to the owner of the key, whichever that is.
    let mut own = store.blocking().await.unwrap();
    for key in ["k1", "k2", "k3", "{t}l"] {
        let key = format!("list:{key}");
        store.rpush::<_, _, ()>(&key, "x").await.unwrap();
        let popped: Option<(String, String)> = own.blpop(&key, 5.0).await.unwrap();
        assert_eq!(popped, Some((key, "x".to_owned())));
    }
    let feed = Feed::new(&store, Key::raw("events"), 100);
    let mut follower = feed.follow(EventId::START).await.unwrap();
    feed.append("", &[("a", "b")]).await.unwrap();
    assert_eq!(follower.next(Duration::from_secs(5)).await.unwrap().events.len(), 1);

    // Messages reach a listener at any node.
    let mut listeners = Vec::new();
    for _ in 0..4 {
        listeners.push(store.subscribe(&["news"], &[]).await.unwrap());
    }
    store.publish::<_, _, i64>("news", "x").await.unwrap();
    for listener in &mut listeners {
        tokio::time::timeout(Duration::from_secs(60), listener.recv()).await.unwrap().unwrap();
    }

    // Counters in all slots.
    let counters = Counters::new(&store, 1_000);
    for number in 0..100 {
        counters.add(
            CounterTarget::Key { key: Key::raw(format!("count:{number}")), keep: None },
            number,
        );
    }
    assert_eq!(counters.flush().await.unwrap(), 99, "adding nothing writes nothing");
    assert_eq!(store.get::<_, i64>("count:42").await.unwrap(), 42);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_is_followed() {
    let cluster = Cluster::start();
    let mut store = Store::open_with(&cluster.url(), options()).await.unwrap();
    let mut own = store.blocking().await.unwrap();
    let key = Key::raw("{moving}n");
    for number in 0..50 {
        store.set::<_, _, ()>(format!("{{moving}}{number}"), number).await.unwrap();
    }
    store.rpush::<_, _, ()>("{moving}l", &["a", "b"]).await.unwrap();
    let popped: Option<(String, String)> = own.blpop("{moving}l", 5.0).await.unwrap();
    assert_eq!(popped.unwrap().1, "a");
    let from = cluster.owner(key.slot()).unwrap();

    let counting = tokio::spawn({
        let mut store = store.clone();
        async move {
            for _ in 0..300 {
                store.incr::<_, _, i64>("{moving}n", 1).await.unwrap();
            }
        }
    });
    cluster.move_slot(key.slot(), (from + 1) % 3).unwrap();
    counting.await.unwrap();
    assert_ne!(cluster.owner(key.slot()).unwrap(), from);
    assert_eq!(store.get::<_, i64>(&key).await.unwrap(), 300);
    assert_eq!(store.get::<_, i64>("{moving}49").await.unwrap(), 49);
    let popped: Option<(String, String)> = own.blpop("{moving}l", 5.0).await.unwrap();
    assert_eq!(popped.unwrap().1, "b", "an own connection follows too");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_master_is_replaced_by_its_replica() {
    let mut cluster = Cluster::start();
    let mut store = Store::open_with(&cluster.url(), options()).await.unwrap();
    let key = Key::raw("k");
    store.set::<_, _, ()>(&key, 1).await.unwrap();
    // One replica at least has it, so that no acknowledged write can be lost.
    let master = cluster.owner(key.slot()).unwrap();
    let mut own = store.blocking().await.unwrap();
    redis::cmd("SET").arg(&key).arg(2).query_async::<()>(&mut own).await.unwrap();
    let copies: i64 = redis::cmd("WAIT").arg(1).arg(5_000).query_async(&mut own).await.unwrap();
    assert_eq!(copies, 1);

    cluster.nodes()[master].kill();
    let since = Instant::now();
    let result = store.get::<_, i64>(&key).await;
    assert!(since.elapsed() < testkit::HANG, "a call hung");
    if let Err(error) = result {
        assert!(Error::from(error).is_unavailable());
    }
    let value =
        until("the replica takes over", async || store.clone().get::<_, i64>(&key).await.ok())
            .await;
    assert_eq!(value, 2);
    until("it takes writes", async || store.clone().set::<_, _, ()>(&key, 3).await.ok()).await;
    until("the health check is content", async || store.health().reachable.then_some(())).await;
    assert_eq!(store.get::<_, i64>(&key).await.unwrap(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_away_is_unavailable() {
    let mut cluster = Cluster::start();
    let mut store = Store::open_with(&cluster.url(), options()).await.unwrap();
    store.set::<_, _, ()>("a", 1).await.unwrap();
    cluster.nodes().iter_mut().for_each(testkit::RedisServer::kill);
    let since = Instant::now();
    let error = Error::from(store.get::<_, i64>("a").await.unwrap_err());
    assert!(error.is_unavailable(), "{error:?}");
    until("the health check notices", async || (!store.health().reachable).then_some(())).await;
    let error = Error::from(
        store
            .blocking()
            .await
            .unwrap()
            .blpop::<_, Option<(String, String)>>("a", 1.0)
            .await
            .unwrap_err(),
    );
    assert!(error.is_unavailable(), "{error:?}");
    assert!(store.subscribe(&["c"], &[]).await.unwrap_err().is_unavailable());
    assert!(Store::open_with(&cluster.url(), options()).await.unwrap_err().is_unavailable());
    assert!(since.elapsed() < testkit::HANG, "{:?}", since.elapsed());
}
