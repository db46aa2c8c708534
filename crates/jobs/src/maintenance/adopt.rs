//! Repairs jobs that v1 clients left incomplete, found by a slow scan through the keys.
//!
//! A v1 producer that dies between two of its commands leaves a job that is stored and nowhere in
//! line; one that is slow writes `waiting` over the status of a job that has ended long since; and
//! v1 never forgets anything. The walk looks at a few keys each round, so that it costs nothing
//! that would be noticed.

use store::{Layout, redis};

use super::JobsMaintenance;
use crate::{
    Error, Job, JobId, JobResult,
    lanes::{LaneRef, Lanes},
    scripts,
};

/// Number of keys one round looks at.
const COUNT: usize = 100;

impl JobsMaintenance {
    /// Returns how many jobs were put right.
    pub(super) async fn adopt(&self) -> Result<usize, Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let prefix = keys.data("").to_string();
        let cursor = self.memory.lock().scan_cursor;
        let pattern = format!("{}*", escape(&prefix));
        let (next, found): (u64, Vec<Vec<u8>>) = match store.layout() {
            Layout::Standalone => {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(COUNT);
                scan.query_async(&mut store).await?
            }
            // In a cluster a command without keys may go to any server.
            Layout::Cluster => {
                let (_, next, found): (String, _, _) = scripts::scan_jobs::run(
                    self.jobs.store(),
                    scripts::scan_jobs::Keys { waiting: keys.waiting() },
                    scripts::scan_jobs::Args { cursor, pattern, count: COUNT },
                )
                .await?;
                (next, found)
            }
        };
        self.memory.lock().scan_cursor = next;
        let ids: Vec<String> = found
            .into_iter()
            .filter_map(|key| String::from_utf8(key).ok())
            .filter_map(|key| key.strip_prefix(&prefix).map(str::to_owned))
            .collect();
        if ids.is_empty() {
            return Ok(0);
        }
        let mut pipe = redis::pipe();
        for id in &ids {
            pipe.get(keys.status(id));
        }
        let statuses: Vec<Option<String>> = pipe.query_async(&mut store).await?;
        let mut adopted = 0;
        for (id, status) in ids.iter().zip(statuses) {
            if matches!(status.as_deref(), None | Some("waiting" | "completed")) {
                adopted += usize::from(self.adopt_one(id, status.as_deref()).await?);
            }
        }
        Ok(adopted)
    }

    async fn adopt_one(&self, id: &str, status: Option<&str>) -> Result<bool, Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let (data, result): (Option<Vec<u8>>, Option<Vec<u8>>) =
            redis::pipe().get(keys.data(id)).get(keys.result(id)).query_async(&mut store).await?;
        let Some(data) = data else { return Ok(false) };
        let Ok(job) = Job::parse(JobId::stored(id), &data) else { return Ok(false) };
        let result =
            result.map(|result| serde_json::from_slice::<JobResult>(&result).map(|r| r.success));
        let now = self.jobs.now();
        let aged = |age| now.since(job.created_at) >= age;
        let case = match (status, result) {
            (None, None) if aged(self.jobs.config().limbo) => "lost",
            (None | Some("waiting"), Some(Ok(true))) => "late",
            (Some("completed"), None) if aged(self.jobs.config().keep_finished_for) => "old",
            _ => return Ok(false),
        };
        let place = LaneRef::of(&job);
        let (lane_keys, lane) = Lanes::one(keys, &place).into_parts();
        let reply: Vec<String> = scripts::adopt::run(
            self.jobs.store(),
            scripts::adopt::Keys {
                waiting: keys.waiting(),
                index: keys.index(),
                unindexed: keys.unindexed(),
                delayed: keys.delayed(),
                cron: keys.cron(),
                active: keys.active(),
                finished: keys.finished(),
                events: keys.events(),
                data: keys.data(id),
                status: keys.status(id),
                lock: keys.lock(id),
                result: keys.result(id),
                keys: lane_keys,
            },
            scripts::adopt::Args {
                now_ms: now,
                wake: keys.wake(),
                events_max: self.jobs.config().events_max,
                id,
                case,
                place: if job.priority.is_high() { "front" } else { "back" },
                body: data,
                lane,
            },
        )
        .await?;
        let adopted = reply.first().is_some_and(|word| word != "fine");
        if adopted {
            tracing::info!(job = %id, case, "repaired a job that a v1 producer left incomplete");
        }
        Ok(adopted)
    }
}

/// A text as a pattern that matches only itself.
fn escape(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for letter in text.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}
