//! The ACL log: denied accesses, latest first.

use std::collections::VecDeque;

use crate::Reply;

/// A refusal is counted with an earlier one among so many of the latest,
const LOOK_BACK: usize = 10;
/// if it is no older than this.
const SAME_WITHIN_MS: i64 = 60_000;

/// The reason of a denial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DenialReason {
    Command,
    Key,
    Channel,
    Auth,
}

/// The context of a denial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DenialContext {
    /// As a client sent it.
    TopLevel,
    /// In a transaction.
    Multi,
    /// In a script.
    Script,
}

/// One refusal, or several alike.
#[derive(Debug)]
pub(super) struct AclLogEntry {
    pub(super) count: i64,
    pub(super) reason: DenialReason,
    pub(super) place: DenialContext,
    pub(super) object: Vec<u8>,
    pub(super) user: Vec<u8>,
    pub(super) at_ms: i64,
    pub(super) client: Vec<u8>,
}

impl AclLogEntry {
    fn is_like(&self, other: &AclLogEntry) -> bool {
        self.reason == other.reason
            && self.place == other.place
            && self.at_ms.abs_diff(other.at_ms) <= SAME_WITHIN_MS.unsigned_abs()
            && self.object == other.object
            && self.user == other.user
    }

    fn describe(&self, now_ms: i64) -> Reply {
        let reason = match self.reason {
            DenialReason::Command => "command",
            DenialReason::Key => "key",
            DenialReason::Channel => "channel",
            DenialReason::Auth => "auth",
        };
        let place = match self.place {
            DenialContext::TopLevel => "toplevel",
            DenialContext::Multi => "multi",
            DenialContext::Script => "lua",
        };
        let parts = [
            ("count", Reply::Int(self.count)),
            ("reason", Reply::bulk(reason)),
            ("context", Reply::bulk(place)),
            ("object", Reply::bulk(&self.object)),
            ("username", Reply::bulk(&self.user)),
            ("age-seconds", Reply::Double((now_ms - self.at_ms) as f64 / 1000.0)),
            ("client-info", Reply::bulk(&self.client)),
        ];
        Reply::Map(parts.into_iter().map(|(name, value)| (Reply::bulk(name), value)).collect())
    }
}

/// The refusals.
#[derive(Debug, Default)]
pub(super) struct AclLog(VecDeque<AclLogEntry>);

impl AclLog {
    /// Adds one; of more than `most` the oldest go.
    pub(super) fn add(&mut self, entry: AclLogEntry, most: usize) {
        let alike = self.0.iter().take(LOOK_BACK).position(|other| other.is_like(&entry));
        match alike.and_then(|at| self.0.remove(at)) {
            Some(other) => self.0.push_front(AclLogEntry { count: other.count + 1, ..entry }),
            None => {
                self.0.push_front(entry);
                self.0.truncate(most);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The latest.
    pub(super) fn describe(&self, count: usize, now_ms: i64) -> Reply {
        Reply::Array(self.0.iter().take(count).map(|entry| entry.describe(now_ms)).collect())
    }
}
