//! `tidegate store backup`, `restore`, `check` and `move`, as an operator runs them.

use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use store::{Store, redis};
use testkit::{Cluster, RedisServer, content, until_blocking};

use crate::process::{Tidegate, command, run, text};

/// Keys of the large tests: as many as fit into a run of all tests, or as many as `MOVE_KEYS` says;
/// `bench/moves` runs them with a million.
fn keys() -> usize {
    std::env::var("MOVE_KEYS").map_or(100_000, |count| count.parse().expect("a number"))
}

/// Times that a move there and back is killed in all.
const KILLS: usize = 20;

/// An agent that gives answers of any status.
fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    config.timeout_global(Some(Duration::from_secs(20))).build().into()
}

/// Sends JSON as the admin; none if there was no answer.
fn post(agent: &ureq::Agent, url: &str, token: &str, body: &Value) -> Option<(u16, Value)> {
    let request = agent.post(url).header("authorization", format!("Bearer {token}"));
    let mut answer = request.content_type("application/json").send(body.to_string()).ok()?;
    let text = answer.body_mut().read_to_string().ok()?;
    Some((answer.status().as_u16(), serde_json::from_str(&text).unwrap_or_default()))
}

fn create_queue(gate: &Tidegate) {
    let url = format!("{}/api/v1/admin/queues", gate.base);
    let made = post(&agent(), &url, &gate.token(), &json!({ "id": "sale" })).unwrap();
    assert_eq!(made.0, 201, "{}", made.1);
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}

async fn open(url: &str) -> Store {
    Store::open_with(url, store::transfer::options()).await.unwrap()
}

/// About so many keys as all four services and the HTTP side leave them, and some of another program.
async fn fill(store: &Store, count: usize) {
    let far = 4_000_000_000_000i64;
    let mut pipe = redis::pipe();
    for n in 0..count / 10 {
        let queue = ["sale", "tour"][n % 2];
        let id = format!("019b76da-a800-7241-91a2-{n:012x}");
        let expiry = far + n as i64;
        pipe.cmd("HSET").arg(format!("position:{id}")).arg("queue_id").arg(queue).arg("n").arg(n);
        pipe.cmd("PEXPIREAT").arg(format!("position:{id}")).arg(expiry);
        pipe.cmd("ZADD").arg(format!("queue:{queue}:positions")).arg(n).arg(&id);
        pipe.cmd("RPUSH").arg(format!("queue:{queue}:waiting:0")).arg(&id);
        pipe.cmd("ZADD").arg("heartbeat:active").arg(n).arg(&id);
        pipe.cmd("HSET").arg(format!("session:{id}")).arg("queue_id").arg(queue);
        pipe.cmd("SET").arg(format!("ipmap:{queue}:{n:x}")).arg(&id).arg("PXAT").arg(expiry);
        pipe.cmd("ZADD").arg(format!("ratelimit:{n:x}:enqueue")).arg(n).arg("r");
        pipe.cmd("SET").arg(format!("bridge:jobs:data:{n}")).arg(format!("{{\"n\":{n}}}"));
        pipe.cmd("SET").arg(format!("bridge:jobs:status:{n}")).arg("waiting");
        pipe.cmd("RPUSH").arg("bridge:jobs:waiting").arg(n);
        pipe.cmd("XADD").arg("bridge:events:stream").arg(format!("{}-0", n + 1)).arg("job").arg(n);
        pipe.cmd("HSET").arg(format!("dns:host{n}.example.com:1:1")).arg("msg").arg(vec![0u8, 255]);
        pipe.cmd("SET").arg(format!("dnsmeta:hit:dns:host{n}.example.com:1:1")).arg(n);
        pipe.cmd("HSET").arg(format!("ha:user:{n}")).arg("status").arg("online");
        pipe.cmd("SADD").arg(format!("other:program:{n}")).arg(n).arg("x");
        if pipe.len() >= 2_000 {
            pipe.query_async::<()>(&mut store.clone()).await.unwrap();
            pipe = redis::pipe();
        }
    }
    pipe.cmd("SADD").arg("queues").arg("sale").arg("tour");
    pipe.cmd("HSET").arg("queue:sale:meta").arg("name").arg("Sale");
    pipe.cmd("SET").arg("revocation:019b76da-a800-7241-91a2-4cdb40e9cca9").arg("operator");
    pipe.cmd("XGROUP").arg("CREATE").arg("bridge:events:stream").arg("readers").arg("5-0");
    pipe.query_async::<()>(&mut store.clone()).await.unwrap();
}

/// A folder with a built-in store that holds so many keys.
fn filled(folder: &Path, count: usize) -> String {
    let url = format!("embedded:{}", folder.join("source").display());
    block_on(async {
        let store = open(&url).await;
        fill(&store, count).await;
    });
    url
}

/// Runs a move to its end, but kills it at this many moments before. A move of so many keys that ends by
/// itself before it was killed often enough is made again, from the beginning, into an emptied target.
fn move_with_kills(folder: &Path, from: &str, to: &str, count: usize, kills: usize) {
    let mut left = kills;
    while left > 0 {
        let mut child = command(folder, &["store", "move", from, to, "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Some die before they have begun, some in the middle of copying or comparing.
        let moment = Duration::from_millis(fastrand::u64(0..200 + count as u64 / 40));
        let over = until_ends(&mut child, moment);
        let _ = child.kill();
        let ended = child.wait().unwrap();
        if over {
            let mut told = String::new();
            child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
            assert!(is_over(ended.success(), &told), "{told}");
            empty(to);
            if let Some(source) = from.strip_prefix("embedded:") {
                // It was there only if this very move ended in order.
                let _ = std::fs::remove_file(Path::new(source).join("moved-to"));
            }
            continue;
        }
        left -= 1;
    }
    let done = run(folder, &["store", "move", from, to, "--json"]);
    let told = text(&done.stderr);
    assert!(is_over(done.status.success(), &told), "{told}");
}

/// A move that is killed in its last moment, when everything was compared, has nothing left to do: the
/// next one finds a target that is complete, or a source that says where its data went.
fn is_over(success: bool, told: &str) -> bool {
    success || told.contains("the target is not empty") || told.contains("was moved to")
}

/// Empties a target, so that a move to it begins anew.
fn empty(url: &str) {
    match url.strip_prefix("embedded:") {
        Some(folder) => std::fs::remove_dir_all(folder).unwrap(),
        None => block_on(async {
            open(url).await.on_every_node(&redis::cmd("FLUSHALL")).await.unwrap();
        }),
    }
}

fn until_ends(child: &mut std::process::Child, most: Duration) -> bool {
    let end = std::time::Instant::now() + most;
    while std::time::Instant::now() < end {
        if child.try_wait().unwrap().is_some() {
            return true;
        }
        std::thread::park_timeout(Duration::from_millis(2));
    }
    false
}

#[test]
fn a_move_there_and_back_killed_at_twenty_moments_ends_equal() {
    let folder = tempfile::tempdir().unwrap();
    let server = RedisServer::start();
    let from = filled(folder.path(), keys());
    let before = block_on(async { content(&open(&from).await).await });
    assert!(before.len() >= keys(), "{}", before.len());
    move_with_kills(folder.path(), &from, &server.url(), before.len(), KILLS / 2);
    let back = format!("embedded:{}", folder.path().join("back").display());
    move_with_kills(folder.path(), &server.url(), &back, before.len(), KILLS / 2);
    let after = block_on(async { content(&open(&back).await).await });
    assert!(before == after, "{} keys before, {} after", before.len(), after.len());

    // The old folder is not used by mistake.
    if folder.path().join("source/moved-to").exists() {
        let refused = run(folder.path(), &["serve", "--store", &from]);
        assert!(text(&refused.stderr).contains("was moved to"), "{}", text(&refused.stderr));
    }
}

#[test]
fn a_cluster_gets_hash_tags_and_the_way_back_gives_the_same_keys() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::start();
    let from = filled(folder.path(), keys() / 10);
    let before = block_on(async { content(&open(&from).await).await });
    move_with_kills(folder.path(), &from, &cluster.url(), before.len(), KILLS / 2);
    let there = block_on(async { content(&open(&cluster.url()).await).await });
    for key in [
        "position:{sale}:019b76da-a800-7241-91a2-000000000000",
        "session:{tour}:019b76da-a800-7241-91a2-000000000001",
        "queue:{sale}:positions",
        "heartbeat:{tour}:active",
        "revocation:{sale}:019b76da-a800-7241-91a2-4cdb40e9cca9",
        "{bridge}:jobs:waiting",
        "other:program:7",
    ] {
        assert!(there.contains_key(key.as_bytes()), "{key}");
    }
    let back = format!("embedded:{}", folder.path().join("back").display());
    move_with_kills(folder.path(), &cluster.url(), &back, before.len(), KILLS / 2);
    let after = block_on(async { content(&open(&back).await).await });
    assert!(before == after, "{} keys before, {} after", before.len(), after.len());
}

#[test]
fn a_backup_of_a_running_server_is_checked_and_restored() {
    let gate = Tidegate::start("embedded:{data}", &[]);
    create_queue(&gate);
    let backup = gate.run(&["store", "backup", "monday.tide", "--json"]);
    assert!(backup.status.success(), "{}", text(&backup.stderr));
    let told: Value = serde_json::from_slice(&backup.stdout).unwrap();
    assert_eq!(told["consistent"], true);
    let checked = gate.run(&["store", "check", "monday.tide"]);
    assert!(text(&checked.stdout).contains("every record is whole"), "{}", text(&checked.stderr));
    let again = gate.run(&["store", "backup", "monday.tide"]);
    assert!(text(&again.stderr).contains("exists"), "{}", text(&again.stderr));
    // The store in use is not empty, and is in use.
    assert!(!gate.run(&["store", "restore", "monday.tide"]).status.success());

    let restored = gate.run(&["store", "restore", "monday.tide", "--store", "embedded:./new"]);
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    // All keys of a server that only Tidegate writes to are known.
    let cluster = Cluster::start();
    let spread =
        gate.run(&["store", "restore", "monday.tide", "--store", &cluster.url(), "--json"]);
    assert!(spread.status.success(), "{}", text(&spread.stderr));
    let told: Value = serde_json::from_slice(&spread.stdout).unwrap();
    assert_eq!(told["keys_of_other_programs"], 0, "{told}");
    let meta = block_on(async {
        let store = open(&format!("embedded:{}", gate.path().join("new").display())).await;
        content(&store).await.contains_key(&b"queue:sale:meta"[..])
    });
    assert!(meta);
    let mut bytes = std::fs::read(gate.path().join("monday.tide")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(gate.path().join("bad.tide"), bytes).unwrap();
    let refused = gate.run(&["store", "restore", "bad.tide", "--store", "embedded:./bad"]);
    assert!(text(&refused.stderr).contains("damaged"), "{}", text(&refused.stderr));
    assert!(!gate.path().join("bad").exists(), "nothing was made");
}

#[test]
fn a_running_room_and_queue_move_and_no_acknowledged_write_is_lost() {
    let server = RedisServer::start();
    let gate = Tidegate::start("embedded:{data}", &[]);
    create_queue(&gate);
    let stop = Arc::new(AtomicBool::new(false));
    let (base, token) = (gate.base.clone(), gate.token());
    let written: Arc<[AtomicUsize; 2]> = Arc::default();
    let writers: Vec<_> = (0..2)
        .map(|kind| {
            let (stop, base, token) = (Arc::clone(&stop), base.clone(), token.clone());
            let written = Arc::clone(&written);
            std::thread::spawn(move || {
                let agent = agent();
                let mut acknowledged = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let (path, body) = match kind {
                        0 => ("/api/v1/queues/sale/enqueue", json!({})),
                        _ => ("/api/v1/jobs", json!({ "type": "mail", "payload": {} })),
                    };
                    match post(&agent, &format!("{base}{path}"), &token, &body) {
                        Some((200..300, body)) => {
                            let id = body["position_id"].as_str().or(body["id"].as_str());
                            acknowledged.push(id.expect("an id").to_owned());
                            written[kind].fetch_add(1, Ordering::Relaxed);
                        }
                        _ => std::thread::park_timeout(Duration::from_millis(20)),
                    }
                }
                (kind, acknowledged)
            })
        })
        .collect();
    // Both write ten more than they have written now.
    let both_go_on = || {
        let before: [usize; 2] = std::array::from_fn(|kind| written[kind].load(Ordering::Relaxed));
        until_blocking("both write", || {
            let on = |kind: usize| written[kind].load(Ordering::Relaxed) >= before[kind] + 10;
            (on(0) && on(1)).then_some(())
        });
    };
    both_go_on();
    let moved = gate.run(&["store", "move", "embedded:tidegate-data", &server.url()]);
    assert!(moved.status.success(), "{}", text(&moved.stderr));
    assert!(text(&moved.stderr).contains("the switch begins"), "{}", text(&moved.stderr));
    // The server goes on by itself, at the same address, on the new store.
    let on_redis = || {
        // It says so before it listens again.
        let goes_on = gate.log().contains("going on with its new place");
        let ready = || agent().get(format!("{}/readyz", gate.base)).call();
        (goes_on && ready().is_ok_and(|answer| answer.status() == 200)).then_some(())
    };
    until_blocking("the server goes on", on_redis);
    both_go_on();
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        let (kind, acknowledged) = writer.join().unwrap();
        for id in &acknowledged {
            let key = match kind {
                0 => format!("position:{id}"),
                _ => format!("bridge:jobs:status:{id}"),
            };
            let found: i64 = server.query(&["EXISTS", &key]).unwrap();
            assert_eq!(found, 1, "{key} was acknowledged");
        }
    }
    let refused = gate.run(&["store", "move", "embedded:tidegate-data", "embedded:./other"]);
    assert!(text(&refused.stderr).contains("was moved to"), "{}", text(&refused.stderr));
}
