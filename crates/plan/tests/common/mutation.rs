//! What tests need that change bytes at random and count panics.

use std::cell::Cell;

/// A small generator with a fixed seed (SplitMix64).
pub(crate) struct Dice(pub u64);

impl Dice {
    pub(crate) fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % below.max(1) as u64) as usize
    }
}

thread_local!(static PANICS: Cell<usize> = const { Cell::new(0) });

/// From now on counts panics, also those that are caught.
pub(crate) fn count_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.with(|p| p.set(p.get() + 1));
        before(info);
    }));
}

/// How many panics this thread has had.
pub(crate) fn panics() -> usize {
    PANICS.with(Cell::get)
}
