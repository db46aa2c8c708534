//! Everything in a store, to compare two of them.

use std::collections::BTreeMap;

use redis::{Cmd, Pipeline, Value, aio::ConnectionLike as _};
use store::Store;

/// Keys read together.
const BATCH: usize = 500;

/// Reads every key with its type, its deadline in ms and what is in it, as text. Elements that have no
/// order are sorted. Whole values are read at once, so it is for tests only.
pub async fn content(store: &Store) -> BTreeMap<Vec<u8>, String> {
    let mut all = BTreeMap::new();
    for (node, _) in store.on_every_node(&redis::cmd("PING")).await.expect("the store answers") {
        let mut cursor = 0u64;
        loop {
            let scan = redis::cmd("SCAN").arg(cursor).arg("COUNT").arg(BATCH).clone();
            let reply = store.on_node(&node, &scan).await.expect("SCAN works");
            let (next, keys): (u64, Vec<Vec<u8>>) =
                redis::from_redis_value(reply).expect("SCAN gives a cursor and keys");
            for (key, text) in keys.iter().zip(read(store, &keys).await) {
                all.insert(key.clone(), text);
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
    }
    all
}

async fn read(store: &Store, keys: &[Vec<u8>]) -> Vec<String> {
    let mut pipe = Pipeline::new();
    for key in keys {
        pipe.cmd("TYPE").arg(key).cmd("PEXPIRETIME").arg(key);
    }
    let heads = run(store, &pipe).await;
    let mut pipe = Pipeline::new();
    let mut shapes = Vec::new();
    for (key, head) in keys.iter().zip(heads.chunks(2)) {
        let kind = String::from_utf8_lossy(&bytes(&head[0])).into_owned();
        let (words, width): (&[&str], usize) = match kind.as_str() {
            "string" => (&["GET", ""], 0),
            "hash" => (&["HGETALL", ""], 2),
            "list" => (&["LRANGE", "", "0", "-1"], 0),
            "set" => (&["SMEMBERS", ""], 1),
            "zset" => (&["ZRANGE", "", "0", "-1", "WITHSCORES"], 0),
            "stream" => (&["XRANGE", "", "-", "+"], 0),
            _ => (&["EXISTS", ""], 0),
        };
        let mut cmd = Cmd::new();
        words.iter().for_each(|word| {
            _ = if word.is_empty() { cmd.arg(key) } else { cmd.arg(*word) };
        });
        pipe.add_command(cmd);
        shapes.push((kind, format!("{:?}", head[1]), width));
    }
    let values = run(store, &pipe).await;
    let mut texts = Vec::new();
    for ((key, value), (kind, expires, width)) in keys.iter().zip(values).zip(shapes) {
        let text = match width {
            0 if kind == "zset" => scores(&value),
            0 => format!("{value:?}"),
            width => {
                let items: Vec<Vec<u8>> = match &value {
                    Value::Array(items) => items.iter().map(bytes).collect(),
                    _ => Vec::new(),
                };
                let mut rows: Vec<_> = items.chunks(width).map(<[_]>::to_vec).collect();
                rows.sort();
                format!("{rows:?}")
            }
        };
        let more = if kind == "stream" { stream_state(store, key).await } else { String::new() };
        texts.push(format!("{kind} {expires} {text}{more}"));
    }
    texts
}

/// Members and scores, the latter as numbers: servers differ in how many digits they show.
fn scores(value: &Value) -> String {
    let items: Vec<Vec<u8>> = match value {
        Value::Array(items) => items.iter().map(bytes).collect(),
        _ => Vec::new(),
    };
    let pairs = items.chunks(2).map(|pair| {
        let score = String::from_utf8_lossy(&pair[1]).parse::<f64>();
        format!("{:?} {score:?}", pair[0])
    });
    pairs.collect::<Vec<_>>().join(", ")
}

/// Ids, groups, consumers and pending entries of a stream.
async fn stream_state(store: &Store, key: &[u8]) -> String {
    let mut pipe = Pipeline::new();
    pipe.cmd("XINFO").arg("STREAM").arg(key).cmd("XINFO").arg("GROUPS").arg(key);
    let replies = run(store, &pipe).await;
    let named = |value: &Value, name: &str| match value {
        Value::Array(items) => items
            .chunks(2)
            .find(|pair| bytes(&pair[0]) == name.as_bytes())
            .map(|pair| format!("{:?}", pair[1])),
        _ => None,
    };
    let mut text = String::new();
    for name in ["length", "last-generated-id", "entries-added", "max-deleted-entry-id"] {
        text.push_str(&format!(" {name} {:?}", named(&replies[0], name)));
    }
    let Value::Array(groups) = &replies[1] else { return text };
    for group in groups {
        let Value::Array(fields) = group else { continue };
        let mut pipe = Pipeline::new();
        pipe.cmd("XPENDING").arg(key).arg(bytes(&fields[1]));
        pipe.cmd("XINFO").arg("CONSUMERS").arg(key).arg(bytes(&fields[1]));
        let more = run(store, &pipe).await;
        let Value::Array(consumers) = &more[1] else { continue };
        let mut names: Vec<_> =
            consumers.iter().map(|c| (named(c, "name"), named(c, "pending"))).collect();
        names.sort();
        for name in ["name", "pending", "last-delivered-id", "entries-read"] {
            text.push_str(&format!(" {name} {:?}", named(group, name)));
        }
        text.push_str(&format!(" {:?} {names:?}", more[0]));
    }
    text
}

async fn run(store: &Store, pipe: &Pipeline) -> Vec<Value> {
    if pipe.is_empty() {
        return Vec::new();
    }
    store.clone().req_packed_commands(pipe, 0, pipe.len()).await.expect("the store answers")
}

fn bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes.clone(),
        Value::SimpleString(text) => text.clone().into_bytes(),
        other => format!("{other:?}").into_bytes(),
    }
}
