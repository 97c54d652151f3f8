//! The values of one row, one by one, for what needs more of them than sums.

use super::Fault;
use super::block::Block;
use super::value::Value;
use crate::log1p::TABULATED;

/// Calls `put` with the group and the transformed value of each entry of a row that is not zero.
///
/// # Errors
/// As [`each_cell`].
pub(crate) fn each_value<T: Value>(block: &Block<'_>, idx: &[u32], val: &[T], mut put: impl FnMut(u16, f64)) -> Result<(), Fault> {
    each_cell(block, idx, val, |at, y| put(block.codes[at], y))
}

/// Calls `put` with the place in the block and the transformed value of each entry of a row that is not zero.
///
/// # Errors
/// What is wrong with the row: [`Fault::Lengths`], [`Fault::Outside`], or [`Fault::Value`] for a value without a finite
/// transform.
pub(crate) fn each_cell<T: Value>(block: &Block<'_>, idx: &[u32], val: &[T], mut put: impl FnMut(usize, f64)) -> Result<(), Fault> {
    if idx.len() != val.len() {
        return Err(Fault::Lengths);
    }
    let mut levels: [Option<&[f32]>; TABULATED + 1] = [None; TABULATED + 1];
    for (&cell, &value) in idx.iter().zip(val) {
        let at = cell.wrapping_sub(block.first) as usize;
        if at >= block.codes.len() {
            return Err(Fault::Outside(cell));
        }
        let y = match &block.table {
            None => value.as_f64(),
            Some(table) if T::COUNTS && value.count() <= TABULATED => {
                let count = value.count();
                let level = *levels[count].get_or_insert_with(|| table.table.level(count));
                f64::from(level[(table.places[at] >> 16) as usize])
            }
            Some(table) => f64::from(table.value(value.as_f32(), at)),
        };
        if !y.is_finite() {
            return Err(Fault::Value { cell, value: value.as_f64() });
        }
        if y != 0.0 {
            put(at, y);
        }
    }
    Ok(())
}
