//! Job types with their counts and workers, for the page, the API and `tidegate top`.

use std::collections::BTreeMap;

use jobs::{Overview, TypeCounts};

/// A job type: jobs by state, live workers that name it.
#[derive(Debug, Default)]
pub(crate) struct TypeRow {
    pub(crate) counts: TypeCounts,
    pub(crate) workers: usize,
}

/// Returns the types that have jobs, workers or a pause.
pub(crate) fn rows(overview: &Overview) -> BTreeMap<String, TypeRow> {
    let mut types: BTreeMap<String, TypeRow> = BTreeMap::new();
    for (job_type, counts) in &overview.census.types {
        types.entry(job_type.clone()).or_default().counts = *counts;
    }
    for worker in overview.workers.iter().filter(|worker| worker.alive) {
        for job_type in worker.types.iter().flatten() {
            types.entry(job_type.clone()).or_default().workers += 1;
        }
    }
    types
}
