//! What visitors call: take a place, ask, give a sign of life, leave, come in.
//!
//! Identity is the place's signed token: as a bearer token, as the queue's cookie, or (where cookies
//! are blocked) as `?t=`. A session is proved by its pass or by the token of its position, sent the same
//! ways. An id proves nothing: operators and the site see ids. A priority in the body without proof is
//! refused.

use axum::Extension;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use room::{Claim, NewPlace, Place, PlaceToken, Proof, QueueId, Room, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::limits::{self, Asks, Left};
use super::site::{OWN_PATH, Site};
use super::view::{PlaceView, SessionView};
use super::{InQueue, InSession, cookie, room, stream};
use crate::app::App;
use crate::client::Client;
use crate::dashboard::format::rfc3339;
use crate::error::{ApiError, ErrorBody};
use crate::extract::{Json, OptionalJson, Query};
use crate::front::RequestId;
use crate::section::Section;
use crate::sse::Sse;
use crate::waiting::words::{self, Words};

/// The routes.
pub(super) fn section() -> Section {
    let routes = OpenApiRouter::new()
        .routes(routes!(enqueue))
        .routes(routes!(status))
        .routes(routes!(heartbeat))
        .routes(routes!(cancel))
        .routes(routes!(leave))
        .routes(routes!(claim))
        .routes(routes!(now))
        .routes(routes!(session, end))
        .routes(routes!(activity))
        .routes(routes!(complete))
        .routes(routes!(events))
        .routes(routes!(jwks));
    // On a protected site only our own path leads here, so all of it is there as well.
    let (own, _) = routes.clone().split_for_parts();
    let own = axum::Router::new().nest(OWN_PATH, own);
    Section { public: routes.merge(own.into()), ..Section::default() }
}

/// What a visitor may send when joining. All of it is optional.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
struct Enqueue {
    /// A secret the page made up before asking: at least 16 random bytes, such as a random UUID. Joining
    /// again with it finds the same position and its token. The header `Idempotency-Key` is the same.
    visitor_id: Option<String>,
    /// Must be 0 unless an invite proves more.
    priority: u8,
    /// A signed invite.
    invite: Option<String>,
    /// Kept with the place: up to 16 entries and 1 KiB.
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
}

/// The token of a place where there are no cookies.
#[derive(Debug, Default, Deserialize)]
struct TokenQuery {
    t: Option<String>,
    lang: Option<String>,
}

impl TokenQuery {
    /// The language for texts, if one is asked for.
    fn words(&self, headers: &HeaderMap) -> Option<&'static Words> {
        self.lang.as_deref().map(|lang| words::pick(Some(lang), headers))
    }
}

/// Take a place in the line, or get back the one held.
#[utoipa::path(post, path = "/api/v1/queues/{queue_id}/enqueue", tag = "room", operation_id = "room_enqueue",
    params(InQueue), request_body = Option<Enqueue>,
    responses((status = 201, description = "A new place.", body = PlaceView),
        (status = 200, description = "The place already held.", body = PlaceView),
        (status = 400, description = "A key others could guess.", body = ErrorBody),
        (status = 401, description = "An invite that is not valid.", body = ErrorBody),
        (status = 403, description = "A priority without proof.", body = ErrorBody),
        (status = 413, description = "More metadata than is kept.", body = ErrorBody),
        (status = 503, description = "Full, or closed for maintenance.", body = ErrorBody)))]
async fn enqueue(
    State(app): State<App>,
    InQueue { queue_id: queue }: InQueue,
    Query(query): Query<TokenQuery>,
    client: Client,
    Extension(request): Extension<RequestId>,
    headers: HeaderMap,
    OptionalJson(body): OptionalJson<Enqueue>,
) -> Result<Response, ApiError> {
    let room = room(&app)?;
    // A form on another site would come without the cookie and take the place of the one held.
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if text("sec-fetch-mode") == Some("navigate") && text("sec-fetch-site") == Some("cross-site") {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "CROSS_ORIGIN",
            "a form on another site cannot join",
        ));
    }
    let proof = match &body.invite {
        Some(invite) => match room.check_invite(&queue, invite).await {
            Ok(invite) => Proof::Invite(invite),
            Err(room::Error::Token(fault)) => {
                return Err(ApiError::new(
                    StatusCode::UNAUTHORIZED,
                    "BAD_TOKEN",
                    "the invite is not valid",
                )
                .details(json!({ "reason": fault.to_string() })));
            }
            Err(error) => return Err(error.into()),
        },
        None => Proof::None,
    };
    if body.priority > 0 && matches!(proof, Proof::None) {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "PRIORITY_NOT_ALLOWED",
            "a priority needs an invite",
        ));
    }
    // A token that is not good any more is no reason to turn somebody away.
    let held = match token(&headers, &query, &queue) {
        Some(token) => room.check_place_token(&queue, &token).await.ok(),
        None => None,
    };
    // Whoever holds a place does not join: asking for it again is a poll.
    let left = match &held {
        Some(held) => Some(app.room_polls().take(&app, room, held, Asks::Call).await?),
        None => limits::join(&app, room, &client, &request.0).await?,
    };
    let new = NewPlace {
        held: held.map(|held| held.position),
        idempotency_key: text("idempotency-key").map(str::to_owned).or(body.visitor_id),
        proof,
        address: Some(client.ip),
        user_agent: text(header::USER_AGENT.as_str()).unwrap_or_default().to_owned(),
        metadata: body.metadata,
    };
    let by_header = headers.contains_key("idempotency-key");
    let joined = room.join(&queue, new).await.map_err(|error| match error {
        room::Error::Invalid { field: "idempotency_key", message } => {
            let field = if by_header { "Idempotency-Key" } else { "visitor_id" };
            ApiError::invalid_field(field, message)
        }
        error => error.into(),
    })?;
    let token = room.place_token(&joined.place).await?;
    let status = if joined.new { StatusCode::CREATED } else { StatusCode::OK };
    let view = PlaceView::of(&joined.place, app.store().now());
    let mut view = view.worded(&joined.place, query.words(&headers));
    let cookie = cookie::place(&queue, &token, client.secure)?;
    view.token = Some(token);
    let mut response = (status, [(header::SET_COOKIE, cookie)], Json(view)).into_response();
    if let Some(left) = left {
        left.tell(&app, &mut response);
    }
    Ok(response)
}

/// Where the place stands. Reads only.
#[utoipa::path(get, path = "/api/v1/queues/{queue_id}/status", tag = "room", operation_id = "room_status",
    params(InQueue),
    responses((status = 200, description = "The place.", body = PlaceView),
        (status = 401, description = "No token, or one that is not valid.", body = ErrorBody),
        (status = 410, description = "The place is over.", body = ErrorBody)))]
async fn status(
    State(app): State<App>,
    Holder { held, words }: Holder,
) -> Result<Response, ApiError> {
    let room = room(&app)?;
    let left = app.room_polls().take(&app, room, &held, Asks::Call).await?;
    let place = room.status(&held.queue, &held.position).await?;
    shown(&app, room, &place, words, left).await
}

/// A sign of life: holds the place for another while, and says where it stands.
#[utoipa::path(post, path = "/api/v1/queues/{queue_id}/heartbeat", tag = "room", operation_id = "room_heartbeat",
    params(InQueue),
    responses((status = 200, description = "The place.", body = PlaceView),
        (status = 401, description = "No token, or one that is not valid.", body = ErrorBody),
        (status = 410, description = "The place is over.", body = ErrorBody)))]
async fn heartbeat(
    State(app): State<App>,
    Holder { held, words }: Holder,
    client: Client,
) -> Result<Response, ApiError> {
    let room = room(&app)?;
    let left = app.room_polls().take(&app, room, &held, Asks::Call).await?;
    let place = beat(room, &held, &client).await?;
    shown(&app, room, &place, words, left).await
}

/// Where the place stands, told as it changes: server-sent events `position`, `admitted`, `paused`,
/// `resumed`, `maintenance`, `message` and `expired`, each with the place. The first one is how it
/// stands now. An open stream keeps the place. Far from the front there is none.
#[utoipa::path(get, path = "/api/v1/queues/{queue_id}/events", tag = "room", operation_id = "room_follow",
    params(InQueue),
    responses((status = 200, description = "The stream.", content_type = "text/event-stream", body = String),
        (status = 204, description = "Too far from the front, or too many streams: poll."),
        (status = 401, description = "No token, or one that is not valid.", body = ErrorBody),
        (status = 410, description = "The place is over.", body = ErrorBody)))]
async fn events(
    State(app): State<App>,
    Holder { held, words }: Holder,
    client: Client,
) -> Result<Response, ApiError> {
    let room = room(&app)?;
    app.room_polls().take(&app, room, &held, Asks::Call).await?;
    let place = beat(room, &held, &client).await?;
    if place.state.is_over() {
        return Err(gone(&place.queue, place.state, place.reason));
    }
    // An admitted place is told so once; browsers do not come back after 204.
    if place.state == room::State::Waiting && !stream::is_near(&place) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(match app.room_streams().follow(&app, place, client.ip, words) {
        Some(events) => Sse::new(&app, events).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// A place given up.
#[derive(Debug, Serialize, ToSchema)]
struct Cancelled {
    position_id: String,
    /// The state the place is in now.
    status: &'static str,
    /// When it ended.
    cancelled_at: Option<String>,
}

/// Give up the place. Doing it twice is doing it once.
#[utoipa::path(delete, path = "/api/v1/queues/{queue_id}/position", tag = "room", operation_id = "room_cancel",
    params(InQueue),
    responses((status = 200, description = "Given up.", body = Cancelled),
        (status = 401, description = "No token, or one that is not valid.", body = ErrorBody)))]
async fn cancel(
    State(app): State<App>,
    Holder { held, .. }: Holder,
) -> Result<Json<Cancelled>, ApiError> {
    let room = room(&app)?;
    room.leave(&held.queue, &held.position).await?;
    let place = room.status(&held.queue, &held.position).await?;
    Ok(Json(Cancelled {
        position_id: place.id.to_string(),
        status: place.state.as_str(),
        cancelled_at: place.ended.map(|at| rfc3339(at.0)),
    }))
}

/// The same for clients that can only post.
#[utoipa::path(post, path = "/api/v1/queues/{queue_id}/leave", tag = "room", operation_id = "room_leave",
    params(InQueue),
    responses((status = 200, description = "Given up.", body = Cancelled),
        (status = 401, description = "No token, or one that is not valid.", body = ErrorBody)))]
async fn leave(app: State<App>, holder: Holder) -> Result<Json<Cancelled>, ApiError> {
    cancel(app, holder).await
}

/// What a visitor may send when coming in.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
struct ClaimBody {
    /// Where to go: a path, or an address of an origin the queue allows. Anything else is left out
    /// and the queue's own target is answered.
    return_to: Option<String>,
}

/// Come in: the admitted place becomes a session. Doing it twice finds the first session.
#[utoipa::path(post, path = "/api/v1/queues/{queue_id}/claim", tag = "room", operation_id = "room_claim",
    params(InQueue), request_body = Option<ClaimBody>,
    responses((status = 200, description = "The session.", body = SessionView),
        (status = 202, description = "Not yet.", body = PlaceView),
        (status = 401, description = "No token, or one that is not valid.", body = ErrorBody),
        (status = 410, description = "The place is over.", body = ErrorBody)))]
async fn claim(
    State(app): State<App>,
    Holder { held, .. }: Holder,
    client: Client,
    headers: HeaderMap,
    OptionalJson(body): OptionalJson<ClaimBody>,
) -> Result<Response, ApiError> {
    let room = room(&app)?;
    let left = app.room_polls().take(&app, room, &held, Asks::Call).await?;
    let agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    let visitor = Visitor {
        user_id: String::new(),
        address: Some(client.ip),
        user_agent: agent.unwrap_or_default().to_owned(),
    };
    match room.claim(&held.queue, &held.position, &visitor).await? {
        Claim::Session { session, .. } => {
            let mut view = SessionView::of(&session);
            view.session_token = Some(room.issue_pass(&session).await?);
            let site = Site::of(&room.queue_lately(&held.queue).await?.config);
            let target = site.target(None, body.return_to.as_deref());
            view.redirect_url = Some(target.address().to_owned());
            let mut response = Json(view).into_response();
            left.tell(&app, &mut response);
            Ok(response)
        }
        Claim::Waiting => {
            let place = room.status(&held.queue, &held.position).await?;
            let view = PlaceView::of(&place, app.store().now());
            Ok((StatusCode::ACCEPTED, Json(view)).into_response())
        }
        Claim::Over(state, reason) => Err(gone(&held.queue, state, reason)),
    }
}

/// The queue as everybody may see it.
#[derive(Debug, Serialize, ToSchema)]
struct Now {
    /// `active`, `paused` or `maintenance`.
    state: &'static str,
    waiting: u64,
    /// How many were let in since the queue was made.
    admitted_total: u64,
    rate_per_minute: f64,
    /// How often to ask: a part of the wait, within bounds.
    poll: Poll,
    #[schema(value_type = Object)]
    message: Map<String, Value>,
    server_time_ms: i64,
}

/// How often a place asks: its wait divided by `divisor`, from `floor_ms` to `ceiling_ms`.
#[derive(Debug, Serialize, ToSchema)]
struct Poll {
    floor_ms: u64,
    ceiling_ms: u64,
    divisor: u32,
}

/// The queue at this moment, the same for all; may be cached for a second.
#[utoipa::path(get, path = "/api/v1/queues/{queue_id}/now", tag = "room", operation_id = "room_now",
    params(InQueue),
    responses((status = 200, description = "The queue.", body = Now)))]
async fn now(
    State(app): State<App>,
    InQueue { queue_id: queue }: InQueue,
) -> Result<Response, ApiError> {
    let queue = room(&app)?.queue_lately(&queue).await?;
    let body = Now {
        state: queue.status.as_str(),
        waiting: queue.waiting,
        admitted_total: queue.total_admitted,
        rate_per_minute: queue.config.admission.per_second() * 60.0,
        poll: Poll {
            floor_ms: queue.config.poll_floor.as_secs() * 1000,
            ceiling_ms: queue.config.poll_ceiling.as_secs() * 1000,
            divisor: room::POLL_DIVISOR,
        },
        message: queue.config.message.clone(),
        server_time_ms: app.store().now().0,
    };
    let mut response = Json(body).into_response();
    let cache = HeaderValue::from_static("public, max-age=1, s-maxage=1, stale-while-revalidate=5");
    response.headers_mut().insert(header::CACHE_CONTROL, cache);
    Ok(response)
}

/// The session, for whoever shows its pass or the token of its position.
#[utoipa::path(get, path = "/api/v1/sessions/{session_id}", tag = "room", operation_id = "room_session",
    params(InSession),
    responses((status = 200, description = "The session.", body = SessionView),
        (status = 401, description = "Neither its pass nor the token of its position.", body = ErrorBody)))]
async fn session(SessionHolder { session }: SessionHolder) -> Result<Json<SessionView>, ApiError> {
    Ok(Json(SessionView::of(&session)))
}

/// Activity in the session: it lives on, up to its hard limit.
#[utoipa::path(post, path = "/api/v1/sessions/{session_id}/activity", tag = "room", operation_id = "room_activity",
    params(InSession),
    responses((status = 200, description = "The session, with a renewed pass.", body = SessionView),
        (status = 401, description = "Neither its pass nor the token of its position.", body = ErrorBody),
        (status = 410, description = "The session is over.", body = ErrorBody)))]
async fn activity(
    State(app): State<App>,
    SessionHolder { session }: SessionHolder,
) -> Result<Json<SessionView>, ApiError> {
    let room = room(&app)?;
    let session = room.activity(&session.queue, &session.id, 1).await?;
    if session.status != room::SessionStatus::Active {
        return Err(ApiError::new(StatusCode::GONE, "SESSION_EXPIRED", "the session is over")
            .details(json!({ "reason": session.reason.map(room::Reason::as_str) })));
    }
    let mut view = SessionView::of(&session);
    view.session_token = Some(room.issue_pass(&session).await?);
    Ok(Json(view))
}

/// The visitor is done: the slot is free for the next one.
#[utoipa::path(post, path = "/api/v1/sessions/{session_id}/complete", tag = "room", operation_id = "room_complete",
    params(InSession),
    responses((status = 200, description = "Completed.", body = SessionView),
        (status = 401, description = "Neither its pass nor the token of its position.", body = ErrorBody)))]
async fn complete(
    State(app): State<App>,
    SessionHolder { session }: SessionHolder,
) -> Result<Json<SessionView>, ApiError> {
    let room = room(&app)?;
    Ok(Json(SessionView::of(&room.complete(&session.queue, &session.id).await?)))
}

/// The visitor ends the session.
#[utoipa::path(delete, path = "/api/v1/sessions/{session_id}", tag = "room", operation_id = "room_end_session",
    params(InSession),
    responses((status = 200, description = "Ended.", body = SessionView),
        (status = 401, description = "Neither its pass nor the token of its position.", body = ErrorBody)))]
async fn end(app: State<App>, holder: SessionHolder) -> Result<Json<SessionView>, ApiError> {
    complete(app, holder).await
}

/// The public keys that verify passes.
#[utoipa::path(get, path = "/.well-known/jwks.json", tag = "room", operation_id = "room_jwks",
    responses((status = 200, description = "A JSON Web Key Set.", body = Object)))]
async fn jwks(State(app): State<App>) -> Result<Response, ApiError> {
    let mut response = Json(room(&app)?.jwks().await?).into_response();
    let cache = HeaderValue::from_static("public, max-age=300");
    response.headers_mut().insert(header::CACHE_CONTROL, cache);
    Ok(response)
}

async fn shown(
    app: &App,
    room: &Room,
    place: &Place,
    words: Option<&'static Words>,
    left: Left,
) -> Result<Response, ApiError> {
    if place.state.is_over() {
        return Err(gone(&place.queue, place.state, place.reason));
    }
    let mut view = PlaceView::of(place, app.store().now()).worded(place, words);
    if place.state == room::State::Admitted {
        let config = room.queue_lately(&place.queue).await?.config;
        if !config.target_url.is_empty() {
            let token = room.redirect_token(place).await?;
            view.redirect_url = Some(Site::of(&config).target(None, None).with("wrtoken", &token));
        }
    }
    let mut response = Json(view).into_response();
    left.tell(app, &mut response);
    Ok(response)
}

fn gone(queue: &QueueId, state: room::State, reason: Option<room::Reason>) -> ApiError {
    ApiError::new(StatusCode::GONE, "POSITION_EXPIRED", "the place is over; join again to wait")
        .details(json!({
            "status": state.as_str(),
            "reason": reason.map(room::Reason::as_str),
            "rejoin_url": format!("{OWN_PATH}/{queue}"),
        }))
}

/// Whose place it is, by the token sent with the request.
#[derive(Debug)]
struct Holder {
    held: PlaceToken,
    /// The language for texts, if one is asked for.
    words: Option<&'static Words>,
}

impl FromRequestParts<App> for Holder {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Holder, ApiError> {
        let InQueue { queue_id: queue } = InQueue::from_request_parts(parts, app).await?;
        let Query(query) = Query::<TokenQuery>::from_request_parts(parts, app).await?;
        let room = room(app)?;
        let checked = match token(&parts.headers, &query, &queue) {
            Some(token) => room.check_place_token(&queue, &token).await.map_err(ApiError::from),
            None => Err(ApiError::new(
                StatusCode::UNAUTHORIZED,
                "BAD_TOKEN",
                "send the token of the place: as a bearer token, as the cookie, or as ?t=",
            )),
        };
        if checked.is_err() {
            // Of a queue that is not there no token can be good: say that instead.
            room.queue_lately(&queue).await?;
        }
        Ok(Holder { held: checked?, words: query.words(&parts.headers) })
    }
}

/// A heartbeat by the holder of a token, which knows what the store then need not read.
async fn beat(room: &Room, held: &PlaceToken, client: &Client) -> Result<Place, ApiError> {
    // A token without a ticket is of an older version: the record has it.
    let level = held.ticket.map(|_| held.level);
    let place = room.heartbeat(&held.queue, &held.position, level, Some(client.ip)).await?;
    Ok(Place { ticket: place.ticket.or(held.ticket), ..place })
}

/// A session whose pass, or the token of whose position, came with the request.
#[derive(Debug)]
struct SessionHolder {
    session: room::Session,
}

impl FromRequestParts<App> for SessionHolder {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<SessionHolder, ApiError> {
        let InSession { session_id: id } = InSession::from_request_parts(parts, app).await?;
        let Query(query) = Query::<TokenQuery>::from_request_parts(parts, app).await?;
        let room = room(app)?;
        let queue = room.queue_of_session(&id).await?;
        let refused = || {
            ApiError::new(
                StatusCode::UNAUTHORIZED,
                "BAD_TOKEN",
                "send the pass of the session or the token of its position: as a bearer token, as the \
                 cookie, or as ?t=",
            )
        };
        let token = token(&parts.headers, &query, &queue).ok_or_else(refused)?;
        let session = room.session(&queue, &id).await?;
        match room.proves_session(&session, &token).await {
            Ok(true) => Ok(SessionHolder { session }),
            Ok(false) | Err(room::Error::Token(_)) => Err(refused()),
            Err(error) => Err(error.into()),
        }
    }
}

fn token(headers: &HeaderMap, query: &TokenQuery, queue: &QueueId) -> Option<String> {
    let bearer = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "));
    if let Some(bearer) = bearer {
        return Some(bearer.trim().to_owned());
    }
    cookie::read(headers, queue).map(str::to_owned).or_else(|| query.t.clone())
}
