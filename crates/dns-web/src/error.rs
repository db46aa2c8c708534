//! Errors of the resolver as clients see them.

use axum::response::{IntoResponse, Response};
use dns::Error;
use serde_json::json;
use web::ApiError;

/// An error of a call about the resolver. Handlers return it, so that `?` works on errors of the
/// resolver, of the store and of the frame alike.
#[derive(Debug)]
pub(crate) struct DnsApiError(ApiError);

impl DnsApiError {
    /// Returns the sentence for people.
    pub(crate) fn message(&self) -> &str {
        self.0.message()
    }
}

impl From<ApiError> for DnsApiError {
    fn from(error: ApiError) -> DnsApiError {
        DnsApiError(error)
    }
}

impl From<Error> for DnsApiError {
    fn from(error: Error) -> DnsApiError {
        DnsApiError(match error {
            Error::Invalid { field, message } => ApiError::invalid_field(field, message),
            Error::Policy(refused) => ApiError::invalid_field(&refused.field, refused.reason),
            Error::Conflict { expected, current } => ApiError::conflict(
                "POLICY_CHANGED",
                format!("the policy has version {current}, not {expected}; read it again and repeat the change"),
            )
            .details(json!({ "version": current })),
            Error::Store(error) => error.into(),
            other => ApiError::internal(&other),
        })
    }
}

impl IntoResponse for DnsApiError {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}
