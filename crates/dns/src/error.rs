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
    /// The store failed. Names are still resolved, from memory and by the upstreams.
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl From<store::redis::RedisError> for Error {
    fn from(error: store::redis::RedisError) -> Self {
        Self::Store(error.into())
    }
}
