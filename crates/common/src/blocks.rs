//! Blocks of cells: the cells that a sparse row of a matrix is about.
//!
//! A matrix has one part, or several: an append adds a part with the new cells. Each part divides its own cells into
//! blocks of [`BLOCK`] cells; its last block may be shorter. The blocks of all parts are numbered on, so a number of a
//! block means the same cells everywhere. See `docs/internals/formats/slice.md`.

use std::ops::Range;

use crate::error::{Error, Result};

/// Cells of a block, at most.
pub const BLOCK: u32 = 65_536;

/// The cells of one part of a matrix, and the numbers of their blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// The number of the first block.
    pub block: u32,
    /// The number of the first cell.
    pub cell: u32,
    /// The number of the cell after the last.
    pub end: u32,
}

impl Span {
    /// The cells of a matrix of one part.
    #[must_use]
    pub fn whole(cells: u32) -> Self {
        Self { block: 0, cell: 0, end: cells }
    }

    /// How many cells.
    #[must_use]
    pub fn cells(&self) -> u32 {
        self.end.saturating_sub(self.cell)
    }

    /// How many blocks.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.cells().div_ceil(BLOCK)
    }

    /// The number of the block after the last.
    #[must_use]
    pub fn next_block(&self) -> u32 {
        self.block.saturating_add(self.blocks())
    }

    /// The cells of block `number`; none if it is no block of this part.
    #[must_use]
    pub fn of(&self, number: u32) -> Range<u32> {
        let Some(at) = number.checked_sub(self.block).filter(|at| *at < self.blocks()) else { return self.end..self.end };
        // Below the end, so it fits.
        let first = self.cell + at * BLOCK;
        first..first.saturating_add(BLOCK).min(self.end)
    }

    /// The number of the block of a cell of this part.
    #[must_use]
    pub fn block_of(&self, cell: u32) -> Option<u32> {
        (self.cell..self.end).contains(&cell).then(|| self.block.saturating_add((cell - self.cell) / BLOCK))
    }
}

/// The blocks of a matrix, or of some of its parts: those that a reader has.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Blocks(Vec<Span>);

impl Blocks {
    /// Those of a matrix of one part.
    #[must_use]
    pub fn whole(cells: u32) -> Self {
        Self(vec![Span::whole(cells)])
    }

    /// Those of parts in their order.
    ///
    /// # Errors
    /// `Corrupt` where cells or blocks overlap, or a block has no cell.
    pub fn new(parts: Vec<Span>) -> Result<Self> {
        let ascend = parts.windows(2).all(|pair| pair[0].end <= pair[1].cell && pair[0].next_block() <= pair[1].block);
        if !ascend || parts.iter().any(|part| part.cell > part.end || part.block > part.cell) {
            return Err(Error::corrupt(format!("the parts of a matrix don't follow on one another: {parts:?}")));
        }
        Ok(Self(parts))
    }

    /// The parts in their order.
    #[must_use]
    pub fn parts(&self) -> &[Span] {
        &self.0
    }

    /// The cells of block `number`; none if there is no such block here.
    #[must_use]
    pub fn of(&self, number: u32) -> Range<u32> {
        self.0.iter().map(|part| part.of(number)).find(|cells| !cells.is_empty()).unwrap_or(0..0)
    }

    /// The place of block `number` among all blocks here.
    #[must_use]
    pub fn place(&self, number: u32) -> Option<usize> {
        let mut before = 0usize;
        for part in &self.0 {
            if let Some(at) = number.checked_sub(part.block).filter(|at| *at < part.blocks()) {
                return Some(before + at as usize);
            }
            before += part.blocks() as usize;
        }
        None
    }

    /// The cells of each block, in order.
    pub fn each(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        self.0.iter().flat_map(|part| (part.block..part.next_block()).map(|number| part.of(number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_part_has_blocks_of_equal_length_but_the_last() {
        let blocks = Blocks::whole(2 * BLOCK + 5);
        assert_eq!(blocks.each().collect::<Vec<_>>(), [0..BLOCK, BLOCK..2 * BLOCK, 2 * BLOCK..2 * BLOCK + 5]);
        assert_eq!((blocks.of(2), blocks.of(3), blocks.place(2), blocks.place(3)), (131_072..131_077, 0..0, Some(2), None));
        assert_eq!(Blocks::whole(0).each().count(), 0);
    }

    /// A part begins a block of its own, wherever its first cell is.
    #[test]
    fn parts_number_their_blocks_on() {
        let first = Span::whole(10);
        let second = Span { block: first.next_block(), cell: first.end, end: BLOCK + 20 };
        let blocks = Blocks::new(vec![first, second]).unwrap();
        assert_eq!(blocks.each().collect::<Vec<_>>(), [0..10, 10..BLOCK + 10, BLOCK + 10..BLOCK + 20]);
        assert_eq!((blocks.of(1), blocks.place(2)), (10..BLOCK + 10, Some(2)));
        assert_eq!((second.block_of(9), second.block_of(10), second.block_of(BLOCK + 10), second.block_of(BLOCK + 20)), (None, Some(1), Some(2), None));
        // A reader that has the second part alone.
        let alone = Blocks::new(vec![second]).unwrap();
        assert_eq!((alone.of(0), alone.of(1), alone.place(0), alone.place(1)), (0..0, 10..BLOCK + 10, None, Some(0)));
    }

    #[test]
    fn parts_that_overlap_are_refused() {
        let first = Span::whole(10);
        for second in [Span { block: 0, cell: 10, end: 20 }, Span { block: 1, cell: 9, end: 20 }, Span { block: 1, cell: 30, end: 20 }] {
            assert!(Blocks::new(vec![first, second]).is_err(), "{second:?}");
        }
        assert!(Blocks::new(vec![Span { block: 7, cell: 3, end: 20 }]).is_err());
    }
}
