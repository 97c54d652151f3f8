//! Decoding of Parquet's DELTA_BINARY_PACKED pages, eight or sixteen values at a time where the machine has AVX2.
//!
//! Layout (Parquet format, "Delta Encoding"): a header of block size, miniblocks per block, number of values and first
//! value; then per block the least delta (zigzag), one bit width per miniblock and the miniblocks, each value's delta
//! minus the least one, packed from the lowest bit on. This decoder takes blocks of 128 values in four miniblocks of
//! 32, which is what writers write for 32-bit columns, and widths up to 32; it gives nothing for anything else, which
//! Arrow's decoder may then try.
//!
//! Alongside the values it finds what validation needs, at no measurable cost: the largest value, and how many
//! deltas are not positive.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod block;
#[cfg(target_arch = "x86_64")]
mod lanes;
#[cfg(target_arch = "x86_64")]
mod narrow;
mod scalar;

use bytes::Bytes;
use skytether_common::{Error, Result};

pub(crate) use self::block::Target;
use self::block::{BLOCK_VALUES, DeltaState, MINI, MINIS, SLACK, unzigzag};

/// A column's values and what is known about them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Column<T> {
    pub(crate) values: Vec<T>,
    /// How many values are, as signed numbers' wrapped difference, not greater than the one before.
    pub(crate) descents: usize,
    /// The largest value; 0 where there is none.
    pub(crate) max: u32,
}

/// Which code decodes whole blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Engine {
    /// The fastest that this machine has.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            return Engine::Avx2;
        }
        Engine::Scalar
    }
}

/// A page's values, taken run by run: what is decoded is used while it is in the cache.
#[derive(Debug)]
pub(crate) struct Stream<T> {
    page: Bytes,
    /// How far the page is read.
    at: usize,
    expected: usize,
    engine: Engine,
    state: DeltaState,
    /// Values decoded, `carry` included.
    decoded: usize,
    /// Decoded with the last block, but not taken yet: fewer than a block.
    carry: Vec<T>,
    /// The last value that was taken.
    previous: Option<T>,
    /// How many of the values taken are descents.
    descents: usize,
}

impl<T: Target> Stream<T> {
    /// Begins to decode `page`, which must hold exactly `expected` values; `None` where its parameters are not those
    /// that this decoder takes.
    ///
    /// # Errors
    /// `Corrupt` where lengths or counts do not fit.
    pub(crate) fn open(page: Bytes, expected: usize) -> Result<Option<Self>> {
        Self::open_with(page, expected, Engine::best())
    }

    fn open_with(page: Bytes, expected: usize, engine: Engine) -> Result<Option<Self>> {
        let mut input = Input { bytes: &page, at: 0 };
        let (block, minis) = (input.vlq()?, input.vlq()?);
        let count = input.vlq()?;
        let first = unzigzag(input.vlq()?) as u32;
        if block != BLOCK_VALUES as u64 || minis != MINIS as u64 {
            return Ok(None);
        }
        if count != expected as u64 {
            return Err(Error::corrupt(format!("a page says it has {count} values where {expected} are due")));
        }
        // A block takes at least 5 bytes, so this bounds what a short page can make us allocate.
        let blocks = expected.saturating_sub(1).div_ceil(BLOCK_VALUES);
        if blocks > (page.len() - input.at) / (1 + MINIS) {
            return Err(Error::corrupt(format!("a page of {} bytes cannot hold {expected} values", page.len())));
        }
        let carry = if expected == 0 { Vec::new() } else { vec![T::from_u32(first)] };
        let state = DeltaState { last: first, max: [if expected == 0 { 0 } else { first }; 8], ascents: [0; 8] };
        let at = input.at;
        Ok(Some(Self { at, page, expected, engine, state, decoded: carry.len(), carry, previous: None, descents: 0 }))
    }

    /// The next `n` values (or as many as are left); `None` where a block is not of the form that this decoder takes.
    /// [`Column::max`] may be that of values soon to come. After an error or `None`, nothing
    /// that follows means anything.
    ///
    /// # Errors
    /// `Corrupt` where the page ends too early, or a value does not fit `T`.
    pub(crate) fn take(&mut self, n: usize) -> Result<Option<Column<T>>> {
        let n = n.min(self.carry.len() + self.expected - self.decoded);
        let mut values: Vec<T> = Vec::with_capacity(n + BLOCK_VALUES);
        values.append(&mut self.carry);
        while values.len() < n {
            let blocks = (n - values.len()).div_ceil(BLOCK_VALUES);
            self.ordinary_blocks(&mut values, blocks);
            if values.len() < n && !self.block(&mut values)? {
                return Ok(None);
            }
        }
        let max = self.state.max.iter().fold(0, |a, &b| a.max(b));
        if max > T::MAX {
            return Err(Error::corrupt(format!("a value of {max} is too large for its column")));
        }
        self.carry.extend_from_slice(&values[n..]);
        values.truncate(n);
        // What is decoded and not taken does not count yet.
        let ascents: usize = self.state.ascents.iter().map(|&n| n as usize).sum();
        self.previous = values.last().copied().or(self.previous);
        let mut ahead = 0;
        let mut before = self.previous;
        for &value in &self.carry {
            ahead += usize::from(before.is_some_and(|b| value.to_u32().wrapping_sub(b.to_u32()) as i32 <= 0));
            before = Some(value);
        }
        let descents = self.decoded.saturating_sub(1 + ascents + ahead);
        let here = descents.saturating_sub(self.descents);
        self.descents = descents;
        Ok(Some(Column { values, descents: here, max }))
    }

    /// Decodes blocks onto `values`, at most `count`, as long as they need no special care.
    fn ordinary_blocks(&mut self, values: &mut Vec<T>, count: usize) {
        let count = count.min((self.expected - self.decoded) / BLOCK_VALUES);
        match self.engine {
            Engine::Scalar => {}
            #[cfg(target_arch = "x86_64")]
            Engine::Avx2 => {
                values.reserve(count * BLOCK_VALUES);
                // SAFETY: the engine was detected; there is room for `count` blocks, and all values of
                // `done` blocks were written.
                unsafe {
                    let done = avx2::blocks(&self.page, &mut self.at, count, &mut self.state, values.as_mut_ptr().add(values.len()));
                    values.set_len(values.len() + done * BLOCK_VALUES);
                    self.decoded += done * BLOCK_VALUES;
                }
            }
        }
    }

    /// Decodes one block onto `values`; false where it is of another form.
    fn block(&mut self, values: &mut Vec<T>) -> Result<bool> {
        let mut input = Input { bytes: &self.page, at: self.at };
        let left = (self.expected - self.decoded).min(BLOCK_VALUES);
        let min_delta = unzigzag(input.vlq()?) as u32;
        let mut widths: [u8; MINIS] = input.take(MINIS)?.try_into().map_err(|_| Error::internal("a block has no widths"))?;
        // Miniblocks after the last value have no body, whatever their width says.
        widths.iter_mut().skip(left.div_ceil(MINI)).for_each(|w| *w = 0);
        if widths.iter().any(|&w| w > 32) {
            return Ok(false);
        }
        let packed = input.take(widths.iter().map(|&w| usize::from(w) * MINI / 8).sum())?;
        // Bytes after the last value are padding, and must not count.
        scalar::some(&padded(packed), widths, left, min_delta, &mut self.state, values);
        self.at = input.at;
        self.decoded += left;
        Ok(true)
    }
}

/// The packed bytes of a block, followed by zeros.
fn padded(packed: &[u8]) -> [u8; 4 * BLOCK_VALUES + SLACK] {
    let mut padded = [0u8; 4 * BLOCK_VALUES + SLACK];
    padded[..packed.len()].copy_from_slice(packed);
    padded
}

/// A page's bytes and how far they are read.
struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let taken = self.bytes.get(self.at..).and_then(|rest| rest.get(..n)).ok_or_else(|| Error::corrupt("a page of packed values ends too early"))?;
        self.at += n;
        Ok(taken)
    }

    /// A ULEB128 number of at most 64 bits.
    fn vlq(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or_else(|| Error::corrupt("a page of packed values ends within a number"))?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Error::corrupt("a number in a page of packed values has more than 64 bits"))
    }
}

#[cfg(test)]
mod tests;
