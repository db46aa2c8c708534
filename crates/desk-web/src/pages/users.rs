//! Users: search, status, devices; block with a reason and undo.

use axum::extract::State;
use desk::UserId;
use desk::users::{UserSession, UserStatus, UserSummary};
use maud::{Markup, html};
use serde::Deserialize;
use web::extract::{Path, Query};
use web::format;
use web::icon::Icon;
use web::middleware::percent;
use web::ui::{self, Shell};

use super::{frame, rendered};
use crate::service::DeskState;

/// Users shown.
const ROWS: usize = 100;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserSearch {
    text: Option<String>,
}

pub(crate) async fn page(
    State(state): State<DeskState>,
    shell: Shell,
    Query(query): Query<UserSearch>,
) -> Markup {
    let text = query.text.unwrap_or_default();
    let body = rendered(async {
        let users = &state.desk.users;
        let found = if text.is_empty() {
            users.recent(0, ROWS).await?
        } else {
            users.search(&text, ROWS).await?
        };
        Ok(list(&found, &text))
    })
    .await;
    frame(&state, &shell, ("/desk/users", None), &body, &html! {})
}

fn list(users: &[UserSummary], text: &str) -> Markup {
    let search = html! {
        form.filters method="get" action="/desk/users" role="search" {
            div.search {
                (Icon::SEARCH)
                input.input type="search" name="text" value=(text) placeholder="Id of a user, or a part of it" aria-label="Search users";
            }
            button.btn type="submit" { "Search" }
        }
    };
    let body = if users.is_empty() {
        let (title, more) = if text.is_empty() {
            (
                "No users yet",
                "A user appears with their first session or check, or once they are blocked.",
            )
        } else {
            ("No users found", "The search covers the ids of users that were seen here.")
        };
        ui::empty(Icon::USER, title, more, &html! {})
    } else {
        html! {
            div.table-wrap tabindex="0" { table.table.cards {
                thead { tr { th { "User" } th { "Status" } th { "Device" } th.r { "Sessions" } th { "Last seen" } } }
                tbody { @for user in users {
                    tr data-key=(user.id) {
                        td { a.row href={ "/desk/users/" (percent(user.id.as_str())) } { (user.id) } }
                        td { (badge(user.status)) }
                        td.wrap-any data-label="Device" { @if user.device_id.is_empty() { span.dim { "–" } } @else { (user.device_id) } }
                        td.r data-label="Sessions" { (user.sessions) }
                        td.nowrap data-label="Last seen" { @match user.seen { Some(at) => { (format::moment(at.0)) } None => { span.dim { "–" } } } }
                    }
                } }
            } }
        }
    };
    html! { (search) (ui::card_flush("", "Users", &html! {}, &body)) }
}

fn badge(status: UserStatus) -> Markup {
    let tone = match status {
        UserStatus::Login => "good",
        UserStatus::Anonymous => "",
        UserStatus::Blocked => "bad",
    };
    ui::badge(tone, status.as_str())
}

pub(crate) async fn user_page(
    State(state): State<DeskState>,
    shell: Shell,
    Path(id): Path<String>,
) -> Markup {
    let acts = shell.may_operate();
    let body = rendered(async {
        let id = UserId::parse(&id)?;
        let user = state.desk.users.read(&id).await?;
        let sessions = state.desk.users.sessions(&id).await?;
        Ok(user_body(&id, user.as_ref(), &sessions, acts))
    })
    .await;
    frame(&state, &shell, ("/desk/users", None), &body, &html! {})
}

fn user_body(
    id: &UserId,
    user: Option<&UserSummary>,
    sessions: &[UserSession],
    acts: bool,
) -> Markup {
    let path = format!("/api/v1/users/{}", percent(id.as_str()));
    let is_blocked = user.is_some_and(|user| user.status == UserStatus::Blocked);
    let actions = html! {
        @if acts { span.actions {
            @if is_blocked {
                button.btn.s type="button" data-act={ "DELETE " (path) "/block" } data-done={ "Unblocked " (id) } data-then="reload" { "Unblock" }
            } @else {
                button.btn.s.danger type="button" data-open="block-user" { "Block" }
            }
            button.btn.s type="button" data-act={ "DELETE " (path) "/sessions" } data-done={ "Logged out " (id) } data-then="reload"
                data-confirm={ "Log " (id) " out on every device?" } data-confirm-verb="Log out" { "Log out everywhere" }
            button.btn.s.ghost type="button" aria-label={ "Erase " (id) } data-act={ "DELETE " (path) "?erase=true" } data-done="Erased" data-then="/desk/users"
                data-confirm={ "Delete everything that is kept about " (id) ", a block included?" } data-confirm-word=(id) data-confirm-verb="Erase" { (Icon::TRASH) }
        } }
    };
    let facts = html! {
        @match user {
            None => { (ui::empty(Icon::USER, "This user is not known", "They have no session and no block.", &html! {})) }
            Some(user) => {
                ul.list {
                    li { span.dim.grow { "Status" } (badge(user.status)) }
                    @if let Some(block) = &user.block {
                        li { span.dim.grow { "Reason" } span.wrap-any { @if block.reason.is_empty() { "none given" } @else { (block.reason) } } }
                        li { span.dim.grow { "Blocked until" } @match block.until { Some(at) => { (format::moment(at.0)) } None => { "somebody lifts it" } } }
                    }
                    li { span.dim.grow { "Last login" } @match user.login { Some(at) => { (format::moment(at.0)) } None => { "–" } } }
                    li { span.dim.grow { "Last seen" } @match user.seen { Some(at) => { (format::moment(at.0)) } None => { "–" } } }
                }
            }
        }
    };
    let devices = html! {
        @if sessions.is_empty() {
            (ui::empty(Icon::USER, "No devices", "A device appears when an app opens a session for it.", &html! {}))
        } @else {
            ul.list { @for session in sessions {
                li data-key=(session.id) {
                    span.grow { b { (session.device_id) } " " span.dim.small { (session.ip_address) } }
                    span.dim.small.nowrap { "seen " (format::moment(session.seen.0)) }
                    @if acts {
                        button.btn.s type="button" data-act={ "DELETE " (path) "/sessions/" (percent(&session.id.to_string())) } data-done={ "Ended " (session.device_id) } data-then="reload"
                            data-confirm={ "End the session of " (session.device_id) "?" } data-confirm-verb="End" { "End" }
                    }
                }
            } }
        }
    };
    html! {
        div.grid {
            (ui::card_flush("w6", id.as_str(), &actions, &facts))
            (ui::card_flush("w6", "Devices", &html! {}, &devices))
        }
        @if acts && !is_blocked {
            dialog #block-user aria-labelledby="block-user-title" {
                form.dialog-body data-api={ "PATCH " (path) } data-done={ "Blocked " (id) "; undo with Unblock" } data-then="reload" {
                    h2 #block-user-title { "Block " (id) }
                    p { "Every instance refuses them within a second, on every device, until the block is lifted." }
                    input type="hidden" name="status" value="blocked";
                    (ui::text("reason", "Reason", "", "For people who look at this page; at most 500 bytes."))
                    div.dialog-foot {
                        button.btn type="button" data-close="" { "Cancel" }
                        button.btn.danger.solid type="submit" { "Block" }
                    }
                }
            }
        }
    }
}
