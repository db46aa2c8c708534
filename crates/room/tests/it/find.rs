//! Look-up of visitors, the reason they wait, and statistics by hour and day.

use std::time::Duration;

use room::{
    AdmissionRate, Error, NewInvite, NewPosition, PositionState, Proof, StatsStep, VisitorPriority,
    WaitReason, email_hash,
};
use store::Millis;

use crate::support::{Bench, open_queue};

const DAY_MS: i64 = 86_400_000;

testkit::each_store! {
    async fn a_visitor_is_found_by_position_session_user_and_email(t: TestStore) {
        let b = Bench::new(t, room::QueueConfig { admission: AdmissionRate::new(10, 1), ..open_queue() }).await;
        let invite = |user: &str| NewInvite {
            priority: VisitorPriority::parse(1).unwrap(),
            uses: 1,
            expires: Millis(b.store.now().0 + DAY_MS),
            id: None,
            user_id: user.to_owned(),
        };
        let token = b.room.issue_invite(&b.queue, invite(&email_hash("Ann@Example.com"))).await.unwrap().0;
        let invite = b.room.check_invite(&b.queue, &token).await.unwrap();
        let new = NewPosition { proof: Proof::Invite(invite), ..NewPosition::default() };
        let ann = b.room.enqueue(&b.queue, new).await.unwrap().position;
        let find = async |text: &str| b.room.find_visitor(&b.queue, text).await;
        for text in [ann.id.to_string(), " ann@example.com ".to_owned(), email_hash("ann@example.com")] {
            let found = find(&text).await.unwrap();
            assert_eq!(found.position.id, ann.id, "{text}");
        }
        for text in ["bob@example.com", "nobody", "01a1e166-0248-7000-b9d5-7ce922553e6c"] {
            assert!(matches!(find(text).await, Err(Error::UnknownPosition)), "{text}");
        }
        for text in ["", "  ", &"x".repeat(400)] {
            assert!(matches!(find(text).await, Err(Error::Invalid { .. })), "{text:?}");
        }
        // A session is found by its id and by the user the site names later.
        assert_eq!(ann.state, PositionState::Admitted);
        let started = b.room.start_session(&b.queue, &ann.id, &room::Visitor::default()).await.unwrap();
        let room::SessionStart::Active { session, .. } = started else { panic!("{started:?}") };
        b.room.set_user(&b.queue, &session.id, "customer-4711").await.unwrap();
        for text in [session.id.to_string(), "customer-4711".to_owned()] {
            let found = find(&text).await.unwrap();
            assert_eq!(found.position.id, ann.id, "{text}");
            assert_eq!(found.session.unwrap().user_id, "customer-4711");
            assert_eq!(found.wait_reason, None);
        }
    }

    async fn the_reason_a_visitor_waits_is_the_one_that_holds(t: TestStore) {
        let b = Bench::new(t, room::QueueConfig { max_active: 2, ..open_queue() }).await;
        let last = b.enqueue().await;
        let reason = async || b.room.find_visitor(&b.queue, &last.id.to_string()).await.unwrap().wait_reason;
        assert_eq!(reason().await, Some(WaitReason::NoRate));
        b.room.set_rate(&b.queue, AdmissionRate::new(1, 3_600)).await.unwrap();
        assert_eq!(reason().await, Some(WaitReason::Rate));
        b.room.pause_queue(&b.queue).await.unwrap();
        assert_eq!(reason().await, Some(WaitReason::Paused));
        b.room.close_queue(&b.queue).await.unwrap();
        assert_eq!(reason().await, Some(WaitReason::Closed));
        b.room.resume_queue(&b.queue).await.unwrap();
        let behind = [b.enqueue().await, b.enqueue().await];
        b.room.admit_by_hand(&b.queue, 2).await.unwrap();
        let third = b.room.find_visitor(&b.queue, &behind[1].id.to_string()).await.unwrap();
        assert_eq!(third.wait_reason, Some(WaitReason::NoFreeSlot));
        assert_eq!(reason().await, None, "it was admitted");
    }

    async fn a_full_address_is_told(t: TestStore) {
        let config = room::QueueConfig {
            max_active: 10, max_active_per_address: Some(1), admission: AdmissionRate::new(10, 1), ..open_queue()
        };
        let b = Bench::new(t, config).await;
        let from = |last: u8| NewPosition { address: Some([192, 0, 2, last].into()), ..NewPosition::default() };
        let first = b.room.enqueue(&b.queue, from(1)).await.unwrap().position;
        assert_eq!(first.state, PositionState::Admitted);
        let second = b.room.enqueue(&b.queue, from(1)).await.unwrap().position;
        let found = b.room.find_visitor(&b.queue, &second.id.to_string()).await.unwrap();
        assert_eq!(found.wait_reason, Some(WaitReason::AddressLimit));
    }

    async fn statistics_outlive_the_hours_they_were_counted_in(t: TestStore) {
        let b = Bench::still(t).await;
        b.enqueue().await;
        b.enqueue().await;
        b.keeper.tick().await.unwrap();
        let begin = b.store.now();
        b.clock.advance(Duration::from_secs(2 * 3_600));
        b.enqueue().await;
        b.clock.advance(Duration::from_secs(61));
        b.keeper.tick().await.unwrap();
        let rows = async |step| b.room.stats_history(&b.queue, step, Millis(0), Millis(i64::MAX)).await.unwrap();
        let enqueued = |rows: &[room::Hour]| rows.iter().map(|row| row.counts.enqueued).collect::<Vec<_>>();
        assert_eq!(enqueued(&rows(StatsStep::Hour).await), [2, 1]);
        // The counters of that hour are deleted a day later; their copy is not.
        for hour in ["2026010100", "2026010102"] {
            let gone: i64 = b.redis(&["DEL", &format!("stats:concert-tickets:hourly:{hour}")]).await;
            assert_eq!(gone, 1, "{hour}");
        }
        let ttl: i64 = b.redis(&["TTL", "stats:concert-tickets:daily:20260101"]).await;
        assert!((30 * 86_400..=31 * 86_400).contains(&ttl), "{ttl}");
        b.clock.advance(Duration::from_secs(3 * 86_400));
        b.enqueue().await;
        let by_hour = rows(StatsStep::Hour).await;
        assert_eq!(enqueued(&by_hour), [2, 1, 1]);
        assert_eq!(by_hour[0].start.0, begin.0 / 3_600_000 * 3_600_000);
        let by_day = rows(StatsStep::Day).await;
        assert_eq!(enqueued(&by_day), [3, 1], "a day is the sum of its hours");
        assert_eq!(by_day[0].peak_queue_size, 3, "and its peak their highest");
        // Only what was asked for.
        let until = Millis(begin.0 + DAY_MS);
        let some = b.room.stats_history(&b.queue, StatsStep::Day, Millis(0), until).await.unwrap();
        assert_eq!(enqueued(&some), [3]);
        b.room.delete_queue(&b.queue).await.unwrap();
        let left: i64 = b.redis(&["EXISTS", "stats:concert-tickets:daily:20260101"]).await;
        assert_eq!(left, 0, "deleted with its queue");
    }
}
