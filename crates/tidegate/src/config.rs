//! Every setting, in one table.
//!
//! The table below is the only place a setting is named: the typed [`Config`], the names in file
//! and environment, the checks, `tidegate config show` and docs/configuration.md all come from it.
//! Values come from, strongest first: flags, environment, file, default. Read the table, then
//! `value.rs` (kinds of values), `load.rs` (where values come from), `reference.rs` (the page).

pub(crate) mod load;
pub(crate) mod reference;
pub(crate) mod value;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderName;

use self::value::{
    Bytes, Fsync, HostPolicy, Listen, LogFormat, MaybeNumber, MaybeRate, MemoryPolicy, Networks,
    OpenPaths, Routes, Service, SiteOrigin, Value, WhenDown,
};

/// One row of the table.
#[derive(Debug)]
pub(crate) struct Setting {
    /// `section.field`, as in the file.
    pub(crate) name: &'static str,
    /// What it decides, one or two sentences.
    pub(crate) doc: &'static [&'static str],
    /// Kind of value, for people.
    pub(crate) kind: fn() -> &'static str,
    /// The default, as text.
    pub(crate) default: &'static str,
    /// Least and most, as text, where the kind has an order.
    pub(crate) bounds: Option<(&'static str, &'static str)>,
    /// Whether a running server takes a new value on SIGHUP.
    pub(crate) live: bool,
    /// Checks a text against kind and bounds.
    pub(crate) check: value::Check,
}

impl Setting {
    /// The environment variable that sets it.
    pub(crate) fn env(&self) -> String {
        format!("TIDEGATE_{}", self.name.replace('.', "_").to_uppercase())
    }
}

macro_rules! settings {
    ($(
        $(#[doc = $section_doc:literal])*
        $section:ident: $Struct:ident {
            $( $(#[doc = $doc:literal])*
               $field:ident: $ty:ty = $default:literal $(, $least:literal ..= $most:literal)?, $reload:ident; )*
        }
    )*) => {
        /// The settings as values. Built by [`Config::build`] from texts that passed the checks.
        #[derive(Debug, Clone, PartialEq)]
        pub(crate) struct Config {
            $( $(#[doc = $section_doc])* pub(crate) $section: $Struct, )*
        }

        $(
            $(#[doc = $section_doc])*
            #[derive(Debug, Clone, PartialEq)]
            pub(crate) struct $Struct {
                $( $(#[doc = $doc])* pub(crate) $field: $ty, )*
            }
        )*

        /// The table.
        pub(crate) const SETTINGS: &[Setting] = &[$($(
            Setting {
                name: concat!(stringify!($section), ".", stringify!($field)),
                doc: &[$($doc),*],
                kind: <$ty as Value>::kind,
                default: $default,
                bounds: settings!(@bounds $($least $most)?),
                live: settings!(@live $reload),
                check: value::check::<$ty>,
            },
        )*)*];

        /// What each section is about.
        pub(crate) const SECTIONS: &[(&str, &[&str])] =
            &[$( (stringify!($section), &[$($section_doc),*]) ),*];

        impl Config {
            /// Builds the settings from texts by name.
            pub(crate) fn build(text: impl Fn(&str) -> String) -> Result<Config, String> {
                Ok(Config { $( $section: $Struct { $(
                    $field: {
                        let name = concat!(stringify!($section), ".", stringify!($field));
                        let bounds: Option<(&str, &str)> = settings!(@bounds $($least $most)?);
                        <$ty as Value>::parse(&text(name), bounds)
                            .map_err(|why| format!("{name}: {why}"))?
                    },
                )* }, )* })
            }
        }
    };
    (@bounds) => { None };
    (@bounds $least:literal $most:literal) => { Some(($least, $most)) };
    (@live live) => { true };
    (@live restart) => { false };
}

settings! {
    /// This process.
    server: ServerConfig {
        /// Folder for the built-in store, the admin token and keys. Made at first start, closed to
        /// other users.
        data: PathBuf = "./tidegate-data", restart;
        /// Services to run here; the others stay off.
        only: Vec<Service> = "room,jobs", restart;
        /// Name of this instance on pages and in logs; empty means the host's name.
        name: String = "", restart;
        /// How long a stop waits for requests under way.
        drain: Duration = "20s", "0s" ..= "10m", live;
    }
    /// Where the data is.
    store: StoreConfig {
        /// The store: `embedded:PATH` (built in, on disk), `embedded:` (built in, memory only),
        /// `redis://`, `rediss://`, `redis+sentinel://h1,h2/NAME` or `redis+cluster://h1,h2`.
        /// `{data}` stands for the data folder.
        url: String = "embedded:{data}", restart;
        /// When the built-in store forces its log to the disk: `always` (before the reply),
        /// `everysec` (a power cut may cost a second), `no` (the kernel decides). A killed process
        /// loses nothing in any mode.
        fsync: Fsync = "everysec", restart;
        /// Memory the built-in store may use; when full, writes are refused and reads go on.
        /// 0 means no limit.
        max_memory: Bytes = "0", "0" ..= "1tb", restart;
        /// What the built-in store does when that memory is full, in Redis's words. Anything but
        /// `noeviction` loses data the services rely on: only for a store used as a cache.
        max_memory_policy: MemoryPolicy = "noeviction", restart;
    }
    /// Dashboard, API and waiting room over HTTP.
    http: HttpConfig {
        /// Address and port. Port 0 takes any free one and prints it.
        listen: SocketAddr = "127.0.0.1:7070", restart;
        /// Proxies that say who the client is, as networks. Nobody else's word counts.
        trusted_proxies: Networks = "", live;
        /// The one header in which they say it, such as `X-Forwarded-For`, `Forwarded`, `X-Real-IP`
        /// or `CF-Connecting-IP`. The proxy must set it or add to it in every request. Every other
        /// header of this kind is ignored, and not forwarded to a guarded site.
        client_address_header: HeaderName = "X-Forwarded-For", live;
        /// Certificate chain in PEM, which switches TLS on. Read again on SIGHUP.
        tls_cert: PathBuf = "", restart;
        /// Private key of the certificate in PEM.
        tls_key: PathBuf = "", restart;
        /// Largest request body.
        max_body: Bytes = "1mb", "1kb" ..= "64mb", live;
        /// How long the head of a request may take, from its first byte on.
        header_timeout: Duration = "10s", "1s" ..= "2m", live;
        /// How long a connection without a request is kept.
        idle_timeout: Duration = "75s", "1s" ..= "1h", live;
        /// How long a request body may take.
        body_timeout: Duration = "30s", "1s" ..= "10m", live;
        /// How long a client may leave a full buffer unread before it is dropped.
        write_timeout: Duration = "30s", "1s" ..= "10m", live;
        /// Open connections in all.
        max_connections: usize = "16384", "16" ..= "1000000", live;
        /// Open connections from one address (IPv6: one /64); loopback and trusted proxies are
        /// exempt.
        max_connections_per_address: usize = "512", "1" ..= "1000000", live;
        /// Streams at once on one HTTP/2 connection.
        http2_max_streams: u32 = "128", "1" ..= "10000", live;
        /// Let anybody read `/metrics`, without a token.
        open_metrics: bool = "false", live;
    }
    /// The built-in store for redis-cli and workers in other languages.
    resp: RespConfig {
        /// Address and port, or `off`. On loopback it is open, but for the keys that hold
        /// credentials; elsewhere it asks for the password in the file `store-password` of the data
        /// folder, which lifts that too.
        listen: Listen = "127.0.0.1:6380", restart;
        /// Speak TLS only, with the certificate of `http.tls_cert` and `http.tls_key`.
        tls: bool = "false", restart;
    }
    /// The waiting room.
    room: RoomConfig {
        /// File with the secret that seals the signing keys in the store: 64 hexadecimal digits,
        /// the same for all instances on one store. `TIDEGATE_ROOM_SECRET` with the digits
        /// themselves comes first. Empty: the file `room-secret` in the data folder, made at first
        /// start; a second instance on the same store needs a copy of it and says so.
        secret_file: PathBuf = "", restart;
        /// Who signs passes (`iss`).
        issuer: String = "tidegate", restart;
        /// How often people are let in and places looked after. The limits do not depend on it.
        tick: Duration = "100ms", "10ms" ..= "1s", restart;
        /// A gap in that work after which it counts as an outage and clocks start afresh.
        stall: Duration = "10s", "1s" ..= "10m", restart;
        /// How long a repeated idempotency key finds its place.
        idempotency: Duration = "10m", "1m" ..= "1d", restart;
        /// Places one network (an IPv4 address, an IPv6 /64) may take in a minute. 0 means no limit.
        /// Behind a proxy set `http.trusted_proxies`, or all visitors count as one network.
        joins_per_minute: u32 = "600", "0" ..= "1000", live;
    }
    /// The job queue.
    jobs: JobsConfig {
        /// Whose keys: every key of the queue starts with it. v1 clients use `bridge`.
        namespace: String = "bridge", restart;
        /// How long a worker that says nothing keeps a job; then somebody else gets it.
        lock_ttl: Duration = "30s", "1s" ..= "1d", restart;
        /// How often workers in this process tell that they live. Less than `lock_ttl`.
        heartbeat: Duration = "10s", "100ms" ..= "1d", restart;
        /// How long results are kept.
        result_ttl: Duration = "1d", "1s" ..= "365d", restart;
        /// Ended jobs kept at most; the oldest go first.
        keep_finished: usize = "100000", "0" ..= "100000000", restart;
        /// How long ended jobs are kept.
        keep_finished_for: Duration = "1d", "1s" ..= "365d", restart;
        /// Dead letters kept at most; the oldest go first.
        keep_dead: usize = "10000", "0" ..= "100000000", restart;
        /// How long dead letters are kept.
        keep_dead_for: Duration = "30d", "1s" ..= "3650d", restart;
        /// Events kept, about; 0 writes none.
        events: usize = "10000", "0" ..= "10000000", restart;
        /// Failed attempts remembered of each job.
        history: usize = "20", "1" ..= "1000", restart;
        /// Log lines kept of each job.
        log_lines: usize = "200", "1" ..= "10000", restart;
        /// How often a job may take its worker down before it is put away as poison.
        poison_after: u32 = "3", "1" ..= "1000", restart;
        /// How long an id without data, as some v1 producers leave behind for a moment, may stand
        /// in line before it is dropped.
        limbo: Duration = "1m", "1s" ..= "1d", restart;
        /// Write every field of a job as v1 does, also those at their default. Costs memory.
        full_jobs: bool = "false", restart;
    }
    /// The built-in reverse proxy in front of a site. `tidegate room guard` sets these by flags.
    guard: GuardConfig {
        /// Where the site is, such as `http://127.0.0.1:3000` or `https://shop.internal`. Empty:
        /// nothing is guarded.
        origin: SiteOrigin = "", restart;
        /// Certificates in PEM by which a site over https is known, instead of the system's.
        origin_ca: PathBuf = "", restart;
        /// Address and port visitors come to.
        listen: SocketAddr = "127.0.0.1:8080", restart;
        /// The queue visitors wait in; made at start if it is not there.
        queue: String = "site", restart;
        /// Parts of the site with queues of their own, such as `/checkout = checkout` or
        /// `tickets.example = tickets`: a host, a path with all below it, or both. The nearest one
        /// counts. These queues are made with default settings if they are not there. Behind the
        /// queue's name may stand `case-sensitive` and `encoded-slashes`.
        routes: Routes = "", restart;
        /// How fast people are let in, such as `500/m`. Counts when the queue is made and when this
        /// setting changes; what was changed in the running queue stays otherwise.
        rate: MaybeRate = "", restart;
        /// People inside at once; 0 is no limit. Counts as `rate` does.
        max_active: MaybeNumber = "", restart;
        /// What becomes of newcomers while the store is away: `open` lets them through, `closed`
        /// turns them away with 503. Visitors with a pass are let through in any case.
        when_down: WhenDown = "closed", restart;
        /// Which `Host` the site sees: `keep` the visitor's, or that of the `origin`.
        host: HostPolicy = "keep", restart;
        /// Paths that need no pass, such as `/healthz`; `/static/*` stands for all below it.
        open_paths: OpenPaths = "/robots.txt,/favicon.ico,/.well-known/*", restart;
        /// Networks that need no pass, such as those of the site's monitoring.
        open_networks: Networks = "", restart;
        /// File with tokens, one in a line: programs that show one in the header `X-WR-Bypass` need
        /// no pass.
        bypass_file: PathBuf = "", restart;
        /// Largest request body; 0 means no limit.
        max_body: Bytes = "100mb", "0" ..= "1tb", restart;
        /// How long connecting to the site may take.
        connect_timeout: Duration = "5s", "100ms" ..= "1m", restart;
        /// How long the site may take to begin its answer, and a visitor to send the next piece of
        /// a request. Answers may last as long as they like.
        answer_timeout: Duration = "60s", "1s" ..= "1h", restart;
        /// How long a WebSocket may be without a byte in either direction before it is closed. Its
        /// session can run out before: an open socket alone is no activity.
        socket_idle_timeout: Duration = "10m", "1s" ..= "1d", restart;
    }
    /// Who gets in.
    auth: AuthConfig {
        /// A dashboard session ends after this long without a request.
        session_idle: Duration = "8h", "1m" ..= "30d", live;
        /// A dashboard session ends after this long in any case.
        session_max: Duration = "7d", "5m" ..= "90d", live;
        /// Failed logins from one address before it is locked out.
        login_tries: u32 = "5", "1" ..= "100", live;
        /// How long that address is locked out.
        login_lock: Duration = "15m", "1s" ..= "1d", live;
    }
    /// Who changed what.
    audit: AuditConfig {
        /// Entries kept; the oldest go first.
        keep: u64 = "10000", "100" ..= "10000000", live;
    }
    /// What the process says about itself, on standard error.
    log: LogConfig {
        /// `error`, `warn`, `info`, `debug` or `trace`, also by part: `info,room=debug`.
        level: String = "info", live;
        /// `text` for people, `json` for programs.
        format: LogFormat = "text", restart;
    }
}

impl Config {
    /// Where the data is, with the data folder filled in.
    pub(crate) fn store_url(&self) -> String {
        self.store.url.replace("{data}", &self.server.data.display().to_string())
    }

    /// The folder of the built-in store, if the data is in one.
    pub(crate) fn store_folder(&self) -> Option<PathBuf> {
        let url = self.store_url();
        url.strip_prefix("embedded:").filter(|path| !path.is_empty()).map(PathBuf::from)
    }
}
