//! A worker: plain async functions that handle jobs, and the runtime that feeds them.
//!
//! ```no_run
//! # async fn example(jobs: tidegate_jobs::Jobs) -> Result<(), tidegate_jobs::Error> {
//! use tidegate_jobs::{Fault, Labels, Task, worker::{Reporter, State, Worker}};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct SendMail { to: String }
//! impl Task for SendMail { const TYPE: &'static str = "send-mail"; }
//!
//! #[derive(Clone)]
//! struct App { from: String }
//!
//! async fn send_mail(mail: SendMail, State(app): State<App>, progress: Reporter) -> Result<(), Fault> {
//!     progress.set(50.0, format!("{} to {}", app.from, mail.to)).await;
//!     Ok(())
//! }
//!
//! let worker = Worker::new(&jobs, Labels::new("mailer-1")?, App { from: "us@example.org".into() })
//!     .task(send_mail)
//!     .concurrency(16);
//! worker.run(tokio_util::sync::CancellationToken::new()).await?;
//! # Ok(()) }
//! ```
//!
//! Each attempt runs in a [`tracing`] span `attempt` with the fields `job`, `job_type`, `attempt` and
//! `worker`, so that the lines a handler logs can be told apart, and `trace_id` if the job was
//! dispatched in a trace. The span is of the level `info`. The handler also runs under the trace
//! context of its attempt: `tidegate_jobs::store::trace::current()` is what it passes on in what it calls,
//! jobs it dispatches carry it, and a program that sets a `tidegate_jobs::store::trace::SpanExporter` gets
//! a span of each attempt and of each script call in it.
//!
//! Read in this order: [`Worker`] here, `outcome.rs` (what a handler may say), `extract.rs` (what it
//! may ask for), `handler.rs` (how a function becomes a handler), `runtime.rs` (claim, run, renew,
//! acknowledge, stop).

mod extract;
mod handler;
mod outcome;
mod runtime;

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;
use tower::{BoxError, Layer, Service, ServiceExt as _, util::BoxCloneSyncService};

pub use self::{
    extract::{
        Attempt, Cancel, Deadline, FromJob, Logger, ParentResults, Payload, Reporter, State,
    },
    handler::{FirstTask, Handler},
    outcome::{Fault, IntoOutcome, JobOutcome},
    runtime::AttemptContext,
};
use crate::{Error, JobLease, JobType, Jobs, Labels, worker::handler::BoxedHandler};

/// One job to be handled, as layers see it.
#[derive(Clone, Debug)]
pub struct JobRequest {
    /// The job and the lease on it.
    pub lease: Arc<JobLease>,
    /// The context of this attempt.
    pub context: AttemptContext,
}

/// The handler service, with all layers around it.
pub type JobService = BoxCloneSyncService<JobRequest, JobOutcome, BoxError>;

/// Settings of a worker.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of jobs that run at once. Default 10.
    pub concurrency: usize,
    /// Number of jobs to prefetch. `None`, the default, goes by how long jobs take: as many
    /// as are worked off in some 20 ms, so none when jobs are slow.
    pub prefetch: Option<usize>,
    /// Time that active jobs have to finish when the worker stops. After that they are cancelled and
    /// handed back. Default 20 s.
    pub grace: Duration,
    /// Runs scheduler and maintenance too, if no other process leads. Default yes.
    pub background: bool,
    /// The machine's name, shown in the list of workers.
    pub hostname: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            concurrency: 10,
            prefetch: None,
            grace: Duration::from_secs(20),
            background: true,
            hostname: hostname(),
        }
    }
}

fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// A worker: labels, handlers, and how to run. Built up, then [`run`](Worker::run).
pub struct Worker<S = ()> {
    jobs: Jobs,
    labels: Labels,
    state: S,
    handlers: HashMap<JobType, BoxedHandler<S>>,
    problem: Option<Error>,
    layers: Vec<Box<dyn FnOnce(JobService) -> JobService + Send>>,
    options: Options,
}

impl<S: Clone + Send + Sync + 'static> Worker<S> {
    /// A worker without handlers. `state` is what handlers get as [`State`].
    pub fn new(jobs: &Jobs, labels: Labels, state: S) -> Self {
        Self {
            jobs: jobs.clone(),
            labels,
            state,
            handlers: HashMap::new(),
            problem: None,
            layers: Vec::new(),
            options: Options::default(),
        }
    }

    /// Handles jobs of a type with a function. Its arguments are whatever implements [`FromJob`].
    pub fn handle<A>(mut self, job_type: &str, handler: impl Handler<S, A>) -> Self {
        match JobType::parse(job_type) {
            Ok(job_type) => _ = self.handlers.insert(job_type, handler::boxed(handler)),
            Err(error) => self.problem = self.problem.or(Some(error)),
        }
        self
    }

    /// Handles jobs of the type that the function's first argument names.
    pub fn task<A: FirstTask>(self, handler: impl Handler<S, A>) -> Self {
        self.handle(A::TYPE, handler)
    }

    /// Puts a tower layer around all handlers; the last one added is the outermost.
    pub fn layer<L, T>(mut self, layer: L) -> Self
    where
        L: Layer<JobService, Service = T> + Send + 'static,
        T: Service<JobRequest, Response = JobOutcome> + Clone + Send + Sync + 'static,
        T::Error: Into<BoxError>,
        T::Future: Send,
    {
        self.layers.push(Box::new(move |inner| {
            BoxCloneSyncService::new(layer.layer(inner).map_err(Into::into))
        }));
        self
    }

    /// Sets the number of jobs that run at once.
    pub fn concurrency(mut self, most: usize) -> Self {
        self.options.concurrency = most.max(1);
        self
    }

    /// Sets the number of jobs to prefetch; 0 claims one only when it can start at once.
    pub fn prefetch(mut self, most: usize) -> Self {
        self.options.prefetch = Some(most);
        self
    }

    /// Sets the time that active jobs have to finish when the worker stops.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// Runs scheduler and maintenance here too, or not.
    pub fn background(mut self, background: bool) -> Self {
        self.options.background = background;
        self
    }

    /// The labels it claims with.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Runs until it is told to stop, and then ends in an orderly way: nothing new is claimed, what
    /// runs may end within the grace, the rest is handed back without having cost an attempt.
    pub async fn run(self, cancel: CancellationToken) -> Result<(), Error> {
        let prepared = self.prepare()?;
        Box::pin(prepared.run(cancel)).await
    }

    /// Puts handlers and layers together.
    pub(crate) fn prepare(self) -> Result<runtime::WorkerRuntime, Error> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        if self.handlers.is_empty() {
            return Err(Error::invalid("a worker needs at least one handler"));
        }
        let types: Vec<JobType> = self.handlers.keys().cloned().collect();
        let base = handler::HandlerService { state: self.state, handlers: Arc::new(self.handlers) };
        let mut service = BoxCloneSyncService::new(base);
        for layer in self.layers {
            service = layer(service);
        }
        Ok(runtime::WorkerRuntime {
            jobs: self.jobs,
            labels: self.labels,
            types,
            service,
            options: self.options,
        })
    }
}

impl<S> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("labels", &self.labels)
            .field("types", &self.handlers.keys().collect::<Vec<_>>())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
