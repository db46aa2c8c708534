//! Signed invites.

use store::Millis;

use crate::{Level, QueueId};

/// An invite whose signature was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invite {
    /// Its id.
    pub id: String,
    /// The queue it is for.
    pub queue: QueueId,
    /// The level it gives.
    pub level: Level,
    /// How often it may be used.
    pub uses: u32,
    /// When it ends.
    pub expires: Millis,
}
