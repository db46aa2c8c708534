//! The OpenAPI document as others read it: a linter finds no error, and clients in TypeScript and Python that are
//! generated from it compile and play a story each with the real program. Their side is in `tests/openapi/`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::process::{Tidegate, text};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openapi")
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json")
}

/// A program that `./test` installs with npm.
fn node(script: &str) -> Command {
    let script = folder().join("node_modules").join(script);
    assert!(
        script.exists(),
        "{} is missing: run `npm ci` in {} (./test does)",
        script.display(),
        folder().display()
    );
    let mut command = Command::new("timeout");
    command.args(["120", "node"]).arg(script);
    command
}

/// A program that `./test` installs with pip, from an environment of its own.
pub(crate) fn python_tool(environment: &str, program: &str) -> PathBuf {
    let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tools");
    let found = tools.join(environment).join("bin").join(program);
    assert!(found.exists(), "{} is missing: ./test installs it", found.display());
    found
}

#[track_caller]
fn succeed(command: &mut Command) -> Output {
    let done = command.output().unwrap();
    let (out, error) = (text(&done.stdout), text(&done.stderr));
    assert!(done.status.success(), "{command:?}: {}\n{out}\n{error}", done.status);
    done
}

#[test]
fn redocly_finds_no_error() {
    let mut lint = node("@redocly/cli/bin/cli.js");
    lint.args(["lint", "--format=json"]).arg(golden()).current_dir(folder());
    let done = succeed(lint.env("REDOCLY_TELEMETRY", "off"));
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(report["totals"]["errors"], 0, "{report}");
    for problem in report["problems"].as_array().unwrap() {
        // `/jobs/{id}` beside `/jobs/stats`: no job can have such an id, a test of jobs-web says.
        assert_eq!(problem["ruleId"], "no-ambiguous-paths", "{problem}");
    }
}

#[test]
fn a_generated_typescript_client_compiles_and_plays_a_story() {
    let made = tempfile::tempdir().unwrap();
    for file in ["story.ts", "tsconfig.json", "package.json"] {
        std::fs::copy(folder().join(file), made.path().join(file)).unwrap();
    }
    let packages = folder().join("node_modules");
    std::os::unix::fs::symlink(packages, made.path().join("node_modules")).unwrap();
    let mut generate = node("openapi-typescript/bin/cli.js");
    succeed(generate.arg(golden()).arg("--output").arg(made.path().join("api.d.ts")));
    succeed(node("typescript/bin/tsc").args(["--project", "."]).current_dir(made.path()));
    let gate = Tidegate::start("embedded:", &[]);
    let mut play = Command::new("timeout");
    play.args(["60", "node", "story.js", &gate.base, &gate.token()]).current_dir(made.path());
    assert_eq!(text(&succeed(&mut play).stdout), "done\n");
}

#[test]
fn a_generated_python_client_imports_and_plays_a_story() {
    let made = tempfile::tempdir().unwrap();
    let mut generate = Command::new(python_tool("openapi-client", "openapi-python-client"));
    generate.args(["generate", "--meta", "none", "--fail-on-warning", "--path"]).arg(golden());
    generate.arg("--config").arg(folder().join("python.yaml"));
    generate.arg("--output-path").arg(made.path().join("tidegate_client"));
    // It looks for a formatter beside itself.
    succeed(generate.current_dir(made.path()));
    let python = python_tool("openapi-client", "python");
    let import_all = "import importlib, pkgutil, sys, tidegate_client as c\n\
        names = [m.name for m in pkgutil.walk_packages(c.__path__, 'tidegate_client.')]\n\
        [importlib.import_module(name) for name in names]\n\
        print(len(names))";
    let mut import = Command::new(&python);
    let done = succeed(import.args(["-c", import_all]).current_dir(made.path()));
    let modules: usize = text(&done.stdout).trim().parse().unwrap();
    assert!(modules > 150, "only {modules} modules");
    let mut check = Command::new(python_tool("mypy", "mypy"));
    check.args(["--disable-error-code", "import-untyped", "--python-executable"]).arg(&python);
    check.args(["--package", "tidegate_client"]);
    succeed(check.current_dir(made.path()));
    let gate = Tidegate::start("embedded:", &[]);
    let mut play = Command::new("timeout");
    play.arg("60").arg(&python).arg(folder().join("story.py")).arg(made.path());
    let done = succeed(play.args([&gate.base, &gate.token()]));
    assert_eq!(text(&done.stdout), "done\n");
}
