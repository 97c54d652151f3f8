//! The cells of a block as the kernel sees them: their groups, and the table of their logarithms.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::Float32Array;

use crate::log1p::{Table, shared_table};

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

/// The group of every cell of a data set, and what bounds them.
///
/// The kernel indexes by groups without looking at each: the bound is taken once, here, and compared with the kernel's width for every row.
#[derive(Debug, Clone)]
pub struct Codes {
    codes: Vec<u16>,
    below: usize,
}

impl Codes {
    /// The groups' numbers, one per cell.
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

    /// Cell by cell.
    #[must_use]
    pub fn as_slice(&self) -> &[u16] {
        &self.codes
    }
}

/// One more than the largest code, 0 without any.
fn bound(codes: &[u16]) -> usize {
    codes.iter().max().map_or(0, |&most| usize::from(most) + 1)
}

/// The cells of one block, as one spec sees them.
#[derive(Debug, Clone)]
pub struct Block<'a> {
    /// The number of the first cell.
    pub(super) first: u32,
    /// The group of each cell; all below `below`.
    pub(super) codes: &'a [u16],
    pub(super) below: usize,
    /// With the transform log1p CP10k: the block's table, of as many cells.
    pub(super) table: Option<Arc<Tabulated>>,
}

/// The logarithms of a block's cells, and where the kernel finds what it needs of a cell in one load.
#[derive(Debug)]
pub(crate) struct Tabulated {
    pub(super) table: Arc<Table>,
    /// Per cell its slot in the table (upper half) and its group (lower half).
    pub(super) places: Box<[u32]>,
    /// The groups' bound, that of [`Codes`].
    below: usize,
}

impl Tabulated {
    /// The cells `cells` of a data set; `table` is theirs. `None` where there are no such cells or the table has not as many.
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

    /// The totals of the block's cells.
    pub(super) fn totals(&self) -> &[f32] {
        self.table.totals()
    }

    /// Bytes of memory, the table (which is shared by the process and bounded there) not counted.
    pub(crate) fn size(&self) -> usize {
        self.places.len() * size_of::<u32>()
    }
}

impl<'a> Block<'a> {
    /// A block of the cells from `first` on. `totals` (of all cells of the data set) asks for the transform log1p CP10k.
    #[must_use]
    pub fn new(first: u32, codes: &'a [u16], totals: Option<&Arc<Float32Array>>) -> Self {
        let below = bound(codes);
        let table = totals.and_then(|t| Tabulated::of(codes, below, shared_table(t, first as usize, codes.len(), has_avx2())).map(Arc::new));
        Self { first, codes, below, table }
    }

    /// The cells `cells` of a data set; `table` is made of these. `None` where there are no such cells or the table has not as many.
    pub(crate) fn of(codes: &'a Codes, cells: Range<usize>, table: Option<Arc<Tabulated>>) -> Option<Self> {
        let first = u32::try_from(cells.start).ok()?;
        let part = codes.codes.get(cells)?;
        let fits = table.as_ref().is_none_or(|t| t.places.len() == part.len() && t.below == codes.below);
        fits.then_some(Self { first, codes: part, below: codes.below, table })
    }
}
