//! `/metrics` during traffic, compared with what is in the store.

use std::time::Duration;

use jobs::{JobError, Jobs, Labels, NewJob};
use jobs_web::JobsService;
use serde_json::{Value, json};
use testkit::TestStore;
use web::Settings;
use web::testing::{Answer, Fixture};

/// Two instances on one store, and the queue.
fn instances(t: &TestStore) -> (Jobs, [Fixture; 2]) {
    let jobs = Jobs::new(t.store.clone(), jobs::Config::default()).unwrap();
    let open = |name| {
        let services = vec![JobsService::on(jobs.clone(), name)];
        Fixture::running(t, Settings::default(), services)
    };
    (jobs.clone(), [open("a"), open("b")])
}

async fn scrape(f: &Fixture) -> Answer {
    f.admin("GET /metrics", Value::Null).await
}

/// The value of a series, which must be there.
fn get(scraped: &Answer, series: &str) -> f64 {
    scraped.series(series).unwrap_or_else(|| panic!("no {series} in\n{}", scraped.text))
}

testkit::each_store! {
    async fn figures_of_types_are_those_of_the_store_on_every_instance(t: TestStore) {
        let (jobs, [a, b]) = instances(&t);
        for (job_type, count) in [("mail", 7), ("video", 3)] {
            for _ in 0..count {
                jobs.dispatch(NewJob::new(job_type, &()).unwrap()).await.unwrap();
            }
        }
        let later = NewJob::new("mail", &()).unwrap().delay(Duration::from_secs(60));
        jobs.dispatch(later).await.unwrap();
        jobs.dispatch(NewJob::new("report", &()).unwrap().cron("0 3 * * *")).await.unwrap();
        let labels = Labels::new("w1").unwrap();
        jobs.register(&labels, None, "host", None).await.unwrap();
        let mut claimer = jobs.claimer(labels);
        let leases = claimer.claim(10).await.unwrap().leases;
        let mails: Vec<_> = leases.iter().filter(|lease| lease.job.job_type == "mail").collect();
        assert_eq!((leases.len(), mails.len()), (10, 7));
        // 4 mails stay active, one each is completed, retried and dead; all videos are given back.
        let second = Duration::from_secs(1);
        jobs.complete(mails[0], None, second).await.unwrap();
        jobs.fail(mails[1], JobError::new("Oops", "again"), second).await.unwrap();
        jobs.bury(mails[2], JobError::new("Fatal", "never"), second).await.unwrap();
        let videos: Vec<_> = leases.iter().filter(|l| l.job.job_type == "video").cloned().collect();
        assert_eq!(jobs.release(&videos).await.unwrap(), 3);
        t.clock.advance(Duration::from_secs(30));
        jobs.heartbeat(&jobs::WorkerId::parse("w1").unwrap()).await.unwrap();

        // The same by type, for pages and programs.
        let types = a.admin("GET /api/v1/jobs/types", Value::Null).await.json();
        let counts = |name: &str| {
            let row = types["items"].as_array().unwrap().iter().find(|row| row["type"] == name);
            let row = row.unwrap_or_else(|| panic!("no {name} in {types}"));
            ["waiting", "active", "delayed", "dead"].map(|state| row[state].as_u64().unwrap())
        };
        assert_eq!((counts("mail"), counts("video")), ([0, 4, 2, 1], [3, 0, 0, 0]));

        let stats = jobs.stats().await.unwrap();
        for f in [&a, &b] {
            let scraped = scrape(f).await;
            for (series, value) in [
                ("tidegate_jobs_waiting{type=\"mail\"}", 0.0),
                ("tidegate_jobs_waiting{type=\"video\"}", 3.0),
                ("tidegate_jobs_active{type=\"mail\"}", 4.0),
                ("tidegate_jobs_active{type=\"video\"}", 0.0),
                ("tidegate_jobs_delayed{type=\"mail\"}", 2.0),
                ("tidegate_jobs_dead{type=\"mail\"}", 1.0),
                ("tidegate_jobs_oldest_waiting_seconds{type=\"video\"}", 30.0),
                ("tidegate_jobs_workers", 1.0),
                ("tidegate_jobs_busy_slots", 4.0),
                ("tidegate_jobs_unroutable", 0.0),
                ("tidegate_jobs_schedules", 1.0),
                ("tidegate_jobs_schedules_late_seconds", 0.0),
                ("tidegate_jobs_completed_total", 1.0),
                ("tidegate_jobs_failed_attempts_total", 2.0),
                ("tidegate_leader{role=\"jobs\"}", 0.0),
                ("tidegate_scrape_success{service=\"jobs\"}", 1.0),
            ] {
                assert_eq!(get(&scraped, series), value, "{series}");
            }
            let sum = |name: &str| -> f64 {
                let of = |line: &str| line.starts_with(&format!("{name}{{"));
                let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
                scraped.text.lines().filter(|line| of(line)).map(value).sum()
            };
            assert_eq!(sum("tidegate_jobs_waiting"), stats.waiting as f64);
            assert_eq!(sum("tidegate_jobs_active"), stats.active as f64);
            assert_eq!(sum("tidegate_jobs_delayed"), stats.delayed as f64);
            assert_eq!(sum("tidegate_jobs_dead"), stats.dead as f64);
        }
    }

    async fn what_a_process_does_with_jobs_is_counted_and_timed(t: TestStore) {
        let (jobs, [f, _]) = instances(&t);
        let job_type = format!("counted-{}", jobs::JobId::random());
        let ids: Vec<_> = {
            let new = (0..4).map(|_| NewJob::new(&job_type, &()).unwrap());
            jobs.dispatch_all(new).await.into_iter().map(|done| done.unwrap().id).collect()
        };
        t.clock.advance(Duration::from_secs(2));
        let mut claimer = jobs.claimer(Labels::new("w1").unwrap());
        let leases = claimer.claim(4).await.unwrap().leases;
        assert_eq!(leases.len(), ids.len());
        let took = Duration::from_millis(300);
        jobs.complete(&leases[0], None, took).await.unwrap();
        jobs.fail(&leases[1], JobError::new("Oops", ""), took).await.unwrap();
        jobs.bury(&leases[2], JobError::new("Oops", ""), took).await.unwrap();
        jobs.snooze(&leases[3], Duration::from_secs(9)).await.unwrap();
        // A repeated call, as after a lost reply, is not counted again.
        let _ = jobs.complete(&leases[0], None, took).await;
        let scraped = scrape(&f).await;
        let of = |name: &str| get(&scraped, &format!("{name}{{type=\"{job_type}\"}}"));
        assert_eq!(of("tidegate_jobs_dispatched_total"), 4.0);
        assert_eq!(of("tidegate_jobs_attempts_total"), 4.0);
        assert_eq!(of("tidegate_jobs_retries_total"), 1.0);
        for (outcome, count) in
            [("completed", 1.0), ("retried", 1.0), ("dead", 1.0), ("snoozed", 1.0), ("released", 0.0)]
        {
            let series = format!(
                "tidegate_jobs_outcomes_total{{type=\"{job_type}\",outcome=\"{outcome}\"}}"
            );
            assert_eq!(get(&scraped, &series), count, "{outcome}");
        }
        assert_eq!(of("tidegate_jobs_wait_seconds_sum"), 8.0);
        assert_eq!(of("tidegate_jobs_wait_seconds_count"), 4.0);
        assert_eq!(of("tidegate_jobs_run_seconds_count"), 3.0);
        let within = |bound: &str| {
            let labels = format!("{{type=\"{job_type}\",le=\"{bound}\"}}");
            get(&scraped, &format!("tidegate_jobs_run_seconds_bucket{labels}"))
        };
        assert_eq!((within("0.25"), within("0.5"), within("+Inf")), (0.0, 3.0, 3.0));
    }

    async fn a_queue_of_many_dead_letters_is_counted_in_bounds(t: TestStore) {
        let (jobs, [f, _]) = instances(&t);
        // Ids that a v1 program left without data count, but nobody knows their type.
        let keys = jobs.keys();
        let mut store = t.store.clone();
        let ids: Vec<String> = (0..6_000).map(|n| format!("gone-{n}")).collect();
        for ids in ids.chunks(1_000) {
            let mut push = store::redis::cmd("RPUSH");
            push.arg(keys.deadletter()).arg(ids);
            push.query_async::<()>(&mut store).await.unwrap();
        }
        let scraped = scrape(&f).await;
        assert_eq!(get(&scraped, "tidegate_jobs_dead{type=\"other\"}"), 6_000.0);
    }
}

#[tokio::test]
async fn a_store_that_is_away_leaves_the_rest_of_the_answer() {
    let t = TestStore::embedded().await;
    let (_, [f, _]) = instances(&t);
    t.faults.go_away();
    let scraped = scrape(&f).await;
    assert_eq!(scraped.series("tidegate_scrape_success{service=\"jobs\"}"), Some(0.0));
    assert_eq!(scraped.series("tidegate_store_up"), Some(0.0));
    assert_eq!(scraped.series("tidegate_store_writable"), Some(0.0));
    assert!(scraped.series("tidegate_jobs_workers").is_none(), "{}", scraped.text);
    assert!(scraped.series("tidegate_uptime_seconds").is_some(), "{}", scraped.text);
}

#[tokio::test]
async fn prometheus_is_given_open_metrics() {
    let t = TestStore::embedded().await;
    let (jobs, [f, _]) = instances(&t);
    jobs.dispatch(NewJob::new("mail", &json!({ "to": "ann" })).unwrap()).await.unwrap();
    let request = axum::http::Request::get("/metrics")
        .header("accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
        .header("authorization", format!("Bearer {}", web::testing::ADMIN));
    let scraped = f.send(request.body(axum::body::Body::empty()).unwrap()).await;
    assert!(scraped.header("content-type").starts_with("application/openmetrics-text"));
    assert!(scraped.text.ends_with("# EOF\n"));
    assert!(scraped.text.contains("# TYPE tidegate_jobs_dispatched counter\n"), "{}", scraped.text);
}
