//! Forms of a queue: admit, rate, message, settings, a new queue.

use maud::{Markup, html};
use room::{Queue, QueueConfig, QueueStatus};

use crate::waiting_page::brand::Brand;
use web::format;
use web::icon::Icon;
use web::ui::{self, Shell};

/// Renders the dialogs of a queue's buttons.
pub(super) fn dialogs(queue: &Queue) -> Markup {
    let path = format!("/api/v1/admin/queues/{}", queue.id);
    let rate = &queue.config.admission;
    let said = queue.config.message.get("en").and_then(|text| text.as_str()).unwrap_or_default();
    html! {
        (ui::dialog("admit", "Admit visitors", &format!("POST {path}/admit"), "Admit", "Admitted {admitted}", &html! {
            p { "Admits the next visitors now. The rate does not apply; the limit of active visitors does." }
            (ui::number("count", "Number of visitors", 10_u32, "from 1 to 10,000"))
        }))
        (ui::dialog("rate", "Change the rate", &format!("POST {path}/rate"), "Change", "Rate changed", &html! {
            p { "Applies to admissions from now on." }
            div.form-row {
                (ui::number("count", "Visitors", rate.count, ""))
                (ui::number("per_seconds", "per … seconds", rate.per_seconds, ""))
                (ui::number("burst", "Burst", rate.burst, ""))
            }
        }))
        (ui::dialog("message", "Message to waiting visitors", &format!("POST {path}/message"), "Send", "Message changed", &html! {
            label.field { span { "Message" } textarea.input name="text.en" rows="3" maxlength="1000" required { (said) } small { "Shown on every waiting page." } }
        }))
    }
}

/// Renders the settings of a queue, editable for admins.
pub(super) fn settings(queue: &Queue, shell: &Shell) -> Markup {
    let config = &queue.config;
    let id = queue.id.as_str();
    let path = format!("/api/v1/admin/queues/{id}");
    html! {
        div.grid {
            @if shell.may_own() {
                (ui::card("w8", "Settings", &html! {
                    form.form data-api={ "PATCH " (path) } data-done="Saved" data-then="reload" {
                        (fields(config))
                        div.actions { button.btn.primary type="submit" { "Save" } }
                    }
                }))
            } @else { (ui::card("w8", "Settings", &facts(config))) }
            div.w4.stack {
                (ui::card("", "About", &html! {
                    dl.facts {
                        dt { "Name" } dd.mono { (id) }
                        dt { "Created" } dd { (format::moment(queue.created.0)) }
                        dt { "Changed" } dd { (format::moment(queue.updated.0)) }
                        dt { "Version" } dd { (queue.version) }
                    }
                }))
                @if shell.may_own() {
                    (ui::card("", "Danger zone", &html! {
                        div.stack {
                            @if queue.status != QueueStatus::Maintenance {
                                (danger_button(&format!("POST {path}/maintenance"), id, "Close to new visitors", "Close", "Closed", &format!("Close {id} to new visitors as well? Waiting visitors keep their position."), "reload"))
                            }
                            (danger_button(&format!("POST {path}/reset"), id, "Reset the queue", "Reset", "Reset", &format!("End every position and every session of {id}? This cannot be undone."), "reload"))
                            (danger_button(&format!("DELETE {path}"), id, "Delete the queue", "Delete", "Deleted", &format!("End every position and session of {id} and delete it? This cannot be undone."), "/room"))
                        }
                    }))
                }
            }
        }
    }
}

fn danger_button(
    act: &str,
    id: &str,
    word: &str,
    verb: &str,
    done: &str,
    ask: &str,
    then: &str,
) -> Markup {
    // `DELETE` has no body: its confirmation is in the query.
    let (act, body) = match act.starts_with("DELETE ") {
        true => (format!("{act}?confirm={id}"), None),
        false => (act.to_owned(), Some(serde_json::json!({ "confirm": id }).to_string())),
    };
    html! {
        button.btn.danger type="button" data-act=(act) data-body=[body] data-done=(done) data-then=(then)
            data-confirm=(ask) data-confirm-word=(id) data-confirm-verb=(verb) { (Icon::WARN) (word) }
    }
}

fn facts(config: &QueueConfig) -> Markup {
    let rate = &config.admission;
    html! {
        dl.facts {
            dt { "Name" } dd { (config.name) }
            dt { "Target URL" } dd { (config.target_url) }
            dt { "Maximum active" } dd.num { (format::count(config.max_active.into())) }
            dt { "Maximum waiting" } dd.num { (format::count(config.max_queue_size.into())) }
            dt { "Rate" } dd { (rate.count) " per " (rate.per_seconds) " s, burst " (rate.burst) }
            dt { "Admission window" } dd { (format::duration(config.admission_window)) }
            dt { "Hold" } dd { (format::duration(config.hold)) }
            dt { "Session ends after" } dd { (format::duration(config.session_timeout)) " without activity, " (format::duration(config.session_max)) " at most" }
            dt { "Priority policy" } dd { (config.policy.as_str()) }
        }
    }
}

fn fields(config: &QueueConfig) -> Markup {
    let brand = Brand::of(config);
    html! {
        (ui::text("name", "Name", &config.name, "Display name."))
        (ui::text("target_url", "Target URL", &config.target_url, "Admitted visitors are sent here: an https address."))
        div.form-row {
            (ui::text("brand_color", "Colour of the waiting page", brand.color.as_deref().unwrap_or_default(), "Such as #0a7d5c; adjusted where it would not be readable. Empty for the default."))
            (ui::text("brand_logo", "Logo", brand.logo.as_deref().unwrap_or_default(), "An https address, or a path of the site."))
        }
        div.form-row {
            (ui::number("max_active", "Maximum active", config.max_active, "0 is no limit"))
            (ui::number("max_queue_size", "Maximum waiting", config.max_queue_size, "0 is no limit"))
        }
        div.form-row {
            (ui::number("admission_window_seconds", "Admission window (seconds)", config.admission_window.as_secs(), "to start a session once admitted"))
            (ui::number("hold_seconds", "Hold (seconds)", config.hold.as_secs(), "without a heartbeat, beyond three missed polls"))
        }
        div.form-row {
            (ui::number("session_timeout_seconds", "Session timeout (seconds)", config.session_timeout.as_secs(), ""))
            (ui::number("session_max_seconds", "Session limit (seconds)", config.session_max.as_secs(), ""))
        }
        label.field {
            span { "Priority policy" }
            select.input name="priority_policy" {
                @for (word, text) in [("skip", "skip: a priority skips a share of the queue"), ("strict", "strict: higher priorities first, a share reserved for priority 0")] {
                    option value=(word) selected[config.policy.as_str() == word] { (text) }
                }
            }
        }
    }
}

/// Renders the dialog that creates a queue.
pub(super) fn new_queue() -> Markup {
    html! {
        dialog #new-queue aria-labelledby="new-queue-title" {
            form.dialog-body data-api="POST /api/v1/admin/queues" data-done="Queue created" data-then="/room/{id}" {
                h2 #new-queue-title { "New queue" }
                label.field { span { "Id" } input.input.mono name="id" required pattern="[a-z0-9][a-z0-9\\-]{0,62}" autocomplete="off" autocapitalize="none" spellcheck="false" placeholder="summer-tour"; small { "Lower-case letters, digits and -. It is part of URLs." } }
                (ui::text("name", "Name", "", "Display name."))
                (ui::text("target_url", "Target URL", "", "Admitted visitors are sent here: an https address."))
                div.form-row {
                    (ui::number("max_active", "Maximum active", 1_000_u32, ""))
                    (ui::number("admission.count", "Admit", 60_u32, "visitors"))
                    (ui::number("admission.per_seconds", "per", 60_u32, "seconds"))
                }
                div.dialog-foot {
                    button.btn type="button" data-close="" { "Cancel" }
                    button.btn.primary type="submit" { "Create" }
                }
            }
        }
    }
}
