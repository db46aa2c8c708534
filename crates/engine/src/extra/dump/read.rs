//! Values from Redis's format: every form that a Redis up to 7.0 writes, but those of modules, and
//! hashes with deadlines of fields as Redis 7.4 writes them.
//!
//! A value that was read holds no element twice and is not empty: the same holds in the keyspace.

use hashbrown::HashSet;

use super::format::{BadFormat, PayloadReader};
use super::listpack::{Elements, read_intset, read_listpack, read_ziplist, read_zipmap};
use crate::admin::config::Config;
use crate::number;
use crate::t_hash::expiry::DEADLINE_MAX;
use crate::t_hash::{self, Hash};
use crate::t_list::{List, ListEnd};
use crate::t_set::{self, Set};
use crate::t_string::Str;
use crate::t_zset::{self, Zset};
use crate::value::Value;

/// The value of a payload without version and checksum.
pub(super) fn value(payload: &[u8], config: &Config) -> Result<Value, BadFormat> {
    let mut reader = PayloadReader::new(payload);
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
        super::HASH_LISTPACK_WITH_DEADLINES => packed_hash_with_deadlines(&mut reader, config),
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
fn strings(reader: &mut PayloadReader<'_>, each: usize) -> Result<Elements, BadFormat> {
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
    list.push(ListEnd::Right, &elements);
    Ok(Value::List(list))
}

fn set(members: &Elements, config: &Config) -> Result<Value, BadFormat> {
    let limits = t_set::SetLimits::of(config);
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
    let added = hash.set(&pairs, t_hash::HashLimits::of(config));
    if added * 2 == pairs.len() { Ok(Value::Hash(hash)) } else { Err(BadFormat) }
}

/// A hash whose deadlines stand before the fields: 0 for none, or one more than the distance from
/// the first of them, which stands before all.
fn hash_with_deadlines(
    reader: &mut PayloadReader<'_>,
    config: &Config,
) -> Result<Value, BadFormat> {
    let first = i64::from_le_bytes(reader.array()?);
    let (mut elements, mut deadlines) = (Elements::new(), Vec::new());
    for _ in 0..reader.count()? {
        let after = i64::try_from(reader.len()?).map_err(|_| BadFormat)?;
        let name = reader.string()?;
        if after > 0 {
            let at_ms = first.checked_add(after - 1).ok_or(BadFormat)?;
            deadlines.push((name.clone(), at_ms));
        }
        elements.extend([name, reader.string()?]);
    }
    expiring_hash(&elements, &deadlines, config)
}

/// The same as a listpack of names, values and deadlines in turn, where the deadlines are moments.
/// The first of them stands before it too.
fn packed_hash_with_deadlines(
    reader: &mut PayloadReader<'_>,
    config: &Config,
) -> Result<Value, BadFormat> {
    reader.array::<8>()?;
    let (mut elements, mut deadlines) = (Elements::new(), Vec::new());
    let mut packed = read_listpack(&reader.string()?)?.into_iter();
    while let Some(name) = packed.next() {
        let (Some(value), Some(at_ms)) = (packed.next(), packed.next()) else {
            return Err(BadFormat);
        };
        let at_ms = number::parse_i64(&at_ms).ok_or(BadFormat)?;
        if at_ms != 0 {
            deadlines.push((name.clone(), at_ms));
        }
        elements.extend([name, value]);
    }
    expiring_hash(&elements, &deadlines, config)
}

fn expiring_hash(
    elements: &Elements,
    deadlines: &[(Vec<u8>, i64)],
    config: &Config,
) -> Result<Value, BadFormat> {
    if !deadlines.iter().all(|(_, at_ms)| (1..=DEADLINE_MAX).contains(at_ms)) {
        return Err(BadFormat);
    }
    let mut value = hash(elements, config)?;
    if let Value::Hash(hash) = &mut value {
        for (name, at_ms) in deadlines {
            hash.set_deadline(name, *at_ms, t_hash::HashLimits::of(config));
        }
    }
    Ok(value)
}

fn zset(members: &[(Vec<u8>, f64)], config: &Config) -> Result<Value, BadFormat> {
    let mut seen = HashSet::with_capacity(members.len());
    if members.is_empty() || !members.iter().all(|(member, _)| seen.insert(member)) {
        return Err(BadFormat);
    }
    Ok(Value::Zset(Zset::of(members, t_zset::ZsetLimits::of(config))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extra::dump::HASH_LISTPACK_WITH_DEADLINES;

    /// A payload as Redis 7.4 makes it of a small hash, `a` with this deadline and `b` without.
    fn packed(at_ms: i64) -> Vec<u8> {
        let mut entries = vec![0x81, b'a', 2, 1, 1, 0xf4];
        entries.extend(at_ms.to_le_bytes());
        entries.push(9);
        entries.extend([0x81, b'b', 2, 2, 1, 0, 1, 0xff]);
        let mut payload = vec![HASH_LISTPACK_WITH_DEADLINES];
        payload.extend(at_ms.to_le_bytes());
        payload.push(entries.len() as u8 + 6);
        payload.extend((entries.len() as u32 + 6).to_le_bytes());
        payload.extend([6, 0]);
        payload.extend(entries);
        payload
    }

    #[test]
    fn a_packed_hash_with_deadlines_is_read() {
        let config = Config::default();
        let read = value(&packed(1_700_000_000_000), &config);
        let Ok(Value::Hash(hash)) = read else { panic!("{read:?}") };
        assert_eq!(hash.deadline(b"a"), Some(1_700_000_000_000));
        assert_eq!(hash.deadline(b"b"), None);
        assert_eq!(hash.get(b"b").map(|value| value.to_vec()), Some(b"2".to_vec()));
        assert_eq!(hash.len(), 2);
        for wrong in [-1, DEADLINE_MAX + 1, i64::MIN] {
            assert!(value(&packed(wrong), &config).is_err(), "{wrong}");
        }
    }
}
