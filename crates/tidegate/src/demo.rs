//! `tidegate demo`: the whole product with made-up traffic, so that a newcomer sees it alive. Its
//! data is in memory and its token in a folder of its own; both are gone when it ends, unless
//! `--store` or `--data` say otherwise.
//!
//! Nothing is painted on: visitors call the same HTTP handlers a browser would, workers claim and
//! fail real jobs. `demo/crowd.rs` is the ticket sale, `demo/shop.rs` the work behind it.

mod crowd;
mod shop;

use api::App;
use store::Millis;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cli::Global;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::serve;

/// Runs the demo until told to stop.
pub(crate) fn run(global: &Global, output: &Output) -> Outcome {
    let mut sources = global.sources()?;
    let folder = tempfile::Builder::new().prefix("tidegate-demo-").tempdir().map_err(|error| {
        Failure::failed(format!("cannot make a folder for the demo: {error}")).next("--data FOLDER")
    })?;
    let data = folder.path().display().to_string();
    let (no_store, no_data) = (global.store.is_none(), global.data.is_none());
    for (given, name, value) in
        [(no_store, "store.url", "embedded:"), (no_data, "server.data", &data)]
    {
        if given {
            sources.flags.push((name.to_owned(), value.to_owned(), "demo".to_owned()));
        }
    }
    output.note("A demo: visitors, workers and jobs are made up, and nothing is kept.");
    serve::run_with(sources, output, Some(start))
}

/// Starts the traffic, on `tasks` until `stop`.
fn start(app: &App, tasks: &TaskTracker, stop: &CancellationToken) {
    if app.services().room.is_some() {
        let (app, stop) = (app.clone(), stop.clone());
        tasks.spawn(async move { told(crowd::run(app, stop).await, "the crowd") });
    }
    if let Some(jobs) = app.services().jobs.clone() {
        shop::workers(&jobs, tasks, stop);
        let stop = stop.clone();
        tasks.spawn(async move { told(shop::run(jobs, stop).await, "the shop") });
    }
}

fn told(ended: anyhow::Result<()>, who: &str) {
    if let Err(error) = ended {
        tracing::warn!(error = format!("{error:#}"), "{who} of the demo went home");
    }
}

/// A number between 0 and 1 that goes up and down once in `period` milliseconds.
fn tide(now: Millis, period: i64) -> f64 {
    let phase = now.0.rem_euclid(period) as f64 / period as f64;
    (1.0 - (phase * std::f64::consts::TAU).cos()) / 2.0
}
