//! A sorted row of integers in one allocation, each as wide as the widest needs.

/// Integers in ascending order: a byte for their width (2, 4 or 8), then the integers, little
/// endian. As in Redis the width grows and never shrinks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ints {
    bytes: Box<[u8]>,
}

fn width_of(n: i64) -> usize {
    if i16::try_from(n).is_ok() {
        2
    } else if i32::try_from(n).is_ok() {
        4
    } else {
        8
    }
}

fn read(bytes: &[u8]) -> i64 {
    match *bytes {
        [a, b] => i16::from_le_bytes([a, b]).into(),
        [a, b, c, d] => i32::from_le_bytes([a, b, c, d]).into(),
        _ => bytes.try_into().map_or(0, i64::from_le_bytes),
    }
}

impl Ints {
    fn width(&self) -> usize {
        self.bytes.first().copied().unwrap_or(2).into()
    }

    fn body(&self) -> &[u8] {
        self.bytes.get(1..).unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        self.body().len() / self.width()
    }

    pub(crate) fn heap_size(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn get(&self, index: usize) -> Option<i64> {
        let width = self.width();
        self.body().get(index * width..(index + 1) * width).map(read)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = i64> {
        self.body().chunks_exact(self.width()).map(read)
    }

    /// The index of an integer, or the index it would get.
    fn search(&self, n: i64) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.get(middle).unwrap_or(i64::MAX).cmp(&n) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    pub(crate) fn contains(&self, n: i64) -> bool {
        self.search(n).is_ok()
    }

    /// Puts an integer in; true if it is new.
    pub(crate) fn insert(&mut self, n: i64) -> bool {
        let Err(index) = self.search(n) else { return false };
        let (old, new) = (self.width(), self.width().max(width_of(n)));
        if old != new || self.bytes.is_empty() {
            let mut bytes = Vec::with_capacity(1 + (self.len() + 1) * new);
            bytes.push(new as u8);
            self.iter().for_each(|n| push(n, new, &mut bytes));
            self.bytes = bytes.into_boxed_slice();
        }
        let mut bytes = std::mem::take(&mut self.bytes).into_vec();
        bytes.reserve_exact(new);
        let (at, end) = (1 + index * new, bytes.len());
        push(n, new, &mut bytes);
        if let Some(tail) = bytes.get_mut(at..) {
            tail.rotate_right(bytes_moved(at, end, new));
        }
        self.bytes = bytes.into_boxed_slice();
        true
    }

    /// Takes an integer out; true if it was there.
    pub(crate) fn remove(&mut self, n: i64) -> bool {
        let Ok(index) = self.search(n) else { return false };
        let (at, width) = (1 + index * self.width(), self.width());
        let mut bytes = std::mem::take(&mut self.bytes).into_vec();
        bytes.drain(at..at + width);
        self.bytes = bytes.into_boxed_slice();
        true
    }
}

/// Distance by which the tail rotates so that what was pushed at its end comes first; not at all
/// when the tail is only that.
fn bytes_moved(at: usize, end: usize, width: usize) -> usize {
    if at < end { width } else { 0 }
}

fn push(n: i64, width: usize, bytes: &mut Vec<u8>) {
    bytes.extend(n.to_le_bytes().into_iter().take(width));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn integers_stay_sorted_whatever_their_width(
            steps in proptest::collection::vec(
                (any::<bool>(), prop_oneof![-50i64..50, -70_000i64..70_000, any::<i64>()]), 1..200)
        ) {
            let (mut ints, mut model) = (Ints::default(), BTreeSet::new());
            for (insert, n) in steps {
                if insert {
                    prop_assert_eq!(ints.insert(n), model.insert(n));
                } else {
                    let n = model.range(n..).next().copied().unwrap_or(n);
                    prop_assert_eq!(ints.remove(n), model.remove(&n));
                }
                prop_assert_eq!(ints.len(), model.len());
                prop_assert!(ints.iter().eq(model.iter().copied()));
                prop_assert!(ints.contains(n) == model.contains(&n));
            }
        }
    }
}
