//! Figures of all queues, for metrics; and what this process counts.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};

use crate::{
    Error, PositionId, QueueId, QueueStatus, Room, Totals,
    stats::{recent_rate, totals},
};

/// Figures of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueFigures {
    /// The queue.
    pub queue: QueueId,
    /// Its status.
    pub status: QueueStatus,
    /// Number of waiting positions.
    pub waiting: u64,
    /// Number of admitted positions whose session has not started.
    pub admitted: u64,
    /// Number of active sessions.
    pub active: u64,
    /// Slots that are free under `max_active`; `None` if there is no limit.
    pub free: Option<u64>,
    /// Admissions per second that the configured rate allows.
    pub rate: f64,
    /// Admissions per second over the last five minutes, or since the queue was created or resumed.
    pub admission_rate: f64,
    /// Totals since the queue was created.
    pub total: Totals,
}

/// Queues whose snapshots are read concurrently.
const MAX_CONCURRENT_READS: usize = 16;

impl Room {
    /// Returns the figures of all queues, by name, each at most a second old. Reads counts only.
    pub async fn figures(&self) -> Result<Vec<QueueFigures>, Error> {
        let ids = self.queue_ids().await?;
        let now = self.now();
        let mut reads = stream::iter(ids)
            .map(|queue| async move { (self.snapshot(&queue).await, queue) })
            .buffered(MAX_CONCURRENT_READS);
        let mut figures = Vec::new();
        while let Some((snapshot, queue)) = reads.next().await {
            let snapshot = match snapshot {
                Ok(snapshot) => snapshot,
                Err(Error::UnknownQueue) => continue,
                Err(error) => return Err(error),
            };
            figures.push(QueueFigures {
                queue,
                status: snapshot.status,
                waiting: snapshot.waiting,
                admitted: snapshot.admitted,
                active: snapshot.active,
                free: snapshot.free(),
                rate: snapshot.config.admission.per_second(),
                admission_rate: recent_rate(&snapshot, now),
                total: totals(&snapshot),
            });
        }
        Ok(figures)
    }

    /// Records how long admitted positions waited.
    pub(crate) fn record_waits(&self, queue: &QueueId, ids: &[PositionId]) {
        if ids.is_empty() {
            return;
        }
        let now_us = u64::try_from(self.now().0).unwrap_or(0).saturating_mul(1_000);
        let waits = metrics::histogram!("tidegate_room_wait_seconds", "queue" => queue.to_string());
        for id in ids {
            let waited = Duration::from_micros(now_us.saturating_sub(id.enqueued_us()));
            waits.record(waited.as_secs_f64());
        }
    }
}

/// Counts a visitor who got no position or no session.
pub(crate) fn count_refusal(queue: &QueueId, error: &Error) {
    let reason = match error {
        Error::Full { .. } => "full",
        Error::Maintenance => "maintenance",
        Error::AddressFull { .. } => "address_full",
        Error::InviteUsed => "invite_used",
        Error::Busy => "busy",
        _ => return,
    };
    metrics::counter!("tidegate_room_refused_total", "queue" => queue.to_string(), "reason" => reason)
        .increment(1);
}
