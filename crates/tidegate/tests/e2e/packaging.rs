//! What is in packaging/ fits the binary it packs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Tidegate, binary, command, text};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn file(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap()
}

#[test]
fn the_systemd_unit_is_well_formed() {
    let unit = file("packaging/tidegate.service");
    assert!(unit.contains("/usr/local/bin/tidegate serve"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidegate.service");
    std::fs::write(&path, unit.replace("/usr/local/bin/tidegate", binary().to_str().unwrap()))
        .unwrap();
    let verified = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&path)
        .output()
        .unwrap_or_else(|error| panic!("systemd-analyze: {error}; apt-get install systemd"));
    assert!(verified.status.success(), "{}", text(&verified.stderr));
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let words: Vec<&str> = start.split(' ').skip(1).collect();
    let helped = command(folder.path(), &words).arg("--help").output().unwrap();
    assert!(helped.status.success(), "{start}: {}", text(&helped.stderr));
}

/// The instructions of the Dockerfile: word and rest.
fn dockerfile() -> Vec<(String, String)> {
    file("packaging/Dockerfile")
        .replace("\\\n", " ")
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split_once(' ').unwrap())
        .map(|(word, rest)| (word.to_owned(), rest.trim().to_owned()))
        .collect()
}

fn all<'a>(instructions: &'a [(String, String)], word: &str) -> Vec<&'a str> {
    instructions.iter().filter(|(w, _)| w == word).map(|(_, rest)| rest.as_str()).collect()
}

fn one<'a>(instructions: &'a [(String, String)], word: &str) -> &'a str {
    let [rest] = all(instructions, word)[..] else { panic!("not one {word}") };
    rest
}

/// The words of an instruction in its exec form.
fn words(rest: &str) -> Vec<String> {
    serde_json::from_str(rest.get(rest.find('[').unwrap()..).unwrap()).unwrap()
}

#[test]
fn the_image_is_built_from_what_is_here() {
    let instructions = dockerfile();
    let from = all(&instructions, "FROM");
    let manifest: toml::Table = file("Cargo.toml").parse().unwrap();
    let version = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    assert!(from[0].starts_with(&format!("rust:{version}-")), "{from:?} builds with {version}");
    assert_eq!(one(&instructions, "WORKDIR"), "/src");

    // The command builds this package as it is locked; its outcome is what the second stage takes.
    let build = one(&instructions, "RUN").split("&&").next().unwrap().trim();
    assert_eq!(build, "cargo build --release --locked --package tidegate");
    let known = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--package", "tidegate", "--depth", "0"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(known.status.success(), "{}", text(&known.stderr));
    let copied = all(&instructions, "COPY");
    assert_eq!(copied[0], ". .");
    assert_eq!(copied[1], "--from=build /src/target/release/tidegate /usr/local/bin/tidegate");
}

#[test]
fn the_image_is_built_from_all_that_git_keeps_and_nothing_else() {
    // Patterns of one name, anywhere or at the top; more is not used and not understood here.
    let ignored = file(".dockerignore");
    let patterns: Vec<&str> =
        ignored.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let matches = |path: &str| {
        patterns.iter().any(|pattern| match pattern.strip_prefix("**/") {
            Some(name) => path.split('/').any(|part| match name.strip_prefix('*') {
                Some(end) => part.ends_with(end),
                None => part == name,
            }),
            None => path.split('/').next() == Some(pattern),
        })
    };
    let tracked = Command::new("git").arg("ls-files").current_dir(root()).output().unwrap();
    let tracked = text(&tracked.stdout);
    for path in tracked.lines() {
        assert!(!matches(path), "{path} is kept by git and left out of the image's build");
    }
    for path in [
        ".git/HEAD",
        "target/debug/tidegate",
        "bench/target/x",
        "tidegate-data/admin-token",
        "crates/tidegate/tests/browser/node_modules/x",
        "shots/a.png",
    ] {
        assert!(matches(path), "{path} has no place in an image");
    }
}

#[test]
fn the_image_starts_the_binary_as_it_wants_to_be_started() {
    let instructions = dockerfile();
    let env: BTreeMap<&str, &str> = all(&instructions, "ENV")
        .into_iter()
        .flat_map(|rest| rest.split(' '))
        .map(|pair| pair.split_once('=').unwrap())
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let shown = command(folder.path(), &["config", "show", "--json"]).envs(&env).output().unwrap();
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let shown = text(&shown.stdout);
    for (name, value) in &env {
        assert!(shown.contains(name) && shown.contains(value), "{name} counts: {shown}");
    }
    let volume = one(&instructions, "VOLUME");
    assert_eq!(env["TIDEGATE_SERVER_DATA"], volume);
    let port = env["TIDEGATE_HTTP_LISTEN"].strip_prefix("0.0.0.0:").unwrap();
    assert_eq!(one(&instructions, "EXPOSE"), port);
    // The folder belongs to who runs it: the image's own user.
    let owned = format!("--from=build --chown=nonroot:nonroot /empty {volume}");
    assert!(all(&instructions, "COPY").contains(&owned.as_str()));
    assert!(all(&instructions, "FROM")[1].ends_with(":nonroot"));

    let entry = words(one(&instructions, "ENTRYPOINT"));
    let [program] = &entry[..] else { panic!("{entry:?}") };
    let start = words(one(&instructions, "CMD"));
    let mut helped = command(folder.path(), &[]);
    assert!(helped.args(&start).arg("--help").output().unwrap().status.success());

    // The health check is a command of the binary: it knows a server that runs from one that does not.
    let check = words(one(&instructions, "HEALTHCHECK"));
    assert_eq!(&check[0], program);
    let health: Vec<&str> = check[1..].iter().map(String::as_str).collect();
    let gate = Tidegate::start("embedded:", &[]);
    let ready = gate.run(&health);
    assert_eq!(ready.status.code(), Some(0), "{}", text(&ready.stderr));
    let folder = gate.stop();
    let gone = command(folder.path(), &health).args(["--listen", "127.0.0.1:1"]).output().unwrap();
    assert_eq!(gone.status.code(), Some(5), "{}", text(&gone.stderr));
}
