//! (d) ZADD and ZRANK at growing sizes, in process through `Store` and on Redis over its socket.
//!
//! `zset SIZE…` measures at some sizes and appends to the file named by `POINTS`; `zset plot` draws
//! what that file holds as SVG on standard output.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;
use bench::{Disk, Server, chosen};
use redis::aio::ConnectionLike;
use redis::{cmd, pipe};

#[tokio::main]
async fn main() -> Result<()> {
    let points = std::env::var("POINTS").unwrap_or_else(|_| "zset.points".to_owned());
    let words = chosen(&["10000", "100000", "1000000", "10000000"]);
    if words == ["plot"] {
        print!("{}", plot(&std::fs::read_to_string(points)?));
        return Ok(());
    }
    println!("| members | who | ZADD µs | ZRANK µs |");
    println!("|---|---|---|---|");
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(points)?;
    for size in words {
        let size = size.parse()?;
        let redis = Server::redis(Disk::Memory)?;
        let connection = redis::Client::open(redis.url())?
            .get_multiplexed_async_connection_with_config(
                &redis::AsyncConnectionConfig::new()
                    .set_response_timeout(Some(Duration::from_secs(60))),
            )
            .await?;
        measure("redis", size, connection, &mut file).await?;
        drop(redis);
        measure("built-in", size, store::Store::open("embedded:").await?, &mut file).await?;
    }
    Ok(())
}

fn plot(points: &str) -> String {
    let rows: Vec<(f64, &str, f64, f64)> = points
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let size: f64 = words.next()?.parse().ok()?;
            Some((size, words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
        })
        .collect();
    let line = |who: &str, what: &str, colour| bench::plot::Line {
        name: format!("{what} {who}"),
        colour,
        points: rows
            .iter()
            .filter(|row| row.1 == who)
            .map(|row| (row.0, if what == "ZADD" { row.2 } else { row.3 }))
            .collect(),
    };
    bench::plot::plot(
        "microseconds for one command, in pipelines of 100",
        "members of the sorted set",
        &[
            line("redis", "ZADD", "#c33"),
            line("redis", "ZRANK", "#e99"),
            line("built-in", "ZADD", "#036"),
            line("built-in", "ZRANK", "#69c"),
        ],
    )
}

/// A member's name and score: spread out, so that each lands somewhere else in the order.
fn member(n: u64) -> (String, u64) {
    let scattered = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    (format!("018f3c1e-7a00-7000-8000-{n:012x}"), scattered)
}

async fn measure(
    who: &str,
    size: u64,
    mut connection: impl ConnectionLike,
    file: &mut impl Write,
) -> Result<()> {
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
    writeln!(file, "{size} {who} {add:.3} {rank:.3}")?;
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
