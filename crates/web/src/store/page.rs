//! The store: how it is, which keys it has, what is in them, what was slow.

use ::store::history::SharedSample;
use axum::extract::State;
use maud::{Markup, html};

use crate::app::App;
use crate::chart::{self, Line, Scale};
use crate::error::ApiError;
use crate::extract::Query;
use crate::format;
use crate::icon::Icon;
use crate::middleware::percent;
use crate::page::Page;
use crate::series::float;
use crate::store::{self, KeyQuery, KeyRow, KeyValue, OneKey};
use crate::ui::{self, Shell};

const KINDS: [&str; 6] = ["string", "hash", "list", "set", "zset", "stream"];

pub(super) async fn page(
    State(app): State<App>,
    shell: Shell,
    Query(query): Query<KeyQuery>,
) -> Markup {
    let head =
        ui::Head::new("Store", "Keys, memory and slow commands of the store everything lives in.");
    let found = store::keys(&app, &query).await;
    let body = html! {
        div.stack {
            div data-live="store" { (part(&app).await) }
            div data-live="store-usage" { (usage_part(&app).await) }
            (browser(&query, &found))
        }
    };
    shell.page(&app, "/store", &head, &body)
}

/// The living part.
pub(super) async fn part(app: &App) -> Markup {
    let (info, slow) = tokio::join!(store::info(app), store::slow(app));
    let info = match info {
        Ok(info) => info,
        Err(error) => return ui::notice(&error),
    };
    let series = app.series();
    let (memory, unit) = format::bytes(float(info.memory_bytes));
    let limit = match info.memory_limit_bytes {
        0 => "no limit set".to_owned(),
        limit => {
            let (number, unit) = format::bytes(float(limit));
            format!("of {number} {unit}")
        }
    };
    html! {
        div.tiles {
            (ui::tile("Keys", &format::count(info.keys), "", &format!("{} · {}", info.kind, info.address), &chart::spark(&series.line("store.keys"), 1)))
            (ui::tile("Memory", &memory, unit, &limit, &chart::spark(&series.line("store.memory"), 3)))
            (ui::tile("Commands", &format::short(series.last("store.commands").unwrap_or(0.0)), "/s", "lately, all clients", &chart::spark(&series.line("store.commands"), 1)))
            (ui::tile("Clients", &format::count(info.clients), "", &format!("version {}", info.version), &html! {}))
        }
        div.grid {
            (ui::card("w6", "Memory", &html! {
                (chart::chart("Memory of the store", &[Line::new("data", "", "store.memory")], Scale::Bytes))
                @if info.memory_limit_bytes > 0 {
                    (chart::meter(float(info.memory_bytes) / float(info.memory_limit_bytes), "share of the memory limit in use"))
                }
            }))
            (ui::card_flush("w6", "Slow commands", &html! {}, &slow_list(&slow)))
        }
    }
}

/// Memory by service and prefix.
pub(super) async fn usage_part(app: &App) -> Markup {
    let usage = match super::usage::usage(app).await {
        Ok(usage) => usage,
        Err(error) => return ui::notice(&error),
    };
    let note = if usage.keys_measured < usage.keys {
        format!(
            "estimated from {} of {} keys",
            format::count(usage.keys_measured),
            format::count(usage.keys)
        )
    } else {
        format!("all {} keys", format::count(usage.keys))
    };
    let note = html! { span.dim.small { (note) } };
    html! {
        div.grid {
            (ui::card_flush("w4", "Memory by service", &note, &shares(&usage.services)))
            (ui::card_flush("w4", "Memory by prefix", &html! {}, &shares(&usage.prefixes)))
            (ui::card_flush("w4", "Big keys", &html! {}, &html! {
                @if usage.biggest.is_empty() { (ui::empty(Icon::BOX, "No keys yet", "The biggest keys are listed here.", &html! {})) }
                ul.list.tight {
                    @for big in usage.biggest.iter().take(10) {
                        li {
                            a.row.mono.grow.clip-line href={ "/store/key?key=" (percent(&big.key)) } title=(big.key) { (big.key) }
                            span.num.nowrap { (size(big.memory_bytes)) }
                        }
                    }
                }
            }))
        }
    }
}

fn shares(shares: &[super::usage::MemoryShare]) -> Markup {
    let most = shares.iter().map(|share| share.memory_bytes).max().unwrap_or(0).max(1);
    html! {
        ul.list.tight {
            @for share in shares.iter().take(10) {
                li {
                    span.grow.clip-line title=(share.name) { (share.name) " " span.dim.small { (format::short(float(share.keys))) @if share.keys == 1 { " key" } @else { " keys" } } }
                    span.bar-wrap { (chart::level(float(share.memory_bytes) / float(most), &size(share.memory_bytes))) }
                    span.num.nowrap { (size(share.memory_bytes)) }
                }
            }
        }
    }
}

fn size(bytes: u64) -> String {
    let (number, unit) = format::bytes(float(bytes));
    format!("{number} {unit}")
}

fn slow_list(slow: &Result<Vec<store::SlowCommand>, ApiError>) -> Markup {
    match slow {
        Err(error) => html! { div.card-body { (ui::notice(error)) } },
        Ok(rows) if rows.is_empty() => ui::empty(
            Icon::BOLT,
            "Nothing was slow",
            "Commands that take longer than the store's limit are listed here.",
            &html! {},
        ),
        Ok(rows) => html! {
            ul.list {
                @for row in rows.iter().take(8) {
                    li {
                        (ui::badge("warn", &latency(row.took_ms)))
                        code.grow.wrap-any.clamp title=(row.command) { (briefly(&row.command)) }
                        span.dim.small.nowrap { (format::moment(row.started_at.0.0)) }
                    }
                }
            }
        },
    }
}

/// A command whose script's hash is cut short: what it is called with says more.
fn briefly(command: &str) -> String {
    let mut words: Vec<String> = command.split(' ').map(str::to_owned).collect();
    if let Some(hash) = words.get_mut(1)
        && hash.len() == 40
        && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    {
        hash.truncate(8);
        hash.push('…');
    }
    words.join(" ")
}

fn latency(ms: u64) -> String {
    let (number, unit) = format::latency(float(ms));
    format!("{number} {unit}")
}

fn browser(query: &KeyQuery, found: &Result<Page<KeyRow>, ApiError>) -> Markup {
    let pattern = query.pattern.as_deref().unwrap_or_default();
    let kind = query.kind.as_deref().unwrap_or_default();
    html! {
        section.card aria-label="Keys" {
            form.filters method="get" action="/store" role="search" {
                span.search {
                    (Icon::SEARCH)
                    input.input type="search" name="pattern" value=(pattern) placeholder="Find keys: a word, or a pattern like queue:*"
                        aria-label="Find keys" data-search="" spellcheck="false" autocomplete="off";
                }
                select.input name="type" aria-label="Type" data-submit-on-change="" {
                    option value="" { "All types" }
                    @for name in KINDS { option value=(name) selected[name == kind] { (name) } }
                }
                button.btn type="submit" { "Find" }
            }
            @match found {
                Err(error) => { div.card-body { (ui::notice(error)) } }
                Ok(page) if page.items.is_empty() => {
                    (ui::empty(Icon::BOX, "No keys found", if pattern.is_empty() { "The store is empty. Keys appear as the services are used." } else { "Nothing matches in the part that was searched." }, &html! {}))
                }
                Ok(page) => { div.table-wrap tabindex="0" { (rows(page)) } }
            }
            @if let Ok(page) = found {
                div.pager {
                    span { (format::count(page.items.len() as u64)) @if page.items.len() == 1 { " key" } @else { " keys" } }
                    @if let Some(cursor) = &page.next_cursor {
                        a.btn.s href={ "/store?pattern=" (percent(pattern)) "&type=" (percent(kind)) "&cursor=" (cursor) } { "More" }
                    }
                }
            }
        }
    }
}

fn rows(page: &Page<KeyRow>) -> Markup {
    html! {
        table.table.cards {
            thead { tr { th { "Key" } th { "Type" } th.r { "Expires in" } } }
            tbody {
                @for row in &page.items {
                    tr {
                        td.key { a.row.mono href={ "/store/key?key=" (percent(&row.key)) } { (row.key) } }
                        td { span.badge.mono { (row.kind) } }
                        td.r { @match row.ttl_ms { Some(ms) => { (format::millis(ms)) } None => { span.dim { "never" } } } }
                    }
                }
            }
        }
    }
}

pub(super) async fn key_page(
    State(app): State<App>,
    shell: Shell,
    Query(query): Query<OneKey>,
) -> Result<Markup, ApiError> {
    let value = store::value(&app, &query.key)
        .await?
        .ok_or_else(|| ApiError::not_found("this key does not exist, or no longer does"))?;
    let address = format!("DELETE /api/v1/store/key?key={}", percent(&value.key));
    let head = ui::Head::new(value.key.clone(), "").under("Store", "/store").actions(html! {
        a.btn href={ "/store/key?key=" (percent(&value.key)) } { (Icon::REFRESH) "Refresh" }
        @if shell.may_own() {
            button.btn.danger type="button" data-act=(address) data-then="/store" data-done="Key removed"
                data-confirm={ "Remove " (value.key) "? A service that needs it will not find it." }
                data-confirm-verb="Remove" { (Icon::TRASH) "Remove" }
        }
    });
    let body = html! {
        div.grid {
            (ui::card("w4", "About", &facts(&value)))
            section.card.w8 aria-label="Value" {
                div.card-head { h2 { "Value" } @if value.more { span.badge { "first part" } } }
                @if value.kind == "string" { div.card-body { pre.code tabindex="0" { (pretty(value.entries.first().and_then(|row| row.first()).map_or("", String::as_str))) } } }
                @else { div.card-body.flush { div.table-wrap tabindex="0" { (entries(&value)) } } }
            }
        }
    };
    Ok(shell.page(&app, "/store", &head, &body))
}

fn facts(value: &KeyValue) -> Markup {
    let unit = if value.kind == "string" { "bytes" } else { "entries" };
    html! {
        dl.facts {
            dt { "Type" } dd { span.badge.mono { (value.kind) } }
            dt { "Length" } dd.num { (format::count(value.length)) " " (unit) }
            dt { "Expires in" } dd { @match value.ttl_ms { Some(ms) => { (format::millis(ms)) } None => { "never" } } }
            @if !value.encoding.is_empty() { dt { "Kept as" } dd.mono { (value.encoding) } }
            @if let Some(bytes) = value.memory_bytes {
                @let (number, unit) = format::bytes(float(bytes));
                dt { "Memory" } dd.num { (number) " " (unit) }
            }
        }
    }
}

fn entries(value: &KeyValue) -> Markup {
    let heads: &[&str] = match value.kind.as_str() {
        "list" => &["#", "Value"],
        "zset" => &["Score", "Member"],
        "hash" => &["Field", "Value"],
        "stream" => &["Id", "Fields"],
        _ => &["Member"],
    };
    html! {
        table.table {
            thead { tr { @for head in heads { th { (head) } } } }
            tbody {
                @for row in &value.entries {
                    tr { @for (index, cell) in row.iter().enumerate() {
                        td class=(if index == 0 && row.len() > 1 { "mono small nowrap" } else { "mono small wrap-any" }) { (cell) }
                    } }
                }
            }
        }
    }
}

/// JSON is easier to read with its lines apart.
fn pretty(text: &str) -> String {
    serde_json::from_str::<serde_json::Value>(text)
        .ok()
        .filter(|value| value.is_object() || value.is_array())
        .and_then(|value| serde_json::to_string_pretty(&value).ok())
        .unwrap_or_else(|| text.to_owned())
}

/// Returns the samples of the store.
pub(super) async fn sample(app: &App) -> Vec<SharedSample> {
    let Ok(info) = store::info(app).await else { return Vec::new() };
    vec![
        SharedSample::gauge("store.memory", float(info.memory_bytes)),
        SharedSample::gauge("store.keys", float(info.keys)),
        SharedSample::total("store.commands", float(info.commands_total)),
    ]
}

/// The tiles on the overview.
pub(super) fn tiles(app: &App) -> Markup {
    let series = app.series();
    let last = |name: &str| series.last(name).unwrap_or(0.0);
    let (data, unit) = format::bytes(last("store.memory"));
    html! {
        (ui::tile("Store commands", &format::short(last("store.commands")), "/s", "all clients of the store", &chart::spark(&series.line("store.commands"), 1)))
        (ui::tile("Store memory", &data, unit, &format!("{} keys", format::short(last("store.keys"))), &chart::spark(&series.line("store.memory"), 3)))
    }
}
