//! The numbers that charts show: takes samples of this process and of the services once a second, writes them to
//! the history in the store (`store::history`), and keeps the last minutes at hand for tiles.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use store::history::{History, HistoryKeys, OwnSample};
use store::{Millis, Store};
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::{keys, process};

/// Time between the points of a line that is at hand, and the time they reach back.
const POINT: Duration = Duration::from_secs(5);
const REACH: Duration = Duration::from_secs(300);
/// Points after the newest sample for which it still counts as the present value.
const PRESENT_POINTS: usize = 3;
/// Time between readings of what is at hand, while somebody looks and while nobody does.
const REFRESH: Duration = Duration::from_secs(2);
const REFRESH_IDLE: Duration = Duration::from_secs(15);
/// Time after the last look when nobody looks any more.
const LOOKED: Duration = Duration::from_secs(60);

/// The history, and its last minutes at hand.
#[derive(Debug)]
pub struct Series {
    history: History,
    recent: Mutex<RecentLines>,
}

#[derive(Debug, Default)]
struct RecentLines {
    /// Points of the last minutes, oldest first. Percentiles are here once somebody asked for them.
    lines: HashMap<String, Vec<Option<f64>>>,
    read_at: Option<Millis>,
    looked_at: Option<Millis>,
}

impl Series {
    /// The history of an installation.
    pub(crate) fn new(store: &Store) -> Series {
        let keys = HistoryKeys { series: keys::history_series, chunk: keys::history_chunk };
        Series { history: History::new(store, keys), recent: Mutex::default() }
    }

    /// The history in the store.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The last five minutes of a line, oldest first, a point every five seconds; `None` where there is no
    /// sample. For tiles; charts read the history themselves.
    pub fn line(&self, name: &str) -> Vec<Option<f64>> {
        let mut recent = self.recent.lock();
        recent.looked_at = recent.read_at;
        // A percentile is read from now on.
        recent.lines.entry(name.to_owned()).or_default().clone()
    }

    /// The present value of a line.
    pub fn last(&self, name: &str) -> Option<f64> {
        let line = self.line(name);
        line.iter().rev().take(PRESENT_POINTS).find_map(|point| *point)
    }

    /// Reads the last minutes when they are old. `now` reads them in any case.
    pub(crate) async fn refresh(&self, store: &Store, now: bool) -> Result<(), store::Error> {
        let at = store.now();
        let (read_at, looked_at) = {
            let recent = self.recent.lock();
            (recent.read_at, recent.looked_at)
        };
        let looked = looked_at.is_some_and(|looked_at| at.since(looked_at) < LOOKED);
        let pause = if looked { REFRESH } else { REFRESH_IDLE };
        if !now && read_at.is_some_and(|read_at| at.since(read_at) < pause) {
            return Ok(());
        }
        let mut names: Vec<String> =
            self.history.series().await?.into_iter().map(|series| series.name).collect();
        names.extend(self.recent.lock().lines.keys().filter(|name| name.contains(":p")).cloned());
        let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
        let range = self.history.read(&wanted, at - REACH, at, Some(POINT)).await?;
        let mut recent = self.recent.lock();
        recent.lines = names.into_iter().zip(range.lines).collect();
        recent.read_at = Some(at);
        Ok(())
    }
}

/// Takes samples until told to stop.
pub async fn run(app: App, cancel: CancellationToken) {
    let mut failing = false;
    loop {
        // At the beginning of each second of the store's clock, which all instances share.
        let into_second = u64::try_from(app.store().now().0.rem_euclid(1_000)).unwrap_or(0);
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(Duration::from_millis(1_010 - into_second)) => {}
        }
        match sample(&app).await {
            Ok(()) => failing = false,
            Err(error) if failing => tracing::debug!(%error, "samples not written"),
            Err(error) => {
                failing = true;
                tracing::warn!(%error, "samples not written; charts have a gap until this is over");
            }
        }
    }
}

/// Takes one sample of everything. Public to tests of services, which have a clock of their own.
pub async fn sample(app: &App) -> Result<(), store::Error> {
    let sums = app.requests().own().sums();
    let mut own = vec![
        OwnSample::count("http.requests", sums.requests),
        OwnSample::count("http.failures", sums.failures),
        OwnSample::histogram("http.latency", &sums.times),
    ];
    own.extend(
        process::resident_bytes().map(|bytes| OwnSample::level("process.memory", float(bytes))),
    );
    own.extend(app.services().iter().flat_map(|open| open.running.own_samples()));
    let groups: Vec<&str> = app.services().iter().map(|open| open.service.name()).collect();
    let shared = |at: usize| {
        let app = app.clone();
        async move {
            match app.services().get(at) {
                Some(open) => open.running.samples(&app).await,
                None => Vec::new(),
            }
        }
    };
    app.series().history().tick(&own, &groups, shared).await?;
    app.series().refresh(app.store(), false).await
}

/// A count as a number of a chart.
#[expect(clippy::cast_precision_loss, reason = "charts need no more than 53 bits")]
pub fn float(number: u64) -> f64 {
    number as f64
}
