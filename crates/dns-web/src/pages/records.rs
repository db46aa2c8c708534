//! Records that are answered here.

use axum::extract::State;
use dns::Policy;
use maud::{Markup, html};
use web::icon::Icon;
use web::middleware::percent;
use web::ui::{self, Shell};

use super::{ROWS, dialog, frame, opener, with_policy};
use crate::service::DnsState;

/// The page of records.
pub(crate) async fn page(State(state): State<DnsState>, shell: Shell) -> Markup {
    let acts = shell.may_operate();
    let body = with_policy(&state, |policy| html! {
        (ui::card_flush("", "Records answered here", &html! { @if acts { (opener("new-record", "Add a record")) } }, &record_table(policy, acts)))
        @if acts {
            (dialog("new-record", "Add a record", "POST /api/v1/dns/records", "Add", "The record is answered from now on", &html! {
                (ui::text("name", "Name", "", "*.name stands for all names below it."))
                label.field { span { "Type" } select.input name="type" { @for kind in ["A", "AAAA", "CNAME", "TXT", "MX", "SRV", "PTR", "CAA", "NS", "HTTPS"] { option { (kind) } } } }
                (ui::text("value", "Data", "", "As in a zone file: an address, a name, \"a text\"."))
                (ui::number("ttl_seconds", "TTL", 300_u64, "Seconds for which clients keep it."))
            }))
        }
    })
    .await;
    frame(&state, &shell, "records", None, &body)
}

fn record_table(policy: &Policy, acts: bool) -> Markup {
    if policy.records.is_empty() {
        return ui::empty(
            Icon::BOX,
            "No records",
            "Names of your own network, such as printer.home.arpa, are answered from here.",
            &html! {},
        );
    }
    html! {
        div.table-wrap tabindex="0" { table.table.cards {
            thead { tr { th { "Name" } th { "Type" } th { "Data" } th.r { "TTL" } @if acts { th { span.sr { "Actions" } } } } }
            tbody {
                @for record in policy.records.iter().take(ROWS) {
                    tr {
                        td.mono.wrap-any { (record.name) }
                        td data-label="Type" { (record.record_type) }
                        td.mono.wrap-any.wide { (record.value) }
                        td.r.num data-label="TTL" { (record.ttl_seconds) " s" }
                        @if acts { td.r { button.btn.s.ghost type="button" aria-label={ "Remove " (record.name) }
                            data-act={ "DELETE /api/v1/dns/records?name=" (percent(&record.name)) "&type=" (percent(&record.record_type)) "&value=" (percent(&record.value)) }
                            data-done={ "Removed " (record.name) } data-then="reload" { (Icon::TRASH) } } }
                    }
                }
            }
        } }
    }
}
