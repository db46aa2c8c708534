//! Everything people and programs see of the job queue: HTTP calls, dashboard pages, the command
//! `tidegate jobs`, settings and demo traffic. What the queue does is in the crate `jobs`.
//!
//! Read `service.rs` (how it joins the product), then `api.rs`, `pages.rs`, `cli.rs`.

mod alerts;
mod api;
pub mod cli;
pub mod config;
mod demo;
mod error;
mod figures;
mod pages;
mod service;
mod types;

use web::icon::Icon;

pub use service::JobsService;

/// The icon of the service.
pub(crate) const ICON: Icon = Icon("M4 7h16M4 12h16M4 17h10M17 15l2 2 3-4");
