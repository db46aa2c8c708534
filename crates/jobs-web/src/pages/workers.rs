//! The registered workers: what they run, how much they get done, and a way to drain one.

use axum::extract::State;
use jobs::{Jobs, WorkerActivity, WorkerView};
use maud::{Markup, html};

use super::frame;
use crate::service::JobsState;
use web::chart;
use web::format;
use web::icon::Icon;
use web::middleware::percent;
use web::ui::{self, Shell};

/// Workers shown.
const ROWS: usize = 500;

/// Running jobs shown of a worker.
const JOBS: usize = 3;

pub(crate) async fn page(State(state): State<JobsState>, shell: Shell) -> Markup {
    let acts = shell.may_operate();
    let body = part(&state, acts).await;
    let topic = if acts { "workers?acts" } else { "workers" };
    frame(&state, &shell, "workers", Some(topic), &body).await
}

/// The living part.
pub(crate) async fn part(state: &JobsState, acts: bool) -> Markup {
    super::with_jobs(state, async |jobs| list(jobs, acts).await).await
}

async fn list(jobs: &Jobs, acts: bool) -> Result<Markup, jobs::Error> {
    let mut workers = jobs.workers().await?;
    let all = workers.len();
    workers.truncate(ROWS);
    let names: Vec<&str> = workers.iter().map(|view| view.info.worker_id.as_str()).collect();
    let activity = jobs.worker_activity(&names).await?;
    let body = if workers.is_empty() {
        ui::empty(
            Icon::USER,
            "No workers",
            "A worker registers itself when it starts: with the library, over HTTP, or with any Redis client.",
            &html! { pre.code tabindex="0" { "tidegate jobs exec --type mail -- ./send-mail.sh" } },
        )
    } else {
        html! {
            div.table-wrap tabindex="0" { table.table.cards {
                thead { tr { th { "Worker" } th { "State" } th { "Running" } th { "Per minute" } th { "Failures" } th { "Takes" } th { span.sr { "Actions" } } } }
                tbody { @for (worker, activity) in workers.iter().zip(&activity) { (row(worker, activity, acts)) } }
            } }
            @if all > ROWS { div.pager { span { "The first " (ROWS) " of " (format::count(all as u64)) } } }
        }
    };
    Ok(ui::card_flush("", "Workers", &html! {}, &body))
}

fn row(worker: &WorkerView, activity: &WorkerActivity, acts: bool) -> Markup {
    let info = &worker.info;
    let id = info.worker_id.as_str();
    let place: Vec<&str> =
        [info.stack.as_str(), info.region.as_str()].into_iter().filter(|p| !p.is_empty()).collect();
    let (tone, word) = match (worker.alive, worker.draining, activity.running) {
        (false, ..) => ("bad", "silent"),
        (true, true, 0) => ("warn", "drained"),
        (true, true, _) => ("warn", "draining"),
        (true, false, _) => ("good", "alive"),
    };
    let ended = activity.completed + activity.failed;
    let path = format!("/api/v1/jobs/workers/{}", percent(id));
    html! {
        tr data-key=(id) {
            td { b { (id) } span.sub.nowrap { (info.hostname) @if info.pid > 0 { " · " (info.pid) } } }
            td { (ui::badge(tone, word)) span.sub.nowrap { @match worker.heartbeat { Some(at) => { "heartbeat " (format::moment(at)) } None => { "no heartbeat" } } } }
            td.wide data-label="Running" {
                (running(worker, activity))
                @for held in activity.jobs.iter().take(JOBS) {
                    span.sub { a href={ "/jobs/job/" (percent(held.id.as_str())) } { (held.job_type) } @if let Some(at) = held.claimed_at { " · " (format::moment(at.0)) } }
                }
                @if activity.running > JOBS { span.sub { a href={ "/jobs/active?worker=" (percent(id)) } { "and " (activity.running - JOBS) " more" } } }
            }
            td.num data-label="Per minute" { @if ended == 0 { span.dim { "0" } } @else { (format::short((activity.per_minute * 10.0).round() / 10.0)) } }
            td.nowrap data-label="Failures" { (failures(activity)) }
            td.wrap-any.wide data-label="Takes" {
                span.chips {
                    @match &worker.types {
                        Some(types) => { @for job_type in types.iter().take(20) { span.badge.mono { (job_type) } } }
                        None => { span.dim { "every type" } }
                    }
                    @for can in info.capabilities.iter().take(20) { span.badge.mono.accent title="capability" { (can) } }
                }
                @if !place.is_empty() { span.sub { (place.join(" · ")) } }
            }
            td.r { @if acts {
                @if worker.draining {
                    button.btn.s type="button" data-act={ "POST " (path) "/resume" } data-body="{}" data-done={ (id) " claims jobs again" } { (Icon::PLAY) "Resume" }
                } @else {
                    button.btn.s type="button" data-act={ "POST " (path) "/drain" } data-body="{}" data-done={ (id) " drains" }
                        data-confirm={ "Drain " (id) "? It completes what it runs and claims nothing more until it is resumed." } data-confirm-verb="Drain" { (Icon::PAUSE) "Drain" }
                }
            } }
        }
    }
}

/// Renders the number of running jobs, of the number it can run where that is known.
fn running(worker: &WorkerView, activity: &WorkerActivity) -> Markup {
    match worker.slots.filter(|slots| *slots > 0) {
        Some(slots) => {
            let share = activity.running as f64 / f64::from(slots);
            html! {
                span.nowrap { (activity.running) " of " (slots) }
                span.bar-wrap { (chart::level(share.min(1.0), &format!("{} of {slots} slots in use", activity.running))) }
            }
        }
        None => html! { (activity.running) },
    }
}

/// Renders the share of failed attempts in the latest minutes.
fn failures(activity: &WorkerActivity) -> Markup {
    let ended = activity.completed + activity.failed;
    if ended == 0 {
        return html! { span.dim { "–" } };
    }
    let share = activity.failed as f64 * 100.0 / ended as f64;
    html! {
        @if activity.failed == 0 { "none" } @else { (format!("{share:.0} %")) }
        span.sub { (format::count(activity.failed)) " of " (format::count(ended)) " in 5 min" }
    }
}
