//! Occurrences of schedules.

use store::{
    Millis,
    redis::{self, AsyncCommands as _},
    script::Arg,
};

use super::Scheduler;
use crate::{
    CatchUp, Cron, Error, Job, JobId, JobResult, Overlap,
    cron::CATCH_UP_MAX,
    json::Fields,
    lanes::{LaneRef, Lanes},
    scripts,
};

/// Most schedules handled in one round.
const BATCH: isize = 100;

/// Delay up to which an occurrence counts as on time: a minute, for a scheduler that was
/// being replaced.
const LATE: i64 = 60_000;

impl Scheduler {
    /// Dispatches due occurrences. Returns how many, and whether there are more.
    pub(super) async fn occur(&self) -> Result<(usize, bool), Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let now = self.jobs.now();
        let due: Vec<(String, i64)> =
            store.zrangebyscore_limit_withscores(keys.cron(), "-inf", now.0, 0, BATCH).await?;
        let more = due.len() == BATCH as usize;
        let mut occurred = 0;
        for (id, due) in due {
            let (data, paused, ended) = self.read_schedule(&id).await?;
            let Some(data) = data else {
                // Its job was deleted, and only the name was left.
                let () = store.zrem(keys.cron(), &id).await?;
                continue;
            };
            match self.plan(&id, &data, Millis(due), paused, now) {
                Ok(plan) => {
                    let fired = self.claim_occurrences(&id, Millis(due), plan, ended).await?;
                    occurred += fired.unwrap_or(0);
                }
                Err(reason) => {
                    tracing::warn!(schedule = %id, reason, "unusable schedule stopped");
                    let () = store.zrem(keys.cron(), &id).await?;
                }
            }
        }
        Ok((occurred, more))
    }

    /// Reads the job of a schedule, whether it is paused, and when its latest run ended.
    async fn read_schedule(
        &self,
        id: &str,
    ) -> Result<(Option<Vec<u8>>, bool, Option<Millis>), Error> {
        let keys = self.jobs.keys();
        let (data, paused, result): (Option<Vec<u8>>, bool, Option<Vec<u8>>) = redis::pipe()
            .get(keys.data(id))
            .sismember(keys.cron_paused(), id)
            .get(keys.result(id))
            .query_async(&mut self.jobs.store().clone())
            .await?;
        let result: Option<JobResult> = result.and_then(|text| serde_json::from_slice(&text).ok());
        Ok((data, paused, result.map(|result| Millis(result.completed_at))))
    }

    /// Runs a schedule now, beside its occurrences. Returns the id of the job, or `None` when the run
    /// before has not ended.
    pub(crate) async fn run_now(&self, id: &JobId) -> Result<Option<JobId>, Error> {
        let now = self.jobs.now();
        let mut store = self.jobs.store().clone();
        // Between the two looks its next occurrence may come due and move it on.
        for _ in 0..3 {
            let next: Option<i64> = store.zscore(self.jobs.keys().cron(), id.as_str()).await?;
            let next = next.map(Millis).ok_or_else(|| Error::NotFound(id.clone()))?;
            let (data, _, ended) = self.read_schedule(id.as_str()).await?;
            let data = data.ok_or_else(|| Error::NotFound(id.clone()))?;
            let mut plan = self
                .plan(id.as_str(), &data, now, false, now)
                .map_err(|reason| Error::Malformed { id: id.clone(), reason })?;
            plan.next = Some(next);
            let name = plan.occurrences.last().map(|(name, _)| JobId::stored(name.as_str()));
            match self.claim_occurrences(id.as_str(), next, plan, ended).await? {
                Some(0) => return Ok(None),
                Some(_) => return Ok(name),
                None => {}
            }
        }
        Err(Error::Conflict { id: id.clone(), status: "being changed by somebody else".to_owned() })
    }

    /// Plans the occurrences of a schedule that is due.
    fn plan(
        &self,
        id: &str,
        data: &[u8],
        due: Millis,
        paused: bool,
        now: Millis,
    ) -> Result<Plan, String> {
        let job = Job::parse(JobId::stored(id), data).map_err(|error| error.to_string())?;
        let schedule = &job.schedule;
        let expression = schedule.cron.as_deref().ok_or("it has no cron expression")?;
        let cron = Cron::parse(expression, schedule.timezone.as_deref())
            .map_err(|error| error.to_string())?;
        // v1 sets the first occurrence to a minute from now, whatever the expression says; it
        // counts as one all the same.
        let mut times = vec![due];
        times.extend(cron.between(due, now, CATCH_UP_MAX));
        let apart = schedule.overlap == Overlap::Allow;
        let latest = times.last().copied().unwrap_or(due);
        let times = match schedule.catch_up {
            _ if paused => Vec::new(),
            CatchUp::None if now.0 - latest.0 > LATE => Vec::new(),
            CatchUp::All if apart => times.split_off(times.len().saturating_sub(CATCH_UP_MAX)),
            _ => vec![latest],
        };
        let mut occurrences = Vec::with_capacity(times.len());
        for at in times {
            let text = std::str::from_utf8(data).map_err(|error| error.to_string())?;
            let mut fields = Fields::parse(text).map_err(|error| error.to_string())?;
            fields.set("attempts", "0");
            let name = if apart { format!("{id}@{at}") } else { id.to_owned() };
            if apart {
                let mut quoted = String::new();
                crate::json::push_str(&mut quoted, &name);
                fields.set("jobId", quoted);
                fields.set("createdAt", at.to_string());
                fields.remove("schedule");
            }
            occurrences.push((name, fields.to_text()));
        }
        let timed = job.timeout.is_some();
        Ok(Plan { place: LaneRef::of(&job), next: cron.next_after(now), timed, occurrences })
    }

    /// Moves a schedule on and puts its occurrences in line. Returns how many, and `None` when somebody
    /// else has moved it.
    async fn claim_occurrences(
        &self,
        id: &str,
        due: Millis,
        plan: Plan,
        ended: Option<Millis>,
    ) -> Result<Option<usize>, Error> {
        let keys = self.jobs.keys();
        let place = &plan.place;
        let timed = plan.occurrences.iter().filter(|_| plan.timed);
        self.jobs.watch(timed.map(|(name, _)| name.as_str())).await?;
        let (lane_keys, lane) = Lanes::one(keys, place).into_parts();
        let (mut all_keys, mut rest) = (lane_keys, lane);
        for (name, text) in plan.occurrences {
            all_keys.extend([keys.data(&name), keys.status(&name)]);
            rest.extend([Arg::String(name), Arg::String(text)]);
        }
        let reply: Vec<redis::Value> = scripts::fire_schedule::run(
            self.jobs.store(),
            scripts::fire_schedule::Keys {
                waiting: keys.waiting(),
                index: keys.index(),
                unindexed: keys.unindexed(),
                cron: keys.cron(),
                delayed: keys.delayed(),
                claims: keys.claims(),
                events: keys.events(),
                lock: keys.lock(id),
                runs: keys.runs(id),
                keys: all_keys,
            },
            scripts::fire_schedule::Args {
                now_ms: self.jobs.now(),
                wake: keys.wake(),
                events_max: self.jobs.config().events_max,
                schedule: id,
                due_ms: due,
                next_ms: plan.next,
                place: "back",
                ended_ms: ended,
                rest,
            },
        )
        .await?;
        let moved = match reply.first() {
            Some(redis::Value::BulkString(word)) => word == b"moved",
            Some(redis::Value::SimpleString(word)) => word == "moved",
            _ => false,
        };
        let count = match reply.get(1) {
            Some(redis::Value::Int(count)) => u64::try_from(*count).unwrap_or(0),
            _ => 0,
        };
        if count > 0 {
            self.jobs.inner.meter.of(place.job_type().as_str()).dispatched.increment(count);
        }
        Ok((!moved).then_some(usize::try_from(count).unwrap_or(0)))
    }
}

/// Plans the occurrences of a schedule that is due.
struct Plan {
    place: LaneRef,
    next: Option<Millis>,
    timed: bool,
    occurrences: Vec<(String, String)>,
}
