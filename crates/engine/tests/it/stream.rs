use std::collections::BTreeMap;

use engine::{CommandOutcome, Now, Reply};
use proptest::prelude::*;

use crate::kit::{Kit, effects, show};

#[test]
fn entries_get_growing_ids() {
    let mut kit = Kit::new();
    kit.check("XADD s * a 1", "1700000000000-0");
    kit.check("XADD s * a 2 b 3", "1700000000000-1");
    kit.check("XADD s 1700000000005-* a 3", "1700000000005-0");
    kit.check("XADD s 1700000000005-7 a 4", "1700000000005-7");
    kit.check("XADD s * a 5", "1700000000005-8");
    kit.check("XLEN s", "5");
    kit.check("XRANGE s - + COUNT 2", "[[1700000000000-0 [a 1]] [1700000000000-1 [a 2 b 3]]]");
    kit.check("XREVRANGE s + - COUNT 1", "[[1700000000005-8 [a 5]]]");
    kit.check("XRANGE s (1700000000005-0 1700000000005-7", "[[1700000000005-7 [a 4]]]");
    kit.check("XRANGE s - + COUNT 0", "(nil array)");
    kit.check("XDEL s 1700000000005-7 5-5", "1");
    assert_eq!(
        kit.effects(),
        [
            "XADD s 1700000000000-0 a 1",
            "XADD s 1700000000000-1 a 2 b 3",
            "XADD s 1700000000005-0 a 3",
            "XADD s 1700000000005-7 a 4",
            "XADD s 1700000000005-8 a 5",
            "XDEL s 1700000000005-7 5-5"
        ]
    );
}

#[test]
fn mistakes_are_told() {
    let mut kit = Kit::new();
    let invalid = "(error) ERR Invalid stream ID specified as stream command argument";
    kit.check("XADD s 0-0 a 1", "(error) ERR The ID specified in XADD must be greater than 0-0");
    kit.check("XADD s x a 1", invalid);
    kit.check("XADD s - a 1", invalid);
    kit.check("XADD s * a", "(error) ERR wrong number of arguments for 'xadd' command");
    kit.check("XADD s NOMKSTREAM * a 1", "(nil)");
    kit.check("EXISTS s", "0");
    kit.check("XADD s 5-5 a 1", "5-5");
    kit.check(
        "XADD s 5-5 a 1",
        "(error) ERR The ID specified in XADD is equal or smaller than the target stream top item",
    );
    kit.check("XRANGE s a +", invalid);
    kit.check("XTRIM s", "(error) ERR wrong number of arguments for 'xtrim' command");
    kit.check("XTRIM s MAXLEN -1", "(error) ERR The MAXLEN argument must be >= 0.");
    kit.check(
        "XTRIM s MAXLEN 1 LIMIT 5",
        "(error) ERR syntax error, LIMIT cannot be used without the special ~ option",
    );
    kit.check(
        "XADD s MAXLEN 1 MINID 1 * a 1",
        "(error) ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
    );
    kit.check("XREAD STREAMS s", "(error) ERR wrong number of arguments for 'xread' command");
    kit.check("XREAD COUNT 1 STREAMS s", "(error) ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.");
    kit.check("XGROUP CREATE nokey g $", "(error) ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option to create an empty stream automatically.");
    kit.check("XSETID nokey 1-1", "(error) ERR no such key");
    kit.check(
        "XSETID s 1-1",
        "(error) ERR The ID specified in XSETID is smaller than the target stream top item",
    );
}

#[test]
fn trimming_drops_the_oldest() {
    let mut kit = Kit::new();
    for n in 1..=250 {
        kit.run(&format!("XADD s {n}-0 a {n}"));
    }
    kit.effects();
    kit.check("XTRIM s MAXLEN ~ 120", "100");
    kit.check("XTRIM s MAXLEN ~ 100", "0");
    kit.check("XTRIM s MINID ~ 150", "0");
    kit.check("XTRIM s MINID 150", "49");
    kit.check("XTRIM s MAXLEN = 100", "1");
    kit.check("XADD s MAXLEN ~ 50 1000-0 a b", "1000-0");
    kit.check("XLEN s", "51");
    kit.check("XADD s MAXLEN 2 1001-0 a b", "1001-0");
    kit.check("XRANGE s - +", "[[1000-0 [a b]] [1001-0 [a b]]]");
    assert_eq!(
        kit.effects(),
        [
            "XTRIM s MAXLEN = 150",
            "XTRIM s MINID = 150-0",
            "XTRIM s MAXLEN = 100",
            "XADD s MAXLEN = 51 1000-0 a b",
            "XADD s MAXLEN = 2 1001-0 a b"
        ]
    );
}

#[test]
fn a_read_waits_for_what_comes() {
    let mut kit = Kit::new();
    let (a, b) = (kit.engine.connect("a"), kit.engine.connect("b"));
    kit.run("XADD s 1-1 a 1");
    kit.check("XREAD STREAMS s 0", "[[s [[1-1 [a 1]]]]]");
    kit.check("XREAD STREAMS s $", "(nil array)");
    assert!(matches!(
        kit.run_as(a, "XREAD BLOCK 0 STREAMS s t $ $"),
        CommandOutcome::Blocked { .. }
    ));
    assert!(matches!(
        kit.run_as(b, "XREAD BLOCK 0 COUNT 1 STREAMS t 0"),
        CommandOutcome::Blocked { .. }
    ));
    kit.effects();
    kit.run("XADD t 2-2 b 2");
    let output = kit.engine.take_output();
    let texts: Vec<_> = output.deliveries.iter().map(|(id, r)| (id.0, show(r))).collect();
    let expected = "[[t [[2-2 [b 2]]]]]".to_owned();
    assert_eq!(texts, [(a.0, expected.clone()), (b.0, expected)]);
    assert_eq!(effects(&output.effects), ["XADD t 2-2 b 2"]);
}

#[test]
fn a_group_shares_entries_among_consumers() {
    let mut kit = Kit::new();
    kit.check("XGROUP CREATE s g $ MKSTREAM", "OK");
    kit.check("XGROUP CREATE s g $", "(error) BUSYGROUP Consumer Group name already exists");
    for n in 1..=4 {
        kit.run(&format!("XADD s {n}-0 f {n}"));
    }
    kit.effects();
    kit.check("XREADGROUP GROUP g alice COUNT 2 STREAMS s >", "[[s [[1-0 [f 1]] [2-0 [f 2]]]]]");
    let claim = |id: u32, who: &str, count: u32| {
        format!("XCLAIM s g {who} 0 {id}-0 TIME 1700000000000 RETRYCOUNT {count} FORCE JUSTID")
    };
    assert_eq!(
        kit.effects(),
        [
            "XGROUP CREATECONSUMER s g alice".to_owned(),
            claim(1, "alice", 1),
            claim(2, "alice", 1),
            "XGROUP SETID s g 2-0 ENTRIESREAD 2".to_owned()
        ]
    );
    kit.check("XREADGROUP GROUP g bob NOACK STREAMS s >", "[[s [[3-0 [f 3]] [4-0 [f 4]]]]]");
    kit.check("XREADGROUP GROUP g bob STREAMS s >", "(nil array)");
    kit.check("XREADGROUP GROUP g alice STREAMS s 0", "[[s [[1-0 [f 1]] [2-0 [f 2]]]]]");
    kit.check("XPENDING s g", "[2 1-0 2-0 [[alice 2]]]");
    kit.check("XPENDING s g - + 10", "[[1-0 alice 0 2] [2-0 alice 0 2]]");
    kit.check("XACK s g 1-0 9-9", "1");
    kit.check("XCLAIM s g bob 0 2-0 1-0", "[[2-0 [f 2]]]");
    kit.check("XPENDING s g - + 10 bob", "[[2-0 bob 0 3]]");
    kit.check("XAUTOCLAIM s g alice 0 0", "[0-0 [[2-0 [f 2]]] []]");
    kit.check("XDEL s 2-0", "1");
    kit.check("XAUTOCLAIM s g alice 0 0", "[0-0 [] [2-0]]");
    kit.check(
        "XINFO GROUPS s",
        "[{name: g, consumers: 2, pending: 0, last-delivered-id: 4-0, entries-read: 4, lag: 0}]",
    );
    kit.check("XGROUP DELCONSUMER s g alice", "0");
    kit.check("XGROUP DESTROY s g", "1");
    kit.check(
        "XREADGROUP GROUP g bob STREAMS s >",
        "(error) NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option",
    );
}

#[test]
fn who_waits_with_a_group_is_served_or_told() {
    let mut kit = Kit::new();
    let (a, b) = (kit.engine.connect("a"), kit.engine.connect("b"));
    kit.run("XGROUP CREATE s g $ MKSTREAM");
    for client in [a, b] {
        let outcome = kit.run_as(client, "XREADGROUP GROUP g c BLOCK 0 STREAMS s >");
        assert!(matches!(outcome, CommandOutcome::Blocked { .. }));
    }
    kit.run("XADD s 1-0 f v");
    let texts: Vec<_> =
        kit.engine.take_output().deliveries.iter().map(|(id, r)| (id.0, show(r))).collect();
    assert_eq!(texts, [(a.0, "[[s [[1-0 [f v]]]]]".to_owned())]);
    kit.run("XGROUP DESTROY s g");
    let texts: Vec<_> =
        kit.engine.take_output().deliveries.iter().map(|(id, r)| (id.0, show(r))).collect();
    let gone = "(error) NOGROUP the consumer group this client was blocked on no longer exists";
    assert_eq!(texts, [(b.0, gone.to_owned())]);
    kit.run("XGROUP CREATE s g $");
    kit.run_as(a, "XREADGROUP GROUP g c BLOCK 0 STREAMS s >");
    kit.run("DEL s");
    let texts: Vec<_> =
        kit.engine.take_output().deliveries.iter().map(|(id, r)| (id.0, show(r))).collect();
    assert_eq!(texts, [(a.0, "(error) UNBLOCKED the stream key no longer exists".to_owned())]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn a_stream_behaves_as_a_sorted_map(
        steps in proptest::collection::vec((0u8..10, 0u64..400, 0usize..60), 1..400)
    ) {
        let mut kit = Kit::new();
        let mut model: BTreeMap<u64, String> = BTreeMap::new();
        let mut last = 0;
        for (step, n, size) in steps {
            match step {
                0..=5 => {
                    last += n % 3 + 1;
                    let value = "v".repeat(size);
                    let fields = match n % 4 {
                        0 => format!("a x{value} b 2"),
                        1 => format!("c x{value}"),
                        _ => format!("a x{value}"),
                    };
                    kit.check(&format!("XADD s {last}-1 {fields}"), &format!("{last}-1"));
                    model.insert(last, fields);
                }
                6 | 7 => {
                    let there = model.remove(&n).is_some();
                    kit.check(&format!("XDEL s {n}-1"), if there { "1" } else { "0" });
                }
                8 if model.len() > 20 => {
                    let goal = model.len() - size / 8;
                    let mut gone = 0;
                    while model.len() > goal {
                        model.pop_first();
                        gone += 1;
                    }
                    kit.check(&format!("XTRIM s MAXLEN {goal}"), &gone.to_string());
                }
                _ => {
                    let part = |range: &mut dyn Iterator<Item = (&u64, &String)>| {
                        let entries: Vec<_> =
                            range.take(5).map(|(id, f)| format!("[{id}-1 [{f}]]")).collect();
                        format!("[{}]", entries.join(" "))
                    };
                    kit.check(&format!("XRANGE s {n} + COUNT 5"), &part(&mut model.range(n..)));
                    kit.check(
                        &format!("XREVRANGE s {n} - COUNT 5"),
                        &part(&mut model.range(..=n).rev()),
                    );
                }
            }
            kit.check("XLEN s", &model.len().to_string());
        }
        let Reply::Array(all) = kit.run("XRANGE s - +") else { panic!("no array") };
        prop_assert_eq!(all.len(), model.len());
    }
}

#[test]
fn a_consumer_is_inactive_since_it_last_got_an_entry() {
    let mut kit = Kit::new();
    let start = kit.now.ms();
    kit.run("XADD s 1-0 f v");
    kit.run("XGROUP CREATE s g 0");
    kit.run("XGROUP CREATECONSUMER s g bob");
    kit.now = Now::from_millis(start + 1_000);
    kit.check("XREADGROUP GROUP g alice STREAMS s >", "[[s [[1-0 [f v]]]]]");
    kit.now = Now::from_millis(start + 3_000);
    // She asked, and got nothing: that counts for neither, as in Redis 7.0.
    kit.check("XREADGROUP GROUP g alice STREAMS s >", "(nil array)");
    kit.now = Now::from_millis(start + 4_000);
    kit.check(
        "XINFO CONSUMERS s g",
        "[{name: alice, pending: 1, idle: 3000, inactive: 3000} \
         {name: bob, pending: 0, idle: 4000, inactive: -1}]",
    );
    kit.check("XCLAIM s g bob 0 1-0 IDLE 500 JUSTID", "[1-0]");
    kit.now = Now::from_millis(start + 4_100);
    kit.check(
        "XINFO CONSUMERS s g",
        "[{name: alice, pending: 0, idle: 3100, inactive: 3100} \
         {name: bob, pending: 1, idle: 100, inactive: 100}]",
    );
}
