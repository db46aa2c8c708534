use std::collections::{BTreeSet, HashMap};

use super::*;
use crate::pack::Code;

fn encoded(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    Code::of(name.as_bytes()).push_to(&mut bytes);
    bytes
}

/// Checks everything the tree promises about itself.
fn check(tree: &Tree) {
    let mut entries = 0;
    if tree.height > 0 {
        entries += check_node(tree, tree.root, NONE, tree.height);
    } else {
        entries += tree.leaf(tree.root).unwrap().len();
    }
    assert_eq!(entries, tree.len);
    let mut walked: Vec<(f64, Vec<u8>)> = Vec::new();
    tree.walk(0, false, |elem, score| {
        walked.push((score, elem.to_vec()));
        ControlFlow::Continue(())
    });
    assert_eq!(walked.len(), tree.len);
    assert!(walked.is_sorted());
    let mut back = Vec::new();
    tree.walk(tree.len.saturating_sub(1), true, |elem, score| {
        back.push((score, elem.to_vec()));
        ControlFlow::Continue(())
    });
    back.reverse();
    assert_eq!(walked, back);
}

fn check_node(tree: &Tree, number: u32, parent: u32, level: u32) -> usize {
    let node = tree.node(number).unwrap();
    assert_eq!(node.parent, parent);
    assert!(!node.children.is_empty() && node.children.len() <= NODE_MAX);
    let mut total = 0;
    for child in &node.children {
        let count = if level == 1 {
            let leaf = tree.leaf(child.number).unwrap();
            assert_eq!(leaf.parent, number);
            assert!(leaf.len() > 0 && leaf.len() <= LEAF_MAX);
            assert_eq!(leaf.ends.last().copied(), Some(leaf.members.len() as u32));
            leaf.len()
        } else {
            check_node(tree, child.number, number, level - 1)
        };
        assert_eq!(count, child.count as usize);
        assert_eq!(tree.first_of(child.number, level - 1).unwrap().lowest(), child.lowest);
        total += count;
    }
    total
}

/// Random steps on a tree and on a simple model of it.
fn walk_randomly(seed: u64, steps: usize, names: u32, scores: u32, removals: u32) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut tree = Tree::with_seed(seed);
    let mut model: HashMap<String, f64> = HashMap::new();
    for step in 0..steps {
        let name = match rng.u32(..3) {
            0 => rng.u32(..names).to_string(),
            1 => format!("member-{}", rng.u32(..names)),
            _ => format!("{:08x}-0000-4000-8000-000000000000", rng.u32(..names)),
        };
        let member = encoded(&name);
        let score = f64::from(rng.u32(..scores)) - f64::from(scores / 2);
        if rng.u32(..100) < removals {
            assert_eq!(tree.remove(&member), model.remove(&name));
        } else if let Some(old) = tree.score(&member) {
            assert_eq!(model.insert(name, score), Some(old));
            tree.rescore(&member, score);
        } else {
            assert_eq!(model.insert(name, score), None);
            tree.insert(&member, score);
        }
        if step % 997 == 0 {
            check(&tree);
        }
    }
    check(&tree);
    let mut sorted: Vec<(f64, &[u8])> = model.iter().map(|(n, s)| (*s, n.as_bytes())).collect();
    sorted.sort_by(|a, b| a.partial_cmp(b).unwrap());
    for (rank, (score, name)) in sorted.iter().enumerate() {
        let member = encoded(std::str::from_utf8(name).unwrap());
        assert_eq!(tree.rank(&member), Some((rank, *score)));
    }
    for border in [-1000.0, -3.0, 0.0, 2.5, 1000.0] {
        let expected = sorted.iter().filter(|(score, _)| *score < border).count();
        assert_eq!(tree.count_scores(|score| score < border), expected);
    }
    let mut seen = BTreeSet::new();
    let mut cursor = 0;
    loop {
        cursor = tree.scan(cursor, 10, |elem, _| {
            assert!(seen.insert(elem.to_vec()), "reported twice");
        });
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(seen.len(), model.len());
    while tree.len() > 0 {
        let from = rng.usize(..tree.len());
        let count = rng.usize(..200).min(tree.len() - from);
        sorted.drain(from..from + count);
        tree.remove_range(from, count);
        assert_eq!(tree.len(), sorted.len());
    }
    assert_eq!(tree.height, 0);
    check(&tree);
    tree.insert(&encoded("again"), 1.0);
    check(&tree);
}

#[test]
fn random_steps_agree_with_a_model() {
    walk_randomly(1, 20_000, 100_000, 1_000_000, 20);
    walk_randomly(2, 20_000, 3_000, 10, 30);
    walk_randomly(3, 20_000, 3_000, 1, 45);
    walk_randomly(4, 20_000, 1_000, 500, 60);
}

#[test]
fn entries_in_order_fill_the_leaves() {
    let mut tree = Tree::with_seed(1);
    for n in 0..100_000u32 {
        tree.insert(&encoded(&format!("{n:08x}-0000-4000-8000-000000000000")), f64::from(n));
    }
    check(&tree);
    assert!(tree.leaves.len() <= 100_000 / LEAF_MAX + 2);
    let real: usize = tree
        .leaves
        .iter()
        .map(|leaf| {
            leaf.members.capacity()
                + leaf.scores.capacity() * 8
                + leaf.ends.capacity() * 4
                + leaf.tags.capacity()
        })
        .sum::<usize>()
        + tree.leaves.capacity() * size_of::<Leaf>()
        + tree.index.heap_size();
    assert!(real / 100_000 < 50, "{} bytes per entry", real / 100_000);
    for n in 0..100_000u32 {
        let member = encoded(&format!("{n:08x}-0000-4000-8000-000000000000"));
        assert_eq!(tree.rank(&member), Some((n as usize, f64::from(n))));
    }
    while tree.len() > 0 {
        tree.remove_range(0, 1);
    }
    check(&tree);
}

#[test]
fn long_members_have_leaves_of_their_own() {
    let mut tree = Tree::with_seed(1);
    for n in 0..100u32 {
        let name = format!("{n}{}", "x".repeat(n as usize * 977));
        tree.insert(&encoded(&name), f64::from(n % 7));
    }
    check(&tree);
    for n in 0..100u32 {
        let name = format!("{n}{}", "x".repeat(n as usize * 977));
        assert_eq!(tree.remove(&encoded(&name)), Some(f64::from(n % 7)));
        check(&tree);
    }
}
