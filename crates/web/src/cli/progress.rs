//! A bar for work that takes longer than a moment, for people at a terminal. Nobody else sees it.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Output;

/// Work that is done by then needs no bar.
const A_MOMENT: Duration = Duration::from_millis(400);
/// Interval at which the bar is drawn.
const EVERY: Duration = Duration::from_millis(100);

/// The shapes of bars.
const BYTES: &str = "{prefix} [{bar:30}] {bytes} of {total_bytes}, {eta} left";
const KEYS: &str = "{prefix} [{bar:30}] {human_pos} of {human_len} keys, {eta} left";

/// A bar; gone when dropped.
#[derive(Debug)]
pub struct Progress {
    drawing: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Shows how many of `total` bytes are done while work goes on elsewhere.
    pub fn of_bytes(
        output: &Output,
        what: &'static str,
        total: u64,
        done: impl Fn() -> u64 + Send + 'static,
    ) -> Progress {
        Self::draw(output, what, BYTES, move || (done(), total))
    }

    /// Shows how many keys are done, of how many, while work goes on elsewhere.
    pub fn of_keys(
        output: &Output,
        what: &'static str,
        counts: impl Fn() -> (u64, u64) + Send + 'static,
    ) -> Progress {
        Self::draw(output, what, KEYS, counts)
    }

    fn draw(
        output: &Output,
        what: &'static str,
        shape: &'static str,
        counts: impl Fn() -> (u64, u64) + Send + 'static,
    ) -> Progress {
        if !output.shows_progress() || !io::stderr().is_terminal() {
            return Progress { drawing: None };
        }
        let (stop, stopped) = mpsc::channel();
        let drawing = std::thread::spawn(move || {
            let mut wait = A_MOMENT;
            let mut bar = None;
            while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                let (done, total) = counts();
                let bar = bar.get_or_insert_with(|| new_bar(what, shape, total));
                bar.set_length(total);
                bar.set_position(done.min(total));
                wait = EVERY;
            }
            if let Some(bar) = bar {
                bar.finish_and_clear();
            }
        });
        Progress { drawing: Some((stop, drawing)) }
    }
}

fn new_bar(what: &'static str, shape: &str, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    // The shape is a constant; should it ever be wrong, the plain bar will do.
    let style =
        ProgressStyle::with_template(shape).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.progress_chars("=> "));
    bar.set_prefix(what);
    bar
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((stop, drawing)) = self.drawing.take() {
            // Either end may be gone already, which is an end too.
            let _ = stop.send(());
            let _ = drawing.join();
        }
    }
}

/// Bytes of the files in a folder.
pub fn size_of(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).filter(|m| m.is_file()).map(|m| m.len()).sum()
}
