//! Replaying: a job that has ended runs again, with all its attempts.

use store::redis::AsyncCommands as _;

use crate::{Error, Job, JobId, Jobs, Which, json::Fields, lanes::Place, scripts};

impl Jobs {
    /// Puts a job that is dead, cancelled or completed in line again. Its history stays.
    pub async fn replay(&self, id: &JobId) -> Result<(), Error> {
        self.replay_with(id, None).await
    }

    /// As [`replay`](Jobs::replay), with another payload.
    pub async fn replay_with(
        &self,
        id: &JobId,
        payload: Option<Box<serde_json::value::RawValue>>,
    ) -> Result<(), Error> {
        let keys = self.keys();
        let name = id.as_str();
        let mut store = self.store().clone();
        let data: Option<Vec<u8>> = store.get(keys.data(name)).await?;
        let before = data.ok_or_else(|| Error::NotFound(id.clone()))?;
        let wrong = |reason: String| Error::Malformed { id: id.clone(), reason };
        let mut job = Job::parse(id.clone(), &before).map_err(|error| wrong(error.to_string()))?;
        let text = std::str::from_utf8(&before).map_err(|error| wrong(error.to_string()))?;
        let mut fields = Fields::parse(text).map_err(|error| wrong(error.to_string()))?;
        fields.set("attempts", "0");
        // What it was to avoid, and until when it was wanted, belongs to its former life.
        fields.remove("avoid");
        fields.remove("expiresAt");
        job.avoid.clear();
        if let Some(payload) = &payload {
            if payload.get().len() > crate::PAYLOAD_MAX {
                return Err(Error::invalid("the payload is too large"));
            }
            fields.set("payload", payload.get());
        }
        let place = Place::of(&job);
        let registry = match place.server.as_str() {
            "" => keys.routes(),
            server => keys.routes_of(server),
        };
        let reply: Vec<String> = scripts::replay::run(
            self.store(),
            scripts::replay::Keys {
                waiting: keys.waiting(),
                index: keys.index(),
                strays: keys.strays(),
                deadletter: keys.deadletter(),
                events: keys.events(),
                registry,
                lane: keys.lane(&place.route, place.priority.get()),
                data: keys.data(name),
                status: keys.status(name),
                result: keys.result(name),
            },
            scripts::replay::Args {
                now_ms: self.now(),
                wake: keys.wake(),
                events_max: self.config().events_max,
                id: name,
                rid: place.route.as_str(),
                priority: place.priority.get(),
                spec: &place.text,
                server: &place.server,
                place: if job.priority.is_high() { "front" } else { "back" },
                before: before.as_slice(),
                after: fields.to_text(),
            },
        )
        .await?;
        let conflict = |status: &str| Error::Conflict { id: id.clone(), status: status.to_owned() };
        match reply.first().map_or("", String::as_str) {
            "replayed" => Ok(()),
            "changed" => Err(conflict("being changed by somebody else")),
            _ => Err(conflict(reply.get(1).map_or("not ended", String::as_str))),
        }
    }

    /// Puts dead letters in line again, newest first, at most `most` of those `choose` takes. Says
    /// which.
    pub async fn replay_dead(
        &self,
        most: usize,
        mut choose: impl FnMut(&Job) -> bool,
    ) -> Result<Vec<JobId>, Error> {
        let mut replayed = Vec::new();
        let mut from = 0;
        while replayed.len() < most {
            let page = self.list(Which::Dead, from, 200).await?;
            if page.is_empty() {
                break;
            }
            for (id, job) in page {
                let chosen = job.as_ref().is_some_and(&mut choose);
                if chosen && replayed.len() < most {
                    self.replay(&id).await?;
                    replayed.push(id);
                } else {
                    from += 1;
                }
            }
        }
        Ok(replayed)
    }

    /// Forgets a job that has ended: data, result, history and all.
    pub async fn remove(&self, id: &JobId) -> Result<(), Error> {
        let keys = self.keys();
        let name = id.as_str();
        let mut store = self.store().clone();
        let status: Option<String> = store.get(keys.status(name)).await?;
        let job_keys = [
            keys.status(name),
            keys.data(name),
            keys.result(name),
            keys.progress(name),
            keys.log(name),
            keys.history(name),
        ];
        let from = match status.as_deref() {
            Some("dead") => "deadletter",
            Some("completed" | "failed") => "anywhere",
            Some(status) => {
                return Err(Error::Conflict { id: id.clone(), status: status.to_owned() });
            }
            None => return Err(Error::NotFound(id.clone())),
        };
        let (_, removed): (String, usize) = scripts::remove::run(
            self.store(),
            scripts::remove::Keys {
                finished: keys.finished(),
                deadletter: keys.deadletter(),
                cron: keys.cron(),
                keys: job_keys,
            },
            scripts::remove::Args { from, rest: [name, name] },
        )
        .await?;
        match removed {
            0 => Err(Error::Conflict { id: id.clone(), status: "in use".to_owned() }),
            _ => Ok(()),
        }
    }
}
