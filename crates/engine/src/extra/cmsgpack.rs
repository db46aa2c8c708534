//! `cmsgpack`: MessagePack as Redis's library packs and unpacks it.
//!
//! Whole numbers are integers of the shortest form, others a float when that is exact, else a
//! double; strings are raw bytes; a table whose keys are 1 … n is an array, an empty one too;
//! tables nest 16 deep and what is deeper is nil.

use crate::script::order;
use crate::script::wire::{LuaTable, LuaValue, MAX_DEPTH, PackedValue, Writer};

/// Tables nest no deeper when packed.
const MAX_NESTING: usize = 16;
/// Nor than this when unpacked: Lua's stack in Redis has room for no more.
const MAX_UNPACK_NESTING: usize = 7900;
/// Values between two questions whether to go on.
const STEPS: u64 = 10_000;

/// Packs the first `count` values of a packed list one after the other, in at most `most` bytes.
/// `stop` is told how much was done and says whether that was enough.
pub(crate) fn pack(
    packed: &PackedValue<'_>,
    count: usize,
    most: usize,
    stop: &mut dyn FnMut(u64) -> bool,
) -> Result<Vec<u8>, Vec<u8>> {
    let root = packed.root();
    let list = packed.table(&root).ok_or("value cannot be read")?;
    let mut packer = Packer { packed, out: Vec::new(), most, steps: 0, stop };
    for n in 1..=count {
        packer.value(list.at(n).unwrap_or(&LuaValue::Nil), 0)?;
    }
    Ok(packer.out)
}

struct Packer<'p, 'a> {
    packed: &'p PackedValue<'a>,
    out: Vec<u8>,
    most: usize,
    steps: u64,
    stop: &'p mut dyn FnMut(u64) -> bool,
}

impl<'a> Packer<'_, 'a> {
    fn value(&mut self, value: &LuaValue<'a>, level: usize) -> Result<(), Vec<u8>> {
        self.steps += 1;
        let stopped = self.steps.is_multiple_of(STEPS) && (self.stop)(STEPS);
        if self.out.len() > self.most || stopped {
            return Err(b"not enough memory".to_vec());
        }
        match value {
            LuaValue::Bool(b) => self.out.push(if *b { 0xc3 } else { 0xc2 }),
            LuaValue::Number(n) => self.number(*n),
            LuaValue::String(s) => self.string(s),
            LuaValue::Table(_) | LuaValue::Ref(_) if level < MAX_NESTING => {
                let packed = self.packed;
                let table = packed.table(value).ok_or("value cannot be read")?;
                return self.table(table, level);
            }
            _ => self.out.push(0xc0),
        }
        Ok(())
    }

    fn number(&mut self, n: f64) {
        // Beyond this a float has no integer of 64 bits.
        if n.fract() == 0.0 && n.abs() < 9.3e18 && (n as i64) as f64 == n && n != 2f64.powi(63) {
            return self.integer(n as i64);
        }
        let short = n as f32;
        if f64::from(short) == n {
            self.out.push(0xca);
            self.out.extend_from_slice(&short.to_be_bytes());
        } else {
            self.out.push(0xcb);
            self.out.extend_from_slice(&n.to_be_bytes());
        }
    }

    fn integer(&mut self, n: i64) {
        let bytes = n.to_be_bytes();
        let (tag, length) = match n {
            -32..=127 => return self.out.push(n as u8),
            128..=0xff => (0xcc, 1),
            0x100..=0xffff => (0xcd, 2),
            0x1_0000..=0xffff_ffff => (0xce, 4),
            0x1_0000_0000.. => (0xcf, 8),
            -128..=-33 => (0xd0, 1),
            -0x8000..=-129 => (0xd1, 2),
            -0x8000_0000..=-0x8001 => (0xd2, 4),
            _ => (0xd3, 8),
        };
        self.out.push(tag);
        self.out.extend_from_slice(bytes.get(8 - length..).unwrap_or_default());
    }

    fn string(&mut self, s: &[u8]) {
        match s.len() {
            n @ 0..=31 => self.out.push(0xa0 | n as u8),
            n @ 32..=0xff => self.out.extend_from_slice(&[0xd9, n as u8]),
            n => self.length(0xda, n),
        }
        self.out.extend_from_slice(s);
    }

    /// A length of two bytes after `tag`, or of four after the next tag.
    fn length(&mut self, tag: u8, n: usize) {
        if let Ok(n) = u16::try_from(n) {
            self.out.push(tag);
            self.out.extend_from_slice(&n.to_be_bytes());
        } else {
            self.out.push(tag + 1);
            self.out.extend_from_slice(&(n as u32).to_be_bytes());
        }
    }

    fn table(&mut self, table: &LuaTable<'a>, level: usize) -> Result<(), Vec<u8>> {
        let there = table.array.iter().filter(|value| **value != LuaValue::Nil).count();
        let count = there + table.hash.len();
        if is_array(table, count) {
            if count <= 15 {
                self.out.push(0x90 | count as u8);
            } else {
                self.length(0xdc, count);
            }
            for n in 1..=count {
                self.value(table.at(n).unwrap_or(&LuaValue::Nil), level + 1)?;
            }
            return Ok(());
        }
        if count <= 15 {
            self.out.push(0x80 | count as u8);
        } else {
            self.length(0xde, count);
        }
        for (n, value) in table.array.iter().enumerate() {
            if *value != LuaValue::Nil {
                self.number((n + 1) as f64);
                self.value(value, level + 1)?;
            }
        }
        for n in order::of(table) {
            if let Some((key, value)) = table.hash.get(n as usize) {
                self.value(key, level + 1)?;
                self.value(value, level + 1)?;
            }
        }
        Ok(())
    }
}

/// Has it the keys 1 to `count` and no others?
fn is_array(table: &LuaTable<'_>, count: usize) -> bool {
    table.array.len() <= count
        && table.hash.iter().all(|(key, _)| match key {
            LuaValue::Number(n) => *n >= 1.0 && n.fract() == 0.0 && *n <= count as f64,
            _ => false,
        })
}

/// Values unpacked.
#[derive(Debug)]
pub(crate) struct UnpackResult {
    /// The list of them, packed for Lua.
    pub(crate) packed: Vec<u8>,
    pub(crate) graph: bool,
    pub(crate) count: usize,
    /// Offset of the next value; -1 at the end.
    pub(crate) next: i64,
}

/// Unpacks up to `limit` values from `offset` on; all of them if both are 0.
pub(crate) fn unpack(bytes: &[u8], limit: i64, offset: i64) -> Result<UnpackResult, Vec<u8>> {
    let length = bytes.len();
    if offset < 0 || limit < 0 {
        let text = format!(
            "Invalid request to unpack with offset of {} and limit of {}.",
            offset as i32, length
        );
        return Err(text.into());
    }
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let Some(rest) = bytes.get(start..) else {
        let text = format!("Start offset {offset} greater than input length {length}.");
        return Err(text.into());
    };
    let all = limit == 0 && offset == 0;
    let limit = if all { usize::MAX } else { usize::try_from(limit).unwrap_or(usize::MAX) };
    let mut unpacker = Unpacker { rest, nodes: vec![MsgpackNode::default()], deepest: 1 };
    let mut list = MsgpackNode::default();
    while !unpacker.rest.is_empty() && list.array.len() < limit {
        let item = unpacker.item()?;
        list.array.push(item);
    }
    let count = list.array.len();
    let next = if unpacker.rest.is_empty() { -1 } else { (length - unpacker.rest.len()) as i64 };
    if let Some(root) = unpacker.nodes.first_mut() {
        *root = list;
    }
    let graph = unpacker.deepest >= MAX_DEPTH;
    let packed = unpacker.pack(graph)?;
    Ok(UnpackResult { packed, graph, count, next })
}

#[derive(Debug, Clone, Copy)]
enum MsgpackItem<'b> {
    Nil,
    Bool(bool),
    Number(f64),
    String(&'b [u8]),
    Node(usize),
}

/// An array or a map.
#[derive(Debug, Default)]
struct MsgpackNode<'b> {
    array: Vec<MsgpackItem<'b>>,
    map: Vec<(MsgpackItem<'b>, MsgpackItem<'b>)>,
}

/// An array or map whose items are being read.
struct UnpackFrame<'b> {
    node: usize,
    /// Items still to come.
    left: usize,
    map: bool,
    /// The key whose value comes next.
    key: Option<MsgpackItem<'b>>,
}

/// The meaning of a tag byte.
enum MsgpackTag<'b> {
    Item(MsgpackItem<'b>),
    Array(usize),
    Map(usize),
}

struct Unpacker<'b> {
    rest: &'b [u8],
    nodes: Vec<MsgpackNode<'b>>,
    deepest: usize,
}

impl<'b> Unpacker<'b> {
    fn take(&mut self, n: usize) -> Result<&'b [u8], Vec<u8>> {
        let (head, rest) =
            self.rest.split_at_checked(n).ok_or_else(|| b"Missing bytes in input.".to_vec())?;
        self.rest = rest;
        Ok(head)
    }

    fn unsigned(&mut self, bytes: usize) -> Result<u64, Vec<u8>> {
        Ok(self.take(bytes)?.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
    }

    fn length(&mut self, bytes: usize) -> Result<usize, Vec<u8>> {
        Ok(usize::try_from(self.unsigned(bytes)?).unwrap_or(usize::MAX))
    }

    /// One item, with all that is in it.
    fn item(&mut self) -> Result<MsgpackItem<'b>, Vec<u8>> {
        let mut open: Vec<UnpackFrame<'b>> = Vec::new();
        loop {
            let begun = match self.head()? {
                MsgpackTag::Item(item) => Some(item),
                MsgpackTag::Array(length) => self.begin(&mut open, length, false)?,
                MsgpackTag::Map(length) => self.begin(&mut open, length, true)?,
            };
            let Some(mut item) = begun else { continue };
            loop {
                let Some(outer) = open.last_mut() else { return Ok(item) };
                self.put(outer, item)?;
                if outer.left > 0 {
                    break;
                }
                item = MsgpackItem::Node(outer.node);
                open.pop();
            }
        }
    }

    /// Begins an array or map; it is complete at once if there is nothing in it.
    fn begin(
        &mut self,
        open: &mut Vec<UnpackFrame<'b>>,
        length: usize,
        map: bool,
    ) -> Result<Option<MsgpackItem<'b>>, Vec<u8>> {
        let node = self.nodes.len();
        self.nodes.push(MsgpackNode::default());
        if length == 0 {
            return Ok(Some(MsgpackItem::Node(node)));
        }
        let left = if map { length.saturating_mul(2) } else { length };
        open.push(UnpackFrame { node, left, map, key: None });
        self.deepest = self.deepest.max(open.len() + 1);
        if open.len() > MAX_UNPACK_NESTING {
            return Err(b"stack overflow (in function mp_decode_to_lua_array)".to_vec());
        }
        Ok(None)
    }

    /// Puts an item where it belongs.
    fn put(&mut self, outer: &mut UnpackFrame<'b>, item: MsgpackItem<'b>) -> Result<(), Vec<u8>> {
        outer.left -= 1;
        let Some(node) = self.nodes.get_mut(outer.node) else { return Ok(()) };
        if !outer.map {
            node.array.push(item);
            return Ok(());
        }
        match (outer.key.take(), item) {
            (Some(key), value) => node.map.push((key, value)),
            (None, MsgpackItem::Nil) => return Err(b"table index is nil".to_vec()),
            (None, MsgpackItem::Number(n)) if n.is_nan() => {
                return Err(b"table index is NaN".to_vec());
            }
            (None, key) => outer.key = Some(key),
        }
        Ok(())
    }

    fn head(&mut self) -> Result<MsgpackTag<'b>, Vec<u8>> {
        let tag = self.take(1)?.first().copied().unwrap_or(0);
        Ok(MsgpackTag::Item(match tag {
            0..=0x7f => MsgpackItem::Number(f64::from(tag)),
            0xe0.. => MsgpackItem::Number(f64::from(tag as i8)),
            0xa0..=0xbf => MsgpackItem::String(self.take(usize::from(tag & 0x1f))?),
            0x90..=0x9f => return Ok(MsgpackTag::Array(usize::from(tag & 0xf))),
            0x80..=0x8f => return Ok(MsgpackTag::Map(usize::from(tag & 0xf))),
            0xc0 => MsgpackItem::Nil,
            0xc2 => MsgpackItem::Bool(false),
            0xc3 => MsgpackItem::Bool(true),
            0xca => MsgpackItem::Number(f64::from(f32::from_bits(self.unsigned(4)? as u32))),
            0xcb => MsgpackItem::Number(f64::from_bits(self.unsigned(8)?)),
            0xcc => MsgpackItem::Number(self.unsigned(1)? as f64),
            0xcd => MsgpackItem::Number(self.unsigned(2)? as f64),
            0xce => MsgpackItem::Number(self.unsigned(4)? as f64),
            // Lua's integers are signed.
            0xcf | 0xd3 => MsgpackItem::Number(self.unsigned(8)? as i64 as f64),
            0xd0 => MsgpackItem::Number(f64::from(self.unsigned(1)? as i8)),
            0xd1 => MsgpackItem::Number(f64::from(self.unsigned(2)? as i16)),
            0xd2 => MsgpackItem::Number(f64::from(self.unsigned(4)? as i32)),
            0xd9..=0xdb => {
                let length = self.length(1 << (tag - 0xd9))?;
                MsgpackItem::String(self.take(length)?)
            }
            0xdc | 0xdd => return Ok(MsgpackTag::Array(self.length(2 << (tag - 0xdc))?)),
            0xde | 0xdf => return Ok(MsgpackTag::Map(self.length(2 << (tag - 0xde))?)),
            _ => return Err(b"Bad data format in input.".to_vec()),
        }))
    }

    fn pack(&self, graph: bool) -> Result<Vec<u8>, Vec<u8>> {
        let mut writer = Writer::default();
        if graph {
            writer.array(self.nodes.len());
            for node in &self.nodes {
                self.write_node(&mut writer, node, true)?;
            }
        } else if let Some(root) = self.nodes.first() {
            self.write_node(&mut writer, root, false)?;
        }
        Ok(writer.into_bytes())
    }

    fn write_node(
        &self,
        writer: &mut Writer,
        node: &MsgpackNode<'b>,
        graph: bool,
    ) -> Result<(), Vec<u8>> {
        if node.map.is_empty() {
            writer.array(node.array.len());
            return node.array.iter().try_for_each(|item| self.write(writer, item, graph));
        }
        let pairs = last_of_each(&node.map);
        writer.pairs(pairs.len());
        for (key, value) in pairs {
            if graph && matches!(key, MsgpackItem::Node(_)) {
                return Err(b"Bad data format in input.".to_vec());
            }
            self.write(writer, key, graph)?;
            self.write(writer, value, graph)?;
        }
        Ok(())
    }

    fn write(
        &self,
        writer: &mut Writer,
        item: &MsgpackItem<'b>,
        graph: bool,
    ) -> Result<(), Vec<u8>> {
        match item {
            MsgpackItem::Nil => writer.nil(),
            MsgpackItem::Bool(b) => writer.bool(*b),
            MsgpackItem::Number(n) => writer.number(*n),
            MsgpackItem::String(s) => writer.string(s),
            MsgpackItem::Node(n) if graph => {
                writer.array(1);
                writer.number((n + 1) as f64);
            }
            MsgpackItem::Node(n) => match self.nodes.get(*n) {
                Some(node) => self.write_node(writer, node, false)?,
                None => writer.nil(),
            },
        }
        Ok(())
    }
}

/// Each key with its last value, without those that are nil.
fn last_of_each<'m, 'b>(
    map: &'m [(MsgpackItem<'b>, MsgpackItem<'b>)],
) -> Vec<(&'m MsgpackItem<'b>, &'m MsgpackItem<'b>)> {
    let name = |item: &MsgpackItem<'b>, place: usize| {
        let mut name = Vec::new();
        match item {
            MsgpackItem::Nil => name.push(0),
            MsgpackItem::Bool(b) => name.extend([1, u8::from(*b)]),
            MsgpackItem::Number(n) => {
                name.push(2);
                name.extend((*n + 0.0).to_le_bytes());
            }
            MsgpackItem::String(s) => {
                name.push(3);
                name.extend_from_slice(s);
            }
            // Two tables are never the same key.
            MsgpackItem::Node(_) => {
                name.push(4);
                name.extend(place.to_le_bytes());
            }
        }
        name
    };
    let mut last = hashbrown::HashMap::with_capacity(map.len());
    for (place, (key, _)) in map.iter().enumerate() {
        last.insert(name(key, place), place);
    }
    let mut places: Vec<usize> = last.into_values().collect();
    places.sort_unstable();
    places
        .into_iter()
        .filter_map(|place| map.get(place))
        .filter(|(_, value)| !matches!(value, MsgpackItem::Nil))
        .map(|(key, value)| (key, value))
        .collect()
}
