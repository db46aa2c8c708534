//! Statistics: counters in the store, by hour for 90 days and by day for a year. Every instance adds
//! to them, so each shows the sum of all. Names are kept by hour for eight days, and by day for a year.
//!
//! Counts gather in memory, by facts rather than by text, so that counting a query allocates nothing.
//! They are added every minute, names every five, by a script, once per hour of time: each addition is
//! a write of the store, and a home should not wear out its disk for figures. Whoever reads adds what
//! still waits in this process, so its own queries are there at once. A day is the sum of its hours
//! until it has been over for a day; then it is added up once, and kept when its hours are gone.
//! Invariants: memory and keys are bounded whatever clients ask for; what the store did not take stays
//! in memory for the next time, and what finds no room there is counted as dropped; adding up a day
//! twice changes nothing.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use store::{
    Millis, Store,
    redis::{self, Cmd},
};

use crate::{
    DomainName, Error,
    keys::StatisticsKeys,
    query_record::{CacheTier, Label, Labels, QueryOutcome, QueryProtocol, QueryRecord},
    scripts::count_queries,
};

/// Fields of one bucket.
const FIELDS_MAX: usize = 5_000;

/// Names kept of one bucket, about.
const NAMES_MAX: usize = 500;

/// Names of an hour that are added at once, those asked for most. The store keeps half as many: to add
/// every name that was asked for once would cost more than to answer it.
const NAMES_ADDED_MAX: usize = 2 * NAMES_MAX;

/// Different fields and names that wait in memory.
const PENDING_MAX: usize = 20_000;

/// Entries in memory from which on they are added without waiting.
const PENDING_MANY: usize = PENDING_MAX / 2;

/// Pairs that one call adds.
const PAIRS_MAX: usize = 1_000;

/// Interval at which counts are added, and at which names are, of which there are many more.
const ADD_EVERY: Duration = Duration::from_secs(60);
const ADD_NAMES_EVERY: Duration = Duration::from_secs(300);

/// Days after which a day is added up: by then no instance has counts of it any more.
const ADDED_UP_AFTER: i64 = 2;

/// Longest range that is read by hour, and the hours for which names are kept.
const LONGEST_BY_HOUR: i64 = 8 * 24;

/// Length of a bucket, and the time for which it is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StatisticsStep {
    /// An hour, kept for 90 days.
    #[default]
    Hour,
    /// A day (UTC), kept for a year.
    Day,
}

impl StatisticsStep {
    /// Returns the length.
    pub fn length(self) -> Duration {
        Duration::from_secs(match self {
            Self::Hour => 3_600,
            Self::Day => 86_400,
        })
    }

    /// Returns the number of buckets that are kept.
    pub fn kept(self) -> i64 {
        match self {
            Self::Hour => 90 * 24,
            Self::Day => 366,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Hour => "h",
            Self::Day => "d",
        }
    }

    fn bucket(self, at: Millis) -> i64 {
        at.as_secs().div_euclid(i64::try_from(self.length().as_secs()).unwrap_or(1))
    }

    fn start(self, bucket: i64) -> Millis {
        Millis(bucket * i64::try_from(self.length().as_millis()).unwrap_or(1))
    }
}

/// A property by which queries are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StatisticsField {
    /// All queries.
    Total,
    /// By outcome.
    Outcome,
    /// By tier of the cache.
    Tier,
    /// By type, as a number.
    Type,
    /// By response code, as a number.
    Rcode,
    /// By protocol.
    Protocol,
    /// By client: its id, or else its address.
    Client,
    /// Blocked ones by client.
    BlockedClient,
    /// By group.
    Group,
    /// By list or rule that decided.
    List,
    /// By upstream.
    Upstream,
    /// By duration, in steps that grow by about a fifth: see [`StatisticsReport::percentile_us`].
    Duration,
}

impl StatisticsField {
    fn letter(self) -> char {
        match self {
            Self::Total => 'n',
            Self::Outcome => 'o',
            Self::Tier => 'c',
            Self::Type => 't',
            Self::Rcode => 'r',
            Self::Protocol => 'p',
            Self::Client => 'a',
            Self::BlockedClient => 'b',
            Self::Group => 'g',
            Self::List => 'l',
            Self::Upstream => 'u',
            Self::Duration => 'd',
        }
    }
}

/// Facts by which queries are counted, but for names and clients, of which there are many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct QueryFacts {
    outcome: QueryOutcome,
    tier: CacheTier,
    protocol: QueryProtocol,
    qtype: u16,
    rcode: u16,
    duration_step: u32,
    group: Label,
    list: Label,
    upstream: Label,
}

/// Queries, and those of them that were blocked.
#[derive(Clone, Copy, Debug, Default)]
struct QueryCount {
    all: u64,
    blocked: u64,
}

impl QueryCount {
    fn add(&mut self, other: Self) {
        self.all += other.all;
        self.blocked += other.blocked;
    }
}

/// Counts of an hour that wait for the store.
#[derive(Debug, Default)]
struct PendingHour {
    facts: HashMap<QueryFacts, u64, RandomState>,
    clients: HashMap<String, QueryCount, RandomState>,
    names: HashMap<DomainName, QueryCount, RandomState>,
}

impl PendingHour {
    fn len(&self) -> usize {
        self.facts.len() + self.clients.len() + self.names.len()
    }
}

/// Counts of a bucket as the store has them.
#[derive(Clone, Debug, Default)]
struct BucketCounts {
    fields: HashMap<String, u64>,
    names: HashMap<String, u64>,
    blocked: HashMap<String, u64>,
}

impl BucketCounts {
    fn add(&mut self, other: Self) {
        let merge = |into: &mut HashMap<String, u64>, from: HashMap<String, u64>| {
            from.into_iter().for_each(|(key, by)| *into.entry(key).or_insert(0) += by);
        };
        merge(&mut self.fields, other.fields);
        merge(&mut self.names, other.names);
        merge(&mut self.blocked, other.blocked);
    }

    fn add_hour(&mut self, hour: &PendingHour, labels: &Labels) {
        let mut put = |field: StatisticsField, value: &str, by: u64| {
            if by > 0 {
                *self.fields.entry(format!("{}{value}", field.letter())).or_insert(0) += by;
            }
        };
        for (facts, by) in &hour.facts {
            put(StatisticsField::Total, "", *by);
            put(StatisticsField::Outcome, facts.outcome.as_str(), *by);
            put(StatisticsField::Tier, facts.tier.stored_name(), *by);
            put(StatisticsField::Type, &facts.qtype.to_string(), *by);
            put(StatisticsField::Rcode, &facts.rcode.to_string(), *by);
            put(StatisticsField::Protocol, facts.protocol.as_str(), *by);
            put(StatisticsField::Duration, &facts.duration_step.to_string(), *by);
            for (field, label) in [
                (StatisticsField::Group, facts.group),
                (StatisticsField::List, facts.list),
                (StatisticsField::Upstream, facts.upstream),
            ] {
                if !label.is_none() {
                    put(field, &labels.name(label), *by);
                }
            }
        }
        for (client, count) in &hour.clients {
            put(StatisticsField::Client, client, count.all);
            put(StatisticsField::BlockedClient, client, count.blocked);
        }
        let mut names: Vec<(&DomainName, &QueryCount)> = hour.names.iter().collect();
        if names.len() > NAMES_ADDED_MAX {
            let by_count = |(_, count): &(&DomainName, &QueryCount)| {
                std::cmp::Reverse((count.blocked.saturating_mul(2)).max(count.all))
            };
            names.select_nth_unstable_by_key(NAMES_ADDED_MAX, by_count);
            names.truncate(NAMES_ADDED_MAX);
        }
        for (name, count) in names {
            let name = name.to_string();
            if count.blocked > 0 {
                *self.blocked.entry(name.clone()).or_insert(0) += count.blocked;
            }
            *self.names.entry(name).or_insert(0) += count.all;
        }
    }
}

#[derive(Debug, Default)]
struct PendingCounts {
    hours: HashMap<i64, PendingHour>,
    /// Entries of all hours.
    entries: usize,
    /// Counts of hours that the store did not take.
    refused: HashMap<i64, BucketCounts>,
    /// Names of the labels in the facts.
    labels: Option<Labels>,
    dropped: u64,
    /// Times of the last additions.
    added_at: Option<Millis>,
    names_added_at: Option<Millis>,
    /// Days that are known to be added up.
    added_up: HashSet<i64>,
}

impl PendingCounts {
    /// Takes the counts that wait, by hour; those of hours that are over with their names.
    fn take(&mut self, now: Millis, with_names: bool) -> HashMap<i64, BucketCounts> {
        let labels = self.labels.clone().unwrap_or_default();
        let this_hour = StatisticsStep::Hour.bucket(now);
        let mut taken = std::mem::take(&mut self.refused);
        for (hour, waiting) in &mut self.hours {
            let mut part = PendingHour {
                facts: std::mem::take(&mut waiting.facts),
                clients: std::mem::take(&mut waiting.clients),
                ..PendingHour::default()
            };
            if with_names || *hour < this_hour {
                part.names = std::mem::take(&mut waiting.names);
            }
            taken.entry(*hour).or_default().add_hour(&part, &labels);
        }
        self.hours.retain(|_, waiting| waiting.len() > 0);
        self.entries = self.hours.values().map(PendingHour::len).sum();
        self.added_at = Some(now);
        if with_names {
            self.names_added_at = Some(now);
        }
        taken
    }

    /// Returns what waits of an hour.
    fn of_hour(&self, hour: i64) -> BucketCounts {
        let mut counts = self.refused.get(&hour).cloned().unwrap_or_default();
        if let (Some(waiting), Some(labels)) = (self.hours.get(&hour), &self.labels) {
            counts.add_hour(waiting, labels);
        }
        counts
    }
}

/// The statistics of a store. A cheap clone.
#[derive(Clone, Debug)]
pub struct Statistics {
    store: Store,
    keys: StatisticsKeys,
    pending: Arc<Mutex<PendingCounts>>,
}

/// Counts of one bucket.
#[derive(Clone, Debug, Default)]
pub struct StatisticsBucket {
    /// Its beginning.
    pub start: Millis,
    counts: BTreeMap<String, u64>,
}

/// Counts of a range of time.
#[derive(Clone, Debug, Default)]
pub struct StatisticsReport {
    /// Length of the buckets.
    pub step: StatisticsStep,
    /// Buckets in which something was counted, oldest first.
    pub buckets: Vec<StatisticsBucket>,
    /// Names most asked for, most first.
    pub names: Vec<(String, u64)>,
    /// Names most blocked, most first.
    pub blocked_names: Vec<(String, u64)>,
    counts: BTreeMap<String, u64>,
}

fn count_of(counts: &BTreeMap<String, u64>, field: StatisticsField, value: &str) -> u64 {
    counts.get(&format!("{}{value}", field.letter())).copied().unwrap_or(0)
}

impl StatisticsBucket {
    /// Returns a count.
    pub fn count(&self, field: StatisticsField, value: &str) -> u64 {
        count_of(&self.counts, field, value)
    }
}

impl StatisticsReport {
    /// Returns a count.
    pub fn count(&self, field: StatisticsField, value: &str) -> u64 {
        count_of(&self.counts, field, value)
    }

    /// Returns the values of a field with their counts, most first.
    pub fn top(&self, field: StatisticsField, limit: usize) -> Vec<(String, u64)> {
        let values = self.counts.iter().filter_map(|(key, count)| {
            Some((key.strip_prefix(field.letter())?.to_owned(), *count))
        });
        sort_top(values.collect(), limit)
    }

    /// Returns the duration within which a share of the queries was answered, in microseconds. Rounded up
    /// to the end of its step, by less than a quarter.
    pub fn percentile_us(&self, share: f64) -> Option<u64> {
        let mut steps: Vec<(u32, u64)> = self
            .top(StatisticsField::Duration, usize::MAX)
            .into_iter()
            .filter_map(|(step, count)| Some((step.parse().ok()?, count)))
            .collect();
        steps.sort_unstable();
        let total: u64 = steps.iter().map(|(_, count)| count).sum();
        let mut seen = 0;
        for (step, count) in steps {
            seen += count;
            #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 53 bits")]
            if seen as f64 >= total as f64 * share {
                return Some(step_end_us(step));
            }
        }
        None
    }
}

/// Returns the step of a duration: 0 to 3 microseconds have one each, then every power of two has four.
fn duration_step(us: u32) -> u32 {
    let bits = u32::BITS - us.leading_zeros();
    match bits.checked_sub(3) {
        None => us,
        Some(above) => (above + 1) * 4 + (us >> above & 3),
    }
}

/// Returns the longest duration of a step, and 1 more.
fn step_end_us(step: u32) -> u64 {
    match step.min(255).checked_sub(4) {
        None => u64::from(step) + 1,
        Some(rest) => (u64::from(rest % 4) + 5) << (rest / 4).min(60),
    }
}

fn sort_top(mut values: Vec<(String, u64)>, limit: usize) -> Vec<(String, u64)> {
    values.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    values.truncate(limit);
    values
}

impl Statistics {
    /// Opens the statistics of a store.
    pub fn new(store: &Store) -> Self {
        let keys = StatisticsKeys::of(store.layout());
        Self { store: store.clone(), keys, pending: Arc::default() }
    }

    /// Counts a query. `client` is the client as it may be shown; names that may not be shown are none.
    pub fn count(
        &self,
        record: &QueryRecord,
        labels: &Labels,
        client: &str,
        name: Option<&DomainName>,
    ) {
        self.count_many(record, labels, client, name, 1);
    }

    /// Counts so many queries that differ in nothing but their time, all within an hour.
    pub fn count_many(
        &self,
        record: &QueryRecord,
        labels: &Labels,
        client: &str,
        name: Option<&DomainName>,
        queries: u64,
    ) {
        let blocked = if record.outcome == QueryOutcome::Blocked { queries } else { 0 };
        let count = QueryCount { all: queries, blocked };
        let facts = QueryFacts {
            outcome: record.outcome,
            tier: record.tier,
            protocol: record.protocol,
            qtype: record.qtype,
            rcode: record.rcode,
            duration_step: duration_step(record.duration_us),
            group: record.group,
            list: record.list,
            upstream: record.upstream,
        };
        let mut pending = self.pending.lock();
        let waiting =
            pending.refused.values().map(|bucket| bucket.fields.len() + bucket.names.len());
        if pending.entries + waiting.sum::<usize>() >= PENDING_MAX {
            pending.dropped += queries;
            return;
        }
        if pending.labels.is_none() {
            pending.labels = Some(labels.clone());
        }
        let hour = pending.hours.entry(StatisticsStep::Hour.bucket(record.at)).or_default();
        let before = hour.len();
        *hour.facts.entry(facts).or_insert(0) += queries;
        // Looked for first: a key is only made for what is new.
        match hour.clients.get_mut(client) {
            Some(known) => known.add(count),
            None => _ = hour.clients.insert(client.to_owned(), count),
        }
        if let Some(name) = name {
            match hour.names.get_mut(name) {
                Some(known) => known.add(count),
                None => _ = hour.names.insert(name.clone(), count),
            }
        }
        let grown = hour.len() - before;
        pending.entries += grown;
    }

    /// Adds all that has gathered to the store. What was not added stays for the next time.
    pub async fn flush(&self) -> Result<(), Error> {
        let waiting = self.pending.lock().take(self.store.now(), true);
        self.add_hours(waiting).await
    }

    /// Adds what is due, and adds up days that are over. Call it every few seconds.
    pub async fn flush_due(&self) -> Result<(), Error> {
        let now = self.store.now();
        let waiting = {
            let mut pending = self.pending.lock();
            let is_many = pending.entries >= PENDING_MANY;
            let is_due = |at: Option<Millis>, every: Duration| {
                // A clock that was set back makes nobody wait for it.
                is_many || at.is_none_or(|at| now >= at + every || now < at)
            };
            if !is_due(pending.added_at, ADD_EVERY) {
                return Ok(());
            }
            let with_names = is_due(pending.names_added_at, ADD_NAMES_EVERY);
            pending.take(now, with_names)
        };
        self.add_hours(waiting).await?;
        self.add_up_days().await
    }

    async fn add_hours(&self, waiting: HashMap<i64, BucketCounts>) -> Result<(), Error> {
        let mut result = Ok(());
        for (hour, counts) in waiting {
            if result.is_ok() {
                result = self.add(hour, &counts).await;
            }
            if result.is_err() {
                self.pending.lock().refused.entry(hour).or_default().add(counts);
            }
        }
        result
    }

    /// Adds up the days that are over and have not been added up, as far as their names are kept.
    async fn add_up_days(&self) -> Result<(), Error> {
        let today = StatisticsStep::Day.bucket(self.store.now());
        for day in today - LONGEST_BY_HOUR / 24 + 1..=today - ADDED_UP_AFTER {
            if self.pending.lock().added_up.contains(&day) {
                continue;
            }
            let key = self.keys.counts(StatisticsStep::Day.word(), day);
            let is_there: bool =
                redis::cmd("EXISTS").arg(key).query_async(&mut self.store.clone()).await?;
            if !is_there {
                self.add_up(day).await?;
            }
            let mut pending = self.pending.lock();
            pending.added_up.retain(|known| *known > today - LONGEST_BY_HOUR / 24);
            pending.added_up.insert(day);
        }
        Ok(())
    }

    /// Writes a day as the sum of its hours. Two instances at once write the same.
    async fn add_up(&self, day: i64) -> Result<(), Error> {
        let sum = self.sum_hours(day, true).await?;
        if sum.fields.is_empty() {
            return Ok(());
        }
        let (mut fields, step) = (sort_top(sum.fields.into_iter().collect(), usize::MAX), "d");
        // What finds no room is counted together, as in an hour.
        let rest: u64 = fields.drain(FIELDS_MAX.min(fields.len())..).map(|(_, count)| count).sum();
        if rest > 0 {
            fields.push(("x".to_owned(), rest));
        }
        let day_keys =
            [self.keys.counts(step, day), self.keys.names(step, day), self.keys.blocked(step, day)];
        let [counts, names, blocked] = &day_keys;
        let mut pipe = redis::pipe();
        pipe.atomic();
        pipe.del(counts).ignore().del(names).ignore().del(blocked).ignore();
        pipe.hset_multiple(counts, &fields).ignore();
        for (key, values) in [(names, sum.names), (blocked, sum.blocked)] {
            let top = sort_top(values.into_iter().collect(), NAMES_MAX);
            let scored: Vec<(u64, String)> =
                top.into_iter().map(|(name, count)| (count, name)).collect();
            if !scored.is_empty() {
                pipe.zadd_multiple(key, &scored).ignore();
            }
        }
        let keep =
            StatisticsStep::Day.length() * u32::try_from(StatisticsStep::Day.kept()).unwrap_or(1);
        for key in &day_keys {
            pipe.pexpire(key, i64::try_from(keep.as_millis()).unwrap_or(i64::MAX)).ignore();
        }
        Ok(pipe.query_async::<()>(&mut self.store.clone()).await?)
    }

    /// Adds the counts of one bucket, some at a time. A call that fails half way counts some twice when
    /// it is made again; statistics may be that far off.
    async fn add(&self, hour: i64, counts: &BucketCounts) -> Result<(), Error> {
        let step = StatisticsStep::Hour;
        let milliseconds = |buckets: i64| {
            (step.length() * u32::try_from(buckets + 1).unwrap_or(1)).as_millis().to_string()
        };
        let (keep_ms, names_keep_ms) = (milliseconds(step.kept()), milliseconds(LONGEST_BY_HOUR));
        let chunks = |values: &HashMap<String, u64>| -> Vec<Vec<(String, u64)>> {
            let all: Vec<(String, u64)> =
                values.iter().map(|(value, by)| (value.clone(), *by)).collect();
            all.chunks(PAIRS_MAX).map(<[(String, u64)]>::to_vec).collect()
        };
        let calls = chunks(&counts.fields).into_iter().map(|pairs| (pairs.len(), 0, pairs));
        let names = chunks(&counts.names).into_iter().map(|pairs| (0, pairs.len(), pairs));
        let blocked = chunks(&counts.blocked).into_iter().map(|pairs| (0, 0, pairs));
        for (field_count, name_count, pairs) in calls.chain(names).chain(blocked) {
            let pairs: Vec<String> =
                pairs.into_iter().flat_map(|(value, by)| [value, by.to_string()]).collect();
            let keys = count_queries::Keys {
                counts: &self.keys.counts(step.word(), hour),
                names: &self.keys.names(step.word(), hour),
                blocked: &self.keys.blocked(step.word(), hour),
            };
            let args = count_queries::Args {
                keep_ms: &keep_ms,
                names_keep_ms: &names_keep_ms,
                fields_max: FIELDS_MAX,
                names_max: NAMES_MAX,
                field_count,
                name_count,
                pairs: &pairs,
            };
            let _: Vec<String> = count_queries::run(&self.store, keys, args).await?;
        }
        Ok(())
    }

    /// Returns the queries that were not counted.
    pub fn dropped(&self) -> u64 {
        self.pending.lock().dropped
    }

    /// Reads the counts of a range: by hour if it is not longer than eight days and all of it is kept
    /// by hour, else by day. The beginning is rounded down to that.
    pub async fn read(&self, from: Millis, to: Millis) -> Result<StatisticsReport, Error> {
        let now = self.store.now();
        let hours = |from: Millis, to: Millis| {
            StatisticsStep::Hour.bucket(to) - StatisticsStep::Hour.bucket(from)
        };
        let by_hour = hours(from, to.min(now)) <= LONGEST_BY_HOUR
            && hours(from, now) < StatisticsStep::Hour.kept();
        let step = if by_hour { StatisticsStep::Hour } else { StatisticsStep::Day };
        // Names of earlier hours are left by day only.
        let has_names = !by_hour || hours(from, now) < LONGEST_BY_HOUR;
        let last = step.bucket(Millis(to.0 - 1)).min(step.bucket(now));
        let first = step.bucket(from).max(last - step.kept() + 1);
        let mut report = StatisticsReport { step, ..StatisticsReport::default() };
        let mut sum = BucketCounts::default();
        for bucket in first..=last {
            let counts = match step {
                StatisticsStep::Hour => self.read_hour(bucket, has_names).await?,
                StatisticsStep::Day => self.read_day(bucket, true).await?,
            };
            if counts.fields.is_empty() {
                continue;
            }
            let fields = counts.fields.iter().map(|(field, count)| (field.clone(), *count));
            report
                .buckets
                .push(StatisticsBucket { start: step.start(bucket), counts: fields.collect() });
            sum.add(counts);
        }
        if !has_names {
            let day = StatisticsStep::Day;
            for bucket in day.bucket(from)..=day.bucket(Millis(to.0 - 1)).min(day.bucket(now)) {
                let BucketCounts { names, blocked, .. } = self.read_day(bucket, true).await?;
                sum.add(BucketCounts { names, blocked, ..BucketCounts::default() });
            }
        }
        report.counts = sum.fields.into_iter().collect();
        report.names = sort_top(sum.names.into_iter().collect(), NAMES_MAX);
        report.blocked_names = sort_top(sum.blocked.into_iter().collect(), NAMES_MAX);
        Ok(report)
    }

    /// Reads an hour, with what waits of it in this process.
    async fn read_hour(&self, hour: i64, with_names: bool) -> Result<BucketCounts, Error> {
        let mut counts = self.read_bucket(StatisticsStep::Hour, hour, with_names).await?;
        let waiting = self.pending.lock().of_hour(hour);
        counts.add(waiting);
        Ok(counts)
    }

    /// Reads a day: as it was added up, or from its hours.
    async fn read_day(&self, day: i64, with_names: bool) -> Result<BucketCounts, Error> {
        let now = self.store.now();
        if day <= StatisticsStep::Day.bucket(now) - ADDED_UP_AFTER {
            let counts = self.read_bucket(StatisticsStep::Day, day, with_names).await?;
            if !counts.fields.is_empty() {
                return Ok(counts);
            }
        }
        self.sum_hours(day, with_names).await
    }

    async fn sum_hours(&self, day: i64, with_names: bool) -> Result<BucketCounts, Error> {
        let mut sum = BucketCounts::default();
        for hour in day * 24..(day + 1) * 24 {
            sum.add(self.read_hour(hour, with_names).await?);
        }
        Ok(sum)
    }

    async fn read_bucket(
        &self,
        step: StatisticsStep,
        bucket: i64,
        with_names: bool,
    ) -> Result<BucketCounts, Error> {
        let found: HashMap<String, Vec<u8>> = redis::cmd("HGETALL")
            .arg(self.keys.counts(step.word(), bucket))
            .query_async(&mut self.store.clone())
            .await?;
        // What another writer left there is no count.
        let number = |(field, count): (String, Vec<u8>)| {
            Some((field, std::str::from_utf8(&count).ok()?.parse().ok()?))
        };
        let mut counts = BucketCounts {
            fields: found.into_iter().filter_map(number).collect(),
            ..BucketCounts::default()
        };
        if with_names && !counts.fields.is_empty() {
            counts.names = self.top_names(self.keys.names(step.word(), bucket)).await?;
            counts.blocked = self.top_names(self.keys.blocked(step.word(), bucket)).await?;
        }
        Ok(counts)
    }

    async fn top_names(&self, key: store::Key) -> Result<HashMap<String, u64>, Error> {
        let mut read: Cmd = redis::cmd("ZREVRANGE");
        read.arg(key).arg(0).arg(NAMES_MAX - 1).arg("WITHSCORES");
        let found: Vec<(String, f64)> = read.query_async(&mut self.store.clone()).await?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "scores are counts; another writer's are clamped"
        )]
        let counts = found.into_iter().map(|(name, score)| (name, score.max(0.0) as u64));
        Ok(counts.collect())
    }

    /// Removes a client from all counts that are kept by hour and by day, and from those that wait.
    /// Totals stay: they tell nothing of it.
    pub async fn forget_client(&self, client: &str) -> Result<(), Error> {
        {
            let mut pending = self.pending.lock();
            for waiting in pending.hours.values_mut() {
                waiting.clients.remove(client);
            }
            for waiting in pending.refused.values_mut() {
                waiting
                    .fields
                    .retain(|field, _| field.get(1..) != Some(client) || !is_of_client(field));
            }
            pending.entries = pending.hours.values().map(PendingHour::len).sum();
        }
        let now = self.store.now();
        let fields = [StatisticsField::Client, StatisticsField::BlockedClient]
            .map(|field| format!("{}{client}", field.letter()));
        for step in [StatisticsStep::Hour, StatisticsStep::Day] {
            let last = step.bucket(now);
            for bucket in last - step.kept()..=last {
                redis::cmd("HDEL")
                    .arg(self.keys.counts(step.word(), bucket))
                    .arg(&fields)
                    .query_async::<()>(&mut self.store.clone())
                    .await?;
            }
        }
        Ok(())
    }
}

fn is_of_client(field: &str) -> bool {
    [StatisticsField::Client, StatisticsField::BlockedClient]
        .iter()
        .any(|one| field.starts_with(one.letter()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_durations_grow_by_less_than_a_quarter_and_hold_what_is_in_them() {
        let mut last = 0;
        for us in (0..100_000).chain([1 << 20, u32::MAX / 2, u32::MAX]) {
            let step = duration_step(us);
            assert!(step >= last, "{us}");
            last = step;
            let end = step_end_us(step);
            assert!(end > u64::from(us), "{us} is in a step that ends at {end}");
            assert!(us < 8 || (end - 1) as f64 <= f64::from(us) * 1.25, "{us} is told as {end}");
        }
    }
}
