//! What can go wrong, by what the caller may do about it.

use crate::token::Fault;

/// A call to the waiting room that did not succeed. Nothing was changed unless it says so.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value is not usable as given.
    #[error("{field}: {message}")]
    Invalid {
        /// Which value.
        field: &'static str,
        /// What would be right.
        message: String,
    },
    /// There is no queue of that name.
    #[error("no such queue")]
    UnknownQueue,
    /// A queue of that name exists already.
    #[error("a queue of that name exists")]
    QueueExists,
    /// Nothing is known of that place: it never was, or ended long ago.
    #[error("no such place in this queue")]
    UnknownPosition,
    /// Nothing is known of that session: it never was, or ended long ago.
    #[error("no such session")]
    UnknownSession,
    /// The queue holds as many waiting visitors as it may. Try again later.
    #[error("the queue is full")]
    Full {
        /// How many wait.
        waiting: u64,
    },
    /// The queue is closed for maintenance. Try again later.
    #[error("the queue is closed for maintenance")]
    Maintenance,
    /// The visitor's address has as many sessions as it may. Try again when one of them is over.
    #[error("{limit} sessions from this address run, which is its share")]
    AddressFull {
        /// How many it may have.
        limit: u64,
    },
    /// The invite was used as often as it may be.
    #[error("the invite has been used")]
    InviteUsed,
    /// The configuration was changed by somebody else since it was read.
    #[error("the queue was changed meanwhile; it is at version {version}")]
    Conflict {
        /// The version it has now.
        version: u64,
    },
    /// The priority policy cannot change while somebody above level 0 waits.
    #[error("the priority policy can change only while nobody above level 0 waits")]
    LevelsWait,
    /// A token or an invite was refused.
    #[error("the token is not valid: {0}")]
    Token(#[from] Fault),
    /// The keys in the store are sealed with another secret, or there is a secret missing here.
    #[error(
        "the signing keys in the store are sealed with a secret that this instance does not have"
    )]
    Sealed,
    /// Too many instances joined at the same instant. Try again.
    #[error("the queue is busy")]
    Busy,
    /// The store failed; see there whether it may have been done.
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Error {
    pub(crate) fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid { field, message: message.into() }
    }

    /// Is it a script that failed?
    pub(crate) fn is_of_script(&self) -> bool {
        matches!(self, Self::Store(store::Error::Script { .. }))
    }

    /// May the same call succeed later without anything being changed?
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_unavailable()) || matches!(self, Self::Busy)
    }
}

impl From<store::redis::RedisError> for Error {
    fn from(error: store::redis::RedisError) -> Self {
        Self::Store(error.into())
    }
}
