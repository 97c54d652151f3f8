//! Helpers of the tests.

#![allow(clippy::unwrap_used, dead_code, reason = "each test file uses some of it")]

use fastrand::Rng;
use skytether_erasure::Code;
use skytether_erasure::groups::{Grouper, PlacedShard, default_window};
use skytether_erasure::map::Shard;

/// A length of a slice, 600 to 1,000 KiB.
pub(crate) fn slice_len(random: &mut Rng) -> u64 {
    random.u64(600 << 10..1000 << 10)
}

/// Groups of shards, data and parities.
pub(crate) type Groups = Vec<(Vec<Shard>, Vec<Shard>)>;

/// The groups that an ingest makes of `slices` slices with lengths `len`, placed on the drives round robin, without
/// checksums.
pub(crate) fn ingested(code: Code, drives: usize, slices: usize, seed: u64, mut len: impl FnMut() -> u64) -> Groups {
    let mut grouper = Grouper::new(code, drives, default_window(code), seed).unwrap();
    let mut formed = Vec::new();
    for at in 0..slices {
        formed.extend(grouper.push(PlacedShard { drive: (at % drives) as u32, id: (at / drives) as u32, len: len() }).unwrap());
    }
    formed.extend(grouper.finish());
    let mut numbers = vec![0; drives];
    let mut groups = Groups::new();
    for group in formed {
        let data = group.data.iter().map(|s| Shard { drive: s.drive, home: s.drive, number: s.id, len: s.len, crc32c: 0 }).collect();
        let parity = group.parity.iter().map(|drive| {
            numbers[*drive as usize] += 1;
            Shard { drive: *drive, home: *drive, number: numbers[*drive as usize] - 1, len: group.parity_len, crc32c: 0 }
        });
        groups.push((data, parity.collect()));
    }
    groups
}
