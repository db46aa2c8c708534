//! Progress and log lines of a job.

use serde_json::value::RawValue;
use store::redis::{self, AsyncCommands as _};

use crate::text::{METADATA_MAX, NOTE_MAX, clip, clip_owned, unreadable};
use crate::{Error, JobId, JobProgress, Jobs, signals::PROGRESS};

/// Most bytes of one log line.
pub const LINE_MAX: usize = 4 * 1024;

impl Jobs {
    /// Says how far a running job is, 0 to 100.
    pub async fn set_progress(
        &self,
        id: &JobId,
        percent: f64,
        message: Option<String>,
        data: Option<Box<RawValue>>,
    ) -> Result<(), Error> {
        if !percent.is_finite() {
            return Err(Error::invalid("progress is a number from 0 to 100"));
        }
        if let Some(data) = &data {
            if data.get().len() > METADATA_MAX {
                return Err(Error::invalid(format!(
                    "the data of a progress has {} bytes, more than {METADATA_MAX}",
                    data.get().len()
                )));
            }
            if let Some(problem) = unreadable(data.get()) {
                return Err(Error::invalid(format!("the data of a progress: {problem}")));
            }
        }
        let message = message.map(|message| clip_owned(message, NOTE_MAX));
        let progress = JobProgress {
            percent: percent.clamp(0.0, 100.0),
            message,
            data,
            updated_at: self.now().0,
        };
        let text = serde_json::to_string(&progress)
            .map_err(|error| Error::invalid(format!("progress is not JSON: {error}")))?;
        let mut store = self.store().clone();
        let () = redis::pipe()
            .set(self.keys().progress(id.as_str()), text)
            .ignore()
            .publish(self.keys().signal(), format!("{PROGRESS}{id}"))
            .ignore()
            .query_async(&mut store)
            .await?;
        Ok(())
    }

    /// Returns the progress of a job, if it has reported any.
    pub async fn progress(&self, id: &JobId) -> Result<Option<JobProgress>, Error> {
        let mut store = self.store().clone();
        let text: Option<Vec<u8>> = store.get(self.keys().progress(id.as_str())).await?;
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    /// Adds a line to a job's log, which keeps the latest few.
    pub async fn log(&self, id: &JobId, line: &str) -> Result<(), Error> {
        let key = self.keys().log(id.as_str());
        let most = isize::try_from(self.config().log_max).unwrap_or(isize::MAX);
        let line = format!("{} {}", self.now(), clip(line, LINE_MAX));
        let mut store = self.store().clone();
        let () = redis::pipe()
            .rpush(&key, line)
            .ignore()
            .ltrim(&key, -most, -1)
            .ignore()
            .expire(&key, i64::try_from(self.config().keep_dead_for.as_secs()).unwrap_or(i64::MAX))
            .ignore()
            .query_async(&mut store)
            .await?;
        Ok(())
    }

    /// A job's log, oldest first: when in milliseconds, and what.
    pub async fn logs(&self, id: &JobId) -> Result<Vec<(i64, String)>, Error> {
        let mut store = self.store().clone();
        let lines: Vec<String> = store.lrange(self.keys().log(id.as_str()), 0, -1).await?;
        let split = |line: String| {
            let (at, text) = line.split_once(' ')?;
            Some((at.parse().ok()?, text.to_owned()))
        };
        Ok(lines.into_iter().filter_map(split).collect())
    }
}
