//! Settings of the resolver: what belongs to one process. What all instances share (lists, rules,
//! groups, clients) is the policy document in the store.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use dns::{
    DomainName, L1Options, ListenOptions, RefreshPreset, ResolverOptions, StaleOptions,
    UpstreamAddress, UpstreamOptions, UpstreamStrategy, wire::TtlBounds,
};
use web::config::value::{Bounds, Bytes, Networks, Value, items};

web::settings! {
    /// The resolver.
    dns: DnsSettings {
        /// Addresses and ports for DNS over UDP and TCP, separated by commas, or `off`. Port 0 takes
        /// any free one and prints it. Port 53 needs the right to it: see docs/start-dns.md.
        listen: DnsListen = "127.0.0.1:7053", restart;
        /// Addresses and ports for DNS over TLS, such as `0.0.0.0:853`, or `off`. Needs the certificate of
        /// `http.tls_cert`.
        tls_listen: DnsListen = "off", restart;
        /// Name of this server in its certificate. Of `kid.dns.example` the part before the name is the id
        /// of a client. Clients may discover DNS over TLS and HTTPS under this name (RFC 9462).
        tls_name: String = "", restart;
        /// Threads that receive datagrams, for each address. 0 means one less than there are
        /// processors, at least one.
        threads: usize = "0", "0" ..= "256", restart;
        /// Proxies whose connections and datagrams begin with a PROXY header (version 2), as networks. From
        /// nobody else such a header counts.
        trusted_proxies: Networks = "", restart;
        /// Connections over TCP at once; one more is closed.
        tcp_max_connections: usize = "1000", "1" ..= "100000", restart;
        /// Idle timeout of a connection over TCP.
        tcp_idle: Duration = "10s", "1s" ..= "10m", restart;
        /// Servers that queries are forwarded to while the policy names none, separated by commas:
        /// addresses, `tcp://` addresses, `tls://` and `https://` names, or stamps (`sdns://`).
        upstreams: UpstreamList = "9.9.9.9,149.112.112.112", restart;
        /// Certificate authorities (PEM) that verify `tls://` and `https://` upstreams and list sources,
        /// instead of the system's.
        upstream_ca: PathBuf = "", restart;
        /// Order in which they are asked: `failover` in this order, `load_balance` in turns,
        /// `weighted` the fastest first, `fastest` the same, and the second one too as soon as the
        /// first is slower than it is in 95 % of cases.
        strategy: UpstreamOrder = "failover", restart;
        /// Timeout of one attempt at one server.
        upstream_timeout: Duration = "2s", "100ms" ..= "30s", restart;
        /// Wait for a server before the next one is asked too.
        next_after: Duration = "600ms", "10ms" ..= "10s", restart;
        /// Time for which a server that failed is asked last. A server that answers again ends it.
        backoff: Duration = "30s", "1s" ..= "1h", restart;
        /// Time after which a client gets a stale answer, or SERVFAIL if there is none.
        client_timeout: Duration = "1800ms", "100ms" ..= "30s", restart;
        /// Memory of the cache in the process.
        cache_memory: Bytes = "32mb", "1mb" ..= "16gb", restart;
        /// Answers kept in the store; those with the fewest hits go first. 0 means no limit.
        max_keys: u64 = "10000", "0" ..= "100000000", live;
        /// Time for which an expired answer is kept, for stale answers. It is kept no longer than it
        /// was fresh.
        grace: Duration = "1h", "0s" ..= "7d", restart;
        /// Least time for which an answer is kept. 0s respects the TTL of its source.
        min_ttl: Duration = "0s", "0s" ..= "1d", restart;
        /// Longest time for which an answer is kept.
        max_ttl: Duration = "1d", "1s" ..= "7d", restart;
        /// Longest time for which it is kept that a name does not exist.
        max_negative_ttl: Duration = "3h", "1s" ..= "1d", restart;
        /// Greatest TTL given to clients. 0s means the time that is left.
        client_ttl_cap: Duration = "0s", "0s" ..= "7d", restart;
        /// Oldest stale answer, counted from the end of its freshness. 0s means none. No answer is
        /// older than `grace` allows.
        stale_max_age: Duration = "1h", "0s" ..= "7d", restart;
        /// TTL of stale answers.
        stale_ttl: Duration = "30s", "1s" ..= "1h", restart;
        /// Names that get no stale answers, with all names below them.
        stale_excluded: NameList = "", restart;
        /// Refresh of answers before they expire: `aggressive`, `balanced`, `conservative` or `off`.
        refresh: RefreshName = "balanced", restart;
        /// Refreshes at once.
        refresh_max_inflight: usize = "100", "1" ..= "10000", restart;
        /// Window in which hits of an answer are counted.
        hit_window: Duration = "5m", "10s" ..= "1d", restart;
        /// Window in which an answer must be asked for to be refreshed by the sweeper; without a hit in
        /// it the answer is deleted instead. 0s means none: answers with hits within `hit_window` are
        /// refreshed, the others are left to expire.
        sweep_hit_window: Duration = "0s", "0s" ..= "7d", restart;
        /// Interval of the sweeper.
        sweep_interval: Duration = "15s", "1s" ..= "1h", restart;
        /// Hosts file whose names are answered here. Empty: none.
        hosts_file: PathBuf = "/etc/hosts", restart;
        /// Most bytes of the query log of this instance; the oldest queries go first.
        log_max_size: Bytes = "256mb", "1mb" ..= "1tb", restart;
        /// Time for which queries are kept in the log.
        log_max_age: Duration = "30d", "1h" ..= "3650d", restart;
        /// URL that rows of the query log are posted to as JSON lines, such as
        /// `http://clickhouse:8123/?query=INSERT+INTO+dns_queries+FORMAT+JSONEachRow`. Empty: none.
        log_sink: String = "", restart;
        /// Addresses and ports for the block page over HTTP, usually `0.0.0.0:80`, or `off`. It is shown
        /// where the reply to blocked queries is the address of this server.
        block_page_listen: DnsListen = "off", restart;
        /// Time of day (UTC) at which the summary of the last 24 hours is sent to webhooks.
        summary_at: TimeOfDay = "07:00", restart;
    }
}

/// Addresses to listen on, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsListen(pub Vec<SocketAddr>);

impl Value for DnsListen {
    fn kind() -> &'static str {
        "list of address:port, or `off`"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<DnsListen, String> {
        if text == "off" {
            return Ok(DnsListen(Vec::new()));
        }
        let addresses: Vec<SocketAddr> =
            items(text).map(|item| SocketAddr::parse(item, None)).collect::<Result<_, _>>()?;
        for (index, address) in addresses.iter().enumerate() {
            if address.port() != 0 && addresses.iter().take(index).any(|other| other == address) {
                return Err(format!("{address} is there twice"));
            }
        }
        Ok(DnsListen(addresses))
    }
}

/// A time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeOfDay {
    /// Minutes since midnight.
    pub minutes: u16,
}

impl Value for TimeOfDay {
    fn kind() -> &'static str {
        "time of day (`07:00`)"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<TimeOfDay, String> {
        let wrong = || format!("{text:?} is not a time of day such as 07:00");
        let (hours, minutes) = text.split_once(':').ok_or_else(wrong)?;
        let number = |text: &str| match text.len() {
            2 => text.parse::<u16>().ok(),
            _ => None,
        };
        match (number(hours), number(minutes)) {
            (Some(hours @ 0..=23), Some(minutes @ 0..=59)) => {
                Ok(TimeOfDay { minutes: hours * 60 + minutes })
            }
            _ => Err(wrong()),
        }
    }
}

/// Upstreams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamList(pub Vec<UpstreamAddress>);

impl Value for UpstreamList {
    fn kind() -> &'static str {
        "list of servers (`9.9.9.9`, `tls://dns.quad9.net`)"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<UpstreamList, String> {
        let servers: Vec<UpstreamAddress> = items(text)
            .map(|item| item.parse::<UpstreamAddress>().map_err(|error| error.to_string()))
            .collect::<Result<_, _>>()?;
        if servers.is_empty() {
            return Err("name at least one server".to_owned());
        }
        Ok(UpstreamList(servers))
    }
}

/// Names of domains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameList(pub Vec<DomainName>);

impl Value for NameList {
    fn kind() -> &'static str {
        "list of names"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<NameList, String> {
        let name = |item: &str| item.parse().map_err(|error| format!("{item:?}: {error}"));
        items(text).map(name).collect::<Result<_, _>>().map(NameList)
    }
}

web::words! {
    /// The order in which upstreams are asked.
    UpstreamOrder {
        /// In the order given.
        Failover = "failover",
        /// In turns.
        LoadBalance = "load_balance",
        /// The fastest first.
        Weighted = "weighted",
        /// The fastest first, with a hedged second query.
        Fastest = "fastest",
    }
}

web::words! {
    /// A preset of refreshes before expiry.
    RefreshName {
        /// Early and often.
        Aggressive = "aggressive",
        /// As the original does by default.
        Balanced = "balanced",
        /// Late, and only what is asked for often.
        Conservative = "conservative",
        /// Never.
        Off = "off",
    }
}

impl From<UpstreamOrder> for UpstreamStrategy {
    fn from(name: UpstreamOrder) -> UpstreamStrategy {
        match name {
            UpstreamOrder::Failover => UpstreamStrategy::Failover,
            UpstreamOrder::LoadBalance => UpstreamStrategy::LoadBalance,
            UpstreamOrder::Weighted => UpstreamStrategy::Weighted,
            UpstreamOrder::Fastest => UpstreamStrategy::Fastest,
        }
    }
}

impl From<RefreshName> for RefreshPreset {
    fn from(name: RefreshName) -> RefreshPreset {
        match name {
            RefreshName::Aggressive => RefreshPreset::Aggressive,
            RefreshName::Balanced => RefreshPreset::Balanced,
            RefreshName::Conservative => RefreshPreset::Conservative,
            RefreshName::Off => RefreshPreset::Off,
        }
    }
}

fn seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)
}

/// Zero stands for none.
fn nonzero(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

impl DnsSettings {
    /// The settings as the resolver takes them.
    pub(crate) fn to_resolver(&self) -> ResolverOptions {
        ResolverOptions {
            upstream: UpstreamOptions {
                servers: self.upstreams.0.clone(),
                strategy: self.strategy.into(),
                timeout: self.upstream_timeout,
                next_after: self.next_after,
                backoff: self.backoff,
            },
            l1: L1Options {
                max_keys: self.max_keys,
                grace: self.grace,
                hit_window: self.hit_window,
                sweep_hit_window: nonzero(self.sweep_hit_window),
                ..L1Options::default()
            },
            l0_max_bytes: usize::try_from(self.cache_memory.0).unwrap_or(usize::MAX),
            ttl_bounds: TtlBounds {
                min_seconds: seconds(self.min_ttl),
                max_seconds: seconds(self.max_ttl),
                max_negative_seconds: seconds(self.max_negative_ttl),
            },
            client_ttl_cap: nonzero(self.client_ttl_cap),
            client_timeout: self.client_timeout,
            stale: StaleOptions {
                max_age: self.stale_max_age,
                ttl: self.stale_ttl,
                excluded: self.stale_excluded.0.clone(),
            },
            refresh: self.refresh.into(),
            refresh_max_inflight: self.refresh_max_inflight,
            hosts_file: (!self.hosts_file.as_os_str().is_empty()).then(|| self.hosts_file.clone()),
            ..ResolverOptions::default()
        }
    }

    /// The settings as the listeners take them.
    pub(crate) fn to_listeners(&self) -> ListenOptions {
        let defaults = ListenOptions::default();
        ListenOptions {
            addresses: self.listen.0.clone(),
            threads: if self.threads == 0 { defaults.threads } else { self.threads },
            tcp_max_connections: self.tcp_max_connections,
            tcp_idle: self.tcp_idle,
            trusted_proxies: self.trusted_proxies.0.clone(),
            ..defaults
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_resolver() {
        let values = web::config::Values::defaults(&[&crate::DnsService]);
        let settings = DnsSettings::read(&values).unwrap();
        let (made, expected) = (settings.to_resolver(), ResolverOptions::default());
        let upstream =
            UpstreamOptions { servers: made.upstream.servers.clone(), ..expected.upstream };
        assert_eq!(format!("{:?}", made.upstream), format!("{upstream:?}"));
        let hosts_file = Some(PathBuf::from("/etc/hosts"));
        let expected = ResolverOptions { upstream, hosts_file, ..expected };
        assert_eq!(format!("{made:?}"), format!("{expected:?}"));
        let listeners = settings.to_listeners();
        assert_eq!(format!("{listeners:?}"), format!("{:?}", ListenOptions::default()));
    }

    #[test]
    fn bad_lists_are_refused_with_the_item() {
        let listen = |text| DnsListen::parse(text, None);
        assert_eq!(listen("off"), Ok(DnsListen(Vec::new())));
        assert_eq!(listen("127.0.0.1:0, 127.0.0.1:0").unwrap().0.len(), 2);
        assert_eq!(listen("[::1]:53,[::1]:53").unwrap_err(), "[::1]:53 is there twice");
        assert!(listen("example.org:53").unwrap_err().contains("example.org"));
        for bad in ["", "9.9.9.9:0", "9.9.9.9 1.1.1.1", "ftp://9.9.9.9"] {
            assert!(UpstreamList::parse(bad, None).is_err(), "{bad}");
        }
        let time = |text| TimeOfDay::parse(text, None).map(|time| time.minutes);
        assert_eq!((time("07:30"), time("00:00"), time("23:59")), (Ok(450), Ok(0), Ok(1_439)));
        for bad in ["", "7:30", "24:00", "07:60", "07", "07:00:00", "-1:00"] {
            assert!(time(bad).is_err(), "{bad}");
        }
        assert!(NameList::parse("a..b", None).unwrap_err().contains("a..b"));
    }
}
