//! Sets.

use crate::harness::both;

#[test]
fn members_come_and_go() {
    both(|d| {
        for line in [
            "SADD s 3 1 2 3",
            "OBJECT ENCODING s",
            "SMEMBERS s",
            "SADD s 1",
            "SISMEMBER s 1",
            "SISMEMBER s 01",
            "SISMEMBER nokey 1",
            "SMISMEMBER s 1 9 x",
            "SMISMEMBER nokey 1 9",
            "SADD s 70000 -70000 5000000000",
            "SMEMBERS s",
            "OBJECT ENCODING s",
            "SREM s 2 9",
            "SREM nokey 1",
            "SCARD s",
            "SCARD nokey",
            "SADD s text",
            "OBJECT ENCODING s",
            "SREM s text",
            "OBJECT ENCODING s",
            "SMOVE s t 1",
            "SMOVE s t 1",
            "SMOVE s t 3",
            "SMOVE t t 3",
            "SMOVE t t 9",
            "SMOVE nokey t 3",
            "OBJECT ENCODING t",
            "SREM t 1 3 4",
            "EXISTS t",
            "SET str 1",
            "SADD str a",
            "SREM str a",
            "SMOVE s str 70000",
            "SMOVE str s a",
            "SMOVE nokey str a",
            "SISMEMBER str a",
            "SMISMEMBER str a",
            "SCARD str",
            "SMEMBERS str",
            "SPOP str",
            "SRANDMEMBER str",
            "SINTER s str",
            "SINTER nokey str",
            "SUNION s str",
            "SDIFF s str",
            "SINTERSTORE d s str",
            "SINTERCARD 1 str",
            "SSCAN str 0",
            "SMEMBERS nokey",
            "SADD s",
        ] {
            d.same(line);
        }
        d.sorted("SMEMBERS s");
    });
}

#[test]
fn algebra() {
    both(|d| {
        d.same("SADD a 1 2 3 4 x y");
        d.same("SADD b 3 4 5 y z");
        d.same("SADD c 4 y 550e8400-e29b-41d4-a716-446655440000");
        d.same("SADD ints 1 2 3 4 5 6 7");
        for line in [
            "SINTER a b",
            "SINTER a b c",
            "SINTER a nokey",
            "SINTER a a",
            "SUNION a b c",
            "SUNION a nokey",
            "SUNION nokey",
            "SDIFF a b",
            "SDIFF a b c",
            "SDIFF a a",
            "SDIFF nokey a",
            "SDIFF a nokey",
            "SDIFF ints a b",
            "SINTER ints a",
            "SUNION ints ints",
        ] {
            d.sorted(line);
        }
        for line in [
            "SINTER ints",
            "SDIFF ints c",
            "SINTERSTORE d a b",
            "SCARD d",
            "SINTERSTORE d a nokey",
            "EXISTS d",
            "SUNIONSTORE d ints ints",
            "OBJECT ENCODING d",
            "SMEMBERS d",
            "SUNIONSTORE d a b",
            "OBJECT ENCODING d",
            "SDIFFSTORE d ints c",
            "OBJECT ENCODING d",
            "SDIFFSTORE d ints ints",
            "EXISTS d",
            "SUNIONSTORE d nokey",
            "SET str 1",
            "SUNIONSTORE str ints",
            "TYPE str",
            "SINTERSTORE a a b",
            "SCARD a",
            "SINTERCARD 2 a b",
            "SINTERCARD 2 a b LIMIT 1",
            "SINTERCARD 2 a b LIMIT 0",
            "SINTERCARD 2 a b LIMIT -1",
            "SINTERCARD 2 a b LIMIT x",
            "SINTERCARD 2 a b LIMIT",
            "SINTERCARD 2 a b LIMIT 1 LIMIT 2",
            "SINTERCARD 2 a b BAD 1",
            "SINTERCARD 0 a",
            "SINTERCARD x a",
            "SINTERCARD -1 a",
            "SINTERCARD 3 a b",
            "SINTERCARD 1 nokey",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn by_chance() {
    both(|d| {
        d.same("SADD one a");
        for line in [
            "SRANDMEMBER one",
            "SRANDMEMBER one 1",
            "SRANDMEMBER one 5",
            "SRANDMEMBER one -3",
            "SRANDMEMBER one 0",
            "SRANDMEMBER one x",
            "SRANDMEMBER one 1 2",
            "SRANDMEMBER one -9223372036854775808",
            "SRANDMEMBER nokey",
            "SRANDMEMBER nokey 5",
            "SPOP one 0",
            "SPOP one x",
            "SPOP one -1",
            "SPOP one 1 2",
            "SPOP one",
            "SPOP one",
            "SPOP one 3",
            "EXISTS one",
            "SSCAN nokey 0",
        ] {
            d.same(line);
        }
        d.same("SADD s 1 2 3 4 5 6 7 8 9 10");
        d.shape("SRANDMEMBER s 4");
        d.shape("SRANDMEMBER s -20");
        d.same("SRANDMEMBER s 10");
        d.shape("SPOP s 4");
        d.same("SCARD s");
        d.run("SPOP s");
        d.same("SCARD s");
        d.run("SPOP s 100");
        d.same("EXISTS s");
        d.same("SADD t 1 2 3");
        d.same("SSCAN t 0");
        d.same("SSCAN t 0 MATCH 2");
        d.same("SSCAN t 0 BAD");
        d.same("SPOP t 3");
    });
}

#[test]
fn encodings_change_where_redis_changes_them() {
    both(|d| {
        for n in 0..515 {
            d.same(&format!("SADD ints {n}"));
            if n > 509 {
                d.same("OBJECT ENCODING ints");
            }
        }
        d.sorted("SMEMBERS ints");
        d.same("CONFIG SET set-max-intset-entries 3");
        d.same("SADD few 1 2 3");
        d.same("OBJECT ENCODING few");
        d.same("SADD few 4");
        d.same("OBJECT ENCODING few");
        d.same("SUNIONSTORE union few few");
        d.same("OBJECT ENCODING union");
        d.same("CONFIG SET set-max-intset-entries 512");
        for n in 0..300 {
            d.same(&format!("SADD words word-{n}"));
        }
        d.sorted("SMEMBERS words");
        d.same("SREM words word-1 word-2 word-299");
        d.same("SCARD words");
    });
}

#[test]
fn keyspace_events() {
    both(|d| {
        d.same("CONFIG SET notify-keyspace-events EA");
        let listener = d.client();
        d.same_on(listener, "PSUBSCRIBE __key*");
        let told = |d: &mut crate::harness::Differential, line: &str, events: usize| {
            d.same(line);
            (0..events).for_each(|_| drop(d.pushed(listener)));
        };
        told(d, "SADD s 1 2 3", 1);
        told(d, "SADD s 1", 0);
        told(d, "SREM s 9", 0);
        told(d, "SREM s 1", 1);
        told(d, "SMOVE s t 2", 2);
        told(d, "SMOVE s t 3", 3);
        told(d, "SINTERSTORE d t t", 1);
        told(d, "SINTERSTORE d t nokey", 1);
        told(d, "SUNIONSTORE d t", 1);
        told(d, "SDIFFSTORE d t nokey", 1);
        told(d, "SPOP t 5", 2);
        d.same("CONFIG SET notify-keyspace-events \"\"");
    });
}
