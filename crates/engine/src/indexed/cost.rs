//! The cost of reading stripes of a partition on a drive. A scan uses an index if that lowers the cost.
//!
//! A scan reads the slices of its stripes in order, and whole column chunks of them, however few rows are wanted. So an
//! index without the values saves only stripes without a match. The disk seeks across stripes that are left out, which
//! may take longer than reading them. Disk and processor work at the same time, so a scan takes as long as the slower
//! one. A search of the index precedes both.

use std::ops::Range;

use crate::prefilter::LEAST;

/// Slices of a partition that are at most so far apart are read without a seek, as emulated disks have it.
const NEAR: usize = 2;

/// Processor time for a stripe whatever its size, and for a value of a column.
const STRIPE_S: f64 = 100e-6;
const VALUE_S: f64 = 2e-9;

/// With an index, a scan may take at most this share of its time without.
const WORTH: f64 = 0.9;

/// What reading and working take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Seconds until a disk is elsewhere.
    pub seek_s: f64,
    /// Its rate.
    pub bytes_per_s: f64,
    /// Speed of all cores together, relative to one of a usual machine.
    pub speed: f64,
}

impl Default for Costs {
    /// Those of files that are in memory, or nearly so.
    fn default() -> Self {
        Self { seek_s: 20e-6, bytes_per_s: 1e9, speed: 1.0 }
    }
}

impl Costs {
    /// Seconds of the disk for these ascending ranges of a slice, from its beginning on. The disk reads across gaps,
    /// unless a seek is faster.
    pub(super) fn slice(&self, ranges: &[Range<u64>]) -> f64 {
        let (mut seconds, mut at) = (0.0, 0);
        for range in ranges {
            let passed = range.start.saturating_sub(at) as f64 / self.bytes_per_s;
            seconds += passed.min(self.seek_s) + range.end.saturating_sub(range.start) as f64 / self.bytes_per_s;
            at = range.end;
        }
        seconds
    }

    /// Seconds that the disk takes from one slice to another one, `slices` places further on.
    pub(super) fn way(&self, slices: usize) -> f64 {
        if slices > NEAR { self.seek_s } else { 0.0 }
    }
}

/// The largest distance between two stripes that are read without a seek in between. The partition has `groups` groups
/// of columns, and a scan reads groups from `first` to `last`.
pub(super) fn reach(groups: usize, first: usize, last: usize) -> u32 {
    u32::try_from((NEAR + last.saturating_sub(first)) / groups.max(1)).unwrap_or(u32::MAX)
}

/// A stripe as a scan reads it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stripe {
    /// Its number in the partition.
    pub(super) number: u32,
    /// Seconds of the disk, which is where it begins.
    pub(super) disk: f64,
    /// Its rows.
    pub(super) rows: f64,
}

/// What a scan reads without an index.
#[derive(Debug, Clone)]
pub(super) struct ReadCost {
    pub(super) costs: Costs,
    /// The stripes that statistics leave over, ascending.
    pub(super) stripes: Vec<Stripe>,
    /// See [`reach`].
    pub(super) reach: u32,
    /// How many columns it reads.
    pub(super) columns: usize,
    /// How many of these are unpacked before the others, which are not where few rows pass (`prefilter`).
    pub(super) first: Option<usize>,
}

impl ReadCost {
    /// The expected seconds. Each stripe is read with probability `share`, independently of the others; `few` says
    /// whether few rows pass.
    pub(super) fn seconds(&self, share: impl Fn(&Stripe) -> f64, few: bool) -> f64 {
        let (mut disk, mut processor) = (0.0, 0.0);
        // The last two, with their shares. No stripe has another one of this number before it.
        let mut last = [(u32::MAX, 0.0); 2];
        for stripe in &self.stripes {
            let likely = share(stripe);
            let read = |back: u32| {
                let before = last.iter().find(|(number, _)| back <= self.reach && stripe.number.checked_sub(back) == Some(*number));
                before.map_or(0.0, |(_, share)| *share)
            };
            let (next, second) = (read(1), read(2));
            // Either of them is near: the disk reads across the gap.
            let seeks = (1.0 - next) * (1.0 - second);
            let passes = (1.0 - next) * second;
            disk += likely * (stripe.disk + seeks * self.costs.seek_s + passes * stripe.disk.min(self.costs.seek_s));
            processor += likely * self.processor(stripe, few);
            last = [(stripe.number, likely), last[0]];
        }
        disk.max(processor)
    }

    /// Seconds for all of it.
    pub(super) fn all(&self, few: bool) -> f64 {
        self.seconds(|_| 1.0, few)
    }

    /// Processor seconds for a stripe. An index that keeps only some of its rows saves little of that, because late
    /// materialisation skips the others as well.
    fn processor(&self, stripe: &Stripe, few: bool) -> f64 {
        let columns = match self.first {
            Some(first) if few && stripe.rows >= LEAST as f64 => first,
            _ => self.columns,
        };
        (STRIPE_S + VALUE_S * stripe.rows * columns as f64) / self.costs.speed
    }
}

/// Whether a way that takes `seconds` is enough faster than one that takes `without`.
pub(super) fn pays(seconds: f64, without: f64) -> bool {
    seconds < without * WORTH
}
