//! The desk over HTTP: request and response types, handlers, and who may call them.
//!
//! Handlers extract, call the `desk` crate and translate. `limits.rs` is what programs ask before
//! they serve a request, `policies.rs` what they are asked by, `domains.rs` the rules for proxies that
//! send descriptors, `traffic.rs` the numbers, `reports.rs`
//! the numbers of other programs, `users.rs` users and sessions.

mod domains;
mod limits;
mod policies;
mod reports;
mod traffic;
mod users;

use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use desk::limit::{LimitedParty, NamedPolicy};
use desk::{AppName, PolicyName, UserId};
use serde::de::IntoDeserializer as _;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use web::auth::{Principal, Role};
use web::extract::Json;
use web::page::{Page, PageQuery};
use web::{ApiError, Routes};

use crate::error::{DeskApiError, unknown_policy};
use crate::service::{Desk, DeskState};

pub(crate) use self::traffic::{EndpointOrder, error_percent};

/// The routes.
pub(crate) fn routes() -> Routes<DeskState> {
    limits::routes()
        .merge(domains::routes())
        .merge(policies::routes())
        .merge(reports::routes())
        .merge(traffic::routes())
        .merge(users::routes())
}

/// Checks that a worker's token is for this part of the desk; other roles are, by the route.
pub(crate) fn require_scope(principal: &Principal, scope: &str) -> Result<(), ApiError> {
    let is_narrowed = principal.role == Role::Worker && !principal.scopes.is_empty();
    if is_narrowed && !principal.scopes.iter().any(|known| known == scope) {
        let message =
            format!("this token has no scope {scope:?}; it has {}", principal.scopes.join(", "));
        return Err(ApiError::forbidden(message).refusing());
    }
    Ok(())
}

/// A part of the desk that a worker's token may be for.
trait DeskScope {
    /// Name of the scope.
    const NAME: &'static str;
}

/// Limits: policies, checks, leases, domains.
#[derive(Debug)]
struct LimitsScope;

/// Users and their sessions.
#[derive(Debug)]
struct UsersScope;

/// Traffic, and reports of it.
#[derive(Debug)]
struct TrafficScope;

impl DeskScope for LimitsScope {
    const NAME: &'static str = "limits";
}

impl DeskScope for UsersScope {
    const NAME: &'static str = "users";
}

impl DeskScope for TrafficScope {
    const NAME: &'static str = "traffic";
}

/// A check, passed, that the caller's token is for a part of the desk. Take it as a handler argument.
#[derive(Debug)]
struct ScopeCheck<P>(PhantomData<fn() -> P>);

impl<P: DeskScope, S: Send + Sync> FromRequestParts<S> for ScopeCheck<P> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<ScopeCheck<P>, ApiError> {
        let principal = Principal::from_request_parts(parts, state).await?;
        require_scope(&principal, P::NAME)?;
        Ok(ScopeCheck(PhantomData))
    }
}

/// The page that is asked for, of a list in memory.
fn page_of<T, V: for<'a> From<&'a T>>(
    items: &[Arc<T>],
    page: &PageQuery,
) -> Result<Json<Page<V>>, ApiError> {
    let (offset, limit) = (page.offset()?, page.limit()?);
    let shown = items.iter().skip(offset).take(limit).map(|one| V::from(&**one));
    Ok(Json(Page::at(offset, limit, shown.collect())))
}

/// The policy of a name.
fn find_policy(desk: &Desk, name: &str) -> Result<Arc<NamedPolicy>, ApiError> {
    let policy = PolicyName::parse(name).ok().and_then(|name| desk.book.find(&name));
    policy.ok_or_else(|| unknown_policy(name))
}

/// The one a request is charged to: exactly one of the three.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct LimitIdentity {
    /// A network address; an IPv6 address counts by its /64.
    ip: Option<String>,
    /// A user.
    user: Option<String>,
    /// An API key, or anything else that the caller names.
    key: Option<String>,
}

/// Longest value of an identity in bytes.
const IDENTITY_MAX: usize = 4_096;

impl LimitIdentity {
    fn party(&self) -> Result<LimitedParty, ApiError> {
        let one = || ApiError::invalid_field("identity", "name exactly one of ip, user and key");
        let check = |value: &str, field: &str| match value.len() {
            1..=IDENTITY_MAX => Ok(()),
            _ => Err(ApiError::invalid_field(field, "1 to 4,096 bytes")),
        };
        match (&self.ip, &self.user, &self.key) {
            (Some(ip), None, None) => Ok(LimitedParty::ip(parse_address(ip, "identity.ip")?)),
            (None, Some(user), None) => {
                check(user, "identity.user")?;
                Ok(LimitedParty::user(user))
            }
            (None, None, Some(key)) => {
                check(key, "identity.key")?;
                Ok(LimitedParty::key(key))
            }
            _ => Err(one()),
        }
    }
}

/// The party a call names: a typed identity, or an identifier as another program spells it.
fn party_of(
    identifier: Option<&str>,
    identity: Option<&LimitIdentity>,
) -> Result<LimitedParty, DeskApiError> {
    match (identifier, identity) {
        (Some(text), None) => Ok(LimitedParty::raw(text)?),
        (None, Some(identity)) => Ok(identity.party()?),
        _ => {
            let message =
                "name who is charged: identity {\"ip\"|\"user\"|\"key\": …}, or identifier";
            Err(ApiError::invalid_field("identity", message).into())
        }
    }
}

/// Kind of an identity in a path.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum IdentityKind {
    /// A network address; an IPv6 address counts by its /64.
    Ip,
    /// A user.
    User,
    /// An API key, or anything else that the caller names.
    Key,
    /// An identifier as it is in keys.
    Raw,
}

/// The party of a path: its kind and its id.
fn party_in_path(kind: &str, id: &str) -> Result<LimitedParty, DeskApiError> {
    let kind: Result<IdentityKind, serde::de::value::Error> =
        IdentityKind::deserialize(kind.into_deserializer());
    let message = "the kind of an identity is ip, user, key or raw";
    let given = Some(id.to_owned());
    let identity = match kind.map_err(|_| ApiError::invalid_field("kind", message))? {
        IdentityKind::Ip => LimitIdentity { ip: given, ..LimitIdentity::default() },
        IdentityKind::User => LimitIdentity { user: given, ..LimitIdentity::default() },
        IdentityKind::Key => LimitIdentity { key: given, ..LimitIdentity::default() },
        IdentityKind::Raw => return Ok(LimitedParty::raw(id)?),
    };
    Ok(identity.party()?)
}

fn parse_address(text: &str, field: &str) -> Result<IpAddr, ApiError> {
    text.trim().parse().map_err(|_| {
        let message = format!("{text:?} is not an address such as 203.0.113.7 or 2001:db8::1");
        ApiError::invalid_field(field, message)
    })
}

fn parse_user(text: &str) -> Result<UserId, DeskApiError> {
    Ok(UserId::parse(text)?)
}

fn parse_app(text: Option<&str>) -> Result<Option<AppName>, DeskApiError> {
    Ok(text.filter(|text| !text.is_empty()).map(AppName::parse).transpose()?)
}
