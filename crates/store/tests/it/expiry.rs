//! Deadlines and sweeping.
#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use std::time::Duration;

use store::{Key, Store, expiry::Deadlines};
use testkit::each_store::START;

const GRACE: Duration = Duration::from_secs(30);

fn deadlines(store: &Store) -> Deadlines {
    Deadlines::new(store, Key::raw("deadlines"), GRACE)
}

fn after(seconds: u64) -> store::Millis {
    START + Duration::from_secs(seconds)
}

testkit::each_store! {
    async fn what_is_due_comes_in_order_and_in_bounded_batches(t: TestStore) {
        let deadlines = deadlines(&t.store);
        for number in (0..10).rev() {
            deadlines.set(&format!("m{number}"), after(number)).await.unwrap();
        }
        assert_eq!(deadlines.next().await.unwrap(), Some(START));
        t.clock.advance(Duration::from_secs(5));
        let due = deadlines.claim(4).await.unwrap();
        assert_eq!(due.members().collect::<Vec<_>>(), ["m0", "m1", "m2", "m3"]);
        assert_eq!(due.with_deadlines().next(), Some(("m0", START)));
        assert_eq!(deadlines.done(&due).await.unwrap(), 4);
        let due = deadlines.claim(4).await.unwrap();
        assert_eq!(due.members().collect::<Vec<_>>(), ["m4", "m5"], "exactly at its deadline is due");
        deadlines.done(&due).await.unwrap();
        assert!(deadlines.claim(4).await.unwrap().is_empty());
        assert_eq!(deadlines.next().await.unwrap(), Some(after(6)));
    }

    async fn what_was_not_handled_comes_up_again(t: TestStore) {
        let deadlines = deadlines(&t.store);
        deadlines.set("m", START).await.unwrap();
        let lost = deadlines.claim(10).await.unwrap();
        assert_eq!(lost.members().len(), 1);
        assert!(deadlines.claim(10).await.unwrap().is_empty(), "claimed by somebody");
        t.clock.advance(GRACE);
        let again = deadlines.claim(10).await.unwrap();
        assert_eq!(again.members().collect::<Vec<_>>(), ["m"]);
        assert_eq!(deadlines.done(&lost).await.unwrap(), 0, "the first sweeper is too late");
        assert_eq!(deadlines.done(&again).await.unwrap(), 1);
        assert_eq!(deadlines.done(&again).await.unwrap(), 0, "twice does no harm");
        assert_eq!(deadlines.next().await.unwrap(), None);
    }

    async fn a_new_deadline_during_handling_is_kept(t: TestStore) {
        let deadlines = deadlines(&t.store);
        deadlines.set("m", START).await.unwrap();
        let due = deadlines.claim(10).await.unwrap();
        deadlines.set("m", after(600)).await.unwrap();
        assert_eq!(deadlines.done(&due).await.unwrap(), 0);
        assert_eq!(deadlines.next().await.unwrap(), Some(after(600)));
        assert!(deadlines.remove("m").await.unwrap());
        assert!(!deadlines.remove("m").await.unwrap());
    }

    async fn sweepers_share_the_work(t: TestStore) {
        let index = deadlines(&t.store);
        for number in 0..100 {
            index.set(&number.to_string(), START).await.unwrap();
        }
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let index = deadlines(&t.another().await);
            tasks.spawn(async move {
                let mut seen = Vec::new();
                loop {
                    let due = index.claim(7).await.unwrap();
                    if due.is_empty() {
                        return seen;
                    }
                    seen.extend(due.members().map(|member| member.parse::<u32>().unwrap()));
                    index.done(&due).await.unwrap();
                }
            });
        }
        let mut seen: Vec<u32> = tasks.join_all().await.into_iter().flatten().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>(), "each once");
    }
}
