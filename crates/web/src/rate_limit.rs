//! Rate limits as clients see them: the headers of a limited response and the error of a denial, the
//! same for every service; and the limits that a service keeps for the whole product.
//!
//! The headers are those of draft-ietf-httpapi-ratelimit-headers-11, `RateLimit-Policy` and
//! `RateLimit`, and the older `X-RateLimit-*`. Invariant: a client that waits as long as
//! `Retry-After` says is allowed, if it is alone.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use serde_json::json;
use store::Millis;
use store::limit::header;

use crate::app::App;
use crate::client::Client;
use crate::error::ApiError;

/// The draft's problem type of a denial.
pub const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const X_RATE_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_RATE_LIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RATE_LIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The policy of public routes that have no limit of their own.
const API_POLICY: &str = "api";

crate::words! {
    /// The headers of a limited response.
    HeaderStyle {
        /// `RateLimit-Policy` and `RateLimit`.
        Standard = "standard",
        /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`.
        Legacy = "legacy",
        /// Both.
        Both = "both",
    }
}

/// One policy after a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitReport {
    /// Name of the policy.
    pub policy: String,
    /// The most that can be free.
    pub limit: u64,
    /// Time over which the limit counts; none for a number of requests at once.
    pub window: Option<Duration>,
    /// Units free now.
    pub remaining: u64,
    /// Time until one more unit is free; zero when all are.
    pub reset: Duration,
    /// Time until this policy would allow the request; zero when it does now.
    pub retry_after: Duration,
}

/// The decision about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitVerdict {
    /// May it go ahead?
    pub allowed: bool,
    /// Each policy after this request.
    pub limits: Vec<LimitReport>,
}

impl LimitVerdict {
    /// Returns the headers of the response.
    pub fn headers(&self, style: HeaderStyle, now: Millis) -> Vec<(HeaderName, HeaderValue)> {
        headers(&self.limits, style, now)
    }

    /// Returns the error of a denied request, headers included.
    pub fn to_error(
        &self,
        message: impl Into<String>,
        style: HeaderStyle,
        now: Millis,
    ) -> ApiError {
        denial(&self.limits, message, style, now)
    }
}

/// Returns the headers that tell the state of limits.
pub fn headers(
    limits: &[LimitReport],
    style: HeaderStyle,
    now: Millis,
) -> Vec<(HeaderName, HeaderValue)> {
    let mut found = Vec::with_capacity(5);
    if style != HeaderStyle::Legacy && !limits.is_empty() {
        let mut put = |name: HeaderName, item: fn(&LimitReport) -> String| {
            let items: Vec<String> = limits.iter().map(item).collect();
            // Names of policies are plain, so the value always fits a header.
            if let Ok(value) = HeaderValue::try_from(items.join(", ")) {
                found.push((name, value));
            }
        };
        put(RATE_LIMIT_POLICY, policy_item);
        put(RATE_LIMIT, state_item);
    }
    if style != HeaderStyle::Standard
        && let Some(tightest) = tightest(limits)
    {
        let reset =
            i64::try_from(wait_seconds(tightest)).unwrap_or(0).saturating_add(now.as_secs());
        found.push((X_RATE_LIMIT, tightest.limit.into()));
        found.push((X_RATE_LIMIT_REMAINING, tightest.remaining.into()));
        found.push((X_RATE_LIMIT_RESET, reset.into()));
    }
    found
}

/// Returns the error of a denied request: 429 `RATE_LIMITED` with `Retry-After` and the headers.
pub fn denial(
    limits: &[LimitReport],
    message: impl Into<String>,
    style: HeaderStyle,
    now: Millis,
) -> ApiError {
    let denying = limits.iter().max_by_key(|limit| limit.retry_after);
    let policy = denying.map_or("", |limit| limit.policy.as_str());
    let retry = denying.map(|limit| limit.retry_after).unwrap_or_default();
    let violated: Vec<&str> = limits
        .iter()
        .filter(|limit| limit.retry_after > Duration::ZERO)
        .map(|limit| limit.policy.as_str())
        .collect();
    let error = ApiError::rate_limited(message, retry_after_seconds(limits)).details(json!({
        "policy": policy,
        "retry_after_ms": u64::try_from(retry.as_millis()).unwrap_or(u64::MAX),
        "type": QUOTA_EXCEEDED,
        "violated_policies": violated,
    }));
    let each = headers(limits, style, now).into_iter();
    each.fold(error, |error, (name, value)| error.header(name, value))
}

/// Returns the `Retry-After` of a denial: at least 1, and never earlier than a denying policy's `t`.
pub fn retry_after_seconds(limits: &[LimitReport]) -> u64 {
    let denying = limits.iter().filter(|limit| limit.retry_after > Duration::ZERO);
    denying.map(wait_seconds).max().unwrap_or(0).max(1)
}

/// `"api";q=100;w=900`
fn policy_item(limit: &LimitReport) -> String {
    header::policy_item(&limit.policy, limit.limit, limit.window)
}

/// `"api";r=42;t=311`
fn state_item(limit: &LimitReport) -> String {
    header::state_item(&limit.policy, limit.remaining, limit.reset.max(limit.retry_after))
}

/// Seconds until more is free, and if the policy denied, until it would not.
fn wait_seconds(limit: &LimitReport) -> u64 {
    header::ceil_seconds(limit.reset.max(limit.retry_after))
}

/// The policy with the smallest share left, and of equal ones the one that takes longest.
fn tightest(limits: &[LimitReport]) -> Option<&LimitReport> {
    let share = |limit: &LimitReport| {
        // Per mille is as fine as a header needs.
        u128::from(limit.remaining) * 1_000 / u128::from(limit.limit.max(1))
    };
    limits.iter().min_by_key(|limit| (share(limit), std::cmp::Reverse(limit.retry_after)))
}

/// The one a request is charged to.
#[derive(Debug, Clone, Copy)]
pub enum LimitSubject<'a> {
    /// The client's address.
    Address(IpAddr),
    /// Anything else that the caller names, such as the account of a login.
    Key(&'a str),
}

/// Limits that a service keeps for the whole product.
pub trait RequestLimiter: fmt::Debug + Send + Sync {
    /// Charges a request to a policy by name; `None` if there is no such policy.
    fn charge<'a>(
        &'a self,
        policy: &'a str,
        subject: LimitSubject<'a>,
    ) -> BoxFuture<'a, Option<LimitVerdict>>;

    /// Forgets what was charged to a policy, such as failed logins after a good one.
    fn forgive<'a>(&'a self, policy: &'a str, subject: LimitSubject<'a>) -> BoxFuture<'a, ()>;

    /// Returns the headers that limited responses have.
    fn header_style(&self) -> HeaderStyle;
}

/// The middleware around public routes that have no limit of their own.
pub(crate) async fn limit_public(
    State(app): State<App>,
    client: Client,
    request: Request,
    next: Next,
) -> Response {
    let Some(limiter) = app.limiter() else { return next.run(request).await };
    let charged = limiter.charge(API_POLICY, LimitSubject::Address(client.ip)).await;
    let Some(verdict) = charged else { return next.run(request).await };
    let (style, now) = (limiter.header_style(), app.store().now());
    if !verdict.allowed {
        let message = "too many requests from your address; wait as long as Retry-After says";
        return verdict.to_error(message, style, now).into_response();
    }
    let mut response = next.run(request).await;
    // A limit of the route's own has told its state already.
    if response.status() != StatusCode::TOO_MANY_REQUESTS {
        response.headers_mut().extend(verdict.headers(style, now));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(policy: &str, remaining: u64, reset_ms: u64, retry_ms: u64) -> LimitReport {
        LimitReport {
            policy: policy.to_owned(),
            limit: 100,
            window: Some(Duration::from_secs(900)),
            remaining,
            reset: Duration::from_millis(reset_ms),
            retry_after: Duration::from_millis(retry_ms),
        }
    }

    fn texts(limits: &[LimitReport], style: HeaderStyle) -> Vec<(String, String)> {
        let found = headers(limits, style, Millis(1_000_000));
        let text = |value: HeaderValue| value.to_str().unwrap().to_owned();
        found.into_iter().map(|(name, value)| (name.to_string(), text(value))).collect()
    }

    #[test]
    fn headers_are_the_drafts_and_list_every_policy() {
        let burst = LimitReport {
            limit: 20,
            window: Some(Duration::from_millis(300)),
            ..report("burst", 7, 1, 0)
        };
        let at_once = LimitReport { limit: 3, window: None, ..report("uploads", 1, 0, 0) };
        let found = texts(&[report("api", 42, 310_001, 0), burst, at_once], HeaderStyle::Standard);
        assert_eq!(found, [
            ("ratelimit-policy".to_owned(), "\"api\";q=100;w=900, \"burst\";q=20;w=1, \"uploads\";q=3;qu=\"concurrent-requests\"".to_owned()),
            ("ratelimit".to_owned(), "\"api\";r=42;t=311, \"burst\";r=7;t=1, \"uploads\";r=1;t=0".to_owned()),
        ]);
    }

    #[test]
    fn older_headers_tell_the_tightest_policy() {
        let limits = [report("api", 42, 5_000, 0), report("login", 3, 60_000, 0)];
        let found = texts(&limits, HeaderStyle::Legacy);
        assert_eq!(
            found,
            [
                ("x-ratelimit-limit", "100"),
                ("x-ratelimit-remaining", "3"),
                ("x-ratelimit-reset", "1060")
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        assert_eq!(texts(&limits, HeaderStyle::Both).len(), 5);
        assert!(texts(&[], HeaderStyle::Both).is_empty());
    }

    #[test]
    fn a_denial_says_when_to_come_back_and_never_too_early() {
        let limits = [report("api", 0, 1, 1), report("login", 0, 2_500, 2_001)];
        let error = denial(&limits, "no", HeaderStyle::Both, Millis(0));
        assert_eq!(retry_after_seconds(&limits), 3);
        assert!(error.is_refusal());
        let body = serde_json::to_value(error.body("r")).unwrap();
        assert_eq!(body["error"]["details"]["policy"], "login");
        assert_eq!(body["error"]["details"]["retry_after_ms"], 2_001);
        assert_eq!(body["error"]["details"]["type"], QUOTA_EXCEEDED);
        assert_eq!(retry_after_seconds(&[report("api", 0, 0, 1)]), 1, "at least a second");
    }
}
