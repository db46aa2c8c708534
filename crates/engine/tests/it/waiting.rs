//! Commands that wait for a key.

use engine::CommandOutcome;

use crate::kit::{Kit, show};

/// Runs a command that must wait.
#[track_caller]
fn waits(kit: &mut Kit, client: engine::SessionId, line: &str) {
    let outcome = kit.run_as(client, line);
    assert!(matches!(outcome, CommandOutcome::Blocked { .. }), "{line}: {outcome:?}");
}

/// What was sent to others since the last call, with the effects left.
fn delivered(kit: &mut Kit) -> (Vec<(u64, String)>, Vec<String>) {
    let output = kit.engine.take_output();
    let texts = output.deliveries.iter().map(|(id, reply)| (id.0, show(reply))).collect();
    (texts, crate::kit::effects(&output.effects))
}

#[test]
fn pops_are_served_in_the_order_of_coming() {
    let mut kit = Kit::new();
    let (a, b, c) = (kit.engine.connect("a"), kit.engine.connect("b"), kit.engine.connect("c"));
    waits(&mut kit, a, "BLPOP x l 0");
    waits(&mut kit, b, "BRPOP l 0");
    waits(&mut kit, c, "BLMPOP 0 2 l y LEFT COUNT 5");
    kit.check("RPUSH l 1 2 3 4", "4");
    let (texts, effects) = delivered(&mut kit);
    assert_eq!(texts, [(a.0, "[l 1]".into()), (b.0, "[l 4]".into()), (c.0, "[l [2 3]]".into())]);
    assert_eq!(effects, ["RPUSH l 1 2 3 4", "LPOP l", "RPOP l", "LPOP l 2"]);
    kit.check("EXISTS l", "0");
}

#[test]
fn a_pop_that_finds_something_does_not_wait() {
    let mut kit = Kit::new();
    kit.run("RPUSH l 1 2 3");
    kit.run("ZADD z 1 a 2 b 3 c");
    kit.effects();
    kit.check("BLPOP nokey l 0", "[l 1]");
    kit.check("BLMOVE l m LEFT RIGHT 0", "2");
    kit.check("BRPOPLPUSH l m 0", "3");
    kit.check("BZPOPMIN z 0", "[z a (1)]");
    kit.check("BZPOPMAX z 0", "[z c (3)]");
    kit.check("BZMPOP 0 1 z MIN", "[z [[b (2)]]]");
    assert_eq!(
        kit.effects(),
        [
            "LPOP l",
            "LMOVE l m LEFT RIGHT",
            "LMOVE l m RIGHT LEFT",
            "ZPOPMIN z",
            "ZPOPMAX z",
            "ZPOPMIN z 1"
        ]
    );
    kit.check("BLPOP l x", "(error) ERR timeout is not a float or out of range");
    kit.check("BLPOP l -1", "(error) ERR timeout is negative");
    kit.run("SET s 1");
    kit.check(
        "BLPOP s 0",
        "(error) WRONGTYPE Operation against a key holding the wrong kind of value",
    );
}

#[test]
fn moves_and_sorted_sets_wake_too() {
    let mut kit = Kit::new();
    let (a, b) = (kit.engine.connect("a"), kit.engine.connect("b"));
    waits(&mut kit, a, "BLMOVE l m LEFT RIGHT 0");
    waits(&mut kit, b, "BLPOP m 0");
    kit.run("LPUSH l 7");
    let (texts, effects) = delivered(&mut kit);
    assert_eq!(texts, [(a.0, "7".into()), (b.0, "[m 7]".into())]);
    assert_eq!(effects, ["LPUSH l 7", "LMOVE l m LEFT RIGHT", "LPOP m"]);
    waits(&mut kit, a, "BZPOPMAX z 0");
    waits(&mut kit, b, "BZMPOP 0 1 z MIN COUNT 9");
    // A key of another type wakes nobody.
    kit.run("SADD z x");
    kit.run("DEL z");
    kit.run("ZADD z 1 a 2 b 3 c");
    let (texts, _) = delivered(&mut kit);
    assert_eq!(texts, [(a.0, "[z c (3)]".into()), (b.0, "[z [[a (1)] [b (2)]]]".into())]);
    kit.check("EXISTS z", "0");
}

#[test]
fn a_wait_ends_with_its_deadline() {
    let mut kit = Kit::new();
    let a = kit.engine.connect("a");
    let outcome = kit.run_as(a, "BLPOP l 0.5");
    let deadline = kit.now.ms() + 500;
    assert_eq!(outcome, CommandOutcome::Blocked { deadline_ms: Some(deadline) });
    kit.now = engine::Now::from_millis(deadline);
    let reply = kit.engine.timed_out(kit.now, a).unwrap();
    assert_eq!(show(&reply), "(nil array)");
    kit.run("RPUSH l 1");
    kit.check("LLEN l", "1");
}
