//! Bytes per waiting position, and the time of ZADD and ZRANK by size, in the engine alone.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

extern crate tidegate_engine as engine;

use engine::{Config, Engine, Now, SessionId};

struct Kit {
    engine: Engine,
    client: SessionId,
}

impl Kit {
    fn run(&mut self, argv: &[&str]) {
        let argv: Vec<&[u8]> = argv.iter().map(|a| a.as_bytes()).collect();
        std::hint::black_box(self.engine.execute(
            Now::from_millis(1_704_067_200_000),
            self.client,
            &argv,
        ));
    }
}

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Seconds this process was on a processor: others may be busy too.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

fn id(n: u64) -> String {
    format!("018f3c1e-7a00-7000-8000-{n:012x}")
}

fn main() {
    let count: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(300_000);
    let mut engine = Engine::new(Config::default());
    let client = engine.connect("here");
    let mut kit = Kit { engine, client };
    let mut last = resident();
    let mut part = |name: &str, kit: &mut Kit, each: &dyn Fn(&mut Kit, u64)| {
        let start = cpu();
        (0..count).for_each(|n| each(kit, n));
        let now = resident();
        println!(
            "{name}: {} bytes, {:.2} us each",
            (now - last) as u64 / count,
            (cpu() - start) * 1e6 / count as f64
        );
        last = now;
    };
    part("hash", &mut kit, &|kit, n| {
        let ticket = 1_704_067_200_000_000u64 + n;
        kit.run(&[
            "HSET",
            &format!("position:{}", id(n)),
            "queue_id",
            "sale",
            "user_id",
            &format!("user-{n}"),
            "status",
            "waiting",
            "priority",
            "0",
            "enqueued_at",
            &ticket.to_string(),
            "position",
            &n.to_string(),
            "last_heartbeat",
            &(ticket / 1000).to_string(),
            "ip_hash",
            &format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            "user_agent",
            "Mozilla/5.0 (X11; Linux x86_64)",
            "metadata",
            "{\"campaign\":\"summer\"}",
        ]);
    });
    part("expire", &mut kit, &|kit, n| {
        kit.run(&["EXPIRE", &format!("position:{}", id(n)), "86400"])
    });
    part("list", &mut kit, &|kit, n| kit.run(&["RPUSH", "queue:sale:waiting:0", &id(n)]));
    part("positions", &mut kit, &|kit, n| {
        kit.run(&[
            "ZADD",
            "queue:sale:positions",
            &(1_704_067_200_000_000u64 + n).to_string(),
            &id(n),
        ]);
    });
    part("heartbeat", &mut kit, &|kit, n| {
        kit.run(&[
            "ZADD",
            "heartbeat:active",
            &((1_704_067_200_000_000u64 + n) / 1000).to_string(),
            &id(n),
        ]);
    });
    for size in [10_000u64, 100_000, 1_000_000] {
        let key = format!("z{size}");
        let mut rng = fastrand::Rng::with_seed(size);
        let before = resident();
        let start = cpu();
        for n in 0..size {
            kit.run(&["ZADD", &key, &rng.u32(..).to_string(), &id(n)]);
        }
        let add = cpu() - start;
        let start = cpu();
        for _ in 0..100_000 {
            kit.run(&["ZRANK", &key, &id(rng.u64(..size))]);
        }
        let rank = cpu() - start;
        let start = cpu();
        for _ in 0..100_000 {
            kit.run(&["ZADD", &key, &rng.u32(..).to_string(), &id(rng.u64(..size))]);
        }
        let change = cpu() - start;
        println!(
            "{size}: ZADD {:.2} us, ZRANK {:.2} us, ZADD of an old member {:.2} us, {} bytes each",
            add * 1e6 / size as f64,
            rank * 10.0,
            change * 10.0,
            (resident() - before) as u64 / size
        );
    }
}
