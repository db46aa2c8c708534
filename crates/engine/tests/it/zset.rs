use std::collections::HashMap;

use proptest::prelude::*;

use crate::kit::Kit;

#[test]
fn members_are_ranked_by_score_then_name() {
    let mut kit = Kit::new();
    kit.check("ZADD z 1 b 1 a 0.5 c", "3");
    kit.check("ZRANGE z 0 -1", "[c a b]");
    kit.check("ZRANGE z 0 -1 WITHSCORES", "[c (0.5) a (1) b (1)]");
    kit.check("ZRANGE z 0 0 REV", "[b]");
    kit.check("ZREVRANGE z 1 2", "[a c]");
    kit.check("ZRANK z a", "1");
    kit.check("ZREVRANK z a", "1");
    kit.check("ZRANK z x", "(nil)");
    kit.check("ZSCORE z c", "(0.5)");
    kit.check("ZMSCORE z c x", "[(0.5) (nil)]");
    kit.check("ZINCRBY z 10 c", "(10.5)");
    kit.check("ZREM z a x", "1");
    kit.check("ZPOPMIN z", "[b (1)]");
    kit.check("ZPOPMAX z 5", "[c (10.5)]");
    kit.check("EXISTS z", "0");
    kit.check("ZPOPMIN z", "[]");
    let effects = kit.effects();
    assert_eq!(
        effects,
        ["ZADD z 1 b 1 a 0.5 c", "ZINCRBY z 10 c", "ZREM z a x", "ZPOPMIN z", "ZPOPMAX z 5"]
    );
}

#[test]
fn options_of_zadd_hold() {
    let mut kit = Kit::new();
    kit.check("ZADD z XX 1 a", "0");
    kit.check("EXISTS z", "0");
    kit.check("ZADD z XX INCR 1 a", "(nil)");
    kit.check("ZADD z NX 1 a", "1");
    kit.check("ZADD z NX 2 a 2 b", "1");
    kit.check("ZADD z CH 2 a 2 b", "1");
    kit.check("ZADD z GT CH 1 a 3 b", "1");
    kit.check("ZADD z LT CH 1 a 4 b", "1");
    kit.check("ZADD z GT INCR -1 b", "(nil)");
    kit.check("ZADD z INCR 1 b", "(4)");
    kit.check("ZADD z inf i", "1");
    kit.check("ZADD z INCR -inf i", "(error) ERR resulting score is not a number (NaN)");
    kit.check(
        "ZADD z NX XX 1 a",
        "(error) ERR XX and NX options at the same time are not compatible",
    );
    kit.check(
        "ZADD z GT LT 1 a",
        "(error) ERR GT, LT, and/or NX options at the same time are not compatible",
    );
    kit.check(
        "ZADD z INCR 1 a 2 b",
        "(error) ERR INCR option supports a single increment-element pair",
    );
    kit.check("ZADD z 1 a 2", "(error) ERR syntax error");
    kit.check("ZADD z 1 a x b", "(error) ERR value is not a valid float");
    kit.check("ZADD z nan a", "(error) ERR value is not a valid float");
    kit.effects();
    kit.check("ZADD z 1 a", "0");
    assert!(kit.effects().is_empty());
}

#[test]
fn ranges_by_score_and_by_name() {
    let mut kit = Kit::new();
    kit.run("ZADD z 1 a 2 b 3 c 4 d");
    kit.check("ZRANGEBYSCORE z (1 3", "[b c]");
    kit.check("ZRANGEBYSCORE z -inf +inf LIMIT 1 2", "[b c]");
    kit.check("ZRANGEBYSCORE z -inf +inf LIMIT 1 -1", "[b c d]");
    kit.check("ZRANGEBYSCORE z -inf +inf LIMIT -1 2", "[]");
    kit.check("ZREVRANGEBYSCORE z 3 (1 WITHSCORES", "[c (3) b (2)]");
    kit.check("ZRANGE z 3 2 BYSCORE REV LIMIT 0 1", "[c]");
    kit.check("ZCOUNT z 2 (4", "2");
    kit.check("ZRANGEBYSCORE z a b", "(error) ERR min or max is not a float");
    kit.check(
        "ZRANGE z 0 1 LIMIT 0 1",
        "(error) ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
    );
    kit.check(
        "ZRANGE z - + BYLEX WITHSCORES",
        "(error) ERR syntax error, WITHSCORES not supported in combination with BYLEX",
    );
    kit.run("ZADD l 0 a 0 b 0 c 0 dd");
    kit.check("ZRANGEBYLEX l - +", "[a b c dd]");
    kit.check("ZRANGEBYLEX l [b (dd", "[b c]");
    kit.check("ZREVRANGEBYLEX l + (a LIMIT 0 2", "[dd c]");
    kit.check("ZLEXCOUNT l (a +", "3");
    kit.check("ZRANGEBYLEX l b c", "(error) ERR min or max not valid string range item");
    kit.check("ZREMRANGEBYLEX l [b [c", "2");
    kit.check("ZREMRANGEBYRANK l 0 0", "1");
    kit.check("ZREMRANGEBYSCORE z 2 3", "2");
    kit.check("ZRANGESTORE t z 0 -1", "2");
    kit.check("ZRANGE t 0 -1 WITHSCORES", "[a (1) d (4)]");
    kit.check("ZMPOP 2 x t MAX COUNT 9", "[t [[d (4)] [a (1)]]]");
    assert_eq!(kit.effects().last().unwrap(), "ZPOPMAX t 2");
}

#[test]
fn sorted_sets_are_joined_with_weights() {
    let mut kit = Kit::new();
    kit.run("ZADD a 1 x 2 y");
    kit.run("ZADD b 10 y 20 z");
    kit.run("SADD s y z");
    kit.check("ZUNION 2 a b WITHSCORES", "[x (1) y (12) z (20)]");
    kit.check("ZUNION 3 a b s WEIGHTS 2 1 5 AGGREGATE MAX WITHSCORES", "[x (2) y (10) z (20)]");
    kit.check("ZINTER 3 a b s WITHSCORES", "[y (13)]");
    kit.check("ZINTERCARD 2 a b", "1");
    kit.check("ZDIFF 2 a b WITHSCORES", "[x (1)]");
    kit.check("ZUNIONSTORE d 2 a b", "3");
    kit.check("ZINTERSTORE d 2 a nokey", "0");
    kit.check("EXISTS d", "0");
    kit.run("SET str 1");
    let wrong = "(error) WRONGTYPE Operation against a key holding the wrong kind of value";
    kit.check("ZUNION 2 a str BADOPTION", wrong);
    kit.check("ZUNION 0 a", "(error) ERR at least 1 input key is needed for 'zunion' command");
    kit.check("ZUNION 3 a b", "(error) ERR syntax error");
    kit.check("ZUNION 2 a b WEIGHTS 1 x", "(error) ERR weight value is not a float");
    kit.check("ZDIFF 2 a b WEIGHTS 1 2", "(error) ERR syntax error");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn a_sorted_set_behaves_as_a_sorted_list(
        steps in proptest::collection::vec((0u8..8, 0u32..150, -5i32..5, 0usize..100), 1..400)
    ) {
        let mut kit = Kit::new();
        let mut model: HashMap<String, f64> = HashMap::new();
        for (step, name, score, size) in steps {
            let name = if name % 5 == 0 { format!("{name}{}", "x".repeat(size)) } else { name.to_string() };
            let score = f64::from(score) / 2.0;
            match step {
                0..=4 => {
                    let new = model.insert(name.clone(), score).is_none();
                    kit.check(&format!("ZADD z {score} {name}"), if new { "1" } else { "0" });
                }
                5 => {
                    let there = model.remove(&name).is_some();
                    kit.check(&format!("ZREM z {name}"), if there { "1" } else { "0" });
                }
                6 => {
                    let sum = model.entry(name.clone()).or_insert(0.0);
                    *sum += score;
                    kit.check(&format!("ZINCRBY z {score} {name}"), &format!("({})", *sum + 0.0));
                }
                _ => {
                    let expected = model.get(&name).map_or("(nil)".into(), |s| format!("({})", s + 0.0));
                    kit.check(&format!("ZSCORE z {name}"), &expected);
                }
            }
        }
        let mut sorted: Vec<(f64, String)> = model.into_iter().map(|(n, s)| (s, n)).collect();
        sorted.sort_by(|a, b| a.partial_cmp(b).unwrap());
        kit.check("ZCARD z", &sorted.len().to_string());
        let names = |part: &[(f64, String)]| {
            format!("[{}]", part.iter().map(|(_, n)| n.as_str()).collect::<Vec<_>>().join(" "))
        };
        kit.check("ZRANGE z 0 -1", &names(&sorted));
        for (rank, (_, name)) in sorted.iter().enumerate() {
            kit.check(&format!("ZRANK z {name}"), &rank.to_string());
        }
        for (min, max) in [(-1.0, 1.0), (0.0, 0.0), (0.5, -0.5), (-9.0, 0.5)] {
            let part: Vec<_> = sorted.iter().filter(|(s, _)| *s >= min && *s < max).cloned().collect();
            kit.check(&format!("ZRANGEBYSCORE z {min} ({max}"), &names(&part));
            kit.check(&format!("ZCOUNT z {min} ({max}"), &part.len().to_string());
        }
        if sorted.len() > 6 {
            kit.check("ZREMRANGEBYRANK z 2 -3", &(sorted.len() - 4).to_string());
            sorted.drain(2..sorted.len() - 2);
            sorted.reverse();
            kit.check("ZREVRANGE z 0 -1", &names(&sorted));
        }
    }
}
