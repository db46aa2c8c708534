//! Numbers of the resolver, for `/metrics` and for charts. Labels come from closed sets.

use std::time::Duration;

use dns::Resolver;
use metrics::{counter, gauge};
use store::history::OwnSample;
use web::metrics::MetricInfo;
use web::series::float;

use crate::recording::Recording;
use crate::records::{rcode_name, type_name};
use crate::service::{DnsParts, describe_filtering};

/// The metrics of the resolver.
pub(crate) const METRICS: &[MetricInfo] = &[
    MetricInfo::counter(
        "tidegate_dns_queries_total",
        &["protocol", "outcome", "rcode"],
        "Queries answered, by protocol, outcome and response code.",
    ),
    MetricInfo::counter(
        "tidegate_dns_queries_by_type_total",
        &["type"],
        "Queries answered, by type.",
    ),
    MetricInfo::counter(
        "tidegate_dns_cache_hits_total",
        &["tier"],
        "Queries answered from a tier of the cache.",
    ),
    MetricInfo::counter(
        "tidegate_dns_cache_answers_total",
        &["state"],
        "Queries answered from the cache, by whether the answer was fresh or stale.",
    ),
    MetricInfo::counter(
        "tidegate_dns_refreshes_total",
        &["cause"],
        "Answers refreshed before they expired, by cause: a hit on a hot or a warm answer, or the sweep.",
    ),
    MetricInfo::counter(
        "tidegate_dns_dropped_total",
        &["what"],
        "Queries, replies, records and rows of the log for which there was no room.",
    ),
    MetricInfo::counter("tidegate_dns_rate_limited_total", &[], "Queries above the rate limit."),
    MetricInfo::gauge("tidegate_dns_memory_answers", &[], "Answers in the cache in memory."),
    MetricInfo::gauge("tidegate_dns_memory_bytes", &[], "Bytes of the cache in memory."),
    MetricInfo::counter(
        "tidegate_dns_memory_evictions_total",
        &[],
        "Answers removed from memory to make room.",
    ),
    MetricInfo::gauge("tidegate_dns_log_rows", &[], "Rows of the query log."),
    MetricInfo::gauge("tidegate_dns_log_bytes", &[], "Bytes of the query log on disk."),
    MetricInfo::counter(
        "tidegate_dns_sink_rows_total",
        &["result"],
        "Rows of the log that the sink took, and those that were dropped.",
    ),
    MetricInfo::gauge("tidegate_dns_problems", &[], "Problems that last, without mere notices."),
    MetricInfo::gauge("tidegate_dns_filtering", &[], "1 while a list or a rule is in use."),
    MetricInfo::gauge("tidegate_dns_list_rules", &["list"], "Rules in use, by list."),
    MetricInfo::gauge(
        "tidegate_dns_list_failed",
        &["list"],
        "1 if the list was not fetched the last time.",
    ),
    MetricInfo::histogram(
        "tidegate_dns_upstream_seconds",
        &[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0],
        &["upstream"],
        "Time from query to reply of queries that an upstream answered, by upstream.",
    ),
    MetricInfo::counter(
        "tidegate_dns_upstream_queries_total",
        &["upstream"],
        "Queries sent, by upstream.",
    ),
    MetricInfo::counter(
        "tidegate_dns_upstream_failures_total",
        &["upstream"],
        "Attempts that failed, by upstream.",
    ),
    MetricInfo::counter(
        "tidegate_dns_upstream_mismatches_total",
        &["upstream"],
        "Messages that did not fit the query and were dropped, by upstream.",
    ),
    MetricInfo::gauge(
        "tidegate_dns_upstream_up",
        &["upstream"],
        "0 while the upstream is asked last.",
    ),
    MetricInfo::gauge(
        "tidegate_dns_upstream_mean_seconds",
        &["upstream"],
        "Mean response time of the answers of the upstream that were used.",
    ),
];

/// Brings the numbers for `/metrics` up to date.
pub(crate) fn update(parts: &DnsParts) {
    let DnsParts { resolver, listeners, recording, .. } = parts;
    let counts = recording.counts();
    for ((protocol, outcome, rcode), count) in &counts.by_label {
        counter!("tidegate_dns_queries_total", "protocol" => *protocol, "outcome" => *outcome,
            "rcode" => rcode_name(*rcode))
        .absolute(*count);
    }
    for (qtype, count) in &counts.by_type {
        let name = if *qtype == 0 { "other".to_owned() } else { type_name(*qtype) };
        counter!("tidegate_dns_queries_by_type_total", "type" => name).absolute(*count);
    }
    let hits = "tidegate_dns_cache_hits_total";
    counter!(hits, "tier" => "memory").absolute(counts.memory_hits);
    counter!(hits, "tier" => "store").absolute(counts.store_hits);
    let answers = "tidegate_dns_cache_answers_total";
    counter!(answers, "state" => "fresh").absolute(counts.fresh_hits());
    counter!(answers, "state" => "stale").absolute(counts.stale_hits());
    let (refreshes, refreshed) = ("tidegate_dns_refreshes_total", resolver.refresh_stats());
    counter!(refreshes, "cause" => "hot").absolute(refreshed.hot);
    counter!(refreshes, "cause" => "warm").absolute(refreshed.warm);
    counter!(refreshes, "cause" => "sweep").absolute(refreshed.sweep);
    let stats = listeners.stats();
    let (unrecorded, unlogged) = recording.dropped();
    let dropped = "tidegate_dns_dropped_total";
    counter!(dropped, "what" => "query").absolute(stats.dropped_queries);
    counter!(dropped, "what" => "reply").absolute(stats.dropped_replies);
    counter!(dropped, "what" => "record").absolute(unrecorded);
    counter!(dropped, "what" => "log_row").absolute(unlogged);
    counter!("tidegate_dns_rate_limited_total").absolute(resolver.rate_limited());
    let memory = resolver.l0().stats();
    gauge!("tidegate_dns_memory_answers").set(float(memory.entries as u64));
    gauge!("tidegate_dns_memory_bytes").set(float(memory.bytes as u64));
    counter!("tidegate_dns_memory_evictions_total").absolute(memory.evictions);
    let log = recording.query_log.stats();
    gauge!("tidegate_dns_log_rows").set(float(log.rows));
    gauge!("tidegate_dns_log_bytes").set(float(log.bytes));
    let (sent, unsent) = parts.sink.counts();
    counter!("tidegate_dns_sink_rows_total", "result" => "sent").absolute(sent);
    counter!("tidegate_dns_sink_rows_total", "result" => "dropped").absolute(unsent);
    gauge!("tidegate_dns_problems").set(float(parts.problems.count() as u64));
    let (is_filtering, _) = describe_filtering(resolver);
    gauge!("tidegate_dns_filtering").set(if is_filtering { 1.0 } else { 0.0 });
    for list in resolver.lists().status(&resolver.policy().policy.lists) {
        // As many as an operator has set.
        gauge!("tidegate_dns_list_rules", "list" => list.id.clone()).set(float(list.figures.rules));
        gauge!("tidegate_dns_list_failed", "list" => list.id).set(if list.error.is_some() {
            1.0
        } else {
            0.0
        });
    }
    for server in resolver.upstreams().stats() {
        let name = server.server.to_string();
        counter!("tidegate_dns_upstream_queries_total", "upstream" => name.clone())
            .absolute(server.queries);
        counter!("tidegate_dns_upstream_failures_total", "upstream" => name.clone())
            .absolute(server.failures);
        counter!("tidegate_dns_upstream_mismatches_total", "upstream" => name.clone())
            .absolute(server.dropped);
        gauge!("tidegate_dns_upstream_up", "upstream" => name.clone())
            .set(if server.is_in_backoff { 0.0 } else { 1.0 });
        if let Some(response) = server.response {
            gauge!("tidegate_dns_upstream_mean_seconds", "upstream" => name)
                .set(response.as_secs_f64());
        }
    }
}

/// Returns the numbers of this process for the charts.
pub(crate) fn own_samples(resolver: &Resolver, recording: &Recording) -> Vec<OwnSample> {
    let counts = recording.counts();
    let upstreams = resolver.upstreams().stats();
    let memory = resolver.l0().stats();
    let slowest = upstreams.iter().filter_map(|server| server.response).max();
    let slowest = slowest.unwrap_or(Duration::ZERO);
    vec![
        OwnSample::count("dns.queries", counts.queries),
        OwnSample::count("dns.blocked", counts.blocked),
        OwnSample::count("dns.memory_hits", counts.memory_hits),
        OwnSample::count("dns.store_hits", counts.store_hits),
        OwnSample::count("dns.forwarded", upstreams.iter().map(|server| server.queries).sum()),
        OwnSample::count("dns.failed", upstreams.iter().map(|server| server.failures).sum()),
        OwnSample::level("dns.memory_bytes", float(memory.bytes as u64)),
        OwnSample::level("dns.memory_answers", float(memory.entries as u64)),
        OwnSample::peak("dns.upstream_ms", slowest.as_secs_f64() * 1_000.0),
    ]
}
