//! Compaction in parts, while commands of every kind run.

use std::{sync::atomic::AtomicBool, thread};

use engine::Reply;

use super::{Bare, Memory, compact, open};

/// Commands with `K` for a key, `M` for a member, `D` for a database.
const COMMANDS: &[&str] = &[
    "SET K M",
    "MSET K M K M K M",
    "MSETNX K M K M",
    "DEL K K K",
    "APPEND K M",
    "INCR K",
    "RENAME K K",
    "RENAMENX K K",
    "COPY K K REPLACE",
    "MOVE K D",
    "SWAPDB 0 D",
    "RPUSH K M M M",
    "LPUSH K M",
    "LMOVE K K LEFT RIGHT",
    "RPOP K",
    "SADD K M M M",
    "SMOVE K K M",
    "SPOP K",
    "SUNIONSTORE K K K",
    "SDIFFSTORE K K K",
    "HSET K M M M M",
    "HINCRBY K M 3",
    "ZADD K 3 M 4 M",
    "ZINCRBY K 1 M",
    "ZUNIONSTORE K 2 K K",
    "ZPOPMIN K",
    "PEXPIREAT K 1999999999999",
    "XADD K * f M",
];

fn command(rng: &mut fastrand::Rng, keys: u16) -> String {
    let word = |word: &str, rng: &mut fastrand::Rng| match word {
        "K" => format!("k{}", rng.u16(..keys)),
        "M" => format!("m{}", rng.u8(..20)),
        "D" => rng.u8(..2).to_string(),
        other => other.to_owned(),
    };
    let line = COMMANDS[rng.usize(..COMMANDS.len())];
    line.split(' ').map(|part| word(part, rng)).collect::<Vec<_>>().join(" ")
}

/// Every key with what it holds, as text.
fn content(store: &Bare) -> Vec<String> {
    let mut shown = Vec::new();
    for db in [1, 0] {
        store.run(&format!("SELECT {db}"));
        let Reply::Array(keys) = store.run("KEYS *") else { panic!("KEYS") };
        for key in keys {
            let Reply::Bulk(key) = key else { panic!("{key:?}") };
            let key = String::from_utf8(key).unwrap();
            let Reply::Status(kind) = store.run(&format!("TYPE {key}")) else { panic!("TYPE") };
            let value = match String::from_utf8_lossy(&kind).as_ref() {
                "string" => store.run(&format!("GET {key}")),
                "list" => store.run(&format!("LRANGE {key} 0 -1")),
                "set" => store.run(&format!("SORT {key} ALPHA")),
                "zset" => store.run(&format!("ZRANGE {key} 0 -1 WITHSCORES")),
                "stream" => store.run(&format!("XRANGE {key} - +")),
                _ => store.run(&format!("HGETALL {key}")),
            };
            let mut value = match value {
                Reply::Map(pairs) => pairs.iter().map(|pair| format!("{pair:?}")).collect(),
                other => vec![format!("{other:?}")],
            };
            value.sort();
            let dies = store.run(&format!("PEXPIRETIME {key}"));
            shown.push(format!("{db} {key} {value:?} {dies:?}"));
        }
    }
    shown.sort();
    shown
}

#[test]
fn whatever_runs_meanwhile_a_kill_loses_and_changes_nothing() {
    let mut rng = fastrand::Rng::with_seed(5);
    for round in 0..40 {
        let disk = Memory::default();
        let store = open(&disk);
        let keys = [500, 100, 20][round % 3];
        for _ in 0..600 {
            store.run(&command(&mut rng, keys));
        }
        thread::scope(|scope| {
            let compacting = scope.spawn(|| {
                let stop = AtomicBool::new(false);
                compact::compact(&store.shared, &store.compaction, &stop)
            });
            while !compacting.is_finished() {
                store.run(&command(&mut rng, keys));
                if rng.u8(..) < 12 {
                    let killed = disk.after_kill();
                    assert_eq!(content(&open(&killed)), content(&store), "round {round}");
                }
            }
            compacting.join().unwrap().unwrap();
        });
        assert_eq!(content(&open(&disk.after_kill())), content(&store), "round {round}");
        // And from the new base on.
        for _ in 0..50 {
            store.run(&command(&mut rng, keys));
        }
        store.compact().unwrap();
        assert_eq!(content(&open(&disk.after_kill())), content(&store), "round {round}");
    }
}
