//! What the disk may do to a store: full, failing, torn, altered, cut off from power.
//!
//! A disk in memory stands in for the real one. It knows what was only written and what was
//! synced, can fail at any operation, and can lose power.

mod combining;
mod compacting;
mod group_commit;
mod real_disk;

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Read},
    sync::{Arc, atomic::AtomicBool},
};

use engine::{CommandOutcome, Reply};
use parking_lot::Mutex;

use super::{
    Commit, Compaction, StoreInner, compact,
    disk::{Disk, DiskFile},
};
use crate::{Clock, Error, Fsync, Millis, Options};

/// A disk in memory.
#[derive(Debug, Clone, Default)]
struct Memory(Arc<Mutex<Content>>);

#[derive(Debug, Clone, Default)]
struct Content {
    files: HashMap<u64, File>,
    /// Which file a name is, now and after a power cut.
    names: BTreeMap<String, u64>,
    synced_names: BTreeMap<String, u64>,
    next: u64,
    /// Bytes of files together that fit on the disk.
    room: Option<u64>,
    /// Operations so far, and which of them fails, with what.
    operations: u64,
    failing: Option<(u64, Failure)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Failure {
    /// This operation and no other.
    Once(i32),
    /// This one and all that follow, until it is mended.
    From(i32),
}

#[derive(Debug, Clone, Default)]
struct File {
    bytes: Vec<u8>,
    synced: Vec<u8>,
    reserved: u64,
}

#[derive(Debug)]
struct MemoryFile {
    disk: Memory,
    id: u64,
}

const ENOSPC: i32 = 28;
const EIO: i32 = 5;

impl Content {
    fn operation(&mut self) -> io::Result<()> {
        self.operations += 1;
        let fails = match self.failing {
            Some((at, Failure::Once(code))) if at == self.operations => Some(code),
            Some((at, Failure::From(code))) if at <= self.operations => Some(code),
            _ => None,
        };
        fails.map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(code)))
    }

    fn used(&self) -> u64 {
        self.names
            .values()
            .filter_map(|id| self.files.get(id))
            .map(|file| (file.bytes.len() as u64).max(file.reserved))
            .sum()
    }
}

impl Memory {
    fn id(&self, name: &str) -> io::Result<u64> {
        self.0.lock().names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The disk as another process finds it after this one was killed: all that was written.
    fn after_kill(&self) -> Memory {
        let mut content = self.0.lock().clone();
        content.failing = None;
        Memory(Arc::new(Mutex::new(content)))
    }

    /// The disk after a power cut: of what was not synced, some blocks by chance.
    fn after_power_cut(&self, rng: &mut fastrand::Rng) -> Memory {
        const BLOCK: usize = 512;
        let mut content = self.0.lock().clone();
        content.failing = None;
        if rng.bool() {
            content.names = content.synced_names.clone();
        }
        for file in content.files.values_mut() {
            let mut bytes = file.synced.clone();
            for (number, block) in file.bytes.chunks(BLOCK).enumerate() {
                let at = number * BLOCK;
                if bytes.get(at..at + block.len()) != Some(block) && rng.bool() {
                    bytes.resize(bytes.len().max(at + block.len()), 0);
                    bytes[at..at + block.len()].copy_from_slice(block);
                }
            }
            file.bytes = bytes.clone();
            file.synced = bytes;
        }
        content.synced_names = content.names.clone();
        Memory(Arc::new(Mutex::new(content)))
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        let id = self.id(name).unwrap();
        self.0.lock().files[&id].bytes.clone()
    }

    fn set_bytes(&self, name: &str, bytes: Vec<u8>) {
        let id = self.id(name).unwrap();
        self.0.lock().files.get_mut(&id).unwrap().bytes = bytes;
    }

    fn fail(&self, failure: Failure) {
        let mut content = self.0.lock();
        content.failing = Some((content.operations + 1, failure));
    }

    fn mend(&self) {
        let mut content = self.0.lock();
        content.failing = None;
        content.room = None;
    }

    fn log_names(&self) -> Vec<String> {
        self.0.lock().names.keys().filter(|name| name.starts_with("log-")).cloned().collect()
    }
}

impl Disk for Memory {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut content = self.0.lock();
        content.operation()?;
        content.next += 1;
        let id = content.next;
        content.files.insert(id, File::default());
        content.names.insert(name.to_owned(), id);
        Ok(Arc::new(MemoryFile { disk: self.clone(), id }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(MemoryFile { disk: self.clone(), id: self.id(name)? }))
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn Read + Send>> {
        let id = self.id(name)?;
        Ok(Box::new(io::Cursor::new(self.0.lock().files[&id].bytes.clone())))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut content = self.0.lock();
        content.operation()?;
        let id = content.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        content.names.insert(to.to_owned(), id);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut content = self.0.lock();
        content.operation()?;
        content.names.remove(name);
        Ok(())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().names.keys().cloned().collect())
    }

    fn sync(&self) -> io::Result<()> {
        let mut content = self.0.lock();
        content.operation()?;
        content.synced_names = content.names.clone();
        Ok(())
    }

    fn shown(&self) -> String {
        "folder".to_owned()
    }

    fn holds(&self, name: &str, file: &dyn DiskFile) -> bool {
        self.0.lock().names.get(name).map(|id| (0, *id)) == file.id().ok()
    }

    fn reclaim(&self) -> io::Result<()> {
        Ok(())
    }
}

impl DiskFile for MemoryFile {
    fn id(&self) -> io::Result<(u64, u64)> {
        Ok((0, self.id))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut content = self.disk.0.lock();
        let failed = content.operation();
        let used = content.used();
        let room = content.room;
        let file = content.files.get_mut(&self.id).unwrap();
        let at = at as usize;
        let grows = (at + bytes.len()) as u64;
        let owned = (file.bytes.len() as u64).max(file.reserved);
        let full = room.is_some_and(|room| grows > owned && used + grows - owned > room);
        let result = match failed {
            Err(error) => Err(error),
            Ok(()) if full => Err(io::Error::from_raw_os_error(ENOSPC)),
            Ok(()) => Ok(()),
        };
        // A write that fails may have got half way.
        let done = if result.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        file.bytes.resize(file.bytes.len().max(at + done.len()), 0);
        file.bytes[at..at + done.len()].copy_from_slice(done);
        result
    }

    fn sync(&self) -> io::Result<()> {
        let mut content = self.disk.0.lock();
        let failed = content.operation();
        let file = content.files.get_mut(&self.id).unwrap();
        if failed.is_err() {
            // As on Linux: the pages are marked clean, and what is in them is lost.
            file.bytes.clone_from(&file.synced);
            return failed;
        }
        file.synced.clone_from(&file.bytes);
        Ok(())
    }

    fn reserve(&self, at: u64, length: u64) -> io::Result<()> {
        let mut content = self.disk.0.lock();
        content.operation()?;
        let used = content.used();
        let room = content.room;
        let file = content.files.get_mut(&self.id).unwrap();
        let owned = (file.bytes.len() as u64).max(file.reserved);
        let wanted = at + length;
        if room.is_some_and(|room| wanted > owned && used + wanted - owned > room) {
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        file.reserved = file.reserved.max(wanted);
        Ok(())
    }

    fn cut(&self, length: u64) -> io::Result<()> {
        let mut content = self.disk.0.lock();
        content.operation()?;
        let file = content.files.get_mut(&self.id).unwrap();
        file.bytes.truncate(length as usize);
        file.reserved = length;
        Ok(())
    }
}

/// A store without threads: tests say when what happens.
struct Bare {
    shared: Arc<StoreInner>,
    compaction: Compaction,
}

fn try_open(disk: &Memory, fsync: Fsync) -> Result<Bare, Error> {
    let (clock, _) = Clock::manual(Millis(1_767_225_600_000));
    let options = Options { fsync, ..Options::default() };
    let (shared, mut compaction) = StoreInner::open(Some(Arc::new(disk.clone())), &options, clock)?;
    // In parts, however little there is.
    compaction.least_part = 1;
    Ok(Bare { shared, compaction })
}

fn open(disk: &Memory) -> Bare {
    try_open(disk, Fsync::Everysec).unwrap()
}

impl Bare {
    /// Runs a command; the reply as a client would get it. With `always` the disk is synced.
    fn run(&self, line: &str) -> Reply {
        let argv: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let mut batch = self.shared.batch();
        let common = batch.common();
        let CommandOutcome::Reply(reply) = batch.execute(common, &argv) else { panic!("blocked") };
        match batch.commit() {
            Commit::Done => reply,
            Commit::Failed(error) => Reply::Error(error),
            Commit::At(lsn) => {
                self.shared.sync();
                let durable = *self.shared.durable.borrow();
                if durable.synced >= lsn {
                    reply
                } else {
                    Reply::Error(engine::Error::fixed("lost"))
                }
            }
        }
    }

    fn get(&self, key: &str) -> Option<String> {
        match self.run(&format!("GET {key}")) {
            Reply::Bulk(bytes) => Some(String::from_utf8(bytes).unwrap()),
            Reply::Nil => None,
            other => panic!("{other:?}"),
        }
    }

    fn compact(&self) -> Result<(), compact::CompactionError> {
        compact::compact(&self.shared, &self.compaction, &AtomicBool::new(false))
    }

    fn start_over(&self) -> Result<(), compact::CompactionError> {
        compact::start_over(&self.shared, &AtomicBool::new(false))
    }

    /// What the background does when there is trouble.
    fn mend(&self) {
        match self.shared.trouble() {
            None => {}
            Some(super::LogRecovery::WriteAgain) => self.shared.write_again(),
            Some(super::LogRecovery::StartOver) => drop(self.start_over()),
        }
    }
}

fn is_misconf(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(error) if error.code() == b"MISCONF")
}

#[test]
fn what_was_answered_is_there_after_a_kill() {
    for fsync in [Fsync::Always, Fsync::Everysec, Fsync::No] {
        let disk = Memory::default();
        let store = try_open(&disk, fsync).unwrap();
        for n in 0..50 {
            assert_eq!(store.run(&format!("SET k{n} v{n}")), Reply::Ok);
            store.run("INCR count");
            let after = open(&disk.after_kill());
            assert_eq!(after.get(&format!("k{n}")).as_deref(), Some(&*format!("v{n}")));
            assert_eq!(after.get("count").as_deref(), Some(&*(n + 1).to_string()));
        }
        // And once more with what the second one would write.
        let again = disk.after_kill();
        assert_eq!(open(&again).run("INCR count"), Reply::Int(51));
        assert_eq!(open(&again.after_kill()).get("count").as_deref(), Some("51"));
    }
}

#[test]
fn reading_writes_nothing() {
    let disk = Memory::default();
    let store = open(&disk);
    store.run("SET a 1");
    let before = disk.bytes("log-1.tide");
    store.run("GET a");
    store.run("GET absent");
    store.run("DEL absent");
    assert_eq!(disk.bytes("log-1.tide"), before);
}

#[test]
fn a_torn_tail_is_cut_at_every_byte_of_the_last_record() {
    let disk = Memory::default();
    let store = open(&disk);
    store.run("SET a 1");
    store.run("SET b 2");
    let whole = disk.bytes("log-1.tide").len();
    store.run("SET c a-longer-value-to-have-more-bytes-to-cut");
    let log = disk.bytes("log-1.tide");
    for end in whole..log.len() {
        let torn = disk.after_kill();
        torn.set_bytes("log-1.tide", log[..end].to_vec());
        let after = open(&torn);
        assert_eq!(after.get("a").as_deref(), Some("1"), "cut at {end}");
        assert_eq!(after.get("b").as_deref(), Some("2"), "cut at {end}");
        assert_eq!(after.get("c"), None, "cut at {end}");
        assert_eq!(torn.bytes("log-1.tide").len(), whole, "cut at {end}");
        assert_eq!(after.run("SET c 3"), Reply::Ok);
        let once_more = open(&torn.after_kill());
        assert_eq!(once_more.get("c").as_deref(), Some("3"), "cut at {end}");
    }
}

#[test]
fn garbage_behind_the_last_record_is_cut() {
    let disk = Memory::default();
    open(&disk).run("SET a 1");
    let mut rng = fastrand::Rng::with_seed(7);
    for length in 1..200 {
        let torn = disk.after_kill();
        let mut bytes = torn.bytes("log-1.tide");
        bytes.extend((0..length).map(|_| rng.u8(..)));
        torn.set_bytes("log-1.tide", bytes);
        assert_eq!(open(&torn).get("a").as_deref(), Some("1"));
    }
}

/// States a store went through, in order: after `n` commands, `k{n-1}` is the newest key.
fn newest(store: &Bare, most: usize) -> usize {
    let there: Vec<bool> = (0..most)
        .map(|n| match store.get(&format!("k{n}")) {
            Some(value) => {
                assert_eq!(value, format!("value-{n}"), "a value nobody wrote");
                true
            }
            None => false,
        })
        .collect();
    let count = there.iter().take_while(|there| **there).count();
    assert!(there.iter().skip(count).all(|there| !there), "not a prefix: {there:?}");
    count
}

#[test]
fn every_flipped_bit_is_damage_or_a_torn_tail_and_never_a_wrong_value() {
    const COMMANDS: usize = 8;
    for (closed, compacted) in [(false, false), (true, false), (false, true)] {
        let disk = Memory::default();
        let store = open(&disk);
        for n in 0..COMMANDS {
            store.run(&format!("SET k{n} value-{n}"));
        }
        if compacted {
            store.compact().unwrap();
        }
        if closed {
            store.shared.close();
        }
        drop(store);
        let names: Vec<String> = disk.names().unwrap();
        for name in &names {
            let bytes = disk.bytes(name);
            let mut refused = 0;
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let altered = disk.after_kill();
                altered.set_bytes(name, flipped);
                match try_open(&altered, Fsync::Everysec) {
                    Ok(store) => {
                        let count = newest(&store, COMMANDS);
                        assert!(count >= COMMANDS - 1, "{name} bit {bit}: {count} left");
                        assert!(!closed || count == COMMANDS, "{name} bit {bit}: synced data cut");
                    }
                    Err(Error::Damaged { file, .. }) => {
                        assert_eq!(file, format!("folder/{name}"));
                        refused += 1;
                    }
                    Err(Error::Invalid { message }) => {
                        assert!(name == "manifest", "{name} bit {bit}: {message}");
                        refused += 1;
                    }
                    Err(other) => panic!("{name} bit {bit}: {other:?}"),
                }
            }
            assert!(refused > 0, "{name}: nothing was noticed");
        }
    }
}

#[test]
fn damage_in_the_middle_is_named_with_file_and_offset() {
    let disk = Memory::default();
    let store = open(&disk);
    store.run("SET a 1");
    let offset = disk.bytes("log-1.tide").len();
    for n in 0..5 {
        store.run(&format!("SET b{n} {n}"));
    }
    let mut bytes = disk.bytes("log-1.tide");
    bytes[offset + 20] ^= 1;
    disk.set_bytes("log-1.tide", bytes);
    match try_open(&disk.after_kill(), Fsync::Everysec).map(|_| ()) {
        Err(Error::Damaged { file, offset: at, message }) => {
            assert_eq!((file.as_str(), at), ("folder/log-1.tide", offset as u64));
            assert_eq!(message, "the checksum of a record does not fit");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_log_without_its_manifest_is_not_taken_for_an_empty_store() {
    let disk = Memory::default();
    open(&disk).run("SET a 1");
    disk.0.lock().names.remove("manifest");
    let Err(Error::Damaged { message, .. }) = try_open(&disk, Fsync::Everysec).map(|_| ()) else {
        panic!("opened")
    };
    assert!(message.contains("manifest"), "{message}");
}

#[test]
fn a_full_disk_refuses_writes_before_they_change_anything_and_recovers() {
    let disk = Memory::default();
    let store = open(&disk);
    store.run("SET kept 1");
    let used = disk.0.lock().used();
    disk.0.lock().room = Some(used);
    let mut acked = 0;
    let value = "x".repeat(1_000);
    let refused = loop {
        match store.run(&format!("SET k{acked} {value}")) {
            Reply::Ok => acked += 1,
            other => break other,
        }
        assert!(acked < 100_000, "the disk never became full");
    };
    assert!(is_misconf(&refused), "{refused:?}");
    assert!(format!("{refused:?}").contains("No space left on device"), "{refused:?}");
    assert_eq!(store.get(&format!("k{acked}")), None, "a refused write changed something");
    assert_eq!(store.get("kept").as_deref(), Some("1"), "reads go on");
    assert!(is_misconf(&store.run("INCR count")));
    store.mend();
    assert!(is_misconf(&store.run("INCR count")), "still full");
    let after = open(&disk.after_kill());
    for n in 0..acked {
        assert!(after.get(&format!("k{n}")).is_some(), "k{n} was acknowledged");
    }
    disk.mend();
    store.mend();
    assert_eq!(store.run("INCR count"), Reply::Int(1));
    assert_eq!(open(&disk.after_kill()).get("count").as_deref(), Some("1"));
}

#[test]
fn one_command_too_large_for_the_disk_is_refused_alone() {
    let disk = Memory::default();
    let store = open(&disk);
    store.run("SET a 1");
    let used = disk.0.lock().used();
    disk.0.lock().room = Some(used + (1 << 20));
    let large = "x".repeat(8 << 20);
    assert!(is_misconf(&store.run(&format!("SET large {large}"))));
    assert_eq!(store.get("large"), None);
    assert_eq!(store.run("SET small 1"), Reply::Ok);
}

#[test]
fn a_write_that_fails_half_way_is_an_error_and_is_written_again() {
    for code in [ENOSPC, EIO] {
        let disk = Memory::default();
        let store = open(&disk);
        store.run("SET a 1");
        disk.fail(Failure::From(code));
        let reply = store.run("SET b 2");
        assert!(is_misconf(&reply), "{reply:?}");
        assert!(is_misconf(&store.run("SET c 3")));
        assert_eq!(store.get("a").as_deref(), Some("1"));
        assert_eq!(open(&disk.after_kill()).get("a").as_deref(), Some("1"));
        disk.mend();
        store.mend();
        assert_eq!(store.run("SET d 4"), Reply::Ok, "code {code}");
        let after = open(&disk.after_kill());
        assert_eq!(after.get("a").as_deref(), Some("1"));
        assert_eq!(after.get("c"), None);
        assert_eq!(after.get("d").as_deref(), Some("4"));
        // b was neither refused for good nor acknowledged; memory and disk agree about it.
        assert_eq!(after.get("b"), store.get("b"));
    }
}

#[test]
fn after_a_failed_fsync_the_old_file_is_not_trusted() {
    let disk = Memory::default();
    let store = open(&disk);
    store.run("SET a 1");
    store.shared.sync();
    store.run("SET b 2");
    disk.fail(Failure::Once(EIO));
    store.shared.sync();
    assert!(is_misconf(&store.run("SET c 3")), "writes are refused");
    assert_eq!(store.get("b").as_deref(), Some("2"), "reads go on");
    store.mend();
    assert_eq!(store.run("SET d 4"), Reply::Ok);
    assert_eq!(disk.log_names(), ["log-2.tide"], "a new log, the old one is gone");
    store.shared.sync();
    // The kernel had dropped b from the old file; it is in the new base.
    let mut rng = fastrand::Rng::with_seed(1);
    let after = open(&disk.after_power_cut(&mut rng));
    for (key, value) in [("a", "1"), ("b", "2"), ("d", "4")] {
        assert_eq!(after.get(key).as_deref(), Some(value), "{key}");
    }
}

#[test]
fn with_always_a_failed_fsync_is_an_error_and_not_an_acknowledgement() {
    let disk = Memory::default();
    let store = try_open(&disk, Fsync::Always).unwrap();
    assert_eq!(store.run("SET a 1"), Reply::Ok);
    // The write itself goes well.
    let operations = disk.0.lock().operations;
    disk.0.lock().failing = Some((operations + 2, Failure::From(EIO)));
    assert!(matches!(store.run("SET b 2"), Reply::Error(_)));
    assert!(is_misconf(&store.run("SET c 3")));
    assert_eq!(store.get("a").as_deref(), Some("1"));
    disk.mend();
    store.mend();
    assert_eq!(store.run("SET d 4"), Reply::Ok);
    let after = open(&disk.after_power_cut(&mut fastrand::Rng::with_seed(3)));
    assert_eq!(after.get("a").as_deref(), Some("1"));
    assert_eq!(after.get("c"), None);
    assert_eq!(after.get("d").as_deref(), Some("4"));
}

/// Runs a fixed story on a disk whose operation number `at` fails, and checks that what was
/// acknowledged survives a kill at its end. False once the story has fewer operations than that.
fn story_with_failure(at: u64, failure: Failure) -> bool {
    let disk = Memory::default();
    let store = open(&disk);
    let first = disk.0.lock().operations;
    disk.0.lock().failing = Some((first + at, failure));
    let mut acked = Vec::new();
    let mut refused = Vec::new();
    for n in 0..30 {
        match store.run(&format!("SET k{n} value-{n}")) {
            Reply::Ok => acked.push(n),
            reply => {
                assert!(is_misconf(&reply), "operation {at}: {reply:?}");
                refused.push(n);
            }
        }
        match n {
            5 | 20 => store.shared.sync(),
            10 => drop(store.compact()),
            15 => store.mend(),
            25 => {
                disk.mend();
                store.mend();
            }
            _ => {}
        }
    }
    assert_eq!(store.shared.trouble(), None, "operation {at}: did not recover");
    assert!(acked.contains(&29), "operation {at}: did not recover");
    assert!(refused.len() <= 26, "operation {at}");
    let after = open(&disk.after_kill());
    for n in acked {
        let value = after.get(&format!("k{n}"));
        assert_eq!(value, Some(format!("value-{n}")), "operation {at}, {failure:?}: k{n} is lost");
    }
    for n in 0..30 {
        let key = format!("k{n}");
        assert_eq!(after.get(&key), store.get(&key), "operation {at}: disk and memory differ");
    }
    disk.0.lock().operations >= first + at
}

#[test]
fn any_operation_of_the_disk_may_fail() {
    let kinds = [Failure::Once, Failure::From];
    for failure in kinds.into_iter().flat_map(|kind| [kind(EIO), kind(ENOSPC)]) {
        let mut at = 1;
        while story_with_failure(at, failure) {
            at += 1;
        }
        assert!(at > 40, "the story has only {at} operations");
    }
}

#[test]
fn a_power_cut_leaves_a_prefix_and_with_always_everything_acknowledged() {
    let mut rng = fastrand::Rng::with_seed(11);
    for round in 0..400 {
        let fsync = [Fsync::Always, Fsync::Everysec, Fsync::No][round % 3];
        let disk = Memory::default();
        let store = try_open(&disk, fsync).unwrap();
        let count = rng.usize(1..60);
        let mut synced = 0;
        for n in 0..count {
            assert_eq!(store.run(&format!("SET k{n} value-{n}")), Reply::Ok);
            match fsync {
                Fsync::Always => synced = n + 1,
                Fsync::Everysec if rng.u8(..) < 20 => {
                    store.shared.sync();
                    synced = n + 1;
                }
                _ => {}
            }
            if rng.u8(..) < 10 {
                store.compact().unwrap();
                // Everything before is in a base that was synced.
                synced = n + 1;
            }
        }
        let after = try_open(&disk.after_power_cut(&mut rng), fsync)
            .map_err(|error| format!("round {round}: {error}"))
            .unwrap();
        let left = newest(&after, count);
        assert!(left >= synced, "round {round}, {fsync:?}: {left} of {synced} synced are left");
        assert_eq!(after.run("SET more 1"), Reply::Ok);
    }
}

#[test]
fn compaction_keeps_the_data_and_drops_the_rest() {
    let disk = Memory::default();
    let store = open(&disk);
    for n in 0..2_000 {
        store.run(&format!("SET same {n}"));
    }
    store.run("RPUSH list a b c");
    store.run("HSET hash f 1 g 2");
    store.run("SADD set x y");
    store.run("SET gone 1");
    store.run("PEXPIREAT gone 1767225600500");
    let before = disk.bytes("log-1.tide").len();
    store.compact().unwrap();
    assert_eq!(disk.names().unwrap(), ["base-2.tide", "log-2.tide", "manifest"]);
    assert!(disk.bytes("base-2.tide").len() * 20 < before);
    store.run("INCR same");
    store.compact().unwrap();
    store.run("INCR same");
    let after = open(&disk.after_kill());
    assert_eq!(after.get("same").as_deref(), Some("2001"));
    assert_eq!(after.run("LRANGE list 0 -1"), Reply::bulks(["a", "b", "c"]));
    assert_eq!(after.run("HGET hash g"), Reply::bulk("2"));
    assert_eq!(after.run("SISMEMBER set y"), Reply::Int(1));
    assert_eq!(after.run("PTTL gone"), Reply::Int(500));
}

#[test]
fn a_replay_does_not_let_things_expire_too_early() {
    let disk = Memory::default();
    let store = open(&disk);
    // Appended to, and kept, while it was alive; long after its first deadline now.
    store.run("RPUSH k a");
    store.run("PEXPIREAT k 1767225600500");
    store.run("RPUSH k b");
    store.run("PERSIST k");
    let after = open(&disk.after_kill());
    assert_eq!(after.run("LRANGE k 0 -1"), Reply::bulks(["a", "b"]));
}

#[test]
fn records_of_any_bytes_are_read_without_a_panic() {
    let mut rng = fastrand::Rng::with_seed(0x7465_7374);
    let disk = Memory::default();
    let store = open(&disk);
    for n in 0..6 {
        store.run(&format!("SET k{n} value-{n}"));
    }
    store.compact().unwrap();
    for n in 6..12 {
        store.run(&format!("SET k{n} value-{n}"));
    }
    let names: Vec<String> = disk.names().unwrap();
    for _ in 0..4_000 {
        let altered = disk.after_kill();
        let name = &names[rng.usize(..names.len())];
        let mut bytes = altered.bytes(name);
        for _ in 0..rng.usize(1..6) {
            let at = rng.usize(..bytes.len());
            match rng.u8(..5) {
                0 => bytes[at] = rng.u8(..),
                1 => bytes.truncate(at + 1),
                2 => drop(bytes.drain(at..(at + rng.usize(..40)).min(bytes.len()))),
                3 => bytes.insert(at, rng.u8(..)),
                _ => {
                    let end = (at + rng.usize(1..64)).min(bytes.len());
                    let copy = bytes[at..end].to_vec();
                    bytes.extend(copy);
                }
            }
            if bytes.is_empty() {
                bytes.push(0);
            }
        }
        altered.set_bytes(name, bytes);
        if let Ok(store) = try_open(&altered, Fsync::Everysec) {
            newest(&store, 12);
        }
    }
}

#[test]
fn a_client_can_neither_pause_nor_end_the_sessions_of_the_process_itself() {
    #[derive(Debug)]
    struct Nobody;
    impl super::Listener for Nobody {
        fn deliver(&self, _: super::Delivery) {}
        fn close(&self, _: super::SessionId) {}
        fn synced(&self) {}
    }
    let store = open(&Memory::default());
    let mut batch = store.shared.batch();
    let client = batch.connect("127.0.0.1:5000", Arc::new(Nobody));
    for argv in [
        [&b"CLIENT"[..], b"KILL", b"TYPE", b"normal"].as_slice(),
        &[b"CLIENT", b"KILL", b"store"],
        &[b"CLIENT", b"PAUSE", b"100000", b"ALL"],
    ] {
        batch.execute(client, argv);
    }
    drop(batch.commit());
    assert_eq!(store.run("SET a 1"), Reply::Ok);
    assert_eq!(store.get("a").as_deref(), Some("1"));
    let mut batch = store.shared.batch();
    assert!(
        matches!(batch.execute(client, &[b"GET", b"a"]), CommandOutcome::Blocked { .. }),
        "paused"
    );
}
