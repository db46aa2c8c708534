//! The workers that are there, and what they can do.

use axum::extract::State;
use jobs::WorkerView;
use maud::{Markup, html};

use super::super::{Shell, format, ui};
use super::frame;
use crate::app::App;

/// Workers shown.
const ROWS: usize = 500;

pub(crate) async fn page(State(app): State<App>, shell: Shell) -> Markup {
    let body = part(&app).await;
    frame(&app, &shell, "workers", Some("workers"), &body).await
}

/// The living part.
pub(crate) async fn part(app: &App) -> Markup {
    super::with_jobs(app, async |jobs| Ok(list(&jobs.workers().await?))).await
}

fn list(workers: &[WorkerView]) -> Markup {
    let body = if workers.is_empty() {
        ui::empty(
            "user",
            "No workers",
            "A worker registers itself when it starts: with the library, over HTTP, or with any Redis client.",
            &html! {},
        )
    } else {
        html! {
            div.table-wrap tabindex="0" { table.table.cards {
                thead { tr { th { "Worker" } th { "State" } th { "Takes" } th { "Can do" } th { "Where" } th { "Last heard of" } } }
                tbody { @for worker in workers.iter().take(ROWS) { (row(worker)) } }
            } }
        }
    };
    ui::card_flush("", "Workers", &html! {}, &body)
}

fn row(worker: &WorkerView) -> Markup {
    let info = &worker.info;
    let place: Vec<&str> =
        [info.stack.as_str(), info.region.as_str()].into_iter().filter(|p| !p.is_empty()).collect();
    html! {
        tr data-key=(info.server_id) {
            td { b { (info.server_id) } span.sub { (info.hostname) @if info.pid > 0 { " · process " (info.pid) } } }
            td { @if worker.alive { (ui::badge("good", "alive")) } @else { (ui::badge("bad", "silent")) } }
            td.wrap-any.wide data-label="Takes" { @match &worker.types {
                Some(types) => { span.chips { @for kind in types.iter().take(20) { span.badge.mono { (kind) } } } }
                None => { span.dim { "every type" } }
            } }
            td.wrap-any.wide data-label="Can do" {
                @if info.capabilities.is_empty() { span.dim { "–" } }
                @else { span.chips { @for can in info.capabilities.iter().take(20) { span.badge.mono.accent { (can) } } } }
            }
            td data-label="Where" { @if place.is_empty() { span.dim { "–" } } @else { (place.join(" · ")) } }
            td.nowrap data-label="Last heard of" { @match worker.heartbeat { Some(at) => { (format::moment(at)) } None => { span.dim { "–" } } } }
        }
    }
}
