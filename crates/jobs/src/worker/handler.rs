//! Handlers: turns async functions into services.

use std::{
    collections::HashMap,
    sync::Arc,
    task::{Context as TaskContext, Poll},
};

use futures_util::future::BoxFuture;
use tower::{BoxError, Service};

use super::{FromJob, IntoOutcome, JobOutcome, JobRequest};
use crate::{JobError, JobType, Task};

/// An async function whose arguments can be taken from a job, up to eight of them.
pub trait Handler<S, A>: Clone + Send + Sync + 'static {
    /// Takes the arguments and runs.
    fn call(self, call: JobRequest, state: S) -> BoxFuture<'static, JobOutcome>;
}

/// Arguments of which the first names a job type.
pub trait FirstTask {
    /// The type.
    const TYPE: &'static str;
}

macro_rules! handler {
    ($($arg:ident),*) => {
        impl<S, F, Fut, Out, $($arg,)*> Handler<S, ($($arg,)*)> for F
        where
            S: Send + Sync + 'static,
            F: FnOnce($($arg),*) -> Fut + Clone + Send + Sync + 'static,
            Fut: Future<Output = Out> + Send + 'static,
            Out: IntoOutcome,
            $($arg: FromJob<S>,)*
        {
            #[allow(non_snake_case, unused_variables)]
            fn call(self, call: JobRequest, state: S) -> BoxFuture<'static, JobOutcome> {
                Box::pin(async move {
                $(
                    let $arg = match $arg::from_job(&call, &state).await {
                        Ok(arg) => arg,
                        Err(outcome) => return outcome,
                    };
                )*
                self($($arg),*).await.into_outcome()
                })
            }
        }
    };
}

macro_rules! first_task {
    ($($arg:ident),*) => {
        impl<T: Task, $($arg,)*> FirstTask for (T, $($arg,)*) {
            const TYPE: &'static str = T::TYPE;
        }
    };
}

handler!();
handler!(A1);
handler!(A1, A2);
handler!(A1, A2, A3);
handler!(A1, A2, A3, A4);
handler!(A1, A2, A3, A4, A5);
handler!(A1, A2, A3, A4, A5, A6);
handler!(A1, A2, A3, A4, A5, A6, A7);
handler!(A1, A2, A3, A4, A5, A6, A7, A8);

first_task!();
first_task!(A2);
first_task!(A2, A3);
first_task!(A2, A3, A4);
first_task!(A2, A3, A4, A5);
first_task!(A2, A3, A4, A5, A6);
first_task!(A2, A3, A4, A5, A6, A7);
first_task!(A2, A3, A4, A5, A6, A7, A8);

/// A handler whose arguments are forgotten.
pub(crate) type BoxedHandler<S> =
    Box<dyn Fn(JobRequest, S) -> BoxFuture<'static, JobOutcome> + Send + Sync>;

pub(crate) fn boxed<S: Send + Sync + 'static, A>(handler: impl Handler<S, A>) -> BoxedHandler<S> {
    Box::new(move |call, state| {
        let handler = handler.clone();
        handler.call(call, state)
    })
}

/// The innermost service: finds the handler of a job's type.
pub(crate) struct HandlerService<S> {
    pub(crate) state: S,
    pub(crate) handlers: Arc<HashMap<JobType, BoxedHandler<S>>>,
}

impl<S: Clone> Clone for HandlerService<S> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone(), handlers: Arc::clone(&self.handlers) }
    }
}

impl<S: Clone + Send + 'static> Service<JobRequest> for HandlerService<S> {
    type Response = JobOutcome;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<JobOutcome, BoxError>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: JobRequest) -> Self::Future {
        match self.handlers.get(&call.lease.job.job_type) {
            Some(handler) => {
                let outcome = handler(call, self.state.clone());
                Box::pin(async move { Ok(outcome.await) })
            }
            // Only types with a handler are claimed.
            None => {
                let error = JobError::new("NoHandler", "there is no handler for this type");
                Box::pin(async move { Ok(JobOutcome::Failed(error)) })
            }
        }
    }
}
