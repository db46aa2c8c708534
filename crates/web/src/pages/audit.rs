//! The audit trail as a page.

use axum::extract::State;
use maud::{Markup, html};
use serde::Deserialize;

use crate::app::App;
use crate::audit::{self, Entry};
use crate::error::ApiError;
use crate::extract::Query;
use crate::format;
use crate::icon::Icon;
use crate::ui::{self, Shell};

const PER_PAGE: usize = 50;

#[derive(Debug, Deserialize)]
pub(crate) struct AuditPageQuery {
    before: Option<String>,
}

pub(crate) async fn page(
    State(app): State<App>,
    shell: Shell,
    Query(query): Query<AuditPageQuery>,
) -> Result<Markup, ApiError> {
    let before = query.before.as_deref().filter(|id| audit::is_stream_id(id));
    let entries = audit::read(&app, before, PER_PAGE).await?;
    let head = ui::Head::new("Audit", "Every change, by whom, when and from where.");
    let body = html! {
        section.card aria-label="Changes" {
            @if entries.is_empty() {
                (ui::empty(Icon::AUDIT, "No changes yet", "Whatever people and programs change shows up here, newest first.", &html! {}))
            } @else {
                div.table-wrap tabindex="0" { (table(&entries)) }
                div.pager {
                    span { (entries.len()) " entries" @if before.is_some() { ", older ones" } }
                    span.actions {
                        @if before.is_some() { a.btn.s href="/audit" { "Newest" } }
                        @if let (true, Some(last)) = (entries.len() == PER_PAGE, entries.last()) {
                            a.btn.s href={ "/audit?before=" (last.id) } { "Older" }
                        }
                    }
                }
            }
        }
    };
    Ok(shell.page(&app, "/audit", &head, &body))
}

fn table(entries: &[Entry]) -> Markup {
    html! {
        table.table.cards {
            thead { tr { th { "When" } th { "Who" } th { "What" } th { "Outcome" } th { "From" } th { "Details" } } }
            tbody {
                @for entry in entries {
                    tr {
                        td.nowrap { (format::moment(entry.at_ms)) }
                        td { (entry.who) span.sub { (entry.role) } }
                        td.wrap-any { b { (entry.action) } span.sub { (entry.target) } }
                        td { (ui::badge(tone(&entry.outcome), &entry.outcome)) }
                        td.mono.small { (entry.client) }
                        td.wide { (details(entry)) }
                    }
                }
            }
        }
    }
}

fn details(entry: &Entry) -> Markup {
    let pretty =
        |value: &serde_json::Value| serde_json::to_string_pretty(value).unwrap_or_default();
    html! {
        details {
            summary { "Show" }
            dl.facts.small {
                dt { "Request" } dd.mono { (entry.request_id) }
                dt { "Token" } dd.mono { (entry.token_id) }
                dt { "Status" } dd { (entry.status) }
                dt { "Instance" } dd.mono { (entry.instance) }
            }
            @if let Some(before) = entry.before.as_ref().filter(|value| !value.is_null()) { p.small.dim { "Before" } pre.code tabindex="0" { (pretty(before)) } }
            @if let Some(after) = entry.after.as_ref().filter(|value| !value.is_null()) { p.small.dim { "After" } pre.code tabindex="0" { (pretty(after)) } }
        }
    }
}

/// The colour of an outcome.
pub(crate) fn tone(outcome: &str) -> &'static str {
    match outcome {
        "ok" => "good",
        "refused" | "unknown" => "warn",
        _ => "bad",
    }
}
