//! Schedules: recurring jobs.

use axum::extract::State;
use jobs::{Jobs, ScheduleView};
use maud::{Markup, html};

use super::frame;
use crate::service::JobsState;
use web::format;
use web::icon::Icon;
use web::middleware::percent;
use web::ui::{self, Shell};

/// Schedules shown.
const ROWS: usize = 200;

pub(crate) async fn page(State(state): State<JobsState>, shell: Shell) -> Markup {
    let acts = shell.may_operate();
    let topic = if acts { "schedules?acts" } else { "schedules" };
    let body = part(&state, acts).await;
    frame(&state, &shell, "schedules", Some(topic), &body).await
}

/// The living part.
pub(crate) async fn part(state: &JobsState, acts: bool) -> Markup {
    super::with_jobs(state, async |jobs| Ok(list(jobs, &jobs.schedules(0, ROWS).await?, acts)))
        .await
}

fn list(jobs: &Jobs, schedules: &[ScheduleView], acts: bool) -> Markup {
    let body = if schedules.is_empty() {
        ui::empty(
            Icon::CLOCK,
            "No schedules",
            "A schedule is a job with a cron expression. Create one with the API or the command line.",
            &html! { pre.code tabindex="0" { "PUT /api/v1/jobs/schedules/nightly\n{\"type\":\"clean-up\",\"cron\":\"30 3 * * *\",\"timezone\":\"Europe/Berlin\"}" } },
        )
    } else {
        html! {
            div.table-wrap tabindex="0" { table.table.cards {
                thead { tr { th { "Schedule" } th { "When" } th { "Next" } th { "After that" } th { "State" } th { span.sr { "Actions" } } } }
                tbody { @for schedule in schedules { (row(jobs, schedule, acts)) } }
            } }
        }
    };
    ui::card_flush("", "Schedules", &html! {}, &body)
}

fn row(jobs: &Jobs, schedule: &ScheduleView, acts: bool) -> Markup {
    let id = schedule.job.id.as_str();
    let path = format!("/api/v1/jobs/schedules/{}", percent(id));
    let when = &schedule.job.schedule;
    let cron = when.cron.as_deref().unwrap_or_default();
    let later = jobs::Cron::parse(cron, when.timezone.as_deref())
        .ok()
        .and_then(|cron| cron.next_after(schedule.next.max(jobs.now())));
    html! {
        tr data-key=(id) {
            td { a.row href={ "/jobs/job/" (percent(id)) } { (id) } span.sub { (schedule.job.job_type.as_str()) } }
            td data-label="When" { code { (cron) } span.sub { (when.timezone.as_deref().unwrap_or("UTC")) } }
            td.nowrap data-label="Next" { @if schedule.paused { span.dim { "–" } } @else { (format::moment(schedule.next.0)) } }
            td.nowrap data-label="After that" { @match later { Some(at) if !schedule.paused => { (format::moment(at.0)) } _ => { span.dim { "–" } } } }
            td { @if schedule.paused { (ui::badge("warn", "paused")) } @else { (ui::badge("good", "active")) } }
            td.r { @if acts { span.actions {
                @if schedule.paused {
                    button.btn.s type="button" data-act={ "POST " (path) "/resume" } data-done={ "Resumed " (id) } { (Icon::PLAY) "Resume" }
                } @else {
                    button.btn.s type="button" data-act={ "POST " (path) "/pause" } data-done={ "Paused " (id) }
                        data-confirm={ "Pause " (id) "? Occurrences are skipped until it is resumed." } data-confirm-verb="Pause" { (Icon::PAUSE) "Pause" }
                }
                button.btn.s.ghost type="button" aria-label={ "Delete schedule " (id) } data-act={ "DELETE " (path) } data-done={ "Deleted " (id) }
                    data-confirm={ "Delete the schedule " (id) "?" } data-confirm-word=(id) data-confirm-verb="Delete" { (Icon::TRASH) }
            } } }
        }
    }
}
