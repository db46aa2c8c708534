//! Clients that are known and those that were seen, and a page for each: what it asks, its group, its set-up.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use axum::extract::{Path, State};
use dns::{ClientEntry, LogFilter, Policy, QueryOutcome, StatisticsField};
use maud::{Markup, html};
use serde_json::json;
use store::Millis;
use web::icon::Icon;
use web::middleware::percent;
use web::series::float;
use web::ui::{self, Shell};
use web::{ApiError, chart, format};

use super::queries::{query_head, query_row};
use super::{
    PolicyNames, ROWS, acts_word, dialog, frame, frame_with, opener, refusal, shown_name,
    with_policy,
};
use crate::api::devices::unknown_clients;
use crate::api::queries::QueryView;
use crate::service::DnsState;

/// Rows of the log that the page of a client sums up.
const CLIENT_ROWS_MAX: usize = 5_000;

/// Range of the figures.
const DAY: Duration = Duration::from_secs(86_400);

/// Time for other instances to answer.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);

/// The page of clients.
pub(crate) async fn page(State(state): State<DnsState>, shell: Shell) -> Markup {
    let acts = shell.may_operate();
    let seen = unknown(&state, acts).await;
    let figures = day_figures(&state).await;
    let topic = format!("dns-clients?{}", acts_word(acts));
    let body = with_policy(&state, |policy| html! {
        (ui::card_flush("", "Known clients", &html! { @if acts { (opener("new-client", "Add a client")) } }, &table(policy, &figures, acts)))
        div.stack data-live=(topic) { (seen) }
        @if acts {
            (dialog("new-client", "Add a client", "PUT /api/v1/dns/clients/{id}", "Add", "The client is known from now on", &html! {
                label.field { span { "Id" } input.input type="text" name="id" required autocomplete="off" spellcheck="false"; small { "Letters a to z, digits and -; also the last part of /dns-query/ID." } }
                (ui::text("name", "Name", "", ""))
                label.field {
                    span { "Addresses" }
                    input.input type="text" name="addresses" data-kind="list" autocomplete="off" spellcheck="false";
                    small { "Addresses, networks and MAC addresses, separated by commas." }
                }
                label.field { span { "Group" } select.input name="group" { @for group in policy.all_groups() { option value=(group.id) { (shown_name(&group)) } } } }
            }))
        }
    })
    .await;
    frame(&state, &shell, "clients", None, &body)
}

/// Queries and blocked queries of the last day, by client.
async fn day_figures(state: &DnsState) -> HashMap<String, (u64, u64)> {
    let now = state.resolver.now();
    let report = state.recording.statistics.read(now - DAY, Millis(now.0 + 1)).await;
    let mut figures: HashMap<String, (u64, u64)> = HashMap::new();
    // Without the store the table is there all the same.
    let Ok(report) = report else { return figures };
    for (client, queries) in report.top(StatisticsField::Client, usize::MAX) {
        figures.entry(client).or_default().0 = queries;
    }
    for (client, blocked) in report.top(StatisticsField::BlockedClient, usize::MAX) {
        figures.entry(client).or_default().1 = blocked;
    }
    figures
}

fn table(policy: &Policy, figures: &HashMap<String, (u64, u64)>, acts: bool) -> Markup {
    if policy.clients.is_empty() {
        let text = "Give devices a name and a group. All others are in the default group.";
        return ui::empty(Icon::USER, "No known clients", text, &html! {});
    }
    html! {
        div.table-wrap tabindex="0" { table.table.cards {
            thead { tr { th { "Client" } th { "Group" } th { "Addresses" } th.r { "Queries, 24 h" } th.r { "Blocked" } @if acts { th { span.sr { "Actions" } } } } }
            tbody {
                @for client in policy.clients.iter().take(ROWS) {
                    tr data-key=(client.id) {
                        td { a.row href={ "/dns/clients/" (percent(&client.id)) } { @if client.name.is_empty() { (client.id) } @else { (client.name) } } span.sub.mono { (client.id) } }
                        td data-label="Group" { a href={ "/dns/groups/" (percent(&client.group)) } { (policy.all_groups().iter().find(|group| group.id == client.group).map_or_else(|| client.group.clone(), shown_name)) } }
                        td.mono.small.wrap-any.wide { (client.addresses.join(", ")) }
                        @let (queries, blocked) = figures.get(&client.id).copied().unwrap_or_default();
                        td.r.num data-label="Queries, 24 h" { a href={ "/dns/queries?client=" (percent(&client.id)) } { (format::count(queries)) } }
                        td.r.num data-label="Blocked" { @if queries == 0 { span.dim { "–" } } @else { (format!("{:.0} %", float(blocked) / float(queries) * 100.0)) } }
                        @if acts { td.r { button.btn.s.ghost type="button" aria-label={ "Remove " (client.id) } data-act={ "DELETE /api/v1/dns/clients/" (percent(&client.id)) }
                            data-confirm={ "Remove " (client.id) "? It counts as unknown from then on." } data-confirm-verb="Remove" data-done={ "Removed " (client.id) } data-then="reload" { (Icon::TRASH) } } }
                    }
                }
            }
        } }
    }
}

/// Renders the live part: clients that were seen and are not known.
pub(crate) async fn unknown(state: &DnsState, acts: bool) -> Markup {
    let found = match unknown_clients(state).await {
        Ok(found) => found,
        Err(error) => return refusal(error.message()),
    };
    let body = if found.is_empty() {
        let text = "Devices that send queries and are not known appear here.";
        ui::empty(Icon::SEARCH, "No unknown clients", text, &html! {})
    } else {
        html! {
            ul.list {
                @for one in found.iter().take(50) {
                    @let id = make_id(&one.client);
                    li data-key=(one.client) {
                        span.grow { a.row href={ "/dns/clients/" (percent(&one.client)) } { span.mono { (one.client) } } span.dim.small { " last asked " (format::moment(one.seen_at.0.0)) } }
                        @if acts && one.client.parse::<IpAddr>().is_ok() {
                            button.btn.s type="button" aria-label={ "Name it: " (one.client) } data-act={ "PUT /api/v1/dns/clients/" (id) } data-body=(json!({ "addresses": [one.client] })) data-done={ (one.client) " is known as " (id) } data-then={ "/dns/clients/" (id) } { (Icon::PLUS) "Name it" }
                        }
                    }
                }
            }
        }
    };
    ui::card_flush("", "Unknown clients", &html! {}, &body)
}

/// An id for a client that is known by its address only.
fn make_id(address: &str) -> String {
    let id: String =
        address.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    format!("client-{}", id.to_ascii_lowercase().trim_matches('-'))
}

/// The page of one client: by id, or by address.
pub(crate) async fn one(
    State(state): State<DnsState>,
    Path(id): Path<String>,
    shell: Shell,
) -> Result<Markup, ApiError> {
    let acts = shell.may_operate();
    let found = figures(&state, &id).await;
    let version = state.resolver.policy();
    let policy = &version.policy;
    let entry = policy.clients.iter().find(|client| client.id == id);
    // Any address may ask one day; another word is a client only if it is known or has asked.
    if entry.is_none() && id.parse::<IpAddr>().is_err() && found.queries == 0 {
        return Err(ApiError::not_found(
            "no client has this id, and none with it has asked anything",
        ));
    }
    let names = PolicyNames::new(&state);
    let live = figures_part(&names, &found, acts, &id);
    let title = match entry {
        Some(client) if !client.name.is_empty() => client.name.clone(),
        _ => id.clone(),
    };
    let topic = format!("dns-client?{}/{id}", acts_word(acts));
    let body = html! {
        @if acts { (buttons(&id)) }
        div.stack data-live=(topic) data-steady="" { (live) }
        @match entry {
            Some(client) => {
                @if acts { (settings(policy, client)) }
                (set_up(&state, client))
            }
            None => { p.dim { "This client is not known: it is in the default group. Name it on the page " a href="/dns/clients" { "Clients" } "." } }
        }
        @if shell.may_own() {
            p { button.btn.danger type="button" data-act={ "DELETE /api/v1/dns/queries/clients/" (percent(&id)) }
                data-confirm={ "Delete every logged query of " (title) ", on all instances? This cannot be undone." } data-confirm-verb="Delete" data-done="Deleted {deleted} queries" data-then="reload" { (Icon::TRASH) "Delete its queries from the log" } }
        }
    };
    let head = ui::Head::new(&title, "A client of the resolver: what it asks, and what it gets.")
        .under("DNS", "/dns")
        .under("Clients", "/dns/clients");
    Ok(frame_with(&state, &shell, "clients", None, &head, &body))
}

fn buttons(id: &str) -> Markup {
    html! {
        div.toolbar {
            span.end.actions {
                @for (label, seconds) in [("10 minutes", 600), ("an hour", 3_600)] {
                    button.btn.s type="button" data-act="POST /api/v1/dns/pauses" data-body=(json!({ "duration_seconds": seconds, "client": id })) data-done={ "Filtering is paused for " (id) ", for " (label) }
                        data-undo={ "DELETE /api/v1/dns/pauses?client=" (percent(id)) } { (Icon::PAUSE) "Pause for " (label) }
                }
            }
        }
    }
}

/// Figures of a client of the last day.
#[derive(Debug, Default)]
struct ClientFigures {
    /// Of the statistics.
    queries: u64,
    blocked: u64,
    /// Rows of the log that were looked at, and those of them that came from the cache.
    logged: u64,
    cached: u64,
    names: Vec<(String, u64)>,
    blocked_names: Vec<(String, u64)>,
    rows: Vec<QueryView>,
}

async fn figures(state: &DnsState, id: &str) -> ClientFigures {
    let from = state.resolver.now() - DAY;
    let filter = LogFilter {
        client: Some(id.to_owned()),
        from: Some(Millis(from.0)),
        ..LogFilter::default()
    };
    let mut found = ClientFigures::default();
    let (mut names, mut blocked) = (HashMap::new(), HashMap::new());
    let mut position = None;
    let mut logged_blocked = 0;
    while found.logged < CLIENT_ROWS_MAX as u64 {
        let page =
            state.recording.log.search(&filter, position.as_ref(), 1_000, SEARCH_TIMEOUT).await;
        for shared in
            page.rows.iter().filter(|one| &*one.row.client == id || &*one.row.client_id == id)
        {
            let row = &shared.row;
            found.logged += 1;
            *names.entry(row.name.to_string()).or_insert(0_u64) += 1;
            if row.outcome == QueryOutcome::Blocked {
                logged_blocked += 1;
                *blocked.entry(row.name.to_string()).or_insert(0_u64) += 1;
            }
            if matches!(row.outcome, QueryOutcome::Cached | QueryOutcome::Stale) {
                found.cached += 1;
            }
            if found.rows.len() < 30 {
                found.rows.push(QueryView::from(shared));
            }
        }
        position = page.next;
        if position.is_none() {
            break;
        }
    }
    let top = |counts: HashMap<String, u64>| {
        let mut top: Vec<(String, u64)> = counts.into_iter().collect();
        top.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        top.truncate(10);
        top
    };
    (found.names, found.blocked_names) = (top(names), top(blocked));
    let (queries, blocked) = day_figures(state).await.get(id).copied().unwrap_or_default();
    // The log may be ahead of the statistics by a moment.
    (found.queries, found.blocked) = match queries >= found.logged {
        true => (queries, blocked),
        false => (found.logged, logged_blocked),
    };
    found
}

/// Renders the live part of a client's page: `ACTS/ID`.
pub(crate) async fn part(state: &DnsState, argument: &str) -> Markup {
    let (acts, id) = argument.split_once('/').unwrap_or(("look", argument));
    figures_part(&PolicyNames::new(state), &figures(state, id).await, acts == "acts", id)
}

fn figures_part(names: &PolicyNames, found: &ClientFigures, acts: bool, id: &str) -> Markup {
    let share = |part: u64, of: u64| match of {
        0 => 0.0,
        of => float(part) / float(of) * 100.0,
    };
    let link = format!("/dns/queries?client={}", percent(id));
    html! {
        div.tiles {
            (ui::tile_to(&link, "Queries of the last day", &format::count(found.queries), "", "", &html! {}))
            (ui::tile_to(&format!("{link}&outcome=blocked"), "Blocked", &format!("{:.1}", share(found.blocked, found.queries)), "%", &format::count(found.blocked), &html! {}))
            (ui::tile_to(&format!("{link}&outcome=cached"), "From the cache", &format!("{:.1}", share(found.cached, found.logged)), "%", &format!("of the latest {}", format::count(found.logged)), &html! {}))
        }
        div.grid {
            (top("w6", "Names", &found.names, found.logged, id))
            (top("w6", "Blocked names", &found.blocked_names, found.blocked, id))
        }
        @if found.rows.is_empty() {
            (ui::card("", "Latest queries", &ui::empty(Icon::SEARCH, "No queries", "Nothing of the last day is in the log.", &html! {})))
        } @else {
            (ui::card_flush("", "Latest queries", &html! { a.small href=(link) { "All" } }, &html! {
                div.table-wrap tabindex="0" { table.table.cards {
                    (query_head(acts))
                    tbody { @for row in &found.rows { (query_row(names, row, acts)) } }
                } }
            }))
        }
    }
}

fn top(width: &str, title: &str, values: &[(String, u64)], total: u64, client: &str) -> Markup {
    let body = if values.is_empty() {
        ui::empty(Icon::SEARCH, "Nothing yet", "Fills with the first queries.", &html! {})
    } else {
        html! {
            ul.list.tight {
                @for (name, count) in values {
                    @let share = float(*count) / float(total.max(1));
                    li data-key=(name) {
                        span.grow.clip { a.row href={ "/dns/queries?client=" (percent(client)) "&name=" (percent(name)) } { (name) } }
                        span.bar-wrap { (chart::level(share, &format!("{:.0} %", share * 100.0))) }
                        span.num { (format::count(*count)) }
                    }
                }
            }
        }
    };
    ui::card_flush(width, title, &html! {}, &body)
}

fn settings(policy: &Policy, client: &ClientEntry) -> Markup {
    ui::card(
        "",
        "Settings",
        &html! {
            form.form data-api={ "PATCH /api/v1/dns/clients/" (percent(&client.id)) } data-base=(json!({ "addresses": [], "tags": [] })) data-done="In force" data-then="reload" {
                div.form-row {
                    (ui::text("name", "Name", &client.name, ""))
                    label.field { span { "Group" } select.input name="group" { @for group in policy.all_groups() { option value=(group.id) selected[group.id == client.group] { (shown_name(&group)) } } } }
                }
                label.field {
                    span { "Addresses" }
                    input.input type="text" name="addresses" data-kind="list" value=(client.addresses.join(", ")) autocomplete="off" spellcheck="false";
                    small { "Addresses, networks and MAC addresses, separated by commas." }
                }
                label.field {
                    span { "Tags" }
                    input.input type="text" name="tags" data-kind="list" value=(client.tags.join(", ")) autocomplete="off" spellcheck="false";
                    small { "Words for rules with $ctag, separated by commas." }
                }
                div { button.btn.primary type="submit" { "Save" } }
            }
        },
    )
}

/// The set-up of the device for encrypted queries, with a code to photograph.
fn set_up(state: &DnsState, client: &ClientEntry) -> Markup {
    let id = client.id.as_str();
    let endpoints = &state.endpoints;
    ui::card(
        "",
        "Set up the device",
        &html! {
            @if let Some(missing) = endpoints.missing(false) {
                p { "Over encrypted protocols a device is known by its id wherever it is. " (format::sentence(missing)) }
            } @else {
                dl.facts {
                    @if let Some(url) = endpoints.https_url(Some(id)) {
                        dt { "DNS over HTTPS" } dd { span.mono.wrap-any { (url) } " " (ui::copy_button(&url)) }
                        dt { "Apple devices" } dd { a href={ "/api/v1/dns/profile?client=" (percent(id)) } download="" { "Configuration profile" } }
                    }
                    @match endpoints.tls_host(Some(id)) {
                        Some(host) => { dt { "Android, private DNS" } dd { span.mono.wrap-any { (host) } " " (ui::copy_button(&host)) } }
                        None => { dt { "Android, private DNS" } dd { (format::sentence(endpoints.missing(true).unwrap_or_default())) } }
                    }
                }
                @if let Some(code) = endpoints.tls_host(Some(id)).or_else(|| endpoints.https_url(Some(id))).and_then(|text| crate::profile::qr_code(&text)) {
                    p { (code) }
                    p.dim.small { "Scan the code with the device to copy the name." }
                }
            }
        },
    )
}
