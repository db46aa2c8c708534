//! The built-in store in a folder: what is acknowledged is there after the process was killed, one
//! process at a time uses a folder, damage is found and what is good can be kept.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use store::{
    Error, Fsync, Options, Store, embedded,
    redis::{AsyncCommands, RedisResult},
};

const PATH: &str = "TIDEGATE_TEST_KILL_PATH";
const MODE: &str = "TIDEGATE_TEST_KILL_FSYNC";

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

async fn open(path: &Path, fsync: Fsync) -> Result<Store, Error> {
    let options = Options { fsync, compact_at: Some(64 << 10), ..Options::default() };
    Store::open_with(&format!("embedded:{}", path.display()), options).await
}

fn mode(name: &str) -> Fsync {
    match name {
        "always" => Fsync::Always,
        "everysec" => Fsync::Everysec,
        _ => Fsync::No,
    }
}

/// Not a test of its own: what the killed process does. Each of four writers counts up in keys of
/// its own, with plain commands, pipelines and transactions, and tells what was acknowledged.
#[test]
fn writer() {
    let Ok(path) = env::var(PATH) else { return };
    let fsync = mode(&env::var(MODE).unwrap());
    runtime().block_on(async {
        let store = open(Path::new(&path), fsync).await.unwrap();
        let mut tasks = Vec::new();
        for writer in 0..4 {
            let mut store = store.clone();
            tasks.push(tokio::spawn(async move {
                let counter = format!("counter:{writer}");
                let list = format!("list:{writer}");
                // A pipeline is two records: a kill between them leaves a number pushed and not
                // counted, which is not to be pushed again.
                let start: i64 = store.llen(&list).await.unwrap();
                for n in start + 1.. {
                    if n % 3 == 0 {
                        store::redis::pipe()
                            .atomic()
                            .set(&counter, n)
                            .rpush(&list, n)
                            .exec_async(&mut store)
                            .await
                            .unwrap();
                    } else {
                        let mut pipe = store::redis::pipe();
                        pipe.rpush(&list, n).set(&counter, n);
                        pipe.exec_async(&mut store).await.unwrap();
                    }
                    // One write to the pipe, so that a line is whole or absent.
                    let line = format!("{writer} {n}\n");
                    std::io::stdout().write_all(line.as_bytes()).unwrap();
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}

fn spawn_writer(path: &Path, fsync: &str) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "persist::writer", "--nocapture", "--test-threads=1"])
        .env(PATH, path)
        .env(MODE, fsync)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// What was acknowledged by each writer.
#[derive(Default, Debug, Clone, PartialEq)]
struct Acked([i64; 4]);

/// Lets a writer run for a while, kills it, and reads what it had told.
fn run_and_kill(path: &Path, fsync: &str, lines: usize, acked: &mut Acked) {
    let mut child = spawn_writer(path, fsync);
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    let mut seen = 0;
    let started = Instant::now();
    // So many acknowledgements, and then at once.
    while seen < lines {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "the writer ended by itself: {line}");
        seen += usize::from(note(&line, acked));
        assert!(started.elapsed() < Duration::from_secs(60), "the writer writes nothing");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // What it told before it died counts too.
    for line in output.lines() {
        note(&line.unwrap(), acked);
    }
}

fn note(line: &str, acked: &mut Acked) -> bool {
    let mut words = line.split_whitespace();
    let (Some(writer), Some(n), None) = (words.next(), words.next(), words.next()) else {
        return false;
    };
    let (Ok(writer), Ok(n)) = (writer.parse::<usize>(), n.parse::<i64>()) else { return false };
    acked.0[writer] = acked.0[writer].max(n);
    true
}

async fn check(path: &Path, acked: &Acked) -> RedisResult<()> {
    let mut store = open(path, Fsync::No).await.unwrap();
    for (writer, acked) in acked.0.into_iter().enumerate() {
        let counter: i64 =
            store.get::<_, Option<i64>>(format!("counter:{writer}")).await?.unwrap_or(0);
        let list: Vec<i64> = store.lrange(format!("list:{writer}"), 0, -1).await?;
        assert!(counter >= acked, "writer {writer}: {acked} was acknowledged, {counter} is there");
        // The one in flight may be half there where it was not a transaction: pushed, not counted.
        let whole: Vec<i64> = (1..=counter).collect();
        let more: Vec<i64> = (1..=counter + 1).collect();
        assert!(
            list == whole || (list == more && (counter + 1) % 3 != 0),
            "writer {writer}: {counter} are counted, the list ends with {:?}",
            list.iter().rev().take(5).collect::<Vec<_>>()
        );
    }
    Ok(())
}

/// Kills a writer `times` times in one folder and looks after each.
fn kill_loop(fsync: &str, times: usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let runtime = runtime();
    let mut acked = Acked::default();
    let mut rng = fastrand::Rng::with_seed(times as u64);
    let most = if fsync == "always" { 40 } else { 400 };
    // As a kill in the middle of the first pipeline of a writer leaves it.
    runtime.block_on(async {
        let mut store = open(&path, Fsync::No).await.unwrap();
        store.rpush::<_, _, ()>("list:0", 1).await.unwrap();
    });
    for _ in 0..times {
        run_and_kill(&path, fsync, rng.usize(1..most), &mut acked);
        runtime.block_on(check(&path, &acked)).unwrap();
    }
    assert!(acked.0.iter().all(|n| *n > 0), "every writer wrote: {acked:?}");
}

#[test]
fn nothing_acknowledged_is_lost_by_kills_with_fsync_always() {
    kill_loop("always", 34);
}

#[test]
fn nothing_acknowledged_is_lost_by_kills_with_fsync_everysec() {
    kill_loop("everysec", 34);
}

#[test]
fn nothing_acknowledged_is_lost_by_kills_with_fsync_no() {
    kill_loop("no", 34);
}

#[tokio::test]
async fn a_folder_is_used_by_one_process_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path(), Fsync::Everysec).await.unwrap();
    let Err(Error::Locked { pid, .. }) = open(folder.path(), Fsync::Everysec).await else {
        panic!("opened twice")
    };
    assert_eq!(pid, Some(std::process::id()));
    drop(first);
    open(folder.path(), Fsync::Everysec).await.unwrap();
}

#[tokio::test]
async fn what_was_written_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let mut store = open(folder.path(), Fsync::Everysec).await.unwrap();
        let count: i64 = store.incr("rounds", 1).await.unwrap();
        assert_eq!(count, round + 1);
        store.rpush::<_, _, ()>("list", round).await.unwrap();
    }
    let mut store = open(folder.path(), Fsync::Everysec).await.unwrap();
    assert_eq!(store.lrange::<_, Vec<i64>>("list", 0, -1).await.unwrap(), [0, 1, 2]);
}

#[tokio::test]
async fn a_long_log_is_made_short_while_writes_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let size = || -> u64 {
        let files = std::fs::read_dir(folder.path()).unwrap();
        // One that is taken away meanwhile counts for nothing.
        files.filter_map(|file| Some(file.unwrap().metadata().ok()?.len())).sum()
    };
    let mut store = open(folder.path(), Fsync::Everysec).await.unwrap();
    let value = "x".repeat(200);
    let mut n = 0;
    let mut written = 0;
    let started = Instant::now();
    // Far more is written than stays, as long as it takes.
    while written < 4 << 20 || size() > 512 << 10 {
        store.set::<_, _, ()>("same", format!("{n}{value}")).await.unwrap();
        n += 1;
        written += 250;
        assert!(started.elapsed() < Duration::from_secs(60), "still {} bytes", size());
    }
    drop(store);
    let mut store = open(folder.path(), Fsync::Everysec).await.unwrap();
    let last: String = store.get("same").await.unwrap();
    assert_eq!(last, format!("{}{value}", n - 1));
}

#[tokio::test]
async fn damage_is_reported_and_the_good_part_can_be_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let mut store = open(&path, Fsync::Everysec).await.unwrap();
    for n in 0..100 {
        store.set::<_, _, ()>(format!("k{n}"), n).await.unwrap();
    }
    drop(store);
    let report = embedded::check(&path).unwrap();
    assert_eq!((report.records, report.keys, &report.damage), (100, 100, &None));

    let log = path.join("log-1.tide");
    let mut bytes = std::fs::read(&log).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(&log, &bytes).unwrap();
    let Err(Error::Damaged { file, offset, .. }) = open(&path, Fsync::Everysec).await else {
        panic!("a damaged store was opened")
    };
    assert!(file.ends_with("log-1.tide"), "{file}");
    assert!(offset <= middle as u64 && offset + 100 > middle as u64, "{offset} for {middle}");

    let report = embedded::check(&path).unwrap();
    let damage = report.damage.clone().unwrap();
    assert!(damage.contains("log-1.tide") && damage.contains(&offset.to_string()), "{damage}");
    assert!(report.keys > 30 && report.keys < 70, "{report:?}");

    let copy = folder.path().join("copy");
    assert_eq!(embedded::repair(&path, &copy).unwrap(), report);
    assert_eq!(std::fs::read(&log).unwrap(), bytes, "the original is left as it was");
    let mut store = open(&copy, Fsync::Everysec).await.unwrap();
    for n in 0..100 {
        let value: Option<usize> = store.get(format!("k{n}")).await.unwrap();
        assert_eq!(value, (n < report.keys).then_some(n));
    }
}

#[tokio::test]
async fn a_folder_in_use_is_not_checked_and_an_empty_one_has_no_store() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(embedded::check(folder.path()), Err(Error::Invalid { .. })));
    let _store = open(folder.path(), Fsync::Everysec).await.unwrap();
    let Err(error @ Error::Locked { pid: Some(pid), .. }) = embedded::check(folder.path()) else {
        panic!("checked")
    };
    assert_eq!(pid, std::process::id());
    assert!(error.to_string().contains(&format!("in use by process {pid}")), "{error}");
}

#[tokio::test]
async fn a_check_writes_nothing_into_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path(), Fsync::Everysec).await.unwrap();
    let _: () = store.set("a", 1).await.unwrap();
    drop(store);
    std::fs::remove_file(folder.path().join("lock")).unwrap();
    let before = std::fs::metadata(folder.path()).unwrap().modified().unwrap();
    assert_eq!(embedded::check(folder.path()).unwrap().keys, 1);
    assert!(!folder.path().join("lock").exists());
    assert_eq!(std::fs::metadata(folder.path()).unwrap().modified().unwrap(), before);
}

/// Waits until writes are taken, or refused: what the last one was told.
async fn until_writes(store: &mut Store, taken: bool) -> String {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let told = store.set::<_, _, ()>("late", 1).await;
        if told.is_ok() == taken {
            return told.err().map(|error| error.to_string()).unwrap_or_default();
        }
        assert!(std::time::Instant::now() < deadline, "writes are taken: {}", !taken);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_folder_that_vanishes_stops_writes_and_one_in_its_place_gets_everything() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("store");
    let mut store = open(&path, Fsync::No).await.unwrap();
    let _: () = store.set("early", 1).await.unwrap();
    std::fs::remove_dir_all(&path).unwrap();
    let told = until_writes(&mut store, false).await;
    assert!(told.contains("the data folder was removed or replaced"), "{told}");
    assert_eq!(store.get::<_, i64>("early").await.unwrap(), 1, "reads go on");
    // A store of somebody else's in its place is left alone.
    let other = parent.path().join("other");
    drop(open(&other, Fsync::No).await.unwrap());
    std::fs::rename(&other, &path).unwrap();
    let manifest = std::fs::read(path.join("manifest")).unwrap();
    // Whoever looks at a folder locks it first. The second look comes after the first is over.
    for _ in 0..2 {
        let lock = path.join("lock");
        std::fs::remove_file(&lock).unwrap();
        testkit::until("the folder is looked at", async || lock.exists().then_some(())).await;
    }
    assert_eq!(std::fs::read(path.join("manifest")).unwrap(), manifest);
    assert!(store.set::<_, _, ()>("late", 1).await.is_err());
    std::fs::remove_dir_all(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    until_writes(&mut store, true).await;
    drop(store);
    let mut store = open(&path, Fsync::No).await.unwrap();
    assert_eq!(store.get::<_, i64>("early").await.unwrap(), 1);
    assert_eq!(store.get::<_, i64>("late").await.unwrap(), 1);
}
