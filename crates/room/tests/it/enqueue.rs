//! Joining: order, duplicates, limits, what is stored.

use std::collections::HashMap;

use room::{
    Duplicates, Error, NewPosition, PositionState, Proof, QueueConfig, QueueId, VisitorPriority,
};
use testkit::each_store;

use crate::support::{Bench, key, open_queue, seconds};

each_store! {
    async fn the_first_to_come_is_the_first_in_line(t: TestStore) {
        let b = Bench::still(t).await;
        let mut ids = Vec::new();
        for expected in 1..=5 {
            let position = b.enqueue().await;
            assert_eq!((position.state, position.number), (PositionState::Waiting, Some(expected)));
            assert_eq!(position.waiting, expected);
            ids.push(position.id);
        }
        for (i, id) in ids.iter().enumerate() {
            assert_eq!(b.position(id).await, Some(i as u64 + 1));
        }
        let list: Vec<String> = b.redis(&["LRANGE", "queue:concert-tickets:waiting:0", "0", "-1"]).await;
        assert_eq!(list, ids.iter().map(ToString::to_string).collect::<Vec<_>>());
    }

    async fn a_place_has_the_documented_fields_types_and_lifetimes(t: TestStore) {
        let b = Bench::still(t).await;
        let new = NewPosition {
            address: Some("192.0.2.7".parse().unwrap()),
            user_agent: "Mozilla/5.0 (X11; Linux x86_64)".into(),
            metadata: [("user_id".to_owned(), "123".into())].into_iter().collect(),
            ..NewPosition::default()
        };
        let position = b.room.enqueue(&b.queue, new).await.unwrap().position;
        let key = format!("position:{}", position.id);
        let hash: HashMap<String, String> = b.redis(&["HGETALL", &key]).await;
        let now_s = b.clock.now().as_secs().to_string();
        assert_eq!(hash["queue_id"], "concert-tickets");
        assert_eq!(hash["session_id"], "");
        assert_eq!(hash["status"], "waiting");
        assert_eq!(hash["priority"], "0");
        assert_eq!(hash["enqueued_at"], now_s, "seconds, as documented");
        assert_eq!(hash["last_heartbeat"], now_s);
        assert_eq!(hash["ip_address"], "", "no plain address unless the operator status_batcher");
        assert_eq!(hash["ip_hash"].len(), 16);
        assert_eq!(hash["user_agent"], "Mozilla/5.0 (X11; Linux x86_64)");
        assert_eq!(hash["metadata"], r#"{"user_id":"123"}"#);
        assert_eq!(hash["ticket"], position.ticket.unwrap().to_string());
        assert_eq!(hash.len(), 11, "the documented ten and the ticket");
        let ttl: i64 = b.redis(&["TTL", &key]).await;
        assert!((1_700..=1_800).contains(&ttl), "{ttl}");
        let score: f64 = b.redis(&["ZSCORE", "heartbeat:active", &position.id.to_string()]).await;
        assert_eq!(score as i64, b.clock.now().as_secs());
        let score: f64 =
            b.redis(&["ZSCORE", "queue:concert-tickets:positions", &position.id.to_string()]).await;
        assert_eq!(score as i64, b.clock.now().0 * 1000, "microseconds since 1970");
        let meta: HashMap<String, String> = b.redis(&["HGETALL", "queue:concert-tickets:meta"]).await;
        for field in ["name", "target_url", "max_active", "max_queue_size", "admission_rate",
            "status", "created_at", "updated_at"] {
            assert!(meta.contains_key(field), "{field}");
        }
        assert_eq!(meta["status"], "active");
        for (key, kind) in [
            ("queue:concert-tickets:waiting:0", "list"),
            ("queue:concert-tickets:positions", "zset"),
            ("admission:concert-tickets:tokens", "string"),
            ("admission:concert-tickets:last_update", "string"),
            ("stats:concert-tickets:hourly:2026010100", "hash"),
        ] {
            let found: String = b.redis(&["TYPE", key]).await;
            assert_eq!(found, kind, "{key}");
        }
        let ttl: i64 = b.redis(&["TTL", "stats:concert-tickets:hourly:2026010100"]).await;
        assert!((86_300..=86_400).contains(&ttl), "{ttl}");
    }

    async fn a_visitor_who_holds_a_place_gets_it_back_even_when_full_paused_or_closed(t: TestStore) {
        let b = Bench::still_with(t, QueueConfig { max_queue_size: 1, ..open_queue() }).await;
        let position = b.enqueue().await;
        let again = NewPosition { held: Some(position.id), ..NewPosition::default() };
        let check = async || {
            let enqueued = b.room.enqueue(&b.queue, again.clone()).await.unwrap();
            assert!(!enqueued.new);
            assert_eq!((enqueued.position.id, enqueued.position.number), (position.id, Some(1)));
        };
        check().await;
        let full = b.room.enqueue(&b.queue, NewPosition::default()).await;
        assert!(matches!(full, Err(Error::Full { waiting: 1 })), "{full:?}");
        b.room.pause_queue(&b.queue).await.unwrap();
        check().await;
        b.room.close_queue(&b.queue).await.unwrap();
        check().await;
        let closed = b.room.enqueue(&b.queue, NewPosition::default()).await;
        assert!(matches!(closed, Err(Error::Maintenance)), "{closed:?}");
    }

    async fn retries_with_one_idempotency_key_make_one_place(t: TestStore) {
        let b = Bench::still(t).await;
        let new = NewPosition { idempotency_key: Some(key(1)), ..NewPosition::default() };
        let first = b.room.enqueue(&b.queue, new.clone()).await.unwrap();
        for _ in 0..5 {
            let again = b.room.enqueue(&b.queue, new.clone()).await.unwrap();
            assert_eq!((again.position.id, again.new), (first.position.id, false));
        }
        let other = NewPosition { idempotency_key: Some(key(2)), ..NewPosition::default() };
        assert!(b.room.enqueue(&b.queue, other).await.unwrap().new);
        assert_eq!(b.room.queue(&b.queue).await.unwrap().waiting, 2);
    }

    async fn strangers_behind_one_address_have_places_of_their_own(t: TestStore) {
        let b = Bench::still(t).await;
        let new = NewPosition { address: Some("192.0.2.7".parse().unwrap()), ..NewPosition::default() };
        let alice = b.room.enqueue(&b.queue, new.clone()).await.unwrap();
        let bob = b.room.enqueue(&b.queue, new).await.unwrap();
        assert!(alice.new && bob.new && alice.position.id != bob.position.id);
    }

    async fn with_duplicates_by_address_a_place_that_is_over_does_not_count(t: TestStore) {
        let config = QueueConfig { duplicates: Duplicates::Ip, ..open_queue() };
        let b = Bench::still_with(t, config).await;
        let new = NewPosition { address: Some("192.0.2.7".parse().unwrap()), ..NewPosition::default() };
        let first = b.room.enqueue(&b.queue, new.clone()).await.unwrap().position;
        let again = b.room.enqueue(&b.queue, new.clone()).await.unwrap();
        assert_eq!((again.position.id, again.new), (first.id, false));
        b.room.leave(&b.queue, &first.id).await.unwrap();
        let later = b.room.enqueue(&b.queue, new.clone()).await.unwrap();
        assert!(later.new && later.position.id != first.id);
        let again = b.room.enqueue(&b.queue, new).await.unwrap();
        assert_eq!(again.position.id, later.position.id);
        let keys: Vec<String> = b.redis(&["KEYS", "ipmap:concert-tickets:*"]).await;
        assert_eq!(keys.len(), 1);
        let ttl: i64 = b.redis(&["TTL", &keys[0]]).await;
        assert!((1_700..=1_800).contains(&ttl), "as long as the position: {ttl}");
    }

    async fn a_heartbeat_keeps_the_address_mapped(t: TestStore) {
        let config = QueueConfig { duplicates: Duplicates::Ip, ..open_queue() };
        let b = Bench::still_with(t, config).await;
        let address = Some("192.0.2.7".parse().unwrap());
        let position = b.room.enqueue(&b.queue, NewPosition { address, ..NewPosition::default() }).await.unwrap().position;
        let keys: Vec<String> = b.redis(&["KEYS", "ipmap:concert-tickets:*"]).await;
        let _: i64 = b.redis(&["EXPIRE", &keys[0], "5"]).await;
        b.room.heartbeat(&b.queue, &position.id, Some(VisitorPriority::NORMAL), address).await.unwrap();
        let ttl: i64 = b.redis(&["TTL", &keys[0]]).await;
        assert!(ttl > 1_700, "{ttl}");
    }

    async fn the_queue_never_holds_more_than_it_may_under_concurrent_joins(t: TestStore) {
        let b = Bench::still_with(t, QueueConfig { max_queue_size: 20, ..open_queue() }).await;
        let enqueue_batcher = (0..100).map(|_| b.room.enqueue(&b.queue, NewPosition::default()));
        let results = futures_util::future::join_all(enqueue_batcher).await;
        let made = results.iter().filter(|r| r.is_ok()).count();
        assert_eq!(made, 20);
        assert!(results.iter().all(|r| matches!(r, Ok(_) | Err(Error::Full { .. }))));
        assert_eq!(b.room.queue(&b.queue).await.unwrap().waiting, 20);
    }

    async fn tickets_are_unique_and_grow_whatever_the_clock_does(t: TestStore) {
        let b = Bench::still(t).await;
        let other = room::Room::open(b.test.another().await, room::Options::default()).await.unwrap();
        let mut scores: Vec<f64> = Vec::new();
        let mut ids = Vec::new();
        for step in 0..12 {
            match step % 4 {
                1 => b.clock.set(store::Millis(b.clock.now().0 - 40)),
                3 => b.clock.advance(std::time::Duration::from_millis(15)),
                _ => {}
            }
            let room = if step % 2 == 0 { &b.room } else { &other };
            let position = room.enqueue(&b.queue, NewPosition::default()).await.unwrap().position;
            let score: f64 =
                b.redis(&["ZSCORE", "queue:concert-tickets:positions", &position.id.to_string()]).await;
            scores.push(score);
            ids.push(position.id);
        }
        assert!(scores.windows(2).all(|w| w[0] < w[1]), "{scores:?}");
        for (i, id) in ids.iter().enumerate() {
            assert_eq!(b.position(id).await, Some(i as u64 + 1), "commit order is the order");
        }
    }

    async fn priority_comes_only_from_proof(t: TestStore) {
        let b = Bench::still(t).await;
        let mut new = NewPosition::default();
        new.metadata.insert("priority".into(), 3.into());
        let position = b.room.enqueue(&b.queue, new).await.unwrap().position;
        assert_eq!(position.priority, VisitorPriority::NORMAL);
        let vip = b.join_level(2).await;
        assert_eq!(b.status(&vip).await.priority, VisitorPriority::VIP);
    }

    async fn a_better_proof_moves_the_place_and_never_makes_a_second_one(t: TestStore) {
        let b = Bench::still(t).await;
        for _ in 0..4 {
            b.enqueue().await;
        }
        let position = b.enqueue().await;
        let new = NewPosition {
            held: Some(position.id),
            proof: Proof::Operator(VisitorPriority::PREMIUM),
            ..NewPosition::default()
        };
        let upgraded = b.room.enqueue(&b.queue, new.clone()).await.unwrap();
        assert!(upgraded.new);
        assert_eq!((upgraded.position.number, upgraded.position.waiting), (Some(1), 5));
        let old = b.status(&position.id).await;
        assert_eq!(old.state, PositionState::Cancelled);
        assert_eq!(old.replaced_by, Some(upgraded.position.id));
        let repeated = b.room.enqueue(&b.queue, new.clone()).await.unwrap();
        assert_eq!((repeated.position.id, repeated.new), (upgraded.position.id, false), "a lost answer");
        let again = NewPosition { held: Some(upgraded.position.id), ..new };
        let again = b.room.enqueue(&b.queue, again).await.unwrap();
        assert_eq!((again.position.id, again.new), (upgraded.position.id, false));
    }

    async fn an_unknown_queue_is_an_error_and_leaves_nothing(t: TestStore) {
        let b = Bench::still(t).await;
        let before: Vec<String> = b.redis(&["KEYS", "*"]).await;
        let nowhere = QueueId::parse("nowhere").unwrap();
        let enqueued = b.room.enqueue(&nowhere, NewPosition::default()).await;
        assert!(matches!(enqueued, Err(Error::UnknownQueue)), "{enqueued:?}");
        let position = b.enqueue().await;
        let status = b.room.status(&nowhere, &position.id).await;
        assert!(matches!(status, Err(Error::UnknownQueue)), "{status:?}");
        b.room.leave(&b.queue, &position.id).await.unwrap();
        let after: Vec<String> = b.redis(&["KEYS", "*"]).await;
        assert!(after.len() - before.len() <= 4, "the record, statistics and the lane remain: {after:?}");
    }

    async fn an_empty_queue_with_room_admits_at_once_but_not_while_paused(t: TestStore) {
        let config = QueueConfig { admission: room::AdmissionRate::new(2, 1), ..open_queue() };
        let b = Bench::new(t, config).await;
        let first = b.enqueue().await;
        assert_eq!(first.state, PositionState::Admitted);
        assert!(first.session.is_some());
        assert_eq!(first.start_by, Some(b.clock.now() + seconds(120)));
        assert_eq!(b.enqueue().await.state, PositionState::Admitted);
        assert_eq!(b.enqueue().await.state, PositionState::Waiting, "the burst is two");
        b.clock.advance(seconds(5));
        assert_eq!(b.enqueue().await.state, PositionState::Waiting, "somebody is before");
        b.tick().await;
        b.room.pause_queue(&b.queue).await.unwrap();
        b.clock.advance(seconds(5));
        assert_eq!(b.enqueue().await.state, PositionState::Waiting);
    }
}
