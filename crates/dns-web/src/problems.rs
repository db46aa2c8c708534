//! Problems: what is wrong now, what to do about it, and what was wrong lately.
//!
//! Nothing is guessed from log lines: a problem is a state of a list, an upstream, the log, the store or
//! another instance, looked at again every few seconds. One that is over is remembered for a while.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use dns::{ListStatus, QueryOutcome};
use parking_lot::Mutex;
use store::Millis;

use crate::service::{DnsState, describe_filtering};

/// Problems of the past that are remembered.
const PAST_MAX: usize = 100;

/// Times of the usual pause between two fetches after which a list is old.
const OLD_AFTER_FETCHES: i64 = 3;

/// Grace for another instance to apply a policy.
const POLICY_GRACE_MS: i64 = 15_000;

/// Weight of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Queries are not answered, or not as they should be.
    Error,
    /// It works, but may not for long.
    Warning,
    /// Worth knowing.
    Notice,
}

impl Severity {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Notice => "notice",
        }
    }
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Id, the same as long as it lasts: `list:ads`.
    pub(crate) id: String,
    pub(crate) severity: Severity,
    /// The problem in a few words.
    pub(crate) title: String,
    /// The facts.
    pub(crate) text: String,
    /// Advice on how to fix it.
    pub(crate) fix: String,
    /// The page about it.
    pub(crate) path: String,
    pub(crate) since: Millis,
    /// End; none while it lasts.
    pub(crate) ended: Option<Millis>,
}

impl Problem {
    fn new(id: impl Into<String>, severity: Severity, title: impl Into<String>) -> Problem {
        Problem {
            id: id.into(),
            severity,
            title: title.into(),
            text: String::new(),
            fix: String::new(),
            path: "/dns".to_owned(),
            since: Millis(0),
            ended: None,
        }
    }

    fn says(mut self, text: impl Into<String>, fix: impl Into<String>, path: &str) -> Problem {
        (self.text, self.fix, self.path) = (text.into(), fix.into(), path.to_owned());
        self
    }
}

/// Problems that last and that are over. A cheap clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProblemLog(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    open: BTreeMap<String, Problem>,
    past: VecDeque<Problem>,
}

impl ProblemLog {
    /// Takes over what was found: new problems begin, those that were not found again are over.
    pub(crate) fn update(&self, found: Vec<Problem>, now: Millis) {
        let mut inner = self.0.lock();
        let mut open = BTreeMap::new();
        for mut problem in found {
            let known = inner.open.remove(&problem.id);
            problem.since = known.map_or(now, |known| known.since);
            open.insert(problem.id.clone(), problem);
        }
        for (_, mut over) in std::mem::replace(&mut inner.open, open) {
            over.ended = Some(now);
            inner.past.push_front(over);
        }
        inner.past.truncate(PAST_MAX);
    }

    /// Returns the problems: those that last by severity, then those that are over, the latest first.
    pub(crate) fn list(&self) -> Vec<Problem> {
        let inner = self.0.lock();
        let mut open: Vec<Problem> = inner.open.values().cloned().collect();
        open.sort_by_key(|problem| (problem.severity, problem.since));
        open.into_iter().chain(inner.past.iter().cloned()).collect()
    }

    /// Returns the number of problems that last and are more than a notice.
    pub(crate) fn count(&self) -> usize {
        let inner = self.0.lock();
        inner.open.values().filter(|problem| problem.severity != Severity::Notice).count()
    }
}

/// Looks at everything that may be wrong.
pub(crate) async fn find(state: &DnsState) -> Vec<Problem> {
    let mut found = Vec::new();
    let now = state.resolver.now();
    find_filtering(state, &mut found);
    find_lists(state, now, &mut found);
    find_upstreams(state, &mut found);
    find_log(state, &mut found);
    match state.resolver.policies().load().await {
        Err(error) => found.push(
            Problem::new("store", Severity::Error, "The store is unavailable").says(
                web::format::sentence(&web::error::chain(&error)),
                "Queries are answered from memory and by the upstreams. Repair the store; changes of the policy wait for it.",
                "/store",
            ),
        ),
        Ok(current) => find_instances(state, &current, now, &mut found).await,
    }
    found
}

fn find_filtering(state: &DnsState, found: &mut Vec<Problem>) {
    if state.listeners.is_expected_but_closed() {
        found.push(
            Problem::new("listen", Severity::Error, "No query is taken over UDP and TCP").says(
                "The listeners are not open.",
                "See the program's log; `tidegate doctor` names the process that has the port.",
                "/dns/instances",
            ),
        );
    }
    let (is_filtering, text) = describe_filtering(&state.resolver);
    if !is_filtering {
        let fix = "Add a list; the built-in one needs no network.";
        found.push(Problem::new("filtering", Severity::Notice, "Nothing is filtered").says(
            web::format::sentence(&text),
            fix,
            "/dns/lists",
        ));
    }
    let stats = state.listeners.stats();
    if stats.dropped_queries + stats.dropped_replies > 0 {
        let text = format!(
            "{} queries and {} replies found no room since the start.",
            stats.dropped_queries, stats.dropped_replies
        );
        let fix = "Give the sockets more room (sysctl -w net.core.rmem_max=4194304), or the resolver more threads (dns.threads).";
        found.push(Problem::new("dropped", Severity::Warning, "Queries were dropped").says(
            text,
            fix,
            "/dns/instances",
        ));
    }
}

fn find_lists(state: &DnsState, now: Millis, found: &mut Vec<Problem>) {
    let version = state.resolver.policy();
    let policy = &version.policy;
    let every_ms = i64::from(policy.list_refresh.every_hours) * 3_600_000;
    for (source, status) in policy
        .lists
        .iter()
        .zip(state.resolver.lists().status(&policy.lists))
        .filter(|(s, _)| s.enabled)
    {
        let name = if source.name.is_empty() { &source.id } else { &source.name };
        if let Some(error) = &status.error {
            found.push(list_failure(&source.id, name, &status, error));
        }
        if let Some(rules) = status.shrunk_to {
            let text = format!(
                "The new copy has {rules} rules, the one in use {}. The old copy stays until someone decides.",
                status.figures.rules
            );
            let fix =
                "Look at the source. If the new copy is right, press “Use it” on the page Lists.";
            found.push(
                Problem::new(
                    format!("list_shrunk:{}", source.id),
                    Severity::Warning,
                    format!("The list {name} lost more than half of its rules"),
                )
                .says(text, fix, "/dns/lists"),
            );
        }
        let is_old =
            status.fetched_at.is_some_and(|at| now.0 - at.0 > OLD_AFTER_FETCHES * every_ms);
        if is_old && status.error.is_none() {
            let text = "It has not been fetched for more than three times the usual interval.";
            found.push(
                Problem::new(
                    format!("list_old:{}", source.id),
                    Severity::Warning,
                    format!("The list {name} is old"),
                )
                .says(
                    text,
                    "Press “Fetch” on the page Lists and look at the error.",
                    "/dns/lists",
                ),
            );
        }
    }
}

fn list_failure(id: &str, name: &str, status: &ListStatus, error: &str) -> Problem {
    let severity = if status.is_loaded { Severity::Warning } else { Severity::Error };
    let rest = match status.is_loaded {
        true => "The last good copy is in use.",
        false => "There is no copy yet, so it blocks nothing.",
    };
    Problem::new(format!("list:{id}"), severity, format!("The list {name} was not fetched")).says(
        format!("{} {rest}", web::format::sentence(error)),
        list_fix(error),
        "/dns/lists",
    )
}

/// Returns advice on a failed fetch, by its error.
pub(crate) fn list_fix(error: &str) -> &'static str {
    let has = |word: &str| error.contains(word);
    if has("cannot be resolved") {
        "Check the network and the host in its URL. Names of sources are resolved by upstreams.bootstrap."
    } else if has("private network") {
        "Allow sources on private networks in the settings of the resolver, or use a public address."
    } else if has("web page") || has("no rules") || has("is it a list") {
        "The URL leads to something other than a list: copy the address of the raw file."
    } else if has("404") || has("410") {
        "The source has moved: look up its new URL, or remove the list."
    } else if has("No such file") {
        "Put the file into the folder that it names, or remove the list."
    } else if has("disk") {
        "Make room on the disk of the data folder."
    } else if has("certificate") {
        "Check the clock of this machine, or name the certificate authority in dns.upstream_ca."
    } else if has("redirect") {
        "Use the URL that the source redirects to."
    } else {
        "It will be tried again automatically. If the error persists, check its URL, or remove the list."
    }
}

fn find_upstreams(state: &DnsState, found: &mut Vec<Problem>) {
    let servers = state.resolver.upstreams().stats();
    let failing: Vec<_> = servers.iter().filter(|server| server.is_in_backoff).collect();
    let is_all = !servers.is_empty() && failing.len() == servers.len();
    for server in failing {
        let severity = if is_all { Severity::Error } else { Severity::Warning };
        let why = server.last_failure.as_ref().map_or_else(
            || "It did not answer.".to_owned(),
            |failure| web::format::sentence(&failure.to_string()),
        );
        let text = match is_all {
            true => format!("{why} All upstreams fail: only names in the cache are answered."),
            false => format!("{why} It is asked last, and tried again in the background."),
        };
        let fix = "Test it on the page Upstreams. Check the network, its address, and whether a firewall lets port 53 or 853 through.";
        found.push(
            Problem::new(
                format!("upstream:{}", server.server),
                severity,
                format!("The upstream {} fails", server.server),
            )
            .says(text, fix, "/dns/upstreams"),
        );
    }
    let counts = state.recording.counts();
    let refused: u64 = counts
        .by_label
        .iter()
        .filter(|((_, outcome, _), _)| *outcome == QueryOutcome::Refused.as_str())
        .map(|(_, count)| *count)
        .sum();
    if refused > 0 {
        let text = format!(
            "{refused} queries since the start, of clients that are not on the access list or for what is not served."
        );
        let fix = "If they are yours, add their network under Settings. If not, close port 53 towards the internet.";
        found.push(Problem::new("refused", Severity::Notice, "Queries were refused").says(
            text,
            fix,
            "/dns/queries?outcome=refused",
        ));
    }
}

fn find_log(state: &DnsState, found: &mut Vec<Problem>) {
    if state.recording.query_log.stats().is_failing {
        found.push(Problem::new("log", Severity::Error, "The query log is not written").says(
            "The disk is full or the folder cannot be written to. Queries are answered all the same.",
            "Make room on the disk of the data folder, or lower dns.log_max_size.",
            "/dns/queries",
        ));
    }
    let (unrecorded, unlogged) = state.recording.dropped();
    if unrecorded + unlogged > 0 {
        let text = format!("{} queries are not in the log.", unrecorded + unlogged);
        let fix = "More came than could be written. Log less (one query in so many, blocked only), or use a faster disk.";
        found.push(
            Problem::new("log_dropped", Severity::Notice, "Rows of the log were dropped").says(
                text,
                fix,
                "/dns/settings",
            ),
        );
    }
    if let Some(error) = state.sink.failure() {
        found
            .push(Problem::new("sink", Severity::Warning, "The log sink does not take rows").says(
            web::format::sentence(&error),
            "Check dns.log_sink and the receiver. Rows that wait too long are dropped and counted.",
            "/dns/settings",
        ));
    }
}

async fn find_instances(
    state: &DnsState,
    current: &dns::PolicyVersion,
    now: Millis,
    found: &mut Vec<Problem>,
) {
    let Ok(live) = state.recording.log.live().await else { return };
    let changed_ms = current.changed_at.map_or(0, |at| at.0);
    for one in live {
        let is_late = one.policy_version != current.version
            && one.seen_ms > changed_ms + POLICY_GRACE_MS
            && now.0 > changed_ms + POLICY_GRACE_MS;
        if is_late {
            let text = format!(
                "It applies version {}, the store has {}.",
                one.policy_version, current.version
            );
            let fix = "Look at its log: a policy of a newer version may say something it does not know. Update it.";
            found.push(
                Problem::new(
                    format!("policy:{}", one.name),
                    Severity::Warning,
                    format!("Instance {} does not apply the policy", one.name),
                )
                .says(text, fix, "/dns/instances"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_keeps_its_beginning_and_is_remembered_when_it_is_over() {
        let log = ProblemLog::default();
        let problem = |id: &str, severity| Problem::new(id, severity, id);
        log.update(vec![problem("a", Severity::Warning)], Millis(10));
        log.update(
            vec![problem("b", Severity::Error), problem("a", Severity::Warning)],
            Millis(20),
        );
        let found: Vec<(String, i64)> =
            log.list().into_iter().map(|one| (one.id, one.since.0)).collect();
        assert_eq!(found, [("b".to_owned(), 20), ("a".to_owned(), 10)]);
        assert_eq!(log.count(), 2);
        log.update(vec![problem("n", Severity::Notice)], Millis(30));
        let found = log.list();
        assert_eq!((found[0].id.as_str(), found[0].ended), ("n", None));
        assert_eq!(found.len(), 3);
        assert!(found[1..].iter().all(|one| one.ended == Some(Millis(30))));
        assert_eq!(log.count(), 0);
    }

    #[test]
    fn a_failed_fetch_says_what_to_do() {
        assert!(list_fix("lists.example cannot be resolved: no answer").contains("network"));
        assert!(list_fix("it answered with status 404").contains("moved"));
        assert!(list_fix("the source is a web page, not a list").contains("raw file"));
        assert!(list_fix("something else").contains("tried again"));
    }
}
