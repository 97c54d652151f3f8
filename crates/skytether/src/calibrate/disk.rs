//! Measures a drive's disk: sequential and scattered reads.

use std::time::Instant;

use bytes::Bytes;
use skytether_common::names::Generation;
use skytether_common::{DatasetName, Key, PartitionName, Result};
use skytether_scheduler::profile::Profile;
use skytether_store::{Expect, Op, SliceStore};

/// The number of slices, and their length in bytes.
const SLICES: u32 = 32;
const SLICE: usize = 1 << 20;

/// Sequential reads stop after this many seconds, but not before the third slice.
const SECONDS: f64 = 0.5;

/// The number of scattered reads, and the bytes of each.
const JUMPS: u32 = 24;
const PIECE: u64 = 4 << 10;

/// The measured figures.
#[derive(Debug, Clone, Copy)]
pub(super) struct Disk {
    pub(super) bytes_per_s: f64,
    pub(super) seek_s: f64,
}

/// Writes a partition into `store` and reads it. Blocks.
pub(super) fn measure(store: &dyn SliceStore, profile: &Profile) -> Result<Disk> {
    let partition = PartitionName { dataset: DatasetName::new("calibration", "disk")?, generation: Generation(1), table: "data".into(), slot: 0 };
    let keys = (0..SLICES).map(|n| partition.slice_key(n)).collect::<Result<Vec<Key>>>()?;
    // Values differ, so that the store can't recognise equal bytes.
    let value = |n: u32| Bytes::from((0..SLICE).map(|i| (i as u32).wrapping_mul(n * 2 + 1).to_le_bytes()[1]).collect::<Vec<u8>>());
    for (n, key) in (0..).zip(&keys) {
        store.apply(vec![Op::Put { key: key.clone(), value: value(n), expect: Expect::Any }])?;
    }
    // Moves the emulated head to the beginning.
    store.get(&keys[0])?;
    let (start, mut bytes) = (Instant::now(), 0);
    for (n, key) in keys.iter().enumerate().skip(1) {
        bytes += store.get(key)?.len();
        if n >= 2 && start.elapsed().as_secs_f64() > SECONDS {
            break;
        }
    }
    let bytes_per_s = bytes as f64 / start.elapsed().as_secs_f64();
    let start = Instant::now();
    let piece = 0..PIECE;
    for jump in 0..JUMPS {
        // 13 has no factor in common with the number of slices, so the reads reach all of them.
        store.get_ranges_unverified(&keys[(jump * 13 % SLICES) as usize], std::slice::from_ref(&piece))?;
    }
    let each = start.elapsed().as_secs_f64() / f64::from(JUMPS);
    Ok(Disk { bytes_per_s, seek_s: (each - PIECE as f64 / profile.disk_bytes_per_s).max(0.0) })
}
