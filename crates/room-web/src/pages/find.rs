//! Look-up of one visitor, and the reason they still wait.

use maud::{Markup, html};
use room::{Queue, VisitorMatch, WaitReason};

use super::queue::priority_badge;
use crate::service::RoomState;
use crate::units;
use web::format;
use web::icon::Icon;
use web::ui;

/// Renders the tab.
pub(super) async fn tab(
    state: &RoomState,
    queue: &Queue,
    text: Option<&str>,
    acts: bool,
) -> Markup {
    let text = text.map(str::trim).filter(|text| !text.is_empty());
    let found = match text {
        Some(text) => Some(state.room.find_visitor(&queue.id, text).await),
        None => None,
    };
    let now = state.app.store().now().0;
    html! {
        section.card aria-label="Find a visitor" {
            form.filters method="get" action={ "/room/" (queue.id) } {
                input type="hidden" name="view" value="find";
                label.search {
                    span.sr { "Position, session, user id or e-mail address" }
                    (Icon::SEARCH)
                    input.input name="text" value=(text.unwrap_or_default()) data-search="" maxlength="320" autocomplete="off" spellcheck="false" placeholder="Position, session, user id or e-mail address";
                }
                button.btn.primary type="submit" { "Find" }
            }
            @match found {
                None => (ui::empty(Icon::SEARCH, "Whom are you looking for?", "Paste the id from a waiting page, a support ticket or your site. An e-mail address is found where your site gave its SHA-256 as the user id.", &html! {})),
                Some(Ok(found)) => div.card-body { (card(queue, &found, acts, now)) },
                Some(Err(room::Error::UnknownPosition)) => (ui::empty(Icon::USER, "Nobody found", "No position, session or user of this queue has this id. Records are deleted some time after a visit ended.", &html! {})),
                Some(Err(error)) => div.card-body { div.notice.bad role="alert" { (format::sentence(&error.to_string())) } },
            }
        }
    }
}

fn card(queue: &Queue, found: &VisitorMatch, acts: bool, now: i64) -> Markup {
    let position = &found.position;
    let id = position.id.to_string();
    html! {
        div.stack {
            @if let Some(reason) = found.wait_reason {
                div.notice { b { "Why this visitor waits: " } (why(reason, queue, position.ahead().unwrap_or(0))) }
            }
            dl.facts {
                dt { "Position" } dd.mono { (id) " " (ui::copy_button(&id)) }
                dt { "State" } dd { (ui::badge(state_tone(position.state.as_str()), position.state.as_str())) @if let Some(reason) = position.reason { " " span.dim { (reason.as_str().replace('_', " ")) } } }
                @if let Some(number) = position.number { dt { "Number in the queue" } dd { (format::count(number)) " of " (format::count(position.waiting)) } }
                dt { "Priority" } dd { (priority_badge(position.priority.number())) }
                dt { "Enqueued" } dd { (format::moment(position.enqueued_at.0)) }
                @if let Some(at) = position.last_heartbeat { dt { "Last heartbeat" } dd { (format::moment(at.0)) } }
                @if let Some(at) = position.expires_at { dt { "Expires" } dd { "in " (format::millis(at.0 - now)) " without another heartbeat" } }
                @if position.number.is_some() {
                    dt { "Estimated wait" } dd { @match position.estimate {
                        Ok(wait) => { "about " (format::duration(wait.likely)) ", between " (format::duration(wait.low)) " and " (format::duration(wait.high)) }
                        Err(reason) => { (reason.as_str().replace('_', " ")) }
                    } }
                }
                @if let Some(by) = position.start_by { dt { "Must start a session" } dd { "within " (format::millis(by.0 - now)) } }
                @if let Some(session) = &found.session {
                    dt { "Session" } dd.mono { (session.id) }
                    dt { "Session state" } dd { (session.status.as_str()) ", " (format::count(session.page_views)) " pages, last activity " (format::moment(session.last_activity.0)) }
                    @if !session.user_id.is_empty() { dt { "User id" } dd.mono { (session.user_id) } }
                }
            }
            @if acts && !position.state.is_over() {
                div.actions {
                    button.btn.s type="button" data-act={ "DELETE /api/v1/admin/queues/" (queue.id) "/positions/" (position.id) } data-done="Position revoked" data-then="reload"
                        data-confirm="Revoke this position? The visitor has to enqueue again." data-confirm-verb="Revoke" { (Icon::CROSS) "Revoke position" }
                }
            }
        }
    }
}

/// Says the reason in a sentence.
fn why(reason: WaitReason, queue: &Queue, ahead: u64) -> String {
    let rate = units::rate(queue.config.admission.count, queue.config.admission.per_seconds);
    let most = format::count(queue.config.max_active.into());
    let others = match ahead {
        0 => "nobody is ahead".to_owned(),
        1 => "1 visitor is ahead".to_owned(),
        n => format!("{} visitors are ahead", format::count(n)),
    };
    match reason {
        WaitReason::Paused => "the queue is paused. Nobody is admitted until it is resumed.".to_owned(),
        WaitReason::Closed => "the queue is closed. Nobody is admitted until it is resumed.".to_owned(),
        WaitReason::NoRate => "the rate is 0, which admits nobody. Change it in the settings.".to_owned(),
        WaitReason::NoFreeSlot => format!(
            "all {most} slots are taken ({} active, {} admitted), and {others}. The next visitor is admitted when a session ends.",
            format::count(queue.active), format::count(queue.admitted)
        ),
        WaitReason::AddressLimit => "as many visitors from the same network address as allowed are already admitted or active. Others are admitted first; the limit is in the settings.".to_owned(),
        WaitReason::Rate => format!("{others}, and {rate} are admitted."),
    }
}

fn state_tone(state: &str) -> &'static str {
    match state {
        "waiting" => "accent",
        "admitted" | "active" | "completed" => "good",
        _ => "",
    }
}
