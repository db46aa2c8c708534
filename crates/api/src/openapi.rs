//! The OpenAPI 3.1 document, made from the routes themselves; the golden copy is
//! `crates/api/openapi.json`, and a test compares.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, OpenApi, Ref, ResponseBuilder,
};
use utoipa::{PartialSchema, ToSchema};

use crate::error::{ErrorBody, ErrorDetail};

/// What each shared error answer means, by component name.
const ANSWERS: &[(&str, &str)] = &[
    ("Invalid", "The request is not what this route takes; `details.field` names the field."),
    ("Unauthorized", "No valid credential. Send `Authorization: Bearer <token>`."),
    ("Forbidden", "The credential is valid, its role is not enough."),
    ("NotFound", "There is nothing under this name."),
    ("Slow", "The body took longer to arrive than the server waits."),
    ("TooLarge", "The body is larger than the server takes."),
    ("WrongType", "The body is not of the media type this route takes."),
    ("RateLimited", "Too many requests; `Retry-After` says when to try again."),
    ("Internal", "The server failed; its log has the cause under the request id."),
    ("Unavailable", "The store is out of reach or the server is stopping; try again."),
    ("Full", "The store is full; nothing was changed."),
];

/// Completes the document collected from the sections.
pub(crate) fn complete(mut document: OpenApi) -> OpenApi {
    document.info = InfoBuilder::new()
        .title("Tidegate")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Flow control for whatever arrives faster than it can be served: a waiting room and \
             a job queue on one store.\n\nEvery error has the same shape: \
             `{\"error\":{\"code\",\"message\",\"details\"},\"request_id\"}`.",
        ))
        .build();
    let mut components = ComponentsBuilder::from(document.components.take().unwrap_or_default())
        .schema(ErrorBody::name(), ErrorBody::schema())
        .schema(ErrorDetail::name(), ErrorDetail::schema())
        .security_scheme(
            "token",
            SecurityScheme::Http(
                HttpBuilder::new()
                    .scheme(HttpAuthScheme::Bearer)
                    .description(Some("The admin token, or one made with `tidegate token create`."))
                    .build(),
            ),
        )
        .security_scheme(
            "session",
            SecurityScheme::ApiKey(ApiKey::Cookie(ApiKeyValue::with_description(
                "tidegate_session",
                "The dashboard's session, for pages of the same origin only.",
            ))),
        );
    for (name, text) in ANSWERS {
        let content =
            ContentBuilder::new().schema(Some(Ref::from_schema_name(ErrorBody::name()))).build();
        components = components.response(
            *name,
            ResponseBuilder::new().description(*text).content("application/json", content).build(),
        );
    }
    document.components = Some(components.build());
    document.tags = Some(
        [
            ("health", "Is it up, is it ready, and why not."),
            ("access", "Who you are, and the tokens of others."),
            ("audit", "Who changed what, and when."),
            ("store", "What is in the store, and how it is doing."),
            ("room", "The waiting room."),
            ("jobs", "The job queue."),
        ]
        .into_iter()
        .map(|(name, text)| TagBuilder::new().name(name).description(Some(text)).build())
        .collect(),
    );
    document
}

/// The document as JSON, written once.
pub(crate) fn json(document: &OpenApi) -> Bytes {
    Bytes::from(document.to_pretty_json().unwrap_or_default())
}

/// The answer to `GET /api/openapi.json`.
pub(crate) fn response(json: &Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], json.clone()).into_response()
}
