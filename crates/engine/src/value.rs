//! Value: one variant per Redis type.

use crate::error::{Error, WRONG_TYPE};
use crate::t_hash::Hash;
use crate::t_list::List;
use crate::t_set::Set;
use crate::t_stream::Stream;
use crate::t_string::Str;
use crate::t_zset::Zset;

/// The value of a key.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Str(Str),
    List(List),
    Set(Set),
    Hash(Hash),
    Zset(Zset),
    Stream(Box<Stream>),
}

impl Value {
    /// The word `TYPE` answers.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Value::Str(_) => "string",
            Value::List(_) => "list",
            Value::Set(_) => "set",
            Value::Hash(_) => "hash",
            Value::Zset(_) => "zset",
            Value::Stream(_) => "stream",
        }
    }

    /// The word `OBJECT ENCODING` answers.
    pub(crate) fn encoding(&self) -> &'static str {
        match self {
            Value::Str(string) => string.encoding(),
            Value::List(list) => list.encoding(),
            Value::Set(set) => set.encoding(),
            Value::Hash(hash) => hash.encoding(),
            Value::Zset(zset) => zset.encoding(),
            Value::Stream(_) => "stream",
        }
    }
}

impl Value {
    /// Bytes on the heap, in constant time.
    pub(crate) fn heap_size(&self) -> usize {
        match self {
            Value::Str(value) => value.heap_size(),
            Value::List(value) => value.heap_size(),
            Value::Set(value) => value.heap_size(),
            Value::Hash(value) => value.heap_size(),
            Value::Zset(value) => value.heap_size(),
            Value::Stream(value) => size_of::<Stream>() + value.heap_size(),
        }
    }
}

/// A type that a [`Value`] can hold: lets `Ctx` hand out typed references or `WRONGTYPE`.
pub(crate) trait ValueType: Sized {
    fn of(value: &Value) -> Result<&Self, Error>;
    fn of_mut(value: &mut Value) -> Result<&mut Self, Error>;
    fn into_value(self) -> Value;
}

macro_rules! kind {
    ($type:ty, $variant:ident, $wrap:expr) => {
        impl ValueType for $type {
            fn of(value: &Value) -> Result<&Self, Error> {
                if let Value::$variant(inner) = value { Ok(inner) } else { Err(WRONG_TYPE) }
            }

            fn of_mut(value: &mut Value) -> Result<&mut Self, Error> {
                if let Value::$variant(inner) = value { Ok(inner) } else { Err(WRONG_TYPE) }
            }

            fn into_value(self) -> Value {
                Value::$variant($wrap(self))
            }
        }
    };
}

kind!(Str, Str, std::convert::identity);
kind!(List, List, std::convert::identity);
kind!(Set, Set, std::convert::identity);
kind!(Hash, Hash, std::convert::identity);
kind!(Zset, Zset, std::convert::identity);
kind!(Stream, Stream, Box::new);
