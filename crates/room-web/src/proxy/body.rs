//! Bodies streamed through the proxy: limited and watched, never buffered whole.

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

/// Interval at which the session of a long transfer is checked, besides whenever one is revoked.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// A body up to this size is sent before a check would be due.
const SHORT_BODY_BYTES: u64 = 256 * 1024;

/// Returns true if the body is short.
pub(super) fn is_short(body: &Body) -> bool {
    body.size_hint().upper().is_some_and(|most| most <= SHORT_BODY_BYTES)
}

/// Time at which the visitor last sent a piece of the request.
#[derive(Debug, Clone)]
pub(super) struct UploadProgress(Arc<Mutex<Instant>>);

impl Default for UploadProgress {
    fn default() -> UploadProgress {
        UploadProgress(Arc::new(Mutex::new(Instant::now())))
    }
}

impl UploadProgress {
    fn made(&self) {
        *self.0.lock() = Instant::now();
    }

    /// Runs `work`; `None` if it takes longer than `within` after the last progress.
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

/// Fault of a request body, by the visitor and not by the site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BodyFault {
    /// It exceeds the limit.
    #[error("the body exceeds the limit")]
    TooLarge,
    /// Nothing more came for too long.
    #[error("the visitor stopped sending")]
    Stalled,
    /// It is not what its head says, or the connection broke off.
    #[error("the body is malformed or incomplete")]
    Malformed,
}

impl BodyFault {
    /// Finds the fault among the causes of an error.
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

/// Processes each frame of a body.
pub(super) trait BodyFilter: Unpin {
    /// Polls the next frame.
    fn next(&mut self, inner: &mut Body, cx: &mut Context<'_>) -> Polled;
}

/// A body with a filter.
pub(super) struct FilteredBody<W> {
    inner: Body,
    watch: W,
}

impl<W> FilteredBody<W> {
    pub(super) fn new(inner: Body, watch: W) -> FilteredBody<W> {
        FilteredBody { inner, watch }
    }
}

impl<W: BodyFilter> HttpBody for FilteredBody<W> {
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

/// An empty body that says nothing about its length. The reply to `HEAD` of a site that told none: with
/// a body whose length is known to be 0, `content-length: 0` would be added, which says that the page
/// itself is empty (RFC 9110, 8.6).
pub(super) struct EmptyBody;

impl HttpBody for EmptyBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Polled {
        Poll::Ready(None)
    }
}

/// Limits the size of a request body and the time between its pieces.
pub(super) struct UploadLimit {
    left: u64,
    within: Duration,
    progress: UploadProgress,
    deadline: Pin<Box<Sleep>>,
}

impl UploadLimit {
    pub(super) fn new(most: u64, within: Duration, progress: UploadProgress) -> UploadLimit {
        let deadline = Box::pin(tokio::time::sleep(within));
        UploadLimit { left: most, within, progress, deadline }
    }
}

impl BodyFilter for UploadLimit {
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

/// The session ended during the response.
#[derive(Debug, thiserror::Error)]
#[error("the session has ended")]
struct SessionOver;

type PendingCheck = Pin<Box<dyn Future<Output = bool> + Send>>;

/// Ends a long response with its session. `check` waits until it is time to look at the session, and
/// returns whether it is active; it is called again and again.
pub(super) struct SessionWatch<F> {
    check: F,
    checking: PendingCheck,
}

impl<F, L> SessionWatch<F>
where
    F: Fn() -> L + Send + Unpin + 'static,
    L: Future<Output = bool> + Send + 'static,
{
    pub(super) fn new(check: F) -> SessionWatch<F> {
        let checking = Box::pin(check());
        SessionWatch { check, checking }
    }

    /// Polls the check; `Err` once the session has ended.
    fn poll_check(&mut self, cx: &mut Context<'_>) -> Result<(), SessionOver> {
        while let Poll::Ready(is_active) = self.checking.as_mut().poll(cx) {
            if !is_active {
                return Err(SessionOver);
            }
            self.checking = Box::pin((self.check)());
        }
        Ok(())
    }
}

impl<F, L> BodyFilter for SessionWatch<F>
where
    F: Fn() -> L + Send + Unpin + 'static,
    L: Future<Output = bool> + Send + 'static,
{
    fn next(&mut self, inner: &mut Body, cx: &mut Context<'_>) -> Polled {
        if let Err(over) = self.poll_check(cx) {
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
        let progress = UploadProgress::default();
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
        let kept = SessionWatch::new(|| async {
            tokio::time::sleep(CHECK_INTERVAL).await;
            LIVES.load(Ordering::SeqCst)
        });
        let mut body = Body::new(FilteredBody::new(Body::from_stream(endless), kept));
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
            let progress = UploadProgress::default();
            let limit = UploadLimit::new(most, Duration::from_secs(9), progress);
            Body::new(FilteredBody::new(body, limit))
                .collect()
                .await
                .map(|all| all.to_bytes().len())
        };
        assert_eq!(check(100, 100).await.unwrap(), 100);
        let error = check(101, 100).await.unwrap_err();
        assert_eq!(BodyFault::behind(&error), Some(BodyFault::TooLarge), "{error:?}");
    }
}
