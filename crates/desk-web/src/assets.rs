//! The files of the chat's clients: the widget's panel and the agents' console.

use axum::Router;
use web::asset;
use web::assets::{Assets, CSS, ICON, JS};

/// Everything but the launcher and the service worker, which are served by themselves.
static CHAT_CLIENTS: Assets = Assets::new(
    "/desk/assets",
    &[
        asset!("panel.css", CSS),
        asset!("panel.js", JS),
        asset!("console.css", CSS),
        asset!("console.js", JS),
        asset!("login.js", JS),
        asset!("manage.js", JS),
        asset!("link.js", JS),
        asset!("rows.js", JS),
        asset!("text.js", JS),
        ICON,
    ],
);

/// The script that sites include.
pub(crate) static LAUNCHER: Assets = Assets::new("/widget-script", &[asset!("widget.js", JS)]);

/// The console's service worker: its address never changes either.
pub(crate) static WORKER: Assets = Assets::new("/desk-worker", &[asset!("worker.js", JS)]);

/// The address of a file.
pub(crate) fn url(name: &str) -> String {
    CHAT_CLIENTS.url(name)
}

/// The route of the files.
pub(crate) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    CHAT_CLIENTS.router()
}

/// The template of their route, which is no traffic.
pub(crate) fn template() -> String {
    CHAT_CLIENTS.template()
}
