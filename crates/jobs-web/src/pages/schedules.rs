//! Schedules: recurring jobs. A list with the latest runs, and a page for each to edit it and see what
//! comes next.

use axum::extract::State;
use jobs::{CatchUp, Cron, Job, JobId, Jobs, Overlap, RunOutcome, ScheduleRun, ScheduleView};
use maud::{Markup, html};
use serde_json::{Map, Value, json};

use super::frame;
use crate::error::api_error;
use crate::service::JobsState;
use web::ApiError;
use web::extract::Path;
use web::format;
use web::icon::Icon;
use web::middleware::percent;
use web::ui::{self, Shell};

/// Schedules shown.
const ROWS: usize = 200;

pub(crate) async fn page(State(state): State<JobsState>, shell: Shell) -> Markup {
    let acts = shell.may_operate();
    let topic = if acts { "schedules?acts" } else { "schedules" };
    let list = part(&state, acts).await;
    let body = html! {
        @if acts { div.toolbar { span.actions.end { button.btn.primary type="button" data-open="new-schedule" { (Icon::PLUS) "New schedule" } } } }
        div data-live=(topic) { (list) }
        @if acts { (new_dialog()) }
    };
    frame(&state, &shell, "schedules", None, &body).await
}

/// The living part.
pub(crate) async fn part(state: &JobsState, acts: bool) -> Markup {
    super::with_jobs(state, async |jobs| Ok(list(&jobs.schedules(0, ROWS).await?, acts))).await
}

fn list(schedules: &[ScheduleView], acts: bool) -> Markup {
    let body = if schedules.is_empty() {
        ui::empty(
            Icon::CLOCK,
            "No schedules",
            "A schedule is a job with a cron expression. Create one here, with the API or on the command line.",
            &html! { pre.code tabindex="0" { "tidegate jobs schedules put nightly --cron '30 3 * * *' clean-up" } },
        )
    } else {
        html! {
            div.table-wrap tabindex="0" { table.table.cards {
                thead { tr { th { "Schedule" } th { "When" } th { "Next" } th { "Latest runs" } th { "State" } th { span.sr { "Actions" } } } }
                tbody { @for schedule in schedules { (row(schedule, acts)) } }
            } }
        }
    };
    ui::card_flush("", "Schedules", &html! {}, &body)
}

/// The expression of a schedule in words; empty where it cannot be read.
fn words(job: &Job) -> String {
    let when = &job.schedule;
    let cron = when.cron.as_deref().unwrap_or_default();
    Cron::parse(cron, when.timezone.as_deref()).map(|cron| cron.describe()).unwrap_or_default()
}

fn row(schedule: &ScheduleView, acts: bool) -> Markup {
    let id = schedule.job.id.as_str();
    let when = &schedule.job.schedule;
    let zone = when.timezone.as_deref().unwrap_or("UTC");
    html! {
        tr data-key=(id) {
            td { a.row href={ "/jobs/schedules/" (percent(id)) } { (id) } span.sub { (schedule.job.job_type.as_str()) } }
            td.wrap-any data-label="When" { (words(&schedule.job)) span.sub { code { (when.cron.as_deref().unwrap_or_default()) } " " (zone) } }
            td.nowrap data-label="Next" { @if schedule.paused { span.dim { "–" } } @else { (format::moment(schedule.next.0)) } }
            td data-label="Latest runs" { (marks(&schedule.runs)) }
            td { @if schedule.paused { (ui::badge("warn", "paused")) } @else { (ui::badge("good", "active")) } }
            td.r { @if acts { (actions(schedule, false)) } }
        }
    }
}

/// The buttons of a schedule. Where it is the only one of the page, its questions have ids to be linked by.
fn actions(schedule: &ScheduleView, is_only: bool) -> Markup {
    let id = schedule.job.id.as_str();
    let path = format!("/api/v1/jobs/schedules/{}", percent(id));
    html! { span.actions {
        button.btn.s type="button" data-act={ "POST " (path) "/run" } data-body="{}" data-done={ "Runs now: " (id) } { (Icon::BOLT) "Run now" }
        @if schedule.paused {
            button.btn.s type="button" data-act={ "POST " (path) "/resume" } data-done={ "Resumed " (id) } { (Icon::PLAY) "Resume" }
        } @else {
            button.btn.s type="button" id=[is_only.then_some("pause")] data-act={ "POST " (path) "/pause" } data-done={ "Paused " (id) } data-undo={ "POST " (path) "/resume" }
                data-confirm={ "Pause " (id) "? Occurrences are skipped until it is resumed." } data-confirm-verb="Pause" { (Icon::PAUSE) "Pause" }
        }
        button.btn.s.ghost type="button" aria-label={ "Delete schedule " (id) } data-act={ "DELETE " (path) } data-done={ "Deleted " (id) } data-then="/jobs/schedules"
            data-confirm={ "Delete the schedule " (id) "?" } data-confirm-word=(id) data-confirm-verb="Delete" { (Icon::TRASH) }
    } }
}

fn outcome_tone(outcome: RunOutcome) -> &'static str {
    match outcome {
        RunOutcome::Completed => "good",
        RunOutcome::Dead | RunOutcome::Failed => "bad",
        RunOutcome::Active => "accent",
        RunOutcome::Skipped => "warn",
        RunOutcome::Waiting | RunOutcome::Removed => "",
    }
}

/// The latest runs as marks, oldest first, and how the last one ended.
fn marks(runs: &[ScheduleRun]) -> Markup {
    let Some(latest) = runs.first() else { return html! { span.dim { "none yet" } } };
    html! {
        span.marks {
            @for run in runs.iter().rev() {
                span class={ "mark " (outcome_tone(run.outcome)) } role="img" aria-label=(run.outcome.as_str()) title={ (run.outcome.as_str()) ", " (format::rfc3339(run.started.0)) } {}
            }
        }
        span.sub { (latest.outcome.as_str()) " " (format::moment(latest.started.0)) }
    }
}

/// One schedule: when it runs, its latest runs, and its settings.
pub(crate) async fn one(
    State(state): State<JobsState>,
    shell: Shell,
    Path(id): Path<String>,
) -> Result<Markup, ApiError> {
    let missing = || ApiError::not_found("there is no such schedule, or it was deleted");
    let id = JobId::parse(id).map_err(|_| missing())?;
    let acts = shell.may_operate();
    let schedule = state.jobs.schedule_view(&id).await.map_err(api_error)?.ok_or_else(missing)?;
    let head = ui::Head::new(id.as_str(), words(&schedule.job))
        .under("Jobs", "/jobs")
        .under("Schedules", "/jobs/schedules")
        .actions(html! { @if acts { (actions(&schedule, true)) } });
    let body = html! {
        div.grid {
            (ui::card_flush("w6", "Next occurrences", &html! {}, &upcoming(&state.jobs, &schedule)))
            (ui::card_flush("w6", "Latest runs", &html! { a.small href={ "/jobs/job/" (percent(id.as_str())) } { "Job" } }, &runs(&schedule.runs)))
            @if acts { (ui::card("", "Edit", &edit(&schedule.job))) }
        }
    };
    Ok(shell.page(&state.app, "/jobs", &head, &body))
}

fn upcoming(jobs: &Jobs, schedule: &ScheduleView) -> Markup {
    let when = &schedule.job.schedule;
    let zone = when.timezone.as_deref().unwrap_or("UTC");
    let next = jobs
        .preview(when.cron.as_deref().unwrap_or_default(), when.timezone.as_deref(), None, 5)
        .map(|preview| preview.next)
        .unwrap_or_default();
    html! {
        @if schedule.paused { div.inset { div.notice.warn { "Paused: these occurrences are skipped until it is resumed." } } }
        ol.list.tight { @for at in next { li { span.grow { (local(at, zone)) } span.dim.small { (format::moment(at)) } } } }
        p.dim.small.inset { code { (when.cron.as_deref().unwrap_or_default()) } " in " (zone) }
    }
}

/// A moment as clocks in a time zone show it.
fn local(at: i64, zone: &str) -> String {
    let shown = jiff::Timestamp::from_millisecond(at).and_then(|at| at.in_tz(zone));
    shown
        .map(|at| at.strftime("%a %-d %b %Y, %H:%M:%S").to_string())
        .unwrap_or_else(|_| format::rfc3339(at))
}

fn runs(runs: &[ScheduleRun]) -> Markup {
    if runs.is_empty() {
        return ui::empty(Icon::CLOCK, "No runs yet", "The latest five appear here.", &html! {});
    }
    html! {
        ul.list { @for run in runs { li {
            span.grow { (ui::badge(outcome_tone(run.outcome), run.outcome.as_str())) " " (format::moment(run.started.0)) }
            @if run.outcome != RunOutcome::Removed { a.small.mono href={ "/jobs/job/" (percent(run.id.as_str())) } { (run.id.as_str()) } }
            @if let Some(ended) = run.ended { span.dim.small.nowrap { "ended after " (format::duration(ended.since(run.started))) } }
        } } }
    }
}

/// Builds the API's form of a stored job, so that saving a few fields keeps the others.
fn stored(job: &Job) -> Value {
    let mut body = Map::new();
    let mut put = |name: &str, value: Value| _ = body.insert(name.to_owned(), value);
    let whole = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let (retry, backoff) = (&job.retry, &job.retry.backoff);
    let mut policy = json!({
        "attempts": retry.attempts,
        "backoff": match backoff.growth {
            jobs::Growth::Fixed => "fixed",
            jobs::Growth::Linear => "linear",
            jobs::Growth::Exponential => "exponential",
        },
        "delay_ms": whole(backoff.delay),
        "jitter": backoff.jitter,
        "skip_on": retry.skip_on,
        "reroute_on": retry.reroute_on,
    });
    if let Some(max) = backoff.max_delay {
        policy["max_delay_ms"] = json!(whole(max));
    }
    put("retry", policy);
    let mut target = json!({
        "stack": job.target.stack,
        "capabilities": job.target.capabilities,
        "region": job.target.region,
        "all": job.target.mode == jobs::MatchMode::All,
    });
    if let jobs::TargetWorker::Only(worker) = &job.target.worker {
        target["worker_id"] = json!(worker);
    }
    put("target", target);
    put("metadata", Value::Object(job.metadata.clone()));
    put("priority", json!(job.priority.get()));
    if let Some(most) = job.rate_limit.max_concurrent {
        put("max_concurrent", json!(most));
    }
    if let Some(most) = job.rate_limit.max_per_minute {
        put("max_per_minute", json!(most));
    }
    if let Some(timeout) = job.timeout {
        put("timeout_ms", json!(whole(timeout)));
    }
    Value::Object(body)
}

fn edit(job: &Job) -> Markup {
    let api = format!("PUT /api/v1/jobs/schedules/{}", percent(job.id.as_str()));
    html! {
        form.stack data-api=(api) data-base=(stored(job).to_string()) data-done="Saved" data-then="reload" {
            (fields(Some(job)))
            div.actions { button.btn.primary type="submit" { "Save" } }
        }
    }
}

fn new_dialog() -> Markup {
    html! {
        dialog #new-schedule aria-labelledby="new-schedule-title" {
            form.dialog-body data-api="PUT /api/v1/jobs/schedules/{id}" data-done="Schedule stored" data-then="/jobs/schedules/{id}" {
                h2 #new-schedule-title { "New schedule" }
                label.field { span { "Id" } input.input type="text" name="id" required autocomplete="off" spellcheck="false" placeholder="nightly-clean-up"; }
                (fields(None))
                div.dialog-foot {
                    button.btn type="button" data-close="" { "Cancel" }
                    button.btn.primary type="submit" { "Create" }
                }
            }
        }
    }
}

/// The fields of a schedule that most need; the rest is for the API and the command line.
fn fields(job: Option<&Job>) -> Markup {
    let when = job.map(|job| &job.schedule);
    let overlap = when.map(|when| when.overlap).unwrap_or_default();
    let catch_up = when.map(|when| when.catch_up).unwrap_or_default();
    let payload = job.map(|job| super::job::pretty(job.payload.get())).unwrap_or_default();
    html! {
        div.fields {
            label.field { span { "Job type" } input.input type="text" name="type" required value=(job.map_or("", |job| job.job_type.as_str())) autocomplete="off" spellcheck="false"; }
            label.field {
                span { "Cron expression" }
                input.input.mono type="text" name="cron" required value=(when.and_then(|when| when.cron.as_deref()).unwrap_or_default()) placeholder="30 3 * * *" autocomplete="off" spellcheck="false";
                small { "Minute, hour, day of month, month, weekday; six fields begin with seconds" }
            }
            label.field {
                span { "Time zone" }
                input.input type="text" name="timezone" value=(when.and_then(|when| when.timezone.as_deref()).unwrap_or_default()) placeholder="UTC" autocomplete="off" spellcheck="false";
                small { "Such as Europe/Berlin; UTC if left empty" }
            }
            label.field {
                span { "If the run before has not ended" }
                select.input name="overlap" {
                    option value="skip" selected[overlap == Overlap::Skip] { "Skip the occurrence" }
                    option value="allow" selected[overlap == Overlap::Allow] { "Run both" }
                }
            }
            label.field {
                span { "Occurrences missed during an outage" }
                select.input name="catch_up" {
                    option value="last" selected[catch_up == CatchUp::Last] { "Run the latest" }
                    option value="none" selected[catch_up == CatchUp::None] { "Run none" }
                    option value="all" selected[catch_up == CatchUp::All] { "Run all, if they may overlap" }
                }
            }
        }
        label.field {
            span { "Payload (JSON)" }
            textarea.input.mono name="payload" data-kind="json" rows="5" spellcheck="false" placeholder="{}" { (payload) }
        }
    }
}
