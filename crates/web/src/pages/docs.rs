//! The documentation, inside the binary: the Markdown files of `docs/`, in the order of
//! `docs/SUMMARY.md` (the file mdBook reads too), rendered once each.

use std::collections::HashMap;
use std::sync::OnceLock;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use maud::{Markup, PreEscaped, html};
use pulldown_cmark::{CowStr, Event, HeadingLevel, LinkType, Options, Parser, Tag, TagEnd};
use rust_embed::RustEmbed;
use serde::Deserialize;

use crate::app::App;
use crate::auth::require;
use crate::compress;
use crate::error::ApiError;
use crate::extract::{Path, Query};
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
    /// The parts under each heading, in the order of the summary.
    sections: Vec<DocSection>,
}

/// Text under a heading.
struct DocSection {
    title: String,
    heading: String,
    path: String,
    text: String,
}

/// A part of the documentation that was found.
#[derive(Debug)]
pub(crate) struct DocHit {
    pub(crate) title: String,
    pub(crate) heading: String,
    pub(crate) path: String,
    /// Words around the first hit.
    excerpt: String,
}

/// Most hits shown.
const HITS_MAX: usize = 50;

/// Finds the parts in which all words occur, those with a word in a heading first.
pub(crate) fn search(text: &str) -> Vec<DocHit> {
    let words: Vec<String> = text.to_lowercase().split_whitespace().map(str::to_owned).collect();
    if words.is_empty() {
        return Vec::new();
    }
    let mut hits: Vec<(bool, DocHit)> = Vec::new();
    for section in &book().sections {
        let (head, body) = (section.heading.to_lowercase(), section.text.to_lowercase());
        if !words.iter().all(|word| head.contains(word) || body.contains(word)) {
            continue;
        }
        let in_heading = words.iter().any(|word| head.contains(word));
        let at = words.iter().filter_map(|word| body.find(word)).min().unwrap_or(0);
        hits.push((
            !in_heading,
            DocHit {
                title: section.title.clone(),
                heading: section.heading.clone(),
                path: section.path.clone(),
                excerpt: excerpt(&section.text, at),
            },
        ));
    }
    hits.sort_by_key(|(in_text, _)| *in_text);
    hits.into_iter().map(|(_, hit)| hit).take(HITS_MAX).collect()
}

/// About 200 characters around a place.
fn excerpt(text: &str, at: usize) -> String {
    let start = text.floor_char_boundary(at.min(text.len()).saturating_sub(60));
    let start = text.get(start..).and_then(|rest| rest.find(' ')).map_or(start, |gap| start + gap);
    let rest = text.get(if at < 60 { 0 } else { start }..).unwrap_or_default().trim_start();
    let cut: String = rest.chars().take(200).collect();
    if cut.len() < rest.len() { format!("{cut} …") } else { cut }
}

/// The parts of a page, by its headings.
fn sections(name: &str, text: &str) -> Vec<DocSection> {
    let address = if name == "index" { "/docs".to_owned() } else { format!("/docs/{name}") };
    let mut sections: Vec<DocSection> = Vec::new();
    let (mut title, mut in_code) = (String::new(), false);
    for line in text.lines() {
        in_code ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#').trim().replace('`', "");
        if !in_code && line.starts_with('#') {
            if title.is_empty() {
                title.clone_from(&heading);
            }
            let path = format!("{address}#{}", slug(&heading));
            sections.push(DocSection { title: title.clone(), heading, path, text: String::new() });
        } else if let Some(section) = sections.last_mut() {
            let plain = line.replace(['`', '*', '|'], " ");
            section.text.push_str(plain.trim());
            section.text.push(' ');
        }
    }
    sections
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
        let summary = summary();
        let sections = summary
            .iter()
            .filter_map(|entry| match entry {
                SummaryEntry::Page { name, .. } => Some(name),
                SummaryEntry::Part(_) => None,
            })
            .filter_map(|name| Some((name, Files::get(&format!("{name}.md"))?)))
            .flat_map(|(name, file)| sections(name, &String::from_utf8_lossy(&file.data)))
            .collect();
        DocBook { summary, pages, sections }
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
        .route("/docs/search", get(find))
        .route("/docs/{*name}", get(page))
        .route_layer(from_fn(compress::handle))
}

#[derive(Debug, Deserialize)]
struct DocQuery {
    #[serde(default)]
    text: String,
}

/// Matches in the documentation.
async fn find(state: State<App>, Query(query): Query<DocQuery>, request: Request) -> Response {
    let text: String = query.text.chars().take(100).collect();
    let hits = search(&text);
    let article = html! {
        h1 { "Search in the documentation" }
        @if hits.is_empty() {
            p { "Nothing found for " b { (text) } ". Try fewer or shorter words." }
        } @else {
            p.dim { (hits.len()) @if hits.len() == 1 { " part" } @else { " parts" } " with " b { (text) } }
            ul.docs-hits {
                @for hit in &hits {
                    li { a href=(hit.path) { (hit.title) @if hit.heading != hit.title { " › " (hit.heading) } } p { (hit.excerpt) } }
                }
            }
        }
    };
    framed(state, "Search", "", &text, &article, request).await
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
    let article = html! { (PreEscaped(&rendered.html)) };
    Ok(framed(State(app), &rendered.title, name, "", &article, request).await)
}

/// An article beside the contents.
async fn framed(
    State(app): State<App>,
    title: &str,
    here: &str,
    text: &str,
    article: &Markup,
    request: Request,
) -> Response {
    let body = html! {
        div.docs {
            nav.docs-nav #contents aria-label="Documentation" {
                form.docs-search action="/docs/search" role="search" {
                    input.input type="search" name="text" value=(text) placeholder="Search the documents" aria-label="Search the documents" data-search="" maxlength="100";
                }
                (contents(book(), here))
            }
            article.prose { a.docs-jump.small href="#contents" { "Contents and search" } (article) }
        }
    };
    // Whoever is logged in keeps the frame; reading needs no login.
    let known = require::identify(&app, request.headers(), request.method()).await.ok();
    let theme = ui::theme(request.headers());
    let page = match known {
        Some(principal) => Shell::of(principal, theme).bare_page(&app, "/docs", title, &body),
        None => ui::open_page(
            title,
            theme,
            &html! {
                header.top.always { a.brand href="/" { (logo()) "Tidegate" } }
                main.page #main { (body) }
            },
        ),
    };
    page.into_response()
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
    // A head that says nothing is no head.
    let html = html.replace("<th></th>", "<td></td>");
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
    fn the_search_finds_parts_by_all_their_words() {
        let hits = search("admission window");
        assert!(hits.iter().any(|hit| hit.path.starts_with("/docs/life-of-a-visitor")), "{hits:?}");
        assert!(search("").is_empty() && search("xyzzyxyzzy").is_empty());
        for hit in search("store") {
            let (page, part) = hit.path.trim_start_matches("/docs").split_once('#').unwrap();
            let page = page.trim_start_matches('/');
            let name = if page.is_empty() { "index" } else { page };
            let id = format!("id=\"{part}\"");
            assert!(book().pages[name].html.contains(&id), "{} is nowhere", hit.path);
        }
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
