//! Everything people and programs see of the resolver: its listeners in the banner, HTTP calls, dashboard
//! pages, the command `tidegate dns`, settings, metrics and checks. What the resolver does is in the
//! crate `dns`.
//!
//! Read `service.rs` (how it joins the product), then `api.rs`, `pages.rs`, `cli.rs`; `recording.rs`, `notes.rs`
//! and `alerts.rs` follow an answered query to the log, the statistics and the webhooks.

mod alerts;
mod api;
mod block_page;
mod catalogue;
pub mod cli;
pub mod config;
mod demo;
mod doctor;
mod error;
mod gauges;
mod import;
mod notes;
mod pages;
mod problems;
mod profile;
mod recording;
mod records;
mod remote;
mod service;
mod sink;
mod sweeps;

use web::icon::Icon;

pub use service::DnsService;

/// The icon of the service.
pub(crate) const ICON: Icon =
    Icon("M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M3 12h18M12 3c5 5 5 13 0 18M12 3c-5 5-5 13 0 18");
