use engine::{CommandOutcome, Now, Reply};

use crate::kit::Kit;

fn at(kit: &mut Kit, ms: i64) {
    kit.now = Now::from_millis(1_700_000_000_000 + ms);
}

#[test]
fn nobody_sees_a_key_past_its_deadline() {
    let mut kit = Kit::new();
    kit.check("SET k v PX 100", "OK");
    at(&mut kit, 99);
    kit.check("GET k", "v");
    kit.effects();
    at(&mut kit, 100);
    kit.check("GET k", "(nil)");
    kit.check("DBSIZE", "0");
    assert_eq!(kit.effects(), ["DEL k"]);
}

#[test]
fn the_sweep_takes_what_nobody_asks_for_and_no_more() {
    let mut kit = Kit::new();
    for n in 0..1_000 {
        kit.run(&format!("SET key{n} v PX {}", 1_000 + n));
    }
    kit.run("SET stays v PX 100000");
    kit.run("SET moved v PX 1500");
    kit.run("PEXPIRE moved 50000");
    kit.run("SET kept v PX 1500");
    kit.run("PERSIST kept");
    kit.effects();
    at(&mut kit, 900);
    assert_eq!(kit.engine.sweep(kit.now, 10_000), 0);
    kit.check("DBSIZE", "1003");
    at(&mut kit, 5_000);
    assert_eq!(kit.engine.sweep(kit.now, 100), 100, "a full budget says there is more");
    let mut rounds = 0;
    while kit.engine.sweep(kit.now, 100) == 100 {
        rounds += 1;
        assert!(rounds < 100, "the sweep comes to an end");
    }
    kit.check("DBSIZE", "3");
    kit.check("EXISTS stays moved kept", "3");
    assert_eq!(kit.effects().len(), 1_000);
    at(&mut kit, 60_000);
    kit.engine.sweep(kit.now, 100);
    kit.check("DBSIZE", "2");
}

#[test]
fn an_earlier_deadline_is_kept_on_time() {
    let mut kit = Kit::new();
    kit.run("SET k v EX 1000");
    kit.run("PEXPIRE k 100");
    kit.run("SET again v EX 1000");
    kit.run("SET again v PX 100");
    at(&mut kit, 200);
    kit.engine.sweep(kit.now, 100);
    kit.check("DBSIZE", "0");
}

#[test]
fn a_watched_key_that_dies_breaks_the_transaction() {
    let mut kit = Kit::new();
    kit.run("SET k v PX 100");
    kit.run("WATCH k");
    at(&mut kit, 200);
    kit.run("MULTI");
    kit.run("PING");
    assert_eq!(kit.run("EXEC"), Reply::NilArray);
}

#[test]
fn a_wait_ends_when_its_time_is_up() {
    let mut kit = Kit::new();
    let other = kit.engine.connect("127.0.0.1:2");
    let outcome = kit.run_as(other, "BLPOP l 1.5");
    assert_eq!(outcome, CommandOutcome::Blocked { deadline_ms: Some(1_700_000_001_500) });
    at(&mut kit, 1_500);
    assert_eq!(kit.engine.timed_out(kit.now, other), Some(Reply::NilArray));
    assert_eq!(kit.engine.timed_out(kit.now, other), None);
    kit.check("RPUSH l a", "1");
    assert!(kit.engine.take_output().deliveries.is_empty(), "nobody waits any more");
}

#[test]
fn who_leaves_while_waiting_takes_nothing() {
    let mut kit = Kit::new();
    let (first, second) = (kit.engine.connect("a:1"), kit.engine.connect("b:2"));
    kit.run_as(first, "BLPOP l 0");
    kit.run_as(second, "BLPOP l 0");
    kit.engine.disconnect(first);
    kit.check("RPUSH l a b", "2");
    let output = kit.engine.take_output();
    assert_eq!(output.deliveries.len(), 1);
    assert_eq!(output.deliveries[0].0, second);
    kit.check("LRANGE l 0 -1", "[b]");
}

#[test]
fn a_pause_holds_writes_back_until_it_ends() {
    let mut kit = Kit::new();
    let other = kit.engine.connect("a:1");
    kit.check("CLIENT PAUSE 1000 WRITE", "OK");
    assert!(matches!(kit.run_as(other, "SET k v"), CommandOutcome::Blocked { .. }));
    kit.check("GET k", "(nil)");
    kit.check("CLIENT UNPAUSE", "OK");
    let output = kit.engine.take_output();
    assert_eq!(output.deliveries, [(other, Reply::Ok)]);
    kit.check("GET k", "v");
    kit.check("CLIENT PAUSE 1000 WRITE", "OK");
    assert!(matches!(kit.run_as(other, "SET k w"), CommandOutcome::Blocked { .. }));
    at(&mut kit, 1_000);
    assert_eq!(kit.engine.timed_out(kit.now, other), Some(Reply::Ok));
    kit.check("GET k", "w");
}

#[test]
fn while_clients_are_paused_keys_die_for_readers_only() {
    let mut kit = Kit::new();
    let expired = |kit: &mut Kit| {
        let info = kit.text("INFO stats");
        info.lines().find_map(|line| line.strip_prefix("expired_keys:")).unwrap().to_owned()
    };
    kit.check("SET a v PX 10", "OK");
    kit.check("SET b v PX 10", "OK");
    kit.check("CLIENT PAUSE 50000 WRITE", "OK");
    kit.now = Now::from_millis(kit.now.ms() + 100);
    kit.check("GET a", "(nil)");
    kit.check("EXISTS a b", "0");
    kit.check("KEYS *", "[]");
    kit.run("RANDOMKEY");
    assert_eq!(kit.engine.sweep(kit.now, 100), 0);
    assert_eq!(expired(&mut kit), "0");
    kit.check("DBSIZE", "2");
    let own = kit.engine.connect_trusted("store");
    let outcome = kit.run_as(own, "INCR a");
    assert_eq!(
        outcome,
        engine::CommandOutcome::Reply(engine::Reply::Int(1)),
        "those of the process go on"
    );
    kit.check("CLIENT UNPAUSE", "OK");
    kit.check("GET b", "(nil)");
    kit.check("GET a", "1");
    assert_eq!(expired(&mut kit), "2");
}
