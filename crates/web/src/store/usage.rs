//! Memory of the store by service, by prefix, and the biggest keys: from a walk through some of the keys, scaled up.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use store::Millis;
use store::redis::{self, FromRedisValue};
use utoipa::ToSchema;

use super::spell;
use crate::app::App;
use crate::error::ApiError;
use crate::time::Timestamp;

/// Keys looked at in one walk, of all nodes together.
const KEYS_MAX: usize = 20_000;
/// Keys asked for in one step.
const STEP: usize = 500;
/// Prefixes and keys listed.
const LISTED_MAX: usize = 20;
/// Time for which a walk is good.
const FRESH: Duration = Duration::from_secs(30);

/// Memory of the keys of one service or prefix.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct MemoryShare {
    /// The service or the prefix.
    pub name: String,
    /// Number of keys, estimated where not all were looked at.
    pub keys: u64,
    /// Bytes, estimated where not all were looked at.
    pub memory_bytes: u64,
}

/// A big key.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct BigKey {
    /// The key.
    pub key: String,
    /// Its bytes.
    pub memory_bytes: u64,
}

/// Memory of the store, by what takes it.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(example = json!({
    "measured_at": "2026-11-17T09:30:00.000Z", "keys": 1200, "keys_measured": 1200,
    "services": [{ "name": "jobs", "keys": 1100, "memory_bytes": 480000 }],
    "prefixes": [{ "name": "bridgemq:jobs", "keys": 1100, "memory_bytes": 480000 }],
    "biggest": [{ "key": "bridgemq:jobs:index", "memory_bytes": 52000 }]
}))]
pub(crate) struct MemoryUsage {
    /// Time of the walk.
    pub measured_at: Timestamp,
    /// Keys there are.
    pub keys: u64,
    /// Keys that were looked at; the rest is estimated from them.
    pub keys_measured: u64,
    /// By service, most first.
    pub services: Vec<MemoryShare>,
    /// By prefix, most first.
    pub prefixes: Vec<MemoryShare>,
    /// The biggest keys that were seen, biggest first.
    pub biggest: Vec<BigKey>,
}

/// Measures, or returns what was measured within the last half minute.
pub(super) async fn usage(app: &App) -> Result<MemoryUsage, ApiError> {
    let now = app.store().now();
    let is_fresh =
        |last: &MemoryUsage| last.measured_at.0 <= now && now.since(last.measured_at.0) < FRESH;
    if let Some(last) = app.memory_usage().lock().as_ref().filter(|last| is_fresh(last)) {
        return Ok(last.clone());
    }
    let usage = measure(app, now).await?;
    *app.memory_usage().lock() = Some(usage.clone());
    Ok(usage)
}

async fn measure(app: &App, now: Millis) -> Result<MemoryUsage, ApiError> {
    let owners: Vec<(String, String)> = app
        .services()
        .iter()
        .flat_map(|open| {
            let name = open.service.name();
            open.running.key_prefixes().into_iter().map(move |prefix| (prefix, name.to_owned()))
        })
        .chain([("tidegate:".to_owned(), "frame".to_owned())])
        .collect();
    let sizes = app.store().on_every_node(&redis::cmd("DBSIZE")).await?;
    let keys: u64 =
        sizes.iter().map(|(_, reply)| u64::from_redis_value_ref(reply).unwrap_or(0)).sum();
    let mut services: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut prefixes: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut biggest: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut measured = 0;
    let per_node = KEYS_MAX / sizes.len().max(1);
    for (address, _) in &sizes {
        let (mut cursor, mut seen) = (0_u64, 0);
        loop {
            let scan = redis::cmd("SCAN").arg(cursor).arg("COUNT").arg(STEP).to_owned();
            let reply = app.store().on_node(address, &scan).await?;
            let (next, names): (u64, Vec<Vec<u8>>) =
                redis::from_redis_value(reply).map_err(|error| ApiError::internal(&error))?;
            seen += names.len();
            for (name, bytes) in memory_of(app, names).await? {
                measured += 1;
                let text = String::from_utf8_lossy(&name).into_owned();
                let owner = owners.iter().find(|(prefix, _)| text.starts_with(prefix.as_str()));
                let owner = owner.map_or("other programs", |(_, service)| service.as_str());
                for (all, name) in
                    [(&mut services, owner.to_owned()), (&mut prefixes, prefix_of(&text))]
                {
                    let share = all.entry(name).or_default();
                    share.0 += 1;
                    share.1 += bytes;
                }
                biggest.push((bytes, name));
            }
            biggest.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
            biggest.truncate(LISTED_MAX);
            cursor = next;
            if cursor == 0 || seen >= per_node {
                break;
            }
        }
    }
    let scale = |number: u64| {
        let whole =
            u128::from(number) * u128::from(keys.max(measured)) / u128::from(measured.max(1));
        u64::try_from(whole).unwrap_or(u64::MAX)
    };
    let shares = |all: BTreeMap<String, (u64, u64)>| {
        let mut shares: Vec<MemoryShare> = all
            .into_iter()
            .map(|(name, (keys, bytes))| MemoryShare {
                name,
                keys: scale(keys),
                memory_bytes: scale(bytes),
            })
            .collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.memory_bytes));
        shares.truncate(LISTED_MAX);
        shares
    };
    Ok(MemoryUsage {
        measured_at: now.into(),
        keys,
        keys_measured: measured,
        services: shares(services),
        prefixes: shares(prefixes),
        biggest: biggest
            .into_iter()
            .filter(|(_, name)| !app.protected_keys().contain(name))
            .map(|(memory_bytes, name)| BigKey { key: spell(&name), memory_bytes })
            .collect(),
    })
}

/// The bytes of some keys; those that are gone since are left out.
async fn memory_of(app: &App, names: Vec<Vec<u8>>) -> Result<Vec<(Vec<u8>, u64)>, ApiError> {
    let mut found = Vec::with_capacity(names.len());
    for chunk in names.chunks(STEP) {
        let mut pipe = redis::pipe();
        for name in chunk {
            pipe.cmd("MEMORY").arg("USAGE").arg(name);
        }
        let replies: Vec<redis::Value> =
            pipe.query_async(&mut app.store().clone()).await.map_err(store::Error::from)?;
        for (name, reply) in chunk.iter().zip(replies) {
            if let Ok(Some(bytes)) = Option::<u64>::from_redis_value_ref(&reply) {
                found.push((name.clone(), bytes));
            }
        }
    }
    Ok(found)
}

/// `bridgemq:jobs:data:7` → `bridgemq:jobs`: two words say what it is, the rest which one.
fn prefix_of(key: &str) -> String {
    let mut parts = key.split(':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(first), Some(second), Some(_)) => format!("{first}:{second}"),
        (Some(first), Some(_), None) => first.to_owned(),
        _ => key.chars().take(40).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_what_keys_of_a_kind_share() {
        assert_eq!(prefix_of("bridgemq:jobs:data:7"), "bridgemq:jobs");
        assert_eq!(prefix_of("position:7"), "position");
        assert_eq!(prefix_of("queues"), "queues");
    }
}
