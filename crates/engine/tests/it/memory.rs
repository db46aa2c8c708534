use engine::Now;

use crate::kit::Kit;

fn fill(kit: &mut Kit, keys: usize) -> usize {
    let mut taken = 0;
    for n in 0..keys {
        if kit.text(&format!("SET key{n} {}", "x".repeat(1_000))) == "OK" {
            taken += 1;
        }
    }
    taken
}

#[test]
fn a_full_store_refuses_writes_and_goes_on_reading() {
    let mut kit = Kit::new();
    kit.check("CONFIG SET maxmemory 1mb", "OK");
    let taken = fill(&mut kit, 2_000);
    assert!((700..1_100).contains(&taken), "{taken} keys of 1 kB fit in 1 MB");
    let oom = "(error) OOM command not allowed when used memory > 'maxmemory'.";
    kit.check("SET more v", oom);
    kit.check("LPUSH list v", oom);
    kit.check("STRLEN key0", "1000");
    kit.check("MULTI", "OK");
    kit.check("GET key0", oom);
    kit.check("DISCARD", "OK");
    kit.check("DEL key0 key1 key2 key3 key4 key5", "6");
    kit.check("SET more v", "OK");
    kit.check("CONFIG SET maxmemory 0", "OK");
    kit.check("LPUSH list v", "1");
}

#[test]
fn the_longest_unused_keys_go_first() {
    let mut kit = Kit::new();
    kit.check("CONFIG SET maxmemory 1mb maxmemory-policy allkeys-lru maxmemory-samples 64", "OK");
    fill(&mut kit, 500);
    kit.now = Now::from_millis(kit.now.ms() + 100_000);
    kit.run("GET key0");
    for n in 0..700 {
        kit.check(&format!("SET new{n} {}", "x".repeat(1_000)), "OK");
    }
    kit.check("EXISTS key0 new699", "2");
    let left: usize = (1..500).filter(|n| kit.text(&format!("EXISTS key{n}")) == "1").count();
    assert!(left < 400, "{left} old keys are left");
    assert!(kit.effects().iter().any(|effect| effect.starts_with("DEL key")));
}

#[test]
fn only_keys_with_a_deadline_go_under_a_volatile_policy() {
    let mut kit = Kit::new();
    kit.check("CONFIG SET maxmemory 1mb maxmemory-policy volatile-ttl", "OK");
    for n in 0..300 {
        kit.run(&format!("SET soon{n} {} EX {}", "x".repeat(1_000), 100 + n));
        kit.run(&format!("SET keep{n} {}", "x".repeat(1_000)));
    }
    for n in 0..900 {
        kit.run(&format!("SET more{n} {}", "x".repeat(1_000)));
    }
    let kept = (0..300).filter(|n| kit.text(&format!("EXISTS keep{n}")) == "1").count();
    assert_eq!(kept, 300);
    kit.check("EXISTS soon0", "0");
    let oom = "(error) OOM command not allowed when used memory > 'maxmemory'.";
    kit.check("SET last v", oom);
}

#[test]
fn what_is_counted_is_what_is_there() {
    let mut kit = Kit::new();
    kit.run("CONFIG SET maxmemory 100mb");
    let used = |kit: &mut Kit| -> u64 {
        let text = kit.text("INFO memory");
        let line = text.lines().find_map(|l| l.trim().strip_prefix("used_memory:")).unwrap();
        line.parse().unwrap()
    };
    let empty = used(&mut kit);
    for n in 0..300 {
        kit.run(&format!("SET s{n} {}", "x".repeat(n)));
        kit.run(&format!("RPUSH l{} {n} {}", n % 7, "y".repeat(n)));
        kit.run(&format!("HSET h{} f{n} {}", n % 5, "z".repeat(n)));
        kit.run(&format!("ZADD z{} {n} m{n}", n % 3));
        kit.run(&format!("SADD t{} {n} m{n}", n % 3));
        kit.run(&format!("APPEND s{} {}", n % 11, "more"));
        kit.run(&format!("LPOP l{}", n % 7));
        kit.run(&format!("RENAME s{n} r{n}"));
    }
    let counted = used(&mut kit);
    assert!(counted > empty);
    // Counting anew gives the same.
    kit.run("CONFIG SET maxmemory 100mb");
    assert_eq!(used(&mut kit), counted);
    kit.run("FLUSHALL");
    assert_eq!(used(&mut kit), empty);
}

#[test]
fn scripts_write_again_once_there_is_no_limit() {
    let mut kit = Kit::new();
    let script = "EVAL \"return redis.call('SET', 'k', 'v')\" 0";
    kit.check("CONFIG SET maxmemory 1", "OK");
    assert!(kit.text(script).contains("OOM"));
    kit.check("CONFIG SET maxmemory 0", "OK");
    kit.check(script, "OK");
}

#[test]
fn what_takes_long_to_free_is_handed_out_and_counted() {
    let mut kit = Kit::new();
    let freed = |kit: &mut Kit| {
        let info = kit.text("INFO memory");
        let of =
            |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse();
        (of("lazyfree_pending_objects:").unwrap(), of("lazyfreed_objects:").unwrap())
    };
    let fill = |kit: &mut Kit| {
        for n in 0..200 {
            kit.run(&format!("HSET long f{n} {}", "v".repeat(70)));
            kit.run(&format!("SADD short {}", n % 10));
        }
    };
    fill(&mut kit);
    kit.check("UNLINK short", "1");
    kit.check("UNLINK long", "1");
    assert_eq!(freed(&mut kit), (1u64, 0u64), "a short one is freed at once");
    let garbage = kit.engine.take_output().garbage;
    assert!(!garbage.is_empty());
    drop(garbage);
    assert_eq!(freed(&mut kit), (0, 1));
    kit.check("CONFIG RESETSTAT", "OK");
    assert_eq!(freed(&mut kit), (0, 0));
    fill(&mut kit);
    kit.check("DEL long", "1");
    assert!(kit.engine.take_output().garbage.is_empty(), "DEL frees at once");
    kit.check("CONFIG SET lazyfree-lazy-user-del yes lazyfree-lazy-expire yes", "OK");
    fill(&mut kit);
    kit.check("DEL long", "1");
    fill(&mut kit);
    kit.check("PEXPIRE long 10", "1");
    kit.now = Now::from_millis(kit.now.ms() + 100);
    kit.check("EXISTS long", "0");
    assert_eq!(freed(&mut kit), (2, 0));
    kit.check("SET k v", "OK");
    kit.check("FLUSHALL", "OK");
    drop(kit.engine.take_output());
    assert_eq!(freed(&mut kit), (0, 4), "two keys were flushed");
}

/// Fills a store with keys, uses 100 of them, writes as many again as do not fit, and answers how
/// many of the used ones and of the others are left.
fn used_and_unused_left(policy: &str, options: &str, first_used: usize) -> (usize, usize) {
    const KEYS: usize = 1_400;
    let mut kit = Kit::new();
    let later = |kit: &mut Kit, ms| kit.now = Now::from_millis(kit.now.ms() + ms);
    kit.check(&format!("CONFIG SET maxmemory 1830kb maxmemory-policy {policy}"), "OK");
    let value = "x".repeat(1_000);
    for n in 0..KEYS {
        kit.check(&format!("SET k{n} {value} {options}"), "OK");
        later(&mut kit, 1);
    }
    let used = first_used..first_used + 100;
    later(&mut kit, 2_500);
    for _ in 0..3 {
        for n in used.clone() {
            kit.check(&format!("STRLEN k{n}"), "1000");
        }
    }
    later(&mut kit, 2_500);
    for n in 0..1_000 {
        kit.check(&format!("SET new{n} {value} {options}"), "OK");
        later(&mut kit, 1);
    }
    let left = |kit: &mut Kit, n: usize| kit.text(&format!("EXISTS k{n}")) == "1";
    let kept = used.clone().filter(|n| left(&mut kit, *n)).count();
    let others = (0..KEYS).filter(|n| !used.contains(n)).filter(|n| left(&mut kit, *n)).count();
    (kept, others)
}

#[test]
fn eviction_keeps_the_keys_that_are_used() {
    for (policy, options) in [
        ("allkeys-lru", ""),
        ("volatile-lru", "EX 10000"),
        ("allkeys-lfu", ""),
        ("volatile-lfu", "EX 10000"),
    ] {
        for first_used in [0, 700] {
            let (kept, others) = used_and_unused_left(policy, options, first_used);
            assert!(kept >= 95, "{policy} from {first_used}: {kept} used and {others} others left");
            assert!((50..1_000).contains(&others), "{policy} from {first_used}: {others} left");
        }
    }
}

#[test]
fn used_keys_with_a_deadline_stay_where_few_have_one() {
    let mut kit = Kit::new();
    kit.check("CONFIG SET maxmemory 6500kb maxmemory-policy volatile-lru", "OK");
    for n in 0..20_000 {
        kit.run(&format!("SET plain{n} v"));
    }
    let value = "x".repeat(4_000);
    for n in 0..600 {
        kit.check(&format!("SET k{n} {value} PX {}", 10_000_000 + n * 7), "OK");
    }
    kit.now = Now::from_millis(kit.now.ms() + 5_000);
    (0..100).for_each(|n| _ = kit.run(&format!("GET k{n}")));
    kit.now = Now::from_millis(kit.now.ms() + 5_000);
    for n in 0..500 {
        kit.check(&format!("SET new{n} {value} EX 10000"), "OK");
    }
    let kept = (0..100).filter(|n| kit.text(&format!("EXISTS k{n}")) == "1").count();
    let plain = (0..20_000).filter(|n| kit.text(&format!("EXISTS plain{n}")) == "1").count();
    assert!(kept >= 95, "{kept} of 100 used keys are left");
    assert_eq!(plain, 20_000, "keys without a deadline stay");
}

#[test]
fn the_keys_due_first_go_first_under_volatile_ttl() {
    let mut kit = Kit::new();
    kit.check("CONFIG SET maxmemory 3mb maxmemory-policy volatile-ttl", "OK");
    let value = "x".repeat(4_000);
    for n in 0..600 {
        kit.check(&format!("SET k{n} {value} EX {}", 1_000 + n), "OK");
    }
    for n in 0..400 {
        kit.check(&format!("SET new{n} {value} EX 100000"), "OK");
    }
    let late = (500..600).filter(|n| kit.text(&format!("EXISTS k{n}")) == "1").count();
    let early = (0..100).filter(|n| kit.text(&format!("EXISTS k{n}")) == "1").count();
    assert!(late >= 95, "{late} of the 100 keys due last are left");
    assert_eq!(early, 0, "the 100 keys due first are gone");
}

#[test]
fn nothing_is_evicted_while_clients_are_paused() {
    let mut kit = Kit::new();
    kit.run("SET foo bar");
    kit.check("CLIENT PAUSE 50000 WRITE", "OK");
    kit.check("CONFIG SET maxmemory-policy allkeys-random maxmemory 1", "OK");
    kit.check("GET foo", "bar");
    kit.check("EXISTS foo", "1");
    kit.check("CLIENT UNPAUSE", "OK");
    kit.run("PING");
    kit.check("EXISTS foo", "0");
}

#[test]
fn without_a_limit_one_large_value_among_many_small_ones_counts() {
    let mut kit = Kit::new();
    let used = |kit: &mut Kit| -> usize {
        let text = kit.text("INFO memory");
        let line = text.lines().find_map(|line| line.trim().strip_prefix("used_memory:"));
        line.unwrap().parse().unwrap()
    };
    for n in 0..100 {
        kit.run(&format!("SET few{n} v"));
    }
    kit.run("SETRANGE large 29999999 x");
    assert!((30_000_000..32_000_000).contains(&used(&mut kit)), "{}", used(&mut kit));
    kit.check("DEL large", "1");
    assert!(used(&mut kit) < 1_000_000, "{}", used(&mut kit));

    for n in 0..40_000 {
        kit.run(&format!("SET many{n} v"));
    }
    kit.run("SELECT 3");
    for n in 0..3 {
        kit.run(&format!("SETRANGE large{n} 9999999 x"));
    }
    // So many are measured some at a time.
    for _ in 0..60 {
        kit.engine.sweep(kit.now, 100);
    }
    let measured = used(&mut kit);
    kit.check("CONFIG SET maxmemory 1gb", "OK");
    let counted = used(&mut kit);
    assert!(
        counted > 30_000_000 && measured.abs_diff(counted) < counted / 100,
        "{measured} {counted}"
    );
    kit.check("CONFIG SET maxmemory 0", "OK");
    // What changes later is seen by the next walk.
    kit.run("DEL large0 large1 large2");
    for _ in 0..100 {
        kit.engine.sweep(kit.now, 100);
    }
    assert!(used(&mut kit) < 10_000_000, "{}", used(&mut kit));
}
