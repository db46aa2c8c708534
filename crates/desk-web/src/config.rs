//! Settings of the desk.

use std::sync::Arc;
use std::time::Duration;

use desk::{
    AppName, Prefix,
    limit::PolicySpec,
    users::{AddressStorage, UserOptions},
};
use lettre::message::Mailbox;
use web::config::AuthSettings;
use web::config::load::Problem;
use web::config::value::{Bounds, Bytes, SecretText, Value};
use web::rate_limit::HeaderStyle;
use web::requests::PathTemplates;

/// The start of every key, as a setting.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyPrefix(pub Prefix);

impl Value for KeyPrefix {
    fn kind() -> &'static str {
        "text that ends in `:`, without braces and spaces"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<KeyPrefix, String> {
        Prefix::parse(text).map(KeyPrefix).map_err(|error| error.to_string())
    }
}

/// Name of an app, as a setting.
#[derive(Debug, Clone, PartialEq)]
pub struct AppLabel(pub AppName);

impl Value for AppLabel {
    fn kind() -> &'static str {
        "name of an app (a-z, A-Z, 0-9, _, - and ., up to 64)"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<AppLabel, String> {
        AppName::parse(text).map(AppLabel).map_err(|error| error.to_string())
    }
}

/// Templates of paths, as a setting.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteTemplates(pub Arc<PathTemplates>);

impl Value for RouteTemplates {
    fn kind() -> &'static str {
        "list of templates such as `/users/:name` and `/static/*`"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<RouteTemplates, String> {
        PathTemplates::parse(text).map(|templates| RouteTemplates(Arc::new(templates)))
    }
}

web::words! {
    /// Programs that may report their traffic over OTLP.
    OtlpAccess {
        /// None.
        Off = "off",
        /// Those with a token.
        Token = "token",
        /// Those on the same machine; others with a token.
        Local = "local",
        /// Everybody who can reach the port.
        Open = "open",
    }
}

web::words! {
    /// The part of a client's address that is stored with a session.
    StoredAddress {
        /// The whole address.
        Full = "full",
        /// Its network: the /24 of an IPv4 address, the /48 of an IPv6 address.
        Truncated = "truncated",
        /// Nothing.
        None = "none",
    }
}

web::words! {
    /// The way agents are chosen for a waiting conversation.
    ChatAssignment {
        /// The one with the smallest share of capacity in use.
        LeastLoaded = "least_loaded",
        /// The one whose last assignment is longest ago.
        RoundRobin = "round_robin",
        /// The one who had the conversation before, if available.
        Sticky = "sticky",
        /// Nobody: agents take conversations themselves.
        Manual = "manual",
    }
}

/// Origins of pages that may embed the widget.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Origins(pub Vec<String>);

impl Value for Origins {
    fn kind() -> &'static str {
        "list of origins (`https://shop.example`)"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<Origins, String> {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        let check = |item: &str| {
            let host = item.strip_prefix("https://").or_else(|| item.strip_prefix("http://"));
            let is_host = host.is_some_and(|host| {
                !host.is_empty() && !host.contains(['/', ' ', '*', ';', '\'', '"', '?', '#'])
            });
            if is_host {
                Ok(item.to_owned())
            } else {
                Err(format!("{item:?} is not an origin such as https://shop.example"))
            }
        };
        items.map(check).collect::<Result<_, _>>().map(Origins)
    }
}

web::words! {
    /// Encryption of the connection to the SMTP server.
    SmtpTls {
        /// Begins plain and changes to TLS before anything is said; refused if the server cannot.
        Starttls = "starttls",
        /// TLS from the first byte.
        Tls = "tls",
        /// None.
        None = "none",
    }
}

/// The sender of e-mails: `Support <support@shop.example>`; none if it is empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MailSender(pub Option<Mailbox>);

impl Value for MailSender {
    fn kind() -> &'static str {
        "address such as `Support <support@shop.example>`"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<MailSender, String> {
        if text.trim().is_empty() {
            return Ok(MailSender(None));
        }
        let wrong = || format!("{text:?} is not an address such as support@shop.example");
        if text.contains(char::is_control) {
            return Err(wrong());
        }
        text.trim().parse().map(|mailbox| MailSender(Some(mailbox))).map_err(|_| wrong())
    }
}

/// The address of this program, without a slash at the end; empty if it is not known.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PublicUrl(pub String);

impl Value for PublicUrl {
    fn kind() -> &'static str {
        "URL without a path (`https://desk.shop.example`)"
    }

    fn parse(text: &str, bounds: Bounds<'_>) -> Result<PublicUrl, String> {
        let text = text.trim().trim_end_matches('/');
        // An origin is a URL without a path.
        match Origins::parse(text, bounds)?.0.as_slice() {
            [] => Ok(PublicUrl::default()),
            [one] if !one.contains('@') => Ok(PublicUrl(one.clone())),
            _ => Err(format!("{text:?} is not a URL such as https://desk.shop.example")),
        }
    }
}

web::settings! {
    /// Traffic, limits, users, sessions and the support chat.
    desk: DeskSettings {
        /// Start of every key of the desk. The variable `REDIS_KEY_PREFIX` counts when nothing else
        /// sets it.
        prefix: KeyPrefix = "ha:", restart;
        /// Name of the app under which requests that pass `tidegate room guard` are counted.
        app: AppLabel = "site", live;
        /// Templates of the paths of such requests, separated by commas; the first that matches counts.
        /// Without one, numbers, UUIDs and long hex strings become `:id`.
        routes: RouteTemplates = "", live;
        /// Apps whose traffic has a history of its own, beside this program's.
        history: usize = "20", "0" ..= "100", live;
        /// Programs that may report their traffic with OpenTelemetry (OTLP): `off`, `token` (a worker's
        /// token with scope `traffic`), `local` (without one from this machine) or `open` (everybody).
        otlp: OtlpAccess = "local", live;
        /// Endpoints of an app that have counters of their own; all others are counted as `OTHER`.
        max_endpoints: usize = "1000", "10" ..= "1000", live;
        /// The part of a client's address that is stored with a session: `full`, `truncated` (the
        /// network) or `none`.
        ip_address: StoredAddress = "truncated", live;
        /// A session of a user ends after this long without a request. Also the TTL of the user's hash.
        session_idle: Duration = "7d", "1m" ..= "366d", live;
        /// A session of a user ends after this long in any case.
        session_max: Duration = "30d", "1m" ..= "366d", live;
        /// Time after which the store counts as out of reach for a limit; then the policy's
        /// `when_store_down` decides.
        limit_timeout: Duration = "50ms", "1ms" ..= "10s", live;
        /// Headers of limited responses: `standard` (`RateLimit-Policy`, `RateLimit`), `legacy`
        /// (`X-RateLimit-*`) or `both`.
        limit_headers: HeaderStyle = "both", live;
        /// Archive of the chat: a SQLite file, or `postgres://user:password@host/database` for instances on
        /// several machines. `{data}` stands for the data folder.
        archive: String = "{data}/desk.sqlite3", restart;
        /// Folder of files that are sent in chats. `{data}` stands for the data folder.
        files: String = "{data}/desk-files", restart;
        /// Largest file that visitors and agents may send; `http.max_body` does not count for files.
        max_file_bytes: Bytes = "10mb", "1kb" ..= "64mb", live;
        /// Most bytes of files of one person.
        max_person_file_bytes: Bytes = "100mb", "1kb" ..= "1tb", live;
        /// Most bytes of all files.
        max_total_file_bytes: Bytes = "10gb", "1kb" ..= "1tb", live;
        /// Visitors without a login may chat; if not, only those that the site proves.
        anonymous_chat: bool = "true", live;
        /// Origins of pages that may embed the widget, separated by commas.
        widget_origins: Origins = "", live;
        /// Secret with which the site proves who its users are; empty accepts no proof.
        widget_secret: SecretText = "", live;
        /// The way agents are chosen: `least_loaded`, `round_robin`, `sticky` or `manual`.
        assignment: ChatAssignment = "least_loaded", live;
        /// Conversations that a new agent has at most at a time.
        default_capacity: u32 = "10", "1" ..= "100", live;
        /// A waiting conversation gets the next higher priority each time this passes; 0 never.
        ageing: Duration = "10m", "0s" ..= "7d", live;
        /// An agent who does not reply within this loses the conversation to another; 0 never.
        first_reply: Duration = "3m", "0s" ..= "7d", live;
        /// An agent who is offline for this loses the conversations that wait for a reply.
        offline_grace: Duration = "60s", "0s" ..= "1d", live;
        /// An agent without activity for this is away; 0 never.
        away_after: Duration = "10m", "0s" ..= "1d", live;
        /// A message to a conversation resolved at most this long ago reopens it; later it starts a new one.
        reopen: Duration = "7d", "0s" ..= "366d", live;
        /// Resolved conversations are deleted after this; 0 keeps them.
        retention: Duration = "0s", "0s" ..= "3650d", live;
        /// Host of the SMTP server that takes e-mail: answers to visitors who have left, transcripts,
        /// invitations. Empty: no e-mail. A private address must be in `webhooks.allowed_networks`.
        smtp_host: String = "", live;
        /// Its port: 587 with `starttls`, 465 with `tls`, as a rule.
        smtp_port: u16 = "587", "1" ..= "65535", live;
        /// Encryption: `starttls`, `tls` or `none`.
        smtp_tls: SmtpTls = "starttls", live;
        /// User at the SMTP server; empty logs in nobody. Not with `smtp_tls` `none`.
        smtp_user: String = "", live;
        /// Password of that user.
        smtp_password: SecretText = "", live;
        /// Sender of e-mails, such as `Support <support@shop.example>`. Needed with `smtp_host`.
        smtp_from: MailSender = "", live;
        /// An agent's answer follows a visitor who has left by e-mail after this long; those that come until
        /// then are in the same e-mail.
        email_delay: Duration = "2m", "1s" ..= "1d", live;
        /// Address of this program as visitors and agents reach it, for links in e-mails. Needed with
        /// `smtp_host`.
        public_url: PublicUrl = "", live;
        /// Agents may have their browsers notified while no tab of the console is open.
        push: bool = "true", live;
    }
}

impl DeskSettings {
    /// Refuses settings of e-mail that make no sense together.
    pub(crate) fn check_email(&self) -> Result<(), Problem> {
        let refuse = |name: &str, why: &str| Err(Problem::new(name, why));
        let host = self.smtp_host.trim();
        if host.is_empty() {
            let given = [
                ("desk.smtp_user", !self.smtp_user.is_empty()),
                ("desk.smtp_password", !self.smtp_password.is_empty()),
                ("desk.smtp_from", self.smtp_from.0.is_some()),
            ];
            return match given.iter().find(|(_, is_given)| *is_given) {
                Some((name, _)) => {
                    refuse(name, "it means nothing without desk.smtp_host; set that too")
                }
                None => Ok(()),
            };
        }
        if host.contains(|c: char| c.is_whitespace() || matches!(c, '/' | '@' | ',' | '"')) {
            return refuse("desk.smtp_host", "a host name or an address, without scheme and port");
        }
        if self.smtp_from.0.is_none() {
            return refuse("desk.smtp_host", "e-mail needs a sender; set desk.smtp_from");
        }
        if self.public_url.0.is_empty() {
            return refuse("desk.smtp_host", "e-mails have links; set desk.public_url");
        }
        if self.smtp_user.is_empty() != self.smtp_password.is_empty() {
            return refuse("desk.smtp_user", "desk.smtp_user and desk.smtp_password go together");
        }
        if !self.smtp_user.is_empty() && self.smtp_tls == SmtpTls::None {
            let why = "a password is not sent in the clear; set desk.smtp_tls to starttls or tls";
            return refuse("desk.smtp_tls", why);
        }
        Ok(())
    }

    /// The options of users and sessions.
    pub(crate) fn user_options(&self) -> UserOptions {
        UserOptions {
            session_idle: self.session_idle,
            session_max: self.session_max,
            ip_address: match self.ip_address {
                StoredAddress::Full => AddressStorage::Full,
                StoredAddress::Truncated => AddressStorage::Truncated,
                StoredAddress::None => AddressStorage::None,
            },
            ..UserOptions::default()
        }
    }
}

/// Policies of the product itself, as long as the store has none of their name.
pub(crate) fn default_policies(auth: &AuthSettings) -> Vec<PolicySpec> {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let lock_ms = millis(auth.login_lock);
    let login = |name: &str, limit: u32| PolicySpec {
        algorithm: "sliding".to_owned(),
        limit: limit.into(),
        window_ms: lock_ms,
        when_store_down: "closed".to_owned(),
        // A login may take its time; one that is denied because the store was slow locks people out.
        timeout_ms: Some(2_000),
        block_ms: Some(lock_ms),
        ..PolicySpec::named(name)
    };
    vec![
        PolicySpec { limit: 100, window_ms: 15 * 60_000, ..PolicySpec::named("api") },
        login("login_ip", auth.login_tries),
        login("login_account", auth.login_tries.saturating_mul(2)),
        PolicySpec {
            algorithm: "bucket".to_owned(),
            limit: 60,
            window_ms: 60_000,
            burst: Some(10),
            ..PolicySpec::named("message")
        },
        PolicySpec { limit: 10, window_ms: 60_000, ..PolicySpec::named("upload") },
        PolicySpec { limit: 30, window_ms: 60_000, ..PolicySpec::named("typing") },
        PolicySpec { limit: 10, window_ms: 60_000, ..PolicySpec::named("visitor_session") },
        PolicySpec { limit: 120, window_ms: 60_000, ..PolicySpec::named("widget") },
        PolicySpec { limit: 60, window_ms: 3_600_000, ..PolicySpec::named("visitor_update") },
        // A campus shares one address, so the limit per address is wider than that per person.
        PolicySpec { limit: 6, window_ms: 43_200_000, ..PolicySpec::named("new_conversation_ip") },
        PolicySpec { limit: 3, window_ms: 3_600_000, ..PolicySpec::named("new_conversation") },
        PolicySpec { limit: 5, window_ms: 3_600_000, ..PolicySpec::named("transcript") },
    ]
}

#[cfg(test)]
mod tests {
    use web::config::Values;

    use super::*;
    use crate::DeskService;

    fn with(change: impl FnOnce(&mut DeskSettings)) -> Result<(), String> {
        let mut settings = DeskSettings::read(&Values::defaults(&[&DeskService])).unwrap();
        change(&mut settings);
        settings.check_email().map_err(|problem| problem.name)
    }

    fn complete(settings: &mut DeskSettings) {
        settings.smtp_host = "mail.example".to_owned();
        settings.smtp_from = MailSender(Some("Support <a@shop.example>".parse().unwrap()));
        settings.public_url = PublicUrl("https://desk.example".to_owned());
    }

    #[test]
    fn settings_of_e_mail_that_make_no_sense_together_are_refused() {
        assert_eq!(with(|_| {}), Ok(()));
        assert_eq!(with(complete), Ok(()));
        let refused = |name: &str, change: &dyn Fn(&mut DeskSettings)| {
            assert_eq!(with(|settings| change(settings)), Err(name.to_owned()));
        };
        refused("desk.smtp_user", &|s| s.smtp_user = "me".to_owned());
        refused("desk.smtp_password", &|s| s.smtp_password = "x".into());
        refused("desk.smtp_from", &|s| {
            complete(s);
            s.smtp_host.clear();
        });
        refused("desk.smtp_host", &|s| {
            complete(s);
            s.smtp_from = MailSender(None);
        });
        refused("desk.smtp_host", &|s| {
            complete(s);
            s.public_url = PublicUrl::default();
        });
        refused("desk.smtp_host", &|s| {
            complete(s);
            s.smtp_host = "smtp://mail.example".to_owned();
        });
        refused("desk.smtp_user", &|s| {
            complete(s);
            s.smtp_user = "me".to_owned();
        });
        refused("desk.smtp_tls", &|s| {
            complete(s);
            (s.smtp_user, s.smtp_password) = ("me".to_owned(), "x".into());
            s.smtp_tls = SmtpTls::None;
        });
    }

    #[test]
    fn addresses_and_urls_are_read_or_refused() {
        let sender = |text: &str| MailSender::parse(text, Bounds::default());
        assert_eq!(sender("").unwrap(), MailSender(None));
        assert!(sender("Support <support@shop.example>").unwrap().0.is_some());
        assert!(sender("support").is_err() && sender("a@b\r\nBcc: c@d").is_err());
        let url = |text: &str| PublicUrl::parse(text, Bounds::default());
        assert_eq!(url("https://desk.example/").unwrap().0, "https://desk.example");
        assert_eq!(url("").unwrap().0, "");
        for bad in [
            "desk.example",
            "https://a.example/path",
            "https://a.example,https://b.example",
            "https://u:p@a.example",
        ] {
            assert!(url(bad).is_err(), "{bad}");
        }
    }
}
