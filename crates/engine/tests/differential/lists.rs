//! Lists, those who wait for them included.

use crate::harness::both;

#[test]
fn pushes_pops_and_indexes() {
    both(|d| {
        for line in [
            "RPUSH l a b c",
            "LPUSH l z y",
            "LRANGE l 0 -1",
            "LRANGE l 1 2",
            "LRANGE l -2 -1",
            "LRANGE l 5 1",
            "LRANGE l 100 200",
            "LRANGE l -100 100",
            "LRANGE l x 1",
            "LRANGE nokey 0 -1",
            "LLEN l",
            "LLEN nokey",
            "LINDEX l 0",
            "LINDEX l -1",
            "LINDEX l 99",
            "LINDEX l -99",
            "LINDEX l x",
            "LINDEX nokey x",
            "LSET l 0 new",
            "LSET l -1 last",
            "LSET l 99 x",
            "LSET l -99 x",
            "LSET l x y",
            "LSET nokey 0 x",
            "LPOP l",
            "RPOP l",
            "LPOP l 2",
            "RPOP l 0",
            "LPOP l x",
            "LPOP l -1",
            "LPOP l 1 2",
            "RPOP l 100",
            "EXISTS l",
            "LPOP l",
            "LPOP l 5",
            "RPOP nokey 0",
            "LPUSHX l a",
            "RPUSHX l a",
            "RPUSH l a",
            "LPUSHX l b c",
            "RPUSHX l d",
            "LRANGE l 0 -1",
            "OBJECT ENCODING l",
            "RPUSH mixed 1 -1 007 1.5 550e8400-e29b-41d4-a716-446655440000 \"\" \"a\\x00b\"",
            "LRANGE mixed 0 -1",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn changes_in_the_middle() {
    both(|d| {
        for line in [
            "RPUSH l a b c a b c a",
            "LINSERT l BEFORE b x",
            "LINSERT l after c y",
            "LINSERT l BEFORE nothing y",
            "LINSERT l BESIDE a y",
            "LINSERT nokey BEFORE a y",
            "LRANGE l 0 -1",
            "LREM l 1 a",
            "LREM l -1 a",
            "LREM l 0 c",
            "LREM l 0 nothing",
            "LREM l x a",
            "LREM nokey 0 a",
            "LRANGE l 0 -1",
            "LTRIM l 1 2",
            "LRANGE l 0 -1",
            "LTRIM l x 2",
            "LTRIM nokey 0 1",
            "LTRIM l 5 9",
            "EXISTS l",
            "RPUSH p a b c 1 2 3 c c",
            "LPOS p c",
            "LPOS p c RANK 2",
            "LPOS p c RANK -1",
            "LPOS p c RANK -2",
            "LPOS p c RANK 4",
            "LPOS p c COUNT 2",
            "LPOS p c COUNT 0",
            "LPOS p c COUNT 0 RANK -1",
            "LPOS p c COUNT 1 RANK 2",
            "LPOS p c MAXLEN 1",
            "LPOS p c COUNT 0 MAXLEN 7",
            "LPOS p c MAXLEN 0",
            "LPOS p c RANK 0",
            "LPOS p c RANK x",
            "LPOS p c COUNT -1",
            "LPOS p c COUNT x",
            "LPOS p c MAXLEN -1",
            "LPOS p c RANK",
            "LPOS p c BAD 1",
            "LPOS p x",
            "LPOS p x COUNT 3",
            "LPOS nokey x",
            "LPOS nokey x COUNT 3",
            "LPOS p 2",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn moves_and_pops_of_several_keys() {
    both(|d| {
        for line in [
            "RPUSH a 1 2 3 4",
            "LMOVE a b LEFT RIGHT",
            "LMOVE a b right left",
            "LMOVE a a LEFT RIGHT",
            "LMOVE a b UP LEFT",
            "LMOVE nokey b LEFT LEFT",
            "RPOPLPUSH a b",
            "RPOPLPUSH nokey b",
            "RPOPLPUSH b b",
            "LRANGE a 0 -1",
            "LRANGE b 0 -1",
            "SET s 1",
            "LMOVE a s LEFT RIGHT",
            "LMOVE s a LEFT RIGHT",
            "LMOVE nokey s LEFT RIGHT",
            "LRANGE a 0 -1",
            "LMPOP 2 nokey b LEFT",
            "LMPOP 2 nokey b RIGHT COUNT 2",
            "LMPOP 2 nokey b LEFT COUNT 20",
            "LMPOP 2 nokey b LEFT",
            "LMPOP 2 s a LEFT",
            "LMPOP 0 a LEFT",
            "LMPOP x a LEFT",
            "LMPOP 3 a LEFT",
            "LMPOP 1 a MIDDLE",
            "LMPOP 1 a LEFT COUNT 0",
            "LMPOP 1 a LEFT COUNT x",
            "LMPOP 1 a LEFT COUNT",
            "LMPOP 1 a LEFT COUNT 1 COUNT 2",
            "LMPOP 1 a LEFT BAD",
            "RPUSH s a",
            "LPUSHX s a",
            "LLEN s",
            "LRANGE s 0 1",
            "LPOP s",
            "LREM s 0 a",
            "LINSERT s BEFORE a b",
            "LPOS s a",
            "LTRIM s 0 1",
            "LSET s x a",
            "LINDEX s x",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn long_lists() {
    both(|d| {
        for n in 0..600 {
            d.same(&format!("RPUSH l element-number-{n}"));
            d.same(&format!("LPUSH l {n}"));
        }
        d.same(&format!("LINSERT l BEFORE 300 {}", "x".repeat(9000)));
        d.same(&format!("LSET l 10 {}", "y".repeat(5000)));
        for line in [
            "LLEN l",
            "LINDEX l 700",
            "LINDEX l -700",
            "LRANGE l 590 620",
            "LPOS l element-number-599",
            "LREM l -2 element-number-17",
            "LREM l 0 300",
            "LTRIM l 100 -100",
            "LRANGE l 0 -1",
            "LPOP l 300",
            "RPOP l 300",
            "LRANGE l 0 -1",
        ] {
            d.same(line);
        }
    });
}

#[test]
fn who_waits_is_served_in_order() {
    both(|d| {
        let (a, b, c) = (d.client(), d.client(), d.client());
        d.waits(a, "BLPOP x l 0");
        d.waits(b, "BRPOP l 0");
        d.waits(c, "BLMPOP 0 2 l y LEFT COUNT 5");
        d.same("RPUSH l 1 2 3 4");
        for client in [a, b, c] {
            d.served(client);
        }
        d.same("EXISTS l");
        d.waits(a, "BLMOVE l m LEFT RIGHT 0");
        d.waits(b, "BRPOPLPUSH m n 0");
        d.waits(c, "BLPOP n 0");
        d.same("LPUSH l 7");
        for client in [a, b, c] {
            d.served(client);
        }
        d.same("SET str 1");
        d.waits(a, "BLMOVE l str LEFT RIGHT 0");
        d.same("RPUSH l 1 2");
        d.served(a);
        d.same("LRANGE l 0 -1");
        d.same("DEL l");
        // A key of another type wakes nobody.
        d.waits(a, "BLPOP l 0");
        d.same("SADD l x");
        d.same("DEL l");
        d.same("MULTI");
        d.same("RPUSH l 1");
        d.same("LPOP l");
        d.same("RPUSH l 2 3");
        d.same("EXEC");
        d.served(a);
        d.same("LRANGE l 0 -1");
    });
}

#[test]
fn who_need_not_or_must_not_wait() {
    both(|d| {
        for line in [
            "RPUSH l 1 2 3 4 5 6",
            "BLPOP nokey l 0",
            "BRPOP nokey l 0",
            "BLMOVE l m LEFT RIGHT 0",
            "BRPOPLPUSH l m 0",
            "BLMPOP 0 2 nokey l LEFT COUNT 2",
            "BLPOP l x",
            "BLPOP l -1",
            "BLPOP l 1e300",
            "BLPOP nokey",
            "BLMOVE l m LEFT RIGHT x",
            "BLMOVE l m LEFT UP 0",
            "BLMPOP x 1 l LEFT",
            "BLMPOP 0 0 l LEFT",
            "BLMPOP 0 1 l LEFT COUNT 0",
            "SET s 1",
            "BLPOP s 0",
            "BLPOP nokey s 0",
            "BLMOVE s m LEFT RIGHT 0",
            "BLMPOP 0 1 s LEFT",
            "MULTI",
            "BLPOP nokey 0",
            "BLMOVE nokey m LEFT RIGHT 0",
            "BRPOPLPUSH nokey m 0",
            "BLMPOP 0 1 nokey LEFT",
            "BZPOPMIN nokey 0",
            "EXEC",
        ] {
            d.same(line);
        }
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
        told(d, "RPUSH l 1 2 3 4 5", 1);
        told(d, "LPUSHX l 0", 1);
        told(d, "LPOP l", 1);
        told(d, "LTRIM l 0 -1", 1);
        told(d, "LREM l 0 nothing", 0);
        told(d, "LREM l 0 5", 1);
        told(d, "LINSERT l AFTER 1 x", 1);
        told(d, "LSET l 0 y", 1);
        told(d, "LMOVE l m LEFT RIGHT", 2);
        told(d, "LMOVE m l LEFT RIGHT", 3);
        told(d, "LMPOP 1 l RIGHT COUNT 2", 1);
        told(d, "LTRIM l 9 9", 2);
        d.same("CONFIG SET notify-keyspace-events \"\"");
    });
}
