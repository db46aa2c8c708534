//! The OpenAPI 3.1 document, made from the routes themselves; the golden copy is
//! `crates/tidegate/openapi.json`, and a test compares.

use std::collections::HashMap;

use axum::http::{Method, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::request_body::RequestBody;
use utoipa::openapi::schema::{AdditionalProperties, ArrayItems, OneOf, SchemaType};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, Ref, RefOr, Required,
    ResponseBuilder, Schema, Server, Type,
};
use utoipa::{PartialSchema, ToSchema};

use crate::error::{ApiError, ErrorBody, ErrorDetail};
use crate::routes::operations;
use crate::service::Services;

/// The shared error answers, by component name.
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
pub(crate) fn complete(mut document: OpenApi, services: Services) -> OpenApi {
    document.info = InfoBuilder::new()
        .title("Tidegate")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Flow control for whatever arrives faster than it can be served.\n\nEvery error has the same shape: \
             `{\"error\":{\"code\",\"message\",\"details\"},\"request_id\"}`.",
        ))
        .license(Some(LicenseBuilder::new().name("MIT").identifier(Some("MIT")).build()))
        .build();
    document.servers = Some(vec![Server::new("/")]);
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
            ("health", "Liveness, readiness, metrics and history."),
            ("access", "The caller's identity, and tokens."),
            ("audit", "The audit trail of all changes."),
            ("webhooks", "Webhooks, their deliveries and dead letters."),
        ]
        .into_iter()
        .chain(services.iter().map(|service| (service.name(), service.summary())))
        .map(|(name, text)| TagBuilder::new().name(name).description(Some(text)).build())
        .collect(),
    );
    let mut document = name_pages(document);
    plain_schemas(&mut document);
    plain_bodies(&mut document);
    document
}

const SCHEMAS: &str = "#/components/schemas/";

/// Spells every schema so that generators of clients read it as it is meant.
fn plain_schemas(document: &mut OpenApi) {
    let schemas = document.components.iter_mut().flat_map(|all| all.schemas.values_mut());
    schemas.for_each(plain_schema);
    for operation in document.paths.paths.values_mut().flat_map(operations) {
        for response in operation.responses.responses.values_mut() {
            let RefOr::T(response) = response else { continue };
            for content in response.content.values_mut() {
                if let RefOr::T(content) = content {
                    content.schema.iter_mut().for_each(plain_schema);
                }
            }
        }
    }
}

fn plain_schema(schema: &mut RefOr<Schema>) {
    let schema = match schema {
        RefOr::Ref(reference) => {
            reference.default = None;
            return;
        }
        RefOr::T(schema) => schema,
    };
    match schema {
        Schema::Object(object) => {
            // A field with a default counts as always there, so that a client must send it.
            // The description says what a field that is left out means.
            object.default = None;
            let free = object.properties.is_empty() && object.additional_properties.is_none();
            if free && is_object(&object.schema_type) {
                object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(true)));
            }
            object.properties.values_mut().for_each(plain_schema);
            if let Some(values) = &mut object.additional_properties
                && let AdditionalProperties::RefOr(values) = values.as_mut()
            {
                plain_schema(values);
            }
        }
        Schema::Array(array) => {
            array.default = None;
            if let ArrayItems::RefOrSchema(items) = &mut array.items {
                plain_schema(items);
            }
        }
        Schema::OneOf(one_of) => {
            one_of.default = None;
            describe_nullable(one_of);
            one_of.items.iter_mut().for_each(plain_schema);
        }
        Schema::AllOf(all_of) => all_of.items.iter_mut().for_each(plain_schema),
        Schema::AnyOf(any_of) => any_of.items.iter_mut().for_each(plain_schema),
        _ => {}
    }
}

fn is_object(schema_type: &SchemaType) -> bool {
    match schema_type {
        SchemaType::Type(one) => *one == Type::Object,
        SchemaType::Array(several) => several.contains(&Type::Object),
        SchemaType::AnyValue => false,
    }
}

/// Moves the description of a field that may be null from its type to the field.
fn describe_nullable(one_of: &mut OneOf) {
    for item in &mut one_of.items {
        if let RefOr::Ref(reference) = item
            && one_of.description.is_none()
            && !reference.description.is_empty()
        {
            one_of.description = Some(std::mem::take(&mut reference.description));
        }
    }
}

/// Gives every request body its example, and spells one that may be left out as optional instead of
/// nullable.
fn plain_bodies(document: &mut OpenApi) {
    let example = |reference: &Ref| {
        let name = reference.ref_location.strip_prefix(SCHEMAS)?;
        match document.components.as_ref()?.schemas.get(name)? {
            RefOr::T(Schema::Object(object)) => object.example.clone(),
            _ => None,
        }
    };
    for operation in document.paths.paths.values_mut().flat_map(operations) {
        let Some(RefOr::T(RequestBody { content, required, .. })) = &mut operation.request_body
        else {
            continue;
        };
        for content in content.values_mut() {
            let RefOr::T(content) = content else { continue };
            if let Some(RefOr::T(Schema::OneOf(one_of))) = &content.schema
                && let Some(body) = one_of.items.iter().find(|item| matches!(item, RefOr::Ref(_)))
            {
                content.schema = Some(body.clone());
                *required = Some(Required::False);
            }
            if let Some(RefOr::Ref(reference)) = &content.schema
                && content.example.is_none()
            {
                content.example = example(reference);
            }
        }
    }
}

/// Names each page of a list after its items, and lets it refer to them: `Page_KeyRow`, which has
/// the whole of `KeyRow` inside, becomes `KeyRowPage`.
fn name_pages(mut document: OpenApi) -> OpenApi {
    const PREFIX: &str = "Page_";
    if let Some(components) = &mut document.components {
        let schemas = std::mem::take(&mut components.schemas);
        components.schemas = schemas
            .into_iter()
            .map(|(name, mut schema)| {
                let Some(item) = name.strip_prefix(PREFIX) else { return (name, schema) };
                if let RefOr::T(Schema::Object(object)) = &mut schema
                    && let Some(RefOr::T(Schema::Array(array))) = object.properties.get_mut("items")
                {
                    array.items =
                        ArrayItems::RefOrSchema(Box::new(Ref::from_schema_name(item).into()));
                }
                (format!("{item}Page"), schema)
            })
            .collect();
    }
    let operations = document.paths.paths.values_mut().flat_map(operations);
    let responses = operations.flat_map(|operation| operation.responses.responses.values_mut());
    for response in responses {
        let RefOr::T(response) = response else { continue };
        for content in response.content.values_mut() {
            if let RefOr::T(content) = content
                && let Some(RefOr::Ref(reference)) = &mut content.schema
            {
                let page = reference.ref_location.strip_prefix(SCHEMAS);
                if let Some(item) = page.and_then(|name| name.strip_prefix(PREFIX)) {
                    reference.ref_location = format!("{SCHEMAS}{item}Page");
                }
            }
        }
    }
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

/// The names that each operation takes, by path, as the document tells them.
#[derive(Debug, Default)]
pub(crate) struct KnownNames(HashMap<String, Vec<OperationNames>>);

#[derive(Debug)]
struct OperationNames {
    method: Method,
    query: Vec<String>,
    /// Does it take a body? Its handler then checks the fields.
    body: bool,
}

/// Collects the names that each operation takes.
pub(crate) fn known_names(document: &OpenApi) -> KnownNames {
    let mut known = HashMap::new();
    for (path, item) in &document.paths.paths {
        let operations = [
            (Method::GET, &item.get),
            (Method::PUT, &item.put),
            (Method::POST, &item.post),
            (Method::DELETE, &item.delete),
            (Method::PATCH, &item.patch),
        ];
        let names = |operation: &Operation| {
            let parameters = operation.parameters.iter().flatten();
            parameters
                .filter_map(|parameter| match parameter {
                    RefOr::T(parameter) if parameter.parameter_in == ParameterIn::Query => {
                        Some(parameter.name.clone())
                    }
                    _ => None,
                })
                .collect()
        };
        let operations = operations.into_iter().filter_map(|(method, operation)| {
            let operation = operation.as_ref()?;
            let body = operation.request_body.is_some();
            Some(OperationNames { method, query: names(operation), body })
        });
        known.insert(path.clone(), operations.collect());
    }
    KnownNames(known)
}

impl KnownNames {
    fn operation(&self, route: &str, method: &Method) -> Option<&OperationNames> {
        // A service may offer its calls below another path as well.
        let below = ["/api/", "/.well-known/"].iter().find_map(|start| route.find(start));
        let operations = self.0.get(route.get(below.unwrap_or(0)..)?)?;
        let method = if method == Method::HEAD { &Method::GET } else { method };
        operations.iter().find(|operation| operation.method == *method)
    }

    /// Refuses a name in the query that the operation does not have: a misspelt one must not be ignored.
    pub(crate) fn check_query(
        &self,
        route: &str,
        method: &Method,
        query: &str,
    ) -> Result<(), ApiError> {
        let Some(OperationNames { query: known, .. }) = self.operation(route, method) else {
            return Ok(());
        };
        for (name, _) in form_urlencoded::parse(query.as_bytes()) {
            if !known.iter().any(|known| *known == name) {
                let message = match known.as_slice() {
                    [] => format!("this call takes nothing in its query, and got {name}"),
                    known => {
                        format!("there is no {name} in this query; there are {}", known.join(", "))
                    }
                };
                return Err(ApiError::invalid_field(&name, message));
            }
        }
        Ok(())
    }

    /// Tells whether the operation is known to take no body.
    pub(crate) fn takes_no_body(&self, route: &str, method: &Method) -> bool {
        self.operation(route, method).is_some_and(|operation| !operation.body)
    }
}

/// Refuses fields for an operation that takes no body. An empty object says nothing and passes, because some
/// clients send one with every POST.
pub(crate) fn check_no_fields(bytes: &[u8]) -> Result<(), ApiError> {
    let none = || ApiError::invalid("this call takes no body; leave it out");
    if bytes.is_empty() {
        return Ok(());
    }
    match serde_json::from_slice(bytes).map_err(|_| none())? {
        serde_json::Value::Null => Ok(()),
        serde_json::Value::Object(fields) => match fields.keys().next() {
            None => Ok(()),
            Some(name) => {
                let message = format!("this call takes no body, and got {name}");
                Err(ApiError::invalid_field(name, message))
            }
        },
        _ => Err(none()),
    }
}
