//! One queue: the line live, who is inside, what happened, and the acts on it. Five views of one
//! page; all but the settings live on the page's stream.
//!
//! A view's topic is `queue?NAME/VIEW/FROM/ACTS`, so that everybody who looks at the same thing
//! shares one rendering.

use axum::extract::State;
use maud::{Markup, html};
use room::{Event, Place, Queue, QueueId, QueueStatus, Room, Session, Which};
use serde::Deserialize;
use store::Millis;

use super::super::chart::{self, Line, Scale};
use super::super::icon::icon;
use super::super::{Nav, Shell, format, ui};
use super::{form, tone};
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Path, Query};
use crate::series::float;

/// Places drawn as dots, and rows of a list.
const DOTS: usize = 60;
const ROWS: usize = 50;
const SHOWN: usize = 12;

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum View {
    Live,
    Line,
    Door,
    Sessions,
    Events,
    Settings,
}

/// View, name in addresses, word.
const VIEWS: [(View, &str, &str); 6] = [
    (View::Live, "live", "Live"),
    (View::Line, "line", "In line"),
    (View::Door, "door", "May come in"),
    (View::Sessions, "sessions", "Sessions"),
    (View::Events, "events", "Events"),
    (View::Settings, "settings", "Settings"),
];

impl View {
    fn read(name: &str) -> Option<View> {
        VIEWS.iter().find(|(_, known, _)| *known == name).map(|(view, _, _)| *view)
    }

    fn name(self) -> &'static str {
        VIEWS.iter().find(|(view, _, _)| *view == self).map_or("live", |(_, name, _)| name)
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct PageQuery {
    view: Option<String>,
    from: Option<usize>,
}

pub(crate) async fn page(
    State(app): State<App>,
    shell: Shell,
    Path(id): Path<String>,
    Query(query): Query<PageQuery>,
) -> Result<Markup, ApiError> {
    let view = View::read(query.view.as_deref().unwrap_or("live"))
        .ok_or_else(|| ApiError::not_found("a queue has no such view"))?;
    let from = query.from.unwrap_or(0).min(10_000_000);
    let missing = || ApiError::not_found("there is no such queue");
    let room = app.services().room.as_ref().ok_or_else(missing)?;
    let id = QueueId::parse(&id).map_err(|_| missing())?;
    let queue = room.queue(&id).await.map_err(ApiError::from)?;
    let name = if queue.config.name.is_empty() { id.as_str() } else { &queue.config.name };
    let head = ui::Head::new(name, "")
        .under("Waiting room", "/room")
        .actions(html! { span.live-dot { "Live" } });
    let acts = shell.may_operate();
    let topic = format!("queue?{id}/{}/{from}/{}", view.name(), if acts { "acts" } else { "look" });
    let body = html! {
        nav.tabs aria-label="Views of the queue" {
            @for (other, address, word) in VIEWS {
                a href={ "/room/" (id) "?view=" (address) } aria-current=[(other == view).then_some("page")] { (word) }
            }
        }
        @if view == View::Settings {
            (form::settings(&queue, &shell))
        } @else {
            div data-live=(topic) { (rendered(&app, room, &id, view, from, acts).await) }
        }
        @if acts { (form::dialogs(&queue)) }
    };
    Ok(shell.page(&app, Nav::Room, &head, &body))
}

/// The living part of a view: `NAME/VIEW/FROM/ACTS`.
pub(crate) async fn part(app: &App, arguments: &str) -> Markup {
    let mut pieces = arguments.split('/');
    let mut next = || pieces.next().unwrap_or_default();
    let (id, view, from, acts) = (next(), next(), next(), next());
    let from = from.parse().unwrap_or(0);
    match (&app.services().room, QueueId::parse(id), View::read(view)) {
        (Some(room), Ok(id), Some(view)) => {
            rendered(app, room, &id, view, from, acts == "acts").await
        }
        _ => gone(),
    }
}

fn gone() -> Markup {
    ui::empty(
        "room",
        "The queue is gone",
        "Somebody took it away.",
        &html! { a.btn href="/room" { "All queues" } },
    )
}

async fn rendered(
    app: &App,
    room: &Room,
    id: &QueueId,
    view: View,
    from: usize,
    acts: bool,
) -> Markup {
    let shown = async {
        let queue = room.queue(id).await?;
        let now = app.store().now();
        let body = match view {
            View::Live | View::Settings => live(app, room, &queue, acts).await?,
            View::Line => {
                let places = room.places(id, Which::Waiting, from, ROWS).await?;
                line(&queue, &places, from, acts, now)
            }
            View::Door => {
                let places = room.places(id, Which::Admitted, from, ROWS).await?;
                door(&queue, &places, from, acts, now)
            }
            View::Sessions => {
                let sessions = room.sessions(id, from, ROWS).await?;
                inside(&queue, &sessions, from, acts, now)
            }
            View::Events => {
                let events = room.newest_events(id, 100).await?;
                ui::card_flush("", "Latest events", &html! {}, &happened(&events))
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

/// What the queue is set to and the acts on it.
fn toolbar(queue: &Queue, acts: bool) -> Markup {
    let id = queue.id.as_str();
    let rate = &queue.config.admission;
    html! {
        div.toolbar {
            (ui::badge(tone(queue.status), queue.status.as_str()))
            span.dim.small { code { (id) } " · " (rate.count) " every " (rate.per_seconds) " s"
                @if queue.config.max_active > 0 { " · at most " (format::count(queue.config.max_active.into())) " inside" }
            }
            @if acts {
                span.actions.end {
                    button.btn.s.primary type="button" data-open="admit" { (icon("play")) "Admit …" }
                    @if queue.status == QueueStatus::Active {
                        button.btn.s type="button" data-act={ "POST /api/v1/admin/queues/" (id) "/pause" } data-done={ "Paused " (id) }
                            data-confirm={ "Pause " (id) "? Nobody is let in until it is resumed; everybody keeps their place." } data-confirm-verb="Pause" { (icon("pause")) "Pause" }
                    } @else {
                        button.btn.s type="button" data-act={ "POST /api/v1/admin/queues/" (id) "/resume" } data-done={ "Resumed " (id) }
                            data-confirm={ "Let people of " (id) " in again?" } data-confirm-verb="Resume" { (icon("play")) "Resume" }
                    }
                    button.btn.s type="button" data-open="rate" { (icon("bolt")) "Rate …" }
                    button.btn.s type="button" data-open="message" { (icon("docs")) "Message …" }
                }
            }
        }
        @for (language, text) in &queue.config.message {
            div.notice.said { b { (language) } " " (text.as_str().unwrap_or_default()) }
        }
    }
}

async fn live(app: &App, room: &Room, queue: &Queue, acts: bool) -> Result<Markup, room::Error> {
    let id = &queue.id;
    let stats = room.stats(id).await?;
    let next = room.places(id, Which::Waiting, 0, DOTS).await?;
    let events = room.newest_events(id, 9).await?;
    let series = app.series();
    let values = |what: &str| series.line(&format!("room.{what}.{id}"));
    let held = queue.admitted + queue.active;
    let most = u64::from(queue.config.max_active);
    let wait = stats.average_wait.map_or_else(|| "–".to_owned(), format::duration);
    let by_minute = stats.admission_rate * 60.0;
    let arrived = share(stats.total.claimed, stats.total.admitted);
    Ok(html! {
        div.tiles {
            (ui::tile("In line", &format::count(queue.waiting), "", &format!("{} joined so far", format::count(stats.total.enqueued)), &chart::spark(&values("waiting"), 1)))
            (ui::tile("May come in", &format::count(queue.admitted), "", &format!("{arrived} of those let in came"), &html! {}))
            div.tile {
                span.label { "Inside" }
                span.value { (format::count(queue.active)) @if most > 0 { small { "of " (format::count(most)) } } }
                span.note { (format::count(stats.total.completed)) " went through" }
                @if most > 0 { (chart::level(float(held) / float(most), &format!("{held} of {most} slots taken"))) }
            }
            (ui::tile("Let in", &format::short(by_minute), "/min", "over the last five minutes", &html! {}))
            (ui::tile("Mean wait", &wait, "", "of those let in today", &html! {}))
        }
        div.grid {
            (ui::card("w8", "The line", &html! {
                (dots(&next, queue.waiting))
                (chart::chart("Visitors", &[
                    Line { name: "in line", unit: "", values: values("waiting") },
                    Line { name: "inside", unit: "", values: values("active") },
                ], Scale::Number))
            }))
            (ui::card_flush("w4", "Just now", &html! { a.small href={ "/room/" (id) "?view=events" } { "All" } }, &happened(&events)))
            section.card aria-label="Next in line" {
                div.card-head { h2 { "Next in line" } a.small href={ "/room/" (id) "?view=line" } { "All" } }
                div.card-body.flush { (places(queue, next.get(..SHOWN.min(next.len())).unwrap_or_default(), acts, app.store().now())) }
            }
        }
    })
}

/// `98 %`, or a dash.
fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => "–".to_owned(),
        whole => format!("{:.0} %", (float(part) / float(whole) * 100.0).min(100.0)),
    }
}

/// The head of the line as a row of dots, the next to be let in on the left.
fn dots(next: &[Place], waiting: u64) -> Markup {
    let ahead = next.iter().filter(|place| place.level.number() > 0).count();
    let step = 10.0;
    let width = step * DOTS as f64;
    html! {
        div.dots {
            span.gate-mark aria-hidden="true" { (icon("exit")) }
            svg viewBox=(format!("0 0 {width} 12")) role="img"
                aria-label={ "The next " (next.len()) " of " (waiting) " in line, " (ahead) " of them with priority" } {
                @for (index, place) in next.iter().enumerate() {
                    circle class={ "bar c" (match place.level.number() { 0 => 1, 1 => 2, 2 => 3, _ => 4 }) }
                        cx=(format!("{}", step * index as f64 + 6.0)) cy="6" r="3.6" {}
                }
            }
            @let more = waiting.saturating_sub(next.len() as u64);
            span.dim.small.nowrap { @if more > 0 { "+ " (format::count(more)) } @else if waiting == 0 { "nobody waits" } }
        }
    }
}

fn line(queue: &Queue, found: &[Place], from: usize, acts: bool, now: Millis) -> Markup {
    ui::card_flush(
        "",
        "In line",
        &html! { span.small.dim { (format::count(queue.waiting)) " in all" } },
        &html! {
            (places(queue, found, acts, now))
            (ui::pager(&format!("/room/{}?view=line", queue.id), from, found.len(), ROWS))
        },
    )
}

fn places(queue: &Queue, found: &[Place], acts: bool, now: Millis) -> Markup {
    if found.is_empty() {
        return ui::empty("room", "Nobody waits", "Who joins the queue shows up here.", &html! {});
    }
    html! {
        div.table-wrap tabindex="0" { table.table.cards {
            thead { tr { th.r { "#" } th { "Place" } th { "Level" } th { "Waits for" } th { "Last heard of" } th { "Still to go" } @if acts { th { span.sr { "Acts" } } } } }
            tbody {
                @for place in found {
                    tr data-key=(place.id) {
                        td.r data-label="Position" { b { @match place.position { Some(position) => { (format::count(position)) } None => { "–" } } } }
                        td.mono.small title=(place.id) { (short(&place.id.to_string())) }
                        td data-label="Level" { (level(place.level.number())) }
                        td.num data-label="Waits for" { (format::millis(now.0 - place.joined.0)) }
                        td data-label="Last heard of" { @match place.last_heartbeat { Some(at) => { (format::moment(at.0)) } None => { span.dim { "–" } } } }
                        td.num data-label="Still to go" { @match place.estimate {
                            Ok(wait) => { "about " (format::duration(wait.likely)) }
                            Err(why) => { span.dim { (why.as_str().replace('_', " ")) } }
                        } }
                        @if acts { td.r { (remove(queue, place)) } }
                    }
                }
            }
        } }
    }
}

fn remove(queue: &Queue, place: &Place) -> Markup {
    html! {
        button.btn.s.ghost type="button" aria-label={ "Take away place " (short(&place.id.to_string())) }
            data-act={ "DELETE /api/v1/admin/queues/" (queue.id) "/positions/" (place.id) } data-done="Place taken away"
            data-confirm="Take this place away? The visitor has to queue anew." data-confirm-verb="Take away" { (icon("cross")) }
    }
}

fn door(queue: &Queue, found: &[Place], from: usize, acts: bool, now: Millis) -> Markup {
    let body = if found.is_empty() {
        ui::empty(
            "room",
            "Nobody stands at the door",
            "Who is let in and has not come yet shows up here.",
            &html! {},
        )
    } else {
        html! {
            div.table-wrap tabindex="0" { table.table.cards {
                thead { tr { th { "Place" } th { "Level" } th { "Waited" } th { "Must come within" } @if acts { th { span.sr { "Acts" } } } } }
                tbody {
                    @for place in found {
                        tr data-key=(place.id) {
                            td.mono.small title=(place.id) { (short(&place.id.to_string())) }
                            td data-label="Level" { (level(place.level.number())) }
                            td.num data-label="Waited" { (format::millis(now.0 - place.joined.0)) }
                            td.num data-label="Must come within" { @match place.claim_by { Some(by) => { (format::millis(by.0 - now.0)) } None => { "–" } } }
                            @if acts { td.r { (remove(queue, place)) } }
                        }
                    }
                }
            } }
        }
    };
    ui::card_flush(
        "",
        "May come in",
        &html! { span.small.dim { (format::count(queue.admitted)) " in all" } },
        &html! { (body) (ui::pager(&format!("/room/{}?view=door", queue.id), from, found.len(), ROWS)) },
    )
}

fn inside(queue: &Queue, found: &[Session], from: usize, acts: bool, now: Millis) -> Markup {
    let body = if found.is_empty() {
        ui::empty("user", "Nobody is inside", "Running sessions show up here.", &html! {})
    } else {
        html! {
            div.table-wrap tabindex="0" { table.table.cards {
                thead { tr { th { "Session" } th { "Level" } th { "Inside for" } th.r { "Pages" } th { "Last activity" } th { "Ends in" } @if acts { th { span.sr { "Acts" } } } } }
                tbody {
                    @for session in found {
                        tr data-key=(session.id) {
                            td { span.mono.small title=(session.id) { (short(&session.id.to_string())) } @if !session.user_id.is_empty() { span.sub { (session.user_id) } } }
                            td data-label="Level" { (level(session.level.number())) }
                            td.num data-label="Inside for" { (format::millis(now.0 - session.started.0)) }
                            td.r data-label="Pages" { (format::count(session.page_views)) }
                            td data-label="Last activity" { (format::moment(session.last_activity.0)) }
                            td.num data-label="Ends in" { (format::millis(session.expires.0 - now.0)) }
                            @if acts { td.r {
                                button.btn.s.ghost type="button" aria-label={ "End session " (short(&session.id.to_string())) }
                                    data-act={ "DELETE /api/v1/admin/sessions/" (session.id) } data-done="Session ended"
                                    data-confirm="End this session? The visitor's pass is void at once." data-confirm-verb="End" { (icon("cross")) }
                            } }
                        }
                    }
                }
            } }
        }
    };
    ui::card_flush(
        "",
        "Inside",
        &html! { span.small.dim { (format::count(queue.active)) " in all" } },
        &html! { (body) (ui::pager(&format!("/room/{}?view=sessions", queue.id), from, found.len(), ROWS)) },
    )
}

fn level(number: u8) -> Markup {
    html! { @match number { 0 => { span.dim { "0" } } number => { (ui::badge("accent", &number.to_string())) } } }
}

/// Ids are long and alike at the front; the end tells them apart.
fn short(id: &str) -> String {
    let end: String = id.chars().rev().take(8).collect();
    format!("…{}", end.chars().rev().collect::<String>())
}

/// Events, newest first.
fn happened(events: &[Event]) -> Markup {
    if events.is_empty() {
        return ui::empty(
            "clock",
            "Nothing yet",
            "Joins, admissions and ends show up here.",
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

fn about(event: &Event) -> String {
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
