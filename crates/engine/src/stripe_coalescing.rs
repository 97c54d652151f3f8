//! Runs: small stripes that follow one another are read, decoded and passed on as one.
//!
//! A stripe has a fixed cost: a thread that reads it, a lane that asks for it, messages about it, and a batch that
//! passes all operators. That is some 100 microseconds, and 15 times as much on a slow device. The rows of a slice of a
//! megabyte take longer than that, those of a slice of ten kilobytes do not.
//!
//! In messages to others (surveys, orders) a run has one number: that of its first stripe, with the number of further
//! stripes in the upper eight bits. So a single stripe keeps its own number, as if there were no runs. A partition with
//! more stripes than fit below these bits has no runs.

use std::ops::Range;

/// Bytes, as they are stored, up to which stripes are joined.
const JOINED: u64 = 128 << 10;

/// Stripes of a run at most.
const MOST: u32 = 1 << (u32::BITS - BITS);

/// Bits of a number that say which stripe is the first.
const BITS: u32 = 24;

/// Stripes `first` to `first + count - 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    first: u32,
    count: u32,
}

impl Run {
    /// A stripe by itself.
    pub(crate) fn single(stripe: u32) -> Self {
        Self { first: stripe, count: 1 }
    }

    /// The run with this [`Self::number`], in a partition of `stripes` stripes.
    pub(crate) fn of(number: u32, stripes: usize) -> Self {
        if stripes > 1 << BITS { Self::single(number) } else { Self { first: number & ((1 << BITS) - 1), count: (number >> BITS) + 1 } }
    }

    /// Its number.
    pub(crate) fn number(self) -> u32 {
        self.first | (self.count - 1) << BITS
    }

    /// Its stripes.
    pub(crate) fn stripes(self) -> Range<u32> {
        self.first..self.first.saturating_add(self.count)
    }

    /// How many stripes it has.
    pub(crate) fn len(self) -> usize {
        self.count as usize
    }
}

/// The ascending `stripes` of a partition that has `of` of them, each with its bytes as they are stored, as runs; not
/// so large that there would be fewer than `least`.
pub(crate) fn join(stripes: &[(u32, u64)], of: usize, least: usize) -> Vec<Run> {
    let total: u64 = stripes.iter().map(|(_, bytes)| bytes).sum();
    let most = if of > 1 << BITS { 0 } else { JOINED.min(total / least.max(1) as u64) };
    let mut runs: Vec<Run> = Vec::new();
    let mut held = 0;
    for &(stripe, bytes) in stripes {
        match runs.last_mut() {
            Some(last) if last.stripes().end == stripe && last.count < MOST && held + bytes <= most => {
                last.count += 1;
                held += bytes;
            }
            _ => {
                runs.push(Run::single(stripe));
                held = bytes;
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(runs: &[Run]) -> Vec<usize> {
        runs.iter().map(|run| run.len()).collect()
    }

    #[test]
    fn small_stripes_are_joined_and_large_ones_are_not() {
        let all = |bytes: u64, n: u32| (0..n).map(|stripe| (stripe, bytes)).collect::<Vec<_>>();
        assert_eq!(lengths(&join(&all(1 << 20, 3), 3, 1)), [1, 1, 1]);
        assert_eq!(lengths(&join(&all(JOINED / 2 + 1, 3), 3, 1)), [1, 1, 1]);
        assert_eq!(lengths(&join(&all(JOINED / 2, 5), 5, 1)), [2, 2, 1]);
        let runs = join(&all(10, 1000), 1000, 1);
        assert_eq!(lengths(&runs), [256, 256, 256, 232], "no more than a number can say");
        assert_eq!(runs.iter().flat_map(|run| run.stripes()).collect::<Vec<_>>(), (0..1000).collect::<Vec<_>>());
        assert_eq!(join(&[], 0, 1), []);
        assert_eq!(lengths(&join(&all(0, 300), 300, 32)), [256, 44], "rows without bytes");
    }

    #[test]
    fn runs_have_no_gaps_and_leave_something_to_decide() {
        let some: Vec<(u32, u64)> = [0, 1, 2, 5, 6, 9].into_iter().map(|stripe| (stripe, 10)).collect();
        assert_eq!(lengths(&join(&some, 10, 1)), [3, 2, 1]);
        let many: Vec<(u32, u64)> = (0..320).map(|stripe| (stripe, 1000)).collect();
        assert_eq!(lengths(&join(&many, 320, 32)), [10; 32]);
        let few: Vec<(u32, u64)> = (0..30).map(|stripe| (stripe, 1000)).collect();
        assert_eq!(lengths(&join(&few, 30, 32)), [1; 30]);
    }

    #[test]
    fn numbers_of_runs_are_those_of_single_stripes_and_read_back() {
        for (first, count) in [(0, 1), (7, 1), (7, 2), ((1 << 24) - 1, 256), (123_456, 64)] {
            let run = Run { first, count };
            assert_eq!(Run::of(run.number(), 1 << 24), run);
            assert!(count > 1 || run.number() == first);
        }
        // Where numbers have no room for more, all of them are single stripes.
        let beyond = (1 << 24) + 5;
        assert_eq!(Run::of(beyond, (1 << 24) + 9), Run::single(beyond));
        assert_eq!(lengths(&join(&[(beyond, 1), (beyond + 1, 1)], (1 << 24) + 9, 1)), [1, 1]);
        assert_eq!(Run::single(beyond).number(), beyond);
        // Whatever the number, there is a run, which the partition may not have.
        assert_eq!(Run::of(u32::MAX, 3).stripes().len(), 256);
    }
}
