//! Pub/sub signals of the queue: one subscription, shared by all listeners in the process.
//!
//! One subscription per queue handle feeds those who listen for work and for jobs that shall stop, a
//! second one those who wait for the end of a job: it is opened when somebody does, because a worker
//! would hear of every job that anybody has done. A listener that is too slow, and every listener
//! after a reconnect, is told of the gap and looks at the data instead.

use std::sync::Arc;

use store::{Key, PubsubMessage};
use tokio::sync::broadcast;
use tokio_util::task::AbortOnDropHandle;

use crate::{Error, Jobs};

/// Most signals a listener may lag behind.
const BEHIND: usize = 4_096;

/// Before the id of a job whose progress changed, which nobody here listens for.
pub(crate) const PROGRESS: &str = "progress ";

/// A topic to listen to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalTopic {
    /// Waiting jobs, and jobs put off.
    Line,
    /// Jobs that shall stop.
    Running,
    /// Jobs that have ended.
    Ended,
}

/// A published signal.
#[derive(Clone, Debug)]
pub(crate) enum Signal {
    /// A lane of this pool and type has got its first job.
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
    /// Parses a message of a channel; `None` if it is unknown.
    fn read(about: SignalTopic, text: &str) -> Option<Self> {
        Some(match (about, text) {
            (SignalTopic::Line, "free") => Self::Free,
            (SignalTopic::Line, "later") => Self::Later,
            (SignalTopic::Line, lane) => Self::Lane(lane.into()),
            (SignalTopic::Ended, ids) => Self::Done(ids.into()),
            (SignalTopic::Running, text) if text.starts_with(PROGRESS) => return None,
            (SignalTopic::Running, id) => Self::Job(id.into()),
        })
    }
}

/// A subscription, and those who listen to each of its channels.
#[derive(Debug)]
pub(crate) struct SignalHub {
    topics: Vec<TopicChannel>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Clone, Debug)]
struct TopicChannel {
    about: SignalTopic,
    channel: Key,
    sender: broadcast::Sender<Signal>,
}

impl TopicChannel {
    fn tell(&self, signal: Signal) {
        // Nobody listens at the moment: nothing to do.
        let _ = self.sender.send(signal);
    }
}

/// One listener.
#[derive(Debug)]
pub(crate) struct SignalReceiver(broadcast::Receiver<Signal>);

impl SignalReceiver {
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
    pub(crate) async fn signals(&self, about: SignalTopic) -> Result<SignalReceiver, Error> {
        let (hub, all): (_, &[SignalTopic]) = match about {
            SignalTopic::Line | SignalTopic::Running => {
                (&self.inner.hub, &[SignalTopic::Line, SignalTopic::Running])
            }
            SignalTopic::Ended => (&self.inner.ends, &[SignalTopic::Ended]),
        };
        let hub = hub.get_or_try_init(|| self.open_hub(all)).await?;
        let topic = hub.topics.iter().find(|topic| topic.about == about);
        let topic = topic.ok_or_else(|| Error::invalid("nobody listens to this channel"))?;
        Ok(SignalReceiver(topic.sender.subscribe()))
    }

    async fn open_hub(&self, all: &[SignalTopic]) -> Result<SignalHub, Error> {
        let keys = self.keys();
        let topic = |about: &SignalTopic| TopicChannel {
            about: *about,
            channel: match about {
                SignalTopic::Line => keys.wake(),
                SignalTopic::Running => keys.signal(),
                SignalTopic::Ended => keys.done(),
            },
            sender: broadcast::channel(BEHIND).0,
        };
        let topics: Vec<TopicChannel> = all.iter().map(topic).collect();
        let channels: Vec<&str> = topics.iter().map(|topic| topic.channel.as_str()).collect();
        let mut subscription = self.store().subscribe(&channels, &[]).await?;
        let tell = topics.clone();
        let task = tokio::spawn(async move {
            while let Some(message) = subscription.recv().await {
                match message {
                    PubsubMessage::Gap => tell.iter().for_each(|topic| topic.tell(Signal::Gap)),
                    PubsubMessage::Published { channel, payload, .. } => {
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
        Ok(SignalHub { topics, _task: AbortOnDropHandle::new(task) })
    }
}
