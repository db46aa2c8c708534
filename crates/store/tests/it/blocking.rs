//! Calls that wait, and sessions, on a connection of their own.

use std::time::{Duration, Instant};

use store::{
    Error,
    redis::{
        self, AsyncCommands, Direction,
        streams::{StreamReadOptions, StreamReadReply},
    },
};

testkit::each_store! {
    async fn a_waiting_pop_is_woken_by_a_push(t: TestStore) {
        let mut own = t.store.blocking().await.unwrap();
        let waiting = tokio::spawn(async move { own.blpop::<_, Option<(String, String)>>("l", 30.0).await });
        // The push may come before or after the pop; either way it is popped.
        t.store.clone().rpush::<_, _, ()>("l", "x").await.unwrap();
        let popped = waiting.await.unwrap().unwrap();
        assert_eq!(popped, Some(("l".to_owned(), "x".to_owned())));
        assert_eq!(t.store.clone().llen::<_, i64>("l").await.unwrap(), 0);
    }

    async fn a_waiting_pop_ends_by_its_own_timeout(t: TestStore) {
        let mut own = t.store.blocking().await.unwrap();
        let since = Instant::now();
        assert_eq!(own.blpop::<_, Option<(String, String)>>("l", 0.05).await.unwrap(), None);
        assert!(since.elapsed() >= Duration::from_millis(50));
        assert_eq!(own.bzpopmin::<_, Option<(String, String, f64)>>("z", 0.01).await.unwrap(), None);
        assert_eq!(
            own.blmove::<_, _, Option<String>>("l", "m", Direction::Left, Direction::Right, 0.01).await.unwrap(),
            None
        );
    }

    async fn a_stream_is_read_as_it_grows(t: TestStore) {
        let mut own = t.store.blocking().await.unwrap();
        let mut store = t.store.clone();
        let first: String = store.xadd("s", "*", &[("n", "1")]).await.unwrap();
        let options = StreamReadOptions::default().block(30_000).count(10);
        let waiting = tokio::spawn(async move {
            own.xread_options::<_, _, Option<StreamReadReply>>(&["s"], &[first], &options).await
        });
        store.xadd::<_, _, _, _, String>("s", "*", &[("n", "2")]).await.unwrap();
        let reply = waiting.await.unwrap().unwrap().unwrap();
        assert_eq!(reply.keys[0].ids[0].get::<i64>("n"), Some(2));
    }

    async fn a_wait_without_end_is_refused(t: TestStore) {
        let mut own = t.store.blocking().await.unwrap();
        let error = own.blpop::<_, Option<(String, String)>>("l", 0.0).await.unwrap_err();
        assert!(error.to_string().contains("must say how long"), "{error}");
    }

    async fn a_dropped_wait_takes_nothing(t: TestStore) {
        let mut own = t.store.blocking().await.unwrap();
        let wait = own.blpop::<_, Option<(String, String)>>("l", 30.0);
        assert!(tokio::time::timeout(Duration::from_millis(100), wait).await.is_err());
        // A server needs a moment to see that the connection is closed.
        let mut store = t.store.clone();
        if t.url().starts_with("redis") {
            let gone = async {
                while redis::cmd("INFO").arg("clients").query_async::<redis::InfoDict>(&mut store).await.unwrap()
                    .get::<i64>("blocked_clients") != Some(0)
                {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
        }
        store.rpush::<_, _, ()>("l", "kept").await.unwrap();
        assert_eq!(store.lrange::<_, Vec<String>>("l", 0, -1).await.unwrap(), ["kept"]);
        // And the same handle goes on.
        let popped: Option<(String, String)> = own.blpop("l", 5.0).await.unwrap();
        assert_eq!(popped, Some(("l".to_owned(), "kept".to_owned())));
    }

    async fn a_watched_transaction_fails_when_another_writes(t: TestStore) {
        let mut own = t.store.blocking().await.unwrap();
        let mut store = t.store.clone();
        store.set::<_, _, ()>("n", 1).await.unwrap();
        redis::cmd("WATCH").arg("n").query_async::<()>(&mut own).await.unwrap();
        store.set::<_, _, ()>("n", 2).await.unwrap();
        let done: Option<(i64,)> = redis::pipe().atomic().incr("n", 10).query_async(&mut own).await.unwrap();
        assert_eq!(done, None);
        redis::cmd("WATCH").arg("n").query_async::<()>(&mut own).await.unwrap();
        let done: Option<(i64,)> = redis::pipe().atomic().incr("n", 10).query_async(&mut own).await.unwrap();
        assert_eq!(done, Some((12,)));
    }

    async fn a_shared_handle_refuses_what_would_hold_up_others(t: TestStore) {
        let mut store = t.store.clone();
        let error = Error::from(store.blpop::<_, Option<(String, String)>>("l", 1.0).await.unwrap_err());
        assert!(error.to_string().contains("refused"), "{error}");
        assert!(redis::cmd("MULTI").query_async::<()>(&mut store).await.is_err());
        assert!(redis::cmd("SUBSCRIBE").arg("c").query_async::<()>(&mut store).await.is_err());
        assert!(redis::pipe().get("a").cmd("SELECT").arg(1).query_async::<()>(&mut store).await.is_err());
        t.store.ping().await.unwrap();
    }
}
