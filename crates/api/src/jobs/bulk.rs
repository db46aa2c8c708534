//! What operators do to many jobs at once, chosen by state, type and text.

use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use jobs::{Bulk, Filter, Which};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::lists::which;
use super::queue;
use crate::app::App;
use crate::audit::Note;
use crate::error::ApiError;
use crate::extract::Json;
use crate::section::Section;

/// How many jobs one call changes at most.
const MOST: usize = 1_000;

/// The routes.
pub(super) fn section() -> Section {
    Section {
        operator: OpenApiRouter::new()
            .routes(routes!(replay_many))
            .routes(routes!(retry_many))
            .routes(routes!(cancel_many))
            .routes(routes!(remove_many)),
        ..Section::default()
    }
}

/// Which jobs. At least one of `all`, `state`, `type` and `text` must be there.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
struct Choice {
    /// Every job of the list; not together with `type` or `text`.
    all: bool,
    /// In which list they are; each call says which lists it knows, and the first of them counts
    /// if left out.
    state: Option<String>,
    /// Only jobs of this type.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Only jobs with this text in their id, the job itself or its result. Case matters.
    text: Option<String>,
    /// How many at most; 1000 if left out, which is the most.
    limit: Option<usize>,
    /// Why, for people; only where jobs are cancelled.
    reason: Option<String>,
}

/// A job to which it could not be done.
#[derive(Debug, Serialize, ToSchema)]
struct Refused {
    /// Id of the job.
    id: String,
    /// Why not.
    message: String,
}

/// What was done.
#[derive(Debug, Serialize, ToSchema)]
struct Changed {
    /// How many jobs were changed.
    count: usize,
    /// Which.
    ids: Vec<String>,
    /// Jobs that fit and could not be changed.
    refused: Vec<Refused>,
    /// There may be more that fit: call again.
    more: bool,
}

impl Choice {
    /// Refuses a choice that names nothing: a forgotten filter must not mean every job.
    fn check(&self) -> Result<(), ApiError> {
        let narrowed = self.kind.is_some() || self.text.is_some();
        match (self.all, narrowed || self.state.is_some()) {
            (false, false) => Err(ApiError::invalid_field(
                "all",
                "name the jobs by state, type or text, or send {\"all\": true} to mean every one",
            )),
            (true, _) if narrowed => Err(ApiError::invalid_field(
                "all",
                "all means every job: leave it out, or leave out type and text",
            )),
            _ => Ok(()),
        }
    }
}

async fn change(
    app: &App,
    choice: Choice,
    known: &[Which],
    bulk: Bulk,
    action: &'static str,
) -> Result<impl IntoResponse + use<>, ApiError> {
    choice.check()?;
    let which = match choice.state.as_deref() {
        Some(state) => which(state)?,
        None => known.first().copied().unwrap_or(Which::Dead),
    };
    if !known.contains(&which) {
        let names: Vec<&str> = known.iter().map(|which| which.as_str()).collect();
        let message = format!("this call is for jobs that are {}", names.join(" or "));
        return Err(ApiError::invalid_field("state", message));
    }
    let shown = format!(
        "{} type={} text={}",
        which.as_str(),
        choice.kind.as_deref().unwrap_or("*"),
        choice.text.as_deref().unwrap_or("*")
    );
    let filter = Filter { which: Some(which), kind: choice.kind, text: choice.text };
    let most = choice.limit.unwrap_or(MOST).clamp(1, MOST);
    let done = queue(app)?.bulk(&filter, &bulk, most).await?;
    let refused = done.refused.into_iter().map(|(id, error)| Refused {
        id: id.to_string(),
        message: ApiError::from(error).message().to_owned(),
    });
    let body = Changed {
        count: done.done.len(),
        ids: done.done.iter().map(ToString::to_string).collect(),
        refused: refused.collect(),
        more: done.more,
    };
    Ok((Extension(Note::new(action, &shown)), Json(body)))
}

/// Run many ended jobs once more. `state` is `dead` or `finished`.
#[utoipa::path(post, path = "/api/v1/jobs/replay", tag = "jobs", request_body = Choice,
    responses((status = 200, description = "What was done.", body = Changed)))]
async fn replay_many(
    State(app): State<App>,
    Json(choice): Json<Choice>,
) -> Result<impl IntoResponse, ApiError> {
    change(&app, choice, &[Which::Dead, Which::Finished], Bulk::Replay, "jobs.replay").await
}

/// Run many jobs now. `state` is `delayed` (they are due at once) or `dead` (they run once more).
#[utoipa::path(post, path = "/api/v1/jobs/retry", tag = "jobs", request_body = Choice,
    responses((status = 200, description = "What was done.", body = Changed)))]
async fn retry_many(
    State(app): State<App>,
    Json(choice): Json<Choice>,
) -> Result<impl IntoResponse, ApiError> {
    change(&app, choice, &[Which::Delayed, Which::Dead], Bulk::Retry, "jobs.retry").await
}

/// Cancel many jobs. `state` is `waiting`, `delayed` or `active`.
#[utoipa::path(post, path = "/api/v1/jobs/cancel", tag = "jobs", request_body = Choice,
    responses((status = 200, description = "What was done.", body = Changed)))]
async fn cancel_many(
    State(app): State<App>,
    Json(mut choice): Json<Choice>,
) -> Result<impl IntoResponse, ApiError> {
    let bulk = Bulk::Cancel(choice.reason.take().unwrap_or_default());
    let known = [Which::Waiting, Which::Delayed, Which::Active];
    change(&app, choice, &known, bulk, "jobs.cancel").await
}

/// Forget many ended jobs. `state` is `dead` or `finished`.
#[utoipa::path(post, path = "/api/v1/jobs/remove", tag = "jobs", request_body = Choice,
    responses((status = 200, description = "What was done.", body = Changed)))]
async fn remove_many(
    State(app): State<App>,
    Json(choice): Json<Choice>,
) -> Result<impl IntoResponse, ApiError> {
    change(&app, choice, &[Which::Dead, Which::Finished], Bulk::Remove, "jobs.remove").await
}
