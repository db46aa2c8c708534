//! Services that are blocked with a click, for everybody or a group.

use axum::extract::State;
use dns::{ClientGroup, DEFAULT_GROUP, Policy};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::json;
use web::extract::Query;
use web::icon::Icon;
use web::middleware::percent;
use web::ui::{self, Shell};

use super::{dialog, frame, opener, shown_name, window_fields, with_policy};
use crate::api::services::{ServiceView, services};
use crate::service::DnsState;

/// The group that is shown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct GroupQuery {
    group: String,
}

pub(crate) async fn page(
    State(state): State<DnsState>,
    Query(query): Query<GroupQuery>,
    shell: Shell,
) -> Markup {
    let acts = shell.may_operate();
    let body = with_policy(&state, |policy| {
        let groups = policy.all_groups();
        let group = groups.iter().find(|group| group.id == query.group);
        let group = group.or_else(|| groups.iter().find(|group| group.id == DEFAULT_GROUP));
        match group {
            Some(group) => render(policy, &groups, group, acts),
            None => html! {},
        }
    })
    .await;
    frame(&state, &shell, "services", None, &body)
}

fn render(policy: &Policy, groups: &[ClientGroup], group: &ClientGroup, acts: bool) -> Markup {
    let all = services(policy);
    let times = "Block a service at some times";
    html! {
        form.toolbar method="get" action="/dns/services" {
            label.dim for="group" { "Blocked for" }
            select.input id="group" name="group" data-submit-on-change="" {
                @for one in groups { option value=(one.id) selected[one.id == group.id] { "group " (shown_name(one)) } }
            }
            noscript { button.btn.s type="submit" { "Show" } }
            @if acts { span.end.actions { (opener("service-times", "At some times")) (opener("new-service", "Add a service")) } }
        }
        (ui::card_flush("", &format!("Services of group {}", shown_name(group)), &html! {}, &html! {
            ul.list.services { @for one in &all { (row(one, group, acts)) } }
        }))
        @if acts {
            (dialog("new-service", "Add a service", "PUT /api/v1/dns/services/{id}", "Add", "The service can be blocked now", &html! {
                label.field { span { "Id" } input.input type="text" name="id" required autocomplete="off" spellcheck="false"; small { "Letters a to z, digits, - _ and ." } }
                (ui::text("name", "Name", "", ""))
                label.field { span { "Domains" } input.input type="text" name="domains" data-kind="list" required autocomplete="off" spellcheck="false"; small { "Separated by commas; all names below them count too." } }
            }))
            (dialog("service-times", times, &format!("POST /api/v1/dns/groups/{}/service-windows", percent(&group.id)), "Add", "The schedule is in force", &html! {
                label.field { span { "Service" } select.input name="service" { @for one in &all { option value=(one.id) { (one.name) } } } }
                (window_fields("UTC"))
            }))
        }
    }
}

fn row(one: &ServiceView, group: &ClientGroup, acts: bool) -> Markup {
    let blocked = group.services.iter().find(|service| service.id == one.id);
    let path = format!("/api/v1/dns/groups/{}/services/{}", percent(&group.id), percent(&one.id));
    html! {
        li data-key=(one.id) {
            span.grow.wrap-any {
                b { (one.name) }
                span.sub.wrap-any title=(one.domains.join(", ")) { (one.domains.iter().take(4).cloned().collect::<Vec<_>>().join(", ")) @if one.domains.len() > 4 { " and " (one.domains.len() - 4) " more" } }
                @if let Some(schedule) = blocked.and_then(|service| service.schedule.as_ref()) {
                    @for window in &schedule.windows { span.sub { (super::groups::window_text(window)) " (" (schedule.time_zone) ")" } }
                }
            }
            @match blocked {
                Some(service) if service.schedule.is_some() => { (ui::badge("warn", "at times")) }
                Some(_) => { (ui::badge("bad", "blocked")) }
                None => { (ui::badge("", "allowed")) }
            }
            @if acts {
                @if blocked.is_some() { button.btn.s type="button" aria-label={ "Unblock " (one.name) } data-act={ "DELETE " (path) } data-done={ (one.name) " is no longer blocked" } data-then="reload" { "Unblock" } }
                @else { button.btn.s type="button" aria-label={ "Block " (one.name) } data-act={ "PUT " (path) } data-body=(json!({})) data-done={ (one.name) " is blocked" } data-then="reload" { "Block" } }
                @if !one.is_built_in { button.btn.s.ghost type="button" aria-label={ "Remove " (one.name) } data-act={ "DELETE /api/v1/dns/services/" (percent(&one.id)) } data-confirm={ "Remove the service " (one.name) "?" } data-confirm-verb="Remove" data-done="Removed" data-then="reload" { (Icon::TRASH) } }
            }
        }
    }
}
