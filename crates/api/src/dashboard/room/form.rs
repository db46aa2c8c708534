//! What people fill in about queues: admit, rate, message, settings, a new queue.

use maud::{Markup, html};
use room::{Queue, QueueConfig, QueueStatus};

use super::super::icon::icon;
use super::super::{Shell, format, ui};
use crate::waiting::brand::Brand;

/// The dialogs that the buttons of a queue open.
pub(super) fn dialogs(queue: &Queue) -> Markup {
    let path = format!("/api/v1/admin/queues/{}", queue.id);
    let rate = &queue.config.admission;
    let said = queue.config.message.get("en").and_then(|text| text.as_str()).unwrap_or_default();
    html! {
        (ui::dialog("admit", "Let people in", &format!("POST {path}/admit"), "Let in", "Let in {admitted}", &html! {
            p { "The next in line come in now. The rate does not count; the limit on people inside does." }
            (ui::number("count", "How many", 10_u32, "from 1 to 10,000"))
        }))
        (ui::dialog("rate", "Change the rate", &format!("POST {path}/rate"), "Change", "Rate changed", &html! {
            p { "How fast people are let in from now on." }
            div.form-row {
                (ui::number("count", "Visitors", rate.count, ""))
                (ui::number("per_seconds", "every … seconds", rate.per_seconds, ""))
                (ui::number("burst", "at once at most", rate.burst, ""))
            }
        }))
        (ui::dialog("message", "Tell those who wait", &format!("POST {path}/message"), "Tell them", "Message changed", &html! {
            label.field { span { "Message" } textarea.input name="text.en" rows="3" maxlength="1000" required { (said) } small { "Shown on everybody's waiting page." } }
        }))
    }
}

/// The settings of a queue, to look at and, for admins, to change.
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
                        dt { "Made" } dd { (format::moment(queue.created.0)) }
                        dt { "Changed" } dd { (format::moment(queue.updated.0)) }
                        dt { "Version" } dd { (queue.version) }
                    }
                }))
                @if shell.may_own() {
                    (ui::card("", "Take care", &html! {
                        div.stack {
                            @if queue.status != QueueStatus::Maintenance {
                                (careful(&format!("POST {path}/maintenance"), id, "Close to newcomers", "Close", "Closed", &format!("Close {id} to newcomers as well? Those in line keep their place."), "reload"))
                            }
                            (careful(&format!("POST {path}/reset"), id, "Empty the queue", "Empty", "Emptied", &format!("End every place and every session of {id}? This cannot be undone."), "reload"))
                            (careful(&format!("DELETE {path}"), id, "Delete the queue", "Delete", "Deleted", &format!("End everything in {id} and take it away? This cannot be undone."), "/room"))
                        }
                    }))
                }
            }
        }
    }
}

fn careful(
    act: &str,
    id: &str,
    word: &str,
    verb: &str,
    done: &str,
    ask: &str,
    then: &str,
) -> Markup {
    let body = serde_json::json!({ "confirm": id }).to_string();
    html! {
        button.btn.danger type="button" data-act=(act) data-body=(body) data-done=(done) data-then=(then)
            data-confirm=(ask) data-confirm-word=(id) data-confirm-verb=(verb) { (icon("warn")) (word) }
    }
}

fn facts(config: &QueueConfig) -> Markup {
    let rate = &config.admission;
    html! {
        dl.facts {
            dt { "Name" } dd { (config.name) }
            dt { "Where they go" } dd { (config.target_url) }
            dt { "Inside at once" } dd.num { (format::count(config.max_active.into())) }
            dt { "In line at most" } dd.num { (format::count(config.max_queue_size.into())) }
            dt { "Let in" } dd { (rate.count) " every " (rate.per_seconds) " s, " (rate.burst) " at once" }
            dt { "Time to come" } dd { (format::duration(config.claim_window)) }
            dt { "Silence kept" } dd { (format::duration(config.hold)) }
            dt { "Session ends after" } dd { (format::duration(config.session_timeout)) " of silence, " (format::duration(config.session_max)) " in all" }
            dt { "Priority" } dd { (config.policy.as_str()) }
        }
    }
}

fn fields(config: &QueueConfig) -> Markup {
    let brand = Brand::of(config);
    html! {
        (ui::text("name", "Name", &config.name, "What people call it."))
        (ui::text("target_url", "Where they go", &config.target_url, "An https address."))
        div.form-row {
            (ui::text("brand_color", "Colour of the waiting page", brand.color.as_deref().unwrap_or_default(), "Such as #0a7d5c; made readable where it is not. Empty is the usual one."))
            (ui::text("brand_logo", "Logo", brand.logo.as_deref().unwrap_or_default(), "An https address, or a path of the site."))
        }
        div.form-row {
            (ui::number("max_active_users", "Inside at once", config.max_active, "0 is no limit"))
            (ui::number("max_queue_size", "In line at most", config.max_queue_size, "0 is no limit"))
        }
        div.form-row {
            (ui::number("claim_window_seconds", "Seconds to come in", config.claim_window.as_secs(), "once let in"))
            (ui::number("hold_seconds", "Seconds of silence kept", config.hold.as_secs(), "beyond three missed polls"))
        }
        div.form-row {
            (ui::number("session_timeout_seconds", "Session: seconds of silence", config.session_timeout.as_secs(), ""))
            (ui::number("session_max_seconds", "Session: seconds in all", config.session_max.as_secs(), ""))
        }
        label.field {
            span { "Priority" }
            select.input name="priority_policy" {
                @for (word, text) in [("skip", "skip: a level skips a share of the line"), ("strict", "strict: higher levels first, a share for the others")] {
                    option value=(word) selected[config.policy.as_str() == word] { (text) }
                }
            }
        }
    }
}

/// The dialog that makes a queue.
pub(super) fn new_queue() -> Markup {
    html! {
        dialog #new-queue aria-labelledby="new-queue-title" {
            form.dialog-body data-api="POST /api/v1/admin/queues" data-done="Queue made" data-then="/room/{id}" {
                h2 #new-queue-title { "New queue" }
                label.field { span { "Id" } input.input.mono name="id" required pattern="[a-z0-9][a-z0-9\\-]{0,62}" autocomplete="off" autocapitalize="none" spellcheck="false" placeholder="summer-tour"; small { "Small letters, digits and -. It is part of addresses." } }
                (ui::text("name", "Name", "", "What people call it."))
                (ui::text("target_url", "Where they go", "", "Where people are sent when they may come in: an https address."))
                div.form-row {
                    (ui::number("max_active_users", "Inside at once", 1_000_u32, ""))
                    (ui::number("admission.count", "Let in", 60_u32, "visitors"))
                    (ui::number("admission.per_seconds", "every", 60_u32, "seconds"))
                }
                div.dialog-foot {
                    button.btn type="button" data-close="" { "Cancel" }
                    button.btn.primary type="submit" { "Make" }
                }
            }
        }
    }
}
