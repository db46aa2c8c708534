//! The text of `/metrics`, in the two formats that Prometheus reads.

use std::collections::BTreeMap;
use std::fmt::Write;

use axum::http::{HeaderMap, header};

use super::recorder::{Exemplar, OTHER};
use super::{MetricKind, MetricsRecorder, Reading};

/// The format of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// Prometheus's own text format, version 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0, which has exemplars.
    OpenMetrics,
}

impl Exposition {
    /// Chooses the format by the `Accept` header. Prometheus asks for OpenMetrics first.
    pub fn accepted(headers: &HeaderMap) -> Exposition {
        let accepts = |value: &str| {
            value.split(',').any(|part| {
                let mut words = part.split(';').map(str::trim);
                let is_open = words.next() == Some("application/openmetrics-text");
                is_open && !words.any(|word| matches!(word, "q=0" | "q=0.0"))
            })
        };
        let mut values =
            headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        if values.any(accepts) { Exposition::OpenMetrics } else { Exposition::Prometheus }
    }

    /// The content type.
    pub fn content_type(self) -> &'static str {
        match self {
            Exposition::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Exposition::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Returns the name under which a counter is introduced: in OpenMetrics without its ending.
    pub(crate) fn title_of_counter(self, name: &str) -> &str {
        match self {
            Exposition::Prometheus => name,
            Exposition::OpenMetrics => name.strip_suffix("_total").unwrap_or(name),
        }
    }

    /// Writes everything a process counted and the readings, and ends the text.
    pub(crate) fn write(self, out: &mut String, recorder: &MetricsRecorder, readings: &[Reading]) {
        let mut families: BTreeMap<String, Family> = BTreeMap::new();
        for (key, value) in recorder.counters() {
            let family = families.entry(key.name().to_owned()).or_default();
            family.kind = "counter";
            family.values.insert(labels_of(&key), whole(value));
        }
        for (key, value) in recorder.gauges() {
            let family = families.entry(key.name().to_owned()).or_default();
            family.kind = "gauge";
            family.values.insert(labels_of(&key), value);
        }
        for reading in readings {
            let family = families.entry(reading.name.to_owned()).or_default();
            family.kind = match recorder.info(reading.name).map(|info| info.kind) {
                Some(MetricKind::Counter) => "counter",
                _ => "gauge",
            };
            let mut labels = String::new();
            for (name, value) in &reading.labels {
                let kept = recorder.label_values().keep(name, value);
                push_label(&mut labels, name, if kept { value } else { OTHER });
            }
            // Readings that share the label `other` are one: counts add up, of ages the greatest counts.
            let is_age = reading.name.ends_with("_seconds");
            let fold = |before: &mut f64| {
                *before = if is_age { before.max(reading.value) } else { *before + reading.value };
            };
            family.values.entry(labels).and_modify(fold).or_insert(reading.value);
        }
        for (key, buckets) in recorder.histograms() {
            let family = families.entry(key.name().to_owned()).or_default();
            family.kind = "histogram";
            let (counts, sum) = buckets.read();
            let bounds = buckets.bounds.iter().copied().chain([f64::INFINITY]);
            family.histograms.push((labels_of(&key), bounds.zip(counts).collect(), sum));
        }
        for (name, mut family) in families {
            let help = recorder.info(&name).map_or("", |info| info.help);
            let title = match family.kind {
                "counter" => self.title_of_counter(&name),
                _ => &name,
            };
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(out, "# HELP {title} {}", escape(help));
            let _ = writeln!(out, "# TYPE {title} {}", family.kind);
            for (labels, value) in family.values {
                push_value(out, &name, &labels, value);
            }
            family.histograms.sort_by(|a, b| a.0.cmp(&b.0));
            for (labels, buckets, sum) in family.histograms {
                self.push_histogram(out, &name, &labels, &buckets, sum);
            }
        }
        if self == Exposition::OpenMetrics {
            out.push_str("# EOF\n");
        }
    }

    fn push_histogram(
        self,
        out: &mut String,
        name: &str,
        labels: &str,
        buckets: &[BoundedCount],
        sum: f64,
    ) {
        let mut below = 0;
        for (bound, (count, exemplar)) in buckets {
            below += count;
            let mut with_bound = labels.to_owned();
            push_label(&mut with_bound, "le", &number(*bound));
            let _ = write!(out, "{name}_bucket{{{with_bound}}} {below}");
            if let (Exposition::OpenMetrics, Some(exemplar)) = (self, exemplar) {
                let Exemplar { trace_id, value } = exemplar;
                let _ = write!(out, " # {{trace_id=\"{trace_id:032x}\"}} {}", number(*value));
            }
            out.push('\n');
        }
        push_value(out, &format!("{name}_sum"), labels, sum);
        push_value(out, &format!("{name}_count"), labels, whole(below));
    }
}

/// All that is written under one name.
#[derive(Default)]
struct Family {
    kind: &'static str,
    /// By labels, as they are written.
    values: BTreeMap<String, f64>,
    /// Labels, buckets by their upper bounds, sum.
    histograms: Vec<(String, Vec<BoundedCount>, f64)>,
}

/// The upper bound of a bucket, its count and its exemplar.
type BoundedCount = (f64, (u64, Option<Exemplar>));

fn labels_of(key: &metrics::Key) -> String {
    let mut labels = String::new();
    for label in key.labels() {
        push_label(&mut labels, label.key(), label.value());
    }
    labels
}

fn push_label(labels: &mut String, name: &str, value: &str) {
    if !labels.is_empty() {
        labels.push(',');
    }
    let _ = write!(labels, "{name}=\"{}\"", escape(value).replace('"', "\\\""));
}

fn push_value(out: &mut String, name: &str, labels: &str, value: f64) {
    out.push_str(name);
    if !labels.is_empty() {
        let _ = write!(out, "{{{labels}}}");
    }
    let _ = writeln!(out, " {}", number(value));
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

fn number(value: f64) -> String {
    if value == f64::INFINITY { "+Inf".to_owned() } else { value.to_string() }
}

#[expect(clippy::cast_precision_loss, reason = "the format has floats only")]
fn whole(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use metrics::{Key, Label, Recorder};
    use store::trace::{TraceContext, sync_scope};

    use super::super::{LABEL_VALUES_MAX, MetricInfo};
    use super::*;

    const INFOS: &[MetricInfo] = &[
        MetricInfo::counter("t_hits_total", &["route"], "Hits."),
        MetricInfo::histogram("t_wait_seconds", &[1.0, 5.0], &[], "Waits."),
        MetricInfo::gauge("t_depth", &["queue"], "Depth.").in_store(),
        MetricInfo::gauge("t_oldest_seconds", &["queue"], "Age.").in_store(),
    ];
    const METADATA: metrics::Metadata<'_> = metrics::Metadata::new("", metrics::Level::INFO, None);

    fn write(format: Exposition, recorder: &MetricsRecorder, readings: &[Reading]) -> String {
        let mut text = String::new();
        format.write(&mut text, recorder, readings);
        text
    }

    fn recorder() -> MetricsRecorder {
        let recorder = MetricsRecorder::default();
        recorder.declare(INFOS.iter());
        recorder
    }

    #[test]
    fn both_formats_say_the_same() {
        let recorder = recorder();
        let key = Key::from_parts("t_hits_total", vec![Label::new("route", "/a\"b\\c\nd")]);
        recorder.register_counter(&key, &METADATA).increment(3);
        let waits = recorder.register_histogram(&Key::from_name("t_wait_seconds"), &METADATA);
        waits.record(0.5);
        let context: TraceContext =
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().unwrap();
        sync_scope(Some(context), || waits.record(2.0));
        waits.record(9.0);
        let readings = [Reading::new("t_depth", 7.0).label("queue", "sale")];
        let text = write(Exposition::Prometheus, &recorder, &readings);
        assert_eq!(
            text,
            "# HELP t_depth Depth.\n# TYPE t_depth gauge\nt_depth{queue=\"sale\"} 7\n\
             # HELP t_hits_total Hits.\n# TYPE t_hits_total counter\n\
             t_hits_total{route=\"/a\\\"b\\\\c\\nd\"} 3\n\
             # HELP t_wait_seconds Waits.\n# TYPE t_wait_seconds histogram\n\
             t_wait_seconds_bucket{le=\"1\"} 1\nt_wait_seconds_bucket{le=\"5\"} 2\n\
             t_wait_seconds_bucket{le=\"+Inf\"} 3\nt_wait_seconds_sum 11.5\nt_wait_seconds_count 3\n"
        );
        let open = write(Exposition::OpenMetrics, &recorder, &readings);
        assert!(open.contains("# TYPE t_hits counter\nt_hits_total{"), "{open}");
        let exemplar = "{le=\"5\"} 2 # {trace_id=\"4bf92f3577b34da6a3ce929d0e0e4736\"} 2\n";
        assert!(open.contains(exemplar) && open.ends_with("# EOF\n"), "{open}");
    }

    #[test]
    fn values_of_a_label_that_are_too_many_are_summed() {
        let recorder = recorder();
        for n in 0..LABEL_VALUES_MAX + 20 {
            let key = Key::from_parts("t_hits_total", vec![Label::new("route", n.to_string())]);
            recorder.register_counter(&key, &METADATA).increment(1);
        }
        let readings: Vec<Reading> = (0..LABEL_VALUES_MAX + 10)
            .flat_map(|n| {
                let queue = format!("q{n}");
                [
                    Reading::new("t_depth", 2.0).label("queue", &queue),
                    Reading::new("t_oldest_seconds", whole(n as u64)).label("queue", &queue),
                ]
            })
            .collect();
        let text = write(Exposition::Prometheus, &recorder, &readings);
        assert!(text.contains("t_hits_total{route=\"other\"} 20\n"), "{text}");
        assert!(text.contains("t_depth{queue=\"other\"} 20\n"), "{text}");
        assert!(text.contains("t_oldest_seconds{queue=\"other\"} 509\n"), "{text}");
    }

    #[test]
    fn the_accept_header_decides() {
        let format = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            Exposition::accepted(&headers)
        };
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                          text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        assert_eq!(format(prometheus), Exposition::OpenMetrics);
        assert_eq!(format("text/html, */*"), Exposition::Prometheus);
        assert_eq!(format("application/openmetrics-text;q=0"), Exposition::Prometheus);
        assert_eq!(Exposition::accepted(&HeaderMap::new()), Exposition::Prometheus);
    }
}
