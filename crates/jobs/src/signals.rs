//! What is published about the queue, shared by everyone in the process who listens.
//!
//! One subscription per queue handle feeds those who listen for work and for jobs that shall stop, a
//! second one those who wait for the end of a job: it is opened when somebody does, because a worker
//! would hear of every job that anybody has done. A listener that is too slow, and every listener
//! after a reconnect, is told of the gap and looks at the data instead.

use std::sync::Arc;

use store::{Key, Message};
use tokio::sync::broadcast;
use tokio_util::task::AbortOnDropHandle;

use crate::{Error, Jobs};

/// How many signals a listener may be behind.
const BEHIND: usize = 4_096;

/// Before the id of a job whose progress changed, which nobody here listens for.
pub(crate) const PROGRESS: &str = "progress ";

/// What one listens for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// Jobs in line, and jobs put off.
    Line,
    /// Jobs that shall stop.
    Running,
    /// Jobs that have ended.
    Ended,
}

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
    /// This job shall stop.
    Job(Arc<str>),
    /// Something may have been missed.
    Gap,
    /// Nothing more will come.
    Closed,
}

impl Signal {
    /// What a text on a channel means; `None` if it means nothing here.
    fn read(about: About, text: &str) -> Option<Self> {
        Some(match (about, text) {
            (About::Line, "free") => Self::Free,
            (About::Line, "later") => Self::Later,
            (About::Line, route) => Self::Lane(route.into()),
            (About::Ended, ids) => Self::Done(ids.into()),
            (About::Running, text) if text.starts_with(PROGRESS) => return None,
            (About::Running, id) => Self::Job(id.into()),
        })
    }
}

/// A subscription, and those who listen to each of its channels.
#[derive(Debug)]
pub(crate) struct Hub {
    topics: Vec<Topic>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Clone, Debug)]
struct Topic {
    about: About,
    channel: Key,
    sender: broadcast::Sender<Signal>,
}

impl Topic {
    fn tell(&self, signal: Signal) {
        // Nobody listens at the moment: nothing to do.
        let _ = self.sender.send(signal);
    }
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
    pub(crate) async fn signals(&self, about: About) -> Result<Signals, Error> {
        let (hub, all): (_, &[About]) = match about {
            About::Line | About::Running => (&self.inner.hub, &[About::Line, About::Running]),
            About::Ended => (&self.inner.ends, &[About::Ended]),
        };
        let hub = hub.get_or_try_init(|| self.open_hub(all)).await?;
        let topic = hub.topics.iter().find(|topic| topic.about == about);
        let topic = topic.ok_or_else(|| Error::invalid("nobody listens to this channel"))?;
        Ok(Signals(topic.sender.subscribe()))
    }

    async fn open_hub(&self, all: &[About]) -> Result<Hub, Error> {
        let keys = self.keys();
        let topic = |about: &About| Topic {
            about: *about,
            channel: match about {
                About::Line => keys.wake(),
                About::Running => keys.signal(),
                About::Ended => keys.done(),
            },
            sender: broadcast::channel(BEHIND).0,
        };
        let topics: Vec<Topic> = all.iter().map(topic).collect();
        let channels: Vec<&str> = topics.iter().map(|topic| topic.channel.as_str()).collect();
        let mut subscription = self.store().subscribe(&channels, &[]).await?;
        let tell = topics.clone();
        let task = tokio::spawn(async move {
            while let Some(message) = subscription.recv().await {
                match message {
                    Message::Gap => tell.iter().for_each(|topic| topic.tell(Signal::Gap)),
                    Message::Published { channel, payload, .. } => {
                        let topic = tell.iter().find(|topic| topic.channel.as_str() == channel);
                        if let Some(topic) = topic
                            && let Some(signal) =
                                Signal::read(topic.about, &String::from_utf8_lossy(&payload))
                        {
                            topic.tell(signal);
                        }
                    }
                }
            }
        });
        Ok(Hub { topics, _task: AbortOnDropHandle::new(task) })
    }
}
