//! Sums of midranks: what Wilcoxon's rank sum test needs of one gene.
//!
//! The cells of a gene are ranked by its value. Cells of equal values share the mean of their ranks (Kruskal & Wallis,
//! JASA 47:583, 1952). Most values are zero and not stored: they are one tie among the others, which is counted and
//! never sorted. So the cost is that of sorting the nonzeros.

use std::fmt::Debug;

/// A nonzero value and its cell's group in one number, which sorts by value.
pub trait Ranked: Copy + Ord + Debug + Send + Sync {
    /// The bytes of one.
    const BYTES: usize;
    /// The key of a value other than zero, which is no NaN.
    fn new(value: f64, group: u16) -> Self;
    /// The value's part of the key.
    fn value(self) -> u64;
    /// The group.
    fn group(self) -> usize;
    /// The key as bytes, little endian, at the end of `bytes`.
    fn put(self, bytes: &mut Vec<u8>);
    /// The key of [`Self::BYTES`] bytes.
    fn of_bytes(bytes: &[u8]) -> Option<Self>;
}

/// Bits that sort as the floats do: negative ones are turned around.
fn ordered(bits: u64, sign: u32) -> u64 {
    if bits >> sign & 1 == 1 { !bits & (u64::MAX >> (63 - sign)) } else { bits | 1 << sign }
}

/// The key of zero in [`Ranked::value`], below all positive values and above all negative ones.
fn zero<K: Ranked>() -> u64 {
    if K::BYTES == 6 { 1 << 31 } else { 1 << 63 }
}

/// A float32 and a group: six bytes.
impl Ranked for u64 {
    const BYTES: usize = 6;

    fn new(value: f64, group: u16) -> Self {
        ordered(u64::from((value as f32).to_bits()), 31) << 16 | u64::from(group)
    }

    fn value(self) -> u64 {
        self >> 16
    }

    fn group(self) -> usize {
        (self & 0xffff) as usize
    }

    fn put(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.to_le_bytes()[..6]);
    }

    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let mut all = [0; 8];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self::from_le_bytes(all))
    }
}

/// A float64 and a group: ten bytes.
impl Ranked for u128 {
    const BYTES: usize = 10;

    fn new(value: f64, group: u16) -> Self {
        u128::from(ordered(value.to_bits(), 63)) << 16 | u128::from(group)
    }

    fn value(self) -> u64 {
        (self >> 16) as u64
    }

    fn group(self) -> usize {
        (self & 0xffff) as usize
    }

    fn put(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.to_le_bytes()[..10]);
    }

    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let mut all = [0; 16];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self::from_le_bytes(all))
    }
}

/// What the cells of a group are ranked among.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Among {
    /// All cells.
    All,
    /// The group's own cells and those of this group.
    With(usize),
}

/// Of each group: the sum of its cells' ranks, and the sum of `t^3 - t` over the ties that count for it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RankSum {
    /// The sum of midranks, counted from 1.
    pub sum: f64,
    /// The sum over all ties of `t^3 - t`, where `t` is the number of cells that are equal.
    pub ties: f64,
}

/// Ranks the cells of one gene; keeps its room.
#[derive(Debug, Default)]
pub struct Midranks<K> {
    /// Cells of each group that have no key: the zeros.
    zeros: Vec<u64>,
    /// Cells of each group below the tie, and within it.
    below: Vec<u64>,
    tied: Vec<u64>,
    /// Room to sort in.
    room: Vec<K>,
}

impl<K: Ranked> Midranks<K> {
    /// The rank sums of each group. `keys` are the nonzeros, in any order; `cells` has the number of cells of each
    /// group, zeros included, and more groups than any key's. Keys beyond the cells of their group are an error of the
    /// caller, and give sums without a meaning.
    pub fn sums(&mut self, keys: &mut Vec<K>, cells: &[u64], among: Among) -> Vec<RankSum> {
        sort(keys, &mut self.room);
        self.zeros.clear();
        self.zeros.extend_from_slice(cells);
        for key in keys.iter() {
            let left = &mut self.zeros[key.group()];
            *left = left.saturating_sub(1);
        }
        let mut out = vec![RankSum::default(); cells.len()];
        // A tie does not reach over the zeros, as no key has their value.
        let (negative, positive) = keys.split_at(keys.partition_point(|k| k.value() < zero::<K>()));
        // What ties add for groups that have no cell in them: for all, or for the reference alone.
        let mut common = 0.0;
        match among {
            Among::All => {
                let mut rank = 0;
                all(negative, &mut rank, &mut common, &mut out);
                let zeros: u64 = self.zeros.iter().sum();
                let mid = rank as f64 + (zeros as f64 + 1.0) / 2.0;
                out.iter_mut().zip(&self.zeros).for_each(|(out, &n)| out.sum += n as f64 * mid);
                common += tie(zeros);
                rank += zeros;
                all(positive, &mut rank, &mut common, &mut out);
            }
            Among::With(reference) => {
                self.below.clear();
                self.below.resize(cells.len(), 0);
                self.tied.clear();
                self.tied.resize(cells.len(), 0);
                self.with(negative, reference, &mut common, &mut out);
                std::mem::swap(&mut self.tied, &mut self.zeros);
                (0..cells.len()).for_each(|group| self.pair(group, reference, &mut out));
                common += tie(self.tied[reference]);
                self.below.iter_mut().zip(&self.tied).for_each(|(below, n)| *below += n);
                self.tied.fill(0);
                self.with(positive, reference, &mut common, &mut out);
            }
        }
        for sum in &mut out {
            sum.ties += common;
        }
        out
    }

    /// Ranks sorted keys, each among those of its group and of `reference`.
    fn with(&mut self, keys: &[K], reference: usize, common: &mut f64, out: &mut [RankSum]) {
        for tied in ties(keys) {
            if let [key] = tied {
                let group = key.group();
                let others = if group == reference { 0 } else { self.below[reference] };
                out[group].sum += (self.below[group] + others + 1) as f64;
                self.below[group] += 1;
                continue;
            }
            tied.iter().for_each(|key| self.tied[key.group()] += 1);
            // The reference is in each pair, and its own ties are common.
            *common += tie(self.tied[reference]);
            // Each group once, the reference last, as all others need it.
            for group in tied.iter().map(|key| key.group()).filter(|&group| group != reference).chain([reference]) {
                if self.tied[group] > 0 {
                    self.pair(group, reference, out);
                    self.below[group] += std::mem::take(&mut self.tied[group]);
                }
            }
        }
    }

    /// Ranks the cells of `group` within a tie among themselves and those of `reference`.
    fn pair(&mut self, group: usize, reference: usize, out: &mut [RankSum]) {
        let (mine, below) = (self.tied[group], self.below[group]);
        let (there, other) = if group == reference { (0, 0) } else { (self.tied[reference], self.below[reference]) };
        let mid = (below + other) as f64 + ((mine + there) as f64 + 1.0) / 2.0;
        out[group].sum += mine as f64 * mid;
        if group != reference {
            out[group].ties += tie(mine + there) - tie(there);
        }
    }

    /// Bytes of memory.
    #[must_use]
    pub fn size(&self) -> usize {
        (self.zeros.capacity() + self.below.capacity() + self.tied.capacity()) * size_of::<u64>() + self.room.capacity() * size_of::<K>()
    }
}

/// Ranks sorted keys among all cells, from above `rank` on.
fn all<K: Ranked>(keys: &[K], rank: &mut u64, common: &mut f64, out: &mut [RankSum]) {
    for tied in ties(keys) {
        let count = tied.len() as u64;
        let mid = *rank as f64 + (count as f64 + 1.0) / 2.0;
        // Midranks are multiples of a half, so that sums are exact in any order.
        tied.iter().for_each(|key| out[key.group()].sum += mid);
        *rank += count;
        if count > 1 {
            *common += tie(count);
        }
    }
}

/// Runs of equal values among sorted keys.
fn ties<K: Ranked>(keys: &[K]) -> impl Iterator<Item = &[K]> {
    keys.chunk_by(|a, b| a.value() == b.value())
}

/// Below this number of keys, comparing is faster.
const MANY: usize = 128;

/// Bits of a digit of the radix sort.
const DIGIT: u32 = 10;

/// Sorts keys by value. Many keys are sorted by the digits of their distance from the lowest one, from the
/// lowest digit on: logarithms of counts are close to each other, so that few digits differ.
fn sort<K: Ranked>(keys: &mut Vec<K>, room: &mut Vec<K>) {
    let (Some(low), Some(high)) = (keys.iter().map(|k| k.value()).min(), keys.iter().map(|k| k.value()).max()) else { return };
    if keys.len() < MANY {
        return keys.sort_unstable();
    }
    room.clear();
    room.extend_from_slice(keys);
    for at in 0..(u64::BITS - (high - low).leading_zeros()).div_ceil(DIGIT) {
        pass(keys, room, |k| (k.value() - low) >> (at * DIGIT));
    }
}

/// Sorts by one digit, the lowest of what `of` gives, and keeps the order of equal ones.
fn pass<K: Ranked>(keys: &mut Vec<K>, room: &mut Vec<K>, of: impl Fn(K) -> u64) {
    let digit = |key: K| (of(key) & ((1 << DIGIT) - 1)) as usize;
    let mut counts = [0u32; 1 << DIGIT];
    keys.iter().for_each(|&key| counts[digit(key)] += 1);
    let mut next = 0;
    for count in &mut counts {
        next += std::mem::replace(count, next);
    }
    for &key in keys.iter() {
        let at = &mut counts[digit(key)];
        room[*at as usize] = key;
        *at += 1;
    }
    std::mem::swap(keys, room);
}

/// `t^3 - t`.
fn tie(t: u64) -> f64 {
    let t = t as f64;
    t * (t * t - 1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Rank by rank, as the definition says.
    fn plain(values: &[(f64, usize)], groups: usize, among: Among) -> Vec<RankSum> {
        (0..groups)
            .map(|g| {
                let part: Vec<(f64, usize)> = values
                    .iter()
                    .copied()
                    .filter(|&(_, of)| match among {
                        Among::All => true,
                        Among::With(reference) => of == g || of == reference,
                    })
                    .collect();
                let rank = |v: f64| {
                    let below = part.iter().filter(|(w, _)| *w < v).count() as f64;
                    below + (part.iter().filter(|(w, _)| *w == v).count() as f64 + 1.0) / 2.0
                };
                // Each cell of a tie of t adds t^2 - 1.
                let ties = part.iter().map(|&(v, _)| (part.iter().filter(|(w, _)| *w == v).count() as f64).powi(2) - 1.0).sum();
                RankSum { sum: part.iter().filter(|(_, of)| *of == g).map(|&(v, _)| rank(v)).sum(), ties }
            })
            .collect()
    }

    proptest! {
        #[test]
        fn many_keys_are_sorted_as_by_comparison(values in prop::collection::vec((any::<f64>(), 0u16..3000), 0..4 * MANY), few in any::<bool>()) {
            let values = values.into_iter().map(|(v, g)| if few { ((v % 2.0 + 1.0).round(), g % 12) } else { (v, g) });
            let mut keys: Vec<u128> = values.filter(|(v, _)| !v.is_nan()).map(|(v, g)| Ranked::new(v, g)).collect();
            let mut wanted = keys.clone();
            wanted.sort_unstable();
            sort(&mut keys, &mut Vec::new());
            prop_assert!(keys.is_sorted_by_key(|k| k.value()));
            keys.sort_unstable();
            prop_assert_eq!(keys, wanted);
        }
    }

    fn keys<K: Ranked>(values: &[(f64, usize)]) -> Vec<K> {
        values.iter().filter(|(v, _)| *v != 0.0).map(|&(v, g)| K::new(v, g as u16)).collect()
    }

    #[test]
    fn sums_of_any_values_are_those_of_the_definition() {
        let mut state = 7u64;
        let mut draw = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let (mut narrow, mut wide) = (Midranks::<u64>::default(), Midranks::<u128>::default());
        for round in 0..400 {
            let groups = 1 + draw(4) as usize;
            let values: Vec<(f64, usize)> = (0..draw(if round % 20 == 0 { 400 } else { 30 }))
                .map(|_| (draw(7) as f64 - if round % 2 == 0 { 3.0 } else { 0.0 }, draw(groups as u64) as usize))
                .collect();
            let mut cells = vec![0u64; groups];
            values.iter().for_each(|(_, g)| cells[*g] += 1);
            for among in [Among::All].into_iter().chain((0..groups).map(Among::With)) {
                let wanted = plain(&values, groups, among);
                assert_eq!(narrow.sums(&mut keys(&values), &cells, among), wanted, "{values:?} {among:?}");
                assert_eq!(wide.sums(&mut keys(&values), &cells, among), wanted, "{values:?} {among:?}");
            }
        }
    }

    #[test]
    fn keys_sort_as_their_values_and_survive_as_bytes() {
        let values = [f64::NEG_INFINITY, -1e300, -3.5, -1e-40, -f64::MIN_POSITIVE, 5e-324, 1e-40, 0.1, 2.0, 1e300, f64::INFINITY];
        let wide: Vec<u128> = values.iter().map(|&v| Ranked::new(v, 9)).collect();
        assert!(wide.is_sorted() && wide.windows(2).all(|w| w[0] != w[1]));
        for &key in &wide {
            let mut bytes = Vec::new();
            key.put(&mut bytes);
            assert_eq!((bytes.len(), <u128 as Ranked>::of_bytes(&bytes), key.group()), (u128::BYTES, Some(key), 9));
        }
        let narrow: Vec<u64> = [-3.5f64, -1e-40, 1e-40, 0.1, 2.0].iter().map(|&v| Ranked::new(v, u16::MAX)).collect();
        assert!(narrow.is_sorted());
        for &key in &narrow {
            let mut bytes = Vec::new();
            key.put(&mut bytes);
            assert_eq!((bytes.len(), <u64 as Ranked>::of_bytes(&bytes), key.group()), (u64::BYTES, Some(key), 65_535));
        }
        assert!(<u64 as Ranked>::new(-1e-40, 0).value() < zero::<u64>() && zero::<u64>() <= <u64 as Ranked>::new(1e-40, 0).value());
    }
}
