//! Agents' calls about conversations.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use desk::chat::{
    AssignRequest, ChatPriority, Conversation, ConversationChange, ConversationChannel,
    ConversationList, ConversationStatus, ConversationView, MessageDraft, NewConversation, Sender,
};
use desk::{AgentId, ConversationId, TeamId, UserId};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;
use web::audit::{self, AuditEntry, AuditFilter};
use web::extract::{self, Json, Path, Query};
use web::idempotency::IdempotencyKey;
use web::page::{Page, PageQuery};
use web::time::Timestamp;
use web::{ApiError, Routes};

use super::caller::{AuditedCaller, StaffCaller, once_by};
use super::view::{
    AgentRef, ChatConversation, ChatMessage, ChatPriorityName, ConversationsPage, MessagesPage,
    SentToAgents, WaitingConversation,
};
use super::widget::{MessageEdit, MessagesQuery, ReadMark, UploadQuery, page_of};
use super::{ChatListQuery, ChatPage, conversation_id, if_match};
use crate::error::DeskApiError;
use crate::service::DeskState;

pub(super) fn routes() -> Routes<DeskState> {
    Routes {
        public: OpenApiRouter::new()
            .routes(routes!(list))
            .routes(routes!(create).layer(from_fn(once_by::<StaffCaller>)))
            .routes(routes!(get, change))
            .routes(routes!(assign))
            .routes(routes!(merge))
            .routes(routes!(transfer))
            .routes(routes!(messages))
            .routes(routes!(send).layer(from_fn(once_by::<StaffCaller>)))
            .routes(routes!(edit, delete))
            .routes(routes!(read))
            .routes(routes!(typing))
            .routes(routes!(viewers))
            .routes(routes!(trail))
            .routes(routes!(waiting))
            .routes(routes!(next)),
        ..Routes::default()
    }
}

/// A view of conversations, as the console has them.
#[derive(Debug, ToSchema)]
#[schema(as = ConversationView, rename_all = "lowercase")]
#[expect(dead_code, reason = "describes a value in the OpenAPI document")]
enum ConversationViewName {
    /// Assigned to the agent.
    Mine,
    /// Assigned to nobody.
    Unassigned,
    /// All of them.
    All,
    /// With messages that no agent has read.
    Unread,
    /// In which a note mentions the agent.
    Mentions,
    /// Of the agent's teams.
    Team,
    /// Snoozed.
    Snoozed,
}

/// Order of conversations.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ConversationSort {
    /// Newest message first.
    Recent,
    /// Most urgent first.
    Urgency,
}

/// Selects conversations.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ConversationsQuery {
    /// View; `all` if left out.
    #[param(value_type = Option<ConversationViewName>, inline)]
    view: Option<String>,
    /// Status; open ones if left out.
    #[param(value_type = Option<ConversationStatusName>)]
    status: Option<String>,
    /// Priority.
    #[param(value_type = Option<ChatPriorityName>)]
    priority: Option<String>,
    /// Id of the agent they are assigned to.
    assignee: Option<String>,
    /// Id of the team.
    team: Option<String>,
    /// A tag.
    tag: Option<String>,
    /// Id of the visitor.
    visitor: Option<String>,
    /// Words in messages, or the beginning of a visitor's name or address.
    text: Option<String>,
    /// Order; `recent` if left out.
    #[param(inline)]
    sort: Option<ConversationSort>,
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<usize>,
    /// Position to continue from: `next_cursor` of the last answer.
    cursor: Option<String>,
}

/// List conversations, with the number of open ones by view.
#[utoipa::path(get, path = "/api/v1/conversations", tag = "desk", operation_id = "list_conversations",
    params(ConversationsQuery), responses((status = 200, description = "A page; `counts` has the numbers.", body = ConversationsPage)))]
async fn list(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Query(query): Query<ConversationsQuery>,
) -> Result<Json<Value>, DeskApiError> {
    caller.require_person()?;
    let chat = state.chat()?;
    let limit = query.limit.unwrap_or(50);
    if !(1..=1_000).contains(&limit) {
        return Err(ApiError::invalid_field("limit", "a page has 1 to 1,000 items").into());
    }
    let by_urgency = matches!(query.sort, Some(ConversationSort::Urgency));
    let list = ConversationList {
        view: query.view.as_deref().map_or(Ok(ConversationView::All), ConversationView::parse)?,
        agent: caller.agent_id().cloned(),
        status: query.status.as_deref().map(ConversationStatus::parse).transpose()?,
        priority: query.priority.as_deref().map(ChatPriority::parse).transpose()?,
        assignee: query.assignee.as_deref().map(AgentId::parse).transpose()?,
        team: query.team.as_deref().map(TeamId::parse).transpose()?,
        tag: query.tag,
        visitor: query.visitor.as_deref().map(UserId::parse).transpose()?,
        text: query.text.filter(|text| !text.trim().is_empty()),
        by_urgency,
        limit,
        cursor: query.cursor.filter(|cursor| !cursor.is_empty()),
    };
    let (found, next) = chat.list(&list).await?;
    let counts = chat.counts(caller.agent_id()).await?;
    let names = chat.names();
    let items: Vec<Value> = found.iter().map(|one| one.agent_json(&*names)).collect();
    Ok(Json(json!({ "items": items, "next_cursor": next, "counts": counts.to_json() })))
}

/// A conversation that an agent starts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "visitor_id": "v~42", "content": "Your parcel has arrived." }))]
struct NewStaffConversation {
    /// The visitor.
    visitor_id: String,
    /// The first message.
    content: String,
    /// An id the client chose.
    client_id: Option<String>,
    /// Subject.
    subject: Option<String>,
}

/// Start a conversation with a visitor.
#[utoipa::path(post, path = "/api/v1/conversations", tag = "desk", operation_id = "create_conversation",
    params(IdempotencyKey), request_body = NewStaffConversation,
    responses((status = 201, description = "Started.", body = SentToAgents),
        (status = 409, description = "The idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn create(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Json(body): Json<NewStaffConversation>,
) -> Result<(StatusCode, Json<Value>), DeskApiError> {
    let chat = state.chat()?;
    let visitor = UserId::parse(&body.visitor_id)?;
    chat.visitor(&visitor).await?;
    let sender = caller.sender()?;
    let is_bot = matches!(sender, Sender::Bot(_));
    let mut message = MessageDraft::text(sender, &body.content);
    message.client_id = body.client_id;
    let new = NewConversation {
        visitor,
        message,
        priority: ChatPriority::Normal,
        subject: body.subject,
        team: None,
        skills: Vec::new(),
        channel: ConversationChannel::Api,
        bot: is_bot,
        is_offline: false,
    };
    let sent = chat.start_conversation(new).await?;
    let conversation = sent.conversation.agent_json(&*chat.names());
    Ok((
        StatusCode::CREATED,
        Json(json!({ "conversation": conversation, "message": sent.message.to_json() })),
    ))
}

/// A conversation with its tag for caches.
fn tagged(state: &DeskState, conversation: &Conversation) -> Result<Response, DeskApiError> {
    let mut response = Json(conversation.agent_json(&*state.chat()?.names())).into_response();
    let etag = HeaderValue::from_str(&conversation.etag()).map_err(|e| ApiError::internal(&e))?;
    response.headers_mut().insert(header::ETAG, etag);
    Ok(response)
}

/// Get a conversation.
#[utoipa::path(get, path = "/api/v1/conversations/{id}", tag = "desk", operation_id = "get_conversation",
    params(("id" = String, Path, description = "Id of the conversation.")),
    responses((status = 200, description = "The conversation, with `ETag`.", body = ChatConversation)))]
async fn get(
    State(state): State<DeskState>,
    _caller: StaffCaller,
    Path(id): Path<String>,
) -> Result<Response, DeskApiError> {
    let found = state.chat()?.conversation(&conversation_id(&id)?).await?;
    tagged(&state, &found)
}

/// Changes of a conversation; what is left out stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "status": "resolved", "tags": ["refund"] }))]
struct ConversationPatch {
    /// `open`, `pending` or `resolved`.
    #[schema(value_type = Option<ConversationStatusName>)]
    status: Option<String>,
    /// `urgent`, `high`, `normal` or `low`.
    priority: Option<String>,
    /// Subject; empty removes it.
    subject: Option<String>,
    /// Tags.
    tags: Option<Vec<String>>,
    /// Skills that an agent must have.
    skills: Option<Vec<String>>,
    /// Id of the team; empty removes it.
    team_id: Option<String>,
    /// The time at which a pending one is open again.
    wakes_at: Option<Timestamp>,
    /// A program answers; false hands over to people.
    bot: Option<bool>,
    /// The reason, for those who take over.
    reason: Option<String>,
}

/// Status of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ConversationStatus)]
pub(crate) enum ConversationStatusName {
    /// Somebody deals with it, or it waits for somebody.
    Open,
    /// Snoozed, or left while nobody was there.
    Pending,
    /// Done.
    Resolved,
}

/// Change a conversation. With `If-Match` only if it still has that version.
#[utoipa::path(patch, path = "/api/v1/conversations/{id}", tag = "desk", operation_id = "change_conversation",
    params(("id" = String, Path, description = "Id of the conversation."),
        ("If-Match" = Option<String>, Header, description = "The `ETag` that was seen.")),
    request_body = ConversationPatch,
    responses((status = 200, description = "The conversation.", body = ChatConversation),
        (status = 412, description = "It was changed meanwhile.", body = web::error::ErrorBody)))]
async fn change(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    headers: HeaderMap,
    Path(id): Path<String>,
    Json(body): Json<ConversationPatch>,
) -> Result<Response, DeskApiError> {
    caller.require_write()?;
    if matches!(&*caller, StaffCaller::Bot(_)) && body.bot.is_none() {
        caller.require_person()?;
    }
    let version = if_match(&headers)?;
    let after = json!({
        "status": body.status, "priority": body.priority, "tags": body.tags, "skills": body.skills,
        "team_id": body.team_id, "wakes_at": body.wakes_at, "bot": body.bot,
    });
    let team = match body.team_id.as_deref() {
        None => None,
        Some("") => Some(None),
        Some(id) => Some(Some(TeamId::parse(id)?)),
    };
    let change = ConversationChange {
        status: body.status.as_deref().map(ConversationStatus::parse).transpose()?,
        priority: body.priority.as_deref().map(ChatPriority::parse).transpose()?,
        subject: body.subject,
        tags: body.tags,
        skills: body.skills,
        team,
        wakes_at: body.wakes_at.map(|at| at.0),
        bot: body.bot,
        reason: body.reason,
    };
    let (chat, id) = (state.chat()?.clone(), conversation_id(&id)?);
    let (target, by) = (id.to_string(), caller.agent_id().cloned());
    let work =
        async move { Ok(chat.change_conversation(&id, change, version, by.as_ref()).await?) };
    let found = caller.audited_with("conversation.change", &target, after, work).await?;
    tagged(&state, &found)
}

/// An assignment.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "agent_id": "me", "expected_assignee": null }))]
struct Assignment {
    /// Id of the agent, `me`, or null to put it back into the queue.
    #[serde(default)]
    agent_id: Option<String>,
    /// The owner that was seen, or null; refused if it is another one by now.
    #[serde(default, with = "double_option")]
    #[schema(value_type = Option<String>)]
    expected_assignee: Option<Option<String>>,
    /// Also when the agent's capacity is used up, or they are not there; supervisors only.
    #[serde(default)]
    over_capacity: bool,
}

/// Tells a field that is null from one that is missing.
mod double_option {
    use serde::{Deserialize, Deserializer};

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Option<String>>, D::Error> {
        Option::<String>::deserialize(deserializer).map(Some)
    }
}

/// Assign a conversation to oneself or another agent, or return it to the queue.
#[utoipa::path(post, path = "/api/v1/conversations/{id}/assign", tag = "desk", operation_id = "assign_conversation",
    params(("id" = String, Path, description = "Id of the conversation.")), request_body = Assignment,
    responses((status = 200, description = "The conversation.", body = ChatConversation),
        (status = 409, description = "`ALREADY_ASSIGNED`, `AGENT_AT_CAPACITY`, `AGENT_OFFLINE`, `CONVERSATION_RESOLVED`.", body = web::error::ErrorBody)))]
async fn assign(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Path(id): Path<String>,
    Json(body): Json<Assignment>,
) -> Result<Response, DeskApiError> {
    caller.require_person_write()?;
    let is_own = body.agent_id.as_deref() == Some("me")
        || body.agent_id.as_deref() == caller.agent_id().map(AgentId::as_str);
    let agent = match body.agent_id.as_deref() {
        None => None,
        Some("me") => Some(caller.agent()?.id.clone()),
        Some(id) => Some(AgentId::parse(id)?),
    };
    if body.over_capacity {
        caller.require_supervisor()?;
    }
    let expected = match body.expected_assignee {
        None => None,
        Some(None) => Some(None),
        Some(Some(id)) => Some(Some(AgentId::parse(&id)?)),
    };
    let request = AssignRequest {
        agent,
        expected,
        over_capacity: body.over_capacity,
        needs_presence: !is_own && !body.over_capacity,
        by: caller.name(),
        reason: if is_own { "taken" } else { "assigned" },
    };
    let (chat, id) = (state.chat()?.clone(), conversation_id(&id)?);
    let (target, after) =
        (id.to_string(), json!({ "assignee": request.agent.as_ref().map(AgentId::as_str) }));
    let work = async move { Ok(chat.assign(&id, request).await?) };
    let found = caller.audited_with("conversation.assign", &target, after, work).await?;
    tagged(&state, &found)
}

/// A merge.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "into": "cnv_0199" }))]
struct Merge {
    /// The conversation that gets the messages.
    into: String,
}

/// Merge a conversation into another one of the same visitor: its messages are copied to the end of that one,
/// and it is resolved.
#[utoipa::path(post, path = "/api/v1/conversations/{id}/merge", tag = "desk", operation_id = "merge_conversation",
    params(("id" = String, Path, description = "Id of the conversation.")), request_body = Merge,
    responses((status = 200, description = "The conversation that it was merged into.", body = ChatConversation),
        (status = 409, description = "`OTHER_VISITOR`, `ALREADY_MERGED`, `CONVERSATION_RESOLVED`, `TOO_LONG`.", body = web::error::ErrorBody)))]
async fn merge(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Path(id): Path<String>,
    Json(body): Json<Merge>,
) -> Result<Response, DeskApiError> {
    caller.require_person_write()?;
    let into = ConversationId::parse(&body.into)?;
    let (chat, id) = (state.chat()?.clone(), conversation_id(&id)?);
    let (target, by) = (format!("{id} into {into}"), caller.agent_id().cloned());
    let found = caller
        .audited("conversation.merge", &target, async move {
            Ok(chat.merge(&id, &into, by.as_ref()).await?)
        })
        .await?;
    tagged(&state, &found)
}

/// A transfer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "agent_id": "agt_0199", "note": "Knows about refunds." }))]
struct Transfer {
    /// The agent who takes over.
    agent_id: Option<String>,
    /// The team that takes over.
    team_id: Option<String>,
    /// A note for them.
    note: Option<String>,
}

/// Transfer a conversation to an agent or a team, with a note.
#[utoipa::path(post, path = "/api/v1/conversations/{id}/transfer", tag = "desk", operation_id = "transfer_conversation",
    params(("id" = String, Path, description = "Id of the conversation.")), request_body = Transfer,
    responses((status = 200, description = "The conversation.", body = ChatConversation),
        (status = 409, description = "As of an assignment.", body = web::error::ErrorBody)))]
async fn transfer(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Path(id): Path<String>,
    Json(body): Json<Transfer>,
) -> Result<Response, DeskApiError> {
    let by = caller.agent()?.id.clone();
    let to = match (body.agent_id.as_deref(), body.team_id.as_deref()) {
        (Some(agent), None) => Ok(AgentId::parse(agent)?),
        (None, Some(team)) => Err(TeamId::parse(team)?),
        _ => return Err(ApiError::invalid_field("agent_id", "name agent_id or team_id").into()),
    };
    let (chat, id) = (state.chat()?.clone(), conversation_id(&id)?);
    let after = json!({ "agent_id": body.agent_id, "team_id": body.team_id });
    let target = id.to_string();
    let work = async move { Ok(chat.transfer(&id, to, body.note.as_deref(), &by).await?) };
    let found = caller.audited_with("conversation.transfer", &target, after, work).await?;
    tagged(&state, &found)
}

/// List the messages of a conversation, notes included, oldest first.
#[utoipa::path(get, path = "/api/v1/conversations/{id}/messages", tag = "desk", operation_id = "list_messages",
    params(("id" = String, Path, description = "Id of the conversation."), MessagesQuery),
    responses((status = 200, description = "Messages; `last_seq` and `has_more` besides.", body = MessagesPage)))]
async fn messages(
    State(state): State<DeskState>,
    _caller: StaffCaller,
    Path(id): Path<String>,
    Query(query): Query<MessagesQuery>,
) -> Result<Json<Value>, DeskApiError> {
    let found = state.chat()?.conversation(&conversation_id(&id)?).await?;
    Ok(Json(page_of(&state, &found.id, &query, true).await?))
}

/// A message of the staff.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "content": "It is on its way.", "client_id": "a-1" }))]
struct StaffMessage {
    /// The text, as written.
    #[serde(default)]
    content: String,
    /// `text`, or `note` for agents only.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// An id the client chose: sent again, it is the same message.
    client_id: Option<String>,
    /// Ids of files that were uploaded.
    #[serde(default)]
    attachments: Vec<String>,
}

/// Send a reply or a note. 200 instead of 201 if it was sent before.
#[utoipa::path(post, path = "/api/v1/conversations/{id}/messages", tag = "desk", operation_id = "send_message",
    params(("id" = String, Path, description = "Id of the conversation."), IdempotencyKey), request_body = StaffMessage,
    responses((status = 201, description = "Sent and committed.", body = SentToAgents),
        (status = 200, description = "It was sent before.", body = SentToAgents),
        (status = 409, description = "The idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn send(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Path(id): Path<String>,
    Json(body): Json<StaffMessage>,
) -> Result<(StatusCode, Json<Value>), DeskApiError> {
    let is_note = match body.kind.as_deref() {
        None | Some("text") => false,
        Some("note") => true,
        Some(_) => return Err(ApiError::invalid_field("type", "text or note").into()),
    };
    let draft = MessageDraft {
        sender: caller.sender()?,
        client_id: body.client_id,
        is_note,
        content: body.content,
        attachments: body.attachments,
    };
    let chat = state.chat()?;
    let sent = chat.send(&conversation_id(&id)?, draft).await?;
    let status = if sent.is_repeated { StatusCode::OK } else { StatusCode::CREATED };
    let conversation = sent.conversation.agent_json(&*chat.names());
    Ok((status, Json(json!({ "message": sent.message.to_json(), "conversation": conversation }))))
}

/// Change the text of one's own message, within 5 minutes.
#[utoipa::path(patch, path = "/api/v1/conversations/{id}/messages/{message_id}", tag = "desk", operation_id = "edit_message",
    request_body = MessageEdit,
    params(("id" = String, Path, description = "Id of the conversation."), ("message_id" = String, Path, description = "Id of the message.")),
    responses((status = 200, description = "The message.", body = ChatMessage)))]
async fn edit(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Path((id, message)): Path<(String, String)>,
    Json(body): Json<MessageEdit>,
) -> Result<Json<Value>, DeskApiError> {
    let (chat, id, sender) = (state.chat()?.clone(), conversation_id(&id)?, caller.sender()?);
    let target = format!("{id} {message}");
    let edit = async move { Ok(chat.edit(&id, &message, sender, &body.content).await?) };
    Ok(Json(caller.audited("message.edit", &target, edit).await?.to_json()))
}

/// Delete one's own message, within 5 minutes.
#[utoipa::path(delete, path = "/api/v1/conversations/{id}/messages/{message_id}", tag = "desk", operation_id = "delete_message",
    params(("id" = String, Path, description = "Id of the conversation."), ("message_id" = String, Path, description = "Id of the message.")),
    responses((status = 204, description = "Deleted.")))]
async fn delete(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Path((id, message)): Path<(String, String)>,
) -> Result<StatusCode, DeskApiError> {
    let (chat, id, sender) = (state.chat()?.clone(), conversation_id(&id)?, caller.sender()?);
    let target = format!("{id} {message}");
    let delete = async move { Ok(chat.delete_message(&id, &message, sender).await?) };
    caller.audited("message.delete", &target, delete).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Mark messages as read. Only the assignee's mark counts, or anybody's while there is none.
#[utoipa::path(post, path = "/api/v1/conversations/{id}/read", tag = "desk", operation_id = "mark_read",
    params(("id" = String, Path, description = "Id of the conversation.")), request_body = ReadMark,
    responses((status = 204, description = "Marked.")))]
async fn read(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Path(id): Path<String>,
    Json(body): Json<ReadMark>,
) -> Result<StatusCode, DeskApiError> {
    state.chat()?.mark_read(&conversation_id(&id)?, caller.sender()?, body.seq).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Somebody of the staff types.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "on": true }))]
struct StaffTyping {
    /// Begins, or stopped.
    on: bool,
    /// A note, which visitors are not shown.
    #[serde(default)]
    note: bool,
}

/// Show that the agent is typing; this ends after 6 s.
#[utoipa::path(post, path = "/api/v1/conversations/{id}/typing", tag = "desk", operation_id = "show_typing",
    params(("id" = String, Path, description = "Id of the conversation.")), request_body = StaffTyping,
    responses((status = 204, description = "Shown.")))]
async fn typing(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Path(id): Path<String>,
    Json(body): Json<StaffTyping>,
) -> Result<StatusCode, DeskApiError> {
    let id = conversation_id(&id)?;
    state.chat()?.show_typing(&id, &caller.sender()?, body.on, body.note).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the agents who are viewing a conversation.
#[utoipa::path(get, path = "/api/v1/conversations/{id}/viewers", tag = "desk", operation_id = "list_viewers",
    params(("id" = String, Path, description = "Id of the conversation."), ChatListQuery),
    responses((status = 200, description = "The agents.", body = Page<AgentRef>)))]
async fn viewers(
    State(state): State<DeskState>,
    _caller: StaffCaller,
    Path(id): Path<String>,
    Query(query): Query<ChatListQuery>,
) -> Result<Json<ChatPage>, DeskApiError> {
    let viewers = state.chat()?.viewers(&conversation_id(&id)?).await?;
    Ok(ChatPage::cut(viewers, query)?)
}

/// List the changes of a conversation that the staff made, from the audit trail, newest first. For supervisors and
/// operators.
#[utoipa::path(get, path = "/api/v1/conversations/{id}/audit", tag = "desk", operation_id = "list_conversation_audit",
    params(("id" = String, Path, description = "Id of the conversation."), PageQuery),
    responses((status = 200, description = "A page of the trail; it may be short although there is a next one.", body = Page<AuditEntry>)))]
async fn trail(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Path(id): Path<String>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<AuditEntry>>, DeskApiError> {
    caller.require_overview()?;
    let id = conversation_id(&id)?;
    state.chat()?.conversation(&id).await?;
    let filter = AuditFilter { target: id.to_string(), ..AuditFilter::default() };
    Ok(Json(audit::page_of(&state.app, &filter, &query).await?))
}

/// Takes a file of an agent, who sends it with a message.
pub(super) async fn upload(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Query(query): Query<UploadQuery>,
    body: Body,
) -> Result<(StatusCode, Json<Value>), DeskApiError> {
    let agent = caller.agent()?;
    let bytes = extract::read(body).await?;
    let file = state.chat()?.put_file(agent.id.as_str(), &query.name, bytes.to_vec()).await?;
    Ok((StatusCode::CREATED, Json(file.to_json())))
}

/// Selects waiting conversations.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WaitingQuery {
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<usize>,
    /// Position to continue from: `next_cursor` of the last answer.
    cursor: Option<String>,
}

/// List the conversations that wait for an agent, next first.
#[utoipa::path(get, path = "/api/v1/waiting", tag = "desk", operation_id = "list_waiting", params(WaitingQuery),
    responses((status = 200, description = "A page.", body = Page<WaitingConversation>)))]
async fn waiting(
    State(state): State<DeskState>,
    _caller: StaffCaller,
    Query(query): Query<WaitingQuery>,
) -> Result<Json<ChatPage>, DeskApiError> {
    let query = PageQuery { limit: Some(query.limit.unwrap_or(50).min(200)), cursor: query.cursor };
    let (offset, limit) = (query.offset()?, query.limit()?);
    let chat = state.chat()?;
    let found = chat.waiting(offset, limit).await?;
    let (names, now) = (chat.names(), state.app.store().now().0);
    let items: Vec<Value> = found
        .iter()
        .map(|(conversation, place)| {
            let since = conversation.waiting_since.or(conversation.queued_since);
            json!({
                "conversation": conversation.agent_json(&*names),
                "position": place.position,
                "expected_wait_seconds": place.expected_wait_seconds,
                "waited_ms": since.map_or(0, |since| (now - since.0).max(0)),
            })
        })
        .collect();
    let next_cursor = (items.len() >= limit).then(|| (offset + limit).to_string());
    Ok(Json(ChatPage { items, next_cursor }))
}

/// Waiting conversations among which the next one of an agent is looked for.
const NEXT_MOST: usize = 200;

/// Take the next waiting conversation of one's teams and skills.
#[utoipa::path(post, path = "/api/v1/waiting/next", tag = "desk", operation_id = "take_next",
    responses((status = 200, description = "The conversation.", body = ChatConversation),
        (status = 204, description = "None waits."),
        (status = 409, description = "`AGENT_AT_CAPACITY`.", body = web::error::ErrorBody)))]
async fn next(
    State(state): State<DeskState>,
    caller: AuditedCaller,
) -> Result<Response, DeskApiError> {
    let agent = caller.agent()?;
    let chat = state.chat()?;
    let waiting = chat.waiting(0, NEXT_MOST).await?;
    let mine = waiting.into_iter().map(|(conversation, _)| conversation).filter(|one| {
        one.team.as_ref().is_none_or(|team| agent.teams.contains(team))
            && one.skills.iter().all(|skill| agent.skills.contains(skill))
    });
    for conversation in mine {
        let request = AssignRequest {
            agent: Some(agent.id.clone()),
            expected: Some(None),
            over_capacity: false,
            needs_presence: false,
            by: caller.name(),
            reason: "taken",
        };
        let (chat, id) = (chat.clone(), conversation.id);
        let (target, after) = (id.to_string(), json!({ "assignee": agent.id.as_str() }));
        let work = async move { Ok(chat.assign(&id, request).await?) };
        match caller.audited_with("conversation.assign", &target, after, work).await {
            Ok(found) => return tagged(&state, &found),
            // Somebody was quicker: the next one.
            Err(error) if ["ALREADY_ASSIGNED", "CONVERSATION_RESOLVED"].contains(&error.code()) => {
            }
            Err(error) => return Err(error),
        }
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}
