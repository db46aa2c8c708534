//! What is published about the queue, shared by everyone in the process who listens.
//!
//! One subscription per queue handle feeds all listeners. A listener that is too slow, and every
//! listener after a reconnect, is told of the gap and looks at the data instead.

use std::sync::Arc;

use store::Message;
use tokio::sync::broadcast;
use tokio_util::task::AbortOnDropHandle;

use crate::{Error, Jobs};

/// How many signals a listener may be behind.
const BEHIND: usize = 4_096;

/// What was published.
#[derive(Clone, Debug)]
pub(crate) enum Signal {
    /// A lane of this route has got its first job.
    Lane(Arc<str>),
    /// A place of some type is free, or a type was resumed.
    Free,
    /// Something was put off, perhaps due earlier than what was known.
    Later,
    /// These jobs have ended, one per line.
    Done(Arc<str>),
    /// This job shall stop, or its progress changed.
    Job(Arc<str>),
    /// Something may have been missed.
    Gap,
    /// Nothing more will come.
    Closed,
}

/// The subscription behind all listeners.
#[derive(Debug)]
pub(crate) struct Hub {
    sender: broadcast::Sender<Signal>,
    _task: AbortOnDropHandle<()>,
}

/// One listener.
#[derive(Debug)]
pub(crate) struct Signals(broadcast::Receiver<Signal>);

impl Signals {
    /// The next signal.
    pub(crate) async fn recv(&mut self) -> Signal {
        match self.0.recv().await {
            Ok(signal) => signal,
            Err(broadcast::error::RecvError::Lagged(_)) => Signal::Gap,
            Err(broadcast::error::RecvError::Closed) => Signal::Closed,
        }
    }
}

impl Jobs {
    /// Listens to what is published about this queue from now on.
    pub(crate) async fn signals(&self) -> Result<Signals, Error> {
        let hub = self.inner.hub.get_or_try_init(|| self.open_hub()).await?;
        Ok(Signals(hub.sender.subscribe()))
    }

    async fn open_hub(&self) -> Result<Hub, Error> {
        let keys = self.keys();
        let (wake, done, signal) = (keys.wake(), keys.done(), keys.signal());
        let channels = [wake.as_str(), done.as_str(), signal.as_str()];
        let mut subscription = self.store().subscribe(&channels, &[]).await?;
        let (sender, _) = broadcast::channel(BEHIND);
        let publish = sender.clone();
        let task = tokio::spawn(async move {
            while let Some(message) = subscription.recv().await {
                let signal = match message {
                    Message::Gap => Signal::Gap,
                    Message::Published { channel, payload, .. } => {
                        let text = String::from_utf8_lossy(&payload);
                        match text.as_ref() {
                            "free" if channel == wake.as_str() => Signal::Free,
                            "later" if channel == wake.as_str() => Signal::Later,
                            route if channel == wake.as_str() => Signal::Lane(route.into()),
                            ids if channel == done.as_str() => Signal::Done(ids.into()),
                            id => Signal::Job(id.into()),
                        }
                    }
                };
                // Nobody listens at the moment: nothing to do.
                let _ = publish.send(signal);
            }
        });
        Ok(Hub { sender, _task: AbortOnDropHandle::new(task) })
    }
}
