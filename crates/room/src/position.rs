//! A visitor's position in a queue: its state, its number in line, and why it ended.

use std::time::Duration;

use serde_json::{Map, Value};
use store::Millis;

use crate::{Estimate, NoEstimate, PositionId, QueueId, QueueStatus, SessionId, VisitorPriority};

/// State of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PositionState {
    /// Waiting in line.
    Waiting,
    /// Admitted: may start a session within the admission window.
    Admitted,
    /// The session is active.
    Active,
    /// The visitor completed the session.
    Completed,
    /// Expired: no heartbeat, no session within the admission window, or the session ran out.
    Expired,
    /// Cancelled by the visitor, or replaced by a better position.
    Cancelled,
    /// Revoked by an operator or the protected site.
    Revoked,
}

impl PositionState {
    /// Returns the name used in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            PositionState::Waiting => "waiting",
            PositionState::Admitted => "admitted",
            PositionState::Active => "active",
            PositionState::Completed => "completed",
            PositionState::Expired => "expired",
            PositionState::Cancelled => "cancelled",
            PositionState::Revoked => "revoked",
        }
    }

    /// Returns true if the position has ended.
    pub fn is_over(self) -> bool {
        !matches!(self, PositionState::Waiting | PositionState::Admitted | PositionState::Active)
    }

    /// Reads a stored status and reason. The stored statuses are the five of the schema; the reason
    /// distinguishes cancelled and revoked from expired.
    pub(crate) fn read(status: &str, reason: Option<EndReason>) -> Option<Self> {
        Some(match (status, reason) {
            ("waiting", _) => PositionState::Waiting,
            ("admitted", _) => PositionState::Admitted,
            ("active", _) => PositionState::Active,
            ("completed", _) => PositionState::Completed,
            ("expired", Some(EndReason::Cancelled | EndReason::Upgraded)) => {
                PositionState::Cancelled
            }
            ("expired", Some(EndReason::AdminRevoked | EndReason::OriginRevoked)) => {
                PositionState::Revoked
            }
            ("expired", _) => PositionState::Expired,
            _ => return None,
        })
    }
}

/// Reason for which a position or a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// No heartbeat within the hold time.
    HoldTimeout,
    /// Admitted twice without starting a session.
    AdmissionTimeout,
    /// No activity in the session for too long.
    SessionIdle,
    /// The session reached its hard limit.
    SessionCap,
    /// Cancelled by the visitor.
    Cancelled,
    /// Replaced by a better position.
    Upgraded,
    /// Completed by the visitor.
    Completed,
    /// An operator ended it.
    AdminRevoked,
    /// The protected site ended it.
    OriginRevoked,
    /// The queue was emptied.
    QueueReset,
}

impl EndReason {
    const ALL: [EndReason; 10] = [
        EndReason::HoldTimeout,
        EndReason::AdmissionTimeout,
        EndReason::SessionIdle,
        EndReason::SessionCap,
        EndReason::Cancelled,
        EndReason::Upgraded,
        EndReason::Completed,
        EndReason::AdminRevoked,
        EndReason::OriginRevoked,
        EndReason::QueueReset,
    ];

    /// Returns the stored name, which is also the API's.
    pub fn as_str(self) -> &'static str {
        match self {
            EndReason::HoldTimeout => "hold_timeout",
            EndReason::AdmissionTimeout => "admission_timeout",
            EndReason::SessionIdle => "session_idle",
            EndReason::SessionCap => "session_cap",
            EndReason::Cancelled => "cancelled",
            EndReason::Upgraded => "upgraded",
            EndReason::Completed => "completed",
            EndReason::AdminRevoked => "admin_revoked",
            EndReason::OriginRevoked => "origin_revoked",
            EndReason::QueueReset => "queue_reset",
        }
    }

    /// Reads a stored name; `None` if it is unknown.
    pub fn read(text: &str) -> Option<Self> {
        // Records of older versions have the former name.
        let text = if text == "claim_timeout" { "admission_timeout" } else { text };
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }
}

/// A position in a queue, as its holder may see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Position {
    /// Its id.
    pub id: PositionId,
    /// The queue it is in.
    pub queue: QueueId,
    /// Its state.
    pub state: PositionState,
    /// Reason for which it ended.
    pub reason: Option<EndReason>,
    /// Time at which it ended, in whole seconds.
    pub ended: Option<Millis>,
    /// Its priority.
    pub priority: VisitorPriority,
    /// The number drawn when enqueueing, as stored: microseconds since 1970, unique in its queue and
    /// growing over all instances. None if the record was lost or written by another program.
    pub ticket: Option<u64>,
    /// Time at which the visitor enqueued.
    pub enqueued_at: Millis,
    /// Number in line, from 1; only while waiting.
    pub number: Option<u64>,
    /// Number of visitors waiting in the queue.
    pub waiting: u64,
    /// End of the admission window: the session must start before it.
    pub start_by: Option<Millis>,
    /// The session, once admitted.
    pub session: Option<SessionId>,
    /// The better position that replaced this one.
    pub replaced_by: Option<PositionId>,
    /// The last heartbeat, in whole seconds.
    pub last_heartbeat: Option<Millis>,
    /// Time at which the position expires without another heartbeat; only while waiting in an active queue.
    pub expires_at: Option<Millis>,
    /// Time for which it is held after a heartbeat.
    pub held_for: Duration,
    /// Estimated wait, or the reason it is not known; only while waiting.
    pub estimate: Result<Estimate, NoEstimate>,
    /// Delay before the next poll. The caller adds jitter.
    pub next_poll: Duration,
    /// Status of the queue.
    pub queue_status: QueueStatus,
    /// The operator's message to waiting visitors, by language.
    pub message: Map<String, Value>,
    /// The queue's epoch: tokens of an older one are void.
    pub epoch: u32,
}

impl Position {
    /// Returns the number of visitors who will be admitted before; only while waiting.
    pub fn ahead(&self) -> Option<u64> {
        self.number.map(|number| number.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_read_back() {
        for reason in EndReason::ALL {
            assert_eq!(EndReason::read(reason.as_str()), Some(reason));
        }
        assert_eq!(EndReason::read("claim_timeout"), Some(EndReason::AdmissionTimeout));
        assert_eq!(EndReason::read(""), None);
    }

    #[test]
    fn the_documented_words_become_the_api_states() {
        let read =
            |status: &str, reason: &str| PositionState::read(status, EndReason::read(reason));
        assert_eq!(read("expired", "hold_timeout"), Some(PositionState::Expired));
        assert_eq!(read("expired", "cancelled"), Some(PositionState::Cancelled));
        assert_eq!(read("expired", "admin_revoked"), Some(PositionState::Revoked));
        assert_eq!(read("expired", ""), Some(PositionState::Expired));
        assert_eq!(read("nonsense", ""), None);
    }
}
