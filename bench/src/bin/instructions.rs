//! Runs one kind of command over and over in the engine alone, to be counted:
//! `valgrind --tool=callgrind --toggle-collect='*measured*' instructions WHAT TIMES`.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use ::bench as _;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use engine::{CommandOutcome, Config, Engine, Now, Reply, SessionId};

store::script_library!(LIBRARY {
    folder: "../crates/room/lua",
    files: [
        "append_position", "enqueued_ms", "int", "line_of", "num", "read_queue", "shown_position",
    ],
});

// As the waiting room declares it.
store::script!(heartbeat {
    folder: "../crates/room/lua",
    keys: [meta, state, positions, admitted, heartbeat, ..records],
    args: [now_ms, queue_id, priorities],
    library: LIBRARY,
});

struct Kit {
    engine: Engine,
    client: SessionId,
}

const NOW_MS: i64 = 1_704_067_200_000;

fn clock() -> Duration {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed()
}

impl Kit {
    fn run(&mut self, argv: &[String]) -> CommandOutcome {
        let argv: Vec<&[u8]> = argv.iter().map(|a| a.as_bytes()).collect();
        let outcome = self.engine.execute(Now::from_millis(NOW_MS), self.client, &argv);
        self.engine.clear_effects();
        outcome
    }

    fn words(&mut self, words: &str) -> CommandOutcome {
        let argv: Vec<String> = words.split(' ').map(str::to_owned).collect();
        self.run(&argv)
    }

    fn load(&mut self, source: String) -> String {
        match self.run(&["SCRIPT".into(), "LOAD".into(), source]) {
            CommandOutcome::Reply(Reply::Bulk(sha)) => String::from_utf8(sha).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn id(n: u64) -> String {
    format!("018f3c1e-7a00-7000-8000-{n:012x}")
}

#[inline(never)]
fn measured(kit: &mut Kit, calls: &[Vec<String>]) {
    for call in calls {
        let outcome = kit.run(call);
        if let CommandOutcome::Reply(Reply::Error(error)) = &outcome {
            panic!("{}", String::from_utf8_lossy(error.text()));
        }
        std::hint::black_box(outcome);
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_else(|| "enqueue".to_owned());
    let mut arguments = arguments.peekable();
    let times: u64 = arguments.peek().and_then(|n| n.parse().ok()).unwrap_or(3_000);
    let config =
        Config { log_effects: true, script_clock: Some(clock), seed: 1, ..Config::default() };
    let mut engine = Engine::new(config);
    let client = engine.connect("here");
    let mut kit = Kit { engine, client };
    if what == "eval" {
        let script = arguments.next().unwrap_or_default();
        println!("{:?}", kit.run(&["EVAL".into(), script, "0".into()]));
        return;
    }
    let call: Box<dyn Fn(u64) -> String> = match what.as_str() {
        "enqueue" => {
            let sha = kit.load(read("bench/enqueue.lua"));
            Box::new(move |n| {
                let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1_000_000;
                let id = format!("{n:012}-aaaabbbbccccdddd");
                format!(
                    "EVALSHA {sha} 5 queue:concert:waiting:0 queue:concert:positions \
                     position:{id} ipmap:concert:{n} heartbeat:active {id} \
                     {} abcdef012345 1800 {{\"user_id\":\"123\"}}",
                    1_704_067_200_000_000 + n
                )
            })
        }
        "heartbeat" => {
            let sha = kit.load(heartbeat::SCRIPT.source().to_owned());
            kit.words(
                "HSET queue:c:meta status active priority_policy skip reserved_share 10 \
                 message - position_ttl 1800 duplicates token max_active 100",
            );
            kit.words("HSET queue:c:state since_normal 3 epoch 1 beat_ms 1704067200000");
            for n in 0..10_000 {
                let (id, score) = (id(n), 1_704_067_200_000_000 + n);
                kit.words(&format!("ZADD queue:c:positions {score} {id}"));
                kit.words(&format!("ZADD queue:c:heartbeat 1704067100 {id}"));
                kit.words(&format!(
                    "HSET position:{id} queue_id c session_id 018f3c1e-7a00-7000-8000-aaaaaaaaaaaa \
                     status waiting priority 0 enqueued_at 1704067200 last_heartbeat 1704067100 \
                     ip_address 10.0.0.1 ip_hash abcdef012345 user_agent Mozilla/5.0-something \
                     metadata {{}}"
                ));
            }
            Box::new(move |n| {
                let id = id(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 10_000);
                format!(
                    "EVALSHA {sha} 6 queue:c:meta queue:c:state queue:c:positions queue:c:claims \
                     queue:c:heartbeat position:{id} {NOW_MS} c 0"
                )
            })
        }
        "empty" => {
            let sha = kit.load("return ARGV[1]".to_owned());
            Box::new(move |n| format!("EVALSHA {sha} 1 key:{n:012} value:{n:012}"))
        }
        "onecall" => {
            let sha = kit.load("return redis.call('SET', KEYS[1], ARGV[1])".to_owned());
            Box::new(move |n| format!("EVALSHA {sha} 1 key:{n:012} value:{n:012}"))
        }
        "tencalls" => {
            let sha =
                kit.load("for i = 1, 10 do redis.call('GET', KEYS[1]) end return 1".to_owned());
            Box::new(move |n| format!("EVALSHA {sha} 1 key:{n:012} value:{n:012}"))
        }
        "set" => Box::new(|n| format!("SET key:{n:012} xxx")),
        "get" => Box::new(|n| format!("GET key:{n:012}")),
        "incr" => Box::new(|n| format!("INCR key:{n:012}")),
        "lpush" => Box::new(|n| format!("LPUSH list key:{n:012}")),
        "sadd" => Box::new(|n| format!("SADD set key:{:012}", n * 7_919 % 1_000_003)),
        "hset" => Box::new(|n| format!("HSET hash key:{:012} xxx", n * 7_919 % 1_000_003)),
        "zadd" => Box::new(|n| {
            let n = n * 7_919 % 1_000_003;
            format!("ZADD zset {n} key:{n:012}")
        }),
        other => panic!("{other}?"),
    };
    let calls: Vec<Vec<String>> =
        (0..times * 2).map(|n| call(n).split(' ').map(str::to_owned).collect()).collect();
    let (warm, counted) = calls.split_at(times as usize);
    warm_up(&mut kit, warm);
    let start = Instant::now();
    measured(&mut kit, counted);
    println!("{what}: {:.0} ns each", start.elapsed().as_nanos() as f64 / times as f64);
}

#[inline(never)]
fn warm_up(kit: &mut Kit, calls: &[Vec<String>]) {
    for call in calls {
        std::hint::black_box(kit.run(call));
    }
}
