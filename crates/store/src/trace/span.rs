//! Spans: one piece of work in a trace, with a beginning and an end.
//!
//! Invariants: a span that is not wanted is never made (no exporter, or a trace that is not
//! sampled); one that was begun is exported exactly once, when it is dropped, so work that was
//! cancelled is seen too; the bytes of a span are bounded.

use std::{
    borrow::Cow,
    sync::OnceLock,
    time::{Duration, Instant},
};

use super::{TraceContext, current};

/// Most attributes of a span; further ones are left out.
const ATTRIBUTES_MAX: usize = 16;
/// Most bytes of a name or a value; longer ones are cut.
const TEXT_MAX: usize = 256;

/// Receives the spans of a process.
pub trait SpanExporter: Send + Sync + 'static {
    /// Decides whether a trace that begins here is recorded.
    fn samples(&self, trace_id: u128) -> bool;

    /// Takes a span that has ended. Must not block.
    fn export(&self, span: SpanRecord);
}

static EXPORTER: OnceLock<Box<dyn SpanExporter>> = OnceLock::new();

/// Sets the exporter of this process. Returns false, and changes nothing, if there is one already.
pub fn set_exporter(exporter: Box<dyn SpanExporter>) -> bool {
    EXPORTER.set(exporter).is_ok()
}

/// Tells whether this process has an exporter.
pub fn is_exporting() -> bool {
    EXPORTER.get().is_some()
}

/// The role of a span, as in OpenTelemetry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Work inside this process.
    Internal,
    /// A request that is answered here.
    Server,
    /// A call to another process.
    Client,
    /// Work that is handed over for later.
    Producer,
    /// Work that was handed over.
    Consumer,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpanValue {
    /// A text.
    Text(Cow<'static, str>),
    /// A whole number.
    Number(i64),
}

impl From<&'static str> for SpanValue {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for SpanValue {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<u16> for SpanValue {
    fn from(number: u16) -> Self {
        Self::Number(number.into())
    }
}

impl From<u32> for SpanValue {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<i64> for SpanValue {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

/// A span that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanRecord {
    /// Its name.
    pub name: Cow<'static, str>,
    /// Its role.
    pub kind: SpanKind,
    /// Its ids.
    pub context: TraceContext,
    /// The span it is part of.
    pub parent: Option<u64>,
    /// A span of another trace that it has to do with.
    pub link: Option<TraceContext>,
    /// Time of its beginning, since 1970.
    pub start: Duration,
    /// Time of its end, since 1970.
    pub end: Duration,
    /// Names and values.
    pub attributes: Vec<(&'static str, SpanValue)>,
    /// The error it ended with.
    pub error: Option<String>,
}

/// The moment a span begins, by the wall clock, and by the clock that its length is measured with.
#[derive(Clone, Copy, Debug)]
pub struct SpanStart {
    since_1970: Duration,
    instant: Instant,
}

impl SpanStart {
    /// Takes the time, which a span shows and nothing decides by: that is why it is the machine's,
    /// with nanoseconds, and not the store's.
    pub fn now() -> Self {
        Self { since_1970: crate::clock::machine_time(), instant: Instant::now() }
    }
}

/// A span that has begun; it ends, and is exported, when it is dropped.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped"]
pub struct TraceSpan {
    context: Option<TraceContext>,
    live: Option<Box<LiveSpan>>,
}

#[derive(Debug)]
struct LiveSpan {
    started: Instant,
    record: SpanRecord,
}

impl TraceSpan {
    /// Begins a span under a parent, or, without one, a trace of its own. Its name is made only if
    /// it is recorded: if the parent is sampled, and without a parent if the exporter says so.
    pub fn begin(
        kind: SpanKind,
        parent: Option<TraceContext>,
        name: impl FnOnce() -> Cow<'static, str>,
    ) -> Self {
        if !is_exporting() {
            return Self { context: parent, live: None };
        }
        Self::begin_at(SpanStart::now(), kind, parent, name)
    }

    /// Begins a span at a moment that has passed.
    pub fn begin_at(
        start: SpanStart,
        kind: SpanKind,
        parent: Option<TraceContext>,
        name: impl FnOnce() -> Cow<'static, str>,
    ) -> Self {
        let Some(exporter) = EXPORTER.get() else { return Self { context: parent, live: None } };
        let context = match parent {
            Some(parent) => parent.child(),
            None => {
                let own = TraceContext::random();
                TraceContext { sampled: exporter.samples(own.trace_id), ..own }
            }
        };
        if !context.sampled {
            // The ids go on, so that nobody further down records a part of this trace.
            return Self { context: Some(context), live: None };
        }
        let record = SpanRecord {
            name: clip(name()),
            kind,
            context,
            parent: parent.map(|parent| parent.span_id),
            link: None,
            start: start.since_1970,
            end: start.since_1970,
            attributes: Vec::new(),
            error: None,
        };
        let live = Some(Box::new(LiveSpan { started: start.instant, record }));
        Self { context: Some(context), live }
    }

    /// Begins a part of the span this task works under. Nothing is recorded outside of one.
    pub fn child(kind: SpanKind, name: impl FnOnce() -> Cow<'static, str>) -> Self {
        let parent = if is_exporting() { current() } else { None };
        match parent {
            Some(parent) if parent.sampled => Self::begin(kind, Some(parent), name),
            context => Self { context, live: None },
        }
    }

    /// Returns the ids for what is done on behalf of this span: its own, or those that came from
    /// outside if nothing is recorded here.
    pub fn context(&self) -> Option<TraceContext> {
        self.context
    }

    /// Tells whether it is recorded.
    pub fn is_recorded(&self) -> bool {
        self.live.is_some()
    }

    /// Adds an attribute, whose value is made only if the span is recorded.
    pub fn set<V: Into<SpanValue>>(&mut self, name: &'static str, value: impl FnOnce() -> V) {
        if let Some(live) = &mut self.live
            && live.record.attributes.len() < ATTRIBUTES_MAX
        {
            let value = match value().into() {
                SpanValue::Text(text) => SpanValue::Text(clip(text)),
                number @ SpanValue::Number(_) => number,
            };
            live.record.attributes.push((name, value));
        }
    }

    /// Names a span of another trace that this one has to do with.
    pub fn link(&mut self, context: Option<TraceContext>) {
        if let Some(live) = &mut self.live {
            live.record.link = context;
        }
    }

    /// Marks it as failed.
    pub fn fail(&mut self, message: impl FnOnce() -> String) {
        if let Some(live) = &mut self.live {
            live.record.error = Some(clip(Cow::Owned(message())).into_owned());
        }
    }
}

impl Drop for TraceSpan {
    fn drop(&mut self) {
        if let Some(live) = self.live.take()
            && let Some(exporter) = EXPORTER.get()
        {
            let LiveSpan { started, mut record } = *live;
            record.end = record.start + started.elapsed();
            exporter.export(record);
        }
    }
}

fn clip(text: Cow<'static, str>) -> Cow<'static, str> {
    if text.len() <= TEXT_MAX {
        return text;
    }
    let end = (0..=TEXT_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    Cow::Owned(text.get(..end).unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering};

    use parking_lot::Mutex;

    use super::*;
    use crate::trace::{scope_if, sync_scope};

    #[derive(Clone, Default)]
    struct KeptSpans {
        spans: Arc<Mutex<Vec<SpanRecord>>>,
        samples: Arc<AtomicBool>,
    }

    impl SpanExporter for KeptSpans {
        fn samples(&self, _: u128) -> bool {
            self.samples.load(Ordering::Relaxed)
        }

        fn export(&self, span: SpanRecord) {
            self.spans.lock().push(span);
        }
    }

    /// One test, because a process has one exporter.
    #[tokio::test]
    async fn spans_are_made_for_an_exporter_and_for_sampled_traces_only() {
        let never = || -> Cow<'static, str> { panic!("nobody wants a name") };
        let outside = TraceContext::random();
        // Nobody exports: what came from outside goes on, and nothing is made.
        let mut span = TraceSpan::begin(SpanKind::Server, Some(outside), never);
        span.set("a", || -> String { panic!("nobody wants a value") });
        assert_eq!((span.context(), span.is_recorded()), (Some(outside), false));
        assert_eq!(TraceSpan::begin(SpanKind::Server, None, never).context(), None);
        sync_scope(Some(outside), || drop(TraceSpan::child(SpanKind::Client, never)));

        let kept = KeptSpans::default();
        assert!(set_exporter(Box::new(kept.clone())) && !set_exporter(Box::new(kept.clone())));
        // A trace that is not sampled has ids, and no spans.
        let root = TraceSpan::begin(SpanKind::Server, None, never);
        let context = root.context().unwrap();
        assert!(!context.sampled && !root.is_recorded());
        sync_scope(Some(context), || drop(TraceSpan::child(SpanKind::Client, never)));
        let unsampled = TraceContext { sampled: false, ..outside };
        let below = TraceSpan::begin(SpanKind::Server, Some(unsampled), never).context().unwrap();
        assert!(!below.sampled && below.trace_id == outside.trace_id);
        // Outside of every trace a part is no span.
        drop(TraceSpan::child(SpanKind::Client, never));
        assert!(kept.spans.lock().is_empty());

        // What the caller samples is recorded, whatever the exporter would say.
        let mut root = TraceSpan::begin(SpanKind::Server, Some(outside), || "request".into());
        root.set("long", || "ü".repeat(500));
        for _ in 0..100 {
            root.set("n", || 1_u32);
        }
        let context = root.context();
        scope_if(context, async {
            let mut part = TraceSpan::child(SpanKind::Client, || "script".into());
            part.fail(|| "it broke".to_owned());
            part.link(Some(unsampled));
        })
        .await;
        drop(root);
        let spans = kept.spans.lock().clone();
        let [part, root] = spans.as_slice() else { panic!("{spans:?}") };
        assert_eq!(root.parent, Some(outside.span_id));
        assert_eq!(part.parent, Some(root.context.span_id));
        assert_eq!((part.error.as_deref(), part.link), (Some("it broke"), Some(unsampled)));
        assert!(part.start >= root.start && part.end <= root.end && root.end > root.start);
        assert_eq!(root.attributes.len(), ATTRIBUTES_MAX);
        assert_eq!(root.attributes[0], ("long", SpanValue::from("ü".repeat(128))));

        kept.samples.store(true, Ordering::Relaxed);
        assert!(TraceSpan::begin(SpanKind::Server, None, || "own".into()).is_recorded());
        assert_eq!(kept.spans.lock().last().unwrap().parent, None);
    }
}
