//! Makes a policy of imported parts. Each part is checked when it comes, so that one that cannot be used
//! is reported with its line and leaves the others alone.

use std::collections::BTreeSet;

use dns::{
    BlockedService, ClientEntry, ClientGroup, CustomService, DEFAULT_GROUP, DomainUpstreams,
    GroupSchedule, ListAction, ListSource, LocalRecord, Policy, ScheduleAction, ScheduleWindow,
    UpstreamServer, WeekDay, WeekSchedule,
};

use super::document::Node;
use super::{ImportCounts, SKIPPED_MAX, SkippedLine};

/// Longest text of a line in a report, in characters.
const SHOWN_MAX: usize = 120;

/// A policy in the making.
#[derive(Debug)]
pub(super) struct PolicyBuilder {
    pub(super) policy: Policy,
    /// Lists that only some groups use.
    group_lists: BTreeSet<String>,
    counts: ImportCounts,
    skipped: Vec<SkippedLine>,
    skipped_count: u64,
    file: String,
}

impl PolicyBuilder {
    pub(super) fn new(policy: Policy) -> PolicyBuilder {
        PolicyBuilder {
            policy,
            group_lists: BTreeSet::new(),
            counts: ImportCounts::default(),
            skipped: Vec::new(),
            skipped_count: 0,
            file: String::new(),
        }
    }

    /// Names the file that lines are of.
    pub(super) fn set_file(&mut self, file: &str) {
        file.clone_into(&mut self.file);
    }

    /// Reports a line.
    pub(super) fn skip(&mut self, line: usize, text: &str, reason: impl Into<String>) {
        self.skipped_count += 1;
        if self.skipped.len() < SKIPPED_MAX {
            let text = text.chars().filter(|c| !c.is_control()).take(SHOWN_MAX).collect();
            let (file, reason) = (self.file.clone(), reason.into());
            self.skipped.push(SkippedLine { file, line, text, reason });
        }
    }

    /// Reports fields that are in none of these lists.
    pub(super) fn skip_others(
        &mut self,
        node: &Node,
        known: &[&str],
        why: impl Fn(&str) -> String,
    ) {
        for (key, value) in node.entries() {
            if !known.contains(&key.to_ascii_lowercase().as_str())
                && value.value != super::document::NodeValue::Null
            {
                let text = format!("{key}: {}", value.summary());
                self.skip(value.line, &text, why(key));
            }
        }
    }

    pub(super) fn add_upstream(&mut self, line: usize, server: UpstreamServer) {
        let alone = Policy {
            upstreams: dns::UpstreamPolicy { servers: vec![server.clone()], ..Default::default() },
            ..Policy::default()
        };
        if let Err(error) = alone.check() {
            return self.skip(line, &server.address, error.reason);
        }
        let servers = &mut self.policy.upstreams.servers;
        if !servers.iter().any(|known| known.address == server.address) {
            servers.push(server);
        }
        self.counts.upstreams += 1;
    }

    pub(super) fn add_domain_upstreams(&mut self, line: usize, entry: DomainUpstreams) {
        let alone = Policy {
            upstreams: dns::UpstreamPolicy { domains: vec![entry.clone()], ..Default::default() },
            ..Policy::default()
        };
        if let Err(error) = alone.check() {
            return self.skip(line, &entry.domains.join(", "), error.reason);
        }
        self.policy.upstreams.domains.retain(|known| known.domains != entry.domains);
        self.policy.upstreams.domains.push(entry);
        self.counts.upstreams += 1;
    }

    /// Adds a list and returns its id. One of the same URL is not added twice.
    pub(super) fn add_list(
        &mut self,
        line: usize,
        name: &str,
        url: &str,
        action: ListAction,
        enabled: bool,
    ) -> Option<String> {
        if let Some(known) = self.policy.lists.iter().find(|list| list.url == url) {
            let id = known.id.clone();
            self.counts.lists += 1;
            return Some(id);
        }
        let taken = |id: &str| self.policy.lists.iter().any(|list| list.id == id);
        let id = make_id(if name.is_empty() { url } else { name }, "list", taken);
        let list = ListSource {
            id: id.clone(),
            name: name.to_owned(),
            url: url.to_owned(),
            action,
            enabled,
            schedule: None,
        };
        let alone = Policy { lists: vec![list.clone()], ..Policy::default() };
        if let Err(error) = alone.check() {
            self.skip(line, url, error.reason);
            return None;
        }
        self.policy.lists.push(list);
        self.counts.lists += 1;
        Some(id)
    }

    /// Marks a list as one that only groups use that name it.
    pub(super) fn restrict_list(&mut self, id: &str) {
        self.group_lists.insert(id.to_owned());
    }

    /// Adds a rule, for everybody or a group.
    pub(super) fn add_rule(&mut self, line: usize, rule: &str, group: Option<&str>) {
        let alone = Policy { rules: vec![rule.to_owned()], ..Policy::default() };
        if let Err(error) = alone.check() {
            return self.skip(line, rule, error.reason);
        }
        let rules = match group {
            None => &mut self.policy.rules,
            Some(group) => &mut self.group(group).rules,
        };
        if !rules.iter().any(|known| known == rule) {
            rules.push(rule.to_owned());
        }
        self.counts.rules += 1;
    }

    /// Returns a group, made if it is not there.
    pub(super) fn group(&mut self, id: &str) -> &mut ClientGroup {
        if let Some(index) = self.policy.groups.iter().position(|group| group.id == id) {
            return &mut self.policy.groups[index];
        }
        let group = ClientGroup { id: id.to_owned(), ..ClientGroup::default() };
        self.policy.groups.push(group);
        let last = self.policy.groups.len() - 1;
        &mut self.policy.groups[last]
    }

    /// Adds a group by its name in the other program, and returns its id here.
    pub(super) fn add_group(&mut self, wanted: &str, name: &str, description: &str) -> String {
        let id = match wanted.eq_ignore_ascii_case(DEFAULT_GROUP) {
            true => DEFAULT_GROUP.to_owned(),
            false => make_id(wanted, "group", |_| false),
        };
        let group = self.group(&id);
        if !name.is_empty() {
            name.clone_into(&mut group.name);
        }
        if !description.is_empty() {
            description.clone_into(&mut group.description);
        }
        self.counts.groups += 1;
        id
    }

    /// Adds a client, and returns its id.
    pub(super) fn add_client(
        &mut self,
        line: usize,
        wanted: &str,
        name: &str,
        group: &str,
        addresses: Vec<String>,
        tags: Vec<String>,
    ) -> Option<String> {
        let known = |policy: &Policy, id: &str| policy.clients.iter().any(|one| one.id == id);
        let same = self
            .policy
            .clients
            .iter()
            .find(|client| addresses.iter().any(|address| client.addresses.contains(address)));
        let id = match same {
            Some(client) => client.id.clone(),
            None => client_id(wanted, |id| known(&self.policy, id)),
        };
        let entry = ClientEntry {
            id: id.clone(),
            name: name.to_owned(),
            group: if group.is_empty() { DEFAULT_GROUP } else { group }.to_owned(),
            addresses,
            tags,
        };
        let alone = Policy {
            groups: self.policy.groups.clone(),
            lists: self.policy.lists.clone(),
            services: self.policy.services.clone(),
            clients: vec![entry.clone()],
            ..Policy::default()
        };
        if let Err(error) = alone.check() {
            self.skip(line, &format!("{wanted} {}", entry.addresses.join(" ")), error.reason);
            return None;
        }
        self.policy.clients.retain(|client| client.id != id);
        self.policy.clients.push(entry);
        self.counts.clients += 1;
        Some(id)
    }

    pub(super) fn add_record(&mut self, line: usize, name: &str, kind: &str, value: &str) {
        let record = LocalRecord {
            name: name.to_owned(),
            record_type: kind.to_ascii_uppercase(),
            value: value.to_owned(),
            ttl_seconds: 300,
        };
        let alone = Policy { records: vec![record.clone()], ..Policy::default() };
        if let Err(error) = alone.check() {
            return self.skip(line, &format!("{name} {kind} {value}"), error.reason);
        }
        let is_same = |known: &LocalRecord| {
            known.name.eq_ignore_ascii_case(&record.name)
                && known.record_type == record.record_type
                && known.value == record.value
        };
        if !self.policy.records.iter().any(is_same) {
            self.policy.records.push(record);
        }
        self.counts.records += 1;
    }

    /// Blocks a service for a group.
    pub(super) fn add_service(
        &mut self,
        line: usize,
        group: &str,
        id: &str,
        schedule: Option<WeekSchedule>,
    ) {
        let is_custom = self.policy.services.iter().any(|service| service.id == id);
        if dns::lists::services::find(id).is_none() && !is_custom {
            return self.skip(
                line,
                id,
                "there is no service of this id here; block its names by rules",
            );
        }
        let service = BlockedService { id: id.to_owned(), schedule };
        let alone = Policy {
            services: self.policy.services.clone(),
            groups: vec![ClientGroup { services: vec![service.clone()], ..ClientGroup::default() }],
            ..Policy::default()
        };
        if let Err(error) = alone.check() {
            return self.skip(line, id, error.reason);
        }
        let services = &mut self.group(group).services;
        services.retain(|known| known.id != id);
        services.push(service);
        self.counts.services += 1;
    }

    /// Adds a service of one's own: some domains under a name.
    pub(super) fn add_custom_service(&mut self, id: &str, name: &str, domains: Vec<String>) {
        self.policy.services.retain(|service| service.id != id);
        self.policy.services.push(CustomService {
            id: id.to_owned(),
            name: name.to_owned(),
            domains,
        });
    }

    /// Adds times at which a group is not filtered, or gets nothing.
    pub(super) fn add_schedule(
        &mut self,
        line: usize,
        group: &str,
        name: &str,
        action: ScheduleAction,
        schedule: WeekSchedule,
    ) {
        let entry = GroupSchedule { name: name.to_owned(), action, schedule };
        let alone = Policy {
            groups: vec![ClientGroup { schedules: vec![entry.clone()], ..ClientGroup::default() }],
            ..Policy::default()
        };
        if let Err(error) = alone.check() {
            return self.skip(line, name, error.reason);
        }
        let schedules = &mut self.group(group).schedules;
        schedules.retain(|known| known.name != name);
        schedules.push(entry);
        self.counts.schedules += 1;
    }

    /// Ends the import. Parts that contradict each other are left out, and reported.
    pub(super) fn finish(mut self) -> (Policy, ImportCounts, Vec<SkippedLine>, u64) {
        if !self.group_lists.is_empty() {
            self.group(DEFAULT_GROUP);
            let common = self.policy.lists.iter().filter(|list| list.enabled);
            let common: Vec<String> = common
                .map(|list| list.id.clone())
                .filter(|id| !self.group_lists.contains(id))
                .collect();
            for group in self.policy.groups.iter_mut().filter(|group| group.lists.is_none()) {
                group.lists = Some(common.clone());
            }
        }
        // At most as many rounds as there are parts to leave out.
        for _ in 0..100 {
            let Err(error) = self.policy.check() else { break };
            if !self.remove_part(&error.field) {
                break;
            }
            self.skip(0, &error.field, error.reason);
        }
        (self.policy, self.counts, self.skipped, self.skipped_count)
    }

    /// Removes the part that a field names, such as `clients[3].addresses[0]`; false if it names none.
    fn remove_part(&mut self, field: &str) -> bool {
        fn remove<T>(parts: &mut Vec<T>, index: Option<usize>) -> bool {
            match index.filter(|index| *index < parts.len()) {
                Some(index) => {
                    parts.remove(index);
                    true
                }
                None => false,
            }
        }
        let (part, rest) = field.split_at(field.find(['[', '.']).unwrap_or(field.len()));
        let index = index_of(rest);
        let policy = &mut self.policy;
        match part {
            "clients" => remove(&mut policy.clients, index),
            "records" => remove(&mut policy.records, index),
            "rules" => remove(&mut policy.rules, index),
            "lists" => remove(&mut policy.lists, index),
            "services" => remove(&mut policy.services, index),
            "groups" => {
                let inner = rest.split_once("].").map_or("", |(_, inner)| inner);
                let (name, place) = inner.split_at(inner.find(['[', '.']).unwrap_or(inner.len()));
                let Some(group) = index.and_then(|index| policy.groups.get_mut(index)) else {
                    return false;
                };
                let place = index_of(place);
                match name {
                    "services" => remove(&mut group.services, place),
                    "rules" => remove(&mut group.rules, place),
                    "schedules" => remove(&mut group.schedules, place),
                    "upstreams" => remove(&mut group.upstreams, place),
                    "lists" => group.lists.as_mut().is_some_and(|lists| remove(lists, place)),
                    "block_reply" => {
                        group.block_reply = dns::BlockReply::default();
                        true
                    }
                    _ => remove(&mut policy.groups, index),
                }
            }
            "upstreams" if rest.starts_with(".servers") => {
                remove(&mut policy.upstreams.servers, index)
            }
            "upstreams" if rest.starts_with(".domains") => {
                remove(&mut policy.upstreams.domains, index)
            }
            "upstreams" => {
                policy.upstreams.bootstrap = dns::UpstreamPolicy::default().bootstrap;
                policy.upstreams.timeout_ms.take().is_some() || rest.starts_with(".bootstrap")
            }
            "access" => replace(&mut policy.access),
            "rate_limit" => replace(&mut policy.rate_limit),
            "log" => replace(&mut policy.log),
            "list_refresh" => replace(&mut policy.list_refresh),
            _ => false,
        }
    }
}

/// Puts the default in the place of something; false if it was there already.
fn replace<T: Default + PartialEq>(part: &mut T) -> bool {
    let default = T::default();
    let is_changed = *part != default;
    *part = default;
    is_changed
}

/// Reads the first index of a place such as `.servers[3]`.
fn index_of(place: &str) -> Option<usize> {
    place.split_once('[')?.1.split(']').next()?.parse().ok()
}

/// Makes an id of a name: small letters, digits and `-`, different from those that are taken.
pub(super) fn make_id(name: &str, otherwise: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let name = name.strip_prefix("https://").or(name.strip_prefix("http://")).unwrap_or(name);
    let mut id = String::new();
    for c in name.chars().flat_map(char::to_lowercase) {
        match c {
            'a'..='z' | '0'..='9' => id.push(c),
            _ if id.ends_with('-') || id.is_empty() => {}
            _ => id.push('-'),
        }
    }
    let id: String = id.chars().take(40).collect();
    let id = id.trim_matches('-');
    let id = if id.is_empty() { otherwise } else { id };
    if !is_taken(id) {
        return id.to_owned();
    }
    let mut numbered = (2..).map(|number| format!("{id}-{number}"));
    numbered.find(|id| !is_taken(id)).unwrap_or_else(|| id.to_owned())
}

fn client_id(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    make_id(name, "client", is_taken)
}

/// The days by number, 0 is Sunday.
pub(super) fn day(number: usize) -> Option<WeekDay> {
    use WeekDay::{Fri, Mon, Sat, Sun, Thu, Tue, Wed};
    [Sun, Mon, Tue, Wed, Thu, Fri, Sat].get(number).copied()
}

/// A schedule with one window, on some days or on all.
pub(super) fn week(start: &str, end: &str, days: Vec<WeekDay>, time_zone: &str) -> WeekSchedule {
    let days = if days.is_empty() { (0..7).filter_map(day).collect() } else { days };
    WeekSchedule {
        time_zone: time_zone.to_owned(),
        windows: vec![ScheduleWindow { days, start: start.to_owned(), end: end.to_owned() }],
    }
}

/// A name as a rule that blocks or allows it with all names below it; `/regex/` as it is.
pub(super) fn rule_of(text: &str, is_allow: bool) -> String {
    let text = text.trim();
    let is_pattern = text.len() > 2 && text.starts_with('/') && text.ends_with('/');
    let is_rule = text.starts_with("||") || text.starts_with("@@");
    let rule = match is_pattern || is_rule {
        true => text.to_owned(),
        false => {
            let name = text.trim_start_matches("*.").trim_end_matches('.');
            format!("||{}^", name.to_ascii_lowercase())
        }
    };
    if is_allow && !rule.starts_with("@@") { format!("@@{rule}") } else { rule }
}
