//! The store that is filled: is it empty, who fills it, how many keys it has.

use redis::{Value, aio::ConnectionLike as _, cmd};
use serde::{Deserialize, Serialize};

use super::{invalid, read::scanned};
use crate::{Error, Store};

/// The key that a store carries while it is being filled; STRING, JSON. No server starts on a store
/// that has it.
pub const MARK: &str = "tidegate:unfinished-copy";

/// Keys asked of a server at a time.
const SCAN_COUNT: usize = 512;

/// The copy under way, as the mark tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyMark {
    /// Origin of the data, without secrets.
    pub(crate) source: String,
    /// Time at which the copy began, in ms.
    pub(crate) started_at_ms: i64,
}

/// Returns where the data of a store that was not filled completely comes from; none for any other
/// store.
///
/// # Errors
/// The store cannot be read.
pub async fn unfinished(store: &Store) -> Result<Option<String>, Error> {
    Ok(mark(store).await?.map(|mark| mark.source))
}

async fn mark(store: &Store) -> Result<Option<CopyMark>, Error> {
    let mut store = store.clone();
    let text: Option<String> = cmd("GET").arg(MARK).query_async(&mut store).await?;
    // Whatever else is in it, something was not finished.
    Ok(text.map(|text| {
        serde_json::from_str(&text)
            .unwrap_or_else(|_| CopyMark { source: "an unknown source".into(), started_at_ms: 0 })
    }))
}

/// Makes sure that a store can be filled from this source. Returns true if an earlier attempt is to
/// be continued.
pub(crate) async fn prepare(store: &Store, source: &str) -> Result<bool, Error> {
    match mark(store).await? {
        Some(mark) if mark.source == source => return Ok(true),
        Some(mark) => {
            return Err(invalid(format!(
                "the target holds an unfinished copy of {}: finish that, or empty the target",
                mark.source
            )));
        }
        None => {}
    }
    let keys = count_keys(store).await?;
    if keys > 0 {
        return Err(invalid(format!(
            "the target is not empty: it has {keys} {}; name an empty store or another database",
            if keys == 1 { "key" } else { "keys" }
        )));
    }
    let mark = CopyMark { source: source.to_owned(), started_at_ms: store.now().0 };
    let mark = serde_json::to_string(&mark).map_err(|error| invalid(error.to_string()))?;
    cmd("SET").arg(MARK).arg(mark).query_async::<()>(&mut store.clone()).await?;
    Ok(false)
}

/// Takes the mark away: everything is there.
pub(crate) async fn finish(store: &Store) -> Result<(), Error> {
    cmd("DEL").arg(MARK).query_async::<()>(&mut store.clone()).await?;
    Ok(())
}

/// Number of keys of a store, on all its servers.
pub(crate) async fn count_keys(store: &Store) -> Result<u64, Error> {
    let mut count = 0;
    for (_, reply) in store.on_every_node(&cmd("DBSIZE")).await? {
        count += redis::from_redis_value::<u64>(reply).map_err(Error::from)?;
    }
    Ok(count)
}

/// A walk through all keys of a store, on all its servers. Every key that is there all the time comes
/// at least once; some may come twice.
pub(crate) struct KeyWalk {
    store: Store,
    nodes: Vec<String>,
    cursor: u64,
}

impl KeyWalk {
    pub(crate) async fn new(store: &Store) -> Result<Self, Error> {
        let nodes = store.on_every_node(&cmd("PING")).await?;
        let nodes = nodes.into_iter().map(|(address, _)| address).collect();
        Ok(Self { store: store.clone(), nodes, cursor: 0 })
    }

    /// The next keys; none after the last. May be empty.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Vec<u8>>>, Error> {
        let Some(node) = self.nodes.last() else { return Ok(None) };
        let mut scan = cmd("SCAN");
        scan.arg(self.cursor).arg("COUNT").arg(SCAN_COUNT);
        let (cursor, mut keys) = scanned(self.store.on_node(node, &scan).await?)?;
        self.cursor = cursor;
        if cursor == 0 {
            self.nodes.pop();
        }
        keys.retain(|key| key != MARK.as_bytes());
        Ok(Some(keys))
    }
}

/// Refuses a source with keys in other databases than the one that is copied.
pub(crate) async fn refuse_other_databases(store: &Store) -> Result<(), Error> {
    let info = store.clone().req_packed_command(cmd("INFO").arg("keyspace")).await;
    let Ok(Value::BulkString(text)) = info else { return Ok(()) };
    let text = String::from_utf8_lossy(&text);
    let others: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("db")?.split(':').next())
        .filter(|number| *number != "0")
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    Err(invalid(format!(
        "the built-in store has keys in database {} too, and only database 0 can be copied: move \
         them away with redis-cli (MOVE), or delete them",
        others.join(", ")
    )))
}
