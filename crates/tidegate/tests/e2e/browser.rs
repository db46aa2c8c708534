//! Every page in a real Chromium. A scenario is one file in `tests/browser/scenarios/`; what they
//! share is `tests/browser/harness.mjs`. Pictures of every page are left in `target/screenshots/`.
//!
//! To add one: the file, and its name in [`scenarios!`] below.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Tidegate, text};

/// One test per scenario, each with a server of its own.
macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        const NAMED: &[&str] = &[$(stringify!($name)),*];
        $(#[test] fn $name() { play(stringify!($name)); })*
    };
}

scenarios!(
    installation,
    jobs,
    login,
    overview,
    room,
    store,
    trouble,
    waiting,
    waiting_states,
    waiting_without_javascript
);

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

#[track_caller]
fn play(name: &str) {
    assert!(
        folder().join("node_modules").exists(),
        "the browser's packages are not installed: run `npm ci` in {} (./test does)",
        folder().display()
    );
    let gate = Tidegate::start("embedded:{data}", &[]);
    // The folder of build artefacts, wherever this machine keeps it: target/tmp is inside.
    let shots = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("screenshots");
    let output = Command::new("timeout")
        .args(["240", "node", "run.mjs", name])
        .current_dir(folder())
        .env("BASE", &gate.base)
        .env("TOKEN", gate.token())
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
