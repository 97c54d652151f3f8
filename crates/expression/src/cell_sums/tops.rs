//! The largest counts of each cell of a block, as how often each count occurs: that merges by addition, and most cells
//! have few different counts.

use std::sync::Arc;

use skytether_common::Result;

use super::bytes::{Reader, bad, put};

/// Counts up to this one have an array over the cells each; larger ones are rare and listed.
const SMALL: usize = 16;

/// How often each cell has each count.
#[derive(Debug, Clone)]
pub(super) struct Tops {
    /// How many of the largest are added up: ascending.
    pub(super) wanted: Arc<[u32]>,
    /// For each count from 1 to [`SMALL`] how often each cell has it; empty while none does.
    small: Vec<Vec<u32>>,
    /// Larger counts: the cell in the upper half, the count in the lower.
    large: Vec<u64>,
    cells: usize,
}

impl Tops {
    pub(super) fn new(wanted: Arc<[u32]>, cells: usize) -> Self {
        Self { wanted, small: vec![Vec::new(); SMALL], large: Vec::new(), cells }
    }

    /// Bytes of memory.
    pub(super) fn size(&self) -> usize {
        self.small.iter().map(|s| s.capacity() * size_of::<u32>()).sum::<usize>() + self.large.capacity() * size_of::<u64>()
    }

    /// Notes that the cell at place `at` has `count` once more.
    #[inline]
    pub(super) fn add(&mut self, at: u32, count: u32) {
        self.add_times(at, count, 1);
    }

    fn add_times(&mut self, at: u32, count: u32, times: u32) {
        match (count as usize).checked_sub(1).and_then(|level| self.small.get_mut(level)) {
            Some(level) => {
                if level.is_empty() {
                    level.resize(self.cells, 0);
                }
                level[at as usize] += times;
            }
            None if count == 0 => {}
            None => (0..times).for_each(|_| self.large.push(u64::from(at) << 32 | u64::from(count))),
        }
    }

    /// For each cell, its counts in descending order with how often each occurs.
    fn each(&mut self, mut put: impl FnMut(usize, &[(u32, u32)])) {
        self.large.sort_unstable_by(|a, b| b.cmp(a));
        let mut rest = self.large.as_slice();
        let mut counts: Vec<(u32, u32)> = Vec::new();
        // Sorted so, the last cell comes first.
        for cell in (0..self.cells).rev() {
            counts.clear();
            while let Some((&first, more)) = rest.split_first()
                && (first >> 32) as usize == cell
            {
                rest = more;
                match counts.last_mut() {
                    Some((count, times)) if *count == first as u32 => *times += 1,
                    _ => counts.push((first as u32, 1)),
                }
            }
            for (level, of) in self.small.iter().enumerate().rev() {
                if let Some(&times) = of.get(cell)
                    && times > 0
                {
                    counts.push((level as u32 + 1, times));
                }
            }
            put(cell, &counts);
        }
    }

    /// The sums of the largest, for each of `wanted` the numbers of all cells, at the end of `out`.
    pub(super) fn sums(&mut self, out: &mut Vec<f64>) {
        let (cells, wanted) = (self.cells, Arc::clone(&self.wanted));
        let start = out.len();
        out.resize(start + cells * wanted.len(), 0.0);
        self.each(|cell, counts| {
            let (mut taken, mut sum, mut at) = (0u64, 0u64, 0);
            for &(count, times) in counts {
                let (count, mut left) = (u64::from(count), u64::from(times));
                while let Some(&most) = wanted.get(at)
                    && taken + left >= u64::from(most)
                {
                    let some = u64::from(most) - taken;
                    sum += some * count;
                    taken += some;
                    left -= some;
                    out[start + at * cells + cell] = sum as f64;
                    at += 1;
                }
                sum += left * count;
                taken += left;
            }
            for at in at..wanted.len() {
                out[start + at * cells + cell] = sum as f64;
            }
        });
    }

    /// The state, at the end of `out`.
    pub(super) fn write(&mut self, out: &mut Vec<u8>) {
        put(out, self.wanted.len() as u64);
        self.wanted.iter().for_each(|&n| put(out, u64::from(n)));
        self.each(|_, counts| {
            put(out, counts.len() as u64);
            for &(count, times) in counts {
                put(out, u64::from(count));
                put(out, u64::from(times));
            }
        });
    }

    /// Adds a state that [`Self::write`] made.
    pub(super) fn merge(&mut self, from: &mut Reader<'_>) -> Result<()> {
        for cell in (0..self.cells).rev() {
            let mut last = u64::from(u32::MAX) + 1;
            for _ in 0..from.number()? {
                let (count, times) = (from.number()?, from.number()?);
                // More genes than a matrix may have would ask for any amount of memory.
                if count == 0 || count >= last || times == 0 || times > MOST_TIMES {
                    return Err(bad("has counts out of order"));
                }
                last = count;
                let small = count as usize <= SMALL;
                if !small && self.large.len() as u64 + times > MOST_LARGE {
                    return Err(bad("has more large counts than there is room for"));
                }
                let room = small && self.small[count as usize - 1].get(cell).is_some_and(|n| u64::from(*n) + times > u64::from(u32::MAX));
                if room {
                    return Err(bad("has more counts of a cell than genes are possible"));
                }
                self.add_times(cell as u32, count as u32, times as u32);
            }
        }
        Ok(())
    }
}

/// A cell has no count more often than this.
const MOST_TIMES: u64 = 1 << 24;
/// Large counts of a block: 512 MiB.
const MOST_LARGE: u64 = 1 << 26;
