//! The frame's own pages: overview, login, audit, settings, documentation, and the API to try.
//!
//! Pages are rendered here and brought to life by one stream of fragments (see `live.rs`) and a few
//! small scripts in `assets/`. They work without those; actions need them. The visual system is in
//! `assets/style.css` and `ui.rs`; there is no inline style or script, the policy forbids both.

pub mod audit;
pub mod docs;
pub mod login;
pub mod overview;
pub mod settings;
pub mod try_it;
pub mod webhooks;

use axum::Router;
use axum::routing::get;

use crate::app::App;
use crate::assets;
use crate::routes::Routes;
use crate::service::Fragments;

/// The routes.
pub(crate) fn routes() -> Routes {
    let (own, limited) = login::routers();
    let open = assets::router().merge(own);
    let limited = limited.merge(docs::router());
    let pages = Router::new()
        .route("/", get(overview::page))
        .route("/audit", get(audit::page))
        .route("/audit/export", get(audit::export))
        .route("/settings", get(settings::page))
        .route("/webhooks", get(webhooks::page))
        .route("/webhooks/{id}", get(webhooks::one))
        .route("/api", get(try_it::page))
        .route("/api/", get(async || axum::response::Redirect::permanent("/api")));
    let excluded = assets::templates();
    Routes { public: open.into(), limited: limited.into(), pages, excluded, ..Routes::default() }
}

/// The live fragments.
pub(crate) fn fragments() -> Fragments {
    Fragments::default()
        .add("overview", async |app: App, _| overview::part(&app).await)
        .add("first-run", async |app: App, _| overview::first_run(&app, "").await)
}
