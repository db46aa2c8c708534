//! Forms of a queue: admit, rate, message, settings, a new queue.

use std::time::Duration;

use maud::{Markup, html};
use room::{Queue, QueueConfig, QueueStatus};

use crate::site::Site;
use crate::units;
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
                (rate_field("", "Rate", &units::rate(rate.count, rate.per_seconds)))
                (ui::number("burst", "Burst", rate.burst, "at once after a lull"))
            }
        }))
        dialog #message aria-labelledby="message-title" {
            form.dialog-body data-api={ "POST " (path) "/message" } data-done="Message changed" data-base=(other_languages(queue)) {
                h2 #message-title { "Message to waiting visitors" }
                label.field { span { "Message" } textarea.input name="text.en" rows="3" maxlength="1000" data-empty="parent" { (said) } small { "Shown on every waiting page. Empty removes it." } }
                div.dialog-foot {
                    button.btn type="button" data-close="" { "Cancel" }
                    button.btn.primary type="submit" { "Send" }
                }
            }
        }
    }
}

/// Renders the settings of a queue, editable for admins, and the waiting page as it would look with them.
pub(super) fn settings(queue: &Queue, shell: &Shell) -> Markup {
    let config = &queue.config;
    let id = queue.id.as_str();
    let path = format!("/api/v1/admin/queues/{id}");
    html! {
        div.grid {
            div.w7.stack {
                @if shell.may_own() {
                    form.stack #queue-settings data-api={ "PATCH " (path) } data-done="Saved" data-then="reload" {
                        (fields(config))
                        div.save-bar { button.btn.primary type="submit" { "Save" } }
                    }
                } @else { (ui::card("", "Settings", &facts(config))) }
            }
            div.w5.stack {
                (preview(queue, shell))
                (ui::card("", "About", &html! {
                    dl.facts {
                        dt { "Id" } dd.mono { (id) }
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

/// Returns the message in the languages that a form does not show, so that it keeps them.
fn other_languages(queue: &Queue) -> String {
    let mut texts = queue.config.message.clone();
    texts.remove("en");
    serde_json::json!({ "text": texts }).to_string()
}

/// Renders the waiting page in a frame. The script shows in it what is being typed into the forms.
fn preview(queue: &Queue, shell: &Shell) -> Markup {
    let said = queue.config.message.get("en").and_then(|text| text.as_str()).unwrap_or_default();
    let path = format!("/api/v1/admin/queues/{}/message", queue.id);
    html! {
        section.card.preview-card aria-label="Preview of the waiting page" {
            div.card-head { h2 { "Waiting page" } a.small href=(super::waiting_page_link::path(&queue.id)) target="_blank" rel="noopener" { "Open" } }
            div.card-body.stack {
                iframe.preview title="Preview of the waiting page" src={ "/room/" (queue.id) "/preview" } data-preview={ "/room/" (queue.id) "/preview" } tabindex="-1" {}
                @if shell.may_operate() {
                    form.form data-api={ "POST " (path) } data-done="Message changed" data-base=(other_languages(queue)) data-keep-values="" {
                        label.field { span { "Message to waiting visitors" } textarea.input name="text.en" rows="2" maxlength="1000" data-empty="parent" data-preview-name="message" { (said) } small { "Shown on every waiting page. Empty removes it." } }
                        div.actions { button.btn type="submit" { "Send" } }
                    }
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
    let span = |duration: Duration| units::span(duration.as_secs());
    let most = |number: u32| match number {
        0 => "no limit".to_owned(),
        number => format::count(number.into()),
    };
    html! {
        dl.facts {
            dt { "Name" } dd { (config.name) }
            dt { "Target URL" } dd { (config.target_url) }
            dt { "Maximum active" } dd { (most(config.max_active)) }
            dt { "Maximum waiting" } dd { (most(config.max_queue_size)) }
            dt { "Rate" } dd { (units::rate(rate.count, rate.per_seconds)) ", burst " (rate.burst) }
            dt { "Admission window" } dd { (span(config.admission_window)) }
            dt { "Hold" } dd { (span(config.hold)) }
            dt { "Session ends after" } dd { (span(config.session_timeout)) " without activity, " (span(config.session_max)) " at most" }
            dt { "Priority policy" } dd { (config.policy.as_str()) }
            dt { "Duplicates" } dd { (config.duplicates.as_str()) }
        }
    }
}

/// A field for a duration, such as `5m`; the script sends whole seconds.
fn time_field(name: &str, label: &str, value: Duration, hint: &str) -> Markup {
    html! {
        label.field {
            span { (label) }
            input.input type="text" name=(name) data-kind="duration" required value=(units::span(value.as_secs())) autocomplete="off" inputmode="text" spellcheck="false";
            @if !hint.is_empty() { small { (hint) } }
        }
    }
}

/// A field for a rate, such as `500/min`; the script sends a count per seconds, as the object `name` or, if it is
/// empty, as fields of the body.
fn rate_field(name: &str, label: &str, value: &str) -> Markup {
    let prefix = if name.is_empty() { String::new() } else { format!("{name}.") };
    html! {
        label.field {
            span { (label) }
            input.input type="text" name=(if name.is_empty() { "rate" } else { name }) data-kind="rate" data-flat=[name.is_empty().then_some("")]
                data-covers={ (prefix) "count " (prefix) "per_seconds" } required value=(value) autocomplete="off" spellcheck="false" placeholder="500/min";
            small { "Such as 500/min, 10/s, 2000/h or 5/10s." }
        }
    }
}

/// A field for a line of text that may be emptied.
fn text_field(name: &str, label: &str, value: &str, hint: &str, preview: Option<&str>) -> Markup {
    html! {
        label.field {
            span { (label) }
            input.input type="text" name=(name) value=(value) autocomplete="off" data-empty="" data-preview-name=[preview];
            @if !hint.is_empty() { small { (hint) } }
        }
    }
}

/// A field for a list, one item in each line.
fn list_field(name: &str, label: &str, items: &[String], hint: &str) -> Markup {
    html! {
        label.field {
            span { (label) }
            textarea.input.mono name=(name) rows="2" data-kind="list" data-empty="" spellcheck="false" { (items.join("\n")) }
            small { (hint) }
        }
    }
}

fn check_field(name: &str, label: &str, checked: bool, hint: &str) -> Markup {
    html! {
        label.field.check { input type="checkbox" name=(name) checked[checked]; span { (label) } small { (hint) } }
    }
}

fn select_field(name: &str, label: &str, value: &str, options: &[(&str, &str)]) -> Markup {
    html! {
        label.field {
            span { (label) }
            select.input name=(name) {
                @for (word, text) in options { option value=(word) selected[*word == value] { (text) } }
            }
        }
    }
}

fn fields(config: &QueueConfig) -> Markup {
    let (brand, site) = (Brand::of(config), Site::of(config));
    let rate = &config.admission;
    let per_address =
        config.max_active_per_address.map_or("share".to_owned(), |most| most.to_string());
    html! {
        (ui::card("", "Site", &html! { div.form {
            div.form-row {
                (text_field("name", "Name", &config.name, "Shown to visitors.", Some("name")))
                (text_field("target_url", "Target URL", &config.target_url, "Admitted visitors are sent here.", None))
            }
            div.form-row {
                (list_field("allowed_origins", "Allowed origins", &site.origins, "Besides that of the target URL, one in each line: https://shop.example"))
                (list_field("allowed_paths", "Allowed paths", &site.paths, "Visitors return to these and to what is below; empty is all."))
            }
        } }))
        (ui::card("", "Admission", &html! { div.form {
            div.form-row {
                (rate_field("admission", "Rate", &units::rate(rate.count, rate.per_seconds)))
                (ui::number("admission.burst", "Burst", rate.burst, "admissions at once after a lull"))
            }
            div.form-row {
                (ui::number("max_active", "Maximum active", config.max_active, "admitted or active at once; 0 means no limit"))
                (ui::number("max_queue_size", "Maximum waiting", config.max_queue_size, "0 means no limit"))
            }
            div.form-row {
                label.field { span { "Maximum active per address" } input.input type="text" name="max_active_per_address" data-kind="number-or-word" required value=(per_address) autocomplete="off"; small { "A number, 0 for no limit, or share: a tenth of the maximum." } }
                (time_field("admission_window_seconds", "Admission window", config.admission_window, "to start a session once admitted"))
            }
            div.form-row {
                (select_field("priority_policy", "Priority policy", config.policy.as_str(), &[("skip", "skip: a priority skips part of the queue"), ("strict", "strict: higher priorities first")]))
                (ui::number("reserved_share", "Reserved share", config.reserved_share, "strict: one admission in this many is for priority 0; 0 is none"))
            }
        } }))
        (ui::card("", "Sessions", &html! { div.form {
            div.form-row {
                (time_field("session_timeout_seconds", "Ends after", config.session_timeout, "without activity"))
                (time_field("session_max_seconds", "Ends at the latest after", config.session_max, "whatever happens"))
            }
            div.form-row {
                (time_field("provisional_timeout_seconds", "Provisional session", config.provisional_timeout, "until the cookie of a new visitor came back"))
                div.checks {
                    (check_field("session_renewal", "Renew with activity", config.session_renewal, "Otherwise the time runs from the start."))
                    (check_field("admit_programs", "Admit programs", config.admit_programs, "Proxies start sessions for more than a person's navigation."))
                }
            }
        } }))
        (ui::card("", "Waiting", &html! { div.form {
            div.form-row {
                (time_field("hold_seconds", "Hold", config.hold, "a position without heartbeats is kept, beyond three missed polls"))
                (time_field("heartbeat_interval_seconds", "Poll", config.heartbeat_interval, "while the wait is not known"))
            }
            div.form-row {
                (time_field("poll_floor_seconds", "Poll at most every", config.poll_floor, "near the front"))
                (time_field("poll_ceiling_seconds", "Poll at least every", config.poll_ceiling, "far from the front"))
            }
            div.form-row {
                (select_field("duplicates", "Same visitor", config.duplicates.as_str(), &[("token", "by their token"), ("ip", "by their token or network address")]))
                (ui::number("user_agent_bytes", "User agent", config.user_agent_bytes, "bytes of it that are stored"))
            }
            (check_field("store_addresses", "Store network addresses", config.store_addresses, "Besides their keyed hashes. They are personal data."))
        } }))
        (ui::card("", "Look of the waiting page", &html! { div.form {
            div.form-row {
                (text_field("brand_color", "Colour", brand.color.as_deref().unwrap_or_default(), "Such as #0a7d5c; adjusted where it would not be readable. Empty for the default.", Some("color")))
                (text_field("brand_logo", "Logo", brand.logo.as_deref().unwrap_or_default(), "An https address, or a path of the site. Empty for the default.", Some("logo")))
            }
        } }))
    }
}

/// Renders the dialog that creates a queue.
pub(super) fn new_queue() -> Markup {
    html! {
        dialog #new-queue aria-labelledby="new-queue-title" {
            form.dialog-body data-api="POST /api/v1/admin/queues" data-done="Queue created" data-then="/room/{id}" {
                h2 #new-queue-title { "New queue" }
                label.field { span { "Id" } input.input.mono name="id" required pattern="[a-z0-9][a-z0-9\\-]{0,62}" autocomplete="off" autocapitalize="none" spellcheck="false" placeholder="summer-tour"; small { "Lower-case letters, digits and -. It is part of URLs." } }
                (ui::text("name", "Name", "", "Shown to visitors."))
                (ui::text("target_url", "Target URL", "", "Admitted visitors are sent here: an https address."))
                div.form-row {
                    (rate_field("admission", "Rate", "60/min"))
                    (ui::number("max_active", "Maximum active", 1_000_u32, "0 means no limit"))
                }
                div.dialog-foot {
                    button.btn type="button" data-close="" { "Cancel" }
                    button.btn.primary type="submit" { "Create" }
                }
            }
        }
    }
}
