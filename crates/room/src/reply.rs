//! Reading what scripts reply: a word first, then values as text.

use store::Millis;

use crate::Error;

/// A script's reply.
#[derive(Debug)]
pub(crate) struct Reply {
    script: &'static str,
    parts: Vec<String>,
}

impl Reply {
    /// Takes a reply; one that says the queue is not known is that error.
    pub(crate) fn of(script: &'static store::Script, parts: Vec<String>) -> Result<Self, Error> {
        let reply = Self { script: script.name(), parts };
        if reply.word() == "unknown_queue" { Err(Error::UnknownQueue) } else { Ok(reply) }
    }

    /// The first word.
    pub(crate) fn word(&self) -> &str {
        self.parts.first().map_or("", String::as_str)
    }

    /// The text at an index; missing is empty.
    pub(crate) fn text(&self, index: usize) -> &str {
        self.parts.get(index).map_or("", String::as_str)
    }

    /// The number at an index.
    pub(crate) fn number<T: std::str::FromStr>(&self, index: usize) -> Result<T, Error> {
        self.text(index).parse().map_err(|_| self.bad(&format!("a number at {index}")))
    }

    /// The number at an index, or none if it is empty.
    pub(crate) fn maybe<T: std::str::FromStr>(&self, index: usize) -> Result<Option<T>, Error> {
        if self.text(index).is_empty() { Ok(None) } else { self.number(index).map(Some) }
    }

    /// The moment at an index, in milliseconds.
    pub(crate) fn moment(&self, index: usize) -> Result<Millis, Error> {
        self.number(index).map(Millis)
    }

    /// Everything after the first word.
    pub(crate) fn rest(&self) -> &[String] {
        self.parts.get(1..).unwrap_or_default()
    }

    /// The error of a reply that is not one of the expected ones.
    pub(crate) fn unexpected(&self) -> Error {
        self.bad("another reply")
    }

    fn bad(&self, expected: &str) -> Error {
        let message = format!("{} replied {:?}, expected {expected}", self.script, self.parts);
        Error::Store(store::Error::Decode { message })
    }
}
