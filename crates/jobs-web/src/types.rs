//! Job types with their counts and workers, for the page, the API and `tidegate top`.

use std::collections::BTreeMap;

use jobs::{Jobs, TypeCounts};

/// A job type: jobs by state, live workers that name it.
#[derive(Debug, Default)]
pub(crate) struct TypeRow {
    pub(crate) counts: TypeCounts,
    pub(crate) workers: usize,
}

/// Reads the types that have jobs, workers or a pause.
pub(crate) async fn read(jobs: &Jobs) -> Result<BTreeMap<String, TypeRow>, jobs::Error> {
    let mut types: BTreeMap<String, TypeRow> = BTreeMap::new();
    for (job_type, counts) in jobs.census().await?.types {
        types.entry(job_type).or_default().counts = counts;
    }
    for worker in jobs.workers().await?.iter().filter(|worker| worker.alive) {
        for job_type in worker.types.iter().flatten() {
            types.entry(job_type.clone()).or_default().workers += 1;
        }
    }
    for job_type in jobs.stats().await?.paused {
        types.entry(job_type).or_default().counts.paused = true;
    }
    Ok(types)
}
