//! Rate limits of visitors. Enqueueing is counted per network in the store, on the keys of the schema,
//! and polling per position, so all instances count together. Polling is the hot path: an instance
//! draws a few tokens of a position's bucket at once and spends them without the store; while the store
//! is unavailable it counts alone. Calls and page loads count separately, so that reloading the page
//! does not use up the polls of its script.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

use axum::response::Response;
use parking_lot::Mutex;
use room::{PositionId, PositionToken, Room};
use tokio::time::Instant;

use crate::service::RoomState;
use std::sync::atomic::Ordering;

use crate::error::RoomApiError;
use web::ApiError;
use web::auth::random_hex;
use web::client::Client;
use web::rate_limit::{self, LimitReport};

/// Burst and rate of polls per position. Far above the interval the server asks for.
const POLL_BURST: u32 = 30;
const POLLS_PER_MINUTE: u32 = 60;
/// Positions per shard; a full shard is cleared.
const SHARD_CAPACITY: usize = 16_384;
const SHARDS: usize = 16;
/// Tokens drawn from the store at once, and the time in which they may be spent.
const DRAW_UNITS: u32 = 8;
const DRAW_LIFETIME: Duration = Duration::from_secs(60);

/// Window of both limits, as the headers report it.
const WINDOW: Duration = Duration::from_secs(60);

/// State of a rate limit after a call, as the headers report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateLimitState {
    policy: &'static str,
    limit: u32,
    remaining: u32,
    /// Seconds until more is free.
    reset: u64,
}

impl RateLimitState {
    fn report(self, is_denied: bool) -> LimitReport {
        let reset = Duration::from_secs(self.reset);
        LimitReport {
            policy: self.policy.to_owned(),
            limit: self.limit.into(),
            window: Some(WINDOW),
            remaining: self.remaining.into(),
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
    let minute = Duration::from_secs(60);
    // The id is ours, never the request's: a repeated one from outside would count once.
    let id = random_hex::<16>()?;
    let verdict = room.take_limit(&network, "enqueue", most, minute, &id).await?;
    let tightest = verdict.tightest();
    let limit = RateLimitState {
        policy: "enqueue",
        limit: most,
        remaining: tightest.map_or(0, |limit| limit.remaining),
        reset: tightest.map_or(1, |limit| match verdict.allowed {
            true => limit.next.as_secs(),
            false => limit.retry.as_secs() + 1,
        }),
    };
    match verdict.allowed {
        true => Ok(Some(limit)),
        false => {
            tracing::debug!(request_id, network, "too many enqueues");
            metrics::counter!("tidegate_room_network_limited_total").increment(1);
            Err(limit.to_error(state, "too many visitors from your network enqueued in the last minute; try again later").into())
        }
    }
}

/// Kind of a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

/// Rate limiter of polls.
#[derive(Debug, Default)]
pub(crate) struct PollLimiter {
    hasher: RandomState,
    shards: [Mutex<HashMap<PollKey, PollBucket>>; SHARDS],
    /// Tokens drawn from the store.
    drawn: [Mutex<HashMap<PollKey, DrawnUnits>>; SHARDS],
}

/// Last draw of a position.
#[derive(Debug, Clone, Copy)]
struct DrawnUnits {
    /// Tokens left to spend.
    units: u32,
    /// The store had none.
    refused: bool,
    limit: RateLimitState,
    /// Time until which this is valid: the tokens may be spent, or the next one is free.
    until: Instant,
}

/// Position and kind of poll.
type PollKey = (PositionId, PollKind);

#[derive(Debug, Clone, Copy)]
struct PollBucket {
    tokens: f64,
    at: Instant,
}

impl PollLimiter {
    /// Charges a poll to a position.
    pub(crate) async fn take(
        &self,
        state: &RoomState,
        room: &Room,
        held: &PositionToken,
        how: PollKind,
    ) -> Result<RateLimitState, RoomApiError> {
        let key = (held.position, how);
        let limit = match self.spend(key, Instant::now()) {
            Some(limit) => limit,
            None => match draw(room, key).await {
                Ok(drawn) => self.put(key, drawn),
                Err(error) => {
                    tracing::debug!(%error, "the store is unavailable; polls are counted by this instance alone");
                    self.count(key, Instant::now())
                }
            },
        };
        match limit {
            Ok(limit) => Ok(limit),
            Err(limit) => {
                Err(limit.to_error(state, "too many polls; wait for next_poll_ms").into())
            }
        }
    }

    /// Spends a drawn token, or repeats a refusal that still holds; `None` if a draw is needed.
    fn spend(&self, key: PollKey, now: Instant) -> Option<Result<RateLimitState, RateLimitState>> {
        let mut shard = self.shard(&self.drawn, key).lock();
        let drawn = shard.get_mut(&key).filter(|drawn| drawn.until > now)?;
        match drawn.units.checked_sub(1) {
            Some(units) => {
                drawn.units = units;
                Some(Ok(RateLimitState { remaining: drawn.limit.remaining + units, ..drawn.limit }))
            }
            None => drawn.refused.then_some(Err(drawn.limit)),
        }
    }

    /// Stores a draw for the polls that follow.
    fn put(&self, key: PollKey, drawn: DrawnUnits) -> Result<RateLimitState, RateLimitState> {
        let mut shard = self.shard(&self.drawn, key).lock();
        if shard.len() >= SHARD_CAPACITY {
            shard.clear();
        }
        shard.insert(key, drawn);
        match drawn.refused {
            true => Err(drawn.limit),
            false => {
                Ok(RateLimitState { remaining: drawn.limit.remaining + drawn.units, ..drawn.limit })
            }
        }
    }

    fn shard<'a, T>(&self, shards: &'a [Mutex<T>; SHARDS], key: PollKey) -> &'a Mutex<T> {
        let index = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0);
        let [first, ..] = shards;
        shards.get(index).unwrap_or(first)
    }

    fn count(&self, key: PollKey, now: Instant) -> Result<RateLimitState, RateLimitState> {
        let mut shard = self.shard(&self.shards, key).lock();
        if shard.len() >= SHARD_CAPACITY {
            shard.clear();
        }
        let (burst, per_second) = (f64::from(POLL_BURST), f64::from(POLLS_PER_MINUTE) / 60.0);
        let bucket = shard.entry(key).or_insert(PollBucket { tokens: burst, at: now });
        let passed = now.saturating_duration_since(bucket.at).as_secs_f64();
        bucket.tokens = (bucket.tokens + passed * per_second).min(burst);
        bucket.at = now;
        let allowed = bucket.tokens >= 1.0;
        if allowed {
            bucket.tokens -= 1.0;
        }
        let limit = RateLimitState {
            policy: "poll",
            limit: POLLS_PER_MINUTE,
            remaining: bucket.tokens as u32,
            reset: (((1.0 - bucket.tokens).max(0.0)) / per_second).ceil() as u64,
        };
        if allowed { Ok(limit) } else { Err(RateLimitState { reset: limit.reset.max(1), ..limit }) }
    }
}

/// Draws tokens of a position from the store: a few, or one if there are not as many. The poll that
/// draws spends the first.
async fn draw(room: &Room, (position, how): PollKey) -> Result<DrawnUnits, room::Error> {
    let id = format!("{:032x}", fastrand::u128(..));
    let bucket = (POLL_BURST, POLLS_PER_MINUTE);
    let mut cost = DRAW_UNITS;
    let mut verdict = room.draw_units(&position, how.action(), bucket, cost, &id).await?;
    if !verdict.allowed {
        cost = 1;
        verdict = room.draw_units(&position, how.action(), bucket, cost, &id).await?;
    }
    let tightest = verdict.tightest();
    let wait = match verdict.allowed {
        true => tightest.map_or(Duration::ZERO, |limit| limit.next),
        false => verdict.retry().max(Duration::from_millis(1)),
    };
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    Ok(DrawnUnits {
        units: if verdict.allowed { cost - 1 } else { 0 },
        refused: !verdict.allowed,
        limit: RateLimitState {
            policy: "poll",
            limit: POLLS_PER_MINUTE,
            remaining: tightest.map_or(0, |limit| limit.remaining),
            reset: if verdict.allowed { seconds } else { seconds.max(1) },
        },
        until: Instant::now() + if verdict.allowed { DRAW_LIFETIME } else { wait },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_polls_as_told_is_never_refused_and_one_that_hammers_is() {
        let polls = PollLimiter::default();
        let start = Instant::now();
        let position = |n: u8| (PositionId::from_bytes([n; 16]), PollKind::Call);
        for n in 0..200 {
            let at = start + Duration::from_millis(5_000 * n);
            assert!(
                polls.count(position(1), at).is_ok(),
                "every five seconds, the least ever told"
            );
        }
        let refused = (0..100).filter(|_| polls.count(position(2), start).is_err()).count();
        assert_eq!(refused, 70, "all but the burst");
        let limit = polls.count(position(2), start).unwrap_err();
        assert_eq!((limit.remaining, limit.reset), (0, 1));
        assert!(polls.count(position(3), start).is_ok(), "another position is not touched");
        let page = (position(2).0, PollKind::Page);
        assert!(polls.count(page, start).is_ok(), "nor is the page of the same one");
        assert!(polls.count(position(2), start + Duration::from_secs(1)).is_ok());
    }
}
