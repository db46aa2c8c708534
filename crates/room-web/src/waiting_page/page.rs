//! The waiting page, rendered on the server and complete without any script. `assets/waiting.js`
//! updates the numbers and replaces the whole of `main` when another view is needed.

use maud::{DOCTYPE, Markup, html};
use room::{EndReason, Position, PositionState, Queue, QueueStatus};
use serde_json::{Map, Value};
use store::Millis;
use web::icon::logo;

use super::brand::Brand;
use super::i18n::{ALL, Translation};
use crate::assets;

/// View of the waiting page.
#[derive(Debug)]
pub(super) enum PageView<'a> {
    /// Waiting, also while the queue is paused.
    Waiting(&'a Position),
    /// Admitted.
    Admitted(&'a Position),
    /// The session is active, on another site.
    Active,
    /// The position has ended.
    Over(Option<EndReason>),
    /// No position, and the queue is full.
    Full,
    /// No position, and the queue is closed.
    Closed,
    /// Too many calls.
    Busy,
    /// The store is unavailable.
    Away,
    /// Admitted, but the visitor's address has reached its limit of sessions.
    AddressFull,
    /// The browser keeps no cookies.
    NoCookies,
    /// The invite is invalid.
    BadInvite,
    /// Fetched by a request that must not enqueue a visitor.
    NotQueued,
    /// The queue does not exist.
    Unknown,
}

impl PageView<'_> {
    /// Returns the name of the view, by which the script detects that another one is needed.
    pub(super) fn name(&self) -> &'static str {
        match self {
            PageView::Waiting(position) => match position.queue_status {
                QueueStatus::Active => "waiting",
                QueueStatus::Paused => "paused",
                QueueStatus::Maintenance => "closed",
            },
            PageView::Admitted(_) => "admitted",
            PageView::Active => "active",
            PageView::Over(_) => "over",
            PageView::Full => "full",
            PageView::Closed => "maintenance",
            PageView::Busy => "busy",
            PageView::Away => "away",
            PageView::AddressFull => "address",
            PageView::NoCookies => "cookies",
            PageView::BadInvite => "invite",
            PageView::NotQueued => "outside",
            PageView::Unknown => "unknown",
        }
    }

    /// Returns title and lead.
    fn head(&self, words: &Translation) -> (&'static str, &'static str) {
        let w = words;
        match self {
            PageView::Waiting(position) => match position.queue_status {
                QueueStatus::Active => (w.waiting, w.waiting_lead),
                QueueStatus::Paused => (w.paused, w.paused_lead),
                QueueStatus::Maintenance => (w.closed, w.closed_kept),
            },
            PageView::Admitted(_) => (w.your_turn, w.your_turn_lead),
            PageView::Active => (w.active, w.active_lead),
            PageView::Over(reason) => match reason {
                Some(EndReason::AdmissionTimeout) => (w.missed, w.missed_lead),
                Some(EndReason::Cancelled | EndReason::Upgraded) => (w.left, w.left_lead),
                Some(EndReason::AdminRevoked | EndReason::OriginRevoked) => {
                    (w.revoked, w.revoked_lead)
                }
                Some(EndReason::QueueReset) => (w.reset, w.reset_lead),
                Some(EndReason::SessionIdle | EndReason::SessionCap | EndReason::Completed) => {
                    (w.ended, w.ended_lead)
                }
                Some(EndReason::HoldTimeout) | None => (w.lost, w.lost_lead),
            },
            PageView::Full => (w.full, w.full_lead),
            PageView::Closed => (w.closed, w.closed_lead),
            PageView::Busy => (w.busy, w.busy_lead),
            PageView::Away => (w.away, w.away_lead),
            PageView::AddressFull => (w.address_full, w.address_full_lead),
            PageView::NoCookies => (w.no_cookies, w.no_cookies_lead),
            PageView::BadInvite => (w.bad_invite, w.bad_invite_lead),
            PageView::NotQueued => (w.not_queued, w.not_queued_lead),
            PageView::Unknown => (w.unknown, w.unknown_lead),
        }
    }

    /// Returns the seconds after which a browser without scripts reloads.
    pub(super) fn refresh(&self) -> Option<u64> {
        match self {
            PageView::Waiting(position) => {
                Some(jittered(position, position.next_poll.as_secs().max(5)))
            }
            PageView::Admitted(_) => Some(5),
            PageView::Full | PageView::Closed => Some(30),
            PageView::Busy | PageView::Away => Some(15),
            PageView::AddressFull => Some(10),
            _ => None,
        }
    }

    fn tone(&self) -> &'static str {
        match self {
            PageView::Admitted(_) | PageView::Active => "good",
            PageView::Waiting(position) if position.queue_status == QueueStatus::Active => "calm",
            PageView::Waiting(_)
            | PageView::Full
            | PageView::Closed
            | PageView::Busy
            | PageView::Away => "warn",
            _ => "plain",
        }
    }
}

/// Adds up to a third to `seconds`, derived from the position, so that visitors who arrived together do
/// not poll together.
fn jittered(position: &Position, seconds: u64) -> u64 {
    let share = u64::from(position.id.to_bytes()[15]) % 32;
    seconds + seconds * share / 96
}

/// Context of a page besides its view.
pub(super) struct Frame<'a> {
    pub(super) words: &'static Translation,
    /// The queue, if there is one.
    pub(super) queue: Option<&'a Queue>,
    /// The queue's own look.
    pub(super) brand: Brand,
    pub(super) now: Millis,
    /// `/_wr/{queue}`.
    pub(super) base: String,
    /// Query parameters that every link and form of the page keeps: language, return_to, token.
    pub(super) carried: Vec<(&'static str, String)>,
    /// Destination once the session starts.
    pub(super) target: String,
    /// Idempotency key for enqueueing from this page.
    pub(super) fresh_key: String,
    /// Set in a preview, which does nothing: the address of the colours, if there are any.
    pub(super) preview: Option<Option<String>>,
}

impl Frame<'_> {
    /// The address of the queue's own colours, if it has any.
    fn style_url(&self) -> Option<String> {
        match &self.preview {
            Some(style) => style.clone(),
            None => self.brand.style_url(&self.base),
        }
    }

    fn address(&self, path: &str) -> String {
        address(&format!("{}{path}", self.base), &self.carried)
    }
}

/// Builds a path with a query.
pub(super) fn address(path: &str, query: &[(&'static str, String)]) -> String {
    let mut out = path.to_owned();
    for (index, (name, value)) in query.iter().enumerate() {
        out.push(if index == 0 { '?' } else { '&' });
        out.push_str(name);
        out.push('=');
        out.push_str(&web::middleware::percent(value));
    }
    out
}

/// Renders the whole page.
pub(super) fn page(frame: &Frame<'_>, view: &PageView<'_>) -> Markup {
    let words = frame.words;
    let (title, _) = view.head(words);
    let name = frame.queue.map(|queue| &queue.config.name).filter(|name| !name.is_empty());
    let poll = match view {
        PageView::Waiting(position) => u64::try_from(position.next_poll.as_millis()).ok(),
        _ => view.refresh().map(|seconds| seconds * 1_000),
    };
    html! {
        (DOCTYPE)
        html lang=(words.lang) {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="robots" content="noindex, nofollow";
                meta name="theme-color" media="(prefers-color-scheme: light)" content="#eef5f8";
                meta name="theme-color" media="(prefers-color-scheme: dark)" content="#071219";
                title { (title) @if let Some(name) = name { " · " (name) } }
                link rel="icon" type="image/svg+xml" href=(assets::url("icon.svg"));
                link rel="stylesheet" href=(assets::url("waiting.css"));
                @if let Some(style) = frame.style_url() { link rel="stylesheet" href=(style); }
                @if frame.preview.is_none() {
                    @if let Some(seconds) = view.refresh() {
                        noscript { meta http-equiv="refresh" content=(seconds); }
                    }
                    script src=(assets::url("waiting.js")) defer {}
                }
            }
            body data-queue=[frame.queue.map(|queue| queue.id.as_str())]
                data-here=(frame.address("/wait")) data-poll=[poll]
                data-token=[frame.carried.iter().find(|(name, _)| *name == "t").map(|(_, value)| value)] {
                a.skip href="#main" { (words.skip) }
                div.backdrop aria-hidden="true" { (waves()) }
                div.page inert[frame.preview.is_some()] {
                    header.top {
                        span.brand {
                            @if let Some(logo) = &frame.brand.logo {
                                img.logo src=(logo) alt="" referrerpolicy="no-referrer";
                            } @else { span.mark aria-hidden="true" { (logo()) } }
                            @if let Some(name) = name { span.name { (name) } }
                        }
                        (languages(frame))
                    }
                    main #main tabindex="-1" data-view=(view.name()) { (body(frame, view)) }
                    p.offline #offline role="alert" hidden { (words.offline) }
                    p.sr #announce role="status" aria-live="polite" {}
                    footer.foot {
                        span #updated hidden { (words.updated) " " time {} }
                        span.by { "Tidegate" }
                    }
                }
            }
        }
    }
}

fn languages(frame: &Frame<'_>) -> Markup {
    let here = frame.words.lang;
    let other = |lang: &'static str| {
        let mut query = frame.carried.clone();
        query.retain(|(name, _)| *name != "lang");
        query.push(("lang", lang.to_owned()));
        address(&format!("{}/wait", frame.base), &query)
    };
    html! {
        nav.langs aria-label=(frame.words.language) {
            @for words in ALL {
                a href=(other(words.lang)) lang=(words.lang) hreflang=(words.lang) title=(words.own_name)
                    aria-label={ (words.lang.to_uppercase()) " " (words.own_name) } aria-current=[(words.lang == here).then_some("true")] {
                    (words.lang.to_uppercase())
                }
            }
        }
    }
}

fn body(frame: &Frame<'_>, view: &PageView<'_>) -> Markup {
    let words = frame.words;
    let (title, lead) = view.head(words);
    html! {
        section class={ "card " (view.tone()) } aria-labelledby="title" {
            div.titles {
                span.sign aria-hidden="true" { (sign(view)) }
                h1 #title tabindex="-1" { (title) }
                p.lead { (lead) }
            }
            @match view {
                PageView::Waiting(position) => (waiting(frame, position)),
                PageView::Admitted(position) => (admitted(frame, position)),
                PageView::Active => {
                    a.button.primary href=(frame.target) { (words.go_on) }
                    (enqueue_form(frame, words.rejoin, false))
                },
                PageView::Over(_) => (enqueue_form(frame, words.rejoin, true)),
                PageView::BadInvite => (enqueue_form(frame, words.join, true)),
                PageView::NoCookies => {
                    a.button.primary href=(address(&frame.base, &frame.carried)) { (words.try_again) }
                    (no_cookie_form(frame))
                },
                PageView::Full | PageView::Closed | PageView::Busy | PageView::Away | PageView::AddressFull => {
                    a.button href=(frame.address("/wait")) { (words.try_again) }
                },
                PageView::NotQueued => {
                    a.button.primary href=(address(&frame.base, &frame.carried)) { (words.join) }
                },
                PageView::Unknown => {},
            }
            @match view {
                PageView::Waiting(_) => {},
                PageView::Admitted(position) => (message(frame, Some(&position.message))),
                _ => (message(frame, frame.queue.map(|queue| &queue.config.message))),
            }
        }
        @if let PageView::Waiting(position) = view { (below(frame, position)) }
    }
}

fn waiting(frame: &Frame<'_>, position: &Position) -> Markup {
    let words = frame.words;
    let number = position.number.unwrap_or(1);
    let behind = position.waiting.saturating_sub(number);
    html! {
        div.position {
            p.label #position-label { (words.your_position) }
            p.number aria-labelledby="position-label" data-position=(number) { (words.number(number)) }
        }
        @if let Some(done) = progress(position, frame.now) {
            progress max="1000" value=(done) aria-label=(words.progress) { (done / 10) "%" }
        }
        dl.facts {
            div.wide {
                dt { (words.wait) }
                dd data-wait="" { (wait(words, position)) }
            }
            div {
                dt { (icon_people(true)) }
                dd data-ahead="" { (words.ahead(number.saturating_sub(1))) }
            }
            div {
                dt { (icon_people(false)) }
                dd data-behind="" { (words.behind(behind)) }
            }
        }
        (message(frame, Some(&position.message)))
    }
}

fn below(frame: &Frame<'_>, position: &Position) -> Markup {
    let words = frame.words;
    let hold = frame.queue.map_or(5, |queue| queue.config.hold.as_secs() / 60).max(1);
    html! {
        ul.keep {
            li { (words.keep_refresh) }
            @if position.queue_status == QueueStatus::Active {
                li { (words.keep_close.replace("{n}", &words.number(hold))) }
            }
            li { (words.keep_auto) }
        }
        details.leave {
            summary { (words.leave) }
            form method="post" action=(frame.address("/leave")) {
                p { (words.leave_sure) }
                button.button.danger type="submit" { (words.leave) }
            }
        }
    }
}

fn admitted(frame: &Frame<'_>, position: &Position) -> Markup {
    let words = frame.words;
    let left = position.start_by.map(|until| until.since(frame.now).as_secs());
    html! {
        @if let Some(left) = left {
            p.until data-until=(left) {
                @let (before, after) = words.your_turn_until.split_once("{time}").unwrap_or((words.your_turn_until, ""));
                (before) b.clock { (format!("{}:{:02}", left / 60, left % 60)) } " min" (after)
            }
        }
        form method="post" action=(frame.address("/start-session")) {
            button.button.primary type="submit" data-enter="" { (words.enter) }
        }
        p.entering hidden { (words.entering) }
    }
}

fn enqueue_form(frame: &Frame<'_>, word: &str, primary: bool) -> Markup {
    html! {
        form method="post" action=(frame.address("/enter")) {
            input type="hidden" name="key" value=(frame.fresh_key);
            button.button.primary[primary] type="submit" { (word) }
        }
    }
}

fn no_cookie_form(frame: &Frame<'_>) -> Markup {
    html! {
        form method="post" action=(frame.address("/enter")) {
            input type="hidden" name="key" value=(frame.fresh_key);
            input type="hidden" name="cookies" value="no";
            button.button type="submit" { (frame.words.without_cookies) }
        }
    }
}

fn message(frame: &Frame<'_>, message: Option<&Map<String, Value>>) -> Markup {
    let told = message.and_then(|message| frame.words.message_of(message));
    html! {
        @if let Some((lang, text)) = told {
            div.message role="note" aria-label=(frame.words.message) lang=(lang) data-message="" {
                p.label lang=(frame.words.lang) { (frame.words.message) }
                @for line in text.lines().filter(|line| !line.trim().is_empty()) { p { (line) } }
            }
        }
    }
}

/// Formats the estimated wait of a position.
pub(crate) fn wait(words: &Translation, position: &Position) -> String {
    match (&position.estimate, position.state) {
        (Ok(estimate), _) => words.wait_text(estimate),
        (Err(room::NoEstimate::Paused), PositionState::Waiting) => words.wait_paused.to_owned(),
        (Err(_), _) => words.wait_unknown.to_owned(),
    }
}

/// Returns the elapsed share of the wait, in thousandths; `None` if the wait is not known.
pub(crate) fn progress(position: &Position, now: Millis) -> Option<u64> {
    let left = position.estimate.ok()?.likely.as_secs_f64();
    let waited = now.since(position.enqueued_at).as_secs_f64();
    // Never complete while waiting.
    let share = (waited / (waited + left).max(1.0)).clamp(0.0, 0.99);
    Some((share * 1000.0) as u64)
}

fn sign(view: &PageView<'_>) -> Markup {
    let path = match view.tone() {
        "good" => "M5 12.5l4.5 4.5L19 7.5",
        "warn" => "M9 6v12M15 6v12",
        "calm" => {
            "M3 14c2.2-2.2 3.8-2.200 6 0s3.800 2.200 6 0 3.800-2.200 6 0M3 9c2.200-2.200 3.800-2.200 6 0s3.800 2.200 6 0 3.800-2.200 6 0"
        }
        _ => "M12 7v6M12 16.500v.1",
    };
    svg(path)
}

fn icon_people(ahead: bool) -> Markup {
    let path = if ahead { "M12 19V5M6 11l6-6 6 6" } else { "M12 5v14M6 13l6 6 6-6" };
    svg(path)
}

pub(crate) fn svg(path: &str) -> Markup {
    html! {
        svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2"
            stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" focusable="false" {
            path d=(path) {}
        }
    }
}

pub(crate) fn waves() -> Markup {
    html! {
        svg.wave viewBox="0 0 1440 320" preserveAspectRatio="none" focusable="false" {
            path.w1 d="M0 150c120-50 240-50 360 0s240 50 360 0 240-50 360 0 240 50 360 0v170H0Z" {}
            path.w2 d="M0 190c120 42 240 42 360 0s240-42 360 0 240 42 360 0 240-42 360 0v130H0Z" {}
            path.w3 d="M0 236c120-32 240-32 360 0s240 32 360 0 240-32 360 0 240 32 360 0v84H0Z" {}
        }
    }
}
