//! (d) ZADD and ZRANK at growing sizes, in process through `Store` and on Redis over its socket.
//!
//! `zset SIZE…` measures at some sizes and appends to the file named by `POINTS`; `zset plot` draws
//! what that file holds as SVG on standard output.

use std::fmt::Write as _;
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
        print!("{}", plot(&std::fs::read_to_string(points)?)?);
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

/// Lines of time against size on a logarithmic axis: logarithmic growth is a straight line.
fn plot(points: &str) -> Result<String> {
    const W: f64 = 640.0;
    const H: f64 = 360.0;
    const LEFT: f64 = 60.0;
    const TOP: f64 = 30.0;
    let rows: Vec<(f64, &str, f64, f64)> = points
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let size: f64 = words.next()?.parse().ok()?;
            Some((size, words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
        })
        .collect();
    let most = rows.iter().map(|r| r.2.max(r.3)).fold(0.1, f64::max) * 1.1;
    let x = |size: f64| LEFT + (size.log10() - 4.0) / 3.0 * W;
    let y = |time: f64| TOP + H - time / most * H;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        LEFT + W + 130.0,
        TOP + H + 50.0
    );
    for power in 4..=7 {
        let at = x(10f64.powi(power));
        let _ = writeln!(
            svg,
            "<line x1=\"{at}\" y1=\"{TOP}\" x2=\"{at}\" y2=\"{}\" stroke=\"#ddd\"/><text x=\"{at}\" y=\"{}\" text-anchor=\"middle\">10^{power}</text>",
            TOP + H,
            TOP + H + 18.0
        );
    }
    for step in 0..=4 {
        let time = most * f64::from(step) / 4.0;
        let at = y(time);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{at}\" x2=\"{}\" y2=\"{at}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{time:.1}</text>",
            LEFT + W,
            LEFT - 6.0,
            at + 4.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"18\">microseconds for one command, in pipelines of 100</text><text x=\"{}\" y=\"{}\" text-anchor=\"middle\">members of the sorted set</text>",
        LEFT + W / 2.0,
        TOP + H + 38.0
    );
    let lines = [
        ("redis", "ZADD", "#c33"),
        ("redis", "ZRANK", "#e99"),
        ("built-in", "ZADD", "#036"),
        ("built-in", "ZRANK", "#69c"),
    ];
    for (number, (who, what, colour)) in lines.into_iter().enumerate() {
        let mut own: Vec<(f64, f64)> = rows
            .iter()
            .filter(|row| row.1 == who)
            .map(|row| (row.0, if what == "ZADD" { row.2 } else { row.3 }))
            .collect();
        own.sort_by(|a, b| a.0.total_cmp(&b.0));
        let path: Vec<String> =
            own.iter().map(|(size, time)| format!("{:.1},{:.1}", x(*size), y(*time))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (size, time) in &own {
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
                x(*size),
                y(*time)
            );
        }
        let at = TOP + 14.0 + 18.0 * number as f64;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{at}\" fill=\"{colour}\">{what} {who}</text>",
            LEFT + W + 10.0
        );
    }
    svg.push_str("</svg>\n");
    Ok(svg)
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
