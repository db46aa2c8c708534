//! Typed commands, pipelines and errors through the handle.

use std::time::Duration;

use store::{
    Error, Layout,
    redis::{self, AsyncCommands},
};
use testkit::each_store::START;

testkit::each_store! {
    async fn typed_commands_and_replies_work(t: TestStore) {
        let mut store = t.store.clone();
        store.set::<_, _, ()>("name", "tide").await.unwrap();
        assert_eq!(store.get::<_, Option<String>>("name").await.unwrap().as_deref(), Some("tide"));
        assert_eq!(store.get::<_, Option<String>>("absent").await.unwrap(), None);
        assert_eq!(store.incr::<_, _, i64>("count", 5).await.unwrap(), 5);
        let added: i64 = store.zadd_multiple("z", &[(2.5, "b"), (1.0, "a")]).await.unwrap();
        assert_eq!(added, 2);
        let scores: Vec<(String, f64)> = store.zrange_withscores("z", 0, -1).await.unwrap();
        assert_eq!(scores, [("a".to_owned(), 1.0), ("b".to_owned(), 2.5)]);
        store.hset_multiple::<_, _, _, ()>("h", &[("f", "1"), ("g", "2")]).await.unwrap();
        let hash: std::collections::BTreeMap<String, i64> = store.hgetall("h").await.unwrap();
        assert_eq!(hash.into_iter().collect::<Vec<_>>(), [("f".to_owned(), 1), ("g".to_owned(), 2)]);
        let binary = b"\r\n\0\xff".to_vec();
        store.set::<_, _, ()>("bytes", &binary).await.unwrap();
        assert_eq!(store.get::<_, Vec<u8>>("bytes").await.unwrap(), binary);
    }

    async fn a_pipeline_gives_one_reply_per_command(t: TestStore) {
        let mut store = t.store.clone();
        let (a, b): (i64, Option<String>) =
            redis::pipe().incr("n", 1).set("s", "x").ignore().get("s").query_async(&mut store).await.unwrap();
        assert_eq!((a, b.as_deref()), (1, Some("x")));
    }

    async fn a_transaction_gives_all_replies_at_once(t: TestStore) {
        let mut store = t.store.clone();
        let (n, list): (i64, Vec<String>) = redis::pipe()
            .atomic()
            .incr("n", 3)
            .rpush("l", &["a", "b"])
            .ignore()
            .lrange("l", 0, -1)
            .query_async(&mut store)
            .await
            .unwrap();
        assert_eq!(n, 3);
        assert_eq!(list, ["a", "b"]);
    }

    async fn an_error_inside_a_pipeline_names_its_command(t: TestStore) {
        let mut store = t.store.clone();
        let error = redis::pipe()
            .set("s", "x")
            .ignore()
            .lpush("s", "y")
            .query_async::<()>(&mut store)
            .await
            .unwrap_err();
        assert!(error.to_string().contains("WRONGTYPE"), "{error}");
        let errors = error.into_server_errors().unwrap();
        assert_eq!(errors.iter().map(|(index, error)| (*index, error.code())).collect::<Vec<_>>(), [(1, "WRONGTYPE")]);
    }

    async fn a_wrong_type_is_an_error_of_its_own(t: TestStore) {
        let mut store = t.store.clone();
        store.set::<_, _, ()>("s", "x").await.unwrap();
        let error = Error::from(store.lpush::<_, _, i64>("s", "y").await.unwrap_err());
        assert!(matches!(error, Error::WrongType { .. }), "{error:?}");
    }

    async fn a_reply_of_another_shape_is_a_decode_error(t: TestStore) {
        let mut store = t.store.clone();
        store.set::<_, _, ()>("s", "x").await.unwrap();
        let error = Error::from(store.get::<_, i64>("s").await.unwrap_err());
        assert!(matches!(error, Error::Decode { .. }), "{error:?}");
    }

    async fn many_callers_share_one_handle(t: TestStore) {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..64 {
            let mut store = t.store.clone();
            tasks.spawn(async move {
                for _ in 0..20 {
                    store.incr::<_, _, i64>("n", 1).await.unwrap();
                }
            });
        }
        tasks.join_all().await;
        assert_eq!(t.store.clone().get::<_, i64>("n").await.unwrap(), 64 * 20);
    }

    async fn a_manual_clock_moves_by_hand_only(t: TestStore) {
        assert_eq!(t.store.now(), START);
        t.clock.advance(Duration::from_secs(90));
        assert_eq!(t.store.now(), START + Duration::from_secs(90));
        assert_eq!(t.another().await.now(), t.store.now());
    }

    async fn health_says_reachable(t: TestStore) {
        t.store.ping().await.unwrap();
        let health = t.store.health();
        assert!(health.reachable && health.reason.is_none(), "{health:?}");
    }

    async fn each_test_has_an_empty_keyspace(t: TestStore) {
        let mut store = t.store.clone();
        assert_eq!(redis::cmd("DBSIZE").query_async::<i64>(&mut store).await.unwrap(), 0);
    }
}

testkit::standalone_keys! {
    async fn the_layout_is_standalone_unless_told(t: TestStore) {
        assert_eq!(t.store.layout(), Layout::Standalone);
    }
}
