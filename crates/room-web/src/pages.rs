//! Dashboard page of the waiting room: its queues, their lengths, and the actions on them. One queue is
//! in `pages/queue.rs`, the forms are in `pages/form.rs` and their preview in `pages/preview.rs`, the way to the
//! waiting page is in `pages/waiting_page_link.rs`.

mod find;
mod form;
pub(crate) mod preview;
pub(crate) mod queue;
pub(crate) mod statistics;
mod waiting_page_link;

use axum::extract::State;
use maud::{Markup, html};
use room::{Queue, QueueStatus, Room};
use store::history::SharedSample;

use crate::service::RoomState;
use crate::units;
use web::chart::{self, Line, Scale};
use web::format;
use web::icon::Icon;
use web::series::float;
use web::ui::{self, Shell};

/// Queues with charts of their own.
const CHARTED: usize = 100;

pub(crate) async fn page(State(state): State<RoomState>, shell: Shell) -> Markup {
    let head =
        ui::Head::new("Waiting room", "Queues, waiting visitors, and the rate of admission.")
            .actions(html! {
                @if shell.may_own() { button.btn.primary type="button" data-open="new-queue" { (Icon::PLUS) "New queue" } }
            });
    let topic = if shell.may_operate() { "room?acts" } else { "room" };
    let body = html! {
        div data-live=(topic) { (part(&state, shell.may_operate()).await) }
        @if shell.may_own() { (form::new_queue()) }
    };
    shell.page(&state.app, "/room", &head, &body)
}

/// Renders the live part, with or without the actions of operators.
pub(crate) async fn part(state: &RoomState, acts: bool) -> Markup {
    let queues = match state.room.queues().await {
        Ok(queues) => queues,
        Err(error) => return html! { div.notice.bad role="alert" { (error) } },
    };
    let sum = |count: fn(&Queue) -> u64| queues.iter().map(count).sum::<u64>();
    let series = state.app.series();
    html! {
        div.tiles {
            (ui::tile("Waiting", &format::count(sum(|q| q.waiting)), "", "in all queues", &chart::spark(&series.line("room.waiting"), 1)))
            (ui::tile("Admitted", &format::count(sum(|q| q.admitted)), "", "session not started yet", &chart::spark(&series.line("room.admitted"), 2)))
            (ui::tile("Active", &format::count(sum(|q| q.active)), "", "active sessions", &chart::spark(&series.line("room.active"), 3)))
            (ui::tile("Queues", &format::count(queues.len() as u64), "", "", &html! {}))
        }
        div.stack {
            (ui::card("", "Visitors", &chart::chart("Visitors", &[
                Line::new("waiting", "", "room.waiting"),
                Line::new("active", "", "room.active"),
            ], Scale::Number)))
            (ui::card_flush("", "Queues", &html! {}, &table(&queues, acts)))
        }
    }
}

fn table(queues: &[Queue], acts: bool) -> Markup {
    if queues.is_empty() {
        return ui::empty(
            crate::ICON,
            "No queues yet",
            "A queue protects one site or one sale. An admin creates it here, or with one API call.",
            &html! {
                pre.code tabindex="0" data-command="curl -X POST {server}/api/v1/admin/queues -H 'Authorization: Bearer {token}' \\\n  -H 'Content-Type: application/json' -d '{\"id\":\"summer-tour\"}'" data-own="" { "tidegate room create summer-tour" }
            },
        );
    }
    html! {
        div.table-wrap tabindex="0" {
            table.table.cards {
                thead { tr { th { "Queue" } th { "Status" } th.r { "Waiting" } th.r { "Admitted" } th.r { "Active" } th.r { "Rate" } th { span.sr { "Actions" } } } }
                tbody {
                    @for queue in queues {
                        @let id = queue.id.as_str();
                        @let rate = &queue.config.admission;
                        tr data-key=(id) {
                            td { a.row href={ "/room/" (id) } { @if queue.config.name.is_empty() { (id) } @else { (queue.config.name) } } span.sub.mono { (id) } }
                            td { (ui::badge(tone(queue.status), queue.status.as_str())) }
                            td.r data-label="Waiting" { (format::count(queue.waiting)) }
                            td.r data-label="Admitted" { (format::count(queue.admitted)) }
                            td.r data-label="Active" { (format::count(queue.active)) @if queue.config.max_active > 0 { span.dim { " / " (format::count(queue.config.max_active.into())) } } }
                            td.r data-label="Rate" { (units::rate(rate.count, rate.per_seconds)) }
                            td.r { span.actions {
                                @if acts { (buttons(queue, id)) }
                                a.btn.s.ghost href=(waiting_page_link::path(&queue.id)) target="_blank" rel="noopener" aria-label={ "Open the waiting page of " (id) } title="Open the waiting page" { (Icon::OPEN) }
                                (ui::copy_link_button(&waiting_page_link::path(&queue.id), &format!("the waiting page of {id}")))
                            } }
                        }
                    }
                }
            }
        }
    }
}

fn buttons(queue: &Queue, id: &str) -> Markup {
    html! {
        @if queue.status == QueueStatus::Active {
            button.btn.s type="button" data-act={ "POST /api/v1/admin/queues/" (id) "/pause" } data-undo={ "POST /api/v1/admin/queues/" (id) "/resume" } data-done={ "Paused " (id) }
                data-confirm={ "Pause " (id) "? Nobody is admitted until it is resumed; everybody keeps their position." } data-confirm-verb="Pause" { (Icon::PAUSE) "Pause" }
        } @else {
            button.btn.s type="button" data-act={ "POST /api/v1/admin/queues/" (id) "/resume" } data-undo={ "POST /api/v1/admin/queues/" (id) "/pause" } data-done={ "Resumed " (id) } { (Icon::PLAY) "Resume" }
        }
        button.btn.s type="button" data-act={ "POST /api/v1/admin/queues/" (id) "/admit" } data-body=r#"{"count":10}"# data-done="Admitted {admitted}"
            data-confirm={ "Admit the next 10 visitors of " (id) " now?" } data-confirm-verb="Admit" { "Admit 10" }
    }
}

fn tone(status: QueueStatus) -> &'static str {
    match status {
        QueueStatus::Active => "good",
        QueueStatus::Paused => "warn",
        QueueStatus::Maintenance => "bad",
    }
}

/// Returns the room's samples for the charts.
pub(crate) async fn sample(room: &Room) -> Vec<SharedSample> {
    let Ok(queues) = room.queues().await else { return Vec::new() };
    let sum = |count: fn(&Queue) -> u64| float(queues.iter().map(count).sum());
    let mut samples = vec![
        SharedSample::gauge("room.waiting", sum(|q| q.waiting)),
        SharedSample::gauge("room.admitted", sum(|q| q.admitted)),
        SharedSample::gauge("room.active", sum(|q| q.active)),
    ];
    for queue in queues.iter().take(CHARTED) {
        samples
            .push(SharedSample::gauge(format!("room.waiting.{}", queue.id), float(queue.waiting)));
        samples.push(SharedSample::gauge(format!("room.active.{}", queue.id), float(queue.active)));
    }
    samples
}
