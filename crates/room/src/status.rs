//! Where a place stands, and the sign of life that keeps it.

use std::{net::IpAddr, time::Duration};

use store::Millis;

use crate::{
    Error, Level, NoEstimate, Place, PositionId, QueueId, QueueStatus, Reason, Room, SessionId,
    State,
    estimate::{estimate, next_poll},
    pulse::Pulse,
    reply::Reply,
    scripts,
};

impl Room {
    /// Where a place stands. Reads only: extends nothing, admits nobody.
    pub async fn status(&self, queue: &QueueId, id: &PositionId) -> Result<Place, Error> {
        let keys = self.keys(queue);
        let now = self.now();
        let reply = scripts::status::run(
            &self.0.store,
            scripts::status::Keys {
                meta: &keys.meta,
                state: &keys.state,
                positions: &keys.positions,
                claims: &keys.claims,
                position: keys.position(id),
            },
            scripts::status::Args { now_ms: now, id: id.to_string() },
        )
        .await?;
        self.place(queue, id, now, Reply::of(scripts::status::SCRIPT, reply)?).await
    }

    /// A sign of life: the place is held for another while. Says where it stands. A place that
    /// ended stays ended. `level` is what the visitor's token says and `address` where the call
    /// comes from; both may be left out.
    pub async fn heartbeat(
        &self,
        queue: &QueueId,
        id: &PositionId,
        level: Level,
        address: Option<IpAddr>,
    ) -> Result<Place, Error> {
        let keys = self.keys(queue);
        let now = self.now();
        let ip_hash = match address {
            Some(address) => self.0.addresses.hash(&self.0.store, &self.0.keys, address).await?,
            None => "-".to_owned(),
        };
        let reply = scripts::heartbeat::run(
            &self.0.store,
            scripts::heartbeat::Keys {
                meta: &keys.meta,
                state: &keys.state,
                positions: &keys.positions,
                claims: &keys.claims,
                position: keys.position(id),
                heartbeat: &keys.heartbeat,
                ipmap: keys.ipmap(&ip_hash),
            },
            scripts::heartbeat::Args {
                now_ms: now,
                id: id.to_string(),
                queue_id: queue.as_str(),
                level: level.number(),
            },
        )
        .await?;
        self.place(queue, id, now, Reply::of(scripts::heartbeat::SCRIPT, reply)?).await
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
        let keys = self.keys(queue);
        let mut gone = Vec::new();
        for (chunk, batch) in places.chunks_mut(LOOK).enumerate() {
            let now = self.now();
            let reply = scripts::look::run(
                &self.0.store,
                scripts::look::Keys {
                    meta: &keys.meta,
                    state: &keys.state,
                    positions: &keys.positions,
                },
                scripts::look::Args {
                    now_ms: now,
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
                    QueueStatus::Active => estimate(position, &pulse, now),
                    _ => Err(NoEstimate::Paused),
                };
                place.next_poll = next_poll(&place.estimate, &pulse);
            }
        }
        Ok(gone)
    }

    async fn place(
        &self,
        queue: &QueueId,
        id: &PositionId,
        now: Millis,
        reply: Reply,
    ) -> Result<Place, Error> {
        if reply.word() == "unknown" {
            return Err(Error::UnknownPosition);
        }
        let pulse = self.pulse(queue).await?;
        read_place(queue, id, now, &pulse, &reply)
    }
}

/// Places asked for in one look: a fraction of a millisecond for the store.
const LOOK: usize = 250;

fn read_message(text: &str) -> serde_json::Map<String, serde_json::Value> {
    match text {
        "" => serde_json::Map::new(),
        text => serde_json::from_str(text).unwrap_or_default(),
    }
}

/// Reads the reply that `status.lua`'s header describes.
fn read_place(
    queue: &QueueId,
    id: &PositionId,
    now: Millis,
    pulse: &Pulse,
    reply: &Reply,
) -> Result<Place, Error> {
    let reason = Reason::read(reply.text(1));
    let state = State::read(reply.word(), reason).ok_or_else(|| reply.unexpected())?;
    let waits = state == State::Waiting;
    let joined_s: Option<i64> = reply.maybe(4)?;
    let taken_ms = i64::try_from(id.taken_us() / 1000).unwrap_or(i64::MAX);
    let queue_status = QueueStatus::read(reply.text(10));
    let seen: Option<i64> = reply.maybe(9)?;
    let position: Option<u64> = if waits { Some(reply.number(5)?) } else { None };
    let estimate = match position {
        None => Err(NoEstimate::NotWaiting),
        Some(_) if queue_status != QueueStatus::Active => Err(NoEstimate::Paused),
        Some(position) => estimate(position, pulse, now),
    };
    let floor = Millis(pulse.number("floor_ms"));
    let expires_at = match seen {
        Some(seen) if waits && queue_status == QueueStatus::Active => {
            let counted = Millis(seen * 1000) + Duration::from_secs(1);
            Some(counted.max(floor) + pulse.config.heartbeat_timeout())
        }
        _ => None,
    };
    Ok(Place {
        id: *id,
        queue: queue.clone(),
        state,
        reason,
        ended: reply.maybe(13)?.filter(|_| state.is_over()).map(|s: i64| Millis(s * 1000)),
        level: Level::parse(reply.number(3)?)?,
        // The id has milliseconds; the record has the second. They agree unless the clock was
        // corrected in between.
        joined: match joined_s {
            Some(s) if taken_ms.div_euclid(1000) != s => Millis(s * 1000),
            _ => Millis(taken_ms),
        },
        position,
        waiting: reply.number(6)?,
        claim_by: reply.maybe(7)?.map(Millis),
        session: match reply.text(2) {
            "" => None,
            text => Some(SessionId::parse(text)?),
        },
        replaced_by: match reply.text(8) {
            "" => None,
            text => Some(PositionId::parse(text)?),
        },
        last_heartbeat: seen.map(|s| Millis(s * 1000)),
        expires_at,
        held_for: pulse.config.heartbeat_timeout(),
        next_poll: next_poll(&estimate, pulse),
        estimate,
        queue_status,
        message: read_message(reply.text(11)),
        epoch: reply.number(12)?,
    })
}
