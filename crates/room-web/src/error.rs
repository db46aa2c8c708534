//! Errors of the waiting room as clients see them.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use room::{Error, TokenError};
use serde_json::json;
use web::ApiError;

/// An error of a call about the waiting room. Handlers return it, so that `?` works on errors of the room, of the
/// store and of the frame alike.
#[derive(Debug)]
pub(crate) struct RoomApiError(ApiError);

impl From<ApiError> for RoomApiError {
    fn from(error: ApiError) -> RoomApiError {
        RoomApiError(error)
    }
}

impl From<store::Error> for RoomApiError {
    fn from(error: store::Error) -> RoomApiError {
        RoomApiError(error.into())
    }
}

impl From<Error> for RoomApiError {
    fn from(error: Error) -> RoomApiError {
        RoomApiError(api_error(error))
    }
}

impl From<RoomApiError> for ApiError {
    fn from(error: RoomApiError) -> ApiError {
        error.0
    }
}

impl IntoResponse for RoomApiError {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

/// Returns the API's name of a setting.
fn api_name(setting: &'static str) -> &'static str {
    match setting {
        "admission_window" => "admission_window_seconds",
        "hold" => "hold_seconds",
        "heartbeat_interval" => "heartbeat_interval_seconds",
        "poll_floor" => "poll_floor_seconds",
        "poll_ceiling" => "poll_ceiling_seconds",
        "session_timeout" => "session_timeout_seconds",
        "session_max" => "session_max_seconds",
        "provisional_timeout" => "provisional_timeout_seconds",
        other => other,
    }
}

/// Translates an error of the room.
pub(crate) fn api_error(error: Error) -> ApiError {
    match error {
        Error::Invalid { field: "metadata", message } => {
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "METADATA_TOO_LARGE", message)
                .details(json!({ "field": "metadata" }))
        }
        Error::Invalid { field, message } => ApiError::invalid_field(api_name(field), message),
        Error::UnknownQueue => {
            ApiError::new(StatusCode::NOT_FOUND, "QUEUE_NOT_FOUND", "queue not found")
        }
        Error::UnknownPosition => ApiError::new(
            StatusCode::NOT_FOUND,
            "POSITION_NOT_FOUND",
            "position not found; it never existed or ended long ago",
        ),
        Error::UnknownSession => ApiError::new(
            StatusCode::NOT_FOUND,
            "SESSION_NOT_FOUND",
            "session not found; it never existed or ended long ago",
        ),
        Error::QueueExists => {
            ApiError::conflict("QUEUE_EXISTS", "a queue of this name exists already")
        }
        Error::Full { waiting } => {
            ApiError::unavailable("QUEUE_FULL", "the queue is full; try again later")
                .details(json!({ "queue_length": waiting }))
                .retry_after(30)
        }
        Error::Maintenance => {
            ApiError::unavailable("MAINTENANCE_MODE", "the queue is closed for maintenance")
                .retry_after(60)
        }
        Error::AddressFull { limit } => ApiError::new(
            StatusCode::TOO_MANY_REQUESTS,
            "ADDRESS_FULL",
            "your address has reached its limit of sessions; try again when one of them has ended",
        )
        .details(json!({ "limit": limit }))
        .retry_after(10),
        Error::InviteUsed => ApiError::conflict("INVITE_USED", "the invite has been used"),
        Error::Conflict { version } => ApiError::new(
            StatusCode::PRECONDITION_FAILED,
            "VERSION_CONFLICT",
            "the queue was changed in the meantime; read it again",
        )
        .details(json!({ "version": version })),
        Error::PriorityInUse => ApiError::conflict(
            "PRIORITY_IN_USE",
            "the priority policy can change only while nobody with a priority above 0 waits",
        ),
        Error::Token(TokenError::Expired | TokenError::Over) => {
            ApiError::new(StatusCode::UNAUTHORIZED, "TOKEN_EXPIRED", "the token has expired")
        }
        Error::Token(fault) => {
            ApiError::new(StatusCode::UNAUTHORIZED, "BAD_TOKEN", "the token is not valid")
                .details(json!({ "reason": fault.to_string() }))
        }
        Error::Busy => ApiError::unavailable("BUSY", "too many concurrent changes; try again"),
        Error::Store(error) => error.into(),
        other => ApiError::internal(&other),
    }
}
