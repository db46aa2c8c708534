//! The cache: its tiers, and the answers of a name.

use axum::extract::State;
use maud::{Markup, html};
use serde::Deserialize;
use web::chart;
use web::extract::Query;
use web::format;
use web::icon::Icon;
use web::middleware::percent;
use web::series::float;
use web::ui::{self, Shell};

use super::frame;
use crate::api::cache::{AnswerView, SweepCountsView, USUAL_TYPES, answers, sweeps_view, view};
use crate::service::DnsState;

/// The name to look for.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct CacheQuery {
    #[serde(default)]
    name: String,
}

pub(crate) async fn page(
    State(state): State<DnsState>,
    Query(query): Query<CacheQuery>,
    shell: Shell,
) -> Markup {
    let acts = shell.may_operate();
    let topic = format!("dns-cache?{}", super::acts_word(acts));
    let body = html! {
        div.stack data-live=(topic) { (part(&state, acts).await) }
        (search(&state, query.name.trim(), acts).await)
    };
    frame(&state, &shell, "cache", None, &body)
}

/// Renders the live part: the tiers.
pub(crate) async fn part(state: &DnsState, acts: bool) -> Markup {
    let cache = view(state).await;
    let share = float(cache.memory_bytes) / float(cache.memory_max_bytes.max(1));
    let (bytes, unit) = format::bytes(float(cache.memory_bytes));
    let (most, most_unit) = format::bytes(float(cache.memory_max_bytes));
    let tried = (cache.memory_hits + cache.store_hits + cache.misses).max(1);
    let share_of = |part: u64| format!("{:.1}", float(part) / float(tried) * 100.0);
    html! {
        div.tiles {
            (ui::tile("Hit rate", &format!("{:.1}", cache.hit_rate * 100.0), "%", "of this instance, since its start", &html! {}))
            (ui::tile("From memory", &share_of(cache.memory_hits), "%", &format::count(cache.memory_hits), &html! {}))
            (ui::tile("From the store", &share_of(cache.store_hits), "%", &format::count(cache.store_hits), &html! {}))
            (ui::tile_to("/dns/queries?outcome=stale", "Stale answers", &share_of(cache.stale_hits), "%", &format!("{}, {} fresh", format::count(cache.stale_hits), format::count(cache.fresh_hits)), &html! {}))
            (ui::tile_to("/dns/queries?outcome=upstream", "From upstreams", &share_of(cache.misses), "%", &format::count(cache.misses), &html! {}))
        }
        div.grid {
            (ui::card("w6", "Memory of this instance", &html! {
                dl.facts {
                    dt { "Answers" } dd { (format::count(cache.memory_answers)) ", " (format::count(cache.memory_stale_answers)) " of them stale" }
                    dt { "Size" } dd { (bytes) " " (unit) " of " (most) " " (most_unit) }
                    dt { "Removed to make room" } dd { (format::count(cache.memory_evictions)) }
                }
                (chart::meter(share, &format!("{:.0} % full", share * 100.0)))
            }))
            (ui::card("w6", "Store, shared by all instances", &html! {
                dl.facts {
                    dt { "Answers" } dd {
                        @match cache.store_answers {
                            Some(count) => { (format::count(count)) }
                            None => { "the store is unavailable" }
                        }
                    }
                    dt { "At most" } dd { @if cache.store_max_answers == 0 { "no limit" } @else { (format::count(cache.store_max_answers)) } }
                }
                @if acts {
                    p.actions {
                        button.btn type="button" data-act="POST /api/v1/dns/cache/sweep" data-done="Swept: {refreshed} answers refreshed" { (Icon::REFRESH) "Sweep now" }
                        button.btn.danger type="button" data-act="POST /api/v1/dns/cache/clear" data-done="The cache is empty: {deleted} answers deleted"
                            data-confirm="Clear the cache? All answers are deleted, on every instance; the next query for each name goes to an upstream." data-confirm-verb="Clear" { (Icon::TRASH) "Clear the cache" }
                    }
                }
            }))
        }
        div.grid {
            (ui::card("w6", "Refreshes of this instance", &html! {
                dl.facts {
                    dt { "Hot: asked for often" } dd { (format::count(cache.hot_refreshes)) }
                    dt { "Warm: asked for once of late" } dd { (format::count(cache.warm_refreshes)) }
                    dt { "By the sweep" } dd { (format::count(cache.sweep_refreshes)) }
                }
                p.dim.small { "Answers renewed before they expired, since the start." }
            }))
            (sweeps(state))
        }
    }
}

/// The sweeps of this instance.
fn sweeps(state: &DnsState) -> Markup {
    let sweeps = sweeps_view(state);
    let row = |text: &'static str, count: fn(&SweepCountsView) -> u64| {
        (text, sweeps.last.as_ref().map(count), count(&sweeps.day))
    };
    let rows = [
        row("Refreshed before they expired", |sums| sums.refreshed),
        row("Removed because unused", |sums| sums.removed_cold),
        row("Removed above the limit", |sums| sums.removed_above_cap),
        row("Entries of the index without an answer", |sums| sums.reconciled),
        row("Expired in memory", |sums| sums.dropped_from_memory),
    ];
    ui::card_flush(
        "w6",
        "Sweeps of this instance",
        &html! {
            span.dim.small { @match sweeps.last_swept_at { Some(at) => { "last " (format::moment(at.0.0)) ", " (format::count(sweeps.day_sweeps)) " in 24 hours" } None => { "none yet" } } }
        },
        &html! {
            div.table-wrap tabindex="0" { table.table {
                thead { tr { th { "Answers" } th.r { "Last sweep" } th.r { "24 hours" } } }
                tbody { @for (text, last, day) in rows { tr { td { (text) } td.r.num { @match last { Some(last) => { (format::count(last)) } None => { "–" } } } td.r.num { (format::count(day)) } } } }
            } }
        },
    )
}

async fn search(state: &DnsState, name: &str, acts: bool) -> Markup {
    let found = if name.is_empty() {
        html! { (ui::empty(Icon::SEARCH, "Find a name", "Shows its cached answers, in memory and in the store.", &html! {})) }
    } else {
        results(state, name, acts).await
    };
    let form = html! {
        form.filters method="get" action="/dns/cache" role="search" {
            input.input type="search" name="name" value=(name) placeholder="shop.example" aria-label="Name" autocomplete="off" spellcheck="false" data-search="";
            button.btn type="submit" { (Icon::SEARCH) "Find" }
        }
    };
    ui::card_flush("", "Answers of a name", &form, &found)
}

async fn results(state: &DnsState, name: &str, acts: bool) -> Markup {
    let Ok(parsed) = name.parse() else {
        return html! { div.notice.bad role="alert" { (format!("{name:?} is not the name of a domain.")) } };
    };
    let rows = match answers(state, &parsed, &USUAL_TYPES).await {
        Ok(rows) => rows,
        Err(error) => return html! { div.notice.bad role="alert" { (error.message()) } },
    };
    if rows.is_empty() {
        return ui::empty(
            Icon::SEARCH,
            "Nothing is cached for this name",
            "The next query of it goes to an upstream.",
            &html! {},
        );
    }
    html! {
        div.table-wrap tabindex="0" { table.table.cards {
            thead { tr { th { "Type" } th { "Tier" } th { "Answer" } th.r { "Fresh for" } th.r { "Hits" } } }
            tbody { @for row in &rows { (answer_row(row)) } }
        } }
        @if acts {
            p.inset.actions {
                button.btn type="button" data-act={ "POST /api/v1/dns/cache/answers/" (percent(name)) "/refresh" } data-done={ "Asked upstream for " (name) " again" } data-then="reload" { (Icon::REFRESH) "Refresh now" }
                button.btn.danger type="button" data-act={ "DELETE /api/v1/dns/cache/answers/" (percent(name)) } data-done={ "Deleted the answers of " (name) } data-then="reload" { (Icon::TRASH) "Delete these answers" }
            }
        }
    }
}

fn answer_row(row: &AnswerView) -> Markup {
    html! {
        tr {
            td data-label="Type" { (row.rtype) @if row.signed { " " span.dim.small { "DNSSEC" } } }
            td data-label="Tier" { (row.tier.as_str()) }
            td.wrap-any.wide {
                @if row.records.is_empty() { (row.rcode) }
                @for record in &row.records { div.mono.small { (record.rtype) " " (record.data) } }
            }
            td.r data-label="Fresh for" { @if row.remaining_seconds == 0 { (ui::badge("warn", "stale")) } @else { (row.remaining_seconds) " s" } }
            td.r data-label="Hits" { (format::count(row.hits)) }
        }
    }
}
