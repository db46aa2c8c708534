//! Calls of one kind that are under way at the same time, made as one.
//!
//! The first caller makes its call at once; whoever comes while it is under way waits and goes with
//! the next. Nothing waits for a clock: alone, a call is made alone. Where calls came together
//! before, whoever leads lets others have their turn first, so that they can come along; where they
//! did not, this is tried now and then. Invariant: while anybody waits, somebody leads. Who leads
//! and is dropped half way gives back those who came along and hands on the lead; a call must
//! therefore bear to be made twice.

use std::{collections::VecDeque, fmt};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The most calls made as one, and the most bytes, so that others do not wait for the store for
/// long.
pub const CALLS_MAX: usize = 128;
/// See [`CALLS_MAX`].
pub const BYTES_MAX: usize = 1 << 20;
/// So many calls are made alone before it is tried again whether others would come along.
const ALONE: u32 = 16;

/// A call that can be made together with others of its kind.
pub trait Call: Sized + Send + Sync + fmt::Debug + 'static {
    /// What calls are made with.
    type With: Sync;
    /// What each caller is told.
    type Answer: Send + fmt::Debug;
    /// Why it could not be made.
    type Error: From<crate::Error> + Clone + Send + fmt::Debug;

    /// About how many bytes it is.
    fn size(&self) -> usize {
        0
    }

    /// Makes calls as one: an answer for each, in order, or one error for all. Made again, a call
    /// must come to the same.
    fn make(
        with: &Self::With,
        calls: &[Self],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, Self::Error>> + Send;

    /// May one call have spoilt it for those it went with? Then each is made alone.
    fn is_spoilt(_error: &Self::Error) -> bool {
        false
    }
}

/// Where calls of a kind meet.
#[derive(Debug)]
pub struct Gather<C: Call> {
    /// How many may lead at the same time.
    leads: usize,
    state: Mutex<State<C>>,
}

#[derive(Debug)]
struct State<C: Call> {
    leading: usize,
    /// Calls made alone since some were made together.
    alone: u32,
    /// As many as there are callers.
    waiting: VecDeque<Waiting<C>>,
}

#[derive(Debug)]
struct Waiting<C: Call> {
    call: C,
    turn: oneshot::Sender<Turn<C>>,
}

/// What a waiting caller is told.
#[derive(Debug)]
enum Turn<C: Call> {
    /// To make the next calls, its own, which it gets back, among them.
    Lead(C),
    /// What its call came to.
    Done(Result<C::Answer, C::Error>),
}

impl<C: Call> Gather<C> {
    /// A meeting place where so many calls may be under way at the same time.
    pub fn new(leads: usize) -> Self {
        Self { leads, state: Mutex::new(State { leading: 0, alone: 0, waiting: VecDeque::new() }) }
    }

    /// Makes a call, together with others if there are any.
    pub async fn call(&self, with: &C::With, call: C) -> Result<C::Answer, C::Error> {
        let own = match self.enter(call) {
            Ok(call) => call,
            Err(turn) => match (Waiter { gather: self, turn }).turn().await? {
                Turn::Lead(call) => call,
                Turn::Done(answer) => return answer,
            },
        };
        let mut lead = Lead { gather: self, calls: vec![own], turns: Vec::new() };
        if self.expects_company() {
            tokio::task::yield_now().await;
        }
        lead.take_along();
        let answers = match C::make(with, &lead.calls).await {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(error) if lead.calls.len() > 1 && C::is_spoilt(&error) => {
                let mut answers = Vec::with_capacity(lead.calls.len());
                for call in &lead.calls {
                    let answer = C::make(with, std::slice::from_ref(call)).await;
                    answers
                        .push(answer.and_then(|list| list.into_iter().next().ok_or_else(missing)));
                }
                answers
            }
            Err(error) => lead.calls.iter().map(|_| Err(error.clone())).collect(),
        };
        lead.finish(answers)
    }

    /// The call back, if its caller leads, otherwise where it will hear.
    fn enter(&self, call: C) -> Result<C, oneshot::Receiver<Turn<C>>> {
        let mut state = self.state.lock();
        if state.leading < self.leads {
            state.leading += 1;
            return Ok(call);
        }
        let (turn, receiver) = oneshot::channel();
        state.waiting.push_back(Waiting { call, turn });
        Err(receiver)
    }

    /// One more call is made: are others likely to be about to call?
    fn expects_company(&self) -> bool {
        let mut state = self.state.lock();
        state.alone = state.alone.saturating_add(1);
        state.alone <= 1 || state.alone.is_multiple_of(ALONE) || !state.waiting.is_empty()
    }

    /// Hands the lead to whoever waits longest.
    fn hand_on(&self) {
        loop {
            let mut state = self.state.lock();
            let Some(Waiting { call, turn }) = state.waiting.pop_front() else {
                state.leading -= 1;
                return;
            };
            drop(state);
            // Whoever is not there any more does not want it.
            if turn.send(Turn::Lead(call)).is_ok() {
                return;
            }
        }
    }
}

/// A caller that waits.
struct Waiter<'a, C: Call> {
    gather: &'a Gather<C>,
    turn: oneshot::Receiver<Turn<C>>,
}

impl<C: Call> Waiter<'_, C> {
    async fn turn(mut self) -> Result<Turn<C>, C::Error> {
        // Whoever leads tells everybody, so there is always a turn.
        (&mut self.turn).await.map_err(|_| missing())
    }
}

impl<C: Call> Drop for Waiter<'_, C> {
    fn drop(&mut self) {
        self.turn.close();
        if let Ok(Turn::Lead(_)) = self.turn.try_recv() {
            self.gather.hand_on();
        }
    }
}

/// The lead, and who comes along.
struct Lead<'a, C: Call> {
    gather: &'a Gather<C>,
    /// The leader's own first.
    calls: Vec<C>,
    /// Of all but the leader.
    turns: Vec<oneshot::Sender<Turn<C>>>,
}

impl<C: Call> Lead<'_, C> {
    fn take_along(&mut self) {
        let mut state = self.gather.state.lock();
        let mut bytes: usize = self.calls.iter().map(C::size).sum();
        let fits = |waiting: &&Waiting<C>| {
            bytes += waiting.call.size();
            bytes <= BYTES_MAX
        };
        let count = state.waiting.iter().take(CALLS_MAX - 1).take_while(fits).count();
        if count > 0 {
            state.alone = 0;
        }
        self.calls.reserve(count);
        self.turns.reserve(count);
        for Waiting { call, turn } in state.waiting.drain(..count) {
            self.calls.push(call);
            self.turns.push(turn);
        }
    }

    /// Tells everybody their answer; the leader's is the first.
    fn finish(mut self, answers: Vec<Result<C::Answer, C::Error>>) -> Result<C::Answer, C::Error> {
        self.calls.clear();
        let mut answers = answers.into_iter();
        let mut next = || answers.next().unwrap_or_else(|| Err(missing()));
        let own = next();
        for turn in self.turns.drain(..) {
            // Whoever is not there any more does not want it.
            let _ = turn.send(Turn::Done(next()));
        }
        own
    }
}

/// There are fewer answers than calls.
fn missing<E: From<crate::Error>>() -> E {
    crate::Error::Decode { message: "a call has no answer".to_owned() }.into()
}

impl<C: Call> Drop for Lead<'_, C> {
    fn drop(&mut self) {
        // Dropped half way: those who came along wait again, before all others.
        if !self.turns.is_empty() {
            let mut state = self.gather.state.lock();
            let calls = self.calls.drain(..).skip(1);
            let back: Vec<_> = calls.zip(self.turns.drain(..)).collect();
            for (call, turn) in back.into_iter().rev() {
                state.waiting.push_front(Waiting { call, turn });
            }
        }
        self.gather.hand_on();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::Error;

    /// What a made call comes to, and how many were made.
    #[derive(Debug, Default)]
    struct Store {
        made: AtomicUsize,
        broken: bool,
    }

    /// Comes to twice its number; 13 spoils it for all, 99 never ends.
    #[derive(Debug)]
    struct Double(usize);

    impl Call for Double {
        type With = Store;
        type Answer = usize;
        type Error = Error;

        fn size(&self) -> usize {
            if self.0 >= 1_000 { BYTES_MAX / 2 } else { 10 }
        }

        async fn make(store: &Store, calls: &[Double]) -> Result<Vec<usize>, Error> {
            store.made.fetch_add(1, Ordering::SeqCst);
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

        fn is_spoilt(error: &Error) -> bool {
            matches!(error, Error::Script { .. })
        }
    }

    /// Makes calls at the same time.
    async fn together(
        gather: &Gather<Double>,
        store: &Store,
        numbers: impl IntoIterator<Item = usize>,
    ) -> Vec<Result<usize, Error>> {
        let calls = numbers.into_iter().map(|n| gather.call(store, Double(n)));
        futures_util::future::join_all(calls).await
    }

    #[tokio::test]
    async fn calls_at_the_same_time_are_made_as_one_and_each_gets_its_own_answer() {
        for leads in [1, 2, 4] {
            let (gather, store) = (Gather::new(leads), Store::default());
            let numbers: Vec<usize> = (100..600).collect();
            let answers = together(&gather, &store, numbers.iter().copied()).await;
            for (number, answer) in numbers.iter().zip(answers) {
                assert_eq!(answer.unwrap(), number * 2);
            }
            let made = store.made.load(Ordering::SeqCst);
            assert!((4..=12).contains(&made), "{made} times for 500 calls");
        }
    }

    #[tokio::test]
    async fn large_calls_go_in_smaller_company() {
        let (gather, store) = (Gather::new(1), Store::default());
        let answers = together(&gather, &store, 1_000..1_009).await;
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(store.made.load(Ordering::SeqCst), 5, "two fit");
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_leaves_nobody_behind() {
        let (gather, store) = (Gather::new(1), Store::default());
        {
            let first = gather.call(&store, Double(99));
            let second = gather.call(&store, Double(2));
            tokio::select! {
                _ = async { tokio::join!(first, second) } => unreachable!(),
                () = async { while store.made.load(Ordering::SeqCst) == 0 { tokio::task::yield_now().await } } => {}
            }
        }
        assert_eq!(gather.call(&store, Double(3)).await.unwrap(), 6);
    }

    #[tokio::test]
    async fn an_error_reaches_everyone_and_what_spoils_a_call_only_its_own() {
        let (gather, store) = (Gather::new(1), Store { broken: true, ..Store::default() });
        for answer in together(&gather, &store, 0..5).await {
            assert!(matches!(answer, Err(Error::Oom)));
        }
        let store = Store::default();
        for (number, answer) in together(&gather, &store, 10..16).await.into_iter().enumerate() {
            assert_eq!(answer.is_err(), number == 3, "{answer:?}");
        }
    }
}
