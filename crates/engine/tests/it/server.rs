//! INFO and the table of commands.

use engine::Now;

use crate::kit::Kit;

#[test]
fn every_command_that_was_called_is_counted_by_its_full_name() {
    let mut kit = Kit::new();
    kit.run("SET a 1");
    kit.run("SET a 2");
    kit.run("INCR nosuch extra");
    kit.run("CONFIG GET maxmemory");
    kit.run("CLIENT GETNAME");
    let info = kit.text("INFO commandstats");
    for (name, counts) in [
        ("set", "calls=2,"),
        ("incr", "calls=0,"),
        ("config|get", "calls=1,"),
        ("client|getname", "calls=1,"),
    ] {
        let line = format!("cmdstat_{name}:{counts}");
        assert!(info.contains(&line), "{line} is not in {info}");
    }
    assert!(info.contains("rejected_calls=1"), "{info}");
    assert!(!info.contains("cmdstat_get:"), "never called: {info}");
    kit.run("CONFIG RESETSTAT");
    assert!(!kit.text("INFO commandstats").contains("cmdstat_set"));
}

/// Reads a line of INFO.
fn figure(kit: &mut Kit, section: &str, name: &str) -> String {
    let info = kit.text(&format!("INFO {section}"));
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{name} is not in {info}")).to_owned()
}

#[test]
fn rates_are_the_mean_of_sixteen_samples() {
    let mut kit = Kit::new();
    let traffic = kit.engine.traffic();
    let sample = |kit: &mut Kit, ms: i64| {
        kit.now = Now::from_millis(kit.now.ms() + ms);
        kit.engine.sample_rates(kit.now);
    };
    sample(&mut kit, 0);
    assert_eq!(figure(&mut kit, "stats", "instantaneous_ops_per_sec"), "0");
    // 40 commands in 100 ms are 400 per second, the INFO above included.
    (0..39).for_each(|_| drop(kit.run("PING")));
    traffic.count_read(10_240);
    traffic.count_write(20_480);
    sample(&mut kit, 100);
    assert_eq!(figure(&mut kit, "stats", "instantaneous_ops_per_sec"), "25");
    assert_eq!(figure(&mut kit, "stats", "instantaneous_input_kbps"), "6.25");
    assert_eq!(figure(&mut kit, "stats", "instantaneous_output_kbps"), "12.50");
    assert_eq!(figure(&mut kit, "stats", "total_net_input_bytes"), "10240");
    // A call that comes too soon is no sample, a clock that goes back does no harm.
    sample(&mut kit, 50);
    sample(&mut kit, -10_000);
    assert_eq!(figure(&mut kit, "stats", "instantaneous_output_kbps"), "12.50");
    // Sixteen samples later it is forgotten.
    (0..16).for_each(|_| sample(&mut kit, 100));
    assert_eq!(figure(&mut kit, "stats", "instantaneous_output_kbps"), "0.00");
    kit.run("CONFIG RESETSTAT");
    assert_eq!(figure(&mut kit, "stats", "total_net_input_bytes"), "0");
}

#[test]
fn the_use_of_the_process_is_what_the_embedding_program_says() {
    let mut kit = Kit::new();
    kit.engine.show_usage(engine::ProcessUsage {
        resident_bytes: 123_456_789,
        system_bytes: 1 << 34,
        user_time: std::time::Duration::from_millis(1_250),
        system_time: std::time::Duration::from_millis(70),
    });
    for (section, name, value) in [
        ("memory", "used_memory_rss", "123456789"),
        ("memory", "total_system_memory_human", "16.00G"),
        ("cpu", "used_cpu_user", "1.250000"),
        ("cpu", "used_cpu_sys", "0.070000"),
    ] {
        assert_eq!(figure(&mut kit, section, name), value);
    }
}

#[test]
fn a_subcommand_is_not_taken_for_the_command_of_the_same_name() {
    let mut kit = Kit::new();
    kit.check("MULTI", "OK");
    kit.check("SLOWLOG RESET", "QUEUED");
    kit.check("RESET", "RESET");
    kit.check("EXEC", "(error) ERR EXEC without MULTI");
}

#[test]
fn a_setting_that_is_not_acted_on_is_refused_unless_it_changes_nothing() {
    let mut kit = Kit::new();
    for (line, expected) in [
        ("CONFIG SET maxclients 5", "can only be '10000'"),
        ("CONFIG SET timeout 5", "can only be '0'"),
        ("CONFIG SET appendonly no", "can only be 'yes'"),
        ("CONFIG SET maxmemory 1mb activedefrag yes", "this store does not act on it"),
    ] {
        let reply = kit.text(line);
        assert!(reply.starts_with("(error) ERR CONFIG SET failed"), "{line}: {reply}");
        assert!(reply.contains(expected), "{line}: {reply}");
    }
    kit.check("CONFIG GET maxmemory", "{maxmemory: 0}");
    kit.check("CONFIG SET maxclients 10000 appendonly yes", "OK");
    // Hints are kept and shown, and the reply says that there is no more to it.
    kit.check(
        "CONFIG SET hz 50 maxmemory 0 save \"900 1\" set-max-listpack-entries 64",
        "OK (ignored by this store: hz, save, set-max-listpack-entries)",
    );
    kit.check("CONFIG GET save", "{save: 900 1}");
    kit.check("CONFIG GET hz", "{hz: 50}");
    kit.check("CONFIG GET set-max-listpack-entries", "{set-max-listpack-entries: 64}");
}

#[test]
fn what_clients_newer_than_7_0_send_is_understood() {
    let mut kit = Kit::new();
    kit.check("CLIENT SETINFO LIB-NAME redis-py", "OK");
    kit.check("CLIENT SETINFO LIB-VER 5.0.1", "OK");
    for line in ["CLIENT INFO", "CLIENT LIST"] {
        let info = kit.text(line);
        assert!(info.contains(" lib-name=redis-py lib-ver=5.0.1"), "{line}: {info}");
    }
    kit.check("CLIENT CAPA redirect", "OK");

    kit.run("SET k v");
    kit.now = Now::from_millis(kit.now.ms() + 9_000);
    kit.check("CLIENT NO-TOUCH ON", "OK");
    kit.run("GET k");
    kit.check("OBJECT IDLETIME k", "9");
    kit.check("CLIENT NO-TOUCH OFF", "OK");
    kit.run("GET k");
    kit.check("OBJECT IDLETIME k", "0");

    let other = kit.engine.connect("127.0.0.1:2");
    kit.run_as(other, "PING");
    kit.now = Now::from_millis(kit.now.ms() + 5_000);
    kit.check("CLIENT KILL MAXAGE 6", "0");
    kit.check("CLIENT KILL MAXAGE 5", "1");
    kit.check(
        "CLIENT KILL MAXAGE x SKIPME yes",
        "(error) ERR maxage is not an integer or out of range",
    );

    kit.run("HSET h a 1 b 2");
    kit.check("HSCAN h 0 NOVALUES", "[0 [a b]]");
    kit.check("HSCAN h 0 MATCH a* NOVALUES COUNT 5", "[0 [a]]");
    kit.check("SSCAN nosuch 0 NOVALUES", "[0 []]");
    kit.run("SADD s a");
    kit.check("SSCAN s 0 NOVALUES", "(error) ERR syntax error");

    // A lock is renewed, or a value replaced, only while it is still what it was.
    kit.run("SET lock mine");
    kit.check("SET lock x IFEQ yours", "(nil)");
    kit.check("SET lock mine IFEQ mine PX 5000", "OK");
    kit.check("PTTL lock", "5000");
    kit.check("SET lock x IFEQ mine GET", "mine");
    kit.check("SET lock y IFEQ mine GET", "x");
    kit.check("GET lock", "x");
    kit.check("SET nosuch x IFEQ mine", "(nil)");
    kit.check("EXISTS nosuch", "0");
    kit.check(
        "SET h x IFEQ mine",
        "(error) WRONGTYPE Operation against a key holding the wrong kind of value",
    );
    for wrong in ["IFEQ", "NX IFEQ a", "IFEQ a XX", "IFEQ a IFEQ b"] {
        kit.check(&format!("SET lock x {wrong}"), "(error) ERR syntax error");
    }

    kit.run("ZADD z 1 a 2.5 b");
    kit.check("ZSCAN z 0 NOSCORES", "[0 [a b]]");
    kit.check("HSCAN h 0 NOSCORES", "(error) ERR syntax error");
    kit.check("ZRANK z b WITHSCORE", "[1 (2.5)]");
    kit.check("ZREVRANK z b WITHSCORE", "[0 (2.5)]");
    kit.check("ZRANK z c WITHSCORE", "(nil array)");
    kit.check("ZRANK z c", "(nil)");
    let wrong = "(error) ERR wrong number of arguments for 'zrank' command";
    kit.check("ZRANK z b SCORE", wrong);

    kit.run("XADD x 1-1 a 1");
    kit.run("XADD x 2-1 b 2");
    kit.run("XADD x 3-1 c 3");
    kit.run("XDEL x 3-1");
    kit.check("XREAD STREAMS x +", "[[x [[2-1 [b 2]]]]]");
    kit.check("XREAD STREAMS nosuch +", "(nil array)");

    kit.check("EVAL \"return server.call('GET', 'k')\" 0", "v");
    kit.check("EVAL \"return server.pcall('NOSUCH').err ~= nil and 1 or 0\" 0", "1");
}
