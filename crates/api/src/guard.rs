//! The built-in reverse proxy: stands in front of a site, lets through who has a pass, and shows
//! the waiting page to everybody else.
//!
//! Bodies stream both ways and are never held whole; an upgraded connection (WebSocket) is handed
//! through. Who is let through is decided by `gate.rs`. A session whose download or socket is still
//! open stays in use, and when it ends those end with it, so the limit of people inside holds for
//! them too.

mod body;
mod headers;
mod origin;
mod rules;
mod target;
mod told;
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

use self::body::{BodyFault, Kept, Metered, Progress, Watched};
pub use self::origin::Origin;
use self::origin::Pool;
pub use self::rules::{Bypass, OpenPath, Route, Tokens};
use self::target::Target;
use self::told::{Listener, Trouble};
use self::tunnel::Traffic;
use crate::app::App;
use crate::client::{Client, Peer};
use crate::gate::{self, Asked, Decision};
use crate::room::site::OWN_PATH;
use crate::serve::ConnectionSlot;
use crate::serve::tls::TlsError;

/// How long a newcomer waits for the store before it counts as away.
const PATIENCE: Duration = Duration::from_secs(2);

/// What to do with newcomers while the store is away. Visitors with a pass are let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenDown {
    /// Let them through.
    Open,
    /// Turn them away with 503.
    Closed,
}

/// How to guard a site.
#[derive(Debug, Clone)]
pub struct Guarding {
    /// The queue visitors wait in, where no route says otherwise.
    pub queue: QueueId,
    /// Parts of the site with queues of their own.
    pub routes: Vec<Route>,
    /// Where the site is.
    pub origin: Origin,
    /// Whose word counts about the certificate of a site over https; none means the system's.
    pub origin_ca: Option<PathBuf>,
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
    /// A WebSocket ends after this long without a byte in either direction.
    pub socket_idle_timeout: Duration,
    /// Who needs no pass.
    pub bypass: Bypass,
}

/// The proxy. A cheap clone.
#[derive(Clone)]
pub struct Guard(Arc<Inner>);

struct Inner {
    app: App,
    own: Router,
    how: Guarding,
    pool: Pool,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("how", &self.0.how).finish_non_exhaustive()
    }
}

/// The router of a guarded site: everything of ours under `/_wr/`, everything else is the site's.
///
/// Fails if there are no certificates in the file the site's is to be checked with.
pub fn guard(app: App, how: Guarding) -> Result<Router, TlsError> {
    let pool = origin::pool(how.origin_ca.as_deref(), how.connect_timeout)?;
    let own = crate::app(app.clone());
    let guard = Guard(Arc::new(Inner { app, own, how, pool }));
    Ok(Router::new().fallback(handle).with_state(guard))
}

async fn handle(State(guard): State<Guard>, mut request: Request) -> Response {
    // From here on there is one address and one host: those that are judged are those the site gets.
    let (target, host) = match normalise(&mut request) {
        Ok(one) => one,
        Err(trouble) => return trouble.told(Listener::of(&request), false),
    };
    let path = target.path();
    if path == OWN_PATH || path.strip_prefix(OWN_PATH).is_some_and(|rest| rest.starts_with('/')) {
        let Ok(response) = guard.0.own.clone().oneshot(request).await;
        return response;
    }
    guard.site(request, &target, host).await
}

/// Brings address and host of a request to their normalised form, in the request too.
fn normalise(request: &mut Request) -> Result<(Target, Option<HeaderValue>), Trouble> {
    if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
        return Err(Trouble::BadMethod);
    }
    let target = Target::of(request.uri()).map_err(Trouble::Refused)?;
    let host = target::host_of(request.headers(), request.uri(), request.version());
    let host = host.map_err(Trouble::Refused)?;
    *request.uri_mut() = target.to_uri().map_err(Trouble::Refused)?;
    if let Some(host) = &host {
        request.headers_mut().insert(header::HOST, host.clone());
    }
    Ok((target, host))
}

/// A request that may go to the site.
#[derive(Default)]
struct Admitted {
    session: Option<SessionId>,
    cookie: Option<HeaderValue>,
}

/// Who asks, and for what.
struct Visit<'a> {
    peer: Peer,
    client: Client,
    /// The host that was asked for.
    host: Option<HeaderValue>,
    queue: &'a QueueId,
    session: Option<SessionId>,
    to: Listener,
}

impl Guard {
    async fn site(&self, request: Request, target: &Target, host: Option<HeaderValue>) -> Response {
        let how = &self.0.how;
        let peer = request.extensions().get::<Peer>().copied().unwrap_or_default();
        let settings = self.0.app.settings();
        let client = Client::of(peer, request.headers(), &settings);
        let asked = Asked {
            method: request.method().clone(),
            target: request.uri().path_and_query().map_or("/", PathAndQuery::as_str),
            headers: request.headers(),
            client,
            now: self.0.app.store().now(),
            has_body: !request.body().is_end_stream(),
        };
        let to = Listener::of(&request);
        if headers::is_guarded(request.headers(), &how.queue) {
            return Trouble::Loop.told(to, false);
        }
        // A request without a host is for the site's own.
        let host = host.or_else(|| how.origin.host());
        let named = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or_default();
        let queue = match rules::route(&how.routes, named, target) {
            Ok(queue) => queue.unwrap_or(&how.queue),
            Err(why) => return Trouble::Refused(why).told(to, false),
        };
        let admitted = match how.bypass.allows(target.path(), client.ip, request.headers()) {
            true => {
                gate::counted("bypass");
                Admitted::default()
            }
            false => match self.decide(queue, &asked, to).await {
                Ok(admitted) => admitted,
                Err(refused) => return *refused,
            },
        };
        let visit = Visit { peer, client, host, queue, session: admitted.session, to };
        let mut response = self.forward(request, visit).await;
        if let Some(cookie) = admitted.cookie {
            response.headers_mut().append(header::SET_COOKIE, cookie);
        }
        response
    }

    async fn decide(
        &self,
        queue: &QueueId,
        asked: &Asked<'_>,
        to: Listener,
    ) -> Result<Admitted, Box<Response>> {
        let refuse = |trouble: Trouble| Err(Box::new(trouble.told(to, false)));
        let Ok(room) = crate::room::room(&self.0.app) else { return refuse(Trouble::NoRoom) };
        let decided =
            tokio::time::timeout(PATIENCE, gate::decide(&self.0.app, room, queue, asked)).await;
        let decision = match decided {
            Ok(Ok(decision)) => decision,
            Ok(Err(room::Error::UnknownQueue)) => {
                tracing::error!(%queue, "the guard's queue is gone; make it again");
                return refuse(Trouble::NoRoom);
            }
            Ok(Err(_)) | Err(_) if self.0.how.when_down == WhenDown::Open => {
                gate::counted("open");
                return Ok(Admitted::default());
            }
            Ok(Err(_)) | Err(_) => {
                gate::counted("error");
                return refuse(Trouble::Away);
            }
        };
        match decision {
            Decision::Allow { session, cookie } => {
                gate::counted("allow");
                Ok(Admitted { session, cookie })
            }
            decision => {
                let mut response = gate::refusal(queue, &decision, to.navigates);
                if !to.navigates {
                    response = told::envelope(response);
                }
                gate::decorate(&mut response, queue, &decision);
                Err(Box::new(response))
            }
        }
    }

    /// Hands a request to the site and its answer back.
    async fn forward(&self, mut request: Request, visit: Visit<'_>) -> Response {
        let how = &self.0.how;
        let Visit { peer, client, host, queue, session, to } = visit;
        let trouble = |trouble: Trouble| trouble.told(to, session.is_some());
        let most = if how.max_body == 0 { u64::MAX } else { how.max_body };
        if request.body().size_hint().lower() > most {
            return trouble(Trouble::TooLarge(most));
        }
        let settings = self.0.app.settings();
        let slot = request.extensions().get::<ConnectionSlot>().cloned();
        let upgrade = headers::upgrade_of(&request);
        let visitor = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
        let (mut parts, body) = request.into_parts();
        headers::to_origin(&mut parts.headers, upgrade.as_ref());
        headers::forwarded(&mut parts.headers, peer, client, host.as_ref(), &settings);
        headers::named(&mut parts.headers, &how.queue, queue, session.as_ref());
        let origin_host = how.origin.host();
        if let Some(host) = if how.keep_host { host.or(origin_host) } else { origin_host } {
            parts.headers.insert(header::HOST, host);
        }
        let Some(uri) = how.origin.uri(parts.uri.path_and_query().cloned()) else {
            return trouble(Trouble::Refused("the address is not valid"));
        };
        let progress = Progress::default();
        let body = match body.is_end_stream() {
            true => Body::empty(),
            false => {
                let metered = Metered::new(most, how.answer_timeout, progress.clone());
                Body::new(Watched::new(body, metered))
            }
        };
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
                        BodyFault::TooLarge => Trouble::TooLarge(most),
                        BodyFault::Stalled => Trouble::Stalled,
                        BodyFault::Malformed => Trouble::BadBody,
                    });
                }
                let error = crate::error::chain(&error);
                tracing::warn!(origin = %how.origin, %error, "the site does not answer");
                return trouble(Trouble::Down);
            }
            None => {
                tracing::warn!(origin = %how.origin, "the site takes too long to answer");
                return trouble(Trouble::Slow);
            }
        };
        let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let origin = switched.then(|| hyper::upgrade::on(&mut response));
        let command = headers::from_origin(response.headers_mut(), switched, &how.origin);
        if let (Some(session), Some(command)) = (session, command) {
            self.obey(queue, &session, &command).await;
        }
        match (visitor, origin) {
            (Some(visitor), Some(origin)) => {
                let (guard, stopped) = (self.clone(), self.0.app.stopped());
                let queue = queue.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        () = guard.tunnel(visitor, origin, &queue, session) => {}
                        () = stopped => {}
                    }
                    // Until here the connection counts as one.
                    drop(slot);
                });
                response
            }
            (None, Some(_)) => trouble(Trouble::Broken),
            _ => match session {
                Some(session) if !body::is_short(response.body()) => {
                    let (guard, queue) = (self.clone(), queue.clone());
                    let kept = Kept::new(move || {
                        let (guard, queue) = (guard.clone(), queue.clone());
                        async move { guard.lives(&queue, &session).await }
                    });
                    response.map(|body| Body::new(Watched::new(body, kept)))
                }
                _ => response,
            },
        }
    }

    /// Passes bytes between visitor and site until either ends, or the session does, or nothing is
    /// sent for too long.
    async fn tunnel(
        &self,
        visitor: hyper::upgrade::OnUpgrade,
        origin: hyper::upgrade::OnUpgrade,
        queue: &QueueId,
        session: Option<SessionId>,
    ) {
        let (Ok(visitor), Ok(origin)) = tokio::join!(visitor, origin) else { return };
        let traffic = Traffic::default();
        let mut visitor = tunnel::Metered::new(TokioIo::new(visitor), &traffic);
        let mut origin = tunnel::Metered::new(TokioIo::new(origin), &traffic);
        let copied = tokio::io::copy_bidirectional(&mut visitor, &mut origin);
        let over = async {
            let Some(session) = session else { return std::future::pending().await };
            let mut seen = traffic.last();
            loop {
                tokio::time::sleep(body::LOOK_EVERY).await;
                // A socket that is only open is no activity: its session can run out.
                let moved = traffic.last() > seen;
                seen = traffic.last();
                let lives = match moved {
                    true => self.lives(queue, &session).await,
                    false => self.runs(queue, &session).await,
                };
                if !lives {
                    return;
                }
            }
        };
        tokio::select! {
            // Either side may break off; that is an end like any other.
            _ = copied => {}
            () = over => {}
            () = traffic.idle_for(self.0.how.socket_idle_timeout) => {}
        }
    }

    /// Does a session run? Does not count as activity.
    async fn runs(&self, queue: &QueueId, session: &SessionId) -> bool {
        let Ok(room) = crate::room::room(&self.0.app) else { return true };
        match room.session(queue, session).await {
            Ok(session) => session.status == room::SessionStatus::Active,
            Err(room::Error::UnknownSession | room::Error::UnknownQueue) => false,
            Err(_) => true,
        }
    }

    /// Something of the session is still open: it is in use, unless it is over.
    async fn lives(&self, queue: &QueueId, session: &SessionId) -> bool {
        let Ok(room) = crate::room::room(&self.0.app) else { return true };
        match room.activity(queue, session, 0).await {
            Ok(session) => session.status == room::SessionStatus::Active,
            Err(room::Error::UnknownSession | room::Error::UnknownQueue) => false,
            // The store is away: nobody is thrown out for that.
            Err(_) => true,
        }
    }

    /// The site may end the visitor's session with a header of its answer.
    async fn obey(&self, queue: &QueueId, session: &SessionId, command: &str) {
        let Ok(room) = crate::room::room(&self.0.app) else { return };
        let end = match command {
            "complete" => room::End::Complete,
            "revoke" => room::End::OriginRevoke,
            other => {
                tracing::warn!(command = other, "the site sent a WR-Command nobody knows");
                return;
            }
        };
        if let Err(error) = room.end_session(queue, session, end).await {
            tracing::warn!(%session, %error, "a session the site is done with goes on");
        }
    }
}
