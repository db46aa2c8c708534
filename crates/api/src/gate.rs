//! The gate: a proxy in front of a site asks here with every request whether to let it through.
//!
//! [`decide`] is the decision, the same for every kind of proxy and for our own (`guard.rs`); the
//! routes below are how nginx (`auth_request`), Caddy (`forward_auth`) and Traefik (`ForwardAuth`)
//! ask. A visitor with a good pass costs no round trip to the store. A visitor without one is let
//! in on the spot if there is room and nobody waits, else sent to the waiting page; only a person's
//! navigation ever takes a place in line.

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use room::{Arrival, Error, Estimate, Inside, NewPlace, Place, QueueId, Room, SessionId, Visitor};
use serde::Deserialize;
use store::Millis;

use crate::app::App;
use crate::client::Client;
use crate::error::ApiError;
use crate::extract::{Path, Query};
use crate::front;
use crate::room::site::{self, OWN_PATH};
use crate::room::{cookie, limits};
use crate::section::Section;

/// The query parameter of a visitor who comes from a waiting page on another site.
const REDIRECT_TOKEN: &str = "wrtoken";
/// What a visitor without a navigation is told to wait, in seconds.
const RETRY_SECONDS: u64 = 10;

pub(crate) const DECISION: HeaderName = HeaderName::from_static("x-wr-decision");
pub(crate) const QUEUE: HeaderName = HeaderName::from_static("x-wr-queue");
pub(crate) const SESSION: HeaderName = HeaderName::from_static("x-wr-session");
const POSITION: HeaderName = HeaderName::from_static("x-wr-position");
const LOCATION: HeaderName = HeaderName::from_static("x-wr-location");

/// The routes.
pub(crate) fn section() -> Section {
    let router = Router::new()
        .route("/gate/nginx/{queue}", asked_by(Proxy::Nginx))
        .route("/gate/forward/{queue}", asked_by(Proxy::Forward));
    Section { public: router.into(), ..Section::default() }
}

/// The request a visitor made to the site.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: &'a str,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) client: Client,
    pub(crate) now: Millis,
    /// Something follows the head.
    pub(crate) has_body: bool,
}

/// What to do with it.
#[derive(Debug)]
pub(crate) enum Decision {
    /// Let it through.
    Allow {
        /// The session, unless the request needs none.
        session: Option<SessionId>,
        /// To be set in the visitor's browser.
        cookie: Option<HeaderValue>,
    },
    /// Send the visitor to the same page without the token in its address.
    Clean {
        /// The address.
        to: String,
        /// To be set in the visitor's browser.
        cookie: Option<HeaderValue>,
    },
    /// Not now.
    Wait {
        /// The waiting page.
        page: String,
        /// The visitor's position in the line, if there is one.
        position: Option<Box<Place>>,
        /// The position a newcomer would get, and its wait.
        next: (u64, Option<Estimate>),
        /// To be set in the visitor's browser.
        cookie: Option<HeaderValue>,
    },
    /// Too many come from the visitor's network.
    Limited {
        /// The waiting page, which says so.
        page: String,
        /// What a program is told.
        error: Box<ApiError>,
    },
    /// The queue is full or closed.
    Closed {
        /// The waiting page, which says so.
        page: String,
    },
}

impl Asked<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// A person's browser going to a page; only that may be shown one, or be sent elsewhere.
    pub(crate) fn is_navigation(&self) -> bool {
        is_navigation(&self.method, self.headers)
    }

    /// Fetched ahead of time, or only looked at: nobody came.
    fn is_nobody(&self) -> bool {
        self.method == Method::HEAD
            || ["sec-purpose", "purpose", "x-moz"]
                .into_iter()
                .any(|name| self.text(name).is_some_and(|value| value.contains("prefetch")))
    }

    /// A browser asks whether it may ask; it sends no cookies with that, and no body.
    fn is_preflight(&self) -> bool {
        self.method == Method::OPTIONS
            && !self.has_body
            && self.text("origin").is_some()
            && self.text("access-control-request-method").is_some()
    }

    fn visitor(&self) -> Visitor {
        Visitor {
            user_id: String::new(),
            address: Some(self.client.ip),
            user_agent: self.text("user-agent").unwrap_or_default().to_owned(),
        }
    }

    /// The waiting page, and the way back from it. What was posted cannot be posted again from
    /// there, so such a visitor goes on to the queue's target.
    fn page(&self, queue: &QueueId) -> String {
        let back = matches!(self.method, Method::GET | Method::HEAD) && self.is_navigation();
        match back && self.target.starts_with('/') {
            true => format!("{OWN_PATH}/{queue}?return_to={}", front::percent(self.target)),
            false => format!("{OWN_PATH}/{queue}"),
        }
    }
}

/// Is a request a person's browser going to a page? Browsers say so (`Sec-Fetch-Mode`,
/// `Sec-Fetch-Dest`); of older ones, a page or a form that wants HTML back is taken for one.
pub(crate) fn is_navigation(method: &Method, headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let goes = matches!(*method, Method::GET | Method::HEAD | Method::POST);
    match text("sec-fetch-mode") {
        Some(mode) => {
            let shown = ["document", "iframe", "frame", "object", "embed"];
            mode == "navigate" && text("sec-fetch-dest").is_none_or(|dest| shown.contains(&dest))
        }
        None => goes && text("accept").is_some_and(|kinds| kinds.contains("text/html")),
    }
}

/// Decides about a request. Fails only if the store does not answer about a newcomer, or there is
/// no such queue.
pub(crate) async fn decide(
    app: &App,
    room: &Room,
    queue: &QueueId,
    asked: &Asked<'_>,
) -> Result<Decision, Error> {
    if asked.is_preflight() {
        return Ok(Decision::Allow { session: None, cookie: None });
    }
    let carried = cookie::read(asked.headers, queue).or_else(|| bearer(asked.headers));
    // A pass is a JWT; the other things a visitor may carry begin with their own names.
    if let Some(token) = carried.filter(|token| token.starts_with("eyJ")) {
        match room.gate(queue, token).await {
            Ok(inside) => return Ok(allow(queue, &inside, asked)),
            Err(Error::Token(_)) => {}
            Err(error) => return Err(error),
        }
    }
    if let Some((token, clean)) = redirect_token(asked.target)
        && let Some(session) = redeem(room, queue, &token, asked).await?
    {
        let pass = room.issue_pass(&session).await?;
        let cookie = cookie::pass(&session, &pass, asked.now, asked.client.secure).ok();
        return Ok(match asked.is_navigation() {
            true => Decision::Clean { to: clean, cookie },
            false => Decision::Allow { session: Some(session.id), cookie },
        });
    }
    let held = match carried.filter(|token| token.starts_with("wrp1.")) {
        Some(token) => holder(room, queue, token).await?,
        None => None,
    };
    let arrival = match held {
        Some(place) if !place.state.is_over() => room.come_in(place, &asked.visitor()).await?,
        _ if asked.is_nobody() => Arrival::Line,
        _ => match newcomer(app, room, queue, carried, asked).await? {
            Ok(arrival) => arrival,
            Err(error) => return Ok(Decision::Limited { page: asked.page(queue), error }),
        },
    };
    Ok(match arrival {
        Arrival::In { session, pass } => Decision::Allow {
            session: Some(session.id),
            cookie: cookie::pass(&session, &pass, asked.now, asked.client.secure).ok(),
        },
        Arrival::InLine(place) => Decision::Wait {
            page: asked.page(queue),
            cookie: match room.place_token(&place).await {
                Ok(token) => cookie::place(queue, &token, asked.client.secure).ok(),
                Err(_) => None,
            },
            position: Some(place),
            next: room.next_position(queue).await?,
        },
        Arrival::Line => Decision::Wait {
            page: asked.page(queue),
            position: None,
            cookie: None,
            next: room.next_position(queue).await?,
        },
        Arrival::Closed => Decision::Closed { page: asked.page(queue) },
    })
}

fn allow(queue: &QueueId, inside: &Inside, asked: &Asked<'_>) -> Decision {
    let cookie = inside.renewed.as_ref().and_then(|pass| {
        cookie::renewed(queue, pass, inside.hard_until, asked.now, asked.client.secure).ok()
    });
    Decision::Allow { session: Some(inside.pass.session), cookie }
}

/// A pass or a place's token as a bearer token, for programs.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")?;
    Some(value.trim()).filter(|token| token.starts_with("eyJ") || token.starts_with("wrp1."))
}

async fn holder(room: &Room, queue: &QueueId, token: &str) -> Result<Option<Place>, Error> {
    let held = match room.check_place_token(queue, token).await {
        Ok(held) => held,
        Err(Error::Token(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    match room.status(queue, &held.position).await {
        Ok(place) => Ok(Some(place)),
        Err(Error::UnknownPosition) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lets a newcomer in if there is room; `Err` if too many come from the newcomer's network.
///
/// A request that is no person's navigation starts no session unless the queue says so, and takes no
/// position in any case: nobody would be there to wait in it.
async fn newcomer(
    app: &App,
    room: &Room,
    queue: &QueueId,
    carried: Option<&str>,
    asked: &Asked<'_>,
) -> Result<Result<Arrival, Box<ApiError>>, Error> {
    let (visitor, navigates) = (asked.visitor(), asked.is_navigation());
    if !navigates && !room.queue_lately(queue).await?.config.admit_programs {
        return Ok(Ok(Arrival::Line));
    }
    if let Some(arrival) = room.turn_away(queue, &visitor).await? {
        return Ok(Ok(arrival));
    }
    // Counted with those who enqueue, under an id of our own: one from outside could be repeated.
    let id = uuid::Uuid::new_v4().to_string();
    if let Err(error) = limits::join(app, room, &asked.client, &id).await {
        return match error.status() {
            StatusCode::TOO_MANY_REQUESTS => Ok(Err(Box::new(error))),
            _ => Err(Error::Busy),
        };
    }
    let new = NewPlace {
        idempotency_key: carried.and_then(cookie::fresh_key).map(str::to_owned),
        address: visitor.address,
        user_agent: visitor.user_agent.clone(),
        ..NewPlace::default()
    };
    Ok(Ok(match room.arrive(queue, new, &visitor).await? {
        Arrival::InLine(place) if !navigates => {
            room.leave(queue, &place.id).await?;
            Arrival::Line
        }
        arrival => arrival,
    }))
}

/// A visitor comes back from the waiting page on another site: once, and soon.
async fn redeem(
    room: &Room,
    queue: &QueueId,
    token: &str,
    asked: &Asked<'_>,
) -> Result<Option<room::Session>, Error> {
    let held = match room.check_redirect_token(queue, token).await {
        Ok(held) => held,
        Err(Error::Token(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    match room.claim(queue, &held.position, &asked.visitor()).await {
        // Started by somebody before: the address was passed on.
        Ok(room::Claim::Session { session, started: true }) => Ok(Some(session)),
        Ok(_) | Err(Error::UnknownPosition) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The token in an address, and the address without it.
fn redirect_token(target: &str) -> Option<(String, String)> {
    let (path, query) = target.split_once('?')?;
    let is_token =
        |pair: &&str| pair.split_once('=').is_some_and(|(name, _)| name == REDIRECT_TOKEN);
    let (_, token) = query.split('&').find(is_token)?.split_once('=')?;
    let rest: Vec<&str> = query.split('&').filter(|pair| !is_token(pair)).collect();
    let clean = match rest.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{}", rest.join("&")),
    };
    // What a proxy hands on as the address may be anything; only a plain path is gone to.
    let clean = site::checked_path(&clean).unwrap_or_else(|| "/".to_owned());
    Some((token.to_owned(), clean))
}

/// How the proxy wants to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proxy {
    /// 200, 401 (to the waiting page) and 403 (a program: try later) are all it understands.
    Nginx,
    /// 200 lets through, everything else is handed to the visitor as it is.
    Forward,
}

/// What a proxy may ask for in its address.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Wish {
    /// `open` lets newcomers through while the store is away; otherwise they get 503.
    when_down: Option<String>,
}

/// The route a kind of proxy asks at.
fn asked_by(proxy: Proxy) -> MethodRouter<App> {
    get(
        async move |State(app): State<App>,
                    Path(queue): Path<String>,
                    Query(wish): Query<Wish>,
                    client: Client,
                    headers: HeaderMap| {
            answer(&app, &queue, &wish, client, &headers, proxy).await
        },
    )
}

async fn answer(
    app: &App,
    queue: &str,
    wish: &Wish,
    client: Client,
    headers: &HeaderMap,
    proxy: Proxy,
) -> Result<Response, ApiError> {
    let room = crate::room::room(app)?;
    let queue = crate::room::queue_id(queue)?;
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let (method, target) = match proxy {
        Proxy::Nginx => (text("x-original-method"), text("x-original-uri")),
        Proxy::Forward => (text("x-forwarded-method"), text("x-forwarded-uri")),
    };
    let asked = Asked {
        method: method.and_then(|method| method.parse().ok()).unwrap_or(Method::GET),
        target: target.unwrap_or("/"),
        headers,
        client,
        now: app.store().now(),
        // The proxy asks without the body; what it says about one is the visitor's.
        has_body: headers.contains_key(header::TRANSFER_ENCODING)
            || ["content-length", "x-original-content-length"]
                .into_iter()
                .any(|name| text(name).is_some_and(|length| length.trim() != "0")),
    };
    let decision = match decide(app, room, &queue, &asked).await {
        Ok(decision) => decision,
        Err(error) if error.is_unavailable() && wish.when_down.as_deref() == Some("open") => {
            counted("open");
            Decision::Allow { session: None, cookie: None }
        }
        Err(error) => return Err(error.into()),
    };
    let navigates = asked.is_navigation();
    let mut response = match &decision {
        Decision::Allow { .. } => StatusCode::OK.into_response(),
        _ if proxy == Proxy::Nginx && navigates => StatusCode::UNAUTHORIZED.into_response(),
        _ if proxy == Proxy::Nginx => StatusCode::FORBIDDEN.into_response(),
        decision => refusal(&queue, decision, navigates),
    };
    decorate(&mut response, &queue, &decision);
    Ok(response)
}

/// What a visitor gets who is not let through.
pub(crate) fn refusal(queue: &QueueId, decision: &Decision, navigates: bool) -> Response {
    let (error, page) = match decision {
        Decision::Allow { .. } => return StatusCode::OK.into_response(),
        Decision::Clean { to, .. } => return found(to),
        Decision::Wait { page, position, next, .. } => {
            (queued(queue, page, position.as_deref(), next), page)
        }
        Decision::Limited { page, error } => (ApiError::clone(error), page),
        Decision::Closed { page } => {
            let told = "the site takes nobody more at the moment; try again later";
            (ApiError::unavailable("QUEUE_CLOSED", told).retry_after(60), page)
        }
    };
    if navigates { found(page) } else { error.into_response() }
}

/// 429 `QUEUED`: there is a queue, and where to enqueue. With a position, it and the wait.
fn queued(
    queue: &QueueId,
    page: &str,
    position: Option<&Place>,
    (next, next_wait): &(u64, Option<Estimate>),
) -> ApiError {
    let wait = match position {
        Some(place) => place.estimate.as_ref().ok(),
        None => next_wait.as_ref(),
    };
    let told = "a pass is needed here, and there is a queue for it; enqueue, wait for admission, and \
                send the pass as the cookie or as a bearer token";
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "QUEUED", told)
        .details(serde_json::json!({
            "queue": queue.as_str(),
            "position": position.and_then(|place| place.position),
            "next_position": next,
            "estimated_wait_seconds": wait.map(|wait| wait.likely.as_secs()),
            "enqueue": format!("{OWN_PATH}/api/v1/queues/{queue}/enqueue"),
            "waiting_page": page,
        }))
        .retry_after(RETRY_SECONDS)
}

fn found(to: &str) -> Response {
    let mut response = StatusCode::FOUND.into_response();
    if let Ok(to) = HeaderValue::from_str(to) {
        response.headers_mut().insert(header::LOCATION, to);
    }
    response
}

/// The headers every answer of the gate carries.
pub(crate) fn decorate(response: &mut Response, queue: &QueueId, decision: &Decision) {
    let headers = response.headers_mut();
    let mut put = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    put(header::CACHE_CONTROL, "no-store");
    put(header::VARY, "Cookie, Accept");
    put(QUEUE, queue.as_str());
    let (word, cookie) = match decision {
        Decision::Allow { session, cookie } => {
            if let Some(session) = session {
                put(SESSION, &session.to_string());
            }
            ("allow", cookie.as_ref())
        }
        Decision::Clean { to, cookie } => {
            put(LOCATION, to);
            ("wait", cookie.as_ref())
        }
        Decision::Wait { page, position, cookie, .. } => {
            put(LOCATION, page);
            put(header::RETRY_AFTER, &RETRY_SECONDS.to_string());
            if let Some(position) = position.as_ref().and_then(|place| place.position) {
                put(POSITION, &position.to_string());
            }
            ("wait", cookie.as_ref())
        }
        Decision::Limited { page, .. } => {
            put(LOCATION, page);
            ("limit", None)
        }
        Decision::Closed { page } => {
            put(LOCATION, page);
            put(header::RETRY_AFTER, "60");
            ("reject", None)
        }
    };
    put(DECISION, word);
    if let Some(cookie) = cookie {
        headers.insert(header::SET_COOKIE, cookie.clone());
    }
    counted(word);
}

/// Counts a decision.
pub(crate) fn counted(word: &'static str) {
    ::metrics::counter!("tidegate_gate_decisions_total", "decision" => word).increment(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(target: &str, expect: Option<(&str, &str)>) {
        let got = redirect_token(target);
        let got = got.as_ref().map(|(token, clean)| (token.as_str(), clean.as_str()));
        assert_eq!(got, expect, "{target}");
    }

    #[test]
    fn the_token_is_taken_out_of_the_address_and_nothing_else() {
        check("/a?wrtoken=x", Some(("x", "/a")));
        check("/a?b=1&wrtoken=x&c=%26", Some(("x", "/a?b=1&c=%26")));
        check("/a?wrtoken=x&wrtoken=y", Some(("x", "/a")));
        for elsewhere in [
            "//evil.example",
            "/\\evil.example",
            "/\\/evil.example",
            "/%5cevil.example",
            "/%2f%2fevil.example",
            "https://evil.example/x",
            "https:evil.example",
            "evil.example",
            "/a/..//evil.example",
        ] {
            check(&format!("{elsewhere}?wrtoken=x"), Some(("x", "/")));
        }
        check("/a?b=1", None);
        check("/wrtoken=x", None);
        check("/a?xwrtoken=x", None);
    }

    fn asked<'a>(headers: &'a HeaderMap, method: Method, target: &'a str) -> Asked<'a> {
        let client = Client { ip: std::net::Ipv4Addr::LOCALHOST.into(), secure: false };
        Asked { method, target, headers, client, now: Millis(0), has_body: false }
    }

    #[test]
    fn only_a_persons_navigation_is_one() {
        let navigates = |method: Method, pairs: &[(&'static str, &'static str)]| {
            let headers: HeaderMap = pairs
                .iter()
                .map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v)))
                .collect();
            asked(&headers, method, "/").is_navigation()
        };
        assert!(navigates(Method::GET, &[("sec-fetch-mode", "navigate")]));
        assert!(navigates(Method::POST, &[("sec-fetch-mode", "navigate")]));
        assert!(navigates(Method::GET, &[("accept", "text/html,*/*;q=0.8")]));
        assert!(!navigates(Method::GET, &[("sec-fetch-mode", "cors"), ("accept", "text/html")]));
        assert!(navigates(Method::POST, &[("accept", "text/html")]), "a form of an older browser");
        assert!(!navigates(Method::PUT, &[("accept", "text/html")]));
        let picture = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "image")];
        assert!(!navigates(Method::GET, &picture));
        assert!(!navigates(Method::GET, &[("accept", "application/json")]));
        assert!(!navigates(Method::GET, &[]));
    }

    #[test]
    fn the_way_back_is_kept_for_what_can_be_asked_for_again() {
        let queue = QueueId::parse("sale").unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("accept", HeaderValue::from_static("text/html"));
        let page = asked(&headers, Method::GET, "/a b?c=1&d=2").page(&queue);
        assert_eq!(page, "/_wr/sale?return_to=/a%20b%3Fc%3D1%26d%3D2");
        assert_eq!(asked(&headers, Method::POST, "/pay").page(&queue), "/_wr/sale");
        assert_eq!(asked(&headers, Method::GET, "http://x/").page(&queue), "/_wr/sale");
    }
}
