use std::collections::{HashMap, VecDeque};

use super::*;
use crate::wire::{
    CachedAnswer, TtlBounds,
    testing::{addresses, question},
};

const NOW: Millis = Millis(1_000_000_000);
const GRACE: Duration = Duration::from_secs(3_600);

fn answer(name: &str, ttl: u32) -> StoredAnswer {
    let asked = question(name, 1);
    let message = addresses(&asked, ttl, 1);
    let bounds = TtlBounds::default();
    let answer = CachedAnswer::normalise(&message, &asked, AnswerKind::Plain, bounds).unwrap();
    StoredAnswer::new(Arc::new(answer), NOW)
}

fn key(name: &str) -> L0Key {
    L0Key::of_question(&question(name, 1), AnswerKind::Plain)
}

fn put(l0: &L0, name: &str, ttl: u32) -> Arc<L0Entry> {
    l0.insert(&key(name), answer(name, ttl), GRACE, l0.generation())
}

#[test]
fn an_entry_is_found_until_its_grace_period_ends() {
    let l0 = L0::new(1 << 20);
    put(&l0, "a.test", 60);
    let at = |seconds: u64| l0.get(&key("a.test"), NOW + Duration::from_secs(seconds));
    assert_eq!(at(59).unwrap().stored.remaining(NOW + Duration::from_secs(59)), 1);
    assert!(at(119).is_some(), "stale");
    assert!(at(120).is_none(), "the grace period is no longer than the TTL");
    assert_eq!(l0.sweep(NOW + Duration::from_secs(120), |_| {}), 1);
    assert_eq!(l0.stats().entries, 0);
}

#[test]
fn a_query_finds_its_name_however_it_is_spelled_and_only_its_kind() {
    let l0 = L0::new(1 << 20);
    put(&l0, "www.example.test", 60);
    let packet = crate::wire::testing::query("WwW.eXample.TEST", 1);
    let query = WireQuery::parse(&packet).unwrap();
    let found = l0.get(&L0Key::of_query(&query), NOW).unwrap();
    assert_eq!(found.question(), Some((question("www.example.test", 1), AnswerKind::Plain)));
    for kind in [AnswerKind::Signed, AnswerKind::Unchecked, AnswerKind::SignedUnchecked] {
        let other = L0Key::of_question(&question("www.example.test", 1), kind);
        assert!(l0.get(&other, NOW).is_none(), "{kind:?}");
    }
    let other = L0Key::of_question(&question("www.example.test", 28), AnswerKind::Plain);
    assert!(l0.get(&other, NOW).is_none());
}

#[test]
fn front_tables_serve_nothing_that_was_replaced_removed_or_cleared() {
    let l0 = L0::new(1 << 20);
    let mut front = FrontTable::new(64);
    let found = |front: &mut FrontTable| {
        front.get(&l0, &key("a.test"), NOW).map(|entry| entry.stored.stored_ttl)
    };
    put(&l0, "a.test", 60);
    assert_eq!(found(&mut front), Some(60));
    put(&l0, "a.test", 90);
    assert_eq!(found(&mut front), Some(90), "replaced");
    assert!(l0.remove(&key("a.test")));
    assert_eq!(found(&mut front), None, "removed");
    put(&l0, "a.test", 60);
    assert_eq!(found(&mut front), Some(60));
    let before = l0.generation();
    l0.clear();
    assert_eq!(found(&mut front), None, "cleared");
    // An answer that was on its way when the cache was cleared stays out.
    l0.insert(&key("a.test"), answer("a.test", 60), GRACE, before);
    assert_eq!(found(&mut front), None);
}

#[test]
fn the_bytes_stay_below_the_bound_and_what_is_read_stays() {
    let max_bytes = 32 * 20 * 400;
    let l0 = L0::new(max_bytes);
    put(&l0, "hot.test", 60);
    for number in 0..5_000 {
        put(&l0, &format!("n{number}.test"), 60);
        assert!(l0.get(&key("hot.test"), NOW).is_some(), "after {number}");
        let stats = l0.stats();
        assert!(stats.bytes <= max_bytes);
    }
    let stats = l0.stats();
    assert!(stats.evictions > 4_000 && stats.entries > 100, "{stats:?}");
    assert_eq!(stats.entries as u64 + stats.evictions, 5_001);
}

#[test]
fn an_answer_larger_than_a_share_is_not_kept() {
    let l0 = L0::new(32 * 100);
    put(&l0, "a.test", 60);
    assert_eq!(l0.stats().entries, 0);
}

/// SIEVE as its paper writes it, on names.
#[derive(Default)]
struct Model {
    /// Newest first; true if visited.
    list: VecDeque<(u32, bool)>,
    /// The name the hand is at; searching goes from old to new.
    hand: Option<u32>,
}

impl Model {
    fn insert(&mut self, name: u32, max: usize) {
        let replaced = self.list.iter().find(|(other, _)| *other == name);
        let visited = replaced.is_some_and(|(_, visited)| *visited);
        self.remove(name);
        while self.list.len() >= max {
            let mut at = self
                .hand
                .and_then(|hand| self.list.iter().position(|(name, _)| *name == hand))
                .unwrap_or(self.list.len() - 1);
            while self.list[at].1 {
                self.list[at].1 = false;
                at = at.checked_sub(1).unwrap_or(self.list.len() - 1);
            }
            self.hand = Some(self.list[at].0);
            self.remove(self.list[at].0);
        }
        self.list.push_front((name, visited));
    }

    fn remove(&mut self, name: u32) {
        let Some(at) = self.list.iter().position(|(other, _)| *other == name) else { return };
        if self.hand == Some(name) {
            self.hand = at.checked_sub(1).map(|newer| self.list[newer].0);
        }
        self.list.remove(at);
    }

    fn get(&mut self, name: u32) -> bool {
        match self.list.iter_mut().find(|(other, _)| *other == name) {
            Some((_, visited)) => {
                *visited = true;
                true
            }
            None => false,
        }
    }
}

#[test]
fn a_shard_evicts_as_the_model_of_sieve() {
    let mut random = fastrand::Rng::with_seed(0x51e7e);
    let mut shard = Shard::default();
    let mut model = Model::default();
    let mut entries = HashMap::new();
    let entry = |name: u32| {
        // All of one size, so that bytes are a number of entries.
        let key: Box<[u8]> = name.to_be_bytes().into();
        L0Entry {
            note: EntryNote::default(),
            summary: "".into(),
            passes: [AtomicU64::new(0), AtomicU64::new(0)],
            key,
            hash: u64::from(name % 7),
            generation: 0,
            hard_expiry: i64::MAX,
            stored: answer("a.test", 60),
            hits: AtomicU32::new(0),
            past_hits: AtomicU32::new(0),
            refreshing: AtomicBool::new(false),
            visited: AtomicBool::new(false),
            retired: AtomicBool::new(false),
        }
    };
    let size = entry(0).size_bytes();
    for _ in 0..20_000 {
        let name = random.u32(..60);
        let (hash, key) = (u64::from(name % 7), name.to_be_bytes());
        match random.u8(..10) {
            0 => {
                shard.remove(hash, &key);
                model.remove(name);
            }
            1..=4 => {
                let entry = Arc::new(entry(name));
                entries.insert(name, Arc::clone(&entry));
                shard.insert(entry, 20 * size);
                model.insert(name, 20);
            }
            _ => {
                let found = shard.find(hash, &key).inspect(|entry| entry.visit()).is_some();
                assert_eq!(found, model.get(name));
            }
        }
        assert_eq!(shard.bytes, size * model.list.len());
        assert_eq!(shard.table.len(), model.list.len());
    }
    for (name, entry) in entries {
        let is_kept = model.list.iter().any(|(other, _)| *other == name);
        assert_eq!(!entry.retired.load(Ordering::Relaxed), is_kept);
    }
}

#[test]
fn threads_may_read_write_and_clear_at_once() {
    let l0 = L0::new(200_000);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let l0 = &l0;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                let mut front = FrontTable::new(16);
                for _ in 0..3_000 {
                    let number = random.u32(..300);
                    let name = format!("n{number}.test");
                    match random.u8(..20) {
                        0 => _ = l0.remove(&key(&name)),
                        1 if number == 0 => l0.clear(),
                        2..=8 => _ = put(l0, &name, 60),
                        _ => {
                            if let Some(entry) = front.get(l0, &key(&name), NOW) {
                                assert_eq!(entry.question().unwrap().0.name.to_string(), name);
                            }
                        }
                    }
                }
            });
        }
    });
    assert!(l0.stats().bytes <= 200_000);
}
