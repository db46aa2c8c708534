//! Capped streams with resume.
#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use std::time::Duration;

use store::{
    Key, Millis, Store,
    events::{EventBatch, EventId, Feed},
    redis::AsyncCommands,
};
use testkit::each_store::START;

fn feed(store: &Store, most: usize) -> Feed {
    Feed::new(store, Key::raw("events"), most)
}

async fn append(feed: &Feed, number: usize) -> EventId {
    feed.append("", &[("n", number.to_string())]).await.unwrap()
}

fn numbers(batch: &EventBatch) -> Vec<usize> {
    let number = |event: &store::events::FeedEvent| {
        std::str::from_utf8(event.get("n").unwrap()).unwrap().parse().unwrap()
    };
    batch.events.iter().map(number).collect()
}

testkit::each_store! {
    async fn a_reader_resumes_after_the_last_it_saw(t: TestStore) {
        let feed = feed(&t.store, 1_000);
        let mut ids = Vec::new();
        for number in 0..10 {
            ids.push(append(&feed, number).await);
        }
        assert!(ids.is_sorted() && ids.windows(2).all(|pair| pair[0] != pair[1]));
        let batch = feed.after(EventId::START, 4).await.unwrap();
        assert_eq!(numbers(&batch), [0, 1, 2, 3]);
        let batch = feed.after(batch.events[3].id, 100).await.unwrap();
        assert_eq!(numbers(&batch), [4, 5, 6, 7, 8, 9]);
        assert!(!batch.missed);
        assert_eq!(feed.after(ids[9], 100).await.unwrap(), EventBatch::default());
        assert_eq!(feed.latest().await.unwrap(), Some(ids[9]));
    }

    async fn ids_follow_the_clock_and_never_go_back(t: TestStore) {
        let feed = feed(&t.store, 1_000);
        assert_eq!(append(&feed, 0).await.to_string(), format!("{START}-0"));
        assert_eq!(append(&feed, 1).await.to_string(), format!("{START}-1"));
        t.clock.advance(Duration::from_millis(5));
        assert_eq!(append(&feed, 2).await.to_string(), format!("{}-0", Millis(START.0 + 5)));
        t.clock.set(Millis(START.0 - 60_000));
        assert_eq!(append(&feed, 3).await.to_string(), format!("{}-1", Millis(START.0 + 5)));
    }

    async fn the_oldest_go_first_and_a_late_reader_is_told(t: TestStore) {
        let feed = feed(&t.store, 100);
        let first = append(&feed, 0).await;
        for number in 1..1_000 {
            append(&feed, number).await;
        }
        let kept: usize = t.store.clone().xlen("events").await.unwrap();
        assert!((100..=300).contains(&kept), "{kept}");
        let batch = feed.after(first, 1_000).await.unwrap();
        assert!(batch.missed);
        assert_eq!(numbers(&batch), (1_000 - kept..1_000).collect::<Vec<_>>());
        let fresh = feed.after(EventId::START, 10).await.unwrap();
        assert!(!fresh.missed, "one who has seen nothing misses nothing");
        let there = feed.after(fresh.events[0].id, 10).await.unwrap();
        assert!(!there.missed);
    }

    async fn a_repeated_append_adds_nothing(t: TestStore) {
        let feed = feed(&t.store, 1_000);
        let first = feed.append("req-1", &[("n", "1")]).await.unwrap();
        append(&feed, 2).await;
        t.clock.advance(Duration::from_secs(1));
        assert_eq!(feed.append("req-1", &[("n", "1")]).await.unwrap(), first);
        assert_eq!(t.store.clone().xlen::<_, i64>("events").await.unwrap(), 2);
        assert_ne!(feed.append("req-2", &[("n", "1")]).await.unwrap(), first);
    }

    async fn fields_keep_their_order_and_bytes(t: TestStore) {
        let feed = feed(&t.store, 10);
        let fields: [(&str, &[u8]); 3] = [("z", b"\0\xff"), ("a", b""), ("rid", b"own")];
        feed.append("", &fields).await.unwrap();
        let batch = feed.after(EventId::START, 1).await.unwrap();
        let read: Vec<_> = batch.events[0].fields.iter().map(|(name, value)| (name.as_str(), &value[..])).collect();
        assert_eq!(read, fields);
        assert!(feed.append("", &[] as &[(&str, &str)]).await.is_err());
    }

    async fn a_follower_waits_and_goes_on(t: TestStore) {
        let feed = feed(&t.store, 1_000);
        append(&feed, 0).await;
        let mut follower = feed.follow(EventId::START).await.unwrap();
        assert_eq!(numbers(&follower.next(Duration::from_secs(30)).await.unwrap()), [0]);
        assert_eq!(follower.next(Duration::from_millis(10)).await.unwrap(), EventBatch::default());
        let waiting = tokio::spawn(async move {
            let batch = follower.next(Duration::from_secs(30)).await.unwrap();
            (follower, batch)
        });
        append(&feed, 1).await;
        let (mut follower, batch) = waiting.await.unwrap();
        assert_eq!(numbers(&batch), [1]);
        for number in 2..10 {
            append(&feed, number).await;
        }
        assert_eq!(numbers(&follower.next(Duration::from_secs(30)).await.unwrap()), (2..10).collect::<Vec<_>>());
    }

    async fn many_writers_and_a_follower_lose_nothing(t: TestStore) {
        let feed = feed(&t.store, 10_000);
        let mut follower = feed.follow(EventId::START).await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..8 {
            let feed = feed.clone();
            tasks.spawn(async move {
                for number in 0..25 {
                    append(&feed, writer * 25 + number).await;
                }
            });
        }
        let mut seen = Vec::new();
        while seen.len() < 200 {
            let batch = follower.next(Duration::from_secs(30)).await.unwrap();
            assert!(!batch.events.is_empty() && !batch.missed, "{} so far", seen.len());
            seen.extend(numbers(&batch));
        }
        tasks.join_all().await;
        seen.sort_unstable();
        assert_eq!(seen, (0..200).collect::<Vec<_>>());
    }
}
