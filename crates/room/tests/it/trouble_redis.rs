//! On real servers only, because it is their processes, connections and clusters that fail here.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use room::{
    AdmissionRate, EventId, NewPosition, Options, PositionState, QueueConfig, QueueId, Room,
    RoomMaintenance, SessionStart, Visitor,
};
use store::{Clock, Millis, Store, Timeouts};
use testkit::{Cluster, Proxy, RedisServer, until};
use tokio_util::sync::CancellationToken;

use crate::support::{key, open_queue, seconds};

fn queue() -> QueueId {
    QueueId::parse("concert-tickets").unwrap()
}

fn patient(clock: Option<Clock>) -> store::Options {
    store::Options {
        clock,
        timeouts: Timeouts {
            connect: Duration::from_secs(10),
            response: Duration::from_secs(30),
            patience: Duration::from_secs(10),
            ..Timeouts::default()
        },
        ..store::Options::default()
    }
}

async fn room_at(url: &str, clock: Option<Clock>) -> Room {
    let store = Store::open_with(url, patient(clock)).await.unwrap();
    Room::open(store, Options { tick: Duration::from_millis(5), ..Options::default() })
        .await
        .unwrap()
}

/// Three instances with running keepers, real time, visitors who come, use the site and go: neither
/// limit is ever exceeded, and everybody gets through in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_running_instances_never_over_admit() {
    const VISITORS: usize = 300;
    const RATE: AdmissionRate = AdmissionRate { count: 150, per_seconds: 1, burst: 20 };
    const MOST: u64 = 25;
    let server = RedisServer::start();
    let mut rooms = Vec::new();
    for _ in 0..3 {
        rooms.push(room_at(&server.url(), None).await);
    }
    let config = QueueConfig { max_active: MOST as u32, admission: RATE, ..open_queue() };
    rooms[0].create_queue(&queue(), config).await.unwrap();
    let cancel = CancellationToken::new();
    let keepers: Vec<_> = rooms
        .iter()
        .map(|room| {
            let (keeper, cancel) = (RoomMaintenance::new(room.clone()), cancel.clone());
            tokio::spawn(async move { keeper.run(cancel).await })
        })
        .collect();

    let done = Arc::new(AtomicU64::new(0));
    let visitors = join_all((0..VISITORS).map(|n| {
        let (room, done) = (rooms[n % 3].clone(), Arc::clone(&done));
        async move {
            let position = room.enqueue(&queue(), NewPosition::default()).await.unwrap().position;
            until("admitted", async || {
                let position = room.status(&queue(), &position.id).await.unwrap();
                (position.state == PositionState::Admitted).then_some(())
            })
            .await;
            let claimed =
                room.start_session(&queue(), &position.id, &Visitor::default()).await.unwrap();
            let SessionStart::Active { session, .. } = claimed else { panic!("{claimed:?}") };
            room.complete(&queue(), &session.id).await.unwrap();
            done.fetch_add(1, Ordering::SeqCst);
        }
    }));

    // Both counts in one step, again and again.
    let mut store = rooms[0].store().clone();
    let watched = until("everybody is through", async || {
        let (admitted, active): (u64, u64) = store::redis::pipe()
            .atomic()
            .cmd("ZCARD")
            .arg("queue:concert-tickets:admitted")
            .cmd("SCARD")
            .arg("queue:concert-tickets:sessions:active")
            .query_async(&mut store)
            .await
            .unwrap();
        assert!(admitted + active <= MOST, "{admitted} + {active}");
        (done.load(Ordering::SeqCst) == VISITORS as u64).then_some(())
    });
    tokio::join!(visitors, watched);
    cancel.cancel();
    for keeper in keepers {
        keeper.await.unwrap();
    }
    let events = rooms[0].events(&queue(), EventId::START, 1_000).await.unwrap();
    let mut rest = events.events;
    let mut after = rest.last().unwrap().id;
    loop {
        let more = rooms[0].events(&queue(), after, 1_000).await.unwrap().events;
        let Some(last) = more.last() else { break };
        after = last.id;
        rest.extend(more);
    }
    let of = |kind: &str| -> Vec<(i64, String)> {
        rest.iter()
            .filter(|event| event.kind == kind)
            .map(|event| (event.at.0, event.data["position_id"].as_str().unwrap().to_owned()))
            .collect()
    };
    let (enqueued, admitted) = (of("position.enqueued"), of("position.admitted"));
    let order =
        |events: &[(i64, String)]| events.iter().map(|(_, id)| id.clone()).collect::<Vec<_>>();
    assert_eq!(order(&admitted), order(&enqueued), "first come, first served; each admitted once");
    let mut times: Vec<i64> = admitted.iter().map(|(at, _)| *at).collect();
    times.sort_unstable();
    for (i, from) in times.iter().enumerate() {
        for (j, to) in times.iter().enumerate().skip(i) {
            let count = (j - i + 1) as f64;
            // Clocks of instances differ by a few milliseconds at most.
            let allowed = 20.0 + 150.0 * ((to - from) as f64 + 10.0) / 1000.0;
            assert!(count <= allowed, "{count} in {} ms", to - from);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_make_no_second_place_and_no_second_admission() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port(), 7).await.unwrap();
    let (clock, hands) = Clock::manual(Millis(1_767_225_600_000));
    let direct = room_at(&server.url(), Some(clock.clone())).await;
    let config = QueueConfig {
        max_active: 10,
        admission: AdmissionRate::new(100, 1),
        admission_window: seconds(3600),
        ..open_queue()
    };
    direct.create_queue(&queue(), config).await.unwrap();
    let shaky = room_at(&proxy.url(), Some(clock.clone())).await;
    proxy.lose_replies(4);
    let enqueue_batcher = (0..30).map(|n| {
        let shaky = shaky.clone();
        async move {
            // What a client does: the same request again until it is answered.
            until("an answer", async || {
                let new = NewPosition { idempotency_key: Some(key(n)), ..NewPosition::default() };
                shaky.enqueue(&queue(), new).await.ok()
            })
            .await
            .position
            .id
        }
    });
    let mut ids = join_all(enqueue_batcher).await;
    let keeper = RoomMaintenance::new(shaky.clone());
    for _ in 0..20 {
        hands.advance(Duration::from_millis(200));
        // A round that fails half way is simply followed by the next one.
        drop(keeper.tick().await);
    }
    assert!(proxy.lost() > 0, "the test loses replies");
    proxy.heal();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 30, "one position each");
    let queue_now = direct.queue(&queue()).await.unwrap();
    assert_eq!((queue_now.waiting, queue_now.admitted), (20, 10));
    assert_eq!(direct.stats(&queue()).await.unwrap().total.enqueued, 30);
    assert_eq!(direct.stats(&queue()).await.unwrap().total.admitted, 10);
    for id in &ids {
        if direct.status(&queue(), id).await.unwrap().state == PositionState::Admitted {
            let claim = async || shaky.start_session(&queue(), id, &Visitor::default()).await.ok();
            proxy.lose_replies(3);
            let SessionStart::Active { session, .. } = until("a session", claim).await else {
                panic!()
            };
            proxy.heal();
            let found = direct.start_session(&queue(), id, &Visitor::default()).await.unwrap();
            assert!(
                matches!(found, SessionStart::Active { session: ref again, started: false } if again.id == session.id)
            );
        }
    }
    assert_eq!(direct.queue(&queue()).await.unwrap().active, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_who_polls_as_told_is_lost_across_a_killed_server() {
    let mut server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (clock, hands) = Clock::manual(Millis(1_767_225_600_000));
    let mut options = patient(Some(clock.clone()));
    options.timeouts.patience = Duration::from_millis(100);
    let store = Store::open_with(&server.url(), options).await.unwrap();
    let room = Room::open(store, Options::default()).await.unwrap();
    room.create_queue(&queue(), QueueConfig { max_active: 5, ..open_queue() }).await.unwrap();
    let enqueue_batcher = (0..50).map(|_| {
        let room = room.clone();
        async move { room.enqueue(&queue(), NewPosition::default()).await.unwrap().position.id }
    });
    let ids = join_all(enqueue_batcher).await;
    let keeper = RoomMaintenance::new(room.clone());
    let admitted = room.admit_by_hand(&queue(), 2).await.unwrap().ids;
    let mut before = Vec::new();
    for id in &ids {
        before.push(room.status(&queue(), id).await.unwrap());
    }

    server.kill();
    hands.advance(seconds(900));
    assert!(room.enqueue(&queue(), NewPosition::default()).await.unwrap_err().is_unavailable());
    assert!(keeper.tick().await.unwrap_err().is_unavailable());
    server.restart();
    until("the room is back", async || keeper.tick().await.ok()).await;
    for (id, before) in ids.iter().zip(&before) {
        let now = room.status(&queue(), id).await.unwrap();
        assert_eq!((now.state, now.number), (before.state, before.number));
    }
    for _ in 0..30 {
        hands.advance(seconds(5));
        keeper.tick().await.unwrap();
    }
    for id in ids.iter().filter(|id| !admitted.contains(id)) {
        assert!(room.heartbeat(&queue(), id, None, None).await.unwrap().number.is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_room_works_on_a_cluster() {
    let cluster = Cluster::start();
    let (clock, hands) = Clock::manual(Millis(1_767_225_600_000));
    let room = room_at(&cluster.url(), Some(clock)).await;
    let names = ["north", "south", "east"].map(|name| QueueId::parse(name).unwrap());
    let config = QueueConfig { admission: AdmissionRate::new(5, 1), max_active: 4, ..open_queue() };
    for name in &names {
        room.create_queue(name, config.clone()).await.unwrap();
    }
    let keeper = RoomMaintenance::new(room.clone());
    for name in &names {
        let mut ids = Vec::new();
        for _ in 0..8 {
            ids.push(room.enqueue(name, NewPosition::default()).await.unwrap().position.id);
        }
        hands.advance(seconds(1));
        keeper.tick().await.unwrap();
        let queue = room.queue(name).await.unwrap();
        assert_eq!((queue.admitted, queue.waiting), (4, 4));
        let SessionStart::Active { session, .. } =
            room.start_session(name, &ids[0], &Visitor::default()).await.unwrap()
        else {
            panic!()
        };
        assert_eq!(room.queue_of_session(&session.id).await.unwrap(), *name);
        let pass = room.issue_pass(&session).await.unwrap();
        assert!(room.check_pass(name, &pass).await.is_ok());
        room.complete(name, &session.id).await.unwrap();
        room.heartbeat(name, &ids[7], None, None).await.unwrap();
        assert_eq!(room.status(name, &ids[7]).await.unwrap().number, Some(4));
    }
    // Long after: the silent lose their positions in every queue, each by its own set.
    for _ in 0..130 {
        hands.advance(seconds(5));
        keeper.tick().await.unwrap();
    }
    for name in &names {
        let stats = room.stats(name).await.unwrap();
        assert_eq!((stats.waiting, stats.admitted), (0, 0), "{name}");
        room.delete_queue(name).await.unwrap();
    }
    assert!(room.queues().await.unwrap().is_empty());
}
