//! What the tests of the room share.

use std::time::Duration;

use room::{
    AdmissionRate, NewPosition, Options, Position, PositionId, PositionState, Proof, QueueConfig,
    QueueId, Room, RoomMaintenance,
};
use store::{Layout, ManualClock, Store};
use testkit::TestStore;

/// A room with one queue, a keeper and the hands of the clock.
pub(crate) struct Bench {
    pub(crate) room: Room,
    pub(crate) keeper: RoomMaintenance,
    pub(crate) queue: QueueId,
    pub(crate) clock: ManualClock,
    pub(crate) store: Store,
    /// Keeps the server alive.
    pub(crate) test: TestStore,
}

/// A queue nothing limits but what a test sets.
pub(crate) fn open_queue() -> QueueConfig {
    QueueConfig {
        name: "Concert".into(),
        target_url: "https://example.com/checkout".into(),
        max_active: 0,
        max_queue_size: 0,
        admission: AdmissionRate { count: 0, per_seconds: 1, burst: 1 },
        ..QueueConfig::default()
    }
}

impl Bench {
    /// A bench whose rate lets nobody in unless the test says so.
    pub(crate) async fn new(t: TestStore, config: QueueConfig) -> Self {
        let room = Room::open(t.store.clone(), Options::default()).await.unwrap();
        let queue = QueueId::parse("concert-tickets").unwrap();
        room.create_queue(&queue, config).await.unwrap();
        Self {
            keeper: RoomMaintenance::new(room.clone()),
            room,
            queue,
            clock: t.clock.clone(),
            store: t.store.clone(),
            test: t,
        }
    }

    /// A queue in which nobody is admitted by itself: no rate, and its one token is gone.
    pub(crate) async fn still(t: TestStore) -> Self {
        Self::still_with(t, open_queue()).await
    }

    pub(crate) async fn still_with(t: TestStore, config: QueueConfig) -> Self {
        let bench = Self::new(t, config).await;
        bench.no_tokens().await;
        bench
    }

    pub(crate) async fn no_tokens(&self) {
        let key = format!("admission:{}:tokens", self.queue);
        let () = self.redis(&["SET", &key, "0"]).await;
    }

    pub(crate) async fn enqueue(&self) -> Position {
        self.join_as(Proof::None).await
    }

    pub(crate) async fn join_as(&self, proof: Proof) -> Position {
        let new = NewPosition { proof, ..NewPosition::default() };
        let enqueued = self.room.enqueue(&self.queue, new).await.unwrap();
        assert!(enqueued.new);
        enqueued.position
    }

    pub(crate) async fn join_level(&self, priority: u8) -> PositionId {
        self.join_as(Proof::Operator(room::VisitorPriority::parse(priority).unwrap())).await.id
    }

    pub(crate) async fn status(&self, id: &PositionId) -> Position {
        self.room.status(&self.queue, id).await.unwrap()
    }

    pub(crate) async fn state(&self, id: &PositionId) -> PositionState {
        self.status(id).await.state
    }

    pub(crate) async fn beat(&self, id: &PositionId) -> Position {
        self.room.heartbeat(&self.queue, id, None, None).await.unwrap()
    }

    pub(crate) async fn position(&self, id: &PositionId) -> Option<u64> {
        self.status(id).await.number
    }

    pub(crate) async fn tick(&self) -> room::RoomTickReport {
        self.keeper.tick().await.unwrap()
    }

    /// Lets time pass as it does while the service runs: a round at least every five seconds.
    pub(crate) async fn pass(&self, duration: Duration) {
        let mut left = duration;
        while !left.is_zero() {
            let step = left.min(Duration::from_secs(5));
            self.clock.advance(step);
            self.tick().await;
            left -= step;
        }
    }

    /// Runs a command as redis-cli would. Its key, the first argument, is written as documented
    /// for a single server and spelled as the store at hand spells it.
    pub(crate) async fn redis<T: store::redis::FromRedisValue>(&self, args: &[&str]) -> T {
        let [name, key, rest @ ..] = args else { panic!("{args:?} names no key") };
        let mut cmd = store::redis::cmd(name);
        cmd.arg(spelled(self.store.layout(), &self.queue, key)).arg(rest);
        cmd.query_async(&mut self.store.clone()).await.unwrap()
    }
}

/// A key documented for a single server as another layout spells it: on a cluster the queue's id
/// stands in braces, also in the keys of its positions and sessions, which do not name it otherwise.
/// What is spelled so already, or belongs to no queue, stays as it is.
pub(crate) fn spelled(layout: Layout, queue: &QueueId, key: &str) -> String {
    match (layout, key.split_once(':')) {
        (Layout::Standalone, _) | (_, None) => key.to_owned(),
        (_, Some((_, rest))) if rest.starts_with('{') => key.to_owned(),
        (_, Some((kind @ ("heartbeat" | "position" | "session" | "revocation"), rest))) => {
            format!("{kind}:{{{queue}}}:{rest}")
        }
        (_, Some((kind @ ("queue" | "admission" | "ipmap" | "stats" | "ratelimit"), rest))) => {
            let (id, rest) = rest.split_once(':').unwrap_or((rest, ""));
            format!("{kind}:{{{id}}}:{rest}")
        }
        (_, Some(_)) => key.to_owned(),
    }
}

/// A client's key as random ones are: 32 hexadecimal digits, the same for the same number.
pub(crate) fn key(n: u64) -> String {
    format!("{:032x}", (u128::from(n) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

pub(crate) fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}
