//! Helpers for tests that change bytes at random and count panics.

use std::cell::Cell;

/// A generator with a fixed seed.
pub(crate) struct Dice(fastrand::Rng);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Below `below`; 0 where that is 0.
    pub(crate) fn roll(&mut self, below: usize) -> usize {
        self.0.usize(..below.max(1))
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
