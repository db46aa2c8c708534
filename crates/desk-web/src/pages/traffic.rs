//! Traffic of an app: requests, errors, latency, connections; live and over the last days.

use axum::extract::State;
use desk::AppName;
use desk::traffic::{EndpointTraffic, InstanceTraffic, Traffic, TrafficSnapshot, apps};
use maud::{Markup, html};
use serde::Deserialize;
use web::chart::{self, Line, Scale};
use web::extract::Query;
use web::format;
use web::ui::{self, Shell};

use super::{frame, rendered};
use crate::service::DeskState;

/// Seconds shown in the small line.
const LIVE_SECONDS: i64 = 300;
/// Endpoints shown.
const SHOWN: usize = 8;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AppChoice {
    app: Option<String>,
}

pub(crate) async fn page(
    State(state): State<DeskState>,
    shell: Shell,
    Query(choice): Query<AppChoice>,
) -> Markup {
    let app = choice.app.unwrap_or_default();
    let body = part(&state, &app).await;
    let topic =
        if app.is_empty() { "desk-traffic".to_owned() } else { format!("desk-traffic?{app}") };
    frame(&state, &shell, ("/desk/traffic", Some(&topic)), &body, &html! {})
}

/// The living part.
pub(crate) async fn part(state: &DeskState, app: &str) -> Markup {
    rendered(async {
        let name = if app.is_empty() { None } else { Some(AppName::parse(app)?) };
        let traffic = state.desk.traffic_of(name.as_ref());
        whole(state, app, &traffic).await
    })
    .await
}

async fn whole(state: &DeskState, app: &str, traffic: &Traffic) -> Result<Markup, desk::Error> {
    let seen = traffic.snapshot().await?;
    let names = apps(&state.desk.store, &state.desk.prefix).await?;
    let last = state.app.store().now().as_secs() - 2;
    let seconds = traffic.seconds(last - LIVE_SECONDS + 1, last).await?;
    let instances = traffic.instances().await?;
    let mut endpoints = traffic.endpoints().await?;
    endpoints.sort_by_key(|one| std::cmp::Reverse(one.requests));
    let [ok, moved, client, server] = seen.by_class;
    let mut outcomes = vec![
        ("2xx", ok, "good"),
        ("3xx", moved, ""),
        ("4xx", client, "warn"),
        ("5xx", server, "bad"),
        ("aborted by the client", seen.aborted, ""),
    ];
    if seen.without_outcome > 0 {
        outcomes.push(("outcome not counted", seen.without_outcome, ""));
    }
    let share = |part: u64| match seen.total {
        0 => "–".to_owned(),
        total => format!("{:.1} %", part as f64 / total as f64 * 100.0),
    };
    let live: Vec<Option<f64>> = seconds.iter().map(|count| Some(*count as f64)).collect();
    let series = |name: &str| match app {
        "" => format!("desk.{name}"),
        app => format!("desk.app.{app}.{name}"),
    };
    let slowest = endpoints.iter().filter_map(|one| one.p99).max();
    let slowest = slowest.map_or_else(
        || "–".to_owned(),
        |time| {
            let (number, unit) = format::latency(time.as_secs_f64() * 1e3);
            format!("{number} {unit}")
        },
    );
    Ok(html! {
        (app_tabs("/desk/traffic", &names, app))
        div.tiles {
            (ui::tile("Requests", &format::short(seen.speed_per_second as f64), "/s", &format!("most in a second: {}", format::count(seen.max_speed_per_second)), &chart::spark(&live, 1)))
            (ui::tile("Total", &format::short(seen.total as f64), "", &parts_of(&seen), &html! {}))
            (ui::tile("Errors", &format::short(seen.errors as f64), "", &format!("{} of all requests", share(seen.errors)), &html! {}))
            (ui::tile("Limited", &format::short(seen.limited as f64), "", "answered 429", &html! {}))
            (ui::tile("Connections", &format::count(seen.connections), "", &format!("most: {}", format::count(seen.connections_max)), &html! {}))
        }
        div.grid {
            (ui::card("w6", "Requests", &chart::chart("Requests per second", &[
                Line::new("requests", "/s", series("requests")),
            ], Scale::Number)))
            (ui::card("w6", "Errors", &chart::chart("Errors per second", &[
                Line::new("4xx and 5xx", "/s", series("errors")),
                Line::new("limited (429)", "/s", series("limited")),
            ], Scale::Number)))
            (ui::card("w6", "Latency", &chart::chart("Response time", &[
                Line::new("p50", "ms", series("p50_ms")),
                Line::new("p99", "ms", series("p99_ms")),
            ], Scale::Number)))
            (ui::card_flush("w6", "Instances", &html! {}, &instance_list(&instances, state.desk.instance.as_str())))
            (ui::card_flush("w6", "Outcomes", &html! {}, &html! {
                ul.list {
                    @for (word, count, tone) in outcomes {
                        li { (ui::badge(tone, word)) span.grow.dim { (share(count)) } b { (format::count(count)) } }
                    }
                }
            }))
            (ui::card_flush("w6", "Busiest endpoints", &html! { a.small href={ "/desk/endpoints" @if !app.is_empty() { "?app=" (app) } } { "All" } }, &busiest(&endpoints, &slowest)))
        }
    })
}

/// Tabs of this program and the apps whose traffic is kept beside it; nothing without any.
pub(super) fn app_tabs(address: &str, names: &[AppName], app: &str) -> Markup {
    html! {
        @if !names.is_empty() {
            nav.tabs aria-label="Apps" {
                a href=(address) aria-current=[app.is_empty().then_some("page")] { "This program" }
                @for name in names {
                    a href={ (address) "?app=" (name) } aria-current=[(name.as_str() == app).then_some("page")] { (name) }
                }
            }
        }
    }
}

/// Instances that are alive; one that dies is gone within 15 s.
fn instance_list(instances: &[InstanceTraffic], own: &str) -> Markup {
    if instances.is_empty() {
        let text = "An instance appears with its first connection, and is gone 15 s after it dies.";
        return ui::empty(crate::ICON, "No live instance", text, &html! {});
    }
    html! {
        ul.list {
            @for one in instances {
                li data-key=(one.id) {
                    span.grow.mono.small.wrap-any { (one.id) }
                    @if one.id == own { (ui::badge("accent", "this one")) }
                    span { b { (format::count(one.connections)) } @if one.connections == 1 { " connection" } @else { " connections" } }
                }
            }
        }
    }
}

fn busiest(endpoints: &[EndpointTraffic], slowest: &str) -> Markup {
    if endpoints.is_empty() {
        let text = "An endpoint appears within a second of its first request. Probes and assets are not counted.";
        return ui::empty(crate::ICON, "No requests yet", text, &html! {});
    }
    html! {
        ul.list {
            @for one in endpoints.iter().take(SHOWN) {
                li data-key=(one.endpoint) {
                    span.grow.mono.small.wrap-any { (one.endpoint) }
                    b { (format::short(one.requests as f64)) }
                }
            }
            li { span.grow.dim { "slowest p99" } b { (slowest) } }
        }
    }
}

/// The parts of the total in words. Another program may have added to the total alone.
fn parts_of(seen: &TrafficSnapshot) -> String {
    let count = |count: u64| format::short(count as f64);
    let known = format!("{} accepted, {} refused", count(seen.accepted), count(seen.refused));
    match seen.total_only {
        0 => known,
        more => format!("{known}, {} in the total alone", count(more)),
    }
}
