//! The dashboard: pages rendered here, brought to life by one stream of parts (see `live.rs`) and a
//! few small scripts in `web/`. Pages work without them; acts need them.
//!
//! To add a page: a file in `dashboard/` with its handler and its parts, a row in [`Nav`], its
//! route in [`section`], its topic in [`part`]. The visual system is in `web/style.css` and
//! `dashboard/ui.rs`; there is no inline style or script, the policy forbids both.

pub mod assets;
pub mod audit;
pub mod chart;
pub mod docs;
pub mod format;
pub mod icon;
pub mod jobs;
pub mod login;
pub mod overview;
pub mod room;
pub mod settings;
pub mod store;
pub mod try_it;
pub mod ui;

use axum::Router;
use axum::routing::get;
use maud::Markup;

use crate::app::App;
use crate::section::Section;

pub use self::ui::{Nav, Shell};

/// The routes.
pub(crate) fn section() -> Section {
    let open = Router::new().merge(assets::router()).merge(login::router()).merge(docs::router());
    let pages = Router::new()
        .route("/", get(overview::page))
        .route("/room", get(room::page))
        .route("/room/{queue}", get(room::queue::page))
        .route("/jobs", get(jobs::page))
        .route("/jobs/{state}", get(jobs::list::page))
        .route("/jobs/job/{id}", get(jobs::job::page))
        .route("/jobs/schedules", get(jobs::schedules::page))
        .route("/jobs/workers", get(jobs::workers::page))
        .route("/jobs/stranded", get(jobs::stranded::page))
        .route("/store", get(store::page))
        .route("/store/key", get(store::key_page))
        .route("/audit", get(audit::page))
        .route("/settings", get(settings::page))
        .route("/api", get(try_it::page))
        .route("/api/", get(async || axum::response::Redirect::permanent("/api")));
    Section { public: open.into(), pages, ..Section::default() }
}

/// Whether there is a live part of this name.
pub(crate) fn has_part(topic: &str) -> bool {
    let known = [
        "overview",
        "room",
        "queue",
        "jobs",
        "job",
        "job-list",
        "job-tabs",
        "schedules",
        "workers",
        "stranded",
        "store",
    ];
    known.contains(&split(topic).0)
}

/// A live part of a page, rendered now. `None` when there is none of this name.
pub(crate) async fn part(app: &App, topic: &str) -> Option<Markup> {
    let (name, arguments) = split(topic);
    match name {
        "overview" => Some(overview::part(app).await),
        "room" => Some(room::part(app, arguments == "acts").await),
        "queue" => Some(room::queue::part(app, arguments).await),
        "jobs" => Some(jobs::part(app, arguments == "acts").await),
        "job" => Some(jobs::job::part(app, arguments).await),
        "job-list" => Some(jobs::list::part(app, arguments).await),
        "job-tabs" => Some(jobs::tabs_part(app, arguments).await),
        "schedules" => Some(jobs::schedules::part(app, arguments == "acts").await),
        "workers" => Some(jobs::workers::part(app).await),
        "stranded" => Some(jobs::stranded::part(app).await),
        "store" => Some(store::part(app).await),
        _ => None,
    }
}

/// `jobs?state=failed` → `jobs`, `state=failed`.
fn split(topic: &str) -> (&str, &str) {
    topic.split_once('?').unwrap_or((topic, ""))
}

/// What the services add to the charts every two seconds: name of the line, value.
pub(crate) async fn sample(app: &App) -> Vec<(String, f64)> {
    let mut samples = store::sample(app).await;
    if let Some(room) = &app.services().room {
        samples.extend(room::sample(room).await);
    }
    if let Some(jobs) = &app.services().jobs {
        samples.extend(jobs::sample(jobs).await);
    }
    samples
}
