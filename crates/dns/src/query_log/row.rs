//! A row of the query log, and the filter of a search.

use std::sync::Arc;

use store::Millis;

use crate::query_record::{CacheTier, QueryOutcome, QueryProtocol};

/// An answered query, as the log keeps it. Rows that are alike share their texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedQuery {
    /// Number of the row in the log of its instance.
    pub number: u64,
    /// Time of the reply.
    pub at: Millis,
    /// Address of the client: in full, truncated or as a keyed hash, as the policy says.
    pub client: Arc<str>,
    /// Id of the client's entry in the policy; empty if it has none.
    pub client_id: Arc<str>,
    /// Id of its group.
    pub group: Arc<str>,
    /// Name that was asked for, without the last dot.
    pub name: Arc<str>,
    /// Type that was asked for.
    pub qtype: u16,
    /// Response code.
    pub rcode: u16,
    /// Outcome.
    pub outcome: QueryOutcome,
    /// Tier of the cache that had the answer.
    pub tier: CacheTier,
    /// Protocol.
    pub protocol: QueryProtocol,
    /// List or rule that decided; empty if none did.
    pub list: Arc<str>,
    /// Upstream that answered; empty if none did.
    pub upstream: Arc<str>,
    /// The answer in short, such as its first address.
    pub answer: Arc<str>,
    /// Time from query to reply, in microseconds.
    pub duration_us: u32,
}

impl LoggedQuery {
    /// Returns true if the row is of this client, by address or id.
    pub(super) fn is_of_client(&self, client: &str) -> bool {
        &*self.client == client || &*self.client_id == client
    }
}

/// Conditions of a search; all must hold. Texts are found anywhere in the value, in any case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFilter {
    /// Text in the name.
    pub name: Option<String>,
    /// Text in the client's address or id.
    pub client: Option<String>,
    /// Group.
    pub group: Option<String>,
    /// Type.
    pub qtype: Option<u16>,
    /// Response code.
    pub rcode: Option<u16>,
    /// Outcomes; any without one.
    pub outcomes: Vec<QueryOutcome>,
    /// Protocol.
    pub protocol: Option<QueryProtocol>,
    /// Text in the name of the list.
    pub list: Option<String>,
    /// Text in the name of the upstream.
    pub upstream: Option<String>,
    /// Text in the answer.
    pub answer: Option<String>,
    /// Earliest time.
    pub from: Option<Millis>,
    /// Time before which rows are.
    pub to: Option<Millis>,
    /// Shortest duration in microseconds.
    pub min_duration_us: Option<u32>,
    /// Longest duration in microseconds.
    pub max_duration_us: Option<u32>,
}

/// Returns true if a text is in a value, whatever its case.
pub(super) fn contains(value: &str, text: &str) -> bool {
    let (value, text) = (value.as_bytes(), text.as_bytes());
    text.is_empty() || value.windows(text.len()).any(|window| window.eq_ignore_ascii_case(text))
}

fn fits(condition: Option<&str>, value: &str) -> bool {
    condition.is_none_or(|text| contains(value, text))
}

impl LogFilter {
    /// Returns true if a row fits.
    pub fn matches(&self, row: &LoggedQuery) -> bool {
        let client = self.client.as_deref();
        self.fits_time(row.at)
            && self.fits_numbers(row.qtype, row.rcode, row.duration_us)
            && self.fits_words(row.outcome, row.protocol)
            && fits(self.name.as_deref(), &row.name)
            && (fits(client, &row.client) || fits(client, &row.client_id))
            && self.group.as_deref().is_none_or(|group| group == &*row.group)
            && fits(self.list.as_deref(), &row.list)
            && fits(self.upstream.as_deref(), &row.upstream)
            && fits(self.answer.as_deref(), &row.answer)
    }

    pub(super) fn fits_time(&self, at: Millis) -> bool {
        self.from.is_none_or(|from| at >= from) && self.to.is_none_or(|to| at < to)
    }

    pub(super) fn fits_numbers(&self, qtype: u16, rcode: u16, duration_us: u32) -> bool {
        self.qtype.is_none_or(|wanted| wanted == qtype)
            && self.rcode.is_none_or(|wanted| wanted == rcode)
            && self.min_duration_us.is_none_or(|least| duration_us >= least)
            && self.max_duration_us.is_none_or(|most| duration_us <= most)
    }

    pub(super) fn fits_words(&self, outcome: QueryOutcome, protocol: QueryProtocol) -> bool {
        (self.outcomes.is_empty() || self.outcomes.contains(&outcome))
            && self.protocol.is_none_or(|wanted| wanted == protocol)
    }

    /// Returns true if rows between two times may fit.
    pub(super) fn may_overlap(&self, first: Millis, last: Millis) -> bool {
        self.from.is_none_or(|from| last >= from) && self.to.is_none_or(|to| first < to)
    }
}
