//! Making, changing and emptying queues.

use room::{
    AdmissionRate, Error, NewPosition, PositionState, PriorityPolicy, QueueConfig, QueueId,
    QueueStatus, Visitor,
};
use testkit::each_store;

use crate::support::{Bench, open_queue, seconds};

each_store! {
    async fn a_queue_is_made_read_listed_and_changed(t: TestStore) {
        let b = Bench::still(t).await;
        let queue = b.room.queue(&b.queue).await.unwrap();
        assert_eq!((queue.config.clone(), queue.status, queue.version), (open_queue(), QueueStatus::Active, 1));
        let again = b.room.create_queue(&b.queue, QueueConfig::default()).await;
        assert!(matches!(again, Err(Error::QueueExists)), "{again:?}");
        let other = QueueId::parse("another").unwrap();
        b.room.create_queue(&other, QueueConfig::default()).await.unwrap();
        let names: Vec<_> = b.room.queues().await.unwrap().into_iter().map(|q| q.id.to_string()).collect();
        assert_eq!(names, ["another", "concert-tickets"]);

        b.clock.advance(seconds(5));
        let changed = b.room.change_queue(&b.queue, Some(1), |c| c.max_active = 7).await.unwrap();
        assert_eq!((changed.config.max_active, changed.version), (7, 2));
        assert_eq!(changed.updated.as_secs(), b.clock.now().as_secs());
        assert_eq!(changed.config.name, "Concert", "the rest stays");
        let stale = b.room.change_queue(&b.queue, Some(1), |c| c.max_active = 8).await;
        assert!(matches!(stale, Err(Error::Conflict { version: 2 })), "{stale:?}");
        let bad = b.room.change_queue(&b.queue, None, |c| c.hold = seconds(1)).await;
        assert!(matches!(bad, Err(Error::Invalid { field: "hold", .. })), "{bad:?}");
        assert_eq!(b.room.queue(&b.queue).await.unwrap().version, 2, "and nothing changed");
    }

    async fn changes_at_the_same_time_all_count(t: TestStore) {
        let b = Bench::still(t).await;
        let changes = (0..5).map(|_| b.room.change_queue(&b.queue, None, |c| c.max_active += 1));
        futures_util::future::try_join_all(changes).await.unwrap();
        assert_eq!(b.room.queue(&b.queue).await.unwrap().config.max_active, 5);
    }

    async fn pausing_and_resuming_are_states_and_told_to_those_who_wait(t: TestStore) {
        let b = Bench::still(t).await;
        let position = b.enqueue().await;
        let message = [("en".to_owned(), "back soon".into())].into_iter().collect();
        b.room.set_message(&b.queue, message).await.unwrap();
        b.room.pause_queue(&b.queue).await.unwrap();
        b.room.pause_queue(&b.queue).await.unwrap();
        let told = b.status(&position.id).await;
        assert_eq!(told.queue_status, QueueStatus::Paused);
        assert_eq!(told.message["en"], "back soon");
        assert_eq!(told.estimate, Err(room::NoEstimate::Paused));
        assert_eq!(told.number, Some(1));
        assert_eq!(b.enqueue().await.state, PositionState::Waiting, "enqueueing is possible");
        let queue = b.room.resume_queue(&b.queue).await.unwrap();
        assert_eq!(queue.status, QueueStatus::Active);
        assert_eq!(b.status(&position.id).await.queue_status, QueueStatus::Active);
    }

    async fn time_before_a_change_of_the_rate_counts_at_the_old_rate(t: TestStore) {
        let config = QueueConfig { admission: AdmissionRate { count: 1, per_seconds: 1, burst: 100 }, ..open_queue() };
        let b = Bench::new(t, config).await;
        b.no_tokens().await;
        for _ in 0..50 {
            b.enqueue().await;
        }
        b.clock.advance(seconds(3));
        b.room.set_rate(&b.queue, AdmissionRate { count: 10, per_seconds: 1, burst: 100 }).await.unwrap();
        assert_eq!(b.room.admit(&b.queue, 100).await.unwrap().ids.len(), 3);
        b.clock.advance(seconds(1));
        assert_eq!(b.room.admit(&b.queue, 100).await.unwrap().ids.len(), 10);
    }

    async fn the_policy_changes_only_while_nobody_above_level_0_waits(t: TestStore) {
        let b = Bench::still(t).await;
        b.enqueue().await;
        let strict = |c: &mut QueueConfig| c.policy = PriorityPolicy::Strict;
        let skip = |c: &mut QueueConfig| c.policy = PriorityPolicy::Skip;
        b.room.change_queue(&b.queue, None, strict).await.unwrap();
        let vip = b.join_level(2).await;
        let refused = b.room.change_queue(&b.queue, None, skip).await;
        assert!(matches!(refused, Err(Error::PriorityInUse)), "{refused:?}");
        b.room.leave(&b.queue, &vip).await.unwrap();
        b.room.change_queue(&b.queue, None, skip).await.unwrap();
    }

    async fn a_reset_ends_everything_and_keeps_the_queue(t: TestStore) {
        let b = Bench::still(t).await;
        let enqueue_batcher = (0..450).map(|_| b.room.enqueue(&b.queue, NewPosition::default()));
        let positions = futures_util::future::try_join_all(enqueue_batcher).await.unwrap();
        let admitted = b.room.admit_by_hand(&b.queue, 10).await.unwrap().ids;
        b.room.start_session(&b.queue, &admitted[0], &Visitor::default()).await.unwrap();
        let ended = b.room.reset_queue(&b.queue).await.unwrap();
        assert_eq!((ended.positions, ended.sessions), (449, 1));
        let queue = b.room.queue(&b.queue).await.unwrap();
        assert_eq!((queue.waiting, queue.admitted, queue.active), (0, 0, 0));
        let position = b.status(&positions[449].position.id).await;
        assert_eq!(position.reason, Some(room::EndReason::QueueReset));
        assert_eq!(position.epoch, 2);
        assert_eq!(b.enqueue().await.number, Some(1));
    }

    async fn a_deleted_queue_leaves_only_what_dies_by_itself(t: TestStore) {
        let b = Bench::still(t).await;
        let position = b.enqueue().await;
        b.enqueue().await;
        b.room.admit_by_hand(&b.queue, 1).await.unwrap();
        b.room.start_session(&b.queue, &position.id, &Visitor::default()).await.unwrap();
        b.room.delete_queue(&b.queue).await.unwrap();
        assert!(matches!(b.room.queue(&b.queue).await, Err(Error::UnknownQueue)));
        assert!(b.room.queues().await.unwrap().is_empty());
        let keys: Vec<String> = b.redis(&["KEYS", "*"]).await;
        for key in keys {
            let ttl: i64 = b.redis(&["TTL", &key]).await;
            assert!(ttl > 0 || key.starts_with("room:"), "{key} lives for ever");
        }
        assert!(matches!(b.room.delete_queue(&b.queue).await, Err(Error::UnknownQueue)));
        b.room.create_queue(&b.queue, open_queue()).await.unwrap();
        b.no_tokens().await;
        assert_eq!(b.enqueue().await.number, Some(1), "the name can be used again");
    }

    async fn settings_changed_by_hand_count(t: TestStore) {
        let b = Bench::still(t).await;
        let _: i64 = b.redis(&["HSET", "queue:concert-tickets:meta", "max_queue_size", "1"]).await;
        b.enqueue().await;
        let full = b.room.enqueue(&b.queue, NewPosition::default()).await;
        assert!(matches!(full, Err(Error::Full { .. })), "{full:?}");
    }
}
