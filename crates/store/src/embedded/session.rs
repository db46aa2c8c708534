//! Sessions on the built-in store: for blocking calls, and for subscriptions.

use std::time::Duration;

use engine::{CommandOutcome, Reply, SessionId};
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Value};
use tokio::sync::mpsc;

use super::{
    Commit, Delivery, DeliveryTarget, Embedded, LockedBatch,
    busy::LOCK_TIMEOUT,
    commit::CommitHandle,
    transaction,
    value::{Argv, reply_value},
};
use crate::subscribe::Publisher;

/// A session that ends when this is dropped.
pub(crate) struct OwnSession {
    embedded: Embedded,
    id: SessionId,
}

impl OwnSession {
    async fn open(embedded: &Embedded, target: DeliveryTarget) -> RedisResult<Self> {
        let mut batch = embedded.enter().await.map_err(told)?;
        let id = batch.open(target);
        drop(batch.commit());
        Ok(Self { embedded: embedded.clone(), id })
    }

    /// A session that only listens. Deliveries go to the publisher from now on.
    pub(crate) async fn listen(
        embedded: &Embedded,
        publisher: Publisher,
        channels: &[&str],
        patterns: &[&str],
    ) -> RedisResult<Self> {
        let own = Self::open(embedded, DeliveryTarget::Publisher(publisher)).await?;
        let mut batch = embedded.enter().await.map_err(told)?;
        for (command, names) in [("SUBSCRIBE", channels), ("PSUBSCRIBE", patterns)] {
            if !names.is_empty() {
                let argv: Vec<&[u8]> =
                    [command].iter().chain(names).map(|name| name.as_bytes()).collect();
                if let CommandOutcome::Reply(reply) = batch.execute(own.id, &argv) {
                    reply_value(reply).extract_error()?;
                }
            }
        }
        drop(batch.commit());
        Ok(own)
    }
}

impl Drop for OwnSession {
    fn drop(&mut self) {
        // A script that takes long is not waited for: it waits for nothing, so there is time.
        let Some(mut batch) = self.embedded.shared.try_batch_for(LOCK_TIMEOUT) else {
            self.embedded.shared.leaving.lock().push(self.id);
            return;
        };
        batch.disconnect(self.id);
        drop(batch.commit());
    }
}

/// An error of the engine as redis-rs's.
fn told(error: engine::Error) -> RedisError {
    match reply_value(Reply::Error(error)).extract_error() {
        Err(error) => error,
        Ok(_) => RedisError::from((ErrorKind::Client, "the store is busy")),
    }
}

/// A session whose calls may block.
pub(crate) struct BlockingSession {
    own: OwnSession,
    receiver: mpsc::Receiver<Delivery>,
}

impl BlockingSession {
    pub(crate) async fn open(embedded: &Embedded) -> RedisResult<Self> {
        // A call waits for one reply, and nothing else is sent to such a session.
        let (sender, receiver) = mpsc::channel(1);
        Ok(Self {
            own: OwnSession::open(embedded, DeliveryTarget::Channel(sender)).await?,
            receiver,
        })
    }

    pub(crate) async fn command(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        let argv = Argv::of(cmd);
        let id = self.own.id;
        let (outcome, commit) = {
            let embedded = &self.own.embedded;
            let mut batch = match embedded.enter().await {
                Ok(batch) => batch,
                Err(busy) => {
                    return Ok(reply_value(argv.with(|argv| embedded.refused(argv, &busy))));
                }
            };
            let outcome = argv.with(|argv| batch.execute(id, argv));
            (outcome, batch.commit_shared())
        };
        let reply = match outcome {
            CommandOutcome::Reply(reply) => commit.settle(&self.own.embedded, reply).await,
            CommandOutcome::Blocked { deadline_ms } => {
                drop(commit);
                self.wait(deadline_ms).await
            }
        };
        Ok(reply_value(reply))
    }

    pub(crate) async fn pipeline(
        &mut self,
        pipeline: &Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        if pipeline.is_transaction() {
            let (reply, commit) = match self.own.embedded.enter().await {
                Ok(mut batch) => {
                    let reply = transaction(&mut batch, self.own.id, pipeline);
                    (reply, batch.commit_shared())
                }
                Err(busy) => (Reply::Error(busy), CommitHandle::Ended(Commit::Done)),
            };
            let reply = commit.settle(&self.own.embedded, reply).await;
            return Ok(vec![reply_value(reply).extract_error()?]);
        }
        let mut values = Vec::with_capacity(count);
        for cmd in pipeline.cmd_iter().skip(offset).take(count) {
            values.push(self.command(cmd).await?);
        }
        Ok(values)
    }

    /// Waits for the reply to a blocked call, until its deadline. If the caller goes away first,
    /// the engine's wait is cancelled, so that no element is lost.
    async fn wait(&mut self, deadline_ms: Option<i64>) -> Reply {
        let giving_up = GiveUp { own: &self.own };
        let delivery = match deadline_ms {
            None => self.receiver.recv().await,
            Some(deadline_ms) => {
                let left = deadline_ms.saturating_sub(self.own.embedded.shared.clock.now().0);
                let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
                match tokio::time::timeout(left, self.receiver.recv()).await {
                    Ok(delivery) => delivery,
                    Err(_) => {
                        // Still blocked: this is the answer. Not any more: it is on its way.
                        match giving_up.in_time().await {
                            Some(reply) => return reply,
                            None => self.receiver.recv().await,
                        }
                    }
                }
            }
        };
        std::mem::forget(giving_up);
        delivery.map_or(Reply::Nil, |delivery| delivery.reply)
    }
}

/// Ends the waiting of a session when dropped.
struct GiveUp<'a> {
    own: &'a OwnSession,
}

impl GiveUp<'_> {
    async fn in_time(&self) -> Option<Reply> {
        self.end(self.own.embedded.enter_at_last().await)
    }

    fn end(&self, mut batch: LockedBatch<'_>) -> Option<Reply> {
        let reply = batch.timed_out(self.own.id);
        drop(batch.commit());
        reply
    }
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        self.end(self.own.embedded.batch());
    }
}
