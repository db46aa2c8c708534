//! Finding jobs by what they are, page by page, and doing something to all of them.
//!
//! Invariant: one call looks at a bounded number of jobs, however many there are, and says where
//! the next one goes on.

use std::{fmt, str::FromStr};

use store::{Key, redis};

use crate::{
    Cancelled, Error, Job, JobId, Jobs, Status, Which, ids::TOMB, inspect::settled_status,
};

/// How many jobs one call looks at, and how many it reads at a time.
const LOOK_MAX: usize = 10_000;
const CHUNK: usize = 500;

/// Which jobs. What is left out does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In this list; otherwise in any.
    pub which: Option<Which>,
    /// Of this type.
    pub kind: Option<String>,
    /// With this text in the id, the stored job or its result. Case matters.
    pub text: Option<String>,
}

/// Where a search stands: in a list, after so many entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    which: Which,
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
                Some(Self { which: Which::parse(which)?, offset })
            })
            .ok_or_else(|| Error::invalid("this is not a place a list gave"))
    }
}

/// A job that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Which.
    pub id: JobId,
    /// Its state.
    pub status: Status,
    /// The job, if it can be read.
    pub job: Option<Job>,
}

/// What a call to [`Jobs::retry`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retried {
    /// It waited for its time and is due now.
    Due,
    /// It had ended and is in line again.
    Replayed,
}

/// What is done to many jobs.
#[derive(Clone, Debug)]
pub enum Bulk {
    /// [`Jobs::replay`].
    Replay,
    /// [`Jobs::retry`].
    Retry,
    /// [`Jobs::cancel`], with this reason.
    Cancel(String),
    /// [`Jobs::remove`].
    Remove,
}

/// What came of doing something to many jobs.
#[derive(Debug)]
pub struct BulkDone {
    /// To which it was done.
    pub done: Vec<JobId>,
    /// To which it could not be done, and why.
    pub refused: Vec<(JobId, Error)>,
    /// There may be more that fit.
    pub more: bool,
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
    ) -> Result<(Vec<Found>, Option<Cursor>), Error> {
        let lists: &[Which] = match &filter.which {
            Some(which) => std::slice::from_ref(which),
            None => &Which::ALL,
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
                let all = filter.kind.is_none() && filter.text.is_none();
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
        which: Which,
        ids: Vec<String>,
    ) -> Result<Vec<Option<Found>>, Error> {
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
            let kind = job.as_ref().map(|job| job.kind.as_str());
            if filter.kind.as_deref().is_some_and(|wanted| kind != Some(wanted)) {
                return None;
            }
            let stored = status.as_ref().and_then(|s| std::str::from_utf8(s).ok());
            let stored = stored.and_then(Status::parse);
            let busy = which == Which::Active;
            let status = settled_status(stored, result.as_deref(), busy);
            let plain = match which {
                Which::Waiting => Status::Waiting,
                Which::Active => Status::Active,
                Which::Delayed => Status::Delayed,
                Which::Dead => Status::Dead,
                Which::Finished => Status::Completed,
            };
            let status = status.unwrap_or(plain);
            // The list of ended jobs is history: a job in it may be gone, or run once more.
            let ended = matches!(status, Status::Completed | Status::Failed);
            if which == Which::Finished && (!ended || data.is_none()) {
                return None;
            }
            Some(Found { id, status, job })
        });
        Ok(sifted.collect())
    }

    /// Does something to all jobs that fit, at most `most`; each counts on its own.
    pub async fn bulk(&self, filter: &Filter, what: &Bulk, most: usize) -> Result<BulkDone, Error> {
        let (found, next) = self.find(filter, None, most).await?;
        let mut bulk = BulkDone { done: Vec::new(), refused: Vec::new(), more: next.is_some() };
        for Found { id, .. } in found {
            let outcome = match what {
                Bulk::Replay => self.replay(&id).await,
                Bulk::Retry => self.retry(&id).await.map(drop),
                Bulk::Cancel(reason) => match self.cancel(&id, reason).await {
                    Ok(Cancelled::Ended | Cancelled::Asked) => Ok(()),
                    Err(error) => Err(error),
                },
                Bulk::Remove => self.remove(&id).await,
            };
            match outcome {
                Ok(()) => bulk.done.push(id),
                Err(error @ Error::Store(_)) => return Err(error),
                Err(error) => bulk.refused.push((id, error)),
            }
        }
        Ok(bulk)
    }

    /// Runs a job now: one that waits for its time or for its next attempt is due at once, one
    /// that has ended is [replayed](Jobs::replay).
    pub async fn retry(&self, id: &JobId) -> Result<Retried, Error> {
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
            return Ok(Retried::Due);
        }
        match self.status(id).await? {
            Some(status) if status.is_final() => {
                self.replay(id).await?;
                Ok(Retried::Replayed)
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
