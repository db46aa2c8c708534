//! [`App`]: what every handler shares, a cheap clone; and [`app`], the router made from it.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::any;
use store::Store;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::openapi::OpenApi;

use crate::auth::{Auth, Secret};
use crate::error::ApiError;
use crate::live::LiveHub;
use crate::openapi::KnownNames;
use crate::pages::settings::ShownSetting;
use crate::protected::ProtectedKeys;
use crate::routes::Routes;
use crate::series::{Meter, Series, float};
use crate::service::{Fragments, OpenService, Services};
use crate::settings::Settings;
use crate::{access, audit, health, live, metrics, middleware, openapi, pages, process, ui};

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
    meter: Meter,
    series: Series,
    hub: LiveHub,
    started: Instant,
    stopping: CancellationToken,
    write_probe: health::WriteProbe,
    /// The names that each operation takes.
    known_names: OnceLock<KnownNames>,
    /// Changes under way, which end whether or not their clients wait.
    tasks: TaskTracker,
}

impl App {
    /// Ties the parts together.
    pub fn new(parts: AppParts) -> App {
        metrics::recorder();
        let fragments = parts
            .services
            .iter()
            .fold(pages::fragments(), |all, open| all.merge(open.running.fragments()));
        App(Arc::new(Inner {
            fragments,
            protected_keys: ProtectedKeys::of(parts.known_services),
            known_services: parts.known_services,
            auth: Auth::new(parts.admin_token.as_ref(), &parts.instance, parts.known_services),
            store: parts.store,
            services: parts.services,
            settings: ArcSwap::from_pointee(parts.settings),
            instance: parts.instance,
            shown_settings: ArcSwap::from_pointee(parts.shown_settings),
            meter: Meter::default(),
            series: Series::default(),
            hub: LiveHub::default(),
            started: Instant::now(),
            stopping: CancellationToken::new(),
            write_probe: health::WriteProbe::default(),
            known_names: OnceLock::new(),
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

    /// Counts and times of requests.
    pub fn meter(&self) -> &Meter {
        &self.0.meter
    }

    /// The last quarter of an hour in numbers.
    pub fn series(&self) -> &Series {
        &self.0.series
    }

    /// The live parts somebody looks at.
    pub(crate) fn hub(&self) -> &LiveHub {
        &self.0.hub
    }

    /// The last try whether the store takes writes.
    pub(crate) fn write_probe(&self) -> &health::WriteProbe {
        &self.0.write_probe
    }

    /// The names that each operation takes.
    pub(crate) fn known_names(&self) -> Option<&KnownNames> {
        self.0.known_names.get()
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

    /// Brings the gauges up to date before they are read.
    pub(crate) fn gauges(&self) {
        ::metrics::gauge!("tidegate_uptime_seconds").set(self.uptime().as_secs_f64());
        if let Some(bytes) = process::resident_bytes() {
            ::metrics::gauge!("tidegate_resident_bytes").set(float(bytes));
        }
        if let Some(files) = process::open_files() {
            ::metrics::gauge!("tidegate_open_files").set(float(files as u64));
        }
        for open in self.services() {
            open.running.update_metrics();
        }
    }

    /// An error as a page, for browsers that navigate.
    pub(crate) fn error_page(
        &self,
        error: &ApiError,
        request_id: &str,
        theme: Option<&'static str>,
    ) -> String {
        let status = error.status();
        let body = maud::html! {
            div.stack {
                div {
                    h1 { (status.as_u16()) " " (status.canonical_reason().unwrap_or("Error")) }
                    p { (error.message()) }
                }
                p.small.dim { "Request " code { (request_id) } }
                a.btn.primary href="/" { "To the dashboard" }
            }
        };
        ui::plain(status.as_str(), theme, &body).into_string()
    }
}

/// The routes of the frame itself.
fn frame_routes() -> Routes {
    health::routes()
        .merge(access::routes())
        .merge(audit::routes())
        .merge(live::routes())
        .merge(pages::routes())
}

/// The router with everything in front of it. Needs no socket: tests call it directly.
pub fn app(app: App) -> Router {
    let document = document(app.known_services());
    app.0.known_names.get_or_init(|| openapi::known_names(&document));
    let document = openapi::json(&document);
    let mut router = frame_routes().authenticated(&app);
    for open in app.services() {
        let routes = open.running.routes(&app).authenticated(&app);
        router = router.merge(open.running.wrap(routes, &app));
    }
    router
        .merge(absent(&app))
        .route("/api/openapi.json", axum::routing::get(async move || openapi::response(&document)))
        .fallback(async || ApiError::not_found("there is nothing under this path"))
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(app.clone(), middleware::handle))
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
