//! What clients ask of the log: SAVE BGSAVE BGREWRITEAOF LASTSAVE WAITAOF SHUTDOWN, INFO.

use std::time::Duration;

use store::{
    Clock, Fsync, Millis, Options, Store,
    redis::{self, AsyncCommands, FromRedisValue, aio::ConnectionLike},
};

async fn ask<T: FromRedisValue>(to: &mut impl ConnectionLike, line: &str) -> redis::RedisResult<T> {
    let mut words = line.split(' ');
    let mut cmd = redis::cmd(words.next().unwrap());
    words.for_each(|word| _ = cmd.arg(word));
    cmd.query_async(to).await
}

async fn field(store: &mut Store, name: &str) -> String {
    let info: String = ask(store, "INFO persistence").await.unwrap();
    let found = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("no {name} in {info}")).to_owned()
}

async fn open(folder: &tempfile::TempDir, fsync: Fsync) -> Store {
    let options = Options { fsync, ..Options::default() };
    Store::open_with(&format!("embedded:{}", folder.path().display()), options).await.unwrap()
}

/// Waits for something that must come.
async fn until<F: Future<Output = bool>>(mut there: impl FnMut() -> F) {
    let waited = async {
        while !there().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waited).await.unwrap();
}

#[tokio::test]
async fn save_answers_when_the_snapshot_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, hands) = Clock::manual(Millis(1_767_225_600_000));
    let options = Options { clock: Some(clock), ..Options::default() };
    let url = format!("embedded:{}", folder.path().display());
    let mut store = Store::open_with(&url, options).await.unwrap();
    for n in 0..100 {
        store.set::<_, _, ()>("key", n).await.unwrap();
    }
    assert_eq!(field(&mut store, "aof_enabled").await, "1");
    assert_eq!(field(&mut store, "rdb_changes_since_last_save").await, "100");
    assert_eq!(field(&mut store, "aof_base_size").await, "0");
    let long: u64 = field(&mut store, "aof_current_size").await.parse().unwrap();
    let before: i64 = ask(&mut store, "LASTSAVE").await.unwrap();
    hands.advance(Duration::from_secs(100));
    let mut own = store.blocking().await.unwrap();
    assert_eq!(ask::<String>(&mut own, "SAVE").await.unwrap(), "OK");
    assert_eq!(ask::<i64>(&mut store, "LASTSAVE").await.unwrap(), before + 100);
    assert_eq!(field(&mut store, "rdb_changes_since_last_save").await, "0");
    assert_eq!(field(&mut store, "rdb_saves").await, "1");
    assert_ne!(field(&mut store, "aof_base_size").await, "0");
    let short: u64 = field(&mut store, "aof_current_size").await.parse().unwrap();
    assert!(short < long / 4, "{long} bytes became {short}");
    let names = std::fs::read_dir(folder.path()).unwrap();
    let names = names.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().any(|name| name.starts_with("base-")));
}

#[tokio::test]
async fn snapshots_in_the_background_are_made_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder, Fsync::Everysec).await;
    store.set::<_, _, ()>("a", 1).await.unwrap();
    let started = "Background append only file rewriting started";
    assert_eq!(ask::<String>(&mut store, "BGREWRITEAOF").await.unwrap(), started);
    let of = store.clone();
    until(|| async { field(&mut of.clone(), "aof_rewrite_in_progress").await == "0" }).await;
    assert_eq!(field(&mut store, "aof_rewrites").await, "1");
    assert_eq!(field(&mut store, "aof_last_bgrewrite_status").await, "ok");
    assert_eq!(ask::<String>(&mut store, "BGSAVE").await.unwrap(), "Background saving started");
    until(|| async { field(&mut of.clone(), "rdb_bgsave_in_progress").await == "0" }).await;
    assert_eq!(field(&mut store, "rdb_saves").await, "2");
    drop((store, of));
    let mut store = open(&folder, Fsync::Everysec).await;
    assert_eq!(store.get::<_, i64>("a").await.unwrap(), 1);
}

#[tokio::test]
async fn in_memory_there_is_nothing_to_save_to() {
    let mut store = Store::open("embedded:").await.unwrap();
    let mut own = store.blocking().await.unwrap();
    for line in ["SAVE", "BGSAVE", "BGSAVE SCHEDULE", "BGREWRITEAOF", "SHUTDOWN SAVE"] {
        let error = ask::<redis::Value>(&mut own, line).await.unwrap_err().to_string();
        assert!(error.contains("kept in memory only"), "{line}: {error}");
    }
    let error = ask::<redis::Value>(&mut own, "WAITAOF 1 0 10").await.unwrap_err().to_string();
    assert!(error.contains("appendonly is disabled"), "{error}");
    assert_eq!(ask::<(i64, i64)>(&mut own, "WAITAOF 0 0 10").await.unwrap(), (0, 0));
    assert_eq!(field(&mut store, "aof_enabled").await, "0");
    assert!(ask::<i64>(&mut store, "LASTSAVE").await.unwrap() > 0);
}

#[tokio::test]
async fn waitaof_waits_for_the_disk() {
    for fsync in [Fsync::Everysec, Fsync::Always] {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(&folder, fsync).await;
        let mut own = store.blocking().await.unwrap();
        for n in 0..20 {
            store.set::<_, _, ()>("a", n).await.unwrap();
            let told: (i64, i64) = ask(&mut own, "WAITAOF 1 0 20000").await.unwrap();
            assert_eq!(told, (1, 0), "{fsync:?}");
        }
        // Replicas never come; the disk has it by then.
        store.set::<_, _, ()>("a", "last").await.unwrap();
        assert_eq!(ask::<(i64, i64)>(&mut own, "WAITAOF 1 1 3000").await.unwrap(), (1, 0));
    }
}

#[tokio::test]
async fn where_nothing_is_synced_waitaof_says_so_until_that_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder, Fsync::No).await;
    let mut own = store.blocking().await.unwrap();
    let shown: (String, String) = ask(&mut store, "CONFIG GET appendfsync").await.unwrap();
    assert_eq!(shown.1, "no");
    store.set::<_, _, ()>("a", 1).await.unwrap();
    assert_eq!(ask::<(i64, i64)>(&mut own, "WAITAOF 1 0 50").await.unwrap(), (0, 0));
    ask::<()>(&mut store, "CONFIG SET appendfsync always").await.unwrap();
    store.set::<_, _, ()>("a", 2).await.unwrap();
    assert_eq!(ask::<(i64, i64)>(&mut own, "WAITAOF 1 0 20000").await.unwrap(), (1, 0));
}

#[tokio::test]
async fn shutdown_asks_whoever_owns_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder, Fsync::Everysec).await;
    store.set::<_, _, ()>("a", 1).await.unwrap();
    let asked = store.embedded().unwrap().clone();
    let mut own = store.blocking().await.unwrap();
    let waits = tokio::spawn(async move { asked.asked_to_end().await });
    // Nothing answers it.
    let _ = ask::<redis::Value>(&mut own, "SHUTDOWN SAVE").await;
    tokio::time::timeout(Duration::from_secs(60), waits).await.unwrap().unwrap();
    assert_eq!(field(&mut store, "rdb_saves").await, "1", "saved before the end");
}

/// Memory of this process in bytes, by its name in `/proc/self/status`.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[tokio::test]
async fn compacting_takes_half_of_the_memory_of_the_data_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder, Fsync::No).await;
    let before = memory("VmRSS");
    let text = "x".repeat(2_000);
    // Strings and collections, some of them large.
    for thousand in 0..30 {
        let mut pipe = redis::pipe();
        for n in 0..1_000 {
            match n % 4 {
                0 => pipe.rpush(format!("list:{}", thousand % 6), &text).ignore(),
                1 => pipe.hset(format!("hash:{}", thousand % 10), thousand * 1_000 + n, &text),
                _ => pipe.set(format!("key:{thousand}:{n}"), &text).ignore(),
            };
        }
        pipe.query_async::<()>(&mut store).await.unwrap();
    }
    let filled = memory("VmRSS");
    let data = filled - before;
    assert!(data > 50 << 20, "{data}");
    // The peak counts from here on.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let mut own = store.blocking().await.unwrap();
    assert_eq!(ask::<String>(&mut own, "SAVE").await.unwrap(), "OK");
    let more = memory("VmHWM").saturating_sub(filled);
    assert!(more <= data / 2, "{} MiB of data, {} MiB on top", data >> 20, more >> 20);
    assert_eq!(store.llen::<_, u64>("list:0").await.unwrap(), 1_250);
}
