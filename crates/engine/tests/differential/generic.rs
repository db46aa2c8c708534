//! Keys of any type: deleting, renaming, copying, deadlines, scanning, OBJECT.

use crate::harness::both;
use crate::wire::Wire;

#[test]
fn deleting_and_asking() {
    both(|d| {
        for line in [
            "MSET a 1 b 2 c 3",
            "DEL a x",
            "UNLINK b b",
            "EXISTS a b c c",
            "TOUCH c c x",
            "TYPE c",
            "TYPE x",
            "RPUSH l a",
            "SADD s a",
            "HSET h a 1",
            "TYPE l",
            "TYPE s",
            "TYPE h",
            "DEL",
            "EXISTS",
            "TYPE",
            "DBSIZE",
            "RENAME c d",
            "RENAME c d",
            "RENAME d d",
            "RENAME x x",
            "RENAMENX d l",
            "RENAMENX d e",
            "RENAMENX e e",
            "RENAMENX x e",
            "GET e",
            "RENAME l e",
            "TYPE e",
            "DBSIZE",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn copying_and_moving() {
    both(|d| {
        for line in [
            "SET a 1 EX 1000",
            "COPY a b",
            "COPY a b",
            "COPY a b REPLACE",
            "COPY a a",
            "COPY x y",
            "COPY a c DB 1",
            "COPY a c DB 1",
            "COPY a a DB 1 REPLACE",
            "COPY a a DB 99",
            "COPY a a DB x",
            "COPY a a DB -1",
            "COPY a b FOO",
            "COPY a b DB",
            "RPUSH l a b c",
            "COPY l m",
            "RPUSH m d",
            "LRANGE l 0 -1",
            "LRANGE m 0 -1",
            "MOVE a 1",
            "MOVE l 1",
            "MOVE l 1",
            "MOVE l 0",
            "MOVE m 99",
            "MOVE m x",
            "MOVE m 99999999999",
            "SELECT 1",
            "LRANGE l 0 -1",
            "GET c",
            "DBSIZE",
            "SELECT 99",
            "SELECT x",
            "SELECT -1",
            "SELECT 0",
            "SWAPDB 0 1",
            "LRANGE l 0 -1",
            "SWAPDB 0 x",
            "SWAPDB x 0",
            "SWAPDB 0 99",
            "SWAPDB 0 0",
            "FLUSHDB",
            "FLUSHDB FOO",
            "FLUSHDB SYNC FOO",
            "FLUSHALL ASYNC",
            "DBSIZE",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn deadlines() {
    both(|d| {
        for line in [
            "SET k v",
            "TTL k",
            "PTTL k",
            "TTL missing",
            "EXPIRETIME k",
            "PEXPIRETIME missing",
            "EXPIRE k 100",
            "EXPIRE k 100 NX",
            "EXPIRE k 200 XX",
            "EXPIRE k 100 GT",
            "EXPIRE k 300 GT",
            "EXPIRE k 400 LT",
            "EXPIRE k 100 LT",
            "EXPIRE k 100 NX XX",
            "EXPIRE k 100 GT LT",
            "EXPIRE k 100 NX GT",
            "EXPIRE k 100 FOO",
            "EXPIRE k 50 XX GT",
            "EXPIRE k x",
            "EXPIRE k 9223372036854775807",
            "EXPIRE k -9223372036854775808",
            "PEXPIRE k 9223372036854775807",
            "PEXPIREAT k 9223372036854775807",
            "EXPIREAT k 33000000000",
            "EXPIRETIME k",
            "PEXPIRETIME k",
            "PEXPIREAT k 33000000000499",
            "EXPIRETIME k",
            "PEXPIREAT k 33000000000500",
            "EXPIRETIME k",
            "PERSIST k",
            "PERSIST k",
            "PERSIST missing",
            "EXPIRE k 10 GT",
            "EXPIRE k 10 XX",
            "EXPIRE k 10 LT",
            "EXPIRE missing 10",
            "EXPIRE k 0",
            "EXISTS k",
            "SET k v",
            "EXPIRE k -1",
            "EXISTS k",
            "SET k v",
            "EXPIREAT k 1",
            "EXISTS k",
            "SET k v EX 100",
            "RENAME k r",
            "SET k 1 EX 100",
            "INCR k",
            "APPEND k 1",
            "SETRANGE k 0 9",
            "SETBIT k 1 1",
        ] {
            d.same(line);
        }
        d.near("TTL k", 1);
        d.near("PTTL r", 300);
        d.same("GETSET k x");
        d.same("TTL k");
    });
}

#[test]
fn keys_and_scans() {
    both(|d| {
        for n in 0..60 {
            d.same(&format!("SET key:{n} {n}"));
        }
        d.same("RPUSH list a");
        d.same("SET \"\" empty");
        for pattern in [
            "*",
            "key:1*",
            "key:?",
            "key:[12]?",
            "key:[^1]",
            "*5",
            "k*:*9",
            "list",
            "nothing",
            "[a-l]*",
            "key:\\\\?",
            "key:[1-3]",
            "key:[3-1]",
            "[^k]*",
            "key:5[",
            "",
            "**",
            "*[0-9",
        ] {
            d.sorted(&format!("KEYS \"{pattern}\""));
        }
        for options in [
            "MATCH *",
            "MATCH key:1*",
            "COUNT 7",
            "TYPE list",
            "TYPE string MATCH *3",
            "TYPE STRING COUNT 1000 MATCH *3",
            "TYPE foo",
        ] {
            let mut found = Vec::new();
            let mut theirs = Vec::new();
            for (on_redis, all) in [(false, &mut found), (true, &mut theirs)] {
                let mut cursor = b"0".to_vec();
                loop {
                    let line = format!("SCAN {} {options}", String::from_utf8_lossy(&cursor));
                    let argv = crate::wire::words(&line);
                    let reply =
                        if on_redis { d.pipeline(&[argv]).remove(0) } else { d.ours(&argv) };
                    let Wire::Array(parts) = reply else { panic!("{reply:?}") };
                    let [Wire::Bulk(next), Wire::Array(keys)] = &parts[..] else {
                        panic!("{parts:?}")
                    };
                    all.extend(keys.clone());
                    cursor = next.clone();
                    if cursor == b"0" {
                        break;
                    }
                }
                all.sort();
            }
            assert_eq!(found, theirs, "SCAN {options}");
        }
        for line in [
            "SCAN x",
            "SCAN 0 COUNT 0",
            "SCAN 0 COUNT x",
            "SCAN 0 COUNT -1",
            "SCAN 0 FOO",
            "SCAN 0 MATCH",
            "SCAN 0 COUNT",
            "SCAN",
            "KEYS",
            "RANDOMKEY x",
        ] {
            d.same(line);
        }
        d.shape("RANDOMKEY");
        d.same("FLUSHALL");
        d.same("RANDOMKEY");
        d.same("SCAN 0");
    });
}

#[test]
fn objects() {
    both(|d| {
        for line in [
            "SET i 5",
            "SET e short",
            "SET r 123456789012345678901234567890123456789012345",
            "SET f 12345678901234567890123456789012345678901234",
            "OBJECT ENCODING i",
            "OBJECT ENCODING e",
            "OBJECT ENCODING r",
            "OBJECT ENCODING f",
            "OBJECT ENCODING missing",
            "OBJECT REFCOUNT i",
            "OBJECT REFCOUNT e",
            "OBJECT REFCOUNT missing",
            "OBJECT IDLETIME e",
            "OBJECT IDLETIME missing",
            "OBJECT FREQ e",
            "OBJECT FREQ missing",
            "OBJECT FOO e",
            "OBJECT",
            "OBJECT ENCODING",
            "OBJECT ENCODING a b",
            "CONFIG SET maxmemory-policy allkeys-lfu",
            "OBJECT IDLETIME e",
            "OBJECT FREQ missing",
            "SET g x",
            "OBJECT FREQ g",
            "CONFIG SET maxmemory-policy noeviction",
            "MEMORY USAGE missing",
            "MEMORY USAGE e SAMPLES -1",
            "MEMORY USAGE e SAMPLES x",
            "MEMORY USAGE e FOO",
            "MEMORY FOO",
            "MEMORY",
        ] {
            d.same(line);
        }
        d.shape("MEMORY USAGE e");
        d.shape("MEMORY USAGE e SAMPLES 0");
    });
}
