//! Traffic that other programs report: counts of theirs, since the last report or since their start.
//!
//! A program that counts since its start says so again and again; what is new is the difference to its
//! last report, which is kept in the store, so that reports may reach any instance. Invariant: a request
//! is counted once, also across restarts of the program and of this one.

use std::{collections::BTreeMap, time::Duration};

use store::histogram::{self, BUCKETS, Buckets};

use super::{EndpointName, NamedSum, Traffic};
use crate::{
    Error, InstanceId,
    scripts::{count_since_report, report_connections},
};

/// Most series of one reporter that are remembered: an endpoint with a status each.
const SERIES_MAX: usize = 4_000;

/// Series sent in one script call.
const SERIES_BATCH: usize = 100;

/// Time without a report after which a reporter is forgotten.
const KEEP_REPORTS: Duration = Duration::from_secs(2 * 86_400);

/// Time after its last report for which the connections of a reporter count: exporters send every
/// minute unless told otherwise.
const REPORTER_LEASE: Duration = Duration::from_secs(150);

/// Requests to one endpoint with one status, as a program reports them.
#[derive(Clone, Debug)]
pub struct ReportedRequests {
    /// Their method.
    pub method: String,
    /// The template of the route they matched; none if they matched none.
    pub route: Option<String>,
    /// Status of the responses.
    pub status: u16,
    /// Number of requests.
    pub requests: u64,
    /// Response times, with the number of requests that took so long.
    pub times: Vec<(Duration, u64)>,
    /// Time of the program's start in Unix nanoseconds, if the counts are since then; none if they are
    /// since its last report.
    pub since_start: Option<u64>,
}

/// Sums of one series of a report.
#[derive(Debug)]
struct SeriesSum {
    requests: u64,
    times: Box<Buckets>,
}

impl Default for SeriesSum {
    fn default() -> Self {
        Self { requests: 0, times: Box::new([0; BUCKETS]) }
    }
}

impl SeriesSum {
    /// `12 40:7 41:5`: requests, then buckets with their counts.
    fn text(&self) -> String {
        let buckets = self.times.iter().enumerate().filter(|(_, count)| **count > 0);
        let buckets = buckets.map(|(bucket, count)| format!(" {bucket}:{count}"));
        std::iter::once(self.requests.to_string()).chain(buckets).collect()
    }

    fn parse(text: &str) -> Self {
        let mut words = text.split(' ');
        let requests = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let mut sum = Self { requests, ..Self::default() };
        for (bucket, count) in words.filter_map(|word| word.split_once(':')) {
            if let (Ok(bucket), Ok(count)) = (bucket.parse::<usize>(), count.parse::<u64>())
                && let Some(times) = sum.times.get_mut(bucket)
            {
                *times = count;
            }
        }
        sum
    }
}

impl Traffic {
    /// Adds what one instance of a program reports. `reporter` tells its instances apart. Counts since the
    /// start of the program must come for all of its endpoints at once, as exporters send them: those
    /// beyond the endpoints that are told apart are known by their sum only.
    ///
    /// # Errors
    /// The store is out of reach: nothing since-start was counted, and may be reported again.
    pub async fn report(
        &self,
        reporter: &InstanceId,
        reported: &[ReportedRequests],
    ) -> Result<(), Error> {
        let asked = reported.iter().map(|one| EndpointName::new(&one.method, one.route.as_deref()));
        let admitted = self.admit(&asked.collect()).await?;
        // Endpoints without counters of their own are added up first, so that the number of series is
        // bounded whatever routes a program makes up.
        let mut fresh: BTreeMap<(EndpointName, u16), SeriesSum> = BTreeMap::new();
        let mut since_start: BTreeMap<(EndpointName, u16), (u64, SeriesSum)> = BTreeMap::new();
        for one in reported {
            let name = EndpointName::new(&one.method, one.route.as_deref());
            let name = if admitted.contains(&name) { name } else { EndpointName::other() };
            let sum = match one.since_start {
                Some(start) => {
                    // Series that differ in what is not told apart here start one after the other;
                    // their sum counts since the first of them did.
                    let entry = since_start.entry((name, one.status));
                    let (first, sum) = entry.or_insert_with(|| (start, SeriesSum::default()));
                    *first = start.min(*first);
                    sum
                }
                None => fresh.entry((name, one.status)).or_default(),
            };
            sum.requests = sum.requests.saturating_add(one.requests);
            for (time, count) in &one.times {
                let bucket = &mut sum.times[histogram::bucket(*time)];
                *bucket = bucket.saturating_add(*count);
            }
        }
        let since_start: Vec<_> = since_start.into_iter().collect();
        for batch in since_start.chunks(SERIES_BATCH) {
            let series = batch.iter().flat_map(|((name, status), (start, sum))| {
                [format!("{status} {name}"), start.to_string(), sum.text()]
            });
            let keys = count_since_report::Keys { reports: &self.0.keys.reports(reporter) };
            let args = count_since_report::Args {
                keep_ms: KEEP_REPORTS.as_millis(),
                most: SERIES_MAX,
                series: series.collect::<Vec<_>>(),
            };
            let reply: Vec<String> = count_since_report::run(&self.0.store, keys, args).await?;
            for (((name, status), _), counted) in batch.iter().zip(reply.iter().skip(1)) {
                let counted = SeriesSum::parse(counted);
                let sum = fresh.entry((name.clone(), *status)).or_default();
                sum.requests = sum.requests.saturating_add(counted.requests);
                sum.times.iter_mut().zip(counted.times.iter()).for_each(|(to, by)| *to += by);
            }
        }
        let requests: u64 = fresh.values().map(|sum| sum.requests).sum();
        let statuses: Vec<[(u16, u64); 1]> =
            fresh.iter().map(|((_, status), sum)| [(*status, sum.requests)]).collect();
        let named = fresh.iter().zip(&statuses).map(|(((name, _), sum), statuses)| NamedSum {
            name: name.clone(),
            statuses,
            aborted: 0,
            refused: 0,
            times: &sum.times,
        });
        self.add_named(named, &[(self.0.store.now().as_secs(), requests)]);
        Ok(())
    }

    /// Reports the open connections of one instance of a program.
    pub async fn report_connections(
        &self,
        reporter: &InstanceId,
        connections: u64,
    ) -> Result<(), Error> {
        let (store, keys) = (&self.0.store, &self.0.keys);
        let now = store.now();
        let (_, _, _): (String, u64, u64) = report_connections::run(
            store,
            report_connections::Keys {
                instances: &keys.instances,
                current: &keys.connections,
                max: &keys.connections_max,
            },
            report_connections::Args {
                now_ms: now,
                instance: reporter.as_str(),
                connections,
                until_ms: now + REPORTER_LEASE,
            },
        )
        .await?;
        Ok(())
    }
}
