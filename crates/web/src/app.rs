//! [`App`]: what every handler shares, a cheap clone; and [`app`], the router made from it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::any;
use parking_lot::Mutex;
use store::Store;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::openapi::OpenApi;

use crate::auth::{Auth, Principal, Secret};
use crate::error::ApiError;
use crate::live::LiveHub;
use crate::openapi::KnownNames;
use crate::pages::settings::ShownSetting;
use crate::protected::ProtectedKeys;
use crate::rate_limit::{HeaderStyle, RequestLimiter};
use crate::requests::RequestCounter;
use crate::routes::{BodyLimit, Routes};
use crate::series::Series;
use crate::service::{Fragments, OpenService, Services};
use crate::settings::Settings;
use crate::store::usage::MemoryUsage;
use crate::webhook::Webhooks;
use crate::{
    access, audit, compress, format, health, history, live, metrics, middleware, openapi, pages,
    search, ui, webhook,
};

/// The parts of an [`App`].
#[derive(Debug)]
pub struct AppParts {
    /// The one door to data.
    pub store: Store,
    /// The services that run here.
    pub services: Vec<OpenService>,
    /// All services of the product, also those that do not run here.
    pub known_services: Services,
    /// Settings of the HTTP side.
    pub settings: Settings,
    /// This installation's admin token.
    pub admin_token: Option<Secret>,
    /// Name of this instance, for people: host and process, or what the operator set.
    pub instance: String,
    /// The configuration, for the settings page.
    pub shown_settings: Vec<ShownSetting>,
}

/// The state every handler shares.
#[derive(Debug, Clone)]
pub struct App(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    services: Vec<OpenService>,
    known_services: Services,
    fragments: Fragments,
    protected_keys: ProtectedKeys,
    settings: ArcSwap<Settings>,
    auth: Auth,
    instance: String,
    shown_settings: ArcSwap<Vec<ShownSetting>>,
    requests: RequestCounter,
    limiter: Option<Arc<dyn RequestLimiter>>,
    series: Series,
    /// The last walk through the keys, shared by all who look at the store.
    memory_usage: Mutex<Option<MemoryUsage>>,
    hub: LiveHub,
    started: Instant,
    stopping: CancellationToken,
    write_probe: health::WriteProbe,
    reading_cache: metrics::ReadingCache,
    webhooks: Webhooks,
    /// The names that each operation takes.
    known_names: OnceLock<KnownNames>,
    /// Limits of bodies of routes that have one of their own, by template.
    body_limits: OnceLock<HashMap<String, BodyLimit>>,
    /// Changes under way, which end whether or not their clients wait.
    tasks: TaskTracker,
}

impl App {
    /// Ties the parts together.
    pub fn new(parts: AppParts) -> App {
        metrics::install(parts.known_services);
        let fragments = parts
            .services
            .iter()
            .fold(pages::fragments(), |all, open| all.merge(open.running.fragments()));
        let limiter = parts.services.iter().find_map(|open| open.running.limiter());
        let webhooks = Webhooks::new(&parts.store, &parts.instance, parts.known_services);
        App(Arc::new(Inner {
            fragments,
            protected_keys: ProtectedKeys::of(parts.known_services),
            known_services: parts.known_services,
            auth: Auth::new(parts.admin_token.as_ref(), &parts.instance, parts.known_services),
            services: parts.services,
            settings: ArcSwap::from_pointee(parts.settings),
            instance: parts.instance,
            shown_settings: ArcSwap::from_pointee(parts.shown_settings),
            requests: RequestCounter::default(),
            limiter,
            series: Series::new(&parts.store),
            memory_usage: Mutex::default(),
            store: parts.store,
            hub: LiveHub::default(),
            started: Instant::now(),
            stopping: CancellationToken::new(),
            write_probe: health::WriteProbe::default(),
            reading_cache: metrics::ReadingCache::default(),
            webhooks,
            known_names: OnceLock::new(),
            body_limits: OnceLock::new(),
            tasks: TaskTracker::new(),
        }))
    }

    /// The one door to data.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// The services that run here.
    pub fn services(&self) -> &[OpenService] {
        &self.0.services
    }

    /// All services of the product, also those that do not run here.
    pub(crate) fn known_services(&self) -> Services {
        self.0.known_services
    }

    /// The live fragments of all pages.
    pub(crate) fn fragments(&self) -> &Fragments {
        &self.0.fragments
    }

    /// The keys that nobody reads through the key browser.
    pub(crate) fn protected_keys(&self) -> &ProtectedKeys {
        &self.0.protected_keys
    }

    /// The settings as they are now. Ask once per request, so that it sees one consistent set.
    pub fn settings(&self) -> Arc<Settings> {
        self.0.settings.load_full()
    }

    /// Swaps the settings; requests under way keep the old ones.
    pub fn set_settings(&self, settings: Settings, shown: Vec<ShownSetting>) {
        self.0.settings.store(Arc::new(settings));
        self.0.shown_settings.store(Arc::new(shown));
    }

    /// The configuration as the settings page shows it.
    pub fn shown_settings(&self) -> Arc<Vec<ShownSetting>> {
        self.0.shown_settings.load_full()
    }

    /// The one count of requests.
    pub fn requests(&self) -> &RequestCounter {
        &self.0.requests
    }

    /// The limits that a service keeps for the whole product, if one does.
    pub fn limiter(&self) -> Option<&Arc<dyn RequestLimiter>> {
        self.0.limiter.as_ref()
    }

    /// The headers that limited responses have.
    pub fn limit_headers(&self) -> HeaderStyle {
        self.limiter().map_or(HeaderStyle::Both, |limiter| limiter.header_style())
    }

    /// The history of the numbers that charts show.
    pub fn series(&self) -> &Series {
        &self.0.series
    }

    /// The last walk through the keys.
    pub(crate) fn memory_usage(&self) -> &Mutex<Option<MemoryUsage>> {
        &self.0.memory_usage
    }

    /// The live parts somebody looks at.
    pub(crate) fn hub(&self) -> &LiveHub {
        &self.0.hub
    }

    /// The last try whether the store takes writes.
    pub(crate) fn write_probe(&self) -> &health::WriteProbe {
        &self.0.write_probe
    }

    /// Tells programs and people elsewhere what happens.
    pub fn webhooks(&self) -> &Webhooks {
        &self.0.webhooks
    }

    /// The figures that were read last for `/metrics`.
    pub(crate) fn reading_cache(&self) -> &metrics::ReadingCache {
        &self.0.reading_cache
    }

    /// The names that each operation takes.
    pub(crate) fn known_names(&self) -> Option<&KnownNames> {
        self.0.known_names.get()
    }

    /// The largest body of a route that has a limit of its own.
    pub(crate) fn max_body_of(&self, route: &str) -> Option<usize> {
        self.0.body_limits.get()?.get(route).map(BodyLimit::get)
    }

    /// Checks credentials.
    pub fn auth(&self) -> &Auth {
        &self.0.auth
    }

    /// Owns the changes under way.
    pub fn tasks(&self) -> &TaskTracker {
        &self.0.tasks
    }

    /// Waits for the changes under way, after the server has stopped taking requests.
    pub async fn join(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    /// Name of this instance.
    pub fn instance(&self) -> &str {
        &self.0.instance
    }

    /// Returns the time since start.
    pub fn uptime(&self) -> std::time::Duration {
        self.0.started.elapsed()
    }

    /// Says that the server is stopping: `/readyz` turns 503, live streams end.
    pub fn stop(&self) {
        self.0.stopping.cancel();
    }

    /// Tells whether the server is stopping.
    pub fn stopping(&self) -> bool {
        self.0.stopping.is_cancelled()
    }

    /// Ends when the server stops. Long waits and streams end with it.
    pub fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        self.0.stopping.clone().cancelled_owned()
    }

    /// An error as a page, for browsers that navigate; inside the frame for those who are logged in.
    pub(crate) fn error_page(
        &self,
        error: &ApiError,
        request_id: &str,
        theme: Option<&'static str>,
        viewer: Option<Principal>,
    ) -> String {
        let status = error.status();
        let title = status.canonical_reason().unwrap_or("Error");
        let body = maud::html! {
            div.stack {
                div {
                    h1 { (status.as_u16()) " " (title) }
                    p { (format::sentence(error.message())) }
                }
                p.small.dim { "Request " code { (request_id) } }
                div.actions { a.btn.primary href="/" { "To the dashboard" } }
            }
        };
        match viewer {
            Some(viewer) => ui::Shell::of(viewer, theme).bare_page(self, "", title, &body),
            None => ui::plain(status.as_str(), theme, &body),
        }
        .into_string()
    }
}

/// The routes of the frame itself.
fn frame_routes() -> Routes {
    health::routes()
        .merge(access::routes())
        .merge(audit::routes())
        .merge(live::routes())
        .merge(history::routes())
        .merge(webhook::api::routes())
        .merge(search::routes())
        .merge(pages::routes())
}

/// The router with everything in front of it. Needs no socket: tests call it directly.
pub fn app(app: App) -> Router {
    let document = document(app.known_services());
    app.0.known_names.get_or_init(|| openapi::known_names(&document));
    let document = openapi::json(&document);
    let mut frame = frame_routes();
    let open_document = axum::routing::get(async move || openapi::response(&document));
    frame.limited = frame.limited.merge(
        Router::new()
            .route("/api/openapi.json", open_document)
            .route_layer(from_fn(compress::handle))
            .into(),
    );
    let mut excluded: HashSet<String> = frame.excluded.drain(..).collect();
    let mut direct = std::mem::take(&mut frame.direct);
    let mut body_limits: HashMap<String, BodyLimit> = frame.body_limits.drain(..).collect();
    let mut router = frame.authenticated(&app);
    for open in app.services() {
        let mut routes = open.running.routes(&app);
        excluded.extend(routes.excluded.drain(..));
        direct = direct.merge(std::mem::take(&mut routes.direct));
        body_limits.extend(routes.body_limits.drain(..));
        router = router.merge(open.running.wrap(routes.authenticated(&app), &app));
    }
    app.requests().own().exclude(excluded);
    app.0.body_limits.get_or_init(|| body_limits);
    router
        .merge(absent(&app))
        .fallback(async || ApiError::not_found("there is nothing under this path"))
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(app.clone(), middleware::handle))
        .merge(direct)
        .with_state(app)
}

/// The routes of services that do not run here: each says so, instead of not being found.
fn absent(app: &App) -> Router<App> {
    let runs = |name: &str| app.services().iter().any(|open| open.service.name() == name);
    let mut router = Router::new();
    for service in app.known_services().iter().filter(|service| !runs(service.name())) {
        let name = service.name();
        for path in service.document().paths.paths.keys() {
            router = router.route(
                path,
                any(async move || {
                    let message = format!("the service {name} does not run on this instance");
                    ApiError::unavailable("SERVICE_OFF", message)
                }),
            );
        }
    }
    router
}

/// The OpenAPI document of the frame and of all services.
pub fn document(services: Services) -> OpenApi {
    let mut document = frame_routes().document();
    for service in services {
        document.merge(service.document());
    }
    openapi::complete(document, services)
}
