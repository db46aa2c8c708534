//! Visitors' calls.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use desk::chat::{
    ChatPriority, ConversationChange, ConversationChannel, ConversationList, ConversationStatus,
    MessageDraft, NewConversation, VisitorChange, VisitorClaim,
};
use desk::limit::LimitedParty;
use desk::users::{OpenOutcome, VerifiedLogin};
use desk::{TeamId, UserId};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;
use web::client::Client;
use web::extract::{self, Json, Path, Query};
use web::idempotency::IdempotencyKey;
use web::page::{Page, PageQuery};
use web::{ApiError, Routes};

use super::caller::{VisitorCaller, may_chat, once_by};
use super::view::{
    AvailabilityView, ChatMessage, MessagesPage, OpenedVisitorSession, SentByVisitor, SocketTicket,
    StartedByVisitor, VisitorConversation, VisitorSession, WidgetConfig,
};
use super::{ChatPage, charge, conversation_id, visitor_view};
use crate::error::DeskApiError;
use crate::service::DeskState;

pub(super) fn routes() -> Routes<DeskState> {
    Routes {
        public: OpenApiRouter::new()
            .routes(routes!(config))
            .routes(routes!(availability))
            .routes(routes!(open_session))
            .routes(routes!(session, change_session, end_session))
            .routes(routes!(list))
            .routes(routes!(start).layer(from_fn(once_by::<VisitorCaller>)))
            .routes(routes!(get))
            .routes(routes!(messages))
            .routes(routes!(send).layer(from_fn(once_by::<VisitorCaller>)))
            .routes(routes!(edit, delete))
            .routes(routes!(read))
            .routes(routes!(typing))
            .routes(routes!(close))
            .routes(routes!(rate))
            .routes(routes!(leave_message).layer(from_fn(once_by::<VisitorCaller>)))
            .routes(routes!(download))
            .routes(routes!(ticket)),
        ..Routes::default()
    }
}

/// Selects the team that answers.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TeamQuery {
    /// The team whose agents and hours count; all of them if left out.
    team_id: Option<String>,
}

impl TeamQuery {
    fn team(&self) -> Result<Option<TeamId>, DeskApiError> {
        Ok(self.team_id.as_deref().map(TeamId::parse).transpose()?)
    }
}

/// Get the configuration of the widget.
#[utoipa::path(get, path = "/api/v1/widget/config", tag = "desk", operation_id = "get_widget_config", params(TeamQuery),
    responses((status = 200, description = "The configuration.", body = WidgetConfig)))]
async fn config(
    State(state): State<DeskState>,
    client: Client,
    Query(query): Query<TeamQuery>,
) -> Result<Json<Value>, DeskApiError> {
    charge(&state, "widget", LimitedParty::ip(client.ip)).await?;
    let chat = state.chat()?;
    let options = chat.options();
    Ok(Json(json!({
        "anonymous_chat": options.anonymous_chat,
        "max_file_bytes": options.max_file_bytes,
        "prechat_fields": ["name", "email"],
        "availability": chat.availability(query.team()?.as_ref()).await?,
        "email_replies": chat.sends_email(),
        "version": 1,
    })))
}

/// Get the availability of agents.
#[utoipa::path(get, path = "/api/v1/widget/availability", tag = "desk", operation_id = "get_availability", params(TeamQuery),
    responses((status = 200, description = "The availability.", body = AvailabilityView)))]
async fn availability(
    State(state): State<DeskState>,
    client: Client,
    Query(query): Query<TeamQuery>,
) -> Result<Json<Value>, DeskApiError> {
    charge(&state, "widget", LimitedParty::ip(client.ip)).await?;
    Ok(Json(state.chat()?.availability(query.team()?.as_ref()).await?))
}

/// The proof of a site about its user.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct VisitorIdentity {
    /// The site's id of the user.
    user_id: String,
    /// E-mail address.
    email: Option<String>,
    /// Name.
    name: Option<String>,
    /// Unix seconds at which the proof was made.
    #[serde(rename = "at")]
    proved_seconds: i64,
    /// HMAC-SHA256 over user_id, email and at, with line breaks between, in hexadecimal.
    hmac: String,
}

/// A visitor who opens the widget.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "page_url": "https://shop.example/cart",
    "locale": "en",
    "identity": { "user_id": "42", "at": 1_790_000_000, "hmac": "5d2c…" },
}))]
struct NewVisitorSession {
    /// Id of the device.
    device_id: Option<String>,
    /// The page the widget is on.
    page_url: Option<String>,
    /// Language.
    locale: Option<String>,
    /// Name.
    name: Option<String>,
    /// E-mail address, not verified.
    email: Option<String>,
    /// The site's proof about its user.
    identity: Option<VisitorIdentity>,
}

/// Open a visitor's session.
#[utoipa::path(post, path = "/api/v1/widget/sessions", tag = "desk", operation_id = "open_visitor_session",
    request_body = NewVisitorSession,
    responses((status = 200, description = "Opened; the token is shown this once.", body = OpenedVisitorSession),
        (status = 403, description = "`BAD_IDENTITY` or `USER_BLOCKED`.", body = web::error::ErrorBody)))]
async fn open_session(
    State(state): State<DeskState>,
    client: Client,
    headers: HeaderMap,
    Json(body): Json<NewVisitorSession>,
) -> Result<Json<Value>, DeskApiError> {
    let chat = state.chat()?;
    check_origin(&state, &headers)?;
    charge(&state, "visitor_session", LimitedParty::ip(client.ip)).await?;
    let mut change = VisitorChange {
        name: body.name,
        email: body.email,
        page_url: body.page_url,
        locale: body.locale,
        ..VisitorChange::default()
    };
    let user = match body.identity {
        Some(identity) => {
            let claim = VisitorClaim {
                user_id: identity.user_id,
                name: identity.name,
                email: identity.email,
                at: identity.proved_seconds,
                hmac: identity.hmac,
            };
            let user = chat.verify_claim(&claim)?;
            change.name = claim.name.or(change.name);
            // What the proof covers counts; nobody else's word.
            change.email = Some(claim.email.unwrap_or_default());
            user
        }
        None => chat.fresh_visitor()?,
    };
    if change.email.as_deref() == Some("") {
        change.email = None;
    }
    let device = body.device_id.unwrap_or_else(|| "widget".to_owned());
    Ok(Json(open_for(&state, &client, user, &device, change).await?))
}

/// Opens a session of a visitor, and returns what a widget must know.
pub(super) async fn open_for(
    state: &DeskState,
    client: &Client,
    user: UserId,
    device: &str,
    change: VisitorChange,
) -> Result<Value, DeskApiError> {
    let chat = state.chat()?;
    let login = VerifiedLogin { device_id: device, ip_address: Some(client.ip), replaces: None };
    let token = match state.desk.users.open_session(&user, login).await? {
        OpenOutcome::Opened(token) => token,
        OpenOutcome::Blocked(_) => {
            return Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "USER_BLOCKED",
                "this visitor is blocked",
            )
            .into());
        }
    };
    let visitor = chat.put_visitor(&user, change).await?;
    let list = ConversationList { visitor: Some(user), limit: 20, ..ConversationList::default() };
    let (found, _) = chat.list(&list).await?;
    let open = found.iter().filter(|one| one.status != ConversationStatus::Resolved);
    let names = chat.names();
    let open: Vec<Value> = open.map(|one| one.visitor_json(&*names)).collect();
    Ok(json!({
        "token": token.to_string(),
        "session_id": token.session().to_string(),
        "visitor": visitor_json(&visitor),
        "conversations": open,
    }))
}

/// Refuses pages of other sites than the settings allow.
pub(super) fn check_origin(state: &DeskState, headers: &HeaderMap) -> Result<(), DeskApiError> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let Some(origin) = text(header::ORIGIN) else { return Ok(()) };
    let host = origin.split_once("://").map(|(_, host)| host);
    if host.is_some() && host == text(header::HOST) {
        return Ok(());
    }
    let allowed = state.desk.widget_origins.load();
    if allowed.iter().any(|known| known == origin) {
        return Ok(());
    }
    let message = format!("{origin} is not among desk.widget_origins");
    Err(ApiError::new(StatusCode::FORBIDDEN, "ORIGIN_NOT_ALLOWED", message).into())
}

/// A visitor, in their own view.
pub(super) fn visitor_json(visitor: &desk::chat::ChatVisitor) -> Value {
    json!({
        "id": visitor.id.as_str(),
        "name": visitor.name,
        "email": visitor.email,
        "verified": visitor.verified,
    })
}

/// Get the visitor of this session.
#[utoipa::path(get, path = "/api/v1/widget/session", tag = "desk", operation_id = "get_visitor_session",
    responses((status = 200, description = "The visitor.", body = VisitorSession)))]
async fn session(
    State(state): State<DeskState>,
    caller: VisitorCaller,
) -> Result<Json<Value>, DeskApiError> {
    let visitor = state.chat()?.visitor(&caller.id).await?;
    Ok(Json(json!({ "visitor": visitor_json(&visitor) })))
}

/// Changes of a visitor by themselves.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "name": "Eva", "email": "eva@example.org" }))]
struct VisitorSessionChange {
    /// Name.
    name: Option<String>,
    /// E-mail address.
    email: Option<String>,
    /// The page the widget is on.
    page_url: Option<String>,
    /// Language.
    locale: Option<String>,
}

/// Change the details of the visitor. A verified visitor's e-mail address comes only from the proof.
#[utoipa::path(patch, path = "/api/v1/widget/session", tag = "desk", operation_id = "change_visitor_session",
    request_body = VisitorSessionChange, responses((status = 200, description = "The visitor.", body = VisitorSession)))]
async fn change_session(
    State(state): State<DeskState>,
    caller: VisitorCaller,
    Json(body): Json<VisitorSessionChange>,
) -> Result<Json<Value>, DeskApiError> {
    charge(&state, "visitor_update", LimitedParty::ip(caller.client.ip)).await?;
    let chat = state.chat()?;
    let is_verified = chat.visitor(&caller.id).await?.verified;
    if is_verified && body.email.is_some() {
        return Err(super::caller::not_allowed(
            "the address of a verified visitor comes from the site",
        )
        .into());
    }
    let change = VisitorChange {
        name: body.name,
        email: body.email,
        page_url: body.page_url,
        locale: body.locale,
        ..VisitorChange::default()
    };
    let visitor = chat.put_visitor(&caller.id, change).await?;
    Ok(Json(json!({ "visitor": visitor_json(&visitor) })))
}

/// Log out.
#[utoipa::path(delete, path = "/api/v1/widget/session", tag = "desk", operation_id = "end_visitor_session",
    responses((status = 204, description = "Logged out.")))]
async fn end_session(
    State(state): State<DeskState>,
    caller: VisitorCaller,
) -> Result<StatusCode, DeskApiError> {
    state.desk.users.end_session(&caller.session).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A message to be sent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "content": "Where is my parcel?", "client_id": "c-1" }))]
struct VisitorMessage {
    /// The text, as written: 1 to 4,000 characters, or none with files.
    #[serde(default)]
    content: String,
    /// An id the client chose: sent again, it is the same message.
    client_id: Option<String>,
    /// Ids of files that were uploaded.
    #[serde(default)]
    attachments: Vec<String>,
}

impl VisitorMessage {
    fn draft(self, caller: &VisitorCaller) -> MessageDraft {
        MessageDraft {
            sender: caller.sender(),
            client_id: self.client_id,
            is_note: false,
            content: self.content,
            attachments: self.attachments,
        }
    }
}

/// A conversation to be started.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "message": { "content": "Where is my parcel?", "client_id": "c-1" } }))]
struct NewVisitorConversation {
    /// Its first message.
    message: VisitorMessage,
    /// Subject.
    subject: Option<String>,
    /// `normal` or `low`.
    priority: Option<String>,
    /// The team that shall answer.
    team_id: Option<String>,
}

/// Start a conversation. A visitor has one open conversation at a time.
#[utoipa::path(post, path = "/api/v1/widget/conversations", tag = "desk", operation_id = "start_conversation",
    params(IdempotencyKey), request_body = NewVisitorConversation,
    responses((status = 201, description = "Started.", body = StartedByVisitor),
        (status = 409, description = "`OPEN_CONVERSATION_EXISTS`, or the idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn start(
    State(state): State<DeskState>,
    caller: VisitorCaller,
    Json(body): Json<NewVisitorConversation>,
) -> Result<(StatusCode, Json<Value>), DeskApiError> {
    may_chat(&state, &caller.id)?;
    charge(&state, "message", LimitedParty::user(caller.id.as_str())).await?;
    let priority = match body.priority.as_deref() {
        None => ChatPriority::Normal,
        Some(word) => match ChatPriority::parse(word)? {
            allowed @ (ChatPriority::Normal | ChatPriority::Low) => allowed,
            _ => {
                return Err(ApiError::invalid_field("priority", "use normal or low").into());
            }
        },
    };
    let team = body.team_id.as_deref().map(TeamId::parse).transpose()?;
    let new = NewConversation {
        visitor: caller.id.clone(),
        message: body.message.draft(&caller),
        priority,
        subject: body.subject,
        team,
        skills: Vec::new(),
        channel: ConversationChannel::Widget,
        bot: false,
        is_offline: false,
    };
    started(&state, &caller, new).await
}

async fn started(
    state: &DeskState,
    caller: &VisitorCaller,
    new: NewConversation,
) -> Result<(StatusCode, Json<Value>), DeskApiError> {
    let chat = state.chat()?;
    charge(state, "new_conversation_ip", LimitedParty::ip(caller.client.ip)).await?;
    charge(state, "new_conversation", LimitedParty::user(caller.id.as_str())).await?;
    let sent = chat.start_conversation(new).await?;
    // The place in the queue is known once the event is delivered; without the store it comes later.
    if let Err(error) = chat.deliver_now(&sent.conversation.id).await {
        tracing::debug!(%error, "event delivered later");
    }
    let conversation = visitor_view(chat, &sent.conversation).await?;
    let position = conversation["queue"]["position"].clone();
    let answer = json!({ "conversation": conversation, "message": sent.message.to_json(), "position": position });
    Ok((StatusCode::CREATED, Json(answer)))
}

/// Selects conversations of the visitor.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct OwnConversationsQuery {
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 100, default = 20)]
    limit: Option<usize>,
    /// Position to continue from: `next_cursor` of the last answer.
    cursor: Option<String>,
}

/// List one's own conversations, newest first.
#[utoipa::path(get, path = "/api/v1/widget/conversations", tag = "desk", operation_id = "list_own_conversations",
    params(OwnConversationsQuery), responses((status = 200, description = "A page.", body = Page<VisitorConversation>)))]
async fn list(
    State(state): State<DeskState>,
    caller: VisitorCaller,
    Query(query): Query<OwnConversationsQuery>,
) -> Result<Json<ChatPage>, DeskApiError> {
    let chat = state.chat()?;
    let list = ConversationList {
        visitor: Some(caller.id.clone()),
        limit: query.limit.unwrap_or(20).clamp(1, 100),
        cursor: query.cursor.filter(|cursor| !cursor.is_empty()),
        ..ConversationList::default()
    };
    let (found, next_cursor) = chat.list(&list).await?;
    let names = chat.names();
    let items = found.iter().map(|one| one.visitor_json(&*names)).collect();
    Ok(Json(ChatPage { items, next_cursor }))
}

/// The visitor's conversation of this id; another's does not exist.
async fn own(
    state: &DeskState,
    caller: &VisitorCaller,
    id: &str,
) -> Result<desk::chat::Conversation, DeskApiError> {
    let found = state.chat()?.conversation(&conversation_id(id)?).await?;
    if found.visitor.id != caller.id {
        return Err(desk::Error::NotFound { what: "conversation" }.into());
    }
    Ok(found)
}

/// Get one of one's own conversations.
#[utoipa::path(get, path = "/api/v1/widget/conversations/{id}", tag = "desk", operation_id = "get_own_conversation",
    params(("id" = String, Path, description = "Id of the conversation.")),
    responses((status = 200, description = "The conversation.", body = VisitorConversation)))]
async fn get(
    State(state): State<DeskState>,
    caller: VisitorCaller,
    Path(id): Path<String>,
) -> Result<Json<Value>, DeskApiError> {
    let found = own(&state, &caller, &id).await?;
    Ok(Json(visitor_view(state.chat()?, &found).await?))
}

/// Selects messages.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct MessagesQuery {
    /// Only messages after this number.
    pub(super) after_seq: Option<i64>,
    /// Only messages before this number.
    pub(super) before_seq: Option<i64>,
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 500, default = 50)]
    pub(super) limit: Option<usize>,
    /// Position to continue from: `next_cursor` of the last answer, instead of the two numbers.
    pub(super) cursor: Option<String>,
}

impl MessagesQuery {
    /// Returns the numbers after and before which messages are selected. A cursor is such a number behind the
    /// sign of its direction: `>12`, `<12`.
    fn bounds(&self) -> Result<(Option<i64>, Option<i64>), ApiError> {
        let page = PageQuery { limit: None, cursor: self.cursor.clone() };
        let found = page.parse_cursor(|text| match text.split_at_checked(1)? {
            (">", seq) => Some((Some(seq.parse().ok()?), None)),
            ("<", seq) => Some((None, Some(seq.parse().ok()?))),
            _ => None,
        })?;
        Ok(found.unwrap_or((self.after_seq, self.before_seq)))
    }
}

/// List the messages of one's own conversation, oldest first.
#[utoipa::path(get, path = "/api/v1/widget/conversations/{id}/messages", tag = "desk", operation_id = "list_own_messages",
    params(("id" = String, Path, description = "Id of the conversation."), MessagesQuery),
    responses((status = 200, description = "Messages; `last_seq` and `has_more` besides.", body = MessagesPage)))]
async fn messages(
    State(state): State<DeskState>,
    caller: VisitorCaller,
    Path(id): Path<String>,
    Query(query): Query<MessagesQuery>,
) -> Result<Json<Value>, DeskApiError> {
    let found = own(&state, &caller, &id).await?;
    Ok(Json(page_of(&state, &found.id, &query, false).await?))
}

/// A page of messages.
pub(super) async fn page_of(
    state: &DeskState,
    id: &desk::ConversationId,
    query: &MessagesQuery,
    with_notes: bool,
) -> Result<Value, DeskApiError> {
    let limit = query.limit.unwrap_or(50);
    if !(1..=500).contains(&limit) {
        return Err(ApiError::invalid_field("limit", "1 to 500").into());
    }
    let (after, before) = query.bounds()?;
    let page = state.chat()?.messages(id, after, before, limit, with_notes).await?;
    let next = match after {
        Some(_) => page.messages.last().map(|message| format!(">{}", message.seq)),
        None => page.messages.first().map(|message| format!("<{}", message.seq)),
    };
    let items: Vec<Value> = page.messages.iter().map(|message| message.to_json()).collect();
    Ok(json!({
        "items": items,
        "next_cursor": next.filter(|_| page.has_more),
        "last_seq": page.last_seq,
        "has_more": page.has_more,
    }))
}

/// Send a message. 200 instead of 201 if it was sent before.
#[utoipa::path(post, path = "/api/v1/widget/conversations/{id}/messages", tag = "desk", operation_id = "send_own_message",
    params(("id" = String, Path, description = "Id of the conversation."), IdempotencyKey), request_body = VisitorMessage,
    responses((status = 201, description = "Sent and committed.", body = SentByVisitor),
        (status = 200, description = "It was sent before.", body = SentByVisitor),
        (status = 409, description = "The idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn send(
    State(state): State<DeskState>,
    caller: VisitorCaller,
    Path(id): Path<String>,
    Json(body): Json<VisitorMessage>,
) -> Result<(StatusCode, Json<Value>), DeskApiError> {
    may_chat(&state, &caller.id)?;
    charge(&state, "message", LimitedParty::user(caller.id.as_str())).await?;
    let chat = state.chat()?;
    let sent = chat.send(&conversation_id(&id)?, body.draft(&caller)).await?;
    let status = if sent.is_repeated { StatusCode::OK } else { StatusCode::CREATED };
    let conversation = sent.conversation.visitor_json(&*chat.names());
    Ok((status, Json(json!({ "message": sent.message.to_json(), "conversation": conversation }))))
}

/// A changed text.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "content": "Where is my parcel, please?" }))]
pub(super) struct MessageEdit {
    /// The new text.
    pub(super) content: String,
}

/// Change the text of one's own message, within 5 minutes.
#[utoipa::path(patch, path = "/api/v1/widget/conversations/{id}/messages/{message_id}", tag = "desk",
    operation_id = "edit_own_message", request_body = MessageEdit,
    params(("id" = String, Path, description = "Id of the conversation."), ("message_id" = String, Path, description = "Id of the message.")),
    responses((status = 200, description = "The message.", body = ChatMessage)))]
async fn edit(
    State(state): State<DeskState>,
    caller: VisitorCaller,
    Path((id, message)): Path<(String, String)>,
    Json(body): Json<MessageEdit>,
) -> Result<Json<Value>, DeskApiError> {
    charge(&state, "message", LimitedParty::user(caller.id.as_str())).await?;
    let id = conversation_id(&id)?;
    let message = state.chat()?.edit(&id, &message, caller.sender(), &body.content).await?;
    Ok(Json(message.to_json()))
}

/// Delete one's own message, within 5 minutes.
#[utoipa::path(delete, path = "/api/v1/widget/conversations/{id}/messages/{message_id}", tag = "desk",
    operation_id = "delete_own_message",
    params(("id" = String, Path, description = "Id of the conversation."), ("message_id" = String, Path, description = "Id of the message.")),
    responses((status = 204, description = "Deleted.")))]
async fn delete(
    State(state): State<DeskState>,
    caller: VisitorCaller,
    Path((id, message)): Path<(String, String)>,
) -> Result<StatusCode, DeskApiError> {
    state.chat()?.delete_message(&conversation_id(&id)?, &message, caller.sender()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A mark.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "seq": 12 }))]
pub(super) struct ReadMark {
    /// Number of the last message that was read.
    pub(super) seq: i64,
}

/// Mark messages as read. A mark only grows.
#[utoipa::path(post, path = "/api/v1/widget/conversations/{id}/read", tag = "desk", operation_id = "mark_own_read",
    params(("id" = String, Path, description = "Id of the conversation.")), request_body = ReadMark,
    responses((status = 204, description = "Marked.")))]
async fn read(
    State(state): State<DeskState>,
    caller: VisitorCaller,
    Path(id): Path<String>,
    Json(body): Json<ReadMark>,
) -> Result<StatusCode, DeskApiError> {
    state.chat()?.mark_read(&conversation_id(&id)?, caller.sender(), body.seq).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Somebody types.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "on": true }))]
struct VisitorTyping {
    /// Begins, or stopped.
    on: bool,
}

/// Show that the visitor is typing; this ends after 6 s.
#[utoipa::path(post, path = "/api/v1/widget/conversations/{id}/typing", tag = "desk", operation_id = "show_own_typing",
    params(("id" = String, Path, description = "Id of the conversation.")), request_body = VisitorTyping,
    responses((status = 204, description = "Shown.")))]
async fn typing(
    State(state): State<DeskState>,
    caller: VisitorCaller,
    Path(id): Path<String>,
    Json(body): Json<VisitorTyping>,
) -> Result<StatusCode, DeskApiError> {
    charge(&state, "typing", LimitedParty::user(caller.id.as_str())).await?;
    state.chat()?.show_typing(&conversation_id(&id)?, &caller.sender(), body.on, false).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Resolve one's own conversation.
#[utoipa::path(post, path = "/api/v1/widget/conversations/{id}/close", tag = "desk", operation_id = "close_own_conversation",
    params(("id" = String, Path, description = "Id of the conversation.")),
    responses((status = 200, description = "The conversation.", body = VisitorConversation)))]
async fn close(
    State(state): State<DeskState>,
    caller: VisitorCaller,
    Path(id): Path<String>,
) -> Result<Json<Value>, DeskApiError> {
    let found = own(&state, &caller, &id).await?;
    let change = ConversationChange {
        status: Some(ConversationStatus::Resolved),
        ..ConversationChange::default()
    };
    let chat = state.chat()?;
    let conversation = chat.change_conversation(&found.id, change, None, None).await?;
    Ok(Json(conversation.visitor_json(&*chat.names())))
}

/// A rating.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "score": 5, "comment": "Quick and kind." }))]
struct Rating {
    /// 1 to 5.
    #[schema(minimum = 1, maximum = 5)]
    score: i64,
    /// In words.
    comment: Option<String>,
}

/// Rate a conversation, once.
#[utoipa::path(post, path = "/api/v1/widget/conversations/{id}/rating", tag = "desk", operation_id = "rate_conversation",
    params(("id" = String, Path, description = "Id of the conversation.")), request_body = Rating,
    responses((status = 204, description = "Rated."),
        (status = 409, description = "`ALREADY_RATED`.", body = web::error::ErrorBody)))]
async fn rate(
    State(state): State<DeskState>,
    caller: VisitorCaller,
    Path(id): Path<String>,
    Json(body): Json<Rating>,
) -> Result<StatusCode, DeskApiError> {
    let id = conversation_id(&id)?;
    state.chat()?.rate(&id, &caller.id, body.score, body.comment).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A message left while nobody is there.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "email": "eva@example.org", "content": "Please call me back." }))]
struct OfflineMessage {
    /// Address for the answer.
    email: String,
    /// Name.
    name: Option<String>,
    /// The text.
    content: String,
    /// An id the client chose.
    client_id: Option<String>,
    /// Ids of files that were uploaded.
    #[serde(default)]
    attachments: Vec<String>,
    /// The team that shall answer.
    team_id: Option<String>,
}

/// Leave a message while no agent is available.
#[utoipa::path(post, path = "/api/v1/widget/offline", tag = "desk", operation_id = "leave_message",
    params(IdempotencyKey), request_body = OfflineMessage,
    responses((status = 201, description = "Kept.", body = SentByVisitor),
        (status = 409, description = "`OPEN_CONVERSATION_EXISTS`, or the idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn leave_message(
    State(state): State<DeskState>,
    caller: VisitorCaller,
    Json(body): Json<OfflineMessage>,
) -> Result<(StatusCode, Json<Value>), DeskApiError> {
    may_chat(&state, &caller.id)?;
    charge(&state, "message", LimitedParty::user(caller.id.as_str())).await?;
    let chat = state.chat()?;
    let team = body.team_id.as_deref().map(TeamId::parse).transpose()?;
    let is_verified = chat.visitor(&caller.id).await?.verified;
    let change = VisitorChange {
        name: body.name,
        email: (!is_verified).then_some(body.email),
        ..VisitorChange::default()
    };
    chat.put_visitor(&caller.id, change).await?;
    let mut message = MessageDraft::text(caller.sender(), &body.content);
    message.client_id = body.client_id;
    message.attachments = body.attachments;
    let new = NewConversation {
        visitor: caller.id.clone(),
        message,
        priority: ChatPriority::Normal,
        subject: None,
        team,
        skills: Vec::new(),
        channel: ConversationChannel::Offline,
        bot: false,
        is_offline: true,
    };
    started(&state, &caller, new).await
}

/// Name of a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UploadQuery {
    /// Name of the file.
    pub(super) name: String,
}

/// Takes a file of a visitor, who sends it with a message. Its type is found out, not believed.
pub(super) async fn upload(
    State(state): State<DeskState>,
    caller: VisitorCaller,
    Query(query): Query<UploadQuery>,
    body: Body,
) -> Result<(StatusCode, Json<Value>), DeskApiError> {
    may_chat(&state, &caller.id)?;
    charge(&state, "upload", LimitedParty::user(caller.id.as_str())).await?;
    let bytes = extract::read(body).await?;
    let file = state.chat()?.put_file(caller.id.as_str(), &query.name, bytes.to_vec()).await?;
    Ok((StatusCode::CREATED, Json(file.to_json())))
}

/// The contents of a file, for those of its conversation. Ids are random; a file that was not sent yet is
/// for who uploaded it.
#[utoipa::path(get, path = "/api/v1/widget/files/{file_id}", tag = "desk", operation_id = "get_file",
    params(("file_id" = String, Path, description = "Id of the file.")),
    responses((status = 200, description = "The contents.", content_type = "application/octet-stream", body = Vec<u8>)))]
async fn download(
    State(state): State<DeskState>,
    Path(id): Path<String>,
) -> Result<Response, DeskApiError> {
    // The id is 128 random bits and known to those of the conversation: an image in a page carries no header.
    let stored = state.chat()?.file(&id).await?;
    let mut response = Body::from(stored.bytes).into_response();
    let headers = response.headers_mut();
    let is_image = stored.file.is_image();
    let mime = if is_image { stored.file.mime.as_str() } else { "application/octet-stream" };
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_str(mime).map_err(|e| ApiError::internal(&e))?,
    );
    let name: String = stored
        .file
        .name
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect();
    let kind = if is_image { "inline" } else { "attachment" };
    let disposition = format!("{kind}; filename*=UTF-8''{name}");
    headers.insert(
        header::CONTENT_DISPOSITION,
        HeaderValue::from_str(&disposition).map_err(|e| ApiError::internal(&e))?,
    );
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=3600"));
    Ok(response)
}

/// Create a one-time ticket that opens a socket within 30 s.
#[utoipa::path(post, path = "/api/v1/widget/ws-ticket", tag = "desk", operation_id = "make_visitor_ticket",
    responses((status = 200, description = "The ticket.", body = SocketTicket)))]
async fn ticket(
    State(state): State<DeskState>,
    caller: VisitorCaller,
) -> Result<Json<Value>, DeskApiError> {
    let holder = format!("visitor {} {}", caller.id, caller.session);
    Ok(Json(super::login::made(&state, &holder).await?))
}
