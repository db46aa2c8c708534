//! Backup, restore and move: what comes out is what went in, and what is interrupted or damaged does
//! no harm. These tests use several stores each, so they are not written for one.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use store::{
    Layout, Store,
    key_map::{KeyMap, KeyMaps, MemberPlace, Place},
    redis::{self, Value, aio::ConnectionLike as _},
    transfer::{
        self, BackupSource, MoveOptions, MoveReport, ServerHold, TransferProgress, WriteHold,
    },
};
use testkit::{Cluster, RedisServer, content};

async fn open(url: &str) -> Store {
    Store::open_with(url, transfer::options()).await.unwrap()
}

async fn run(store: &Store, line: &str) -> Value {
    let words: Vec<&str> = line.split(' ').collect();
    let mut cmd = redis::Cmd::new();
    words.iter().for_each(|word| _ = cmd.arg(*word));
    store.clone().req_packed_command(&cmd).await.and_then(Value::extract_error).unwrap()
}

/// Every type, at sizes below and above what is read at a time; `many` small keys beside them.
async fn fill(store: &Store, many: usize) {
    let far = 4_000_000_000_123_i64;
    let mut pipe = redis::pipe();
    for n in 0..many {
        let key = format!("small:{n}");
        match n % 5 {
            0 => pipe.cmd("SET").arg(key).arg(n).arg("PXAT").arg(far + n as i64),
            1 => pipe.cmd("HSET").arg(key).arg("a").arg(n).arg(&[0xffu8, 0x00][..]).arg("b"),
            2 => pipe.cmd("RPUSH").arg(key).arg(&["x", "y", "x"]),
            3 => pipe.cmd("SADD").arg(key).arg(&[1, 2, 3]),
            _ => pipe.cmd("ZADD").arg(key).arg(0.1).arg("m").arg(n).arg("n"),
        };
        if pipe.len() >= 1_000 {
            pipe.query_async::<()>(&mut store.clone()).await.unwrap();
            pipe = redis::pipe();
        }
    }
    for n in 0..3_000u32 {
        pipe.cmd("HSET").arg("big:hash").arg(n).arg(n * 2);
        pipe.cmd("SADD").arg("big:set").arg(format!("member {n}"));
        pipe.cmd("ZADD").arg("big:zset").arg(f64::from(n) / 3.0).arg(n);
        pipe.cmd("RPUSH").arg("big:list").arg(n);
        pipe.cmd("XADD").arg("big:stream").arg(format!("{}-1", n + 1)).arg("n").arg(n);
    }
    pipe.cmd("SET").arg("big:string").arg(vec![7u8; 200_000]);
    pipe.cmd("SET").arg(b"\x00\xff\r\n key").arg(b"\x00\xfe");
    pipe.cmd("SET").arg("empty").arg("");
    pipe.cmd("ZADD").arg("infinite").arg("inf").arg("a").arg("-inf").arg("b");
    pipe.query_async::<()>(&mut store.clone()).await.unwrap();
    for line in [
        "XTRIM big:stream MAXLEN 2000",
        "XDEL big:stream 2500-1",
        "XGROUP CREATE big:stream group 1500-1",
        "XGROUP CREATECONSUMER big:stream group idle",
        "XREADGROUP GROUP group busy COUNT 5 STREAMS big:stream >",
        "XADD emptied 5-5 a b",
        "XTRIM emptied MAXLEN 0",
        "PEXPIREAT big:hash 4000000000999",
        "PFADD hyperloglog a b c",
        "SETBIT bits 70000 1",
    ] {
        run(store, line).await;
    }
}

async fn restore(file: &Path, store: &Store, maps: &KeyMaps) -> Result<u64, store::Error> {
    let progress = TransferProgress::default();
    transfer::restore(file, store, maps, &progress).await.map(|report| report.keys_now)
}

async fn back_up(store: &Store, file: &Path) -> transfer::BackupReport {
    let source =
        BackupSource::Store { store: store.clone(), shown: "test".into(), pause_writes: true };
    transfer::back_up(source, file, &TransferProgress::default()).await.unwrap()
}

async fn move_all(
    from: &Store,
    to: &Store,
    maps: &KeyMaps,
    hold: Option<&dyn WriteHold>,
) -> Result<MoveReport, store::Error> {
    let options = MoveOptions {
        source: "test",
        hold,
        maps,
        progress: &TransferProgress::default(),
        on_step: &|_| {},
    };
    transfer::move_store(from, to, options).await
}

#[tokio::test]
async fn a_folder_in_use_is_backed_up_as_of_one_moment_and_restored() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let store = open(&format!("embedded:{}", data.display())).await;
    fill(&store, 2_000).await;
    let before = content(&store).await;

    // A writer that changes two keys together goes on all the time.
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (store, stop) = (store.clone(), Arc::clone(&stop));
        async move {
            let mut n = 0u64;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                let mut pipe = redis::pipe();
                pipe.atomic().set("pair:a", n).set("pair:b", n);
                pipe.query_async::<()>(&mut store.clone()).await.unwrap();
            }
            n
        }
    });
    for round in 0..5 {
        let file = folder.path().join(format!("backup-{round}"));
        let source = BackupSource::Folder(data.clone());
        let made = transfer::back_up(source, &file, &TransferProgress::default()).await.unwrap();
        assert!(made.consistent);
        let checked = transfer::check_file(&file).unwrap();
        assert_eq!((checked.keys, checked.bytes), (made.keys, made.bytes));
        assert_eq!(checked.bytes, std::fs::metadata(&file).unwrap().len());
        let restored = open("embedded:").await;
        restore(&file, &restored, &KeyMaps::default()).await.unwrap();
        let mut after = content(&restored).await;
        assert_eq!(after.remove(&b"pair:a"[..]), after.remove(&b"pair:b"[..]), "round {round}");
        assert_eq!(after, before);
    }
    stop.store(true, Ordering::Relaxed);
    assert!(writer.await.unwrap() > 0);
}

#[tokio::test]
async fn a_damaged_cut_or_newer_file_is_refused_and_nothing_changes() {
    let folder = tempfile::tempdir().unwrap();
    let source = open("embedded:").await;
    fill(&source, 50).await;
    let file = folder.path().join("backup");
    back_up(&source, &file).await;
    let bytes = std::fs::read(&file).unwrap();
    let bad = folder.path().join("bad");
    let refuse = async |bytes: &[u8], what: &str| {
        std::fs::write(&bad, bytes).unwrap();
        let target = open("embedded:").await;
        let error = restore(&bad, &target, &KeyMaps::default()).await.unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
        assert!(transfer::check_file(&bad).is_err());
        assert_eq!(content(&target).await.len(), 0, "{error}");
    };
    for at in (0..bytes.len()).step_by(bytes.len() / 60 + 1) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        refuse(&flipped, if at < 8 { "not a backup" } else { "" }).await;
        refuse(&bytes[..at], "").await;
    }
    refuse(&bytes[..bytes.len() - 1], "cut off").await;
    refuse(&[&bytes[..], b"x"].concat(), "after its end").await;
    let mut newer = bytes.clone();
    newer[8] = 2;
    refuse(&newer, "newer version").await;
    refuse(b"", "not a backup").await;
    // A file that exists is not overwritten.
    let again = BackupSource::Store { store: source, shown: "test".into(), pause_writes: false };
    let error = transfer::back_up(again, &file, &TransferProgress::default()).await.unwrap_err();
    assert!(error.to_string().contains("exists"), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), bytes);
}

#[tokio::test]
async fn a_store_that_is_not_empty_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let source = open("embedded:").await;
    fill(&source, 10).await;
    let file = folder.path().join("backup");
    back_up(&source, &file).await;
    let target = open("embedded:").await;
    run(&target, "SET mine 1").await;
    let error = restore(&file, &target, &KeyMaps::default()).await.unwrap_err().to_string();
    assert!(error.contains("not empty: it has 1 key"), "{error}");
    let error =
        move_all(&source, &target, &KeyMaps::default(), None).await.unwrap_err().to_string();
    assert!(error.contains("not empty"), "{error}");
    assert_eq!(content(&target).await.len(), 1);
}

#[tokio::test]
async fn there_and_back_by_redis_and_valkey_everything_is_the_same() {
    let source = open("embedded:").await;
    fill(&source, 3_000).await;
    let before = content(&source).await;
    for server in [RedisServer::start(), RedisServer::start_valkey()] {
        let server = open(&server.url()).await;
        let moved = move_all(&source, &server, &KeyMaps::default(), None).await.unwrap();
        assert_eq!(moved.keys, before.len() as u64);
        assert_eq!(content(&server).await, before);
        let back = open("embedded:").await;
        move_all(&server, &back, &KeyMaps::default(), None).await.unwrap();
        assert_eq!(content(&back).await, before);
        // The same by a file, for which the server holds writes.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("backup");
        let made = back_up(&server, &file).await;
        assert!(made.consistent && made.paused.is_some());
        let restored = open("embedded:").await;
        assert_eq!(
            restore(&file, &restored, &KeyMaps::default()).await.unwrap(),
            before.len() as u64
        );
        assert_eq!(content(&restored).await, before);
        run(&server, "SET after 1").await;
    }
}

#[tokio::test]
async fn there_and_back_by_sentinel_everything_is_the_same() {
    let source = open("embedded:").await;
    fill(&source, 1_000).await;
    let before = content(&source).await;
    let sentinel = testkit::Sentinel::start();
    let server = open(&sentinel.url()).await;
    let moved = move_all(&source, &server, &KeyMaps::default(), None).await.unwrap();
    assert_eq!(moved.keys, before.len() as u64);
    assert_eq!(content(&server).await, before);
    let back = open("embedded:").await;
    move_all(&server, &back, &KeyMaps::default(), None).await.unwrap();
    assert_eq!(content(&back).await, before);
}

/// Keys `one:SCOPE:…`, records `record:ID` that name their scope in a field, and one set of all.
#[derive(Debug)]
struct TestKeyMap;

impl KeyMap for TestKeyMap {
    fn place(&self, key: &[u8], to: Layout, scopes: &[Vec<u8>]) -> Option<Place> {
        let key = std::str::from_utf8(key).ok()?;
        let scopes: Vec<&str> = scopes.iter().map(|s| std::str::from_utf8(s).unwrap()).collect();
        let key_for = |text: String| Place::Key(text.into());
        if key == "scopes" {
            return Some(key_for(key.into()));
        }
        match to {
            Layout::Cluster => {
                if key == "seen" {
                    let place = |scope: &&str| MemberPlace {
                        witness: format!("record:{{{scope}}}:").into(),
                        key: format!("seen:{{{scope}}}").into(),
                    };
                    return Some(Place::Members(scopes.iter().map(place).collect()));
                }
                if let Some(id) = key.strip_prefix("record:") {
                    let keys = scopes
                        .iter()
                        .map(|scope| ((*scope).into(), format!("record:{{{scope}}}:{id}").into()));
                    return Some(Place::Field { field: "scope", keys: keys.collect() });
                }
                let (scope, rest) = key.strip_prefix("one:")?.split_once(':')?;
                Some(key_for(format!("one:{{{scope}}}:{rest}")))
            }
            Layout::Standalone => {
                if key.starts_with("seen:{") {
                    return Some(Place::Merged("seen".into()));
                }
                let (start, rest) = key.split_once('{')?;
                let (scope, rest) = rest.split_once("}:")?;
                match start {
                    "record:" => Some(key_for(format!("record:{rest}"))),
                    "one:" => Some(key_for(format!("one:{scope}:{rest}"))),
                    _ => None,
                }
            }
        }
    }

    fn scope_index(&self) -> Option<&'static str> {
        Some("scopes")
    }
}

async fn fill_scopes(store: &Store) {
    let mut pipe = redis::pipe();
    for scope in ["red", "blue"] {
        pipe.cmd("SADD").arg("scopes").arg(scope);
        for n in 0..700 {
            let id = format!("{scope}{n}");
            pipe.cmd("HSET").arg(format!("record:{id}")).arg("scope").arg(scope).arg("n").arg(n);
            pipe.cmd("ZADD").arg("seen").arg(n).arg(&id);
            pipe.cmd("SET").arg(format!("one:{scope}:{n}")).arg(n);
        }
    }
    pipe.cmd("HSET").arg("record:lost").arg("scope").arg("green");
    pipe.query_async::<()>(&mut store.clone()).await.unwrap();
}

#[tokio::test]
async fn keys_of_other_programs_are_counted_also_within_one_layout() {
    let maps = KeyMaps(vec![Arc::new(TestKeyMap)]);
    let source = open("embedded:").await;
    fill_scopes(&source).await;
    let own = content(&source).await.len() as u64;
    let (first, second) = (open("embedded:").await, open("embedded:").await);
    assert_eq!(move_all(&source, &first, &maps, None).await.unwrap().foreign, 0);
    run(&source, "SET other:program 1").await;
    run(&source, "SADD someone:else 1 2").await;
    let moved = move_all(&source, &second, &maps, None).await.unwrap();
    assert_eq!((moved.foreign, moved.keys), (2, own + 2));
    assert_eq!(content(&second).await, content(&source).await);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup");
    back_up(&source, &file).await;
    let target = open("embedded:").await;
    let restored = transfer::restore(&file, &target, &maps, &TransferProgress::default()).await;
    assert_eq!(restored.unwrap().foreign, 2);
}

#[tokio::test]
async fn there_and_back_by_a_cluster_keys_are_spelled_as_each_layout_wants() {
    let cluster = Cluster::start();
    let maps = KeyMaps(vec![Arc::new(TestKeyMap)]);
    let source = open("embedded:").await;
    fill(&source, 1_000).await;
    fill_scopes(&source).await;
    let before = content(&source).await;
    let there = open(&cluster.url()).await;
    let moved = move_all(&source, &there, &maps, None).await.unwrap();
    assert_eq!(moved.dropped, 0);
    let tagged = content(&there).await;
    for key in
        ["record:{red}:red5", "record:{blue}:blue5", "seen:{red}", "one:{blue}:3", "record:lost"]
    {
        assert!(tagged.contains_key(key.as_bytes()), "{key}");
    }
    assert!(!tagged.contains_key(&b"seen"[..]) && !tagged.contains_key(&b"record:red5"[..]));

    let back = open("embedded:").await;
    move_all(&there, &back, &maps, None).await.unwrap();
    assert_eq!(content(&back).await, before);

    // A backup of one layout is restored into the other, both ways.
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (folder.path().join("standalone"), folder.path().join("cluster"));
    back_up(&source, &one).await;
    back_up(&there, &other).await;
    let restored = open("embedded:").await;
    restore(&other, &restored, &maps).await.unwrap();
    assert_eq!(content(&restored).await, before);
    there.on_every_node(&redis::cmd("FLUSHALL")).await.unwrap();
    restore(&one, &there, &maps).await.unwrap();
    assert_eq!(content(&there).await, tagged);
}

#[tokio::test]
async fn an_interrupted_copy_is_marked_continued_and_purged_of_what_is_gone() {
    let server = RedisServer::start();
    let (source, target) = (open("embedded:").await, open(&server.url()).await);
    fill(&source, 4_000).await;
    for round in 0..6 {
        let maps = KeyMaps::default();
        let copying = move_all(&source, &target, &maps, None);
        // Dropped in the middle, as by the end of the process.
        let cut = std::time::Duration::from_millis(15 + round * 40);
        if tokio::time::timeout(cut, copying).await.is_ok() {
            break;
        }
        let from = transfer::unfinished(&target).await.unwrap();
        if from.is_some() {
            assert_eq!(from.as_deref(), Some("test"));
        }
        run(&source, &format!("DEL small:{round}")).await;
        run(&source, &format!("RPUSH big:list {round}")).await;
    }
    let before = content(&source).await;
    let other = MoveOptions {
        source: "another",
        hold: None,
        maps: &KeyMaps::default(),
        progress: &TransferProgress::default(),
        on_step: &|_| {},
    };
    if transfer::unfinished(&target).await.unwrap().is_some() {
        let error = transfer::move_store(&source, &target, other).await.unwrap_err().to_string();
        assert!(error.contains("unfinished copy of test"), "{error}");
        move_all(&source, &target, &KeyMaps::default(), None).await.unwrap();
    }
    assert_eq!(transfer::unfinished(&target).await.unwrap(), None);
    assert_eq!(content(&target).await, before);
}

/// Writers that count what was acknowledged, until they are refused.
async fn write_until_refused(store: Store, name: usize, acknowledged: Arc<AtomicU64>) -> u64 {
    let mut n = 0u64;
    loop {
        let mut pipe = redis::pipe();
        pipe.atomic();
        pipe.cmd("RPUSH").arg(format!("log:{name}")).arg(n);
        pipe.cmd("HSET").arg("latest").arg(name).arg(n);
        pipe.cmd("SET").arg(format!("entry:{name}:{n}")).arg(n);
        pipe.cmd("DEL").arg(format!("entry:{name}:{}", n.wrapping_sub(50)));
        match pipe.query_async::<()>(&mut store.clone()).await {
            Ok(()) => {
                n += 1;
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => return n,
        }
    }
}

#[tokio::test]
async fn a_server_in_use_moves_and_no_acknowledged_write_is_lost() {
    let (one, other) = (RedisServer::start(), RedisServer::start());
    let (source, target) = (open(&one.url()).await, open(&other.url()).await);
    fill(&source, 2_000).await;
    let acknowledged = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = (0..3)
        .map(|name| {
            let acknowledged = Arc::clone(&acknowledged);
            let url = one.url();
            tokio::spawn(
                async move { write_until_refused(open(&url).await, name, acknowledged).await },
            )
        })
        .collect();
    testkit::until("writes begin", async || {
        (acknowledged.load(Ordering::Relaxed) > 100).then_some(())
    })
    .await;
    let hold = ServerHold::new(&source);
    let moved = move_all(&source, &target, &KeyMaps::default(), Some(&hold)).await.unwrap();
    assert!(moved.held.is_some());
    for (name, writer) in writers.into_iter().enumerate() {
        let written = writer.await.unwrap();
        let log: Vec<u64> = redis::cmd("LRANGE")
            .arg(format!("log:{name}"))
            .arg(0)
            .arg(-1)
            .query_async(&mut target.clone())
            .await
            .unwrap();
        // One more may have been done whose reply was an error.
        let expected: Vec<u64> = (0..log.len() as u64).collect();
        assert_eq!(log, expected);
        assert!(log.len() as u64 >= written, "{} {written}", log.len());
    }
    assert_eq!(content(&target).await, content(&source).await);
    let refused = redis::cmd("SET").arg("late").arg(1).query_async::<()>(&mut source.clone()).await;
    assert_eq!(refused.unwrap_err().code(), Some("NOREPLICAS"));
    let events: Vec<String> = redis::cmd("CONFIG")
        .arg("GET")
        .arg("notify-keyspace-events")
        .query_async(&mut source.clone())
        .await
        .unwrap();
    assert_eq!(events[1], "", "left as it was found");
}

#[tokio::test]
async fn a_source_that_keeps_changing_is_not_moved_without_the_switch() {
    let server = RedisServer::start();
    let (source, target) = (open("embedded:").await, open(&server.url()).await);
    fill(&source, 500).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (store, stop) = (source.clone(), Arc::clone(&stop));
        async move {
            while !stop.load(Ordering::Relaxed) {
                run(&store, "INCR counter").await;
                tokio::task::yield_now().await;
            }
        }
    });
    let error =
        move_all(&source, &target, &KeyMaps::default(), None).await.unwrap_err().to_string();
    assert!(error.contains("keeps changing"), "{error}");
    stop.store(true, Ordering::Relaxed);
    writer.await.unwrap();
    move_all(&source, &target, &KeyMaps::default(), None).await.unwrap();
    assert_eq!(content(&target).await, content(&source).await);
}
