//! A block: rows in columns, each compressed on its own, so that a search inflates only what its
//! filter asks about.
//!
//! ```text
//!  magic  length  crc  rows  first number  first at  last at │ number of columns × (raw, packed length) │ columns
//! ```
//!
//! Columns of text are a dictionary and an index per row; numbers are variable-length integers, times
//! the difference to the row before. The numbers of the rows are a column too: deleting a client
//! leaves gaps.

use std::{
    collections::HashMap,
    io::{self, Read as _},
    sync::Arc,
};

use flate2::{Compression, read::DeflateDecoder, write::DeflateEncoder};
use foldhash::fast::RandomState;
use store::Millis;

use super::{
    files::BlockLocation,
    row::{LogFilter, LoggedQuery, contains},
};
use crate::query_record::{CacheTier, QueryOutcome, QueryProtocol};

/// First bytes of a block: a name and the version of the format.
const MAGIC: u32 = u32::from_le_bytes(*b"TGQ1");

/// Bytes of a block before its columns' directory.
pub(super) const HEADER_BYTES: usize = 4 + 4 + 4 + 4 + 8 + 8 + 8 + 8;

/// Longest block that is believed.
const BLOCK_MAX_BYTES: u32 = 256 << 20;

/// Dictionaries and differences leave little to compress: more effort takes three times as long for a
/// byte a row.
const COMPRESSION: Compression = Compression::fast();

/// Columns, in the order in which they are stored.
#[derive(Clone, Copy, Debug)]
enum Column {
    Number,
    At,
    Name,
    Client,
    ClientId,
    Group,
    List,
    Upstream,
    Answer,
    Qtype,
    Rcode,
    /// Outcome, tier and protocol in one number.
    Words,
    Duration,
}

const COLUMNS: usize = 13;

/// Where a block is, and what can be told without reading it.
#[derive(Clone, Debug)]
pub(super) struct Block {
    location: BlockLocation,
    rows: usize,
    first_number: u64,
    last_number: u64,
    first_at: Millis,
    last_at: Millis,
}

/// A block in bytes, to be written.
#[derive(Debug)]
pub(super) struct EncodedBlock {
    pub(super) bytes: Vec<u8>,
    rows: usize,
    first_number: u64,
    last_number: u64,
    first_at: Millis,
    last_at: Millis,
}

impl EncodedBlock {
    pub(super) fn at(self, location: BlockLocation) -> Block {
        let Self { rows, first_number, last_number, first_at, last_at, .. } = self;
        Block { location, rows, first_number, last_number, first_at, last_at }
    }
}

/// Text values of a column: each once, and the index of every row's.
#[derive(Default)]
struct Dictionary<'a> {
    known: HashMap<&'a str, u64, RandomState>,
    /// The row before: most rows have the client, group, list and upstream of the one before.
    last: Option<(&'a str, u64)>,
    texts: Vec<u8>,
    indexes: Vec<u8>,
}

impl<'a> Dictionary<'a> {
    fn push(&mut self, text: &'a str) {
        if let Some((last, index)) = self.last
            && last == text
        {
            put_number(&mut self.indexes, index);
            return;
        }
        let next = self.known.len() as u64;
        let index = *self.known.entry(text).or_insert(next);
        self.last = Some((text, index));
        if index == next {
            put_number(&mut self.texts, text.len() as u64);
            self.texts.extend_from_slice(text.as_bytes());
        }
        put_number(&mut self.indexes, index);
    }

    fn finish(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.texts.len() + self.indexes.len() + 16);
        put_number(&mut bytes, self.known.len() as u64);
        bytes.extend(self.texts);
        bytes.extend(self.indexes);
        bytes
    }
}

/// A column of text, read.
struct TextColumn {
    texts: Vec<Arc<str>>,
    indexes: Vec<u32>,
}

impl TextColumn {
    fn get(&self, row: usize) -> &str {
        let index = self.indexes.get(row).copied().unwrap_or(0) as usize;
        self.texts.get(index).map_or("", |text| text)
    }

    fn share(&self, row: usize) -> Arc<str> {
        let index = self.indexes.get(row).copied().unwrap_or(0) as usize;
        self.texts.get(index).map_or_else(|| Arc::from(""), Arc::clone)
    }

    /// Returns for each entry of the dictionary whether a text is in it.
    fn hits(&self, text: &str) -> Vec<bool> {
        self.texts.iter().map(|value| contains(value, text)).collect()
    }
}

fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        // Seven bits and the mark that more follow.
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push((number & 0x7f) as u8);
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a block of the query log is damaged")
}

/// Reads variable-length numbers.
struct Numbers<'a>(&'a [u8]);

impl<'a> Numbers<'a> {
    fn next(&mut self) -> io::Result<u64> {
        let (mut number, mut shift) = (0_u64, 0);
        loop {
            let (byte, rest) = self.0.split_first().ok_or_else(damaged)?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
            shift += 7;
            if shift > 63 {
                return Err(damaged());
            }
        }
    }

    fn bytes(&mut self, length: usize) -> io::Result<&'a [u8]> {
        let taken = self.0.get(..length).ok_or_else(damaged)?;
        self.0 = self.0.get(length..).unwrap_or_default();
        Ok(taken)
    }
}

/// Maps a difference to a number that is small if it is near zero.
fn zigzag(difference: i64) -> u64 {
    ((difference << 1) ^ (difference >> 63)).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -((number & 1).cast_signed())
}

fn words(row: &LoggedQuery) -> u64 {
    let place = |found: Option<usize>| found.unwrap_or(0) as u64;
    let outcome = QueryOutcome::ALL.iter().position(|one| *one == row.outcome);
    let tier = TIERS.iter().position(|one| *one == row.tier);
    let protocol = QueryProtocol::ALL.iter().position(|one| *one == row.protocol);
    place(outcome) << 4 | place(tier) << 2 | place(protocol)
}

const TIERS: [CacheTier; 3] = [CacheTier::None, CacheTier::Memory, CacheTier::Store];

fn from_words(number: u64) -> Option<(QueryOutcome, CacheTier, QueryProtocol)> {
    let index = |bits: u64| usize::try_from(bits).ok();
    Some((
        *QueryOutcome::ALL.get(index(number >> 4)?)?,
        *TIERS.get(index(number >> 2 & 3)?)?,
        *QueryProtocol::ALL.get(index(number & 3)?)?,
    ))
}

impl Block {
    /// Encodes rows; none without any.
    pub(super) fn encode(rows: &[LoggedQuery]) -> Option<EncodedBlock> {
        let (first, last) = (rows.first()?, rows.last()?);
        let text = |get: fn(&LoggedQuery) -> &str| {
            let mut dictionary = Dictionary::default();
            rows.iter().for_each(|row| dictionary.push(get(row)));
            dictionary.finish()
        };
        let number = |get: &dyn Fn(&LoggedQuery) -> u64| {
            let mut bytes = Vec::with_capacity(rows.len() * 2);
            rows.iter().for_each(|row| put_number(&mut bytes, get(row)));
            bytes
        };
        let (mut first_at, mut last_at) = (first.at, last.at);
        for row in rows {
            (first_at, last_at) = (first_at.min(row.at), last_at.max(row.at));
        }
        let mut before = first.number;
        let mut numbers = Vec::with_capacity(rows.len());
        let mut at_before = first_at.0;
        let mut times = Vec::with_capacity(rows.len() * 2);
        for row in rows {
            put_number(&mut numbers, row.number.saturating_sub(before));
            put_number(&mut times, zigzag(row.at.0.saturating_sub(at_before)));
            (before, at_before) = (row.number, row.at.0);
        }
        let columns: [Vec<u8>; COLUMNS] = [
            numbers,
            times,
            text(|row| &row.name),
            text(|row| &row.client),
            text(|row| &row.client_id),
            text(|row| &row.group),
            text(|row| &row.list),
            text(|row| &row.upstream),
            text(|row| &row.answer),
            number(&|row| u64::from(row.qtype)),
            number(&|row| u64::from(row.rcode)),
            number(&words),
            number(&|row| u64::from(row.duration_us)),
        ];
        let mut directory = Vec::with_capacity(COLUMNS * 8);
        let mut packed = Vec::new();
        for column in columns {
            let start = packed.len();
            packed = deflate(packed, &column)?;
            directory.extend_from_slice(&u32::try_from(column.len()).ok()?.to_le_bytes());
            directory.extend_from_slice(&u32::try_from(packed.len() - start).ok()?.to_le_bytes());
        }
        let body = [directory, packed].concat();
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(&u32::try_from(rows.len()).ok()?.to_le_bytes());
        header.extend_from_slice(&first.number.to_le_bytes());
        header.extend_from_slice(&last.number.to_le_bytes());
        header.extend_from_slice(&first_at.0.to_le_bytes());
        header.extend_from_slice(&last_at.0.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&header), &body);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.extend_from_slice(&MAGIC.to_le_bytes());
        bytes.extend_from_slice(&u32::try_from(body.len()).ok()?.to_le_bytes());
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(&body);
        Some(EncodedBlock {
            bytes,
            rows: rows.len(),
            first_number: first.number,
            last_number: last.number,
            first_at,
            last_at,
        })
    }

    /// Reads the header of a block and checks the whole; none at the end of what is good. Returns the
    /// block and its length.
    pub(super) fn decode_header(bytes: &[u8], location: BlockLocation) -> Option<(Self, usize)> {
        let word = |at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
        };
        let long = |at: usize| -> Option<[u8; 8]> { bytes.get(at..at + 8)?.try_into().ok() };
        let (magic, length, crc, rows) = (word(0)?, word(4)?, word(8)?, word(12)?);
        if magic != MAGIC || length > BLOCK_MAX_BYTES || rows == 0 {
            return None;
        }
        let end = HEADER_BYTES.checked_add(usize::try_from(length).ok()?)?;
        if crc32c::crc32c(bytes.get(12..end)?) != crc {
            return None;
        }
        let block = Self {
            location: location.with_length(end as u64),
            rows: usize::try_from(rows).ok()?,
            first_number: u64::from_le_bytes(long(16)?),
            last_number: u64::from_le_bytes(long(24)?),
            first_at: Millis(i64::from_le_bytes(long(32)?)),
            last_at: Millis(i64::from_le_bytes(long(40)?)),
        };
        Some((block, end))
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn first_number(&self) -> u64 {
        self.first_number
    }

    pub(super) fn last_number(&self) -> u64 {
        self.last_number
    }

    pub(super) fn first_at(&self) -> Millis {
        self.first_at
    }

    pub(super) fn last_at(&self) -> Millis {
        self.last_at
    }

    pub(super) fn is_tail(&self) -> bool {
        self.location.is_tail()
    }

    /// Returns the number of its segment; 0 for the tail.
    pub(super) fn file(&self) -> u64 {
        self.location.segment()
    }

    /// Reads every row.
    pub(super) fn read_all(&self) -> io::Result<Vec<LoggedQuery>> {
        let reader = self.open()?;
        let rows: Vec<usize> = (0..self.rows).collect();
        reader.rows(&rows)
    }

    /// Finds at most so many rows below a number that fit, newest first.
    pub(super) fn search(
        &self,
        filter: &LogFilter,
        before: u64,
        limit: usize,
    ) -> io::Result<Vec<LoggedQuery>> {
        let reader = self.open()?;
        let mut fits = vec![true; self.rows];
        // A whole block below the number needs no look at it.
        if before <= self.last_number {
            let numbers = reader.row_numbers()?;
            keep(&mut fits, |row| numbers.get(row).is_some_and(|number| *number < before));
        }
        reader.apply(filter, &mut fits)?;
        let found: Vec<usize> =
            (0..self.rows).rev().filter(|row| fits.get(*row) == Some(&true)).take(limit).collect();
        if found.is_empty() {
            return Ok(Vec::new());
        }
        reader.rows(&found)
    }

    fn open(&self) -> io::Result<BlockReader> {
        let bytes = self.location.read()?;
        let body = bytes.get(HEADER_BYTES..).ok_or_else(damaged)?;
        let mut columns = [(0, 0, 0); COLUMNS];
        let mut start = HEADER_BYTES + COLUMNS * 8;
        for (index, column) in columns.iter_mut().enumerate() {
            let entry = body.get(index * 8..index * 8 + 8).ok_or_else(damaged)?;
            let length = |bytes: &[u8]| -> io::Result<usize> {
                let bytes = bytes.try_into().map_err(|_| damaged())?;
                usize::try_from(u32::from_le_bytes(bytes)).map_err(|_| damaged())
            };
            let (raw, packed) = entry.split_at(4);
            let (raw, packed) = (length(raw)?, length(packed)?);
            *column = (start, packed, raw);
            start += packed;
        }
        Ok(BlockReader { bytes, columns, rows: self.rows, block: self.clone() })
    }
}

fn keep(fits: &mut [bool], mut condition: impl FnMut(usize) -> bool) {
    for (row, fits) in fits.iter_mut().enumerate() {
        *fits = *fits && condition(row);
    }
}

fn deflate(out: Vec<u8>, column: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(out, COMPRESSION);
    // Writing to memory does not fail.
    io::Write::write_all(&mut encoder, column).ok()?;
    encoder.finish().ok()
}

/// The bytes of a block, its columns inflated on demand.
struct BlockReader {
    bytes: Vec<u8>,
    /// Start, packed length and raw length.
    columns: [(usize, usize, usize); COLUMNS],
    rows: usize,
    block: Block,
}

impl BlockReader {
    fn inflate(&self, column: Column) -> io::Result<Vec<u8>> {
        let (start, packed, raw) = *self.columns.get(column as usize).ok_or_else(damaged)?;
        let bytes = self.bytes.get(start..start + packed).ok_or_else(damaged)?;
        let mut out = Vec::with_capacity(raw);
        DeflateDecoder::new(bytes).take(raw as u64).read_to_end(&mut out)?;
        Ok(out)
    }

    fn numbers(&self, column: Column) -> io::Result<Vec<u64>> {
        let bytes = self.inflate(column)?;
        let mut numbers = Numbers(&bytes);
        (0..self.rows).map(|_| numbers.next()).collect()
    }

    fn texts(&self, column: Column) -> io::Result<TextColumn> {
        let bytes = self.inflate(column)?;
        let mut numbers = Numbers(&bytes);
        let count = usize::try_from(numbers.next()?).map_err(|_| damaged())?;
        if count > self.rows {
            return Err(damaged());
        }
        let mut texts = Vec::with_capacity(count);
        for _ in 0..count {
            let length = usize::try_from(numbers.next()?).map_err(|_| damaged())?;
            texts.push(String::from_utf8_lossy(numbers.bytes(length)?).into());
        }
        let index = |number: u64| u32::try_from(number).map_err(|_| damaged());
        let indexes = (0..self.rows).map(|_| numbers.next().and_then(index));
        Ok(TextColumn { texts, indexes: indexes.collect::<io::Result<_>>()? })
    }

    fn row_numbers(&self) -> io::Result<Vec<u64>> {
        let mut number = self.block.first_number;
        let steps = self.numbers(Column::Number)?;
        let numbers = steps.into_iter().map(|step| {
            number = number.saturating_add(step);
            number
        });
        Ok(numbers.collect())
    }

    fn times(&self) -> io::Result<Vec<Millis>> {
        let mut at = self.block.first_at.0;
        let steps = self.numbers(Column::At)?;
        let times = steps.into_iter().map(|step| {
            at = at.saturating_add(unzigzag(step));
            Millis(at)
        });
        Ok(times.collect())
    }

    /// Leaves the rows that fit; only columns with a condition are read.
    fn apply(&self, filter: &LogFilter, fits: &mut [bool]) -> io::Result<()> {
        let text = |column: Column, wanted: &Option<String>, fits: &mut [bool]| -> io::Result<()> {
            let Some(wanted) = wanted else { return Ok(()) };
            let values = self.texts(column)?;
            let hits = values.hits(wanted);
            let is_hit = |row: usize| {
                let index = values.indexes.get(row).copied().unwrap_or(u32::MAX) as usize;
                hits.get(index) == Some(&true)
            };
            keep(fits, is_hit);
            Ok(())
        };
        text(Column::Name, &filter.name, fits)?;
        text(Column::List, &filter.list, fits)?;
        text(Column::Upstream, &filter.upstream, fits)?;
        text(Column::Answer, &filter.answer, fits)?;
        if let Some(wanted) = &filter.client {
            let (client, id) = (self.texts(Column::Client)?, self.texts(Column::ClientId)?);
            keep(fits, |row| contains(client.get(row), wanted) || contains(id.get(row), wanted));
        }
        if let Some(wanted) = &filter.group {
            let groups = self.texts(Column::Group)?;
            keep(fits, |row| groups.get(row) == wanted);
        }
        if !filter.outcomes.is_empty() || filter.protocol.is_some() {
            let words = self.numbers(Column::Words)?;
            keep(fits, |row| {
                let read = words.get(row).and_then(|number| from_words(*number));
                read.is_some_and(|(outcome, _, protocol)| filter.fits_words(outcome, protocol))
            });
        }
        let number = |column: Column, wanted: bool| -> io::Result<Option<Vec<u64>>> {
            if wanted { self.numbers(column).map(Some) } else { Ok(None) }
        };
        let qtypes = number(Column::Qtype, filter.qtype.is_some())?;
        let rcodes = number(Column::Rcode, filter.rcode.is_some())?;
        let has_duration = filter.min_duration_us.is_some() || filter.max_duration_us.is_some();
        let durations = number(Column::Duration, has_duration)?;
        if qtypes.is_some() || rcodes.is_some() || durations.is_some() {
            let at = |column: &Option<Vec<u64>>, row: usize| {
                column.as_ref().and_then(|values| values.get(row)).copied().unwrap_or(0)
            };
            keep(fits, |row| {
                let qtype = u16::try_from(at(&qtypes, row)).unwrap_or(u16::MAX);
                let rcode = u16::try_from(at(&rcodes, row)).unwrap_or(u16::MAX);
                let duration_us = u32::try_from(at(&durations, row)).unwrap_or(u32::MAX);
                filter.fits_numbers(qtype, rcode, duration_us)
            });
        }
        let whole = filter.fits_time(self.block.first_at) && filter.fits_time(self.block.last_at);
        if !whole {
            let times = self.times()?;
            keep(fits, |row| times.get(row).is_some_and(|at| filter.fits_time(*at)));
        }
        Ok(())
    }

    /// Reads rows by their index.
    fn rows(&self, wanted: &[usize]) -> io::Result<Vec<LoggedQuery>> {
        let (numbers, times) = (self.row_numbers()?, self.times()?);
        let texts = |column| self.texts(column);
        let (name, client) = (texts(Column::Name)?, texts(Column::Client)?);
        let (client_id, group) = (texts(Column::ClientId)?, texts(Column::Group)?);
        let (list, upstream) = (texts(Column::List)?, texts(Column::Upstream)?);
        let answer = texts(Column::Answer)?;
        let (qtypes, rcodes) = (self.numbers(Column::Qtype)?, self.numbers(Column::Rcode)?);
        let (words, durations) = (self.numbers(Column::Words)?, self.numbers(Column::Duration)?);
        let small = |values: &[u64], row: usize| {
            values.get(row).and_then(|value| u16::try_from(*value).ok()).ok_or_else(damaged)
        };
        let read = |row: &usize| -> io::Result<LoggedQuery> {
            let row = *row;
            let number = words.get(row).copied().unwrap_or(u64::MAX);
            let (outcome, tier, protocol) = from_words(number).ok_or_else(damaged)?;
            Ok(LoggedQuery {
                number: *numbers.get(row).ok_or_else(damaged)?,
                at: *times.get(row).ok_or_else(damaged)?,
                client: client.share(row),
                client_id: client_id.share(row),
                group: group.share(row),
                name: name.share(row),
                qtype: small(&qtypes, row)?,
                rcode: small(&rcodes, row)?,
                outcome,
                tier,
                protocol,
                list: list.share(row),
                upstream: upstream.share(row),
                answer: answer.share(row),
                duration_us: durations
                    .get(row)
                    .and_then(|value| u32::try_from(*value).ok())
                    .ok_or_else(damaged)?,
            })
        };
        wanted.iter().map(read).collect()
    }
}
