//! Streams in Redis's format: nodes as listpacks, then what the stream and its groups know.
//!
//! A node begins with how many entries it has, how many were deleted, and the names of its first
//! entry. An entry is flags (1: deleted, 2: names are the node's), the differences of its id to the
//! node's, names and values, and how many elements that was.

use super::format::{BadFormat, PayloadReader, push_len, push_string};
use super::listpack::{Listpack, read_listpack};
use crate::number;
use crate::t_stream::{Consumer, Group, Id, PendingStreamEntry, Stream};

const DELETED: i64 = 1;
const SAME_NAMES: i64 = 2;

/// Adds a stream.
pub(super) fn write(stream: &Stream, out: &mut Vec<u8>) {
    push_len(out, stream.node_ids().len() as u64);
    for node in stream.nodes() {
        let mut pack = Listpack::new();
        let names: Vec<Vec<u8>> = node.names().map(|elem| elem.to_vec()).collect();
        pack.push_int(i64::from(node.live));
        pack.push_int(0);
        pack.push_int(names.len() as i64);
        names.iter().for_each(|name| pack.push(name));
        pack.push_int(0);
        for entry in node.iter() {
            let fields: Vec<Vec<u8>> = entry.fields().map(|elem| elem.to_vec()).collect();
            let same = entry.has_names_of_node();
            pack.push_int(if same { SAME_NAMES } else { 0 });
            pack.push_int(entry.id.ms.wrapping_sub(node.base.ms) as i64);
            pack.push_int(entry.id.seq.wrapping_sub(node.base.seq) as i64);
            let pairs = (fields.len() / 2) as i64;
            if same {
                fields.iter().skip(1).step_by(2).for_each(|value| pack.push(value));
                pack.push_int(pairs + 3);
            } else {
                pack.push_int(pairs);
                fields.iter().for_each(|part| pack.push(part));
                pack.push_int(2 * pairs + 4);
            }
        }
        push_len(out, 16);
        push_id(out, node.base);
        let bytes = pack.finish();
        push_len(out, bytes.len() as u64);
        out.extend(bytes);
    }
    push_len(out, stream.len());
    for id in [stream.last, stream.first(), stream.max_deleted] {
        push_len(out, id.ms);
        push_len(out, id.seq);
    }
    push_len(out, stream.added);
    push_len(out, stream.groups.len() as u64);
    for (name, group) in &stream.groups {
        push_string(out, name);
        push_len(out, group.last.ms);
        push_len(out, group.last.seq);
        push_len(out, group.read.unwrap_or(-1) as u64);
        push_len(out, group.pending.len() as u64);
        for (id, pending) in &group.pending {
            push_id(out, *id);
            out.extend(pending.delivered_ms.to_le_bytes());
            push_len(out, pending.count as u64);
        }
        push_len(out, group.consumers.len() as u64);
        for (name, consumer) in &group.consumers {
            push_string(out, name);
            out.extend(consumer.seen_ms.to_le_bytes());
            push_len(out, consumer.pending.len() as u64);
            consumer.pending.iter().for_each(|id| push_id(out, *id));
        }
    }
}

fn push_id(out: &mut Vec<u8>, id: Id) {
    out.extend(id.ms.to_be_bytes());
    out.extend(id.seq.to_be_bytes());
}

fn raw_id(reader: &mut PayloadReader<'_>) -> Result<Id, BadFormat> {
    let (ms, seq) = (reader.array()?, reader.array()?);
    Ok(Id { ms: u64::from_be_bytes(ms), seq: u64::from_be_bytes(seq) })
}

fn id(reader: &mut PayloadReader<'_>) -> Result<Id, BadFormat> {
    Ok(Id { ms: reader.len()?, seq: reader.len()? })
}

/// Reads a stream; `second` is the form since Redis 7.0.
pub(super) fn read(reader: &mut PayloadReader<'_>, second: bool) -> Result<Stream, BadFormat> {
    let mut stream = Stream::default();
    for _ in 0..reader.count()? {
        let key = reader.string()?;
        let mut key = PayloadReader::new(&key);
        let base = raw_id(&mut key)?;
        if !key.is_empty() {
            return Err(BadFormat);
        }
        read_node(&mut stream, base, read_listpack(&reader.string()?)?)?;
    }
    if reader.len()? != stream.len() {
        return Err(BadFormat);
    }
    stream.last = id(reader)?;
    if stream.last_live().is_some_and(|last| last > stream.last) {
        return Err(BadFormat);
    }
    stream.added = stream.len();
    if second {
        // The first entry is known from the nodes.
        id(reader)?;
        stream.max_deleted = id(reader)?;
        stream.added = reader.len()?;
    }
    for _ in 0..reader.count()? {
        let name = reader.string()?.into_boxed_slice();
        let mut group = Group { last: id(reader)?, ..Group::default() };
        group.read = match second {
            true => Some(reader.len()? as i64).filter(|read| *read >= 0),
            false => stream.entries_up_to(group.last),
        };
        read_pending(reader, &mut group)?;
        if stream.groups.insert(name, group).is_some() {
            return Err(BadFormat);
        }
    }
    Ok(stream)
}

/// One node with its entries. Deleted ones count towards what the node can still take.
fn read_node(stream: &mut Stream, base: Id, elements: Vec<Vec<u8>>) -> Result<(), BadFormat> {
    let mut elements = elements.into_iter();
    let mut next = || elements.next().ok_or(BadFormat);
    let number = |text: Vec<u8>| number::parse_i64(&text).ok_or(BadFormat);
    let (live, dead, names) = (number(next()?)?, number(next()?)?, number(next()?)?);
    let names: Vec<Vec<u8>> = (0..names).map(|_| next()).collect::<Result<_, _>>()?;
    if number(next()?)? != 0 || names.is_empty() {
        return Err(BadFormat);
    }
    stream.begin_node(base, &names).ok_or(BadFormat)?;
    let total = live.checked_add(dead).filter(|_| live >= 0 && dead >= 0).ok_or(BadFormat)?;
    let mut deleted = 0;
    for _ in 0..total {
        let flags = number(next()?)?;
        let ms = base.ms.wrapping_add(number(next()?)? as u64);
        let seq = base.seq.wrapping_add(number(next()?)? as u64);
        let (mut fields, same) = (Vec::new(), flags & SAME_NAMES != 0);
        if same {
            for name in &names {
                fields.extend([name.clone(), next()?]);
            }
        } else {
            for _ in 0..number(next()?)? {
                fields.extend([next()?, next()?]);
            }
        }
        let pairs = (fields.len() / 2) as i64;
        if number(next()?)? != if same { pairs + 3 } else { 2 * pairs + 4 } {
            return Err(BadFormat);
        }
        let fields: Vec<&[u8]> = fields.iter().map(Vec::as_slice).collect();
        let gone = flags & DELETED != 0;
        deleted += i64::from(gone);
        stream.push_to_node(Id { ms, seq }, &fields, gone).ok_or(BadFormat)?;
    }
    if deleted != dead || live == 0 || elements.next().is_some() {
        return Err(BadFormat);
    }
    Ok(())
}

/// Reads the pending entries of a group and its consumers.
fn read_pending(reader: &mut PayloadReader<'_>, group: &mut Group) -> Result<(), BadFormat> {
    let nobody: std::sync::Arc<[u8]> = [].into();
    for _ in 0..reader.count()? {
        let id = raw_id(reader)?;
        let delivered_ms = i64::from_le_bytes(reader.array()?);
        let count = reader.len()? as i64;
        let pending = PendingStreamEntry { consumer: nobody.clone(), delivered_ms, count };
        if group.pending.insert(id, pending).is_some() {
            return Err(BadFormat);
        }
    }
    let mut owned = 0;
    for _ in 0..reader.count()? {
        let name: std::sync::Arc<[u8]> = reader.string()?.into();
        let seen_ms = i64::from_le_bytes(reader.array()?);
        let mut consumer = Consumer { seen_ms, ..Consumer::default() };
        for _ in 0..reader.count()? {
            let id = raw_id(reader)?;
            let pending = group.pending.get_mut(&id).ok_or(BadFormat)?;
            pending.consumer = name.clone();
            consumer.pending.insert(id);
            owned += 1;
        }
        if group.consumers.insert(name, consumer).is_some() {
            return Err(BadFormat);
        }
    }
    // Every pending entry has one owner.
    let distinct: usize = group.consumers.values().map(|consumer| consumer.pending.len()).sum();
    let one_each = group.pending.iter().all(|(id, pending)| {
        group.consumers.get(&pending.consumer).is_some_and(|c| c.pending.contains(id))
    });
    if one_each && owned == group.pending.len() && distinct == owned {
        Ok(())
    } else {
        Err(BadFormat)
    }
}
