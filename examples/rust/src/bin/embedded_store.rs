//! The built-in store in a program of one's own: Redis commands, scripts and expiry, without a server. What was
//! acknowledged is on disk, so a second run finds it, also after `kill -9`.
//!
//! `cargo run -p tidegate-examples --bin embedded_store [FOLDER]`: run it twice.
#![allow(clippy::print_stdout, reason = "it shows what it found")]

use std::time::Duration;

use store::Store;
use store::redis::{self, AsyncCommands};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "example-data".to_owned());
    // `embedded:` alone keeps everything in memory; with a folder it is kept on disk. The same program runs on a
    // server by another address: redis://…, redis+sentinel://…, redis+cluster://…
    let mut store = Store::open(&format!("embedded:{folder}")).await?;

    // The handle is cheap to clone, and is a connection of the `redis` crate: typed commands …
    let runs: u64 = store.incr("runs", 1).await?;
    store.hset_multiple::<_, _, _, ()>("user:1", &[("name", "Ann"), ("town", "Ulm")]).await?;
    let name: String = store.hget("user:1", "name").await?;

    // … pipelines, in one call and if need be all or nothing …
    let (first, count): (Option<String>, u64) = redis::pipe()
        .atomic()
        .lpush("visits", format!("run {runs}"))
        .ignore()
        .lindex("visits", -1)
        .llen("visits")
        .query_async(&mut store)
        .await?;

    // … keys that expire …
    let lasting = Duration::from_secs(60).as_secs();
    store.set_ex::<_, _, ()>("greeting", "hello", lasting).await?;
    let left: i64 = store.ttl("greeting").await?;

    // … and scripts in Lua, which nobody comes between.
    let limit = redis::Script::new(
        "local n = redis.call('INCR', KEYS[1])
         if n > tonumber(ARGV[1]) then return 'too many' end
         return 'run ' .. n .. ' of ' .. ARGV[1]",
    );
    let told: String = limit.key("attempts").arg(3).invoke_async(&mut store).await?;

    let first = first.unwrap_or_default();
    println!(
        "{name} was here {runs} times; first: {first}; visits: {count}; greeting for {left} s; {told}"
    );
    Ok(())
}
