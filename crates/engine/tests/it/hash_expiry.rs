//! Deadlines of hash fields, as Redis has them since 7.4.
//!
//! The differential tests compare with a Redis 7.0, which does not know these commands. So replies
//! and errors are compared with what `t_hash.c` of Redis 7.4 says, and behaviour with a plain map.

use std::collections::BTreeMap;

use engine::{Config, Engine, Now, Reply, SessionId, persist::SnapshotCursor};

use crate::kit::{Kit, show};

const START_MS: i64 = 1_700_000_000_000;

fn at(kit: &mut Kit, ms: i64) {
    kit.now = Now::from_millis(START_MS + ms);
}

#[test]
fn replies_are_those_of_redis() {
    let mut kit = Kit::new();
    kit.check("HEXPIRE no 10 FIELDS 2 a b", "[-2 -2]");
    kit.check("HTTL no FIELDS 1 a", "[-2]");
    kit.check("HPERSIST no FIELDS 1 a", "[-2]");
    kit.check("HSET h a 1 b 2 c 3", "3");
    kit.check("HTTL h FIELDS 2 a x", "[-1 -2]");
    kit.check("HEXPIRE h 10 FIELDS 2 a x", "[1 -2]");
    kit.check("HPEXPIRE h 1500 FIELDS 1 b", "[1]");
    kit.check("HTTL h FIELDS 3 a b c", "[10 2 -1]");
    kit.check("HPTTL h FIELDS 3 a b c", "[10000 1500 -1]");
    kit.check("HEXPIRETIME h FIELDS 2 a b", "[1700000010 1700000002]");
    kit.check("HPEXPIRETIME h FIELDS 2 a b", "[1700000010000 1700000001500]");
    kit.check("HEXPIREAT h 1700000020 FIELDS 1 a", "[1]");
    kit.check("HPEXPIREAT h 1700000020001 FIELDS 1 b", "[1]");
    kit.check("HPTTL h FIELDS 2 a b", "[20000 20001]");
    kit.check("HPERSIST h FIELDS 3 a c x", "[1 -1 -2]");
    kit.check("HPTTL h FIELDS 2 a b", "[-1 20001]");
    kit.check("HPEXPIREAT h 1 FIELDS 2 a x", "[2 -2]");
    kit.check("HEXPIRE h 0 FIELDS 2 c c", "[2 -2]");
    kit.check("HKEYS h", "[b]");
    kit.check("TTL h", "-1");
}

#[test]
fn conditions_compare_with_the_deadline_there_is() {
    let mut kit = Kit::new();
    kit.run("HSET h with 1 without 2");
    let mut check = |condition: &str, ms: i64, expected: &str| {
        kit.run("HPERSIST h FIELDS 1 without");
        kit.run("HPEXPIRE h 1000 FIELDS 1 with");
        let line = format!("HPEXPIRE h {ms} {condition} FIELDS 2 with without");
        kit.check(&line, expected);
    };
    check("NX", 500, "[0 1]");
    check("XX", 500, "[1 0]");
    check("GT", 500, "[0 0]");
    check("GT", 1_000, "[0 0]");
    check("GT", 1_001, "[1 0]");
    check("LT", 999, "[1 1]");
    check("LT", 1_000, "[0 1]");
    check("lt", 1_001, "[0 1]");
}

#[test]
fn mistakes_are_told_in_the_words_of_redis() {
    let mut kit = Kit::new();
    kit.run("HSET h a 1");
    kit.run("SET s 1");
    kit.effects();
    let wrong_type = "(error) WRONGTYPE Operation against a key holding the wrong kind of value";
    kit.check("HEXPIRE s x FIELDS 1 a", wrong_type);
    kit.check("HTTL s x 1 a", wrong_type);
    kit.check("HPERSIST s x 1 a", wrong_type);
    let fields = "(error) ERR Mandatory argument FIELDS is missing or not at the right position";
    kit.check("HEXPIRE h 10 NX XX FIELDS 1 a", fields);
    kit.check("HEXPIRE h 10 FELDS 1 a", fields);
    kit.check("HTTL h FELDS 1 a", fields);
    kit.check("HPERSIST h FELDS 1 a", fields);
    let count = "(error) ERR Parameter `numFields` should be greater than 0";
    kit.check("HEXPIRE h 10 FIELDS 0 a", count);
    kit.check("HEXPIRE h 10 FIELDS x a", count);
    let count = "(error) ERR Number of fields must be a positive integer";
    kit.check("HTTL h FIELDS 0 a", count);
    kit.check("HPERSIST h FIELDS -1 a", count);
    let mismatch = "(error) ERR The `numfields` parameter must match the number of arguments";
    kit.check("HEXPIRE h 10 FIELDS 2 a", mismatch);
    kit.check("HEXPIRE h 10 NX FIELDS 1", mismatch);
    kit.check("HPEXPIRETIME h FIELDS 1 a b", mismatch);
    kit.check("HPERSIST h FIELDS 2 a", mismatch);
    kit.check(
        "HEXPIRE h 10 FIELDS 1",
        "(error) ERR wrong number of arguments for 'hexpire' command",
    );
    kit.check("HEXPIRE h 1.5 FIELDS 1 a", "(error) ERR value is not an integer or out of range");
    kit.check("HEXPIRE h -1 FIELDS 1 a", "(error) ERR invalid expire time, must be >= 0");
    for (command, most) in [("HEXPIREAT", 70_368_744_177_i64), ("HPEXPIREAT", 70_368_744_177_663)] {
        let invalid = format!(
            "(error) ERR invalid expire time in '{}' command",
            command.to_ascii_lowercase()
        );
        kit.check(&format!("{command} h {} FIELDS 1 a", most + 1), &invalid);
        kit.check(&format!("{command} h {} FIELDS 1 a", i64::MAX), &invalid);
    }
    assert!(kit.effects().is_empty(), "nothing was changed");
    kit.check("HPEXPIREAT h 70368744177663 FIELDS 1 a", "[1]");
    kit.check("HEXPIREAT h 70368744177 FIELDS 1 a", "[1]");
}

#[test]
fn nobody_sees_a_field_past_its_deadline() {
    for asks in [
        ("HGET h a", "(nil)"),
        ("HMGET h a b", "[(nil) 2]"),
        ("HGETALL h", "{b: 2}"),
        ("HKEYS h", "[b]"),
        ("HVALS h", "[2]"),
        ("HLEN h", "1"),
        ("HSTRLEN h a", "0"),
        ("HEXISTS h a", "0"),
        ("HSCAN h 0", "[0 [b 2]]"),
        ("HRANDFIELD h 5", "[b]"),
        ("HDEL h a", "0"),
        ("HSETNX h a 5", "1"),
        ("HINCRBY h a 5", "5"),
        ("HINCRBYFLOAT h a 5", "5"),
        ("HSET h a 5", "1"),
        ("HTTL h FIELDS 1 a", "[-2]"),
        ("HPERSIST h FIELDS 1 a", "[-2]"),
        ("HEXPIRE h 5 FIELDS 1 a", "[-2]"),
        ("HGETDEL h FIELDS 2 a b", "[(nil) 2]"),
        ("HGETEX h EX 5 FIELDS 2 a b", "[(nil) 2]"),
        ("HSETEX h FXX FIELDS 1 a 5", "0"),
        ("HSETEX h FNX FIELDS 1 a 5", "1"),
        ("SORT one BY nosort GET h->a GET *->a", "[(nil) (nil)]"),
        ("EVAL \"return redis.call('HGET', KEYS[1], 'a')\" 1 h", "(nil)"),
    ] {
        let mut kit = Kit::new();
        kit.run("HSET h a 1 b 2");
        kit.run("RPUSH one h");
        kit.check("HPEXPIRE h 100 FIELDS 1 a", "[1]");
        at(&mut kit, 99);
        kit.check("HGET h a", "1");
        kit.effects();
        at(&mut kit, 100);
        kit.check(asks.0, asks.1);
        assert_eq!(kit.effects().first().map(String::as_str), Some("HDEL h a"), "{}", asks.0);
    }
}

#[test]
fn the_key_goes_with_its_last_field() {
    for asks in [
        ("EXISTS h", "0"),
        ("TYPE h", "none"),
        ("KEYS *", "[]"),
        ("SCAN 0", "[0 []]"),
        ("RANDOMKEY", "(nil)"),
        ("DEL h", "0"),
        ("MEMORY USAGE h", "(nil)"),
        ("OBJECT ENCODING h", "(nil)"),
        ("DUMP h", "(nil)"),
        ("RENAME h x", "(error) ERR no such key"),
        ("COPY h x", "0"),
        ("MOVE h 1", "0"),
        ("SET h v NX", "OK"),
        ("PERSIST h", "0"),
        ("HLEN h", "0"),
    ] {
        let mut kit = Kit::new();
        kit.run("HSET h a 1 b 2");
        kit.run("HPEXPIRE h 50 FIELDS 1 a");
        kit.run("HPEXPIRE h 100 FIELDS 1 b");
        at(&mut kit, 100);
        kit.check(asks.0, asks.1);
        kit.engine.sweep(Now::from_millis(START_MS + 1_000), 10);
        let effects = kit.effects();
        assert!(effects.contains(&"DEL h".to_owned()), "{}: {effects:?}", asks.0);
    }
    let mut kit = Kit::new();
    kit.run("HSET h a 1");
    kit.check("HPEXPIREAT h 1 FIELDS 1 a", "[2]");
    kit.check("EXISTS h", "0");
    assert_eq!(kit.effects(), ["HSET h a 1", "HDEL h a"]);
}

#[test]
fn the_sweep_takes_fields_nobody_asks_for_and_no_more_than_its_budget() {
    let mut kit = Kit::new();
    for n in 0..1_000 {
        kit.run(&format!("HSET many f{n} v"));
        kit.run(&format!("HPEXPIRE many {} FIELDS 1 f{n}", 1_000 + n));
    }
    kit.run("HSET many stays v");
    for n in 0..50 {
        kit.run(&format!("HSET one{n} a 1"));
        kit.run(&format!("HPEXPIRE one{n} 1500 FIELDS 1 a"));
    }
    kit.run("HSET later a 1 b 2");
    kit.run("HPEXPIRE later 1500 FIELDS 1 a");
    kit.run("HPEXPIRE later 50000 FIELDS 1 a");
    kit.run("HSET kept a 1");
    kit.run("HPEXPIRE kept 1500 FIELDS 1 a");
    kit.run("HSET kept a 2");
    at(&mut kit, 900);
    assert_eq!(kit.engine.sweep(kit.now, 10_000), 0);
    at(&mut kit, 5_000);
    kit.effects();
    assert_eq!(kit.engine.sweep(kit.now, 100), 100, "a full budget says there is more");
    let named = |effect: &String| match effect.strip_prefix("HDEL many ") {
        Some(names) => names.split(' ').count(),
        None => 1,
    };
    let deleted: usize = kit.effects().iter().map(named).sum();
    assert!((90..=100).contains(&deleted), "{deleted}");
    let mut rounds = 0;
    while kit.engine.sweep(kit.now, 1) == 1 {
        rounds += 1;
        assert!(rounds < 2_000, "the sweep comes to an end, whatever the budget");
    }
    kit.check("DBSIZE", "3");
    let info = kit.text("INFO stats");
    assert!(info.contains("expired_subkeys:1050\r\n"), "{info}");
    assert!(info.contains("expired_keys:0\r\n"), "{info}");
    kit.check("HGETALL many", "{stays: v}");
    kit.check("HGETALL kept", "{a: 2}");
    kit.check("HLEN later", "2");
    at(&mut kit, 60_000);
    kit.engine.sweep(kit.now, 100);
    kit.effects();
    kit.check("HGETALL later", "{b: 2}");
    assert!(kit.effects().is_empty(), "the sweep had been there before");
}

#[test]
fn what_writes_a_field_decides_about_its_deadline() {
    let mut kit = Kit::new();
    let mut check = |write: &str, expected: &str| {
        kit.run("DEL h other");
        kit.run("HSET h a 1 b 2");
        kit.run("HPEXPIRE h 1000 FIELDS 1 a");
        kit.run(write);
        kit.check("HPTTL h FIELDS 1 a", expected);
    };
    check("HSET h a 5", "[-1]");
    check("HMSET h a 5", "[-1]");
    check("HSET h b 5", "[1000]");
    check("HSETNX h a 5", "[1000]");
    check("HINCRBY h a 5", "[1000]");
    check("HINCRBYFLOAT h a 5", "[1000]");
    check("HDEL h a", "[-2]");
    check("SET h v", "(error) WRONGTYPE Operation against a key holding the wrong kind of value");
    check("PERSIST h", "[1000]");
    kit.check("HSET h a 5", "0");
    kit.run("HDEL h a");
    kit.run("HSET h a 6");
    kit.check("HPTTL h FIELDS 1 a", "[-1]");
}

#[test]
fn deadlines_go_where_the_value_goes() {
    for (order, key) in [
        ("RENAME h x", "x"),
        ("RENAMENX h x", "x"),
        ("COPY h x", "x"),
        ("COPY h x", "h"),
        ("COPY h old REPLACE", "old"),
        ("RENAME h old", "old"),
        ("EVAL \"return redis.call('RESTORE', 'x', 0, redis.call('DUMP', 'h'))\" 2 h x", "x"),
    ] {
        let mut kit = Kit::new();
        kit.run("HSET old z 1 y 2");
        kit.run("HPEXPIRE old 500 FIELDS 1 z");
        kit.run("HSET h a 1 b 2 c 3");
        kit.run("HPEXPIRE h 1000 FIELDS 1 a");
        kit.run("HPEXPIRE h 2000 FIELDS 1 b");
        kit.run(order);
        kit.check(&format!("HPTTL {key} FIELDS 3 a b c"), "[1000 2000 -1]");
        at(&mut kit, 1_500);
        kit.engine.sweep(kit.now, 100);
        let effects = kit.effects();
        assert!(effects.contains(&format!("HDEL {key} a")), "{order}: {effects:?}");
        kit.check(&format!("HMGET {key} a b c"), "[(nil) 2 3]");
        kit.check(&format!("HLEN {key}"), "2");
    }
    let mut kit = Kit::new();
    kit.run("HSET h a 1 b 2");
    kit.run("HPEXPIRE h 1000 FIELDS 1 a");
    kit.check("MOVE h 1", "1");
    kit.check("SWAPDB 1 2", "OK");
    kit.run("SELECT 2");
    at(&mut kit, 1_500);
    kit.engine.sweep(kit.now, 100);
    assert_eq!(kit.effects().last().map(String::as_str), Some("HDEL h a"));
    kit.check("HGETALL h", "{b: 2}");
    kit.run("HPEXPIRE h 1000 FIELDS 1 b");
    kit.check("FLUSHALL", "OK");
    at(&mut kit, 5_000);
    assert_eq!(kit.engine.sweep(kit.now, 100), 0, "no timer stays behind");
}

#[test]
fn timers_do_not_pile_up() {
    let mut kit = Kit::new();
    kit.run("HSET h a 1 b 2");
    for n in 0..1_000 {
        kit.run(&format!("HPEXPIRE h {} FIELDS 1 a", 100_000 - n * 50));
        kit.run("HPERSIST h FIELDS 1 a");
    }
    // Nor do those of hashes that are replaced or deleted.
    for n in 0..1_000 {
        kit.run("HSET x a 1");
        kit.run(&format!("HPEXPIRE x {} FIELDS 1 a", 100_000 + n * 50));
        kit.run(if n % 2 == 0 { "SET x v" } else { "PING" });
        kit.run("DEL x");
    }
    at(&mut kit, 1_000_000);
    let looked_at = kit.engine.sweep(kit.now, 10_000);
    assert!(looked_at <= 1, "{looked_at}");
    kit.check("HLEN h", "2");
}

#[test]
fn fields_are_read_and_deleted_in_one_step() {
    let mut kit = Kit::new();
    kit.check("HGETDEL no FIELDS 2 a b", "[(nil) (nil)]");
    kit.run("HSET h a 1 b 2 c 3");
    kit.run("HPEXPIRE h 1000 FIELDS 1 a");
    kit.effects();
    kit.check("HGETDEL h FIELDS 3 a x a", "[1 (nil) (nil)]");
    kit.check("HGETDEL h FIELDS 1 x", "[(nil)]");
    assert_eq!(kit.effects(), ["HDEL h a"]);
    kit.check("HGETDEL h fields 2 b c", "[2 3]");
    kit.check("EXISTS h", "0");
    assert_eq!(kit.effects(), ["HDEL h b c"]);
    kit.run("SET s 1");
    let wrong_type = "(error) WRONGTYPE Operation against a key holding the wrong kind of value";
    kit.check("HGETDEL s x 1 a", wrong_type);
    let fields = "(error) ERR Mandatory argument FIELDS is missing or not at the right position";
    kit.check("HGETDEL h FELDS 1 a", fields);
    let count = "(error) ERR Number of fields must be a positive integer";
    kit.check("HGETDEL h FIELDS 0 a", count);
    let mismatch = "(error) ERR The `numfields` parameter must match the number of arguments";
    kit.check("HGETDEL h FIELDS 2 a", mismatch);
}

#[test]
fn fields_are_read_and_their_deadlines_changed_in_one_step() {
    let mut kit = Kit::new();
    kit.check("HGETEX no EX 10 FIELDS 1 a", "[(nil)]");
    kit.run("HSET h a 1 b 2 c 3");
    kit.effects();
    kit.check("HGETEX h FIELDS 2 a x", "[1 (nil)]");
    kit.check("HGETEX h PERSIST FIELDS 1 a", "[1]");
    assert!(kit.effects().is_empty(), "nothing was changed");
    kit.check("HGETEX h EX 10 FIELDS 2 a x", "[1 (nil)]");
    assert_eq!(kit.effects(), ["HPEXPIREAT h 1700000010000 FIELDS 1 a"]);
    kit.check("HGETEX h PX 1500 FIELDS 1 b", "[2]");
    kit.check("HPTTL h FIELDS 3 a b c", "[10000 1500 -1]");
    kit.check("HGETEX h EXAT 1700000020 FIELDS 1 a", "[1]");
    kit.check("HGETEX h PXAT 1700000020001 FIELDS 1 b", "[2]");
    kit.check("HPTTL h FIELDS 2 a b", "[20000 20001]");
    kit.effects();
    kit.check("HGETEX h PERSIST FIELDS 2 a c", "[1 3]");
    assert_eq!(kit.effects(), ["HPERSIST h FIELDS 1 a"]);
    kit.check("HGETEX h PXAT 1 FIELDS 2 a c", "[1 3]");
    assert_eq!(kit.effects(), ["HDEL h a c"]);
    kit.check("HGETEX h EX 0 FIELDS 1 b", "[2]");
    kit.check("EXISTS h", "0");
    let fields = "(error) ERR Mandatory argument FIELDS is missing or not at the right position";
    kit.check("HGETEX h EX 10 PX 1 FIELDS 1 a", fields);
    kit.check("HGETEX h KEEPTTL FIELDS 1 a", fields);
    kit.check(
        "HGETEX h EX 70368744178 FIELDS 1 a",
        "(error) ERR invalid expire time in 'hgetex' command",
    );
    kit.check("HGETEX h PX -1 FIELDS 1 a", "(error) ERR invalid expire time, must be >= 0");
}

#[test]
fn fields_are_set_with_a_deadline_in_one_step() {
    let mut kit = Kit::new();
    kit.check("HSETEX h FXX FIELDS 1 a 1", "0");
    kit.check("EXISTS h", "0");
    kit.check("HSETEX h FNX EX 10 FIELDS 2 a 1 b 2", "1");
    assert_eq!(kit.effects(), ["HSET h a 1 b 2", "HPEXPIREAT h 1700000010000 FIELDS 2 a b"]);
    kit.check("HPTTL h FIELDS 2 a b", "[10000 10000]");
    kit.check("HSETEX h FNX FIELDS 2 b 5 c 5", "0");
    kit.check("HSETEX h FXX FIELDS 2 b 5 c 5", "0");
    assert!(kit.effects().is_empty(), "nothing was changed");
    kit.check("HSETEX h FXX KEEPTTL FIELDS 1 a 3", "1");
    kit.check("HSETEX h FIELDS 1 b 4", "1");
    assert_eq!(kit.effects(), ["HSETEX h FXX KEEPTTL FIELDS 1 a 3", "HSETEX h FIELDS 1 b 4"]);
    kit.check("HGETALL h", "{a: 3, b: 4}");
    kit.check("HPTTL h FIELDS 2 a b", "[10000 -1]");
    kit.check("HSETEX h PXAT 1 FIELDS 2 a 1 new 1", "1");
    assert_eq!(kit.effects(), ["HDEL h a new"]);
    kit.check("HGETALL h", "{b: 4}");
    kit.check("HSETEX new EXAT 1 FIELDS 1 a 1", "1");
    kit.check("EXISTS new", "0");
    let arity = "(error) ERR wrong number of arguments for 'hsetex' command";
    kit.check("HSETEX h FIELDS 1 a", arity);
    kit.check("HSETEX h FIELDS 2 a 1", arity);
    kit.check("HSETEX h EX 1 FNX KEEPTTL2", "(error) ERR unknown argument: KEEPTTL2");
    kit.check("HSETEX h FIELDS 0 a 1", "(error) ERR invalid number of fields");
    let two = "(error) ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified";
    kit.check("HSETEX h EX 1 KEEPTTL FIELDS 1 a 1", two);
    kit.check("HSETEX h PX 1 EXAT 1 FIELDS 1 a 1", two);
    let two = "(error) ERR Only one of FXX or FNX arguments can be specified";
    kit.check("HSETEX h FXX FNX FIELDS 1 a 1", two);
    kit.check("HSETEX h FNX KEEPTTL EX", arity);
    kit.run("SET s 1");
    let wrong_type = "(error) WRONGTYPE Operation against a key holding the wrong kind of value";
    kit.check("HSETEX s FIELDS 1 a 1", wrong_type);
}

#[test]
fn a_pause_of_clients_hides_fields_too() {
    let mut kit = Kit::new();
    kit.run("HSET h a 1 b 2");
    kit.run("HPEXPIRE h 100 FIELDS 1 a");
    kit.check("CLIENT PAUSE 50000 WRITE", "OK");
    at(&mut kit, 200);
    assert_eq!(kit.engine.sweep(kit.now, 100), 0);
    kit.check("HGETALL h", "{b: 2}");
}

#[test]
fn events_tell_what_happened_to_fields() {
    let mut kit = Kit::new();
    kit.run("CONFIG SET notify-keyspace-events KEA");
    let other = kit.engine.connect("127.0.0.1:2");
    kit.run_as(other, "PSUBSCRIBE __keyevent@0__:*");
    kit.engine.take_output();
    let mut check = |ms: i64, line: &str, expected: &[&str]| {
        at(&mut kit, ms);
        kit.run(line);
        let event = |reply: &Reply| {
            let text = show(reply);
            let (_, told) = text.rsplit_once("__:").unwrap();
            told.trim_end_matches(']').trim_end_matches(" h").to_owned()
        };
        let output = kit.engine.take_output();
        let told: Vec<String> = output.deliveries.iter().map(|(_, reply)| event(reply)).collect();
        assert_eq!(told, expected, "{line}");
    };
    check(0, "HSET h a 1 b 2 c 3 d 4", &["hset"]);
    check(0, "HPEXPIRE h 100 FIELDS 2 a b", &["hexpire"]);
    check(0, "HPEXPIRE h 50 GT FIELDS 1 a", &[]);
    check(0, "HPERSIST h FIELDS 2 a x", &["hpersist"]);
    check(0, "HPERSIST h FIELDS 2 a x", &[]);
    check(0, "HPEXPIREAT h 1 FIELDS 1 d", &["hdel"]);
    check(100, "HGET h c", &["hexpired"]);
    check(100, "HPEXPIRE h 100 FIELDS 2 a c", &["hexpire"]);
    check(200, "HGET h c", &["hexpired", "del"]);
    check(200, "HSET h a 1", &["hset"]);
    check(200, "HPEXPIREAT h 1 FIELDS 1 a", &["hdel", "del"]);
}

#[test]
fn a_watched_hash_whose_field_dies_breaks_the_transaction() {
    let mut kit = Kit::new();
    kit.run("HSET h a 1 b 2");
    kit.check("MULTI", "OK");
    kit.check("HPEXPIRE h 100 FIELDS 1 a", "QUEUED");
    kit.check("HPTTL h FIELDS 1 a", "QUEUED");
    kit.check("EXEC", "[[1] [100]]");
    kit.run("WATCH h");
    at(&mut kit, 200);
    kit.run("MULTI");
    kit.run("PING");
    assert_eq!(kit.run("EXEC"), Reply::NilArray);
}

#[test]
fn scripts_set_deadlines_and_the_log_holds_moments() {
    let mut kit = Kit::new();
    kit.run("HSET h a 1 b 2 c 3");
    kit.effects();
    let script = "return redis.call('HEXPIRE', KEYS[1], 10, 'FIELDS', 2, 'a', 'x')";
    kit.check(&format!("EVAL \"{script}\" 1 h"), "[1 -2]");
    kit.check("HPEXPIRE h 5 GT FIELDS 2 a b", "[0 0]");
    kit.check("HPEXPIRE h 20000 XX FIELDS 2 a b", "[1 0]");
    kit.check("HINCRBYFLOAT h a 0.5", "1.5");
    assert_eq!(
        kit.effects(),
        [
            "HPEXPIREAT h 1700000010000 FIELDS 1 a",
            "HPEXPIREAT h 1700000020000 FIELDS 1 a",
            "HSET h a 1.5",
            "HPEXPIREAT h 1700000020000 FIELDS 1 a",
        ]
    );
    let read = "return redis.call('HPERSIST', KEYS[1], 'FIELDS', 1, 'a')";
    let refused = kit.text(&format!("EVAL_RO \"{read}\" 1 h"));
    assert!(refused.contains("Write commands are not allowed"), "{refused}");
}

#[test]
fn rights_follow_the_tables() {
    let mut kit = Kit::new();
    kit.run("HSET h a 1");
    kit.run("ACL SETUSER reader on nopass %R~h +@read");
    kit.check("ACL DRYRUN reader HTTL h FIELDS 1 a", "OK");
    assert_ne!(kit.text("ACL DRYRUN reader HEXPIRE h 10 FIELDS 1 a"), "OK");
    kit.run("ACL SETUSER writer on nopass ~h +@hash");
    for command in ["HEXPIRE", "HPEXPIRE", "HEXPIREAT", "HPEXPIREAT"] {
        kit.check(&format!("ACL DRYRUN writer {command} h 10 FIELDS 1 a"), "OK");
        let keys = kit.text(&format!("COMMAND GETKEYSANDFLAGS {command} h 10 FIELDS 1 a"));
        assert_eq!(keys, "[[h <RW update>]]");
    }
    for command in ["HTTL", "HPTTL", "HEXPIRETIME", "HPEXPIRETIME"] {
        let keys = kit.text(&format!("COMMAND GETKEYSANDFLAGS {command} h FIELDS 1 a"));
        assert_eq!(keys, "[[h <RO access>]]");
    }
}

#[test]
fn deadlines_are_counted_as_memory_and_given_back() {
    let mut kit = Kit::new();
    let used = |kit: &mut Kit| -> u64 {
        let info = kit.text("INFO memory");
        info.lines().find_map(|l| l.strip_prefix("used_memory:")).unwrap().parse().unwrap()
    };
    kit.check("CONFIG SET maxmemory 100mb", "OK");
    let empty = used(&mut kit);
    for n in 0..1_000 {
        kit.run(&format!("HSET h field:{n} value"));
    }
    let without = used(&mut kit);
    for n in 0..1_000 {
        kit.run(&format!("HPEXPIRE h {} FIELDS 1 field:{n}", 1_000 + n % 7));
    }
    let with = used(&mut kit);
    assert!((60..200).contains(&((with - without) / 1_000)), "{without} {with}");
    at(&mut kit, 10_000);
    kit.engine.sweep(kit.now, 500);
    assert!(used(&mut kit) < with);
    kit.check("HLEN h", "0");
    assert_eq!(used(&mut kit), empty);
    kit.run("HSET h a 1");
    let packed = used(&mut kit);
    kit.check("OBJECT ENCODING h", "listpack");
    kit.check("HEXPIRE h 10 NX FIELDS 1 x", "[-2]");
    assert_eq!(used(&mut kit), packed, "a hash without deadlines pays nothing");
    kit.check("OBJECT ENCODING h", "listpack");
}

#[test]
fn a_payload_that_is_wrong_is_refused() {
    let mut kit = Kit::new();
    kit.run("HSET h a 1 b 2 c 3");
    kit.run("HPEXPIRE h 1000 FIELDS 2 a b");
    let Reply::Bulk(payload) = kit.run("DUMP h") else { panic!("no payload") };
    // Form, first deadline, number of fields; version and checksum.
    assert_eq!(payload[0], 24);
    assert_eq!(payload[1..9], (START_MS + 1_000).to_le_bytes());
    assert_eq!(payload[9], 3);
    assert_eq!(payload[payload.len() - 10..payload.len() - 8], [12, 0]);
    let (client, now) = (kit.client, kit.now);
    for byte in 0..payload.len() {
        let mut changed = payload.clone();
        changed[byte] ^= 1;
        let argv: [&[u8]; 4] = [b"RESTORE", b"x", b"0", &changed];
        let engine::CommandOutcome::Reply(Reply::Error(_)) = kit.engine.execute(now, client, &argv)
        else {
            panic!("byte {byte}")
        };
    }
    let argv: [&[u8]; 4] = [b"RESTORE", b"x", b"0", &payload];
    assert_eq!(kit.engine.execute(now, client, &argv), engine::CommandOutcome::Reply(Reply::Ok));
    kit.check("HPTTL x FIELDS 3 a b c", "[1000 1000 -1]");
}

/// An engine that holds what these effects make.
fn loaded(records: &[Vec<u8>]) -> Kit {
    let mut engine = Engine::new(Config { log_effects: true, ..Config::default() });
    let loader = engine.connect_loader();
    for effects in records {
        assert_eq!(engine.apply(loader, effects).unwrap().errors, 0);
    }
    engine.disconnect(loader);
    let client: SessionId = engine.connect("127.0.0.1:1");
    Kit { engine, client, now: Now::from_millis(START_MS) }
}

fn snapshot(kit: &Kit) -> Vec<Vec<u8>> {
    let (mut records, mut cursor) = (Vec::new(), Some(SnapshotCursor::default()));
    while let Some(place) = cursor {
        let mut effects = Vec::new();
        cursor = kit.engine.snapshot(place, 2, &mut effects).next;
        records.push(effects);
    }
    records
}

#[test]
fn a_restart_keeps_deadlines_and_deletes_what_died_meanwhile() {
    let mut kit = Kit::new();
    for n in 0..2_000 {
        kit.run(&format!("HSET large f{n} v"));
        kit.run(&format!("HPEXPIRE large {} FIELDS 1 f{n}", if n < 1_500 { 1_000 } else { 9_000 }));
    }
    kit.run("HSET small a 1 b 2 c 3");
    kit.run("HPEXPIRE small 1000 FIELDS 1 a");
    kit.run("HPEXPIRE small 9000 FIELDS 1 b");
    kit.run("HSET gone a 1");
    kit.run("HPEXPIRE gone 1000 FIELDS 1 a");
    let log = vec![kit.engine.take_output().effects];
    for (records, what) in [(log, "log"), (snapshot(&kit), "snapshot")] {
        for sweeps in [false, true] {
            let mut kit = loaded(&records);
            at(&mut kit, 500);
            kit.check("HPTTL small FIELDS 3 a b c", "[500 8500 -1]");
            let mut kit = loaded(&records);
            at(&mut kit, 2_000);
            if sweeps {
                while kit.engine.sweep(kit.now, 100) == 100 {}
                kit.check("DBSIZE", "2");
            }
            kit.check("EXISTS gone", "0");
            kit.check("HLEN large", "500");
            kit.check("HPTTL small FIELDS 3 a b c", "[-2 7000 -1]");
            let effects = kit.effects();
            assert!(effects.contains(&"HDEL small a".to_owned()), "{what}: {effects:?}");
            assert!(effects.contains(&"DEL gone".to_owned()), "{what}: {effects:?}");
        }
    }
}

/// Fields with their values and deadlines.
type Model = BTreeMap<String, BTreeMap<String, (i64, Option<i64>)>>;

struct Walk {
    kit: Kit,
    model: Model,
    rng: fastrand::Rng,
    ms: i64,
    records: Vec<Vec<u8>>,
}

impl Walk {
    fn key(&mut self) -> String {
        format!("k{}", self.rng.u8(..4))
    }

    fn field(&mut self) -> String {
        format!("f{}", self.rng.u8(..10))
    }

    /// What died by now goes.
    fn settle(&mut self) {
        for fields in self.model.values_mut() {
            fields.retain(|_, (_, dies)| dies.is_none_or(|dies| dies > self.ms));
        }
        self.model.retain(|_, fields| !fields.is_empty());
    }

    fn step(&mut self) {
        self.ms += i64::from(self.rng.u8(..40));
        at(&mut self.kit, self.ms);
        self.settle();
        let (key, other, name) = (self.key(), self.key(), self.field());
        let now = self.ms;
        let field = self.model.get(&key).and_then(|fields| fields.get(&name)).copied();
        let (line, expected) = match self.rng.u8(..15) {
            0..=2 => {
                let value = i64::from(self.rng.u8(..));
                self.model.entry(key.clone()).or_default().insert(name.clone(), (value, None));
                let new = if field.is_none() { "1" } else { "0" };
                (format!("HSET {key} {name} {value}"), new.to_owned())
            }
            3 => {
                let fields = self.model.entry(key.clone()).or_default();
                let (value, _) = fields.entry(name.clone()).or_insert((0, None));
                *value += 7;
                (format!("HINCRBY {key} {name} 7"), value.to_string())
            }
            4 => {
                if let Some(fields) = self.model.get_mut(&key) {
                    fields.remove(&name);
                }
                let there = if field.is_some() { "1" } else { "0" };
                (format!("HDEL {key} {name}"), there.to_owned())
            }
            5..=8 => {
                let ms = i64::from(self.rng.u16(..800)) * i64::from(self.rng.u8(..10).min(1));
                let word = ["", "NX ", "XX ", "GT ", "LT "][self.rng.usize(..5)];
                let at = now + ms;
                let reply = match field {
                    None => -2,
                    Some((_, before)) => {
                        let holds = match word.trim() {
                            "NX" => before.is_none(),
                            "XX" => before.is_some(),
                            "GT" => before.is_some_and(|before| at > before),
                            "LT" => before.is_none_or(|before| at < before),
                            _ => true,
                        };
                        let fields = self.model.get_mut(&key).unwrap();
                        match (holds, ms) {
                            (false, _) => 0,
                            (true, 0) => {
                                fields.remove(&name);
                                2
                            }
                            (true, _) => {
                                fields.get_mut(&name).unwrap().1 = Some(at);
                                1
                            }
                        }
                    }
                };
                (format!("HPEXPIRE {key} {ms} {word}FIELDS 1 {name}"), format!("[{reply}]"))
            }
            9 => {
                let reply = match field {
                    None => -2,
                    Some((_, None)) => -1,
                    Some((_, Some(_))) => {
                        self.model.get_mut(&key).unwrap().get_mut(&name).unwrap().1 = None;
                        1
                    }
                };
                (format!("HPERSIST {key} FIELDS 1 {name}"), format!("[{reply}]"))
            }
            10 => {
                let reply = match field {
                    None => -2,
                    Some((_, dies)) => dies.map_or(-1, |dies| dies - now),
                };
                (format!("HPTTL {key} FIELDS 1 {name}"), format!("[{reply}]"))
            }
            11 if key != other => {
                let copied = self.model.get(&key).cloned();
                let reply = if copied.is_some() { "1" } else { "0" };
                if let Some(fields) = copied {
                    self.model.insert(other.clone(), fields);
                }
                (format!("COPY {key} {other} REPLACE"), reply.to_owned())
            }
            12 if self.model.contains_key(&key) => {
                if let Some(fields) = self.model.remove(&key) {
                    self.model.insert(other.clone(), fields);
                }
                (format!("RENAME {key} {other}"), "OK".to_owned())
            }
            13 => {
                let len = self.model.get(&key).map_or(0, BTreeMap::len);
                (format!("HLEN {key}"), len.to_string())
            }
            _ => {
                let value = field.map_or("(nil)".to_owned(), |(value, _)| value.to_string());
                (format!("HGET {key} {name}"), value)
            }
        };
        let reply = self.kit.text(&line);
        assert_eq!(reply, expected, "{line} at {now}");
        self.settle();
        if self.rng.u8(..) < 40 {
            let budget = self.rng.usize(1..6);
            self.kit.engine.sweep(self.kit.now, budget);
        }
        let effects = self.kit.engine.take_output().effects;
        if !effects.is_empty() {
            self.records.push(effects);
        }
    }
}

fn content(kit: &mut Kit) -> Model {
    let Reply::Array(keys) = kit.run("KEYS *") else { panic!("KEYS") };
    let mut model = Model::new();
    for key in keys.iter().map(show) {
        let Reply::Map(pairs) = kit.run(&format!("HGETALL {key}")) else { panic!("HGETALL") };
        let fields = model.entry(key.clone()).or_default();
        for (name, value) in pairs {
            let name = show(&name);
            let dies = kit.text(&format!("HPEXPIRETIME {key} FIELDS 1 {name}"));
            let dies = dies.trim_matches(['[', ']']).parse::<i64>().unwrap();
            let dies = (dies != -1).then_some(dies - START_MS);
            fields.insert(name, (show(&value).parse().unwrap(), dies));
        }
    }
    model
}

#[test]
fn random_commands_behave_as_a_map_with_deadlines_and_survive_restarts() {
    for seed in 0..60 {
        println!("seed {seed}");
        let mut walk = Walk {
            kit: Kit::new(),
            model: Model::new(),
            rng: fastrand::Rng::with_seed(seed),
            ms: 0,
            records: Vec::new(),
        };
        for _ in 0..800 {
            walk.step();
        }
        let mut from_log = loaded(&walk.records);
        let mut from_snapshot = loaded(&snapshot(&walk.kit));
        for later_ms in [0, 300, 5_000] {
            walk.ms += later_ms;
            walk.settle();
            for kit in [&mut walk.kit, &mut from_log, &mut from_snapshot] {
                at(kit, walk.ms);
                assert_eq!(content(kit), walk.model, "seed {seed}, {later_ms} ms later");
            }
        }
    }
}
