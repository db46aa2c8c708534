//! The handle: a store as redis-rs's `ConnectionLike`, whatever is behind it.
//!
//! This is the seam. A [`Backend`] takes a command or a pipeline and gives redis-rs values, in the
//! shapes of RESP2, errors included; nothing above it knows which backend it is, and nothing below
//! it knows services. Invariant: every call ends by its own deadline.

use std::{fmt, sync::Arc};

use redis::{Cmd, Pipeline, RedisFuture, Value, aio::ConnectionLike};

use crate::{Clock, Error, Layout, Millis, Options, link::Link, server::single::Single};

/// The one door to data. A cheap clone; all clones share connections, clock and layout.
///
/// It implements redis-rs's `ConnectionLike`, so `AsyncCommands`, `pipe().atomic()` and typed
/// replies work on it. Each call ends by a deadline; see [`Timeouts`](crate::Timeouts).
#[derive(Clone)]
pub struct Store {
    backend: Backend,
    clock: Clock,
    layout: Layout,
}

#[derive(Clone)]
enum Backend {
    Single(Link),
}

/// What a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The engine in this process.
    Embedded,
    /// One server.
    Single,
    /// A server that Sentinels name.
    Sentinel,
    /// A cluster.
    Cluster,
}

/// How a store is, for health checks and people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Can calls be made now, as far as is known? See [`Store::ping`] to find out for sure.
    pub reachable: bool,
    /// What the store is.
    pub kind: Kind,
    /// Where it is, without secrets.
    pub address: String,
    /// Why it cannot be reached.
    pub reason: Option<String>,
}

impl Store {
    /// Opens a store by URL with default options.
    ///
    /// | URL | Store |
    /// |---|---|
    /// | `redis://[user:password@]host[:port][/db]` | one server |
    ///
    /// Fails with [`Error::Unavailable`] when the server cannot be reached now.
    pub async fn open(url: &str) -> Result<Store, Error> {
        Self::open_with(url, Options::default()).await
    }

    /// Opens a store by URL; see [`Store::open`] for the URLs.
    pub async fn open_with(url: &str, options: Options) -> Result<Store, Error> {
        let scheme = url.split_once(':').map(|(scheme, _)| scheme).unwrap_or_default();
        let clock = |default: fn() -> Clock| options.clock.clone().unwrap_or_else(default);
        let layout = |default| options.layout.unwrap_or(default);
        match scheme {
            "redis" | "valkey" => {
                let clock = clock(Clock::server);
                let connector = Arc::new(Single::new(url, &options)?);
                let link = Link::open(connector, options.timeouts, clock.clone(), None).await?;
                Ok(Store {
                    backend: Backend::Single(link),
                    clock,
                    layout: layout(Layout::Standalone),
                })
            }
            "embedded" => Err(Error::invalid(
                "the built-in store is not part of this build yet: give a redis:// URL",
            )),
            _ => Err(Error::invalid(format!(
                "{scheme:?} is not a kind of store: use embedded:, redis://, rediss://, redis+sentinel:// or redis+cluster://"
            ))),
        }
    }

    /// What time it is, by the store's clock.
    pub fn now(&self) -> Millis {
        self.clock.now()
    }

    /// The store's clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// How keys are spelled on this store.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// How the store is, as far as is known without asking it.
    pub fn health(&self) -> Health {
        let (kind, (address, reason)) = match &self.backend {
            Backend::Single(link) => (Kind::Single, link.status()),
        };
        Health { reachable: reason.is_none(), kind, address, reason }
    }

    /// Asks the store whether it answers.
    pub async fn ping(&self) -> Result<(), Error> {
        let mut store = self.clone();
        redis::cmd("PING").query_async::<()>(&mut store).await.map_err(Error::from)
    }
}

impl ConnectionLike for Store {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match &self.backend {
            Backend::Single(link) => Box::pin(link.command(cmd)),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match &self.backend {
            Backend::Single(link) => Box::pin(link.pipeline(pipeline, offset, count)),
        }
    }

    fn get_db(&self) -> i64 {
        // Only redis-rs's own synchronous helpers ask; a store has one database.
        0
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Health { kind, address, reachable, .. } = self.health();
        f.debug_struct("Store")
            .field("kind", &kind)
            .field("address", &address)
            .field("reachable", &reachable)
            .finish_non_exhaustive()
    }
}
