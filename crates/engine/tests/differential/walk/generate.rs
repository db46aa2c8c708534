//! Commands by chance, mostly well formed, over a few keys so that they meet.
//!
//! A template is a line of words; words in braces stand for something chosen anew each time. To
//! add a command to the walk, add a line.

/// Makes commands.
pub(super) struct Generator {
    rng: fastrand::Rng,
}

/// Groups of templates; each group is as likely as any other.
const GROUPS: &[&[&str]] = &[STRINGS, KEYS, LISTS, SETS, HASHES, ZSETS, STREAMS, SKETCHES, PLACES];

const STRINGS: &[&str] = &[
    "SET {s} {v}",
    "SET {s} {v} NX",
    "SET {s} {v} XX",
    "SET {s} {v} GET",
    "SET {s} {v} EX {ttl}",
    "SET {s} {v} KEEPTTL",
    "SET {k} {v}",
    "GET {s}",
    "GET {k}",
    "GETSET {s} {v}",
    "GETDEL {s}",
    "GETEX {s}",
    "GETEX {s} EX {ttl}",
    "GETEX {s} PERSIST",
    "SETNX {s} {v}",
    "SETEX {s} {ttl} {v}",
    "PSETEX {s} {ttl}000 {v}",
    "MGET {s} {k} {s}",
    "MSET {s} {v} {s} {v}",
    "MSETNX {s} {v} {s} {v}",
    "STRLEN {s}",
    "APPEND {s} {v}",
    "SETRANGE {s} {n} {v}",
    "GETRANGE {s} {i} {i}",
    "INCR {s}",
    "DECR {s}",
    "INCRBY {s} {i}",
    "DECRBY {s} {i}",
    "INCRBYFLOAT {s} {f}",
    "LCS {s} {s}",
    "LCS {s} {s} IDX WITHMATCHLEN",
    "SETBIT {s} {n} {bit}",
    "GETBIT {s} {n}",
    "BITCOUNT {s}",
    "BITCOUNT {s} {i} {i}",
    "BITCOUNT {s} {i} {i} BIT",
    "BITPOS {s} {bit}",
    "BITPOS {s} {bit} {i}",
    "BITPOS {s} {bit} {i} {i} BIT",
    "BITOP {bitop} {s} {s} {s}",
    "BITOP NOT {s} {s}",
    "BITFIELD {s} GET u{width} {n} SET i{width} {n} {i} INCRBY u{width} #{n} {i}",
    "BITFIELD {s} OVERFLOW {overflow} INCRBY i{width} {n} {i} SET u{width} {n} {i}",
];

const KEYS: &[&str] = &[
    "DEL {k}",
    "DEL {k} {k}",
    "UNLINK {k}",
    "EXISTS {k} {k}",
    "TYPE {k}",
    "TOUCH {k}",
    "RENAME {k} {k}",
    "RENAMENX {k} {k}",
    "COPY {k} {k}",
    "COPY {k} {k} REPLACE",
    "COPY {k} {k} DB 1 REPLACE",
    "MOVE {k} 1",
    "EXPIRE {k} {ttl}",
    "EXPIRE {k} {ttl} {condition}",
    "PEXPIRE {k} {ttl}000",
    "EXPIRE {k} -1",
    "EXPIREAT {k} 33000000000",
    "PEXPIREAT {k} 33000000000123 {condition}",
    "PERSIST {k}",
    "TTL {k}",
    "PTTL {k}",
    "EXPIRETIME {k}",
    "PEXPIRETIME {k}",
    "OBJECT ENCODING {k}",
    "KEYS {pattern}",
    "DBSIZE",
    "PING",
    "ECHO {v}",
    "FOO {k}",
];

const LISTS: &[&str] = &[
    "LPUSH {l} {v}",
    "RPUSH {l} {v} {v} {v}",
    "LPUSHX {l} {v}",
    "RPUSHX {l} {v}",
    "RPUSH {k} {v}",
    "LPOP {l}",
    "RPOP {l}",
    "LPOP {l} {n}",
    "RPOP {l} {n}",
    "LLEN {l}",
    "LRANGE {l} {i} {i}",
    "LINDEX {l} {i}",
    "LSET {l} {i} {v}",
    "LREM {l} {i} {v}",
    "LTRIM {l} {i} {i}",
    "LINSERT {l} {where} {v} {v}",
    "LPOS {l} {v}",
    "LPOS {l} {v} COUNT 0 RANK {i}",
    "LMOVE {l} {l} {side} {side}",
    "RPOPLPUSH {l} {l}",
    "LMPOP 2 {l} {l} {side} COUNT {n}",
];

const SETS: &[&str] = &[
    "SADD {t} {v}",
    "SADD {t} {m} {m} {m}",
    "SREM {t} {m} {m}",
    "SISMEMBER {t} {m}",
    "SMISMEMBER {t} {m} {m}",
    "SCARD {t}",
    "SMEMBERS {t}",
    "SMOVE {t} {t} {m}",
    "SINTER {t} {t}",
    "SUNION {t} {t} {t}",
    "SDIFF {t} {t}",
    "SINTERCARD 2 {t} {t} LIMIT {n}",
    "SINTERSTORE {t} {t} {t}",
    "SUNIONSTORE {t} {t} {t}",
    "SDIFFSTORE {t} {t} {t}",
    "SADD {k} {m}",
];

const HASHES: &[&str] = &[
    "HSET {h} {m} {v}",
    "HSET {h} {m} {v} {m} {v}",
    "HSETNX {h} {m} {v}",
    "HMSET {h} {m} {v}",
    "HGET {h} {m}",
    "HMGET {h} {m} {m}",
    "HGETALL {h}",
    "HDEL {h} {m} {m}",
    "HLEN {h}",
    "HEXISTS {h} {m}",
    "HSTRLEN {h} {m}",
    "HKEYS {h}",
    "HVALS {h}",
    "HINCRBY {h} {m} {i}",
    "HSET {k} {m} {v}",
    "HINCRBYFLOAT {h} {m} {f}",
];

const ZSETS: &[&str] = &[
    "ZADD {z} {f} {m}",
    "ZADD {z} {i} {m} {i} {m}",
    "ZADD {z} {when} {i} {m}",
    "ZADD {z} CH {i} {m} {f} {m}",
    "ZADD {z} INCR {f} {m}",
    "ZADD {k} {i} {m}",
    "ZINCRBY {z} {f} {m}",
    "ZADD {z} {i} {m} {i} {m} {f} {m}",
    "ZADD {z} 0 {m} 0 {m} 0 {v}",
    "ZADD {z} {zadd} {i} {m} {i} {m}",
    "ZADD {z} {zadd} CH {i} {m}",
    "ZADD {z} {zadd} INCR {f} {m}",
    "ZINCRBY {z} {i} {m}",
    "ZREM {z} {m} {m}",
    "ZCARD {z}",
    "ZSCORE {z} {m}",
    "ZMSCORE {z} {m} {m}",
    "ZRANK {z} {m}",
    "ZREVRANK {z} {m}",
    "ZCOUNT {z} {i} {i}",
    // By name only where all scores are equal: elsewhere Redis leaves the answer open.
    "ZADD zl 0 {m} 0 {m}",
    "ZLEXCOUNT zl - [{m}",
    "ZRANGE {z} {i} {i}",
    "ZRANGE {z} {i} {i} WITHSCORES",
    "ZRANGE {z} {i} {i} REV",
    "ZRANGE {z} ({i} {i} BYSCORE LIMIT {n} {n}",
    "ZRANGE zl [{m} [{m} BYLEX",
    "ZRANGESTORE {z} {z} {i} {i}",
    "ZREVRANGE {z} {i} {i} WITHSCORES",
    "ZRANGEBYSCORE {z} {i} +inf WITHSCORES",
    "ZREVRANGEBYSCORE {z} {i} -inf",
    "ZRANGEBYLEX {z} - +",
    "ZREMRANGEBYRANK {z} {i} {i}",
    "ZREMRANGEBYSCORE {z} {i} {i}",
    "ZREMRANGEBYLEX zl [{m} [{m}",
    "ZPOPMIN {z}",
    "ZPOPMAX {z} {n}",
    "ZMPOP 2 {z} {z} MIN COUNT {n}",
    "ZUNIONSTORE {z} 2 {z} {z} WEIGHTS {i} {f}",
    "ZINTERSTORE {z} 2 {z} {t} AGGREGATE MAX",
    "ZUNION 2 {z} {z} WITHSCORES",
    "ZINTER 2 {z} {z}",
    "ZDIFF 2 {z} {z} WITHSCORES",
    "ZDIFFSTORE {z} 2 {z} {z}",
    "ZINTERCARD 2 {z} {z} LIMIT {n}",
    "ZCOUNT {z} {bound} {bound}",
    "ZRANGE {z} {i} {i} REV WITHSCORES",
    "ZRANGE {z} {bound} {bound} BYSCORE LIMIT {i} {i}",
    "ZRANGE {z} {bound} {bound} BYSCORE REV WITHSCORES",
    "ZRANGEBYSCORE {z} {bound} {bound} WITHSCORES",
    "ZREVRANGEBYSCORE {z} {bound} {bound} LIMIT {n} {n}",
    "ZRANGESTORE {z} {z} {bound} {bound} BYSCORE",
    "ZREMRANGEBYSCORE {z} {bound} {bound}",
    "ZUNION 2 {z} {t} WEIGHTS {i} {f} AGGREGATE MAX WITHSCORES",
    "ZINTER 2 {z} {z} AGGREGATE MIN WITHSCORES",
    "ZINTER 2 {z} {t} WITHSCORES",
    "ZUNIONSTORE {z} 2 {z} {z} WEIGHTS 2 3",
    "ZINTERSTORE {z} 2 {z} {t}",
    "ZRANDMEMBER {z} {n}",
    "ZADD {k} {i} {m}",
    "ZLEXCOUNT {z} - +",
];

const STREAMS: &[&str] = &[
    "XADD {x} {id} {m} {v}",
    "XADD {x} MAXLEN {n} {id} {m} {v}",
    "XADD {x} NOMKSTREAM {id} {m} {v}",
    "XADD {k} {id} {m} {v} {m} {v}",
    "XLEN {x}",
    "XRANGE {x} - +",
    "XRANGE {x} {n} {id} COUNT {n}",
    "XREVRANGE {x} + {id}",
    "XREAD COUNT {n} STREAMS {x} {x} {id} 0",
    "XDEL {x} {id} {id}",
    "XTRIM {x} MAXLEN {n}",
    "XTRIM {x} MINID {id}",
    "XADD {x} {id} {m} {v} {m} {v}",
    "XADD {x} {n}-* {m} {v}",
    "XADD {x} MAXLEN ~ {n} {id} {m} {v}",
    "XADD {x} MINID {n} {id} {m} {v}",
    "XRANGE {x} {id} {id}",
    "XRANGE {x} - + COUNT {n}",
    "XRANGE {x} ({id} +",
    "XREVRANGE {x} {id} {id} COUNT {n}",
    "XREVRANGE {x} + -",
    "XREAD STREAMS {x} $",
    "XINFO STREAM {x}",
    "XINFO GROUPS {x}",
    "XSETID {x} {id}",
    "XGROUP CREATE {x} {g} {id} MKSTREAM",
    "XGROUP CREATE {x} {g} 0 ENTRIESREAD {n}",
    "XGROUP SETID {x} {g} {id}",
    "XGROUP DESTROY {x} {g}",
    "XGROUP CREATECONSUMER {x} {g} {m}",
    "XGROUP DELCONSUMER {x} {g} {m}",
    "XREADGROUP GROUP {g} {m} COUNT {n} STREAMS {x} >",
    "XREADGROUP GROUP {g} {m} NOACK STREAMS {x} >",
    "XREADGROUP GROUP {g} {m} STREAMS {x} {id}",
    "XACK {x} {g} {id} {id}",
    "XPENDING {x} {g}",
    "XCLAIM {x} {g} {m} 0 {id} {id}",
    "XCLAIM {x} {g} {m} 0 {id} FORCE JUSTID",
    "XAUTOCLAIM {x} {g} {m} 0 {id} COUNT {n}",
    "XADD {k} {id} {m} {v}",
];

const SKETCHES: &[&str] = &[
    "PFADD {p} {m} {v}",
    "PFADD {p} {v} {v} {v} {v} {i} {f}",
    "PFADD {p} {i} {i} {i} {i} {i} {i} {i} {i} {i} {i}",
    "PFADD {p}",
    "PFCOUNT {p}",
    "PFCOUNT {p} {p}",
    "PFMERGE {p} {p} {p}",
    "PFADD {k} {m}",
    "PFCOUNT {k}",
    "PFDEBUG ENCODING {p}",
    "GETRANGE {p} 0 -1",
    "STRLEN {p}",
    "SETBIT {p} {n} {bit}",
    "APPEND {p} {v}",
    "DEL {p}",
];

const PLACES: &[&str] = &[
    "GEOADD {e} {lon} {lat} {m}",
    "GEOADD {e} {lon} {lat} {m} {lon} {lat} {m}",
    "GEOADD {e} {when} {lon} {lat} {m}",
    "GEOADD {e} CH {lon} {lat} {m}",
    "GEODIST {e} {m} {m}",
    "GEODIST {e} {m} {m} {unit}",
    "GEOHASH {e} {m} {m}",
    "GEOPOS {e} {m} {m}",
    "GEOPOS {z} {m} {m}",
    "GEODIST {z} {m} {m}",
    "GEORADIUS {e} {lon} {lat} {n}00 {unit} WITHDIST WITHHASH WITHCOORD",
    "GEORADIUS_RO {e} {lon} {lat} {n}000 {unit} COUNT {n} ANY",
    "GEORADIUSBYMEMBER {e} {m} {n}00 {unit}",
    "GEORADIUSBYMEMBER_RO {e} {m} {n}000 {unit} WITHCOORD",
    "GEORADIUS {e} {lon} {lat} {n}000 km STORE {e}",
    "GEOSEARCH {e} FROMLONLAT {lon} {lat} BYRADIUS {n}00 {unit} WITHDIST",
    "GEOSEARCH {e} FROMLONLAT {lon} {lat} BYBOX {n}00 {n}000 km",
    "GEOSEARCH {e} FROMMEMBER {m} BYBOX {n}00 {n}00 mi WITHCOORD WITHHASH",
    "GEOSEARCH {k} FROMMEMBER {m} BYRADIUS {n}000 km",
    "GEOSEARCHSTORE {e} {e} FROMLONLAT {lon} {lat} BYRADIUS {n}000 km",
    "GEOSEARCHSTORE {e} {e} FROMMEMBER {m} BYRADIUS {n}000 km STOREDIST",
    "ZREM {e} {m}",
    "DEL {e}",
];

/// Would a number put anywhere make the answer depend on the millisecond, or Redis busy for ever?
fn timed(template: &str) -> bool {
    template.contains("EX") || template.contains("RANDMEMBER")
}

impl Generator {
    pub(super) fn new(rng: fastrand::Rng) -> Generator {
        Generator { rng }
    }

    pub(super) fn command(&mut self) -> Vec<Vec<u8>> {
        let group = loop {
            let group = GROUPS[self.rng.usize(..GROUPS.len())];
            if !group.is_empty() {
                break group;
            }
        };
        let template = group[self.rng.usize(..group.len())];
        let mut argv: Vec<Vec<u8>> = template.split(' ').map(|word| self.word(word)).collect();
        // Now and then a word is missing, doubled or out of place.
        match self.rng.u32(..200) {
            0 => {
                argv.truncate(self.rng.usize(1..=argv.len()));
            }
            1 => {
                let word = argv[self.rng.usize(..argv.len())].clone();
                argv.push(word);
            }
            2 if argv.len() > 2 && !timed(template) => {
                let at = self.rng.usize(1..argv.len());
                argv[at] = self.value();
            }
            _ => {}
        }
        // An empty database and one that waits have nothing to say here.
        if argv[0].is_empty() { vec![b"PING".to_vec()] } else { argv }
    }

    /// A word of a template with its braces filled in.
    fn word(&mut self, word: &str) -> Vec<u8> {
        let mut out = Vec::new();
        let mut rest = word;
        while let Some(open) = rest.find('{') {
            let close = open + rest[open..].find('}').unwrap();
            out.extend_from_slice(&rest.as_bytes()[..open]);
            out.extend(self.chosen(&rest[open + 1..close]));
            rest = &rest[close + 1..];
        }
        out.extend_from_slice(rest.as_bytes());
        out
    }

    fn chosen(&mut self, what: &str) -> Vec<u8> {
        let among = |rng: &mut fastrand::Rng, words: &[&str]| {
            words[rng.usize(..words.len())].as_bytes().to_vec()
        };
        let rng = &mut self.rng;
        match what {
            // Keys: of a type mostly, of any type, of the type's first letter.
            "k" => {
                let kind = *rng.choice(b"sltzhxpe").unwrap();
                format!("{}{}", char::from(kind), rng.u32(..4)).into_bytes()
            }
            "s" | "l" | "t" | "h" | "z" | "x" | "p" | "e" => {
                format!("{what}{}", rng.u32(..4)).into_bytes()
            }
            "v" => self.value(),
            "m" => format!("m{}", rng.u32(..12)).into_bytes(),
            "i" => match rng.u32(..30) {
                0 => b"9223372036854775807".to_vec(),
                1 => b"-9223372036854775808".to_vec(),
                _ => rng.i32(-12..12).to_string().into_bytes(),
            },
            "n" => rng.u32(..40).to_string().into_bytes(),
            "f" => self.float(),
            // Hardly ever twice the same, for GT and LT would then depend on the millisecond.
            "ttl" => rng.u32(100..100_000_000).to_string().into_bytes(),
            "bit" => rng.u32(..2).to_string().into_bytes(),
            "width" => rng.u32(1..64).to_string().into_bytes(),
            "bitop" => among(rng, &["AND", "OR", "XOR"]),
            "overflow" => among(rng, &["WRAP", "SAT", "FAIL"]),
            "condition" => among(rng, &["NX", "XX", "GT", "LT"]),
            "pattern" => among(rng, &["*", "s*", "?1", "[l-z]?", "*[^0-2]"]),
            "zadd" => among(rng, &["NX", "XX", "GT", "LT"]),
            "bound" => match rng.u32(..6) {
                0 => b"-inf".to_vec(),
                1 => b"+inf".to_vec(),
                2 => format!("({}", rng.i32(-12..12)).into_bytes(),
                _ => rng.i32(-12..12).to_string().into_bytes(),
            },
            "lon" => format!("{:.3}", rng.f64() * 370.0 - 185.0).into_bytes(),
            "lat" => format!("{:.3}", rng.f64() * 172.0 - 86.0).into_bytes(),
            "unit" => among(rng, &["m", "km", "mi", "ft"]),
            "g" => format!("g{}", rng.u32(..2)).into_bytes(),
            "where" => among(rng, &["BEFORE", "AFTER"]),
            "when" => among(rng, &["NX", "XX", "GT", "LT"]),
            "id" => match rng.u32(..8) {
                0 => b"*x".to_vec(),
                1 => format!("{}-*", rng.u32(..60)).into_bytes(),
                _ => format!("{}-{}", rng.u32(..60), rng.u32(..5)).into_bytes(),
            },
            "side" => among(rng, &["LEFT", "RIGHT"]),
            other => panic!("no such choice: {other}"),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        let rng = &mut self.rng;
        match rng.u32(..10) {
            0 => rng.i64(..).to_string().into_bytes(),
            1..=4 => rng.i32(-20..200).to_string().into_bytes(),
            5 => self.float(),
            6 => (0..rng.usize(..60)).map(|_| rng.u8(..)).collect(),
            7 => b"a".repeat(rng.usize(..100)),
            _ => format!("value{}", rng.u32(..10)).into_bytes(),
        }
    }

    fn float(&mut self) -> Vec<u8> {
        let rng = &mut self.rng;
        match rng.u32(..12) {
            0 => b"inf".to_vec(),
            1 => b"-inf".to_vec(),
            2 => format!("{:e}", f64::from_bits(rng.u64(..))).into_bytes(),
            3 => format!("{}", rng.f64()).into_bytes(),
            4 => format!("{}e{}", rng.i32(-99..99), rng.i32(-20..20)).into_bytes(),
            _ => format!("{}.{}", rng.i32(-99..99), rng.u32(..100)).into_bytes(),
        }
    }
}
