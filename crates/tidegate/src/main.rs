//! Flow control for whatever arrives faster than it can be served: the binary.
//!
//! Read `cli.rs` (what can be said), `config.rs` (what can be set), `serve.rs` (how it starts),
//! `shutdown.rs` (how it stops). Every command ends in an exit code documented in `failure.rs`.
#![allow(rustdoc::bare_urls, reason = "doc comments of flags are help texts, shown as they are")]

mod admin_token;
mod cli;
mod client;
mod config;
mod demo;
mod doctor;
mod failure;
mod guard;
mod logging;
mod output;
mod port;
mod progress;
mod room_secret;
mod serve;
mod shutdown;
mod store_password;

use std::process::ExitCode;

/// Returns memory to the system after a burst, and wastes less of it on many small connections.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Started by `jobs exec` for each of its commands; not for people, so not on the command line's
    // own list.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|word| word == cli::SUPERVISE) {
        return cli::supervise();
    }
    let cli = cli::parse();
    let output = output::Output::new(&cli.global);
    match cli::run(cli, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.failure(&failure);
            failure.exit.into()
        }
    }
}
