//! Users and their sessions: open, check, list, end, block, erase, watch.

use std::net::IpAddr;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::response::IntoResponse;
use bytes::Bytes;
use desk::UserId;
use desk::limit::LimitedParty;
use desk::users::{
    OpenOutcome, UserBlock, UserCheck, UserSession, UserSessionId, UserStatus, UserSummary,
    UserToken, UserWatch, VerifiedLogin, WatchState,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;
use web::audit::Note;
use web::error::ErrorBody;
use web::extract::{Json, Path, Query};
use web::idempotency::{IdempotencyKey, once};
use web::page::{Page, PageQuery};
use web::sse::{self, Sse};
use web::time::Timestamp;
use web::{ApiError, Routes};

use super::limits::{LimitResult, charge_policies};
use super::{ScopeCheck, UsersScope, parse_address, parse_user};
use crate::error::{DeskApiError, unknown_session, unknown_user};
use crate::service::DeskState;

/// Reconnect delay of a client that lost a stream.
const RETRY: Duration = Duration::from_secs(2);

pub(super) fn routes() -> Routes<DeskState> {
    Routes {
        any_role: OpenApiRouter::new()
            .routes(routes!(list))
            .routes(routes!(get))
            .routes(routes!(sessions))
            .routes(routes!(watch)),
        worker: OpenApiRouter::new()
            .routes(routes!(open_session).layer(from_fn(once)))
            .routes(routes!(end_all))
            .routes(routes!(check))
            .routes(routes!(end_one))
            .routes(routes!(change, erase))
            .routes(routes!(unblock)),
        ..Routes::default()
    }
}

/// Status of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = UserStatus)]
enum StatusName {
    /// May view.
    Anonymous,
    /// Has full access.
    Login,
    /// Has no access, even with a valid session.
    Blocked,
}

impl From<UserStatus> for StatusName {
    fn from(status: UserStatus) -> StatusName {
        match status {
            UserStatus::Anonymous => StatusName::Anonymous,
            UserStatus::Login => StatusName::Login,
            UserStatus::Blocked => StatusName::Blocked,
        }
    }
}

/// Rights that a status grants; the app enforces those it asks for.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Capabilities)]
struct CapabilitiesView {
    /// May read.
    view: bool,
    /// May create topics and the like.
    post: bool,
    /// May chat with an agent.
    chat: bool,
}

impl From<UserStatus> for CapabilitiesView {
    fn from(status: UserStatus) -> CapabilitiesView {
        let rights = status.capabilities();
        CapabilitiesView { view: rights.view, post: rights.post, chat: rights.chat }
    }
}

/// A block of a user.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UserBlock)]
struct BlockView {
    /// The operator's reason; empty if none was given.
    reason: String,
    /// End of the block; null if it lasts until it is lifted.
    #[schema(required)]
    ends_at: Option<Timestamp>,
}

impl From<UserBlock> for BlockView {
    fn from(block: UserBlock) -> BlockView {
        BlockView { reason: block.reason, ends_at: block.until.map(Timestamp::from) }
    }
}

/// A user.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = User)]
struct UserView {
    /// Id of the user.
    id: String,
    /// Status.
    status: StatusName,
    /// The block, if there is one.
    #[schema(required)]
    block: Option<BlockView>,
    /// Device of the latest login; empty without one.
    device_id: String,
    /// Time of the latest login.
    #[schema(required)]
    login_at: Option<Timestamp>,
    /// Time of the last request, accurate to a minute.
    #[schema(required)]
    seen_at: Option<Timestamp>,
    /// Address of the latest login as it is stored; empty if it is not.
    ip_address: String,
    /// Number of sessions.
    sessions: u64,
}

impl From<UserSummary> for UserView {
    fn from(user: UserSummary) -> UserView {
        UserView {
            id: user.id.to_string(),
            status: user.status.into(),
            block: user.block.map(BlockView::from),
            device_id: user.device_id,
            login_at: user.login.map(Timestamp::from),
            seen_at: user.seen.map(Timestamp::from),
            ip_address: user.ip_address,
            sessions: user.sessions,
        }
    }
}

/// Selects users.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct UsersQuery {
    /// Only users with this text in their id.
    text: Option<String>,
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// Position to continue from: `next_cursor` of the last answer. Left out: the beginning. Not for
    /// a search, which has one page.
    cursor: Option<String>,
}

/// List users, the one seen last first; or find some by a text in their id. Users that another
/// program keeps are listed once they were checked or changed here.
#[utoipa::path(get, path = "/api/v1/users", tag = "desk", operation_id = "list_users", params(UsersQuery),
    responses((status = 200, description = "A page of users.", body = Page<UserView>)))]
async fn list(
    State(state): State<DeskState>,
    _: ScopeCheck<UsersScope>,
    Query(query): Query<UsersQuery>,
) -> Result<Json<Page<UserView>>, DeskApiError> {
    let page = PageQuery { limit: query.limit, cursor: query.cursor };
    let (offset, limit) = (page.offset()?, page.limit()?);
    if let Some(text) = query.text.as_deref().filter(|text| !text.is_empty()) {
        let found = state.desk.users.search(text, limit).await?;
        let none: Option<String> = None;
        return Ok(Json(Page::new(found.into_iter().map(UserView::from).collect(), none)));
    }
    let found = state.desk.users.recent(offset, limit).await?;
    // A user on the list may be gone, so a short page is not the last by itself.
    let next = (!found.is_empty()).then(|| offset.saturating_add(limit));
    Ok(Json(Page::new(found.into_iter().map(UserView::from).collect(), next)))
}

/// Get a user.
#[utoipa::path(get, path = "/api/v1/users/{user_id}", tag = "desk", operation_id = "get_user",
    params(("user_id" = String, Path, description = "Id of the user.")),
    responses((status = 200, description = "The user.", body = UserView)))]
async fn get(
    State(state): State<DeskState>,
    _: ScopeCheck<UsersScope>,
    Path(id): Path<String>,
) -> Result<Json<UserView>, DeskApiError> {
    let user = state.desk.users.read(&parse_user(&id)?).await?.ok_or_else(unknown_user)?;
    Ok(Json(user.into()))
}

/// A login that the app has verified.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "device_id": "iPhone_12_ABC123", "ip_address": "203.0.113.7" }))]
struct NewUserSession {
    /// The device it came from: 1 to 200 bytes.
    #[schema(min_length = 1, max_length = 200)]
    device_id: String,
    /// Address of the client; stored as `desk.ip_address` says.
    ip_address: Option<String>,
    /// Token or session id of the same client that ends with this login.
    replaces: Option<String>,
}

/// A session that was opened.
#[derive(Debug, Serialize, ToSchema)]
struct OpenedUserSession {
    /// Id of the session.
    session_id: String,
    /// The token, shown this once: whoever has it is the user.
    token: String,
}

/// Open a session for a user whose password, or whatever stands for it, the app has checked.
#[utoipa::path(post, path = "/api/v1/users/{user_id}/sessions", tag = "desk", operation_id = "open_user_session",
    params(("user_id" = String, Path, description = "Id of the user."), IdempotencyKey), request_body = NewUserSession,
    responses((status = 201, description = "Opened.", body = OpenedUserSession),
        (status = 409, description = "The idempotency key was used for another request.", body = ErrorBody),
        (status = 403, description = "The user is blocked; nothing was opened.", body = ErrorBody)))]
async fn open_session(
    State(state): State<DeskState>,
    _: ScopeCheck<UsersScope>,
    Path(id): Path<String>,
    Json(body): Json<NewUserSession>,
) -> Result<impl IntoResponse, DeskApiError> {
    let user = parse_user(&id)?;
    let address = body.ip_address.as_deref().map(|text| parse_address(text, "ip_address"));
    let address: Option<IpAddr> = address.transpose()?;
    let replaces = match body.replaces.as_deref() {
        None => None,
        Some(text) => {
            let session = UserToken::parse(text).map(|token| token.session().clone());
            let session = session.or_else(|| UserSessionId::parse(text));
            Some(session.ok_or_else(|| {
                ApiError::invalid_field("replaces", "the token or the id of a session")
            })?)
        }
    };
    let login = VerifiedLogin {
        device_id: &body.device_id,
        ip_address: address,
        replaces: replaces.as_ref(),
    };
    match state.desk.users.open_session(&user, login).await? {
        OpenOutcome::Opened(token) => {
            let opened = OpenedUserSession {
                session_id: token.session().to_string(),
                token: token.to_string(),
            };
            let note = Note::new("user.session.open", user.as_str());
            Ok((StatusCode::CREATED, Extension(note), Json(opened)))
        }
        OpenOutcome::Blocked(block) => Err(blocked(&block).into()),
    }
}

/// 403: the user is blocked.
fn blocked(block: &UserBlock) -> ApiError {
    let ends_at = block.until.map(Timestamp::from);
    ApiError::new(StatusCode::FORBIDDEN, "USER_BLOCKED", "this user is blocked")
        .details(serde_json::json!({ "reason": block.reason, "ends_at": ends_at }))
}

/// A user to check: by token or, for programs with their own login, by id.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "token": "du_MTIz~0123456789abcdef0123456789abcdef.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "policies": ["api"] }))]
struct UserCheckRequest {
    /// Token of a session.
    token: Option<String>,
    /// Id of a user whose login another program keeps in the user's hash. The caller must know by
    /// other means that the request is this user's.
    user_id: Option<String>,
    /// Names of policies to charge the request to, as of this user; only if the user is valid.
    #[schema(max_items = 16)]
    policies: Option<Vec<String>>,
    /// Units the request takes of the policies; 1 if left out.
    cost: Option<u64>,
}

/// The standing of a user.
#[derive(Debug, Serialize, ToSchema)]
struct UserStanding {
    /// May the request go on? False for a blocked user, an unknown session, and a denial by a policy.
    valid: bool,
    /// The user; null if there is no such session.
    #[schema(required)]
    user_id: Option<String>,
    /// The status; null if there is no such session.
    #[schema(required)]
    status: Option<StatusName>,
    /// Rights that the status grants.
    capabilities: CapabilitiesView,
    /// The block, if there is one.
    #[schema(required)]
    block: Option<BlockView>,
    /// The decision of the policies, if some were named and the user is valid.
    #[schema(required)]
    limits: Option<LimitResult>,
}

/// Check the token of a session, or a user, and note that they were seen. An unknown session and a
/// blocked user are 200 with `valid` false: the check succeeded.
#[utoipa::path(post, path = "/api/v1/users/check", tag = "desk", operation_id = "check_user",
    request_body = UserCheckRequest,
    responses((status = 200, description = "The standing.", body = UserStanding),
        (status = 404, description = "There is no policy of this name.", body = ErrorBody)))]
async fn check(
    State(state): State<DeskState>,
    _: ScopeCheck<UsersScope>,
    Json(body): Json<UserCheckRequest>,
) -> Result<Json<UserStanding>, DeskApiError> {
    let users = &state.desk.users;
    let found = match (body.token.as_deref(), body.user_id.as_deref()) {
        (Some(token), None) => users.check_token(token).await?,
        (None, Some(id)) => users.check_user(&parse_user(id)?).await?,
        _ => {
            let message = "name the token of a session, or a user_id";
            return Err(ApiError::invalid_field("token", message).into());
        }
    };
    let none = UserStanding {
        valid: false,
        user_id: None,
        status: None,
        capabilities: UserStatus::Blocked.into(),
        block: None,
        limits: None,
    };
    Ok(Json(match found {
        UserCheck::Unknown => none,
        UserCheck::Blocked(block) => UserStanding {
            user_id: body.user_id.or_else(|| user_of(body.token.as_deref())),
            status: Some(StatusName::Blocked),
            block: Some(block.into()),
            ..none
        },
        UserCheck::Valid { user, status } => {
            let limits = match body.policies.as_deref().filter(|names| !names.is_empty()) {
                None => None,
                Some(names) => {
                    let party = LimitedParty::user(user.as_str());
                    Some(charge_policies(&state, &party, names, body.cost.unwrap_or(1)).await?)
                }
            };
            UserStanding {
                valid: limits.as_ref().is_none_or(LimitResult::is_allowed),
                user_id: Some(user.to_string()),
                status: Some(status.into()),
                capabilities: status.into(),
                block: None,
                limits,
            }
        }
    }))
}

/// The user that a token which was found valid names.
fn user_of(token: Option<&str>) -> Option<String> {
    let token = UserToken::parse(token?)?;
    Some(token.session().user().to_string())
}

/// One device of a user.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UserSession)]
struct DeviceView {
    /// Id of the session.
    id: String,
    /// The device.
    device_id: String,
    /// Address of the client as it is stored; empty if it is not.
    ip_address: String,
    /// Time of the login.
    opened_at: Timestamp,
    /// Time of the last request, accurate to a minute.
    seen_at: Timestamp,
}

impl From<UserSession> for DeviceView {
    fn from(session: UserSession) -> DeviceView {
        DeviceView {
            id: session.id.to_string(),
            device_id: session.device_id,
            ip_address: session.ip_address,
            opened_at: session.opened.into(),
            seen_at: session.seen.into(),
        }
    }
}

/// List the devices of a user, the newest login first.
#[utoipa::path(get, path = "/api/v1/users/{user_id}/sessions", tag = "desk", operation_id = "list_user_sessions",
    params(("user_id" = String, Path, description = "Id of the user."), PageQuery),
    responses((status = 200, description = "A page of sessions.", body = Page<DeviceView>)))]
async fn sessions(
    State(state): State<DeskState>,
    _: ScopeCheck<UsersScope>,
    Path(id): Path<String>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<DeviceView>>, DeskApiError> {
    let (offset, limit) = (page.offset()?, page.limit()?);
    let found = state.desk.users.sessions(&parse_user(&id)?).await?;
    let items = found.into_iter().skip(offset).take(limit).map(DeviceView::from).collect();
    Ok(Json(Page::at(offset, limit, items)))
}

/// The outcome of ending sessions.
#[derive(Debug, Serialize, ToSchema)]
struct EndedUserSessions {
    /// Number of sessions that were ended.
    ended: usize,
}

/// End one session of a user.
#[utoipa::path(delete, path = "/api/v1/users/{user_id}/sessions/{session_id}", tag = "desk", operation_id = "end_user_session",
    params(("user_id" = String, Path, description = "Id of the user."),
        ("session_id" = String, Path, description = "Id of the session.")),
    responses((status = 200, description = "Ended.", body = EndedUserSessions)))]
async fn end_one(
    State(state): State<DeskState>,
    _: ScopeCheck<UsersScope>,
    Path((id, session)): Path<(String, String)>,
) -> Result<impl IntoResponse, DeskApiError> {
    let user = parse_user(&id)?;
    let session = UserSessionId::parse(&session).filter(|session| *session.user() == user);
    let session = session.ok_or_else(unknown_session)?;
    if !state.desk.users.end_session(&session).await? {
        return Err(unknown_session().into());
    }
    let note = Note::new("user.session.end", format!("{user} {session}"));
    Ok((Extension(note), Json(EndedUserSessions { ended: 1 })))
}

/// Log a user out everywhere. No request with one of the sessions succeeds after the answer.
#[utoipa::path(delete, path = "/api/v1/users/{user_id}/sessions", tag = "desk", operation_id = "end_all_user_sessions",
    params(("user_id" = String, Path, description = "Id of the user.")),
    responses((status = 200, description = "Ended.", body = EndedUserSessions)))]
async fn end_all(
    State(state): State<DeskState>,
    _: ScopeCheck<UsersScope>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, DeskApiError> {
    let user = parse_user(&id)?;
    let ended = state.desk.users.end_all_sessions(&user).await?;
    let note = Note::new("user.logout", user.as_str());
    Ok((Extension(note), Json(EndedUserSessions { ended })))
}

/// A new status of a user.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "status": "blocked", "reason": "spam" }))]
struct UserChange {
    /// The status. `blocked` counts on every instance within a second, with or without a session,
    /// and outlives logins; any other lifts a block.
    status: StatusName,
    /// Reason of a block: at most 500 bytes.
    #[schema(max_length = 500)]
    reason: Option<String>,
    /// End of a block; it lasts until it is lifted if left out.
    until: Option<Timestamp>,
}

/// The status of a user before and after a change.
#[derive(Debug, Serialize, ToSchema)]
struct ChangedUser {
    /// Id of the user.
    id: String,
    /// Status now.
    status: StatusName,
    /// Status before.
    previous_status: StatusName,
}

/// Set the status of a user: block everywhere at once, or allow again.
#[utoipa::path(patch, path = "/api/v1/users/{user_id}", tag = "desk", operation_id = "change_user",
    params(("user_id" = String, Path, description = "Id of the user.")), request_body = UserChange,
    responses((status = 200, description = "Set.", body = ChangedUser)))]
async fn change(
    State(state): State<DeskState>,
    _: ScopeCheck<UsersScope>,
    Path(id): Path<String>,
    Json(body): Json<UserChange>,
) -> Result<impl IntoResponse, DeskApiError> {
    let (user, users) = (parse_user(&id)?, &state.desk.users);
    let reason = body.reason.as_deref().unwrap_or_default();
    let is_block = body.status == StatusName::Blocked;
    if !is_block && (body.reason.is_some() || body.until.is_some()) {
        let field = if body.reason.is_some() { "reason" } else { "until" };
        return Err(ApiError::invalid_field(field, "only a block has a reason and an end").into());
    }
    let previous = match body.status {
        StatusName::Blocked => users.block(&user, reason, body.until.map(|until| until.0)).await?,
        StatusName::Login => users.set_status(&user, UserStatus::Login).await?,
        StatusName::Anonymous => users.set_status(&user, UserStatus::Anonymous).await?,
    };
    let changed =
        ChangedUser { id: user.to_string(), status: body.status, previous_status: previous.into() };
    let action = if is_block { "user.block" } else { "user.status" };
    let after = serde_json::json!({ "status": body.status, "reason": reason });
    let before = serde_json::json!({ "status": changed.previous_status });
    let note = Note::new(action, user.as_str()).change(before, after);
    Ok((Extension(note), Json(changed)))
}

/// Lift the block of a user: the status before it comes back. A user who is not blocked stays as they are.
#[utoipa::path(delete, path = "/api/v1/users/{user_id}/block", tag = "desk", operation_id = "unblock_user",
    params(("user_id" = String, Path, description = "Id of the user.")),
    responses((status = 200, description = "Lifted, or there was none.", body = UnblockedUser)))]
async fn unblock(
    State(state): State<DeskState>,
    _: ScopeCheck<UsersScope>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, DeskApiError> {
    let user = parse_user(&id)?;
    let now = state.desk.users.unblock(&user).await?;
    let lifted =
        UnblockedUser { id: user.to_string(), removed: now.is_some(), status: now.map(Into::into) };
    let note = Note::new("user.unblock", user.as_str());
    Ok((Extension(note), Json(lifted)))
}

/// The outcome of lifting a block.
#[derive(Debug, Serialize, ToSchema)]
struct UnblockedUser {
    /// Id of the user.
    id: String,
    /// True if there was a block.
    removed: bool,
    /// The status that came back; null if there was no block.
    #[schema(required)]
    status: Option<StatusName>,
}

/// Says that everything is to be deleted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EraseQuery {
    /// Must be `true`: everything that is kept about the user is deleted, a block included.
    erase: Option<bool>,
}

/// The outcome of an erasure.
#[derive(Debug, Serialize, ToSchema)]
struct ErasedUser {
    /// Id of the user of whom nothing is kept any more.
    id: String,
}

/// Delete everything that is kept about a user: sessions, status, limits, conversations with their messages and
/// files; no key and no row with the id is left.
#[utoipa::path(delete, path = "/api/v1/users/{user_id}", tag = "desk", operation_id = "erase_user",
    params(("user_id" = String, Path, description = "Id of the user."), EraseQuery),
    responses((status = 200, description = "Deleted.", body = ErasedUser)))]
async fn erase(
    State(state): State<DeskState>,
    _: ScopeCheck<UsersScope>,
    Path(id): Path<String>,
    Query(query): Query<EraseQuery>,
) -> Result<impl IntoResponse, DeskApiError> {
    let user: UserId = parse_user(&id)?;
    if query.erase != Some(true) {
        let message = "say erase=true: sessions, status, a block and limits of the user are deleted; \
                       to log them out, DELETE /api/v1/users/{id}/sessions";
        return Err(ApiError::invalid_field("erase", message).into());
    }
    if let Some(chat) = &state.desk.chat {
        chat.erase_visitor(&user).await?;
    }
    state.desk.users.erase(&user).await?;
    let identity = LimitedParty::user(user.as_str());
    state.desk.book.erase(identity.identity()).await?;
    // The trail keeps no id of an erased user, only that it was done.
    let note = Note::new("user.erase", "a user");
    Ok((Extension(note), Json(ErasedUser { id: user.to_string() })))
}

/// Selects one session of a user.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WatchQuery {
    /// Only this session; any if left out.
    session_id: Option<String>,
}

/// Follow the standing of a user: an event `status` at once and at each change. The stream ends with
/// an event `ended` within a second of a block or logout, or within five if another program wrote it
/// to the store. An app holds one beside each socket of a user, and closes the socket with it.
#[utoipa::path(get, path = "/api/v1/users/{user_id}/watch", tag = "desk", operation_id = "watch_user",
    params(("user_id" = String, Path, description = "Id of the user."), WatchQuery),
    responses((status = 200, description = "Events `status` with `{\"status\"}`, then `ended` with `{\"reason\"}`: `blocked` or `logged_out`.",
        content_type = "text/event-stream", body = String)))]
async fn watch(
    State(state): State<DeskState>,
    _: ScopeCheck<UsersScope>,
    Path(id): Path<String>,
    Query(query): Query<WatchQuery>,
) -> Result<impl IntoResponse, DeskApiError> {
    let user = parse_user(&id)?;
    let session = match query.session_id.as_deref() {
        None => None,
        Some(text) => {
            let session = UserSessionId::parse(text).filter(|session| *session.user() == user);
            Some(session.ok_or_else(unknown_session)?)
        }
    };
    let watch = state.desk.watcher.watch(&user, session.as_ref()).await?;
    let follower = WatchFollower { watch, is_first: true };
    let events = futures_util::stream::unfold(Some(follower), WatchFollower::next);
    Ok(Sse::following(&state.app, RETRY, events))
}

struct WatchFollower {
    watch: UserWatch,
    is_first: bool,
}

impl WatchFollower {
    async fn next(follower: Option<WatchFollower>) -> Option<(Bytes, Option<WatchFollower>)> {
        let mut follower = follower?;
        let state = if std::mem::take(&mut follower.is_first) {
            follower.watch.state()
        } else {
            follower.watch.changed().await
        };
        let ended = |reason: &str| {
            let data = serde_json::json!({ "reason": reason }).to_string();
            Some((sse::event("ended", None, &data), None))
        };
        match state {
            WatchState::Blocked => ended("blocked"),
            WatchState::Ended => ended("logged_out"),
            WatchState::Valid(status) => {
                let data = serde_json::json!({ "status": StatusName::from(status) }).to_string();
                Some((sse::event("status", None, &data), Some(follower)))
            }
        }
    }
}
