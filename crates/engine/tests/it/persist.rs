//! Effects bring about the same state again: after any commands, an engine that ran them, one that
//! ran their effects, and one that was filled from a snapshot hold the same.

use std::collections::BTreeMap;

use engine::{
    CommandOutcome, Config, Engine, Now, Reply, SessionId,
    persist::{self, KeyParts, PartPlan, SnapshotCursor},
};

use crate::kit::show;

const DATABASES: usize = 3;

struct Walker {
    engine: Engine,
    clients: [SessionId; 3],
    now_ms: i64,
    rng: fastrand::Rng,
    /// How many names of keys there are.
    keys: u16,
    /// Records as the log would hold them.
    records: Vec<Vec<u8>>,
}

fn engine(log_effects: bool, seed: u64) -> Engine {
    let mut config = Config::default();
    configure(&mut config, log_effects, seed);
    Engine::new(config)
}

fn configure(config: &mut Config, log_effects: bool, seed: u64) {
    config.databases = DATABASES;
    config.log_effects = log_effects;
    config.seed = seed;
}

/// Commands with `K` for a key, `V` for a value, `N` for a small number, `F` for a float, `M` for a
/// member, `T` for a time to live in ms, `I` for a stream id, `D` for a database.
const COMMANDS: &[&str] = &[
    "SET K V",
    "SET K V PX T",
    "SET K V EX 2",
    "SET K V KEEPTTL",
    "SET K V NX GET",
    "SET K N",
    "SETEX K 3 V",
    "PSETEX K T V",
    "SETNX K V",
    "GETSET K V",
    "GETDEL K",
    "GETEX K PX T",
    "GETEX K PERSIST",
    "MSET K V K V",
    "MSETNX K V K V",
    "APPEND K V",
    "SETRANGE K N V",
    "INCR K",
    "INCRBY K N",
    "DECRBY K N",
    "INCRBYFLOAT K F",
    "SETBIT K N 1",
    "BITOP XOR K K K",
    "BITFIELD K INCRBY u8 N 200",
    "PFADD K M V",
    "PFCOUNT K",
    "PFMERGE K K K",
    "GEOADD K 13.N 38.N M",
    "GEOSEARCHSTORE K K FROMLONLAT 13 38 BYRADIUS N km",
    "GEORADIUS K 13 38 N km STOREDIST K",
    "DEL K K",
    "UNLINK K",
    "EXPIRE K 2",
    "PEXPIRE K T",
    "PEXPIRE K T GT",
    "PEXPIRE K T NX",
    "EXPIRE K -1",
    "PERSIST K",
    "RENAME K K",
    "RENAMENX K K",
    "COPY K K REPLACE",
    "COPY K K DB D REPLACE",
    "MOVE K D",
    "SELECT D",
    "SWAPDB D D",
    "RPUSH K M M M",
    "LPUSH K M",
    "LPUSHX K M",
    "LPOP K",
    "RPOP K N",
    "LSET K N M",
    "LINSERT K BEFORE M M",
    "LREM K N M",
    "LTRIM K N 6",
    "LMOVE K K LEFT RIGHT",
    "RPOPLPUSH K K",
    "LMPOP 2 K K LEFT COUNT N",
    "SADD K M M N",
    "SREM K M",
    "SPOP K",
    "SPOP K N",
    "SMOVE K K M",
    "SUNIONSTORE K K K",
    "SDIFFSTORE K K K",
    "SINTERSTORE K K K",
    "SORT K ALPHA STORE K",
    "HSET K M V M V",
    "HSETNX K M V",
    "HDEL K M",
    "HINCRBY K M N",
    "HINCRBYFLOAT K M F",
    "HPEXPIRE K T FIELDS 2 M M",
    "HPEXPIRE K T GT FIELDS 1 M",
    "HEXPIRE K 2 NX FIELDS 3 M M M",
    "HEXPIREAT K 1 FIELDS 1 M",
    "HPERSIST K FIELDS 2 M M",
    "HSET K M N M V M V M V",
    "HGETALL K",
    "ZADD K F M N M",
    "ZADD K GT CH F M",
    "ZADD K INCR F M",
    "ZINCRBY K F M",
    "ZREM K M",
    "ZPOPMIN K",
    "ZPOPMAX K N",
    "ZMPOP 1 K MIN COUNT N",
    "ZREMRANGEBYRANK K 0 N",
    "ZREMRANGEBYSCORE K -inf F",
    "ZUNIONSTORE K 2 K K WEIGHTS F 2",
    "ZRANGESTORE K K 0 N",
    "XADD K * a V",
    "XADD K MAXLEN ~ N * a V b V",
    "XADD K MAXLEN N * a V",
    "XTRIM K MAXLEN ~ N",
    "XTRIM K MAXLEN N",
    "XDEL K I",
    "XSETID K I",
    "XGROUP CREATE K g 0 MKSTREAM",
    "XGROUP CREATECONSUMER K g M",
    "XGROUP DELCONSUMER K g M",
    "XREADGROUP GROUP g M COUNT N STREAMS K >",
    "XACK K g I",
    "XAUTOCLAIM K g M 0 0 COUNT N",
    "BLPOP K K 5",
    "BRPOP K 5",
    "BLMOVE K K RIGHT LEFT 5",
    "BZPOPMIN K K 5",
    "MULTI",
    "EXEC",
    "EXEC",
    "DISCARD",
    "GET K",
    "TYPE K",
    "TTL K",
];

const SCRIPTS: &[&str] = &[
    "redis.call('SET', KEYS[1], ARGV[1]) redis.call('RPUSH', KEYS[2], ARGV[1]) return 1",
    "redis.call('SADD', KEYS[1], ARGV[1], 'x', 'y') return redis.call('SPOP', KEYS[1])",
    "redis.pcall('INCR', KEYS[1]) redis.pcall('PEXPIRE', KEYS[1], 900) return {1, 2}",
    "redis.pcall('RPUSH', KEYS[1], ARGV[1]) error('half way')",
    "redis.pcall('ZADD', KEYS[1], 1.5, ARGV[1]) redis.pcall('LPOP', KEYS[2]) return false",
    "return redis.call('TIME')",
    "local p = redis.call('DUMP', KEYS[1]) return p and redis.call('RESTORE', KEYS[2], 1500, p, 'REPLACE')",
    "local p = redis.call('DUMP', KEYS[1]) return p and redis.call('RESTORE', KEYS[2], 0, p)",
];

impl Walker {
    fn new(seed: u64) -> Walker {
        let mut engine = engine(true, seed);
        let clients = [0, 1, 2].map(|n| engine.connect(&format!("client:{n}")));
        let rng = fastrand::Rng::with_seed(seed);
        let records = Vec::new();
        Walker { engine, clients, now_ms: 1_700_000_000_000, rng, keys: 14, records }
    }

    fn word(&mut self, word: &str) -> String {
        let rng = &mut self.rng;
        match word {
            "K" => format!("k{}", rng.u16(..self.keys)),
            "V" => match rng.u8(..5) {
                0 => rng.i32(..).to_string(),
                1 => "x".repeat(rng.usize(..200)),
                2 => "2026-01-01T00:00:00Z".to_owned(),
                _ => format!("value-{}", rng.u16(..)),
            },
            "N" => rng.i8(0..9).to_string(),
            "F" => match rng.u8(..6) {
                0 => "inf".to_owned(),
                1 => "-0.1".to_owned(),
                2 => "1e300".to_owned(),
                _ => (f64::from(rng.i32(-500..500)) / 8.0).to_string(),
            },
            "M" => format!("m{}", rng.u8(..12)),
            "T" => rng.u16(1..3_000).to_string(),
            "I" => format!("{}-0", self.now_ms - i64::from(self.rng.u8(..20))),
            "D" => rng.usize(..DATABASES).to_string(),
            other => other.to_owned(),
        }
    }

    /// One command of one client.
    fn step(&mut self) -> String {
        self.now_ms += i64::from(self.rng.u8(..30));
        if self.rng.u8(..) < 2 {
            self.now_ms += 2_500;
        }
        let client = self.clients[self.rng.usize(..3)];
        let words: Vec<String> = if self.rng.u8(..) < 12 {
            let script = SCRIPTS[self.rng.usize(..SCRIPTS.len())];
            let more = ["K", "K", "V"].map(|word| self.word(word));
            ["EVAL", script, "2"].map(str::to_owned).into_iter().chain(more).collect()
        } else {
            let command = COMMANDS[self.rng.usize(..COMMANDS.len())];
            command.split(' ').map(|word| self.word(word)).collect()
        };
        let argv: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
        let now = Now::from_millis(self.now_ms);
        // A client that waits says nothing; its wait ends now and then.
        if self.engine.waits_until(client).is_some() {
            if self.rng.u8(..) < 60 {
                self.engine.timed_out(now, client);
            }
        } else {
            let outcome = self.engine.execute(now, client, &argv);
            // A command that is not there would test nothing.
            if let CommandOutcome::Reply(Reply::Error(error)) = outcome {
                let text = error.to_string();
                assert!(!text.contains("unknown command"), "{words:?}: {text}");
                assert!(!text.contains("wrong number of arguments"), "{words:?}: {text}");
            }
        }
        if self.rng.u8(..) < 20 {
            self.engine.sweep(now, 10);
        }
        if !self.engine.effects().is_empty() {
            self.records.push(self.engine.effects().to_vec());
            self.engine.clear_effects();
        }
        drop(self.engine.take_output());
        words.join(" ")
    }

    /// An engine that ran the effects only.
    fn replayed(&self) -> Engine {
        let mut engine = engine(false, 99);
        let loader = engine.connect_loader();
        for effects in &self.records {
            engine.apply(loader, effects).unwrap();
        }
        engine.disconnect(loader);
        engine
    }

    fn state(&mut self) -> State {
        for client in self.clients {
            self.engine.disconnect(client);
        }
        let state = state(&mut self.engine, self.now_ms);
        self.engine.clear_effects();
        state
    }
}

/// Keys of all databases, as text.
type State = BTreeMap<(usize, String), String>;

fn state(engine: &mut Engine, now_ms: i64) -> State {
    let client = engine.connect("state");
    let now = Now::from_millis(now_ms);
    let mut run = |words: &[&str]| {
        let argv: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        match engine.execute(now, client, &argv) {
            CommandOutcome::Reply(reply) => reply,
            blocked => panic!("{words:?}: {blocked:?}"),
        }
    };
    let sorted = |reply: Reply| {
        let (Reply::Array(items) | Reply::Set(items)) = reply else { panic!("{reply:?}") };
        let mut items: Vec<String> = items.iter().map(show).collect();
        items.sort();
        items.join(" ")
    };
    let mut state = State::new();
    for db in 0..DATABASES {
        run(&["SELECT", &db.to_string()]);
        let Reply::Array(keys) = run(&["KEYS", "*"]) else { panic!("KEYS") };
        for key in keys.iter().map(show) {
            let kind = show(&run(&["TYPE", &key]));
            let value = match kind.as_str() {
                "string" => show(&run(&["GET", &key])),
                "list" => show(&run(&["LRANGE", &key, "0", "-1"])),
                "set" => sorted(run(&["SMEMBERS", &key])),
                "hash" => {
                    let Reply::Map(pairs) = run(&["HGETALL", &key]) else { panic!("HGETALL") };
                    let mut field = |(name, value): &(Reply, Reply)| {
                        let name = show(name);
                        let dies = show(&run(&["HPEXPIRETIME", &key, "FIELDS", "1", &name]));
                        format!("{name}={} {dies}", show(value))
                    };
                    let mut pairs: Vec<String> = pairs.iter().map(&mut field).collect();
                    pairs.sort();
                    pairs.join(" ")
                }
                "zset" => show(&run(&["ZRANGE", &key, "0", "-1", "WITHSCORES"])),
                "stream" => stream(&key, &mut run),
                other => panic!("{other}"),
            };
            let dies = show(&run(&["PEXPIRETIME", &key]));
            state.insert((db, key), format!("{kind} {dies} {value}"));
        }
    }
    engine.disconnect(client);
    state
}

/// Everything about a stream that a client can see and that does not hang on the layout of nodes or
/// on when somebody was last seen.
fn stream(key: &str, run: &mut impl FnMut(&[&str]) -> Reply) -> String {
    let field = |reply: &Reply, name: &str| match reply {
        Reply::Map(pairs) => pairs
            .iter()
            .find(|(field, _)| show(field) == name)
            .map(|(_, value)| show(value))
            .unwrap_or_default(),
        other => panic!("{other:?}"),
    };
    let mut text = show(&run(&["XRANGE", key, "-", "+"]));
    let info = run(&["XINFO", "STREAM", key]);
    for name in ["last-generated-id", "max-deleted-entry-id", "entries-added"] {
        text.push_str(&format!(" {name}={}", field(&info, name)));
    }
    let Reply::Array(groups) = run(&["XINFO", "GROUPS", key]) else { panic!("XINFO GROUPS") };
    for group in groups {
        let name = field(&group, "name");
        text.push_str(&format!(" group={}", show(&group)));
        // id, consumer, idle, deliveries: without idle.
        let Reply::Array(pending) = run(&["XPENDING", key, &name, "-", "+", "100"]) else {
            panic!("XPENDING")
        };
        for entry in pending {
            let Reply::Array(parts) = entry else { panic!("{entry:?}") };
            text.push_str(&format!(" {}:{}", show(&parts[0]), show(&parts[1])));
        }
        let Reply::Array(consumers) = run(&["XINFO", "CONSUMERS", key, &name]) else {
            panic!("XINFO CONSUMERS")
        };
        for consumer in consumers {
            text.push_str(&format!(" {}", field(&consumer, "name")));
        }
    }
    text
}

/// An engine filled from a snapshot of another.
fn restored(from: &Engine, step: usize) -> Engine {
    let mut engine = engine(false, 7);
    let loader = engine.connect_loader();
    let mut cursor = Some(SnapshotCursor::default());
    while let Some(at) = cursor {
        let mut effects = Vec::new();
        cursor = from.snapshot(at, step, &mut effects).next;
        let applied = engine.apply(loader, &effects).unwrap();
        assert_eq!(applied.errors, 0, "a snapshot holds a command that fails");
    }
    engine.disconnect(loader);
    engine
}

fn same(left: &State, right: &State, what: &str, seed: u64) {
    for (key, value) in left {
        assert_eq!(Some(value), right.get(key), "seed {seed}: {what}: {key:?}");
    }
    for key in right.keys() {
        assert!(left.contains_key(key), "seed {seed}: {what}: {key:?} came from nowhere");
    }
}

#[test]
fn effects_and_snapshots_bring_the_same_state_again() {
    let mut most = 0;
    for seed in 0..120 {
        let mut walker = Walker::new(seed);
        for _ in 0..600 {
            walker.step();
        }
        let mut replayed = walker.replayed();
        let now = walker.now_ms;
        let mut snapshot = restored(&walker.engine, 1 + seed as usize % 50);
        let live = walker.state();
        most = most.max(live.len());
        same(&live, &state(&mut replayed, now), "replayed", seed);
        same(&live, &state(&mut snapshot, now), "restored", seed);
        // And both ways in turn, as a compaction does.
        let mut again = restored(&replayed, 10);
        same(&live, &state(&mut again, now), "replayed, then restored", seed);
    }
    assert!(most > 20, "too few keys to mean anything: {most}");
}

/// Divides a keyspace by what records link and by the memory its keys take.
fn divided(walker: &Walker, seed: u64) -> KeyParts {
    let mut plan = PartPlan::new(seed);
    walker.records.iter().for_each(|record| plan.link(record).unwrap());
    let mut cursor = Some(SnapshotCursor::default());
    while let Some(at) = cursor {
        cursor = walker.engine.weigh(at, 1 + seed as usize % 50, &mut plan);
    }
    plan.split(4, 1)
}

#[test]
fn parts_replayed_one_by_one_bring_the_same_state_again() {
    let mut filled = 0;
    for seed in 0..120 {
        let mut walker = Walker::new(seed);
        // From so many that few are linked, to so few that most are.
        walker.keys = [1_000, 300, 100, 30][seed as usize % 4];
        for _ in 0..600 {
            walker.step();
        }
        let parts = divided(&walker, seed);
        let mut together = engine(false, 7);
        let into = together.connect_loader();
        for part in parts.iter() {
            let mut alone = engine(false, 99);
            let loader = alone.connect_loader();
            for effects in &walker.records {
                alone.apply_part(loader, effects, part).unwrap();
            }
            alone.disconnect(loader);
            filled += usize::from(alone.key_count() > 0);
            let mut add = |effects: &mut Vec<u8>| {
                let applied = together.apply(into, effects).unwrap();
                assert_eq!(applied.errors, 0, "seed {seed}: a command of a snapshot fails");
                effects.clear();
            };
            let mut effects = Vec::new();
            let mut cursor = Some(SnapshotCursor::default());
            while let Some(at) = cursor {
                let step = alone.snapshot_part(at, 10, part, &mut effects, 300, &mut add);
                cursor = step.next;
            }
            add(&mut effects);
        }
        together.disconnect(into);
        let now = walker.now_ms;
        same(&walker.state(), &state(&mut together, now), "in parts", seed);
    }
    assert!(filled > 360, "hardly ever were there several parts: {filled}");
}

#[test]
fn a_large_collection_is_restored_whole() {
    let mut engine = engine(false, 1);
    let client = engine.connect("c");
    let now = Now::from_millis(1_700_000_000_000);
    for n in 0..3_000 {
        let n = n.to_string();
        for argv in [
            ["RPUSH", "list", &n].as_slice(),
            &["SADD", "set", &n],
            &["HSET", "hash", &n, "v"],
            &["ZADD", "zset", &n, &n],
            &["XADD", "stream", "*", "n", &n],
        ] {
            let argv: Vec<&[u8]> = argv.iter().map(|word| word.as_bytes()).collect();
            engine.execute(now, client, &argv);
        }
    }
    let mut copy = restored(&engine, 1);
    let left = state(&mut engine, now.ms());
    same(&left, &state(&mut copy, now.ms()), "restored", 0);
}

#[test]
fn bytes_that_are_not_effects_are_refused_whole() {
    let mut rng = fastrand::Rng::with_seed(5);
    let mut walker = Walker::new(3);
    for _ in 0..50 {
        walker.step();
    }
    let good: Vec<u8> = walker.records.concat();
    let mut target = engine(false, 1);
    let loader = target.connect_loader();
    let mut refused = 0;
    for _ in 0..5_000 {
        let mut bytes = good.clone();
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
        bytes.truncate(rng.usize(1..=bytes.len()));
        refused += u32::from(target.apply(loader, &bytes).is_err());
    }
    assert!(refused > 1_000, "{refused}");
}

#[test]
fn any_bytes_are_decoded_without_a_panic() {
    let mut rng = fastrand::Rng::with_seed(0x006c_6f67);
    let mut log = Vec::new();
    for lsn in 1..40 {
        persist::append_record(&mut log, lsn, &vec![lsn as u8; rng.usize(..60)]);
    }
    for _ in 0..20_000 {
        let mut bytes = log.clone();
        let at = rng.usize(..bytes.len());
        match rng.u8(..3) {
            0 => bytes[at] ^= 1 << rng.u8(..8),
            1 => bytes.truncate(at),
            _ => bytes = (0..rng.usize(..200)).map(|_| rng.u8(..)).collect(),
        }
        let mut rest = &bytes[..];
        while let persist::DecodedRecord::Record { lsn, payload, length, .. } =
            persist::decode(rest)
        {
            assert!(payload.iter().all(|byte| *byte == lsn as u8), "a payload nobody wrote");
            rest = &rest[length..];
        }
        persist::resync(rest, 0);
    }
}

#[test]
fn what_was_loaded_is_swept_on_time_and_the_sweep_ends() {
    const T: i64 = 1_700_000_000_000;
    let mut first = engine(false, 1);
    let client = first.connect("test");
    let mut set = |n: usize, ms: i64| {
        let (key, ms) = (format!("key{n}"), ms.to_string());
        let argv: [&[u8]; 5] = [b"SET", key.as_bytes(), b"v", b"PX", ms.as_bytes()];
        first.execute(Now::from_millis(T), client, &argv);
    };
    (0..300).for_each(|n| set(n, 1_000 + n as i64));
    set(300, 60_000);
    set(301, 400 * 86_400_000);
    let mut second = restored(&first, 50);
    let mut swept = |ms: i64| {
        // A sweep that never gets to the end would look at the same keys for ever.
        (0..100).map(|_| second.sweep(Now::from_millis(T + ms), 100)).sum::<usize>()
    };
    assert_eq!(swept(900), 0);
    assert_eq!(swept(5_000), 300);
    assert_eq!(swept(61_000), 1);
    assert_eq!(swept(90_000), 0);
}

#[test]
fn functions_come_back_from_effects_and_from_a_snapshot() {
    let run = |engine: &mut Engine, argv: &[&str]| {
        let client = engine.connect("c");
        let argv: Vec<&[u8]> = argv.iter().map(|word| word.as_bytes()).collect();
        match engine.execute(Now::from_millis(1_700_000_000_000), client, &argv) {
            CommandOutcome::Reply(reply) => show(&reply),
            CommandOutcome::Blocked { .. } => panic!("functions do not wait"),
        }
    };
    let library = |name: &str, answer: u32| {
        format!(
            "#!lua name={name}\nredis.register_function('{name}', function() return {answer} end)"
        )
    };
    let mut live = engine(true, 1);
    run(&mut live, &["FUNCTION", "LOAD", &library("kept", 1)]);
    run(&mut live, &["FUNCTION", "LOAD", &library("gone", 2)]);
    run(&mut live, &["FUNCTION", "LOAD", "REPLACE", &library("kept", 3)]);
    run(&mut live, &["FUNCTION", "DELETE", "gone"]);
    run(&mut live, &["FCALL", "kept", "0"]);
    let mut replayed = engine(false, 1);
    let loader = replayed.connect_loader();
    let applied = replayed.apply(loader, live.effects()).unwrap();
    assert_eq!(
        (applied.commands, applied.errors),
        (4, 0),
        "a call that writes nothing is no effect"
    );
    let snapshot = restored(&live, 10);
    for mut engine in [live, replayed, snapshot] {
        assert_eq!(run(&mut engine, &["FCALL", "KEPT", "0"]), "3");
        assert_eq!(run(&mut engine, &["FCALL", "gone", "0"]), "(error) ERR Function not found");
    }
}

#[test]
fn a_negative_zero_is_the_same_after_a_restart() {
    let mut engine = engine(true, 1);
    let client = engine.connect("test");
    let now = Now::from_millis(1_700_000_000_000);
    let long = "x".repeat(70);
    let run = |engine: &mut Engine, client, argv: &[&str]| {
        let argv: Vec<&[u8]> = argv.iter().map(|word| word.as_bytes()).collect();
        engine.execute(now, client, &argv)
    };
    // Few and short members make it a plain zero; a long one keeps it, also when it goes again.
    run(&mut engine, client, &["ZADD", "short", "-0", "m"]);
    run(&mut engine, client, &["ZADD", "long", "1", &long, "-0", "m"]);
    run(&mut engine, client, &["ZADD", "was", "1", &long, "-0", "m", "-0", "n"]);
    run(&mut engine, client, &["ZREM", "was", &long]);
    let scores = |engine: &mut Engine| {
        let client = engine.connect("test");
        ["short", "long", "was"].map(|key| {
            (
                run(engine, client, &["ZSCORE", key, "m"]),
                run(engine, client, &["OBJECT", "ENCODING", key]),
            )
        })
    };
    let before = scores(&mut engine);
    let minus = CommandOutcome::Reply(Reply::Double(-0.0));
    assert_eq!(format!("{:?}", before[1].0), format!("{minus:?}"));
    let effects = engine.take_output().effects;
    let mut replayed = self::engine(false, 2);
    let loader = replayed.connect_loader();
    assert_eq!(replayed.apply(loader, &effects).unwrap().errors, 0);
    let after = [scores(&mut replayed), scores(&mut restored(&engine, 7))];
    // Debug shows the sign, which comparing does not see.
    for after in after {
        assert_eq!(format!("{after:?}"), format!("{before:?}"));
    }
}
