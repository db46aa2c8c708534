//! The policy document: everything that is decided about queries, the same on all instances.
//!
//! Values are as people write them; `policy/check.rs` reads and refuses them. Unknown fields are
//! refused, absent ones have defaults, so that a document of an older version is read.

use serde::{Deserialize, Serialize};

/// Id of the group of every client that is in no other.
pub const DEFAULT_GROUP: &str = "default";

/// Policy: upstreams, lists, groups, clients, rules, records, schedules, pauses, protection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Servers that queries are forwarded to.
    pub upstreams: UpstreamPolicy,
    /// Lists of names to block or to allow.
    pub lists: Vec<ListSource>,
    /// Rules for everybody, in the syntax of AdGuard: `||ads.example^`, `@@||good.example^`,
    /// `/regex/`.
    pub rules: Vec<String>,
    /// Services of one's own, blocked by name beside the built-in ones.
    pub services: Vec<CustomService>,
    /// Groups of clients. Clients of no group are in `default`, which is there also when it is not
    /// listed.
    pub groups: Vec<ClientGroup>,
    /// Known clients.
    pub clients: Vec<ClientEntry>,
    /// Records answered here.
    pub records: Vec<LocalRecord>,
    /// Pauses of filtering.
    pub pauses: Vec<FilterPause>,
    /// Rules that end by themselves.
    pub timed_rules: Vec<TimedRule>,
    /// Clients that may query.
    pub access: AccessPolicy,
    /// Queries per client network.
    pub rate_limit: RateLimitPolicy,
    /// Answers with private addresses.
    pub rebinding: RebindingPolicy,
    /// Sources of lists: how often and from where.
    pub list_refresh: ListRefreshPolicy,
    /// Query log.
    pub log: LogPolicy,
}

impl Policy {
    /// Returns the policy to start with: the list that is part of the program, for everybody.
    pub fn starting() -> Self {
        let list = ListSource {
            id: "default".to_owned(),
            name: "Tidegate default list".to_owned(),
            url: "embedded:default".to_owned(),
            action: ListAction::Block,
            enabled: true,
            schedule: None,
        };
        Self { lists: vec![list], ..Self::default() }
    }
}

/// Servers that queries are forwarded to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamPolicy {
    /// Servers; without any, those of the program's settings.
    pub servers: Vec<UpstreamServer>,
    /// Order in which they are asked; without it, that of the program's settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<StrategyName>,
    /// Time for one attempt at one server, in milliseconds: 100 to 10,000; without it, that of the
    /// program's settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Servers of their own for some domains.
    pub domains: Vec<DomainUpstreams>,
    /// Addresses of servers that resolve the names of other servers and of list sources. Default
    /// 9.9.9.9 and 1.1.1.1.
    pub bootstrap: Vec<String>,
}

impl Default for UpstreamPolicy {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            strategy: None,
            timeout_ms: None,
            domains: Vec::new(),
            bootstrap: vec!["9.9.9.9".to_owned(), "1.1.1.1".to_owned()],
        }
    }
}

/// Strategies by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StrategyName {
    /// In the order given.
    Failover,
    /// In turns.
    LoadBalance,
    /// By mean response time.
    Weighted,
    /// The fastest, with a hedged second query.
    Fastest,
}

/// A server that queries are forwarded to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamServer {
    /// `192.0.2.1`, `tcp://192.0.2.1:53`, `tls://dns.example`, `https://dns.example/dns-query` or a
    /// stamp, `sdns://…`.
    pub address: String,
    /// Name on pages.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Addresses of the server's host, in place of asking the bootstrap servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bootstrap: Vec<String>,
}

/// Servers for some domains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DomainUpstreams {
    /// Domains, with all names below them; the longest match counts.
    pub domains: Vec<String>,
    /// Servers.
    pub servers: Vec<UpstreamServer>,
}

/// A list of names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListSource {
    /// Id: 1 to 64 of `a-z 0-9 - _ .`.
    pub id: String,
    /// Name on pages and in blocked replies.
    #[serde(default)]
    pub name: String,
    /// `https://…`, `http://…`, `file:…` below the folder of lists, or `embedded:default`.
    pub url: String,
    /// Block or allow.
    #[serde(default)]
    pub action: ListAction,
    /// Switched on.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Times at which the list counts; always without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<WeekSchedule>,
}

fn yes() -> bool {
    true
}

/// Use of the names on a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListAction {
    /// Names are blocked; exceptions on the list are allowed.
    #[default]
    Block,
    /// Names are allowed.
    Allow,
}

/// A service of one's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomService {
    /// Id, different from those of the built-in services.
    pub id: String,
    /// Name on pages.
    #[serde(default)]
    pub name: String,
    /// Domains, with all names below them.
    pub domains: Vec<String>,
}

/// A group of clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientGroup {
    /// Id: 1 to 64 of `a-z 0-9 - _ .`.
    pub id: String,
    /// Name on pages.
    pub name: String,
    /// Note.
    pub description: String,
    /// Ids of lists; without it, all that are switched on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lists: Option<Vec<String>>,
    /// Rules of this group; they count before those for everybody.
    pub rules: Vec<String>,
    /// Blocked services.
    pub services: Vec<BlockedService>,
    /// Search engines whose safe variant is enforced.
    pub safe_search: Vec<SearchEngine>,
    /// Servers of this group in place of the common ones. Answers of theirs are kept in memory only.
    pub upstreams: Vec<UpstreamServer>,
    /// Reply to blocked queries.
    pub block_reply: BlockReply,
    /// Keep and use cached answers. Default true.
    pub cache: bool,
    /// Leave `ech` in HTTPS records. Default true.
    pub keep_ech: bool,
    /// Times at which everything is blocked or filtering pauses.
    pub schedules: Vec<GroupSchedule>,
    /// Queries that are logged.
    pub log: GroupLog,
}

impl Default for ClientGroup {
    fn default() -> Self {
        Self {
            id: DEFAULT_GROUP.to_owned(),
            name: String::new(),
            description: String::new(),
            lists: None,
            rules: Vec::new(),
            services: Vec::new(),
            safe_search: Vec::new(),
            upstreams: Vec::new(),
            block_reply: BlockReply::default(),
            cache: true,
            keep_ech: true,
            schedules: Vec::new(),
            log: GroupLog::All,
        }
    }
}

/// A blocked service of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockedService {
    /// Id of the service.
    pub id: String,
    /// Times at which it is blocked; always without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<WeekSchedule>,
}

/// Search engines with a safe variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchEngine {
    /// Google.
    Google,
    /// Bing.
    Bing,
    /// YouTube, strict.
    Youtube,
    /// YouTube, moderate.
    YoutubeModerate,
    /// DuckDuckGo.
    Duckduckgo,
    /// Yandex.
    Yandex,
    /// Ecosia.
    Ecosia,
}

/// Reply to blocked queries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BlockReply {
    /// Mode.
    pub mode: BlockMode,
    /// Address of A replies in mode `custom_address`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<String>,
    /// Address of AAAA replies in mode `custom_address`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<String>,
    /// TTL in seconds: 1 to 86,400. Default 300.
    pub ttl_seconds: u32,
}

impl Default for BlockReply {
    fn default() -> Self {
        Self { mode: BlockMode::default(), ipv4: None, ipv6: None, ttl_seconds: 300 }
    }
}

/// Modes of blocking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockMode {
    /// NXDOMAIN.
    Nxdomain,
    /// The address 0.0.0.0 or ::, no records of other types.
    #[default]
    NullAddress,
    /// The addresses given, no records of other types.
    CustomAddress,
    /// REFUSED.
    Refused,
    /// No records.
    Nodata,
}

/// Times at which something happens to a whole group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSchedule {
    /// Name on pages, such as `bedtime`.
    #[serde(default)]
    pub name: String,
    /// Block or pause.
    pub action: ScheduleAction,
    /// Times.
    pub schedule: WeekSchedule,
}

/// Effect of a schedule on a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleAction {
    /// Everything is blocked but what the rules of the group allow.
    Block,
    /// Nothing is filtered.
    Pause,
}

/// Windows of a week in a time zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeekSchedule {
    /// Time zone, such as `Europe/Berlin`. Default `UTC`.
    #[serde(default = "utc")]
    pub time_zone: String,
    /// Windows; the schedule is on while any of them is.
    pub windows: Vec<ScheduleWindow>,
}

fn utc() -> String {
    "UTC".to_owned()
}

/// A window of a week. An end before the start is on the next day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleWindow {
    /// Days on which it starts.
    pub days: Vec<WeekDay>,
    /// `HH:MM`.
    pub start: String,
    /// `HH:MM`, up to `24:00`.
    pub end: String,
}

/// Days of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeekDay {
    /// Monday.
    Mon,
    /// Tuesday.
    Tue,
    /// Wednesday.
    Wed,
    /// Thursday.
    Thu,
    /// Friday.
    Fri,
    /// Saturday.
    Sat,
    /// Sunday.
    Sun,
}

/// Queries of a group that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupLog {
    /// All.
    #[default]
    All,
    /// Blocked ones.
    Blocked,
    /// None.
    Nothing,
}

/// A known client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientEntry {
    /// Id: 1 to 64 of `a-z 0-9 - _ .`. It is also the id in `/dns-query/ID` and in the name for DoT.
    pub id: String,
    /// Name on pages.
    #[serde(default)]
    pub name: String,
    /// Group; `default` without one.
    #[serde(default = "default_group")]
    pub group: String,
    /// Addresses, networks (`192.168.1.0/24`) and MAC addresses (`02:00:5e:10:00:01`). The most
    /// specific match counts: id, then MAC, then address, then the longest prefix.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Tags for rules with `$ctag`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

fn default_group() -> String {
    DEFAULT_GROUP.to_owned()
}

/// A record answered here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalRecord {
    /// Name, or `*.name` for all names below it.
    pub name: String,
    /// Type: `A`, `AAAA`, `CNAME`, `TXT`, `MX`, `SRV`, `PTR`, `CAA`, `NS`, or `TYPE123`.
    #[serde(rename = "type")]
    pub record_type: String,
    /// Data as in a zone file; `\# 4 c0000201` for any type.
    pub value: String,
    /// TTL in seconds. Default 300.
    #[serde(default = "local_ttl")]
    pub ttl_seconds: u32,
}

fn local_ttl() -> u32 {
    300
}

/// A pause of filtering.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilterPause {
    /// Extent.
    pub scope: PolicyScope,
    /// End, Unix milliseconds.
    pub until_ms: i64,
}

/// Extent of a pause or a timed rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyScope {
    /// Everybody.
    All,
    /// One group, by id.
    Group(String),
    /// One client: by the id of its entry, or by address.
    Client(String),
}

/// A rule that ends by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimedRule {
    /// Id, given when it is made.
    pub id: String,
    /// Name, with all names below it.
    pub name: String,
    /// Allow or block.
    pub action: ListAction,
    /// Extent.
    pub scope: PolicyScope,
    /// End, Unix milliseconds.
    pub until_ms: i64,
}

/// Clients that may query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessPolicy {
    /// Networks. Default: loopback and private networks.
    pub networks: Vec<String>,
    /// Ids of clients that may query from anywhere over DoH and DoT.
    pub clients: Vec<String>,
    /// Networks of forwarders that name their clients' hardware address in EDNS option 65001 or 65073
    /// (`add-mac` of dnsmasq). From nobody else it counts.
    pub forwarders: Vec<String>,
}

impl Default for AccessPolicy {
    fn default() -> Self {
        let networks = [
            "127.0.0.0/8",
            "::1/128",
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "169.254.0.0/16",
            "fc00::/7",
            "fe80::/10",
        ];
        Self {
            networks: networks.map(str::to_owned).into(),
            clients: Vec::new(),
            forwarders: Vec::new(),
        }
    }
}

/// Queries per client network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RateLimitPolicy {
    /// Queries per second of one network; 0 for no limit. Default 1,000.
    pub per_second: u32,
    /// Queries at once. Default 2,000.
    pub burst: u32,
    /// Bits of an IPv4 network. Default 32.
    pub ipv4_prefix: u8,
    /// Bits of an IPv6 network. Default 64.
    pub ipv6_prefix: u8,
    /// Networks without a limit, loopback besides.
    pub exempt: Vec<String>,
}

impl Default for RateLimitPolicy {
    fn default() -> Self {
        Self { per_second: 1_000, burst: 2_000, ipv4_prefix: 32, ipv6_prefix: 64, exempt: vec![] }
    }
}

/// Answers with private addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RebindingPolicy {
    /// Withhold private addresses in answers of upstreams. Default true.
    pub enabled: bool,
    /// Domains that may have private addresses, with all names below them, such as `plex.direct`.
    pub exempt: Vec<String>,
}

impl Default for RebindingPolicy {
    fn default() -> Self {
        Self { enabled: true, exempt: vec!["plex.direct".to_owned()] }
    }
}

/// Refresh of list sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListRefreshPolicy {
    /// Hours between two fetches of a source: 1 to 720. Default 24.
    pub every_hours: u32,
    /// Sources may be on private networks. Default false.
    pub allow_private: bool,
}

impl Default for ListRefreshPolicy {
    fn default() -> Self {
        Self { every_hours: 24, allow_private: false }
    }
}

/// Query log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogPolicy {
    /// Domains that are not logged, with all names below them.
    pub exclude_names: Vec<String>,
    /// Addresses, networks and client ids that are not logged.
    pub exclude_clients: Vec<String>,
    /// One query in so many is logged: 1 to 1,000. Default 1.
    pub sample_one_in: u32,
    /// Form of clients' addresses.
    pub addresses: LoggedAddresses,
}

impl Default for LogPolicy {
    fn default() -> Self {
        Self {
            exclude_names: Vec::new(),
            exclude_clients: Vec::new(),
            sample_one_in: 1,
            addresses: LoggedAddresses::Full,
        }
    }
}

/// Form of clients' addresses in the query log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoggedAddresses {
    /// In full.
    #[default]
    Full,
    /// Without the last byte (IPv4) or the lower 64 bits (IPv6).
    Truncated,
    /// As a keyed hash.
    Hashed,
}
