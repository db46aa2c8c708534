//! Flow control for whatever arrives faster than it can be served: the binary.
//!
//! Read `services.rs` (the one list), `cli.rs` (the commands), `serve.rs` (how it starts), `shutdown.rs`
//! (how it stops). Every command ends in an exit code documented in `web::cli::Exit`.
#![allow(rustdoc::bare_urls, reason = "doc comments of flags are help texts, shown as they are")]

mod cli;
mod demo;
mod doctor;
mod logging;
mod resp_listener;
mod serve;
mod services;
mod shutdown;
mod store_password;

use std::process::ExitCode;

use crate::services::SERVICES;

/// Returns memory to the system after a burst, and wastes less of it on many small connections.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Processes that services start for themselves; not for people, so not on the command line.
    if let Some(argument) = std::env::args_os().nth(1)
        && let Some(code) = SERVICES.iter().find_map(|service| service.run_helper(&argument))
    {
        return code;
    }
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err((failure, output)) => {
            output.failure(&failure);
            failure.exit.into()
        }
    }
}
