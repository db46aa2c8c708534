//! The audit trail: who changed what, when, from where. The guard writes an entry for every change
//! by a person; a handler adds what it knows with a [`Note`].
//!
//! The trail is a capped stream in the store, so every instance writes to and reads from the same.
//! A change is announced in the store before it is made and its entry written after ([`begin`],
//! [`PendingEntry::finish`]); what a crash leaves announced, [`sweep`] writes with the outcome `unknown`.

use std::collections::HashMap;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use store::Millis;
use store::redis::{self, AsyncCommands as _};
use tokio_util::sync::CancellationToken;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::app::App;
use crate::auth;
use crate::error::ApiError;
use crate::extract::{Json, Query};
use crate::keys;
use crate::page::{Page, PageQuery};
use crate::routes::Routes;
use crate::time::Timestamp;

/// Largest `before` or `after` kept, in bytes of JSON; longer ones are left out.
const LARGEST_DETAIL: usize = 4096;
/// Interval between two sweeps: refusals are summed up, abandoned changes looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// A change announced this long ago was abandoned: twice what one may take.
const ABANDONED: Duration = Duration::from_secs(120);
/// Announced changes looked at per sweep.
const SWEEP_MOST: usize = 1_000;

/// A handler's addition to the entry of its request. Put it into the response's extensions,
/// for example by returning `(Extension(Note::new("queue.pause", id)), Json(…))`.
#[derive(Debug, Clone, Default)]
pub struct Note {
    /// The act in two words, such as `queue.pause`.
    pub action: String,
    /// The thing it was done to.
    pub target: String,
    /// The state before the change, if there was one.
    pub before: Option<serde_json::Value>,
    /// The state after the change, if there is one.
    pub after: Option<serde_json::Value>,
}

impl Note {
    /// An act and what it was done to.
    pub fn new(action: impl Into<String>, target: impl Into<String>) -> Note {
        Note { action: action.into(), target: target.into(), before: None, after: None }
    }

    /// With what changed.
    #[must_use]
    pub fn change(mut self, before: impl Serialize, after: impl Serialize) -> Note {
        self.before = serde_json::to_value(before).ok();
        self.after = serde_json::to_value(after).ok();
        self
    }
}

/// Put into a response's extensions when nothing worth an entry happened, such as a renewed lease.
#[derive(Debug, Clone, Copy)]
pub struct Silent;

/// One entry of the trail.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Entry {
    /// Stream id; entries are in the order of their ids.
    pub id: String,
    /// Time in milliseconds since 1970.
    pub at_ms: i64,
    /// The name of the token behind the credential.
    pub who: String,
    /// Its short id.
    pub token_id: String,
    /// Its role.
    pub role: String,
    /// The action, such as `queue.pause`, or method and route.
    pub action: String,
    /// The thing it was done to.
    pub target: String,
    /// `ok`, `refused` (4xx), `failed` (5xx), or `unknown` when the instance went down meanwhile.
    pub outcome: String,
    /// HTTP status of the answer.
    pub status: u16,
    /// Address of the client.
    pub client: String,
    /// Id of the request.
    pub request_id: String,
    /// The instance that took it.
    #[serde(default)]
    pub instance: String,
    /// The state before the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub before: Option<serde_json::Value>,
    /// The state after the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub after: Option<serde_json::Value>,
}

impl Entry {
    /// Takes over what the handler answered and noted.
    pub fn finish(&mut self, response: &mut Response) {
        self.set_status(response.status());
        if let Some(note) = response.extensions_mut().remove::<Note>() {
            self.action = note.action;
            self.target = note.target;
            self.before = note.before;
            self.after = note.after;
        }
    }

    /// Says who did it.
    pub fn name(&mut self, principal: &auth::Principal) {
        principal.name.clone_into(&mut self.who);
        principal.token_id.clone_into(&mut self.token_id);
        principal.role.word().clone_into(&mut self.role);
    }

    /// Sets the outcome from the status of the answer.
    pub fn set_status(&mut self, status: axum::http::StatusCode) {
        self.status = status.as_u16();
        self.outcome = match self.status {
            ..400 => "ok",
            400..500 => "refused",
            _ => "failed",
        }
        .to_owned();
    }
}

/// A change under way: announced in the store, its entry not written yet.
#[derive(Debug)]
pub struct PendingEntry {
    /// Field under which it is announced. Our own id: a request's may come from outside and be used twice.
    id: String,
    /// The entry written at the end.
    pub entry: Entry,
    silent: bool,
}

/// Announces a change. When that fails the change must not be made: it would leave no trace.
pub async fn begin(app: &App, mut entry: Entry) -> Result<PendingEntry, ApiError> {
    let id = auth::random_hex::<16>()?;
    entry.at_ms = app.store().now().0;
    app.instance().clone_into(&mut entry.instance);
    let json = serde_json::to_string(&entry).map_err(|error| ApiError::internal(&error))?;
    let _: i64 = app
        .store()
        .clone()
        .hset(keys::audit_pending(), &id, json)
        .await
        .map_err(store::Error::from)?;
    Ok(PendingEntry { id, entry, silent: false })
}

impl PendingEntry {
    /// Takes over what the handler answered and noted.
    pub fn take_note(&mut self, response: &mut Response) {
        self.silent = response.extensions_mut().remove::<Silent>().is_some();
        self.entry.finish(response);
    }

    /// Leaves no entry: nothing happened.
    pub fn silence(&mut self) {
        self.silent = true;
    }

    /// Writes the entry. If that fails the announcement stays, and the entry is written later.
    pub async fn finish(self, app: &App) {
        if !self.silent && !write(app, &self.entry).await {
            return;
        }
        let gone: Result<i64, _> = app.store().clone().hdel(keys::audit_pending(), &self.id).await;
        if let Err(error) = gone {
            tracing::warn!(%error, "an audit entry will be there twice, once as unknown");
        }
    }
}

/// Writes an entry about a refused caller, or counts it for one that sums them up.
pub async fn write_refusal(app: &App, subject: String, entry: &Entry) {
    if app.auth().refusals.count(subject, entry) {
        write(app, entry).await;
    }
}

/// Sums up refusals and writes what crashes left announced, until told to stop.
pub async fn run(app: App, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(SWEEP_EVERY) => {}
            () = stop.cancelled() => break,
        }
        sum_up(&app, false).await;
        if let Err(error) = sweep(&app).await {
            tracing::debug!(error = error.message(), "announced changes not looked at");
        }
    }
    sum_up(&app, true).await;
}

async fn sum_up(app: &App, all: bool) {
    for entry in app.auth().refusals.drain(all) {
        write(app, &entry).await;
    }
}

/// Writes the changes that were announced and never ended, as `unknown`. Several instances may sweep
/// at once: who takes the announcement away writes the entry.
pub async fn sweep(app: &App) -> Result<(), ApiError> {
    let mut store = app.store().clone();
    let (mut cursor, mut seen) = (0_u64, 0);
    loop {
        let (next, rows): (u64, Vec<(String, String)>) = redis::cmd("HSCAN")
            .arg(keys::audit_pending())
            .arg(cursor)
            .arg("COUNT")
            .arg(100)
            .query_async(&mut store)
            .await
            .map_err(store::Error::from)?;
        seen += rows.len();
        for (id, json) in rows {
            let mut entry: Entry = serde_json::from_str(&json).unwrap_or_default();
            let age = app.store().now().0.saturating_sub(entry.at_ms);
            if u128::try_from(age).unwrap_or(0) < ABANDONED.as_millis() {
                continue;
            }
            "unknown".clone_into(&mut entry.outcome);
            let taken: i64 =
                store.hdel(keys::audit_pending(), &id).await.map_err(store::Error::from)?;
            if taken == 1 && !write(app, &entry).await {
                let _: i64 = store
                    .hset(keys::audit_pending(), &id, json)
                    .await
                    .map_err(store::Error::from)?;
            }
        }
        cursor = next;
        if cursor == 0 || seen >= SWEEP_MOST {
            return Ok(());
        }
    }
}

/// Appends to the trail and to the log; says whether the trail has it.
pub async fn write(app: &App, entry: &Entry) -> bool {
    let instance = match entry.instance.as_str() {
        "" => app.instance(),
        named => named,
    };
    tracing::info!(
        target: "audit",
        who = entry.who, role = entry.role, action = entry.action, on = entry.target,
        outcome = entry.outcome, client = entry.client, request_id = entry.request_id,
        "change"
    );
    let at_ms = if entry.at_ms == 0 { app.store().now().0 } else { entry.at_ms };
    let mut command = redis::cmd("XADD");
    command.arg(keys::audit()).arg("MAXLEN").arg("~").arg(app.settings().audit_keep).arg("*");
    let detail = |value: &Option<serde_json::Value>| {
        value.as_ref().map(ToString::to_string).filter(|text| text.len() <= LARGEST_DETAIL)
    };
    let fields = [
        ("at_ms", Some(at_ms.to_string())),
        ("who", Some(entry.who.clone())),
        ("token_id", Some(entry.token_id.clone())),
        ("role", Some(entry.role.clone())),
        ("action", Some(entry.action.clone())),
        ("target", Some(entry.target.chars().take(512).collect())),
        ("outcome", Some(entry.outcome.clone())),
        ("status", Some(entry.status.to_string())),
        ("client", Some(entry.client.clone())),
        ("request_id", Some(entry.request_id.clone())),
        ("instance", Some(instance.to_owned())),
        ("before", detail(&entry.before)),
        ("after", detail(&entry.after)),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            command.arg(name).arg(value);
        }
    }
    match command.query_async::<String>(&mut app.store().clone()).await {
        Ok(_) => true,
        Err(error) => {
            tracing::error!(error = %error, action = entry.action, "audit entry not written");
            false
        }
    }
}

/// Reads the trail, newest first, older than `before` when given.
pub async fn read(app: &App, before: Option<&str>, limit: usize) -> Result<Vec<Entry>, ApiError> {
    // Nothing is before the first id there can be, and the store refuses to look.
    if before.is_some_and(|id| id.bytes().all(|byte| matches!(byte, b'0' | b'-'))) {
        return Ok(Vec::new());
    }
    let from = before.map_or_else(|| "+".to_owned(), |id| format!("({id}"));
    let rows: Vec<(String, HashMap<String, String>)> = redis::cmd("XREVRANGE")
        .arg(keys::audit())
        .arg(from)
        .arg("-")
        .arg("COUNT")
        .arg(limit)
        .query_async(&mut app.store().clone())
        .await
        .map_err(store::Error::from)?;
    Ok(rows.into_iter().map(|(id, fields)| entry(id, fields)).collect())
}

/// Entries looked at in one step of a filtered reading, and steps of one page.
const FILTER_STEP: usize = 500;
const FILTER_STEPS: usize = 40;

/// Selects entries.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// Part of a name, an action, a target, a client's address or a request's id.
    pub text: String,
    /// A word of the target, such as the id of one thing; empty: any.
    pub target: String,
    /// The outcome; empty: any.
    pub outcome: String,
    /// Not before this time.
    pub from: Option<Millis>,
    /// Not after this time.
    pub to: Option<Millis>,
}

impl AuditFilter {
    fn wants(&self, entry: &Entry) -> bool {
        let text = self.text.to_lowercase();
        let fields = [&entry.who, &entry.action, &entry.target, &entry.client, &entry.request_id];
        (self.outcome.is_empty() || self.outcome == entry.outcome)
            && (self.target.is_empty()
                || entry.target.split_whitespace().any(|word| word == self.target))
            && (text.is_empty() || fields.iter().any(|field| field.to_lowercase().contains(&text)))
            && self.from.is_none_or(|from| entry.at_ms >= from.0)
    }

    fn is_empty(&self) -> bool {
        self.text.is_empty()
            && self.target.is_empty()
            && self.outcome.is_empty()
            && self.from.is_none()
            && self.to.is_none()
    }
}

/// A page of entries that a filter lets through, newest first, and the id to go on from; `None` at the end. A
/// page may be short although there is more: one call looks at 20,000 entries at most.
pub async fn find(
    app: &App,
    filter: &AuditFilter,
    before: Option<&str>,
    limit: usize,
) -> Result<(Vec<Entry>, Option<String>), ApiError> {
    if filter.is_empty() {
        let entries = read(app, before, limit).await?;
        let next = entries.last().filter(|_| entries.len() == limit).map(|last| last.id.clone());
        return Ok((entries, next));
    }
    let end = filter.to.map(|to| format!("{}-0", to.0.max(0).saturating_add(1)));
    let mut at = before.map(str::to_owned).or(end);
    let mut found = Vec::new();
    for _ in 0..FILTER_STEPS {
        let entries = read(app, at.as_deref(), FILTER_STEP).await?;
        let is_last = entries.len() < FILTER_STEP;
        let too_old = |entry: &Entry| filter.from.is_some_and(|from| entry.at_ms < from.0);
        for entry in entries {
            if too_old(&entry) {
                return Ok((found, None));
            }
            at = Some(entry.id.clone());
            if filter.wants(&entry) {
                found.push(entry);
                if found.len() == limit {
                    return Ok((found, at));
                }
            }
        }
        if is_last {
            return Ok((found, None));
        }
    }
    Ok((found, at))
}

fn entry(id: String, mut fields: HashMap<String, String>) -> Entry {
    let mut take = |name: &str| fields.remove(name).unwrap_or_default();
    Entry {
        at_ms: take("at_ms").parse().unwrap_or(0),
        who: take("who"),
        token_id: take("token_id"),
        role: take("role"),
        action: take("action"),
        target: take("target"),
        outcome: take("outcome"),
        status: take("status").parse().unwrap_or(0),
        client: take("client"),
        request_id: take("request_id"),
        instance: take("instance"),
        before: serde_json::from_str(&take("before")).ok(),
        after: serde_json::from_str(&take("after")).ok(),
        id,
    }
}

/// An entry of the audit trail, as the API has it.
#[derive(Debug, Serialize, ToSchema)]
pub struct AuditEntry {
    /// Id; entries are in the order of their ids.
    id: String,
    /// Time of the change.
    created_at: Timestamp,
    /// Name of the token behind the credential.
    who: String,
    /// Its short id.
    token_id: String,
    /// Its role.
    role: String,
    /// The action, such as `queue.pause`, or method and route.
    action: String,
    /// The thing it was done to.
    target: String,
    /// The outcome.
    outcome: AuditOutcome,
    /// HTTP status of the answer.
    status: u16,
    /// Address of the client.
    client: String,
    /// Id of the request.
    request_id: String,
    /// Name of the instance that took it.
    instance: String,
    /// The state before the change.
    #[schema(value_type = Option<Object>)]
    before: Option<serde_json::Value>,
    /// The state after the change.
    #[schema(value_type = Option<Object>)]
    after: Option<serde_json::Value>,
}

/// The outcome of a change.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum AuditOutcome {
    /// It was made.
    Ok,
    /// It was refused (4xx).
    Refused,
    /// It failed (5xx).
    Failed,
    /// The instance went down while it was under way.
    Unknown,
}

impl AuditOutcome {
    fn word(self) -> &'static str {
        match self {
            AuditOutcome::Ok => "ok",
            AuditOutcome::Refused => "refused",
            AuditOutcome::Failed => "failed",
            AuditOutcome::Unknown => "unknown",
        }
    }
}

impl From<Entry> for AuditEntry {
    fn from(entry: Entry) -> AuditEntry {
        AuditEntry {
            id: entry.id,
            created_at: Timestamp(Millis(entry.at_ms)),
            who: entry.who,
            token_id: entry.token_id,
            role: entry.role,
            action: entry.action,
            target: entry.target,
            outcome: match entry.outcome.as_str() {
                "ok" => AuditOutcome::Ok,
                "refused" => AuditOutcome::Refused,
                "failed" => AuditOutcome::Failed,
                _ => AuditOutcome::Unknown,
            },
            status: entry.status,
            client: entry.client,
            request_id: entry.request_id,
            instance: entry.instance,
            before: entry.before,
            after: entry.after,
        }
    }
}

/// The page of the trail that is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AuditQuery {
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// Position to continue from: `next_cursor` of the last answer. Left out: the newest. A page may be short
    /// although there is a next one.
    cursor: Option<String>,
    /// Part of a name, an action, a target, a client's address or a request's id.
    #[param(max_length = 200)]
    text: Option<String>,
    /// The outcome.
    outcome: Option<AuditOutcome>,
    /// Not before this time.
    from: Option<Timestamp>,
    /// Not after this time.
    to: Option<Timestamp>,
}

/// List the audit trail, newest first.
#[utoipa::path(get, path = "/api/v1/audit", tag = "audit", operation_id = "list_changes", params(AuditQuery),
    responses((status = 200, description = "A page of the trail.", body = Page<AuditEntry>)))]
async fn list(
    State(app): State<App>,
    Query(query): Query<AuditQuery>,
) -> Result<Json<Page<AuditEntry>>, ApiError> {
    let page = PageQuery { limit: query.limit, cursor: query.cursor };
    let filter = AuditFilter {
        text: query.text.unwrap_or_default(),
        target: String::new(),
        outcome: query.outcome.map(|outcome| outcome.word().to_owned()).unwrap_or_default(),
        from: query.from.map(|at| at.0),
        to: query.to.map(|at| at.0),
    };
    Ok(Json(page_of(&app, &filter, &page).await?))
}

/// The page of the trail that is asked for, of the entries that a filter lets through.
pub async fn page_of(
    app: &App,
    filter: &AuditFilter,
    page: &PageQuery,
) -> Result<Page<AuditEntry>, ApiError> {
    let limit = page.limit()?;
    let before = page.parse_cursor(|id| is_stream_id(id).then(|| id.to_owned()))?;
    let (entries, next) = find(app, filter, before.as_deref(), limit).await?;
    Ok(Page::new(entries.into_iter().map(AuditEntry::from).collect(), next))
}

/// Tells whether a text is the id of an entry.
pub fn is_stream_id(id: &str) -> bool {
    let number = |part: &str| {
        (1..=18).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    id.split_once('-').is_some_and(|(ms, seq)| number(ms) && number(seq))
}

/// The routes.
pub fn routes() -> Routes {
    Routes { viewer: OpenApiRouter::new().routes(routes!(list)), ..Routes::default() }
}
