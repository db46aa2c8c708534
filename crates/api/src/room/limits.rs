//! How often visitors may call. Joining is counted per network in the store, on the documented
//! keys, and polling per place, so all instances count together. Polling is the hot path: an instance
//! draws a few units of a place at once and spends them without the store; while the store is away it
//! counts alone. Calls and page loads count apart, so that whoever loads the page again and again does
//! not use up what its script needs.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use parking_lot::Mutex;
use room::{PlaceToken, PositionId, Room};
use tokio::time::Instant;

use crate::app::App;
use crate::auth::random_hex;
use crate::client::Client;
use crate::error::ApiError;

/// Polls of one place at once, and how many come back in a minute. Far above what the server tells
/// anybody to do.
const POLL_BURST: u32 = 30;
const POLLS_PER_MINUTE: u32 = 60;
/// Places remembered per shard; beyond it the shard starts anew.
const PER_SHARD: usize = 16_384;
const SHARDS: usize = 16;
/// Units drawn from the store at once, and how long they may be spent here.
const DRAW: u32 = 5;
const DRAW_LASTS: Duration = Duration::from_secs(30);

/// One limit after a call, as the headers tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    limit: u32,
    remaining: u32,
    /// Seconds until more is free.
    reset: u64,
}

impl Left {
    fn headers(self, now_s: i64) -> [(HeaderName, HeaderValue); 3] {
        let reset = now_s + i64::try_from(self.reset).unwrap_or(0);
        [
            (HeaderName::from_static("x-ratelimit-limit"), HeaderValue::from(self.limit)),
            (HeaderName::from_static("x-ratelimit-remaining"), HeaderValue::from(self.remaining)),
            (HeaderName::from_static("x-ratelimit-reset"), HeaderValue::from(reset)),
        ]
    }

    /// Tells the caller in a response.
    pub(crate) fn tell(self, app: &App, response: &mut Response) {
        response.headers_mut().extend(self.headers(app.store().now().as_secs()));
    }

    fn refuse(self, app: &App, message: &str) -> ApiError {
        let error = ApiError::rate_limited(message, self.reset);
        self.headers(app.store().now().as_secs())
            .into_iter()
            .fold(error, |error, (name, value)| error.header(name, value))
    }
}

/// Counts a join by a network; none if joins are not limited.
pub(crate) async fn join(
    app: &App,
    room: &Room,
    client: &Client,
    request_id: &str,
) -> Result<Option<Left>, ApiError> {
    let most = app.settings().room_joins_per_minute;
    if most == 0 {
        return Ok(None);
    }
    let network = room.client_of(client.bucket()).await?;
    let minute = Duration::from_secs(60);
    // The id is ours, never the request's: one from outside would let many joins count once.
    let id = random_hex::<16>()?;
    let verdict = room.take_limit(&network, "enqueue", most, minute, &id).await?;
    let state = verdict.tightest();
    let left = Left {
        limit: most,
        remaining: state.map_or(0, |state| state.remaining),
        reset: state.map_or(1, |state| match verdict.allowed {
            true => state.next.as_secs(),
            false => state.retry.as_secs() + 1,
        }),
    };
    match verdict.allowed {
        true => Ok(Some(left)),
        false => {
            tracing::debug!(request_id, network, "too many joins");
            Err(left.refuse(app, "too many from your network join at once; wait a little"))
        }
    }
}

/// How the holder of a place asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Asks {
    /// A call of the API.
    Call,
    /// A load of the page.
    Page,
}

impl Asks {
    /// The action the store counts it under.
    fn action(self) -> &'static str {
        match self {
            Asks::Call => "poll",
            Asks::Page => "page",
        }
    }
}

/// Polls counted in this process.
#[derive(Debug, Default)]
pub(crate) struct Polls {
    hasher: RandomState,
    shards: [Mutex<HashMap<Key, Bucket>>; SHARDS],
    /// What was drawn from the store.
    drawn: [Mutex<HashMap<Key, Drawn>>; SHARDS],
}

/// What the store last said about a place.
#[derive(Debug, Clone, Copy)]
struct Drawn {
    /// Units paid for there and not spent here.
    units: u32,
    /// There were none to draw.
    refused: bool,
    left: Left,
    /// Until when this counts: how long the units may be spent, or when the next is free.
    until: Instant,
}

/// The place that asks, and how.
type Key = (PositionId, Asks);

#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Polls {
    /// Counts a poll by the holder of a place.
    pub(crate) async fn take(
        &self,
        app: &App,
        room: &Room,
        held: &PlaceToken,
        how: Asks,
    ) -> Result<Left, ApiError> {
        let key = (held.position, how);
        let left = match self.spend(key, Instant::now()) {
            Some(left) => left,
            None => match draw(room, key).await {
                Ok(drawn) => self.put(key, drawn),
                Err(error) => {
                    tracing::debug!(%error, "polls are counted by this instance alone");
                    self.count(key, Instant::now())
                }
            },
        };
        match left {
            Ok(left) => Ok(left),
            Err(left) => Err(left.refuse(app, "you ask too often; see next_poll_ms")),
        }
    }

    /// Spends a unit that was drawn, or repeats a refusal that still holds; `None` asks for a draw.
    fn spend(&self, key: Key, now: Instant) -> Option<Result<Left, Left>> {
        let mut shard = self.shard(&self.drawn, key).lock();
        let drawn = shard.get_mut(&key).filter(|drawn| drawn.until > now)?;
        match drawn.units.checked_sub(1) {
            Some(units) => {
                drawn.units = units;
                Some(Ok(Left { remaining: drawn.left.remaining + units, ..drawn.left }))
            }
            None => drawn.refused.then_some(Err(drawn.left)),
        }
    }

    /// Keeps what was drawn for a poll and for those that follow.
    fn put(&self, key: Key, drawn: Drawn) -> Result<Left, Left> {
        let mut shard = self.shard(&self.drawn, key).lock();
        if shard.len() >= PER_SHARD {
            shard.clear();
        }
        shard.insert(key, drawn);
        match drawn.refused {
            true => Err(drawn.left),
            false => Ok(Left { remaining: drawn.left.remaining + drawn.units, ..drawn.left }),
        }
    }

    fn shard<'a, T>(&self, shards: &'a [Mutex<T>; SHARDS], key: Key) -> &'a Mutex<T> {
        let index = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0);
        let [first, ..] = shards;
        shards.get(index).unwrap_or(first)
    }

    fn count(&self, key: Key, now: Instant) -> Result<Left, Left> {
        let mut shard = self.shard(&self.shards, key).lock();
        if shard.len() >= PER_SHARD {
            shard.clear();
        }
        let (burst, per_second) = (f64::from(POLL_BURST), f64::from(POLLS_PER_MINUTE) / 60.0);
        let bucket = shard.entry(key).or_insert(Bucket { tokens: burst, at: now });
        let passed = now.saturating_duration_since(bucket.at).as_secs_f64();
        bucket.tokens = (bucket.tokens + passed * per_second).min(burst);
        bucket.at = now;
        let allowed = bucket.tokens >= 1.0;
        if allowed {
            bucket.tokens -= 1.0;
        }
        let left = Left {
            limit: POLLS_PER_MINUTE,
            remaining: bucket.tokens as u32,
            reset: (((1.0 - bucket.tokens).max(0.0)) / per_second).ceil() as u64,
        };
        if allowed { Ok(left) } else { Err(Left { reset: left.reset.max(1), ..left }) }
    }
}

/// Draws units of a place from the store: a few, or one when there are not as many. The first is
/// spent by the poll that draws.
async fn draw(room: &Room, (position, how): Key) -> Result<Drawn, room::Error> {
    let id = format!("{:032x}", fastrand::u128(..));
    let bucket = (POLL_BURST, POLLS_PER_MINUTE);
    let mut cost = DRAW;
    let mut verdict = room.draw_units(&position, how.action(), bucket, cost, &id).await?;
    if !verdict.allowed {
        cost = 1;
        verdict = room.draw_units(&position, how.action(), bucket, cost, &id).await?;
    }
    let state = verdict.tightest();
    let wait = match verdict.allowed {
        true => state.map_or(Duration::ZERO, |state| state.next),
        false => verdict.retry().max(Duration::from_millis(1)),
    };
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    Ok(Drawn {
        units: if verdict.allowed { cost - 1 } else { 0 },
        refused: !verdict.allowed,
        left: Left {
            limit: POLLS_PER_MINUTE,
            remaining: state.map_or(0, |state| state.remaining),
            reset: if verdict.allowed { seconds } else { seconds.max(1) },
        },
        until: Instant::now() + if verdict.allowed { DRAW_LASTS } else { wait },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_polls_as_told_is_never_refused_and_one_that_hammers_is() {
        let polls = Polls::default();
        let start = Instant::now();
        let place = |n: u8| (PositionId::from_bytes([n; 16]), Asks::Call);
        for n in 0..200 {
            let at = start + Duration::from_millis(5_000 * n);
            assert!(polls.count(place(1), at).is_ok(), "every five seconds, the least ever told");
        }
        let refused = (0..100).filter(|_| polls.count(place(2), start).is_err()).count();
        assert_eq!(refused, 70, "all but the burst");
        let left = polls.count(place(2), start).unwrap_err();
        assert_eq!((left.remaining, left.reset), (0, 1));
        assert!(polls.count(place(3), start).is_ok(), "another place is not touched");
        let page = (place(2).0, Asks::Page);
        assert!(polls.count(page, start).is_ok(), "nor is the page of the same one");
        assert!(polls.count(place(2), start + Duration::from_secs(1)).is_ok());
    }
}
