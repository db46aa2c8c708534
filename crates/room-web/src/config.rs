//! Settings of the waiting room and of its guard.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use room::QueueId;
use web::config::value::{Bounds, Bytes, MaybeNumber, MaybeRate, Networks, Value, items};

use crate::proxy::{OpenPath, OriginServer, QueueRoute};

web::settings! {
    /// The waiting room.
    room: RoomSettings {
        /// File with the secret that seals the signing keys in the store: 64 hexadecimal digits,
        /// the same for all instances on one store. `TIDEGATE_ROOM_SECRET` with the digits
        /// themselves comes first. Empty: the file `room-secret` in the data folder, made at first
        /// start; a second instance on the same store needs a copy of it and says so.
        secret_file: PathBuf = "", restart;
        /// File with the private key that signs passes, in PEM: RSA of 2,048 bits and more makes them
        /// RS256, Ed25519 makes them EdDSA. It becomes the signing key at start, if it is not that
        /// already; name the same file on all instances. Empty: the key that signs stays, which is
        /// an Ed25519 key made at first start unless `tidegate room pass-key` chose another.
        pass_key_file: PathBuf = "", restart;
        /// Issuer of passes (`iss`).
        issuer: String = "tidegate", restart;
        /// Interval of admissions and maintenance. The limits do not depend on it.
        tick: Duration = "100ms", "10ms" ..= "1s", restart;
        /// Gap in maintenance that counts as an outage, after which clocks start afresh.
        stall: Duration = "10s", "1s" ..= "10m", restart;
        /// Time for which a repeated idempotency key finds its position.
        idempotency: Duration = "10m", "1m" ..= "1d", restart;
        /// Visitors one network (an IPv4 address, an IPv6 /64) may enqueue per minute. 0 means no limit.
        /// Behind a proxy set `http.trusted_proxies`, or all visitors count as one network.
        enqueues_per_minute: u32 = "600", "0" ..= "1000", live;
        /// Waiting visitors of a queue beyond which webhooks are notified (`room.line_long`). 0 means never.
        alert_waiting: u64 = "10000", "0" ..= "1000000000", live;
        /// Time without an admission, while visitors wait, after which webhooks are notified
        /// (`room.admissions_stopped`). 0 means never.
        alert_stopped: Duration = "5m", "0s" ..= "1d", live;
    }
}

web::settings! {
    /// The built-in reverse proxy in front of a site. `tidegate room guard` sets these by flags.
    guard: GuardSettings {
        /// URL of the site, such as `http://127.0.0.1:3000` or `https://shop.internal`. Empty:
        /// nothing is guarded.
        origin: MaybeOrigin = "", restart;
        /// Certificate authorities (PEM) that verify a site over https, instead of the system's.
        origin_ca: PathBuf = "", restart;
        /// Address and port for visitors.
        listen: SocketAddr = "127.0.0.1:8080", restart;
        /// Queue of the visitors; created at start if it does not exist.
        queue: QueueName = "site", restart;
        /// Parts of the site with queues of their own, such as `/checkout = checkout` or
        /// `tickets.example = tickets`: a host, a path with all below it, or both. The most specific
        /// one applies. These queues are created with default settings if they do not exist. The queue's
        /// name may be followed by `case-sensitive` and `encoded-slashes`.
        routes: RouteList = "", restart;
        /// Rate of admission, such as `500/m`. Applied when the queue is created and when this setting
        /// changes; changes made to the running queue are kept otherwise.
        rate: MaybeRate = "", restart;
        /// Visitors admitted or active at once; 0 is no limit. Applied as `rate` is.
        max_active: MaybeNumber = "", restart;
        /// Treatment of newcomers while the store is unavailable: `open` lets them through, `closed`
        /// answers 503. Visitors with a valid pass are let through in any case.
        when_down: WhenDown = "closed", restart;
        /// `Host` sent to the site: `keep` the visitor's, or that of the `origin`.
        host: HostPolicy = "keep", restart;
        /// Paths that need no pass, such as `/healthz`; `/static/*` stands for all below it.
        open_paths: OpenPaths = "/robots.txt,/favicon.ico,/.well-known/*", restart;
        /// Networks that need no pass, such as those of the site's monitoring.
        open_networks: Networks = "", restart;
        /// File with tokens, one per line: programs that send one in the header `X-WR-Bypass` need no
        /// pass.
        bypass_file: PathBuf = "", restart;
        /// Largest request body; 0 means no limit.
        max_body: Bytes = "100mb", "0" ..= "1tb", restart;
        /// Timeout of connecting to the site.
        connect_timeout: Duration = "5s", "100ms" ..= "1m", restart;
        /// Timeout of the site's response headers, and of the next piece of a visitor's request body. A
        /// response may take any time to finish.
        answer_timeout: Duration = "60s", "1s" ..= "1h", restart;
        /// Idle timeout of a WebSocket, in both directions. Its session can expire before: an open socket
        /// alone is no activity.
        socket_idle_timeout: Duration = "10m", "1s" ..= "1d", restart;
    }
}

/// URL of a site, or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaybeOrigin(pub Option<OriginServer>);

impl Value for MaybeOrigin {
    fn kind() -> &'static str {
        "`http://host:port` or `https://host`"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<MaybeOrigin, String> {
        (!text.is_empty()).then(|| OriginServer::parse(text)).transpose().map(MaybeOrigin)
    }
}

/// The name of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueName(pub QueueId);

impl Value for QueueName {
    fn kind() -> &'static str {
        "name of a queue (a-z, 0-9 and -, up to 63)"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<QueueName, String> {
        QueueId::parse(text).map(QueueName).map_err(|error| error.to_string())
    }
}

/// Paths of a site that need no pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenPaths(pub Vec<OpenPath>);

impl Value for OpenPaths {
    fn kind() -> &'static str {
        "list of paths"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<OpenPaths, String> {
        items(text).map(OpenPath::parse).collect::<Result<_, _>>().map(OpenPaths)
    }
}

/// Parts of a site with queues of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteList(pub Vec<QueueRoute>);

impl Value for RouteList {
    fn kind() -> &'static str {
        "list of `host/path = queue`"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<RouteList, String> {
        items(text).map(QueueRoute::parse).collect::<Result<_, _>>().map(RouteList)
    }
}

web::words! {
    /// Treatment of newcomers while the store is unavailable.
    WhenDown {
        /// They are let through.
        Open = "open",
        /// They are turned away.
        Closed = "closed",
    }
}

web::words! {
    /// Host sent to a guarded site.
    HostPolicy {
        /// The visitor's.
        Keep = "keep",
        /// Its own.
        Origin = "origin",
    }
}
