//! Extractors whose refusals are [`ApiError`]s: bad input gets a clear error, and nothing changes.

use std::io::Read;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::ApiError;
use crate::middleware::BodyError;
use crate::refusal;

/// A JSON body, in and out. A request without one is refused: a body that got lost on the way must
/// not read as "all defaults". Where every field may be left out, take [`OptionalJson`].
#[derive(Debug, Clone, Copy)]
pub struct Json<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Json<T>, ApiError> {
        match json_bytes(request).await? {
            Some(bytes) => read_json(&bytes).map(Json),
            None => Err(ApiError::invalid("this call needs a JSON body, and none was sent")),
        }
    }
}

/// A JSON body that may be missing, for calls where leaving everything out is harmless: a missing
/// body and `null` count as the default.
#[derive(Debug, Clone, Copy)]
pub struct OptionalJson<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<OptionalJson<T>, ApiError> {
        match json_bytes(request).await? {
            Some(bytes) => {
                read_json::<Option<T>>(&bytes).map(|body| OptionalJson(body.unwrap_or_default()))
            }
            None => Ok(OptionalJson(T::default())),
        }
    }
}

/// The bytes of a JSON body; `None` when the request has no body.
async fn json_bytes(request: Request) -> Result<Option<Bytes>, ApiError> {
    let (parts, body) = request.into_parts();
    let bytes = read(body).await?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if !is_json(&parts.headers) {
        return Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UNSUPPORTED_MEDIA_TYPE",
            "send the body as application/json",
        ));
    }
    Ok(Some(bytes))
}

/// Reads JSON that is part of a body, and refuses it in the same words as a whole one.
pub fn read_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    refusal::read_json(bytes)
}

pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok())
    else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
        || (essence.len() > 5 && essence.to_ascii_lowercase().ends_with("+json"))
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(bytes) => (
                [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")],
                bytes,
            )
                .into_response(),
            Err(error) => ApiError::internal(&error).into_response(),
        }
    }
}

/// Reads a whole body. The front has already put a size limit and a deadline on it.
pub async fn read(body: Body) -> Result<Bytes, ApiError> {
    match body.collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) => Err(body_error(&error)),
    }
}

/// Largest content of a compressed body.
const UNPACKED_MAX_BYTES: usize = 16 << 20;

/// Decompresses gzip, up to a bound: a small body must not become a large one.
///
/// # Errors
/// Not gzip, or larger than 16 MiB when unpacked.
pub fn gunzip(packed: &[u8]) -> Result<Bytes, ApiError> {
    let mut content = Vec::new();
    let bound = u64::try_from(UNPACKED_MAX_BYTES).unwrap_or(u64::MAX);
    let mut reader = flate2::read::MultiGzDecoder::new(packed).take(bound + 1);
    if let Err(error) = reader.read_to_end(&mut content) {
        return Err(ApiError::invalid(format!("the body is not gzip: {error}")));
    }
    if content.len() > UNPACKED_MAX_BYTES {
        let message =
            format!("the body has more than {UNPACKED_MAX_BYTES} bytes once decompressed");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", message));
    }
    Ok(content.into())
}

/// Translates a failed read of a body.
pub fn body_error(error: &(dyn std::error::Error + 'static)) -> ApiError {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(known) = error.downcast_ref::<BodyError>() {
            return known.into();
        }
        cause = error.source();
    }
    ApiError::invalid("the body broke off before it was complete")
}

/// The query string, as a struct.
#[derive(Debug, Clone, Copy)]
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Query<T>, ApiError> {
        refusal::read_query(parts.uri.query().unwrap_or_default()).map(Query)
    }
}

/// The variable parts of the path.
#[derive(Debug, Clone, Copy)]
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Path<T>, ApiError> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(value)) => Ok(Path(value)),
            Err(error) => Err(ApiError::invalid(format!("path: {}", error.body_text()))),
        }
    }
}

/// An `application/x-www-form-urlencoded` body, as forms send it without JavaScript.
#[derive(Debug, Clone, Copy)]
pub struct Form<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Form<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Form<T>, ApiError> {
        let (parts, body) = request.into_parts();
        let bytes = read(body).await?;
        let request = Request::from_parts(parts, Body::from(bytes));
        match axum::extract::Form::from_request(request, state).await {
            Ok(axum::extract::Form(value)) => Ok(Form(value)),
            Err(error) => Err(ApiError::new(error.status(), "INVALID_REQUEST", error.body_text())),
        }
    }
}

/// Makes extractors of the ids in a path, which are also its parameters in the document. What cannot
/// be an id is one that is not there.
#[macro_export]
macro_rules! in_path {
    ($($(#[$meta:meta])* $name:ident { $(#[$doc:meta])* $field:ident: $id:ty } by $parse:expr;)*) => {
        $(
            $(#[$meta])*
            #[derive(Debug, utoipa::IntoParams)]
            #[into_params(parameter_in = Path)]
            struct $name {
                $(#[$doc])*
                #[param(value_type = String)]
                $field: $id,
            }

            impl<S: Send + Sync> axum::extract::FromRequestParts<S> for $name {
                type Rejection = $crate::error::ApiError;

                async fn from_request_parts(
                    parts: &mut axum::http::request::Parts,
                    state: &S,
                ) -> Result<$name, Self::Rejection> {
                    #[derive(serde::Deserialize)]
                    struct PathText {
                        $field: String,
                    }
                    let parse: fn(&str) -> Result<$id, Self::Rejection> = $parse;
                    let $crate::extract::Path(text) =
                        $crate::extract::Path::<PathText>::from_request_parts(parts, state).await?;
                    Ok($name { $field: parse(&text.$field)? })
                }
            }
        )*
    };
}

pub use in_path;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_body_cannot_become_a_large_one() {
        let zeros = vec![0; UNPACKED_MAX_BYTES + 1];
        let packed = crate::compress::gzip(&zeros, true).unwrap();
        assert!(packed.len() < 100_000);
        assert_eq!(gunzip(&packed).unwrap_err().status(), StatusCode::PAYLOAD_TOO_LARGE);
        let packed = crate::compress::gzip(&zeros[1..], true).unwrap();
        assert_eq!(gunzip(&packed).unwrap().len(), UNPACKED_MAX_BYTES);
    }
}
