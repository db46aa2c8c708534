//! The handle: a store as redis-rs's `ConnectionLike`, whatever is behind it.
//!
//! This is the seam. A [`Backend`] takes a command or a pipeline and gives redis-rs values, in the
//! shapes of RESP2, errors included; nothing above it knows which backend it is, and nothing below
//! it knows services. Invariant: every call ends by its own deadline.

use std::{fmt, sync::Arc};

use redis::{Cmd, Pipeline, RedisFuture, Value, aio::ConnectionLike};

use crate::{
    BlockingConnection, Clock, Error, Faults, Layout, Millis, Options, Subscription, Timeouts,
    blocking,
    link::{Connector, Link},
    server::{self, cluster::Cluster, sentinel::Sentinel, single::Single},
    subscribe,
};

#[cfg(feature = "embedded")]
use crate::embedded::Embedded;
#[cfg(not(feature = "embedded"))]
use crate::no_embedded::NoEmbedded as Embedded;

/// The one door to data. A cheap clone; all clones share connections, clock and layout.
///
/// It implements redis-rs's `ConnectionLike`, so `AsyncCommands`, `pipe().atomic()` and typed
/// replies work on it. Each call ends by a deadline; see [`Timeouts`](crate::Timeouts).
#[derive(Clone)]
pub struct Store {
    backend: Backend,
    clock: Clock,
    layout: Layout,
    timeouts: Timeouts,
    faults: Option<Faults>,
}

#[derive(Clone)]
enum Backend {
    Embedded(Embedded),
    Single(ServerConnection),
    Sentinel(ServerConnection),
    Cluster(Cluster),
}

impl Backend {
    fn command<'a>(&'a self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Embedded(embedded) => Box::pin(embedded.command(cmd)),
            Self::Single(kept) | Self::Sentinel(kept) => Box::pin(kept.link.command(cmd)),
            Self::Cluster(cluster) => Box::pin(cluster.command(cmd)),
        }
    }

    fn pipeline<'a>(
        &'a self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Embedded(embedded) => Box::pin(embedded.pipeline(pipeline, offset, count)),
            Self::Single(kept) | Self::Sentinel(kept) => {
                Box::pin(kept.link.pipeline(pipeline, offset, count))
            }
            Self::Cluster(cluster) => Box::pin(cluster.pipeline(pipeline, offset, count)),
        }
    }
}

/// A connection to a server, and the connector that opens more.
#[derive(Clone)]
struct ServerConnection {
    link: Link,
    connector: Arc<dyn Connector>,
}

impl ServerConnection {
    async fn open<C: Connector>(
        connector: C,
        options: &Options,
        clock: &Clock,
    ) -> Result<Self, Error> {
        let connector = Arc::new(connector);
        let link = Link::open(Arc::clone(&connector), options.timeouts, clock.clone()).await?;
        Ok(Self { link, connector })
    }
}

/// The kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// The engine in this process.
    Embedded,
    /// One server.
    Single,
    /// A server that Sentinels name.
    Sentinel,
    /// A cluster.
    Cluster,
}

/// The health of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// True if calls can be made now, as far as is known. See [`Store::ping`] to find out for sure.
    pub reachable: bool,
    /// Kind of the store.
    pub kind: StoreKind,
    /// Address, without secrets.
    pub address: String,
    /// The reason why it cannot be reached.
    pub reason: Option<String>,
}

impl Store {
    /// Opens a store by URL with default options.
    ///
    /// | URL | Store |
    /// |---|---|
    /// | `embedded:` | the engine in this process, in memory only |
    /// | `embedded:PATH` | the same, kept in the folder `PATH` |
    /// | `redis://[user:password@]host[:port][/db]` | one server |
    /// | `redis+sentinel://[user:password@]h1[:port],h2[:port]/NAME[/db]` | the master that Sentinels name; `?sentinel_user=` and `sentinel_password=` log in at the Sentinels |
    /// | `redis+cluster://[user:password@]h1[:port],h2[:port]` | a cluster, by some of its nodes |
    /// | `rediss://`, `rediss+sentinel://`, `rediss+cluster://` | the same over TLS; `?ca=FILE` names the authority's certificate |
    ///
    /// Fails with [`Error::Unavailable`] when the server cannot be reached now.
    pub async fn open(url: &str) -> Result<Store, Error> {
        Self::open_with(url, Options::default()).await
    }

    /// Opens a store by URL; see [`Store::open`] for the URLs.
    pub async fn open_with(url: &str, mut options: Options) -> Result<Store, Error> {
        let (scheme, rest) = url.split_once(':').unwrap_or_default();
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        if scheme.starts_with("rediss") || scheme == "valkeys" {
            server::authority(rest, &mut options)?;
        }
        let clock = |default: fn() -> Clock| options.clock.clone().unwrap_or_else(default);
        let open = |backend, clock, layout| Store {
            backend,
            clock,
            layout: options.layout.unwrap_or(layout),
            timeouts: options.timeouts,
            faults: options.faults.clone(),
        };
        match scheme {
            "redis" | "rediss" | "valkey" | "valkeys" => {
                let clock = clock(Clock::server);
                let kept =
                    ServerConnection::open(Single::new(url, &options)?, &options, &clock).await?;
                Ok(open(Backend::Single(kept), clock, Layout::Standalone))
            }
            "redis+sentinel" | "rediss+sentinel" => {
                let clock = clock(Clock::server);
                let sentinel = Sentinel::new(rest, scheme.starts_with("rediss"), &options)?;
                let kept = ServerConnection::open(sentinel, &options, &clock).await?;
                Ok(open(Backend::Sentinel(kept), clock, Layout::Standalone))
            }
            "redis+cluster" | "rediss+cluster" => {
                let clock = clock(Clock::server);
                let tls = scheme.starts_with("rediss");
                let cluster = Cluster::open(rest, tls, &options, clock.clone()).await?;
                Ok(open(Backend::Cluster(cluster), clock, Layout::Cluster))
            }
            "embedded" => {
                let clock = clock(Clock::system);
                let (url, given, ticking) = (url.to_owned(), options.clone(), clock.clone());
                // Reading a folder back may take a while.
                let read = move || Embedded::open(&url, &given, ticking);
                let embedded = tokio::task::spawn_blocking(read)
                    .await
                    .map_err(|_| Error::invalid("opening the store was interrupted"))??;
                Ok(open(Backend::Embedded(embedded), clock, Layout::Standalone))
            }
            _ => Err(unknown_scheme(scheme)),
        }
    }

    /// Checks that a URL names a kind of store, without opening it.
    pub fn check_url(url: &str) -> Result<(), Error> {
        let (scheme, rest) = url.split_once(':').unwrap_or_default();
        match scheme {
            "embedded" => Ok(()),
            "redis" | "rediss" | "valkey" | "valkeys" | "redis+sentinel" | "rediss+sentinel"
            | "redis+cluster" | "rediss+cluster" => match rest.strip_prefix("//") {
                Some(host) if !host.is_empty() => Ok(()),
                _ => Err(Error::invalid(format!("{scheme}: needs a host: {scheme}://HOST"))),
            },
            _ => Err(unknown_scheme(scheme)),
        }
    }

    /// Returns a handle for what may be lost in a power cut, such as caches, samples and leases: with the built-in
    /// store, writes through it are on disk in about 15 s instead of one, unless `fsync` is `always`. Like all writes
    /// they survive the end of the process. On a server it makes no difference.
    #[must_use]
    pub fn relaxed(&self) -> Store {
        #[cfg(feature = "embedded")]
        if let Backend::Embedded(embedded) = &self.backend {
            return Store { backend: Backend::Embedded(embedded.relaxed()), ..self.clone() };
        }
        self.clone()
    }

    /// Returns the time by the store's clock.
    pub fn now(&self) -> Millis {
        self.clock.now()
    }

    /// The store's clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the key layout of this store.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The same store with its keys spelled in another layout. For tests of a layout without a
    /// server that needs it.
    pub fn with_layout(&self, layout: Layout) -> Store {
        Store { layout, ..self.clone() }
    }

    /// Listens to channels and patterns. Returns once the store has confirmed, so that what is
    /// published from then on arrives; see [`Subscription`].
    pub async fn subscribe(
        &self,
        channels: &[&str],
        patterns: &[&str],
    ) -> Result<Subscription, Error> {
        if let Some(faults) = &self.faults {
            faults.before().await?;
        }
        match &self.backend {
            Backend::Embedded(embedded) => {
                subscribe::on_embedded(embedded, channels, patterns).await
            }
            Backend::Single(ServerConnection { connector, .. })
            | Backend::Sentinel(ServerConnection { connector, .. }) => {
                let connector = Arc::clone(connector);
                subscribe::on_server(connector, self.timeouts, channels, patterns).await
            }
            Backend::Cluster(cluster) => {
                let connector = cluster.connector();
                subscribe::on_server(connector, self.timeouts, channels, patterns).await
            }
        }
    }

    /// Opens a dedicated connection, for calls that block (`BLPOP`, `XREAD BLOCK`) and for sessions
    /// (`WATCH`).
    pub async fn blocking(&self) -> Result<BlockingConnection, Error> {
        if let Some(faults) = &self.faults {
            faults.before().await?;
        }
        match &self.backend {
            Backend::Embedded(embedded) => {
                Ok(BlockingConnection::on_embedded(embedded, self.timeouts).await?)
            }
            Backend::Single(ServerConnection { connector, .. })
            | Backend::Sentinel(ServerConnection { connector, .. }) => {
                let connector = Arc::clone(connector);
                Ok(BlockingConnection::on_server(connector, self.timeouts).await?)
            }
            Backend::Cluster(cluster) => {
                Ok(BlockingConnection::on_server(cluster.connector(), self.timeouts).await?)
            }
        }
    }

    /// Returns the kind of this store.
    pub fn kind(&self) -> StoreKind {
        match &self.backend {
            Backend::Embedded(_) => StoreKind::Embedded,
            Backend::Single(_) => StoreKind::Single,
            Backend::Sentinel(_) => StoreKind::Sentinel,
            Backend::Cluster(_) => StoreKind::Cluster,
        }
    }

    /// The built-in store behind this handle, if it is one: what a listener serves.
    #[cfg(feature = "embedded")]
    pub fn embedded(&self) -> Option<&Embedded> {
        match &self.backend {
            Backend::Embedded(embedded) => Some(embedded),
            _ => None,
        }
    }

    /// Returns the health of the store, as far as is known without asking it.
    pub fn health(&self) -> Health {
        let (address, reason) = match &self.backend {
            Backend::Embedded(embedded) => embedded.status(),
            Backend::Single(kept) | Backend::Sentinel(kept) => kept.link.status(),
            Backend::Cluster(cluster) => cluster.status(),
        };
        let reason = self.faults.as_ref().and_then(Faults::reason).or(reason);
        Health { reachable: reason.is_none(), kind: self.kind(), address, reason }
    }

    /// Sends a command about the server itself (`INFO`, `SLOWLOG`) to every server; returns the
    /// answers by address: every master of a cluster, otherwise the one there is.
    pub async fn on_every_node(&self, cmd: &Cmd) -> Result<Vec<(String, Value)>, Error> {
        let replies = match &self.backend {
            Backend::Cluster(cluster) => cluster.on_every_node(cmd.clone()).await,
            backend => {
                let reply = backend.command(cmd).await.and_then(Value::extract_error);
                reply.map(|reply| vec![(self.health().address, reply)])
            }
        };
        replies.map_err(Error::from)
    }

    /// Sends a command to one server of the store, by the address
    /// [`on_every_node`](Self::on_every_node) told. Where there is only one, the address does not
    /// matter.
    pub async fn on_node(&self, address: &str, cmd: &Cmd) -> Result<Value, Error> {
        let reply = match &self.backend {
            Backend::Cluster(cluster) => cluster.on_node(address, cmd.clone()).await,
            backend => backend.command(cmd).await,
        };
        reply.and_then(Value::extract_error).map_err(Error::from)
    }

    /// Asks the store whether it answers.
    pub async fn ping(&self) -> Result<(), Error> {
        let mut store = self.clone();
        redis::cmd("PING").query_async::<()>(&mut store).await.map_err(Error::from)
    }
}

impl ConnectionLike for Store {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        if let Err(error) = blocking::reject_blocking(cmd) {
            return Box::pin(std::future::ready(Err(error)));
        }
        let (backend, faults) = (&self.backend, &self.faults);
        match faults {
            None => backend.command(cmd),
            Some(faults) => Box::pin(async move {
                faults.before().await?;
                let reply = backend.command(cmd).await;
                faults.after(reply.and_then(Value::extract_error))
            }),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        // Inside a transaction nothing waits, and the session commands are the server's to refuse.
        if !pipeline.is_transaction()
            && let Err(error) = pipeline.cmd_iter().try_for_each(blocking::reject_blocking)
        {
            return Box::pin(std::future::ready(Err(error)));
        }
        let (backend, faults) = (&self.backend, &self.faults);
        match faults {
            None => backend.pipeline(pipeline, offset, count),
            Some(faults) => Box::pin(async move {
                faults.before().await?;
                faults.after(backend.pipeline(pipeline, offset, count).await)
            }),
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

fn unknown_scheme(scheme: &str) -> Error {
    Error::invalid(format!(
        "{scheme:?} is not a kind of store: use embedded:, redis://, rediss://, redis+sentinel:// or redis+cluster://"
    ))
}
