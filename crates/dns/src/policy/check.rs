//! Checks of the policy: every refusal names the field and the reason.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    net::IpAddr,
};

use ipnet::IpNet;

use super::{
    document::{
        BlockMode, ClientGroup, DEFAULT_GROUP, Policy, PolicyScope, UpstreamServer, WeekSchedule,
    },
    schedule::CheckedSchedule,
};
use crate::{
    DomainName,
    lists::{HashSeed, ListSet, services},
    local::LocalRecords,
    upstream::UpstreamAddress,
};

/// Bounds of the lists in the document; each is far above what a network of thousands needs.
const GROUPS_MAX: usize = 64;
const LISTS_MAX: usize = 256;
const CLIENTS_MAX: usize = 20_000;
const RULES_MAX: usize = 20_000;
const RECORDS_MAX: usize = 50_000;
const SERVERS_MAX: usize = 32;
const NETWORKS_MAX: usize = 1_000;
const TIMED_MAX: usize = 1_000;
const DOMAINS_MAX: usize = 5_000;

/// Longest name or note.
const TEXT_MAX_BYTES: usize = 1_000;

/// A part of the policy that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// Path of the field, such as `groups[1].rules[0]`.
    pub field: String,
    /// Reason.
    pub reason: String,
}

impl PolicyError {
    /// Makes an error.
    pub fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }

    /// Puts the path of the part before the field.
    pub(crate) fn inside(self, parent: &str) -> Self {
        Self { field: format!("{parent}.{}", self.field), reason: self.reason }
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

impl std::error::Error for PolicyError {}

type Check = Result<(), PolicyError>;

impl Policy {
    /// Checks the whole document.
    pub fn check(&self) -> Check {
        let groups = self.check_groups()?;
        self.check_upstreams()?;
        self.check_lists()?;
        self.check_rules("rules", &self.rules)?;
        self.check_services()?;
        let clients = self.check_clients(&groups)?;
        self.check_records()?;
        self.check_timed(&groups, &clients)?;
        self.check_protection()?;
        self.check_log()
    }

    /// Returns the groups, the default one included. Its place is the first.
    pub fn all_groups(&self) -> Vec<ClientGroup> {
        let mut groups = self.groups.clone();
        match groups.iter().position(|group| group.id == DEFAULT_GROUP) {
            Some(index) => groups[..=index].rotate_right(1),
            None => groups.insert(0, ClientGroup::default()),
        }
        groups
    }

    fn check_upstreams(&self) -> Check {
        let upstreams = &self.upstreams;
        check_servers("upstreams.servers", &upstreams.servers)?;
        if let Some(timeout_ms) = upstreams.timeout_ms {
            check_range("upstreams.timeout_ms", timeout_ms, 100, 10_000)?;
        }
        check_count("upstreams.bootstrap", upstreams.bootstrap.len(), SERVERS_MAX)?;
        for (index, address) in upstreams.bootstrap.iter().enumerate() {
            let field = format!("upstreams.bootstrap[{index}]");
            let parsed: UpstreamAddress = address
                .parse()
                .map_err(|error: crate::Error| PolicyError::new(&field, invalid_reason(error)))?;
            if parsed.needs_bootstrap() {
                return Err(PolicyError::new(field, "a bootstrap server is given by address"));
            }
        }
        check_count("upstreams.domains", upstreams.domains.len(), DOMAINS_MAX)?;
        let mut seen = HashSet::new();
        for (index, domains) in upstreams.domains.iter().enumerate() {
            let field = format!("upstreams.domains[{index}]");
            if domains.domains.is_empty() || domains.servers.is_empty() {
                return Err(PolicyError::new(field, "name at least one domain and one server"));
            }
            check_servers(&format!("{field}.servers"), &domains.servers)?;
            for (at, domain) in domains.domains.iter().enumerate() {
                let field = format!("{field}.domains[{at}]");
                if !seen.insert(parse_name(&field, domain)?) {
                    return Err(PolicyError::new(field, format!("{domain} is given twice")));
                }
            }
        }
        Ok(())
    }

    fn check_lists(&self) -> Check {
        check_count("lists", self.lists.len(), LISTS_MAX)?;
        let mut seen = HashSet::new();
        for (index, list) in self.lists.iter().enumerate() {
            let field = format!("lists[{index}]");
            check_id(&format!("{field}.id"), &list.id)?;
            if !seen.insert(list.id.as_str()) {
                return Err(PolicyError::new(format!("{field}.id"), "another list has this id"));
            }
            check_text(&format!("{field}.name"), &list.name)?;
            check_list_url(&format!("{field}.url"), &list.url)?;
            check_schedule(&format!("{field}.schedule"), list.schedule.as_ref())?;
        }
        Ok(())
    }

    fn check_rules(&self, field: &str, rules: &[String]) -> Check {
        check_count(field, rules.len(), RULES_MAX)?;
        // Any seed will do: what counts is whether each rule can be read.
        let read = ListSet::of_rules(rules, HashSeed(0));
        read.map(drop).map_err(|(index, reason)| {
            PolicyError::new(format!("{field}[{index}]"), format!("{:?}: {reason}", rules[index]))
        })
    }

    fn check_services(&self) -> Check {
        check_count("services", self.services.len(), LISTS_MAX)?;
        let mut seen = HashSet::new();
        for (index, service) in self.services.iter().enumerate() {
            let field = format!("services[{index}]");
            check_id(&format!("{field}.id"), &service.id)?;
            check_text(&format!("{field}.name"), &service.name)?;
            if !seen.insert(service.id.as_str()) || services::find(&service.id).is_some() {
                return Err(PolicyError::new(format!("{field}.id"), "another service has this id"));
            }
            if service.domains.is_empty() {
                return Err(PolicyError::new(
                    format!("{field}.domains"),
                    "name at least one domain",
                ));
            }
            check_domains(&format!("{field}.domains"), &service.domains)?;
        }
        Ok(())
    }

    fn check_groups(&self) -> Result<HashSet<String>, PolicyError> {
        check_count("groups", self.groups.len(), GROUPS_MAX)?;
        let mut seen = HashSet::new();
        for (index, group) in self.groups.iter().enumerate() {
            let field = format!("groups[{index}]");
            check_id(&format!("{field}.id"), &group.id)?;
            if !seen.insert(group.id.clone()) {
                return Err(PolicyError::new(format!("{field}.id"), "another group has this id"));
            }
            check_text(&format!("{field}.name"), &group.name)?;
            check_text(&format!("{field}.description"), &group.description)?;
            for (at, list) in group.lists.iter().flatten().enumerate() {
                if !self.lists.iter().any(|known| known.id == *list) {
                    let reason = format!("there is no list {list:?}");
                    return Err(PolicyError::new(format!("{field}.lists[{at}]"), reason));
                }
            }
            self.check_rules(&format!("{field}.rules"), &group.rules)?;
            for (at, service) in group.services.iter().enumerate() {
                let field = format!("{field}.services[{at}]");
                let is_custom = self.services.iter().any(|custom| custom.id == service.id);
                if !is_custom && services::find(&service.id).is_none() {
                    let reason = format!("there is no service {:?}", service.id);
                    return Err(PolicyError::new(format!("{field}.id"), reason));
                }
                check_schedule(&format!("{field}.schedule"), service.schedule.as_ref())?;
            }
            check_servers(&format!("{field}.upstreams"), &group.upstreams)?;
            check_block_reply(&format!("{field}.block_reply"), group)?;
            check_count(&format!("{field}.schedules"), group.schedules.len(), GROUPS_MAX)?;
            for (at, schedule) in group.schedules.iter().enumerate() {
                let field = format!("{field}.schedules[{at}]");
                check_text(&format!("{field}.name"), &schedule.name)?;
                check_schedule(&format!("{field}.schedule"), Some(&schedule.schedule))?;
            }
        }
        seen.insert(DEFAULT_GROUP.to_owned());
        Ok(seen)
    }

    fn check_clients(&self, groups: &HashSet<String>) -> Result<HashSet<String>, PolicyError> {
        check_count("clients", self.clients.len(), CLIENTS_MAX)?;
        let mut ids = HashSet::new();
        let mut owners: HashMap<ClientAddress, &str> = HashMap::new();
        for (index, client) in self.clients.iter().enumerate() {
            let field = format!("clients[{index}]");
            check_client_id(&format!("{field}.id"), &client.id)?;
            if !ids.insert(client.id.clone()) {
                return Err(PolicyError::new(format!("{field}.id"), "another client has this id"));
            }
            check_text(&format!("{field}.name"), &client.name)?;
            if !groups.contains(&client.group) {
                let reason = format!("there is no group {:?}", client.group);
                return Err(PolicyError::new(format!("{field}.group"), reason));
            }
            check_count(&format!("{field}.addresses"), client.addresses.len(), NETWORKS_MAX)?;
            for (at, address) in client.addresses.iter().enumerate() {
                let field = format!("{field}.addresses[{at}]");
                let parsed = ClientAddress::parse(&field, address)?;
                if let Some(owner) = owners.insert(parsed, &client.id) {
                    let reason = format!("{address} belongs to client {owner:?} already");
                    return Err(PolicyError::new(field, reason));
                }
            }
            for (at, tag) in client.tags.iter().enumerate() {
                check_id(&format!("{field}.tags[{at}]"), tag)?;
            }
        }
        Ok(ids)
    }

    fn check_records(&self) -> Check {
        check_count("records", self.records.len(), RECORDS_MAX)?;
        LocalRecords::new(&self.records).map(drop)
    }

    fn check_timed(&self, groups: &HashSet<String>, clients: &HashSet<String>) -> Check {
        check_count("pauses", self.pauses.len(), TIMED_MAX)?;
        for (index, pause) in self.pauses.iter().enumerate() {
            check_scope(&format!("pauses[{index}].scope"), &pause.scope, groups, clients)?;
        }
        check_count("timed_rules", self.timed_rules.len(), TIMED_MAX)?;
        let mut seen = HashSet::new();
        for (index, rule) in self.timed_rules.iter().enumerate() {
            let field = format!("timed_rules[{index}]");
            check_id(&format!("{field}.id"), &rule.id)?;
            if !seen.insert(rule.id.as_str()) {
                return Err(PolicyError::new(format!("{field}.id"), "another rule has this id"));
            }
            parse_name(&format!("{field}.name"), &rule.name)?;
            check_scope(&format!("{field}.scope"), &rule.scope, groups, clients)?;
        }
        Ok(())
    }

    fn check_protection(&self) -> Check {
        parse_networks("access.networks", &self.access.networks)?;
        parse_networks("access.forwarders", &self.access.forwarders)?;
        for (index, id) in self.access.clients.iter().enumerate() {
            check_client_id(&format!("access.clients[{index}]"), id)?;
        }
        let limit = &self.rate_limit;
        check_range("rate_limit.per_second", limit.per_second.into(), 0, 1_000_000)?;
        check_range("rate_limit.burst", limit.burst.into(), 1, 10_000_000)?;
        check_range("rate_limit.ipv4_prefix", limit.ipv4_prefix.into(), 8, 32)?;
        check_range("rate_limit.ipv6_prefix", limit.ipv6_prefix.into(), 16, 128)?;
        parse_networks("rate_limit.exempt", &limit.exempt)?;
        check_domains("rebinding.exempt", &self.rebinding.exempt)?;
        check_range("list_refresh.every_hours", self.list_refresh.every_hours.into(), 1, 720)
    }

    fn check_log(&self) -> Check {
        check_domains("log.exclude_names", &self.log.exclude_names)?;
        check_count("log.exclude_clients", self.log.exclude_clients.len(), NETWORKS_MAX)?;
        check_range("log.sample_one_in", self.log.sample_one_in.into(), 1, 1_000)
    }
}

/// Address by which a client is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClientAddress {
    Net(IpNet),
    Mac([u8; 6]),
}

impl ClientAddress {
    pub(crate) fn parse(field: &str, text: &str) -> Result<Self, PolicyError> {
        if let Some(mac) = parse_mac(text) {
            return Ok(Self::Mac(mac));
        }
        parse_network(field, text).map(Self::Net).map_err(|_| {
            let reason = format!(
                "{text:?} is neither an address, nor a network such as 192.168.1.0/24, nor a MAC address"
            );
            PolicyError::new(field, reason)
        })
    }
}

/// Reads six bytes in hexadecimal with colons or dashes between them.
pub(crate) fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split([':', '-']);
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

/// Reads an address or a network; bits behind the prefix must be zero.
pub(crate) fn parse_network(field: &str, text: &str) -> Result<IpNet, PolicyError> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(IpNet::from(address));
    }
    let network: IpNet = text.parse().map_err(|_| {
        let reason = format!("{text:?} is not a network; write one such as 192.168.1.0/24");
        PolicyError::new(field, reason)
    })?;
    if network.trunc() != network {
        let reason = format!("{text} has bits behind its prefix; write {}", network.trunc());
        return Err(PolicyError::new(field, reason));
    }
    Ok(network)
}

/// Reads networks; refuses one that is given twice.
pub(crate) fn parse_networks(field: &str, texts: &[String]) -> Result<Vec<IpNet>, PolicyError> {
    check_count(field, texts.len(), NETWORKS_MAX)?;
    let mut seen = HashSet::new();
    let mut networks = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        let field = format!("{field}[{index}]");
        let network = parse_network(&field, text)?;
        if !seen.insert(network) {
            return Err(PolicyError::new(field, format!("{network} is given twice")));
        }
        networks.push(network);
    }
    Ok(networks)
}

/// Reads a domain name.
pub(crate) fn parse_name(field: &str, text: &str) -> Result<DomainName, PolicyError> {
    let name: DomainName =
        text.parse().map_err(|error| PolicyError::new(field, format!("{text:?}: {error}")))?;
    if name.is_root() {
        return Err(PolicyError::new(field, "the root is not a name to decide about"));
    }
    Ok(name)
}

fn check_domains(field: &str, domains: &[String]) -> Check {
    check_count(field, domains.len(), DOMAINS_MAX)?;
    for (index, domain) in domains.iter().enumerate() {
        parse_name(&format!("{field}[{index}]"), domain)?;
    }
    Ok(())
}

fn check_count(field: &str, count: usize, max: usize) -> Check {
    if count <= max {
        return Ok(());
    }
    Err(PolicyError::new(field, format!("has {count} entries; at most {max} are kept")))
}

fn check_range(field: &str, value: u64, least: u64, most: u64) -> Check {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(PolicyError::new(field, format!("{value} is not between {least} and {most}")))
}

fn check_text(field: &str, text: &str) -> Check {
    if text.len() > TEXT_MAX_BYTES || text.chars().any(char::is_control) {
        let reason = format!("has at most {TEXT_MAX_BYTES} bytes and no control characters");
        return Err(PolicyError::new(field, reason));
    }
    Ok(())
}

fn check_id(field: &str, id: &str) -> Check {
    let fits =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    if (1..=64).contains(&id.len()) && id.bytes().all(fits) {
        return Ok(());
    }
    Err(PolicyError::new(field, format!("{id:?} is not an id: 1 to 64 of a-z 0-9 - _ .")))
}

/// An id of a client is a label of a host name too.
fn check_client_id(field: &str, id: &str) -> Check {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = (1..=63).contains(&id.len()) && id.bytes().all(fits);
    if is_label && !id.starts_with('-') && !id.ends_with('-') {
        return Ok(());
    }
    let reason = format!("{id:?} is not a client's id: 1 to 63 of a-z 0-9 -, no - at its ends");
    Err(PolicyError::new(field, reason))
}

fn check_schedule(field: &str, schedule: Option<&WeekSchedule>) -> Check {
    schedule.map_or(Ok(()), |schedule| {
        CheckedSchedule::new(schedule).map(drop).map_err(|error| error.inside(field))
    })
}

fn check_servers(field: &str, servers: &[UpstreamServer]) -> Check {
    check_count(field, servers.len(), SERVERS_MAX)?;
    let mut seen = HashSet::new();
    for (index, server) in servers.iter().enumerate() {
        let field = format!("{field}[{index}]");
        check_text(&format!("{field}.name"), &server.name)?;
        if !seen.insert(server.address.as_str()) {
            let reason = format!("{} is given twice", server.address);
            return Err(PolicyError::new(format!("{field}.address"), reason));
        }
        server.parse().map_err(|error| error.inside(&field))?;
    }
    Ok(())
}

impl UpstreamServer {
    /// Reads the address and its bootstrap addresses.
    pub(crate) fn parse(&self) -> Result<UpstreamAddress, PolicyError> {
        let parsed: UpstreamAddress = self
            .address
            .parse()
            .map_err(|error: crate::Error| PolicyError::new("address", invalid_reason(error)))?;
        let bootstrap = self.bootstrap.iter().enumerate().map(|(index, text)| {
            text.parse::<IpAddr>().map_err(|_| {
                let reason = format!("{text:?} is not an address");
                PolicyError::new(format!("bootstrap[{index}]"), reason)
            })
        });
        Ok(parsed.with_bootstrap(bootstrap.collect::<Result<_, _>>()?))
    }
}

fn invalid_reason(error: crate::Error) -> String {
    match error {
        crate::Error::Invalid { message, .. } => message,
        other => other.to_string(),
    }
}

fn check_list_url(field: &str, url: &str) -> Check {
    let is_known = ["https://", "http://"].iter().any(|scheme| {
        url.strip_prefix(scheme).is_some_and(|rest| {
            let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
            !host.is_empty() && !host.contains('@')
        })
    });
    let is_file = url.strip_prefix("file:").is_some_and(|name| {
        !name.is_empty() && !name.contains(['/', '\\']) && !name.starts_with('.')
    });
    let is_plain = url.len() <= 2_000 && !url.chars().any(|c| c.is_control() || c == ' ');
    if is_plain && (is_known || is_file || url == "embedded:default") {
        return Ok(());
    }
    let reason = format!(
        "{url:?} is not a source; write https://…, http://…, file:NAME (below the folder of lists) or embedded:default"
    );
    Err(PolicyError::new(field, reason))
}

fn check_block_reply(field: &str, group: &ClientGroup) -> Check {
    let reply = &group.block_reply;
    check_range(&format!("{field}.ttl_seconds"), reply.ttl_seconds.into(), 1, 86_400)?;
    for (name, text, is_kind) in [
        ("ipv4", &reply.ipv4, IpAddr::is_ipv4 as fn(&IpAddr) -> bool),
        ("ipv6", &reply.ipv6, IpAddr::is_ipv6),
    ] {
        if let Some(text) = text
            && !text.parse().is_ok_and(|address| is_kind(&address))
        {
            let reason = format!("{text:?} is not an {name} address");
            return Err(PolicyError::new(format!("{field}.{name}"), reason));
        }
    }
    if reply.mode == BlockMode::CustomAddress && reply.ipv4.is_none() && reply.ipv6.is_none() {
        let reason = "mode custom_address needs ipv4, ipv6 or both";
        return Err(PolicyError::new(format!("{field}.mode"), reason));
    }
    Ok(())
}

fn check_scope(
    field: &str,
    scope: &PolicyScope,
    groups: &HashSet<String>,
    clients: &HashSet<String>,
) -> Check {
    let reason = match scope {
        PolicyScope::All => return Ok(()),
        PolicyScope::Group(id) if groups.contains(id) => return Ok(()),
        PolicyScope::Group(id) => format!("there is no group {id:?}"),
        PolicyScope::Client(id) if clients.contains(id) || id.parse::<IpAddr>().is_ok() => {
            return Ok(());
        }
        PolicyScope::Client(id) => format!("there is no client {id:?}, and it is not an address"),
    };
    Err(PolicyError::new(field, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(json: serde_json::Value) -> String {
        let policy: Policy = serde_json::from_value(json).unwrap();
        policy.check().unwrap_err().to_string()
    }

    #[test]
    fn an_empty_document_is_valid() {
        let policy: Policy = serde_json::from_str("{}").unwrap();
        assert_eq!(policy, Policy::default());
        policy.check().unwrap();
        assert_eq!(policy.all_groups().len(), 1);
    }

    #[test]
    fn refusals_name_the_field_and_the_reason() {
        use serde_json::json;
        for (json, field, reason) in [
            (json!({"groups": [{"id": "kids"}, {"id": "kids"}]}), "groups[1].id", "another group"),
            (json!({"groups": [{"id": "Kids!"}]}), "groups[0].id", "is not an id"),
            (json!({"groups": [{"id": "k", "lists": ["x"]}]}), "groups[0].lists[0]", "no list"),
            (
                json!({"groups": [{"id": "k", "block_reply": {"mode": "custom_address"}}]}),
                "groups[0].block_reply.mode",
                "needs ipv4",
            ),
            (
                json!({"groups": [{"id": "k", "schedules": [
                    {"action": "block", "schedule": {"windows": []}}]}]}),
                "groups[0].schedules[0].schedule.windows",
                "never starts",
            ),
            (
                json!({"clients": [
                    {"id": "a", "addresses": ["192.168.1.0/24"]},
                    {"id": "b", "addresses": ["192.168.1.0/24"]}]}),
                "clients[1].addresses[0]",
                "belongs to client \"a\"",
            ),
            (
                json!({"clients": [{"id": "a", "addresses": ["x"]}]}),
                "clients[0].addresses[0]",
                "MAC",
            ),
            (json!({"clients": [{"id": "a", "group": "x"}]}), "clients[0].group", "no group"),
            (json!({"access": {"networks": ["10.0.0.1/8"]}}), "access.networks[0]", "10.0.0.0/8"),
            (
                json!({"access": {"networks": ["10.0.0.0/8", "10.0.0.0/8"]}}),
                "access.networks[1]",
                "given twice",
            ),
            (
                json!({"upstreams": {"servers": [{"address": "nope"}]}}),
                "upstreams.servers[0].address",
                "",
            ),
            (
                json!({"upstreams": {"bootstrap": ["tls://dns.example"]}}),
                "upstreams.bootstrap[0]",
                "",
            ),
            (json!({"lists": [{"id": "a", "url": "ftp://x"}]}), "lists[0].url", "is not a source"),
            (
                json!({"lists": [{"id": "a", "url": "file:../x"}]}),
                "lists[0].url",
                "is not a source",
            ),
            (json!({"rate_limit": {"burst": 0}}), "rate_limit.burst", "between 1 and"),
            (
                json!({"pauses": [{"scope": {"group": "x"}, "until_ms": 1}]}),
                "pauses[0].scope",
                "no group",
            ),
        ] {
            let refused = refusal(json);
            let expected = format!("{field}: ");
            assert!(refused.starts_with(&expected) && refused.contains(reason), "{refused}");
        }
    }

    #[test]
    fn unknown_fields_are_refused_by_name() {
        let error = serde_json::from_str::<Policy>(r#"{"upstream": {}}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `upstream`"), "{error}");
    }
}
