//! Converts input numbers (numpy's types) into the two forms of the transposer: `u32` positions and [`Chunk`]s of
//! values. It converts chunk by chunk inside the first-level cache. So all later code exists once, and not once per
//! combination of types.

use skytether_common::{Detail, Error, Result};

/// Values converted at once; `Chunk` and the index buffer together stay well inside the first-level cache.
pub(crate) const CHUNK: usize = 2048;

/// The largest magnitude below which every integer is exact as `f32`.
const F32_INTEGERS: u32 = 1 << 24;

mod sealed {
    pub trait Sealed {}
}

/// An integer type that positions (`indptr`, `indices`) may have: `i32`, `i64`, `u32`, `u64`.
pub trait Index: Copy + sealed::Sealed {
    /// The position; negative ones become larger than any dimension.
    fn get(self) -> u64;

    /// Writes `from` to the front of `to` and returns the largest position met (0 for none).
    #[doc(hidden)]
    fn narrow(from: &[Self], to: &mut [u32]) -> u64;
}

macro_rules! index {
    ($($t:ty)*) => {$(
        impl sealed::Sealed for $t {}
        impl Index for $t {
            #[inline]
            #[allow(clippy::cast_sign_loss)]
            fn get(self) -> u64 {
                self as u64
            }

            // Never inlined: it must be compiled here, with this crate's optimisation, not in the caller's crate.
            #[inline(never)]
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            fn narrow(from: &[Self], to: &mut [u32]) -> u64 {
                let mut max = 0;
                for (from, to) in from.iter().zip(to) {
                    max = max.max(*from as u64);
                    *to = *from as u32;
                }
                max
            }
        }
    )*};
}

index!(u32 u64 i32 i64);

/// How a chunk's values are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `codes` are unsigned integers.
    Int,
    /// `codes` are the bits of `f32`.
    F32,
    /// `wide` holds them.
    F64,
}

/// Up to [`CHUNK`] values in the narrowest of three forms that holds all of them exactly.
#[derive(Debug)]
pub struct Chunk {
    pub(crate) form: Form,
    /// The largest code; only for [`Form::Int`].
    pub(crate) max: u32,
    /// Whether a value is zero.
    pub(crate) zeros: bool,
    pub(crate) codes: Vec<u32>,
    pub(crate) wide: Vec<f64>,
}

impl Chunk {
    pub(crate) fn new() -> Self {
        Self { form: Form::Int, max: 0, zeros: false, codes: vec![0; CHUNK], wide: vec![0.0; CHUNK] }
    }

    /// Whether the first `n` values are exact as `f32`.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(crate) fn is_f32(&self, n: usize) -> bool {
        match self.form {
            Form::Int => self.max <= F32_INTEGERS || self.codes[..n].iter().all(|c| (*c as f32) as u64 == u64::from(*c)),
            Form::F32 => true,
            Form::F64 => false,
        }
    }

    /// Changes the form of the first `n` values to a wider one; the caller has seen to it that they are exact there.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn widen(&mut self, n: usize, to: Form) {
        match (self.form, to) {
            (Form::Int, Form::F32) => self.codes[..n].iter_mut().for_each(|c| *c = (*c as f32).to_bits()),
            (Form::Int, Form::F64) => {
                for (wide, code) in self.wide.iter_mut().zip(&self.codes[..n]) {
                    *wide = f64::from(*code);
                }
            }
            (Form::F32, Form::F64) => {
                for (wide, code) in self.wide.iter_mut().zip(&self.codes[..n]) {
                    *wide = f64::from(f32::from_bits(*code));
                }
            }
            _ => return,
        }
        self.form = to;
    }

    /// Takes integers whose bits above 32 are known to be clear.
    fn integers(&mut self, n: usize) {
        let (mut max, mut zeros) = (0, false);
        for code in &self.codes[..n] {
            max = max.max(*code);
            zeros |= *code == 0;
        }
        (self.form, self.max, self.zeros) = (Form::Int, max, zeros);
    }

    /// Classifies the first `n` of `wide` in full. What is no finite number is kept as it is: matrices that are not
    /// tested may hold it, and a test names its place.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn classify(&mut self, n: usize) {
        let (mut int, mut single, mut zeros) = (true, true, false);
        for v in &self.wide[..n] {
            int &= f64::from(*v as u32) == *v;
            // A NaN equals nothing, and any float holds it.
            single &= (f64::from(*v as f32) == *v) | v.is_nan();
            zeros |= *v == 0.0;
        }
        self.zeros = zeros;
        self.form = if int {
            Form::Int
        } else if single {
            Form::F32
        } else {
            Form::F64
        };
        self.max = 0;
        for (code, v) in self.codes.iter_mut().zip(&self.wide[..n]) {
            match self.form {
                Form::Int => {
                    *code = *v as u32;
                    self.max = self.max.max(*code);
                }
                Form::F32 => *code = (*v as f32).to_bits(),
                Form::F64 => break,
            }
        }
    }
}

/// Why a value can't be taken.
#[derive(Debug, Clone, PartialEq)]
pub struct BadValue {
    /// Its number in the slice.
    pub(crate) at: usize,
    /// What is wrong with it.
    pub(crate) why: String,
}

impl BadValue {
    /// The error that names the place.
    pub(crate) fn error(&self, gene: u32, cell: u64) -> Error {
        Error::invalid(format!("gene {gene}, cell {cell}: {}", self.why)).with_detail(Detail::UnfitEntry { gene, cell })
    }
}

/// A type that values may have: `i8` to `i64`, `u8` to `u64`, `f32`, `f64`.
pub trait Value: Copy + sealed::Sealed {
    /// Converts up to [`CHUNK`] values.
    #[doc(hidden)]
    fn convert(from: &[Self], to: &mut Chunk) -> Result<(), BadValue>;
}

fn not_exact(at: usize, value: impl std::fmt::Display) -> BadValue {
    BadValue { at, why: format!("the value {value} is not exact as a 64-bit float; divide the matrix by a common factor first") }
}

macro_rules! narrow_unsigned {
    ($($t:ty)*) => {$(
        impl sealed::Sealed for $t {}
        impl Value for $t {
            #[inline(never)]
            fn convert(from: &[Self], to: &mut Chunk) -> Result<(), BadValue> {
                for (code, v) in to.codes.iter_mut().zip(from) {
                    *code = u32::from(*v);
                }
                to.integers(from.len());
                Ok(())
            }
        }
    )*};
}

macro_rules! narrow_signed {
    ($($t:ty)*) => {$(
        impl sealed::Sealed for $t {}
        impl Value for $t {
            #[inline(never)]
            #[allow(clippy::cast_sign_loss)]
            fn convert(from: &[Self], to: &mut Chunk) -> Result<(), BadValue> {
                let mut negative = false;
                for (code, v) in to.codes.iter_mut().zip(from) {
                    negative |= *v < 0;
                    *code = i32::from(*v) as u32;
                }
                if !negative {
                    to.integers(from.len());
                    return Ok(());
                }
                for (wide, v) in to.wide.iter_mut().zip(from) {
                    *wide = f64::from(*v);
                }
                to.classify(from.len());
                Ok(())
            }
        }
    )*};
}

macro_rules! long {
    ($($t:ty)*) => {$(
        impl Value for $t {
            #[inline(never)]
            #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, clippy::cast_precision_loss)]
            fn convert(from: &[Self], to: &mut Chunk) -> Result<(), BadValue> {
                let mut all: u64 = 0;
                for (code, v) in to.codes.iter_mut().zip(from) {
                    all |= *v as u64;
                    *code = *v as u32;
                }
                if all <= u64::from(u32::MAX) {
                    to.integers(from.len());
                    return Ok(());
                }
                for (at, (wide, v)) in to.wide.iter_mut().zip(from).enumerate() {
                    *wide = *v as f64;
                    // Through i128, because the largest values round up to one that a 64-bit integer does not hold.
                    if *wide as i128 != i128::from(*v) {
                        return Err(not_exact(at, v));
                    }
                }
                to.classify(from.len());
                Ok(())
            }
        }
    )*};
}

narrow_unsigned!(u8 u16);
narrow_signed!(i8 i16);
long!(u64 i64);

// `u32` and `i32` are sealed as index types already.
impl Value for u32 {
    #[inline(never)]
    fn convert(from: &[Self], to: &mut Chunk) -> Result<(), BadValue> {
        to.codes[..from.len()].copy_from_slice(from);
        to.integers(from.len());
        Ok(())
    }
}

impl Value for i32 {
    #[inline(never)]
    #[allow(clippy::cast_sign_loss)]
    fn convert(from: &[Self], to: &mut Chunk) -> Result<(), BadValue> {
        let mut negative = false;
        for (code, v) in to.codes.iter_mut().zip(from) {
            negative |= *v < 0;
            *code = *v as u32;
        }
        if !negative {
            to.integers(from.len());
            return Ok(());
        }
        for (wide, v) in to.wide.iter_mut().zip(from) {
            *wide = f64::from(*v);
        }
        to.classify(from.len());
        Ok(())
    }
}

impl sealed::Sealed for f32 {}
impl Value for f32 {
    #[inline(never)]
    fn convert(from: &[Self], to: &mut Chunk) -> Result<(), BadValue> {
        // Adding 2^23 shifts the integer part of a smaller number to the end of the mantissa: an exact conversion that
        // is vectorised everywhere, unlike the cast.
        const SHIFT: f32 = 8_388_608.0;
        let mut int = true;
        for (code, v) in to.codes.iter_mut().zip(from) {
            let shifted = *v + SHIFT;
            int &= (shifted - SHIFT == *v) & (*v >= 0.0) & (*v < SHIFT);
            *code = shifted.to_bits() & 0x007f_ffff;
        }
        if int {
            to.integers(from.len());
            return Ok(());
        }
        for (wide, v) in to.wide.iter_mut().zip(from) {
            *wide = f64::from(*v) + 0.0;
        }
        to.classify(from.len());
        Ok(())
    }
}

impl sealed::Sealed for f64 {}
impl Value for f64 {
    #[inline(never)]
    #[allow(clippy::cast_possible_truncation)]
    fn convert(from: &[Self], to: &mut Chunk) -> Result<(), BadValue> {
        const SHIFT: f64 = 4_503_599_627_370_496.0;
        const LIMIT: f64 = 4_294_967_296.0;
        let mut int = true;
        for (code, v) in to.codes.iter_mut().zip(from) {
            let shifted = *v + SHIFT;
            int &= (shifted - SHIFT == *v) & (*v >= 0.0) & (*v < LIMIT);
            *code = shifted.to_bits() as u32;
        }
        if int {
            to.integers(from.len());
            return Ok(());
        }
        for (wide, v) in to.wide.iter_mut().zip(from) {
            // Minus zero becomes zero.
            *wide = *v + 0.0;
        }
        to.classify(from.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form<V: Value>(values: &[V]) -> (Form, u32, bool) {
        let mut chunk = Chunk::new();
        V::convert(values, &mut chunk).unwrap();
        (chunk.form, chunk.max, chunk.zeros)
    }

    #[test]
    fn integers_are_recognised_in_every_type() {
        assert_eq!(form(&[1u8, 255]), (Form::Int, 255, false));
        assert_eq!(form(&[1i8, 0]), (Form::Int, 1, true));
        assert_eq!(form(&[1u32, u32::MAX]), (Form::Int, u32::MAX, false));
        assert_eq!(form(&[1i64, i64::from(u32::MAX)]), (Form::Int, u32::MAX, false));
        assert_eq!(form(&[0.0f32, 3.0, 8_388_607.0]), (Form::Int, 8_388_607, true));
        assert_eq!(form(&[1.0f32, 16_777_216.0]), (Form::Int, 16_777_216, false));
        assert_eq!(form(&[1.0f64, 4_294_967_295.0, -0.0]), (Form::Int, u32::MAX, true));
    }

    #[test]
    fn other_numbers_become_the_narrowest_float() {
        assert_eq!(form(&[-1i8]).0, Form::F32);
        assert_eq!(form(&[-16_777_217i32]).0, Form::F64);
        assert_eq!(form(&[1u64 << 40]).0, Form::F32);
        assert_eq!(form(&[(1u64 << 40) + 1]).0, Form::F64);
        assert_eq!(form(&[0.5f32]).0, Form::F32);
        assert_eq!(form(&[0.5f64]).0, Form::F32);
        assert_eq!(form(&[0.1f64]).0, Form::F64);
        assert_eq!(form(&[1e300f64]).0, Form::F64);
        assert_eq!(form(&[4_294_967_296.0f64]).0, Form::F32);
    }

    #[test]
    fn numbers_that_no_float_holds_are_named() {
        let mut chunk = Chunk::new();
        assert_eq!(i64::convert(&[1, (1 << 53) + 1], &mut chunk).unwrap_err().at, 1);
        assert_eq!(u64::convert(&[u64::MAX], &mut chunk).unwrap_err().at, 0);
        assert_eq!(i64::convert(&[i64::MAX], &mut chunk).unwrap_err().at, 0);
        assert!(i64::convert(&[i64::MIN], &mut chunk).is_ok());
    }

    #[test]
    fn what_is_no_finite_number_is_kept() {
        let mut chunk = Chunk::new();
        for (kept, to) in [([0.5f64, f64::NAN], Form::F32), ([0.1, f64::INFINITY], Form::F64), ([2.0, f64::NEG_INFINITY], Form::F32)] {
            f64::convert(&kept, &mut chunk).unwrap();
            assert_eq!((chunk.form, chunk.zeros), (to, false));
            assert!(chunk.wide[..2].iter().zip(kept).all(|(a, b)| a.to_bits() == b.to_bits()));
            let single = kept.map(|v| v as f32);
            f32::convert(&single, &mut chunk).unwrap();
            assert_eq!(chunk.form, Form::F32);
            assert!(chunk.codes[..2].iter().zip(single).all(|(a, b)| *a == b.to_bits()));
        }
    }

    #[test]
    fn widening_keeps_values() {
        let mut chunk = Chunk::new();
        u16::convert(&[7, 9], &mut chunk).unwrap();
        chunk.widen(2, Form::F32);
        assert_eq!(chunk.codes[1], 9f32.to_bits());
        chunk.widen(2, Form::F64);
        assert_eq!(chunk.wide[..2], [7.0, 9.0]);
        u32::convert(&[16_777_217], &mut chunk).unwrap();
        assert!(!chunk.is_f32(1));
    }
}
