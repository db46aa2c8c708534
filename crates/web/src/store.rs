//! A look into the store: how it is, which keys it has, what is in them. Looking is bounded: a page
//! of keys, the first entries of a value, never a command that walks everything.
//!
//! Keys and values are bytes; they are shown as text with `\xNN` for bytes that are not text, and
//! taken in the same spelling.
//!
//! Secrets and our own control keys (see `protected.rs`) are not shown, found, measured or deleted
//! here, whatever the role.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Extension, Router};
use futures_util::future::BoxFuture;
use maud::Markup;
use serde::{Deserialize, Serialize};
use store::Millis;
use store::history::SharedSample;
use store::key_map::KeyMap;
use store::redis::{self, FromRedisValue};
use utoipa::openapi::OpenApi;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

mod figures;
mod page;
pub(crate) mod usage;

use std::sync::Arc;

use crate::app::App;
use crate::audit::Note;
use crate::cli::top::TopSection;
use crate::cli::{Client, Outcome, number, text};
use crate::config::Values;
use crate::error::ApiError;
use crate::extract::{Json, Query};
use crate::icon::Icon;
use crate::keys;
use crate::metrics::{MetricInfo, Reading};
use crate::middleware::percent;
use crate::page::{LIMIT_MAX, Page, PageQuery};
use crate::routes::Routes;
use crate::search::{HITS_MAX, SearchHit};
use crate::service::{Fragments, Opening, RunningService, Service};
use crate::store::usage::MemoryUsage;
use crate::time::Timestamp;
use crate::ui::{NavGroup, NavItem};
use crate::webhook::EventType;

/// The store's own calls and pages, as a service. It is always there.
#[derive(Debug)]
pub struct StoreService;

impl Service for StoreService {
    fn name(&self) -> &'static str {
        "store"
    }

    fn summary(&self) -> &'static str {
        "What is in the store, and how it is doing."
    }

    fn is_optional(&self) -> bool {
        false
    }

    fn nav(&self) -> NavItem {
        NavItem {
            path: "/store",
            title: "Store",
            key: "s",
            icon: Icon::STORE,
            group: NavGroup::Installation,
        }
    }

    fn metrics(&self) -> &'static [MetricInfo] {
        figures::METRICS
    }

    fn key_map(&self, _: &Values) -> Option<Arc<dyn KeyMap>> {
        Some(Arc::new(keys::FrameKeyMap))
    }

    fn event_types(&self) -> &'static [EventType] {
        &[EventType {
            name: "store.not_writable",
            help: "The store has accepted no writes for about 15 seconds; every instance that notices sends it.",
        }]
    }

    fn document(&self) -> OpenApi {
        routes().document()
    }

    fn top(&self, client: &Client) -> Outcome<Vec<TopSection>> {
        let info = client.get("/api/v1/store")?;
        let memory = info["memory_bytes"].as_f64().unwrap_or(0.0);
        let (memory, unit) = crate::format::bytes(memory);
        let summary = format!(
            "{} {}, {} keys, {memory} {unit}, {} commands/s, {} clients",
            text(&info, "kind"),
            text(&info, "version"),
            number(&info, "keys"),
            number(&info, "commands_per_second"),
            number(&info, "clients")
        );
        Ok(vec![TopSection::new("Store", summary, &[])])
    }

    fn open<'a>(&'a self, _: Opening<'a>) -> BoxFuture<'a, Outcome<Arc<dyn RunningService>>> {
        Box::pin(async { Ok(Arc::new(StoreService) as Arc<dyn RunningService>) })
    }
}

impl RunningService for StoreService {
    fn routes(&self, _: &App) -> Routes {
        routes()
    }

    fn fragments(&self) -> Fragments {
        Fragments::default()
            .add("store", async |app: App, _| page::part(&app).await)
            .add("store-usage", async |app: App, _| page::usage_part(&app).await)
    }

    fn tiles(&self, app: &App) -> Option<Markup> {
        Some(page::tiles(app))
    }

    /// Finds keys by name.
    fn search<'a>(&'a self, app: &'a App, text: &'a str) -> BoxFuture<'a, Vec<SearchHit>> {
        Box::pin(async move {
            let query = KeyQuery {
                pattern: Some(text.to_owned()),
                kind: None,
                cursor: None,
                limit: Some(HITS_MAX),
            };
            let found = keys(app, &query).await.map(|page| page.items).unwrap_or_default();
            let hit = |row: KeyRow| {
                let path = format!("/store/key?key={}", percent(&row.key));
                SearchHit::new("key", row.key, row.kind, path)
            };
            found.into_iter().take(HITS_MAX).map(hit).collect()
        })
    }

    fn samples<'a>(&'a self, app: &'a App) -> BoxFuture<'a, Vec<SharedSample>> {
        Box::pin(page::sample(app))
    }

    fn readings<'a>(&'a self, app: &'a App) -> BoxFuture<'a, Result<Vec<Reading>, String>> {
        Box::pin(figures::readings(app))
    }
}

/// Entries of one value shown at once.
pub const ENTRIES: usize = 100;
/// Bytes of one string or entry shown.
const LONGEST: usize = 16 * 1024;
/// Keys the store is asked to look at per call while searching, and calls per page.
const SCAN_COUNT: usize = 500;
const SCAN_CALLS: usize = 40;

/// Slow commands asked of each node: as many as Redis keeps unless told otherwise.
const SLOW_PER_NODE: usize = 128;

/// Kind of the store, in the document.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "the schema of store::StoreKind")]
enum StoreKind {
    /// Built into the program.
    Embedded,
    /// One server.
    Single,
    /// A server that Sentinels name.
    Sentinel,
    /// A cluster.
    Cluster,
}

/// Type of a key, in the document.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "the schema of KINDS")]
enum KeyType {
    String,
    List,
    Set,
    Zset,
    Hash,
    Stream,
}

/// The figures of the store.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct StoreInfo {
    /// Its kind.
    #[schema(value_type = StoreKind)]
    pub kind: String,
    /// Its address, without secrets.
    pub address: String,
    /// Version it reports.
    pub version: String,
    /// Number of keys.
    pub keys: u64,
    /// Memory its data takes, in bytes.
    pub memory_bytes: u64,
    /// Memory it may take; 0 means no limit.
    pub memory_limit_bytes: u64,
    /// Commands it has run since it started.
    pub commands_total: u64,
    /// Commands a second, of all clients: as the store itself tells, or over the latest seconds.
    pub commands_per_second: u64,
    /// Connected clients.
    pub clients: u64,
    /// Seconds since it started.
    pub uptime_seconds: u64,
}

/// One key.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = KeySummary)]
pub struct KeyRow {
    /// Its name.
    pub key: String,
    /// Its type.
    #[schema(value_type = KeyType)]
    #[serde(rename = "type")]
    pub kind: String,
    /// Milliseconds left to live; null when it lives on.
    pub ttl_ms: Option<i64>,
}

/// One key with what is in it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct KeyValue {
    /// Its name.
    pub key: String,
    /// Its type.
    #[schema(value_type = KeyType)]
    #[serde(rename = "type")]
    pub kind: String,
    /// Its encoding in the store.
    pub encoding: String,
    /// Milliseconds left to live; absent when it lives on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<i64>,
    /// Bytes it takes, where the store tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Number of its entries (bytes, for a string).
    pub length: u64,
    /// The first entries, by type: `[value]` of a string, `[index, value]` of a list, `[member]` of a
    /// set, `[score, member]` of a sorted set, `[field, value]` of a hash, `[id, fields]` of a stream.
    pub entries: Vec<Vec<String>>,
    /// True if there is more than is shown.
    pub more: bool,
}

/// A command that took long.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SlowCommand {
    /// Time at which it ran.
    pub started_at: Timestamp,
    /// Run time in milliseconds, rounded up.
    pub took_ms: u64,
    /// The command, shortened.
    pub command: String,
}

/// Reads the figures of the store. Of a cluster they are the sum of its masters.
pub async fn info(app: &App) -> Result<StoreInfo, ApiError> {
    let health = app.store().health();
    let nodes = app.store().on_every_node(&redis::cmd("INFO")).await?;
    let counts = app.store().on_every_node(&redis::cmd("DBSIZE")).await?;
    let mut info = StoreInfo {
        kind: format!("{:?}", health.kind).to_lowercase(),
        address: health.address,
        ..StoreInfo::default()
    };
    for (_, reply) in &nodes {
        let text = String::from_redis_value_ref(reply).unwrap_or_default();
        let field = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap_or("")
        };
        let number = |name: &str| field(name).trim().parse::<u64>().unwrap_or(0);
        field("redis_version").trim().clone_into(&mut info.version);
        info.memory_bytes += number("used_memory");
        info.memory_limit_bytes += number("maxmemory");
        info.commands_total += number("total_commands_processed");
        info.commands_per_second += number("instantaneous_ops_per_sec");
        info.clients += number("connected_clients");
        info.uptime_seconds = info.uptime_seconds.max(number("uptime_in_seconds"));
    }
    if info.commands_per_second == 0 {
        // The built-in store counts commands and no rate.
        let lately = app.series().last("store.commands").unwrap_or(0.0);
        info.commands_per_second = lately.round() as u64;
    }
    info.keys = counts.iter().filter_map(|(_, n)| u64::from_redis_value_ref(n).ok()).sum();
    Ok(info)
}

/// The keys to list.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct KeyQuery {
    /// A pattern with `*`, `?` and `[…]`; without any of these, every key that contains it.
    #[param(max_length = 512, example = "queue:*")]
    pub pattern: Option<String>,
    /// Only keys of this type.
    #[param(inline, value_type = Option<KeyType>)]
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Position to continue from: `next_cursor` of the last answer.
    pub cursor: Option<String>,
    /// Keys to look for; a few more may come together.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    pub limit: Option<usize>,
}

const KINDS: [&str; 6] = ["string", "list", "set", "zset", "hash", "stream"];

/// A page of keys: at least `limit` when there are that many, a few more when they come together.
pub async fn keys(app: &App, query: &KeyQuery) -> Result<Page<KeyRow>, ApiError> {
    let limit = query.limit.unwrap_or(50);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(ApiError::invalid_field("limit", "a page has 1 to 1,000 items"));
    }
    let kind = query.kind.as_deref().filter(|kind| !kind.is_empty());
    if kind.is_some_and(|kind| !KINDS.contains(&kind)) {
        return Err(ApiError::invalid_field(
            "type",
            format!("type is one of {}", KINDS.join(", ")),
        ));
    }
    let start = query.cursor.as_deref().filter(|cursor| !cursor.is_empty()).unwrap_or("0");
    if start.len() > 20 || !start.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ApiError::invalid_field("cursor", "a cursor is a number from the last page"));
    }
    let start = start.parse::<u64>().map_err(|_| {
        ApiError::invalid_field("cursor", "a cursor is a number from the last page")
    })?;
    let pattern = pattern(query.pattern.as_deref().unwrap_or_default())?;

    let nodes = app.store().on_every_node(&redis::cmd("PING")).await?;
    let (mut node, mut at) = split_cursor(start);
    let mut names: Vec<Vec<u8>> = Vec::new();
    // Whoever looks for something walks in long steps; whoever only looks around gets a page.
    let step = if pattern.is_none() && kind.is_none() { limit } else { SCAN_COUNT };
    for _ in 0..SCAN_CALLS {
        let Some((address, _)) = nodes.get(node) else { break };
        let mut scan = redis::cmd("SCAN");
        scan.arg(at).arg("COUNT").arg(step);
        if let Some(pattern) = &pattern {
            scan.arg("MATCH").arg(pattern);
        }
        if let Some(kind) = kind {
            scan.arg("TYPE").arg(kind);
        }
        let reply = app.store().on_node(address, &scan).await?;
        let (next, found): (u64, Vec<Vec<u8>>) =
            redis::from_redis_value(reply).map_err(|error| ApiError::internal(&error))?;
        names.extend(found.into_iter().filter(|name| !app.protected_keys().contain(name)));
        at = next;
        if at == 0 {
            node += 1;
        }
        if node >= nodes.len() || names.len() >= limit {
            break;
        }
    }
    let next = (node < nodes.len()).then(|| join_cursor(node, at));
    names.sort();
    names.dedup();
    let rows = describe(app, names).await?;
    Ok(Page::new(rows, next))
}

/// A place in a walk through several servers: which one, and its own cursor. A cursor stays far
/// below 2⁵² for any table that fits into memory.
const NODES: u64 = 4096;

fn split_cursor(cursor: u64) -> (usize, u64) {
    (usize::try_from(cursor % NODES).unwrap_or(0), cursor / NODES)
}

fn join_cursor(node: usize, at: u64) -> u64 {
    at.saturating_mul(NODES).saturating_add(node as u64 % NODES)
}

/// Types and times to live of a page of keys, in one go.
async fn describe(app: &App, names: Vec<Vec<u8>>) -> Result<Vec<KeyRow>, ApiError> {
    let mut rows = Vec::with_capacity(names.len());
    for chunk in names.chunks(100) {
        let mut pipe = redis::pipe();
        for name in chunk {
            pipe.cmd("TYPE").arg(name).cmd("PTTL").arg(name);
        }
        let replies: Vec<redis::Value> =
            pipe.query_async(&mut app.store().clone()).await.map_err(store::Error::from)?;
        for (name, pair) in chunk.iter().zip(replies.chunks(2)) {
            let [kind, ttl] = pair else { continue };
            let kind = String::from_redis_value_ref(kind).unwrap_or_default();
            if kind == "none" {
                continue; // gone since the scan
            }
            let ttl = i64::from_redis_value_ref(ttl).ok().filter(|ttl| *ttl >= 0);
            rows.push(KeyRow { key: spell(name), kind, ttl_ms: ttl });
        }
    }
    Ok(rows)
}

/// A glob; a text without any special character matches wherever it occurs.
fn pattern(text: &str) -> Result<Option<Vec<u8>>, ApiError> {
    if text.len() > 512 {
        return Err(ApiError::invalid_field("pattern", "a pattern has at most 512 bytes"));
    }
    if text.is_empty() {
        return Ok(None);
    }
    if text.contains(['*', '?', '[', '\\']) {
        return Ok(Some(text.as_bytes().to_vec()));
    }
    Ok(Some(format!("*{text}*").into_bytes()))
}

/// One key with its first entries; `None` when it does not exist.
pub async fn value(app: &App, key: &str) -> Result<Option<KeyValue>, ApiError> {
    let name = unspell(key)?;
    refuse_protected(app, &name)?;
    let mut store = app.store().clone();
    let kind: String =
        redis::cmd("TYPE").arg(&name).query_async(&mut store).await.map_err(store::Error::from)?;
    if kind == "none" {
        return Ok(None);
    }
    let mut pipe = redis::pipe();
    pipe.cmd("PTTL").arg(&name);
    let top = ENTRIES - 1;
    match kind.as_str() {
        "string" => {
            pipe.cmd("STRLEN").arg(&name).cmd("GETRANGE").arg(&name).arg(0).arg(LONGEST - 1)
        }
        "list" => pipe.cmd("LLEN").arg(&name).cmd("LRANGE").arg(&name).arg(0).arg(top),
        "set" => {
            pipe.cmd("SCARD").arg(&name).cmd("SSCAN").arg(&name).arg(0).arg("COUNT").arg(ENTRIES)
        }
        "zset" => {
            pipe.cmd("ZCARD").arg(&name).cmd("ZRANGE").arg(&name).arg(0).arg(top).arg("WITHSCORES")
        }
        "hash" => {
            pipe.cmd("HLEN").arg(&name).cmd("HSCAN").arg(&name).arg(0).arg("COUNT").arg(ENTRIES)
        }
        "stream" => pipe
            .cmd("XLEN")
            .arg(&name)
            .cmd("XREVRANGE")
            .arg(&name)
            .arg("+")
            .arg("-")
            .arg("COUNT")
            .arg(ENTRIES),
        _ => return Err(ApiError::invalid(format!("keys of type {kind} cannot be shown"))),
    };
    let (ttl, length, body): (i64, u64, redis::Value) =
        pipe.query_async(&mut store).await.map_err(store::Error::from)?;
    let (mut entries, cut) = entries(&kind, &body);
    entries.truncate(ENTRIES);
    let more = match kind.as_str() {
        "string" => length > LONGEST as u64,
        _ => length > entries.len() as u64 || cut,
    };
    Ok(Some(KeyValue {
        key: spell(&name),
        encoding: optional(app, &["OBJECT", "ENCODING"], &name).await.unwrap_or_default(),
        memory_bytes: optional(app, &["MEMORY", "USAGE"], &name).await,
        ttl_ms: (ttl >= 0).then_some(ttl),
        kind,
        length,
        entries,
        more,
    }))
}

/// Refuses keys the browser is closed to, whether or not they exist.
fn refuse_protected(app: &App, name: &[u8]) -> Result<(), ApiError> {
    if !app.protected_keys().contain(name) {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::FORBIDDEN,
        "PROTECTED_KEY",
        "this key holds secrets or the server's own records; it cannot be read or changed here",
    ))
}

/// The answer of a command that not every store has.
async fn optional<T: FromRedisValue>(app: &App, words: &[&str; 2], key: &[u8]) -> Option<T> {
    let [command, sub] = words;
    redis::cmd(command)
        .arg(sub)
        .arg(key)
        .query_async::<Option<T>>(&mut app.store().clone())
        .await
        .ok()
        .flatten()
}

/// The entries of a reply by type, and whether one of them was cut.
fn entries(kind: &str, body: &redis::Value) -> (Vec<Vec<String>>, bool) {
    let mut cut = false;
    let mut text = |value: &redis::Value| {
        let bytes = Vec::<u8>::from_redis_value_ref(value).unwrap_or_default();
        cut |= bytes.len() > LONGEST;
        spell(bytes.get(..LONGEST).unwrap_or(&bytes))
    };
    let items = |value: &redis::Value| -> Vec<redis::Value> {
        match value {
            redis::Value::Array(items) | redis::Value::Set(items) => items.clone(),
            redis::Value::Map(pairs) => {
                pairs.iter().flat_map(|(key, value)| [key.clone(), value.clone()]).collect()
            }
            _ => Vec::new(),
        }
    };
    // SCAN-like replies are [cursor, items].
    let scanned = |value: &redis::Value| items(value).get(1).map(&items).unwrap_or_default();
    let found = match kind {
        "string" => vec![vec![text(body)]],
        "list" => items(body)
            .iter()
            .enumerate()
            .map(|(index, value)| vec![index.to_string(), text(value)])
            .collect(),
        "set" => scanned(body).iter().map(|value| vec![text(value)]).collect(),
        "hash" => pairs(&scanned(body)).map(|(a, b)| vec![text(a), text(b)]).collect(),
        "zset" => pairs(&items(body)).map(|(a, b)| vec![text(b), text(a)]).collect(),
        _ => items(body)
            .iter()
            .map(|entry| {
                let parts = items(entry);
                let id = parts.first().map(&mut text).unwrap_or_default();
                let fields = parts.get(1).map(&items).unwrap_or_default();
                let fields: Vec<String> =
                    pairs(&fields).map(|(a, b)| format!("{}={}", text(a), text(b))).collect();
                vec![id, fields.join(" ")]
            })
            .collect(),
    };
    (found, cut)
}

fn pairs(items: &[redis::Value]) -> impl Iterator<Item = (&redis::Value, &redis::Value)> {
    items.chunks(2).filter_map(|pair| match pair {
        [a, b] => Some((a, b)),
        _ => None,
    })
}

/// Commands that took long, newest first: the latest of each node.
pub async fn slow(app: &App) -> Result<Vec<SlowCommand>, ApiError> {
    let replies =
        app.store().on_every_node(redis::cmd("SLOWLOG").arg("GET").arg(SLOW_PER_NODE)).await?;
    let rows: Vec<Vec<redis::Value>> = replies
        .iter()
        .flat_map(|(_, reply)| Vec::from_redis_value_ref(reply).unwrap_or_default())
        .collect();
    let commands = rows.iter().filter_map(|row| {
        let [_, at, took, words, ..] = row.as_slice() else { return None };
        let mut words = Vec::<Vec<u8>>::from_redis_value_ref(words).ok()?;
        if is_own_sampling(&words) {
            return None;
        }
        let is_protected = words.iter().any(|word| app.protected_keys().contain(word));
        let name = script_name(&words);
        if let Some(name) = name {
            words.splice(0..2, [b"script".to_vec(), name.as_bytes().to_vec()]);
        }
        if is_protected {
            // What is written to such a key is no less secret than what is in it.
            words.truncate(if name.is_some() { 2 } else { 1 });
            words.push("(protected)".into());
        }
        let words: Vec<String> =
            words.iter().take(12).map(|word| spell(word.get(..64).unwrap_or(word))).collect();
        Some(SlowCommand {
            started_at: Timestamp(Millis(i64::from_redis_value_ref(at).ok()?.saturating_mul(1000))),
            took_ms: u64::from_redis_value_ref(took).ok()?.div_ceil(1_000),
            command: words.join(" "),
        })
    });
    let mut commands: Vec<SlowCommand> = commands.collect();
    commands.sort_by_key(|command| std::cmp::Reverse(command.started_at));
    Ok(commands)
}

/// What this page and the charts ask for themselves says nothing about the load.
fn is_own_sampling(words: &[Vec<u8>]) -> bool {
    let first = words.first().map(|word| word.to_ascii_uppercase()).unwrap_or_default();
    let asks = [b"INFO".as_slice(), b"SLOWLOG", b"DBSIZE", b"MEMORY", b"SCAN", b"PING"];
    asks.contains(&first.as_slice())
        || words.iter().skip(1).any(|word| word.starts_with(crate::keys::HISTORY_PREFIX.as_bytes()))
}

/// The name of one of our scripts that is called by its digest or, the first time, by its source, which the log
/// cuts: `… (4711 more bytes)`.
fn script_name(words: &[Vec<u8>]) -> Option<&'static str> {
    let [command, script, ..] = words else { return None };
    if command.eq_ignore_ascii_case(b"EVALSHA") {
        return store::script::name_of(std::str::from_utf8(script).ok()?);
    }
    if !command.eq_ignore_ascii_case(b"EVAL") {
        return None;
    }
    const CUT: &[u8] = b"... (";
    let at = script.windows(CUT.len()).rposition(|part| part == CUT)?;
    let more = std::str::from_utf8(script.get(at + CUT.len()..)?).ok()?;
    let more: usize = more.strip_suffix(" more bytes)")?.parse().ok()?;
    store::script::name_of_length(at.checked_add(more)?)
}

/// Bytes as text: what is not text becomes `\xNN`, a backslash becomes two.
pub fn spell(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                c if c.is_control() => {
                    let mut buffer = [0; 4];
                    for byte in c.encode_utf8(&mut buffer).bytes() {
                        text.push_str(&format!("\\x{byte:02x}"));
                    }
                }
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// The bytes of a text spelled by [`spell`].
pub fn unspell(text: &str) -> Result<Vec<u8>, ApiError> {
    let wrong = || ApiError::invalid_field("key", "a backslash stands before \\, n or xNN");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        bytes.extend_from_slice(before.as_bytes());
        rest = if let Some(after) = after.strip_prefix('\\') {
            bytes.push(b'\\');
            after
        } else if let Some(after) = after.strip_prefix('n') {
            bytes.push(b'\n');
            after
        } else {
            let hex = after.strip_prefix('x').and_then(|after| after.get(..2)).ok_or_else(wrong)?;
            bytes.push(u8::from_str_radix(hex, 16).map_err(|_| wrong())?);
            after.get(3..).unwrap_or_default()
        };
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(bytes)
}

/// The key of a call.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OneKey {
    /// Its name; `\xNN` for bytes that are not text, `\\` for a backslash.
    #[param(min_length = 1, max_length = 4096, example = "queue:spring:meta")]
    pub key: String,
}

impl OneKey {
    fn check(&self) -> Result<(), ApiError> {
        if self.key.is_empty() || self.key.len() > 4096 {
            return Err(ApiError::invalid_field("key", "a key has 1 to 4096 bytes"));
        }
        Ok(())
    }
}

/// Get the memory usage of the store by service, prefix and key.
#[utoipa::path(get, path = "/api/v1/store/usage", tag = "store", operation_id = "get_memory_usage",
    responses((status = 200, description = "The shares, from a walk through at most 20,000 keys.", body = MemoryUsage)))]
async fn memory_usage(State(app): State<App>) -> Result<Json<MemoryUsage>, ApiError> {
    usage::usage(&app).await.map(Json)
}

/// The routes.
fn routes() -> Routes {
    Routes {
        viewer: OpenApiRouter::new()
            .routes(routes!(get_info))
            .routes(routes!(list_keys))
            .routes(routes!(get_key))
            .routes(routes!(list_slow))
            .routes(routes!(memory_usage)),
        admin: OpenApiRouter::new().routes(routes!(delete_key)),
        pages: Router::new()
            .route("/store", get(page::page))
            .route("/store/key", get(page::key_page)),
        ..Routes::default()
    }
}

/// Get the figures of the store: memory, keys, load.
#[utoipa::path(get, path = "/api/v1/store", tag = "store", operation_id = "get_info",
    responses((status = 200, description = "How it is.", body = StoreInfo)))]
async fn get_info(State(app): State<App>) -> Result<Json<StoreInfo>, ApiError> {
    info(&app).await.map(Json)
}

/// List keys.
#[utoipa::path(get, path = "/api/v1/store/keys", tag = "store", operation_id = "list_keys", params(KeyQuery),
    responses((status = 200, description = "A page of keys.", body = Page<KeyRow>)))]
async fn list_keys(
    State(app): State<App>,
    Query(query): Query<KeyQuery>,
) -> Result<Json<Page<KeyRow>>, ApiError> {
    keys(&app, &query).await.map(Json)
}

/// Get a key with its first entries.
#[utoipa::path(get, path = "/api/v1/store/key", tag = "store", operation_id = "get_key", params(OneKey),
    responses((status = 200, description = "The key and what is in it.", body = KeyValue),
        (status = 404, description = "No such key.", body = crate::error::ErrorBody)))]
async fn get_key(
    State(app): State<App>,
    Query(query): Query<OneKey>,
) -> Result<Json<KeyValue>, ApiError> {
    query.check()?;
    value(&app, &query.key).await?.map(Json).ok_or_else(|| ApiError::not_found("key not found"))
}

/// A removed key.
#[derive(Debug, Serialize, ToSchema)]
struct RemovedKey {
    /// The key.
    key: String,
}

/// Delete a key. For repairs: services notice a missing key only when they need it.
#[utoipa::path(delete, path = "/api/v1/store/key", tag = "store", operation_id = "delete_key", params(OneKey),
    responses((status = 200, description = "Removed.", body = RemovedKey),
        (status = 404, description = "No such key.", body = crate::error::ErrorBody)))]
async fn delete_key(
    State(app): State<App>,
    Query(query): Query<OneKey>,
) -> Result<impl IntoResponse, ApiError> {
    query.check()?;
    let name = unspell(&query.key)?;
    refuse_protected(&app, &name)?;
    let removed: u64 = redis::cmd("DEL")
        .arg(name)
        .query_async(&mut app.store().clone())
        .await
        .map_err(store::Error::from)?;
    if removed == 0 {
        return Err(ApiError::not_found("key not found"));
    }
    Ok((Extension(Note::new("key.delete", &query.key)), Json(RemovedKey { key: query.key })))
}

/// List commands that took long, newest first: the latest 128 of each node.
#[utoipa::path(get, path = "/api/v1/store/slow", tag = "store", operation_id = "list_slow_commands", params(PageQuery),
    responses((status = 200, description = "A page of commands.", body = Page<SlowCommand>)))]
async fn list_slow(
    State(app): State<App>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<SlowCommand>>, ApiError> {
    let (limit, offset) = (query.limit()?, query.offset()?);
    let commands = slow(&app).await?.into_iter().skip(offset).take(limit).collect();
    Ok(Json(Page::at(offset, limit, commands)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_spelled_so_that_they_come_back() {
        for (bytes, text) in [
            (&b"plain:key"[..], "plain:key"),
            (b"a\\b", "a\\\\b"),
            (b"\x00\xff\n", "\\x00\\xff\\n"),
            ("größe".as_bytes(), "größe"),
            (b"\\x41", "\\\\x41"),
        ] {
            assert_eq!(spell(bytes), text);
            assert_eq!(unspell(text).unwrap(), bytes);
        }
        for wrong in ["\\", "a\\q", "\\x4", "\\xgg", "\\x\u{e4}"] {
            assert!(unspell(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_plain_word_matches_anywhere() {
        assert_eq!(pattern("spring").unwrap().unwrap(), b"*spring*");
        assert_eq!(pattern("queue:*").unwrap().unwrap(), b"queue:*");
        assert_eq!(pattern("").unwrap(), None);
    }
}
