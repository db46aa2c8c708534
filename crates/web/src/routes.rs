//! Routes grouped by who may call them. A service hands its routes over in [`Routes`]; the frame puts
//! authentication in front and writes credential and error answers into the OpenAPI document. So no
//! route can exist without that decision, and none documents it by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::SecurityRequirement;
use utoipa::openapi::{OpenApi, PathItem, Ref, RefOr};
use utoipa_axum::router::OpenApiRouter;

use crate::app::App;
use crate::auth::require::{self, Need, Requirement};
use crate::{compress, rate_limit};

/// The routes of one service, by who may call them. Paths are absolute (`/api/v1/…`). `S` is what the
/// handlers take out of their `State`; [`Routes::with_state`] fills it in.
///
/// ```
/// use tidegate_web::Routes;
/// use utoipa_axum::{router::OpenApiRouter, routes};
///
/// /// How many there are.
/// #[utoipa::path(get, path = "/api/v1/things", tag = "things", responses((status = 200)))]
/// async fn list() -> &'static str { "0" }
///
/// pub fn routes() -> Routes {
///     Routes { viewer: OpenApiRouter::new().routes(routes!(list)), ..Routes::default() }
/// }
/// ```
pub struct Routes<S = App> {
    /// Anybody, without a credential. The handlers check what they need themselves.
    pub public: OpenApiRouter<S>,
    /// Anybody, within the policy `api`: for public calls that have no limit of their own.
    pub limited: OpenApiRouter<S>,
    /// Every role: programs that do the work and people who look. The handlers check a worker's scopes.
    pub any_role: OpenApiRouter<S>,
    /// Programs that do the work: tokens with role worker, and operators. Not audited.
    pub worker: OpenApiRouter<S>,
    /// As `worker`, for calls whose handler writes the audit entry of a person itself: a claim must
    /// notice a caller who goes away, so it cannot run to its end regardless.
    pub self_audited: OpenApiRouter<S>,
    /// People who look. Must not change anything.
    pub viewer: OpenApiRouter<S>,
    /// People who run things day to day. Every change is audited.
    pub operator: OpenApiRouter<S>,
    /// People who own the installation. Every change is audited.
    pub admin: OpenApiRouter<S>,
    /// Dashboard pages: as `viewer`, but a visitor without a session is sent to the login page.
    pub pages: Router<S>,
    /// Anybody, past the middleware: for calls that are so many and small that it would cost more than
    /// they do. The handlers do everything themselves, see [`direct`](crate::direct).
    pub direct: Router<S>,
    /// Templates of routes that are no traffic: probes and assets.
    pub excluded: Vec<String>,
    /// Templates of routes whose bodies have a limit of their own, instead of `http.max_body`.
    pub body_limits: Vec<(String, BodyLimit)>,
}

/// Largest body of a route in bytes; a clone shares it, and it may change at any time.
#[derive(Debug, Clone, Default)]
pub struct BodyLimit(Arc<AtomicUsize>);

impl BodyLimit {
    /// Changes it; it counts for requests from now on.
    pub fn set(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// Returns it.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl<S> std::fmt::Debug for Routes<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Routes")
    }
}

impl<S: Clone + Send + Sync + 'static> Default for Routes<S> {
    fn default() -> Routes<S> {
        Routes {
            public: OpenApiRouter::default(),
            limited: OpenApiRouter::default(),
            any_role: OpenApiRouter::default(),
            worker: OpenApiRouter::default(),
            self_audited: OpenApiRouter::default(),
            viewer: OpenApiRouter::default(),
            operator: OpenApiRouter::default(),
            admin: OpenApiRouter::default(),
            pages: Router::new(),
            direct: Router::new(),
            excluded: Vec::new(),
            body_limits: Vec::new(),
        }
    }
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    /// Joins other routes to these.
    #[must_use]
    pub fn merge(self, other: Routes<S>) -> Routes<S> {
        Routes {
            public: self.public.merge(other.public),
            limited: self.limited.merge(other.limited),
            any_role: self.any_role.merge(other.any_role),
            worker: self.worker.merge(other.worker),
            self_audited: self.self_audited.merge(other.self_audited),
            viewer: self.viewer.merge(other.viewer),
            operator: self.operator.merge(other.operator),
            admin: self.admin.merge(other.admin),
            pages: self.pages.merge(other.pages),
            direct: self.direct.merge(other.direct),
            excluded: [self.excluded, other.excluded].concat(),
            body_limits: [self.body_limits, other.body_limits].concat(),
        }
    }

    /// Gives the handlers their state.
    #[must_use]
    pub fn with_state(self, state: S) -> Routes {
        Routes {
            public: self.public.with_state(state.clone()),
            limited: self.limited.with_state(state.clone()),
            any_role: self.any_role.with_state(state.clone()),
            worker: self.worker.with_state(state.clone()),
            self_audited: self.self_audited.with_state(state.clone()),
            viewer: self.viewer.with_state(state.clone()),
            operator: self.operator.with_state(state.clone()),
            admin: self.admin.with_state(state.clone()),
            pages: self.pages.with_state(state.clone()),
            direct: self.direct.with_state(state),
            excluded: self.excluded,
            body_limits: self.body_limits,
        }
    }

    /// The routes' part of the OpenAPI document, credentials and common errors included.
    pub fn document(self) -> OpenApi {
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

    fn parts(self) -> [(OpenApiRouter<S>, Option<Need>); 8] {
        [
            (self.public, None),
            (self.limited, None),
            (self.any_role, Some(Need::AnyRole)),
            (self.worker, Some(Need::Worker)),
            (self.self_audited, Some(Need::Worker)),
            (self.viewer, Some(Need::Viewer)),
            (self.operator, Some(Need::Operator)),
            (self.admin, Some(Need::Admin)),
        ]
    }
}

impl Routes {
    /// The routes with authentication in front of them.
    pub(crate) fn authenticated(self, app: &App) -> Router<App> {
        let require = |routes: Router<App>, need, self_audited, page| {
            let requirement = Requirement { app: app.clone(), need, self_audited, page };
            if routes.has_routes() {
                routes.route_layer(from_fn_with_state(requirement, require::check))
            } else {
                routes
            }
        };
        let plain = |part: OpenApiRouter<App>| part.split_for_parts().0;
        let limited = plain(self.limited);
        let limited = if limited.has_routes() {
            limited.route_layer(from_fn_with_state(app.clone(), rate_limit::limit_public))
        } else {
            limited
        };
        plain(self.public)
            .merge(limited)
            .merge(require(plain(self.any_role), Need::AnyRole, false, false))
            .merge(require(plain(self.worker), Need::Worker, false, false))
            .merge(require(plain(self.self_audited), Need::Worker, true, false))
            .merge(require(plain(self.viewer), Need::Viewer, false, false))
            .merge(require(plain(self.operator), Need::Operator, false, false))
            .merge(require(plain(self.admin), Need::Admin, false, false))
            .merge(require(compressed(self.pages), Need::Viewer, false, true))
    }
}

/// Pages hold no secret, so they may be compressed.
fn compressed(pages: Router<App>) -> Router<App> {
    if pages.has_routes() { pages.route_layer(from_fn(compress::handle)) } else { pages }
}

/// The operations of a path.
pub(crate) fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
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
    if need.is_none() && operation.security.is_none() {
        operation.security = Some(Vec::new());
    }
    for (status, name) in answers {
        operation
            .responses
            .responses
            .entry(status.to_owned())
            .or_insert_with(|| RefOr::Ref(Ref::from_response_name(name)));
    }
}
