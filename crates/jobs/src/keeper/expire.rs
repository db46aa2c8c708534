//! Jobs that were not started in time.

use store::redis::AsyncCommands as _;

use super::Keeper;
use crate::{Error, JobId, claim::expired};

/// How many jobs one round ends.
const BATCH: isize = 200;

impl Keeper {
    /// Ends jobs that are past their time and have not started. What runs is left to run.
    pub(super) async fn expire(&self) -> Result<usize, Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let now = self.jobs.now();
        let ids: Vec<String> =
            store.zrangebyscore_limit(keys.expiring(), "-inf", now.0, 0, BATCH).await?;
        let mut ended = 0;
        for id in ids {
            let id = JobId::stored(id);
            let reply = self.jobs.end_unstarted(&id, expired(), "expired").await?;
            match reply.first().map_or("", String::as_str) {
                "ended" | "settled" => ended += 1,
                "missing" => {
                    let () = store.zrem(keys.expiring(), id.as_str()).await?;
                }
                _ => {}
            }
            self.jobs.settle_if(&reply).await;
        }
        Ok(ended)
    }
}
