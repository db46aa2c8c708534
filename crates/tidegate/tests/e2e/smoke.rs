//! One pass over every group of commands in the program that ships. Identities, tables and limits
//! that hold in a test build can differ in an optimised one, so they are looked at here again.

use std::time::Instant;

use crate::served::Served;

/// One command of each group, with what redis-cli prints.
const GROUPS: [(&[&str], &str); 19] = [
    (&["SET", "string", "1"], "OK\n"),
    (&["INCR", "string"], "2\n"),
    (&["RPUSH", "list", "a", "b"], "2\n"),
    (&["SADD", "set", "a", "b"], "2\n"),
    (&["HSET", "hash", "field", "1"], "1\n"),
    (&["ZADD", "zset", "1", "a", "2", "b"], "2\n"),
    (&["ZRANK", "zset", "b"], "1\n"),
    (&["XADD", "stream", "1-1", "field", "1"], "1-1\n"),
    (&["SETBIT", "bits", "7", "1"], "0\n"),
    (&["PFADD", "hll", "a"], "1\n"),
    (&["GEOADD", "geo", "13.4", "52.5", "berlin"], "1\n"),
    (&["EXPIRE", "string", "100"], "1\n"),
    (&["TYPE", "zset"], "zset\n"),
    (&["PUBLISH", "channel", "message"], "0\n"),
    (&["EVAL", "return redis.call('GET', KEYS[1])", "1", "string"], "2\n"),
    (&["SCRIPT", "EXISTS", "0000000000000000000000000000000000000000"], "0\n"),
    (&["CONFIG", "GET", "maxmemory"], "maxmemory\n0\n"),
    (&["CLIENT", "GETNAME"], "\n"),
    (&["OBJECT", "ENCODING", "string"], "int\n"),
];

#[test]
fn every_group_of_commands_answers_and_is_counted() {
    let served = Served::start();
    for (command, expected) in GROUPS {
        assert_eq!(served.cli(command), expected, "{command:?}");
    }
    let stats = served.cli(&["INFO", "commandstats"]);
    let latency = served.cli(&["INFO", "latencystats"]);
    for (command, _) in GROUPS {
        let name = match command {
            [container @ ("SCRIPT" | "CONFIG" | "CLIENT" | "OBJECT"), sub, ..] => {
                format!("{container}|{sub}")
            }
            [name, ..] => (*name).to_owned(),
            [] => unreachable!("a command has a name"),
        }
        .to_lowercase();
        assert!(stats.contains(&format!("cmdstat_{name}:calls=1,")), "{name}: {stats}");
        assert!(
            latency.contains(&format!("latency_percentiles_usec_{name}:")),
            "{name}: {latency}"
        );
    }
}

#[test]
fn transactions_know_quit_reset_and_discard() {
    let served = Served::start();
    let commands =
        "MULTI\nSET a 1\nEXEC\nMULTI\nSET a 2\nDISCARD\nGET a\nMULTI\nSET a 3\nRESET\nGET a\n";
    let shell = format!("printf '{commands}' | redis-cli -p {}", served.port);
    let output = std::process::Command::new("sh").args(["-c", &shell]).output().unwrap();
    let told = crate::process::text(&output.stdout);
    assert_eq!(
        told.split_whitespace().collect::<Vec<_>>(),
        ["OK", "QUEUED", "OK", "OK", "QUEUED", "OK", "1", "OK", "QUEUED", "RESET", "1"]
    );
}

#[test]
fn a_user_is_held_to_commands_subcommands_keys_and_channels() {
    let served = Served::start();
    let rules = "ACL SETUSER ann on >pw ~ann:* &ann:* +@all -@dangerous -client|kill +config|get";
    assert_eq!(served.cli(&rules.split(' ').collect::<Vec<_>>()), "OK\n");
    let ann = |command: &[&str]| {
        served.cli(&[&["--user", "ann", "--pass", "pw", "--no-auth-warning"], command].concat())
    };
    assert_eq!(ann(&["SET", "ann:a", "1"]), "OK\n");
    assert_eq!(ann(&["PUBLISH", "ann:c", "1"]), "0\n");
    assert_eq!(ann(&["CONFIG", "GET", "maxmemory"]), "maxmemory\n0\n");
    for refused in [
        &["SET", "bob:a", "1"][..],
        &["PUBLISH", "bob:c", "1"],
        &["FLUSHALL"],
        &["KEYS", "*"],
        &["CLIENT", "KILL", "ID", "1"],
        &["CONFIG", "SET", "maxmemory", "1"],
        &["EVAL", "return redis.call('SET', KEYS[1], 1)", "1", "bob:a"],
        &["EVAL", "return redis.call('FLUSHALL')", "0"],
    ] {
        let told = ann(refused);
        let is_refused = told.contains("NOPERM") || told.contains("can't run this command");
        assert!(is_refused || told.contains("permissions"), "{refused:?}: {told}");
    }
    assert_eq!(served.cli(&["EXISTS", "ann:a"]), "1\n");
}

#[test]
fn no_script_of_one_line_holds_the_store_past_its_deadline() {
    let served = Served::start();
    for script in [
        "table.insert({}, 2^31, 1) return 1",
        "table.insert({}, -2147483648, 1) return 1",
        "table.insert({}, 2^53, 1) return 1",
        "for i = 1, 3 do pcall(table.insert, {}, 2^31, 1) end return 1",
        "return #string.rep('x', 2^31)",
        "local t = {} for i = 1, 1e9 do t[i] = i end",
        "return {unpack({}, 1, 2^30)}",
    ] {
        let since = Instant::now();
        served.cli(&["EVAL", script, "0"]);
        assert!(since.elapsed() < testkit::HANG, "{script}: {:?}", since.elapsed());
        assert_eq!(served.cli(&["PING"]), "PONG\n", "after {script}");
    }
}

#[test]
fn an_endless_script_is_reported_as_busy_and_can_be_killed() {
    let served = Served::start();
    served.cli(&["CONFIG", "SET", "busy-reply-threshold", "200"]);
    let port = served.port.to_string();
    let endless = std::thread::spawn(move || {
        let output = std::process::Command::new("redis-cli")
            .args(["-p", &port, "EVAL", "while true do end", "0"])
            .output();
        crate::process::text(&output.unwrap().stdout)
    });
    testkit::until_blocking("the script is reported as busy", || {
        served.cli(&["PING"]).starts_with("BUSY").then_some(())
    });
    assert_eq!(served.cli(&["SCRIPT", "KILL"]), "OK\n");
    assert!(endless.join().unwrap().contains("killed"), "the script's caller is told");
    assert_eq!(served.cli(&["PING"]), "PONG\n");
}
