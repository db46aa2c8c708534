//! DUMP and RESTORE: what one side writes the other reads, for every type and form.

use crate::harness::{Differential, both};
use crate::wire::{Wire, words};

/// The payload of a key, from Redis or from the engine.
fn dump(d: &mut Differential, key: &str, from_redis: bool) -> Vec<u8> {
    let argv = words(&format!("DUMP {key}"));
    let reply = if from_redis { d.pipeline(&[argv]).remove(0) } else { d.ours(&argv) };
    match reply {
        Wire::Bulk(payload) => payload,
        other => panic!("DUMP {key} answers {other:?}"),
    }
}

/// Puts the payload of either side into a key of both, and compares what is there then.
fn crosses_over(d: &mut Differential, key: &str) {
    for from_redis in [true, false] {
        let payload = dump(d, key, from_redis);
        let copy = format!("{key}:{from_redis}");
        let argv = |key: &str| [words(&format!("RESTORE {key} 0")), vec![payload.clone()]].concat();
        assert_eq!(d.same_argv(&argv(&copy)), Wire::Status(b"OK".to_vec()), "{key}");
        d.same_argv(&argv(&copy));
        same_value(d, &copy);
        // A damaged payload is refused by both.
        for at in [0, payload.len() / 2, payload.len() - 1] {
            let mut damaged = payload.clone();
            damaged[at] ^= 1;
            d.same_argv(&[words("RESTORE damaged 0"), vec![damaged]].concat());
        }
    }
}

fn same_value(d: &mut Differential, key: &str) {
    d.same(&format!("OBJECT ENCODING {key}"));
    let Wire::Status(kind) = d.same(&format!("TYPE {key}")) else {
        panic!("TYPE answers a status")
    };
    match kind.as_slice() {
        b"string" => drop(d.same(&format!("GET {key}"))),
        b"list" => drop(d.same(&format!("LRANGE {key} 0 -1"))),
        b"set" => drop(d.sorted(&format!("SMEMBERS {key}"))),
        b"hash" => drop(d.sorted_pairs(&format!("HGETALL {key}"))),
        b"zset" => drop(d.same(&format!("ZRANGE {key} 0 -1 WITHSCORES"))),
        b"stream" => drop(d.same(&format!("XINFO STREAM {key} FULL COUNT 0"))),
        other => panic!("{key} is a {}", String::from_utf8_lossy(other)),
    }
}

#[test]
fn strings_and_lists_cross_over() {
    both(|d| {
        for (key, value) in [
            ("zero", "0"),
            ("small", "-7"),
            ("short", "-300"),
            ("int", "70000"),
            ("long", "12345678901234"),
            ("text", "hello"),
            ("not", "007"),
        ] {
            d.same(&format!("SET {key} {value}"));
            crosses_over(d, key);
        }
        d.same("SETRANGE padded 30000 x");
        crosses_over(d, "padded");
        let repeated = "the same words again ".repeat(900);
        d.same_argv(&[words("SET repeated"), vec![repeated.into_bytes()]].concat());
        crosses_over(d, "repeated");
        d.same("PFADD sketch a b c");
        crosses_over(d, "sketch");
        d.same("RPUSH few a 1 -1 300 70000 9223372036854775807 -12345678901 b");
        crosses_over(d, "few");
        for n in 0..3000 {
            d.same(&format!("RPUSH many element:{n} {n}"));
        }
        crosses_over(d, "many");
        d.same_argv(
            &[words("RPUSH wide"), vec![vec![b'x'; 100_000], b"y".to_vec(), vec![b'z'; 70]]]
                .concat(),
        );
        crosses_over(d, "wide");
        d.pipeline(&[words("DEBUG QUICKLIST-PACKED-THRESHOLD 10b")]);
        d.same_argv(&[words("RPUSH plain a"), vec![vec![b'x'; 500], b"b".to_vec()]].concat());
        crosses_over(d, "plain");
        d.pipeline(&[words("DEBUG QUICKLIST-PACKED-THRESHOLD 1000000b")]);
    });
}

#[test]
fn sets_hashes_and_sorted_sets_cross_over() {
    both(|d| {
        for (key, members) in
            [("short", "1 2 -3"), ("int", "1 70000"), ("long", "1 -12345678901"), ("mixed", "1 a")]
        {
            d.same(&format!("SADD {key} {members}"));
            crosses_over(d, key);
        }
        for n in 0..600 {
            d.same(&format!("SADD ints {n}"));
            d.same(&format!("SADD names name{n}"));
            d.same(&format!("HSET table field{n} {n}"));
            d.same(&format!("ZADD tree {n}.5 member{n}"));
        }
        d.same("HSET pack a 1 b two 3 -70000");
        d.same("ZADD scores 1 a -2.5 b 0 c inf d -inf e 3e300 f 1234567890123 g");
        d.same_argv(&[words("HSET long field"), vec![vec![b'v'; 300]]].concat());
        for key in ["ints", "names", "table", "tree", "pack", "scores", "long"] {
            if key == "long" {
                d.same("DEL long:true long:false");
            }
            crosses_over(d, key);
        }
    });
}

#[test]
fn streams_cross_over() {
    both(|d| {
        d.same("XADD one 1-1 a 1 b 2");
        crosses_over(d, "one");
        for n in 1..=250 {
            d.same(&format!(
                "XADD many {n}-{} name value{n} {} {n}",
                n % 7,
                if n % 5 == 0 { "other" } else { "number" }
            ));
        }
        for n in [1, 2, 50, 149, 150, 250] {
            d.same(&format!("XDEL many {n}-{}", n % 7));
        }
        d.same("XGROUP CREATE many g 0");
        d.same("XGROUP CREATE many h $ ENTRIESREAD 7");
        d.same("XGROUP CREATECONSUMER many g idle");
        crosses_over(d, "many");
        d.same("XTRIM many:true MAXLEN ~ 100");
        d.same("XTRIM many:true MAXLEN 33");
        same_value(d, "many:true");
        d.same("XGROUP CREATE none g $ MKSTREAM");
        crosses_over(d, "none");
    });
}

#[test]
fn pending_entries_cross_over() {
    both(|d| {
        for n in 1..=9 {
            d.same(&format!("XADD s {n}-0 n {n}"));
        }
        d.same("XGROUP CREATE s g 0");
        for consumer in ["alice", "bob"] {
            d.same(&format!("XREADGROUP GROUP g {consumer} COUNT 3 STREAMS s >"));
        }
        d.same("XCLAIM s g bob 0 1-0 TIME 1000 RETRYCOUNT 7");
        for from_redis in [true, false] {
            let payload = dump(d, "s", from_redis);
            let key = format!("copy:{from_redis}");
            d.same_argv(&[words(&format!("RESTORE {key} 0")), vec![payload]].concat());
            d.same(&format!("XPENDING {key} g"));
            d.near(&format!("XPENDING {key} g IDLE 0 - + 10"), 3000);
            d.same(&format!("XREADGROUP GROUP g carol COUNT 2 STREAMS {key} >"));
            d.same(&format!("XACK {key} g 1-0 2-0 9-0"));
            d.same(&format!("XPENDING {key} g"));
        }
    });
}

#[test]
fn options_and_errors_are_those_of_redis() {
    both(|d| {
        d.same("SET s text");
        let payload = dump(d, "s", true);
        let restore = |d: &mut Differential, line: &str, options: &str| {
            let mut argv = words(line);
            argv.push(payload.clone());
            argv.extend(words(options));
            d.same_argv(&argv);
        };
        d.same("DUMP none");
        restore(d, "RESTORE s 0", "");
        restore(d, "RESTORE s 0", "REPLACE");
        restore(d, "RESTORE a -1", "");
        restore(d, "RESTORE a x", "");
        restore(d, "RESTORE a 0", "FOO");
        restore(d, "RESTORE a 0", "IDLETIME");
        restore(d, "RESTORE a 0", "IDLETIME -1");
        restore(d, "RESTORE a 0", "FREQ 256");
        restore(d, "RESTORE a 0", "FREQ 1 IDLETIME 1");
        restore(d, "RESTORE a 0", "IDLETIME 1 FREQ 1");
        restore(d, "RESTORE a 5000000", "IDLETIME 1000");
        d.near("OBJECT IDLETIME a", 2);
        d.near("PTTL a", 3000);
        restore(d, "RESTORE b 33000000000123", "ABSTTL");
        d.same("PEXPIRETIME b");
        restore(d, "RESTORE b 1", "ABSTTL REPLACE");
        d.same("EXISTS b");
        restore(d, "RESTORE c 1", "ABSTTL");
        d.same("EXISTS c");
        d.same("RESTORE d 0 short");
        d.same_argv(&[words("RESTORE d 0"), vec![Vec::new()]].concat());
        d.same("RPUSH l x");
        restore(d, "RESTORE l 0", "REPLACE");
        d.same("GET l");
    });
}
