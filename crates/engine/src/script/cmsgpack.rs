//! `cmsgpack`: MessagePack as Redis's library packs and unpacks it.
//!
//! Whole numbers are integers of the shortest form, others a float when that is exact, else a
//! double; strings are raw bytes; a table whose keys are 1 … n is an array, an empty one too;
//! tables nest 16 deep and what is deeper is nil.

use super::order;
use super::wire::{MAX_DEPTH, Packed, Table, Value, Writer};

/// Tables nest no deeper when packed.
const MAX_NESTING: usize = 16;
/// Nor than this when unpacked: Lua's stack in Redis has room for no more.
const MAX_UNPACK_NESTING: usize = 7900;
/// Values between two questions whether to go on.
const STEPS: u64 = 10_000;

/// Packs the first `count` values of a packed list one after the other, in at most `most` bytes.
/// `stop` is told how much was done and says whether that was enough.
pub(super) fn pack(
    packed: &Packed<'_>,
    count: usize,
    most: usize,
    stop: &mut dyn FnMut(u64) -> bool,
) -> Result<Vec<u8>, Vec<u8>> {
    let root = packed.root();
    let list = packed.table(&root).ok_or("value cannot be read")?;
    let mut packer = Packer { packed, out: Vec::new(), most, steps: 0, stop };
    for n in 1..=count {
        packer.value(list.at(n).unwrap_or(&Value::Nil), 0)?;
    }
    Ok(packer.out)
}

struct Packer<'p, 'a> {
    packed: &'p Packed<'a>,
    out: Vec<u8>,
    most: usize,
    steps: u64,
    stop: &'p mut dyn FnMut(u64) -> bool,
}

impl<'a> Packer<'_, 'a> {
    fn value(&mut self, value: &Value<'a>, level: usize) -> Result<(), Vec<u8>> {
        self.steps += 1;
        let stopped = self.steps.is_multiple_of(STEPS) && (self.stop)(STEPS);
        if self.out.len() > self.most || stopped {
            return Err(b"not enough memory".to_vec());
        }
        match value {
            Value::Bool(b) => self.out.push(if *b { 0xc3 } else { 0xc2 }),
            Value::Number(n) => self.number(*n),
            Value::String(s) => self.string(s),
            Value::Table(_) | Value::Ref(_) if level < MAX_NESTING => {
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

    fn table(&mut self, table: &Table<'a>, level: usize) -> Result<(), Vec<u8>> {
        let there = table.array.iter().filter(|value| **value != Value::Nil).count();
        let count = there + table.hash.len();
        if is_array(table, count) {
            if count <= 15 {
                self.out.push(0x90 | count as u8);
            } else {
                self.length(0xdc, count);
            }
            for n in 1..=count {
                self.value(table.at(n).unwrap_or(&Value::Nil), level + 1)?;
            }
            return Ok(());
        }
        if count <= 15 {
            self.out.push(0x80 | count as u8);
        } else {
            self.length(0xde, count);
        }
        for (n, value) in table.array.iter().enumerate() {
            if *value != Value::Nil {
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
fn is_array(table: &Table<'_>, count: usize) -> bool {
    table.array.len() <= count
        && table.hash.iter().all(|(key, _)| match key {
            Value::Number(n) => *n >= 1.0 && n.fract() == 0.0 && *n <= count as f64,
            _ => false,
        })
}

/// Values unpacked.
#[derive(Debug)]
pub(super) struct Unpacked {
    /// The list of them, packed for Lua.
    pub(super) packed: Vec<u8>,
    pub(super) graph: bool,
    pub(super) count: usize,
    /// Where the next value begins; -1 at the end.
    pub(super) next: i64,
}

/// Unpacks up to `limit` values from `offset` on; all of them if both are 0.
pub(super) fn unpack(bytes: &[u8], limit: i64, offset: i64) -> Result<Unpacked, Vec<u8>> {
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
    let mut unpacker = Unpacker { rest, nodes: vec![Node::default()], deepest: 1 };
    let mut list = Node::default();
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
    Ok(Unpacked { packed, graph, count, next })
}

#[derive(Debug, Clone, Copy)]
enum Item<'b> {
    Nil,
    Bool(bool),
    Number(f64),
    String(&'b [u8]),
    Node(usize),
}

/// An array or a map.
#[derive(Debug, Default)]
struct Node<'b> {
    array: Vec<Item<'b>>,
    map: Vec<(Item<'b>, Item<'b>)>,
}

/// An array or map whose items are being read.
struct Open<'b> {
    node: usize,
    /// Items still to come.
    left: usize,
    map: bool,
    /// The key whose value comes next.
    key: Option<Item<'b>>,
}

/// What a tag stands for.
enum Head<'b> {
    Item(Item<'b>),
    Array(usize),
    Map(usize),
}

struct Unpacker<'b> {
    rest: &'b [u8],
    nodes: Vec<Node<'b>>,
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
    fn item(&mut self) -> Result<Item<'b>, Vec<u8>> {
        let mut open: Vec<Open<'b>> = Vec::new();
        loop {
            let begun = match self.head()? {
                Head::Item(item) => Some(item),
                Head::Array(length) => self.begin(&mut open, length, false)?,
                Head::Map(length) => self.begin(&mut open, length, true)?,
            };
            let Some(mut item) = begun else { continue };
            loop {
                let Some(outer) = open.last_mut() else { return Ok(item) };
                self.put(outer, item)?;
                if outer.left > 0 {
                    break;
                }
                item = Item::Node(outer.node);
                open.pop();
            }
        }
    }

    /// Begins an array or map; it is complete at once if there is nothing in it.
    fn begin(
        &mut self,
        open: &mut Vec<Open<'b>>,
        length: usize,
        map: bool,
    ) -> Result<Option<Item<'b>>, Vec<u8>> {
        let node = self.nodes.len();
        self.nodes.push(Node::default());
        if length == 0 {
            return Ok(Some(Item::Node(node)));
        }
        let left = if map { length.saturating_mul(2) } else { length };
        open.push(Open { node, left, map, key: None });
        self.deepest = self.deepest.max(open.len() + 1);
        if open.len() > MAX_UNPACK_NESTING {
            return Err(b"stack overflow (in function mp_decode_to_lua_array)".to_vec());
        }
        Ok(None)
    }

    /// Puts an item where it belongs.
    fn put(&mut self, outer: &mut Open<'b>, item: Item<'b>) -> Result<(), Vec<u8>> {
        outer.left -= 1;
        let Some(node) = self.nodes.get_mut(outer.node) else { return Ok(()) };
        if !outer.map {
            node.array.push(item);
            return Ok(());
        }
        match (outer.key.take(), item) {
            (Some(key), value) => node.map.push((key, value)),
            (None, Item::Nil) => return Err(b"table index is nil".to_vec()),
            (None, Item::Number(n)) if n.is_nan() => return Err(b"table index is NaN".to_vec()),
            (None, key) => outer.key = Some(key),
        }
        Ok(())
    }

    fn head(&mut self) -> Result<Head<'b>, Vec<u8>> {
        let tag = self.take(1)?.first().copied().unwrap_or(0);
        Ok(Head::Item(match tag {
            0..=0x7f => Item::Number(f64::from(tag)),
            0xe0.. => Item::Number(f64::from(tag as i8)),
            0xa0..=0xbf => Item::String(self.take(usize::from(tag & 0x1f))?),
            0x90..=0x9f => return Ok(Head::Array(usize::from(tag & 0xf))),
            0x80..=0x8f => return Ok(Head::Map(usize::from(tag & 0xf))),
            0xc0 => Item::Nil,
            0xc2 => Item::Bool(false),
            0xc3 => Item::Bool(true),
            0xca => Item::Number(f64::from(f32::from_bits(self.unsigned(4)? as u32))),
            0xcb => Item::Number(f64::from_bits(self.unsigned(8)?)),
            0xcc => Item::Number(self.unsigned(1)? as f64),
            0xcd => Item::Number(self.unsigned(2)? as f64),
            0xce => Item::Number(self.unsigned(4)? as f64),
            // Lua's integers are signed.
            0xcf | 0xd3 => Item::Number(self.unsigned(8)? as i64 as f64),
            0xd0 => Item::Number(f64::from(self.unsigned(1)? as i8)),
            0xd1 => Item::Number(f64::from(self.unsigned(2)? as i16)),
            0xd2 => Item::Number(f64::from(self.unsigned(4)? as i32)),
            0xd9..=0xdb => {
                let length = self.length(1 << (tag - 0xd9))?;
                Item::String(self.take(length)?)
            }
            0xdc | 0xdd => return Ok(Head::Array(self.length(2 << (tag - 0xdc))?)),
            0xde | 0xdf => return Ok(Head::Map(self.length(2 << (tag - 0xde))?)),
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

    fn write_node(&self, writer: &mut Writer, node: &Node<'b>, graph: bool) -> Result<(), Vec<u8>> {
        if node.map.is_empty() {
            writer.array(node.array.len());
            return node.array.iter().try_for_each(|item| self.write(writer, item, graph));
        }
        let pairs = last_of_each(&node.map);
        writer.pairs(pairs.len());
        for (key, value) in pairs {
            if graph && matches!(key, Item::Node(_)) {
                return Err(b"Bad data format in input.".to_vec());
            }
            self.write(writer, key, graph)?;
            self.write(writer, value, graph)?;
        }
        Ok(())
    }

    fn write(&self, writer: &mut Writer, item: &Item<'b>, graph: bool) -> Result<(), Vec<u8>> {
        match item {
            Item::Nil => writer.nil(),
            Item::Bool(b) => writer.bool(*b),
            Item::Number(n) => writer.number(*n),
            Item::String(s) => writer.string(s),
            Item::Node(n) if graph => {
                writer.array(1);
                writer.number((n + 1) as f64);
            }
            Item::Node(n) => match self.nodes.get(*n) {
                Some(node) => self.write_node(writer, node, false)?,
                None => writer.nil(),
            },
        }
        Ok(())
    }
}

/// Each key with its last value, without those that are nil.
fn last_of_each<'m, 'b>(map: &'m [(Item<'b>, Item<'b>)]) -> Vec<(&'m Item<'b>, &'m Item<'b>)> {
    let name = |item: &Item<'b>, place: usize| {
        let mut name = Vec::new();
        match item {
            Item::Nil => name.push(0),
            Item::Bool(b) => name.extend([1, u8::from(*b)]),
            Item::Number(n) => {
                name.push(2);
                name.extend((*n + 0.0).to_le_bytes());
            }
            Item::String(s) => {
                name.push(3);
                name.extend_from_slice(s);
            }
            // Two tables are never the same key.
            Item::Node(_) => {
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
        .filter(|(_, value)| !matches!(value, Item::Nil))
        .map(|(key, value)| (key, value))
        .collect()
}
