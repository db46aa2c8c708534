//! The login page: a token in, a session cookie out.

use std::net::IpAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use maud::{Markup, html};
use serde::Deserialize;
use store::limit::header::ceil_seconds;
use tracing::Instrument;

use crate::app::App;
use crate::audit;
use crate::auth::digest;
use crate::auth::login_link::{LINK_PATH, LinkOutcome, is_from_here};
use crate::auth::require::{Need, same_origin};
use crate::auth::session::{clear_cookie, cookie_of, set_cookie};
use crate::client::{Client, Peer};
use crate::error::ApiError;
use crate::extract::{Form, Path, Query};
use crate::middleware::{RefusalMark, RequestId};
use crate::rate_limit::{self, LimitReport, LimitSubject};
use crate::ui;

/// Policies of logins, where a service keeps limits.
const LOGIN_IP: &str = "login_ip";
const LOGIN_ACCOUNT: &str = "login_account";

/// The routes: those with a limit of their own, and those without.
pub(crate) fn routers() -> (Router<App>, Router<App>) {
    let own = Router::new()
        .route("/login", post(log_in))
        .route(&format!("{LINK_PATH}/{{code}}"), get(log_in_once));
    (own, Router::new().route("/login", get(show)).route("/logout", post(log_out)))
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
    let token = login.token.trim().to_owned();
    let charge = charge_login(&app, address, &token).await?;
    if let Some(response) = charge.refusal(|text| form(&headers, next, Some(text))) {
        return Ok(response);
    }
    let entry = audit::Entry {
        action: "session.open".to_owned(),
        target: "dashboard".to_owned(),
        client: client.ip.to_string(),
        request_id: id.0,
        ..audit::Entry::default()
    };
    // On a task of its own: a client that hangs up has a session and its entry, or neither.
    let opening = open(app.clone(), token, address, entry);
    let opened = app.tasks().spawn(store::trace::carry(opening.in_current_span())).await;
    let Some(cookie) = opened.map_err(|error| ApiError::internal(&error))?? else {
        let page = form(
            &headers,
            next,
            Some("This token is not valid, or its role does not include the dashboard."),
        );
        return Ok(charge.told((StatusCode::UNAUTHORIZED, page).into_response()));
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
    match app.limiter() {
        None => app.auth().forgive_logins(app.store(), address).await?,
        Some(limiter) => {
            limiter.forgive(LOGIN_IP, LimitSubject::Address(address)).await;
            limiter.forgive(LOGIN_ACCOUNT, LimitSubject::Key(&digest(&token))).await;
        }
    }
    Ok(Some(cookie))
}

/// Logs in by a link that is good once. A look ahead (`HEAD`, a prefetch) does not use it up.
async fn log_in_once(
    State(app): State<App>,
    client: Client,
    method: Method,
    headers: HeaderMap,
    axum::Extension(id): axum::Extension<RequestId>,
    peer: Option<axum::Extension<Peer>>,
    Path(code): Path<String>,
) -> Result<Response, ApiError> {
    let is_prefetch = ["sec-purpose", "purpose"].into_iter().any(|name| {
        headers.get(name).is_some_and(|value| value.as_bytes().starts_with(b"prefetch"))
    });
    if method != Method::GET || is_prefetch {
        return Ok(form(&headers, "/", None).into_response());
    }
    let refuse = |text: &str| {
        let page = form(&headers, "/", Some(text));
        (StatusCode::UNAUTHORIZED, page).into_response()
    };
    let address = client.bucket();
    let charge = charge_login(&app, address, &code).await?;
    if let Some(response) = charge.refusal(|text| form(&headers, "/", Some(text))) {
        return Ok(response);
    }
    let entry = audit::Entry {
        action: "session.open".to_owned(),
        target: "dashboard, by a one-time link".to_owned(),
        client: client.ip.to_string(),
        request_id: id.0,
        ..audit::Entry::default()
    };
    let peer = peer.map_or_else(Peer::default, |axum::Extension(peer)| peer);
    let here = is_from_here_with(peer, client, &headers);
    let opening = open_once(app.clone(), code, address, here, entry);
    let opened = app.tasks().spawn(opening.in_current_span()).await;
    match opened.map_err(|error| ApiError::internal(&error))?? {
        LinkOutcome::Opened(cookie) => {
            let set = set_cookie(&cookie, client.secure, app.settings().session_max);
            Ok(([(header::SET_COOKIE, set)], Redirect::to("/")).into_response())
        }
        LinkOutcome::Elsewhere => Ok(charge.told(refuse(
            "This link works only in a browser on the machine the server runs on, and through no proxy. Log in with the token instead.",
        ))),
        LinkOutcome::Spent => Ok(charge.told(refuse(
            "This link was used already, or is older than ten minutes. Log in with the token.",
        ))),
    }
}

/// Returns a test of the listener's address: does the request come from this machine?
fn is_from_here_with(
    peer: Peer,
    client: Client,
    headers: &HeaderMap,
) -> impl Fn(IpAddr) -> bool + Send + 'static {
    let headers = headers.clone();
    move |listener| is_from_here(peer, client, &headers, listener)
}

/// Uses a link up, and writes down either way.
async fn open_once(
    app: App,
    code: String,
    address: IpAddr,
    is_local: impl Fn(IpAddr) -> bool + Send + 'static,
    mut entry: audit::Entry,
) -> Result<LinkOutcome, ApiError> {
    let (auth, store) = (app.auth(), app.store());
    let holder = auth.login_link_holder(store, &code).await?;
    let mut refused = entry.clone();
    "unknown".clone_into(&mut refused.who);
    refused.set_status(StatusCode::UNAUTHORIZED);
    let Some(principal) = holder else {
        audit::write_refusal(&app, format!("login {address}"), &refused).await;
        return Ok(LinkOutcome::Spent);
    };
    entry.name(&principal);
    let outcome = auth.use_login_link(store, &code, is_local, &app.settings()).await?;
    if !matches!(outcome, LinkOutcome::Opened(_)) {
        audit::write_refusal(&app, format!("login {address}"), &refused).await;
        return Ok(outcome);
    }
    // The session exists already; without its line it must not be used.
    let mut pending = audit::begin(&app, entry).await?;
    pending.entry.set_status(StatusCode::SEE_OTHER);
    pending.finish(&app).await;
    match app.limiter() {
        None => auth.forgive_logins(store, address).await?,
        Some(limiter) => {
            limiter.forgive(LOGIN_IP, LimitSubject::Address(address)).await;
            limiter.forgive(LOGIN_ACCOUNT, LimitSubject::Key(&digest(&code))).await;
        }
    }
    Ok(outcome)
}

/// The outcome of charging a try to log in.
struct LoginCharge {
    /// Time to wait when there were too many.
    wait: Option<Duration>,
    /// Headers that tell the state of the limits.
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl LoginCharge {
    /// Adds the headers to a response.
    fn told(&self, mut response: Response) -> Response {
        response.headers_mut().extend(self.headers.iter().cloned());
        response
    }

    /// Returns the response to one try too many, on a page with this text.
    fn refusal(&self, page: impl FnOnce(&str) -> Markup) -> Option<Response> {
        let wait = self.wait?;
        let text = format!(
            "Too many failed logins from your address. Try again in {}.",
            crate::format::duration(wait)
        );
        // Rounded up: who waits that long is let in.
        let retry = HeaderValue::from(ceil_seconds(wait).max(1));
        let told = [(header::RETRY_AFTER, retry)];
        let mut response = (StatusCode::TOO_MANY_REQUESTS, told, page(&text)).into_response();
        response.extensions_mut().insert(RefusalMark);
        Some(self.told(response))
    }
}

/// Charges a try to log in to the address and to the account, which is the token that was sent. Where no
/// service keeps limits, failed logins of the address are counted here.
async fn charge_login(app: &App, address: IpAddr, token: &str) -> Result<LoginCharge, ApiError> {
    let Some(limiter) = app.limiter() else {
        let wait = app.auth().charge_login(app.store(), address, &app.settings()).await?;
        return Ok(LoginCharge { wait, headers: Vec::new() });
    };
    let account = digest(token);
    let (mut limits, mut wait) = (Vec::new(), None);
    for (policy, subject) in
        [(LOGIN_IP, LimitSubject::Address(address)), (LOGIN_ACCOUNT, LimitSubject::Key(&account))]
    {
        let Some(verdict) = limiter.charge(policy, subject).await else { continue };
        limits.extend(verdict.limits);
        if !verdict.allowed {
            let longest = limits.iter().map(|limit: &LimitReport| limit.retry_after).max();
            wait = Some(longest.unwrap_or_default().max(Duration::from_secs(1)));
            break;
        }
    }
    let headers = rate_limit::headers(&limits, limiter.header_style(), app.store().now());
    Ok(LoginCharge { wait, headers })
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
        let closed = app.tasks().spawn(store::trace::carry(closing.in_current_span())).await;
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
