//! Silence, pauses and outages: who loses a position and who does not.

use room::{
    EndReason, Error, LeaveOutcome, NewPosition, PositionState, QueueConfig, QueueId,
    VisitorPriority,
};
use testkit::each_store;

use crate::support::{Bench, open_queue, seconds};

/// The silence after which a position ends with default settings: 300 s hold + 3 × 60 s polls.
const TIMEOUT: u64 = 480;

each_store! {
    async fn a_silent_place_ends_once_when_its_time_is_over_and_not_before(t: TestStore) {
        let b = Bench::still(t).await;
        let position = b.enqueue().await;
        b.pass(seconds(TIMEOUT)).await;
        assert_eq!(b.state(&position.id).await, PositionState::Waiting);
        b.pass(seconds(2)).await;
        let over = b.status(&position.id).await;
        assert_eq!((over.state, over.reason), (PositionState::Expired, Some(EndReason::HoldTimeout)));
        assert_eq!(over.number, None);
        let left: Vec<String> = b.redis(&["ZRANGE", "heartbeat:active", "0", "-1"]).await;
        assert!(left.is_empty());
        assert_eq!(b.tick().await.expired, 0, "once");
    }

    async fn a_client_that_polls_once_a_minute_never_loses_its_place(t: TestStore) {
        let b = Bench::still(t).await;
        let position = b.enqueue().await;
        for _ in 0..40 {
            b.pass(seconds(65)).await;
            assert_eq!(b.beat(&position.id).await.state, PositionState::Waiting);
        }
    }

    async fn a_heartbeat_does_not_bring_back_the_dead(t: TestStore) {
        let b = Bench::still(t).await;
        let position = b.enqueue().await;
        b.room.leave(&b.queue, &position.id).await.unwrap();
        let over = b.beat(&position.id).await;
        assert_eq!((over.state, over.reason), (PositionState::Cancelled, Some(EndReason::Cancelled)));
        let member: Option<f64> = b.redis(&["ZSCORE", "heartbeat:active", &position.id.to_string()]).await;
        assert_eq!(member, None);
        let status: String = b.redis(&["HGET", &format!("position:{}", position.id), "status"]).await;
        assert_eq!(status, "expired", "the documented word");
    }

    async fn an_expired_place_is_never_admitted(t: TestStore) {
        let b = Bench::still(t).await;
        let silent = b.enqueue().await;
        b.pass(seconds(TIMEOUT - 10)).await;
        let alive = b.enqueue().await;
        b.pass(seconds(15)).await;
        assert_eq!(b.state(&silent.id).await, PositionState::Expired);
        let admitted = b.room.admit_by_hand(&b.queue, 10).await.unwrap();
        assert_eq!(admitted.ids, [alive.id], "its id in the list is a tombstone");
        assert_eq!(b.state(&silent.id).await, PositionState::Expired);
        let lane: i64 = b.redis(&["LLEN", "queue:concert-tickets:waiting:0"]).await;
        assert_eq!(lane, 0, "dropped on reaching the head");
    }

    async fn an_admitted_visitor_is_not_ended_by_the_search_for_the_silent(t: TestStore) {
        let config = QueueConfig { admission_window: seconds(3600), ..open_queue() };
        let b = Bench::still_with(t, config).await;
        let position = b.enqueue().await;
        b.room.admit_by_hand(&b.queue, 1).await.unwrap();
        b.pass(seconds(2 * TIMEOUT)).await;
        assert_eq!(b.state(&position.id).await, PositionState::Admitted);
    }

    async fn expiry_in_one_queue_never_touches_another(t: TestStore) {
        let b = Bench::still(t).await;
        let patient = QueueId::parse("patient").unwrap();
        let config = QueueConfig { hold: seconds(3600), ..open_queue() };
        b.room.create_queue(&patient, config).await.unwrap();
        let _: () = b.redis(&["SET", "admission:patient:tokens", "0"]).await;
        let there = b.room.enqueue(&patient, NewPosition::default()).await.unwrap().position;
        let context = b.enqueue().await;
        b.pass(seconds(TIMEOUT + 5)).await;
        assert_eq!(b.state(&context.id).await, PositionState::Expired);
        let there_now = b.room.status(&patient, &there.id).await.unwrap();
        assert_eq!((there_now.state, there_now.number), (PositionState::Waiting, Some(1)));
        b.pass(seconds(3600)).await;
        assert_eq!(b.room.status(&patient, &there.id).await.unwrap().state, PositionState::Expired);
    }

    async fn many_places_that_may_not_end_yet_do_not_hide_those_that_must(t: TestStore) {
        let b = Bench::still(t).await;
        let paused = QueueId::parse("paused").unwrap();
        b.room.create_queue(&paused, open_queue()).await.unwrap();
        b.room.pause_queue(&paused).await.unwrap();
        let enqueue_batcher = (0..2_600).map(|_| b.room.enqueue(&paused, NewPosition::default()));
        futures_util::future::try_join_all(enqueue_batcher).await.unwrap();
        b.clock.advance(seconds(1));
        let position = b.enqueue().await;
        b.pass(seconds(TIMEOUT + 10)).await;
        assert_eq!(b.state(&position.id).await, PositionState::Expired, "behind 2,600 who may stay");
        assert_eq!(b.room.queue(&paused).await.unwrap().waiting, 2_600);
    }

    async fn clocks_stand_still_while_paused(t: TestStore) {
        let b = Bench::still(t).await;
        let position = b.enqueue().await;
        let offered = b.enqueue().await;
        b.room.leave(&b.queue, &position.id).await.unwrap();
        let position = b.enqueue().await;
        b.room.admit_by_hand(&b.queue, 1).await.unwrap();
        assert_eq!(b.state(&offered.id).await, PositionState::Admitted);
        b.pass(seconds(60)).await;
        b.room.pause_queue(&b.queue).await.unwrap();
        b.pass(seconds(900)).await;
        assert_eq!(b.state(&position.id).await, PositionState::Waiting);
        assert_eq!(b.state(&offered.id).await, PositionState::Admitted);
        b.room.resume_queue(&b.queue).await.unwrap();
        b.pass(seconds(115)).await;
        assert_eq!(b.state(&offered.id).await, PositionState::Admitted, "a whole admission window again");
        b.pass(seconds(360)).await;
        assert_eq!(b.state(&position.id).await, PositionState::Waiting);
        b.pass(seconds(15)).await;
        assert_eq!(b.state(&position.id).await, PositionState::Expired, "and then time goes on");
    }

    async fn nobody_loses_a_place_to_an_outage(t: TestStore) {
        let b = Bench::still(t).await;
        let waiting = b.enqueue().await;
        let offered = b.enqueue().await;
        b.room.leave(&b.queue, &waiting.id).await.unwrap();
        let waiting = b.enqueue().await;
        b.room.admit_by_hand(&b.queue, 1).await.unwrap();
        b.pass(seconds(10)).await;
        // Nobody keeps the room for ten minutes: the process was killed.
        b.clock.advance(seconds(600));
        let keeper = room::RoomMaintenance::new(room::Room::open(b.test.another().await, room::Options::default()).await.unwrap());
        let swept = keeper.tick().await.unwrap();
        assert_eq!((swept.expired, swept.no_shows), (0, 0), "{swept:?}");
        b.pass(seconds(100)).await;
        assert_eq!(b.state(&waiting.id).await, PositionState::Waiting);
        assert_eq!(b.state(&offered.id).await, PositionState::Admitted);
        assert_eq!(b.beat(&waiting.id).await.number, Some(1));
    }

    async fn a_place_whose_record_ran_out_is_restored_by_its_holder(t: TestStore) {
        let b = Bench::still(t).await;
        b.enqueue().await;
        let position = b.enqueue().await;
        let _: i64 = b.redis(&["DEL", &format!("position:{}", position.id)]).await;
        let seen = b.room.heartbeat(&b.queue, &position.id, Some(VisitorPriority::NORMAL), None).await.unwrap();
        assert_eq!((seen.state, seen.number), (PositionState::Waiting, Some(2)));
        assert_eq!(seen.enqueued_at, position.enqueued_at);
        let ttl: i64 = b.redis(&["TTL", &format!("position:{}", position.id)]).await;
        assert!(ttl > 0, "no record without a lifetime");
    }

    async fn a_record_that_ran_out_does_not_come_back_as_a_ghost(t: TestStore) {
        let b = Bench::still(t).await;
        let position = b.enqueue().await;
        let key = format!("position:{}", position.id);
        let _: i64 = b.redis(&["DEL", &key]).await;
        b.pass(seconds(TIMEOUT + 5)).await;
        let exists: i64 = b.redis(&["EXISTS", &key]).await;
        assert_eq!(exists, 0);
        assert_eq!(b.room.queue(&b.queue).await.unwrap().waiting, 0, "but the line is tidy");
    }

    async fn leaving_twice_is_leaving_once(t: TestStore) {
        let b = Bench::still(t).await;
        let position = b.enqueue().await;
        assert_eq!(b.room.leave(&b.queue, &position.id).await.unwrap(), LeaveOutcome::Now);
        assert_eq!(b.room.leave(&b.queue, &position.id).await.unwrap(), LeaveOutcome::Before(PositionState::Cancelled));
        let never = room::PositionId::from_bytes([7; 16]);
        assert!(matches!(b.room.leave(&b.queue, &never).await, Err(Error::UnknownPosition)));
    }

    async fn tombstones_are_compacted_and_order_is_kept(t: TestStore) {
        let b = Bench::still(t).await;
        let first = b.enqueue().await;
        let enqueue_batcher = (0..3_000).map(|_| b.room.enqueue(&b.queue, NewPosition::default()));
        let positions = futures_util::future::try_join_all(enqueue_batcher).await.unwrap();
        let mut kept = vec![first.id];
        let mut leaves = Vec::new();
        for (i, enqueued) in positions.iter().enumerate() {
            if i % 10 == 0 { kept.push(enqueued.position.id) } else { leaves.push(enqueued.position.id) }
        }
        let gone = leaves.iter().map(|id| b.room.leave(&b.queue, id));
        futures_util::future::try_join_all(gone).await.unwrap();
        let lane: i64 = b.redis(&["LLEN", "queue:concert-tickets:waiting:0"]).await;
        assert_eq!(lane, 3_001);
        for _ in 0..2 {
            b.tick().await;
        }
        let last = b.enqueue().await;
        kept.push(last.id);
        for _ in 0..4 {
            b.tick().await;
        }
        let lane: Vec<String> = b.redis(&["LRANGE", "queue:concert-tickets:waiting:0", "0", "-1"]).await;
        let line: Vec<String> = b.redis(&["ZRANGE", "queue:concert-tickets:positions", "0", "-1"]).await;
        assert_eq!(lane, line, "list and line agree");
        assert_eq!(lane.len(), kept.len());
        let spare: i64 = b.redis(&["EXISTS", "queue:concert-tickets:waiting:0:spare"]).await;
        assert_eq!(spare, 0);
    }

    async fn nothing_is_left_after_many_joins_and_expiries(t: TestStore) {
        let b = Bench::still(t).await;
        let baseline: Vec<String> = b.redis(&["KEYS", "*"]).await;
        for _ in 0..3 {
            let enqueue_batcher = (0..50).map(|_| b.room.enqueue(&b.queue, NewPosition::default()));
            futures_util::future::try_join_all(enqueue_batcher).await.unwrap();
            b.pass(seconds(TIMEOUT + 10)).await;
        }
        assert_eq!(b.room.queue(&b.queue).await.unwrap().waiting, 0);
        let lane: i64 = b.redis(&["LLEN", "queue:concert-tickets:waiting:0"]).await;
        assert!(lane <= 150 + 1_000, "{lane}");
        let keys: Vec<String> = b.redis(&["KEYS", "*"]).await;
        for key in keys.iter().filter(|key| !baseline.contains(key)) {
            let ttl: i64 = b.redis(&["TTL", key]).await;
            assert!(ttl > 0 || key.ends_with(":waiting:0"), "{key} lives for ever");
        }
    }
}
