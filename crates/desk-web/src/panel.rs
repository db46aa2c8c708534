//! The widget as sites see it: the script, the panel in its frame, and the panel as a page of its own.
//!
//! The panel is the one page of ours that another site may frame, and only those of `desk.widget_origins` may.
//! Its policy allows no inline script or style; the texts are a block of data.

use std::sync::atomic::Ordering;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Deserialize;
use web::extract::Query;
use web::middleware::PAGE_POLICY;
use web::{ApiError, Routes};

use crate::assets;
use crate::demo::chat::{NEWCOMER_EMAIL, NEWCOMER_PASSWORD};
use crate::service::DeskState;

/// The routes.
pub(crate) fn routes() -> Routes<DeskState> {
    let router = Router::new()
        .route("/widget.js", get(script))
        .route("/widget", get(frame))
        .route("/chat", get(page))
        .route("/demo/shop", get(shop));
    let excluded = ["/widget.js", "/widget", "/chat", "/demo/shop"].map(str::to_owned).to_vec();
    Routes { public: router.into(), excluded, ..Routes::default() }
}

/// A language of the panel: its tag, and its texts as JSON.
#[derive(Debug)]
struct PanelLanguage {
    tag: &'static str,
    words: &'static str,
}

/// The languages; the first one where none fits.
static LANGUAGES: [PanelLanguage; 3] = [
    PanelLanguage { tag: "en", words: include_str!("../assets/words.en.json") },
    PanelLanguage { tag: "de", words: include_str!("../assets/words.de.json") },
    PanelLanguage { tag: "es", words: include_str!("../assets/words.es.json") },
];

/// Languages that are written from right to left. The panel lays itself out for them, whatever its texts.
const RIGHT_TO_LEFT: [&str; 8] = ["ar", "dv", "fa", "he", "ps", "ur", "yi", "ckb"];

/// Options of the panel's page.
#[derive(Debug, Default, Deserialize)]
struct PanelQuery {
    /// Language, instead of the browser's.
    lang: Option<String>,
    /// `light` or `dark`, instead of the system's.
    theme: Option<String>,
    /// `rtl` or `ltr`, instead of the language's.
    dir: Option<String>,
    /// Colour of the site, `#rrggbb`. A page of its own only: the script hands it to the frame.
    color: Option<String>,
    /// Greeting. A page of its own only.
    greeting: Option<String>,
    /// Title. A page of its own only.
    title: Option<String>,
}

/// Serves the script that sites include. It keeps its address, so browsers ask again every few minutes.
async fn script(headers: HeaderMap) -> Result<Response, ApiError> {
    let mut response = assets::LAUNCHER.serve("widget.js", &headers)?;
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=300"));
    headers.insert(
        header::HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("cross-origin"),
    );
    Ok(response)
}

/// Serves the panel to a frame of a site.
async fn frame(
    State(state): State<DeskState>,
    headers: HeaderMap,
    Query(query): Query<PanelQuery>,
) -> Response {
    let framed = PanelQuery { color: None, greeting: None, title: None, ..query };
    let origins = state.desk.widget_origins.load();
    let ancestors = origins
        .iter()
        .fold("frame-ancestors 'self'".to_owned(), |list, origin| list + " " + origin);
    shown(&document(&headers, &framed, "framed"), &ancestors)
}

/// Serves the panel as a page of its own, for those without a site.
async fn page(headers: HeaderMap, Query(query): Query<PanelQuery>) -> Response {
    shown(&document(&headers, &query, "full"), "frame-ancestors 'none'")
}

/// Serves a shop that does not exist, with the widget, to try the chat against the console in another window.
/// Only a demo has it.
async fn shop(State(state): State<DeskState>, headers: HeaderMap) -> Result<Markup, ApiError> {
    if !state.desk.is_demo.load(Ordering::Relaxed) {
        return Err(ApiError::not_found("there is nothing under this path"));
    }
    let body = html! {
        header.top.always { span.brand { "Harbour Coffee" } }
        main.page #main {
            div.page-head { div.titles { h1 { "Fresh from the roaster" } p { "A shop to try the chat: open it at the bottom right, and answer in the console in another window." } } }
            div.tiles {
                @for (name, price, about) in [
                    ("Morning Tide", "€ 9.50", "250 g, light roast, citrus and honey"),
                    ("Deep Water", "€ 10.20", "250 g, dark roast, cocoa and walnut"),
                    ("Lighthouse Decaf", "€ 9.90", "250 g, without caffeine, with everything else"),
                ] { section.card { div.card-body { h2 { (name) } p { (about) } p { b { (price) } } } } }
            }
            section.card { div.card-body {
                h2 { "Answer yourself" }
                p { "Open " a href="/desk" target="_blank" { "the console" } " in another window and log in as " code { (NEWCOMER_EMAIL) } " with the password " code { (NEWCOMER_PASSWORD) } ". You are Robin Vale there. While you are online, what you write here comes to you; else an agent of the demo answers." }
            } }
        }
        script src="/widget.js" async data-greeting="Hello! Questions about our coffee?" {}
    };
    Ok(web::ui::open_page("Harbour Coffee", web::ui::theme(&headers), &body))
}

fn shown(markup: &Markup, ancestors: &str) -> Response {
    let mut response = markup.0.clone().into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Language"));
    // Pictures that were chosen and not sent yet are shown from the browser's memory.
    let policy = PAGE_POLICY
        .replace("img-src 'self' data:", "img-src 'self' blob:")
        .replace("frame-ancestors 'none'", ancestors);
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// The primary part of a language tag, in lower case: `de` of `de-CH`.
fn primary(tag: &str) -> String {
    tag.split(['-', '_', ';']).next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Returns the language asked for, else the first of `Accept-Language` that we have.
fn language(asked: Option<&str>, headers: &HeaderMap) -> &'static PanelLanguage {
    let known = |tag: &str| LANGUAGES.iter().find(|language| language.tag == primary(tag));
    let accepted = headers.get(header::ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok());
    let [english, ..] = &LANGUAGES;
    match asked {
        Some(tag) => known(tag).unwrap_or(english),
        None => accepted.unwrap_or_default().split(',').find_map(known).unwrap_or(english),
    }
}

fn document(headers: &HeaderMap, query: &PanelQuery, class: &str) -> Markup {
    let language = language(query.lang.as_deref(), headers);
    let is_rtl = match query.dir.as_deref() {
        Some("rtl") => true,
        Some("ltr") => false,
        _ => {
            query.lang.as_deref().is_some_and(|tag| RIGHT_TO_LEFT.contains(&primary(tag).as_str()))
        }
    };
    let theme = query.theme.as_deref().filter(|theme| matches!(*theme, "light" | "dark"));
    let some =
        |text: &Option<String>| text.as_deref().filter(|text| !text.is_empty()).map(str::to_owned);
    html! {
        (DOCTYPE)
        html.(class) lang=(language.tag) dir=(if is_rtl { "rtl" } else { "ltr" }) data-theme=[theme] {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1, interactive-widget=resizes-content";
                meta name="color-scheme" content="light dark";
                meta name="robots" content="noindex";
                title { "Chat" }
                link rel="icon" type="image/svg+xml" href=(assets::url("icon.svg"));
                link rel="stylesheet" href=(assets::url("panel.css"));
                link rel="modulepreload" href=(assets::url("link.js"));
                link rel="modulepreload" href=(assets::url("text.js"));
            }
            body {
                main #app data-color=[some(&query.color)] data-greeting=[some(&query.greeting)] data-title=[some(&query.title)] {}
                p.sr #announcer role="status" aria-live="polite" {}
                script #words type="application/json" { (PreEscaped(language.words)) }
                script type="module" src=(assets::url("panel.js")) {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_language_has_every_text_with_the_same_blanks() {
        let read = |language: &PanelLanguage| -> std::collections::BTreeMap<String, String> {
            serde_json::from_str(language.words).unwrap()
        };
        let blanks = |text: &str| -> BTreeSet<String> {
            text.split('{')
                .skip(1)
                .filter_map(|rest| rest.split_once('}'))
                .map(|(name, _)| name.to_owned())
                .collect()
        };
        let [english, others @ ..] = &LANGUAGES;
        let english = read(english);
        for other in others {
            let words = read(other);
            assert!(words.keys().eq(english.keys()), "{}: other texts than in English", other.tag);
            for (key, text) in &words {
                assert_eq!(blanks(text), blanks(&english[key]), "{}: {key}", other.tag);
            }
        }
        // The texts stand inside a script element.
        assert!(LANGUAGES.iter().all(|language| !language.words.contains('<')));
    }

    #[test]
    fn a_language_is_asked_for_or_accepted() {
        let accept = |text: &'static str| {
            HeaderMap::from_iter([(header::ACCEPT_LANGUAGE, HeaderValue::from_static(text))])
        };
        assert_eq!(language(None, &accept("fr, es-MX;q=0.8, de;q=0.5")).tag, "es");
        assert_eq!(language(Some("de-AT"), &accept("es")).tag, "de");
        assert_eq!(language(Some("ar"), &accept("de")).tag, "en");
        assert_eq!(language(None, &HeaderMap::new()).tag, "en");
    }

    #[test]
    fn a_language_from_right_to_left_turns_the_layout() {
        let page = |lang: &str, dir: Option<&str>| {
            let query = PanelQuery {
                lang: Some(lang.to_owned()),
                dir: dir.map(str::to_owned),
                ..PanelQuery::default()
            };
            document(&HeaderMap::new(), &query, "framed").0
        };
        assert!(page("ar-EG", None).contains("dir=\"rtl\""));
        assert!(page("he", Some("ltr")).contains("dir=\"ltr\""));
        assert!(page("de", None).contains("dir=\"ltr\""));
    }

    #[test]
    fn the_launcher_is_small() {
        let script = include_bytes!("../assets/widget.js");
        assert!(script.len() <= 8_192, "widget.js has {} bytes", script.len());
    }
}
