//! History: named series of samples, kept in the store, shared by all instances.
//!
//! Each series is kept at four resolutions ([`RESOLUTIONS`]): 1 s for 10 minutes, 10 s for 2 hours, 1 min
//! for 2 days, 1 h for 90 days. Samples of the same moment stand together: a *row* has the values of all
//! series (`history/row.rs`), and a *chunk* is a hash of some rows. The chunks of a resolution form a
//! ring, so the bytes are bounded whatever anybody does:
//!
//! ```text
//! chunk 1 s, number n mod 12   epoch      n; a chunk of another epoch is replaced by the first write
//!                              s17:room   the values of second 17 that one instance saw in the store
//!                              c17:room   which of them may write it: the first that asks
//!                              o17:x3k9   the numbers of one process in second 17
//! chunk 10 s, 1 min, 1 h       s17        what the finer rows add up to
//! ```
//!
//! Two sorts of series, told apart by [`SeriesKind`]:
//! - *Shared*: what everybody reads in the store, such as the length of a queue. One instance writes it each
//!   second, whoever comes first, so an instance that dies leaves no hole, and none is counted twice.
//! - *Own*: what a process knows of itself, such as the requests it answered. Each writes its own row; they
//!   are added when they are read.
//!
//! Bounds: [`SERIES_MOST`] series; a number takes at most [`NUMBER_MAX_BYTES`] in a row, hence
//! [`SERIES_MAX_BYTES`] in all, and for own series 720 × 11 bytes more for each instance beyond the first. Most
//! take a third of that. A histogram takes as many bytes as it has buckets with something in them,
//! 2 to 6 each.
//!
//! Invariants: a second, a minute or an hour without a row is absent, not 0. What was written is not
//! changed. Longer steps are made from shorter ones by rules that do not depend on who applies them.

mod row;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::{BoxFuture, try_join_all};
use parking_lot::Mutex;

pub use self::row::NUMBER_MAX_BYTES;
use self::row::{RowEntries, SeriesValue};
use crate::{
    Error, Key, Millis, Store,
    histogram::{self, BUCKETS, Buckets},
    scripts::{history_register, history_write},
};

/// A resolution of every series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// Its word in keys.
    pub name: &'static str,
    /// Seconds from one sample to the next.
    pub step_seconds: i64,
    /// Samples kept.
    pub kept: i64,
    /// Rows in a chunk.
    chunk_rows: i64,
    /// Chunks in the ring: those kept, the one being written, and one more for readers that are slow.
    ring: i64,
    /// Seconds after its end when a row is made from finer ones, which are all there by then.
    grace_seconds: i64,
}

/// The resolutions, finest first.
pub const RESOLUTIONS: [Resolution; 4] = [
    Resolution {
        name: "1s",
        step_seconds: 1,
        kept: 600,
        chunk_rows: 60,
        ring: 12,
        grace_seconds: 0,
    },
    Resolution {
        name: "10s",
        step_seconds: 10,
        kept: 720,
        chunk_rows: 60,
        ring: 14,
        grace_seconds: 3,
    },
    Resolution {
        name: "1m",
        step_seconds: 60,
        kept: 2_880,
        chunk_rows: 120,
        ring: 26,
        grace_seconds: 5,
    },
    Resolution {
        name: "1h",
        step_seconds: 3_600,
        kept: 2_160,
        chunk_rows: 72,
        ring: 32,
        grace_seconds: 9,
    },
];

/// Most series.
pub const SERIES_MOST: usize = 1_024;
/// Most bytes that the numbers of one series take in the store, all resolutions together.
pub const SERIES_MAX_BYTES: usize = NUMBER_MAX_BYTES * (12 * 60 + 14 * 60 + 26 * 120 + 32 * 72);
/// Most points of a line that one call returns.
pub const POINTS_MOST: i64 = 3_000;
/// Days after which the number of a series that is no longer written can belong to another.
const KEEP_DAYS: i64 = 92;
/// Seconds that a process which was held up fills with what it knows of them.
const FILL_MOST_SECONDS: i64 = 10;
/// Rows of one resolution made in one round; the rest follow in the next.
const ROLL_UP_MOST: i64 = 60;
/// Time after which the names are read again.
const NAMES_MAX_AGE: Duration = Duration::from_secs(60);
/// Time after which a chunk that nobody read leaves the cache.
const CACHE_IDLE: Duration = Duration::from_secs(600);

impl Resolution {
    /// Returns the time for which samples are kept.
    pub fn retention(&self) -> Duration {
        seconds(self.kept * self.step_seconds)
    }

    /// The number of the bucket that a moment lies in.
    fn bucket(&self, second: i64) -> i64 {
        second.div_euclid(self.step_seconds)
    }

    /// The time after which a chunk that was not replaced goes away.
    fn keep_ms(&self) -> i64 {
        self.ring * self.chunk_rows * self.step_seconds * 2_000
    }
}

/// The rule by which samples of a series are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesKind {
    /// Shared: a value in the store. Over time the mean.
    Gauge,
    /// Shared or own: a value of which the highest matters, such as a latency. Over time and instances the
    /// maximum.
    Peak,
    /// Shared: a count in the store that only grows. Over time the last; it is read per second.
    Total,
    /// Own: a count of this process that only grows, kept per second. Over time the mean, over instances
    /// the sum.
    Rate,
    /// Own: a value of this process, such as its memory. Over time the mean, over instances the sum.
    Level,
    /// Own: durations by bucket. Over time and instances the sum; percentiles are calculated when it is read.
    Histogram,
}

impl SeriesKind {
    const ALL: [(SeriesKind, &'static str); 6] = [
        (SeriesKind::Gauge, "g"),
        (SeriesKind::Peak, "p"),
        (SeriesKind::Total, "t"),
        (SeriesKind::Rate, "r"),
        (SeriesKind::Level, "l"),
        (SeriesKind::Histogram, "h"),
    ];

    fn letter(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("g", |(_, letter)| letter)
    }

    fn of(letter: &str) -> Option<SeriesKind> {
        Self::ALL.iter().find(|(_, known)| *known == letter).map(|(kind, _)| *kind)
    }
}

/// A value that every instance reads in the store alike.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedSample {
    name: String,
    kind: SeriesKind,
    value: f64,
}

impl SharedSample {
    /// A value as it is now; longer steps show its mean.
    pub fn gauge(name: impl Into<String>, value: f64) -> Self {
        Self { name: name.into(), kind: SeriesKind::Gauge, value }
    }

    /// A value as it is now; longer steps show the highest.
    pub fn peak(name: impl Into<String>, value: f64) -> Self {
        Self { name: name.into(), kind: SeriesKind::Peak, value }
    }

    /// A count since the beginning, which is shown per second.
    pub fn total(name: impl Into<String>, value: f64) -> Self {
        Self { name: name.into(), kind: SeriesKind::Total, value }
    }
}

/// A value of this process.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnSample {
    name: String,
    value: OwnValue,
}

#[derive(Clone, Debug, PartialEq)]
enum OwnValue {
    Count(u64),
    Level(f64),
    Peak(f64),
    Histogram(Box<Buckets>),
}

impl OwnSample {
    /// A count since the start of the process, which is shown per second.
    pub fn count(name: impl Into<String>, count: u64) -> Self {
        Self { name: name.into(), value: OwnValue::Count(count) }
    }

    /// A value as it is now.
    pub fn level(name: impl Into<String>, value: f64) -> Self {
        Self { name: name.into(), value: OwnValue::Level(value) }
    }

    /// A value as it is now, of which the highest of all instances and moments is shown.
    pub fn peak(name: impl Into<String>, value: f64) -> Self {
        Self { name: name.into(), value: OwnValue::Peak(value) }
    }

    /// Durations since the start of the process, by bucket of [`histogram`]. `NAME:p99` reads
    /// their 99th percentile in milliseconds.
    pub fn histogram(name: impl Into<String>, counts: &Buckets) -> Self {
        Self { name: name.into(), value: OwnValue::Histogram(Box::new(*counts)) }
    }

    fn kind(&self) -> SeriesKind {
        match self.value {
            OwnValue::Count(_) => SeriesKind::Rate,
            OwnValue::Level(_) => SeriesKind::Level,
            OwnValue::Peak(_) => SeriesKind::Peak,
            OwnValue::Histogram(_) => SeriesKind::Histogram,
        }
    }
}

/// The names of the keys that the history is kept in.
#[derive(Clone, Copy, Debug)]
pub struct HistoryKeys {
    /// hash: name of a series → its number, its kind, the day it was last written.
    pub series: fn() -> Key,
    /// hash: one chunk of rows, by the word of its resolution and its number in the ring.
    pub chunk: fn(&str, i64) -> Key,
}

/// A series that has samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesInfo {
    /// Its name.
    pub name: String,
    /// The rule by which its samples are put together.
    pub kind: SeriesKind,
}

/// Samples of several series at the same moments.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryRange {
    /// The beginning of the first step.
    pub from: Millis,
    /// Time from one sample to the next.
    pub step: Duration,
    /// One line for each name that was asked for, in that order. `None` where there is no sample.
    pub lines: Vec<Vec<Option<f64>>>,
}

/// The history of one installation. A cheap clone; clones share their cache.
#[derive(Clone, Debug)]
pub struct History(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    keys: HistoryKeys,
    /// This process in the fields of its own rows.
    process: String,
    writer: tokio::sync::Mutex<HistoryWriter>,
    names: Mutex<SeriesNames>,
    chunks: Mutex<HashMap<(usize, i64), CachedChunk>>,
}

/// State that the next round needs from the last.
#[derive(Debug, Default)]
struct HistoryWriter {
    last: Option<Millis>,
    counts: HashMap<String, u64>,
    histograms: HashMap<String, Box<Buckets>>,
    /// Time of the next roll-up of each resolution, in seconds; 0 when not known.
    roll_up_at: [i64; RESOLUTIONS.len()],
    /// Names that were registered on this day, with their kinds. Each is once a day, which says that it is
    /// still written.
    registered: HashMap<String, SeriesKind>,
    registered_day: i64,
    /// Names that found no room, told once.
    refused: HashSet<String>,
}

impl HistoryWriter {
    /// Keeps the counts that the next round is compared with.
    fn remember(&mut self, own: &[OwnSample], now: Millis) {
        self.last = Some(now);
        for sample in own {
            match &sample.value {
                OwnValue::Count(count) => drop(self.counts.insert(sample.name.clone(), *count)),
                OwnValue::Histogram(counts) => {
                    self.histograms.insert(sample.name.clone(), counts.clone());
                }
                OwnValue::Level(_) | OwnValue::Peak(_) => {}
            }
        }
    }
}

#[derive(Debug, Default)]
struct SeriesNames {
    known: HashMap<String, (u16, SeriesKind)>,
    kinds: HashMap<u16, SeriesKind>,
    read_at: Option<Millis>,
}

/// The rows of a chunk, by their place in it.
type ChunkRows = Arc<BTreeMap<i64, RowParts>>;

/// A chunk as it was read.
#[derive(Clone, Debug)]
struct CachedChunk {
    rows: ChunkRows,
    read_at: Millis,
    used_at: Millis,
}

/// Rows of one moment, written by several instances.
#[derive(Clone, Debug, Default)]
struct RowParts {
    shared: Vec<Bytes>,
    own: Vec<Bytes>,
}

/// The values of series at one moment, by number.
type Bucket = BTreeMap<u16, SeriesValue>;

impl History {
    /// The history under these keys.
    pub fn new(store: &Store, keys: HistoryKeys) -> Self {
        Self(Arc::new(Inner {
            // A power cut may cost some seconds of it.
            store: store.relaxed(),
            keys,
            process: std::iter::repeat_with(fastrand::alphanumeric).take(8).collect(),
            writer: tokio::sync::Mutex::default(),
            names: Mutex::default(),
            chunks: Mutex::default(),
        }))
    }

    /// One round, once a second: writes the samples of this process, and for each group (a service) for which
    /// no other instance has done it, what `shared` returns for its place in the list; then makes rows of longer steps that are due.
    /// A second round within the same second does nothing.
    pub async fn tick<F>(
        &self,
        own: &[OwnSample],
        groups: &[&str],
        shared: impl Fn(usize) -> F,
    ) -> Result<(), Error>
    where
        F: Future<Output = Vec<SharedSample>>,
    {
        let mut writer = self.0.writer.lock().await;
        let now = self.0.store.now();
        let Some(missed) = due_seconds(writer.last, now) else { return Ok(()) };
        let bucket = self.own_bucket(&mut writer, own, now).await?;
        let turns = self.write_own(&missed, &bucket, groups).await?;
        writer.remember(own, now);
        for (at, (group, turn)) in groups.iter().zip(turns).enumerate() {
            if turn.is_empty() {
                continue;
            }
            let samples = shared(at).await;
            let row = self.shared_row(&mut writer, &samples).await?;
            if !row.is_empty() {
                let rows = turn.iter().map(|second| (*second, format!(":{group}"), row.clone()));
                self.write(0, rows).await?;
            }
        }
        self.roll_up(&mut writer, now).await?;
        self.0.forget_unused(now);
        Ok(())
    }

    /// Reads series between two moments. `step` is rounded up to what is kept for that long; without one, it
    /// follows from the range. The name of a histogram takes a percentile: `http.latency:p99`. A name that
    /// is not known has no samples.
    pub async fn read(
        &self,
        names: &[&str],
        from: Millis,
        to: Millis,
        step: Option<Duration>,
    ) -> Result<HistoryRange, Error> {
        self.names(false).await?;
        let now = self.0.store.now();
        let (resolution, step_seconds) = plan(now, from, to, step);
        let wanted: Vec<Option<WantedSeries>> = {
            let known = self.0.names.lock();
            names.iter().map(|name| WantedSeries::find(&known, name)).collect()
        };
        let first = from.as_secs().div_euclid(step_seconds);
        let last = to.as_secs().div_euclid(step_seconds).max(first);
        let last = last.min(first + POINTS_MOST - 1);
        // One step more in front: what is read per second is the difference to the step before.
        let per_step = step_seconds / RESOLUTIONS.get(resolution).map_or(1, |r| r.step_seconds);
        let numbers = wanted.iter().flatten().map(|series| series.number).collect();
        let buckets = self
            .0
            .buckets(resolution, (first - 1) * per_step, (last + 1) * per_step - 1, &numbers)
            .await?;
        let lines = wanted
            .iter()
            .map(|series| match series {
                Some(series) => {
                    series.line(&buckets, (first, last), per_step, step_seconds, now.as_secs())
                }
                None => vec![None; usize::try_from(last - first + 1).unwrap_or(0)],
            })
            .collect();
        Ok(HistoryRange {
            from: Millis(first * step_seconds * 1000),
            step: seconds(step_seconds),
            lines,
        })
    }

    /// Returns the series that have samples, by name.
    pub async fn series(&self) -> Result<Vec<SeriesInfo>, Error> {
        self.names(true).await?;
        let names = self.0.names.lock();
        let info = |(name, (_, kind)): (&String, &(u16, SeriesKind))| SeriesInfo {
            name: name.clone(),
            kind: *kind,
        };
        let mut series: Vec<SeriesInfo> = names.known.iter().map(info).collect();
        series.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(series)
    }

    /// Reads the names again when they are old.
    async fn names(&self, now: bool) -> Result<(), Error> {
        let at = self.0.store.now();
        let fresh = |read_at: Millis| at.since(read_at) < NAMES_MAX_AGE && read_at <= at;
        if !now && self.0.names.lock().read_at.is_some_and(fresh) {
            return Ok(());
        }
        let mut store = self.0.store.clone();
        let all: Vec<(String, String)> =
            redis::cmd("HGETALL").arg((self.0.keys.series)()).query_async(&mut store).await?;
        let mut names = SeriesNames { read_at: Some(at), ..SeriesNames::default() };
        for (name, record) in all {
            let mut words = record.split(' ');
            let number = words.next().and_then(|word| word.parse().ok());
            if let (Some(number), Some(kind)) = (number, words.next().and_then(SeriesKind::of)) {
                names.known.insert(name, (number, kind));
                names.kinds.insert(number, kind);
            }
        }
        *self.0.names.lock() = names;
        Ok(())
    }

    /// The numbers of series, which are registered where they are new. Those that found no room are left
    /// out.
    async fn numbers(
        &self,
        writer: &mut HistoryWriter,
        wanted: &[(&str, SeriesKind)],
    ) -> Result<HashMap<String, u16>, Error> {
        self.names(false).await?;
        let day = self.0.store.now().as_secs().div_euclid(24 * 3_600);
        if writer.registered_day != day {
            writer.registered.clear();
            writer.refused.clear();
            writer.registered_day = day;
        }
        let register: Vec<(&str, SeriesKind)> = {
            let names = self.0.names.lock();
            let is_new = |(name, kind): &&(&str, SeriesKind)| {
                let known =
                    names.known.contains_key(*name) && writer.registered.get(*name) == Some(kind);
                !known && is_name(name) && !writer.refused.contains(*name)
            };
            wanted.iter().filter(is_new).copied().collect()
        };
        for some in register.chunks(256) {
            let keys = history_register::Keys { series: (self.0.keys.series)() };
            let args = history_register::Args {
                day,
                most: SERIES_MOST,
                keep_days: KEEP_DAYS,
                names: some.iter().flat_map(|(name, kind)| [*name, kind.letter()]),
            };
            let (_, numbers) = split_reply(history_register::run(&self.0.store, keys, args).await?);
            let mut names = self.0.names.lock();
            for ((name, kind), number) in some.iter().zip(numbers) {
                if let Ok(number) = u16::try_from(number) {
                    names.known.insert((*name).to_owned(), (number, *kind));
                    names.kinds.insert(number, *kind);
                    writer.registered.insert((*name).to_owned(), *kind);
                } else if writer.refused.len() < SERIES_MOST {
                    tracing::warn!(
                        name,
                        most = SERIES_MOST,
                        "no history is kept of this series: there are too many"
                    );
                    writer.refused.insert((*name).to_owned());
                }
            }
        }
        let names = self.0.names.lock();
        Ok(wanted
            .iter()
            .filter_map(|(name, _)| Some(((*name).to_owned(), names.known.get(*name)?.0)))
            .collect())
    }

    /// The values of this process since the last round.
    async fn own_bucket(
        &self,
        writer: &mut HistoryWriter,
        own: &[OwnSample],
        now: Millis,
    ) -> Result<Bucket, Error> {
        let wanted: Vec<(&str, SeriesKind)> =
            own.iter().map(|sample| (sample.name.as_str(), sample.kind())).collect();
        let numbers = self.numbers(writer, &wanted).await?;
        let elapsed = writer.last.map(|last| now.since(last).as_secs_f64());
        let mut bucket = Bucket::new();
        for sample in own {
            let Some(number) = numbers.get(&sample.name) else { continue };
            let value = match &sample.value {
                OwnValue::Level(value) | OwnValue::Peak(value) => Some(SeriesValue::Number(*value)),
                OwnValue::Count(count) => {
                    let before = writer.counts.get(&sample.name);
                    before.zip(elapsed).map(|(before, elapsed)| {
                        let grown = count.saturating_sub(*before);
                        #[expect(clippy::cast_precision_loss, reason = "a rate")]
                        SeriesValue::Number(grown as f64 / elapsed.max(0.001))
                    })
                }
                OwnValue::Histogram(counts) => {
                    let before = writer.histograms.get(&sample.name);
                    before.map(|before| SeriesValue::Buckets(grown(counts, before)))
                }
            };
            let finite =
                |value: &SeriesValue| !matches!(value, SeriesValue::Number(n) if !n.is_finite());
            if let Some(value) = value.filter(finite) {
                bucket.insert(*number, value);
            }
        }
        Ok(bucket)
    }

    /// Writes the row of this process for each second since the last, and returns for each group the seconds
    /// that it is this instance's turn to write.
    async fn write_own(
        &self,
        missed: &[i64],
        bucket: &Bucket,
        groups: &[&str],
    ) -> Result<Vec<Vec<i64>>, Error> {
        let whole = row::encode(bucket.iter().map(|(number, value)| (*number, value)));
        // What was counted belongs to one second; a rate and a level to all of them.
        let numbers = bucket.iter().filter(|(_, value)| matches!(value, SeriesValue::Number(_)));
        let part = row::encode(numbers.map(|(number, value)| (*number, value)));
        let mut turns = vec![Vec::new(); groups.len()];
        let newest = missed.last().copied();
        let in_chunks = missed.chunk_by(|a, b| a.div_euclid(60) == b.div_euclid(60));
        for some in in_chunks {
            let mut fields = Vec::new();
            for second in some {
                let place = second.rem_euclid(60);
                let row = if Some(*second) == newest { &whole } else { &part };
                fields.push((format!("o{place}:{}", self.0.process), row.clone()));
                fields.extend(groups.iter().map(|group| (format!("c{place}:{group}"), Vec::new())));
            }
            let new = self
                .0
                .write_chunk(0, some.first().map_or(0, |s| s.div_euclid(60)), &fields)
                .await?;
            for (at, second) in some.iter().enumerate() {
                for (group, turn) in turns.iter_mut().enumerate() {
                    if new.get(at * (groups.len() + 1) + 1 + group) == Some(&1) {
                        turn.push(*second);
                    }
                }
            }
        }
        Ok(turns)
    }

    async fn shared_row(
        &self,
        writer: &mut HistoryWriter,
        samples: &[SharedSample],
    ) -> Result<Vec<u8>, Error> {
        let wanted: Vec<(&str, SeriesKind)> =
            samples.iter().map(|sample| (sample.name.as_str(), sample.kind)).collect();
        let numbers = self.numbers(writer, &wanted).await?;
        let finite = samples.iter().filter(|sample| sample.value.is_finite());
        let bucket: Bucket = finite
            .filter_map(|sample| {
                Some((*numbers.get(&sample.name)?, SeriesValue::Number(sample.value)))
            })
            .collect();
        Ok(row::encode(bucket.iter().map(|(number, value)| (*number, value))))
    }

    /// Writes rows `s…` of a resolution: number of the bucket, what follows its place in the field, content.
    async fn write(
        &self,
        resolution: usize,
        rows: impl IntoIterator<Item = (i64, String, Vec<u8>)>,
    ) -> Result<(), Error> {
        let Some(shape) = RESOLUTIONS.get(resolution) else { return Ok(()) };
        let mut chunks: BTreeMap<i64, Vec<(String, Vec<u8>)>> = BTreeMap::new();
        for (bucket, suffix, row) in rows {
            let place = bucket.rem_euclid(shape.chunk_rows);
            let fields = chunks.entry(bucket.div_euclid(shape.chunk_rows)).or_default();
            fields.push((format!("s{place}{suffix}"), row));
        }
        for (epoch, fields) in chunks {
            self.0.write_chunk(resolution, epoch, &fields).await?;
        }
        Ok(())
    }

    /// Makes the rows of longer steps that are due. Where nobody did it for a while, all that the finer rows
    /// still tell; some in each round.
    async fn roll_up(&self, writer: &mut HistoryWriter, now: Millis) -> Result<(), Error> {
        let second = now.as_secs();
        for (resolution, shape) in RESOLUTIONS.iter().enumerate().skip(1) {
            if writer.roll_up_at.get(resolution).is_none_or(|at| second < *at) {
                continue;
            }
            let Some(finer) = RESOLUTIONS.get(resolution - 1) else { continue };
            let ended = shape.bucket(second - shape.grace_seconds) - 1;
            let mut store = self.0.store.clone();
            let field = format!("@{}", shape.name);
            let done: Option<i64> = redis::cmd("HGET")
                .arg((self.0.keys.series)())
                .arg(&field)
                .query_async(&mut store)
                .await?;
            let oldest = shape.bucket(second - finer.kept * finer.step_seconds) + 1;
            // A mark ahead of the time is that of a clock which was wrong.
            let next =
                done.filter(|done| *done <= ended).map_or(oldest, |done| (done + 1).max(oldest));
            let last = ended.min(next + ROLL_UP_MOST - 1);
            if next <= last {
                let per_step = shape.step_seconds / finer.step_seconds;
                let from = (next * per_step, (last + 1) * per_step - 1);
                let fine = self.0.rows(resolution - 1, from.0, from.1, None).await?;
                let kinds = self.0.names.lock().kinds.clone();
                let rows: Vec<(i64, String, Vec<u8>)> = (next..=last)
                    .filter_map(|bucket| {
                        let parts = fine.range(bucket * per_step..(bucket + 1) * per_step);
                        let sum = combine(parts.map(|(_, part)| part), &kinds);
                        let row = row::encode(sum.iter().map(|(number, value)| (*number, value)));
                        (!row.is_empty()).then(|| (bucket, String::new(), row))
                    })
                    .collect();
                self.write(resolution, rows).await?;
                redis::cmd("HSET")
                    .arg((self.0.keys.series)())
                    .arg(&field)
                    .arg(last)
                    .query_async::<i64>(&mut store)
                    .await?;
            }
            // Behind by more than one round: go on in the next.
            let due = (last.max(next - 1) + 2) * shape.step_seconds + shape.grace_seconds;
            if let Some(at) = writer.roll_up_at.get_mut(resolution) {
                *at = if last < ended { second } else { due };
            }
        }
        Ok(())
    }
}

impl Inner {
    async fn write_chunk(
        &self,
        resolution: usize,
        epoch: i64,
        fields: &[(String, Vec<u8>)],
    ) -> Result<Vec<i64>, Error> {
        let Some(shape) = RESOLUTIONS.get(resolution) else { return Ok(Vec::new()) };
        let keys = history_write::Keys {
            chunk: (self.keys.chunk)(shape.name, epoch.rem_euclid(shape.ring)),
        };
        let args = history_write::Args {
            epoch,
            ring: shape.ring,
            keep_ms: shape.keep_ms(),
            rows: fields.iter().flat_map(|(field, row)| [field.as_bytes(), row.as_slice()]),
        };
        let reply = history_write::run(&self.store, keys, args).await?;
        self.chunks.lock().remove(&(resolution, epoch));
        Ok(split_reply(reply).1)
    }

    /// The values of buckets `first` to `last`, for the series named by number. What is not rolled up yet is
    /// made from the finer rows.
    fn buckets<'a>(
        &'a self,
        resolution: usize,
        first: i64,
        last: i64,
        numbers: &'a HashSet<u16>,
    ) -> BoxFuture<'a, Result<BTreeMap<i64, Bucket>, Error>> {
        Box::pin(async move {
            let mut found = self.rows(resolution, first, last, Some(numbers)).await?;
            let Some(shape) = RESOLUTIONS.get(resolution).filter(|_| resolution > 0) else {
                return Ok(found);
            };
            let Some(finer) = RESOLUTIONS.get(resolution - 1) else { return Ok(found) };
            let now = self.store.now().as_secs();
            // The newest end of the range, where rows may still be missing.
            let recent = shape.bucket(now - 2 * shape.step_seconds - 60).max(first);
            let until = last.min(shape.bucket(now));
            let missing: Vec<i64> =
                (recent..=until).filter(|bucket| !found.contains_key(bucket)).collect();
            if let (Some(start), Some(end)) = (missing.first(), missing.last()) {
                let per_step = shape.step_seconds / finer.step_seconds;
                let (start, end) = (start * per_step, (end + 1) * per_step - 1);
                let fine = self.buckets(resolution - 1, start, end, numbers).await?;
                let kinds = self.names.lock().kinds.clone();
                for bucket in missing {
                    let parts = fine.range(bucket * per_step..(bucket + 1) * per_step);
                    let sum = combine(parts.map(|(_, part)| part), &kinds);
                    if !sum.is_empty() {
                        found.insert(bucket, sum);
                    }
                }
            }
            Ok(found)
        })
    }

    /// The rows of buckets `first` to `last` of one resolution, decoded; all series, or those named.
    async fn rows(
        &self,
        resolution: usize,
        first: i64,
        last: i64,
        numbers: Option<&HashSet<u16>>,
    ) -> Result<BTreeMap<i64, Bucket>, Error> {
        let Some(shape) = RESOLUTIONS.get(resolution) else { return Ok(BTreeMap::new()) };
        let now = shape.bucket(self.store.now().as_secs());
        // Beyond what is kept there is nothing to find, and nothing to ask for.
        let (first, last) = (first.max(now - shape.kept), last.min(now));
        let epochs: Vec<i64> =
            (first.div_euclid(shape.chunk_rows)..=last.div_euclid(shape.chunk_rows)).collect();
        let chunks =
            try_join_all(epochs.iter().map(|epoch| self.chunk(resolution, *epoch))).await?;
        let kinds = self.names.lock().kinds.clone();
        let is_peak = |number: u16| kinds.get(&number) == Some(&SeriesKind::Peak);
        let wanted = |number: u16| numbers.is_none_or(|numbers| numbers.contains(&number));
        let mut found = BTreeMap::new();
        for (epoch, rows) in epochs.iter().zip(chunks) {
            for (place, parts) in rows.iter() {
                let at = epoch * shape.chunk_rows + place;
                if !(first..=last).contains(&at) {
                    continue;
                }
                let mut bucket = Bucket::new();
                for row in &parts.shared {
                    for (number, value) in RowEntries::of(row).filter(|(number, _)| wanted(*number))
                    {
                        bucket.entry(number).or_insert_with(|| value.to_value());
                    }
                }
                for row in &parts.own {
                    for (number, value) in RowEntries::of(row).filter(|(number, _)| wanted(*number))
                    {
                        let value = value.to_value();
                        match bucket.get_mut(&number) {
                            Some(most) if is_peak(number) => raise(most, &value),
                            Some(sum) => add(sum, &value),
                            None => drop(bucket.insert(number, value)),
                        }
                    }
                }
                if !bucket.is_empty() {
                    found.insert(at, bucket);
                }
            }
        }
        Ok(found)
    }

    /// A chunk, from the cache where it cannot have changed.
    async fn chunk(&self, resolution: usize, epoch: i64) -> Result<ChunkRows, Error> {
        let Some(shape) = RESOLUTIONS.get(resolution) else { return Ok(ChunkRows::default()) };
        let now = self.store.now();
        // Rows of longer steps come up to a step and some seconds after their time; after an outage later.
        let settled =
            (epoch + 1) * shape.chunk_rows * shape.step_seconds + shape.step_seconds + 120;
        if let Some(cached) = self.chunks.lock().get_mut(&(resolution, epoch)) {
            cached.used_at = now;
            let fresh =
                cached.read_at <= now && now.since(cached.read_at) < Duration::from_millis(900);
            if fresh || cached.read_at.as_secs() > settled {
                return Ok(Arc::clone(&cached.rows));
            }
        }
        let key = (self.keys.chunk)(shape.name, epoch.rem_euclid(shape.ring));
        let mut store = self.store.clone();
        let fields: Vec<(String, Bytes)> =
            redis::cmd("HGETALL").arg(key).query_async(&mut store).await?;
        let mut rows: BTreeMap<i64, RowParts> = BTreeMap::new();
        let known = fields.iter().find(|(field, _)| field == "epoch");
        if known.is_some_and(|(_, known)| known.as_ref() == epoch.to_string().as_bytes()) {
            for (field, row) in fields {
                let Some(rest) = field.strip_prefix(['s', 'o']) else { continue };
                let place = rest.split(':').next().and_then(|place| place.parse::<i64>().ok());
                let Some(place) = place.filter(|place| (0..shape.chunk_rows).contains(place))
                else {
                    continue;
                };
                let parts = rows.entry(place).or_default();
                if field.starts_with('s') { &mut parts.shared } else { &mut parts.own }.push(row);
            }
        }
        let rows = Arc::new(rows);
        let cached = CachedChunk { rows: Arc::clone(&rows), read_at: now, used_at: now };
        self.chunks.lock().insert((resolution, epoch), cached);
        Ok(rows)
    }

    fn forget_unused(&self, now: Millis) {
        self.chunks.lock().retain(|_, chunk| now.since(chunk.used_at) < CACHE_IDLE);
    }
}

/// A series that is read.
#[derive(Clone, Copy, Debug)]
struct WantedSeries {
    number: u16,
    kind: SeriesKind,
    /// The share of a percentile.
    share: Option<f64>,
}

impl WantedSeries {
    fn find(names: &SeriesNames, name: &str) -> Option<WantedSeries> {
        let (base, share) = match name.rsplit_once(":p") {
            Some((base, digits)) => (
                base,
                Some(digits.parse::<f64>().ok().filter(|p| (0.0..=100.0).contains(p))? / 100.0),
            ),
            None => (name, None),
        };
        let (number, kind) = *names.known.get(base)?;
        (share.is_none() || kind == SeriesKind::Histogram).then_some(WantedSeries {
            number,
            kind,
            share,
        })
    }

    /// The values of steps `first` to `last`, each of `per_step` buckets.
    fn line(
        &self,
        buckets: &BTreeMap<i64, Bucket>,
        (first, last): (i64, i64),
        per_step: i64,
        step_seconds: i64,
        now: i64,
    ) -> Vec<Option<f64>> {
        let value = |step: i64| {
            let parts = buckets.range(step * per_step..(step + 1) * per_step);
            merge(self.kind, parts.filter_map(|(_, bucket)| bucket.get(&self.number)))
        };
        // The last of a total in a step, and the number of its bucket.
        let total = |step: i64| {
            let mut parts = buckets.range(step * per_step..(step + 1) * per_step).rev();
            parts.find_map(|(at, bucket)| match bucket.get(&self.number)? {
                SeriesValue::Number(number) => Some((*number, *at)),
                SeriesValue::Buckets(_) => None,
            })
        };
        let bucket_seconds = step_seconds / per_step.max(1);
        #[expect(clippy::cast_precision_loss, reason = "a count of seconds")]
        let length = step_seconds as f64;
        (first..=last)
            .map(|step| match (self.kind, value(step)?) {
                (SeriesKind::Total, _) => {
                    // A bucket that is not over yet would look as if less was counted.
                    let over = |at: i64| bucket_seconds == 1 || (at + 1) * bucket_seconds <= now;
                    let (now, at) = total(step).filter(|(_, at)| over(*at))?;
                    // A total that fell was set back: how much was counted since is not known.
                    let (before, since) = total(step - 1).filter(|(before, _)| *before <= now)?;
                    #[expect(clippy::cast_precision_loss, reason = "a count of seconds")]
                    Some((now - before) / ((at - since) * bucket_seconds) as f64)
                }
                (_, SeriesValue::Number(number)) => Some(number),
                (_, SeriesValue::Buckets(counts)) => match self.share {
                    Some(share) => quantile_ms(&counts, share),
                    #[expect(clippy::cast_precision_loss, reason = "a rate")]
                    None => {
                        Some(counts.iter().map(|(_, count)| count).sum::<u64>() as f64 / length)
                    }
                },
            })
            .collect()
    }
}

/// The seconds to write now: those since the last round, unless that is too long ago.
fn due_seconds(last: Option<Millis>, now: Millis) -> Option<Vec<i64>> {
    let second = now.as_secs();
    let first = match last.map(Millis::as_secs) {
        Some(last) if last == second => return None,
        Some(last) if last < second && second - last <= FILL_MOST_SECONDS => last + 1,
        _ => second,
    };
    Some((first..=second).collect())
}

/// The resolution and the step for a range: as fine as was asked for, and kept for long enough.
fn plan(now: Millis, from: Millis, to: Millis, step: Option<Duration>) -> (usize, i64) {
    let span = i64::try_from(to.since(from).as_secs()).unwrap_or(i64::MAX).max(1);
    let asked = step.map_or(span / 360, |step| i64::try_from(step.as_secs()).unwrap_or(i64::MAX));
    let asked = asked.max(span / (POINTS_MOST - 2)).max(1);
    let age = i64::try_from(now.since(from).as_secs()).unwrap_or(i64::MAX);
    let reaches = |shape: &Resolution| age <= shape.kept * shape.step_seconds;
    let finest = RESOLUTIONS.iter().position(reaches).unwrap_or(RESOLUTIONS.len() - 1);
    let coarsest = RESOLUTIONS.iter().rposition(|shape| shape.step_seconds <= asked).unwrap_or(0);
    let resolution = finest.max(coarsest);
    let own = RESOLUTIONS.get(resolution).map_or(1, |shape| shape.step_seconds);
    (resolution, (asked + own - 1) / own * own)
}

/// Puts the values of one moment after another together, by the rule of each series.
fn combine<'a>(
    parts: impl Iterator<Item = &'a Bucket> + Clone,
    kinds: &HashMap<u16, SeriesKind>,
) -> Bucket {
    let mut values: BTreeMap<u16, Vec<&SeriesValue>> = BTreeMap::new();
    for part in parts {
        for (number, value) in part {
            values.entry(*number).or_default().push(value);
        }
    }
    values
        .into_iter()
        .filter_map(|(number, values)| {
            Some((number, merge(*kinds.get(&number)?, values.into_iter())?))
        })
        .collect()
}

fn merge<'a>(
    kind: SeriesKind,
    values: impl Iterator<Item = &'a SeriesValue>,
) -> Option<SeriesValue> {
    if kind == SeriesKind::Histogram {
        return values.fold(None, |sum, value| match sum {
            Some(mut sum) => {
                add(&mut sum, value);
                Some(sum)
            }
            None => Some(value.clone()),
        });
    }
    let numbers = values.filter_map(|value| match value {
        SeriesValue::Number(number) => Some(*number),
        SeriesValue::Buckets(_) => None,
    });
    let (mut count, mut sum, mut most, mut last) = (0.0, 0.0, f64::MIN, None);
    for number in numbers {
        count += 1.0;
        sum += number;
        most = most.max(number);
        last = Some(number);
    }
    last.map(|last| {
        SeriesValue::Number(match kind {
            SeriesKind::Peak => most,
            SeriesKind::Total => last,
            _ => sum / count,
        })
    })
}

fn raise(most: &mut SeriesValue, value: &SeriesValue) {
    if let (SeriesValue::Number(most), SeriesValue::Number(value)) = (most, value) {
        *most = most.max(*value);
    }
}

fn add(sum: &mut SeriesValue, value: &SeriesValue) {
    match (sum, value) {
        (SeriesValue::Number(sum), SeriesValue::Number(value)) => *sum += value,
        (SeriesValue::Buckets(sum), SeriesValue::Buckets(value)) => {
            for (bucket, count) in value {
                match sum.binary_search_by_key(bucket, |(bucket, _)| *bucket) {
                    Ok(at) => {
                        if let Some((_, sum)) = sum.get_mut(at) {
                            *sum = sum.saturating_add(*count);
                        }
                    }
                    Err(at) => sum.insert(at, (*bucket, *count)),
                }
            }
        }
        // Another kind of value under the same number: one of the two is from before a change.
        (SeriesValue::Number(_), SeriesValue::Buckets(_))
        | (SeriesValue::Buckets(_), SeriesValue::Number(_)) => {}
    }
}

/// The buckets that grew, and by how much.
fn grown(now: &Buckets, before: &Buckets) -> Vec<(u8, u64)> {
    let since = |(at, (now, before)): (usize, (&u64, &u64))| {
        let count = now.checked_sub(*before).filter(|count| *count > 0)?;
        Some((u8::try_from(at).ok()?, count))
    };
    now.iter().zip(before).enumerate().filter_map(since).collect()
}

fn quantile_ms(counts: &[(u8, u64)], share: f64) -> Option<f64> {
    let mut all = [0; BUCKETS];
    for (bucket, count) in counts {
        if let Some(sum) = all.get_mut(usize::from(*bucket)) {
            *sum = *count;
        }
    }
    histogram::quantile(&all, share).map(|time| time.as_secs_f64() * 1_000.0)
}

/// Tells whether a series may be called so: it must not look like a mark, a percentile or two names.
fn is_name(name: &str) -> bool {
    (1..=160).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b',' | b':' | b'@'))
}

/// The word of a reply and the numbers after it.
fn split_reply(reply: Vec<redis::Value>) -> (String, Vec<i64>) {
    let mut parts = reply.into_iter();
    let word = parts.next().and_then(|word| redis::from_redis_value(word).ok()).unwrap_or_default();
    (word, parts.filter_map(|number| redis::from_redis_value(number).ok()).collect())
}

fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = Millis(1_767_225_600_000);

    fn planned(ago: u64, step: Option<u64>) -> (&'static str, i64) {
        let from = NOW - Duration::from_secs(ago);
        let (resolution, step) = plan(NOW, from, NOW, step.map(Duration::from_secs));
        (RESOLUTIONS[resolution].name, step)
    }

    #[test]
    fn a_range_is_read_at_a_resolution_that_reaches_back_so_far() {
        assert_eq!(planned(300, None), ("1s", 1));
        assert_eq!(planned(300, Some(5)), ("1s", 5));
        assert_eq!(planned(900, None), ("10s", 10));
        assert_eq!(planned(900, Some(1)), ("10s", 10));
        assert_eq!(planned(3_600, None), ("10s", 10));
        assert_eq!(planned(24 * 3_600, None), ("1m", 240));
        assert_eq!(planned(7 * 24 * 3_600, None), ("1h", 3_600));
        assert_eq!(planned(30 * 24 * 3_600, None), ("1h", 7_200));
        assert_eq!(planned(90 * 24 * 3_600, Some(1)), ("1h", 3_600));
    }

    #[test]
    fn a_round_fills_the_seconds_of_a_short_delay_only() {
        let at = |ms: i64| Millis(NOW.0 + ms);
        let second = NOW.as_secs();
        assert_eq!(due_seconds(None, at(500)), Some(vec![second]));
        assert_eq!(due_seconds(Some(at(10)), at(900)), None);
        assert_eq!(due_seconds(Some(at(10)), at(2_100)), Some(vec![second + 1, second + 2]));
        assert_eq!(due_seconds(Some(at(10)), at(60_000)), Some(vec![second + 60]));
        assert_eq!(
            due_seconds(Some(at(60_000)), at(0)),
            Some(vec![second]),
            "the clock was set back"
        );
    }

    #[test]
    fn values_are_put_together_by_their_kind() {
        let numbers = [3.0, 1.0, 2.0].map(SeriesValue::Number);
        for (kind, expect) in
            [(SeriesKind::Gauge, 2.0), (SeriesKind::Peak, 3.0), (SeriesKind::Total, 2.0)]
        {
            assert_eq!(merge(kind, numbers.iter()), Some(SeriesValue::Number(expect)), "{kind:?}");
        }
        assert_eq!(merge(SeriesKind::Gauge, [].iter()), None);
        let counts = [vec![(1, 2), (4, 1)], vec![(0, 1), (4, 2)]].map(SeriesValue::Buckets);
        let sum = SeriesValue::Buckets(vec![(0, 1), (1, 2), (4, 3)]);
        assert_eq!(merge(SeriesKind::Histogram, counts.iter()), Some(sum));
    }

    #[test]
    fn the_stated_bound_is_that_of_the_ring() {
        let rows: i64 = RESOLUTIONS.iter().map(|shape| shape.chunk_rows * shape.ring).sum();
        assert_eq!(SERIES_MAX_BYTES, NUMBER_MAX_BYTES * usize::try_from(rows).unwrap());
        for shape in RESOLUTIONS {
            assert!(shape.ring * shape.chunk_rows >= shape.kept + shape.chunk_rows, "{shape:?}");
        }
    }
}
