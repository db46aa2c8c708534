//! The bodies the waiting room answers with.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use room::{Place, Queue, QueueConfig, Session, Stats};
use serde::Serialize;
use serde_json::{Map, Value};
use store::Millis;
use utoipa::ToSchema;

use super::site::Site;
use super::stream;
use crate::dashboard::format::rfc3339;
use crate::extract::Json;
use crate::waiting::brand::Brand;
use crate::waiting::{page, words::Words};

/// How long it may still take.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct WaitView {
    /// Seconds if all goes well.
    low: Option<u64>,
    /// Seconds if it goes slowly.
    high: Option<u64>,
    /// Whether anybody can say.
    known: bool,
    /// Why not, if not: `paused`, `no_data`, `not_waiting`.
    reason: Option<&'static str>,
    /// The same in words, in the language asked for. Only with `lang` in the query.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// A place in words, in the language asked for.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TextView {
    /// The language.
    lang: &'static str,
    /// The position as it is written.
    position: String,
    /// How many are ahead.
    ahead: String,
    /// How many are behind.
    behind: String,
}

/// A place as its holder sees it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PlaceView {
    position_id: String,
    queue_id: String,
    /// `waiting`, `admitted`, `active`, `completed`, `expired`, `cancelled` or `revoked`.
    status: &'static str,
    /// Why it ended, if it did.
    reason: Option<&'static str>,
    /// When it ended, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at_ms: Option<i64>,
    /// The number drawn when enqueueing, as stored: microseconds since 1970, unique in the queue and
    /// growing over all instances. Null if the record was lost or written by another program.
    pub(super) ticket: Option<u64>,
    /// The true position from 1; only while waiting.
    position: Option<u64>,
    /// The same, under the name other clients know.
    position_display: Option<u64>,
    /// How many will be let in before; only while waiting.
    ahead: Option<u64>,
    /// How many wait behind; only while waiting.
    behind: Option<u64>,
    /// How many wait in the queue.
    queue_length: u64,
    /// How much of the wait is over, in thousandths; only where the wait is known.
    progress: Option<u64>,
    /// The priority level, 0 to 3.
    lane: u8,
    estimated_wait_seconds: Option<u64>,
    estimated_wait: WaitView,
    /// Whether the visitor may come in now.
    admitted: bool,
    /// Until when an admitted visitor may come in.
    claim_by: Option<String>,
    /// The same in milliseconds since 1970.
    claim_by_ms: Option<i64>,
    /// How long that is from now.
    claim_seconds: Option<i64>,
    /// Where an admitted visitor may go now; good for one arrival within two minutes. Only in
    /// answers to the visitor, and if the queue has a target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redirect_url: Option<String>,
    /// The better place this one was exchanged for.
    replaced_by: Option<String>,
    /// When the place ends if nothing more is heard.
    expires_at: Option<String>,
    /// The same in milliseconds since 1970.
    expires_at_ms: Option<i64>,
    joined_at_ms: i64,
    /// When to ask again; add jitter.
    next_poll_ms: u64,
    next_heartbeat_seconds: u64,
    /// The same, under the name other clients know.
    heartbeat_interval_seconds: u64,
    /// How long the place is held after a sign of life.
    heartbeat_timeout_seconds: u64,
    /// Nobody is let in at the moment.
    paused: bool,
    /// `active`, `paused` or `maintenance`.
    queue_status: &'static str,
    /// What the operator tells those who wait, by language tag.
    #[schema(value_type = Object)]
    message: Map<String, Value>,
    server_time: String,
    /// The same in milliseconds since 1970.
    server_time_ms: i64,
    /// Where to listen for changes; only near the front.
    events_url: Option<String>,
    /// The numbers in words. Only with `lang` in the query.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<TextView>,
    /// Proves the place; send it as a bearer token or cookie. Only when joining.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<String>,
}

impl PlaceView {
    pub(super) fn of(place: &Place, now: Millis) -> PlaceView {
        let known = place.estimate.ok();
        let paused = place.queue_status != room::QueueStatus::Active;
        PlaceView {
            position_id: place.id.to_string(),
            queue_id: place.queue.to_string(),
            status: place.state.as_str(),
            reason: place.reason.map(room::Reason::as_str),
            ended_at_ms: place.ended.map(|at| at.0),
            ticket: place.ticket,
            position: place.position,
            position_display: place.position,
            ahead: place.ahead(),
            behind: place.position.map(|position| place.waiting.saturating_sub(position)),
            queue_length: place.waiting,
            progress: page::progress(place, now),
            lane: place.level.number(),
            estimated_wait_seconds: known.map(|wait| wait.likely.as_secs()),
            estimated_wait: WaitView {
                low: known.map(|wait| wait.low.as_secs()),
                high: known.map(|wait| wait.high.as_secs()),
                known: known.is_some(),
                reason: place.estimate.err().map(room::NoEstimate::as_str),
                text: None,
            },
            admitted: place.state == room::State::Admitted,
            claim_by: place.claim_by.map(|at| rfc3339(at.0)),
            claim_by_ms: place.claim_by.map(|at| at.0),
            claim_seconds: place.claim_by.map(|at| (at.0 - now.0).max(0) / 1000),
            redirect_url: None,
            replaced_by: place.replaced_by.map(|id| id.to_string()),
            expires_at: place.expires_at.map(|at| rfc3339(at.0)),
            expires_at_ms: place.expires_at.map(|at| at.0),
            joined_at_ms: place.joined.0,
            next_poll_ms: u64::try_from(place.next_poll.as_millis()).unwrap_or(u64::MAX),
            next_heartbeat_seconds: place.next_poll.as_secs(),
            heartbeat_interval_seconds: place.next_poll.as_secs(),
            heartbeat_timeout_seconds: place.held_for.as_secs(),
            paused,
            queue_status: place.queue_status.as_str(),
            message: place.message.clone(),
            server_time: rfc3339(now.0),
            server_time_ms: now.0,
            events_url: stream::is_near(place)
                .then(|| format!("/api/v1/queues/{}/events", place.queue)),
            text: None,
            token: None,
        }
    }

    /// The same with its numbers in words, if a language is asked for.
    pub(super) fn worded(mut self, place: &Place, words: Option<&'static Words>) -> PlaceView {
        if let (Some(words), Some(position)) = (words, place.position) {
            self.estimated_wait.text = Some(page::wait(words, place));
            self.text = Some(TextView {
                lang: words.lang,
                position: words.number(position),
                ahead: words.ahead(position.saturating_sub(1)),
                behind: words.behind(place.waiting.saturating_sub(position)),
            });
        }
        self
    }
}

/// A session on the protected site.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SessionView {
    session_id: String,
    queue_id: String,
    position_id: String,
    user_id: String,
    /// `active`, `expired` or `terminated`.
    status: &'static str,
    /// Why it ended, if it did.
    reason: Option<&'static str>,
    started_at_ms: i64,
    /// When it ends if nothing more happens.
    expires_at: String,
    /// The same in milliseconds since 1970.
    expires_at_ms: i64,
    /// When it ends whatever happens.
    hard_until_ms: i64,
    last_activity_ms: i64,
    page_views: u64,
    /// The pass to show the protected site. Only when claiming and after activity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session_token: Option<String>,
    /// Where to go. Only when claiming.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redirect_url: Option<String>,
}

impl SessionView {
    pub(super) fn of(session: &Session) -> SessionView {
        SessionView {
            session_id: session.id.to_string(),
            queue_id: session.queue.to_string(),
            position_id: session.position.to_string(),
            user_id: session.user_id.clone(),
            status: session.status.as_str(),
            reason: session.reason.map(room::Reason::as_str),
            started_at_ms: session.started.0,
            expires_at: rfc3339(session.expires.0),
            expires_at_ms: session.expires.0,
            hard_until_ms: session.hard_until.0,
            last_activity_ms: session.last_activity.0,
            page_views: session.page_views,
            session_token: None,
            redirect_url: None,
        }
    }
}

/// How fast visitors are let in.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(super) struct RateView {
    count: u32,
    per_seconds: u32,
    burst: u32,
}

/// A queue as an operator sees it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct QueueView {
    id: String,
    name: String,
    target_url: String,
    /// `active`, `paused` or `maintenance`.
    status: &'static str,
    max_active_users: u32,
    /// Sessions one address may have at once; 0 is no limit, none its share of `max_active_users`.
    max_active_per_address: Option<u32>,
    max_queue_size: u32,
    admission: RateView,
    /// `skip` or `strict`.
    priority_policy: &'static str,
    reserved_share: u32,
    claim_window_seconds: u64,
    hold_seconds: u64,
    heartbeat_interval_seconds: u64,
    heartbeat_timeout_seconds: u64,
    /// The least and the most time between polls.
    poll_floor_seconds: u64,
    poll_ceiling_seconds: u64,
    /// Bytes of the user agent that are kept.
    user_agent_bytes: u32,
    session_timeout_seconds: u64,
    session_max_seconds: u64,
    /// Seconds a session started at a gate lasts until its cookie came back once.
    provisional_timeout_seconds: u64,
    /// Do gates start sessions for requests that are no person's navigation?
    admit_programs: bool,
    session_renewal: bool,
    /// `token` or `ip`.
    duplicates: &'static str,
    /// Origins visitors may be sent back to besides that of `target_url`.
    allowed_origins: Vec<String>,
    /// Paths visitors may be sent back to, with all below them; empty means all.
    allowed_paths: Vec<String>,
    /// Colour of the waiting page, as `#rrggbb`; none is the usual one.
    brand_color: Option<String>,
    /// Logo on the waiting page; none is the usual one.
    brand_logo: Option<String>,
    #[schema(value_type = Object)]
    message: Map<String, Value>,
    /// Grows with every change. It is the `ETag` as well; send it as `If-Match`.
    version: u64,
    created_at_ms: i64,
    updated_at_ms: i64,
    waiting: u64,
    admitted: u64,
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
            status: queue.status.as_str(),
            max_active_users: config.max_active,
            max_active_per_address: config.max_active_per_address,
            max_queue_size: config.max_queue_size,
            admission: RateView {
                count: admission.count,
                per_seconds: admission.per_seconds,
                burst: admission.burst,
            },
            priority_policy: config.policy.as_str(),
            reserved_share: config.reserved_share,
            claim_window_seconds: config.claim_window.as_secs(),
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
            duplicates: config.duplicates.as_str(),
            allowed_origins: site.origins,
            allowed_paths: site.paths,
            brand_color: brand.color,
            brand_logo: brand.logo,
            message: config.message.clone(),
            version: queue.version,
            created_at_ms: queue.created.0,
            updated_at_ms: queue.updated.0,
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

/// Something that happened.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EventView {
    id: String,
    version: u8,
    /// Such as `waitingroom.position.admitted.v1`.
    r#type: String,
    timestamp_ms: i64,
    source: &'static str,
    queue_id: String,
    #[schema(value_type = Object)]
    data: Map<String, Value>,
}

impl EventView {
    pub(super) fn of(event: room::Event) -> EventView {
        EventView {
            id: event.id.to_string(),
            version: 1,
            r#type: event.subject(),
            timestamp_ms: event.at.0,
            source: "tidegate",
            queue_id: event.queue.to_string(),
            data: event.data,
        }
    }
}

/// One hour of a queue.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HourView {
    /// `YYYYMMDDHH`, UTC.
    hour: String,
    enqueued: u64,
    admitted: u64,
    claimed: u64,
    expired: u64,
    cancelled: u64,
    no_shows: u64,
    completed: u64,
    sessions_expired: u64,
    terminated: u64,
    /// The longest the line was.
    peak_queue_size: u64,
    average_wait_seconds: Option<u64>,
    /// How long half of those admitted waited at most, about.
    wait_p50_seconds: Option<f64>,
    /// Nine in ten.
    wait_p90_seconds: Option<f64>,
    /// 99 in a hundred.
    wait_p99_seconds: Option<f64>,
}

/// A queue in numbers.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StatsView {
    queue_id: String,
    status: &'static str,
    total_waiting: u64,
    total_admitted_now: u64,
    total_active: u64,
    total_enqueued: u64,
    total_admitted: u64,
    /// Sessions started.
    total_claimed: u64,
    /// Places that ended by silence or by not coming, or were taken away.
    total_expired: u64,
    total_cancelled: u64,
    /// Admissions nobody came to.
    total_no_shows: u64,
    total_completed: u64,
    total_sessions_expired: u64,
    /// Sessions ended before their time.
    total_terminated: u64,
    /// The longest the line was in the hours listed.
    peak_queue_size: u64,
    average_wait_seconds: Option<f64>,
    /// Admissions per second over the last five minutes, or since the queue was made or opened again.
    admission_rate: f64,
    last_admission: Option<String>,
    /// The same in milliseconds since 1970.
    last_admission_ms: Option<i64>,
    hours: Vec<HourView>,
}

impl StatsView {
    pub(super) fn of(stats: &Stats) -> StatsView {
        StatsView {
            queue_id: stats.queue.to_string(),
            status: stats.status.as_str(),
            total_waiting: stats.waiting,
            total_admitted_now: stats.admitted,
            total_active: stats.active,
            total_enqueued: stats.total.enqueued,
            total_admitted: stats.total.admitted,
            total_claimed: stats.total.claimed,
            total_expired: stats.total.expired,
            total_cancelled: stats.total.cancelled,
            total_no_shows: stats.total.no_shows,
            total_completed: stats.total.completed,
            total_sessions_expired: stats.total.sessions_expired,
            total_terminated: stats.total.terminated,
            peak_queue_size: stats.hours.iter().map(|h| h.peak_queue_size).max().unwrap_or(0),
            average_wait_seconds: stats.average_wait.map(|wait| wait.as_secs_f64()),
            admission_rate: stats.admission_rate,
            last_admission: stats.last_admission.map(|at| rfc3339(at.0)),
            last_admission_ms: stats.last_admission.map(|at| at.0),
            hours: stats
                .hours
                .iter()
                .map(|hour| {
                    let waits = hour.percentiles.map(|three| three.map(|wait| wait.as_secs_f64()));
                    HourView {
                        hour: hour.hour.clone(),
                        enqueued: hour.counts.enqueued,
                        admitted: hour.counts.admitted,
                        claimed: hour.counts.claimed,
                        expired: hour.counts.expired,
                        cancelled: hour.counts.cancelled,
                        no_shows: hour.counts.no_shows,
                        completed: hour.counts.completed,
                        sessions_expired: hour.counts.sessions_expired,
                        terminated: hour.counts.terminated,
                        peak_queue_size: hour.peak_queue_size,
                        average_wait_seconds: hour.average_wait.map(|wait| wait.as_secs()),
                        wait_p50_seconds: waits.map(|[half, ..]| half),
                        wait_p90_seconds: waits.map(|[_, most, _]| most),
                        wait_p99_seconds: waits.map(|[.., nearly_all]| nearly_all),
                    }
                })
                .collect(),
        }
    }
}
