//! Response bodies of the waiting room, and the enums of its API.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use room::{Position, Queue, QueueConfig, QueueStats, VisitorSession};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use store::Millis;
use utoipa::ToSchema;

use super::stream;
use crate::site::Site;
use crate::waiting_page::brand::Brand;
use crate::waiting_page::{i18n::Translation, page};
use web::extract::Json;
use web::time::Timestamp;

/// Defines the API's form of an enum of the room, with conversions both ways.
macro_rules! api_enum {
    ($(#[$meta:meta])* $name:ident as $schema:ident, $source:ident {
        // A token, not a literal: the schema is made from it, too, and cannot read a literal of a macro.
        $($(#[$doc:meta])* $variant:ident = $text:tt,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        #[schema(as = $schema)]
        pub(super) enum $name {
            $($(#[$doc])* #[serde(rename = $text)] $variant,)*
        }

        impl From<room::$source> for $name {
            fn from(source: room::$source) -> $name {
                match source { $(room::$source::$variant => $name::$variant,)* }
            }
        }

        impl From<$name> for room::$source {
            fn from(value: $name) -> room::$source {
                match value { $($name::$variant => room::$source::$variant,)* }
            }
        }
    };
}

api_enum! {
    /// Status of a position.
    PositionStatusView as PositionStatus, PositionState {
        /// Waiting in line.
        Waiting = "waiting",
        /// Admitted: may start a session within the admission window.
        Admitted = "admitted",
        /// The session is active.
        Active = "active",
        /// The session was completed.
        Completed = "completed",
        /// No heartbeat, no session within the admission window, or the session expired.
        Expired = "expired",
        /// Cancelled by the visitor, or replaced by a better position.
        Cancelled = "cancelled",
        /// Revoked by an operator or the protected site.
        Revoked = "revoked",
    }
}

api_enum! {
    /// Reason for which a position or a session ended.
    EndReasonView as EndReason, EndReason {
        /// No heartbeat within the hold time.
        HoldTimeout = "hold_timeout",
        /// Admitted twice without starting a session.
        AdmissionTimeout = "admission_timeout",
        /// No activity in the session.
        SessionIdle = "session_idle",
        /// The session reached its hard limit.
        SessionCap = "session_cap",
        /// Cancelled by the visitor.
        Cancelled = "cancelled",
        /// Replaced by a better position.
        Upgraded = "upgraded",
        /// Completed by the visitor.
        Completed = "completed",
        /// Revoked by an operator.
        AdminRevoked = "admin_revoked",
        /// Revoked by the protected site.
        OriginRevoked = "origin_revoked",
        /// The queue was reset.
        QueueReset = "queue_reset",
    }
}

api_enum! {
    /// Status of a queue.
    QueueStatusView as QueueStatus, QueueStatus {
        /// Visitors are admitted.
        Active = "active",
        /// Nobody is admitted; visitors may enqueue.
        Paused = "paused",
        /// Nobody is admitted, and nobody may enqueue.
        Maintenance = "maintenance",
    }
}

api_enum! {
    /// Status of a session.
    SessionStatusView as SessionStatus, SessionStatus {
        /// Active.
        Active = "active",
        /// Expired.
        Expired = "expired",
        /// Ended by the visitor, an operator or the protected site.
        Terminated = "terminated",
    }
}

api_enum! {
    /// Policy by which priorities above 0 get ahead.
    PriorityPolicyView as PriorityPolicy, PriorityPolicy {
        /// A priority skips a share of the queue when enqueueing.
        Skip = "skip",
        /// Higher priorities first, with a share reserved for priority 0.
        Strict = "strict",
    }
}

api_enum! {
    /// Rule by which two visitors count as the same.
    DuplicatesView as Duplicates, Duplicates {
        /// The same token or idempotency key.
        Token = "token",
        /// Also the same network address.
        Ip = "ip",
    }
}

api_enum! {
    /// Reason for which there is no estimate.
    NoEstimateView as NoEstimateReason, NoEstimate {
        /// The position does not wait.
        NotWaiting = "not_waiting",
        /// The queue is paused or closed.
        Paused = "paused",
        /// Too few visitors were admitted to measure a rate.
        NoData = "no_data",
    }
}

api_enum! {
    /// Signature algorithm of passes.
    PassAlgorithm as PassAlgorithm, Algorithm {
        /// Ed25519.
        EdDsa = "EdDSA",
        /// RSA with SHA-256.
        Rs256 = "RS256",
    }
}

/// Estimated wait, as a range.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EstimatedWait)]
pub(super) struct WaitView {
    /// Optimistic estimate in seconds.
    low_seconds: Option<u64>,
    /// Pessimistic estimate in seconds.
    high_seconds: Option<u64>,
    /// True if there is an estimate.
    known: bool,
    /// Reason for which there is none.
    reason: Option<NoEstimateView>,
    /// The estimate as text, in the language asked for. Only with `lang` in the query.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// Texts about a position, in the language asked for.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PositionTexts)]
pub(super) struct TextView {
    /// Language tag.
    lang: &'static str,
    /// The formatted number in line.
    position: String,
    /// Text about the visitors ahead.
    ahead: String,
    /// Text about the visitors behind.
    behind: String,
}

/// A position, as its holder sees it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = QueuePosition)]
pub(super) struct PositionView {
    /// Id of the position.
    position_id: String,
    /// Name of the queue.
    queue_id: String,
    /// Its status.
    status: PositionStatusView,
    /// Reason for which it ended.
    reason: Option<EndReasonView>,
    /// Time at which it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<Timestamp>,
    /// The number drawn when enqueueing, as stored: microseconds since 1970, unique in the queue and
    /// growing over all instances. Null if the record was lost or written by another program.
    pub(super) ticket: Option<u64>,
    /// Number in line, from 1; only while waiting.
    position: Option<u64>,
    /// The same as `position`, under the name other clients know.
    position_display: Option<u64>,
    /// Visitors who will be admitted before; only while waiting.
    ahead: Option<u64>,
    /// Visitors who wait behind; only while waiting.
    behind: Option<u64>,
    /// Visitors who wait in the queue.
    queue_length: u64,
    /// Elapsed share of the wait, from 0 to 1,000; only if the wait is known.
    progress: Option<u64>,
    /// Priority, 0 to 3.
    priority: u8,
    /// Likely wait in seconds.
    estimated_wait_seconds: Option<u64>,
    /// Estimated wait, as a range.
    estimated_wait: WaitView,
    /// True if the position is admitted now.
    admitted: bool,
    /// End of the admission window: the session must start before it.
    admission_expires_at: Option<Timestamp>,
    /// Seconds until then.
    admission_expires_in_seconds: Option<i64>,
    /// URL of the protected site for an admitted visitor; valid for one arrival within two minutes. Only
    /// in answers to the visitor, and if the queue has a target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redirect_url: Option<String>,
    /// The better position that replaced this one.
    replaced_by: Option<String>,
    /// Time at which the position expires without another heartbeat.
    expires_at: Option<Timestamp>,
    /// Time of enqueueing.
    enqueued_at: Timestamp,
    /// Delay before the next poll in milliseconds; add jitter.
    next_poll_ms: u64,
    /// The same as `next_poll_ms` in seconds, under the name other clients know.
    heartbeat_interval_seconds: u64,
    /// Time for which the position is held after a heartbeat, in seconds.
    heartbeat_timeout_seconds: u64,
    /// True while nobody is admitted.
    paused: bool,
    /// Status of the queue.
    queue_status: QueueStatusView,
    /// The operator's message to waiting visitors, by language tag.
    #[schema(value_type = HashMap<String, String>)]
    message: Map<String, Value>,
    /// Time of the answer.
    server_time: Timestamp,
    /// URL of the event stream; only near the front.
    events_url: Option<String>,
    /// The numbers as texts. Only with `lang` in the query.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<TextView>,
    /// Token that proves the position; send it as a bearer token or cookie. Only when enqueueing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<String>,
}

impl PositionView {
    pub(super) fn of(position: &Position, now: Millis) -> PositionView {
        let known = position.estimate.ok();
        let paused = position.queue_status != room::QueueStatus::Active;
        PositionView {
            position_id: position.id.to_string(),
            queue_id: position.queue.to_string(),
            status: position.state.into(),
            reason: position.reason.map(EndReasonView::from),
            ended_at: position.ended.map(Timestamp),
            ticket: position.ticket,
            position: position.number,
            position_display: position.number,
            ahead: position.ahead(),
            behind: position.number.map(|number| position.waiting.saturating_sub(number)),
            queue_length: position.waiting,
            progress: page::progress(position, now),
            priority: position.priority.number(),
            estimated_wait_seconds: known.map(|wait| wait.likely.as_secs()),
            estimated_wait: WaitView {
                low_seconds: known.map(|wait| wait.low.as_secs()),
                high_seconds: known.map(|wait| wait.high.as_secs()),
                known: known.is_some(),
                reason: position.estimate.err().map(NoEstimateView::from),
                text: None,
            },
            admitted: position.state == room::PositionState::Admitted,
            admission_expires_at: position.start_by.map(Timestamp),
            admission_expires_in_seconds: position.start_by.map(|at| (at.0 - now.0).max(0) / 1000),
            redirect_url: None,
            replaced_by: position.replaced_by.map(|id| id.to_string()),
            expires_at: position.expires_at.map(Timestamp),
            enqueued_at: position.enqueued_at.into(),
            next_poll_ms: u64::try_from(position.next_poll.as_millis()).unwrap_or(u64::MAX),
            heartbeat_interval_seconds: position.next_poll.as_secs(),
            heartbeat_timeout_seconds: position.held_for.as_secs(),
            paused,
            queue_status: position.queue_status.into(),
            message: position.message.clone(),
            server_time: now.into(),
            events_url: stream::is_near(position)
                .then(|| format!("/api/v1/queues/{}/events", position.queue)),
            text: None,
            token: None,
        }
    }

    /// Adds the texts, if a language is asked for.
    pub(super) fn with_texts(
        mut self,
        position: &Position,
        texts: Option<&'static Translation>,
    ) -> PositionView {
        if let (Some(texts), Some(number)) = (texts, position.number) {
            self.estimated_wait.text = Some(page::wait(texts, position));
            self.text = Some(TextView {
                lang: texts.lang,
                position: texts.number(number),
                ahead: texts.ahead(number.saturating_sub(1)),
                behind: texts.behind(position.waiting.saturating_sub(number)),
            });
        }
        self
    }
}

/// A session on the protected site.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Session)]
pub(super) struct SessionView {
    /// Id of the session.
    session_id: String,
    /// Name of the queue.
    queue_id: String,
    /// Id of the position.
    position_id: String,
    /// Id of the visitor on the protected site; may be empty.
    user_id: String,
    /// Its status.
    status: SessionStatusView,
    /// Reason for which it ended.
    reason: Option<EndReasonView>,
    /// Time of the start.
    started_at: Timestamp,
    /// Time at which it ends without further activity.
    expires_at: Timestamp,
    /// Hard limit: time at which it ends regardless of activity.
    hard_expires_at: Timestamp,
    /// Time of the last activity.
    last_activity_at: Timestamp,
    /// Number of page views.
    page_views: u64,
    /// The pass for the protected site. Only when the session starts and after activity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session_token: Option<String>,
    /// URL of the protected site. Only when the session starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redirect_url: Option<String>,
}

impl SessionView {
    pub(super) fn of(session: &VisitorSession) -> SessionView {
        SessionView {
            session_id: session.id.to_string(),
            queue_id: session.queue.to_string(),
            position_id: session.position.to_string(),
            user_id: session.user_id.clone(),
            status: session.status.into(),
            reason: session.reason.map(EndReasonView::from),
            started_at: session.started.into(),
            expires_at: session.expires.into(),
            hard_expires_at: session.hard_until.into(),
            last_activity_at: session.last_activity.into(),
            page_views: session.page_views,
            session_token: None,
            redirect_url: None,
        }
    }
}

/// Rate of admission.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = AdmissionRate)]
pub(super) struct RateView {
    /// Admissions per period.
    count: u32,
    /// The period in seconds.
    per_seconds: u32,
    /// Admissions at once after a lull.
    burst: u32,
}

/// A queue, as an operator sees it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Queue)]
pub(super) struct QueueView {
    /// Name of the queue in URLs and keys.
    id: String,
    /// Display name.
    name: String,
    /// URL admitted visitors are sent to; may be empty.
    target_url: String,
    /// Its status.
    status: QueueStatusView,
    /// Visitors admitted or active at once; 0 is no limit.
    max_active: u32,
    /// Visitors from one address admitted or active at once; 0 is no limit, null its share of `max_active`.
    max_active_per_address: Option<u32>,
    /// Visitors who may wait; 0 is no limit.
    max_queue_size: u32,
    /// Rate of admission.
    admission: RateView,
    /// Policy by which priorities above 0 get ahead.
    priority_policy: PriorityPolicyView,
    /// Under the strict policy, one admission in this many is reserved for priority 0; 0 reserves none.
    reserved_share: u32,
    /// Time an admitted visitor has to start a session.
    admission_window_seconds: u64,
    /// Time a position without heartbeats is held beyond three missed polls.
    hold_seconds: u64,
    /// Time between polls when the wait is not known.
    heartbeat_interval_seconds: u64,
    /// Time without a heartbeat after which a position expires.
    heartbeat_timeout_seconds: u64,
    /// Minimum time between polls.
    poll_floor_seconds: u64,
    /// Maximum time between polls.
    poll_ceiling_seconds: u64,
    /// Bytes of the user agent that are stored.
    user_agent_bytes: u32,
    /// Time without activity after which a session ends.
    session_timeout_seconds: u64,
    /// Hard limit of a session.
    session_max_seconds: u64,
    /// Duration of a session started for a visitor without a cookie, until the cookie comes back once.
    provisional_timeout_seconds: u64,
    /// True if proxies start sessions also for requests that are not a person's navigation.
    admit_programs: bool,
    /// True if activity renews a session.
    session_renewal: bool,
    /// Rule by which two visitors count as the same.
    duplicates: DuplicatesView,
    /// True if plain network addresses are stored besides their keyed hashes.
    store_addresses: bool,
    /// Origins visitors may be sent back to besides that of `target_url`.
    allowed_origins: Vec<String>,
    /// Paths visitors may be sent back to, with all below them; empty means all.
    allowed_paths: Vec<String>,
    /// Colour of the waiting page, as `#rrggbb`; null is the default.
    brand_color: Option<String>,
    /// Logo on the waiting page; null is the default.
    brand_logo: Option<String>,
    /// Message to waiting visitors, by language tag.
    #[schema(value_type = HashMap<String, String>)]
    message: Map<String, Value>,
    /// Grows with every change. It is the `ETag` as well; send it as `If-Match`.
    version: u64,
    /// Time of creation.
    created_at: Timestamp,
    /// Time of the last change.
    updated_at: Timestamp,
    /// Waiting positions.
    waiting: u64,
    /// Admitted positions whose session has not started.
    admitted: u64,
    /// Active sessions.
    active: u64,
}

impl QueueView {
    pub(super) fn of(queue: &Queue) -> QueueView {
        let QueueConfig { admission, .. } = &queue.config;
        let config = &queue.config;
        let (site, brand) = (Site::of(config), Brand::of(config));
        QueueView {
            id: queue.id.to_string(),
            name: config.name.clone(),
            target_url: config.target_url.clone(),
            status: queue.status.into(),
            max_active: config.max_active,
            max_active_per_address: config.max_active_per_address,
            max_queue_size: config.max_queue_size,
            admission: RateView {
                count: admission.count,
                per_seconds: admission.per_seconds,
                burst: admission.burst,
            },
            priority_policy: config.policy.into(),
            reserved_share: config.reserved_share,
            admission_window_seconds: config.admission_window.as_secs(),
            hold_seconds: config.hold.as_secs(),
            heartbeat_interval_seconds: config.heartbeat_interval.as_secs(),
            heartbeat_timeout_seconds: config.heartbeat_timeout().as_secs(),
            poll_floor_seconds: config.poll_floor.as_secs(),
            poll_ceiling_seconds: config.poll_ceiling.as_secs(),
            user_agent_bytes: config.user_agent_bytes,
            session_timeout_seconds: config.session_timeout.as_secs(),
            session_max_seconds: config.session_max.as_secs(),
            provisional_timeout_seconds: config.provisional_timeout.as_secs(),
            admit_programs: config.admit_programs,
            session_renewal: config.session_renewal,
            duplicates: config.duplicates.into(),
            store_addresses: config.store_addresses,
            allowed_origins: site.origins,
            allowed_paths: site.paths,
            brand_color: brand.color,
            brand_logo: brand.logo,
            message: config.message.clone(),
            version: queue.version,
            created_at: queue.created.into(),
            updated_at: queue.updated.into(),
            waiting: queue.waiting,
            admitted: queue.admitted,
            active: queue.active,
        }
    }
}

impl IntoResponse for QueueView {
    fn into_response(self) -> Response {
        ([(header::ETAG, format!("\"{}\"", self.version))], Json(self)).into_response()
    }
}

/// Type of an event of a queue, in the document.
#[derive(ToSchema)]
#[expect(dead_code, reason = "the schema of room::RoomEvent::subject")]
enum RoomEventType {
    /// A visitor got a position.
    #[schema(rename = "waitingroom.position.enqueued.v1")]
    PositionEnqueued,
    /// A position was admitted.
    #[schema(rename = "waitingroom.position.admitted.v1")]
    PositionAdmitted,
    /// An admitted position started no session, and went back to the head of its lane.
    #[schema(rename = "waitingroom.position.returned.v1")]
    PositionReturned,
    /// The visitor cancelled a position.
    #[schema(rename = "waitingroom.position.cancelled.v1")]
    PositionCancelled,
    /// A position expired or was revoked.
    #[schema(rename = "waitingroom.position.expired.v1")]
    PositionExpired,
    /// A session started.
    #[schema(rename = "waitingroom.session.started.v1")]
    SessionStarted,
    /// A session was completed.
    #[schema(rename = "waitingroom.session.completed.v1")]
    SessionCompleted,
    /// A session expired.
    #[schema(rename = "waitingroom.session.expired.v1")]
    SessionExpired,
    /// A session was revoked.
    #[schema(rename = "waitingroom.session.terminated.v1")]
    SessionTerminated,
    /// The queue was created.
    #[schema(rename = "waitingroom.queue.created.v1")]
    QueueCreated,
    /// Settings of the queue changed.
    #[schema(rename = "waitingroom.queue.updated.v1")]
    QueueUpdated,
    /// The queue was paused.
    #[schema(rename = "waitingroom.queue.paused.v1")]
    QueuePaused,
    /// The queue was resumed.
    #[schema(rename = "waitingroom.queue.resumed.v1")]
    QueueResumed,
    /// The queue was closed for maintenance.
    #[schema(rename = "waitingroom.queue.maintenance.v1")]
    QueueMaintenance,
    /// Members that another program left without a deadline got one.
    #[schema(rename = "waitingroom.queue.adopted.v1")]
    QueueAdopted,
}

/// An event of a queue.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RoomEvent)]
pub(super) struct RoomEventView {
    /// Id of the event, which is also the cursor after it.
    id: String,
    /// Version of the event's format.
    version: u8,
    /// Type of the event.
    #[schema(value_type = RoomEventType)]
    r#type: String,
    /// Time of the event.
    created_at: Timestamp,
    /// Program that emitted it.
    source: &'static str,
    /// Name of the queue.
    queue_id: String,
    /// Ids and reasons.
    #[schema(value_type = Object)]
    data: Map<String, Value>,
}

impl RoomEventView {
    /// Returns the cursor after this event.
    pub(super) fn cursor(&self) -> String {
        self.id.clone()
    }

    pub(super) fn of(event: room::RoomEvent) -> RoomEventView {
        RoomEventView {
            id: event.id.to_string(),
            version: 1,
            r#type: event.subject(),
            created_at: event.at.into(),
            source: "tidegate",
            queue_id: event.queue.to_string(),
            data: event.data,
        }
    }
}

/// Reason for which a position still waits.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = WaitReason)]
pub(super) enum WaitReasonView {
    /// The queue is paused.
    Paused,
    /// The queue is closed.
    Closed,
    /// The rate is 0, which admits nobody.
    NoRate,
    /// As many visitors as allowed are admitted or active.
    NoFreeSlot,
    /// As many visitors as allowed from the same network address are admitted or active.
    AddressLimit,
    /// Others are ahead, and the rate admits only so many per time.
    Rate,
}

impl From<room::WaitReason> for WaitReasonView {
    fn from(reason: room::WaitReason) -> WaitReasonView {
        match reason {
            room::WaitReason::Paused => WaitReasonView::Paused,
            room::WaitReason::Closed => WaitReasonView::Closed,
            room::WaitReason::NoRate => WaitReasonView::NoRate,
            room::WaitReason::NoFreeSlot => WaitReasonView::NoFreeSlot,
            room::WaitReason::AddressLimit => WaitReasonView::AddressLimit,
            room::WaitReason::Rate => WaitReasonView::Rate,
        }
    }
}

/// A visitor that was looked up.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = VisitorMatch)]
pub(super) struct VisitorMatchView {
    /// The position.
    position: PositionView,
    /// Its session; null if none was started or its record is gone.
    #[schema(required)]
    session: Option<SessionView>,
    /// The reason it still waits; null if it does not wait.
    #[schema(required)]
    wait_reason: Option<WaitReasonView>,
}

impl VisitorMatchView {
    pub(super) fn of(found: &room::VisitorMatch, now: store::Millis) -> VisitorMatchView {
        VisitorMatchView {
            position: PositionView::of(&found.position, now),
            session: found.session.as_ref().map(SessionView::of),
            wait_reason: found.wait_reason.map(WaitReasonView::from),
        }
    }
}

/// Statistics of one hour, or of one day.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = QueueHour)]
pub(crate) struct HourView {
    /// Start of the hour or day.
    started_at: Timestamp,
    /// Positions enqueued.
    enqueued: u64,
    /// Admissions, second ones after a no-show included.
    admitted: u64,
    /// Sessions started.
    sessions_started: u64,
    /// Positions that expired or were revoked.
    expired: u64,
    /// Positions cancelled.
    cancelled: u64,
    /// Admissions without a session.
    no_shows: u64,
    /// Sessions completed.
    completed: u64,
    /// Sessions expired.
    sessions_expired: u64,
    /// Sessions revoked.
    terminated: u64,
    /// Maximum number of waiting visitors.
    peak_queue_size: u64,
    /// Mean wait of admitted visitors.
    average_wait_ms: Option<u64>,
    /// Approximate median of the wait.
    wait_p50_ms: Option<u64>,
    /// Approximate 90th percentile of the wait.
    wait_p90_ms: Option<u64>,
    /// Approximate 99th percentile of the wait.
    wait_p99_ms: Option<u64>,
}

/// Statistics of a queue.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = QueueStats)]
pub(super) struct StatsView {
    /// Name of the queue.
    queue_id: String,
    /// Its status.
    status: QueueStatusView,
    /// Waiting positions now.
    total_waiting: u64,
    /// Admitted positions whose session has not started, now.
    total_admitted_now: u64,
    /// Active sessions now.
    total_active: u64,
    /// Positions enqueued since the queue was created.
    total_enqueued: u64,
    /// Admissions, second ones after a no-show included.
    total_admitted: u64,
    /// Sessions started.
    total_sessions_started: u64,
    /// Positions that expired or were revoked.
    total_expired: u64,
    /// Positions cancelled.
    total_cancelled: u64,
    /// Admissions without a session.
    total_no_shows: u64,
    /// Sessions completed.
    total_completed: u64,
    /// Sessions expired.
    total_sessions_expired: u64,
    /// Sessions revoked.
    total_terminated: u64,
    /// Maximum number of waiting visitors in the hours listed.
    peak_queue_size: u64,
    /// Mean wait of visitors admitted in the last 24 hours.
    average_wait_ms: Option<u64>,
    /// Admissions per second over the last five minutes, or since the queue was created or resumed.
    admission_rate: f64,
    /// Time of the last admission.
    last_admission_at: Option<Timestamp>,
    /// The last 24 hours that have numbers, oldest first.
    hours: Vec<HourView>,
}

fn ms(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl HourView {
    /// Returns the cells of a row of CSV, in the order of its head.
    pub(crate) fn cells(&self) -> Vec<String> {
        let some =
            |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
        let counts = [
            self.enqueued,
            self.admitted,
            self.sessions_started,
            self.completed,
            self.expired,
            self.cancelled,
            self.no_shows,
            self.sessions_expired,
            self.terminated,
            self.peak_queue_size,
        ];
        let waits =
            [self.average_wait_ms, self.wait_p50_ms, self.wait_p90_ms, self.wait_p99_ms].map(some);
        let mut cells = vec![web::format::rfc3339(self.started_at.0.0)];
        cells.extend(counts.iter().map(ToString::to_string));
        cells.extend(waits);
        cells
    }

    pub(crate) fn of(hour: &room::Hour) -> HourView {
        let [p50, p90, p99] = match hour.percentiles {
            Some(waits) => waits.map(|wait| Some(ms(wait))),
            None => [None; 3],
        };
        HourView {
            started_at: hour.start.into(),
            enqueued: hour.counts.enqueued,
            admitted: hour.counts.admitted,
            sessions_started: hour.counts.sessions_started,
            expired: hour.counts.expired,
            cancelled: hour.counts.cancelled,
            no_shows: hour.counts.no_shows,
            completed: hour.counts.completed,
            sessions_expired: hour.counts.sessions_expired,
            terminated: hour.counts.terminated,
            peak_queue_size: hour.peak_queue_size,
            average_wait_ms: hour.average_wait.map(ms),
            wait_p50_ms: p50,
            wait_p90_ms: p90,
            wait_p99_ms: p99,
        }
    }
}

impl StatsView {
    pub(super) fn of(stats: &QueueStats) -> StatsView {
        StatsView {
            queue_id: stats.queue.to_string(),
            status: stats.status.into(),
            total_waiting: stats.waiting,
            total_admitted_now: stats.admitted,
            total_active: stats.active,
            total_enqueued: stats.total.enqueued,
            total_admitted: stats.total.admitted,
            total_sessions_started: stats.total.sessions_started,
            total_expired: stats.total.expired,
            total_cancelled: stats.total.cancelled,
            total_no_shows: stats.total.no_shows,
            total_completed: stats.total.completed,
            total_sessions_expired: stats.total.sessions_expired,
            total_terminated: stats.total.terminated,
            peak_queue_size: stats.hours.iter().map(|h| h.peak_queue_size).max().unwrap_or(0),
            average_wait_ms: stats.average_wait.map(ms),
            admission_rate: stats.admission_rate,
            last_admission_at: stats.last_admission.map(Timestamp),
            hours: stats.hours.iter().map(HourView::of).collect(),
        }
    }
}
