//! The kernel: grouped moments of one sparse row. Per group of cells it gives the number of nonzeros, their sum and
//! their sum of squares.
//!
//! Differential expression spends its time here. Logarithms of small counts come from a table per block. The
//! accumulators of a group are adjacent (one vector register). There are [`REPLICAS`] of them, used in turn:
//! neighbouring cells are often of the same group, and an addition would wait for the store before it.
//!
//! The order of additions does not depend on the processor: with and without AVX2 the results have the same bits.

mod block;
mod each;
mod two_pass;
mod value;

pub use self::block::{Block, Codes, has_avx2};
pub use self::two_pass::{cancels, two_pass_moments};
pub use self::value::Value;

pub(crate) use self::block::Tabulated;
pub(crate) use self::each::{each_cell, each_value};
#[cfg(target_arch = "x86_64")]
use self::value::four_u32;
use crate::log1p::{TABULATED, Table, each};
use crate::spec::Squares;

/// Sums of one group: sum, sum of squares, number of nonzeros, nothing.
pub type Sums = [f64; 4];

/// Accumulators per group, while there are few groups.
const REPLICAS: usize = 4;

/// From this many groups on, clearing replicas costs more than they save.
const REPLICATED: usize = 64;

/// Values that are processed together where the logarithm is computed.
const CHUNK: usize = 256;

/// What is wrong with a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// As many indices as values are needed.
    Lengths,
    /// This cell is not in the block.
    Outside(u32),
    /// Cells of the data set are in groups up to this number, which the kernel does not have.
    Group(usize),
    /// This cell's value has no (finite) transform, or its square is beyond all numbers.
    Value {
        /// The cell's number.
        cell: u32,
        /// Its value.
        value: f64,
    },
}

/// Sums that are aligned to a vector register's load: a load across two cache lines costs twice.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
struct Lanes(Sums);

impl Lanes {
    fn as_sums(lanes: &mut [Self]) -> &mut [Sums] {
        // SAFETY: `Lanes` is nothing but `Sums`, of the same size (32 bytes) and aligned more strictly.
        unsafe { std::slice::from_raw_parts_mut(lanes.as_mut_ptr().cast::<Sums>(), lanes.len()) }
    }
}

/// Sums one row after the other; keeps the accumulators.
#[derive(Debug)]
pub struct Kernel {
    width: usize,
    replicas: usize,
    wide: bool,
    squares: Squares,
    /// `replicas` times `width` accumulators; all zero between rows.
    sums: Vec<Lanes>,
    out: Vec<Sums>,
}

impl Kernel {
    /// A kernel for `width` groups, including that of the cells in no group.
    #[must_use]
    pub fn new(width: usize, squares: Squares) -> Self {
        Self::with_avx2(width, squares, has_avx2())
    }

    fn with_avx2(width: usize, squares: Squares, wide: bool) -> Self {
        let replicas = if width <= REPLICATED { REPLICAS } else { 1 };
        Self { width, replicas, wide: wide && has_avx2(), squares, sums: vec![Lanes([0.0; 4]); width * replicas], out: vec![[0.0; 4]; width] }
    }

    /// Bytes of memory.
    #[must_use]
    pub fn size(&self) -> usize {
        (self.sums.len() + self.out.len()) * size_of::<Sums>()
    }

    /// The sums of each group over one row: `idx` are cell numbers, `val` their values.
    ///
    /// # Errors
    /// What is wrong with the row. Nothing is left behind of it.
    pub fn row<T: Value>(&mut self, block: &Block<'_>, idx: &[u32], val: &[T]) -> Result<&[Sums], Fault> {
        if idx.len() != val.len() {
            return Err(Fault::Lengths);
        }
        self.check(block, idx)?;
        // From here on every index is a cell of the block, and every code is below the width.
        match &block.table {
            None => self.direct::<T, true>(block, idx, val),
            Some(table) if T::COUNTS => self.counts(block, table, idx, val),
            Some(table) => self.reals(block, &table.table, idx, val),
        }
        if !self.reduce() {
            return Err(self.fault(block, idx, val));
        }
        Ok(&self.out)
    }

    /// Refuses a row with an index outside of the block, and a block with a code that is no group of this kernel.
    fn check(&self, block: &Block<'_>, idx: &[u32]) -> Result<(), Fault> {
        if block.below > self.width {
            return Err(Fault::Group(block.below - 1));
        }
        // No cell has a number beyond 32 bits: an index below `first` is further away than any cell.
        let (first, len) = (block.first, block.codes.len().min((u32::MAX - block.first) as usize + 1));
        if largest_offset(idx, first, self.wide) as usize >= len.max(usize::from(idx.is_empty())) {
            let outside = idx.iter().find(|&&i| i.wrapping_sub(first) as usize >= len);
            return Err(Fault::Outside(outside.copied().unwrap_or(first)));
        }
        Ok(())
    }

    /// Adds `val`'s values without a transform; `COUNT` means that values other than zero count as nonzeros.
    fn direct<T: Value, const COUNT: bool>(&mut self, block: &Block<'_>, idx: &[u32], val: &[T]) {
        match self.squares {
            Squares::Float32 => self.direct_in::<T, COUNT, true>(block, idx, val),
            Squares::Float64 => self.direct_in::<T, COUNT, false>(block, idx, val),
        }
    }

    fn direct_in<T: Value, const COUNT: bool, const SHORT: bool>(&mut self, block: &Block<'_>, idx: &[u32], val: &[T]) {
        let sums = Lanes::as_sums(&mut self.sums);
        match (self.wide, self.replicas) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: AVX2 is there, see `with_avx2`; the rest as for `direct`.
            (true, REPLICAS) => unsafe { direct_avx2::<T, REPLICAS, COUNT, SHORT>(block, idx, val, sums, self.width) },
            // SAFETY: `row` has checked the indices; codes are below the width, and `sums` holds one per replica for
            // each.
            (_, REPLICAS) => unsafe { direct::<T, REPLICAS, COUNT, SHORT>(block, idx, val, sums, self.width) },
            // SAFETY: the same.
            _ => unsafe { direct::<T, 1, COUNT, SHORT>(block, idx, val, sums, self.width) },
        }
    }

    fn counts<T: Value>(&mut self, block: &Block<'_>, table: &Tabulated, idx: &[u32], val: &[T]) {
        match self.squares {
            Squares::Float32 => self.counts_in::<T, true>(block, table, idx, val),
            Squares::Float64 => self.counts_in::<T, false>(block, table, idx, val),
        }
    }

    fn counts_in<T: Value, const SHORT: bool>(&mut self, block: &Block<'_>, Tabulated { table, places, .. }: &Tabulated, idx: &[u32], val: &[T]) {
        let (least, most) = range_of_counts(val, self.wide);
        // Counts beyond the table look into the row of zero, which holds zeros, and follow afterwards.
        let mut levels = [table.level(0); TABULATED + 2];
        for (count, level) in levels.iter_mut().enumerate().take(TABULATED.min(most) + 1).skip(1) {
            *level = table.level(count);
        }
        let sums = Lanes::as_sums(&mut self.sums);
        match (self.wide, self.replicas, most > TABULATED) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: AVX2 is there, see `with_avx2`; the rest as for `tabulated`.
            (true, REPLICAS, false) => unsafe { tabulated_avx2::<T, REPLICAS, false, SHORT>(block.first, places, &levels, idx, val, sums, self.width) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the same.
            (true, REPLICAS, true) => unsafe { tabulated_avx2::<T, REPLICAS, true, SHORT>(block.first, places, &levels, idx, val, sums, self.width) },
            // SAFETY: `row` has checked the indices, and there is a place per cell; every level has a value per slot;
            // codes are below the width, and `sums` holds one per replica for each; without CLAMP no count is above the
            // table.
            (_, REPLICAS, false) => unsafe { tabulated::<T, REPLICAS, false, SHORT>(block.first, places, &levels, idx, val, sums, self.width) },
            // SAFETY: the same; CLAMP brings counts above the table to its last row.
            (_, REPLICAS, true) => unsafe { tabulated::<T, REPLICAS, true, SHORT>(block.first, places, &levels, idx, val, sums, self.width) },
            // SAFETY: the same.
            (_, _, _) => unsafe { tabulated::<T, 1, true, SHORT>(block.first, places, &levels, idx, val, sums, self.width) },
        }
        if most > TABULATED {
            self.large(block, table, idx, val);
        }
        if least == 0 {
            for (&i, _) in idx.iter().zip(val).filter(|(_, v)| v.count() == 0) {
                self.sums[usize::from(block.codes[(i - block.first) as usize])].0[2] -= 1.0;
            }
        }
    }

    /// The counts beyond the table, already counted as nonzeros.
    fn large<T: Value>(&mut self, block: &Block<'_>, table: &Table, idx: &[u32], val: &[T]) {
        let totals = table.totals();
        let (mut cells, mut xs, mut ts, mut ys) = ([0u32; CHUNK], [0f32; CHUNK], [0f32; CHUNK], [0f32; CHUNK]);
        let mut n = 0;
        for (idx, val) in idx.chunks(CHUNK).zip(val.chunks(CHUNK)) {
            for (&i, &v) in idx.iter().zip(val) {
                // Without a branch: always written, kept only where large.
                (cells[n], xs[n], ts[n]) = (i, v.as_f32(), totals[(i - block.first) as usize]);
                n += usize::from(v.count() > TABULATED);
                if n == CHUNK {
                    self.large_chunk(table, block, &cells, &xs, &ts, &mut ys);
                    n = 0;
                }
            }
        }
        self.large_chunk(table, block, &cells[..n], &xs[..n], &ts[..n], &mut ys[..n]);
    }

    fn large_chunk(&mut self, table: &Table, block: &Block<'_>, cells: &[u32], xs: &[f32], ts: &[f32], ys: &mut [f32]) {
        each(table.formula(), xs, ts, ys, self.wide);
        self.direct::<f32, false>(block, cells, ys);
    }

    fn reals<T: Value>(&mut self, block: &Block<'_>, table: &Table, idx: &[u32], val: &[T]) {
        let totals = table.totals();
        let (mut xs, mut ts, mut ys) = ([0f32; CHUNK], [0f32; CHUNK], [0f32; CHUNK]);
        for (idx, val) in idx.chunks(CHUNK).zip(val.chunks(CHUNK)) {
            let n = idx.len();
            for ((x, t), (&i, &v)) in xs.iter_mut().zip(&mut ts).zip(idx.iter().zip(val)) {
                (*x, *t) = (v.as_f32(), totals[(i - block.first) as usize]);
            }
            each(table.formula(), &xs[..n], &ts[..n], &mut ys[..n], self.wide);
            self.direct::<f32, true>(block, idx, &ys[..n]);
        }
    }

    /// Adds the replicas up into `out` and clears them. Returns whether all sums are finite: squares may overflow where
    /// values do not, and without them there is no variance.
    fn reduce(&mut self) -> bool {
        let mut finite = true;
        for (g, out) in self.out.iter_mut().enumerate() {
            let mut s = [[0.0; 4]; REPLICAS];
            for (r, s) in s.iter_mut().enumerate().take(self.replicas) {
                *s = std::mem::take(&mut self.sums[r * self.width + g].0);
            }
            for (lane, out) in out.iter_mut().enumerate() {
                *out = (s[0][lane] + s[1][lane]) + (s[2][lane] + s[3][lane]);
            }
            finite &= out[0].is_finite() & out[1].is_finite();
        }
        finite
    }

    /// Finds the value that made a sum not finite.
    #[cold]
    #[inline(never)]
    fn fault<T: Value>(&self, block: &Block<'_>, idx: &[u32], val: &[T]) -> Fault {
        let culprit = idx.iter().zip(val).find(|(i, v)| match (&block.table, self.squares) {
            (None, Squares::Float64) => !(v.as_f64() * v.as_f64()).is_finite(),
            (None, Squares::Float32) => !(v.as_f32() * v.as_f32()).is_finite(),
            (Some(table), _) => !table.value(v.as_f32(), (**i - block.first) as usize).is_finite(),
        });
        // Finite squares can still overflow together; then any will do to name the row.
        culprit.or_else(|| idx.iter().zip(val).next()).map_or(Fault::Lengths, |(&cell, v)| Fault::Value { cell, value: v.as_f64() })
    }
}

/// Adds the table's values up.
///
/// # Safety
/// Every index less `first` must be one of `places`, every place's slot must be one of every level's, every
/// place's code must be below `width`, `sums` must hold `R * width`, and without `CLAMP` every count must
/// be at most [`TABULATED`].
#[inline(always)]
unsafe fn tabulated<T: Value, const R: usize, const CLAMP: bool, const SHORT: bool>(
    first: u32,
    places: &[u32],
    levels: &[&[f32]; TABULATED + 2],
    idx: &[u32],
    val: &[T],
    sums: &mut [Sums],
    width: usize,
) {
    let first = first as usize;
    for k in 0..idx.len() {
        // SAFETY: the caller's promises.
        let (y, s) = unsafe {
            let cell = *idx.get_unchecked(k) as usize - first;
            let count = val.get_unchecked(k).count();
            let count = if CLAMP { count.min(TABULATED + 1) } else { count };
            let place = *places.get_unchecked(cell) as usize;
            let y = *levels.get_unchecked(count).get_unchecked(place >> 16);
            let code = place & 0xffff;
            (y, sums.get_unchecked_mut((k % R) * width + code))
        };
        s[0] += f64::from(y);
        s[1] += square::<SHORT>(y, f64::from(y));
        s[2] += 1.0;
    }
}

/// As [`tabulated`], a group's sums in one register.
///
/// # Safety
/// As [`tabulated`], and the processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn tabulated_avx2<T: Value, const R: usize, const CLAMP: bool, const SHORT: bool>(
    first: u32,
    places: &[u32],
    levels: &[&[f32]; TABULATED + 2],
    idx: &[u32],
    val: &[T],
    sums: &mut [Sums],
    width: usize,
) {
    // The pointer starts at cell 0 of the data set, so that absolute cell numbers index it.
    let places = places.as_ptr().wrapping_sub(first as usize);
    let rows = levels.map(<[f32]>::as_ptr);
    let sums = sums.as_mut_ptr();
    let add = |cell: usize, count: usize, r: usize| {
        // SAFETY: the caller's promises.
        unsafe {
            let count = if CLAMP { count.min(TABULATED + 1) } else { count };
            let place = *places.wrapping_add(cell) as usize;
            let y = *rows.get_unchecked(count).add(place >> 16);
            let code = place & 0xffff;
            add_avx2(sums.add(r * width + code), f64::from(y), square::<SHORT>(y, f64::from(y)), 1.0);
        }
    };
    const { assert!(R == 4) };
    let whole = idx.len() / R * R;
    let mut k = 0;
    while k < whole {
        // SAFETY: there are four more of each; lengths are equal.
        let (cells, counts) = unsafe { (four_u32(idx.as_ptr().add(k)), T::four_counts(val.as_ptr().add(k))) };
        for r in 0..R {
            add(cells[r], counts[r], r);
        }
        k += R;
    }
    while k < idx.len() {
        add(idx[k] as usize, val[k].count(), k % R);
        k += 1;
    }
}

/// `y` squared: of its float32 form in float32 if `SHORT`, of its double otherwise.
#[inline(always)]
fn square<const SHORT: bool>(short: f32, y: f64) -> f64 {
    if SHORT { f64::from(short * short) } else { y * y }
}

/// Adds `y`, its square and `one` to a group's sums.
///
/// # Safety
/// `sums` must be valid, and the processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn add_avx2(sums: *mut Sums, y: f64, square: f64, one: f64) {
    use std::arch::x86_64::{_mm_set_pd, _mm256_add_pd, _mm256_blend_pd, _mm256_castpd128_pd256, _mm256_loadu_pd, _mm256_set_pd, _mm256_storeu_pd};
    let new = _mm256_blend_pd::<0b1100>(_mm256_castpd128_pd256(_mm_set_pd(square, y)), _mm256_set_pd(0.0, one, 0.0, 0.0));
    // SAFETY: the caller's promise.
    unsafe {
        let sums = sums.cast::<f64>();
        _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), new));
    }
}

/// Adds the values themselves up.
///
/// # Safety
/// Every index must be a cell of the block, every code must be below `width`, and `sums` must hold `R * width`.
#[inline(always)]
unsafe fn direct<T: Value, const R: usize, const COUNT: bool, const SHORT: bool>(block: &Block<'_>, idx: &[u32], val: &[T], sums: &mut [Sums], width: usize) {
    let first = block.first as usize;
    for (k, (&cell, &v)) in idx.iter().zip(val).enumerate() {
        let y = v.as_f64();
        // SAFETY: the caller's promises.
        let s = unsafe { sums.get_unchecked_mut((k % R) * width + *block.codes.get_unchecked(cell as usize - first) as usize) };
        s[0] += y;
        s[1] += square::<SHORT>(v.as_f32(), y);
        s[2] += if COUNT && y != 0.0 { 1.0 } else { 0.0 };
    }
}

/// As [`direct`], a group's sums in one register.
///
/// # Safety
/// As [`direct`], and the processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn direct_avx2<T: Value, const R: usize, const COUNT: bool, const SHORT: bool>(
    block: &Block<'_>,
    idx: &[u32],
    val: &[T],
    sums: &mut [Sums],
    width: usize,
) {
    let codes = block.codes.as_ptr().wrapping_sub(block.first as usize);
    let sums = sums.as_mut_ptr();
    for (k, (&cell, &v)) in idx.iter().zip(val).enumerate() {
        let y = v.as_f64();
        let one = if COUNT && y != 0.0 { 1.0 } else { 0.0 };
        // SAFETY: the caller's promises.
        unsafe {
            let code = *codes.wrapping_add(cell as usize) as usize;
            add_avx2(sums.add((k % R) * width + code), y, square::<SHORT>(v.as_f32(), y), one);
        }
    }
}

#[inline(always)]
fn largest_offset_body(idx: &[u32], first: u32) -> u32 {
    idx.iter().fold(0, |most, i| most.max(i.wrapping_sub(first)))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn largest_offset_avx2(idx: &[u32], first: u32) -> u32 {
    largest_offset_body(idx, first)
}

/// The largest distance of an index from `first`; huge where an index is below it.
fn largest_offset(idx: &[u32], first: u32, wide: bool) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if wide {
        // SAFETY: AVX2 is there, see `Kernel::with_avx2`.
        return unsafe { largest_offset_avx2(idx, first) };
    }
    let _ = wide;
    largest_offset_body(idx, first)
}

#[inline(always)]
fn range_of_counts_body<T: Value>(val: &[T]) -> (usize, usize) {
    let Some(&first) = val.first() else { return (usize::MAX, 0) };
    let (least, most) = val.iter().fold((first, first), |(least, most), &v| (if v < least { v } else { least }, if v > most { v } else { most }));
    (least.count(), most.count())
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn range_of_counts_avx2<T: Value>(val: &[T]) -> (usize, usize) {
    range_of_counts_body(val)
}

/// The smallest and the largest count.
fn range_of_counts<T: Value>(val: &[T], wide: bool) -> (usize, usize) {
    #[cfg(target_arch = "x86_64")]
    if wide {
        // SAFETY: as in `largest_offset`.
        return unsafe { range_of_counts_avx2(val) };
    }
    let _ = wide;
    range_of_counts_body(val)
}

#[cfg(test)]
mod tests;
