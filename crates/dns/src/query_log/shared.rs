//! Instances of one store: each announces itself, and a search on one covers the logs of all.
//!
//! The store is the meeting point: a request is published, every live instance answers into a list of
//! its own making, and whoever asked reads it until all have answered or the time is over. So instances
//! need no address of each other and no credential but the store's. Invariants: a request is answered
//! at most once by each instance; answers live a minute; those who did not answer in time are named.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use store::{Millis, PubsubMessage, Store, redis};
use tokio_util::sync::CancellationToken;

use super::{LogFilter, LogPage, LoggedQuery, QueryLog};
use crate::{
    Error,
    keys::SharedLogKeys,
    query_record::{CacheTier, QueryOutcome, QueryProtocol},
};

/// Time after its last announcement for which an instance counts as live.
const LIVE: Duration = Duration::from_secs(15);

/// Time after which an instance that is gone is forgotten.
const FORGET: Duration = Duration::from_secs(3_600);

/// Most instances that are kept.
const INSTANCES_MAX: usize = 1_000;

/// TTL of answers.
const ANSWER_TTL_SECONDS: u64 = 60;

/// Pause between two looks at the answers.
const ANSWER_POLL: Duration = Duration::from_millis(20);

/// Wait before a lost subscription is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// An instance as it announced itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstanceInfo {
    /// Name.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Time of its start, Unix milliseconds.
    pub started_ms: i64,
    /// Time of the announcement, Unix milliseconds.
    pub seen_ms: i64,
    /// Addresses it takes queries on.
    pub listen: Vec<String>,
    /// Queries answered since its start.
    pub queries: u64,
    /// Queries blocked since its start.
    pub blocked: u64,
    /// Queries answered from its memory since its start.
    pub memory_hits: u64,
    /// Queries answered from the store since its start.
    pub store_hits: u64,
    /// Rows of its query log.
    pub log_rows: u64,
    /// Version of the policy it applies.
    pub policy_version: u64,
}

/// A row with the instance that logged it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedRow {
    /// Name of the instance.
    pub instance: String,
    /// The row.
    pub row: LoggedQuery,
}

/// A page of a search over all live instances, newest row first.
#[derive(Clone, Debug, Default)]
pub struct SharedPage {
    /// Rows.
    pub rows: Vec<SharedRow>,
    /// Position to continue from: by instance, the number before which rows follow; none at the end.
    pub next: Option<BTreeMap<String, u64>>,
    /// Live instances that did not answer in time.
    pub silent: Vec<String>,
}

/// Requests between instances.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum SharedRequest {
    Search { filter: Box<FilterText>, before: BTreeMap<String, u64>, is_first: bool, limit: usize },
    DeleteClient { client: String },
    Clear,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Envelope {
    id: String,
    from: String,
    request: SharedRequest,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SharedAnswer {
    from: String,
    rows: Vec<RowText>,
    has_more: bool,
    deleted: u64,
}

/// The instances of a store, seen from one of them. A cheap clone.
#[derive(Clone, Debug)]
pub struct SharedLog {
    store: Store,
    keys: SharedLogKeys,
    name: String,
    log: QueryLog,
}

impl SharedLog {
    /// Joins the instances of a store under a name.
    pub fn new(store: &Store, name: &str, log: QueryLog) -> Self {
        Self { store: store.clone(), keys: SharedLogKeys::new(), name: name.to_owned(), log }
    }

    /// Returns the key of hashed client addresses, which the first instance that asks makes for all.
    pub async fn hash_key(&self) -> Result<[u8; 32], Error> {
        let mut store = self.store.clone();
        let mut fresh = [0; 32];
        getrandom::fill(&mut fresh).map_err(|error| Error::Invalid {
            field: "log",
            message: format!("there are no random numbers: {error}"),
        })?;
        let text: String = fresh.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut make = redis::cmd("SET");
        make.arg(&self.keys.hash_key).arg(text).arg("NX");
        make.query_async::<Option<String>>(&mut store).await?;
        let kept: String =
            redis::cmd("GET").arg(&self.keys.hash_key).query_async(&mut store).await?;
        // Whatever another writer left there is hashed into a key, so that it is one.
        Ok(Sha256::digest(kept.as_bytes()).into())
    }

    /// Announces this instance, and forgets those that are gone for long.
    pub async fn announce(&self, info: &InstanceInfo) -> Result<(), Error> {
        let mut store = self.store.relaxed();
        let Ok(text) = serde_json::to_string(info) else { return Ok(()) };
        redis::cmd("HSET")
            .arg(&self.keys.instances)
            .arg(&self.name)
            .arg(text)
            .query_async::<()>(&mut store)
            .await?;
        let oldest = self.store.now() - FORGET;
        let known = self.read_instances().await?;
        let is_too_many = known.len() > INSTANCES_MAX;
        let gone = known.iter().filter(|one| Millis(one.seen_ms) < oldest || is_too_many);
        let gone: Vec<&str> =
            gone.map(|one| one.name.as_str()).filter(|name| *name != self.name).collect();
        if !gone.is_empty() {
            let mut delete = redis::cmd("HDEL");
            delete.arg(&self.keys.instances).arg(gone);
            delete.query_async::<()>(&mut store).await?;
        }
        Ok(())
    }

    /// Takes this instance off the list, when it stops.
    pub async fn leave(&self) -> Result<(), Error> {
        let mut store = self.store.clone();
        let mut delete = redis::cmd("HDEL");
        delete.arg(&self.keys.instances).arg(&self.name);
        Ok(delete.query_async::<()>(&mut store).await?)
    }

    async fn read_instances(&self) -> Result<Vec<InstanceInfo>, Error> {
        let mut store = self.store.clone();
        let all: BTreeMap<String, String> =
            redis::cmd("HGETALL").arg(&self.keys.instances).query_async(&mut store).await?;
        // Another writer's text is nobody's announcement.
        let read = |(name, text): (String, String)| {
            let info: InstanceInfo = serde_json::from_str(&text).ok()?;
            Some(InstanceInfo { name, ..info })
        };
        Ok(all.into_iter().filter_map(read).collect())
    }

    /// Returns the instances that are live, by name.
    pub async fn live(&self) -> Result<Vec<InstanceInfo>, Error> {
        let oldest = self.store.now() - LIVE;
        let mut known = self.read_instances().await?;
        known.retain(|one| Millis(one.seen_ms) >= oldest);
        Ok(known)
    }

    /// Answers the requests of other instances until cancelled.
    pub async fn run(&self, cancel: CancellationToken) {
        while !cancel.is_cancelled() {
            let subscribed = self.store.subscribe(&[self.keys.requests.as_str()], &[]).await;
            let Ok(mut requests) = subscribed else {
                tokio::select! {
                    () = cancel.cancelled() => return,
                    () = tokio::time::sleep(RETRY) => continue,
                }
            };
            loop {
                let message = tokio::select! {
                    () = cancel.cancelled() => return,
                    message = requests.recv() => message,
                };
                match message {
                    None => break,
                    Some(PubsubMessage::Published { payload, .. }) => self.answer(&payload).await,
                    // Whoever asked in the gap names this instance as silent.
                    Some(PubsubMessage::Gap) => {}
                }
            }
        }
    }

    async fn answer(&self, payload: &[u8]) {
        let Ok(envelope) = serde_json::from_slice::<Envelope>(payload) else { return };
        if envelope.from == self.name || !is_id(&envelope.id) {
            return;
        }
        let answer = match envelope.request {
            SharedRequest::Search { filter, before, is_first, limit } => {
                let Some(filter) = filter.parse() else { return };
                let before = before.get(&self.name).copied();
                // Not in the position of a later page: everything of this instance was shown.
                if before.is_none() && !is_first {
                    SharedAnswer {
                        from: self.name.clone(),
                        rows: vec![],
                        has_more: false,
                        deleted: 0,
                    }
                } else {
                    let page = self.search_own(filter, before, limit).await;
                    let rows = page.rows.iter().map(RowText::new).collect();
                    let has_more = page.next.is_some();
                    SharedAnswer { from: self.name.clone(), rows, has_more, deleted: 0 }
                }
            }
            SharedRequest::DeleteClient { client } => {
                let deleted = self.delete_own(client).await.unwrap_or(0);
                SharedAnswer { from: self.name.clone(), rows: vec![], has_more: false, deleted }
            }
            // Whoever asked names this instance as silent if it fails.
            SharedRequest::Clear => match self.clear_own().await {
                Ok(deleted) => {
                    SharedAnswer { from: self.name.clone(), rows: vec![], has_more: false, deleted }
                }
                Err(error) => {
                    tracing::error!(%error, "the query log was not cleared");
                    return;
                }
            },
        };
        let Ok(text) = serde_json::to_string(&answer) else { return };
        let key = self.keys.answers(&envelope.id);
        let mut pipe = redis::pipe();
        pipe.atomic();
        pipe.rpush(&key, text).ignore();
        pipe.expire(&key, i64::try_from(ANSWER_TTL_SECONDS).unwrap_or(60)).ignore();
        if let Err(error) = pipe.query_async::<()>(&mut self.store.clone()).await {
            tracing::debug!(%error, "a search of another instance was not answered");
        }
    }

    async fn search_own(&self, filter: LogFilter, before: Option<u64>, limit: usize) -> LogPage {
        let log = self.log.clone();
        let search = move || log.search(&filter, before, limit);
        tokio::task::spawn_blocking(search).await.unwrap_or_default()
    }

    async fn delete_own(&self, client: String) -> std::io::Result<u64> {
        let log = self.log.clone();
        let deleted = tokio::task::spawn_blocking(move || log.delete_client(&client)).await;
        deleted.unwrap_or_else(|error| Err(std::io::Error::other(error)))
    }

    async fn clear_own(&self) -> std::io::Result<u64> {
        let log = self.log.clone();
        let clear = move || {
            let rows = log.stats().rows;
            log.clear().map(|()| rows)
        };
        let cleared = tokio::task::spawn_blocking(clear).await;
        cleared.unwrap_or_else(|error| Err(std::io::Error::other(error)))
    }

    /// Deletes every row on all live instances. Returns their number, and the instances that did not
    /// answer in time.
    pub async fn clear(&self, timeout: Duration) -> (u64, Vec<String>) {
        let (own, others) = tokio::join!(self.clear_own(), self.ask(SharedRequest::Clear, timeout));
        self.sum_deleted(own, others)
    }

    /// Adds up what this instance and others deleted; one that failed is among the silent ones.
    fn sum_deleted(
        &self,
        own: std::io::Result<u64>,
        (answers, mut silent): (Vec<SharedAnswer>, Vec<String>),
    ) -> (u64, Vec<String>) {
        let others: u64 = answers.iter().map(|answer| answer.deleted).sum();
        match own {
            Ok(own) => (own + others, silent),
            Err(error) => {
                tracing::error!(%error, "rows were not deleted from the query log");
                silent.push(self.name.clone());
                (others, silent)
            }
        }
    }

    /// Searches the logs of all live instances. `position` is `next` of the page before.
    pub async fn search(
        &self,
        filter: &LogFilter,
        position: Option<&BTreeMap<String, u64>>,
        limit: usize,
        timeout: Duration,
    ) -> SharedPage {
        let is_first = position.is_none();
        let before = position.cloned().unwrap_or_default();
        let request = SharedRequest::Search {
            filter: Box::new(FilterText::new(filter)),
            before: before.clone(),
            is_first,
            limit,
        };
        let own = async {
            match before.get(&self.name).copied() {
                None if !is_first => LogPage::default(),
                number => self.search_own(filter.clone(), number, limit).await,
            }
        };
        let (own_page, (answers, silent)) = tokio::join!(own, self.ask(request, timeout));
        let mut more = HashSet::new();
        if own_page.next.is_some() {
            more.insert(self.name.clone());
        }
        let own = |row| SharedRow { instance: self.name.clone(), row };
        let mut rows: Vec<SharedRow> = own_page.rows.into_iter().map(own).collect();
        for answer in answers {
            if answer.has_more {
                more.insert(answer.from.clone());
            }
            rows.extend(read_rows(answer));
        }
        sort_newest_first(&mut rows);
        let cut: HashSet<String> =
            rows.get(limit..).unwrap_or_default().iter().map(|row| row.instance.clone()).collect();
        rows.truncate(limit);
        let mut next: BTreeMap<String, u64> = BTreeMap::new();
        for name in more.union(&cut) {
            let shown = rows.iter().filter(|row| row.instance == *name).map(|row| row.row.number);
            let number = shown.min().or_else(|| before.get(name).copied()).unwrap_or(u64::MAX);
            next.insert(name.clone(), number);
        }
        SharedPage { rows, next: (!next.is_empty()).then_some(next), silent }
    }

    /// Searches the logs of the other live instances, without this one, for the newest rows. There are no
    /// further pages.
    pub async fn search_others(
        &self,
        filter: &LogFilter,
        limit: usize,
        timeout: Duration,
    ) -> SharedPage {
        let request = SharedRequest::Search {
            filter: Box::new(FilterText::new(filter)),
            before: BTreeMap::new(),
            is_first: true,
            limit,
        };
        let (answers, silent) = self.ask(request, timeout).await;
        let mut rows: Vec<SharedRow> = answers.into_iter().flat_map(read_rows).collect();
        sort_newest_first(&mut rows);
        rows.truncate(limit);
        SharedPage { rows, next: None, silent }
    }

    /// Deletes the rows of a client on all live instances. Returns their number, and the instances
    /// that did not answer in time.
    pub async fn delete_client(&self, client: &str, timeout: Duration) -> (u64, Vec<String>) {
        let request = SharedRequest::DeleteClient { client: client.to_owned() };
        let own = self.delete_own(client.to_owned());
        let (own, others) = tokio::join!(own, self.ask(request, timeout));
        self.sum_deleted(own, others)
    }

    /// Asks all other live instances. Returns their answers, and the names of those who did not answer.
    async fn ask(
        &self,
        request: SharedRequest,
        timeout: Duration,
    ) -> (Vec<SharedAnswer>, Vec<String>) {
        let live = self.live().await.unwrap_or_default();
        let mut others: HashSet<String> =
            live.into_iter().map(|one| one.name).filter(|name| *name != self.name).collect();
        if others.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let expected = others.len();
        // A store that does not answer must not hold the caller much longer.
        let asked = self.ask_others(request, expected, timeout);
        let asked = tokio::time::timeout(timeout + RETRY, asked).await;
        let answers = match asked {
            Ok(Ok(answers)) => answers,
            Ok(Err(error)) => {
                tracing::debug!(%error, "other instances cannot be asked");
                Vec::new()
            }
            Err(_) => Vec::new(),
        };
        for answer in &answers {
            others.remove(&answer.from);
        }
        let mut silent: Vec<String> = others.into_iter().collect();
        silent.sort();
        (answers, silent)
    }

    async fn ask_others(
        &self,
        request: SharedRequest,
        expected: usize,
        timeout: Duration,
    ) -> Result<Vec<SharedAnswer>, Error> {
        let mut store = self.store.clone();
        let mut bytes = [0; 12];
        getrandom::fill(&mut bytes).map_err(|error| Error::Invalid {
            field: "search",
            message: format!("there are no random numbers: {error}"),
        })?;
        let id: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let key = self.keys.answers(&id);
        let envelope = Envelope { id, from: self.name.clone(), request };
        let text = serde_json::to_string(&envelope).unwrap_or_default();
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(&self.keys.requests).arg(text).query_async::<()>(&mut store).await?;
        let deadline = tokio::time::Instant::now() + timeout;
        let mut read = redis::cmd("LRANGE");
        read.arg(&key).arg(0).arg(-1);
        loop {
            let texts: Vec<String> = read.query_async(&mut store).await?;
            let is_over = tokio::time::Instant::now() >= deadline;
            if texts.len() >= expected || is_over {
                redis::cmd("DEL").arg(&key).query_async::<()>(&mut store).await?;
                let answers = texts.iter().filter_map(|text| serde_json::from_str(text).ok());
                return Ok(answers.collect());
            }
            tokio::time::sleep(ANSWER_POLL).await;
        }
    }
}

/// Returns the rows of an answer with the instance that logged them.
fn read_rows(answer: SharedAnswer) -> impl Iterator<Item = SharedRow> {
    let instance = answer.from;
    let rows = answer.rows.into_iter().filter_map(RowText::parse);
    rows.map(move |row| SharedRow { instance: instance.clone(), row })
}

/// Sorts rows of several instances, stable and by number within an instance, so that no row is left out
/// between two pages.
fn sort_newest_first(rows: &mut [SharedRow]) {
    rows.sort_by(|a, b| {
        (b.row.at, &b.instance, b.row.number).cmp(&(a.row.at, &a.instance, a.row.number))
    });
}

/// Ids become part of a key.
fn is_id(text: &str) -> bool {
    text.len() == 24 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A row in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RowText {
    number: u64,
    at_ms: i64,
    texts: [String; 7],
    qtype: u16,
    rcode: u16,
    outcome: String,
    tier: String,
    protocol: String,
    duration_us: u32,
}

impl RowText {
    fn new(row: &LoggedQuery) -> Self {
        let texts = [
            &row.client,
            &row.client_id,
            &row.group,
            &row.name,
            &row.list,
            &row.upstream,
            &row.answer,
        ];
        Self {
            number: row.number,
            at_ms: row.at.0,
            texts: texts.map(|text| text.to_string()),
            qtype: row.qtype,
            rcode: row.rcode,
            outcome: row.outcome.as_str().to_owned(),
            tier: row.tier.stored_name().to_owned(),
            protocol: row.protocol.as_str().to_owned(),
            duration_us: row.duration_us,
        }
    }

    fn parse(self) -> Option<LoggedQuery> {
        let [client, client_id, group, name, list, upstream, answer] =
            self.texts.map(std::sync::Arc::from);
        Some(LoggedQuery {
            number: self.number,
            at: Millis(self.at_ms),
            client,
            client_id,
            group,
            name,
            qtype: self.qtype,
            rcode: self.rcode,
            outcome: parse_outcome(&self.outcome)?,
            tier: CacheTier::ALL.into_iter().find(|tier| tier.stored_name() == self.tier)?,
            protocol: parse_protocol(&self.protocol)?,
            list,
            upstream,
            answer,
            duration_us: self.duration_us,
        })
    }
}

fn parse_outcome(text: &str) -> Option<QueryOutcome> {
    QueryOutcome::ALL.into_iter().find(|outcome| outcome.as_str() == text)
}

fn parse_protocol(text: &str) -> Option<QueryProtocol> {
    QueryProtocol::ALL.into_iter().find(|protocol| protocol.as_str() == text)
}

/// A filter in JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct FilterText {
    name: Option<String>,
    client: Option<String>,
    group: Option<String>,
    qtype: Option<u16>,
    rcode: Option<u16>,
    outcomes: Vec<String>,
    protocol: Option<String>,
    list: Option<String>,
    upstream: Option<String>,
    answer: Option<String>,
    since_ms: Option<i64>,
    until_ms: Option<i64>,
    min_duration_us: Option<u32>,
    max_duration_us: Option<u32>,
}

impl FilterText {
    fn new(filter: &LogFilter) -> Self {
        let filter = filter.clone();
        Self {
            name: filter.name,
            client: filter.client,
            group: filter.group,
            qtype: filter.qtype,
            rcode: filter.rcode,
            outcomes: filter.outcomes.iter().map(|one| one.as_str().to_owned()).collect(),
            protocol: filter.protocol.map(|protocol| protocol.as_str().to_owned()),
            list: filter.list,
            upstream: filter.upstream,
            answer: filter.answer,
            since_ms: filter.from.map(|at| at.0),
            until_ms: filter.to.map(|at| at.0),
            min_duration_us: filter.min_duration_us,
            max_duration_us: filter.max_duration_us,
        }
    }

    fn parse(self) -> Option<LogFilter> {
        let outcomes = self.outcomes.iter().map(|text| parse_outcome(text));
        let protocol = match &self.protocol {
            Some(text) => Some(parse_protocol(text)?),
            None => None,
        };
        Some(LogFilter {
            name: self.name,
            client: self.client,
            group: self.group,
            qtype: self.qtype,
            rcode: self.rcode,
            outcomes: outcomes.collect::<Option<_>>()?,
            protocol,
            list: self.list,
            upstream: self.upstream,
            answer: self.answer,
            from: self.since_ms.map(Millis),
            to: self.until_ms.map(Millis),
            min_duration_us: self.min_duration_us,
            max_duration_us: self.max_duration_us,
        })
    }
}
