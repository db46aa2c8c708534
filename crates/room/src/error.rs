//! Errors, by what the caller may do about them.

use crate::token::TokenError;

/// Error of a call to the waiting room. Nothing was changed unless the variant says so.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value is invalid.
    #[error("{field}: {message}")]
    Invalid {
        /// Name of the value.
        field: &'static str,
        /// Values that are allowed.
        message: String,
    },
    /// The queue does not exist.
    #[error("queue not found")]
    UnknownQueue,
    /// A queue of that name exists already.
    #[error("a queue of this name exists already")]
    QueueExists,
    /// The position does not exist, or ended long ago.
    #[error("position not found in this queue")]
    UnknownPosition,
    /// The session does not exist, or ended long ago.
    #[error("session not found")]
    UnknownSession,
    /// The queue has reached `max_queue_size`. Try again later.
    #[error("the queue is full")]
    Full {
        /// Number of waiting visitors.
        waiting: u64,
    },
    /// The queue is closed for maintenance. Try again later.
    #[error("the queue is closed for maintenance")]
    Maintenance,
    /// The visitor's address has reached its limit of sessions. Try again when one of them has ended.
    #[error("{limit} sessions are active from this address, which is its limit")]
    AddressFull {
        /// The limit.
        limit: u64,
    },
    /// The invite has no uses left.
    #[error("the invite has been used")]
    InviteUsed,
    /// The settings were changed since they were read.
    #[error("the queue was changed in the meantime; it is at version {version}")]
    Conflict {
        /// The current version.
        version: u64,
    },
    /// The priority policy cannot change while a visitor with a priority above 0 waits.
    #[error("the priority policy can change only while nobody with a priority above 0 waits")]
    PriorityInUse,
    /// A token or an invite is invalid.
    #[error("the token is not valid: {0}")]
    Token(#[from] TokenError),
    /// The keys in the store are sealed with another secret, or the secret is missing on this instance.
    #[error(
        "the signing keys in the store are sealed with a secret that this instance does not have"
    )]
    Sealed,
    /// Too many instances wrote at the same instant. Try again.
    #[error("the queue is busy")]
    Busy,
    /// The store failed; the inner error tells whether the call may have taken effect.
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Error {
    pub(crate) fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid { field, message: message.into() }
    }

    /// Returns true if a script failed.
    pub(crate) fn is_of_script(&self) -> bool {
        matches!(self, Self::Store(store::Error::Script { .. }))
    }

    /// Returns true if the same call may succeed later.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_unavailable()) || matches!(self, Self::Busy)
    }
}

impl From<store::redis::RedisError> for Error {
    fn from(error: store::redis::RedisError) -> Self {
        Self::Store(error.into())
    }
}
