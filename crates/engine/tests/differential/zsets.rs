//! Sorted sets, those who wait for them included.

use crate::harness::{Differential, both};

/// Runs a case on a small and on a large encoding.
fn each_encoding(case: impl Fn(&mut Differential)) {
    both(|d| {
        case(d);
        d.same("FLUSHALL");
        d.same("CONFIG SET zset-max-listpack-entries 0");
        case(d);
        d.same("CONFIG SET zset-max-listpack-entries 128");
    });
}

#[test]
fn scores_and_ranks() {
    each_encoding(|d| {
        for line in [
            "ZADD z 1 b 1 a 0.5 c -inf low inf high",
            "OBJECT ENCODING z",
            "ZCARD z",
            "ZCARD nokey",
            "ZSCORE z a",
            "ZSCORE z low",
            "ZSCORE z x",
            "ZSCORE nokey x",
            "ZMSCORE z a x high",
            "ZMSCORE nokey a",
            "ZRANK z b",
            "ZRANK z x",
            "ZRANK nokey x",
            "ZREVRANK z b",
            "ZREVRANK z x",
            "ZINCRBY z 0.1 c",
            "ZINCRBY z 1 new",
            "ZINCRBY z x c",
            "ZINCRBY z -inf high",
            "ZINCRBY z nan c",
            "ZADD z NX 9 a",
            "ZADD z NX 9 n1 10 a",
            "ZADD z XX 9 a",
            "ZADD z XX 9 n2",
            "ZADD z XX CH 10 a 1 n2",
            "ZADD z GT 5 a 20 b",
            "ZADD z GT CH 5 a 21 b",
            "ZADD z LT CH 5 a 22 b",
            "ZADD z GT 1 brandnew",
            "ZADD z CH 1 a 2 b",
            "ZADD z CH 1 a 2 b",
            "ZADD z INCR 5 a",
            "ZADD z NX INCR 5 a",
            "ZADD z XX INCR 5 nothere",
            "ZADD z GT INCR -5 a",
            "ZADD z LT INCR -5 a",
            "ZADD z INCR 5 a 6 b",
            "ZADD z NX XX 1 a",
            "ZADD z GT LT 1 a",
            "ZADD z GT NX 1 a",
            "ZADD z 1",
            "ZADD z 1 a 2",
            "ZADD z x a",
            "ZADD z 1 a nan b",
            "ZADD z NX",
            "ZADD z 1e400 a",
            "ZADD z 0x10 hex 1e3 exp +5 plus .5 dot",
            "ZADD z -0 negzero 0 zero",
            "ZINCRBY z -0 negzero",
            "ZSCORE z negzero",
            "ZRANGE z 0 -1 WITHSCORES",
            "ZREM z a nothere b",
            "ZREM nokey a",
            "ZADD new XX 1 a",
            "EXISTS new",
            "ZADD e 1 a",
            "ZREM e a",
            "EXISTS e",
            "ZADD p 0.1 a 3.0 b 1e21 c 123456789012345678 d 1.5e-7 e",
            "ZRANGE p 0 -1 WITHSCORES",
            "ZADD u 1 550e8400-e29b-41d4-a716-446655440000 1 550e8400-e29b-41d4-a716-446655440001 1 5 1 500",
            "ZRANGE u 0 -1",
            "ZRANK u 550e8400-e29b-41d4-a716-446655440001",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn ranges_of_every_kind() {
    each_encoding(|d| {
        d.same("ZADD z 1 a 2 b 3 c 4 d 5 e 5 f");
        d.same("ZADD l 0 a 0 aa 0 b 0 bb 0 c 0 \"\"");
        for line in [
            "ZRANGE z 0 -1",
            "ZRANGE z 1 2 WITHSCORES",
            "ZRANGE z -2 -1",
            "ZRANGE z 5 1",
            "ZRANGE z 0 -1 REV",
            "ZRANGE z 0 1 REV WITHSCORES",
            "ZRANGE z x 1",
            "ZRANGE z 0 1 BAD",
            "ZRANGE nokey 0 1",
            "ZRANGE nokey x 1",
            "ZREVRANGE z 0 2",
            "ZREVRANGE z 0 2 WITHSCORES",
            "ZREVRANGE z 0 2 REV",
            "ZREVRANGE z 0 2 BYSCORE",
            "ZRANGE z 2 4 BYSCORE",
            "ZRANGE z (2 (4 BYSCORE",
            "ZRANGE z 4 2 BYSCORE REV",
            "ZRANGE z 4 2 BYSCORE REV LIMIT 1 1 WITHSCORES",
            "ZRANGE z 0 1 LIMIT 0 1",
            "ZRANGE z 0 1 LIMIT 0 -1",
            "ZRANGE z 0 1 BYSCORE BYLEX",
            "ZRANGE z - + BYLEX WITHSCORES",
            "ZRANGE l - + BYLEX",
            "ZRANGE l [a (bb BYLEX",
            "ZRANGE l (bb [a BYLEX REV",
            "ZRANGEBYSCORE z -inf +inf",
            "ZRANGEBYSCORE z -inf +inf WITHSCORES LIMIT 1 2",
            "ZRANGEBYSCORE z -inf +inf LIMIT 1 -1",
            "ZRANGEBYSCORE z -inf +inf LIMIT -1 2",
            "ZRANGEBYSCORE z -inf +inf LIMIT 100 2",
            "ZRANGEBYSCORE z -inf +inf LIMIT 0 0",
            "ZRANGEBYSCORE z -inf +inf LIMIT 1",
            "ZRANGEBYSCORE z -inf +inf LIMIT a b",
            "ZRANGEBYSCORE z a b",
            "ZRANGEBYSCORE z (a b",
            "ZRANGEBYSCORE z \"\" 3",
            "ZRANGEBYSCORE z \" 1\" 3",
            "ZRANGEBYSCORE z \"1 \" 3",
            "ZRANGEBYSCORE z ( 3",
            "ZRANGEBYSCORE z 1e400 3",
            "ZRANGEBYSCORE z -1e400 1e400",
            "ZRANGEBYSCORE z nan 3",
            "ZRANGEBYSCORE z 3 1",
            "ZRANGEBYSCORE z (3 3",
            "ZREVRANGEBYSCORE z 4 (1",
            "ZREVRANGEBYSCORE z +inf -inf LIMIT 2 2 WITHSCORES",
            "ZRANGEBYLEX l - +",
            "ZRANGEBYLEX l + -",
            "ZRANGEBYLEX l [a [b",
            "ZRANGEBYLEX l (a (b",
            "ZRANGEBYLEX l [ (b",
            "ZRANGEBYLEX l ( (b",
            "ZRANGEBYLEX l - + LIMIT 1 2",
            "ZRANGEBYLEX l - + LIMIT 10 2",
            "ZRANGEBYLEX l a b",
            "ZRANGEBYLEX l -x +",
            "ZRANGEBYLEX l - + WITHSCORES",
            "ZREVRANGEBYLEX l + - LIMIT 0 3",
            "ZREVRANGEBYLEX l [b [a",
            "ZLEXCOUNT l - +",
            "ZLEXCOUNT l [a (b",
            "ZLEXCOUNT l b a",
            "ZLEXCOUNT nokey - +",
            "ZCOUNT z 2 4",
            "ZCOUNT z (2 (4",
            "ZCOUNT z -inf inf",
            "ZCOUNT z 4 2",
            "ZCOUNT z a 2",
            "ZCOUNT nokey 1 2",
            "ZRANGESTORE d z 1 3",
            "ZRANGE d 0 -1 WITHSCORES",
            "ZRANGESTORE d z (1 +inf BYSCORE LIMIT 1 2",
            "ZRANGE d 0 -1 WITHSCORES",
            "ZRANGESTORE d z 0 1 WITHSCORES",
            "ZRANGESTORE d l - + BYLEX REV LIMIT 0 1",
            "ZRANGESTORE d nokey 0 1",
            "EXISTS d",
            "ZRANGESTORE z z 0 2",
            "ZRANGE z 0 -1",
            "SET s 1",
            "ZRANGE s 0 1",
            "ZRANGE s x 1",
            "ZRANGESTORE d s 0 1",
            "ZADD s 1 a",
            "ZADD s x a",
            "ZADD s NX XX 1 a",
            "ZREM s a",
            "ZSCORE s a",
            "ZRANK s a",
            "ZCOUNT s 1 2",
            "ZCOUNT s a 2",
            "ZPOPMIN s",
            "ZPOPMIN s x",
            "ZRANDMEMBER s",
            "ZSCAN s 0",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn names_of_several_scores() {
    // What Redis answers then follows from how it searches a small sorted set.
    both(|d| {
        d.same("ZADD z 1 m 2 c 3 x 4 a 5 q");
        for (min, max) in [
            ("-", "+"),
            ("[c", "[q"),
            ("[a", "[c"),
            ("(m", "+"),
            ("-", "[c"),
            ("[n", "[z"),
            ("[q", "[c"),
        ] {
            d.same(&format!("ZRANGEBYLEX z {min} {max}"));
            d.same(&format!("ZREVRANGEBYLEX z {max} {min}"));
            d.same(&format!("ZLEXCOUNT z {min} {max}"));
        }
        d.same("ZREMRANGEBYLEX z [c [q");
        d.same("ZRANGE z 0 -1");
    });
}

#[test]
fn removals_and_pops() {
    each_encoding(|d| {
        d.same("ZADD z 1 a 2 b 3 c 4 d 5 e 6 f 7 g 8 h 9 i 10 j");
        for line in [
            "ZREMRANGEBYRANK z 0 0",
            "ZREMRANGEBYRANK z -1 -1",
            "ZREMRANGEBYRANK z 5 1",
            "ZREMRANGEBYRANK z x 1",
            "ZREMRANGEBYSCORE z (2 3",
            "ZREMRANGEBYSCORE z a 3",
            "ZREMRANGEBYLEX z a b",
            "ZREMRANGEBYSCORE nokey 1 2",
            "ZRANGE z 0 -1",
            "ZPOPMIN z",
            "ZPOPMAX z",
            "ZPOPMIN z 2",
            "ZPOPMAX z 0",
            "ZPOPMAX z x",
            "ZPOPMAX z -1",
            "ZPOPMAX z 1 2",
            "ZPOPMAX z 100",
            "EXISTS z",
            "ZPOPMIN z",
            "ZPOPMIN z 5",
            "ZADD l 0 a 0 b 0 c",
            "ZREMRANGEBYLEX l [a (c",
            "ZREMRANGEBYLEX l - +",
            "EXISTS l",
            "ZADD z 1 a 2 b 3 c",
            "ZMPOP 2 nokey z MIN",
            "ZMPOP 2 nokey z max COUNT 5",
            "ZMPOP 2 nokey z MIN",
            "ZMPOP 0 z MIN",
            "ZMPOP x z MIN",
            "ZMPOP 2 z MIN",
            "ZMPOP 1 z MID",
            "ZMPOP 1 z MIN COUNT 0",
            "ZMPOP 1 z MIN COUNT",
            "ZMPOP 1 z MIN COUNT 1 COUNT 1",
            "ZMPOP 1 z MIN BAD",
            "ZADD z 1 a 2 b 3 c",
            "BZPOPMIN nokey z 0",
            "BZPOPMAX nokey z 0",
            "BZMPOP 0 2 nokey z MIN COUNT 3",
            "BZPOPMIN z x",
            "BZPOPMIN z -1",
            "BZMPOP x 1 z MIN",
            "BZMPOP 0 1 z MIN COUNT 0",
            "SET s 1",
            "BZPOPMIN s 0",
            "BZMPOP 0 1 s MIN",
            "ZMPOP 1 s MIN",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn algebra() {
    each_encoding(|d| {
        d.same("ZADD a 1 x 2 y 3 z inf i");
        d.same("ZADD b 10 y 20 z 30 w -inf i");
        d.same("SADD s y z 5");
        d.same("SADD ints 1 2 3");
        d.same("SET str 1");
        for line in [
            "ZUNION 2 a b",
            "ZUNION 2 a b WITHSCORES",
            "ZUNION 3 a b s WITHSCORES",
            "ZUNION 2 a b WEIGHTS 2 0.5 WITHSCORES",
            "ZUNION 2 a b WEIGHTS 0 0 WITHSCORES",
            "ZUNION 2 a b AGGREGATE MIN WITHSCORES",
            "ZUNION 2 a b AGGREGATE max WITHSCORES",
            "ZUNION 2 a b WEIGHTS 2 3 AGGREGATE SUM WITHSCORES",
            "ZUNION 1 ints WITHSCORES",
            "ZUNION 2 a nokey",
            "ZUNION 1 nokey",
            "ZINTER 2 a b WITHSCORES",
            "ZINTER 3 a b s WITHSCORES",
            "ZINTER 2 a a WITHSCORES",
            "ZINTER 2 a b WEIGHTS -1 inf WITHSCORES",
            "ZINTER 2 a b AGGREGATE MAX WITHSCORES",
            "ZINTER 2 a nokey",
            "ZDIFF 2 a b WITHSCORES",
            "ZDIFF 2 a s",
            "ZDIFF 2 a a",
            "ZDIFF 2 nokey a",
            "ZDIFF 1 a WITHSCORES",
            "ZINTERCARD 2 a b",
            "ZINTERCARD 2 a b LIMIT 1",
            "ZINTERCARD 2 a b LIMIT 0",
            "ZINTERCARD 2 a b LIMIT -1",
            "ZINTERCARD 2 a b LIMIT",
            "ZINTERCARD 2 a b WITHSCORES",
            "ZINTERCARD 2 a nokey",
            "ZUNIONSTORE d 2 a b",
            "ZRANGE d 0 -1 WITHSCORES",
            "OBJECT ENCODING d",
            "ZINTERSTORE d 2 a b WEIGHTS 1 2 AGGREGATE MIN",
            "ZRANGE d 0 -1 WITHSCORES",
            "ZDIFFSTORE d 2 a b",
            "ZRANGE d 0 -1 WITHSCORES",
            "ZDIFFSTORE d 2 a a",
            "EXISTS d",
            "ZINTERSTORE d 2 a nokey",
            "ZUNIONSTORE a 2 a b",
            "ZRANGE a 0 -1 WITHSCORES",
            "ZUNION 0 a",
            "ZUNION -1 a",
            "ZUNION x a",
            "ZUNION 3 a b",
            "ZUNIONSTORE d 0 a",
            "ZINTERCARD 0 a",
            "ZDIFF 0 a",
            "ZUNION 2 a b WEIGHTS 1",
            "ZUNION 2 a b WEIGHTS 1 x",
            "ZUNION 2 a b AGGREGATE",
            "ZUNION 2 a b AGGREGATE AVG",
            "ZUNION 2 a b BAD",
            "ZUNIONSTORE d 2 a b WITHSCORES",
            "ZDIFF 2 a b WEIGHTS 1 1",
            "ZUNION 2 a str BAD",
            "ZUNION 2 a str",
            "ZDIFFSTORE d 2 a str",
            "ZUNIONSTORE str 1 a",
            "TYPE str",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn chance_and_scans() {
    each_encoding(|d| {
        d.same("ZADD one 1.5 a");
        for line in [
            "ZRANDMEMBER one",
            "ZRANDMEMBER one 1",
            "ZRANDMEMBER one 5 WITHSCORES",
            "ZRANDMEMBER one -2 WITHSCORES",
            "ZRANDMEMBER one 0",
            "ZRANDMEMBER one x",
            "ZRANDMEMBER one 1 BAD",
            "ZRANDMEMBER one 1 WITHSCORES 1",
            "ZRANDMEMBER one -9223372036854775808",
            "ZRANDMEMBER one 9223372036854775807 WITHSCORES",
            "ZRANDMEMBER nokey",
            "ZRANDMEMBER nokey 1",
            "ZSCAN one 0",
            "ZSCAN one 0 MATCH b",
            "ZSCAN one x",
            "ZSCAN nokey 0 BAD",
            "ZADD inf inf a",
            "ZSCAN inf 0",
            "ZADD third 0.33333333333333331 a",
            "ZSCAN third 0",
        ] {
            d.same(line);
        }
        d.same("ZADD z 1 a 2 b 3 c 4 d 5 e 6 f 7 g 8 h 9 i 10 j");
        d.shape("ZRANDMEMBER z 3");
        d.shape("ZRANDMEMBER z 3 WITHSCORES");
        d.shape("ZRANDMEMBER z -30 WITHSCORES");
        d.sorted("ZRANDMEMBER z 100");
    });
}

#[test]
fn large_sorted_sets() {
    both(|d| {
        for n in 0..1_500u32 {
            let score = n.wrapping_mul(2_654_435_761) % 200;
            d.same(&format!("ZADD z {score} member-{n}"));
        }
        d.same("OBJECT ENCODING z");
        for line in [
            "ZRANGE z 0 -1 WITHSCORES",
            "ZRANGEBYSCORE z (50 60 WITHSCORES LIMIT 3 20",
            "ZREVRANGEBYSCORE z 60 (50 LIMIT 3 20",
            "ZCOUNT z 100 150",
            "ZREMRANGEBYSCORE z 90 110",
            "ZREMRANGEBYRANK z 100 300",
            "ZPOPMIN z 50",
            "ZPOPMAX z 50",
            "ZREVRANGE z 0 -1 WITHSCORES",
        ] {
            d.same(line);
        }
        for n in (0..1_500).step_by(7) {
            d.same(&format!("ZRANK z member-{n}"));
            d.same(&format!("ZREVRANK z member-{n}"));
            d.same(&format!("ZINCRBY z 13.5 member-{n}"));
        }
        d.same("ZRANGE z 0 -1 WITHSCORES");
        d.same(&format!("ZADD long 1 {}", "x".repeat(64)));
        d.same("OBJECT ENCODING long");
        d.same(&format!("ZADD long 1 {}", "x".repeat(65)));
        d.same("OBJECT ENCODING long");
        for n in 0..129 {
            d.same(&format!("ZADD many {n} m{n}"));
        }
        d.same("OBJECT ENCODING many");
        d.same("ZUNIONSTORE copy 1 many");
        d.same("OBJECT ENCODING copy");
        d.same("ZREM many m0 m1");
        d.same("OBJECT ENCODING many");
        d.same("ZUNIONSTORE copy 1 many");
        d.same("OBJECT ENCODING copy");
        d.same("ZRANGESTORE copy many 0 50");
        d.same("OBJECT ENCODING copy");
    });
}

#[test]
fn who_waits_is_served_in_order() {
    both(|d| {
        let (a, b, c) = (d.client(), d.client(), d.client());
        d.waits(a, "BZPOPMAX x z 0");
        d.waits(b, "BZPOPMIN z 0");
        d.waits(c, "BZMPOP 0 2 y z MAX COUNT 9");
        d.same("ZADD z 1 a 2 b 3 c 4 d");
        for client in [a, b, c] {
            d.served(client);
        }
        d.same("EXISTS z");
        d.waits(a, "BZPOPMIN z 0");
        d.same("SADD z x");
        d.same("DEL z");
        d.same("ZUNIONSTORE z 1 nokey");
        d.same("ZADD src 5 m");
        d.same("ZUNIONSTORE z 1 src");
        d.served(a);
    });
}

#[test]
fn keyspace_events() {
    both(|d| {
        d.same("CONFIG SET notify-keyspace-events EA");
        let listener = d.client();
        d.same_on(listener, "PSUBSCRIBE __key*");
        let told = |d: &mut Differential, line: &str, events: usize| {
            d.same(line);
            (0..events).for_each(|_| drop(d.pushed(listener)));
        };
        told(d, "ZADD z 1 a 2 b 3 c 4 d 5 e", 1);
        told(d, "ZADD z 1 a", 0);
        told(d, "ZINCRBY z 1 a", 1);
        told(d, "ZINCRBY z 0 a", 0);
        told(d, "ZREM z x", 0);
        told(d, "ZREM z a", 1);
        told(d, "ZREMRANGEBYRANK z 0 0", 1);
        told(d, "ZREMRANGEBYSCORE z 3 3", 1);
        told(d, "ZUNIONSTORE u 1 z", 1);
        told(d, "ZINTERSTORE u 1 nokey", 1);
        told(d, "ZRANGESTORE u z 0 -1", 1);
        told(d, "ZPOPMIN z", 1);
        told(d, "ZPOPMAX z 5", 2);
        told(d, "ZMPOP 1 u MIN COUNT 9", 2);
        d.same("CONFIG SET notify-keyspace-events \"\"");
    });
}
