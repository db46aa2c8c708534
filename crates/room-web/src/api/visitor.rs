//! API of visitors: enqueue, status, heartbeat, leave, start a session.
//!
//! Identity is the position's signed token: as a bearer token, as the queue's cookie, or (where cookies
//! are blocked) as `?t=`. A session is proved by its pass or by the token of its position, sent the same
//! ways. An id proves nothing: operators and the site see ids. A priority in the body without proof is
//! refused.

use axum::Extension;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use room::{NewPosition, Position, PositionToken, Proof, QueueId, Room, SessionStart, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::openapi::RefOr;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::view::{
    EndReasonView, PassAlgorithm, PositionStatusView, PositionView, QueueStatusView, SessionView,
};
use super::{InQueue, InSession, stream};
use crate::cookie;
use crate::error::{RoomApiError, api_error};
use crate::limits::{self, PollKind, RateLimitState};
use crate::service::RoomState;
use crate::site::{OWN_PATH, Site};
use crate::waiting_page::i18n::{self, Translation};
use web::Routes;
use web::client::Client;
use web::error::{ApiError, ErrorBody};
use web::extract::{Json, OptionalJson, Query};
use web::middleware::RequestId;
use web::sse::Sse;
use web::time::Timestamp;

/// The routes.
pub(super) fn routes() -> Routes<RoomState> {
    let mut routes = OpenApiRouter::new()
        .routes(routes!(enqueue))
        .routes(routes!(status))
        .routes(routes!(heartbeat))
        .routes(routes!(cancel))
        .routes(routes!(leave))
        .routes(routes!(start_session))
        .routes(routes!(now))
        .routes(routes!(session, end))
        .routes(routes!(activity))
        .routes(routes!(complete))
        .routes(routes!(events))
        .routes(routes!(jwks));
    let components = routes.get_openapi_mut().components.get_or_insert_default();
    components.security_schemes.extend(security_schemes());
    // On a protected site only our own path leads here, so all of it is there as well.
    let (own, _) = routes.clone().split_for_parts();
    let own = axum::Router::new().nest(OWN_PATH, own);
    Routes { public: routes.merge(own.into()), ..Routes::default() }
}

/// Describes what visitors prove themselves with.
fn security_schemes() -> [(String, RefOr<SecurityScheme>); 2] {
    [
        (
            "position",
            "The token of a position, from `POST /api/v1/queues/{queue_id}/enqueue`. Browsers send it as the \
             cookie of the queue instead; where there are no cookies, it may be the parameter `t`.",
        ),
        (
            "pass",
            "The pass of a session, from `POST /api/v1/queues/{queue_id}/start-session`; as a cookie or as `t`, too.",
        ),
    ]
    .map(|(name, text)| {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(text));
        (name.to_owned(), RefOr::T(SecurityScheme::Http(bearer.build())))
    })
}

/// Body of `enqueue`. All of it is optional.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = EnqueueRequest, example = json!({ "visitor_id": "9b2f6c1e-4f0a-4c3e-9a51-7d2f0f6f3c55" }))]
struct EnqueueBody {
    /// A secret that the page generated: at least 16 random bytes, such as a random UUID. Enqueueing again
    /// with it finds the same position and its token. The header `Idempotency-Key` is the same.
    visitor_id: Option<String>,
    /// Must be 0 unless an invite proves more.
    #[schema(maximum = 3)]
    priority: u8,
    /// A signed invite.
    invite: Option<String>,
    /// Kept with the position: up to 16 entries and 1 KiB.
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
}

/// Query parameters of visitors' calls.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TokenQuery {
    /// Token of the position or pass of the session, where there are no cookies.
    t: Option<String>,
    /// Language of texts in the answer: `en`, `de` or `es`. Left out: no texts.
    lang: Option<String>,
}

impl TokenQuery {
    /// Returns the language of texts, if one is asked for.
    fn texts(&self, headers: &HeaderMap) -> Option<&'static Translation> {
        self.lang.as_deref().map(|lang| i18n::pick(Some(lang), headers))
    }
}

/// Enqueue a visitor, or return the position already held.
#[utoipa::path(post, path = "/api/v1/queues/{queue_id}/enqueue", tag = "room", operation_id = "enqueue",
    params(InQueue, TokenQuery,
        ("Idempotency-Key" = Option<String>, Header, description = "A secret of the visitor, at least 16 \
            random bytes: a repeated request with it finds the same position and its token.")),
    request_body = Option<EnqueueBody>,
    responses((status = 201, description = "A new position.", body = PositionView),
        (status = 200, description = "The position already held.", body = PositionView),
        (status = 400, description = "A guessable key.", body = ErrorBody),
        (status = 401, description = "An invalid invite.", body = ErrorBody),
        (status = 403, description = "A priority without proof.", body = ErrorBody),
        (status = 413, description = "Too much metadata.", body = ErrorBody),
        (status = 503, description = "Full, or closed for maintenance.", body = ErrorBody)))]
async fn enqueue(
    State(state): State<RoomState>,
    InQueue { queue_id: queue }: InQueue,
    Query(query): Query<TokenQuery>,
    client: Client,
    Extension(request): Extension<RequestId>,
    headers: HeaderMap,
    OptionalJson(body): OptionalJson<EnqueueBody>,
) -> Result<Response, RoomApiError> {
    let room = &state.room;
    // A form on another site would come without the cookie and replace the position held.
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if text("sec-fetch-mode") == Some("navigate") && text("sec-fetch-site") == Some("cross-site") {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "CROSS_ORIGIN",
            "a form on another site cannot enqueue",
        )
        .into());
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
                .details(json!({ "reason": fault.to_string() }))
                .into());
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
        )
        .into());
    }
    // An invalid token is no reason to turn a visitor away.
    let held = match token(&headers, &query, &queue) {
        Some(token) => room.check_position_token(&queue, &token).await.ok(),
        None => None,
    };
    // A visitor who holds a position is not enqueued again: the request counts as a poll.
    let limit = match &held {
        Some(held) => Some(limits::charge_poll(&state, room, held, PollKind::Call).await?),
        None => limits::charge_enqueue(&state, room, &client, &request.0).await?,
    };
    let new = NewPosition {
        held: held.map(|held| held.position),
        idempotency_key: text("idempotency-key").map(str::to_owned).or(body.visitor_id),
        proof,
        address: Some(client.ip),
        user_agent: text(header::USER_AGENT.as_str()).unwrap_or_default().to_owned(),
        metadata: body.metadata,
    };
    let by_header = headers.contains_key("idempotency-key");
    let enqueued = room.enqueue(&queue, new).await.map_err(|error| match error {
        room::Error::Invalid { field: "idempotency_key", message } => {
            let field = if by_header { "Idempotency-Key" } else { "visitor_id" };
            ApiError::invalid_field(field, message)
        }
        error => api_error(error),
    })?;
    let token = room.position_token(&enqueued.position).await?;
    let status = if enqueued.new { StatusCode::CREATED } else { StatusCode::OK };
    let view = PositionView::of(&enqueued.position, state.app.store().now());
    let mut view = view.with_texts(&enqueued.position, query.texts(&headers));
    let cookie = cookie::position(&queue, &token, client.secure)?;
    view.token = Some(token);
    let mut response = (status, [(header::SET_COOKIE, cookie)], Json(view)).into_response();
    if let Some(limit) = limit {
        limit.add_headers(&state, &mut response);
    }
    Ok(response)
}

/// Get the position. Reads only.
#[utoipa::path(get, path = "/api/v1/queues/{queue_id}/status", tag = "room", operation_id = "get_own_position",
    security(("position" = [])),
    params(InQueue, TokenQuery),
    responses((status = 200, description = "The position.", body = PositionView),
        (status = 401, description = "No valid token.", body = ErrorBody),
        (status = 410, description = "The position has ended.", body = ErrorBody)))]
async fn status(
    State(state): State<RoomState>,
    Holder { held, texts }: Holder,
) -> Result<Response, RoomApiError> {
    let room = &state.room;
    let limit = limits::charge_poll(&state, room, &held, PollKind::Call).await?;
    let position = room.status(&held.queue, &held.position).await?;
    shown(&state, room, &position, texts, limit).await
}

/// Body of `heartbeat`, as clients of other waiting rooms send it. None of it is needed, and none counts: the
/// time is the server's, the visitor is the token's.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = HeartbeatRequest, example = json!({ "visible": true }))]
struct HeartbeatBody {
    /// The client's time, in whatever form; ignored.
    timestamp: Option<Value>,
    /// The client's name for itself; ignored.
    client_id: Option<String>,
    /// True if the page is in view; ignored.
    visible: Option<bool>,
}

/// Send a heartbeat, which holds the position for another while, and get the position.
#[utoipa::path(post, path = "/api/v1/queues/{queue_id}/heartbeat", tag = "room", operation_id = "send_heartbeat",
    security(("position" = [])),
    params(InQueue, TokenQuery), request_body = Option<HeartbeatBody>,
    responses((status = 200, description = "The position.", body = PositionView),
        (status = 401, description = "No valid token.", body = ErrorBody),
        (status = 410, description = "The position has ended.", body = ErrorBody)))]
async fn heartbeat(
    State(state): State<RoomState>,
    Holder { held, texts }: Holder,
    client: Client,
    _body: OptionalJson<HeartbeatBody>,
) -> Result<Response, RoomApiError> {
    let room = &state.room;
    let limit = limits::charge_poll(&state, room, &held, PollKind::Call).await?;
    let position = beat(room, &held, &client).await?;
    shown(&state, room, &position, texts, limit).await
}

/// Follow the position as server-sent events `position`, `admitted`, `paused`, `resumed`, `maintenance`,
/// `message` and `expired`, each with the position. The first one is the current state. An open stream
/// counts as a heartbeat. Far from the front there is none.
#[utoipa::path(get, path = "/api/v1/queues/{queue_id}/events", tag = "room", operation_id = "follow_position",
    security(("position" = [])),
    params(InQueue, TokenQuery),
    responses((status = 200, description = "The stream.", content_type = "text/event-stream", body = String),
        (status = 204, description = "Too far from the front, or too many streams: poll instead."),
        (status = 401, description = "No valid token.", body = ErrorBody),
        (status = 410, description = "The position has ended.", body = ErrorBody)))]
async fn events(
    State(state): State<RoomState>,
    Holder { held, texts }: Holder,
    client: Client,
) -> Result<Response, RoomApiError> {
    let room = &state.room;
    limits::charge_poll(&state, room, &held, PollKind::Call).await?;
    let position = beat(room, &held, &client).await?;
    if position.state.is_over() {
        return Err(gone(&position.queue, position.state, position.reason).into());
    }
    // An admitted position gets one event; browsers do not reconnect after 204.
    if position.state == room::PositionState::Waiting && !stream::is_near(&position) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(match state.streams.follow(&state, position, client.ip, texts) {
        Some(events) => Sse::new(&state.app, events).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// A cancelled position.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CancelledPosition)]
struct CancelReply {
    /// Id of the position.
    position_id: String,
    /// Its status.
    status: PositionStatusView,
    /// Time at which it ended.
    ended_at: Option<Timestamp>,
}

/// Cancel the position. Idempotent.
#[utoipa::path(delete, path = "/api/v1/queues/{queue_id}/position", tag = "room", operation_id = "cancel_position",
    security(("position" = [])),
    params(InQueue, TokenQuery),
    responses((status = 200, description = "Cancelled.", body = CancelReply),
        (status = 401, description = "No valid token.", body = ErrorBody)))]
async fn cancel(
    State(state): State<RoomState>,
    Holder { held, .. }: Holder,
) -> Result<Json<CancelReply>, RoomApiError> {
    let room = &state.room;
    room.leave(&held.queue, &held.position).await?;
    let position = room.status(&held.queue, &held.position).await?;
    Ok(Json(CancelReply {
        position_id: position.id.to_string(),
        status: position.state.into(),
        ended_at: position.ended.map(Timestamp),
    }))
}

/// Cancel the position, for clients that can only post.
#[utoipa::path(post, path = "/api/v1/queues/{queue_id}/leave", tag = "room", operation_id = "leave_queue",
    security(("position" = [])),
    params(InQueue, TokenQuery),
    responses((status = 200, description = "Cancelled.", body = CancelReply),
        (status = 401, description = "No valid token.", body = ErrorBody)))]
async fn leave(state: State<RoomState>, holder: Holder) -> Result<Json<CancelReply>, RoomApiError> {
    cancel(state, holder).await
}

/// Body of `start-session`. All of it is optional.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = StartSessionRequest, example = json!({ "return_to": "/checkout" }))]
struct StartSessionBody {
    /// Destination: a path, or a URL of an origin the queue allows. Anything else is ignored, and the queue's
    /// own target is returned.
    return_to: Option<String>,
}

/// Start the session of an admitted position. Idempotent: a second call returns the first session.
#[utoipa::path(post, path = "/api/v1/queues/{queue_id}/start-session", tag = "room", operation_id = "start_session",
    security(("position" = [])),
    params(InQueue, TokenQuery), request_body = Option<StartSessionBody>,
    responses((status = 200, description = "The session.", body = SessionView),
        (status = 202, description = "Not admitted yet.", body = PositionView),
        (status = 401, description = "No valid token.", body = ErrorBody),
        (status = 410, description = "The position has ended.", body = ErrorBody)))]
async fn start_session(
    State(state): State<RoomState>,
    Holder { held, .. }: Holder,
    client: Client,
    headers: HeaderMap,
    OptionalJson(body): OptionalJson<StartSessionBody>,
) -> Result<Response, RoomApiError> {
    let room = &state.room;
    let limit = limits::charge_poll(&state, room, &held, PollKind::Call).await?;
    let agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    let visitor = Visitor {
        user_id: String::new(),
        address: Some(client.ip),
        user_agent: agent.unwrap_or_default().to_owned(),
    };
    match room.start_session(&held.queue, &held.position, &visitor).await? {
        SessionStart::Active { session, .. } => {
            let mut view = SessionView::of(&session);
            view.session_token = Some(room.issue_pass(&session).await?);
            let site = Site::of(&room.cached_queue(&held.queue).await?.config);
            let target = site.target(None, body.return_to.as_deref());
            view.redirect_url = Some(target.address().to_owned());
            let mut response = Json(view).into_response();
            limit.add_headers(&state, &mut response);
            Ok(response)
        }
        SessionStart::Waiting => {
            let position = room.status(&held.queue, &held.position).await?;
            let view = PositionView::of(&position, state.app.store().now());
            Ok((StatusCode::ACCEPTED, Json(view)).into_response())
        }
        SessionStart::Over(state, reason) => Err(gone(&held.queue, state, reason).into()),
    }
}

/// The public state of a queue.
#[derive(Debug, Serialize, ToSchema)]
struct QueueNow {
    /// Its status.
    status: QueueStatusView,
    /// Waiting visitors.
    waiting: u64,
    /// Admissions since the queue was created.
    total_admitted: u64,
    /// Configured admissions per minute.
    rate_per_minute: f64,
    /// Interval of polls.
    poll: PollInterval,
    /// Message to waiting visitors, by language tag.
    #[schema(value_type = HashMap<String, String>)]
    message: Map<String, Value>,
    /// Time of the answer.
    server_time: Timestamp,
}

/// Interval of polls: the estimated wait divided by `divisor`, from `floor_ms` to `ceiling_ms`.
#[derive(Debug, Serialize, ToSchema)]
struct PollInterval {
    /// Minimum.
    floor_ms: u64,
    /// Maximum.
    ceiling_ms: u64,
    /// Divisor of the estimated wait.
    divisor: u32,
}

/// Get the public state of a queue, the same for everybody; may be cached for a second.
#[utoipa::path(get, path = "/api/v1/queues/{queue_id}/now", tag = "room", operation_id = "get_queue_now",
    params(InQueue),
    responses((status = 200, description = "The queue.", body = QueueNow)))]
async fn now(
    State(state): State<RoomState>,
    InQueue { queue_id: queue }: InQueue,
) -> Result<Response, RoomApiError> {
    let queue = state.room.cached_queue(&queue).await?;
    let body = QueueNow {
        status: queue.status.into(),
        waiting: queue.waiting,
        total_admitted: queue.total_admitted,
        rate_per_minute: queue.config.admission.per_second() * 60.0,
        poll: PollInterval {
            floor_ms: queue.config.poll_floor.as_secs() * 1000,
            ceiling_ms: queue.config.poll_ceiling.as_secs() * 1000,
            divisor: room::POLL_DIVISOR,
        },
        message: queue.config.message.clone(),
        server_time: state.app.store().now().into(),
    };
    let mut response = Json(body).into_response();
    let cache = HeaderValue::from_static("public, max-age=1, s-maxage=1, stale-while-revalidate=5");
    response.headers_mut().insert(header::CACHE_CONTROL, cache);
    Ok(response)
}

/// Get the session. Needs its pass or the token of its position.
#[utoipa::path(get, path = "/api/v1/sessions/{session_id}", tag = "room", operation_id = "get_session",
    security(("pass" = []), ("position" = [])),
    params(InSession, TokenQuery),
    responses((status = 200, description = "The session.", body = SessionView),
        (status = 401, description = "Neither its pass nor the token of its position.", body = ErrorBody)))]
async fn session(
    SessionHolder { session }: SessionHolder,
) -> Result<Json<SessionView>, RoomApiError> {
    Ok(Json(SessionView::of(&session)))
}

/// Record activity, which renews the session up to its hard limit.
#[utoipa::path(post, path = "/api/v1/sessions/{session_id}/activity", tag = "room", operation_id = "record_activity",
    security(("pass" = []), ("position" = [])),
    params(InSession, TokenQuery),
    responses((status = 200, description = "The session, with a renewed pass.", body = SessionView),
        (status = 401, description = "Neither its pass nor the token of its position.", body = ErrorBody),
        (status = 410, description = "The session has ended.", body = ErrorBody)))]
async fn activity(
    State(state): State<RoomState>,
    SessionHolder { session }: SessionHolder,
) -> Result<Json<SessionView>, RoomApiError> {
    let room = &state.room;
    let session = room.activity(&session.queue, &session.id, 1).await?;
    if session.status != room::SessionStatus::Active {
        return Err(ApiError::new(StatusCode::GONE, "SESSION_EXPIRED", "the session has ended")
            .details(json!({ "reason": session.reason.map(EndReasonView::from) }))
            .into());
    }
    let mut view = SessionView::of(&session);
    view.session_token = Some(room.issue_pass(&session).await?);
    Ok(Json(view))
}

/// Complete the session, which frees its slot.
#[utoipa::path(post, path = "/api/v1/sessions/{session_id}/complete", tag = "room", operation_id = "complete_session",
    security(("pass" = []), ("position" = [])),
    params(InSession, TokenQuery),
    responses((status = 200, description = "Completed.", body = SessionView),
        (status = 401, description = "Neither its pass nor the token of its position.", body = ErrorBody)))]
async fn complete(
    State(state): State<RoomState>,
    SessionHolder { session }: SessionHolder,
) -> Result<Json<SessionView>, RoomApiError> {
    let room = &state.room;
    Ok(Json(SessionView::of(&room.complete(&session.queue, &session.id).await?)))
}

/// End the session.
#[utoipa::path(delete, path = "/api/v1/sessions/{session_id}", tag = "room", operation_id = "end_session",
    security(("pass" = []), ("position" = [])),
    params(InSession, TokenQuery),
    responses((status = 200, description = "Ended.", body = SessionView),
        (status = 401, description = "Neither its pass nor the token of its position.", body = ErrorBody)))]
async fn end(
    state: State<RoomState>,
    holder: SessionHolder,
) -> Result<Json<SessionView>, RoomApiError> {
    complete(state, holder).await
}

/// Public keys as a JSON Web Key Set (RFC 7517), in the document.
#[derive(ToSchema)]
#[expect(dead_code, reason = "the schema of room::Room::jwks")]
struct JwkSet {
    /// The keys; a pass names the one that signed it in its `kid`.
    keys: Vec<Jwk>,
}

/// One public key of a set, in the document.
#[derive(ToSchema)]
#[expect(dead_code, reason = "the schema of room::Room::jwks")]
struct Jwk {
    /// Key type: `OKP` for Ed25519, `RSA` for RS256.
    kty: String,
    /// Id of the key.
    kid: String,
    /// Signature algorithm.
    alg: PassAlgorithm,
    /// Its use: `sig`, for signatures.
    #[schema(rename = "use")]
    usage: String,
    /// Curve of an Ed25519 key.
    crv: Option<String>,
    /// Public half of an Ed25519 key, in base64url.
    x: Option<String>,
    /// Modulus of an RSA key, in base64url.
    n: Option<String>,
    /// Exponent of an RSA key, in base64url.
    e: Option<String>,
}

/// Get the public keys that verify passes.
#[utoipa::path(get, path = "/.well-known/jwks.json", tag = "room", operation_id = "get_jwks",
    responses((status = 200, description = "A JSON Web Key Set.", body = JwkSet)))]
async fn jwks(State(state): State<RoomState>) -> Result<Response, RoomApiError> {
    let mut response = Json(state.room.jwks().await?).into_response();
    let cache = HeaderValue::from_static("public, max-age=300");
    response.headers_mut().insert(header::CACHE_CONTROL, cache);
    Ok(response)
}

async fn shown(
    state: &RoomState,
    room: &Room,
    position: &Position,
    texts: Option<&'static Translation>,
    limit: RateLimitState,
) -> Result<Response, RoomApiError> {
    if position.state.is_over() {
        return Err(gone(&position.queue, position.state, position.reason).into());
    }
    let mut view = PositionView::of(position, state.app.store().now()).with_texts(position, texts);
    if position.state == room::PositionState::Admitted {
        let config = room.cached_queue(&position.queue).await?.config;
        if !config.target_url.is_empty() {
            let token = room.redirect_token(position).await?;
            view.redirect_url = Some(Site::of(&config).target(None, None).with("wrtoken", &token));
        }
    }
    let mut response = Json(view).into_response();
    limit.add_headers(state, &mut response);
    Ok(response)
}

fn gone(queue: &QueueId, state: room::PositionState, reason: Option<room::EndReason>) -> ApiError {
    ApiError::new(StatusCode::GONE, "POSITION_EXPIRED", "the position has ended; enqueue again")
        .details(json!({
            "status": PositionStatusView::from(state),
            "reason": reason.map(EndReasonView::from),
            "enqueue_url": format!("{OWN_PATH}/{queue}"),
        }))
}

/// Holder of a position, by the token sent with the request.
#[derive(Debug)]
struct Holder {
    held: PositionToken,
    /// Language of texts, if one is asked for.
    texts: Option<&'static Translation>,
}

impl FromRequestParts<RoomState> for Holder {
    type Rejection = RoomApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &RoomState,
    ) -> Result<Holder, RoomApiError> {
        let InQueue { queue_id: queue } = InQueue::from_request_parts(parts, state).await?;
        let Query(query) = Query::<TokenQuery>::from_request_parts(parts, state).await?;
        let room = &state.room;
        let checked = match token(&parts.headers, &query, &queue) {
            Some(token) => room.check_position_token(&queue, &token).await.map_err(api_error),
            None => Err(ApiError::new(
                StatusCode::UNAUTHORIZED,
                "BAD_TOKEN",
                "send the token of the position: as a bearer token, as the cookie, or as ?t=",
            )),
        };
        if checked.is_err() {
            // Of a queue that does not exist no token can be valid: say that instead.
            room.cached_queue(&queue).await?;
        }
        Ok(Holder { held: checked?, texts: query.texts(&parts.headers) })
    }
}

/// Sends a heartbeat for the holder of a token, which has what the store then need not read.
async fn beat(
    room: &Room,
    held: &PositionToken,
    client: &Client,
) -> Result<Position, RoomApiError> {
    // A token without a ticket is of an older version; the record has it.
    let priority = held.ticket.map(|_| held.priority);
    let position = room.heartbeat(&held.queue, &held.position, priority, Some(client.ip)).await?;
    Ok(Position { ticket: position.ticket.or(held.ticket), ..position })
}

/// Holder of a session, by its pass or the token of its position.
#[derive(Debug)]
struct SessionHolder {
    session: room::VisitorSession,
}

impl FromRequestParts<RoomState> for SessionHolder {
    type Rejection = RoomApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &RoomState,
    ) -> Result<SessionHolder, RoomApiError> {
        let InSession { session_id: id } = InSession::from_request_parts(parts, state).await?;
        let Query(query) = Query::<TokenQuery>::from_request_parts(parts, state).await?;
        let room = &state.room;
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
            Ok(false) | Err(room::Error::Token(_)) => Err(refused().into()),
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
