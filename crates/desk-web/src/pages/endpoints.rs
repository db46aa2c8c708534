//! Endpoints of an app, sortable, with response times and share of errors.

use std::time::Duration;

use axum::extract::State;
use desk::AppName;
use desk::traffic::{EndpointTraffic, apps};
use maud::{Markup, html};
use serde::Deserialize;
use web::extract::Query;
use web::format;
use web::ui::{self, Shell};

use super::traffic::app_tabs;
use super::{frame, rendered};
use crate::api::{EndpointOrder, error_percent};
use crate::service::DeskState;

/// Endpoints shown.
const ROWS: usize = 200;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EndpointChoice {
    app: Option<String>,
    sort: Option<EndpointOrder>,
}

pub(crate) async fn page(
    State(state): State<DeskState>,
    shell: Shell,
    Query(choice): Query<EndpointChoice>,
) -> Markup {
    let sort = word(choice.sort.unwrap_or_default());
    let view = format!("{sort}&{}", choice.app.unwrap_or_default());
    let body = part(&state, &view).await;
    let topic = format!("desk-endpoints?{view}");
    frame(&state, &shell, ("/desk/endpoints", Some(&topic)), &body, &html! {})
}

fn word(order: EndpointOrder) -> &'static str {
    match order {
        EndpointOrder::Requests => "requests",
        EndpointOrder::Errors => "errors",
        EndpointOrder::P99 => "p99",
    }
}

/// The living part; the view is an order and an app.
pub(crate) async fn part(state: &DeskState, view: &str) -> Markup {
    rendered(async {
        let (sort, app) = view.split_once('&').unwrap_or((view, ""));
        let order = match sort {
            "errors" => EndpointOrder::Errors,
            "p99" => EndpointOrder::P99,
            _ => EndpointOrder::Requests,
        };
        let name = if app.is_empty() { None } else { Some(AppName::parse(app)?) };
        let mut found = state.desk.traffic_of(name.as_ref()).endpoints().await?;
        order.sort(&mut found);
        let names = apps(&state.desk.store, &state.desk.prefix).await?;
        Ok(html! {
            (app_tabs("/desk/endpoints", &names, app))
            (table(&found, order, app))
        })
    })
    .await
}

fn table(endpoints: &[EndpointTraffic], order: EndpointOrder, app: &str) -> Markup {
    if endpoints.is_empty() {
        let text = "An endpoint appears within a second of its first request. Probes and assets are not counted.";
        return ui::card_flush(
            "",
            "Endpoints",
            &html! {},
            &ui::empty(crate::ICON, "No requests yet", text, &html! {}),
        );
    }
    let address = |to: EndpointOrder| {
        let app = if app.is_empty() { String::new() } else { format!("&app={app}") };
        format!("/desk/endpoints?sort={}{app}", word(to))
    };
    let head = |to: EndpointOrder, label: &str| {
        let sorted = (to == order).then_some("descending");
        html! { th.r aria-sort=[sorted] { a href=(address(to)) { (label) @if to == order { " ↓" } } } }
    };
    // A phone shows no heads of columns.
    let orders = html! {
        nav.small aria-label="Order" {
            @for (to, label) in [(EndpointOrder::Requests, "requests"), (EndpointOrder::Errors, "errors"), (EndpointOrder::P99, "p99")] {
                " " @if to == order { b aria-current="true" { (label) } } @else { a href=(address(to)) { (label) } }
            }
        }
    };
    let body = html! {
        div.table-wrap tabindex="0" { table.table.cards {
            thead { tr {
                th { "Endpoint" }
                (head(EndpointOrder::Requests, "Requests"))
                (head(EndpointOrder::Errors, "Errors"))
                th.r { "p50" } th.r { "p90" }
                (head(EndpointOrder::P99, "p99"))
            } }
            tbody { @for one in endpoints.iter().take(ROWS) { (row(one)) } }
        } }
    };
    let title = format!("Endpoints ({})", format::count(endpoints.len() as u64));
    ui::card_flush("", &title, &orders, &body)
}

fn row(one: &EndpointTraffic) -> Markup {
    let percent = error_percent(one);
    html! {
        tr data-key=(one.endpoint) {
            td.wrap-any { span.mono.small { (one.endpoint) } }
            td.r data-label="Requests" { (format::count(one.requests)) }
            td.r data-label="Errors" {
                (format::count(one.errors)) " "
                @if one.errors > 0 { span.dim.small { (percent) " %" } }
            }
            td.r.nowrap data-label="p50" { (time(one.p50)) }
            td.r.nowrap data-label="p90" { (time(one.p90)) }
            td.r.nowrap data-label="p99" { (time(one.p99)) }
        }
    }
}

fn time(time: Option<Duration>) -> String {
    let Some(time) = time else { return "–".to_owned() };
    let (number, unit) = format::latency(time.as_secs_f64() * 1e3);
    format!("{number} {unit}")
}
