//! The support chat over HTTP and WebSocket: who calls, what they may do, and what they see.
//!
//! Read `caller.rs` (visitors, agents, operators, bots), `widget.rs` (visitors' calls), `staff.rs`
//! (agents' calls about conversations), `people.rs` (agents, teams, canned responses), `reports.rs`,
//! `login.rs`, `delivery.rs` (e-mail, web push, the outbox), then `socket.rs` and `events.rs` (live).

mod caller;
mod delivery;
mod events;
mod login;
mod people;
mod reports;
mod socket;
mod staff;
mod view;
mod widget;

pub(crate) use caller::AGENT_COOKIE;

use std::path::Path;
use std::sync::Arc;

use axum::Extension;
use axum::http::StatusCode;
use axum::routing::post;
use desk::archive::{Archive, ArchivePlace, ArchiveSync};
use desk::chat::{AssignmentMode, Chat, ChatOptions, ChatParts, Conversation, EventSink};
use desk::limit::{LimitedParty, NamedPolicy};
use desk::users::Users;
use desk::{ConversationId, InstanceId, PolicyName, Prefix};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{Millis, Store};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{OpenApi, Ref, RefOr};
use utoipa::{IntoParams, ToSchema};
use web::config::Config;
use web::extract::Json;
use web::page::{LIMIT_MAX, PageQuery};
use web::{ApiError, App, Routes};

use crate::config::{ChatAssignment, DeskSettings};
use crate::courier::smtp::SmtpServer;
use crate::courier::{CourierState, DeskCourier};
use crate::error::DeskApiError;
use crate::limiter::verdict;
use crate::service::DeskState;

/// Paths that files are sent to.
const UPLOAD_PATHS: [&str; 2] = ["/api/v1/conversations/files", "/api/v1/widget/files"];

/// The routes of the document.
pub(crate) fn routes() -> Routes<DeskState> {
    let mut routes = widget::routes()
        .merge(staff::routes())
        .merge(people::routes())
        .merge(reports::routes())
        .merge(login::routes())
        .merge(delivery::routes())
        .merge(events::routes());
    describe_callers(routes.public.get_openapi_mut());
    routes
}

/// Calls that need no session.
const WITHOUT_SESSION: [&str; 7] = [
    "/api/v1/agents/accept",
    "/api/v1/agents/login",
    "/api/v1/widget/availability",
    "/api/v1/widget/config",
    "/api/v1/widget/files/{file_id}",
    "/api/v1/widget/return",
    "/api/v1/widget/sessions",
];

/// Calls that only an agent's own session may make; the other calls of agents are open to operators too.
const AGENTS_ONLY: [&str; 6] = [
    "/api/v1/agents/logout",
    "/api/v1/agents/me",
    "/api/v1/conversations/events",
    "/api/v1/presence/",
    "/api/v1/waiting/next",
    "/api/v1/ws-ticket",
];

/// Names of the credentials in the document, each an alternative.
fn credentials_of(path: &str) -> &'static [&'static str] {
    match path {
        path if WITHOUT_SESSION.contains(&path) => &[],
        path if path.starts_with("/api/v1/widget/") => &["visitor"],
        path if AGENTS_ONLY.iter().any(|start| path.starts_with(start)) => {
            &["agent", "agent_session"]
        }
        _ => &["agent", "agent_session", "token", "session"],
    }
}

/// Describes the sessions of visitors and agents.
fn security_schemes() -> [(&'static str, SecurityScheme); 3] {
    let bearer = |text: &str| {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(text));
        SecurityScheme::Http(scheme.build())
    };
    let cookie = "An agent's session, for pages of the same origin only.";
    [
        ("agent", bearer("An agent's session token, from `POST /api/v1/agents/login`.")),
        (
            "agent_session",
            SecurityScheme::ApiKey(ApiKey::Cookie(ApiKeyValue::with_description(
                caller::AGENT_COOKIE,
                cookie,
            ))),
        ),
        ("visitor", bearer("A visitor's session token, from `POST /api/v1/widget/sessions`.")),
    ]
}

/// Adds credentials and refusals to the document. The handlers check the sessions of visitors and agents
/// themselves, so the frame does not know that there are any.
fn describe_callers(document: &mut OpenApi) {
    let components = document.components.get_or_insert_default();
    let schemes = security_schemes().map(|(name, scheme)| (name.to_owned(), RefOr::T(scheme)));
    components.security_schemes.extend(schemes);
    for (path, item) in &mut document.paths.paths {
        let operations =
            [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            let none: [String; 0] = [];
            let security = credentials_of(path).iter();
            let security = security.map(|name| SecurityRequirement::new(*name, none.clone()));
            operation.security = Some(security.collect());
            for (status, name) in
                [("401", "Unauthorized"), ("403", "Forbidden"), ("404", "NotFound")]
            {
                let responses = &mut operation.responses.responses;
                responses
                    .entry(status.to_owned())
                    .or_insert_with(|| RefOr::Ref(Ref::from_response_name(name)));
            }
        }
    }
}

/// All routes, with what their layers need: those of the document, the sockets, and the uploads. An upload
/// has the bytes of the file as its body; the document has no word for such a body, `docs/desk.md` has.
pub(crate) fn served_routes(state: &DeskState) -> Routes<DeskState> {
    let uploads = axum::Router::new()
        .route(UPLOAD_PATHS[0], post(staff::upload))
        .route(UPLOAD_PATHS[1], post(widget::upload));
    // A file may be larger than any other body.
    let body_limits = UPLOAD_PATHS.map(|path| (path.to_owned(), state.desk.upload_limit.clone()));
    let body_limits = body_limits.to_vec();
    let uploads = Routes { public: uploads.into(), body_limits, ..Routes::default() };
    let mut routes = routes().merge(socket::routes()).merge(uploads);
    routes.public = routes.public.route_layer(Extension(Arc::new(state.clone())));
    routes
}

/// The page of a list that is asked for, where all of it fits into one.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ChatListQuery {
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 1000, default = 1000)]
    limit: Option<usize>,
    /// Position to continue from: `next_cursor` of the last answer.
    cursor: Option<String>,
}

/// A page of a list of the chat; `docs/desk.md` shows the items.
#[derive(Debug, Serialize, ToSchema)]
struct ChatPage {
    /// The items.
    #[schema(value_type = Vec<Object>)]
    items: Vec<Value>,
    /// Cursor of the next page; null at the end.
    #[schema(required)]
    next_cursor: Option<String>,
}

impl ChatPage {
    /// Cuts the page out of a list that is in memory.
    fn cut(items: Vec<Value>, query: ChatListQuery) -> Result<Json<ChatPage>, ApiError> {
        let limit = Some(query.limit.unwrap_or(LIMIT_MAX));
        let query = PageQuery { limit, cursor: query.cursor };
        let (offset, limit, total) = (query.offset()?, query.limit()?, items.len());
        let items: Vec<Value> = items.into_iter().skip(offset).take(limit).collect();
        let end = offset.saturating_add(items.len());
        Ok(Json(ChatPage { items, next_cursor: (end < total).then(|| end.to_string()) }))
    }
}

/// Parts that the chat is opened with.
#[derive(Debug)]
pub(crate) struct ChatSetup<'a> {
    pub(crate) store: &'a Store,
    pub(crate) prefix: &'a Prefix,
    pub(crate) users: &'a Users,
    pub(crate) instance: &'a InstanceId,
    pub(crate) settings: &'a DeskSettings,
    pub(crate) data: &'a Path,
    pub(crate) sync: ArchiveSync,
}

/// Opens the chat as the settings say.
pub(crate) async fn open(setup: ChatSetup<'_>) -> Result<Chat, desk::Error> {
    let settings = setup.settings;
    let place = in_folder(&settings.archive, setup.data);
    let place = ArchivePlace::parse(&place)?;
    if place.is_local() && setup.store.embedded().is_none() {
        tracing::warn!(
            archive = %place,
            "the archive is a file and the store is shared: instances on other machines cannot use it; \
             set desk.archive to postgres://… for those"
        );
    }
    Chat::open(ChatParts {
        store: setup.store.clone(),
        prefix: setup.prefix.clone(),
        archive: Archive::open(&place, setup.sync).await?,
        users: setup.users.clone(),
        instance: setup.instance.clone(),
        files: in_folder(&settings.files, setup.data).into(),
        options: options(settings),
    })
    .await
}

/// `{data}` stands for the data folder.
pub(crate) fn in_folder(text: &str, data: &Path) -> String {
    text.replace("{data}", &data.to_string_lossy())
}

/// The durability that the store's setting asks for.
pub(crate) fn sync_of(config: &Config) -> ArchiveSync {
    match config.store.fsync {
        store::Fsync::Always => ArchiveSync::Always,
        store::Fsync::Everysec => ArchiveSync::Checkpoint,
        store::Fsync::No => ArchiveSync::Never,
    }
}

/// The options that the settings make.
pub(crate) fn options(settings: &DeskSettings) -> ChatOptions {
    ChatOptions {
        mode: match settings.assignment {
            ChatAssignment::LeastLoaded => AssignmentMode::LeastLoaded,
            ChatAssignment::RoundRobin => AssignmentMode::RoundRobin,
            ChatAssignment::Sticky => AssignmentMode::Sticky,
            ChatAssignment::Manual => AssignmentMode::Manual,
        },
        default_capacity: settings.default_capacity,
        ageing: settings.ageing,
        first_reply: settings.first_reply,
        offline_grace: settings.offline_grace,
        away_after: settings.away_after,
        reopen: settings.reopen,
        retention: settings.retention,
        anonymous_chat: settings.anonymous_chat,
        max_file_bytes: settings.max_file_bytes.0,
        max_person_file_bytes: settings.max_person_file_bytes.0,
        max_total_file_bytes: settings.max_total_file_bytes.0,
        widget_secret: settings.widget_secret.reveal().to_owned(),
        email: SmtpServer::of(settings).is_some(),
        email_delay: settings.email_delay,
        push: settings.push,
        public_url: settings.public_url.0.clone(),
    }
}

impl DeskState {
    /// The chat; 503 where it does not run.
    pub(crate) fn chat(&self) -> Result<&Chat, ApiError> {
        self.desk.chat.as_ref().ok_or_else(|| {
            ApiError::unavailable("CHAT_UNAVAILABLE", "the chat does not run on this instance")
        })
    }
}

/// Charges a call of the chat to a policy.
async fn charge(state: &DeskState, policy: &str, party: LimitedParty) -> Result<(), DeskApiError> {
    charge_for_now(state, policy, party).await.map(|_| ())
}

/// One request that was charged to a policy.
struct PolicyCharge {
    policy: Arc<NamedPolicy>,
    party: LimitedParty,
    request_id: String,
    at: Millis,
}

/// Gives back what one call was charged. What others of the same address used up stays.
async fn refund(state: &DeskState, charge: Option<PolicyCharge>) {
    let Some(PolicyCharge { policy, party, request_id, at }) = charge else { return };
    let limiter = state.desk.book.limiter();
    let given = limiter.refund(party.identity(), policy.policy(), &request_id, 1, at).await;
    if let Err(error) = given {
        tracing::warn!(%error, policy = policy.spec().name, "not given back; it frees itself in time");
    }
}

/// As [`charge`], for a call that is given back what it was charged if it succeeds.
async fn charge_for_now(
    state: &DeskState,
    policy: &str,
    party: LimitedParty,
) -> Result<Option<PolicyCharge>, DeskApiError> {
    let book = &state.desk.book;
    let Some(named) = PolicyName::parse(policy).ok().and_then(|name| book.find(&name)) else {
        return Ok(None);
    };
    let decision = book.check(&party, &[Arc::clone(&named)], 1, None).await?;
    if decision.allowed {
        // One that is exempt was charged nothing.
        let (request_id, at) = (decision.request_id, decision.at);
        let charge = PolicyCharge { policy: named, party, request_id, at };
        return Ok((!charge.request_id.is_empty()).then_some(charge));
    }
    let message = "too many of these; wait as long as Retry-After says";
    let style = state.app.limit_headers();
    Err(verdict(&decision).to_error(message, style, decision.at).into())
}

/// The id of a conversation in a path; what cannot be one is not there.
fn conversation_id(text: &str) -> Result<ConversationId, DeskApiError> {
    ConversationId::parse(text).map_err(|_| desk::Error::NotFound { what: "conversation" }.into())
}

/// A conversation with its place among those that wait, as the visitor sees it.
async fn visitor_view(chat: &Chat, conversation: &Conversation) -> Result<Value, DeskApiError> {
    let mut view = conversation.visitor_json(&*chat.names());
    let place = chat.waiting_place(&conversation.id).await?;
    view["queue"] = place.map_or(Value::Null, |place| {
        json!({ "position": place.position, "expected_wait_seconds": place.expected_wait_seconds })
    });
    Ok(view)
}

/// The version that `If-Match` names.
fn if_match(headers: &axum::http::HeaderMap) -> Result<Option<i64>, ApiError> {
    let Some(value) = headers.get(axum::http::header::IF_MATCH) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(None);
    }
    let version = text.strip_prefix("\"v").and_then(|rest| rest.strip_suffix('"'));
    let version = version.and_then(|version| version.parse().ok());
    version.map(Some).ok_or_else(|| {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            "INVALID_REQUEST",
            "If-Match takes the ETag of the conversation, such as \"v17\"",
        )
    })
}

/// Hands the chat's events to webhooks.
#[derive(Debug)]
pub(crate) struct WebhookSink(pub(crate) App);

impl EventSink for WebhookSink {
    fn take<'a>(
        &'a self,
        kind: &'a str,
        conversation: &'a str,
        event_no: i64,
        data: &'a str,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Some(event) = crate::webhooks::event_of(kind, conversation, event_no, data) else {
                return;
            };
            if let Err(error) = self.0.webhooks().emit(event).await {
                tracing::warn!(error = error.message(), kind, conversation, "webhook not queued");
            }
        })
    }
}

/// Installs what the chat needs of the frame.
pub(crate) fn connect(chat: &Chat, app: &App, courier: &Arc<CourierState>) {
    chat.set_sink(Arc::new(WebhookSink(app.clone())));
    let state = Arc::clone(courier);
    chat.set_courier(Arc::new(DeskCourier { app: app.clone(), state }));
}
