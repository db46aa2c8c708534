//! Admission: both limits, order, priorities, several instances.

use std::time::Duration;

use room::{
    AdmissionRate, PositionId, PositionState, PriorityPolicy, QueueConfig, SessionStart, Visitor,
};
use testkit::each_store;

use crate::support::{Bench, open_queue, seconds};

/// Everybody in the order of admission.
async fn drain(b: &Bench) -> Vec<PositionId> {
    let mut order = Vec::new();
    loop {
        let step = b.room.admit_by_hand(&b.queue, 1).await.unwrap().ids;
        if step.is_empty() {
            return order;
        }
        order.extend(step);
    }
}

each_store! {
    async fn higher_levels_go_first_under_the_strict_policy(t: TestStore) {
        let config = QueueConfig { policy: PriorityPolicy::Strict, reserved_share: 0, ..open_queue() };
        let b = Bench::still_with(t, config).await;
        let normal = b.join_level(0).await;
        let vip1 = b.join_level(2).await;
        let premium1 = b.join_level(3).await;
        let elevated = b.join_level(1).await;
        let vip2 = b.join_level(2).await;
        let premium2 = b.join_level(3).await;
        let expected = [premium1, premium2, vip1, vip2, elevated, normal];
        for (i, id) in expected.iter().enumerate() {
            assert_eq!(b.position(id).await, Some(i as u64 + 1));
        }
        assert_eq!(drain(&b).await, expected);
    }

    async fn level_0_gets_its_share_and_positions_stay_true(t: TestStore) {
        let config = QueueConfig { policy: PriorityPolicy::Strict, reserved_share: 3, ..open_queue() };
        let b = Bench::still_with(t, config).await;
        let mut ids = Vec::new();
        for priority in [0, 0, 2, 3, 2, 1, 3, 0, 1, 2, 0] {
            ids.push(b.join_level(priority).await);
        }
        let mut shown: Vec<(u64, PositionId)> = Vec::new();
        for id in &ids {
            shown.push((b.position(id).await.unwrap(), *id));
        }
        shown.sort_unstable();
        let promised: Vec<_> = shown.iter().map(|(_, id)| *id).collect();
        assert_eq!(shown.iter().map(|(n, _)| *n).collect::<Vec<_>>(), (1..=11).collect::<Vec<_>>());
        let order = drain(&b).await;
        assert_eq!(order, promised, "position shown = brute-force drain");
        let normal = [ids[0], ids[1], ids[7], ids[10]];
        for window in order.windows(3).take(9) {
            assert!(window.iter().any(|id| normal.contains(id)), "one in three");
        }
    }

    async fn under_the_skip_policy_levels_skip_their_part_of_the_line(t: TestStore) {
        let b = Bench::still(t).await;
        let mut normal = Vec::new();
        for _ in 0..20 {
            normal.push(b.join_level(0).await);
        }
        let elevated = b.join_level(1).await;
        assert_eq!(b.position(&elevated).await, Some(19), "18 of 20 before, a tenth behind");
        let vip = b.join_level(2).await;
        assert_eq!(b.position(&vip).await, Some(12), "11 of 21 before, half behind");
        let premium = b.join_level(3).await;
        assert_eq!(b.position(&premium).await, Some(1));
        let premium2 = b.join_level(3).await;
        assert_eq!(b.position(&premium2).await, Some(2));
        let vip2 = b.join_level(2).await;
        let elevated2 = b.join_level(1).await;
        let order = drain(&b).await;
        let at = |id: &PositionId| order.iter().position(|other| other == id).unwrap();
        assert!(at(&vip) < at(&vip2) && at(&elevated) < at(&elevated2));
        assert!(at(&normal[9]) < at(&vip), "the front half is not overtaken");
        let rest: Vec<_> = order.iter().filter(|id| normal.contains(id)).copied().collect();
        assert_eq!(rest, normal);
    }

    async fn a_skipper_never_passes_an_earlier_one_of_its_level(t: TestStore) {
        let b = Bench::still(t).await;
        let mut normal = Vec::new();
        for _ in 0..20 {
            normal.push(b.join_level(0).await);
        }
        let first = b.join_level(1).await;
        // Everybody behind the first one leaves, so a tenth of the line now begins before it.
        for id in &normal[18..] {
            b.room.leave(&b.queue, id).await.unwrap();
        }
        for id in &normal[..3] {
            b.room.leave(&b.queue, id).await.unwrap();
        }
        let second = b.join_level(1).await;
        assert!(b.position(&first).await < b.position(&second).await);
    }

    async fn admitted_and_active_never_exceed_the_limit(t: TestStore) {
        let config = QueueConfig { max_active: 3, admission: AdmissionRate::new(1000, 1), ..open_queue() };
        let b = Bench::new(t, config).await;
        let mut ids = Vec::new();
        for _ in 0..10 {
            ids.push(b.enqueue().await.id);
        }
        b.pass(seconds(5)).await;
        let queue = b.room.queue(&b.queue).await.unwrap();
        assert_eq!((queue.admitted, queue.active, queue.waiting), (3, 0, 7));
        let SessionStart::Active { session, .. } =
            b.room.start_session(&b.queue, &ids[0], &Visitor::default()).await.unwrap()
        else { panic!() };
        b.tick().await;
        let queue = b.room.queue(&b.queue).await.unwrap();
        assert_eq!((queue.admitted, queue.active), (2, 1));
        b.room.complete(&b.queue, &session.id).await.unwrap();
        b.tick().await;
        let queue = b.room.queue(&b.queue).await.unwrap();
        assert_eq!((queue.admitted, queue.active, queue.waiting), (3, 0, 6));
        assert_eq!(b.state(&ids[3]).await, PositionState::Admitted);
    }

    async fn the_rate_does_not_depend_on_how_often_it_is_asked(t: TestStore) {
        let config = QueueConfig {
            admission: AdmissionRate { count: 10, per_seconds: 1, burst: 10 },
            admission_window: seconds(3600),
            ..open_queue()
        };
        let b = Bench::new(t, config).await;
        for _ in 0..200 {
            b.enqueue().await;
        }
        let admitted = async || b.room.queue(&b.queue).await.unwrap().admitted;
        assert_eq!(admitted().await, 10, "the burst, at once");
        // Asked every 7 ms, the truncating bucket of old would never refill.
        for _ in 0..1_000 {
            b.clock.advance(Duration::from_millis(7));
            b.room.admit(&b.queue, 200).await.unwrap();
        }
        assert_eq!(admitted().await, 80, "burst 10 + 10/s × 7 s");
        b.clock.advance(seconds(5));
        b.room.admit(&b.queue, 200).await.unwrap();
        assert_eq!(admitted().await, 90, "a lull saves up the burst and no more");
    }

    async fn a_rate_of_500_a_minute_is_just_that(t: TestStore) {
        let config = QueueConfig { admission: AdmissionRate::new(500, 60), admission_window: seconds(3600), ..open_queue() };
        let b = Bench::new(t, config).await;
        let enqueue_batcher = (0..600).map(|_| b.room.enqueue(&b.queue, room::NewPosition::default()));
        futures_util::future::try_join_all(enqueue_batcher).await.unwrap();
        let before = b.room.queue(&b.queue).await.unwrap().admitted;
        for _ in 0..600 {
            b.clock.advance(Duration::from_millis(100));
            b.room.admit(&b.queue, 200).await.unwrap();
        }
        assert_eq!(b.room.queue(&b.queue).await.unwrap().admitted - before, 500);
    }

    async fn a_high_rate_is_reached_while_admissions_are_taken_back(t: TestStore) {
        let config = QueueConfig {
            admission: AdmissionRate::new(500, 1),
            admission_window: seconds(5),
            ..open_queue()
        };
        let b = Bench::still_with(t, config).await;
        let crowd = (0..3_600).map(|_| b.room.enqueue(&b.queue, room::NewPosition::default()));
        futures_util::future::try_join_all(crowd).await.unwrap();
        let mut no_shows = 0;
        for round in 0..7 {
            b.clock.advance(seconds(1));
            let report = b.keeper.tick().await.unwrap();
            assert_eq!(report.admitted, 500, "round {round}: all that the rate allows");
            no_shows += report.no_shows;
        }
        assert!(no_shows > 0);
    }

    async fn tokens_and_their_instant_are_stored_together(t: TestStore) {
        let config = QueueConfig { admission: AdmissionRate { count: 1, per_seconds: 1, burst: 10 }, ..open_queue() };
        let b = Bench::new(t, config).await;
        let read = async || -> (String, String) {
            let tokens = b.redis(&["GET", "admission:concert-tickets:tokens"]).await;
            (tokens, b.redis(&["GET", "admission:concert-tickets:last_update"]).await)
        };
        assert_eq!(read().await, ("10".into(), "1767225600.000".into()));
        for _ in 0..12 {
            b.enqueue().await;
        }
        assert_eq!(read().await.0, "0", "the first burst is the whole bucket, not one");
        b.clock.advance(Duration::from_millis(1_250));
        b.room.admit(&b.queue, 10).await.unwrap();
        assert_eq!(read().await, ("0".into(), "1767225601.250".into()));
        b.clock.advance(Duration::from_millis(750));
        assert_eq!(b.room.admit(&b.queue, 10).await.unwrap().ids.len(), 1, "the quarter was kept");
    }

    async fn a_clock_set_back_neither_freezes_the_rate_nor_frees_a_burst(t: TestStore) {
        let config = QueueConfig { admission: AdmissionRate { count: 1, per_seconds: 1, burst: 5 }, ..open_queue() };
        let b = Bench::new(t, config).await;
        for _ in 0..40 {
            b.enqueue().await;
        }
        b.clock.set(store::Millis(b.clock.now().0 - 3_600_000));
        assert_eq!(b.room.admit(&b.queue, 50).await.unwrap().ids.len(), 0);
        b.tick().await;
        b.clock.advance(seconds(3));
        assert_eq!(b.room.admit(&b.queue, 50).await.unwrap().ids.len(), 3);
    }

    async fn resuming_admits_no_more_than_the_burst(t: TestStore) {
        let config = QueueConfig { admission: AdmissionRate { count: 10, per_seconds: 1, burst: 10 }, ..open_queue() };
        let b = Bench::new(t, config).await;
        for _ in 0..50 {
            b.enqueue().await;
        }
        b.room.pause_queue(&b.queue).await.unwrap();
        b.pass(seconds(60)).await;
        assert_eq!(b.room.queue(&b.queue).await.unwrap().admitted, 10);
        b.room.resume_queue(&b.queue).await.unwrap();
        b.tick().await;
        assert_eq!(b.room.queue(&b.queue).await.unwrap().admitted, 10, "time paused adds nothing");
        b.clock.advance(seconds(1));
        b.tick().await;
        assert_eq!(b.room.queue(&b.queue).await.unwrap().admitted, 20);
    }

    async fn an_operator_admits_by_hand_within_the_limit_also_while_paused(t: TestStore) {
        let b = Bench::still_with(t, QueueConfig { max_active: 4, ..open_queue() }).await;
        for _ in 0..10 {
            b.enqueue().await;
        }
        b.room.pause_queue(&b.queue).await.unwrap();
        assert_eq!(b.room.admit_by_hand(&b.queue, 3).await.unwrap().ids.len(), 3);
        assert_eq!(b.room.admit_by_hand(&b.queue, 3).await.unwrap().ids.len(), 1);
        b.room.close_queue(&b.queue).await.unwrap();
        assert_eq!(b.room.admit_by_hand(&b.queue, 3).await.unwrap().ids.len(), 0);
    }

    async fn three_instances_admit_together_what_one_may(t: TestStore) {
        let config = QueueConfig {
            max_active: 120,
            admission: AdmissionRate { count: 50, per_seconds: 1, burst: 20 },
            admission_window: seconds(3600),
            ..open_queue()
        };
        let b = Bench::new(t, config).await;
        let mut rooms = vec![b.room.clone()];
        for _ in 0..2 {
            rooms.push(room::Room::open(b.test.another().await, room::Options::default()).await.unwrap());
        }
        let keepers: Vec<_> = rooms.iter().map(|room| room::RoomMaintenance::new(room.clone())).collect();
        let enqueue_batcher = (0..200).map(|i| rooms[i % 3].enqueue(&b.queue, room::NewPosition::default()));
        let positions: Vec<_> = futures_util::future::try_join_all(enqueue_batcher).await.unwrap();
        let start = b.clock.now();
        for _ in 0..40 {
            b.clock.advance(Duration::from_millis(100));
            let ticks = keepers.iter().map(room::RoomMaintenance::tick);
            futures_util::future::try_join_all(ticks).await.unwrap();
            let queue = b.room.queue(&b.queue).await.unwrap();
            let most = 20 + 50 * (b.clock.now().0 - start.0) as u64 / 1000;
            assert!(queue.admitted <= most.min(120), "{} > {most}", queue.admitted);
        }
        assert_eq!(b.room.queue(&b.queue).await.unwrap().admitted, 120, "and nothing is left idle");
        // Whoever is still waiting came after everybody who was admitted.
        let mut last_admitted = 0.0f64;
        let mut first_waiting = f64::MAX;
        for position in &positions {
            let id = position.position.id.to_string();
            let score: Option<f64> = b.redis(&["ZSCORE", "queue:concert-tickets:positions", &id]).await;
            match score {
                Some(score) => first_waiting = first_waiting.min(score),
                None => {
                    let key = format!("position:{id}");
                    let score: f64 = b.redis(&["HGET", &key, "score"]).await;
                    last_admitted = last_admitted.max(score);
                }
            }
        }
        assert!(last_admitted < first_waiting);
    }

    async fn a_foreign_id_in_the_line_does_not_stop_it(t: TestStore) {
        let b = Bench::new(t, QueueConfig { admission: AdmissionRate::new(1, 1), ..open_queue() }).await;
        b.enqueue().await;
        let position = b.enqueue().await;
        let _: i64 = b.redis(&["ZADD", "queue:concert-tickets:positions", "1", "550e8400-e29b-41d4-a716"]).await;
        b.pass(seconds(2)).await;
        b.pass(seconds(2)).await;
        assert_eq!(b.state(&position.id).await, PositionState::Admitted);
    }
}
