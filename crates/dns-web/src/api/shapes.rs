//! The parts of the policy as JSON shows them. Names are those of the document in the `dns` crate, so
//! one becomes the other by way of JSON; the resolver checks what a part says.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use web::ApiError;

use super::pauses::ActionName;
use crate::error::DnsApiError;

/// Makes one shape of another that has the same names.
pub(super) fn convert<A: Serialize, B: DeserializeOwned>(value: &A) -> Result<B, DnsApiError> {
    let json = serde_json::to_value(value).map_err(|error| ApiError::internal(&error))?;
    serde_json::from_value(json).map_err(|error| ApiError::internal(&error).into())
}

/// A list of names to block or to allow.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DnsList, example = json!({ "name": "Ads", "url": "https://lists.example/ads.txt" }))]
pub(crate) struct ListBody {
    /// Id: 1 to 64 of `a-z 0-9 - _ .`. In a request it is the one of the path.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    pub(crate) id: String,
    /// Name on pages and in blocked replies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// `https://…`, `http://…`, `file:NAME` below the folder of lists, or `embedded:default`.
    pub(crate) url: String,
    /// Block (the default) or allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) action: Option<ActionName>,
    /// Switched on, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) enabled: Option<bool>,
    /// Times at which the list counts; always without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) schedule: Option<ScheduleBody>,
}

/// Windows of a week in a time zone.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WeekSchedule)]
pub(crate) struct ScheduleBody {
    /// Time zone, such as `Europe/Berlin`; UTC if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) time_zone: Option<String>,
    /// Windows; the schedule is on while any of them is.
    pub(crate) windows: Vec<WindowBody>,
}

/// A window of a week. An end before the start is on the next day.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WeekWindow)]
pub(crate) struct WindowBody {
    /// Days on which it starts.
    pub(crate) days: Vec<DayName>,
    /// `HH:MM`.
    #[schema(example = "21:00")]
    pub(crate) start: String,
    /// `HH:MM`, up to `24:00`.
    #[schema(example = "06:30")]
    pub(crate) end: String,
}

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = DayOfWeek)]
pub(crate) enum DayName {
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

/// A group of clients.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DnsGroup, example = json!({
    "name": "Kids",
    "safe_search": ["google", "youtube"],
    "services": [{ "id": "tiktok" }],
    "schedules": [{ "name": "bedtime", "action": "block", "schedule": { "time_zone": "Europe/Berlin",
        "windows": [{ "days": ["sun", "mon", "tue", "wed", "thu"], "start": "20:30", "end": "06:30" }] } }]
}))]
pub(crate) struct GroupBody {
    /// Id: 1 to 64 of `a-z 0-9 - _ .`. In a request it is the one of the path.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    pub(crate) id: String,
    /// Name on pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<String>,
    /// Ids of lists; all that are switched on if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lists: Option<Vec<String>>,
    /// Rules of this group; they count before those for everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rules: Option<Vec<String>>,
    /// Blocked services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) services: Option<Vec<BlockedServiceBody>>,
    /// Search engines whose safe variant is enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) safe_search: Option<Vec<EngineName>>,
    /// Upstreams of this group in place of the common ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) upstreams: Option<Vec<ServerBody>>,
    /// Reply to blocked queries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) block_reply: Option<BlockReplyBody>,
    /// Use the cache, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cache: Option<bool>,
    /// Leave `ech` in HTTPS records, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) keep_ech: Option<bool>,
    /// Times at which everything is blocked, or nothing filtered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) schedules: Option<Vec<GroupScheduleBody>>,
    /// Queries that are logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) log: Option<LogName>,
}

/// A blocked service of a group.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = GroupService)]
pub(crate) struct BlockedServiceBody {
    /// Id of the service.
    #[schema(example = "tiktok")]
    pub(crate) id: String,
    /// Times at which it is blocked; always without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) schedule: Option<ScheduleBody>,
}

/// A search engine with a safe variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SafeSearchEngine)]
pub(crate) enum EngineName {
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

/// A server that queries are forwarded to.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UpstreamServer, example = json!({ "address": "tls://dns.example", "name": "Example" }))]
pub(crate) struct ServerBody {
    /// `192.0.2.1`, `tcp://192.0.2.1:53`, `tls://dns.example`, `https://dns.example/dns-query` or a
    /// stamp, `sdns://…`.
    #[schema(example = "tls://dns.example")]
    pub(crate) address: String,
    /// Name on pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Addresses of its host, in place of asking the bootstrap servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bootstrap: Option<Vec<String>>,
}

/// Reply to blocked queries.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BlockedReply)]
pub(crate) struct BlockReplyBody {
    /// Mode; `null_address` if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<BlockModeName>,
    /// Address of A replies in mode `custom_address`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ipv4: Option<String>,
    /// Address of AAAA replies in mode `custom_address`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ipv6: Option<String>,
    /// TTL of blocked replies: 1 to 86,400; 300 if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ttl_seconds: Option<u32>,
}

/// A mode of blocking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = BlockMode)]
pub(crate) enum BlockModeName {
    /// NXDOMAIN.
    Nxdomain,
    /// The address 0.0.0.0 or ::, no records of other types.
    NullAddress,
    /// The addresses given, no records of other types.
    CustomAddress,
    /// REFUSED.
    Refused,
    /// No records.
    Nodata,
}

/// Times at which something happens to a whole group.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = GroupSchedule)]
pub(crate) struct GroupScheduleBody {
    /// Name on pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "bedtime")]
    pub(crate) name: Option<String>,
    /// Block everything, or pause filtering.
    pub(crate) action: GroupActionName,
    /// Times.
    pub(crate) schedule: ScheduleBody,
}

/// The effect of a schedule on a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = GroupScheduleAction)]
pub(crate) enum GroupActionName {
    /// Everything is blocked but what the rules of the group allow.
    Block,
    /// Nothing is filtered.
    Pause,
}

/// Queries of a group that are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = GroupLogMode)]
pub(crate) enum LogName {
    /// All.
    All,
    /// Blocked ones.
    Blocked,
    /// None.
    Nothing,
}

/// A known client.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DnsClient, example = json!({ "name": "Ann's tablet", "group": "kids", "addresses": ["192.168.1.20"] }))]
pub(crate) struct ClientBody {
    /// Id: 1 to 63 of `a-z 0-9 -`; also the last part of `/dns-query/ID`. In a request it is the one of the path.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    pub(crate) id: String,
    /// Name on pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Group; `default` if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    /// Addresses, networks (`192.168.1.0/24`) and MAC addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) addresses: Option<Vec<String>>,
    /// Tags for rules with `$ctag`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tags: Option<Vec<String>>,
}

/// A record answered here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LocalRecord, example = json!({ "name": "printer.home.arpa", "type": "A", "value": "192.168.1.9" }))]
pub(crate) struct RecordBody {
    /// Name, or `*.name` for all names below it.
    pub(crate) name: String,
    /// Type.
    #[serde(rename = "type")]
    pub(crate) record_type: String,
    /// Data as in a zone file.
    pub(crate) value: String,
    /// TTL; 300 if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ttl_seconds: Option<u32>,
}
