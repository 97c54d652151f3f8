//! The ids and numbers that a host draws: its own id, those of new fleets, numbers of generations, seeds of scrubs. The
//! source is a parameter, so that a test can draw the same ones again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use skytether_common::Generation;
use uuid::Uuid;

/// The source of ids; random by default. Clones share the source.
#[derive(Debug, Clone, Default)]
pub struct Ids(Option<Arc<AtomicU64>>);

impl Ids {
    /// Ids that are unique: drawn at random.
    #[must_use]
    pub fn random() -> Self {
        Self(None)
    }

    /// Ids that follow from `seed`, for tests: the same seed gives the same ids in the same order. Two hosts of one
    /// fleet must not share a seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self(Some(Arc::new(AtomicU64::new(seed))))
    }

    /// An id.
    pub fn id(&self) -> Uuid {
        match &self.0 {
            None => Uuid::new_v4(),
            Some(state) => uuid::Builder::from_random_bytes((u128::from(drawn(state)) << 64 | u128::from(drawn(state))).to_be_bytes()).into_uuid(),
        }
    }

    /// The number of a new generation.
    pub fn generation(&self) -> Generation {
        Generation(self.id().as_u64_pair().1)
    }

    /// A seed.
    pub fn seed(&self) -> u64 {
        self.id().as_u128() as u64
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014). Not a library's: one atomic addition draws it, and the simulated fleets of
/// the tests pin seeds of it.
fn drawn(state: &AtomicU64) -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let x = state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_ids_in_the_same_order_and_no_two_alike() {
        let drawn = |ids: Ids| (0..100).map(|_| ids.id()).collect::<Vec<_>>();
        assert_eq!(drawn(Ids::seeded(7)), drawn(Ids::seeded(7)));
        let all: std::collections::BTreeSet<_> = [Ids::seeded(7), Ids::seeded(8), Ids::random(), Ids::default()].into_iter().flat_map(drawn).collect();
        assert_eq!(all.len(), 400);
        let shared = Ids::seeded(7);
        assert_ne!(shared.clone().generation(), shared.generation());
    }
}
