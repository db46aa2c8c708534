//! Stands in for the built-in store in a build without the feature `embedded`.
//!
//! Opening fails and says why, and the types have no values, so the handle needs no second version
//! of itself: whatever would be called on them cannot be reached.

use redis::{Cmd, Pipeline, RedisResult, Value};

use crate::{Clock, Error, Options, subscribe::Publisher};

/// The built-in store, which is not there.
#[derive(Clone)]
pub(crate) enum NoEmbedded {}

impl NoEmbedded {
    pub(crate) fn open(_: &str, _: &Options, _: Clock) -> Result<Self, Error> {
        Err(Error::invalid(
            "this program was built without the built-in store: use a server, redis://HOST, or build \
             it with the feature \"embedded\"",
        ))
    }

    pub(crate) async fn command(&self, _: &Cmd) -> RedisResult<Value> {
        match *self {}
    }

    pub(crate) async fn pipeline(
        &self,
        _: &Pipeline,
        _: usize,
        _: usize,
    ) -> RedisResult<Vec<Value>> {
        match *self {}
    }

    pub(crate) fn status(&self) -> (String, Option<String>) {
        match *self {}
    }
}

/// A session of its own on the built-in store, which is not there.
pub(crate) enum NoSession {}

impl NoSession {
    pub(crate) async fn listen(
        embedded: &NoEmbedded,
        _: Publisher,
        _: &[&str],
        _: &[&str],
    ) -> RedisResult<Self> {
        match *embedded {}
    }

    pub(crate) async fn open(embedded: &NoEmbedded) -> RedisResult<Self> {
        match *embedded {}
    }

    pub(crate) async fn command(&mut self, _: &Cmd) -> RedisResult<Value> {
        match *self {}
    }

    pub(crate) async fn pipeline(
        &mut self,
        _: &Pipeline,
        _: usize,
        _: usize,
    ) -> RedisResult<Vec<Value>> {
        match *self {}
    }
}
