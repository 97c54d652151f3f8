//! One field of many records of a fixed size: comparison, selection and aggregation.
//!
//! All values are little-endian. Records need not be aligned. Each loop is compiled for each type and comparison, so
//! that it has no branch per record but the comparison.

use std::ops::Range;

/// The type of a field, by its number in `skytether_ebpf.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}

impl Type {
    pub(crate) fn of(number: u32) -> Option<Self> {
        const ALL: [Type; 10] = [Type::I8, Type::U8, Type::I16, Type::U16, Type::I32, Type::U32, Type::I64, Type::U64, Type::F32, Type::F64];
        ALL.get(number.checked_sub(1)? as usize).copied()
    }

    /// The length of a value in bytes.
    pub(crate) fn size(self) -> u64 {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

/// A comparison of a field with a constant, by its number in `skytether_ebpf.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    pub(crate) fn of(number: u64) -> Option<Self> {
        const ALL: [Comparison; 6] =
            [Comparison::Equal, Comparison::NotEqual, Comparison::Less, Comparison::LessOrEqual, Comparison::Greater, Comparison::GreaterOrEqual];
        ALL.get(usize::try_from(number).ok()?.checked_sub(1)?).copied()
    }
}

/// The sum of values. Columns have fewer than 2⁶² values, so that integers do not overflow.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sum {
    integer: i128,
    float: f64,
}

/// A type that values are widened to: all integers to 64 bits, all floats to `f64`.
trait Wide: Copy + PartialOrd {
    fn from_bits(bits: u64) -> Self;
    fn bits(self) -> u64;
    fn add_to(self, sum: &mut Sum);
    /// The sum modulo 2⁶⁴, and whether that is another number.
    fn finish(sum: Sum) -> (u64, bool);
    /// Whether the value can be a minimum or a maximum.
    fn is_ordered(self) -> bool {
        true
    }
}

impl Wide for i64 {
    fn from_bits(bits: u64) -> Self {
        bits.cast_signed()
    }
    fn bits(self) -> u64 {
        self.cast_unsigned()
    }
    fn add_to(self, sum: &mut Sum) {
        sum.integer = sum.integer.wrapping_add(i128::from(self));
    }
    fn finish(sum: Sum) -> (u64, bool) {
        (sum.integer as u64, i64::try_from(sum.integer).is_err())
    }
}

impl Wide for u64 {
    fn from_bits(bits: u64) -> Self {
        bits
    }
    fn bits(self) -> u64 {
        self
    }
    fn add_to(self, sum: &mut Sum) {
        sum.integer = sum.integer.wrapping_add(i128::from(self));
    }
    fn finish(sum: Sum) -> (u64, bool) {
        (sum.integer as u64, u64::try_from(sum.integer).is_err())
    }
}

impl Wide for f64 {
    fn from_bits(bits: u64) -> Self {
        f64::from_bits(bits)
    }
    fn bits(self) -> u64 {
        self.to_bits()
    }
    fn add_to(self, sum: &mut Sum) {
        sum.float += self;
    }
    fn finish(sum: Sum) -> (u64, bool) {
        (sum.float.to_bits(), false)
    }
    fn is_ordered(self) -> bool {
        !self.is_nan()
    }
}

/// A type of fields.
trait Number: Copy {
    type Wide: Wide;
    const SIZE: usize;
    /// # Safety
    /// `SIZE` bytes at `from` can be read.
    unsafe fn load(from: *const u8) -> Self;
    fn wide(self) -> Self::Wide;
}

macro_rules! numbers {
    ($($number:ty => $wide:ty;)*) => {$(
        impl Number for $number {
            type Wide = $wide;
            const SIZE: usize = size_of::<$number>();
            #[inline]
            unsafe fn load(from: *const u8) -> Self {
                // SAFETY: the caller says that the bytes can be read; any bytes are a value, at any address.
                <$number>::from_le_bytes(unsafe { from.cast::<[u8; size_of::<$number>()]>().read() })
            }
            #[inline]
            fn wide(self) -> $wide {
                <$wide>::from(self)
            }
        }
    )*};
}

numbers! {
    i8 => i64; u8 => u64; i16 => i64; u16 => u64; i32 => i64; u32 => u64; i64 => i64; u64 => u64; f32 => f64; f64 => f64;
}

/// The values of a field: the first is at the beginning of `bytes`, each other one `stride` bytes further.
#[derive(Clone, Copy)]
pub(crate) struct Column<'a> {
    bytes: &'a [u8],
    stride: usize,
    count: usize,
    kind: Type,
}

/// A column whose type is known to the compiler.
struct Values<'a, T> {
    column: Column<'a>,
    kind: std::marker::PhantomData<T>,
}

impl<T: Number> Values<'_, T> {
    /// # Safety
    /// `index` is less than the column's count, and `T` is its type.
    #[inline]
    unsafe fn at(&self, index: usize) -> T::Wide {
        debug_assert!(index < self.column.count && index * self.column.stride + T::SIZE <= self.column.bytes.len());
        // SAFETY: `Column::new` checked that the last value lies within the bytes, and this one is not behind it.
        unsafe { T::load(self.column.bytes.as_ptr().add(index * self.column.stride)) }.wide()
    }
}

/// Evaluates `$body` with `$values` as the typed values of `$column`.
macro_rules! typed {
    ($column:expr, $values:ident => $body:expr) => {{
        macro_rules! of {
            ($number:ty) => {{
                let $values = Values::<$number> { column: $column, kind: std::marker::PhantomData };
                $body
            }};
        }
        match $column.kind {
            Type::I8 => of!(i8),
            Type::U8 => of!(u8),
            Type::I16 => of!(i16),
            Type::U16 => of!(u16),
            Type::I32 => of!(i32),
            Type::U32 => of!(u32),
            Type::I64 => of!(i64),
            Type::U64 => of!(u64),
            Type::F32 => of!(f32),
            Type::F64 => of!(f64),
        }
    }};
}

/// Evaluates `$body` with `$test` as the comparison with `$constant`.
macro_rules! compared {
    ($comparison:expr, $constant:expr, $test:ident => $body:expr) => {{
        let constant = Wide::from_bits($constant);
        macro_rules! by {
            ($operator:tt) => {{
                let $test = |value| value $operator constant;
                $body
            }};
        }
        match $comparison {
            Comparison::Equal => by!(==),
            Comparison::NotEqual => by!(!=),
            Comparison::Less => by!(<),
            Comparison::LessOrEqual => by!(<=),
            Comparison::Greater => by!(>),
            Comparison::GreaterOrEqual => by!(>=),
        }
    }};
}

fn count<T: Number>(values: &Values<'_, T>, records: Range<usize>, test: impl Fn(T::Wide) -> bool) -> u64 {
    debug_assert!(records.end <= values.column.count);
    // SAFETY: the callers cut `records` off at the column's count.
    records.map(|i| u64::from(test(unsafe { values.at(i) }))).sum()
}

/// Calls `word` with the results for each 64 records, the first in the lowest bit.
fn words<T: Number>(values: &Values<'_, T>, records: Range<usize>, test: impl Fn(T::Wide) -> bool, mut word: impl FnMut(u64)) {
    debug_assert!(records.end <= values.column.count);
    let mut from = records.start;
    while from < records.end {
        let to = records.end.min(from + 64);
        let mut bits = 0;
        for i in from..to {
            // SAFETY: as in `count`.
            bits |= u64::from(test(unsafe { values.at(i) })) << (i - from);
        }
        word(bits);
        from = to;
    }
}

fn aggregate<T: Number>(values: &Values<'_, T>, records: Range<usize>, selected: Option<&[u8]>, into: &mut Aggregate) {
    debug_assert!(records.end <= values.column.count);
    let (mut count, mut sum) = (into.count, into.sum);
    let mut range = into.range.map(|(low, high)| (T::Wide::from_bits(low), T::Wide::from_bits(high)));
    let mut take = |i: usize| {
        // SAFETY: as in `count`.
        let value = unsafe { values.at(i) };
        count += 1;
        value.add_to(&mut sum);
        if value.is_ordered() {
            let (low, high) = range.unwrap_or((value, value));
            range = Some((if value < low { value } else { low }, if value > high { value } else { high }));
        }
    };
    match selected {
        None => records.for_each(take),
        Some(bitmap) => each_selected(bitmap, records, &mut take),
    }
    *into = Aggregate { count, sum, range: range.map(|(low, high)| (low.bits(), high.bits())) };
}

/// Calls `take` with those of `records` whose bit in `bitmap` is set.
pub(crate) fn each_selected(bitmap: &[u8], records: Range<usize>, mut take: impl FnMut(usize)) {
    for byte in records.start / 8..records.end.div_ceil(8) {
        let mut bits = bitmap.get(byte).copied().unwrap_or(0);
        while bits != 0 {
            let i = byte * 8 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            if records.contains(&i) {
                take(i);
            }
        }
    }
}

/// Count, sum, minimum and maximum, the values as the bits of the type that they are widened to.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Aggregate {
    pub(crate) count: u64,
    sum: Sum,
    /// Minimum and maximum, if there is a value that is a number.
    pub(crate) range: Option<(u64, u64)>,
}

impl Aggregate {
    /// The sum of values of type `kind`, modulo 2⁶⁴ if they are integers, and whether that is another number.
    pub(crate) fn sum(&self, kind: Type) -> (u64, bool) {
        match kind {
            Type::I8 | Type::I16 | Type::I32 | Type::I64 => i64::finish(self.sum),
            Type::U8 | Type::U16 | Type::U32 | Type::U64 => u64::finish(self.sum),
            Type::F32 | Type::F64 => f64::finish(self.sum),
        }
    }
}

impl<'a> Column<'a> {
    /// How many bytes a column spans from its first value, or `None` if that is no length.
    pub(crate) fn span(kind: Type, count: u64, stride: u64) -> Option<u64> {
        match count.checked_sub(1) {
            None => Some(0),
            Some(steps) => steps.checked_mul(stride)?.checked_add(kind.size()),
        }
    }

    /// The column, or `None` if `bytes` is shorter than [`Column::span`].
    pub(crate) fn new(bytes: &'a [u8], kind: Type, count: u64, stride: u64) -> Option<Self> {
        let span = Self::span(kind, count, stride)?;
        if bytes.len() as u64 != span {
            return None;
        }
        Some(Self { bytes, stride: usize::try_from(stride).ok()?, count: usize::try_from(count).ok()?, kind })
    }

    fn cut(&self, records: Range<usize>) -> Range<usize> {
        records.start.min(self.count)..records.end.min(self.count)
    }

    /// How many of `records` compare so with the constant.
    pub(crate) fn count(&self, records: Range<usize>, comparison: Comparison, constant: u64) -> u64 {
        let records = self.cut(records);
        typed!(*self, values => compared!(comparison, constant, test => count(&values, records, test)))
    }

    /// Calls `word` with 64 results at a time: see [`words`].
    pub(crate) fn select(&self, records: Range<usize>, comparison: Comparison, constant: u64, word: impl FnMut(u64)) {
        let records = self.cut(records);
        typed!(*self, values => compared!(comparison, constant, test => words(&values, records, test, word)));
    }

    /// Adds `records`, or those of them that the bitmap selects, to `into`.
    pub(crate) fn aggregate(&self, records: Range<usize>, selected: Option<&[u8]>, into: &mut Aggregate) {
        let records = self.cut(records);
        typed!(*self, values => aggregate(&values, records, selected, into));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Count, sum, overflow and extremes.
    fn all(column: &Column<'_>, selected: Option<&[u8]>) -> (u64, u64, bool, Option<(u64, u64)>) {
        let mut into = Aggregate::default();
        for from in (0..column.count).step_by(16) {
            column.aggregate(from..from + 16, selected, &mut into);
        }
        let (sum, overflow) = into.sum(column.kind);
        (into.count, sum, overflow, into.range)
    }

    #[test]
    fn integers_aggregate_to_what_rust_computes() {
        let values: Vec<i16> = (0..100).map(|i| (i * 7919 % 1000 - 500) as i16).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let column = Column::new(&bytes, Type::I16, 100, 2).unwrap();
        let sum: i64 = values.iter().map(|value| i64::from(*value)).sum();
        let (low, high) = (values.iter().min().unwrap(), values.iter().max().unwrap());
        let range = Some((i64::from(*low) as u64, i64::from(*high) as u64));
        assert_eq!(all(&column, None), (100, sum as u64, false, range));
        let mut bitmap = Vec::new();
        column.select(0..100, Comparison::Less, (-100i64) as u64, |word| bitmap.extend(word.to_le_bytes()));
        let some: Vec<i64> = values.iter().map(|value| i64::from(*value)).filter(|value| *value < -100).collect();
        let range = Some((*some.iter().min().unwrap() as u64, *some.iter().max().unwrap() as u64));
        assert_eq!(all(&column, Some(&bitmap)), (some.len() as u64, some.iter().sum::<i64>() as u64, false, range));
        assert_eq!(column.count(0..1000, Comparison::Less, (-100i64) as u64), some.len() as u64);
    }

    #[test]
    fn sum_of_large_integers_wraps_and_says_so() {
        let bytes: Vec<u8> = [u64::MAX, 2].iter().flat_map(|value| value.to_le_bytes()).collect();
        let column = Column::new(&bytes, Type::U64, 2, 8).unwrap();
        assert_eq!(all(&column, None), (2, 1, true, Some((2, u64::MAX))));
        // What some steps exceed and the whole does not is no overflow.
        let bytes: Vec<u8> = [[i64::MAX; 16], [-i64::MAX; 16]].iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
        let column = Column::new(&bytes, Type::I64, 32, 8).unwrap();
        assert_eq!(all(&column, None), (32, 0, false, Some((-i64::MAX as u64, i64::MAX as u64))));
    }

    #[test]
    fn floats_that_are_no_numbers_are_no_extremes() {
        let values = [f32::NAN, 1.5, -2.25, f32::NAN];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let column = Column::new(&bytes, Type::F32, 4, 4).unwrap();
        let range = Some(((-2.25f64).to_bits(), 1.5f64.to_bits()));
        assert_eq!(all(&column, Some(&[0b0110])), (2, (-0.75f64).to_bits(), false, range));
        let (count, sum, _, found) = all(&column, None);
        assert_eq!((count, found, f64::from_bits(sum).is_nan()), (4, range, true));
        assert_eq!(column.count(0..4, Comparison::NotEqual, 1.5f64.to_bits()), 3);
        assert_eq!(column.count(0..4, Comparison::GreaterOrEqual, (-3f64).to_bits()), 2);
    }

    #[test]
    fn column_longer_than_its_bytes_is_refused() {
        assert!(Column::new(&[0; 10], Type::U32, 2, 6).is_some());
        assert!(Column::new(&[0; 9], Type::U32, 2, 6).is_none());
        assert!(Column::new(&[], Type::U32, 0, 6).is_some());
        assert!(Column::new(&[0; 8], Type::U64, u64::MAX, u64::MAX).is_none());
    }
}
