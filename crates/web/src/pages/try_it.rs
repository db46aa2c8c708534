//! The API as a page to try it on: every operation of the OpenAPI document, with a form.
//! `web/try.js` builds it from `/api/openapi.json`; calls go out with the session of the page.

use axum::extract::State;
use maud::{Markup, html};

use crate::app::App;
use crate::assets;
use crate::icon::Icon;
use crate::ui::{self, Shell};

pub(crate) async fn page(State(app): State<App>, shell: Shell) -> Markup {
    let head = ui::Head::new(
        "API",
        "Every operation, from the code itself. Try it with your own session.",
    )
    .actions(html! { a.btn href="/api/openapi.json" { (Icon::DOCS) "OpenAPI 3.1" } });
    let body = html! {
        section.card aria-label="Find" {
            div.filters {
                span.search {
                    (Icon::SEARCH)
                    input.input #find type="search" placeholder="Find an operation" aria-label="Find an operation" data-search="" autocomplete="off";
                }
            }
            div.card-body #operations { p.dim { "Loading …" } noscript { p { "This page needs JavaScript; the document itself is at " a href="/api/openapi.json" { "/api/openapi.json" } "." } } }
        }
        script type="module" src=(assets::url("try.js")) {}
    };
    shell.page(&app, "/api", &head, &body)
}
