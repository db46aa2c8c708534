//! Names of endpoints: a method and a route template.
//!
//! Invariant: a name holds no brace, which would decide a cluster slot, and no value that a client
//! made up: a path without a route is one series, and so is all that is more than 1,000.

use std::fmt;

/// Methods that are told apart; any other is `OTHER`.
const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// Longest route template in bytes; a longer one counts as no route.
const ROUTE_MAX: usize = 200;

/// The name of an endpoint: `GET /api/users/:id`, `UNMATCHED` or `OTHER`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointName(String);

impl EndpointName {
    /// Requests that matched no route.
    pub fn unmatched() -> Self {
        Self("UNMATCHED".to_owned())
    }

    /// Requests to endpoints beyond the most that are told apart.
    pub fn other() -> Self {
        Self("OTHER".to_owned())
    }

    /// The endpoint of a request: its method and the template of the route it matched, if any. A
    /// template's `{id}` is spelled `:id`.
    ///
    /// ```
    /// use tidegate_desk::traffic::EndpointName;
    /// let name = |method, route| EndpointName::new(method, route).to_string();
    /// assert_eq!(name("GET", Some("/api/users/{id}")), "GET /api/users/:id");
    /// assert_eq!(name("BREW", Some("/pot")), "OTHER /pot");
    /// assert_eq!(name("GET", None), "UNMATCHED");
    /// ```
    pub fn new(method: &str, route: Option<&str>) -> Self {
        let is_bad = |c: char| c.is_control() || c.is_whitespace();
        match route {
            Some(route) if route.len() <= ROUTE_MAX && !route.contains(is_bad) => {
                let method = if METHODS.contains(&method) { method } else { "OTHER" };
                let route = route.replace('{', ":").replace('}', "");
                Self(format!("{method} {route}"))
            }
            _ => Self::unmatched(),
        }
    }

    /// Returns true for a name that another program may count under: its own spelling of an endpoint.
    pub(crate) fn is_countable(text: &str) -> bool {
        let is_bad = |c: char| c.is_control() || matches!(c, '{' | '}');
        (1..=ROUTE_MAX + 10).contains(&text.len()) && !text.contains(is_bad) && text != "OTHER"
    }

    pub(crate) fn known(text: String) -> Self {
        Self(text)
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EndpointName({:?})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_holds_nothing_that_could_be_a_hash_tag() {
        for route in ["/a/{id}", "/{a}/{b}", "/{}", "/}{", "/a/:id"] {
            assert!(
                !EndpointName::new("GET", Some(route)).as_str().contains(['{', '}']),
                "{route}"
            );
        }
        assert_eq!(EndpointName::new("GET", Some("/a b")), EndpointName::unmatched());
        assert_eq!(EndpointName::new("GET", Some(&"/a".repeat(101))), EndpointName::unmatched());
    }
}
