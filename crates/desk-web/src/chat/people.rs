//! Agents, presence, teams, canned responses, visitors, numbers.

use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use desk::chat::{
    Agent, AgentChange, AgentRole, BusinessHours, ConversationList, HEARTBEAT_LEASE, NewAgent,
    PresenceStatus, VisitorChange,
};
use desk::{AgentId, TeamId, UserId};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;
use web::Routes;
use web::extract::{Json, OptionalJson, Path, Query};
use web::idempotency::IdempotencyKey;
use web::page::{Page, PageQuery};
use web::time::Timestamp;

use super::caller::{AuditedCaller, StaffCaller, once_by};
use super::view::{
    ChatAgent, ChatCanned, ChatConversation, ChatTeam, ChatVisitorView, DashboardView,
    InvitedAgent, PresenceView, SlaPatch, SlaView,
};
use super::{ChatListQuery, ChatPage};
use crate::error::DeskApiError;
use crate::service::DeskState;

pub(super) fn routes() -> Routes<DeskState> {
    Routes {
        public: OpenApiRouter::new()
            .routes(routes!(agents))
            .routes(routes!(add_agent).layer(from_fn(once_by::<StaffCaller>)))
            .routes(routes!(agent, change_agent))
            .routes(routes!(invite).layer(from_fn(once_by::<StaffCaller>)))
            .routes(routes!(presence))
            .routes(routes!(choose))
            .routes(routes!(heartbeat))
            .routes(routes!(teams))
            .routes(routes!(add_team).layer(from_fn(once_by::<StaffCaller>)))
            .routes(routes!(change_team, delete_team))
            .routes(routes!(canned))
            .routes(routes!(add_canned).layer(from_fn(once_by::<StaffCaller>)))
            .routes(routes!(change_canned, delete_canned))
            .routes(routes!(visitor, change_visitor))
            .routes(routes!(visitor_conversations))
            .routes(routes!(block, unblock))
            .routes(routes!(sla, put_sla))
            .routes(routes!(dashboard)),
        ..Routes::default()
    }
}

/// List the agents.
#[utoipa::path(get, path = "/api/v1/agents", tag = "desk", operation_id = "list_agents", params(ChatListQuery),
    responses((status = 200, description = "The agents.", body = Page<ChatAgent>)))]
async fn agents(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Query(query): Query<ChatListQuery>,
) -> Result<Json<ChatPage>, DeskApiError> {
    caller.require_person()?;
    let items = state.chat()?.agents().iter().map(|agent| agent.to_json()).collect();
    Ok(ChatPage::cut(items, query)?)
}

fn agent_id(text: &str) -> Result<AgentId, DeskApiError> {
    AgentId::parse(text).map_err(|_| desk::Error::NotFound { what: "agent" }.into())
}

/// Get an agent.
#[utoipa::path(get, path = "/api/v1/agents/{agent_id}", tag = "desk", operation_id = "get_agent",
    params(("agent_id" = String, Path, description = "Id of the agent.")),
    responses((status = 200, description = "The agent.", body = ChatAgent)))]
async fn agent(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Path(id): Path<String>,
) -> Result<Json<Value>, DeskApiError> {
    caller.require_person()?;
    Ok(Json(state.chat()?.agent(&agent_id(&id)?)?.to_json()))
}

/// A new agent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "email": "anna@example.org", "name": "Anna" }))]
struct NewAgentRequest {
    /// E-mail address.
    email: String,
    /// Name, which visitors see.
    name: String,
    /// `agent` or `supervisor`.
    #[schema(value_type = Option<AgentRoleName>)]
    role: Option<String>,
    /// Most conversations at a time: 1 to 100.
    capacity: Option<u32>,
    /// Skills.
    #[serde(default)]
    skills: Vec<String>,
    /// Ids of teams.
    #[serde(default)]
    team_ids: Vec<String>,
}

/// Role of an agent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = AgentRole)]
pub(crate) enum AgentRoleName {
    /// Answers conversations.
    Agent,
    /// Also sees reports and manages agents.
    Supervisor,
}

fn team_ids(ids: &[String]) -> Result<Vec<TeamId>, DeskApiError> {
    Ok(ids.iter().map(|id| TeamId::parse(id)).collect::<Result<_, _>>()?)
}

/// Add an agent. The answer has the invitation with which they set their password.
#[utoipa::path(post, path = "/api/v1/agents", tag = "desk", operation_id = "add_agent", params(IdempotencyKey),
    request_body = NewAgentRequest,
    responses((status = 201, description = "Added; the invitation is shown this once.", body = InvitedAgent),
        (status = 409, description = "`EMAIL_TAKEN`, or the idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn add_agent(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Json(body): Json<NewAgentRequest>,
) -> Result<(StatusCode, Json<Value>), DeskApiError> {
    caller.require_supervisor()?;
    let new = NewAgent {
        role: body.role.as_deref().map_or(Ok(AgentRole::Agent), AgentRole::parse)?,
        teams: team_ids(&body.team_ids)?,
        email: body.email,
        name: body.name,
        capacity: body.capacity,
        skills: body.skills,
    };
    let (chat, target) = (state.chat()?.clone(), new.email.clone());
    let (agent, secret) =
        caller.audited("agent.add", &target, async move { Ok(chat.add_agent(new).await?) }).await?;
    Ok((StatusCode::CREATED, Json(invited(&state, &agent, &secret).await?)))
}

/// The answer with an invitation. It is mailed, too, where e-mail is set up; `emailed` tells.
async fn invited(state: &DeskState, agent: &Agent, secret: &str) -> Result<Value, DeskApiError> {
    let is_mailed = match state.chat()?.mail_invitation(agent, secret).await {
        Ok(is_mailed) => is_mailed,
        // The agent is there, and the link is in the answer.
        Err(error) => {
            tracing::warn!(%error, agent = %agent.id, "invitation not queued for e-mail");
            false
        }
    };
    Ok(json!({ "agent": agent.to_json(), "invitation": secret, "emailed": is_mailed }))
}

/// Changes of an agent; what is left out stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "capacity": 8, "skills": ["billing"] }))]
struct AgentPatch {
    /// Name.
    name: Option<String>,
    /// E-mail address.
    email: Option<String>,
    /// `agent` or `supervisor`.
    #[schema(value_type = Option<AgentRoleName>)]
    role: Option<String>,
    /// Most conversations at a time: 1 to 100.
    capacity: Option<u32>,
    /// Skills.
    skills: Option<Vec<String>>,
    /// Ids of teams.
    team_ids: Option<Vec<String>>,
    /// Cannot log in, and has no conversations.
    disabled: Option<bool>,
}

/// Change an agent.
#[utoipa::path(patch, path = "/api/v1/agents/{agent_id}", tag = "desk", operation_id = "change_agent",
    params(("agent_id" = String, Path, description = "Id of the agent.")), request_body = AgentPatch,
    responses((status = 200, description = "The agent.", body = ChatAgent)))]
async fn change_agent(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Path(id): Path<String>,
    Json(body): Json<AgentPatch>,
) -> Result<Json<Value>, DeskApiError> {
    caller.require_supervisor()?;
    let change = AgentChange {
        role: body.role.as_deref().map(AgentRole::parse).transpose()?,
        teams: body.team_ids.as_deref().map(team_ids).transpose()?,
        name: body.name,
        email: body.email,
        capacity: body.capacity,
        skills: body.skills,
        disabled: body.disabled,
    };
    let (chat, id) = (state.chat()?.clone(), agent_id(&id)?);
    let target = id.to_string();
    let agent = caller
        .audited("agent.change", &target, async move { Ok(chat.change_agent(&id, change).await?) })
        .await?;
    Ok(Json(agent.to_json()))
}

/// Invite an agent again. Their sessions end, and the old password is deleted.
#[utoipa::path(post, path = "/api/v1/agents/{agent_id}/invitation", tag = "desk", operation_id = "invite_agent",
    params(("agent_id" = String, Path, description = "Id of the agent."), IdempotencyKey),
    responses((status = 200, description = "The invitation is shown this once.", body = InvitedAgent),
        (status = 409, description = "The idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn invite(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Path(id): Path<String>,
) -> Result<Json<Value>, DeskApiError> {
    caller.require_supervisor()?;
    let (chat, id) = (state.chat()?.clone(), agent_id(&id)?);
    let target = id.to_string();
    let (agent, secret) = caller
        .audited("agent.invite", &target, async move {
            let secret = chat.invite_again(&id).await?;
            Ok((chat.agent(&id)?, secret))
        })
        .await?;
    Ok(Json(invited(&state, &agent, &secret).await?))
}

/// List the presence of all agents.
#[utoipa::path(get, path = "/api/v1/presence", tag = "desk", operation_id = "list_presence", params(ChatListQuery),
    responses((status = 200, description = "The presence.", body = Page<PresenceView>)))]
async fn presence(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Query(query): Query<ChatListQuery>,
) -> Result<Json<ChatPage>, DeskApiError> {
    caller.require_person()?;
    let items = state.chat()?.presence().await?.iter().map(|one| one.to_json()).collect();
    Ok(ChatPage::cut(items, query)?)
}

/// A chosen status.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "status": "away" }))]
struct PresenceChoice {
    /// `online`, `away` or `busy`.
    #[schema(value_type = PresenceName)]
    status: String,
    /// The time at which it ends by itself, at most 30 days from now; the agent is online from then on. Only with
    /// `away` and `busy`; left out, it has no end.
    until: Option<Timestamp>,
}

/// Status of an agent that can be chosen.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ChosenPresence)]
enum PresenceName {
    /// Takes conversations.
    Online,
    /// Keeps conversations, gets no new ones.
    Away,
    /// Keeps conversations, gets no new ones.
    Busy,
}

/// Choose one's status. It survives reconnects, and ends by itself if it has an end.
#[utoipa::path(put, path = "/api/v1/presence/me", tag = "desk", operation_id = "choose_presence",
    request_body = PresenceChoice, responses((status = 200, description = "The presence.", body = PresenceView)))]
async fn choose(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Json(body): Json<PresenceChoice>,
) -> Result<Json<Value>, DeskApiError> {
    let agent = caller.agent()?.id.clone();
    let (status, until) = (PresenceStatus::parse(&body.status)?, body.until.map(|at| at.0));
    state.chat()?.choose_status(&agent, status, until).await?;
    let own = super::login::own(&state, &caller).await?;
    Ok(Json(own["presence"].clone()))
}

/// Send a heartbeat for an agent without a socket: a presence lease of 90 s.
#[utoipa::path(post, path = "/api/v1/presence/heartbeat", tag = "desk", operation_id = "send_presence_heartbeat",
    responses((status = 204, description = "Renewed.")))]
async fn heartbeat(
    State(state): State<DeskState>,
    caller: StaffCaller,
) -> Result<StatusCode, DeskApiError> {
    let agent = caller.agent()?.id.clone();
    state.chat()?.renew_connection(&agent, "http", HEARTBEAT_LEASE, true).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the teams.
#[utoipa::path(get, path = "/api/v1/teams", tag = "desk", operation_id = "list_teams", params(ChatListQuery),
    responses((status = 200, description = "The teams.", body = Page<ChatTeam>)))]
async fn teams(
    State(state): State<DeskState>,
    _caller: StaffCaller,
    Query(query): Query<ChatListQuery>,
) -> Result<Json<ChatPage>, DeskApiError> {
    let items = state.chat()?.teams().iter().map(|team| team.to_json()).collect();
    Ok(ChatPage::cut(items, query)?)
}

/// A team.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "name": "Billing" }))]
struct TeamRequest {
    /// Name.
    name: String,
    /// Business hours: `time_zone`, `week`, `holidays`. Null is always open; left out, a team keeps its hours,
    /// and a new one is always open.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Object>)]
    hours: Option<Option<Map<String, Value>>>,
}

/// Tells a field that is null from one that is missing.
fn given<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<Map<String, Value>>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

async fn put_team(
    state: &DeskState,
    caller: &AuditedCaller,
    id: Option<TeamId>,
    body: TeamRequest,
) -> Result<Json<Value>, DeskApiError> {
    caller.require_supervisor()?;
    let known =
        id.as_ref().and_then(|id| state.chat().ok()?.teams().into_iter().find(|t| t.id == *id));
    let TeamRequest { name, hours } = body;
    let hours = match (hours, known) {
        (Some(Some(hours)), _) => BusinessHours::parse(&Value::Object(hours))?,
        (None, Some(team)) => team.hours,
        (Some(None), _) | (None, None) => BusinessHours::default(),
    };
    let (chat, target) = (state.chat()?.clone(), name.clone());
    let team =
        caller
            .audited("team.put", &target, async move {
                Ok(chat.put_team(id.as_ref(), &name, hours).await?)
            })
            .await?;
    Ok(Json(team.to_json()))
}

fn team_id(text: &str) -> Result<TeamId, DeskApiError> {
    TeamId::parse(text).map_err(|_| desk::Error::NotFound { what: "team" }.into())
}

/// Add a team.
#[utoipa::path(post, path = "/api/v1/teams", tag = "desk", operation_id = "add_team", params(IdempotencyKey),
    request_body = TeamRequest, responses((status = 201, description = "The team.", body = ChatTeam),
        (status = 409, description = "The idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn add_team(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Json(body): Json<TeamRequest>,
) -> Result<(StatusCode, Json<Value>), DeskApiError> {
    Ok((StatusCode::CREATED, put_team(&state, &caller, None, body).await?))
}

/// Change a team.
#[utoipa::path(patch, path = "/api/v1/teams/{team_id}", tag = "desk", operation_id = "change_team",
    params(("team_id" = String, Path, description = "Id of the team.")), request_body = TeamRequest,
    responses((status = 200, description = "The team.", body = ChatTeam)))]
async fn change_team(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Path(id): Path<String>,
    Json(body): Json<TeamRequest>,
) -> Result<Json<Value>, DeskApiError> {
    let id = team_id(&id)?;
    put_team(&state, &caller, Some(id), body).await
}

/// Delete a team; its conversations go to all agents from then on.
#[utoipa::path(delete, path = "/api/v1/teams/{team_id}", tag = "desk", operation_id = "delete_team",
    params(("team_id" = String, Path, description = "Id of the team.")), responses((status = 204, description = "Deleted.")))]
async fn delete_team(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Path(id): Path<String>,
) -> Result<StatusCode, DeskApiError> {
    caller.require_supervisor()?;
    let (chat, id) = (state.chat()?.clone(), team_id(&id)?);
    let target = id.to_string();
    caller.audited("team.delete", &target, async move { Ok(chat.delete_team(&id).await?) }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Selects canned responses.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct CannedQuery {
    /// Beginning of the short code.
    prefix: Option<String>,
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 1000, default = 1000)]
    limit: Option<usize>,
    /// Position to continue from: `next_cursor` of the last answer.
    cursor: Option<String>,
}

/// List the canned responses by short code.
#[utoipa::path(get, path = "/api/v1/canned", tag = "desk", operation_id = "list_canned", params(CannedQuery),
    responses((status = 200, description = "The responses.", body = Page<ChatCanned>)))]
async fn canned(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Query(query): Query<CannedQuery>,
) -> Result<Json<ChatPage>, DeskApiError> {
    caller.require_person()?;
    let found = state.chat()?.canned(query.prefix.as_deref().unwrap_or_default()).await?;
    let items = found.iter().map(|one| one.to_json()).collect();
    Ok(ChatPage::cut(items, ChatListQuery { limit: query.limit, cursor: query.cursor })?)
}

/// A canned response.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "short_code": "hello", "content": "Hello {{visitor.name}}, how can I help?" }))]
struct CannedRequest {
    /// Short code that agents type after `/`.
    short_code: String,
    /// The text; `{{visitor.name}}` and `{{agent.name}}` are filled in by the console.
    content: String,
}

async fn put_canned(
    state: &DeskState,
    caller: &AuditedCaller,
    id: Option<String>,
    body: CannedRequest,
) -> Result<Json<Value>, DeskApiError> {
    caller.require_person_write()?;
    let (chat, target) = (state.chat()?.clone(), body.short_code.clone());
    let put =
        async move { Ok(chat.put_canned(id.as_deref(), &body.short_code, &body.content).await?) };
    Ok(Json(caller.audited("canned.put", &target, put).await?.to_json()))
}

/// Add a canned response.
#[utoipa::path(post, path = "/api/v1/canned", tag = "desk", operation_id = "add_canned", params(IdempotencyKey),
    request_body = CannedRequest, responses((status = 201, description = "The response.", body = ChatCanned),
        (status = 409, description = "The idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn add_canned(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Json(body): Json<CannedRequest>,
) -> Result<(StatusCode, Json<Value>), DeskApiError> {
    Ok((StatusCode::CREATED, put_canned(&state, &caller, None, body).await?))
}

/// Change a canned response.
#[utoipa::path(patch, path = "/api/v1/canned/{canned_id}", tag = "desk", operation_id = "change_canned",
    params(("canned_id" = String, Path, description = "Id of the response.")), request_body = CannedRequest,
    responses((status = 200, description = "The response.", body = ChatCanned)))]
async fn change_canned(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Path(id): Path<String>,
    Json(body): Json<CannedRequest>,
) -> Result<Json<Value>, DeskApiError> {
    put_canned(&state, &caller, Some(id), body).await
}

/// Delete a canned response.
#[utoipa::path(delete, path = "/api/v1/canned/{canned_id}", tag = "desk", operation_id = "delete_canned",
    params(("canned_id" = String, Path, description = "Id of the response.")), responses((status = 204, description = "Deleted.")))]
async fn delete_canned(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Path(id): Path<String>,
) -> Result<StatusCode, DeskApiError> {
    caller.require_person_write()?;
    let (chat, target) = (state.chat()?.clone(), id.clone());
    let delete = async move { Ok(chat.delete_canned(&id).await?) };
    caller.audited("canned.delete", &target, delete).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Get a visitor.
#[utoipa::path(get, path = "/api/v1/visitors/{visitor_id}", tag = "desk", operation_id = "get_visitor",
    params(("visitor_id" = String, Path, description = "Id of the visitor.")),
    responses((status = 200, description = "The visitor.", body = ChatVisitorView)))]
async fn visitor(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Path(id): Path<String>,
) -> Result<Json<Value>, DeskApiError> {
    caller.require_person()?;
    let id = UserId::parse(&id)?;
    let mut visitor = state.chat()?.visitor(&id).await?.to_json();
    let user = state.desk.users.read(&id).await?;
    visitor["blocked"] = json!(user.is_some_and(|user| user.block.is_some()));
    Ok(Json(visitor))
}

/// Changes of a visitor by the staff.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "name": "Eva", "attributes": { "plan": "gold" } }))]
struct VisitorPatch {
    /// Name.
    name: Option<String>,
    /// E-mail address.
    email: Option<String>,
    /// Notes for agents.
    notes: Option<String>,
    /// Attributes: a flat object.
    #[schema(value_type = Option<Object>)]
    attributes: Option<Map<String, Value>>,
}

/// Change the details of a visitor.
#[utoipa::path(patch, path = "/api/v1/visitors/{visitor_id}", tag = "desk", operation_id = "change_visitor",
    params(("visitor_id" = String, Path, description = "Id of the visitor.")), request_body = VisitorPatch,
    responses((status = 200, description = "The visitor.", body = ChatVisitorView)))]
async fn change_visitor(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Path(id): Path<String>,
    Json(body): Json<VisitorPatch>,
) -> Result<Json<Value>, DeskApiError> {
    caller.require_person_write()?;
    let (chat, id) = (state.chat()?.clone(), UserId::parse(&id)?);
    chat.visitor(&id).await?;
    let change = VisitorChange {
        name: body.name,
        email: body.email,
        notes: body.notes,
        attributes: body.attributes.map(Value::Object),
        ..VisitorChange::default()
    };
    let target = id.to_string();
    let put = async move { Ok(chat.put_visitor(&id, change).await?) };
    Ok(Json(caller.audited("visitor.change", &target, put).await?.to_json()))
}

/// List the conversations of a visitor, newest first.
#[utoipa::path(get, path = "/api/v1/visitors/{visitor_id}/conversations", tag = "desk",
    operation_id = "list_visitor_conversations",
    params(("visitor_id" = String, Path, description = "Id of the visitor."), PageQuery),
    responses((status = 200, description = "The conversations.", body = Page<ChatConversation>)))]
async fn visitor_conversations(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Path(id): Path<String>,
    Query(query): Query<PageQuery>,
) -> Result<Json<ChatPage>, DeskApiError> {
    caller.require_person()?;
    let chat = state.chat()?;
    let list = ConversationList {
        visitor: Some(UserId::parse(&id)?),
        limit: query.limit()?,
        cursor: query.cursor.filter(|cursor| !cursor.is_empty()),
        ..ConversationList::default()
    };
    let (found, next_cursor) = chat.list(&list).await?;
    let names = chat.names();
    let items = found.iter().map(|one| one.agent_json(&*names)).collect();
    Ok(Json(ChatPage { items, next_cursor }))
}

/// A block of a visitor.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "reason": "spam" }))]
struct VisitorBlock {
    /// The reason.
    reason: Option<String>,
}

/// Blocks a visitor, or lifts the block.
async fn set_block(
    state: &DeskState,
    caller: &AuditedCaller,
    id: &str,
    block: Option<VisitorBlock>,
) -> Result<StatusCode, DeskApiError> {
    caller.require_person_write()?;
    let id = UserId::parse(id)?;
    state.chat()?.visitor(&id).await?;
    let (users, target) = (state.desk.users.clone(), id.to_string());
    let action = if block.is_some() { "visitor.block" } else { "visitor.unblock" };
    let set = async move {
        match block {
            Some(VisitorBlock { reason }) => {
                users.block(&id, reason.as_deref().unwrap_or_default(), None).await?;
            }
            None => {
                users.unblock(&id).await?;
            }
        }
        Ok(())
    };
    caller.audited(action, &target, set).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Block a visitor: their sockets close within a second.
#[utoipa::path(post, path = "/api/v1/visitors/{visitor_id}/block", tag = "desk", operation_id = "block_visitor",
    params(("visitor_id" = String, Path, description = "Id of the visitor.")), request_body = VisitorBlock,
    responses((status = 204, description = "Blocked.")))]
async fn block(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Path(id): Path<String>,
    OptionalJson(body): OptionalJson<VisitorBlock>,
) -> Result<StatusCode, DeskApiError> {
    set_block(&state, &caller, &id, Some(body)).await
}

/// Lift the block of a visitor.
#[utoipa::path(delete, path = "/api/v1/visitors/{visitor_id}/block", tag = "desk", operation_id = "unblock_visitor",
    params(("visitor_id" = String, Path, description = "Id of the visitor.")), responses((status = 204, description = "Lifted.")))]
async fn unblock(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Path(id): Path<String>,
) -> Result<StatusCode, DeskApiError> {
    set_block(&state, &caller, &id, None).await
}

/// Get the reply targets (SLA), by priority.
#[utoipa::path(get, path = "/api/v1/sla", tag = "desk", operation_id = "get_sla",
    responses((status = 200, description = "The promises.", body = SlaView)))]
async fn sla(
    State(state): State<DeskState>,
    caller: StaffCaller,
) -> Result<Json<Value>, DeskApiError> {
    caller.require_person()?;
    Ok(Json(state.chat()?.sla_targets().to_json()))
}

/// Change reply targets (SLA). Omitted ones stay; a change counts for messages from now on.
#[utoipa::path(put, path = "/api/v1/sla", tag = "desk", operation_id = "put_sla", request_body = SlaPatch,
    responses((status = 200, description = "The promises.", body = SlaView)))]
async fn put_sla(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Json(body): Json<SlaPatch>,
) -> Result<Json<Value>, DeskApiError> {
    caller.require_supervisor()?;
    let chat = state.chat()?.clone();
    let targets = caller
        .audited("sla.put", "sla", async move { Ok(chat.put_sla_targets(&json!(body)).await?) })
        .await?;
    Ok(Json(targets.to_json()))
}

/// Get the numbers of the desk and of the agent who is logged in.
#[utoipa::path(get, path = "/api/v1/dashboard", tag = "desk", operation_id = "get_desk_dashboard",
    responses((status = 200, description = "The numbers.", body = DashboardView)))]
async fn dashboard(
    State(state): State<DeskState>,
    caller: StaffCaller,
) -> Result<Json<Value>, DeskApiError> {
    caller.require_person()?;
    let chat = state.chat()?;
    let mut numbers = chat.dashboard(caller.agent_id()).await?.to_json();
    let agents: Vec<Value> = chat.presence().await?.iter().map(|one| one.to_json()).collect();
    numbers["agents"] = Value::Array(agents);
    numbers["availability"] = chat.availability(None).await?;
    Ok(Json(numbers))
}
