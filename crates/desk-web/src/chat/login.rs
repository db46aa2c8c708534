//! Agents' logins and their own account.

use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use desk::chat::{Agent, Chat, LoginOutcome};
use desk::limit::LimitedParty;
use desk::users::{OpenOutcome, UserSessionId, VerifiedLogin};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use web::audit::{self, Entry};
use web::client::Client;
use web::extract::{Json, Path, Query};
use web::middleware::RequestId;
use web::page::Page;
use web::time::Timestamp;
use web::{ApiError, Routes, cookies};

use super::caller::{AGENT_COOKIE, AuditedCaller, StaffCaller};
use super::view::{ChatAgent, LoggedInAgent, OwnAgent, SocketTicket, TotpRecovery, TotpSecret};
use super::{ChatListQuery, ChatPage, charge, charge_for_now, refund};
use crate::error::DeskApiError;
use crate::service::DeskState;

pub(super) fn routes() -> Routes<DeskState> {
    Routes {
        public: OpenApiRouter::new()
            .routes(routes!(log_in))
            .routes(routes!(log_out))
            .routes(routes!(accept))
            .routes(routes!(me))
            .routes(routes!(change_password))
            .routes(routes!(begin_totp))
            .routes(routes!(confirm_totp))
            .routes(routes!(remove_totp))
            .routes(routes!(sessions))
            .routes(routes!(end_session))
            .routes(routes!(ticket)),
        ..Routes::default()
    }
}

/// E-mail and password of an agent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "email": "anna@example.org", "password": "correct horse battery" }))]
struct AgentLogin {
    /// E-mail address.
    email: String,
    /// Password.
    password: String,
    /// Code of the second factor, or a recovery code.
    code: Option<String>,
}

/// Log in as an agent. Sets the cookie `tidegate_desk`; programs use the token.
#[utoipa::path(post, path = "/api/v1/agents/login", tag = "desk", operation_id = "log_in_agent", request_body = AgentLogin,
    responses((status = 200, description = "Logged in.", body = LoggedInAgent),
        (status = 401, description = "`BAD_CREDENTIALS`, or `CODE_REQUIRED`.", body = web::error::ErrorBody)))]
async fn log_in(
    State(state): State<DeskState>,
    client: Client,
    Extension(RequestId(request_id)): Extension<RequestId>,
    Json(body): Json<AgentLogin>,
) -> Result<Response, DeskApiError> {
    let chat = state.chat()?;
    let account = format!("agent:{}", body.email.trim().to_lowercase());
    let by_address = charge_for_now(&state, "login_ip", LimitedParty::ip(client.ip)).await?;
    charge(&state, "login_account", LimitedParty::key(&account)).await?;
    let outcome = chat.log_in(&body.email, &body.password, body.code.as_deref()).await?;
    let (error, agent) = match outcome {
        LoginOutcome::Agent(agent) => (None, Some(agent)),
        LoginOutcome::CodeRequired => {
            let message = "a code of the second factor is needed, or the one given is wrong";
            (Some(("CODE_REQUIRED", message)), None)
        }
        LoginOutcome::Wrong => (Some(("BAD_CREDENTIALS", "e-mail or password is wrong")), None),
    };
    let mut entry = Entry {
        who: body.email.trim().to_lowercase(),
        action: "agent.login".to_owned(),
        client: client.ip.to_string(),
        request_id,
        at_ms: state.app.store().now().0,
        ..Entry::default()
    };
    let Some(agent) = agent else {
        let (code, message) = error.unwrap_or(("BAD_CREDENTIALS", "e-mail or password is wrong"));
        entry.set_status(StatusCode::UNAUTHORIZED);
        audit::write_refusal(&state.app, account, &entry).await;
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, code, message).into());
    };
    let user = chat.user_of_agent(&agent.id)?;
    let login = VerifiedLogin { device_id: "console", ip_address: Some(client.ip), replaces: None };
    let OpenOutcome::Opened(token) = state.desk.users.open_session(&user, login).await? else {
        return Err(
            ApiError::new(StatusCode::FORBIDDEN, "USER_BLOCKED", "this agent is blocked").into()
        );
    };
    if let Some(limiter) = state.app.limiter() {
        limiter.forgive("login_account", web::rate_limit::LimitSubject::Key(&account)).await;
    }
    // Colleagues behind one address log in at nine. Only this try is given back, not those that failed: who has
    // an account of their own cannot wash away guesses at others.
    refund(&state, by_address).await;
    entry.set_status(StatusCode::OK);
    audit::write(&state.app, &entry).await;
    let mut response =
        Json(json!({ "agent": agent.to_json(), "token": token.to_string() })).into_response();
    if let Some(cookie) = cookies::set(AGENT_COOKIE, &token.to_string(), 30 * 86_400, client.secure)
    {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

/// Log out.
#[utoipa::path(post, path = "/api/v1/agents/logout", tag = "desk", operation_id = "log_out_agent",
    responses((status = 204, description = "Logged out.")))]
async fn log_out(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    client: Client,
) -> Result<Response, DeskApiError> {
    if let StaffCaller::Agent(agent, session) = &*caller {
        end_of_session(&state, &caller, "agent.logout", &agent.email, session.clone()).await?;
    }
    let mut response = StatusCode::NO_CONTENT.into_response();
    if let Some(cookie) = cookies::set(AGENT_COOKIE, "", 0, client.secure) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

/// Ends a session of an agent, with the notifications of its browser.
async fn end_of_session(
    state: &DeskState,
    caller: &AuditedCaller,
    action: &str,
    target: &str,
    session: UserSessionId,
) -> Result<(), DeskApiError> {
    let (chat, users) = (state.chat()?.clone(), state.desk.users.clone());
    let end = async move {
        users.end_session(&session).await?;
        Ok(chat.end_push_of(&session).await?)
    };
    caller.audited(action, target, end).await
}

/// An invitation and the password to set.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "invitation": "inv_4f0c", "password": "correct horse battery" }))]
struct InvitationAnswer {
    /// The secret of the invitation.
    invitation: String,
    /// The password: 12 to 256 characters.
    password: String,
}

/// Accept an invitation: set the password.
#[utoipa::path(post, path = "/api/v1/agents/accept", tag = "desk", operation_id = "accept_invitation",
    request_body = InvitationAnswer, responses((status = 200, description = "The agent.", body = ChatAgent)))]
async fn accept(
    State(state): State<DeskState>,
    client: Client,
    Json(body): Json<InvitationAnswer>,
) -> Result<Json<Value>, DeskApiError> {
    let by_address = charge_for_now(&state, "login_ip", LimitedParty::ip(client.ip)).await?;
    let agent = state.chat()?.accept_invitation(&body.invitation, &body.password).await?;
    refund(&state, by_address).await;
    Ok(Json(agent.to_json()))
}

/// Get the agent who is logged in, and their presence.
#[utoipa::path(get, path = "/api/v1/agents/me", tag = "desk", operation_id = "get_own_agent",
    responses((status = 200, description = "The agent.", body = OwnAgent)))]
async fn me(
    State(state): State<DeskState>,
    caller: StaffCaller,
) -> Result<Json<Value>, DeskApiError> {
    Ok(Json(own(&state, &caller).await?))
}

/// The agent and their presence.
pub(super) async fn own(state: &DeskState, caller: &StaffCaller) -> Result<Value, DeskApiError> {
    let agent = caller.agent()?;
    let presence = state.chat()?.presence().await?;
    let presence = presence.iter().find(|one| one.agent == agent.id).map(|one| one.to_json());
    Ok(json!({ "agent": agent.to_json(), "presence": presence }))
}

/// A password to change.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "current": "correct horse battery", "password": "staple correct horse" }))]
struct PasswordChange {
    /// The password so far.
    current: String,
    /// The new one: 12 to 256 characters.
    password: String,
}

/// The agent who sends a secret with a change of their account: tries are counted as logins are.
async fn guessing_agent(
    state: &DeskState,
    caller: &StaffCaller,
) -> Result<(Chat, Agent), DeskApiError> {
    let agent = caller.agent()?.clone();
    charge(state, "login_account", LimitedParty::key(&format!("agent:{}", agent.email))).await?;
    Ok((state.chat()?.clone(), agent))
}

/// Change one's own password.
#[utoipa::path(post, path = "/api/v1/agents/me/password", tag = "desk", operation_id = "change_own_password",
    request_body = PasswordChange, responses((status = 204, description = "Changed.")))]
async fn change_password(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Json(body): Json<PasswordChange>,
) -> Result<StatusCode, DeskApiError> {
    let (chat, agent) = guessing_agent(&state, &caller).await?;
    let target = agent.email.clone();
    caller
        .audited("agent.password", &target, async move {
            Ok(chat.change_password(&agent.id, &body.current, &body.password).await?)
        })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Begin the setup of a second factor.
#[utoipa::path(post, path = "/api/v1/agents/me/totp", tag = "desk", operation_id = "begin_totp",
    responses((status = 200, description = "The secret.", body = TotpSecret)))]
async fn begin_totp(
    State(state): State<DeskState>,
    caller: StaffCaller,
) -> Result<Json<Value>, DeskApiError> {
    let setup = state.chat()?.begin_totp(&caller.agent()?.id, "Tidegate").await?;
    Ok(Json(json!({ "secret": setup.secret, "url": setup.url })))
}

/// A code of the second factor.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "code": "123456" }))]
struct TotpCode {
    /// Six digits.
    code: String,
}

/// Switch the second factor on. The recovery codes are shown only this once.
#[utoipa::path(post, path = "/api/v1/agents/me/totp/confirm", tag = "desk", operation_id = "confirm_totp",
    request_body = TotpCode, responses((status = 200, description = "Recovery codes.", body = TotpRecovery)))]
async fn confirm_totp(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Json(body): Json<TotpCode>,
) -> Result<Json<Value>, DeskApiError> {
    let (chat, agent) = guessing_agent(&state, &caller).await?;
    let target = agent.email.clone();
    let codes = caller
        .audited("agent.totp.on", &target, async move {
            Ok(chat.confirm_totp(&agent.id, &body.code).await?)
        })
        .await?;
    Ok(Json(json!({ "recovery_codes": codes })))
}

/// The password, to confirm something.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "password": "correct horse battery" }))]
struct PasswordProof {
    /// The password.
    password: String,
}

/// Switch the second factor off.
#[utoipa::path(post, path = "/api/v1/agents/me/totp/remove", tag = "desk", operation_id = "remove_totp",
    request_body = PasswordProof, responses((status = 204, description = "Off.")))]
async fn remove_totp(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Json(body): Json<PasswordProof>,
) -> Result<StatusCode, DeskApiError> {
    let (chat, agent) = guessing_agent(&state, &caller).await?;
    let target = agent.email.clone();
    caller
        .audited("agent.totp.off", &target, async move {
            Ok(chat.remove_totp(&agent.id, &body.password).await?)
        })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A session of an agent.
#[derive(Debug, Serialize, ToSchema)]
struct AgentSession {
    /// Id of the session.
    id: String,
    /// The device.
    device_id: String,
    /// Address as it is stored.
    ip_address: String,
    /// Time of the login.
    opened_at: Timestamp,
    /// Time of the last request, accurate to a minute.
    seen_at: Timestamp,
    /// It is the one of this request.
    is_current: bool,
}

/// List one's own sessions.
#[utoipa::path(get, path = "/api/v1/agents/me/sessions", tag = "desk", operation_id = "list_own_sessions", params(ChatListQuery),
    responses((status = 200, description = "The sessions.", body = Page<AgentSession>)))]
async fn sessions(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Query(query): Query<ChatListQuery>,
) -> Result<Json<ChatPage>, DeskApiError> {
    let user = state.chat()?.user_of_agent(&caller.agent()?.id)?;
    let current = match &caller {
        StaffCaller::Agent(_, session) => Some(session.clone()),
        _ => None,
    };
    let found = state.desk.users.sessions(&user).await?;
    let items = found.into_iter().map(|session| {
        json!(AgentSession {
            is_current: Some(&session.id) == current.as_ref(),
            id: session.id.to_string(),
            device_id: session.device_id,
            ip_address: session.ip_address,
            opened_at: session.opened.into(),
            seen_at: session.seen.into(),
        })
    });
    Ok(ChatPage::cut(items.collect(), query)?)
}

/// End one of one's own sessions.
#[utoipa::path(delete, path = "/api/v1/agents/me/sessions/{session_id}", tag = "desk", operation_id = "end_own_session",
    params(("session_id" = String, Path, description = "Id of the session.")),
    responses((status = 204, description = "Ended.")))]
async fn end_session(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Path(id): Path<String>,
) -> Result<StatusCode, DeskApiError> {
    let user = state.chat()?.user_of_agent(&caller.agent()?.id)?;
    let session = UserSessionId::parse(&id).filter(|session| *session.user() == user);
    let session = session.ok_or(desk::Error::NotFound { what: "session" })?;
    let target = &caller.agent()?.email;
    end_of_session(&state, &caller, "agent.session.end", target, session).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Create a one-time ticket that opens a socket within 30 s.
#[utoipa::path(post, path = "/api/v1/ws-ticket", tag = "desk", operation_id = "make_socket_ticket",
    responses((status = 200, description = "The ticket.", body = SocketTicket)))]
async fn ticket(
    State(state): State<DeskState>,
    caller: StaffCaller,
) -> Result<Json<Value>, DeskApiError> {
    let StaffCaller::Agent(agent, session) = &caller else {
        return Err(super::caller::not_allowed("sockets are for agents; log in to the desk").into());
    };
    let holder = format!("agent {} {session}", agent.id);
    Ok(Json(made(&state, &holder).await?))
}

/// Makes a ticket.
pub(super) async fn made(state: &DeskState, holder: &str) -> Result<Value, DeskApiError> {
    let ticket = state.chat()?.make_ticket(holder).await?;
    let ends = store::Millis(state.app.store().now().0 + 30_000);
    Ok(json!({ "ticket": ticket, "expires_at": Timestamp::from(ends) }))
}
