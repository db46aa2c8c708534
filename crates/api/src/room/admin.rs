//! What operators call: make, change, open and close queues; let people in; look; take away.

use std::time::Duration;

use axum::Extension;
use axum::extract::{FromRequest, FromRequestParts, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use room::{
    Duplicates, Ended, EventId, Level, NewInvite, Policy, Queue, QueueConfig, QueueId, Rate, Which,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::site::{self, Site};
use super::view::{EventView, PlaceView, QueueView, SessionView, StatsView};
use super::{InPlace, InQueue, InSession, room};
use crate::app::App;
use crate::audit::Note;
use crate::error::{ApiError, ErrorBody};
use crate::extract::{Json, OptionalJson, Path, Query};
use crate::section::Section;
use crate::sse::Sse;
use crate::waiting::brand::{self, Brand};

/// The routes.
pub(super) fn section() -> Section {
    Section {
        viewer: OpenApiRouter::new()
            .routes(routes!(list))
            .routes(routes!(get))
            .routes(routes!(stats))
            .routes(routes!(places))
            .routes(routes!(place))
            .routes(routes!(sessions))
            .routes(routes!(events))
            .routes(routes!(live)),
        operator: OpenApiRouter::new()
            .routes(routes!(pause))
            .routes(routes!(resume))
            .routes(routes!(maintenance))
            .routes(routes!(admit))
            .routes(routes!(rate))
            .routes(routes!(message))
            .routes(routes!(revoke_place))
            .routes(routes!(revoke_session))
            .routes(routes!(set_user))
            .routes(routes!(revoke_all))
            .routes(routes!(invite)),
        admin: OpenApiRouter::new()
            .routes(routes!(create))
            .routes(routes!(change, put, delete))
            .routes(routes!(reset))
            .routes(routes!(rotate))
            .routes(routes!(pass_key)),
        ..Section::default()
    }
}

/// How fast visitors are let in.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
struct NewRate {
    /// Admissions in a period.
    count: u32,
    /// The period in seconds; 1 if left out.
    per_seconds: Option<u32>,
    /// Admissions at once after a lull; one second's worth if left out.
    burst: Option<u32>,
}

impl From<NewRate> for Rate {
    fn from(new: NewRate) -> Rate {
        let rate = Rate::new(new.count, new.per_seconds.unwrap_or(1));
        new.burst.map_or(rate, |burst| rate.with_burst(burst))
    }
}

/// Settings of a queue; what is left out stays as it is, or has its default.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
struct Change {
    name: Option<String>,
    target_url: Option<String>,
    max_active_users: Option<u32>,
    /// Sessions one address (IPv6: one /64) may have at once; 0 is no limit. `null` or `"share"` is a
    /// tenth of `max_active_users`, but up to 20 as long as that is no more than half of it.
    #[schema(value_type = Option<u32>)]
    #[serde(deserialize_with = "address_limit")]
    max_active_per_address: Option<Option<u32>>,
    max_queue_size: Option<u32>,
    /// Admissions per second, with up to three decimal places; `admission` says the same as a count per
    /// seconds.
    admission_rate: Option<f64>,
    admission: Option<NewRate>,
    /// `skip` or `strict`.
    priority_policy: Option<String>,
    reserved_share: Option<u32>,
    claim_window_seconds: Option<u32>,
    /// Seconds of silence kept beyond three missed polls.
    hold_seconds: Option<u32>,
    heartbeat_interval_seconds: Option<u32>,
    /// The least seconds between polls near the front.
    poll_floor_seconds: Option<u32>,
    /// The most seconds between polls far from the front.
    poll_ceiling_seconds: Option<u32>,
    /// Bytes of the user agent that are kept.
    user_agent_bytes: Option<u32>,
    /// Seconds of silence after which a place ends; another way to say `hold_seconds`, so send one
    /// of the two.
    heartbeat_timeout_seconds: Option<u32>,
    session_timeout_seconds: Option<u32>,
    session_max_seconds: Option<u32>,
    /// Seconds a session lasts that a gate started for a visitor without a cookie, until the cookie
    /// comes back once.
    provisional_timeout_seconds: Option<u32>,
    /// Start sessions at a gate for requests that are no person's navigation, too.
    admit_programs: Option<bool>,
    session_renewal: Option<bool>,
    /// `token` or `ip`.
    duplicates: Option<String>,
    store_addresses: Option<bool>,
    /// Origins visitors may be sent back to, and whose pages may call for them, besides that of
    /// `target_url`. Such as `https://shop.example`.
    allowed_origins: Option<Vec<String>>,
    /// Paths visitors may be sent back to, with all below them; empty means all.
    allowed_paths: Option<Vec<String>>,
    /// Colour of the waiting page, such as `#0a7d5c`; empty is the usual one. It is made darker or
    /// lighter where it could not be read.
    brand_color: Option<String>,
    /// Logo on the waiting page: an https address, a path of the site, or
    /// `data:image/…;base64,`; empty is the usual one.
    brand_logo: Option<String>,
}

/// A number, or `null` or `"share"` for the share of `max_active_users`.
fn address_limit<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<u32>>, D::Error> {
    use serde::de::Error as _;
    match Value::deserialize(from)? {
        Value::Null => Ok(Some(None)),
        Value::String(text) if text == "share" => Ok(Some(None)),
        value => serde_json::from_value(value)
            .map(|most: u32| Some(Some(most)))
            .map_err(|_| D::Error::custom("max_active_per_address: a number, or \"share\"")),
    }
}

impl Change {
    fn checked(self) -> Result<impl Fn(&mut QueueConfig), ApiError> {
        let rate = self.admission_rate.map(rate_of).transpose()?;
        let policy = self.priority_policy.as_deref().map(Policy::parse).transpose()?;
        let duplicates = self.duplicates.as_deref().map(Duplicates::parse).transpose()?;
        let origins = self.allowed_origins.as_deref().map(site::check_origins).transpose()?;
        let paths = self.allowed_paths.as_deref().map(site::check_paths).transpose()?;
        let color = self.brand_color.as_deref().map(brand::check_color).transpose()?;
        let logo = self.brand_logo.as_deref().map(brand::check_logo).transpose()?;
        if self.hold_seconds.is_some() && self.heartbeat_timeout_seconds.is_some() {
            return Err(ApiError::invalid_field(
                "heartbeat_timeout_seconds",
                "not together with hold_seconds, which says the same",
            ));
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
            set(&mut config.max_active, &self.max_active_users);
            set(&mut config.max_active_per_address, &self.max_active_per_address);
            set(&mut config.max_queue_size, &self.max_queue_size);
            set(&mut config.admission, &rate);
            set(&mut config.admission, &self.admission.map(Rate::from));
            set(&mut config.policy, &policy);
            set(&mut config.reserved_share, &self.reserved_share);
            set(&mut config.claim_window, &self.claim_window_seconds.map(seconds));
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

/// A rate per second as a count in whole seconds: 0.5 is one in two seconds.
fn rate_of(per_second: f64) -> Result<Rate, ApiError> {
    let thousandths = (per_second * 1_000.0).round();
    if !(0.0..=1e9).contains(&per_second) || (per_second * 1_000.0 - thousandths).abs() > 1e-3 {
        return Err(ApiError::invalid_field(
            "admission_rate",
            "0 to 1,000,000 a second, with up to three decimal places",
        ));
    }
    // The least number of seconds in which it is whole.
    let seconds = [1u32, 2, 4, 5, 8, 10, 20, 25, 40, 50, 100, 125, 200, 250, 500, 1_000];
    let fits = |seconds: &&u32| (thousandths * f64::from(**seconds)) % 1_000.0 == 0.0;
    let seconds = seconds.iter().find(fits).copied().unwrap_or(1_000);
    Ok(Rate::new((thousandths * f64::from(seconds) / 1_000.0) as u32, seconds))
}

/// A queue to be made.
#[derive(Debug, Deserialize, ToSchema)]
struct NewQueue {
    /// 1 to 63 characters of a-z, 0-9 and -.
    id: String,
    /// Its settings; see the other fields of a queue.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    settings: Map<String, Value>,
}

/// All queues.
#[derive(Debug, Serialize, ToSchema)]
struct Queues {
    /// By name.
    queues: Vec<QueueView>,
}

/// All queues.
#[utoipa::path(get, path = "/api/v1/admin/queues", tag = "room", operation_id = "room_queues",
    responses((status = 200, description = "By name.", body = Queues)))]
async fn list(State(app): State<App>) -> Result<Json<Queues>, ApiError> {
    let queues = room(&app)?.queues().await?;
    Ok(Json(Queues { queues: queues.iter().map(QueueView::of).collect() }))
}

/// Make a queue.
#[utoipa::path(post, path = "/api/v1/admin/queues", tag = "room", operation_id = "room_create",
    request_body = NewQueue,
    responses((status = 201, description = "Made.", body = QueueView),
        (status = 409, description = "The name is taken.", body = ErrorBody)))]
async fn create(
    State(app): State<App>,
    Json(new): Json<NewQueue>,
) -> Result<impl IntoResponse, ApiError> {
    let id = new_id(&new.id, "id")?;
    let change: Change = serde_json::from_value(Value::Object(new.settings))
        .map_err(|error| ApiError::invalid(format!("the JSON body does not fit: {error}")))?;
    let mut config = QueueConfig::default();
    change.checked()?(&mut config);
    Ok(made(&room(&app)?.create_queue(&id, config).await?))
}

/// The name of a queue that may not be there yet; `field` is where it was sent.
fn new_id(text: &str, field: &'static str) -> Result<QueueId, ApiError> {
    QueueId::parse(text).map_err(|error| match error {
        room::Error::Invalid { message, .. } => ApiError::invalid_field(field, message),
        error => error.into(),
    })
}

/// Tells of a queue that was made.
fn made(queue: &Queue) -> (StatusCode, Extension<Note>, QueueView) {
    let view = QueueView::of(queue);
    let note = Note::new("queue.create", queue.id.as_str()).change((), &view);
    (StatusCode::CREATED, Extension(note), view)
}

/// One queue.
#[utoipa::path(get, path = "/api/v1/admin/queues/{queue_id}", tag = "room", operation_id = "room_queue",
    params(InQueue),
    responses((status = 200, description = "The queue.", body = QueueView)))]
async fn get(
    State(app): State<App>,
    InQueue { queue_id: id }: InQueue,
) -> Result<QueueView, ApiError> {
    Ok(QueueView::of(&room(&app)?.queue(&id).await?))
}

/// Change settings of a queue. With `If-Match` only if its version is that one.
#[utoipa::path(patch, path = "/api/v1/admin/queues/{queue_id}", tag = "room", operation_id = "room_change",
    params(InQueue), request_body = Change,
    responses((status = 200, description = "Changed.", body = QueueView),
        (status = 412, description = "Changed by somebody else meanwhile.", body = ErrorBody)))]
async fn change(
    State(app): State<App>,
    InQueue { queue_id: id }: InQueue,
    headers: HeaderMap,
    Json(body): Json<Change>,
) -> Result<impl IntoResponse, ApiError> {
    let room = room(&app)?;
    let version = if_match(&headers)?;
    let before = QueueView::of(&room.queue(&id).await?);
    let after = QueueView::of(&room.change_queue(&id, version, body.checked()?).await?);
    let note = Note::new("queue.change", id.as_str()).change(&before, &after);
    Ok((Extension(note), after))
}

/// Make a queue, or give it all its settings anew: what is left out has its default, whatever it
/// was. Status and message stay. With `If-Match` only if its version is that one.
#[utoipa::path(put, path = "/api/v1/admin/queues/{queue_id}", tag = "room", operation_id = "room_put",
    params(InQueue), request_body = Change,
    responses((status = 200, description = "Changed.", body = QueueView),
        (status = 201, description = "Made.", body = QueueView),
        (status = 412, description = "Changed by somebody else meanwhile.", body = ErrorBody)))]
async fn put(
    State(app): State<App>,
    Path(name): Path<String>,
    headers: HeaderMap,
    Json(body): Json<Change>,
) -> Result<Response, ApiError> {
    let room = room(&app)?;
    let id = new_id(&name, "queue_id")?;
    let version = if_match(&headers)?;
    let settle = body.checked()?;
    let before = match room.queue(&id).await {
        Ok(queue) => QueueView::of(&queue),
        Err(room::Error::UnknownQueue) if version.is_none() => {
            let mut config = QueueConfig::default();
            settle(&mut config);
            return Ok(made(&room.create_queue(&id, config).await?).into_response());
        }
        Err(error) => return Err(error.into()),
    };
    let anew = |config: &mut QueueConfig| {
        let message = std::mem::take(&mut config.message);
        *config = QueueConfig { message, ..QueueConfig::default() };
        settle(config);
    };
    let after = QueueView::of(&room.change_queue(&id, version, anew).await?);
    let note = Note::new("queue.change", id.as_str()).change(&before, &after);
    Ok((Extension(note), after).into_response())
}

/// The version a change is meant for, if it says one.
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

/// Confirms what hurts if it was a slip.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
struct Confirm {
    /// The queue's name, once more.
    confirm: String,
}

/// The queue a path names, after its name was repeated in the body.
struct Confirmed(QueueId);

impl FromRequest<App> for Confirmed {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Confirmed, ApiError> {
        let (mut parts, body) = request.into_parts();
        let InQueue { queue_id: id } = InQueue::from_request_parts(&mut parts, app).await?;
        let request = Request::from_parts(parts, body);
        let OptionalJson(body) = OptionalJson::<Confirm>::from_request(request, app).await?;
        if body.confirm != id.as_str() {
            let how = "repeat the queue's name to say that you mean it";
            return Err(ApiError::invalid_field("confirm", how));
        }
        Ok(Confirmed(id))
    }
}

/// Places and sessions that were ended.
#[derive(Debug, Serialize, ToSchema)]
struct EndedView {
    places: u64,
    sessions: u64,
}

impl EndedView {
    fn told(act: &'static str, id: &QueueId, ended: Ended) -> (Extension<Note>, Json<EndedView>) {
        let view = EndedView { places: ended.places, sessions: ended.sessions };
        (Extension(Note::new(act, id.as_str()).change((), &view)), Json(view))
    }
}

/// End everything in a queue and take it away.
#[utoipa::path(delete, path = "/api/v1/admin/queues/{queue_id}", tag = "room", operation_id = "room_delete",
    params(InQueue), request_body = Confirm,
    responses((status = 200, description = "Gone.", body = EndedView)))]
async fn delete(
    State(app): State<App>,
    Confirmed(id): Confirmed,
) -> Result<impl IntoResponse, ApiError> {
    Ok(EndedView::told("queue.delete", &id, room(&app)?.delete_queue(&id).await?))
}

/// End every place and session of a queue; what was signed before is void.
#[utoipa::path(post, path = "/api/v1/admin/queues/{queue_id}/reset", tag = "room", operation_id = "room_reset",
    params(InQueue), request_body = Confirm,
    responses((status = 200, description = "Emptied.", body = EndedView)))]
async fn reset(
    State(app): State<App>,
    Confirmed(id): Confirmed,
) -> Result<impl IntoResponse, ApiError> {
    Ok(EndedView::told("queue.reset", &id, room(&app)?.reset_queue(&id).await?))
}

/// Stop letting people in; places are kept and clocks stand still.
#[utoipa::path(post, path = "/api/v1/admin/queues/{queue_id}/pause", tag = "room", operation_id = "room_pause",
    params(InQueue),
    responses((status = 200, description = "Paused.", body = QueueView)))]
async fn pause(
    State(app): State<App>,
    InQueue { queue_id: id }: InQueue,
) -> Result<impl IntoResponse, ApiError> {
    let view = QueueView::of(&room(&app)?.pause_queue(&id).await?);
    Ok((Extension(Note::new("queue.pause", id.as_str())), view))
}

/// Let people in again.
#[utoipa::path(post, path = "/api/v1/admin/queues/{queue_id}/resume", tag = "room", operation_id = "room_resume",
    params(InQueue),
    responses((status = 200, description = "Open.", body = QueueView)))]
async fn resume(
    State(app): State<App>,
    InQueue { queue_id: id }: InQueue,
) -> Result<impl IntoResponse, ApiError> {
    let view = QueueView::of(&room(&app)?.resume_queue(&id).await?);
    Ok((Extension(Note::new("queue.resume", id.as_str())), view))
}

/// Close the queue to newcomers as well.
#[utoipa::path(post, path = "/api/v1/admin/queues/{queue_id}/maintenance", tag = "room", operation_id = "room_maintenance",
    params(InQueue), request_body = Confirm,
    responses((status = 200, description = "Closed.", body = QueueView)))]
async fn maintenance(
    State(app): State<App>,
    Confirmed(id): Confirmed,
) -> Result<impl IntoResponse, ApiError> {
    let view = QueueView::of(&room(&app)?.close_queue(&id).await?);
    Ok((Extension(Note::new("queue.maintenance", id.as_str())), view))
}

/// How many to let in by hand.
#[derive(Debug, Deserialize, ToSchema)]
struct Admit {
    /// 1 to 10,000.
    count: u32,
}

/// Who was let in.
#[derive(Debug, Serialize, ToSchema)]
struct AdmittedView {
    admitted: usize,
    position_ids: Vec<String>,
}

/// Let people in by hand: the rate does not count, the limit on active visitors does.
#[utoipa::path(post, path = "/api/v1/admin/queues/{queue_id}/admit", tag = "room", operation_id = "room_admit",
    params(InQueue), request_body = Admit,
    responses((status = 200, description = "Who was let in.", body = AdmittedView)))]
async fn admit(
    State(app): State<App>,
    InQueue { queue_id: id }: InQueue,
    Json(body): Json<Admit>,
) -> Result<impl IntoResponse, ApiError> {
    if !(1..=10_000).contains(&body.count) {
        return Err(ApiError::invalid_field("count", "from 1 to 10,000"));
    }
    let ids = room(&app)?.admit_by_hand(&id, body.count as usize).await?.ids;
    let note = Note::new("queue.admit", id.as_str()).change((), json!({ "admitted": ids.len() }));
    let position_ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    Ok((Extension(note), Json(AdmittedView { admitted: ids.len(), position_ids })))
}

/// Change how fast people are let in.
#[utoipa::path(post, path = "/api/v1/admin/queues/{queue_id}/rate", tag = "room", operation_id = "room_rate",
    params(InQueue), request_body = NewRate,
    responses((status = 200, description = "Changed.", body = QueueView)))]
async fn rate(
    State(app): State<App>,
    InQueue { queue_id: id }: InQueue,
    Json(body): Json<NewRate>,
) -> Result<impl IntoResponse, ApiError> {
    let view = QueueView::of(&room(&app)?.set_rate(&id, body.into()).await?);
    Ok((Extension(Note::new("queue.rate", id.as_str()).change((), &view)), view))
}

/// What to tell those who wait.
#[derive(Debug, Deserialize, ToSchema)]
struct Message {
    /// By language tag; empty takes the message away.
    #[schema(value_type = Object)]
    text: Map<String, Value>,
}

/// Tell those who wait something.
#[utoipa::path(post, path = "/api/v1/admin/queues/{queue_id}/message", tag = "room", operation_id = "room_message",
    params(InQueue), request_body = Message,
    responses((status = 200, description = "Changed.", body = QueueView)))]
async fn message(
    State(app): State<App>,
    InQueue { queue_id: id }: InQueue,
    Json(body): Json<Message>,
) -> Result<impl IntoResponse, ApiError> {
    let view = QueueView::of(&room(&app)?.set_message(&id, body.text).await?);
    Ok((Extension(Note::new("queue.message", id.as_str())), view))
}

/// A queue in numbers.
#[utoipa::path(get, path = "/api/v1/admin/queues/{queue_id}/stats", tag = "room", operation_id = "room_stats",
    params(InQueue),
    responses((status = 200, description = "Numbers.", body = StatsView)))]
async fn stats(
    State(app): State<App>,
    InQueue { queue_id: id }: InQueue,
) -> Result<Json<StatsView>, ApiError> {
    Ok(Json(StatsView::of(&room(&app)?.stats(&id).await?)))
}

/// Which part of a list.
#[derive(Debug, Deserialize)]
struct Page {
    /// `waiting` or `admitted`.
    state: Option<String>,
    #[serde(default)]
    from: usize,
    #[serde(default)]
    count: Option<usize>,
}

/// Places of a queue.
#[derive(Debug, Serialize, ToSchema)]
struct Places {
    positions: Vec<PlaceView>,
}

/// Who waits, in order; or, with `state=admitted`, who may come in.
#[utoipa::path(get, path = "/api/v1/admin/queues/{queue_id}/positions", tag = "room", operation_id = "room_positions",
    params(InQueue,
        ("state" = Option<String>, Query, description = "`waiting` or `admitted`."),
        ("from" = Option<usize>, Query, description = "Index of the first."),
        ("count" = Option<usize>, Query, description = "How many, 500 at most.")),
    responses((status = 200, description = "A page of them.", body = Places)))]
async fn places(
    State(app): State<App>,
    InQueue { queue_id: id }: InQueue,
    Query(page): Query<Page>,
) -> Result<Json<Places>, ApiError> {
    let which = match page.state.as_deref() {
        None | Some("waiting") => Which::Waiting,
        Some("admitted") => Which::Admitted,
        Some(_) => return Err(ApiError::invalid_field("state", "waiting or admitted")),
    };
    let found = room(&app)?.places(&id, which, page.from, page.count.unwrap_or(100)).await?;
    let now = app.store().now();
    Ok(Json(Places { positions: found.iter().map(|place| PlaceView::of(place, now)).collect() }))
}

/// One place.
#[utoipa::path(get, path = "/api/v1/admin/queues/{queue_id}/positions/{position_id}", tag = "room", operation_id = "room_position",
    params(InQueue, InPlace),
    responses((status = 200, description = "The place.", body = PlaceView)))]
async fn place(
    State(app): State<App>,
    InQueue { queue_id: queue }: InQueue,
    InPlace { position_id: id }: InPlace,
) -> Result<Json<PlaceView>, ApiError> {
    let found = room(&app)?.status(&queue, &id).await?;
    Ok(Json(PlaceView::of(&found, app.store().now())))
}

/// Running sessions of a queue.
#[derive(Debug, Serialize, ToSchema)]
struct Sessions {
    sessions: Vec<SessionView>,
}

/// Running sessions, the next to end first.
#[utoipa::path(get, path = "/api/v1/admin/queues/{queue_id}/sessions", tag = "room", operation_id = "room_sessions",
    params(InQueue,
        ("from" = Option<usize>, Query, description = "Index of the first."),
        ("count" = Option<usize>, Query, description = "How many, 500 at most.")),
    responses((status = 200, description = "A page of them.", body = Sessions)))]
async fn sessions(
    State(app): State<App>,
    InQueue { queue_id: id }: InQueue,
    Query(page): Query<Page>,
) -> Result<Json<Sessions>, ApiError> {
    let found = room(&app)?.sessions(&id, page.from, page.count.unwrap_or(100)).await?;
    Ok(Json(Sessions { sessions: found.iter().map(SessionView::of).collect() }))
}

/// Where to go on in the stream of events.
#[derive(Debug, Deserialize)]
struct After {
    after: Option<String>,
    count: Option<usize>,
}

/// Events after a place in the stream.
#[derive(Debug, Serialize, ToSchema)]
struct EventsView {
    events: Vec<EventView>,
    /// Some between that place and these may be gone already.
    missed: bool,
}

/// What happened in a queue, oldest first.
#[utoipa::path(get, path = "/api/v1/admin/queues/{queue_id}/events", tag = "room", operation_id = "room_events",
    params(InQueue,
        ("after" = Option<String>, Query, description = "Id of the last event seen."),
        ("count" = Option<usize>, Query, description = "How many, 1,000 at most.")),
    responses((status = 200, description = "A batch of them.", body = EventsView)))]
async fn events(
    State(app): State<App>,
    InQueue { queue_id: id }: InQueue,
    Query(query): Query<After>,
) -> Result<Json<EventsView>, ApiError> {
    let after = match &query.after {
        None => EventId::START,
        Some(id) => parse_event_id(id)?,
    };
    let found = room(&app)?.events(&id, after, query.count.unwrap_or(100)).await?;
    let events = found.events.into_iter().map(EventView::of);
    Ok(Json(EventsView { events: events.collect(), missed: found.missed }))
}

/// What happens in a queue, as server-sent events, on whichever instance it happens. Each event has
/// the id of the stream, so a client that comes back with `Last-Event-ID` (or `after`) misses
/// nothing; an event `missed` says that some were gone already. Without either, what happens from
/// now on.
#[utoipa::path(get, path = "/api/v1/admin/queues/{queue_id}/live", tag = "room", operation_id = "room_live",
    params(InQueue,
        ("after" = Option<String>, Query, description = "Id of the last event seen.")),
    responses((status = 200, description = "Events such as `position.admitted`, each with what `/events` lists.",
        content_type = "text/event-stream", body = String)))]
async fn live(
    State(app): State<App>,
    InQueue { queue_id: queue }: InQueue,
    Query(query): Query<After>,
    headers: HeaderMap,
) -> Result<Sse, ApiError> {
    let room = room(&app)?;
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let after = last.or(query.after.as_deref()).map(parse_event_id).transpose()?;
    let latest = room.latest_event(&queue).await?;
    let lives = &app.room_streams().lives;
    let events = lives.follow(&app, room, queue, after.unwrap_or(latest), latest);
    let events = events.ok_or_else(|| {
        ApiError::unavailable(
            "TOO_MANY_STREAMS",
            "as many streams of events are open here as may be: close one, or use another instance",
        )
        .retry_after(30)
    })?;
    Ok(Sse::new(&app, events))
}

fn parse_event_id(text: &str) -> Result<EventId, ApiError> {
    text.parse()
        .map_err(|_| ApiError::invalid_field("after", "an event id such as 1767225600000-0"))
}

/// Take a place away; a running session ends with it.
#[utoipa::path(delete, path = "/api/v1/admin/queues/{queue_id}/positions/{position_id}", tag = "room", operation_id = "room_revoke_position",
    params(InQueue, InPlace), request_body = Option<Revocation>,
    responses((status = 200, description = "The place as it is now.", body = PlaceView)))]
async fn revoke_place(
    State(app): State<App>,
    InQueue { queue_id: queue }: InQueue,
    InPlace { position_id: id }: InPlace,
    OptionalJson(body): OptionalJson<Revocation>,
) -> Result<impl IntoResponse, ApiError> {
    let room = room(&app)?;
    room.revoke_place_for(&queue, &id, &body.reason).await?;
    let view = PlaceView::of(&room.status(&queue, &id).await?, app.store().now());
    let note = Note::new("position.revoke", id.to_string()).change((), &body);
    Ok((Extension(note), Json(view)))
}

/// Why something is taken away.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
struct Revocation {
    /// The operator's own word for it, such as `abuse_detected`: up to 64 letters, digits and `_`. Kept in
    /// `revocation:{token_id}` and told in the event.
    reason: String,
}

/// End a session before its time; its pass is void.
#[utoipa::path(delete, path = "/api/v1/admin/sessions/{session_id}", tag = "room", operation_id = "room_revoke_session",
    params(InSession), request_body = Option<Revocation>,
    responses((status = 200, description = "The session as it is now.", body = SessionView)))]
async fn revoke_session(
    State(app): State<App>,
    InSession { session_id: id }: InSession,
    OptionalJson(body): OptionalJson<Revocation>,
) -> Result<impl IntoResponse, ApiError> {
    let room = room(&app)?;
    let queue = room.queue_of_session(&id).await?;
    let view = SessionView::of(&room.terminate_for(&queue, &id, &body.reason).await?);
    Ok((Extension(Note::new("session.revoke", id.to_string()).change((), &body)), Json(view)))
}

/// The person a session belongs to.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SessionUser {
    /// The id the visitor has on the protected site: up to 200 characters; empty takes it away.
    user_id: String,
}

/// Say whose session it is, after the visitor logged in on the protected site. For the site's own programs:
/// a visitor could name anybody.
#[utoipa::path(put, path = "/api/v1/admin/sessions/{session_id}/user", tag = "room", operation_id = "room_set_user",
    params(InSession), request_body = SessionUser,
    responses((status = 200, description = "The session as it is now.", body = SessionView)))]
async fn set_user(
    State(app): State<App>,
    InSession { session_id: id }: InSession,
    Json(body): Json<SessionUser>,
) -> Result<impl IntoResponse, ApiError> {
    let room = room(&app)?;
    let queue = room.queue_of_session(&id).await?;
    let view = SessionView::of(&room.set_user(&queue, &id, &body.user_id).await?);
    Ok((Extension(Note::new("session.user", id.to_string()).change((), &body)), Json(view)))
}

/// End every running session of a queue before its time; their passes are void. Who waits or was
/// just let in stays.
#[utoipa::path(post, path = "/api/v1/admin/queues/{queue_id}/revoke-all", tag = "room", operation_id = "room_revoke_all",
    params(InQueue), request_body = Confirm,
    responses((status = 200, description = "How many ended.", body = EndedView)))]
async fn revoke_all(
    State(app): State<App>,
    Confirmed(id): Confirmed,
) -> Result<impl IntoResponse, ApiError> {
    Ok(EndedView::told("session.revoke_all", &id, room(&app)?.terminate_all(&id).await?))
}

/// An invite to be signed.
#[derive(Debug, Deserialize, ToSchema)]
struct InviteBody {
    /// The level it gives, 1 to 3.
    level: u8,
    /// How many places may be taken with it; 1 if left out.
    uses: Option<u32>,
    /// How long it is good; a day if left out.
    expires_in_seconds: Option<u32>,
    /// What tells it from others; made up if left out.
    id: Option<String>,
    /// The id the invited person has on the protected site; kept with the position and the session.
    user_id: Option<String>,
}

/// A signed invite.
#[derive(Debug, Serialize, ToSchema)]
struct InviteView {
    id: String,
    /// Send it as `invite` when joining.
    invite: String,
    level: u8,
    uses: u32,
    expires_at_ms: i64,
}

/// Sign an invite: whoever has it may take places at its level.
#[utoipa::path(post, path = "/api/v1/admin/queues/{queue_id}/invites", tag = "room", operation_id = "room_invite",
    params(InQueue), request_body = InviteBody,
    responses((status = 201, description = "Signed.", body = InviteView)))]
async fn invite(
    State(app): State<App>,
    InQueue { queue_id: queue }: InQueue,
    Json(body): Json<InviteBody>,
) -> Result<impl IntoResponse, ApiError> {
    let lasts = Duration::from_secs(body.expires_in_seconds.unwrap_or(86_400).into());
    let new = NewInvite {
        id: body.id,
        level: Level::parse(body.level)
            .ok()
            .filter(|level| *level != Level::NORMAL)
            .ok_or_else(|| ApiError::invalid_field("level", "from 1 to 3"))?,
        uses: body.uses.unwrap_or(1),
        expires: app.store().now() + lasts,
        user_id: body.user_id.unwrap_or_default(),
    };
    let (token, invite) = room(&app)?.issue_invite(&queue, new).await?;
    let note = Note::new("invite.create", queue.as_str())
        .change((), json!({ "id": invite.id(), "level": body.level, "uses": invite.uses() }));
    let view = InviteView {
        id: invite.id().to_owned(),
        invite: token,
        level: body.level,
        uses: invite.uses(),
        expires_at_ms: invite.expires().0,
    };
    Ok((StatusCode::CREATED, Extension(note), Json(view)))
}

/// The key that shall sign passes.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PassKey {
    /// A private key as PKCS#8 in PEM: RSA of at least 2,048 bits makes passes RS256, Ed25519 makes them
    /// EdDSA. Left out, a fresh Ed25519 key is made.
    pem: Option<String>,
}

/// The key that signs passes now.
#[derive(Debug, Serialize, ToSchema)]
struct PassKeyView {
    /// `EdDSA` or `RS256`.
    algorithm: &'static str,
}

/// Choose the key that signs passes from now on, and with it the algorithm. What older keys signed stays
/// valid, and their public keys stay published as long as that is so.
#[utoipa::path(put, path = "/api/v1/admin/keys/pass", tag = "room", operation_id = "room_set_pass_key",
    request_body = PassKey,
    responses((status = 200, description = "It signs.", body = PassKeyView),
        (status = 400, description = "Not a key that can sign passes.", body = ErrorBody)))]
async fn pass_key(
    State(app): State<App>,
    Json(body): Json<PassKey>,
) -> Result<impl IntoResponse, ApiError> {
    let room = room(&app)?;
    match &body.pem {
        Some(pem) => room.import_pass_key(pem).await.map_err(|error| match error {
            room::Error::Invalid { message, .. } => ApiError::invalid_field("pem", message),
            error => error.into(),
        })?,
        None => room.use_eddsa().await?,
    }
    let view = PassKeyView { algorithm: room.pass_algorithm().await?.as_str() };
    Ok((Extension(Note::new("keys.pass", "room").change((), &view)), Json(view)))
}

/// Keys that were made.
#[derive(Debug, Serialize, ToSchema)]
struct Rotated {
    rotated: bool,
}

/// Make new signing keys sign from now on; what the old ones signed stays valid.
#[utoipa::path(post, path = "/api/v1/admin/keys/rotate", tag = "room", operation_id = "room_rotate_keys",
    responses((status = 200, description = "Rotated.", body = Rotated)))]
async fn rotate(State(app): State<App>) -> Result<impl IntoResponse, ApiError> {
    room(&app)?.rotate_keys().await?;
    Ok((Extension(Note::new("keys.rotate", "room")), Json(Rotated { rotated: true })))
}
