//! INFO and the table of commands.

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

#[test]
fn a_subcommand_is_not_taken_for_the_command_of_the_same_name() {
    let mut kit = Kit::new();
    kit.check("MULTI", "OK");
    kit.check("SLOWLOG RESET", "QUEUED");
    kit.check("RESET", "RESET");
    kit.check("EXEC", "(error) ERR EXEC without MULTI");
}
