//! The frame of everything that people and programs see: HTTP, dashboard, settings and command line.
//!
//! A service brings its routes, pages, settings and command in an implementation of [`Service`]; the
//! frame never imports a service. [`app()`] turns an [`App`] into a router that needs no socket, so
//! tests call it directly; [`serve`] puts it behind sockets. Every route is declared in [`Routes`],
//! which decides who may call it: a route cannot be reachable without that decision.
//!
//! Read in this order: `service` (what a service is to the frame), `app` (what is shared), `routes`
//! (who may call what), `middleware` (what happens to every request), `auth`.

pub mod access;
pub mod app;
pub mod assets;
pub mod audit;
pub mod auth;
pub mod chart;
pub mod cli;
pub mod client;
pub mod compress;
pub mod config;
pub mod cookies;
pub mod demo;
pub mod direct;
pub mod doctor;
pub mod error;
pub mod extract;
pub mod format;
pub mod grpc;
pub mod health;
mod history;
pub mod icon;
pub mod idempotency;
mod keys;
pub mod live;
pub mod metrics;
pub mod middleware;
pub mod openapi;
pub mod otel;
pub mod outbound;
pub mod page;
pub mod pages;
mod process;
pub mod protected;
pub mod qr;
pub mod rate_limit;
mod refusal;
pub mod requests;
pub mod routes;
pub mod seal;
pub mod search;
pub mod series;
pub mod serve;
pub mod service;
pub mod settings;
pub mod sse;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
pub mod time;
pub mod ui;
pub mod webhook;

pub use app::{App, AppParts, app, document};
pub use error::ApiError;
pub use refusal::read_json;
pub use routes::{BodyLimit, Routes};
pub use service::Service;
pub use settings::Settings;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
