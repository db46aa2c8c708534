//! (b) The same commands in process through `Store`, against Redis over its socket with the same
//! client library and as many tasks, taking turns. `inproc [TEST…]` for some of the tests, with
//! `ALONE=1` without Redis, to be looked at with a profiler.

use std::time::Instant;

use anyhow::Result;
use bench::{Disk, Figures, Server, chosen, setting};
use redis::aio::ConnectionLike;
use redis::{Cmd, Script, cmd};

const TASKS: u64 = 50;
const TESTS: &[&str] = &["get", "set", "incr", "lpush", "lpop", "sadd", "hset", "zadd", "evalsha"];

#[tokio::main]
async fn main() -> Result<()> {
    let rounds = setting("ROUNDS", 5);
    let alone = setting("ALONE", 0) == 1;
    println!("| test | in process ops/s | redis ops/s | ratio, median (low–high) |");
    println!("|---|---|---|---|");
    for test in &chosen(TESTS) {
        let server = Server::redis(Disk::EverySecond)?;
        let redis = redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
        let folder = std::env::temp_dir().join(format!("bench-inproc-{}", std::process::id()));
        let ours = store::Store::open(&format!("embedded:{}", folder.display())).await?;
        let (mut a, mut b, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..rounds {
            let (mut x, mut y) = (0.0, 0.0);
            for turn in 0..2 {
                if (turn + round) % 2 == 0 {
                    x = rate(test, 4_000, ours.clone()).await?;
                } else if !alone {
                    y = rate(test, 1_000, redis.clone()).await?;
                }
            }
            a.push(x);
            b.push(y);
            ratios.push(x / y);
        }
        let (a, b) = (Figures::of(a).median, Figures::of(b).median);
        println!("| {test} | {a:.0} | {b:.0} | {} |", Figures::of(ratios));
        drop(ours);
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(())
}

async fn rate<C>(test: &str, each: u64, connection: C) -> Result<f64>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let script = Script::new(include_str!("../../enqueue.lua"));
    let sha = script.get_hash().to_owned();
    let mut first = connection.clone();
    let _: String = cmd("SCRIPT")
        .arg("LOAD")
        .arg(include_str!("../../enqueue.lua"))
        .query_async(&mut first)
        .await?;
    let start = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (mut connection, sha, test) = (connection.clone(), sha.clone(), test.to_owned());
            tokio::spawn(async move {
                for n in 0..each {
                    let n = (task * each + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1_000_000;
                    connection.req_packed_command(&command(&test, n, &sha)).await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok((TASKS * each) as f64 / start.elapsed().as_secs_f64())
}

fn command(test: &str, n: u64, sha: &str) -> Cmd {
    let name = format!("key:{n:012}");
    match test {
        "get" => cmd("GET").arg(name).clone(),
        "set" => cmd("SET").arg(name).arg("xxx").clone(),
        "incr" => cmd("INCR").arg(name).clone(),
        "lpush" => cmd("LPUSH").arg("list").arg(name).clone(),
        "lpop" => cmd("LPOP").arg("list").clone(),
        "sadd" => cmd("SADD").arg("set").arg(name).clone(),
        "hset" => cmd("HSET").arg("hash").arg(name).arg("xxx").clone(),
        "zadd" => cmd("ZADD").arg("zset").arg(n).arg(name).clone(),
        _ => {
            let id = format!("{n:012}-aaaabbbbccccdddd");
            cmd("EVALSHA")
                .arg(sha)
                .arg(5)
                .arg("queue:concert:waiting:0")
                .arg("queue:concert:positions")
                .arg(format!("position:{id}"))
                .arg(format!("ipmap:concert:{n}"))
                .arg("heartbeat:active")
                .arg(id)
                .arg(1_704_067_200_000_000u64 + n)
                .arg("abcdef012345")
                .arg(1800)
                .arg("{\"user_id\":\"123\"}")
                .clone()
        }
    }
}
