//! The job queue as a service of the product.

use std::ffi::OsStr;
use std::process::ExitCode;
use std::sync::Arc;

use axum::Router;
use axum::extract::FromRef;
use axum::routing::get;
use clap::{CommandFactory, FromArgMatches};
use futures_util::future::BoxFuture;
use jobs::{JobType, Jobs, Namespace};
use maud::{Markup, html};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::openapi::OpenApi;
use web::cli::{Action, Context, Failure, Outcome};
use web::config::Section;
use web::error::chain;
use web::service::{Fragments, OpenService, Opening, RunningService, Sample, Service};
use web::ui::{self, NavGroup, NavItem};
use web::{App, Routes, chart, format};

use crate::cli::{self, JobsCommand};
use crate::config::JobsSettings;
use crate::{ICON, api, demo, pages};

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

    fn run_helper(&self, argument: &OsStr) -> Option<ExitCode> {
        (argument == cli::supervisor::ARGUMENT).then(cli::supervisor::run)
    }

    fn open<'a>(&'a self, opening: Opening<'a>) -> BoxFuture<'a, Outcome<Arc<dyn RunningService>>> {
        Box::pin(async move {
            let settings = JobsSettings::read(opening.values)
                .map_err(|problem| Failure::usage(problem.to_string()))?;
            let jobs = settings
                .to_config()
                .and_then(|config| Jobs::new(opening.store.clone(), config))
                .map_err(|error| {
                    Failure::usage(format!("cannot open the job queue: {}", chain(&error)))
                        .next("tidegate config reference   (the settings that start with jobs.)")
                })?;
            let instance = opening.instance.to_owned();
            Ok(Arc::new(RunningJobs { jobs, instance }) as Arc<dyn RunningService>)
        })
    }
}

impl JobsService {
    /// The service on a queue that is open already.
    pub fn on(jobs: Jobs, instance: &str) -> OpenService {
        let running = RunningJobs { jobs, instance: instance.to_owned() };
        OpenService { service: &JobsService, running: Arc::new(running) }
    }
}

/// The job queue on its store.
#[derive(Debug)]
struct RunningJobs {
    jobs: Jobs,
    /// Name of this instance, by which its background work is elected.
    instance: String,
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

impl RunningService for RunningJobs {
    fn routes(&self, app: &App) -> Routes {
        let pages = Router::new()
            .route("/jobs", get(pages::page))
            .route("/jobs/{state}", get(pages::list::page))
            .route("/jobs/job/{id}", get(pages::job::page))
            .route("/jobs/schedules", get(pages::schedules::page))
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
            .add("workers", async |state: JobsState, _| pages::workers::part(&state).await)
            .add("unroutable", async |state: JobsState, _| pages::unroutable::part(&state).await)
            .with_state(move |app| JobsState { app, jobs: jobs.clone() })
    }

    fn tiles(&self, app: &App) -> Option<Markup> {
        let series = app.series();
        let last = |name: &str| format::short(series.last(name).unwrap_or(0.0));
        let note = format!("{} active, {} dead", last("jobs.active"), last("jobs.dead"));
        let spark = chart::spark(&series.line("jobs.waiting"), 2);
        Some(html! { (ui::tile("Jobs waiting", &last("jobs.waiting"), "", &note, &spark)) })
    }

    fn samples<'a>(&'a self, _: &'a App) -> BoxFuture<'a, Vec<Sample>> {
        Box::pin(pages::sample(&self.jobs))
    }

    fn run(self: Arc<Self>, _: App, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.jobs.run_background(&self.instance, stop).await })
    }

    fn demo(self: Arc<Self>, _: &App, tasks: &TaskTracker, stop: &CancellationToken) {
        demo::start(&self.jobs, tasks, stop);
    }
}
