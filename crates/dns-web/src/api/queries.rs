//! The query log: search over all instances, live tail, export, and deleting a client.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use dns::{LogFilter, LoggedQuery, QueryOutcome, QueryProtocol, SharedRow};
use futures_util::stream;
use serde::de::IntoDeserializer as _;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Interval, MissedTickBehavior};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};
use web::audit::Note;
use web::extract::{Json, Path, Query};
use web::page::PageQuery;
use web::sse::{self, Sse};
use web::time::Timestamp;
use web::{ApiError, Routes};

use super::cache::TierName;
use crate::error::DnsApiError;
use crate::records::{parse_rcode, parse_type, rcode_name, type_name};
use crate::service::DnsState;

/// Time for other instances to answer a search.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for other instances to delete a client.
const DELETE_TIMEOUT: Duration = Duration::from_secs(20);

/// Time after which a browser that lost the tail comes back.
const RETRY: Duration = Duration::from_secs(2);

/// Pause between two looks at the logs of other instances during a tail.
const TAIL_EVERY: Duration = Duration::from_secs(1);

/// Rows of an export that are read at once.
const EXPORT_PAGE: usize = 1_000;

/// The routes.
pub(super) fn routes() -> Routes<DnsState> {
    Routes {
        viewer: OpenApiRouter::new()
            .routes(routes!(search))
            .routes(routes!(tail))
            .routes(routes!(stats))
            .routes(routes!(export)),
        admin: OpenApiRouter::new().routes(routes!(clear)).routes(routes!(delete_client)),
        ..Routes::default()
    }
}

/// An outcome of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = QueryOutcome)]
pub(crate) enum OutcomeName {
    /// Answered from the cache.
    Cached,
    /// Answered by an upstream.
    Upstream,
    /// Answered from the cache after its expiry.
    Stale,
    /// Blocked.
    Blocked,
    /// Rewritten by a rule.
    Rewritten,
    /// Answered with the safe variant of a search engine.
    SafeSearch,
    /// Answered here.
    Local,
    /// An answer with a private address was withheld.
    Rebinding,
    /// Refused.
    Refused,
    /// Above the rate limit.
    RateLimited,
    /// Malformed.
    Invalid,
    /// No upstream answered.
    UpstreamError,
}

impl From<QueryOutcome> for OutcomeName {
    fn from(outcome: QueryOutcome) -> OutcomeName {
        match outcome {
            QueryOutcome::Cached => OutcomeName::Cached,
            QueryOutcome::Upstream => OutcomeName::Upstream,
            QueryOutcome::Stale => OutcomeName::Stale,
            QueryOutcome::Blocked => OutcomeName::Blocked,
            QueryOutcome::Rewritten => OutcomeName::Rewritten,
            QueryOutcome::SafeSearch => OutcomeName::SafeSearch,
            QueryOutcome::Local => OutcomeName::Local,
            QueryOutcome::Rebinding => OutcomeName::Rebinding,
            QueryOutcome::Refused => OutcomeName::Refused,
            QueryOutcome::RateLimited => OutcomeName::RateLimited,
            QueryOutcome::Invalid => OutcomeName::Invalid,
            QueryOutcome::UpstreamError => OutcomeName::UpstreamError,
        }
    }
}

impl OutcomeName {
    fn to_outcome(self) -> Option<QueryOutcome> {
        QueryOutcome::ALL.into_iter().find(|outcome| OutcomeName::from(*outcome) == self)
    }
}

/// Protocol of a query.
#[derive(Debug, ToSchema)]
#[schema(as = QueryProtocol, rename_all = "lowercase")]
#[expect(dead_code, reason = "describes a value in the OpenAPI document")]
enum QueryProtocolName {
    /// DNS over UDP.
    Udp,
    /// DNS over TCP.
    Tcp,
    /// DNS over TLS.
    Tls,
    /// DNS over HTTPS.
    Https,
}

/// Reads an outcome; an empty one, as forms send it, is none.
fn read_outcome<'de, D: Deserializer<'de>>(from: D) -> Result<Option<OutcomeName>, D::Error> {
    match Option::<String>::deserialize(from)?.as_deref() {
        None | Some("") => Ok(None),
        Some(text) => OutcomeName::deserialize(text.into_deserializer()).map(Some),
    }
}

/// Reads a number; an empty one, as forms send it, is none.
fn read_number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    match Option::<String>::deserialize(from)?.as_deref() {
        None | Some("") => Ok(None),
        Some(text) => text.parse().map(Some).map_err(serde::de::Error::custom),
    }
}

/// Reads a time; an empty one, as forms send it, is none.
fn read_time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
    match Option::<String>::deserialize(from)?.as_deref() {
        None | Some("") => Ok(None),
        Some(text) => Timestamp::deserialize(text.into_deserializer()).map(Some),
    }
}

/// A query that was answered.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = LoggedQuery)]
pub(crate) struct QueryView {
    /// Instance that answered it.
    pub(crate) instance: String,
    /// Number in the log of that instance.
    pub(crate) number: u64,
    /// Time of the reply.
    pub(crate) answered_at: Timestamp,
    /// Address of the client, as the policy lets it be logged.
    #[schema(example = "192.168.1.20")]
    pub(crate) client: String,
    /// Id of the client; empty if it is not known.
    pub(crate) client_id: String,
    /// Group of the client.
    pub(crate) group: String,
    /// Name that was asked for.
    #[schema(example = "shop.example")]
    pub(crate) name: String,
    /// Type that was asked for.
    #[serde(rename = "type")]
    #[schema(example = "A")]
    pub(crate) rtype: String,
    /// Response code.
    #[schema(example = "NOERROR")]
    pub(crate) rcode: String,
    /// Outcome.
    pub(crate) outcome: OutcomeName,
    /// Tier of the cache that had the answer; null if none had.
    #[schema(required)]
    pub(crate) tier: Option<TierName>,
    /// Protocol.
    #[schema(value_type = QueryProtocolName)]
    pub(crate) protocol: String,
    /// List or rule that decided; empty if none did.
    pub(crate) list: String,
    /// Upstream that answered; empty if none did.
    pub(crate) upstream: String,
    /// The answer in short.
    #[schema(example = "192.0.2.7")]
    pub(crate) answer: String,
    /// Time from query to reply, rounded down.
    pub(crate) duration_ms: u64,
}

impl QueryView {
    pub(crate) fn new(instance: &str, row: &LoggedQuery) -> QueryView {
        QueryView {
            instance: instance.to_owned(),
            number: row.number,
            answered_at: Timestamp(row.at),
            client: row.client.to_string(),
            client_id: row.client_id.to_string(),
            group: row.group.to_string(),
            name: row.name.to_string(),
            rtype: type_name(row.qtype),
            rcode: rcode_name(row.rcode),
            outcome: row.outcome.into(),
            tier: TierName::of(row.tier),
            protocol: row.protocol.as_str().to_owned(),
            list: row.list.to_string(),
            upstream: row.upstream.to_string(),
            answer: row.answer.to_string(),
            duration_ms: u64::from(row.duration_us) / 1_000,
        }
    }
}

impl From<&SharedRow> for QueryView {
    fn from(shared: &SharedRow) -> QueryView {
        QueryView::new(&shared.instance, &shared.row)
    }
}

/// Selects queries. Texts are found anywhere in the value, in any case.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct LogQuery {
    /// Text in the name.
    pub(crate) name: Option<String>,
    /// Text in the client's address or id.
    pub(crate) client: Option<String>,
    /// Group.
    pub(crate) group: Option<String>,
    /// Type, such as `AAAA`.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    pub(crate) rtype: Option<String>,
    /// Response code, such as `NXDOMAIN`.
    pub(crate) rcode: Option<String>,
    /// Outcome.
    #[serde(deserialize_with = "read_outcome")]
    #[param(inline)]
    pub(crate) outcome: Option<OutcomeName>,
    /// Protocol.
    #[param(value_type = Option<QueryProtocolName>)]
    pub(crate) protocol: Option<String>,
    /// Text in the name of the list or rule that decided.
    pub(crate) list: Option<String>,
    /// Text in the upstream.
    pub(crate) upstream: Option<String>,
    /// Text in the answer.
    pub(crate) answer: Option<String>,
    /// Earliest time.
    #[serde(deserialize_with = "read_time")]
    pub(crate) from: Option<Timestamp>,
    /// Time before which queries were answered.
    #[serde(deserialize_with = "read_time")]
    pub(crate) to: Option<Timestamp>,
    /// Shortest duration.
    #[serde(deserialize_with = "read_number")]
    pub(crate) min_duration_ms: Option<u32>,
    /// Longest duration.
    #[serde(deserialize_with = "read_number")]
    pub(crate) max_duration_ms: Option<u32>,
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub(crate) limit: Option<usize>,
    /// Position to continue from: `next_cursor` of the last answer. Left out: the newest.
    pub(crate) cursor: Option<String>,
}

impl LogQuery {
    /// Returns the filter of the log.
    pub(crate) fn filter(&self) -> Result<LogFilter, ApiError> {
        let qtype = match self.rtype.as_deref().filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => Some(parse_type(text).ok_or_else(|| {
                ApiError::invalid_field("type", format!("{text:?} is not a type such as AAAA"))
            })?),
        };
        let rcode = match self.rcode.as_deref().filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => Some(parse_rcode(text).ok_or_else(|| {
                ApiError::invalid_field(
                    "rcode",
                    format!("{text:?} is not a response code such as NXDOMAIN"),
                )
            })?),
        };
        let protocol = match self.protocol.as_deref().filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => {
                let known = QueryProtocol::ALL.into_iter().find(|one| one.as_str() == text);
                Some(known.ok_or_else(|| {
                    ApiError::invalid_field("protocol", "use udp, tcp, tls or https")
                })?)
            }
        };
        let text = |value: &Option<String>| value.clone().filter(|text| !text.is_empty());
        let micros = |ms: Option<u32>| ms.map(|ms| ms.saturating_mul(1_000));
        Ok(LogFilter {
            name: text(&self.name),
            client: text(&self.client),
            group: text(&self.group),
            qtype,
            rcode,
            outcomes: self.outcome.and_then(OutcomeName::to_outcome).into_iter().collect(),
            protocol,
            list: text(&self.list),
            upstream: text(&self.upstream),
            answer: text(&self.answer),
            from: self.from.map(|at| at.0),
            to: self.to.map(|at| at.0),
            min_duration_us: micros(self.min_duration_ms),
            max_duration_us: micros(self.max_duration_ms),
        })
    }
}

/// Reads a cursor: by instance, the number before which rows follow.
fn parse_cursor(text: &str) -> Option<BTreeMap<String, u64>> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn write_cursor(position: &BTreeMap<String, u64>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(position).unwrap_or_default())
}

/// A page of the query log.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = QueryPage)]
pub(crate) struct QueryPageView {
    /// Queries, newest first.
    pub(crate) items: Vec<QueryView>,
    /// Cursor of the next page; null at the end.
    #[schema(required)]
    pub(crate) next_cursor: Option<String>,
    /// Live instances whose log is not in the page, because they did not answer in time.
    pub(crate) silent_instances: Vec<String>,
}

/// Searches the logs of all live instances.
pub(crate) async fn find(state: &DnsState, query: &LogQuery) -> Result<QueryPageView, ApiError> {
    let page = PageQuery { limit: query.limit, cursor: query.cursor.clone() };
    let (limit, position) = (page.limit()?, page.parse_cursor(parse_cursor)?);
    let filter = query.filter()?;
    let found = state.recording.log.search(&filter, position.as_ref(), limit, SEARCH_TIMEOUT).await;
    Ok(QueryPageView {
        items: found.rows.iter().map(QueryView::from).collect(),
        next_cursor: found.next.as_ref().map(write_cursor),
        silent_instances: found.silent,
    })
}

/// Search the query log of all live instances, newest first.
#[utoipa::path(get, path = "/api/v1/dns/queries", tag = "dns", operation_id = "search_queries",
    params(LogQuery),
    responses((status = 200, description = "A page of queries.", body = QueryPageView)))]
async fn search(
    State(state): State<DnsState>,
    Query(query): Query<LogQuery>,
) -> Result<Json<QueryPageView>, DnsApiError> {
    Ok(Json(find(&state, &query).await?))
}

/// Follow the queries of all live instances as they are answered: server-sent events named `query`. Those of
/// other instances come about a second later. A reader that is too slow gets an event `missed` instead of what it
/// missed.
#[utoipa::path(get, path = "/api/v1/dns/queries/tail", tag = "dns", operation_id = "follow_queries",
    params(LogQuery),
    responses((status = 200, description = "Events.", content_type = "text/event-stream", body = String)))]
async fn tail(
    State(state): State<DnsState>,
    Query(query): Query<LogQuery>,
) -> Result<impl IntoResponse, DnsApiError> {
    let feed = QueryFeed::new(&state, query.filter()?);
    Ok(Sse::following(&state.app, RETRY, stream::unfold(feed, QueryFeed::next)))
}

/// The live tail of one reader: queries of this instance as they are recorded, those of others by a search every
/// second.
struct QueryFeed {
    filter: LogFilter,
    instance: String,
    following: Receiver<Arc<[LoggedQuery]>>,
    others: OtherInstances,
}

impl QueryFeed {
    fn new(state: &DnsState, filter: LogFilter) -> QueryFeed {
        QueryFeed {
            others: OtherInstances::new(state, &filter),
            filter,
            instance: state.app.instance().to_owned(),
            following: state.recording.query_log.follow(),
        }
    }

    /// The next queries, encoded, as soon as there are any.
    async fn next(mut self) -> Option<(Bytes, QueryFeed)> {
        loop {
            let mut frames = Vec::new();
            let mut add = |instance: &str, row: &LoggedQuery| {
                let view = QueryView::new(instance, row);
                let data = serde_json::to_string(&view).unwrap_or_default();
                frames.extend_from_slice(&sse::event("query", None, &data));
            };
            let is_missed = tokio::select! {
                rows = self.following.recv() => match rows {
                    Ok(rows) => {
                        let fitting = rows.iter().filter(|row| self.filter.matches(row));
                        fitting.for_each(|row| add(&self.instance, row));
                        false
                    }
                    Err(RecvError::Lagged(_)) => true,
                    Err(RecvError::Closed) => return None,
                },
                () = self.others.wait() => {
                    let (rows, is_missed) = self.others.read().await;
                    rows.iter().for_each(|shared| add(&shared.instance, &shared.row));
                    is_missed
                }
            };
            if is_missed {
                frames.extend_from_slice(&sse::event("missed", None, "{}"));
            }
            if !frames.is_empty() {
                return Some((Bytes::from(frames), self));
            }
        }
    }
}

/// Queries of the other live instances, for a tail.
struct OtherInstances {
    state: DnsState,
    filter: LogFilter,
    beat: Interval,
    /// By instance, the number of the newest row that was shown.
    shown: HashMap<String, u64>,
}

impl OtherInstances {
    fn new(state: &DnsState, filter: &LogFilter) -> OtherInstances {
        let mut beat = tokio::time::interval(TAIL_EVERY);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let begin = state.resolver.now();
        // What was answered before the tail began is not part of it.
        let from = Some(filter.from.map_or(begin, |from| from.max(begin)));
        let filter = LogFilter { from, ..filter.clone() };
        OtherInstances { state: state.clone(), filter, beat, shown: HashMap::new() }
    }

    /// Waits until the others are to be asked again. Loses nothing when it is dropped.
    async fn wait(&mut self) {
        self.beat.tick().await;
    }

    /// Returns the rows of the others that were not shown yet, oldest first, and true if some were left out.
    async fn read(&mut self) -> (Vec<SharedRow>, bool) {
        let found =
            self.state.recording.log.search_others(&self.filter, EXPORT_PAGE, SEARCH_TIMEOUT).await;
        let shown = &self.shown;
        let is_new = |row: &SharedRow| {
            shown.get(&row.instance).is_none_or(|number| row.row.number > *number)
        };
        let mut rows: Vec<SharedRow> = found.rows.into_iter().filter(is_new).collect();
        // A page full of rows that are all new hides older ones.
        let is_missed = rows.len() >= EXPORT_PAGE;
        rows.reverse();
        for row in &rows {
            let newest = self.shown.entry(row.instance.clone()).or_insert(0);
            *newest = row.row.number.max(*newest);
        }
        (rows, is_missed)
    }
}

/// The query log of this instance.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = QueryLogStats)]
struct LogStatsView {
    /// Rows.
    rows: u64,
    /// Bytes on disk.
    bytes: u64,
    /// Queries recorded since the start.
    recorded: u64,
    /// Queries that the policy keeps out of the log.
    left_out: u64,
    /// Queries that found no room on their way to the log.
    dropped: u64,
    /// True if the log cannot be written.
    is_failing: bool,
    /// Rows that the sink took.
    sink_sent: u64,
    /// Rows that the sink did not take.
    sink_dropped: u64,
}

/// Get the size of this instance's query log, and what is missing in it.
#[utoipa::path(get, path = "/api/v1/dns/queries/stats", tag = "dns", operation_id = "get_query_log_stats",
    responses((status = 200, description = "The log.", body = LogStatsView)))]
async fn stats(State(state): State<DnsState>) -> Json<LogStatsView> {
    let (log, recorder) = (state.recording.query_log.stats(), state.recording.recorder_stats());
    let (sink_sent, sink_dropped) = state.sink.counts();
    Json(LogStatsView {
        rows: log.rows,
        bytes: log.bytes,
        recorded: recorder.seen,
        left_out: recorder.left_out,
        dropped: recorder.dropped + log.dropped,
        is_failing: log.is_failing,
        sink_sent,
        sink_dropped,
    })
}

/// A format of exported queries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = QueryExportFormat)]
enum ExportFormat {
    /// Comma-separated values with a head.
    #[default]
    Csv,
    /// One JSON object a line.
    JsonLines,
}

/// Selects the format of an export, and the queries as a search does.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
struct ExportQuery {
    /// Format; CSV if left out.
    #[param(inline)]
    format: Option<ExportFormat>,
    /// Text in the name.
    name: Option<String>,
    /// Text in the client's address or id.
    client: Option<String>,
    /// Group.
    group: Option<String>,
    /// Type, such as `AAAA`.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    rtype: Option<String>,
    /// Response code, such as `NXDOMAIN`.
    rcode: Option<String>,
    /// Outcome.
    #[serde(deserialize_with = "read_outcome")]
    #[param(inline)]
    outcome: Option<OutcomeName>,
    /// Protocol.
    #[param(value_type = Option<QueryProtocolName>)]
    protocol: Option<String>,
    /// Text in the name of the list or rule that decided.
    list: Option<String>,
    /// Text in the upstream.
    upstream: Option<String>,
    /// Text in the answer.
    answer: Option<String>,
    /// Earliest time.
    #[serde(deserialize_with = "read_time")]
    from: Option<Timestamp>,
    /// Time before which queries were answered.
    #[serde(deserialize_with = "read_time")]
    to: Option<Timestamp>,
    /// Shortest duration.
    #[serde(deserialize_with = "read_number")]
    min_duration_ms: Option<u32>,
    /// Longest duration.
    #[serde(deserialize_with = "read_number")]
    max_duration_ms: Option<u32>,
}

/// Columns of an export.
const EXPORT_HEAD: &str = "answered_at,instance,client,client_id,group,name,type,rcode,outcome,tier,\
    protocol,list,upstream,answer,duration_ms\n";

/// Export the query log of all live instances, newest first.
#[utoipa::path(get, path = "/api/v1/dns/queries/export", tag = "dns", operation_id = "export_queries",
    params(ExportQuery),
    responses((status = 200, description = "CSV or JSON lines.", content_type = "text/plain", body = String)))]
async fn export(
    State(state): State<DnsState>,
    Query(query): Query<ExportQuery>,
) -> Result<Response, DnsApiError> {
    let format = query.format.unwrap_or_default();
    let conditions = LogQuery {
        name: query.name,
        client: query.client,
        group: query.group,
        rtype: query.rtype,
        rcode: query.rcode,
        outcome: query.outcome,
        protocol: query.protocol,
        list: query.list,
        upstream: query.upstream,
        answer: query.answer,
        from: query.from,
        to: query.to,
        min_duration_ms: query.min_duration_ms,
        max_duration_ms: query.max_duration_ms,
        limit: None,
        cursor: None,
    };
    let filter = conditions.filter()?;
    let position: Option<Option<BTreeMap<String, u64>>> = Some(None);
    let is_head = format == ExportFormat::Csv;
    let pieces = stream::unfold((position, is_head), move |(position, is_head)| {
        let (state, filter) = (state.clone(), filter.clone());
        async move {
            let position = position?;
            let found = state
                .recording
                .log
                .search(&filter, position.as_ref(), EXPORT_PAGE, SEARCH_TIMEOUT)
                .await;
            let mut text = if is_head { EXPORT_HEAD.to_owned() } else { String::new() };
            for row in &found.rows {
                write_row(&mut text, &QueryView::from(row), format);
            }
            let next = found.next.map(Some);
            Some((Ok::<_, Infallible>(Bytes::from(text)), (next, false)))
        }
    });
    let (kind, name) = match format {
        ExportFormat::Csv => ("text/csv; charset=utf-8", "queries.csv"),
        ExportFormat::JsonLines => ("application/jsonl", "queries.jsonl"),
    };
    let headers = [
        (header::CONTENT_TYPE, kind.to_owned()),
        (header::CACHE_CONTROL, "no-store".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename={name}")),
    ];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

fn write_row(text: &mut String, row: &QueryView, format: ExportFormat) {
    if format == ExportFormat::JsonLines {
        text.push_str(&serde_json::to_string(row).unwrap_or_default());
        text.push('\n');
        return;
    }
    let outcome = serde_json::to_value(row.outcome).unwrap_or_default();
    let outcome = outcome.as_str().unwrap_or_default().to_owned();
    let tier = row.tier.map_or("", TierName::as_str).to_owned();
    let (at, duration) = (web::format::rfc3339(row.answered_at.0.0), row.duration_ms.to_string());
    let cells = [
        &at,
        &row.instance,
        &row.client,
        &row.client_id,
        &row.group,
        &row.name,
        &row.rtype,
        &row.rcode,
        &outcome,
        &tier,
        &row.protocol,
        &row.list,
        &row.upstream,
        &row.answer,
        &duration,
    ];
    let cells: Vec<String> = cells.iter().map(|cell| csv_cell(cell)).collect();
    text.push_str(&cells.join(","));
    text.push('\n');
}

/// Quotes a cell where it must be. One that a spreadsheet would take for a formula is made a text.
fn csv_cell(text: &str) -> String {
    let text = match text.starts_with(['=', '+', '-', '@', '\t']) {
        true => format!("'{text}"),
        false => text.to_owned(),
    };
    if text.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text
}

/// The result of deleting a client from the logs.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeletedQueries)]
struct DeletedQueriesView {
    /// Rows that were deleted.
    deleted: u64,
    /// Instances that did not answer in time; their logs may still have rows of the client.
    silent_instances: Vec<String>,
}

/// Delete every logged query of everybody, on all live instances. Statistics stay.
#[utoipa::path(delete, path = "/api/v1/dns/queries", tag = "dns", operation_id = "clear_query_log",
    responses((status = 200, description = "Deleted.", body = DeletedQueriesView)))]
async fn clear(State(state): State<DnsState>) -> impl IntoResponse {
    let (deleted, silent_instances) = state.recording.log.clear(DELETE_TIMEOUT).await;
    let note = Note::new("dns_log.clear", "queries");
    (Extension(note), Json(DeletedQueriesView { deleted, silent_instances }))
}

/// Delete every logged query of a client, by address or id as the log has it, on all live instances, its counts
/// in the statistics, and the note that it was seen.
#[utoipa::path(delete, path = "/api/v1/dns/queries/clients/{client}", tag = "dns",
    operation_id = "delete_logged_client",
    params(("client" = String, Path, description = "Address or id, as the log has it.")),
    responses((status = 200, description = "Deleted.", body = DeletedQueriesView)))]
async fn delete_client(
    State(state): State<DnsState>,
    Path(client): Path<String>,
) -> Result<impl IntoResponse, DnsApiError> {
    let (deleted, silent_instances) =
        state.recording.log.delete_client(&client, DELETE_TIMEOUT).await;
    state.recording.statistics.forget_client(&client).await?;
    state.seen.forget(&client).await?;
    let note = Note::new("dns_log.delete_client", &client);
    Ok((Extension(note), Json(DeletedQueriesView { deleted, silent_instances })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_and_never_formulas() {
        assert_eq!(csv_cell("plain"), "plain");
        assert_eq!(csv_cell("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(csv_cell("=1+1"), "'=1+1");
    }

    #[test]
    fn a_cursor_is_read_back() {
        let position = BTreeMap::from([("a:1".to_owned(), 7), ("b".to_owned(), u64::MAX)]);
        assert_eq!(parse_cursor(&write_cursor(&position)), Some(position));
        assert_eq!((parse_cursor("x"), parse_cursor("")), (None, None));
    }
}
