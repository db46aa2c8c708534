//! The real binary, on a free port, as a person or a program meets it.
#![allow(clippy::unwrap_used, missing_docs)]

mod browser;
mod cli;
mod client_address;
mod contract;
mod credentials;
mod demo;
mod gates;
mod jobs;
mod limits;
mod many;
mod newcomer;
mod packaging;
mod process;
mod room;
mod site;
mod start_stop;
mod store;
mod tls;
mod v1;
