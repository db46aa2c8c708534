//! A made-up service, complete in this file: everything a service adds to the product shows up
//! without a line elsewhere.

use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRef, State};
use axum::routing::get;
use futures_util::future::BoxFuture;
use maud::{Markup, html};
use serde_json::{Value, json};
use store::history::SharedSample;
use store::redis::AsyncCommands as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::openapi::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};
use web::cli::Outcome;
use web::config::load::{LoadedConfig, Problem, Sources};
use web::config::{Section, Values};
use web::doctor::{Diagnosis, Finding};
use web::extract::Json;
use web::health::Check;
use web::icon::Icon;
use web::metrics::{MetricInfo, Reading};
use web::search::SearchHit;
use web::service::{self, Fragments, OpenService, Opening, RunningService, Service, Services};
use web::testing::{ADMIN, Fixture};
use web::ui::{self, Head, NavGroup, NavItem, Shell};
use web::webhook::EventType;
use web::{App, Routes, Settings};

web::settings! {
    /// The made-up service.
    echo: EchoSettings {
        /// The word it says.
        word: String = "hello", live;
    }
}

#[derive(Debug)]
struct EchoService;

impl Service for EchoService {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn summary(&self) -> &'static str {
        "Says what it was told."
    }

    fn nav(&self) -> NavItem {
        let icon = Icon("M4 4h16v16H4Z");
        NavItem { path: "/echo", title: "Echo", key: "h", icon, group: NavGroup::Services }
    }

    fn sections(&self) -> &'static [&'static Section] {
        &[&EchoSettings::SECTION]
    }

    fn secret_keys(&self) -> &'static [&'static str] {
        &["echo:secret"]
    }

    fn scopes(&self) -> &'static [&'static str] {
        &["echo:word=WORD"]
    }

    fn check_scope(&self, scope: &str) -> Option<Result<(), String>> {
        scope.strip_prefix("echo:word=").map(|_| Ok(()))
    }

    fn metrics(&self) -> &'static [MetricInfo] {
        const METRICS: &[MetricInfo] =
            &[MetricInfo::gauge("tidegate_echo_words", &["length"], "Words it knows.").in_store()];
        METRICS
    }

    fn event_types(&self) -> &'static [EventType] {
        &[EventType { name: "echo.said", help: "It said its word." }]
    }

    fn document(&self) -> OpenApi {
        api().document()
    }

    fn doctor<'a>(&'a self, diagnosis: &'a Diagnosis<'a>) -> BoxFuture<'a, Vec<Finding>> {
        let word = EchoSettings::read(diagnosis.values).unwrap().word;
        Box::pin(async move {
            vec![Finding::warning("echo.word", format!("{word} is short"), "say more")]
        })
    }

    fn open<'a>(&'a self, opening: Opening<'a>) -> BoxFuture<'a, Outcome<Arc<dyn RunningService>>> {
        let word = EchoSettings::read(opening.values).unwrap().word;
        Box::pin(async { Ok(Arc::new(Echo(word)) as Arc<dyn RunningService>) })
    }
}

#[derive(Debug)]
struct Echo(String);

#[derive(Debug, Clone, FromRef)]
struct EchoState {
    app: App,
    word: String,
}

/// Says the word.
#[utoipa::path(get, path = "/api/v1/echo", tag = "echo", responses((status = 200, body = Value)))]
async fn say(State(word): State<String>) -> Json<Value> {
    Json(json!({ "word": word }))
}

async fn page(State(state): State<EchoState>, shell: Shell) -> Markup {
    let body = html! { div data-live="echo" { (state.word) } };
    shell.page(&state.app, "/echo", &Head::new("Echo", ""), &body)
}

fn api() -> Routes<EchoState> {
    Routes { viewer: OpenApiRouter::new().routes(routes!(say)), ..Routes::default() }
}

impl RunningService for Echo {
    fn routes(&self, app: &App) -> Routes {
        let pages = Router::new().route("/echo", get(page));
        let state = EchoState { app: app.clone(), word: self.0.clone() };
        api().merge(Routes { pages, ..Routes::default() }).with_state(state)
    }

    fn fragments(&self) -> Fragments {
        let word = self.0.clone();
        Fragments::default()
            .add("echo", async |state: EchoState, _| html! { "live " (state.word) })
            .with_state(move |app| EchoState { app, word: word.clone() })
    }

    fn tiles(&self, _: &App) -> Option<Markup> {
        Some(html! { (ui::tile("Echoes", "7", "", "", &html! {})) })
    }

    fn samples<'a>(&'a self, _: &'a App) -> BoxFuture<'a, Vec<SharedSample>> {
        Box::pin(async { vec![SharedSample::gauge("echo.said", 7.0)] })
    }

    fn search<'a>(&'a self, _: &'a App, text: &'a str) -> BoxFuture<'a, Vec<SearchHit>> {
        let hit = SearchHit::new("word", self.0.clone(), "echo", "/echo");
        Box::pin(async move { if self.0.contains(text) { vec![hit] } else { Vec::new() } })
    }

    fn readings<'a>(&'a self, _: &'a App) -> BoxFuture<'a, Result<Vec<Reading>, String>> {
        let length = self.0.len().to_string();
        Box::pin(async {
            Ok(vec![Reading::new("tidegate_echo_words", 1.0).label("length", length)])
        })
    }

    fn health(&self) -> BoxFuture<'_, Vec<Check>> {
        Box::pin(async { vec![Check::failed("echo", "nobody speaks")] })
    }

    fn run(self: Arc<Self>, app: App, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut store = app.store().clone();
            let _: () = store.set("echo:state", "running").await.unwrap();
            stop.cancelled().await;
            let _: () = store.set("echo:state", "stopped").await.unwrap();
        })
    }

    fn demo_pages(&self) -> &'static [(&'static str, &'static str)] {
        &[("Echo", "/echo")]
    }

    fn demo(self: Arc<Self>, app: &App, tasks: &TaskTracker, stop: &CancellationToken) {
        let (mut store, stop) = (app.store().clone(), stop.clone());
        tasks.spawn(async move {
            let _: () = store.incr("echo:visitors", 1).await.unwrap();
            stop.cancelled().await;
        });
    }
}

const SERVICES: Services = &[&EchoService];

fn open(word: &str) -> Vec<OpenService> {
    vec![OpenService { service: &EchoService, running: Arc::new(Echo(word.to_owned())) }]
}

testkit::each_store! {
    async fn a_service_brings_its_call_its_page_and_its_place_in_the_menu(t: TestStore) {
        let f = Fixture::running(&t, Settings::default(), open("hi"));
        assert_eq!(f.admin("GET /api/v1/echo", Value::Null).await.json(), json!({ "word": "hi" }));
        assert_eq!(f.get("/api/v1/echo").await.status, 401, "a viewer's call needs a credential");
        let page = f.admin("GET /echo", Value::Null).await.text;
        assert!(page.contains("hi") && page.contains("aria-current=\"page\""), "{page}");
        let overview = f.admin("GET /", Value::Null).await.text;
        assert!(overview.contains("href=\"/echo\"") && overview.contains("Echoes"), "{overview}");
        let document = f.get("/api/openapi.json").await.json();
        assert!(document["paths"]["/api/v1/echo"].is_object());
        assert!(document["tags"].to_string().contains("Says what it was told."));
    }

    async fn a_service_brings_its_search_its_metrics_and_its_webhook_events(t: TestStore) {
        let f = Fixture::running(&t, Settings::default(), open("hi"));
        let found = f.admin("GET /api/v1/search?text=hi", Value::Null).await;
        let hits = found.json()["items"].to_string();
        assert!(hits.contains("\"path\":\"/echo\"") && hits.contains("\"category\":\"word\""), "{}", found.text);
        let none = f.admin("GET /api/v1/search?text=hi&limit=1&cursor=900", Value::Null).await.json();
        assert_eq!(none, json!({ "items": [], "next_cursor": null }));
        let one = f.admin("GET /api/v1/search?text=hi&limit=1", Value::Null).await.json();
        assert_eq!((&one["items"][1], one["next_cursor"].as_str()), (&Value::Null, Some("1")), "{one}");
        let metrics = f.admin("GET /metrics", Value::Null).await;
        assert_eq!(metrics.series("tidegate_echo_words{length=\"2\"}"), Some(1.0), "{}", metrics.text);
        assert!(metrics.text.contains("# HELP tidegate_echo_words Words it knows."), "{}", metrics.text);
        let events = f.admin("GET /api/v1/webhook-events", Value::Null).await.text;
        assert!(events.contains("echo.said") && events.contains("It said its word."), "{events}");
    }

    async fn a_service_brings_its_health_its_fragments_and_its_scopes(t: TestStore) {
        let f = Fixture::running(&t, Settings::default(), open("hi"));
        let ready = f.get("/readyz").await;
        assert_eq!(ready.status, 503);
        assert!(ready.text.contains("nobody speaks"), "{}", ready.text);
        let path = "/api/v1/live?topics=echo";
        let request = axum::http::Request::get(path).header("authorization", format!("Bearer {ADMIN}"));
        let mut live = f.listen(request.body(axum::body::Body::empty()).unwrap()).await;
        assert_eq!(live.next("part").await.unwrap().1["html"], "live hi");
        let token = |scope: &str| json!({ "name": "w", "role": "worker", "scopes": [scope] });
        let made = f.admin("POST /api/v1/tokens", token("echo:word=x")).await;
        assert_eq!(made.status, 201, "{}", made.text);
        let wrong = f.admin("POST /api/v1/tokens", token("ecco:word=x")).await;
        assert!(wrong.status == 400 && wrong.text.contains("echo:word=WORD"), "{}", wrong.text);
        let secret = f.admin("GET /api/v1/store/key?key=echo:secret:1", Value::Null).await;
        assert_eq!(secret.code(), "PROTECTED_KEY");
    }

    async fn a_service_brings_its_background_work_and_its_demo(t: TestStore) {
        let f = Fixture::running(&t, Settings::default(), open("hi"));
        let mut store = t.store.clone();
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        service::start_background(&f.app, &tasks, &stop);
        while store.get::<_, Option<String>>("echo:state").await.unwrap().as_deref() != Some("running") {
            tokio::task::yield_now().await;
        }
        assert!(!store.exists::<_, bool>("echo:visitors").await.unwrap(), "only a demo makes traffic");
        service::start_demo(&f.app, &tasks, &stop);
        while !store.exists::<_, bool>("echo:visitors").await.unwrap() {
            tokio::task::yield_now().await;
        }
        let pages: Vec<_> = service::demo_pages(&f.app).collect();
        assert!(pages.contains(&&("Echo", "/echo")), "{pages:?}");
        stop.cancel();
        tasks.close();
        tasks.wait().await;
        assert_eq!(store.get::<_, String>("echo:state").await.unwrap(), "stopped");
    }
}

/// Loads the settings of the made-up service, with these.
fn load(flags: &[(&str, &str)]) -> Result<LoadedConfig, Vec<Problem>> {
    let flags = flags
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned(), "--set".to_owned()));
    Sources { services: SERVICES, flags: flags.collect(), ..Sources::default() }.load()
}

#[tokio::test]
async fn a_service_brings_its_checks_for_the_doctor() {
    let loaded = load(&[("echo.word", "moin")]).unwrap();
    let diagnosis = Diagnosis { config: &loaded.config, values: &loaded.values, running: None };
    let findings = service::diagnose(SERVICES, &diagnosis).await;
    let told: Vec<&str> = findings.iter().map(|finding| finding.found.as_str()).collect();
    assert_eq!(told, ["moin is short"]);
}

#[test]
fn a_service_brings_its_settings_and_its_name() {
    let loaded = load(&[("echo.word", "moin"), ("server.only", "echo")]).unwrap();
    assert_eq!(EchoSettings::read(&loaded.values).unwrap().word, "moin");
    assert!(loaded.config.runs(&EchoService));
    let told = load(&[("server.only", "ecco")]).unwrap_err()[0].to_string();
    assert!(told.contains("known services: echo"), "{told}");
    let reference = web::config::reference::page(SERVICES);
    assert!(reference.contains("## `[echo]`") && reference.contains("The word it says."));
    assert_eq!(Values::defaults(SERVICES).get("echo.word").unwrap().text, "hello");
}
