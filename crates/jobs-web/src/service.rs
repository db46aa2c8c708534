//! The job queue as a service of the product.

use std::ffi::OsStr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::FromRef;
use axum::routing::get;
use clap::{CommandFactory, FromArgMatches};
use futures_util::future::BoxFuture;
use jobs::{JobType, Jobs, Namespace};
use maud::{Markup, html};
use store::{history::SharedSample, key_map::KeyMap};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::openapi::OpenApi;
use web::cli::top::TopSection;
use web::cli::{Action, Client, Context, Failure, Outcome};
use web::config::load::Problem;
use web::config::{Section, Values};
use web::error::chain;
use web::metrics::{MetricInfo, Reading};
use web::middleware::percent;
use web::search::{HITS_MAX, SearchHit, has_words};
use web::service::{FirstStep, Fragments, OpenService, Opening, RunningService, Service};
use web::ui::{self, NavGroup, NavItem};
use web::webhook::EventType;
use web::{App, Routes, chart, format};

use crate::cli::{self, JobsCommand};
use crate::config::JobsSettings;
use crate::{ICON, alerts, api, demo, figures, pages};

/// The job queue before it is opened.
#[derive(Debug)]
pub struct JobsService;

impl Service for JobsService {
    fn name(&self) -> &'static str {
        "jobs"
    }

    fn summary(&self) -> &'static str {
        "The job queue."
    }

    fn nav(&self) -> NavItem {
        NavItem { path: "/jobs", title: "Jobs", key: "j", icon: ICON, group: NavGroup::Services }
    }

    fn sections(&self) -> &'static [&'static Section] {
        &[&JobsSettings::SECTION]
    }

    fn key_map(&self, values: &Values) -> Option<Arc<dyn KeyMap>> {
        let settings = JobsSettings::read(values).ok()?;
        Some(Arc::new(jobs::keys::JobsKeyMap::new(&settings.namespace.0)))
    }

    fn check_settings(&self, values: &Values) -> Result<(), Problem> {
        let checked = JobsSettings::read(values)?.to_config().check();
        checked.map_err(|error| Problem::new("jobs", error.to_string()))
    }

    fn scopes(&self) -> &'static [&'static str] {
        &["jobs:type=NAME", "jobs:namespace=NAME"]
    }

    /// Tokens made earlier may have the older spelling `jobs:queue=NAME`, which means
    /// `jobs:type=NAME`; new ones may not.
    fn check_scope(&self, scope: &str) -> Option<Result<(), String>> {
        let checked = match scope.split_once('=')? {
            ("jobs:type", name) => JobType::parse(name).map(drop),
            ("jobs:namespace", name) => Namespace::parse(name).map(drop),
            _ => return None,
        };
        Some(
            checked
                .map_err(|error| format!("the scope {scope:?} names nothing that can be: {error}")),
        )
    }

    fn event_types(&self) -> &'static [EventType] {
        alerts::EVENTS
    }

    fn metrics(&self) -> &'static [MetricInfo] {
        figures::METRICS
    }

    fn document(&self) -> OpenApi {
        api::routes().document()
    }

    fn command(&self) -> Option<clap::Command> {
        Some(JobsCommand::command())
    }

    fn run_command(&self, matches: &clap::ArgMatches, context: &Context<'_>) -> Outcome<Action> {
        let command = JobsCommand::from_arg_matches(matches)
            .map_err(|error| Failure::usage(error.to_string()))?;
        cli::run(command.verb, context)?;
        Ok(Action::Done)
    }

    fn top(&self, client: &Client) -> Outcome<Vec<TopSection>> {
        cli::top(client)
    }

    fn run_helper(&self, argument: &OsStr) -> Option<ExitCode> {
        (argument == cli::supervisor::ARGUMENT).then(cli::supervisor::run)
    }

    fn open<'a>(&'a self, opening: Opening<'a>) -> BoxFuture<'a, Outcome<Arc<dyn RunningService>>> {
        Box::pin(async move {
            let settings = JobsSettings::read(opening.values)
                .map_err(|problem| Failure::usage(problem.to_string()))?;
            let jobs = Jobs::new(opening.store.clone(), settings.to_config()).map_err(|error| {
                Failure::usage(format!("cannot open the job queue: {}", chain(&error)))
                    .next("tidegate config reference   (the settings that start with jobs.)")
            })?;
            let instance = opening.instance.to_owned();
            let alert_workers_gone = settings.alert_workers_gone;
            Ok(Arc::new(RunningJobs { jobs, instance, alert_workers_gone })
                as Arc<dyn RunningService>)
        })
    }
}

impl JobsService {
    /// The service on a queue that is open already.
    pub fn on(jobs: Jobs, instance: &str) -> OpenService {
        let alert_workers_gone = Duration::from_secs(60);
        let running = RunningJobs { jobs, instance: instance.to_owned(), alert_workers_gone };
        OpenService { service: &JobsService, running: Arc::new(running) }
    }
}

/// The job queue on its store.
#[derive(Debug)]
struct RunningJobs {
    jobs: Jobs,
    /// Name of this instance, by which its background work is elected.
    instance: String,
    /// Time without a worker that is told to webhooks.
    alert_workers_gone: Duration,
}

/// The `State` of handlers and pages.
#[derive(Debug, Clone, FromRef)]
pub(crate) struct JobsState {
    pub(crate) app: App,
    pub(crate) jobs: Jobs,
}

impl RunningJobs {
    fn state(&self, app: &App) -> JobsState {
        JobsState { app: app.clone(), jobs: self.jobs.clone() }
    }
}

/// Schedules that a search looks at.
const SEARCHED_SCHEDULES: usize = 500;

/// Finds schedules, workers and job types by name, and what can be done with a schedule.
async fn find_things(jobs: &Jobs, text: &str) -> Vec<SearchHit> {
    let mut hits = Vec::new();
    for view in jobs.schedules(0, SEARCHED_SCHEDULES).await.unwrap_or_default() {
        let id = view.job.id.as_str();
        let path = format!("/jobs/schedules/{}", percent(id));
        if has_words(id, text) {
            hits.push(SearchHit::new("schedule", id, view.job.job_type.as_str(), &path));
        }
        if !view.paused && has_words(&format!("Pause schedule {id}"), text) {
            let title = format!("Pause schedule {id}");
            hits.push(SearchHit::action(title, "jobs", format!("{path}#pause")));
        }
        if hits.len() >= HITS_MAX {
            break;
        }
    }
    let workers = jobs.workers().await.unwrap_or_default();
    let mut types: std::collections::BTreeSet<&str> = Default::default();
    for worker in &workers {
        types.extend(worker.types.iter().flatten().map(|name| name.as_str()));
        let id = worker.info.worker_id.as_str();
        if hits.len() < 2 * HITS_MAX && has_words(id, text) {
            let note = if worker.alive { "alive" } else { "silent" };
            hits.push(SearchHit::new("worker", id, note, "/jobs/workers"));
        }
    }
    let lanes = jobs.lanes().await.unwrap_or_default();
    types.extend(lanes.iter().map(|lane| lane.route.job_type.as_str()));
    let named = types.into_iter().filter(|name| has_words(name, text)).take(HITS_MAX);
    hits.extend(named.map(|name| {
        SearchHit::new(
            "job type",
            name,
            "its waiting jobs",
            format!("/jobs/waiting?type={}", percent(name)),
        )
    }));
    hits
}

impl RunningService for RunningJobs {
    fn routes(&self, app: &App) -> Routes {
        let pages = Router::new()
            .route("/jobs", get(pages::page))
            .route("/jobs/{state}", get(pages::list::page))
            .route("/jobs/job/{id}", get(pages::job::page))
            .route("/jobs/job/{id}/edit", get(pages::job::edit))
            .route("/jobs/schedules", get(pages::schedules::page))
            .route("/jobs/schedules/{id}", get(pages::schedules::one))
            .route("/jobs/workers", get(pages::workers::page))
            .route("/jobs/unroutable", get(pages::unroutable::page));
        api::routes().merge(Routes { pages, ..Routes::default() }).with_state(self.state(app))
    }

    fn fragments(&self) -> Fragments {
        let jobs = self.jobs.clone();
        Fragments::default()
            .add("jobs", async |state: JobsState, acts| pages::part(&state, acts == "acts").await)
            .add("job", async |state: JobsState, id| pages::job::part(&state, &id).await)
            .add("job-list", async |state: JobsState, list| pages::list::part(&state, &list).await)
            .add("job-tabs", async |state: JobsState, tab| pages::tabs_part(&state, &tab).await)
            .add("schedules", async |state: JobsState, acts| {
                pages::schedules::part(&state, acts == "acts").await
            })
            .add("workers", async |state: JobsState, acts| {
                pages::workers::part(&state, acts == "acts").await
            })
            .add("unroutable", async |state: JobsState, _| pages::unroutable::part(&state).await)
            .with_state(move |app| JobsState { app, jobs: jobs.clone() })
    }

    fn tiles(&self, app: &App) -> Option<Markup> {
        let series = app.series();
        let last = |name: &str| format::whole(series.last(name).unwrap_or(0.0));
        let note = format!("{} active, {} dead", last("jobs.active"), last("jobs.dead"));
        let spark = chart::spark(&series.line("jobs.waiting"), 2);
        Some(html! { (ui::tile("Jobs waiting", &last("jobs.waiting"), "", &note, &spark)) })
    }

    fn search<'a>(&'a self, _: &'a App, text: &'a str) -> BoxFuture<'a, Vec<SearchHit>> {
        Box::pin(async move {
            let mut hits = Vec::new();
            if let Ok(id) = jobs::JobId::parse(text)
                && let Ok(Some(job)) = self.jobs.get(&id).await
            {
                let path = format!("/jobs/job/{}", id.as_str());
                hits.push(SearchHit::new("job", id.as_str(), job.job_type.as_str(), path));
            }
            let tabs = [
                ("Waiting jobs", "waiting"),
                ("Active jobs", "active"),
                ("Delayed jobs", "delayed"),
                ("Finished jobs", "finished"),
                ("Dead letters", "dead"),
                ("Schedules", "schedules"),
                ("Workers", "workers"),
                ("Unroutable jobs", "unroutable"),
            ];
            let found = tabs.into_iter().filter(|(title, _)| has_words(title, text));
            hits.extend(
                found.map(|(title, tab)| {
                    SearchHit::new("page", title, "jobs", format!("/jobs/{tab}"))
                }),
            );
            if has_words("New schedule", text) {
                hits.push(SearchHit::action(
                    "New schedule",
                    "jobs",
                    "/jobs/schedules#new-schedule",
                ));
            }
            hits.extend(find_things(&self.jobs, text).await);
            hits
        })
    }

    fn key_prefixes(&self) -> Vec<String> {
        let namespace = &self.jobs.config().namespace;
        vec![format!("{namespace}:"), format!("{{{namespace}}}:")]
    }

    fn first_steps(&self) -> BoxFuture<'_, Vec<FirstStep>> {
        Box::pin(async {
            let Ok(stats) = self.jobs.stats().await else { return Vec::new() };
            let present = stats.waiting + stats.active + stats.delayed + stats.dead;
            vec![
                FirstStep {
                    title: "Dispatch a job",
                    text: "A job waits until a worker that runs its type claims it.",
                    command: concat!(
                        "curl -X POST {server}/api/v1/jobs -H 'Authorization: Bearer {token}' \\\n",
                        "  -H 'Content-Type: application/json' -d '{\"type\":\"hello\",\"payload\":{\"name\":\"Ada\"}}'"
                    ),
                    path: "/jobs",
                    is_done: stats.processed > 0 || present > 0,
                },
                FirstStep {
                    title: "Start a worker",
                    text: "It runs a command for each job of the type, with the payload on its standard input.",
                    command: "TIDEGATE_SERVER={server} TIDEGATE_TOKEN={token} tidegate jobs exec --type hello -- cat",
                    path: "/jobs/workers",
                    is_done: stats.processed > 0 || stats.workers > 0,
                },
            ]
        })
    }

    fn samples<'a>(&'a self, _: &'a App) -> BoxFuture<'a, Vec<SharedSample>> {
        Box::pin(pages::sample(&self.jobs))
    }

    fn readings<'a>(&'a self, _: &'a App) -> BoxFuture<'a, Result<Vec<Reading>, String>> {
        Box::pin(figures::readings(&self.jobs, &self.instance))
    }

    fn run(self: Arc<Self>, app: App, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let alerts = alerts::run(app, self.jobs.clone(), self.alert_workers_gone, stop.clone());
            tokio::join!(self.jobs.run_background(&self.instance, stop), alerts);
        })
    }

    fn demo(self: Arc<Self>, _: &App, tasks: &TaskTracker, stop: &CancellationToken) {
        demo::start(&self.jobs, tasks, stop);
    }
}
