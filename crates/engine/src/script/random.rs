//! `math.random` as Redis has it: the 48-bit linear congruential generator of `lrand48`, the same
//! on every machine.

/// The state of the generator.
#[derive(Debug)]
pub(super) struct Random(u64);

const MASK: u64 = (1 << 48) - 1;

impl Default for Random {
    /// The state a fresh Redis starts with.
    fn default() -> Random {
        Random(0x1234_abcd_330e)
    }
}

impl Random {
    /// Starts over from a seed.
    pub(super) fn seed(&mut self, seed: i32) {
        self.0 = (u64::from(seed as u32) << 16) | 0x330e;
    }

    /// The next number, at least 0 and below 1.
    pub(super) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(0x5_deec_e66d).wrapping_add(0xb) & MASK;
        let top = self.0 >> 17;
        (top % i32::MAX as u64) as f64 / f64::from(i32::MAX)
    }
}
