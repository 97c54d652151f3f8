//! The kernel's view of the cells of a block: their groups and the table of their logarithms.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::Float32Array;

use crate::log1p::{Formula, Table, shared_table};

/// Whether this processor has AVX2.
#[must_use]
pub fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("avx2")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// The group number of every cell of a data set, and their upper bound.
///
/// The kernel uses group numbers as indices without a bounds check. The bound is computed here, once, and compared with
/// the kernel's width for every row.
#[derive(Debug, Clone)]
pub struct Codes {
    codes: Vec<u16>,
    below: usize,
}

impl Codes {
    /// Codes from group numbers, one per cell.
    #[must_use]
    pub fn new(codes: Vec<u16>) -> Self {
        let below = bound(&codes);
        Self { codes, below }
    }

    /// The number of cells.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.codes.len()
    }

    /// The group numbers, cell by cell.
    #[must_use]
    pub fn as_slice(&self) -> &[u16] {
        &self.codes
    }
}

/// One more than the largest code; 0 without codes.
fn bound(codes: &[u16]) -> usize {
    codes.iter().max().map_or(0, |&most| usize::from(most) + 1)
}

/// The cells of one block for one spec.
#[derive(Debug, Clone)]
pub struct Block<'a> {
    /// The number of the first cell.
    pub(super) first: u32,
    /// The group number of each cell; all are below `below`.
    pub(super) codes: &'a [u16],
    pub(super) below: usize,
    /// For a transform: the block's table, which covers the same cells.
    pub(super) table: Option<Arc<Tabulated>>,
}

/// The table of a block's transformed counts, with slot and group of each cell packed so that one load gets both.
#[derive(Debug)]
pub(crate) struct Tabulated {
    pub(super) table: Arc<Table>,
    /// Per cell: its slot in the table (upper half) and its group (lower half).
    pub(super) places: Box<[u32]>,
    /// The upper bound of the groups, from [`Codes`].
    below: usize,
}

impl Tabulated {
    /// For the cells `cells` of a data set and their table. `None` if there are no such cells or the table's size
    /// differs.
    pub(crate) fn new(codes: &Codes, cells: Range<usize>, table: Arc<Table>) -> Option<Self> {
        Self::of(codes.codes.get(cells)?, codes.below, table)
    }

    fn of(codes: &[u16], below: usize, table: Arc<Table>) -> Option<Self> {
        if table.slots().len() != codes.len() {
            return None;
        }
        let places = table.slots().iter().zip(codes).map(|(&slot, &code)| u32::from(slot) << 16 | u32::from(code)).collect();
        Some(Self { table, places, below })
    }

    /// The transform of `x` in the cell at place `at` of the block, which must be one.
    #[inline]
    pub(super) fn value(&self, x: f32, at: usize) -> f32 {
        self.table.formula().value(x, self.table.totals()[at])
    }

    /// Bytes of memory without the table, which the process shares and bounds.
    pub(crate) fn size(&self) -> usize {
        self.places.len() * size_of::<u32>()
    }
}

impl<'a> Block<'a> {
    /// A block of the cells from `first` on. `totals` (of all cells of the data set) requests the transform log1p
    /// CP10k.
    #[must_use]
    pub fn new(first: u32, codes: &'a [u16], totals: Option<&Arc<Float32Array>>) -> Self {
        let below = bound(codes);
        let table =
            totals.and_then(|t| Tabulated::of(codes, below, shared_table(Formula::Log1pCp10k, t, first as usize, codes.len(), has_avx2())).map(Arc::new));
        Self { first, codes, below, table }
    }

    /// For the cells `cells` of a data set and their table. `None` if there are no such cells or the table does not
    /// fit.
    pub(crate) fn of(codes: &'a Codes, cells: Range<usize>, table: Option<Arc<Tabulated>>) -> Option<Self> {
        let first = u32::try_from(cells.start).ok()?;
        let part = codes.codes.get(cells)?;
        let fits = table.as_ref().is_none_or(|t| t.places.len() == part.len() && t.below == codes.below);
        fits.then_some(Self { first, codes: part, below: codes.below, table })
    }
}
