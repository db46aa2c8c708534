//! The one who calls: a visitor, or somebody of the staff (agent, operator of the product, bot).
//!
//! Agents have sessions of their own, which open the desk and nothing else; operators and bots come with
//! tokens of the product.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use desk::chat::{Agent, AgentRole, Sender};
use desk::users::{UserCheck, UserSessionId, UserStatus, UserToken};
use desk::{AgentId, UserId};
use serde_json::Value;
use tracing::Instrument as _;
use web::audit::{self, Entry};
use web::auth::{Principal, Role, require};
use web::client::Client;
use web::middleware::request_id;
use web::{ApiError, App, cookies, idempotency};

use crate::error::DeskApiError;
use crate::service::DeskState;

/// The cookie of an agent's session.
pub(crate) const AGENT_COOKIE: &str = "tidegate_desk";

/// A visitor with a valid session.
#[derive(Debug, Clone)]
pub(crate) struct VisitorCaller {
    pub(crate) id: UserId,
    pub(crate) session: UserSessionId,
    pub(crate) client: Client,
}

impl VisitorCaller {
    pub(crate) fn sender(&self) -> Sender {
        Sender::Visitor(self.id.clone())
    }
}

impl FromRequestParts<DeskState> for VisitorCaller {
    type Rejection = DeskApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &DeskState,
    ) -> Result<VisitorCaller, DeskApiError> {
        let client = client_of(parts, state).await?;
        let token = bearer(&parts.headers).ok_or_else(|| {
            ApiError::unauthorized(
                "no session: POST /api/v1/widget/sessions gives a token to send as Bearer",
            )
        })?;
        let (id, session) = check_visitor(state, token).await?;
        Ok(VisitorCaller { id, session, client })
    }
}

/// Checks a visitor's token.
pub(crate) async fn check_visitor(
    state: &DeskState,
    token: &str,
) -> Result<(UserId, UserSessionId), DeskApiError> {
    let parsed = UserToken::parse(token);
    match state.desk.users.check_token(token).await? {
        UserCheck::Valid { user, .. } => {
            if AgentId::parse(user.as_str())
                .is_ok_and(|id| state.chat().is_ok_and(|c| c.agent(&id).is_ok()))
            {
                return Err(
                    ApiError::unauthorized("this is an agent's session, not a visitor's").into()
                );
            }
            let session = parsed.map(|token| token.session().clone());
            let session =
                session.ok_or_else(|| ApiError::unauthorized("this session has ended"))?;
            Ok((user, session))
        }
        UserCheck::Blocked(_) => {
            Err(ApiError::new(StatusCode::FORBIDDEN, "USER_BLOCKED", "this visitor is blocked")
                .into())
        }
        UserCheck::Unknown => Err(ApiError::unauthorized("this session has ended").into()),
    }
}

/// Refuses to let a visitor write whom the settings let only read.
pub(crate) fn may_chat(state: &DeskState, visitor: &UserId) -> Result<(), DeskApiError> {
    let chat = state.chat()?;
    let is_verified = visitor.as_str().starts_with("v~");
    if chat.options().anonymous_chat || is_verified {
        return Ok(());
    }
    let message = "log in to chat: this site does not chat with anonymous visitors";
    Err(ApiError::new(StatusCode::FORBIDDEN, "CHAT_NEEDS_LOGIN", message).into())
}

/// Somebody of the staff.
#[derive(Debug, Clone)]
pub(crate) enum StaffCaller {
    /// An agent, with their session.
    Agent(Box<Agent>, UserSessionId),
    /// A person with a token of the product.
    Operator(Principal),
    /// A program with a worker's token of scope `chat`.
    Bot(Principal),
}

impl StaffCaller {
    /// The agent; an operator is none.
    pub(crate) fn agent(&self) -> Result<&Agent, ApiError> {
        match self {
            StaffCaller::Agent(agent, _) => Ok(agent),
            _ => Err(not_allowed("this is for agents; log in to the desk")),
        }
    }

    pub(crate) fn agent_id(&self) -> Option<&AgentId> {
        match self {
            StaffCaller::Agent(agent, _) => Some(&agent.id),
            _ => None,
        }
    }

    /// Refuses everybody but supervisors and operators.
    pub(crate) fn require_supervisor(&self) -> Result<(), ApiError> {
        match self {
            StaffCaller::Agent(agent, _) if agent.role == AgentRole::Supervisor => Ok(()),
            StaffCaller::Operator(principal) if principal.role >= Role::Operator => Ok(()),
            _ => Err(not_allowed("this needs role supervisor")),
        }
    }

    /// Refuses agents who are not supervisors, and programs. Those who may only look at the product may look here.
    pub(crate) fn require_overview(&self) -> Result<(), ApiError> {
        match self {
            StaffCaller::Operator(_) => Ok(()),
            _ => self.require_supervisor(),
        }
    }

    /// Refuses programs, and those who may only look.
    pub(crate) fn require_person_write(&self) -> Result<(), ApiError> {
        self.require_write()?;
        self.require_person()
    }

    /// Refuses those who may only look.
    pub(crate) fn require_write(&self) -> Result<(), ApiError> {
        match self {
            StaffCaller::Operator(principal) if principal.role < Role::Operator => {
                Err(not_allowed("this needs role operator"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses programs: people only.
    pub(crate) fn require_person(&self) -> Result<(), ApiError> {
        match self {
            StaffCaller::Bot(_) => Err(not_allowed("a bot may only write and transfer")),
            _ => Ok(()),
        }
    }

    /// The one who writes messages.
    pub(crate) fn sender(&self) -> Result<Sender, ApiError> {
        match self {
            StaffCaller::Agent(agent, _) => Ok(Sender::Agent(agent.id.clone())),
            StaffCaller::Bot(principal) => Ok(Sender::Bot(principal.name.clone())),
            StaffCaller::Operator(_) => {
                Err(not_allowed("only agents and bots write; log in to the desk"))
            }
        }
    }

    /// Their name in the trail.
    pub(crate) fn name(&self) -> String {
        match self {
            StaffCaller::Agent(agent, _) => agent.email.clone(),
            StaffCaller::Operator(principal) | StaffCaller::Bot(principal) => {
                principal.name.clone()
            }
        }
    }

    /// Short id of the token they came with; empty for agents, who have sessions.
    fn token_id(&self) -> &str {
        match self {
            StaffCaller::Agent(..) => "",
            StaffCaller::Operator(principal) | StaffCaller::Bot(principal) => &principal.token_id,
        }
    }

    fn role(&self) -> &'static str {
        match self {
            StaffCaller::Agent(agent, _) => agent.role.as_str(),
            StaffCaller::Operator(principal) | StaffCaller::Bot(principal) => principal.role.word(),
        }
    }
}

pub(crate) fn not_allowed(message: &str) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "NOT_ALLOWED", message)
}

impl FromRequestParts<DeskState> for StaffCaller {
    type Rejection = DeskApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &DeskState,
    ) -> Result<StaffCaller, DeskApiError> {
        let is_change = !matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS);
        let token = match bearer(&parts.headers).filter(|token| token.starts_with("du_")) {
            Some(token) => Some(token),
            None => {
                let cookie = cookies::value_of(&parts.headers, AGENT_COOKIE);
                let is_other = bearer(&parts.headers).is_some();
                let cookie = cookie.filter(|_| !is_other);
                if cookie.is_some() && is_change {
                    require::same_origin(&parts.headers)?;
                }
                cookie
            }
        };
        if let Some(token) = token {
            return check_agent(state, token).await;
        }
        let principal = require::identify(&state.app, &parts.headers, &parts.method).await?;
        match principal.role {
            Role::Worker => {
                let has_scope = principal.scopes.iter().any(|scope| scope == "chat");
                if !has_scope && !principal.scopes.is_empty() {
                    return Err(not_allowed("this token has no scope \"chat\"").into());
                }
                Ok(StaffCaller::Bot(principal))
            }
            _ => Ok(StaffCaller::Operator(principal)),
        }
    }
}

/// Checks the token of an agent's session.
pub(crate) async fn check_agent(
    state: &DeskState,
    token: &str,
) -> Result<StaffCaller, DeskApiError> {
    let ended = || ApiError::unauthorized("this session has ended; log in again");
    let session = UserToken::parse(token).map(|token| token.session().clone()).ok_or_else(ended)?;
    match state.desk.users.check_token(token).await? {
        UserCheck::Valid { user, status: UserStatus::Login } => {
            let agent = state.chat()?.agent_of_user(&user).ok_or_else(ended)?;
            Ok(StaffCaller::Agent(Box::new(agent), session))
        }
        _ => Err(ended().into()),
    }
}

/// The middleware of the routes that create something: `Idempotency-Key` for the callers whom the chat checks
/// itself. The check comes first, so that a session that has ended gets no kept response.
pub(crate) async fn once_by<C>(request: Request, next: Next) -> Response
where
    C: FromRequestParts<DeskState, Rejection = DeskApiError>,
{
    if matches!(idempotency::key_of(request.headers()), Ok(None)) {
        return next.run(request).await;
    }
    let Some(state) = request.extensions().get::<Arc<DeskState>>().cloned() else {
        return ApiError::internal(&"the route has no state").into_response();
    };
    let (mut parts, body) = request.into_parts();
    if let Err(error) = C::from_request_parts(&mut parts, &state).await {
        return error.into_response();
    }
    // All that can decide who calls; see `StaffCaller`.
    let of_desk = cookies::value_of(&parts.headers, AGENT_COOKIE).unwrap_or_default();
    let of_product = require::credential(&parts.headers).unwrap_or_default();
    let credential = format!("{of_desk}\n{of_product}");
    idempotency::once_as(&state.app, &credential, Request::from_parts(parts, body), next).await
}

pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

pub(crate) async fn client_of(parts: &mut Parts, state: &DeskState) -> Result<Client, ApiError> {
    Client::from_request_parts(parts, state)
        .await
        .map_err(|_| ApiError::internal(&"a request without a client"))
}

/// Somebody of the staff who makes a change, with what its line in the audit trail says of the request.
#[derive(Debug, Clone)]
pub(crate) struct AuditedCaller {
    caller: StaffCaller,
    client: Client,
    request_id: String,
    app: App,
}

impl std::ops::Deref for AuditedCaller {
    type Target = StaffCaller;

    fn deref(&self) -> &StaffCaller {
        &self.caller
    }
}

impl FromRequestParts<DeskState> for AuditedCaller {
    type Rejection = DeskApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &DeskState,
    ) -> Result<AuditedCaller, DeskApiError> {
        let caller = StaffCaller::from_request_parts(parts, state).await?;
        let client = client_of(parts, state).await?;
        let request_id = request_id(&parts.extensions);
        Ok(AuditedCaller { caller, client, request_id, app: state.app.clone() })
    }
}

impl AuditedCaller {
    /// Makes a change together with its line in the audit trail, whether or not the client waits.
    pub(crate) async fn audited<T: Send + 'static>(
        &self,
        action: &str,
        target: &str,
        work: impl Future<Output = Result<T, DeskApiError>> + Send + 'static,
    ) -> Result<T, DeskApiError> {
        self.audited_with(action, target, Value::Null, work).await
    }

    /// As [`AuditedCaller::audited`], with what the change sets. Fields that are null are left out, and so should
    /// be what a visitor wrote: the trail outlives a person who is erased.
    pub(crate) async fn audited_with<T: Send + 'static>(
        &self,
        action: &str,
        target: &str,
        after: Value,
        work: impl Future<Output = Result<T, DeskApiError>> + Send + 'static,
    ) -> Result<T, DeskApiError> {
        let after = match after {
            Value::Object(mut fields) => {
                fields.retain(|_, value| !value.is_null());
                Some(Value::Object(fields))
            }
            _ => None,
        };
        let entry = Entry {
            who: self.caller.name(),
            token_id: self.caller.token_id().to_owned(),
            role: self.caller.role().to_owned(),
            action: action.to_owned(),
            target: target.to_owned(),
            client: self.client.ip.to_string(),
            request_id: self.request_id.clone(),
            after,
            ..Entry::default()
        };
        let (shared, tasks) = (self.app.clone(), self.app.tasks().clone());
        let both = async move {
            let mut pending = audit::begin(&shared, entry).await?;
            let done = work.await;
            pending
                .entry
                .set_status(done.as_ref().map_or_else(DeskApiError::status, |_| StatusCode::OK));
            pending.finish(&shared).await;
            done
        };
        tasks
            .spawn(store::trace::carry(both.in_current_span()))
            .await
            .map_err(|error| ApiError::internal(&error))?
    }
}
