//! The agents' console: its page, the login, the invitation, the manifest with which it is installed, and the
//! service worker that notifies.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use maud::{DOCTYPE, Markup, html};
use serde_json::json;
use web::extract::Path;
use web::ui::Shell;
use web::{ApiError, Routes, cookies, ui};

use crate::assets;
use crate::chat::AGENT_COOKIE;
use crate::service::DeskState;

/// The routes.
pub(crate) fn routes() -> Routes<DeskState> {
    let router = assets::router()
        .route("/desk", get(console))
        .route("/desk/login", get(login))
        .route("/desk/invitation/{invitation}", get(invitation))
        .route("/desk/manage", get(manage))
        .route("/desk/worker.js", get(worker))
        .route("/desk/manifest.json", get(manifest));
    let excluded = ["/desk/manifest.json", "/desk/worker.js"].map(str::to_owned);
    let excluded = excluded.into_iter().chain([assets::template()]).collect();
    Routes { public: router.into(), excluded, ..Routes::default() }
}

/// Serves the console. Whether the session is still valid, its first call finds out.
async fn console(headers: HeaderMap) -> Response {
    if cookies::value_of(&headers, AGENT_COOKIE).is_none() {
        return Redirect::to("/desk/login").into_response();
    }
    let body = html! {
        main #app data-icon=(assets::url("icon.svg")) { p.sr { "The desk is loading." } }
        noscript { p.notice.warn { "The console needs JavaScript." } }
    };
    document("Desk", &headers, "console", &body, "console.js")
}

/// Serves the login page of agents.
async fn login(headers: HeaderMap) -> Response {
    let body = card(&html! {
        div { h1 { "Log in to the desk" } p { "Use the e-mail address of your invitation and your password." } }
        form.form data-agent="login" method="post" {
            div.notice.bad role="alert" hidden {}
            label.field { span { "E-mail" } input.input type="email" name="email" required autofocus autocomplete="username" maxlength="254"; }
            label.field { span { "Password" } input.input type="password" name="password" required autocomplete="current-password" maxlength="256"; }
            label.field data-code="" hidden {
                span { "Code" }
                input.input name="code" inputmode="numeric" autocomplete="one-time-code" maxlength="40" spellcheck="false";
                small { "Of your authenticator app, or a recovery code." }
            }
            button.btn.primary type="submit" { "Log in" }
        }
    });
    document("Log in to the desk", &headers, "", &body, "login.js")
}

/// Serves the page on which an agent accepts an invitation. The secret goes nowhere but to the call that uses it.
async fn invitation(headers: HeaderMap, Path(invitation): Path<String>) -> Response {
    let body = card(&html! {
        div { h1 { "Welcome to the desk" } p { "Choose a password. You will be logged in at once." } }
        form.form data-agent="invitation" data-invitation=(invitation) method="post" {
            div.notice.bad role="alert" hidden {}
            label.field {
                span { "Password" }
                input.input type="password" name="password" required autofocus autocomplete="new-password" minlength="12" maxlength="256";
                small { "12 characters at least." }
            }
            label.field { span { "The same again" } input.input type="password" name="again" required autocomplete="new-password" maxlength="256"; }
            label.field data-code="" hidden { span { "Code" } input.input name="code" inputmode="numeric" autocomplete="one-time-code" maxlength="40"; }
            button.btn.primary type="submit" { "Set password" }
        }
    });
    document("Invitation", &headers, "", &body, "login.js")
}

/// Serves the pages of supervisors. The calls they make decide who may: supervisors with their session,
/// operators with the dashboard's.
async fn manage(headers: HeaderMap) -> Response {
    let body = html! {
        header.top.always { a.brand href="/desk" { img src=(assets::url("icon.svg")) alt="" width="28" height="28"; "Desk" } }
        main.page #app data-icon=(assets::url("icon.svg")) { p.sr { "Loading." } }
        noscript { p.notice.warn { "These pages need JavaScript." } }
    };
    document("Desk", &headers, "manage", &body, "manage.js")
}

/// Serves the same pages inside the dashboard, for operators.
pub(crate) async fn chat_page(State(state): State<DeskState>, shell: Shell) -> Markup {
    let body = html! {
        link rel="stylesheet" href=(assets::url("console.css"));
        div #app data-place="dashboard" data-icon=(assets::url("icon.svg")) { p.sr { "Loading." } }
        noscript { p.notice.warn { "These pages need JavaScript." } }
        script type="module" src=(assets::url("manage.js")) {}
    };
    crate::pages::chat_frame(&state, &shell, &body)
}

/// Serves the service worker, which shows notifications while no tab is open. It keeps its address, and browsers
/// ask whether it changed.
async fn worker(headers: HeaderMap) -> Result<Response, ApiError> {
    let mut response = assets::WORKER.serve("worker.js", &headers)?;
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("service-worker-allowed", HeaderValue::from_static("/desk"));
    Ok(response)
}

/// Serves the manifest, with which browsers install the console.
async fn manifest() -> Response {
    let manifest = json!({
        "name": "Tidegate desk",
        "short_name": "Desk",
        "description": "Conversations with visitors",
        "id": "/desk",
        "start_url": "/desk",
        "scope": "/desk",
        "display": "standalone",
        "background_color": "#0b2432",
        "theme_color": "#0b2432",
        "icons": [{ "src": assets::url("icon.svg"), "sizes": "any", "type": "image/svg+xml", "purpose": "any" }],
    });
    let kind = HeaderValue::from_static("application/manifest+json");
    ([(header::CONTENT_TYPE, kind)], manifest.to_string()).into_response()
}

fn card(content: &Markup) -> Markup {
    html! {
        main.gate #main { div.gate-card { div.gate-brand { img src=(assets::url("icon.svg")) alt="" width="38" height="38"; "Tidegate" } (content) } }
    }
}

fn document(
    title: &str,
    headers: &HeaderMap,
    class: &str,
    body: &Markup,
    script: &str,
) -> Response {
    let page = html! {
        (DOCTYPE)
        html lang="en" data-theme=[ui::theme(headers)] {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1, interactive-widget=resizes-content";
                meta name="color-scheme" content="light dark";
                meta name="theme-color" content="#0b2432";
                meta name="robots" content="noindex";
                title { (title) " · Tidegate" }
                link rel="icon" type="image/svg+xml" href=(assets::url("icon.svg"));
                link rel="manifest" href="/desk/manifest.json";
                link rel="stylesheet" href=(web::assets::url("style.css"));
                link rel="stylesheet" href=(assets::url("console.css"));
                script type="module" src=(assets::url(script)) {}
            }
            body.(class) { (body) }
        }
    };
    let mut response = page.into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
