//! Faults made on purpose: what services test themselves against.
#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use std::time::Duration;

use store::{
    Error, Key,
    lease::{FencedLease, LeaseOutcome},
    redis::{self, AsyncCommands},
};

testkit::each_store! {
    async fn a_store_that_is_away_carries_nothing_out(t: TestStore) {
        let mut store = t.store.clone();
        t.faults.go_away();
        let error = Error::from(store.set::<_, _, ()>("a", 1).await.unwrap_err());
        assert!(matches!(error, Error::Unavailable { maybe_done: false, .. }), "{error:?}");
        assert!(redis::pipe().set("a", 1).query_async::<()>(&mut store).await.is_err());
        assert!(t.store.subscribe(&["c"], &[]).await.unwrap_err().is_unavailable());
        assert!(t.store.blocking().await.unwrap_err().is_unavailable());
        assert!(!t.store.health().reachable);
        t.faults.come_back();
        assert!(!store.exists::<_, bool>("a").await.unwrap());
        assert!(t.store.health().reachable);
    }

    async fn a_lost_reply_was_carried_out(t: TestStore) {
        let mut store = t.store.clone();
        t.faults.lose_next_replies(2);
        let error = Error::from(store.incr::<_, _, i64>("n", 1).await.unwrap_err());
        assert!(matches!(error, Error::Unavailable { maybe_done: true, .. }), "{error:?}");
        let pipeline = redis::pipe().atomic().incr("n", 1).query_async::<()>(&mut store).await;
        assert!(pipeline.is_err());
        assert_eq!(store.get::<_, i64>("n").await.unwrap(), 2);
        assert_eq!(t.faults.lost(), 2);
    }

    async fn a_script_that_must_be_sent_first_is_lost_when_it_ran(t: TestStore) {
        let lease = FencedLease::new(&t.store, Key::raw("lock"), "a", Duration::from_secs(30));
        t.faults.lose_next_replies(1);
        assert!(lease.take().await.unwrap_err().is_unavailable());
        assert!(t.store.clone().exists::<_, bool>("lock").await.unwrap());
        assert!(matches!(lease.take().await.unwrap(), LeaseOutcome::Held(_)));
    }

    async fn refused_calls_come_and_go(t: TestStore) {
        let mut store = t.store.clone();
        t.faults.refuse_next(2);
        assert!(store.incr::<_, _, i64>("n", 1).await.is_err());
        assert!(store.incr::<_, _, i64>("n", 1).await.is_err());
        assert_eq!(store.incr::<_, _, i64>("n", 1).await.unwrap(), 1);
    }

    async fn replies_lost_by_a_seed_are_the_same_each_time(t: TestStore) {
        let mut store = t.store.clone();
        let mut runs = Vec::new();
        for _ in 0..2 {
            t.faults.lose_replies(4, 7);
            let mut lost = Vec::new();
            for number in 0..50 {
                if store.set::<_, _, ()>("a", number).await.is_err() {
                    lost.push(number);
                }
            }
            t.faults.come_back();
            runs.push(lost);
        }
        assert_eq!(runs[0], runs[1]);
        assert!((5..25).contains(&runs[0].len()), "{:?}", runs[0]);
    }
}
