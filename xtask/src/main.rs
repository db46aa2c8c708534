//! `cargo xtask codegen`: writes generated files anew. The tests that compare them with what the
//! code says are also what writes them, so there is one way to make each.

use std::process::{Command, ExitCode};

/// Targets whose tests own generated files.
const TARGETS: [&str; 6] = ["--bin", "tidegate", "--test", "e2e", "--test", "keys"];
/// Part of the names of these tests.
const GOLDEN: &str = "is_up_to_date";

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("codegen") => match codegen() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("xtask: {error:#}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("usage: cargo xtask codegen    write generated files anew");
            ExitCode::from(2)
        }
    }
}

fn codegen() -> anyhow::Result<()> {
    // The whole workspace, as every other check does: single packages have other features, and all of
    // their dependencies would be compiled once more.
    let status = Command::new(env!("CARGO"))
        .args(["test", "--quiet", "--workspace"])
        .args(TARGETS)
        .args(["--", GOLDEN])
        .env("UPDATE_GOLDEN", "1")
        .status()?;
    anyhow::ensure!(status.success(), "the generated files could not be written");
    Ok(())
}
