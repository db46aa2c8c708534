//! Calls that are under way at the same time are made as one, and nobody notices but the store.

use std::{collections::BTreeMap, future::Future, pin::Pin, task::Poll};

use futures_util::future::join_all;
use room::{Error, Level, Place, PositionId, State};
use testkit::each_store;

use crate::support::{Bench, open_queue, seconds};

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

/// One place of each kind, and what a sign of life must say of it.
async fn one_of_each(b: &Bench) -> Vec<(PositionId, Option<State>)> {
    let mut places = Vec::new();
    let admitted = b.join_level(3).await;
    assert_eq!(b.room.admit_by_hand(&b.queue, 1).await.unwrap().ids, [admitted]);
    places.push((admitted, Some(State::Admitted)));
    for level in [0, 2, 1, 0] {
        places.push((b.join_level(level).await, Some(State::Waiting)));
    }
    let left = b.join().await.id;
    b.room.leave(&b.queue, &left).await.unwrap();
    places.push((left, Some(State::Cancelled)));
    let lost = b.join().await.id;
    let () = b.redis(&["DEL", &format!("position:{lost}")]).await;
    places.push((lost, Some(State::Waiting)));
    let unknown = PositionId::parse("019b76da-a800-71f4-8000-000000000000").unwrap();
    places.push((unknown, None));
    // The same ones again: two tabs of a visitor.
    places.extend(places.clone());
    places
}

each_store! {
    async fn of_places_that_call_together_each_is_told_its_own(t: TestStore) {
        let b = Bench::still(t).await;
        let places = one_of_each(&b).await;
        b.clock.advance(seconds(7));
        let before = scripts_run(&b).await;
        let beats = join_all(
            places.iter().map(|(id, _)| b.room.heartbeat(&b.queue, id, None, None)),
        )
        .await;
        let asked =
            join_all(places.iter().map(|(id, _)| b.room.status(&b.queue, id))).await;
        let ran = scripts_run(&b).await - before;
        assert!(ran < places.len() as u64, "{ran} scripts for {} calls", 2 * places.len());
        for (((id, state), beat), asked) in places.iter().zip(beats).zip(asked) {
            match state {
                Some(state) => {
                    let beat = beat.unwrap();
                    assert_eq!((beat.id, beat.state), (*id, *state));
                    // Asked alone it is the same.
                    assert_eq!(beat, b.status(id).await);
                    assert_eq!(beat, asked.unwrap());
                    if *state == State::Waiting {
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
        for policy in [room::Policy::Strict, room::Policy::Skip] {
            let queue = room::QueueId::parse(policy.as_str()).unwrap();
            let config = room::QueueConfig { policy, reserved_share: 3, ..open_queue() };
            b.room.create_queue(&queue, config).await.unwrap();
            let mut ids = Vec::new();
            for level in [0, 3, 0, 1, 2, 3, 0, 0, 1] {
                let level = Level::parse(level).unwrap();
                let new = room::NewPlace {
                    proof: room::Proof::Operator(level),
                    ..room::NewPlace::default()
                };
                ids.push((b.room.join(&queue, new).await.unwrap().place.id, level));
            }
            let beat = |known: bool| {
                let (room, queue) = (&b.room, &queue);
                join_all(ids.iter().map(move |(id, level)| {
                    room.heartbeat(queue, id, known.then_some(*level), None)
                }))
            };
            let read: Vec<Place> = beat(false).await.into_iter().map(Result::unwrap).collect();
            let told: Vec<Place> = beat(true).await.into_iter().map(Result::unwrap).collect();
            assert_eq!(read, told);
        }
    }

    async fn a_clock_that_was_set_back_shows_when_the_place_was_really_taken(t: TestStore) {
        let b = Bench::still(t).await;
        b.clock.advance(seconds(3_600));
        b.join().await;
        b.clock.set(store::Millis(b.store.now().0 - 3_600_000));
        // Its ticket goes on from the last one, an hour ahead.
        let place = b.join().await;
        assert!(place.id.taken_us() / 1000 > u64::try_from(b.store.now().0).unwrap());
        b.clock.advance(seconds(5));
        let beat = b.room.heartbeat(&b.queue, &place.id, Some(Level::NORMAL), None).await.unwrap();
        assert_eq!(beat.joined, store::Millis(1_767_225_600_000));
        assert_eq!(beat, b.status(&place.id).await);
    }

    async fn more_than_go_together_are_all_answered(t: TestStore) {
        let b = Bench::still(t).await;
        let mut ids = Vec::new();
        for _ in 0..30 {
            ids.push(b.join().await.id);
        }
        let many = (0..900).map(|n| ids[n % ids.len()]);
        let calls = many.clone().map(|id| {
            let (room, queue) = (b.room.clone(), b.queue.clone());
            tokio::spawn(async move { room.heartbeat(&queue, &id, None, None).await })
        });
        for (call, id) in calls.collect::<Vec<_>>().into_iter().zip(many) {
            let place = call.await.unwrap().unwrap();
            assert_eq!(place.id, id);
            assert_eq!(place.position, ids.iter().position(|one| *one == id).map(|n| n as u64 + 1));
        }
    }

    async fn a_store_that_is_away_is_told_to_everybody_and_back_when_it_is(t: TestStore) {
        let b = Bench::still(t).await;
        let mut ids = Vec::new();
        for _ in 0..20 {
            ids.push(b.join().await.id);
        }
        let beats = || join_all(ids.iter().map(|id| b.room.heartbeat(&b.queue, id, None, None)));
        b.test.faults.go_away();
        for beat in beats().await {
            assert!(beat.unwrap_err().is_unavailable());
        }
        b.test.faults.come_back();
        b.test.faults.lose_next_replies(1);
        assert!(beats().await.iter().any(Result::is_err));
        for beat in beats().await {
            assert_eq!(beat.unwrap().state, State::Waiting);
        }
    }

    async fn one_record_that_is_spoilt_costs_nobody_else_anything(t: TestStore) {
        let b = Bench::still(t).await;
        let mut ids = Vec::new();
        for _ in 0..9 {
            ids.push(b.join().await.id);
        }
        let spoilt = ids[4];
        let () = b.redis(&["SET", &format!("position:{spoilt}"), "not a hash"]).await;
        b.clock.advance(seconds(3));
        let beats = join_all(ids.iter().map(|id| b.room.heartbeat(&b.queue, id, None, None))).await;
        let asked = join_all(ids.iter().map(|id| b.room.status(&b.queue, id))).await;
        for (id, (beat, asked)) in ids.iter().zip(beats.into_iter().zip(asked)) {
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
        type Beat<'a> = Pin<Box<dyn Future<Output = Result<Place, Error>> + Send + 'a>>;
        let b = Bench::still(t).await;
        let mut ids = Vec::new();
        for _ in 0..12 {
            ids.push(b.join().await.id);
        }
        for seed in 0..60 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut calls: Vec<Beat<'_>> = Vec::new();
            for _ in 0..200 {
                match random.u8(0..4) {
                    0 | 1 => {
                        let id = random.choice(&ids).unwrap();
                        calls.push(Box::pin(b.room.heartbeat(&b.queue, id, None, None)));
                    }
                    2 if !calls.is_empty() => {
                        let at = random.usize(0..calls.len());
                        if let Poll::Ready(done) = futures_util::poll!(&mut calls[at]) {
                            assert_eq!(done.unwrap().state, State::Waiting);
                            drop(calls.swap_remove(at));
                        }
                    }
                    3 if !calls.is_empty() => {
                        drop(calls.swap_remove(random.usize(0..calls.len())));
                    }
                    _ => tokio::task::yield_now().await,
                }
            }
            let rest = tokio::time::timeout(seconds(60), join_all(calls)).await;
            let rest = rest.unwrap_or_else(|_| panic!("somebody waits for ever (seed {seed})"));
            for call in rest {
                assert_eq!(call.unwrap().state, State::Waiting);
            }
        }
    }
}
