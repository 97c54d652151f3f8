//! A page: rows that are close to one another, with their numbers in each of the index's columns, their places, and
//! perhaps values of columns.
//!
//! Its bytes:
//! 1. `u32 LE`: the number of rows.
//! 2. The numbers of each column, packed.
//! 3. The rows' places in the segment, ascending, packed.
//! 4. Up to the end: an Arrow IPC stream with one batch of the values, or nothing.
//!
//! Packed numbers are:
//! 1. `u64 LE`: the lowest number, which is subtracted from all.
//! 2. `u8`: how many low bits are zero in all differences. These bits are left out.
//! 3. `u8`: the bits of each difference that are stored.
//! 4. The differences, packed from the lowest bit on.
//!
//! A page has no checksum: its segment's head has it.

use skytether_common::{Error, Result};

/// The most rows of a page.
pub const MAX_ROWS: usize = 1 << 14;

/// A page, unpacked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// For each column of the index a number per row.
    pub numbers: Vec<Vec<u64>>,
    /// Where the rows are in their segment.
    pub rows: Vec<u32>,
    /// Where in the page's bytes the values begin.
    pub values: usize,
}

fn pack(out: &mut Vec<u8>, numbers: impl Iterator<Item = u64> + Clone) {
    let low = numbers.clone().min().unwrap_or(0);
    let all = numbers.clone().fold(0, |bits, number| bits | (number - low));
    let (shift, width) = if all == 0 { (0, 0) } else { (all.trailing_zeros(), u64::BITS - all.leading_zeros() - all.trailing_zeros()) };
    out.extend_from_slice(&low.to_le_bytes());
    out.extend([shift as u8, width as u8]);
    let (mut held, mut bits) = (0u128, 0);
    for number in numbers {
        held |= u128::from((number - low) >> shift) << bits;
        bits += width;
        while bits >= 8 {
            out.push(held as u8);
            held >>= 8;
            bits -= 8;
        }
    }
    if bits > 0 {
        out.push(held as u8);
    }
}

fn cut_short() -> Error {
    Error::corrupt("a page of an index is cut short")
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Result<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(len).ok_or_else(cut_short)?;
    *bytes = rest;
    Ok(taken)
}

fn unpack(bytes: &mut &[u8], rows: usize) -> Result<Vec<u64>> {
    let low = u64::from_le_bytes(take(bytes, 8)?.try_into().map_err(|_| cut_short())?);
    let [shift, width] = take(bytes, 2)?.try_into().map_err(|_| cut_short())?;
    let (shift, width) = (u32::from(shift), u32::from(width));
    if shift + width > u64::BITS {
        return Err(Error::corrupt("a page of an index has numbers of more than 64 bits"));
    }
    let packed = take(bytes, (rows * width as usize).div_ceil(8))?;
    let mask = if width == 0 { 0 } else { u64::MAX >> (u64::BITS - width) };
    let (mut held, mut bits, mut packed) = (0u128, 0, packed.iter());
    let mut numbers = Vec::with_capacity(rows);
    for _ in 0..rows {
        while bits < width {
            held |= u128::from(*packed.next().ok_or_else(cut_short)?) << bits;
            bits += 8;
        }
        let above = (held as u64 & mask) << shift;
        numbers.push(low.checked_add(above).ok_or_else(|| Error::corrupt("a page of an index has a number above all"))?);
        held >>= width;
        bits -= width;
    }
    Ok(numbers)
}

impl Page {
    /// A page's bytes: `numbers` of each column, where the rows are, and the values.
    #[must_use]
    pub fn encode(numbers: &[Vec<u64>], rows: &[u32], values: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + rows.len() * (4 + 4 * numbers.len()) + values.len());
        out.extend_from_slice(&(rows.len() as u32).to_le_bytes());
        for column in numbers {
            pack(&mut out, column.iter().copied());
        }
        pack(&mut out, rows.iter().map(|row| u64::from(*row)));
        out.extend_from_slice(values);
        out
    }

    /// Decodes the bytes of [`Self::encode`], for an index of `columns` columns and a segment of `rows` rows.
    ///
    /// # Errors
    /// Corrupt.
    pub fn decode(all: &[u8], columns: usize, rows: u32) -> Result<Self> {
        let mut bytes = all;
        let count = u32::from_le_bytes(take(&mut bytes, 4)?.try_into().map_err(|_| cut_short())?) as usize;
        if count > MAX_ROWS {
            return Err(Error::corrupt(format!("a page of an index claims {count} rows; at most {MAX_ROWS} are allowed")));
        }
        let numbers = (0..columns).map(|_| unpack(&mut bytes, count)).collect::<Result<Vec<_>>>()?;
        let places = unpack(&mut bytes, count)?;
        if !places.is_sorted_by(|a, b| a < b) || places.last().is_some_and(|last| *last >= u64::from(rows)) {
            return Err(Error::corrupt("a page of an index names rows that its segment does not have, or one twice"));
        }
        Ok(Self { numbers, rows: places.into_iter().map(|place| place as u32).collect(), values: all.len() - bytes.len() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pages_survive(rows in prop::collection::vec((any::<u64>(), 0..9u64), 0..300), shift in 0..60u32, values in prop::collection::vec(any::<u8>(), 0..20)) {
            let numbers = vec![rows.iter().map(|(a, _)| a << shift).collect::<Vec<_>>(), rows.iter().map(|(_, b)| *b).collect()];
            let places: Vec<u32> = (0..rows.len() as u32).map(|row| 3 * row).collect();
            let bytes = Page::encode(&numbers, &places, &values);
            let page = Page::decode(&bytes, 2, 3 * rows.len() as u32 + 1).unwrap();
            prop_assert_eq!((&page.numbers, &page.rows, &bytes[page.values..]), (&numbers, &places, values.as_slice()));
            // Cut anywhere, it is damage or the values are shorter.
            for cut in 0..bytes.len().saturating_sub(values.len()) {
                prop_assert!(Page::decode(&bytes[..cut], 2, u32::MAX).is_err());
            }
        }

        #[test]
        fn anything_is_a_page_or_damage(bytes in prop::collection::vec(any::<u8>(), 0..200), columns in 0..4usize) {
            if let Ok(page) = Page::decode(&bytes, columns, 1000) {
                prop_assert!(page.rows.len() <= MAX_ROWS && page.numbers.iter().all(|of| of.len() == page.rows.len()));
            }
        }
    }
}
