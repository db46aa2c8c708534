//! Bodies on their way through the guard: counted, watched, never held.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

/// How often it is seen to that the session of something long still runs.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A body this short is gone before anybody could look.
const SHORT: u64 = 256 * 1024;

/// Is the body over in a moment?
pub(super) fn is_short(body: &Body) -> bool {
    body.size_hint().upper().is_some_and(|most| most <= SHORT)
}

/// When the visitor last sent a piece of the request.
#[derive(Debug, Clone)]
pub(super) struct Progress(Arc<Mutex<Instant>>);

impl Default for Progress {
    fn default() -> Progress {
        Progress(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Progress {
    fn made(&self) {
        *self.0.lock() = Instant::now();
    }

    /// The work's outcome, unless it takes longer than `within` after the last progress.
    pub(super) async fn within<T>(
        &self,
        within: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = std::pin::pin!(work);
        loop {
            let until = *self.0.lock() + within;
            match tokio::time::timeout_at(until, work.as_mut()).await {
                Ok(done) => return Some(done),
                Err(_) if *self.0.lock() + within > until => {}
                Err(_) => return None,
            }
        }
    }
}

/// A request body that is the visitor's fault; the site is not to blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BodyFault {
    /// It is larger than it may be.
    #[error("the body is larger than it may be")]
    TooLarge,
    /// Nothing more came for too long.
    #[error("the visitor stopped sending")]
    Stalled,
    /// It is not what its head says, or the connection broke off.
    #[error("the body is malformed or incomplete")]
    Malformed,
}

impl BodyFault {
    /// The fault that is the reason for an error, if one is.
    pub(super) fn behind(error: &(dyn Error + 'static)) -> Option<BodyFault> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(fault) = error.downcast_ref::<BodyFault>() {
                return Some(*fault);
            }
            cause = error.source();
        }
        None
    }
}

type BoxError = Box<dyn Error + Send + Sync>;
type Polled = Poll<Option<Result<Frame<Bytes>, BoxError>>>;

/// What is done with each piece of a body on its way.
pub(super) trait Watch: Unpin {
    /// The next piece.
    fn next(&mut self, inner: &mut Body, cx: &mut Context<'_>) -> Polled;
}

/// A body that is watched on its way.
pub(super) struct Watched<W> {
    inner: Body,
    watch: W,
}

impl<W> Watched<W> {
    pub(super) fn new(inner: Body, watch: W) -> Watched<W> {
        Watched { inner, watch }
    }
}

impl<W: Watch> HttpBody for Watched<W> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let this = &mut *self;
        this.watch.next(&mut this.inner, cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A request may be only so large, and its sender may not fall asleep.
pub(super) struct Metered {
    left: u64,
    within: Duration,
    progress: Progress,
    deadline: Pin<Box<Sleep>>,
}

impl Metered {
    pub(super) fn new(most: u64, within: Duration, progress: Progress) -> Metered {
        let deadline = Box::pin(tokio::time::sleep(within));
        Metered { left: most, within, progress, deadline }
    }
}

impl Watch for Metered {
    fn next(&mut self, inner: &mut Body, cx: &mut Context<'_>) -> Polled {
        match Pin::new(inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                self.progress.made();
                self.deadline.as_mut().reset(Instant::now() + self.within);
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                match self.left.checked_sub(length) {
                    Some(left) => {
                        self.left = left;
                        Poll::Ready(Some(Ok(frame)))
                    }
                    None => Poll::Ready(Some(Err(BodyFault::TooLarge.into()))),
                }
            }
            Poll::Ready(Some(Err(error))) => {
                tracing::debug!(%error, "a visitor's request body failed");
                Poll::Ready(Some(Err(BodyFault::Malformed.into())))
            }
            Poll::Ready(None) => {
                self.progress.made();
                Poll::Ready(None)
            }
            Poll::Pending => match self.deadline.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(Some(Err(BodyFault::Stalled.into()))),
                Poll::Pending => Poll::Pending,
            },
        }
    }
}

/// The session ended while the answer was under way.
#[derive(Debug, thiserror::Error)]
#[error("the session is over")]
struct Over;

type Look = Pin<Box<dyn Future<Output = bool> + Send>>;

/// A long answer: while it lasts, `look` says every few seconds whether the session still runs.
pub(super) struct Kept<F> {
    look: F,
    looking: Option<Look>,
    next: Pin<Box<Sleep>>,
}

impl<F, L> Kept<F>
where
    F: Fn() -> L + Send + Unpin + 'static,
    L: Future<Output = bool> + Send + 'static,
{
    pub(super) fn new(look: F) -> Kept<F> {
        let next = Box::pin(tokio::time::sleep(LOOK_EVERY));
        Kept { look, looking: None, next }
    }

    /// Looks when it is time; `Err` once the session is over.
    fn poll_look(&mut self, cx: &mut Context<'_>) -> Result<(), Over> {
        if self.looking.is_none() && self.next.as_mut().poll(cx).is_ready() {
            self.looking = Some(Box::pin((self.look)()));
        }
        if let Some(looking) = &mut self.looking
            && let Poll::Ready(lives) = looking.as_mut().poll(cx)
        {
            if !lives {
                return Err(Over);
            }
            self.looking = None;
            self.next.as_mut().reset(Instant::now() + LOOK_EVERY);
            // Asked once, so that the timer wakes this task when it is time; it is not yet.
            let _ = self.next.as_mut().poll(cx);
        }
        Ok(())
    }
}

impl<F, L> Watch for Kept<F>
where
    F: Fn() -> L + Send + Unpin + 'static,
    L: Future<Output = bool> + Send + 'static,
{
    fn next(&mut self, inner: &mut Body, cx: &mut Context<'_>) -> Polled {
        if let Err(over) = self.poll_look(cx) {
            return Poll::Ready(Some(Err(over.into())));
        }
        Pin::new(inner).poll_frame(cx).map_err(Into::into)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_makes_progress_has_time() {
        let progress = Progress::default();
        let step = Duration::from_secs(8);
        let work = async {
            for _ in 0..3 {
                tokio::time::sleep(step).await;
                progress.made();
            }
            "done"
        };
        assert_eq!(progress.within(Duration::from_secs(10), work).await, Some("done"));
        let stuck = std::future::pending::<()>();
        assert_eq!(progress.within(Duration::from_secs(10), stuck).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_ends_with_its_session() {
        static LIVES: AtomicBool = AtomicBool::new(true);
        let endless = futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, std::convert::Infallible>(Bytes::from_static(b"x")), ()))
        });
        let kept = Kept::new(|| async { LIVES.load(Ordering::SeqCst) });
        let mut body = Body::new(Watched::new(Body::from_stream(endless), kept));
        for n in 0..40 {
            if n == 20 {
                LIVES.store(false, Ordering::SeqCst);
            }
            match body.frame().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    assert!(n > 20, "after {n}: {error}");
                    return;
                }
                None => panic!("an orderly end"),
            }
        }
        panic!("it went on");
    }

    #[tokio::test]
    async fn a_body_may_be_only_so_large() {
        let check = async |length: usize, most: u64| {
            let body = Body::from(vec![0; length]);
            let progress = Progress::default();
            let metered = Metered::new(most, Duration::from_secs(9), progress);
            Body::new(Watched::new(body, metered)).collect().await.map(|all| all.to_bytes().len())
        };
        assert_eq!(check(100, 100).await.unwrap(), 100);
        let error = check(101, 100).await.unwrap_err();
        assert_eq!(BodyFault::behind(&error), Some(BodyFault::TooLarge), "{error:?}");
    }
}
