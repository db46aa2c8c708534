//! Calls of the store that a page makes.

use std::time::Duration;

use axum::http::StatusCode;
use jobs::{JobError, JobTarget, Jobs, Labels, NewJob};
use jobs_web::JobsService;
use serde_json::Value;
use web::Settings;
use web::testing::Fixture;

testkit::each_store! {
    async fn a_page_asks_the_store_five_times_at_most(t: TestStore) {
        let jobs = Jobs::new(t.store.clone(), jobs::Config::default()).unwrap();
        let services = vec![JobsService::on(jobs.clone(), "test")];
        let f = Fixture::running(&t, Settings::default(), services);
        let second = Duration::from_secs(1);
        let labels = Labels::new("w1").unwrap();
        jobs.register(&labels, None, "host", None).await.unwrap();
        let mut claimer = jobs.claimer(labels);
        for number in 0..60 {
            jobs.dispatch(NewJob::new(format!("type{}", number % 12), &()).unwrap()).await.unwrap();
        }
        let leases = claimer.claim(40).await.unwrap().leases;
        for (number, lease) in leases.iter().take(30).enumerate() {
            let error = JobError::new("Declined", format!("card {number}"));
            jobs.bury(lease, error, second).await.unwrap();
        }
        jobs.complete(&leases[30], None, second).await.unwrap();
        let later = NewJob::new("later", &()).unwrap().delay(60 * second);
        jobs.dispatch(later).await.unwrap();
        let target = JobTarget { capabilities: vec!["gpu".to_owned()], ..JobTarget::default() };
        let nobody = NewJob::new("nobody", &()).unwrap().target(target);
        jobs.dispatch(nobody).await.unwrap();
        // The credential is looked up with the first request and then known.
        f.admin("GET /docs", Value::Null).await;
        for (path, shown) in [
            ("/jobs", "Declined"),
            ("/jobs/dead", "Declined"),
            ("/jobs/waiting", "type3"),
            ("/jobs/active", "w1"),
            ("/jobs/delayed", "later"),
            ("/jobs/finished", "type"),
            ("/jobs/unroutable", "gpu"),
        ] {
            let before = t.faults.calls();
            let page = f.admin(&format!("GET {path}"), Value::Null).await;
            let calls = t.faults.calls() - before;
            assert_eq!(page.status, StatusCode::OK, "{path}: {}", page.text);
            assert!(page.text.contains(shown), "{path}: {}", page.text);
            assert!(calls <= 5, "{path}: {calls} calls");
        }
    }
}
