//! The waiting page itself, rendered here and complete without any script. `web/waiting.js` keeps
//! the numbers fresh and swaps the whole of `main` when the page would show something else.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use room::{Place, Queue, QueueStatus, Reason, State};
use serde_json::{Map, Value};
use store::Millis;

use super::brand::Brand;
use super::words::{ALL, Words};
use crate::dashboard::assets;

/// What the page shows.
#[derive(Debug)]
pub(super) enum View<'a> {
    /// In the line, or paused in it.
    Waiting(&'a Place),
    /// May come in.
    Admitted(&'a Place),
    /// Came in already, and the site is another one.
    Inside,
    /// The place is over.
    Over(Option<Reason>),
    /// No place, and the line takes nobody more.
    Full,
    /// No place, and the line is closed.
    Closed,
    /// Too many calls.
    Busy,
    /// The store is away.
    Away,
    /// Admitted, but the visitor's address has as many sessions as it may.
    AddressFull,
    /// The browser keeps no cookies.
    NoCookies,
    /// The invite is not good.
    BadInvite,
    /// Fetched by something that must not join.
    NotJoined,
    /// No such queue.
    Unknown,
}

impl View<'_> {
    /// The name of the view, by which the script sees that another one is needed.
    pub(super) fn name(&self) -> &'static str {
        match self {
            View::Waiting(place) => match place.queue_status {
                QueueStatus::Active => "waiting",
                QueueStatus::Paused => "paused",
                QueueStatus::Maintenance => "closed",
            },
            View::Admitted(_) => "admitted",
            View::Inside => "inside",
            View::Over(_) => "over",
            View::Full => "full",
            View::Closed => "maintenance",
            View::Busy => "busy",
            View::Away => "away",
            View::AddressFull => "address",
            View::NoCookies => "cookies",
            View::BadInvite => "invite",
            View::NotJoined => "outside",
            View::Unknown => "unknown",
        }
    }

    /// Title and lead.
    fn head(&self, words: &Words) -> (&'static str, &'static str) {
        let w = words;
        match self {
            View::Waiting(place) => match place.queue_status {
                QueueStatus::Active => (w.in_line, w.in_line_lead),
                QueueStatus::Paused => (w.paused, w.paused_lead),
                QueueStatus::Maintenance => (w.closed, w.closed_kept),
            },
            View::Admitted(_) => (w.your_turn, w.your_turn_lead),
            View::Inside => (w.inside, w.inside_lead),
            View::Over(reason) => match reason {
                Some(Reason::ClaimTimeout) => (w.missed, w.missed_lead),
                Some(Reason::Cancelled | Reason::Upgraded) => (w.left, w.left_lead),
                Some(Reason::AdminRevoked | Reason::OriginRevoked) => (w.revoked, w.revoked_lead),
                Some(Reason::QueueReset) => (w.reset, w.reset_lead),
                Some(Reason::SessionIdle | Reason::SessionCap | Reason::Completed) => {
                    (w.visit_over, w.visit_over_lead)
                }
                Some(Reason::HoldTimeout) | None => (w.lost, w.lost_lead),
            },
            View::Full => (w.full, w.full_lead),
            View::Closed => (w.closed, w.closed_lead),
            View::Busy => (w.busy, w.busy_lead),
            View::Away => (w.away, w.away_lead),
            View::AddressFull => (w.address_full, w.address_full_lead),
            View::NoCookies => (w.no_cookies, w.no_cookies_lead),
            View::BadInvite => (w.bad_invite, w.bad_invite_lead),
            View::NotJoined => (w.not_joined, w.not_joined_lead),
            View::Unknown => (w.unknown, w.unknown_lead),
        }
    }

    /// Seconds after which a browser without scripts looks again.
    pub(super) fn refresh(&self) -> Option<u64> {
        match self {
            View::Waiting(place) => Some(jittered(place, place.next_poll.as_secs().max(5))),
            View::Admitted(_) => Some(5),
            View::Full | View::Closed => Some(30),
            View::Busy | View::Away => Some(15),
            View::AddressFull => Some(10),
            _ => None,
        }
    }

    fn tone(&self) -> &'static str {
        match self {
            View::Admitted(_) | View::Inside => "good",
            View::Waiting(place) if place.queue_status == QueueStatus::Active => "calm",
            View::Waiting(_) | View::Full | View::Closed | View::Busy | View::Away => "warn",
            _ => "plain",
        }
    }
}

/// Up to a third more than `seconds`, by the place, so that those who arrived together do not come
/// back together.
fn jittered(place: &Place, seconds: u64) -> u64 {
    let share = u64::from(place.id.to_bytes()[15]) % 32;
    seconds + seconds * share / 96
}

/// What a page is made of besides its view.
pub(super) struct Frame<'a> {
    pub(super) words: &'static Words,
    /// The queue, if there is one.
    pub(super) queue: Option<&'a Queue>,
    /// The queue's own look.
    pub(super) brand: Brand,
    pub(super) now: Millis,
    /// `/_wr/{queue}`.
    pub(super) base: String,
    /// The query that every address and form of the page carries on: language, way back, token.
    pub(super) carried: Vec<(&'static str, String)>,
    /// The address the page goes to when all is done.
    pub(super) target: String,
    /// A key for a place to be made from this page.
    pub(super) fresh_key: String,
}

impl Frame<'_> {
    fn address(&self, path: &str) -> String {
        address(&format!("{}{path}", self.base), &self.carried)
    }
}

/// A path with a query.
pub(super) fn address(path: &str, query: &[(&'static str, String)]) -> String {
    let mut out = path.to_owned();
    for (index, (name, value)) in query.iter().enumerate() {
        out.push(if index == 0 { '?' } else { '&' });
        out.push_str(name);
        out.push('=');
        out.push_str(&crate::front::percent(value));
    }
    out
}

/// The whole page.
pub(super) fn page(frame: &Frame<'_>, view: &View<'_>) -> Markup {
    let words = frame.words;
    let (title, _) = view.head(words);
    let name = frame.queue.map(|queue| &queue.config.name).filter(|name| !name.is_empty());
    let poll = match view {
        View::Waiting(place) => u64::try_from(place.next_poll.as_millis()).ok(),
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
                link rel="icon" type="image/svg+xml" href=(assets::room_url("icon.svg"));
                link rel="stylesheet" href=(assets::room_url("waiting.css"));
                @if let Some(style) = frame.brand.style_url(&frame.base) {
                    link rel="stylesheet" href=(style);
                }
                @if let Some(seconds) = view.refresh() {
                    noscript { meta http-equiv="refresh" content=(seconds); }
                }
                script src=(assets::room_url("waiting.js")) defer {}
            }
            body data-queue=[frame.queue.map(|queue| queue.id.as_str())]
                data-here=(frame.address("/wait")) data-poll=[poll]
                data-token=[frame.carried.iter().find(|(name, _)| *name == "t").map(|(_, value)| value)] {
                a.skip href="#main" { (words.skip) }
                div.backdrop aria-hidden="true" { (waves()) }
                div.page {
                    header.top {
                        span.brand {
                            @if let Some(logo) = &frame.brand.logo {
                                img.logo src=(logo) alt="" referrerpolicy="no-referrer";
                            } @else { span.mark aria-hidden="true" { (mark()) } }
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

fn body(frame: &Frame<'_>, view: &View<'_>) -> Markup {
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
                View::Waiting(place) => (waiting(frame, place)),
                View::Admitted(place) => (admitted(frame, place)),
                View::Inside => {
                    a.button.primary href=(frame.target) { (words.go_on) }
                    (join_form(frame, words.rejoin, false))
                },
                View::Over(_) => (join_form(frame, words.rejoin, true)),
                View::BadInvite => (join_form(frame, words.join, true)),
                View::NoCookies => {
                    a.button.primary href=(address(&frame.base, &frame.carried)) { (words.try_again) }
                    (no_cookie_form(frame))
                },
                View::Full | View::Closed | View::Busy | View::Away | View::AddressFull => {
                    a.button href=(frame.address("/wait")) { (words.try_again) }
                },
                View::NotJoined => {
                    a.button.primary href=(address(&frame.base, &frame.carried)) { (words.join) }
                },
                View::Unknown => {},
            }
            @match view {
                View::Waiting(_) => {},
                View::Admitted(place) => (message(frame, Some(&place.message))),
                _ => (message(frame, frame.queue.map(|queue| &queue.config.message))),
            }
        }
        @if let View::Waiting(place) = view { (below(frame, place)) }
    }
}

fn waiting(frame: &Frame<'_>, place: &Place) -> Markup {
    let words = frame.words;
    let position = place.position.unwrap_or(1);
    let behind = place.waiting.saturating_sub(position);
    html! {
        div.place {
            p.label #position-label { (words.your_position) }
            p.number aria-labelledby="position-label" data-position=(position) { (words.number(position)) }
        }
        @if let Some(done) = progress(place, frame.now) {
            progress max="1000" value=(done) aria-label=(words.progress) { (done / 10) "%" }
        }
        dl.facts {
            div.wide {
                dt { (words.wait) }
                dd data-wait="" { (wait(words, place)) }
            }
            div {
                dt { (icon_people(true)) }
                dd data-ahead="" { (words.ahead(position.saturating_sub(1))) }
            }
            div {
                dt { (icon_people(false)) }
                dd data-behind="" { (words.behind(behind)) }
            }
        }
        (message(frame, Some(&place.message)))
    }
}

fn below(frame: &Frame<'_>, place: &Place) -> Markup {
    let words = frame.words;
    let hold = frame.queue.map_or(5, |queue| queue.config.hold.as_secs() / 60).max(1);
    html! {
        ul.keep {
            li { (words.keep_refresh) }
            @if place.queue_status == QueueStatus::Active {
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

fn admitted(frame: &Frame<'_>, place: &Place) -> Markup {
    let words = frame.words;
    let left = place.claim_by.map(|until| until.since(frame.now).as_secs());
    html! {
        @if let Some(left) = left {
            p.until data-until=(left) {
                @let (before, after) = words.your_turn_until.split_once("{time}").unwrap_or((words.your_turn_until, ""));
                (before) b.clock { (format!("{}:{:02}", left / 60, left % 60)) } " min" (after)
            }
        }
        form method="post" action=(frame.address("/claim")) {
            button.button.primary type="submit" data-enter="" { (words.enter) }
        }
        p.entering hidden { (words.entering) }
    }
}

fn join_form(frame: &Frame<'_>, word: &str, primary: bool) -> Markup {
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
    let told = message.and_then(|message| frame.words.told(message));
    html! {
        @if let Some((lang, text)) = told {
            div.message role="note" aria-label=(frame.words.message) lang=(lang) data-message="" {
                p.label lang=(frame.words.lang) { (frame.words.message) }
                @for line in text.lines().filter(|line| !line.trim().is_empty()) { p { (line) } }
            }
        }
    }
}

/// How long it may still take, in words.
pub(crate) fn wait(words: &Words, place: &Place) -> String {
    match (&place.estimate, place.state) {
        (Ok(estimate), _) => words.wait_text(estimate),
        (Err(room::NoEstimate::Paused), State::Waiting) => words.wait_paused.to_owned(),
        (Err(_), _) => words.wait_unknown.to_owned(),
    }
}

/// How much of the wait is over, in thousandths; none if nobody can say.
pub(crate) fn progress(place: &Place, now: Millis) -> Option<u64> {
    let left = place.estimate.ok()?.likely.as_secs_f64();
    let waited = now.since(place.joined).as_secs_f64();
    // Never quite done while waiting.
    let share = (waited / (waited + left).max(1.0)).clamp(0.0, 0.99);
    Some((share * 1000.0) as u64)
}

fn sign(view: &View<'_>) -> Markup {
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

pub(crate) fn mark() -> Markup {
    PreEscaped(
        include_str!("../../../../web/icon.svg").replace("<svg ", "<svg aria-hidden=\"true\" "),
    )
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
