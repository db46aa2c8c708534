//! Making, changing, opening, closing and emptying queues.

use std::collections::HashMap;

use serde_json::{Map, Value};
use store::{Millis, redis, redis::AsyncCommands as _};

use crate::{
    End, Error, PositionId, QueueConfig, QueueId, QueueStatus, Rate, Reason, Room, SessionId,
    pulse::Pulse, reply::Reply, scripts,
};

/// A queue as an operator sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    /// Its name.
    pub id: QueueId,
    /// Its settings.
    pub config: QueueConfig,
    /// Whether it lets people in.
    pub status: QueueStatus,
    /// Grows with every change; give it to [`Room::change_queue`] to detect a change in between.
    pub version: u64,
    /// When it was made, in whole seconds.
    pub created: Millis,
    /// When it was last changed, in whole seconds.
    pub updated: Millis,
    /// How many wait.
    pub waiting: u64,
    /// How many may come in now and have not.
    pub admitted: u64,
    /// How many sessions run.
    pub active: u64,
    /// How many were admitted since the queue was made, second times included.
    pub total_admitted: u64,
}

/// How many places and sessions were ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Places that waited or were admitted.
    pub places: u64,
    /// Sessions that ran.
    pub sessions: u64,
}

/// Places or sessions ended in one round.
const BATCH: isize = 200;

impl Room {
    /// Makes a queue. Refuses settings out of bounds and a name that is taken.
    pub async fn create_queue(&self, id: &QueueId, config: QueueConfig) -> Result<Queue, Error> {
        config.check()?;
        let keys = self.known(id);
        let now = self.now();
        let mut fields = config.fields();
        fields.push(("status", QueueStatus::Active.as_str().to_owned()));
        fields.push(("version", "1".to_owned()));
        fields.push(("created_at", now.as_secs().to_string()));
        fields.push(("updated_at", now.as_secs().to_string()));
        // Listed first: a name without a queue behind it is passed over, a queue that is not
        // listed would be forgotten by the keeper.
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

    /// One queue.
    pub async fn queue(&self, id: &QueueId) -> Result<Queue, Error> {
        let pulse = self.fresh_pulse(id).await?;
        Ok(view(id, &pulse))
    }

    /// One queue as it was within the last second; for what is asked with every request.
    pub async fn queue_lately(&self, id: &QueueId) -> Result<Queue, Error> {
        let pulse = self.pulse(id).await?;
        Ok(view(id, &pulse))
    }

    /// All queues, by name.
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

    /// The names of all queues, in order. A name may be listed whose queue is just being made or
    /// taken away.
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

    /// Changes the settings of a queue: `edit` gets what they are. With `version`, only if nobody
    /// else changed them since; without, the change is made on what is found.
    ///
    /// The priority policy can change only while nobody above level 0 waits.
    pub async fn change_queue(
        &self,
        id: &QueueId,
        version: Option<u64>,
        edit: impl Fn(&mut QueueConfig),
    ) -> Result<Queue, Error> {
        // Somebody else may change it at the same time; then look again, a few times.
        for _ in 0..8 {
            let pulse = self.fresh_pulse(id).await?;
            if let Some(version) = version
                && version != pulse.version
            {
                return Err(Error::Conflict { version: pulse.version });
            }
            let mut config = pulse.config.clone();
            edit(&mut config);
            config.check()?;
            match self.write_config(id, &pulse, &config).await {
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
        before: &Pulse,
        config: &QueueConfig,
    ) -> Result<(), Error> {
        let old: HashMap<_, _> = before.config.fields().into_iter().collect();
        let changed: Vec<String> = config
            .fields()
            .into_iter()
            .filter(|(name, value)| old.get(name) != Some(value))
            .flat_map(|(name, value)| [name.to_owned(), value])
            .collect();
        let keys = self.known(id);
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
        self.forget(id);
        let reply = Reply::of(scripts::change::SCRIPT, reply)?;
        match reply.word() {
            "changed" => Ok(()),
            "conflict" => Err(Error::Conflict { version: reply.number(1)? }),
            "levels_wait" => Err(Error::LevelsWait),
            _ => Err(reply.unexpected()),
        }
    }

    /// Changes how fast visitors are let in.
    pub async fn set_rate(&self, id: &QueueId, rate: Rate) -> Result<Queue, Error> {
        self.change_queue(id, None, |config| config.admission = rate).await
    }

    /// Tells those who wait something, by language tag; nothing takes the message away.
    pub async fn set_message(
        &self,
        id: &QueueId,
        message: Map<String, Value>,
    ) -> Result<Queue, Error> {
        self.change_queue(id, None, |config| config.message = message.clone()).await
    }

    /// Stops letting people in. Places are kept and clocks stand still. Pausing twice is pausing
    /// once.
    pub async fn pause_queue(&self, id: &QueueId) -> Result<Queue, Error> {
        self.set_status(id, QueueStatus::Paused.as_str()).await?;
        self.queue(id).await
    }

    /// Lets people in again.
    pub async fn resume_queue(&self, id: &QueueId) -> Result<Queue, Error> {
        self.set_status(id, QueueStatus::Active.as_str()).await?;
        self.queue(id).await
    }

    /// Closes a queue to newcomers as well. Places are kept and clocks stand still.
    pub async fn close_queue(&self, id: &QueueId) -> Result<Queue, Error> {
        self.set_status(id, QueueStatus::Maintenance.as_str()).await?;
        self.queue(id).await
    }

    async fn set_status(&self, id: &QueueId, status: &str) -> Result<(), Error> {
        let keys = self.known(id);
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
        self.forget(id);
        let reply = Reply::of(scripts::set_status::SCRIPT, reply)?;
        match reply.word() {
            "changed" | "same" => Ok(()),
            _ => Err(reply.unexpected()),
        }
    }

    /// Ends every place and session of a queue, in rounds; tokens given out before are void. The
    /// queue stays, with its settings. Whoever joins meanwhile may be ended as well.
    pub async fn reset_queue(&self, id: &QueueId) -> Result<Ended, Error> {
        self.fresh_pulse(id).await?;
        let keys = self.known(id);
        redis::cmd("HINCRBY")
            .arg(&keys.state)
            .arg("epoch")
            .arg(1)
            .query_async::<()>(&mut self.0.store.clone())
            .await?;
        self.forget(id);
        let ended = self.end_all(id).await?;
        tracing::info!(queue = %id, places = ended.places, sessions = ended.sessions, "queue reset");
        Ok(ended)
    }

    /// Ends every session that runs now, in rounds, as an operator would end each. Who waits or was
    /// admitted stays.
    pub async fn terminate_all(&self, id: &QueueId) -> Result<Ended, Error> {
        self.fresh_pulse(id).await?;
        let keys = self.known(id);
        let mut store = self.0.store.clone();
        let mut ended = Ended::default();
        // Those who come in meanwhile are not meant.
        let running: u64 = store.zcard(&keys.deadlines).await?;
        while ended.sessions < running {
            let most = BATCH.min(isize::try_from(running - ended.sessions).unwrap_or(BATCH));
            let sessions: Vec<String> = store.zrange(&keys.deadlines, 0, most - 1).await?;
            if sessions.is_empty() {
                break;
            }
            ended.sessions += self.end_sessions(id, &sessions, End::Revoke).await?;
        }
        tracing::info!(queue = %id, sessions = ended.sessions, "all sessions ended");
        Ok(ended)
    }

    /// Ends everything in a queue and takes it away.
    pub async fn delete_queue(&self, id: &QueueId) -> Result<Ended, Error> {
        self.set_status(id, "deleting").await?;
        let keys = self.known(id);
        let mut ended = Ended::default();
        // An instance that read the queue before may still admit; a few rounds see to that.
        for _ in 0..8 {
            let round = self.end_all(id).await?;
            ended.places += round.places;
            ended.sessions += round.sessions;
            let now = self.now();
            let mut others: Vec<_> = keys.lanes.iter().chain(&keys.spares).cloned().collect();
            others.extend(
                [&keys.state, &keys.deadlines, &keys.tokens, &keys.last_update, &keys.events]
                    .map(Clone::clone),
            );
            others.extend((0..25).map(|h| keys.stats(&crate::hour(Millis(now.0 - h * 3_600_000)))));
            let reply: Vec<String> = scripts::delete::run(
                &self.0.store,
                scripts::delete::Keys {
                    meta: &keys.meta,
                    positions: &keys.positions,
                    claims: &keys.claims,
                    active: &keys.active,
                    others,
                },
                scripts::delete::Args {},
            )
            .await?;
            if reply.first().is_some_and(|word| word == "deleted") {
                self.forget(id);
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

    async fn end_all(&self, id: &QueueId) -> Result<Ended, Error> {
        let keys = self.known(id);
        let mut store = self.0.store.clone();
        let mut ended = Ended::default();
        loop {
            let (waiting, admitted, sessions): (Vec<String>, Vec<String>, Vec<String>) =
                redis::pipe()
                    .zrange(&keys.positions, 0, BATCH - 1)
                    .zrange(&keys.claims, 0, BATCH - 1)
                    .zrange(&keys.deadlines, 0, BATCH - 1)
                    .query_async(&mut store)
                    .await?;
            if waiting.is_empty() && admitted.is_empty() && sessions.is_empty() {
                return Ok(ended);
            }
            let mut foreign = Vec::new();
            for place in waiting.iter().chain(&admitted) {
                match PositionId::parse(place) {
                    Ok(place) => _ = self.end_place(id, &place, Reason::QueueReset, "").await?,
                    Err(_) => foreign.push(place),
                }
                ended.places += 1;
            }
            let unreadable: Vec<&String> =
                sessions.iter().filter(|session| SessionId::parse(session).is_err()).collect();
            // Ids another program wrote have no record of ours: they leave the indexes.
            for (key, ids) in [
                (&keys.positions, &foreign),
                (&keys.claims, &foreign),
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
            ended.sessions += self.end_sessions(id, &sessions, End::Reset).await?;
        }
    }

    async fn end_sessions(
        &self,
        queue: &QueueId,
        sessions: &[String],
        end: End,
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

fn view(id: &QueueId, pulse: &Pulse) -> Queue {
    Queue {
        id: id.clone(),
        config: pulse.config.clone(),
        status: pulse.status,
        version: pulse.version,
        created: pulse.created,
        updated: pulse.updated,
        waiting: pulse.waiting,
        admitted: pulse.admitted,
        active: pulse.active,
        total_admitted: u64::try_from(pulse.number("total_admitted")).unwrap_or(0),
    }
}
