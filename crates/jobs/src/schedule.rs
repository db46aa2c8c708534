//! Schedules: jobs that run again and again.
//!
//! A schedule is a job with a cron expression; its id is in `jobs:cron` with its next occurrence.
//! Invariant: an occurrence is claimed by moving that score on, in the same script that puts the
//! job in line, so that each runs once however many schedulers there are.

use serde::Serialize;
use store::{
    Millis,
    redis::{self, AsyncCommands as _},
};

use crate::{Cron, DispatchReceipt, Error, Job, JobId, Jobs, NewJob, ScheduleRun, scripts};

/// A schedule as it stands.
#[derive(Clone, Debug)]
pub struct ScheduleView {
    /// Its job.
    pub job: Job,
    /// Time of the next occurrence.
    pub next: Millis,
    /// Is it paused?
    pub paused: bool,
    /// Its latest runs, newest first.
    pub runs: Vec<ScheduleRun>,
}

/// The occurrences of a schedule, computed without storing it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Preview {
    /// The next occurrences, in milliseconds since 1970.
    pub next: Vec<i64>,
}

impl Jobs {
    /// Stores a recurring job. Under an id that is a schedule already, it is changed: deploying
    /// the same schedules again does no harm.
    ///
    /// ```no_run
    /// # async fn example(jobs: tidegate_jobs::Jobs) -> Result<(), tidegate_jobs::Error> {
    /// use tidegate_jobs::{JobId, NewJob};
    ///
    /// let nightly = NewJob::new("clean-up", &())?
    ///     .id(JobId::parse("nightly-clean-up")?)
    ///     .cron("30 3 * * *")
    ///     .timezone("Europe/Berlin");
    /// jobs.schedule(nightly).await?;
    /// # Ok(()) }
    /// ```
    pub async fn schedule(&self, new: NewJob) -> Result<DispatchReceipt, Error> {
        new.check()?;
        let schedule = &new.job.schedule;
        let Some(expression) = &schedule.cron else {
            return Err(Error::invalid("a schedule needs a cron expression"));
        };
        if !new.job.depends_on.is_empty() || new.job.expires_at.is_some() {
            return Err(Error::invalid("a schedule has no dependencies and no expiry"));
        }
        let cron = Cron::parse(expression, schedule.timezone.as_deref())?;
        let now = self.now();
        let next = cron.next_after(now).ok_or_else(|| Error::invalid("it never comes due"))?;
        let id = new.id.clone().unwrap_or_else(JobId::random);
        let mut job = new.job.clone();
        job.id = id.clone();
        job.created_at = now;
        // What the caller said of a schedule that exists decides whether it changes, so the time
        // of its first dispatch stays.
        let keys = self.keys();
        let text: Option<Vec<u8>> = self.store().clone().get(keys.data(id.as_str())).await?;
        let stored = text.as_deref().and_then(|text| Job::parse(id.clone(), text).ok());
        let deleted = text.as_deref().filter(|_| stored.as_ref().is_some_and(Job::is_cron));
        if let Some(stored) = &stored {
            job.created_at = stored.created_at;
            job.attempts = stored.attempts;
        }
        self.check_once(&new).await?;
        self.watch(job.timeout.map(|_| id.as_str())).await?;
        let reply: Vec<String> = scripts::schedule::run(
            self.store(),
            scripts::schedule::Keys {
                cron: keys.cron(),
                data: keys.data(id.as_str()),
                status: keys.status(id.as_str()),
                events: keys.events(),
            },
            scripts::schedule::Args {
                now_ms: now,
                events_max: self.config().events_max,
                id: id.as_str(),
                next_ms: next,
                body: job.to_text(self.config().shape),
                deleted: deleted.unwrap_or_default(),
            },
        )
        .await?;
        let word = reply.first().map_or("", String::as_str);
        if word != "taken" {
            self.keep_once(&new, &id).await?;
        }
        match word {
            "new" => Ok(DispatchReceipt { id, new: true }),
            "taken" => Err(Error::Conflict { id, status: "a job that is no schedule".to_owned() }),
            _ => Ok(DispatchReceipt { id, new: false }),
        }
    }

    /// All schedules by their next occurrence, from one place in the order on.
    pub async fn schedules(&self, from: usize, most: usize) -> Result<Vec<ScheduleView>, Error> {
        let keys = self.keys();
        let mut store = self.store().clone();
        let start = isize::try_from(from).unwrap_or(isize::MAX);
        let end = start.saturating_add(isize::try_from(most.clamp(1, 1_000)).unwrap_or(1) - 1);
        let ids: Vec<(String, i64)> = store.zrange_withscores(keys.cron(), start, end).await?;
        let mut views = Vec::with_capacity(ids.len());
        for (id, next) in ids {
            let (data, paused): (Option<Vec<u8>>, bool) = redis::pipe()
                .get(keys.data(&id))
                .sismember(keys.cron_paused(), &id)
                .query_async(&mut store)
                .await?;
            let job = data.and_then(|data| Job::parse(JobId::stored(id), &data).ok());
            if let Some(job) = job {
                views.push(ScheduleView { job, next: Millis(next), paused, runs: Vec::new() });
            }
        }
        let ids: Vec<&JobId> = views.iter().map(|view| &view.job.id).collect();
        let runs = self.schedule_runs(&ids).await?;
        for (view, runs) in views.iter_mut().zip(runs) {
            view.runs = runs;
        }
        Ok(views)
    }

    /// Returns one schedule, or `None`.
    pub async fn schedule_view(&self, id: &JobId) -> Result<Option<ScheduleView>, Error> {
        let keys = self.keys();
        let mut store = self.store().clone();
        let (next, paused): (Option<i64>, bool) = redis::pipe()
            .zscore(keys.cron(), id.as_str())
            .sismember(keys.cron_paused(), id.as_str())
            .query_async(&mut store)
            .await?;
        let (Some(next), Some(job)) = (next, self.get(id).await?) else { return Ok(None) };
        let runs = self.schedule_runs(&[id]).await?.pop().unwrap_or_default();
        Ok(Some(ScheduleView { job, next: Millis(next), paused, runs }))
    }

    /// Stops a schedule for good. What it has in line or running goes on.
    pub async fn unschedule(&self, id: &JobId) -> Result<(), Error> {
        let keys = self.keys();
        let reply: Vec<String> = scripts::unschedule::run(
            self.store(),
            scripts::unschedule::Keys {
                cron: keys.cron(),
                paused: keys.cron_paused(),
                delayed: keys.delayed(),
                claims: keys.claims(),
                finished: keys.finished(),
                lock: keys.lock(id.as_str()),
                keys: keys.of_ended(id.as_str()),
            },
            scripts::unschedule::Args { now_ms: self.now(), id: id.as_str() },
        )
        .await?;
        // What it ran is of no use without it; a repeated call finds nothing left to delete.
        let () = self.store().clone().del(keys.runs(id.as_str())).await?;
        match reply.first().map(String::as_str) {
            Some("missing") => Err(Error::NotFound(id.clone())),
            _ => Ok(()),
        }
    }

    /// Lets a schedule pass its occurrences by until it is resumed.
    pub async fn pause_schedule(&self, id: &JobId) -> Result<(), Error> {
        self.must_be_schedule(id).await?;
        let mut store = self.store().clone();
        let () = store.sadd(self.keys().cron_paused(), id.as_str()).await?;
        Ok(())
    }

    /// Lets a paused schedule run again, from its next occurrence on.
    pub async fn resume_schedule(&self, id: &JobId) -> Result<(), Error> {
        self.must_be_schedule(id).await?;
        let mut store = self.store().clone();
        let () = store.srem(self.keys().cron_paused(), id.as_str()).await?;
        Ok(())
    }

    /// Runs a schedule now, beside its occurrences, also while it is paused. Returns the id of the job.
    ///
    /// Fails with [`Error::Conflict`] when its run before has not ended and they must not overlap.
    pub async fn run_schedule(&self, id: &JobId) -> Result<JobId, Error> {
        self.scheduler().run_now(id).await?.ok_or_else(|| Error::Conflict {
            id: id.clone(),
            status: "a schedule whose run before has not ended".to_owned(),
        })
    }

    async fn must_be_schedule(&self, id: &JobId) -> Result<(), Error> {
        let mut store = self.store().clone();
        let next: Option<f64> = store.zscore(self.keys().cron(), id.as_str()).await?;
        match next {
            Some(_) => Ok(()),
            None => Err(Error::NotFound(id.clone())),
        }
    }

    /// The next occurrences of an expression after a moment (now, unless one is given), at most 100.
    pub fn preview(
        &self,
        expression: &str,
        timezone: Option<&str>,
        after: Option<Millis>,
        count: usize,
    ) -> Result<Preview, Error> {
        let cron = Cron::parse(expression, timezone)?;
        let mut next = Vec::new();
        let mut at = after.unwrap_or_else(|| self.now());
        while next.len() < count.min(100) {
            let Some(found) = cron.next_after(at) else { break };
            next.push(found.0);
            at = found;
        }
        Ok(Preview { next })
    }
}
