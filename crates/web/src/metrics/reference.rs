//! docs/metrics.md, written from the tables.

use std::fmt::Write;

use super::{FRAME, LABEL_VALUES_MAX, MetricInfo, MetricKind, MetricScope};
use crate::service::Services;

/// The page.
pub fn page(services: Services) -> String {
    let mut page = INTRODUCTION.replace("LABEL_VALUES_MAX", &LABEL_VALUES_MAX.to_string());
    section(&mut page, "The process and HTTP", FRAME);
    for service in services {
        if !service.metrics().is_empty() {
            section(&mut page, service.nav().title, service.metrics());
        }
    }
    page
}

fn section(page: &mut String, title: &str, table: &[MetricInfo]) {
    // Writing to a String cannot fail.
    let _ = write!(
        page,
        "\n## {title}\n\n| Metric | Type | Kept in | Labels | |\n|---|---|---|---|---|\n"
    );
    for info in table {
        let kind = match info.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram(_) => "histogram",
        };
        let scope = match info.scope {
            MetricScope::Process => "process",
            MetricScope::Store => "store",
        };
        let labels: Vec<String> = info.labels.iter().map(|label| format!("`{label}`")).collect();
        let _ = writeln!(
            page,
            "| `{}` | {kind} | {scope} | {} | {} |",
            info.name,
            labels.join(", "),
            info.help
        );
    }
}

const INTRODUCTION: &str = "\
<!-- Written by `cargo xtask codegen` from the tables of `MetricInfo`. Do not edit. -->
# Metrics

`GET /metrics` answers in Prometheus's text format, and in OpenMetrics 1.0 when the `Accept` header
asks for it, as Prometheus does. It needs a token of role viewer, unless `http.open_metrics` is on:

```yaml
scrape_configs:
  - job_name: tidegate
    authorization: { credentials_file: /etc/prometheus/tidegate-token }
    static_configs: [{ targets: ['127.0.0.1:7070'] }]
```

`packaging/prometheus` has alert rules and `packaging/grafana` a dashboard, both on these names.

**Process and store.** What is kept in the *process* is counted by each instance for itself: add
instances up, `sum without (instance) (rate(tidegate_jobs_outcomes_total[5m]))`. What is kept in the
*store* is read from it when `/metrics` is asked, at most once a second, and every instance tells the
same: take one, `max without (instance) (tidegate_room_waiting)`. Jobs that a worker in its own
process claims and ends by the store are counted there (a Rust worker reports to whatever recorder
its process has), and by the store in `tidegate_jobs_completed_total`.

**Labels are bounded.** Of each label an instance keeps the first LABEL_VALUES_MAX values it meets after
its start, such as queues and job types. What belongs to further ones is summed under the value
`other`; of ages, the greatest counts.

**Exemplars.** In OpenMetrics, buckets carry the trace id of the latest value that was recorded in a
[trace](tracing.md): one that began here and is sampled, or that of a request whose `traceparent` says
so. Where calls are batched, it is the trace of the request that carried the batch.

**What cannot be read is left out.** If a service cannot read its figures, they are missing in this
answer, and `tidegate_scrape_success` is 0 for it.
";
