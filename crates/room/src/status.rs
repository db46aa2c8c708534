//! The status of a position, and the heartbeat that keeps it.
//!
//! Many visitors call both at the same time; concurrent calls for one queue go to the store as one
//! batch (see [`store::batcher`]).

use std::{net::IpAddr, sync::Arc, time::Duration};

use serde_json::{Map, Value};
use store::{Millis, batcher::Batchable, redis};

use crate::{
    BatchContext, Duplicates, EndReason, Error, NoEstimate, Position, PositionId, PositionState,
    QueueId, QueueStatus, Room, SessionId, VisitorPriority,
    estimate::{estimate, next_poll},
    reply::{Reply, ReplyReader},
    scripts,
    snapshot::QueueSnapshot,
};

impl Room {
    /// Returns the status of a position. Reads only: extends nothing, admits nobody.
    pub async fn status(&self, queue: &QueueId, id: &PositionId) -> Result<Position, Error> {
        let context = self.batch_context(queue);
        let (shared, reply) = context.cache.status_batcher.call(&context, StatusCall(*id)).await?;
        build_position(queue, id, None, &shared, reply)
    }

    /// Records a heartbeat, which holds the position for another while, and returns its status. A
    /// position that ended stays ended. `priority` comes from the visitor's token and `address` from the
    /// connection; both are optional. A given priority is trusted and the record is then not read, so the
    /// answer has no ticket; the token has it as well.
    pub async fn heartbeat(
        &self,
        queue: &QueueId,
        id: &PositionId,
        priority: Option<VisitorPriority>,
        address: Option<IpAddr>,
    ) -> Result<Position, Error> {
        let context = self.batch_context(queue);
        // Without a priority, or if the id's time is not exact, the script reads the record.
        let priority = priority.filter(|_| id.is_exact());
        let call = HeartbeatCall { id: *id, priority, address };
        let (shared, reply) = context.cache.heartbeat_batcher.call(&context, call).await?;
        build_position(queue, id, priority, &shared, reply)
    }

    /// Refreshes many positions of one queue in a few calls. Returns the indexes of those that no longer
    /// wait; they are left unchanged, and [`Room::status`] tells what became of them.
    pub async fn refresh_positions(
        &self,
        queue: &QueueId,
        positions: &mut [Position],
    ) -> Result<Vec<usize>, Error> {
        let snapshot = self.snapshot(queue).await?;
        let keys = self.queue_cache(queue);
        let mut gone = Vec::new();
        for (chunk, batch) in positions.chunks_mut(READ_BATCH).enumerate() {
            let reply = scripts::read_positions::run(
                &self.0.store,
                scripts::read_positions::Keys {
                    meta: &keys.meta,
                    state: &keys.state,
                    positions: &keys.positions,
                },
                scripts::read_positions::Args {
                    now_ms: self.now(),
                    ids: batch.iter().map(|position| position.id.to_string()),
                },
            )
            .await?;
            let reply = Reply::of(scripts::read_positions::SCRIPT, reply)?;
            let queue_status = QueueStatus::read(reply.text(1));
            let message = read_message(reply.text(2));
            let waiting = reply.number(3)?;
            for (index, position) in batch.iter_mut().enumerate() {
                let Some(number) = reply.maybe(4 + index)? else {
                    gone.push(chunk * READ_BATCH + index);
                    continue;
                };
                position.state = PositionState::Waiting;
                position.number = Some(number);
                position.waiting = waiting;
                position.queue_status = queue_status;
                position.message.clone_from(&message);
                position.estimate = match queue_status {
                    QueueStatus::Active => estimate(number, &snapshot),
                    _ => Err(NoEstimate::Paused),
                };
                position.next_poll = next_poll(&position.estimate, &snapshot);
            }
        }
        Ok(gone)
    }
}

/// A status request of one visitor.
#[derive(Debug)]
pub(crate) struct StatusCall(PositionId);

impl Batchable for StatusCall {
    type Context = BatchContext;
    type Answer = (Arc<BatchStatus>, PositionReply);
    type Error = Error;

    async fn send_batch(
        BatchContext { room, cache }: &BatchContext,
        calls: &[Self],
    ) -> Result<Vec<Self::Answer>, Error> {
        let now = room.now();
        let reply = scripts::status::run(
            &room.0.store,
            scripts::status::Keys {
                meta: &cache.meta,
                state: &cache.state,
                positions: &cache.positions,
                admitted: &cache.admitted,
                records: calls.iter().map(|StatusCall(id)| cache.position(id)),
            },
            scripts::status::Args { now_ms: now },
        )
        .await?;
        let reply = ReplyReader::of(scripts::status::SCRIPT, reply)?;
        read_replies(reply, calls.len(), room.snapshot(&cache.queue).await?, now)
    }

    fn should_retry_individually(error: &Error) -> bool {
        error.is_of_script()
    }
}

/// A heartbeat of one visitor.
#[derive(Debug)]
pub(crate) struct HeartbeatCall {
    id: PositionId,
    priority: Option<VisitorPriority>,
    address: Option<IpAddr>,
}

impl Batchable for HeartbeatCall {
    type Context = BatchContext;
    type Answer = (Arc<BatchStatus>, PositionReply);
    type Error = Error;

    async fn send_batch(
        BatchContext { room, cache }: &BatchContext,
        calls: &[Self],
    ) -> Result<Vec<Self::Answer>, Error> {
        let snapshot = room.snapshot(&cache.queue).await?;
        let mut records = Vec::with_capacity(calls.len() * 2);
        records.extend(calls.iter().map(|call| cache.position(&call.id)));
        if snapshot.config.duplicates == Duplicates::Ip {
            for call in calls {
                let Room(inner) = room;
                let hash = match call.address {
                    Some(ip) => inner.addresses.hash(&inner.store, &inner.keys, ip).await?,
                    None => "-".to_owned(),
                };
                records.push(cache.ipmap(&hash));
            }
        }
        let priority = |call: &HeartbeatCall| {
            call.priority.map_or('-', |priority| char::from(b'0' + priority.number()))
        };
        let now = room.now();
        let reply = scripts::heartbeat::run(
            &room.0.store,
            scripts::heartbeat::Keys {
                meta: &cache.meta,
                state: &cache.state,
                positions: &cache.positions,
                admitted: &cache.admitted,
                heartbeat: &cache.heartbeat,
                records,
            },
            scripts::heartbeat::Args {
                now_ms: now,
                queue_id: cache.queue.as_str(),
                priorities: calls.iter().map(priority).collect::<String>(),
            },
        )
        .await?;
        read_replies(
            ReplyReader::of(scripts::heartbeat::SCRIPT, reply)?,
            calls.len(),
            snapshot,
            now,
        )
    }

    fn should_retry_individually(error: &Error) -> bool {
        error.is_of_script()
    }
}

/// Positions read in one call: a fraction of a millisecond for the store.
const READ_BATCH: usize = 250;

fn read_message(text: &str) -> Map<String, Value> {
    match text {
        "" => Map::new(),
        text => serde_json::from_str(text).unwrap_or_default(),
    }
}

/// The part of a batch's reply that all its callers share.
#[derive(Debug)]
pub(crate) struct BatchStatus {
    now: Millis,
    snapshot: Arc<QueueSnapshot>,
    status: QueueStatus,
    message: Map<String, Value>,
    waiting: u64,
    epoch: u32,
}

/// The reply about one position, as the headers of `status.lua` and `heartbeat.lua` list it.
#[derive(Debug)]
pub(crate) enum PositionReply {
    Unknown,
    /// Its position; the rest is cache.
    Number(u64),
    Waiting {
        number: u64,
        priority: VisitorPriority,
        enqueued_s: Option<i64>,
        seen_s: Option<i64>,
        ticket: Option<u64>,
    },
    Other {
        state: PositionState,
        reason: Option<EndReason>,
        session: Option<SessionId>,
        priority: VisitorPriority,
        enqueued_s: Option<i64>,
        start_by: Option<Millis>,
        replaced_by: Option<PositionId>,
        seen_s: Option<i64>,
        ended_s: Option<i64>,
        ticket: Option<u64>,
    },
}

/// Reads the reply of `status.lua` or `heartbeat.lua`.
fn read_replies(
    mut reply: ReplyReader,
    count: usize,
    snapshot: Arc<QueueSnapshot>,
    now: Millis,
) -> Result<Vec<(Arc<BatchStatus>, PositionReply)>, Error> {
    reply.word("positions")?;
    let shared = Arc::new(BatchStatus {
        now,
        snapshot,
        status: QueueStatus::read(&reply.text()?),
        message: read_message(&reply.text()?),
        waiting: reply.number()?,
        epoch: reply.number()?,
    });
    (0..count).map(|_| Ok((Arc::clone(&shared), read_position_reply(&mut reply)?))).collect()
}

fn read_position_reply(reply: &mut ReplyReader) -> Result<PositionReply, Error> {
    let first = match reply.next()? {
        redis::Value::Int(number) => {
            return Ok(PositionReply::Number(u64::try_from(number).unwrap_or(0)));
        }
        value => reply.text_of(value)?,
    };
    if let Ok(number) = first.parse() {
        return Ok(PositionReply::Number(number));
    }
    Ok(match first.as_str() {
        "unknown" => PositionReply::Unknown,
        "waiting" => PositionReply::Waiting {
            number: reply.number()?,
            priority: VisitorPriority::parse(reply.number()?)?,
            enqueued_s: reply.maybe()?,
            seen_s: reply.maybe()?,
            ticket: reply.maybe()?,
        },
        status => {
            let reason = EndReason::read(&reply.text()?);
            PositionReply::Other {
                state: PositionState::read(status, reason)
                    .ok_or_else(|| reply.unexpected(status))?,
                reason,
                session: match reply.text()?.as_str() {
                    "" => None,
                    text => Some(SessionId::parse(text)?),
                },
                priority: VisitorPriority::parse(reply.number()?)?,
                enqueued_s: reply.maybe()?,
                start_by: reply.maybe()?.map(Millis),
                replaced_by: match reply.text()?.as_str() {
                    "" => None,
                    text => Some(PositionId::parse(text)?),
                },
                seen_s: reply.maybe()?,
                ended_s: reply.maybe()?,
                ticket: reply.maybe()?,
            }
        }
    })
}

/// Builds a position from a reply; `priority` is the caller's, if it gave one.
fn build_position(
    queue: &QueueId,
    id: &PositionId,
    priority: Option<VisitorPriority>,
    shared: &BatchStatus,
    reply: PositionReply,
) -> Result<Position, Error> {
    let snapshot = &shared.snapshot;
    let enqueued_ms = i64::try_from(id.enqueued_us() / 1000).unwrap_or(i64::MAX);
    let mut position = Position {
        id: *id,
        queue: queue.clone(),
        state: PositionState::Waiting,
        reason: None,
        ended: None,
        priority: priority.unwrap_or_default(),
        ticket: None,
        enqueued_at: Millis(enqueued_ms),
        number: None,
        waiting: shared.waiting,
        start_by: None,
        session: None,
        replaced_by: None,
        last_heartbeat: None,
        expires_at: None,
        held_for: snapshot.config.heartbeat_timeout(),
        next_poll: Duration::ZERO,
        estimate: Err(NoEstimate::NotWaiting),
        queue_status: shared.status,
        message: shared.message.clone(),
        epoch: shared.epoch,
    };
    let (enqueued, heard) = match reply {
        PositionReply::Unknown => return Err(Error::UnknownPosition),
        PositionReply::Number(number) => {
            position.number = Some(number);
            (None, Some(shared.now.as_secs()))
        }
        PositionReply::Waiting { number, priority, enqueued_s, seen_s, ticket } => {
            position.number = Some(number);
            position.ticket = ticket;
            position.priority = priority;
            (enqueued_s, seen_s)
        }
        PositionReply::Other {
            state,
            reason,
            session,
            priority,
            enqueued_s,
            start_by,
            replaced_by,
            seen_s,
            ended_s,
            ticket,
        } => {
            position.state = state;
            position.ticket = ticket;
            position.reason = reason;
            position.session = session;
            position.priority = priority;
            // Clocks stand still while the queue is not active, and everybody has the whole admission
            // window again afterwards: a deadline that has passed while the admission stands is void.
            let running = shared.status == QueueStatus::Active;
            position.start_by = start_by.filter(|by| running && *by > shared.now);
            position.replaced_by = replaced_by;
            position.ended = ended_s.filter(|_| state.is_over()).map(|s| Millis(s * 1000));
            (enqueued_s, seen_s)
        }
    };
    // The id has the time in milliseconds, the record in seconds. They agree unless the id is marked
    // inexact.
    if let Some(s) = enqueued.filter(|s| !id.is_exact() && enqueued_ms.div_euclid(1000) != *s) {
        position.enqueued_at = Millis(s * 1000);
    }
    position.last_heartbeat = heard.map(|s| Millis(s * 1000));
    if let Some(number) = position.number {
        if shared.status == QueueStatus::Active {
            position.estimate = estimate(number, snapshot);
            position.expires_at = position.last_heartbeat.map(|heard| {
                (heard + Duration::from_secs(1)).max(snapshot.floor) + position.held_for
            });
        } else {
            position.estimate = Err(NoEstimate::Paused);
        }
    }
    position.next_poll = next_poll(&position.estimate, snapshot);
    Ok(position)
}
