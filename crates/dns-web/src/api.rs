//! The resolver over HTTP: request and response types, handlers, and who may call them.
//!
//! Handlers extract, call the `dns` crate and translate; nothing here decides anything about a query.
//! `status.rs` is about this instance, `doh.rs` DNS over HTTPS, `queries.rs` the log, `statistics.rs` all
//! instances together, `cache.rs` answers that are kept, `upstreams.rs` the servers that queries are
//! forwarded to, `why.rs` single decisions, `problems.rs` what is wrong. The policy is `policy.rs` as a whole,
//! `transfer.rs` its way in and out; `parts.rs`, `patches.rs`, `lists.rs`, `services.rs`, `devices.rs`, `pauses.rs` and
//! `shapes.rs` are about its parts.

pub(crate) mod cache;
pub(crate) mod devices;
pub(crate) mod doh;
pub(crate) mod lists;
mod parts;
mod patches;
mod pauses;
mod policy;
pub(crate) mod problems;
pub(crate) mod queries;
mod scope;
pub(crate) mod services;
mod shapes;
pub(crate) mod statistics;
mod status;
mod transfer;
pub(crate) mod upstreams;
pub(crate) mod why;

use web::Routes;

use crate::service::DnsState;

/// The routes.
pub(crate) fn routes() -> Routes<DnsState> {
    status::routes()
        .merge(queries::routes())
        .merge(statistics::routes())
        .merge(cache::routes())
        .merge(upstreams::routes())
        .merge(why::routes())
        .merge(policy::routes())
        .merge(parts::routes())
        .merge(pauses::routes())
        .merge(patches::routes())
        .merge(lists::routes())
        .merge(services::routes())
        .merge(devices::routes())
        .merge(problems::routes())
        .merge(transfer::routes())
}
