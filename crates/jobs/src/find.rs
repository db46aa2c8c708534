//! Finding jobs by what they are, page by page, and doing something to all of them.
//!
//! Invariant: one call looks at a bounded number of jobs, however many there are, and says where
//! the next one goes on.

use std::{collections::HashMap, fmt, str::FromStr, time::Duration};

use store::{Key, Millis, redis};

use crate::{
    Error, FailedAttempt, Job, JobEndReason, JobError, JobId, JobList, JobResult, Jobs, Status,
    ids::TOMB,
    inspect::{holder, settled_status},
    keys::Keys,
    reads::Replies,
};

/// Most jobs one call looks at.
pub const LOOK_MAX: usize = 10_000;

/// Number of jobs read at a time.
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
    /// Run by this worker now, or in their latest attempt.
    pub worker_id: Option<String>,
    /// Of this priority.
    pub priority: Option<u8>,
    /// With this text in the name or message of the latest error, in any case.
    pub error: Option<String>,
    /// That ended for this reason.
    pub reason: Option<JobEndReason>,
    /// Dead letters of this [group](DeadLetterGroup).
    pub group: Option<String>,
    /// Dispatched at this time or later.
    pub earliest_created_at: Option<Millis>,
    /// Dispatched before this time.
    pub latest_created_at: Option<Millis>,
}

impl Filter {
    /// Does it take every job of its list?
    fn takes_all(&self) -> bool {
        *self == Self { which: self.which, ..Self::default() }
    }

    /// Does a job match, as far as it is not the text that is looked for?
    fn takes(&self, found: &FoundJob) -> bool {
        fn same<T: PartialEq + ?Sized>(wanted: Option<&T>, actual: Option<&T>) -> bool {
            wanted.is_none_or(|wanted| actual == Some(wanted))
        }
        let job = found.job.as_ref();
        let created = job.map(|job| job.created_at);
        same(self.job_type.as_deref(), job.map(|job| job.job_type.as_str()))
            && same(self.priority.as_ref(), job.map(|job| job.priority.get()).as_ref())
            && same(self.worker_id.as_deref(), found.worker_id.as_deref())
            && same(self.reason.as_ref(), found.reason.as_ref())
            && self.earliest_created_at.is_none_or(|after| created.is_some_and(|at| at >= after))
            && self.latest_created_at.is_none_or(|before| created.is_some_and(|at| at < before))
            && self.error.as_ref().is_none_or(|wanted| {
                let error = found.error.as_ref().map(|error| error.to_string().to_lowercase());
                error.is_some_and(|error| error.contains(&wanted.to_lowercase()))
            })
            && self.group.as_ref().is_none_or(|group| found.group().as_ref() == Some(group))
    }
}

/// Orders found jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortKey {
    /// By time of dispatch.
    CreatedAt,
    /// By the time at which they come due.
    DueAt,
    /// By the time at which they ended.
    EndedAt,
    /// By priority.
    Priority,
    /// By type.
    Type,
    /// By the time they waited.
    Waited,
    /// By the time they ran.
    Took,
}

/// A value that jobs are ordered by.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum SortValue {
    Number(i64),
    Length(Duration),
    Text(String),
}

impl SortKey {
    /// The value of a job, if it has one.
    fn value(self, found: &FoundJob, now: Millis) -> Option<SortValue> {
        let job = found.job.as_ref();
        match self {
            Self::CreatedAt => job.map(|job| SortValue::Number(job.created_at.0)),
            Self::DueAt => found.due.map(|at| SortValue::Number(at.0)),
            Self::EndedAt => found.ended_at.map(|at| SortValue::Number(at.0)),
            Self::Priority => job.map(|job| SortValue::Number(i64::from(job.priority.get()))),
            Self::Type => job.map(|job| SortValue::Text(job.job_type.to_string())),
            Self::Waited => found.waited(now).map(SortValue::Length),
            Self::Took => found.took(now).map(SortValue::Length),
        }
    }

    /// Sorts jobs; those without the value come last either way, and equal ones by id.
    fn sort(self, descending: bool, now: Millis, jobs: &mut [FoundJob]) {
        jobs.sort_by_cached_key(|found| found.id.to_string());
        jobs.sort_by(|a, b| match (self.value(a, now), self.value(b, now)) {
            (Some(a), Some(b)) if descending => b.cmp(&a),
            (Some(a), Some(b)) => a.cmp(&b),
            (a, b) => a.is_none().cmp(&b.is_none()),
        });
    }
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
    /// Id of the job.
    pub id: JobId,
    /// Its state.
    pub status: Status,
    /// The job, if it can be read.
    pub job: Option<Job>,
    /// Time at which it comes due, if it is delayed.
    pub due: Option<Millis>,
    /// The worker that runs it, or made its latest attempt.
    pub worker_id: Option<String>,
    /// Time at which that worker claimed it.
    pub claimed_at: Option<Millis>,
    /// Time at which its latest attempt ended.
    pub ended_at: Option<Millis>,
    /// Run time of its latest attempt that ended.
    pub ran: Option<Duration>,
    /// The error of its latest attempt.
    pub error: Option<JobError>,
    /// Reason for which it ended without success.
    pub reason: Option<JobEndReason>,
}

impl FoundJob {
    /// Returns the time it waited for its first attempt; of a waiting job, the time it has waited. `None`
    /// if it has had an attempt before, and of schedules, which begin anew.
    pub fn waited(&self, now: Millis) -> Option<Duration> {
        let job = self.job.as_ref().filter(|job| job.attempts == 0 && !job.is_cron())?;
        let until = match self.status {
            Status::Waiting => now,
            _ => self.claimed_at?,
        };
        Some(until.since(job.due()))
    }

    /// Returns the run time of its latest attempt; of an active job, the time it has run.
    pub fn took(&self, now: Millis) -> Option<Duration> {
        match (self.status, self.claimed_at) {
            (Status::Active, at) => at.map(|at| now.since(at)),
            _ => self.ran,
        }
    }

    /// Returns the name of the group of dead letters it belongs to: those of one type and reason whose
    /// errors differ in numbers and ids only.
    fn group(&self) -> Option<String> {
        let error = self.error.as_ref()?;
        let job_type = self.job.as_ref().map_or("", |job| job.job_type.as_str());
        let reason = self.reason.map_or("", JobEndReason::as_str);
        let (name, message) = (error.name.as_deref().unwrap_or_default(), pattern(&error.message));
        let digest = sha1_smol::Sha1::from(format!("{job_type}\n{reason}\n{name}\n{message}"));
        Some(digest.digest().to_string().chars().take(12).collect())
    }
}

/// A message with its numbers and ids replaced, so that errors that differ in those only are the same.
fn pattern(message: &str) -> String {
    let first: String = message.chars().take(400).collect();
    let mut out = String::with_capacity(first.len());
    for word in first.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '-' || c == '_')) {
        if word.chars().any(|c| c.is_ascii_digit()) {
            out.push('#');
            out.extend(word.chars().last().filter(|c| !c.is_alphanumeric()));
        } else {
            out.push_str(word);
        }
    }
    out
}

/// Dead letters that ended with the same error.
#[derive(Clone, Debug)]
pub struct DeadLetterGroup {
    /// Its name, for [`Filter::group`].
    pub group: String,
    /// The type of its jobs.
    pub job_type: String,
    /// Reason for which they ended.
    pub reason: Option<JobEndReason>,
    /// The error of the newest of them.
    pub error: JobError,
    /// Number of jobs.
    pub count: usize,
    /// Time at which the newest ended.
    pub newest: Option<Millis>,
    /// Time at which the oldest ended.
    pub oldest: Option<Millis>,
    /// The newest of them.
    pub example: JobId,
}

/// The dead letters by error.
#[derive(Clone, Debug)]
pub struct DeadGroups {
    /// The groups, the largest first.
    pub groups: Vec<DeadLetterGroup>,
    /// Every dead letter was looked at.
    pub is_whole: bool,
    /// The newest dead letters.
    pub newest: Vec<FoundJob>,
    /// The place behind these, if there may be more.
    pub next: Option<Cursor>,
}

/// Data about a job that is stored outside its own documents.
#[derive(Debug, Default)]
struct Surroundings {
    worker_id: Option<String>,
    claimed_at: Option<Millis>,
    due: Option<Millis>,
    last: Option<FailedAttempt>,
}

impl Surroundings {
    /// Puts together what is known of a job. A result is kept for a day; the latest failed attempt of a
    /// dead letter as long as the letter.
    fn complete(
        self,
        id: JobId,
        status: Status,
        job: Option<Job>,
        result: Option<JobResult>,
    ) -> FoundJob {
        let Self { mut worker_id, mut claimed_at, due, last } = self;
        let (mut ended_at, mut ran, mut error) = (None, None, None);
        let stored = last.as_ref().and_then(|last| last.reason);
        if let Some(last) = last {
            ended_at = Some(Millis(last.at));
            ran = Some(Duration::from_millis(last.processing_time));
            claimed_at = last.claimed_at.map(Millis);
            worker_id = Some(last.worker_id);
            error = Some(last.error);
        } else if let Some(result) = result {
            ended_at = Some(Millis(result.completed_at));
            ran = (result.success || result.processing_time > 0)
                .then(|| Duration::from_millis(result.processing_time));
            if !result.success && status != Status::Active {
                (worker_id, claimed_at) = (None, None);
            }
            error = result.error;
        }
        let reason = JobEndReason::of(status, stored, job.as_ref(), error.as_ref());
        FoundJob { id, status, job, due, worker_id, claimed_at, ended_at, ran, error, reason }
    }
}

/// Adds reads of what is stored elsewhere about jobs of a list: who runs them, when they come due, their
/// latest failed attempt.
fn add_surroundings(pipe: &mut redis::Pipeline, keys: &Keys, which: JobList, ids: &[String]) {
    match which {
        JobList::Waiting => {}
        JobList::Finished => {
            let attempts: Vec<Key> = ids.iter().map(|id| keys.attempt(id)).collect();
            pipe.cmd("MGET").arg(attempts);
        }
        JobList::Active => {
            let locks: Vec<Key> = ids.iter().map(|id| keys.lock(id)).collect();
            pipe.cmd("HMGET").arg(keys.claims()).arg(ids).cmd("MGET").arg(locks);
        }
        JobList::Delayed => _ = pipe.cmd("ZMSCORE").arg(keys.delayed()).arg(ids),
        JobList::Dead => {
            ids.iter().for_each(|id| _ = pipe.cmd("LINDEX").arg(keys.history(id)).arg(-1));
        }
    }
}

/// Takes what is stored elsewhere about so many jobs of a list.
fn read_surroundings(
    replies: &mut Replies,
    which: JobList,
    count: usize,
) -> Result<Vec<Surroundings>, Error> {
    let mut all: Vec<Surroundings> = Vec::new();
    all.resize_with(count, Surroundings::default);
    match which {
        JobList::Waiting => {}
        JobList::Finished => {
            let claims: Vec<Option<String>> = replies.take()?;
            for (around, claim) in all.iter_mut().zip(claims) {
                (around.worker_id, around.claimed_at) = holder(claim.as_deref(), None);
            }
        }
        JobList::Active => {
            let (claims, locks): (Vec<Option<String>>, Vec<Option<String>>) =
                (replies.take()?, replies.take()?);
            for ((around, claim), lock) in all.iter_mut().zip(claims).zip(locks) {
                (around.worker_id, around.claimed_at) = holder(claim.as_deref(), lock);
            }
        }
        JobList::Delayed => {
            let due: Vec<Option<f64>> = replies.take()?;
            for (around, due) in all.iter_mut().zip(due) {
                around.due = due.map(|due| Millis(due as i64));
            }
        }
        JobList::Dead => {
            for around in &mut all {
                let last: Option<Vec<u8>> = replies.take()?;
                around.last = last.and_then(|last| serde_json::from_slice(&last).ok());
            }
        }
    }
    Ok(all)
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

impl Filter {
    /// The lists to look through from a place on, and the offset in the first of them.
    fn lists_from(&self, from: Option<Cursor>) -> (&[JobList], usize) {
        let lists = self.which.as_ref().map_or(&JobList::ALL[..], std::slice::from_ref);
        let Some(Cursor { which, offset }) = from else { return (lists, 0) };
        let begin = lists.iter().position(|list| *list == which).unwrap_or(lists.len());
        (&lists[begin..], offset)
    }
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
        let (lists, mut offset) = filter.lists_from(from);
        let (mut found, mut looked) = (Vec::new(), 0);
        for &which in lists {
            loop {
                if looked >= LOOK_MAX || found.len() >= most {
                    return Ok((found, Some(Cursor { which, offset })));
                }
                let all = filter.takes_all();
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
                if count < chunk {
                    break;
                }
            }
            offset = 0;
        }
        Ok((found, None))
    }

    /// Jobs that fit in an order of choice: `most` from an offset on, and whether there are more.
    ///
    /// The first [`LOOK_MAX`] jobs of the lists are put in order.
    pub async fn find_sorted(
        &self,
        filter: &Filter,
        sort: (SortKey, bool),
        offset: usize,
        most: usize,
    ) -> Result<(Vec<FoundJob>, bool), Error> {
        let (key, descending) = sort;
        let now = self.now();
        let wanted = offset.saturating_add(most).min(LOOK_MAX);
        let (mut best, mut count): (Vec<FoundJob>, usize) = (Vec::new(), 0);
        self.walk(filter, LOOK_MAX, |found, _| {
            count += 1;
            best.push(found);
            if best.len() >= wanted.saturating_mul(2).max(CHUNK) {
                key.sort(descending, now, &mut best);
                best.truncate(wanted);
            }
        })
        .await?;
        key.sort(descending, now, &mut best);
        best.truncate(wanted);
        let page = best.into_iter().skip(offset).take(most).collect();
        Ok((page, count > wanted))
    }

    /// Groups the dead letters by their errors, the largest group first, and returns the newest `most` of
    /// them beside. Looks at the newest [`LOOK_MAX`].
    pub async fn dead_groups(&self, filter: &Filter, most: usize) -> Result<DeadGroups, Error> {
        let filter = Filter { which: Some(JobList::Dead), ..filter.clone() };
        let mut groups: HashMap<String, DeadLetterGroup> = HashMap::new();
        let (mut newest, mut end, mut has_more) = (Vec::new(), 0, false);
        let is_whole = self
            .walk(&filter, LOOK_MAX, |found, place| {
                if newest.len() < most {
                    newest.push(found.clone());
                    end = place.offset + 1;
                } else {
                    has_more = true;
                }
                let Some(name) = found.group() else { return };
                let ended = found.ended_at;
                if let Some(group) = groups.get_mut(&name) {
                    group.count += 1;
                    group.newest = group.newest.max(ended);
                    group.oldest = match (group.oldest, ended) {
                        (Some(a), Some(b)) => Some(a.min(b)),
                        (a, b) => a.or(b),
                    };
                    return;
                }
                let group = DeadLetterGroup {
                    group: name.clone(),
                    job_type: found.job.map(|job| job.job_type.to_string()).unwrap_or_default(),
                    reason: found.reason,
                    error: found.error.unwrap_or_default(),
                    count: 1,
                    newest: ended,
                    oldest: ended,
                    example: found.id,
                };
                groups.insert(name, group);
            })
            .await?;
        let mut groups: Vec<DeadLetterGroup> = groups.into_values().collect();
        groups.sort_by(|a, b| (b.count, b.newest, &a.group).cmp(&(a.count, a.newest, &b.group)));
        let next = Cursor { which: JobList::Dead, offset: end };
        let next = (has_more || !is_whole).then_some(next);
        Ok(DeadGroups { groups, is_whole, newest, next })
    }

    /// Shows a caller the jobs that fit and where they stand, looking at a bounded number; says whether
    /// those were all.
    async fn walk(
        &self,
        filter: &Filter,
        most: usize,
        mut show: impl FnMut(FoundJob, Cursor),
    ) -> Result<bool, Error> {
        let lists: &[JobList] = match &filter.which {
            Some(which) => std::slice::from_ref(which),
            None => &JobList::ALL,
        };
        let mut looked = 0;
        for &which in lists {
            let mut offset = 0;
            loop {
                if looked >= most {
                    return Ok(false);
                }
                let wanted = CHUNK.min(most - looked);
                let ids = self.ids(which, offset, wanted).await?;
                let count = ids.len();
                if count == 0 {
                    break;
                }
                looked += count;
                for (nth, fits) in self.sift(filter, which, ids).await?.into_iter().enumerate() {
                    if let Some(found) = fits {
                        show(found, Cursor { which, offset: offset + nth });
                    }
                }
                offset += count;
                if count < wanted {
                    break;
                }
            }
        }
        Ok(true)
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
        let mut pipe = redis::pipe();
        pipe.cmd("MGET").arg(wanted);
        add_surroundings(&mut pipe, keys, which, &ids);
        let mut replies = self.read(&pipe).await?;
        let parts: Vec<Option<Vec<u8>>> = replies.take()?;
        let surroundings = read_surroundings(&mut replies, which, ids.len())?;
        let listed = ids.into_iter().zip(parts.chunks_exact(3)).zip(surroundings);
        let sifted = listed.map(|((id, part), around)| {
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
            let result: Option<JobResult> =
                result.as_ref().and_then(|result| serde_json::from_slice(result).ok());
            let found = around.complete(id, status, job, result);
            filter.takes(&found).then_some(found)
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
        let (lists, mut offset) = filter.lists_from(from);
        let mut bulk = BulkReport { done: Vec::new(), refused: Vec::new(), next: None };
        let mut looked = 0;
        for &which in lists {
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

#[cfg(test)]
mod tests {
    use super::pattern;

    #[test]
    fn errors_that_differ_in_numbers_and_ids_have_one_pattern() {
        assert_eq!(pattern("order 17 not found"), pattern("order 4711 not found"));
        assert_eq!(pattern("no user 9f2c-11, retry in 3 s"), pattern("no user 8e-2, retry in 7 s"));
        assert_ne!(pattern("order 17 not found"), pattern("user 17 not found"));
        assert_eq!(pattern("a, b"), "a, b");
    }
}
