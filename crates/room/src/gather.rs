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

use crate::{Error, Known, Room};

/// The most calls made as one: well below a millisecond for the store.
const MOST: usize = 128;
/// So many calls are made alone before it is tried again whether others would come along.
const ALONE: u32 = 16;

/// A call that can be made together with others of its kind for the same queue.
pub(crate) trait Call: Sized + Send + Sync + fmt::Debug {
    /// What each caller is told.
    type Answer: Send + fmt::Debug;

    /// Makes calls as one: an answer for each, in order, or one error for all. Made again, a call
    /// must come to the same.
    fn make(
        room: &Room,
        known: &Known,
        calls: &[Self],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, Error>> + Send;
}

/// Where the calls of a kind for one queue meet.
#[derive(Debug)]
pub(crate) struct Gather<C: Call> {
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
    Done(Result<C::Answer, Error>),
}

impl<C: Call> Gather<C> {
    /// A meeting place where so many calls may be under way at the same time.
    pub(crate) fn new(leads: usize) -> Self {
        Self { leads, state: Mutex::new(State { leading: 0, alone: 0, waiting: VecDeque::new() }) }
    }

    /// Makes a call, together with others if there are any.
    pub(crate) async fn call(
        &self,
        room: &Room,
        known: &Known,
        call: C,
    ) -> Result<C::Answer, Error> {
        let own = match self.enter(call) {
            Ok(call) => call,
            Err(turn) => match (Waiter { gather: self, turn }).turn().await? {
                Turn::Lead(call) => call,
                Turn::Done(answer) => return answer,
            },
        };
        let mut lead = Lead { gather: self, calls: vec![own], turns: Vec::new() };
        if self.is_company_likely() {
            tokio::task::yield_now().await;
        }
        lead.take_along();
        let answers = match C::make(room, known, &lead.calls).await {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            // One of them may have spoilt it for all.
            Err(Error::Store(store::Error::Script { .. })) if lead.calls.len() > 1 => {
                let mut answers = Vec::with_capacity(lead.calls.len());
                for call in &lead.calls {
                    let answer = C::make(room, known, std::slice::from_ref(call)).await;
                    answers
                        .push(answer.and_then(|list| list.into_iter().next().ok_or(Error::Busy)));
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

    /// Is it likely that others are about to call?
    fn is_company_likely(&self) -> bool {
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
    async fn turn(mut self) -> Result<Turn<C>, Error> {
        // Whoever leads tells everybody, so there is always a turn.
        (&mut self.turn).await.map_err(|_| Error::Busy)
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
        let count = state.waiting.len().min(MOST - 1);
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
    fn finish(mut self, answers: Vec<Result<C::Answer, Error>>) -> Result<C::Answer, Error> {
        self.calls.clear();
        let mut answers = answers.into_iter();
        let own = answers.next().unwrap_or(Err(Error::Busy));
        for turn in self.turns.drain(..) {
            // Whoever is not there any more does not want it.
            let _ = turn.send(Turn::Done(answers.next().unwrap_or(Err(Error::Busy))));
        }
        own
    }
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
