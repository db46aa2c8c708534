//! Queues: create, change, pause, resume, close, reset, delete.

use std::collections::HashMap;

use serde_json::{Map, Value};
use store::{Millis, redis, redis::AsyncCommands as _};

use crate::{
    AdmissionRate, EndReason, Error, PositionId, QueueConfig, QueueId, QueueStatus, Room,
    SessionEnd, SessionId, reply::Reply, scripts, snapshot::QueueSnapshot,
};

/// A queue as an operator sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    /// Its name.
    pub id: QueueId,
    /// Its settings.
    pub config: QueueConfig,
    /// Its status.
    pub status: QueueStatus,
    /// Grows with every change; give it to [`Room::change_queue`] to detect a change in between.
    pub version: u64,
    /// Time of creation, in whole seconds.
    pub created: Millis,
    /// Time of the last change, in whole seconds.
    pub updated: Millis,
    /// Number of waiting positions.
    pub waiting: u64,
    /// Number of admitted positions whose session has not started.
    pub admitted: u64,
    /// Number of active sessions.
    pub active: u64,
    /// Admissions since the queue was created, second ones included.
    pub total_admitted: u64,
}

/// Numbers of ended positions and sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndCounts {
    /// Positions that were waiting or admitted.
    pub positions: u64,
    /// Sessions that were active.
    pub sessions: u64,
}

/// Positions or sessions ended in one round.
const BATCH: isize = 200;

impl Room {
    /// Creates a queue. Rejects settings out of bounds and a name that is taken.
    pub async fn create_queue(&self, id: &QueueId, config: QueueConfig) -> Result<Queue, Error> {
        config.check()?;
        let keys = self.queue_cache(id);
        let now = self.now();
        let mut fields = config.fields();
        fields.push(("status", QueueStatus::Active.as_str().to_owned()));
        fields.push(("version", "1".to_owned()));
        fields.push(("created_at", now.as_secs().to_string()));
        fields.push(("updated_at", now.as_secs().to_string()));
        // Listed first: a name without a queue is skipped, but a queue that is not listed would never be
        // maintained.
        let mut store = self.0.store.clone();
        redis::cmd("SADD")
            .arg(&self.0.keys.queues)
            .arg(id.as_str())
            .query_async::<()>(&mut store)
            .await?;
        let reply = scripts::create::run(
            &self.0.store,
            scripts::create::Keys {
                meta: &keys.meta,
                state: &keys.state,
                tokens: &keys.tokens,
                last_update: &keys.last_update,
                events: &keys.events,
            },
            scripts::create::Args {
                now_ms: now,
                burst: if config.admission.count == 0 { 0 } else { config.admission.burst },
                request_id: SessionId::fresh().to_string(),
                fields: fields.into_iter().flat_map(|(name, value)| [name.to_owned(), value]),
            },
        )
        .await?;
        let reply = Reply::of(scripts::create::SCRIPT, reply)?;
        match reply.word() {
            "created" => self.queue(id).await,
            "exists" => Err(Error::QueueExists),
            _ => Err(reply.unexpected()),
        }
    }

    /// Returns a queue.
    pub async fn queue(&self, id: &QueueId) -> Result<Queue, Error> {
        let snapshot = self.read_snapshot(id).await?;
        Ok(view(id, &snapshot))
    }

    /// Returns a queue as it was within the last second; for checks made with every request.
    pub async fn cached_queue(&self, id: &QueueId) -> Result<Queue, Error> {
        let snapshot = self.snapshot(id).await?;
        Ok(view(id, &snapshot))
    }

    /// Returns all queues, by name.
    pub async fn queues(&self) -> Result<Vec<Queue>, Error> {
        let mut queues = Vec::new();
        for id in self.queue_ids().await? {
            match self.queue(&id).await {
                Ok(queue) => queues.push(queue),
                Err(Error::UnknownQueue) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(queues)
    }

    /// Returns the names of all queues, in order. A listed queue may just be being created or deleted.
    pub async fn queue_ids(&self) -> Result<Vec<QueueId>, Error> {
        let names: Vec<String> = redis::cmd("SMEMBERS")
            .arg(&self.0.keys.queues)
            .query_async(&mut self.0.store.clone())
            .await?;
        let mut ids: Vec<QueueId> =
            names.iter().filter_map(|name| QueueId::parse(name).ok()).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Changes the settings of a queue: `edit` receives the current ones. With `version`, only if they
    /// have not changed since (compare and set); without, the change is retried on the current ones.
    ///
    /// The priority policy can change only while nobody with a priority above 0 waits.
    pub async fn change_queue(
        &self,
        id: &QueueId,
        version: Option<u64>,
        edit: impl Fn(&mut QueueConfig),
    ) -> Result<Queue, Error> {
        // Another change may win; then retry a few times.
        for _ in 0..8 {
            let snapshot = self.read_snapshot(id).await?;
            if let Some(version) = version
                && version != snapshot.version
            {
                return Err(Error::Conflict { version: snapshot.version });
            }
            let mut config = snapshot.config.clone();
            edit(&mut config);
            config.check()?;
            match self.write_config(id, &snapshot, &config).await {
                Err(Error::Conflict { .. }) if version.is_none() => {}
                Err(error) => return Err(error),
                Ok(()) => return self.queue(id).await,
            }
        }
        Err(Error::Busy)
    }

    async fn write_config(
        &self,
        id: &QueueId,
        before: &QueueSnapshot,
        config: &QueueConfig,
    ) -> Result<(), Error> {
        let old: HashMap<_, _> = before.config.fields().into_iter().collect();
        let changed: Vec<String> = config
            .fields()
            .into_iter()
            .filter(|(name, value)| old.get(name) != Some(value))
            .flat_map(|(name, value)| [name.to_owned(), value])
            .collect();
        let keys = self.queue_cache(id);
        let reply = scripts::change::run(
            &self.0.store,
            scripts::change::Keys {
                meta: &keys.meta,
                state: &keys.state,
                positions: &keys.positions,
                lane1: &keys.lanes[1],
                lane2: &keys.lanes[2],
                lane3: &keys.lanes[3],
                tokens: &keys.tokens,
                last_update: &keys.last_update,
                events: &keys.events,
            },
            scripts::change::Args {
                now_ms: self.now(),
                expected_version: before.version,
                policy: config.policy.as_str(),
                fields: changed,
            },
        )
        .await?;
        self.invalidate(id);
        let reply = Reply::of(scripts::change::SCRIPT, reply)?;
        match reply.word() {
            "changed" => Ok(()),
            "conflict" => Err(Error::Conflict { version: reply.number(1)? }),
            "priority_in_use" => Err(Error::PriorityInUse),
            _ => Err(reply.unexpected()),
        }
    }

    /// Changes the rate of admission.
    pub async fn set_rate(&self, id: &QueueId, rate: AdmissionRate) -> Result<Queue, Error> {
        self.change_queue(id, None, |config| config.admission = rate).await
    }

    /// Sets the message to waiting visitors, by language tag; an empty map removes it.
    pub async fn set_message(
        &self,
        id: &QueueId,
        message: Map<String, Value>,
    ) -> Result<Queue, Error> {
        self.change_queue(id, None, |config| config.message = message.clone()).await
    }

    /// Stops admissions. Positions are kept and clocks stand still. Idempotent.
    pub async fn pause_queue(&self, id: &QueueId) -> Result<Queue, Error> {
        self.set_status(id, QueueStatus::Paused.as_str()).await?;
        self.queue(id).await
    }

    /// Resumes admissions. Idempotent.
    pub async fn resume_queue(&self, id: &QueueId) -> Result<Queue, Error> {
        self.set_status(id, QueueStatus::Active.as_str()).await?;
        self.queue(id).await
    }

    /// Closes a queue to newcomers as well. Positions are kept and clocks stand still.
    pub async fn close_queue(&self, id: &QueueId) -> Result<Queue, Error> {
        self.set_status(id, QueueStatus::Maintenance.as_str()).await?;
        self.queue(id).await
    }

    async fn set_status(&self, id: &QueueId, status: &str) -> Result<(), Error> {
        let keys = self.queue_cache(id);
        let reply = scripts::set_status::run(
            &self.0.store,
            scripts::set_status::Keys {
                meta: &keys.meta,
                state: &keys.state,
                tokens: &keys.tokens,
                last_update: &keys.last_update,
                events: &keys.events,
            },
            scripts::set_status::Args { now_ms: self.now(), status },
        )
        .await?;
        self.invalidate(id);
        let reply = Reply::of(scripts::set_status::SCRIPT, reply)?;
        match reply.word() {
            "changed" | "same" => Ok(()),
            _ => Err(reply.unexpected()),
        }
    }

    /// Ends every position and session of a queue, in rounds; tokens issued before are revoked. The
    /// queue keeps its settings. Visitors who enqueue meanwhile may be ended as well.
    pub async fn reset_queue(&self, id: &QueueId) -> Result<EndCounts, Error> {
        self.read_snapshot(id).await?;
        let keys = self.queue_cache(id);
        redis::cmd("HINCRBY")
            .arg(&keys.state)
            .arg("epoch")
            .arg(1)
            .query_async::<()>(&mut self.0.store.clone())
            .await?;
        self.invalidate(id);
        let ended = self.end_all(id).await?;
        tracing::info!(queue = %id, positions = ended.positions, sessions = ended.sessions, "queue reset");
        Ok(ended)
    }

    /// Revokes every active session, in rounds. Waiting and admitted positions stay.
    pub async fn terminate_all(&self, id: &QueueId) -> Result<EndCounts, Error> {
        self.read_snapshot(id).await?;
        let keys = self.queue_cache(id);
        let mut store = self.0.store.clone();
        let mut ended = EndCounts::default();
        // Sessions that start meanwhile are not meant.
        let running: u64 = store.zcard(&keys.deadlines).await?;
        while ended.sessions < running {
            let most = BATCH.min(isize::try_from(running - ended.sessions).unwrap_or(BATCH));
            let sessions: Vec<String> = store.zrange(&keys.deadlines, 0, most - 1).await?;
            if sessions.is_empty() {
                break;
            }
            ended.sessions += self.end_sessions(id, &sessions, SessionEnd::Revoke).await?;
        }
        tracing::info!(queue = %id, sessions = ended.sessions, "all sessions ended");
        Ok(ended)
    }

    /// Ends everything in a queue and deletes it.
    pub async fn delete_queue(&self, id: &QueueId) -> Result<EndCounts, Error> {
        self.set_status(id, "deleting").await?;
        let keys = self.queue_cache(id);
        let mut ended = EndCounts::default();
        // An instance that read the queue before may still admit; a few rounds see to that.
        for _ in 0..8 {
            let round = self.end_all(id).await?;
            ended.positions += round.positions;
            ended.sessions += round.sessions;
            let now = self.now();
            let mut others: Vec<_> = keys.lanes.iter().chain(&keys.spares).cloned().collect();
            others.extend(
                [&keys.state, &keys.deadlines, &keys.tokens, &keys.last_update, &keys.events]
                    .map(Clone::clone),
            );
            others.extend((0..25).map(|h| keys.stats(&crate::hour(Millis(now.0 - h * 3_600_000)))));
            let day = |back: i64| crate::stats::day_of(Millis(now.0 - back * 86_400_000));
            others.extend((0..=crate::HISTORY_DAYS).map(|back| keys.daily_stats(&day(back))));
            let reply: Vec<String> = scripts::delete::run(
                &self.0.store,
                scripts::delete::Keys {
                    meta: &keys.meta,
                    positions: &keys.positions,
                    admitted: &keys.admitted,
                    active: &keys.active,
                    others,
                },
                scripts::delete::Args {},
            )
            .await?;
            if reply.first().is_some_and(|word| word == "deleted") {
                self.invalidate(id);
                redis::cmd("SREM")
                    .arg(&self.0.keys.queues)
                    .arg(id.as_str())
                    .query_async::<()>(&mut self.0.store.clone())
                    .await?;
                tracing::info!(queue = %id, "queue deleted");
                return Ok(ended);
            }
        }
        Err(Error::Busy)
    }

    async fn end_all(&self, id: &QueueId) -> Result<EndCounts, Error> {
        let keys = self.queue_cache(id);
        let mut store = self.0.store.clone();
        let mut ended = EndCounts::default();
        loop {
            let (waiting, admitted, sessions): (Vec<String>, Vec<String>, Vec<String>) =
                redis::pipe()
                    .zrange(&keys.positions, 0, BATCH - 1)
                    .zrange(&keys.admitted, 0, BATCH - 1)
                    .zrange(&keys.deadlines, 0, BATCH - 1)
                    .query_async(&mut store)
                    .await?;
            if waiting.is_empty() && admitted.is_empty() && sessions.is_empty() {
                return Ok(ended);
            }
            let mut foreign = Vec::new();
            for position in waiting.iter().chain(&admitted) {
                match PositionId::parse(position) {
                    Ok(position) => {
                        _ = self.end_position(id, &position, EndReason::QueueReset, "").await?
                    }
                    Err(_) => foreign.push(position),
                }
                ended.positions += 1;
            }
            let unreadable: Vec<&String> =
                sessions.iter().filter(|session| SessionId::parse(session).is_err()).collect();
            // Ids written by another program have no record of ours: only the indexes are cleaned up.
            for (key, ids) in [
                (&keys.positions, &foreign),
                (&keys.admitted, &foreign),
                (&keys.heartbeat, &foreign),
                (&keys.deadlines, &unreadable),
            ] {
                if !ids.is_empty() {
                    let () = store.zrem(key, ids).await?;
                }
            }
            if !unreadable.is_empty() {
                let () = store.srem(&keys.active, &unreadable).await?;
            }
            ended.sessions += self.end_sessions(id, &sessions, SessionEnd::Reset).await?;
        }
    }

    async fn end_sessions(
        &self,
        queue: &QueueId,
        sessions: &[String],
        end: SessionEnd,
    ) -> Result<u64, Error> {
        for session in sessions {
            let Ok(session) = SessionId::parse(session) else { continue };
            match self.end_session(queue, &session, end).await {
                Ok(_) | Err(Error::UnknownSession) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sessions.len() as u64)
    }
}

fn view(id: &QueueId, snapshot: &QueueSnapshot) -> Queue {
    Queue {
        id: id.clone(),
        config: snapshot.config.clone(),
        status: snapshot.status,
        version: snapshot.version,
        created: snapshot.created,
        updated: snapshot.updated,
        waiting: snapshot.waiting,
        admitted: snapshot.admitted,
        active: snapshot.active,
        total_admitted: u64::try_from(snapshot.number("total_admitted")).unwrap_or(0),
    }
}
