//! Settings of the policy that are no list of things: who may query, limits, protection, log, lists; export
//! and import. Settings of one process are on the product's page.

use axum::extract::State;
use dns::{LoggedAddresses, Policy, StrategyName};
use maud::{Markup, html};
use serde_json::json;
use web::format;
use web::icon::Icon;
use web::series::float;
use web::ui::{self, Shell};

use super::{frame, with_policy};
use crate::service::DnsState;

pub(crate) async fn page(State(state): State<DnsState>, shell: Shell) -> Markup {
    let acts = shell.may_operate();
    let body = with_policy(&state, |policy| html! {
        @if acts { div.grid { (access(policy)) (upstreams(policy)) (protection(policy)) (log(policy)) (lists(policy)) } }
        @else { (shown(policy)) }
        (transfer(acts))
        @if shell.may_own() { (clearing(&state)) }
        p.dim { "Addresses, threads, sizes and paths belong to one process: " a href="/settings" { "Settings" } ", under dns. Messages to other programs: " a href="/webhooks" { "Webhooks" } "." }
    })
    .await;
    frame(&state, &shell, "settings", None, &body)
}

/// The size of the log, and its end.
fn clearing(state: &DnsState) -> Markup {
    let log = state.recording.query_log.stats();
    let (bytes, unit) = format::bytes(float(log.bytes));
    ui::card(
        "",
        "Delete the query log",
        &html! {
            p { "This instance keeps " b { (format::count(log.rows)) } " queries in " (bytes) " " (unit) @if let Some(oldest) = log.oldest { ", the oldest of " (format::moment(oldest.0)) } ". The queries of one client are deleted on its page." }
            p { button.btn.danger type="button" data-act="DELETE /api/v1/dns/queries" data-confirm="Delete every logged query, on all instances? This cannot be undone; statistics stay." data-confirm-verb="Delete" data-done="Deleted {deleted} queries" data-then="reload" { (Icon::TRASH) "Delete all queries" } }
        },
    )
}

fn words(name: &str, label: &str, values: &[String], hint: &str) -> Markup {
    html! {
        label.field {
            span { (label) }
            textarea.input name=(name) rows="3" data-kind="list" spellcheck="false" { (values.join("\n")) }
            @if !hint.is_empty() { small { (hint) } }
        }
    }
}

fn save() -> Markup {
    html! { div { button.btn.primary type="submit" { "Save" } } }
}

fn access(policy: &Policy) -> Markup {
    ui::card(
        "w6",
        "Who may query",
        &html! {
            form.form data-api="PATCH /api/v1/dns/policy" data-base=(json!({ "access": { "networks": [], "clients": [], "forwarders": [] } })) data-done="In force on all instances" {
                (words("access.networks", "Networks", &policy.access.networks, "One per line. Queries from elsewhere are refused."))
                (words("access.clients", "Clients from anywhere", &policy.access.clients, "Ids of clients that may query over HTTPS and TLS wherever they are."))
                (words("access.forwarders", "Forwarders that name their clients", &policy.access.forwarders, "Networks of servers such as dnsmasq with add-mac: what they say about the client behind them is believed."))
                (save())
            }
        },
    )
}

fn upstreams(policy: &Policy) -> Markup {
    let servers: Vec<String> =
        policy.upstreams.servers.iter().map(|server| server.address.clone()).collect();
    let strategies = [
        (StrategyName::Failover, "failover", "in this order"),
        (StrategyName::LoadBalance, "load_balance", "in turns"),
        (StrategyName::Weighted, "weighted", "the fastest first"),
        (StrategyName::Fastest, "fastest", "the fastest first, and a second one when it is slow"),
    ];
    ui::card(
        "w6",
        "Upstreams",
        &html! {
            p.dim { @if servers.is_empty() { "Those of the setting dns.upstreams are asked." } @else { (servers.join(", ")) } " Servers are added and removed on the page " a href="/dns/upstreams" { "Upstreams" } "." }
            form.form data-api="PATCH /api/v1/dns/policy" data-base=(json!({ "upstreams": { "bootstrap": [] } })) data-done="In force on all instances" {
                label.field { span { "Order" } select.input name="upstreams.strategy" { @for (strategy, id, text) in strategies { option value=(id) selected[policy.upstreams.strategy == Some(strategy)] { (text) } } } }
                (words("upstreams.bootstrap", "Bootstrap servers", &policy.upstreams.bootstrap, "Addresses that resolve the names of upstreams and of list sources."))
                (save())
            }
        },
    )
}

fn protection(policy: &Policy) -> Markup {
    let (limit, rebinding) = (&policy.rate_limit, &policy.rebinding);
    ui::card(
        "w6",
        "Protection",
        &html! {
            form.form data-api="PATCH /api/v1/dns/policy" data-base=(json!({ "rate_limit": { "exempt": [] }, "rebinding": { "exempt": [] } })) data-done="In force on all instances" {
                div.form-row {
                    (ui::number("rate_limit.per_second", "Queries per second", limit.per_second, "Of one client network; 0 for no limit."))
                    (ui::number("rate_limit.burst", "At once", limit.burst, ""))
                }
                (words("rate_limit.exempt", "Networks without a limit", &limit.exempt, "Loopback is always among them."))
                label.check { input type="checkbox" name="rebinding.enabled" checked[rebinding.enabled]; span { "Withhold private addresses in answers of upstreams (DNS rebinding)" } }
                (words("rebinding.exempt", "Domains that may have private addresses", &rebinding.exempt, ""))
                (save())
            }
        },
    )
}

fn log(policy: &Policy) -> Markup {
    let log = &policy.log;
    let forms = [
        (LoggedAddresses::Full, "full", "in full"),
        (LoggedAddresses::Truncated, "truncated", "without the last part"),
        (LoggedAddresses::Hashed, "hashed", "as a keyed hash"),
    ];
    ui::card(
        "w6",
        "Query log",
        &html! {
            form.form data-api="PATCH /api/v1/dns/policy" data-base=(json!({ "log": { "exclude_names": [], "exclude_clients": [] } })) data-done="In force on all instances" {
                div.form-row {
                    label.field { span { "Addresses of clients" } select.input name="log.addresses" { @for (form, id, text) in forms { option value=(id) selected[log.addresses == form] { (text) } } } }
                    (ui::number("log.sample_one_in", "Log one query in", log.sample_one_in, "1 logs every query."))
                }
                (words("log.exclude_names", "Names that are not logged", &log.exclude_names, "With all names below them."))
                (words("log.exclude_clients", "Clients that are not logged", &log.exclude_clients, "Addresses, networks and ids."))
                (save())
            }
        },
    )
}

fn lists(policy: &Policy) -> Markup {
    ui::card(
        "w6",
        "Sources of lists",
        &html! {
            form.form data-api="PATCH /api/v1/dns/policy" data-done="In force on all instances" {
                (ui::number("list_refresh.every_hours", "Hours between two fetches", policy.list_refresh.every_hours, "1 to 720. Sources that failed are asked sooner."))
                label.check { input type="checkbox" name="list_refresh.allow_private" checked[policy.list_refresh.allow_private]; span { "Sources may be on private networks" } }
                (save())
            }
        },
    )
}

fn shown(policy: &Policy) -> Markup {
    ui::card(
        "",
        "Settings",
        &html! {
            dl.facts {
                dt { "Who may query" } dd { (policy.access.networks.join(", ")) }
                dt { "Rate limit" } dd { (policy.rate_limit.per_second) " a second, " (policy.rate_limit.burst) " at once" }
                dt { "Rebinding protection" } dd { @if policy.rebinding.enabled { "on" } @else { "off" } }
                dt { "Log" } dd { "one query in " (policy.log.sample_one_in) }
                dt { "Lists" } dd { "fetched every " (policy.list_refresh.every_hours) " hours" }
            }
        },
    )
}

fn transfer(acts: bool) -> Markup {
    ui::card(
        "",
        "Export and import",
        &html! {
            p { "The policy is one document, the same on all instances." }
            p.actions {
                a.btn href="/api/v1/dns/policy/export" download="dns-policy.json" { "Export everything" }
                a.btn href="/api/v1/dns/policy/export?extent=portable" download="dns-policy-portable.json" { "Export for another network" }
            }
            @if acts {
                p.dim { "Settings of AdGuard Home (AdGuardHome.yaml), of beyond-ads-dns (YAML, or the document of /sync/config) and single files of Pi-hole's teleporter can be pasted here. Settings without a counterpart are reported by line. Archives: " code { "tidegate dns import FILE" } "." }
                form.form data-api="POST /api/v1/dns/policy/import" data-done="Imported; {skipped_count} lines have no counterpart here" data-then="reload" {
                    (ui::text("file_name", "Name of the file", "", "Identifies a file of Pi-hole, such as blacklist.txt."))
                    label.field { span { "Text" } textarea.input name="text" rows="8" required spellcheck="false" {} }
                    label.check { input type="checkbox" name="replace"; span { "Begin with an empty policy instead of adding to this one" } }
                    div { button.btn.primary type="submit" { "Import" } }
                }
            }
        },
    )
}
