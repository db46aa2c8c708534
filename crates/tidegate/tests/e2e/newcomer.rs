//! What a newcomer copies from the README and the five-minute guides, run as written: the shell
//! blocks of a page in one shell, and each block's output compared with the text block after it.
//!
//! The default ports are used, in a network of the test's own where the system allows one.
//! `cargo run --release` is played by a stand-in that starts the binary built for this test: a
//! fresh release build would take longer than everything else here together. That it would start
//! this very binary is a test of its own.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{binary, text};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Shell blocks of a page, each with the output the page promises for it.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else { continue };
        let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        match (kind, found.last_mut()) {
            ("sh", _) => found.push((body.join("\n"), String::new())),
            ("text", Some(last)) if last.1.is_empty() => last.1 = body.join("\n"),
            _ => {}
        }
    }
    found
}

/// Runs blocks in one shell, in a folder where `cargo` and `tidegate` are the binary under test.
#[track_caller]
fn follow(blocks: &[(String, String)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let bin = folder.path().join("target/release");
    std::fs::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink(binary(), bin.join("tidegate")).unwrap();
    let cargo = "#!/bin/sh\n[ \"$1 $2\" = 'run --release' ] || exit 99\nshift 2\n\
                 [ \"$1\" != -- ] || shift\nexec tidegate \"$@\"\n";
    std::fs::write(bin.join("cargo"), cargo).unwrap();
    std::fs::set_permissions(bin.join("cargo"), PermissionsExt::from_mode(0o755)).unwrap();

    let mut script = String::from("set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null' EXIT\n");
    for (index, (block, _)) in blocks.iter().enumerate() {
        script.push_str(&format!("echo '@@ {index}'\n{block}\n"));
    }
    let own_network = Command::new("unshare")
        .args(["-rn", "sh", "-c", "ip link set lo up"])
        .output()
        .is_ok_and(|tried| tried.status.success());
    let mut command = Command::new("timeout");
    command.arg("120");
    if own_network {
        command.args(["unshare", "-rn", "sh", "-c", "ip link set lo up; exec bash -c \"$0\""]);
    } else {
        command.args(["bash", "-c"]);
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let output = command
        .arg(&script)
        .current_dir(folder.path())
        .env_clear()
        .env("PATH", path)
        .env("HOME", folder.path())
        .output()
        .unwrap();
    let told = text(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", text(&output.stderr));
    let parts: Vec<String> = told.split("@@ ").skip(1).map(str::to_owned).collect();
    assert_eq!(parts.len(), blocks.len(), "{told}");
    for ((block, promised), part) in blocks.iter().zip(&parts) {
        for line in promised.lines().filter(|line| !line.trim().is_empty()) {
            assert!(part.contains(line.trim()), "{line:?} is not what came of\n{block}\n{part}");
        }
    }
    parts
}

fn page(name: &str) -> Vec<(String, String)> {
    blocks(&std::fs::read_to_string(root().join(name)).unwrap())
}

#[test]
fn the_five_minute_guide_to_the_room_works_as_written() {
    follow(&page("docs/start-room.md"));
}

#[test]
fn the_five_minute_guide_to_jobs_works_as_written() {
    follow(&page("docs/start-jobs.md"));
}

#[test]
fn the_readme_works_as_written() {
    let mut found = page("README.md");
    let start = found.remove(0).0;
    let commands: Vec<&str> = start
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty())
        .collect();
    // The second is what runs this test.
    assert_eq!(commands, ["cargo run --release", "./test"]);
    let ready = "until curl -sf http://127.0.0.1:7070/readyz > ready; do sleep 0.2; done";
    let mut script = vec![(
        format!(
            "{} > start.out & {ready}\ngrep -q 'Admin token  tg_admin_' start.out",
            commands[0]
        ),
        String::new(),
    )];
    assert!(found.len() >= 2, "one try for each service");
    script.extend(found);
    follow(&script);
}

#[test]
fn what_the_readme_runs_is_this_binary() {
    let listed = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline", "--locked"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    // `cargo run` takes the only binary of the only package that is built by default.
    let defaults = listed["workspace_default_members"].as_array().unwrap();
    assert_eq!(defaults.len(), 1, "{defaults:?}");
    let packages = listed["packages"].as_array().unwrap();
    let package = packages.iter().find(|package| package["id"] == defaults[0]).unwrap();
    let binaries: Vec<&str> = package["targets"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|target| target["kind"].as_array().unwrap().contains(&"bin".into()))
        .map(|target| target["name"].as_str().unwrap())
        .collect();
    assert_eq!(binaries, ["tidegate"]);
    assert_eq!(binary().file_name().unwrap(), "tidegate");
}
