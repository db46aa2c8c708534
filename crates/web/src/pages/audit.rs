//! The audit trail as a page.

use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde::Deserialize;
use store::Millis;

use crate::app::App;
use crate::audit::{self, AuditFilter, Entry};
use crate::error::ApiError;
use crate::extract::Query;
use crate::format;
use crate::icon::Icon;
use crate::middleware::percent;
use crate::ui::{self, Shell};

const PER_PAGE: usize = 50;

/// Entries of one export.
const EXPORT_MAX: usize = 50_000;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditPageQuery {
    #[serde(default)]
    before: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    outcome: String,
    /// Days back; empty: all.
    #[serde(default)]
    days: String,
    /// Days such as `2026-11-17`, in UTC.
    #[serde(default)]
    from: String,
    #[serde(default)]
    to: String,
}

impl AuditPageQuery {
    fn filter(&self, now: Millis) -> Result<AuditFilter, ApiError> {
        let day = |field: &str, text: &str, plus: i64| -> Result<Option<Millis>, ApiError> {
            if text.is_empty() {
                return Ok(None);
            }
            let date: jiff::civil::Date = text
                .parse()
                .map_err(|_| ApiError::invalid_field(field, "a day such as 2026-11-17"))?;
            let start = date.to_zoned(jiff::tz::TimeZone::UTC).map_err(|_| {
                ApiError::invalid_field(field, "a day between the years 1 and 9998")
            })?;
            Ok(Some(Millis(start.timestamp().as_millisecond() + plus * 86_400_000)))
        };
        let back = match self.days.as_str() {
            "" => None,
            days => Some(
                days.parse::<u16>()
                    .map_err(|_| ApiError::invalid_field("days", "a number of days, such as 7"))?,
            ),
        };
        let back = back.map(|days| now - Duration::from_secs(u64::from(days) * 86_400));
        Ok(AuditFilter {
            text: self.text.trim().chars().take(200).collect(),
            outcome: self.outcome.clone(),
            from: day("from", &self.from, 0)?.or(back),
            to: day("to", &self.to, 1)?.map(|end| Millis(end.0 - 1)),
            ..AuditFilter::default()
        })
    }

    /// The query again, for links.
    fn link(&self) -> String {
        let fields = [
            ("text", &self.text),
            ("outcome", &self.outcome),
            ("days", &self.days),
            ("from", &self.from),
            ("to", &self.to),
        ];
        let set = fields.iter().filter(|(_, value)| !value.is_empty());
        set.map(|(name, value)| format!("&{name}={}", percent(value))).collect()
    }
}

pub(crate) async fn page(
    State(app): State<App>,
    shell: Shell,
    Query(query): Query<AuditPageQuery>,
) -> Result<Markup, ApiError> {
    let before = Some(query.before.as_str()).filter(|id| audit::is_stream_id(id));
    let filter = query.filter(app.store().now())?;
    let (entries, next) = audit::find(&app, &filter, before, PER_PAGE).await?;
    let link = query.link();
    let filtered = !link.is_empty();
    let head =
        ui::Head::new("Audit", "Every change, by whom, when and from where.").actions(html! {
            a.btn href={ "/audit/export?as=csv" (link) } download="" { "Export CSV" }
            a.btn href={ "/audit/export?as=json" (link) } download="" { "Export JSON" }
        });
    let body = html! {
        section.card aria-label="Changes" {
            (filters(&query))
            @if entries.is_empty() {
                @if filtered {
                    (ui::empty(Icon::SEARCH, "Nothing matches", "No change fits these filters. Try fewer words or a longer time.", &html! { a.btn href="/audit" { "Show everything" } }))
                } @else {
                    (ui::empty(Icon::AUDIT, "No changes yet", "Whatever people and programs change shows up here, newest first.", &html! {}))
                }
            } @else {
                div.table-wrap tabindex="0" { (table(&entries)) }
            }
            @if !entries.is_empty() || next.is_some() {
                div.pager {
                    span { (entries.len()) @if entries.len() == 1 { " entry" } @else { " entries" } @if before.is_some() { ", older ones" } }
                    span.actions {
                        @if before.is_some() { a.btn.s href={ "/audit?" (link) } { "Newest" } }
                        @if let Some(next) = &next { a.btn.s href={ "/audit?before=" (next) (link) } { "Older" } }
                    }
                }
            }
        }
    };
    Ok(shell.page(&app, "/audit", &head, &body))
}

fn filters(query: &AuditPageQuery) -> Markup {
    let outcomes = [
        ("", "All outcomes"),
        ("ok", "ok"),
        ("refused", "refused"),
        ("failed", "failed"),
        ("unknown", "unknown"),
    ];
    let days =
        [("", "Any time"), ("1", "Last 24 hours"), ("7", "Last 7 days"), ("30", "Last 30 days")];
    html! {
        form.filters method="get" action="/audit" role="search" {
            span.search {
                (Icon::SEARCH)
                input.input type="search" name="text" value=(query.text) placeholder="Who, what, target, address or request"
                    aria-label="Find changes" data-search="" autocomplete="off" maxlength="200";
            }
            select.input name="outcome" aria-label="Outcome" data-submit-on-change="" {
                @for (value, word) in outcomes { option value=(value) selected[value == query.outcome] { (word) } }
            }
            select.input name="days" aria-label="Time" data-submit-on-change="" {
                @for (value, word) in days { option value=(value) selected[value == query.days] { (word) } }
            }
            span.days-row {
                label.inline { "From" input.input type="date" name="from" value=(query.from) aria-label="From day (UTC)"; }
                label.inline { "to" input.input type="date" name="to" value=(query.to) aria-label="To day (UTC)"; }
            }
            button.btn type="submit" { "Filter" }
        }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct AuditExportQuery {
    #[serde(rename = "as")]
    format: String,
    #[serde(flatten)]
    page: AuditPageQuery,
}

/// The trail as a file.
pub(crate) async fn export(
    State(app): State<App>,
    Query(query): Query<AuditExportQuery>,
) -> Result<Response, ApiError> {
    let filter = query.page.filter(app.store().now())?;
    let (mut entries, mut at) = (Vec::new(), None::<String>);
    while entries.len() < EXPORT_MAX {
        let (mut some, next) = audit::find(&app, &filter, at.as_deref(), 1_000).await?;
        entries.append(&mut some);
        at = next;
        if at.is_none() {
            break;
        }
    }
    let (kind, name, text) = match query.format.as_str() {
        "csv" => ("text/csv; charset=utf-8", "audit.csv", csv(&entries)),
        "json" => {
            let lines = entries.iter().filter_map(|entry| serde_json::to_string(entry).ok());
            let text = lines.map(|line| line + "\n").collect();
            ("application/x-ndjson", "audit.ndjson", text)
        }
        _ => return Err(ApiError::invalid_field("as", "csv or json")),
    };
    let disposition = format!("attachment; filename=\"{name}\"");
    Ok((
        [(header::CONTENT_TYPE, kind.to_owned()), (header::CONTENT_DISPOSITION, disposition)],
        text,
    )
        .into_response())
}

fn csv(entries: &[Entry]) -> String {
    let mut text =
        "time,who,role,action,target,outcome,status,client,request_id,instance\r\n".to_owned();
    for entry in entries {
        let status = entry.status.to_string();
        let time = format::rfc3339(entry.at_ms);
        let cells = [
            time.as_str(),
            &entry.who,
            &entry.role,
            &entry.action,
            &entry.target,
            &entry.outcome,
            &status,
            &entry.client,
            &entry.request_id,
            &entry.instance,
        ];
        text.push_str(&cells.map(cell).join(","));
        text.push_str("\r\n");
    }
    text
}

/// A cell of CSV (RFC 4180). One that a spreadsheet would take for a formula begins with an apostrophe.
fn cell(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if formula { format!("'{text}") } else { text.to_owned() };
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
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
                dt { "Request" } dd.mono { (entry.request_id) (ui::copy_button(&entry.request_id)) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_quoted_where_it_must_be_and_never_a_formula() {
        assert_eq!(cell("plain"), "plain");
        assert_eq!(cell("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(cell("=1+1"), "'=1+1");
    }

    #[test]
    fn a_range_of_days_includes_its_last() {
        let query = AuditPageQuery {
            from: "2026-11-16".to_owned(),
            to: "2026-11-16".to_owned(),
            ..AuditPageQuery::default()
        };
        let filter = query.filter(Millis(0)).unwrap();
        assert_eq!(filter.to.unwrap().0 - filter.from.unwrap().0, 86_400_000 - 1);
        let query = AuditPageQuery { from: "yesterday".to_owned(), ..AuditPageQuery::default() };
        assert_eq!(query.filter(Millis(0)).unwrap_err().field(), Some("from"));
    }
}
