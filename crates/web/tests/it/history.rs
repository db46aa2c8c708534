//! The history over HTTP, and the pages that show it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use maud::html;
use serde_json::{Value, json};
use store::history::{OwnSample, SharedSample};
use web::service::{OpenService, Opening, RunningService, Service};
use web::testing::Fixture;
use web::ui::{NavGroup, NavItem};
use web::{App, Routes, Settings, cli::Outcome, icon::Icon, series};

#[derive(Debug)]
struct Tide;

impl Service for Tide {
    fn name(&self) -> &'static str {
        "tide"
    }

    fn summary(&self) -> &'static str {
        "A made-up service."
    }

    fn nav(&self) -> NavItem {
        NavItem {
            path: "/tide",
            title: "Tide",
            key: "x",
            icon: Icon::BOX,
            group: NavGroup::Services,
        }
    }

    fn open<'a>(&'a self, _: Opening<'a>) -> BoxFuture<'a, Outcome<Arc<dyn RunningService>>> {
        Box::pin(async { Ok(Arc::new(Tide) as Arc<dyn RunningService>) })
    }
}

impl RunningService for Tide {
    fn routes(&self, _: &App) -> Routes {
        Routes::default()
    }

    fn samples<'a>(&'a self, app: &'a App) -> BoxFuture<'a, Vec<SharedSample>> {
        let second = app.store().now().as_secs() % 1_000;
        Box::pin(async move { vec![SharedSample::gauge("tide.height", second as f64)] })
    }

    fn own_samples(&self) -> Vec<OwnSample> {
        vec![OwnSample::level("tide.boats", 3.0)]
    }
}

fn services() -> Vec<OpenService> {
    vec![OpenService { service: &Tide, running: Arc::new(Tide) }]
}

testkit::each_store! {
    async fn two_instances_write_one_history_and_one_killed_leaves_no_hole(t: TestStore) {
        let a = Fixture::running(&t, Settings::default(), services());
        let b = Fixture::on(t.another().await, Settings::default(), services());
        let start = t.store.now().as_secs();
        for second in 0..40 {
            if second < 20 {
                series::sample(&a.app).await.unwrap();
            }
            series::sample(&b.app).await.unwrap();
            t.clock.advance(Duration::from_secs(1));
        }
        let read = "GET /api/v1/history?series=tide.height,tide.boats,none&span_seconds=39&step=1";
        let history = b.admin(read, Value::Null).await.json();
        assert_eq!(history["step_seconds"], 1);
        let lines: Vec<Vec<Value>> = (0..3)
            .map(|line| history["lines"][line]["values"].as_array().unwrap().clone())
            .collect();
        // The second that is under way has no sample yet.
        for (second, height) in lines[0].iter().enumerate().take(39) {
            assert_eq!(*height, json!(((start + 1) as usize + second) as f64 % 1_000.0), "{lines:?}");
        }
        assert_eq!(lines[1][..19], vec![json!(6.0); 19][..], "both have boats");
        assert_eq!(lines[1][19..39], vec![json!(3.0); 20][..], "one has boats");
        assert!(lines[2].iter().all(Value::is_null));
        let listed = b.admin("GET /api/v1/history/series?limit=1000", Value::Null).await.json();
        let listed: Vec<&str> =
            listed["items"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
        for name in ["http.latency", "http.requests", "store.keys", "tide.boats", "tide.height"] {
            assert!(listed.contains(&name), "{listed:?}");
        }
        assert_eq!(b.app.series().last("tide.boats"), Some(3.0));
    }

    async fn a_range_that_cannot_be_meant_is_refused_by_name(t: TestStore) {
        let f = Fixture::new(&t);
        for (query, field) in [
            ("series=", "series"),
            ("series=a&step=0", "step"),
            ("series=a&from=2026-01-01T00:00:00Z&span_seconds=60", "span_seconds"),
            ("series=a&from=2025-12-31T00:00:00Z&to=2025-12-30T00:00:00Z", "from"),
            ("series=a&from=2020-01-01T00:00:00Z", "from"),
            ("series=a&span=60", "span"),
        ] {
            let answer = f.admin(&format!("GET /api/v1/history?{query}"), Value::Null).await;
            assert_eq!(answer.status, 400, "{query}");
            assert_eq!(answer.json()["error"]["details"]["field"], field, "{query}");
        }
        assert_eq!(f.get("/api/v1/history?series=a").await.status, 401);
    }
}

#[test]
fn a_chart_reserves_its_place_and_names_its_series() {
    let line = web::chart::Line::new("boats", "", "tide.boats");
    let chart = web::chart::chart("Boats", &[line], web::chart::Scale::Number);
    let page = html! { (chart) }.into_string();
    assert!(page.contains("data-chart=") && page.contains("tide.boats"), "{page}");
}
