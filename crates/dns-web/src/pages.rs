//! Pages of the resolver, one file each, and the tabs they share.

pub(crate) mod cache;
pub(crate) mod clients;
pub(crate) mod groups;
pub(crate) mod instances;
pub(crate) mod lists;
pub(crate) mod overview;
pub(crate) mod problems;
pub(crate) mod queries;
pub(crate) mod records;
pub(crate) mod rules;
pub(crate) mod services;
pub(crate) mod settings;
pub(crate) mod upstreams;

use std::sync::Arc;

use dns::{ClientGroup, Policy, PolicyVersion};
use maud::{Markup, html};
use web::icon::Icon;
use web::middleware::percent;
use web::search::SearchHit;
use web::ui::{self, Shell};

use crate::error::DnsApiError;
use crate::service::DnsState;

/// Rows of a table.
const ROWS: usize = 500;

/// Hits of a search.
const HITS_MAX: usize = 8;

/// The tabs: path segment and label.
const TABS: [(&str, &str); 13] = [
    ("", "Overview"),
    ("queries", "Queries"),
    ("clients", "Clients"),
    ("groups", "Groups"),
    ("lists", "Lists"),
    ("rules", "Rules"),
    ("services", "Services"),
    ("records", "Records"),
    ("upstreams", "Upstreams"),
    ("cache", "Cache"),
    ("instances", "Instances"),
    ("problems", "Problems"),
    ("settings", "Settings"),
];

fn path_of(tab: &str) -> String {
    if tab.is_empty() { "/dns".to_owned() } else { format!("/dns/{tab}") }
}

fn tabs(state: &DnsState, here: &str) -> Markup {
    let problems = state.problems.count();
    html! {
        nav.tabs.many aria-label="DNS" {
            @for (name, word) in TABS {
                a href=(path_of(name)) aria-current=[(name == here).then_some("page")] {
                    (word)
                    @if name == "problems" && problems > 0 { span.count { (problems) } }
                }
            }
        }
    }
}

/// A page about the resolver: tabs and what is under them, which lives when there is a topic.
fn frame(state: &DnsState, shell: &Shell, tab: &str, topic: Option<&str>, body: &Markup) -> Markup {
    let head =
        ui::Head::new("DNS", "Queries that are answered from the cache, forwarded or blocked.");
    frame_with(state, shell, tab, topic, &head, body)
}

/// The same with a head of its own.
fn frame_with(
    state: &DnsState,
    shell: &Shell,
    tab: &str,
    topic: Option<&str>,
    head: &ui::Head,
    body: &Markup,
) -> Markup {
    let body = html! {
        (tabs(state, tab))
        @match topic { Some(topic) => { div.stack data-live=(topic) { (body) } } None => { div.stack { (body) } } }
    };
    shell.page(&state.app, "/dns", head, &body)
}

/// The word of a topic for those who may act and those who may look.
fn acts_word(acts: bool) -> &'static str {
    if acts { "acts" } else { "look" }
}

/// Finds pages, clients, groups, lists and records by a text.
pub(crate) fn search(state: &DnsState, text: &str) -> Vec<SearchHit> {
    let lower = text.to_lowercase();
    let has = |value: &str| value.to_lowercase().contains(&lower);
    let version = state.resolver.policy();
    let policy = &version.policy;
    let mut hits = Vec::new();
    for (tab, word) in TABS {
        if has(word) || has("dns") && tab.is_empty() {
            hits.push(SearchHit::new("page", format!("DNS: {word}"), "dns", path_of(tab)));
        }
    }
    let clients = policy.clients.iter().filter(|one| {
        has(&one.id) || has(&one.name) || one.addresses.iter().any(|address| has(address))
    });
    for client in clients.take(HITS_MAX) {
        let path = format!("/dns/clients/{}", percent(&client.id));
        hits.push(SearchHit::new("client", &client.id, &client.name, path));
    }
    for group in policy.groups.iter().filter(|one| has(&one.id) || has(&one.name)).take(HITS_MAX) {
        let path = format!("/dns/groups/{}", percent(&group.id));
        hits.push(SearchHit::new("group", shown_name(group), "dns", path));
    }
    for list in policy.lists.iter().filter(|one| has(&one.id) || has(&one.name)).take(HITS_MAX) {
        hits.push(SearchHit::new("list", &list.id, &list.name, "/dns/lists"));
    }
    for record in policy.records.iter().filter(|one| has(&one.name)).take(HITS_MAX) {
        hits.push(SearchHit::new("record", &record.name, &record.value, "/dns/records"));
    }
    hits
}

/// Renders something about the policy, or the error.
async fn with_policy(state: &DnsState, render: impl FnOnce(&Policy) -> Markup) -> Markup {
    match state.load_policy().await {
        Ok(policy) => render(&policy),
        Err(error) => {
            let error = DnsApiError::from(error);
            html! { div.notice.bad role="alert" { (error.message()) } }
        }
    }
}

/// A dialog with a form that calls the API and shows the page anew.
fn dialog(id: &str, title: &str, api: &str, verb: &str, done: &str, fields: &Markup) -> Markup {
    html! {
        dialog id=(id) aria-labelledby={ (id) "-title" } {
            form.dialog-body data-api=(api) data-done=(done) data-then="reload" {
                h2 id={ (id) "-title" } { (title) }
                (fields)
                div.dialog-foot {
                    button.btn type="button" data-close="" { "Cancel" }
                    button.btn.primary type="submit" { (verb) }
                }
            }
        }
    }
}

fn opener(id: &str, label: &str) -> Markup {
    html! { button.btn.s type="button" data-open=(id) { (Icon::PLUS) (label) } }
}

fn shown_name(group: &ClientGroup) -> String {
    if group.name.is_empty() { group.id.clone() } else { group.name.clone() }
}

/// Names for people in place of the ids of the policy in force.
pub(crate) struct PolicyNames(Arc<PolicyVersion>);

impl PolicyNames {
    pub(crate) fn new(state: &DnsState) -> PolicyNames {
        PolicyNames(state.resolver.policy())
    }

    /// Returns the name of a client; what was given if it has none.
    pub(crate) fn client<'a>(&'a self, id: &'a str) -> &'a str {
        let known = self.0.policy.clients.iter().find(|client| client.id == id);
        known.map_or(id, |client| if client.name.is_empty() { id } else { &client.name })
    }

    /// Returns the name of a group.
    pub(crate) fn group<'a>(&'a self, id: &'a str) -> &'a str {
        let known = self.0.policy.groups.iter().find(|group| group.id == id);
        known.map_or(id, |group| if group.name.is_empty() { id } else { &group.name })
    }

    /// Returns the name of what decided: a list, rules, a service, a schedule.
    pub(crate) fn source(&self, source: &str) -> String {
        let policy = &self.0.policy;
        if let Some(list) = policy.lists.iter().find(|list| list.id == source) {
            return if list.name.is_empty() { list.id.clone() } else { list.name.clone() };
        }
        match source {
            "rules" => return "Rules for everybody".to_owned(),
            "schedule" => return "Schedule".to_owned(),
            "timed_rule" => return "Rule for a while".to_owned(),
            "safe_search" => return "Safe search".to_owned(),
            _ => {}
        }
        if let Some(group) = source.strip_prefix("rules:") {
            return format!("Rules of {}", self.group(group));
        }
        let Some(id) = source.strip_prefix("service:") else { return source.to_owned() };
        let own = policy.services.iter().find(|service| service.id == id);
        let own = own.map(|service| service.name.as_str()).filter(|name| !name.is_empty());
        let built_in = || dns::lists::services::find(id).map_or(id, |service| service.name);
        format!("Service {}", own.unwrap_or_else(built_in))
    }

    /// Tells whether the log has addresses as they are.
    pub(crate) fn logs_full_addresses(&self) -> bool {
        self.0.policy.log.addresses == dns::LoggedAddresses::Full
    }
}

/// Says for whom a pause or a rule is.
fn scope_text(scope: &dns::PolicyScope) -> String {
    match scope {
        dns::PolicyScope::All => "for everybody".to_owned(),
        dns::PolicyScope::Group(group) => format!("for group {group}"),
        dns::PolicyScope::Client(client) => format!("for {client}"),
    }
}

/// Shows an error in place of what could not be read.
fn refusal(message: &str) -> Markup {
    html! { div.notice.bad role="alert" { (web::format::sentence(message)) } }
}

/// Check boxes for the days of a week.
fn day_boxes() -> Markup {
    const DAYS: [(&str, &str); 7] = [
        ("mon", "Mon"),
        ("tue", "Tue"),
        ("wed", "Wed"),
        ("thu", "Thu"),
        ("fri", "Fri"),
        ("sat", "Sat"),
        ("sun", "Sun"),
    ];
    html! {
        fieldset.days {
            legend.sr { "Days" }
            @for (id, name) in DAYS { label { input type="checkbox" name="days" value=(id) data-list=""; (name) } }
        }
    }
}

/// Fields for a window of a week.
fn window_fields(time_zone: &str) -> Markup {
    html! {
        (day_boxes())
        div.form-row {
            label.field { span { "From" } input.input type="time" name="start" required value="20:30"; }
            label.field { span { "To" } input.input type="time" name="end" required value="06:30"; small { "Before the start: on the next day." } }
        }
        (ui::text("time_zone", "Time zone", time_zone, "Such as Europe/Berlin."))
    }
}
