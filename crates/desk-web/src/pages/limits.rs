//! Policies with their use and denials; one policy with the identities that hit it most.

use axum::extract::State;
use desk::PolicyName;
use desk::limit::{
    DescriptorDomain, DescriptorRule, LimitBlock, NamedPolicy, PolicySpec, PolicyStats, PolicyUsage,
};
use maud::{Markup, html};
use web::extract::Path;
use web::format;
use web::icon::Icon;
use web::middleware::percent;
use web::ui::{self, Shell};

use super::{frame, rendered};
use crate::service::DeskState;

pub(crate) async fn page(State(state): State<DeskState>, shell: Shell) -> Markup {
    let acts = shell.may_operate();
    let body = part(&state, acts).await;
    let topic = if acts { "desk-limits?acts" } else { "desk-limits" };
    let dialog = if acts {
        new_dialogs()
    } else {
        html! {}
    };
    frame(&state, &shell, ("/desk/limits", Some(topic)), &body, &dialog)
}

/// The living part.
pub(crate) async fn part(state: &DeskState, acts: bool) -> Markup {
    rendered(async {
        let usage = state.desk.book.usage().await?;
        let policies = state.desk.book.policies();
        let domains = state.desk.book.domains();
        Ok(html! {
            div.grid {
                (table(&policies, &usage, acts))
                @if !domains.is_empty() { (domain_table(&domains, &usage, acts)) }
            }
        })
    })
    .await
}

fn table(policies: &[std::sync::Arc<NamedPolicy>], usage: &[PolicyUsage], acts: bool) -> Markup {
    let find = |name: Option<&PolicyName>| usage.iter().find(|one| one.policy.as_ref() == name);
    let body = html! {
        div.table-wrap tabindex="0" { table.table.cards {
            thead { tr { th { "Policy" } th { "Rule" } th.r { "Allowed" } th.r { "Near" } th.r { "Denied" } th.r { "Shadow" } th { "State" } } }
            tbody {
                @for policy in policies {
                    @let used = find(policy.name()).map(|one| one.stats).unwrap_or_default();
                    tr data-key=(policy.spec().name) {
                        td { a.row href={ "/desk/limits/" (policy.spec().name) } { (policy.spec().name) } @if !policy.is_stored() { span.sub { "default" } } }
                        td data-label="Rule" { (rule(policy)) }
                        td.r data-label="Allowed" { (format::count(used.allowed)) }
                        td.r data-label="Near" { (format::count(used.near)) }
                        td.r data-label="Denied" { (format::count(used.denied)) }
                        td.r data-label="Shadow" { (format::count(used.shadow)) }
                        td { (state_badge(policy)) @if used.degraded > 0 { " " (ui::badge("warn", "degraded")) } }
                    }
                }
            }
        } }
    };
    let actions = html! { @if acts { span.actions {
        button.btn.s type="button" data-open="new-policy" { (Icon::PLUS) "New policy" }
        button.btn.s type="button" data-open="new-quota" { (Icon::PLUS) "New quota" }
    } } };
    ui::card_flush("", "Policies", &actions, &body)
}

/// Domains by which requests of Envoy are limited.
fn domain_table(
    domains: &[std::sync::Arc<DescriptorDomain>],
    usage: &[PolicyUsage],
    acts: bool,
) -> Markup {
    let used = |name: &str| {
        let found = usage
            .iter()
            .find(|one| one.policy.as_ref().is_some_and(|known| known.as_str() == name));
        found.map(|one| one.stats).unwrap_or_default()
    };
    let body = html! {
        div.table-wrap tabindex="0" { table.table.cards {
            thead { tr { th { "Domain" } th.r { "Rules" } th.r { "Allowed" } th.r { "Denied" } th.r { "Shadow" } th { span.sr { "Actions" } } } }
            tbody { @for domain in domains {
                @let (name, stats) = (domain.name(), used(domain.name()));
                tr data-key=(name) {
                    td.wrap-any { (name) }
                    td.r data-label="Rules" { (format::count(count_rules(domain.rules()))) }
                    td.r data-label="Allowed" { (format::count(stats.allowed)) }
                    td.r data-label="Denied" { (format::count(stats.denied)) }
                    td.r data-label="Shadow" { (format::count(stats.shadow)) }
                    td.r { @if acts {
                        button.btn.s.ghost type="button" data-act={ "DELETE /api/v1/ratelimit/domains/" (percent(name).replace('/', "%2F")) } data-done={ "Removed " (name) }
                            data-confirm={ "Remove the domain " (name) "? Envoy's requests for it are no longer limited." } data-confirm-verb="Remove" { (Icon::TRASH) "Remove" }
                    } }
                }
            } }
        } }
    };
    ui::card_flush("", "Domains of Envoy", &html! {}, &body)
}

fn count_rules(rules: &[DescriptorRule]) -> u64 {
    rules.iter().map(|rule| 1 + count_rules(&rule.rules)).sum()
}

fn state_badge(policy: &NamedPolicy) -> Markup {
    if policy.policy().is_shadow() {
        ui::badge("accent", "shadow")
    } else {
        ui::badge("good", "enforced")
    }
}

/// The rule of a policy in words: `20 per 1 min, sliding`.
fn rule(policy: &NamedPolicy) -> String {
    rule_of(policy.spec())
}

fn rule_of(spec: &PolicySpec) -> String {
    let limit = format::count(spec.limit);
    let window = format::millis(i64::try_from(spec.window_ms).unwrap_or(i64::MAX));
    match (spec.algorithm.as_str(), &spec.period) {
        ("calendar", Some(period)) => {
            format!(
                "{limit} per {period} in {}, calendar",
                spec.time_zone.as_deref().unwrap_or("UTC")
            )
        }
        ("concurrent", _) => format!("{limit} at once, leases of {window}"),
        ("bucket", _) => {
            let burst =
                spec.burst.map_or_else(|| limit.clone(), |burst| format::count(burst.into()));
            format!("{limit} per {window}, {burst} at once, bucket")
        }
        (algorithm, _) => format!("{limit} per {window}, {algorithm}"),
    }
}

/// Overrides shown of a policy.
const OVERRIDES_SHOWN: usize = 10;

const ALGORITHMS: [(&str, &str); 5] = [
    ("counter", "counter: any limit, two weighted windows"),
    ("sliding", "sliding: exact in any window, up to 1,000"),
    ("fixed", "fixed: opens with the first request, up to 1,000"),
    ("bucket", "bucket: a burst, then a steady rate"),
    ("concurrent", "concurrent: so many at once"),
];

/// Periods of a calendar.
const PERIODS: [&str; 7] = ["second", "minute", "hour", "day", "week", "month", "year"];

/// A field that may stay empty; sent all the same where that empties it.
fn optional(
    (name, label): (&str, &str),
    kind: &str,
    empties: bool,
    value: &str,
    hint: &str,
) -> Markup {
    html! {
        label.field {
            span { (label) }
            input.input type="text" name=(name) data-kind=(kind) data-empty=[empties.then_some("")] value=(value) autocomplete="off" spellcheck="false";
            small { (hint) }
        }
    }
}

/// The window: as people say it, or in milliseconds where it has some.
fn window_field(ms: u64) -> Markup {
    if !ms.is_multiple_of(1_000) {
        return ui::number("window_ms", "Window in milliseconds", ms, "1000 is a second.");
    }
    let seconds = ms / 1_000;
    let text = match seconds {
        0 => String::new(),
        _ if seconds.is_multiple_of(86_400) => format!("{}d", seconds / 86_400),
        _ if seconds.is_multiple_of(3_600) => format!("{}h", seconds / 3_600),
        _ if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        _ => format!("{seconds}s"),
    };
    html! {
        label.field {
            span { "Window" }
            input.input type="text" name="window_seconds" data-kind="duration" required value=(text) autocomplete="off" spellcheck="false";
            small { "30s, 5m, 2h or 7d; of a concurrent policy the time of a lease." }
        }
    }
}

/// Fields of a rule.
fn rule_fields(policy: Option<&NamedPolicy>, is_edit: bool) -> Markup {
    let spec = policy.map(NamedPolicy::spec);
    let here = spec.map_or("counter", |spec| spec.algorithm.as_str());
    let burst = spec.and_then(|spec| spec.burst).map(|burst| burst.to_string());
    html! {
        label.field { span { "Algorithm" } select.input name="algorithm" {
            @for (name, words) in ALGORITHMS { option value=(name) selected[name == here] { (words) } }
        } }
        (ui::number("limit", "Limit", spec.map_or(100, |spec| spec.limit), "Units allowed in a window."))
        (window_field(spec.map_or(60_000, |spec| spec.window_ms)))
        (optional(("burst", "Burst"), "number", is_edit, &burst.unwrap_or_default(), "Only for a bucket: most at once; the limit if empty."))
    }
}

/// Fields of a rule by the calendar.
fn quota_fields(policy: Option<&NamedPolicy>) -> Markup {
    let spec = policy.map(NamedPolicy::spec);
    let here = spec.and_then(|spec| spec.period.as_deref()).unwrap_or("month");
    let zone = spec.and_then(|spec| spec.time_zone.as_deref()).unwrap_or("UTC");
    html! {
        input type="hidden" name="algorithm" value="calendar";
        (ui::number("limit", "Limit", spec.map_or(10_000, |spec| spec.limit), "Units allowed in a period."))
        label.field { span { "Period" } select.input name="period" {
            @for name in PERIODS { option value=(name) selected[name == here] { (name) } }
        } }
        (ui::text("time_zone", "Time zone", zone, "In which the period starts: UTC, Europe/Berlin, America/New_York."))
    }
}

fn is_quota(policy: &NamedPolicy) -> bool {
    policy.spec().algorithm == "calendar"
}

/// Fields of the rule that a policy has.
fn own_rule_fields(policy: &NamedPolicy, is_edit: bool) -> Markup {
    if is_quota(policy) { quota_fields(Some(policy)) } else { rule_fields(Some(policy), is_edit) }
}

/// Fields that every policy has.
fn fields(policy: Option<&NamedPolicy>) -> Markup {
    let spec = policy.map(NamedPolicy::spec);
    let list = |list: Option<&Vec<String>>| list.map(|list| list.join(", ")).unwrap_or_default();
    html! {
        (optional(("exempt", "Exempt networks"), "list", true, &list(spec.map(|spec| &spec.exempt)), "Not limited: 10.0.0.0/8, 192.0.2.7"))
        (optional(("blocked", "Block list"), "list", true, &list(spec.map(|spec| &spec.blocked)), "Always denied: networks, user:mallory, key:abc"))
        label.field { span { "While the store is unavailable" } select.input name="when_store_down" {
            @for (name, words) in [("local", "each instance limits on its own"), ("open", "allow everything"), ("closed", "deny everything")] {
                option value=(name) selected[spec.is_some_and(|spec| spec.when_store_down == name)] { (words) }
            }
        } }
        label.check { input type="checkbox" name="shadow" checked[spec.is_none_or(|spec| spec.shadow)]; span { "Shadow: decides and counts on live traffic, but never denies. Switch it off once the numbers look right." } }
    }
}

/// The dialogs that make a policy, and one by the calendar.
fn new_dialogs() -> Markup {
    let make = |id: &str, title: &str, rule: Markup| {
        let all = html! {
            label.field { span { "Name" } input.input type="text" name="policy" required pattern="[a-z0-9_\\-]{1,32}" autocomplete="off"; small { "a-z, 0-9, _ and -" } }
            (rule)
            (fields(None))
        };
        ui::dialog(
            id,
            title,
            "PUT /api/v1/ratelimit/policies/{policy}",
            "Store",
            "Stored; every instance has it within a second",
            &all,
        )
    };
    html! {
        (make("new-policy", "New policy", rule_fields(None, false)))
        (make("new-quota", "New quota", quota_fields(None)))
    }
}

/// The dialog that blocks an identity at a policy.
fn block_dialog(name: &str) -> Markup {
    let all = html! {
        label.field { span { "Kind" } select.input name="kind" {
            @for (name, words) in [("ip", "address"), ("user", "user"), ("key", "key")] { option value=(name) { (words) } }
        } }
        label.field { span { "Identity" } input.input type="text" name="id" required autocomplete="off" spellcheck="false"; small { "203.0.113.7, or the id of a user or key. An IPv6 address counts by its /64." } }
        label.field { span { "Time" } input.input type="text" name="for_seconds" data-kind="duration" required value="1h" autocomplete="off" spellcheck="false"; small { "30s, 5m, 2h or 7d" } }
    };
    ui::dialog(
        "block-identity",
        &format!("Block an identity at {name}"),
        &format!("PUT /api/v1/ratelimit/{}/{{kind}}/{{id}}/block", percent(name)),
        "Block",
        "Blocked; every instance knows within a second",
        &all,
    )
}

pub(crate) async fn policy_page(
    State(state): State<DeskState>,
    shell: Shell,
    Path(name): Path<String>,
) -> Markup {
    let acts = shell.may_operate();
    let view = format!("{}{name}", if acts { "acts&" } else { "&" });
    let body = policy_part(&state, &view).await;
    let topic = format!("desk-policy?{view}");
    let policy = PolicyName::parse(&name).ok().and_then(|name| state.desk.book.find(&name));
    let dialog = match policy.filter(|_| acts) {
        None => html! {},
        Some(policy) => {
            let path = format!("/api/v1/ratelimit/policies/{}", percent(&name));
            let edit = ui::dialog(
                "edit-policy",
                &format!("Edit {name}"),
                &format!("PATCH {path}"),
                "Store",
                "Stored; every instance has it within a second",
                &html! { (own_rule_fields(&policy, true)) (fields(Some(&policy))) },
            );
            let preview = ui::dialog(
                "preview-policy",
                &format!("Preview another rule for {name}"),
                &format!("PUT {path}/preview"),
                "Start preview",
                "The rule is tried on live traffic and denies nothing",
                &html! {
                    p.dim { "It counts on the same requests, in shadow, while " (name) " goes on as it is. Apply it once the numbers look right." }
                    (own_rule_fields(&policy, false))
                },
            );
            html! { (edit) (preview) (block_dialog(&name)) }
        }
    };
    frame(&state, &shell, ("/desk/limits", Some(&topic)), &body, &dialog)
}

/// The living part of one policy; the view is `acts&name` or `&name`.
pub(crate) async fn policy_part(state: &DeskState, view: &str) -> Markup {
    let (acts, name) = view.split_once('&').unwrap_or(("", view));
    let acts = acts == "acts";
    let known = PolicyName::parse(name).ok().and_then(|name| state.desk.book.find(&name));
    let Some(policy) = known else {
        return ui::empty(
            crate::ICON,
            "No such policy",
            "It was removed, or never was.",
            &html! { a.btn href="/desk/limits" { "All policies" } },
        );
    };
    rendered(async {
        let usage = state.desk.book.usage().await?;
        let used = usage.iter().find(|one| one.policy.as_ref() == policy.name());
        let tried = usage.iter().find(|one| {
            one.policy.as_ref().and_then(PolicyName::previewed) == Some(policy.spec().name.as_str())
        });
        let tried = tried.map(|one| one.stats).unwrap_or_default();
        let blocks = policy.name().map(|name| state.desk.book.blocks(name)).unwrap_or_default();
        Ok(policy_body(&policy, used, tried, &blocks, acts))
    })
    .await
}

fn policy_body(
    policy: &NamedPolicy,
    used: Option<&PolicyUsage>,
    tried: PolicyStats,
    blocks: &[LimitBlock],
    acts: bool,
) -> Markup {
    let name = policy.spec().name.as_str();
    let stats = used.map(|one| one.stats).unwrap_or_default();
    let path = format!("/api/v1/ratelimit/policies/{}", percent(name));
    html! {
        div.tiles {
            (ui::tile("Allowed", &format::short(stats.allowed as f64), "", "since first counted", &html! {}))
            (ui::tile("Near", &format::short(stats.near as f64), "", "allowed with a fifth left or less", &html! {}))
            (ui::tile("Denied", &format::short(stats.denied as f64), "", "turned away", &html! {}))
            (ui::tile("Shadow", &format::short(stats.shadow as f64), "", "would have been denied", &html! {}))
        }
        div.grid {
            @if let Some(applied) = policy.spec().with_preview_applied() { (preview_card(policy, &applied, tried, acts)) }
            (ui::card_flush("w6", name, &html! {
                @if acts { span.actions {
                    button.btn.s type="button" data-key="edit" data-open="edit-policy" { "Edit" }
                    @if policy.spec().preview.is_none() { button.btn.s type="button" data-key="preview" data-open="preview-policy" { "Preview a change" } }
                    @if policy.is_stored() {
                        button.btn.s.ghost type="button" data-key="remove" data-act={ "DELETE " (path) } data-done={ "Removed " (name) } data-then="/desk/limits"
                            data-confirm={ "Remove the policy " (name) "? A default of the product comes back." } data-confirm-verb="Remove" { (Icon::TRASH) "Remove" }
                    }
                } }
            }, &html! {
                ul.list {
                    li { span.dim.grow { "Rule" } b { (rule(policy)) } }
                    li { span.dim.grow { "State" } (state_badge(policy)) }
                    li { span.dim.grow { "Store unavailable" } b { (policy.spec().when_store_down) } }
                    @if let Some(ms) = policy.spec().block_ms { li { span.dim.grow { "Blocks after a denial" } b { (format::millis(i64::try_from(ms).unwrap_or(0))) } } }
                    @if policy.spec().prepay > 0 { li { span.dim.grow { "Prepay" } b { (policy.spec().prepay) } } }
                    @if !policy.spec().exempt.is_empty() { li { span.dim.grow { "Exempt" } span.wrap-any { (policy.spec().exempt.join(", ")) } } }
                    @if !policy.spec().blocked.is_empty() { li { span.dim.grow { "Block list" } span.wrap-any { (policy.spec().blocked.join(", ")) } } }
                    @for one in policy.spec().overrides.iter().take(OVERRIDES_SHOWN) {
                        li { span.dim.grow.wrap-any { "Override for " (one.identity) } b { (format::count(one.limit)) } }
                    }
                    @if policy.spec().overrides.len() > OVERRIDES_SHOWN {
                        li { span.dim.grow { "More overrides" } b { (policy.spec().overrides.len() - OVERRIDES_SHOWN) } }
                    }
                }
            }))
            (ui::card_flush("w6", "Blocked for a time", &html! {
                @if acts { button.btn.s type="button" data-key="block" data-open="block-identity" { "Block an identity" } }
            }, &block_list(name, blocks, acts)))
            (ui::card_flush("", "Identities with the most requests", &html! { span.dim.small { "this hour and the one before" } }, &top_list(name, used, acts)))
        }
    }
}

/// The rule that is tried, with what it would have denied of the requests since the trial began.
fn preview_card(
    policy: &NamedPolicy,
    applied: &PolicySpec,
    tried: PolicyStats,
    acts: bool,
) -> Markup {
    let name = policy.spec().name.as_str();
    let path = format!("/api/v1/ratelimit/policies/{}/preview", percent(name));
    let share = tried.shadow as f64 * 100.0 / (tried.allowed.max(1) as f64);
    let actions = html! {
        @if acts { span.actions {
            button.btn.s.primary type="button" data-act={ "POST " (path) "/apply" } data-done={ "Applied; every instance has it within a second" }
                data-confirm={ "Let " (rule_of(applied)) " count for " (name) "?" } data-confirm-verb="Apply" { "Apply" }
            button.btn.s.ghost type="button" data-act={ "DELETE " (path) } data-done="Preview ended" { "Discard" }
        } }
    };
    ui::card_flush(
        "",
        "Preview on live traffic",
        &actions,
        &html! {
            ul.list {
                li { span.dim.grow { "Rule" } b { (rule_of(applied)) } }
                li { span.dim.grow { "Requests since the start of the preview" } b { (format::count(tried.allowed)) } }
                li { span.dim.grow { "Would have been denied" } b { (format::count(tried.shadow)) " (" (format!("{share:.1}")) " %)" } }
            }
        },
    )
}

/// The address of one identity at a policy.
fn at(name: &str, identity: &str) -> String {
    format!("/api/v1/ratelimit/{}/raw/{}", percent(name), percent(identity).replace('/', "%2F"))
}

fn block_list(name: &str, blocks: &[LimitBlock], acts: bool) -> Markup {
    if blocks.is_empty() {
        return ui::empty(
            Icon::CHECK,
            "Nobody is blocked",
            "Block an identity, or let the policy block after a denial.",
            &html! {},
        );
    }
    html! {
        ul.list {
            @for block in blocks.iter().take(100) {
                li data-key=(block.identity) {
                    span.grow.mono.small.wrap-any { (block.identity) }
                    span.dim.small.nowrap { "until " (format::moment(block.until.0)) }
                    @if acts { button.btn.s type="button" data-act={ "DELETE " (at(name, block.identity.as_str())) "/block" } data-done={ "Unblocked " (block.identity) } { "Unblock" } }
                }
            }
        }
    }
}

fn top_list(name: &str, used: Option<&PolicyUsage>, acts: bool) -> Markup {
    let top = used.map(|one| one.top.as_slice()).unwrap_or_default();
    if top.is_empty() {
        return ui::empty(
            crate::ICON,
            "No requests yet",
            "Identities appear within a second of their first check.",
            &html! {},
        );
    }
    html! {
        div.table-wrap tabindex="0" { table.table.cards {
            thead { tr { th { "Identity" } th.r { "Requests" } th.r { "Denied" } th { span.sr { "Actions" } } } }
            tbody { @for one in top {
                tr data-key=(one.identity) {
                    td.wrap-any { span.mono.small { (one.identity) } }
                    td.r data-label="Requests" { (format::count(one.hits)) }
                    td.r data-label="Denied" { (format::count(one.denied)) }
                    td.r { @if acts { span.actions {
                        button.btn.s type="button" data-act={ "DELETE " (at(name, &one.identity)) } data-done={ "Reset " (one.identity) }
                            data-confirm={ "Forget what " (one.identity) " used of " (name) "?" } data-confirm-verb="Reset" { "Reset" }
                        button.btn.s type="button" data-act={ "PUT " (at(name, &one.identity)) "/block" } data-body="{\"for_ms\":3600000}" data-done={ "Blocked " (one.identity) " for an hour" }
                            data-confirm={ "Block " (one.identity) " at " (name) " for an hour?" } data-confirm-verb="Block" { "Block 1 h" }
                    } } }
                }
            } }
        } }
    }
}
