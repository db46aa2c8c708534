//! The first page: is everything well, and what is going on right now.

use axum::extract::State;
use maud::{Markup, html};

use crate::app::App;
use crate::chart::{self, Line, Scale};
use crate::icon::Icon;
use crate::ui::{self, Shell};
use crate::{audit, format, health};

pub(crate) async fn page(State(app): State<App>, shell: Shell) -> Markup {
    let head = ui::Head::new("Overview", "Health and live numbers of this instance.")
        .actions(html! { span.live-dot { "Live" } });
    let body = html! { div data-live="overview" { (part(&app).await) } };
    shell.page(&app, "/", &head, &body)
}

/// The living part.
pub(crate) async fn part(app: &App) -> Markup {
    let series = app.series();
    let last = |name: &str| series.last(name).unwrap_or(0.0);
    let (p99, p99_unit) = format::latency(last("http.p99"));
    let (memory, memory_unit) = format::bytes(last("process.memory"));
    let checks = health::readiness(app).await;
    let recent = audit::read(app, None, 6).await.unwrap_or_default();
    html! {
        div.tiles.three {
            @for open in app.services() { @if let Some(tiles) = open.running.tiles(app) { (tiles) } }
            (ui::tile("Requests", &format::short(last("http.requests")), "/s", "answered by this instance", &chart::spark(&series.line("http.requests"), 1)))
            (ui::tile("Latency p99", &p99, p99_unit, "time to the answer's head", &chart::spark(&series.line("http.p99"), 2)))
        }
        div.grid {
            (ui::card("w6", "Requests", &chart::chart("Requests per second", &[
                Line { name: "answered", unit: "/s", values: series.line("http.requests") },
            ], Scale::Number)))
            (ui::card("w6", "Latency", &chart::chart("Latency in milliseconds", &[
                Line { name: "p50", unit: "ms", values: series.line("http.p50") },
                Line { name: "p99", unit: "ms", values: series.line("http.p99") },
            ], Scale::Number)))
            (ui::card("w6", "Store", &chart::chart("Store commands per second", &[
                Line { name: "commands", unit: "/s", values: series.line("store.commands") },
            ], Scale::Number)))
            (ui::card("w6", "Memory", &chart::chart("Memory", &[
                Line { name: "process", unit: "", values: series.line("process.memory") },
                Line { name: "store", unit: "", values: series.line("store.memory") },
            ], Scale::Bytes)))
            (ui::card_flush("w6", "Health", &html! {}, &html! {
                ul.list {
                    @for check in &checks {
                        li {
                            (ui::badge(if check.ok { "good" } else { "bad" }, if check.ok { "ok" } else { "failing" }))
                            b { (check.name) }
                            span.dim.grow.wrap-any { (check.reason) }
                        }
                    }
                    li {
                        (ui::badge("good", "ok"))
                        b { "process" }
                        span.dim.grow { "up " (format::duration(app.uptime())) ", " (memory) " " (memory_unit) " of memory" }
                    }
                }
            }))
            (ui::card_flush("w6", "Latest changes", &html! { a.small href="/audit" { "All" } }, &html! {
                @if recent.is_empty() {
                    (ui::empty(Icon::AUDIT, "No changes yet", "Whatever people and programs change shows up here.", &html! {}))
                } @else {
                    ul.list {
                        @for entry in &recent {
                            li data-key=(entry.id) {
                                (ui::badge(super::audit::tone(&entry.outcome), &entry.outcome))
                                span.grow.wrap-any { b { (entry.who) } " " (entry.action) " " span.dim { (entry.target) } }
                                span.dim.small.nowrap { (format::moment(entry.at_ms)) }
                            }
                        }
                    }
                }
            }))
        }
    }
}
