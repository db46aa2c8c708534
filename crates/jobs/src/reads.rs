//! Reads that are sent together, so that a page asks the store a few times.
//!
//! A part of the queue that is read has two functions: one adds its commands to a pipeline, one takes
//! their replies, in the same order.

use store::redis::{self, FromRedisValue, Pipeline, Value};

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

    /// Takes the next few.
    pub(crate) fn take_each<T: FromRedisValue>(&mut self, count: usize) -> Result<Vec<T>, Error> {
        (0..count).map(|_| self.take()).collect()
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
