//! Records that a program describes, and what the bulk helpers of every machine do with them.
//!
//! A program describes one field of its records by 32 bytes, `struct st_column`, which are the same for eBPF and for
//! WebAssembly. The machine finds the bytes; the work on them is here. It goes in steps of 4,096 records. Before each
//! step the caller's `work` is asked, which charges one instruction per record and looks at the deadline.

use std::ops::Range;

use crate::columns::{Aggregate, Column, Comparison, Type, each_selected};

/// How many records are worked on between two calls of `work`. A multiple of 64.
const STEP: usize = 4096;

/// The length of `struct st_column` in bytes.
pub const COLUMN_BYTES: usize = 32;

/// What an argument has wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wrong(pub &'static str);

const TOO_LONG: Wrong = Wrong("the column is longer than memory");

/// `struct st_column`: a field of records.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// The address of the first record.
    base: u64,
    /// How many records there are.
    count: u64,
    /// From one record to the next, in bytes.
    stride: u64,
    /// From a record to its field, in bytes.
    offset: u64,
    kind: Type,
}

/// How a selection changes a bitmap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Combine {
    /// It replaces it.
    Set,
    /// Both must be set.
    And,
    /// One must be set.
    Or,
}

impl Combine {
    /// The way with that number in the header.
    ///
    /// # Errors
    /// There is none.
    pub fn of(number: u64) -> Result<Self, Wrong> {
        match number {
            0 => Ok(Self::Set),
            1 => Ok(Self::And),
            2 => Ok(Self::Or),
            _ => Err(Wrong("the way to combine with the bitmap has no such number")),
        }
    }
}

/// A comparison with a constant: the constant's bits are those of the wide type of the field.
#[derive(Debug, Clone, Copy)]
pub struct Condition {
    comparison: Comparison,
    constant: u64,
}

impl Condition {
    /// The comparison with that number in the header.
    ///
    /// # Errors
    /// There is none.
    pub fn new(comparison: u64, constant: u64) -> Result<Self, Wrong> {
        let comparison = Comparison::of(comparison).ok_or(Wrong("the comparison has no such number"))?;
        Ok(Self { comparison, constant })
    }
}

/// What an aggregation found, as bits of the wide type of the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// How many values there are.
    pub count: u64,
    /// Their sum; integers modulo 2⁶⁴.
    pub sum: u64,
    /// Whether the sum of integers is another number.
    pub overflow: bool,
    /// Minimum and maximum, if there is a value that is a number.
    pub range: Option<(u64, u64)>,
}

impl Summary {
    /// `struct st_aggregate`.
    #[must_use]
    pub fn words(&self) -> [u64; 5] {
        let (low, high) = self.range.unwrap_or_default();
        [self.count, self.sum, low, high, u64::from(self.overflow)]
    }
}

impl Field {
    /// The field that these bytes of a program describe.
    ///
    /// # Errors
    /// They make no sense.
    pub fn read(bytes: &[u8]) -> Result<Self, Wrong> {
        let word = |at: usize| bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes);
        let (base, count, layout, kind) = (word(0), word(8), word(16), word(24));
        let (stride, offset) = (layout & 0xffff_ffff, layout >> 32);
        let Some(kind) = u32::try_from(kind).ok().and_then(Type::of) else {
            return Err(Wrong("the column's type has no such number, or its last field is not 0"));
        };
        if offset + kind.size() > stride {
            return Err(Wrong("the field does not lie within the record"));
        }
        Ok(Self { base, count, stride, offset, kind })
    }

    /// The upper half of the address of the first record: a machine may number its regions so.
    #[must_use]
    pub fn region(&self) -> u64 {
        self.base >> 32
    }

    /// The address of the first value and the length of all that the values span.
    ///
    /// # Errors
    /// No memory is so long.
    pub fn values(&self) -> Result<(u64, u64), Wrong> {
        let span = Column::span(self.kind, self.count, self.stride);
        self.base.checked_add(self.offset).zip(span).ok_or(TOO_LONG)
    }

    /// The address and the length of the whole records.
    ///
    /// # Errors
    /// No memory is so long.
    pub fn records(&self) -> Result<(u64, u64), Wrong> {
        Ok((self.base, self.count.checked_mul(self.stride).ok_or(TOO_LONG)?))
    }

    /// The length of a bitmap with a bit for each record.
    #[must_use]
    pub fn bitmap_length(&self) -> u64 {
        self.count.div_ceil(8)
    }

    fn column<'a, E: From<Wrong>>(&self, values: &'a [u8]) -> Result<Column<'a>, E> {
        Ok(Column::new(values, self.kind, self.count, self.stride).ok_or(TOO_LONG)?)
    }

    /// Compares the [`Field::values`], writes the results to `bitmap`, and counts the bits then set.
    ///
    /// # Errors
    /// Those of `work`, and `values` of another length.
    pub fn select<E: From<Wrong>>(
        &self,
        values: &[u8],
        condition: Condition,
        bitmap: &mut [u8],
        combine: Combine,
        work: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<u64, E> {
        let combine: fn(u8, u8) -> u8 = match combine {
            Combine::Set => |_, new| new,
            Combine::And => |old, new| old & new,
            Combine::Or => |old, new| old | new,
        };
        let column = self.column::<E>(values)?;
        let mut selected = 0;
        each_step(self.count, work, |records| {
            let mut to = bitmap.get_mut(records.start / 8..).unwrap_or(&mut []).chunks_mut(8);
            column.select(records, condition.comparison, condition.constant, |word| {
                for (place, new) in to.next().unwrap_or(&mut []).iter_mut().zip(word.to_le_bytes()) {
                    *place = combine(*place, new);
                    selected += u64::from(place.count_ones());
                }
            });
        })?;
        // Bits behind the last record are the program's own.
        let last = (self.count % 8) as u32;
        let others = if last == 0 { 0 } else { bitmap.last().map_or(0, |byte| (byte >> last).count_ones()) };
        Ok(selected - u64::from(others))
    }

    /// How many of the [`Field::values`] compare so.
    ///
    /// # Errors
    /// Those of `work`, and `values` of another length.
    pub fn count<E: From<Wrong>>(&self, values: &[u8], condition: Condition, work: impl FnMut(u64) -> Result<(), E>) -> Result<u64, E> {
        let column = self.column::<E>(values)?;
        let mut found = 0;
        each_step(self.count, work, |records| found += column.count(records, condition.comparison, condition.constant))?;
        Ok(found)
    }

    /// Count, sum and extremes of the [`Field::values`] that the bitmap selects, or of all.
    ///
    /// # Errors
    /// Those of `work`, and `values` of another length.
    pub fn aggregate<E: From<Wrong>>(&self, values: &[u8], bitmap: Option<&[u8]>, work: impl FnMut(u64) -> Result<(), E>) -> Result<Summary, E> {
        let column = self.column::<E>(values)?;
        let mut found = Aggregate::default();
        each_step(self.count, work, |records| column.aggregate(records, bitmap, &mut found))?;
        let (sum, overflow) = found.sum(self.kind);
        Ok(Summary { count: found.count, sum, overflow, range: found.range })
    }

    /// Calls `emit` with each of the [`Field::records`] that the bitmap selects, or with all, until it is false, and
    /// counts them. `work` gets the bytes emitted since its last call besides the records before it.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn emit<E>(
        &self,
        records: &[u8],
        bitmap: Option<&[u8]>,
        mut emit: impl FnMut(&[u8]) -> bool,
        mut work: impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<Emitted, E> {
        let (stride, count) = (self.stride as usize, usize::try_from(self.count).unwrap_or(usize::MAX));
        let (mut emitted, mut told, mut fits, mut from) = (0, 0, true, 0);
        while from < count {
            let to = count.min(from.saturating_add(STEP));
            // Records that are emitted are charged for before the next step: a step is short enough.
            work((to - from) as u64, (emitted - told) * self.stride)?;
            told = emitted;
            let mut take = |i: usize| {
                if fits {
                    fits = records.get(i * stride..(i + 1) * stride).is_some_and(&mut emit);
                    emitted += 1;
                }
            };
            match bitmap {
                None => (from..to).for_each(&mut take),
                Some(bitmap) => each_selected(bitmap, from..to, &mut take),
            }
            if !fits {
                return Ok(Emitted::TooMuch);
            }
            from = to;
        }
        work(0, (emitted - told) * self.stride)?;
        Ok(Emitted::Records(emitted))
    }
}

/// What [`Field::emit`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emitted {
    /// It emitted this number of records.
    Records(u64),
    /// A record was refused.
    TooMuch,
}

/// How many of the first `bits` bits are set. `bytes` ends with the last of them.
#[must_use]
pub fn count_bits(bytes: &[u8], bits: u64) -> u64 {
    let last = (bits % 8) as u32;
    let unused = if last == 0 { 0 } else { bytes.last().map_or(0, |byte| (byte >> last).count_ones()) };
    let all: u64 = bytes.iter().map(|byte| u64::from(byte.count_ones())).sum();
    all - u64::from(unused)
}

/// Calls `step` with a few records after the other, and `work` before each.
fn each_step<E>(count: u64, mut work: impl FnMut(u64) -> Result<(), E>, mut step: impl FnMut(Range<usize>)) -> Result<(), E> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let mut from = 0;
    while from < count {
        let to = count.min(from.saturating_add(STEP));
        work((to - from) as u64)?;
        step(from..to);
        from = to;
    }
    Ok(())
}
