//! The overview of the job queue: counts by state, throughput, latency, active jobs, types. Lists of
//! jobs are in `pages/list.rs`, one job in `pages/job.rs`; schedules, workers and unroutable jobs have
//! a file each.

mod groups;
pub(crate) mod job;
pub(crate) mod list;
pub(crate) mod schedules;
pub(crate) mod unroutable;
pub(crate) mod workers;

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use jobs::{
    JobCounts, JobList, JobProgress, JobResult, JobTarget, Jobs, LaneView, ListedJob, Overview,
    Status,
};
use maud::{Markup, html};
use store::history::SharedSample;

use crate::service::JobsState;
use crate::types::TypeRow;
use web::chart::{self, Line, Scale};
use web::format;
use web::icon::Icon;
use web::series::float;
use web::ui::{self, Shell};

/// Jobs and types shown of each list on the first page.
const SHOWN: usize = 10;
/// Ended jobs whose times make the latency chart.
const RUNS: usize = 40;

/// Renders the tabs: path segment, label, count.
fn tabs(here: &str, stats: Option<&JobCounts>) -> Markup {
    let all: [(&str, &str, Option<usize>); 9] = [
        ("", "Overview", None),
        ("waiting", "Waiting", stats.map(|stats| stats.waiting)),
        ("active", "Active", stats.map(|stats| stats.active)),
        ("delayed", "Delayed", stats.map(|stats| stats.delayed)),
        ("finished", "Finished", stats.map(|stats| stats.finished)),
        ("dead", "Dead letters", stats.map(|stats| stats.dead)),
        ("schedules", "Schedules", stats.map(|stats| stats.cron)),
        ("workers", "Workers", stats.map(|stats| stats.workers)),
        ("unroutable", "Unroutable", None),
    ];
    html! {
        nav.tabs.many aria-label="Jobs" {
            @for (name, word, count) in all {
                a href=(if name.is_empty() { "/jobs".to_owned() } else { format!("/jobs/{name}") })
                    aria-current=[(name == here).then_some("page")] {
                    (word) @if let Some(count) = count { span.count { (format::short(float(count as u64))) } }
                }
            }
        }
    }
}

/// The tabs with their counts, live.
pub(crate) async fn tabs_part(state: &JobsState, here: &str) -> Markup {
    let stats = state.jobs.stats().await.ok();
    tabs(here, stats.as_ref())
}

/// A page about jobs: tabs and what is under them, which lives when there is a topic.
async fn frame(
    state: &JobsState,
    shell: &Shell,
    tab: &str,
    topic: Option<&str>,
    body: &Markup,
) -> Markup {
    let tabs = tabs_part(state, tab).await;
    framed(state, shell, (tab, &tabs), topic, body)
}

/// The same, with the tabs.
fn framed(
    state: &JobsState,
    shell: &Shell,
    (tab, tabs): (&str, &Markup),
    topic: Option<&str>,
    body: &Markup,
) -> Markup {
    let head = ui::Head::new(
        "Jobs",
        "Waiting, active, delayed, completed, failed and dead jobs, and the workers that run them.",
    );
    let body = html! {
        div data-live={ "job-tabs?" (tab) } { (tabs) }
        @match topic { Some(topic) => { div data-live=(topic) { (body) } } None => { (body) } }
    };
    shell.page(&state.app, "/jobs", &head, &body)
}

pub(crate) async fn page(State(state): State<JobsState>, shell: Shell) -> Markup {
    let acts = shell.may_operate();
    let topic = Some(if acts { "jobs?acts" } else { "jobs" });
    let (tabs, body) = match state.jobs.overview(SHOWN).await {
        Ok(overview) => (tabs("", Some(&overview.counts)), whole(&state, &overview, acts)),
        Err(error) => (tabs("", None), failure(&error)),
    };
    framed(&state, &shell, ("", &tabs), topic, &body)
}

/// Renders the live part, with or without the actions of operators.
pub(crate) async fn part(state: &JobsState, acts: bool) -> Markup {
    with_jobs(state, async |jobs| Ok(whole(state, &jobs.overview(SHOWN).await?, acts))).await
}

/// Renders something about jobs, or the error.
async fn with_jobs(
    state: &JobsState,
    render: impl AsyncFnOnce(&Jobs) -> Result<Markup, jobs::Error>,
) -> Markup {
    match render(&state.jobs).await {
        Ok(markup) => markup,
        Err(error) => failure(&error),
    }
}

/// Renders an error in the place of a part.
fn failure(error: &jobs::Error) -> Markup {
    html! { div.notice.bad role="alert" { (error) } }
}

fn whole(state: &JobsState, overview: &Overview, acts: bool) -> Markup {
    let stats = &overview.counts;
    let types = crate::types::rows(overview);
    let unroutable: Vec<&LaneView> = overview.unroutable().collect();
    let series = state.app.series();
    let number = |count: usize| format::count(count as u64);
    let oldest = series.last("jobs.oldest").filter(|_| stats.waiting > 0);
    let oldest = oldest.map_or_else(
        || "none".to_owned(),
        |seconds| format!("oldest {}", format::duration(Duration::from_secs_f64(seconds))),
    );
    let mean = match stats.processing_ms.checked_div(stats.processed) {
        None => "–".to_owned(),
        Some(mean) => format::millis(i64::try_from(mean).unwrap_or(0)),
    };
    html! {
        @if !unroutable.is_empty() {
            @let count: usize = unroutable.iter().map(|lane| lane.waiting.iter().sum::<usize>()).sum();
            div.notice.warn.said role="status" {
                b { (format::count(count as u64)) @if count == 1 { " job waits" } @else { " jobs wait" } " for a worker, but no live worker matches. " }
                a href="/jobs/unroutable" { "See what they need" }
            }
        }
        div.tiles {
            (ui::tile_to("/jobs/waiting", "Waiting", &number(stats.waiting), "", &oldest, &chart::spark(&series.line("jobs.waiting"), 1)))
            (ui::tile_to("/jobs/active", "Active", &number(stats.active), "", &format!("{} {}", stats.workers, if stats.workers == 1 { "worker" } else { "workers" }), &chart::spark(&series.line("jobs.active"), 2)))
            (ui::tile_to("/jobs/delayed", "Delayed", &number(stats.delayed), "", "scheduled for later, or retrying", &chart::spark(&series.line("jobs.delayed"), 3)))
            (ui::tile_to("/jobs/dead", "Dead letters", &number(stats.dead), "", "failed for good", &chart::spark(&series.line("jobs.dead"), 4)))
            (ui::tile_to("/jobs/finished", "Completed", &format::count(stats.processed), "", &format!("mean run {mean}"), &chart::spark(&series.line("jobs.processed"), 1)))
        }
        div.grid {
            (ui::card("w6", "Throughput", &chart::chart("Jobs per second", &[
                Line::new("completed", "/s", "jobs.processed"),
                Line::new("failed attempts", "/s", "jobs.failed"),
            ], Scale::Number)))
            (ui::card("w6", "Latency", &chart::chart("Seconds", &[
                Line::new("p50", "s", "jobs.p50"),
                Line::new("p95", "s", "jobs.p95"),
            ], Scale::Number)))
            (ui::card_flush("w4", "Active", &html! { a.small href="/jobs/active" { "All" } }, &running(&overview.active)))
            (ui::card_flush("w8", "Types", &html! {}, &type_list(&types, acts)))
            (ui::card_flush("", "Dead letters", &html! { a.small href="/jobs/dead" { "All" } }, &dead_list(&overview.dead)))
        }
    }
}

/// Lists active jobs with their progress.
fn running(rows: &[ListedJob<JobProgress>]) -> Markup {
    if rows.is_empty() {
        let text = "Jobs that a worker has claimed appear here.";
        return ui::empty(crate::ICON, "No active jobs", text, &html! {});
    }
    html! {
        ul.list {
            @for ListedJob { id, job, with: progress } in rows {
                @let job_type = job.as_ref().map_or("unreadable", |job| job.job_type.as_str());
                li data-key=(id.as_str()) {
                    span.grow { a.row href={ "/jobs/job/" (id.as_str()) } { (job_type) } " " span.dim.mono.small { (id.as_str()) } }
                    @if let Some(progress) = progress {
                        span.dim.small.clip { (progress.message.as_deref().unwrap_or_default()) }
                        span.bar-wrap { (chart::level(progress.percent / 100.0, &format!("{:.0} %", progress.percent))) }
                    }
                }
            }
        }
    }
}

/// Lists dead letters with their errors.
fn dead_list(rows: &[ListedJob<JobResult>]) -> Markup {
    if rows.is_empty() {
        let text = "Jobs that failed for good appear here, with the reason.";
        return ui::empty(Icon::CHECK, "No dead letters", text, &html! {});
    }
    html! {
        ul.list {
            @for ListedJob { id, job, with: result } in rows {
                li data-key=(id.as_str()) {
                    span.nowrap { a.row href={ "/jobs/job/" (id.as_str()) } { (job.as_ref().map_or("unreadable", |job| job.job_type.as_str())) } }
                    span.grow.dim.small.wrap-any { (why(result.as_ref())) }
                    @if let Some(result) = result { span.dim.small.nowrap { (format::moment(result.completed_at)) } }
                }
            }
        }
    }
}

/// Formats the error of a job on one line.
fn why(result: Option<&JobResult>) -> String {
    result.and_then(|result| result.error.as_ref()).map(ToString::to_string).unwrap_or_default()
}

fn type_list(types: &BTreeMap<String, TypeRow>, acts: bool) -> Markup {
    if types.is_empty() {
        return ui::empty(
            crate::ICON,
            "No jobs yet",
            "A type appears with its first job.",
            &html! {},
        );
    }
    html! {
        div.table-wrap tabindex="0" { table.table.dense {
            thead { tr { th { "Type" } th.r { "Waiting" } th.r.fold { "Active" } th.r.fold { "Delayed" } th.r.fold { "Dead" } th.r.fold { "Workers" } th { span.sr { "Actions" } } } }
            tbody {
                @for (job_type, row) in types.iter().take(3 * SHOWN) {
                    tr data-key=(job_type) {
                        td { a.row href={ "/jobs/waiting?type=" (web::middleware::percent(job_type)) } { (job_type) } @if row.counts.paused { " " (ui::badge("warn", "paused")) } }
                        td.r { (format::count(row.counts.waiting as u64)) }
                        @for (list, count) in [("active", row.counts.active), ("delayed", row.counts.delayed), ("dead", row.counts.dead)] {
                            td.r.fold { @if count == 0 { span.dim { "–" } } @else { a.row href={ "/jobs/" (list) "?type=" (web::middleware::percent(job_type)) } { (format::count(count as u64)) } } }
                        }
                        td.r.fold { @if row.workers == 0 { span.dim { "–" } } @else { (row.workers) } }
                        td.r { @if acts { (pause_type(job_type, row.counts.paused)) } }
                    }
                }
            }
        } }
    }
}

fn pause_type(job_type: &str, paused: bool) -> Markup {
    let path = format!("/api/v1/jobs/types/{}", web::middleware::percent(job_type));
    html! {
        @if paused {
            button.btn.s type="button" data-act={ "POST " (path) "/resume" } data-undo={ "POST " (path) "/pause" } data-done={ "Resumed " (job_type) } { (Icon::PLAY) "Resume" }
        } @else {
            button.btn.s type="button" data-act={ "POST " (path) "/pause" } data-undo={ "POST " (path) "/resume" } data-done={ "Paused " (job_type) }
                data-confirm={ "Pause " (job_type) "? No job of this type starts until it is resumed; active jobs continue." } data-confirm-verb="Pause" { (Icon::PAUSE) "Pause" }
        }
    }
}

/// The colour of a state.
fn tone(status: Status) -> &'static str {
    match status {
        Status::Completed => "good",
        Status::Active => "accent",
        Status::Delayed | Status::Cron => "warn",
        Status::Failed | Status::Dead => "bad",
        Status::Waiting => "",
    }
}

/// Formats the target of a job; empty if any worker will do.
fn needs(target: &JobTarget) -> String {
    let mut words = Vec::new();
    match &target.worker {
        jobs::TargetWorker::Any => {}
        jobs::TargetWorker::Only(worker_id) => words.push(format!("worker {worker_id}")),
        jobs::TargetWorker::Nobody => words.push("a worker that cannot be named".to_owned()),
    }
    let joint = if target.mode == jobs::MatchMode::All { " and " } else { " or " };
    for (what, list, joint) in [
        ("stack", &target.stack, " or "),
        ("capability", &target.capabilities, joint),
        ("region", &target.region, " or "),
    ] {
        if !list.is_empty() {
            words.push(format!("{what} {}", list.join(joint)));
        }
    }
    words.join(", ")
}

/// The value below which this share of some times lies, in seconds.
fn quantile(sorted_ms: &[u64], share: f64) -> f64 {
    let last = sorted_ms.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index of a short list"
    )]
    let index = (last as f64 * share).round() as usize;
    sorted_ms.get(index).map_or(0.0, |ms| float(*ms) / 1000.0)
}

/// Returns the run times of the latest completed jobs in milliseconds, shortest first.
async fn latest_runs(jobs: &Jobs) -> Vec<u64> {
    let ended = jobs.list(JobList::Finished, 0, RUNS).await.unwrap_or_default();
    let results = futures_util::future::join_all(ended.iter().map(|(id, _)| jobs.result(id))).await;
    let mut runs: Vec<u64> =
        results.into_iter().filter_map(|result| Some(result.ok()??.processing_time)).collect();
    runs.sort_unstable();
    runs
}

/// Samples the job queue for the charts.
pub(crate) async fn sample(jobs: &Jobs) -> Vec<SharedSample> {
    let Ok(stats) = jobs.stats().await else { return Vec::new() };
    let first = jobs.list(JobList::Waiting, 0, 1).await.unwrap_or_default();
    let created = first.first().and_then(|(_, job)| Some(job.as_ref()?.created_at.0));
    let oldest = created.map_or(0, |at| (jobs.now().0 - at).max(0));
    let count = |n: usize| float(n as u64);
    let runs = latest_runs(jobs).await;
    vec![
        SharedSample::gauge("jobs.waiting", count(stats.waiting)),
        SharedSample::gauge("jobs.active", count(stats.active)),
        SharedSample::gauge("jobs.delayed", count(stats.delayed)),
        SharedSample::gauge("jobs.dead", count(stats.dead)),
        SharedSample::total("jobs.processed", float(stats.processed)),
        SharedSample::total("jobs.failed", float(stats.failed)),
        SharedSample::peak("jobs.p50", quantile(&runs, 0.5)),
        SharedSample::peak("jobs.p95", quantile(&runs, 0.95)),
        SharedSample::peak("jobs.oldest", float(oldest.unsigned_abs()) / 1000.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_become_quantiles() {
        let runs: Vec<u64> = (0..=100).map(|n| n * 10).collect();
        assert_eq!((quantile(&runs, 0.5), quantile(&runs, 0.95)), (0.5, 0.95));
        assert_eq!(quantile(&[], 0.5), 0.0);
    }

    #[test]
    fn a_target_is_formatted() {
        let target = JobTarget::default().capability("gpu").capability("ssd").region("eu").all();
        assert_eq!(needs(&target), "capability gpu and ssd, region eu");
        assert_eq!(needs(&JobTarget::default()), "");
    }
}
