//! Waiting for the end of a job, and for jobs to come.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    ClaimBatch, Claimer, Error, JobId, JobResult, Jobs, Status,
    signals::{Signal, SignalReceiver, SignalTopic},
};

/// Poll interval for changes that v1 clients make without publishing.
const LOOK: Duration = Duration::from_secs(1);

impl Jobs {
    /// Waits until a job has ended, and gives its result. Told by the store, not by asking again
    /// and again; only the end of a job that a v1 worker ran is found by a look each second.
    ///
    /// Fails with [`Error::TimedOut`] when it has not ended in time.
    ///
    /// ```no_run
    /// # async fn example(jobs: tidegate_jobs::Jobs) -> anyhow::Result<()> {
    /// use std::time::Duration;
    /// use tidegate_jobs::NewJob;
    ///
    /// let id = jobs.dispatch(NewJob::new("resize", &"a.png")?).await?.id;
    /// if let (status, Some(result)) = jobs.wait(&id, Duration::from_secs(30)).await? {
    ///     match result.success {
    ///         true => println!("{} bytes", result.data_as::<u64>()?),
    ///         false => println!("{status}: {}", result.error.unwrap_or_default().message),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn wait(
        &self,
        id: &JobId,
        timeout: Duration,
    ) -> Result<(Status, Option<JobResult>), Error> {
        let until = Instant::now() + timeout;
        let deadline = self.now() + timeout;
        let mut signals = self.signals(SignalTopic::Ended).await?;
        loop {
            match self.status(id).await? {
                Some(status) if status.is_final() => return Ok((status, self.result(id).await?)),
                None if self.get(id).await?.is_none() => return Err(Error::NotFound(id.clone())),
                _ => {}
            }
            let look = until.min(Instant::now() + LOOK);
            tokio::select! {
                () = tokio::time::sleep_until(look) => {
                    if look == until {
                        return Err(Error::TimedOut(deadline));
                    }
                }
                () = ended(&mut signals, id) => {}
            }
        }
    }
}

async fn ended(signals: &mut SignalReceiver, id: &JobId) {
    loop {
        match signals.recv().await {
            Signal::Done(ids) if ids.lines().any(|ended| id == ended) => return,
            Signal::Gap => return,
            Signal::Closed => std::future::pending().await,
            _ => {}
        }
    }
}

impl Claimer {
    /// Takes the next jobs, waiting up to `wait` for the first.
    pub async fn claim_wait(
        &mut self,
        most: usize,
        lease: Duration,
        wait: Duration,
    ) -> Result<ClaimBatch, Error> {
        let until = Instant::now() + wait;
        let mut signals = self.jobs().signals(SignalTopic::Line).await?;
        loop {
            let claimed = self.claim_for(most, lease).await?;
            if !claimed.leases.is_empty() || Instant::now() >= until {
                return Ok(claimed);
            }
            if claimed.more {
                continue;
            }
            let look = claimed.wait.unwrap_or(LOOK).min(LOOK);
            let look = until.min(Instant::now() + look);
            tokio::select! {
                () = tokio::time::sleep_until(look) => {}
                () = self.called(&mut signals) => {}
            }
        }
    }

    /// Waits until there may be something to claim.
    pub(crate) async fn called(&self, signals: &mut SignalReceiver) {
        loop {
            match signals.recv().await {
                Signal::Lane(lane) if self.may_claim(&lane) => return,
                Signal::Free | Signal::Gap => return,
                Signal::Closed => std::future::pending().await,
                _ => {}
            }
        }
    }
}
