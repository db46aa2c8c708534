//! The registered workers and their capabilities.

use axum::extract::State;
use jobs::WorkerView;
use maud::{Markup, html};

use super::frame;
use crate::service::JobsState;
use web::format;
use web::icon::Icon;
use web::ui::{self, Shell};

/// Workers shown.
const ROWS: usize = 500;

pub(crate) async fn page(State(state): State<JobsState>, shell: Shell) -> Markup {
    let body = part(&state).await;
    frame(&state, &shell, "workers", Some("workers"), &body).await
}

/// The living part.
pub(crate) async fn part(state: &JobsState) -> Markup {
    super::with_jobs(state, async |jobs| Ok(list(&jobs.workers().await?))).await
}

fn list(workers: &[WorkerView]) -> Markup {
    let body = if workers.is_empty() {
        ui::empty(
            Icon::USER,
            "No workers",
            "A worker registers itself when it starts: with the library, over HTTP, or with any Redis client.",
            &html! {},
        )
    } else {
        html! {
            div.table-wrap tabindex="0" { table.table.cards {
                thead { tr { th { "Worker" } th { "State" } th { "Types" } th { "Capabilities" } th { "Stack, region" } th { "Last heartbeat" } } }
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
        tr data-key=(info.worker_id) {
            td { b { (info.worker_id) } span.sub { (info.hostname) @if info.pid > 0 { " · process " (info.pid) } } }
            td { @if worker.alive { (ui::badge("good", "alive")) } @else { (ui::badge("bad", "silent")) } }
            td.wrap-any.wide data-label="Types" { @match &worker.types {
                Some(types) => { span.chips { @for job_type in types.iter().take(20) { span.badge.mono { (job_type) } } } }
                None => { span.dim { "every type" } }
            } }
            td.wrap-any.wide data-label="Capabilities" {
                @if info.capabilities.is_empty() { span.dim { "–" } }
                @else { span.chips { @for can in info.capabilities.iter().take(20) { span.badge.mono.accent { (can) } } } }
            }
            td data-label="Stack, region" { @if place.is_empty() { span.dim { "–" } } @else { (place.join(" · ")) } }
            td.nowrap data-label="Last heartbeat" { @match worker.heartbeat { Some(at) => { (format::moment(at)) } None => { span.dim { "–" } } } }
        }
    }
}
