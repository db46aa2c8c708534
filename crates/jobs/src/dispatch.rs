//! Dispatching: a job is stored and gets its place in line, at once or for later.
//!
//! Invariant: a dispatch that returned is stored, and one that is repeated under the same id stores
//! nothing twice. Calls at the same time share a round trip.

use store::{
    Key, Millis,
    batcher::{Batchable, CALLS_MAX},
    script::Arg,
    trace::{self, SpanKind, TraceSpan},
};

use crate::{
    Error, Job, JobId, Jobs, NewJob,
    lanes::{LaneRef, Lanes},
    scripts,
};

/// Most random ids tried before giving up; two collisions in a row are not expected.
const DRAWS: usize = 4;

/// The result of a dispatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DispatchReceipt {
    /// The job: the new one, or the one that was there.
    pub id: JobId,
    /// `false` when the id, or the idempotency key, had a job already. Nothing was changed then.
    pub new: bool,
}

/// A job ready to be stored.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    pub(crate) id: JobId,
    pub(crate) place: LaneRef,
    pub(crate) when: QueueEnd,
    pub(crate) expires_at: Option<Millis>,
    pub(crate) timed: bool,
    pub(crate) text: String,
}

impl Batchable for Ready {
    type Context = Jobs;
    type Answer = StoreOutcome;
    type Error = store::Error;

    fn size(&self) -> usize {
        self.text.len() + 128
    }

    async fn send_batch(jobs: &Jobs, batch: &[Self]) -> Result<Vec<StoreOutcome>, store::Error> {
        jobs.store_batch(batch).await
    }
}

/// The position at which a job enters the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueEnd {
    Front,
    Back,
    Later(Millis),
}

/// The store's answer for one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreOutcome {
    New,
    Same,
    Taken,
}

/// Begins the span of a dispatch.
fn dispatch_span(job_type: &str) -> TraceSpan {
    let name = || format!("dispatch {job_type}").into();
    let mut span = TraceSpan::begin(SpanKind::Producer, trace::current(), name);
    span.set("messaging.system", || "tidegate");
    span.set("messaging.operation.type", || "send");
    span.set("messaging.destination.name", || job_type.to_owned());
    span
}

/// Jobs that go to the store together.
#[derive(Default)]
struct DispatchBatch {
    ready: Vec<Ready>,
    /// True if the caller chose the id.
    chosen: Vec<bool>,
}

impl Jobs {
    /// Dispatches a job. When this returns, the job is stored.
    ///
    /// ```no_run
    /// # async fn example(jobs: tidegate_jobs::Jobs) -> Result<(), tidegate_jobs::Error> {
    /// use tidegate_jobs::NewJob;
    ///
    /// let job = NewJob::new("send-mail", &serde_json::json!({"to": "ann@example.org"}))?;
    /// let id = jobs.dispatch(job).await?.id;
    /// # Ok(()) }
    /// ```
    pub async fn dispatch(&self, new: NewJob) -> Result<DispatchReceipt, Error> {
        new.check()?;
        if new.job.schedule.cron.is_some() {
            return self.schedule(new).await;
        }
        let mut span = dispatch_span(new.job.job_type.as_str());
        let context = span.context();
        let receipt = trace::scope_if(context, self.dispatch_checked(new)).await;
        match &receipt {
            Ok(receipt) => span.set("messaging.message.id", || receipt.id.to_string()),
            Err(error) => span.fail(|| error.to_string()),
        }
        receipt
    }

    async fn dispatch_checked(&self, new: NewJob) -> Result<DispatchReceipt, Error> {
        if new.once.is_some() || !new.job.depends_on.is_empty() {
            return self.dispatch_once(new).await;
        }
        let chosen = new.id.clone();
        for _ in 0..DRAWS {
            let ready = self.ready(&new.job, chosen.clone().unwrap_or_else(JobId::random));
            let id = ready.id.clone();
            match self.inner.dispatches.call(self, ready).await? {
                StoreOutcome::New => return Ok(DispatchReceipt { id, new: true }),
                // A random id cannot have been there before, so this call was a repetition.
                StoreOutcome::Same => return Ok(DispatchReceipt { id, new: chosen.is_none() }),
                StoreOutcome::Taken if chosen.is_some() => {
                    return Ok(DispatchReceipt { id, new: false });
                }
                StoreOutcome::Taken => {}
            }
        }
        Err(Error::invalid("no free job id found"))
    }

    /// Dispatches many jobs, in their order. Each has its own outcome; a job that is refused does
    /// not keep the others. In a trace they are one step.
    pub async fn dispatch_all(
        &self,
        jobs: impl IntoIterator<Item = NewJob>,
    ) -> Vec<Result<DispatchReceipt, Error>> {
        let mut span = dispatch_span("many");
        let outcomes = trace::scope_if(span.context(), self.dispatch_each(jobs)).await;
        let count = i64::try_from(outcomes.len()).unwrap_or(i64::MAX);
        span.set("messaging.batch.message_count", || count);
        outcomes
    }

    async fn dispatch_each(
        &self,
        jobs: impl IntoIterator<Item = NewJob>,
    ) -> Vec<Result<DispatchReceipt, Error>> {
        let mut outcomes = Vec::new();
        let mut batch = DispatchBatch::default();
        let mut bytes = 0;
        for new in jobs {
            let plain = new.check().is_ok()
                && new.once.is_none()
                && new.job.depends_on.is_empty()
                && new.job.schedule.cron.is_none();
            if !plain {
                // Order counts, so what came before goes first.
                self.flush(&mut batch, &mut outcomes).await;
                outcomes.push(self.dispatch(new).await);
                continue;
            }
            batch.chosen.push(new.id.is_some());
            let ready = self.ready(&new.job, new.id.unwrap_or_else(JobId::random));
            bytes += ready.text.len();
            batch.ready.push(ready);
            if batch.ready.len() == 2 * CALLS_MAX || bytes > 1 << 20 {
                self.flush(&mut batch, &mut outcomes).await;
                bytes = 0;
            }
        }
        self.flush(&mut batch, &mut outcomes).await;
        outcomes
    }

    async fn flush(
        &self,
        batch: &mut DispatchBatch,
        outcomes: &mut Vec<Result<DispatchReceipt, Error>>,
    ) {
        let DispatchBatch { ready, chosen } = std::mem::take(batch);
        if ready.is_empty() {
            return;
        }
        let mut stored = self.store_batch(&ready).await;
        if matches!(&stored, Err(store::Error::Unavailable { maybe_done: true, .. })) {
            // The ids are drawn, so the same call again does no harm.
            stored = self.store_batch(&ready).await;
        }
        match stored {
            Ok(stored) => {
                for ((ready, chosen), stored) in ready.iter().zip(chosen).zip(stored) {
                    let id = ready.id.clone();
                    outcomes.push(match (stored, chosen) {
                        (StoreOutcome::New, _) => Ok(DispatchReceipt { id, new: true }),
                        (StoreOutcome::Same, chosen) => Ok(DispatchReceipt { id, new: !chosen }),
                        (StoreOutcome::Taken, true) => Ok(DispatchReceipt { id, new: false }),
                        (StoreOutcome::Taken, false) => self.again(ready).await,
                    });
                }
            }
            Err(error) => {
                outcomes.extend(ready.iter().map(|_| Err(Error::Store(error.clone()))));
            }
        }
    }

    /// Stores a job under another id, because the one that was drawn is taken.
    async fn again(&self, ready: &Ready) -> Result<DispatchReceipt, Error> {
        let job = Job::parse(ready.id.clone(), ready.text.as_bytes())
            .map_err(|error| Error::invalid(error.to_string()))?;
        for _ in 0..DRAWS {
            let other = self.ready(&job, JobId::random());
            let stored = self.store_batch(std::slice::from_ref(&other)).await?;
            if stored.first().is_some_and(|stored| *stored != StoreOutcome::Taken) {
                return Ok(DispatchReceipt { id: other.id, new: true });
            }
        }
        Err(Error::invalid("no free job id found"))
    }

    /// Works out everything about a job that is stored.
    pub(crate) fn ready(&self, job: &Job, id: JobId) -> Ready {
        let now = self.now();
        let mut job = job.clone();
        job.id = id;
        job.carry_trace(trace::current());
        if job.created_at.0 == 0 {
            job.created_at = now;
        }
        let when = match (job.schedule.run_at, job.schedule.delay) {
            (Some(at), _) => QueueEnd::Later(at),
            (None, Some(delay)) if !delay.is_zero() => QueueEnd::Later(now + delay),
            _ if job.priority.is_high() => QueueEnd::Front,
            _ => QueueEnd::Back,
        };
        let text = job.to_text(self.config().shape);
        Ready {
            place: LaneRef::of(&job),
            when,
            expires_at: job.expires_at,
            timed: job.timeout.is_some(),
            text,
            id: job.id,
        }
    }

    /// Stores jobs in one call, and says of each what the store said.
    pub(crate) async fn store_batch(
        &self,
        batch: &[Ready],
    ) -> Result<Vec<StoreOutcome>, store::Error> {
        let keys = self.keys();
        self.watch(batch.iter().filter(|ready| ready.timed).map(|ready| ready.id.as_str())).await?;
        let mut lanes = Lanes::default();
        let mut job_keys: Vec<Key> = Vec::with_capacity(2 * batch.len());
        let mut job_args: Vec<Arg> = Vec::with_capacity(6 * batch.len());
        for ready in batch {
            job_keys.push(keys.data(ready.id.as_str()));
            job_keys.push(keys.status(ready.id.as_str()));
            // A job for later gets its lane when its time comes.
            let (lane, place, due) = match ready.when {
                QueueEnd::Front => (lanes.number(keys, &ready.place), "front", 0),
                QueueEnd::Back => (lanes.number(keys, &ready.place), "back", 0),
                QueueEnd::Later(at) => (0, "later", at.0),
            };
            job_args.extend([
                ready.id.as_str().into(),
                lane.into(),
                Arg::Str(place),
                Arg::Number(due),
                ready.expires_at.map_or(Arg::Str(""), |at| Arg::Number(at.0)),
                Arg::Str(&ready.text),
            ]);
        }
        let count = lanes.count();
        let (mut all_keys, mut rest) = lanes.into_parts();
        all_keys.append(&mut job_keys);
        rest.append(&mut job_args);
        let reply: Vec<String> = scripts::dispatch::run(
            self.store(),
            scripts::dispatch::Keys {
                waiting: keys.waiting(),
                index: keys.index(),
                unindexed: keys.unindexed(),
                delayed: keys.delayed(),
                expiring: keys.expiring(),
                events: keys.events(),
                keys: all_keys,
            },
            scripts::dispatch::Args {
                now_ms: self.now(),
                wake: keys.wake(),
                events_max: self.config().events_max,
                lanes: count,
                rest,
            },
        )
        .await?;
        if reply.len() != batch.len() + 1 {
            return Err(store::Error::Decode {
                message: format!("{} answers for {} jobs", reply.len(), batch.len()),
            });
        }
        let outcomes: Vec<StoreOutcome> = reply
            .iter()
            .skip(1)
            .map(|word| match word.as_str() {
                "new" => StoreOutcome::New,
                "same" => StoreOutcome::Same,
                _ => StoreOutcome::Taken,
            })
            .collect();
        for (ready, outcome) in batch.iter().zip(&outcomes) {
            if *outcome == StoreOutcome::New {
                self.inner.meter.of(ready.place.job_type().as_str()).dispatched.increment(1);
            }
        }
        Ok(outcomes)
    }
}
