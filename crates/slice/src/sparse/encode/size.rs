//! The size that rows will have once written.

use crate::layout::ValueType;
use crate::sparse::schema::Values;

/// Page headers, footer and magic bytes of a sparse slice, rounded up; a test holds it against what is written.
const OVERHEAD: usize = 1280;

/// The size of one slice's rows: exact for packed columns, an upper bound of a few bytes per row for list levels.
#[derive(Debug, Clone)]
pub(super) struct Size {
    gene: Packed,
    block: Packed,
    nnz: Packed,
    idx: Packed,
    val: Packed,
    /// Bytes per value of a float matrix; 0 for packed integers.
    float: usize,
    floats: usize,
    rows: usize,
    level_bits: usize,
}

impl Size {
    pub(super) fn new(value: ValueType) -> Self {
        let float = if matches!(value, ValueType::Float32 | ValueType::Float64) { value.width() } else { 0 };
        Self {
            gene: Packed::default(),
            block: Packed::default(),
            nnz: Packed::default(),
            idx: Packed::default(),
            val: Packed::default(),
            float,
            floats: 0,
            rows: 0,
            level_bits: 0,
        }
    }

    pub(super) fn add(&mut self, gene: u32, block: u32, idx: &[u32], values: Values<'_>) {
        self.gene.add(&[gene]);
        self.block.add(&[block]);
        self.nnz.add(&[idx.len() as u32]);
        self.idx.add(idx);
        match values {
            Values::U16(v) => self.val.add(v),
            Values::U32(v) => self.val.add(v),
            Values::F32(_) | Values::F64(_) => self.floats += values.len(),
        }
        self.rows += 1;
        // Levels are hybrid runs of one bit. A long row takes at most two bit-packed groups (2 bytes), their header (1)
        // and one run (5); in a short one, a run covers at least 8 values and takes, with the bit-packed group that
        // follows it, at most 4 bytes.
        self.level_bits += (4 * idx.len().max(1)).min(64);
    }

    /// Bytes of the slice if it were closed now.
    pub(super) fn bytes(&self) -> usize {
        let packed: usize = [&self.gene, &self.block, &self.nnz, &self.idx, &self.val].map(Packed::bytes).iter().sum();
        // Two list columns with two levels each; two sums per row.
        OVERHEAD + packed + self.floats * self.float + 4 * self.level_bits.div_ceil(8) + 16 * self.rows
    }
}

const BLOCK_VALUES: usize = 128;
const MINI: usize = 32;

/// The size of a DELTA_BINARY_PACKED page of 32-bit numbers in blocks of 128 values, as the `parquet` crate writes it.
#[derive(Debug, Clone)]
struct Packed {
    deltas: [i32; BLOCK_VALUES],
    pending: usize,
    last: Option<u32>,
    full_blocks: usize,
}

impl Default for Packed {
    fn default() -> Self {
        Self { deltas: [0; BLOCK_VALUES], pending: 0, last: None, full_blocks: 0 }
    }
}

impl Packed {
    fn add<T: Copy + Into<u32>>(&mut self, mut values: &[T]) {
        let mut last = match (self.last, values.split_first()) {
            (Some(last), _) => last,
            (None, Some((&first, rest))) => {
                values = rest;
                first.into()
            }
            (None, None) => return,
        };
        while !values.is_empty() {
            let (now, later) = values.split_at(values.len().min(BLOCK_VALUES - self.pending));
            for (slot, &value) in self.deltas[self.pending..].iter_mut().zip(now) {
                let value = value.into();
                *slot = value.wrapping_sub(last) as i32;
                last = value;
            }
            self.pending += now.len();
            values = later;
            if self.pending == BLOCK_VALUES {
                self.full_blocks += block_bytes(&self.deltas);
                self.pending = 0;
            }
        }
        self.last = Some(last);
    }

    fn bytes(&self) -> usize {
        // Header: block size (2), miniblocks (1), number of values (at most 4), first value (at most 5).
        12 + self.full_blocks + if self.pending == 0 { 0 } else { block_bytes(&self.deltas[..self.pending]) }
    }
}

fn block_bytes(deltas: &[i32]) -> usize {
    let min = deltas.iter().fold(i32::MAX, |a, &d| a.min(d));
    let zigzag = (min.wrapping_shl(1) ^ (min >> 31)) as u32;
    let vlq = ((32 - zigzag.leading_zeros()).max(1) as usize).div_ceil(7);
    let minis: usize = deltas
        .chunks(MINI)
        .map(|mini| {
            let max = mini.iter().fold(i32::MIN, |a, &d| a.max(d));
            // 32 values of `width` bits are 4 * width bytes.
            4 * (32 - (max.wrapping_sub(min) as u32).leading_zeros()) as usize
        })
        .sum();
    vlq + BLOCK_VALUES / MINI + minis
}
