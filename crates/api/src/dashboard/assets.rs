//! The files of `web/`, inside the binary. Their address carries a hash of all of them, so that
//! browsers may keep them for good and still never see an old one.

use std::sync::OnceLock;

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

use crate::app::App;
use crate::auth::hex;
use crate::error::ApiError;
use crate::extract::Path;

/// Name, type and content of every file.
const FILES: &[(&str, &str, &[u8])] = &[
    ("style.css", CSS, include_bytes!("../../../../web/style.css")),
    ("app.js", JS, include_bytes!("../../../../web/app.js")),
    ("live.js", JS, include_bytes!("../../../../web/live.js")),
    ("act.js", JS, include_bytes!("../../../../web/act.js")),
    ("chart.js", JS, include_bytes!("../../../../web/chart.js")),
    ("time.js", JS, include_bytes!("../../../../web/time.js")),
    ("keyboard.js", JS, include_bytes!("../../../../web/keyboard.js")),
    ("try.js", JS, include_bytes!("../../../../web/try.js")),
    ("waiting.css", CSS, include_bytes!("../../../../web/waiting.css")),
    ("waiting.js", JS, include_bytes!("../../../../web/waiting.js")),
    ("icon.svg", SVG, include_bytes!("../../../../web/icon.svg")),
];

const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Where a file is.
pub(crate) fn url(name: &str) -> String {
    static VERSION: OnceLock<String> = OnceLock::new();
    let version = VERSION.get_or_init(|| {
        let mut hash = Sha256::new();
        for (name, _, content) in FILES {
            hash.update(name.as_bytes());
            hash.update(content);
        }
        hex(&hash.finalize()).chars().take(12).collect()
    });
    format!("/assets/{version}/{name}")
}

/// Where a file is for the waiting page, which must find everything under its own path.
pub(crate) fn room_url(name: &str) -> String {
    format!("/_wr{}", url(name))
}

pub(crate) fn router() -> Router<App> {
    Router::new()
        .route("/assets/{version}/{name}", get(file))
        .route("/favicon.ico", get(async || serve("icon.svg")))
}

/// Any version is served with the newest content: an old page that asks late gets a working file.
pub(crate) async fn file(Path((_, name)): Path<(String, String)>) -> Result<Response, ApiError> {
    serve(&name)
}

fn serve(name: &str) -> Result<Response, ApiError> {
    let (_, kind, content) = FILES
        .iter()
        .find(|(known, _, _)| *known == name)
        .ok_or_else(|| ApiError::not_found("there is no such file"))?;
    let mut response = content.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("public, max-age=31536000, immutable"),
    );
    Ok(response)
}
