//! Rendezvous hashing: which of several drives a name belongs to.

use uuid::Uuid;

/// The positions of the ids by their hashes with `name`, the highest first: the order of the homes.
#[must_use]
pub fn rendezvous_order<'a>(name: &str, ids: impl Iterator<Item = &'a Uuid>) -> Vec<usize> {
    let mut all: Vec<_> = ids.map(|id| hash64(name.as_bytes(), id.as_bytes())).enumerate().map(|(at, hash)| (std::cmp::Reverse(hash), at)).collect();
    all.sort_unstable();
    all.into_iter().map(|(_, at)| at).collect()
}

/// The highest of a few 64-bit hashes of `name` and each id decides (rendezvous hashing); its position.
#[must_use]
pub fn rendezvous<'a>(name: &str, ids: impl Iterator<Item = &'a Uuid>) -> Option<usize> {
    ids.map(|id| hash64(name.as_bytes(), id.as_bytes())).enumerate().max_by_key(|(at, hash)| (*hash, std::cmp::Reverse(*at))).map(|(at, _)| at)
}

/// FNV-1a over both parts, finished by SplitMix64's mixer: the same on every machine and in every version, which
/// a home drive depends on.
pub(crate) fn hash64(a: &[u8], b: &[u8]) -> u64 {
    let mut h: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in a.iter().chain([0xffu8].iter()).chain(b) {
        h = (h ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}
