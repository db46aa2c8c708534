//! Cancellations for workers that speak HTTP, as server-sent events: a worker hears at once which of
//! its jobs shall stop, without asking about each.

use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use bytes::Bytes;
use jobs::{Cancellation, Cancellations};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::work::{may, queue};
use crate::error::JobsApiError;
use crate::service::JobsState;
use web::Routes;
use web::auth::Principal;
use web::extract::Query;
use web::sse::{self, Sse};

/// Reconnect delay of a worker that lost the stream.
const RETRY: Duration = Duration::from_secs(1);

/// The routes.
pub(super) fn routes() -> Routes<JobsState> {
    Routes { worker: OpenApiRouter::new().routes(routes!(cancellations)), ..Routes::default() }
}

/// Whose cancellations.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct CancellationsQuery {
    /// Id of the worker that runs the jobs.
    worker_id: String,
}

/// A job that shall stop.
#[derive(Debug, Serialize, ToSchema)]
struct CancellationView<'a> {
    /// Id of the job.
    id: &'a str,
    /// Token of the lease it runs under.
    token: u64,
    /// The reason that was given; may be empty.
    reason: &'a str,
}

/// Follow which jobs of a worker are cancelled while they run, as server-sent events.
#[utoipa::path(get, path = "/api/v1/jobs/cancellations", tag = "jobs",
    operation_id = "follow_cancellations", params(CancellationsQuery),
    responses((status = 200, description = "Events `cancelled` with `{\"id\", \"token\", \"reason\"}`, \
first those from before; one may come more than once.",
        content_type = "text/event-stream", body = String)))]
async fn cancellations(
    State(state): State<JobsState>,
    principal: Principal,
    Query(query): Query<CancellationsQuery>,
) -> Result<impl IntoResponse, JobsApiError> {
    let worker = jobs::WorkerId::parse(query.worker_id.as_str())?;
    let cancellations = queue(&state, &principal)?.cancellations(worker).await?;
    let follow = CancellationFeed { cancellations, principal };
    Ok(Sse::following(
        &state.app,
        RETRY,
        futures_util::stream::unfold(follow, CancellationFeed::next),
    ))
}

struct CancellationFeed {
    cancellations: Cancellations,
    principal: Principal,
}

impl CancellationFeed {
    /// The next event, encoded. A stream that cannot go on ends, and the worker comes back.
    async fn next(mut self) -> Option<(Bytes, CancellationFeed)> {
        loop {
            let Cancellation { id, token, job_type, reason } = match self.cancellations.next().await
            {
                Ok(next) => next?,
                Err(error) => {
                    tracing::debug!(%error, "cancellations not read; the worker comes back");
                    return None;
                }
            };
            if may(&self.principal, &job_type).is_err() {
                continue;
            }
            let view = CancellationView { id: id.as_str(), token, reason: &reason };
            let data = serde_json::to_string(&view).ok()?;
            return Some((sse::event("cancelled", None, &data), self));
        }
    }
}
