//! A reserve of file descriptors, so that a client can be told that there are none left.
//!
//! Without one, `accept` fails and connections stay in the kernel's queue: their clients hang until
//! they give up. A descriptor of the reserve is closed for each of them, used for a short answer,
//! and opened again.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// Clients that can be told at the same time.
const RESERVE_FILES: usize = 16;
/// Interval at which the log may say that there are none left.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// Delay when the reserve is used up.
const PAUSE: Duration = Duration::from_millis(20);

/// The reserve. A cheap clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Reserve(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    files: Vec<File>,
    /// Clients refused since the log last said so.
    refused: u64,
    reported: Option<Instant>,
}

/// Tells whether the process, or the system, has no descriptor left.
pub(super) fn is_out_of_files(error: &io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

impl Reserve {
    /// Opens what is missing of the reserve, as far as the system lets it.
    pub(super) fn fill(&self) {
        let mut inner = self.0.lock();
        while inner.files.len() < RESERVE_FILES {
            let Ok(file) = File::open("/dev/null") else { return };
            inner.files.push(file);
        }
    }

    /// Accepts a connection with a descriptor of the reserve; [`Reserve::fill`] after its end.
    pub(super) async fn accept(&self, listener: &TcpListener) -> Option<TcpStream> {
        self.report();
        let file = self.0.lock().files.pop();
        if file.is_none() {
            tokio::time::sleep(PAUSE).await;
            self.fill();
            return None;
        }
        drop(file);
        match tokio::time::timeout(PAUSE, listener.accept()).await {
            Ok(Ok((stream, _))) => {
                self.0.lock().refused += 1;
                Some(stream)
            }
            // Somebody else took the descriptor, or nobody waits any more.
            _ => {
                self.fill();
                None
            }
        }
    }

    fn report(&self) {
        let mut inner = self.0.lock();
        if inner.reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY) {
            tracing::warn!(
                refused = inner.refused,
                "no file descriptor left; new connections get 503; raise the limit (LimitNOFILE, \
                 ulimit -n), `tidegate doctor` shows it"
            );
            inner.reported = Some(Instant::now());
            inner.refused = 0;
        }
    }
}
