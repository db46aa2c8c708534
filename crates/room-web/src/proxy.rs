//! The built-in reverse proxy (`tidegate room guard`): forwards requests with a valid pass to the site
//! and shows the waiting page to everybody else.
//!
//! Bodies stream both ways and are never buffered whole; an upgraded connection (WebSocket) is
//! tunnelled. `forward_auth.rs` decides who is let through. A session whose download or socket is
//! still open stays in use, and when it ends they end with it, so the limit of active visitors holds for
//! them too.

mod body;
mod error_page;
mod headers;
pub(crate) mod open;
mod origin;
mod rules;
mod target;
mod tunnel;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, Method, StatusCode, Version, header};
use axum::response::Response;
use http_body::Body as _;
use hyper_util::rt::TokioIo;
use room::{QueueId, SessionId};
use tower::ServiceExt;

use self::body::{BodyFault, FilteredBody, SessionWatch, UploadLimit, UploadProgress};
use self::error_page::{Audience, ProxyError};
pub(crate) use self::headers::is_override;
pub use self::origin::OriginServer;
use self::origin::Pool;
pub use self::rules::{Bypass, BypassTokens, OpenPath, QueueRoute};
use self::target::RequestTarget;
use self::tunnel::Traffic;
pub use crate::config::WhenDown;
use crate::forward_auth::{self, Decision, SiteRequest};
use crate::service::RoomState;
use crate::site::OWN_PATH;
use web::client::{Client, Peer};
use web::requests::GUARDED_APP;
use web::serve::ConnectionSlot;
use web::serve::tls::TlsError;

/// Timeout of the store's decision about a newcomer.
const DECISION_TIMEOUT: Duration = Duration::from_secs(2);

/// Options of the proxy.
#[derive(Debug, Clone)]
pub struct GuardOptions {
    /// Queue of the visitors, where no route applies.
    pub queue: QueueId,
    /// Parts of the site with queues of their own.
    pub routes: Vec<QueueRoute>,
    /// The site.
    pub origin: OriginServer,
    /// Certificate authorities that verify a site over https; `None` means the system's.
    pub origin_ca: Option<PathBuf>,
    /// True to forward the visitor's `Host`; otherwise the origin's is sent.
    pub keep_host: bool,
    /// Treatment of newcomers while the store is unavailable.
    pub when_down: WhenDown,
    /// Largest request body; 0 is no limit.
    pub max_body: u64,
    /// Timeout of connecting to the site.
    pub connect_timeout: Duration,
    /// Timeout of the site's response headers once it has the request, and of the next piece of a
    /// visitor's request body.
    pub answer_timeout: Duration,
    /// Idle timeout of a WebSocket, in both directions.
    pub socket_idle_timeout: Duration,
    /// Requests that need no pass.
    pub bypass: Bypass,
}

/// The proxy. A cheap clone.
#[derive(Clone)]
pub struct GuardProxy(Arc<Inner>);

struct Inner {
    state: RoomState,
    own: Router,
    how: GuardOptions,
    pool: Pool,
}

impl fmt::Debug for GuardProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardProxy").field("how", &self.0.how).finish_non_exhaustive()
    }
}

/// Returns the router of a guarded site: our own routes under `/_wr/`, everything else is the site's.
///
/// Fails if the file with certificate authorities has none.
pub fn guard(state: RoomState, how: GuardOptions) -> Result<Router, TlsError> {
    let pool = origin::pool(how.origin_ca.as_deref(), how.connect_timeout)?;
    let own = web::app(state.app.clone());
    let guard = GuardProxy(Arc::new(Inner { state, own, how, pool }));
    Ok(Router::new().fallback(handle).with_state(guard))
}

async fn handle(State(guard): State<GuardProxy>, mut request: Request) -> Response {
    // From here on there is one URL and one host: the site receives exactly those that are checked.
    let (target, host) = match normalise(&mut request) {
        Ok(one) => one,
        Err(trouble) => return trouble.into_response(Audience::of(&request), false),
    };
    let path = target.path();
    if path == OWN_PATH || path.strip_prefix(OWN_PATH).is_some_and(|rest| rest.starts_with('/')) {
        let Ok(response) = guard.0.own.clone().oneshot(request).await;
        return response;
    }
    let app = &guard.0.state.app;
    let mut counted = app.requests().forward(GUARDED_APP, request.method(), path, app.store());
    let method = request.method().clone();
    let mut trace = web::middleware::request_trace(request.headers(), &method, "site");
    counted.set_trace(trace.context());
    let served = guard.site(request, &target, host);
    let (response, is_refused) = match store::trace::scope_if(trace.context(), served).await {
        Ok(response) => (response, false),
        Err(refused) => (*refused, true),
    };
    web::middleware::end_trace(&mut trace, response.status());
    counted.answered(response.status().as_u16(), is_refused);
    response
}

/// Normalises URL and host of a request, in place.
fn normalise(request: &mut Request) -> Result<(RequestTarget, Option<HeaderValue>), ProxyError> {
    if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
        return Err(ProxyError::BadMethod);
    }
    let target = RequestTarget::of(request.uri()).map_err(ProxyError::Refused)?;
    let host = target::host_of(request.headers(), request.uri(), request.version());
    let host = host.map_err(ProxyError::Refused)?;
    *request.uri_mut() = target.to_uri().map_err(ProxyError::Refused)?;
    if let Some(host) = &host {
        request.headers_mut().insert(header::HOST, host.clone());
    }
    Ok((target, host))
}

/// Clearance of a request that may go to the site.
#[derive(Default)]
struct Clearance {
    session: Option<SessionId>,
    cookie: Option<HeaderValue>,
}

/// Context of a forwarded request.
struct ForwardContext<'a> {
    peer: Peer,
    client: Client,
    /// The requested host.
    host: Option<HeaderValue>,
    queue: &'a QueueId,
    session: Option<SessionId>,
    to: Audience,
}

impl GuardProxy {
    /// Returns the response of the site; as an error, that to a request which was turned away.
    async fn site(
        &self,
        request: Request,
        target: &RequestTarget,
        host: Option<HeaderValue>,
    ) -> Result<Response, Box<Response>> {
        let how = &self.0.how;
        let peer = request.extensions().get::<Peer>().copied().unwrap_or_default();
        let settings = self.0.state.app.settings();
        let client = Client::of(peer, request.headers(), &settings);
        let site_request = SiteRequest {
            method: request.method().clone(),
            target: request.uri().path_and_query().map_or("/", PathAndQuery::as_str),
            headers: request.headers(),
            client,
            now: self.0.state.app.store().now(),
            has_body: !request.body().is_end_stream(),
            of_proxy: &[],
        };
        let to = Audience::of(&request);
        if headers::is_guarded(request.headers(), &how.queue) {
            return Err(Box::new(ProxyError::Loop.into_response(to, false)));
        }
        // A request without a host is for the site's own.
        let host = host.or_else(|| how.origin.host());
        let named = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or_default();
        let queue = match rules::route(&how.routes, named, target) {
            Ok(queue) => queue.unwrap_or(&how.queue),
            Err(why) => return Err(Box::new(ProxyError::Refused(why).into_response(to, false))),
        };
        let admitted = match how.bypass.allows(target.path(), client.ip, request.headers()) {
            true => {
                forward_auth::count_decision("bypass");
                Clearance::default()
            }
            false => self.decide(queue, &site_request, to).await?,
        };
        let visit = ForwardContext { peer, client, host, queue, session: admitted.session, to };
        let mut response = self.forward(request, visit).await;
        if let Some(cookie) = admitted.cookie {
            response.headers_mut().append(header::SET_COOKIE, cookie);
        }
        Ok(response)
    }

    async fn decide(
        &self,
        queue: &QueueId,
        site_request: &SiteRequest<'_>,
        to: Audience,
    ) -> Result<Clearance, Box<Response>> {
        let refuse = |trouble: ProxyError| Err(Box::new(trouble.into_response(to, false)));
        let room = &self.0.state.room;
        let decided = tokio::time::timeout(
            DECISION_TIMEOUT,
            forward_auth::decide(&self.0.state, room, queue, site_request),
        )
        .await;
        let decision = match decided {
            Ok(Ok(decision)) => decision,
            Ok(Err(room::Error::UnknownQueue)) => {
                tracing::error!(%queue, "the guard's queue was deleted; create it again");
                return refuse(ProxyError::NoQueue);
            }
            Ok(Err(_)) | Err(_) if self.0.how.when_down == WhenDown::Open => {
                forward_auth::count_decision("open");
                return Ok(Clearance::default());
            }
            Ok(Err(_)) | Err(_) => {
                forward_auth::count_decision("error");
                return refuse(ProxyError::StoreUnavailable);
            }
        };
        match decision {
            Decision::Allow { session, cookie } => {
                forward_auth::count_decision("allow");
                Ok(Clearance { session, cookie })
            }
            decision => {
                let mut response = forward_auth::refusal(queue, &decision, to.navigates);
                if !to.navigates {
                    response = error_page::envelope(response);
                }
                forward_auth::decorate(&mut response, queue, &decision);
                Err(Box::new(response))
            }
        }
    }

    /// Forwards a request to the site and returns the response.
    async fn forward(&self, mut request: Request, visit: ForwardContext<'_>) -> Response {
        let how = &self.0.how;
        let ForwardContext { peer, client, host, queue, session, to } = visit;
        let trouble = |trouble: ProxyError| trouble.into_response(to, session.is_some());
        let most = if how.max_body == 0 { u64::MAX } else { how.max_body };
        if request.body().size_hint().lower() > most {
            return trouble(ProxyError::TooLarge(most));
        }
        let settings = self.0.state.app.settings();
        let upgrade = headers::upgrade_of(&request);
        let slot = request.extensions().get::<ConnectionSlot>().filter(|_| upgrade.is_some());
        // A socket stays open, so it counts for the visitor, whoever's connection it goes through.
        let slot = match slot.cloned().map(|slot| slot.count_client(client.ip, &settings)) {
            Some(None) => return trouble(ProxyError::TooManySockets),
            slot => slot.flatten(),
        };
        let visitor = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
        let (mut parts, body) = request.into_parts();
        headers::to_origin(&mut parts.headers, upgrade.as_ref());
        headers::forwarded(&mut parts.headers, peer, client, host.as_ref(), &settings);
        headers::named(&mut parts.headers, &how.queue, queue, session.as_ref());
        headers::traced(&mut parts.headers);
        let origin_host = how.origin.host();
        if let Some(host) = if how.keep_host { host.or(origin_host) } else { origin_host } {
            parts.headers.insert(header::HOST, host);
        }
        let Some(uri) = how.origin.uri(parts.uri.path_and_query().cloned()) else {
            return trouble(ProxyError::Refused("the address is not valid"));
        };
        let progress = UploadProgress::default();
        let body = match body.is_end_stream() {
            true => Body::empty(),
            false => {
                let limit = UploadLimit::new(most, how.answer_timeout, progress.clone());
                Body::new(FilteredBody::new(body, limit))
            }
        };
        let asks_for_head = parts.method == Method::HEAD;
        let mut onward = Request::new(body);
        *onward.method_mut() = parts.method;
        *onward.uri_mut() = uri;
        *onward.version_mut() = Version::HTTP_11;
        *onward.headers_mut() = parts.headers;
        let answer = progress.within(how.answer_timeout, self.0.pool.request(onward)).await;
        let mut response = match answer {
            Some(Ok(response)) => response.map(Body::new),
            Some(Err(error)) => {
                if let Some(fault) = BodyFault::behind(&error) {
                    return trouble(match fault {
                        BodyFault::TooLarge => ProxyError::TooLarge(most),
                        BodyFault::Stalled => ProxyError::Stalled,
                        BodyFault::Malformed => ProxyError::BadBody,
                    });
                }
                let error = web::error::chain(&error);
                tracing::warn!(origin = %how.origin, %error, "the site does not respond");
                return trouble(ProxyError::OriginDown);
            }
            None => {
                tracing::warn!(origin = %how.origin, "the site takes too long to respond");
                return trouble(ProxyError::OriginSlow);
            }
        };
        let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let origin = switched.then(|| hyper::upgrade::on(&mut response));
        let command = headers::from_origin(response.headers_mut(), switched, &how.origin);
        if let (Some(session), Some(command)) = (session, command) {
            self.run_command(queue, &session, &command).await;
        }
        match (visitor, origin) {
            (Some(visitor), Some(origin)) => {
                let (guard, stopped) = (self.clone(), self.0.state.app.stopped());
                let queue = queue.clone();
                self.0.state.app.tasks().spawn(async move {
                    tokio::select! {
                        () = guard.tunnel(visitor, origin, &queue, session) => {}
                        () = stopped => {}
                    }
                    // The connection slot is held until here.
                    drop(slot);
                });
                response
            }
            (None, Some(_)) => trouble(ProxyError::BadUpgrade),
            _ if asks_for_head && !response.headers().contains_key(header::CONTENT_LENGTH) => {
                response.map(|_| Body::new(body::EmptyBody))
            }
            _ => match session {
                Some(session) if !body::is_short(response.body()) => {
                    let (guard, queue) = (self.clone(), queue.clone());
                    let kept = SessionWatch::new(move || {
                        let (guard, queue) = (guard.clone(), queue.clone());
                        async move {
                            let room = &guard.0.state.room;
                            room.session_in_doubt(&session, body::CHECK_INTERVAL).await;
                            guard.keep_alive(&queue, &session).await
                        }
                    });
                    response.map(|body| Body::new(FilteredBody::new(body, kept)))
                }
                _ => response,
            },
        }
    }

    /// Copies bytes between visitor and site until either side ends, the session ends, or the tunnel is
    /// idle for too long.
    async fn tunnel(
        &self,
        visitor: hyper::upgrade::OnUpgrade,
        origin: hyper::upgrade::OnUpgrade,
        queue: &QueueId,
        session: Option<SessionId>,
    ) {
        let (Ok(visitor), Ok(origin)) = tokio::join!(visitor, origin) else { return };
        let traffic = Traffic::default();
        let mut visitor = tunnel::TunnelEnd::new(TokioIo::new(visitor), &traffic);
        let mut origin = tunnel::TunnelEnd::new(TokioIo::new(origin), &traffic);
        let copied = tokio::io::copy_bidirectional(&mut visitor, &mut origin);
        let over = async {
            let Some(session) = session else { return std::future::pending().await };
            let mut seen = traffic.last();
            loop {
                self.0.state.room.session_in_doubt(&session, body::CHECK_INTERVAL).await;
                // An open socket alone is no activity: its session can expire.
                let moved = traffic.last() > seen;
                seen = traffic.last();
                let lives = match moved {
                    true => self.keep_alive(queue, &session).await,
                    false => self.is_active(queue, &session).await,
                };
                if !lives {
                    return;
                }
            }
        };
        tokio::select! {
            // Either side may disconnect; that is a regular end.
            _ = copied => {}
            () = over => {}
            () = traffic.idle_for(self.0.how.socket_idle_timeout) => {}
        }
    }

    /// Returns true if a session is active. Does not count as activity.
    async fn is_active(&self, queue: &QueueId, session: &SessionId) -> bool {
        let room = &self.0.state.room;
        match room.session(queue, session).await {
            Ok(session) => session.status == room::SessionStatus::Active,
            Err(room::Error::UnknownSession | room::Error::UnknownQueue) => false,
            Err(_) => true,
        }
    }

    /// Records activity of a session that still has an open transfer; returns false once it has ended.
    async fn keep_alive(&self, queue: &QueueId, session: &SessionId) -> bool {
        let room = &self.0.state.room;
        match room.activity(queue, session, 0).await {
            Ok(session) => session.status == room::SessionStatus::Active,
            Err(room::Error::UnknownSession | room::Error::UnknownQueue) => false,
            // The store is unavailable: that is no reason to disconnect.
            Err(_) => true,
        }
    }

    /// Ends the visitor's session if the site site_request for it in a response header.
    async fn run_command(&self, queue: &QueueId, session: &SessionId, command: &str) {
        let room = &self.0.state.room;
        let end = match command {
            "complete" => room::SessionEnd::Complete,
            "revoke" => room::SessionEnd::OriginRevoke,
            other => {
                tracing::warn!(command = other, "the site sent an unknown WR-Command");
                return;
            }
        };
        if let Err(error) = room.end_session(queue, session, end).await {
            tracing::warn!(%session, %error, "cannot end a session as the site site_request");
        }
    }
}
