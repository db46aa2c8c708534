//! Batched increments.
#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use std::time::Duration;

use store::{
    Key,
    counter::{CounterTarget, Counters, Missing},
    redis::AsyncCommands,
};
use tokio_util::sync::CancellationToken;

fn field(name: &str) -> CounterTarget {
    CounterTarget::Field { key: Key::raw("hash"), field: name.to_owned(), keep: None }
}

fn number(name: &str) -> CounterTarget {
    CounterTarget::Key { key: Key::raw(name), keep: Some(Duration::from_secs(60)) }
}

testkit::each_store! {
    async fn increments_are_summed_and_written_once(t: TestStore) {
        let counters = Counters::new(&t.store, 100);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let counters = counters.clone();
            tasks.spawn(async move {
                for _ in 0..100 {
                    assert!(counters.add(field("a"), 2));
                    assert!(counters.add(number("n"), -1));
                }
                counters.flush().await.unwrap();
            });
        }
        tasks.join_all().await;
        assert_eq!(counters.flush().await.unwrap(), 0, "nothing is left");
        let mut store = t.store.clone();
        assert_eq!(store.hget::<_, _, i64>("hash", "a").await.unwrap(), 1_600);
        assert_eq!(store.get::<_, i64>("n").await.unwrap(), -800);
        let ttl: i64 = store.pttl("n").await.unwrap();
        assert!(ttl > 0 && ttl <= 60_000, "{ttl}");
        assert_eq!(counters.missing(), Missing::default());
    }

    async fn a_hash_that_is_to_be_kept_for_a_time_has_a_ttl(t: TestStore) {
        let counters = Counters::new(&t.store, 100);
        let keep = Some(Duration::from_secs(60));
        for field in ["a", "b"] {
            counters.add(CounterTarget::Field { key: Key::raw("kept"), field: field.to_owned(), keep }, 3);
        }
        assert_eq!(counters.flush().await.unwrap(), 2);
        let ttl: i64 = t.store.clone().pttl("kept").await.unwrap();
        assert!(ttl > 0 && ttl <= 60_000, "{ttl}");
        assert_eq!(t.store.clone().hget::<_, _, i64>("kept", "b").await.unwrap(), 3);
    }

    async fn a_full_buffer_refuses_new_counters_and_says_so(t: TestStore) {
        let counters = Counters::new(&t.store, 2);
        assert!(counters.add(field("a"), 1));
        assert!(counters.add(field("b"), 1));
        assert!(!counters.add(field("c"), 1));
        assert!(counters.add(field("a"), 1), "a known one still counts");
        assert_eq!(counters.missing(), Missing { refused: 1, lost: 0 });
        assert_eq!(counters.flush().await.unwrap(), 2);
        assert!(counters.add(field("c"), 1));
    }

    async fn more_than_one_batch_is_written(t: TestStore) {
        let counters = Counters::new(&t.store, 10_000);
        for number in 0..1_234 {
            counters.add(field(&number.to_string()), 1);
        }
        assert_eq!(counters.flush().await.unwrap(), 1_234);
        assert_eq!(t.store.clone().hlen::<_, i64>("hash").await.unwrap(), 1_234);
    }

    async fn a_counter_that_is_refused_does_not_keep_others_back(t: TestStore) {
        t.store.clone().set::<_, _, ()>("text", "no number").await.unwrap();
        let counters = Counters::new(&t.store, 100);
        counters.add(number("text"), 1);
        counters.add(number("n"), 1);
        counters.add(field("f"), 1);
        assert_eq!(counters.flush().await.unwrap(), 2);
        assert_eq!(counters.missing(), Missing { refused: 0, lost: 1 });
        assert_eq!(t.store.clone().get::<_, i64>("n").await.unwrap(), 1);
    }

    async fn a_stopped_task_writes_what_is_left(t: TestStore) {
        let counters = Counters::new(&t.store, 100);
        let cancel = CancellationToken::new();
        let task = tokio::spawn({
            let (counters, cancel) = (counters.clone(), cancel.clone());
            async move { counters.run(Duration::from_secs(3_600), cancel).await }
        });
        counters.add(number("n"), 3);
        cancel.cancel();
        task.await.unwrap();
        assert_eq!(t.store.clone().get::<_, i64>("n").await.unwrap(), 3);
    }
}
