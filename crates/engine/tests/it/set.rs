use std::collections::BTreeSet;

use engine::Reply;
use proptest::prelude::*;

use crate::kit::{Kit, show};

fn sorted(reply: &Reply) -> Vec<String> {
    let (Reply::Set(items) | Reply::Array(items)) = reply else { panic!("no set: {reply:?}") };
    let mut items: Vec<String> = items.iter().map(show).collect();
    items.sort();
    items
}

#[test]
fn members_come_and_go() {
    let mut kit = Kit::new();
    kit.check("SADD s 3 1 2 3", "3");
    kit.check("SMEMBERS s", "<1 2 3>");
    kit.check("SADD s 1", "0");
    kit.check("SADD s a", "1");
    assert_eq!(sorted(&kit.run("SMEMBERS s")), ["1", "2", "3", "a"]);
    kit.check("SISMEMBER s a", "1");
    kit.check("SMISMEMBER s a 9 1", "[1 0 1]");
    kit.check("SREM s a 9", "1");
    kit.check("SCARD s", "3");
    kit.check("SMOVE s t 1", "1");
    kit.check("SMOVE s t 1", "0");
    kit.check("SMOVE t t 1", "1");
    kit.check("SREM s 2 3", "2");
    kit.check("EXISTS s", "0");
    let effects = kit.effects();
    assert_eq!(effects, ["SADD s 3 1 2 3", "SADD s a", "SREM s a 9", "SMOVE s t 1", "SREM s 2 3"]);
}

#[test]
fn what_chance_took_is_in_the_effect() {
    let mut kit = Kit::new();
    kit.run("SADD s a b c d e f");
    kit.effects();
    let one = kit.text("SPOP s");
    assert_eq!(kit.effects(), [format!("SREM s {one}")]);
    let Reply::Set(two) = kit.run("SPOP s 2") else { panic!("no set") };
    let two: Vec<String> = two.iter().map(show).collect();
    assert_eq!(kit.effects(), [format!("SREM s {}", two.join(" "))]);
    assert_eq!(sorted(&kit.run("SPOP s 100")).len(), 3);
    assert_eq!(kit.effects(), ["DEL s"]);
    kit.check("SPOP s", "(nil)");
    kit.check("SPOP s 3", "<>");
    kit.check("SPOP s -3", "(error) ERR value is out of range, must be positive");
    kit.check("SPOP s 1 1", "(error) ERR syntax error");
}

#[test]
fn nearly_all_can_be_popped_at_once() {
    let mut kit = Kit::new();
    for n in 0..1_000 {
        kit.run(&format!("SADD s m{n}"));
    }
    assert_eq!(sorted(&kit.run("SPOP s 990")).len(), 990);
    kit.check("SCARD s", "10");
    assert_eq!(sorted(&kit.run("SRANDMEMBER s 20")).len(), 10);
    assert_eq!(sorted(&kit.run("SRANDMEMBER s -20")).len(), 20);
}

#[test]
fn mistakes_are_told() {
    let mut kit = Kit::new();
    kit.run("SET x 1");
    kit.run("SADD s 1");
    let wrong = "(error) WRONGTYPE Operation against a key holding the wrong kind of value";
    kit.check("SADD x 1", wrong);
    kit.check("SINTER nokey x", wrong);
    kit.check("SUNIONSTORE d s x", wrong);
    kit.check("SMOVE s x 9", wrong);
    kit.check("SMOVE nokey x 9", "0");
    kit.check("SINTERCARD 0 s", "(error) ERR numkeys should be greater than 0");
    kit.check("SINTERCARD a s", "(error) ERR numkeys should be greater than 0");
    kit.check("SINTERCARD 2 s", "(error) ERR Number of keys can't be greater than number of args");
    kit.check("SINTERCARD 1 s LIMIT", "(error) ERR syntax error");
    kit.check("SINTERCARD 1 s LIMIT -1", "(error) ERR LIMIT can't be negative");
    kit.check("SINTERCARD 1 s LIMIT 5", "1");
}

fn members() -> impl Strategy<Value = BTreeSet<String>> {
    let member = prop_oneof![
        4 => (0i64..60).prop_map(|n| n.to_string()),
        1 => (0u8..60).prop_map(|n| format!("m{n}")),
        1 => (0u8..9).prop_map(|n| "long".repeat(60) + &n.to_string()),
    ];
    prop_oneof![
        1 => proptest::collection::btree_set((0i64..700).prop_map(|n| n.to_string()), 0..650),
        3 => proptest::collection::btree_set(member, 0..120),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn set_algebra_is_right(a in members(), b in members(), c in members()) {
        let mut kit = Kit::new();
        for (key, set) in [("a", &a), ("b", &b), ("c", &c)] {
            for member in set {
                kit.check(&format!("SADD {key} {member}"), "1");
            }
        }
        let list = |set: BTreeSet<&String>| set.into_iter().cloned().collect::<Vec<_>>();
        let both = list(a.iter().filter(|m| b.contains(*m) && c.contains(*m)).collect());
        prop_assert_eq!(sorted(&kit.run("SINTER a b c")), both.clone());
        kit.check("SINTERCARD 3 a b c", &both.len().to_string());
        kit.check("SINTERSTORE d a b c", &both.len().to_string());
        prop_assert_eq!(sorted(&kit.run("SMEMBERS d")), both);
        let all = list(a.iter().chain(&b).chain(&c).collect());
        prop_assert_eq!(sorted(&kit.run("SUNION a b c")), all);
        let only = list(a.iter().filter(|m| !b.contains(*m) && !c.contains(*m)).collect());
        prop_assert_eq!(sorted(&kit.run("SDIFF a b c")), only.clone());
        kit.check("SDIFFSTORE d a b c", &only.len().to_string());
        for member in a.iter().take(30) {
            kit.check(&format!("SREM a {member}"), "1");
            kit.check(&format!("SISMEMBER a {member}"), "0");
        }
        kit.check("SCARD a", &a.len().saturating_sub(30).to_string());
    }
}

#[test]
fn repetition_is_bounded_with_an_error_that_says_so() {
    let mut kit = Kit::new();
    kit.run("SADD s a");
    kit.run("HSET h f v");
    kit.run("ZADD z 1 m");
    for line in ["SRANDMEMBER s", "HRANDFIELD h", "ZRANDMEMBER z"] {
        let reply = kit.text(&format!("{line} -100000000"));
        assert!(reply.contains("at most 16777216 repeated elements"), "{line}: {reply}");
        assert_eq!(kit.text(&format!("{line} -3")).split(' ').count(), 3, "{line}");
    }
}
