//! A server that goes away. On a server only: the built-in store cannot be cut off.
#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use std::time::{Duration, Instant};

use store::{
    Clock, Error, Key, Options, PubsubMessage, Store, Timeouts,
    events::{EventId, Feed},
    redis::AsyncCommands,
};
use testkit::{Proxy, RedisServer, until};

/// Short enough for a test, long enough for a loaded machine to answer in.
fn options() -> Options {
    Options {
        timeouts: Timeouts {
            connect: Duration::from_millis(500),
            response: Duration::from_millis(500),
            patience: Duration::from_millis(100),
            heartbeat: Duration::from_millis(200),
        },
        ..Options::default()
    }
}

/// Far more than the sum of the deadlines above; a hang is longer.
const NOT_A_HANG: Duration = testkit::HANG;

#[tokio::test]
async fn an_address_without_a_server_is_unavailable() {
    let mut server = RedisServer::start();
    server.kill();
    let error = Store::open_with(&server.url(), options()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { maybe_done: false, .. }), "{error:?}");
}

#[tokio::test]
async fn a_killed_server_is_unavailable_and_then_back() {
    let mut server = RedisServer::start();
    let mut store = Store::open_with(&server.url(), options()).await.unwrap();
    store.set::<_, _, ()>("a", 1).await.unwrap();
    server.kill();
    until("calls are told that nothing was sent", async || {
        let since = Instant::now();
        let error = Error::from(store.clone().get::<_, Option<i64>>("a").await.unwrap_err());
        assert!(since.elapsed() < NOT_A_HANG);
        assert!(error.is_unavailable(), "{error:?}");
        matches!(error, Error::Unavailable { maybe_done: false, .. }).then_some(())
    })
    .await;
    let health = store.health();
    assert!(!health.reachable && health.reason.is_some(), "{health:?}");

    server.restart();
    let value =
        until("the server is back", async || store.clone().get::<_, Option<i64>>("a").await.ok())
            .await;
    assert_eq!(value, None, "a server without persistence comes back empty");
    assert!(store.health().reachable);
}

#[tokio::test]
async fn a_frozen_server_is_unavailable_and_then_back() {
    let server = RedisServer::start();
    let mut store = Store::open_with(&server.url(), options()).await.unwrap();
    store.set::<_, _, ()>("a", 1).await.unwrap();
    server.freeze();
    let since = Instant::now();
    let error = Error::from(store.incr::<_, _, i64>("a", 1).await.unwrap_err());
    assert!(since.elapsed() < NOT_A_HANG);
    assert!(
        matches!(error, Error::Unavailable { maybe_done: true, .. }),
        "sent, not answered: {error:?}"
    );
    until("it is seen to be away", async || (!store.health().reachable).then_some(())).await;

    server.thaw();
    let value: i64 = until("it is back", async || store.clone().get("a").await.ok()).await;
    assert!(
        value == 1 || value == 2,
        "the lost reply may or may not have been carried out: {value}"
    );
}

#[tokio::test]
async fn an_idle_store_notices_a_dead_server_by_itself() {
    let mut server = RedisServer::start();
    let store = Store::open_with(&server.url(), options()).await.unwrap();
    assert!(store.health().reachable);
    server.kill();
    until("the heartbeat notices", async || (!store.health().reachable).then_some(())).await;
    server.restart();
    until("the heartbeat mends", async || store.health().reachable.then_some(())).await;
}

#[tokio::test]
async fn a_subscription_comes_back_with_a_gap() {
    let mut server = RedisServer::start();
    let store = Store::open_with(&server.url(), options()).await.unwrap();
    let mut listener = store.subscribe(&["c"], &["p:*"]).await.unwrap();
    server.restart();
    let gap = tokio::time::timeout(Duration::from_secs(60), listener.recv()).await.unwrap();
    assert_eq!(gap, Some(PubsubMessage::Gap));
    let mut publisher = Store::open(&server.url()).await.unwrap();
    assert_eq!(publisher.publish::<_, _, i64>("c", "1").await.unwrap(), 1);
    assert_eq!(publisher.publish::<_, _, i64>("p:x", "2").await.unwrap(), 1);
    for expected in ["1", "2"] {
        let message = tokio::time::timeout(Duration::from_secs(60), listener.recv()).await.unwrap();
        let Some(PubsubMessage::Published { payload, .. }) = message else { panic!("{message:?}") };
        assert_eq!(payload, expected);
    }
}

#[tokio::test]
async fn a_waiting_call_ends_when_the_server_dies() {
    let mut server = RedisServer::start();
    let store = Store::open_with(&server.url(), options()).await.unwrap();
    let mut own = store.blocking().await.unwrap();
    let waiting = tokio::spawn(async move {
        let result = own.blpop::<_, Option<(String, String)>>("l", 60.0).await;
        (own, result)
    });
    server.restart();
    let (mut own, result) =
        tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap().unwrap();
    // The call may have come before or after the restart.
    if let Err(error) = result {
        assert!(Error::from(error).is_unavailable());
    }
    assert_eq!(own.blpop::<_, Option<(String, String)>>("l", 0.01).await.unwrap(), None);
}

#[tokio::test]
async fn a_waiting_call_ends_when_the_server_freezes() {
    let server = RedisServer::start();
    let store = Store::open_with(&server.url(), options()).await.unwrap();
    let mut own = store.blocking().await.unwrap();
    server.freeze();
    let since = Instant::now();
    let error = own.blpop::<_, Option<(String, String)>>("l", 0.2).await.unwrap_err();
    assert!(Error::from(error).is_unavailable());
    assert!(since.elapsed() < NOT_A_HANG);
    server.thaw();
}

#[tokio::test]
async fn the_clock_is_the_servers() {
    let server = RedisServer::start();
    let mut store = Store::open(&server.url()).await.unwrap();
    let before: (i64, i64) = store::redis::cmd("TIME").query_async(&mut store).await.unwrap();
    let now = store.now();
    let after: (i64, i64) = store::redis::cmd("TIME").query_async(&mut store).await.unwrap();
    let millis = |(seconds, micros): (i64, i64)| seconds * 1_000 + micros / 1_000;
    // Half a round trip of uncertainty at the measurement.
    assert!(
        now.0 >= millis(before) - 500 && now.0 <= millis(after) + 500,
        "{before:?} {now} {after:?}"
    );
    let system = Clock::system().now();
    assert!((system.0 - now.0).abs() < 5_000);
}

#[tokio::test]
async fn a_password_is_sent_and_a_wrong_one_is_denied() {
    let server = RedisServer::start_with(&["--requirepass", "sesame"]);
    let at = server.port();
    let store = Store::open(&format!("redis://:sesame@127.0.0.1:{at}")).await.unwrap();
    store.ping().await.unwrap();
    assert!(!store.health().address.contains("sesame"));
    let error = Store::open(&format!("redis://:wrong@127.0.0.1:{at}")).await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    let error = Store::open(&server.url()).await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
}

#[tokio::test]
async fn a_full_server_refuses_writes_and_goes_on_reading() {
    let server =
        RedisServer::start_with(&["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"]);
    let mut store = Store::open(&server.url()).await.unwrap();
    store.set::<_, _, ()>("small", "x").await.unwrap();
    let mut refused = None;
    for number in 0..100 {
        if let Err(error) = store.set::<_, _, ()>(format!("big{number}"), "x".repeat(100_000)).await
        {
            refused = Some(Error::from(error));
            break;
        }
    }
    assert!(matches!(refused, Some(Error::Oom)), "{refused:?}");
    assert_eq!(store.get::<_, String>("small").await.unwrap(), "x");
}

#[tokio::test]
async fn a_replica_refuses_writes_by_name() {
    let master = RedisServer::start();
    let replica =
        RedisServer::start_with(&["--replicaof", &format!("127.0.0.1 {}", master.port())]);
    let mut store = Store::open(&replica.url()).await.unwrap();
    let error = Error::from(store.set::<_, _, ()>("a", 1).await.unwrap_err());
    assert!(matches!(error, Error::ReadOnly { .. }), "{error:?}");
}

#[tokio::test]
async fn a_wrong_url_says_what_would_be_right() {
    for (url, text) in [
        ("http://127.0.0.1", "is not a kind of store"),
        ("nonsense", "is not a kind of store"),
        ("redis://127.0.0.1/x", "Invalid database number"),
        ("redis://", "hostname"),
    ] {
        let error = Store::open(url).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{url}: {error:?}");
        assert!(error.to_string().contains(text), "{url}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_is_told_and_repeating_a_script_does_no_harm() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port(), 1).await.unwrap();
    let mut store = Store::open_with(&proxy.url(), options()).await.unwrap();
    store.set::<_, _, ()>("n", 0).await.unwrap();

    proxy.lose_reply_to("INCRBY");
    let error = Error::from(store.incr::<_, _, i64>("n", 1).await.unwrap_err());
    assert!(matches!(error, Error::Unavailable { maybe_done: true, .. }), "{error:?}");
    assert_eq!(server.query::<i64>(&["GET", "n"]).unwrap(), 1, "it was carried out, once");
    assert_eq!(proxy.lost(), 1);

    // An event is appended once although its first reply is lost.
    let feed = Feed::new(&store, Key::raw("events"), 100);
    // The connection that broke may be noticed only now.
    until("the first append", async || feed.append("warm", &[("a", "b")]).await.ok()).await;
    proxy.lose_reply_to("EVALSHA");
    let append = async || feed.append("req-1", &[("a", "b")]).await.ok();
    assert!(append().await.is_none());
    until("the repeated append", append).await;
    assert_eq!(server.query::<i64>(&["XLEN", "events"]).unwrap(), 2);
    assert_eq!(proxy.lost(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_replies_lost_at_random_nothing_acknowledged_is_missing_or_double() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port(), 42).await.unwrap();
    let store = Store::open_with(&proxy.url(), options()).await.unwrap();
    let feed = Feed::new(&store, Key::raw("events"), 10_000);
    proxy.lose_replies(10);
    for number in 0..100 {
        let id = format!("req-{number}");
        until("the append", async || feed.append(&id, &[("n", number.to_string())]).await.ok())
            .await;
    }
    assert!(proxy.lost() > 0);
    proxy.heal();
    until("the store is back", async || store.ping().await.ok()).await;
    let batch = feed.after(EventId::START, 1_000).await.unwrap();
    let numbers = batch
        .events
        .iter()
        .map(|event| String::from_utf8(event.get("n").unwrap().to_vec()).unwrap());
    assert!(numbers.eq((0..100).map(|number| number.to_string())), "each once, in order");
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_reset_slow_and_silent_lines_are_errors_in_time_and_heal() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port(), 1).await.unwrap();
    let store = Store::open_with(&proxy.url(), options()).await.unwrap();
    let faults: [(&str, &dyn Fn()); 4] = [
        ("cut", &|| proxy.cut()),
        ("reset", &|| proxy.reset()),
        ("slow", &|| proxy.delay(Duration::from_secs(2))),
        ("silent", &|| proxy.swallow()),
    ];
    for (fault, start) in faults {
        start();
        let since = Instant::now();
        let error = store.ping().await;
        assert!(since.elapsed() < NOT_A_HANG, "{fault}");
        if let Err(error) = error {
            assert!(error.is_unavailable(), "{fault}: {error:?}");
        } else {
            // A reset may be over before the call.
            assert_eq!(fault, "reset");
        }
        proxy.heal();
        until("it heals", async || store.ping().await.ok()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_costs_callers_their_patience_and_no_more() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port(), 1).await.unwrap();
    let store = Store::open_with(&proxy.url(), options()).await.unwrap();
    proxy.cut();
    until("the outage is known", async || (!store.health().reachable).then_some(())).await;
    let since = Instant::now();
    let calls = (0..1_000).map(|_| store.ping());
    for result in futures_util::future::join_all(calls).await {
        assert!(matches!(result, Err(Error::Unavailable { maybe_done: false, .. })), "{result:?}");
    }
    assert!(since.elapsed() < testkit::HANG, "all wait at once, not one after another");
}
