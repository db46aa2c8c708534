//! Kinds of values: how each is written, checked and shown.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::{HeaderName, header};
use ipnet::IpNet;
use tracing::level_filters::LevelFilter;

/// A value that can be written as text.
pub trait Value: Sized {
    /// Returns the description of the kind, for people.
    fn kind() -> &'static str;

    /// Reads a text and checks it against the bounds.
    fn parse(text: &str, bounds: Bounds<'_>) -> Result<Self, String>;

    /// Returns a text as pages and `config show` may show it. Kinds that hold secrets hide them; the
    /// password of a URL is never shown.
    fn shown(text: &str) -> String {
        hide_password(text)
    }
}

/// Hides the password of a URL: `redis://me:…@host`.
pub fn hide_password(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let Some((login, host)) = rest.split_once('@') else { return text.to_owned() };
    match login.split_once(':') {
        Some((user, _)) => format!("{scheme}://{user}:…@{host}"),
        None => text.to_owned(),
    }
}

/// Least and most, written like the value itself.
pub type Bounds<'a> = Option<(&'a str, &'a str)>;

/// A check of a text against kind and bounds.
pub type Check = fn(&str, Bounds<'_>) -> Result<(), String>;

/// Checks a text without keeping the value.
pub fn check<T: Value>(text: &str, bounds: Bounds<'_>) -> Result<(), String> {
    T::parse(text, bounds).map(|_| ())
}

/// Reads, then compares with bounds that are written the same way.
fn bounded<T: PartialOrd>(
    text: &str,
    bounds: Bounds<'_>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<T, String> {
    let value = read(text)?;
    let Some((least, most)) = bounds else { return Ok(value) };
    if value < read(least)? || value > read(most)? {
        return Err(format!("{text} is not between {least} and {most}"));
    }
    Ok(value)
}

macro_rules! numbers {
    ($($ty:ty),*) => {$(
        impl Value for $ty {
            fn kind() -> &'static str {
                "number"
            }

            fn parse(text: &str, bounds: Bounds<'_>) -> Result<$ty, String> {
                bounded(text, bounds, |text| {
                    let digits = text.replace('_', "");
                    digits.parse().map_err(|_| format!("{text:?} is not a whole number"))
                })
            }
        }
    )*};
}

numbers!(u16, u32, u64, usize);

impl Value for bool {
    fn kind() -> &'static str {
        "`true` or `false`"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<bool, String> {
        match text {
            "true" | "yes" | "on" | "1" => Ok(true),
            "false" | "no" | "off" | "0" => Ok(false),
            _ => Err(format!("{text:?} is neither true nor false")),
        }
    }
}

impl Value for String {
    fn kind() -> &'static str {
        "text"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<String, String> {
        if text.chars().any(char::is_control) {
            return Err("control characters are not allowed".to_owned());
        }
        Ok(text.to_owned())
    }
}

/// A password or another secret: neither pages, nor `config show`, nor `Debug` show it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct SecretText(String);

impl SecretText {
    /// Returns the secret itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns true if none is set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for SecretText {
    fn from(text: &str) -> SecretText {
        SecretText(text.to_owned())
    }
}

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretText")
    }
}

impl Value for SecretText {
    fn kind() -> &'static str {
        "text"
    }

    fn parse(text: &str, bounds: Bounds<'_>) -> Result<SecretText, String> {
        String::parse(text, bounds).map(SecretText)
    }

    fn shown(text: &str) -> String {
        if text.is_empty() { String::new() } else { "…".to_owned() }
    }
}

impl Value for HeaderName {
    fn kind() -> &'static str {
        "name of a header"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<HeaderName, String> {
        let name: HeaderName = text
            .parse()
            .map_err(|_| format!("{text:?} is not the name of a header, as X-Forwarded-For is"))?;
        let others = [header::HOST, header::COOKIE, header::AUTHORIZATION, header::CONNECTION];
        if others.contains(&name) {
            return Err(format!("{text} says something else: name the header your proxy sets"));
        }
        Ok(name)
    }
}

impl Value for PathBuf {
    fn kind() -> &'static str {
        "path"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<PathBuf, String> {
        if text.contains('\0') {
            return Err("a path cannot hold a NUL byte".to_owned());
        }
        Ok(PathBuf::from(text))
    }
}

impl Value for SocketAddr {
    fn kind() -> &'static str {
        "address:port"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<SocketAddr, String> {
        let text = text.strip_prefix("localhost:").map_or_else(
            || text.strip_prefix(':').map_or_else(|| text.to_owned(), |p| format!("0.0.0.0:{p}")),
            |port| format!("127.0.0.1:{port}"),
        );
        text.parse().map_err(|_| format!("{text:?} is not like 127.0.0.1:7070 or [::1]:7070"))
    }
}

/// An address, or nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen(pub Option<SocketAddr>);

impl Value for Listen {
    fn kind() -> &'static str {
        "address:port or `off`"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<Listen, String> {
        match text {
            "off" | "" => Ok(Listen(None)),
            _ => SocketAddr::parse(text, None).map(|address| Listen(Some(address))),
        }
    }
}

impl Value for Duration {
    fn kind() -> &'static str {
        "time (`500ms`, `10s`, `5m`, `2h`, `7d`)"
    }

    fn parse(text: &str, bounds: Bounds<'_>) -> Result<Duration, String> {
        bounded(text, bounds, |text| {
            let wrong = || format!("{text:?} is not a time: write 500ms, 10s, 5m, 2h or 7d");
            let (number, unit) = split_unit(text).ok_or_else(wrong)?;
            let millis: u64 = match unit {
                "ms" => 1,
                "s" => 1000,
                "m" | "min" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                _ => return Err(wrong()),
            };
            number.checked_mul(millis).map(Duration::from_millis).ok_or_else(wrong)
        })
    }
}

/// A size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub struct Bytes(pub u64);

impl Value for Bytes {
    fn kind() -> &'static str {
        "size (`512kb`, `64mb`, `2gb`; powers of 1024)"
    }

    fn parse(text: &str, bounds: Bounds<'_>) -> Result<Bytes, String> {
        bounded(text, bounds, |text| {
            let wrong = || format!("{text:?} is not a size: write 512kb, 64mb or 2gb");
            if let Ok(bytes) = text.parse() {
                return Ok(Bytes(bytes));
            }
            let lower = text.to_ascii_lowercase();
            let (number, unit) = split_unit(&lower).ok_or_else(wrong)?;
            let factor: u64 = match unit {
                "b" => 1,
                "kb" | "k" | "kib" => 1 << 10,
                "mb" | "m" | "mib" => 1 << 20,
                "gb" | "g" | "gib" => 1 << 30,
                "tb" | "t" | "tib" => 1 << 40,
                _ => return Err(wrong()),
            };
            number.checked_mul(factor).map(Bytes).ok_or_else(wrong)
        })
    }
}

/// `10s` → (10, "s").
fn split_unit(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim()))
}

/// A rate: so many times in so many seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Number of times.
    pub count: u32,
    /// In how many seconds.
    pub per_seconds: u32,
}

impl std::str::FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let wrong = || format!("{text:?} is not a rate: write 10/s, 500/m, 2000/h or 5/10s");
        let (count, per) = text.split_once('/').ok_or_else(wrong)?;
        let count = count.trim().replace('_', "").parse().map_err(|_| wrong())?;
        let per = per.trim();
        let (number, unit) = if per.starts_with(|c: char| c.is_ascii_digit()) {
            split_unit(per).ok_or_else(wrong)?
        } else {
            (1, per)
        };
        let unit = match unit {
            "s" | "sec" | "second" => 1,
            "m" | "min" | "minute" => 60,
            "h" | "hour" => 3_600,
            "d" | "day" => 86_400,
            _ => return Err(wrong()),
        };
        let per_seconds = number.checked_mul(unit).and_then(|s| u32::try_from(s).ok());
        match per_seconds {
            Some(per_seconds @ 1..=86_400) => Ok(Rate { count, per_seconds }),
            _ => Err(wrong()),
        }
    }
}

/// A rate, or nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaybeRate(pub Option<Rate>);

impl Value for MaybeRate {
    fn kind() -> &'static str {
        "rate (`10/s`, `500/m`, `5/10s`)"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<MaybeRate, String> {
        (!text.is_empty()).then(|| text.parse()).transpose().map(MaybeRate)
    }
}

/// A whole number, or nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaybeNumber(pub Option<u32>);

impl Value for MaybeNumber {
    fn kind() -> &'static str {
        "number"
    }

    fn parse(text: &str, bounds: Bounds<'_>) -> Result<MaybeNumber, String> {
        (!text.is_empty()).then(|| u32::parse(text, bounds)).transpose().map(MaybeNumber)
    }
}

/// Networks, as `10.0.0.0/8` or a single address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Networks(pub Vec<IpNet>);

impl Value for Networks {
    fn kind() -> &'static str {
        "list of networks"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<Networks, String> {
        items(text)
            .map(|item| {
                item.parse::<IpNet>()
                    .or_else(|_| item.parse::<std::net::IpAddr>().map(IpNet::from))
                    .map_err(|_| format!("{item:?} is not a network like 10.0.0.0/8"))
            })
            .collect::<Result<_, _>>()
            .map(Networks)
    }
}

/// The items of a list separated by commas.
pub fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Declares a kind of value that is one of a few words.
#[macro_export]
macro_rules! words {
    ($(#[doc = $doc:literal])* $name:ident { $($(#[doc = $vdoc:literal])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[doc = $vdoc])* $variant),* }

        impl $crate::config::value::Value for $name {
            fn kind() -> &'static str {
                const WORDS: &[&str] = &[$(concat!("`", $word, "`")),*];
                static TEXT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
                TEXT.get_or_init(|| format!("one of {}", WORDS.join(", ")))
            }

            fn parse(text: &str, _: $crate::config::value::Bounds<'_>) -> Result<$name, String> {
                match text {
                    $($word => Ok($name::$variant),)*
                    _ => Err(format!("{text:?} is not one of {}", [$($word),*].join(", "))),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $($name::$variant => $word),* })
            }
        }
    };
}

crate::words! {
    /// The format of log lines.
    LogFormat {
        /// For people.
        Text = "text",
        /// For programs.
        Json = "json",
    }
}

/// Log levels: one for everything, and levels of parts by the start of their name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLevels {
    /// The level of what has none of its own; `None` logs nothing of it.
    pub default: Option<LevelFilter>,
    /// Parts and their levels.
    pub parts: Vec<(String, LevelFilter)>,
}

impl Value for LogLevels {
    fn kind() -> &'static str {
        "level, or list of `level` and `part=level`"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<LogLevels, String> {
        let mut levels = LogLevels { default: None, parts: Vec::new() };
        for entry in items(text) {
            let wrong = || {
                format!(
                    "{entry:?} is not a level: use error, warn, info, debug, trace or off, and for \
                     one part NAME=LEVEL"
                )
            };
            // An empty text would be read as `error`.
            let read = |level: &str| match level.trim() {
                "" => Err(wrong()),
                level => level.parse::<LevelFilter>().map_err(|_| wrong()),
            };
            match entry.split_once('=') {
                Some((name, _)) if name.trim().is_empty() => return Err(wrong()),
                Some((name, level)) => levels.parts.push((name.trim().to_owned(), read(level)?)),
                None => levels.default = Some(read(entry)?),
            }
        }
        Ok(levels)
    }
}

/// The URL of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreUrl(pub String);

impl Value for StoreUrl {
    fn kind() -> &'static str {
        "URL of a store"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<StoreUrl, String> {
        let text = String::parse(text, None)?;
        store::Store::check_url(&text).map_err(|error| error.to_string())?;
        Ok(StoreUrl(text))
    }
}

impl Value for store::Fsync {
    fn kind() -> &'static str {
        "one of `always`, `everysec`, `no`"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<store::Fsync, String> {
        text.parse().map_err(|()| format!("{text:?} is not one of always, everysec, no"))
    }
}

impl Value for store::EvictionPolicy {
    fn kind() -> &'static str {
        "one of `noeviction`, `allkeys-lru`, `allkeys-lfu`, `allkeys-random`, `volatile-lru`, \
         `volatile-lfu`, `volatile-random`, `volatile-ttl`"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<store::EvictionPolicy, String> {
        store::EvictionPolicy::parse(text)
            .ok_or_else(|| format!("{text:?} is not {}", Self::kind().replace('`', "")))
    }
}

/// Names of services, or `all`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceNames(pub Option<Vec<String>>);

impl ServiceNames {
    /// Tells whether a service is among them.
    pub fn contain(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|names| names.iter().any(|given| given == name))
    }
}

impl Value for ServiceNames {
    fn kind() -> &'static str {
        "`all`, or a list of services"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<ServiceNames, String> {
        match text {
            "all" => Ok(ServiceNames(None)),
            _ => Ok(ServiceNames(Some(items(text).map(str::to_owned).collect()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(hide_password("redis://me:secret@host/1"), "redis://me:…@host/1");
        assert_eq!(hide_password("redis://:secret@host"), "redis://:…@host");
        assert_eq!(hide_password("embedded:./x"), "embedded:./x");
        assert_eq!(hide_password("redis://host:6379"), "redis://host:6379");
        assert_eq!(StoreUrl::shown("redis://:secret@host"), "redis://:…@host");
        assert_eq!(SecretText::shown("secret"), "…");
        assert_eq!(SecretText::shown(""), "");
        assert!(!format!("{:?}", SecretText::from("secret")).contains("secret"));
        let headers = "authorization=Bearer%20secret, secret, x=secret";
        assert_eq!(crate::otel::CollectorHeaders::shown(headers), "authorization=…,…,x=…");
    }

    #[test]
    fn a_rate_is_a_count_in_a_span() {
        let rate = |text: &str| text.parse::<Rate>().map(|rate| (rate.count, rate.per_seconds));
        assert_eq!(rate("500/m"), Ok((500, 60)));
        assert_eq!(rate("10/s"), Ok((10, 1)));
        assert_eq!(rate("2_000 / h"), Ok((2_000, 3_600)));
        assert_eq!(rate("5/10s"), Ok((5, 10)));
        assert_eq!(rate("0/s"), Ok((0, 1)));
        for bad in ["", "500", "/m", "m/500", "1/0s", "1/2d", "-1/s", "1/s/s", "1/99999999999d"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn log_levels_are_read_for_everything_and_by_part() {
        let levels = LogLevels::parse("warn, room=debug,hyper=off", None).unwrap();
        assert_eq!(levels.default, Some(LevelFilter::WARN));
        let parts =
            [("room".to_owned(), LevelFilter::DEBUG), ("hyper".to_owned(), LevelFilter::OFF)];
        assert_eq!(levels.parts, parts);
        for wrong in ["banana", "info,room=loud", "=debug", "room=", "room= "] {
            let message = LogLevels::parse(wrong, None).unwrap_err();
            assert!(message.contains("is not a level"), "{wrong}: {message}");
        }
    }

    #[test]
    fn the_url_of_a_store_names_a_kind_of_store() {
        for good in ["embedded:", "embedded:{data}", "redis://h:1/0", "rediss+cluster://a,b"] {
            assert!(StoreUrl::parse(good, None).is_ok(), "{good}");
        }
        for wrong in ["", "banana", "/var/lib/tidegate", "postgres://h", "redis:"] {
            assert!(StoreUrl::parse(wrong, None).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_and_sizes_are_read_with_their_units() {
        let time = |text| Duration::parse(text, None);
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("2h"), Ok(Duration::from_secs(7200)));
        for bad in [
            "",
            "10",
            "s",
            "-1s",
            "1.5s",
            "10 parsecs",
            "99999999999999999999s",
            "213503982334602d",
        ] {
            assert!(time(bad).is_err(), "{bad}");
        }
        let size = |text| Bytes::parse(text, None).map(|bytes| bytes.0);
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("64mb"), Ok(64 << 20));
        assert_eq!(size("1 GiB"), Ok(1 << 30));
        for bad in ["", "mb", "-1", "1xb", "99999999999tb"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bounds_are_kept_and_named() {
        let bounds = Some(("1s", "2m"));
        assert!(Duration::parse("1s", bounds).is_ok());
        assert!(Duration::parse("2m", bounds).is_ok());
        let error = Duration::parse("3m", bounds).unwrap_err();
        assert_eq!(error, "3m is not between 1s and 2m");
        assert!(u32::parse("0", Some(("1", "5"))).is_err());
    }

    #[test]
    fn addresses_come_in_a_few_spellings() {
        for (text, expect) in [
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("localhost:80", "127.0.0.1:80"),
            (":80", "0.0.0.0:80"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(SocketAddr::parse(text, None).unwrap().to_string(), expect);
        }
        assert!(SocketAddr::parse("example.org:80", None).is_err());
        assert_eq!(Listen::parse("off", None), Ok(Listen(None)));
    }
}
