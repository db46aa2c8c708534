//! Admission of the next positions in line.

use store::{Key, Millis, redis};

use crate::{
    Error, PositionId, QueueCache, QueueId, Room, SessionId, hour, maintenance::drop_foreign,
    reply::Reply, scripts,
};

/// The outcome of an admission.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Admitted positions, in order.
    pub ids: Vec<PositionId>,
}

/// Positions admitted in one step.
pub(crate) const BATCH: usize = 200;
/// Positions looked at by one call when the addresses of those in front have their share.
const MAX_EXAMINED: usize = 10 * BATCH;
/// Interval at which admission starts again from the front of the line.
const RESTART_MS: u64 = 1_000;

/// The number of positions at the front of a line that stay where they are because their address has
/// its share. Many of them would be read again in every round; so admission goes on behind them, and
/// starts again from the front once a second, after it has been through.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockedCursor {
    began: Millis,
    /// Of priorities ahead of the normal one, if a share of admissions is reserved for that one.
    higher: u64,
    normal: u64,
    /// Somebody was admitted, or the end of the line was reached.
    is_through: bool,
}

impl BlockedCursor {
    pub(crate) fn is_at_front(&self) -> bool {
        self.higher + self.normal == 0
    }

    /// Returns the cursor to go on from.
    fn resume(self, now: Millis) -> Self {
        let is_old = now.0.abs_diff(self.began.0) >= RESTART_MS;
        if self.is_at_front() || (self.is_through && is_old) {
            return Self { began: now, ..Self::default() };
        }
        self
    }
}

impl Room {
    /// Admits as many as both limits allow now, at most `most`. [`RoomMaintenance`](crate::RoomMaintenance)
    /// calls it; calling it more often changes nothing.
    pub async fn admit(&self, queue: &QueueId, most: usize) -> Result<Admission, Error> {
        self.admit_in_steps(queue, most, false).await
    }

    /// Admits up to `most` by hand, for an operator: the rate neither limits it nor is used up,
    /// `max_active` holds. The share of an address does not limit it. Works while the queue is paused, too.
    pub async fn admit_by_hand(&self, queue: &QueueId, most: usize) -> Result<Admission, Error> {
        self.admit_in_steps(queue, most, true).await
    }

    async fn admit_in_steps(
        &self,
        queue: &QueueId,
        most: usize,
        by_hand: bool,
    ) -> Result<Admission, Error> {
        let keys = self.queue_cache(queue);
        let mut admitted = Admission::default();
        let (mut moved, mut examined) = (0, 0);
        // By hand, nobody is passed over.
        let mut cursor = match by_hand {
            true => BlockedCursor::default(),
            false => keys.blocked.lock().resume(self.now()),
        };
        while admitted.ids.len() < most && examined < MAX_EXAMINED.max(most) {
            let reply = scripts::peek::run(
                &self.0.store,
                scripts::peek::Keys {
                    meta: &keys.meta,
                    state: &keys.state,
                    positions: &keys.positions,
                    admitted: &keys.admitted,
                    active: &keys.active,
                    tokens: &keys.tokens,
                    last_update: &keys.last_update,
                },
                scripts::peek::Args {
                    now_ms: self.now(),
                    most: BATCH.min(most - admitted.ids.len()),
                    by_hand: u8::from(by_hand),
                    skip_higher: cursor.higher,
                    skip_normal: cursor.normal,
                },
            )
            .await?;
            let reply = Reply::of(scripts::peek::SCRIPT, reply)?;
            let mut next = reply.rest().to_vec();
            let seen = next.len();
            drop_foreign(self, &keys, &mut next).await?;
            if seen == 0 {
                cursor.is_through = true;
                break;
            }
            if next.is_empty() {
                continue;
            }
            let step = self.admit_these(&keys, cursor, &next, by_hand).await?;
            examined += seen;
            cursor = step.cursor;
            admitted.ids.extend(step.ids);
            // Other instances admit as well: peek again, but not for ever.
            moved += u32::from(step.moved);
            if moved > 8 {
                break;
            }
        }
        if !by_hand {
            *keys.blocked.lock() = cursor;
        }
        Ok(admitted)
    }

    /// Admits those of `next` that are next in line behind the cursor at that instant, and whose address
    /// does not have its share yet.
    pub(crate) async fn admit_these(
        &self,
        keys: &QueueCache,
        mut cursor: BlockedCursor,
        next: &[String],
        by_hand: bool,
    ) -> Result<AdmissionStep, Error> {
        let ids: Vec<PositionId> =
            next.iter().map(|id| PositionId::parse(id)).collect::<Result<_, _>>()?;
        let addresses = self.address_hashes(keys, &ids).await?;
        let now = self.now();
        let reply = scripts::admit::run(
            &self.0.store,
            scripts::admit::Keys {
                meta: &keys.meta,
                state: &keys.state,
                positions: &keys.positions,
                lane0: &keys.lanes[0],
                lane1: &keys.lanes[1],
                lane2: &keys.lanes[2],
                lane3: &keys.lanes[3],
                heartbeat: &keys.heartbeat,
                admitted: &keys.admitted,
                active: &keys.active,
                tokens: &keys.tokens,
                last_update: &keys.last_update,
                stats: keys.stats(&hour(now)),
                events: &keys.events,
                records: ids
                    .iter()
                    .zip(&addresses)
                    .flat_map(|(id, hash)| {
                        let hash = hash.as_deref().unwrap_or("none");
                        [keys.position(id), keys.address_sessions(hash)]
                    })
                    .collect::<Vec<Key>>(),
            },
            scripts::admit::Args {
                now_ms: now,
                queue_id: keys.queue.as_str(),
                by_hand: u8::from(by_hand),
                skip_higher: cursor.higher,
                skip_normal: cursor.normal,
                ids: ids
                    .iter()
                    .zip(&addresses)
                    .flat_map(|(id, hash)| {
                        let by_address = u8::from(hash.is_some()).to_string();
                        [id.to_string(), SessionId::fresh().to_string(), by_address]
                    })
                    .collect::<Vec<_>>(),
            },
        )
        .await?;
        let reply = Reply::of(scripts::admit::SCRIPT, reply)?;
        let moved = match reply.word() {
            "admitted" => false,
            "moved" => true,
            "stopped" => return Ok(AdmissionStep { ids: Vec::new(), cursor, moved: true }),
            _ => return Err(reply.unexpected()),
        };
        let ids: Vec<PositionId> =
            reply.rest_from(3).iter().map(|id| PositionId::parse(id)).collect::<Result<_, _>>()?;
        cursor.higher += reply.number::<u64>(1)?;
        cursor.normal += reply.number::<u64>(2)?;
        cursor.is_through |= !ids.is_empty();
        self.record_waits(&keys.queue, &ids);
        Ok(AdmissionStep { ids, cursor, moved })
    }

    /// Reads the hashed addresses of positions, if the queue limits addresses; `None` is not limited.
    async fn address_hashes(
        &self,
        keys: &QueueCache,
        ids: &[PositionId],
    ) -> Result<Vec<Option<String>>, Error> {
        if ids.is_empty() || !self.snapshot(&keys.queue).await?.config.limits_addresses() {
            return Ok(vec![None; ids.len()]);
        }
        let mut pipe = redis::pipe();
        for id in ids {
            pipe.hget(keys.position(id), "ip_hash");
        }
        let hashes: Vec<Option<String>> = pipe.query_async(&mut self.0.store.clone()).await?;
        Ok(hashes.into_iter().map(|hash| hash.filter(|hash| is_hash(hash))).collect())
    }
}

/// Returns true for a hash as [`crate::address`] makes it: other programs write positions, too, and this
/// becomes part of a key.
fn is_hash(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// One step of an admission.
pub(crate) struct AdmissionStep {
    pub(crate) ids: Vec<PositionId>,
    /// The cursor behind the positions whose address has its share.
    pub(crate) cursor: BlockedCursor,
    /// The order was no longer the one that was peeked.
    pub(crate) moved: bool,
}
