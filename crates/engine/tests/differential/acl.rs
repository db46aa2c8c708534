//! Users: rules and how they are told, what is refused where, logging in.

use crate::harness::{ClientNumber, Differential, apart};
use crate::wire::Wire;

/// Single commands may stand in any order among the rules: the words of each string, sorted.
fn words_sorted(wire: Wire) -> Wire {
    let all = |items: Vec<Wire>| items.into_iter().map(words_sorted).collect();
    match wire {
        Wire::Bulk(text) => {
            let mut parts: Vec<&[u8]> = text.split(|b| *b == b' ').collect();
            parts.sort_unstable();
            Wire::Bulk(parts.join(&b' '))
        }
        Wire::Array(items) => Wire::Array(all(items)),
        Wire::Map(pairs) => {
            Wire::Map(pairs.into_iter().map(|(k, v)| (words_sorted(k), words_sorted(v))).collect())
        }
        other => other,
    }
}

/// A log without what differs by nature: the age, and all of the client but its user.
fn log_facts(wire: Wire) -> Wire {
    let part = |name: &Wire, value: Wire| match (name, value) {
        (Wire::Bulk(name), _) if name == b"age-seconds" => Wire::Int(0),
        (Wire::Bulk(name), Wire::Bulk(text)) if name == b"client-info" => {
            let text = String::from_utf8(text).unwrap();
            let kept = text.split(' ').filter(|part| {
                ["name=", "cmd=", "user=", "db="].iter().any(|p| part.starts_with(p))
            });
            Wire::Bulk(kept.collect::<Vec<_>>().join(" ").into_bytes())
        }
        (_, value) => value,
    };
    let entry = |entry: Wire| match entry {
        Wire::Map(pairs) => {
            Wire::Map(pairs.into_iter().map(|(k, v)| (k.clone(), part(&k, v))).collect())
        }
        Wire::Array(flat) => Wire::Array(
            flat.chunks(2)
                .flat_map(|pair| [pair[0].clone(), part(&pair[0], pair[1].clone())])
                .collect(),
        ),
        other => other,
    };
    match wire {
        Wire::Array(entries) => Wire::Array(entries.into_iter().map(entry).collect()),
        other => other,
    }
}

/// A client that is logged in as this user, whom `rules` make.
fn user(d: &mut Differential, name: &str, rules: &str) -> ClientNumber {
    d.same("CONFIG RESETSTAT");
    d.same(&format!("ACL SETUSER {name} on nopass {rules}"));
    let client = d.client();
    d.same_on(client, &format!("AUTH {name} any"));
    client
}

fn all_on(d: &mut Differential, client: ClientNumber, lines: &[&str]) {
    for line in lines {
        d.same_on(client, line);
    }
}

#[test]
fn rules_are_told_back() {
    const HASH: &str = "#34344e4d60c2b6d639b7bd22e18f2b0b91bc34bf0ac5f9952744435093cfb4e6";
    apart(|d| {
        for line in ["ACL LIST", "ACL GETUSER default", "ACL USERS", "ACL WHOAMI", "ACL CAT"] {
            d.same(line);
        }
        let rules = [
            "",
            "on",
            "off",
            "ON NOPASS",
            "on >one >two >one",
            "nopass >one",
            ">one nopass",
            ">one resetpass",
            "nopass resetpass",
            ">one >two <one",
            HASH,
            "skip-sanitize-payload",
            "skip-sanitize-payload sanitize-payload",
            "~a* ~b* ~a*",
            "~*",
            "allkeys",
            "ALLKEYS resetkeys ~x",
            "%R~r* %W~w* %RW~b* %WR~c* %r~d*",
            "%R~x %W~x",
            "%R",
            "~",
            "&a &b* &a",
            "allchannels",
            "allchannels resetchannels &x",
            "&*",
            "+@all",
            "allcommands",
            "+@all -@all",
            "allcommands nocommands +get",
            "+get +set +GET -set",
            "+@all -get",
            "+@all -get +get",
            "+config|get +config|set",
            "+config -config|set",
            "+@all -config +config|get",
            "+@all -client|kill",
            "+select|0 +select|1 +SELECT|0",
            "+@all -select +select|0",
            "+select|0 +select",
            "+select|0 -select",
            "+memory|doctor +memory",
            "+@string",
            "+@String -@string",
            "+@read +@write",
            "+@hash -hget +@set",
            "+@all -@dangerous",
            "+@all -@admin -@slow",
            "(~a +get) (%R~b &c +@read -get)",
            "()",
            "( +get ~a )",
            "(+get ~a) clearselectors",
            "on >p ~k +@all (+get ~a) reset",
            "on >p ~k &c +get reset +set",
            "(\"~a\" '+get')",
            "(+get ~'quote)",
        ];
        for rules in rules {
            d.same(&format!("ACL SETUSER u reset {rules}"));
            d.relaxed("ACL GETUSER u", words_sorted);
            d.relaxed("ACL LIST", words_sorted);
        }
        let Wire::Array(categories) = d.same("ACL CAT") else { panic!("a list") };
        for category in categories {
            let Wire::Bulk(category) = category else { panic!("names are strings") };
            let category = String::from_utf8(category).unwrap();
            d.same(&format!("ACL SETUSER u reset +@{category}"));
            d.same("ACL GETUSER u");
            d.same(&format!("ACL SETUSER u reset +@all -@{category}"));
            d.same("ACL GETUSER u");
        }
        for line in ["ACL USERS", "ACL GETUSER nobody", "ACL DELUSER u nobody", "ACL USERS"] {
            d.same(line);
        }
        d.same("CONFIG SET acl-pubsub-default allchannels");
        for line in [
            "ACL SETUSER v",
            "ACL SETUSER v (~a)",
            "ACL GETUSER v",
            "ACL SETUSER v &x",
            "ACL SETUSER v reset",
            "ACL GETUSER v",
            "CONFIG SET acl-pubsub-default resetchannels",
            "ACL GETUSER v",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn wrong_rules_change_nothing() {
    apart(|d| {
        d.same("ACL SETUSER u on >pw ~k &c +get");
        for rule in [
            "nosuch",
            "+nosuch",
            "-nosuch",
            "+@nosuch",
            "-@nosuch",
            "+config|nosuch",
            "-config|nosuch",
            "+config|get|port",
            "+get|a|b",
            "-get|a",
            "+select|",
            "+",
            "-",
            "+@",
            "~* ~a",
            "allkeys %R~a",
            "&* &a",
            "\"~a b\"",
            "\"&a b\"",
            "\"~a\\x00b\"",
            "%X~a",
            "%RR~a",
            "%Ra",
            "<nopw",
            "#short",
            "#34344e4d60c2b6d639b7bd22e18f2b0b91bc34bf0ac5f9952744435093cfb4eQ",
            "!34344e4d60c2b6d639b7bd22e18f2b0b91bc34bf0ac5f9952744435093cfb4e6",
            "!short",
            "(",
            ")",
            "(~a +get",
            "(+nosuch)",
            "(&* &a)",
            "(on)",
            "\" () \"",
            "off +nosuch",
        ] {
            d.same(&format!("ACL SETUSER u {rule}"));
            d.same(&format!("ACL SETUSER fresh {rule}"));
        }
        for line in [
            "ACL LIST",
            "ACL SETUSER \"a b\" on",
            "ACL SETUSER \"a\\x00b\" on",
            "ACL SETUSER",
            "ACL GETUSER",
            "ACL GETUSER a b",
            "ACL DELUSER",
            "ACL DELUSER u default",
            "ACL DELUSER default",
            "ACL LIST x",
            "ACL CAT a b",
            "ACL CAT nosuch",
            "ACL WHOAMI x",
            "ACL GENPASS 0",
            "ACL GENPASS 4097",
            "ACL GENPASS -5",
            "ACL GENPASS x",
            "ACL GENPASS 1 2",
            "ACL LOG x",
            "ACL LOG 1 2",
            "ACL LOG -1",
            "ACL LOAD",
            "ACL SAVE",
            "ACL LOAD x",
            "ACL HELP x",
            "ACL NOSUCH",
            "ACL",
            "ACL DRYRUN",
            "ACL DRYRUN u",
            "ACL DRYRUN nobody GET a",
            "ACL DRYRUN u NOSUCH a",
            "ACL DRYRUN u CONFIG NOSUCH",
            "ACL DRYRUN u GET",
            "ACL DRYRUN u CONFIG SET a",
            "ACL USERS",
        ] {
            d.same(line);
        }
        for bits in ["", "1", "5", "8", "32", "4096"] {
            let length = |wire: Wire| match wire {
                Wire::Bulk(password) => Wire::Int(password.len() as i64),
                other => other,
            };
            d.relaxed(&format!("ACL GENPASS {bits}"), length);
        }
    });
}

#[test]
fn what_is_done_with_keys_needs_that_right() {
    const COMMANDS: &[&str] = &[
        "APPEND K v",
        "BITCOUNT K",
        "BITFIELD K",
        "BITFIELD K GET u4 0",
        "BITFIELD K SET u4 0 1",
        "BITFIELD K OVERFLOW WRAP GET u4 0",
        "BITFIELD K OVERFLOW WRAP GET u4 0 INCRBY u4 0 1",
        "BITFIELD K GET u4",
        "BITFIELD_RO K GET u4 0",
        "BITOP AND K k2 r",
        "BITOP AND w K K",
        "BITPOS K 1",
        "BLMOVE K w LEFT RIGHT 1",
        "BLMOVE b K LEFT RIGHT 1",
        "BLMPOP 1 1 K LEFT",
        "BLPOP K K 1",
        "BRPOP K 1",
        "BRPOPLPUSH b K 1",
        "BZMPOP 1 1 K MIN",
        "BZPOPMAX K 1",
        "BZPOPMIN K 1",
        "COPY K w",
        "COPY r K",
        "DECR K",
        "DECRBY K 1",
        "DEL K",
        "DUMP K",
        "EVAL s 1 K K",
        "EVAL s 0 K",
        "EVAL s 9 K",
        "EVAL s x K",
        "EVALSHA s 1 K",
        "EVALSHA_RO s 1 K",
        "EVAL_RO s 1 K",
        "EXISTS K",
        "EXPIRE K 1",
        "EXPIREAT K 1",
        "EXPIRETIME K",
        "FCALL f 1 K",
        "FCALL_RO f 1 K",
        "GEOADD K 1 1 m",
        "GEODIST K a b",
        "GEOHASH K m",
        "GEOPOS K m",
        "GEORADIUS K 1 1 1 m",
        "GEORADIUS K 1 1 1 m STORE w",
        "GEORADIUS r 1 1 1 m STORE K",
        "GEORADIUS r 1 1 1 m STOREDIST K",
        "GEORADIUSBYMEMBER K m 1 m",
        "GEORADIUSBYMEMBER r m 1 m STORE K",
        "GEORADIUSBYMEMBER_RO K m 1 m",
        "GEORADIUS_RO K 1 1 1 m",
        "GEOSEARCH K FROMMEMBER m BYRADIUS 1 m",
        "GEOSEARCHSTORE K r FROMMEMBER m BYRADIUS 1 m",
        "GEOSEARCHSTORE w K FROMMEMBER m BYRADIUS 1 m",
        "GET K",
        "GETBIT K 1",
        "GETDEL K",
        "GETEX K",
        "GETRANGE K 0 1",
        "GETSET K v",
        "HDEL K f",
        "HEXISTS K f",
        "HGET K f",
        "HGETALL K",
        "HINCRBY K f 1",
        "HINCRBYFLOAT K f 1",
        "HKEYS K",
        "HLEN K",
        "HMGET K f",
        "HMSET K f v",
        "HRANDFIELD K",
        "HSCAN K 0",
        "HSET K f v",
        "HSETNX K f v",
        "HSTRLEN K f",
        "HVALS K",
        "INCR K",
        "INCRBY K 1",
        "INCRBYFLOAT K 1",
        "LCS K r",
        "LINDEX K 0",
        "LINSERT K BEFORE a b",
        "LLEN K",
        "LMOVE K w LEFT RIGHT",
        "LMOVE b K LEFT RIGHT",
        "LMPOP 1 K LEFT",
        "LPOP K",
        "LPOS K v",
        "LPUSH K v",
        "LPUSHX K v",
        "LRANGE K 0 1",
        "LREM K 0 v",
        "LSET K 0 v",
        "LTRIM K 0 1",
        "MEMORY USAGE K",
        "MEMORY DOCTOR",
        "MGET K r",
        "MGET r K",
        "MIGRATE h 1 K 0 1",
        "MIGRATE h 1 \"\" 0 1 KEYS K b",
        "MIGRATE h 1 \"\" 0 1 AUTH KEYS KEYS K",
        "MIGRATE h 1 \"\" 0 1 AUTH2 KEYS KEYS KEYS K",
        "MOVE K 1",
        "MSET K v w v",
        "MSET w v K v",
        "MSETNX K v",
        "OBJECT ENCODING K",
        "OBJECT FREQ K",
        "OBJECT IDLETIME K",
        "OBJECT REFCOUNT K",
        "PERSIST K",
        "PEXPIRE K 1",
        "PEXPIREAT K 1",
        "PEXPIRETIME K",
        "PFADD K a",
        "PFCOUNT K",
        "PFMERGE K r",
        "PFMERGE b K",
        "PSETEX K 1 v",
        "PTTL K",
        "RENAME K w",
        "RENAME b K",
        "RENAMENX K w",
        "RENAMENX b K",
        "RESTORE K 0 v",
        "RPOP K",
        "RPOPLPUSH K w",
        "RPOPLPUSH b K",
        "RPUSH K v",
        "RPUSHX K v",
        "SADD K m",
        "SCARD K",
        "SDIFF K r",
        "SDIFFSTORE K r",
        "SDIFFSTORE w K",
        "SET K v",
        "SET K v GET",
        "SET K v EX GET",
        "SET K GET",
        "SETBIT K 1 1",
        "SETEX K 1 v",
        "SETNX K v",
        "SETRANGE K 1 v",
        "SINTER K r",
        "SINTERCARD 2 K r",
        "SINTERSTORE K r",
        "SINTERSTORE b K",
        "SISMEMBER K m",
        "SMEMBERS K",
        "SMISMEMBER K m",
        "SMOVE K w m",
        "SMOVE b K m",
        "SORT K",
        "SORT K STORE w",
        "SORT r STORE K",
        "SORT r STORE w STORE K",
        "SORT r BY K GET K",
        "SORT_RO K",
        "SPOP K",
        "SRANDMEMBER K",
        "SREM K m",
        "SSCAN K 0",
        "STRLEN K",
        "SUBSTR K 0 1",
        "SUNION K r",
        "SUNIONSTORE K r",
        "SUNIONSTORE w K",
        "TOUCH K",
        "TTL K",
        "TYPE K",
        "UNLINK K",
        "WATCH K",
        "XACK K g 1",
        "XADD K * f v",
        "XAUTOCLAIM K g c 0 0",
        "XCLAIM K g c 0 1",
        "XDEL K 1",
        "XGROUP CREATE K g 0",
        "XGROUP CREATECONSUMER K g c",
        "XGROUP DELCONSUMER K g c",
        "XGROUP DESTROY K g",
        "XGROUP SETID K g 0",
        "XINFO CONSUMERS K g",
        "XINFO GROUPS K",
        "XINFO STREAM K",
        "XLEN K",
        "XPENDING K g",
        "XRANGE K - +",
        "XREAD STREAMS K 0",
        "XREAD STREAMS K",
        "XREADGROUP GROUP g c STREAMS K r 0 0",
        "XREVRANGE K + -",
        "XSETID K 1",
        "XTRIM K MAXLEN 1",
        "ZADD K 1 m",
        "ZCARD K",
        "ZCOUNT K 0 1",
        "ZDIFF 2 K r",
        "ZDIFFSTORE K 1 r",
        "ZDIFFSTORE w 1 K",
        "ZINCRBY K 1 m",
        "ZINTER 2 K r",
        "ZINTERCARD 2 K r",
        "ZINTERSTORE K 1 r",
        "ZINTERSTORE w 1 K",
        "ZLEXCOUNT K - +",
        "ZMPOP 1 K MIN",
        "ZMSCORE K m",
        "ZPOPMAX K",
        "ZPOPMIN K",
        "ZRANDMEMBER K",
        "ZRANGE K 0 1",
        "ZRANGEBYLEX K - +",
        "ZRANGEBYSCORE K 0 1",
        "ZRANGESTORE K r 0 1",
        "ZRANGESTORE w K 0 1",
        "ZRANK K m",
        "ZREM K m",
        "ZREMRANGEBYLEX K - +",
        "ZREMRANGEBYRANK K 0 1",
        "ZREMRANGEBYSCORE K 0 1",
        "ZREVRANGE K 0 1",
        "ZREVRANGEBYLEX K + -",
        "ZREVRANGEBYSCORE K 1 0",
        "ZREVRANK K m",
        "ZSCAN K 0",
        "ZSCORE K m",
        "ZUNION 2 K r",
        "ZUNIONSTORE K 1 r",
        "ZUNIONSTORE w 1 K",
        "PUBLISH K m",
        "SPUBLISH K m",
        "SUBSCRIBE K w",
        "SSUBSCRIBE K",
        "PSUBSCRIBE K",
        "PSUBSCRIBE w*",
        "UNSUBSCRIBE K",
        "SUNSUBSCRIBE K",
        "PUNSUBSCRIBE K",
        "PING K",
        "KEYS K",
        "SCAN 0 MATCH K",
        "DEBUG OBJECT K",
        "CLIENT TRACKING ON PREFIX K",
    ];
    apart(|d| {
        d.same("ACL SETUSER u +@all %R~r* %W~w* ~b* &w*");
        d.same("ACL SETUSER twice (+@read %R~r*) (+@write %W~w*) (+@all ~b* &w*)");
        for command in COMMANDS {
            for key in ["r", "w", "b", "n"] {
                let command = command.replace('K', &format!("{key}1"));
                // Some words of commands have the letter too.
                let command = command
                    .replace(&format!("{key}1EYS"), "KEYS")
                    .replace(&format!("BLOC{key}1"), "BLOCK")
                    .replace(&format!("TRAC{key}1"), "TRACK")
                    .replace(&format!("RAN{key}1"), "RANK");
                for name in ["u", "twice"] {
                    d.same(&format!("ACL DRYRUN {name} {command}"));
                }
            }
        }
    });
}

#[test]
fn a_user_does_what_it_may() {
    apart(|d| {
        let u = user(d, "u", "~a* %R~r* &c* +@all -@dangerous -get +config|get +select|0");
        all_on(
            d,
            u,
            &[
                "ACL WHOAMI",
                "PING",
                "SET a 1",
                "SET r 1",
                "SET x 1",
                "GET a",
                "STRLEN r",
                "GETRANGE r 0 -1",
                "GETRANGE x 0 -1",
                "MGET a r",
                "MGET a x r",
                "KEYS *",
                "FLUSHALL",
                "CONFIG GET maxmemory x",
                "CONFIG SET maxmemory 0",
                "CONFIG RESETSTAT",
                "CONFIG NOSUCH",
                "CONFIG",
                "NOSUCH",
                "GET",
                "PUBLISH c1 m",
                "PUBLISH d m",
                "SPUBLISH d m",
                "SUBSCRIBE c d",
                "SELECT 0",
                "SELECT 1",
                "ACL LIST",
                "RESET",
            ],
        );
        if d.resp() == 3 {
            d.run_on(u, "HELLO 3");
        }
        all_on(d, u, &["ACL WHOAMI", "GET a", "AUTH u x", "GET a"]);
        d.same("ACL SETUSER u +get");
        all_on(d, u, &["GET a", "GET r", "GET x"]);
        d.same("ACL SETUSER u off resetkeys");
        all_on(d, u, &["GET a", "AUTH u x", "ACL WHOAMI", "PING"]);
        d.same("ACL SETUSER u on -@all +select|0");
        all_on(d, u, &["SELECT 0", "SELECT 1", "PING", "AUTH default x"]);
        d.same("INFO errorstats");
        d.relaxed("ACL LOG 100", log_facts);
    });
}

#[test]
fn transactions_of_a_user() {
    apart(|d| {
        let u = user(d, "u", "~a* &c +@all -get -exec");
        all_on(d, u, &["MULTI", "SET a 1", "EXEC", "MULTI", "SET a 1", "GET a", "DISCARD"]);
        d.same("ACL SETUSER u +exec");
        all_on(
            d,
            u,
            &[
                "MULTI",
                "SET a 1",
                "GET a",
                "EXEC",
                "MULTI",
                "SET x 1",
                "EXEC",
                "MULTI",
                "PUBLISH d m",
                "EXEC",
                "MULTI",
                "SET a 1",
                "INCR a",
                "PUBLISH c m",
            ],
        );
        d.same("ACL SETUSER u -incr resetchannels");
        all_on(d, u, &["EXEC", "MULTI", "SET a 2", "DEL a"]);
        d.same("ACL SETUSER u resetkeys ~b*");
        all_on(d, u, &["EXEC", "MULTI", "AUTH u x", "AUTH nobody x", "AUTH default x", "EXEC"]);
        all_on(d, u, &["ACL WHOAMI", "GET a"]);
        d.same("INFO errorstats");
        d.relaxed("ACL LOG 100", log_facts);
    });
}

#[test]
fn scripts_of_a_user() {
    apart(|d| {
        let u = user(d, "u", "~a* &c +@scripting +set +get +publish +multi +exec -function");
        all_on(
            d,
            u,
            &[
                "EVAL \"return redis.call('set', KEYS[1], 1)\" 1 a",
                "EVAL \"return redis.call('set', KEYS[1], 1)\" 1 x",
                "EVAL \"return redis.call('set', ARGV[1], 1)\" 0 x",
                "EVAL \"return redis.pcall('set', ARGV[1], 1)\" 0 x",
                "EVAL \"return redis.call('incr', 'a')\" 0",
                "EVAL \"return redis.pcall('incr', 'a')\" 0",
                "EVAL \"return redis.pcall('publish', 'd', 1)\" 0",
                "EVAL \"return redis.pcall('publish', 'c', 1)\" 0",
                "EVAL \"return redis.pcall('config', 'get', 'port')\" 0",
                "EVAL \"return redis.acl_check_cmd('set', 'a', 1)\" 0",
                "EVAL \"return redis.acl_check_cmd('set', 'x', 1)\" 0",
                "EVAL \"return redis.acl_check_cmd('set', 1, 1)\" 0",
                "EVAL \"return redis.acl_check_cmd('incr', 'a')\" 0",
                "EVAL \"return redis.acl_check_cmd('publish', 'd', 'm')\" 0",
                "EVAL \"return redis.acl_check_cmd('config', 'get', 'x')\" 0",
                "EVAL \"return redis.acl_check_cmd('nosuch')\" 0",
                "EVAL \"return redis.acl_check_cmd()\" 0",
                "EVAL_RO \"return redis.call('get', ARGV[1])\" 0 a",
                "EVAL_RO \"return redis.call('get', ARGV[1])\" 0 x",
                "SCRIPT EXISTS x",
                "FUNCTION LIST",
                "MULTI",
                "EVAL \"return redis.pcall('get', ARGV[1])\" 0 x",
                "EVAL \"return redis.call('get', ARGV[1])\" 0 a",
                "EXEC",
            ],
        );
        d.same("EVAL \"return redis.acl_check_cmd('flushall')\" 0");
        d.same("EVAL \"return redis.call('incr', 'a')\" 0");
        d.same("INFO errorstats");
        d.relaxed("ACL LOG 100", log_facts);
    });
}

#[test]
fn what_is_refused_is_counted_together() {
    apart(|d| {
        let u = user(d, "u", "~a +get +set");
        all_on(d, u, &["GET x", "GET x", "INCR a", "GET x", "SET x 1", "INCR a", "AUTH u2 p"]);
        d.relaxed("ACL LOG", log_facts);
        d.relaxed("ACL LOG 2", log_facts);
        d.relaxed("ACL LOG 0", log_facts);
        for n in 0..20 {
            d.same_on(u, &format!("GET x{n}"));
        }
        d.same_on(u, "GET x");
        d.relaxed("ACL LOG 100", log_facts);
        d.same("CONFIG SET acllog-max-len 3");
        d.same_on(u, "GET y");
        d.relaxed("ACL LOG 100", log_facts);
        d.same("ACL LOG RESET");
        d.same("ACL LOG");
        d.same("AUTH default x");
        d.same("AUTH nobody x");
        d.same("HELLO 3 AUTH nobody x");
        d.relaxed("ACL LOG", log_facts);
        d.same("CONFIG SET acllog-max-len 0");
        d.same_on(u, "GET y");
        d.relaxed("ACL LOG", log_facts);
    });
}

#[test]
fn selectors_do_not_add_up() {
    apart(|d| {
        let u = user(d, "u", "+mget ~k (+mget ~k ~other) (+set %W~w*) (+@read %R~r*)");
        all_on(
            d,
            u,
            &[
                "MGET k",
                "MGET k other",
                "MGET other third",
                "MGET k other third",
                "SET w 1",
                "SET w 1 GET",
                "SET r 1",
                "GET r",
                "GET w",
                "INCR k",
                "COPY r w",
            ],
        );
        d.relaxed("ACL LOG 100", log_facts);
    });
}

#[test]
fn sorting_by_other_keys_needs_all_of_them() {
    apart(|d| {
        d.same("RPUSH l 2 1");
        d.same("MSET v1 1 v2 2");
        let lines = [
            "SORT l",
            "SORT l BY nosort",
            "SORT l BY v*",
            "SORT l GET v*",
            "SORT l GET #",
            "SORT l ASC BY nosort GET v* FOO",
            "SORT_RO l BY v*",
            "SORT l STORE v1",
        ];
        for rules in [
            "(+sort ~l)",
            "(+sort +sort_ro ~l ~v*)",
            "(+sort ~l %W~*)",
            "(+sort +sort_ro ~l %R~*)",
            "~* +@all",
            "%R~* +@all",
        ] {
            let u = user(d, "u", &format!("reset on nopass {rules}"));
            all_on(d, u, &lines);
            d.same_on(u, "EVAL \"return redis.pcall('sort', 'l', 'by', 'v*')\" 0");
            d.same("DEL v1 l");
            d.same("RPUSH l 2 1");
            d.same("SET v1 1");
        }
    });
}

#[test]
fn logging_in() {
    apart(|d| {
        d.same("ACL SETUSER u on >one >two +@all ~*");
        d.same("ACL SETUSER off >one");
        let c = d.client();
        all_on(
            d,
            c,
            &[
                "AUTH one",
                "AUTH u one",
                "ACL WHOAMI",
                "AUTH u two",
                "AUTH u three",
                "ACL WHOAMI",
                "AUTH off one",
                "AUTH nobody one",
                "AUTH default anything",
                "AUTH default \"\"",
                "AUTH a b c",
                "AUTH",
                "RESET",
                "ACL WHOAMI",
            ],
        );
        // The reply tells the number of the client.
        for line in ["HELLO 2 AUTH u one", "HELLO 2 AUTH u two SETNAME me", "HELLO 2"] {
            d.run_on(c, line);
            d.same_on(c, "ACL WHOAMI");
        }
        all_on(d, c, &["HELLO 2 AUTH u no", "HELLO 2 AUTH u", "CLIENT GETNAME", "ACL WHOAMI"]);
        // A password for all who come from now on.
        d.same("CONFIG SET requirepass sesame");
        d.same("ACL GETUSER default");
        all_on(d, c, &["PING", "RESET", "PING", "HELLO", "HELLO 2", "AUTH no", "AUTH default no"]);
        all_on(d, c, &["GET a", "EXEC"]);
        all_on(d, c, &["AUTH sesame", "PING", "RESET", "AUTH u one", "ACL WHOAMI", "PING"]);
        all_on(d, c, &["RESET", "PING"]);
        d.same("CONFIG SET requirepass \"\"");
        all_on(d, c, &["PING", "ACL WHOAMI", "HELLO 2", "AUTH sesame"]);
        d.same("ACL GETUSER default");
        d.same("ACL SETUSER default >x");
        d.same("CONFIG GET requirepass");
        all_on(d, c, &["PING", "AUTH x", "PING"]);
        d.same("ACL SETUSER default off nopass");
        all_on(d, c, &["PING", "AUTH default x", "AUTH x", "RESET", "PING", "AUTH u one", "PING"]);
        d.same("ACL SETUSER default on -@all +acl");
        all_on(d, c, &["RESET", "PING", "AUTH u one", "PING"]);
        d.same("ACL SETUSER default +@all");
        d.relaxed("ACL LOG 100", log_facts);
    });
}

#[test]
fn connections_of_users_that_are_gone() {
    apart(|d| {
        let first = user(d, "u", "+@all ~* &*");
        user(d, "v", "+@all ~* &*");
        d.same_on(first, "CLIENT SETNAME first");
        let users = |wire: Wire| match wire {
            Wire::Bulk(text) | Wire::Verbatim(text) => {
                let text = String::from_utf8(text).unwrap();
                let users = text.split_whitespace().filter(|part| part.starts_with("user="));
                let mut users: Vec<&str> = users.collect();
                users.sort_unstable();
                Wire::Bulk(users.join(" ").into_bytes())
            }
            other => other,
        };
        d.relaxed("CLIENT LIST", users);
        d.same("CLIENT KILL USER nobody");
        d.same("ACL DELUSER u");
        d.relaxed("CLIENT LIST", users);
        d.same("CLIENT KILL USER v");
        d.relaxed("CLIENT LIST", users);

        // Who may not listen any more.
        let listen = |d: &mut Differential, name: &str| {
            let client = user(d, name, "resetchannels &a &b* +@all");
            for line in ["SUBSCRIBE a", "PSUBSCRIBE b*", "SSUBSCRIBE bx"] {
                d.same_on(client, line);
            }
        };
        for (name, rules) in [
            ("w1", "&c"),
            ("w2", "allchannels"),
            ("w3", "resetchannels &a &b*"),
            ("w4", "resetchannels &a"),
            ("w5", "resetchannels &*x"),
            ("w6", "resetchannels (&a &b*)"),
            ("w7", "-@all"),
            ("w8", "reset"),
        ] {
            listen(d, name);
            d.same(&format!("ACL SETUSER {name} {rules}"));
            d.relaxed("CLIENT LIST", users);
        }

        // The one that deletes its own user is answered, and then ended.
        let own = user(d, "own", "+@all ~*");
        d.same_on(own, "ACL DELUSER own nobody");
        d.relaxed("CLIENT LIST", users);
    });
}

#[test]
fn secrets_are_not_shown() {
    apart(|d| {
        let monitor = d.client();
        d.same_on(monitor, "MONITOR");
        for line in
            ["AUTH default secret", "AUTH nobody secret", "HELLO 2 AUTH a secret", "ECHO secret"]
        {
            d.same(line);
            let (ours, theirs) = d.pushed_apart(monitor);
            let argv = |wire: Wire| match wire {
                Wire::Status(line) => {
                    let at = line.iter().position(|b| *b == b']').unwrap();
                    String::from_utf8(line[at..].to_vec()).unwrap()
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(argv(ours.unwrap()), argv(theirs));
        }
    });
}
