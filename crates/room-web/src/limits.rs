//! Rate limits of visitors as HTTP tells them. Enqueueing is counted per network, polling per position, by
//! all instances together. Calls and page loads count separately, so that reloading the page
//! does not use up the polls of its script.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::response::Response;
use room::{CheckOutcome, POLLS_PER_MINUTE, PositionToken, Room};
use store::limit::header;
use web::ApiError;
use web::auth::random_hex;
use web::client::Client;
use web::rate_limit::{self, LimitReport};

use crate::error::RoomApiError;
use crate::service::RoomState;

/// Window of both limits, as the headers report it.
const WINDOW: Duration = Duration::from_secs(60);

/// State of a rate limit after a call, as the headers report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateLimitState {
    policy: &'static str,
    /// Calls allowed in [`WINDOW`].
    limit: u32,
    remaining: u64,
    /// Seconds until more is free, or until the call would be allowed.
    reset: u64,
}

impl RateLimitState {
    fn of(policy: &'static str, limit: u32, outcome: &CheckOutcome) -> RateLimitState {
        let reset = match outcome.allowed {
            true => header::ceil_seconds(outcome.next),
            false => header::ceil_seconds(outcome.retry).max(1),
        };
        RateLimitState { policy, limit, remaining: outcome.remaining, reset }
    }

    fn report(self, is_denied: bool) -> LimitReport {
        let reset = Duration::from_secs(self.reset);
        LimitReport {
            policy: self.policy.to_owned(),
            limit: self.limit.into(),
            window: Some(WINDOW),
            remaining: self.remaining,
            reset,
            retry_after: if is_denied { reset } else { Duration::ZERO },
        }
    }

    /// Adds the rate-limit headers to a response.
    pub(crate) fn add_headers(self, state: &RoomState, response: &mut Response) {
        let (style, now) = (state.app.limit_headers(), state.app.store().now());
        response.headers_mut().extend(rate_limit::headers(&[self.report(false)], style, now));
    }

    fn to_error(self, state: &RoomState, message: &str) -> ApiError {
        let (style, now) = (state.app.limit_headers(), state.app.store().now());
        rate_limit::denial(&[self.report(true)], message, style, now)
    }
}

/// Charges an enqueue to a network; `None` if they are not limited.
pub(crate) async fn charge_enqueue(
    state: &RoomState,
    room: &Room,
    client: &Client,
    request_id: &str,
) -> Result<Option<RateLimitState>, RoomApiError> {
    let most = state.enqueues_per_minute.load(Ordering::Relaxed);
    if most == 0 {
        return Ok(None);
    }
    let network = room.client_of(client.bucket()).await?;
    // The id is ours, never the request's: a repeated one from outside would count once.
    let id = random_hex::<16>()?;
    let outcome = room.charge_call(&network, "enqueue", most, WINDOW, &id).await?;
    let limit = RateLimitState::of("enqueue", most, &outcome);
    match outcome.allowed {
        true => Ok(Some(limit)),
        false => {
            tracing::debug!(request_id, network, "too many enqueues");
            metrics::counter!("tidegate_room_network_limited_total").increment(1);
            Err(limit.to_error(state, "too many visitors from your network enqueued in the last minute; try again later").into())
        }
    }
}

/// Kind of a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollKind {
    /// An API call.
    Call,
    /// A page load.
    Page,
}

impl PollKind {
    /// Returns the action under which the store counts it.
    fn action(self) -> &'static str {
        match self {
            PollKind::Call => "poll",
            PollKind::Page => "page",
        }
    }
}

/// Charges a poll to a position.
pub(crate) async fn charge_poll(
    state: &RoomState,
    room: &Room,
    held: &PositionToken,
    kind: PollKind,
) -> Result<RateLimitState, RoomApiError> {
    let outcome = room.charge_poll(&held.position, kind.action()).await?;
    let limit = RateLimitState::of("poll", POLLS_PER_MINUTE, &outcome);
    match outcome.allowed {
        true => Ok(limit),
        false => Err(limit.to_error(state, "too many polls; wait for next_poll_ms").into()),
    }
}
