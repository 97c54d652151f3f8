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
pub struct Midranks {
    /// Cells of each group within the tie, and below it.
    tied: Vec<u64>,
    below: Vec<u64>,
    /// The groups that the tie has cells of.
    touched: Vec<usize>,
}

impl Midranks {
    /// The rank sums of each group. `keys` are the nonzeros, in any order; `cells` has the number of cells of each
    /// group, zeros included, and more than any key's group. Keys beyond the cells of their group are an error of the
    /// caller, and give sums without a meaning.
    pub fn sums<K: Ranked>(&mut self, keys: &mut [K], cells: &[u64], among: Among) -> Vec<RankSum> {
        keys.sort_unstable();
        let groups = cells.len();
        self.tied.clear();
        self.tied.resize(groups, 0);
        self.below.clear();
        self.below.resize(groups, 0);
        let mut out = vec![RankSum::default(); groups];
        // What ties add for groups that have no cell in them: for all, or for the reference alone.
        let mut common = 0.0;
        let mut rank = 0u64;
        let split = keys.partition_point(|k| k.value() < zero::<K>());
        let mut at = 0;
        loop {
            if at == split {
                // The zeros: the cells that have no key.
                for (group, &n) in cells.iter().enumerate() {
                    self.tied[group] = n;
                }
                for key in keys.iter() {
                    self.tied[key.group()] = self.tied[key.group()].saturating_sub(1);
                }
                self.touched.extend((0..groups).filter(|&g| self.tied[g] > 0));
                self.close(among, &mut rank, &mut common, &mut out);
            }
            let Some(first) = keys.get(at) else { break };
            let value = first.value();
            // A tie does not reach over the zeros, as no key has their value.
            while let Some(key) = keys.get(at).filter(|k| k.value() == value) {
                let group = key.group();
                if self.tied[group] == 0 {
                    self.touched.push(group);
                }
                self.tied[group] += 1;
                at += 1;
            }
            self.close(among, &mut rank, &mut common, &mut out);
        }
        for sum in &mut out {
            sum.ties += common;
        }
        out
    }

    /// Ranks the cells of a tie, and goes on above it.
    fn close(&mut self, among: Among, rank: &mut u64, common: &mut f64, out: &mut [RankSum]) {
        let all: u64 = self.touched.iter().map(|&g| self.tied[g]).sum();
        match among {
            Among::All => {
                let mid = *rank as f64 + (all as f64 + 1.0) / 2.0;
                for &g in &self.touched {
                    out[g].sum += self.tied[g] as f64 * mid;
                }
                *common += tie(all);
            }
            Among::With(reference) => {
                let there = self.tied[reference];
                let below = self.below[reference];
                for &g in &self.touched {
                    let mine = self.tied[g];
                    if g == reference {
                        continue;
                    }
                    let mid = (self.below[g] + below) as f64 + ((mine + there) as f64 + 1.0) / 2.0;
                    out[g].sum += mine as f64 * mid;
                    out[g].ties += tie(mine + there) - tie(there);
                }
                // The reference itself is ranked among its own cells.
                out[reference].sum += there as f64 * (below as f64 + (there as f64 + 1.0) / 2.0);
                *common += tie(there);
            }
        }
        *rank += all;
        for g in self.touched.drain(..) {
            self.below[g] += self.tied[g];
            self.tied[g] = 0;
        }
    }
}

/// `t^3 - t`.
fn tie(t: u64) -> f64 {
    let t = t as f64;
    t * (t * t - 1.0)
}

#[cfg(test)]
mod tests {
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
        let mut room = Midranks::default();
        for round in 0..400 {
            let groups = 1 + draw(4) as usize;
            let values: Vec<(f64, usize)> =
                (0..draw(30)).map(|_| (draw(7) as f64 - if round % 2 == 0 { 3.0 } else { 0.0 }, draw(groups as u64) as usize)).collect();
            let mut cells = vec![0u64; groups];
            values.iter().for_each(|(_, g)| cells[*g] += 1);
            for among in [Among::All].into_iter().chain((0..groups).map(Among::With)) {
                let wanted = plain(&values, groups, among);
                assert_eq!(room.sums::<u64>(&mut keys(&values), &cells, among), wanted, "{values:?} {among:?}");
                assert_eq!(room.sums::<u128>(&mut keys(&values), &cells, among), wanted, "{values:?} {among:?}");
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
