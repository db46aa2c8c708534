//! Envoy's rate limit service (RLS v3) over gRPC: `ShouldRateLimit` of
//! `envoy.service.ratelimit.v3.RateLimitService`, on the HTTP port.
//!
//! Envoy sends a domain and descriptors; the rules of the domain decide (see `desk::limit`). A domain or
//! a descriptor without a rule is not limited. A forwarded address in the metadata is Envoy's own and
//! never an identity: only descriptors are.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use desk::limit::{
    CalendarPeriod, Descriptor, DescriptorDecision, DescriptorLimit, DescriptorState,
};
use prost::Message;
use web::auth::Principal;
use web::grpc::{self, GrpcMessage};
use web::rate_limit::{self, HeaderStyle, LimitReport};
use web::{ApiError, Routes};

use crate::api::require_scope;
use crate::error::DeskApiError;
use crate::service::DeskState;

/// Path of the one method.
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Most descriptors of a request.
const DESCRIPTORS_MAX: usize = 100;

/// The routes.
pub(crate) fn routes() -> Routes<DeskState> {
    // A check is no change that an audit trail has to tell.
    Routes { self_audited: Router::new().route(PATH, post(decide)).into(), ..Routes::default() }
}

async fn decide(
    State(state): State<DeskState>,
    principal: Principal,
    GrpcMessage(message): GrpcMessage,
) -> Result<Response, DeskApiError> {
    require_scope(&principal, "limits")?;
    let request = RateLimitRequest::decode(message)
        .map_err(|error| ApiError::invalid(format!("this is not a RateLimitRequest: {error}")))?;
    if request.domain.is_empty() {
        return Err(ApiError::invalid("the domain is empty; set it in Envoy's filter").into());
    }
    if request.descriptors.len() > DESCRIPTORS_MAX {
        let message = format!("at most {DESCRIPTORS_MAX} descriptors");
        return Err(ApiError::invalid(message).into());
    }
    let descriptors = request.descriptors()?;
    let decision = state.desk.book.check_descriptors(&request.domain, &descriptors).await?;
    let now = state.app.store().now();
    let style = state.app.limit_headers();
    let response = RateLimitResponse {
        overall_code: code(decision.allowed),
        statuses: decision.states.iter().map(|state| status(state.as_ref())).collect(),
        response_headers_to_add: headers(&request.domain, &decision, style, now),
    };
    Ok(grpc::reply(&response.encode_to_vec()))
}

/// Headers for Envoy to add to the response: those of a limited response. Envoy makes `X-RateLimit-*` by
/// itself where it is told to.
fn headers(
    domain: &str,
    decision: &DescriptorDecision,
    style: HeaderStyle,
    now: store::Millis,
) -> Vec<AddedHeader> {
    let told = decision.states.iter().flatten().filter(|state| !state.shadow);
    let reports: Vec<LimitReport> = told.map(|state| report(domain, state)).collect();
    let mut found = Vec::new();
    if style != HeaderStyle::Legacy {
        for (name, value) in rate_limit::headers(&reports, HeaderStyle::Standard, now) {
            if let Ok(value) = value.to_str() {
                found.push(AddedHeader { key: name.to_string(), value: value.to_owned() });
            }
        }
    }
    if !decision.allowed {
        let value = rate_limit::retry_after_seconds(&reports).to_string();
        found.push(AddedHeader { key: "retry-after".to_owned(), value });
    }
    found
}

fn report(domain: &str, state: &DescriptorState) -> LimitReport {
    let name = if state.name.is_empty() { domain } else { &state.name };
    // The name stands between quotes in a header.
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\') || c == ' ';
    LimitReport {
        policy: name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect(),
        limit: state.limit.requests_per_unit,
        window: Some(state.limit.unit.longest()),
        remaining: state.remaining,
        reset: state.reset,
        retry_after: if state.allowed { std::time::Duration::ZERO } else { state.retry_after },
    }
}

const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;

fn code(allowed: bool) -> i32 {
    if allowed { OK } else { OVER_LIMIT }
}

fn status(state: Option<&DescriptorState>) -> DescriptorStatus {
    let Some(state) = state else {
        return DescriptorStatus { code: OK, ..DescriptorStatus::default() };
    };
    let small = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    DescriptorStatus {
        code: code(state.allowed),
        current_limit: Some(CurrentLimit {
            requests_per_unit: small(state.limit.requests_per_unit),
            unit: number_of(state.limit.unit),
            name: state.name.clone(),
        }),
        limit_remaining: small(state.remaining),
        duration_until_reset: Some(ProtoDuration {
            seconds: i64::try_from(state.reset.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(state.reset.subsec_nanos()).unwrap_or(0),
        }),
    }
}

/// Units by their numbers in `RateLimitUnit`; the week is the last that was added.
const UNITS: [(i32, CalendarPeriod); 7] = [
    (1, CalendarPeriod::Second),
    (2, CalendarPeriod::Minute),
    (3, CalendarPeriod::Hour),
    (4, CalendarPeriod::Day),
    (5, CalendarPeriod::Month),
    (6, CalendarPeriod::Year),
    (7, CalendarPeriod::Week),
];

fn number_of(unit: CalendarPeriod) -> i32 {
    UNITS.iter().find(|(_, known)| *known == unit).map_or(0, |(number, _)| *number)
}

impl RateLimitRequest {
    fn descriptors(&self) -> Result<Vec<Descriptor>, ApiError> {
        self.descriptors.iter().map(|one| one.read(self.hits_addend)).collect()
    }
}

impl RateLimitDescriptor {
    fn read(&self, hits_of_request: u32) -> Result<Descriptor, ApiError> {
        let limit = match &self.limit {
            None => None,
            Some(own) => {
                let unit = UNITS.iter().find(|(number, _)| *number == own.unit);
                let Some((_, unit)) = unit else {
                    let message =
                        format!("the limit of a descriptor has the unknown unit {}", own.unit);
                    return Err(ApiError::invalid(message));
                };
                let requests_per_unit = own.requests_per_unit.into();
                Some(DescriptorLimit { requests_per_unit, unit: *unit })
            }
        };
        // Absent in the request means one; in a descriptor, zero is an explicit look.
        let hits = match &self.hits_addend {
            Some(own) => own.value,
            None => u64::from(hits_of_request.max(1)),
        };
        Ok(Descriptor {
            entries: self.entries.iter().map(|e| (e.key.clone(), e.value.clone())).collect(),
            limit,
            hits,
            is_refund: self.is_negative_hits,
        })
    }
}

/// `envoy.service.ratelimit.v3.RateLimitRequest`.
#[derive(Clone, PartialEq, Message)]
struct RateLimitRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
#[derive(Clone, PartialEq, Message)]
struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<DescriptorEntry>,
    #[prost(message, optional, tag = "2")]
    limit: Option<LimitOfDescriptor>,
    #[prost(message, optional, tag = "3")]
    hits_addend: Option<UnsignedValue>,
    #[prost(bool, tag = "4")]
    is_negative_hits: bool,
}

/// `RateLimitDescriptor.Entry`.
#[derive(Clone, PartialEq, Message)]
struct DescriptorEntry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// `RateLimitDescriptor.RateLimitOverride`.
#[derive(Clone, Copy, PartialEq, Message)]
struct LimitOfDescriptor {
    #[prost(uint32, tag = "1")]
    requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    unit: i32,
}

/// `google.protobuf.UInt64Value`.
#[derive(Clone, Copy, PartialEq, Message)]
struct UnsignedValue {
    #[prost(uint64, tag = "1")]
    value: u64,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse`.
#[derive(Clone, PartialEq, Message)]
struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    response_headers_to_add: Vec<AddedHeader>,
}

/// `RateLimitResponse.DescriptorStatus`.
#[derive(Clone, PartialEq, Message)]
struct DescriptorStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(message, optional, tag = "2")]
    current_limit: Option<CurrentLimit>,
    #[prost(uint32, tag = "3")]
    limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    duration_until_reset: Option<ProtoDuration>,
}

/// `RateLimitResponse.RateLimit`.
#[derive(Clone, PartialEq, Message)]
struct CurrentLimit {
    #[prost(uint32, tag = "1")]
    requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    unit: i32,
    #[prost(string, tag = "3")]
    name: String,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Message)]
struct ProtoDuration {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, Message)]
struct AddedHeader {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: String = text.split_whitespace().collect();
        let pairs = digits.as_bytes().chunks(2);
        pairs
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    /// The lines of the golden file: a name, then bytes in hex.
    fn golden(name: &str) -> Vec<u8> {
        let text = include_str!("../tests/golden/rls.txt");
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        hex(line.unwrap_or_else(|| panic!("no {name}")))
    }

    #[test]
    fn requests_of_envoy_are_read_byte_for_byte() {
        let request = RateLimitRequest::decode(golden("request").as_slice()).unwrap();
        assert_eq!(request.encode_to_vec(), golden("request"));
        let [one] = request.descriptors().unwrap().try_into().unwrap();
        assert_eq!((request.domain.as_str(), one.hits, one.is_refund), ("web", 1, false));
        assert_eq!(one.entries, [("remote_address".to_owned(), "127.0.0.1".to_owned())]);

        let request =
            RateLimitRequest::decode(golden("request with all fields").as_slice()).unwrap();
        assert_eq!(request.encode_to_vec(), golden("request with all fields"));
        let [own, refund, plain] = request.descriptors().unwrap().try_into().unwrap();
        let limit = DescriptorLimit { requests_per_unit: 7, unit: CalendarPeriod::Year };
        assert_eq!((own.limit, own.hits), (Some(limit), 3));
        assert_eq!((refund.limit, refund.hits, refund.is_refund), (None, 2, true));
        assert_eq!((plain.hits, plain.is_refund), (5, false), "of the request");
    }

    #[test]
    fn answers_are_written_byte_for_byte() {
        let state = DescriptorState {
            allowed: false,
            limit: DescriptorLimit { requests_per_unit: 5, unit: CalendarPeriod::Minute },
            name: "per address".to_owned(),
            shadow: false,
            remaining: 0,
            reset: Duration::from_millis(1_500),
            retry_after: Duration::from_millis(1_500),
        };
        let decision =
            DescriptorDecision { allowed: false, states: vec![Some(state), None], degraded: false };
        let response = RateLimitResponse {
            overall_code: code(decision.allowed),
            statuses: decision.states.iter().map(|state| status(state.as_ref())).collect(),
            response_headers_to_add: headers("web", &decision, HeaderStyle::Both, store::Millis(0)),
        };
        assert_eq!(response.encode_to_vec(), golden("response"));
        assert_eq!(RateLimitResponse::decode(golden("response").as_slice()).unwrap(), response);
    }

    #[test]
    fn an_unknown_unit_is_refused() {
        let own = LimitOfDescriptor { requests_per_unit: 1, unit: 9 };
        let one = RateLimitDescriptor { limit: Some(own), ..RateLimitDescriptor::default() };
        assert!(one.read(0).unwrap_err().message().contains("unknown unit 9"));
    }
}
