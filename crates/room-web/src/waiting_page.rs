//! The waiting page under `/_wr/`: enqueue, wait, start a session, leave. Complete without any script;
//! `assets/waiting.js` makes it live.
//!
//! Reloading never loses a position and never enqueues twice: a visitor without a cookie first gets a
//! key as a cookie and is enqueued when it comes back, so only a browser that keeps cookies is enqueued,
//! once. Every change is a `POST` answered with a redirect. Only a person's navigation enqueues or
//! starts a session: not `HEAD`, not a prefetch, not a script's fetch of the page.
//!
//! Read `arrive`, `wait`, `go`; then `page.rs` (markup) and `i18n.rs` (texts).

pub(crate) mod brand;
pub(crate) mod i18n;
pub(crate) mod page;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use maud::Markup;
use room::{
    EndReason, Error, NewPosition, Position, PositionState, Proof, Queue, Room, SessionStart,
    Visitor,
};
use serde::Deserialize;

use self::brand::Brand;
use self::i18n::Translation;
use self::page::{Frame, PageView, address, page};
use crate::assets;
use crate::error::api_error;
use crate::service::RoomState;
use crate::site::{Destination, OWN_PATH, Site};
use crate::{cookie, limits};
use web::ApiError;
use web::Routes;
use web::client::Client;
use web::compress::{self, HoldsNoSecret};
use web::extract::{Form, Path, Query};
use web::middleware;

/// The routes.
pub(crate) fn routes() -> Routes<RoomState> {
    let router = assets::router()
        .route("/_wr/{queue}", get(arrive))
        .route("/_wr/{queue}/brand.css", get(brand_style))
        .route("/_wr/{queue}/wait", get(wait).layer(from_fn(compress::handle_marked)))
        .route("/_wr/{queue}/enter", post(enter))
        .route("/_wr/{queue}/leave", post(leave))
        .route("/_wr/{queue}/start-session", post(start_session));
    Routes { public: router.into(), excluded: vec![assets::template()], ..Routes::default() }
}

/// Query parameters of the page.
#[derive(Debug, Clone, Default, Deserialize)]
struct WaitingPageQuery {
    /// Destination once the session starts.
    return_to: Option<String>,
    /// Language, instead of the browser's.
    lang: Option<String>,
    /// The position's token, where cookies are blocked.
    t: Option<String>,
    /// A signed invite.
    invite: Option<String>,
    /// A cookie was just set; if it does not come back, the browser keeps none.
    probe: Option<String>,
}

/// A request for a page of a queue.
struct PageVisit {
    state: RoomState,
    room: Room,
    queue: Queue,
    words: &'static Translation,
    query: WaitingPageQuery,
    request: PageRequest,
}

/// The relevant part of a request.
#[derive(Debug)]
struct PageRequest {
    headers: HeaderMap,
    client: Client,
    /// Its id.
    id: String,
    /// The site the request is for, as the browser sees it.
    host: Option<String>,
    /// True for a person's navigation, which may enqueue and start a session.
    acts: bool,
}

impl FromRequestParts<RoomState> for PageRequest {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &RoomState,
    ) -> Result<PageRequest, ApiError> {
        let client = Client::from_request_parts(parts, state).await?;
        let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let authority = parts.uri.authority().map(|authority| authority.as_str());
        let host = text("host").or(authority).map(str::to_ascii_lowercase);
        let ahead = ["sec-purpose", "purpose", "x-moz"]
            .into_iter()
            .any(|name| text(name).is_some_and(|value| value.contains("prefetch")));
        let navigates = text("sec-fetch-mode").is_none_or(|mode| mode == "navigate");
        let acts = parts.method != Method::HEAD && !ahead && navigates;
        let id = middleware::request_id(&parts.extensions);
        Ok(PageRequest { headers: parts.headers.clone(), client, id, host, acts })
    }
}

/// Credential of a visitor.
enum VisitorCredential {
    /// None.
    None,
    /// A key that was just set, to enqueue with.
    Fresh(String),
    /// A position's token; `None` if its record no longer exists.
    Position(Option<Box<Position>>),
    /// A valid pass.
    Pass,
}

/// Error while a page is built.
enum PageError {
    /// Error of the room.
    Room(Error),
    /// Rate limited.
    TooOften(ApiError),
}

impl From<Error> for PageError {
    fn from(error: Error) -> PageError {
        PageError::Room(error)
    }
}

/// Handles a visitor who arrives: from a proxy, a link, a bookmark.
async fn arrive(visit: PageVisit) -> Response {
    visit.answer(visit.arrive().await)
}

/// Serves the page a visitor waits on.
async fn wait(visit: PageVisit) -> Response {
    visit.answer(visit.wait().await)
}

/// Serves the queue's own colours.
async fn brand_style(visit: PageVisit) -> Response {
    Brand::of(&visit.queue.config).style()
}

/// Body of the form that enqueues.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EnterForm {
    key: String,
    cookies: String,
}

/// Enqueues, also again after an end. A held position is kept.
async fn enter(visit: PageVisit, Form(form): Form<EnterForm>) -> Response {
    visit.answer(visit.enter(&form).await)
}

/// Cancels the position.
async fn leave(visit: PageVisit) -> Response {
    visit.answer(visit.leave().await)
}

/// Starts the session.
async fn start_session(visit: PageVisit) -> Response {
    visit.answer(visit.start_session().await)
}

impl FromRequestParts<RoomState> for PageVisit {
    type Rejection = Response;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &RoomState,
    ) -> Result<PageVisit, Response> {
        let refuse = IntoResponse::into_response;
        let Path(name) = Path::<String>::from_request_parts(parts, state).await.map_err(refuse)?;
        let Query(query) =
            Query::<WaitingPageQuery>::from_request_parts(parts, state).await.map_err(refuse)?;
        let request = PageRequest::from_request_parts(parts, state).await.map_err(refuse)?;
        let words = i18n::pick(query.lang.as_deref(), &request.headers);
        let found = async {
            let room = &state.room;
            let id = crate::api::queue_id(&name)?;
            let queue = room.cached_queue(&id).await.map_err(api_error)?;
            Ok::<_, ApiError>((room.clone(), queue))
        };
        match found.await {
            Ok((room, queue)) => {
                Ok(PageVisit { state: state.clone(), room, queue, words, query, request })
            }
            Err(error) => {
                let view = match error.status() {
                    StatusCode::NOT_FOUND => PageView::Unknown,
                    StatusCode::TOO_MANY_REQUESTS => PageView::Busy,
                    // For instance, the store is unavailable: the page tries again.
                    _ => PageView::Away,
                };
                let frame = Frame {
                    words,
                    queue: None,
                    brand: Brand::default(),
                    now: state.app.store().now(),
                    base: format!("{OWN_PATH}/{}", middleware::percent(&name)),
                    carried: Vec::new(),
                    target: "/".to_owned(),
                    fresh_key: String::new(),
                    preview: None,
                };
                let brand = Brand::default();
                let mut response = shown(words, &brand, None, error.status(), &page(&frame, &view));
                error.headers_into(response.headers_mut());
                Err(response)
            }
        }
    }
}

impl PageVisit {
    /// Reads the visitor's cookie, or the token in the URL.
    async fn credential(&self) -> Result<VisitorCredential, PageError> {
        let id = &self.queue.id;
        let cookie = cookie::read(&self.request.headers, id);
        let Some(value) = cookie.or(self.query.t.as_deref()) else {
            return Ok(VisitorCredential::None);
        };
        if let Some(key) = cookie::fresh_key(value) {
            return Ok(VisitorCredential::Fresh(key.to_owned()));
        }
        match self.room.check_position_token(id, value).await {
            Ok(token) => {
                limits::charge_poll(&self.state, &self.room, &token, limits::PollKind::Page)
                    .await
                    .map_err(|error| PageError::TooOften(error.into()))?;
                // Loading the page is a heartbeat.
                let ip = Some(self.request.client.ip);
                let position = match self
                    .room
                    .heartbeat(id, &token.position, Some(token.priority), ip)
                    .await
                {
                    Ok(position) => Some(Box::new(position)),
                    Err(Error::UnknownPosition) => None,
                    Err(error) => return Err(error.into()),
                };
                return Ok(VisitorCredential::Position(position));
            }
            Err(Error::Token(_)) => {}
            Err(error) => return Err(error.into()),
        }
        match self.room.check_pass(id, value).await {
            Ok(_) => Ok(VisitorCredential::Pass),
            Err(Error::Token(_)) => Ok(VisitorCredential::None),
            Err(error) => Err(error.into()),
        }
    }

    async fn arrive(&self) -> Result<Response, PageError> {
        match self.credential().await? {
            VisitorCredential::Pass => Ok(see_other(self.target().address(), None)),
            // A visitor whose position expired is told so; one who left, or completed, gets a new one.
            VisitorCredential::Position(position)
                if !position.as_ref().is_some_and(|position| is_done(position)) =>
            {
                Ok(see_other(&self.address("/wait", &[]), None))
            }
            _ if !self.request.acts => Ok(self.show(PageView::NotQueued)),
            // The key came back before, so the browser keeps cookies: reuse it.
            VisitorCredential::Fresh(key) => self.begin(&key),
            _ => self.begin(&fresh_key()),
        }
    }

    /// Sets a key to enqueue with, and checks that it comes back.
    fn begin(&self, key: &str) -> Result<Response, PageError> {
        let cookie = cookie::fresh(&self.queue.id, key, self.request.client.secure).ok();
        Ok(see_other(&self.address("/wait", &[("probe", "1")]), cookie))
    }

    async fn wait(&self) -> Result<Response, PageError> {
        match self.credential().await? {
            VisitorCredential::Pass => Ok(see_other(self.target().address(), None)),
            VisitorCredential::Position(Some(position))
                if self.query.invite.is_some() && self.request.acts =>
            {
                self.enqueue(Some(&position), None).await
            }
            VisitorCredential::Position(Some(position)) => match position.state {
                PositionState::Waiting => Ok(self.show(PageView::Waiting(&position))),
                PositionState::Admitted | PositionState::Active if self.request.acts => {
                    self.go(&position).await
                }
                PositionState::Admitted => Ok(self.show(PageView::Admitted(&position))),
                PositionState::Active => Ok(self.show(PageView::Active)),
                _ => Ok(self.show(PageView::Over(position.reason))),
            },
            VisitorCredential::Position(None) => Ok(self.show(PageView::Over(None))),
            _ if !self.request.acts => Ok(self.show(PageView::NotQueued)),
            VisitorCredential::Fresh(key) => self.enqueue(None, Some(key)).await,
            VisitorCredential::None if self.query.probe.is_some() => {
                Ok(self.show(PageView::NoCookies))
            }
            VisitorCredential::None => Ok(see_other(&address(&self.base(), &self.carried()), None)),
        }
    }

    async fn enter(&self, form: &EnterForm) -> Result<Response, PageError> {
        if self.comes_from_elsewhere() {
            return Ok(self.show(PageView::NotQueued));
        }
        let known = cookie::fresh_key(&format!("new.{}", form.key)).map(str::to_owned);
        let key = known.unwrap_or_else(fresh_key);
        if form.cookies == "no" {
            return self.enqueue(None, Some(key)).await;
        }
        match self.credential().await? {
            VisitorCredential::Position(Some(position)) if !position.state.is_over() => {
                Ok(see_other(&self.address("/wait", &[]), None))
            }
            _ => self.begin(&key),
        }
    }

    async fn leave(&self) -> Result<Response, PageError> {
        if !self.comes_from_elsewhere()
            && let VisitorCredential::Position(Some(position)) = self.credential().await?
        {
            self.room.leave(&self.queue.id, &position.id).await?;
        }
        Ok(see_other(&self.address("/wait", &[]), None))
    }

    async fn start_session(&self) -> Result<Response, PageError> {
        match self.credential().await? {
            VisitorCredential::Position(Some(position)) if !self.comes_from_elsewhere() => {
                self.go(&position).await
            }
            _ => Ok(see_other(&self.address("/wait", &[]), None)),
        }
    }

    /// Enqueues the visitor and redirects to the page that shows the position.
    async fn enqueue(
        &self,
        held: Option<&Position>,
        key: Option<String>,
    ) -> Result<Response, PageError> {
        let id = &self.queue.id;
        let proof = match &self.query.invite {
            None => Proof::None,
            Some(invite) => match self.room.check_invite(id, invite).await {
                Ok(invite) => Proof::Invite(invite),
                Err(Error::Token(_)) => return Ok(self.show(PageView::BadInvite)),
                Err(error) => return Err(error.into()),
            },
        };
        // A visitor who holds a position is not enqueued again, so no limit applies.
        if held.is_none()
            && let Err(error) = limits::charge_enqueue(
                &self.state,
                &self.room,
                &self.request.client,
                &self.request.id,
            )
            .await
        {
            return Ok(self.busy(&error.into()));
        }
        let new = NewPosition {
            held: held.map(|position| position.id),
            idempotency_key: key,
            proof,
            address: Some(self.request.client.ip),
            user_agent: self.user_agent(),
            ..NewPosition::default()
        };
        let enqueued = match self.room.enqueue(id, new).await {
            Ok(enqueued) => enqueued,
            Err(Error::Full { .. }) => return Ok(self.show(PageView::Full)),
            Err(Error::Maintenance) => return Ok(self.show(PageView::Closed)),
            Err(Error::InviteUsed) => return Ok(self.show(PageView::BadInvite)),
            Err(error) => return Err(error.into()),
        };
        let token = self.room.position_token(&enqueued.position).await?;
        let by_address = cookie::read(&self.request.headers, id).is_none();
        if by_address {
            let mut query = self.carried();
            query.retain(|(name, _)| *name != "t");
            query.push(("t", token));
            return Ok(see_other(&address(&format!("{}/wait", self.base()), &query), None));
        }
        let cookie = cookie::position(id, &token, self.request.client.secure).ok();
        if enqueued.position.state == PositionState::Admitted {
            return self.go(&enqueued.position).await;
        }
        Ok(see_other(&self.address("/wait", &[]), cookie))
    }

    /// Starts the session of an admitted visitor. On this site the pass is set as the cookie; another
    /// site gets a token in the URL, valid for one arrival, and its proxy sets the pass.
    async fn go(&self, position: &Position) -> Result<Response, PageError> {
        let id = &self.queue.id;
        let target = self.target();
        let here = matches!(target, Destination::Here(_)) && self.query.t.is_none();
        if !here {
            return match position.state {
                PositionState::Admitted => {
                    let token = self.room.redirect_token(position).await?;
                    // The position's cookie stays, so that a visitor who comes back is recognised.
                    let position = self.room.position_token(position).await?;
                    let cookie = cookie::position(id, &position, self.request.client.secure).ok();
                    let cookie = cookie.filter(|_| self.query.t.is_none());
                    Ok(see_other(&target.with("wrtoken", &token), cookie))
                }
                PositionState::Active => Ok(self.show(PageView::Active)),
                PositionState::Waiting => Ok(self.show(PageView::Waiting(position))),
                _ => Ok(self.show(PageView::Over(position.reason))),
            };
        }
        let visitor = Visitor {
            user_id: String::new(),
            address: Some(self.request.client.ip),
            user_agent: self.user_agent(),
        };
        match self.room.start_session(id, &position.id, &visitor).await? {
            SessionStart::Active { session, .. } => {
                let pass = self.room.issue_pass(&session).await?;
                let now = self.state.app.store().now();
                let cookie = cookie::pass(&session, &pass, now, self.request.client.secure).ok();
                Ok(see_other(target.address(), cookie))
            }
            SessionStart::Waiting => match self.room.status(id, &position.id).await {
                Ok(position) => Ok(self.show(PageView::Waiting(&position))),
                Err(Error::UnknownPosition) => Ok(self.show(PageView::Over(None))),
                Err(error) => Err(error.into()),
            },
            SessionStart::Over(_, reason) => Ok(self.show(PageView::Over(reason))),
        }
    }

    /// Returns true for a form on another site. It must not enqueue: it would come without the cookie
    /// and replace the position held.
    fn comes_from_elsewhere(&self) -> bool {
        let site = self.request.headers.get("sec-fetch-site").and_then(|site| site.to_str().ok());
        site.is_some_and(|site| matches!(site, "cross-site" | "same-site"))
    }

    fn user_agent(&self) -> String {
        let agent = self.request.headers.get(header::USER_AGENT);
        agent.and_then(|agent| agent.to_str().ok()).unwrap_or_default().to_owned()
    }

    fn target(&self) -> Destination {
        let site = Site::of(&self.queue.config);
        site.target(self.request.host.as_deref(), self.query.return_to.as_deref())
    }

    fn base(&self) -> String {
        format!("{OWN_PATH}/{}", self.queue.id)
    }

    /// Returns the query parameters that every link of the page keeps. The invite is used once.
    fn carried(&self) -> Vec<(&'static str, String)> {
        let query = &self.query;
        [("return_to", &query.return_to), ("lang", &query.lang), ("t", &query.t)]
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.clone()?)))
            .collect()
    }

    fn address(&self, path: &str, more: &[(&'static str, &str)]) -> String {
        let mut query = self.carried();
        query.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
        if let (Some(invite), false) = (&self.query.invite, more.is_empty()) {
            query.push(("invite", invite.clone()));
        }
        address(&format!("{}{path}", self.base()), &query)
    }

    fn show(&self, view: PageView<'_>) -> Response {
        let target = self.target();
        let brand = Brand::of(&self.queue.config);
        let frame = Frame {
            words: self.words,
            queue: Some(&self.queue),
            brand: brand.clone(),
            now: self.state.app.store().now(),
            base: self.base(),
            carried: self.carried(),
            target: target.address().to_owned(),
            fresh_key: fresh_key(),
            preview: None,
        };
        let status = match view {
            PageView::Full
            | PageView::Closed
            | PageView::Busy
            | PageView::Away
            | PageView::NotQueued => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::OK,
        };
        let markup = page(&frame, &view);
        let mut response = shown(self.words, &brand, target.origin(), status, &markup);
        // With cookies, the visitor's token is not in the page; a number in the line is no secret.
        if matches!(view, PageView::Waiting(_)) && self.query.t.is_none() {
            response.extensions_mut().insert(HoldsNoSecret);
        }
        if let (true, Some(seconds)) = (status.is_server_error(), view.refresh().or(Some(30))) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    /// Renders a page that tries again: too many requests, or the store is unavailable.
    fn busy(&self, error: &ApiError) -> Response {
        let mut response = self.show(match error.status() {
            StatusCode::TOO_MANY_REQUESTS => PageView::Busy,
            _ => PageView::Away,
        });
        *response.status_mut() = error.status();
        error.clone().headers_into(response.headers_mut());
        response
    }

    /// Renders an error that is not the visitor's fault as a page that tries again.
    fn answer(&self, result: Result<Response, PageError>) -> Response {
        match result {
            Ok(response) => response,
            Err(PageError::TooOften(error)) => self.busy(&error),
            Err(PageError::Room(Error::UnknownQueue)) => {
                let error = api_error(Error::UnknownQueue);
                error.into_response()
            }
            Err(PageError::Room(Error::AddressFull { .. })) => self.show(PageView::AddressFull),
            Err(PageError::Room(Error::Busy)) => self.show(PageView::Busy),
            Err(PageError::Room(error)) => {
                tracing::warn!(error = %error, queue = %self.queue.id, "a visitor's page failed");
                self.show(PageView::Away)
            }
        }
    }
}

/// Renders the page as a visitor in the middle of the queue sees it, for the settings of the dashboard: in a frame
/// of it, without scripts, and nothing on it can be used. `style` is the address of the colours.
pub(crate) fn preview(
    queue: &Queue,
    brand: Brand,
    style: Option<String>,
    words: &'static Translation,
    now: store::Millis,
) -> Response {
    let minutes = |minutes: u64| std::time::Duration::from_secs(minutes * 60);
    let position = Position {
        id: room::PositionId::from_bytes([0; 16]),
        queue: queue.id.clone(),
        state: PositionState::Waiting,
        reason: None,
        ended: None,
        priority: room::VisitorPriority::default(),
        ticket: None,
        enqueued_at: store::Millis(now.0 - 4 * 60_000),
        number: Some(42),
        waiting: 120,
        start_by: None,
        session: None,
        replaced_by: None,
        last_heartbeat: Some(now),
        expires_at: None,
        held_for: queue.config.heartbeat_timeout(),
        estimate: Ok(room::Estimate { low: minutes(5), likely: minutes(6), high: minutes(8) }),
        next_poll: queue.config.poll_floor,
        queue_status: room::QueueStatus::Active,
        message: queue.config.message.clone(),
        epoch: 0,
    };
    let frame = Frame {
        words,
        queue: Some(queue),
        brand: brand.clone(),
        now,
        base: format!("{OWN_PATH}/{}", queue.id),
        carried: Vec::new(),
        target: String::new(),
        fresh_key: String::new(),
        preview: Some(style),
    };
    let markup = page(&frame, &PageView::Waiting(&position));
    let mut response = shown(words, &brand, None, StatusCode::OK, &markup);
    let headers = response.headers_mut();
    let policy = headers.get(header::CONTENT_SECURITY_POLICY).and_then(|p| p.to_str().ok());
    let policy = policy.map(|p| p.replace("frame-ancestors 'none'", "frame-ancestors 'self'"));
    if let Some(Ok(policy)) = policy.map(|policy| HeaderValue::from_str(&policy)) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("SAMEORIGIN"));
    response
}

/// Returns true if a position was cancelled by its visitor or ended after a session.
fn is_done(position: &Position) -> bool {
    position.state.is_over()
        && matches!(
            position.reason,
            Some(
                EndReason::Cancelled
                    | EndReason::Completed
                    | EndReason::SessionIdle
                    | EndReason::SessionCap
            )
        )
}

/// Generates a random key.
fn fresh_key() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

fn see_other(location: &str, cookie: Option<HeaderValue>) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    // Addresses are validated or built here; one that is not a header value is a bug.
    match HeaderValue::from_str(location) {
        Ok(location) => headers.insert(header::LOCATION, location),
        Err(error) => return ApiError::internal(&error).into_response(),
    };
    if let Some(cookie) = cookie {
        headers.insert(header::SET_COOKIE, cookie);
    }
    common(headers);
    response
}

fn shown(
    words: &Translation,
    brand: &Brand,
    target: Option<String>,
    status: StatusCode,
    markup: &Markup,
) -> Response {
    let mut response = (status, markup.0.clone()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CONTENT_LANGUAGE, HeaderValue::from_static(words.lang));
    // `form-action` also applies to redirects of a form (CSP), so the destination is allowed.
    let policy = middleware::PAGE_POLICY
        .replace(
            "form-action 'self'",
            &format!("form-action 'self' {}", target.unwrap_or_default()),
        )
        .replace("img-src 'self'", &format!("img-src 'self' {}", brand.foreign().unwrap_or("")));
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    common(headers);
    response
}

fn common(headers: &mut HeaderMap) {
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::VARY, HeaderValue::from_static("Cookie, Accept-Language"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(
        HeaderName::from_static("x-robots-tag"),
        HeaderValue::from_static("noindex, nofollow"),
    );
}
