//! Numbers over time for supervisors: reports, one row per conversation as CSV, and the archive.

use std::collections::HashMap;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use desk::TeamId;
use desk::chat::{AgentNames, Chat, Conversation, ReportGroup, rfc3339};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::Millis;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use web::extract::{Json, Query};
use web::time::Timestamp;
use web::{ApiError, Routes};

use super::caller::StaffCaller;
use super::view::ReportView;
use crate::error::DeskApiError;
use crate::service::DeskState;

/// Conversations that are read at a time.
const CSV_BATCH: usize = 1_000;

/// Columns of the CSV.
const CSV_HEAD: &str = "id,created_at,first_reply_at,first_reply_seconds,resolved_at,resolution_seconds,status,\
                        priority,channel,team,assignee,visitor,email,verified,tags,messages,sla,rating,rating_comment\r\n";

pub(super) fn routes() -> Routes<DeskState> {
    Routes {
        public: OpenApiRouter::new()
            .routes(routes!(report))
            .routes(routes!(conversations))
            .routes(routes!(archive)),
        ..Routes::default()
    }
}

/// Grouping of a report.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ReportGroupName {
    /// By day (UTC).
    #[default]
    Day,
    /// By agent.
    Agent,
    /// By tag; a conversation with two tags counts under both.
    Tag,
}

/// The time and grouping of a report.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ReportQuery {
    /// Beginning.
    from: Timestamp,
    /// End.
    to: Timestamp,
    /// Grouping; `day` if left out.
    #[param(inline)]
    group: Option<ReportGroupName>,
}

/// Get a report: volume, reply times, resolutions, ratings and reply targets over time.
#[utoipa::path(get, path = "/api/v1/reports", tag = "desk", operation_id = "get_chat_report", params(ReportQuery),
    responses((status = 200, description = "The report.", body = ReportView)))]
async fn report(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Query(query): Query<ReportQuery>,
) -> Result<Json<Value>, DeskApiError> {
    caller.require_overview()?;
    let group = match query.group.unwrap_or_default() {
        ReportGroupName::Day => ReportGroup::Day,
        ReportGroupName::Agent => ReportGroup::Agent,
        ReportGroupName::Tag => ReportGroup::Tag,
    };
    let rows = state.chat()?.report(query.from.0, query.to.0, group).await?;
    let groups: Vec<Value> = rows.iter().map(|row| row.to_json()).collect();
    Ok(Json(json!({ "groups": groups })))
}

/// The time of conversations.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ReportRange {
    /// Beginning.
    from: Timestamp,
    /// End.
    to: Timestamp,
}

/// Conversations that were begun in a time, as CSV: one row each, oldest first. A cell that a spreadsheet would
/// take for a formula begins with an apostrophe.
#[utoipa::path(get, path = "/api/v1/reports/conversations", tag = "desk", operation_id = "get_chat_report_csv",
    params(ReportRange),
    responses((status = 200, description = "The rows, with a head.", content_type = "text/csv", body = String)))]
async fn conversations(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Query(query): Query<ReportRange>,
) -> Result<Response, DeskApiError> {
    caller.require_overview()?;
    let chat = state.chat()?.clone();
    let (from, to) = (query.from.0, query.to.0);
    // The first page is read before the answer begins, so that what is wrong is still told.
    let first = chat.report_conversations(from, to, None, CSV_BATCH).await?;
    let pages =
        futures_util::stream::unfold(Some((chat, Some(first), None)), move |place| async move {
            let (chat, ready, last): (Chat, Option<Vec<Conversation>>, Option<Conversation>) =
                place?;
            let found = match ready {
                Some(found) => Ok(found),
                None => chat.report_conversations(from, to, last.as_ref(), CSV_BATCH).await,
            };
            match found {
                Ok(found) if found.is_empty() => None,
                Ok(found) => {
                    let (names, teams) = (chat.names(), chat.teams());
                    let teams = teams.into_iter().map(|team| (team.id, team.name)).collect();
                    let text: String =
                        found.iter().map(|one| csv_row(one, &*names, &teams)).collect();
                    let next = found.into_iter().next_back().map(|last| (chat, None, Some(last)));
                    Some((Ok(text), next))
                }
                Err(error) => Some((Err(std::io::Error::other(error.to_string())), None)),
            }
        });
    let head = futures_util::stream::once(async { Ok(CSV_HEAD.to_owned()) });
    let body = Body::from_stream(futures_util::StreamExt::chain(head, pages));
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/csv; charset=utf-8"));
    let day = |at: Millis| rfc3339(at).chars().take(10).collect::<String>();
    let name = format!("attachment; filename=\"conversations-{}-{}.csv\"", day(from), day(to));
    let name = HeaderValue::from_str(&name).map_err(|error| ApiError::internal(&error))?;
    headers.insert(header::CONTENT_DISPOSITION, name);
    Ok(response)
}

fn csv_row(one: &Conversation, names: &dyn AgentNames, teams: &HashMap<TeamId, String>) -> String {
    let agent = one.assignee.as_ref().or(one.last_agent.as_ref());
    let team = one.team.as_ref().and_then(|id| teams.get(id).cloned());
    let seconds = |at: Option<Millis>| at.map(|at| ((at.0 - one.created_at.0) / 1_000).to_string());
    let cells = [
        Some(one.id.to_string()),
        Some(rfc3339(one.created_at)),
        one.first_reply_at.map(rfc3339),
        seconds(one.first_reply_at),
        one.resolved_at.map(rfc3339),
        seconds(one.resolved_at),
        Some(one.status.as_str().to_owned()),
        Some(one.priority.as_str().to_owned()),
        Some(one.channel.clone()),
        team,
        agent.and_then(|agent| names.name_of(agent)),
        one.visitor.name.clone(),
        one.visitor.email.clone(),
        Some(one.visitor.verified.to_string()),
        Some(one.tags.join(" ")),
        Some(one.last_seq.to_string()),
        Some(one.sla_state.clone()),
        one.rating.map(|rating| rating.to_string()),
        one.rating_comment.clone(),
    ];
    let cells: Vec<String> =
        cells.into_iter().map(|cell| csv_cell(&cell.unwrap_or_default())).collect();
    format!("{}\r\n", cells.join(","))
}

/// Writes a cell that a spreadsheet takes as text, not as a formula.
fn csv_cell(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if is_formula { format!("'{text}") } else { text.to_owned() };
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

/// Kind of an archive.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ChatArchiveKind)]
enum ArchiveKindName {
    /// A file.
    Sqlite,
    /// A server.
    Postgres,
}

/// The archive of the chat.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatArchive)]
struct ArchiveView {
    /// A file or a server.
    kind: ArchiveKindName,
    /// The file, or the server and database without the password.
    place: String,
    /// Its id, which the store has, too.
    id: String,
    /// Version of its tables.
    schema: usize,
    /// Bytes of the file, or of the database.
    bytes: i64,
    /// Conversations that are open or pending.
    open_conversations: i64,
    /// Conversations that are resolved.
    resolved_conversations: i64,
    /// Messages and notes.
    messages: i64,
    /// Visitors.
    visitors: i64,
    /// Files that were sent.
    files: i64,
    /// Their bytes.
    file_bytes: i64,
    /// Seconds after which resolved conversations are deleted; 0 keeps them.
    retention_seconds: u64,
    /// The time of the last backup with `tidegate desk archive backup`; null without one.
    #[schema(required)]
    last_backup_at: Option<Timestamp>,
}

/// The archive: where it is, its contents, and the last backup.
#[utoipa::path(get, path = "/api/v1/dashboard/archive", tag = "desk", operation_id = "get_desk_archive",
    responses((status = 200, description = "The archive.", body = ArchiveView)))]
async fn archive(
    State(state): State<DeskState>,
    caller: StaffCaller,
) -> Result<Json<ArchiveView>, DeskApiError> {
    caller.require_overview()?;
    let chat = state.chat()?;
    let archive = chat.archive();
    let contents = archive.contents().await?;
    let last = archive.last_backup().await?;
    Ok(Json(ArchiveView {
        kind: if archive.place().is_local() {
            ArchiveKindName::Sqlite
        } else {
            ArchiveKindName::Postgres
        },
        place: archive.place().to_string(),
        id: archive.id().to_owned(),
        schema: contents.schema,
        bytes: contents.bytes,
        open_conversations: contents.open_conversations,
        resolved_conversations: contents.resolved_conversations,
        messages: contents.messages,
        visitors: contents.visitors,
        files: contents.files,
        file_bytes: contents.file_bytes,
        retention_seconds: chat.options().retention.as_secs(),
        last_backup_at: last.map(|seconds| Timestamp(Millis(seconds.saturating_mul(1_000)))),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_no_formula_and_keeps_its_place() {
        for (text, cell) in [
            ("plain", "plain"),
            ("=1+1", "'=1+1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("-2", "'-2"),
            ("a, b", "\"a, b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("two\nlines", "\"two\nlines\""),
            ("=\"x\"", "\"'=\"\"x\"\"\""),
        ] {
            assert_eq!(csv_cell(text), cell);
        }
    }
}
