//! A day of the product in virtual time: visitors and jobs by the million go through the real admission and
//! routing code, on the built-in store in memory, whose clock the simulation moves.
//!
//!   scale room VISITORS FOLDER     visitors arrive at four queues, wait, start a session, leave
//!   scale jobs JOBS FOLDER         jobs of many types and targets, for workers of different labels
//!
//! Both print a table and leave drawings (SVG) in the folder. SEED (default 1) makes a run repeatable. Memory is
//! bounded by those who wait or work at the same time, not by the number of all: arrivals are drawn as time goes
//! on, waits are counted in buckets, and what has ended expires in the store by the same virtual clock.

mod jobs_run;
mod report;
mod room_run;

// One file for all drawings of the benchmarks.
#[allow(dead_code, reason = "only the drawing over time is used here")]
#[path = "../../src/plot.rs"]
mod plot;

use std::path::Path;

use anyhow::{Result, bail};
use store::{Clock, ManualClock, Millis, Options, Store};

fn main() -> Result<()> {
    let seed = std::env::var("SEED").ok().map_or(Ok(1), |text| text.parse())?;
    fastrand::seed(seed);
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match args[..] {
        ["room", count, folder] => {
            runtime.block_on(room_run::run(count.replace('_', "").parse()?, Path::new(folder)))
        }
        ["jobs", count, folder] => {
            runtime.block_on(jobs_run::run(count.replace('_', "").parse()?, Path::new(folder)))
        }
        _ => bail!("scale room VISITORS FOLDER, or scale jobs JOBS FOLDER"),
    }
}

/// A store in memory whose time stands still until it is moved; it begins in 2026.
async fn open() -> Result<(Store, ManualClock)> {
    let (clock, hands) = Clock::manual(Millis(1_767_225_600_000));
    let options = Options { clock: Some(clock), ..Options::default() };
    Ok((Store::open_with("embedded:", options).await?, hands))
}
