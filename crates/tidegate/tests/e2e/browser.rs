//! Every page in a real Chromium. A scenario is one file in `tests/browser/scenarios/`; what they
//! share is `tests/browser/harness.mjs`. Pictures of every page are left in `target/screenshots/`.
//!
//! `UPDATE_PICTURES=1` renews the stored pictures in `tests/browser/pictures/`.
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
    desk,
    frame,
    installation,
    jobs,
    login,
    overview,
    room,
    steady,
    store,
    trouble,
    waiting,
    waiting_states,
    waiting_without_javascript;
    pictured:
    pictures;
    resolving:
    dns;
    chatting:
    chat_markup;
    chatting_on_two:
    chat;
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

/// On a server with a name, for stored pictures.
#[track_caller]
fn pictured(name: &str) {
    play(name, &Tidegate::start("embedded:{data}", &["--set", "server.name=test"]), None);
}

/// On a server whose resolver has an upstream on this machine, and a block page.
#[track_caller]
fn resolving(name: &str) {
    let upstream = crate::dns::Upstream::start();
    let settings = upstream.setting();
    let args = ["--set", &settings, "--set", "dns.block_page_listen=127.0.0.1:0"];
    let gate = Tidegate::start("embedded:{data}", &args);
    let line = gate.banner.lines().find_map(|line| line.trim().strip_prefix("Block page"));
    let block_page = line.unwrap_or_else(|| panic!("no block page in {}", gate.banner)).trim();
    play_with(name, &gate, None, &[("BLOCK_PAGE", block_page)]);
}

/// On a server whose chat is on the page of another site, which the scenario serves.
#[track_caller]
fn chatting(name: &str) {
    let free = testkit::reserve_address();
    // One name of the site is another site than the server for a browser, which then blocks storage.
    let (site, other) = (format!("http://{free}"), format!("http://localhost:{}", free.port()));
    let origin = format!("desk.widget_origins={site},{other}");
    play(name, &Tidegate::start("embedded:{data}", &["--set", &origin]), Some(site));
}

/// As [`chatting`], on two instances that share a Redis and an archive: agents at one, visitors at the other.
#[track_caller]
fn chatting_on_two(name: &str) {
    let free = testkit::reserve_address();
    let (site, other) = (format!("http://{free}"), format!("http://localhost:{}", free.port()));
    let (redis, folder) = (testkit::RedisServer::start(), tempfile::tempdir().unwrap());
    let mut settings = crate::chat_client::shared_settings(folder.path());
    settings.extend(["--set".to_owned(), format!("desk.widget_origins={site},{other}")]);
    let start = || crate::chat_client::start(&redis.url(), &settings);
    let (agents, visitors) = (start(), start());
    play_with(name, &agents, Some(site), &[("OTHER", visitors.base.as_str())]);
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
    let nobody = testkit::reserve_address();
    let gate = Tidegate::guard(&["--origin", &format!("http://{nobody}"), "--max-active", "1"]);
    play(name, &gate, Some(gate.guarded()));
}

#[track_caller]
fn play(name: &str, gate: &Tidegate, guard: Option<String>) {
    play_with(name, gate, guard, &[]);
}

#[track_caller]
fn play_with(name: &str, gate: &Tidegate, guard: Option<String>, more: &[(&str, &str)]) {
    assert!(
        folder().join("node_modules").exists(),
        "the browser's packages are not installed: run `npm ci` in {} (./test does)",
        folder().display()
    );
    // The folder of build artefacts, wherever this machine keeps it: target/tmp is inside.
    let shots = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("screenshots");
    let output = Command::new("timeout")
        .args(["420", "node", "run.mjs", name])
        .current_dir(folder())
        .env("BASE", &gate.base)
        .env("TOKEN", gate.token())
        .env("GUARD", guard.unwrap_or_default())
        .env("SCREENSHOTS", shots)
        .envs(more.iter().copied())
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
