//! Unroutable jobs: waiting jobs that no live worker matches, with the worker they need.

use axum::extract::State;
use jobs::LaneView;
use maud::{Markup, html};

use super::{frame, needs};
use crate::service::JobsState;
use web::format;
use web::icon::Icon;
use web::middleware::percent;
use web::ui::{self, Shell};

pub(crate) async fn page(State(state): State<JobsState>, shell: Shell) -> Markup {
    let body = part(&state).await;
    frame(&state, &shell, "unroutable", Some("unroutable"), &body).await
}

/// The living part.
pub(crate) async fn part(state: &JobsState) -> Markup {
    super::with_jobs(state, async |jobs| Ok(list(&jobs.unroutable().await?))).await
}

fn list(lanes: &[LaneView]) -> Markup {
    let body = if lanes.is_empty() {
        ui::empty(
            Icon::CHECK,
            "No unroutable jobs",
            "Every waiting job has a live worker that matches.",
            &html! {},
        )
    } else {
        html! {
            div.table-wrap tabindex="0" { table.table.cards {
                thead { tr { th { "Type" } th.r { "Waiting" } th { "Needs a worker with" } th { "State" } } }
                tbody {
                    @for lane in lanes.iter().take(200) {
                        @let needs = needs(&lane.route.target);
                        tr {
                            td { a.row href={ "/jobs/waiting?type=" (percent(lane.route.job_type.as_str())) } { (lane.route.job_type.as_str()) } }
                            td.r data-label="Waiting" { (format::count(lane.waiting.iter().sum::<usize>() as u64)) }
                            td.wrap-any data-label="Needs" {
                                @if needs.is_empty() { "a handler for this type" } @else { (needs) }
                                @if !lane.route.avoid.is_empty() { span.sub { "not " (lane.route.avoid.join(", ")) } }
                            }
                            td { @if lane.paused { (ui::badge("warn", "paused")) } @else { (ui::badge("bad", "no worker")) } }
                        }
                    }
                }
            } }
        }
    };
    ui::card_flush("", "Unroutable jobs", &html! {}, &body)
}
