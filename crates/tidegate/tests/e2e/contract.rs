//! The OpenAPI document as a promise: schemathesis reads it from the running server and looks for
//! an answer it does not allow. No server error, no status that is not documented, no admin path
//! that answers without a credential.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Tidegate, text};

/// Where `./test` puts it, or the one on the path.
fn schemathesis() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tools");
    let ours = target.join("schemathesis/bin/schemathesis");
    let found = if ours.exists() { ours } else { PathBuf::from("schemathesis") };
    let works = Command::new(&found).arg("--version").output().is_ok_and(|o| o.status.success());
    assert!(works, "schemathesis is missing: ./test installs it, or `pip install schemathesis`");
    found
}

#[test]
fn the_api_answers_as_its_document_says() {
    let gate = Tidegate::start("embedded:", &[]);
    let queue = gate.run(&["room", "create", "q"]);
    assert!(queue.status.success(), "{}", text(&queue.stderr));
    // Streams do not end by themselves, and a wait ends when its job does. A queue that the example
    // of its own call has closed answers 503, as it should, and that counts as a server error here.
    let document = gate.json("/api/openapi.json");
    let paths = document["paths"].as_object().unwrap();
    let left_out: Vec<&str> = paths
        .iter()
        .filter(|(path, item)| {
            let own = path.ends_with("/wait") || path.ends_with("/maintenance");
            own || item.to_string().contains("text/event-stream")
        })
        .map(|(path, _)| path.as_str())
        .collect();
    assert!(left_out.contains(&"/api/v1/live"), "{left_out:?}");
    let output = Command::new("timeout")
        .arg("400")
        .arg(schemathesis())
        .args(["run", &format!("{}/api/openapi.json", gate.base)])
        .args(["-H", &format!("Authorization: Bearer {}", gate.token())])
        .args(["--checks", "not_a_server_error,status_code_conformance,ignored_auth"])
        .args(["--phases", "examples,coverage,fuzzing", "--max-examples", "2", "--seed", "7"])
        .args(left_out.iter().flat_map(|path| ["--exclude-path", *path]))
        .args(["--request-timeout", "45", "--no-color"])
        .current_dir(gate.path())
        .output()
        .unwrap();
    let told = text(&output.stdout);
    let failures = told.find("= FAILURES").and_then(|at| told.get(at..)).unwrap_or(&told);
    assert!(output.status.success(), "{failures}\n{}", text(&output.stderr));
    assert!(told.contains("generated"), "nothing was tried: {told}");
}
