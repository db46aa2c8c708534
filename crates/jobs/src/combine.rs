//! Calls that happen at the same time go to the store together.
//!
//! There is no task behind it: a caller puts its item into the queue, and whoever finds one of the
//! few places free carries the whole queue to the store. So a lone call waits for nobody, and many
//! at once share a round trip. Invariant: an item is answered exactly once, or its caller does it
//! again; so what is done with items must be safe to repeat.

use std::{collections::VecDeque, fmt, sync::Arc};

use parking_lot::Mutex;
use store::Error;
use tokio::sync::{Semaphore, oneshot};

/// How many calls may be on their way at once. Two, so that the next is put together while one is
/// under way.
const AT_ONCE: usize = 2;

/// How many items go together at most, and how many bytes: what a script does in well under a
/// millisecond.
pub(crate) const ITEMS_MAX: usize = 128;
pub(crate) const BYTES_MAX: usize = 1 << 20;

type Answer<R> = Result<R, Error>;

struct Item<T, R> {
    item: Arc<T>,
    size: usize,
    answer: oneshot::Sender<Answer<R>>,
}

/// A queue of items that share calls.
pub(crate) struct Combine<T, R> {
    queue: Mutex<VecDeque<Item<T, R>>>,
    places: Semaphore,
}

impl<T, R> Default for Combine<T, R> {
    fn default() -> Self {
        Self { queue: Mutex::default(), places: Semaphore::new(AT_ONCE) }
    }
}

impl<T, R> Combine<T, R> {
    /// Does something with an item, together with the items of others. `size` is about how many
    /// bytes it has; `call` gives an answer per item, in their order.
    pub(crate) async fn submit<F>(
        &self,
        item: T,
        size: usize,
        call: impl Fn(Vec<Arc<T>>) -> F,
    ) -> Answer<R>
    where
        F: Future<Output = Answer<Vec<R>>>,
    {
        let item = Arc::new(item);
        loop {
            let (answer, mut answered) = oneshot::channel();
            self.queue.lock().push_back(Item { item: Arc::clone(&item), size, answer });
            loop {
                let place = tokio::select! {
                    biased;
                    answer = &mut answered => match answer {
                        Ok(answer) => return answer,
                        // The caller that carried it was dropped half way; it may or may not have
                        // arrived, and doing it again is safe.
                        Err(_) => break,
                    },
                    place = self.places.acquire() => place,
                };
                let batch = self.batch();
                if batch.is_empty() {
                    drop(place);
                    match (&mut answered).await {
                        Ok(answer) => return answer,
                        Err(_) => break,
                    }
                }
                let items = batch.iter().map(|item| Arc::clone(&item.item)).collect();
                match call(items).await {
                    Ok(answers) => {
                        for (item, answer) in batch.into_iter().zip(answers) {
                            // A caller that has gone away needs no answer.
                            let _ = item.answer.send(Ok(answer));
                        }
                    }
                    Err(error) => {
                        for item in batch {
                            let _ = item.answer.send(Err(error.clone()));
                        }
                    }
                }
            }
        }
    }

    /// Takes what goes together next.
    fn batch(&self) -> Vec<Item<T, R>> {
        let mut queue = self.queue.lock();
        let mut bytes = 0;
        let mut count = 0;
        for item in queue.iter().take(ITEMS_MAX) {
            bytes += item.size;
            if count > 0 && bytes > BYTES_MAX {
                break;
            }
            count += 1;
        }
        queue.drain(..count).collect()
    }
}

impl<T, R> fmt::Debug for Combine<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Combine").field("queued", &self.queue.lock().len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn calls_at_the_same_time_go_together_and_each_gets_its_own_answer() {
        let combine = Arc::new(Combine::<usize, usize>::default());
        let calls = Arc::new(AtomicUsize::new(0));
        let all = (0..500).map(|n| {
            let (combine, calls) = (Arc::clone(&combine), Arc::clone(&calls));
            tokio::spawn(async move {
                let answer = combine.submit(n, 10, |items| {
                    calls.fetch_add(1, Ordering::SeqCst);
                    async move {
                        tokio::task::yield_now().await;
                        Ok(items.iter().map(|item| **item * 2).collect())
                    }
                });
                assert_eq!(answer.await.unwrap(), n * 2);
            })
        });
        for task in all.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        let calls = calls.load(Ordering::SeqCst);
        assert!(calls < 100, "{calls} calls for 500 items");
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_leaves_nobody_behind() {
        let combine = Arc::new(Combine::<u32, u32>::default());
        let stuck = async |_items: Vec<Arc<u32>>| std::future::pending().await;
        {
            let first = combine.submit(1, 1, stuck);
            let second = combine.submit(2, 1, stuck);
            tokio::select! {
                _ = async { tokio::join!(first, second) } => unreachable!(),
                () = tokio::task::yield_now() => {}
            }
        }
        let echo = async |items: Vec<Arc<u32>>| Ok(items.iter().map(|item| **item).collect());
        assert_eq!(combine.submit(3, 1, echo).await.unwrap(), 3);
    }

    #[tokio::test]
    async fn an_error_reaches_everyone() {
        let combine = Combine::<u32, u32>::default();
        let fail = async |_items: Vec<Arc<u32>>| Err(Error::Oom);
        let (one, two) = tokio::join!(combine.submit(1, 1, fail), combine.submit(2, 1, fail));
        assert!(matches!((one, two), (Err(Error::Oom), Err(Error::Oom))));
    }
}
