//! The numbers of this process, behind the `metrics` facade.
//!
//! Invariant: of one label no more than [`LABEL_VALUES_MAX`] values are kept, whatever is counted;
//! the rest is counted under `other`. So the memory is bounded, and no caller has to see to it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Label, Metadata, Recorder, SharedString,
    Unit,
};
use parking_lot::{Mutex, RwLock};

use super::{MetricInfo, MetricKind, REQUEST_SECONDS};

/// Values kept of one label, in the order in which this process met them.
pub const LABEL_VALUES_MAX: usize = 500;

/// The value that stands for all those that are too many.
pub(super) const OTHER: &str = "other";

/// The recorder of a process.
#[derive(Debug, Default)]
pub struct MetricsRecorder {
    infos: RwLock<BTreeMap<&'static str, &'static MetricInfo>>,
    counters: RwLock<HashMap<Key, Arc<AtomicU64>>>,
    gauges: RwLock<HashMap<Key, Arc<AtomicU64>>>,
    histograms: RwLock<HashMap<Key, Arc<HistogramBuckets>>>,
    label_values: LabelValues,
}

/// The values of each label that are kept.
#[derive(Debug, Default)]
pub(super) struct LabelValues(Mutex<HashMap<String, HashSet<String>>>);

impl LabelValues {
    /// Tells whether a value is one of those that are kept, as a new one is while there is room.
    pub(super) fn keep(&self, label: &str, value: &str) -> bool {
        let mut labels = self.0.lock();
        let values = match labels.get_mut(label) {
            Some(values) => values,
            None => labels.entry(label.to_owned()).or_default(),
        };
        if values.contains(value) {
            return true;
        }
        let keeps = values.len() < LABEL_VALUES_MAX;
        if keeps {
            values.insert(value.to_owned());
        }
        keeps
    }
}

/// A histogram, with the latest exemplar of each bucket.
#[derive(Debug)]
pub(super) struct HistogramBuckets {
    pub(super) bounds: &'static [f64],
    /// One more than there are bounds: the last counts what is above all of them.
    counts: Box<[AtomicU64]>,
    /// The bits of a float.
    sum: AtomicU64,
    exemplars: Box<[Mutex<Option<Exemplar>>]>,
}

/// A value that was recorded in a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Exemplar {
    pub(super) trace_id: u128,
    pub(super) value: f64,
}

impl HistogramBuckets {
    fn new(bounds: &'static [f64]) -> HistogramBuckets {
        let buckets = 0..=bounds.len();
        HistogramBuckets {
            bounds,
            counts: buckets.clone().map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0f64.to_bits()),
            exemplars: buckets.map(|_| Mutex::new(None)).collect(),
        }
    }

    /// Returns the count and the exemplar of each bucket, lowest first, and the sum of all values.
    pub(super) fn read(&self) -> (Vec<(u64, Option<Exemplar>)>, f64) {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let exemplars = self.exemplars.iter().map(|exemplar| *exemplar.lock());
        let sum = f64::from_bits(self.sum.load(Ordering::Relaxed));
        (counts.zip(exemplars).collect(), sum)
    }
}

impl HistogramFn for HistogramBuckets {
    fn record(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let add = |sum: u64| Some((f64::from_bits(sum) + value).to_bits());
        // The function always gives a value, so this cannot fail.
        let _ = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        if let Some(context) = store::trace::current()
            && context.sampled
            && let Some(exemplar) = self.exemplars.get(bucket)
        {
            *exemplar.lock() = Some(Exemplar { trace_id: context.trace_id, value });
        }
    }
}

impl MetricsRecorder {
    /// Takes over declarations. Counters and histograms without labels are there from now on, at 0.
    pub(super) fn declare(&self, infos: impl Iterator<Item = &'static MetricInfo>) {
        for info in infos {
            self.infos.write().insert(info.name, info);
            let is_counted = info.scope == super::MetricScope::Process && info.labels.is_empty();
            match info.kind {
                MetricKind::Counter if is_counted => {
                    drop(find(&self.counters, Key::from_name(info.name), Arc::default));
                }
                MetricKind::Histogram(bounds) if is_counted => {
                    let make = || Arc::new(HistogramBuckets::new(bounds));
                    drop(find(&self.histograms, Key::from_name(info.name), make));
                }
                _ => {}
            }
        }
    }

    /// Returns the declaration of a metric.
    pub(super) fn info(&self, name: &str) -> Option<&'static MetricInfo> {
        self.infos.read().get(name).copied()
    }

    pub(super) fn label_values(&self) -> &LabelValues {
        &self.label_values
    }

    pub(super) fn counters(&self) -> Vec<(Key, u64)> {
        let counters = self.counters.read();
        counters.iter().map(|(key, n)| (key.clone(), n.load(Ordering::Relaxed))).collect()
    }

    pub(super) fn gauges(&self) -> Vec<(Key, f64)> {
        let read = |bits: &AtomicU64| f64::from_bits(bits.load(Ordering::Relaxed));
        self.gauges.read().iter().map(|(key, bits)| (key.clone(), read(bits))).collect()
    }

    pub(super) fn histograms(&self) -> Vec<(Key, Arc<HistogramBuckets>)> {
        let histograms = self.histograms.read();
        histograms.iter().map(|(key, buckets)| (key.clone(), Arc::clone(buckets))).collect()
    }

    /// Replaces the values of labels that are not kept.
    fn bound(&self, key: &Key) -> Key {
        let labels: Vec<Label> = key
            .labels()
            .map(|label| match self.label_values.keep(label.key(), label.value()) {
                true => label.clone(),
                false => Label::new(label.key().to_owned(), OTHER),
            })
            .collect();
        Key::from_parts(key.name().to_owned(), labels)
    }

    fn register<T>(
        &self,
        map: &RwLock<HashMap<Key, Arc<T>>>,
        key: &Key,
        make: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        if let Some(found) = map.read().get(key) {
            return Arc::clone(found);
        }
        find(map, self.bound(key), make)
    }
}

fn find<T>(map: &RwLock<HashMap<Key, Arc<T>>>, key: Key, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
    Arc::clone(map.write().entry(key).or_insert_with(make))
}

impl Recorder for MetricsRecorder {
    // Descriptions come from the tables, which also say where a metric is kept.
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.register(&self.counters, key, Arc::default))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.register(&self.gauges, key, Arc::default))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let bounds = match self.info(key.name()).map(|info| info.kind) {
            Some(MetricKind::Histogram(bounds)) => bounds,
            _ => REQUEST_SECONDS,
        };
        let make = || Arc::new(HistogramBuckets::new(bounds));
        Histogram::from_arc(self.register(&self.histograms, key, make))
    }
}
