//! Lists: state, age, size, unique share, last error, suggestions, and a preview of what a list would change.

use axum::extract::State;
use dns::{ListAction, WeekSchedule};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::json;
use web::extract::Query;
use web::icon::Icon;
use web::middleware::percent;
use web::series::float;
use web::ui::{self, Shell};
use web::{chart, format};

use super::groups::window_text;
use super::queries::{tone, word};
use super::{PolicyNames, ROWS, acts_word, dialog, frame, opener, refusal, window_fields};
use crate::api::lists::{ListStateView, PreviewView, preview_of, states};
use crate::catalogue::{Choice, SUGGESTED, SuggestedList};
use crate::service::DnsState;

/// The preview that is asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PreviewQuery {
    /// Id of the list.
    preview: String,
    /// Source of a list that is not in use yet.
    url: String,
    /// `off` shows what would change without the list.
    state: String,
}

pub(crate) async fn page(
    State(state): State<DnsState>,
    Query(query): Query<PreviewQuery>,
    shell: Shell,
) -> Markup {
    let acts = shell.may_operate();
    let topic = format!("dns-lists?{}", acts_word(acts));
    let previewed = match query.preview.trim() {
        "" => html! {},
        // It makes this server fetch what the address names.
        _ if !acts => refusal("a preview is for operators"),
        id => preview(&state, id, &query).await,
    };
    let body = html! {
        (previewed)
        div.stack data-live=(topic) { (part(&state, acts).await) }
        (suggestions(&state, acts))
        @if acts {
            (dialog("new-list", "Add a list", "PUT /api/v1/dns/lists/{id}", "Add", "The list is fetched in the background", &html! {
                label.field { span { "Id" } input.input type="text" name="id" required autocomplete="off" spellcheck="false"; small { "Letters a to z, digits, - _ and ." } }
                (ui::text("name", "Name", "", "Shown in blocked replies."))
                label.field { span { "Source" } input.input type="text" name="url" required autocomplete="off" spellcheck="false"; small { "https://…, file:NAME below the folder of lists, or embedded:default. Hosts files, domains, AdGuard syntax and RPZ are read." } }
                label.field { span { "Names on it are" } select.input name="action" { option value="block" { "blocked" } option value="allow" { "allowed" } } }
            }))
        }
    };
    let body = html! { (body) @if acts { (times_dialog(&state)) } };
    frame(&state, &shell, "lists", None, &body)
}

/// The dialog that gives a list times.
fn times_dialog(state: &DnsState) -> Markup {
    let version = state.resolver.policy();
    dialog(
        "list-times",
        "Use a list at some times",
        "POST /api/v1/dns/lists/{list}/windows",
        "Add",
        "The times hold from now on",
        &html! {
            label.field { span { "List" } select.input name="list" { @for one in &version.policy.lists { option value=(one.id) { @if one.name.is_empty() { (one.id) } @else { (one.name) } } } } }
            (window_fields("UTC"))
        },
    )
}

/// Renders the live part: the lists in use.
pub(crate) async fn part(state: &DnsState, acts: bool) -> Markup {
    let found = states(state).await;
    let actions = html! {
        @if acts {
            button.btn.s type="button" data-act="POST /api/v1/dns/list-refreshes" data-done="All lists were fetched" { (Icon::REFRESH) "Fetch all" }
            @if !found.is_empty() { (opener("list-times", "At some times")) }
            (opener("new-list", "Add a list"))
        }
    };
    ui::card_flush("", "Lists", &actions, &table(state, &found, acts))
}

fn table(state: &DnsState, found: &[ListStateView], acts: bool) -> Markup {
    if found.is_empty() {
        let button = html! {
            @if acts { button.btn.primary type="button" data-act="PUT /api/v1/dns/lists/default" data-body=(json!({ "name": "Built-in list", "url": "embedded:default" })) data-done="The built-in list is in use" data-then="reload" { "Use the built-in list" } }
        };
        let text = "Nothing is blocked by a list yet. The built-in one needs no network.";
        return ui::empty(crate::ICON, "No lists", text, &button);
    }
    let policy = state.resolver.policy();
    let allows = |id: &str| {
        policy.policy.lists.iter().any(|list| list.id == id && list.action == ListAction::Allow)
    };
    let schedule_of = |id: &str| {
        let list = policy.policy.lists.iter().find(|list| list.id == id);
        list.and_then(|list| list.schedule.as_ref())
    };
    html! {
        div.table-wrap tabindex="0" { table.table.cards {
            thead { tr { th { "List" } th { "State" } th.r { "Rules" } th { "Only here" } th.r { "Memory" } th { "Fetched" } @if acts { th { span.sr { "Actions" } } } } }
            tbody { @for one in found.iter().take(ROWS) { (row(one, allows(&one.id), schedule_of(&one.id), acts)) } }
        } }
    }
}

fn row(one: &ListStateView, allows: bool, schedule: Option<&WeekSchedule>, acts: bool) -> Markup {
    let path = format!("/api/v1/dns/lists/{}", percent(&one.id));
    let (memory, unit) = format::bytes(float(one.memory_bytes));
    let name = if one.name.is_empty() { &one.id } else { &one.name };
    html! {
        tr data-key=(one.id) {
            td.wrap-any.lead {
                details.story {
                    summary { b { (name) } " " span.dim.small { (one.id) @if allows { " · allows" } } }
                    dl.facts {
                        dt { "Source" } dd.mono.small { (one.url) }
                        dt { "Text" } dd { (format::count(one.bytes)) " bytes" @if let Some(at) = one.changed_at { ", changed " (format::moment(at.0.0)) } }
                        @if let Some(fix) = &one.fix { dt { "What to do" } dd { (fix) } }
                        dt { "Counts" } dd {
                            @match schedule {
                                None => { "at all times" }
                                Some(schedule) => { @for window in &schedule.windows { div { (window_text(window)) } } span.dim { (schedule.time_zone) } }
                            }
                            @if acts && schedule.is_some() { " " button.btn.s.ghost type="button" data-act={ "PATCH " (path) } data-body=(json!({ "schedule": null })) data-done={ (name) " counts at all times" } data-then="reload" { "At all times" } }
                        }
                        dt { "Queries" } dd { a href={ "/dns/queries?list=" (percent(&one.id)) } { "those it decided" } }
                    }
                    @if one.unusable_lines > 0 {
                        p.small { (format::count(one.unusable_lines)) @if one.unusable_lines == 1 { " line" } @else { " lines" } " cannot be used, for example:" }
                        ul.list.tight { @for line in one.unusable_examples.iter().take(5) { li { span.dim.small { "line " (line.line) } span.grow.mono.small.wrap-any { (line.text) } span.small { (line.reason) } } } }
                    }
                }
            }
            td data-label="State" {
                @if !one.enabled { (ui::badge("", "off")) }
                @else if one.error.is_some() { (ui::badge("bad", "failed")) }
                @else if one.shrunk_to.is_some() { (ui::badge("warn", "confirm")) }
                @else if one.is_loaded { (ui::badge("good", "in use")) }
                @else { (ui::badge("warn", "not loaded")) }
                @if let Some(error) = &one.error { span.sub.wrap-any { (error) } }
                @if let Some(rules) = one.shrunk_to { span.sub { "the new copy has only " (format::count(rules)) } }
            }
            td.r.num data-label="Rules" { @if one.is_loaded { (format::count(one.rules)) } @else { "–" } }
            td data-label="Only here" {
                @match one.unique_names {
                    Some(unique) if one.rules > 0 => {
                        @let share = (float(unique) / float(one.rules)).min(1.0);
                        span.bar-wrap { (chart::level(share, &format!("{:.0} %", share * 100.0))) }
                    }
                    _ => { span.dim { "–" } }
                }
            }
            td.r.num data-label="Memory" { @if one.is_loaded { (memory) " " (unit) } @else { "–" } }
            td.nowrap.small data-label="Fetched" { @match one.fetched_at { Some(at) => { (format::moment(at.0.0)) } None if one.url.starts_with("embedded:") => { "built in" } None => { "never" } } }
            @if acts { td.r {
                span.actions {
                    @if one.shrunk_to.is_some() { button.btn.s.primary type="button" data-act={ "POST " (path) "/refresh" } data-body=(json!({ "confirmed": true })) data-done="The new copy is in use" { "Use it" } }
                    a.btn.s.ghost href={ "/dns/lists?preview=" (percent(&one.id)) "&state=" (if one.enabled { "off" } else { "on" }) } title=(if one.enabled { "What would change without it" } else { "What it would change" }) { "Preview" }
                    @if one.enabled { button.btn.s.ghost type="button" data-act={ "PATCH " (path) } data-body=(json!({ "enabled": false })) data-done={ (name) " is off" } { "Switch off" } }
                    @else { button.btn.s.ghost type="button" data-act={ "PATCH " (path) } data-body=(json!({ "enabled": true })) data-done={ (name) " is on" } { "Switch on" } }
                    button.btn.s.ghost type="button" aria-label={ "Fetch " (one.id) } data-act={ "POST " (path) "/refresh" } data-body="{}" data-done={ "Fetched " (one.id) } { (Icon::REFRESH) }
                    button.btn.s.ghost type="button" aria-label={ "Remove " (one.id) } data-act={ "DELETE " (path) }
                        data-confirm={ "Remove " (name) "? Groups that name it forget it." } data-confirm-verb="Remove" data-done={ "Removed " (one.id) } data-then="reload" { (Icon::TRASH) }
                }
            } }
        }
    }
}

/// Suggested lists by choice, with what each costs.
fn suggestions(state: &DnsState, acts: bool) -> Markup {
    let version = state.resolver.policy();
    let lists = &version.policy.lists;
    let status = state.resolver.lists().status(lists);
    let is_used = |list: &SuggestedList| lists.iter().any(|one| one.url == list.url);
    let size = |bytes: u64| {
        let (number, unit) = format::bytes(float(bytes));
        format!("{number} {unit}")
    };
    let body = html! {
        div.table-wrap tabindex="0" { table.table.cards {
            thead { tr { th { "Choice" } th { "List" } th.r { "Names" } th.r { "Memory" } th.r { "Download" } th { "Licence" } @if acts { th { span.sr { "Actions" } } } } }
            tbody {
                @for (choice, word, meaning) in Choice::ALL {
                    @for list in SUGGESTED.iter().filter(|list| list.choice == choice) {
                        @let loaded = list.find_loaded(lists, &status);
                        tr data-key=(list.id) {
                            td data-label="Choice" title=(meaning) { (ui::badge("accent", word)) }
                            td.wide { b { (list.name) } span.sub { (list.text) } }
                            td.r.num.nowrap data-label="Names" { @match loaded { Some(one) => { (format::count(one.figures.rules)) } None => { "below " (format::count(list.names_below)) } } }
                            td.r.num.nowrap data-label="Memory" { @match loaded { Some(one) => { (size(one.memory_bytes)) } None => { "below " (size(list.memory_below())) } } }
                            td.r.num.nowrap data-label="Download" { @if list.url.starts_with("embedded") { "none" } @else if let Some(one) = loaded { (size(one.figures.bytes)) } @else { span.dim title="Shown once it was fetched" { "–" } } }
                            td.small data-label="Licence" { (list.licence) }
                            @if acts { td.r {
                                @if is_used(list) { (ui::badge("good", "in use")) }
                                @else {
                                    span.actions {
                                        a.btn.s.ghost href={ "/dns/lists?preview=" (list.id) "&url=" (percent(list.url)) } { "Preview" }
                                        button.btn.s type="button" data-act={ "PUT /api/v1/dns/lists/" (list.id) } data-body=(json!({ "name": list.name, "url": list.url })) data-done={ (list.name) " is fetched in the background" } data-then="reload" { "Use" }
                                    }
                                }
                            } }
                        }
                    }
                }
            }
        } }
    };
    ui::card_flush("", "Suggestions", &html! {}, &body)
}

async fn preview(state: &DnsState, id: &str, query: &PreviewQuery) -> Markup {
    let url = Some(query.url.trim()).filter(|url| !url.is_empty());
    let is_on = query.state != "off";
    let title = match (is_on, url) {
        (false, _) => format!("Without {id}"),
        (true, Some(_)) => format!("With {id}"),
        (true, None) => format!("With {id} switched on"),
    };
    let body = match preview_of(state, id, url, is_on).await {
        Ok(found) => preview_body(&PolicyNames::new(state), &found),
        Err(error) => refusal(error.message()),
    };
    let close = html! { a.btn.s.ghost href="/dns/lists" { (Icon::CROSS) "Close" } };
    ui::card_flush("", &format!("{title}: the last day again"), &close, &body)
}

fn preview_body(names: &PolicyNames, found: &PreviewView) -> Markup {
    if found.queries == 0 {
        let text = "There are no queries of the last day to compare with.";
        return ui::empty(Icon::SEARCH, "Nothing to compare", text, &html! {});
    }
    html! {
        div.inset {
            p {
                "Of " b { (format::count(found.queries)) } " queries of the last day, "
                b { (format::count(found.newly_blocked)) } " more would be blocked, and "
                b { (format::count(found.no_longer_blocked)) } " fewer."
                @for (id, rules) in &found.fetched { " " span.dim { (id) " has " (format::count(rules.as_u64().unwrap_or(0))) " rules." } }
            }
            @if !found.silent_instances.is_empty() { p.dim.small { "Did not answer in time: " (found.silent_instances.join(", ")) "." } }
        }
        @if found.names.is_empty() {
            (ui::empty(Icon::CHECK, "Nothing would change", "Every query of the last day would be answered as it was.", &html! {}))
        } @else {
            div.table-wrap tabindex="0" { table.table.cards {
                thead { tr { th { "Name" } th { "Now" } th { "Then" } th { "By" } th { "Clients" } th.r { "Queries" } } }
                tbody {
                    @for one in found.names.iter().take(50) {
                        tr {
                            td.mono.wrap-any { (one.name) " " span.dim.small { (one.rtype) } }
                            td data-label="Now" { (ui::badge(tone(one.before), word(one.before))) }
                            td data-label="Then" { (ui::badge(tone(one.after), word(one.after))) }
                            td.small data-label="By" { (names.source(&one.list)) }
                            td.small.wide data-label="Clients" { (one.clients.iter().map(|id| names.client(id)).collect::<Vec<_>>().join(", ")) }
                            td.r.num data-label="Queries" { (format::count(one.queries)) }
                        }
                    }
                }
            } }
        }
    }
}
