//! Statistics of all instances, for any range.

use std::time::Duration;

use axum::extract::State;
use dns::{CacheTier, StatisticsField, StatisticsReport};
use serde::{Deserialize, Serialize};
use store::Millis;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};
use web::extract::{Json, Query};
use web::time::Timestamp;
use web::{ApiError, Routes};

use crate::error::DnsApiError;
use crate::records::type_name;
use crate::service::DnsState;

/// Values of each table.
const TOP: usize = 50;

/// Range if none is given.
const RANGE: Duration = Duration::from_secs(86_400);

/// The routes.
pub(super) fn routes() -> Routes<DnsState> {
    Routes {
        viewer: OpenApiRouter::new().routes(routes!(statistics)).routes(routes!(instances)),
        ..Routes::default()
    }
}

/// A range of time.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
struct StatisticsQuery {
    /// Beginning, rounded down to the hour or the day; 24 hours ago if left out.
    from: Option<Timestamp>,
    /// End; now if left out.
    to: Option<Timestamp>,
}

/// A value and the number of its queries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = QueryCount)]
pub(crate) struct CountView {
    /// The value.
    pub(crate) value: String,
    /// Queries.
    pub(crate) queries: u64,
}

/// Queries of an hour or a day.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StatisticsPoint)]
pub(crate) struct PointView {
    /// Beginning of the hour or the day.
    pub(crate) started_at: Timestamp,
    /// Queries.
    pub(crate) queries: u64,
    /// Blocked queries.
    pub(crate) blocked: u64,
}

/// Statistics of a range, of all instances together.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DnsStatistics)]
pub(crate) struct StatisticsView {
    /// Queries.
    pub(crate) queries: u64,
    /// Blocked queries.
    pub(crate) blocked: u64,
    /// Queries answered from memory.
    pub(crate) memory_hits: u64,
    /// Queries answered from the store.
    pub(crate) store_hits: u64,
    /// Half of the queries took no longer, in whole milliseconds: 0 is less than one. Null without queries. The
    /// measurement is rounded up, by less than a quarter.
    #[schema(required)]
    pub(crate) p50_ms: Option<u64>,
    /// 95 % of the queries took no longer.
    #[schema(required)]
    pub(crate) p95_ms: Option<u64>,
    /// 99 % of the queries took no longer.
    #[schema(required)]
    pub(crate) p99_ms: Option<u64>,
    /// Seconds between two points: an hour, or a day for ranges longer than eight days.
    pub(crate) step_seconds: u64,
    /// Queries by hour or by day; those without any are left out.
    pub(crate) points: Vec<PointView>,
    /// Names most asked for.
    pub(crate) names: Vec<CountView>,
    /// Names most blocked.
    pub(crate) blocked_names: Vec<CountView>,
    /// Clients with the most queries.
    pub(crate) clients: Vec<CountView>,
    /// Clients with the most blocked queries.
    pub(crate) blocked_clients: Vec<CountView>,
    /// Groups.
    pub(crate) groups: Vec<CountView>,
    /// Lists and rules that decided.
    pub(crate) lists: Vec<CountView>,
    /// Upstreams.
    pub(crate) upstreams: Vec<CountView>,
    /// Types.
    pub(crate) types: Vec<CountView>,
    /// Outcomes.
    pub(crate) outcomes: Vec<CountView>,
    /// Protocols.
    pub(crate) protocols: Vec<CountView>,
}

fn counts(values: impl IntoIterator<Item = (String, u64)>) -> Vec<CountView> {
    values.into_iter().take(TOP).map(|(value, queries)| CountView { value, queries }).collect()
}

impl StatisticsView {
    fn new(report: &StatisticsReport) -> StatisticsView {
        let top = |field| counts(report.top(field, TOP));
        let ms = |share| report.percentile_us(share).map(|us| us / 1_000);
        let types = report
            .top(StatisticsField::Type, TOP)
            .into_iter()
            .map(|(number, count)| (number.parse().map_or(number, type_name), count));
        StatisticsView {
            queries: report.count(StatisticsField::Total, ""),
            blocked: report.count(StatisticsField::Outcome, "blocked"),
            memory_hits: report.count(StatisticsField::Tier, CacheTier::Memory.stored_name()),
            store_hits: report.count(StatisticsField::Tier, CacheTier::Store.stored_name()),
            p50_ms: ms(0.5),
            p95_ms: ms(0.95),
            p99_ms: ms(0.99),
            step_seconds: report.step.length().as_secs(),
            points: report
                .buckets
                .iter()
                .map(|bucket| PointView {
                    started_at: Timestamp(bucket.start),
                    queries: bucket.count(StatisticsField::Total, ""),
                    blocked: bucket.count(StatisticsField::Outcome, "blocked"),
                })
                .collect(),
            names: counts(report.names.clone()),
            blocked_names: counts(report.blocked_names.clone()),
            clients: top(StatisticsField::Client),
            blocked_clients: top(StatisticsField::BlockedClient),
            groups: top(StatisticsField::Group),
            lists: top(StatisticsField::List),
            upstreams: top(StatisticsField::Upstream),
            types: counts(types),
            outcomes: top(StatisticsField::Outcome),
            protocols: top(StatisticsField::Protocol),
        }
    }
}

/// Reads the statistics of a range.
pub(crate) async fn read(
    state: &DnsState,
    from: Millis,
    to: Millis,
) -> Result<StatisticsView, DnsApiError> {
    let report = state.recording.statistics.read(from, to).await?;
    Ok(StatisticsView::new(&report))
}

/// Get the statistics of a range, of all instances together.
#[utoipa::path(get, path = "/api/v1/dns/statistics", tag = "dns", operation_id = "get_statistics",
    params(StatisticsQuery),
    responses((status = 200, description = "The statistics.", body = StatisticsView)))]
async fn statistics(
    State(state): State<DnsState>,
    Query(query): Query<StatisticsQuery>,
) -> Result<Json<StatisticsView>, DnsApiError> {
    let to = query.to.map_or_else(|| state.resolver.now(), |at| at.0);
    let from = query.from.map_or(to - RANGE, |at| at.0);
    if from >= to {
        return Err(ApiError::invalid_field("from", "the range ends before it begins").into());
    }
    Ok(Json(read(&state, from, to).await?))
}

/// An instance of the resolver.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DnsInstance)]
pub(crate) struct InstanceView {
    /// Name.
    pub(crate) name: String,
    /// Version of the program.
    pub(crate) version: String,
    /// Time of its start.
    pub(crate) started_at: Timestamp,
    /// Time at which it was heard of last.
    pub(crate) seen_at: Timestamp,
    /// Addresses it takes queries on.
    pub(crate) listen: Vec<String>,
    /// Queries since its start.
    pub(crate) queries: u64,
    /// Blocked queries since its start.
    pub(crate) blocked: u64,
    /// Queries answered from its memory since its start.
    pub(crate) memory_hits: u64,
    /// Queries answered from the store since its start.
    pub(crate) store_hits: u64,
    /// Rows of its query log.
    pub(crate) log_rows: u64,
    /// Version of the policy it applies.
    pub(crate) policy_version: u64,
}

/// Returns the live instances.
pub(crate) async fn live(state: &DnsState) -> Result<Vec<InstanceView>, DnsApiError> {
    let live = state.recording.log.live().await?;
    let view = |one: dns::InstanceInfo| InstanceView {
        name: one.name,
        version: one.version,
        started_at: Timestamp(Millis(one.started_ms)),
        seen_at: Timestamp(Millis(one.seen_ms)),
        listen: one.listen,
        queries: one.queries,
        blocked: one.blocked,
        memory_hits: one.memory_hits,
        store_hits: one.store_hits,
        log_rows: one.log_rows,
        policy_version: one.policy_version,
    };
    Ok(live.into_iter().map(view).collect())
}

/// List the live instances on this store.
#[utoipa::path(get, path = "/api/v1/dns/instances", tag = "dns", operation_id = "list_instances",
    params(web::page::PageQuery),
    responses((status = 200, description = "A page of instances.", body = web::page::Page<InstanceView>)))]
async fn instances(
    State(state): State<DnsState>,
    Query(page): Query<web::page::PageQuery>,
) -> Result<Json<web::page::Page<InstanceView>>, DnsApiError> {
    let (offset, limit) = (page.offset()?, page.limit()?);
    let items = live(&state).await?.into_iter().skip(offset).take(limit).collect();
    Ok(Json(web::page::Page::at(offset, limit, items)))
}
