//! The keyspace as effects that rebuild it, a bounded number of keys at a time; functions first.
//!
//! A cursor goes through every database. As long as nothing is written in between, the steps
//! together hold every key once; keys may expire meanwhile.

use std::ops::ControlFlow;

use super::parts::Part;
use crate::Engine;
use crate::db::{KeyEntry, NEVER};
use crate::pack::Scratch;
use crate::t_list::ListEnd;
use crate::value::Value;

/// Elements of a collection that one effect adds at most.
const ELEMENTS: usize = 512;

/// Position at which a snapshot goes on.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotCursor {
    db: usize,
    place: u64,
}

/// The result of one step of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotStep {
    /// Position of the next step; none after the last.
    pub next: Option<SnapshotCursor>,
    /// Number of keys in this step.
    pub keys: usize,
}

impl Engine {
    /// Adds the effects that rebuild about `count` keys from `cursor` on to `out`.
    pub fn snapshot(
        &self,
        cursor: SnapshotCursor,
        count: usize,
        out: &mut Vec<u8>,
    ) -> SnapshotStep {
        self.snapshot_narrowed(
            cursor,
            count,
            None,
            &mut Out { bytes: out, most: usize::MAX, take: &mut |_| () },
        )
    }

    /// As [`Engine::snapshot`], of the keys of one part. Whenever `most` bytes are in `out` and
    /// more are to come, `take` is called to take them out, so that a large value need not be there
    /// twice.
    pub fn snapshot_part(
        &self,
        cursor: SnapshotCursor,
        count: usize,
        part: Part<'_>,
        out: &mut Vec<u8>,
        most: usize,
        take: &mut dyn FnMut(&mut Vec<u8>),
    ) -> SnapshotStep {
        self.snapshot_narrowed(cursor, count, Some(part), &mut Out { bytes: out, most, take })
    }

    fn snapshot_narrowed(
        &self,
        cursor: SnapshotCursor,
        count: usize,
        part: Option<Part<'_>>,
        out: &mut Out<'_>,
    ) -> SnapshotStep {
        if cursor == SnapshotCursor::default() && part.is_none_or(|part| part.is_first()) {
            for code in self.core.scripts.functions.codes() {
                let mut effect = Effect::new(out, 0);
                let words: [&[u8]; 4] = [b"FUNCTION", b"LOAD", b"REPLACE", code];
                words.into_iter().for_each(|word| effect.arg(word));
            }
        }
        self.walk(cursor, count, |db, entry| {
            if part.is_none_or(|part| part.holds(&entry.key)) {
                rebuild(db, entry, out);
            }
        })
    }

    /// Shows about `count` keys from `cursor` on.
    pub(super) fn walk(
        &self,
        cursor: SnapshotCursor,
        count: usize,
        mut show: impl FnMut(usize, &KeyEntry),
    ) -> SnapshotStep {
        let mut keys = 0;
        let SnapshotCursor { mut db, mut place } = cursor;
        while let Some(found) = self.core.dbs.get(db) {
            if !found.keys.is_empty() {
                place = found.keys.scan(place, count, |entry| {
                    show(db, entry);
                    keys += 1;
                });
                if place != 0 {
                    return SnapshotStep { next: Some(SnapshotCursor { db, place }), keys };
                }
            }
            db += 1;
            place = 0;
            if keys >= count && db < self.core.dbs.len() {
                return SnapshotStep { next: Some(SnapshotCursor { db, place }), keys };
            }
        }
        SnapshotStep { next: None, keys }
    }
}

/// Output buffer for effects.
struct Out<'a> {
    bytes: &'a mut Vec<u8>,
    /// With so many bytes there, they are taken out before the next effect.
    most: usize,
    take: &'a mut dyn FnMut(&mut Vec<u8>),
}

/// Adds the effects that make one key.
fn rebuild(db: usize, entry: &KeyEntry, out: &mut Out<'_>) {
    let key = &*entry.key;
    let mut scratch: Scratch = [0; 36];
    match &entry.value {
        Value::Str(string) => {
            let mut effect = Effect::new(out, db);
            effect.arg(b"SET");
            effect.arg(key);
            string.with_bytes(|bytes| effect.arg(bytes));
        }
        Value::Hash(hash) => {
            let mut effects = Chunks::new(out, db, b"HSET", key);
            for (field, value) in hash.iter() {
                effects.next();
                effects.arg(field.bytes(&mut scratch));
                effects.arg(value.bytes(&mut scratch));
            }
            let expiring: Vec<(i64, &[u8])> = hash.expiring().collect();
            for same in expiring.chunk_by(|(one, _), (other, _)| one == other) {
                for fields in same.chunks(ELEMENTS) {
                    expire_fields(db, key, fields, out);
                }
            }
        }
        Value::List(list) => {
            let mut effects = Chunks::new(out, db, b"RPUSH", key);
            list.walk(0, ListEnd::Right, |element, _| {
                effects.next();
                effects.arg(element.bytes(&mut scratch));
                ControlFlow::Continue(())
            });
        }
        Value::Set(set) => {
            let mut effects = Chunks::new(out, db, b"SADD", key);
            for member in set.iter() {
                effects.next();
                effects.arg(member.bytes(&mut scratch));
            }
        }
        Value::Zset(zset) => {
            let mut effects = Chunks::new(out, db, b"ZADD", key);
            // Only past the limits of a listpack do negative zeros stay what they are; the members
            // that made it so may be gone, or come later.
            if zset.iter().any(|(_, score)| score == 0.0 && score.is_sign_negative()) {
                effects.option = Some(crate::t_zset::PAST_LIMITS.as_bytes());
            }
            for (member, score) in zset.iter() {
                effects.next();
                effects.score(score);
                effects.arg(member.bytes(&mut scratch));
            }
        }
        Value::Stream(stream) => stream.rebuild(key, |argv| {
            let mut effect = Effect::new(out, db);
            argv.iter().for_each(|argument| effect.arg(argument));
        }),
    }
    if entry.expires_at != NEVER {
        let mut effect = Effect::new(out, db);
        effect.arg(b"PEXPIREAT");
        effect.arg(key);
        effect.arg(itoa::Buffer::new().format(entry.expires_at).as_bytes());
    }
}

/// Adds the effect that gives fields their deadline, which is the same for all.
fn expire_fields(db: usize, key: &[u8], fields: &[(i64, &[u8])], out: &mut Out<'_>) {
    let Some((at_ms, _)) = fields.first() else { return };
    let mut effect = Effect::new(out, db);
    effect.arg(b"HPEXPIREAT");
    effect.arg(key);
    effect.arg(itoa::Buffer::new().format(*at_ms).as_bytes());
    effect.arg(b"FIELDS");
    effect.arg(itoa::Buffer::new().format(fields.len()).as_bytes());
    fields.iter().for_each(|(_, name)| effect.arg(name));
}

/// One effect under way; see `effect.rs` for the form.
struct Effect<'a> {
    out: &'a mut Vec<u8>,
    /// Offset of its number of arguments.
    count_at: usize,
    count: u32,
}

impl<'a> Effect<'a> {
    fn new(out: &'a mut Out<'_>, db: usize) -> Self {
        if out.bytes.len() >= out.most {
            (out.take)(out.bytes);
        }
        let out = &mut *out.bytes;
        out.extend_from_slice(&word(db));
        let count_at = out.len();
        out.extend_from_slice(&[0; 4]);
        Effect { out, count_at, count: 0 }
    }

    fn arg(&mut self, bytes: &[u8]) {
        self.count += 1;
        self.out.extend_from_slice(&word(bytes.len()));
        self.out.extend_from_slice(bytes);
        if let Some(place) = self.out.get_mut(self.count_at..self.count_at + 4) {
            place.copy_from_slice(&self.count.to_le_bytes());
        }
    }
}

/// As many effects of one command on one key as its elements need.
struct Chunks<'a, 'o> {
    out: &'a mut Out<'o>,
    db: usize,
    command: &'static [u8],
    key: &'a [u8],
    /// Stands between the key and the elements.
    option: Option<&'static [u8]>,
    count_at: usize,
    count: u32,
    elements: usize,
}

impl<'a, 'o> Chunks<'a, 'o> {
    fn new(out: &'a mut Out<'o>, db: usize, command: &'static [u8], key: &'a [u8]) -> Self {
        Chunks { out, db, command, key, option: None, count_at: 0, count: 0, elements: ELEMENTS }
    }

    /// The next element begins.
    fn next(&mut self) {
        if self.elements >= ELEMENTS {
            let mut effect = Effect::new(self.out, self.db);
            effect.arg(self.command);
            effect.arg(self.key);
            self.option.into_iter().for_each(|option| effect.arg(option));
            (self.count_at, self.count) = (effect.count_at, effect.count);
            self.elements = 0;
        }
        self.elements += 1;
    }

    fn arg(&mut self, bytes: &[u8]) {
        let mut effect = Effect { out: self.out.bytes, count_at: self.count_at, count: self.count };
        effect.arg(bytes);
        self.count = effect.count;
    }

    /// A score, with all its digits.
    fn score(&mut self, score: f64) {
        // Most scores are whole numbers, and those are far quicker to write and to read.
        let whole = score as i64;
        if whole as f64 == score
            && whole.unsigned_abs() < 1 << 53
            && (whole != 0 || score.is_sign_positive())
        {
            self.arg(itoa::Buffer::new().format(whole).as_bytes());
        } else {
            self.arg(&crate::format_double(score));
        }
    }
}

/// Adds one effect, in the form in which [`super::EffectReader`] reads it.
pub fn append_effect(out: &mut Vec<u8>, db: usize, argv: &[impl AsRef<[u8]>]) {
    out.extend_from_slice(&word(db));
    out.extend_from_slice(&word(argv.len()));
    for argument in argv {
        out.extend_from_slice(&word(argument.as_ref().len()));
        out.extend_from_slice(argument.as_ref());
    }
}

fn word(n: usize) -> [u8; 4] {
    // Strings are bounded far below 4 GiB by `proto-max-bulk-len`.
    u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes()
}
