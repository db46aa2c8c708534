//! (c) and (e): bytes for each of a million waiting positions with every documented field (hash,
//! list, sorted set, heartbeat set), against Redis; then how long a restart after SIGKILL takes with
//! them. `memory memory` or `memory restart` for one of the two.

use std::time::Instant;

use anyhow::Result;
use bench::{Disk, Server, chosen, setting};
use redis::pipe;

#[tokio::main]
async fn main() -> Result<()> {
    let count = setting("POSITIONS", 1_000_000);
    for part in chosen(&["memory", "restart"]) {
        match part.as_str() {
            "memory" => memory(count).await?,
            "restart" => restart(count).await?,
            other => anyhow::bail!("{other} is neither memory nor restart"),
        }
    }
    Ok(())
}

async fn memory(count: u64) -> Result<()> {
    println!("| store | positions | resident bytes each | as measured by INFO |");
    println!("|---|---|---|---|");
    let mut resident = Vec::new();
    for start in [Server::redis, Server::tidegate] {
        let server = start(Disk::Memory)?;
        let before = server.resident()?;
        let started = used(&server).await?;
        fill(&server, count).await?;
        let each = (server.resident()? - before) as f64 / count as f64;
        let info = (used(&server).await? - started) as f64 / count as f64;
        println!("| {} | {count} | {each:.0} | {info:.0} |", server.name);
        resident.push(each);
    }
    if let [redis, ours] = resident[..] {
        println!("\nresident memory: {:.2} x that of Redis", ours / redis);
    }
    Ok(())
}

async fn restart(count: u64) -> Result<()> {
    println!("| store | positions | log and snapshot, MB | ready after, s |");
    println!("|---|---|---|---|");
    for name in ["redis", "tidegate"] {
        let server = match name {
            "redis" => Server::redis(Disk::EverySecond)?,
            _ => Server::tidegate(Disk::EverySecond)?,
        };
        fill(&server, count).await?;
        let folder = server.kill();
        let bytes = size_of(&folder)?;
        let start = Instant::now();
        let server = match name {
            "redis" => Server::redis_in(Disk::EverySecond, folder)?,
            _ => Server::tidegate_in(Disk::EverySecond, folder)?,
        };
        let found = loop {
            // Redis opens its port before it has read its file.
            let mut connection =
                redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
            let card = redis::cmd("ZCARD").arg("queue:sale:positions").clone();
            match card.query_async::<u64>(&mut connection).await {
                Ok(found) => break found,
                Err(_) if start.elapsed().as_secs() < 120 => {
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
                Err(error) => return Err(error.into()),
            }
        };
        let took = start.elapsed().as_secs_f64();
        println!("| {name} | {found} | {} | {took:.2} |", bytes / 1_000_000);
    }
    Ok(())
}

fn size_of(folder: &std::path::Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { size_of(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

async fn used(server: &Server) -> Result<i64> {
    let mut connection =
        redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
    let info: String = redis::cmd("INFO").arg("memory").query_async(&mut connection).await?;
    let line = info.lines().find_map(|l| l.strip_prefix("used_memory:"));
    Ok(line.and_then(|v| v.trim().parse().ok()).unwrap_or(0))
}

async fn fill(server: &Server, count: u64) -> Result<()> {
    let mut connection =
        redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
    let mut next = 0;
    while next < count {
        let mut batch = pipe();
        for n in next..(next + 1_000).min(count) {
            let id = format!("018f3c1e-7a00-7000-8000-{n:012x}");
            let ticket = 1_704_067_200_000_000u64 + n;
            batch
                .cmd("HSET")
                .arg(format!("position:{id}"))
                .arg("queue_id")
                .arg("sale")
                .arg("user_id")
                .arg(format!("user-{n}"))
                .arg("status")
                .arg("waiting")
                .arg("priority")
                .arg(0)
                .arg("enqueued_at")
                .arg(ticket)
                .arg("position")
                .arg(n)
                .arg("last_heartbeat")
                .arg(ticket / 1000)
                .arg("ip_hash")
                .arg(format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
                .arg("user_agent")
                .arg("Mozilla/5.0 (X11; Linux x86_64)")
                .arg("metadata")
                .arg("{\"campaign\":\"summer\"}")
                .ignore()
                .cmd("EXPIRE")
                .arg(format!("position:{id}"))
                .arg(86_400)
                .ignore()
                .cmd("RPUSH")
                .arg("queue:sale:waiting:0")
                .arg(&id)
                .ignore()
                .cmd("ZADD")
                .arg("queue:sale:positions")
                .arg(ticket)
                .arg(&id)
                .ignore()
                .cmd("ZADD")
                .arg("heartbeat:active")
                .arg(ticket / 1000)
                .arg(&id)
                .ignore();
        }
        batch.query_async::<()>(&mut connection).await?;
        next += 1_000;
    }
    Ok(())
}
