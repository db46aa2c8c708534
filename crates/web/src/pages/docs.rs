//! The documentation, inside the binary: the Markdown files of `docs/`, in the order of
//! `docs/SUMMARY.md` (the file mdBook reads too), rendered once each.

use std::collections::HashMap;
use std::sync::OnceLock;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use maud::{Markup, PreEscaped, html};
use pulldown_cmark::{CowStr, Event, HeadingLevel, LinkType, Options, Parser, Tag, TagEnd};
use rust_embed::RustEmbed;

use crate::app::App;
use crate::auth::require;
use crate::error::ApiError;
use crate::extract::Path;
use crate::icon::logo;
use crate::ui::{self, Shell};

// A link to the folder of the tree, because a package holds only what is in its own folder.
#[derive(RustEmbed)]
#[folder = "docs"]
struct Files;

/// One entry of the summary: a part's title, or a page.
enum SummaryEntry {
    Part(String),
    Page { title: String, name: String },
}

/// A rendered page.
struct DocPage {
    title: String,
    html: String,
}

struct DocBook {
    summary: Vec<SummaryEntry>,
    pages: HashMap<String, DocPage>,
}

fn book() -> &'static DocBook {
    static BOOK: OnceLock<DocBook> = OnceLock::new();
    BOOK.get_or_init(|| {
        let pages = Files::iter()
            .filter_map(|path| {
                let name = path.strip_suffix(".md")?.to_owned();
                let text = String::from_utf8_lossy(&Files::get(&path)?.data).into_owned();
                Some((name, render(&text)))
            })
            .collect();
        DocBook { summary: summary(), pages }
    })
}

/// Reads `SUMMARY.md`: `# Part` and `- [Title](page.md)`.
fn summary() -> Vec<SummaryEntry> {
    let Some(file) = Files::get("SUMMARY.md") else { return Vec::new() };
    let text = String::from_utf8_lossy(&file.data).into_owned();
    text.lines()
        .filter_map(|line| {
            let line = line.trim();
            if let Some(title) = line.strip_prefix("# ") {
                return (title != "Summary").then(|| SummaryEntry::Part(title.to_owned()));
            }
            let (title, rest) =
                line.trim_start_matches("- ").strip_prefix('[')?.split_once("](")?;
            let name = rest.strip_suffix(")")?.trim_start_matches("./").strip_suffix(".md")?;
            Some(SummaryEntry::Page { title: title.to_owned(), name: name.to_owned() })
        })
        .collect()
}

pub(crate) fn router() -> Router<App> {
    Router::new()
        .route("/docs", get(first))
        .route("/docs/", get(async || Redirect::permanent("/docs")))
        .route("/docs/{*name}", get(page))
}

async fn first(state: State<App>, request: Request) -> Result<Response, ApiError> {
    show(state, "index", request).await
}

async fn page(
    state: State<App>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    if let Some(file) = name.strip_prefix("images/") {
        let file = Files::get(&format!("images/{file}"))
            .ok_or_else(|| ApiError::not_found("image not found"))?;
        let kind = if name.ends_with(".svg") { "image/svg+xml" } else { "image/png" };
        return Ok(([(header::CONTENT_TYPE, kind)], file.data.into_owned()).into_response());
    }
    show(state, name.trim_end_matches('/').trim_end_matches(".md"), request).await
}

async fn show(State(app): State<App>, name: &str, request: Request) -> Result<Response, ApiError> {
    let book = book();
    let rendered = book
        .pages
        .get(name)
        .ok_or_else(|| ApiError::not_found("page not found in the documentation"))?;
    let body = html! {
        div.docs {
            nav.docs-nav aria-label="Documentation" { (contents(book, name)) }
            article.prose { (PreEscaped(&rendered.html)) }
        }
    };
    // Whoever is logged in keeps the frame; reading needs no login.
    let known = require::identify(&app, request.headers(), request.method()).await.ok();
    let theme = ui::theme(request.headers());
    let page = match known {
        Some(principal) => {
            Shell::of(principal, theme).bare_page(&app, "/docs", &rendered.title, &body)
        }
        None => ui::open_page(
            &rendered.title,
            theme,
            &html! {
                header.top.always { a.brand href="/" { (logo()) "Tidegate" } }
                main.page #main { (body) }
            },
        ),
    };
    Ok(page.into_response())
}

fn contents(book: &DocBook, here: &str) -> Markup {
    html! {
        @for entry in &book.summary {
            @match entry {
                SummaryEntry::Part(title) => { h2 { (title) } }
                SummaryEntry::Page { title, name } => {
                    @let address = if name == "index" { "/docs".to_owned() } else { format!("/docs/{name}") };
                    a href=(address) aria-current=[(name == here).then_some("page")] { (title) }
                }
            }
        }
    }
}

/// Markdown to HTML, with ids on headings and links between pages that work here.
fn render(text: &str) -> DocPage {
    let options =
        Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_FOOTNOTES;
    let mut events: Vec<Event<'_>> = Parser::new_ext(text, options).map(relink).collect();
    let mut title = String::new();
    let mut index = 0;
    while index < events.len() {
        if let Some(Event::Start(Tag::Heading { level, .. })) = events.get(index) {
            let level = *level;
            let words: String = events
                .iter()
                .skip(index + 1)
                .take_while(|event| !matches!(event, Event::End(TagEnd::Heading(_))))
                .filter_map(|event| match event {
                    Event::Text(text) | Event::Code(text) => Some(text.to_string()),
                    _ => None,
                })
                .collect();
            if level == HeadingLevel::H1 && title.is_empty() {
                title.clone_from(&words);
            }
            if let Some(Event::Start(Tag::Heading { id, .. })) = events.get_mut(index) {
                *id = Some(CowStr::from(slug(&words)));
            }
        }
        index += 1;
    }
    let mut html = String::with_capacity(text.len() * 2);
    pulldown_cmark::html::push_html(&mut html, events.into_iter());
    // What scrolls sideways can be reached with the keyboard. Text in pages has no bare tags: it
    // is escaped.
    let html =
        html.replace("<pre>", "<pre tabindex=\"0\">").replace("<table>", "<table tabindex=\"0\">");
    DocPage { title, html }
}

/// `page.md#part` → `/docs/page#part`, `images/x.png` → `/docs/images/x.png`.
fn relink(event: Event<'_>) -> Event<'_> {
    let move_here = |url: CowStr<'_>| -> String {
        if url.contains("://") || url.starts_with('/') || url.starts_with('#') {
            return url.to_string();
        }
        let (path, part) =
            url.split_once('#').map_or((&*url, None), |(path, part)| (path, Some(part)));
        let path = path.trim_start_matches("./");
        let path = path.strip_suffix(".md").unwrap_or(path);
        match part {
            Some(part) => format!("/docs/{path}#{part}"),
            None => format!("/docs/{path}"),
        }
    };
    match event {
        Event::Start(Tag::Link { link_type, dest_url, title, id })
            if link_type != LinkType::Email && link_type != LinkType::Autolink =>
        {
            Event::Start(Tag::Link { link_type, dest_url: move_here(dest_url).into(), title, id })
        }
        Event::Start(Tag::Image { link_type, dest_url, title, id }) => {
            Event::Start(Tag::Image { link_type, dest_url: move_here(dest_url).into(), title, id })
        }
        other => other,
    }
}

fn slug(words: &str) -> String {
    let lower = words.to_lowercase();
    let parts: Vec<&str> =
        lower.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|p| !p.is_empty()).collect();
    parts.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_between_pages_work_here() {
        let made =
            render("# T\n[a](configuration.md#http) [b](https://x.example) ![i](images/a.png)")
                .html;
        assert!(made.contains(r#"href="/docs/configuration#http""#), "{made}");
        assert!(made.contains(r#"href="https://x.example""#), "{made}");
        assert!(made.contains(r#"src="/docs/images/a.png""#), "{made}");
        assert!(made.contains(r#"<h1 id="t">"#), "{made}");
    }

    #[test]
    fn every_page_of_the_summary_exists_and_every_page_is_in_it() {
        let book = book();
        let listed: Vec<&String> = book
            .summary
            .iter()
            .filter_map(|entry| match entry {
                SummaryEntry::Page { name, .. } => Some(name),
                SummaryEntry::Part(_) => None,
            })
            .collect();
        for name in &listed {
            assert!(book.pages.contains_key(*name), "docs/{name}.md is in SUMMARY.md and missing");
        }
        for name in book.pages.keys().filter(|name| *name != "SUMMARY") {
            assert!(listed.contains(&name), "docs/{name}.md is not in docs/SUMMARY.md");
        }
    }

    #[test]
    fn no_link_between_pages_is_broken() {
        let book = book();
        for (name, page) in &book.pages {
            for piece in page.html.split("href=\"/docs/").skip(1) {
                let target = piece.split(['"', '#']).next().unwrap_or_default();
                let exists = book.pages.contains_key(target) || Files::get(target).is_some();
                assert!(exists, "docs/{name}.md links to docs/{target}, which is not there");
            }
        }
    }
}
