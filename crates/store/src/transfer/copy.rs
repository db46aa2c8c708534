//! Copying keys from store to store, and comparing them.
//!
//! Both work on some keys at a time and can be repeated: a copy deletes what is at the target first.

use std::collections::{BTreeMap, BTreeSet};

use redis::{Pipeline, Value, cmd};

use super::{
    Argv, Checksum, KeyMaps, TransferProgress,
    checksum::KeySum,
    layout::Spelling,
    read::{KeyPiece, KeyReader},
    renamed,
    target::KeyWalk,
    write::KeyWriter,
};
use crate::{
    Error, Store,
    key_map::{MemberPlace, Place},
};

/// Keys that are read together.
pub(crate) const BATCH: usize = 256;
/// Questions about members asked together.
const WITNESSES: usize = 4_096;

/// Copies keys of one store to another.
pub(crate) struct Copier {
    pub(crate) from: Store,
    pub(crate) to: Store,
    reader: KeyReader,
    target: TargetStore,
    pub(crate) progress: TransferProgress,
    /// Source keys that can only be copied once all others are there.
    pub(crate) deferred: BTreeSet<Vec<u8>>,
    /// Streams with consumer groups, whose state changes without an event.
    pub(crate) grouped: BTreeSet<Vec<u8>>,
    /// Keys that no service knows.
    pub(crate) foreign: u64,
    /// Members of divided sets that belong nowhere.
    pub(crate) dropped: u64,
}

/// The sums of both sides over the keys that were compared.
#[derive(Debug, Clone, Default)]
pub(crate) struct Comparison {
    pub(crate) keys: u64,
    pub(crate) source: Checksum,
    pub(crate) target: Checksum,
    /// Source keys that are not the same at the target.
    pub(crate) differing: Vec<Vec<u8>>,
}

/// A key as it should be at the target.
#[derive(Debug)]
pub(crate) struct ExpectedKey {
    /// Its name at the source.
    pub(crate) key: Vec<u8>,
    /// Its names at the target.
    pub(crate) targets: Vec<Vec<u8>>,
    pub(crate) sum: KeySum,
}

impl Comparison {
    /// Tells whether nothing differs.
    pub(crate) fn is_same(&self) -> bool {
        self.differing.is_empty() && self.source == self.target
    }
}

impl Copier {
    pub(crate) async fn new(
        from: &Store,
        to: &Store,
        maps: &KeyMaps,
        progress: &TransferProgress,
    ) -> Result<Self, Error> {
        let spelling = Spelling::new(maps, from.layout(), to.layout());
        Ok(Self {
            from: from.clone(),
            to: to.clone(),
            reader: KeyReader::new(from).await?,
            target: TargetStore::new(to, spelling).await?,
            progress: progress.clone(),
            deferred: BTreeSet::new(),
            grouped: BTreeSet::new(),
            foreign: 0,
            dropped: 0,
        })
    }

    /// Reads what keys may be tagged with; to be called before each pass.
    pub(crate) async fn read_scopes(&mut self) -> Result<(), Error> {
        for (at, index) in self.target.spelling.scope_indexes() {
            let pieces = self.reader.begin(&[index.as_bytes().to_vec()]).await?;
            let mut piece = pieces.into_iter().next().flatten();
            while let Some(KeyPiece { commands, next, .. }) = piece {
                let sets =
                    commands.into_iter().filter(|argv| argv.first().is_some_and(|n| n == b"SADD"));
                self.target.spelling.add_scopes(at, sets.flat_map(|argv| argv.into_iter().skip(2)));
                piece = match next {
                    Some(next) => self.reader.go_on(index.as_bytes(), next).await?,
                    None => None,
                };
            }
        }
        Ok(())
    }

    /// Copies keys, or deletes them at the target if the source has none. With `fresh` the target is
    /// known to have none of them yet.
    pub(crate) async fn copy_keys(&mut self, keys: &[Vec<u8>], fresh: bool) -> Result<(), Error> {
        for keys in keys.chunks(BATCH) {
            let pieces = self.reader.begin(keys).await?;
            for (key, piece) in keys.iter().zip(pieces) {
                self.copy_key(key, piece, fresh).await?;
            }
            self.target.writer.flush().await?;
            self.progress.add(keys.len());
        }
        Ok(())
    }

    async fn copy_key(
        &mut self,
        key: &[u8],
        first: Option<KeyPiece>,
        fresh: bool,
    ) -> Result<(), Error> {
        let (place, is_known) = self.target.spelling.place(key);
        if place.is_deferred() {
            self.deferred.insert(key.to_vec());
            return Ok(());
        }
        self.foreign += u64::from(!is_known && fresh);
        if !fresh {
            // Also under its own name, which it kept as long as its scope was not known.
            let mut names = place.candidates(key);
            if !names.iter().any(|name| name == key) {
                names.push(key.to_vec());
            }
            self.target.writer.delete(&names).await?;
        }
        let Some(first) = first else { return Ok(()) };
        let targets = place.resolve(key, &first.commands);
        let mut piece = Some(first);
        while let Some(KeyPiece { commands, next, .. }) = piece {
            for argv in &commands {
                if argv.first().is_some_and(|name| name == b"XGROUP") {
                    self.grouped.insert(key.to_vec());
                }
                for target in &targets {
                    self.target.writer.add(&renamed(argv, target)).await?;
                }
            }
            piece = match next {
                Some(next) => self.reader.go_on(key, next).await?,
                None => None,
            };
        }
        Ok(())
    }

    /// Copies the keys that wait for others.
    pub(crate) async fn copy_deferred(&mut self) -> Result<(), Error> {
        let keys = std::mem::take(&mut self.deferred);
        let mut merged = BTreeSet::new();
        self.dropped = 0;
        for key in &keys {
            match self.target.spelling.place(key).0 {
                Place::Members(places) => self.copy_members(key, &places).await?,
                Place::Merged(target) if merged.insert(target.clone()) => {
                    self.target.writer.delete(std::slice::from_ref(&target)).await?;
                    for source in self.target.spelling.sources(&target) {
                        self.merge(&source, &target).await?;
                    }
                    self.target.writer.flush().await?;
                }
                _ => {}
            }
        }
        self.deferred = keys;
        Ok(())
    }

    async fn copy_members(&mut self, key: &[u8], places: &[MemberPlace]) -> Result<(), Error> {
        self.target.begin_members(places).await?;
        let pieces = self.reader.begin(&[key.to_vec()]).await?;
        let mut piece = pieces.into_iter().next().flatten();
        while let Some(KeyPiece { commands, next, .. }) = piece {
            for argv in &commands {
                self.dropped += self.target.add_members(places, argv).await?;
            }
            piece = match next {
                Some(next) => self.reader.go_on(key, next).await?,
                None => None,
            };
        }
        self.target.writer.flush().await
    }

    async fn merge(&mut self, source: &[u8], target: &[u8]) -> Result<(), Error> {
        let pieces = self.reader.begin(&[source.to_vec()]).await?;
        let mut piece = pieces.into_iter().next().flatten();
        while let Some(KeyPiece { commands, next, .. }) = piece {
            for argv in commands.iter().filter(|argv| argv.first().is_some_and(|n| n == b"ZADD")) {
                self.target.writer.add(&renamed(argv, target)).await?;
            }
            piece = match next {
                Some(next) => self.reader.go_on(source, next).await?,
                None => None,
            };
        }
        Ok(())
    }

    /// Compares keys of the source with what the target has for them.
    pub(crate) async fn compare_keys(
        &mut self,
        keys: &[Vec<u8>],
        result: &mut Comparison,
    ) -> Result<(), Error> {
        for keys in keys.chunks(BATCH) {
            let pieces = self.reader.begin(keys).await?;
            let (mut expected, mut gone) = (Vec::new(), Vec::new());
            for (key, piece) in keys.iter().zip(pieces) {
                let (place, _) = self.target.spelling.place(key);
                if place.is_deferred() {
                    self.deferred.insert(key.clone());
                    continue;
                }
                let Some(piece) = piece else {
                    gone.push(key.clone());
                    continue;
                };
                let targets = place.resolve(key, &piece.commands);
                let Some(sum) = sum_up(&mut self.reader, key, piece).await? else {
                    gone.push(key.clone());
                    continue;
                };
                expected.push(ExpectedKey { key: key.clone(), targets, sum });
            }
            self.target.compare(&expected, result).await?;
            result.differing.extend(self.target.find_any(&gone).await?);
            self.progress.add(keys.len());
        }
        Ok(())
    }

    /// Compares the keys that wait for others, by number of members.
    pub(crate) async fn compare_deferred(&mut self) -> Result<bool, Error> {
        let (mut sources, mut targets) = (BTreeSet::new(), BTreeSet::new());
        for key in &self.deferred {
            let (place, _) = self.target.spelling.place(key);
            match &place {
                Place::Merged(target) => sources.extend(self.target.spelling.sources(target)),
                _ => _ = sources.insert(key.clone()),
            }
            targets.extend(place.candidates(key));
        }
        let there = count_members(&self.from, &sources).await?;
        let here = count_members(&self.to, &targets).await?;
        Ok(there == here + self.dropped)
    }

    /// Deletes keys of the target that the source does not have. Returns how many.
    pub(crate) async fn purge(&mut self) -> Result<u64, Error> {
        let mut walk = KeyWalk::new(&self.to).await?;
        let mut purged = 0;
        while let Some(keys) = walk.next().await? {
            let mut pipe = Pipeline::new();
            let mut counts = Vec::new();
            for key in &keys {
                let sources = self.target.spelling.sources(key);
                counts.push(sources.len());
                sources.iter().for_each(|source| _ = pipe.add_command(exists(source)));
            }
            let mut replies = self.reader.run(&pipe).await?.into_iter();
            for (key, count) in keys.iter().zip(counts) {
                let found = replies.by_ref().take(count).filter(|reply| *reply == Value::Int(1));
                if found.count() == 0 {
                    purged += 1;
                    self.target.writer.delete(std::slice::from_ref(key)).await?;
                }
            }
            self.target.writer.flush().await?;
        }
        Ok(purged)
    }

    /// Forgets what was begun and not written, before an attempt is repeated.
    pub(crate) fn clear(&mut self) {
        self.target.writer.clear();
    }
}

/// The store that is written, with names as it spells them.
pub(crate) struct TargetStore {
    pub(crate) spelling: Spelling,
    pub(crate) writer: KeyWriter,
    reader: KeyReader,
    store: Store,
}

impl TargetStore {
    pub(crate) async fn new(store: &Store, spelling: Spelling) -> Result<Self, Error> {
        let (writer, reader) = (KeyWriter::new(store), KeyReader::new(store).await?);
        Ok(Self { spelling, writer, reader, store: store.clone() })
    }

    /// Compares keys with what they should be.
    pub(crate) async fn compare(
        &mut self,
        expected: &[ExpectedKey],
        result: &mut Comparison,
    ) -> Result<(), Error> {
        let names: Vec<Vec<u8>> =
            expected.iter().flat_map(|expected| expected.targets.iter().cloned()).collect();
        let mut sums = BTreeMap::new();
        for names in names.chunks(BATCH) {
            let pieces = self.reader.begin(names).await?;
            for (name, piece) in names.iter().zip(pieces) {
                if let Some(piece) = piece
                    && let Some(sum) = sum_up(&mut self.reader, name, piece).await?
                {
                    sums.insert(name.clone(), sum);
                }
            }
        }
        let now = self.store.now().0;
        for ExpectedKey { key, targets, sum } in expected {
            result.keys += 1;
            let found: Vec<_> = targets.iter().map(|target| sums.get(target)).collect();
            // Two clocks may differ by a little.
            let is_over = sum.expires_at.is_some_and(|at| at <= now.saturating_add(5_000));
            if found.iter().all(Option::is_none) && is_over {
                continue;
            }
            result.source += sum.value();
            let mut is_same = !found.is_empty();
            for found in &found {
                is_same &= found.is_some_and(|found| found.value() == sum.value());
            }
            match found.first() {
                Some(Some(found)) => result.target += found.value(),
                _ => is_same = false,
            }
            if !is_same {
                result.differing.push(key.clone());
            }
        }
        Ok(())
    }

    /// Source keys of which something is here.
    async fn find_any(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Error> {
        let mut found = Vec::new();
        for key in keys {
            let mut pipe = Pipeline::new();
            for candidate in self.spelling.place(key).0.candidates(key) {
                pipe.add_command(exists(&candidate));
            }
            if self.reader.run(&pipe).await?.contains(&Value::Int(1)) {
                found.push(key.clone());
            }
        }
        Ok(found)
    }

    /// Empties the sets that members are to be divided into.
    pub(crate) async fn begin_members(&mut self, places: &[MemberPlace]) -> Result<(), Error> {
        for place in places {
            self.writer.delete(std::slice::from_ref(&place.key)).await?;
        }
        self.writer.flush().await
    }

    /// Divides the members of a `ZADD` into the sets they belong to. Returns how many belong to none.
    pub(crate) async fn add_members(
        &mut self,
        places: &[MemberPlace],
        argv: &Argv,
    ) -> Result<u64, Error> {
        if argv.first().is_none_or(|name| name != b"ZADD") {
            return Ok(0);
        }
        let from = if argv.get(2).is_some_and(|word| word == b"PASTLIMITS") { 3 } else { 2 };
        let pairs = argv.get(from..).unwrap_or_default();
        let mut dropped = 0;
        for some in pairs.chunks((WITNESSES / places.len().max(1)).max(1) * 2) {
            let mut pipe = Pipeline::new();
            for pair in some.chunks_exact(2) {
                for place in places {
                    pipe.add_command(exists(&[place.witness.as_slice(), &pair[1]].concat()));
                }
            }
            let found = self.reader.run(&pipe).await?;
            for (at, pair) in some.chunks_exact(2).enumerate() {
                let answers = found.iter().skip(at * places.len());
                let mut known = places.iter().zip(answers);
                match known.find(|(_, answer)| **answer == Value::Int(1)) {
                    Some((place, _)) => {
                        let words: [&[u8]; 4] = [b"ZADD", &place.key, &pair[0], &pair[1]];
                        self.writer.add(&words.map(<[u8]>::to_vec).to_vec()).await?;
                    }
                    None => dropped += 1,
                }
            }
        }
        Ok(dropped)
    }
}

fn exists(key: &[u8]) -> redis::Cmd {
    let mut ask = cmd("EXISTS");
    ask.arg(key);
    ask
}

/// The sum over a key, of which the first piece was read; none if it was gone before the end.
async fn sum_up(
    reader: &mut KeyReader,
    key: &[u8],
    first: KeyPiece,
) -> Result<Option<KeySum>, Error> {
    let mut sum = KeySum::default();
    let mut piece = first;
    loop {
        piece.commands.iter().for_each(|argv| sum.add(argv));
        let Some(next) = piece.next else { return Ok(Some(sum)) };
        match reader.go_on(key, next).await? {
            Some(next) => piece = next,
            None => return Ok(None),
        }
    }
}

async fn count_members(store: &Store, keys: &BTreeSet<Vec<u8>>) -> Result<u64, Error> {
    let mut count = 0;
    for key in keys {
        count += cmd("ZCARD").arg(key).query_async::<u64>(&mut store.clone()).await?;
    }
    Ok(count)
}
