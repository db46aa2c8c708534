//! Rules: pauses, rules for everybody and for a while, requests to allow a name, and a tester.

use axum::extract::State;
use dns::{ListAction, Policy};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::json;
use store::Millis;
use web::extract::Query;
use web::format;
use web::icon::Icon;
use web::middleware::percent;
use web::ui::{self, Shell};

use super::queries::decision_body;
use super::{PolicyNames, ROWS, dialog, frame, opener, scope_text, shown_name, with_policy};
use crate::api::devices::{RequestStateName, RequestView};
use crate::api::why::{WhyQuery, explain};
use crate::service::DnsState;

/// The page of rules, with a tester.
pub(crate) async fn page(
    State(state): State<DnsState>,
    Query(query): Query<TesterQuery>,
    shell: Shell,
) -> Markup {
    let acts = shell.may_operate();
    let tested = tester(&state, &query).await;
    let requests = requests(&state, acts).await;
    let now = state.resolver.now();
    let body = with_policy(&state, |policy| html! {
        (pauses(policy, now, acts))
        (requests)
        div.grid {
            (ui::card_flush("w6", "Rules for everybody", &html! { @if acts { (opener("new-rule", "Add a rule")) } }, &rule_list(policy, acts)))
            (ui::card_flush("w6", "For some time", &html! { @if acts { (opener("new-timed", "Allow or block for a while")) } }, &timed(policy, now, acts)))
        }
        (group_rules(policy, acts))
        (tested)
        @if acts { (rule_dialog(policy)) (timed_dialog(policy)) }
    })
    .await;
    frame(&state, &shell, "rules", None, &body)
}

/// A name to try.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TesterQuery {
    name: String,
    client: String,
    #[serde(rename = "type")]
    rtype: String,
}

async fn tester(state: &DnsState, query: &TesterQuery) -> Markup {
    let form = html! {
        form.filters method="get" action="/dns/rules" role="search" {
            input.input type="search" name="name" value=(query.name) placeholder="ads.example" aria-label="Name to try" autocomplete="off" spellcheck="false";
            input.input type="text" name="client" value=(query.client) placeholder="Client: address or id" aria-label="Client" autocomplete="off" spellcheck="false";
            input.input type="text" name="type" value=(query.rtype) placeholder="Type: A" aria-label="Type" autocomplete="off" spellcheck="false";
            button.btn type="submit" { "Try" }
        }
    };
    let body = if query.name.trim().is_empty() {
        ui::empty(
            Icon::SEARCH,
            "Try a name",
            "Shows what a client would get for it, and why.",
            &html! {},
        )
    } else {
        let asked = WhyQuery {
            name: query.name.trim().to_owned(),
            rtype: Some(query.rtype.trim().to_owned()),
            client: Some(query.client.trim().to_owned()),
        };
        match explain(state, &asked).await {
            Ok(decision) => html! { div.card-body { (decision_body(&decision)) } },
            Err(error) => html! { div.notice.bad role="alert" { (error.message()) } },
        }
    };
    ui::card_flush("", "Tester", &form, &body)
}

fn pauses(policy: &Policy, now: Millis, acts: bool) -> Markup {
    let on: Vec<_> = policy.pauses.iter().filter(|pause| pause.until_ms > now.0).collect();
    html! {
        @for pause in &on {
            div.notice.warn.said role="status" {
                b { "Filtering is paused " (scope_text(&pause.scope)) } " until " (format::moment(pause.until_ms)) ". "
                @if acts { button.btn.s type="button" data-act={ "DELETE /api/v1/dns/pauses" (scope_query(&pause.scope)) } data-done="Filtering again" data-then="reload" { (Icon::PLAY) "Filter again" } }
            }
        }
        @if acts && on.is_empty() {
            div.toolbar {
                span.dim { "Filtering is on." }
                span.end.actions {
                    @for (label, seconds) in [("10 minutes", 600), ("an hour", 3_600)] {
                        button.btn.s type="button" data-act="POST /api/v1/dns/pauses" data-body=(json!({ "duration_seconds": seconds }))
                            data-done={ "Filtering is paused for " (label) } data-then="reload" { (Icon::PAUSE) "Pause for " (label) }
                    }
                }
            }
        }
    }
}

fn scope_query(scope: &dns::PolicyScope) -> String {
    match scope {
        dns::PolicyScope::All => String::new(),
        dns::PolicyScope::Group(group) => format!("?group={}", percent(group)),
        dns::PolicyScope::Client(client) => format!("?client={}", percent(client)),
    }
}

fn rule_list(policy: &Policy, acts: bool) -> Markup {
    if policy.rules.is_empty() {
        return ui::empty(
            Icon::CHECK,
            "No rules",
            "A rule blocks or allows a name, whatever the lists say.",
            &html! {},
        );
    }
    html! {
        ul.list {
            @for rule in policy.rules.iter().take(ROWS) {
                li data-key=(rule) {
                    span.grow.mono.wrap-any { (rule) }
                    @if rule.starts_with("@@") { (ui::badge("good", "allows")) } @else { (ui::badge("bad", "blocks")) }
                    @if acts { button.btn.s.ghost type="button" aria-label={ "Remove " (rule) } data-act={ "DELETE /api/v1/dns/rules?rule=" (percent(rule)) } data-done={ "Removed " (rule) } data-then="reload" { (Icon::TRASH) } }
                }
            }
        }
    }
}

/// Rules that hold for one group only.
fn group_rules(policy: &Policy, acts: bool) -> Markup {
    let groups: Vec<_> = policy.groups.iter().filter(|group| !group.rules.is_empty()).collect();
    if groups.is_empty() {
        return html! {};
    }
    let body = html! {
        ul.list {
            @for group in groups {
                @for rule in group.rules.iter().take(ROWS) {
                    li data-key={ (group.id) " " (rule) } {
                        span.grow.mono.wrap-any { (rule) }
                        a.small href={ "/dns/groups/" (percent(&group.id)) } { (shown_name(group)) }
                        @if acts { button.btn.s.ghost type="button" aria-label={ "Remove " (rule) " of " (shown_name(group)) } data-act={ "DELETE /api/v1/dns/rules?rule=" (percent(rule)) "&group=" (percent(&group.id)) } data-done={ "Removed " (rule) } data-then="reload" { (Icon::TRASH) } }
                    }
                }
            }
        }
    };
    ui::card_flush("", "Rules of groups", &html! {}, &body)
}

/// Requests to allow a name that were made on the block page; nothing without any.
async fn requests(state: &DnsState, acts: bool) -> Markup {
    let Ok(found) = state.requests.list().await else { return html! {} };
    let found: Vec<RequestView> = found.into_iter().map(RequestView::from).take(50).collect();
    if found.is_empty() {
        return html! {};
    }
    let names = PolicyNames::new(state);
    let body = html! {
        ul.list {
            @for one in &found {
                @let path = format!("/api/v1/dns/allow-requests/{}", one.id);
                @let who = names.client(if one.client_id.is_empty() { &one.client } else { &one.client_id });
                li data-key=(one.id) {
                    span.grow.wrap-any {
                        span.mono { (one.name) } " " span.dim.small { "asked for by " (who) ", " (format::moment(one.asked_at.0.0)) }
                        @if !one.note.is_empty() { span.sub { "“" (one.note) "”" } }
                        @if !one.list.is_empty() { span.sub { "blocked by " (names.source(&one.list)) } }
                    }
                    @match one.state {
                        RequestStateName::Waiting if acts => {
                            span.actions {
                                button.btn.s.primary type="button" data-act={ "POST " (path) "/decision" } data-body=(json!({ "decision": "allow" })) data-done={ (one.name) " is allowed for everybody" } data-then="reload" { "Allow" }
                                button.btn.s type="button" data-act={ "POST " (path) "/decision" } data-body=(json!({ "decision": "allow", "duration_seconds": 3_600 })) data-done={ (one.name) " is allowed for " (who) ", for an hour" } data-then="reload" { "For an hour" }
                                button.btn.s type="button" data-act={ "POST " (path) "/decision" } data-body=(json!({ "decision": "deny" })) data-done={ (one.name) " stays blocked" } data-then="reload" { "Deny" }
                            }
                        }
                        RequestStateName::Waiting => { (ui::badge("warn", "waiting")) }
                        RequestStateName::Allowed => { (ui::badge("good", "allowed")) }
                        RequestStateName::Denied => { (ui::badge("bad", "denied")) }
                    }
                    @if acts && one.state != RequestStateName::Waiting { button.btn.s.ghost type="button" aria-label={ "Delete the request for " (one.name) } data-act={ "DELETE " (path) } data-done="Deleted" data-then="reload" { (Icon::TRASH) } }
                }
            }
        }
    };
    ui::card_flush("", "Requests to allow a name", &html! {}, &body)
}

fn timed(policy: &Policy, now: Millis, acts: bool) -> Markup {
    let on: Vec<_> = policy.timed_rules.iter().filter(|rule| rule.until_ms > now.0).collect();
    if on.is_empty() {
        return ui::empty(
            Icon::CLOCK,
            "Nothing for now",
            "Rules that allow or block a name for a while; they end on every instance.",
            &html! {},
        );
    }
    html! {
        ul.list {
            @for rule in on {
                li data-key=(rule.id) {
                    span.grow { span.mono { (rule.name) } " " span.dim.small { (scope_text(&rule.scope)) } }
                    @if rule.action == ListAction::Allow { (ui::badge("good", "allowed")) } @else { (ui::badge("bad", "blocked")) }
                    span.dim.small.nowrap { "until " (format::moment(rule.until_ms)) }
                    @if acts { button.btn.s.ghost type="button" aria-label={ "End the rule for " (rule.name) } data-act={ "DELETE /api/v1/dns/timed-rules/" (rule.id) } data-done={ "The rule for " (rule.name) " has ended" } data-then="reload" { (Icon::CROSS) } }
                }
            }
        }
    }
}

fn groups_choice(policy: &Policy) -> Markup {
    html! {
        label.field {
            span { "For" }
            select.input name="group" {
                option value="" { "everybody" }
                @for group in policy.all_groups() { option value=(group.id) { "group " (shown_name(&group)) } }
            }
        }
    }
}

fn rule_dialog(policy: &Policy) -> Markup {
    dialog(
        "new-rule",
        "Add a rule",
        "POST /api/v1/dns/rules",
        "Add",
        "The rule is in force",
        &html! {
            (ui::text("rule", "Rule", "", "||ads.example^ blocks a name with all below it, @@||good.example^ allows it, /regex/ blocks by pattern."))
            (groups_choice(policy))
        },
    )
}

fn timed_dialog(policy: &Policy) -> Markup {
    dialog(
        "new-timed",
        "Allow or block for a while",
        "POST /api/v1/dns/timed-rules",
        "Do it",
        "The rule is in force",
        &html! {
            (ui::text("name", "Name", "", "With all names below it."))
            label.field { span { "What" } select.input name="action" { option value="allow" { "allow" } option value="block" { "block" } } }
            (ui::number("duration_seconds", "Duration in seconds", 3_600_u64, "3,600 is an hour."))
            (groups_choice(policy))
        },
    )
}
