//! The rounds of sending. One instance leads and sends; when it goes, another takes over, and what it
//! had under way is sent again once its lease has run out.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use store::lease::{FencedLease, LeaderCandidate};
use store::webhook::{AttemptOutcome, Delivery, TakenDelivery};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Event, Webhooks};
use crate::app::App;
use crate::auth::random_hex;
use crate::error::{ApiError, chain};
use crate::{health, keys};

/// Deliveries under way at once.
const CONCURRENT_MAX: usize = 32;
/// Time a sender has for a delivery: more than an attempt takes.
const LEASE: Duration = Duration::from_secs(30);
/// Time after which a silent leader is replaced.
const LEADER_TTL: Duration = Duration::from_secs(10);
/// Interval at which due deliveries are looked for, unless this instance emits one.
const POLL: Duration = Duration::from_secs(1);
/// Interval at which writes are tried, and failures in a row that count.
const WATCH_EVERY: Duration = Duration::from_secs(5);
const FAILURES_MIN: u32 = 3;
/// Deliveries that may go to a target at once after a lull.
const BURST: i64 = 5;
/// Time that deliveries under way have when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends what is due until told to stop.
pub async fn run(app: App, stop: CancellationToken) {
    let owner = match random_hex::<8>() {
        Ok(random) => format!("{} {random}", app.instance()),
        Err(error) => {
            tracing::error!(error = error.message(), "webhooks are not sent");
            return;
        }
    };
    let lease = FencedLease::new(app.store(), keys::webhook_leader(), owner, LEADER_TTL);
    let candidate = LeaderCandidate::new(lease);
    let watch = watch_writes(&app, &stop);
    tokio::join!(candidate.run(stop.clone()), work(&app, &candidate, &stop), watch);
}

async fn work(app: &App, candidate: &LeaderCandidate, stop: &CancellationToken) {
    let webhooks = app.webhooks();
    let mut sending = JoinSet::new();
    let mut failed = false;
    while !stop.is_cancelled() {
        let leads = candidate.leading().is_some();
        webhooks.leads.store(leads, Ordering::Relaxed);
        if leads {
            match webhooks.take(CONCURRENT_MAX - sending.len().min(CONCURRENT_MAX)).await {
                Ok(taken) => {
                    failed = false;
                    for taken in taken {
                        let app = app.clone();
                        sending.spawn(async move { deliver(&app, taken).await });
                    }
                }
                Err(error) => {
                    if !failed {
                        tracing::warn!(error = error.message(), "webhooks wait for the store");
                    }
                    failed = true;
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(POLL) => {}
            () = webhooks.wake.notified() => {}
            Some(_) = sending.join_next() => {}
        }
    }
    webhooks.leads.store(false, Ordering::Relaxed);
    // What does not end in time is sent again by the next leader.
    let rest = async { while sending.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(STOP_TIMEOUT, rest).await;
    sending.shutdown().await;
}

/// Sends everything that is due now, and waits for it. Returns the number of attempts. For tests, and
/// for a program that sends without a server.
pub async fn deliver_due(app: &App) -> Result<usize, ApiError> {
    let taken = app.webhooks().take(CONCURRENT_MAX).await?;
    let count = taken.len();
    futures_util::future::join_all(taken.into_iter().map(|taken| deliver(app, taken))).await;
    Ok(count)
}

/// Makes one attempt and writes what it came to.
async fn deliver(app: &App, taken: TakenDelivery) {
    let webhooks = app.webhooks();
    let started = Instant::now();
    let delivery = &taken.delivery;
    let outcome = match webhooks.target(&delivery.target).await {
        Ok(target) if target.enabled || delivery.event == super::TEST_EVENT => {
            let settings = app.settings();
            webhooks.attempt(&target, delivery, &settings.webhook_networks).await
        }
        Ok(_) => AttemptOutcome::Refused { status: None, error: "the webhook is off".to_owned() },
        Err(error) if error.status().is_server_error() => {
            let error = error.message().to_owned();
            AttemptOutcome::Failed { status: None, error, retry_after: None }
        }
        Err(_) => AttemptOutcome::Refused { status: None, error: "the webhook is gone".to_owned() },
    };
    metrics::counter!("tidegate_webhook_attempts_total", "outcome" => match &outcome {
        AttemptOutcome::Delivered { .. } => "delivered",
        AttemptOutcome::Failed { .. } => "failed",
        AttemptOutcome::Refused { .. } => "refused",
    })
    .increment(1);
    match webhooks.outbox.settle(&taken, &outcome, started.elapsed(), fastrand::f64()).await {
        Ok(true) => {}
        Ok(false) => tracing::info!(delivery = delivery.id, "another instance sends this delivery"),
        // It is sent again when its lease has run out.
        Err(error) => tracing::warn!(delivery = delivery.id, error = chain(&error), "not settled"),
    }
}

impl Webhooks {
    /// Takes deliveries that are due, at most so many for each target as its rate allows.
    async fn take(&self, most: usize) -> Result<Vec<TakenDelivery>, ApiError> {
        if most == 0 || self.outbox.next_due().await?.is_none_or(|due| due > self.store.now()) {
            return Ok(Vec::new());
        }
        let targets = self.targets().await?;
        let now = self.store.now();
        let may_send = |id: &str| {
            let most = targets.iter().find(|target| target.id == id);
            let most = most.map_or(super::target::PER_MINUTE_MAX, |target| target.max_per_minute);
            let spacing = 60_000 / i64::from(most.max(1));
            let mut limits = self.limits.lock();
            let next = limits.get(id).map_or(now.0, |next| next.0.max(now.0));
            if next - now.0 > (BURST - 1) * spacing {
                return false;
            }
            // As many as there are targets, of which some may be gone.
            if limits.len() > 10 * store::webhook::TARGETS_MAX {
                limits.clear();
            }
            limits.insert(id.to_owned(), store::Millis(next + spacing));
            true
        };
        Ok(self.outbox.take(most, LEASE, may_send).await?)
    }

    /// Tells targets at once, without the store: it is the store that fails. Each instance that sees it
    /// tells it.
    async fn tell_directly(&self, app: &App, event: &Event) {
        let id = format!("evt_{}", random_hex::<12>().unwrap_or_default());
        let Ok(body) = self.body(&id, event, "raised") else { return };
        let settings = app.settings();
        for target in self.known.load().iter().filter(|target| target.takes(event.kind)) {
            let delivery = Delivery {
                id: format!("{id}.{}", target.id),
                target: target.id.clone(),
                event: event.kind.to_owned(),
                subject: event.subject.clone(),
                body: body.clone(),
                created_ms: self.store.now().0,
                attempts: 0,
                error: None,
            };
            let outcome = self.attempt(target, &delivery, &settings.webhook_networks).await;
            tracing::info!(
                target = target.name,
                ?outcome,
                "webhook notified: the store accepts no writes"
            );
        }
    }
}

/// Watches whether the store takes writes.
async fn watch_writes(app: &App, stop: &CancellationToken) {
    let webhooks = app.webhooks();
    let (mut failures, mut is_told) = (0, false);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(WATCH_EVERY) => {}
        }
        let check = health::write_check(app).await;
        let event = |text: String| Event {
            id: None,
            kind: "store.not_writable",
            subject: format!("store/{}", app.instance()),
            text,
            data: json!({ "reason": check.reason, "instance": app.instance() }),
        };
        if check.ok {
            failures = 0;
            // The targets are remembered for the day on which they cannot be read.
            if let Err(error) = webhooks.targets().await {
                tracing::debug!(error = error.message(), "webhooks not read");
            }
            if is_told {
                is_told = false;
                let text = format!("The store takes writes again on {}.", app.instance());
                if let Err(error) = webhooks.emit(event(text)).await {
                    tracing::warn!(
                        error = error.message(),
                        "webhook not notified of the store's recovery"
                    );
                }
            }
            continue;
        }
        failures += 1;
        if failures >= FAILURES_MIN && !is_told {
            is_told = true;
            let text = format!("The store takes no writes on {}: {}", app.instance(), check.reason);
            webhooks.tell_directly(app, &event(text)).await;
        }
    }
}
