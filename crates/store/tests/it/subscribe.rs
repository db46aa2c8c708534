//! Published messages: channels, patterns, order, overflow.

use std::time::Duration;

use store::{Error, PubsubMessage, Store, Subscription, redis::AsyncCommands, subscribe::BUFFER};

testkit::each_store! {
    async fn messages_arrive_in_order_on_channels_and_patterns(t: TestStore) {
        let mut listener = t.store.subscribe(&["news"], &["room:*"]).await.unwrap();
        let mut other = t.another().await;
        assert_eq!(publish(&mut other, "news", "1").await, 1);
        assert_eq!(publish(&mut other, "elsewhere", "x").await, 0);
        assert_eq!(publish(&mut other, "room:spring", "2").await, 1);
        assert_eq!(publish(&mut other, "news", "3").await, 1);

        assert_eq!(next(&mut listener).await, message("news", None, "1"));
        assert_eq!(next(&mut listener).await, message("room:spring", Some("room:*"), "2"));
        assert_eq!(next(&mut listener).await, message("news", None, "3"));
    }

    async fn every_listener_hears_what_is_published_after_it_came(t: TestStore) {
        let mut first = t.store.subscribe(&["c"], &[]).await.unwrap();
        let mut store = t.store.clone();
        assert_eq!(publish(&mut store, "c", "1").await, 1);
        let mut second = t.store.subscribe(&["c"], &[]).await.unwrap();
        assert_eq!(publish(&mut store, "c", "2").await, 2);
        assert_eq!(next(&mut first).await, message("c", None, "1"));
        assert_eq!(next(&mut first).await, message("c", None, "2"));
        assert_eq!(next(&mut second).await, message("c", None, "2"));
    }

    async fn a_payload_is_bytes(t: TestStore) {
        let mut listener = t.store.subscribe(&["c"], &[]).await.unwrap();
        let bytes: &[u8] = b"\0\r\n\xff";
        t.store.clone().publish::<_, _, i64>("c", bytes).await.unwrap();
        let PubsubMessage::Published { payload, .. } = next(&mut listener).await else { panic!("a gap") };
        assert_eq!(&payload[..], bytes);
    }

    async fn a_reader_that_falls_behind_is_told_of_the_gap(t: TestStore) {
        let mut listener = t.store.subscribe(&["c"], &[]).await.unwrap();
        let mut store = t.store.clone();
        let total = BUFFER + 500;
        for number in 0..total {
            publish(&mut store, "c", &number.to_string()).await;
        }
        let mut seen = Vec::new();
        loop {
            match next(&mut listener).await {
                PubsubMessage::Gap => break,
                PubsubMessage::Published { payload, .. } => {
                    seen.push(String::from_utf8(payload.to_vec()).unwrap().parse::<usize>().unwrap());
                    // The reader may have kept up after all; then nothing is missing.
                    if seen.len() == total {
                        break;
                    }
                }
            }
        }
        assert!(seen.len() >= BUFFER, "{}", seen.len());
        assert!(seen.iter().copied().eq(0..seen.len()), "nothing is missing before the gap");
    }

    async fn a_dropped_subscription_is_gone_from_the_store(t: TestStore) {
        let listener = t.store.subscribe(&["c"], &[]).await.unwrap();
        let mut store = t.store.clone();
        assert_eq!(publish(&mut store, "c", "1").await, 1);
        drop(listener);
        tokio::time::timeout(Duration::from_secs(60), async {
            while publish(&mut store, "c", "2").await != 0 {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
    }

    async fn a_subscription_to_nothing_is_refused(t: TestStore) {
        let error = t.store.subscribe(&[], &[]).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    }
}

async fn publish(store: &mut Store, channel: &str, text: &str) -> i64 {
    store.publish(channel, text).await.unwrap()
}

async fn next(listener: &mut Subscription) -> PubsubMessage {
    tokio::time::timeout(Duration::from_secs(60), listener.recv()).await.unwrap().unwrap()
}

fn message(channel: &str, pattern: Option<&str>, payload: &str) -> PubsubMessage {
    PubsubMessage::Published {
        channel: channel.to_owned(),
        pattern: pattern.map(str::to_owned),
        payload: payload.to_owned().into(),
    }
}
