//! The frame of every page and the parts pages are made of. One place decides how a card, a tile, an
//! empty state or a badge looks.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use maud::{DOCTYPE, Markup, html};

use crate::app::App;
use crate::assets;
use crate::auth::{Principal, Role};
use crate::client::Client;
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
const INSTALLATION: [(&str, &str, &str, Icon); 5] = [
    ("/audit", "Audit", "a", Icon::AUDIT),
    ("/webhooks", "Webhooks", "w", Icon::BOLT),
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
    origin: String,
}

impl<S: Send + Sync> FromRequestParts<S> for Shell {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Shell, ApiError> {
        let principal = Principal::from_request_parts(parts, state).await?;
        Ok(Shell { principal, theme: theme(&parts.headers), origin: origin(parts) })
    }
}

/// Returns scheme and host as the browser has them in its address bar; empty when the request names no
/// host, or one that is none.
fn origin(parts: &Parts) -> String {
    let named = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = named.or_else(|| parts.uri.authority().map(|authority| authority.as_str()));
    let is_plain = |host: &&str| {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b".-:[]_".contains(&b);
        !host.is_empty() && host.len() <= 255 && host.bytes().all(allowed)
    };
    let is_secure = parts.extensions.get::<Client>().is_some_and(|client| client.secure);
    let scheme = if is_secure { "https" } else { "http" };
    host.filter(is_plain).map(|host| format!("{scheme}://{host}")).unwrap_or_default()
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
        Shell { principal, theme, origin: String::new() }
    }

    /// Scheme and host of this server as the viewer reaches it, such as `https://tidegate.example`; empty
    /// when the request named none.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// A whole page.
    pub fn page(&self, app: &App, here: &str, head: &Head, body: &Markup) -> Markup {
        let body = html! { (page_head(head, &page_tools(body))) (body) };
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
                            button.end type="button" data-palette="" aria-label="Find anything" { (Icon::SEARCH) }
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
                div.toasts #toasts popover="manual" {}
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
                button.find type="button" data-palette="" { (Icon::SEARCH) "Find anything" kbd { "Ctrl K" } }
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

/// Controls that a page gets for its contents: the state of the connection where parts are live, the range picker
/// where there are charts.
fn page_tools(body: &Markup) -> Markup {
    let has = |attribute: &str| body.0.contains(attribute);
    html! {
        @if has("data-live=") { (live_pill()) }
        @if has("data-chart=") { (range_picker()) }
    }
}

/// The state of the live connection. The script says what it is; until then it is not known.
fn live_pill() -> Markup {
    html! {
        button.live-dot type="button" data-live-pause="" aria-pressed="false" title="Pause live updates" {
            span data-live-word="" { "Connecting" }
        }
    }
}

/// The range that all charts of the page show. The script keeps it in the address and for the next page.
fn range_picker() -> Markup {
    const RANGES: [(&str, &str); 5] =
        [("15m", "15 min"), ("1h", "1 h"), ("24h", "24 h"), ("7d", "7 d"), ("30d", "30 d")];
    html! {
        div.ranges role="group" aria-label="Time range" data-ranges="" {
            @for (range, word) in RANGES {
                button type="button" data-range=(range) aria-pressed=(if range == "15m" { "true" } else { "false" }) { (word) }
            }
            button type="button" data-range="custom" aria-pressed="false" popovertarget="range-custom" { "From–to" }
            form #range-custom popover="auto" {
                label.field { span { "From" } input.input type="datetime-local" name="from" required; }
                label.field { span { "To" } input.input type="datetime-local" name="to"; small { "Left empty: until now. Up to 90 days back." } }
                p.field-error role="alert" hidden {}
                button.btn.primary type="submit" { "Show" }
            }
        }
    }
}

fn page_head(head: &Head, tools: &Markup) -> Markup {
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
            div.actions { (tools) (head.actions) }
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
                p { "It is shown this once." }
                pre.code tabindex="0" { code {} }
                div.dialog-foot {
                    button.btn type="button" data-copy="" { "Copy" }
                    button.btn.primary type="submit" { "Done" }
                }
            }
        }
        dialog #palette aria-label="Find anything" {
            div.dialog-body {
                input.input type="text" role="combobox" aria-expanded="true" aria-controls="palette-list" aria-label="Find pages, queues, jobs, keys, settings, documents and actions"
                    placeholder="Find pages, queues, jobs, keys, settings, actions" autocomplete="off" spellcheck="false" maxlength="100";
                div #palette-list role="listbox" aria-label="Found" {}
                p.small.dim data-none="" hidden { "Nothing found. Try a shorter word, or the beginning of an id." }
            }
        }
        dialog #keys aria-labelledby="keys-title" {
            form.dialog-body method="dialog" {
                h2 #keys-title { "Keyboard" }
                dl.facts {
                    @for item in menu(app) {
                        dt { kbd { "g" } " " kbd { (item.key) } } dd { (item.title) }
                    }
                    dt { kbd { "Ctrl" } " " kbd { "K" } } dd { "Find anything" }
                    dt { kbd { "j" } " " kbd { "k" } } dd { "Next and previous row; Enter opens it" }
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

/// A button that copies a text, such as an id.
pub fn copy_button(text: &str) -> Markup {
    html! { button.copy type="button" data-copy=(text) aria-label={ "Copy " (text) } title="Copy" { (Icon::COPY) } }
}

/// A button that copies the address of a page of this server.
pub fn copy_link_button(path: &str, what: &str) -> Markup {
    html! {
        button.btn.s.ghost type="button" data-copy-link=(path) aria-label={ "Copy the address of " (what) } title={ "Copy the address of " (what) } { (Icon::COPY) }
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
