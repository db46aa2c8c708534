//! (d) ZADD and ZRANK at growing sizes, in process through `Store` and on Redis over its socket.

use std::time::{Duration, Instant};

use anyhow::Result;
use bench::{Disk, Server, setting};
use redis::aio::ConnectionLike;
use redis::{cmd, pipe};

#[tokio::main]
async fn main() -> Result<()> {
    let most = setting("MEMBERS", 10_000_000);
    println!("| members | who | ZADD µs | ZRANK µs |");
    println!("|---|---|---|---|");
    for size in [10_000, 100_000, 1_000_000, 10_000_000].into_iter().filter(|s| *s <= most) {
        let redis = Server::redis(Disk::Memory)?;
        let connection = redis::Client::open(redis.url())?
            .get_multiplexed_async_connection_with_config(
                &redis::AsyncConnectionConfig::new()
                    .set_response_timeout(Some(Duration::from_secs(60))),
            )
            .await?;
        measure("redis", size, connection).await?;
        drop(redis);
        measure("built in", size, store::Store::open("embedded:").await?).await?;
    }
    Ok(())
}

/// A member's name and score: spread out, so that each lands somewhere else in the order.
fn member(n: u64) -> (String, u64) {
    let scattered = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    (format!("018f3c1e-7a00-7000-8000-{n:012x}"), scattered)
}

async fn measure(who: &str, size: u64, mut connection: impl ConnectionLike) -> Result<()> {
    let mut n = 0;
    while n < size {
        let mut batch = pipe();
        for n in n..(n + 1_000).min(size) {
            let (name, score) = member(n);
            batch.cmd("ZADD").arg("z").arg(score).arg(name).ignore();
        }
        batch.query_async::<()>(&mut connection).await?;
        n += 1_000;
    }
    let times = 100_000u64;
    let add = timed(times, &mut connection, |k| {
        let (name, score) = member(size + k);
        cmd("ZADD").arg("z").arg(score).arg(name).clone()
    })
    .await?;
    let rank = timed(times, &mut connection, |k| {
        cmd("ZRANK").arg("z").arg(member(k.wrapping_mul(7_919) % size).0).clone()
    })
    .await?;
    println!("| {size} | {who} | {add:.2} | {rank:.2} |");
    Ok(())
}

/// Microseconds for each command, in pipelines of 100.
async fn timed(
    times: u64,
    connection: &mut impl ConnectionLike,
    make: impl Fn(u64) -> redis::Cmd,
) -> Result<f64> {
    let mut spent = Duration::ZERO;
    for first in (0..times).step_by(100) {
        let mut batch = pipe();
        for k in first..first + 100 {
            batch.add_command(make(k));
        }
        let start = Instant::now();
        batch.query_async::<redis::Value>(connection).await?;
        spent += start.elapsed();
    }
    Ok(spent.as_secs_f64() * 1e6 / times as f64)
}
