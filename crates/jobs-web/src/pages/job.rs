//! One job: its state, timeline, payload, result and log.

use axum::extract::State;
use jobs::{Job, JobId, JobView, Jobs, Status};
use maud::{Markup, html};
use serde_json::Value;

use super::{needs, tone};
use crate::error::api_error;
use crate::service::JobsState;
use web::ApiError;
use web::chart;
use web::extract::Path;
use web::format;
use web::icon::Icon;
use web::ui::{self, Shell};

/// Names whose values are not shown, wherever they stand in a payload.
const SECRET: [&str; 8] =
    ["password", "passwd", "secret", "token", "authorization", "api_key", "apikey", "cookie"];

pub(crate) async fn page(
    State(state): State<JobsState>,
    shell: Shell,
    Path(id): Path<String>,
) -> Result<Markup, ApiError> {
    let missing = || ApiError::not_found("there is no such job, or it was removed");
    let jobs = &state.jobs;
    let id = JobId::parse(id).map_err(|_| missing())?;
    let view = jobs.view(&id).await.map_err(api_error)?.ok_or_else(missing)?;
    let acts = shell.may_operate();
    let head = ui::Head::new(view.job.job_type.as_str(), "")
        .under("Jobs", "/jobs")
        .actions(html! { span.live-dot { "Live" } });
    let topic = format!("job?{id}/{}", if acts { "acts" } else { "look" });
    let body = html! {
        div data-live=(topic) { (rendered(jobs, &view, acts).await) }
        (ui::card("", "Payload", &html! { pre.code tabindex="0" { (shown(view.job.payload.get())) } }))
    };
    Ok(shell.page(&state.app, "/jobs", &head, &html! { div.stack { (body) } }))
}

/// The living part: `ID/ACTS`.
pub(crate) async fn part(state: &JobsState, arguments: &str) -> Markup {
    let (id, acts) = arguments.split_once('/').unwrap_or((arguments, ""));
    let gone = || {
        ui::empty(
            crate::ICON,
            "Job not found",
            "It was removed, or its retention time is over.",
            &html! {
                a.btn href="/jobs" { "All jobs" }
            },
        )
    };
    super::with_jobs(state, async |jobs| {
        let Ok(id) = JobId::parse(id) else { return Ok(gone()) };
        match jobs.view(&id).await? {
            Some(view) => Ok(rendered(jobs, &view, acts == "acts").await),
            None => Ok(gone()),
        }
    })
    .await
}

async fn rendered(jobs: &Jobs, view: &JobView, acts: bool) -> Markup {
    let logs = jobs.logs(&view.job.id).await.unwrap_or_default();
    let error = view.result.as_ref().and_then(|result| result.error.as_ref());
    let came_to = view.result.as_ref().and_then(|result| result.data.as_ref());
    html! {
        div.stack {
            (toolbar(view, acts))
            @if let (Some(error), true) = (error, view.status != Status::Completed) {
                div.notice.bad {
                    b { (error.name.as_deref().unwrap_or("Error")) } ": " (error.message)
                    @if let Some(stack) = &error.stack { details { summary { "Stack trace" } pre.code tabindex="0" { (stack) } } }
                }
            }
            @if let (Some(progress), Status::Active) = (&view.progress, view.status) {
                (ui::card("", "Progress", &html! {
                    div.stack {
                        (chart::level(progress.percent / 100.0, &format!("{:.0} % done", progress.percent)))
                        span { b { (format!("{:.0} %", progress.percent)) } " " span.dim { (progress.message.as_deref().unwrap_or_default()) } }
                    }
                }))
            }
            div.grid {
                (ui::card("w6", "Timeline", &timeline(view)))
                (ui::card("w6", "About", &about(&view.job, view)))
                @if let Some(data) = came_to { (ui::card("w6", "Result", &html! { pre.code tabindex="0" { (shown(data.get())) } })) }
                (ui::card_flush("w6", "Log", &html! {}, &html! {
                    @if logs.is_empty() { (ui::empty(Icon::DOCS, "No lines", "Lines that the worker logs for this job appear here.", &html! {})) }
                    @else { ul.list.tight { @for (at, line) in &logs { li { span.dim.small.nowrap { (format::moment(*at)) } span.grow.mono.small.wrap-any { (line) } } } } }
                }))
            }
        }
    }
}

fn toolbar(view: &JobView, acts: bool) -> Markup {
    let id = view.job.id.as_str();
    let path = format!("/api/v1/jobs/{id}");
    html! {
        div.toolbar {
            (ui::badge(tone(view.status), view.status.as_str()))
            code.small { (id) }
            @if acts {
                span.actions.end {
                    @if view.status.is_final() {
                        button.btn.s.primary type="button" data-act={ "POST " (path) "/replay" } data-body="{}" data-done="Requeued"
                            data-confirm="Run this job once more, with all its attempts?" data-confirm-verb="Replay" { (Icon::REFRESH) "Replay" }
                        button.btn.s.danger type="button" data-act={ "DELETE " (path) } data-done="Job removed" data-then="/jobs"
                            data-confirm="Remove this job, its result and its log?" data-confirm-verb="Remove" { (Icon::TRASH) "Remove" }
                    } @else if view.status != Status::Cron {
                        @if view.status == Status::Delayed && view.pending.is_empty() {
                            button.btn.s type="button" data-act={ "POST " (path) "/retry" } data-body="{}" data-done="Due now"
                                data-confirm="Run this job now instead of waiting for its time?" data-confirm-verb="Run now" { (Icon::BOLT) "Run now" }
                        }
                        button.btn.s.danger type="button" data-act={ "POST " (path) "/cancel" } data-body=r#"{"reason":"cancelled in the dashboard"}"# data-done="Cancelled"
                            data-confirm="Cancel this job? If it is active, its worker is asked to stop." data-confirm-verb="Cancel it" { (Icon::CROSS) "Cancel" }
                    }
                }
            }
        }
    }
}

/// A step of a job's life: when, what, how it looks, more about it.
struct TimelineStep {
    at: i64,
    what: String,
    tone: &'static str,
    more: String,
}

fn timeline(view: &JobView) -> Markup {
    let job = &view.job;
    let step = |at, what: &str, tone, more| TimelineStep { at, what: what.to_owned(), tone, more };
    let mut steps = vec![step(job.created_at.0, "Dispatched", "accent", String::new())];
    for attempt in &view.history {
        let took = format::millis(i64::try_from(attempt.processing_time).unwrap_or(0));
        steps.push(step(
            attempt.at,
            &format!("Attempt {} failed", attempt.attempt),
            "bad",
            format!("{} · on {} · ran {took}", attempt.error, attempt.worker_id),
        ));
    }
    let last = view.history.last().map_or(i64::MIN, |attempt| attempt.at);
    if let Some(result) = view.result.as_ref().filter(|result| result.completed_at > last) {
        let took = format::millis(i64::try_from(result.processing_time).unwrap_or(0));
        steps.push(match (result.success, &result.error) {
            (true, _) => step(result.completed_at, "Completed", "good", format!("ran {took}")),
            (false, error) => {
                let more = error.as_ref().map(ToString::to_string).unwrap_or_default();
                step(result.completed_at, "Failed", "bad", more)
            }
        });
    }
    if view.status == Status::Dead {
        let at = steps.last().map_or(job.created_at.0, |step| step.at);
        steps.push(step(at, "Dead letter", "bad", "all attempts are used up".to_owned()));
    }
    if let (Status::Active, Some(worker_id)) = (view.status, &view.worker_id) {
        let at = view.progress.as_ref().map_or(0, |progress| progress.updated_at);
        steps.push(step(at, "Active", "accent", format!("on {worker_id}")));
    }
    if let Some(due) = view.due {
        let what = if view.status == Status::Cron { "Next occurrence" } else { "Due" };
        steps.push(step(due.0, what, "warn", String::new()));
    }
    if !view.pending.is_empty() {
        let ids: Vec<&str> = view.pending.iter().take(10).map(JobId::as_str).collect();
        steps.push(step(0, "Waits for other jobs", "warn", ids.join(", ")));
    }
    html! {
        ol.timeline {
            @for step in &steps {
                li class=(step.tone) {
                    div { b { (step.what) } @if step.at > 0 { span.dim.small { (format::moment(step.at)) } } }
                    @if !step.more.is_empty() { p.small.dim.wrap-any { (step.more) } }
                }
            }
        }
    }
}

fn about(job: &Job, view: &JobView) -> Markup {
    let needs = needs(&job.target);
    html! {
        dl.facts {
            dt { "Type" } dd { (job.job_type.as_str()) }
            dt { "Priority" } dd.num { (job.priority.get()) }
            dt { "Attempts" } dd.num { (job.attempts) " failed of " (job.retry.attempts + 1) }
            dt { "Worker" } dd { @match &view.worker_id { Some(worker_id) => { (worker_id) } None => { span.dim { "none now" } } } }
            dt { "Needs" } dd { @if needs.is_empty() { span.dim { "any worker" } } @else { (needs) } }
            @if let Some(timeout) = job.timeout { dt { "Timeout" } dd { (format::duration(timeout)) } }
            @if let Some(at) = job.expires_at { dt { "Expires" } dd { (format::moment(at.0)) } }
            @if let Some(cron) = &job.schedule.cron { dt { "Schedule" } dd { code { (cron) } " " (job.schedule.timezone.as_deref().unwrap_or("UTC")) } }
            @if !job.depends_on.is_empty() {
                dt { "After" } dd { @for parent in job.depends_on.iter().take(20) { a.mono.small href={ "/jobs/job/" (parent.as_str()) } { (parent.as_str()) } " " } }
            }
            @if !job.metadata.is_empty() { dt { "Metadata" } dd.mono.small { (shown(&Value::Object(job.metadata.clone()).to_string())) } }
        }
    }
}

/// JSON with its lines apart and without what should stay secret.
fn shown(json: &str) -> String {
    match serde_json::from_str::<Value>(json) {
        Ok(mut value) => {
            hide(&mut value);
            serde_json::to_string_pretty(&value).unwrap_or_default()
        }
        Err(_) => json.to_owned(),
    }
}

fn hide(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = name.to_ascii_lowercase();
                if SECRET.iter().any(|secret| name.contains(secret)) {
                    *value = Value::String("•••".to_owned());
                } else {
                    hide(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hide),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn secrets_in_payloads_are_not_shown() {
        let text = shown(r#"{"user":"ann","db":[{"Password":"hunter2"}],"access_token":{"a":1}}"#);
        assert!(
            text.contains("ann") && !text.contains("hunter2") && !text.contains("\"a\""),
            "{text}"
        );
        assert_eq!(shown("no json"), "no json");
    }
}
