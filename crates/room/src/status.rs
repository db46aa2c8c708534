//! Where a place stands, and the sign of life that keeps it.
//!
//! Both are asked by many visitors at the same time; those of one queue are asked of the store
//! together, as [`store::gather`] says.

use std::{net::IpAddr, sync::Arc, time::Duration};

use serde_json::{Map, Value};
use store::{Millis, gather::Call, redis};

use crate::{
    Duplicates, Error, Here, Level, NoEstimate, Place, PositionId, QueueId, QueueStatus, Reason,
    Room, SessionId, State,
    estimate::{estimate, next_poll},
    pulse::Pulse,
    reply::{Reply, Values},
    scripts,
};

impl Room {
    /// Where a place stands. Reads only: extends nothing, admits nobody.
    pub async fn status(&self, queue: &QueueId, id: &PositionId) -> Result<Place, Error> {
        let here = self.here(queue);
        let (seen, told) = here.known.asks.call(&here, Ask(*id)).await?;
        place(queue, id, None, &seen, told)
    }

    /// A sign of life: the place is held for another while. Says where it stands. A place that
    /// ended stays ended. `level` is what the visitor's token says and `address` where the call
    /// comes from; both may be left out. A level that is given is believed, and the record is then not
    /// read: the answer has no ticket, which the token has as well.
    pub async fn heartbeat(
        &self,
        queue: &QueueId,
        id: &PositionId,
        level: Option<Level>,
        address: Option<IpAddr>,
    ) -> Result<Place, Error> {
        let here = self.here(queue);
        // Without them the store reads the record, which has both.
        let level = level.filter(|_| id.is_exact());
        let beat = Beat { id: *id, level, address };
        let (seen, told) = here.known.beats.call(&here, beat).await?;
        place(queue, id, level, &seen, told)
    }

    /// Brings many places of one queue up to date in a few looks, whatever their number. Says
    /// which of them, by index, wait no longer; those are left as they were, for
    /// [`Room::status`] to ask about.
    pub async fn look_at(
        &self,
        queue: &QueueId,
        places: &mut [Place],
    ) -> Result<Vec<usize>, Error> {
        let pulse = self.pulse(queue).await?;
        let keys = self.known(queue);
        let mut gone = Vec::new();
        for (chunk, batch) in places.chunks_mut(LOOK).enumerate() {
            let reply = scripts::look::run(
                &self.0.store,
                scripts::look::Keys {
                    meta: &keys.meta,
                    state: &keys.state,
                    positions: &keys.positions,
                },
                scripts::look::Args {
                    now_ms: self.now(),
                    ids: batch.iter().map(|place| place.id.to_string()),
                },
            )
            .await?;
            let reply = Reply::of(scripts::look::SCRIPT, reply)?;
            let queue_status = QueueStatus::read(reply.text(1));
            let message = read_message(reply.text(2));
            let waiting = reply.number(3)?;
            for (index, place) in batch.iter_mut().enumerate() {
                let Some(position) = reply.maybe(4 + index)? else {
                    gone.push(chunk * LOOK + index);
                    continue;
                };
                place.state = State::Waiting;
                place.position = Some(position);
                place.waiting = waiting;
                place.queue_status = queue_status;
                place.message.clone_from(&message);
                place.estimate = match queue_status {
                    QueueStatus::Active => estimate(position, &pulse),
                    _ => Err(NoEstimate::Paused),
                };
                place.next_poll = next_poll(&place.estimate, &pulse);
            }
        }
        Ok(gone)
    }
}

/// Asks where a place stands.
#[derive(Debug)]
pub(crate) struct Ask(PositionId);

impl Call for Ask {
    type With = Here;
    type Answer = (Arc<Seen>, Told);
    type Error = Error;

    async fn make(Here { room, known }: &Here, calls: &[Self]) -> Result<Vec<Self::Answer>, Error> {
        let now = room.now();
        let reply = scripts::status::run(
            &room.0.store,
            scripts::status::Keys {
                meta: &known.meta,
                state: &known.state,
                positions: &known.positions,
                claims: &known.claims,
                places: calls.iter().map(|Ask(id)| known.position(id)),
            },
            scripts::status::Args { now_ms: now },
        )
        .await?;
        let reply = Values::of(scripts::status::SCRIPT, reply)?;
        answers(reply, calls.len(), room.pulse(&known.queue).await?, now)
    }

    fn is_spoilt(error: &Error) -> bool {
        error.is_of_script()
    }
}

/// A sign of life.
#[derive(Debug)]
pub(crate) struct Beat {
    id: PositionId,
    level: Option<Level>,
    address: Option<IpAddr>,
}

impl Call for Beat {
    type With = Here;
    type Answer = (Arc<Seen>, Told);
    type Error = Error;

    async fn make(Here { room, known }: &Here, calls: &[Self]) -> Result<Vec<Self::Answer>, Error> {
        let pulse = room.pulse(&known.queue).await?;
        let mut places = Vec::with_capacity(calls.len() * 2);
        places.extend(calls.iter().map(|call| known.position(&call.id)));
        if pulse.config.duplicates == Duplicates::Ip {
            for call in calls {
                let Room(inner) = room;
                let hash = match call.address {
                    Some(ip) => inner.addresses.hash(&inner.store, &inner.keys, ip).await?,
                    None => "-".to_owned(),
                };
                places.push(known.ipmap(&hash));
            }
        }
        let level = |call: &Beat| call.level.map_or('-', |level| char::from(b'0' + level.number()));
        let now = room.now();
        let reply = scripts::heartbeat::run(
            &room.0.store,
            scripts::heartbeat::Keys {
                meta: &known.meta,
                state: &known.state,
                positions: &known.positions,
                claims: &known.claims,
                heartbeat: &known.heartbeat,
                places,
            },
            scripts::heartbeat::Args {
                now_ms: now,
                queue_id: known.queue.as_str(),
                levels: calls.iter().map(level).collect::<String>(),
            },
        )
        .await?;
        answers(Values::of(scripts::heartbeat::SCRIPT, reply)?, calls.len(), pulse, now)
    }

    fn is_spoilt(error: &Error) -> bool {
        error.is_of_script()
    }
}

/// Places asked for in one look: a fraction of a millisecond for the store.
const LOOK: usize = 250;

fn read_message(text: &str) -> Map<String, Value> {
    match text {
        "" => Map::new(),
        text => serde_json::from_str(text).unwrap_or_default(),
    }
}

/// What was the same for all who asked together.
#[derive(Debug)]
pub(crate) struct Seen {
    now: Millis,
    pulse: Arc<Pulse>,
    status: QueueStatus,
    message: Map<String, Value>,
    waiting: u64,
    epoch: u32,
}

/// What the store tells of one place, as the headers of `status.lua` and `heartbeat.lua` list it.
#[derive(Debug)]
pub(crate) enum Told {
    Unknown,
    /// Its position; the rest is known.
    Position(u64),
    Waiting {
        position: u64,
        level: Level,
        joined_s: Option<i64>,
        seen_s: Option<i64>,
        ticket: Option<u64>,
    },
    Other {
        state: State,
        reason: Option<Reason>,
        session: Option<SessionId>,
        level: Level,
        joined_s: Option<i64>,
        claim_by: Option<Millis>,
        replaced_by: Option<PositionId>,
        seen_s: Option<i64>,
        ended_s: Option<i64>,
        ticket: Option<u64>,
    },
}

/// Reads the reply of `status.lua` or `heartbeat.lua`.
fn answers(
    mut reply: Values,
    count: usize,
    pulse: Arc<Pulse>,
    now: Millis,
) -> Result<Vec<(Arc<Seen>, Told)>, Error> {
    reply.word("places")?;
    let seen = Arc::new(Seen {
        now,
        pulse,
        status: QueueStatus::read(&reply.text()?),
        message: read_message(&reply.text()?),
        waiting: reply.number()?,
        epoch: reply.number()?,
    });
    (0..count).map(|_| Ok((Arc::clone(&seen), told(&mut reply)?))).collect()
}

fn told(reply: &mut Values) -> Result<Told, Error> {
    let first = match reply.next()? {
        redis::Value::Int(position) => {
            return Ok(Told::Position(u64::try_from(position).unwrap_or(0)));
        }
        value => reply.text_of(value)?,
    };
    if let Ok(position) = first.parse() {
        return Ok(Told::Position(position));
    }
    Ok(match first.as_str() {
        "unknown" => Told::Unknown,
        "waiting" => Told::Waiting {
            position: reply.number()?,
            level: Level::parse(reply.number()?)?,
            joined_s: reply.maybe()?,
            seen_s: reply.maybe()?,
            ticket: reply.maybe()?,
        },
        status => {
            let reason = Reason::read(&reply.text()?);
            Told::Other {
                state: State::read(status, reason).ok_or_else(|| reply.unexpected(status))?,
                reason,
                session: match reply.text()?.as_str() {
                    "" => None,
                    text => Some(SessionId::parse(text)?),
                },
                level: Level::parse(reply.number()?)?,
                joined_s: reply.maybe()?,
                claim_by: reply.maybe()?.map(Millis),
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

/// A place from what the store told; `level` is what the caller said, if anything.
fn place(
    queue: &QueueId,
    id: &PositionId,
    level: Option<Level>,
    seen: &Seen,
    told: Told,
) -> Result<Place, Error> {
    let pulse = &seen.pulse;
    let taken_ms = i64::try_from(id.taken_us() / 1000).unwrap_or(i64::MAX);
    let mut place = Place {
        id: *id,
        queue: queue.clone(),
        state: State::Waiting,
        reason: None,
        ended: None,
        level: level.unwrap_or_default(),
        ticket: None,
        joined: Millis(taken_ms),
        position: None,
        waiting: seen.waiting,
        claim_by: None,
        session: None,
        replaced_by: None,
        last_heartbeat: None,
        expires_at: None,
        held_for: pulse.config.heartbeat_timeout(),
        next_poll: Duration::ZERO,
        estimate: Err(NoEstimate::NotWaiting),
        queue_status: seen.status,
        message: seen.message.clone(),
        epoch: seen.epoch,
    };
    let (joined, heard) = match told {
        Told::Unknown => return Err(Error::UnknownPosition),
        Told::Position(position) => {
            place.position = Some(position);
            (None, Some(seen.now.as_secs()))
        }
        Told::Waiting { position, level, joined_s, seen_s, ticket } => {
            place.position = Some(position);
            place.ticket = ticket;
            place.level = level;
            (joined_s, seen_s)
        }
        Told::Other {
            state,
            reason,
            session,
            level,
            joined_s,
            claim_by,
            replaced_by,
            seen_s,
            ended_s,
            ticket,
        } => {
            place.state = state;
            place.ticket = ticket;
            place.reason = reason;
            place.session = session;
            place.level = level;
            // Nobody's time runs while the queue stands still, and everybody has the whole window
            // again afterwards: a deadline that is over while the offer stands is none.
            let running = seen.status == QueueStatus::Active;
            place.claim_by = claim_by.filter(|by| running && *by > seen.now);
            place.replaced_by = replaced_by;
            place.ended = ended_s.filter(|_| state.is_over()).map(|s| Millis(s * 1000));
            (joined_s, seen_s)
        }
    };
    // The id has milliseconds; the record has the second. They agree unless the id says that its time
    // is not the clock's.
    if let Some(s) = joined.filter(|s| !id.is_exact() && taken_ms.div_euclid(1000) != *s) {
        place.joined = Millis(s * 1000);
    }
    place.last_heartbeat = heard.map(|s| Millis(s * 1000));
    if let Some(position) = place.position {
        if seen.status == QueueStatus::Active {
            place.estimate = estimate(position, pulse);
            place.expires_at = place
                .last_heartbeat
                .map(|heard| (heard + Duration::from_secs(1)).max(pulse.floor) + place.held_for);
        } else {
            place.estimate = Err(NoEstimate::Paused);
        }
    }
    place.next_poll = next_poll(&place.estimate, pulse);
    Ok(place)
}
