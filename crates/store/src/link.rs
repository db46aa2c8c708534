//! One connection that is kept: opened, watched, replaced when it breaks.
//!
//! A [`Link`] hands out clones of one multiplexed connection. A task that it owns reconnects with
//! growing, jittered pauses, probes an idle connection, and feeds a clock that follows the server.
//! Invariant: a caller waits at most `patience` for a connection and `response` for a reply; what
//! happened is reported to the task, and no request is ever sent twice from here.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use redis::{
    AsyncConnectionConfig, RedisError, RedisResult, Value,
    aio::{ConnectionLike as _, MultiplexedConnection, PubSub},
};
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::{Clock, Millis, Timeouts, error, server};

/// Opens connections, each time to where the data is now.
pub(crate) trait Connector: Send + Sync + 'static {
    /// One attempt at a connection for commands; to the owner of a slot where slots have owners.
    fn connect(
        &self,
        config: AsyncConnectionConfig,
        slot: Option<u16>,
    ) -> BoxFuture<'_, RedisResult<FreshConnection>>;

    /// One attempt at a connection for published messages, and where it leads.
    fn pubsub(&self) -> BoxFuture<'_, RedisResult<(PubSub, String)>>;

    /// Does it matter for which slot a connection is?
    fn by_slot(&self) -> bool {
        false
    }

    /// The address where the data is now, if it can move; a connection that leads elsewhere leads
    /// astray.
    fn place(&self) -> Option<watch::Receiver<String>> {
        None
    }

    /// Returns the task that keeps `place` up to date.
    fn watch(self: Arc<Self>) -> Option<BoxFuture<'static, ()>> {
        None
    }
}

/// A fresh connection and where it leads.
pub(crate) struct FreshConnection {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) address: String,
}

/// The kept connection. A cheap clone; the task ends with the last one.
#[derive(Clone)]
pub(crate) struct Link {
    state: watch::Receiver<LinkState>,
    reports: mpsc::Sender<LinkReport>,
    place: Option<watch::Receiver<String>>,
    patience: Duration,
    _task: Arc<AbortOnDropHandle<()>>,
}

#[derive(Clone)]
enum LinkState {
    Up(Up),
    Down { address: String, error: RedisError },
}

#[derive(Clone)]
struct Up {
    connection: MultiplexedConnection,
    address: Arc<str>,
    generation: u64,
}

/// Tells the task that something may be wrong.
#[derive(Clone, Copy, Debug)]
enum LinkReport {
    /// The connection is gone or leads to the wrong place.
    Broken(u64),
    /// No answer in time: the connection may be dead, or the server slow.
    Suspect(u64),
}

impl Link {
    /// Connects once and keeps the connection from then on.
    pub(crate) async fn open<C: Connector>(
        connector: Arc<C>,
        timeouts: Timeouts,
        clock: Clock,
    ) -> RedisResult<Self> {
        // Bounded; a report that finds no room is dropped, because then the task is about to look.
        let (reports, receiver) = mpsc::channel(64);
        let place = connector.place();
        let first = connect(connector.as_ref(), timeouts, &clock).await?;
        let up = Up { connection: first.connection, address: first.address.into(), generation: 0 };
        let (publish, state) = watch::channel(LinkState::Up(up.clone()));
        let watcher = Arc::clone(&connector).watch();
        let task = LinkTask {
            connector,
            timeouts,
            clock,
            publish,
            reports: receiver,
            place: place.clone(),
        };
        let task = tokio::spawn(async move {
            let keep = task.keep(up);
            match watcher {
                Some(watcher) => drop(tokio::join!(keep, watcher)),
                None => keep.await,
            }
        });
        Ok(Self {
            state,
            reports,
            place,
            patience: timeouts.patience,
            _task: Arc::new(AbortOnDropHandle::new(task)),
        })
    }

    /// Returns the address of the connection, and the reason if it is down.
    pub(crate) fn status(&self) -> (String, Option<String>) {
        match &*self.state.borrow() {
            LinkState::Up(up) => (up.address.to_string(), None),
            LinkState::Down { address, error } => (address.clone(), Some(error.to_string())),
        }
    }

    pub(crate) async fn command(&self, cmd: &redis::Cmd) -> RedisResult<Value> {
        let mut up = self.up().await?;
        let call = up.connection.req_packed_command(cmd);
        let result = while_there(&self.place, &up.address, call).await;
        match &result {
            Ok(Value::ServerError(error)) if error.code() == "READONLY" => {
                self.report(LinkReport::Broken(up.generation));
            }
            Ok(_) => {}
            Err(error) => self.look_at(error, up.generation),
        }
        result
    }

    pub(crate) async fn pipeline(
        &self,
        pipeline: &redis::Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let mut up = self.up().await?;
        let call = up.connection.req_packed_commands(pipeline, offset, count);
        let result = while_there(&self.place, &up.address, call).await;
        match &result {
            Ok(values) => {
                let read_only = |value: &Value| matches!(value, Value::ServerError(error) if error.code() == "READONLY");
                if values.iter().any(read_only) {
                    self.report(LinkReport::Broken(up.generation));
                }
            }
            Err(error) => self.look_at(error, up.generation),
        }
        result
    }

    /// The present connection, or the next one if it comes within the patience.
    async fn up(&self) -> RedisResult<Up> {
        if let LinkState::Up(up) = &*self.state.borrow() {
            return Ok(up.clone());
        }
        let mut state = self.state.clone();
        let waited = tokio::time::timeout(
            self.patience,
            state.wait_for(|state| matches!(state, LinkState::Up(_))),
        );
        match waited.await {
            Ok(Ok(state)) => match &*state {
                LinkState::Up(up) => return Ok(up.clone()),
                LinkState::Down { error, .. } => return Err(error::not_sent(error.to_string())),
            },
            Ok(Err(_)) => return Err(error::not_sent("the connection's task has ended")),
            Err(_) => {}
        }
        match &*self.state.borrow() {
            LinkState::Up(up) => Ok(up.clone()),
            LinkState::Down { error, .. } => Err(error::not_sent(error.to_string())),
        }
    }

    fn look_at(&self, error: &RedisError, generation: u64) {
        if error.code() == Some("READONLY") || error.is_unrecoverable_error() {
            self.report(LinkReport::Broken(generation));
        } else if error.is_io_error() {
            self.report(LinkReport::Suspect(generation));
        }
    }

    fn report(&self, report: LinkReport) {
        // A full channel means that the task is about to look anyway.
        let _ = self.reports.try_send(report);
    }
}

/// Waits for a call unless the data moves away from `address`: then what is answered there counts
/// no more.
pub(crate) async fn while_there<T>(
    place: &Option<watch::Receiver<String>>,
    address: &str,
    call: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    if place.is_none() {
        return call.await;
    }
    tokio::select! {
        // A move that is known by the time of the answer goes first.
        biased;
        () = moved_from(place, address) => {
            Err(error::timed_out("the data has moved to another server"))
        }
        result = call => result,
    }
}

/// Waits until the data is known to be elsewhere than at `address`.
pub(crate) async fn moved_from(place: &Option<watch::Receiver<String>>, address: &str) {
    if let Some(mut place) = place.clone()
        && place.wait_for(|place| place != address).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, error) = self.status();
        f.debug_struct("Link").field("address", &address).field("error", &error).finish()
    }
}

/// The task that keeps the connection.
struct LinkTask {
    connector: Arc<dyn Connector>,
    timeouts: Timeouts,
    clock: Clock,
    publish: watch::Sender<LinkState>,
    reports: mpsc::Receiver<LinkReport>,
    place: Option<watch::Receiver<String>>,
}

impl LinkTask {
    async fn keep(mut self, first: Up) {
        let mut up = first;
        loop {
            let error = self.until_broken(&mut up).await;
            tracing::warn!(address = %up.address, %error, "store connection lost");
            let (mut generation, address) = (up.generation, up.address.to_string());
            drop(up);
            self.publish.send_replace(LinkState::Down { address: address.clone(), error });
            let (mut attempt, mut tried) = (0, address.clone());
            up = loop {
                tokio::select! {
                    () = tokio::time::sleep(backoff(attempt, fastrand::f64())) => {}
                    // News of where the data is now: no reason to wait.
                    () = moved_from(&self.place, &tried) => {}
                }
                if let Some(place) = &self.place {
                    tried.clone_from(&place.borrow());
                }
                match connect(self.connector.as_ref(), self.timeouts, &self.clock).await {
                    Ok(connected) => {
                        generation += 1;
                        let FreshConnection { connection, address } = connected;
                        break Up { connection, address: address.into(), generation };
                    }
                    Err(error) => {
                        tracing::debug!(%address, %error, attempt, "store still unavailable");
                        self.publish
                            .send_replace(LinkState::Down { address: address.clone(), error });
                        attempt = attempt.saturating_add(1);
                    }
                }
            };
            tracing::info!(address = %up.address, attempt, "store connection restored");
            self.publish.send_replace(LinkState::Up(up.clone()));
        }
    }

    /// Waits until the connection is of no more use, and says why.
    async fn until_broken(&mut self, up: &mut Up) -> RedisError {
        let (place, address) = (self.place.clone(), up.address.clone());
        tokio::select! {
            () = moved_from(&place, &address) => {
                error::not_sent("the data has moved to another server")
            }
            error = self.until_dead(up) => error,
        }
    }

    /// Waits until the connection is dead, and says of what.
    async fn until_dead(&mut self, up: &mut Up) -> RedisError {
        loop {
            match tokio::time::timeout(self.timeouts.heartbeat, self.reports.recv()).await {
                Ok(Some(LinkReport::Broken(generation))) if generation == up.generation => {
                    return error::not_sent("the connection was closed or refused a write");
                }
                Ok(Some(LinkReport::Broken(_))) => {}
                Ok(Some(LinkReport::Suspect(generation))) if generation != up.generation => {}
                // Suspected, or a heartbeat has passed: ask, which also sets the clock.
                Ok(Some(LinkReport::Suspect(_))) | Err(_) => {
                    if let Err(error) = probe(&mut up.connection, &self.clock).await {
                        return error;
                    }
                }
                Ok(None) => std::future::pending().await,
            }
        }
    }
}

async fn connect(
    connector: &dyn Connector,
    timeouts: Timeouts,
    clock: &Clock,
) -> RedisResult<FreshConnection> {
    // The connector has deadlines for its steps; this one is for their sum.
    let deadline = timeouts.connect * 4;
    match tokio::time::timeout(deadline, connector.connect(server::calls(timeouts), None)).await {
        Ok(Ok(mut connected)) => {
            if clock.follows_server() {
                probe(&mut connected.connection, clock).await?;
            }
            Ok(connected)
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Err(error::timed_out("connecting took too long")),
    }
}

/// Asks the server for its time: proves that it answers, and sets a clock that follows it.
async fn probe(connection: &mut MultiplexedConnection, clock: &Clock) -> RedisResult<()> {
    let asked = Instant::now();
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(connection).await?;
    clock.measured(Millis(seconds.saturating_mul(1_000).saturating_add(micros / 1_000)), asked);
    Ok(())
}

/// The pause before attempt number `attempt`: at once at first, then doubling from 50 ms to 1 s,
/// with the upper half of it left to chance (`0.0..1.0`) so that many clients do not come back in
/// step.
pub(crate) fn backoff(attempt: u32, chance: f64) -> Duration {
    const DELAY_MIN: Duration = Duration::from_millis(50);
    const DELAY_MAX: Duration = Duration::from_secs(1);
    if attempt == 0 {
        return DELAY_MIN.mul_f64(chance.clamp(0.0, 1.0) / 5.0);
    }
    let whole = DELAY_MIN.saturating_mul(1 << (attempt - 1).min(16)).min(DELAY_MAX);
    whole / 2 + (whole / 2).mul_f64(chance.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_to_a_bound_and_keeps_half_of_it_at_least() {
        assert!(backoff(0, 1.0) <= Duration::from_millis(10));
        assert_eq!(backoff(1, 0.0), Duration::from_millis(25));
        assert_eq!(backoff(1, 1.0), Duration::from_millis(50));
        for attempt in [7, 40, u32::MAX] {
            assert_eq!(backoff(attempt, 0.0), Duration::from_millis(500));
            assert_eq!(backoff(attempt, 1.0), Duration::from_secs(1));
        }
    }
}
