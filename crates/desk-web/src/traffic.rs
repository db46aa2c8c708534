//! Carries the frame's one count of requests to the store, once a second.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use desk::AppName;
use desk::traffic::{EndpointSum, Traffic};
use metrics::{counter, gauge};
use tokio_util::sync::CancellationToken;
use web::App;
use web::metrics::MetricInfo;
use web::requests::{AppRequests, GUARDED_APP, RequestDelta, RequestReader};

use crate::service::Desk;

/// Interval between flushes.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a stopping server is asked whether its last connection has ended.
const LAST_LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Most policies with metrics of their own.
const POLICIES_MEASURED: usize = 200;

/// The metrics of the desk.
pub(crate) const METRICS: &[MetricInfo] = &[
    MetricInfo::counter(
        "tidegate_desk_conversations_total",
        &[],
        "Conversations of the chat that were started.",
    ),
    MetricInfo::counter(
        "tidegate_desk_messages_total",
        &["sender"],
        "Messages of the chat, by who wrote them: user, admin, bot.",
    ),
    MetricInfo::counter(
        "tidegate_desk_outgoing_total",
        &["kind", "outcome"],
        "E-mails and notifications of the chat, by kind (reply, transcript, invitation, push) and outcome of the attempt: sent, failed, refused.",
    ),
    MetricInfo::counter(
        "tidegate_desk_requests_total",
        &["outcome"],
        "Requests, by the class of their status, or aborted by the client.",
    ),
    MetricInfo::counter(
        "tidegate_desk_requests_refused_total",
        &[],
        "Requests turned away before they reached a handler.",
    ),
    MetricInfo::gauge(
        "tidegate_desk_watched_users",
        &[],
        "Users whose open streams end when they are blocked.",
    ),
    MetricInfo::counter(
        "tidegate_desk_counts_lost_total",
        &[],
        "Counts of traffic that were given up while the store was away.",
    ),
    MetricInfo::counter(
        "tidegate_desk_limit_checks_total",
        &["policy", "result"],
        "Checks of rate limits, by policy and result.",
    ),
];

/// The traffic of one app, and how far the frame's count of it was read.
#[derive(Debug)]
struct CountedApp {
    traffic: Traffic,
    reader: RequestReader,
}

/// Writes the traffic of this program, and of others whose requests pass through it, until told to
/// stop; then what the last requests add.
pub(crate) async fn run(desk: Desk, app: App, stop: CancellationToken) {
    let mut own = CountedApp { traffic: desk.traffic.clone(), reader: RequestReader::default() };
    let mut others: HashMap<AppName, CountedApp> = HashMap::new();
    let mut is_stopping = false;
    while !is_stopping {
        tokio::select! {
            () = stop.cancelled() => is_stopping = true,
            () = tokio::time::sleep(FLUSH_INTERVAL) => {}
        }
        // Requests under way are counted when they end; the server ends each within its drain.
        while is_stopping && app.requests().connections() > 0 {
            tokio::time::sleep(LAST_LOOK_INTERVAL).await;
        }
        own.traffic.set_connections(u64::try_from(app.requests().connections()).unwrap_or(0));
        flush(&mut own, app.requests().own(), &app).await;
        let intake = desk.intake.load_full();
        app.requests().set_templates(Arc::clone(&intake.templates));
        for (name, requests) in app.requests().others() {
            let Ok(counted) = AppName::parse(&name) else { continue };
            let other = others.entry(counted.clone()).or_insert_with(|| CountedApp {
                traffic: desk.traffic_of(Some(&counted)),
                reader: RequestReader::default(),
            });
            // The name of the app behind the proxy may change; its count goes on where it was read.
            if name == GUARDED_APP && other.traffic.app() != Some(&intake.app) {
                let before =
                    std::mem::replace(&mut other.traffic, desk.traffic_of(Some(&intake.app)));
                leave(&before).await;
            }
            flush(other, &requests, &app).await;
        }
        for reported in desk.all_reported() {
            if let Err(error) = reported.flush().await {
                tracing::debug!(%error, "reported traffic is written with the next flush");
            }
        }
        measure(&desk);
    }
    for counted in others.values().chain([&own]) {
        leave(&counted.traffic).await;
    }
}

async fn leave(traffic: &Traffic) {
    if let Err(error) = traffic.leave().await {
        tracing::debug!(%error, "this instance drops out of the sums when its lease ends");
    }
}

async fn flush(counted: &mut CountedApp, requests: &AppRequests, app: &App) {
    let delta = counted.reader.read(requests, app.store().now());
    add(&counted.traffic, &delta);
    count(&delta);
    if let Err(error) = counted.traffic.flush().await {
        tracing::debug!(%error, "traffic is written with the next flush");
    }
}

fn add(traffic: &Traffic, delta: &RequestDelta) {
    let sums: Vec<EndpointSum<'_>> = delta
        .endpoints
        .iter()
        .map(|one| EndpointSum {
            method: one.method,
            route: one.route.as_deref(),
            statuses: &one.counts.statuses,
            aborted: one.counts.aborted,
            refused: one.counts.refused,
            times: &one.counts.times,
        })
        .collect();
    traffic.add(&sums, &delta.seconds);
}

/// Adds to the metrics of the desk what was read of the count.
fn count(delta: &RequestDelta) {
    for one in &delta.endpoints {
        for (status, count) in &one.counts.statuses {
            let class = match status / 100 {
                3 => "3xx",
                4 => "4xx",
                5.. => "5xx",
                _ => "2xx",
            };
            counter!("tidegate_desk_requests_total", "outcome" => class).increment(*count);
        }
        counter!("tidegate_desk_requests_total", "outcome" => "aborted")
            .increment(one.counts.aborted);
        counter!("tidegate_desk_requests_refused_total").increment(one.counts.refused);
    }
}

/// Brings the other metrics of the desk up to date.
fn measure(desk: &Desk) {
    gauge!("tidegate_desk_watched_users").set(desk.watcher.watched() as f64);
    let missing = desk.traffic.missing();
    counter!("tidegate_desk_counts_lost_total").absolute(missing.lost);
    let stats = desk.book.limiter().stats().into_iter();
    let stats = stats.filter(|(name, _)| name.as_ref().is_none_or(|one| one.previewed().is_none()));
    for (name, stats) in stats.take(POLICIES_MEASURED) {
        let policy = crate::limiter::name_of(name.as_ref()).to_owned();
        for (result, count) in [
            ("allowed", stats.allowed),
            ("denied", stats.denied),
            ("near", stats.near),
            ("shadow", stats.shadow),
            ("degraded", stats.degraded),
        ] {
            counter!("tidegate_desk_limit_checks_total", "policy" => policy.clone(), "result" => result)
                .absolute(count);
        }
    }
}
