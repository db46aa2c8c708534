//! The waiting room as a service of the product.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::extract::FromRef;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use clap::{CommandFactory, FromArgMatches};
use futures_util::future::BoxFuture;
use maud::{Markup, html};
use room::{QueueStatus, Room};
use store::{history::SharedSample, key_map::KeyMap};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::openapi::OpenApi;
use web::cli::top::TopSection;
use web::cli::{Action, Client, CommandUse, Context, Failure, Outcome};
use web::config::{Section, Values};
use web::doctor::{Diagnosis, Finding, check_address};
use web::error::chain;
use web::metrics::{MetricInfo, Reading};
use web::search::{HITS_MAX, SearchHit, has_words};
use web::service::{
    FirstStep, Fragments, ListenSetup, ListenerTask, OpenService, Opening, RunningService, Service,
};
use web::ui::{self, NavGroup, NavItem};
use web::webhook::EventType;
use web::{App, Routes, chart, format};

use crate::alerts::AlertLimits;
use crate::api::stream::VisitorStreams;
use crate::cli::{self, RoomCommand};
use crate::config::{GuardSettings, RoomSettings};
use crate::{ICON, alerts, api, demo, figures, forward_auth, pages, proxy, secret, waiting_page};

/// The waiting room as a [`Service`], before it is opened.
#[derive(Debug)]
pub struct RoomService;

impl Service for RoomService {
    fn name(&self) -> &'static str {
        "room"
    }

    fn summary(&self) -> &'static str {
        "The waiting room."
    }

    fn nav(&self) -> NavItem {
        NavItem {
            path: "/room",
            title: "Waiting room",
            key: "r",
            icon: ICON,
            group: NavGroup::Services,
        }
    }

    fn sections(&self) -> &'static [&'static Section] {
        &[&RoomSettings::SECTION, &GuardSettings::SECTION]
    }

    fn variables(&self) -> &'static [&'static str] {
        &[secret::VARIABLE]
    }

    fn secret_keys(&self) -> &'static [&'static str] {
        &room::SECRET_KEYS
    }

    fn event_types(&self) -> &'static [EventType] {
        alerts::EVENTS
    }

    fn metrics(&self) -> &'static [MetricInfo] {
        figures::METRICS
    }

    fn key_map(&self, _: &Values) -> Option<Arc<dyn KeyMap>> {
        Some(Arc::new(room::RoomKeyMap))
    }

    fn document(&self) -> OpenApi {
        routes().document()
    }

    fn command(&self) -> Option<clap::Command> {
        Some(RoomCommand::command())
    }

    fn command_uses(&self) -> &'static [(&'static str, CommandUse)] {
        &[("guard", CommandUse::Serving)]
    }

    fn run_command(&self, matches: &clap::ArgMatches, context: &Context<'_>) -> Outcome<Action> {
        let command = RoomCommand::from_arg_matches(matches)
            .map_err(|error| Failure::usage(error.to_string()))?;
        cli::run(command.verb, context)
    }

    fn top(&self, client: &Client) -> Outcome<Vec<TopSection>> {
        cli::top(client)
    }

    fn doctor<'a>(&'a self, diagnosis: &'a Diagnosis<'a>) -> BoxFuture<'a, Vec<Finding>> {
        Box::pin(async {
            match GuardSettings::read(diagnosis.values) {
                Ok(guard) if guard.origin.0.is_some() => {
                    vec![check_address(guard.listen, "guard.listen", diagnosis.running)]
                }
                _ => Vec::new(),
            }
        })
    }

    fn open<'a>(&'a self, opening: Opening<'a>) -> BoxFuture<'a, Outcome<Arc<dyn RunningService>>> {
        Box::pin(async move {
            let settings = RoomSettings::read(opening.values)
                .map_err(|problem| Failure::usage(problem.to_string()))?;
            let room = open_room(&settings, opening).await?;
            let running = RunningRoom::new(room, settings.enqueues_per_minute);
            running.set_alerts(&settings);
            Ok(Arc::new(running) as Arc<dyn RunningService>)
        })
    }
}

async fn open_room(settings: &RoomSettings, opening: Opening<'_>) -> Outcome<Room> {
    let data = &opening.config.server.data;
    let secret = secret::find(settings, data)?;
    let options = room::Options {
        tick: settings.tick,
        stall: settings.stall,
        idempotency: settings.idempotency,
        issuer: settings.issuer.clone(),
        secret: Some(secret.secret),
    };
    let room = Room::open(opening.store.clone(), options).await.map_err(|error| match error {
        room::Error::Sealed => {
            secret.discard();
            Failure::failed(format!("cannot open the waiting room: {error}")).next(format!(
                "copy the file room-secret from the data folder of an instance that runs on this \
                 store to {}, or name it with room.secret_file or TIDEGATE_ROOM_SECRET; if the \
                 secret is lost for good, delete the key room:signing in the store, and visitors \
                 enqueue again",
                secret::path(data).display()
            ))
        }
        error => Failure::failed(format!("cannot open the waiting room: {}", chain(&error))),
    })?;
    use_pass_key(&room, &settings.pass_key_file).await?;
    Ok(room)
}

/// Imports the pass key from a file, if one is set.
async fn use_pass_key(room: &Room, path: &Path) -> Outcome {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    let refuse = |why: String| {
        Failure::usage(format!("room.pass_key_file: {}: {why}", path.display())).next(
            "make one: (umask 077; openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 \
             -out pass.pem)",
        )
    };
    let pem = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    match room.import_pass_key(&pem).await {
        Ok(true) => {
            tracing::info!(path = %path.display(), "imported the pass key; it signs passes from now on")
        }
        Ok(false) => {}
        Err(room::Error::Invalid { message, .. }) => return Err(refuse(message)),
        Err(error) => {
            let message = format!("cannot import room.pass_key_file: {}", chain(&error));
            return Err(Failure::failed(message));
        }
    }
    Ok(())
}

impl RoomService {
    /// Creates the service on an open room. One network may enqueue this many visitors per minute; 0 is
    /// no limit.
    pub fn on(room: Room, enqueues_per_minute: u32) -> OpenService {
        let running = RunningRoom::new(room, enqueues_per_minute);
        OpenService { service: &RoomService, running: Arc::new(running) }
    }
}

/// Returns every route except the pages.
fn routes() -> Routes<RoomState> {
    api::routes().merge(forward_auth::routes()).merge(waiting_page::routes())
}

/// The running waiting room.
#[derive(Debug)]
struct RunningRoom {
    room: Room,
    parts: Arc<RoomParts>,
    alerts: Arc<AlertLimits>,
}

/// Parts of the service that requests share.
#[derive(Debug, Default)]
pub struct RoomParts {
    /// Live streams.
    pub(crate) streams: VisitorStreams,
    /// Visitors one network may enqueue per minute; 0 is no limit.
    pub(crate) enqueues_per_minute: AtomicU32,
}

/// State of handlers and pages.
#[derive(Debug, Clone, FromRef)]
pub struct RoomState {
    pub(crate) app: App,
    pub(crate) room: Room,
    parts: Arc<RoomParts>,
}

impl std::ops::Deref for RoomState {
    type Target = RoomParts;

    fn deref(&self) -> &RoomParts {
        &self.parts
    }
}

impl RunningRoom {
    fn new(room: Room, enqueues_per_minute: u32) -> RunningRoom {
        let enqueues_per_minute = AtomicU32::new(enqueues_per_minute);
        let parts = Arc::new(RoomParts { enqueues_per_minute, ..RoomParts::default() });
        RunningRoom { room, parts, alerts: Arc::default() }
    }

    fn set_alerts(&self, settings: &RoomSettings) {
        let stopped_ms = u64::try_from(settings.alert_stopped.as_millis()).unwrap_or(u64::MAX);
        self.alerts.waiting.store(settings.alert_waiting, Ordering::Relaxed);
        self.alerts.stopped_ms.store(stopped_ms, Ordering::Relaxed);
    }

    fn state(&self, app: &App) -> RoomState {
        RoomState { app: app.clone(), room: self.room.clone(), parts: Arc::clone(&self.parts) }
    }
}

impl RoomState {
    /// Creates the state of the guard's proxy, for an app and its room.
    pub fn new(app: App, room: Room, enqueues_per_minute: u32) -> RoomState {
        RunningRoom::new(room, enqueues_per_minute).state(&app)
    }
}

/// What can be done with a queue: title and the form or question about it.
fn actions_on(queue: &room::Queue) -> Vec<(String, String)> {
    let id = queue.id.as_str();
    let mut acts = vec![
        (format!("Admit visitors of {id}"), format!("/room/{id}#admit")),
        (format!("Change the rate of {id}"), format!("/room/{id}#rate")),
        (format!("Message to the visitors of {id}"), format!("/room/{id}#message")),
        (format!("QR code of the waiting page of {id}"), format!("/room/{id}#qr")),
        (format!("Settings of {id}"), format!("/room/{id}?view=settings")),
    ];
    match queue.status {
        QueueStatus::Active => acts.push((format!("Pause {id}"), format!("/room/{id}#pause"))),
        _ => acts.push((format!("Resume {id}"), format!("/room/{id}"))),
    }
    acts
}

impl RunningService for RunningRoom {
    fn routes(&self, app: &App) -> Routes {
        let pages = Router::new()
            .route("/room", get(pages::page))
            .route("/room/{queue}", get(pages::queue::page))
            .route("/room/{queue}/preview", get(pages::preview::page))
            .route("/room/{queue}/preview.css", get(pages::preview::style))
            .route("/room/{queue}/statistics/export", get(pages::statistics::export));
        routes().merge(Routes { pages, ..Routes::default() }).with_state(self.state(app))
    }

    fn wrap(&self, routes: Router<App>, app: &App) -> Router<App> {
        routes.layer(from_fn_with_state(self.state(app), api::cors::handle))
    }

    fn fragments(&self) -> Fragments {
        let (room, parts) = (self.room.clone(), Arc::clone(&self.parts));
        Fragments::default()
            .add("room", async |state: RoomState, acts| pages::part(&state, acts == "acts").await)
            .add("queue", async |state: RoomState, view| pages::queue::part(&state, &view).await)
            .with_state(move |app| RoomState { app, room: room.clone(), parts: Arc::clone(&parts) })
    }

    fn tiles(&self, app: &App) -> Option<Markup> {
        let series = app.series();
        let last = |name: &str| format::whole(series.last(name).unwrap_or(0.0));
        let note = format!("{} active", last("room.active"));
        let spark = chart::spark(&series.line("room.waiting"), 1);
        Some(html! { (ui::tile("Visitors waiting", &last("room.waiting"), "", &note, &spark)) })
    }

    fn search<'a>(&'a self, _: &'a App, text: &'a str) -> BoxFuture<'a, Vec<SearchHit>> {
        Box::pin(async move {
            let queues = self.room.queues().await.unwrap_or_default();
            let matches = |queue: &&room::Queue| {
                has_words(&format!("{} {}", queue.id, queue.config.name), text)
            };
            let hit = |queue: &room::Queue| {
                let id = queue.id.as_str();
                let note = format!("{} waiting", format::count(queue.waiting));
                SearchHit::new("queue", id, note, format!("/room/{id}"))
            };
            let mut hits: Vec<SearchHit> =
                queues.iter().filter(matches).take(HITS_MAX).map(hit).collect();
            if has_words("New queue", text) {
                let made = SearchHit::action("New queue", "waiting room", "/room#new-queue");
                hits.push(made.for_admins());
            }
            let acts = queues.iter().flat_map(actions_on);
            let named = |(title, _): &(String, String)| has_words(title, text);
            let found = acts.filter(named).take(HITS_MAX);
            hits.extend(found.map(|(title, path)| SearchHit::action(title, "waiting room", path)));
            hits
        })
    }

    fn key_prefixes(&self) -> Vec<String> {
        [
            "queue:",
            "queues",
            "room:",
            "position:",
            "session:",
            "heartbeat:",
            "admission:",
            "ratelimit:",
            "revocation:",
            "ipmap:",
            "usermap:",
            "once:",
            "invite:",
            "stats:",
        ]
        .map(str::to_owned)
        .into()
    }

    fn first_steps(&self) -> BoxFuture<'_, Vec<FirstStep>> {
        Box::pin(async {
            let is_done = self.room.queues().await.is_ok_and(|queues| !queues.is_empty());
            vec![FirstStep {
                title: "Create a queue",
                text: "A queue holds the visitors of one site or one sale.",
                command: concat!(
                    "curl -X POST {server}/api/v1/admin/queues -H 'Authorization: Bearer {token}' \\\n",
                    "  -H 'Content-Type: application/json' -d '{\"id\":\"spring-sale\"}'"
                ),
                path: "/room",
                is_done,
            }]
        })
    }

    fn samples<'a>(&'a self, _: &'a App) -> BoxFuture<'a, Vec<SharedSample>> {
        Box::pin(pages::sample(&self.room))
    }

    fn readings<'a>(&'a self, _: &'a App) -> BoxFuture<'a, Result<Vec<Reading>, String>> {
        Box::pin(figures::readings(&self.room, self.parts.streams.open()))
    }

    fn reload(&self, values: &Values) {
        if let Ok(settings) = RoomSettings::read(values) {
            self.parts.enqueues_per_minute.store(settings.enqueues_per_minute, Ordering::Relaxed);
            self.set_alerts(&settings);
        }
    }

    fn listen<'a>(&'a self, setup: ListenSetup<'a>) -> BoxFuture<'a, Outcome<Vec<ListenerTask>>> {
        Box::pin(async move {
            let settings = GuardSettings::read(setup.values)
                .map_err(|problem| Failure::usage(problem.to_string()))?;
            let state = self.state(setup.app);
            let guard = proxy::open::open(&settings, &state, setup.tls.cloned()).await?;
            Ok(guard.into_iter().collect())
        })
    }

    fn run(self: Arc<Self>, app: App, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let maintenance = room::RoomMaintenance::new(self.room.clone());
            let limits = Arc::clone(&self.alerts);
            let alerts = alerts::run(app, self.room.clone(), limits, stop.clone());
            tokio::join!(maintenance.run(stop), alerts);
        })
    }

    fn demo_pages(&self) -> &'static [(&'static str, &'static str)] {
        &[("Waiting page", "/_wr/summer-tour")]
    }

    fn demo(self: Arc<Self>, app: &App, tasks: &TaskTracker, stop: &CancellationToken) {
        demo::start(&self.room, app, tasks, stop);
    }
}
