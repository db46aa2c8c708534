//! A made-up service, complete in this file: everything a service adds to the product shows up
//! without a line elsewhere.

use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRef, State};
use axum::routing::get;
use futures_util::future::BoxFuture;
use maud::{Markup, html};
use serde_json::{Value, json};
use utoipa::openapi::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};
use web::cli::Outcome;
use web::config::load::Sources;
use web::config::{Section, Values};
use web::extract::Json;
use web::health::Check;
use web::icon::Icon;
use web::service::{Fragments, OpenService, Opening, RunningService, Sample, Service, Services};
use web::testing::{ADMIN, Fixture};
use web::ui::{self, Head, NavGroup, NavItem, Shell};
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

    fn document(&self) -> OpenApi {
        api().document()
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

    fn samples<'a>(&'a self, _: &'a App) -> BoxFuture<'a, Vec<Sample>> {
        Box::pin(async { vec![("echo.said".to_owned(), 7.0)] })
    }

    fn health(&self) -> BoxFuture<'_, Vec<Check>> {
        Box::pin(async { vec![Check::failed("echo", "nobody speaks")] })
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
}

#[test]
fn a_service_brings_its_settings_and_its_name() {
    let load = |flags: &[(&str, &str)]| {
        let flags = flags
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned(), "--set".to_owned()));
        Sources { services: SERVICES, flags: flags.collect(), ..Sources::default() }.load()
    };
    let loaded = load(&[("echo.word", "moin"), ("server.only", "echo")]).unwrap();
    assert_eq!(EchoSettings::read(&loaded.values).unwrap().word, "moin");
    assert!(loaded.config.runs(&EchoService));
    let told = load(&[("server.only", "ecco")]).unwrap_err()[0].to_string();
    assert!(told.contains("known services: echo"), "{told}");
    let reference = web::config::reference::page(SERVICES);
    assert!(reference.contains("## `[echo]`") && reference.contains("The word it says."));
    assert_eq!(Values::defaults(SERVICES).get("echo.word").unwrap().text, "hello");
}
