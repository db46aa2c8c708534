//! Problems with what to do about them, and the daily summary.

use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};
use web::audit::Note;
use web::extract::{Json, Query};
use web::page::{Page, PageQuery};
use web::time::Timestamp;
use web::{ApiError, Routes};

use crate::alerts;
use crate::error::DnsApiError;
use crate::problems::{Problem, Severity};
use crate::service::DnsState;

/// The routes.
pub(super) fn routes() -> Routes<DnsState> {
    Routes {
        viewer: OpenApiRouter::new().routes(routes!(list)),
        operator: OpenApiRouter::new().routes(routes!(send_summary)),
        ..Routes::default()
    }
}

/// Weight of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ProblemSeverity)]
pub(crate) enum SeverityName {
    /// Queries are not answered, or not as they should be.
    Error,
    /// It works, but may not for long.
    Warning,
    /// Worth knowing.
    Notice,
}

/// Something that is wrong, or was.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = DnsProblem)]
pub(crate) struct ProblemView {
    /// Id, the same as long as it lasts.
    #[schema(example = "list:ads")]
    pub(crate) id: String,
    /// Weight.
    pub(crate) severity: SeverityName,
    /// The problem in a few words.
    pub(crate) title: String,
    /// The facts.
    pub(crate) text: String,
    /// Advice on how to fix it.
    pub(crate) fix: String,
    /// The page about it.
    pub(crate) path: String,
    /// Time at which it was noticed.
    pub(crate) began_at: Timestamp,
    /// Time at which it was over; null while it lasts.
    #[schema(required)]
    pub(crate) ended_at: Option<Timestamp>,
}

impl From<Problem> for ProblemView {
    fn from(problem: Problem) -> ProblemView {
        ProblemView {
            id: problem.id,
            severity: match problem.severity {
                Severity::Error => SeverityName::Error,
                Severity::Warning => SeverityName::Warning,
                Severity::Notice => SeverityName::Notice,
            },
            title: problem.title,
            text: problem.text,
            fix: problem.fix,
            path: problem.path,
            began_at: Timestamp(problem.since),
            ended_at: problem.ended.map(Timestamp),
        }
    }
}

/// List the problems of this instance: those that last, then up to 100 that are over.
#[utoipa::path(get, path = "/api/v1/dns/problems", tag = "dns", operation_id = "list_dns_problems",
    params(PageQuery),
    responses((status = 200, description = "A page of problems.", body = Page<ProblemView>)))]
async fn list(
    State(state): State<DnsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<ProblemView>>, DnsApiError> {
    let (offset, limit) = (page.offset()?, page.limit()?);
    let found = state.problems.list().into_iter().skip(offset).take(limit);
    Ok(Json(Page::at(offset, limit, found.map(ProblemView::from).collect())))
}

/// A summary that was put in line.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DnsSummary)]
struct SummaryView {
    /// The summary.
    text: String,
}

/// Send the summary of the last 24 hours to webhooks now.
#[utoipa::path(post, path = "/api/v1/dns/summary", tag = "dns", operation_id = "send_dns_summary",
    responses((status = 200, description = "In line.", body = SummaryView)))]
async fn send_summary(State(state): State<DnsState>) -> Result<impl IntoResponse, DnsApiError> {
    let event = alerts::summary(&state, None)
        .await
        .map_err(|error| ApiError::unavailable("STATISTICS_UNAVAILABLE", error))?;
    let text = event.text.clone();
    state.app.webhooks().emit(event).await?;
    Ok((Extension(Note::new("dns.summary", "webhooks")), Json(SummaryView { text })))
}
