//! Groups of clients, and a page for each: lists, safe search, reply, schedules of a week.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use dns::{
    BlockMode, ClientGroup, GroupLog, GroupSchedule, Policy, ScheduleAction, ScheduleWindow,
    SearchEngine, WeekDay,
};
use maud::{Markup, html};
use serde_json::json;
use web::icon::Icon;
use web::middleware::percent;
use web::ui::{self, Shell};

use super::{dialog, frame, frame_with, opener, shown_name, window_fields, with_policy};
use crate::service::DnsState;

const ENGINES: [(SearchEngine, &str, &str); 7] = [
    (SearchEngine::Google, "google", "Google"),
    (SearchEngine::Bing, "bing", "Bing"),
    (SearchEngine::Youtube, "youtube", "YouTube, strict"),
    (SearchEngine::YoutubeModerate, "youtube_moderate", "YouTube, moderate"),
    (SearchEngine::Duckduckgo, "duckduckgo", "DuckDuckGo"),
    (SearchEngine::Yandex, "yandex", "Yandex"),
    (SearchEngine::Ecosia, "ecosia", "Ecosia"),
];

const MODES: [(BlockMode, &str, &str); 5] = [
    (BlockMode::NullAddress, "null_address", "the null address (0.0.0.0, ::)"),
    (BlockMode::Nxdomain, "nxdomain", "NXDOMAIN: no such name"),
    (BlockMode::Nodata, "nodata", "no records"),
    (BlockMode::Refused, "refused", "REFUSED"),
    (BlockMode::CustomAddress, "custom_address", "an address: that of the block page"),
];

/// The page of groups.
pub(crate) async fn page(State(state): State<DnsState>, shell: Shell) -> Markup {
    let acts = shell.may_operate();
    let body = with_policy(&state, |policy| html! {
        div.toolbar { span.dim { "Clients of no other group are in the default group." } @if acts { span.end { (opener("new-group", "Add a group")) } } }
        div.grid { @for group in policy.all_groups() { (group_card(policy, &group, acts)) } }
        @if acts {
            (dialog("new-group", "Add a group", "PUT /api/v1/dns/groups/{id}", "Add", "Group added", &html! {
                label.field { span { "Id" } input.input type="text" name="id" required autocomplete="off" spellcheck="false"; small { "Letters a to z, digits, - _ and ." } }
                (ui::text("name", "Name", "", ""))
                (ui::text("description", "Note", "", ""))
            }))
        }
    })
    .await;
    frame(&state, &shell, "groups", None, &body)
}

fn group_card(policy: &Policy, group: &ClientGroup, acts: bool) -> Markup {
    let clients = policy.clients.iter().filter(|client| client.group == group.id).count();
    let lists = match &group.lists {
        None => "all that are switched on".to_owned(),
        Some(lists) if lists.is_empty() => "none".to_owned(),
        Some(lists) => lists.join(", "),
    };
    let services: Vec<&str> = group.services.iter().map(|service| service.id.as_str()).collect();
    let joined =
        |items: &[&str]| if items.is_empty() { "none".to_owned() } else { items.join(", ") };
    let head = html! { a.btn.s href={ "/dns/groups/" (percent(&group.id)) } { "Open" } };
    ui::card_flush(
        "w6",
        &shown_name(group),
        &head,
        &html! {
            div.inset.stack {
                @if !group.description.is_empty() { p.dim { (group.description) } }
                dl.facts {
                    dt { "Clients" } dd { (clients) @if group.id == dns::DEFAULT_GROUP { ", and all that are not known" } }
                    dt { "Lists" } dd { (lists) }
                    dt { "Rules of its own" } dd { (group.rules.len()) }
                    dt { "Blocked services" } dd { (joined(&services)) }
                    dt { "Safe search" } dd { (group.safe_search.len()) @if group.safe_search.len() == 1 { " engine" } @else { " engines" } }
                }
                @for schedule in &group.schedules { div { (schedule_row(group, schedule, false)) } }
                @if acts { (pause_buttons(group)) }
            }
        },
    )
}

fn pause_buttons(group: &ClientGroup) -> Markup {
    let name = shown_name(group);
    html! {
        p.actions {
            @for (label, seconds) in [("10 minutes", 600), ("an hour", 3_600)] {
                button.btn.s type="button" data-act="POST /api/v1/dns/pauses" data-body=(json!({ "duration_seconds": seconds, "group": group.id })) data-done={ "Filtering is paused for " (name) ", for " (label) }
                    data-undo={ "DELETE /api/v1/dns/pauses?group=" (percent(&group.id)) } { (Icon::PAUSE) "Pause for " (label) }
            }
        }
    }
}

fn schedule_row(group: &ClientGroup, schedule: &GroupSchedule, acts: bool) -> Markup {
    let name = if schedule.name.is_empty() { "schedule" } else { &schedule.name };
    html! {
        p.small {
            @if schedule.action == ScheduleAction::Block { (ui::badge("bad", "blocks")) } @else { (ui::badge("warn", "pauses")) }
            " " b { (name) } " " span.dim { (schedule.schedule.time_zone) }
            @if acts {
                " " button.btn.s.ghost type="button" aria-label={ "Remove " (name) } data-act={ "DELETE /api/v1/dns/groups/" (percent(&group.id)) "/schedules/" (percent(&schedule.name)) } data-done={ "Removed " (name) } data-then="reload" { (Icon::TRASH) }
            }
        }
        (week(schedule))
        @for window in &schedule.schedule.windows { p.dim.small { (window_text(window)) } }
    }
}

/// The page of one group.
pub(crate) async fn one(
    State(state): State<DnsState>,
    Path(id): Path<String>,
    shell: Shell,
) -> (StatusCode, Markup) {
    let acts = shell.may_operate();
    let (mut title, mut status) = (id.clone(), StatusCode::OK);
    let body = with_policy(&state, |policy| {
        let groups = policy.all_groups();
        match groups.iter().find(|group| group.id == id) {
            None => {
                status = StatusCode::NOT_FOUND;
                let back = html! { a.btn href="/dns/groups" { "All groups" } };
                ui::empty(Icon::SEARCH, "No such group", "It may have been removed.", &back)
            }
            Some(group) => {
                title = shown_name(group);
                group_page(policy, group, acts)
            }
        }
    })
    .await;
    let head = ui::Head::new(&title, "A group of clients: what is filtered, and when.")
        .under("DNS", "/dns")
        .under("Groups", "/dns/groups");
    (status, frame_with(&state, &shell, "groups", None, &head, &body))
}

fn group_page(policy: &Policy, group: &ClientGroup, acts: bool) -> Markup {
    let path = format!("/api/v1/dns/groups/{}", percent(&group.id));
    html! {
        div.grid {
            (ui::card_flush("w6", "Week", &html! { @if acts { (opener("new-window", "Add times")) } }, &html! {
                div.inset {
                    @if group.schedules.is_empty() { p.dim { "Filtered the same at all times. A schedule blocks everything, such as at bedtime, or pauses filtering." } }
                    @for schedule in &group.schedules { (schedule_row(group, schedule, acts)) }
                }
            }))
            (ui::card("w6", "Clients", &html! {
                ul.list.tight { @for client in policy.clients.iter().filter(|client| client.group == group.id).take(50) { li { a.row href={ "/dns/clients/" (percent(&client.id)) } { @if client.name.is_empty() { (client.id) } @else { (client.name) } } span.dim.small.grow.clip { (client.addresses.join(", ")) } } } }
                @if group.id == dns::DEFAULT_GROUP { p.dim.small { "And all clients that are not known." } }
                p { a href={ "/dns/queries?group=" (percent(&group.id)) } { "Queries of this group" } " · " a href={ "/dns/services?group=" (percent(&group.id)) } { "Blocked services" } }
                @if acts {
                    (pause_buttons(group))
                    @if group.id != dns::DEFAULT_GROUP {
                        button.btn.s.ghost type="button" data-act={ "DELETE " (path) } data-confirm={ "Remove " (shown_name(group)) "? Its clients move to the default group." } data-confirm-verb="Remove" data-done="Removed" data-then="/dns/groups" { (Icon::TRASH) "Remove the group" }
                    }
                }
            }))
        }
        @if acts { (lists_form(policy, group, &path)) (settings_form(group, &path)) (window_dialog(&path)) }
        @else { (facts(group)) }
    }
}

fn facts(group: &ClientGroup) -> Markup {
    ui::card(
        "",
        "Settings",
        &html! {
            dl.facts {
                dt { "Rules" } dd { @for rule in &group.rules { div.mono { (rule) } } @if group.rules.is_empty() { "none of its own" } }
                dt { "Reply to blocked queries" } dd { (MODES.iter().find(|(mode, ..)| *mode == group.block_reply.mode).map_or("", |(.., text)| text)) }
                dt { "Cache" } dd { @if group.cache { "used" } @else { "not used" } }
            }
        },
    )
}

fn lists_form(policy: &Policy, group: &ClientGroup, path: &str) -> Markup {
    let chosen =
        |id: &str| group.lists.as_ref().is_none_or(|lists| lists.iter().any(|one| one == id));
    ui::card(
        "",
        "Lists and safe search",
        &html! {
            form.form data-api={ "PATCH " (path) } data-base=(json!({ "lists": [], "safe_search": [] })) data-done="In force" data-then="reload" {
                fieldset.choices {
                    legend { "Lists" }
                    @for list in &policy.lists {
                        label.choice { input type="checkbox" name="lists" value=(list.id) data-list="" checked[chosen(&list.id)]; span { @if list.name.is_empty() { (list.id) } @else { (list.name) } small { (list.id) } } }
                    }
                    @if policy.lists.is_empty() { p.dim { "There are no lists yet." } }
                }
                fieldset.choices {
                    legend { "Safe search" }
                    @for (engine, id, name) in ENGINES {
                        label.choice { input type="checkbox" name="safe_search" value=(id) data-list="" checked[group.safe_search.contains(&engine)]; span { (name) } }
                    }
                }
                div.actions {
                    button.btn.primary type="submit" { "Save" }
                    @if group.lists.is_some() { button.btn type="button" data-act={ "PATCH " (path) } data-body=(json!({ "lists": null })) data-done="All lists that are switched on" data-then="reload" { "Use all lists, also new ones" } }
                }
                @if group.lists.is_none() { p.dim.small { "All lists that are switched on are used, also new ones, until you save a choice." } }
            }
        },
    )
}

fn settings_form(group: &ClientGroup, path: &str) -> Markup {
    let reply = &group.block_reply;
    ui::card(
        "",
        "Settings",
        &html! {
            form.form data-api={ "PATCH " (path) } data-done="In force" data-then="reload" {
                div.form-row {
                    (ui::text("name", "Name", &group.name, ""))
                    (ui::text("description", "Note", &group.description, ""))
                }
                div.form-row {
                    label.field { span { "Reply to blocked queries" } select.input name="block_reply.mode" { @for (mode, id, text) in MODES { option value=(id) selected[mode == reply.mode] { (text) } } } }
                    (ui::text("block_reply.ipv4", "IPv4 address", reply.ipv4.as_deref().unwrap_or_default(), "Only for the reply with an address."))
                    (ui::text("block_reply.ipv6", "IPv6 address", reply.ipv6.as_deref().unwrap_or_default(), ""))
                    (ui::number("block_reply.ttl_seconds", "TTL of the reply", reply.ttl_seconds, "Seconds for which clients keep it."))
                }
                div.form-row {
                    label.field { span { "Log" } select.input name="log" {
                        option value="all" selected[group.log == GroupLog::All] { "all queries" }
                        option value="blocked" selected[group.log == GroupLog::Blocked] { "blocked queries only" }
                        option value="nothing" selected[group.log == GroupLog::Nothing] { "nothing" }
                    } }
                    label.check { input type="checkbox" name="cache" checked[group.cache]; span { "Use the cache" } }
                    label.check { input type="checkbox" name="keep_ech" checked[group.keep_ech]; span { "Leave ECH in HTTPS records" } }
                }
                div { button.btn.primary type="submit" { "Save" } }
            }
            form.form data-api="POST /api/v1/dns/rules" data-base=(json!({ "group": group.id })) data-done="The rule is in force" data-then="reload" {
                label.field { span { "Rules of this group" } input.input type="text" name="rule" required placeholder="||video.example^" autocomplete="off" spellcheck="false"; small { "They count before those for everybody." } }
                div { button.btn type="submit" { (Icon::PLUS) "Add the rule" } }
            }
            ul.list.tight { @for rule in &group.rules { li { span.grow.mono.wrap-any { (rule) } button.btn.s.ghost type="button" aria-label={ "Remove " (rule) } data-act={ "DELETE /api/v1/dns/rules?rule=" (percent(rule)) "&group=" (percent(&group.id)) } data-done={ "Removed " (rule) } data-then="reload" { (Icon::TRASH) } } } }
        },
    )
}

fn window_dialog(path: &str) -> Markup {
    dialog(
        "new-window",
        "Add times",
        &format!("POST {path}/windows"),
        "Add",
        "The schedule is in force",
        &html! {
            label.field { span { "Name" } input.input type="text" name="schedule" required value="bedtime" autocomplete="off"; small { "A schedule of the same name gets a further window." } }
            label.field { span { "What" } select.input name="action" { option value="block" { "block everything" } option value="pause" { "pause filtering" } } }
            (window_fields("UTC"))
        },
    )
}

/// A window in words.
pub(super) fn window_text(window: &ScheduleWindow) -> String {
    let days: Vec<&str> = window.days.iter().map(|day| day_name(*day)).collect();
    let days = if days.len() == 7 { "every day".to_owned() } else { days.join(", ") };
    format!("{days}: {} to {}", window.start, window.end)
}

fn day_name(day: WeekDay) -> &'static str {
    match day {
        WeekDay::Mon => "Mon",
        WeekDay::Tue => "Tue",
        WeekDay::Wed => "Wed",
        WeekDay::Thu => "Thu",
        WeekDay::Fri => "Fri",
        WeekDay::Sat => "Sat",
        WeekDay::Sun => "Sun",
    }
}

/// A week as seven bars of 24 hours.
fn week(schedule: &GroupSchedule) -> Markup {
    use WeekDay::{Fri, Mon, Sat, Sun, Thu, Tue, Wed};
    let days = [Mon, Tue, Wed, Thu, Fri, Sat, Sun];
    let minutes = |text: &str| -> Option<u32> {
        let (hours, minutes) = text.split_once(':')?;
        Some(hours.parse::<u32>().ok()? * 60 + minutes.parse::<u32>().ok()?)
    };
    let mut bars: Vec<(usize, u32, u32)> = Vec::new();
    for window in &schedule.schedule.windows {
        let (Some(start), Some(end)) = (minutes(&window.start), minutes(&window.end)) else {
            continue;
        };
        for (index, _) in days.iter().enumerate().filter(|(_, day)| window.days.contains(day)) {
            if start < end {
                bars.push((index, start, end));
            } else {
                bars.push((index, start, 1_440));
                bars.push(((index + 1) % 7, 0, end));
            }
        }
    }
    let color = if schedule.action == ScheduleAction::Block { "c4" } else { "c3" };
    // 36 for the names of days, then 18 an hour.
    let x = |minute: u32| format!("{:.1}", 36.0 + f64::from(minute) * 0.3);
    html! {
        svg.week viewBox="0 0 470 172" role="img" aria-label={ "Week of " (schedule.name) } {
            @for (index, day) in days.iter().enumerate() {
                @let y = index * 22;
                text class="label" x="0" y=(y + 12) { (day_name(*day)) }
                rect class="slot" x="36" y=(y) width="432" height="15" rx="3" {}
                @for (_, start, end) in bars.iter().filter(|(day, ..)| *day == index) {
                    rect class={ "bar " (color) } x=(x(*start)) y=(y) width=(format!("{:.1}", f64::from(end - start) * 0.3)) height="15" rx="3" {}
                }
            }
            @for hour in [0_u32, 6, 12, 18] { text class="label" x=(x(hour * 60)) y="168" { (hour) ":00" } }
        }
    }
}
