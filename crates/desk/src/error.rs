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
    /// There is no such thing, or the caller may not know of it.
    #[error("there is no such {what}")]
    NotFound {
        /// Kind of the thing: `conversation`.
        what: &'static str,
    },
    /// The state of things does not allow it.
    #[error("{message}")]
    Conflict {
        /// A stable word for programs, in capitals: `ALREADY_ASSIGNED`.
        code: &'static str,
        /// The reason, for people.
        message: String,
    },
    /// The caller may not do it.
    #[error("{message}")]
    Forbidden {
        /// A stable word for programs, in capitals: `BLOCKED`.
        code: &'static str,
        /// The reason, for people.
        message: String,
    },
    /// The archive failed. A change was not acknowledged; it may be made again.
    #[error("archive: {message}")]
    Archive {
        /// The reason.
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

    pub(crate) fn archive(message: impl Into<String>) -> Self {
        Self::Archive { message: message.into() }
    }

    pub(crate) fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self::Conflict { code, message: message.into() }
    }

    pub(crate) fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::Forbidden { code, message: message.into() }
    }

    /// Returns true if the same call may succeed later.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Store(error) => error.is_unavailable(),
            Self::Archive { .. } => true,
            _ => false,
        }
    }
}

impl From<store::redis::RedisError> for Error {
    fn from(error: store::redis::RedisError) -> Self {
        Self::Store(error.into())
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        Self::archive(error.to_string())
    }
}
