//! Ended jobs that nobody needs any more, by age and by number.

use store::{
    Millis,
    redis::{self, AsyncCommands as _},
    script::Arg,
};

use super::JobsMaintenance;
use crate::{Error, FailedAttempt, scripts};

/// Most jobs one call removes, and calls in one round.
const BATCH: usize = 200;
const CALLS: usize = 25;

impl JobsMaintenance {
    /// Forgets ended jobs and dead letters that are too old or too many.
    pub(super) async fn trim(&self) -> Result<usize, Error> {
        let mut removed = 0;
        for _ in 0..CALLS {
            let batch = self.old_finished().await?;
            if batch.is_empty() {
                break;
            }
            removed += self.remove("finished", batch).await?;
        }
        for _ in 0..CALLS {
            let batch = self.old_dead().await?;
            if batch.is_empty() {
                break;
            }
            removed += self.remove("deadletter", batch).await?;
        }
        Ok(removed)
    }

    /// The oldest ended jobs that have to go: id and entry.
    async fn old_finished(&self) -> Result<Vec<(String, String)>, Error> {
        let (keys, config) = (self.jobs.keys(), self.jobs.config());
        let mut store = self.jobs.store().clone();
        let (length, oldest): (usize, Vec<String>) = redis::pipe()
            .llen(keys.finished())
            .lrange(keys.finished(), -(BATCH as isize), -1)
            .query_async(&mut store)
            .await?;
        let surplus = length.saturating_sub(config.keep_finished);
        let before = self.jobs.now() - config.keep_finished_for;
        // Oldest first, from the end of the list.
        let old = oldest.into_iter().rev().enumerate().map_while(|(at, entry)| {
            let (time, id) = entry.split_once(' ').unwrap_or(("0", &entry));
            let time = Millis(time.parse().unwrap_or(0));
            (at < surplus || time <= before).then(|| (id.to_owned(), entry.clone()))
        });
        Ok(old.collect())
    }

    /// The oldest dead letters that have to go.
    async fn old_dead(&self) -> Result<Vec<(String, String)>, Error> {
        let (keys, config) = (self.jobs.keys(), self.jobs.config());
        let mut store = self.jobs.store().clone();
        let (length, oldest): (usize, Vec<String>) = redis::pipe()
            .llen(keys.deadletter())
            .lrange(keys.deadletter(), -50, -1)
            .query_async(&mut store)
            .await?;
        let surplus = length.saturating_sub(config.keep_dead);
        let before = self.jobs.now() - config.keep_dead_for;
        let mut old = Vec::new();
        for (at, id) in oldest.into_iter().rev().enumerate() {
            let gone = at < surplus || {
                let last: Option<Vec<u8>> = store.lindex(keys.history(&id), -1).await?;
                let last =
                    last.and_then(|last| serde_json::from_slice::<FailedAttempt>(&last).ok());
                match last {
                    Some(last) => Millis(last.at) <= before,
                    // Without a history: dead as long as its data says it exists.
                    None => {
                        let job = self.jobs.get(&crate::JobId::stored(id.as_str())).await;
                        job.ok().flatten().is_some_and(|job| job.created_at <= before)
                    }
                }
            };
            if !gone {
                break;
            }
            old.push((id.clone(), id));
        }
        Ok(old)
    }

    async fn remove(&self, from: &str, batch: Vec<(String, String)>) -> Result<usize, Error> {
        let keys = self.jobs.keys();
        let count = batch.len();
        let (mut all_keys, mut rest) = (Vec::new(), Vec::new());
        for (id, entry) in batch {
            all_keys.extend(keys.of_ended(&id));
            rest.extend([Arg::String(id), Arg::String(entry)]);
        }
        let reply: Vec<String> = scripts::remove::run(
            self.jobs.store(),
            scripts::remove::Keys {
                finished: keys.finished(),
                deadletter: keys.deadletter(),
                cron: keys.cron(),
                keys: all_keys,
            },
            scripts::remove::Args { from, rest },
        )
        .await?;
        let removed = reply.iter().skip(1).filter(|word| *word == "removed").count();
        tracing::debug!(from, count, removed, "ended jobs forgotten");
        Ok(removed)
    }
}
