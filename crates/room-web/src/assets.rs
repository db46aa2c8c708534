//! The files of the waiting page, under its own path, where a guarded site's visitors find them.

use axum::Router;
use web::assets::{Assets, CSS, ICON, JS};

static WAITING_PAGE: Assets = Assets::new(
    "/_wr/assets",
    &[
        ("waiting.css", CSS, include_bytes!("../assets/waiting.css")),
        ("waiting.js", JS, include_bytes!("../assets/waiting.js")),
        ICON,
    ],
);

/// The address of a file of the waiting page.
pub(crate) fn url(name: &str) -> String {
    WAITING_PAGE.url(name)
}

/// The route of the files.
pub(crate) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    WAITING_PAGE.router()
}
