//! Checks of a sparse slice beyond its form: the limits of its matrix, and the order of cells.

use arrow::array::{Array, AsArray};
use arrow::compute;
use arrow::datatypes::UInt32Type;
use arrow::record_batch::RecordBatch;
use skytether_common::{Error, Result, Span};

use super::schema::column;
use crate::layout::{BLOCK, Layout, ValueType};

/// A matrix's limits, which its slices are held against.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) cells: u32,
    pub(super) genes: u32,
    pub(super) block: u32,
    pub(super) value: ValueType,
    /// The cells of the part, and their blocks.
    pub(super) span: Span,
}

impl Limits {
    pub(super) fn of(layout: &Layout) -> Result<Self> {
        match *layout {
            Layout::Sparse { n_cells, n_genes, block, value, first_cell, first_block } if block == BLOCK && n_cells <= i32::MAX as u32 => {
                // A block has at least one cell.
                if first_cell > n_cells || first_block > first_cell {
                    return Err(Error::corrupt(format!("a part of a matrix of {n_cells} cells begins at cell {first_cell} with block {first_block}")));
                }
                Ok(Self { cells: n_cells, genes: n_genes, block, value, span: Span { block: first_block, cell: first_cell, end: n_cells } })
            }
            Layout::Sparse { n_cells, block, .. } => Err(Error::unsupported(format!(
                "a matrix of {n_cells} cells in blocks of {block}: at most {} cells in blocks of {BLOCK} are supported",
                i32::MAX
            ))),
            Layout::Table => Err(Error::invalid("a slice of a plain table was read as a sparse one")),
        }
    }
}

/// Checks that gene and block numbers up to `max` are in range.
pub(super) fn check_flat(c: usize, max: u32, limits: Limits) -> Result<()> {
    let blocks = limits.span.next_block();
    match c {
        column::GENE if max >= limits.genes => Err(Error::corrupt(format!("gene {max} of a matrix of {} genes", limits.genes))),
        column::BLOCK if max >= blocks => Err(Error::corrupt(format!("block {max} of a matrix of {blocks} blocks"))),
        _ => Ok(()),
    }
}

/// What is known of a run of cell numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    /// At least the largest of them.
    pub(super) max: u32,
    /// How many of them are not above the one before, `previous` for the first.
    pub(super) descents: usize,
    /// The cell number before the first.
    pub(super) previous: Option<u32>,
}

/// Cell numbers are in range, strictly ascending within each row, and in their row's block. `offsets` begin at 0.
pub(super) fn check_idx(idx: &[u32], offsets: &[i32], block: &[u32], known: Known, limits: Limits) -> Result<()> {
    if known.max >= limits.cells && !idx.is_empty() {
        return Err(Error::corrupt(format!("cell {} of a matrix of {} cells", known.max, limits.cells)));
    }
    // All descents are at the beginnings of rows if there are as many there as there are in all.
    let mut between = 0;
    for (ends, &b) in offsets.windows(2).zip(block) {
        let (start, end) = (ends[0] as usize, ends[1] as usize);
        if start == end {
            continue;
        }
        let cells = limits.span.of(b);
        if !cells.contains(&idx[start]) || !cells.contains(&idx[end - 1]) {
            return Err(Error::corrupt(format!("cells {} to {} are not of block {b}", idx[start], idx[end - 1])));
        }
        let before = if start > 0 { Some(idx[start - 1]) } else { known.previous };
        between += usize::from(before.is_some_and(|before| idx[start] <= before));
    }
    if between != known.descents {
        return Err(Error::corrupt("the cell numbers of a row are not strictly ascending"));
    }
    Ok(())
}

/// All checks, for a batch that Arrow's reader decoded.
pub(super) fn validate(batch: &RecordBatch, columns: &[usize], limits: Limits) -> Result<()> {
    let find = |c: usize| columns.iter().position(|&x| x == c).map(|i| batch.column(i));
    for c in [column::GENE, column::BLOCK] {
        if let Some(max) = find(c).and_then(|a| compute::max(a.as_primitive::<UInt32Type>())) {
            check_flat(c, max, limits)?;
        }
    }
    let Some(nnz) = find(column::NNZ).map(|a| a.as_primitive::<UInt32Type>()) else { return Ok(()) };
    if let Some(n) = nnz.values().iter().find(|&&n| n > limits.block) {
        return Err(Error::corrupt(format!("a row of {n} values in a block of {} cells", limits.block)));
    }
    for list in [column::IDX, column::VAL].into_iter().filter_map(find) {
        if list.as_list::<i32>().offsets().lengths().zip(nnz.values()).any(|(len, &n)| len != n as usize) {
            return Err(Error::corrupt("nnz disagrees with the lists of a sparse slice"));
        }
    }
    if let (Some(list), Some(block)) = (find(column::IDX), find(column::BLOCK)) {
        let list = list.as_list::<i32>();
        let (first, last) = (list.offsets()[0], list.offsets()[list.len()]);
        let idx = list.values().as_primitive::<UInt32Type>().values().slice(first as usize, (last - first) as usize);
        let offsets: Vec<i32> = list.offsets().iter().map(|o| o - first).collect();
        let max = idx.iter().fold(0, |a, &b| a.max(b));
        let descents = idx.windows(2).filter(|w| w[1] <= w[0]).count();
        let known = Known { max, descents, previous: None };
        check_idx(&idx, &offsets, block.as_primitive::<UInt32Type>().values(), known, limits)?;
    }
    Ok(())
}
