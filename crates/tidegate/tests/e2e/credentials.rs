//! The admin token and the room's secret: made, replaced, shared.

use testkit::RedisServer;

use crate::process::{Tidegate, command, run, text};
use crate::wait::{eventually, until};

/// The status of a call with a token.
fn status(gate: &Tidegate, token: &str) -> u16 {
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let request = agent.get(format!("{}/api/v1/tokens", gate.base));
    request.header("authorization", format!("Bearer {token}")).call().unwrap().status().as_u16()
}

fn reset(gate: &Tidegate, store: &str) -> String {
    let done = run(gate.folder.path(), &["token", "reset-admin", "--store", store]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    text(&done.stdout).trim().to_owned()
}

#[test]
fn a_new_admin_token_is_one_command_while_the_server_runs() {
    let gate = Tidegate::start("embedded:", &[]);
    let old = gate.token();
    assert_eq!(status(&gate, &old), 200);
    let new = reset(&gate, "embedded:");
    assert_ne!(new, old);
    assert_eq!((status(&gate, &new), status(&gate, &old)), (200, 401));
    assert_eq!(gate.token(), new, "commands use it from now on");
}

#[test]
fn a_new_admin_token_counts_at_every_instance_on_a_shared_store() {
    let redis = RedisServer::start();
    let one = Tidegate::start(&redis.url(), &[]);
    let two = Tidegate::start(&redis.url(), &[]);
    let old = one.token();
    assert_eq!(status(&two, &old), 200);
    let new = reset(&one, &redis.url());
    // The command changed the store itself; instances remember a good token for a moment.
    let both = || (status(&one, &old), status(&two, &old));
    let moment = std::time::Duration::from_secs(1);
    until("the old token works no longer", moment, both, |seen| *seen == (401, 401));
    assert_eq!((status(&one, &new), status(&two, &new)), (200, 200));
}

#[test]
fn a_second_instance_without_the_secret_says_what_to_do() {
    let redis = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let start = |data: &str| {
        let mut start = command(folder.path(), &["serve", "--store", &redis.url(), "--data", data]);
        start.args(["--listen", "127.0.0.1:0", "--set", "resp.listen=off"]);
        start
    };
    let mut first = start("one").stdout(std::process::Stdio::null()).spawn().unwrap();
    let made = folder.path().join("one/running.json");
    eventually("the first instance starts", || made.exists());
    let second = start("two").output().unwrap();
    let left = folder.path().join("two/room-secret").exists();
    first.kill().unwrap();
    first.wait().unwrap();
    let told = text(&second.stderr);
    assert!(!second.status.success(), "{told}");
    assert!(told.contains("room-secret") && told.contains("room.secret_file"), "{told}");
    assert!(!left, "no useless secret stays behind");
    let secret = folder.path().join("one/room-secret");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(secret.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}
