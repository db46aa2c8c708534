//! One test, every store.
//!
//! ```no_run
//! tidegate_testkit::each_store! {
//!     async fn a_value_is_kept(t: TestStore) {
//!         use store::redis::AsyncCommands;
//!         let mut store = t.store.clone();
//!         store.set::<_, _, ()>("a", "1").await.unwrap();
//!         assert_eq!(store.get::<_, String>("a").await.unwrap(), "1");
//!     }
//! }
//! ```
//! makes these tests, each with an empty keyspace of its own and a manual clock:
//!
//! - `a_value_is_kept::on_embedded`: the built-in store;
//! - `a_value_is_kept::in_cluster_layout`: the built-in store with keys spelled as on a cluster,
//!   where it refuses scripts whose keys do not share a slot, as a cluster would; it fails on a
//!   refused script even if the test did not notice;
//! - `a_value_is_kept::on_redis` and `a_value_is_kept::on_valkey`: a real server;
//! - `a_value_is_kept::by_dragonfly_rules`: a real server whose scripts run in Lua 5.4 with
//!   undeclared keys refused, as on Dragonfly.
//!
//! A test about how the standalone layout spells its keys is written in
//! [`standalone_keys!`](crate::standalone_keys) and leaves out the second.
//!
//! The clock starts at [`START`] and moves only by hand; a real server's own clock does not move
//! with it. So scripts compare stored deadlines with the `now` they are given, and no absolute
//! expiry (`PXAT`, `EXPIREAT`) is ever derived from it: on a real server it would lie in the past.

use std::{
    env, fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use store::{Faults, Layout, ManualClock, Millis, Options, Store, Timeouts};

use crate::{Cluster, DragonflyRules, RedisServer};

/// Where the manual clock of a test starts: 2026-01-01T00:00:00Z.
pub const START: Millis = Millis(1_767_225_600_000);

/// A store for one test: empty, with a clock moved by hand and strict scripts.
#[derive(Debug)]
pub struct TestStore {
    /// The store.
    pub store: Store,
    /// The hands of its clock.
    pub clock: ManualClock,
    /// Faults to switch on: an outage, lost replies. The same on every store.
    pub faults: Faults,
    url: String,
    options: Options,
    behind: TestBackend,
}

impl AsRef<Store> for TestStore {
    fn as_ref(&self) -> &Store {
        &self.store
    }
}

/// What keeps a store's data.
#[derive(Debug)]
enum TestBackend {
    Nothing,
    Server(RedisServer),
    Cluster(Cluster),
    Dragonfly(DragonflyRules),
}

impl TestStore {
    /// The built-in store in memory.
    pub async fn embedded() -> Self {
        Self::open("embedded:".to_owned(), None, TestBackend::Nothing).await
    }

    /// The built-in store in memory, with keys spelled as on a cluster. It refuses scripts whose
    /// keys do not share a slot.
    pub async fn in_cluster_layout() -> Self {
        Self::open("embedded:".to_owned(), Some(Layout::Cluster), TestBackend::Nothing).await
    }

    /// A real server of one's own.
    pub async fn redis() -> Self {
        let server = RedisServer::start();
        Self::open(server.url(), None, TestBackend::Server(server)).await
    }

    /// A real Valkey server of one's own.
    pub async fn valkey() -> Self {
        let server = RedisServer::start_valkey();
        Self::open(server.url(), None, TestBackend::Server(server)).await
    }

    /// A real server of one's own whose scripts run by Dragonfly's rules.
    pub async fn dragonfly_rules() -> Self {
        let rules = DragonflyRules::start();
        Self::open(rules.url(), None, TestBackend::Dragonfly(rules)).await
    }

    /// A real cluster of one's own. Takes a few seconds to start: for one test that tells a
    /// service's whole story there, in a file that says so.
    pub async fn cluster() -> Self {
        let cluster = Cluster::start();
        Self::open(cluster.url(), None, TestBackend::Cluster(cluster)).await
    }

    async fn open(url: String, layout: Option<Layout>, behind: TestBackend) -> Self {
        let (clock, hands) = store::Clock::manual(START);
        let faults = Faults::default();
        let options = Options {
            clock: Some(clock),
            layout,
            strict_scripts: true,
            faults: Some(faults.clone()),
            // A machine that builds something at the same time may be slow; no test waits for
            // these to pass.
            timeouts: Timeouts {
                connect: Duration::from_secs(10),
                response: Duration::from_secs(30),
                patience: Duration::from_secs(10),
                ..Timeouts::default()
            },
            ..Options::default()
        };
        match Store::open_with(&url, options.clone()).await {
            Ok(store) => Self { store, clock: hands, faults, url, options, behind },
            Err(error) => panic!("cannot open {url}: {}", chain(&error)),
        }
    }

    /// Where the store is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The same data through a handle of its own, as a second process would have it: its own
    /// connection where there is a server. The clock and the faults are shared.
    pub async fn another(&self) -> Store {
        if matches!(self.behind, TestBackend::Nothing) {
            return self.store.clone();
        }
        match Store::open_with(&self.url, self.options.clone()).await {
            Ok(store) => store,
            Err(error) => panic!("cannot open {}: {}", self.url, chain(&error)),
        }
    }

    /// The server, when there is one.
    pub fn server(&mut self) -> Option<&mut RedisServer> {
        match &mut self.behind {
            TestBackend::Server(server) => Some(server),
            TestBackend::Dragonfly(rules) => Some(rules.server()),
            TestBackend::Nothing | TestBackend::Cluster(_) => None,
        }
    }

    /// The cluster, when there is one.
    pub fn nodes(&mut self) -> Option<&mut Cluster> {
        match &mut self.behind {
            TestBackend::Cluster(cluster) => Some(cluster),
            TestBackend::Nothing | TestBackend::Server(_) | TestBackend::Dragonfly(_) => None,
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text.push_str(": ");
        text.push_str(&error.to_string());
        next = error.source();
    }
    text
}

/// Stores by the names that the variable `STORES` knows.
const STORES: [&str; 4] = ["embedded", "redis", "valkey", "dragonfly"];

/// Is this side left out on purpose?
fn left_out(side: &str) -> bool {
    match env::var("STORES").as_deref() {
        Err(_) | Ok("") => false,
        Ok(stores) => {
            let named: Vec<_> = stores.split(',').map(str::trim).collect();
            assert!(
                named.iter().all(|name| STORES.contains(name)),
                "STORES={stores}: name some of {} separated by commas",
                STORES.join(", ")
            );
            !named.contains(&side)
        }
    }
}

/// Runs a test body on the built-in store.
#[doc(hidden)]
pub fn on_embedded<F, T>(body: impl FnOnce(TestStore) -> F)
where
    F: Future<Output = T>,
    T: Outcome,
{
    if !left_out("embedded") {
        run(async { body(TestStore::embedded().await).await });
    }
}

/// Runs a test body on the built-in store with the keys of a cluster.
#[doc(hidden)]
pub fn in_cluster_layout<F, T>(body: impl FnOnce(TestStore) -> F)
where
    F: Future<Output = T>,
    T: Outcome,
{
    if left_out("embedded") {
        return;
    }
    let runtime = runtime();
    let test = runtime.block_on(TestStore::in_cluster_layout());
    let store = test.store.clone();
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(body(test)).check()));
    let refused = store.embedded().map_or(0, |embedded| embedded.slots_crossed());
    assert_eq!(refused, 0, "scripts were refused because their keys do not share a slot");
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

/// Runs a test body on a real server.
#[doc(hidden)]
pub fn on_redis<F, T>(body: impl FnOnce(TestStore) -> F)
where
    F: Future<Output = T>,
    T: Outcome,
{
    if !left_out("redis") {
        run(async { body(TestStore::redis().await).await });
    }
}

/// Runs a test body on a real Valkey server.
#[doc(hidden)]
pub fn on_valkey<F, T>(body: impl FnOnce(TestStore) -> F)
where
    F: Future<Output = T>,
    T: Outcome,
{
    if !left_out("valkey") {
        run(async { body(TestStore::valkey().await).await });
    }
}

/// Runs a test body on a real server with scripts run by Dragonfly's rules.
#[doc(hidden)]
pub fn by_dragonfly_rules<F, T>(body: impl FnOnce(TestStore) -> F)
where
    F: Future<Output = T>,
    T: Outcome,
{
    if !left_out("dragonfly") {
        run(async { body(TestStore::dragonfly_rules().await).await });
    }
}

fn run<T: Outcome>(test: impl Future<Output = T>) {
    runtime().block_on(test).check();
}

fn runtime() -> tokio::runtime::Runtime {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    match runtime {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime: {error}"),
    }
}

/// What a test may end with: nothing, or a result.
pub trait Outcome {
    /// Panics if the test failed.
    fn check(self);
}

impl Outcome for () {
    fn check(self) {}
}

impl<E: fmt::Debug> Outcome for Result<(), E> {
    fn check(self) {
        if let Err(error) = self {
            panic!("the test failed: {error:?}");
        }
    }
}

/// Writes a test once and runs it on every store. See [`each_store`](mod@crate::each_store).
#[macro_export]
macro_rules! each_store {
    ($($(#[$meta:meta])* async fn $name:ident($($arg:tt)*) $(-> $out:ty)? $body:block)*) => {
        $(
            $(#[$meta])*
            mod $name {
                $crate::on_every_store!(async fn test($($arg)*) $(-> $out)? $body);

                #[test]
                fn in_cluster_layout() {
                    $crate::each_store::in_cluster_layout(test);
                }
            }
        )*
    };
}

/// Writes a test about the standalone layout's own spelling of keys once and runs it on every store.
/// See [`each_store`](mod@crate::each_store).
#[macro_export]
macro_rules! standalone_keys {
    ($($(#[$meta:meta])* async fn $name:ident($($arg:tt)*) $(-> $out:ty)? $body:block)*) => {
        $(
            $(#[$meta])*
            mod $name {
                $crate::on_every_store!(async fn test($($arg)*) $(-> $out)? $body);
            }
        )*
    };
}

/// What [`each_store!`] and [`standalone_keys!`] share.
#[doc(hidden)]
#[macro_export]
macro_rules! on_every_store {
    (async fn test($($arg:tt)*) $(-> $out:ty)? $body:block) => {
        #[allow(unused_imports)]
        use super::*;
        #[allow(unused_imports)]
        use $crate::TestStore;

        #[test]
        fn on_embedded() {
            $crate::each_store::on_embedded(test);
        }

        #[test]
        fn on_redis() {
            $crate::each_store::on_redis(test);
        }

        #[test]
        fn on_valkey() {
            $crate::each_store::on_valkey(test);
        }

        #[test]
        fn by_dragonfly_rules() {
            $crate::each_store::by_dragonfly_rules(test);
        }

        async fn test($($arg)*) $(-> $out)? $body
    };
}
