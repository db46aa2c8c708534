//! The real binary, on a free port, as a person or a program meets it.
#![allow(clippy::unwrap_used, missing_docs)]

mod boundary;
mod browser;
mod cli;
mod client_address;
mod clients;
mod contract;
mod credentials;
mod demo;
mod disk;
mod gates;
mod jobs;
mod limits;
mod many;
mod newcomer;
mod packaging;
mod process;
mod replies;
mod room;
mod served;
mod site;
mod smoke;
mod start_stop;
mod store;
mod tls;
mod v1;
