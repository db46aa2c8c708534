//! Calls that are under way at the same time are made as one, and nobody notices but the store.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    pin::Pin,
    task::Poll,
};

use futures_util::future::join_all;
use room::{
    Error, NewInvite, NewPosition, Options, Position, PositionId, PositionState, Proof,
    QueueConfig, Room, VisitorPriority,
};
use testkit::each_store;

use crate::support::{Bench, key, open_queue, seconds};

/// How many scripts the store has run.
async fn scripts_run(b: &Bench) -> u64 {
    let info: String = store::redis::cmd("INFO")
        .arg("commandstats")
        .query_async(&mut b.store.clone())
        .await
        .unwrap();
    let calls = |name: &str| -> u64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    };
    calls("cmdstat_evalsha:calls=") + calls("cmdstat_eval:calls=")
}

/// From now on a call of the store takes a moment, in which others come.
fn let_them_meet(b: &Bench) {
    b.test.faults.delay(std::time::Duration::from_millis(2));
}

type Calling<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Starts calls, looks at some and gives others up, in an order that the seed draws. Says what the
/// others came to; nobody may wait for ever.
async fn give_some_up<'a, T>(
    seed: u64,
    steps: usize,
    mut start: impl FnMut(&mut fastrand::Rng) -> Calling<'a, T>,
) -> Vec<T> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut calls, mut done) = (Vec::<Calling<'a, T>>::new(), Vec::new());
    for _ in 0..steps {
        match random.u8(0..4) {
            0 | 1 => calls.push(start(&mut random)),
            2 if !calls.is_empty() => {
                let at = random.usize(0..calls.len());
                if let Poll::Ready(answer) = futures_util::poll!(&mut calls[at]) {
                    done.push(answer.unwrap());
                    drop(calls.swap_remove(at));
                }
            }
            3 if !calls.is_empty() => drop(calls.swap_remove(random.usize(0..calls.len()))),
            _ => tokio::task::yield_now().await,
        }
    }
    let rest = tokio::time::timeout(seconds(60), join_all(calls)).await;
    let rest = rest.unwrap_or_else(|_| panic!("somebody waits for ever (seed {seed})"));
    done.extend(rest.into_iter().map(Result::unwrap));
    done
}

/// One position of each kind, and what a heartbeat must say of it.
async fn one_of_each(b: &Bench) -> Vec<(PositionId, Option<PositionState>)> {
    let mut positions = Vec::new();
    let admitted = b.join_level(3).await;
    assert_eq!(b.room.admit_by_hand(&b.queue, 1).await.unwrap().ids, [admitted]);
    positions.push((admitted, Some(PositionState::Admitted)));
    for priority in [0, 2, 1, 0] {
        positions.push((b.join_level(priority).await, Some(PositionState::Waiting)));
    }
    let left = b.enqueue().await.id;
    b.room.leave(&b.queue, &left).await.unwrap();
    positions.push((left, Some(PositionState::Cancelled)));
    let lost = b.enqueue().await.id;
    let () = b.redis(&["DEL", &format!("position:{lost}")]).await;
    positions.push((lost, Some(PositionState::Waiting)));
    let unknown = PositionId::parse("019b76da-a800-71f4-8000-000000000000").unwrap();
    positions.push((unknown, None));
    // The same ones again: several tabs of a visitor.
    positions.extend(positions.clone());
    positions.extend(positions.clone());
    positions
}

each_store! {
    async fn of_places_that_call_together_each_is_told_its_own(t: TestStore) {
        let b = Bench::still(t).await;
        let positions = one_of_each(&b).await;
        b.clock.advance(seconds(7));
        let before = scripts_run(&b).await;
        let_them_meet(&b);
        let heartbeat_batcher = join_all(
            positions.iter().map(|(id, _)| b.room.heartbeat(&b.queue, id, None, None)),
        )
        .await;
        let asked =
            join_all(positions.iter().map(|(id, _)| b.room.status(&b.queue, id))).await;
        let ran = scripts_run(&b).await - before;
        assert!(ran < positions.len() as u64, "{ran} scripts for {} calls", 2 * positions.len());
        for (((id, state), beat), asked) in positions.iter().zip(heartbeat_batcher).zip(asked) {
            match state {
                Some(state) => {
                    let beat = beat.unwrap();
                    assert_eq!((beat.id, beat.state), (*id, *state));
                    // Asked alone it is the same.
                    assert_eq!(beat, b.status(id).await);
                    assert_eq!(beat, asked.unwrap());
                    if *state == PositionState::Waiting {
                        assert_eq!(beat.last_heartbeat, Some(b.store.now()));
                        let record: BTreeMap<String, String> =
                            b.redis(&["HGETALL", &format!("position:{id}")]).await;
                        assert_eq!(record["status"], "waiting");
                        assert_eq!(record["last_heartbeat"], b.store.now().as_secs().to_string());
                        let ttl: i64 = b.redis(&["TTL", &format!("position:{id}")]).await;
                        assert!((1_790..=1_800).contains(&ttl), "{ttl}");
                    }
                }
                None => {
                    assert!(matches!(beat, Err(Error::UnknownPosition)), "{beat:?}");
                    assert!(matches!(asked, Err(Error::UnknownPosition)), "{asked:?}");
                }
            }
        }
    }

    async fn a_level_that_is_known_makes_no_difference(t: TestStore) {
        let b = Bench::still(t).await;
        let_them_meet(&b);
        for policy in [room::PriorityPolicy::Strict, room::PriorityPolicy::Skip] {
            let queue = room::QueueId::parse(policy.as_str()).unwrap();
            let config = room::QueueConfig { policy, reserved_share: 3, ..open_queue() };
            b.room.create_queue(&queue, config).await.unwrap();
            let mut ids = Vec::new();
            for priority in [0, 3, 0, 1, 2, 3, 0, 0, 1] {
                let priority = VisitorPriority::parse(priority).unwrap();
                let new = room::NewPosition {
                    proof: room::Proof::Operator(priority),
                    ..room::NewPosition::default()
                };
                ids.push((b.room.enqueue(&queue, new).await.unwrap().position.id, priority));
            }
            let beat = |known: bool| {
                let (room, queue) = (&b.room, &queue);
                join_all(ids.iter().map(move |(id, priority)| {
                    room.heartbeat(queue, id, known.then_some(*priority), None)
                }))
            };
            let read: Vec<Position> = beat(false).await.into_iter().map(Result::unwrap).collect();
            let told: Vec<Position> = beat(true).await.into_iter().map(Result::unwrap).collect();
            // Who says the priority has the ticket as well, in the token.
            let without = |position: Position| Position { ticket: None, ..position };
            assert!(read.iter().all(|position| position.ticket.is_some()));
            assert_eq!(read.into_iter().map(without).collect::<Vec<_>>(),
                told.into_iter().map(without).collect::<Vec<_>>());
        }
    }

    async fn a_clock_that_was_set_back_shows_when_the_place_was_really_taken(t: TestStore) {
        let b = Bench::still(t).await;
        b.clock.advance(seconds(3_600));
        b.enqueue().await;
        b.clock.set(store::Millis(b.store.now().0 - 3_600_000));
        // Its ticket goes on from the last one, an hour ahead.
        let position = b.enqueue().await;
        assert!(position.id.enqueued_us() / 1000 > u64::try_from(b.store.now().0).unwrap());
        b.clock.advance(seconds(5));
        let beat = b.room.heartbeat(&b.queue, &position.id, Some(VisitorPriority::NORMAL), None).await.unwrap();
        assert_eq!(beat.enqueued_at, store::Millis(1_767_225_600_000));
        let seen = b.status(&position.id).await;
        assert_eq!(Position { ticket: seen.ticket, ..beat }, seen);
    }

    async fn more_than_go_together_are_all_answered(t: TestStore) {
        let b = Bench::still(t).await;
        let mut ids = Vec::new();
        for _ in 0..30 {
            ids.push(b.enqueue().await.id);
        }
        let_them_meet(&b);
        let many = (0..900).map(|n| ids[n % ids.len()]);
        let calls = many.clone().map(|id| {
            let (room, queue) = (b.room.clone(), b.queue.clone());
            tokio::spawn(async move { room.heartbeat(&queue, &id, None, None).await })
        });
        for (call, id) in calls.collect::<Vec<_>>().into_iter().zip(many) {
            let position = call.await.unwrap().unwrap();
            assert_eq!(position.id, id);
            assert_eq!(position.number, ids.iter().position(|one| *one == id).map(|n| n as u64 + 1));
        }
    }

    async fn a_store_that_is_away_is_told_to_everybody_and_back_when_it_is(t: TestStore) {
        let b = Bench::still(t).await;
        let mut ids = Vec::new();
        for _ in 0..20 {
            ids.push(b.enqueue().await.id);
        }
        let heartbeat_batcher = || join_all(ids.iter().map(|id| b.room.heartbeat(&b.queue, id, None, None)));
        let_them_meet(&b);
        b.test.faults.go_away();
        for beat in heartbeat_batcher().await {
            assert!(beat.unwrap_err().is_unavailable());
        }
        b.test.faults.come_back();
        let_them_meet(&b);
        b.test.faults.lose_next_replies(1);
        assert!(heartbeat_batcher().await.iter().any(Result::is_err));
        for beat in heartbeat_batcher().await {
            assert_eq!(beat.unwrap().state, PositionState::Waiting);
        }
    }

    async fn one_record_that_is_spoilt_costs_nobody_else_anything(t: TestStore) {
        let b = Bench::still(t).await;
        let mut ids = Vec::new();
        for _ in 0..9 {
            ids.push(b.enqueue().await.id);
        }
        let spoilt = ids[4];
        let () = b.redis(&["SET", &format!("position:{spoilt}"), "not a hash"]).await;
        b.clock.advance(seconds(3));
        let_them_meet(&b);
        let heartbeat_batcher = join_all(ids.iter().map(|id| b.room.heartbeat(&b.queue, id, None, None))).await;
        let asked = join_all(ids.iter().map(|id| b.room.status(&b.queue, id))).await;
        for (id, (beat, asked)) in ids.iter().zip(heartbeat_batcher.into_iter().zip(asked)) {
            if *id == spoilt {
                assert!(matches!(beat, Err(Error::Store(_))), "{beat:?}");
                assert!(matches!(asked, Err(Error::Store(_))), "{asked:?}");
            } else {
                assert_eq!(beat.unwrap(), asked.unwrap());
            }
        }
    }

    /// Whoever goes away half way, whether leading or waiting, leaves nobody behind.
    async fn callers_that_go_away_strand_nobody(t: TestStore) {
        let b = Bench::still(t).await;
        let mut ids = Vec::new();
        for _ in 0..12 {
            ids.push(b.enqueue().await.id);
        }
        let mut told = 0;
        for seed in 0..40 {
            // At times the store answers at once, at times it takes a moment.
            b.test.faults.delay(std::time::Duration::from_millis(seed % 2));
            let heartbeat_batcher = give_some_up(seed, 200, |random| {
                let id = random.choice(&ids).unwrap();
                Box::pin(b.room.heartbeat(&b.queue, id, None, None))
            });
            for position in heartbeat_batcher.await {
                assert_eq!(position.state, PositionState::Waiting);
                told += 1;
            }
        }
        assert!(told > 40, "{told} were told");
    }

    async fn joins_that_come_together_count_one_after_the_other(t: TestStore) {
        let b = Bench::still_with(t, QueueConfig { max_queue_size: 40, ..open_queue() }).await;
        let first = b.enqueue().await.id;
        let second = b.join_level(1).await;
        let expires = b.store.now() + seconds(600);
        let invite = NewInvite { id: None, priority: VisitorPriority::VIP, uses: 2, expires, user_id: String::new() };
        let (_, invite) = b.room.issue_invite(&b.queue, invite).await.unwrap();
        let priority = |n| Proof::Operator(VisitorPriority::parse(n).unwrap());
        let keyed = |key: &str| NewPosition { idempotency_key: Some(key.into()), ..NewPosition::default() };
        let mut wishes = vec![NewPosition::default(); 6];
        wishes.extend([keyed(&key(1)), keyed(&key(2)), keyed(&key(1))]);
        wishes.extend([1, 0, 3, 2, 1].map(|n| NewPosition { proof: priority(n), ..NewPosition::default() }));
        // Holders: one asks for its own, one has a better proof, and twice.
        wishes.push(NewPosition { held: Some(first), ..NewPosition::default() });
        let better = NewPosition { held: Some(second), proof: priority(3), ..NewPosition::default() };
        wishes.extend([better.clone(), better]);
        wishes.extend(vec![NewPosition { proof: Proof::Invite(invite), ..NewPosition::default() }; 3]);
        wishes.extend(vec![NewPosition::default(); 40]);
        let before = scripts_run(&b).await;
        let_them_meet(&b);
        // In any order; the crowd comes when the others are in.
        let mut outcomes = Vec::new();
        for company in wishes.chunks(20) {
            let calls = company.iter().map(|request| b.room.enqueue(&b.queue, request.clone()));
            outcomes.extend(join_all(calls).await);
        }
        b.test.faults.come_back();
        let ran = scripts_run(&b).await - before;
        assert!(ran < wishes.len() as u64 / 2, "{ran} scripts for {} outcomes", wishes.len());

        let id = |n: usize| outcomes[n].as_ref().unwrap().position.id;
        let is_new = |n: usize| outcomes[n].as_ref().unwrap().new;
        assert_eq!(id(8), id(6), "the same key");
        assert_ne!(is_new(8), is_new(6), "one of them made the position");
        assert_ne!(id(6), id(7));
        assert_eq!((id(14), is_new(14)), (first, false));
        assert_eq!(id(15), id(16), "the same holder");
        assert_ne!(is_new(15), is_new(16), "a better proof is a better position, once");
        assert_eq!(b.status(&second).await.replaced_by, Some(id(15)));
        let used = outcomes[17..20].iter().filter(|j| matches!(j, Err(Error::InviteUsed))).count();
        assert_eq!(used, 1, "the invite is good for two");
        assert!(outcomes.iter().any(|j| matches!(j, Err(Error::Full { waiting: 40 }))));
        assert_eq!(b.room.queue(&b.queue).await.unwrap().waiting, 40);
        let made: Vec<_> = outcomes.iter().flatten().filter(|j| j.new).map(|j| &j.position).collect();
        assert_eq!(made.len(), 39, "two were there before, one of them was exchanged");

        // Each lane is first come first served, and the line, the lanes and the records agree.
        let line: Vec<String> =
            b.redis(&["ZRANGE", "queue:concert-tickets:positions", "0", "-1"]).await;
        assert_eq!(line.len(), 40);
        for position in &made {
            let seen = b.status(&position.id).await;
            assert!(seen.state == PositionState::Waiting || seen.replaced_by.is_some());
            let rank = line.iter().position(|id| *id == position.id.to_string());
            assert_eq!(seen.number, rank.map(|n| n as u64 + 1));
            let score: Option<f64> =
                b.redis(&["ZSCORE", "heartbeat:active", &position.id.to_string()]).await;
            assert_eq!(score.is_some(), seen.state == PositionState::Waiting);
        }
        for lane in 0..4 {
            let key = format!("queue:concert-tickets:waiting:{lane}");
            let ids: Vec<String> = b.redis(&["LRANGE", &key, "0", "-1"]).await;
            let ranks: Vec<_> =
                ids.iter().filter_map(|id| line.iter().position(|other| other == id)).collect();
            assert!(ranks.is_sorted(), "lane {lane}: {ranks:?}");
        }
        let stats = b.room.stats(&b.queue).await.unwrap();
        assert_eq!(stats.total.enqueued, 2 + made.len() as u64);
        assert_eq!(stats.hours.iter().map(|hour| hour.peak_queue_size).max(), Some(40));
    }

    async fn of_joins_that_come_together_as_many_are_let_in_as_may_be(t: TestStore) {
        let config = QueueConfig {
            admission: room::AdmissionRate { count: 1, per_seconds: 1, burst: 5 },
            max_active: 3,
            ..open_queue()
        };
        let b = Bench::new(t, config).await;
        let_them_meet(&b);
        let outcomes = join_all((0..12).map(|_| b.room.enqueue(&b.queue, NewPosition::default()))).await;
        let states: Vec<_> = outcomes.iter().map(|j| j.as_ref().unwrap().position.state).collect();
        assert_eq!(states.iter().filter(|state| **state == PositionState::Admitted).count(), 3, "{states:?}");
        let waiting: Vec<_> = outcomes.iter().flatten().filter_map(|j| j.position.number).collect();
        let mut sorted = waiting.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (1..=9).collect::<Vec<_>>());
        for outcome in outcomes.iter().flatten() {
            assert_eq!(b.status(&outcome.position.id).await.number, outcome.position.number);
        }
    }

    async fn one_address_that_joins_many_times_at_once_gets_one_place(t: TestStore) {
        let config = QueueConfig { duplicates: room::Duplicates::Ip, ..open_queue() };
        let b = Bench::still_with(t, config).await;
        let_them_meet(&b);
        let new = |n: u8| NewPosition {
            address: Some(std::net::Ipv4Addr::new(192, 0, 2, n % 3).into()),
            ..NewPosition::default()
        };
        let outcomes = join_all((0..30).map(|n| b.room.enqueue(&b.queue, new(n)))).await;
        let ids: BTreeSet<_> = outcomes.iter().map(|j| j.as_ref().unwrap().position.id).collect();
        assert_eq!(ids.len(), 3);
        assert_eq!(outcomes.iter().flatten().filter(|j| j.new).count(), 3);
        assert_eq!(b.room.queue(&b.queue).await.unwrap().waiting, 3);
    }

    /// The settings of a queue are remembered for a second, but nothing is decided by it.
    async fn an_address_counts_from_the_moment_it_is_said_to(t: TestStore) {
        let b = Bench::still(t).await;
        let other = Room::open(b.test.another().await, Options::default()).await.unwrap();
        let address = Some("192.0.2.7".parse().unwrap());
        let new = NewPosition { address, ..NewPosition::default() };
        other.enqueue(&b.queue, new.clone()).await.unwrap();
        let by_address = |config: &mut QueueConfig| config.duplicates = room::Duplicates::Ip;
        b.room.change_queue(&b.queue, None, by_address).await.unwrap();
        let one = other.enqueue(&b.queue, new.clone()).await.unwrap();
        let two = b.room.enqueue(&b.queue, new).await.unwrap();
        assert_eq!((one.position.id, two.new), (two.position.id, false));
    }

    /// Whoever gives up enqueueing half way may or may not have a position, and everybody else has one.
    async fn joins_that_are_given_up_strand_nobody(t: TestStore) {
        let b = Bench::still(t).await;
        let mut made = 0;
        for seed in 0..20 {
            b.test.faults.delay(std::time::Duration::from_millis(seed % 2));
            let outcomes =
                give_some_up(seed, 60, |_| Box::pin(b.room.enqueue(&b.queue, NewPosition::default())));
            for enqueued in outcomes.await {
                assert!(enqueued.new && enqueued.position.state == PositionState::Waiting);
                made += 1;
            }
        }
        b.test.faults.come_back();
        let waiting = b.room.queue(&b.queue).await.unwrap().waiting;
        assert!(waiting >= made, "{waiting} wait, {made} were told so");
        let list: i64 = b.redis(&["LLEN", "queue:concert-tickets:waiting:0"]).await;
        assert_eq!(list as u64, waiting);
    }
}
