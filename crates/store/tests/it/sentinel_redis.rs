//! A master that Sentinels name. On real servers only: the built-in store has none.

use std::time::{Duration, Instant};

use store::{
    Clock, Error, Options, PubsubMessage, Store, StoreKind, Timeouts, redis::AsyncCommands,
};
use testkit::{Sentinel, until};

fn options() -> Options {
    Options {
        timeouts: Timeouts {
            connect: Duration::from_millis(500),
            response: Duration::from_secs(1),
            patience: Duration::from_millis(100),
            heartbeat: Duration::from_millis(500),
        },
        ..Options::default()
    }
}

/// Writes numbers until told to stop; returns those that were acknowledged.
fn writer(
    store: &Store,
    stop: tokio_util::sync::CancellationToken,
) -> tokio::task::JoinHandle<Vec<u64>> {
    let mut store = store.clone();
    tokio::spawn(async move {
        let mut acknowledged = Vec::new();
        let mut number = 0;
        while !stop.is_cancelled() {
            number += 1;
            let since = Instant::now();
            match store.set::<_, _, ()>(format!("n:{number}"), number).await {
                Ok(()) => acknowledged.push(number),
                Err(error) => {
                    let error = Error::from(error);
                    assert!(
                        matches!(error, Error::Unavailable { .. } | Error::ReadOnly { .. }),
                        "{error:?}"
                    );
                }
            }
            assert!(since.elapsed() < testkit::HANG, "a call hung");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        acknowledged
    })
}

/// How many acknowledged numbers the present master does not have.
async fn missing(store: &mut Store, acknowledged: &[u64]) -> Vec<u64> {
    let mut missing = Vec::new();
    for number in acknowledged {
        if store.get::<_, Option<u64>>(format!("n:{number}")).await.unwrap() != Some(*number) {
            missing.push(*number);
        }
    }
    missing
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_master_is_replaced_and_its_return_takes_no_writes() {
    let mut sentinel = Sentinel::start();
    let mut store = Store::open_with(&sentinel.url(), options()).await.unwrap();
    assert_eq!(store.health().kind, StoreKind::Sentinel);
    let first = store.health().address;
    assert_eq!(first, format!("127.0.0.1:{}", sentinel.servers()[0].port()));
    let mut listener = store.subscribe(&["c"], &[]).await.unwrap();
    store.set::<_, _, ()>("before", 1).await.unwrap();

    let killed = Instant::now();
    sentinel.servers()[0].kill();
    until("the store follows", async || {
        (store.clone().set::<_, _, ()>("after", 1).await.is_ok()).then_some(())
    })
    .await;
    let took = killed.elapsed();
    let health = store.health();
    assert!(health.reachable && health.address != first, "{health:?}");
    assert!(took < testkit::HANG, "{took:?}");

    // The old master comes back and believes for seconds that it is one.
    let stop = tokio_util::sync::CancellationToken::new();
    let writing = writer(&store, stop.clone());
    sentinel.servers()[0].restart();
    until("the old master has become a replica", async || {
        // The Sentinels cut its clients off in the same moment.
        let info: String = sentinel.servers()[0].query(&["INFO", "replication"]).ok()?;
        info.contains("role:slave").then_some(())
    })
    .await;
    stop.cancel();
    let acknowledged = writing.await.unwrap();
    assert!(!acknowledged.is_empty());
    assert_eq!(missing(&mut store, &acknowledged).await, Vec::<u64>::new());
    assert_eq!(store.get::<_, i64>("before").await.unwrap(), 1);

    assert_eq!(listener.recv().await, Some(PubsubMessage::Gap), "the subscription moved too");
    until("it hears the new master", async || {
        (store.clone().publish::<_, _, i64>("c", "x").await.unwrap() >= 1).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_master_that_wakes_up_acknowledges_nothing() {
    let mut sentinel = Sentinel::start();
    // Calls that wait longer than the failover takes are the ones a waking master would answer.
    let mut options = options();
    options.timeouts.response = Duration::from_secs(20);
    let mut store = Store::open_with(&sentinel.url(), options).await.unwrap();
    let before = store.health().address;
    sentinel.servers()[0].freeze();
    let pending: Vec<_> = (0..20)
        .map(|number| {
            let mut store = store.clone();
            tokio::spawn(async move { store.set::<_, _, ()>(format!("stale:{number}"), 1).await })
        })
        .collect();
    until("the store follows", async || {
        let health = store.health();
        (health.reachable && health.address != before).then_some(())
    })
    .await;
    sentinel.servers()[0].thaw();
    for call in pending {
        let error = Error::from(call.await.unwrap().unwrap_err());
        assert!(matches!(error, Error::Unavailable { maybe_done: true, .. }), "{error:?}");
    }
    store.set::<_, _, ()>("fresh", 1).await.unwrap();
    assert_eq!(store.get::<_, i64>("fresh").await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordered_failover_loses_no_acknowledged_write() {
    let mut sentinel = Sentinel::start();
    let mut store = Store::open_with(&sentinel.url(), options()).await.unwrap();
    let mut own = store.blocking().await.unwrap();
    let before = store.health().address;
    sentinel.sentinels()[0].query::<()>(&["SENTINEL", "FAILOVER", "tide"]).unwrap();
    until("the store follows", async || {
        let health = store.health();
        (health.reachable && health.address != before).then_some(())
    })
    .await;
    let stop = tokio_util::sync::CancellationToken::new();
    let writing = writer(&store, stop.clone());
    until("twenty writes are acknowledged", async || {
        store.clone().get::<_, Option<u64>>("n:20").await.ok().flatten()
    })
    .await;
    stop.cancel();
    let acknowledged = writing.await.unwrap();
    assert_eq!(missing(&mut store, &acknowledged).await, Vec::<u64>::new());
    // A connection of one's own follows as well.
    store.rpush::<_, _, ()>("l", "x").await.unwrap();
    let popped: Option<(String, String)> = own.blpop("l", 5.0).await.unwrap();
    assert_eq!(popped, Some(("l".to_owned(), "x".to_owned())));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_sentinel_is_enough_to_open_and_none_is_unavailable() {
    let mut sentinel = Sentinel::start();
    sentinel.sentinels()[0].kill();
    sentinel.sentinels()[1].freeze();
    let store = Store::open_with(&sentinel.url(), options()).await.unwrap();
    store.ping().await.unwrap();
    assert!(Clock::system().now().since(store.now()) < Duration::from_secs(5));

    sentinel.sentinels()[2].kill();
    let since = Instant::now();
    let error = Store::open_with(&sentinel.url(), options()).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    assert!(since.elapsed() < testkit::HANG);
    // The open one goes on without Sentinels.
    store.ping().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_no_sentinel_knows_is_an_error() {
    let sentinel = Sentinel::start();
    let url = sentinel.url().replace("/tide", "/ebb");
    let error = Store::open_with(&url, options()).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error:?}");
    for wrong in [
        "redis+sentinel://127.0.0.1",
        "redis+sentinel://127.0.0.1/a/b",
        "redis+sentinel://127.0.0.1/a?x=1",
    ] {
        let error = Store::open(wrong).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{wrong}: {error:?}");
    }
}
