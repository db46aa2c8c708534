//! E-mail, web push and the outbox: transcripts, the link that leads back to a conversation, browsers of
//! agents, and what could not be sent.

use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use desk::chat::{OutgoingItem, OutgoingState, PushSubscription, VisitorChange};
use desk::limit::LimitedParty;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;
use web::client::Client;
use web::extract::{Json, Path, Query};
use web::idempotency::IdempotencyKey;
use web::page::PageQuery;
use web::time::Timestamp;
use web::{ApiError, Routes};

use super::caller::{AuditedCaller, StaffCaller, VisitorCaller, not_allowed, once_by};
use super::view::OpenedVisitorSession;
use super::{charge, conversation_id, widget};
use crate::error::DeskApiError;
use crate::service::DeskState;

pub(super) fn routes() -> Routes<DeskState> {
    Routes {
        public: OpenApiRouter::new()
            .routes(routes!(return_by_link))
            .routes(routes!(mail_own_transcript).layer(from_fn(once_by::<VisitorCaller>)))
            .routes(routes!(mail_transcript).layer(from_fn(once_by::<StaffCaller>)))
            .routes(routes!(push, subscribe))
            .routes(routes!(unsubscribe))
            .routes(routes!(outbox))
            .routes(routes!(resend))
            .routes(routes!(remove)),
        ..Routes::default()
    }
}

/// A link of an e-mail.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "link": "cnv_0199.1790000000.c2lnbmF0dXJl" }))]
struct ReturnLink {
    /// Part of the link after `#return=`.
    link: String,
    /// Id of the device.
    device_id: Option<String>,
}

/// A session that was opened with a link.
#[derive(Debug, Serialize, ToSchema)]
struct ReturnedVisitor {
    /// The session.
    #[serde(flatten)]
    #[schema(value_type = OpenedVisitorSession)]
    session: Value,
    /// The conversation that the link leads to.
    conversation_id: String,
}

/// Open a visitor's session with the link of an e-mail, which leads back to a conversation.
#[utoipa::path(post, path = "/api/v1/widget/return", tag = "desk", operation_id = "return_by_link",
    request_body = ReturnLink,
    responses((status = 200, description = "Opened; the token is shown this once.", body = ReturnedVisitor),
        (status = 403, description = "`BAD_LINK` or `USER_BLOCKED`.", body = web::error::ErrorBody)))]
async fn return_by_link(
    State(state): State<DeskState>,
    client: Client,
    headers: axum::http::HeaderMap,
    Json(body): Json<ReturnLink>,
) -> Result<Json<ReturnedVisitor>, DeskApiError> {
    widget::check_origin(&state, &headers)?;
    charge(&state, "visitor_session", LimitedParty::ip(client.ip)).await?;
    let found = state.chat()?.check_return_link(&body.link).await?;
    let device = body.device_id.unwrap_or_else(|| "email".to_owned());
    let visitor = found.visitor.id.clone();
    let change = VisitorChange::default();
    let session = widget::open_for(&state, &client, visitor, &device, change).await?;
    Ok(Json(ReturnedVisitor { session, conversation_id: found.id.to_string() }))
}

/// A transcript that is sent.
#[derive(Debug, Serialize, ToSchema)]
struct MailedTranscript {
    /// The address it is sent to.
    email: String,
}

/// E-mail the transcript of one's own conversation to one's own address.
#[utoipa::path(post, path = "/api/v1/widget/conversations/{id}/transcript", tag = "desk", operation_id = "mail_own_transcript",
    params(("id" = String, Path, description = "Id of the conversation."), IdempotencyKey),
    responses((status = 202, description = "It is sent.", body = MailedTranscript),
        (status = 409, description = "`EMAIL_OFF`, `NO_ADDRESS`, `NO_ANSWER_YET`, or the idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn mail_own_transcript(
    State(state): State<DeskState>,
    caller: VisitorCaller,
    Path(id): Path<String>,
) -> Result<(StatusCode, Json<MailedTranscript>), DeskApiError> {
    charge(&state, "transcript", LimitedParty::user(caller.id.as_str())).await?;
    let (id, sender) = (conversation_id(&id)?, caller.sender());
    let email = state.chat()?.mail_transcript(&id, Some(&sender)).await?;
    Ok((StatusCode::ACCEPTED, Json(MailedTranscript { email })))
}

/// E-mail the transcript of a conversation to its visitor.
#[utoipa::path(post, path = "/api/v1/conversations/{id}/transcript", tag = "desk", operation_id = "mail_transcript",
    params(("id" = String, Path, description = "Id of the conversation."), IdempotencyKey),
    responses((status = 202, description = "It is sent.", body = MailedTranscript),
        (status = 409, description = "`EMAIL_OFF`, `NO_ADDRESS`, `NO_ANSWER_YET`, or the idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn mail_transcript(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Path(id): Path<String>,
) -> Result<(StatusCode, Json<MailedTranscript>), DeskApiError> {
    caller.require_person_write()?;
    let (chat, id) = (state.chat()?.clone(), conversation_id(&id)?);
    let target = id.to_string();
    let email = caller
        .audited("conversation.transcript", &target, async move {
            Ok(chat.mail_transcript(&id, None).await?)
        })
        .await?;
    Ok((StatusCode::ACCEPTED, Json(MailedTranscript { email })))
}

/// The public key for a browser's subscription, and the number of subscriptions.
#[derive(Debug, Serialize, ToSchema)]
struct PushState {
    /// The key with which notifications are signed (P-256), base64url.
    public_key: String,
    /// Browsers of the agent that are notified.
    #[schema(minimum = 0)]
    browsers: i64,
}

/// Get the public key for push subscriptions, and the number of the agent's subscribed browsers.
#[utoipa::path(get, path = "/api/v1/agents/me/push", tag = "desk", operation_id = "get_push",
    responses((status = 200, description = "The key, and the number.", body = PushState),
        (status = 409, description = "`PUSH_OFF`.", body = web::error::ErrorBody)))]
async fn push(
    State(state): State<DeskState>,
    caller: StaffCaller,
) -> Result<Json<PushState>, DeskApiError> {
    let (agent, chat) = (caller.agent()?, state.chat()?);
    if !chat.options().push {
        let message = "web push is switched off: desk.push";
        return Err(ApiError::new(StatusCode::CONFLICT, "PUSH_OFF", message).into());
    }
    let keys = state.desk.courier.push_keys(chat, &state.app).await?;
    let browsers = chat.push_browsers(&agent.id).await?;
    Ok(Json(PushState { public_key: keys.public.clone(), browsers }))
}

/// Keys of a browser.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct BrowserKeys {
    /// Public key (P-256), base64url.
    p256dh: String,
    /// Secret of 16 bytes, base64url.
    auth: String,
}

/// A browser that takes notifications: a `PushSubscription` as JSON.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "endpoint": "https://push.example/abc",
    "keys": { "p256dh": "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4", "auth": "BTBZMqHH6r4Tts7J_aSIgg" },
}))]
struct BrowserSubscription {
    /// Its address at its push service.
    endpoint: String,
    /// Its keys.
    keys: BrowserKeys,
    /// The time at which it expires, if the browser knows; the push service tells when it has.
    #[serde(rename = "expirationTime", default)]
    #[schema(value_type = Option<f64>)]
    #[expect(dead_code, reason = "browsers send it; the push service tells when it is over")]
    expiration: Option<serde_json::Number>,
}

/// Subscribe this browser to notifications, for as long as this session lasts.
#[utoipa::path(post, path = "/api/v1/agents/me/push", tag = "desk", operation_id = "subscribe_push",
    request_body = BrowserSubscription,
    responses((status = 204, description = "Registered."),
        (status = 409, description = "`PUSH_OFF`.", body = web::error::ErrorBody)))]
async fn subscribe(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Json(body): Json<BrowserSubscription>,
) -> Result<StatusCode, DeskApiError> {
    let StaffCaller::Agent(agent, session) = &caller else {
        return Err(not_allowed("notifications are for agents; log in to the desk").into());
    };
    let allowed = &state.app.settings().webhook_networks;
    web::outbound::check_https(&body.endpoint, allowed)
        .map_err(|reason| ApiError::invalid_field("endpoint", reason))?;
    let subscription = PushSubscription {
        endpoint: body.endpoint,
        p256dh: body.keys.p256dh,
        auth: body.keys.auth,
    };
    state.chat()?.subscribe_push(&agent.id, session, subscription).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A browser by its address.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "endpoint": "https://push.example/abc" }))]
struct BrowserAddress {
    /// Its address at its push service.
    endpoint: String,
}

/// Unsubscribe a browser from notifications.
#[utoipa::path(post, path = "/api/v1/agents/me/push/remove", tag = "desk", operation_id = "unsubscribe_push",
    request_body = BrowserAddress, responses((status = 204, description = "Forgotten, or never known.")))]
async fn unsubscribe(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Json(body): Json<BrowserAddress>,
) -> Result<StatusCode, DeskApiError> {
    let agent = caller.agent()?.id.clone();
    state.chat()?.unsubscribe_push(&agent, &body.endpoint).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Selects rows of the outbox.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct OutboxQuery {
    /// State; `dead` if left out.
    state: Option<OutboxState>,
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<usize>,
    /// Position to continue from: `next_cursor` of the last answer.
    cursor: Option<String>,
}

/// Kind of an item of the outbox.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a value in the OpenAPI document")]
enum OutboxKind {
    /// An agent's answer, by e-mail.
    Reply,
    /// A transcript, by e-mail.
    Transcript,
    /// An invitation of an agent, by e-mail.
    Invitation,
    /// A notification of an agent's browser.
    Push,
}

/// State of an item of the outbox.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum OutboxState {
    /// It is sent when it is due.
    Waiting,
    /// It was given up.
    Dead,
}

/// An item of the outbox.
#[derive(Debug, Serialize, ToSchema)]
struct OutboxItem {
    /// Id of the item.
    id: String,
    /// Kind of the item.
    #[schema(value_type = OutboxKind)]
    kind: &'static str,
    /// The address, or the agent and the push service.
    to: String,
    /// The conversation it is about.
    #[schema(required)]
    conversation_id: Option<String>,
    /// Waiting for an attempt, or given up.
    #[schema(value_type = OutboxState)]
    state: &'static str,
    /// Attempts so far.
    #[schema(minimum = 0)]
    attempts: i64,
    /// The time of the next attempt; null when there is none.
    #[schema(required)]
    due_at: Option<Timestamp>,
    /// The reason why the last attempt failed.
    #[schema(required)]
    error: Option<String>,
    /// The time it was written.
    created_at: Timestamp,
}

impl From<OutgoingItem> for OutboxItem {
    fn from(item: OutgoingItem) -> OutboxItem {
        let is_waiting = item.state == OutgoingState::Waiting;
        OutboxItem {
            id: item.number.to_string(),
            kind: item.kind.as_str(),
            to: item.to,
            conversation_id: item.conversation,
            state: item.state.as_str(),
            attempts: item.attempts,
            due_at: is_waiting.then(|| item.due_at.into()),
            error: item.error,
            created_at: item.created_at.into(),
        }
    }
}

/// A page of the outbox.
#[derive(Debug, Serialize, ToSchema)]
struct OutboxPage {
    /// The rows, newest first.
    items: Vec<OutboxItem>,
    /// Cursor of the next page; null at the end.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// List the e-mails and notifications that were given up or are waiting, newest first.
#[utoipa::path(get, path = "/api/v1/outbox", tag = "desk", operation_id = "list_outbox", params(OutboxQuery),
    responses((status = 200, description = "A page.", body = OutboxPage)))]
async fn outbox(
    State(state): State<DeskState>,
    caller: StaffCaller,
    Query(query): Query<OutboxQuery>,
) -> Result<Json<OutboxPage>, DeskApiError> {
    caller.require_overview()?;
    let wanted = match query.state {
        None | Some(OutboxState::Dead) => OutgoingState::Dead,
        Some(OutboxState::Waiting) => OutgoingState::Waiting,
    };
    let page = PageQuery { limit: query.limit, cursor: query.cursor };
    let limit = page.limit()?;
    let before: Option<i64> = page.parse_cursor(|text| text.parse().ok())?;
    let found = state.chat()?.outgoing(wanted, before, limit).await?;
    let next = found.last().filter(|_| found.len() == limit).map(|last| last.number.to_string());
    let items = found.into_iter().map(OutboxItem::from).collect();
    Ok(Json(OutboxPage { items, next_cursor: next }))
}

/// The number of a row; what cannot be one is not there.
fn row_number(text: &str) -> Result<i64, DeskApiError> {
    text.parse().map_err(|_| desk::Error::NotFound { what: "row of the outbox" }.into())
}

/// Send a row of the outbox again, now.
#[utoipa::path(post, path = "/api/v1/outbox/{row_id}/resend", tag = "desk", operation_id = "resend_outbox",
    params(("row_id" = String, Path, description = "Id of the row.")),
    responses((status = 204, description = "It is sent as soon as possible.")))]
async fn resend(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Path(id): Path<String>,
) -> Result<StatusCode, DeskApiError> {
    caller.require_supervisor()?;
    let (chat, number) = (state.chat()?.clone(), row_number(&id)?);
    caller
        .audited("outbox.resend", &id, async move { Ok(chat.resend_outgoing(number).await?) })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Delete a row of the outbox, so that it is not sent.
#[utoipa::path(delete, path = "/api/v1/outbox/{row_id}", tag = "desk", operation_id = "delete_outbox",
    params(("row_id" = String, Path, description = "Id of the row.")),
    responses((status = 204, description = "Removed.")))]
async fn remove(
    State(state): State<DeskState>,
    caller: AuditedCaller,
    Path(id): Path<String>,
) -> Result<StatusCode, DeskApiError> {
    caller.require_supervisor()?;
    let (chat, number) = (state.chat()?.clone(), row_number(&id)?);
    caller
        .audited("outbox.delete", &id, async move { Ok(chat.delete_outgoing(number).await?) })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}
