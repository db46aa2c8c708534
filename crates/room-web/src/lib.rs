//! The public side of the waiting room: the HTTP API of visitors and operators, the
//! waiting page, forward auth for other proxies, the reverse proxy of `tidegate room guard`,
//! dashboard pages, the command `tidegate room`, settings and demo traffic. The rules are in the crate
//! `room`.
//!
//! Read `service.rs` (how it is plugged into the product), then `api.rs`, `waiting_page.rs`, `forward_auth.rs`,
//! `proxy.rs`, `pages.rs`, `cli.rs`.

mod alerts;
mod api;
mod assets;
pub mod cli;
pub mod config;
mod cookie;
mod demo;
mod error;
mod figures;
mod forward_auth;
mod limits;
mod pages;
pub mod proxy;
mod secret;
mod service;
mod site;
mod units;
mod waiting_page;

use web::icon::Icon;

pub use service::{RoomService, RoomState};

/// The icon of the service.
pub(crate) const ICON: Icon = Icon(
    "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6Zm8 1a2.500 2.500 0 1 0 0-5 2.500 2.500 0 0 0 0 5ZM2.500 20c0-3.300 2.500-5.500 5.500-5.500s5.500 2.200 5.500 5.500M15 15c3.500-.500 6.500 1.500 6.500 5",
);
