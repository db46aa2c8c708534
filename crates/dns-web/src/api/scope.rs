//! The extent of pauses and timed rules: everybody, a group, or a client.

use dns::PolicyScope;
use web::ApiError;

/// Makes a scope of the two fields that may name one.
pub(super) fn scope(
    group: Option<String>,
    client: Option<String>,
) -> Result<PolicyScope, ApiError> {
    match (group, client) {
        (None, None) => Ok(PolicyScope::All),
        (Some(group), None) => Ok(PolicyScope::Group(group)),
        (None, Some(client)) => Ok(PolicyScope::Client(client)),
        (Some(_), Some(_)) => {
            Err(ApiError::invalid_field("client", "name a group or a client, not both"))
        }
    }
}

/// Splits a scope into group and client.
pub(super) fn parts(scope: &PolicyScope) -> (Option<String>, Option<String>) {
    match scope {
        PolicyScope::All => (None, None),
        PolicyScope::Group(group) => (Some(group.clone()), None),
        PolicyScope::Client(client) => (None, Some(client.clone())),
    }
}
