//! Reads that are sent together, so that a page asks the store a few times.
//!
//! A part of the queue that is read has two functions: one adds its commands to a pipeline, one takes
//! their replies, in the same order.

use store::{
    Key,
    redis::{self, FromRedisValue, Pipeline, Value},
};

use crate::{Error, Jobs};

/// The replies to a pipeline, in the order of its commands.
#[derive(Debug)]
pub(crate) struct Replies(std::vec::IntoIter<Value>);

impl Replies {
    /// Takes the next reply.
    pub(crate) fn take<T: FromRedisValue>(&mut self) -> Result<T, Error> {
        let value = self.0.next().unwrap_or(Value::Nil);
        Ok(redis::from_redis_value(value).map_err(redis::RedisError::from)?)
    }

    /// Takes the texts that [`add_texts`] asked for.
    pub(crate) fn take_texts<T>(&mut self, count: usize) -> Result<Vec<Option<T>>, Error>
    where
        Option<T>: FromRedisValue,
    {
        if count == 0 { Ok(Vec::new()) } else { self.take() }
    }

    /// Takes the next few.
    pub(crate) fn take_each<T: FromRedisValue>(&mut self, count: usize) -> Result<Vec<T>, Error> {
        (0..count).map(|_| self.take()).collect()
    }
}

/// Adds the read of some texts. One that another writer left as something else counts as missing; a GET would
/// fail, and everything with it.
pub(crate) fn add_texts(pipe: &mut Pipeline, keys: Vec<Key>) {
    if !keys.is_empty() {
        pipe.cmd("MGET").arg(keys);
    }
}

impl Jobs {
    /// Sends reads to the store in one call.
    pub(crate) async fn read(&self, pipe: &Pipeline) -> Result<Replies, Error> {
        if pipe.is_empty() {
            return Ok(Replies(Vec::new().into_iter()));
        }
        let replies: Vec<Value> = pipe.query_async(&mut self.store().clone()).await?;
        Ok(Replies(replies.into_iter()))
    }
}
