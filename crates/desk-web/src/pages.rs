//! The desk's pages: traffic, endpoints, limits, users. Each is a file of its own.

pub(crate) mod endpoints;
pub(crate) mod limits;
pub(crate) mod traffic;
pub(crate) mod users;

use desk::traffic::{Traffic, TrafficSnapshot, apps};
use maud::{Markup, html};
use store::histogram::quantile;
use store::history::SharedSample;
use web::series::float;
use web::ui::{self, Shell};

use crate::service::{Desk, DeskState};

/// Renders the tabs: address, label.
fn tabs(here: &str) -> Markup {
    let all = [
        ("/desk/traffic", "Traffic"),
        ("/desk/endpoints", "Endpoints"),
        ("/desk/limits", "Limits"),
        ("/desk/users", "Users"),
        ("/desk/chat", "Support chat"),
    ];
    html! {
        nav.tabs aria-label="Desk" {
            @for (address, word) in all {
                a href=(address) aria-current=[(address == here).then_some("page")] { (word) }
            }
        }
    }
}

/// A page of the desk: tabs and what is under them, which lives when there is a topic; then what does
/// not, such as dialogs.
fn frame(
    state: &DeskState,
    shell: &Shell,
    (here, topic): (&str, Option<&str>),
    body: &Markup,
    rest: &Markup,
) -> Markup {
    let head = ui::Head::new("Desk", "Requests, limits and users of every instance of an app.");
    let body = html! {
        (tabs(here))
        @match topic { Some(topic) => { div data-live=(topic) { (body) } } None => { (body) } }
        (rest)
    };
    shell.page(&state.app, "/desk/traffic", &head, &body)
}

/// The page of the support chat, whose parts a script shows.
pub(crate) fn chat_frame(state: &DeskState, shell: &Shell, body: &Markup) -> Markup {
    let actions = html! { a.btn href="/desk" { "Open the console" } };
    let head = ui::Head {
        actions,
        ..ui::Head::new("Desk", "Conversations with visitors, and the people who answer them.")
    };
    let body = html! { (tabs("/desk/chat")) (body) };
    shell.page(&state.app, "/desk/traffic", &head, &body)
}

/// Renders something, or the error.
async fn rendered(render: impl Future<Output = Result<Markup, desk::Error>>) -> Markup {
    match render.await {
        Ok(markup) => markup,
        Err(error) => html! { div.notice.bad role="alert" { (error) } },
    }
}

/// Samples the desk for the charts.
pub(crate) async fn sample(desk: &Desk) -> Vec<SharedSample> {
    let mut samples = Vec::new();
    let Ok(seen) = desk.traffic.snapshot().await else { return samples };
    samples.push(SharedSample::gauge("desk.speed", float(seen.speed_per_second)));
    samples.push(SharedSample::gauge("desk.connections", float(seen.connections)));
    samples.extend(totals("desk", &seen));
    samples.extend(latencies(desk, "desk", &desk.traffic).await);
    let most = desk.intake.load().history;
    for app in apps(&desk.store, &desk.prefix).await.unwrap_or_default().iter().take(most) {
        let traffic = desk.traffic_of(Some(app));
        if let Ok(seen) = traffic.snapshot().await {
            samples.extend(totals(&format!("desk.app.{app}"), &seen));
        }
        samples.extend(latencies(desk, &format!("desk.app.{app}"), &traffic).await);
    }
    samples
}

/// Response times of the requests since the last sample; none without requests.
async fn latencies(desk: &Desk, start: &str, traffic: &Traffic) -> Vec<SharedSample> {
    let Ok(now) = traffic.response_times().await else { return Vec::new() };
    let before = desk.last_times.lock().insert(start.to_owned(), now.clone());
    let Some(before) = before else { return Vec::new() };
    let mut new = now.clone();
    for (count, before) in new.iter_mut().zip(before.iter()) {
        // After a reset everything is new.
        *count = count.checked_sub(*before).unwrap_or(*count);
    }
    let sample = |name: &str, share| {
        let time = quantile(&new, share)?;
        Some(SharedSample::gauge(format!("{start}.{name}"), time.as_secs_f64() * 1e3))
    };
    [sample("p50_ms", 0.5), sample("p99_ms", 0.99)].into_iter().flatten().collect()
}

/// The series of an app that only grow.
fn totals(start: &str, seen: &TrafficSnapshot) -> [SharedSample; 3] {
    [
        SharedSample::total(format!("{start}.requests"), float(seen.total)),
        SharedSample::total(format!("{start}.errors"), float(seen.errors)),
        SharedSample::total(format!("{start}.limited"), float(seen.limited)),
    ]
}
