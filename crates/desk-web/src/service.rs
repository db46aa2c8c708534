//! The desk as a service of the product.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::FromRef;
use axum::routing::get;
use clap::{CommandFactory, FromArgMatches};
use desk::chat::Chat;
use desk::limit::PolicyBook;
use desk::traffic::{Traffic, TrafficFinder};
use desk::users::{UserWatcher, Users};
use desk::{AppName, InstanceId, Prefix};
use futures_util::future::BoxFuture;
use maud::{Markup, html};
use parking_lot::Mutex;
use store::Store;
use store::histogram::Buckets;
use store::history::SharedSample;
use store::key_map::KeyMap;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::openapi::OpenApi;
use web::cli::{Action, CommandUse, Context, Failure, Outcome};
use web::config::load::Problem;
use web::config::{AuthSettings, Section, Values};
use web::doctor::{Diagnosis, Finding};
use web::error::chain;
use web::health::Check;
use web::metrics::MetricInfo;
use web::middleware::percent;
use web::rate_limit::{HeaderStyle, RequestLimiter};
use web::requests::PathTemplates;
use web::search::{HITS_MAX, SearchHit, has_words};
use web::service::{Fragments, OpenService, Opening, RunningService, Service};
use web::ui::{self, NavGroup, NavItem};
use web::webhook::EventType;
use web::{App, BodyLimit, Routes, chart, format};

use crate::chat::{self, ChatSetup};
use crate::cli::{self, DeskCommand};
use crate::config::{DeskSettings, OtlpAccess, default_policies};
use crate::courier::{CourierSettings, CourierState};
use crate::limiter::DeskLimiter;
use crate::{ICON, api, console, demo, doctor, envoy, gate, otlp, pages, panel, traffic, webhooks};

/// The scopes of workers' tokens.
pub(crate) const SCOPES: [&str; 4] = ["chat", "limits", "traffic", "users"];

/// Time for the archive to answer a health check.
const ARCHIVE_PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

/// The desk before it is opened.
#[derive(Debug)]
pub struct DeskService;

impl Service for DeskService {
    fn name(&self) -> &'static str {
        "desk"
    }

    fn summary(&self) -> &'static str {
        "Traffic, limits, users, sessions and support chat."
    }

    fn nav(&self) -> NavItem {
        NavItem {
            path: "/desk/traffic",
            title: "Desk",
            key: "k",
            icon: ICON,
            group: NavGroup::Services,
        }
    }

    fn sections(&self) -> &'static [&'static Section] {
        &[&DeskSettings::SECTION]
    }

    fn key_map(&self, values: &Values) -> Option<Arc<dyn KeyMap>> {
        let settings = DeskSettings::read(values).ok()?;
        Some(Arc::new(desk::DeskKeyMap::new(&settings.prefix.0)))
    }

    fn check_settings(&self, values: &Values) -> Result<(), Problem> {
        let settings = DeskSettings::read(values)?;
        if settings.session_idle > settings.session_max {
            let why = "desk.session_idle is longer than desk.session_max";
            return Err(Problem::new("desk.session_idle", why));
        }
        settings.check_email()
    }

    fn fallback_variables(&self) -> &'static [(&'static str, &'static str)] {
        &[("REDIS_KEY_PREFIX", "desk.prefix")]
    }

    /// Sessions hold the hashes of their tokens. Under another prefix than the default the key browser
    /// shows them; a hash gives nobody a token.
    fn secret_keys(&self) -> &'static [&'static str] {
        &["ha:session:"]
    }

    fn scopes(&self) -> &'static [&'static str] {
        &SCOPES
    }

    fn check_scope(&self, scope: &str) -> Option<Result<(), String>> {
        SCOPES.contains(&scope).then_some(Ok(()))
    }

    fn metrics(&self) -> &'static [MetricInfo] {
        traffic::METRICS
    }

    fn document(&self) -> OpenApi {
        api::routes().merge(chat::routes()).document()
    }

    fn event_types(&self) -> &'static [EventType] {
        webhooks::EVENTS
    }

    fn command(&self) -> Option<clap::Command> {
        Some(DeskCommand::command())
    }

    fn command_uses(&self) -> &'static [(&'static str, CommandUse)] {
        &[
            ("archive", CommandUse::Local),
            ("export", CommandUse::Local),
            ("import", CommandUse::Local),
        ]
    }

    fn run_command(&self, matches: &clap::ArgMatches, context: &Context<'_>) -> Outcome<Action> {
        let command = DeskCommand::from_arg_matches(matches)
            .map_err(|error| Failure::usage(error.to_string()))?;
        cli::run(command.verb, context)?;
        Ok(Action::Done)
    }

    fn doctor<'a>(&'a self, diagnosis: &'a Diagnosis<'a>) -> BoxFuture<'a, Vec<Finding>> {
        Box::pin(doctor::findings(diagnosis))
    }

    fn open<'a>(&'a self, opening: Opening<'a>) -> BoxFuture<'a, Outcome<Arc<dyn RunningService>>> {
        Box::pin(async move {
            let settings = DeskSettings::read(opening.values)
                .map_err(|problem| Failure::usage(problem.to_string()))?;
            let cannot = |error: desk::Error| {
                Failure::usage(format!("cannot open the desk: {}", chain(&error)))
                    .next("tidegate config reference   (the settings that start with desk.)")
            };
            let mut desk =
                Desk::open(opening.store, &settings, &opening.config.auth, opening.instance)
                    .map_err(cannot)?;
            let setup = ChatSetup {
                store: opening.store,
                prefix: &desk.prefix,
                users: &desk.users,
                instance: &desk.instance,
                settings: &settings,
                data: &opening.config.server.data,
                sync: chat::sync_of(opening.config),
            };
            desk.chat = Some(chat::open(setup).await.map_err(cannot)?);
            if let Err(error) = desk.book.refresh().await {
                tracing::warn!(%error, "stored policies are not read yet; the defaults count until then");
            }
            Ok(Arc::new(RunningDesk { desk }) as Arc<dyn RunningService>)
        })
    }
}

impl DeskService {
    /// The service on a store, with these settings.
    pub fn on(
        store: &Store,
        settings: &DeskSettings,
        auth: &AuthSettings,
        instance: &str,
    ) -> Result<OpenService, desk::Error> {
        let desk = Desk::open(store, settings, auth, instance)?;
        Ok(OpenService { service: &DeskService, running: Arc::new(RunningDesk { desk }) })
    }

    /// The service on a store with its chat, in a data folder.
    pub async fn with_chat(
        store: &Store,
        settings: &DeskSettings,
        auth: &AuthSettings,
        instance: &str,
        data: &std::path::Path,
    ) -> Result<OpenService, desk::Error> {
        let mut desk = Desk::open(store, settings, auth, instance)?;
        let setup = ChatSetup {
            store,
            prefix: &desk.prefix,
            users: &desk.users,
            instance: &desk.instance,
            settings,
            data,
            sync: desk::archive::ArchiveSync::default(),
        };
        desk.chat = Some(chat::open(setup).await?);
        Ok(OpenService { service: &DeskService, running: Arc::new(RunningDesk { desk }) })
    }
}

fn file_bytes(settings: &DeskSettings) -> usize {
    usize::try_from(settings.max_file_bytes.0).unwrap_or(usize::MAX)
}

/// The desk on its store. A cheap clone.
#[derive(Debug, Clone)]
pub(crate) struct Desk {
    pub(crate) store: Store,
    pub(crate) prefix: Prefix,
    /// Id of this instance, new with each start.
    pub(crate) instance: InstanceId,
    pub(crate) traffic: Traffic,
    /// Traffic of the programs that report theirs to this instance.
    reported: Arc<Mutex<HashMap<AppName, Traffic>>>,
    pub(crate) book: PolicyBook,
    pub(crate) users: Users,
    pub(crate) watcher: UserWatcher,
    pub(crate) header_style: Arc<ArcSwap<HeaderStyle>>,
    /// The support chat, where it runs.
    pub(crate) chat: Option<Chat>,
    /// Origins of pages that may embed the widget.
    pub(crate) widget_origins: Arc<ArcSwap<Vec<String>>>,
    /// Response times at the last sample, by the start of the series.
    pub(crate) last_times: Arc<Mutex<HashMap<String, Box<Buckets>>>>,
    /// This is `tidegate demo`.
    pub(crate) is_demo: Arc<AtomicBool>,
    /// Largest file that may be sent, `desk.max_file_bytes`.
    pub(crate) upload_limit: BodyLimit,
    /// Settings and keys for what the chat sends.
    pub(crate) courier: Arc<CourierState>,
    pub(crate) otlp: Arc<ArcSwap<OtlpAccess>>,
    pub(crate) intake: Arc<ArcSwap<IntakeSettings>>,
}

/// Settings about the traffic of other programs.
#[derive(Debug, Clone)]
pub(crate) struct IntakeSettings {
    /// Name of the app behind the reverse proxy.
    pub(crate) app: AppName,
    /// Templates of its paths.
    pub(crate) templates: Arc<PathTemplates>,
    /// Apps with a history of their own.
    pub(crate) history: usize,
    /// Endpoints of an app with counters of their own.
    pub(crate) max_endpoints: usize,
}

impl IntakeSettings {
    fn of(settings: &DeskSettings) -> IntakeSettings {
        IntakeSettings {
            app: settings.app.0.clone(),
            templates: Arc::clone(&settings.routes.0),
            history: settings.history,
            max_endpoints: settings.max_endpoints,
        }
    }
}

impl Desk {
    fn open(
        store: &Store,
        settings: &DeskSettings,
        auth: &AuthSettings,
        instance: &str,
    ) -> Result<Desk, desk::Error> {
        let prefix = settings.prefix.0.clone();
        let instance = instance_id(instance)?;
        let traffic = Traffic::new(store, &prefix, None, instance.clone());
        traffic.set_endpoints_most(settings.max_endpoints);
        let defaults = default_policies(auth);
        let users = Users::new(store, &prefix, settings.user_options())?;
        Ok(Desk {
            book: PolicyBook::new(store, &prefix, defaults, settings.limit_timeout)?,
            watcher: UserWatcher::new(&users),
            header_style: Arc::new(ArcSwap::from_pointee(settings.limit_headers)),
            chat: None,
            widget_origins: Arc::new(ArcSwap::from_pointee(settings.widget_origins.0.clone())),
            last_times: Arc::default(),
            is_demo: Arc::default(),
            upload_limit: {
                let limit = BodyLimit::default();
                limit.set(file_bytes(settings));
                limit
            },
            courier: Arc::new(CourierState::new(settings)),
            otlp: Arc::new(ArcSwap::from_pointee(settings.otlp)),
            intake: Arc::new(ArcSwap::from_pointee(IntakeSettings::of(settings))),
            store: store.clone(),
            prefix,
            instance,
            traffic,
            reported: Arc::default(),
            users,
        })
    }

    /// Returns the traffic of an app; none is this program.
    pub(crate) fn traffic_of(&self, app: Option<&AppName>) -> Traffic {
        match app {
            None => self.traffic.clone(),
            Some(_) => {
                let traffic = Traffic::new(&self.store, &self.prefix, app, self.instance.clone());
                traffic.set_endpoints_most(self.intake.load().max_endpoints);
                traffic
            }
        }
    }

    /// Returns the traffic to which a program's reports are added.
    ///
    /// # Errors
    /// There are too many programs already.
    pub(crate) async fn reported(&self, app: &AppName) -> Result<Traffic, desk::Error> {
        if let Some(known) = self.reported.lock().get(app) {
            return Ok(known.clone());
        }
        let traffic = self.traffic_of(Some(app));
        traffic.register().await?;
        Ok(self.reported.lock().entry(app.clone()).or_insert(traffic).clone())
    }

    /// Returns the traffic of all programs that report to this instance.
    pub(crate) fn all_reported(&self) -> Vec<Traffic> {
        self.reported.lock().values().cloned().collect()
    }

    fn configure(&self, settings: &DeskSettings, auth: &AuthSettings) -> Result<(), desk::Error> {
        self.book.configure(default_policies(auth), settings.limit_timeout)?;
        self.users.configure(settings.user_options())?;
        self.traffic.set_endpoints_most(settings.max_endpoints);
        for reported in self.all_reported() {
            reported.set_endpoints_most(settings.max_endpoints);
        }
        self.header_style.store(Arc::new(settings.limit_headers));
        self.widget_origins.store(Arc::new(settings.widget_origins.0.clone()));
        self.upload_limit.set(file_bytes(settings));
        self.courier.settings.store(Arc::new(CourierSettings::of(settings)));
        if let Some(chat) = &self.chat {
            chat.configure(chat::options(settings));
        }
        self.otlp.store(Arc::new(settings.otlp));
        self.intake.store(Arc::new(IntakeSettings::of(settings)));
        Ok(())
    }
}

/// An id of this instance that no other and no earlier one has.
fn instance_id(name: &str) -> Result<InstanceId, desk::Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = name.chars().map(|c| if plain(c) { c } else { '-' }).take(40).collect();
    InstanceId::parse(&format!("{name}-{:08x}", fastrand::u32(..)))
}

/// The running desk.
#[derive(Debug)]
struct RunningDesk {
    desk: Desk,
}

/// State of handlers and pages.
#[derive(Debug, Clone, FromRef)]
pub(crate) struct DeskState {
    pub(crate) app: App,
    pub(crate) desk: Arc<Desk>,
}

impl RunningService for RunningDesk {
    fn routes(&self, app: &App) -> Routes {
        let pages = Router::new()
            .route("/desk/traffic", get(pages::traffic::page))
            .route("/desk/endpoints", get(pages::endpoints::page))
            .route("/desk/limits", get(pages::limits::page))
            .route("/desk/limits/{policy}", get(pages::limits::policy_page))
            .route("/desk/users", get(pages::users::page))
            .route("/desk/users/{user}", get(pages::users::user_page))
            .route("/desk/chat", get(console::chat_page));
        let state = DeskState { app: app.clone(), desk: Arc::new(self.desk.clone()) };
        if let Some(chat) = &self.desk.chat {
            chat::connect(chat, app, &self.desk.courier);
        }
        // Before the first request passes the reverse proxy; a reload changes them.
        app.requests().set_templates(Arc::clone(&self.desk.intake.load().templates));
        let routes = api::routes()
            .merge(gate::routes())
            .merge(envoy::routes())
            .merge(otlp::routes())
            .merge(chat::served_routes(&state))
            .merge(panel::routes())
            .merge(console::routes());
        routes.merge(Routes { pages, ..Routes::default() }).with_state(state)
    }

    fn fragments(&self) -> Fragments {
        let desk = Arc::new(self.desk.clone());
        Fragments::default()
            .add("desk-traffic", async |state: DeskState, app| {
                pages::traffic::part(&state, &app).await
            })
            .add("desk-endpoints", async |state: DeskState, view| {
                pages::endpoints::part(&state, &view).await
            })
            .add("desk-limits", async |state: DeskState, acts| {
                pages::limits::part(&state, acts == "acts").await
            })
            .add("desk-policy", async |state: DeskState, view| {
                pages::limits::policy_part(&state, &view).await
            })
            .with_state(move |app| DeskState { app, desk: Arc::clone(&desk) })
    }

    fn tiles(&self, app: &App) -> Option<Markup> {
        let series = app.series();
        let last = |name: &str| format::short(series.last(name).unwrap_or(0.0));
        let open = format::whole(series.last("desk.connections").unwrap_or(0.0));
        let note =
            format!("{open} open {}", if open == "1" { "connection" } else { "connections" });
        let spark = chart::spark(&series.line("desk.speed"), 3);
        Some(html! {
            (ui::tile_to("/desk/traffic", "App traffic", &last("desk.speed"), "/s", &note, &spark))
        })
    }

    fn key_prefixes(&self) -> Vec<String> {
        vec![self.desk.prefix.as_str().to_owned()]
    }

    fn search<'a>(&'a self, _: &'a App, text: &'a str) -> BoxFuture<'a, Vec<SearchHit>> {
        Box::pin(async move {
            let tabs = [
                ("Traffic", "/desk/traffic"),
                ("Endpoints", "/desk/endpoints"),
                ("Limits", "/desk/limits"),
                ("Users", "/desk/users"),
                ("Chat console", "/desk"),
            ];
            let fitting = tabs.into_iter().filter(|(title, _)| has_words(title, text));
            let mut hits: Vec<SearchHit> =
                fitting.map(|(title, path)| SearchHit::new("page", title, "desk", path)).collect();
            let policies = self.desk.book.policies();
            let names = policies.iter().map(|policy| policy.spec().name.as_str());
            let named = names.filter(|name| has_words(name, text)).take(HITS_MAX);
            hits.extend(named.map(|name| {
                SearchHit::new("limit", name, "desk", format!("/desk/limits/{}", percent(name)))
            }));
            let users = self.desk.users.search(text, HITS_MAX).await.unwrap_or_default();
            // A text may be the id of somebody who was never seen.
            let known = |user: &desk::users::UserSummary| {
                user.seen.is_some() || user.login.is_some() || user.block.is_some()
            };
            for user in users.into_iter().filter(known) {
                let path = format!("/desk/users/{}", percent(user.id.as_str()));
                hits.push(SearchHit::new("user", user.id.as_str(), user.status.as_str(), path));
            }
            hits
        })
    }

    fn samples<'a>(&'a self, _: &'a App) -> BoxFuture<'a, Vec<SharedSample>> {
        Box::pin(pages::sample(&self.desk))
    }

    fn limiter(&self) -> Option<Arc<dyn RequestLimiter>> {
        let (book, style) = (self.desk.book.clone(), Arc::clone(&self.desk.header_style));
        Some(Arc::new(DeskLimiter { book, style }))
    }

    fn health(&self) -> BoxFuture<'_, Vec<Check>> {
        Box::pin(async {
            let policies = self.desk.book.policies().len();
            let missing = self.desk.traffic.missing();
            let mut checks = vec![if missing.refused > 0 {
                let found = format!(
                    "{} counts of traffic found no room while the store was away; totals are too low by them",
                    missing.refused
                );
                // Requests are served all the same.
                Check::ok("desk", found)
            } else {
                Check::ok("desk", format!("{policies} policies"))
            }];
            if let Some(chat) = &self.desk.chat {
                let check = tokio::time::timeout(ARCHIVE_PATIENCE, chat.archive().check()).await;
                checks.push(match check {
                    Ok(Ok(())) => Check::ok("desk archive", format!("{}", chat.archive().place())),
                    Ok(Err(error)) => Check::failed("desk archive", error.to_string()),
                    Err(_) => {
                        Check::failed("desk archive", "it did not answer within 2 s".to_owned())
                    }
                });
            } else {
                checks.push(Check::ok("desk archive", "the chat does not run on this instance"));
            }
            checks
        })
    }

    fn reload(&self, values: &Values) {
        let (Ok(settings), Ok(auth)) = (DeskSettings::read(values), AuthSettings::read(values))
        else {
            return;
        };
        if let Err(error) = self.desk.configure(&settings, &auth) {
            tracing::error!(%error, "settings of the desk not taken over");
        }
    }

    fn run(self: Arc<Self>, app: App, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let desk = self.desk.clone();
            let chat = async {
                match &desk.chat {
                    Some(chat) => {
                        let prepare = desk.courier.prepare(chat, &app, &stop);
                        tokio::join!(chat.run(stop.clone()), prepare);
                    }
                    None => stop.cancelled().await,
                }
            };
            let finder = TrafficFinder::new(&desk.store, &desk.prefix);
            tokio::join!(
                traffic::run(desk.clone(), app.clone(), stop.clone()),
                finder.run(stop.clone(), || desk.intake.load().max_endpoints),
                desk.book.run(stop.clone()),
                desk.watcher.run(stop.clone()),
                chat,
            );
        })
    }

    fn demo_pages(&self) -> &'static [(&'static str, &'static str)] {
        &[("Shop", "/demo/shop"), ("Console", "/desk")]
    }

    fn demo(self: Arc<Self>, app: &App, tasks: &TaskTracker, stop: &CancellationToken) {
        demo::start(&self.desk, app, tasks, stop);
    }
}
