//! The cache: its tiers, and finding and deleting the answers of a name.

use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use dns::wire::AnswerKind;
use dns::{CacheTier, DomainName, L0Key, QueryOutcome, Question, StoredAnswer};
use serde::{Deserialize, Serialize};
use store::Millis;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};
use web::audit::Note;
use web::extract::{Json, Path, Query};
use web::page::{Page, PageQuery};
use web::series::float;
use web::time::Timestamp;
use web::{ApiError, Routes};

use crate::error::DnsApiError;
use crate::records::{MessageText, RecordText, parse_type, type_name};
use crate::service::DnsState;

/// Types that are looked for when none is named: those that clients ask for.
pub(crate) const USUAL_TYPES: [u16; 15] = [1, 28, 65, 5, 15, 16, 2, 6, 12, 33, 35, 43, 48, 64, 257];

/// The routes.
pub(super) fn routes() -> Routes<DnsState> {
    Routes {
        viewer: OpenApiRouter::new()
            .routes(routes!(stats))
            .routes(routes!(sweeps))
            .routes(routes!(find)),
        operator: OpenApiRouter::new()
            .routes(routes!(delete))
            .routes(routes!(refresh))
            .routes(routes!(sweep))
            .routes(routes!(set_cap))
            .routes(routes!(clear)),
        ..Routes::default()
    }
}

/// The tiers of the cache.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CacheStats)]
pub(crate) struct CacheView {
    /// Queries answered from the memory of this instance since its start.
    pub(crate) memory_hits: u64,
    /// Queries that this instance answered from the store since its start.
    pub(crate) store_hits: u64,
    /// Those of both tiers whose answer was fresh.
    pub(crate) fresh_hits: u64,
    /// Those whose answer was stale, because the upstreams failed or were slow.
    pub(crate) stale_hits: u64,
    /// Queries of this instance that no tier had and an upstream answered, since its start.
    pub(crate) misses: u64,
    /// Share of the hits in hits and misses, 0 to 1; 0 before the first.
    pub(crate) hit_rate: f64,
    /// Answers in the memory of this instance, stale ones included.
    pub(crate) memory_answers: u64,
    /// Those of them that are stale.
    pub(crate) memory_stale_answers: u64,
    /// Bytes they take.
    pub(crate) memory_bytes: u64,
    /// Most bytes they may take (`dns.cache_memory`).
    pub(crate) memory_max_bytes: u64,
    /// Answers removed from memory to make room, since the start.
    pub(crate) memory_evictions: u64,
    /// Answers in the store, which all instances share. Counted at most twice a minute; null while
    /// the store is unavailable.
    #[schema(required)]
    pub(crate) store_answers: Option<u64>,
    /// Most answers in the store (`dns.max_keys`); 0 is no limit.
    pub(crate) store_max_answers: u64,
    /// Answers that this instance refreshed since its start because of a hit on a hot answer: one with at
    /// least two hits of late.
    pub(crate) hot_refreshes: u64,
    /// The same because of a hit on a warm answer: the first hit of late.
    pub(crate) warm_refreshes: u64,
    /// The same by the sweep.
    pub(crate) sweep_refreshes: u64,
}

/// Reads the tiers.
pub(crate) async fn view(state: &DnsState) -> CacheView {
    let memory = state.resolver.l0().stats();
    let l1 = state.resolver.l1();
    let counts = state.recording.counts();
    let misses = counts.by_outcome(QueryOutcome::Upstream);
    let hits = counts.memory_hits + counts.store_hits;
    let (now, refreshes) = (state.resolver.now(), state.resolver.refresh_stats());
    CacheView {
        memory_hits: counts.memory_hits,
        store_hits: counts.store_hits,
        fresh_hits: counts.fresh_hits(),
        stale_hits: counts.stale_hits(),
        misses,
        hit_rate: float(hits) / float((hits + misses).max(1)),
        memory_answers: memory.entries as u64,
        memory_stale_answers: state.resolver.l0().count_stale(now) as u64,
        memory_bytes: memory.bytes as u64,
        memory_max_bytes: memory.max_bytes as u64,
        memory_evictions: memory.evictions,
        store_answers: l1.count_keys(now).await.ok(),
        store_max_answers: l1.max_keys(),
        hot_refreshes: refreshes.hot,
        warm_refreshes: refreshes.warm,
        sweep_refreshes: refreshes.sweep,
    }
}

/// Get the size of the cache, by tier.
#[utoipa::path(get, path = "/api/v1/dns/cache", tag = "dns", operation_id = "get_cache_stats",
    responses((status = 200, description = "Its tiers.", body = CacheView)))]
async fn stats(State(state): State<DnsState>) -> Json<CacheView> {
    Json(view(&state).await)
}

/// A tier of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = CacheTier)]
pub(crate) enum TierName {
    /// The memory of this instance.
    Memory,
    /// The store.
    Store,
}

impl TierName {
    /// Returns the name of a tier; `None` if no tier had the answer.
    pub(crate) fn of(tier: CacheTier) -> Option<TierName> {
        match tier {
            CacheTier::None => None,
            CacheTier::Memory => Some(TierName::Memory),
            CacheTier::Store => Some(TierName::Store),
        }
    }

    /// Returns the word in JSON, exports and on pages.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            TierName::Memory => "memory",
            TierName::Store => "store",
        }
    }
}

/// An answer in the cache.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StoredAnswer)]
pub(crate) struct AnswerView {
    /// Name that was asked for.
    #[schema(example = "shop.example")]
    pub(crate) name: String,
    /// Type that was asked for.
    #[serde(rename = "type")]
    #[schema(example = "A")]
    pub(crate) rtype: String,
    /// Tier it is in.
    pub(crate) tier: TierName,
    /// True if it is the answer with DNSSEC records.
    pub(crate) signed: bool,
    /// Response code.
    #[schema(example = "NOERROR")]
    pub(crate) rcode: String,
    /// Time at which it stops being fresh.
    pub(crate) fresh_until_at: Timestamp,
    /// Seconds for which it is still fresh; 0 if it is stale.
    pub(crate) remaining_seconds: u64,
    /// TTL that its source gave.
    pub(crate) source_ttl_seconds: u32,
    /// Hits counted in this tier lately.
    pub(crate) hits: u64,
    /// Records of the answer section.
    pub(crate) records: Vec<RecordText>,
}

impl AnswerView {
    fn new(
        question: &Question,
        tier: TierName,
        kind: AnswerKind,
        stored: &StoredAnswer,
        hits: u64,
        now: Millis,
    ) -> AnswerView {
        let message = MessageText::read(stored.answer.as_wire()).unwrap_or_default();
        AnswerView {
            name: question.name.to_string(),
            rtype: type_name(question.qtype),
            tier,
            signed: kind.is_signed(),
            rcode: message.rcode,
            fresh_until_at: Timestamp(Millis(stored.soft_expiry.saturating_mul(1_000))),
            remaining_seconds: u64::try_from(stored.remaining(now)).unwrap_or(0),
            source_ttl_seconds: stored.auth_ttl,
            hits,
            records: message.answers,
        }
    }
}

/// Finds the answers of a name in both tiers.
pub(crate) async fn answers(
    state: &DnsState,
    name: &DomainName,
    types: &[u16],
) -> Result<Vec<AnswerView>, DnsApiError> {
    let (resolver, now) = (&state.resolver, state.resolver.now());
    let mut found = Vec::new();
    for qtype in types {
        let question = Question { name: name.clone(), qtype: *qtype, qclass: 1 };
        for kind in [AnswerKind::Plain, AnswerKind::Signed] {
            let entry = resolver.l0().get(&L0Key::of_question(&question, kind), now);
            if let Some(entry) = entry {
                let hits = u64::from(entry.hits());
                let tier = TierName::Memory;
                found.push(AnswerView::new(&question, tier, kind, &entry.stored, hits, now));
            }
        }
        let stored = resolver.l1().get(&question, now).await?;
        for kind in [AnswerKind::Plain, AnswerKind::Signed] {
            if let Some(answer) = stored.of_kind(kind) {
                let hits = resolver.l1().hits(&question).await?;
                let tier = TierName::Store;
                found.push(AnswerView::new(&question, tier, kind, answer, hits, now));
            }
        }
    }
    Ok(found)
}

/// The name to look for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FindQuery {
    /// Name, such as `shop.example`.
    name: String,
    /// Type, such as `AAAA`; the usual ones if left out.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    rtype: Option<String>,
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// Position to continue from: `next_cursor` of the last answer. Left out: the beginning.
    cursor: Option<String>,
}

pub(crate) fn parse_name(text: &str) -> Result<DomainName, ApiError> {
    text.parse().map_err(|error| {
        ApiError::invalid_field("name", format!("{text:?} is not the name of a domain: {error}"))
    })
}

fn parse_types(text: Option<&str>) -> Result<Vec<u16>, ApiError> {
    let Some(text) = text else { return Ok(USUAL_TYPES.to_vec()) };
    let number = parse_type(text).ok_or_else(|| {
        ApiError::invalid_field("type", format!("{text:?} is not a type such as AAAA or TYPE64"))
    })?;
    Ok(vec![number])
}

/// Find the answers that are kept of a name.
#[utoipa::path(get, path = "/api/v1/dns/cache/answers", tag = "dns", params(FindQuery),
    operation_id = "find_answers",
    responses((status = 200, description = "A page of answers.", body = Page<AnswerView>)))]
async fn find(
    State(state): State<DnsState>,
    Query(query): Query<FindQuery>,
) -> Result<Json<Page<AnswerView>>, DnsApiError> {
    let page = PageQuery { limit: query.limit, cursor: query.cursor };
    let (offset, limit) = (page.offset()?, page.limit()?);
    let (name, types) = (parse_name(&query.name)?, parse_types(query.rtype.as_deref())?);
    let found = answers(&state, &name, &types).await?;
    let items = found.into_iter().skip(offset).take(limit).collect();
    Ok(Json(Page::at(offset, limit, items)))
}

/// The type to delete.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DeleteQuery {
    /// Type, such as `AAAA`; the usual ones if left out.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    rtype: Option<String>,
}

/// A number of answers that were deleted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeletedAnswers)]
struct DeletedView {
    /// Answers deleted from the store: names with a type and class, their metadata not counted.
    deleted: u64,
}

/// Delete the answers of a name, in the store and in the memory of every instance. The next query
/// goes to the upstreams.
#[utoipa::path(delete, path = "/api/v1/dns/cache/answers/{name}", tag = "dns",
    operation_id = "delete_answers",
    params(("name" = String, Path, description = "The name."), DeleteQuery),
    responses((status = 200, description = "Deleted.", body = DeletedView)))]
async fn delete(
    State(state): State<DnsState>,
    Path(name): Path<String>,
    Query(query): Query<DeleteQuery>,
) -> Result<impl IntoResponse, DnsApiError> {
    let (name, types) = (parse_name(&name)?, parse_types(query.rtype.as_deref())?);
    let mut deleted = 0;
    for qtype in types {
        let question = Question { name: name.clone(), qtype, qclass: 1 };
        deleted += u64::from(state.resolver.delete_answer(&question).await?);
    }
    let note = Note::new("cache.delete", name.to_string());
    Ok((Extension(note), Json(DeletedView { deleted })))
}

/// Clear the cache: all answers in the store, and the memory of every instance.
#[utoipa::path(post, path = "/api/v1/dns/cache/clear", tag = "dns", operation_id = "clear_cache",
    responses((status = 200, description = "Cleared.", body = DeletedView)))]
async fn clear(State(state): State<DnsState>) -> Result<impl IntoResponse, DnsApiError> {
    let deleted = state.resolver.clear().await?;
    Ok((Extension(Note::new("cache.clear", "cache")), Json(DeletedView { deleted })))
}

/// Sums of sweeps.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SweepCounts)]
pub(crate) struct SweepCountsView {
    /// Answers refreshed before they expired.
    pub(crate) refreshed: u64,
    /// Answers removed because nobody asked for them.
    pub(crate) removed_cold: u64,
    /// Answers removed to keep the cap.
    pub(crate) removed_above_cap: u64,
    /// Members of the expiry index without an answer.
    pub(crate) reconciled: u64,
    /// Expired answers dropped from memory.
    pub(crate) dropped_from_memory: u64,
}

/// Sweeps of the cache by this instance.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CacheSweeps)]
pub(crate) struct SweepsView {
    /// Time of the last sweep; null before the first.
    #[schema(required)]
    pub(crate) last_swept_at: Option<Timestamp>,
    /// Results of the last sweep; null before the first.
    #[schema(required)]
    pub(crate) last: Option<SweepCountsView>,
    /// Sweeps in the last 24 hours.
    pub(crate) day_sweeps: u64,
    /// Sums of the last 24 hours.
    pub(crate) day: SweepCountsView,
}

impl From<dns::SweepReport> for SweepCountsView {
    fn from(report: dns::SweepReport) -> SweepCountsView {
        SweepCountsView {
            refreshed: report.refreshed as u64,
            removed_cold: report.cold as u64,
            removed_above_cap: report.evicted as u64,
            reconciled: report.reconciled as u64,
            dropped_from_memory: report.dropped as u64,
        }
    }
}

/// Reads the sweeps.
pub(crate) fn sweeps_view(state: &DnsState) -> SweepsView {
    let last = state.sweeps.last();
    let day = state.sweeps.day(state.resolver.now());
    SweepsView {
        last_swept_at: last.map(|(at, _)| Timestamp(at)),
        last: last.map(|(_, report)| report.into()),
        day_sweeps: day.sweeps,
        day: SweepCountsView {
            refreshed: day.refreshed,
            removed_cold: day.cold,
            removed_above_cap: day.evicted,
            reconciled: day.reconciled,
            dropped_from_memory: day.dropped,
        },
    }
}

/// Get the sweeps of the cache by this instance: the last one, and the sums of 24 hours.
#[utoipa::path(get, path = "/api/v1/dns/cache/sweeps", tag = "dns", operation_id = "get_cache_sweeps",
    responses((status = 200, description = "The sweeps.", body = SweepsView)))]
async fn sweeps(State(state): State<DnsState>) -> Json<SweepsView> {
    Json(sweeps_view(&state))
}

/// Sweep the cache now: write hits, drop what expired, keep the cap, refresh what is about to expire.
#[utoipa::path(post, path = "/api/v1/dns/cache/sweep", tag = "dns", operation_id = "sweep_cache",
    responses((status = 200, description = "Swept.", body = SweepCountsView)))]
async fn sweep(State(state): State<DnsState>) -> Result<impl IntoResponse, DnsApiError> {
    let report = state.resolver.sweep().await?;
    state.sweeps.add(report, state.resolver.now());
    Ok((Extension(Note::new("cache.sweep", "cache")), Json(SweepCountsView::from(report))))
}

/// A number of answers that were refreshed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RefreshedAnswers)]
struct RefreshedAnswersView {
    /// Answers that upstreams gave anew.
    refreshed: u64,
}

/// Refresh what is kept of a name now, by asking the upstreams.
#[utoipa::path(post, path = "/api/v1/dns/cache/answers/{name}/refresh", tag = "dns",
    operation_id = "refresh_answers",
    params(("name" = String, Path, description = "The name."), DeleteQuery),
    responses((status = 200, description = "Refreshed.", body = RefreshedAnswersView),
        (status = 404, description = "Nothing is cached for this name.", body = web::error::ErrorBody)))]
async fn refresh(
    State(state): State<DnsState>,
    Path(name): Path<String>,
    Query(query): Query<DeleteQuery>,
) -> Result<impl IntoResponse, DnsApiError> {
    let (name, types) = (parse_name(&name)?, parse_types(query.rtype.as_deref())?);
    if answers(&state, &name, &types).await?.is_empty() {
        return Err(ApiError::not_found("nothing is cached for this name").into());
    }
    let mut refreshed = 0;
    for qtype in types {
        let question = Question { name: name.clone(), qtype, qclass: 1 };
        refreshed += u64::from(state.resolver.refresh_answer(&question).await);
    }
    let note = Note::new("cache.refresh", name.to_string());
    Ok((Extension(note), Json(RefreshedAnswersView { refreshed })))
}

/// The cap of the cache in the store.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CacheCap, example = json!({ "max_answers": 50000 }))]
struct CapBody {
    /// Most answers; 0 is no limit.
    #[schema(maximum = 100_000_000)]
    max_answers: u64,
}

/// Change how many answers are kept in the store, on this instance and until it is started anew; the setting
/// `dns.max_keys` lasts.
#[utoipa::path(put, path = "/api/v1/dns/cache/cap", tag = "dns", operation_id = "put_cache_cap",
    request_body = CapBody,
    responses((status = 200, description = "The tiers of the cache.", body = CacheView)))]
async fn set_cap(
    State(state): State<DnsState>,
    Json(body): Json<CapBody>,
) -> Result<impl IntoResponse, DnsApiError> {
    if body.max_answers > 100_000_000 {
        return Err(ApiError::invalid_field(
            "max_answers",
            "at most 100,000,000; 0 means no limit",
        )
        .into());
    }
    let before = state.resolver.l1().max_keys();
    state.resolver.l1().set_max_keys(body.max_answers);
    let note = Note::new("cache.cap", "cache").change(before, body.max_answers);
    Ok((Extension(note), Json(view(&state).await)))
}
