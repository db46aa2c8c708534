//! Signals: SIGTERM and Ctrl-C stop the server in order, a second one at once; SIGHUP reads the configuration again.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use web::cli::{Failure, Outcome};

/// The signals.
#[derive(Debug)]
pub(crate) struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl ShutdownSignals {
    /// Starts to listen.
    pub(crate) fn new() -> Outcome<ShutdownSignals> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| Failure::failed(format!("cannot listen to signals: {error}")))
        };
        Ok(ShutdownSignals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Calls `reload` on each SIGHUP and cancels `stop` on the first request to stop. A second
    /// request ends the process there and then.
    pub(crate) async fn watch(mut self, stop: CancellationToken, mut reload: impl FnMut()) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => break,
                _ = self.interrupt.recv() => break,
                _ = self.hangup.recv() => reload(),
                () = stop.cancelled() => return,
            }
        }
        tracing::info!("stopping; a second signal stops at once");
        stop.cancel();
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        tracing::warn!("stopped at once");
        std::process::exit(1);
    }
}
