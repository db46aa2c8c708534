//! Ranges of scores and of names, as commands give them.

use std::cmp::Ordering;

use crate::error::Error;
use crate::number;
use crate::pack::{Elem, compare};

const NOT_A_SCORE_RANGE: Error = Error::fixed("ERR min or max is not a float");
const NOT_A_LEX_RANGE: Error = Error::fixed("ERR min or max not valid string range item");

/// Scores from one border to another, each in or out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScoreRange {
    min: f64,
    min_open: bool,
    max: f64,
    max_open: bool,
}

impl ScoreRange {
    pub(crate) fn parse(min: &[u8], max: &[u8]) -> Result<ScoreRange, Error> {
        let (min, min_open) = border(min)?;
        let (max, max_open) = border(max)?;
        Ok(ScoreRange { min, min_open, max, max_open })
    }

    /// From `min` on, up to what is below `end`.
    pub(crate) fn until(min: f64, end: f64) -> ScoreRange {
        ScoreRange { min, min_open: false, max: end, max_open: true }
    }

    /// Is the score not below the range?
    pub(crate) fn reaches(&self, score: f64) -> bool {
        if self.min_open { score > self.min } else { score >= self.min }
    }

    /// Is the score above the range?
    pub(crate) fn exceeds(&self, score: f64) -> bool {
        if self.max_open { score >= self.max } else { score > self.max }
    }
}

/// A border as `strtod` reads it: spaces may come first, nothing at all is zero, and what is too
/// large is infinite.
fn border(bytes: &[u8]) -> Result<(f64, bool), Error> {
    let (text, open) = match bytes {
        [b'(', rest @ ..] => (rest, true),
        _ => (bytes, false),
    };
    let trimmed = text.trim_ascii_start();
    if text.is_empty() {
        return Ok((0.0, open));
    }
    let value = number::parse_f64(trimmed).or_else(|| {
        let digits =
            trimmed.iter().all(|b| matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
        std::str::from_utf8(trimmed).ok().filter(|_| digits)?.parse::<f64>().ok()
    });
    value.map(|value| (value, open)).ok_or(NOT_A_SCORE_RANGE)
}

/// Names from one border to another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LexRange<'a> {
    min: Edge<'a>,
    max: Edge<'a>,
}

/// One border of a range of names.
#[derive(Debug, Clone, Copy)]
enum Edge<'a> {
    Lowest,
    Highest,
    Closed(&'a [u8]),
    Open(&'a [u8]),
}

impl<'a> Edge<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Edge<'a>, Error> {
        match bytes {
            b"-" => Ok(Edge::Lowest),
            b"+" => Ok(Edge::Highest),
            [b'[', name @ ..] => Ok(Edge::Closed(name)),
            [b'(', name @ ..] => Ok(Edge::Open(name)),
            _ => Err(NOT_A_LEX_RANGE),
        }
    }
}

impl<'a> LexRange<'a> {
    pub(crate) fn parse(min: &'a [u8], max: &'a [u8]) -> Result<LexRange<'a>, Error> {
        Ok(LexRange { min: Edge::parse(min)?, max: Edge::parse(max)? })
    }

    /// Can nothing be in it, whatever there is?
    pub(crate) fn is_empty(&self) -> bool {
        match (self.min, self.max) {
            (Edge::Highest, _) | (_, Edge::Lowest) => true,
            (Edge::Lowest, _) | (_, Edge::Highest) => false,
            (Edge::Closed(min), Edge::Closed(max)) => min > max,
            (Edge::Closed(min) | Edge::Open(min), Edge::Closed(max) | Edge::Open(max)) => {
                min >= max
            }
        }
    }

    /// Is the name not below the range?
    pub(crate) fn reaches(&self, name: Elem<'_>) -> bool {
        match self.min {
            Edge::Lowest => true,
            Edge::Highest => false,
            Edge::Closed(min) => compare(name, Elem::Bytes(min)) != Ordering::Less,
            Edge::Open(min) => compare(name, Elem::Bytes(min)) == Ordering::Greater,
        }
    }

    /// Is the name above the range?
    pub(crate) fn exceeds(&self, name: Elem<'_>) -> bool {
        match self.max {
            Edge::Lowest => true,
            Edge::Highest => false,
            Edge::Closed(max) => compare(name, Elem::Bytes(max)) == Ordering::Greater,
            Edge::Open(max) => compare(name, Elem::Bytes(max)) != Ordering::Less,
        }
    }
}
