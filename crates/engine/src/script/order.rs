//! The order in which Lua 5.1 walks through a table.
//!
//! `pairs` promises none, yet what Redis answers for `cjson.encode` or `cmsgpack.pack` of a table
//! with several keys is the same every time, and programs have come to see it. It follows from
//! the hashes of the keys and the size of the table, which are laid out here as 5.1 does. Where
//! two keys want the same place the order in which they were put in decides there; that is not
//! known here, and they go in by name.

use super::wire::{LuaTable, LuaValue};

/// Positions in `table.hash`, in the order of 5.1.
pub(crate) fn of(table: &LuaTable<'_>) -> Vec<u32> {
    let count = table.hash.len();
    let mut by_name: Vec<u32> = (0..u32::try_from(count).unwrap_or(u32::MAX)).collect();
    if count < 2 {
        return by_name;
    }
    let key = |n: &u32| table.hash.get(*n as usize).map(|(key, _)| key);
    by_name.sort_by(|a, b| compare(key(a), key(b)));
    let size = count.next_power_of_two();
    let mut nodes = HashNodes { places: vec![None; size], free: size };
    for n in by_name {
        let wanted = main_position(key(&n), size);
        nodes.insert(n, wanted);
    }
    nodes.places.into_iter().flatten().map(|(n, _)| n).collect()
}

fn compare(a: Option<&LuaValue<'_>>, b: Option<&LuaValue<'_>>) -> std::cmp::Ordering {
    match (a, b) {
        (Some(LuaValue::String(a)), Some(LuaValue::String(b))) => a.cmp(b),
        (Some(LuaValue::Number(a)), Some(LuaValue::Number(b))) => a.total_cmp(b),
        (Some(LuaValue::Number(_)), Some(LuaValue::String(_))) => std::cmp::Ordering::Less,
        (Some(LuaValue::String(_)), Some(LuaValue::Number(_))) => std::cmp::Ordering::Greater,
        _ => std::cmp::Ordering::Equal,
    }
}

struct HashNodes {
    /// The key in each node, with its main position.
    places: Vec<Option<(u32, usize)>>,
    /// Everything from here on is taken.
    free: usize,
}

impl HashNodes {
    fn insert(&mut self, n: u32, wanted: usize) {
        let there = self.places.get(wanted).copied().flatten();
        let place = match there {
            None => wanted,
            Some((other, others_wish)) => {
                let Some(free) = self.take_free() else { return };
                if others_wish == wanted {
                    free
                } else {
                    // The other one only lives there because its own place was taken: it moves.
                    self.put(free, (other, others_wish));
                    wanted
                }
            }
        };
        self.put(place, (n, wanted));
    }

    fn take_free(&mut self) -> Option<usize> {
        while self.free > 0 {
            self.free -= 1;
            if self.places.get(self.free) == Some(&None) {
                return Some(self.free);
            }
        }
        None
    }

    fn put(&mut self, place: usize, what: (u32, usize)) {
        if let Some(slot) = self.places.get_mut(place) {
            *slot = Some(what);
        }
    }
}

fn main_position(key: Option<&LuaValue<'_>>, size: usize) -> usize {
    match key {
        Some(LuaValue::String(s)) => string_hash(s) as usize & (size - 1),
        Some(LuaValue::Number(n)) => {
            if *n == 0.0 {
                return 0;
            }
            let bits = n.to_bits();
            let sum = (bits as u32).wrapping_add((bits >> 32) as u32);
            sum as usize % ((size - 1) | 1)
        }
        Some(LuaValue::Bool(b)) => usize::from(*b) & (size - 1),
        _ => 0,
    }
}

fn string_hash(s: &[u8]) -> u32 {
    s.iter().rev().fold(s.len() as u32, |hash, byte| {
        hash ^ (hash << 5).wrapping_add(hash >> 2).wrapping_add(u32::from(*byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_in_the_order_of_their_hashes() {
        let pair = |key: &'static [u8]| (LuaValue::String(key), LuaValue::Bool(true));
        let table = LuaTable { array: Vec::new(), hash: vec![pair(b"x"), pair(b"y")] };
        assert_eq!(of(&table), [1, 0], "y comes before x");
        let many: Vec<String> = (0..1000).map(|n| format!("key{n}")).collect();
        let hash =
            many.iter().map(|key| (LuaValue::String(key.as_bytes()), LuaValue::Nil)).collect();
        let mut order = of(&LuaTable { array: Vec::new(), hash });
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>(), "each comes once");
    }
}
