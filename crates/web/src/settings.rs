//! Settings of the HTTP side. Plain data with documented defaults; the binary fills
//! it from file, environment and flags, and may swap it while the server runs.

use std::net::IpAddr;
use std::time::Duration;

use axum::http::HeaderName;
use ipnet::IpNet;

/// Settings of the HTTP side. Swapped whole on reload, so a request sees one consistent set.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Largest request body in bytes. Larger ones get 413 before they are read.
    pub max_body: usize,
    /// Body timeout: time for a whole request body to arrive.
    pub body_timeout: Duration,
    /// Header timeout: time for a request head to arrive, from its first byte on.
    pub header_timeout: Duration,
    /// Idle timeout: time a connection without a request is kept.
    pub idle_timeout: Duration,
    /// Write timeout: time a client may leave a full send buffer untouched before it is dropped.
    pub write_timeout: Duration,
    /// Open connections in all; further ones get 503 and are closed.
    pub max_connections: usize,
    /// Open connections from one address (IPv6: one /64). Loopback and trusted proxies are exempt.
    pub max_connections_per_address: usize,
    /// Concurrent streams on one HTTP/2 connection.
    pub http2_max_streams: u32,
    /// Proxies that say who the client is. Nobody else's word counts.
    pub trusted_proxies: Vec<IpNet>,
    /// The one header in which they say it. Every other forwarding header is ignored.
    pub client_address_header: HeaderName,
    /// Let anybody read `/metrics`. Off: a token with role viewer is needed.
    pub open_metrics: bool,
    /// A dashboard session ends after this long without a request.
    pub session_idle: Duration,
    /// A dashboard session ends after this long in any case.
    pub session_max: Duration,
    /// Failed logins from one address before it is locked out.
    pub login_tries: u32,
    /// Time that address is locked out.
    pub login_lock: Duration,
    /// Entries kept in the audit trail; the oldest go first.
    pub audit_keep: u64,
    /// Networks that webhooks may be sent to though they are private.
    pub webhook_networks: Vec<IpNet>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_body: 1024 * 1024,
            body_timeout: Duration::from_secs(30),
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(30),
            max_connections: 16_384,
            max_connections_per_address: 512,
            http2_max_streams: 128,
            trusted_proxies: Vec::new(),
            client_address_header: HeaderName::from_static("x-forwarded-for"),
            open_metrics: false,
            session_idle: Duration::from_secs(8 * 3600),
            session_max: Duration::from_secs(7 * 24 * 3600),
            login_tries: 5,
            login_lock: Duration::from_secs(15 * 60),
            audit_keep: 10_000,
            webhook_networks: Vec::new(),
        }
    }
}

impl Settings {
    /// Tells whether an address is a trusted proxy's.
    pub(crate) fn trusts(&self, ip: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|net| net.contains(&ip))
    }
}
