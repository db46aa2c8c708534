//! Errors, by what the caller may do about them.

/// Error of a call to the resolver.
#[derive(Debug, thiserror::Error)]
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
    /// An address cannot be listened on: another server has it, or it is not this machine's.
    #[error("cannot listen on {address}; name another address, or end the server that has it")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A part of the policy is invalid; nothing was changed.
    #[error(transparent)]
    Policy(#[from] crate::policy::PolicyError),
    /// The policy was changed since it was read: read it again, make the change again.
    #[error(
        "the policy has version {current}, not {expected}; read it again and repeat the change"
    )]
    Conflict {
        /// Version the change was made from.
        expected: u64,
        /// Version there is.
        current: u64,
    },
    /// The store failed. Names are still resolved, from memory and by the upstreams.
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl From<store::redis::RedisError> for Error {
    fn from(error: store::redis::RedisError) -> Self {
        Self::Store(error.into())
    }
}
