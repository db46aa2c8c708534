//! Traffic that other programs report as JSON.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use desk::traffic::ReportedRequests;
use desk::{AppName, InstanceId};
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};
use web::extract::Json;
use web::{ApiError, Routes};

use super::{ScopeCheck, TrafficScope};
use crate::error::DeskApiError;
use crate::service::DeskState;

/// Most rows of one report.
const ROWS_MAX: usize = 1_000;
/// Most requests of one row: more are a mistake.
const COUNT_MAX: u64 = 1_000_000_000;
/// Longest duration of a request in a row.
const DURATION_MAX_MS: u64 = 86_400_000;

pub(super) fn routes() -> Routes<DeskState> {
    Routes { worker: OpenApiRouter::new().routes(routes!(report)), ..Routes::default() }
}

/// Requests of another program since its last report.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "app": "shop",
    "items": [{ "method": "GET", "route": "/api/users/:id", "status": 200, "duration_ms": 12, "count": 1 }]
}))]
struct TrafficReport {
    /// Name of the program, under which its traffic is kept.
    #[schema(max_length = 64)]
    app: String,
    /// Rows, at most 1,000.
    #[schema(max_items = 1000)]
    items: Vec<TrafficRow>,
}

/// Requests that ended alike.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReportedRequests)]
struct TrafficRow {
    /// Method of the requests.
    method: String,
    /// Template of the route they matched, `/api/users/:id`, never the path itself; left out if they
    /// matched none.
    route: Option<String>,
    /// Status of the responses, 100 to 599.
    #[schema(minimum = 100, maximum = 599)]
    status: u16,
    /// Duration of a request, in milliseconds; of several, the mean.
    #[schema(minimum = 0)]
    duration_ms: u64,
    /// Number of requests; 1 if left out.
    #[schema(minimum = 1)]
    count: Option<u64>,
}

impl TrafficRow {
    fn reported(&self, index: usize) -> Result<ReportedRequests, ApiError> {
        let invalid = |name: &str, message: &str| {
            ApiError::invalid_field(&format!("items[{index}].{name}"), message)
        };
        if !(100..=599).contains(&self.status) {
            return Err(invalid("status", "100 to 599"));
        }
        if self.duration_ms > DURATION_MAX_MS {
            return Err(invalid("duration_ms", "0 to 86,400,000, which is a day"));
        }
        let count = self.count.unwrap_or(1);
        if !(1..=COUNT_MAX).contains(&count) {
            return Err(invalid("count", "1 to 1,000,000,000"));
        }
        Ok(ReportedRequests {
            method: self.method.clone(),
            route: self.route.clone(),
            status: self.status,
            requests: count,
            times: vec![(Duration::from_millis(self.duration_ms), count)],
            since_start: None,
        })
    }
}

/// Report requests of another program.
///
/// Adds to the traffic of the program, which is kept under its name. A repeated report counts again: send
/// each row once.
#[utoipa::path(post, path = "/api/v1/metrics/requests", tag = "desk", operation_id = "report_requests",
    request_body = TrafficReport, responses((status = 204, description = "Counted.")))]
async fn report(
    State(state): State<DeskState>,
    _: ScopeCheck<TrafficScope>,
    Json(body): Json<TrafficReport>,
) -> Result<impl IntoResponse, DeskApiError> {
    let app = AppName::parse(&body.app)?;
    if body.items.len() > ROWS_MAX {
        let message = format!("{} rows; at most {ROWS_MAX}", body.items.len());
        return Err(ApiError::invalid_field("items", message).into());
    }
    let rows = body.items.iter().enumerate().map(|(index, row)| row.reported(index));
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    let traffic = state.desk.reported(&app).await?;
    traffic.report(&InstanceId::parse("json")?, &rows).await?;
    Ok(StatusCode::NO_CONTENT)
}
