//! (a) redis-benchmark against the built-in store's port and against Redis, both with a log synced
//! each second, taking turns. `resp [TEST…]` for some of the tests, `PIPELINE=16` for one depth.

use std::process::Command;

use anyhow::{Context, Result};
use bench::{Disk, Figures, Server, chosen, setting};

const TESTS: &[&str] = &["get", "set", "incr", "lpush", "lpop", "sadd", "hset", "zadd", "evalsha"];

fn main() -> Result<()> {
    let rounds = setting("ROUNDS", 5);
    println!("| test | -P | tidegate ops/s | redis ops/s | ratio, median (low–high) |");
    println!("|---|---|---|---|---|");
    let depths = match setting("PIPELINE", 0) {
        0 => vec![1, 16],
        one => vec![u32::try_from(one)?],
    };
    for pipeline in depths {
        let count = if pipeline == 1 { 60_000 } else { 600_000 };
        for test in &chosen(TESTS) {
            // A fresh pair for each test, so that no test runs on what another left behind.
            let pair = [Server::tidegate(Disk::EverySecond)?, Server::redis(Disk::EverySecond)?];
            let count = if test == "evalsha" { count / 4 } else { count };
            let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            for round in 0..rounds {
                let mut rates = [0.0; 2];
                // Who goes first changes from round to round.
                for turn in 0..2 {
                    let who = ((turn + round) % 2) as usize;
                    rates[who] = run(&pair[who], test, pipeline, count)?;
                }
                ours.push(rates[0]);
                theirs.push(rates[1]);
                ratios.push(rates[0] / rates[1]);
            }
            println!(
                "| {test} | {pipeline} | {:.0} | {:.0} | {} |",
                Figures::of(ours).median,
                Figures::of(theirs).median,
                Figures::of(ratios)
            );
        }
    }
    Ok(())
}

/// Requests per second as redis-benchmark reports them.
fn run(server: &Server, test: &str, pipeline: u32, count: u32) -> Result<f64> {
    let mut command = Command::new("redis-benchmark");
    command.args(["-p", &server.port.to_string(), "-c", "50", "-P", &pipeline.to_string()]);
    command.args(["-n", &count.to_string(), "-r", "1000000", "--csv"]);
    if test == "evalsha" {
        let sha = Command::new("redis-cli")
            .args(["-p", &server.port.to_string(), "SCRIPT", "LOAD"])
            .arg(include_str!("../../enqueue.lua"))
            .output()?;
        let sha = String::from_utf8(sha.stdout)?.trim().to_owned();
        command.args(["EVALSHA", &sha, "5", "queue:concert:waiting:0", "queue:concert:positions"]);
        command.args(["position:__rand_int__-aaaabbbbcccc", "ipmap:concert:__rand_int__"]);
        command.args(["heartbeat:active", "__rand_int__-aaaabbbbccccdddd", "1704__rand_int__"]);
        command.args(["abcdef012345", "1800", "{\"user_id\":\"123\"}"]);
    } else {
        command.args(["-t", test]);
    }
    let output = command.output().context("run redis-benchmark")?;
    let text = String::from_utf8(output.stdout)?;
    let line =
        text.lines().rfind(|l| l.starts_with('"')).context("redis-benchmark said nothing")?;
    // The script's own commas and quotes stand in the first column: the figures come last.
    let fields: Vec<&str> = line.rsplit(',').map(|f| f.trim_matches('"')).collect();
    fields.get(6).context("no rate in the line")?.parse().with_context(|| line.to_owned())
}
