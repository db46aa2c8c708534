//! What a newcomer copies from the README and the guides, run as written: the shell blocks of a page in one
//! shell, and what each block prints compared, line by line, with the text block after it. A block without one
//! prints nothing. `…` in a line stands for what differs each time: an id, a token, a time.
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
fn run_blocks(blocks: &[(String, String)]) -> Vec<String> {
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
    parts
}

/// Runs blocks and compares what each prints with what the page promises.
#[track_caller]
fn follow(blocks: &[(String, String)]) {
    let parts = run_blocks(blocks);
    for ((block, promised), part) in blocks.iter().zip(&parts) {
        let printed: Vec<&str> = part.lines().skip(1).collect();
        let promised: Vec<&str> = promised.lines().collect();
        let same = printed.len() == promised.len()
            && promised.iter().zip(&printed).all(|(promised, printed)| fits(promised, printed));
        assert!(
            same,
            "the page promises\n{}\nbut\n{block}\nprints\n{}",
            promised.join("\n"),
            printed.join("\n")
        );
    }
}

/// Tells whether a printed line is the promised one, in which `…` stands for at least one character.
fn fits(promised: &str, printed: &str) -> bool {
    let (mut pieces, mut rest) = (promised.trim_end().split('…'), printed.trim_end());
    let first = pieces.next().unwrap_or_default();
    let Some(after) = rest.strip_prefix(first) else { return false };
    rest = after;
    let Some(last) = pieces.next_back() else { return rest.is_empty() };
    for piece in pieces {
        let Some(at) =
            rest.char_indices().skip(1).map(|(at, _)| at).find(|at| rest[*at..].starts_with(piece))
        else {
            return false;
        };
        rest = &rest[at + piece.len()..];
    }
    rest.len() > last.len() && rest.ends_with(last)
}

#[test]
fn a_line_is_compared_as_a_whole() {
    for (promised, printed, fit) in [
        ("42", "42", true),
        ("42", "42 ", true),
        ("42", "142", false),
        ("42", "", false),
        ("id …", "id abc", true),
        ("id …", "id ", false),
        ("… done", "abc done", true),
        ("a … b … c", "a 1 b 2 c", true),
        ("a … b … c", "a 1 c", false),
        ("", "shaky", false),
    ] {
        assert_eq!(fits(promised, printed), fit, "{promised:?} {printed:?}");
    }
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
fn the_five_minute_guide_to_the_resolver_works_as_written() {
    follow(&page("docs/start-dns.md"));
}

#[test]
fn the_five_minute_guide_to_limits_works_as_written() {
    follow(&page("docs/start-limits.md"));
}

#[test]
fn the_five_minute_guide_to_the_desk_works_as_written() {
    follow(&page("docs/start-desk.md"));
}

/// Pastes the calls of a page, from the block with these words on, into the folder of a running server; none is
/// answered with an error. What they print differs each time and is long, so the page shows only parts of it.
#[track_caller]
fn paste(name: &str, first: &str) {
    let found: Vec<(String, String)> =
        page(name).into_iter().skip_while(|(block, _)| !block.contains(first)).collect();
    assert!(!found.is_empty(), "{name} has no block with {first}");
    let start = "tidegate > tidegate.out & \
                 until curl -sf http://127.0.0.1:7070/readyz > ready.json; do sleep 0.2; done";
    let mut script = vec![(start.to_owned(), String::new())];
    script.extend(found.into_iter().map(|(block, _)| (block, String::new())));
    for (part, (block, _)) in run_blocks(&script).iter().zip(&script) {
        // The page about the room shows that a priority without an invite is refused.
        let errors = part.matches("\"error\":{").count();
        let shown = part.matches("PRIORITY_NOT_ALLOWED").count();
        assert_eq!(errors, shown, "{name}:\n{block}\nis answered\n{part}");
    }
}

#[test]
fn the_calls_on_the_page_about_the_room_can_be_pasted() {
    paste("docs/room.md", "URL=http");
}

#[test]
fn the_calls_on_the_page_about_jobs_can_be_pasted() {
    paste("docs/jobs.md", "export T=");
}

#[test]
fn the_commands_on_the_page_about_dns_can_be_pasted() {
    // Encrypted queries need a certificate, the import a file.
    let start = r#"openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=dns.example \
  -addext subjectAltName=DNS:dns.example,DNS:*.dns.example,IP:127.0.0.1 2> openssl.out
printf 'user_rules:\n  - "||spam.example^"\n' > AdGuardHome.yaml
tidegate serve --set http.tls_cert=cert.pem --set http.tls_key=key.pem --set dns.tls_name=dns.example \
  --set dns.tls_listen=127.0.0.1:8853 > tidegate.out &
until curl -skf https://127.0.0.1:7070/readyz > ready.json; do sleep 0.2; done"#;
    let mut script = vec![(start.to_owned(), String::new())];
    script.extend(page("docs/dns.md"));
    assert!(script.len() >= 6, "the page lost its commands");
    let import = script.iter().position(|(block, _)| block.contains("dns import")).unwrap();
    script.insert(import + 1, ("tidegate dns rules ls".to_owned(), String::new()));
    let parts = run_blocks(&script);
    assert!(parts[import + 1].contains("||spam.example^"), "{}", parts[import + 1]);
    let printed = |words: &str| {
        let at = script.iter().position(|(block, _)| block.contains(words)).unwrap();
        parts[at].clone()
    };
    assert!(printed("dns profile").contains("phone.dns.example"), "{}", printed("dns profile"));
    let pair = printed("mkdir first second");
    assert_eq!(pair.lines().last(), Some("0.0.0.0"), "a change on one is in force on the other");
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
