use std::collections::HashMap;

use engine::Reply;
use proptest::prelude::*;

use crate::kit::Kit;

#[test]
fn fields_are_set_read_and_deleted() {
    let mut kit = Kit::new();
    kit.check("HSET h a 1 b two", "2");
    kit.check("HSET h a 2 c 3", "1");
    kit.check("HGETALL h", "{a: 2, b: two, c: 3}");
    kit.check("HMGET h a x c", "[2 (nil) 3]");
    kit.check("HDEL h a x", "1");
    kit.check("HKEYS h", "[b c]");
    kit.check("HVALS h", "[two 3]");
    kit.check("HSTRLEN h b", "3");
    kit.check("HSETNX h b 1", "0");
    kit.check("HSETNX h d 1", "1");
    kit.check("HDEL h b c d", "3");
    kit.check("EXISTS h", "0");
    assert_eq!(
        kit.effects(),
        ["HSET h a 1 b two", "HSET h a 2 c 3", "HDEL h a x", "HSETNX h d 1", "HDEL h b c d"]
    );
}

#[test]
fn mistakes_change_nothing() {
    let mut kit = Kit::new();
    kit.check("HSET h a", "(error) ERR wrong number of arguments for 'hset' command");
    kit.check("HSET h a 1 b", "(error) ERR wrong number of arguments for 'hset' command");
    kit.check("HMSET h a 1 b", "(error) ERR wrong number of arguments for 'hmset' command");
    kit.check("HINCRBY h a x", "(error) ERR value is not an integer or out of range");
    kit.check("EXISTS h", "0");
    kit.run("HSET h a x b 9223372036854775807");
    kit.effects();
    kit.check("HINCRBY h a 1", "(error) ERR hash value is not an integer");
    kit.check("HINCRBY h b 1", "(error) ERR increment or decrement would overflow");
    kit.check("HDEL h x", "0");
    kit.run("SET s 1");
    kit.check(
        "HSET s a 1",
        "(error) WRONGTYPE Operation against a key holding the wrong kind of value",
    );
    assert_eq!(kit.effects(), ["SET s 1"]);
}

#[test]
fn a_large_hash_keeps_its_fields() {
    let mut kit = Kit::new();
    for n in 0..2_000 {
        kit.check(&format!("HSET h field:{n} {n}"), "1");
        kit.check(&format!("HGET h field:{}", n / 2), &(n / 2).to_string());
    }
    kit.check("HLEN h", "2000");
    let Reply::Map(all) = kit.run("HGETALL h") else { panic!("no map") };
    assert_eq!(all.len(), 2_000);
    let Reply::Array(some) = kit.run("HRANDFIELD h 1500") else { panic!("no array") };
    let distinct: std::collections::BTreeSet<String> = some.iter().map(crate::kit::show).collect();
    assert_eq!((some.len(), distinct.len()), (1_500, 1_500));
}

#[test]
fn floats_are_added_exactly_and_logged_as_their_sum() {
    let mut kit = Kit::new();
    kit.check("HINCRBYFLOAT h a 10.5", "10.5");
    kit.check("HINCRBYFLOAT h a 0.1", "10.6");
    kit.check("HINCRBYFLOAT h a -5", "5.6");
    kit.check("HINCRBYFLOAT h a x", "(error) ERR value is not a valid float");
    kit.check("HINCRBYFLOAT h a inf", "(error) ERR value is NaN or Infinity");
    kit.run("HSET h b x");
    kit.check("HINCRBYFLOAT h b 1", "(error) ERR hash value is not a float");
    assert_eq!(kit.effects(), ["HSET h a 10.5", "HSET h a 10.6", "HSET h a 5.6", "HSET h b x"]);
}

#[test]
fn a_scan_finds_every_field() {
    let mut kit = Kit::new();
    kit.check("HSCAN h 0", "[0 []]");
    kit.check("HSCAN h x", "(error) ERR invalid cursor");
    kit.check("HSCAN h 0 BAD", "[0 []]");
    kit.run("HSET h a 1 b 2 ab 3");
    kit.check("HSCAN h 0 MATCH a*", "[0 [a 1 ab 3]]");
    kit.check("HSCAN h 0 BAD", "(error) ERR syntax error");
    for n in 0..1_000 {
        kit.run(&format!("HSET h f{n} {n}"));
    }
    let (mut cursor, mut seen) = ("0".to_owned(), std::collections::BTreeSet::new());
    loop {
        let Reply::Array(parts) = kit.run(&format!("HSCAN h {cursor} COUNT 7 MATCH f*")) else {
            panic!("no array")
        };
        let [next, Reply::Array(pairs)] = &parts[..] else { panic!("no pair") };
        seen.extend(pairs.chunks(2).map(|pair| crate::kit::show(&pair[0])));
        cursor = crate::kit::show(next);
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen.len(), 1_000);
}

proptest! {
    #[test]
    fn a_hash_behaves_as_a_map(
        steps in proptest::collection::vec((0u8..4, 0usize..200, 0usize..700), 1..400)
    ) {
        let mut kit = Kit::new();
        let mut model = HashMap::new();
        for (step, field, len) in steps {
            let field = format!("f{field}");
            match step {
                0 | 1 => {
                    let value = "v".repeat(len % if step == 0 { 80 } else { 700 } + 1);
                    let new = model.insert(field.clone(), value.clone()).is_none();
                    kit.check(&format!("HSET h {field} {value}"), if new { "1" } else { "0" });
                }
                2 => {
                    let there = model.remove(&field).is_some();
                    kit.check(&format!("HDEL h {field}"), if there { "1" } else { "0" });
                }
                _ => {
                    let expected = model.get(&field).map_or("(nil)", String::as_str);
                    kit.check(&format!("HGET h {field}"), expected);
                }
            }
            kit.check("HLEN h", &model.len().to_string());
        }
        let Reply::Map(all) = kit.run("HGETALL h") else { panic!("no map") };
        let all: HashMap<String, String> = all
            .iter()
            .map(|(key, value)| (crate::kit::show(key), crate::kit::show(value)))
            .collect();
        prop_assert_eq!(all, model);
    }
}
