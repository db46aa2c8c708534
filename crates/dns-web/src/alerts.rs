//! The events of the resolver for webhooks: blocked queries, queries without an answer, new clients, lists
//! that fail, requests to allow a name, and a summary of each day. Also keeps the list of problems.

use std::collections::HashMap;
use std::time::Duration;

use dns::QueryOutcome;
use serde_json::{Value, json};
use store::Millis;
use tokio_util::sync::CancellationToken;
use web::webhook::{Event, EventType};

use crate::api::statistics::{CountView, StatisticsView, read};
use crate::config::TimeOfDay;
use crate::notes::QueryNote;
use crate::problems::{self, Severity};
use crate::records::type_name;
use crate::service::DnsState;

/// A query was blocked.
const BLOCKED: EventType = EventType {
    name: "dns.blocked",
    help: "A query was blocked; at most once in ten minutes for the same name and client.",
};
/// A query got no answer.
const ERROR: EventType = EventType {
    name: "dns.error",
    help: "A query got no answer: no upstream answered, or it was malformed; once in ten minutes for the same name and client.",
};
/// A client was seen for the first time.
const CLIENT_NEW: EventType =
    EventType { name: "dns.client_new", help: "A client was seen for the first time." };
/// A list cannot be fetched.
const LIST_FAILED: EventType = EventType {
    name: "dns.list_failed",
    help: "A list could not be fetched, or lost more than half of its rules; and when that is over.",
};
/// Somebody asks for a blocked name.
const ALLOW_REQUESTED: EventType = EventType {
    name: "dns.allow_requested",
    help: "Someone asked on the block page to allow a name.",
};
/// The figures of a day.
const DAILY_SUMMARY: EventType = EventType {
    name: "dns.daily_summary",
    help: "Queries, blocked share and most blocked names of the last 24 hours, every day at `dns.summary_at`.",
};

/// The types of events.
pub(crate) const EVENTS: &[EventType] =
    &[BLOCKED, ERROR, CLIENT_NEW, LIST_FAILED, ALLOW_REQUESTED, DAILY_SUMMARY];

/// Interval between two looks.
const EVERY: Duration = Duration::from_secs(2);

/// Looks between two at the problems.
const PROBLEMS_EVERY: u64 = 2;

/// Time in which the same name and client are told of once.
const REPEAT_AFTER_MS: i64 = 600_000;

/// Events of one look; the others are counted in the last one.
const EVENTS_MAX: usize = 20;

/// Names and clients that are remembered.
const TOLD_MAX: usize = 10_000;

/// Time after which it is noted again that a client was seen: each note is a write of the store.
const SEEN_AGAIN_AFTER_MS: i64 = 300_000;

/// Looks out until told to stop.
pub(crate) async fn run(state: DnsState, summary_at: TimeOfDay, stop: CancellationToken) {
    let mut watch = Watch { told: HashMap::new(), seen: HashMap::new(), round: 0 };
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
        let looked = tokio::select! {
            () = stop.cancelled() => return,
            looked = watch.look(&state, summary_at) => looked,
        };
        if let Err(error) = looked {
            tracing::debug!(error, "events of the resolver are sent to webhooks later");
        }
    }
}

struct Watch {
    /// Name and client, and when they were told of.
    told: HashMap<(String, String, bool), i64>,
    /// Clients, and when it was noted that they were seen.
    seen: HashMap<String, i64>,
    round: u64,
}

impl Watch {
    async fn look(&mut self, state: &DnsState, summary_at: TimeOfDay) -> Result<(), String> {
        let webhooks = state.app.webhooks();
        if self.round.is_multiple_of(PROBLEMS_EVERY) {
            let found = problems::find(state).await;
            state.problems.update(found, state.resolver.now());
            let wants = (webhooks.wants(&BLOCKED).await, webhooks.wants(&ERROR).await);
            state.recording.notes.set_wanted(wants.0, wants.1);
        }
        self.round += 1;
        self.tell_queries(state).await?;
        self.tell_clients(state).await?;
        if webhooks.leads() {
            tell_lists(state).await?;
            tell_summary(state, summary_at).await?;
        }
        Ok(())
    }

    async fn tell_queries(&mut self, state: &DnsState) -> Result<(), String> {
        let (notes, unnoted) = state.recording.notes.take_queries();
        let now = state.resolver.now().0;
        if self.told.len() >= TOLD_MAX {
            self.told.retain(|_, at| now - *at < REPEAT_AFTER_MS);
        }
        let mut fresh = Vec::new();
        for note in notes {
            let is_block = note.outcome == QueryOutcome::Blocked;
            let key = (note.name.clone(), note.client.clone(), is_block);
            let is_told = self.told.get(&key).is_some_and(|at| now - *at < REPEAT_AFTER_MS);
            if !is_told && self.told.len() < TOLD_MAX {
                self.told.insert(key, now);
                fresh.push(note);
            }
        }
        let left_out = fresh.len().saturating_sub(EVENTS_MAX) as u64 + unnoted;
        let last = fresh.len().min(EVENTS_MAX).saturating_sub(1);
        for (index, note) in fresh.iter().take(EVENTS_MAX).enumerate() {
            let more = if index == last { left_out } else { 0 };
            state.app.webhooks().emit(query_event(note, more)).await.map_err(told)?;
        }
        Ok(())
    }

    async fn tell_clients(&mut self, state: &DnsState) -> Result<(), String> {
        let now = state.resolver.now();
        let mut clients = state.recording.notes.take_clients();
        clients.retain(|client| {
            let noted = self.seen.get(client);
            // A clock that was set back makes nobody wait for it.
            noted.is_none_or(|at| !(0..SEEN_AGAIN_AFTER_MS).contains(&(now.0 - *at)))
        });
        let new = match state.seen.note(&clients, now).await {
            Ok(new) => new,
            Err(error) => {
                // For the next time: nobody else has them.
                for client in &clients {
                    state.recording.notes.see(client);
                }
                return Err(error.to_string());
            }
        };
        if self.seen.len() + clients.len() > TOLD_MAX {
            self.seen.clear();
        }
        self.seen.extend(clients.into_iter().map(|client| (client, now.0)));
        for client in new.iter().take(EVENTS_MAX) {
            let event = Event {
                id: Some(format!("dns-client-{client}-{}", now.0)),
                kind: CLIENT_NEW.name,
                subject: "clients".to_owned(),
                text: format!("{client} asked for the first time."),
                data: json!({ "client": client, "seen_at": web::format::rfc3339(now.0) }),
            };
            state.app.webhooks().emit(event).await.map_err(told)?;
        }
        Ok(())
    }
}

/// The fields are those of the original's webhooks, with more beside them.
fn query_event(note: &QueryNote, more: u64) -> Event {
    let is_block = note.outcome == QueryOutcome::Blocked;
    let kind = if is_block { BLOCKED.name } else { ERROR.name };
    let qtype = type_name(note.qtype);
    let mut text = match note.outcome {
        QueryOutcome::Blocked => {
            format!("{} was blocked for {} by {}.", note.name, note.client, note.list)
        }
        QueryOutcome::Invalid => format!("{} sent a malformed query.", note.client),
        _ => format!("No upstream answered {} ({qtype}) for {}.", note.name, note.client),
    };
    if more > 0 {
        text.push_str(&format!(" And {more} more."));
    }
    let data = json!({
        "qname": note.name,
        "qtype": qtype,
        "client_ip": note.client,
        "group": note.group,
        "outcome": note.outcome.as_str(),
        "list": note.list,
        "upstream_address": note.upstream,
        "duration_ms": f64::from(note.duration_us) / 1_000.0,
        "timestamp": web::format::rfc3339(note.at.0),
        "more": more,
    });
    Event { id: None, kind, subject: "queries".to_owned(), text, data }
}

async fn tell_lists(state: &DnsState) -> Result<(), String> {
    let version = state.resolver.policy();
    let open = state.problems.list();
    for source in version.policy.lists.iter().filter(|source| source.enabled) {
        let ids = [format!("list:{}", source.id), format!("list_shrunk:{}", source.id)];
        let problem = open.iter().find(|one| one.ended.is_none() && ids.contains(&one.id));
        let text = match problem {
            Some(problem) => format!("{}. {}", problem.title, problem.text),
            None => format!("The list {} is in order again.", source.id),
        };
        let severity = problem.map_or(Severity::Notice, |problem| problem.severity);
        let event = Event {
            id: None,
            kind: LIST_FAILED.name,
            subject: format!("list/{}", source.id),
            text,
            data: json!({ "list": source.id, "url": source.url, "severity": severity.as_str() }),
        };
        state.app.webhooks().set_alarm(problem.is_some(), event).await.map_err(told)?;
    }
    Ok(())
}

/// Sends the summary when its time has come. The id names the day, so that it is sent once.
async fn tell_summary(state: &DnsState, summary_at: TimeOfDay) -> Result<(), String> {
    const DAY_MS: i64 = 86_400_000;
    let now = state.resolver.now();
    let at = i64::from(summary_at.minutes) * 60_000;
    let (day, past) = (now.0.div_euclid(DAY_MS), now.0.rem_euclid(DAY_MS));
    // A quarter of an hour, for a leader that changes or a start at this minute.
    if !(at..at + 900_000).contains(&past) {
        return Ok(());
    }
    let webhooks = state.app.webhooks();
    let today = day.to_string();
    if webhooks.cursor("dns_summary").await.map_err(told)?.as_deref() == Some(today.as_str()) {
        return Ok(());
    }
    webhooks
        .emit(summary(state, Some(format!("dns-summary-{today}"))).await?)
        .await
        .map_err(told)?;
    webhooks.set_cursor("dns_summary", &today).await.map_err(told)
}

/// Makes the summary of the last 24 hours.
pub(crate) async fn summary(state: &DnsState, id: Option<String>) -> Result<Event, String> {
    let now = state.resolver.now();
    let from = now - Duration::from_secs(86_400);
    let found = read(state, from, Millis(now.0 + 1)).await;
    let found = found.map_err(|error| error.message().to_owned())?;
    Ok(Event {
        id,
        kind: DAILY_SUMMARY.name,
        subject: "summary".to_owned(),
        text: summary_text(&found),
        data: summary_data(&found),
    })
}

fn summary_text(found: &StatisticsView) -> String {
    let percent = (found.blocked * 100).checked_div(found.queries).unwrap_or(0);
    let mut text = format!(
        "In the last 24 hours: {} queries, {} blocked ({percent} %).",
        web::format::count(found.queries),
        web::format::count(found.blocked)
    );
    if let Some(top) = found.blocked_names.first() {
        text.push_str(&format!(" Most blocked: {} ({}).", top.value, top.queries));
    }
    if let Some(top) = found.clients.first() {
        text.push_str(&format!(" Most queries: {} ({}).", top.value, top.queries));
    }
    text
}

fn summary_data(found: &StatisticsView) -> Value {
    let top = |values: &[CountView]| -> Vec<Value> {
        let top = values.iter().take(10);
        top.map(|one| json!({ "value": one.value, "queries": one.queries })).collect()
    };
    json!({
        "queries": found.queries,
        "blocked": found.blocked,
        "memory_hits": found.memory_hits,
        "store_hits": found.store_hits,
        "p50_ms": found.p50_ms,
        "p95_ms": found.p95_ms,
        "p99_ms": found.p99_ms,
        "outcomes": top(&found.outcomes),
        "blocked_names": top(&found.blocked_names),
        "names": top(&found.names),
        "clients": top(&found.clients),
        "upstreams": top(&found.upstreams),
    })
}

/// Tells of a request on the block page.
pub(crate) async fn tell_request(state: &DnsState, request: &dns::AllowRequest) {
    let event = Event {
        id: Some(format!("dns-allow-{}-{}", request.id, request.asked_ms)),
        kind: ALLOW_REQUESTED.name,
        subject: "allow_requests".to_owned(),
        text: format!("{} asks to allow {}.", request.client, request.name),
        data: json!({ "id": request.id, "name": request.name, "client": request.client,
            "list": request.list, "note": request.note }),
    };
    if let Err(error) = state.app.webhooks().emit(event).await {
        tracing::debug!(
            error = error.message(),
            "a request to allow a name was not sent to webhooks"
        );
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn told(error: web::ApiError) -> String {
    error.message().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_fields_of_the_original() {
        let note = QueryNote {
            at: Millis(0),
            name: "ads.example".to_owned(),
            qtype: 28,
            client: "192.0.2.1".to_owned(),
            group: "kids".to_owned(),
            outcome: QueryOutcome::Blocked,
            list: "ads".to_owned(),
            upstream: String::new(),
            duration_us: 1_500,
        };
        let event = query_event(&note, 2);
        assert_eq!(event.kind, "dns.blocked");
        assert_eq!(event.text, "ads.example was blocked for 192.0.2.1 by ads. And 2 more.");
        let data = event.data;
        assert_eq!(
            (&data["qname"], &data["client_ip"], &data["outcome"], &data["qtype"]),
            (&json!("ads.example"), &json!("192.0.2.1"), &json!("blocked"), &json!("AAAA"))
        );
        assert_eq!((&data["duration_ms"], &data["more"]), (&json!(1.5), &json!(2)));
        let error = query_event(&QueryNote { outcome: QueryOutcome::UpstreamError, ..note }, 0);
        assert_eq!(error.kind, "dns.error");
        assert_eq!(error.text, "No upstream answered ads.example (AAAA) for 192.0.2.1.");
    }
}
