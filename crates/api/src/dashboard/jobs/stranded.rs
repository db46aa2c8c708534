//! Jobs in line that no live worker may take: what they ask for, so that somebody can start one.

use axum::extract::State;
use jobs::LaneView;
use maud::{Markup, html};

use super::super::{Shell, format, ui};
use super::{frame, needs};
use crate::app::App;
use crate::front::percent;

pub(crate) async fn page(State(app): State<App>, shell: Shell) -> Markup {
    let body = part(&app).await;
    frame(&app, &shell, "stranded", Some("stranded"), &body).await
}

/// The living part.
pub(crate) async fn part(app: &App) -> Markup {
    super::with_jobs(app, async |jobs| Ok(list(&jobs.unroutable().await?))).await
}

fn list(lanes: &[LaneView]) -> Markup {
    let body = if lanes.is_empty() {
        ui::empty(
            "check",
            "Every job has somebody",
            "For each job in line there is a live worker that may take it.",
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
                            td { a.row href={ "/jobs/waiting?type=" (percent(lane.route.kind.as_str())) } { (lane.route.kind.as_str()) } }
                            td.r data-label="Waiting" { (format::count(lane.waiting.iter().sum::<usize>() as u64)) }
                            td.wrap-any data-label="Needs" {
                                @if needs.is_empty() { "a handler for this type" } @else { (needs) }
                                @if !lane.route.avoid.is_empty() { span.sub { "not " (lane.route.avoid.join(", ")) } }
                            }
                            td { @if lane.paused { (ui::badge("warn", "paused")) } @else { (ui::badge("bad", "nobody")) } }
                        }
                    }
                }
            } }
        }
    };
    ui::card_flush("", "Jobs nobody can take", &html! {}, &body)
}
