//! What operators see: statistics, events, lists, limits.

use std::{collections::HashMap, time::Duration};

use room::{AdmissionRate, EventId, PositionList, QueueConfig, SessionStart, Visitor};
use testkit::each_store;

use crate::support::{Bench, open_queue, seconds};

async fn looks_alike(b: Bench) {
    let mut positions = Vec::new();
    for n in 0..12 {
        let id = b.join_level(if n % 3 == 2 { 2 } else { 0 }).await;
        positions.push(b.room.status(&b.queue, &id).await.unwrap());
    }
    b.room.admit_by_hand(&b.queue, 2).await.unwrap();
    b.room.leave(&b.queue, &positions[6].id).await.unwrap();
    let message = [("en".to_owned(), "soon".into())].into_iter().collect();
    b.room.set_message(&b.queue, message).await.unwrap();
    b.clock.advance(seconds(2));
    let gone = b.room.refresh_positions(&b.queue, &mut positions).await.unwrap();
    for (index, position) in positions.iter().enumerate() {
        let asked = b.room.status(&b.queue, &position.id).await.unwrap();
        assert_eq!(gone.contains(&index), asked.number.is_none());
        if asked.number.is_some() {
            assert_eq!((position.number, position.waiting), (asked.number, asked.waiting));
            assert_eq!((&position.message, position.estimate), (&asked.message, asked.estimate));
        }
    }
    assert_eq!(gone.len(), 3, "two admitted, one left");
    assert!(b.room.refresh_positions(&b.queue, &mut []).await.unwrap().is_empty());
}

each_store! {
    async fn statistics_count_what_happened(t: TestStore) {
        let b = Bench::still(t).await;
        let mut ids = Vec::new();
        for _ in 0..8 {
            ids.push(b.enqueue().await.id);
        }
        b.clock.advance(seconds(4));
        b.room.admit_by_hand(&b.queue, 2).await.unwrap();
        b.clock.advance(seconds(4));
        b.room.admit_by_hand(&b.queue, 2).await.unwrap();
        b.room.leave(&b.queue, &ids[7]).await.unwrap();
        let SessionStart::Active { session, .. } = b.room.start_session(&b.queue, &ids[0], &Visitor::default()).await.unwrap() else { panic!() };
        b.room.complete(&b.queue, &session.id).await.unwrap();
        let stats = b.room.stats(&b.queue).await.unwrap();
        assert_eq!((stats.waiting, stats.admitted, stats.active), (3, 3, 0));
        assert_eq!((stats.total.enqueued, stats.total.admitted, stats.total.cancelled), (8, 4, 1));
        assert_eq!((stats.total.sessions_started, stats.total.completed), (1, 1));
        assert_eq!(stats.average_wait, Some(seconds(6)));
        assert_eq!(stats.last_admission, Some(b.clock.now()));
        assert!(stats.admission_rate > 0.0);
        let hour = &stats.hours[0];
        assert_eq!((hour.hour.as_str(), hour.peak_queue_size), ("2026010100", 8));
        assert!(hour.percentiles.is_some());
        let hash: HashMap<String, String> = b.redis(&["HGETALL", "stats:concert-tickets:hourly:2026010100"]).await;
        assert_eq!(hash["total_enqueued"], "8");
        assert_eq!(hash["total_admitted"], "4");
        assert_eq!(hash["avg_wait_time"], "6", "seconds, as documented");
        assert_eq!(hash["peak_queue_size"], "8");
    }

    async fn one_look_shows_what_asking_one_by_one_does(t: TestStore) {
        looks_alike(Bench::still(t).await).await;
    }

    async fn one_look_knows_the_strict_order_too(t: TestStore) {
        let config = QueueConfig { policy: room::PriorityPolicy::Strict, ..open_queue() };
        looks_alike(Bench::still_with(t, config).await).await;
    }

    async fn the_peak_of_an_hour_is_never_overwritten_by_less(t: TestStore) {
        let b = Bench::still(t).await;
        for _ in 0..5 {
            b.enqueue().await;
        }
        b.room.admit_by_hand(&b.queue, 5).await.unwrap();
        b.enqueue().await;
        let hour = |stats: room::QueueStats, n: usize| stats.hours[n].clone();
        assert_eq!(hour(b.room.stats(&b.queue).await.unwrap(), 0).peak_queue_size, 5);
        b.clock.advance(seconds(3600));
        b.enqueue().await;
        let stats = b.room.stats(&b.queue).await.unwrap();
        assert_eq!((stats.hours.len(), hour(stats, 1).peak_queue_size), (2, 2));
    }

    async fn expiries_are_counted_once_each(t: TestStore) {
        let b = Bench::still(t).await;
        for _ in 0..3 {
            b.enqueue().await;
        }
        b.pass(seconds(490)).await;
        assert_eq!(b.room.stats(&b.queue).await.unwrap().total.expired, 3);
        let hash: HashMap<String, String> = b.redis(&["HGETALL", "stats:concert-tickets:hourly:2026010100"]).await;
        assert_eq!(hash["total_expired"], "3");
    }

    async fn every_change_is_an_event_and_no_heartbeat_is(t: TestStore) {
        let b = Bench::still(t).await;
        let (one, two, three) = (b.enqueue().await, b.enqueue().await, b.enqueue().await);
        b.beat(&one.id).await;
        b.room.admit_by_hand(&b.queue, 1).await.unwrap();
        let SessionStart::Active { session, .. } = b.room.start_session(&b.queue, &one.id, &Visitor::default()).await.unwrap() else { panic!() };
        b.room.activity(&b.queue, &session.id, 1).await.unwrap();
        b.room.terminate(&b.queue, &session.id).await.unwrap();
        b.room.leave(&b.queue, &two.id).await.unwrap();
        b.room.pause_queue(&b.queue).await.unwrap();
        b.room.resume_queue(&b.queue).await.unwrap();
        b.room.close_queue(&b.queue).await.unwrap();
        b.room.resume_queue(&b.queue).await.unwrap();
        b.room.set_rate(&b.queue, AdmissionRate::new(0, 60)).await.unwrap();
        b.pass(seconds(490)).await;
        let all = b.room.events(&b.queue, EventId::START, 1_000).await.unwrap();
        assert!(!all.missed);
        let kinds: Vec<&str> = all.events.iter().map(|event| event.kind.as_str()).collect();
        assert_eq!(kinds, [
            "queue.created", "position.enqueued", "position.enqueued", "position.enqueued",
            "position.admitted", "session.started", "session.terminated", "position.cancelled",
            "queue.paused", "queue.resumed", "queue.maintenance", "queue.resumed", "queue.updated",
            "position.expired",
        ]);
        let last = all.events.last().unwrap();
        assert_eq!(last.subject(), "waitingroom.position.expired.v1");
        assert_eq!(last.data["position_id"], three.id.to_string());
        assert_eq!(last.data["reason"], "hold_timeout");
        let text = format!("{all:?}");
        assert!(!text.contains("ip_") && !text.contains("token"), "nothing private");
        let some = b.room.events(&b.queue, all.events[3].id, 2).await.unwrap();
        assert_eq!(some.events, all.events[4..6], "resumes where it was left");
        assert_eq!(b.room.latest_event(&b.queue).await.unwrap(), last.id);
    }

    async fn a_follower_gets_what_comes(t: TestStore) {
        let b = Bench::still(t).await;
        let from = b.room.latest_event(&b.queue).await.unwrap();
        let mut following = b.room.follow(&b.queue, from).await.unwrap();
        let position = b.enqueue().await;
        let got = following.next(Duration::from_secs(10)).await.unwrap();
        assert_eq!(got.events.len(), 1);
        assert_eq!(got.events[0].data["position_id"], position.id.to_string());
        let (waited, left) = tokio::join!(
            following.next(Duration::from_secs(10)),
            b.room.leave(&b.queue, &position.id),
        );
        left.unwrap();
        assert_eq!(waited.unwrap().events[0].kind, "position.cancelled");
    }

    async fn places_and_sessions_are_listed_in_pages(t: TestStore) {
        let b = Bench::still_with(t, QueueConfig { max_active: 5, ..open_queue() }).await;
        let mut ids = Vec::new();
        for _ in 0..12 {
            ids.push(b.enqueue().await.id);
        }
        b.room.admit_by_hand(&b.queue, 5).await.unwrap();
        b.room.start_session(&b.queue, &ids[0], &Visitor::default()).await.unwrap();
        let page = b.room.positions(&b.queue, PositionList::Waiting, 2, 3).await.unwrap();
        assert_eq!(page.iter().map(|p| p.id).collect::<Vec<_>>(), ids[7..10]);
        assert_eq!(page[0].number, Some(3));
        let admitted = b.room.positions(&b.queue, PositionList::Admitted, 0, 100).await.unwrap();
        assert_eq!(admitted.iter().map(|p| p.id).collect::<Vec<_>>(), ids[1..5]);
        let sessions = b.room.sessions(&b.queue, 0, 100).await.unwrap();
        assert_eq!(sessions.iter().map(|s| s.position).collect::<Vec<_>>(), ids[..1]);
    }

    async fn a_limit_counts_every_call_in_a_sliding_window_on_the_documented_key(t: TestStore) {
        let b = Bench::still(t).await;
        let client = b.room.client_of("192.0.2.7".parse().unwrap()).await.unwrap();
        let call = async |n: u32| {
            b.room.charge_call(&client, "enqueue", 3, seconds(60), &format!("r{n}")).await.unwrap()
        };
        for n in 0..3 {
            assert!(call(n).await.allowed);
        }
        assert!(call(2).await.allowed, "the same request counts once");
        let refused = call(3).await;
        assert!(!refused.allowed && refused.retry == seconds(60));
        let key = format!("ratelimit:{client}:enqueue");
        let kind: String = b.redis(&["TYPE", &key]).await;
        assert_eq!(kind, "zset");
        let ttl: i64 = b.redis(&["TTL", &key]).await;
        assert!((1..=61).contains(&ttl), "{ttl}");
        b.clock.advance(seconds(61));
        assert!(call(4).await.allowed);
        assert!(b.room.charge_call("a:{b} c", "enqueue", 1, seconds(60), "x").await.unwrap().allowed);
        let keys: Vec<String> = b.redis(&["KEYS", "ratelimit:*:enqueue"]).await;
        assert_eq!(keys.len(), 2);
        assert!(keys.iter().all(|key| !key.contains("192.") && !key.contains("{b}")), "{keys:?}");
    }

    async fn polls_are_counted_without_the_store_too(t: TestStore) {
        let b = Bench::still(t).await;
        let (slow, fast, counted) = (b.enqueue().await.id, b.enqueue().await.id, b.enqueue().await.id);
        let poll = async |id, action| b.room.charge_poll(id, action).await.unwrap();
        assert!(poll(&counted, "poll").await.allowed);
        b.test.faults.go_away();
        for left in (22..29).rev() {
            let drawn = poll(&counted, "poll").await;
            assert!(drawn.allowed, "drawn ahead with the first");
            assert_eq!(drawn.remaining, left);
        }
        for _ in 0..200 {
            b.clock.advance(seconds(5));
            assert!(poll(&slow, "poll").await.allowed, "every five seconds, the least ever told");
        }
        let mut refused = 0;
        for _ in 0..100 {
            refused += usize::from(!poll(&fast, "poll").await.allowed);
        }
        assert_eq!(refused, 70, "all but the burst");
        let told = poll(&fast, "poll").await;
        assert_eq!((told.remaining, told.retry), (0, seconds(1)));
        assert!(poll(&fast, "page").await.allowed, "pages are counted by themselves");
        b.clock.advance(seconds(1));
        assert!(poll(&fast, "poll").await.allowed);
        b.test.faults.come_back();
        assert!(poll(&fast, "poll").await.allowed, "the store knows nothing of it");
    }
}
