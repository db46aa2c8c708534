//! The files of the waiting page, under its own path, where a guarded site's visitors find them.

use axum::Router;
use web::asset;
use web::assets::{Assets, CSS, ICON, JS};

static WAITING_PAGE: Assets =
    Assets::new("/_wr/assets", &[asset!("waiting.css", CSS), asset!("waiting.js", JS), ICON]);

/// The address of a file of the waiting page.
pub(crate) fn url(name: &str) -> String {
    WAITING_PAGE.url(name)
}

/// The route of the files.
pub(crate) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    WAITING_PAGE.router()
}

/// The template of their route, which is no traffic.
pub(crate) fn template() -> String {
    WAITING_PAGE.template()
}
