//! The grouper: forms code groups of slices in their order of arrival during an ingest, in bounded memory.
//!
//! A group has at most K data shards on as many drives, and M parity shards on M further drives. If any M drives are
//! lost, a group loses at most M shards. The drives of data are given; parities go where there is least parity so far.
//! A parity shard is as long as the group's longest data shard, so slices of similar length are grouped. Slices wait in
//! a *window*, and when that is full, the group that wastes least is closed. Slices of equal length do not wait.
//!
//! With exactly K + M drives, a drive's parities are those of all groups in which it has no data. Its bytes of data and
//! parity together are then about those of the others. Its share of parity is off the mean by as much as its data falls
//! short of it. With more drives, parities are balanced by themselves, over some thousand slices to within 5% of the
//! mean.
//!
//! Waste is the excess of parities over M/K of their group's data, given here as a share of that data's bytes. The
//! following values hold for lengths that are uniformly distributed from 0.6 to 1 MiB, with a window of
//! [`default_window`].
//!
//! | drives | 4+1 | 4+2 | 8+3 |
//! |---|---|---|---|
//! | K + M | 0.2% | 0.4% | 0.5% |
//! | 2 (K + M) | 0.1% | 0.3% | 0.3% |

use skytether_common::{Error, Result};

use crate::code::{MAX_SHARD, parity_len};
use crate::random::mixed;
use crate::scheme::Code;

/// A data shard and its drive. `I` is its owner's name for it, a slice's number for example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedShard<I> {
    /// Which of the drives.
    pub drive: u32,
    /// Its owner's name for it.
    pub id: I,
    /// Bytes.
    pub len: u64,
}

/// A group: its data shards in the order in which they are coded, longest first, and where its parities go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group<I> {
    /// 1 to K shards, each on another drive.
    pub data: Vec<PlacedShard<I>>,
    /// M drives without a data shard of the group.
    pub parity: Vec<u32>,
    /// Bytes of each parity shard.
    pub parity_len: u64,
}

impl<I> Group<I> {
    /// Bytes of the data shards.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.data.iter().map(|shard| shard.len).sum()
    }
}

/// The default for the most slices that wait: 16 times K (the caller holds as many slices).
#[must_use]
pub fn default_window(code: Code) -> usize {
    16 * code.data()
}

/// How much waste a group may have more than another, per shard and per slice that came since the shard did, as a share
/// of the group's longest: so that odd ones don't fill the window for ever.
const AGE: f64 = 1e-4;

#[derive(Debug)]
struct Waiting<I> {
    placed: PlacedShard<I>,
    /// How many came before.
    since: u64,
}

/// Forms groups.
#[derive(Debug)]
pub struct Grouper<I> {
    code: Code,
    seed: u64,
    window: usize,
    /// Waiting slices by length, shortest first.
    waiting: Vec<Waiting<I>>,
    came: u64,
    /// How many wait, drive by drive.
    counts: Vec<u32>,
    /// Bytes of parity, drive by drive.
    parity: Vec<u64>,
    /// Per drive, in which look it was last met.
    met: Vec<u64>,
    looks: u64,
}

impl<I> Grouper<I> {
    /// A grouper over drives `0..drives`, with at most `window` slices that wait (at least K do). `seed` gives the
    /// drives of the first parities, so that many small data sets use different ones.
    ///
    /// # Errors
    /// Invalid where there are fewer than K + M drives.
    pub fn new(code: Code, drives: usize, window: usize, seed: u64) -> Result<Self> {
        if drives < code.shards() || u32::try_from(drives).is_err() {
            return Err(Error::invalid(format!("ec:{code} needs {} drives or more, but there are {drives}", code.shards())));
        }
        let window = window.max(code.data());
        Ok(Self { code, seed, window, waiting: Vec::new(), came: 0, counts: vec![0; drives], parity: vec![0; drives], met: vec![0; drives], looks: 0 })
    }

    /// A slice that was placed. The group, if one is complete now; whose shards no longer wait.
    ///
    /// # Errors
    /// Invalid where there is no such drive, or the slice has more than [`MAX_SHARD`] bytes.
    pub fn push(&mut self, placed: PlacedShard<I>) -> Result<Option<Group<I>>> {
        let drives = self.counts.len();
        if placed.len > MAX_SHARD {
            return Err(Error::invalid(format!("a slice has {} bytes, but {MAX_SHARD} are the most", placed.len)));
        }
        let Some(count) = self.counts.get_mut(placed.drive as usize) else {
            return Err(Error::invalid(format!("drive {} of {drives} has a slice", placed.drive)));
        };
        *count += 1;
        let padded = self.padded(placed.len);
        let at = self.waiting.partition_point(|other| other.placed.len <= placed.len);
        self.waiting.insert(at, Waiting { placed, since: self.came });
        self.came += 1;
        if let Some(members) = self.equals(padded) {
            return Ok(Some(self.form(members)));
        }
        if self.waiting.len() < self.window {
            return Ok(None);
        }
        let members = self.best();
        Ok(Some(self.form(members)))
    }

    /// Groups of all that waits, as few as possible; those that there are not enough drives or slices for have
    /// fewer than K data shards.
    pub fn finish(&mut self) -> Vec<Group<I>> {
        let mut groups = Vec::new();
        while !self.waiting.is_empty() {
            // The number of groups that the waiting slices make; a drive with as many slices must be in each group.
            let fewest = self.waiting.len().div_ceil(self.code.data());
            let most = self.counts.iter().map(|count| *count as usize).max().unwrap_or(0).max(fewest);
            let members = self.down_from(self.waiting.len() - 1, most).unwrap_or_else(|| vec![self.waiting.len() - 1]);
            groups.push(self.form(members));
        }
        groups
    }

    /// Slices that wait, whose bytes the caller must hold.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Bytes of parity so far, drive by drive.
    #[must_use]
    pub fn parity_bytes(&self) -> &[u64] {
        &self.parity
    }

    fn padded(&self, len: u64) -> u64 {
        usize::try_from(len).map_or(len, |len| parity_len(self.code, len) as u64)
    }

    fn look(&mut self) -> u64 {
        self.looks += 1;
        self.looks
    }

    /// A full group of slices that need parities of exactly this length: of drives with most that wait, and of each the
    /// one that has waited for longest.
    fn equals(&mut self, padded: u64) -> Option<Vec<usize>> {
        let from = self.waiting.partition_point(|other| self.padded(other.placed.len) < padded);
        let to = self.waiting.partition_point(|other| self.padded(other.placed.len) <= padded);
        if to - from < self.code.data() {
            return None;
        }
        let mut all: Vec<usize> = (from..to).collect();
        all.sort_by_key(|at| self.waiting[*at].since);
        let look = self.look();
        all.retain(|at| std::mem::replace(&mut self.met[self.waiting[*at].placed.drive as usize], look) != look);
        if all.len() < self.code.data() {
            return None;
        }
        all.sort_by_key(|at| std::cmp::Reverse(self.counts[self.waiting[*at].placed.drive as usize]));
        all.truncate(self.code.data());
        Some(all)
    }

    /// The group to form next: full if that is possible, and of those the one that wastes least.
    fn best(&mut self) -> Vec<usize> {
        // A drive with this many slices would soon fill the window.
        let urgent = (self.window * 5 / 4).div_ceil(self.code.data()).max(2);
        // Places that stay empty waste a whole shard each.
        let mut best: Option<(usize, f64, Vec<usize>)> = None;
        for top in (0..self.waiting.len()).rev() {
            let Some(members) = self.down_from(top, urgent) else { continue };
            let longest = self.waiting[top].placed.len as f64;
            let cost = |at: &usize| longest - self.waiting[*at].placed.len as f64 - AGE * longest * (self.came - self.waiting[*at].since) as f64;
            let (empty, cost) = (self.code.data() - members.len(), members.iter().map(cost).sum::<f64>());
            if best.as_ref().is_none_or(|(other, least, _)| (empty, cost) < (*other, *least)) {
                best = Some((empty, cost, members));
            }
        }
        best.map_or_else(|| vec![self.waiting.len() - 1], |(_, _, members)| members)
    }

    /// The slice at `top` and those that are next in length below it, each on another drive, with all drives among them
    /// on which `urgent` slices or more wait; `None` where one of those has none so short.
    fn down_from(&mut self, top: usize, urgent: usize) -> Option<Vec<usize>> {
        let is_urgent = |count: u32| count as usize >= urgent;
        let mut needed = self.counts.iter().filter(|count| is_urgent(**count)).count().min(self.code.data());
        let look = self.look();
        let mut members = Vec::with_capacity(self.code.data());
        for at in (0..=top).rev() {
            let drive = self.waiting[at].placed.drive as usize;
            if self.met[drive] == look {
                continue;
            }
            let urgent = is_urgent(self.counts[drive]);
            if urgent && needed > 0 {
                needed -= 1;
            } else if members.len() + needed >= self.code.data() {
                continue;
            }
            self.met[drive] = look;
            members.push(at);
            if members.len() == self.code.data() {
                break;
            }
        }
        (needed == 0 && members.first() == Some(&top)).then_some(members)
    }

    /// Takes these out of those that wait.
    fn form(&mut self, mut members: Vec<usize>) -> Group<I> {
        members.sort_unstable();
        let mut data: Vec<PlacedShard<I>> = Vec::with_capacity(members.len());
        let look = self.look();
        // From behind, so that places stay what they were.
        for at in members.into_iter().rev() {
            let placed = self.waiting.remove(at).placed;
            self.counts[placed.drive as usize] -= 1;
            self.met[placed.drive as usize] = look;
            data.push(placed);
        }
        let parity_len = self.padded(data.first().map_or(0, |longest| longest.len));
        let mut others: Vec<u32> = (0..self.counts.len() as u32).filter(|drive| self.met[*drive as usize] != look).collect();
        let load = |drive: &u32| (self.parity[*drive as usize], mixed(self.seed ^ u64::from(*drive)), *drive);
        let parities = self.code.parity();
        if others.len() > parities {
            others.select_nth_unstable_by_key(parities - 1, load);
            others.truncate(parities);
        }
        others.sort_unstable_by_key(load);
        others.iter().for_each(|drive| self.parity[*drive as usize] += parity_len);
        Group { data, parity: others, parity_len }
    }
}
