//! What is shown of a place: its state, why it ended, where it stands.

use std::time::Duration;

use serde_json::{Map, Value};
use store::Millis;

use crate::{Estimate, Level, NoEstimate, PositionId, QueueId, QueueStatus, SessionId};

/// Where a place is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// In the line.
    Waiting,
    /// May come in, for the length of the claim window.
    Admitted,
    /// Came in; a session runs.
    Active,
    /// Came in and was done.
    Completed,
    /// Lost: silent for too long, did not come, or the session ran out.
    Expired,
    /// Given up by the visitor, or exchanged for a better place.
    Cancelled,
    /// Taken away by an operator or the origin.
    Revoked,
}

impl State {
    /// The word the API uses.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Admitted => "admitted",
            State::Active => "active",
            State::Completed => "completed",
            State::Expired => "expired",
            State::Cancelled => "cancelled",
            State::Revoked => "revoked",
        }
    }

    /// Is it over?
    pub fn is_over(self) -> bool {
        !matches!(self, State::Waiting | State::Admitted | State::Active)
    }

    /// The state of a stored status and reason. The stored words are the documented five; the
    /// reason tells apart what they call expired.
    pub(crate) fn read(status: &str, reason: Option<Reason>) -> Option<Self> {
        Some(match (status, reason) {
            ("waiting", _) => State::Waiting,
            ("admitted", _) => State::Admitted,
            ("active", _) => State::Active,
            ("completed", _) => State::Completed,
            ("expired", Some(Reason::Cancelled | Reason::Upgraded)) => State::Cancelled,
            ("expired", Some(Reason::AdminRevoked | Reason::OriginRevoked)) => State::Revoked,
            ("expired", _) => State::Expired,
            _ => return None,
        })
    }
}

/// Why a place or a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No sign of life for longer than the hold.
    HoldTimeout,
    /// Admitted twice, and did not come.
    ClaimTimeout,
    /// No activity in the session for too long.
    SessionIdle,
    /// The session reached its hard limit.
    SessionCap,
    /// The visitor gave it up.
    Cancelled,
    /// The visitor got a better place.
    Upgraded,
    /// The visitor was done.
    Completed,
    /// An operator ended it.
    AdminRevoked,
    /// The protected site ended it.
    OriginRevoked,
    /// The queue was emptied.
    QueueReset,
}

impl Reason {
    const ALL: [Reason; 10] = [
        Reason::HoldTimeout,
        Reason::ClaimTimeout,
        Reason::SessionIdle,
        Reason::SessionCap,
        Reason::Cancelled,
        Reason::Upgraded,
        Reason::Completed,
        Reason::AdminRevoked,
        Reason::OriginRevoked,
        Reason::QueueReset,
    ];

    /// The stored word, which is also the API's.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::HoldTimeout => "hold_timeout",
            Reason::ClaimTimeout => "claim_timeout",
            Reason::SessionIdle => "session_idle",
            Reason::SessionCap => "session_cap",
            Reason::Cancelled => "cancelled",
            Reason::Upgraded => "upgraded",
            Reason::Completed => "completed",
            Reason::AdminRevoked => "admin_revoked",
            Reason::OriginRevoked => "origin_revoked",
            Reason::QueueReset => "queue_reset",
        }
    }

    /// Reads a stored word; an unknown one is none.
    pub fn read(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }
}

/// A place as its holder may see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Its id.
    pub id: PositionId,
    /// The queue it is in.
    pub queue: QueueId,
    /// Where it is in its life.
    pub state: State,
    /// Why it ended, if it did.
    pub reason: Option<Reason>,
    /// When it ended, in whole seconds, if it did.
    pub ended: Option<Millis>,
    /// Its priority level.
    pub level: Level,
    /// The number drawn when enqueueing, as stored: microseconds since 1970, unique in its queue and
    /// growing over all instances. None if the record was lost or written by another program.
    pub ticket: Option<u64>,
    /// When it was taken.
    pub joined: Millis,
    /// The true position from 1; only while waiting.
    pub position: Option<u64>,
    /// How many wait in the queue.
    pub waiting: u64,
    /// Until when an admitted visitor may come in.
    pub claim_by: Option<Millis>,
    /// The session offered or running.
    pub session: Option<SessionId>,
    /// The better place this one was exchanged for.
    pub replaced_by: Option<PositionId>,
    /// The last sign of life, in whole seconds.
    pub last_heartbeat: Option<Millis>,
    /// When the place ends if nothing more is heard; only while waiting in an active queue.
    pub expires_at: Option<Millis>,
    /// How long it is held after a sign of life.
    pub held_for: Duration,
    /// How long it may still take, or why that is not known; only while waiting.
    pub estimate: Result<Estimate, NoEstimate>,
    /// When to ask again. The caller adds jitter.
    pub next_poll: Duration,
    /// Whether the queue lets people in.
    pub queue_status: QueueStatus,
    /// What the operator tells those who wait, by language.
    pub message: Map<String, Value>,
    /// The queue's epoch: tokens of an older one are void.
    pub epoch: u32,
}

impl Place {
    /// How many will be let in before; only while waiting.
    pub fn ahead(&self) -> Option<u64> {
        self.position.map(|position| position.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_read_back() {
        for reason in Reason::ALL {
            assert_eq!(Reason::read(reason.as_str()), Some(reason));
        }
        assert_eq!(Reason::read(""), None);
    }

    #[test]
    fn the_documented_words_become_the_api_states() {
        let read = |status: &str, reason: &str| State::read(status, Reason::read(reason));
        assert_eq!(read("expired", "hold_timeout"), Some(State::Expired));
        assert_eq!(read("expired", "cancelled"), Some(State::Cancelled));
        assert_eq!(read("expired", "admin_revoked"), Some(State::Revoked));
        assert_eq!(read("expired", ""), Some(State::Expired));
        assert_eq!(read("nonsense", ""), None);
    }
}
