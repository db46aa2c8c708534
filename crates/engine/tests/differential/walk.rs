//! The seeded random walk: commands over a small keyspace, the same to the engine and to Redis,
//! replies and final keyspaces equal.
//!
//! Each run walks another way. A failure prints the seed and the shortest list of commands that
//! still shows the difference. `WALK_SEED` walks one again, `WALK_COMMANDS` changes how far.

use std::env;

use crate::harness::{Differential, start_redis};
use crate::wire::{Wire, show};

mod generate;

/// Seconds for which a busy machine may keep one of the two waiting.
const STALL_S: i64 = 30;

/// A command.
type Argv = Vec<Vec<u8>>;

/// Commands between two emptyings of the keyspace: short enough to shrink, long enough to grow.
const ROUND: usize = 2_000;

#[test]
fn a_random_walk_ends_where_redis_ends() {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse().ok());
    let seed: u64 = number("WALK_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    let total = number("WALK_COMMANDS").unwrap_or(220_000) as usize;
    println!("walk: seed {seed}, {total} commands (WALK_SEED={seed} walks it again)");
    let server = start_redis();
    let mut rng = fastrand::Rng::with_seed(seed);
    for round in 0..total.div_ceil(ROUND) {
        let resp = if round % 2 == 0 { 2 } else { 3 };
        let mut generator = generate::Generator::new(rng.fork());
        let commands: Vec<Argv> = (0..ROUND).map(|_| generator.command()).collect();
        let mut d = Differential::on(&server, resp);
        if let Some(difference) = difference(&mut d, &commands) {
            let shortest = shrink(&mut d, commands);
            let again = self::difference(&mut d, &shortest).unwrap_or(difference);
            let lines: Vec<String> = shortest.iter().map(|argv| show(argv)).collect();
            panic!("seed {seed}, RESP{resp}:\n{}\n{again}", lines.join("\n"));
        }
    }
}

/// Runs the commands on both from an empty keyspace; says where they differ.
fn difference(d: &mut Differential, commands: &[Argv]) -> Option<String> {
    let reset: Vec<Argv> = ["FLUSHALL", "SELECT 0", "CONFIG SET maxmemory 0"]
        .iter()
        .map(|line| crate::wire::words(line))
        .collect();
    d.pipeline(&reset);
    reset.iter().for_each(|argv| drop(d.ours(argv)));
    for batch in commands.chunks(500) {
        let theirs = d.pipeline(batch);
        for (argv, theirs) in batch.iter().zip(theirs) {
            let ours = d.ours(argv);
            if !same(argv, &ours, &theirs) {
                return Some(format!("{}\nengine: {ours:?}\nredis:  {theirs:?}", show(argv)));
            }
        }
    }
    let (ours, theirs) = (keyspace(d, false), keyspace(d, true));
    for (key, value) in &theirs {
        match ours.iter().find(|(other, _)| other == key) {
            Some((_, other)) if close(other, value) => {}
            other => {
                return Some(format!(
                    "at the end {}\nengine: {other:?}\nredis:  {value:?}",
                    key.escape_ascii()
                ));
            }
        }
    }
    (ours.len() != theirs.len()).then(|| format!("{} keys, Redis has {}", ours.len(), theirs.len()))
}

fn close(ours: &[Wire], theirs: &[Wire]) -> bool {
    ours.len() == theirs.len()
        && ours.iter().zip(theirs).all(|(a, b)| same_time(a, b, STALL_S * 1_000))
}

/// Equal but for a number that is a time; where there is none, there must be none on both sides.
fn same_time(ours: &Wire, theirs: &Wire, slack: i64) -> bool {
    match (ours, theirs) {
        (Wire::Int(a), Wire::Int(b)) => (*a < 0) == (*b < 0) && ours.near(theirs, slack),
        _ => ours == theirs,
    }
}

/// How a reply may differ, by command.
fn same(argv: &Argv, ours: &Wire, theirs: &Wire) -> bool {
    let name = String::from_utf8_lossy(&argv[0]).to_lowercase();
    match name.as_str() {
        "ttl" | "expiretime" => same_time(ours, theirs, STALL_S),
        "pttl" | "pexpiretime" => same_time(ours, theirs, STALL_S * 1_000),
        "keys" | "smembers" | "sunion" | "sinter" | "sdiff" | "hkeys" | "hvals" => {
            ours.clone().sorted(false) == theirs.clone().sorted(false)
        }
        "hgetall" => ours.clone().sorted(true) == theirs.clone().sorted(true),
        "randomkey" | "srandmember" | "hrandfield" | "zrandmember" => {
            ours.clone().shape() == theirs.clone().shape()
        }
        _ => ours == theirs,
    }
}

/// Every key of every database with its type, value and time to live.
fn keyspace(d: &mut Differential, on_redis: bool) -> Vec<(Vec<u8>, Vec<Wire>)> {
    let mut run = |argv: Vec<Vec<u8>>| match on_redis {
        true => d.pipeline(&[argv]).remove(0),
        false => d.ours(&argv),
    };
    let mut all = Vec::new();
    for db in ["0", "1"] {
        run(vec![b"SELECT".to_vec(), db.as_bytes().to_vec()]);
        let Wire::Array(keys) = run(vec![b"KEYS".to_vec(), b"*".to_vec()]).sorted(false) else {
            panic!("KEYS answers a list")
        };
        for key in keys {
            let Wire::Bulk(key) = key else { panic!("keys are strings") };
            let word = |text: &str| text.as_bytes().to_vec();
            let Wire::Status(kind) = run(vec![word("TYPE"), key.clone()]) else {
                panic!("TYPE answers a status")
            };
            let value = match kind.as_slice() {
                b"string" => vec![word("GET"), key.clone()],
                b"list" => vec![word("LRANGE"), key.clone(), word("0"), word("-1")],
                b"set" => vec![word("SMEMBERS"), key.clone()],
                b"hash" => vec![word("HGETALL"), key.clone()],
                b"zset" => {
                    vec![word("ZRANGE"), key.clone(), word("0"), word("-1"), word("WITHSCORES")]
                }
                b"stream" => vec![word("XRANGE"), key.clone(), word("-"), word("+")],
                // It died since KEYS.
                _ => continue,
            };
            let value = match kind.as_slice() {
                b"set" => run(value).sorted(false),
                b"hash" => run(value).sorted(true),
                _ => run(value),
            };
            let rest = [
                run(vec![word("PTTL"), key.clone()]),
                run(vec![word("OBJECT"), word("ENCODING"), key.clone()]),
            ];
            let name = [db.as_bytes(), b":", key.as_slice()].concat();
            all.push((name, [Wire::Status(kind), value].into_iter().chain(rest).collect()));
        }
    }
    all
}

/// Leaves out as many commands as possible while a difference stays.
fn shrink(d: &mut Differential, mut commands: Vec<Argv>) -> Vec<Argv> {
    let mut size = commands.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < commands.len() {
            let mut fewer = commands.clone();
            fewer.drain(at..(at + size).min(commands.len()));
            if difference(d, &fewer).is_some() {
                commands = fewer;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    commands
}
