//! Transactions, pub/sub, waiting, and what clients ask of a server.

use crate::harness::{Differential, both, resp3};
use crate::wire::{Wire, words};

#[test]
fn transactions() {
    both(|d| {
        for line in [
            "MULTI",
            "SET a 1",
            "INCR a",
            "GET a",
            "LPUSH a x",
            "EXEC",
            "EXEC",
            "DISCARD",
            "MULTI",
            "MULTI",
            "SET a 5",
            "DISCARD",
            "GET a",
            "MULTI",
            "FOO",
            "SET a 9",
            "EXEC",
            "GET a",
            "MULTI",
            "SET a",
            "EXEC",
            "MULTI",
            "EXEC",
            "WATCH a",
            "MULTI",
            "WATCH b",
            "GET a",
            "EXEC",
            "WATCH a b",
            "UNWATCH",
            "MULTI",
            "BLPOP l 0",
            "SUBSCRIBE c",
            "CONFIG GET maxmemory",
            "CONFIG NOSUCH",
            "EXEC",
            "MULTI",
            "SELECT 1",
            "SET x 1",
            "EXEC",
            "SELECT 0",
            "EXISTS x",
            "MULTI x",
            "EXEC x",
        ] {
            if d.resp() == 3 && line == "SUBSCRIBE c" {
                continue;
            }
            d.same(line);
        }
        let other = d.client();
        d.same("SET w 1");
        d.same("WATCH w");
        d.same_on(other, "SET w 2");
        for line in ["MULTI", "GET w", "EXEC"] {
            d.same(line);
        }
        d.same("WATCH w missing");
        d.same_on(other, "DEL missing");
        for line in ["MULTI", "GET w", "EXEC"] {
            d.same(line);
        }
        d.same("WATCH w");
        d.same_on(other, "FLUSHALL");
        for line in ["MULTI", "GET w", "EXEC", "WATCH w"] {
            d.same(line);
        }
        d.same_on(other, "SWAPDB 0 1");
        for line in ["MULTI", "EXEC"] {
            d.same(line);
        }
    });
}

#[test]
fn publishing() {
    both(|d| {
        let (a, b) = (d.client(), d.client());
        for line in [
            "SUBSCRIBE one two",
            "PSUBSCRIBE o* [^x]wo",
            "SSUBSCRIBE s",
            "PING",
            "PING hi",
            "SUBSCRIBE one",
            "UNSUBSCRIBE nothere",
        ] {
            d.same_on(a, line);
        }
        d.same_on(b, "SUBSCRIBE one");
        if d.resp() == 2 {
            d.same_on(a, "GET k");
            d.same_on(a, "CLIENT LIST");
        }
        d.same("PUBLISH two hello");
        d.pushed(a);
        d.pushed(a);
        d.same("PUBLISH nobody hello");
        d.same("SPUBLISH s shard");
        d.pushed(a);
        d.same("SPUBLISH one shard");
        for line in ["PUBSUB NUMSUB one two three", "PUBSUB NUMPAT", "PUBSUB SHARDNUMSUB s one"] {
            d.same(line);
        }
        for line in ["PUBSUB CHANNELS", "PUBSUB CHANNELS o*", "PUBSUB SHARDCHANNELS"] {
            d.sorted(line);
        }
        for line in ["PUBSUB CHANNELS a b", "PUBSUB FOO", "PUBSUB NUMPAT x", "PUBLISH a"] {
            d.same(line);
        }
        d.same_on(b, "UNSUBSCRIBE");
        d.same_on(b, "UNSUBSCRIBE");
        d.same_on(b, "PUNSUBSCRIBE");
        d.same_on(b, "SUNSUBSCRIBE");
        d.same_on(b, "GET k");
        d.same_on(a, "UNSUBSCRIBE one");
        d.same_on(a, "PUNSUBSCRIBE o*");
        d.same_on(a, "RESET");
        d.same_on(a, "GET k");
    });
}

#[test]
fn keyspace_events() {
    both(|d| {
        let listener = d.client();
        d.same("CONFIG SET notify-keyspace-events KEA");
        d.same("CONFIG GET notify-keyspace-events");
        d.same_on(listener, "PSUBSCRIBE __key*");
        for line in [
            "SET k v",
            "SET k v EX 100",
            "EXPIRE k 50",
            "PERSIST k",
            "APPEND k x",
            "SETRANGE k 1 x",
            "SETBIT k 1 1",
            "SETBIT k 1 1",
            "INCRBY n 5",
            "INCRBYFLOAT n 5",
            "GETDEL n",
            "RENAME k j",
            "COPY j i",
            "MOVE i 1",
            "GETEX j EX 100",
            "GETEX j PERSIST",
            "MSET a 1 b 2",
            "DEL a b c",
            "EXPIRE j -1",
            "RPUSH l a b c",
            "LPOP l 3",
            "SADD s a",
            "SREM s a",
            "HSET h a 1",
            "HDEL h a",
            "ZADD z 1 a",
            "ZREM z a",
            "XADD x 1-1 a b",
            "XDEL x 1-1",
        ] {
            d.same(line);
            // Everything up to the mark is what the command sent.
            d.same("PUBLISH __keymark__ mark");
            while !format!("{:?}", d.pushed(listener)).contains("__keymark__") {}
        }
        d.same("CONFIG SET notify-keyspace-events \"\"");
    });
}

#[test]
fn waiting_for_lists() {
    both(|d| {
        let (a, b, c) = (d.client(), d.client(), d.client());
        d.waits(a, "BLPOP l 0");
        d.waits(b, "BRPOP other l 0");
        d.waits(c, "BLMOVE l dest LEFT RIGHT 0");
        d.same("RPUSH l 1 2 3");
        d.served(a);
        d.served(b);
        d.served(c);
        d.same("LRANGE l 0 -1");
        d.same("LRANGE dest 0 -1");
        d.waits(a, "BLPOP x y 0");
        for line in ["MULTI", "RPUSH y b", "RPUSH x a", "EXEC"] {
            d.same(line);
        }
        d.served(a);
        d.waits(a, "BLPOP chain 0");
        d.waits(b, "BLMOVE start chain LEFT LEFT 0");
        d.same("RPUSH start v");
        d.served(b);
        d.served(a);
        d.waits(a, "BZPOPMIN z 0");
        d.same("ZADD z 1 one 2 two");
        d.served(a);
        d.waits(a, "XREAD BLOCK 0 STREAMS s $");
        d.same("XADD s 1-1 f v");
        d.served(a);
        d.waits(a, "BLPOP typed 0");
        d.same("SET typed v");
        d.same("DEL typed");
        d.same("RPUSH typed v");
        d.served(a);
        d.waits(a, "BLPOP renamed 0");
        d.same("RPUSH source v");
        d.same("RENAME source renamed");
        d.served(a);
        d.waits(a, "BLMPOP 0 2 p q LEFT COUNT 5");
        d.same("RPUSH q 1 2");
        d.served(a);
        for line in ["BLPOP l -1", "BLPOP l x", "BLPOP l 1e30", "BLPOP l inf", "WAIT 0 0"] {
            d.same(line);
        }
    });
}

#[test]
fn replies_that_are_off_do_not_silence_channels() {
    both(|d| {
        let a = d.client();
        d.silently_on(a, "CLIENT REPLY OFF");
        d.same_on(a, "SUBSCRIBE one");
        d.same_on(a, "PSUBSCRIBE o*");
        d.same("PUBLISH one hello");
        d.pushed(a);
        d.pushed(a);
        d.same_on(a, "UNSUBSCRIBE one");
        d.same_on(a, "PUNSUBSCRIBE o*");
        d.silently_on(a, "GET k");
        d.same_on(a, "CLIENT REPLY ON");
    });
}

#[test]
fn monitors_see_commands_in_order() {
    both(|d| {
        let watcher = d.client();
        d.same_on(watcher, "MONITOR");
        let seen = |d: &mut Differential, line: &str, words: &[&str]| {
            d.run(line);
            for word in words {
                let (ours, theirs) = d.pushed_apart(watcher);
                for (who, line) in [("engine", ours), ("redis", Some(theirs))] {
                    let line = format!("{line:?}");
                    assert!(line.contains(word), "{who}: {line} has no {word}");
                }
            }
        };
        seen(d, "SET k v", &["SET"]);
        seen(d, "MULTI", &["MULTI"]);
        seen(d, "GET k", &[]);
        seen(d, "EXEC", &["GET", "EXEC"]);
        seen(d, "EVAL \"return redis.call('incr','n')\" 0", &["EVAL", "incr"]);
        seen(d, "CONFIG GET maxmemory", &[]);
        seen(d, "PING", &["PING"]);
    });
}

#[test]
fn looking_whether_a_key_is_there_does_not_use_it() {
    both(|d| {
        d.same("SET k v");
        let start = std::time::Instant::now();
        // Seconds of two clocks may be one apart.
        while matches!(d.near("OBJECT IDLETIME k", 1), Wire::Int(0 | 1)) {
            assert!(start.elapsed().as_secs() < 60, "the key does not grow old");
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        for line in ["EXISTS k", "TTL k", "TYPE k"] {
            d.same(line);
        }
        let Wire::Int(idle) = d.near("OBJECT IDLETIME k", 1) else { panic!("a number") };
        assert!(idle > 1, "{idle}");
        d.same("TOUCH k");
        d.near("OBJECT IDLETIME k", 1);
    });
}

#[test]
fn clients_and_connections() {
    both(|d| {
        for line in [
            "PING",
            "PING a",
            "PING a b",
            "ECHO a",
            "ECHO",
            "CLIENT GETNAME",
            "CLIENT SETNAME me",
            "CLIENT GETNAME",
            "CLIENT SETNAME \"a b\"",
            "CLIENT SETNAME \"\"",
            "CLIENT GETNAME",
            "CLIENT FOO",
            "CLIENT",
            "CLIENT ID x",
            "CLIENT LIST TYPE foo",
            "CLIENT LIST ID x",
            "CLIENT LIST FOO",
            "CLIENT LIST TYPE master",
            "CLIENT KILL 1.2.3.4:5",
            "CLIENT KILL ID 0",
            "CLIENT KILL ID 99999",
            "CLIENT KILL TYPE foo",
            "CLIENT KILL SKIPME maybe",
            "CLIENT KILL USER nobody",
            "CLIENT KILL ADDR",
            "CLIENT UNBLOCK 99999",
            "CLIENT UNBLOCK x",
            "CLIENT UNBLOCK 1 FOO",
            "CLIENT PAUSE x",
            "CLIENT PAUSE -1",
            "CLIENT PAUSE 0 FOO",
            "CLIENT UNPAUSE",
            "CLIENT NO-EVICT on",
            "CLIENT NO-EVICT off",
            "CLIENT NO-EVICT maybe",
            "CLIENT GETREDIR",
            "CLIENT TRACKINGINFO",
            "CLIENT CACHING yes",
            "CLIENT TRACKING off",
            "CLIENT REPLY maybe",
            "CLIENT REPLY on",
            "AUTH x",
            "AUTH default x",
            "AUTH foo x",
            "AUTH a b c",
            "HELLO 4",
            "HELLO x",
            "HELLO 2 FOO",
            "HELLO 2 AUTH default",
            "HELLO 2 SETNAME \"a b\"",
            "SELECT 16",
            "CONFIG SET maxmemory abc",
            "CONFIG SET hash-max-listpack-entries abc",
            "CONFIG SET hash-max-listpack-entries -1",
            "CONFIG SET maxmemory-policy abc",
            "CONFIG SET appendonly abc",
            "CONFIG SET foo abc",
            "CONFIG SET databases 3",
            "CONFIG SET maxmemory 1 maxmemory 2",
            "CONFIG SET maxmemory 1 foo 2",
            "CONFIG SET maxmemory",
            "CONFIG SET maxmemory 1 2",
            "CONFIG GET",
            "CONFIG GET nothing",
            "CONFIG GET hash-max-ziplist-entries",
            "CONFIG SET hash-max-ziplist-entries 100",
            "CONFIG GET hash-max-listpack-entries",
            "CONFIG SET hash-max-listpack-entries 512",
            "CONFIG SET maxmemory 100mb",
            "CONFIG GET maxmemory",
            "CONFIG SET maxmemory 0",
            "CONFIG SET save \"a b\"",
            "CONFIG SET notify-keyspace-events q",
            "CONFIG FOO",
            "CONFIG RESETSTAT",
            "CONFIG REWRITE",
            "DEBUG",
            "SLOWLOG GET x",
            "SLOWLOG GET -2",
            "SLOWLOG FOO",
            "SLOWLOG RESET",
            "SLOWLOG LEN",
            "ROLE",
            "WAIT 0 0",
            "WAIT x 0",
            "WAIT 0 x",
            "WAIT 0 -1",
            "READONLY",
            "CLUSTER INFO",
            "LATENCY LATEST",
            "LATENCY GRAPH nosuch",
            "LATENCY GRAPH",
            "CONFIG SET latency-tracking-info-percentiles \"0.0 50.0 99.900 100\"",
            "CONFIG GET latency-tracking-info-percentiles",
            "CONFIG SET latency-tracking-info-percentiles \"10 a\"",
            "CONFIG SET latency-tracking-info-percentiles \"10 101\"",
            "CONFIG SET latency-tracking-info-percentiles \"\"",
            "CONFIG GET latency-tracking-info-percentiles",
            "MODULE LIST",
            "ACL WHOAMI",
            "ACL USERS",
            "ACL CAT nosuch",
            "ACL FOO",
            "FUNCTION FLUSH",
            "FUNCTION FLUSH FOO",
            "FUNCTION LIST",
            "FUNCTION STATS",
            "FUNCTION KILL",
            "FUNCTION FOO",
            "LOLWUT FOO BAR BAZ x y",
            "COMMAND GETKEYS GET a",
            "COMMAND GETKEYS MSET a 1 b 2",
            "COMMAND GETKEYS EVAL s 2 a b c",
            "COMMAND GETKEYS ZUNIONSTORE d 2 a b",
            "COMMAND GETKEYS XREAD COUNT 1 STREAMS a b 0 0",
            "COMMAND GETKEYS SORT a BY x STORE d",
            "COMMAND GETKEYS LMPOP 2 a b LEFT",
            "COMMAND GETKEYS PING",
            "COMMAND GETKEYS FOO",
            "COMMAND GETKEYS GET",
            "COMMAND GETKEYS EVAL s 9 a",
            "COMMAND GETKEYSANDFLAGS GET a",
            "COMMAND GETKEYSANDFLAGS SET a 1",
            "COMMAND GETKEYSANDFLAGS SET a 1 GET",
            "COMMAND GETKEYSANDFLAGS MSET a 1 b 2",
            "COMMAND GETKEYSANDFLAGS LMOVE a b LEFT RIGHT",
            "COMMAND GETKEYSANDFLAGS SORT a STORE b",
            "COMMAND GETKEYSANDFLAGS ZUNIONSTORE d 2 a b",
            "COMMAND GETKEYSANDFLAGS BITOP AND d a b",
            "COMMAND GETKEYSANDFLAGS XGROUP CREATE s g 0",
            "COMMAND GETKEYSANDFLAGS EVAL s 2 a b c",
            "COMMAND GETKEYSANDFLAGS PING",
            "COMMAND GETKEYSANDFLAGS FOO",
            "COMMAND FOO",
            "COMMAND INFO nosuch",
            "SHUTDOWN SAVE NOSAVE",
            "SHUTDOWN FOO",
            "FOO \"a\\r\\nb\" c",
            "get",
            "OBJECT FOO",
        ] {
            if line.starts_with("LOLWUT") || line == "DEBUG" {
                continue;
            }
            d.same(line);
        }
        d.shape("TIME");
        d.shape("LASTSAVE");
        d.shape("CLIENT ID");
        d.shape("HELLO");
        d.same("QUIT");
    });
}

/// Commands, or forms of commands, of a Redis later than 7.0.
const NEWER: [&str; 18] = [
    "client|setinfo",
    "client|no-touch",
    "client|capa",
    "hexpire",
    "hexpireat",
    "hexpiretime",
    "hgetdel",
    "hgetex",
    "hpersist",
    "hpexpire",
    "hpexpireat",
    "hpexpiretime",
    "hpttl",
    "hsetex",
    "httl",
    "waitaof",
    "zrank",
    "zrevrank",
];

#[test]
fn what_commands_are_is_said_alike() {
    both(|d| {
        let Wire::Array(names) = d.ours(&words("COMMAND LIST")) else { panic!("a list") };
        let mut seen = 0;
        for name in names {
            let Wire::Bulk(name) = name else { panic!("names are strings") };
            let name = String::from_utf8(name).unwrap();
            // These are of a later Redis, or hold subcommands that are not here, or say in words
            // what they are.
            let noted = [
                "bitfield", "eval", "eval_ro", "fcall", "fcall_ro", "getex", "pfcount", "set",
                "sort", "sort_ro", "xadd",
            ];
            let other = NEWER.contains(&&*name) || ["client", "module"].contains(&&*name);
            if other || noted.contains(&&*name) {
                continue;
            }
            d.sorted(&format!("COMMAND INFO {name}"));
            seen += 1;
        }
        assert!(seen > 300, "{seen}");
        for line in [
            "COMMAND LIST FILTERBY ACLCAT scripting",
            "COMMAND LIST FILTERBY ACLCAT hyperloglog",
            "COMMAND LIST FILTERBY ACLCAT geo",
            "COMMAND LIST FILTERBY PATTERN cluster*",
            "COMMAND LIST FILTERBY PATTERN xinfo*",
            "ACL CAT geo",
            "CLUSTER HELP",
            "CLUSTER KEYSLOT a",
            "CLUSTER NOSUCH",
            "CLUSTER",
            "CLUSTER RESET a b c",
        ] {
            d.sorted(line);
        }
    });
}

#[test]
fn subcommands_called_like_commands_wait_for_exec() {
    both(|d| {
        for line in ["MULTI", "SLOWLOG RESET", "LATENCY RESET", "PING", "EXEC"] {
            d.same(line);
        }
    });
}

#[test]
fn migrating_nothing_and_nonsense() {
    both(|d| {
        d.same("SET k v");
        for line in [
            "MIGRATE 127.0.0.1 1 missing 0 10",
            "MIGRATE 127.0.0.1 1 \"\" 0 10 KEYS a b",
            "MIGRATE 127.0.0.1 1 k 0 10 KEYS a b",
            "MIGRATE 127.0.0.1 1 k 0 10 AUTH",
            "MIGRATE 127.0.0.1 1 k 0 10 AUTH2 a",
            "MIGRATE 127.0.0.1 1 k 0 10 NOSUCH",
            "MIGRATE 127.0.0.1 1 k 0 word",
            "MIGRATE 127.0.0.1 1 k word 10",
            "MIGRATE 127.0.0.1 1 k 0",
            "COMMAND GETKEYS MIGRATE 127.0.0.1 6379 key1 0 10 COPY",
            "COMMAND GETKEYS MIGRATE 127.0.0.1 6379 \"\" 0 10 KEYS a b",
            "GET k",
        ] {
            d.same(line);
        }
    });
}

/// The parts of COMMAND DOCS that are facts and not words.
fn facts(wire: Wire) -> Wire {
    const WORDS: [&[u8]; 5] =
        [b"summary", b"complexity", b"history", b"replaced_by", b"subcommands"];
    let words = |name: &Wire| matches!(name, Wire::Bulk(name) if WORDS.contains(&&**name));
    match wire {
        Wire::Map(pairs) => Wire::Map(
            pairs
                .into_iter()
                .filter(|(name, _)| !words(name))
                .map(|(n, v)| (n, facts(v)))
                .collect(),
        ),
        other => other,
    }
}

#[test]
fn arguments_of_commands_are_described_alike() {
    resp3(|d| {
        let Wire::Array(names) = d.ours(&words("COMMAND LIST")) else { panic!("a list") };
        for name in names {
            let Wire::Bulk(name) = name else { panic!("names are strings") };
            let name = String::from_utf8(name).unwrap();
            if !NEWER.contains(&&*name) {
                d.relaxed(&format!("COMMAND DOCS {name}"), facts);
            }
        }
    });
}
