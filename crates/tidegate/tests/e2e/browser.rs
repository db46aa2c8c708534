//! Every page in a real Chromium. A scenario is one file in `tests/browser/scenarios/`; what they
//! share is `tests/browser/harness.mjs`. Pictures of every page are left in `target/screenshots/`.
//!
//! To add one: the file, and its name in [`scenarios!`] below.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Tidegate, text};
use crate::site::Site;

/// One test per scenario, each with a server of its own.
macro_rules! scenarios {
    ($($start:ident: $($name:ident),*;)*) => {
        const NAMED: &[&str] = &[$($(stringify!($name)),*),*];
        $($(#[test] fn $name() { $start(stringify!($name)); })*)*
    };
}

scenarios! {
    served:
    installation,
    jobs,
    login,
    overview,
    room,
    store,
    trouble,
    waiting,
    waiting_states,
    waiting_without_javascript;
    guarded:
    guard,
    guard_without_javascript;
    unanswered:
    guard_down;
}

#[test]
fn every_scenario_is_played() {
    let files = std::fs::read_dir(folder().join("scenarios")).unwrap();
    for file in files {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(NAMED.contains(&name), "{} is in no list: see e2e/browser.rs", path.display());
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser")
}

/// On a server as everybody starts it.
#[track_caller]
fn served(name: &str) {
    play(name, &Tidegate::start("embedded:{data}", &[]), None);
}

/// On a guard in front of a shop, with room for one.
#[track_caller]
fn guarded(name: &str) {
    let shop = Site::shop();
    // The style is open to everybody: the last page of a visit needs it when the visit is over. So is
    // the logo, for the waiting page.
    let args = ["--origin", &shop.url(), "--rate", "6000/m", "--max-active", "1"];
    let gate = Tidegate::guard(
        &[&args[..], &["--open-path", "/shop.css", "--open-path", "/logo.svg"]].concat(),
    );
    play(name, &gate, Some(gate.guarded()));
}

/// On a guard in front of nothing, with room for one.
#[track_caller]
fn unanswered(name: &str) {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gate = Tidegate::guard(&["--origin", &format!("http://{nobody}"), "--max-active", "1"]);
    play(name, &gate, Some(gate.guarded()));
}

#[track_caller]
fn play(name: &str, gate: &Tidegate, guard: Option<String>) {
    assert!(
        folder().join("node_modules").exists(),
        "the browser's packages are not installed: run `npm ci` in {} (./test does)",
        folder().display()
    );
    // The folder of build artefacts, wherever this machine keeps it: target/tmp is inside.
    let shots = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("screenshots");
    let output = Command::new("timeout")
        .args(["240", "node", "run.mjs", name])
        .current_dir(folder())
        .env("BASE", &gate.base)
        .env("TOKEN", gate.token())
        .env("GUARD", guard.unwrap_or_default())
        .env("SCREENSHOTS", shots)
        .output()
        .unwrap_or_else(|error| panic!("node cannot be started: {error}"));
    assert!(
        output.status.success(),
        "{name}:\n{}{}\nserver: {}",
        text(&output.stderr),
        text(&output.stdout),
        gate.log()
    );
}
