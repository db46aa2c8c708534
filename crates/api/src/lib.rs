//! The only crate that knows HTTP and JSON.
//!
//! [`app()`] turns an [`App`] (handles on the services) into a router that needs no socket, so tests
//! call it directly; [`serve`] puts it behind sockets. Every route is declared in a [`Section`],
//! which decides who may call it: a route cannot be reachable without that decision.
//!
//! Read in this order: `app` (what is shared), `section` (who may call what), `front` (what happens
//! to every request), `auth`, then one file per service.

pub mod access;
pub mod app;
pub mod audit;
pub mod auth;
pub mod client;
pub mod dashboard;
pub mod error;
pub mod extract;
pub mod front;
mod gate;
pub mod guard;
pub mod health;
pub mod jobs;
mod keys;
pub mod live;
pub mod metrics;
pub mod openapi;
mod process;
pub mod protected;
pub mod room;
pub mod section;
pub mod series;
pub mod serve;
pub mod settings;
pub mod sse;
pub mod store;
mod waiting;

pub use app::{App, Parts, Services, app, document};
pub use error::ApiError;
pub use section::Section;
pub use settings::Settings;
