//! A HyperLogLog as the string that Redis keeps: a header and 16384 registers of six bits.
//!
//! The header is `HYLL`, the encoding, three unused bytes and the last count in eight bytes, whose
//! highest bit says that it is out of date. Registers follow either all of them (dense) or as runs
//! (sparse): `00nnnnnn` is up to 64 zeros, `01nnnnnn nnnnnnnn` up to 16384 zeros, `1vvvvvnn` up to
//! four registers of the same value from 1 to 32. Bytes are the same as Redis makes them, so that
//! a value can go from one to the other.

const REGISTERS: usize = 16384;
const HEADER: usize = 16;
const DENSE_SIZE: usize = HEADER + REGISTERS * 6 / 8;
const DENSE: u8 = 0;
const SPARSE: u8 = 1;
/// Bits of the hash in which the first one is looked for.
const TAIL_BITS: usize = 50;
/// Greatest value that a run can hold.
const RUN_VALUE_MAX: u8 = 32;
/// Longest run of a value.
const RUN_MAX: usize = 4;
/// Longest run of zeros in one byte.
const ZEROS_MAX: usize = 64;

/// The runs of a sparse sketch do not add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Corrupt;

/// All registers, a byte each.
pub(super) type Registers = [u8; REGISTERS];

/// Every register at zero.
pub(super) const EMPTY: Registers = [0; REGISTERS];

/// A sketch of nothing.
pub(super) fn new() -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes.splice(..4, *b"HYLL");
    bytes.splice(4..5, [SPARSE]);
    push_zeros(&mut bytes, REGISTERS);
    bytes
}

/// Is this a sketch? Runs are looked at later.
pub(super) fn is_sketch(bytes: &[u8]) -> bool {
    bytes.starts_with(b"HYLL")
        && match encoding(bytes) {
            DENSE => bytes.len() == DENSE_SIZE,
            SPARSE => bytes.len() >= HEADER,
            _ => false,
        }
}

/// Is it in runs?
pub(super) fn is_sparse(bytes: &[u8]) -> bool {
    encoding(bytes) == SPARSE
}

fn encoding(bytes: &[u8]) -> u8 {
    bytes.get(4).copied().unwrap_or(u8::MAX)
}

/// The count that was kept, if it still holds.
pub(super) fn kept_count(bytes: &[u8]) -> Option<u64> {
    let kept = bytes.get(8..16)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*kept)).filter(|count| count >> 63 == 0)
}

/// Keeps a count for the next time.
pub(super) fn keep_count(bytes: &mut [u8], count: u64) {
    if let Some(place) = bytes.get_mut(8..16) {
        place.copy_from_slice(&count.to_le_bytes());
    }
}

/// The kept count holds no more.
pub(super) fn forget_count(bytes: &mut [u8]) {
    if let Some(byte) = bytes.get_mut(15) {
        *byte |= 0x80;
    }
}

/// Returns the register of an element, and the position of the first one bit in the rest of its
/// hash.
pub(super) fn place(element: &[u8]) -> (usize, u8) {
    let hash = murmur(element);
    let rest = hash >> 14 | 1 << TAIL_BITS;
    (hash as usize % REGISTERS, rest.trailing_zeros() as u8 + 1)
}

/// 64-bit MurmurHash2 with the seed that Redis uses.
fn murmur(bytes: &[u8]) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    let mut hash = 0xadc8_3b19 ^ (bytes.len() as u64).wrapping_mul(M);
    let (words, tail) = bytes.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word).wrapping_mul(M);
        hash = (hash ^ (word ^ word >> 47).wrapping_mul(M)).wrapping_mul(M);
    }
    if !tail.is_empty() {
        let mut last = [0; 8];
        last.iter_mut().zip(tail).for_each(|(to, from)| *to = *from);
        hash = (hash ^ u64::from_le_bytes(last)).wrapping_mul(M);
    }
    hash = (hash ^ hash >> 47).wrapping_mul(M);
    hash ^ hash >> 47
}

/// Raises a register to `value`; true if it was lower. `sparse_max` is the size in bytes at which
/// runs give way to registers.
pub(super) fn raise(
    bytes: &mut Vec<u8>,
    register: usize,
    value: u8,
    sparse_max: usize,
) -> Result<bool, Corrupt> {
    if !is_sparse(bytes) {
        return Ok(raise_dense(bytes, register, value));
    }
    if value <= RUN_VALUE_MAX
        && let Some(raised) = raise_sparse(bytes, register, value, sparse_max)?
    {
        return Ok(raised);
    }
    make_dense(bytes)?;
    Ok(raise_dense(bytes, register, value))
}

fn raise_dense(bytes: &mut [u8], register: usize, value: u8) -> bool {
    let (byte, shift) = (HEADER + register * 6 / 8, register * 6 % 8);
    let at = |n: usize| u16::from(bytes.get(n).copied().unwrap_or(0));
    let pair = at(byte) | at(byte + 1) << 8;
    if (pair >> shift & 63) as u8 >= value {
        return false;
    }
    let pair = pair & !(63 << shift) | u16::from(value) << shift;
    for (n, byte) in [(byte, pair as u8), (byte + 1, (pair >> 8) as u8)] {
        if let Some(place) = bytes.get_mut(n) {
            *place = byte;
        }
    }
    true
}

/// A run of a sparse sketch.
#[derive(Debug, Clone, Copy)]
struct RegisterRun {
    value: u8,
    length: usize,
    /// Size in bytes.
    size: usize,
}

impl RegisterRun {
    /// The run at `at`; none at the end.
    fn read(bytes: &[u8], at: usize) -> Option<RegisterRun> {
        let first = *bytes.get(at)?;
        Some(match first >> 6 {
            0 => RegisterRun { value: 0, length: usize::from(first & 63) + 1, size: 1 },
            1 => {
                let low = usize::from(bytes.get(at + 1).copied().unwrap_or(0));
                RegisterRun { value: 0, length: (usize::from(first & 63) << 8 | low) + 1, size: 2 }
            }
            _ => RegisterRun {
                value: (first >> 2 & 31) + 1,
                length: usize::from(first & 3) + 1,
                size: 1,
            },
        })
    }
}

/// Every run with where it stands.
fn runs(bytes: &[u8]) -> impl Iterator<Item = (usize, RegisterRun)> {
    let mut at = HEADER;
    std::iter::from_fn(move || {
        let run = RegisterRun::read(bytes, at)?;
        at += run.size;
        Some((at - run.size, run))
    })
}

fn push_run(out: &mut Vec<u8>, value: u8, length: usize) {
    match (value, length) {
        (_, 0) => {}
        (0, length) => push_zeros(out, length),
        (value, length) => out.push(0x80 | (value - 1) << 2 | (length - 1) as u8),
    }
}

fn push_zeros(out: &mut Vec<u8>, length: usize) {
    let n = length - 1;
    if length <= ZEROS_MAX {
        out.push(n as u8);
    } else {
        out.extend([0x40 | (n >> 8) as u8, n as u8]);
    }
}

/// As [`raise`], for runs. None if the result would be too long for runs.
fn raise_sparse(
    bytes: &mut Vec<u8>,
    register: usize,
    value: u8,
    sparse_max: usize,
) -> Result<Option<bool>, Corrupt> {
    let (mut first, mut before, mut found) = (0, None, None);
    for (at, run) in runs(bytes) {
        if register < first + run.length {
            found = Some((at, run));
            break;
        }
        first += run.length;
        before = Some(at);
    }
    let Some((at, run)) = found else { return Err(Corrupt) };
    if run.value >= value {
        return Ok(Some(false));
    }
    let mut split = Vec::with_capacity(5);
    push_run(&mut split, run.value, register - first);
    push_run(&mut split, value, 1);
    push_run(&mut split, run.value, first + run.length - 1 - register);
    let end = (at + run.size).min(bytes.len());
    if split.len() > end - at && bytes.len() + split.len() - (end - at) > sparse_max {
        return Ok(None);
    }
    bytes.splice(at..end, split);
    join_runs(bytes, before.unwrap_or(HEADER));
    forget_count(bytes);
    Ok(Some(true))
}

/// Joins equal neighbours among the five runs from `at` on.
fn join_runs(bytes: &mut Vec<u8>, mut at: usize) {
    for _ in 0..5 {
        let Some(run) = RegisterRun::read(bytes, at) else { return };
        if run.value > 0
            && let Some(next) = RegisterRun::read(bytes, at + 1)
            && next.value == run.value
            && run.length + next.length <= RUN_MAX
        {
            let mut joined = Vec::with_capacity(1);
            push_run(&mut joined, run.value, run.length + next.length);
            bytes.splice(at..at + 2, joined);
            continue;
        }
        at += run.size;
    }
}

/// Writes a sparse sketch out in registers.
pub(super) fn make_dense(bytes: &mut Vec<u8>) -> Result<(), Corrupt> {
    if !is_sparse(bytes) {
        return Ok(());
    }
    let mut registers = EMPTY;
    merge(bytes, &mut registers)?;
    bytes.truncate(HEADER);
    bytes.resize(DENSE_SIZE, 0);
    bytes.splice(4..5, [DENSE]);
    for (register, value) in registers.into_iter().enumerate() {
        if value > 0 {
            raise_dense(bytes, register, value);
        }
    }
    Ok(())
}

/// Raises each register to what it is in the sketch.
pub(super) fn merge(bytes: &[u8], into: &mut Registers) -> Result<(), Corrupt> {
    if !is_sparse(bytes) {
        let packed = bytes.get(HEADER..).unwrap_or_default();
        for (four, three) in into.as_chunks_mut::<4>().0.iter_mut().zip(packed.as_chunks::<3>().0) {
            let word = u32::from_le_bytes([three[0], three[1], three[2], 0]);
            for (n, register) in four.iter_mut().enumerate() {
                *register = (*register).max((word >> (6 * n) & 63) as u8);
            }
        }
        return Ok(());
    }
    let mut first = 0;
    for (_, run) in runs(bytes) {
        let covered = into.get_mut(first..first + run.length).ok_or(Corrupt)?;
        covered.iter_mut().for_each(|register| *register = (*register).max(run.value));
        first += run.length;
    }
    if first == REGISTERS { Ok(()) } else { Err(Corrupt) }
}

/// Estimates the number of distinct elements added.
pub(super) fn count(bytes: &[u8]) -> Result<u64, Corrupt> {
    let mut registers = EMPTY;
    merge(bytes, &mut registers)?;
    Ok(estimate(&registers))
}

/// The estimate of Ertl, "New cardinality estimation algorithms for HyperLogLog sketches", in the
/// order of operations that Redis has, so that the last digit is the same too.
pub(super) fn estimate(registers: &Registers) -> u64 {
    let mut histogram = [0u32; 64];
    for register in registers {
        if let Some(count) = histogram.get_mut(usize::from(register & 63)) {
            *count += 1;
        }
    }
    let m = REGISTERS as f64;
    let of = |value: usize| f64::from(histogram.get(value).copied().unwrap_or(0));
    let mut z = m * tau((m - of(TAIL_BITS + 1)) / m);
    for value in (1..=TAIL_BITS).rev() {
        z += of(value);
        z *= 0.5;
    }
    z += m * sigma(of(0) / m);
    // Half of the inverse of the natural logarithm of two.
    const ALPHA: f64 = 0.721_347_520_444_481_7;
    (ALPHA * m * m / z).round() as u64
}

fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if before == z {
            return z;
        }
    }
}

fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if before == z {
            return z / 3.0;
        }
    }
}

/// The runs of a sparse sketch in words: `z` and `Z` for zeros, `v` for values.
pub(super) fn describe(bytes: &[u8]) -> String {
    let words = runs(bytes).map(|(_, run)| match (run.value, run.size) {
        (0, 1) => format!("z:{}", run.length),
        (0, _) => format!("Z:{}", run.length),
        (value, _) => format!("v:{value},{}", run.length),
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_registers_agree_and_the_error_is_small() {
        let (mut sparse, mut dense) = (new(), new());
        make_dense(&mut dense).unwrap();
        let mut next = 1u64;
        for n in 1..=100_000u64 {
            let (register, value) = place(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
            let raised = raise(&mut sparse, register, value, 3000).unwrap();
            assert_eq!(raise(&mut dense, register, value, 3000).unwrap(), raised);
            if n == next {
                let count = count(&sparse).unwrap();
                assert_eq!(count, self::count(&dense).unwrap());
                assert!((count as f64 - n as f64).abs() <= 1.0 + n as f64 * 0.05, "{count} of {n}");
                next *= 10;
            }
        }
        assert!(!is_sparse(&sparse));
    }

    #[test]
    fn runs_that_do_not_add_up_are_refused() {
        let mut bytes = new();
        bytes.push(0);
        assert_eq!(count(&bytes), Err(Corrupt));
        bytes.truncate(HEADER);
        assert_eq!(raise(&mut bytes, 3, 3, 3000), Err(Corrupt));
        assert_eq!(make_dense(&mut bytes), Err(Corrupt));
    }
}
