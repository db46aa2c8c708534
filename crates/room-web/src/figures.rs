//! The metrics of the waiting room.

use room::{QueueFigures, QueueStatus, Room};
use web::metrics::{MetricInfo, PATIENCE_SECONDS, Reading};
use web::series::float;

const QUEUE: &[&str] = &["queue"];

/// The metrics of the waiting room.
pub(crate) const METRICS: &[MetricInfo] = &[
    MetricInfo::gauge("tidegate_room_waiting", QUEUE, "Waiting positions.").in_store(),
    MetricInfo::gauge(
        "tidegate_room_admitted",
        QUEUE,
        "Admitted positions whose session has not started.",
    )
    .in_store(),
    MetricInfo::gauge("tidegate_room_active", QUEUE, "Active sessions.").in_store(),
    MetricInfo::gauge(
        "tidegate_room_free_slots",
        QUEUE,
        "Slots free under `max_active`; missing if there is no limit.",
    )
    .in_store(),
    MetricInfo::gauge(
        "tidegate_room_open",
        QUEUE,
        "1 while the queue admits, 0 while it is paused or in maintenance.",
    )
    .in_store(),
    MetricInfo::gauge(
        "tidegate_room_rate_per_second",
        QUEUE,
        "Admissions per second that the configured rate allows.",
    )
    .in_store(),
    MetricInfo::gauge(
        "tidegate_room_admissions_per_second",
        QUEUE,
        "Admissions per second over the last five minutes, or since the queue was created or resumed.",
    )
    .in_store(),
    MetricInfo::counter("tidegate_room_enqueued_total", QUEUE, "Positions enqueued.").in_store(),
    MetricInfo::counter(
        "tidegate_room_admissions_total",
        QUEUE,
        "Admissions, second ones after a no-show included.",
    )
    .in_store(),
    MetricInfo::counter(
        "tidegate_room_no_shows_total",
        QUEUE,
        "Admissions whose session did not start within the admission window.",
    )
    .in_store(),
    MetricInfo::counter(
        "tidegate_room_expired_total",
        QUEUE,
        "Positions that expired or were revoked.",
    )
    .in_store(),
    MetricInfo::counter(
        "tidegate_room_cancelled_total",
        QUEUE,
        "Positions cancelled by their visitors.",
    )
    .in_store(),
    MetricInfo::counter("tidegate_room_sessions_started_total", QUEUE, "Sessions started.")
        .in_store(),
    MetricInfo::counter("tidegate_room_sessions_completed_total", QUEUE, "Sessions completed.")
        .in_store(),
    MetricInfo::counter("tidegate_room_sessions_expired_total", QUEUE, "Sessions expired.")
        .in_store(),
    MetricInfo::counter("tidegate_room_sessions_revoked_total", QUEUE, "Sessions revoked.")
        .in_store(),
    MetricInfo::histogram(
        "tidegate_room_wait_seconds",
        PATIENCE_SECONDS,
        QUEUE,
        "Time from enqueueing to admission, of positions that this instance admitted.",
    ),
    MetricInfo::counter(
        "tidegate_room_refused_total",
        &["queue", "reason"],
        "Visitors who got no position or no session: the queue is `full`, in `maintenance` or `busy`, the \
         address has its sessions (`address_full`), the invite is used up (`invite_used`).",
    ),
    MetricInfo::counter(
        "tidegate_room_network_limited_total",
        &[],
        "Visitors refused because too many enqueued from their network within a minute.",
    ),
    MetricInfo::counter(
        "tidegate_room_gate_decisions_total",
        &["decision"],
        "Decisions of reverse proxy and forward auth.",
    ),
    MetricInfo::gauge("tidegate_room_streams", &[], "Open streams of waiting visitors."),
];

/// Reads the figures of all queues.
pub(crate) async fn readings(room: &Room, streams: usize) -> Result<Vec<Reading>, String> {
    let mut readings = vec![Reading::new("tidegate_room_streams", float(streams as u64))];
    for figures in room.figures().await.map_err(|error| error.to_string())? {
        push(&mut readings, &figures);
    }
    Ok(readings)
}

fn push(readings: &mut Vec<Reading>, figures: &QueueFigures) {
    let queue = figures.queue.as_str();
    let mut put = |name, value| readings.push(Reading::new(name, value).label("queue", queue));
    put("tidegate_room_waiting", float(figures.waiting));
    put("tidegate_room_admitted", float(figures.admitted));
    put("tidegate_room_active", float(figures.active));
    if let Some(free) = figures.free {
        put("tidegate_room_free_slots", float(free));
    }
    put("tidegate_room_open", f64::from(u8::from(figures.status == QueueStatus::Active)));
    put("tidegate_room_rate_per_second", figures.rate);
    put("tidegate_room_admissions_per_second", figures.admission_rate);
    let total = &figures.total;
    for (name, count) in [
        ("tidegate_room_enqueued_total", total.enqueued),
        ("tidegate_room_admissions_total", total.admitted),
        ("tidegate_room_no_shows_total", total.no_shows),
        ("tidegate_room_expired_total", total.expired),
        ("tidegate_room_cancelled_total", total.cancelled),
        ("tidegate_room_sessions_started_total", total.sessions_started),
        ("tidegate_room_sessions_completed_total", total.completed),
        ("tidegate_room_sessions_expired_total", total.sessions_expired),
        ("tidegate_room_sessions_revoked_total", total.terminated),
    ] {
        put(name, float(count));
    }
}
