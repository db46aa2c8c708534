//! API of operators: queues, positions, sessions, events, invites, keys.

use std::borrow::Cow;
use std::time::Duration;

use axum::Extension;
use axum::extract::{FromRequest, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use room::{
    AdmissionRate, Bound, EndCounts, EventId, NewInvite, PositionList, Queue, QueueConfig, QueueId,
    VisitorPriority,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{IntoParams, PartialSchema, ToSchema};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;

use super::view::{
    DuplicatesView, HourView, PassAlgorithm, PositionView, PriorityPolicyView, QueueView,
    RoomEventView, SessionView, StatsView, VisitorMatchView,
};
use super::{InPosition, InQueue, InSession};
use crate::error::{RoomApiError, api_error};
use crate::service::RoomState;
use crate::site::{self, Site};
use crate::waiting_page::brand::{self, Brand};
use web::Routes;
use web::audit::Note;
use web::error::{ApiError, ErrorBody};
use web::extract::{Json, OptionalJson, Path, Query};
use web::idempotency::{IdempotencyKey, once};
use web::page::{Page, PageQuery};
use web::sse::Sse;
use web::time::Timestamp;

/// The routes.
pub(super) fn routes() -> Routes<RoomState> {
    Routes {
        viewer: OpenApiRouter::new()
            .routes(routes!(list))
            .routes(routes!(get))
            .routes(routes!(stats))
            .routes(routes!(stats_history))
            .routes(routes!(find))
            .routes(routes!(positions))
            .routes(routes!(position))
            .routes(routes!(sessions))
            .routes(routes!(events))
            .routes(routes!(live)),
        operator: OpenApiRouter::new()
            .routes(routes!(pause))
            .routes(routes!(resume))
            .routes(routes!(maintenance))
            .routes(routes!(admit).layer(from_fn(once)))
            .routes(routes!(rate))
            .routes(routes!(message))
            .routes(routes!(revoke_position))
            .routes(routes!(revoke_session))
            .routes(routes!(set_user))
            .routes(routes!(revoke_all))
            .routes(routes!(invite).layer(from_fn(once))),
        admin: OpenApiRouter::new()
            .routes(routes!(create).layer(from_fn(once)))
            .routes(routes!(change, delete))
            .routes(routes!(put).layer(from_fn(once)))
            .routes(routes!(reset))
            .routes(routes!(rotate).layer(from_fn(once)))
            .routes(routes!(pass_key, set_pass_key)),
        ..Routes::default()
    }
}

/// Rate of admission to set.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "count": 120, "per_seconds": 60 }))]
struct NewRate {
    /// Admissions per period.
    count: u32,
    /// The period in seconds; 1 if omitted.
    per_seconds: Option<u32>,
    /// Burst: admissions at once after a lull; one second's worth if omitted.
    burst: Option<u32>,
}

impl From<NewRate> for AdmissionRate {
    fn from(new: NewRate) -> AdmissionRate {
        let rate = AdmissionRate::new(new.count, new.per_seconds.unwrap_or(1));
        new.burst.map_or(rate, |burst| rate.with_burst(burst))
    }
}

/// Settings of a queue. When changing a queue an omitted one keeps its value, otherwise it has its default.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = QueueSettings, example = json!({
    "name": "Spring sale", "target_url": "https://shop.example/", "max_active": 1000,
    "admission": { "count": 500, "per_seconds": 60 }
}))]
struct QueueChange {
    /// Name of a new queue; a queue keeps its name.
    #[schema(ignore)]
    id: Option<String>,
    /// Display name; up to 200 characters.
    name: Option<String>,
    /// URL admitted visitors are sent to; may be empty.
    target_url: Option<String>,
    /// Visitors admitted or active at once; 0 is no limit.
    max_active: Option<u32>,
    /// Visitors from one address (IPv6: one /64) admitted or active at once; 0 is no limit. `null` or `"share"` is a
    /// tenth of `max_active`, but up to 20 as long as that is no more than half of it.
    #[schema(value_type = Option<u32>)]
    #[serde(deserialize_with = "address_limit")]
    max_active_per_address: Option<Option<u32>>,
    /// Visitors who may wait; 0 is no limit.
    max_queue_size: Option<u32>,
    /// Admissions per second, with up to three decimal places; `admission` is the same as a count per
    /// period.
    admission_rate: Option<f64>,
    /// Rate of admission.
    admission: Option<NewRate>,
    /// Policy by which priorities above 0 get ahead.
    priority_policy: Option<PriorityPolicyView>,
    /// Under the strict policy, one admission in this many is reserved for priority 0; 0 reserves none.
    reserved_share: Option<u32>,
    /// Time an admitted visitor has to start a session.
    admission_window_seconds: Option<u32>,
    /// Time a position without heartbeats is held beyond three missed polls.
    hold_seconds: Option<u32>,
    /// Time between polls when the wait is not known.
    heartbeat_interval_seconds: Option<u32>,
    /// Minimum time between polls, near the front.
    poll_floor_seconds: Option<u32>,
    /// Maximum time between polls, far from the front.
    poll_ceiling_seconds: Option<u32>,
    /// Bytes of the user agent that are stored.
    user_agent_bytes: Option<u32>,
    /// Time without a heartbeat after which a position expires; another way to set `hold_seconds`, so
    /// send one of the two.
    heartbeat_timeout_seconds: Option<u32>,
    /// Time without activity after which a session ends.
    session_timeout_seconds: Option<u32>,
    /// Hard limit of a session.
    session_max_seconds: Option<u32>,
    /// Duration of a session started for a visitor without a cookie, until the cookie comes back once.
    provisional_timeout_seconds: Option<u32>,
    /// Let proxies start sessions also for requests that are not a person's navigation.
    admit_programs: Option<bool>,
    /// Renew sessions with activity.
    session_renewal: Option<bool>,
    /// Rule by which two visitors count as the same.
    duplicates: Option<DuplicatesView>,
    /// Store plain network addresses besides their keyed hashes.
    store_addresses: Option<bool>,
    /// Origins visitors may be sent back to, and whose pages may call for them, besides that of
    /// `target_url`. Such as `https://shop.example`.
    allowed_origins: Option<Vec<String>>,
    /// Paths visitors may be sent back to, with all below them; empty means all.
    allowed_paths: Option<Vec<String>>,
    /// Colour of the waiting page, such as `#0a7d5c`; empty for the default. It is adjusted where it would
    /// not be readable.
    brand_color: Option<String>,
    /// Logo on the waiting page: an https URL, a path of the site, or `data:image/…;base64,`; empty for the
    /// default.
    brand_logo: Option<String>,
}

/// Reads a number, or `null` or `"share"` for the share of `max_active`.
fn address_limit<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<u32>>, D::Error> {
    use serde::de::Error as _;
    match Value::deserialize(from)? {
        Value::Null => Ok(Some(None)),
        Value::String(text) if text == "share" => Ok(Some(None)),
        value => serde_json::from_value(value)
            .map(|most: u32| Some(Some(most)))
            .map_err(|_| D::Error::custom("takes a number, or \"share\"")),
    }
}

/// The names under which settings were sent that have two.
#[derive(Clone, Copy, Debug)]
struct SentNames {
    /// The hold came as `heartbeat_timeout_seconds`.
    hold_by_timeout: bool,
    /// The rate came as `admission_rate`.
    rate_per_second: bool,
}

impl SentNames {
    /// Translates an error of the room, naming the field that was sent.
    fn error(self, error: room::Error) -> RoomApiError {
        match error {
            room::Error::Invalid { field: "hold", .. } if self.hold_by_timeout => {
                let Bound { least, most, .. } = room::HOLD;
                let text =
                    format!("three times poll_ceiling_seconds, and from {least} to {most} more");
                ApiError::invalid_field("heartbeat_timeout_seconds", text).into()
            }
            room::Error::Invalid { field, message }
                if self.rate_per_second && field.starts_with("admission.") =>
            {
                ApiError::invalid_field("admission_rate", message).into()
            }
            error => error.into(),
        }
    }
}

impl QueueChange {
    /// Returns the names under which settings were sent.
    fn names(&self) -> SentNames {
        SentNames {
            hold_by_timeout: self.heartbeat_timeout_seconds.is_some(),
            rate_per_second: self.admission_rate.is_some() && self.admission.is_none(),
        }
    }

    fn checked(self) -> Result<impl Fn(&mut QueueConfig), RoomApiError> {
        if self.id.is_some() {
            return Err(ApiError::invalid_field("id", "a queue keeps its name").into());
        }
        let rate = self.admission_rate.map(rate_of).transpose()?;
        let policy = self.priority_policy.map(room::PriorityPolicy::from);
        let duplicates = self.duplicates.map(room::Duplicates::from);
        let origins = self.allowed_origins.as_deref().map(site::check_origins).transpose()?;
        let paths = self.allowed_paths.as_deref().map(site::check_paths).transpose()?;
        let color = self.brand_color.as_deref().map(brand::check_color).transpose()?;
        let logo = self.brand_logo.as_deref().map(brand::check_logo).transpose()?;
        if self.hold_seconds.is_some() && self.heartbeat_timeout_seconds.is_some() {
            return Err(ApiError::invalid_field(
                "heartbeat_timeout_seconds",
                "cannot be combined with hold_seconds, which sets the same",
            )
            .into());
        }
        Ok(move |config: &mut QueueConfig| {
            let seconds = |n: u32| Duration::from_secs(n.into());
            fn set<T: Clone>(field: &mut T, value: &Option<T>) {
                if let Some(value) = value {
                    field.clone_from(value);
                }
            }
            set(&mut config.name, &self.name);
            set(&mut config.target_url, &self.target_url);
            set(&mut config.max_active, &self.max_active);
            set(&mut config.max_active_per_address, &self.max_active_per_address);
            set(&mut config.max_queue_size, &self.max_queue_size);
            set(&mut config.admission, &rate);
            set(&mut config.admission, &self.admission.map(AdmissionRate::from));
            set(&mut config.policy, &policy);
            set(&mut config.reserved_share, &self.reserved_share);
            set(&mut config.admission_window, &self.admission_window_seconds.map(seconds));
            set(&mut config.poll_floor, &self.poll_floor_seconds.map(seconds));
            set(&mut config.poll_ceiling, &self.poll_ceiling_seconds.map(seconds));
            set(&mut config.user_agent_bytes, &self.user_agent_bytes);
            set(&mut config.hold, &self.hold_seconds.map(seconds));
            if let Some(timeout) = self.heartbeat_timeout_seconds {
                config.set_heartbeat_timeout(seconds(timeout));
            }
            set(&mut config.heartbeat_interval, &self.heartbeat_interval_seconds.map(seconds));
            set(&mut config.session_timeout, &self.session_timeout_seconds.map(seconds));
            set(&mut config.session_max, &self.session_max_seconds.map(seconds));
            set(&mut config.provisional_timeout, &self.provisional_timeout_seconds.map(seconds));
            set(&mut config.admit_programs, &self.admit_programs);
            set(&mut config.session_renewal, &self.session_renewal);
            set(&mut config.duplicates, &duplicates);
            set(&mut config.store_addresses, &self.store_addresses);
            if let Some(origins) = &origins {
                Site::put_origins(&mut config.attributes, origins);
            }
            if let Some(paths) = &paths {
                Site::put_paths(&mut config.attributes, paths);
            }
            if let Some(color) = &color {
                Brand::put_color(&mut config.attributes, color);
            }
            if let Some(logo) = &logo {
                Brand::put_logo(&mut config.attributes, logo);
            }
        })
    }
}

/// Converts a rate per second to a count per whole seconds: 0.5 is one in two seconds.
fn rate_of(per_second: f64) -> Result<AdmissionRate, RoomApiError> {
    let thousandths = (per_second * 1_000.0).round();
    if !(0.0..=1e9).contains(&per_second) || (per_second * 1_000.0 - thousandths).abs() > 1e-3 {
        return Err(ApiError::invalid_field(
            "admission_rate",
            "0 to 1,000,000 per second, with up to three decimal places",
        )
        .into());
    }
    // The least number of seconds in which it is whole.
    let seconds = [1u32, 2, 4, 5, 8, 10, 20, 25, 40, 50, 100, 125, 200, 250, 500, 1_000];
    let fits = |seconds: &&u32| (thousandths * f64::from(**seconds)) % 1_000.0 == 0.0;
    let seconds = seconds.iter().find(fits).copied().unwrap_or(1_000);
    Ok(AdmissionRate::new((thousandths * f64::from(seconds) / 1_000.0) as u32, seconds))
}

/// A queue to create: its name, and its settings. Only the schema: the fields are read as a
/// [`QueueChange`], because `flatten` would accept unknown ones.
struct NewQueue;

impl PartialSchema for NewQueue {
    fn schema() -> RefOr<Schema> {
        let RefOr::T(Schema::Object(mut settings)) = QueueChange::schema() else {
            return QueueChange::schema();
        };
        let id = ObjectBuilder::new().schema_type(Type::String);
        let id = id.description(Some("1 to 63 characters of a-z, 0-9 and -."));
        settings.properties.insert("id".to_owned(), id.into());
        settings.required.push("id".to_owned());
        settings.description = Some("A queue to create: its name, and its settings.".to_owned());
        if let Some(Value::Object(example)) = &mut settings.example {
            example.insert("id".to_owned(), "spring-sale".into());
        }
        settings.into()
    }
}

impl ToSchema for NewQueue {
    fn name() -> Cow<'static, str> {
        "NewQueue".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        QueueChange::schemas(schemas);
    }
}

/// List queues, by name.
#[utoipa::path(get, path = "/api/v1/admin/queues", tag = "room", operation_id = "list_queues",
    params(PageQuery),
    responses((status = 200, description = "A page of queues.", body = Page<QueueView>)))]
async fn list(
    State(state): State<RoomState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<QueueView>>, RoomApiError> {
    let (limit, offset) = (page.limit()?, page.offset()?);
    let mut items = Vec::new();
    let ids = state.room.queue_ids().await?;
    let more = ids.len() > offset.saturating_add(limit);
    for id in ids.iter().skip(offset).take(limit) {
        match state.room.queue(id).await {
            Ok(queue) => items.push(QueueView::of(&queue)),
            // It is just being created or deleted.
            Err(room::Error::UnknownQueue) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Json(Page::new(items, more.then_some(offset + limit))))
}

/// Create a queue.
#[utoipa::path(post, path = "/api/v1/admin/queues", tag = "room", operation_id = "create_queue",
    params(IdempotencyKey), request_body = NewQueue,
    responses((status = 201, description = "Created.", body = QueueView),
        (status = 409, description = "The name is taken, or the idempotency key was used for another request.",
            body = ErrorBody)))]
async fn create(
    State(state): State<RoomState>,
    Json(mut new): Json<QueueChange>,
) -> Result<impl IntoResponse, RoomApiError> {
    let id = new.id.take().ok_or_else(|| ApiError::invalid_field("id", "id is missing"))?;
    let id = new_id(&id, "id")?;
    let mut config = QueueConfig::default();
    let names = new.names();
    new.checked()?(&mut config);
    Ok(created(&state.room.create_queue(&id, config).await.map_err(|error| names.error(error))?))
}

/// Parses the name of a queue that may not exist yet; `field` is the field it was sent in.
fn new_id(text: &str, field: &'static str) -> Result<QueueId, ApiError> {
    QueueId::parse(text).map_err(|error| match error {
        room::Error::Invalid { message, .. } => ApiError::invalid_field(field, message),
        error => api_error(error),
    })
}

/// Returns a created queue, and the audit note.
fn created(queue: &Queue) -> (StatusCode, Extension<Note>, QueueView) {
    let view = QueueView::of(queue);
    let note = Note::new("queue.create", queue.id.as_str()).change((), &view);
    (StatusCode::CREATED, Extension(note), view)
}

/// Get a queue.
#[utoipa::path(get, path = "/api/v1/admin/queues/{queue_id}", tag = "room", operation_id = "get_queue",
    params(InQueue),
    responses((status = 200, description = "The queue.", body = QueueView)))]
async fn get(
    State(state): State<RoomState>,
    InQueue { queue_id: id }: InQueue,
) -> Result<QueueView, RoomApiError> {
    Ok(QueueView::of(&state.room.queue(&id).await?))
}

/// Change settings of a queue. With `If-Match` only if it still has that version.
#[utoipa::path(patch, path = "/api/v1/admin/queues/{queue_id}", tag = "room", operation_id = "change_queue",
    params(InQueue, ("If-Match" = Option<String>, Header, description = "Version of the queue, such as `\"3\"`; another one is refused with 412.")), request_body = QueueChange,
    responses((status = 200, description = "Changed.", body = QueueView),
        (status = 412, description = "It was changed in the meantime.", body = ErrorBody)))]
async fn change(
    State(state): State<RoomState>,
    InQueue { queue_id: id }: InQueue,
    headers: HeaderMap,
    Json(body): Json<QueueChange>,
) -> Result<impl IntoResponse, RoomApiError> {
    let room = &state.room;
    let version = if_match(&headers)?;
    let before = QueueView::of(&room.queue(&id).await?);
    let names = body.names();
    let changed = room.change_queue(&id, version, body.checked()?).await;
    let after = QueueView::of(&changed.map_err(|error| names.error(error))?);
    let note = Note::new("queue.change", id.as_str()).change(&before, &after);
    Ok((Extension(note), after))
}

/// Create a queue, or replace all its settings: an omitted one has its default. Status and message are
/// kept. With `If-Match` only if it still has that version.
#[utoipa::path(put, path = "/api/v1/admin/queues/{queue_id}", tag = "room", operation_id = "put_queue",
    params(("queue_id" = String, Path, description = "Name of the queue."), ("If-Match" = Option<String>, Header, description = "Version of the queue, such as `\"3\"`; another one is refused with 412."), IdempotencyKey), request_body = QueueChange,
    responses((status = 200, description = "Changed.", body = QueueView),
        (status = 201, description = "Created.", body = QueueView),
        (status = 409, description = "The idempotency key was used for another request.", body = ErrorBody),
        (status = 412, description = "It was changed in the meantime.", body = ErrorBody)))]
async fn put(
    State(state): State<RoomState>,
    Path(name): Path<String>,
    headers: HeaderMap,
    Json(body): Json<QueueChange>,
) -> Result<Response, RoomApiError> {
    let room = &state.room;
    let id = new_id(&name, "queue_id")?;
    let version = if_match(&headers)?;
    let names = body.names();
    let apply = body.checked()?;
    let before = match room.queue(&id).await {
        Ok(queue) => QueueView::of(&queue),
        Err(room::Error::UnknownQueue) if version.is_none() => {
            let mut config = QueueConfig::default();
            apply(&mut config);
            let made = room.create_queue(&id, config).await.map_err(|error| names.error(error))?;
            return Ok(created(&made).into_response());
        }
        Err(error) => return Err(error.into()),
    };
    let replace = |config: &mut QueueConfig| {
        let message = std::mem::take(&mut config.message);
        *config = QueueConfig { message, ..QueueConfig::default() };
        apply(config);
    };
    let changed = room.change_queue(&id, version, replace).await;
    let after = QueueView::of(&changed.map_err(|error| names.error(error))?);
    let note = Note::new("queue.change", id.as_str()).change(&before, &after);
    Ok((Extension(note), after).into_response())
}

/// Reads the version of `If-Match`, if there is one.
fn if_match(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    match headers.get(header::IF_MATCH).map(|value| value.to_str().unwrap_or_default()) {
        None | Some("*") => Ok(None),
        Some(text) => {
            text.trim_matches('"').parse().map(Some).map_err(|_| {
                ApiError::invalid_field("if-match", "the queue's version, such as \"3\"")
            })
        }
    }
}

/// Confirmation of a destructive action.
#[derive(Debug, Default, Deserialize, ToSchema, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
#[schema(as = Confirmation, example = json!({ "confirm": "spring-sale" }))]
struct Confirm {
    /// The queue's name, repeated.
    confirm: String,
}

impl Confirm {
    fn check(&self, id: &QueueId) -> Result<(), ApiError> {
        if self.confirm == id.as_str() {
            return Ok(());
        }
        Err(ApiError::invalid_field("confirm", "repeat the queue's name to confirm"))
    }
}

/// The queue of a path, confirmed by the body.
struct ConfirmedQueue(QueueId);

impl FromRequest<RoomState> for ConfirmedQueue {
    type Rejection = RoomApiError;

    async fn from_request(
        request: Request,
        state: &RoomState,
    ) -> Result<ConfirmedQueue, RoomApiError> {
        let (mut parts, body) = request.into_parts();
        let InQueue { queue_id: id } = InQueue::from_request_parts(&mut parts, state).await?;
        let request = Request::from_parts(parts, body);
        let OptionalJson(body) = OptionalJson::<Confirm>::from_request(request, state).await?;
        body.check(&id)?;
        Ok(ConfirmedQueue(id))
    }
}

/// The queue of a path, confirmed by the query: `DELETE` has no body.
struct DeletedQueue(QueueId);

impl FromRequestParts<RoomState> for DeletedQueue {
    type Rejection = RoomApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &RoomState,
    ) -> Result<DeletedQueue, RoomApiError> {
        let InQueue { queue_id: id } = InQueue::from_request_parts(parts, state).await?;
        let Query(query) = Query::<Confirm>::from_request_parts(parts, state).await?;
        query.check(&id)?;
        Ok(DeletedQueue(id))
    }
}

/// Numbers of ended positions and sessions.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EndCounts)]
struct EndCountsView {
    /// Positions ended.
    positions: u64,
    /// Sessions ended.
    sessions: u64,
}

impl EndCountsView {
    fn with_note(
        act: &'static str,
        id: &QueueId,
        ended: EndCounts,
    ) -> (Extension<Note>, Json<EndCountsView>) {
        let view = EndCountsView { positions: ended.positions, sessions: ended.sessions };
        (Extension(Note::new(act, id.as_str()).change((), &view)), Json(view))
    }
}

/// Delete a queue, and end every position and session of it.
#[utoipa::path(delete, path = "/api/v1/admin/queues/{queue_id}", tag = "room", operation_id = "delete_queue",
    params(InQueue, Confirm),
    responses((status = 200, description = "Deleted.", body = EndCountsView)))]
async fn delete(
    State(state): State<RoomState>,
    DeletedQueue(id): DeletedQueue,
) -> Result<impl IntoResponse, RoomApiError> {
    Ok(EndCountsView::with_note("queue.delete", &id, state.room.delete_queue(&id).await?))
}

/// End every position and session of a queue; tokens signed before are revoked.
#[utoipa::path(post, path = "/api/v1/admin/queues/{queue_id}/reset", tag = "room", operation_id = "reset_queue",
    params(InQueue), request_body = Confirm,
    responses((status = 200, description = "Reset.", body = EndCountsView)))]
async fn reset(
    State(state): State<RoomState>,
    ConfirmedQueue(id): ConfirmedQueue,
) -> Result<impl IntoResponse, RoomApiError> {
    Ok(EndCountsView::with_note("queue.reset", &id, state.room.reset_queue(&id).await?))
}

/// Stop admissions; positions are kept and clocks stand still.
#[utoipa::path(post, path = "/api/v1/admin/queues/{queue_id}/pause", tag = "room", operation_id = "pause_queue",
    params(InQueue),
    responses((status = 200, description = "Paused.", body = QueueView)))]
async fn pause(
    State(state): State<RoomState>,
    InQueue { queue_id: id }: InQueue,
) -> Result<impl IntoResponse, RoomApiError> {
    let view = QueueView::of(&state.room.pause_queue(&id).await?);
    Ok((Extension(Note::new("queue.pause", id.as_str())), view))
}

/// Resume admissions.
#[utoipa::path(post, path = "/api/v1/admin/queues/{queue_id}/resume", tag = "room", operation_id = "resume_queue",
    params(InQueue),
    responses((status = 200, description = "Resumed.", body = QueueView)))]
async fn resume(
    State(state): State<RoomState>,
    InQueue { queue_id: id }: InQueue,
) -> Result<impl IntoResponse, RoomApiError> {
    let view = QueueView::of(&state.room.resume_queue(&id).await?);
    Ok((Extension(Note::new("queue.resume", id.as_str())), view))
}

/// Close the queue to new visitors as well.
#[utoipa::path(post, path = "/api/v1/admin/queues/{queue_id}/maintenance", tag = "room", operation_id = "close_queue",
    params(InQueue), request_body = Confirm,
    responses((status = 200, description = "Closed.", body = QueueView)))]
async fn maintenance(
    State(state): State<RoomState>,
    ConfirmedQueue(id): ConfirmedQueue,
) -> Result<impl IntoResponse, RoomApiError> {
    let view = QueueView::of(&state.room.close_queue(&id).await?);
    Ok((Extension(Note::new("queue.maintenance", id.as_str())), view))
}

/// Number of positions to admit by hand.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AdmitRequest, example = json!({ "count": 50 }))]
struct AdmitBody {
    /// 1 to 10,000.
    #[schema(minimum = 1, maximum = 10000)]
    count: u32,
}

/// Admitted positions.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Admission)]
struct AdmissionView {
    /// Their number.
    admitted: usize,
    /// Their ids, in order.
    position_ids: Vec<String>,
}

/// Admit positions by hand: the rate does not apply, the limit of active visitors does.
#[utoipa::path(post, path = "/api/v1/admin/queues/{queue_id}/admit", tag = "room", operation_id = "admit_positions",
    params(InQueue, IdempotencyKey), request_body = AdmitBody,
    responses((status = 200, description = "Admitted.", body = AdmissionView),
        (status = 409, description = "The idempotency key was used for another request.", body = ErrorBody)))]
async fn admit(
    State(state): State<RoomState>,
    InQueue { queue_id: id }: InQueue,
    Json(body): Json<AdmitBody>,
) -> Result<impl IntoResponse, RoomApiError> {
    if !(1..=10_000).contains(&body.count) {
        return Err(ApiError::invalid_field("count", "from 1 to 10,000").into());
    }
    let ids = state.room.admit_by_hand(&id, body.count as usize).await?.ids;
    let note = Note::new("queue.admit", id.as_str()).change((), json!({ "admitted": ids.len() }));
    let position_ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    Ok((Extension(note), Json(AdmissionView { admitted: ids.len(), position_ids })))
}

/// Change the rate of admission.
#[utoipa::path(post, path = "/api/v1/admin/queues/{queue_id}/rate", tag = "room", operation_id = "set_queue_rate",
    params(InQueue), request_body = NewRate,
    responses((status = 200, description = "Changed.", body = QueueView)))]
async fn rate(
    State(state): State<RoomState>,
    InQueue { queue_id: id }: InQueue,
    Json(body): Json<NewRate>,
) -> Result<impl IntoResponse, RoomApiError> {
    let view = QueueView::of(&state.room.set_rate(&id, body.into()).await?);
    Ok((Extension(Note::new("queue.rate", id.as_str()).change((), &view)), view))
}

/// Message to waiting visitors.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WaitingMessage, example = json!({ "text": { "en": "We are back at noon" } }))]
struct MessageBody {
    /// Texts by language tag; empty removes the message.
    #[schema(value_type = HashMap<String, String>)]
    text: Map<String, Value>,
}

/// Set the message to waiting visitors.
#[utoipa::path(post, path = "/api/v1/admin/queues/{queue_id}/message", tag = "room", operation_id = "set_queue_message",
    params(InQueue), request_body = MessageBody,
    responses((status = 200, description = "Changed.", body = QueueView)))]
async fn message(
    State(state): State<RoomState>,
    InQueue { queue_id: id }: InQueue,
    Json(body): Json<MessageBody>,
) -> Result<impl IntoResponse, RoomApiError> {
    let view = QueueView::of(&state.room.set_message(&id, body.text).await?);
    Ok((Extension(Note::new("queue.message", id.as_str())), view))
}

/// Get statistics of a queue.
#[utoipa::path(get, path = "/api/v1/admin/queues/{queue_id}/stats", tag = "room", operation_id = "get_queue_stats",
    params(InQueue),
    responses((status = 200, description = "Statistics.", body = StatsView)))]
async fn stats(
    State(state): State<RoomState>,
    InQueue { queue_id: id }: InQueue,
) -> Result<Json<StatsView>, RoomApiError> {
    Ok(Json(StatsView::of(&state.room.stats(&id).await?)))
}

/// Length of a row of statistics.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = StatsStep)]
enum StatsStepName {
    /// An hour.
    #[default]
    Hour,
    /// A day, UTC.
    Day,
}

/// Query of the history of statistics.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StatsHistoryQuery {
    /// `hour` or `day`; hour if omitted.
    #[param(inline)]
    step: Option<StatsStepName>,
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// Position to continue from: `next_cursor` of the last answer. Left out: the beginning.
    cursor: Option<String>,
}

/// List statistics of a queue by hour or day, newest first. They are kept for 31 days; hours without any number are
/// left out.
#[utoipa::path(get, path = "/api/v1/admin/queues/{queue_id}/stats/history", tag = "room", operation_id = "list_queue_stats",
    params(InQueue, StatsHistoryQuery),
    responses((status = 200, description = "A page of statistics.", body = Page<HourView>)))]
async fn stats_history(
    State(state): State<RoomState>,
    InQueue { queue_id: id }: InQueue,
    Query(query): Query<StatsHistoryQuery>,
) -> Result<Json<Page<HourView>>, RoomApiError> {
    let step = match query.step.unwrap_or_default() {
        StatsStepName::Hour => room::StatsStep::Hour,
        StatsStepName::Day => room::StatsStep::Day,
    };
    let page = PageQuery { limit: query.limit, cursor: query.cursor };
    let (limit, offset) = (page.limit()?, page.offset()?);
    let now = state.app.store().now();
    let end = store::Millis(now.0 + 1);
    let rows = state.room.stats_history(&id, step, store::Millis(0), end).await?;
    let more = rows.len() > offset.saturating_add(limit);
    let items = rows.iter().rev().skip(offset).take(limit).map(HourView::of).collect();
    Ok(Json(Page::new(items, more.then_some(offset + limit))))
}

/// Text to look a visitor up by.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FindVisitorQuery {
    /// Id of a position or a session, a user id, or an e-mail address whose SHA-256 (in lower case) is the user id.
    text: String,
}

/// Find a visitor of a queue, with the reason a waiting one still waits.
#[utoipa::path(get, path = "/api/v1/admin/queues/{queue_id}/find", tag = "room", operation_id = "find_visitor",
    params(InQueue, FindVisitorQuery),
    responses((status = 200, description = "The visitor.", body = VisitorMatchView)))]
async fn find(
    State(state): State<RoomState>,
    InQueue { queue_id: id }: InQueue,
    Query(query): Query<FindVisitorQuery>,
) -> Result<Json<VisitorMatchView>, RoomApiError> {
    let found = state.room.find_visitor(&id, &query.text).await?;
    Ok(Json(VisitorMatchView::of(&found, state.app.store().now())))
}

/// List of positions to read.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ListedPositions)]
enum ListedState {
    /// Waiting positions, in the order of the queue.
    #[default]
    Waiting,
    /// Admitted positions whose session has not started, the next to expire first.
    Admitted,
}

/// Query of the list of positions.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PositionsQuery {
    /// `waiting` or `admitted`; waiting if omitted.
    #[param(inline)]
    state: Option<ListedState>,
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// Position to continue from: `next_cursor` of the last answer. Left out: the beginning.
    cursor: Option<String>,
}

/// List positions of a queue: the waiting ones in order, or the admitted ones.
#[utoipa::path(get, path = "/api/v1/admin/queues/{queue_id}/positions", tag = "room", operation_id = "list_positions",
    params(InQueue, PositionsQuery),
    responses((status = 200, description = "A page of positions.", body = Page<PositionView>)))]
async fn positions(
    State(state): State<RoomState>,
    InQueue { queue_id: id }: InQueue,
    Query(query): Query<PositionsQuery>,
) -> Result<Json<Page<PositionView>>, RoomApiError> {
    let list = match query.state.unwrap_or_default() {
        ListedState::Waiting => PositionList::Waiting,
        ListedState::Admitted => PositionList::Admitted,
    };
    let page = PageQuery { limit: query.limit, cursor: query.cursor };
    let (limit, offset) = (page.limit()?, page.offset()?);
    let (found, more) = state.room.positions_page(&id, list, offset, limit).await?;
    let now = state.app.store().now();
    let items = found.iter().map(|position| PositionView::of(position, now)).collect();
    Ok(Json(Page::new(items, more.then_some(offset + limit))))
}

/// Get a position.
#[utoipa::path(get, path = "/api/v1/admin/queues/{queue_id}/positions/{position_id}", tag = "room", operation_id = "get_position",
    params(InQueue, InPosition),
    responses((status = 200, description = "The position.", body = PositionView)))]
async fn position(
    State(state): State<RoomState>,
    InQueue { queue_id: queue }: InQueue,
    InPosition { position_id: id }: InPosition,
) -> Result<Json<PositionView>, RoomApiError> {
    let found = state.room.status(&queue, &id).await?;
    Ok(Json(PositionView::of(&found, state.app.store().now())))
}

/// List active sessions, the next to end first.
#[utoipa::path(get, path = "/api/v1/admin/queues/{queue_id}/sessions", tag = "room", operation_id = "list_sessions",
    params(InQueue, PageQuery),
    responses((status = 200, description = "A page of sessions.", body = Page<SessionView>)))]
async fn sessions(
    State(state): State<RoomState>,
    InQueue { queue_id: id }: InQueue,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<SessionView>>, RoomApiError> {
    let (limit, offset) = (page.limit()?, page.offset()?);
    let (found, more) = state.room.sessions_page(&id, offset, limit).await?;
    let items = found.iter().map(SessionView::of).collect();
    Ok(Json(Page::new(items, more.then_some(offset + limit))))
}

/// A page of events.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RoomEventPage)]
struct EventPage {
    /// The events, oldest first.
    items: Vec<RoomEventView>,
    /// Cursor of the next page; null at the end.
    #[schema(required)]
    next_cursor: Option<String>,
    /// True if events before these may have been trimmed.
    missed: bool,
}

/// List events of a queue, oldest first. The id of an event is also the cursor after it.
#[utoipa::path(get, path = "/api/v1/admin/queues/{queue_id}/events", tag = "room", operation_id = "list_queue_events",
    params(InQueue, PageQuery),
    responses((status = 200, description = "A page of events.", body = EventPage)))]
async fn events(
    State(state): State<RoomState>,
    InQueue { queue_id: id }: InQueue,
    Query(page): Query<PageQuery>,
) -> Result<Json<EventPage>, RoomApiError> {
    let limit = page.limit()?;
    let after = page.cursor.as_deref().map_or(Ok(EventId::START), parse_event_id)?;
    let found = state.room.events(&id, after, limit).await?;
    let items: Vec<RoomEventView> = found.events.into_iter().map(RoomEventView::of).collect();
    let next_cursor = items.last().filter(|_| items.len() >= limit).map(RoomEventView::cursor);
    Ok(Json(EventPage { items, next_cursor, missed: found.missed }))
}

/// Start of a stream of events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FollowQuery {
    /// Id of the last event seen. Left out: the stream starts with the next event.
    cursor: Option<String>,
}

/// Follow the events of a queue as server-sent events, on whichever instance they happen. Each has the id
/// of the event, so a client that reconnects with `Last-Event-ID` (or `cursor`) misses nothing; an event
/// `missed` says that some were trimmed. Without either, the stream starts with the next event.
#[utoipa::path(get, path = "/api/v1/admin/queues/{queue_id}/live", tag = "room", operation_id = "follow_queue_events",
    params(InQueue, FollowQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "Id of the last event seen.")),
    responses((status = 200, description = "Events such as `position.admitted`, each as `/events` lists it.",
        content_type = "text/event-stream", body = String)))]
async fn live(
    State(state): State<RoomState>,
    InQueue { queue_id: queue }: InQueue,
    Query(query): Query<FollowQuery>,
    headers: HeaderMap,
) -> Result<Sse, RoomApiError> {
    let room = &state.room;
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let after = last.or(query.cursor.as_deref()).map(parse_event_id).transpose()?;
    let latest = room.latest_event(&queue).await?;
    let lives = &state.streams.lives;
    let events = lives.follow(&state, room, queue, after.unwrap_or(latest), latest);
    let events = events.ok_or_else(|| {
        ApiError::unavailable(
            "TOO_MANY_STREAMS",
            "the limit of event streams of this instance is reached: close one, or use another instance",
        )
        .retry_after(30)
    })?;
    Ok(Sse::new(&state.app, events))
}

fn parse_event_id(text: &str) -> Result<EventId, ApiError> {
    text.parse()
        .map_err(|_| ApiError::invalid_field("cursor", "an event id such as 1767225600000-0"))
}

/// Reason of a revocation.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RevokeQuery {
    /// The operator's own word for it, such as `abuse_detected`: up to 64 letters, digits and `_`. Stored in
    /// `revocation:{token_id}` and in the event.
    reason: String,
}

/// Revoke a position; an active session ends with it.
#[utoipa::path(delete, path = "/api/v1/admin/queues/{queue_id}/positions/{position_id}", tag = "room", operation_id = "revoke_position",
    params(InQueue, InPosition, RevokeQuery),
    responses((status = 200, description = "The revoked position.", body = PositionView)))]
async fn revoke_position(
    State(state): State<RoomState>,
    InQueue { queue_id: queue }: InQueue,
    InPosition { position_id: id }: InPosition,
    Query(query): Query<RevokeQuery>,
) -> Result<impl IntoResponse, RoomApiError> {
    let room = &state.room;
    room.revoke_position_for(&queue, &id, &query.reason).await?;
    let view = PositionView::of(&room.status(&queue, &id).await?, state.app.store().now());
    let note = Note::new("position.revoke", id.to_string()).change((), &query);
    Ok((Extension(note), Json(view)))
}

/// Revoke a session and its pass.
#[utoipa::path(delete, path = "/api/v1/admin/sessions/{session_id}", tag = "room", operation_id = "revoke_session",
    params(InSession, RevokeQuery),
    responses((status = 200, description = "The revoked session.", body = SessionView)))]
async fn revoke_session(
    State(state): State<RoomState>,
    InSession { session_id: id }: InSession,
    Query(query): Query<RevokeQuery>,
) -> Result<impl IntoResponse, RoomApiError> {
    let room = &state.room;
    let queue = room.queue_of_session(&id).await?;
    let session = room.terminate_for(&queue, &id, &query.reason).await?;
    Ok(changed_session("session.revoke", &session, &query))
}

/// Returns a changed session, and the audit note.
fn changed_session(
    action: &str,
    session: &room::VisitorSession,
    change: &impl Serialize,
) -> (Extension<Note>, Json<SessionView>) {
    let note = Note::new(action, session.id.to_string()).change((), change);
    (Extension(note), Json(SessionView::of(session)))
}

/// User of a session.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "user_id": "user-123" }))]
struct SessionUser {
    /// Id of the visitor on the protected site: up to 200 characters; empty removes it.
    user_id: String,
}

/// Set the user of a session, after the visitor logged in on the protected site. For the site's own
/// programs: a visitor could name anybody.
#[utoipa::path(put, path = "/api/v1/admin/sessions/{session_id}/user", tag = "room", operation_id = "set_session_user",
    params(InSession), request_body = SessionUser,
    responses((status = 200, description = "The changed session.", body = SessionView)))]
async fn set_user(
    State(state): State<RoomState>,
    InSession { session_id: id }: InSession,
    Json(body): Json<SessionUser>,
) -> Result<impl IntoResponse, RoomApiError> {
    let room = &state.room;
    let queue = room.queue_of_session(&id).await?;
    let session = room.set_user(&queue, &id, &body.user_id).await?;
    Ok(changed_session("session.user", &session, &body))
}

/// Revoke every active session of a queue, and their passes. Waiting and admitted positions stay.
#[utoipa::path(post, path = "/api/v1/admin/queues/{queue_id}/revoke-all", tag = "room", operation_id = "revoke_all_sessions",
    params(InQueue), request_body = Confirm,
    responses((status = 200, description = "Numbers of ended sessions.", body = EndCountsView)))]
async fn revoke_all(
    State(state): State<RoomState>,
    ConfirmedQueue(id): ConfirmedQueue,
) -> Result<impl IntoResponse, RoomApiError> {
    Ok(EndCountsView::with_note("session.revoke_all", &id, state.room.terminate_all(&id).await?))
}

/// An invite to sign.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewInvite, example = json!({ "priority": 2, "uses": 100, "expires_in_seconds": 604800, "id": "press" }))]
struct InviteBody {
    /// Priority it grants, 1 to 3.
    #[schema(minimum = 1, maximum = 3)]
    priority: u8,
    /// Number of visitors who may use it; 1 if omitted.
    uses: Option<u32>,
    /// Time for which it is valid; a day if omitted.
    expires_in_seconds: Option<u32>,
    /// Id of the invite; generated if omitted.
    id: Option<String>,
    /// Id of the invited person on the protected site; kept with the position and the session.
    user_id: Option<String>,
}

/// A signed invite.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Invite)]
struct InviteView {
    /// Id of the invite.
    id: String,
    /// The invite; send it as `invite` when enqueueing.
    invite: String,
    /// Priority it grants.
    priority: u8,
    /// Number of visitors who may use it.
    uses: u32,
    /// Time at which it expires.
    expires_at: Timestamp,
}

/// Sign an invite: its bearers enqueue with its priority.
#[utoipa::path(post, path = "/api/v1/admin/queues/{queue_id}/invites", tag = "room", operation_id = "create_invite",
    params(InQueue, IdempotencyKey), request_body = InviteBody,
    responses((status = 201, description = "Signed.", body = InviteView),
        (status = 409, description = "The idempotency key was used for another request.",
            body = ErrorBody)))]
async fn invite(
    State(state): State<RoomState>,
    InQueue { queue_id: queue }: InQueue,
    Json(body): Json<InviteBody>,
) -> Result<impl IntoResponse, RoomApiError> {
    let lasts = Duration::from_secs(body.expires_in_seconds.unwrap_or(86_400).into());
    let new = NewInvite {
        id: body.id,
        priority: VisitorPriority::parse(body.priority)
            .ok()
            .filter(|priority| *priority != VisitorPriority::NORMAL)
            .ok_or_else(|| ApiError::invalid_field("priority", "from 1 to 3"))?,
        uses: body.uses.unwrap_or(1),
        expires: state.app.store().now() + lasts,
        user_id: body.user_id.unwrap_or_default(),
    };
    let (token, invite) = state.room.issue_invite(&queue, new).await?;
    let note = Note::new("invite.create", queue.as_str())
        .change((), json!({ "id": invite.id(), "priority": body.priority, "uses": invite.uses() }));
    let view = InviteView {
        id: invite.id().to_owned(),
        invite: token,
        priority: body.priority,
        uses: invite.uses(),
        expires_at: invite.expires().into(),
    };
    Ok((StatusCode::CREATED, Extension(note), Json(view)))
}

/// The key that is to sign passes.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewPassKey, example = json!({ "pem": "-----BEGIN PRIVATE KEY-----\n…\n-----END PRIVATE KEY-----\n" }))]
struct PassKey {
    /// A private key in PEM, PKCS#8 or for RSA also PKCS#1: RSA of at least 2,048 bits makes passes RS256,
    /// Ed25519 makes them EdDSA. If omitted, a fresh Ed25519 key is created.
    pem: Option<String>,
}

/// The key that signs passes.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PassKey)]
struct PassKeyView {
    /// Its algorithm.
    algorithm: PassAlgorithm,
    /// Its id in passes and in the published key set.
    kid: String,
}

impl PassKeyView {
    async fn read(room: &room::Room) -> Result<Self, RoomApiError> {
        let (algorithm, kid) = room.pass_key().await?;
        Ok(Self { algorithm: algorithm.into(), kid })
    }
}

/// Get the key that signs passes. Its public half is at `/.well-known/jwks.json`.
#[utoipa::path(get, path = "/api/v1/admin/keys/pass", tag = "room", operation_id = "get_pass_key",
    responses((status = 200, description = "The key.", body = PassKeyView)))]
async fn pass_key(State(room): State<room::Room>) -> Result<Json<PassKeyView>, RoomApiError> {
    Ok(Json(PassKeyView::read(&room).await?))
}

/// Set the key that signs passes from now on, and with it the algorithm. Passes signed by older keys stay
/// valid, and their public keys stay published that long.
#[utoipa::path(put, path = "/api/v1/admin/keys/pass", tag = "room", operation_id = "set_pass_key",
    request_body = PassKey,
    responses((status = 200, description = "The key.", body = PassKeyView),
        (status = 400, description = "Not a key that can sign passes.", body = ErrorBody)))]
async fn set_pass_key(
    State(state): State<RoomState>,
    Json(body): Json<PassKey>,
) -> Result<impl IntoResponse, RoomApiError> {
    let room = &state.room;
    match &body.pem {
        Some(pem) => {
            room.import_pass_key(pem).await.map_err(|error| match error {
                room::Error::Invalid { message, .. } => ApiError::invalid_field("pem", message),
                error => api_error(error),
            })?;
        }
        None => room.use_eddsa().await?,
    }
    let view = PassKeyView::read(room).await?;
    Ok((Extension(Note::new("keys.pass", "room").change((), &view)), Json(view)))
}

/// Outcome of a key rotation.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = KeyRotation)]
struct RotateReply {
    /// Always true.
    rotated: bool,
}

/// Create new signing keys that sign from now on; tokens signed by old ones stay valid.
#[utoipa::path(post, path = "/api/v1/admin/keys/rotate", tag = "room", operation_id = "rotate_keys",
    params(IdempotencyKey),
    responses((status = 200, description = "New keys sign from now on.", body = RotateReply),
        (status = 409, description = "The idempotency key was used for another request.", body = ErrorBody)))]
async fn rotate(State(state): State<RoomState>) -> Result<impl IntoResponse, RoomApiError> {
    state.room.rotate_keys().await?;
    Ok((Extension(Note::new("keys.rotate", "room")), Json(RotateReply { rotated: true })))
}
