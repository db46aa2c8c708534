//! Hearing of cancellations: the running jobs of one worker that shall stop, as they are cancelled.

use std::collections::{HashMap, VecDeque};

use store::redis::AsyncCommands as _;

use crate::{
    Error, JobId, Jobs, WorkerId,
    signals::{Signal, SignalReceiver, SignalTopic},
};

/// A running job that shall stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancellation {
    /// The job.
    pub id: JobId,
    /// Token of the lease it runs under.
    pub token: u64,
    /// Its type.
    pub job_type: String,
    /// The reason that was given.
    pub reason: String,
}

/// Follows the cancellations of the jobs that one worker runs. Those from before come first; after a
/// gap in what the store publishes some may come again.
#[derive(Debug)]
pub struct Cancellations {
    jobs: Jobs,
    worker: WorkerId,
    signals: SignalReceiver,
    look: bool,
    ready: VecDeque<Cancellation>,
}

impl Jobs {
    /// Follows the cancellations of the jobs that a worker runs.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be subscribed to.
    pub async fn cancellations(&self, worker: WorkerId) -> Result<Cancellations, Error> {
        let signals = self.signals(SignalTopic::Running).await?;
        let ready = VecDeque::new();
        Ok(Cancellations { jobs: self.clone(), worker, signals, look: true, ready })
    }

    /// Returns the reason for which a running job was cancelled, if it was.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn cancel_reason(&self, id: &JobId) -> Result<Option<String>, Error> {
        Ok(self.store().clone().hget(self.keys().cancelled(), id.as_str()).await?)
    }
}

impl Cancellations {
    /// Waits for the next one; `None` when the queue is closed.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read; messages published meanwhile are lost, so subscribe again.
    pub async fn next(&mut self) -> Result<Option<Cancellation>, Error> {
        loop {
            if let Some(one) = self.ready.pop_front() {
                return Ok(Some(one));
            }
            if std::mem::take(&mut self.look) {
                let mut store = self.jobs.store().clone();
                let all: HashMap<String, String> =
                    store.hgetall(self.jobs.keys().cancelled()).await?;
                for (id, reason) in all {
                    self.add(&id, reason).await?;
                }
                continue;
            }
            match self.signals.recv().await {
                Signal::Job(id) => {
                    let mut store = self.jobs.store().clone();
                    let reason: Option<String> =
                        store.hget(self.jobs.keys().cancelled(), &*id).await?;
                    if let Some(reason) = reason {
                        self.add(&id, reason).await?;
                    }
                }
                Signal::Gap => self.look = true,
                Signal::Closed => return Ok(None),
                _ => {}
            }
        }
    }

    /// Takes a cancelled job in if it is this worker's.
    async fn add(&mut self, id: &str, reason: String) -> Result<(), Error> {
        let mut store = self.jobs.store().clone();
        let claim: Option<String> = store.hget(self.jobs.keys().claims(), id).await?;
        // token worker type
        let mut parts = claim.as_deref().unwrap_or_default().splitn(3, ' ');
        let (token, worker, job_type) = (parts.next(), parts.next(), parts.next());
        if let (Some(Ok(token)), Some(worker), Some(job_type), Ok(id)) =
            (token.map(str::parse), worker, job_type, JobId::parse(id))
            && worker == self.worker.as_str()
        {
            self.ready.push_back(Cancellation { id, token, job_type: job_type.to_owned(), reason });
        }
        Ok(())
    }
}
