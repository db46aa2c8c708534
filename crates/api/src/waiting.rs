//! The visitor's page under `/_wr/`: take a place, watch it, come in, leave. Complete without any
//! script; `web/waiting.js` makes it livelier.
//!
//! A place is never lost by loading a page again and never taken twice: a visitor without a cookie
//! first gets a key as a cookie and joins when it comes back, so only a browser that keeps cookies
//! joins, once. Every change is a `POST` answered with a redirect. Nothing but a person's navigation
//! joins or comes in: not `HEAD`, not a prefetch, not a script's fetch of the page.
//!
//! Read `arrive`, `wait`, `go`; then `page.rs` (what it looks like) and `words.rs` (what it says).

pub(crate) mod brand;
pub(crate) mod page;
pub(crate) mod words;

use axum::Router;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use maud::Markup;
use room::{
    Claim, Error, NewPlace, Place, Proof, Queue, Reason, Room, State as PlaceState, Visitor,
};
use serde::Deserialize;

use self::brand::Brand;
use self::page::{Frame, View, address, page};
use self::words::Words;
use crate::app::App;
use crate::client::Client;
use crate::error::ApiError;
use crate::extract::{Form, Path, Query};
use crate::room::site::{OWN_PATH, Site, Target};
use crate::room::{cookie, limits};
use crate::section::Section;
use crate::{dashboard, front};

/// The routes.
pub(crate) fn section() -> Section {
    let router = Router::new()
        .route("/_wr/assets/{version}/{name}", get(dashboard::assets::file))
        .route("/_wr/{queue}", get(arrive))
        .route("/_wr/{queue}/brand.css", get(brand_style))
        .route("/_wr/{queue}/wait", get(wait))
        .route("/_wr/{queue}/enter", post(enter))
        .route("/_wr/{queue}/leave", post(leave))
        .route("/_wr/{queue}/claim", post(claim));
    Section { public: router.into(), ..Section::default() }
}

/// What the page carries in its address.
#[derive(Debug, Clone, Default, Deserialize)]
struct PageQuery {
    /// Where to go when it is the visitor's turn.
    return_to: Option<String>,
    /// The language, against the browser's wish.
    lang: Option<String>,
    /// The place's token, where cookies are blocked.
    t: Option<String>,
    /// A signed invite.
    invite: Option<String>,
    /// The visitor was just given a cookie; if it is not here, there are none.
    probe: Option<String>,
}

/// A request for a page of a queue.
struct Visit {
    app: App,
    room: Room,
    queue: Queue,
    words: &'static Words,
    query: PageQuery,
    request: Asked,
}

/// What of a request matters here.
#[derive(Debug)]
struct Asked {
    headers: HeaderMap,
    client: Client,
    /// Its id.
    id: String,
    /// The site the request is for, as the browser sees it.
    host: Option<String>,
    /// A person's navigation, which may join and come in.
    acts: bool,
}

impl FromRequestParts<App> for Asked {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Asked, ApiError> {
        let client = Client::from_request_parts(parts, app).await?;
        let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let authority = parts.uri.authority().map(|authority| authority.as_str());
        let host = text("host").or(authority).map(str::to_ascii_lowercase);
        let ahead = ["sec-purpose", "purpose", "x-moz"]
            .into_iter()
            .any(|name| text(name).is_some_and(|value| value.contains("prefetch")));
        let navigates = text("sec-fetch-mode").is_none_or(|mode| mode == "navigate");
        let acts = parts.method != Method::HEAD && !ahead && navigates;
        let id = front::request_id(&parts.extensions);
        Ok(Asked { headers: parts.headers.clone(), client, id, host, acts })
    }
}

/// Who the visitor is.
enum Held {
    /// Nobody known.
    None,
    /// Was just given a key to join with.
    Fresh(String),
    /// Has a place, or had one; none if nothing is known of it any more.
    Place(Option<Box<Place>>),
    /// Has a pass that is good.
    Inside,
}

/// Why there is no answer.
enum Trouble {
    /// The room says so.
    Room(Error),
    /// The visitor asks too often.
    TooOften(ApiError),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Room(error)
    }
}

/// A visitor comes: from the site's gate, a link, a bookmark.
async fn arrive(visit: Visit) -> Response {
    visit.answer(visit.arrive().await)
}

/// The page a visitor waits on.
async fn wait(visit: Visit) -> Response {
    visit.answer(visit.wait().await)
}

/// The queue's own colours.
async fn brand_style(visit: Visit) -> Response {
    Brand::of(&visit.queue.config).style()
}

/// What the form for joining sends.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EnterForm {
    key: String,
    cookies: String,
}

/// Joins, or joins again. Whoever has a place keeps it.
async fn enter(visit: Visit, Form(form): Form<EnterForm>) -> Response {
    visit.answer(visit.enter(&form).await)
}

/// Gives the place up.
async fn leave(visit: Visit) -> Response {
    visit.answer(visit.leave().await)
}

/// Comes in.
async fn claim(visit: Visit) -> Response {
    visit.answer(visit.claim().await)
}

impl FromRequestParts<App> for Visit {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Visit, Response> {
        let refuse = IntoResponse::into_response;
        let Path(name) = Path::<String>::from_request_parts(parts, app).await.map_err(refuse)?;
        let Query(query) =
            Query::<PageQuery>::from_request_parts(parts, app).await.map_err(refuse)?;
        let request = Asked::from_request_parts(parts, app).await.map_err(refuse)?;
        let words = words::pick(query.lang.as_deref(), &request.headers);
        let found = async {
            let room = crate::room::room(app)?;
            let queue = room.queue_lately(&crate::room::queue_id(&name)?).await?;
            Ok::<_, ApiError>((room.clone(), queue))
        };
        match found.await {
            Ok((room, queue)) => Ok(Visit { app: app.clone(), room, queue, words, query, request }),
            Err(error) => {
                let view = match error.status() {
                    StatusCode::NOT_FOUND => View::Unknown,
                    StatusCode::TOO_MANY_REQUESTS => View::Busy,
                    // The store is away, say: the page tries again by itself.
                    _ => View::Away,
                };
                let frame = Frame {
                    words,
                    queue: None,
                    brand: Brand::default(),
                    now: app.store().now(),
                    base: format!("{OWN_PATH}/{}", front::percent(&name)),
                    carried: Vec::new(),
                    target: "/".to_owned(),
                    fresh_key: String::new(),
                };
                let brand = Brand::default();
                let mut response = shown(words, &brand, None, error.status(), &page(&frame, &view));
                error.headers_into(response.headers_mut());
                Err(response)
            }
        }
    }
}

impl Visit {
    /// What the visitor's cookie, or the token in the address, says.
    async fn held(&self) -> Result<Held, Trouble> {
        let id = &self.queue.id;
        let cookie = cookie::read(&self.request.headers, id);
        let Some(value) = cookie.or(self.query.t.as_deref()) else { return Ok(Held::None) };
        if let Some(key) = cookie::fresh_key(value) {
            return Ok(Held::Fresh(key.to_owned()));
        }
        match self.room.check_place_token(id, value).await {
            Ok(token) => {
                let polls = self.app.room_polls();
                polls
                    .take(&self.app, &self.room, &token, limits::Asks::Page)
                    .await
                    .map_err(Trouble::TooOften)?;
                // A look at the page is a sign of life.
                let ip = Some(self.request.client.ip);
                let place =
                    match self.room.heartbeat(id, &token.position, Some(token.level), ip).await {
                        Ok(place) => Some(Box::new(place)),
                        Err(Error::UnknownPosition) => None,
                        Err(error) => return Err(error.into()),
                    };
                return Ok(Held::Place(place));
            }
            Err(Error::Token(_)) => {}
            Err(error) => return Err(error.into()),
        }
        match self.room.check_pass(id, value).await {
            Ok(_) => Ok(Held::Inside),
            Err(Error::Token(_)) => Ok(Held::None),
            Err(error) => Err(error.into()),
        }
    }

    async fn arrive(&self) -> Result<Response, Trouble> {
        match self.held().await? {
            Held::Inside => Ok(see_other(self.target().address(), None)),
            // Whoever lost a place should be told; whoever left, or was in, comes for a new one.
            Held::Place(place) if !place.as_ref().is_some_and(|place| done(place)) => {
                Ok(see_other(&self.address("/wait", &[]), None))
            }
            _ if !self.request.acts => Ok(self.show(View::NotJoined)),
            // Nothing to find out twice: whoever sent the key back may have it again.
            Held::Fresh(key) => self.begin(&key),
            _ => self.begin(&fresh_key()),
        }
    }

    /// Gives the visitor a key to join with, and sees whether it comes back.
    fn begin(&self, key: &str) -> Result<Response, Trouble> {
        let cookie = cookie::fresh(&self.queue.id, key, self.request.client.secure).ok();
        Ok(see_other(&self.address("/wait", &[("probe", "1")]), cookie))
    }

    async fn wait(&self) -> Result<Response, Trouble> {
        match self.held().await? {
            Held::Inside => Ok(see_other(self.target().address(), None)),
            Held::Place(Some(place)) if self.query.invite.is_some() && self.request.acts => {
                self.join(Some(&place), None).await
            }
            Held::Place(Some(place)) => match place.state {
                PlaceState::Waiting => Ok(self.show(View::Waiting(&place))),
                PlaceState::Admitted | PlaceState::Active if self.request.acts => {
                    self.go(&place).await
                }
                PlaceState::Admitted => Ok(self.show(View::Admitted(&place))),
                PlaceState::Active => Ok(self.show(View::Inside)),
                _ => Ok(self.show(View::Over(place.reason))),
            },
            Held::Place(None) => Ok(self.show(View::Over(None))),
            _ if !self.request.acts => Ok(self.show(View::NotJoined)),
            Held::Fresh(key) => self.join(None, Some(key)).await,
            Held::None if self.query.probe.is_some() => Ok(self.show(View::NoCookies)),
            Held::None => Ok(see_other(&address(&self.base(), &self.carried()), None)),
        }
    }

    async fn enter(&self, form: &EnterForm) -> Result<Response, Trouble> {
        if self.comes_from_elsewhere() {
            return Ok(self.show(View::NotJoined));
        }
        let known = cookie::fresh_key(&format!("new.{}", form.key)).map(str::to_owned);
        let key = known.unwrap_or_else(fresh_key);
        if form.cookies == "no" {
            return self.join(None, Some(key)).await;
        }
        match self.held().await? {
            Held::Place(Some(place)) if !place.state.is_over() => {
                Ok(see_other(&self.address("/wait", &[]), None))
            }
            _ => self.begin(&key),
        }
    }

    async fn leave(&self) -> Result<Response, Trouble> {
        if !self.comes_from_elsewhere()
            && let Held::Place(Some(place)) = self.held().await?
        {
            self.room.leave(&self.queue.id, &place.id).await?;
        }
        Ok(see_other(&self.address("/wait", &[]), None))
    }

    async fn claim(&self) -> Result<Response, Trouble> {
        match self.held().await? {
            Held::Place(Some(place)) if !self.comes_from_elsewhere() => self.go(&place).await,
            _ => Ok(see_other(&self.address("/wait", &[]), None)),
        }
    }

    /// Takes a place, and shows it from then on.
    async fn join(&self, held: Option<&Place>, key: Option<String>) -> Result<Response, Trouble> {
        let id = &self.queue.id;
        let proof = match &self.query.invite {
            None => Proof::None,
            Some(invite) => match self.room.check_invite(id, invite).await {
                Ok(invite) => Proof::Invite(invite),
                Err(Error::Token(_)) => return Ok(self.show(View::BadInvite)),
                Err(error) => return Err(error.into()),
            },
        };
        // Whoever holds a place does not join.
        if held.is_none()
            && let Err(error) =
                limits::join(&self.app, &self.room, &self.request.client, &self.request.id).await
        {
            return Ok(self.busy(&error));
        }
        let new = NewPlace {
            held: held.map(|place| place.id),
            idempotency_key: key,
            proof,
            address: Some(self.request.client.ip),
            user_agent: self.user_agent(),
            ..NewPlace::default()
        };
        let joined = match self.room.join(id, new).await {
            Ok(joined) => joined,
            Err(Error::Full { .. }) => return Ok(self.show(View::Full)),
            Err(Error::Maintenance) => return Ok(self.show(View::Closed)),
            Err(Error::InviteUsed) => return Ok(self.show(View::BadInvite)),
            Err(error) => return Err(error.into()),
        };
        let token = self.room.place_token(&joined.place).await?;
        let by_address = cookie::read(&self.request.headers, id).is_none();
        if by_address {
            let mut query = self.carried();
            query.retain(|(name, _)| *name != "t");
            query.push(("t", token));
            return Ok(see_other(&address(&format!("{}/wait", self.base()), &query), None));
        }
        let cookie = cookie::place(id, &token, self.request.client.secure).ok();
        if joined.place.state == PlaceState::Admitted {
            return self.go(&joined.place).await;
        }
        Ok(see_other(&self.address("/wait", &[]), cookie))
    }

    /// An admitted visitor comes in. On this site the pass is set as the cookie; another site gets
    /// a token in the address, good for one arrival, and its gate sets the pass.
    async fn go(&self, place: &Place) -> Result<Response, Trouble> {
        let id = &self.queue.id;
        let target = self.target();
        let here = matches!(target, Target::Here(_)) && self.query.t.is_none();
        if !here {
            return match place.state {
                PlaceState::Admitted => {
                    let token = self.room.redirect_token(place).await?;
                    // The place's own cookie stays: whoever comes back is known.
                    let place = self.room.place_token(place).await?;
                    let cookie = cookie::place(id, &place, self.request.client.secure).ok();
                    let cookie = cookie.filter(|_| self.query.t.is_none());
                    Ok(see_other(&target.with("wrtoken", &token), cookie))
                }
                PlaceState::Active => Ok(self.show(View::Inside)),
                PlaceState::Waiting => Ok(self.show(View::Waiting(place))),
                _ => Ok(self.show(View::Over(place.reason))),
            };
        }
        let visitor = Visitor {
            user_id: String::new(),
            address: Some(self.request.client.ip),
            user_agent: self.user_agent(),
        };
        match self.room.claim(id, &place.id, &visitor).await? {
            Claim::Session { session, .. } => {
                let pass = self.room.issue_pass(&session).await?;
                let now = self.app.store().now();
                let cookie = cookie::pass(&session, &pass, now, self.request.client.secure).ok();
                Ok(see_other(target.address(), cookie))
            }
            Claim::Waiting => match self.room.status(id, &place.id).await {
                Ok(place) => Ok(self.show(View::Waiting(&place))),
                Err(Error::UnknownPosition) => Ok(self.show(View::Over(None))),
                Err(error) => Err(error.into()),
            },
            Claim::Over(_, reason) => Ok(self.show(View::Over(reason))),
        }
    }

    /// A form on another site must not join in the visitor's name: it would come without the
    /// cookie and take the place of the one held.
    fn comes_from_elsewhere(&self) -> bool {
        let site = self.request.headers.get("sec-fetch-site").and_then(|site| site.to_str().ok());
        site.is_some_and(|site| matches!(site, "cross-site" | "same-site"))
    }

    fn user_agent(&self) -> String {
        let agent = self.request.headers.get(header::USER_AGENT);
        agent.and_then(|agent| agent.to_str().ok()).unwrap_or_default().to_owned()
    }

    fn target(&self) -> Target {
        let site = Site::of(&self.queue.config);
        site.target(self.request.host.as_deref(), self.query.return_to.as_deref())
    }

    fn base(&self) -> String {
        format!("{OWN_PATH}/{}", self.queue.id)
    }

    /// What every address of the page carries on. The invite is not: it is used once.
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

    fn show(&self, view: View<'_>) -> Response {
        let target = self.target();
        let brand = Brand::of(&self.queue.config);
        let frame = Frame {
            words: self.words,
            queue: Some(&self.queue),
            brand: brand.clone(),
            now: self.app.store().now(),
            base: self.base(),
            carried: self.carried(),
            target: target.address().to_owned(),
            fresh_key: fresh_key(),
        };
        let status = match view {
            View::Full | View::Closed | View::Busy | View::Away | View::NotJoined => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            _ => StatusCode::OK,
        };
        let markup = page(&frame, &view);
        let mut response = shown(self.words, &brand, target.origin(), status, &markup);
        if let (true, Some(seconds)) = (status.is_server_error(), view.refresh().or(Some(30))) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    /// Too many at once, or the store is away: the page tries again by itself.
    fn busy(&self, error: &ApiError) -> Response {
        let mut response = self.show(match error.status() {
            StatusCode::TOO_MANY_REQUESTS => View::Busy,
            _ => View::Away,
        });
        *response.status_mut() = error.status();
        error.clone().headers_into(response.headers_mut());
        response
    }

    /// Errors that are no fault of the visitor's are a page that tries again.
    fn answer(&self, result: Result<Response, Trouble>) -> Response {
        match result {
            Ok(response) => response,
            Err(Trouble::TooOften(error)) => self.busy(&error),
            Err(Trouble::Room(Error::UnknownQueue)) => {
                let error = ApiError::from(Error::UnknownQueue);
                error.into_response()
            }
            Err(Trouble::Room(Error::AddressFull { .. })) => self.show(View::AddressFull),
            Err(Trouble::Room(Error::Busy)) => self.show(View::Busy),
            Err(Trouble::Room(error)) => {
                tracing::warn!(error = %error, queue = %self.queue.id, "a visitor's page failed");
                self.show(View::Away)
            }
        }
    }
}

/// A place that ended as its visitor wished, or after a visit.
fn done(place: &Place) -> bool {
    place.state.is_over()
        && matches!(
            place.reason,
            Some(Reason::Cancelled | Reason::Completed | Reason::SessionIdle | Reason::SessionCap)
        )
}

/// A key nobody can guess.
fn fresh_key() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

fn see_other(location: &str, cookie: Option<HeaderValue>) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    // Addresses are checked or made here; one that is not a header value is our fault.
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
    words: &Words,
    brand: &Brand,
    target: Option<String>,
    status: StatusCode,
    markup: &Markup,
) -> Response {
    let mut response = (status, markup.0.clone()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CONTENT_LANGUAGE, HeaderValue::from_static(words.lang));
    // A form that ends on the site must be allowed to: browsers count the redirect.
    let policy = front::PAGE_POLICY
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
