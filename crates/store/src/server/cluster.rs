//! A cluster: calls go by redis-rs's cluster connection, waiting calls and subscriptions by
//! connections to single nodes.
//!
//! redis-rs follows the cluster's map, redirections and failovers, and repeats a request whose
//! connection broke; so a call may be carried out more than once, which scripts here must bear.
//! A pipeline that is not a transaction may touch any slots: it is taken apart by slot, and order
//! is kept within a slot only.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use futures_util::future::{BoxFuture, try_join_all};
use parking_lot::Mutex;
use redis::{
    Arg, AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, RedisConnectionInfo, RedisError,
    RedisResult, Value,
    aio::{ConnectionLike as _, PubSub},
    cluster::ClusterClientBuilder,
    cluster_async::ClusterConnection,
    cluster_routing::{
        MultipleNodeRoutingInfo, ResponsePolicy, Route, RoutingInfo, SingleNodeRoutingInfo,
        SlotAddr,
    },
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Clock, Error, Millis, Options, Timeouts, error, key,
    link::{Connector, FreshConnection},
    server::{self, ServerLogin, TlsTrust, address::Address},
};

/// A cluster as one store. A cheap clone; the task ends with the last one.
#[derive(Clone)]
pub(crate) struct Cluster {
    connection: ClusterConnection,
    nodes: Arc<ClusterNodes>,
    /// The last failure, as far as the last heartbeat or call knows.
    wrong: Arc<ArcSwapOption<String>>,
    _task: Arc<AbortOnDropHandle<()>>,
}

/// The nodes, for connections of one's own.
pub(crate) struct ClusterNodes {
    seeds: Vec<(String, u16)>,
    /// The masters of the last map, asked before the seeds, which may be gone by now.
    known: Mutex<Vec<(String, u16)>>,
    login: ServerLogin,
    timeouts: Timeouts,
}

impl Cluster {
    /// Reads `[user:password@]h1[:port],h2[:port]` and connects.
    pub(crate) async fn open(
        rest: &str,
        tls: bool,
        options: &Options,
        clock: Clock,
    ) -> Result<Self, Error> {
        let address = Address::parse(rest, 6379)?;
        let strange = |name: &String| !(tls && name == "ca");
        if !address.path.is_empty() || address.query.keys().any(strange) {
            return Err(Error::invalid(
                "a cluster URL names nodes only, a cluster has one database: redis+cluster://h1,h2",
            ));
        }
        let mut login = RedisConnectionInfo::default();
        if let Some(username) = &address.username {
            login = login.set_username(username);
        }
        if let Some(password) = &address.password {
            login = login.set_password(password);
        }
        let login = ServerLogin { redis: login, tls: tls.then(|| TlsTrust::new(options)) };
        let timeouts = options.timeouts;
        let nodes = ClusterNodes { seeds: address.hosts, known: Mutex::default(), login, timeouts };
        let mut connection = nodes.connection().await?;
        if clock.follows_server() {
            probe(&mut connection, &clock).await?;
        }
        let wrong = Arc::new(ArcSwapOption::empty());
        let task =
            tokio::spawn(keep(connection.clone(), clock, timeouts.heartbeat, Arc::clone(&wrong)));
        let task = Arc::new(AbortOnDropHandle::new(task));
        Ok(Self { connection, nodes: Arc::new(nodes), wrong, _task: task })
    }

    pub(crate) fn status(&self) -> (String, Option<String>) {
        let address: Vec<_> =
            self.nodes.seeds.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        (address.join(","), self.wrong.load().as_deref().cloned())
    }

    pub(crate) fn connector(&self) -> Arc<dyn Connector> {
        Arc::clone(&self.nodes) as Arc<dyn Connector>
    }

    pub(crate) async fn command(&self, cmd: &Cmd) -> RedisResult<Value> {
        self.connection.clone().req_packed_command(cmd).await
    }

    /// The command's reply from every master, by address.
    pub(crate) async fn on_every_node(&self, cmd: Cmd) -> RedisResult<Vec<(String, Value)>> {
        let all = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let reply = self.connection.clone().route_command(cmd, all).await?;
        let mut replies: Vec<(String, Value)> = match reply {
            Value::Map(pairs) => pairs
                .into_iter()
                .map(|(address, value)| Ok((redis::from_redis_value(address)?, value)))
                .collect::<RedisResult<_>>()?,
            value => vec![(String::new(), value)],
        };
        replies.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(replies)
    }

    /// The command's reply from the node at this address.
    pub(crate) async fn on_node(&self, address: &str, cmd: Cmd) -> RedisResult<Value> {
        let place = address.rsplit_once(':').and_then(|(host, port)| {
            Some(SingleNodeRoutingInfo::ByAddress {
                host: host.to_owned(),
                port: port.parse().ok()?,
            })
        });
        let place = place
            .ok_or_else(|| RedisError::from((ErrorKind::InvalidClientConfig, "no such node")))?;
        self.connection.clone().route_command(cmd, RoutingInfo::SingleNode(place)).await
    }

    pub(crate) async fn pipeline(
        &self,
        pipeline: &Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let mut groups: BTreeMap<Option<u16>, Vec<usize>> = BTreeMap::new();
        for (index, cmd) in pipeline.cmd_iter().enumerate() {
            groups.entry(slot_of(cmd)).or_default().push(index);
        }
        let keyless = groups.remove(&None).unwrap_or_default();
        if pipeline.is_transaction() || (groups.len() <= 1 && keyless.is_empty()) {
            return self.connection.clone().req_packed_commands(pipeline, offset, count).await;
        }
        // A group per slot, each a pipeline of its own; what has no slot goes alone.
        let cmds: Vec<&Cmd> = pipeline.cmd_iter().collect();
        let alone = keyless.into_iter().map(|index| vec![index]);
        let calls = groups.into_values().chain(alone).map(|group| {
            let mut connection = self.connection.clone();
            let part: Vec<&Cmd> =
                group.iter().filter_map(|index| cmds.get(*index).copied()).collect();
            async move {
                let values = match part.as_slice() {
                    [cmd] => vec![alone_reply(connection.req_packed_command(cmd).await)?],
                    part => {
                        let mut pipe = Pipeline::with_capacity(part.len());
                        part.iter().for_each(|cmd| _ = pipe.add_command((*cmd).clone()));
                        connection.req_packed_commands(&pipe, 0, part.len()).await?
                    }
                };
                Ok::<_, RedisError>((group, values))
            }
        });
        let mut replies = vec![Value::Nil; cmds.len()];
        for (group, values) in try_join_all(calls).await? {
            for (index, value) in group.into_iter().zip(values) {
                if let Some(reply) = replies.get_mut(index) {
                    *reply = value;
                }
            }
        }
        Ok(replies.into_iter().skip(offset).take(count).collect())
    }
}

/// In a pipeline an error the server gives is one of its replies and not the end of it.
fn alone_reply(reply: RedisResult<Value>) -> RedisResult<Value> {
    match reply {
        Err(error) if matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) => {
            match error.clone().into_server_errors() {
                Some(errors) if errors.len() == 1 => Ok(Value::ServerError(errors[0].1.clone())),
                _ => Err(error),
            }
        }
        reply => reply,
    }
}

/// The slot of a command's keys; none if it has no key, or keys of several slots, which redis-rs
/// takes apart itself for the commands that allow it.
pub(crate) fn slot_of(cmd: &Cmd) -> Option<u16> {
    let arg = |at: usize| match cmd.args_iter().nth(at)? {
        Arg::Simple(bytes) => Some(bytes),
        _ => None,
    };
    let word = |at: usize| arg(at).map(|bytes| String::from_utf8_lossy(bytes).to_ascii_uppercase());
    let count = |at: usize| word(at)?.parse::<usize>().ok();
    let all_at = |first: usize, step: usize| {
        let mut slots = (first..cmd.args_iter().len()).step_by(step).filter_map(arg).map(key::slot);
        let first = slots.next()?;
        slots.all(|slot| slot == first).then_some(first)
    };
    let at = match word(0)?.as_str() {
        "PING" | "ECHO" | "TIME" | "DBSIZE" | "INFO" | "PUBLISH" | "SCRIPT" | "CONFIG"
        | "CLIENT" | "CLUSTER" | "COMMAND" | "FLUSHALL" | "FLUSHDB" | "KEYS" | "SCAN"
        | "RANDOMKEY" | "WAIT" | "WAITAOF" | "SLOWLOG" | "FUNCTION" | "LATENCY" | "ACL"
        | "LASTSAVE" | "ROLE" | "PUBSUB" | "DEBUG" | "UNWATCH" => return None,
        "DEL" | "UNLINK" | "EXISTS" | "TOUCH" | "MGET" | "WATCH" => return all_at(1, 1),
        "MSET" | "MSETNX" => return all_at(1, 2),
        "EVAL" | "EVALSHA" | "EVAL_RO" | "EVALSHA_RO" | "FCALL" | "FCALL_RO" => {
            count(2).filter(|count| *count > 0).map(|_| 3)?
        }
        "BLMPOP" | "BZMPOP" => 3,
        "LMPOP" | "ZMPOP" | "SINTERCARD" | "ZINTERCARD" | "ZDIFF" | "ZINTER" | "ZUNION"
        | "OBJECT" | "XINFO" | "XGROUP" | "MEMORY" | "BITOP" => 2,
        "XREAD" | "XREADGROUP" => {
            (1..cmd.args_iter().len()).find(|at| word(*at).as_deref() == Some("STREAMS"))? + 1
        }
        _ => 1,
    };
    arg(at).map(key::slot)
}

/// Asks every master whether it answers, and the owner of slot 0 for the time, so that all
/// processes take it from the same clock.
async fn probe(connection: &mut ClusterConnection, clock: &Clock) -> RedisResult<()> {
    let all = MultipleNodeRoutingInfo::AllMasters;
    let all = RoutingInfo::MultiNode((all, Some(ResponsePolicy::AllSucceeded)));
    connection.route_command(redis::cmd("PING"), all).await?;
    let asked = Instant::now();
    let first = SingleNodeRoutingInfo::SpecificNode(Route::new(0, SlotAddr::Master));
    let time = connection.route_command(redis::cmd("TIME"), RoutingInfo::SingleNode(first)).await?;
    let (seconds, micros): (i64, i64) = redis::from_redis_value(time)?;
    clock.measured(Millis(seconds.saturating_mul(1_000).saturating_add(micros / 1_000)), asked);
    Ok(())
}

async fn keep(
    mut connection: ClusterConnection,
    clock: Clock,
    heartbeat: Duration,
    wrong: Arc<ArcSwapOption<String>>,
) {
    loop {
        tokio::time::sleep(heartbeat).await;
        match probe(&mut connection, &clock).await {
            Ok(()) => {
                if wrong.swap(None).is_some() {
                    tracing::info!("all masters of the cluster answer again");
                }
            }
            Err(error) => {
                if wrong.swap(Some(Arc::new(error.to_string()))).is_none() {
                    tracing::warn!(%error, "a master of the cluster does not answer");
                }
            }
        }
    }
}

impl ClusterNodes {
    async fn connection(&self) -> Result<ClusterConnection, Error> {
        let seeds = self.seeds.iter().map(|(host, port)| self.login.info(host, *port));
        let seeds: Vec<_> = seeds.collect::<RedisResult<_>>()?;
        let mut builder = ClusterClientBuilder::new(seeds)
            .connection_timeout(self.timeouts.connect)
            .response_timeout(self.timeouts.response)
            .overall_response_timeout(Some(self.timeouts.response))
            .tcp_settings(server::tcp_settings())
            // Pauses of 10 to 320 ms: what the deadline allows of them hides a redirection or a
            // dropped connection, not an outage.
            .retries(8)
            .min_retry_wait(10)
            .max_retry_wait(320)
            .retry_wait_formula(10, 2);
        if let Some(tls) = &self.login.tls {
            builder = builder.tls(redis::TlsMode::Secure).certs(tls.certificates());
        }
        let connecting = builder.build()?;
        let connecting = connecting.get_async_connection();
        match tokio::time::timeout(self.timeouts.connect * 4, connecting).await {
            Ok(connection) => Ok(connection?),
            Err(_) => Err(error::timed_out("connecting took too long").into()),
        }
    }

    /// The masters with the slots they own, by the first node that answers.
    async fn map(&self) -> RedisResult<Vec<Owner>> {
        let mut failure = error::not_sent("no node is configured");
        let known = self.known.lock().clone();
        for (host, port) in known.iter().chain(&self.seeds) {
            let asking = async {
                let client = self.login.client(host, *port)?;
                let config = server::calls(self.timeouts);
                let mut connection =
                    client.get_multiplexed_async_connection_with_config(&config).await?;
                redis::cmd("CLUSTER").arg("SLOTS").query_async::<Vec<Value>>(&mut connection).await
            };
            match tokio::time::timeout(self.timeouts.connect * 2, asking).await {
                Ok(Ok(ranges)) => {
                    let owners: Vec<_> =
                        ranges.iter().filter_map(|range| owner(range, host)).collect();
                    let places = owners.iter().map(|owner| (owner.host.clone(), owner.port));
                    let places: BTreeSet<_> = places.collect();
                    *self.known.lock() = places.into_iter().collect();
                    return Ok(owners);
                }
                Ok(Err(error)) => failure = error,
                Err(_) => failure = error::timed_out("a node does not answer"),
            }
        }
        Err(failure)
    }
}

struct Owner {
    slots: std::ops::RangeInclusive<u16>,
    host: String,
    port: u16,
}

/// Reads `[first, last, [host, port, …], replicas…]`; a node that does not know its own host is
/// where it was asked.
fn owner(range: &Value, asked: &str) -> Option<Owner> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = parts.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = master.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) if !host.is_empty() => String::from_utf8_lossy(host).into_owned(),
        _ => asked.to_owned(),
    };
    Some(Owner {
        slots: u16::try_from(*first).ok()?..=u16::try_from(*last).ok()?,
        host,
        port: u16::try_from(*port).ok()?,
    })
}

impl Connector for ClusterNodes {
    fn connect(
        &self,
        config: AsyncConnectionConfig,
        slot: Option<u16>,
    ) -> BoxFuture<'_, RedisResult<FreshConnection>> {
        Box::pin(async move {
            let map = self.map().await?;
            let owner =
                map.iter().find(|owner| slot.is_none_or(|slot| owner.slots.contains(&slot)));
            let owner =
                owner.ok_or_else(|| error::not_sent("no node owns the slot of this key"))?;
            let client = self.login.client(&owner.host, owner.port)?;
            let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            let address = server::shown(client.get_connection_info());
            Ok(FreshConnection { connection, address })
        })
    }

    /// Any node will do: a cluster hands every message to all.
    fn pubsub(&self) -> BoxFuture<'_, RedisResult<(PubSub, String)>> {
        Box::pin(async move {
            let masters = self.map().await.unwrap_or_default();
            let mut places: Vec<_> =
                masters.into_iter().map(|owner| (owner.host, owner.port)).collect();
            fastrand::shuffle(&mut places);
            places.extend(self.seeds.iter().cloned());
            let mut failure = error::not_sent("no node is configured");
            for (host, port) in places {
                let client = self.login.client(&host, port)?;
                let opening = client.get_async_pubsub();
                match tokio::time::timeout(self.timeouts.connect, opening).await {
                    Ok(Ok(pubsub)) => return Ok((pubsub, format!("{host}:{port}"))),
                    Ok(Err(error)) => failure = error,
                    Err(_) => failure = error::timed_out("a node does not answer"),
                }
            }
            Err(failure)
        })
    }

    fn by_slot(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_of_a_command_is_that_of_its_key() {
        let cmd = |line: &str| {
            let mut words = line.split(' ');
            let mut cmd = redis::cmd(words.next().unwrap_or_default());
            words.for_each(|word| _ = cmd.arg(word));
            cmd
        };
        for line in [
            "GET foo",
            "SET foo 1",
            "EVALSHA abc 1 foo x",
            "XREAD COUNT 1 STREAMS foo 0",
            "BLPOP foo 1",
            "HSET foo a b",
        ] {
            assert_eq!(slot_of(&cmd(line)), Some(12182), "{line}");
        }
        for line in [
            "PING",
            "DBSIZE",
            "EVAL x 0",
            "PUBLISH a b",
            "SCRIPT LOAD x",
            "DEL foo bar",
            "MSET foo 1 bar 2",
        ] {
            assert_eq!(slot_of(&cmd(line)), None, "{line}");
        }
    }

    #[test]
    fn a_map_is_read_and_a_node_without_a_host_is_where_it_was_asked() {
        let node = |host: Value| Value::Array(vec![host, Value::Int(7000), Value::Nil]);
        let range = |host| Value::Array(vec![Value::Int(0), Value::Int(5460), node(host)]);
        let named = owner(&range(Value::BulkString(b"10.0.0.1".to_vec())), "seed").unwrap();
        assert_eq!((named.host.as_str(), named.port, named.slots), ("10.0.0.1", 7000, 0..=5460));
        assert_eq!(owner(&range(Value::Nil), "seed").unwrap().host, "seed");
        assert!(owner(&Value::Array(vec![Value::Int(1)]), "seed").is_none());
    }
}
