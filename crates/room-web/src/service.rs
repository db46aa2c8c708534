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
use room::Room;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::openapi::OpenApi;
use web::cli::{Action, Context, Failure, Outcome};
use web::config::{Section, Values};
use web::doctor::{Diagnosis, Finding, check_address};
use web::error::chain;
use web::series::float;
use web::service::{
    Fragments, ListenSetup, ListenerTask, OpenService, Opening, RunningService, Sample, Service,
};
use web::ui::{self, NavGroup, NavItem};
use web::{App, Routes, chart, format};

use crate::api::stream::VisitorStreams;
use crate::cli::{self, RoomCommand};
use crate::config::{GuardSettings, RoomSettings};
use crate::limits::PollLimiter;
use crate::{ICON, api, demo, forward_auth, pages, proxy, secret, waiting_page};

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

    fn document(&self) -> OpenApi {
        routes().document()
    }

    fn command(&self) -> Option<clap::Command> {
        Some(RoomCommand::command())
    }

    fn run_command(&self, matches: &clap::ArgMatches, context: &Context<'_>) -> Outcome<Action> {
        let command = RoomCommand::from_arg_matches(matches)
            .map_err(|error| Failure::usage(error.to_string()))?;
        cli::run(command.verb, context)
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
            Ok(Arc::new(RunningRoom::new(room, settings.enqueues_per_minute))
                as Arc<dyn RunningService>)
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
    streams: Arc<VisitorStreams>,
    polls: Arc<PollLimiter>,
    enqueues_per_minute: Arc<AtomicU32>,
}

/// State of handlers and pages.
#[derive(Debug, Clone, FromRef)]
pub struct RoomState {
    pub(crate) app: App,
    pub(crate) room: Room,
    /// Live streams.
    pub(crate) streams: Arc<VisitorStreams>,
    /// Rate limiter of polls.
    pub(crate) polls: Arc<PollLimiter>,
    /// Visitors one network may enqueue per minute; 0 is no limit.
    pub(crate) enqueues_per_minute: Arc<AtomicU32>,
}

impl RunningRoom {
    fn new(room: Room, enqueues_per_minute: u32) -> RunningRoom {
        RunningRoom {
            room,
            streams: Arc::default(),
            polls: Arc::default(),
            enqueues_per_minute: Arc::new(AtomicU32::new(enqueues_per_minute)),
        }
    }

    fn state(&self, app: &App) -> RoomState {
        RoomState {
            app: app.clone(),
            room: self.room.clone(),
            streams: Arc::clone(&self.streams),
            polls: Arc::clone(&self.polls),
            enqueues_per_minute: Arc::clone(&self.enqueues_per_minute),
        }
    }
}

impl RoomState {
    /// Creates the state of the guard's proxy, for an app and its room.
    pub fn new(app: App, room: Room, enqueues_per_minute: u32) -> RoomState {
        RunningRoom::new(room, enqueues_per_minute).state(&app)
    }
}

impl RunningService for RunningRoom {
    fn routes(&self, app: &App) -> Routes {
        let pages = Router::new()
            .route("/room", get(pages::page))
            .route("/room/{queue}", get(pages::queue::page));
        routes().merge(Routes { pages, ..Routes::default() }).with_state(self.state(app))
    }

    fn wrap(&self, routes: Router<App>, app: &App) -> Router<App> {
        routes.layer(from_fn_with_state(self.state(app), api::cors::handle))
    }

    fn fragments(&self) -> Fragments {
        let (room, streams) = (self.room.clone(), Arc::clone(&self.streams));
        let (polls, per_minute) = (Arc::clone(&self.polls), Arc::clone(&self.enqueues_per_minute));
        Fragments::default()
            .add("room", async |state: RoomState, acts| pages::part(&state, acts == "acts").await)
            .add("queue", async |state: RoomState, view| pages::queue::part(&state, &view).await)
            .with_state(move |app| RoomState {
                app,
                room: room.clone(),
                streams: Arc::clone(&streams),
                polls: Arc::clone(&polls),
                enqueues_per_minute: Arc::clone(&per_minute),
            })
    }

    fn tiles(&self, app: &App) -> Option<Markup> {
        let series = app.series();
        let last = |name: &str| format::short(series.last(name).unwrap_or(0.0));
        let note = format!("{} active", last("room.active"));
        let spark = chart::spark(&series.line("room.waiting"), 1);
        Some(html! { (ui::tile("Visitors waiting", &last("room.waiting"), "", &note, &spark)) })
    }

    fn samples<'a>(&'a self, _: &'a App) -> BoxFuture<'a, Vec<Sample>> {
        Box::pin(pages::sample(&self.room))
    }

    fn update_metrics(&self) {
        let streams = u64::try_from(self.streams.open()).unwrap_or(u64::MAX);
        metrics::gauge!("waiting_room_open_streams").set(float(streams));
    }

    fn reload(&self, values: &Values) {
        if let Ok(settings) = RoomSettings::read(values) {
            self.enqueues_per_minute.store(settings.enqueues_per_minute, Ordering::Relaxed);
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

    fn run(self: Arc<Self>, _: App, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(async move { room::RoomMaintenance::new(self.room.clone()).run(stop).await })
    }

    fn demo(self: Arc<Self>, app: &App, tasks: &TaskTracker, stop: &CancellationToken) {
        demo::start(&self.room, app, tasks, stop);
    }
}
