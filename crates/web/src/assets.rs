//! Files that browsers load, inside the binary. Their address carries a hash of all files of a set,
//! so that browsers may keep them for good and still never see an old one.

use std::sync::OnceLock;

use axum::Router;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

use crate::app::App;
use crate::auth::hex;
use crate::compress::{self, ContentCoding};
use crate::error::ApiError;
use crate::extract::Path;

/// A file: name, media type, content, and the content compressed with Brotli.
pub type Asset = (&'static str, &'static str, &'static [u8], &'static [u8]);

/// A file of the calling crate's `assets`, which its build script (`web/build.rs`) has compressed.
#[macro_export]
macro_rules! asset {
    ($name:literal, $kind:expr) => {
        (
            $name,
            $kind,
            include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/", $name)),
            include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".br")),
        )
    };
}

/// Media type of style sheets.
pub const CSS: &str = "text/css; charset=utf-8";
/// Media type of scripts.
pub const JS: &str = "text/javascript; charset=utf-8";
/// Media type of icons.
pub const SVG: &str = "image/svg+xml";

/// The mark of the product as a file.
pub const ICON: Asset = asset!("icon.svg", SVG);

/// A set of files under one path.
#[derive(Debug)]
pub struct Assets {
    path: &'static str,
    files: &'static [Asset],
    version: OnceLock<String>,
    /// Each file compressed with gzip, made when one is first asked for; `None` where that gains nothing.
    packed: OnceLock<Vec<Option<Vec<u8>>>>,
}

impl Assets {
    /// The files of a set, and the path they are under.
    pub const fn new(path: &'static str, files: &'static [Asset]) -> Assets {
        Assets { path, files, version: OnceLock::new(), packed: OnceLock::new() }
    }

    /// The address of a file.
    pub fn url(&self, name: &str) -> String {
        let version = self.version.get_or_init(|| {
            let mut hash = Sha256::new();
            for (name, _, content, _) in self.files {
                hash.update(name.as_bytes());
                hash.update(content);
            }
            hex(&hash.finalize()).chars().take(12).collect()
        });
        format!("{}/{version}/{name}", self.path)
    }

    /// The content of a file, compressed as the client accepts. Files hold no secret.
    pub fn serve(&'static self, name: &str, accepts: &HeaderMap) -> Result<Response, ApiError> {
        let (index, (_, kind, content, brotli)) = self
            .files
            .iter()
            .enumerate()
            .find(|(_, (known, ..))| *known == name)
            .ok_or_else(|| ApiError::not_found("file not found"))?;
        let takes = |coding| compress::accepts(accepts, coding);
        let packed = if takes(ContentCoding::Brotli) && brotli.len() < content.len() {
            Some((*brotli, ContentCoding::Brotli))
        } else if takes(ContentCoding::Gzip) {
            self.packed(index).map(|packed| (packed, ContentCoding::Gzip))
        } else {
            None
        };
        let mut response = packed.map_or(*content, |(packed, _)| packed).into_response();
        let headers = response.headers_mut();
        if let Some((_, coding)) = packed {
            compress::mark(headers, coding);
        }
        compress::vary(headers);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static("public, max-age=31536000, immutable"),
        );
        Ok(response)
    }

    fn packed(&'static self, index: usize) -> Option<&'static [u8]> {
        let all = self.packed.get_or_init(|| {
            self.files.iter().map(|(_, _, content, _)| compress::gzip(content, true)).collect()
        });
        all.get(index)?.as_deref()
    }

    /// The template of the set's route.
    pub fn template(&self) -> String {
        format!("{}/{{version}}/{{name}}", self.path)
    }

    /// The route of the set. Any version is served with the newest content: an old page that asks
    /// late gets a working file.
    pub fn router<S: Clone + Send + Sync + 'static>(&'static self) -> Router<S> {
        let file = move |Path((_, name)): Path<(String, String)>, headers: HeaderMap| async move {
            self.serve(&name, &headers)
        };
        Router::new().route(&self.template(), get(file))
    }
}

/// The files of the dashboard.
static DASHBOARD: Assets = Assets::new(
    "/assets",
    &[
        asset!("style.css", CSS),
        asset!("app.js", JS),
        asset!("live.js", JS),
        asset!("act.js", JS),
        asset!("chart.js", JS),
        asset!("first.js", JS),
        asset!("palette.js", JS),
        asset!("preview.js", JS),
        asset!("time.js", JS),
        asset!("keyboard.js", JS),
        asset!("try.js", JS),
        ICON,
    ],
);

/// The address of a file of the dashboard.
pub fn url(name: &str) -> String {
    DASHBOARD.url(name)
}

pub(crate) fn router() -> Router<App> {
    DASHBOARD.router().route(
        "/favicon.ico",
        get(async |headers: HeaderMap| DASHBOARD.serve("icon.svg", &headers)),
    )
}

/// The templates of the routes, which are no traffic.
pub(crate) fn templates() -> Vec<String> {
    vec![DASHBOARD.template(), "/favicon.ico".to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_what_was_compressed() {
        for (name, _, content, packed) in DASHBOARD.files {
            let mut plain = Vec::new();
            brotli::BrotliDecompress(&mut &packed[..], &mut plain).unwrap();
            assert!(plain == *content, "{name}");
        }
    }
}
