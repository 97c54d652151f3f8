//! Running sums of the cells of each block, their state and their result.
//!
//! The state is one Binary column; a block without rows has no bytes in it:
//!
//! | bytes | content |
//! |---|---|
//! | LEB128 each | block, its first cell, cells of it, sums |
//! | per sum 1 | width of its numbers: 0 (all zero), 2, 4 or 8 |
//! | then width x cells | UInt16, UInt32 or Float64, little endian, the narrowest that holds all exactly |
//! | LEB128 | how many `top` there are, and each |
//! | if any, per cell, the last first | LEB128: how many counts it has, then each, descending, and how often |

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, BinaryBuilder, Float64Array, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use datafusion::logical_expr::EmitTo;
use skytether_common::{Error, Result};

use super::bytes::{Reader, bad, put};
use super::tops::Tops;
use crate::aggregate::Store;
use crate::groups::BLOCK;

/// The most numbers of a store: 1 GiB of them.
const MAX_NUMBERS: usize = 1 << 27;
/// The most sums that a state can be of, which bounds what it claims.
const MAX_SUMS: u64 = 1024;

/// The sums of the cells of a block.
#[derive(Debug)]
pub(super) struct BlockSums {
    block: u32,
    first: u64,
    cells: usize,
    /// Per sum, a number per cell; nothing while all are 0.
    pub(super) sums: Vec<Vec<f64>>,
    pub(super) tops: Option<Tops>,
}

/// The blocks of an accumulator.
#[derive(Debug, Default)]
pub struct CellStore {
    blocks: Vec<Option<BlockSums>>,
    numbers: usize,
}

impl CellStore {
    /// Makes room for `rows` blocks.
    pub(super) fn reserve(&mut self, rows: usize) {
        self.blocks.resize_with(rows.max(self.blocks.len()), || None);
    }

    /// The sums of row `at`, which are those of this block with its first cell.
    pub(super) fn open(&mut self, at: usize, (block, first): (u32, u64), cells: usize, sums: usize, top: &Arc<[u32]>) -> Result<&mut BlockSums> {
        let place = self.blocks.get_mut(at).ok_or_else(|| Error::internal("a block has no place in its accumulator"))?;
        if place.is_none() {
            self.numbers += sums * cells;
            if self.numbers > MAX_NUMBERS {
                return Err(Error::exhausted(format!(
                    "cell_sums would keep more than {MAX_NUMBERS} numbers: ask for fewer sums, or for some blocks at a time"
                )));
            }
        }
        let open = place.get_or_insert_with(|| {
            let tops = (!top.is_empty()).then(|| Tops::new(Arc::clone(top), cells));
            BlockSums { block, first, cells, sums: vec![Vec::new(); sums], tops }
        });
        if open.block != block {
            return Err(Error::invalid("cell_sums needs the rows of one block: group by block"));
        }
        let same_top = open.tops.as_ref().map_or(top.is_empty(), |tops| tops.wanted == *top);
        if (open.first, open.cells) != (first, cells) || open.sums.len() != sums || !same_top {
            return Err(Error::corrupt("sums of different queries met in one accumulator of cell_sums"));
        }
        Ok(open)
    }

    fn take(&mut self, emit: EmitTo, rows: usize) -> Vec<Option<BlockSums>> {
        self.reserve(rows);
        let taken = match emit {
            EmitTo::All => std::mem::take(&mut self.blocks),
            EmitTo::First(n) => self.blocks.drain(..n.min(self.blocks.len())).collect(),
        };
        self.numbers -= taken.iter().flatten().map(|b| b.cells * b.sums.len()).sum::<usize>();
        taken
    }

    /// Merges states, each into the row that `groups` says, of `rows` in all.
    ///
    /// # Errors
    /// Corrupt where the bytes are no state; invalid where states are of different blocks.
    pub fn merge_states(&mut self, states: &BinaryArray, groups: &[usize], rows: usize) -> Result<()> {
        self.reserve(rows);
        for (i, &group) in groups.iter().enumerate().filter(|(i, _)| !states.is_null(*i) && !states.value(*i).is_empty()) {
            let mut from = Reader(states.value(i));
            let (block, first, cells, sums) = (from.number()?, from.number()?, from.number()?, from.number()?);
            let block = u32::try_from(block).map_err(|_| bad("is of a block beyond all cells"))?;
            if cells == 0 || cells > u64::from(BLOCK) || sums > MAX_SUMS {
                return Err(bad("is of too many cells or sums"));
            }
            let cells = cells as usize;
            let columns = (0..sums).map(|_| Column::read(&mut from, cells)).collect::<Result<Vec<_>>>()?;
            let top = (0..from.number()?.min(MAX_SUMS + 1)).map(|_| from.number()).collect::<Result<Vec<_>>>()?;
            let top = top.iter().map(|&n| u32::try_from(n).map_err(|_| bad("asks for too many of the largest values"))).collect::<Result<Vec<_>>>()?;
            if top.len() as u64 > MAX_SUMS || !top.is_sorted() || top.first() == Some(&0) {
                return Err(bad("asks for the largest values in numbers out of order"));
            }
            // Each cell has at least a byte.
            if !top.is_empty() && from.0.len() < cells {
                return Err(bad("is too short"));
            }
            let open = self.open(group, (block, first), cells, sums as usize, &top.into())?;
            open.sums.iter_mut().zip(&columns).for_each(|(to, column)| column.add_to(to, cells));
            if let Some(tops) = &mut open.tops {
                tops.merge(&mut from)?;
            }
            if !from.0.is_empty() {
                return Err(bad("is too long"));
            }
        }
        Ok(())
    }

    /// The result of the rows that are emitted, of `rows` in all: `List<Float64>`, NULL for a row without input.
    ///
    /// # Errors
    /// Invalid where a sum is not finite.
    pub fn finish(&mut self, emit: EmitTo, rows: usize) -> Result<ArrayRef> {
        let (mut numbers, mut lengths) = (Vec::new(), Vec::new());
        let mut valid = Vec::new();
        for block in self.take(emit, rows) {
            let before = numbers.len();
            valid.push(block.is_some());
            if let Some(mut block) = block {
                for sum in &block.sums {
                    if let Some(at) = sum.iter().position(|s| !s.is_finite()) {
                        let cell = block.first.saturating_add(at as u64);
                        return Err(Error::invalid(format!("the values of cell {cell} (counted from 0) add up to more than a double holds: scale the matrix")));
                    }
                    numbers.extend_from_slice(sum);
                    numbers.resize(numbers.len() + block.cells - sum.len(), 0.0);
                }
                if let Some(tops) = &mut block.tops {
                    tops.sums(&mut numbers);
                }
            }
            lengths.push(numbers.len() - before);
        }
        if i32::try_from(numbers.len()).is_err() {
            return Err(Error::exhausted("the sums of cells are more than a list holds: ask for fewer sums, or for some blocks at a time"));
        }
        let list = ListArray::try_new(item(), OffsetBuffer::from_lengths(lengths), Arc::new(Float64Array::from(numbers)), Some(valid.into()));
        Ok(Arc::new(list.map_err(|e| Error::internal("cannot build the sums of cells").with_source(e))?))
    }
}

/// The numbers of one sum in a state.
struct Column<'a> {
    width: u8,
    bytes: &'a [u8],
}

impl<'a> Column<'a> {
    fn read(from: &mut Reader<'a>, cells: usize) -> Result<Self> {
        let width = from.bytes(1)?[0];
        if !matches!(width, 0 | 2 | 4 | 8) {
            return Err(bad(&format!("has numbers of {width} bytes")));
        }
        Ok(Self { width, bytes: from.bytes(cells * usize::from(width))? })
    }

    fn add_to(&self, to: &mut Vec<f64>, cells: usize) {
        fn add<const N: usize>(bytes: &[u8], to: &mut [f64], number: impl Fn([u8; N]) -> f64) {
            to.iter_mut().zip(bytes.as_chunks::<N>().0).for_each(|(to, bytes)| *to += number(*bytes));
        }
        if self.width > 0 {
            to.resize(cells, 0.0);
        }
        match self.width {
            2 => add(self.bytes, to, |b| f64::from(u16::from_le_bytes(b))),
            4 => add(self.bytes, to, |b| f64::from(u32::from_le_bytes(b))),
            8 => add(self.bytes, to, f64::from_le_bytes),
            _ => {}
        }
    }

    fn write(sum: &[f64], out: &mut Vec<u8>) {
        // No `f64` but a whole number from 0 on survives the way to an integer and back; -0.0 adds nothing.
        let width = sum.iter().fold(0u8, |width, &s| match s {
            _ if s == 0.0 => width,
            _ if s == f64::from(s as u16) => width.max(2),
            _ if s == f64::from(s as u32) => width.max(4),
            _ => 8,
        });
        out.push(width);
        match width {
            2 => sum.iter().for_each(|&s| out.extend_from_slice(&(s as u16).to_le_bytes())),
            4 => sum.iter().for_each(|&s| out.extend_from_slice(&(s as u32).to_le_bytes())),
            8 => sum.iter().for_each(|&s| out.extend_from_slice(&s.to_le_bytes())),
            _ => {}
        }
    }
}

fn item() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::Float64, false))
}

impl Store for CellStore {
    fn result_type() -> DataType {
        DataType::List(item())
    }

    fn state_types() -> Vec<(&'static str, DataType)> {
        vec![("sums", DataType::Binary)]
    }

    fn result(&mut self, emit: EmitTo, rows: usize) -> Result<ArrayRef> {
        self.finish(emit, rows)
    }

    fn state(&mut self, emit: EmitTo, rows: usize) -> Result<Vec<ArrayRef>> {
        let (mut out, mut one) = (BinaryBuilder::new(), Vec::new());
        for block in self.take(emit, rows) {
            one.clear();
            if let Some(mut block) = block {
                [u64::from(block.block), block.first, block.cells as u64, block.sums.len() as u64].into_iter().for_each(|n| put(&mut one, n));
                block.sums.iter().for_each(|sum| Column::write(sum, &mut one));
                match &mut block.tops {
                    Some(tops) => tops.write(&mut one),
                    None => put(&mut one, 0),
                }
            }
            out.append_value(&one);
        }
        Ok(vec![Arc::new(out.finish())])
    }

    fn merge(&mut self, states: &[ArrayRef], groups: &[usize], rows: usize) -> Result<()> {
        let states = states.first().and_then(|s| s.as_binary_opt::<i32>()).ok_or_else(|| bad("is no binary column"))?;
        self.merge_states(states, groups, rows)
    }

    fn size(&self) -> usize {
        let tops: usize = self.blocks.iter().flatten().filter_map(|b| b.tops.as_ref()).map(Tops::size).sum();
        self.numbers * size_of::<f64>() + tops + self.blocks.capacity() * size_of::<Option<BlockSums>>()
    }
}
