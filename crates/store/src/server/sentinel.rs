//! The master that Sentinels name, followed through failovers.
//!
//! Each connection starts with the question who is master: all Sentinels are asked, the newest
//! answer of a majority counts, and the server itself must say that it is a master. In between,
//! every Sentinel is listened to, and all are asked again with every heartbeat in case a message
//! got lost. Invariant: once a switch is known, no caller gets an OK for a write to the old master
//! succeeded; calls under way end as unavailable.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use parking_lot::Mutex;
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, RedisConnectionInfo, RedisError, RedisResult, Value,
    aio::PubSub,
};
use tokio::sync::watch;

use crate::{
    Error, Options, Timeouts, error,
    link::{self, Connector, FreshConnection},
    server::{self, ServerLogin, TlsTrust, address::Address},
};

/// Connects to whom the Sentinels name.
pub(crate) struct Sentinel {
    sentinels: Vec<Client>,
    name: String,
    data: ServerLogin,
    timeouts: Timeouts,
    /// The newest answer seen.
    newest: Mutex<Option<MasterAnswer>>,
    /// Its address, for all connections to follow.
    place: watch::Sender<String>,
}

/// The answer of a Sentinel: the master, and the epoch of its election.
#[derive(Clone, PartialEq, Eq)]
struct MasterAnswer {
    epoch: u64,
    host: String,
    port: u16,
}

impl MasterAnswer {
    fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl Sentinel {
    /// Reads `[user:password@]h1[:port],h2[:port]/NAME[/db][?sentinel_user=…&sentinel_password=…]`.
    pub(crate) fn new(rest: &str, tls: bool, options: &Options) -> Result<Self, Error> {
        let address = Address::parse(rest, 26379)?;
        let (name, db) = match address.path.as_slice() {
            [name] => (name, 0),
            [name, db] => {
                let wrong = |_| Error::invalid(format!("{db:?} is not the number of a database"));
                (name, db.parse().map_err(wrong)?)
            }
            _ => {
                return Err(Error::invalid(
                    "a Sentinel URL ends with the master's name: redis+sentinel://h1,h2/NAME",
                ));
            }
        };
        let tls = tls.then(|| TlsTrust::new(options));
        let mut login = RedisConnectionInfo::default().set_db(db);
        if let Some(username) = &address.username {
            login = login.set_username(username);
        }
        if let Some(password) = &address.password {
            login = login.set_password(password);
        }
        let mut asking = RedisConnectionInfo::default();
        for (name, value) in &address.query {
            asking = match name.as_str() {
                "sentinel_user" => asking.set_username(value),
                "sentinel_password" => asking.set_password(value),
                "ca" if tls.is_some() => asking,
                _ => return Err(Error::invalid(format!("a Sentinel URL has no option {name:?}"))),
            };
        }
        let asking = ServerLogin { redis: asking, tls: tls.clone() };
        let sentinels = address.hosts.iter().map(|(host, port)| asking.client(host, *port));
        Ok(Self {
            sentinels: sentinels.collect::<RedisResult<_>>()?,
            name: name.clone(),
            data: ServerLogin { redis: login, tls },
            timeouts: options.timeouts,
            newest: Mutex::new(None),
            place: watch::Sender::new(String::new()),
        })
    }

    /// Finds the master, by the newest answer once a majority has answered, or all that can.
    async fn resolve(&self) -> RedisResult<MasterAnswer> {
        let mut asked: FuturesUnordered<_> =
            self.sentinels.iter().map(|sentinel| self.ask(sentinel)).collect();
        let majority = self.sentinels.len() / 2 + 1;
        let (mut answers, mut newest, mut failure) = (0, None::<MasterAnswer>, None);
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(answer) => {
                    answers += 1;
                    if newest.as_ref().is_none_or(|newest| answer.epoch > newest.epoch) {
                        newest = Some(answer);
                    }
                    if answers >= majority {
                        break;
                    }
                }
                Err(error) => failure = Some(error),
            }
        }
        match (newest, failure) {
            (Some(newest), _) => {
                if answers < majority {
                    tracing::warn!(answers, of = self.sentinels.len(), "few Sentinels answer");
                }
                Ok(self.learn(newest))
            }
            (None, Some(failure)) => Err(failure),
            (None, None) => Err(error::not_sent("no Sentinel is configured")),
        }
    }

    async fn ask(&self, sentinel: &Client) -> RedisResult<MasterAnswer> {
        let config = server::calls(self.timeouts);
        let asking = async {
            let mut connection =
                sentinel.get_multiplexed_async_connection_with_config(&config).await?;
            // The epoch first: towards the end of a failover a Sentinel has the new epoch already
            // while `MASTER` still shows the old address, which the other command does not.
            let known: HashMap<String, String> = redis::cmd("SENTINEL")
                .arg("MASTER")
                .arg(&self.name)
                .query_async(&mut connection)
                .await?;
            let place: Option<(String, u16)> = redis::cmd("SENTINEL")
                .arg("GET-MASTER-ADDR-BY-NAME")
                .arg(&self.name)
                .query_async(&mut connection)
                .await?;
            Ok::<_, RedisError>((known, place))
        };
        let (known, place) = match tokio::time::timeout(self.timeouts.connect * 2, asking).await {
            Ok(answer) => answer?,
            Err(_) => return Err(error::timed_out("a Sentinel does not answer")),
        };
        let epoch = known.get("config-epoch").and_then(|epoch| epoch.parse().ok());
        match (epoch, place) {
            (Some(epoch), Some((host, port))) => Ok(MasterAnswer { epoch, host, port }),
            _ => Err(RedisError::from((ErrorKind::Parse, "a Sentinel's answer is unreadable"))),
        }
    }

    /// Keeps the newer of an answer and what is known, tells all if that is new, and returns it.
    fn learn(&self, answer: MasterAnswer) -> MasterAnswer {
        let mut newest = self.newest.lock();
        let known = newest.take().filter(|known| known.epoch >= answer.epoch).unwrap_or(answer);
        let address = known.address();
        self.place.send_if_modified(|place| {
            let moved = *place != address;
            if moved {
                tracing::info!(%address, epoch = known.epoch, "the Sentinels name a master");
                *place = address;
            }
            moved
        });
        newest.insert(known).clone()
    }

    /// Takes the Sentinels' next answer whatever its epoch, in case they were reset. Only
    /// after a connection to the newest place failed.
    fn doubt(&self) {
        *self.newest.lock() = None;
    }

    /// Listens to one Sentinel for ever.
    async fn listen(&self, sentinel: &Client) {
        let mut attempt = 0;
        loop {
            tokio::time::sleep(link::backoff(attempt, fastrand::f64())).await;
            match self.listen_once(sentinel).await {
                Ok(()) => attempt = 1,
                Err(error) => {
                    tracing::debug!(%error, "a Sentinel cannot be listened to");
                    attempt = attempt.saturating_add(1);
                }
            }
        }
    }

    async fn listen_once(&self, sentinel: &Client) -> RedisResult<()> {
        let opening = async {
            let mut pubsub = sentinel.get_async_pubsub().await?;
            pubsub.subscribe("+switch-master").await?;
            Ok::<_, RedisError>(pubsub)
        };
        let opened = tokio::time::timeout(self.timeouts.connect * 2, opening).await;
        let pubsub = opened.map_err(|_| error::timed_out("a Sentinel does not answer"))??;
        let (mut sink, mut messages) = pubsub.split();
        loop {
            match tokio::time::timeout(self.timeouts.heartbeat, messages.next()).await {
                Ok(Some(message)) => {
                    let text: String = message.get_payload()?;
                    // NAME old-host old-port new-host new-port, but not the epoch: ask for it.
                    if text.split(' ').next() == Some(self.name.as_str()) {
                        self.learn(self.ask(sentinel).await?);
                    }
                }
                Ok(None) => return Ok(()),
                Err(_) => {
                    let ping = sink.ping::<Value>();
                    match tokio::time::timeout(self.timeouts.response, ping).await {
                        Ok(pong) => drop(pong?),
                        Err(_) => return Err(error::timed_out("a Sentinel does not answer")),
                    }
                }
            }
        }
    }

    /// Asks all Sentinels with every heartbeat.
    async fn poll(&self, heartbeat: Duration) {
        loop {
            tokio::time::sleep(heartbeat).await;
            if let Err(error) = self.resolve().await {
                tracing::warn!(%error, "no Sentinel answers");
            }
        }
    }
}

impl Connector for Sentinel {
    fn connect(
        &self,
        config: AsyncConnectionConfig,
        _slot: Option<u16>,
    ) -> BoxFuture<'_, RedisResult<FreshConnection>> {
        Box::pin(async move {
            let master = self.resolve().await?;
            let connecting = async {
                let client = self.data.client(&master.host, master.port)?;
                let mut connection =
                    client.get_multiplexed_async_connection_with_config(&config).await?;
                let reply: Vec<Value> = redis::cmd("ROLE").query_async(&mut connection).await?;
                match reply.first() {
                    Some(Value::BulkString(role)) if role == b"master" => Ok(connection),
                    _ => Err(error::not_sent("the server the Sentinels name is not a master")),
                }
            };
            let (place, address) = (self.place(), master.address());
            let connecting = link::while_there(&place, &address, connecting);
            let connected = match tokio::time::timeout(self.timeouts.connect * 2, connecting).await
            {
                Ok(connected) => connected,
                Err(_) => Err(error::timed_out("the master does not answer")),
            };
            let connection = connected.inspect_err(|_| self.doubt())?;
            Ok(FreshConnection { connection, address })
        })
    }

    fn pubsub(&self) -> BoxFuture<'_, RedisResult<(PubSub, String)>> {
        Box::pin(async move {
            let master = self.resolve().await?;
            let client = self.data.client(&master.host, master.port)?;
            Ok((client.get_async_pubsub().await?, master.address()))
        })
    }

    fn place(&self) -> Option<watch::Receiver<String>> {
        Some(self.place.subscribe())
    }

    fn watch(self: Arc<Self>) -> Option<BoxFuture<'static, ()>> {
        Some(Box::pin(async move {
            let listening = self.sentinels.iter().map(|sentinel| self.listen(sentinel));
            let listening = futures_util::future::join_all(listening);
            tokio::join!(listening, self.poll(self.timeouts.heartbeat));
        }))
    }
}
