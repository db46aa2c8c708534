//! The metrics of the job queue.

use jobs::{Jobs, TypeCounts};
use web::metrics::{MetricInfo, Reading, WORK_SECONDS};
use web::series::float;

const TYPE: &[&str] = &["type"];

/// The role that scheduler and maintenance share.
const ROLE: &str = "jobs";

/// The metrics of the job queue.
pub(crate) const METRICS: &[MetricInfo] = &[
    MetricInfo::gauge("tidegate_jobs_waiting", TYPE, "Waiting jobs.").in_store(),
    MetricInfo::gauge("tidegate_jobs_active", TYPE, "Active jobs.").in_store(),
    MetricInfo::gauge(
        "tidegate_jobs_delayed",
        TYPE,
        "Delayed jobs. Of more than 5,000 the next 5,000 are counted by type, the others as `other`.",
    )
    .in_store(),
    MetricInfo::gauge(
        "tidegate_jobs_dead",
        TYPE,
        "Dead letters. Of more than 5,000 the newest 5,000 are counted by type, the others as `other`.",
    )
    .in_store(),
    MetricInfo::gauge(
        "tidegate_jobs_oldest_waiting_seconds",
        TYPE,
        "Time since the oldest waiting job was dispatched or came due.",
    )
    .in_store(),
    MetricInfo::gauge("tidegate_jobs_paused", TYPE, "1 for a type that is paused.").in_store(),
    MetricInfo::gauge("tidegate_jobs_workers", &[], "Live workers.").in_store(),
    MetricInfo::gauge("tidegate_jobs_busy_slots", &[], "Jobs that workers run now.").in_store(),
    MetricInfo::gauge(
        "tidegate_jobs_unroutable",
        &[],
        "Waiting jobs that no live worker may claim.",
    )
    .in_store(),
    MetricInfo::gauge("tidegate_jobs_schedules", &[], "Schedules.").in_store(),
    MetricInfo::gauge(
        "tidegate_jobs_schedules_late_seconds",
        &[],
        "Time for which the most overdue schedule has been due.",
    )
    .in_store(),
    MetricInfo::counter("tidegate_jobs_completed_total", &[], "Jobs completed by any worker.")
        .in_store(),
    MetricInfo::counter(
        "tidegate_jobs_failed_attempts_total",
        &[],
        "Attempts that failed, of any worker.",
    )
    .in_store(),
    MetricInfo::counter("tidegate_jobs_dispatched_total", TYPE, "Jobs dispatched."),
    MetricInfo::counter("tidegate_jobs_attempts_total", TYPE, "Attempts begun."),
    MetricInfo::counter("tidegate_jobs_retries_total", TYPE, "Attempts that failed and are retried."),
    MetricInfo::counter(
        "tidegate_jobs_outcomes_total",
        &["type", "outcome"],
        "Attempts ended: `completed`, `retried`, `rerouted`, `dead`, `cancelled`, `expired`, `snoozed`, `released`.",
    ),
    MetricInfo::histogram(
        "tidegate_jobs_wait_seconds",
        WORK_SECONDS,
        TYPE,
        "Time from the dispatch, or from when it came due, to the first claim.",
    ),
    MetricInfo::histogram(
        "tidegate_jobs_run_seconds",
        WORK_SECONDS,
        TYPE,
        "Run time of attempts, as their workers tell it.",
    ),
];

/// Reads the figures of the queue. `instance` is the name under which this process stands for election.
pub(crate) async fn readings(jobs: &Jobs, instance: &str) -> Result<Vec<Reading>, String> {
    let census = jobs.census().await.map_err(|error| error.to_string())?;
    let leads = census.leader.as_deref() == Some(instance);
    let count = |count: usize| float(count as u64);
    let mut readings = vec![
        Reading::new("tidegate_leader", f64::from(u8::from(leads))).label("role", ROLE),
        Reading::new("tidegate_jobs_workers", count(census.workers)),
        Reading::new("tidegate_jobs_busy_slots", count(census.busy_slots)),
        Reading::new("tidegate_jobs_unroutable", count(census.unroutable)),
        Reading::new("tidegate_jobs_schedules", count(census.schedules)),
        Reading::new("tidegate_jobs_schedules_late_seconds", census.schedules_late.as_secs_f64()),
        Reading::new("tidegate_jobs_completed_total", float(census.completed)),
        Reading::new("tidegate_jobs_failed_attempts_total", float(census.failed)),
    ];
    for (job_type, counts) in &census.types {
        push(&mut readings, job_type, counts);
    }
    if census.rest != TypeCounts::default() {
        push(&mut readings, "other", &census.rest);
    }
    Ok(readings)
}

fn push(readings: &mut Vec<Reading>, job_type: &str, counts: &TypeCounts) {
    let mut put = |name, value| readings.push(Reading::new(name, value).label("type", job_type));
    put("tidegate_jobs_waiting", float(counts.waiting as u64));
    put("tidegate_jobs_active", float(counts.active as u64));
    put("tidegate_jobs_delayed", float(counts.delayed as u64));
    put("tidegate_jobs_dead", float(counts.dead as u64));
    put("tidegate_jobs_oldest_waiting_seconds", counts.oldest.unwrap_or_default().as_secs_f64());
    put("tidegate_jobs_paused", f64::from(u8::from(counts.paused)));
}
