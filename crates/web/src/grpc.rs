//! gRPC on the HTTP port: the framing of unary calls, and errors as gRPC clients understand them.
//!
//! A call is a POST over HTTP/2 with one message in its body, behind a flag and a length; the answer is
//! framed alike and ends with the status in trailers. An [`ApiError`], wherever it was born, becomes a
//! response of trailers only (gRPC over HTTP/2, "Responses"). Messages are bytes here: services know
//! their encoding. Invariant: a frame that is not whole reaches no handler.

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;
use http_body::Frame;
use http_body_util::StreamBody;

use crate::error::ApiError;
use crate::extract;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// Bytes of the flag and the length in front of a message.
const PREFIX_BYTES: usize = 5;

/// Tells whether a request is a gRPC call.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    kind.and_then(|kind| kind.strip_prefix("application/grpc"))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
}

/// The one message of a unary call, decompressed. Take it as the last argument of a handler.
#[derive(Debug, Clone)]
pub struct GrpcMessage(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for GrpcMessage {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<GrpcMessage, ApiError> {
        if !is_grpc(request.headers()) {
            return Err(ApiError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "UNSUPPORTED_MEDIA_TYPE",
                "this is a gRPC method: send application/grpc over HTTP/2",
            ));
        }
        if request.version() != Version::HTTP_2 {
            return Err(ApiError::new(
                StatusCode::HTTP_VERSION_NOT_SUPPORTED,
                "HTTP_VERSION",
                "gRPC needs HTTP/2, with prior knowledge or by ALPN",
            ));
        }
        let (parts, body) = request.into_parts();
        message_of(&extract::read(body).await?, coding_of(&parts.headers)).map(GrpcMessage)
    }
}

/// The coding of compressed messages.
fn coding_of(headers: &HeaderMap) -> &str {
    headers.get(GRPC_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or("identity")
}

/// The message in a body that must hold exactly one.
fn message_of(body: &Bytes, coding: &str) -> Result<Bytes, ApiError> {
    let malformed = |why: String| ApiError::invalid(format!("malformed gRPC frame: {why}"));
    let Some((prefix, message)) = body.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(malformed(format!("{} of the first {PREFIX_BYTES} bytes", body.len())));
    };
    let [flag, length @ ..] = *prefix;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length != message.len() {
        let arrived = message.len();
        let why =
            format!("its length is {length} bytes, {arrived} arrived, and a call has one message");
        return Err(malformed(why));
    }
    let message = body.slice(PREFIX_BYTES..);
    match (flag, coding) {
        (0, _) => Ok(message),
        (1, "gzip") => extract::gunzip(&message),
        (1, other) => Err(ApiError::new(
            StatusCode::NOT_IMPLEMENTED,
            "UNKNOWN_ENCODING",
            format!("messages compressed with {other:?} are not understood; use gzip or identity"),
        )),
        (flag, _) => Err(malformed(format!("its flag is {flag}, and only 0 and 1 are known"))),
    }
}

/// The answer of a call that succeeded: one message.
pub fn reply(message: &[u8]) -> Response {
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    let mut trailers = HeaderMap::new();
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    let frames: [Result<Frame<Bytes>, std::convert::Infallible>; 2] =
        [Ok(Frame::data(framed.freeze())), Ok(Frame::trailers(trailers))];
    let body = Body::new(StreamBody::new(stream::iter(frames)));
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], body).into_response()
}

/// The answer of a call that failed: status and message in the head, and no body.
pub(crate) fn failure(error: &ApiError, is_known_method: bool) -> Response {
    let mut response = ([(header::CONTENT_TYPE, CONTENT_TYPE)], Body::empty()).into_response();
    let headers = response.headers_mut();
    headers.insert(GRPC_STATUS, HeaderValue::from(status_of(error.status(), is_known_method)));
    let message = crate::middleware::percent_grpc(error.message());
    if let Ok(message) = HeaderValue::from_str(&message) {
        headers.insert(GRPC_MESSAGE, message);
    }
    if error.status() == StatusCode::NOT_IMPLEMENTED {
        headers.insert(GRPC_ACCEPT_ENCODING, HeaderValue::from_static("identity, gzip"));
    }
    response
}

/// The gRPC code of a status. A path that is none of ours is a method that is not implemented.
fn status_of(status: StatusCode, is_known_method: bool) -> u16 {
    const INVALID_ARGUMENT: u16 = 3;
    const DEADLINE_EXCEEDED: u16 = 4;
    const NOT_FOUND: u16 = 5;
    const PERMISSION_DENIED: u16 = 7;
    const RESOURCE_EXHAUSTED: u16 = 8;
    const FAILED_PRECONDITION: u16 = 9;
    const UNIMPLEMENTED: u16 = 12;
    const INTERNAL: u16 = 13;
    const UNAVAILABLE: u16 = 14;
    const UNAUTHENTICATED: u16 = 16;
    match status {
        StatusCode::BAD_REQUEST | StatusCode::UNSUPPORTED_MEDIA_TYPE => INVALID_ARGUMENT,
        StatusCode::UNAUTHORIZED => UNAUTHENTICATED,
        StatusCode::FORBIDDEN => PERMISSION_DENIED,
        StatusCode::NOT_FOUND if is_known_method => NOT_FOUND,
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => {
            UNIMPLEMENTED
        }
        StatusCode::REQUEST_TIMEOUT => DEADLINE_EXCEEDED,
        StatusCode::PAYLOAD_TOO_LARGE
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::INSUFFICIENT_STORAGE => RESOURCE_EXHAUSTED,
        StatusCode::SERVICE_UNAVAILABLE => UNAVAILABLE,
        StatusCode::HTTP_VERSION_NOT_SUPPORTED | StatusCode::CONFLICT => FAILED_PRECONDITION,
        _ => INTERNAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_must_hold_exactly_one_whole_message() {
        let whole = Bytes::from_static(b"\0\0\0\0\x02hi");
        assert_eq!(message_of(&whole, "identity").unwrap(), "hi");
        assert_eq!(message_of(&Bytes::from_static(b"\0\0\0\0\0"), "gzip").unwrap(), "");
        for (bad, told) in [
            (&b""[..], "0 of the first 5"),
            (b"\0\0\0\0", "4 of the first 5"),
            (b"\0\0\0\0\x03hi", "3 bytes, 2 arrived"),
            (b"\0\0\0\0\x01hi", "1 bytes, 2 arrived"),
            (b"\0\xff\xff\xff\xffhi", "2 arrived"),
            (b"\x02\0\0\0\x02hi", "flag is 2"),
            (b"\x01\0\0\0\x02hi", "\"identity\" are not understood"),
        ] {
            let error = message_of(&Bytes::copy_from_slice(bad), "identity").unwrap_err();
            assert!(error.message().contains(told), "{:?} for {bad:?}", error.message());
        }
        let error = message_of(&Bytes::from_static(b"\x01\0\0\0\x02hi"), "gzip").unwrap_err();
        assert!(error.message().contains("not gzip"), "{}", error.message());
    }

    #[test]
    fn only_calls_of_grpc_are_taken_for_one() {
        for (kind, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/json", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            assert_eq!(is_grpc(&headers), expected, "{kind}");
        }
    }
}
