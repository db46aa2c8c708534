//! The state of lists, fetching all of them, suggestions, and previews of what a change would do.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use dns::{ListAction, ListSource, LogFilter, Policy, PreviewQuery, Question};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use store::Millis;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};
use web::audit::Note;
use web::extract::{Json, Path, Query};
use web::page::{Page, PageQuery};
use web::time::Timestamp;
use web::{ApiError, Routes};

use super::policy::read_policy;
use super::queries::OutcomeName;
use crate::catalogue::{SUGGESTED, SuggestedList};
use crate::error::DnsApiError;
use crate::records::type_name;
use crate::service::DnsState;

/// Rows of the log that a preview looks at.
const PREVIEW_ROWS_MAX: usize = 50_000;

/// Rows read at once.
const PREVIEW_PAGE: usize = 1_000;

/// Names that a preview shows.
const PREVIEW_NAMES: usize = 200;

/// Time for other instances to answer.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);

/// The routes.
pub(super) fn routes() -> Routes<DnsState> {
    Routes {
        viewer: OpenApiRouter::new()
            .routes(routes!(list_states))
            .routes(routes!(list_suggestions))
            .routes(routes!(preview_policy)),
        // These fetch what a person names.
        operator: OpenApiRouter::new().routes(routes!(refresh_all)).routes(routes!(preview_list)),
        ..Routes::default()
    }
}

/// The state of a list on this instance.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = ListState)]
pub(crate) struct ListStateView {
    /// Id.
    pub(crate) id: String,
    /// Name.
    pub(crate) name: String,
    /// Source.
    pub(crate) url: String,
    /// True if it is switched on.
    pub(crate) enabled: bool,
    /// True if a copy is in use.
    pub(crate) is_loaded: bool,
    /// Rules in use.
    pub(crate) rules: u64,
    /// Names that no other list in use has; null for a list that is not in use.
    #[schema(required)]
    pub(crate) unique_names: Option<u64>,
    /// Lines that cannot be used.
    pub(crate) unusable_lines: u64,
    /// Some of them.
    pub(crate) unusable_examples: Vec<UnusableLineView>,
    /// Bytes of its text.
    pub(crate) bytes: u64,
    /// Memory it takes.
    pub(crate) memory_bytes: u64,
    /// Last time the source gave or confirmed the copy in use.
    #[schema(required)]
    pub(crate) fetched_at: Option<Timestamp>,
    /// Last time its text changed.
    #[schema(required)]
    pub(crate) changed_at: Option<Timestamp>,
    /// Failure of the last attempt; null if it worked.
    #[schema(required)]
    pub(crate) error: Option<String>,
    /// Advice on how to fix it.
    #[schema(required)]
    pub(crate) fix: Option<String>,
    /// Rules of a new copy that waits for confirmation, because it lost more than half.
    #[schema(required)]
    pub(crate) shrunk_to: Option<u64>,
}

/// A line that cannot be used.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = UnusableLine)]
pub(crate) struct UnusableLineView {
    /// Number of the line.
    pub(crate) line: u64,
    /// Its beginning.
    pub(crate) text: String,
    /// The reason.
    pub(crate) reason: String,
}

/// Reads the state of all lists.
pub(crate) async fn states(state: &DnsState) -> Vec<ListStateView> {
    let version = state.resolver.policy();
    let sources = version.policy.lists.clone();
    let lists = state.resolver.lists().clone();
    let key = (version.version, state.resolver.filter_generation());
    let unique = match state.unique.get(key) {
        Some(unique) => unique,
        None => {
            let counted = tokio::task::spawn_blocking(move || lists.count_unique(&sources)).await;
            state.unique.set(key, counted.unwrap_or_default())
        }
    };
    let status = state.resolver.lists().status(&version.policy.lists);
    let view = |(source, status): (&ListSource, dns::ListStatus)| ListStateView {
        id: source.id.clone(),
        name: source.name.clone(),
        url: source.url.clone(),
        enabled: source.enabled,
        is_loaded: status.is_loaded,
        rules: status.figures.rules,
        unique_names: unique.get(&source.id).copied(),
        unusable_lines: status.figures.unusable,
        unusable_examples: status
            .figures
            .unusable_lines
            .into_iter()
            .map(|(line, text, reason)| UnusableLineView { line, text, reason })
            .collect(),
        bytes: status.figures.bytes,
        memory_bytes: status.memory_bytes,
        fetched_at: status.fetched_at.map(Timestamp),
        changed_at: status.changed_at.map(Timestamp),
        fix: status.error.as_deref().map(crate::problems::list_fix).map(str::to_owned),
        error: status.error,
        shrunk_to: status.shrunk_to,
    };
    version.policy.lists.iter().zip(status).map(view).collect()
}

/// List the state of the lists on this instance: size, age, share of names of their own, last error.
#[utoipa::path(get, path = "/api/v1/dns/list-states", tag = "dns", operation_id = "list_list_states",
    params(PageQuery),
    responses((status = 200, description = "A page of states.", body = Page<ListStateView>)))]
async fn list_states(
    State(state): State<DnsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<ListStateView>>, DnsApiError> {
    let (offset, limit) = (page.offset()?, page.limit()?);
    let items = states(&state).await.into_iter().skip(offset).take(limit).collect();
    Ok(Json(Page::at(offset, limit, items)))
}

/// The result of fetching all lists.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ListsRefreshResult)]
struct RefreshedListsView {
    /// Lists with a new copy.
    replaced: Vec<String>,
    /// Lists whose source has nothing new.
    unchanged: Vec<String>,
    /// Lists whose new copy lost more than half of its rules, and waits for confirmation.
    need_confirmation: Vec<String>,
    /// Lists that failed; their last good copy stays in use.
    failed: Vec<String>,
}

/// Fetch all lists that are switched on, now.
#[utoipa::path(post, path = "/api/v1/dns/list-refreshes", tag = "dns", operation_id = "refresh_lists",
    responses((status = 200, description = "Fetched.", body = RefreshedListsView)))]
async fn refresh_all(State(state): State<DnsState>) -> Result<impl IntoResponse, DnsApiError> {
    let mut view = RefreshedListsView {
        replaced: Vec::new(),
        unchanged: Vec::new(),
        need_confirmation: Vec::new(),
        failed: Vec::new(),
    };
    let version = state.resolver.policy();
    for source in version.policy.lists.iter().filter(|source| source.enabled) {
        let id = source.id.clone();
        if source.url == "embedded:default" {
            view.unchanged.push(id);
            continue;
        }
        match state.resolver.refresh_list(&id, false).await {
            Ok(dns::ListRefresh::Replaced { .. }) => view.replaced.push(id),
            Ok(dns::ListRefresh::Unchanged) => view.unchanged.push(id),
            Ok(dns::ListRefresh::NeedsConfirmation { .. }) => view.need_confirmation.push(id),
            Err(_) => view.failed.push(id),
        }
    }
    Ok((Extension(Note::new("dns_list.refresh", "all")), Json(view)))
}

/// A suggested list.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SuggestedList)]
struct SuggestionView {
    /// Id it gets.
    id: &'static str,
    /// Name.
    name: &'static str,
    /// Description of the names on it.
    description: &'static str,
    /// Source.
    url: &'static str,
    /// Choice it belongs to: `light`, `balanced`, `strict`, `malware` or `family`.
    #[schema(example = "balanced")]
    choice: &'static str,
    /// Names on it are fewer than this.
    names_below: u64,
    /// Rules of the copy in use; none before the first fetch.
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<u64>,
    /// Memory the copy in use takes; none before the first fetch.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    /// Bytes of its text; none before the first fetch.
    #[serde(skip_serializing_if = "Option::is_none")]
    download_bytes: Option<u64>,
    /// Licence.
    licence: &'static str,
    /// True if it is in use already.
    in_use: bool,
}

/// List the suggested lists, and what each costs: at most before the first fetch, exactly after it.
#[utoipa::path(get, path = "/api/v1/dns/list-suggestions", tag = "dns",
    operation_id = "list_suggested_lists", params(PageQuery),
    responses((status = 200, description = "A page of lists.", body = Page<SuggestionView>)))]
async fn list_suggestions(
    State(state): State<DnsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<SuggestionView>>, DnsApiError> {
    let (offset, limit) = (page.offset()?, page.limit()?);
    let version = state.resolver.policy();
    let lists = &version.policy.lists;
    let status = state.resolver.lists().status(lists);
    let view = |list: &SuggestedList| {
        let loaded = list.find_loaded(lists, &status);
        SuggestionView {
            id: list.id,
            name: list.name,
            description: list.text,
            url: list.url,
            choice: list.choice.as_str(),
            names_below: list.names_below,
            names: loaded.map(|one| one.figures.rules),
            memory_bytes: loaded.map(|one| one.memory_bytes),
            download_bytes: loaded.map(|one| one.figures.bytes),
            licence: list.licence,
            in_use: lists.iter().any(|known| known.url == list.url),
        }
    };
    let items = SUGGESTED.iter().skip(offset).take(limit).map(view).collect();
    Ok(Json(Page::at(offset, limit, items)))
}

/// A name that would be decided otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = PreviewedName)]
pub(crate) struct PreviewedNameView {
    /// Name.
    pub(crate) name: String,
    /// Type.
    #[serde(rename = "type")]
    pub(crate) rtype: String,
    /// Outcome now; `upstream` stands for any true answer.
    pub(crate) before: OutcomeName,
    /// Outcome then.
    pub(crate) after: OutcomeName,
    /// List or rules that decide.
    pub(crate) list: String,
    /// Queries of the last day.
    pub(crate) queries: u64,
    /// Clients that sent them, at most five.
    pub(crate) clients: Vec<String>,
}

/// Effect of a change on the queries of the last day.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DnsPreview)]
pub(crate) struct PreviewView {
    /// Queries of the last day that were looked at.
    pub(crate) queries: u64,
    /// Those that would be blocked and are not.
    pub(crate) newly_blocked: u64,
    /// Those that are blocked and would not be.
    pub(crate) no_longer_blocked: u64,
    /// Rules of the lists that were fetched for the preview.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub(crate) fetched: Map<String, Value>,
    /// The names, most queries first, at most 200.
    pub(crate) names: Vec<PreviewedNameView>,
    /// Instances whose log is missing, because they did not answer in time.
    pub(crate) silent_instances: Vec<String>,
}

/// Queries of the last day, each once for a name, type and client, with their number.
type PastQueries = HashMap<(Arc<str>, u16, Arc<str>, Arc<str>), u64>;

async fn past_queries(state: &DnsState) -> (PastQueries, u64, Vec<String>) {
    let from = state.resolver.now() - Duration::from_secs(86_400);
    let filter = LogFilter { from: Some(Millis(from.0)), ..LogFilter::default() };
    let (mut found, mut rows, mut position) = (PastQueries::new(), 0_usize, None);
    loop {
        let page = state
            .recording
            .log
            .search(&filter, position.as_ref(), PREVIEW_PAGE, SEARCH_TIMEOUT)
            .await;
        rows += page.rows.len();
        for shared in page.rows {
            let row = shared.row;
            *found.entry((row.name, row.qtype, row.client, row.client_id)).or_insert(0) += 1;
        }
        position = page.next;
        if position.is_none() || rows >= PREVIEW_ROWS_MAX {
            return (found, rows as u64, page.silent);
        }
    }
}

/// Decides the queries of the last day under another policy.
async fn preview(
    state: &DnsState,
    policy: Policy,
    fetch_again: Option<&str>,
) -> Result<PreviewView, DnsApiError> {
    let (past, queries, silent_instances) = past_queries(state).await;
    let past: Vec<_> = past.into_iter().collect();
    let asked: Vec<PreviewQuery> = past
        .iter()
        .map(|((name, qtype, client, id), _)| PreviewQuery {
            question: Question {
                name: name.parse().unwrap_or_else(|_| dns::DomainName::root()),
                qtype: *qtype,
                qclass: 1,
            },
            // A hashed address says nothing about the group; the client's id does.
            address: client.parse().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            client_id: Some(id.to_string()).filter(|id| !id.is_empty()),
        })
        .collect();
    let report = state.resolver.preview(policy, fetch_again, asked).await?;
    let is_blocked = |outcome: dns::QueryOutcome| outcome == dns::QueryOutcome::Blocked;
    let (mut newly_blocked, mut no_longer_blocked) = (0, 0);
    let mut names: HashMap<(Arc<str>, u16), PreviewedNameView> = HashMap::new();
    for change in report.changes {
        let Some(((name, qtype, client, id), count)) = past.get(change.index) else { continue };
        match (is_blocked(change.before), is_blocked(change.after)) {
            (false, true) => newly_blocked += count,
            (true, false) => no_longer_blocked += count,
            _ => {}
        }
        let view = names.entry((name.clone(), *qtype)).or_insert_with(|| PreviewedNameView {
            name: name.to_string(),
            rtype: type_name(*qtype),
            before: change.before.into(),
            after: change.after.into(),
            list: change.list.clone(),
            queries: 0,
            clients: Vec::new(),
        });
        view.queries += count;
        let client = if id.is_empty() { client } else { id };
        if view.clients.len() < 5 && !view.clients.iter().any(|one| **one == **client) {
            view.clients.push(client.to_string());
        }
    }
    let mut names: Vec<PreviewedNameView> = names.into_values().collect();
    names.sort_by(|a, b| b.queries.cmp(&a.queries).then_with(|| a.name.cmp(&b.name)));
    names.truncate(PREVIEW_NAMES);
    let fetched = report.fetched.into_iter().map(|(id, rules)| (id, rules.into())).collect();
    Ok(PreviewView { queries, newly_blocked, no_longer_blocked, fetched, names, silent_instances })
}

/// A change of one list to try.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ListPreviewRequest, example = json!({ "url": "https://lists.example/ads.txt" }))]
struct ListPreviewBody {
    /// Source of a list that is not in use yet, or another source of this one.
    url: Option<String>,
    /// Block (the default) or allow.
    action: Option<super::pauses::ActionName>,
    /// False shows what would change without the list; a list that is switched off is shown switched on.
    enabled: Option<bool>,
    /// Fetch the source anew, such as a copy that waits for confirmation.
    fetch: Option<bool>,
}

/// Builds the policy of a preview of one list.
fn with_list(
    policy: &Policy,
    id: &str,
    url: Option<&str>,
    action: Option<ListAction>,
    enabled: bool,
) -> Result<Policy, ApiError> {
    let mut policy = policy.clone();
    match policy.lists.iter_mut().find(|list| list.id == id) {
        Some(list) => {
            if let Some(url) = url {
                url.clone_into(&mut list.url);
            }
            list.action = action.unwrap_or(list.action);
            list.enabled = enabled;
        }
        None => {
            let Some(url) = url else {
                return Err(ApiError::not_found(
                    "there is no list with this id; to add one, give its url",
                ));
            };
            policy.lists.push(ListSource {
                id: id.to_owned(),
                name: String::new(),
                url: url.to_owned(),
                action: action.unwrap_or_default(),
                enabled,
                schedule: None,
            });
            // Groups that name their lists do not use it by themselves, as they would not then.
        }
    }
    Ok(policy)
}

/// Shows what a list would change, switched on or off.
pub(crate) async fn preview_of(
    state: &DnsState,
    id: &str,
    url: Option<&str>,
    enabled: bool,
) -> Result<PreviewView, DnsApiError> {
    let policy = with_list(&state.load_policy().await?, id, url, None, enabled)?;
    preview(state, policy, None).await
}

/// Show what a list would change, against the queries of the last day. Nothing is saved; a source that is
/// not in use yet is fetched into memory.
#[utoipa::path(post, path = "/api/v1/dns/lists/{id}/preview", tag = "dns", operation_id = "preview_list",
    params(("id" = String, Path, description = "Id of the list.")), request_body = ListPreviewBody,
    responses((status = 200, description = "The changes.", body = PreviewView)))]
async fn preview_list(
    State(state): State<DnsState>,
    Path(id): Path<String>,
    Json(body): Json<ListPreviewBody>,
) -> Result<Json<PreviewView>, DnsApiError> {
    let current = state.load_policy().await?;
    let action = body.action.map(ListAction::from);
    let enabled = body.enabled.unwrap_or(true);
    let policy = with_list(&current, &id, body.url.as_deref(), action, enabled)?;
    let again = body.fetch.unwrap_or(false).then_some(id.as_str());
    Ok(Json(preview(&state, policy, again).await?))
}

/// A policy to try.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PolicyPreviewRequest, example = json!({ "policy": { "rules": ["||ads.example^"] } }))]
struct PolicyPreviewBody {
    /// The document. What is left out has its default.
    #[schema(value_type = BTreeMap<String, Value>)]
    policy: Map<String, Value>,
}

/// Show what a policy would change, against the queries of the last day. Nothing is saved, and no list is
/// fetched.
#[utoipa::path(post, path = "/api/v1/dns/policy/preview", tag = "dns",
    operation_id = "preview_resolver_policy", request_body = PolicyPreviewBody,
    responses((status = 200, description = "The changes.", body = PreviewView)))]
async fn preview_policy(
    State(state): State<DnsState>,
    Json(body): Json<PolicyPreviewBody>,
) -> Result<Json<PreviewView>, DnsApiError> {
    let mut policy = read_policy(body.policy)?;
    // A viewer makes this server fetch nothing.
    let known = state.resolver.policy();
    policy.lists.retain(|list| {
        known.policy.lists.iter().any(|one| one.id == list.id && one.url == list.url)
            || list.url == "embedded:default"
    });
    Ok(Json(preview(&state, policy, None).await?))
}
