//! The login page: a token in, a session cookie out.

use std::net::IpAddr;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use maud::{Markup, html};
use serde::Deserialize;
use tracing::Instrument;

use crate::app::App;
use crate::audit;
use crate::auth::require::{Need, same_origin};
use crate::auth::session::{clear_cookie, cookie_of, set_cookie};
use crate::client::Client;
use crate::error::ApiError;
use crate::extract::{Form, Query};
use crate::middleware::RequestId;
use crate::ui;

pub(crate) fn router() -> Router<App> {
    Router::new().route("/login", get(show).post(log_in)).route("/logout", post(log_out))
}

#[derive(Debug, Deserialize)]
struct NextPage {
    next: Option<String>,
}

/// The form.
async fn show(headers: HeaderMap, Query(query): Query<NextPage>) -> Markup {
    form(&headers, query.next.as_deref().unwrap_or("/"), None)
}

fn form(headers: &HeaderMap, next: &str, problem: Option<&str>) -> Markup {
    ui::plain(
        "Log in",
        ui::theme(headers),
        &html! {
            div.stack {
                div {
                    h1 { "Log in" }
                    p { "With the admin token, or one an admin made for you." }
                }
                @if let Some(problem) = problem { div.notice.bad role="alert" { (problem) } }
                form.form method="post" action="/login" {
                    input type="hidden" name="next" value=(next);
                    label.field {
                        span { "Token" }
                        input.input.mono type="password" name="token" required autofocus
                            autocomplete="current-password" spellcheck="false" placeholder="tg_…"
                            aria-invalid=[problem.map(|_| "true")];
                        small {
                            "The first start printed the admin token; it is in the file " code { "admin-token" }
                            " of the server's data folder (" code { "--data" } "). If it is lost, "
                            code { "tidegate token reset-admin" } " on the server makes a new one."
                        }
                    }
                    button.btn.primary type="submit" { "Log in" }
                }
            }
        },
    )
}

#[derive(Deserialize)]
struct LoginForm {
    token: String,
    next: Option<String>,
}

/// Checks the token and opens a session.
async fn log_in(
    State(app): State<App>,
    client: Client,
    headers: HeaderMap,
    axum::Extension(id): axum::Extension<RequestId>,
    Form(login): Form<LoginForm>,
) -> Result<Response, ApiError> {
    same_origin(&headers)?;
    let settings = app.settings();
    let next = local(login.next.as_deref().unwrap_or("/"));
    let address: IpAddr = client.bucket();
    if let Some(wait) = app.auth().charge_login(app.store(), address, &settings).await? {
        let text = format!(
            "Too many failed logins from your address. Try again in {}.",
            crate::format::duration(wait)
        );
        let page = form(&headers, next, Some(&text));
        let retry = HeaderValue::from(wait.as_secs().max(1));
        return Ok(
            (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, retry)], page).into_response()
        );
    }
    let entry = audit::Entry {
        action: "session.open".to_owned(),
        target: "dashboard".to_owned(),
        client: client.ip.to_string(),
        request_id: id.0,
        ..audit::Entry::default()
    };
    // On a task of its own: a client that hangs up has a session and its entry, or neither.
    let token = login.token.trim().to_owned();
    let opening = open(app.clone(), token, address, entry);
    let opened = app.tasks().spawn(opening.in_current_span()).await;
    let Some(cookie) = opened.map_err(|error| ApiError::internal(&error))?? else {
        let page = form(
            &headers,
            next,
            Some("This token is not valid, or its role does not include the dashboard."),
        );
        return Ok((StatusCode::UNAUTHORIZED, page).into_response());
    };
    let set = set_cookie(&cookie, client.secure, settings.session_max);
    Ok(([(header::SET_COOKIE, set)], Redirect::to(next)).into_response())
}

/// Opens a session for a good token, and writes down either way.
async fn open(
    app: App,
    token: String,
    address: IpAddr,
    mut entry: audit::Entry,
) -> Result<Option<String>, ApiError> {
    let found = app.auth().by_token(app.store(), &token).await?;
    let Some(principal) = found.filter(|principal| Need::Viewer.met_by(principal.role)) else {
        "unknown".clone_into(&mut entry.who);
        entry.set_status(StatusCode::UNAUTHORIZED);
        audit::write_refusal(&app, format!("login {address}"), &entry).await;
        return Ok(None);
    };
    entry.name(&principal);
    let mut pending = audit::begin(&app, entry).await?;
    let cookie = app.auth().open_session(app.store(), &token, &app.settings()).await;
    let status =
        if cookie.is_ok() { StatusCode::SEE_OTHER } else { StatusCode::SERVICE_UNAVAILABLE };
    pending.entry.set_status(status);
    pending.finish(&app).await;
    let cookie = cookie?;
    app.auth().forgive_logins(app.store(), address).await?;
    Ok(Some(cookie))
}

/// Ends the session.
async fn log_out(
    State(app): State<App>,
    client: Client,
    headers: HeaderMap,
    axum::Extension(id): axum::Extension<RequestId>,
) -> Result<Response, ApiError> {
    same_origin(&headers)?;
    if let Some(cookie) = cookie_of(&headers) {
        let entry = audit::Entry {
            action: "session.close".to_owned(),
            target: "dashboard".to_owned(),
            client: client.ip.to_string(),
            request_id: id.0,
            ..audit::Entry::default()
        };
        let closing = close(app.clone(), cookie.to_owned(), entry);
        let closed = app.tasks().spawn(closing.in_current_span()).await;
        closed.map_err(|error| ApiError::internal(&error))??;
    }
    let clear = clear_cookie(client.secure);
    Ok(([(header::SET_COOKIE, clear)], Redirect::to("/login")).into_response())
}

/// Ends a session and writes that down; one that has ended already leaves no entry.
async fn close(app: App, cookie: String, mut entry: audit::Entry) -> Result<(), ApiError> {
    let whose = app.auth().by_session(app.store(), &cookie, &app.settings()).await?;
    let Some(principal) = whose else { return Ok(()) };
    entry.name(&principal);
    let mut pending = audit::begin(&app, entry).await?;
    let closed = app.auth().close_session(app.store(), &cookie).await;
    let status =
        if closed.is_ok() { StatusCode::SEE_OTHER } else { StatusCode::SERVICE_UNAVAILABLE };
    pending.entry.set_status(status);
    pending.finish(&app).await;
    closed
}

/// A path of this server, or the front page: `//evil.example` and the like are not paths.
fn local(next: &str) -> &str {
    let path = next.starts_with('/')
        && !next.starts_with("//")
        && !next.contains('\\')
        && !next.bytes().any(|byte| byte.is_ascii_control())
        && next.is_ascii();
    if path { next } else { "/" }
}

#[cfg(test)]
mod tests {
    use super::local;

    #[test]
    fn only_paths_of_this_server_are_gone_back_to() {
        for good in ["/", "/room/a?b=c#d", "/a//b", "/?next=//x"] {
            assert_eq!(local(good), good);
        }
        for bad in [
            "",
            "//evil",
            "///evil",
            "/\\evil",
            "\\/evil",
            "https://evil",
            "javascript:alert(1)",
            "evil",
            "/a\r\nb: c",
            "/\t/evil",
            "/\u{ff0f}evil",
            " /x",
        ] {
            assert_eq!(local(bad), "/", "{bad:?}");
        }
    }
}
