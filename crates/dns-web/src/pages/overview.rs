//! The overview: queries, blocked share, hits by tier, latency, and the most frequent names, clients,
//! lists and upstreams of the last day or another range.

use std::time::Duration;

use axum::extract::State;
use maud::{Markup, html};
use serde::Deserialize;
use store::Millis;
use web::chart::{self, Line, Scale};
use web::extract::Query;
use web::icon::Icon;
use web::middleware::percent;
use web::ui::{self, Shell};
use web::{format, series::float};

use super::{PolicyNames, acts_word, frame, upstreams};
use crate::api::statistics::{CountView, StatisticsView, read};
use crate::catalogue;
use crate::service::{DnsState, describe_filtering};

/// Rows of a table.
const ROWS: usize = 10;

/// Earliest time of which there are statistics.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// Ranges of the picker: word in the address, minutes.
const RANGES: [(&str, u64); 6] =
    [("15m", 15), ("1h", 60), ("24h", 1_440), ("7d", 10_080), ("30d", 43_200), ("90d", 129_600)];

/// The range that is shown: one of the picker's, or from–to in seconds since 1970.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(crate) struct OverviewQuery {
    range: String,
    from: Option<i64>,
    to: Option<i64>,
}

impl OverviewQuery {
    /// Returns its word for the picker and for the topic of the live part.
    fn word(&self) -> String {
        match (self.from, self.to) {
            (Some(from), Some(to)) => format!("{from}-{to}"),
            (Some(from), None) => format!("{from}-"),
            (None, _) => {
                let known = RANGES.iter().find(|(name, _)| *name == self.range);
                known.map_or("24h", |(name, _)| name).to_owned()
            }
        }
    }

    fn parse(word: &str) -> OverviewQuery {
        match word.split_once('-') {
            Some((from, to)) => OverviewQuery {
                from: from.parse().ok(),
                to: to.parse().ok(),
                ..OverviewQuery::default()
            },
            None => OverviewQuery { range: word.to_owned(), ..OverviewQuery::default() },
        }
    }

    /// Returns beginning and end.
    fn bounds(&self, now: Millis) -> (Millis, Millis) {
        let end = Millis(now.0 + 1);
        let millis = |seconds: i64| Millis(seconds.saturating_mul(1_000));
        if let Some(from) = self.from {
            let earliest = now - LONGEST;
            let to = self.to.map_or(end, millis).clamp(Millis(earliest.0 + 1), end);
            return (millis(from).clamp(earliest, Millis(to.0 - 1)), to);
        }
        let minutes = RANGES.iter().find(|(name, _)| *name == self.range);
        let minutes = minutes.map_or(1_440, |(_, minutes)| *minutes);
        (now - Duration::from_secs(minutes * 60), end)
    }
}

pub(crate) async fn page(
    State(state): State<DnsState>,
    Query(query): Query<OverviewQuery>,
    shell: Shell,
) -> Markup {
    let word = query.word();
    let acts = shell.may_operate();
    let topic = format!("dns?{}/{word}", acts_word(acts));
    let live = part(&state, topic.trim_start_matches("dns?")).await;
    // The form stands still while figures change. A range that is picked is a page of its own.
    let body = html! { (first_steps(&state, acts)) div.stack data-live=(topic) data-ranged=(word) { (live) } };
    frame(&state, &shell, "", None, &body)
}

/// Tells of requests to allow a name that wait for a decision.
async fn waiting_requests(state: &DnsState) -> Markup {
    let Ok(found) = state.requests.list().await else { return html! {} };
    let waiting = found.iter().filter(|one| one.state == dns::AllowRequestState::Waiting).count();
    let problems = state.problems.count();
    html! {
        @if waiting > 0 { div.notice.warn role="status" { (waiting) @if waiting == 1 { " request" } @else { " requests" } " to allow a name " @if waiting == 1 { "waits" } @else { "wait" } " for a decision. " a href="/dns/rules" { "Decide" } } }
        @if problems > 0 { div.notice.bad role="status" { (problems) @if problems == 1 { " problem. " } @else { " problems. " } a href="/dns/problems" { "What to do" } } }
    }
}

/// Renders the live part: `ACTS/RANGE`.
pub(crate) async fn part(state: &DnsState, argument: &str) -> Markup {
    let (_, word) = argument.split_once('/').unwrap_or((argument, ""));
    let now = state.resolver.now();
    let (from, to) = OverviewQuery::parse(word).bounds(now);
    let read = read(state, from, to).await;
    html! {
        (waiting_requests(state).await)
        div.toolbar { span.dim { (format::sentence(&describe_filtering(&state.resolver).1)) } }
        @match read {
            Ok(statistics) => {
                (figures(state, &statistics, from, to))
                @if statistics.queries > 0 { (tables(state, &statistics, from)) }
            }
            Err(error) => { div.notice.bad role="alert" { (error.message()) } }
        }
        (ui::card_flush("", "Upstreams", &html! { a.small href="/dns/upstreams" { "All" } }, &upstreams::table(state, false, false)))
    }
}

/// Renders the first decisions of a new installation: lists, upstream, who may query.
fn first_steps(state: &DnsState, acts: bool) -> Markup {
    let version = state.resolver.policy();
    if version.version > 0 || !acts {
        return html! {};
    }
    let listen = state.listeners.addresses();
    let is_local = !listen.is_empty() && listen.iter().all(|address| address.ip().is_loopback());
    let upstreams = state.resolver.upstreams().stats();
    let names: Vec<String> = upstreams.iter().map(|server| server.server.to_string()).collect();
    let cost = |id: &str, text: &str| {
        let Some(list) = catalogue::find(id) else { return text.to_owned() };
        let (memory, unit) = format::bytes(float(list.memory_below()));
        let names = format::count(list.names_below);
        format!(
            "{}: fewer than {names} names, less than {memory} {unit} of memory. {text}",
            list.name
        )
    };
    let choice = |group: &str, value: &str, title: &str, text: &str, checked: bool| {
        html! {
            label.choice { input type="radio" name=(group) value=(value) checked[checked]; span { (title) small { (text) } } }
        }
    };
    ui::card(
        "first-card",
        "Three things to decide",
        &html! {
            form.form data-api="POST /api/v1/dns/setup" data-done="The resolver is set up" data-then="reload" {
                fieldset.choices {
                    legend { "1. What to block" }
                    (choice("lists", "built_in", "Built-in list", "About 1,700 names, no network needed, 17 KB of memory.", true))
                    (choice("lists", "light", "Light", &cost("oisd-small", "Nothing breaks."), false))
                    (choice("lists", "balanced", "Balanced", &cost("oisd-big", "What most people want."), false))
                    (choice("lists", "strict", "Strict", &cost("hagezi-pro-plus", "Now and then something has to be allowed again."), false))
                    (choice("lists", "none", "Nothing", "Only cache and forward.", false))
                    label.choice { input type="checkbox" name="malware"; span { "Malware and phishing too" small { (cost("hagezi-tif", "")) } } }
                }
                fieldset.choices {
                    legend { "2. Who answers what is not known" }
                    (choice("upstream", "settings", "As the settings say", &names.join(", "), true))
                    (choice("upstream", "quad9", "Quad9", "Over TLS; blocks malware, keeps no addresses.", false))
                    (choice("upstream", "cloudflare", "Cloudflare", "Over HTTPS; fast, keeps logs for a day.", false))
                    (choice("upstream", "mullvad", "Mullvad", "Over HTTPS; keeps no logs.", false))
                    (choice("upstream", "own", "My own", "A server of yours or of your provider.", false))
                }
                label.field { span { "My own servers" } input.input type="text" name="upstream_servers" data-kind="list" placeholder="192.168.1.1, tls://dns.example" autocomplete="off" spellcheck="false"; small { "Only for the last choice; separated by commas." } }
                fieldset.choices {
                    legend { "3. Who may query" }
                    (choice("access", "private", "Private networks", "Devices at home or in the office.", true))
                    (choice("access", "machine", "Only this machine", "", false))
                    (choice("access", "anyone", "Everybody", "Only behind a firewall: open resolvers are used for attacks.", false))
                }
                @if is_local { p.dim.small { "It listens on this machine only, until " code { "dns.listen" } " names an address that other devices can reach: " a href="/docs/start-dns" { "how to take port 53" } "." } }
                div { button.btn.primary type="submit" { "Set it up" } }
            }
        },
    )
}

fn figures(state: &DnsState, statistics: &StatisticsView, from: Millis, to: Millis) -> Markup {
    let series = state.app.series();
    let share = |part: u64| {
        if statistics.queries == 0 { 0.0 } else { float(part) / float(statistics.queries) * 100.0 }
    };
    let last = |name: &str| format::short(series.last(name).unwrap_or(0.0));
    let hits = statistics.memory_hits + statistics.store_hits;
    let (median, unit) = latency(statistics.p50_ms);
    let told = |ms: Option<u64>| {
        let (value, unit) = latency(ms);
        format!("{value} {unit}")
    };
    let slow = format!("p95 {}, p99 {}", told(statistics.p95_ms), told(statistics.p99_ms));
    let log = |condition: &str| {
        format!("/dns/queries?from={}{condition}", percent(&format::rfc3339(from.0)))
    };
    html! {
        div.tiles {
            (ui::tile_to(&log(""), "Queries", &format::count(statistics.queries), "", &format!("{} /s now", last("dns.queries")), &chart::spark(&series.line("dns.queries"), 1)))
            (ui::tile_to(&log("&outcome=blocked"), "Blocked", &format!("{:.1}", share(statistics.blocked)), "%", &format::count(statistics.blocked), &chart::spark(&series.line("dns.blocked"), 4)))
            (ui::tile_to(&log("&outcome=cached"), "From the cache", &format!("{:.1}", share(hits)), "%", &format!("{:.0} % memory, {:.0} % store", share(statistics.memory_hits), share(statistics.store_hits)), &chart::spark(&series.line("dns.memory_hits"), 2)))
            (ui::tile("Median latency", &median, unit, &slow, &html! {}))
            (ui::tile_to("/dns/cache", "Answers in memory", &format::count(state.resolver.l0().stats().entries as u64), "", "of this instance", &chart::spark(&series.line("dns.memory_answers"), 3)))
        }
        div.grid {
            (ui::card("w6", "Queries per second", &chart::chart("Queries per second", &[
                Line::new("answered", "/s", "dns.queries"),
                Line::new("forwarded", "/s", "dns.forwarded"),
                Line::new("blocked", "/s", "dns.blocked"),
            ], Scale::Number)))
            (bars(state, statistics, from, to))
        }
    }
}

/// A latency for people: value and unit.
fn latency(ms: Option<u64>) -> (String, &'static str) {
    match ms {
        None => ("–".to_owned(), "ms"),
        Some(0) => ("< 1".to_owned(), "ms"),
        Some(ms) => format::latency(float(ms)),
    }
}

/// Queries of each hour or day as bars, the blocked part below.
fn bars(state: &DnsState, statistics: &StatisticsView, from: Millis, to: Millis) -> Markup {
    let points = &statistics.points;
    let Some(first) = points.first() else {
        let listen = state.listeners.addresses();
        let hint = html! { @if let Some(address) = listen.first() { pre.code { code { "tidegate dns query example.org --at " (address) } } } };
        let text = "Queries are counted from now on. Send one:";
        return ui::card(
            "w6",
            "Queries by hour",
            &ui::empty(Icon::CLOCK, "No queries in this range", text, &hint),
        );
    };
    // Hours and days without queries have their place, too.
    let is_daily = statistics.step_seconds > 3_600;
    let step_ms = i64::try_from(statistics.step_seconds).unwrap_or(3_600).max(1) * 1_000;
    let start = from.0.div_euclid(step_ms) * step_ms;
    let start = start.min(first.started_at.0.0);
    let count = usize::try_from((to.0 - 1 - start).div_euclid(step_ms) + 1).unwrap_or(1).min(400);
    let most = points.iter().map(|point| point.queries).max().unwrap_or(0).max(1);
    // Few bars are no wider than those of half a day, and stand in the middle of their hour or day.
    let (slot, width) = (600.0 / float(count as u64), 480.0 / float(count.max(12) as u64));
    let title = if is_daily { "Queries by day" } else { "Queries by hour" };
    let end = start + i64::try_from(count).unwrap_or(1) * step_ms;
    ui::card(
        "w6",
        title,
        &html! {
            ul.legend { li.c1 { "queries " b { (format::count(statistics.queries)) } } li.c4 { "blocked " b { (format::count(statistics.blocked)) } } }
            div.bars-box {
                div.y aria-hidden="true" { span { (format::short(float(most))) } span { (format::short(float(most) / 2.0)) } span { "0" } }
                svg.bars viewBox="0 0 600 160" preserveAspectRatio="none" role="img" aria-label={ (title) ", at most " (format::count(most)) " at once" } {
                    @for at in [0, 80, 160] { line class="rule" x1="0" x2="600" y1=(at) y2=(at) {} }
                    @for point in points {
                        @let index = (point.started_at.0.0 - start).div_euclid(step_ms);
                        @let x = (float(u64::try_from(index).unwrap_or(0)) + 0.5) * slot - width / 2.0;
                        @let tall = float(point.queries) / float(most) * 156.0;
                        @let blocked = float(point.blocked) / float(most) * 156.0;
                        rect class="bar c1" x=(format!("{x:.1}")) y=(format!("{:.1}", 160.0 - tall)) width=(format!("{width:.1}")) height=(format!("{tall:.1}")) {
                            title { (format::rfc3339(point.started_at.0.0)) ": " (format::count(point.queries)) " queries, " (format::count(point.blocked)) " blocked" }
                        }
                        rect class="bar c4" x=(format!("{x:.1}")) y=(format!("{:.1}", 160.0 - blocked)) width=(format!("{width:.1}")) height=(format!("{blocked:.1}")) {}
                    }
                }
                div.x aria-hidden="true" { (tick(start, is_daily)) (tick((start + end) / 2, is_daily)) (tick(end, is_daily)) }
            }
        },
    )
}

/// A moment on the axis, in the time zone of the browser once scripts run.
fn tick(ms: i64, is_daily: bool) -> Markup {
    let text = format::rfc3339(ms);
    let shown = if is_daily { text.get(..10) } else { text.get(11..16) };
    html! { time data-ms=(ms) data-style=(if is_daily { "day" } else { "hour" }) datetime=(text) { (shown.unwrap_or_default()) } }
}

fn tables(state: &DnsState, statistics: &StatisticsView, from: Millis) -> Markup {
    let names = PolicyNames::new(state);
    let same = |value: &str| value.to_owned();
    let word = |value: &str| value.replace('_', " ");
    let top = |title, field, values, total, text: &dyn Fn(&str) -> String| {
        top(title, field, values, total, from, text)
    };
    html! {
        div.grid {
            (top("Names", "name", &statistics.names, statistics.queries, &same))
            (top("Blocked names", "name", &statistics.blocked_names, statistics.blocked, &same))
            (top("Clients", "client", &statistics.clients, statistics.queries, &|id| names.client(id).to_owned()))
            (top("Lists and rules", "list", &statistics.lists, statistics.blocked, &|source| names.source(source)))
            (top("Groups", "group", &statistics.groups, statistics.queries, &|id| names.group(id).to_owned()))
            (top("Answered by", "upstream", &statistics.upstreams, statistics.queries, &same))
            (top("Types", "type", &statistics.types, statistics.queries, &same))
            (top("Outcomes", "outcome", &statistics.outcomes, statistics.queries, &word))
        }
    }
}

/// The most frequent values, each a filter of the log.
fn top(
    title: &str,
    field: &str,
    values: &[CountView],
    total: u64,
    from: Millis,
    text: &dyn Fn(&str) -> String,
) -> Markup {
    let from = percent(&format::rfc3339(from.0));
    let body = if values.is_empty() {
        html! { p.inset.dim { "None in this range." } }
    } else {
        html! {
            ul.list.tight {
                @for one in values.iter().take(ROWS) {
                    @let share = float(one.queries) / float(total.max(1));
                    li data-key=(one.value) {
                        span.grow.clip { a.row href={ "/dns/queries?" (field) "=" (percent(&one.value)) "&from=" (from) } title=(one.value) { (text(&one.value)) } }
                        span.bar-wrap { (chart::level(share, &format!("{:.0} %", share * 100.0))) }
                        span.num.short-count { (format::count(one.queries)) }
                    }
                }
            }
        }
    };
    ui::card_flush("w6", title, &html! {}, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_back_from_their_words_and_stay_within_bounds() {
        let now = Millis(1_800_000_000_000);
        for (name, minutes) in RANGES {
            let query = OverviewQuery { range: name.to_owned(), ..OverviewQuery::default() };
            assert_eq!(query.word(), name);
            let (from, to) = OverviewQuery::parse(&query.word()).bounds(now);
            assert_eq!(to.0 - 1 - from.0, i64::try_from(minutes * 60_000).unwrap());
        }
        let own = OverviewQuery::parse("1799990000-1799995000");
        assert_eq!(own.bounds(now), (Millis(1_799_990_000_000), Millis(1_799_995_000_000)));
        assert_eq!(OverviewQuery::parse(&own.word()).bounds(now), own.bounds(now));
        for strange in ["", "x", "-", "9-1", "5-", "9999999999999999-", "-5"] {
            let (from, to) = OverviewQuery::parse(strange).bounds(now);
            assert!(from < to && to.0 <= now.0 + 1, "{strange}: {from:?} {to:?}");
        }
    }
}
