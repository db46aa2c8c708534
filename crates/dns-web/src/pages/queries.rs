//! Queries: the log of all instances, live, with search. A row opens the way to its answer.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use dns::QueryOutcome;
use maud::{Markup, html};
use serde_json::json;
use web::extract::Query;
use web::format;
use web::icon::Icon;
use web::middleware::percent;
use web::time::Timestamp;
use web::ui::{self, Shell};

use super::{PolicyNames, frame, frame_with, refusal};
use crate::api::cache::TierName;
use crate::api::queries::{LogQuery, OutcomeName, QueryPageView, QueryView, find};
use crate::api::why::{DecisionView, WhyQuery, explain};
use crate::service::DnsState;

/// Rows of a page.
const ROWS: usize = 100;

/// Time for another instance to answer.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) async fn page(
    State(state): State<DnsState>,
    Query(query): Query<LogQuery>,
    shell: Shell,
) -> Markup {
    let acts = shell.may_operate();
    let is_later = query.cursor.is_some();
    let rows = rows(&state, &query, acts).await;
    let topic =
        format!("dns-queries?{}/{}", if acts { "acts" } else { "look" }, address(&query, None));
    let body = html! {
        section.card aria-label="Queries" {
            (filters(&query))
            // An older page stands still.
            @if is_later { div { (rows) } } @else { div data-live=(topic) data-steady="" { (rows) } }
        }
    };
    frame(&state, &shell, "queries", None, &body)
}

/// Renders the live part: `ACTS/QUERY`.
pub(crate) async fn part(state: &DnsState, argument: &str) -> Markup {
    let (acts, query) = argument.split_once('/').unwrap_or((argument, ""));
    let parsed = format!("/?{query}")
        .parse()
        .ok()
        .and_then(|address| axum::extract::Query::<LogQuery>::try_from_uri(&address).ok());
    match parsed {
        Some(query) => rows(state, &query.0, acts == "acts").await,
        None => ui::empty(Icon::SEARCH, "No such search", "The address is not valid.", &html! {}),
    }
}

/// The query as an address has it.
fn address(query: &LogQuery, cursor: Option<&str>) -> String {
    let outcome = query.outcome.map(|outcome| word(outcome).replace(' ', "_"));
    let number = |value: Option<u32>| value.map(|value| value.to_string());
    let (least, most) = (number(query.min_duration_ms), number(query.max_duration_ms));
    let time = |at: Option<Timestamp>| at.map(|at| format::rfc3339(at.0.0));
    let (from, to) = (time(query.from), time(query.to));
    let fields = [
        ("name", query.name.as_deref()),
        ("client", query.client.as_deref()),
        ("type", query.rtype.as_deref()),
        ("rcode", query.rcode.as_deref()),
        ("outcome", outcome.as_deref()),
        ("list", query.list.as_deref()),
        ("upstream", query.upstream.as_deref()),
        ("answer", query.answer.as_deref()),
        ("group", query.group.as_deref()),
        ("protocol", query.protocol.as_deref()),
        ("min_duration_ms", least.as_deref()),
        ("max_duration_ms", most.as_deref()),
        ("from", from.as_deref()),
        ("to", to.as_deref()),
        ("cursor", cursor),
    ];
    let given = fields.iter().filter_map(|(name, value)| {
        let value = value.filter(|value| !value.is_empty())?;
        Some(format!("{name}={}", percent(value)))
    });
    given.collect::<Vec<_>>().join("&")
}

fn filters(query: &LogQuery) -> Markup {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    html! {
        form.filters method="get" action="/dns/queries" role="search" {
            span.search {
                (Icon::SEARCH)
                input.input type="search" name="name" value=(text(&query.name)) placeholder="Text in the name"
                    aria-label="Find queries by name" data-search="" spellcheck="false" autocomplete="off";
            }
            input.input type="text" name="client" value=(text(&query.client)) placeholder="Client" aria-label="Only this client" spellcheck="false" autocomplete="off";
            input.input type="text" name="type" value=(text(&query.rtype)) placeholder="Type" aria-label="Only this type" spellcheck="false" autocomplete="off";
            input.input type="text" name="answer" value=(text(&query.answer)) placeholder="Answer" aria-label="Text in the answer" spellcheck="false" autocomplete="off";
            select.input name="outcome" aria-label="Outcome" data-submit-on-change="" {
                option value="" { "Every outcome" }
                @for outcome in QueryOutcome::ALL {
                    @let name = OutcomeName::from(outcome);
                    option value=(outcome.as_str()) selected[query.outcome == Some(name)] { (word(name)) }
                }
            }
            button.btn type="submit" { "Find" }
            a.btn.ghost href={ "/api/v1/dns/queries/export?" (address(query, None)) } download="" { "CSV" }
            a.btn.ghost href={ "/api/v1/dns/queries/export?format=json_lines&" (address(query, None)) } download="" { "JSON" }
            @if !address(query, None).is_empty() { a.btn.ghost href="/dns/queries" { "All queries" } }
            details.more-filters open[is_narrowed(query)] {
                summary { "More conditions" }
                div.fields {
                    input.input type="text" name="group" value=(text(&query.group)) placeholder="Group" aria-label="Only this group" spellcheck="false" autocomplete="off";
                    input.input type="text" name="list" value=(text(&query.list)) placeholder="List or rule" aria-label="Text in the list or rule" spellcheck="false" autocomplete="off";
                    input.input type="text" name="upstream" value=(text(&query.upstream)) placeholder="Upstream" aria-label="Text in the upstream" spellcheck="false" autocomplete="off";
                    select.input name="protocol" aria-label="Protocol" { option value="" { "Every protocol" } @for one in dns::QueryProtocol::ALL { option value=(one.as_str()) selected[query.protocol.as_deref() == Some(one.as_str())] { (one.as_str().to_uppercase()) } } }
                    input.input type="text" name="rcode" value=(text(&query.rcode)) placeholder="Response code" aria-label="Only this response code, such as NXDOMAIN" spellcheck="false" autocomplete="off";
                    (moment_field("from", "From", query.from))
                    (moment_field("to", "To", query.to))
                    input.input type="number" min="0" name="min_duration_ms" value=[query.min_duration_ms] placeholder="At least ms" aria-label="Shortest duration in milliseconds";
                    input.input type="number" min="0" name="max_duration_ms" value=[query.max_duration_ms] placeholder="At most ms" aria-label="Longest duration in milliseconds";
                }
            }
        }
    }
}

/// A field for a time in the zone of the browser; the form sends it in UTC.
fn moment_field(name: &str, label: &str, at: Option<Timestamp>) -> Markup {
    let text = at.map(|at| format::rfc3339(at.0.0)).unwrap_or_default();
    html! {
        label.inline { (label) input.input type="datetime-local" data-utc=(name) value=(text.get(..16).unwrap_or_default()); }
        input type="hidden" name=(name) value=(text);
    }
}

/// Tells whether one of the rarer conditions is set.
fn is_narrowed(query: &LogQuery) -> bool {
    let given = |value: &Option<String>| value.as_deref().is_some_and(|value| !value.is_empty());
    given(&query.group)
        || given(&query.list)
        || given(&query.upstream)
        || given(&query.protocol)
        || given(&query.rcode)
        || query.from.is_some()
        || query.to.is_some()
        || query.min_duration_ms.is_some()
        || query.max_duration_ms.is_some()
}

async fn rows(state: &DnsState, query: &LogQuery, acts: bool) -> Markup {
    // An empty field of the form is no condition.
    let query = LogQuery { limit: Some(ROWS), ..query.clone() };
    match find(state, &query).await {
        Ok(found) => table(state, &query, &found, acts),
        Err(error) => html! { div.notice.bad role="alert" { (error.message()) } },
    }
}

fn table(state: &DnsState, query: &LogQuery, found: &QueryPageView, acts: bool) -> Markup {
    let is_filtered = !address(query, None).is_empty();
    if found.items.is_empty() {
        let (title, text) = match is_filtered {
            true => ("No match", "No logged query fits."),
            false => ("No queries yet", "Queries that this resolver answers appear here."),
        };
        let listen = state.listeners.addresses();
        let hint = html! {
            @if let (false, Some(address)) = (is_filtered, listen.first()) {
                pre.code { code { "tidegate dns query example.org --at " (address) } }
            }
        };
        return ui::empty(crate::ICON, title, text, &hint);
    }
    let names = PolicyNames::new(state);
    html! {
        @if !found.silent_instances.is_empty() {
            div.notice.warn role="status" { "Did not answer in time: " (found.silent_instances.join(", ")) ". Their queries are missing here." }
        }
        div.table-wrap tabindex="0" { table.table.cards {
            (query_head(acts))
            tbody { @for row in &found.items { (query_row(&names, row, acts)) } }
        } }
        div.pager {
            span { (found.items.len()) @if found.items.len() == 1 { " query" } @else { " queries" } }
            span.actions {
                @if query.cursor.is_some() { a.btn.s href={ "/dns/queries?" (address(query, None)) } { "Newest" } }
                @if let Some(next) = &found.next_cursor { a.btn.s href={ "/dns/queries?" (address(query, Some(next))) } { "More" } }
            }
        }
    }
}

pub(super) fn query_head(acts: bool) -> Markup {
    html! { thead { tr { th { "Name" } th { "Client" } th { "Outcome" } th { "Answer" } th.r { "Took" } th { "When" } @if acts { th { span.sr { "Actions" } } } } } }
}

pub(super) fn query_row(names: &PolicyNames, row: &QueryView, acts: bool) -> Markup {
    let client = if row.client_id.is_empty() { &row.client } else { &row.client_id };
    let (verb, label) = match row.outcome {
        OutcomeName::Blocked => ("allow", "Allow"),
        _ => ("block", "Block"),
    };
    let rule = rule_text(verb, &row.name, None);
    let done = if verb == "allow" { "is allowed" } else { "is blocked" };
    html! {
        tr data-key={ (row.instance) "-" (row.number) } {
            td.wrap-any {
                details.story {
                    summary { span.mono { (row.name) } " " span.dim.small { (row.rtype) } }
                    (decision(names, row))
                    p.small { a href=(detail_path(row)) { "The whole decision: rule, line and hops" } }
                    @if acts { (actions(names, row)) }
                }
            }
            td.nowrap data-label="Client" { a.row href={ "/dns/clients/" (percent(client)) } title=(row.client) { (names.client(client)) } }
            td.nowrap { (ui::badge(tone(row.outcome), word(row.outcome))) @if !row.list.is_empty() { span.sub { (names.source(&row.list)) } } }
            td.wrap-any.small.wide { @if row.answer.is_empty() { span.dim { (row.rcode) } } @else { span.mono { (row.answer) } } }
            td.r.num.nowrap data-label="Took" { @if row.duration_ms == 0 { "< 1 ms" } @else { (row.duration_ms) " ms" } }
            td.nowrap { (format::moment(row.answered_at.0.0)) }
            @if acts { td.r {
                button.btn.s.ghost type="button" aria-label={ (label) " " (row.name) } data-act="POST /api/v1/dns/rules" data-body=(json!({ "rule": rule })) data-done={ (row.name) " " (done) " for everybody" } data-undo={ "DELETE /api/v1/dns/rules?rule=" (percent(&rule)) } { (label) }
            } }
        }
    }
}

/// A rule for a name and all below it, for everybody or one client.
fn rule_text(verb: &str, name: &str, client: Option<&str>) -> String {
    let exception = if verb == "allow" { "@@" } else { "" };
    match client {
        None => format!("{exception}||{name}^"),
        Some(client) => format!("{exception}||{name}^$client={client}"),
    }
}

/// The way from the client to the answer.
fn decision(names: &PolicyNames, row: &QueryView) -> Markup {
    let client = if row.client_id.is_empty() {
        row.client.clone()
    } else {
        format!("{} ({})", names.client(&row.client_id), row.client)
    };
    let took = match row.duration_ms {
        0 => "in less than a millisecond".to_owned(),
        ms => format!("in {ms} ms"),
    };
    let by = match row.list.as_str() {
        "" => "nothing decided about this name".to_owned(),
        list => names.source(list),
    };
    let decided = match (row.list.is_empty(), row.outcome) {
        (true, _) => "",
        (_, OutcomeName::Blocked) => "bad",
        _ => "good",
    };
    let tier = match row.tier {
        Some(TierName::Memory) => Some("memory of this instance"),
        Some(TierName::Store) => Some("store, shared by all instances"),
        None => None,
    };
    let way = format!("over {}, at instance {}", row.protocol.to_uppercase(), row.instance);
    html! {
        ol.timeline {
            (step("", "Client", &client, &way))
            @if !row.group.is_empty() { (step("", "Group", names.group(&row.group), "")) }
            (step(decided, "Filter", &by, ""))
            @if let Some(tier) = tier { (step("good", "Cache", tier, "")) }
            @if !row.upstream.is_empty() { (step("", "Upstream", &row.upstream, "")) }
            (step(tone(row.outcome), &row.rcode, &row.answer, &took))
        }
    }
}

/// A step on the way to an answer.
pub(super) fn step(tone: &str, title: &str, text: &str, note: &str) -> Markup {
    html! { li class=(tone) { div { span.wrap-any { b { (title) } " " (text) } @if !note.is_empty() { span.dim.small { (note) } } } } }
}

/// The page of one query.
fn detail_path(row: &QueryView) -> String {
    format!("/dns/queries/{}/{}", percent(&row.instance), row.number)
}

/// Buttons that allow or block the name: for everybody or this device, for good or an hour. Each can be
/// undone.
fn actions(names: &PolicyNames, row: &QueryView) -> Markup {
    let is_blocked = row.outcome == OutcomeName::Blocked;
    // An address that the log has only in part, or as a hash, names no device.
    let client = match row.client_id.as_str() {
        "" if names.logs_full_addresses() => Some(row.client.as_str()),
        "" => None,
        id => Some(id),
    };
    // What is likely first.
    let verbs = match is_blocked {
        true => [("allow", "Allow", "is allowed"), ("block", "Block", "is blocked")],
        false => [("block", "Block", "is blocked"), ("allow", "Allow", "is allowed")],
    };
    let undo_rule = |rule: &str| format!("DELETE /api/v1/dns/rules?rule={}", percent(rule));
    let undo_timed = |client: Option<&str>| {
        let client =
            client.map(|client| format!("&client={}", percent(client))).unwrap_or_default();
        format!("DELETE /api/v1/dns/timed-rules?name={}{client}", percent(&row.name))
    };
    html! {
        @for (verb, label, done) in verbs {
            @let rule = rule_text(verb, &row.name, None);
            @let timed = |client: Option<&str>| match client {
                Some(client) => json!({ "name": row.name, "action": verb, "duration_seconds": 3_600, "client": client }),
                None => json!({ "name": row.name, "action": verb, "duration_seconds": 3_600 }),
            };
            div.actions {
                button.btn.s type="button" data-act="POST /api/v1/dns/rules" data-body=(json!({ "rule": rule })) data-done={ (row.name) " " (done) " for everybody" } data-undo=(undo_rule(&rule)) { (label) }
                button.btn.s type="button" data-act="POST /api/v1/dns/timed-rules" data-body=(timed(None)) data-done={ (row.name) " " (done) " for an hour" } data-undo=(undo_timed(None)) { (label) " for an hour" }
                @if let Some(client) = client {
                    @let own = rule_text(verb, &row.name, Some(client));
                    button.btn.s type="button" data-act="POST /api/v1/dns/rules" data-body=(json!({ "rule": own })) data-done={ (row.name) " " (done) " for " (names.client(client)) } data-undo=(undo_rule(&own)) { (label) " for this device" }
                    button.btn.s type="button" data-act="POST /api/v1/dns/timed-rules" data-body=(timed(Some(client))) data-done={ (row.name) " " (done) " for " (names.client(client)) ", for an hour" } data-undo=(undo_timed(Some(client))) { (label) " for this device, for an hour" }
                }
            }
        }
    }
}

/// The page of one query: the whole decision, as it was logged and as it would be now.
pub(crate) async fn one(
    State(state): State<DnsState>,
    Path((instance, number)): Path<(String, u64)>,
    shell: Shell,
) -> (StatusCode, Markup) {
    let acts = shell.may_operate();
    let position = BTreeMap::from([(instance.clone(), number.saturating_add(1))]);
    let filter = dns::LogFilter::default();
    let page = state.recording.log.search(&filter, Some(&position), 1, SEARCH_TIMEOUT).await;
    let found = page.rows.iter().find(|row| row.instance == instance && row.row.number == number);
    let status = if found.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
    let (title, body) = match found.map(QueryView::from) {
        None => {
            let text = "It is no longer in the log, or its instance does not answer.";
            let back = html! { a.btn href="/dns/queries" { "All queries" } };
            ("Query".to_owned(), ui::empty(Icon::SEARCH, "No such query", text, &back))
        }
        Some(row) => (row.name.clone(), detail(&state, &row, acts).await),
    };
    let head = ui::Head::new(&title, "One query, from the client to the answer.")
        .under("DNS", "/dns")
        .under("Queries", "/dns/queries");
    (status, frame_with(&state, &shell, "queries", None, &head, &body))
}

async fn detail(state: &DnsState, row: &QueryView, acts: bool) -> Markup {
    let client = if row.client_id.is_empty() { &row.client } else { &row.client_id };
    let asked = WhyQuery {
        name: row.name.clone(),
        rtype: Some(row.rtype.clone()),
        client: Some(client.clone()),
    };
    let now = match explain(state, &asked).await {
        Ok(decision) => decision_body(&decision),
        Err(error) => refusal(error.message()),
    };
    let names = PolicyNames::new(state);
    html! {
        div.grid {
            (ui::card("w6", "As it was answered", &html! {
                p { (ui::badge(tone(row.outcome), word(row.outcome))) " " span.dim { (format::moment(row.answered_at.0.0)) } }
                (decision(&names, row))
                @if acts { (actions(&names, row)) }
            }))
            (ui::card("w6", "As it would be decided now", &now))
        }
    }
}

/// A decision with its rule, its line and every step.
pub(super) fn decision_body(decision: &DecisionView) -> Markup {
    html! {
        p { (ui::badge(tone(decision.outcome), word(decision.outcome)))
            @if !decision.list.is_empty() { " by " b { (decision.list) } }
            @if let Some(line) = decision.line { ", line " (line) }
            @if let Some(hop) = &decision.hop { ", because of " span.mono { (hop) } }
        }
        @if let Some(rule) = &decision.rule { pre.code tabindex="0" { code { (rule) } } }
        ol.timeline { @for one in &decision.steps { (step("", &one.step, &one.result, "")) } }
    }
}

pub(super) fn word(outcome: OutcomeName) -> &'static str {
    match outcome {
        OutcomeName::Cached => "cached",
        OutcomeName::Upstream => "upstream",
        OutcomeName::Stale => "stale",
        OutcomeName::Blocked => "blocked",
        OutcomeName::Rewritten => "rewritten",
        OutcomeName::SafeSearch => "safe search",
        OutcomeName::Local => "local",
        OutcomeName::Rebinding => "rebinding",
        OutcomeName::Refused => "refused",
        OutcomeName::RateLimited => "rate limited",
        OutcomeName::Invalid => "invalid",
        OutcomeName::UpstreamError => "upstream error",
    }
}

pub(super) fn tone(outcome: OutcomeName) -> &'static str {
    match outcome {
        OutcomeName::Cached | OutcomeName::Local => "good",
        OutcomeName::Upstream | OutcomeName::Rewritten | OutcomeName::SafeSearch => "accent",
        OutcomeName::Stale
        | OutcomeName::Refused
        | OutcomeName::RateLimited
        | OutcomeName::Invalid => "warn",
        OutcomeName::Blocked | OutcomeName::Rebinding | OutcomeName::UpstreamError => "bad",
    }
}
