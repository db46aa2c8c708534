//! Scripts: values in and out, errors, effects, the cache.

use crate::kit::{Kit, show};

impl Kit {
    /// Runs a script and shows its reply.
    fn eval(&mut self, script: &str, keys_and_args: &[&str]) -> String {
        let count = keys_and_args.first().copied().unwrap_or("0");
        let mut argv: Vec<&[u8]> = vec![b"EVAL", script.as_bytes(), count.as_bytes()];
        argv.extend(keys_and_args.iter().skip(1).map(|word| word.as_bytes()));
        match self.engine.execute(self.now, self.client, &argv) {
            engine::CommandOutcome::Reply(reply) => show(&reply),
            engine::CommandOutcome::Blocked { .. } => panic!("a script cannot wait"),
        }
    }
}

#[test]
fn values_go_in_and_out() {
    let mut kit = Kit::new();
    for (script, reply) in [
        ("return 1", "1"),
        ("return 3.99", "3"),
        ("return 'x'", "x"),
        ("return {1, 'a', {2}, nil, 3}", "[1 a [2]]"),
        ("return true", "1"),
        ("return false", "(nil)"),
        ("return {ok='fine'}", "fine"),
        ("return {err='My Err'}", "(error) My Err"),
        ("return redis.call('set', 'k', 0.1)", "OK"),
        ("return redis.call('get', 'k')", "0.10000000000000001"),
        ("return {redis.call('get', 'none')}", "[(nil)]"),
    ] {
        assert_eq!(kit.eval(script, &[]), reply, "{script}");
    }
    assert_eq!(kit.eval("return {KEYS[1], ARGV[1]}", &["1", "a", "b"]), "[a b]");
}

#[test]
fn a_script_is_one_record_and_one_that_changes_nothing_none() {
    let mut kit = Kit::new();
    kit.eval("redis.call('set', 'a', 1) redis.call('get', 'a') redis.call('incr', 'a')", &[]);
    assert_eq!(kit.effects(), ["set a 1", "incr a"]);
    kit.eval("return redis.call('get', 'a')", &[]);
    assert_eq!(kit.effects(), [""; 0]);
    kit.eval("redis.call('set', 'b', 1) error('halfway')", &[]);
    assert_eq!(kit.effects(), ["set b 1"], "what was written before an error stays");
    kit.check("GET b", "1");
}

/// What INFO says of a command, without times.
fn counted(kit: &mut Kit, command: &str) -> String {
    let info = kit.text("INFO commandstats");
    let name = format!("cmdstat_{command}:");
    let line = info.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or("none");
    line.split(',').filter(|part| !part.starts_with("usec")).collect::<Vec<_>>().join(",")
}

#[test]
fn what_a_script_may_not_call_is_counted_as_rejected_and_its_error_once() {
    let cases = [
        ("EVAL \"return redis.call('set', 'x', 'y')\" 1 x", "eval", "OOM", 1),
        ("EVAL \"redis.pcall('set', 'x', 'y') return 1\" 1 x", "eval", "OOM", 0),
        ("EVAL \"return redis.pcall('set', 'x', 'y')\" 1 x", "eval", "OOM", 1),
        ("EVAL_RO \"return redis.call('set', 'x', 'y')\" 1 x", "eval_ro", "ERR", 1),
    ];
    for (line, command, code, failed) in cases {
        let mut kit = Kit::new();
        if code == "OOM" {
            kit.check("CONFIG SET maxmemory 1", "OK");
        }
        kit.run(line);
        assert_eq!(counted(&mut kit, "set"), "calls=0,rejected_calls=1,failed_calls=0", "{line}");
        let of_script = format!("calls=1,rejected_calls=0,failed_calls={failed}");
        assert_eq!(counted(&mut kit, command), of_script, "{line}");
        let errors = kit.text("INFO errorstats");
        assert!(errors.contains(&format!("errorstat_{code}:count=1\r\n")), "{line}: {errors}");
        assert!(kit.text("INFO stats").contains("total_error_replies:1\r\n"), "{line}");
    }
}

#[test]
fn an_error_of_a_script_is_counted_also_behind_one_that_went_well() {
    let mut kit = Kit::new();
    kit.check("EVAL \"redis.pcall('select', 99) return 1\" 0", "1");
    kit.run("SELECT 99");
    let errors = kit.text("INFO errorstats");
    assert!(errors.contains("errorstat_ERR:count=2\r\n"), "{errors}");
}

#[test]
fn the_interpreter_takes_little_when_it_is_idle() {
    let mut kit = Kit::new();
    for _ in 0..1000 {
        kit.run("EVAL \"return redis.call('incr', KEYS[1])\" 1 x");
    }
    let info = kit.text("INFO memory");
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory_lua:")).unwrap();
    let bytes: usize = line.trim().parse().unwrap();
    assert!(bytes < 125_000, "{bytes}");
}
