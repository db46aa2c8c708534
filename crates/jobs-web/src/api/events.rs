//! Job events as server-sent events; the stream can be resumed.

use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use bytes::Bytes;
use jobs::{EventId, JobEvent, JobId, Jobs};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::error::JobsApiError;
use crate::service::JobsState;
use web::ApiError;
use web::Routes;
use web::extract::Query;
use web::sse::{self, Sse};
use web::time::Timestamp;

/// Reconnect delay of a client that lost the stream.
const RETRY: Duration = Duration::from_secs(2);
/// Poll interval while somebody follows the stream.
const LOOK: Duration = Duration::from_millis(200);
/// Most events read in one poll.
const BATCH: usize = 500;

/// The routes.
pub(super) fn routes() -> Routes<JobsState> {
    Routes { viewer: OpenApiRouter::new().routes(routes!(events)), ..Routes::default() }
}

/// The part of the stream to follow.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventsQuery {
    /// Only events of this job.
    job_id: Option<String>,
    /// Id of the last event seen; `0` for all that are kept. Left out: the stream starts with the next
    /// event. The header `Last-Event-ID`, which browsers send when they come back, beats it.
    cursor: Option<String>,
}

/// Something that happened.
#[derive(Debug, Serialize, ToSchema)]
struct JobEventView<'a> {
    /// Time of the event.
    happened_at: Timestamp,
    /// The name of the event.
    event: &'a str,
    /// To which jobs.
    jobs: Vec<&'a str>,
    /// The worker, the parent, the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
}

/// Follow what happens to jobs, as server-sent events.
#[utoipa::path(get, path = "/api/v1/jobs/events", tag = "jobs", operation_id = "follow_job_events",
    params(EventsQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "Id of the last event seen.")),
    responses((status = 200, description = "Events `dispatched`, `started`, `completed`, `retrying`, \
`dead` and so on with `{\"happened_at\", \"event\", \"jobs\", \"why\"}`; `missed` when some are gone already.",
        content_type = "text/event-stream", body = String)))]
async fn events(
    State(state): State<JobsState>,
    headers: HeaderMap,
    Query(query): Query<EventsQuery>,
) -> Result<impl IntoResponse, JobsApiError> {
    let jobs = state.jobs.clone();
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let place = match last.or(query.cursor.as_deref()).filter(|place| !place.is_empty()) {
        None => jobs.events_latest().await?,
        Some("0") => EventId::START,
        Some(place) => place.parse().map_err(|_| {
            ApiError::invalid_field("cursor", "an event id such as 1767225600000-0")
        })?,
    };
    let job = query.job_id.as_deref().map(super::job_id).transpose()?;
    let follow = EventFeed { jobs, job, place };
    Ok(Sse::following(&state.app, RETRY, futures_util::stream::unfold(follow, EventFeed::next)))
}

struct EventFeed {
    jobs: Jobs,
    job: Option<JobId>,
    place: EventId,
}

impl EventFeed {
    /// The next events, encoded, as soon as there are any.
    async fn next(mut self) -> Option<(Bytes, EventFeed)> {
        loop {
            let (events, missed) = match self.jobs.events_after(self.place, BATCH).await {
                Ok(found) => found,
                Err(error) => {
                    tracing::debug!(%error, "events not read; the client comes back");
                    return None;
                }
            };
            let mut frames = Vec::new();
            if missed {
                frames.extend_from_slice(&sse::event("missed", None, "{}"));
            }
            for event in &events {
                self.place = event.id;
                frames.extend_from_slice(&self.encode(event).unwrap_or_default());
            }
            if !frames.is_empty() {
                return Some((Bytes::from(frames), self));
            }
            if events.len() < BATCH {
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    fn encode(&self, event: &JobEvent) -> Option<Bytes> {
        let jobs = event.jobs.iter().filter(|id| self.job.as_ref().is_none_or(|job| job == *id));
        let view = JobEventView {
            happened_at: Timestamp(jobs::Millis(event.at)),
            event: &event.event,
            jobs: jobs.map(JobId::as_str).collect(),
            why: event.why.as_deref(),
        };
        if view.jobs.is_empty() {
            return None;
        }
        let data = serde_json::to_string(&view).ok()?;
        Some(sse::event(&event.event, Some(&event.id.to_string()), &data))
    }
}
