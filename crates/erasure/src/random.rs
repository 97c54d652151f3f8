//! Numbers that look random and follow from a seed: SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
//! number generators", 2014).
//!
//! Not a library's: the sequence is a part of the format of digests (docs/internals/formats/code-map.md).

/// A sequence of numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    /// Below `bound`, which is not 0; uneven by less than one in 2^64 / `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// Any order, each as likely as the others.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}

/// SplitMix64's finisher: a bijection.
pub(crate) fn mixed(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
