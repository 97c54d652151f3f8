//! `log1p(x / (total / 1e4))` in float32 and the arithmetic of other transforms, the same bits on every machine, and
//! tables of them for small counts.
//!
//! scanpy's `normalize_total(target_sum=1e4)` and `log1p` work in float32: the quotient `total / 1e4`, then `x /
//! quotient`, then the logarithm, each rounded. The logarithm itself is computed here in float64 (branch-free, so that
//! it vectorises) and rounded once. The result is the correctly rounded float32, except for one case in some ten
//! million.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock, Weak};

use arrow::array::Float32Array;
use parking_lot::Mutex;

use crate::lanes;

/// The largest count whose logarithms are tabulated.
pub(crate) const TABULATED: usize = 32;

/// The natural logarithm of `1 + z`, rounded to float32. `z` must not be negative; not finite in, not finite out.
#[inline(always)]
#[must_use]
pub fn log1p(z: f32) -> f32 {
    // u = 1 + z is exact from 2^-29 on (up to where the 1 does not matter), and below that log(1 + z) rounds to z.
    const SMALL: f64 = 1.0 / (1u64 << 29) as f64;
    let z = f64::from(z);
    let (k, f) = lanes::split(1.0 + z);
    let (s, r) = lanes::log_series(f);
    let log = k * std::f64::consts::LN_2 + s * (2.0 + r);
    // A select, not a branch, so that it vectorises.
    (if (z < SMALL) | !z.is_finite() { z } else { log }) as f32
}

/// `log1p(x / (total / 1e4))` for one value; not finite where `x` is negative or not finite, or has
/// no total to be divided by.
#[inline(always)]
#[must_use]
pub fn log1p_cp10k(x: f32, total: f32) -> f32 {
    let z = x / (total / 1e4_f32);
    let good = (x >= 0.0) & (total > 0.0) & (z < f32::INFINITY);
    let y = log1p(if good { z } else { 0.0 });
    if good {
        y
    } else if x == 0.0 {
        0.0
    } else {
        f32::NAN
    }
}

/// The arithmetic of a transform.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Formula {
    /// The usual one, whose loops become vector instructions.
    Log1pCp10k,
    /// Any: the target sum, and the natural logarithms of the bases.
    Parts { target: Option<f32>, log: Option<f64>, exp: Option<f64> },
}

impl Formula {
    /// Its value for `x` in a cell of this total; not finite where there is none.
    #[inline]
    pub(crate) fn value(self, x: f32, total: f32) -> f32 {
        let (target, log, exp) = match self {
            Formula::Log1pCp10k => return log1p_cp10k(x, total),
            Formula::Parts { target, log, exp } => (target, log, exp),
        };
        if x == 0.0 {
            return 0.0;
        }
        let mut y = x;
        if let Some(target) = target {
            let z = x / (total / target);
            y = if (x >= 0.0) & (total > 0.0) & (z < f32::INFINITY) { z } else { f32::NAN };
        }
        if let Some(ln) = log {
            y = if y >= 0.0 { log1p(y) } else { f32::NAN };
            // scanpy divides by a double.
            y = if ln == 1.0 { y } else { (f64::from(y) / ln) as f32 };
        }
        if let Some(ln) = exp {
            y = if ln == 1.0 { y } else { (f64::from(y) * ln) as f32 };
            // Beyond these, float32 has no other values.
            y = match y {
                _ if y > 89.0 => f32::INFINITY,
                _ if y < -89.0 => -1.0,
                _ if y.is_nan() => y,
                _ => lanes::exp_m1(f64::from(y)) as f32,
            };
        }
        y
    }
}

#[inline(always)]
fn fill_body(x: f32, totals: &[f32], out: &mut [f32]) {
    for (y, &total) in out.iter_mut().zip(totals) {
        *y = log1p_cp10k(x, total);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn fill_avx2(x: f32, totals: &[f32], out: &mut [f32]) {
    fill_body(x, totals, out);
}

/// `out[c]` is the transform of `x` in a cell of total `totals[c]`.
pub(crate) fn fill(formula: Formula, x: f32, totals: &[f32], out: &mut [f32], wide: bool) {
    if formula != Formula::Log1pCp10k {
        return out.iter_mut().zip(totals).for_each(|(y, &total)| *y = formula.value(x, total));
    }
    #[cfg(target_arch = "x86_64")]
    if wide {
        // SAFETY: `wide` is only ever true where the processor has AVX2 (`kernel::has_avx2`).
        return unsafe { fill_avx2(x, totals, out) };
    }
    let _ = wide;
    fill_body(x, totals, out);
}

#[inline(always)]
fn gather_body(x: &[f32], totals: &[f32], out: &mut [f32]) {
    for ((y, &x), &total) in out.iter_mut().zip(x).zip(totals) {
        *y = log1p_cp10k(x, total);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn gather_avx2(x: &[f32], totals: &[f32], out: &mut [f32]) {
    gather_body(x, totals, out);
}

/// `out[i]` is the transform of `x[i]` in a cell of total `totals[i]`.
pub(crate) fn each(formula: Formula, x: &[f32], totals: &[f32], out: &mut [f32], wide: bool) {
    if formula != Formula::Log1pCp10k {
        return out.iter_mut().zip(x).zip(totals).for_each(|((y, &x), &total)| *y = formula.value(x, total));
    }
    #[cfg(target_arch = "x86_64")]
    if wide {
        // SAFETY: as in `fill`.
        return unsafe { gather_avx2(x, totals, out) };
    }
    let _ = wide;
    gather_body(x, totals, out);
}

/// The transforms of counts, for the counts up to [`TABULATED`] and the cells of one block; each count's
/// row is computed at its first use.
///
/// Many cells have the same total, so a row has one value per total and not per cell: few enough for all rows to stay
/// in the cache.
#[derive(Debug)]
pub(crate) struct Table {
    /// The block's own: an array of all cells' would stay in memory for as long as the table does.
    totals: Box<[f32]>,
    /// The totals that differ (in their bits), in the order in which cells have them first: where all differ,
    /// neighbours stay neighbours.
    distinct: Box<[f32]>,
    /// For each cell, which of `distinct` is its total. A block has at most 65,536 cells.
    slots: Box<[u16]>,
    /// Which array they were copied from, and where they begin in it: as long as that lives, they need not be compared.
    origin: (Weak<Float32Array>, usize),
    formula: Formula,
    wide: bool,
    levels: [OnceLock<Box<[f32]>>; TABULATED + 1],
}

impl Table {
    /// A table for `len` cells from `start` on, which must be within `totals`. Nothing is computed yet.
    fn new(formula: Formula, totals: &Arc<Float32Array>, start: usize, len: usize, wide: bool) -> Self {
        let origin = (Arc::downgrade(totals), start);
        let totals: Box<[f32]> = totals.values()[start..start + len].into();
        debug_assert!(len <= 1 << 16, "more cells than a block has");
        let (mut distinct, mut known) = (Vec::new(), HashMap::new());
        let slot = |total: &f32| {
            *known.entry(total.to_bits()).or_insert_with(|| {
                distinct.push(*total);
                (distinct.len() - 1) as u16
            })
        };
        let slots = totals.iter().map(slot).collect();
        Self { totals, distinct: distinct.into(), slots, origin, formula, wide, levels: [const { OnceLock::new() }; TABULATED + 1] }
    }

    /// What it is of.
    pub(crate) fn formula(&self) -> Formula {
        self.formula
    }

    /// The totals of the block's cells.
    pub(crate) fn totals(&self) -> &[f32] {
        &self.totals
    }

    /// For each cell of the block, where its values are in every [`Self::level`].
    pub(crate) fn slots(&self) -> &[u16] {
        &self.slots
    }

    /// The transforms of `count` (at most [`TABULATED`]), one per slot.
    pub(crate) fn level(&self, count: usize) -> &[f32] {
        self.levels[count].get_or_init(|| {
            let mut out = vec![0f32; self.distinct.len()];
            fill(self.formula, count as f32, &self.distinct, &mut out, self.wide);
            out.into_boxed_slice()
        })
    }
}

/// The tables last used in this process. They depend on nothing but formula and totals, so that drives in one process
/// that hold copies of the same totals share them: an entry is found by content, not by name or generation.
static TABLES: LazyLock<Mutex<Vec<Arc<Table>>>> = LazyLock::new(Mutex::default);

/// At most this many tables stay (9 MB each where every count is in use and no two cells have the same total).
const KEEP: usize = 4;

/// The table for `len` cells from `start` on. Callers with the same totals share it.
pub(crate) fn shared_table(formula: Formula, totals: &Arc<Float32Array>, start: usize, len: usize, wide: bool) -> Arc<Table> {
    let content = &totals.values()[start..start + len];
    // While a `Weak` is there, no other array can have its address.
    let copied = |t: &Arc<Table>| t.totals.len() == len && t.origin.1 == start && std::ptr::eq(t.origin.0.as_ptr(), Arc::as_ptr(totals));
    let same = |t: &Arc<Table>| t.wide == wide && t.formula == formula && (copied(t) || same_bits(t.totals(), content));
    let mut tables = TABLES.lock();
    let table = match tables.iter().position(same) {
        Some(at) => tables.remove(at),
        None => {
            if tables.len() >= KEEP {
                tables.remove(0);
            }
            Arc::new(Table::new(formula, totals, start, len, wide))
        }
    };
    tables.push(Arc::clone(&table));
    table
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Formula = Formula::Log1pCp10k;

    fn ulps(a: f32, b: f32) -> u32 {
        a.to_bits().abs_diff(b.to_bits())
    }

    #[test]
    fn within_one_ulp_of_libm_everywhere() {
        let (mut single, mut rounded, mut unequal, mut n) = (0, 0, 0u32, 0u32);
        // Every 997th float from 0 up to infinity, both sides of 1 and of powers of two among them.
        for bits in (0..0x7f80_0000u32).step_by(997) {
            let z = f32::from_bits(bits);
            single = single.max(ulps(log1p(z), libm::log1pf(z)));
            let exact = libm::log1p(f64::from(z)) as f32;
            rounded = rounded.max(ulps(log1p(z), exact));
            unequal += u32::from(log1p(z) != exact);
            n += 1;
        }
        println!("largest distance to log1pf {single} ulp, to log1p rounded {rounded} ulp ({unequal} of {n} differ)");
        assert!(single <= 1 && rounded <= 1 && unequal * 1_000_000 < n * 4, "{single} {rounded} {unequal}");
    }

    #[test]
    fn zero_is_zero_and_nonsense_is_not_finite() {
        assert_eq!(log1p(0.0), 0.0);
        assert_eq!(log1p_cp10k(0.0, 0.0), 0.0);
        assert_eq!(log1p_cp10k(-0.0, 5.0), 0.0);
        for (x, total) in [(1.0, 0.0), (-1.0, 10.0), (f32::NAN, 10.0), (f32::INFINITY, 10.0), (1.0, f32::NAN), (1.0, -1.0), (1.0, 1e-44)] {
            assert!(!log1p_cp10k(x, total).is_finite(), "{x} {total}");
        }
    }

    #[test]
    fn wide_and_narrow_fill_the_same_bits() {
        let totals: Vec<f32> = (0..1003).map(|i| (i * 37 % 5000) as f32).collect();
        let (mut a, mut b) = (vec![0f32; totals.len()], vec![0f32; totals.len()]);
        for x in [0.0, 1.0, 17.0, 1e6] {
            fill(USUAL, x, &totals, &mut a, crate::kernel::has_avx2());
            fill(USUAL, x, &totals, &mut b, false);
            assert!(same_bits(&a, &b));
            let xs = vec![x; totals.len()];
            each(USUAL, &xs, &totals, &mut b, crate::kernel::has_avx2());
            assert!(same_bits(&a, &b));
        }
    }

    #[test]
    fn a_table_gives_each_cell_its_own_logarithm() {
        // Many equal ones, both zeros (of different bits) and no number among them.
        let all = Float32Array::from_iter_values((0..5000).map(|i| {
            if i % 7 == 0 {
                -0.0
            } else if i == 33 {
                f32::NAN
            } else {
                (i * 37 % 400) as f32
            }
        }));
        let table = Table::new(USUAL, &Arc::new(all), 10, 4900, crate::kernel::has_avx2());
        assert!(table.distinct.len() <= 402);
        for count in [1, 2, TABULATED] {
            for (&slot, &total) in table.slots().iter().zip(table.totals()) {
                assert_eq!(table.level(count)[usize::from(slot)].to_bits(), log1p_cp10k(count as f32, total).to_bits(), "{count} of {total}");
            }
        }
        let differing = Arc::new(Float32Array::from_iter_values((1..=65_536).rev().map(|i| i as f32)));
        assert!(Table::new(USUAL, &differing, 0, 65_536, false).slots().iter().enumerate().all(|(cell, &slot)| cell == usize::from(slot)));
    }

    #[test]
    fn equal_totals_share_a_table() {
        let a = Arc::new(Float32Array::from(vec![3.25f32, 99.5, 1.0]));
        let b = Arc::new(Float32Array::from(vec![7.0f32, 3.25, 99.5, 1.0]));
        assert!(Arc::ptr_eq(&shared_table(USUAL, &a, 0, 3, false), &shared_table(USUAL, &b, 1, 3, false)));
        assert!(!Arc::ptr_eq(&shared_table(USUAL, &a, 0, 3, false), &shared_table(USUAL, &b, 0, 3, false)));
    }

    #[test]
    fn a_table_does_not_hold_on_to_the_totals_of_all_cells() {
        let all = Arc::new(Float32Array::from_iter_values((0..1000).map(|i| i as f32 + 0.125)));
        let table = shared_table(USUAL, &all, 990, 10, false);
        assert_eq!((Arc::strong_count(&all), table.totals()), (1, &all.values()[990..]));
        assert!(Arc::ptr_eq(&table, &shared_table(USUAL, &all, 990, 10, false)));
    }

    #[test]
    fn other_formulas_have_tables_of_their_own() {
        let totals = Arc::new(Float32Array::from(vec![3.25f32, 99.5, 1.0]));
        let scaled = Formula::Parts { target: Some(50.0), log: None, exp: None };
        let (usual, other) = (shared_table(USUAL, &totals, 0, 3, false), shared_table(scaled, &totals, 0, 3, false));
        assert!(!Arc::ptr_eq(&usual, &other) && other.formula() == scaled);
        assert_eq!(other.level(2)[usize::from(other.slots()[1])], 2.0 / (99.5 / 50.0));
        let mut out = [0.0; 3];
        each(scaled, &[1.0, 2.0, 4.0], totals.values(), &mut out, false);
        assert_eq!(out, [1.0 / (3.25 / 50.0), 2.0 / (99.5 / 50.0), 200.0]);
    }
}
