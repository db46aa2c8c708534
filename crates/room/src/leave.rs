//! Ending a position: cancelled by the visitor or revoked by an operator.

use crate::{
    EndReason, Error, PositionId, PositionState, QueueId, Room, SessionEnd, SessionId, hour,
    reply::Reply, scripts, session::check_reason,
};

/// The outcome of [`Room::leave`] and [`Room::revoke_position`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaveOutcome {
    /// The position was ended by this call.
    Now,
    /// It had ended before, in this state.
    Before(PositionState),
}

impl Room {
    /// Cancels a position for its visitor; an active session is completed. Idempotent.
    pub async fn leave(&self, queue: &QueueId, id: &PositionId) -> Result<LeaveOutcome, Error> {
        self.end_position(queue, id, EndReason::Cancelled, "").await
    }

    /// Revokes a position for an operator; an active session is terminated. Idempotent.
    pub async fn revoke_position(
        &self,
        queue: &QueueId,
        id: &PositionId,
    ) -> Result<LeaveOutcome, Error> {
        self.revoke_position_for(queue, id, "").await
    }

    /// Like [`Room::revoke_position`], with the operator's own word for the reason, as in
    /// [`Room::terminate_for`].
    pub async fn revoke_position_for(
        &self,
        queue: &QueueId,
        id: &PositionId,
        detail: &str,
    ) -> Result<LeaveOutcome, Error> {
        check_reason(detail)?;
        self.end_position(queue, id, EndReason::AdminRevoked, detail).await
    }

    pub(crate) async fn end_position(
        &self,
        queue: &QueueId,
        id: &PositionId,
        reason: EndReason,
        detail: &str,
    ) -> Result<LeaveOutcome, Error> {
        let keys = self.queue_cache(queue);
        let now = self.now();
        let reply = scripts::leave::run(
            &self.0.store,
            scripts::leave::Keys {
                meta: &keys.meta,
                state: &keys.state,
                positions: &keys.positions,
                heartbeat: &keys.heartbeat,
                admitted: &keys.admitted,
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
            "left" => Ok(LeaveOutcome::Now),
            "ended" => PositionState::read(reply.text(1), EndReason::read(reply.text(2)))
                .map(LeaveOutcome::Before)
                .ok_or_else(|| reply.unexpected()),
            "active" => {
                let session = SessionId::parse(reply.text(1))?;
                let end = match reason {
                    EndReason::Cancelled => SessionEnd::Complete,
                    EndReason::QueueReset => SessionEnd::Reset,
                    _ => SessionEnd::Revoke,
                };
                self.end_session_with(queue, &session, end, detail).await?;
                Ok(LeaveOutcome::Now)
            }
            "unknown" => Err(Error::UnknownPosition),
            _ => Err(reply.unexpected()),
        }
    }
}
