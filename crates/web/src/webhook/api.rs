//! The API of webhooks: targets, tests, the log of attempts, dead letters.

use axum::Extension;
use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::from_fn;
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use store::Millis;
use store::webhook::{Delivery, LoggedAttempt};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;

use super::target::{TargetFields, WebhookFormat, WebhookTarget};
use crate::app::App;
use crate::audit::Note;
use crate::auth::Principal;
use crate::error::{ApiError, ErrorBody};
use crate::extract::{Json, Path, Query};
use crate::idempotency::{self, IdempotencyKey, once};
use crate::page::{Page, PageQuery};
use crate::routes::Routes;
use crate::time::Timestamp;

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes {
        viewer: OpenApiRouter::new()
            .routes(routes!(list))
            .routes(routes!(get))
            .routes(routes!(list_event_types))
            .routes(routes!(list_attempts))
            .routes(routes!(list_dead_letters)),
        operator: OpenApiRouter::new()
            .routes(routes!(test).layer(from_fn(once)))
            .routes(routes!(resend)),
        admin: OpenApiRouter::new()
            .routes(routes!(create))
            .routes(routes!(change, remove))
            .routes(routes!(rotate_secret).layer(from_fn(once))),
        ..Routes::default()
    }
}

/// A webhook, without its URL and its secret.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Webhook)]
pub(crate) struct WebhookView {
    /// Its id.
    pub(crate) id: String,
    /// Its name, chosen by the person who made it.
    pub(crate) name: String,
    /// Scheme and host of its URL; the rest is kept secret.
    pub(crate) origin: String,
    /// Format of the bodies it gets.
    pub(crate) format: WebhookFormat,
    /// Types of the events it gets; empty for all.
    pub(crate) events: Vec<String>,
    /// False if nothing is sent to it.
    pub(crate) enabled: bool,
    /// Most deliveries per minute.
    pub(crate) max_per_minute: u32,
    /// Words that go with every event; empty for none.
    pub(crate) context: String,
    /// Time at which it was made.
    pub(crate) created_at: Timestamp,
    /// Name of the token it was made with.
    pub(crate) created_by: String,
}

impl From<WebhookTarget> for WebhookView {
    fn from(target: WebhookTarget) -> WebhookView {
        WebhookView {
            id: target.id,
            name: target.name,
            origin: target.origin,
            format: target.format,
            events: target.events,
            enabled: target.enabled,
            max_per_minute: target.max_per_minute,
            context: target.context,
            created_at: Timestamp(Millis(target.created_ms)),
            created_by: target.created_by,
        }
    }
}

/// A new webhook.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "name": "on call", "url": "https://hooks.example.org/tidegate", "format": "json",
    "events": ["store.not_writable"], "max_per_minute": 60 }))]
struct NewWebhook {
    /// Its name: 1 to 64 characters.
    #[schema(min_length = 1, max_length = 64)]
    name: String,
    /// The URL that events are posted to, over http or https. Private and reserved addresses are refused
    /// unless `webhooks.allowed_networks` has them.
    #[schema(max_length = 2048)]
    url: String,
    /// Format of the bodies; `json` if left out.
    format: Option<WebhookFormat>,
    /// Types of the events it gets; all if empty or left out.
    #[schema(max_items = 64)]
    events: Option<Vec<String>>,
    /// Most deliveries per minute, from 1 to 6,000; 60 if left out.
    #[schema(minimum = 1, maximum = 6000)]
    max_per_minute: Option<u32>,
    /// Words that go with every event, such as the name of the installation: at most 200 characters.
    #[schema(max_length = 200)]
    context: Option<String>,
}

/// Changes of a webhook; what is left out stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "enabled": false }))]
struct WebhookChange {
    /// Its name: 1 to 64 characters.
    #[schema(min_length = 1, max_length = 64)]
    name: Option<String>,
    /// The URL that events are posted to.
    #[schema(max_length = 2048)]
    url: Option<String>,
    /// Format of the bodies.
    format: Option<WebhookFormat>,
    /// Types of the events it gets; all if empty.
    #[schema(max_items = 64)]
    events: Option<Vec<String>>,
    /// False sends nothing to it any more; what is in line becomes dead letters.
    enabled: Option<bool>,
    /// Most deliveries per minute, from 1 to 6,000.
    #[schema(minimum = 1, maximum = 6000)]
    max_per_minute: Option<u32>,
    /// Words that go with every event; an empty text for none.
    #[schema(max_length = 200)]
    context: Option<String>,
}

/// A webhook with its secret.
#[derive(Debug, Serialize, ToSchema)]
struct WebhookWithSecret {
    /// The webhook.
    webhook: WebhookView,
    /// The secret that signs what is sent to it, shown this once.
    secret: String,
}

/// The test that was put in line.
#[derive(Debug, Serialize, ToSchema)]
struct WebhookTest {
    /// Id of its delivery.
    delivery_id: String,
}

/// A type of event.
#[derive(Debug, Serialize, ToSchema)]
struct WebhookEventType {
    /// Its name.
    name: String,
    /// Its description.
    description: String,
}

/// Outcome of an attempt, in the document.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "the schema of LoggedAttempt::outcome")]
enum WebhookAttemptOutcome {
    /// The receiver took it.
    Delivered,
    /// It failed and is tried again.
    Retry,
    /// It failed and is a dead letter now.
    Dead,
}

/// An attempt to deliver an event.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WebhookAttempt)]
pub(crate) struct AttemptRow {
    /// Id of the delivery, the same in every attempt.
    pub(crate) delivery_id: String,
    /// Type of the event.
    pub(crate) event: String,
    /// The thing it is about.
    pub(crate) subject: String,
    /// Number of the attempt, starting at 1.
    pub(crate) attempt: u32,
    /// Time of the attempt.
    pub(crate) attempted_at: Timestamp,
    /// Duration in milliseconds.
    pub(crate) took_ms: u64,
    /// Its outcome.
    #[schema(value_type = WebhookAttemptOutcome)]
    pub(crate) outcome: String,
    /// HTTP status of the answer, if there was one.
    pub(crate) http_status: Option<u16>,
    /// The failure.
    pub(crate) error: Option<String>,
}

impl From<LoggedAttempt> for AttemptRow {
    fn from(attempt: LoggedAttempt) -> AttemptRow {
        AttemptRow {
            delivery_id: attempt.delivery,
            event: attempt.event,
            subject: attempt.subject,
            attempt: attempt.attempt,
            attempted_at: Timestamp(Millis(attempt.at_ms)),
            took_ms: attempt.took_ms,
            outcome: attempt.outcome,
            http_status: attempt.status,
            error: attempt.error,
        }
    }
}

/// An event that could not be delivered.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WebhookDeadLetter)]
pub(crate) struct DeadLetterRow {
    /// Id of the delivery.
    pub(crate) delivery_id: String,
    /// Type of the event.
    pub(crate) event: String,
    /// The thing it is about.
    pub(crate) subject: String,
    /// Time of the event.
    pub(crate) created_at: Timestamp,
    /// Attempts made.
    pub(crate) attempts: u32,
    /// The failure of the latest attempt.
    pub(crate) error: Option<String>,
}

impl From<Delivery> for DeadLetterRow {
    fn from(delivery: Delivery) -> DeadLetterRow {
        DeadLetterRow {
            delivery_id: delivery.id,
            event: delivery.event,
            subject: delivery.subject,
            created_at: Timestamp(Millis(delivery.created_ms)),
            attempts: delivery.attempts,
            error: delivery.error,
        }
    }
}

/// The `Idempotency-Key` header of a request that makes a webhook.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
struct WebhookIdempotencyKey {
    /// A repeated request of the same key finds the webhook it made, with its secret; another request
    /// under the same key is refused with 409. 1 to 200 bytes.
    #[param(rename = "Idempotency-Key")]
    key: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for WebhookIdempotencyKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Ok(Self { key: idempotency::key_of(&parts.headers)?.map(str::to_owned) })
    }
}

/// List the webhooks, oldest first.
#[utoipa::path(get, path = "/api/v1/webhooks", tag = "webhooks", operation_id = "list_webhooks", params(PageQuery),
    responses((status = 200, description = "A page of webhooks.", body = Page<WebhookView>)))]
async fn list(
    State(app): State<App>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<WebhookView>>, ApiError> {
    let (limit, offset) = (query.limit()?, query.offset()?);
    let targets = app.webhooks().targets().await?.into_iter().skip(offset).take(limit);
    Ok(Json(Page::at(offset, limit, targets.map(WebhookView::from).collect())))
}

/// Get a webhook.
#[utoipa::path(get, path = "/api/v1/webhooks/{id}", tag = "webhooks", operation_id = "get_webhook",
    params(("id" = String, Path, description = "Id of the webhook.")),
    responses((status = 200, description = "The webhook.", body = WebhookView)))]
async fn get(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<WebhookView>, ApiError> {
    Ok(Json(app.webhooks().target(&id).await?.into()))
}

/// List the types of events that webhooks can subscribe to.
#[utoipa::path(get, path = "/api/v1/webhook-events", tag = "webhooks", operation_id = "list_event_types", params(PageQuery),
    responses((status = 200, description = "A page of types.", body = Page<WebhookEventType>)))]
async fn list_event_types(
    State(app): State<App>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<WebhookEventType>>, ApiError> {
    let (limit, offset) = (query.limit()?, query.offset()?);
    let types = app.webhooks().event_types().iter().skip(offset).take(limit);
    let row = |event: &super::EventType| WebhookEventType {
        name: event.name.to_owned(),
        description: event.help.to_owned(),
    };
    Ok(Json(Page::at(offset, limit, types.map(row).collect())))
}

/// Create a webhook.
#[utoipa::path(post, path = "/api/v1/webhooks", tag = "webhooks", operation_id = "create_webhook",
    params(WebhookIdempotencyKey), request_body = NewWebhook,
    responses((status = 201, description = "Made; the secret is shown this once.", body = WebhookWithSecret),
        (status = 200, description = "It was made by an earlier request of this idempotency key.", body = WebhookWithSecret),
        (status = 409, description = "The idempotency key made another webhook.", body = ErrorBody)))]
async fn create(
    State(app): State<App>,
    principal: Principal,
    key: WebhookIdempotencyKey,
    Json(new): Json<NewWebhook>,
) -> Result<impl IntoResponse, ApiError> {
    let fields = TargetFields {
        name: Some(new.name),
        url: Some(new.url),
        format: new.format,
        events: new.events,
        enabled: None,
        max_per_minute: new.max_per_minute,
        context: new.context,
    };
    let allowed = &app.settings().webhook_networks;
    let (target, secret, is_new) =
        app.webhooks().create_target(fields, allowed, &principal, key.key.as_deref()).await?;
    let webhook = WebhookView::from(target);
    let note = Note::new("webhook.create", &webhook.id).change((), &webhook);
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Extension(note), Json(WebhookWithSecret { webhook, secret })))
}

/// Change a webhook.
#[utoipa::path(patch, path = "/api/v1/webhooks/{id}", tag = "webhooks", operation_id = "change_webhook",
    params(("id" = String, Path, description = "Id of the webhook.")), request_body = WebhookChange,
    responses((status = 200, description = "Changed.", body = WebhookView)))]
async fn change(
    State(app): State<App>,
    Path(id): Path<String>,
    Json(change): Json<WebhookChange>,
) -> Result<impl IntoResponse, ApiError> {
    let fields = TargetFields {
        name: change.name,
        url: change.url,
        format: change.format,
        events: change.events,
        enabled: change.enabled,
        max_per_minute: change.max_per_minute,
        context: change.context,
    };
    let allowed = &app.settings().webhook_networks;
    let (before, after) = app.webhooks().change_target(&id, fields, allowed).await?;
    let (before, after) = (WebhookView::from(before), WebhookView::from(after));
    let note = Note::new("webhook.change", &id).change(&before, &after);
    Ok((Extension(note), Json(after)))
}

/// Delete a webhook, with its dead letters.
#[utoipa::path(delete, path = "/api/v1/webhooks/{id}", tag = "webhooks", operation_id = "delete_webhook",
    params(("id" = String, Path, description = "Id of the webhook.")),
    responses((status = 200, description = "Deleted.", body = WebhookView)))]
async fn remove(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, ApiError> {
    let webhook = WebhookView::from(app.webhooks().target(&id).await?);
    app.webhooks().outbox.remove_target(&id).await?;
    let note = Note::new("webhook.delete", &id).change(&webhook, ());
    Ok((Extension(note), Json(webhook)))
}

/// Rotate the secret of a webhook. Events are signed with the new one from now on.
#[utoipa::path(post, path = "/api/v1/webhooks/{id}/secret", tag = "webhooks", operation_id = "rotate_webhook_secret",
    params(("id" = String, Path, description = "Id of the webhook."), IdempotencyKey),
    responses((status = 200, description = "The new secret, shown this once.", body = WebhookWithSecret),
        (status = 409, description = "The idempotency key was used for another request.", body = ErrorBody)))]
async fn rotate_secret(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, ApiError> {
    let (target, secret) = app.webhooks().rotate_secret(&id).await?;
    let note = Note::new("webhook.rotate_secret", &id);
    Ok((Extension(note), Json(WebhookWithSecret { webhook: target.into(), secret })))
}

/// Send a test event to a webhook.
#[utoipa::path(post, path = "/api/v1/webhooks/{id}/test", tag = "webhooks", operation_id = "test_webhook",
    params(("id" = String, Path, description = "Id of the webhook."), IdempotencyKey),
    responses((status = 202, description = "The test is queued; the log of attempts shows its outcome.", body = WebhookTest),
        (status = 409, description = "The idempotency key was used for another request.", body = ErrorBody)))]
async fn test(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, ApiError> {
    app.webhooks().target(&id).await?;
    let delivery_id = app.webhooks().test(&id).await?;
    let note = Note::new("webhook.test", &id);
    Ok((StatusCode::ACCEPTED, Extension(note), Json(WebhookTest { delivery_id })))
}

/// List the latest attempts to deliver to a webhook, newest first.
#[utoipa::path(get, path = "/api/v1/webhooks/{id}/attempts", tag = "webhooks", operation_id = "list_webhook_attempts",
    params(("id" = String, Path, description = "Id of the webhook."), PageQuery),
    responses((status = 200, description = "A page of attempts.", body = Page<AttemptRow>)))]
async fn list_attempts(
    State(app): State<App>,
    Path(id): Path<String>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<AttemptRow>>, ApiError> {
    let (limit, offset) = (query.limit()?, query.offset()?);
    app.webhooks().target(&id).await?;
    let rows = attempts(&app, &id).await?.into_iter().skip(offset).take(limit);
    Ok(Json(Page::at(offset, limit, rows.collect())))
}

/// Returns the attempts of a webhook that the log has.
pub(crate) async fn attempts(app: &App, id: &str) -> Result<Vec<AttemptRow>, ApiError> {
    let log = app.webhooks().outbox.log().await?;
    Ok(log.into_iter().filter(|row| row.target == id).map(AttemptRow::from).collect())
}

/// List the events that could not be delivered to a webhook, newest first.
#[utoipa::path(get, path = "/api/v1/webhooks/{id}/dead-letters", tag = "webhooks", operation_id = "list_webhook_dead_letters",
    params(("id" = String, Path, description = "Id of the webhook."), PageQuery),
    responses((status = 200, description = "A page of dead letters.", body = Page<DeadLetterRow>)))]
async fn list_dead_letters(
    State(app): State<App>,
    Path(id): Path<String>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<DeadLetterRow>>, ApiError> {
    let (limit, offset) = (query.limit()?, query.offset()?);
    app.webhooks().target(&id).await?;
    let rows = dead_letters(&app, &id).await?.into_iter().skip(offset).take(limit);
    Ok(Json(Page::at(offset, limit, rows.collect())))
}

/// Returns the dead letters of a webhook.
pub(crate) async fn dead_letters(app: &App, id: &str) -> Result<Vec<DeadLetterRow>, ApiError> {
    let dead = app.webhooks().outbox.dead().await?;
    Ok(dead.into_iter().filter(|row| row.target == id).map(DeadLetterRow::from).collect())
}

/// Send a dead letter again, with a full set of attempts.
#[utoipa::path(post, path = "/api/v1/webhooks/{id}/dead-letters/{delivery_id}/resend", tag = "webhooks", operation_id = "resend_webhook_dead_letter",
    params(("id" = String, Path, description = "Id of the webhook."),
        ("delivery_id" = String, Path, description = "Id of the delivery.")),
    responses((status = 202, description = "It is in line again.", body = WebhookTest)))]
async fn resend(
    State(app): State<App>,
    Path((id, delivery_id)): Path<(String, String)>,
) -> Result<impl IntoResponse, ApiError> {
    let is_its_own = delivery_id.rsplit_once('.').is_some_and(|(_, target)| target == id);
    if !is_its_own || !app.webhooks().outbox.resend(&delivery_id).await? {
        return Err(ApiError::not_found(
            "no such dead letter; it may have been sent again already",
        ));
    }
    app.webhooks().wake.notify_one();
    let note = Note::new("webhook.resend", &delivery_id);
    Ok((StatusCode::ACCEPTED, Extension(note), Json(WebhookTest { delivery_id })))
}
