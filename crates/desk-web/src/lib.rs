//! Everything people and programs see of the desk: HTTP calls about limits, traffic, users and
//! sessions, dashboard pages, the command `tidegate desk`, settings and demo traffic. What the desk
//! does is in the crate `desk`.
//!
//! Read `service.rs` (how it joins the product), then `api.rs`, `limiter.rs` (the product's own
//! limits), `gate.rs` (limits for proxies), `envoy.rs` (limits for
//! Envoy, over gRPC), `traffic.rs` (from the frame's count to the store),
//! `otlp.rs` (traffic that other programs report with OpenTelemetry), `pages.rs`,
//! `cli.rs`; the support chat is in `chat.rs`, what it sends
//! in `courier.rs` (e-mail, web push), its clients in `panel.rs` (widget) and `console.rs` (agents).

mod api;
mod assets;
mod chat;
pub mod cli;
pub mod config;
mod console;
mod courier;
mod demo;
mod doctor;
mod envoy;
mod error;
mod gate;
mod limiter;
mod otlp;
mod pages;
mod panel;
mod service;
mod traffic;
mod webhooks;

use web::icon::Icon;

pub use service::DeskService;

/// The icon of the service: a gauge.
pub(crate) const ICON: Icon = Icon("M4 18a8 8 0 1 1 16 0M12 18l4.500-6M4 18h2M18 18h2M12 8v2");
