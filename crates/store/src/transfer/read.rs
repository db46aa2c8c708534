//! Reading keys of any store as commands that rebuild them, in pieces of bounded size.
//!
//! Many keys are read together: one pipeline for their types and deadlines, one for the first piece of
//! each. What is longer goes on piece by piece. A key that changes while it is read gives a mixture;
//! whoever copies from a store in use compares afterwards and reads it again.

use std::collections::HashSet;

use redis::{Cmd, Pipeline, Value, aio::ConnectionLike as _, cmd};

use super::{Argv, STRING_PIECE, invalid};
use crate::{Error, Store};

/// Elements of a collection that are read at a time.
const ELEMENTS: usize = 512;

/// Reads keys.
pub(crate) struct KeyReader {
    store: Store,
    /// The store knows fields of hashes that expire.
    expires_fields: bool,
}

/// One piece of a key.
#[derive(Debug, Default)]
pub(crate) struct KeyPiece {
    pub(crate) commands: Vec<Argv>,
    /// Position of the next piece; none after the last.
    pub(crate) next: Option<PiecePosition>,
    /// Fields of a hash whose deadlines were not read yet.
    fields: Vec<Vec<u8>>,
}

/// A position in a key.
#[derive(Debug)]
pub(crate) struct PiecePosition {
    part: PiecePart,
    /// The deadline of the key, in ms; -1 for none.
    expires_at: i64,
}

#[derive(Debug)]
enum PiecePart {
    String {
        at: u64,
    },
    List {
        at: u64,
    },
    Zset {
        at: u64,
    },
    /// Hashes of what was given already: a server may give an element twice.
    Hash {
        cursor: u64,
        seen: HashSet<u64>,
    },
    Set {
        cursor: u64,
        seen: HashSet<u64>,
    },
    Stream {
        after: Vec<u8>,
    },
}

/// A key and what its type is.
struct KeyHead {
    kind: KeyKind,
    expires_at: i64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyKind {
    String,
    List,
    Set,
    Zset,
    Hash,
    Stream,
}

impl KeyReader {
    pub(crate) async fn new(store: &Store) -> Result<Self, Error> {
        let mut ask = cmd("COMMAND");
        ask.arg("INFO").arg("hpexpiretime");
        let mut store = store.clone();
        let told = store.req_packed_command(&ask).await.and_then(Value::extract_error);
        // A server that does not tell of its commands knows none so new.
        let expires_fields = match told {
            Ok(Value::Array(rows)) => rows.first().is_some_and(|row| *row != Value::Nil),
            _ => false,
        };
        Ok(Self { store, expires_fields })
    }

    /// Reads the first piece of each key; none for a key that does not exist.
    pub(crate) async fn begin(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<KeyPiece>>, Error> {
        let mut pipe = Pipeline::with_capacity(keys.len() * 2);
        for key in keys {
            pipe.cmd("TYPE").arg(key);
            pipe.cmd("PEXPIRETIME").arg(key);
        }
        let replies = self.run(&pipe).await?;
        let mut heads = Vec::with_capacity(keys.len());
        for (key, pair) in keys.iter().zip(replies.chunks_exact(2)) {
            heads.push(head(key, pair)?);
        }
        let mut firsts = Vec::with_capacity(keys.len());
        let mut pipe = Pipeline::with_capacity(keys.len());
        for (key, head) in keys.iter().zip(&heads) {
            if let Some(head) = head {
                let part = PiecePart::first(head.kind);
                pipe.add_command(part.command(key));
                firsts.push(part);
            }
        }
        let mut replies = self.run(&pipe).await?.into_iter().zip(firsts);
        let mut pieces = Vec::with_capacity(keys.len());
        for (key, head) in keys.iter().zip(heads) {
            pieces.push(match head {
                None => None,
                Some(head) => match replies.next() {
                    Some((reply, part)) => self.piece(key, reply, part, head.expires_at).await?,
                    None => None,
                },
            });
        }
        let hashes = keys.iter().zip(&mut pieces);
        let hashes = hashes.filter_map(|(key, piece)| Some((key.as_slice(), piece.as_mut()?)));
        self.add_field_deadlines(hashes.collect()).await?;
        Ok(pieces)
    }

    /// Reads the next piece of a key; none if the key is gone or another now.
    pub(crate) async fn go_on(
        &mut self,
        key: &[u8],
        position: PiecePosition,
    ) -> Result<Option<KeyPiece>, Error> {
        let mut pipe = Pipeline::with_capacity(1);
        pipe.add_command(position.part.command(key));
        let reply = self.run(&pipe).await?.into_iter().next().unwrap_or(Value::Nil);
        let mut piece = self.piece(key, reply, position.part, position.expires_at).await?;
        if let Some(piece) = &mut piece {
            self.add_field_deadlines(vec![(key, piece)]).await?;
        }
        Ok(piece)
    }

    /// Makes commands of a reply.
    async fn piece(
        &mut self,
        key: &[u8],
        reply: Value,
        part: PiecePart,
        expires_at: i64,
    ) -> Result<Option<KeyPiece>, Error> {
        // The key has become another since its type was asked for.
        if matches!(reply, Value::ServerError(_)) {
            return Ok(None);
        }
        let (mut commands, mut fields) = (Vec::new(), Vec::new());
        let is_first = part.is_first();
        let next = match part {
            PiecePart::String { at } => {
                let value = bytes(reply)?;
                let is_last = value.len() < STRING_PIECE;
                let end = at + value.len() as u64;
                if is_first || !value.is_empty() {
                    let name: &[u8] = if is_first { b"SET" } else { b"APPEND" };
                    commands.push(vec![name.to_vec(), key.to_vec(), value]);
                }
                (!is_last).then_some(PiecePart::String { at: end })
            }
            PiecePart::List { at } => {
                let elements = list(reply)?;
                let (count, is_last) = (elements.len() as u64, elements.len() < ELEMENTS);
                add(&mut commands, b"RPUSH", key, elements);
                (!is_last).then_some(PiecePart::List { at: at + count })
            }
            PiecePart::Zset { at } => {
                let mut pairs = list(reply)?;
                let count = pairs.len() / 2;
                pairs.chunks_exact_mut(2).for_each(|pair| pair.reverse());
                add(&mut commands, b"ZADD", key, pairs);
                (count >= ELEMENTS).then_some(PiecePart::Zset { at: at + count as u64 })
            }
            PiecePart::Hash { mut seen, cursor } => {
                let (next, pairs) = scanned(reply)?;
                let several = next != 0 || cursor != 0;
                let pairs: Vec<Vec<u8>> = pairs
                    .chunks_exact(2)
                    .filter(|pair| !several || seen.insert(short(&pair[0])))
                    .flatten()
                    .cloned()
                    .collect();
                if self.expires_fields {
                    fields.extend(pairs.iter().step_by(2).cloned());
                }
                for some in pairs.chunks(ELEMENTS * 2) {
                    add(&mut commands, b"HSET", key, some.to_vec());
                }
                (next != 0).then_some(PiecePart::Hash { cursor: next, seen })
            }
            PiecePart::Set { mut seen, cursor } => {
                let (next, members) = scanned(reply)?;
                let several = next != 0 || cursor != 0;
                let members: Vec<Vec<u8>> = members
                    .into_iter()
                    .filter(|member| !several || seen.insert(short(member)))
                    .collect();
                for some in members.chunks(ELEMENTS) {
                    add(&mut commands, b"SADD", key, some.to_vec());
                }
                (next != 0).then_some(PiecePart::Set { cursor: next, seen })
            }
            PiecePart::Stream { .. } => {
                let entries = array(reply)?;
                let is_last = entries.len() < ELEMENTS;
                let mut after = Vec::new();
                for entry in entries {
                    let mut entry = array(entry)?.into_iter();
                    let id = bytes(entry.next().unwrap_or(Value::Nil))?;
                    let fields = list(entry.next().unwrap_or(Value::Nil))?;
                    after.clone_from(&id);
                    let mut argv = vec![b"XADD".to_vec(), key.to_vec(), id];
                    argv.extend(fields);
                    commands.push(argv);
                }
                if is_last {
                    let has_entries = !is_first || !commands.is_empty();
                    if !self.stream_state(key, has_entries, &mut commands).await? {
                        return Ok(None);
                    }
                }
                (!is_last).then_some(PiecePart::Stream { after })
            }
        };
        if next.is_none() && expires_at >= 0 {
            commands.push(vec![
                b"PEXPIREAT".to_vec(),
                key.to_vec(),
                expires_at.to_string().into_bytes(),
            ]);
        }
        // Collections without elements do not exist.
        if is_first && commands.iter().all(|argv| argv.first().is_some_and(|n| n == b"PEXPIREAT")) {
            return Ok(None);
        }
        let next = next.map(|part| PiecePosition { part, expires_at });
        Ok(Some(KeyPiece { commands, next, fields }))
    }

    /// Adds the deadlines of fields of hashes.
    async fn add_field_deadlines(
        &mut self,
        mut hashes: Vec<(&[u8], &mut KeyPiece)>,
    ) -> Result<(), Error> {
        hashes.retain(|(_, piece)| !piece.fields.is_empty());
        let mut pipe = Pipeline::new();
        for (key, piece) in &hashes {
            for some in piece.fields.chunks(ELEMENTS) {
                pipe.cmd("HPEXPIRETIME").arg(*key).arg("FIELDS").arg(some.len()).arg(some);
            }
        }
        let mut replies = self.run(&pipe).await?.into_iter();
        for (key, piece) in hashes {
            for some in std::mem::take(&mut piece.fields).chunks(ELEMENTS) {
                // A key that is gone or another now is noticed later.
                let deadlines = array(replies.next().unwrap_or(Value::Nil)).unwrap_or_default();
                for (field, deadline) in some.iter().zip(deadlines) {
                    if let Value::Int(at_ms @ 0..) = deadline {
                        let at_ms = at_ms.to_string();
                        let at_ms = at_ms.as_bytes();
                        let argv = [b"HPEXPIREAT", key, at_ms, b"FIELDS", b"1", field];
                        piece.commands.push(words(&argv));
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds what a stream has besides entries: its ids and its consumer groups. False if it is gone.
    async fn stream_state(
        &mut self,
        key: &[u8],
        has_entries: bool,
        commands: &mut Vec<Argv>,
    ) -> Result<bool, Error> {
        let mut pipe = Pipeline::new();
        pipe.cmd("XINFO").arg("STREAM").arg(key);
        pipe.cmd("XINFO").arg("GROUPS").arg(key);
        let mut replies = self.run(&pipe).await?.into_iter();
        let (Some(stream), Some(groups)) = (replies.next(), replies.next()) else {
            return Ok(false);
        };
        if matches!(stream, Value::ServerError(_)) {
            return Ok(false);
        }
        let last = named(&stream, "last-generated-id").and_then(text).unwrap_or_default();
        if !has_entries {
            let id = if last == b"0-0" { b"0-1".to_vec() } else { last.clone() };
            commands.push(words(&[b"XADD", key, b"MAXLEN", b"0", &id, b"x", b"y"]));
        }
        let added = named(&stream, "entries-added").and_then(text).unwrap_or_default();
        let deleted = named(&stream, "max-deleted-entry-id").and_then(text).unwrap_or_default();
        commands.push(words(&[
            b"XSETID",
            key,
            &last,
            b"ENTRIESADDED",
            &added,
            b"MAXDELETEDID",
            &deleted,
        ]));
        for group in array(groups)? {
            let name = named(&group, "name").and_then(text).unwrap_or_default();
            let delivered = named(&group, "last-delivered-id").and_then(text).unwrap_or_default();
            let read = named(&group, "entries-read").and_then(text);
            let read = read.unwrap_or_else(|| b"-1".to_vec());
            commands.push(words(&[
                b"XGROUP",
                b"CREATE",
                key,
                &name,
                &delivered,
                b"ENTRIESREAD",
                &read,
            ]));
            self.consumers(key, &name, commands).await?;
        }
        Ok(true)
    }

    /// Adds the consumers of a group and the entries that are pending.
    async fn consumers(
        &mut self,
        key: &[u8],
        group: &[u8],
        commands: &mut Vec<Argv>,
    ) -> Result<(), Error> {
        let mut pipe = Pipeline::new();
        pipe.cmd("XINFO").arg("CONSUMERS").arg(key).arg(group);
        let consumers = self.run(&pipe).await?.into_iter().next().unwrap_or(Value::Nil);
        for consumer in array(consumers)? {
            let name = named(&consumer, "name").and_then(text).unwrap_or_default();
            commands.push(words(&[b"XGROUP", b"CREATECONSUMER", key, group, &name]));
        }
        let mut from = b"-".to_vec();
        loop {
            let mut pipe = Pipeline::new();
            pipe.cmd("XPENDING").arg(key).arg(group).arg(&from).arg("+").arg(ELEMENTS);
            let rows = self.run(&pipe).await?.into_iter().next().unwrap_or(Value::Nil);
            let rows = array(rows)?;
            let count = rows.len();
            let rows: Vec<Vec<Vec<u8>>> = rows.into_iter().map(list).collect::<Result<_, _>>()?;
            // One whose entry was deleted cannot be made pending again, and nobody could read it.
            let mut pipe = Pipeline::new();
            for row in &rows {
                pipe.cmd("XRANGE").arg(key).arg(row.first()).arg(row.first());
            }
            let found = self.run(&pipe).await?;
            for (row, entry) in rows.iter().zip(found) {
                let [id, consumer, idle, deliveries] = row.as_slice() else { continue };
                if !array(entry)?.is_empty() {
                    commands.push(words(&[
                        b"XCLAIM",
                        key,
                        group,
                        consumer,
                        b"0",
                        id,
                        b"IDLE",
                        idle,
                        b"RETRYCOUNT",
                        deliveries,
                        b"FORCE",
                        b"JUSTID",
                    ]));
                }
            }
            match rows.last().and_then(|row| row.first()) {
                Some(last) if count >= ELEMENTS => {
                    from = b"(".iter().chain(last).copied().collect();
                }
                _ => return Ok(()),
            }
        }
    }

    /// Runs commands that may fail one by one.
    pub(crate) async fn run(&mut self, pipe: &Pipeline) -> Result<Vec<Value>, Error> {
        if pipe.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.store.req_packed_commands(pipe, 0, pipe.len()).await?)
    }
}

impl PiecePart {
    fn first(kind: KeyKind) -> Self {
        match kind {
            KeyKind::String => Self::String { at: 0 },
            KeyKind::List => Self::List { at: 0 },
            KeyKind::Zset => Self::Zset { at: 0 },
            KeyKind::Hash => Self::Hash { cursor: 0, seen: HashSet::new() },
            KeyKind::Set => Self::Set { cursor: 0, seen: HashSet::new() },
            KeyKind::Stream => Self::Stream { after: Vec::new() },
        }
    }

    fn is_first(&self) -> bool {
        match self {
            Self::String { at } | Self::List { at } | Self::Zset { at } => *at == 0,
            Self::Hash { cursor, .. } | Self::Set { cursor, .. } => *cursor == 0,
            Self::Stream { after } => after.is_empty(),
        }
    }

    /// The command that reads this piece.
    fn command(&self, key: &[u8]) -> Cmd {
        let range = |name: &str, at: u64, count: usize| {
            let mut read = cmd(name);
            read.arg(key).arg(at).arg(at + count as u64 - 1);
            read
        };
        match self {
            Self::String { at } => range("GETRANGE", *at, STRING_PIECE),
            Self::List { at } => range("LRANGE", *at, ELEMENTS),
            Self::Zset { at } => {
                let mut read = range("ZRANGE", *at, ELEMENTS);
                read.arg("WITHSCORES");
                read
            }
            Self::Hash { cursor, .. } => scan("HSCAN", key, *cursor),
            Self::Set { cursor, .. } => scan("SSCAN", key, *cursor),
            Self::Stream { after } => {
                let mut read = cmd("XRANGE");
                read.arg(key);
                if after.is_empty() {
                    read.arg("-");
                } else {
                    read.arg([b"(", after.as_slice()].concat());
                }
                read.arg("+").arg("COUNT").arg(ELEMENTS);
                read
            }
        }
    }
}

fn scan(name: &str, key: &[u8], cursor: u64) -> Cmd {
    let mut read = cmd(name);
    read.arg(key).arg(cursor).arg("COUNT").arg(ELEMENTS);
    read
}

/// The type and the deadline of a key; none if there is no such key.
fn head(key: &[u8], replies: &[Value]) -> Result<Option<KeyHead>, Error> {
    let [kind, deadline] = replies else { return Ok(None) };
    let kind = match kind {
        Value::SimpleString(kind) => kind.as_str(),
        Value::ServerError(error) => {
            return Err(invalid(format!("TYPE of a key was refused: {error}")));
        }
        _ => "none",
    };
    let kind = match kind {
        "string" => KeyKind::String,
        "list" => KeyKind::List,
        "set" => KeyKind::Set,
        "zset" => KeyKind::Zset,
        "hash" => KeyKind::Hash,
        "stream" => KeyKind::Stream,
        "none" => return Ok(None),
        other => {
            let key = String::from_utf8_lossy(key);
            return Err(invalid(format!(
                "the key {key:?} is of the type {other}, which only some servers have: it cannot be \
                 copied; remove it first"
            )));
        }
    };
    match deadline {
        // -2: it expired in between.
        Value::Int(-2) => Ok(None),
        Value::Int(expires_at) => Ok(Some(KeyHead { kind, expires_at: *expires_at })),
        _ => Err(invalid("the server does not know PEXPIRETIME: Redis 7 or later is needed")),
    }
}

fn words(words: &[&[u8]]) -> Argv {
    words.iter().map(|word| word.to_vec()).collect()
}

/// Adds a command with many elements, if there are any.
fn add(commands: &mut Vec<Argv>, name: &[u8], key: &[u8], elements: Vec<Vec<u8>>) {
    if !elements.is_empty() {
        let mut argv = vec![name.to_vec(), key.to_vec()];
        argv.extend(elements);
        commands.push(argv);
    }
}

fn short(bytes: &[u8]) -> u64 {
    use std::hash::BuildHasher as _;
    foldhash::quality::FixedState::with_seed(1).hash_one(bytes)
}

fn unreadable() -> Error {
    Error::Decode { message: "the reply has another shape than expected".to_owned() }
}

fn array(value: Value) -> Result<Vec<Value>, Error> {
    match value {
        Value::Array(items) | Value::Set(items) => Ok(items),
        Value::Nil => Ok(Vec::new()),
        Value::ServerError(error) => Err(invalid(format!("a key cannot be read: {error}"))),
        _ => Err(unreadable()),
    }
}

fn bytes(value: Value) -> Result<Vec<u8>, Error> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        Value::Int(number) => Ok(number.to_string().into_bytes()),
        Value::Nil => Ok(Vec::new()),
        _ => Err(unreadable()),
    }
}

fn list(value: Value) -> Result<Vec<Vec<u8>>, Error> {
    array(value)?.into_iter().map(bytes).collect()
}

/// A cursor and what came with it.
pub(crate) fn scanned(value: Value) -> Result<(u64, Vec<Vec<u8>>), Error> {
    let mut parts = array(value)?.into_iter();
    let cursor = bytes(parts.next().unwrap_or(Value::Nil))?;
    let cursor = std::str::from_utf8(&cursor).ok().and_then(|text| text.parse().ok());
    let items = list(parts.next().unwrap_or(Value::Nil))?;
    Ok((cursor.ok_or_else(unreadable)?, items))
}

/// A value by its name in a list of names and values.
fn named<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Array(items) => {
            let mut pairs = items.chunks_exact(2);
            pairs.find_map(|pair| (text(&pair[0])? == name.as_bytes()).then_some(&pair[1]))
        }
        Value::Map(pairs) => {
            pairs.iter().find_map(|(key, value)| (text(key)? == name.as_bytes()).then_some(value))
        }
        _ => None,
    }
}

fn text(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Nil => None,
        value => bytes(value.clone()).ok(),
    }
}
