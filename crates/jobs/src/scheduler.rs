//! The scheduler: moves due jobs to the waiting list.
//!
//! [`Scheduler::tick`] does one round and says when the next is due; [`Scheduler::run`] does rounds
//! until it is told to stop. Any number of schedulers may run; one leads, and even two at once put
//! nothing in line twice.

mod cron;
mod promote;

use std::time::Duration;

use store::Millis;
use tokio_util::sync::CancellationToken;

use crate::{
    Error, Jobs, Leader,
    signals::{Signal, SignalReceiver, SignalTopic},
};

/// Longest sleep of a leader. A job that v1 delays is noticed after this.
const PAUSE: Duration = Duration::from_secs(1);

/// Interval at which a follower tries to become the leader.
const FOLLOW: Duration = Duration::from_secs(1);

/// Moves due jobs to the waiting list.
#[derive(Clone, Debug)]
pub struct Scheduler {
    pub(crate) jobs: Jobs,
}

/// The result of one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    /// Jobs put in line whose delay was over.
    pub promoted: usize,
    /// Occurrences of schedules put in line.
    pub occurred: usize,
    /// Time at which something comes due next, as far as is known.
    pub next: Option<Millis>,
    /// There is more to do at once.
    pub more: bool,
}

impl Jobs {
    /// The scheduler of this queue.
    pub fn scheduler(&self) -> Scheduler {
        Scheduler { jobs: self.clone() }
    }
}

impl Scheduler {
    /// One round.
    pub async fn tick(&self) -> Result<Tick, Error> {
        let (promoted, more_delayed) = self.promote().await?;
        let (occurred, more_cron) = self.occur().await?;
        let next = self.next_due().await?;
        Ok(Tick { promoted, occurred, next, more: more_delayed || more_cron })
    }

    /// Rounds while this process leads, until it is told to stop.
    pub async fn run(&self, leader: &Leader, cancel: CancellationToken) {
        let mut signals = self.jobs.signals(SignalTopic::Line).await.ok();
        while !cancel.is_cancelled() {
            let pause = match self.round(leader).await {
                Ok(pause) => pause,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "scheduler round failed");
                    PAUSE
                }
            };
            if pause.is_zero() {
                continue;
            }
            if signals.is_none() {
                signals = self.jobs.signals(SignalTopic::Line).await.ok();
            }
            tokio::select! {
                () = cancel.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
                () = earlier(&mut signals) => {}
            }
        }
        // The lock runs out by itself if this does not arrive.
        if let Err(error) = leader.resign().await {
            tracing::debug!(%error, "scheduler lock not given back");
        }
    }

    async fn round(&self, leader: &Leader) -> Result<Duration, Error> {
        if !leader.elect().await? {
            return Ok(FOLLOW);
        }
        let tick = self.tick().await?;
        Ok(match tick.next {
            _ if tick.more => Duration::ZERO,
            Some(next) => next.since(self.jobs.now()).clamp(Duration::from_millis(1), PAUSE),
            None => PAUSE,
        })
    }
}

/// Waits until something was put off that may be due earlier than what is known.
async fn earlier(signals: &mut Option<SignalReceiver>) {
    match signals {
        None => std::future::pending().await,
        Some(signals) => loop {
            match signals.recv().await {
                Signal::Later | Signal::Gap => return,
                Signal::Closed => std::future::pending().await,
                _ => {}
            }
        },
    }
}
