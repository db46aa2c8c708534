//! Jobs that were not started in time, and jobs that must not start again.

use store::redis::{self, AsyncCommands as _};

use super::JobsMaintenance;
use crate::{Error, JobId, claim::expired, fail::cancelled};

/// Most jobs one round ends.
const BATCH: isize = 200;

impl JobsMaintenance {
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
            match reply.as_str() {
                "ended" => ended += 1,
                "missing" => {
                    let () = store.zrem(keys.expiring(), id.as_str()).await?;
                }
                _ => {}
            }
        }
        Ok(ended)
    }

    /// Ends jobs that were cancelled while a v1 worker ran them, once that worker has given them
    /// back, and forgets marks of jobs that have ended.
    pub(super) async fn end_marked(&self) -> Result<usize, Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let cursor = self.memory.lock().marks_cursor;
        let (next, marks): (u64, Vec<(String, String)>) = redis::cmd("HSCAN")
            .arg(keys.cancelled())
            .arg(cursor)
            .arg("COUNT")
            .arg(BATCH)
            .query_async(&mut store)
            .await?;
        self.memory.lock().marks_cursor = next;
        let mut ended = 0;
        for (id, reason) in marks {
            let held: bool = store.hexists(keys.claims(), &id).await?;
            if held {
                continue;
            }
            let id = JobId::stored(id);
            match self.jobs.end_unstarted(&id, cancelled(&reason), "cancelled").await?.as_str() {
                "ended" => ended += 1,
                "held" => {}
                _ => {
                    let () = store.hdel(keys.cancelled(), id.as_str()).await?;
                }
            }
        }
        Ok(ended)
    }
}
