//! The interface between the product and a service: all that one knows of the other.
//!
//! A service is two things. [`Service`] describes it before anything is open: its name, settings,
//! command, OpenAPI document. [`Service::open`] turns that into a [`RunningService`] on a store: its
//! routes and pages, live fragments, samples, health, background work. The binary has one list of
//! [`Service`]s and knows nothing else about any of them.
//!
//! To add a service, see docs/adding-a-service.md.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures_util::future::BoxFuture;
use maud::Markup;
use store::Store;
use store::history::{OwnSample, SharedSample};
use store::key_map::KeyMap;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::openapi::OpenApi;

use crate::app::App;
use crate::cli::top::TopSection;
use crate::cli::{Action, Client, CommandUse, Context, Failure, Outcome};
use crate::config::load::Problem;
use crate::config::{Config, Section, Values};
use crate::doctor::{Diagnosis, Finding};
use crate::health::Check;
use crate::metrics::{MetricInfo, Reading};
use crate::rate_limit::RequestLimiter;
use crate::routes::Routes;
use crate::search::SearchHit;
use crate::serve::tls::Tls;
use crate::ui::NavItem;
use crate::webhook::EventType;

/// The services of a product, in the order of its menu.
pub type Services = &'static [&'static dyn Service];

/// A service before it is opened.
pub trait Service: fmt::Debug + Send + Sync + 'static {
    /// One word, the same everywhere: in `--only`, as the command, as the tag in the OpenAPI
    /// document, as the start of its topics and of its lines in charts.
    fn name(&self) -> &'static str;

    /// One sentence about it, for the OpenAPI document.
    fn summary(&self) -> &'static str;

    /// Tells whether `--only` can leave it out.
    fn is_optional(&self) -> bool {
        true
    }

    /// Its entry in the menu.
    fn nav(&self) -> NavItem;

    /// The tables of its settings.
    fn sections(&self) -> &'static [&'static Section] {
        &[]
    }

    /// Checks rules that span several settings.
    fn check_settings(&self, values: &Values) -> Result<(), Problem> {
        let _ = values;
        Ok(())
    }

    /// Environment variables that begin like a setting of its and are none.
    fn variables(&self) -> &'static [&'static str] {
        &[]
    }

    /// Variables of other programs that set one of its settings when nothing else does: variable,
    /// setting.
    fn fallback_variables(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Prefixes of keys that nobody may read through the key browser or the RESP listener.
    fn secret_keys(&self) -> &'static [&'static str] {
        &[]
    }

    /// Its keys in both layouts, for `tidegate store move` and `restore`; `None` when both spell all
    /// of them the same.
    fn key_map(&self, values: &Values) -> Option<Arc<dyn KeyMap>> {
        let _ = values;
        None
    }

    /// Checks a scope of a new worker's token; `None` when the scope is not one of this service.
    fn check_scope(&self, scope: &str) -> Option<Result<(), String>> {
        let _ = scope;
        None
    }

    /// The scopes it knows, for messages and for the form of a new token: `jobs:type=NAME`.
    fn scopes(&self) -> &'static [&'static str] {
        &[]
    }

    /// The metrics it reports, through the `metrics` facade or as [`RunningService::readings`].
    fn metrics(&self) -> &'static [MetricInfo] {
        &[]
    }

    /// The events it tells webhooks of, by [`App::webhooks`].
    fn event_types(&self) -> &'static [EventType] {
        &[]
    }

    /// Its part of the OpenAPI document, also where it does not run.
    fn document(&self) -> OpenApi {
        OpenApi::default()
    }

    /// Its command, named as the service is; `None` when it has none.
    fn command(&self) -> Option<clap::Command> {
        None
    }

    /// The parts of its command that talk to no running server, by their words: `archive check`. They
    /// get other common flags.
    fn command_uses(&self) -> &'static [(&'static str, CommandUse)] {
        &[]
    }

    /// Runs its command.
    fn run_command(&self, matches: &clap::ArgMatches, context: &Context<'_>) -> Outcome<Action> {
        let _ = (matches, context);
        Err(Failure::usage(format!("{} has no command", self.name())))
    }

    /// Reads its sections of `tidegate top` from a running server.
    fn top(&self, client: &Client) -> Outcome<Vec<TopSection>> {
        let _ = client;
        Ok(Vec::new())
    }

    /// Runs a process that this service starts for itself, known by its first argument.
    fn run_helper(&self, argument: &OsStr) -> Option<ExitCode> {
        let _ = argument;
        None
    }

    /// Looks for what could go wrong before it is opened.
    fn doctor<'a>(&'a self, diagnosis: &'a Diagnosis<'a>) -> BoxFuture<'a, Vec<Finding>> {
        let _ = diagnosis;
        Box::pin(async { Vec::new() })
    }

    /// Opens it on a store.
    fn open<'a>(&'a self, opening: Opening<'a>) -> BoxFuture<'a, Outcome<Arc<dyn RunningService>>>;
}

/// The context in which a service is opened.
#[derive(Debug, Clone, Copy)]
pub struct Opening<'a> {
    /// The store.
    pub store: &'a Store,
    /// The settings of the frame.
    pub config: &'a Config,
    /// All settings, for the service's own.
    pub values: &'a Values,
    /// Name of this instance.
    pub instance: &'a str,
}

/// A service that is open on a store.
pub trait RunningService: fmt::Debug + Send + Sync + 'static {
    /// Its API routes and dashboard pages.
    fn routes(&self, app: &App) -> Routes;

    /// Puts middleware around its own routes, authentication included.
    fn wrap(&self, routes: Router<App>, app: &App) -> Router<App> {
        let _ = app;
        routes
    }

    /// The live fragments of its pages.
    fn fragments(&self) -> Fragments {
        Fragments::default()
    }

    /// Its tiles on the overview.
    fn tiles(&self, app: &App) -> Option<Markup> {
        let _ = app;
        None
    }

    /// Returns its numbers that are in the store, for the history that charts show. Of all instances one is
    /// asked each second.
    fn samples<'a>(&'a self, app: &'a App) -> BoxFuture<'a, Vec<SharedSample>> {
        let _ = app;
        Box::pin(async { Vec::new() })
    }

    /// The limits it keeps for the whole product: logins, and public calls without a limit of their
    /// own. One service at most does.
    fn limiter(&self) -> Option<Arc<dyn RequestLimiter>> {
        None
    }

    /// Returns the numbers of this process, for the history that charts show. Every instance is asked each
    /// second; what they say is added up.
    fn own_samples(&self) -> Vec<OwnSample> {
        Vec::new()
    }

    /// Finds its things by a text, for the command palette; a few of them.
    fn search<'a>(&'a self, app: &'a App, text: &'a str) -> BoxFuture<'a, Vec<SearchHit>> {
        let _ = (app, text);
        Box::pin(async { Vec::new() })
    }

    /// Prefixes of its keys, in both layouts, for the memory it takes in the store.
    fn key_prefixes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Its steps of the first-run card on the overview.
    fn first_steps(&self) -> BoxFuture<'_, Vec<FirstStep>> {
        Box::pin(async { Vec::new() })
    }

    /// Brings gauges of this process up to date before `/metrics` is written.
    fn update_metrics(&self) {}

    /// Reads its figures from the store for `/metrics`, at most once a second. Bounded: it asks for
    /// counts, never for everything that is counted. What fails is left out of the answer.
    fn readings<'a>(&'a self, app: &'a App) -> BoxFuture<'a, Result<Vec<Reading>, String>> {
        let _ = app;
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Checks that it can do its work, for `/readyz`.
    fn health(&self) -> BoxFuture<'_, Vec<Check>> {
        Box::pin(async { Vec::new() })
    }

    /// Takes over the settings that may change while it runs.
    fn reload(&self, values: &Values) {
        let _ = values;
    }

    /// Opens listeners of its own, beside the dashboard and the API.
    fn listen<'a>(&'a self, setup: ListenSetup<'a>) -> BoxFuture<'a, Outcome<Vec<ListenerTask>>> {
        let _ = setup;
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Does its background work until told to stop.
    fn run(self: Arc<Self>, app: App, stop: CancellationToken) -> BoxFuture<'static, ()> {
        let _ = app;
        Box::pin(async move { stop.cancelled().await })
    }

    /// Pages worth opening in `tidegate demo`, for its banner: a label and a path.
    fn demo_pages(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Starts made-up traffic for `tidegate demo`.
    fn demo(self: Arc<Self>, app: &App, tasks: &TaskTracker, stop: &CancellationToken) {
        let _ = (app, tasks, stop);
    }
}

/// A step that a newcomer takes with a service: a command to paste. `{server}` in it is the address of this
/// server, `{token}` a token, which the card makes.
#[derive(Debug, Clone)]
pub struct FirstStep {
    /// Its title: `Create a queue`.
    pub title: &'static str,
    /// Its purpose, in a sentence.
    pub text: &'static str,
    /// The command.
    pub command: &'static str,
    /// The page where its outcome is seen.
    pub path: &'static str,
    /// It was taken already.
    pub is_done: bool,
}

/// The context in which a service opens its own listeners.
#[derive(Debug)]
pub struct ListenSetup<'a> {
    /// The app, for the frame's middleware.
    pub app: &'a App,
    /// All settings.
    pub values: &'a Values,
    /// The certificate of the HTTP side.
    pub tls: Option<&'a Arc<Tls>>,
}

/// A listener that is bound and about to run.
pub struct ListenerTask {
    /// Its word in the banner.
    pub label: &'static str,
    /// Its address, for the banner.
    pub address: String,
    /// Serves until told to stop, then finishes what is under way within the time given.
    pub run: Box<dyn FnOnce(CancellationToken, Duration) -> BoxFuture<'static, ()> + Send>,
}

impl fmt::Debug for ListenerTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerTask")
            .field("label", &self.label)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// A service together with its description.
#[derive(Debug, Clone)]
pub struct OpenService {
    /// The description.
    pub service: &'static dyn Service,
    /// The service on its store.
    pub running: Arc<dyn RunningService>,
}

/// Starts the background work of every service of the app, on `tasks` until `stop`.
pub fn start_background(app: &App, tasks: &TaskTracker, stop: &CancellationToken) {
    for open in app.services() {
        tasks.spawn(Arc::clone(&open.running).run(app.clone(), stop.clone()));
    }
}

/// Starts the made-up traffic of every service of the app, on `tasks` until `stop`.
pub fn start_demo(app: &App, tasks: &TaskTracker, stop: &CancellationToken) {
    for open in app.services() {
        Arc::clone(&open.running).demo(app, tasks, stop);
    }
}

/// Returns the pages worth opening in the demo, of every service of the app: a label and a path.
pub fn demo_pages(app: &App) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    app.services().iter().flat_map(|open| open.running.demo_pages())
}

/// Runs the checks of every service that is to run.
pub async fn diagnose(services: Services, diagnosis: &Diagnosis<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for service in services.iter().filter(|service| diagnosis.config.runs(**service)) {
        findings.extend(service.doctor(diagnosis).await);
    }
    findings
}

type Render<S> = Arc<dyn Fn(S, String) -> BoxFuture<'static, Markup> + Send + Sync>;

/// Live fragments of pages by name. A topic such as `queue?sale` names the fragment `queue` and its
/// argument `sale`. `S` is the state they are rendered with; [`Fragments::with_state`] fills it in.
#[derive(Clone)]
pub struct Fragments<S = App>(BTreeMap<&'static str, Render<S>>);

impl<S> fmt::Debug for Fragments<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl<S> Default for Fragments<S> {
    fn default() -> Fragments<S> {
        Fragments(BTreeMap::new())
    }
}

impl<S: 'static> Fragments<S> {
    /// Adds a fragment. The function gets the state and the argument of the topic.
    #[must_use]
    pub fn add<R, F>(mut self, name: &'static str, render: R) -> Fragments<S>
    where
        R: Fn(S, String) -> F + Send + Sync + 'static,
        F: Future<Output = Markup> + Send + 'static,
    {
        self.0.insert(name, Arc::new(move |state, argument| Box::pin(render(state, argument))));
        self
    }

    /// Makes the state of each rendering from the app.
    #[must_use]
    pub fn with_state(self, state: impl Fn(App) -> S + Clone + Send + Sync + 'static) -> Fragments {
        let bind = |render: Render<S>| -> Render<App> {
            let state = state.clone();
            Arc::new(move |app, argument| render(state(app), argument))
        };
        Fragments(self.0.into_iter().map(|(name, render)| (name, bind(render))).collect())
    }
}

impl Fragments {
    /// Joins other fragments to these.
    #[must_use]
    pub(crate) fn merge(mut self, other: Fragments) -> Fragments {
        self.0.extend(other.0);
        self
    }

    /// Tells whether a topic names one of these.
    pub(crate) fn has(&self, topic: &str) -> bool {
        self.0.contains_key(split(topic).0)
    }

    /// Renders the fragment a topic names.
    pub(crate) async fn render(&self, app: &App, topic: &str) -> Option<Markup> {
        let (name, argument) = split(topic);
        let render = self.0.get(name)?;
        Some(render(app.clone(), argument.to_owned()).await)
    }
}

/// `jobs?state=failed` → `jobs`, `state=failed`.
fn split(topic: &str) -> (&str, &str) {
    topic.split_once('?').unwrap_or((topic, ""))
}
