//! Files that browsers load, inside the binary. Their address carries a hash of all files of a set,
//! so that browsers may keep them for good and still never see an old one.

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

/// A file: name, media type, content.
pub type Asset = (&'static str, &'static str, &'static [u8]);

/// Media type of style sheets.
pub const CSS: &str = "text/css; charset=utf-8";
/// Media type of scripts.
pub const JS: &str = "text/javascript; charset=utf-8";
/// Media type of icons.
pub const SVG: &str = "image/svg+xml";

/// The mark of the product as a file.
pub const ICON: Asset = ("icon.svg", SVG, include_bytes!("../assets/icon.svg"));

/// A set of files under one path.
#[derive(Debug)]
pub struct Assets {
    path: &'static str,
    files: &'static [Asset],
    version: OnceLock<String>,
}

impl Assets {
    /// The files of a set, and the path they are under.
    pub const fn new(path: &'static str, files: &'static [Asset]) -> Assets {
        Assets { path, files, version: OnceLock::new() }
    }

    /// The address of a file.
    pub fn url(&self, name: &str) -> String {
        let version = self.version.get_or_init(|| {
            let mut hash = Sha256::new();
            for (name, _, content) in self.files {
                hash.update(name.as_bytes());
                hash.update(content);
            }
            hex(&hash.finalize()).chars().take(12).collect()
        });
        format!("{}/{version}/{name}", self.path)
    }

    /// The content of a file.
    pub fn serve(&self, name: &str) -> Result<Response, ApiError> {
        let (_, kind, content) = self
            .files
            .iter()
            .find(|(known, _, _)| *known == name)
            .ok_or_else(|| ApiError::not_found("file not found"))?;
        let mut response = content.into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static("public, max-age=31536000, immutable"),
        );
        Ok(response)
    }

    /// The route of the set. Any version is served with the newest content: an old page that asks
    /// late gets a working file.
    pub fn router<S: Clone + Send + Sync + 'static>(&'static self) -> Router<S> {
        let file = move |Path((_, name)): Path<(String, String)>| async move { self.serve(&name) };
        Router::new().route(&format!("{}/{{version}}/{{name}}", self.path), get(file))
    }
}

/// The files of the dashboard.
static DASHBOARD: Assets = Assets::new(
    "/assets",
    &[
        ("style.css", CSS, include_bytes!("../assets/style.css")),
        ("app.js", JS, include_bytes!("../assets/app.js")),
        ("live.js", JS, include_bytes!("../assets/live.js")),
        ("act.js", JS, include_bytes!("../assets/act.js")),
        ("chart.js", JS, include_bytes!("../assets/chart.js")),
        ("time.js", JS, include_bytes!("../assets/time.js")),
        ("keyboard.js", JS, include_bytes!("../assets/keyboard.js")),
        ("try.js", JS, include_bytes!("../assets/try.js")),
        ICON,
    ],
);

/// The address of a file of the dashboard.
pub fn url(name: &str) -> String {
    DASHBOARD.url(name)
}

pub(crate) fn router() -> Router<App> {
    DASHBOARD.router().route("/favicon.ico", get(async || DASHBOARD.serve("icon.svg")))
}
