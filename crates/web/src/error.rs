//! One error envelope for every service: `{"error":{"code","message","details"},"request_id"}`.
//!
//! A handler returns [`ApiError`]; the middleware (see `middleware.rs`) adds the request id and writes the
//! body, so that an error looks the same wherever it was born. What is internal goes to the log
//! and never into the body. Each service converts its own error with a `From` in its own file.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// An error as a client sees it: a status, a stable code, a sentence for people, optional details.
#[derive(Debug, Clone)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    details: serde_json::Value,
    headers: Vec<(HeaderName, HeaderValue)>,
    is_refusal: bool,
}

/// The body of every error.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
    /// The id of the request, also in the `x-request-id` header and in the log.
    pub request_id: String,
}

/// The error itself.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorDetail {
    /// A stable word for programs, such as `NOT_FOUND`.
    #[schema(example = "NOT_FOUND")]
    pub code: String,
    /// A sentence for people; may change between versions.
    #[schema(example = "queue not found")]
    pub message: String,
    /// More for programs, by code; an empty object when there is none.
    #[schema(value_type = Object)]
    pub details: serde_json::Value,
}

impl ApiError {
    /// An error with any status and code.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            code,
            message: message.into(),
            details: serde_json::Value::Object(serde_json::Map::new()),
            headers: Vec::new(),
            is_refusal: false,
        }
    }

    /// 400 `INVALID_REQUEST`: the input is not what the route takes.
    pub fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "INVALID_REQUEST", message)
    }

    /// 400 `INVALID_REQUEST` that names the field which is wrong.
    pub fn invalid_field(field: &str, message: impl Into<String>) -> ApiError {
        ApiError::invalid(message).details(serde_json::json!({ "field": field }))
    }

    /// 401 `UNAUTHORIZED`: no credential, or one that is not valid.
    pub fn unauthorized(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", message)
            .header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
    }

    /// 403 `FORBIDDEN`: known, but not allowed.
    pub fn forbidden(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "FORBIDDEN", message)
    }

    /// 404 `NOT_FOUND`.
    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "NOT_FOUND", message)
    }

    /// 409 with a code of the service's own.
    pub fn conflict(code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::CONFLICT, code, message)
    }

    /// 429 `RATE_LIMITED` with `Retry-After` in whole seconds, at least one.
    pub fn rate_limited(message: impl Into<String>, retry_after_seconds: u64) -> ApiError {
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED", message)
            .retry_after(retry_after_seconds)
            .refusing()
    }

    /// 503 with a code and `Retry-After`.
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, message).retry_after(2)
    }

    /// 500 `INTERNAL`. The cause is logged here and is not in the body.
    pub fn internal(cause: &dyn std::fmt::Display) -> ApiError {
        tracing::error!(cause = %cause, "request failed");
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "INTERNAL",
            "something went wrong here; the log has the details under this request id",
        )
    }

    /// The same error with details for programs.
    #[must_use]
    pub fn details(mut self, details: serde_json::Value) -> ApiError {
        self.details = details;
        self
    }

    /// The same error with one more response header.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> ApiError {
        self.headers.push((name, value));
        self
    }

    /// The same error with `Retry-After` (seconds, at least one).
    #[must_use]
    pub fn retry_after(self, seconds: u64) -> ApiError {
        self.header(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)))
    }

    /// The same error as one that turns a request away before it reaches a handler: by a limit, a
    /// credential check, a size limit or a drain.
    #[must_use]
    pub fn refusing(mut self) -> ApiError {
        self.is_refusal = true;
        self
    }

    /// Tells whether the request was turned away before it reached a handler.
    pub fn is_refusal(&self) -> bool {
        self.is_refusal
    }

    /// Puts the error's headers into a response that says it in its own way.
    pub fn headers_into(self, headers: &mut axum::http::HeaderMap) {
        headers.extend(self.headers);
    }

    /// The status the client gets.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The stable code.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// The field that is at fault, if one is.
    pub fn field(&self) -> Option<&str> {
        self.details.get("field")?.as_str()
    }

    /// The sentence for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The body with the id of the request it answers.
    pub fn body(&self, request_id: &str) -> ErrorBody {
        ErrorBody {
            error: ErrorDetail {
                code: self.code.to_owned(),
                message: self.message.clone(),
                details: self.details.clone(),
            },
            request_id: request_id.to_owned(),
        }
    }
}

impl IntoResponse for ApiError {
    /// Carries the error to the front in the response's extensions; the front writes the body.
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        for (name, value) in &self.headers {
            response.headers_mut().insert(name.clone(), value.clone());
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<store::Error> for ApiError {
    fn from(error: store::Error) -> ApiError {
        match &error {
            store::Error::Unavailable { .. } => ApiError::unavailable(
                "STORE_UNAVAILABLE",
                "the store cannot be reached at the moment",
            ),
            store::Error::Oom => ApiError::new(
                StatusCode::INSUFFICIENT_STORAGE,
                "STORE_FULL",
                "the store is out of memory; nothing was changed",
            ),
            store::Error::ReadOnly { .. } => ApiError::unavailable(
                "STORE_READ_ONLY",
                "the store refuses changes at the moment; nothing was changed",
            ),
            _ => ApiError::internal(&error),
        }
    }
}

/// An error with its causes, for logs.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Some errors say what their cause says already.
        let why = error.to_string();
        if !text.ends_with(&why) {
            text.push_str(&format!(": {why}"));
        }
        cause = error.source();
    }
    text
}
