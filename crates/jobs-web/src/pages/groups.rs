//! Dead letters by error: how many, of which type, since when; replay or remove all of one kind.

use jobs::{DeadGroups, DeadLetterGroup};
use maud::{Markup, html};

use super::list::{clip, reason_word};
use web::format;
use web::icon::Icon;
use web::middleware::percent;
use web::ui;

/// Groups shown.
const ROWS: usize = 20;

/// Renders the groups; nothing if there is no dead letter.
pub(super) fn card(DeadGroups { groups, is_whole, .. }: &DeadGroups, acts: bool) -> Markup {
    if groups.is_empty() {
        return html! {};
    }
    let note = html! { span.dim.small {
        @if !is_whole { "of the newest " (format::count(jobs::LOOK_MAX as u64)) " · " }
        @if groups.len() > ROWS { "the " (ROWS) " largest of " (groups.len()) } @else { (groups.len()) @if groups.len() == 1 { " error" } @else { " errors" } }
    } };
    let body = html! {
        div.table-wrap tabindex="0" { table.table.cards {
            thead { tr { th { "Error" } th.r { "Jobs" } th { "Type" } th { "Reason" } th { "Newest" } th { span.sr { "Actions" } } } }
            tbody { @for group in groups.iter().take(ROWS) { (row(group, acts)) } }
        } }
    };
    ui::card_flush("", "By error", &note, &body)
}

fn row(group: &DeadLetterGroup, acts: bool) -> Markup {
    let count = format::count(group.count as u64);
    let jobs = if group.count == 1 { "dead letter" } else { "dead letters" };
    let choice = serde_json::json!({ "state": "dead", "group": group.group }).to_string();
    let name = group.error.name.as_deref().unwrap_or("Error");
    html! {
        tr data-key=(group.group) {
            td.wrap-any {
                a.row href={ "/jobs/dead?group=" (percent(&group.group)) } { (name) }
                span.sub { (clip(&group.error.message)) }
            }
            td.r.num data-label="Jobs" { (count) }
            td data-label="Type" { (group.job_type) }
            td.nowrap data-label="Reason" { @if let Some(reason) = group.reason { (ui::badge("bad", reason_word(reason))) } }
            td.nowrap data-label="Newest" { @match group.newest { Some(at) => { (format::moment(at.0)) } None => { span.dim { "–" } } } }
            td.r { @if acts { span.actions {
                button.btn.s type="button" data-act="POST /api/v1/jobs/replay" data-body=(choice) data-done="Requeued: {count}" data-then="reload"
                    data-confirm={ "Run these " (count) " " (jobs) " again, with all their attempts?" } data-confirm-verb="Replay" { (Icon::REFRESH) "Replay" }
                button.btn.s.ghost type="button" aria-label={ "Remove the dead letters with " (name) } data-act="POST /api/v1/jobs/remove" data-body=(choice)
                    data-done="Removed {count}" data-then="reload" data-confirm={ "Remove these " (count) " " (jobs) " for good?" } data-confirm-word=(group.count) data-confirm-verb="Remove" { (Icon::TRASH) }
            } } }
        }
    }
}
