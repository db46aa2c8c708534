//! Dashboard page of one queue: waiting and admitted positions, sessions, events, and the actions on
//! it. All tabs but the settings are live.
//!
//! A view's topic is `queue?NAME/VIEW/FROM/ACTS`, so that everybody who looks at the same tab
//! shares one rendering.

use axum::extract::State;
use maud::{Markup, html};
use room::{Position, PositionList, Queue, QueueId, QueueStatus, Room, RoomEvent, VisitorSession};
use serde::Deserialize;
use store::Millis;

use super::{find, form, statistics, tone, waiting_page_link};
use crate::error::api_error;
use crate::service::RoomState;
use crate::units;
use web::ApiError;
use web::chart::{self, Line, Scale};
use web::extract::{Path, Query};
use web::format;
use web::icon::Icon;
use web::series::float;
use web::ui::{self, Shell};

/// Positions drawn as dots, rows of a list, and rows of the short list.
const DOTS: usize = 60;
const ROWS: usize = 50;
const SHOWN: usize = 12;

/// Tab of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueTab {
    Live,
    Waiting,
    Admitted,
    Sessions,
    Events,
    Statistics,
    Find,
    Settings,
}

/// Tab, name in the URL, title.
const VIEWS: [(QueueTab, &str, &str); 8] = [
    (QueueTab::Live, "live", "Live"),
    (QueueTab::Waiting, "waiting", "Waiting"),
    (QueueTab::Admitted, "admitted", "Admitted"),
    (QueueTab::Sessions, "sessions", "Sessions"),
    (QueueTab::Events, "events", "Events"),
    (QueueTab::Statistics, "statistics", "Statistics"),
    (QueueTab::Find, "find", "Find a visitor"),
    (QueueTab::Settings, "settings", "Settings"),
];

impl QueueTab {
    fn read(name: &str) -> Option<QueueTab> {
        VIEWS.iter().find(|(_, known, _)| *known == name).map(|(view, _, _)| *view)
    }

    fn name(self) -> &'static str {
        VIEWS.iter().find(|(view, _, _)| *view == self).map_or("live", |(_, name, _)| name)
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct QueuePageQuery {
    view: Option<String>,
    from: Option<usize>,
    /// Length of a row of statistics.
    step: Option<String>,
    /// Text to look a visitor up by.
    text: Option<String>,
}

pub(crate) async fn page(
    State(state): State<RoomState>,
    shell: Shell,
    Path(id): Path<String>,
    Query(query): Query<QueuePageQuery>,
) -> Result<Markup, ApiError> {
    let view = QueueTab::read(query.view.as_deref().unwrap_or("live"))
        .ok_or_else(|| ApiError::not_found("view not found"))?;
    let from = query.from.unwrap_or(0).min(10_000_000);
    let missing = || ApiError::not_found("queue not found");
    let room = &state.room;
    let id = QueueId::parse(&id).map_err(|_| missing())?;
    let queue = room.queue(&id).await.map_err(api_error)?;
    let name = if queue.config.name.is_empty() { id.as_str() } else { &queue.config.name };
    let head = ui::Head::new(name, "")
        .under("Waiting room", "/room")
        .actions(waiting_page_link::buttons(&queue.id));
    let acts = shell.may_operate();
    let topic = format!("queue?{id}/{}/{from}/{}", view.name(), if acts { "acts" } else { "look" });
    let body = html! {
        nav.tabs aria-label="Views of the queue" {
            @for (other, address, word) in VIEWS {
                a href={ "/room/" (id) "?view=" (address) } aria-current=[(other == view).then_some("page")] { (word) }
            }
        }
        @match view {
            QueueTab::Settings => (form::settings(&queue, &shell)),
            QueueTab::Statistics => (statistics::tab(room, &queue, statistics::step_of(query.step.as_deref())).await),
            QueueTab::Find => (find::tab(&state, &queue, query.text.as_deref(), acts).await),
            _ => div data-live=(topic) { (rendered(&state, room, &id, view, from, acts).await) },
        }
        @if acts { (form::dialogs(&queue)) }
        (waiting_page_link::dialog(&queue.id, &shell))
    };
    Ok(shell.page(&state.app, "/room", &head, &body))
}

/// Renders the live part of a tab: `NAME/VIEW/FROM/ACTS`.
pub(crate) async fn part(state: &RoomState, arguments: &str) -> Markup {
    let mut pieces = arguments.split('/');
    let mut next = || pieces.next().unwrap_or_default();
    let (id, view, from, acts) = (next(), next(), next(), next());
    let from = from.parse().unwrap_or(0);
    let room = &state.room;
    match (QueueId::parse(id), QueueTab::read(view)) {
        (Ok(id), Some(view)) => rendered(state, room, &id, view, from, acts == "acts").await,
        _ => gone(),
    }
}

fn gone() -> Markup {
    ui::empty(
        crate::ICON,
        "Queue not found",
        "It was deleted.",
        &html! { a.btn href="/room" { "All queues" } },
    )
}

async fn rendered(
    state: &RoomState,
    room: &Room,
    id: &QueueId,
    view: QueueTab,
    from: usize,
    acts: bool,
) -> Markup {
    let shown = async {
        let queue = room.queue(id).await?;
        let now = state.app.store().now();
        let body = match view {
            QueueTab::Live | QueueTab::Settings | QueueTab::Statistics | QueueTab::Find => {
                live(state, room, &queue, acts).await?
            }
            QueueTab::Waiting => {
                let positions = room.positions(id, PositionList::Waiting, from, ROWS).await?;
                waiting(&queue, &positions, from, acts, now)
            }
            QueueTab::Admitted => {
                let positions = room.positions(id, PositionList::Admitted, from, ROWS).await?;
                admitted(&queue, &positions, from, acts, now)
            }
            QueueTab::Sessions => {
                let sessions = room.sessions(id, from, ROWS).await?;
                sessions_table(&queue, &sessions, from, acts, now)
            }
            QueueTab::Events => {
                let events = room.newest_events(id, 100).await?;
                let list = html! { div data-steady="" { (happened(&events)) } };
                ui::card_flush("", "Latest events", &html! {}, &list)
            }
        };
        Ok::<_, room::Error>(html! { (toolbar(&queue, acts)) (body) })
    };
    match shown.await {
        Ok(markup) => markup,
        Err(room::Error::UnknownQueue) => gone(),
        Err(error) => html! { div.notice.bad role="alert" { (error) } },
    }
}

/// Renders the main settings of the queue and the actions on it.
fn toolbar(queue: &Queue, acts: bool) -> Markup {
    let id = queue.id.as_str();
    let rate = &queue.config.admission;
    html! {
        div.toolbar {
            (ui::badge(tone(queue.status), queue.status.as_str()))
            span.dim.small { code { (id) } " · " (units::rate(rate.count, rate.per_seconds))
                @if queue.config.max_active > 0 { " · at most " (format::count(queue.config.max_active.into())) " active" }
            }
            @if acts {
                span.actions.end {
                    button.btn.s.primary type="button" data-open="admit" { (Icon::PLAY) "Admit …" }
                    @if queue.status == QueueStatus::Active {
                        button.btn.s #pause type="button" data-act={ "POST /api/v1/admin/queues/" (id) "/pause" } data-undo={ "POST /api/v1/admin/queues/" (id) "/resume" } data-done={ "Paused " (id) }
                            data-confirm={ "Pause " (id) "? Nobody is admitted until it is resumed; everybody keeps their position." } data-confirm-verb="Pause" { (Icon::PAUSE) "Pause" }
                    } @else {
                        button.btn.s type="button" data-act={ "POST /api/v1/admin/queues/" (id) "/resume" } data-undo={ "POST /api/v1/admin/queues/" (id) "/pause" } data-done={ "Resumed " (id) } { (Icon::PLAY) "Resume" }
                    }
                    button.btn.s type="button" data-open="rate" { (Icon::BOLT) "Rate …" }
                    button.btn.s type="button" data-open="message" { (Icon::DOCS) "Message …" }
                }
            }
        }
        @for (language, text) in &queue.config.message {
            div.notice.said { b { (language) } " " (text.as_str().unwrap_or_default()) }
        }
    }
}

async fn live(
    state: &RoomState,
    room: &Room,
    queue: &Queue,
    acts: bool,
) -> Result<Markup, room::Error> {
    let id = &queue.id;
    let stats = room.stats(id).await?;
    let next = room.positions(id, PositionList::Waiting, 0, DOTS).await?;
    let events = room.newest_events(id, 9).await?;
    let series = state.app.series();
    let values = |what: &str| series.line(&format!("room.{what}.{id}"));
    let held = queue.admitted + queue.active;
    let most = u64::from(queue.config.max_active);
    let wait = stats.average_wait.map_or_else(|| "–".to_owned(), format::duration);
    let by_minute = stats.admission_rate * 60.0;
    let arrived = share(stats.total.sessions_started, stats.total.admitted);
    Ok(html! {
        div.tiles {
            (ui::tile("Waiting", &format::count(queue.waiting), "", &format!("{} enqueued in total", format::count(stats.total.enqueued)), &chart::spark(&values("waiting"), 1)))
            (ui::tile("Admitted", &format::count(queue.admitted), "", &format!("{arrived} started a session"), &html! {}))
            div.tile {
                span.label { "Active" }
                span.value { (format::count(queue.active)) @if most > 0 { small { "of " (format::count(most)) } } }
                span.note { (format::count(stats.total.completed)) " completed" }
                @if most > 0 { (chart::level(float(held) / float(most), &format!("{held} of {most} slots taken"))) }
            }
            (ui::tile("Admissions", &format::short(by_minute), "/min", "over the last five minutes", &html! {}))
            (ui::tile("Mean wait", &wait, "", "of visitors admitted in the last 24 hours", &html! {}))
        }
        div.grid {
            (ui::card("w8", "Queue", &html! {
                (dots(&next, queue.waiting))
                (chart::chart("Visitors", &[
                    Line::new("waiting", "", format!("room.waiting.{id}")),
                    Line::new("active", "", format!("room.active.{id}")),
                ], Scale::Number))
            }))
            (ui::card_flush("w4", "Latest events", &html! { a.small href={ "/room/" (id) "?view=events" } { "All" } }, &html! { div data-steady="" { (happened(&events)) } }))
            section.card aria-label="Next to be admitted" {
                div.card-head { h2 { "Next to be admitted" } a.small href={ "/room/" (id) "?view=waiting" } { "All" } }
                div.card-body.flush data-steady="" { (positions_table(queue, next.get(..SHOWN.min(next.len())).unwrap_or_default(), acts, state.app.store().now())) }
            }
        }
    })
}

/// Formats a share as `98 %`, or a dash.
fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => "–".to_owned(),
        whole => format!("{:.0} %", (float(part) / float(whole) * 100.0).min(100.0)),
    }
}

/// Renders the head of the queue as a row of dots, the next to be admitted on the left.
fn dots(next: &[Position], waiting: u64) -> Markup {
    let ahead = next.iter().filter(|position| position.priority.number() > 0).count();
    let step = 10.0;
    let width = step * DOTS as f64;
    html! {
        div.dots {
            span.gate-mark aria-hidden="true" { (Icon::EXIT) }
            svg viewBox=(format!("0 0 {width} 12")) role="img"
                aria-label={ "The next " (next.len()) " of " (waiting) " waiting, " (ahead) " of them with priority" } {
                @for (index, position) in next.iter().enumerate() {
                    circle class={ "bar c" (match position.priority.number() { 0 => 1, 1 => 2, 2 => 3, _ => 4 }) }
                        cx=(format!("{}", step * index as f64 + 6.0)) cy="6" r="3.6" {}
                }
            }
            @let more = waiting.saturating_sub(next.len() as u64);
            span.dim.small.nowrap { @if more > 0 { "+ " (format::count(more)) } @else if waiting == 0 { "nobody waits" } }
        }
    }
}

fn waiting(queue: &Queue, found: &[Position], from: usize, acts: bool, now: Millis) -> Markup {
    ui::card_flush(
        "",
        "Waiting",
        &html! { span.small.dim { (format::count(queue.waiting)) " in all" } },
        &html! {
            div data-steady="" { (positions_table(queue, found, acts, now)) }
            (ui::pager(&format!("/room/{}?view=waiting", queue.id), from, found.len(), ROWS))
        },
    )
}

fn positions_table(queue: &Queue, found: &[Position], acts: bool, now: Millis) -> Markup {
    if found.is_empty() {
        return ui::empty(
            crate::ICON,
            "Nobody waits",
            "Visitors who enqueue are listed here.",
            &html! {},
        );
    }
    html! {
        div.table-wrap tabindex="0" { table.table.cards {
            thead { tr { th.r { "#" } th { "Position" } th { "Priority" } th { "Waiting for" } th { "Last heartbeat" } th { "Estimated wait" } @if acts { th { span.sr { "Actions" } } } } }
            tbody {
                @for position in found {
                    tr data-key=(position.id) {
                        td.r data-label="Position" { b { @match position.number { Some(number) => { (format::count(number)) } None => { "–" } } } }
                        td.mono.small title=(position.id) { a.row href={ "/room/" (queue.id) "?view=find&text=" (position.id) } { (short(&position.id.to_string())) } }
                        td data-label="Priority" { (priority_badge(position.priority.number())) }
                        td.num data-label="Waiting for" { (format::millis(now.0 - position.enqueued_at.0)) }
                        td data-label="Last heartbeat" { @match position.last_heartbeat { Some(at) => { (format::moment(at.0)) } None => { span.dim { "–" } } } }
                        td.num data-label="Estimated wait" { @match position.estimate {
                            Ok(wait) => { "about " (format::duration(wait.likely)) }
                            Err(why) => { span.dim { (why.as_str().replace('_', " ")) } }
                        } }
                        @if acts { td.r.corner { (remove(queue, position)) } }
                    }
                }
            }
        } }
    }
}

fn remove(queue: &Queue, position: &Position) -> Markup {
    html! {
        button.btn.s.ghost type="button" aria-label={ "Revoke position " (short(&position.id.to_string())) }
            data-act={ "DELETE /api/v1/admin/queues/" (queue.id) "/positions/" (position.id) } data-done="Position revoked"
            data-confirm="Revoke this position? The visitor has to enqueue again." data-confirm-verb="Revoke" { (Icon::CROSS) }
    }
}

fn admitted(queue: &Queue, found: &[Position], from: usize, acts: bool, now: Millis) -> Markup {
    let body = if found.is_empty() {
        ui::empty(
            crate::ICON,
            "Nobody is admitted",
            "Admitted visitors who have not started a session are listed here.",
            &html! {},
        )
    } else {
        html! {
            div.table-wrap tabindex="0" { table.table.cards {
                thead { tr { th { "Position" } th { "Priority" } th { "Waited" } th { "Window ends in" } @if acts { th { span.sr { "Actions" } } } } }
                tbody {
                    @for position in found {
                        tr data-key=(position.id) {
                            td.mono.small title=(position.id) { a.row href={ "/room/" (queue.id) "?view=find&text=" (position.id) } { (short(&position.id.to_string())) } }
                            td data-label="Priority" { (priority_badge(position.priority.number())) }
                            td.num data-label="Waited" { (format::millis(now.0 - position.enqueued_at.0)) }
                            td.num data-label="Window ends in" { @match position.start_by { Some(by) => { (format::millis(by.0 - now.0)) } None => { "–" } } }
                            @if acts { td.r.corner { (remove(queue, position)) } }
                        }
                    }
                }
            } }
        }
    };
    ui::card_flush(
        "",
        "Admitted",
        &html! { span.small.dim { (format::count(queue.admitted)) " in all" } },
        &html! { div data-steady="" { (body) } (ui::pager(&format!("/room/{}?view=admitted", queue.id), from, found.len(), ROWS)) },
    )
}

fn sessions_table(
    queue: &Queue,
    found: &[VisitorSession],
    from: usize,
    acts: bool,
    now: Millis,
) -> Markup {
    let body = if found.is_empty() {
        ui::empty(Icon::USER, "No active sessions", "Active sessions are listed here.", &html! {})
    } else {
        html! {
            div.table-wrap tabindex="0" { table.table.cards {
                thead { tr { th { "Session" } th { "Priority" } th { "Active for" } th.r { "Pages" } th { "Last activity" } th { "Ends in" } @if acts { th { span.sr { "Actions" } } } } }
                tbody {
                    @for session in found {
                        tr data-key=(session.id) {
                            td { a.row.mono.small href={ "/room/" (queue.id) "?view=find&text=" (session.id) } title=(session.id) { (short(&session.id.to_string())) } @if !session.user_id.is_empty() { span.sub { (session.user_id) } } }
                            td data-label="Priority" { (priority_badge(session.priority.number())) }
                            td.num data-label="Active for" { (format::millis(now.0 - session.started.0)) }
                            td.r data-label="Pages" { (format::count(session.page_views)) }
                            td data-label="Last activity" { (format::moment(session.last_activity.0)) }
                            td.num data-label="Ends in" { (format::millis(session.expires.0 - now.0)) }
                            @if acts { td.r.corner {
                                button.btn.s.ghost type="button" aria-label={ "Revoke session " (short(&session.id.to_string())) }
                                    data-act={ "DELETE /api/v1/admin/sessions/" (session.id) } data-done="Session revoked"
                                    data-confirm="Revoke this session? The visitor's pass is revoked immediately." data-confirm-verb="Revoke" { (Icon::CROSS) }
                            } }
                        }
                    }
                }
            } }
        }
    };
    ui::card_flush(
        "",
        "Active",
        &html! { span.small.dim { (format::count(queue.active)) " in all" } },
        &html! { div data-steady="" { (body) } (ui::pager(&format!("/room/{}?view=sessions", queue.id), from, found.len(), ROWS)) },
    )
}

pub(super) fn priority_badge(number: u8) -> Markup {
    html! { @match number { 0 => { span.dim { "0" } } number => { (ui::badge("accent", &number.to_string())) } } }
}

/// Shortens an id to its end; ids of one time share their beginning.
fn short(id: &str) -> String {
    let end: String = id.chars().rev().take(8).collect();
    format!("…{}", end.chars().rev().collect::<String>())
}

/// Events, newest first.
fn happened(events: &[RoomEvent]) -> Markup {
    if events.is_empty() {
        return ui::empty(
            Icon::CLOCK,
            "No events yet",
            "Enqueues, admissions and ends are listed here.",
            &html! {},
        );
    }
    html! {
        ul.list.tight {
            @for event in events {
                li data-key=(event.id) {
                    (ui::badge(event_tone(&event.kind), event.kind.rsplit('.').next().unwrap_or(&event.kind)))
                    span.grow.small.about { (event.kind.split('.').next().unwrap_or_default()) " " span.mono.dim { (about(event)) } }
                    span.dim.small.nowrap { (format::moment(event.at.0)) }
                }
            }
        }
    }
}

fn about(event: &RoomEvent) -> String {
    let id = ["position_id", "session_id"].iter().find_map(|name| event.data.get(*name)?.as_str());
    let why = event.data.get("reason").and_then(|reason| reason.as_str());
    match (id, why) {
        (Some(id), Some(why)) => format!("{} {why}", short(id)),
        (Some(id), None) => short(id),
        (None, why) => why.unwrap_or_default().to_owned(),
    }
}

fn event_tone(kind: &str) -> &'static str {
    match kind {
        "position.admitted" | "session.started" | "session.completed" | "queue.resumed" => "good",
        "position.returned" | "queue.paused" => "warn",
        "position.expired" | "session.expired" | "session.terminated" | "queue.maintenance" => {
            "bad"
        }
        "position.enqueued" => "accent",
        _ => "",
    }
}
