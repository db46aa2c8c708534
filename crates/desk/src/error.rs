//! Errors, by what the caller may do about them.

/// Error of a call to the desk. Nothing was changed unless the variant says so.
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
    /// The store failed; the inner error tells whether the call may have taken effect.
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Error {
    pub(crate) fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid { field, message: message.into() }
    }

    /// Returns true if the same call may succeed later.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_unavailable())
    }
}

impl From<store::redis::RedisError> for Error {
    fn from(error: store::redis::RedisError) -> Self {
        Self::Store(error.into())
    }
}
