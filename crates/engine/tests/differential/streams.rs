//! Streams and consumer groups, those who wait for them included.

use crate::harness::{Differential, both};

#[test]
fn entries_and_ranges() {
    both(|d| {
        for line in [
            "XADD s 1-1 a 1",
            "XADD s 1-2 a 2 b 3",
            "XADD s 1-* c 4",
            "XADD s 2 d 5",
            "XADD s 5-7 a 1",
            "XADD s 5-7 a 1",
            "XADD s 5-6 a 1",
            "XADD s 5 a 1",
            "XADD s 0-0 a 1",
            "XADD s 0-* a 1",
            "XADD new 0-* a 1",
            "XADD s x a 1",
            "XADD s - a 1",
            "XADD s + a 1",
            "XADD s 1-x a 1",
            "XADD s 1-2-3 a 1",
            "XADD s -1 a 1",
            "XADD s 18446744073709551616-0 a 1",
            "XADD s * a",
            "XADD s * a 1 b",
            "XADD s *",
            "XADD s NOMKSTREAM",
            "XADD none NOMKSTREAM * a 1",
            "XADD s nomkstream 6-0 a \"\" \"\" b \"a\\x00b\" 550e8400-e29b-41d4-a716-446655440000",
            "XLEN s",
            "XLEN nokey",
            "XRANGE s - +",
            "XRANGE s - + COUNT 2",
            "XRANGE s - + COUNT 0",
            "XRANGE s - + COUNT -5",
            "XRANGE s - + COUNT x",
            "XRANGE s - + COUNT",
            "XRANGE s - + BAD 1",
            "XRANGE s - + COUNT 1 COUNT 2",
            "XRANGE s 1 1",
            "XRANGE s 1-2 5",
            "XRANGE s (1-2 (5-7",
            "XRANGE s (1 5",
            "XRANGE s (- +",
            "XRANGE s - (+",
            "XRANGE s ( +",
            "XRANGE s (18446744073709551615-18446744073709551615 +",
            "XRANGE s - (0-0",
            "XRANGE s 6 1",
            "XRANGE s x +",
            "XRANGE nokey - +",
            "XRANGE nokey - x",
            "XREVRANGE s + -",
            "XREVRANGE s + - COUNT 2",
            "XREVRANGE s 5 1-2",
            "XREVRANGE s (5-7 1",
            "XREVRANGE s - +",
            "XDEL s 1-2 9-9",
            "XDEL s x",
            "XDEL nokey x",
            "XDEL s 1-1 6-0",
            "XLEN s",
            "XRANGE s - +",
            "XINFO STREAM s",
            "XSETID s 5-0",
            "XSETID s 4-0",
            "XSETID s 10-0",
            "XSETID s 10-0 ENTRIESADDED 100 MAXDELETEDID 3-0",
            "XSETID s 10-0 ENTRIESADDED 1",
            "XSETID s 10-0 ENTRIESADDED -1",
            "XSETID s 10-0 MAXDELETEDID 11-0",
            "XSETID s 10-0 BAD 1",
            "XSETID nokey 1-1",
            "XINFO STREAM s",
            "XADD max 18446744073709551615-18446744073709551615 a 1",
            "XADD max * a 1",
            "XADD seq 5-18446744073709551615 a 1",
            "XADD seq 5-* a 1",
            "SET str 1",
            "XADD str * a 1",
            "XADD str 0-0 a 1",
            "XLEN str",
            "XRANGE str - +",
            "XRANGE str x +",
            "XDEL str x",
            "XTRIM str MAXLEN 1",
            "XREAD STREAMS str 0",
            "XREAD STREAMS str x",
            "XSETID str 1-1",
            "XINFO STREAM str",
            "XINFO STREAM nokey",
            "XGROUP CREATE str g $",
            "OBJECT ENCODING s",
            "TYPE s",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn trimming() {
    both(|d| {
        for n in 1..=350 {
            d.same(&format!("XADD s {n}-0 a {n}"));
        }
        for line in [
            "XTRIM s MAXLEN ~ 300",
            "XTRIM s MAXLEN ~ 250",
            "XINFO STREAM s",
            "XTRIM s MAXLEN ~ 10 LIMIT 50",
            "XTRIM s MAXLEN ~ 10 LIMIT 100",
            "XTRIM s MINID ~ 180",
            "XTRIM s MINID ~ 220",
            "XTRIM s MINID 230",
            "XTRIM s MINID = 235-5",
            "XTRIM s MAXLEN = 60",
            "XTRIM s MAXLEN 50",
            "XDEL s 340-0 341-0",
            "XTRIM s MAXLEN 45",
            "XINFO STREAM s",
            "XADD s MAXLEN ~ 10 1000-0 a b",
            "XADD s MAXLEN 10 1001-0 a b",
            "XADD s MINID 348 1002-0 a b",
            "XADD s MINID ~ 1000 LIMIT 10 1003-0 a b",
            "XRANGE s - +",
            "XADD s MAXLEN 0 1004-0 a b",
            "XLEN s",
            "EXISTS s",
            "XINFO STREAM s",
            "XTRIM s",
            "XTRIM s MAXLEN",
            "XTRIM s MAXLEN x",
            "XTRIM s MAXLEN -1",
            "XTRIM s MAXLEN ~",
            "XTRIM s MAXLEN ~ x",
            "XTRIM s MAXLEN 1 LIMIT 5",
            "XTRIM s MAXLEN ~ 1 LIMIT -1",
            "XTRIM s MAXLEN ~ 1 LIMIT x",
            "XTRIM s MAXLEN 1 MINID 1",
            "XTRIM s LIMIT 5",
            "XTRIM s LIMIT 0",
            "XTRIM s BAD 5",
            "XTRIM s MINID x",
            "XTRIM s MINID -",
            "XTRIM nokey MAXLEN 1",
            "XADD s MAXLEN 1 LIMIT 5 * a 1",
            "XADD s LIMIT 5 * a 1",
            "XADD s MAXLEN ~ 1 MINID 1 * a 1",
            "XADD s MAXLEN 5",
            "XADD s MAXLEN ~ 1 LIMIT 0 2000-0 a 1",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn nodes_fill_up_where_redis_fills_them() {
    both(|d| {
        type Body = Box<dyn Fn(u32) -> String>;
        let bodies: [(&str, Body); 5] = [
            ("same", Box::new(|n| format!("name {} size {n}", "x".repeat(n as usize % 90)))),
            ("other", Box::new(|n| format!("field-{} {} {n} {n}", n % 3, "y".repeat(40)))),
            ("numbers", Box::new(|n| format!("a {} b {}", n * 1000, u64::from(n) << 33))),
            ("long", Box::new(|n| format!("v {}", "z".repeat(100 + n as usize * 7)))),
            ("huge", Box::new(|n| format!("v {}", "w".repeat(n as usize * 70)))),
        ];
        for (key, body) in bodies {
            for n in 1..=220u32 {
                // Ids that jump, so that differences take several sizes.
                let id = u64::from(n) + u64::from(n / 60) * 70_000;
                d.same(&format!("XADD {key} {id}-{} {}", n * 37, body(n)));
                if n % 9 == 0 {
                    d.same(&format!("XDEL {key} {}-{}", id - 1, (n - 1) * 37));
                }
            }
            d.same(&format!("XINFO STREAM {key}"));
            for most in [200, 170, 120, 80, 30] {
                d.same(&format!("XTRIM {key} MAXLEN ~ {most}"));
                d.same(&format!("XINFO STREAM {key}"));
            }
        }
    });
}

#[test]
fn reads() {
    both(|d| {
        for line in [
            "XADD a 1-1 f 1",
            "XADD a 2-1 f 2",
            "XADD b 5-1 g 1",
            "XREAD STREAMS a 0",
            "XREAD STREAMS a b 0 0",
            "XREAD COUNT 1 STREAMS a b 0 0",
            "XREAD COUNT 0 STREAMS a 0",
            "XREAD COUNT -1 STREAMS a 0",
            "XREAD STREAMS a 1-1",
            "XREAD STREAMS a 1",
            "XREAD STREAMS a b 2-1 0",
            "XREAD STREAMS a $",
            "XREAD STREAMS a b nokey 9 9 9",
            "XREAD STREAMS nokey 0",
            "XREAD STREAMS a",
            "XREAD STREAMS a b 0",
            "XREAD STREAMS a x",
            "XREAD STREAMS a >",
            "XREAD STREAMS a -",
            "XREAD COUNT x STREAMS a 0",
            "XREAD BLOCK x STREAMS a 0",
            "XREAD BLOCK -1 STREAMS a 0",
            "XREAD BLOCK 0 STREAMS a 0",
            "XREAD GROUP g c STREAMS a 0",
            "XREAD NOACK STREAMS a 0",
            "XREAD BAD STREAMS a 0",
            "XREAD COUNT 1 a 0",
            "XREADGROUP STREAMS a b c >",
            "XREADGROUP COUNT 1 STREAMS a b c d",
            "XREADGROUP GROUP g c STREAMS a $",
            "XREADGROUP GROUP g c STREAMS a >",
            "XREADGROUP GROUP g c STREAMS nokey >",
            "MULTI",
            "XREAD BLOCK 0 STREAMS a $",
            "EXEC",
        ] {
            d.same(line);
        }
        let (x, y) = (d.client(), d.client());
        d.waits(x, "XREAD BLOCK 0 STREAMS a b $ $");
        d.waits(y, "XREAD BLOCK 0 COUNT 1 STREAMS b 7-0");
        d.same("XADD b 6-0 h 1");
        d.served(x);
        d.same("XADD b 8-0 h 1");
        d.served(y);
        d.waits(x, "XREAD BLOCK 0 STREAMS nokey 0");
        d.same("XADD nokey 1-0 f v");
        d.served(x);
    });
}

#[test]
fn groups() {
    both(|d| {
        for line in [
            "XGROUP CREATE s g $",
            "XGROUP CREATE s g $ MKSTREAM",
            "XGROUP CREATE s g $ MKSTREAM",
            "XGROUP CREATE s h 0 ENTRIESREAD 5",
            "XGROUP CREATE s i x",
            "XGROUP CREATE s i 0 ENTRIESREAD -5",
            "XGROUP CREATE s i 0 ENTRIESREAD x",
            "XGROUP CREATE s i 0 BAD",
            "XGROUP CREATE s",
            "XGROUP BAD s",
            "XGROUP",
            "XGROUP HELP",
            "XINFO HELP",
            "XINFO BAD s",
            "XINFO STREAM s BAD",
            "XINFO STREAM s FULL BAD",
            "XINFO STREAM s FULL COUNT x",
            "XINFO GROUPS nokey",
            "XINFO CONSUMERS s nogroup",
            "XINFO CONSUMERS nokey g",
            "XADD s 1-0 f 1",
            "XADD s 2-0 f 2",
            "XADD s 3-0 f 3",
            "XADD s 4-0 f 4",
            "XINFO GROUPS s",
            "XREADGROUP GROUP g alice COUNT 2 STREAMS s >",
            "XREADGROUP GROUP g bob NOACK STREAMS s >",
            "XREADGROUP GROUP g bob STREAMS s >",
            "XREADGROUP GROUP g carl STREAMS s 0",
            "XREADGROUP GROUP g alice STREAMS s 0",
            "XREADGROUP GROUP g alice STREAMS s 1-0",
            "XREADGROUP GROUP g alice COUNT 1 STREAMS s 0",
            "XINFO GROUPS s",
            "XPENDING s g",
            "XPENDING s h",
            "XPENDING s nogroup",
            "XPENDING nokey g",
            "XPENDING s g - +",
            "XPENDING s g - + x",
            "XPENDING s g - + 10 nobody",
            "XPENDING s g x + 10",
            "XPENDING s g IDLE x - + 10",
            "XPENDING s g IDLE 10 - +",
            "XPENDING s g IDLE 1000000 - + 10",
            "XPENDING s g - + -1",
            "XACK s g 1-0 9-9",
            "XACK s nogroup 1-0",
            "XACK nokey g 1-0",
            "XACK s g x",
            "XPENDING s g",
            "XCLAIM s g bob 0 2-0 1-0 JUSTID",
            "XCLAIM s g bob 0 2-0",
            "XCLAIM s g bob 1000000 2-0",
            "XCLAIM s g bob x 2-0",
            "XCLAIM s g bob 0 3-0 FORCE JUSTID",
            "XCLAIM s g bob 0 9-0 FORCE JUSTID",
            "XCLAIM s g bob 0 2-0 RETRYCOUNT 7 JUSTID",
            "XCLAIM s g bob 0 2-0 BAD",
            "XCLAIM s g bob 0 2-0 IDLE x",
            "XCLAIM s g bob 0 2-0 TIME x",
            "XCLAIM s g bob 0 2-0 RETRYCOUNT x",
            "XCLAIM s g bob 0 2-0 LASTID x",
            "XCLAIM s nogroup bob 0 2-0",
            "XCLAIM nokey g bob 0 2-0",
            "XAUTOCLAIM s g alice 0 0",
            "XAUTOCLAIM s g alice 0 0 COUNT 1",
            "XAUTOCLAIM s g alice 0 (2-0 COUNT 1 JUSTID",
            "XAUTOCLAIM s g alice 1000000 0",
            "XAUTOCLAIM s g alice x 0",
            "XAUTOCLAIM s g alice 0 x",
            "XAUTOCLAIM s g alice 0 0 COUNT 0",
            "XAUTOCLAIM s g alice 0 0 BAD",
            "XAUTOCLAIM s nogroup alice 0 0",
            "XAUTOCLAIM nokey g alice 0 0",
            "XDEL s 2-0",
            "XREADGROUP GROUP g alice STREAMS s 0",
            "XAUTOCLAIM s g bob 0 0 COUNT 10",
            "XINFO GROUPS s",
            "XGROUP SETID s g 1-0",
            "XGROUP SETID s g 0 ENTRIESREAD 1",
            "XINFO GROUPS s",
            "XGROUP SETID s g $",
            "XGROUP SETID s g +",
            "XGROUP SETID s nogroup $",
            "XGROUP SETID nokey g $",
            "XGROUP CREATECONSUMER s g dave",
            "XGROUP CREATECONSUMER s g dave",
            "XGROUP CREATECONSUMER s nogroup dave",
            "XGROUP DELCONSUMER s g dave",
            "XGROUP DELCONSUMER s g dave",
            "XGROUP DELCONSUMER s g bob",
            "XPENDING s g",
            "XGROUP DESTROY s g",
            "XGROUP DESTROY s g",
            "XGROUP DESTROY nokey g",
            "SET str 1",
            "XACK str g 1-0",
            "XPENDING str g",
            "XCLAIM str g bob x 2-0",
            "XAUTOCLAIM str g bob x 0",
            "XAUTOCLAIM str g bob 0 0",
            "XREADGROUP GROUP g c STREAMS str >",
            "XINFO GROUPS str",
        ] {
            d.same(line);
        }
        d.same("XGROUP CREATE s g 0");
        d.same("XREADGROUP GROUP g c STREAMS s >");
        d.near("XPENDING s g - + 10", 3_000);
        // XINFO CONSUMERS has a field of Redis 7.2 more; `it` looks at it.
        d.near("XINFO STREAM s FULL", 3_000);
        d.near("XINFO STREAM s FULL COUNT 1", 3_000);
    });
}

#[test]
fn lag_is_known_where_redis_knows_it() {
    both(|d| {
        d.same("XGROUP CREATE s g $ MKSTREAM");
        for n in 1..=10 {
            d.same(&format!("XADD s {n}-0 a {n}"));
        }
        for line in [
            "XINFO GROUPS s",
            "XREADGROUP GROUP g c COUNT 3 STREAMS s >",
            "XINFO GROUPS s",
            "XDEL s 2-0",
            "XINFO GROUPS s",
            "XREADGROUP GROUP g c COUNT 1 STREAMS s >",
            "XDEL s 7-0",
            "XINFO GROUPS s",
            "XREADGROUP GROUP g c COUNT 2 STREAMS s >",
            "XINFO GROUPS s",
            "XREADGROUP GROUP g c COUNT 2 STREAMS s >",
            "XINFO GROUPS s",
            "XREADGROUP GROUP g c STREAMS s >",
            "XINFO GROUPS s",
            "XGROUP SETID s g 3-0",
            "XINFO GROUPS s",
            "XTRIM s MAXLEN 2",
            "XINFO GROUPS s",
            "XGROUP SETID s g 9-0",
            "XINFO GROUPS s",
            "XGROUP SETID s g 10-0",
            "XINFO GROUPS s",
            "XTRIM s MAXLEN 0",
            "XINFO GROUPS s",
            "XGROUP SETID s g 100-0",
            "XINFO GROUPS s",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn who_waits_with_a_group() {
    both(|d| {
        let (a, b, c) = (d.client(), d.client(), d.client());
        d.same("XGROUP CREATE s g $ MKSTREAM");
        d.waits(a, "XREADGROUP GROUP g alice BLOCK 0 STREAMS s >");
        d.waits(b, "XREADGROUP GROUP g bob BLOCK 0 NOACK STREAMS s >");
        d.same("XADD s 1-0 f 1");
        d.served(a);
        d.same("XADD s 2-0 f 2");
        d.served(b);
        d.same("XPENDING s g");
        d.waits(a, "XREADGROUP GROUP g alice BLOCK 0 STREAMS s >");
        d.same("XGROUP DESTROY s g");
        d.served(a);
        d.same("XGROUP CREATE s g $");
        d.waits(b, "XREADGROUP GROUP g bob BLOCK 0 STREAMS s >");
        d.waits(c, "XREAD BLOCK 0 STREAMS s $");
        d.same("DEL s");
        d.served(b);
        d.same("XADD s 1-1 f 1");
        d.same("XADD s 3-0 f 1");
        d.served(c);
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
        told(d, "XADD s 1-0 a 1", 1);
        told(d, "XADD s MAXLEN 1 2-0 a 1", 2);
        told(d, "XADD s 3-0 a 1", 1);
        told(d, "XDEL s 9-0", 0);
        told(d, "XDEL s 3-0", 1);
        told(d, "XSETID s 4-0", 1);
        told(d, "XGROUP CREATE s g 0", 1);
        told(d, "XREADGROUP GROUP g c STREAMS s >", 1);
        told(d, "XREADGROUP GROUP g c STREAMS s >", 0);
        told(d, "XGROUP CREATECONSUMER s g d", 1);
        told(d, "XCLAIM s g e 0 2-0 JUSTID", 1);
        told(d, "XGROUP SETID s g 0", 1);
        told(d, "XGROUP DELCONSUMER s g c", 1);
        told(d, "XGROUP DESTROY s g", 1);
        told(d, "XTRIM s MAXLEN 0", 1);
        d.same("CONFIG SET notify-keyspace-events \"\"");
    });
}

#[test]
fn who_waits_in_a_group_hears_when_everything_goes() {
    both(|d| {
        let waits = d.client();
        for goes in ["FLUSHALL", "FLUSHDB", "SWAPDB 0 1"] {
            d.same("XADD s 666 f v");
            d.same("XGROUP CREATE s g $");
            d.waits(waits, "XREADGROUP GROUP g alice BLOCK 0 STREAMS s >");
            d.same(goes);
            d.served(waits);
        }
    });
}
