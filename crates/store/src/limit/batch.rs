//! Sends concurrent checks of one algorithm as one script call.
//!
//! A check costs a store most of all because it is a call: batched ones share it. Each check is
//! decided by itself, in the order of the batch, so batching changes no outcome. On a cluster a
//! call takes keys of one slot only, so a batch is split by slot.

use futures_util::future::join_all;

use super::{ALGORITHM_COUNT, CheckOutcome, LimitCheck, check_same};
use crate::{
    Error, Layout, Store,
    batcher::{Batchable, Batcher},
};

/// Batches in flight per algorithm: one runs in the store while the next is collected and sent.
const MAX_IN_FLIGHT: usize = 2;

/// Batches concurrent checks of single limits.
#[derive(Debug)]
pub struct CheckBatcher {
    store: Store,
    /// One per algorithm, because a script knows one.
    batchers: [Batcher<LimitCheck>; ALGORITHM_COUNT],
}

impl CheckBatcher {
    /// Creates a batcher for a store.
    pub fn new(store: &Store) -> Self {
        let batchers = std::array::from_fn(|_| Batcher::new(MAX_IN_FLIGHT));
        Self { store: store.clone(), batchers }
    }

    /// Charges one request to one limit, in one call with concurrent checks. As
    /// [`check`](super::check) otherwise.
    pub async fn check(&self, check: LimitCheck) -> Result<CheckOutcome, Error> {
        // An invalid check fails here, alone.
        check.rule.validate_cost(check.cost)?;
        let [first, ..] = &self.batchers;
        let batcher = self.batchers.get(check.rule.number()).unwrap_or(first);
        batcher.call(&self.store, check).await?
    }
}

impl Batchable for LimitCheck {
    type Context = Store;
    /// Each check has its own result: on a cluster the node of one may be away, the other's not.
    type Answer = Result<CheckOutcome, Error>;
    type Error = Error;

    fn size(&self) -> usize {
        self.key.as_str().len() + self.request_id.len() + 64
    }

    async fn send_batch(store: &Store, calls: &[Self]) -> Result<Vec<Self::Answer>, Error> {
        if store.layout() == Layout::Standalone || calls.len() == 1 {
            return Ok(send(store, &calls.iter().collect::<Vec<_>>()).await);
        }
        let mut order: Vec<usize> = (0..calls.len()).collect();
        order.sort_by_key(|index| calls[*index].key.slot());
        let groups: Vec<&[usize]> =
            order.chunk_by(|a, b| calls[*a].key.slot() == calls[*b].key.slot()).collect();
        let sent = groups.iter().map(|group| async {
            let checks: Vec<&LimitCheck> = group.iter().map(|index| &calls[*index]).collect();
            send(store, &checks).await
        });
        let answers = join_all(sent).await.into_iter().flatten();
        let mut answers: Vec<_> = order.iter().copied().zip(answers).collect();
        answers.sort_by_key(|(index, _)| *index);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }
}

/// Sends checks of one slot. If the script fails, because one key holds another type, each check is
/// sent alone, so that the others do not suffer; those that were charged before are charged again,
/// which never allows more.
async fn send(store: &Store, checks: &[&LimitCheck]) -> Vec<Result<CheckOutcome, Error>> {
    match check_same(store, checks).await {
        Ok(outcomes) => outcomes.into_iter().map(Ok).collect(),
        Err(Error::Script { .. }) if checks.len() > 1 => {
            let mut answers = Vec::with_capacity(checks.len());
            for check in checks {
                answers.push(super::check(store, check).await);
            }
            answers
        }
        Err(error) => checks.iter().map(|_| Err(error.clone())).collect(),
    }
}
