//! One job: its state, timeline, payload, result and log.

use axum::extract::State;
use jobs::{Job, JobEndReason, JobId, JobView, Jobs, Millis, Status};
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
use web::middleware::percent;
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
    let head = ui::Head::new(view.job.job_type.as_str(), "").under("Jobs", "/jobs");
    let topic = format!("job?{id}/{}", if acts { "acts" } else { "look" });
    let edit = html! { @if acts && view.status.is_final() { a.btn.s href={ "/jobs/job/" (percent(id.as_str())) "/edit" } { (Icon::REFRESH) "Edit and replay" } } };
    let body = html! {
        div data-live=(topic) { (rendered(jobs, &view, acts).await) }
        (ui::card_flush("", "Payload", &edit, &html! { pre.code tabindex="0" { (shown(view.job.payload.get())) } }))
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
                (ui::card_flush("", "Attempts", &html! {}, &attempts(view, jobs.now())))
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
            span { code.small { (id) } (ui::copy_button(id)) }
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

/// The page that runs a job again with another payload. It shows the payload as it is stored, secrets
/// included, so it is for operators and a page of its own.
pub(crate) async fn edit(
    State(state): State<JobsState>,
    shell: Shell,
    Path(id): Path<String>,
) -> Result<Markup, ApiError> {
    let missing = || ApiError::not_found("there is no such job, or it was removed");
    if !shell.may_operate() {
        return Err(ApiError::forbidden("replaying a job needs the role operator"));
    }
    let id = JobId::parse(id).map_err(|_| missing())?;
    let view = state.jobs.view(&id).await.map_err(api_error)?.ok_or_else(missing)?;
    let path = percent(id.as_str());
    let lead = "The job runs again under its id, with all its attempts. It must have ended.";
    let head = ui::Head::new("Edit and replay", lead)
        .under("Jobs", "/jobs")
        .under(view.job.job_type.as_str(), &format!("/jobs/job/{path}"));
    let rows = pretty(view.job.payload.get()).lines().count().clamp(8, 30);
    let body = html! {
        @if !view.status.is_final() { div.notice.warn { "This job is " (view.status.as_str()) ". It can be replayed once it has ended." } }
        (ui::card("", "Payload", &html! {
            form.stack data-api={ "POST /api/v1/jobs/" (path) "/replay" } data-done="Requeued with this payload" data-then={ "/jobs/job/" (path) } {
                label.field {
                    span { "JSON, at most 256 KiB" }
                    textarea.input.mono name="payload" data-kind="json" required rows=(rows) spellcheck="false" { (pretty(view.job.payload.get())) }
                }
                div.actions {
                    button.btn.primary type="submit" { (Icon::REFRESH) "Replay" }
                    a.btn href={ "/jobs/job/" (path) } { "Cancel" }
                }
            }
        }))
    };
    Ok(shell.page(&state.app, "/jobs", &head, &body))
}

/// JSON on several lines, digit for digit as it is stored.
pub(super) fn pretty(json: &str) -> String {
    let (mut out, mut depth, mut text, mut escaped) = (String::new(), 0_usize, false, false);
    let mut letters = json.chars().peekable();
    while let Some(letter) = letters.next() {
        if text {
            out.push(letter);
            (text, escaped) = (escaped || letter != '"', !escaped && letter == '\\');
            continue;
        }
        let line = |out: &mut String, depth: usize| {
            out.push('\n');
            out.extend(std::iter::repeat_n("  ", depth));
        };
        match letter {
            '"' => {
                text = true;
                out.push(letter);
            }
            '{' | '[' => {
                out.push(letter);
                while letters.next_if(|next| next.is_ascii_whitespace()).is_some() {}
                if let Some(close) = letters.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(close);
                } else {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(letter);
            }
            ',' => {
                out.push(letter);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            letter if letter.is_ascii_whitespace() => {}
            letter => out.push(letter),
        }
    }
    out
}

/// The beginning of a payload on one line, without what should stay secret.
pub(super) fn preview(json: &str) -> String {
    /// Most bytes that are parsed for a preview.
    const PARSED_MAX: usize = 16 * 1024;
    let text = match json.len() <= PARSED_MAX {
        true => match serde_json::from_str::<Value>(json) {
            Ok(mut value) => {
                hide(&mut value);
                value.to_string()
            }
            Err(_) => json.to_owned(),
        },
        false => return format!("{} bytes", format::count(json.len() as u64)),
    };
    match text.as_str() {
        "null" | "{}" => String::new(),
        _ => match text.char_indices().nth(120) {
            Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
            None => text,
        },
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
            (true, _) => {
                let on = view.worker_id.as_ref().map(|worker| format!("on {worker} · "));
                let more = format!("{}ran {took}", on.unwrap_or_default());
                step(result.completed_at, "Completed", "good", more)
            }
            (false, error) => {
                let more = error.as_ref().map(ToString::to_string).unwrap_or_default();
                step(result.completed_at, "Failed", "bad", more)
            }
        });
    }
    if view.status == Status::Dead {
        let at = steps.last().map_or(job.created_at.0, |step| step.at);
        let why = view.reason.map_or("", JobEndReason::sentence);
        steps.push(step(at, "Dead letter", "bad", why.to_owned()));
    }
    if let (Status::Active, Some(worker_id)) = (view.status, &view.worker_id) {
        let at = view.claimed_at.map_or(0, |at| at.0);
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

/// Every attempt: its number, worker, times and outcome. The latest few that failed are kept.
fn attempts(view: &JobView, now: Millis) -> Markup {
    let mut rows = Vec::new();
    let mut ready = (!view.job.is_cron()).then(|| view.job.due());
    let none = || html! { span.dim { "–" } };
    let waited = |ready: Option<Millis>, claimed: Option<Millis>| match (ready, claimed) {
        (Some(ready), Some(claimed)) if claimed >= ready => format::duration(claimed.since(ready)),
        _ => "–".to_owned(),
    };
    for (at, attempt) in view.history.iter().enumerate() {
        let claimed = attempt.claimed_at.map(Millis);
        // Of a replayed job attempts are numbered anew, and earlier ones may have been dropped.
        let ready_now = ready.take().filter(|_| at == 0 && attempt.attempt == 1);
        rows.push(html! { tr {
            td.num data-label="Attempt" { (attempt.attempt) }
            td.wrap-any data-label="Worker" { (attempt.worker_id) }
            td.nowrap data-label="Claimed" { @match claimed { Some(at) => { (format::moment(at.0)) } None => { (none()) } } }
            td.nowrap data-label="Waited" { (waited(ready_now, claimed)) }
            td.nowrap data-label="Ran" { (format::millis(i64::try_from(attempt.processing_time).unwrap_or(0))) }
            td.wrap-any.wide { (ui::badge("bad", "failed")) " " span.small { (super::list::clip(&attempt.error.to_string())) } }
        } });
    }
    let first = ready.filter(|_| view.job.attempts == 0);
    let number = view.job.attempts.saturating_add(1);
    if let (Status::Active, Some(worker)) = (view.status, &view.worker_id) {
        rows.push(html! { tr {
            td.num data-label="Attempt" { (number) }
            td.wrap-any data-label="Worker" { (worker) }
            td.nowrap data-label="Claimed" { @match view.claimed_at { Some(at) => { (format::moment(at.0)) } None => { (none()) } } }
            td.nowrap data-label="Waited" { (waited(first, view.claimed_at)) }
            td.nowrap data-label="Ran" { @match view.claimed_at { Some(at) => { (format::duration(now.since(at))) } None => { (none()) } } }
            td.wide { (ui::badge("accent", "active")) }
        } });
    } else if let Some(result) = view.result.as_ref().filter(|result| result.success) {
        let claimed = view.claimed_at;
        rows.push(html! { tr {
            td.num data-label="Attempt" { (number) }
            td.wrap-any data-label="Worker" { @match &view.worker_id { Some(worker) => { (worker) } None => { (none()) } } }
            td.nowrap data-label="Claimed" { @match claimed { Some(at) => { (format::moment(at.0)) } None => { (none()) } } }
            td.nowrap data-label="Waited" { (waited(first, claimed)) }
            td.nowrap data-label="Ran" { (format::millis(i64::try_from(result.processing_time).unwrap_or(0))) }
            td.wide { (ui::badge("good", "completed")) }
        } });
    }
    if rows.is_empty() {
        return ui::empty(
            Icon::CLOCK,
            "No attempts yet",
            "Each attempt of a worker appears here.",
            &html! {},
        );
    }
    html! {
        div.table-wrap tabindex="0" { table.table.cards {
            thead { tr { th { "Attempt" } th { "Worker" } th { "Claimed" } th { "Waited" } th { "Ran" } th { "Outcome" } } }
            tbody { @for row in &rows { (row) } }
        } }
    }
}

fn about(job: &Job, view: &JobView) -> Markup {
    let needs = needs(&job.target);
    html! {
        dl.facts {
            dt { "Type" } dd { (job.job_type.as_str()) }
            dt { "Priority" } dd.num { (job.priority.get()) }
            dt { "Attempts" } dd.num { (made(view)) " of at most " (job.retry.attempts.saturating_add(1)) }
            dt { "Worker" } dd { @match &view.worker_id { Some(worker_id) => { (worker_id) } None => { span.dim { "none yet" } } } }
            @if let Some(reason) = view.reason { dt { "Ended because" } dd { (reason.sentence()) " " span.dim.small { "(" (reason.as_str()) ")" } } }
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

/// Number of attempts that were made. Stored is the number of those that were followed by another.
fn made(view: &JobView) -> u32 {
    let last = match view.status {
        Status::Active | Status::Completed | Status::Dead => 1,
        _ => 0,
    };
    view.job.attempts.saturating_add(last).min(view.job.retry.attempts.saturating_add(1))
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
    use super::{pretty, preview, shown};

    #[test]
    fn a_payload_is_laid_out_without_changing_a_digit() {
        let text = pretty(r#"{"n":12345678901234567890,"e":[],"l":[1,{"a":"x,\"{"}]}"#);
        assert_eq!(
            text,
            "{\n  \"n\": 12345678901234567890,\n  \"e\": [],\n  \"l\": [\n    1,\n    {\n      \"a\": \"x,\\\"{\"\n    }\n  ]\n}"
        );
        assert_eq!(pretty("7"), "7");
    }

    #[test]
    fn a_preview_is_short_and_keeps_secrets() {
        assert_eq!(preview(r#"{"to":"ann","token":"t"}"#), r#"{"to":"ann","token":"•••"}"#);
        assert_eq!(preview("null"), "");
        assert_eq!(preview(&format!("\"{}\"", "x".repeat(500))).chars().count(), 121);
    }

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
