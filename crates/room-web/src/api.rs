//! HTTP API of the waiting room: request and response types, handlers, and who may call them.
//!
//! Handlers extract, call the `room` crate and translate; nothing here decides anything about the
//! service. `visitor.rs` has the calls of visitors, `admin.rs` those of operators, `view.rs` the
//! response bodies of both.

mod admin;
pub(crate) mod cors;
mod live;
pub(crate) mod stream;
mod view;
mod visitor;

use room::Error;

pub(crate) use self::view::HourView;
use crate::error::api_error;
use crate::service::RoomState;
use web::ApiError;
use web::Routes;
use web::extract::in_path;

/// The routes.
pub(crate) fn routes() -> Routes<RoomState> {
    visitor::routes().merge(admin::routes())
}

pub(crate) fn queue_id(text: &str) -> Result<room::QueueId, ApiError> {
    // An invalid name cannot exist, so answer 404 rather than 400.
    room::QueueId::parse(text).map_err(|_| api_error(Error::UnknownQueue))
}

in_path! {
    /// The queue a path names.
    InQueue {
        /// Name of the queue.
        queue_id: room::QueueId
    } by queue_id;

    /// The position a path names.
    InPosition {
        /// Id of the position.
        position_id: room::PositionId
    } by |text| room::PositionId::parse(text).map_err(|_| api_error(Error::UnknownPosition));

    /// The session a path names.
    InSession {
        /// Id of the session.
        session_id: room::SessionId
    } by |text| room::SessionId::parse(text).map_err(|_| api_error(Error::UnknownSession));
}
