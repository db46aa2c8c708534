//! Real sites behind the guard: one in Express, one of Python's `http.server`. `tests/browser/replies.mjs`
//! makes each request to the site and to the guard, and compares the replies.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::process::{Tidegate, text};

/// A site in a process of its own, ended on drop.
struct Program {
    child: Child,
    port: u16,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    /// Starts a site that prints its port as the last number of its first line.
    fn start(command: &mut Command) -> Program {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let numbers = line.split(|c: char| !c.is_ascii_digit());
        let port = numbers.filter_map(|word| word.parse().ok()).next_back();
        let port = port.unwrap_or_else(|| panic!("{command:?} printed no port: {line}"));
        std::thread::spawn(move || {
            let mut rest = Vec::new();
            let _ = lines.read_to_end(&mut rest);
        });
        Program { child, port }
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser")
}

/// What arrives through the guard is what the site said.
fn compare(kind: &str, site: &Program) {
    let origin = format!("http://127.0.0.1:{}", site.port);
    // The last one to take a session waits for nobody: a WebSocket without a pass is refused.
    let gate = Tidegate::guard(&["--origin", &origin, "--rate", "6000/m", "--max-active", "1"]);
    let output = Command::new("timeout")
        .args(["240", "node", "replies.mjs", kind, &origin, &gate.guarded()])
        .current_dir(folder())
        .output()
        .unwrap();
    let told = text(&output.stderr);
    assert!(output.status.success(), "{told}\nserver: {}", gate.log());
    assert_eq!(text(&output.stdout).trim(), "the same", "{told}");
}

#[test]
fn replies_of_an_express_site_pass_the_guard_unchanged() {
    assert!(
        folder().join("node_modules/express").exists(),
        "the packages are not installed: run `npm ci` in {} (./test does)",
        folder().display()
    );
    let site = Program::start(Command::new("node").arg("express_site.mjs").current_dir(folder()));
    compare("express", &site);
}

#[test]
fn replies_of_pythons_file_server_pass_the_guard_unchanged() {
    let files = tempfile::tempdir().unwrap();
    let film: Vec<u8> =
        (0..20_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(files.path().join("film.bin"), film).unwrap();
    std::fs::write(files.path().join("empty.txt"), "").unwrap();
    std::fs::create_dir(files.path().join("folder")).unwrap();
    std::fs::write(files.path().join("folder/a bé.txt"), "text\n").unwrap();
    let mut python = Command::new("python3");
    python.args(["-u", "-m", "http.server", "--bind", "127.0.0.1", "0"]);
    python.current_dir(files.path()).stderr(Stdio::null());
    compare("files", &Program::start(&mut python));
}
