//! Values from Redis's format: every form that a Redis up to 7.0 writes, but those of modules, and
//! hashes with deadlines of fields as Redis 7.4 writes them.
//!
//! What is read holds no element twice and is not empty, as no value in the keyspace is.

use hashbrown::HashSet;

use super::format::{BadFormat, Reader};
use super::listpack::{Elements, read_intset, read_listpack, read_ziplist, read_zipmap};
use crate::config::Config;
use crate::number;
use crate::t_hash::expiry::DEADLINE_MAX;
use crate::t_hash::{self, Hash};
use crate::t_list::{End, List};
use crate::t_set::{self, Set};
use crate::t_string::Str;
use crate::t_zset::{self, Zset};
use crate::value::Value;

/// The value of a payload without version and checksum.
pub(super) fn value(payload: &[u8], config: &Config) -> Result<Value, BadFormat> {
    let mut reader = Reader::new(payload);
    let kind = reader.byte()?;
    match kind {
        super::STRING => Ok(Value::Str(Str::new(&reader.string()?))),
        super::LIST => list(&strings(&mut reader, 1)?),
        super::LIST_ZIPLIST => list(&read_ziplist(&reader.string()?)?),
        super::LIST_QUICKLIST => {
            let mut all = Vec::new();
            for _ in 0..reader.count()? {
                all.extend(read_ziplist(&reader.string()?)?);
            }
            list(&all)
        }
        super::LIST_QUICKLIST_2 => {
            let mut all = Vec::new();
            for _ in 0..reader.count()? {
                match (reader.len()?, reader.string()?) {
                    (1, element) => all.push(element),
                    (2, packed) => all.extend(read_listpack(&packed)?),
                    _ => return Err(BadFormat),
                }
            }
            list(&all)
        }
        super::SET => set(&strings(&mut reader, 1)?, config),
        super::SET_INTSET => set(&read_intset(&reader.string()?)?, config),
        super::HASH => hash(&strings(&mut reader, 2)?, config),
        super::HASH_WITH_DEADLINES => hash_with_deadlines(&mut reader, config),
        super::HASH_ZIPMAP => hash(&read_zipmap(&reader.string()?)?, config),
        super::HASH_ZIPLIST => hash(&read_ziplist(&reader.string()?)?, config),
        super::HASH_LISTPACK => hash(&read_listpack(&reader.string()?)?, config),
        super::ZSET | super::ZSET_2 => {
            let count = reader.count()?;
            let mut members = Vec::with_capacity(count);
            for _ in 0..count {
                let member = reader.string()?;
                let score = match kind {
                    super::ZSET => reader.text_double()?,
                    _ => reader.double()?,
                };
                members.push((member, score));
            }
            zset(&members, config)
        }
        super::ZSET_ZIPLIST => zset(&scored(read_ziplist(&reader.string()?)?)?, config),
        super::ZSET_LISTPACK => zset(&scored(read_listpack(&reader.string()?)?)?, config),
        super::STREAM | super::STREAM_2 => {
            super::stream::read(&mut reader, kind == super::STREAM_2)
                .map(|stream| Value::Stream(Box::new(stream)))
        }
        _ => Err(BadFormat),
    }
}

/// A number and so many times `each` strings.
fn strings(reader: &mut Reader<'_>, each: usize) -> Result<Elements, BadFormat> {
    let count = reader.count()?.checked_mul(each).ok_or(BadFormat)?;
    (0..count).map(|_| reader.string()).collect()
}

/// Members and scores in turn.
fn scored(elements: Elements) -> Result<Vec<(Vec<u8>, f64)>, BadFormat> {
    let mut elements = elements.into_iter();
    let mut members = Vec::with_capacity(elements.len() / 2);
    while let Some(member) = elements.next() {
        let score = elements.next().and_then(|text| number::parse_f64(&text));
        members.push((member, score.ok_or(BadFormat)?));
    }
    Ok(members)
}

fn list(elements: &Elements) -> Result<Value, BadFormat> {
    if elements.is_empty() {
        return Err(BadFormat);
    }
    let elements: Vec<&[u8]> = elements.iter().map(Vec::as_slice).collect();
    let mut list = List::default();
    list.push(End::Right, &elements);
    Ok(Value::List(list))
}

fn set(members: &Elements, config: &Config) -> Result<Value, BadFormat> {
    let limits = t_set::Limits::of(config);
    let mut set = Set::default();
    for member in members {
        if !set.add(member, limits) {
            return Err(BadFormat);
        }
    }
    if set.len() == 0 { Err(BadFormat) } else { Ok(Value::Set(set)) }
}

fn hash(elements: &Elements, config: &Config) -> Result<Value, BadFormat> {
    if elements.is_empty() || !elements.len().is_multiple_of(2) {
        return Err(BadFormat);
    }
    let pairs: Vec<&[u8]> = elements.iter().map(Vec::as_slice).collect();
    let mut hash = Hash::default();
    let added = hash.set(&pairs, t_hash::Limits::of(config));
    if added * 2 == pairs.len() { Ok(Value::Hash(hash)) } else { Err(BadFormat) }
}

/// A hash whose deadlines stand before the fields: 0 for none, or one more than the distance from
/// the first of them, which stands before all.
fn hash_with_deadlines(reader: &mut Reader<'_>, config: &Config) -> Result<Value, BadFormat> {
    let first = i64::from_le_bytes(reader.array()?);
    let (mut elements, mut deadlines) = (Elements::new(), Vec::new());
    for _ in 0..reader.count()? {
        let after = i64::try_from(reader.len()?).map_err(|_| BadFormat)?;
        let name = reader.string()?;
        if after > 0 {
            let at_ms = first.checked_add(after - 1).ok_or(BadFormat)?;
            if !(1..=DEADLINE_MAX).contains(&at_ms) {
                return Err(BadFormat);
            }
            deadlines.push((name.clone(), at_ms));
        }
        elements.extend([name, reader.string()?]);
    }
    let mut value = hash(&elements, config)?;
    if let Value::Hash(hash) = &mut value {
        for (name, at_ms) in deadlines {
            hash.set_deadline(&name, at_ms, t_hash::Limits::of(config));
        }
    }
    Ok(value)
}

fn zset(members: &[(Vec<u8>, f64)], config: &Config) -> Result<Value, BadFormat> {
    let mut seen = HashSet::with_capacity(members.len());
    if members.is_empty() || !members.iter().all(|(member, _)| seen.insert(member)) {
        return Err(BadFormat);
    }
    Ok(Value::Zset(Zset::of(members, t_zset::Limits::of(config))))
}
