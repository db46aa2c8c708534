//! `tidegate demo`: the whole product with made-up traffic, so that a newcomer sees it alive. Its
//! data is in memory and its token in a folder of its own; both are gone when it ends, unless
//! `--store` or `--data` say otherwise.
//!
//! Nothing is painted on: visitors call the same HTTP handlers a browser would, workers claim and
//! fail real jobs. Each service brings its own traffic.

use crate::serve;
use web::cli::Context;
use web::cli::{Failure, Outcome};

/// Runs the demo until told to stop.
pub(crate) fn run(context: &Context<'_>) -> Outcome {
    let (global, output) = (context.global, context.output);
    let mut sources = context.sources()?;
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
    serve::run_with(sources, output, Some(web::service::start_demo), "--listen")
}
