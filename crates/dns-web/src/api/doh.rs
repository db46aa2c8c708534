//! DNS over HTTPS, RFC 8484: `/dns-query` and `/dns-query/{client}`.
//!
//! Bytes and client go to the resolver, bytes come back. Errors are plain text; the common envelope is
//! for clients that ask for JSON. Not in the OpenAPI document, which is about JSON.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use dns::{QueryClient, QueryProtocol, Resolver};
use domain::base::iana::OptRcode;
use domain::base::{Message, ParsedRecord, Rtype};
use http_body_util::{BodyExt as _, Limited};
use web::direct::DirectRequest;
use web::{ApiError, App, Routes};

use crate::service::DnsState;

/// Longest query that is taken: a question with options is far shorter.
const QUERY_MAX_BYTES: usize = 4_096;

const DNS_MESSAGE: &str = "application/dns-message";

/// The parts that a query needs, cloned with each.
#[derive(Debug, Clone)]
struct DohState {
    app: App,
    resolver: Resolver,
}

/// The routes. Queries are many and small, so they go past the middleware.
pub(crate) fn routes(state: &DnsState) -> Routes<DnsState> {
    let own = DohState { app: state.app.clone(), resolver: state.resolver.clone() };
    let direct = Router::new()
        .route("/dns-query", any(query))
        .route("/dns-query/{client}", any(query_of_client))
        .with_state(own);
    Routes { direct, ..Routes::default() }
}

async fn query(State(state): State<DohState>, request: Request) -> Response {
    answer(&state, "/dns-query", None, request).await
}

async fn query_of_client(
    State(state): State<DohState>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    answer(&state, "/dns-query/{client}", Some(&id), request).await
}

async fn answer(
    state: &DohState,
    route: &'static str,
    id: Option<&str>,
    request: Request,
) -> Response {
    let settings = state.app.settings();
    let (counted, client) = DirectRequest::begin(&state.app, &settings, route, &request);
    let wants_json = wants_json(request.headers());
    let client = QueryClient { address: client.ip, id, protocol: QueryProtocol::Https };
    let replied = match read_query(request, settings.body_timeout).await {
        Ok(message) => reply(&state.resolver, &message, client).await,
        Err(refusal) => Err(refusal),
    };
    let mut response = replied.unwrap_or_else(|refusal| refusal.into_response(wants_json));
    let nosniff = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    counted.answered(response.status());
    response
}

async fn reply(
    resolver: &Resolver,
    message: &[u8],
    client: QueryClient<'_>,
) -> Result<Response, DohRefusal> {
    let Some(reply) = resolver.answer(message, client).await else {
        return Err(DohRefusal::new(StatusCode::BAD_REQUEST, "the message is not a DNS query"));
    };
    let cache_control = max_age(&reply).map_or(HeaderValue::from_static("no-store"), max_age_value);
    let mut response = Response::new(Body::from(reply));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(DNS_MESSAGE));
    headers.insert(header::CACHE_CONTROL, cache_control);
    Ok(response)
}

/// A request that is no query.
#[derive(Debug)]
struct DohRefusal {
    status: StatusCode,
    message: &'static str,
}

impl DohRefusal {
    fn new(status: StatusCode, message: &'static str) -> DohRefusal {
        DohRefusal { status, message }
    }

    fn into_response(self, wants_json: bool) -> Response {
        let code = match self.status {
            StatusCode::METHOD_NOT_ALLOWED => "METHOD_NOT_ALLOWED",
            StatusCode::PAYLOAD_TOO_LARGE => "BODY_TOO_LARGE",
            StatusCode::REQUEST_TIMEOUT => "BODY_TOO_SLOW",
            StatusCode::UNSUPPORTED_MEDIA_TYPE => "UNSUPPORTED_MEDIA_TYPE",
            _ => "INVALID_REQUEST",
        };
        let mut response = if wants_json {
            let error = ApiError::new(self.status, code, self.message);
            (self.status, [(header::CACHE_CONTROL, "no-store")], Json(error.body("")))
                .into_response()
        } else {
            let headers = [
                (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
                (header::CACHE_CONTROL, "no-store"),
            ];
            (self.status, headers, format!("{}\n", self.message)).into_response()
        };
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, POST"));
        }
        response
    }
}

fn wants_json(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("application/json"))
}

async fn read_query(request: Request, timeout: Duration) -> Result<Bytes, DohRefusal> {
    let bad = |message| DohRefusal::new(StatusCode::BAD_REQUEST, message);
    let too_long =
        || DohRefusal::new(StatusCode::PAYLOAD_TOO_LARGE, "a query has at most 4,096 bytes");
    let (parts, body) = request.into_parts();
    match parts.method {
        Method::GET => {
            let query = parts.uri.query().unwrap_or_default();
            let mut values = query.split('&').filter_map(|pair| pair.strip_prefix("dns="));
            let Some(text) = values.next() else {
                return Err(bad("give the query as ?dns=, in base64url without padding"));
            };
            if text.len() > QUERY_MAX_BYTES * 4 / 3 + 4 {
                return Err(too_long());
            }
            let decoded = BASE64_URL_SAFE_NO_PAD.decode(text.trim_end_matches('='));
            decoded.map(Bytes::from).map_err(|_| bad("the value of ?dns= is not base64url"))
        }
        Method::POST => {
            let kind = parts.headers.get(header::CONTENT_TYPE);
            if kind.is_none_or(|kind| kind.as_bytes() != DNS_MESSAGE.as_bytes()) {
                return Err(DohRefusal::new(
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    "send the query as application/dns-message",
                ));
            }
            let whole = Limited::new(body, QUERY_MAX_BYTES).collect();
            match tokio::time::timeout(timeout, whole).await {
                Ok(Ok(body)) => Ok(body.to_bytes()),
                Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_long()),
                Ok(Err(_)) => Err(bad("the body broke off before it was complete")),
                Err(_) => Err(DohRefusal::new(
                    StatusCode::REQUEST_TIMEOUT,
                    "the body did not arrive in time",
                )),
            }
        }
        _ => Err(DohRefusal::new(StatusCode::METHOD_NOT_ALLOWED, "use GET or POST")),
    }
}

/// Returns the freshness of a reply, RFC 8484 §5.1: the least TTL of its answers, or of the SOA record of
/// a negative one; none for a failure.
fn max_age(reply: &[u8]) -> Option<u32> {
    let message = Message::from_octets(reply).ok()?;
    let is_answer = matches!(message.opt_rcode(), OptRcode::NOERROR | OptRcode::NXDOMAIN);
    if !is_answer || message.header().tc() {
        return None;
    }
    let ttl_of = |record: ParsedRecord<'_, &[u8]>| record.ttl().as_secs();
    let mut answers = message.answer().ok()?;
    let least = answers.by_ref().map_while(Result::ok).map(ttl_of).min();
    least.or_else(|| {
        let authorities = answers.next_section().ok()??.map_while(Result::ok);
        authorities.filter(|record| record.rtype() == Rtype::SOA).map(ttl_of).min()
    })
}

fn max_age_value(seconds: u32) -> HeaderValue {
    use std::io::Write as _;
    let mut text = *b"max-age=          ";
    let mut rest = &mut text[8..];
    // Ten digits hold every number of 32 bits.
    let _ = write!(rest, "{seconds}");
    let unused = rest.len();
    let used = text.get(..text.len() - unused).unwrap_or_default();
    HeaderValue::from_bytes(used).unwrap_or(HeaderValue::from_static("no-store"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_is_written_as_it_is() {
        for (seconds, text) in
            [(0, "max-age=0"), (300, "max-age=300"), (u32::MAX, "max-age=4294967295")]
        {
            assert_eq!(max_age_value(seconds), text);
        }
    }
}
