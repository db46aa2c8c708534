//! Replies of scripts: a word first, then values as text.

use store::{Millis, redis::Value};

use crate::Error;

/// A script's reply.
#[derive(Debug)]
pub(crate) struct Reply {
    script: &'static str,
    parts: Vec<String>,
}

impl Reply {
    /// Wraps a reply; `unknown_queue` becomes an error.
    pub(crate) fn of(script: &'static store::Script, parts: Vec<String>) -> Result<Self, Error> {
        let reply = Self { script: script.name(), parts };
        if reply.word() == "unknown_queue" { Err(Error::UnknownQueue) } else { Ok(reply) }
    }

    /// Returns the first word.
    pub(crate) fn word(&self) -> &str {
        self.parts.first().map_or("", String::as_str)
    }

    /// Returns the text at an index; empty if missing.
    pub(crate) fn text(&self, index: usize) -> &str {
        self.parts.get(index).map_or("", String::as_str)
    }

    /// Returns the number at an index.
    pub(crate) fn number<T: std::str::FromStr>(&self, index: usize) -> Result<T, Error> {
        self.text(index).parse().map_err(|_| self.bad(&format!("a number at {index}")))
    }

    /// Returns the number at an index, or `None` if it is empty.
    pub(crate) fn maybe<T: std::str::FromStr>(&self, index: usize) -> Result<Option<T>, Error> {
        if self.text(index).is_empty() { Ok(None) } else { self.number(index).map(Some) }
    }

    /// Returns the time at an index, in milliseconds.
    pub(crate) fn moment(&self, index: usize) -> Result<Millis, Error> {
        self.number(index).map(Millis)
    }

    /// Returns everything after the first word.
    pub(crate) fn rest(&self) -> &[String] {
        self.rest_from(1)
    }

    /// Returns everything from an index on.
    pub(crate) fn rest_from(&self, index: usize) -> &[String] {
        self.parts.get(index..).unwrap_or_default()
    }

    /// Returns the error for an unexpected reply.
    pub(crate) fn unexpected(&self) -> Error {
        self.bad("another reply")
    }

    fn bad(&self, expected: &str) -> Error {
        let message = format!("{} replied {:?}, expected {expected}", self.script, self.parts);
        Error::Store(store::Error::Decode { message })
    }
}

/// Reads a script's reply from front to back. Numbers may be integers or text.
#[derive(Debug)]
pub(crate) struct ReplyReader {
    script: &'static str,
    rest: std::vec::IntoIter<Value>,
}

impl ReplyReader {
    /// Wraps a reply; `unknown_queue` becomes an error.
    pub(crate) fn of(script: &'static store::Script, values: Vec<Value>) -> Result<Self, Error> {
        if matches!(values.first(), Some(Value::BulkString(word)) if word == b"unknown_queue") {
            return Err(Error::UnknownQueue);
        }
        Ok(Self { script: script.name(), rest: values.into_iter() })
    }

    /// Reads the next value.
    pub(crate) fn next(&mut self) -> Result<Value, Error> {
        self.rest.next().ok_or_else(|| self.unexpected("nothing more"))
    }

    /// Reads the next value, which must be this word.
    pub(crate) fn word(&mut self, word: &str) -> Result<(), Error> {
        let text = self.text()?;
        if text == word { Ok(()) } else { Err(self.unexpected(&text)) }
    }

    /// Reads the next value as text.
    pub(crate) fn text(&mut self) -> Result<String, Error> {
        let value = self.next()?;
        self.text_of(value)
    }

    /// Converts a value to text.
    pub(crate) fn text_of(&self, value: Value) -> Result<String, Error> {
        match value {
            Value::BulkString(bytes) => {
                String::from_utf8(bytes).map_err(|_| self.unexpected("bytes that are no text"))
            }
            Value::SimpleString(text) => Ok(text),
            Value::Int(number) => Ok(number.to_string()),
            other => Err(self.unexpected(&format!("{other:?}"))),
        }
    }

    /// Reads the next value as a number.
    pub(crate) fn number<T: std::str::FromStr>(&mut self) -> Result<T, Error> {
        self.maybe()?.ok_or_else(|| self.unexpected("no number"))
    }

    /// Reads the next value as a number, or `None` if it is empty.
    pub(crate) fn maybe<T: std::str::FromStr>(&mut self) -> Result<Option<T>, Error> {
        let text = self.text()?;
        match text.as_str() {
            "" => Ok(None),
            number => number.parse().map(Some).map_err(|_| self.unexpected(number)),
        }
    }

    /// Returns the error for an unexpected value.
    pub(crate) fn unexpected(&self, what: &str) -> Error {
        let message = format!("{} replied {what:?} before {:?}", self.script, self.rest.as_slice());
        Error::Store(store::Error::Decode { message })
    }
}
