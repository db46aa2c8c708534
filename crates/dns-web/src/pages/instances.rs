//! The instances on this store.

use axum::extract::State;
use maud::{Markup, html};
use web::format;
use web::series::float;
use web::ui::{self, Shell};

use super::frame;
use crate::api::statistics::{InstanceView, live};
use crate::service::DnsState;

pub(crate) async fn page(State(state): State<DnsState>, shell: Shell) -> Markup {
    let body = part(&state).await;
    frame(&state, &shell, "instances", Some("dns-instances"), &body)
}

/// Renders the live part.
pub(crate) async fn part(state: &DnsState) -> Markup {
    let found = match live(state).await {
        Ok(found) => found,
        Err(error) => return html! { div.notice.bad role="alert" { (error.message()) } },
    };
    if found.is_empty() {
        return ui::empty(
            crate::ICON,
            "No instance yet",
            "An instance announces itself within seconds of its start.",
            &html! {},
        );
    }
    let total: u64 = found.iter().map(|one| one.queries).sum();
    ui::card_flush(
        "",
        "Live instances",
        &html! {},
        &html! {
            div.table-wrap tabindex="0" { table.table.cards {
                thead { tr { th { "Instance" } th.r { "Queries" } th.r { "Share" } th.r { "Memory" } th.r { "Store" } th.r { "Blocked" } th { "Policy" } th { "Started" } } }
                tbody { @for one in &found { (row(one, total)) } }
            } }
        },
    )
}

fn percent(part: u64, of: u64) -> String {
    if of == 0 { "–".to_owned() } else { format!("{:.0} %", float(part) / float(of) * 100.0) }
}

fn row(one: &InstanceView, total: u64) -> Markup {
    html! {
        tr data-key=(one.name) {
            td { b { (one.name) } span.sub { (one.version) @for address in &one.listen { " · " (address) } } }
            td.r.num data-label="Queries" { (format::count(one.queries)) }
            td.r.num data-label="Share" { (percent(one.queries, total)) }
            td.r.num data-label="Memory" { (percent(one.memory_hits, one.queries)) }
            td.r.num data-label="Store" { (percent(one.store_hits, one.queries)) }
            td.r.num data-label="Blocked" { (percent(one.blocked, one.queries)) }
            td data-label="Policy" { "version " (one.policy_version) }
            td.nowrap { (format::moment(one.started_at.0.0)) }
        }
    }
}
