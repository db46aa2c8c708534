//! Bounds the audit lines about refused callers, so that a flood of them cannot push the rest out of
//! the trail: one line at once per subject (an address, or a token and what it asked for), then one
//! line with their number when a minute is over.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::audit::Entry;

/// Time over which refusals of one subject are summed up in one line.
const WINDOW: Duration = Duration::from_secs(60);
/// Subjects told apart at once; beyond them, all others are one.
const SUBJECTS: usize = 32;
/// The subject of all others.
const OTHERS: &str = "others";

/// Refusals of the last minute.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<HashMap<String, RefusalCount>>);

/// Refusals of one subject in its minute.
#[derive(Debug)]
struct RefusalCount {
    since: Instant,
    /// Refusals after the first, which has its line already.
    more: u64,
    /// The latest of them.
    last: Entry,
}

impl Refusals {
    /// Counts a refusal; says whether it gets a line now.
    pub(crate) fn count(&self, subject: String, entry: &Entry) -> bool {
        let mut seen = self.0.lock();
        let full = seen.len() >= SUBJECTS && !seen.contains_key(&subject);
        let subject = if full { OTHERS.to_owned() } else { subject };
        if let Some(count) = seen.get_mut(&subject) {
            count.more += 1;
            count.last = entry.clone();
            return false;
        }
        let count = RefusalCount { since: Instant::now(), more: 0, last: entry.clone() };
        seen.insert(subject, count);
        true
    }

    /// Takes out what a minute has summed up: an entry for each subject that was refused again. With
    /// `all`, those whose minute is not over, too.
    pub(crate) fn drain(&self, all: bool) -> Vec<Entry> {
        let mut entries = Vec::new();
        self.0.lock().retain(|_, count| {
            let over = all || count.since.elapsed() >= WINDOW;
            if over && count.more > 0 {
                let mut entry = count.last.clone();
                entry.after = Some(serde_json::json!({ "times": count.more }));
                entries.push(entry);
            }
            !over
        });
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_refusals_is_two_lines_a_minute() {
        let refusals = Refusals::default();
        let entry = Entry { action: "auth.refused".to_owned(), ..Entry::default() };
        let lines = (0..10_000).filter(|_| refusals.count("192.0.2.1".to_owned(), &entry)).count();
        assert_eq!(lines, 1);
        assert!(refusals.drain(false).is_empty(), "the minute is not over");
        tokio::time::advance(WINDOW).await;
        let summed = refusals.drain(false);
        assert_eq!(summed.len(), 1);
        assert_eq!(summed[0].after, Some(serde_json::json!({ "times": 9_999 })));
        assert!(refusals.count("192.0.2.1".to_owned(), &entry), "a new minute");
    }

    #[test]
    fn refusals_from_everywhere_are_a_bounded_number_of_lines() {
        let refusals = Refusals::default();
        let entry = Entry::default();
        let lines = (0..10_000).filter(|n| refusals.count(n.to_string(), &entry)).count();
        assert_eq!(lines, SUBJECTS + 1);
        assert_eq!(refusals.drain(true).len(), 1, "the others together");
    }
}
