//! The first page: is everything well, and what is going on right now.

use axum::extract::State;
use maud::{Markup, html};

use crate::app::App;
use crate::chart::{self, Line, Scale};
use crate::icon::Icon;
use crate::service::FirstStep;
use crate::ui::{self, Shell};
use crate::{audit, format, health};

pub(crate) async fn page(State(app): State<App>, shell: Shell) -> Markup {
    let head = ui::Head::new("Overview", "Health and live numbers of this installation.");
    let body = html! {
        @if shell.may_own() { div data-live="first-run" { (first_run(&app, shell.origin()).await) } }
        div data-live="overview" { (part(&app).await) }
    };
    shell.page(&app, "/", &head, &body)
}

/// The first steps with each service, until all were taken. `origin` is the address of this server; the live
/// part does not know it, and the script fills it in, as it does a token, which it makes when asked.
pub(crate) async fn first_run(app: &App, origin: &str) -> Markup {
    let with_origin = |command: &str| match origin {
        "" => command.to_owned(),
        origin => command.replace("{server}", origin).replace("{token}", "TOKEN"),
    };
    let steps = app.services().iter().map(|open| open.running.first_steps());
    let steps: Vec<FirstStep> =
        futures_util::future::join_all(steps).await.into_iter().flatten().collect();
    if steps.iter().all(|step| step.is_done) {
        return html! {};
    }
    html! {
        section.card.first-card aria-label="First steps" {
            div.card-head {
                h2 { "First steps" }
                button.btn.s type="button" data-first-token="" { (Icon::KEY) "Make a token for these lines" }
                p { "Paste a line into a terminal. The token is an admin's; revoke it under Settings when you are done. The card goes away once every step is done." }
            }
            div.card-body {
                ol.first-run {
                    @for step in &steps {
                        li {
                            div { (ui::badge(if step.is_done { "good" } else { "" }, if step.is_done { "done" } else { "to do" })) " " a href=(step.path) { b { (step.title) } } }
                            p.small.dim { (step.text) }
                            pre.code data-command=(step.command) data-own="" tabindex="0" { (with_origin(step.command)) }
                            div { button.btn.s type="button" data-copy-command="" { (Icon::COPY) "Copy" } }
                        }
                    }
                }
            }
        }
    }
}

/// The living part.
pub(crate) async fn part(app: &App) -> Markup {
    let series = app.series();
    let last = |name: &str| series.last(name).unwrap_or(0.0);
    let (p99, p99_unit) = format::latency(last("http.latency:p99"));
    let (memory, memory_unit) = format::bytes(last("process.memory"));
    let checks = health::readiness(app).await;
    let recent = audit::read(app, None, 6).await.unwrap_or_default();
    html! {
        div.tiles.four {
            @for open in app.services() { @if let Some(tiles) = open.running.tiles(app) { (tiles) } }
            (ui::tile("Requests", &format::short(last("http.requests")), "/s", "answered by all instances", &chart::spark(&series.line("http.requests"), 1)))
            (ui::tile("Latency p99", &p99, p99_unit, "time to first byte", &chart::spark(&series.line("http.latency:p99"), 2)))
        }
        div.grid {
            (ui::card("w6", "Requests", &chart::chart("Requests per second", &[
                Line::new("answered", "/s", "http.requests"),
            ], Scale::Number)))
            (ui::card("w6", "Latency", &chart::chart("Latency in milliseconds", &[
                Line::new("p50", "ms", "http.latency:p50"),
                Line::new("p99", "ms", "http.latency:p99"),
            ], Scale::Number)))
            (ui::card("w6", "Store", &chart::chart("Store commands per second", &[
                Line::new("commands", "/s", "store.commands"),
            ], Scale::Number)))
            (ui::card("w6", "Memory", &chart::chart("Memory", &[
                Line::new("process", "", "process.memory"),
                Line::new("store", "", "store.memory"),
            ], Scale::Bytes)))
            (ui::card_flush("w6", "Health", &html! {}, &html! {
                ul.list {
                    @for check in &checks {
                        li {
                            (ui::badge(if check.ok { "good" } else { "bad" }, if check.ok { "ok" } else { "failing" }))
                            b { (check.name.replace('_', " ")) }
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
