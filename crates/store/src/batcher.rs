//! Batches concurrent calls of one kind.
//!
//! The first caller becomes the leader and sends its call immediately; calls that arrive while it
//! is in flight are sent together as the next batch. There is no timer: a call that is alone is
//! sent alone. Where earlier batches held several calls the leader yields once before it sends, so
//! that concurrent callers can join; where they did not, it tries that now and then. Invariant:
//! while a call is queued, some caller leads. A leader that is dropped half way puts the calls it
//! collected back and passes the lead on, so a call may be sent twice and must be idempotent.
//!
//! `docs/batching.md` compares this with group commit and flat combining, the other two places
//! where work of several callers is done as one.

use std::{collections::VecDeque, fmt};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Largest batch in calls, and in bytes, so that a batch does not keep other callers of the store
/// waiting for long.
pub const CALLS_MAX: usize = 128;
/// See [`CALLS_MAX`].
pub const BYTES_MAX: usize = 1 << 20;
/// Calls sent alone before the leader yields once more, to see whether others would join.
const SOLO_CALLS_BEFORE_RETRY: u32 = 16;

/// A call that can be sent together with others of its kind.
pub trait Batchable: Sized + Send + Sync + fmt::Debug + 'static {
    /// Client that sends a batch.
    type Context: Sync;
    /// Answer to one call.
    type Answer: Send + fmt::Debug;
    /// Error of a batch.
    type Error: From<crate::Error> + Clone + Send + fmt::Debug;

    /// Returns the approximate size of the call in bytes.
    fn size(&self) -> usize {
        0
    }

    /// Sends calls as one batch: an answer for each, in order, or one error for all. A call must be
    /// idempotent.
    fn send_batch(
        context: &Self::Context,
        calls: &[Self],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, Self::Error>> + Send;

    /// Returns true if one bad call can fail the whole batch; each call is then retried alone.
    fn should_retry_individually(_error: &Self::Error) -> bool {
        false
    }
}

/// Batches concurrent calls of one kind.
#[derive(Debug)]
pub struct Batcher<C: Batchable> {
    /// Largest number of batches in flight.
    max_in_flight: usize,
    state: Mutex<BatcherState<C>>,
}

#[derive(Debug)]
struct BatcherState<C: Batchable> {
    in_flight: usize,
    /// Calls sent alone since the last batch of several.
    solo_calls: u32,
    /// Calls that will be in one of the next batches.
    waiting: VecDeque<QueuedCall<C>>,
}

#[derive(Debug)]
struct QueuedCall<C: Batchable> {
    call: C,
    turn: oneshot::Sender<Turn<C>>,
}

/// Message to a caller whose call is queued.
#[derive(Debug)]
enum Turn<C: Batchable> {
    /// It leads the next batch, its own call, which it gets back, included.
    Lead(C),
    /// Its call was sent with this result.
    Done(Result<C::Answer, C::Error>),
}

impl<C: Batchable> Batcher<C> {
    /// Creates a batcher with at most so many batches in flight.
    pub fn new(max_in_flight: usize) -> Self {
        Self {
            max_in_flight,
            state: Mutex::new(BatcherState {
                in_flight: 0,
                solo_calls: 0,
                waiting: VecDeque::new(),
            }),
        }
    }

    /// Sends a call, in a batch with others if there are any.
    pub async fn call(&self, context: &C::Context, call: C) -> Result<C::Answer, C::Error> {
        let own = match self.enter(call) {
            Ok(call) => call,
            Err(turn) => match (Waiter { batcher: self, turn }).turn().await? {
                Turn::Lead(call) => call,
                Turn::Done(answer) => return answer,
            },
        };
        let mut lead = BatchLeader { batcher: self, calls: vec![own], turns: Vec::new() };
        if self.should_yield() {
            tokio::task::yield_now().await;
        }
        lead.collect();
        let answers = match C::send_batch(context, &lead.calls).await {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(error) if lead.calls.len() > 1 && C::should_retry_individually(&error) => {
                let mut answers = Vec::with_capacity(lead.calls.len());
                for call in &lead.calls {
                    let answer = C::send_batch(context, std::slice::from_ref(call)).await;
                    answers
                        .push(answer.and_then(|list| list.into_iter().next().ok_or_else(missing)));
                }
                answers
            }
            Err(error) => lead.calls.iter().map(|_| Err(error.clone())).collect(),
        };
        lead.finish(answers)
    }

    /// Returns the call if its caller leads a batch at once; queues it otherwise.
    fn enter(&self, call: C) -> Result<C, oneshot::Receiver<Turn<C>>> {
        let mut state = self.state.lock();
        if state.in_flight < self.max_in_flight {
            state.in_flight += 1;
            return Ok(call);
        }
        let (turn, receiver) = oneshot::channel();
        state.waiting.push_back(QueuedCall { call, turn });
        Err(receiver)
    }

    /// Records a batch and reports whether to yield once before sending it, so that concurrent
    /// callers can join.
    fn should_yield(&self) -> bool {
        let mut state = self.state.lock();
        state.solo_calls = state.solo_calls.saturating_add(1);
        state.solo_calls <= 1
            || state.solo_calls.is_multiple_of(SOLO_CALLS_BEFORE_RETRY)
            || !state.waiting.is_empty()
    }

    /// Passes the lead to the call that has been queued longest.
    fn pass_lead(&self) {
        loop {
            let mut state = self.state.lock();
            let Some(QueuedCall { call, turn }) = state.waiting.pop_front() else {
                state.in_flight -= 1;
                return;
            };
            drop(state);
            // A caller that was dropped is skipped.
            if turn.send(Turn::Lead(call)).is_ok() {
                return;
            }
        }
    }
}

/// A caller whose call is queued.
struct Waiter<'a, C: Batchable> {
    batcher: &'a Batcher<C>,
    turn: oneshot::Receiver<Turn<C>>,
}

impl<C: Batchable> Waiter<'_, C> {
    async fn turn(mut self) -> Result<Turn<C>, C::Error> {
        // A leader answers every call of its batch, so the sender is never dropped unused.
        (&mut self.turn).await.map_err(|_| missing())
    }
}

impl<C: Batchable> Drop for Waiter<'_, C> {
    fn drop(&mut self) {
        self.turn.close();
        if let Ok(Turn::Lead(_)) = self.turn.try_recv() {
            self.batcher.pass_lead();
        }
    }
}

/// The leader of a batch, with the calls it collected.
struct BatchLeader<'a, C: Batchable> {
    batcher: &'a Batcher<C>,
    /// The leader's own call comes first.
    calls: Vec<C>,
    /// One per call but the leader's.
    turns: Vec<oneshot::Sender<Turn<C>>>,
}

impl<C: Batchable> BatchLeader<'_, C> {
    fn collect(&mut self) {
        let mut state = self.batcher.state.lock();
        let mut bytes: usize = self.calls.iter().map(C::size).sum();
        let fits = |waiting: &&QueuedCall<C>| {
            bytes += waiting.call.size();
            bytes <= BYTES_MAX
        };
        let count = state.waiting.iter().take(CALLS_MAX - 1).take_while(fits).count();
        if count > 0 {
            state.solo_calls = 0;
        }
        self.calls.reserve(count);
        self.turns.reserve(count);
        for QueuedCall { call, turn } in state.waiting.drain(..count) {
            self.calls.push(call);
            self.turns.push(turn);
        }
    }

    /// Answers every caller and returns the leader's own answer, which is the first.
    fn finish(mut self, answers: Vec<Result<C::Answer, C::Error>>) -> Result<C::Answer, C::Error> {
        self.calls.clear();
        let mut answers = answers.into_iter();
        let mut next = || answers.next().unwrap_or_else(|| Err(missing()));
        let own = next();
        for turn in self.turns.drain(..) {
            // A caller that was dropped wants no answer.
            let _ = turn.send(Turn::Done(next()));
        }
        own
    }
}

/// The error for a call without an answer: there were fewer answers than calls.
fn missing<E: From<crate::Error>>() -> E {
    crate::Error::Decode { message: "a call has no answer".to_owned() }.into()
}

impl<C: Batchable> Drop for BatchLeader<'_, C> {
    fn drop(&mut self) {
        // Dropped half way: the collected calls go back to the front of the queue.
        if !self.turns.is_empty() {
            let mut state = self.batcher.state.lock();
            let calls = self.calls.drain(..).skip(1);
            let back: Vec<_> = calls.zip(self.turns.drain(..)).collect();
            for (call, turn) in back.into_iter().rev() {
                state.waiting.push_front(QueuedCall { call, turn });
            }
        }
        self.batcher.pass_lead();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::Error;

    /// Counts the batches it was sent.
    #[derive(Debug, Default)]
    struct FakeStore {
        batches: AtomicUsize,
        broken: bool,
    }

    /// Answers twice its number; 13 fails the whole batch, 99 never ends.
    #[derive(Debug)]
    struct Double(usize);

    impl Batchable for Double {
        type Context = FakeStore;
        type Answer = usize;
        type Error = Error;

        fn size(&self) -> usize {
            if self.0 >= 1_000 { BYTES_MAX / 2 } else { 10 }
        }

        async fn send_batch(store: &FakeStore, calls: &[Double]) -> Result<Vec<usize>, Error> {
            store.batches.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            match () {
                () if store.broken => Err(Error::Oom),
                () if calls.iter().any(|call| call.0 == 99) => std::future::pending().await,
                () if calls.iter().any(|call| call.0 == 13) => {
                    Err(Error::Script { script: "double", message: "13".to_owned() })
                }
                () => Ok(calls.iter().map(|call| call.0 * 2).collect()),
            }
        }

        fn should_retry_individually(error: &Error) -> bool {
            matches!(error, Error::Script { .. })
        }
    }

    /// Makes calls concurrently.
    async fn together(
        batcher: &Batcher<Double>,
        store: &FakeStore,
        numbers: impl IntoIterator<Item = usize>,
    ) -> Vec<Result<usize, Error>> {
        let calls = numbers.into_iter().map(|n| batcher.call(store, Double(n)));
        futures_util::future::join_all(calls).await
    }

    #[tokio::test]
    async fn concurrent_calls_are_batched_and_each_gets_its_own_answer() {
        for max_in_flight in [1, 2, 4] {
            let (batcher, store) = (Batcher::new(max_in_flight), FakeStore::default());
            let numbers: Vec<usize> = (100..600).collect();
            let answers = together(&batcher, &store, numbers.iter().copied()).await;
            for (number, answer) in numbers.iter().zip(answers) {
                assert_eq!(answer.unwrap(), number * 2);
            }
            let made = store.batches.load(Ordering::SeqCst);
            assert!((4..=12).contains(&made), "{made} times for 500 calls");
        }
    }

    #[tokio::test]
    async fn large_calls_are_sent_in_smaller_batches() {
        let (batcher, store) = (Batcher::new(1), FakeStore::default());
        let answers = together(&batcher, &store, 1_000..1_009).await;
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(store.batches.load(Ordering::SeqCst), 5, "two fit");
    }

    #[tokio::test]
    async fn a_dropped_leader_passes_the_lead_on() {
        let (batcher, store) = (Batcher::new(1), FakeStore::default());
        {
            let first = batcher.call(&store, Double(99));
            let second = batcher.call(&store, Double(2));
            tokio::select! {
                _ = async { tokio::join!(first, second) } => unreachable!(),
                () = async { while store.batches.load(Ordering::SeqCst) == 0 { tokio::task::yield_now().await } } => {}
            }
        }
        assert_eq!(batcher.call(&store, Double(3)).await.unwrap(), 6);
    }

    #[tokio::test]
    async fn an_error_reaches_every_caller_and_a_bad_call_fails_alone() {
        let (batcher, store) =
            (Batcher::new(1), FakeStore { broken: true, ..FakeStore::default() });
        for answer in together(&batcher, &store, 0..5).await {
            assert!(matches!(answer, Err(Error::Oom)));
        }
        let store = FakeStore::default();
        for (number, answer) in together(&batcher, &store, 10..16).await.into_iter().enumerate() {
            assert_eq!(answer.is_err(), number == 3, "{answer:?}");
        }
    }
}
