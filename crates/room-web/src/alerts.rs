//! The events of the waiting room for webhooks: a long line, and admissions that have stopped.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use room::{QueueFigures, QueueId, QueueStatus, Room};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use web::App;
use web::webhook::{Event, EventType};

/// A line is long.
const LINE_LONG: EventType = EventType {
    name: "room.line_long",
    help: "More visitors wait in a queue than `room.alert_waiting`.",
};
/// Nobody is admitted.
const ADMISSIONS_STOPPED: EventType = EventType {
    name: "room.admissions_stopped",
    help: "Visitors wait in a queue and nobody has been admitted for `room.alert_stopped`.",
};

/// The types of events.
pub(crate) const EVENTS: &[EventType] = &[LINE_LONG, ADMISSIONS_STOPPED];

/// Interval at which queues are looked at.
const EVERY: Duration = Duration::from_secs(2);

/// Thresholds, which may change while the room runs.
#[derive(Debug, Default)]
pub(crate) struct AlertLimits {
    /// Waiting visitors that are too many; 0 for none.
    pub(crate) waiting: AtomicU64,
    /// Time without an admission that is too long, in milliseconds; 0 for none.
    pub(crate) stopped_ms: AtomicU64,
}

/// Looks out for events while this instance leads, until told to stop.
pub(crate) async fn run(app: App, room: Room, limits: Arc<AlertLimits>, stop: CancellationToken) {
    let mut admissions: HashMap<QueueId, (u64, Instant)> = HashMap::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
        if !app.webhooks().leads() {
            admissions.clear();
            continue;
        }
        let figures = match room.figures().await {
            Ok(figures) => figures,
            Err(error) => {
                tracing::debug!(%error, "events of queues are sent to webhooks later");
                continue;
            }
        };
        admissions.retain(|queue, _| figures.iter().any(|figures| figures.queue == *queue));
        for figures in &figures {
            let told = tell(&app, figures, &limits, &mut admissions).await;
            if let Err(error) = told {
                tracing::debug!(
                    error = error.message(),
                    "events of queues are sent to webhooks later"
                );
            }
        }
    }
}

async fn tell(
    app: &App,
    figures: &QueueFigures,
    limits: &AlertLimits,
    admissions: &mut HashMap<QueueId, (u64, Instant)>,
) -> Result<(), web::ApiError> {
    let queue = figures.queue.as_str();
    let event = |kind: &EventType, text: String| Event {
        id: None,
        kind: kind.name,
        subject: format!("queue/{queue}"),
        text,
        data: json!({ "queue": queue, "waiting": figures.waiting, "active": figures.active,
            "status": figures.status.as_str() }),
    };
    let most = limits.waiting.load(Ordering::Relaxed);
    let is_long = most > 0 && figures.waiting > most;
    // A line that hovers around the limit is told of once: it is short again at nine tenths of it.
    if is_long || figures.waiting <= most / 10 * 9 {
        let text = match is_long {
            true => format!("{} visitors wait in {queue}, more than {most}.", figures.waiting),
            false => format!("{} visitors wait in {queue}.", figures.waiting),
        };
        app.webhooks().set_alarm(is_long, event(&LINE_LONG, text)).await?;
    }
    let admitted = figures.total.admitted;
    let known = admissions.entry(figures.queue.clone()).or_insert((admitted, Instant::now()));
    if known.0 != admitted || figures.waiting == 0 {
        *known = (admitted, Instant::now());
    }
    let limit = Duration::from_millis(limits.stopped_ms.load(Ordering::Relaxed));
    let is_stopped = !limit.is_zero() && known.1.elapsed() >= limit;
    let text = match (is_stopped, figures.status, figures.free) {
        (false, ..) => format!("Visitors of {queue} are admitted."),
        (true, QueueStatus::Active, Some(0)) => {
            format!(
                "Nobody has been admitted to {queue}, because all slots are taken; {} wait.",
                figures.waiting
            )
        }
        (true, QueueStatus::Active, _) => {
            format!(
                "Nobody has been admitted to {queue}, though it is open; {} wait.",
                figures.waiting
            )
        }
        (true, status, _) => {
            format!(
                "Nobody is admitted to {queue}, which is {}; {} wait.",
                status.as_str(),
                figures.waiting
            )
        }
    };
    app.webhooks().set_alarm(is_stopped, event(&ADMISSIONS_STOPPED, text)).await
}
