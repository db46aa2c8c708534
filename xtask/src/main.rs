//! `cargo xtask codegen`: writes generated files anew. The tests that compare them with what the
//! code says are also what writes them, so there is one way to make each.

use std::process::{Command, ExitCode};

/// Tests that own a generated file.
const GOLDEN: &[(&str, &str)] = &[("tidegate", "is_up_to_date"), ("xtask", "is_up_to_date")];

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
    for (package, test) in GOLDEN {
        let status = Command::new(env!("CARGO"))
            .args(["test", "--quiet", "--package", package, "--", test])
            .env("UPDATE_GOLDEN", "1")
            .status()?;
        anyhow::ensure!(status.success(), "the generated files of {package} could not be written");
    }
    Ok(())
}
