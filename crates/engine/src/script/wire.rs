//! Values on their way between Lua and Rust: the format of LuaJIT's `string.buffer`, written and
//! read here without touching the Lua stack.
//!
//! One string crosses the border in place of a tree of Lua values, which is several times cheaper
//! than to build or to walk the tree through the C API. The format is flat: a tag byte, then what
//! belongs to it. Reading never trusts a length: what claims more than there is, is an error.

/// A value read from Lua. Strings point into what was read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LuaValue<'a> {
    Nil,
    Bool(bool),
    Number(f64),
    String(&'a [u8]),
    /// `cjson.null`: the light userdata with address 0.
    Null,
    Table(LuaTable<'a>),
    /// A table found elsewhere, by its number; see [`PackedValue`].
    Ref(usize),
    /// A function, thread or userdata, by the name of its type.
    Other(&'a [u8]),
}

/// A table read from Lua.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LuaTable<'a> {
    /// Values at 1, 2, 3 …; there may be nils among them but the last is none.
    pub(crate) array: Vec<LuaValue<'a>>,
    /// All other pairs, in no particular order.
    pub(crate) hash: Vec<(LuaValue<'a>, LuaValue<'a>)>,
}

impl<'a> LuaTable<'a> {
    /// The value at `index`, counted from 1.
    pub(crate) fn at(&self, index: usize) -> Option<&LuaValue<'a>> {
        if let Some(value) = index.checked_sub(1).and_then(|i| self.array.get(i)) {
            return Some(value).filter(|value| **value != LuaValue::Nil);
        }
        self.hash
            .iter()
            .find(|(key, _)| matches!(key, LuaValue::Number(n) if *n == index as f64))
            .map(|(_, value)| value)
    }

    /// The value of a field.
    pub(crate) fn field(&self, name: &[u8]) -> Option<&LuaValue<'a>> {
        self.hash.iter().find(|(key, _)| *key == LuaValue::String(name)).map(|(_, value)| value)
    }
}

/// A value packed by Lua: a tree, or, where a tree cannot be (cycles, great depth, functions), all
/// tables in a list with references between them, the first holding nothing but the value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PackedValue<'a> {
    Tree(LuaValue<'a>),
    Graph(Vec<LuaTable<'a>>),
}

impl<'a> PackedValue<'a> {
    /// Reads a tree.
    pub(crate) fn tree(bytes: &'a [u8]) -> Option<PackedValue<'a>> {
        WireReader::new(bytes).whole(TableShape::Tree).map(PackedValue::Tree)
    }

    /// Reads an array with neither tables nor nils in it, and gives each value away, with how many
    /// are left. None if it is something else; some values may have been given away then.
    pub(crate) fn flat(bytes: &'a [u8], mut each: impl FnMut(usize, LuaValue<'a>)) -> Option<()> {
        let mut reader = WireReader::new(bytes);
        if reader.byte()? != TABLE + 4 {
            return None;
        }
        let slots = reader.length()? as usize;
        // Each value takes at least a byte.
        if slots.saturating_sub(1) > reader.rest.len().min(FLAT_MOST) {
            return None;
        }
        for left in (1..slots).rev() {
            match reader.value(TableShape::Leaf)? {
                LuaValue::Nil => return None,
                value => each(left, value),
            }
        }
        reader.rest.is_empty().then_some(())
    }

    /// Reads a list of tables whose inner tables are references: `{5}` for the fifth table,
    /// `{0, "function"}` for what is no data.
    pub(crate) fn graph(bytes: &'a [u8]) -> Option<PackedValue<'a>> {
        let LuaValue::Table(list) = WireReader::new(bytes).whole(TableShape::Graph)? else {
            return None;
        };
        let tables = list.array.into_iter().map(|value| match value {
            LuaValue::Table(table) => Some(table),
            _ => None,
        });
        tables.collect::<Option<Vec<_>>>().map(PackedValue::Graph)
    }

    /// The value everything hangs on.
    pub(crate) fn root(&self) -> LuaValue<'a> {
        match self {
            PackedValue::Tree(value) => value.clone(),
            PackedValue::Graph(tables) => {
                tables.first().and_then(|table| table.at(1)).cloned().unwrap_or(LuaValue::Nil)
            }
        }
    }

    /// The table a value is or refers to.
    pub(crate) fn table<'t>(&'t self, value: &'t LuaValue<'a>) -> Option<&'t LuaTable<'a>> {
        match (value, self) {
            (LuaValue::Table(table), _) => Some(table),
            (LuaValue::Ref(n), PackedValue::Graph(tables)) => tables.get(*n),
            _ => None,
        }
    }
}

/// The meaning of tables within a table.
#[derive(Debug, Clone, Copy, PartialEq)]
enum TableShape {
    Tree,
    /// The list of all tables,
    Graph,
    /// one of them,
    Node,
    /// and what stands in it for another; in that there are no more tables.
    Reference,
    Leaf,
}

/// Arrays that are longer are read as trees.
const FLAT_MOST: usize = 10_000;

const NIL: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const NULL: u8 = 3;
const INT: u8 = 6;
const NUMBER: u8 = 7;
/// Bit 0: there are pairs; 2: values from 0 on; 4: values from 1 on.
const TABLE: u8 = 8;
const STRING: u32 = 0x20;

/// Lua itself nests no deeper in this format.
pub(crate) const MAX_DEPTH: usize = 100;

struct WireReader<'a> {
    rest: &'a [u8],
    depth: usize,
}

impl<'a> WireReader<'a> {
    fn new(bytes: &'a [u8]) -> WireReader<'a> {
        WireReader { rest: bytes, depth: 0 }
    }

    fn whole(&mut self, shape: TableShape) -> Option<LuaValue<'a>> {
        let value = self.value(shape)?;
        self.rest.is_empty().then_some(value)
    }

    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(n)?;
        self.rest = rest;
        Some(head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn length(&mut self) -> Option<u32> {
        match self.byte()? {
            0xff => Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            high @ 0xe0.. => {
                let low = u32::from(self.byte()?);
                Some(((u32::from(high) & 0x1f) << 8) + low + 0xe0)
            }
            small => Some(u32::from(small)),
        }
    }

    fn value(&mut self, shape: TableShape) -> Option<LuaValue<'a>> {
        let tag = self.length()?;
        if let Some(length) = tag.checked_sub(STRING) {
            return Some(LuaValue::String(self.take(usize::try_from(length).ok()?)?));
        }
        Some(match u8::try_from(tag).ok()? {
            NIL => LuaValue::Nil,
            FALSE => LuaValue::Bool(false),
            TRUE => LuaValue::Bool(true),
            NULL => LuaValue::Null,
            INT => {
                let int = i32::from_le_bytes(self.take(4)?.try_into().ok()?);
                LuaValue::Number(f64::from(int))
            }
            NUMBER => LuaValue::Number(f64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            tag @ TABLE..=13 => return self.table(tag - TABLE, shape),
            _ => return None,
        })
    }

    fn table(&mut self, kind: u8, shape: TableShape) -> Option<LuaValue<'a>> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let inner = match shape {
            TableShape::Tree => TableShape::Tree,
            TableShape::Graph => TableShape::Node,
            TableShape::Node => TableShape::Reference,
            TableShape::Reference => TableShape::Leaf,
            TableShape::Leaf => return None,
        };
        let slots = if kind >= 2 { self.length()? as usize } else { 0 };
        let pairs = if kind & 1 == 1 { self.length()? as usize } else { 0 };
        let mut table = LuaTable::default();
        // Each value takes at least a byte, so this bounds what a false length can reserve.
        table.array.reserve(slots.min(self.rest.len()));
        table.hash.reserve(pairs.min(self.rest.len()));
        // Slots are counted from 0, and there is no value for 0 in the usual case.
        let first = usize::from(kind >= 4);
        for slot in first..slots {
            let value = self.value(inner)?;
            if slot == 0 {
                if value != LuaValue::Nil {
                    table.hash.push((LuaValue::Number(0.0), value));
                }
            } else {
                table.array.push(value);
            }
        }
        while table.array.last() == Some(&LuaValue::Nil) {
            table.array.pop();
        }
        for _ in 0..pairs {
            let key = self.value(inner)?;
            let value = self.value(inner)?;
            table.hash.push((key, value));
        }
        self.depth -= 1;
        if shape == TableShape::Reference {
            reference(&table)
        } else {
            Some(LuaValue::Table(table))
        }
    }
}

fn reference<'a>(table: &LuaTable<'a>) -> Option<LuaValue<'a>> {
    match table.array.as_slice() {
        [LuaValue::Number(n)] if *n >= 1.0 => Some(LuaValue::Ref(*n as usize - 1)),
        [LuaValue::Number(_), LuaValue::String(name)] => Some(LuaValue::Other(name)),
        _ => None,
    }
}

/// Writes values for Lua to unpack.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Writes onto the end of `bytes`.
    pub(crate) fn on(bytes: Vec<u8>) -> Writer {
        Writer { bytes }
    }

    /// Returns the bytes written.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn length(&mut self, n: usize) {
        match u32::try_from(n) {
            Ok(n) if n < 0xe0 => self.bytes.push(n as u8),
            Ok(n) if n < 0x1fe0 => {
                let n = n - 0xe0;
                self.bytes.push(0xe0 | (n >> 8) as u8);
                self.bytes.push(n as u8);
            }
            n => {
                self.bytes.push(0xff);
                // Lua has no strings or tables of that size; it refuses what is then cut short.
                self.bytes.extend_from_slice(&n.unwrap_or(u32::MAX).to_le_bytes());
            }
        }
    }

    pub(crate) fn nil(&mut self) {
        self.bytes.push(NIL);
    }

    pub(crate) fn bool(&mut self, b: bool) {
        self.bytes.push(if b { TRUE } else { FALSE });
    }

    pub(crate) fn null(&mut self) {
        self.bytes.push(NULL);
    }

    pub(crate) fn number(&mut self, n: f64) {
        self.bytes.push(NUMBER);
        self.bytes.extend_from_slice(&n.to_le_bytes());
    }

    pub(crate) fn string(&mut self, s: &[u8]) {
        self.length(s.len().saturating_add(STRING as usize));
        self.bytes.extend_from_slice(s);
    }

    /// Begins an array; its `n` values follow.
    pub(crate) fn array(&mut self, n: usize) {
        if n == 0 {
            self.bytes.push(TABLE);
            return;
        }
        self.bytes.push(TABLE + 4);
        self.length(n.saturating_add(1));
    }

    /// Begins a table of `n` pairs; as many times a key and its value follow. No key may come
    /// twice.
    pub(crate) fn pairs(&mut self, n: usize) {
        if n == 0 {
            self.bytes.push(TABLE);
            return;
        }
        self.bytes.push(TABLE + 1);
        self.length(n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let mut writer = Writer::default();
        writer.array(5);
        writer.string(b"a");
        writer.string(&[b'x'; 300]);
        writer.number(1.5);
        writer.pairs(1);
        writer.string(b"k");
        writer.null();
        writer.string(&[b'y'; 10_000]);
        let bytes = writer.into_bytes();
        let Some(PackedValue::Tree(LuaValue::Table(table))) = PackedValue::tree(&bytes) else {
            panic!()
        };
        assert_eq!(table.array.len(), 5);
        assert_eq!(table.at(1), Some(&LuaValue::String(b"a")));
        assert_eq!(table.at(2), Some(&LuaValue::String(&[b'x'; 300])));
        assert_eq!(table.at(3), Some(&LuaValue::Number(1.5)));
        assert_eq!(table.at(5), Some(&LuaValue::String(&[b'y'; 10_000])));
        let Some(LuaValue::Table(inner)) = table.at(4) else { panic!() };
        assert_eq!(inner.field(b"k"), Some(&LuaValue::Null));
    }

    #[test]
    fn no_bytes_are_too_strange_to_refuse() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..50_000 {
            let bytes: Vec<u8> = (0..rng.usize(0..40)).map(|_| rng.u8(..)).collect();
            let _ = PackedValue::tree(&bytes);
            let _ = PackedValue::graph(&bytes);
        }
        let deep = [TABLE + 4, 2].repeat(200);
        assert_eq!(PackedValue::tree(&deep), None);
    }
}
