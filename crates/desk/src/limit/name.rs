//! The name of a limit in process: a policy and an identity. A look by reference makes no copies, and no
//! key of the store, which most checks of a hot identity do without.

use std::hash::Hash;

use hashbrown::Equivalent;

use super::Policy;
use crate::{Identity, PolicyName};

/// A policy and the identity it limits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LimitName {
    policy: Option<PolicyName>,
    identity: Identity,
}

/// A [`LimitName`] by reference; both hash alike.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct LimitNameRef<'a> {
    policy: Option<&'a PolicyName>,
    identity: &'a Identity,
}

impl<'a> LimitNameRef<'a> {
    pub(super) fn new(policy: &'a Policy, identity: &'a Identity) -> Self {
        Self { policy: policy.name(), identity }
    }

    pub(super) fn identity(&self) -> &'a Identity {
        self.identity
    }
}

impl From<&LimitNameRef<'_>> for LimitName {
    fn from(name: &LimitNameRef<'_>) -> Self {
        Self { policy: name.policy.cloned(), identity: name.identity.clone() }
    }
}

impl Equivalent<LimitName> for LimitNameRef<'_> {
    fn equivalent(&self, name: &LimitName) -> bool {
        self.policy == name.policy.as_ref() && *self.identity == name.identity
    }
}
