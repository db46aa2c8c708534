//! A connection of one's own, for calls that wait and for sessions.
//!
//! `BLPOP`, `XREAD BLOCK` and the like would hold up everybody on the shared connection, and
//! `WATCH` or `MULTI` would mix with other callers' commands, so [`Store`](crate::Store) refuses
//! them and [`BlockingConnection`] takes them. Invariants: a waiting call names how long it waits
//! and ends at most a response timeout after that; dropping a call half way closes the connection,
//! so that the server does not hand out an element that gets lost.

use std::{fmt, sync::Arc, time::Duration};

use redis::{
    Arg, Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};

#[cfg(feature = "embedded")]
use crate::embedded::{BlockingSession, Embedded};
#[cfg(not(feature = "embedded"))]
use crate::no_embedded::{NoEmbedded as Embedded, NoSession as BlockingSession};
use crate::{
    Timeouts, error,
    link::{self, Connector, FreshConnection},
    server::{self, cluster},
};

/// A dedicated connection. Reopened by the next call after it broke.
///
/// ```no_run
/// # async fn example(store: tidegate_store::Store) -> Result<(), tidegate_store::Error> {
/// use tidegate_store::redis::AsyncCommands;
///
/// let mut own = store.blocking().await?;
/// let popped: Option<(String, String)> = own.blpop("list", 5.0).await?;
/// # Ok(()) }
/// ```
pub struct BlockingConnection {
    inner: Inner,
    response: Duration,
}

enum Inner {
    Embedded(BlockingSession),
    Server(LazyConnection),
}

/// A connection to a server, opened when needed.
struct LazyConnection {
    connector: Arc<dyn Connector>,
    timeouts: Timeouts,
    open: Option<OpenConnection>,
}

struct OpenConnection {
    connection: MultiplexedConnection,
    address: String,
    /// The slot it is for, where slots have owners.
    slot: Option<u16>,
}

impl BlockingConnection {
    pub(crate) async fn on_server(
        connector: Arc<dyn Connector>,
        timeouts: Timeouts,
    ) -> RedisResult<Self> {
        let mut server = LazyConnection { connector, timeouts, open: None };
        if !server.connector.by_slot() {
            server.open = Some(server.take(None).await?);
        }
        Ok(Self { inner: Inner::Server(server), response: timeouts.response })
    }

    pub(crate) async fn on_embedded(embedded: &Embedded, timeouts: Timeouts) -> RedisResult<Self> {
        let inner = Inner::Embedded(BlockingSession::open(embedded).await?);
        Ok(Self { inner, response: timeouts.response })
    }

    async fn command(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        let limit = self.limit(wait_of(cmd))?;
        let server = match &mut self.inner {
            Inner::Embedded(session) => return session.command(cmd).await,
            Inner::Server(server) => server,
        };
        let mut values = server.within(limit, BlockingCall::One(cmd)).await?;
        Ok(values.pop().unwrap_or(Value::Nil))
    }

    async fn pipeline(
        &mut self,
        pipeline: &Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let mut limit = self.response;
        if !pipeline.is_transaction() {
            for cmd in pipeline.cmd_iter() {
                limit += self.limit(wait_of(cmd))? - self.response;
            }
        }
        let server = match &mut self.inner {
            Inner::Embedded(session) => return session.pipeline(pipeline, offset, count).await,
            Inner::Server(server) => server,
        };
        server.within(limit, BlockingCall::Many(pipeline, offset, count)).await
    }

    /// Returns the deadline of a call with this wait.
    fn limit(&self, wait: WaitLimit) -> RedisResult<Duration> {
        match wait {
            WaitLimit::None => Ok(self.response),
            WaitLimit::For(wait) => Ok(wait.saturating_add(self.response)),
            WaitLimit::Forever => Err(RedisError::from((
                ErrorKind::Client,
                "a waiting call must say how long: a timeout of 0 waits for ever",
            ))),
        }
    }
}

/// A call to send.
#[derive(Clone, Copy)]
enum BlockingCall<'a> {
    One(&'a Cmd),
    Many(&'a Pipeline, usize, usize),
}

impl BlockingCall<'_> {
    async fn send(self, connection: &mut MultiplexedConnection) -> RedisResult<Vec<Value>> {
        match self {
            Self::One(cmd) => {
                let value = connection.req_packed_command(cmd).await?;
                Ok(vec![value.extract_error()?])
            }
            Self::Many(pipeline, offset, count) => {
                connection.req_packed_commands(pipeline, offset, count).await
            }
        }
    }

    fn slot(self) -> Option<u16> {
        match self {
            Self::One(cmd) => cluster::slot_of(cmd),
            Self::Many(pipeline, ..) => pipeline.cmd_iter().find_map(cluster::slot_of),
        }
    }
}

impl LazyConnection {
    /// Makes one call. The connection is put back only after a reply: an I/O error, a timeout or a
    /// dropped call leaves it closed. A call that was redirected did nothing and goes
    /// there, once.
    async fn within(&mut self, limit: Duration, call: BlockingCall<'_>) -> RedisResult<Vec<Value>> {
        let slot = if self.connector.by_slot() { call.slot() } else { None };
        for last in [false, true] {
            let mut open = self.take(slot).await?;
            let place = self.connector.place();
            let calling = call.send(&mut open.connection);
            let calling = link::while_there(&place, &open.address, calling);
            match tokio::time::timeout(limit, calling).await {
                Ok(Err(error)) if error.is_cluster_error() && !last => {}
                Ok(result) => {
                    let broken = |error: &RedisError| {
                        error.is_io_error()
                            || error.is_cluster_error()
                            || error.code() == Some("READONLY")
                    };
                    if !result.as_ref().err().is_some_and(broken) {
                        self.open = Some(open);
                    }
                    return result;
                }
                Err(_) => return Err(error::timed_out("no reply in time")),
            }
        }
        Err(error::not_sent("the data is on the move"))
    }

    /// The open connection, if it still leads where it should, or a new one.
    async fn take(&mut self, slot: Option<u16>) -> RedisResult<OpenConnection> {
        let place = self.connector.place();
        let fits = |open: &OpenConnection| {
            let there = place.as_ref().is_none_or(|place| *place.borrow() == open.address);
            there && (slot.is_none() || open.slot == slot)
        };
        if let Some(open) = self.open.take().filter(fits) {
            return Ok(open);
        }
        let config = server::calls(self.timeouts).set_response_timeout(None);
        let connecting = self.connector.connect(config, slot);
        match tokio::time::timeout(self.timeouts.connect * 4, connecting).await {
            Ok(connected) => {
                let FreshConnection { connection, address } = connected?;
                Ok(OpenConnection { connection, address, slot })
            }
            Err(_) => Err(error::not_sent("connecting took too long")),
        }
    }
}

impl ConnectionLike for BlockingConnection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(self.command(cmd))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(self.pipeline(pipeline, offset, count))
    }

    fn get_db(&self) -> i64 {
        0
    }
}

impl fmt::Debug for BlockingConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingConnection").finish_non_exhaustive()
    }
}

/// The time a command may block its connection by its own arguments.
#[derive(Clone, Copy, Debug, PartialEq)]
enum WaitLimit {
    None,
    For(Duration),
    Forever,
}

fn wait_of(cmd: &Cmd) -> WaitLimit {
    let Some(name) = text(cmd, 0) else { return WaitLimit::None };
    let last = cmd.args_iter().len().saturating_sub(1);
    match name.to_ascii_uppercase().as_str() {
        "BLPOP" | "BRPOP" | "BLMOVE" | "BRPOPLPUSH" | "BZPOPMIN" | "BZPOPMAX" => seconds(cmd, last),
        "BLMPOP" | "BZMPOP" => seconds(cmd, 1),
        "WAIT" | "WAITAOF" => millis(cmd, last),
        "XREAD" | "XREADGROUP" => (1..last)
            .take_while(|at| {
                !text(cmd, *at).is_some_and(|word| word.eq_ignore_ascii_case("STREAMS"))
            })
            .find(|at| text(cmd, *at).is_some_and(|word| word.eq_ignore_ascii_case("BLOCK")))
            .map_or(WaitLimit::None, |at| millis(cmd, at + 1)),
        _ => WaitLimit::None,
    }
}

fn text(cmd: &Cmd, at: usize) -> Option<&str> {
    match cmd.args_iter().nth(at)? {
        Arg::Simple(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

// A number that is not one is the server's to refuse; it does not wait then.
fn seconds(cmd: &Cmd, at: usize) -> WaitLimit {
    let number = text(cmd, at).and_then(|text| text.parse::<f64>().ok());
    match number.map(Duration::try_from_secs_f64) {
        Some(Ok(Duration::ZERO)) => WaitLimit::Forever,
        Some(Ok(wait)) => WaitLimit::For(wait),
        _ => WaitLimit::None,
    }
}

fn millis(cmd: &Cmd, at: usize) -> WaitLimit {
    match text(cmd, at).and_then(|text| text.parse::<u64>().ok()) {
        Some(0) => WaitLimit::Forever,
        Some(wait) => WaitLimit::For(Duration::from_millis(wait)),
        None => WaitLimit::None,
    }
}

/// Refuses a command that must not run on a connection others share: one that waits, or one that
/// changes the session. Called for every command, so it looks at the length and first letter before
/// anything else.
pub(crate) fn reject_blocking(cmd: &Cmd) -> RedisResult<()> {
    let Some(Arg::Simple(name)) = cmd.args_iter().next() else { return Ok(()) };
    let (Some(first), length) = (name.first(), name.len()) else { return Ok(()) };
    let suspects: &[&str] = match (first.to_ascii_uppercase(), length) {
        (b'A', 4) => &["AUTH"],
        (b'B', 5) => &["BLPOP", "BRPOP"],
        (b'B', 6) => &["BLMOVE", "BLMPOP", "BZMPOP"],
        (b'B', 8) => &["BZPOPMIN", "BZPOPMAX"],
        (b'B', 10) => &["BRPOPLPUSH"],
        (b'D', 7) => &["DISCARD"],
        (b'E', 4) => &["EXEC"],
        (b'H', 5) => &["HELLO"],
        (b'M', 5) => &["MULTI"],
        (b'M', 7) => &["MONITOR"],
        (b'P', 10) => &["PSUBSCRIBE"],
        (b'P', 12) => &["PUNSUBSCRIBE"],
        (b'Q', 4) => &["QUIT"],
        (b'R', 5) => &["RESET"],
        (b'S', 4) => &["SAVE"],
        (b'S', 6) => &["SELECT"],
        (b'S', 9) => &["SUBSCRIBE"],
        (b'S', 10) => &["SSUBSCRIBE"],
        (b'S', 12) => &["SUNSUBSCRIBE"],
        (b'U', 7) => &["UNWATCH"],
        (b'U', 11) => &["UNSUBSCRIBE"],
        (b'W', 4) => &["WAIT"],
        (b'W', 5) => &["WATCH"],
        (b'W', 7) => &["WAITAOF"],
        (b'X', 5) | (b'X', 10) if wait_of(cmd) != WaitLimit::None => &["XREAD", "XREADGROUP"],
        _ => return Ok(()),
    };
    let found = suspects.iter().find(|suspect| name.eq_ignore_ascii_case(suspect.as_bytes()));
    match found {
        None => Ok(()),
        Some(name) => Err(RedisError::from((
            ErrorKind::Client,
            "not on a shared connection: use Store::blocking or Store::subscribe",
            (*name).to_owned(),
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cmd(line: &str) -> Cmd {
        let mut words = line.split(' ');
        let mut cmd = redis::cmd(words.next().unwrap_or_default());
        words.for_each(|word| _ = cmd.arg(word));
        cmd
    }

    #[test]
    fn waits_are_read_from_the_command() {
        let secs = |n| WaitLimit::For(Duration::from_secs(n));
        for (line, wait) in [
            ("GET BLPOP", WaitLimit::None),
            ("BLPOP a b 5", secs(5)),
            ("blpop a 0.5", WaitLimit::For(Duration::from_millis(500))),
            ("BLPOP a 0", WaitLimit::Forever),
            ("BLPOP a nan", WaitLimit::None),
            ("BLPOP a -1", WaitLimit::None),
            ("BLMPOP 2 1 a LEFT", secs(2)),
            ("XREAD BLOCK 1000 STREAMS s $", secs(1)),
            ("XREAD COUNT 2 BLOCK 0 STREAMS s $", WaitLimit::Forever),
            ("XREAD STREAMS BLOCK 0", WaitLimit::None),
            ("WAIT 1 0", WaitLimit::Forever),
            ("WAITAOF 1 0 250", WaitLimit::For(Duration::from_millis(250))),
        ] {
            assert_eq!(wait_of(&cmd(line)), wait, "{line}");
        }
    }

    #[test]
    fn what_waits_or_changes_the_session_is_not_shared() {
        for line in [
            "BLPOP a 1",
            "brpop a 1",
            "BLMOVE a b LEFT LEFT 1",
            "BZPOPMIN z 1",
            "XREAD BLOCK 5 STREAMS s $",
            "MULTI",
            "exec",
            "WATCH a",
            "SUBSCRIBE c",
            "psubscribe c*",
            "SELECT 1",
            "MONITOR",
            "RESET",
            "QUIT",
            "HELLO 3",
            "AUTH x",
            "WAIT 1 5",
        ] {
            assert!(reject_blocking(&cmd(line)).is_err(), "{line}");
        }
        for line in [
            "GET a",
            "SET a 1",
            "EVAL x 0",
            "XREAD STREAMS s 0",
            "XADD s * a 1",
            "WAITED",
            "SELECTED 1",
            "HGET h f",
        ] {
            assert!(reject_blocking(&cmd(line)).is_ok(), "{line}");
        }
    }
}
