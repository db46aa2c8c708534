//! The policy document: read, replaced and planned as a whole.
//!
//! The parts have calls of their own (`lists.rs`, `rules.rs`, `groups.rs`, `clients.rs`, `records.rs`,
//! `pauses.rs`); all of them change this document, one version at a time.

use std::collections::HashMap;

use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use dns::{Policy, PolicyVersion};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};
use web::audit::Note;
use web::error::ErrorBody;
use web::extract::Json;
use web::time::Timestamp;
use web::{ApiError, Routes};

use crate::error::DnsApiError;
use crate::service::DnsState;

/// Most changes that a plan lists.
const CHANGES_MAX: usize = 1_000;

/// The routes.
pub(super) fn routes() -> Routes<DnsState> {
    Routes {
        viewer: OpenApiRouter::new().routes(routes!(get)).routes(routes!(plan)),
        operator: OpenApiRouter::new().routes(routes!(put)),
        ..Routes::default()
    }
}

/// A version of the policy.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DnsPolicy)]
pub(super) struct PolicyView {
    /// Version: 0 before the first change, one more with each.
    version: u64,
    /// Time of the last change; null before the first.
    #[schema(required)]
    changed_at: Option<Timestamp>,
    /// The document: upstreams, lists, rules, services, groups, clients, records, pauses, timed rules,
    /// access, rate limit, rebinding, log. Everything has a default.
    #[schema(value_type = BTreeMap<String, Value>)]
    policy: Value,
}

impl PolicyView {
    pub(super) fn new(version: PolicyVersion) -> Result<PolicyView, DnsApiError> {
        let policy = serde_json::to_value(&version.policy)
            .map_err(|error| DnsApiError::from(ApiError::internal(&error)))?;
        let changed_at = version.changed_at.map(Timestamp);
        Ok(PolicyView { version: version.version, changed_at, policy })
    }
}

/// Get the whole policy.
#[utoipa::path(get, path = "/api/v1/dns/policy", tag = "dns", operation_id = "get_resolver_policy",
    responses((status = 200, description = "The policy.", body = PolicyView)))]
async fn get(State(state): State<DnsState>) -> Result<Json<PolicyView>, DnsApiError> {
    Ok(Json(PolicyView::new(state.resolver.policies().load().await?)?))
}

/// A whole policy to put in place.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewDnsPolicy, example = json!({ "version": 3, "policy": { "rules": ["||ads.example^"] } }))]
struct NewPolicyDocument {
    /// Version it was made from. If the policy has another one by now, nothing is changed (409).
    version: u64,
    /// The document. What is left out has its default.
    #[schema(value_type = BTreeMap<String, Value>)]
    policy: Map<String, Value>,
}

/// Reads a document; a mistake is named by its place in it.
pub(super) fn read_policy(document: Map<String, Value>) -> Result<Policy, DnsApiError> {
    let policy: Policy = serde_json::from_value(Value::Object(document)).map_err(|error| {
        DnsApiError::from(ApiError::invalid_field("policy", format!("the document: {error}")))
    })?;
    policy.check().map_err(dns::Error::from)?;
    Ok(policy)
}

/// Replace the whole policy. All instances apply it within a second.
#[utoipa::path(put, path = "/api/v1/dns/policy", tag = "dns", operation_id = "put_resolver_policy",
    request_body = NewPolicyDocument,
    responses((status = 200, description = "In place.", body = PolicyView),
        (status = 409, description = "The policy has another version by now.", body = ErrorBody)))]
async fn put(
    State(state): State<DnsState>,
    Json(body): Json<NewPolicyDocument>,
) -> Result<impl IntoResponse, DnsApiError> {
    let policy = read_policy(body.policy)?;
    let before = state.load_policy().await?;
    let changes = difference(&before, &policy);
    let saved = state.resolver.save_policy(body.version, policy).await?;
    let note = Note::new("policy.put", format!("version {}", saved.version));
    let note = note.change(Value::Null, json!({ "changes": changes.len() }));
    Ok((Extension(note), Json(PolicyView::new(saved)?)))
}

/// A policy to compare with the one in place.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DnsPolicyDraft, example = json!({ "policy": { "rules": ["||ads.example^"] } }))]
struct PlanBody {
    /// The document. What is left out has its default.
    #[schema(value_type = BTreeMap<String, Value>)]
    policy: Map<String, Value>,
}

/// A difference between two documents.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = PolicyDifference)]
pub(crate) struct DifferenceView {
    /// Place in the document, such as `groups[kids].rules[2]`.
    #[schema(example = "rules[0]")]
    pub(crate) field: String,
    /// Value in place; null if there is none.
    #[schema(value_type = BTreeMap<String, Value>)]
    pub(crate) before: Value,
    /// Value that would take its place; null if there would be none.
    #[schema(value_type = BTreeMap<String, Value>)]
    pub(crate) after: Value,
}

/// A plan: what replacing the policy would change.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PolicyPlan)]
struct PlanView {
    /// Version in place, to be named when the policy is put.
    version: u64,
    /// True if nothing would change.
    is_empty: bool,
    /// The differences in the order of the document, at most 1,000.
    differences: Vec<DifferenceView>,
}

/// Compare a policy with the one in place, and change nothing.
#[utoipa::path(post, path = "/api/v1/dns/policy/plan", tag = "dns", operation_id = "plan_resolver_policy",
    request_body = PlanBody,
    responses((status = 200, description = "The differences.", body = PlanView)))]
async fn plan(
    State(state): State<DnsState>,
    Json(body): Json<PlanBody>,
) -> Result<Json<PlanView>, DnsApiError> {
    let policy = read_policy(body.policy)?;
    let current = state.resolver.policies().load().await?;
    let differences = difference(&current.policy, &policy);
    let is_empty = differences.is_empty();
    Ok(Json(PlanView { version: current.version, is_empty, differences }))
}

/// Returns the differences of two documents, by place.
pub(crate) fn difference(before: &Policy, after: &Policy) -> Vec<DifferenceView> {
    let value = |policy: &Policy| serde_json::to_value(policy).unwrap_or(Value::Null);
    let mut found = Vec::new();
    compare("", &value(before), &value(after), &mut found);
    found
}

/// Entries of a part of a document, by name and in their order.
struct Entries<'a> {
    order: Vec<String>,
    by_name: HashMap<String, &'a Value>,
}

/// Parts of lists are known by their id where they have one, else by their place.
fn entries(value: &Value) -> Option<Entries<'_>> {
    let named: Vec<(String, &Value)> = match value {
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (format!(".{name}"), value)).collect()
        }
        Value::Array(items) => {
            let place = |(index, item): (usize, &Value)| match item["id"].as_str() {
                Some(id) => format!("[{id}]"),
                None => format!("[{index}]"),
            };
            items.iter().enumerate().map(|(index, item)| (place((index, item)), item)).collect()
        }
        _ => return None,
    };
    let order = named.iter().map(|(name, _)| name.clone()).collect();
    Some(Entries { order, by_name: named.into_iter().collect() })
}

fn compare(place: &str, before: &Value, after: &Value, found: &mut Vec<DifferenceView>) {
    if before == after || found.len() >= CHANGES_MAX {
        return;
    }
    let (Some(old), Some(new)) = (entries(before), entries(after)) else {
        let field = place.trim_start_matches('.').to_owned();
        found.push(DifferenceView { field, before: before.clone(), after: after.clone() });
        return;
    };
    let empty = Value::Null;
    for name in merged_order(&old, &new) {
        let before = old.by_name.get(name).copied().unwrap_or(&empty);
        let after = new.by_name.get(name).copied().unwrap_or(&empty);
        compare(&format!("{place}{name}"), before, after, found);
    }
}

/// Returns the names of the entries of both documents in the order of the new one; what it no longer has
/// follows its predecessor in the old one.
fn merged_order<'a>(old: &'a Entries<'_>, new: &'a Entries<'_>) -> Vec<&'a str> {
    let mut removed: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut last_kept = "";
    for name in &old.order {
        match new.by_name.contains_key(name) {
            true => last_kept = name,
            false => removed.entry(last_kept).or_default().push(name),
        }
    }
    let names = std::iter::once("").chain(new.order.iter().map(String::as_str));
    let mut order = Vec::with_capacity(old.order.len().max(new.order.len()));
    for name in names {
        order.extend(Some(name).filter(|name| !name.is_empty()));
        order.extend(removed.remove(name).unwrap_or_default());
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(value: Value) -> Policy {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_plan_names_what_changes_and_nothing_else() {
        let before = policy(json!({ "rules": ["||a^"], "groups": [{ "id": "kids" }] }));
        let after = policy(json!({
            "rules": ["||a^", "||b^"],
            "groups": [{ "id": "kids", "cache": false }, { "id": "guests" }],
        }));
        assert!(difference(&before, &before).is_empty());
        let found = difference(&before, &after);
        let fields: Vec<&str> = found.iter().map(|one| one.field.as_str()).collect();
        assert_eq!(fields, ["groups[kids].cache", "groups[guests]", "rules[1]"]);
        assert_eq!((&found[2].before, &found[2].after), (&Value::Null, &json!("||b^")));
    }

    #[test]
    fn a_plan_follows_the_order_of_the_document() {
        let rules = |count: usize| -> Vec<String> {
            (0..count).map(|number| format!("||{number}.example^")).collect()
        };
        let found = difference(&policy(json!({})), &policy(json!({ "rules": rules(12) })));
        let found: Vec<&str> = found.iter().map(|one| one.field.as_str()).collect();
        let expected: Vec<String> = (0..12).map(|number| format!("rules[{number}]")).collect();
        assert_eq!(found, expected);
        let groups = |ids: &[&str]| {
            let groups: Vec<Value> = ids.iter().map(|id| json!({ "id": id })).collect();
            policy(json!({ "groups": groups }))
        };
        let found = difference(&groups(&["y", "kids", "x"]), &groups(&["kids", "guests", "b"]));
        let found: Vec<&str> = found.iter().map(|one| one.field.as_str()).collect();
        assert_eq!(found, ["groups[y]", "groups[x]", "groups[guests]", "groups[b]"]);
    }
}
