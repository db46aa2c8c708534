//! The waiting room over HTTP: request and response types, handlers, and who may call them.
//!
//! Handlers extract, call the `room` crate and translate; nothing here decides anything about the
//! service. `visitor.rs` is what those who wait call, `admin.rs` what operators call, `view.rs` the
//! bodies both answer with.

mod admin;
pub(crate) mod cookie;
pub(crate) mod cors;
pub(crate) mod limits;
mod live;
pub(crate) mod site;
pub(crate) mod stream;
mod view;
mod visitor;

use axum::http::StatusCode;
use room::{Error, Fault, Room};
use serde_json::json;

use crate::app::App;
use crate::error::ApiError;
use crate::extract::in_path;
use crate::section::Section;

/// The routes.
pub(crate) fn section() -> Section {
    visitor::section().merge(admin::section())
}

/// The room, if it runs here.
pub(crate) fn room(app: &App) -> Result<&Room, ApiError> {
    app.services().room.as_ref().ok_or_else(|| {
        ApiError::unavailable("SERVICE_OFF", "the waiting room does not run on this instance")
    })
}

pub(crate) fn queue_id(text: &str) -> Result<room::QueueId, ApiError> {
    // A name that cannot be is a queue that is not.
    room::QueueId::parse(text).map_err(|_| Error::UnknownQueue.into())
}

in_path! {
    /// The queue a path names.
    InQueue {
        /// Name of the queue.
        queue_id: room::QueueId
    } by queue_id;

    /// The place a path names.
    InPlace {
        /// Id of the place.
        position_id: room::PositionId
    } by |text| room::PositionId::parse(text).map_err(|_| Error::UnknownPosition.into());

    /// The session a path names.
    InSession {
        /// Id of the session.
        session_id: room::SessionId
    } by |text| room::SessionId::parse(text).map_err(|_| Error::UnknownSession.into());
}

/// What a setting is called here.
fn named(setting: &'static str) -> &'static str {
    match setting {
        "max_active" => "max_active_users",
        "claim_window" => "claim_window_seconds",
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

impl From<Error> for ApiError {
    fn from(error: Error) -> ApiError {
        match error {
            Error::Invalid { field: "metadata", message } => {
                ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "METADATA_TOO_LARGE", message)
                    .details(json!({ "field": "metadata" }))
            }
            Error::Invalid { field, message } => ApiError::invalid_field(named(field), message),
            Error::UnknownQueue => ApiError::new(
                StatusCode::NOT_FOUND,
                "QUEUE_NOT_FOUND",
                "there is no queue of this name",
            ),
            Error::UnknownPosition => ApiError::new(
                StatusCode::NOT_FOUND,
                "POSITION_NOT_FOUND",
                "nothing is known of this place",
            ),
            Error::UnknownSession => ApiError::new(
                StatusCode::NOT_FOUND,
                "SESSION_NOT_FOUND",
                "nothing is known of this session",
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
                "as many sessions as one address may have run from yours; try again when one is over",
            )
            .details(json!({ "limit": limit }))
            .retry_after(10),
            Error::InviteUsed => ApiError::conflict("INVITE_USED", "the invite has been used"),
            Error::Conflict { version } => ApiError::new(
                StatusCode::PRECONDITION_FAILED,
                "VERSION_CONFLICT",
                "the queue was changed meanwhile; read it again",
            )
            .details(json!({ "version": version })),
            Error::LevelsWait => ApiError::conflict(
                "LEVELS_WAIT",
                "the priority policy can change only while nobody above level 0 waits",
            ),
            Error::Token(Fault::Expired | Fault::Over) => {
                ApiError::new(StatusCode::UNAUTHORIZED, "TOKEN_EXPIRED", "the token's time is over")
            }
            Error::Token(fault) => {
                ApiError::new(StatusCode::UNAUTHORIZED, "BAD_TOKEN", "the token is not valid")
                    .details(json!({ "reason": fault.to_string() }))
            }
            Error::Busy => ApiError::unavailable("BUSY", "too much at once; try again"),
            Error::Store(error) => error.into(),
            other => ApiError::internal(&other),
        }
    }
}
