//! The filter: the policy, compiled for the hit path.
//!
//! A [`Filter`] never changes. Whatever depends on time (schedules, pauses, timed rules) is resolved
//! when it is made, and it says until when that holds; then, and whenever policy or lists change, a
//! new one is made and swapped in whole, with another generation. Verdicts kept in memory carry the
//! generation they were made under.
//!
//! A client is one of a group, and a *profile* is what is decided about its queries: one per group, and
//! one for each client with a pause or a timed rule of its own.
//!
//! Order of decisions: pause, timed rule, rules of the group, rules for everybody, schedule, services,
//! safe search, lists. Within a set: important exception, important block, exception, block.

mod neighbours;
mod network;
mod rate;

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use smallvec::SmallVec;
use store::Millis;

pub(crate) use self::{
    neighbours::{Neighbour, read_neighbours},
    network::{NetworkMap, read_mac_option, unmap},
    rate::{RateLimiter, RateRule},
};
use crate::{
    DomainName,
    lists::{
        CancelledRules, ClientFacts, HashSeed, ListSet, Lists, MatchName, Rewrite, RuleEffect,
        RuleMatch, RulePlace, is_private, safe_search, services,
    },
    local::LocalRecords,
    name::Question,
    policy::{
        BlockMode, BlockReply, CheckedSchedule, ClientAddress, ClientGroup, DEFAULT_GROUP,
        ListAction, PolicyError, PolicyScope, PolicyVersion, ScheduleAction, SearchEngine,
        parse_networks,
    },
    query_record::{Label, Labels},
    upstream::{RouteNumber, UpstreamRoutes},
    wire::{CachedAnswer, PlainRecord, WireQuery, rcode, rtype},
};

/// Profiles whose verdicts are kept with cached answers; queries of others are decided each time.
pub(crate) const PROFILES_KEPT: usize = 64;

/// Parameters of service bindings with addresses.
const IPV4_HINT: u16 = 4;
const IPV6_HINT: u16 = 6;

/// Inputs of a filter besides the policy.
#[derive(Debug)]
pub(crate) struct FilterInputs<'a> {
    pub(crate) lists: &'a Lists,
    pub(crate) labels: &'a Labels,
    pub(crate) routes: UpstreamRoutes,
    pub(crate) hosts: &'a str,
    pub(crate) neighbours: &'a [Neighbour],
    pub(crate) generation: u32,
}

/// The policy, compiled.
#[derive(Debug)]
pub(crate) struct Filter {
    pub(crate) policy: Arc<PolicyVersion>,
    pub(crate) generation: u32,
    /// Time until which it holds.
    valid_until: Option<Millis>,
    pub(crate) routes: UpstreamRoutes,
    pub(crate) records: LocalRecords,
    pub(crate) rate: RateRule,
    seed: HashSeed,
    lists: Vec<FilterList>,
    rules: Arc<ListSet>,
    profiles: Vec<Profile>,
    clients: ClientTable,
    access: NetworkMap<()>,
    access_ids: HashSet<String>,
    /// Forwarders that tell their clients' hardware addresses; none if there are none.
    forwarders: Option<NetworkMap<()>>,
    exempt: NetworkMap<()>,
    /// Domains that may have private addresses; none if all may.
    rebinding_exempt: Option<HashSet<DomainName>>,
    /// Domains with servers of their own, which are not special here.
    forwarded: HashSet<DomainName>,
}

#[derive(Debug)]
struct FilterList {
    id: String,
    name: String,
    action: ListAction,
    set: Arc<ListSet>,
}

/// Decisions about the queries of a group, or of one client of it.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) group_id: String,
    pub(crate) group: Label,
    pub(crate) client_id: String,
    pub(crate) client: Label,
    client_name: String,
    tags: Vec<String>,
    pause: Option<String>,
    schedule: Option<String>,
    timed: Vec<TimedVerdict>,
    lists: Vec<usize>,
    rules: Arc<ListSet>,
    services: Vec<(String, Arc<ListSet>)>,
    safe_search: Vec<SearchEngine>,
    pub(crate) reply: BlockReply,
    pub(crate) cache: bool,
    pub(crate) keep_ech: bool,
    pub(crate) route: RouteNumber,
    /// Rules look at the client's address, so verdicts are not kept.
    depends_on_client: bool,
    /// Number under which verdicts are kept: that of the group, unless the client has something of its
    /// own.
    slot: usize,
}

#[derive(Clone, Debug)]
struct TimedVerdict {
    id: String,
    name: DomainName,
    is_allow: bool,
}

#[derive(Clone, Debug, Default)]
struct ClientTable {
    /// Profiles by address and network.
    networks: NetworkMap<usize>,
    /// Profiles by hardware address, resolved to the neighbours' addresses.
    neighbours: HashMap<IpAddr, usize>,
    ids: HashMap<String, usize>,
    /// Profiles by hardware address, for queries of forwarders.
    macs: HashMap<[u8; 6], usize>,
}

/// A client as a query shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientContext {
    pub(crate) profile: usize,
    /// The client may query.
    pub(crate) is_allowed: bool,
    /// No rate limit.
    pub(crate) is_exempt: bool,
}

/// Ground of a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    /// Id of a list, or `rules`, `rules:GROUP`, `service:ID`, `schedule`, `timed_rule`, `safe_search`.
    pub(crate) source: String,
    /// Name for people.
    pub(crate) name: String,
    /// Place of the rule.
    pub(crate) place: Option<RulePlace>,
    /// Name or address that matched, if it is not the name asked for.
    pub(crate) hop: Option<String>,
    /// The rule is about some types only, so other types of the name may have records.
    pub(crate) is_typed: bool,
}

impl Reason {
    fn new(source: impl Into<String>, name: impl Into<String>) -> Self {
        let (source, name) = (source.into(), name.into());
        Self { source, name, place: None, hop: None, is_typed: false }
    }
}

/// Verdict about a query.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// The true answer; by an exception if there is a reason.
    Pass(Option<Reason>),
    Block(Reason),
    Rewrite(Rewrite, Reason),
    SafeSearch(DomainName, Reason),
}

impl Filter {
    /// Compiles a policy as it is at a moment.
    pub(crate) fn compile(
        policy: Arc<PolicyVersion>,
        inputs: FilterInputs<'_>,
        now: Millis,
    ) -> Result<Self, PolicyError> {
        let FilterInputs { lists, labels, routes, hosts, neighbours, generation } = inputs;
        let document = &policy.policy;
        let seed = lists.seed();
        let mut clock = ScheduleClock { now, next: None };
        let sets = lists.sets();
        let mut compiled = Vec::new();
        for source in &document.lists {
            let is_on = clock.is_on(source.schedule.as_ref())?;
            let Some(set) = sets.get(&source.id).filter(|_| source.enabled && is_on) else {
                continue;
            };
            let name = if source.name.is_empty() { &source.id } else { &source.name };
            compiled.push(FilterList {
                id: source.id.clone(),
                name: name.clone(),
                action: source.action,
                set: Arc::clone(set),
            });
        }
        let compile_rules = |field: &str, rules: &[String]| {
            ListSet::of_rules(rules, seed)
                .map(Arc::new)
                .map_err(|(index, reason)| PolicyError::new(format!("{field}[{index}]"), reason))
        };
        let rules = compile_rules("rules", &document.rules)?;
        let mut profiles = Vec::new();
        let mut group_profiles = HashMap::new();
        let mut routes_used: RouteNumber = 0;
        for (index, group) in document.all_groups().iter().enumerate() {
            let route = match group.upstreams.is_empty() {
                true => 0,
                false => {
                    routes_used += 1;
                    routes_used
                }
            };
            let group_rules = compile_rules(&format!("groups[{index}].rules"), &group.rules)?;
            let mut profile =
                Profile::of_group(group, &compiled, group_rules, &rules, route, labels);
            for schedule in &group.schedules {
                if clock.is_on(Some(&schedule.schedule))? {
                    let name = match schedule.name.as_str() {
                        "" => "schedule".to_owned(),
                        name => name.to_owned(),
                    };
                    match schedule.action {
                        ScheduleAction::Pause => profile.pause = Some(name),
                        ScheduleAction::Block => profile.schedule = Some(name),
                    }
                }
            }
            for service in &group.services {
                if !clock.is_on(service.schedule.as_ref())? {
                    continue;
                }
                let names = service_names(document, &service.id);
                let set = Arc::new(ListSet::of_names(&names, seed));
                profile.services.push((service.id.clone(), set));
            }
            profile.slot = profiles.len();
            group_profiles.insert(group.id.clone(), profiles.len());
            profiles.push(profile);
        }
        let mut filter = Self {
            access: parse_networks("access.networks", &document.access.networks)?
                .into_iter()
                .collect(),
            access_ids: document.access.clients.iter().cloned().collect(),
            forwarders: match document.access.forwarders.is_empty() {
                true => None,
                false => Some(
                    parse_networks("access.forwarders", &document.access.forwarders)?
                        .into_iter()
                        .collect(),
                ),
            },
            exempt: parse_networks("rate_limit.exempt", &document.rate_limit.exempt)?
                .into_iter()
                .collect(),
            rate: RateRule {
                per_second: document.rate_limit.per_second,
                burst: document.rate_limit.burst,
                ipv4_prefix: document.rate_limit.ipv4_prefix,
                ipv6_prefix: document.rate_limit.ipv6_prefix,
            },
            rebinding_exempt: document.rebinding.enabled.then(|| {
                document.rebinding.exempt.iter().filter_map(|name| name.parse().ok()).collect()
            }),
            forwarded: document
                .upstreams
                .domains
                .iter()
                .flat_map(|entry| &entry.domains)
                .filter_map(|name| name.parse().ok())
                .collect(),
            records: {
                let mut records = LocalRecords::new(&document.records)?;
                records.add_hosts(hosts);
                records
            },
            policy: Arc::clone(&policy),
            generation,
            valid_until: None,
            routes,
            seed,
            lists: compiled,
            rules,
            profiles,
            clients: ClientTable::default(),
        };
        filter.add_clients(&group_profiles, neighbours, labels, &mut clock)?;
        filter.valid_until = clock.next;
        Ok(filter)
    }

    /// Adds the clients of the policy, and profiles for those with something of their own.
    fn add_clients(
        &mut self,
        groups: &HashMap<String, usize>,
        neighbours: &[Neighbour],
        labels: &Labels,
        clock: &mut ScheduleClock,
    ) -> Result<(), PolicyError> {
        let policy = Arc::clone(&self.policy);
        let document = &policy.policy;
        let default = groups.get(DEFAULT_GROUP).copied().unwrap_or(0);
        for pause in &document.pauses {
            if !clock.is_before(pause.until_ms) {
                continue;
            }
            for profile in &mut self.profiles {
                let fits = match &pause.scope {
                    PolicyScope::All => true,
                    PolicyScope::Group(id) => *id == profile.group_id,
                    PolicyScope::Client(_) => false,
                };
                if fits {
                    profile.pause = Some("pause".to_owned());
                }
            }
        }
        let mut timed = Vec::new();
        for rule in &document.timed_rules {
            if !clock.is_before(rule.until_ms) {
                continue;
            }
            let Ok(name) = rule.name.parse() else { continue };
            let is_allow = rule.action == ListAction::Allow;
            let verdict = TimedVerdict { id: rule.id.clone(), name, is_allow };
            for profile in &mut self.profiles {
                let fits = match &rule.scope {
                    PolicyScope::All => true,
                    PolicyScope::Group(id) => *id == profile.group_id,
                    PolicyScope::Client(_) => false,
                };
                if fits {
                    profile.timed.push(verdict.clone());
                }
            }
            timed.push((rule.scope.clone(), verdict));
        }
        let own = |id: &str, profile: &mut Profile| {
            let is_of = |scope: &PolicyScope| *scope == PolicyScope::Client(id.to_owned());
            for (_, verdict) in timed.iter().filter(|(scope, _)| is_of(scope)) {
                // Before those of the group: what is said of one device is meant so.
                profile.timed.insert(0, verdict.clone());
            }
            for pause in document.pauses.iter().filter(|pause| is_of(&pause.scope)) {
                if pause.until_ms > clock.now.0 {
                    profile.pause = Some("pause".to_owned());
                }
            }
        };
        for client in &document.clients {
            let group = groups.get(&client.group).copied().unwrap_or(default);
            let mut profile = self.profiles[group].clone();
            profile.client_id.clone_from(&client.id);
            profile.client = labels.label(&client.id);
            profile.client_name.clone_from(&client.name);
            profile.tags.clone_from(&client.tags);
            let common = (profile.timed.len(), profile.pause.clone());
            own(&client.id, &mut profile);
            let index = self.profiles.len();
            if (profile.timed.len(), profile.pause.clone()) != common {
                profile.slot = index;
            }
            self.profiles.push(profile);
            self.clients.ids.insert(client.id.clone(), index);
            for address in &client.addresses {
                match ClientAddress::parse("clients", address)? {
                    ClientAddress::Net(network) => self.clients.networks.insert(network, index),
                    ClientAddress::Mac(mac) => {
                        self.clients.macs.insert(mac, index);
                        for (address, _) in neighbours.iter().filter(|(_, known)| *known == mac) {
                            self.clients.neighbours.insert(*address, index);
                        }
                    }
                }
            }
        }
        // Devices that are known by address alone.
        let scopes = document.pauses.iter().map(|pause| &pause.scope);
        let scopes = scopes.chain(document.timed_rules.iter().map(|rule| &rule.scope));
        let mut seen = HashSet::new();
        for scope in scopes {
            let PolicyScope::Client(id) = scope else { continue };
            let Ok(address) = id.parse::<IpAddr>() else { continue };
            if !seen.insert(address) {
                continue;
            }
            let base = self.context(address, None).profile;
            let mut profile = self.profiles[base].clone();
            own(id, &mut profile);
            profile.slot = self.profiles.len();
            self.clients.networks.insert(IpNet::from(address), self.profiles.len());
            self.profiles.push(profile);
        }
        Ok(())
    }

    /// Returns true once the filter has to be made anew.
    pub(crate) fn is_expired(&self, now: Millis) -> bool {
        self.valid_until.is_some_and(|until| now >= until)
    }

    /// Returns the time until which the filter holds.
    pub(crate) fn valid_until(&self) -> Option<Millis> {
        self.valid_until
    }

    /// Finds a client by id, hardware address, address or network. Allocates nothing.
    pub(crate) fn context(&self, address: IpAddr, id: Option<&str>) -> ClientContext {
        let address = unmap(address);
        let by_id = id.and_then(|id| self.clients.ids.get(id));
        let by_neighbour = || {
            if self.clients.neighbours.is_empty() {
                return None;
            }
            self.clients.neighbours.get(&address)
        };
        let profile = by_id
            .or_else(by_neighbour)
            .or_else(|| self.clients.networks.find(address))
            .copied()
            .unwrap_or(0);
        ClientContext {
            profile,
            is_allowed: self.access.contains(address)
                || id.is_some_and(|id| self.access_ids.contains(id)),
            is_exempt: address.is_loopback() || self.exempt.contains(address),
        }
    }

    /// Finds the client behind a forwarder by the hardware address that its query names. Allocates
    /// nothing.
    pub(crate) fn find_forwarded(&self, from: IpAddr, query: &WireQuery<'_>) -> Option<usize> {
        let forwarders = self.forwarders.as_ref()?;
        if !forwarders.contains(unmap(from)) {
            return None;
        }
        let mac = query.options().find_map(|(code, data)| read_mac_option(code, data))?;
        self.clients.macs.get(&mac).copied()
    }

    pub(crate) fn profile(&self, index: usize) -> &Profile {
        self.profiles.get(index).unwrap_or(&self.profiles[0])
    }

    /// Returns true if a name has servers of its own in the policy.
    pub(crate) fn is_forwarded(&self, name: &DomainName) -> bool {
        has_parent_in(&self.forwarded, name)
    }

    /// Decides about a name.
    pub(crate) fn decide(
        &self,
        profile: &Profile,
        address: IpAddr,
        name: &DomainName,
        qtype: u16,
    ) -> Verdict {
        if profile.pause.is_some() {
            return Verdict::Pass(None);
        }
        for timed in &profile.timed {
            if is_or_below(name, &timed.name) {
                let reason = Reason::new("timed_rule", format!("timed rule {}", timed.id));
                return match timed.is_allow {
                    true => Verdict::Pass(Some(reason)),
                    false => Verdict::Block(reason),
                };
            }
        }
        let asked = MatchName::new(self.seed, name, qtype, profile.facts(address));
        if let Some(verdict) = self.by_rules(profile, &asked) {
            return verdict;
        }
        if let Some(schedule) = &profile.schedule {
            return Verdict::Block(Reason::new("schedule", schedule.clone()));
        }
        if let Some(verdict) = by_services(profile, &asked) {
            return verdict;
        }
        for engine in &profile.safe_search {
            if let Some(target) = safe_search::find(*engine, &asked.text)
                && let Ok(target) = target.parse()
            {
                let reason = Reason::new("safe_search", "safe search");
                return Verdict::SafeSearch(target, reason);
            }
        }
        let cancelled = self.cancelled(profile);
        let by_lists = self.by_lists(profile, |set| set.find_left(&asked, &cancelled));
        by_lists.unwrap_or(Verdict::Pass(None))
    }

    fn by_rules(&self, profile: &Profile, asked: &MatchName<'_>) -> Option<Verdict> {
        let group = || profile.rules.find(asked).map(|found| (found, self.group_source(profile)));
        let without = [&profile.rules.cancelled];
        let common =
            || self.rules.find_left(asked, &without).map(|found| (found, "rules".to_owned()));
        let (found, source) = group().or_else(common)?;
        let name = if source == "rules" { "rules" } else { "rules of the group" };
        Some(verdict_of(found, ListAction::Block, Reason::new(source, name)))
    }

    /// Returns the rules that the operator's own cancel in lists.
    fn cancelled<'a>(&'a self, profile: &'a Profile) -> SmallVec<[&'a CancelledRules; 2]> {
        let all = [&self.rules.cancelled, &profile.rules.cancelled];
        all.into_iter().filter(|cancelled| !cancelled.is_empty()).collect()
    }

    fn group_source(&self, profile: &Profile) -> String {
        format!("rules:{}", profile.group_id)
    }

    fn by_lists(
        &self,
        profile: &Profile,
        find: impl Fn(&ListSet) -> Option<RuleMatch>,
    ) -> Option<Verdict> {
        let mut best: Option<(RuleMatch, &FilterList)> = None;
        for list in profile.lists.iter().filter_map(|index| self.lists.get(*index)) {
            let Some(mut found) = find(&list.set) else { continue };
            if list.action == ListAction::Allow {
                found.effect = RuleEffect::Allow;
            }
            let known = best.as_ref().map(|(known, _)| known.clone());
            let is_better = RuleMatch::stronger(known.clone(), Some(found.clone())) != known;
            if is_better {
                best = Some((found, list));
            }
        }
        let (found, list) = best?;
        Some(verdict_of(found, list.action, Reason::new(&list.id, &list.name)))
    }

    /// Decides about an answer to a name that passed: by its aliases, by the targets and hints of
    /// service bindings, by its addresses.
    pub(crate) fn decide_answer(
        &self,
        profile: &Profile,
        address: IpAddr,
        question: &Question,
        answer: &CachedAnswer,
    ) -> Option<Verdict> {
        if profile.pause.is_some() || profile.has_nothing(self) {
            return None;
        }
        let cancelled = self.cancelled(profile);
        for record in answer.records(0) {
            if let Some(target) = record.target()
                && target != question.name
            {
                let facts = profile.facts(address);
                let asked = MatchName::new(self.seed, &target, question.qtype, facts);
                let verdict = self
                    .by_rules(profile, &asked)
                    .or_else(|| by_services(profile, &asked))
                    .or_else(|| self.by_lists(profile, |set| set.find_left(&asked, &cancelled)));
                if let Some(verdict) = verdict.and_then(|verdict| through(verdict, &target)) {
                    return Some(verdict);
                }
            }
            let addresses = record.ip().into_iter().chain(record.hints());
            for ip in addresses {
                let facts = profile.facts(address);
                let asked = MatchName::new(self.seed, &question.name, question.qtype, facts);
                let group = profile.rules.find_address(ip, &asked, &[]);
                let group = group.map(|found| (found, self.group_source(profile)));
                let without = [&profile.rules.cancelled];
                let common = || {
                    let found = self.rules.find_address(ip, &asked, &without);
                    found.map(|found| (found, "rules".to_owned()))
                };
                let by_rules = group.or_else(common).map(|(found, source)| {
                    verdict_of(found, ListAction::Block, Reason::new(source, "rules"))
                });
                let verdict = by_rules.or_else(|| {
                    self.by_lists(profile, |set| set.find_address(ip, &asked, &cancelled))
                });
                if let Some(verdict) = verdict.and_then(|verdict| through(verdict, &ip)) {
                    return Some(verdict);
                }
            }
        }
        None
    }

    /// Returns the keys of hints in service bindings of a name whose addresses are withheld: what is
    /// blocked as a record is not told as a hint.
    pub(crate) fn withheld_hints(
        &self,
        profile: &Profile,
        address: IpAddr,
        question: &Question,
    ) -> Vec<u16> {
        let is_withheld = |qtype| {
            let verdict = self.decide(profile, address, &question.name, qtype);
            !matches!(verdict, Verdict::Pass(_))
        };
        let families = [(rtype::A, IPV4_HINT), (rtype::AAAA, IPV6_HINT)];
        families.into_iter().filter(|(qtype, _)| is_withheld(*qtype)).map(|(_, key)| key).collect()
    }

    /// Returns true if an answer has an address of a private network that it should not have.
    pub(crate) fn is_rebinding(&self, question: &Question, answer: &CachedAnswer) -> bool {
        let Some(exempt) = &self.rebinding_exempt else { return false };
        let has_private = answer.records(0).iter().any(|record| {
            let addresses = record.ip().into_iter().chain(record.hints());
            addresses.into_iter().any(is_rebinding_address)
        });
        has_private && !has_parent_in(exempt, &question.name) && !self.is_forwarded(&question.name)
    }

    /// Returns number and text of the line of a rule.
    pub(crate) fn rule_line(&self, lists: &Lists, reason: &Reason) -> Option<(u32, String)> {
        let place = reason.place?;
        let document = &self.policy.policy;
        let rules = match reason.source.as_str() {
            "rules" => Some(&document.rules),
            source => source.strip_prefix("rules:").and_then(|id| {
                document.groups.iter().find(|group| group.id == id).map(|group| &group.rules)
            }),
        };
        match rules {
            Some(rules) => crate::lists::line_of_text(&rules.join("\n"), place, self.seed),
            None => lists.line(&reason.source, place),
        }
    }
}

/// Returns true for an address that points into the client's own network. The unspecified address is
/// how other filters block.
fn is_rebinding_address(address: IpAddr) -> bool {
    is_private(address) && !unmap(address).is_unspecified()
}

fn by_services(profile: &Profile, asked: &MatchName<'_>) -> Option<Verdict> {
    let (id, _) = profile.services.iter().find(|(_, set)| set.find(asked).is_some())?;
    let name = services::find(id).map_or(id.as_str(), |service| service.name);
    Some(Verdict::Block(Reason::new(format!("service:{id}"), name)))
}

fn verdict_of(found: RuleMatch, action: ListAction, mut reason: Reason) -> Verdict {
    (reason.place, reason.is_typed) = (Some(found.place), found.is_typed);
    match (found.effect, action) {
        (RuleEffect::Allow, _) | (_, ListAction::Allow) => Verdict::Pass(Some(reason)),
        (RuleEffect::Block, _) => Verdict::Block(reason),
        (RuleEffect::Rewrite(rewrite), _) => Verdict::Rewrite(rewrite, reason),
    }
}

/// Notes what a verdict about an answer was made by; exceptions say nothing about the rest of it.
fn through(verdict: Verdict, hop: &impl ToString) -> Option<Verdict> {
    match verdict {
        Verdict::Block(mut reason) => {
            reason.hop = Some(hop.to_string());
            Some(Verdict::Block(reason))
        }
        Verdict::Rewrite(rewrite, mut reason) => {
            reason.hop = Some(hop.to_string());
            Some(Verdict::Rewrite(rewrite, reason))
        }
        Verdict::Pass(_) | Verdict::SafeSearch(..) => None,
    }
}

fn has_parent_in(names: &HashSet<DomainName>, name: &DomainName) -> bool {
    !names.is_empty()
        && std::iter::successors(Some(name.clone()), DomainName::parent)
            .any(|name| names.contains(&name))
}

fn is_or_below(name: &DomainName, parent: &DomainName) -> bool {
    std::iter::successors(Some(name.clone()), DomainName::parent).any(|name| name == *parent)
}

fn service_names(document: &crate::policy::Policy, id: &str) -> Vec<DomainName> {
    let custom = document.services.iter().find(|service| service.id == id);
    match (custom, services::find(id)) {
        (Some(custom), _) => custom.domains.iter().filter_map(|name| name.parse().ok()).collect(),
        (None, Some(service)) => {
            service.domains.iter().filter_map(|name| name.parse().ok()).collect()
        }
        (None, None) => Vec::new(),
    }
}

impl Profile {
    fn of_group(
        group: &ClientGroup,
        lists: &[FilterList],
        rules: Arc<ListSet>,
        common: &ListSet,
        route: RouteNumber,
        labels: &Labels,
    ) -> Self {
        let uses =
            |list: &FilterList| group.lists.as_ref().is_none_or(|ids| ids.contains(&list.id));
        let used = lists.iter().enumerate().filter(|(_, list)| uses(list));
        let used: Vec<usize> = used.map(|(index, _)| index).collect();
        let depends_on_client = rules.depends_on_client()
            || common.depends_on_client()
            || used.iter().any(|index| lists[*index].set.depends_on_client());
        Self {
            group_id: group.id.clone(),
            group: labels.label(&group.id),
            client_id: String::new(),
            client: Label::NONE,
            client_name: String::new(),
            tags: Vec::new(),
            pause: None,
            schedule: None,
            timed: Vec::new(),
            lists: used,
            rules,
            services: Vec::new(),
            safe_search: group.safe_search.clone(),
            reply: group.block_reply.clone(),
            cache: group.cache,
            keep_ech: group.keep_ech,
            route,
            depends_on_client,
            slot: 0,
        }
    }

    /// Returns the number under which verdicts are kept with answers; none if they are not kept.
    pub(crate) fn verdict_slot(&self) -> Option<usize> {
        (self.slot < PROFILES_KEPT && !self.depends_on_client && self.cache).then_some(self.slot)
    }

    fn facts(&self, address: IpAddr) -> ClientFacts<'_> {
        let (id, name, tags) = (&self.client_id, &self.client_name, &self.tags);
        ClientFacts { address, id, name, tags }
    }

    /// Returns true if there is nothing that an answer could be checked against.
    fn has_nothing(&self, filter: &Filter) -> bool {
        self.lists.is_empty()
            && self.services.is_empty()
            && self.rules.figures.rules == 0
            && filter.rules.figures.rules == 0
    }

    /// Returns the pause or the schedule in force.
    pub(crate) fn state(&self) -> (Option<&str>, Option<&str>) {
        (self.pause.as_deref(), self.schedule.as_deref())
    }
}

/// Resolves schedules at a moment, and finds the next at which any of them changes.
struct ScheduleClock {
    now: Millis,
    next: Option<Millis>,
}

impl ScheduleClock {
    fn is_on(
        &mut self,
        schedule: Option<&crate::policy::WeekSchedule>,
    ) -> Result<bool, PolicyError> {
        let Some(schedule) = schedule else { return Ok(true) };
        let checked = CheckedSchedule::new(schedule)?;
        self.note(checked.next_change(self.now));
        Ok(checked.is_on(self.now))
    }

    fn is_before(&mut self, until_ms: i64) -> bool {
        let is_before = self.now.0 < until_ms;
        if is_before {
            self.note(Some(Millis(until_ms)));
        }
        is_before
    }

    fn note(&mut self, change: Option<Millis>) {
        self.next = match (self.next, change) {
            (Some(known), Some(change)) => Some(known.min(change)),
            (known, change) => known.or(change),
        };
    }
}

/// Makes the reply to a blocked query. Where other types of the name are not blocked, it is never denied
/// as a whole (RFC 8020).
pub(crate) fn blocked_answer(
    question: &Question,
    reply: &BlockReply,
    is_typed: bool,
) -> Option<CachedAnswer> {
    let ttl = reply.ttl_seconds.max(1);
    let owner = &question.name;
    let parse = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
    let address: Option<IpAddr> = match (reply.mode, question.qtype) {
        (BlockMode::NullAddress, rtype::A) => Some([0; 4].into()),
        (BlockMode::NullAddress, rtype::AAAA) => Some([0; 16].into()),
        (BlockMode::CustomAddress, rtype::A) => parse(&reply.ipv4),
        (BlockMode::CustomAddress, rtype::AAAA) => parse(&reply.ipv6),
        _ => None,
    };
    if let Some(address) = address {
        let record = [PlainRecord::address(owner.clone(), ttl, address)];
        return CachedAnswer::build(question, rcode::NOERROR, false, [&record, &[], &[]]);
    }
    let code = match reply.mode {
        BlockMode::Nxdomain if !is_typed => rcode::NXDOMAIN,
        BlockMode::Refused => {
            return CachedAnswer::build(question, rcode::REFUSED, false, [&[], &[], &[]]);
        }
        _ => rcode::NOERROR,
    };
    empty_answer(question, code, ttl)
}

/// Makes an answer without records, with the SOA record that lets clients keep it.
pub(crate) fn empty_answer(question: &Question, code: u16, ttl: u32) -> Option<CachedAnswer> {
    let soa = [PlainRecord::negative_soa(question.name.clone(), ttl)];
    CachedAnswer::build(question, code, false, [&[], &soa, &[]])
}
