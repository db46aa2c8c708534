//! Scripts: what is encoded can be decoded, no bytes are too strange, strict mode, first lines.

use engine::{CommandOutcome, Config, Engine, Now, Reply, SessionId};
use proptest::prelude::*;

use crate::kit::show;

struct Side {
    engine: Engine,
    client: SessionId,
}

impl Side {
    fn new(config: Config) -> Side {
        let mut engine = Engine::new(config);
        let client = engine.connect("127.0.0.1:1");
        Side { engine, client }
    }

    fn eval(&mut self, script: &str, keys: &[&str], args: &[&[u8]]) -> Reply {
        let count = keys.len().to_string();
        let mut argv: Vec<&[u8]> = vec![b"EVAL", script.as_bytes(), count.as_bytes()];
        argv.extend(keys.iter().map(|key| key.as_bytes()));
        argv.extend(args);
        match self.engine.execute(Now::from_millis(1), self.client, &argv) {
            CommandOutcome::Reply(reply) => reply,
            CommandOutcome::Blocked { .. } => panic!("a script cannot wait"),
        }
    }
}

/// JSON as text that the library writes itself: no empty arrays (they become objects), no numbers
/// that need more than 14 digits, one key per object (their order is free).
fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|b| b.to_string()),
        (-1_000_000_000_000i64..1_000_000_000_000).prop_map(|n| n.to_string()),
        "[a-zA-Z0-9 é€]{0,12}".prop_map(|s| format!("\"{s}\"")),
        Just(r#""\"\\\/\b\f\n\r\t\u0001\u007f""#.to_owned()),
        Just("{}".to_owned()),
    ];
    leaf.prop_recursive(120, 200, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4)
                .prop_map(|items| format!("[{}]", items.join(","))),
            ("[a-z]{1,6}", inner).prop_map(|(key, value)| format!("{{\"{key}\":{value}}}")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn json_that_is_read_and_written_stays_the_same(text in json()) {
        let mut side = Side::new(Config::default());
        let script = "return cjson.encode(cjson.decode(ARGV[1]))";
        let reply = side.eval(script, &[], &[text.as_bytes()]);
        prop_assert_eq!(reply, Reply::Bulk(text.into_bytes()));
    }

    #[test]
    fn what_is_packed_can_be_unpacked(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        number in any::<f64>().prop_filter("equal to itself", |n| !n.is_nan()),
        integer in any::<i64>(),
    ) {
        let mut side = Side::new(Config::default());
        let script = "local n, i = tonumber(ARGV[2]), tonumber(ARGV[3]) \
            local a, b, c, d = cmsgpack.unpack(cmsgpack.pack(ARGV[1], n, i, {ARGV[1], {x = n}})) \
            local at, again = cmsgpack.unpack_one(cmsgpack.pack(ARGV[1])) \
            return {a == ARGV[1], b == n, c == i, d[1] == ARGV[1], d[2].x == n, at, again == a}";
        let (number, integer) = (format!("{number:e}"), integer.to_string());
        let args: [&[u8]; 3] = [&bytes, number.as_bytes(), integer.as_bytes()];
        prop_assert_eq!(show(&side.eval(script, &[], &args)), "[1 1 1 1 1 -1 1]");
    }
}

#[test]
fn no_bytes_are_too_strange_for_the_libraries() {
    let mut side = Side::new(Config::default());
    let mut rng = fastrand::Rng::with_seed(5);
    let pieces: &[&[u8]] = &[
        b"[", b"]", b"{", b"}", b",", b":", b"\"a\"", b"1", b"-", b"e", b"null", b"\\u", b"\"",
        b"0x", b"inf", b"\x91", b"\x81", b"\xdd", b"\xdf\0", b"\xff", b"\xc1", b"\xcb", b"\xd9",
    ];
    let script = "return {pcall(cjson.decode, ARGV[1]), pcall(cmsgpack.unpack, ARGV[1]), \
        pcall(struct.unpack, ARGV[1], ARGV[1]), pcall(struct.pack, ARGV[1], 1, 'x', 2), \
        pcall(string.find, ARGV[1], ARGV[1]), pcall(string.format, ARGV[1], 1, 2), \
        pcall(loadstring, ARGV[1])} and 1";
    for _ in 0..3000 {
        let mut bytes = Vec::new();
        for _ in 0..rng.usize(0..12) {
            match rng.choice(pieces) {
                Some(piece) if rng.u8(..) > 40 => bytes.extend_from_slice(piece),
                _ => bytes.push(rng.u8(..)),
            }
        }
        assert_eq!(show(&side.eval(script, &[], &[&bytes])), "1", "{bytes:?}");
    }
}

#[test]
fn strict_mode_refuses_keys_that_were_not_declared() {
    let config = Config { strict_scripts: true, ..Config::default() };
    let mut side = Side::new(config);
    let set = "return redis.call('set', KEYS[1], 1)";
    assert_eq!(show(&side.eval(set, &["a"], &[])), "OK");
    let undeclared = "return redis.call('get', 'a' .. 'b')";
    let reply = show(&side.eval(undeclared, &["a"], &[]));
    assert!(reply.starts_with("(error) ERR script tried accessing undeclared key"), "{reply}");
    let allowed = format!("--!df flags=allow-undeclared-keys\n{undeclared}");
    assert_eq!(show(&side.eval(&allowed, &["a"], &[])), "(nil)");
    let two = "redis.call('set', KEYS[1], 1) return redis.call('get', KEYS[2])";
    assert_eq!(
        show(&side.eval(two, &["a", "b"], &[])),
        "(nil)",
        "slots do not matter by themselves"
    );
}

#[test]
fn strict_slots_keep_a_script_within_one_slot() {
    let config = Config { strict_slots: true, ..Config::default() };
    let mut side = Side::new(config);
    let reply = show(&side.eval("return 1", &["a", "b"], &[]));
    assert_eq!(reply, "(error) CROSSSLOT Keys in request don't hash to the same slot");
    assert_eq!(show(&side.eval("return 1", &["{q}a", "{q}b"], &[])), "1");
    let other = "return redis.call('get', '{p}x')";
    let reply = show(&side.eval(other, &["{q}a"], &[]));
    assert!(reply.contains("do not hash to the same slot"), "{reply}");
    let said = format!("#!lua flags=allow-cross-slot-keys\n{other}");
    assert_eq!(show(&side.eval(&said, &["{q}a"], &[])), "(nil)");
}
