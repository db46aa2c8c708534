//! The built-in reverse proxy: stands in front of a site, lets through who has a pass, and shows
//! the waiting page to everybody else.
//!
//! Bodies stream both ways and are never held whole; an upgraded connection (WebSocket) is handed
//! through. Who is let through is decided by `gate.rs`. A session whose download or socket is still
//! open stays in use, and when it ends those end with it, so the limit of people inside holds for
//! them too.

mod body;
mod headers;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{HeaderValue, StatusCode, Uri, Version, header};
use axum::response::{IntoResponse, Response};
use http_body::Body as _;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use room::{QueueId, SessionId};
use tower::ServiceExt;

use self::body::{Kept, Metered, Progress, TooLarge};
use crate::app::App;
use crate::client::{Client, Peer};
use crate::error::ApiError;
use crate::gate::{self, Asked, Decision};
use crate::room::site::OWN_PATH;

/// How long a newcomer waits for the store before it counts as away.
const PATIENCE: Duration = Duration::from_secs(2);
/// Idle connections to the site that are kept, and for how long.
const IDLE_CONNECTIONS: usize = 256;
const IDLE: Duration = Duration::from_secs(30);

/// What to do with newcomers while the store is away. Visitors with a pass are let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenDown {
    /// Let them through.
    Open,
    /// Turn them away with 503.
    Closed,
}

/// Where the protected site is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(Authority);

impl Origin {
    /// Reads `http://host:port`.
    pub fn parse(text: &str) -> Result<Origin, String> {
        let wrong = || format!("{text:?} is not an origin like http://127.0.0.1:3000");
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let bare = uri.path_and_query().is_none_or(|path| path.as_str() == "/");
        match (uri.scheme_str(), uri.authority()) {
            (Some("http"), Some(authority)) if bare && !authority.as_str().contains('@') => {
                Ok(Origin(authority.clone()))
            }
            (Some("https"), _) => Err(format!("{text:?}: the site is reached over http only")),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.0)
    }
}

/// How to guard a site.
#[derive(Debug, Clone)]
pub struct Guarding {
    /// The queue visitors wait in.
    pub queue: QueueId,
    /// Where the site is.
    pub origin: Origin,
    /// Send the visitor's `Host` on; otherwise the origin's.
    pub keep_host: bool,
    /// What to do with newcomers while the store is away.
    pub when_down: WhenDown,
    /// Largest request body; 0 is no limit.
    pub max_body: u64,
    /// How long connecting to the site may take.
    pub connect_timeout: Duration,
    /// How long the site may take to answer once it has the request, and a visitor to send the
    /// next piece of one.
    pub answer_timeout: Duration,
    /// Paths that need no pass, each with all below it if it ends with `/`.
    pub open_paths: Vec<String>,
}

/// The proxy. A cheap clone.
#[derive(Clone)]
pub struct Guard(Arc<Inner>);

struct Inner {
    app: App,
    own: Router,
    how: Guarding,
    pool: Pool<HttpConnector, Body>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("how", &self.0.how).finish_non_exhaustive()
    }
}

/// The router of a guarded site: everything of ours under `/_wr/`, everything else is the site's.
pub fn guard(app: App, how: Guarding) -> Router {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(how.connect_timeout));
    let pool = Pool::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .http1_title_case_headers(false)
        .build(connector);
    let own = crate::app(app.clone());
    Router::new().fallback(handle).with_state(Guard(Arc::new(Inner { app, own, how, pool })))
}

async fn handle(State(guard): State<Guard>, request: Request) -> Response {
    let path = request.uri().path();
    if path == OWN_PATH || path.strip_prefix(OWN_PATH).is_some_and(|rest| rest.starts_with('/')) {
        let Ok(response) = guard.0.own.clone().oneshot(request).await;
        return response;
    }
    guard.site(request).await
}

/// A request that may go to the site.
struct Admitted {
    session: Option<SessionId>,
    cookie: Option<HeaderValue>,
}

impl Guard {
    async fn site(&self, request: Request) -> Response {
        let peer = request.extensions().get::<Peer>().copied().unwrap_or_default();
        let settings = self.0.app.settings();
        let client = Client::of(peer, request.headers(), &settings.trusted_proxies);
        let asked = Asked {
            method: request.method().clone(),
            target: request.uri().path_and_query().map_or("/", PathAndQuery::as_str),
            headers: request.headers(),
            client,
            now: self.0.app.store().now(),
        };
        let navigates = asked.is_navigation();
        if headers::is_guarded(request.headers(), &self.0.how.queue) {
            let told = "the guard was asked by itself: its origin is its own address";
            return told_as(StatusCode::LOOP_DETECTED, "LOOP", told, navigates, None);
        }
        let admitted = match self.is_open(request.uri().path()) {
            true => Admitted { session: None, cookie: None },
            false => match self.decide(&asked, navigates).await {
                Ok(admitted) => admitted,
                Err(refused) => return *refused,
            },
        };
        let cookie = admitted.cookie;
        let mut response = self.forward(request, peer, client, admitted.session, navigates).await;
        if let Some(cookie) = cookie {
            response.headers_mut().append(header::SET_COOKIE, cookie);
        }
        response
    }

    fn is_open(&self, path: &str) -> bool {
        // A path that a site might read as another one is not a plain one.
        let plain = !path.contains("..") && !path.contains('%') && !path.contains("//");
        plain
            && self.0.how.open_paths.iter().any(|open| match open.ends_with('/') {
                true => path.starts_with(open.as_str()),
                false => path == open,
            })
    }

    async fn decide(&self, asked: &Asked<'_>, navigates: bool) -> Result<Admitted, Box<Response>> {
        let how = &self.0.how;
        let Ok(room) = crate::room::room(&self.0.app) else {
            let told = "the waiting room does not run here";
            return Err(Box::new(unavailable("SERVICE_OFF", told, navigates)));
        };
        let decided = tokio::time::timeout(PATIENCE, gate::decide(room, &how.queue, asked)).await;
        let decision = match decided {
            Ok(Ok(decision)) => decision,
            Ok(Err(room::Error::UnknownQueue)) => {
                tracing::error!(queue = %how.queue, "the guard's queue is gone; make it again");
                let told = "the waiting room of this site is not there";
                return Err(Box::new(unavailable("QUEUE_NOT_FOUND", told, navigates)));
            }
            Ok(Err(_)) | Err(_) if how.when_down == WhenDown::Open => {
                gate::counted("open");
                return Ok(Admitted { session: None, cookie: None });
            }
            Ok(Err(_)) | Err(_) => {
                gate::counted("error");
                let told = "the site cannot let anybody new in just now; try again in a moment";
                return Err(Box::new(unavailable("STORE_UNAVAILABLE", told, navigates)));
            }
        };
        match decision {
            Decision::Allow { session, cookie } => {
                gate::counted("allow");
                Ok(Admitted { session, cookie })
            }
            decision => {
                let mut response = match navigates {
                    true => gate::refusal(&decision, true),
                    false => rendered(gate::refusal(&decision, false), false),
                };
                gate::decorate(&mut response, &how.queue, &decision);
                Err(Box::new(response))
            }
        }
    }

    /// Hands a request to the site and its answer back.
    async fn forward(
        &self,
        mut request: Request,
        peer: Peer,
        client: Client,
        session: Option<SessionId>,
        navigates: bool,
    ) -> Response {
        let how = &self.0.how;
        let most = if how.max_body == 0 { u64::MAX } else { how.max_body };
        if request.body().size_hint().lower() > most {
            return too_large(most, navigates);
        }
        let trusted =
            self.0.app.settings().trusted_proxies.iter().any(|n| n.contains(&peer.addr.ip()));
        let upgrade = headers::upgrade_of(&request);
        let visitor = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
        let (mut parts, body) = request.into_parts();
        let host = headers::host_of(&parts);
        headers::to_origin(&mut parts.headers, upgrade.as_ref());
        headers::forwarded(&mut parts.headers, peer, client, host.as_ref(), trusted);
        headers::named(&mut parts.headers, &how.queue, session.as_ref());
        let origin_host = HeaderValue::from_str(how.origin.0.as_str()).ok();
        if let Some(host) = if how.keep_host { host.or(origin_host) } else { origin_host } {
            parts.headers.insert(header::HOST, host);
        }
        let path = parts.uri.path_and_query().cloned();
        let mut uri = Uri::builder().scheme(Scheme::HTTP).authority(how.origin.0.clone());
        uri = uri.path_and_query(path.unwrap_or(PathAndQuery::from_static("/")));
        let Ok(uri) = uri.build() else {
            return told_as(
                StatusCode::BAD_REQUEST,
                "INVALID_REQUEST",
                "no such address",
                navigates,
                None,
            );
        };
        let progress = Progress::default();
        let body = match body.is_end_stream() {
            true => Body::empty(),
            false => Body::new(Metered::new(body, most, how.answer_timeout, progress.clone())),
        };
        let mut onward = Request::new(body);
        *onward.method_mut() = parts.method;
        *onward.uri_mut() = uri;
        *onward.version_mut() = Version::HTTP_11;
        *onward.headers_mut() = parts.headers;
        let answer = progress.within(how.answer_timeout, self.0.pool.request(onward)).await;
        let mut response = match answer {
            Some(Ok(response)) => response.map(Body::new),
            Some(Err(error)) if TooLarge::caused(&error) => return too_large(most, navigates),
            Some(Err(error)) => {
                tracing::warn!(origin = %how.origin, error = %crate::guard::chain(&error), "the site does not answer");
                let told = "the site behind this address does not answer; try again in a moment";
                return told_as(StatusCode::BAD_GATEWAY, "ORIGIN_DOWN", told, navigates, Some(5));
            }
            None => {
                tracing::warn!(origin = %how.origin, "the site takes too long to answer");
                let told = "the site behind this address takes too long to answer";
                return told_as(
                    StatusCode::GATEWAY_TIMEOUT,
                    "ORIGIN_SLOW",
                    told,
                    navigates,
                    Some(10),
                );
            }
        };
        let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let origin = switched.then(|| hyper::upgrade::on(&mut response));
        let command = headers::from_origin(response.headers_mut(), switched);
        if let (Some(session), Some(command)) = (session, command) {
            self.obey(&session, &command).await;
        }
        match (visitor, origin) {
            (Some(visitor), Some(origin)) => {
                let (guard, stopped) = (self.clone(), self.0.app.stopped());
                tokio::spawn(async move {
                    tokio::select! {
                        () = guard.tunnel(visitor, origin, session) => {}
                        () = stopped => {}
                    }
                });
                response
            }
            (None, Some(_)) => {
                let told = "the site changed the protocol without being asked";
                told_as(StatusCode::BAD_GATEWAY, "ORIGIN_DOWN", told, navigates, None)
            }
            _ => match session {
                Some(session) if !body::is_short(response.body()) => {
                    let guard = self.clone();
                    response.map(|body| {
                        Body::new(Kept::new(body, move || {
                            let guard = guard.clone();
                            async move { guard.lives(&session).await }
                        }))
                    })
                }
                _ => response,
            },
        }
    }

    /// Passes bytes between visitor and site until either ends, or the session does.
    async fn tunnel(
        &self,
        visitor: hyper::upgrade::OnUpgrade,
        origin: hyper::upgrade::OnUpgrade,
        session: Option<SessionId>,
    ) {
        let (Ok(visitor), Ok(origin)) = tokio::join!(visitor, origin) else { return };
        let (mut visitor, mut origin) = (TokioIo::new(visitor), TokioIo::new(origin));
        let copied = tokio::io::copy_bidirectional(&mut visitor, &mut origin);
        let over = async {
            let Some(session) = session else { return std::future::pending().await };
            loop {
                tokio::time::sleep(body::LOOK_EVERY).await;
                if !self.lives(&session).await {
                    return;
                }
            }
        };
        tokio::select! {
            // Either side may break off; that is an end like any other.
            _ = copied => {}
            () = over => {}
        }
    }

    /// Something of the session is still open: it is in use, unless it is over.
    async fn lives(&self, session: &SessionId) -> bool {
        let Ok(room) = crate::room::room(&self.0.app) else { return true };
        match room.activity(&self.0.how.queue, session, 0).await {
            Ok(session) => session.status == room::SessionStatus::Active,
            Err(room::Error::UnknownSession | room::Error::UnknownQueue) => false,
            // The store is away: nobody is thrown out for that.
            Err(_) => true,
        }
    }

    /// The site may end the visitor's session with a header of its answer.
    async fn obey(&self, session: &SessionId, command: &str) {
        let Ok(room) = crate::room::room(&self.0.app) else { return };
        let end = match command {
            "complete" => room::End::Complete,
            "revoke" => room::End::OriginRevoke,
            other => {
                tracing::warn!(command = other, "the site sent a WR-Command nobody knows");
                return;
            }
        };
        if let Err(error) = room.end_session(&self.0.how.queue, session, end).await {
            tracing::warn!(%session, %error, "a session the site is done with goes on");
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

fn too_large(most: u64, navigates: bool) -> Response {
    let told = format!("the request is larger than {most} bytes");
    told_as(StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", &told, navigates, None)
}

fn unavailable(code: &'static str, message: &str, navigates: bool) -> Response {
    told_as(StatusCode::SERVICE_UNAVAILABLE, code, message, navigates, Some(10))
}

/// An answer of the guard's own, not the site's.
fn told_as(
    status: StatusCode,
    code: &'static str,
    message: &str,
    navigates: bool,
    retry_after: Option<u64>,
) -> Response {
    let mut error = ApiError::new(status, code, message);
    if let Some(seconds) = retry_after {
        error = error.retry_after(seconds);
    }
    rendered(error.into_response(), navigates)
}

/// Writes the body of an error: a page for people, the usual envelope for programs.
fn rendered(mut response: Response, navigates: bool) -> Response {
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    let id = uuid::Uuid::now_v7().simple().to_string();
    let (kind, text) = match navigates {
        true => ("text/html; charset=utf-8", page(&error)),
        false => {
            let json = serde_json::to_string(&error.body(&id));
            ("application/json", json.unwrap_or_else(|_| "{}".to_owned()))
        }
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if navigates {
        // The style is in the page, and nothing else is.
        let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    }
    *response.body_mut() = Body::from(text);
    response
}

fn page(error: &ApiError) -> String {
    let status = error.status();
    let reason = status.canonical_reason().unwrap_or("Error");
    let style = "body{font:1.1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:15vh auto 0;\
        padding:0 1.2rem;color-scheme:light dark}h1{font-size:1.4rem}small{opacity:.7}";
    maud::html! {
        (maud::DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width,initial-scale=1";
                meta name="robots" content="noindex";
                title { (reason) }
                style { (style) }
            }
            body {
                main {
                    h1 { (reason) }
                    p { (sentence(error.message())) }
                    p { small { (status.as_u16()) " " (error.code()) } }
                }
            }
        }
    }
    .into_string()
}

/// A message as a sentence of its own.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_scheme_and_host() {
        for good in ["http://127.0.0.1:3000", "http://shop/", "http://[::1]:80"] {
            assert!(Origin::parse(good).is_ok(), "{good}");
        }
        for bad in
            ["", "127.0.0.1:3000", "http://", "http://a/b", "http://u:p@a", "ftp://a", "https://a"]
        {
            assert!(Origin::parse(bad).is_err(), "{bad}");
        }
    }
}
