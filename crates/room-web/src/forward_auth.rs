//! Forward auth: a proxy in front of a site asks here with every request whether to let it through.
//!
//! [`decide`] is the decision, the same for every kind of proxy and for our own (`proxy.rs`); the routes
//! below serve nginx (`auth_request`), Caddy (`forward_auth`) and Traefik (`ForwardAuth`). A visitor
//! with a valid pass costs no round trip to the store. For a visitor without one a session starts at
//! once if a slot is free and nobody waits, else the visitor is sent to the waiting page; only a
//! person's navigation is ever enqueued.

use axum::Router;
use axum::extract::State;
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use room::{
    ActivePass, Arrival, Error, Estimate, NewPosition, Position, QueueId, Room, SessionId, Visitor,
};
use serde::Deserialize;
use store::Millis;

use crate::error::RoomApiError;
use crate::proxy::is_override;
use crate::service::RoomState;
use crate::site::{self, OWN_PATH};
use crate::{cookie, limits};
use web::ApiError;
use web::Routes;
use web::client::Client;
use web::extract::{Path, Query};
use web::middleware;

/// The query parameter of a visitor who comes from a waiting page on another site.
const REDIRECT_TOKEN: &str = "wrtoken";
/// `Retry-After` of a request that is not a navigation, in seconds.
const RETRY_SECONDS: u64 = 10;

pub(crate) const DECISION: HeaderName = HeaderName::from_static("x-wr-decision");
pub(crate) const QUEUE: HeaderName = HeaderName::from_static("x-wr-queue");
pub(crate) const SESSION: HeaderName = HeaderName::from_static("x-wr-session");
const POSITION: HeaderName = HeaderName::from_static("x-wr-position");
const LOCATION: HeaderName = HeaderName::from_static("x-wr-location");
/// The error body for a program that has to wait, where the proxy cannot forward ours.
const ERROR: HeaderName = HeaderName::from_static("x-wr-error");

/// The routes.
pub(crate) fn routes() -> Routes<RoomState> {
    let router = Router::new()
        .route("/gate/nginx/{queue}", route_of(Proxy::Nginx))
        .route("/gate/forward/{queue}", route_of(Proxy::Forward));
    Routes { public: router.into(), ..Routes::default() }
}

/// The request a visitor made to the site.
#[derive(Debug)]
pub(crate) struct SiteRequest<'a> {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: &'a str,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) client: Client,
    pub(crate) now: Millis,
    /// Something follows the head.
    pub(crate) has_body: bool,
    /// Headers by which the proxy that asks describes the request.
    pub(crate) of_proxy: &'static [&'static str],
}

/// Decision about a request.
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
    /// The visitor has to wait.
    Wait {
        /// The waiting page.
        page: String,
        /// The visitor's position, if there is one.
        position: Option<Box<Position>>,
        /// The position a newcomer would get, and its wait.
        next: (u64, Option<Estimate>),
        /// To be set in the visitor's browser.
        cookie: Option<HeaderValue>,
    },
    /// Too many visitors came from the same network.
    Limited {
        /// The waiting page, which says so.
        page: String,
        /// The error for a program.
        error: Box<ApiError>,
    },
    /// The queue is full or closed.
    Closed {
        /// The waiting page, which says so.
        page: String,
    },
}

impl SiteRequest<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns true for a person's navigation; only that may be shown a page or redirected.
    pub(crate) fn is_navigation(&self) -> bool {
        is_navigation(&self.method, self.headers)
    }

    /// Returns true for a prefetch or a `HEAD`: no person is there.
    fn is_speculative(&self) -> bool {
        self.method == Method::HEAD
            || ["sec-purpose", "purpose", "x-moz"]
                .into_iter()
                .any(|name| self.text(name).is_some_and(|value| value.contains("prefetch")))
    }

    /// Returns true for a CORS preflight request, which has no cookies and no body. One with a header
    /// that overrides method or URL does not come from a browser.
    fn is_preflight(&self) -> bool {
        self.method == Method::OPTIONS
            && !self.has_body
            && !self.headers.keys().any(|name| self.is_override(name))
            && self.text("origin").is_some()
            && self.text("access-control-request-method").is_some()
    }

    /// Returns true if this header could make the site read the request as another one than is checked.
    /// Headers by which the proxy describes the request are exempt.
    fn is_override(&self, name: &HeaderName) -> bool {
        !self.of_proxy.contains(&name.as_str()) && is_override(name)
    }

    fn visitor(&self) -> Visitor {
        Visitor {
            user_id: String::new(),
            address: Some(self.client.ip),
            user_agent: self.text("user-agent").unwrap_or_default().to_owned(),
        }
    }

    /// Returns the URL of the waiting page, with `return_to`. A POST cannot be repeated from there, so such
    /// a visitor continues to the queue's target.
    fn page(&self, queue: &QueueId) -> String {
        let back = matches!(self.method, Method::GET | Method::HEAD) && self.is_navigation();
        match back && self.target.starts_with('/') {
            true => format!("{OWN_PATH}/{queue}?return_to={}", middleware::percent(self.target)),
            false => format!("{OWN_PATH}/{queue}"),
        }
    }
}

/// Returns true if a request is a person's navigation. Browsers say so (`Sec-Fetch-Mode`,
/// `Sec-Fetch-Dest`); for older ones, a GET or a form that accepts HTML counts as one.
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

/// Decides about a request. Fails only if the store does not answer about a newcomer, or the queue does
/// not exist.
pub(crate) async fn decide(
    state: &RoomState,
    room: &Room,
    queue: &QueueId,
    request: &SiteRequest<'_>,
) -> Result<Decision, Error> {
    if request.is_preflight() {
        return Ok(Decision::Allow { session: None, cookie: None });
    }
    let carried = cookie::read(request.headers, queue).or_else(|| bearer(request.headers));
    // A pass is a JWT; the other credentials have prefixes of their own.
    if let Some(token) = carried.filter(|token| token.starts_with("eyJ")) {
        match room.verify_pass(queue, token).await {
            Ok(inside) => return Ok(allow(queue, &inside, request)),
            Err(Error::Token(_)) => {}
            Err(error) => return Err(error),
        }
    }
    if let Some((token, clean)) = redirect_token(request.target)
        && let Some(session) = redeem(room, queue, &token, request).await?
    {
        let pass = room.issue_pass(&session).await?;
        let cookie = cookie::pass(&session, &pass, request.now, request.client.secure).ok();
        return Ok(match request.is_navigation() {
            true => Decision::Clean { to: clean, cookie },
            false => Decision::Allow { session: Some(session.id), cookie },
        });
    }
    let held = match carried.filter(|token| token.starts_with("wrp1.")) {
        Some(token) => holder(room, queue, token).await?,
        None => None,
    };
    let arrival = match held {
        Some(position) if !position.state.is_over() => {
            room.arrive_with_position(position, &request.visitor()).await?
        }
        _ if request.is_speculative() => Arrival::MustWait,
        _ => match newcomer(state, room, queue, carried, request).await? {
            Ok(arrival) => arrival,
            Err(error) => return Ok(Decision::Limited { page: request.page(queue), error }),
        },
    };
    Ok(match arrival {
        Arrival::Started { session, pass } => Decision::Allow {
            session: Some(session.id),
            cookie: cookie::pass(&session, &pass, request.now, request.client.secure).ok(),
        },
        Arrival::Waiting(position) => Decision::Wait {
            page: request.page(queue),
            cookie: match room.position_token(&position).await {
                Ok(token) => cookie::position(queue, &token, request.client.secure).ok(),
                Err(_) => None,
            },
            position: Some(position),
            next: room.next_position(queue).await?,
        },
        Arrival::MustWait => Decision::Wait {
            page: request.page(queue),
            position: None,
            cookie: None,
            next: room.next_position(queue).await?,
        },
        Arrival::Closed => Decision::Closed { page: request.page(queue) },
    })
}

fn allow(queue: &QueueId, inside: &ActivePass, request: &SiteRequest<'_>) -> Decision {
    let cookie = inside.renewed.as_ref().and_then(|pass| {
        cookie::renewed(queue, pass, inside.hard_until, request.now, request.client.secure).ok()
    });
    Decision::Allow { session: Some(inside.pass.session), cookie }
}

/// Returns a pass or a position's token sent as a bearer token, for programs.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")?;
    Some(value.trim()).filter(|token| token.starts_with("eyJ") || token.starts_with("wrp1."))
}

async fn holder(room: &Room, queue: &QueueId, token: &str) -> Result<Option<Position>, Error> {
    let held = match room.check_position_token(queue, token).await {
        Ok(held) => held,
        Err(Error::Token(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    match room.status(queue, &held.position).await {
        Ok(position) => Ok(Some(position)),
        Err(Error::UnknownPosition) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Starts a session for a newcomer if a slot is free; `Err` if the newcomer's network is rate limited.
///
/// A request that is not a person's navigation starts no session unless the queue allows it, and is
/// never enqueued: nobody would be there to wait.
async fn newcomer(
    state: &RoomState,
    room: &Room,
    queue: &QueueId,
    carried: Option<&str>,
    request: &SiteRequest<'_>,
) -> Result<Result<Arrival, Box<ApiError>>, Error> {
    let (visitor, navigates) = (request.visitor(), request.is_navigation());
    if !navigates && !room.cached_queue(queue).await?.config.admit_programs {
        return Ok(Ok(Arrival::MustWait));
    }
    if let Some(arrival) = room.turn_away(queue, &visitor).await? {
        return Ok(Ok(arrival));
    }
    // Counted with enqueues, under an id of our own: one from outside could be repeated.
    let id = uuid::Uuid::new_v4().to_string();
    if let Err(error) = limits::charge_enqueue(state, room, &request.client, &id).await {
        let error = ApiError::from(error);
        return match error.status() {
            StatusCode::TOO_MANY_REQUESTS => Ok(Err(Box::new(error))),
            _ => Err(Error::Busy),
        };
    }
    let new = NewPosition {
        idempotency_key: carried.and_then(cookie::fresh_key).map(str::to_owned),
        address: visitor.address,
        user_agent: visitor.user_agent.clone(),
        ..NewPosition::default()
    };
    Ok(Ok(match room.arrive(queue, new, &visitor).await? {
        Arrival::Waiting(position) if !navigates => {
            room.leave(queue, &position.id).await?;
            Arrival::MustWait
        }
        arrival => arrival,
    }))
}

/// Redeems the redirect token of a visitor who comes from the waiting page on another site.
async fn redeem(
    room: &Room,
    queue: &QueueId,
    token: &str,
    request: &SiteRequest<'_>,
) -> Result<Option<room::VisitorSession>, Error> {
    let held = match room.check_redirect_token(queue, token).await {
        Ok(held) => held,
        Err(Error::Token(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    match room.start_session(queue, &held.position, &request.visitor()).await {
        // Already started: the URL was shared.
        Ok(room::SessionStart::Active { session, started: true }) => Ok(Some(session)),
        Ok(_) | Err(Error::UnknownPosition) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the redirect token of a URL, and the URL without it.
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
    // The URL reported by a proxy is untrusted; only a plain path is a redirect destination.
    let clean = site::checked_path(&clean).unwrap_or_else(|| "/".to_owned());
    Some((token.to_owned(), clean))
}

/// Dialect of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proxy {
    /// `auth_request`: 200, 401 (redirect to the waiting page) or 403 (a program: try later).
    Nginx,
    /// 200 lets through, any other response is forwarded to the visitor.
    Forward,
}

impl Proxy {
    /// Returns the headers that carry method and URL of the request.
    fn headers(self) -> &'static [&'static str; 2] {
        match self {
            Proxy::Nginx => &["x-original-method", "x-original-uri"],
            Proxy::Forward => &["x-forwarded-method", "x-forwarded-uri"],
        }
    }
}

/// Query parameters of a proxy's request.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ForwardAuthQuery {
    /// `open` lets newcomers through while the store is unavailable; otherwise they get 503.
    when_down: Option<String>,
}

/// Returns the route of a kind of proxy.
fn route_of(proxy: Proxy) -> MethodRouter<RoomState> {
    get(
        async move |State(state): State<RoomState>,
                    Path(queue): Path<String>,
                    Query(query): Query<ForwardAuthQuery>,
                    client: Client,
                    extensions: Extensions,
                    headers: HeaderMap| {
            let id = middleware::request_id(&extensions);
            answer(&state, &queue, &query, client, (&headers, &id), proxy).await
        },
    )
}

async fn answer(
    state: &RoomState,
    queue: &str,
    query: &ForwardAuthQuery,
    client: Client,
    (headers, request_id): (&HeaderMap, &str),
    proxy: Proxy,
) -> Result<Response, RoomApiError> {
    let room = &state.room;
    let queue = crate::api::queue_id(queue)?;
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let of_proxy = proxy.headers();
    let [method, target, ..] = of_proxy.map(text);
    let request = SiteRequest {
        method: method.and_then(|method| method.parse().ok()).unwrap_or(Method::GET),
        target: target.unwrap_or("/"),
        headers,
        client,
        now: state.app.store().now(),
        // The proxy asks without the body; what it says about one is the visitor's.
        has_body: headers.contains_key(header::TRANSFER_ENCODING)
            || text("x-original-transfer-encoding").is_some_and(|coding| !coding.is_empty())
            || ["content-length", "x-original-content-length"]
                .into_iter()
                .any(|name| text(name).is_some_and(|length| !matches!(length.trim(), "" | "0"))),
        of_proxy,
    };
    let decision = match decide(state, room, &queue, &request).await {
        Ok(decision) => decision,
        Err(error) if error.is_unavailable() && query.when_down.as_deref() == Some("open") => {
            count_decision("open");
            Decision::Allow { session: None, cookie: None }
        }
        Err(error) => return Err(error.into()),
    };
    let navigates = request.is_navigation();
    let mut response = match &decision {
        Decision::Allow { .. } => StatusCode::OK.into_response(),
        _ if proxy == Proxy::Nginx && navigates => StatusCode::UNAUTHORIZED.into_response(),
        decision if proxy == Proxy::Nginx => forbidden(&queue, decision, request_id),
        decision => refusal(&queue, decision, navigates),
    };
    decorate(&mut response, &queue, &decision);
    Ok(response)
}

/// Returns the response for a visitor who is not let through.
pub(crate) fn refusal(queue: &QueueId, decision: &Decision, navigates: bool) -> Response {
    match (decision, error_of(queue, decision)) {
        (Decision::Clean { to, .. }, _) => found(to),
        (_, Some((_, page))) if navigates => found(page),
        (_, Some((error, _))) => error.into_response(),
        (_, None) => StatusCode::OK.into_response(),
    }
}

/// Returns 403 for nginx, which forwards no body of a subrequest: the error body is in a header.
fn forbidden(queue: &QueueId, decision: &Decision, request_id: &str) -> Response {
    let mut response = StatusCode::FORBIDDEN.into_response();
    let body = error_of(queue, decision)
        .and_then(|(error, _)| serde_json::to_string(&error.body(request_id)).ok())
        .and_then(|body| HeaderValue::from_str(&body).ok());
    if let Some(body) = body {
        response.headers_mut().insert(ERROR, body);
    }
    response
}

/// Returns the error for a program, and the waiting page for a person.
fn error_of<'d>(queue: &QueueId, decision: &'d Decision) -> Option<(ApiError, &'d str)> {
    match decision {
        Decision::Allow { .. } | Decision::Clean { .. } => None,
        Decision::Wait { page, position, next, .. } => {
            Some((queued(queue, page, position.as_deref(), next), page))
        }
        Decision::Limited { page, error } => Some((ApiError::clone(error), page)),
        Decision::Closed { page } => {
            let message = "the queue is full or closed; try again later";
            Some((ApiError::unavailable("QUEUE_CLOSED", message).retry_after(60), page))
        }
    }
}

/// Returns 429 `QUEUED`, with the URL to enqueue at; with a position, its number and the wait.
fn queued(
    queue: &QueueId,
    page: &str,
    position: Option<&Position>,
    (next, next_wait): &(u64, Option<Estimate>),
) -> ApiError {
    let wait = match position {
        Some(position) => position.estimate.as_ref().ok(),
        None => next_wait.as_ref(),
    };
    let message = "a pass is required, and there is a queue for it; enqueue, wait for admission, \
                   start a session, and send the pass as the cookie or as a bearer token";
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "QUEUED", message)
        .details(serde_json::json!({
            "queue": queue.as_str(),
            "position": position.and_then(|position| position.number),
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

/// Adds the headers of a decision to a response.
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
            if let Some(position) = position.as_ref().and_then(|position| position.number) {
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
    count_decision(word);
}

/// Counts a decision in the metrics.
pub(crate) fn count_decision(word: &'static str) {
    ::metrics::counter!("tidegate_room_gate_decisions_total", "decision" => word).increment(1);
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

    fn request<'a>(headers: &'a HeaderMap, method: Method, target: &'a str) -> SiteRequest<'a> {
        let client = Client { ip: std::net::Ipv4Addr::LOCALHOST.into(), secure: false };
        SiteRequest {
            method,
            target,
            headers,
            client,
            now: Millis(0),
            has_body: false,
            of_proxy: &[],
        }
    }

    #[test]
    fn only_a_persons_navigation_is_one() {
        let navigates = |method: Method, pairs: &[(&'static str, &'static str)]| {
            let headers: HeaderMap = pairs
                .iter()
                .map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v)))
                .collect();
            request(&headers, method, "/").is_navigation()
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
        let page = request(&headers, Method::GET, "/a b?c=1&d=2").page(&queue);
        assert_eq!(page, "/_wr/sale?return_to=/a%20b%3Fc%3D1%26d%3D2");
        assert_eq!(request(&headers, Method::POST, "/pay").page(&queue), "/_wr/sale");
        assert_eq!(request(&headers, Method::GET, "http://x/").page(&queue), "/_wr/sale");
    }
}
