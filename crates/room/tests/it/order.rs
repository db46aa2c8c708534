//! PriorityPolicy `skip` against brute force: a plain vector into which everybody is inserted where the table
//! says. A failure prints its seed.

use fastrand::Rng;
use room::{Options, PositionId, QueueConfig, Room};
use testkit::each_store;

use crate::support::{Bench, open_queue, seconds};

/// Everybody who waits, in order, with the priority of each.
type Line = Vec<(PositionId, u8)>;

/// Inserts where the table says: behind all, nine tenths, half or none, and behind one's own priority.
fn insert(line: &mut Line, id: PositionId, priority: u8) -> usize {
    let ahead = (line.len() * [10, 9, 5, 0][usize::from(priority)]).div_ceil(10);
    let own = line.iter().rposition(|(_, other)| *other == priority).map_or(0, |last| last + 1);
    let rank = ahead.max(own);
    line.insert(rank, (id, priority));
    rank
}

async fn stored(b: &Bench) -> Vec<String> {
    b.redis(&["ZRANGE", "queue:concert-tickets:positions", "0", "-1"]).await
}

async fn check(b: &Bench, line: &Line, seed: u64) {
    let ids: Vec<String> = line.iter().map(|(id, _)| id.to_string()).collect();
    assert_eq!(stored(b).await, ids, "seed {seed}");
}

/// Joins, leaves and admissions at random: runs of one priority, so that many scores are equal.
async fn walk(b: &Bench, rooms: &[Room], seed: u64, steps: usize) {
    let mut rng = Rng::with_seed(seed);
    let mut line = Line::new();
    for step in 0..steps {
        match rng.u8(..10) {
            0 => b.clock.advance(std::time::Duration::from_millis(rng.u64(..3))),
            1 if !line.is_empty() => {
                for _ in 0..rng.usize(1..4).min(line.len()) {
                    let (id, _) = line.remove(rng.usize(..line.len()));
                    b.room.leave(&b.queue, &id).await.unwrap();
                }
            }
            2 if line.len() > 20 => {
                let admitted = b.room.admit_by_hand(&b.queue, rng.usize(1..4)).await.unwrap().ids;
                for id in admitted {
                    assert_eq!(line.remove(0).0, id, "seed {seed}");
                    b.room.leave(&b.queue, &id).await.unwrap();
                }
            }
            _ => {
                let priority = [0, 0, 1, 1, 1, 2, 2, 3][rng.usize(..8)];
                for _ in 0..rng.usize(1..12) {
                    let room = &rooms[rng.usize(..rooms.len())];
                    let proof =
                        room::Proof::Operator(room::VisitorPriority::parse(priority).unwrap());
                    let new = room::NewPosition { proof, ..room::NewPosition::default() };
                    let position = room.enqueue(&b.queue, new).await.unwrap().position;
                    let rank = insert(&mut line, position.id, priority);
                    assert_eq!(position.number, Some(rank as u64 + 1), "seed {seed} step {step}");
                }
            }
        }
        if step % 10 == 0 {
            check(b, &line, seed).await;
        }
    }
    check(b, &line, seed).await;
}

each_store! {
    async fn a_newcomer_gets_the_rank_of_the_table_among_equals(t: TestStore) {
        let b = Bench::still(t).await;
        for _ in 0..100 {
            b.join_level(1).await;
        }
        let vip = b.join_level(2).await;
        assert_eq!(b.position(&vip).await, Some(51), "of 101: half of the line is skipped");
    }

    async fn the_table_holds_for_a_mixed_line(t: TestStore) {
        let b = Bench::still(t).await;
        for priority in [0; 40].into_iter().chain([1; 60]) {
            b.join_level(priority).await;
        }
        let vip = b.join_level(2).await;
        assert_eq!(b.position(&vip).await, Some(51));
        let premium = b.join_level(3).await;
        assert_eq!(b.position(&premium).await, Some(1));
    }

    async fn every_rank_is_the_promised_one_in_random_lines(t: TestStore) {
        let b = Bench::still(t).await;
        let other = Room::open(b.test.another().await, Options::default()).await.unwrap();
        let rooms = [b.room.clone(), other];
        for seed in 1..=4 {
            walk(&b, &rooms, seed, 60).await;
            b.room.reset_queue(&b.queue).await.unwrap();
        }
    }

    async fn a_very_long_line_makes_room_in_small_steps(t: TestStore) {
        let b = Bench::still(t).await;
        // A crowd without a free score in between, as a burst leaves it behind, and with ids behind which
        // no newcomer's sorts: nobody comes in between unless others move.
        let first = b.join_level(0).await;
        let start: f64 = b.redis(&["ZSCORE", "queue:concert-tickets:positions", &first.to_string()]).await;
        const CROWD: usize = 100_000;
        let ids: Vec<String> = (0..CROWD).map(|n| format!("ffffffff-ffff-7fff-8fff-{n:012x}")).collect();
        for (chunk, part) in ids.chunks(2_000).enumerate() {
            let mut zadd = vec!["ZADD".to_owned(), "queue:concert-tickets:positions".to_owned()];
            for (n, id) in part.iter().enumerate() {
                let score = start + (chunk * 2_000 + n + 1) as f64 * 0.5;
                zadd.extend([format!("{score:.1}"), id.clone()]);
            }
            let _: i64 = b.redis(&zadd.iter().map(String::as_str).collect::<Vec<_>>()).await;
        }
        b.clock.advance(seconds(10));
        let counts = async || {
            let stats: String = b.redis(&["INFO", "commandstats"]).await;
            let of = |name: &str| {
                let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:")));
                let count = line.and_then(|line| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok());
                count.unwrap_or(0)
            };
            (of("zadd"), of("evalsha") + of("eval"))
        };
        let (moves, calls) = counts().await;
        let vip = b.join_level(2).await;
        assert_eq!(b.position(&vip).await, Some((CROWD as u64 + 1).div_ceil(2) + 1));
        let (moves, calls) = { let now = counts().await; (now.0 - moves, now.1 - calls) };
        assert!(moves > 40_000, "half of the line had to move: {moves}");
// A store whose scripts run outside of it does not count them.
        let counted = calls >= 40 && moves <= calls * 1_010;
        assert!(counted || calls == 0, "{moves} moves in {calls} calls");
        // Everybody else stands where they stood.
        let mut line = stored(&b).await;
        let rank = line.iter().position(|id| *id == vip.to_string()).unwrap();
        line.remove(rank);
        assert_eq!(line[0], first.to_string());
        assert!(line[1..] == ids[..], "another order");
        // The next ones find room at once, and so does who comes last.
        let (_, calls) = counts().await;
        assert_eq!(b.position(&b.join_level(2).await).await, Some(rank as u64 + 2));
        let last = b.join_level(0).await;
        assert_eq!(b.position(&last).await, Some(CROWD as u64 + 4));
        assert!(counts().await.1 - calls < 20);
    }

    async fn a_large_group_of_equals_is_split_and_stays_in_order(t: TestStore) {
        let b = Bench::still(t).await;
        let mut line = Line::new();
        for priority in [0; 20].into_iter().chain([1; 300]).chain([2; 40]).chain([1; 20]) {
            let id = b.join_level(priority).await;
            insert(&mut line, id, priority);
        }
        check(&b, &line, 0).await;
        let _: i64 = b.redis(&["DEL", "queue:concert-tickets:waiting:2"]).await;
        // Without a lane to be behind of, the next ones go into the middle of their equals.
        for _ in 0..30 {
            let id = b.join_level(2).await;
            let _: i64 = b.redis(&["DEL", "queue:concert-tickets:waiting:2"]).await;
            line.insert(line.len().div_ceil(2), (id, 2));
            check(&b, &line, 0).await;
        }
    }

    async fn tickets_are_unique_and_grow_over_two_instances(t: TestStore) {
        let b = Bench::still(t).await;
        let other = Room::open(b.test.another().await, Options::default()).await.unwrap();
        let mut last = 0;
        for n in 0..200 {
            let room = if n % 2 == 0 { &b.room } else { &other };
            let position = room.enqueue(&b.queue, room::NewPosition::default()).await.unwrap().position;
            let ticket = position.ticket.unwrap();
            assert!(ticket > last, "{n}: {ticket} after {last}");
            last = ticket;
            let id = position.id.to_string();
            let score: f64 = b.redis(&["ZSCORE", "queue:concert-tickets:positions", &id]).await;
            assert_eq!(score, ticket as f64, "what is shown is what is stored");
            assert_eq!(b.status(&position.id).await.ticket, Some(ticket));
        }
    }

    async fn a_rate_of_nothing_lets_nobody_in_but_by_hand(t: TestStore) {
        let nothing = room::AdmissionRate { count: 0, per_seconds: 1, burst: 5 };
        let b = Bench::new(t, QueueConfig { admission: nothing, ..open_queue() }).await;
        let first = b.enqueue().await;
        assert_eq!(first.state, room::PositionState::Waiting);
        b.pass(seconds(20)).await;
        assert_eq!(b.state(&first.id).await, room::PositionState::Waiting);
        assert_eq!(b.room.admit_by_hand(&b.queue, 1).await.unwrap().ids, [first.id]);

        b.room.set_rate(&b.queue, room::AdmissionRate::new(10, 1)).await.unwrap();
        b.pass(seconds(2)).await;
        b.room.set_rate(&b.queue, nothing).await.unwrap();
        let late = b.enqueue().await;
        assert_eq!(late.state, room::PositionState::Waiting, "what was saved up does not count");
        b.pass(seconds(20)).await;
        assert_eq!(b.state(&late.id).await, room::PositionState::Waiting);
        b.room.set_rate(&b.queue, room::AdmissionRate::new(10, 1)).await.unwrap();
        b.pass(seconds(1)).await;
        assert_eq!(b.state(&late.id).await, room::PositionState::Admitted);
    }

    async fn sessions_another_program_left_do_not_hold_their_slots_for_ever(t: TestStore) {
        let config = QueueConfig {
            max_active: 3, session_timeout: seconds(60), admission: room::AdmissionRate::new(10, 1), ..open_queue()
        };
        let b = Bench::new(t, config).await;
        let active = "queue:concert-tickets:sessions:active";
        let known = "a1b2c3d4-e5f6-4890-abcd-ef1234567890";
        let _: i64 = b.redis(&["SADD", active, "stray-1", "stray-2", known]).await;
        let ends = (b.clock.now().as_secs() + 20).to_string();
        let session = format!("session:{known}");
        let _: i64 = b.redis(&["HSET", &session, "queue_id", "concert-tickets", "expires_at", &ends]).await;
        let position = b.enqueue().await;
        assert_eq!(position.state, room::PositionState::Waiting);
        let beat = async || { b.pass(seconds(5)).await; b.beat(&position.id).await.state };
        for _ in 0..3 {
            assert_eq!(beat().await, room::PositionState::Waiting);
        }
        // One ends when its own record says, the others after the idle time.
        beat().await;
        assert_eq!(beat().await, room::PositionState::Admitted);
        assert_eq!(b.redis::<i64>(&["SCARD", active]).await, 2);
        b.pass(seconds(60)).await;
        assert_eq!(b.redis::<i64>(&["SCARD", active]).await, 0);
    }

    async fn positions_another_program_left_are_heard_of_or_end(t: TestStore) {
        let b = Bench::still(t).await;
        let (ours, foreign) = (b.enqueue().await, "f47ac10b-58cc-4372-a567-0e02b2c3d479");
        let positions = "queue:concert-tickets:positions";
        let _: i64 = b.redis(&["ZADD", positions, "1", foreign, "2", "not-an-id"]).await;
        b.tick().await;
        assert!(b.redis::<Option<f64>>(&["ZSCORE", "heartbeat:active", foreign]).await.is_some());
        let admitted = b.room.admit_by_hand(&b.queue, 5).await.unwrap().ids;
        assert_eq!(admitted.iter().map(|id| id.to_string()).collect::<Vec<_>>(), [foreign.to_owned(), ours.id.to_string()]);
        let _: i64 = b.redis(&["ZADD", positions, "1", "not-an-id"]).await;
        let _: i64 = b.redis(&["SADD", "queue:concert-tickets:sessions:active", "stray"]).await;
        b.pass(seconds(2)).await;
        b.room.reset_queue(&b.queue).await.unwrap();
        b.room.delete_queue(&b.queue).await.unwrap();
    }

    async fn a_finished_position_is_no_obstacle_to_a_new_one(t: TestStore) {
        let b = Bench::still(t).await;
        let new = room::NewPosition { idempotency_key: Some(crate::support::key(7)), ..room::NewPosition::default() };
        let enqueue = async || b.room.enqueue(&b.queue, new.clone()).await.unwrap();
        let first = enqueue().await;
        assert_eq!((enqueue().await.position.id, enqueue().await.new), (first.position.id, false));
        b.room.leave(&b.queue, &first.position.id).await.unwrap();
        let second = enqueue().await;
        assert!(second.new && second.position.id != first.position.id);
        b.room.admit_by_hand(&b.queue, 1).await.unwrap();
        let claim = b.room.start_session(&b.queue, &second.position.id, &room::Visitor::default()).await.unwrap();
        let room::SessionStart::Active { session, .. } = claim else { panic!("{claim:?}") };
        assert_eq!(enqueue().await.position.id, second.position.id, "a session that runs is not over");
        b.room.complete(&b.queue, &session.id).await.unwrap();
        let third = enqueue().await;
        assert!(third.new && third.position.state == room::PositionState::Waiting);
        let short = room::NewPosition { idempotency_key: Some("5f0c".into()), ..room::NewPosition::default() };
        assert!(matches!(b.room.enqueue(&b.queue, short).await, Err(room::Error::Invalid { field: "idempotency_key", .. })));
    }

    async fn the_rate_right_after_the_start_is_over_the_time_that_passed(t: TestStore) {
        let b = Bench::new(t, QueueConfig { admission: room::AdmissionRate::new(2, 1).with_burst(10), ..open_queue() }).await;
        for _ in 0..100 {
            b.enqueue().await;
        }
        b.pass(seconds(40)).await;
        let rate = b.room.stats(&b.queue).await.unwrap().admission_rate;
        assert!((1.9..=2.4).contains(&rate), "{rate} a second");
    }
}
