//! Who may call what. A service hands its routes over in a [`Section`], sorted by who may call
//! them; the frame puts the guard in front and writes credential and error answers into the
//! OpenAPI document. So no route can exist without that decision, and none documents it by hand.

use axum::Router;
use axum::middleware::from_fn_with_state;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::SecurityRequirement;
use utoipa::openapi::{OpenApi, PathItem, Ref, RefOr};
use utoipa_axum::router::OpenApiRouter;

use crate::app::App;
use crate::auth::guard::{self, Gate, Need};

/// The routes of one service, by who may call them. Paths are absolute (`/api/v1/…`).
///
/// ```
/// use api::{App, Section};
/// use utoipa_axum::{router::OpenApiRouter, routes};
///
/// /// How many there are.
/// #[utoipa::path(get, path = "/api/v1/things", tag = "things", responses((status = 200)))]
/// async fn list() -> &'static str { "0" }
///
/// pub fn section() -> Section {
///     Section { viewer: OpenApiRouter::new().routes(routes!(list)), ..Section::default() }
/// }
/// ```
#[derive(Default)]
pub struct Section {
    /// Anybody, without a credential. The handlers check what they need themselves.
    pub public: OpenApiRouter<App>,
    /// Programs that do the work: tokens with role worker, and operators. Not audited.
    pub worker: OpenApiRouter<App>,
    /// People who look. Must not change anything.
    pub viewer: OpenApiRouter<App>,
    /// People who run things day to day. Every change is audited.
    pub operator: OpenApiRouter<App>,
    /// People who own the installation. Every change is audited.
    pub admin: OpenApiRouter<App>,
    /// Dashboard pages: as `viewer`, but a visitor without a session is sent to the login page.
    pub pages: Router<App>,
}

impl std::fmt::Debug for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Section")
    }
}

impl Section {
    /// Joins another section's routes to this one.
    #[must_use]
    pub fn merge(self, other: Section) -> Section {
        Section {
            public: self.public.merge(other.public),
            worker: self.worker.merge(other.worker),
            viewer: self.viewer.merge(other.viewer),
            operator: self.operator.merge(other.operator),
            admin: self.admin.merge(other.admin),
            pages: self.pages.merge(other.pages),
        }
    }

    /// The routes' part of the OpenAPI document, credentials and common errors included.
    pub(crate) fn document(self) -> OpenApi {
        let mut document = OpenApi::default();
        for (part, need) in self.parts() {
            let mut openapi = part.into_openapi();
            for (path, item) in &mut openapi.paths.paths {
                for operation in operations(item) {
                    describe(operation, path, need);
                }
            }
            document.merge(openapi);
        }
        document
    }

    /// The routes with the guards in front of them.
    pub(crate) fn guarded(self, app: &App) -> Router<App> {
        let pages = self.pages.clone();
        let mut router = Router::new();
        for (part, need) in self.parts() {
            let (routes, _) = part.split_for_parts();
            router = router.merge(guard(routes, app, need, false));
        }
        router.merge(guard(pages, app, Some(Need::Viewer), true))
    }

    fn parts(self) -> [(OpenApiRouter<App>, Option<Need>); 5] {
        [
            (self.public, None),
            (self.worker, Some(Need::Worker)),
            (self.viewer, Some(Need::Viewer)),
            (self.operator, Some(Need::Operator)),
            (self.admin, Some(Need::Admin)),
        ]
    }
}

fn guard(routes: Router<App>, app: &App, need: Option<Need>, page: bool) -> Router<App> {
    match need {
        Some(need) if routes.has_routes() => {
            let gate = Gate { app: app.clone(), need, page };
            routes.route_layer(from_fn_with_state(gate, guard::check))
        }
        _ => routes,
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [
        &mut item.get,
        &mut item.put,
        &mut item.post,
        &mut item.delete,
        &mut item.options,
        &mut item.head,
        &mut item.patch,
        &mut item.trace,
    ]
    .into_iter()
    .flatten()
}

/// Adds what holds for every route of its kind: credentials and the errors any route may give.
fn describe(operation: &mut Operation, path: &str, need: Option<Need>) {
    // Handlers are named by verb (`list`, `create`), so the tag makes the id unique.
    let tag = operation.tags.as_ref().and_then(|tags| tags.first().cloned()).unwrap_or_default();
    operation.operation_id = operation.operation_id.take().map(|name| format!("{tag}_{name}"));
    let mut answers = vec![("400", "Invalid"), ("429", "RateLimited"), ("500", "Internal")];
    answers.push(("503", "Unavailable"));
    if operation.request_body.is_some() {
        answers.extend([("408", "Slow"), ("413", "TooLarge"), ("415", "WrongType")]);
        answers.push(("507", "Full"));
    }
    if path.contains('{') {
        answers.push(("404", "NotFound"));
    }
    if let Some(need) = need {
        answers.extend([("401", "Unauthorized"), ("403", "Forbidden")]);
        let none: [String; 0] = [];
        operation.security = Some(vec![
            SecurityRequirement::new("token", none.clone()),
            SecurityRequirement::new("session", none),
        ]);
        let note = format!("Needs role `{}`.", need.word());
        operation.description = Some(match operation.description.take() {
            Some(text) if !text.is_empty() => format!("{text}\n\n{note}"),
            _ => note,
        });
    }
    for (status, name) in answers {
        operation
            .responses
            .responses
            .entry(status.to_owned())
            .or_insert_with(|| RefOr::Ref(Ref::from_response_name(name)));
    }
}
