//! The servers that queries are forwarded to: health, latency, share, a test.

use axum::extract::State;
use maud::{Markup, html};
use serde_json::json;
use web::chart;
use web::format;
use web::icon::Icon;
use web::middleware::percent;
use web::series::float;
use web::ui::{self, Shell};

use super::{PolicyNames, acts_word, dialog, frame, opener, shown_name};
use crate::api::upstreams::UpstreamView;
use crate::service::DnsState;

pub(crate) async fn page(State(state): State<DnsState>, shell: Shell) -> Markup {
    let acts = shell.may_operate();
    let topic = format!("dns-upstreams?{}", acts_word(acts));
    let body = html! {
        div.stack data-live=(topic) { (part(&state, acts)) }
        @if acts {
            (ui::card("", "Test a server", &html! {
                form.form data-api="POST /api/v1/dns/upstreams/test" data-done="{server}: {result} {answer}" {
                    div.form-row {
                        label.field { span { "Server" } input.input type="text" name="server" required placeholder="tls://dns.example" autocomplete="off" spellcheck="false"; small { "In use or not: an address, tcp://, tls://, https:// or sdns://." } }
                        (ui::text("name", "Name to query", "", "The name servers of the root if left empty."))
                    }
                    div { button.btn type="submit" { "Test" } }
                }
            }))
            (dialog("new-upstream", "Add an upstream", "POST /api/v1/dns/upstreams", "Add", "Queries are forwarded there now", &html! {
                label.field { span { "Server" } input.input type="text" name="address" required placeholder="tls://dns.example" autocomplete="off" spellcheck="false"; small { "192.0.2.1, tcp://192.0.2.1, tls://dns.example, https://dns.example/dns-query or sdns://…" } }
                (ui::text("name", "Name", "", "Shown here."))
                label.field { span { "Only for domains" } input.input type="text" name="domains" data-kind="list" placeholder="home.example" autocomplete="off" spellcheck="false"; small { "With all names below them, separated by commas. Empty: all queries." } }
                label.field { span { "Only for the group" } select.input name="group" { option value="" { "everybody" } @for group in state.resolver.policy().policy.all_groups() { option value=(group.id) { (shown_name(&group)) } } } }
                label.field { span { "Its addresses" } input.input type="text" name="bootstrap" data-kind="list" autocomplete="off" spellcheck="false"; small { "For a name: in place of asking the bootstrap servers." } }
            }))
        }
    };
    frame(&state, &shell, "upstreams", None, &body)
}

/// Renders the live part.
pub(crate) fn part(state: &DnsState, acts: bool) -> Markup {
    let version = state.resolver.policy();
    let is_own = !version.policy.upstreams.servers.is_empty();
    let actions = html! { @if acts { (opener("new-upstream", "Add an upstream")) } };
    html! {
        (ui::card_flush("", "Upstreams", &actions, &table(state, acts && is_own, acts)))
        (special(state, acts))
        @if !is_own { p.dim.small { "Those of the setting dns.upstreams. The first one that is added here takes their place, on all instances." } }
    }
}

/// Renders the servers that get the queries for some domains, or of a group.
fn special(state: &DnsState, acts: bool) -> Markup {
    let version = state.resolver.policy();
    let (policy, names) = (&version.policy, PolicyNames::new(state));
    let by_domain = policy.upstreams.domains.iter().flat_map(|one| {
        let query = format!("&domain={}", percent(one.domains.first().map_or("", String::as_str)));
        one.servers.iter().map(move |server| (server, one.domains.join(", "), query.clone()))
    });
    let by_group = policy.groups.iter().flat_map(|group| {
        let whose = format!("group {}", names.group(&group.id));
        let query = format!("&group={}", percent(&group.id));
        group.upstreams.iter().map(move |server| (server, whose.clone(), query.clone()))
    });
    let rows: Vec<_> = by_domain.chain(by_group).collect();
    if rows.is_empty() {
        return html! {};
    }
    ui::card_flush(
        "",
        "For some domains and groups",
        &html! {},
        &html! {
            div.table-wrap tabindex="0" { table.table.cards {
                thead { tr { th { "Queries" } th { "Server" } @if acts { th { span.sr { "Actions" } } } } }
                tbody { @for (server, whose, query) in &rows {
                    tr data-key={ (whose) "-" (server.address) } {
                        td.wrap-any { (whose) }
                        td.mono.wrap-any.wide { (server.address) @if !server.name.is_empty() { span.sub { (server.name) } } }
                        @if acts { td.r { span.actions {
                            button.btn.s type="button" aria-label={ "Test " (server.address) " for " (whose) } data-act="POST /api/v1/dns/upstreams/test" data-body=(json!({ "server": server.address })) data-done="{server}: {result}" { "Test" }
                            button.btn.s.ghost type="button" aria-label={ "Remove " (server.address) " for " (whose) } data-act={ "DELETE /api/v1/dns/upstreams?server=" (percent(&server.address)) (query) } data-confirm={ "Remove " (server.address) " for " (whose) "?" } data-confirm-verb="Remove" data-done="Removed" data-then="reload" { (Icon::TRASH) }
                        } } }
                    }
                } }
            } }
        },
    )
}

/// Renders the table of servers.
pub(super) fn table(state: &DnsState, removes: bool, acts: bool) -> Markup {
    let servers: Vec<UpstreamView> =
        state.resolver.upstreams().stats().into_iter().map(UpstreamView::from).collect();
    let total: u64 = servers.iter().map(|server| server.queries).sum::<u64>().max(1);
    html! {
        div.table-wrap tabindex="0" { table.table.cards {
            thead { tr { th { "Server" } th { "Health" } th.r { "Queries" } th { "Share" } th.r { "Failures" } th.r { "Mean" } th.r { "95 %" } @if acts { th { span.sr { "Actions" } } } } }
            tbody {
                @for server in &servers {
                    @let share = float(server.queries) / float(total);
                    tr data-key=(server.server) {
                        td.mono.wrap-any { (server.server) @if !server.name.is_empty() { span.sub { (server.name) } } }
                        td data-label="Health" {
                            @if server.is_healthy { (ui::badge("good", "healthy")) } @else { (ui::badge("bad", "failing")) }
                            @if let Some(failure) = &server.last_failure { span.sub { (failure) } }
                        }
                        td.r.num data-label="Queries" { (format::count(server.queries)) }
                        td data-label="Share" { span.bar-wrap { (chart::level(share, &format!("{:.0} %", share * 100.0))) } }
                        td.r.num data-label="Failures" { (format::count(server.failures)) }
                        td.r.num data-label="Mean" { @match server.response_ms { Some(ms) => { (short_ms(ms)) } None => { span.dim { "–" } } } }
                        td.r.num data-label="95 %" { @match server.p95_ms { Some(ms) => { (short_ms(ms)) } None => { span.dim { "–" } } } }
                        @if acts { td.r { span.actions {
                            button.btn.s type="button" aria-label={ "Test " (server.server) } data-act="POST /api/v1/dns/upstreams/test" data-body=(json!({ "server": server.server })) data-done="{server}: {result}" { "Test" }
                            @if removes { button.btn.s.ghost type="button" aria-label={ "Remove " (server.server) } data-act={ "DELETE /api/v1/dns/upstreams?server=" (percent(&server.server)) } data-confirm={ "Remove " (server.server) "? Queries go to the others." } data-confirm-verb="Remove" data-done="Removed" data-then="reload" { (Icon::TRASH) } }
                        } } }
                    }
                }
            }
        } }
    }
}

/// Milliseconds for people.
fn short_ms(ms: u64) -> String {
    if ms == 0 { "< 1 ms".to_owned() } else { format!("{ms} ms") }
}
