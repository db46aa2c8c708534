//! The place of a key in the other layout.
//!
//! Most keys have one other spelling. A few do not: a standalone name may leave out what the cluster's
//! hash tag needs (`position:ID` does not name its queue), one standalone key may be several in a
//! cluster (`heartbeat:active`), and one that names nothing to tell by is kept once for each.

use std::sync::Arc;

use crate::Layout;

/// A service's keys in both layouts. Implemented in its `keys.rs`.
pub trait KeyMap: Send + Sync + std::fmt::Debug {
    /// Returns where a key, spelled in the layout other than `to`, goes in `to`; none if it is not a
    /// key of this service.
    ///
    /// `scopes` are the members of [`scope_index`](KeyMap::scope_index).
    fn place(&self, key: &[u8], to: Layout, scopes: &[Vec<u8>]) -> Option<Place>;

    /// The set whose members are what keys of a cluster may be tagged with but standalone keys do
    /// not always name, such as the ids of all queues.
    fn scope_index(&self) -> Option<&'static str> {
        None
    }
}

/// The place of a key in another layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// One key.
    Key(Vec<u8>),
    /// One of these keys: the one whose first part is the value of a field of the hash. If there is
    /// none, the key keeps its name.
    Field {
        /// The field.
        field: &'static str,
        /// Values of the field, and the key for each.
        keys: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// Each of these keys.
    Every(Vec<Vec<u8>>),
    /// Several sorted sets, by member.
    Members(Vec<MemberPlace>),
    /// A sorted set that takes the members of several.
    Merged(Vec<u8>),
}

/// One of the sorted sets that members are divided into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberPlace {
    /// A member belongs here if the key with this beginning and the member as its end exists.
    pub witness: Vec<u8>,
    /// The sorted set.
    pub key: Vec<u8>,
}

/// The keys of all services.
#[derive(Clone, Debug, Default)]
pub struct KeyMaps(pub Vec<Arc<dyn KeyMap>>);
