//! Settings, in tables.
//!
//! A table is the only place a setting is named: its typed struct, the names in file and environment,
//! the checks, `tidegate config show` and docs/configuration.md all come from it. The frame's tables
//! are here, a service's are in its `config.rs`. Values come from, strongest first: flags,
//! environment, file, default. Read [`settings!`](macro@crate::settings), then `value.rs` (kinds of
//! values), `load.rs` (where values come from), `reference.rs` (the page).

pub mod load;
pub mod reference;
pub mod value;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderName;

use self::load::Problem;
use self::value::{Bytes, Listen, LogFormat, LogLevels, Networks, ServiceNames, StoreUrl};
use crate::otel::{CollectorHeaders, CollectorUrl, OtlpProtocol, SampleRatio, ServiceLabel};
use crate::service::{Service, Services};

pub use self::load::Values;

/// A row of a table.
#[derive(Debug)]
pub struct Setting {
    /// `section.field`, as in the file.
    pub name: &'static str,
    /// Description, one or two sentences.
    pub doc: &'static [&'static str],
    /// Kind of value, for people.
    pub kind: fn() -> &'static str,
    /// The default, as text.
    pub default: &'static str,
    /// Least and most, as text, where the kind has an order.
    pub bounds: value::Bounds<'static>,
    /// True if a running server takes a new value on SIGHUP.
    pub live: bool,
    /// Checks a text against kind and bounds.
    pub check: value::Check,
    /// Returns a text as it may be shown, without secrets.
    pub shown: fn(&str) -> String,
}

impl Setting {
    /// The environment variable that sets it.
    pub fn env(&self) -> String {
        format!("TIDEGATE_{}", self.name.replace('.', "_").to_uppercase())
    }
}

/// A table of settings.
#[derive(Debug)]
pub struct Section {
    /// Its name in the file.
    pub name: &'static str,
    /// Description.
    pub doc: &'static [&'static str],
    /// Its rows.
    pub settings: &'static [Setting],
}

/// All tables: the frame's and those of the services.
pub fn sections(services: Services) -> impl Iterator<Item = &'static Section> + Clone {
    FRAME.iter().chain(services.iter().flat_map(|service| service.sections())).copied()
}

/// All rows of all tables.
pub fn settings(services: Services) -> impl Iterator<Item = &'static Setting> + Clone {
    sections(services).flat_map(|section| section.settings)
}

/// Declares a table of settings: the typed struct, and the [`Section`] with its rows.
///
/// ```
/// tidegate_web::settings! {
///     /// The example service.
///     example: ExampleSettings {
///         /// Time between two rounds.
///         interval: std::time::Duration = "10s", "1s" ..= "1h", live;
///         /// Name shown on pages.
///         title: String = "Example", restart;
///     }
/// }
/// assert_eq!(ExampleSettings::SECTION.settings[0].name, "example.interval");
/// ```
#[macro_export]
macro_rules! settings {
    (
        $(#[doc = $section_doc:literal])*
        $section:ident: $Struct:ident {
            $( $(#[doc = $doc:literal])*
               $field:ident: $ty:ty = $default:literal $(, $least:literal ..= $most:literal)?, $reload:ident; )*
        }
    ) => {
        $(#[doc = $section_doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $Struct {
            $( $(#[doc = $doc])* pub $field: $ty, )*
        }

        impl $Struct {
            /// The table.
            pub const SECTION: $crate::config::Section = $crate::config::Section {
                name: stringify!($section),
                doc: &[$($section_doc),*],
                settings: &[$(
                    $crate::config::Setting {
                        name: concat!(stringify!($section), ".", stringify!($field)),
                        doc: &[$($doc),*],
                        kind: <$ty as $crate::config::value::Value>::kind,
                        default: $default,
                        bounds: $crate::settings!(@bounds $($least $most)?),
                        live: $crate::settings!(@live $reload),
                        check: $crate::config::value::check::<$ty>,
                        shown: <$ty as $crate::config::value::Value>::shown,
                    },
                )*],
            };

            /// Reads the settings from texts that passed the checks.
            pub fn read(values: &$crate::config::Values) -> Result<Self, $crate::config::load::Problem> {
                Ok($Struct { $(
                    $field: values.parse(
                        concat!(stringify!($section), ".", stringify!($field)),
                        $crate::settings!(@bounds $($least $most)?),
                    )?,
                )* })
            }
        }
    };
    (@bounds) => { None };
    (@bounds $least:literal $most:literal) => { Some(($least, $most)) };
    (@live live) => { true };
    (@live restart) => { false };
}

crate::settings! {
    /// This process.
    server: ServerSettings {
        /// Folder for the built-in store, the admin token and keys. Made at first start, closed to
        /// other users.
        data: PathBuf = "./tidegate-data", restart;
        /// Services to run here, separated by commas; the others stay off.
        only: ServiceNames = "all", restart;
        /// Name of this instance on pages and in logs; empty means the host's name.
        name: String = "", restart;
        /// Time a stop waits for requests in flight.
        drain: Duration = "20s", "0s" ..= "10m", live;
    }
}

crate::settings! {
    /// The store of all data.
    store: StoreSettings {
        /// The store: `embedded:PATH` (built in, on disk), `embedded:` (built in, memory only),
        /// `redis://`, `rediss://`, `redis+sentinel://h1,h2/NAME` or `redis+cluster://h1,h2`.
        /// `{data}` stands for the data folder.
        url: StoreUrl = "embedded:{data}", restart;
        /// Policy for fsync of the built-in store's log: `always` (before the reply),
        /// `everysec` (a power cut may cost a second, and 15 of caches and histories), `no` (the kernel
        /// decides). A killed process loses nothing in any mode.
        fsync: store::Fsync = "everysec", restart;
        /// Memory the built-in store may use; when full, writes are refused and reads go on.
        /// 0 means no limit.
        max_memory: Bytes = "0", "0" ..= "1tb", restart;
        /// Eviction policy of the built-in store for full memory, in Redis's words. Anything but
        /// `noeviction` loses data the services rely on: only for a store used as a cache.
        max_memory_policy: store::EvictionPolicy = "noeviction", restart;
    }
}

crate::settings! {
    /// Dashboard, API and waiting room over HTTP.
    http: HttpSettings {
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
        /// Header timeout: time for the head of a request, from its first byte on.
        header_timeout: Duration = "10s", "1s" ..= "2m", live;
        /// Idle timeout: time a connection without a request is kept.
        idle_timeout: Duration = "75s", "1s" ..= "1h", live;
        /// Body timeout: time for a whole request body.
        body_timeout: Duration = "30s", "1s" ..= "10m", live;
        /// Write timeout: time a client may leave a full buffer unread before it is dropped.
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
}

crate::settings! {
    /// The built-in store for redis-cli and workers in other languages.
    resp: RespSettings {
        /// Address and port, or `off`. On loopback it is open, but for the keys that hold
        /// credentials; elsewhere it asks for the password in the file `store-password` of the data
        /// folder, which lifts that too.
        listen: Listen = "127.0.0.1:6380", restart;
        /// Speak TLS only, with the certificate of `http.tls_cert` and `http.tls_key`.
        tls: bool = "false", restart;
    }
}

crate::settings! {
    /// Logins and sessions.
    auth: AuthSettings {
        /// A dashboard session ends after this long without a request.
        session_idle: Duration = "8h", "1m" ..= "30d", live;
        /// A dashboard session ends after this long in any case.
        session_max: Duration = "7d", "5m" ..= "90d", live;
        /// Failed logins from one address before it is locked out.
        login_tries: u32 = "5", "1" ..= "100", live;
        /// Time that address is locked out.
        login_lock: Duration = "15m", "1s" ..= "1d", live;
    }
}

crate::settings! {
    /// The audit trail.
    audit: AuditSettings {
        /// Entries kept; the oldest go first.
        keep: u64 = "10000", "100" ..= "10000000", live;
    }
}

crate::settings! {
    /// Webhooks.
    webhooks: WebhookSettings {
        /// File with the secret that seals URLs and signing secrets of webhooks in the store: 64
        /// hexadecimal digits, the same for all instances on one store. Empty: the file
        /// `webhook-secret` in the data folder, made at first start.
        secret_file: PathBuf = "", restart;
        /// Networks that webhooks, e-mail and web push may be sent to though they are private, such as
        /// `10.0.0.0/8`.
        allowed_networks: Networks = "", live;
    }
}

crate::settings! {
    /// Traces, sent to an OpenTelemetry collector. See docs/tracing.md.
    otel: OtelSettings {
        /// The collector's OTLP address over HTTP, such as `http://127.0.0.1:4318`; a URL without a
        /// path gets `/v1/traces`. Empty: no trace is recorded and nothing is sent.
        endpoint: CollectorUrl = "", restart;
        /// Encoding of what is sent.
        protocol: OtlpProtocol = "http/protobuf", restart;
        /// Headers sent along, such as `authorization=Bearer%20TOKEN`: names and values with `=`
        /// between, values percent-encoded where they hold commas or spaces. At most 16. Shown
        /// nowhere.
        headers: CollectorHeaders = "", restart;
        /// Name of this service in traces.
        service_name: ServiceLabel = "tidegate", restart;
        /// Share of the traces that begin here which are recorded. A request that brings a
        /// `traceparent` is recorded if its caller records it.
        sample_ratio: SampleRatio = "1", "0" ..= "1", restart;
    }
}

crate::settings! {
    /// The log, on standard error.
    log: LogSettings {
        /// `error`, `warn`, `info`, `debug` or `trace`, also by part: `info,room=debug`.
        level: LogLevels = "info", live;
        /// `text` for people, `json` for programs.
        format: LogFormat = "text", restart;
    }
}

/// The frame's tables.
const FRAME: &[&Section] = &[
    &ServerSettings::SECTION,
    &StoreSettings::SECTION,
    &HttpSettings::SECTION,
    &RespSettings::SECTION,
    &AuthSettings::SECTION,
    &AuditSettings::SECTION,
    &WebhookSettings::SECTION,
    &OtelSettings::SECTION,
    &LogSettings::SECTION,
];

/// The settings of the frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// This process.
    pub server: ServerSettings,
    /// The store of all data.
    pub store: StoreSettings,
    /// Dashboard, API and waiting room over HTTP.
    pub http: HttpSettings,
    /// The built-in store for redis-cli and workers in other languages.
    pub resp: RespSettings,
    /// Logins and sessions.
    pub auth: AuthSettings,
    /// The audit trail.
    pub audit: AuditSettings,
    /// Webhooks.
    pub webhooks: WebhookSettings,
    /// Traces, sent to an OpenTelemetry collector.
    pub otel: OtelSettings,
    /// The log, on standard error.
    pub log: LogSettings,
}

impl Config {
    /// Reads the settings from texts that passed the checks.
    pub fn read(values: &Values) -> Result<Config, Problem> {
        Ok(Config {
            server: ServerSettings::read(values)?,
            store: StoreSettings::read(values)?,
            http: HttpSettings::read(values)?,
            resp: RespSettings::read(values)?,
            auth: AuthSettings::read(values)?,
            audit: AuditSettings::read(values)?,
            webhooks: WebhookSettings::read(values)?,
            otel: OtelSettings::read(values)?,
            log: LogSettings::read(values)?,
        })
    }

    /// The URL of the store, with the data folder filled in.
    pub fn store_url(&self) -> String {
        self.store.url.0.replace("{data}", &self.server.data.display().to_string())
    }

    /// The folder of the built-in store, if the data is in one.
    pub fn store_folder(&self) -> Option<PathBuf> {
        let url = self.store_url();
        url.strip_prefix("embedded:").filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    /// Tells whether a service is to run here.
    pub fn runs(&self, service: &dyn Service) -> bool {
        !service.is_optional() || self.server.only.contain(service.name())
    }
}
