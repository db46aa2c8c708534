//! Notes about single queries, for those who want to be told of them: webhooks, and the list of clients
//! that were seen.
//!
//! Invariants: what the policy keeps out of the log is not noted; without anybody to tell, queries are
//! not noted at all; notes that nobody takes are bounded, and what finds no room is counted.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dns::QueryOutcome;
use parking_lot::Mutex;
use store::Millis;

/// Notes that wait.
const NOTES_MAX: usize = 200;

/// Clients that wait.
const CLIENTS_MAX: usize = 2_000;

/// A query that somebody is told of.
#[derive(Debug, Clone)]
pub(crate) struct QueryNote {
    pub(crate) at: Millis,
    pub(crate) name: String,
    pub(crate) qtype: u16,
    pub(crate) client: String,
    pub(crate) group: String,
    pub(crate) outcome: QueryOutcome,
    pub(crate) list: String,
    pub(crate) upstream: String,
    pub(crate) duration_us: u32,
}

/// The notes of this process. A cheap clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notes(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    wants_blocked: AtomicBool,
    wants_errors: AtomicBool,
    queries: Mutex<Vec<QueryNote>>,
    clients: Mutex<HashSet<String>>,
    unnoted: AtomicU64,
}

impl Notes {
    /// Says which queries somebody wants to be told of.
    pub(crate) fn set_wanted(&self, blocked: bool, errors: bool) {
        self.0.wants_blocked.store(blocked, Ordering::Relaxed);
        self.0.wants_errors.store(errors, Ordering::Relaxed);
    }

    /// Tells whether queries of an outcome are noted.
    pub(crate) fn wants(&self, outcome: QueryOutcome) -> bool {
        match outcome {
            QueryOutcome::Blocked => self.0.wants_blocked.load(Ordering::Relaxed),
            QueryOutcome::UpstreamError | QueryOutcome::Invalid => {
                self.0.wants_errors.load(Ordering::Relaxed)
            }
            _ => false,
        }
    }

    /// Notes a query that was made so many times.
    pub(crate) fn add(&self, note: &QueryNote, times: u64) {
        let mut queries = self.0.queries.lock();
        let room = NOTES_MAX.saturating_sub(queries.len());
        let noted = usize::try_from(times).unwrap_or(usize::MAX).min(room);
        queries.extend(std::iter::repeat_n(note, noted).cloned());
        self.0.unnoted.fetch_add(times.saturating_sub(noted as u64), Ordering::Relaxed);
    }

    /// Notes a client.
    pub(crate) fn see(&self, client: &str) {
        let mut clients = self.0.clients.lock();
        if !clients.contains(client) && clients.len() < CLIENTS_MAX {
            clients.insert(client.to_owned());
        }
    }

    /// Takes the queries that wait, and the number of those that found no room.
    pub(crate) fn take_queries(&self) -> (Vec<QueryNote>, u64) {
        (std::mem::take(&mut *self.0.queries.lock()), self.0.unnoted.swap(0, Ordering::Relaxed))
    }

    /// Takes the clients that wait.
    pub(crate) fn take_clients(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.clients.lock()).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_bounded_and_what_finds_no_room_is_counted() {
        let notes = Notes::default();
        assert!(!notes.wants(QueryOutcome::Blocked), "nobody asked for it");
        notes.set_wanted(true, false);
        assert!(notes.wants(QueryOutcome::Blocked) && !notes.wants(QueryOutcome::Invalid));
        let note = QueryNote {
            at: Millis(1),
            name: "ads.example".to_owned(),
            qtype: 1,
            client: "192.0.2.1".to_owned(),
            group: "default".to_owned(),
            outcome: QueryOutcome::Blocked,
            list: "ads".to_owned(),
            upstream: String::new(),
            duration_us: 10,
        };
        notes.add(&note, 10);
        notes.add(&note, NOTES_MAX as u64 - 10 + 2);
        notes.add(&note, 1);
        let (taken, unnoted) = notes.take_queries();
        assert_eq!((taken.len(), unnoted), (NOTES_MAX, 3));
        assert_eq!(notes.take_queries().1, 0);
        for _ in 0..2 {
            notes.see("192.0.2.1");
        }
        assert_eq!(notes.take_clients(), ["192.0.2.1"]);
    }
}
