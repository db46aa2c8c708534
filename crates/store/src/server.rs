//! Stores that are servers, reached by redis-rs.
//!
//! `server/single.rs` is one address. Each kind knows how to open a connection with the settings
//! made here; how a connection is kept is in `link.rs`.

pub(crate) mod single;

use std::time::Duration;

use redis::{AsyncConnectionConfig, ConnectionInfo, io::tcp::TcpSettings};

use crate::{Error, Timeouts};

/// The parsed form of a single server's URL, with our transport settings.
pub(crate) fn connection_info(url: &str) -> Result<ConnectionInfo, Error> {
    let info = redis::IntoConnectionInfo::into_connection_info(url)?;
    let settings =
        info.redis_settings().clone().set_lib_name("tidegate", env!("CARGO_PKG_VERSION"));
    Ok(info.set_tcp_settings(tcp_settings()).set_redis_settings(settings))
}

/// No delay for small packets, and a dead peer is noticed by the kernel too.
pub(crate) fn tcp_settings() -> TcpSettings {
    let keepalive = redis::io::tcp::socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5));
    TcpSettings::default().set_nodelay(true).set_keepalive(keepalive)
}

/// Settings of a connection for ordinary calls.
pub(crate) fn calls(timeouts: Timeouts) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(timeouts.connect))
        .set_response_timeout(Some(timeouts.response))
        // Enough for a burst of web requests; past it callers wait, which the deadline bounds.
        .set_pipeline_buffer_size(1024)
}

/// An address as an operator would write it, without secrets.
pub(crate) fn shown(info: &ConnectionInfo) -> String {
    info.addr().to_string()
}
