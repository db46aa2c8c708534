//! Reading traffic: the numbers of all instances, by endpoint and by time.

use std::{collections::HashMap, time::Duration};

use store::{
    Key, Millis,
    histogram::{BUCKETS, Buckets, quantile},
    redis::{self, FromRedisValue},
};

use super::{EndpointName, Traffic};
use crate::Error;

/// Most endpoints read at once.
const READ_BATCH: usize = 100;

/// Most seconds or minutes read by one call: the minutes of the two days that are kept.
pub const READ_MAX_BUCKETS: i64 = 2 * 24 * 60;

/// Traffic of an app over all of its instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficSnapshot {
    /// Open HTTP connections of live instances.
    pub connections: u64,
    /// Most open HTTP connections since the first of the live instances started.
    pub connections_max: u64,
    /// Requests: accepted, refused, and those that are in the total alone.
    pub total: u64,
    /// Requests that reached a handler.
    pub accepted: u64,
    /// Requests that were turned away before.
    pub refused: u64,
    /// Requests that another program added to the total alone: nobody said whether they were accepted.
    pub total_only: u64,
    /// Requests that another program counted without an outcome.
    pub without_outcome: u64,
    /// Responses with a status of 400 or above.
    pub errors: u64,
    /// Requests per second over ten whole seconds.
    pub speed_per_second: u64,
    /// Most requests in one whole second.
    pub max_speed_per_second: u64,
    /// Responses by the first digit of their status: 2xx, 3xx, 4xx, 5xx.
    pub by_class: [u64; 4],
    /// Requests whose client disconnected.
    pub aborted: u64,
    /// Responses with status 429.
    pub limited: u64,
}

/// An instance that is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceTraffic {
    /// Its id, new with each start.
    pub id: String,
    /// Open HTTP connections.
    pub connections: u64,
    /// The time until which it counts unless it reports again.
    pub until: Millis,
}

/// Traffic of one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointTraffic {
    /// The endpoint.
    pub endpoint: EndpointName,
    /// Requests.
    pub requests: u64,
    /// Responses with a status of 400 or above.
    pub errors: u64,
    /// Response time that half of the requests were below, within 10 %; none without requests.
    pub p50: Option<Duration>,
    /// The same for 90 %.
    pub p90: Option<Duration>,
    /// The same for 99 %.
    pub p99: Option<Duration>,
}

impl Traffic {
    /// Reads the numbers of all instances, as of their last flush.
    pub async fn snapshot(&self) -> Result<TrafficSnapshot, Error> {
        let keys = &self.0.keys;
        // The total first: what is counted meanwhile is then not taken for what others count.
        let counted = self.number(&keys.total).await?;
        let outcomes: HashMap<String, i64> = self.read("HGETALL", &keys.outcomes).await?;
        let outcome = |name: &str| unsigned(outcomes.get(name).copied());
        let (accepted, refused) = (self.number(&keys.accepted).await?, outcome("refused"));
        let (by_class, aborted) = (["2xx", "3xx", "4xx", "5xx"].map(outcome), outcome("aborted"));
        let sorted = accepted.saturating_add(refused);
        let with_outcome = by_class.iter().fold(aborted, |sum, count| sum.saturating_add(*count));
        let total = counted.max(sorted).max(with_outcome);
        Ok(TrafficSnapshot {
            connections: self.number(&keys.connections).await?,
            connections_max: self.number(&keys.connections_max).await?,
            total,
            accepted,
            refused,
            total_only: total - sorted,
            without_outcome: total - with_outcome,
            errors: self.number(&keys.errors).await?,
            speed_per_second: self.number(&keys.speed).await?,
            max_speed_per_second: self.number(&keys.speed_max).await?,
            by_class,
            aborted,
            limited: outcome("limited"),
        })
    }

    /// Reads the endpoints that have counters of their own, and the sum of all others.
    pub async fn endpoints(&self) -> Result<Vec<EndpointTraffic>, Error> {
        let names: Vec<String> = self.read("SMEMBERS", &self.0.keys.endpoints).await?;
        let mut names: Vec<EndpointName> = names.into_iter().map(EndpointName::known).collect();
        names.sort_unstable();
        names.push(EndpointName::other());
        let mut found = Vec::with_capacity(names.len());
        for batch in names.chunks(READ_BATCH) {
            let each = batch.iter().map(|name| self.endpoint(name));
            for endpoint in futures_util::future::join_all(each).await {
                let endpoint = endpoint?;
                if endpoint.requests > 0 {
                    found.push(endpoint);
                }
            }
        }
        Ok(found)
    }

    /// Reads the requests of each second from `first` to `last`, in Unix seconds; ten minutes are
    /// kept.
    ///
    /// # Errors
    /// More than [`READ_MAX_BUCKETS`] seconds.
    pub async fn seconds(&self, first: i64, last: i64) -> Result<Vec<i64>, Error> {
        self.buckets(first, last, |minute| self.0.keys.seconds(minute)).await
    }

    /// Reads the requests of each minute from `first` to `last`, in Unix minutes; two days are kept.
    ///
    /// # Errors
    /// More than [`READ_MAX_BUCKETS`] minutes.
    pub async fn minutes(&self, first: i64, last: i64) -> Result<Vec<i64>, Error> {
        self.buckets(first, last, |hour| self.0.keys.minutes(hour)).await
    }

    /// Deletes the traffic of this app, which is on the list of apps again with its next request; limits
    /// and sessions stay.
    pub async fn reset(&self) -> Result<(), Error> {
        let keys = &self.0.keys;
        let names: Vec<String> = self.read("SMEMBERS", &keys.endpoints).await?;
        let names = names.into_iter().map(EndpointName::known).chain([EndpointName::other()]);
        let own = names.flat_map(|name| {
            [keys.endpoint(&name), keys.endpoint_errors(&name), keys.response_times(&name)]
        });
        let second = self.0.store.now().as_secs();
        let (minute, hour) = (second.div_euclid(60), second.div_euclid(3_600));
        let seconds = (minute - 11..=minute).map(|minute| keys.seconds(minute));
        let minutes = (hour - 49..=hour).map(|hour| keys.minutes(hour));
        let totals = [&keys.total, &keys.accepted, &keys.errors, &keys.outcomes, &keys.speed];
        let rest = [&keys.speed_max, &keys.connections_max, &keys.all_times];
        let rest = totals.into_iter().chain(rest).cloned();
        // The list of endpoints goes last: a reset that is cut short can be made again.
        let last = [keys.endpoints.clone()];
        for key in own.chain(seconds).chain(minutes).chain(rest).chain(last) {
            let _: i64 = self.read("DEL", &key).await?;
        }
        if let Some(app) = &self.0.app {
            let mut command = redis::cmd("SREM");
            command.arg(&self.0.apps).arg(app.as_str());
            let () = command.query_async(&mut self.0.store.clone()).await?;
        }
        self.0.admitted.lock().names.clear();
        self.0.listed_minute.store(i64::MIN, std::sync::atomic::Ordering::Relaxed);
        *self.0.published.lock() = None;
        *self.0.reported.lock() = None;
        Ok(())
    }

    /// Reads the response times of all requests.
    ///
    /// # Errors
    /// The store is away.
    pub async fn response_times(&self) -> Result<Box<Buckets>, Error> {
        self.times(&self.0.keys.all_times).await
    }

    /// Reads the instances that are alive, by id.
    ///
    /// # Errors
    /// The store is away.
    pub async fn instances(&self) -> Result<Vec<InstanceTraffic>, Error> {
        let now = self.0.store.now();
        let found: HashMap<String, String> = self.read("HGETALL", &self.0.keys.instances).await?;
        let mut instances: Vec<InstanceTraffic> = found
            .into_iter()
            .filter_map(|(id, text)| {
                let (connections, until) = text.split_once(' ')?;
                let until = Millis(until.trim().parse().ok()?);
                let connections = unsigned(connections.parse().ok());
                (until > now).then_some(InstanceTraffic { id, connections, until })
            })
            .collect();
        instances.sort_unstable_by(|one, other| one.id.cmp(&other.id));
        Ok(instances)
    }

    async fn times(&self, key: &Key) -> Result<Box<Buckets>, Error> {
        let times: HashMap<usize, i64> = self.read("HGETALL", key).await?;
        let mut counts = Box::new([0; BUCKETS]);
        for (bucket, count) in times {
            if let Some(slot) = counts.get_mut(bucket) {
                *slot = unsigned(Some(count));
            }
        }
        Ok(counts)
    }

    async fn endpoint(&self, name: &EndpointName) -> Result<EndpointTraffic, Error> {
        let keys = &self.0.keys;
        let counts = self.times(&keys.response_times(name)).await?;
        Ok(EndpointTraffic {
            endpoint: name.clone(),
            requests: self.number(&keys.endpoint(name)).await?,
            errors: self.number(&keys.endpoint_errors(name)).await?,
            p50: quantile(&counts, 0.5),
            p90: quantile(&counts, 0.9),
            p99: quantile(&counts, 0.99),
        })
    }

    /// Reads a range of buckets that lie sixty to a hash.
    async fn buckets(
        &self,
        first: i64,
        last: i64,
        key: impl Fn(i64) -> Key,
    ) -> Result<Vec<i64>, Error> {
        if last.checked_sub(first).is_none_or(|span| span >= READ_MAX_BUCKETS) {
            return Err(Error::invalid(
                "range",
                format!("too long: read at most {READ_MAX_BUCKETS} at once"),
            ));
        }
        let mut counts = Vec::new();
        let mut next = first;
        while next <= last {
            let group = next.div_euclid(60);
            let end = last.min(group.saturating_mul(60).saturating_add(59));
            let mut command = redis::cmd("HMGET");
            command.arg(key(group));
            (next..=end).for_each(|bucket| _ = command.arg(bucket));
            let found: Vec<Option<i64>> = command.query_async(&mut self.0.store.clone()).await?;
            counts.extend(found.into_iter().map(Option::unwrap_or_default));
            next = end.saturating_add(1);
            if end == last {
                break;
            }
        }
        Ok(counts)
    }

    /// Reads a number that anyone may write: what is not there or not a number is 0.
    async fn number(&self, key: &Key) -> Result<u64, Error> {
        let text: Option<String> = self.read("GET", key).await?;
        Ok(unsigned(text.and_then(|text| text.trim().parse().ok())))
    }

    async fn read<T: FromRedisValue>(&self, command: &str, key: &Key) -> Result<T, Error> {
        Ok(redis::cmd(command).arg(key).query_async(&mut self.0.store.clone()).await?)
    }
}

/// A count as it is shown: never below 0, whatever others wrote.
fn unsigned(count: Option<i64>) -> u64 {
    count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0)
}
