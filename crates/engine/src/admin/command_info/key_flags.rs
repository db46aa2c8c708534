//! Key flags of commands, in the words of `COMMAND GETKEYSANDFLAGS`.

use crate::args;

/// The words for a key: may the command read it and write it, and what for.
pub(crate) type Words = &'static [&'static str];

/// The words for the first key of a command, the second and so on; those of the last hold for all
/// that follow. What is not listed only reads the content.
pub(crate) fn of(full_name: &str) -> &'static [Words] {
    let found = GROUPS.iter().find(|(_, names)| names.contains(&full_name));
    found.map_or(&[&["RO", "access"]], |(words, _)| words)
}

/// The words where they depend on what is asked of the command.
pub(crate) fn by_arguments(full_name: &str, argv: &[&[u8]]) -> Option<&'static [Words]> {
    match full_name {
        "set" if argv.iter().skip(3).any(|word| args::is(word, "GET")) => {
            Some(&[&["RW", "access", "update"]])
        }
        "bitfield" if only_gets(argv) => Some(&[&["RO", "access"]]),
        _ => None,
    }
}

/// Does a BITFIELD only read?
fn only_gets(argv: &[&[u8]]) -> bool {
    let mut rest = argv.get(2..).unwrap_or_default();
    loop {
        rest = match rest {
            [] => return true,
            [word, _, _, tail @ ..] if args::is(word, "GET") => tail,
            [word, _, tail @ ..] if args::is(word, "OVERFLOW") => tail,
            _ => return false,
        };
    }
}

const GROUPS: &[(&[Words], &[&str])] = &[
    (
        &[&["RO"]],
        &[
            "exists",
            "hexists",
            "hlen",
            "hstrlen",
            "llen",
            "memory|usage",
            "object|encoding",
            "object|freq",
            "object|idletime",
            "object|refcount",
            "scard",
            "sismember",
            "strlen",
            "touch",
            "type",
            "watch",
            "xlen",
            "zcard",
        ],
    ),
    (
        &[&["RW", "access", "update"]],
        &[
            "bitfield",
            "decr",
            "decrby",
            "eval",
            "evalsha",
            "fcall",
            "getex",
            "getset",
            "hgetex",
            "hincrby",
            "hincrbyfloat",
            "incr",
            "incrby",
            "incrbyfloat",
            "move",
            "setbit",
            "zincrby",
        ],
    ),
    (
        &[&["RW", "update"]],
        &[
            "expire",
            "expireat",
            "geoadd",
            "hexpire",
            "hexpireat",
            "hmset",
            "hpersist",
            "hpexpire",
            "hpexpireat",
            "hset",
            "hsetex",
            "lset",
            "persist",
            "pexpire",
            "pexpireat",
            "setrange",
            "xack",
            "xadd",
            "xclaim",
            "xgroup|setid",
            "xsetid",
            "zadd",
        ],
    ),
    (
        &[&["RW", "access", "delete"]],
        &[
            "blmpop", "blpop", "brpop", "bzmpop", "bzpopmax", "bzpopmin", "getdel", "hgetdel",
            "lmpop", "lpop", "migrate", "rpop", "spop", "zmpop", "zpopmax", "zpopmin",
        ],
    ),
    (
        &[&["RW", "delete"]],
        &[
            "hdel",
            "lrem",
            "ltrim",
            "srem",
            "xautoclaim",
            "xdel",
            "xgroup|delconsumer",
            "xgroup|destroy",
            "xtrim",
            "zrem",
            "zremrangebylex",
            "zremrangebyrank",
            "zremrangebyscore",
        ],
    ),
    (
        &[&["RW", "insert"]],
        &[
            "append",
            "hsetnx",
            "linsert",
            "lpush",
            "lpushx",
            "pfadd",
            "rpush",
            "rpushx",
            "sadd",
            "xgroup|create",
            "xgroup|createconsumer",
        ],
    ),
    (
        &[&["OW", "update"], &["RO", "access"]],
        &[
            "bitop",
            "geosearchstore",
            "sdiffstore",
            "sunionstore",
            "zdiffstore",
            "zinterstore",
            "zrangestore",
            "zunionstore",
        ],
    ),
    (
        &[&["RW", "access", "delete"], &["RW", "insert"]],
        &["blmove", "brpoplpush", "lmove", "rpoplpush", "smove"],
    ),
    (&[&["OW", "update"]], &["mset", "psetex", "restore", "set", "setex"]),
    (&[&["RO", "access"], &["OW", "update"]], &["copy", "georadius", "georadiusbymember", "sort"]),
    (&[&["RM", "delete"]], &["del", "unlink"]),
    (&[&["OW", "insert"]], &["msetnx", "setnx"]),
    (&[&["RW", "access"]], &["pfcount", "pfdebug"]),
    (&[&["RW", "access", "insert"], &["RO", "access"]], &["pfmerge"]),
    (&[&["RW", "access", "delete"], &["OW", "update"]], &["rename"]),
    (&[&["RW", "access", "delete"], &["OW", "insert"]], &["renamenx"]),
    (&[&["RW", "update"], &["RO", "access"]], &["sinterstore"]),
];
