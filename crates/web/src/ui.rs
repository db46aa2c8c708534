//! The frame of every page and the parts pages are made of. One place decides how a card, a tile, an
//! empty state or a badge looks.

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use maud::{DOCTYPE, Markup, html};

use crate::app::App;
use crate::assets;
use crate::auth::{Principal, Role};
use crate::cookies;
use crate::error::ApiError;
use crate::icon::{Icon, logo};

/// An entry of the menu.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NavItem {
    /// The page.
    pub path: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The key that goes there, after `g`.
    pub key: &'static str,
    /// Its icon.
    pub icon: Icon,
    /// Its part of the menu.
    pub group: NavGroup,
}

/// A part of the menu.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NavGroup {
    /// The services.
    Services,
    /// The installation.
    Installation,
}

const OVERVIEW: NavItem = NavItem {
    path: "/",
    title: "Overview",
    key: "o",
    icon: Icon::OVERVIEW,
    group: NavGroup::Services,
};

/// The frame's own pages about the installation.
const INSTALLATION: [(&str, &str, &str, Icon); 4] = [
    ("/audit", "Audit", "a", Icon::AUDIT),
    ("/settings", "Settings", "e", Icon::SETTINGS),
    ("/docs", "Docs", "d", Icon::DOCS),
    ("/api", "API", "p", Icon::API),
];

/// The menu: the frame's pages and those of the services that run here.
fn menu(app: &App) -> Vec<NavItem> {
    let mut items = vec![OVERVIEW];
    items.extend(app.services().iter().map(|open| open.service.nav()));
    items.extend(INSTALLATION.map(|(path, title, key, icon)| NavItem {
        path,
        title,
        key,
        icon,
        group: NavGroup::Installation,
    }));
    items
}

/// Light, dark, or as the system says.
pub fn theme(headers: &HeaderMap) -> Option<&'static str> {
    match cookies::value_of(headers, "tidegate_theme") {
        Some("dark") => Some("dark"),
        Some("light") => Some("light"),
        _ => None,
    }
}

/// The viewer of a page, and the theme. A page handler takes it as an argument.
#[derive(Debug, Clone)]
pub struct Shell {
    /// The one who looks.
    pub principal: Principal,
    theme: Option<&'static str>,
}

impl<S: Send + Sync> FromRequestParts<S> for Shell {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Shell, ApiError> {
        let principal = Principal::from_request_parts(parts, state).await?;
        Ok(Shell { principal, theme: theme(&parts.headers) })
    }
}

/// The head of a page.
#[derive(Debug, Clone)]
pub struct Head {
    /// Title, also of the browser's tab.
    pub title: String,
    /// A sentence under the title.
    pub lead: String,
    /// The way here: word and address.
    pub crumbs: Vec<(String, String)>,
    /// Buttons on the right.
    pub actions: Markup,
}

impl Head {
    /// A title and a sentence.
    pub fn new(title: impl Into<String>, lead: impl Into<String>) -> Head {
        Head { title: title.into(), lead: lead.into(), crumbs: Vec::new(), actions: html! {} }
    }

    /// With the way here.
    #[must_use]
    pub fn under(mut self, word: &str, address: &str) -> Head {
        self.crumbs.push((word.to_owned(), address.to_owned()));
        self
    }

    /// With buttons.
    #[must_use]
    pub fn actions(mut self, actions: Markup) -> Head {
        self.actions = actions;
        self
    }
}

impl Shell {
    /// Tells whether the viewer may do what operators do.
    pub fn may_operate(&self) -> bool {
        self.principal.role >= Role::Operator
    }

    /// Tells whether the viewer may do what admins do.
    pub fn may_own(&self) -> bool {
        self.principal.role >= Role::Admin
    }

    pub(crate) fn of(principal: Principal, theme: Option<&'static str>) -> Shell {
        Shell { principal, theme }
    }

    /// A whole page.
    pub fn page(&self, app: &App, here: &str, head: &Head, body: &Markup) -> Markup {
        let body = html! { (page_head(head)) (body) };
        self.bare_page(app, here, &head.title, &body)
    }

    /// A page that brings its own headings.
    pub fn bare_page(&self, app: &App, here: &str, title: &str, body: &Markup) -> Markup {
        document(
            &format!("{title} · Tidegate"),
            self.theme,
            &html! {
                a.skip href="#main" { "Skip to content" }
                div.shell {
                    (self.side(app, here))
                    div {
                        header.top {
                            button type="button" popovertarget="side" aria-label="Menu" { (Icon::MENU) }
                            a.brand href="/" { (logo()) "Tidegate" }
                            span.live-dot { "Live" }
                        }
                        main.page #main tabindex="-1" {
                            div.offline role="status" {
                                (Icon::WARN) "The live connection is down. What you see may be old; reconnecting …"
                            }
                            (body)
                        }
                    }
                }
                (dialogs(app))
                div.toasts #toasts {}
                script type="module" src=(assets::url("app.js")) {}
            },
        )
    }

    fn side(&self, app: &App, here: &str) -> Markup {
        let menu = menu(app);
        let links = |group: NavGroup| {
            html! {
                @for item in menu.iter().filter(|item| item.group == group) {
                    li {
                        a href=(item.path) data-go=(item.key) aria-current=[(item.path == here).then_some("page")] {
                            (item.icon) (item.title)
                        }
                    }
                }
            }
        };
        let initial = self.principal.name.chars().next().unwrap_or('?').to_uppercase().to_string();
        html! {
            nav.side #side popover="auto" aria-label="Main" {
                a.brand href="/" { (logo()) "Tidegate" }
                ul.nav {
                    (links(NavGroup::Services))
                    li.nav-label aria-hidden="true" { "Installation" }
                    (links(NavGroup::Installation))
                }
                div.side-foot {
                    div.who {
                        span.avatar aria-hidden="true" { (initial) }
                        span.who-text {
                            b title=(self.principal.name) { (self.principal.name) }
                            span { (self.principal.role) " · " (app.instance()) }
                        }
                    }
                    div.side-actions {
                        button type="button" data-theme-switch="" { (Icon::THEME) "Theme" }
                        form method="post" action="/logout" { button type="submit" { (Icon::EXIT) "Log out" } }
                    }
                }
            }
        }
    }
}

fn page_head(head: &Head) -> Markup {
    html! {
        header.page-head {
            div.titles {
                @if !head.crumbs.is_empty() {
                    div.crumbs {
                        @for (word, address) in &head.crumbs { a href=(address) { (word) } span aria-hidden="true" { "/" } }
                    }
                }
                h1 { (head.title) }
                @if !head.lead.is_empty() { p { (head.lead) } }
            }
            div.actions { (head.actions) }
        }
    }
}

/// A page without the frame: login, errors.
pub fn plain(title: &str, theme: Option<&'static str>, body: &Markup) -> Markup {
    document(
        &format!("{title} · Tidegate"),
        theme,
        &html! {
            main.gate #main {
                div.gate-card {
                    div.gate-brand { (logo()) "Tidegate" }
                    (body)
                }
            }
        },
    )
}

/// A page for anybody, without the frame.
pub fn open_page(title: &str, theme: Option<&'static str>, body: &Markup) -> Markup {
    document(&format!("{title} · Tidegate"), theme, body)
}

fn document(title: &str, theme: Option<&'static str>, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" data-theme=[theme] {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="robots" content="noindex";
                title { (title) }
                link rel="icon" type="image/svg+xml" href=(assets::url("icon.svg"));
                link rel="stylesheet" href=(assets::url("style.css"));
            }
            body { (body) }
        }
    }
}

/// Dialogs that every page has: confirm, a secret shown once, the list of keys.
fn dialogs(app: &App) -> Markup {
    html! {
        dialog #confirm aria-labelledby="confirm-title" {
            form.dialog-body method="dialog" {
                h2 #confirm-title { "Are you sure?" }
                p data-text="" {}
                label.field data-word="" hidden {
                    span { "Type " code data-word-text="" {} " to confirm" }
                    input.input type="text" autocomplete="off" spellcheck="false";
                }
                div.dialog-foot {
                    button.btn type="submit" value="no" formnovalidate { "Cancel" }
                    button.btn.danger.solid type="submit" value="yes" { "Confirm" }
                }
            }
        }
        dialog #secret aria-labelledby="secret-title" {
            form.dialog-body method="dialog" {
                h2 #secret-title { "Copy it now" }
                p { "It is shown this once; only its hash is kept." }
                pre.code tabindex="0" { code {} }
                div.dialog-foot {
                    button.btn type="button" data-copy="" { "Copy" }
                    button.btn.primary type="submit" { "Done" }
                }
            }
        }
        dialog #keys aria-labelledby="keys-title" {
            form.dialog-body method="dialog" {
                h2 #keys-title { "Keyboard" }
                dl.facts {
                    @for item in menu(app) {
                        dt { kbd { "g" } " " kbd { (item.key) } } dd { (item.title) }
                    }
                    dt { kbd { "/" } } dd { "Search on this page" }
                    dt { kbd { "t" } } dd { "Light or dark" }
                    dt { kbd { "?" } } dd { "This list" }
                }
                div.dialog-foot { button.btn type="submit" { "Close" } }
            }
        }
    }
}

/// A card with a title.
pub fn card(width: &str, title: &str, body: &Markup) -> Markup {
    html! {
        section class={ "card " (width) } aria-label=(title) {
            div.card-head { h2 { (title) } }
            div.card-body { (body) }
        }
    }
}

/// A card whose body goes to its edges: tables and lists.
pub fn card_flush(width: &str, title: &str, actions: &Markup, body: &Markup) -> Markup {
    html! {
        section class={ "card " (width) } aria-label=(title) {
            div.card-head { h2 { (title) } (actions) }
            div.card-body.flush { (body) }
        }
    }
}

/// A number with its label, a note and a small line.
pub fn tile(label: &str, value: &str, unit: &str, note: &str, spark: &Markup) -> Markup {
    html! {
        div.tile {
            span.label { (label) }
            span.value { (value) @if !unit.is_empty() { small { (unit) } } }
            span.note { (note) }
            (spark)
        }
    }
}

/// A tile that leads somewhere.
pub fn tile_to(
    address: &str,
    label: &str,
    value: &str,
    unit: &str,
    note: &str,
    spark: &Markup,
) -> Markup {
    html! {
        a.tile href=(address) {
            span.label { (label) }
            span.value { (value) @if !unit.is_empty() { small { (unit) } } }
            span.note { (note) }
            (spark)
        }
    }
}

/// A dialog with a form that calls the API: what it is called, what its buttons say.
pub fn dialog(id: &str, title: &str, api: &str, verb: &str, done: &str, fields: &Markup) -> Markup {
    html! {
        dialog id=(id) aria-labelledby={ (id) "-title" } {
            form.dialog-body data-api=(api) data-done=(done) {
                h2 id={ (id) "-title" } { (title) }
                (fields)
                div.dialog-foot {
                    button.btn type="button" data-close="" { "Cancel" }
                    button.btn.primary type="submit" { (verb) }
                }
            }
        }
    }
}

/// A field for a whole number.
pub fn number(name: &str, label: &str, value: impl Into<u64>, hint: &str) -> Markup {
    html! {
        label.field {
            span { (label) }
            input.input type="number" name=(name) min="0" step="1" required value=(value.into());
            @if !hint.is_empty() { small { (hint) } }
        }
    }
}

/// A field for a line of text.
pub fn text(name: &str, label: &str, value: &str, hint: &str) -> Markup {
    html! {
        label.field {
            span { (label) }
            input.input type="text" name=(name) value=(value) autocomplete="off";
            @if !hint.is_empty() { small { (hint) } }
        }
    }
}

/// Newer and older, for lists that go on; nothing when everything is on the page.
pub fn pager(address: &str, from: usize, shown: usize, per_page: usize) -> Markup {
    let more = shown >= per_page;
    html! {
        @if from > 0 || more {
            div.pager {
                span { "From " (from + 1) " to " (from + shown) }
                span.actions {
                    @if from > 0 { a.btn.s href={ (address) "&from=" (from.saturating_sub(per_page)) } { "Back" } }
                    @if more { a.btn.s href={ (address) "&from=" (from + per_page) } { "More" } }
                }
            }
        }
    }
}

/// Text with `code` in backticks, as descriptions of settings have it.
pub fn ticks(text: &str) -> Markup {
    html! {
        @for (index, piece) in text.split('`').enumerate() {
            @if index % 2 == 1 { code { (piece) } } @else { (piece) }
        }
    }
}

/// An empty state: an icon, a sentence, a next step.
pub fn empty(icon: Icon, title: &str, text: &str, more: &Markup) -> Markup {
    html! { div.empty { (icon) h3 { (title) } p { (text) } (more) } }
}

/// A word with a colour by meaning: `good`, `warn`, `bad`, `accent` or none.
pub fn badge(tone: &str, word: &str) -> Markup {
    html! { span class={ "badge dot " (tone) } { (word) } }
}

/// An error inside a page.
pub fn notice(error: &ApiError) -> Markup {
    html! { div.notice.bad role="alert" { b { (error.code()) } " — " (error.message()) } }
}
