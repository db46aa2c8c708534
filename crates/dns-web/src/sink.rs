//! The log sink: rows of the query log, posted in batches of JSON lines to another program. The shape of
//! a row is the original's, so that ClickHouse takes them as `FORMAT JSONEachRow`.
//!
//! Invariants: rows wait in memory, bounded; a batch is tried three times; what finds no room, or no
//! receiver, is dropped and counted. Answering queries never waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dns::LoggedQuery;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::records::{rcode_name, type_name};
use crate::remote::RemoteClient;

/// Rows of a batch.
const BATCH_ROWS: usize = 2_000;

/// Rows that wait.
const WAITING_MAX: usize = 50_000;

/// Longest time that rows wait for a batch to fill.
const FLUSH_EVERY: Duration = Duration::from_secs(5);

/// Attempts at one batch, and the pause before the second; it doubles.
const ATTEMPTS: u32 = 3;
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Time for one attempt.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the rows that wait when the program ends.
const LAST_TIMEOUT: Duration = Duration::from_secs(5);

/// Rows that wait for a batch, as text.
#[derive(Debug, Default)]
struct WaitingRows {
    rows: Vec<String>,
    /// Number of the row that was seen last.
    last: Option<u64>,
}

impl WaitingRows {
    /// Adds rows. Returns the number of those that are missing: rows that were gone before they were taken,
    /// and rows that found no room.
    fn take(&mut self, rows: &[LoggedQuery]) -> u64 {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return 0 };
        let gone = self.last.map_or(0, |seen| first.number.saturating_sub(seen + 1));
        self.last = Some(last.number);
        let room = WAITING_MAX.saturating_sub(self.rows.len());
        self.rows.extend(rows.iter().take(room).map(row_text));
        gone + rows.len().saturating_sub(room) as u64
    }
}

/// Counts of the sink. A cheap clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sink(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    sent: AtomicU64,
    dropped: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl Sink {
    /// Returns the rows that were taken, and those that were dropped.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.0.sent.load(Ordering::Relaxed), self.0.dropped.load(Ordering::Relaxed))
    }

    /// Returns the failure of the last batch, if it failed.
    pub(crate) fn failure(&self) -> Option<String> {
        self.0.failure.lock().clone()
    }

    /// Posts rows until told to stop, and then those that wait.
    pub(crate) async fn run(
        self,
        client: RemoteClient,
        url: String,
        mut rows: Receiver<Arc<[LoggedQuery]>>,
        stop: CancellationToken,
    ) {
        let mut waiting = WaitingRows::default();
        let mut beat = tokio::time::interval(FLUSH_EVERY);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let is_over = tokio::select! {
                () = stop.cancelled() => true,
                _ = beat.tick() => {
                    self.flush(&client, &url, &mut waiting, 0, ATTEMPTS).await;
                    false
                }
                received = rows.recv() => match received {
                    Ok(rows) => { self.take(&mut waiting, &rows); false }
                    // The numbers of the next rows tell how many are missing.
                    Err(RecvError::Lagged(_)) => false,
                    Err(RecvError::Closed) => true,
                },
            };
            if is_over {
                while let Ok(rows) = rows.try_recv() {
                    self.take(&mut waiting, &rows);
                }
                // A receiver that is away must not hold up the end.
                let last = self.flush(&client, &url, &mut waiting, 0, 1);
                if tokio::time::timeout(LAST_TIMEOUT, last).await.is_err() {
                    tracing::warn!("the log sink did not take the last rows in time");
                }
                return;
            }
            self.flush(&client, &url, &mut waiting, BATCH_ROWS, ATTEMPTS).await;
        }
    }

    fn take(&self, waiting: &mut WaitingRows, rows: &[LoggedQuery]) {
        let missed = waiting.take(rows);
        self.0.dropped.fetch_add(missed, Ordering::Relaxed);
    }

    /// Posts batches while at least so many rows wait.
    async fn flush(
        &self,
        client: &RemoteClient,
        url: &str,
        waiting: &mut WaitingRows,
        least: usize,
        attempts: u32,
    ) {
        let waiting = &mut waiting.rows;
        while !waiting.is_empty() && waiting.len() >= least {
            let count = waiting.len().min(BATCH_ROWS);
            let batch: Vec<String> = waiting.drain(..count).collect();
            let body = batch.join("\n") + "\n";
            let mut failure = None;
            for attempt in 0..attempts {
                if attempt > 0 {
                    tokio::time::sleep(RETRY_PAUSE * (1 << (attempt - 1))).await;
                }
                let posted = client.post(url, "application/x-ndjson", body.clone().into(), TIMEOUT);
                match posted.await {
                    Ok(()) => {
                        failure = None;
                        break;
                    }
                    Err(error) => failure = Some(error.to_string()),
                }
            }
            let counter = if failure.is_none() { &self.0.sent } else { &self.0.dropped };
            counter.fetch_add(count as u64, Ordering::Relaxed);
            let mut known = self.0.failure.lock();
            if let (None, Some(error)) = (known.as_ref(), &failure) {
                tracing::warn!(
                    error,
                    "the log sink does not take rows; they are dropped and counted"
                );
            }
            *known = failure;
            if known.is_some() {
                // What waits is tried with the next beat.
                return;
            }
        }
    }
}

/// A row as the original writes it.
fn row_text(row: &LoggedQuery) -> String {
    let at = web::format::rfc3339(row.at.0);
    let ts = at.get(..19).unwrap_or(&at).replace('T', " ");
    json!({
        "ts": ts,
        "client_ip": &*row.client,
        "client_name": &*row.client_id,
        "protocol": row.protocol.as_str(),
        "qname": &*row.name,
        "qtype": type_name(row.qtype),
        "qclass": "IN",
        "outcome": row.outcome.as_str(),
        "rcode": rcode_name(row.rcode),
        "duration_ms": f64::from(row.duration_us) / 1_000.0,
        "cache_lookup_ms": 0.0,
        "network_write_ms": 0.0,
        "upstream_address": &*row.upstream,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dns::{CacheTier, QueryOutcome, QueryProtocol};
    use store::Millis;

    fn row(number: u64) -> LoggedQuery {
        LoggedQuery {
            number,
            at: Millis(1_767_225_600_123),
            client: "192.0.2.1".into(),
            client_id: "tablet".into(),
            group: "kids".into(),
            name: "shop.example".into(),
            qtype: 28,
            rcode: 3,
            outcome: QueryOutcome::Upstream,
            tier: CacheTier::None,
            protocol: QueryProtocol::Udp,
            list: "".into(),
            upstream: "udp://9.9.9.9:53".into(),
            answer: "".into(),
            duration_us: 1_250,
        }
    }

    #[test]
    fn rows_that_are_missing_are_counted_one_by_one() {
        let mut waiting = WaitingRows::default();
        assert_eq!(waiting.take(&[]), 0);
        assert_eq!(waiting.take(&[row(5), row(6)]), 0, "those before the first are not ours");
        assert_eq!(waiting.take(&[row(10)]), 3, "7, 8 and 9");
        waiting.rows.resize(WAITING_MAX - 1, String::new());
        assert_eq!(waiting.take(&[row(11), row(12), row(13)]), 2, "room for one");
        assert_eq!(waiting.rows.len(), WAITING_MAX);
    }

    #[test]
    fn a_row_has_the_thirteen_columns_of_the_original() {
        let row = row(1);
        let text: serde_json::Value = serde_json::from_str(&row_text(&row)).unwrap();
        assert_eq!(text.as_object().unwrap().len(), 13);
        assert_eq!(text["ts"], "2026-01-01 00:00:00");
        assert_eq!((&text["qtype"], &text["rcode"]), (&json!("AAAA"), &json!("NXDOMAIN")));
        assert_eq!((&text["duration_ms"], &text["client_name"]), (&json!(1.25), &json!("tablet")));
    }
}
