//! The block page: what a browser shows for a blocked name when the reply to blocked queries is the address
//! of this server. Plain HTTP only: no certificate would fit the names.
//!
//! It says why, names the list, and takes a request to allow the name, which an operator decides.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use dns::{AllowRequest, AllowRequestState, AllowRequests, DomainName, Explanation, Question};
use http_body_util::{BodyExt as _, Limited};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use web::client::{Client, Peer};

use crate::alerts;
use crate::service::DnsState;

/// Path of the form; unlikely to be one of the blocked site's own.
const REQUEST_PATH: &str = "/.tidegate/allow-request";

/// Longest form.
const FORM_MAX_BYTES: usize = 8_192;

const STYLE: &str = "
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; background: Canvas; color: CanvasText; }
main { max-width: 34rem; padding: 2rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .75rem; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: auto 1fr; gap: .25rem 1rem; margin: 1.25rem 0; padding: 1rem; border: 1px solid color-mix(in srgb, CanvasText 20%, Canvas); border-radius: .5rem; }
dt { color: color-mix(in srgb, CanvasText 72%, Canvas); } dd { margin: 0; overflow-wrap: anywhere; }
code { font-family: ui-monospace, monospace; font-size: .9em; }
label { display: block; margin-bottom: .35rem; }
textarea { box-sizing: border-box; width: 100%; min-height: 4.5rem; font: inherit; padding: .5rem; border-radius: .4rem; border: 1px solid color-mix(in srgb, CanvasText 45%, Canvas); background: Canvas; color: CanvasText; }
button { font: inherit; margin-top: .75rem; padding: .55rem 1.1rem; border: 0; border-radius: .4rem; background: #0b5fff; color: #fff; cursor: pointer; }
button:focus-visible, textarea:focus-visible { outline: 3px solid #7aa7ff; outline-offset: 2px; }
.told { padding: .75rem 1rem; border-left: 4px solid #0b5fff; background: color-mix(in srgb, #0b5fff 10%, Canvas); border-radius: .25rem; }
footer { margin-top: 2rem; font-size: .85rem; color: color-mix(in srgb, CanvasText 72%, Canvas); }
";

/// The routes of the listener.
pub(crate) fn router(state: DnsState) -> Router {
    Router::new()
        .route(REQUEST_PATH, post(ask))
        .fallback(get(show).post(show).head(show))
        .with_state(state)
}

/// The blocked name that a request is for: its host, without a port.
fn host(headers: &HeaderMap) -> Option<DomainName> {
    let text = headers.get(header::HOST)?.to_str().ok()?;
    let text = match text.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => text,
    };
    if text.parse::<std::net::IpAddr>().is_ok() || text.starts_with('[') {
        return None;
    }
    let name: DomainName = text.parse().ok()?;
    (name != DomainName::root()).then_some(name)
}

/// The client, as for the API: forwarded addresses count from trusted proxies only.
fn client_of(state: &DnsState, request: &Request) -> Client {
    let peer = request.extensions().get::<Peer>().copied().unwrap_or_default();
    Client::of(peer, request.headers(), &state.app.settings())
}

async fn explain(state: &DnsState, name: &DomainName, client: &Client) -> Explanation {
    let question = Question { name: name.clone(), qtype: 1, qclass: 1 };
    state.resolver.why(&question, client.ip, None).await
}

async fn show(State(state): State<DnsState>, request: Request) -> Response {
    let (client, headers) = (client_of(&state, &request), request.headers());
    let wants_page = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_none_or(|accept| accept.contains("text/html") || accept.contains("*/*"));
    if !wants_page {
        // A script or a picture of another page.
        return respond(StatusCode::FORBIDDEN, &html! {});
    }
    let Some(name) = host(headers) else {
        return respond(
            StatusCode::NOT_FOUND,
            &page(
                "Nothing here",
                &html! {
                    h1 { "This is the block page of a resolver" }
                    p { "Blocked names lead here. Nothing was blocked: this address was opened directly." }
                },
            ),
        );
    };
    let found = explain(&state, &name, &client).await;
    if found.outcome != dns::QueryOutcome::Blocked {
        return respond(
            StatusCode::NOT_FOUND,
            &page(
                "Not blocked",
                &html! {
                    h1 { (name) " is not blocked" }
                    p { "It is no longer blocked for this device. Reload the page in a minute: the browser may still remember the old answer." }
                },
            ),
        );
    }
    let id = AllowRequests::id_of(&name, &client.ip.to_string());
    let request = state.requests.get(&id).await.ok().flatten();
    respond(StatusCode::FORBIDDEN, &blocked_page(&state, &name, &found, request.as_ref()))
}

fn blocked_page(
    state: &DnsState,
    name: &DomainName,
    found: &Explanation,
    request: Option<&AllowRequest>,
) -> Markup {
    page(
        "Blocked",
        &html! {
            h1 { (name) " is blocked on this network" }
            p { "The resolver of this network does not answer for this name." }
            dl {
                dt { "Reason" } dd { (reason(state, found)) }
                @if let Some(hop) = &found.hop { dt { "Because of" } dd { code { (hop) } } }
                @if let Some(rule) = &found.rule { dt { "Rule" } dd { code { (rule) } } }
                dt { "Group" } dd { (found.group_id) }
            }
            @match request.map(|request| request.state) {
                Some(AllowRequestState::Waiting) => {
                    p.told role="status" { "You asked to allow this name. Whoever manages this network will decide." }
                }
                Some(AllowRequestState::Denied) => {
                    p.told role="status" { "It was decided that this name stays blocked." }
                }
                _ => {
                    form method="post" action=(REQUEST_PATH) {
                        label for="note" { "Do you need it? Say why, if you like:" }
                        textarea id="note" name="note" maxlength="300" {}
                        button type="submit" { "Ask to allow it" }
                    }
                }
            }
        },
    )
}

/// The list or rule that blocks, by its name for people.
fn reason(state: &DnsState, found: &Explanation) -> String {
    let version = state.resolver.policy();
    let list = version.policy.lists.iter().find(|list| list.id == found.list);
    match (list, found.list.as_str()) {
        (Some(list), _) if !list.name.is_empty() => format!("on the list “{}”", list.name),
        (Some(list), _) => format!("on the list “{}”", list.id),
        (None, "schedule") => {
            let step = found.steps.iter().find(|step| step.step == "schedule");
            step.map_or_else(|| "it is not the time for it".to_owned(), |step| step.result.clone())
        }
        (None, "timed_rule") => "blocked for a while".to_owned(),
        (None, source) => match source.strip_prefix("service:") {
            Some(id) => {
                let name = dns::lists::services::find(id).map_or(id, |service| service.name);
                format!("the service “{name}” is blocked")
            }
            None => "a rule of this network".to_owned(),
        },
    }
}

/// Keeps a request. The form is on the blocked name's own page, so the origin is its own.
async fn ask(State(state): State<DnsState>, request: Request) -> Response {
    let client = client_of(&state, &request);
    let (parts, body) = request.into_parts();
    let headers = &parts.headers;
    let told = |status: StatusCode, title: &str, text: &str| {
        respond(status, &page(title, &html! { h1 { (title) } p { (text) } }))
    };
    let Some(name) = host(headers) else {
        return told(StatusCode::BAD_REQUEST, "Not sent", "The request names no host.");
    };
    let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    let is_foreign = origin.is_some_and(|origin| {
        let host = origin.strip_prefix("http://").unwrap_or(origin);
        let host = host.split(':').next().unwrap_or_default();
        host.parse::<DomainName>().ok().as_ref() != Some(&name)
    });
    if is_foreign {
        return told(StatusCode::FORBIDDEN, "Not sent", "The form was sent from another site.");
    }
    let body = Limited::new(body, FORM_MAX_BYTES).collect().await;
    let Ok(body) = body.map(|body| body.to_bytes()) else {
        return told(StatusCode::PAYLOAD_TOO_LARGE, "Not sent", "The note is too long.");
    };
    let note = form_value(&body, "note");
    let found = explain(&state, &name, &client).await;
    if found.outcome != dns::QueryOutcome::Blocked {
        return told(
            StatusCode::CONFLICT,
            "Not blocked",
            "This name is not blocked for this device.",
        );
    }
    let address = client.ip.to_string();
    let request = AllowRequest {
        id: AllowRequests::id_of(&name, &address),
        name: name.to_string(),
        client: address,
        client_id: found.client_id.clone(),
        list: found.list.clone(),
        note,
        asked_ms: state.resolver.now().0,
        state: AllowRequestState::Waiting,
        decided_ms: 0,
    };
    match state.requests.add(request).await {
        Ok(request) => {
            alerts::tell_request(&state, &request).await;
            told(
                StatusCode::OK,
                "Sent",
                "Whoever manages this network will see your request and decide.",
            )
        }
        Err(error) => {
            tracing::warn!(%error, "a request to allow a name is not kept");
            told(
                StatusCode::SERVICE_UNAVAILABLE,
                "Not sent",
                "The request could not be kept. Try again later.",
            )
        }
    }
}

/// Reads a field of a form.
fn form_value(body: &[u8], name: &str) -> String {
    let text = String::from_utf8_lossy(body);
    let value = text.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        (key == name).then(|| value.to_owned())
    });
    let value = value.unwrap_or_default().replace('+', " ");
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let hex = others.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = others.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn page(title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="robots" content="noindex";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { main { (body) footer { "Tidegate, the resolver of this network" } } }
        }
    }
}

fn respond(status: StatusCode, page: &Markup) -> Response {
    let mut response = (status, page.0.clone()).into_response();
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
        ),
        // With no-referrer a browser sends the form with the origin null, as a foreign page's.
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_a_name_without_a_port() {
        let host_of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, text.parse().unwrap());
            host(&headers).map(|name| name.to_string())
        };
        assert_eq!(host_of("Ads.Example:80").as_deref(), Some("ads.example"));
        assert_eq!(host_of("ads.example").as_deref(), Some("ads.example"));
        for bad in ["192.0.2.1", "192.0.2.1:80", "[::1]:80", "a..b", ""] {
            assert_eq!(host_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn forms_are_read_and_nothing_breaks_on_bad_ones() {
        assert_eq!(form_value(b"a=1&note=I+need%20it%21", "note"), "I need it!");
        assert_eq!(form_value(b"note=%C3%BC%zz%", "note"), "ü%zz%");
        assert_eq!(form_value(b"", "note"), "");
    }
}
