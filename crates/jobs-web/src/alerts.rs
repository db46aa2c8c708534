//! The events of the job queue for webhooks: dead letters, and a fleet of workers that is gone.

use std::time::Duration;

use jobs::{EventId, Jobs};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use web::App;
use web::webhook::{Event, EventType};

/// A job is dead.
const DEAD_LETTER: EventType = EventType {
    name: "jobs.dead_letter",
    help: "A job is dead: it failed every attempt, or cannot succeed.",
};
/// No worker is left.
const WORKERS_GONE: EventType = EventType {
    name: "jobs.workers_gone",
    help: "Jobs wait and no worker has been alive for `jobs.alert_workers_gone`.",
};

/// The types of events.
pub(crate) const EVENTS: &[EventType] = &[DEAD_LETTER, WORKERS_GONE];

/// Interval at which events and workers are looked at.
const EVERY: Duration = Duration::from_secs(2);
/// Events read at once.
const BATCH: usize = 500;

/// Looks out for events while this instance leads, until told to stop.
pub(crate) async fn run(app: App, jobs: Jobs, gone_after: Duration, stop: CancellationToken) {
    let mut watch = JobWatch { place: None, gone_since: None };
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
        if !app.webhooks().leads() {
            // Whoever leads next reads what the last leader has not told; what it told is not told twice.
            continue;
        }
        if let Err(error) = watch.round(&app, &jobs, gone_after).await {
            tracing::debug!(error, "events of jobs are sent to webhooks later");
        }
    }
}

struct JobWatch {
    /// Place in the stream of events, as this process knows it.
    place: Option<EventId>,
    gone_since: Option<Instant>,
}

impl JobWatch {
    async fn round(&mut self, app: &App, jobs: &Jobs, gone_after: Duration) -> Result<(), String> {
        self.tell_dead(app, jobs).await?;
        self.watch_workers(app, jobs, gone_after).await
    }

    async fn tell_dead(&mut self, app: &App, jobs: &Jobs) -> Result<(), String> {
        let webhooks = app.webhooks();
        let place = match self.place {
            Some(place) => place,
            None => match webhooks.cursor("jobs").await.map_err(told)? {
                Some(place) => place.parse().unwrap_or(EventId::START),
                None => jobs.events_latest().await.map_err(|error| error.to_string())?,
            },
        };
        self.place = Some(place);
        let (events, _) =
            jobs.events_after(place, BATCH).await.map_err(|error| error.to_string())?;
        let Some(last) = events.last().map(|event| event.id) else { return Ok(()) };
        for event in events.iter().filter(|event| event.event == "dead") {
            for id in &event.jobs {
                let job = jobs.get(id).await.ok().flatten();
                let result = jobs.result(id).await.ok().flatten();
                let job_type = job.as_ref().map_or("unknown", |job| job.job_type.as_str());
                let error = result.and_then(|result| result.error).map(|error| error.to_string());
                let error = error.unwrap_or_else(|| "no reason is known".to_owned());
                let event = Event {
                    id: Some(format!("jobs-{}-{id}", event.id)),
                    kind: DEAD_LETTER.name,
                    subject: format!("type/{job_type}"),
                    text: format!("Job {id} of type {job_type} is dead: {error}"),
                    data: json!({ "job_id": id.as_str(), "type": job_type, "error": error }),
                };
                webhooks.emit(event).await.map_err(told)?;
            }
        }
        webhooks.set_cursor("jobs", &last.to_string()).await.map_err(told)?;
        self.place = Some(last);
        Ok(())
    }

    async fn watch_workers(
        &mut self,
        app: &App,
        jobs: &Jobs,
        gone_after: Duration,
    ) -> Result<(), String> {
        let stats = jobs.stats().await.map_err(|error| error.to_string())?;
        let is_gone = stats.workers == 0 && stats.waiting + stats.active > 0;
        let since = match is_gone {
            true => *self.gone_since.get_or_insert_with(Instant::now),
            false => {
                self.gone_since = None;
                Instant::now()
            }
        };
        if is_gone && since.elapsed() < gone_after {
            return Ok(());
        }
        let text = match is_gone {
            true => format!("No worker is alive, and {} jobs wait.", stats.waiting),
            false => format!("Workers are back: {} alive.", stats.workers),
        };
        let event = Event {
            id: None,
            kind: WORKERS_GONE.name,
            subject: "workers".to_owned(),
            text,
            data: json!({ "waiting": stats.waiting, "active": stats.active, "workers": stats.workers }),
        };
        app.webhooks().set_alarm(is_gone, event).await.map_err(told)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn told(error: web::ApiError) -> String {
    error.message().to_owned()
}
