//! The job queue: how many jobs are where, the next in line, the dead letters, the workers.

use axum::extract::State;
use jobs::{Job, JobId, Jobs, Which};
use maud::{Markup, html};

use super::chart::{self, Line, Scale};
use super::{Nav, Shell, format, ui};
use crate::app::App;
use crate::series::float;

/// Jobs shown of each list.
const SHOWN: usize = 15;

pub(crate) async fn page(State(app): State<App>, shell: Shell) -> Markup {
    let head = ui::Head::new("Jobs", "What waits, what runs, what failed, and who does the work.")
        .actions(html! { span.live-dot { "Live" } });
    let body = html! { div data-live="jobs" { (part(&app).await) } };
    shell.page(&app, Nav::Jobs, &head, &body)
}

/// The living part.
pub(crate) async fn part(app: &App) -> Markup {
    let Some(jobs) = &app.services().jobs else {
        return ui::empty(
            "jobs",
            "Not running here",
            "This instance runs without the job queue.",
            &html! {},
        );
    };
    match whole(app, jobs).await {
        Ok(markup) => markup,
        Err(error) => html! { div.notice.bad role="alert" { (error) } },
    }
}

async fn whole(app: &App, jobs: &Jobs) -> Result<Markup, jobs::Error> {
    let stats = jobs.stats().await?;
    let waiting = jobs.list(Which::Waiting, 0, SHOWN).await?;
    let active = jobs.list(Which::Active, 0, SHOWN).await?;
    let dead = jobs.list(Which::Dead, 0, SHOWN).await?;
    let workers = jobs.workers().await?;
    let series = app.series();
    let number = |count: usize| format::count(count as u64);
    Ok(html! {
        div.tiles {
            (ui::tile("Waiting", &number(stats.waiting), "", "in line", &chart::spark(&series.line("jobs.waiting"), 1)))
            (ui::tile("Active", &number(stats.active), "", "running now", &chart::spark(&series.line("jobs.active"), 2)))
            (ui::tile("Delayed", &number(stats.delayed), "", "waiting for their time", &html! {}))
            (ui::tile("Dead letters", &number(stats.dead), "", "gave up after all tries", &chart::spark(&series.line("jobs.dead"), 4)))
            (ui::tile("Processed", &format::count(stats.processed), "", &format!("{} failed attempts", format::count(stats.failed)), &html! {}))
            (ui::tile("Workers", &number(stats.workers), "", &format!("{} schedules", number(stats.cron)), &html! {}))
        }
        div.grid {
            (ui::card("w6", "Queue", &chart::chart("Jobs", &[
                Line { name: "waiting", unit: "", values: series.line("jobs.waiting") },
                Line { name: "active", unit: "", values: series.line("jobs.active") },
            ], Scale::Number)))
            (ui::card_flush("w6", "Workers", &html! {}, &html! {
                @if workers.is_empty() {
                    (ui::empty("user", "No workers", "A worker registers itself when it starts, in any language.", &html! {}))
                } @else {
                    ul.list {
                        @for worker in workers.iter().take(SHOWN) {
                            li {
                                (ui::badge(if worker.alive { "good" } else { "bad" }, if worker.alive { "alive" } else { "silent" }))
                                b.grow.wrap-any { (worker.info.server_id) }
                                span.dim.small { @match &worker.types { Some(types) => { (types.join(", ")) } None => { "all types" } } }
                            }
                        }
                    }
                }
            }))
            (ui::card_flush("w6", "Next in line", &html! {}, &list(&waiting, "Nothing waits", "Jobs that are dispatched show up here.")))
            (ui::card_flush("w6", "Running", &html! {}, &list(&active, "Nothing runs", "Jobs that a worker has taken show up here.")))
            (ui::card_flush("", "Dead letters", &html! {}, &list(&dead, "No dead letters", "Jobs that failed every try would be here.")))
        }
    })
}

fn list(rows: &[(JobId, Option<Job>)], title: &str, text: &str) -> Markup {
    if rows.is_empty() {
        return ui::empty("jobs", title, text, &html! {});
    }
    html! {
        ul.list {
            @for (id, job) in rows {
                li data-key=(id.as_str()) {
                    @match job {
                        Some(job) => {
                            span.grow.wrap-any { b { (job.kind.as_str()) } " " span.dim.mono.small { (id.as_str()) } }
                            span.dim.small.nowrap { (job.attempts) " tries · " (format::moment(job.created_at.0)) }
                        }
                        None => { span.grow.mono.small { (id.as_str()) } span.dim { "cannot be read" } }
                    }
                }
            }
        }
    }
}

/// What the job queue adds to the charts.
pub(crate) async fn sample(jobs: &Jobs) -> Vec<(String, f64)> {
    let Ok(stats) = jobs.stats().await else { return Vec::new() };
    vec![
        ("jobs.waiting".to_owned(), float(stats.waiting as u64)),
        ("jobs.active".to_owned(), float(stats.active as u64)),
        ("jobs.dead".to_owned(), float(stats.dead as u64)),
    ]
}
