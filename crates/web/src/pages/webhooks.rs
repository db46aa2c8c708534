//! Webhooks as pages: the list, and one with its attempts and dead letters.

use axum::extract::State;
use maud::{Markup, html};

use crate::app::App;
use crate::error::ApiError;
use crate::extract::Path;
use crate::format;
use crate::icon::Icon;
use crate::ui::{self, Head, Shell};
use crate::webhook::api::{AttemptRow, DeadLetterRow, attempts, dead_letters};
use crate::webhook::target::{WebhookFormat, WebhookTarget};

/// Attempts shown.
const SHOWN: usize = 100;
const FORMATS: [WebhookFormat; 4] =
    [WebhookFormat::Json, WebhookFormat::Slack, WebhookFormat::Discord, WebhookFormat::Ntfy];

pub(crate) async fn page(State(app): State<App>, shell: Shell) -> Result<Markup, ApiError> {
    let targets = app.webhooks().targets().await?;
    let lead = "Events that wake people, sent to Slack, Discord or a program of your own.";
    let head = Head::new("Webhooks", lead).actions(html! {
        @if shell.may_own() { button.btn.primary type="button" data-open="new-webhook" { (Icon::PLUS) "New webhook" } }
    });
    let body = html! {
        div.stack {
            (ui::card_flush("", "Webhooks", &html! {}, &table(&targets)))
            (ui::card_flush("", "Events", &html! { a.small href="/docs/webhooks" { "How to verify a signature" } }, &events(&app)))
        }
        @if shell.may_own() { (new_dialog(&app)) }
    };
    Ok(shell.page(&app, "/webhooks", &head, &body))
}

fn table(targets: &[WebhookTarget]) -> Markup {
    if targets.is_empty() {
        let text = "A webhook tells Slack, Discord or a program of yours when a job is dead, a line is long or \
                    the store takes no writes. An admin makes one here, or with one API call.";
        return ui::empty(Icon::BOLT, "No webhooks yet", text, &html! {});
    }
    html! {
        div.table-wrap tabindex="0" {
            table.table.cards {
                thead { tr { th { "Name" } th { "Sends to" } th { "Format" } th { "Events" } th { "Status" } } }
                tbody {
                    @for target in targets {
                        tr data-key=(target.id) {
                            td { a.row href={ "/webhooks/" (target.id) } { (target.name) } span.sub.mono { (target.id) } }
                            td.mono.small.wrap-any data-label="Sends to" { (target.origin) }
                            td data-label="Format" { (target.format.as_str()) }
                            td.small data-label="Events" { @if target.events.is_empty() { "all" } @else { (target.events.join(", ")) } }
                            td { (status(target)) }
                        }
                    }
                }
            }
        }
    }
}

fn status(target: &WebhookTarget) -> Markup {
    if target.enabled { ui::badge("good", "on") } else { ui::badge("warn", "off") }
}

fn events(app: &App) -> Markup {
    html! {
        div.table-wrap tabindex="0" {
            table.table.cards {
                thead { tr { th { "Event" } th { "Sent when" } } }
                tbody {
                    @for event in app.webhooks().event_types() {
                        tr { td.mono.small.nowrap { (event.name) } td.wide { (ui::ticks(event.help)) } }
                    }
                }
            }
        }
    }
}

fn fields(app: &App, target: Option<&WebhookTarget>) -> Markup {
    let chosen = target.map(|target| target.events.as_slice()).unwrap_or_default();
    let format = target.map_or(WebhookFormat::Json, |target| target.format);
    html! {
        label.field { span { "Name" } input.input type="text" name="name" required maxlength="64" autocomplete="off" value=(target.map_or("", |target| &target.name)); }
        label.field {
            span { "Format" }
            select.input name="format" {
                @for one in FORMATS { option value=(one.as_str()) selected[one == format] { (format_word(one)) } }
            }
        }
        (event_choice(app, chosen))
        (ui::number("max_per_minute", "Most per minute", target.map_or(60, |target| target.max_per_minute), "What is more waits."))
        label.field {
            span { "Context" }
            input.input type="text" name="context" maxlength="200" autocomplete="off" value=(target.map_or("", |target| &target.context));
            small { "Goes with every event, such as the name of the installation." }
        }
    }
}

/// Renders a box for each event, by service. The form sends the list also when it is empty, which means all.
fn event_choice(app: &App, chosen: &[String]) -> Markup {
    let known = app.webhooks().event_types();
    let service = |name: &'static str| name.split('.').next().unwrap_or(name);
    html! {
        fieldset.checklist {
            legend { "Events" }
            @for (at, event) in known.iter().enumerate() {
                @if at == 0 || service(known[at - 1].name) != service(event.name) {
                    div.group-name { (service(event.name)) }
                }
                label.check title=(event.help.replace('`', "")) {
                    input type="checkbox" name="events" value=(event.name) data-list="" data-empty="" checked[chosen.iter().any(|one| one == event.name)];
                    span.mono.small { (event.name) }
                }
            }
            small.dim { "None chosen: all of them." }
        }
    }
}

/// The name of a format in the form.
fn format_word(format: WebhookFormat) -> &'static str {
    match format {
        WebhookFormat::Json => "JSON, for a program",
        WebhookFormat::Slack => "Slack",
        WebhookFormat::Discord => "Discord",
        WebhookFormat::Ntfy => "ntfy",
    }
}

fn new_dialog(app: &App) -> Markup {
    html! {
        dialog #new-webhook aria-labelledby="new-webhook-title" {
            form.dialog-body data-api="POST /api/v1/webhooks" data-secret="secret" data-then="reload" data-done="Webhook made" {
                h2 #new-webhook-title { "New webhook" }
                label.field {
                    span { "URL" }
                    input.input type="url" name="url" required maxlength="2048" autocomplete="off" placeholder="https://hooks.example.org/tidegate";
                    small { "Kept sealed; only its host is shown again." }
                }
                (fields(app, None))
                div.dialog-foot {
                    button.btn type="button" data-close="" { "Cancel" }
                    button.btn.primary type="submit" { "Make webhook" }
                }
            }
        }
    }
}

pub(crate) async fn one(
    State(app): State<App>,
    shell: Shell,
    Path(id): Path<String>,
) -> Result<Markup, ApiError> {
    let target = app.webhooks().target(&id).await?;
    let (attempts, dead) = (attempts(&app, &id).await?, dead_letters(&app, &id).await?);
    let path = format!("/api/v1/webhooks/{id}");
    let head = Head::new(&target.name, &target.origin).under("Webhooks", "/webhooks").actions(html! {
        (status(&target))
        @if shell.may_operate() {
            button.btn type="button" data-act={ "POST " (path) "/test" } data-done="Test sent" data-then="reload" { (Icon::BOLT) "Send a test" }
        }
    });
    let body = html! {
        div.grid {
            div.w8.stack {
                (ui::card_flush("", "Dead letters", &html! {}, &dead_table(&dead, &path, shell.may_operate())))
                (ui::card_flush("", "Attempts", &html! {}, &attempt_table(&attempts)))
            }
            @if shell.may_own() {
                div.w4.stack { (settings_card(&app, &target, &path)) (danger_card(&target, &path)) }
            }
        }
    };
    Ok(shell.page(&app, "/webhooks", &head, &body))
}

fn settings_card(app: &App, target: &WebhookTarget, path: &str) -> Markup {
    ui::card(
        "",
        "Settings",
        &html! {
            form.form data-api={ "PATCH " (path) } data-done="Saved" data-then="reload" {
                (fields(app, Some(target)))
                div.actions { button.btn.primary type="submit" { "Save" } }
            }
        },
    )
}

fn danger_card(target: &WebhookTarget, path: &str) -> Markup {
    let (verb, body) = if target.enabled {
        ("Turn off", "{\"enabled\":false}")
    } else {
        ("Turn on", "{\"enabled\":true}")
    };
    ui::card(
        "",
        "More",
        &html! {
            div.stack {
                button.btn type="button" data-act={ "PATCH " (path) } data-body=(body) data-done="Saved" data-then="reload" { (verb) }
                button.btn type="button" data-act={ "POST " (path) "/secret" } data-secret="secret" data-done="New secret made"
                    data-confirm="Make a new secret? What is sent from now on is signed with it, and receivers that know the old one refuse it."
                    data-confirm-verb="Make" { (Icon::KEY) "New secret" }
                button.btn.danger type="button" data-act={ "DELETE " (path) } data-done="Deleted" data-then="/webhooks"
                    data-confirm={ "Delete “" (target.name) "” with its dead letters?" } data-confirm-verb="Delete" { (Icon::TRASH) "Delete" }
            }
        },
    )
}

fn dead_table(dead: &[DeadLetterRow], path: &str, acts: bool) -> Markup {
    if dead.is_empty() {
        let text = "Events that could not be delivered in ten attempts appear here.";
        return ui::empty(Icon::CHECK, "No dead letters", text, &html! {});
    }
    html! {
        div.table-wrap tabindex="0" {
            table.table.cards {
                thead { tr { th { "Event" } th { "When" } th.r { "Attempts" } th { "Error" } th { span.sr { "Actions" } } } }
                tbody {
                    @for row in dead.iter().take(SHOWN) {
                        tr data-key=(row.delivery_id) {
                            td { (row.event) span.sub { (row.subject) } }
                            td.nowrap.small { (format::moment(row.created_at.0.0)) }
                            td.r data-label="Attempts" { (row.attempts) }
                            td.small.wrap-any { (row.error.as_deref().unwrap_or_default()) }
                            td.r { @if acts {
                                button.btn.s type="button" data-act={ "POST " (path) "/dead-letters/" (row.delivery_id) "/resend" } data-done="In line again" data-then="reload" { (Icon::REFRESH) "Send again" }
                            } }
                        }
                    }
                }
            }
        }
    }
}

fn attempt_table(attempts: &[AttemptRow]) -> Markup {
    if attempts.is_empty() {
        return ui::empty(Icon::CLOCK, "No attempts yet", "Send a test to see one.", &html! {});
    }
    html! {
        div.table-wrap tabindex="0" {
            table.table.cards {
                thead { tr { th { "When" } th { "Event" } th { "Outcome" } th.r { "Took" } th { "Error" } } }
                tbody {
                    @for row in attempts.iter().take(SHOWN) {
                        tr {
                            td.nowrap.small { (format::moment(row.attempted_at.0.0)) }
                            td { (row.event) span.sub { (row.subject) ", attempt " (row.attempt) } }
                            td { (ui::badge(tone(&row.outcome), &row.outcome)) @if let Some(status) = row.http_status { " " (status) } }
                            td.r data-label="Took" { (row.took_ms) " ms" }
                            td.small.wrap-any { (row.error.as_deref().unwrap_or_default()) }
                        }
                    }
                }
            }
        }
    }
}

fn tone(outcome: &str) -> &'static str {
    match outcome {
        "delivered" => "good",
        "retry" => "warn",
        _ => "bad",
    }
}
