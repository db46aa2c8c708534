//! [`App`]: what every handler shares, a cheap clone; and [`app`], the router made from it.
//!
//! To add a service: give [`Services`] a field with its handle, write `<service>.rs` with a
//! `section()`, and name that in [`sections`]. To add a page, see `dashboard.rs`.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use store::Store;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::openapi::OpenApi;

use crate::auth::{Auth, Secret};
use crate::dashboard::Nav;
use crate::dashboard::settings::ShownSetting;
use crate::error::ApiError;
use crate::live::Hub;
use crate::room::{limits::Polls, stream::Streams};
use crate::section::Section;
use crate::series::{Meter, Series, float};
use crate::settings::Settings;
use crate::{access, audit, dashboard, front, health, live, metrics, openapi, process};

/// Handles on the services this process runs; `None` means switched off with `--only`.
#[derive(Debug, Clone, Default)]
pub struct Services {
    /// The waiting room.
    pub room: Option<room::Room>,
    /// The job queue.
    pub jobs: Option<jobs::Jobs>,
}

impl Services {
    /// Whether there is anything to see on a page here.
    pub(crate) fn runs(&self, page: Nav) -> bool {
        match page {
            Nav::Room => self.room.is_some(),
            Nav::Jobs => self.jobs.is_some(),
            _ => true,
        }
    }
}

/// What an [`App`] is made of.
#[derive(Debug)]
pub struct Parts {
    /// The one door to data.
    pub store: Store,
    /// The services that run here.
    pub services: Services,
    /// How to serve.
    pub settings: Settings,
    /// This installation's admin token.
    pub admin_token: Option<Secret>,
    /// Name of this instance, for people: host and process, or what the operator set.
    pub instance: String,
    /// The configuration, for the settings page.
    pub shown_settings: Vec<ShownSetting>,
}

/// What every handler shares.
#[derive(Debug, Clone)]
pub struct App(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    services: Services,
    settings: ArcSwap<Settings>,
    auth: Auth,
    instance: String,
    shown_settings: ArcSwap<Vec<ShownSetting>>,
    meter: Meter,
    series: Series,
    hub: Hub,
    room_streams: Streams,
    room_polls: Polls,
    started: Instant,
    stopping: CancellationToken,
    write_probe: health::WriteProbe,
    /// Changes under way, which end whether or not their clients wait.
    tasks: TaskTracker,
}

impl App {
    /// Ties the parts together.
    pub fn new(parts: Parts) -> App {
        metrics::recorder();
        App(Arc::new(Inner {
            auth: Auth::new(parts.admin_token.as_ref(), &parts.instance),
            store: parts.store,
            services: parts.services,
            settings: ArcSwap::from_pointee(parts.settings),
            instance: parts.instance,
            shown_settings: ArcSwap::from_pointee(parts.shown_settings),
            meter: Meter::default(),
            series: Series::default(),
            hub: Hub::default(),
            room_streams: Streams::default(),
            room_polls: Polls::default(),
            started: Instant::now(),
            stopping: CancellationToken::new(),
            write_probe: health::WriteProbe::default(),
            tasks: TaskTracker::new(),
        }))
    }

    /// The one door to data.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// The services that run here.
    pub fn services(&self) -> &Services {
        &self.0.services
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
    pub(crate) fn hub(&self) -> &Hub {
        &self.0.hub
    }

    /// Visitors' live streams.
    pub(crate) fn room_streams(&self) -> &Streams {
        &self.0.room_streams
    }

    /// How often visitors ask.
    pub(crate) fn room_polls(&self) -> &Polls {
        &self.0.room_polls
    }

    /// The last try whether the store takes writes.
    pub(crate) fn write_probe(&self) -> &health::WriteProbe {
        &self.0.write_probe
    }

    /// Checks credentials.
    pub fn auth(&self) -> &Auth {
        &self.0.auth
    }

    /// Owns the changes under way.
    pub(crate) fn tasks(&self) -> &TaskTracker {
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

    /// How long it has been up.
    pub fn uptime(&self) -> std::time::Duration {
        self.0.started.elapsed()
    }

    /// Says that the server is stopping: `/readyz` turns 503, live streams end.
    pub fn stop(&self) {
        self.0.stopping.cancel();
    }

    /// Whether the server is stopping.
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
        let streams = u64::try_from(self.room_streams().open()).unwrap_or(u64::MAX);
        ::metrics::gauge!("waiting_room_open_streams").set(float(streams));
        if let Some(files) = process::open_files() {
            ::metrics::gauge!("tidegate_open_files").set(float(files as u64));
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
        dashboard::ui::plain(status.as_str(), theme, &body).into_string()
    }
}

/// Every service's routes. The one list to add to.
fn sections() -> Section {
    health::section()
        .merge(access::section())
        .merge(audit::section())
        .merge(crate::store::section())
        .merge(live::section())
        .merge(dashboard::section())
        .merge(crate::room::section())
        .merge(crate::gate::section())
        .merge(crate::waiting::section())
        .merge(crate::jobs::section())
}

/// The router with everything in front of it. Needs no socket: tests call it directly.
pub fn app(app: App) -> Router {
    let document = openapi::json(&document());
    sections()
        .guarded(&app)
        .route("/api/openapi.json", axum::routing::get(async move || openapi::response(&document)))
        .fallback(async || ApiError::not_found("there is nothing under this path"))
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(app.clone(), crate::room::cors::handle))
        .layer(from_fn_with_state(app.clone(), front::handle))
        .with_state(app)
}

/// The OpenAPI document of all services.
pub fn document() -> OpenApi {
    openapi::complete(sections().document())
}
