use proptest::prelude::*;

use crate::kit::Kit;

#[test]
fn both_ends_push_and_pop() {
    let mut kit = Kit::new();
    kit.check("RPUSH l b c", "2");
    kit.check("LPUSH l a 0", "4");
    kit.check("LRANGE l 0 -1", "[0 a b c]");
    kit.check("LPOP l", "0");
    kit.check("RPOP l 2", "[c b]");
    kit.check("LPOP l 0", "[]");
    kit.check("LPOP l 9", "[a]");
    kit.check("EXISTS l", "0");
    kit.check("LPOP l", "(nil)");
    kit.check("LPOP l 1", "(nil array)");
    kit.check("LPOP l x", "(error) ERR value is out of range, must be positive");
    kit.check("LPOP l 1 2", "(error) ERR wrong number of arguments for 'lpop' command");
    kit.check("LPUSHX l a", "0");
    assert_eq!(kit.effects(), ["RPUSH l b c", "LPUSH l a 0", "LPOP l", "RPOP l 2", "LPOP l 9"]);
}

#[test]
fn elements_are_found_and_changed_in_the_middle() {
    let mut kit = Kit::new();
    kit.run("RPUSH l a b c a b c a");
    kit.check("LPOS l a", "0");
    kit.check("LPOS l a RANK -1", "6");
    kit.check("LPOS l a RANK 2 COUNT 0", "[3 6]");
    kit.check("LPOS l a COUNT 0 MAXLEN 4", "[0 3]");
    kit.check("LPOS l x", "(nil)");
    kit.check("LPOS l x COUNT 1", "[]");
    kit.check("LPOS l a COUNT -1", "(error) ERR COUNT can't be negative");
    kit.check("LINSERT l BEFORE b x", "8");
    kit.check("LINSERT l AFTER c y", "9");
    kit.check("LINSERT l AFTER q y", "-1");
    kit.check("LINSERT l BESIDE q y", "(error) ERR syntax error");
    kit.check("LRANGE l 0 -1", "[a x b c y a b c a]");
    kit.check("LREM l -1 a", "1");
    kit.check("LREM l 1 b", "1");
    kit.check("LRANGE l 0 -1", "[a x c y a b c]");
    kit.check("LSET l -1 z", "OK");
    kit.check("LSET l 9 z", "(error) ERR index out of range");
    kit.check("LSET nokey 0 z", "(error) ERR no such key");
    kit.check("LINDEX l -1", "z");
    kit.check("LINDEX l 7", "(nil)");
    kit.check("LTRIM l 1 -2", "OK");
    kit.check("LRANGE l -100 100", "[x c y a b]");
    kit.effects();
    kit.check("LTRIM l 0 -1", "OK");
    kit.check("LREM l 0 nothing", "0");
    assert_eq!(kit.effects(), Vec::<String>::new());
    kit.check("LTRIM l 5 9", "OK");
    kit.check("EXISTS l", "0");
}

#[test]
fn elements_move_between_lists() {
    let mut kit = Kit::new();
    kit.run("RPUSH a 1 2 3");
    kit.check("LMOVE a b LEFT RIGHT", "1");
    kit.check("RPOPLPUSH a b", "3");
    kit.check("LMOVE b b LEFT RIGHT", "3");
    kit.check("LRANGE b 0 -1", "[1 3]");
    kit.check("LMOVE a b UP RIGHT", "(error) ERR syntax error");
    kit.check("LMOVE x b LEFT RIGHT", "(nil)");
    kit.check("LMPOP 2 x b LEFT COUNT 9", "[b [1 3]]");
    kit.check("LMPOP 2 x b LEFT", "(nil array)");
    kit.check("LMPOP 0 x LEFT", "(error) ERR numkeys should be greater than 0");
    kit.check("LMPOP 1 x LEFT COUNT 0", "(error) ERR count should be greater than 0");
    kit.check("LMPOP 2 x LEFT", "(error) ERR syntax error");
    let effects = kit.effects();
    assert_eq!(effects.last().unwrap(), "LPOP b 2");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_list_behaves_as_a_vector(
        steps in proptest::collection::vec(
            (0u8..10, -6i64..60, prop_oneof![3 => 0usize..12, 1 => 0usize..900]), 1..300)
    ) {
        let mut kit = Kit::new();
        let mut model: Vec<String> = Vec::new();
        for (n, (step, index, size)) in steps.into_iter().enumerate() {
            // Few distinct short elements, so that LREM and LINSERT find some.
            let element = if size < 12 { format!("e{}", size % 5) } else { "x".repeat(size) + &n.to_string() };
            let len = model.len() as i64;
            let at = if index < 0 { index + len } else { index };
            let there = usize::try_from(at).ok().filter(|at| *at < model.len());
            match step {
                0..=2 => {
                    model.push(element.clone());
                    kit.check(&format!("RPUSH l {element}"), &model.len().to_string());
                }
                3 | 4 => {
                    model.insert(0, element.clone());
                    kit.check(&format!("LPUSH l {element}"), &model.len().to_string());
                }
                5 => {
                    let popped = if index % 2 == 0 && !model.is_empty() { Some(model.remove(0)) } else { None };
                    if let Some(popped) = popped {
                        kit.check("LPOP l", &popped);
                    } else if let Some(popped) = model.pop() {
                        kit.check("RPOP l", &popped);
                    }
                }
                6 => {
                    if let Some(place) = there {
                        model[place] = element.clone();
                        kit.check(&format!("LSET l {index} {element}"), "OK");
                    }
                }
                7 => {
                    let found = model.iter().position(|e| e == "e1");
                    if let Some(place) = found {
                        model.insert(place, element.clone());
                        kit.check(&format!("LINSERT l BEFORE e1 {element}"), &model.len().to_string());
                    }
                }
                8 => {
                    let most = index.unsigned_abs() as usize % 3 + 1;
                    let mut removed = 0;
                    if index < 0 {
                        while removed < most && let Some(place) = model.iter().rposition(|e| *e == element) {
                            model.remove(place);
                            removed += 1;
                        }
                        kit.check(&format!("LREM l -{most} {element}"), &removed.to_string());
                    } else {
                        while removed < most && let Some(place) = model.iter().position(|e| *e == element) {
                            model.remove(place);
                            removed += 1;
                        }
                        kit.check(&format!("LREM l {most} {element}"), &removed.to_string());
                    }
                }
                _ => {
                    if model.len() > 40 {
                        model.drain(..3);
                        model.truncate(model.len() - 2);
                        kit.check("LTRIM l 3 -3", "OK");
                    }
                }
            }
            let expected = there.and_then(|place| model.get(place)).map_or("(nil)", String::as_str);
            if there.is_some_and(|place| place < model.len()) && index >= 0 {
                kit.check(&format!("LINDEX l {index}"), expected);
            }
        }
        kit.check("LLEN l", &model.len().to_string());
        kit.check("LRANGE l 0 -1", &format!("[{}]", model.join(" ")));
        for element in ["e0", "e1"] {
            let all: Vec<String> = model
                .iter()
                .enumerate()
                .rev()
                .filter(|(_, e)| *e == element)
                .map(|(place, _)| place.to_string())
                .collect();
            kit.check(&format!("LPOS l {element} RANK -1 COUNT 0"), &format!("[{}]", all.join(" ")));
        }
    }
}

#[test]
fn a_queue_of_many_elements_stays_in_order() {
    let mut kit = Kit::new();
    for n in 0..20_000 {
        kit.run(&format!("RPUSH l element-{n}"));
    }
    kit.check("LINDEX l 12345", "element-12345");
    kit.check("LINDEX l -12345", "element-7655");
    for n in 0..10_000 {
        kit.check("LPOP l", &format!("element-{n}"));
    }
    for n in 0..10_000 {
        kit.run(&format!("LPUSH l left-{n}"));
    }
    kit.check("LRANGE l 9998 10001", "[left-1 left-0 element-10000 element-10001]");
    kit.check("LTRIM l 9999 10000", "OK");
    kit.check("LRANGE l 0 -1", "[left-0 element-10000]");
}
