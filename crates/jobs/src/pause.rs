//! Pausing: no job of a type starts until it is resumed. What runs goes on.

use store::redis::{self, AsyncCommands as _};

use crate::{Error, JobType, Jobs};

impl Jobs {
    /// Stops jobs of a type from starting.
    pub async fn pause(&self, job_type: &JobType) -> Result<(), Error> {
        let mut store = self.store().clone();
        let () = store.sadd(self.keys().paused(), job_type.as_str()).await?;
        Ok(())
    }

    /// Lets jobs of a type start again, and wakes the workers that wait for them.
    pub async fn resume(&self, job_type: &JobType) -> Result<(), Error> {
        let mut store = self.store().clone();
        let () = redis::pipe()
            .atomic()
            .srem(self.keys().paused(), job_type.as_str())
            .ignore()
            .cmd("ZADD")
            .arg(self.keys().parked())
            .arg("XX")
            .arg(0)
            .arg(job_type.as_str())
            .ignore()
            .publish(self.keys().wake(), "free")
            .ignore()
            .query_async(&mut store)
            .await?;
        Ok(())
    }

    /// The types that are paused.
    pub async fn paused(&self) -> Result<Vec<JobType>, Error> {
        let mut store = self.store().clone();
        let mut job_types: Vec<String> = store.smembers(self.keys().paused()).await?;
        job_types.sort();
        Ok(job_types.into_iter().map(JobType::stored).collect())
    }
}
