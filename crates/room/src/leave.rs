//! Giving up a place, by the visitor's wish or by an operator's.

use crate::{
    End, Error, PositionId, QueueId, Reason, Room, SessionId, State, hour, reply::Reply, scripts,
    session::check_reason,
};

/// What leaving came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The place was given up now.
    Now,
    /// It was over before, in this state.
    Before(State),
}

impl Room {
    /// The visitor gives up the place; a running session is completed. Leaving twice is leaving
    /// once.
    pub async fn leave(&self, queue: &QueueId, id: &PositionId) -> Result<Left, Error> {
        self.end_place(queue, id, Reason::Cancelled, "").await
    }

    /// An operator takes a place away; a running session is terminated.
    pub async fn revoke_place(&self, queue: &QueueId, id: &PositionId) -> Result<Left, Error> {
        self.revoke_place_for(queue, id, "").await
    }

    /// The same with the operator's own word for the reason, as in [`Room::terminate_for`].
    pub async fn revoke_place_for(
        &self,
        queue: &QueueId,
        id: &PositionId,
        detail: &str,
    ) -> Result<Left, Error> {
        check_reason(detail)?;
        self.end_place(queue, id, Reason::AdminRevoked, detail).await
    }

    pub(crate) async fn end_place(
        &self,
        queue: &QueueId,
        id: &PositionId,
        reason: Reason,
        detail: &str,
    ) -> Result<Left, Error> {
        let keys = self.known(queue);
        let now = self.now();
        let reply = scripts::leave::run(
            &self.0.store,
            scripts::leave::Keys {
                meta: &keys.meta,
                state: &keys.state,
                positions: &keys.positions,
                heartbeat: &keys.heartbeat,
                claims: &keys.claims,
                stats: keys.stats(&hour(now)),
                events: &keys.events,
                position: keys.position(id),
            },
            scripts::leave::Args {
                now_ms: now,
                id: id.to_string(),
                reason: reason.as_str(),
                detail,
            },
        )
        .await?;
        let reply = Reply::of(scripts::leave::SCRIPT, reply)?;
        match reply.word() {
            "left" => Ok(Left::Now),
            "ended" => State::read(reply.text(1), Reason::read(reply.text(2)))
                .map(Left::Before)
                .ok_or_else(|| reply.unexpected()),
            "active" => {
                let session = SessionId::parse(reply.text(1))?;
                let end = match reason {
                    Reason::Cancelled => End::Complete,
                    Reason::QueueReset => End::Reset,
                    _ => End::Revoke,
                };
                self.end_session_with(queue, &session, end, detail).await?;
                Ok(Left::Now)
            }
            "unknown" => Err(Error::UnknownPosition),
            _ => Err(reply.unexpected()),
        }
    }
}
