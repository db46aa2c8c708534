//! Traces: the ids of W3C's `traceparent`, those this task works under, and spans.
//!
//! A call that is part of a trace runs inside [`scope`]; whatever is done on its behalf asks
//! [`current`] for the ids: a job that is dispatched carries them to its worker, a histogram keeps
//! the trace id as an exemplar. Spans ([`TraceSpan`]) go to the one [`SpanExporter`] of a process.
//! Without one, which is the default, no span is made: to ask is one atomic load. Ids that came from
//! outside are carried on all the same.
//!
//! Read in this order: this file (ids), `span.rs` (spans).

mod span;

use std::{fmt, str::FromStr};

use futures_util::future::Either;
use tokio::task::futures::TaskLocalFuture;

pub use self::span::{
    SpanExporter, SpanKind, SpanRecord, SpanStart, SpanValue, TraceSpan, is_exporting, set_exporter,
};

/// The ids of a span in a trace, as in a `traceparent` header (W3C Trace Context, level 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// Id of the trace; never 0.
    pub trace_id: u128,
    /// Id of the span; never 0.
    pub span_id: u64,
    /// Does the caller record this trace?
    pub sampled: bool,
}

/// The text is not a `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a traceparent is 00-, 32 hexadecimal digits, -, 16 hexadecimal digits, -, 2 digits")]
pub struct TraceContextError;

impl TraceContext {
    /// Begins a trace of its own.
    pub fn random() -> Self {
        Self { trace_id: fastrand::u128(1..), span_id: fastrand::u64(1..), sampled: true }
    }

    /// Returns the id of the trace as it is written: 32 hexadecimal digits.
    pub fn trace_id_text(&self) -> String {
        format!("{:032x}", self.trace_id)
    }

    /// Returns the context of a new span in the same trace.
    #[must_use]
    pub fn child(self) -> Self {
        Self { span_id: fastrand::u64(1..), ..self }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.sampled);
        write!(f, "00-{:032x}-{:016x}-{flags:02x}", self.trace_id, self.span_id)
    }
}

impl FromStr for TraceContext {
    type Err = TraceContextError;

    /// Reads a `traceparent`. One of a later version may have more fields behind the known ones, as
    /// the standard asks; ids of zeros, capital letters and everything else are refused.
    fn from_str(text: &str) -> Result<Self, TraceContextError> {
        let mut parts = text.split('-');
        let mut next = |length: usize| {
            let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            parts.next().filter(|part| part.len() == length && part.bytes().all(digit))
        };
        let mut read = || -> Option<(&str, Self)> {
            let version = next(2)?;
            let trace_id = u128::from_str_radix(next(32)?, 16).ok()?;
            let span_id = u64::from_str_radix(next(16)?, 16).ok()?;
            let flags = u8::from_str_radix(next(2)?, 16).ok()?;
            Some((version, Self { trace_id, span_id, sampled: flags & 1 == 1 }))
        };
        let (version, context) = read().ok_or(TraceContextError)?;
        let is_known = version != "ff" && (version != "00" || parts.next().is_none());
        if !is_known || context.trace_id == 0 || context.span_id == 0 || text.len() > 256 {
            return Err(TraceContextError);
        }
        Ok(context)
    }
}

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// Runs a future under a trace context.
pub async fn scope<F: Future>(context: TraceContext, future: F) -> F::Output {
    CURRENT.scope(context, future).await
}

/// Runs a future under a trace context, or as it is without one.
pub fn scope_if<F: Future>(
    context: Option<TraceContext>,
    future: F,
) -> Either<TaskLocalFuture<TraceContext, F>, F> {
    match context {
        Some(context) => Either::Left(CURRENT.scope(context, future)),
        None => Either::Right(future),
    }
}

/// Keeps the trace context of this task for a future that another task will run.
pub fn carry<F: Future>(future: F) -> Either<TaskLocalFuture<TraceContext, F>, F> {
    scope_if(current(), future)
}

/// Runs a function under a trace context, or as it is without one.
pub fn sync_scope<T>(context: Option<TraceContext>, run: impl FnOnce() -> T) -> T {
    match context {
        Some(context) => CURRENT.sync_scope(context, run),
        None => run(),
    }
}

/// Returns the trace context this task works under.
pub fn current() -> Option<TraceContext> {
    CURRENT.try_with(|context| *context).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_and_written() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context: TraceContext = text.parse().unwrap();
        assert_eq!(context.to_string(), text);
        assert!(context.sampled);
        let later = format!("cc{}-what-comes-later", &text[2..]);
        assert_eq!(later.parse::<TraceContext>(), Ok(context));
        let child = context.child();
        assert!(child.trace_id == context.trace_id && child.span_id != context.span_id);
    }

    #[test]
    fn what_is_no_traceparent_is_refused() {
        for wrong in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(wrong.parse::<TraceContext>(), Err(TraceContextError), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_scope_ends_with_its_future() {
        assert_eq!(current(), None);
        let context = TraceContext::random();
        assert_eq!(scope(context, async { current() }).await, Some(context));
        assert_eq!(sync_scope(Some(context), current), Some(context));
        let carried = sync_scope(Some(context), || carry(async { current() }));
        assert_eq!(
            (scope_if(None, async { current() }).await, carried.await),
            (None, Some(context))
        );
        assert_eq!(current(), None);
    }
}
