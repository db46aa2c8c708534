//! The built-in store: the engine behind one lock, called directly.
//!
//! [`Embedded`] is a cheap clone over one engine. Every call goes through a [`Batch`]: take the
//! lock, run commands, commit, release, and only then hand out replies and wake others. Invariant:
//! nobody learns of a change, be it by a reply, a message or an unblocked call, before the change
//! is where its mode of durability wants it.
//!
//! Read in this order: [`Embedded`], [`Batch`], `embedded/value.rs` (redis-rs's commands and values
//! on one side, the engine's on the other), `embedded/keeper.rs` (the thread that sweeps).

mod keeper;
mod session;
mod value;

use std::{collections::HashMap, fmt, sync::Arc};

use engine::{Config, Engine, Now};
pub use engine::{Outcome, Reply, SessionId};
use parking_lot::{Mutex, MutexGuard};
use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::sync::mpsc;

pub(crate) use self::session::{Own, Waiting};
use self::{
    keeper::Keeper,
    value::{Argv, reply_value},
};
use crate::{
    Clock, Error, Options,
    subscribe::{Message, Publisher},
};

/// How many expired keys are taken out under one lock, so that callers wait for it 100 µs at most.
const SWEEP_BATCH: usize = 200;

/// The built-in store. A cheap clone; its thread ends with the last one.
#[derive(Clone)]
pub struct Embedded {
    shared: Arc<Shared>,
    _keeper: Arc<Keeper>,
}

/// What all clones and the keeper share.
struct Shared {
    state: Mutex<State>,
    clock: Clock,
}

/// What the lock guards.
struct State {
    engine: Engine,
    /// The session of everything that goes through [`crate::Store`] itself.
    common: SessionId,
    outlets: HashMap<SessionId, Outlet>,
}

/// What one command caused for a session that did not ask for it just then.
#[derive(Debug)]
pub struct Delivery {
    /// Whose it is.
    pub session: SessionId,
    /// The reply to a call that was blocked, or a pushed message.
    pub reply: Reply,
}

/// Where a session's deliveries go. Must not call back into the store.
#[derive(Debug)]
enum Outlet {
    /// To somebody who waits for one at a time, so that one place is enough.
    Channel(mpsc::Sender<Delivery>),
    /// To a subscription.
    Publisher(Publisher),
}

impl Outlet {
    fn deliver(&self, delivery: Delivery) {
        match self {
            // Full or closed: whoever waited has gone.
            Self::Channel(sender) => drop(sender.try_send(delivery)),
            Self::Publisher(publisher) => {
                if let Some(message) = published(delivery.reply) {
                    publisher.deliver(message);
                }
            }
        }
    }
}

/// The message in a push; none in the confirmation of a subscription.
fn published(reply: Reply) -> Option<Message> {
    let (Reply::Push(items) | Reply::Array(items)) = reply else { return None };
    let mut items = items.into_iter().map(|item| match item {
        Reply::Bulk(bytes) => bytes,
        _ => Vec::new(),
    });
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let pattern = match items.next()?.as_slice() {
        b"message" => None,
        b"pmessage" => Some(text(items.next()?)),
        _ => return None,
    };
    let channel = text(items.next()?);
    Some(Message::Published { channel, pattern, payload: items.next()?.into() })
}

impl Embedded {
    /// Opens `embedded:`, in memory only.
    pub(crate) fn open(url: &str, options: &Options, clock: Clock) -> Result<Self, Error> {
        match url.strip_prefix("embedded:") {
            Some("") => Self::in_memory(options, clock)
                .map_err(|error| Error::invalid(format!("cannot start the store: {error}"))),
            _ => Err(Error::invalid("embedded: with a folder is not part of this build yet")),
        }
    }

    /// A store in memory only.
    fn in_memory(options: &Options, clock: Clock) -> std::io::Result<Self> {
        let mut config = Config::default();
        config.seed = fastrand::u64(..);
        config.maxmemory = options.maxmemory.unwrap_or(0);
        config.strict_scripts = options.strict_scripts;
        let mut engine = Engine::new(config);
        let common = engine.connect("store");
        let state = State { engine, common, outlets: HashMap::new() };
        let shared = Arc::new(Shared { state: Mutex::new(state), clock });
        let keeper = Keeper::start(Arc::clone(&shared))?;
        Ok(Self { shared, _keeper: Arc::new(keeper) })
    }

    /// Runs one command of a caller that shares the common session.
    pub(crate) async fn command(&self, cmd: &Cmd) -> RedisResult<Value> {
        let argv = Argv::of(cmd);
        let (outcome, commit) = {
            let mut batch = self.batch();
            let common = batch.common();
            let outcome = argv.with(|argv| batch.execute(common, argv));
            (outcome, batch.commit())
        };
        Ok(reply_value(commit.settle(settled(outcome)).await))
    }

    /// Runs a pipeline under one lock.
    pub(crate) async fn pipeline(
        &self,
        pipeline: &Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        if pipeline.is_transaction() {
            let (reply, commit) = {
                let mut batch = self.batch();
                let common = batch.common();
                let reply = transaction(&mut batch, common, pipeline);
                (reply, batch.commit())
            };
            return Ok(vec![reply_value(commit.settle(reply).await).extract_error()?]);
        }
        let (replies, commit) = {
            let mut batch = self.batch();
            let common = batch.common();
            let mut replies = Vec::with_capacity(count);
            for cmd in pipeline.cmd_iter().skip(offset).take(count) {
                let outcome = Argv::of(cmd).with(|argv| batch.execute(common, argv));
                replies.push(settled(outcome));
            }
            (replies, batch.commit())
        };
        Ok(commit.settle_all(replies).await.into_iter().map(reply_value).collect())
    }

    /// Where the data is, and what is wrong with the store if something is.
    pub(crate) fn status(&self) -> (String, Option<String>) {
        ("memory".to_owned(), None)
    }

    /// Takes the lock for a number of commands.
    pub fn batch(&self) -> Batch<'_> {
        self.shared.batch()
    }
}

impl Shared {
    fn batch(&self) -> Batch<'_> {
        let now = Now::from_millis(self.clock.now().0);
        Batch { state: self.state.lock(), now, deliveries: Vec::new() }
    }

    /// Takes out keys that are past their deadline, a bounded number of them.
    fn sweep(&self) {
        loop {
            let mut batch = self.batch();
            let now = batch.now;
            let swept = batch.state.engine.sweep(now, SWEEP_BATCH);
            batch.gather();
            drop(batch.commit());
            if swept < SWEEP_BATCH {
                break;
            }
        }
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").finish_non_exhaustive()
    }
}

/// Only a session of its own may wait; on the common one `fit_to_share` lets nothing through that
/// does.
fn settled(outcome: Outcome) -> Reply {
    match outcome {
        Outcome::Reply(reply) => reply,
        Outcome::Blocked { .. } => Reply::Nil,
    }
}

/// Runs a pipeline as one transaction. What was wrong with a command says more than that the
/// transaction was discarded, so the first such error is the answer.
fn transaction(batch: &mut Batch<'_>, session: SessionId, pipeline: &Pipeline) -> Reply {
    let mut refused = None;
    batch.execute(session, &[b"MULTI"]);
    for cmd in pipeline.cmd_iter() {
        let outcome = Argv::of(cmd).with(|argv| batch.execute(session, argv));
        if let Outcome::Reply(Reply::Error(error)) = outcome {
            refused.get_or_insert(error);
        }
    }
    let reply = settled(batch.execute(session, &[b"EXEC"]));
    refused.map_or(reply, Reply::Error)
}

/// The lock, held for a number of commands.
pub struct Batch<'a> {
    state: MutexGuard<'a, State>,
    now: Now,
    deliveries: Vec<Delivery>,
}

impl Batch<'_> {
    fn common(&self) -> SessionId {
        self.state.common
    }

    /// Runs one command.
    pub fn execute(&mut self, session: SessionId, argv: &[&[u8]]) -> Outcome {
        let outcome = self.state.engine.execute(self.now, session, argv);
        self.gather();
        outcome
    }

    /// Takes what the engine wants delivered.
    fn gather(&mut self) {
        let output = self.state.engine.take_output();
        self.deliveries.extend(
            output.deliveries.into_iter().map(|(session, reply)| Delivery { session, reply }),
        );
    }

    fn connect(&mut self, address: &str, outlet: Outlet) -> SessionId {
        let id = self.state.engine.connect(address);
        self.state.outlets.insert(id, outlet);
        id
    }

    /// Ends a session.
    pub fn disconnect(&mut self, session: SessionId) {
        self.state.engine.disconnect(session);
        self.state.outlets.remove(&session);
        self.gather();
    }

    /// Ends a session's waiting: what to answer, or nothing if the reply is on its way already.
    pub fn timed_out(&mut self, session: SessionId) -> Option<Reply> {
        let reply = self.state.engine.timed_out(self.now, session);
        self.gather();
        reply
    }

    /// Ends the batch: delivers and releases the lock. What was executed may be told to clients
    /// once the commit says so.
    #[must_use = "replies may be handed out only through it"]
    pub fn commit(mut self) -> Commit {
        // Outlets never wait, so they may be used under the lock, which keeps deliveries in order.
        for delivery in std::mem::take(&mut self.deliveries) {
            if let Some(outlet) = self.state.outlets.get(&delivery.session) {
                outlet.deliver(delivery);
            }
        }
        Commit {}
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("now", &self.now).finish_non_exhaustive()
    }
}

/// Says when the replies of a batch may be handed out.
#[derive(Debug)]
pub struct Commit {}

impl Commit {
    /// The reply once it may be told.
    async fn settle(self, reply: Reply) -> Reply {
        reply
    }

    /// The replies once they may be told.
    async fn settle_all(self, replies: Vec<Reply>) -> Vec<Reply> {
        replies
    }
}

impl Delivery {
    /// The reply once it may be told.
    async fn settle(self, _embedded: &Embedded) -> Reply {
        self.reply
    }
}
