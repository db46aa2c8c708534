//! Cancellations for workers that speak HTTP, as server-sent events: a worker hears at once which of
//! its jobs shall stop, without asking about each.

use axum::extract::State;
use axum::response::IntoResponse;
use bytes::Bytes;
use jobs::{Cancellation, Cancellations};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::work::{may, queue};
use crate::app::App;
use crate::auth::Principal;
use crate::error::ApiError;
use crate::extract::Query;
use crate::section::Section;
use crate::sse::{self, Sse};

/// The routes.
pub(super) fn section() -> Section {
    Section { worker: OpenApiRouter::new().routes(routes!(cancellations)), ..Section::default() }
}

/// Whose cancellations.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct CancellationsQuery {
    /// Id of the worker that runs the jobs.
    worker: String,
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
    operation_id = "job_cancellations", params(CancellationsQuery),
    responses((status = 200, description = "Events `cancelled` with `{\"id\", \"token\", \"reason\"}`, \
first those from before; one may come more than once.",
        content_type = "text/event-stream", body = String)))]
async fn cancellations(
    State(app): State<App>,
    principal: Principal,
    Query(query): Query<CancellationsQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let worker = jobs::ServerId::parse(query.worker.as_str())?;
    let cancellations = queue(&app, &principal)?.cancellations(worker).await?;
    let hello = Bytes::from_static(b"retry: 1000\n: hello\n\n");
    let follow = Follow { cancellations, principal, first: Some(hello) };
    Ok(Sse::new(&app, futures_util::stream::unfold(follow, Follow::next)))
}

struct Follow {
    cancellations: Cancellations,
    principal: Principal,
    first: Option<Bytes>,
}

impl Follow {
    /// The next event, encoded. A stream that cannot go on ends, and the worker comes back.
    async fn next(mut self) -> Option<(Bytes, Follow)> {
        if let Some(first) = self.first.take() {
            return Some((first, self));
        }
        loop {
            let Cancellation { id, token, kind, reason } = match self.cancellations.next().await {
                Ok(next) => next?,
                Err(error) => {
                    tracing::debug!(%error, "cancellations not read; the worker comes back");
                    return None;
                }
            };
            if may(&self.principal, &kind).is_err() {
                continue;
            }
            let view = CancellationView { id: id.as_str(), token, reason: &reason };
            let data = serde_json::to_string(&view).ok()?;
            return Some((sse::event("cancelled", None, &data), self));
        }
    }
}
