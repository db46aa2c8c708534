//! Users: what Redis cannot be asked about, because it is a choice made here.

use engine::CommandOutcome;

use crate::kit::Kit;

#[test]
fn users_leave_nothing_in_the_log() {
    let mut kit = Kit::new();
    kit.check("ACL SETUSER anna on >pw ~a* +@all", "OK");
    kit.check("ACL DELUSER anna", "1");
    kit.check("CONFIG SET requirepass x", "OK");
    assert_eq!(kit.effects(), [""; 0]);
}

#[test]
fn there_is_an_end_to_users_and_to_rules() {
    let mut kit = Kit::new();
    for n in 0..9_999 {
        kit.run(&format!("ACL SETUSER u{n}"));
    }
    let reply = kit.text("ACL SETUSER onemore");
    assert!(reply.contains("there cannot be more than 10000 users"), "{reply}");
    kit.check("ACL SETUSER u1 on", "OK");
    kit.check("ACL DELUSER u2", "1");
    kit.check("ACL SETUSER onemore", "OK");
    let keys: Vec<String> = (0..10_000).map(|n| format!("~{n}")).collect();
    let reply = kit.text(&format!("ACL SETUSER u1 {}", keys.join(" ")));
    assert!(reply.ends_with("A user cannot have so many rules"), "{reply}");
}

#[test]
fn a_password_is_kept_as_its_hash_alone() {
    let mut kit = Kit::new();
    kit.check("ACL SETUSER anna on >sesame", "OK");
    let user = kit.text("ACL GETUSER anna");
    let hash = "d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272";
    assert!(user.contains(hash) && !user.contains("sesame"), "{user}");
    kit.check(&format!("ACL SETUSER berta on #{hash}"), "OK");
    kit.check("AUTH berta sesame", "OK");
}

#[test]
fn whoever_applies_the_log_may_do_everything() {
    let mut kit = Kit::new();
    kit.check("SET a 1", "OK");
    let effects = kit.engine.take_output().effects;
    let mut other = Kit::new();
    other.check("ACL SETUSER default -@all resetkeys", "OK");
    let loader = other.engine.connect_loader();
    let applied = other.engine.apply(loader, &effects).unwrap();
    assert_eq!((applied.commands, applied.errors), (1, 0));
    let client = other.client;
    let CommandOutcome::Reply(reply) = other.run_as(client, "GET a") else { panic!("it waits") };
    assert!(reply.is_error(), "{reply:?}");
}
