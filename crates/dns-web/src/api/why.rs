//! Explanations: why a name is answered as it is, and how it would be under another policy.

use std::net::{IpAddr, Ipv4Addr};

use axum::extract::State;
use dns::{Explanation, Question};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};
use web::extract::{Json, Query};
use web::{ApiError, Routes};

use super::cache::parse_name;
use super::policy::read_policy;
use super::queries::OutcomeName;
use crate::error::DnsApiError;
use crate::records::parse_type;
use crate::service::DnsState;

/// The routes.
pub(super) fn routes() -> Routes<DnsState> {
    Routes {
        viewer: OpenApiRouter::new().routes(routes!(why)).routes(routes!(what_if)),
        ..Routes::default()
    }
}

/// A name and a client.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WhyQuery {
    /// Name.
    pub(crate) name: String,
    /// Type; A if left out.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    pub(crate) rtype: Option<String>,
    /// Address of the client, or the id of its entry; this machine if left out.
    pub(crate) client: Option<String>,
}

/// A step of a decision.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DecisionStep)]
pub(crate) struct StepView {
    /// Step: `client`, `group`, `access`, `pause`, `schedule`, `local`, `rule`, `hop`, `cache` or
    /// `upstream`.
    pub(crate) step: String,
    /// Result, for people.
    pub(crate) result: String,
}

/// The decision about a name for a client.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DnsDecision)]
pub(crate) struct DecisionView {
    /// Outcome; `upstream` if the name would be forwarded.
    pub(crate) outcome: OutcomeName,
    /// Id of the client; empty if it is not known.
    pub(crate) client_id: String,
    /// Id of its group.
    pub(crate) group: String,
    /// List or rules that decided; empty if none did.
    pub(crate) list: String,
    /// Number of the line in it.
    #[schema(required)]
    pub(crate) line: Option<u32>,
    /// Text of the line.
    #[schema(required)]
    pub(crate) rule: Option<String>,
    /// Name or address in the answer that the rule matched, if it is not the name asked for.
    #[schema(required)]
    pub(crate) hop: Option<String>,
    /// Every step, in order.
    pub(crate) steps: Vec<StepView>,
}

impl From<Explanation> for DecisionView {
    fn from(explanation: Explanation) -> DecisionView {
        let step =
            |one: dns::DecisionStep| StepView { step: one.step.to_owned(), result: one.result };
        DecisionView {
            outcome: explanation.outcome.into(),
            client_id: explanation.client_id,
            group: explanation.group_id,
            list: explanation.list,
            line: explanation.line,
            rule: explanation.rule,
            hop: explanation.hop,
            steps: explanation.steps.into_iter().map(step).collect(),
        }
    }
}

/// The question, the address and the id of a client that a query names.
fn parse(
    name: &str,
    rtype: Option<&str>,
    client: Option<&str>,
) -> Result<(Question, IpAddr, Option<String>), ApiError> {
    let text = rtype.filter(|text| !text.is_empty()).unwrap_or("A");
    let qtype = parse_type(text).ok_or_else(|| {
        ApiError::invalid_field("type", format!("{text:?} is not a type such as AAAA"))
    })?;
    let question = Question { name: parse_name(name)?, qtype, qclass: 1 };
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    Ok(match client.filter(|client| !client.is_empty()) {
        None => (question, local, None),
        Some(client) => match client.parse() {
            Ok(address) => (question, address, None),
            Err(_) => (question, local, Some(client.to_owned())),
        },
    })
}

/// Explains a name for a client.
pub(crate) async fn explain(state: &DnsState, query: &WhyQuery) -> Result<DecisionView, ApiError> {
    let (question, address, id) =
        parse(&query.name, query.rtype.as_deref(), query.client.as_deref())?;
    Ok(state.resolver.why(&question, address, id.as_deref()).await.into())
}

/// Explain what a client gets for a name, and why. Asks no upstream.
#[utoipa::path(get, path = "/api/v1/dns/why", tag = "dns", operation_id = "explain_name",
    params(WhyQuery),
    responses((status = 200, description = "The decision.", body = DecisionView)))]
async fn why(
    State(state): State<DnsState>,
    Query(query): Query<WhyQuery>,
) -> Result<Json<DecisionView>, DnsApiError> {
    Ok(Json(explain(&state, &query).await?))
}

/// A name, a client and a policy to try.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WhatIf, example = json!({ "name": "ads.example", "policy": { "rules": ["||ads.example^"] } }))]
struct WhatIfBody {
    /// Name.
    name: String,
    /// Type; A if left out.
    #[serde(rename = "type")]
    #[schema(rename = "type")]
    rtype: Option<String>,
    /// Address of the client, or the id of its entry; this machine if left out.
    client: Option<String>,
    /// The policy to try. It is not saved.
    #[schema(value_type = BTreeMap<String, Value>)]
    policy: Map<String, Value>,
}

/// Explain what a client would get for a name under another policy, which is not saved.
#[utoipa::path(post, path = "/api/v1/dns/what-if", tag = "dns", operation_id = "explain_what_if",
    request_body = WhatIfBody,
    responses((status = 200, description = "The decision.", body = DecisionView)))]
async fn what_if(
    State(state): State<DnsState>,
    Json(body): Json<WhatIfBody>,
) -> Result<Json<DecisionView>, DnsApiError> {
    let (question, address, id) = parse(&body.name, body.rtype.as_deref(), body.client.as_deref())?;
    let policy = read_policy(body.policy)?;
    let explained = state.resolver.what_if(policy, &question, address, id.as_deref()).await?;
    Ok(Json(explained.into()))
}
