//! Admission of the next positions in line.

use store::{Key, Store};

use crate::{
    Error, PositionId, QueueId, Room, SessionId, hour, keys::QueueKeys, maintenance::drop_foreign,
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

impl Room {
    /// Admits as many as both limits allow now, at most `most`. [`RoomMaintenance`](crate::RoomMaintenance)
    /// calls it; calling it more often changes nothing.
    pub async fn admit(&self, queue: &QueueId, most: usize) -> Result<Admission, Error> {
        self.admit_in_steps(queue, most, false).await
    }

    /// Admits up to `most` by hand, for an operator: the rate neither limits it nor is used up,
    /// `max_active` holds. Works while the queue is paused, too.
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
        let mut moved = 0;
        while admitted.ids.len() < most {
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
                },
            )
            .await?;
            let reply = Reply::of(scripts::peek::SCRIPT, reply)?;
            let mut next = reply.rest().to_vec();
            let seen = next.len();
            drop_foreign(self, &keys, &mut next).await?;
            if seen == 0 {
                break;
            }
            if next.is_empty() {
                continue;
            }
            let step = self.admit_these(queue, &keys, &next, by_hand).await?;
            admitted.ids.extend(step.ids);
            // Other instances admit as well: peek again, but not for ever.
            moved += u32::from(step.moved);
            if moved > 8 {
                break;
            }
        }
        Ok(admitted)
    }

    /// Admits those of `next` that are next in line at that instant.
    pub(crate) async fn admit_these(
        &self,
        queue: &QueueId,
        keys: &QueueKeys,
        next: &[String],
        by_hand: bool,
    ) -> Result<AdmissionStep, Error> {
        let ids: Vec<PositionId> =
            next.iter().map(|id| PositionId::parse(id)).collect::<Result<_, _>>()?;
        let now = self.now();
        let store: &Store = &self.0.store;
        let reply = scripts::admit::run(
            store,
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
                records: ids.iter().map(|id| keys.position(id)).collect::<Vec<Key>>(),
            },
            scripts::admit::Args {
                now_ms: now,
                queue_id: queue.as_str(),
                by_hand: u8::from(by_hand),
                ids: ids
                    .iter()
                    .flat_map(|id| [id.to_string(), SessionId::fresh().to_string()])
                    .collect::<Vec<_>>(),
            },
        )
        .await?;
        let reply = Reply::of(scripts::admit::SCRIPT, reply)?;
        let ids = reply.rest().iter().map(|id| PositionId::parse(id)).collect::<Result<_, _>>();
        match reply.word() {
            "admitted" => Ok(AdmissionStep { ids: ids?, moved: false }),
            "moved" => Ok(AdmissionStep { ids: ids?, moved: true }),
            "stopped" => Ok(AdmissionStep { ids: Vec::new(), moved: true }),
            _ => Err(reply.unexpected()),
        }
    }
}

/// One step of an admission.
pub(crate) struct AdmissionStep {
    pub(crate) ids: Vec<PositionId>,
    /// The order was no longer the one that was peeked.
    pub(crate) moved: bool,
}
