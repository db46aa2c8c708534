//! Errors of the desk as clients see them.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use desk::Error;
use web::ApiError;

/// An error of a call to the desk. Handlers return it, so that `?` works on errors of the desk and of
/// the frame alike.
#[derive(Debug)]
pub(crate) struct DeskApiError(ApiError);

impl From<ApiError> for DeskApiError {
    fn from(error: ApiError) -> DeskApiError {
        DeskApiError(error)
    }
}

impl From<Error> for DeskApiError {
    fn from(error: Error) -> DeskApiError {
        DeskApiError(match error {
            Error::Invalid { field, message } => ApiError::invalid_field(field, message),
            Error::Store(error) => error.into(),
            Error::NotFound { what } => ApiError::not_found(format!("there is no such {what}")),
            Error::Conflict { code: "VERSION_MISMATCH", message } => {
                ApiError::new(StatusCode::PRECONDITION_FAILED, "VERSION_MISMATCH", message)
            }
            Error::Conflict { code, message } => ApiError::conflict(code, message),
            Error::Forbidden { code, message } => {
                ApiError::new(StatusCode::FORBIDDEN, code, message)
            }
            Error::Archive { message } => {
                tracing::error!(message, "the archive failed");
                ApiError::unavailable(
                    "ARCHIVE_UNAVAILABLE",
                    "the archive cannot be used at the moment",
                )
            }
            other => ApiError::internal(&other),
        })
    }
}

impl DeskApiError {
    /// The status the client gets.
    pub(crate) fn status(&self) -> StatusCode {
        self.0.status()
    }

    /// Its code, such as `ALREADY_ASSIGNED`.
    pub(crate) fn code(&self) -> &str {
        self.0.code()
    }

    /// The error as a frame of a socket tells it.
    pub(crate) fn summary(self) -> serde_json::Value {
        let (status, code) = (self.0.status().as_u16(), self.0.code());
        let message = self.0.message().to_owned();
        let mut headers = axum::http::HeaderMap::new();
        self.0.headers_into(&mut headers);
        let retry_after = headers.get(axum::http::header::RETRY_AFTER);
        let retry_after: Option<u64> = retry_after.and_then(|v| v.to_str().ok()?.parse().ok());
        serde_json::json!({ "status": status, "code": code, "message": message, "retry_after": retry_after })
    }
}

impl IntoResponse for DeskApiError {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

/// 404: there is no policy of this name.
pub(crate) fn unknown_policy(name: &str) -> ApiError {
    let message = format!(
        "there is no policy {name:?}; GET /api/v1/ratelimit/policies lists them, PUT stores one"
    );
    ApiError::new(StatusCode::NOT_FOUND, "POLICY_NOT_FOUND", message)
}

/// 404: this user is not known.
pub(crate) fn unknown_user() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "USER_NOT_FOUND", "this user is not known")
}

/// 404: there is no session of this id.
pub(crate) fn unknown_session() -> ApiError {
    let message = "there is no session of this id; it has ended or never was";
    ApiError::new(StatusCode::NOT_FOUND, "USER_SESSION_NOT_FOUND", message)
}
