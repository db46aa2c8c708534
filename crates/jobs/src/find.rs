//! Finding jobs by what they are, page by page, and doing something to all of them.
//!
//! Invariant: one call looks at a bounded number of jobs, however many there are, and says where
//! the next one goes on.

use std::{fmt, str::FromStr};

use store::{Key, redis};

use crate::{Error, Job, JobId, JobList, Jobs, Status, ids::TOMB, inspect::settled_status};

/// Most jobs one call looks at, and the number it reads at a time.
const LOOK_MAX: usize = 10_000;
const CHUNK: usize = 500;

/// Selects jobs. A field that is left out matches every job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In this list; otherwise in any.
    pub which: Option<JobList>,
    /// Of this type.
    pub job_type: Option<String>,
    /// With this text in the id, the stored job or its result. Case matters.
    pub text: Option<String>,
}

/// Position of a search: a list and an offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    which: JobList,
    offset: usize,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.which.as_str(), self.offset)
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        text.split_once('-')
            .and_then(|(which, offset)| {
                let offset = offset.parse().ok().filter(|offset| *offset <= 1 << 40)?;
                Some(Self { which: JobList::parse(which)?, offset })
            })
            .ok_or_else(|| Error::invalid("this is not a place a list gave"))
    }
}

/// A job that was found.
#[derive(Clone, Debug)]
pub struct FoundJob {
    /// Their ids.
    pub id: JobId,
    /// Its state.
    pub status: Status,
    /// The job, if it can be read.
    pub job: Option<Job>,
}

/// The result of [`Jobs::retry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryOutcome {
    /// It waited for its time and is due now.
    Due,
    /// It had ended and is waiting again.
    Replayed,
}

/// An action on many jobs.
#[derive(Clone, Debug)]
pub enum BulkAction {
    /// [`Jobs::replay`].
    Replay,
    /// [`Jobs::retry`].
    Retry,
    /// [`Jobs::cancel`], with this reason.
    Cancel(String),
    /// [`Jobs::remove`].
    Remove,
}

/// The result of a bulk action.
#[derive(Debug)]
pub struct BulkReport {
    /// To which it was done.
    pub done: Vec<JobId>,
    /// To which it could not be done, and why.
    pub refused: Vec<(JobId, Error)>,
    /// There may be more that fit, from this place on.
    pub next: Option<Cursor>,
}

impl Jobs {
    /// Jobs that fit, at most `most`, from a place on; and where to go on, if there may be more.
    ///
    /// A page may be shorter than asked for, even empty, while there is more to come: a call looks
    /// at a bounded number of jobs.
    pub async fn find(
        &self,
        filter: &Filter,
        from: Option<Cursor>,
        most: usize,
    ) -> Result<(Vec<FoundJob>, Option<Cursor>), Error> {
        let lists: &[JobList] = match &filter.which {
            Some(which) => std::slice::from_ref(which),
            None => &JobList::ALL,
        };
        let begin = from.map_or(0, |place| {
            lists.iter().position(|which| *which == place.which).unwrap_or(lists.len())
        });
        let mut offset = from.map_or(0, |place| place.offset);
        let (mut found, mut looked) = (Vec::new(), 0);
        for &which in lists.iter().skip(begin) {
            loop {
                if looked >= LOOK_MAX || found.len() >= most {
                    return Ok((found, Some(Cursor { which, offset })));
                }
                let all = filter.job_type.is_none() && filter.text.is_none();
                let chunk = if all { (most - found.len()).min(CHUNK) } else { CHUNK };
                let ids = self.ids(which, offset, chunk).await?;
                if ids.is_empty() {
                    break;
                }
                let count = ids.len();
                looked += count;
                for (nth, fits) in self.sift(filter, which, ids).await?.into_iter().enumerate() {
                    found.extend(fits);
                    if found.len() >= most {
                        return Ok((found, Some(Cursor { which, offset: offset + nth + 1 })));
                    }
                }
                offset += count;
            }
            offset = 0;
        }
        Ok((found, None))
    }

    /// Of each id in a part of a list, the job if it fits.
    async fn sift(
        &self,
        filter: &Filter,
        which: JobList,
        ids: Vec<String>,
    ) -> Result<Vec<Option<FoundJob>>, Error> {
        let keys = self.keys();
        let mut wanted: Vec<Key> = Vec::with_capacity(3 * ids.len());
        for id in &ids {
            wanted.extend([keys.data(id), keys.status(id), keys.result(id)]);
        }
        let mut store = self.store().clone();
        let parts: Vec<Option<Vec<u8>>> =
            redis::cmd("MGET").arg(wanted).query_async(&mut store).await?;
        let sifted = ids.into_iter().zip(parts.chunks_exact(3)).map(|(id, part)| {
            let [data, status, result] = part else { return None };
            if id == TOMB {
                return None;
            }
            if let Some(text) = &filter.text {
                let has = |bytes: &Option<Vec<u8>>| {
                    bytes.as_ref().is_some_and(|b| String::from_utf8_lossy(b).contains(text))
                };
                if !id.contains(text) && !has(data) && !has(result) {
                    return None;
                }
            }
            let id = JobId::stored(id);
            let job = data.as_ref().and_then(|data| Job::parse(id.clone(), data).ok());
            let job_type = job.as_ref().map(|job| job.job_type.as_str());
            if filter.job_type.as_deref().is_some_and(|wanted| job_type != Some(wanted)) {
                return None;
            }
            let stored = status.as_ref().and_then(|s| std::str::from_utf8(s).ok());
            let stored = stored.and_then(Status::parse);
            let busy = which == JobList::Active;
            let status = settled_status(stored, result.as_deref(), busy);
            let plain = match which {
                JobList::Waiting => Status::Waiting,
                JobList::Active => Status::Active,
                JobList::Delayed => Status::Delayed,
                JobList::Dead => Status::Dead,
                JobList::Finished => Status::Completed,
            };
            let status = status.unwrap_or(plain);
            // The list of ended jobs is history: a job in it may be gone, or run once more.
            let ended = matches!(status, Status::Completed | Status::Failed);
            if which == JobList::Finished && (!ended || data.is_none()) {
                return None;
            }
            Some(FoundJob { id, status, job })
        });
        Ok(sifted.collect())
    }

    /// Does something to all jobs that fit, at most `most`, from a place on; each counts on its own.
    ///
    /// Looks at a bounded number of jobs: where it says that there may be more, the next call goes on
    /// at the place it names.
    pub async fn bulk(
        &self,
        filter: &Filter,
        what: &BulkAction,
        from: Option<Cursor>,
        most: usize,
    ) -> Result<BulkReport, Error> {
        let lists: &[JobList] = match &filter.which {
            Some(which) => std::slice::from_ref(which),
            None => &JobList::ALL,
        };
        let begin = from.map_or(0, |place| {
            lists.iter().position(|which| *which == place.which).unwrap_or(lists.len())
        });
        let mut offset = from.map_or(0, |place| place.offset);
        let mut bulk = BulkReport { done: Vec::new(), refused: Vec::new(), next: None };
        let mut looked = 0;
        for &which in lists.iter().skip(begin) {
            loop {
                let count = bulk.done.len() + bulk.refused.len();
                if looked >= most.saturating_add(LOOK_MAX) || count >= most {
                    bulk.next = Some(Cursor { which, offset });
                    return Ok(bulk);
                }
                let ids = self.ids(which, offset, CHUNK).await?;
                if ids.is_empty() {
                    break;
                }
                looked += ids.len();
                let tombs: Vec<bool> = ids.iter().map(|id| id == TOMB).collect();
                let (mut passed, mut live, mut found) = (0, 0, Vec::new());
                for (fits, tomb) in self.sift(filter, which, ids).await?.into_iter().zip(tombs) {
                    if found.len() == most - count {
                        break;
                    }
                    passed += 1;
                    live += usize::from(!tomb);
                    found.extend(fits.map(|found| found.id));
                }
                let before = bulk.done.len();
                self.act(what, found, &mut bulk).await?;
                let done = bulk.done.len() - before;
                let leaves = matches!(
                    (what, which),
                    (BulkAction::Cancel(_), JobList::Waiting | JobList::Delayed)
                        | (
                            BulkAction::Replay | BulkAction::Retry | BulkAction::Remove,
                            JobList::Dead
                        )
                );
                // What leaves the list does not count for the place to go on at, and with it tombstones
                // may have left; looking at some entries once more does no harm.
                offset += if leaves && done > 0 { live - done } else { passed };
            }
            offset = 0;
        }
        Ok(bulk)
    }

    /// Does something to some jobs, and notes of each whether it was done.
    async fn act(
        &self,
        what: &BulkAction,
        ids: Vec<JobId>,
        bulk: &mut BulkReport,
    ) -> Result<(), Error> {
        if ids.is_empty() {
            return Ok(());
        }
        let outcomes: Vec<Result<(), Error>> = match what {
            BulkAction::Replay => self.replay_all(&ids).await?,
            BulkAction::Remove => self.remove_all(&ids).await?,
            BulkAction::Cancel(reason) => {
                let outcomes = self.cancel_all(&ids, reason).await?;
                outcomes.into_iter().map(|outcome| outcome.map(drop)).collect()
            }
            BulkAction::Retry => {
                let mut outcomes = Vec::with_capacity(ids.len());
                for id in &ids {
                    outcomes.push(self.retry(id).await.map(drop));
                }
                outcomes
            }
        };
        for (id, outcome) in ids.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => bulk.done.push(id),
                Err(error @ Error::Store(_)) => return Err(error),
                Err(_) if bulk.refused.iter().any(|(refused, _)| *refused == id) => {}
                Err(error) => bulk.refused.push((id, error)),
            }
        }
        Ok(())
    }

    /// Runs a job now: one that waits for its time or for its next attempt is due at once, one
    /// that has ended is [replayed](Jobs::replay).
    pub async fn retry(&self, id: &JobId) -> Result<RetryOutcome, Error> {
        let keys = self.keys();
        let name = id.as_str();
        let mut store = self.store().clone();
        let due: Option<f64> =
            redis::cmd("ZSCORE").arg(keys.delayed()).arg(name).query_async(&mut store).await?;
        if due.is_some() {
            // Only if it is still there: the scheduler may have been quicker, and then it is done.
            let () = redis::pipe()
                .atomic()
                .cmd("ZADD")
                .arg(keys.delayed())
                .arg("XX")
                .arg(self.now().0)
                .arg(name)
                .ignore()
                .publish(keys.wake(), "later")
                .ignore()
                .query_async(&mut store)
                .await?;
            return Ok(RetryOutcome::Due);
        }
        match self.status(id).await? {
            Some(status) if status.is_final() => {
                self.replay(id).await?;
                Ok(RetryOutcome::Replayed)
            }
            Some(Status::Delayed) => {
                Err(Error::Conflict { id: id.clone(), status: "waiting for other jobs".to_owned() })
            }
            Some(status) => {
                Err(Error::Conflict { id: id.clone(), status: status.as_str().to_owned() })
            }
            None => Err(Error::NotFound(id.clone())),
        }
    }
}
