//! The bytes of one gene's entries: a sequence of records in ascending cell order.
//!
//! A record is the gap and the value. The gap is LEB128: cell minus the last record's cell minus one; for the first
//! record the cell minus the base. The value is LEB128 for integers, and 4 or 8 little-endian bytes for floats. A gap
//! of 2^32 or more is a jump backwards: it is the cell plus 2^32, and only occurs until a run is tidied.

use skytether_common::{Error, Result};

use crate::numbers::Form;

/// The most bytes a record takes: a backward jump and an `f64`.
pub(crate) const MAX_RECORD: usize = 13;

/// Room for one record.
pub(crate) const RECORD: usize = 16;

const BACK: u64 = 1 << 32;

/// A value as a run stores it.
pub(crate) trait Code: Copy {
    /// How it is stored.
    const FORM: Form;

    /// Writes the value; returns its length.
    fn put(self, to: &mut [u8]) -> usize;

    /// The length of most values: one byte for integers, that of the type for floats.
    const SHORT: usize;

    /// Whether this value has that length.
    fn is_short(self) -> bool;

    /// Writes a value of that length.
    fn put_short(self, to: &mut [u8]);
}

/// An unsigned integer.
#[derive(Clone, Copy)]
pub(crate) struct IntCode(pub(crate) u32);
/// The bits of an `f32`.
#[derive(Clone, Copy)]
pub(crate) struct SingleCode(pub(crate) u32);
/// An `f64`.
#[derive(Clone, Copy)]
pub(crate) struct DoubleCode(pub(crate) f64);

impl Code for IntCode {
    const FORM: Form = Form::Int;
    #[inline(always)]
    fn put(self, to: &mut [u8]) -> usize {
        put_varint(u64::from(self.0), to)
    }
    const SHORT: usize = 1;
    #[inline(always)]
    fn is_short(self) -> bool {
        self.0 < 0x80
    }
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)]
    fn put_short(self, to: &mut [u8]) {
        to[0] = self.0 as u8;
    }
}

impl Code for SingleCode {
    const FORM: Form = Form::F32;
    #[inline(always)]
    fn put(self, to: &mut [u8]) -> usize {
        to[..4].copy_from_slice(&self.0.to_le_bytes());
        4
    }
    const SHORT: usize = 4;
    #[inline(always)]
    fn is_short(self) -> bool {
        true
    }
    #[inline(always)]
    fn put_short(self, to: &mut [u8]) {
        self.put(to);
    }
}

impl Code for DoubleCode {
    const FORM: Form = Form::F64;
    #[inline(always)]
    fn put(self, to: &mut [u8]) -> usize {
        to[..8].copy_from_slice(&self.0.to_bits().to_le_bytes());
        8
    }
    const SHORT: usize = 8;
    #[inline(always)]
    fn is_short(self) -> bool {
        true
    }
    #[inline(always)]
    fn put_short(self, to: &mut [u8]) {
        self.put(to);
    }
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
fn put_varint(mut v: u64, to: &mut [u8]) -> usize {
    let mut n = 0;
    while v >= 0x80 {
        to[n] = v as u8 | 0x80;
        v >>= 7;
        n += 1;
    }
    to[n] = v as u8;
    n + 1
}

/// Encodes one record into `to`; `next` is the smallest cell that may follow. Returns the length and whether it is a
/// jump backwards (or a repetition).
#[inline(always)]
pub(crate) fn put<C: Code>(to: &mut [u8; RECORD], next: u32, cell: u32, code: C) -> (usize, bool) {
    let back = cell < next;
    let gap = if back { BACK + u64::from(cell) } else { u64::from(cell - next) };
    let n = put_varint(gap, to);
    (n + code.put(&mut to[n..]), back)
}

/// Appends one ascending record with the value's bits.
pub(crate) fn push_bits(out: &mut Vec<u8>, form: Form, gap: u32, bits: u64) {
    let mut record = [0u8; RECORD];
    let n = put_varint(u64::from(gap), &mut record);
    #[allow(clippy::cast_possible_truncation)]
    let m = match form {
        Form::Int => put_varint(bits, &mut record[n..]),
        Form::F32 => SingleCode(bits as u32).put(&mut record[n..]),
        Form::F64 => DoubleCode(f64::from_bits(bits)).put(&mut record[n..]),
    };
    out.extend_from_slice(&record[..n + m]);
}

#[inline(always)]
fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut v = 0u64;
    for shift in [0, 7, 14, 21, 28] {
        let b = *bytes.get(*at)?;
        *at += 1;
        v |= u64::from(b & 0x7f) << shift;
        if b < 0x80 {
            return Some(v);
        }
    }
    None
}

/// What a value of a run is decoded to.
pub(crate) trait Decoded: Copy + Default {
    fn from_int(v: u32) -> Self;
    fn from_single(bits: u32) -> Self;
    fn from_double(bits: u64) -> Self;
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
mod decoded {
    use super::Decoded;

    /// The stored bits, whatever the form: for re-encoding.
    impl Decoded for u64 {
        fn from_int(v: u32) -> Self {
            v.into()
        }
        fn from_single(bits: u32) -> Self {
            bits.into()
        }
        fn from_double(bits: u64) -> Self {
            bits
        }
    }

    // The result's type is chosen after all values were seen: none of these conversions loses anything.
    macro_rules! decoded {
        ($($t:ty)*) => {$(
            impl Decoded for $t {
                #[inline(always)]
                fn from_int(v: u32) -> Self {
                    v as Self
                }
                #[inline(always)]
                fn from_single(bits: u32) -> Self {
                    f32::from_bits(bits) as Self
                }
                #[inline(always)]
                fn from_double(bits: u64) -> Self {
                    f64::from_bits(bits) as Self
                }
            }
        )*};
    }
    decoded!(u16 u32 f32 f64);
}

fn damaged() -> Error {
    Error::corrupt("the transposition's temporary data are damaged; check the disk of the spill directory and start again")
}

fn fixed<const N: usize>(bytes: &[u8], at: &mut usize) -> Option<[u8; N]> {
    let value = bytes.get(*at..*at + N)?.try_into().ok()?;
    *at += N;
    Some(value)
}

#[inline(always)]
fn value<T: Decoded>(bytes: &[u8], at: &mut usize, form: Form) -> Option<T> {
    Some(match form {
        Form::Int => T::from_int(u32::try_from(varint(bytes, at)?).ok()?),
        Form::F32 => T::from_single(u32::from_le_bytes(fixed(bytes, at)?)),
        Form::F64 => T::from_double(u64::from_le_bytes(fixed(bytes, at)?)),
    })
}

/// Where decoding of a piece stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The next record belongs to this cell, at or past the requested end; it was not consumed.
    Beyond(u32),
    /// The piece is used up but for the start of a record.
    Piece,
}

/// Appends the records of `bytes` with cells below `end`; `next` is the smallest cell that may come and moves on.
/// Unless `last`, it stops before what could be an incomplete record. Returns the bytes consumed.
pub(crate) fn decode<T: Decoded>(
    bytes: &[u8],
    last: bool,
    form: Form,
    next: &mut u32,
    end: u32,
    cells: &mut Vec<u32>,
    values: &mut Vec<T>,
) -> Result<(usize, Stop)> {
    let safe = if last { bytes.len() } else { bytes.len().saturating_sub(MAX_RECORD - 1) };
    let mut at = 0;
    let mut least = *next;
    let most = bytes.len() / 2 + 1;
    cells.reserve(most);
    values.reserve(most);
    let stop = loop {
        if at >= safe {
            break Stop::Piece;
        }
        if form == Form::Int
            && let Some(&[gap, v]) = bytes.get(at..at + 2)
            && (gap | v) < 0x80
        {
            let cell = least.checked_add(u32::from(gap)).ok_or_else(damaged)?;
            if cell >= end {
                break Stop::Beyond(cell);
            }
            least = cell + 1;
            cells.push(cell);
            values.push(T::from_int(u32::from(v)));
            at += 2;
            continue;
        }
        let start = at;
        let gap = varint(bytes, &mut at).and_then(|g| u32::try_from(g).ok()).ok_or_else(damaged)?;
        let cell = least.checked_add(gap).ok_or_else(damaged)?;
        if cell >= end {
            at = start;
            break Stop::Beyond(cell);
        }
        values.push(value(bytes, &mut at, form).ok_or_else(damaged)?);
        cells.push(cell);
        least = cell + 1;
    };
    *next = least;
    Ok((at, stop))
}

/// All records of a complete stream that may jump backwards, as (cell, bits).
pub(crate) fn decode_untidy(bytes: &[u8], form: Form, out: &mut Vec<(u32, u64)>) -> Result<()> {
    let (mut at, mut next) = (0, 0u32);
    while at < bytes.len() {
        let gap = varint(bytes, &mut at).ok_or_else(damaged)?;
        let cell = match gap.checked_sub(BACK) {
            Some(cell) => u32::try_from(cell).map_err(|_| damaged())?,
            None => u32::try_from(gap).ok().and_then(|g| next.checked_add(g)).ok_or_else(damaged)?,
        };
        out.push((cell, value(bytes, &mut at, form).ok_or_else(damaged)?));
        next = cell.checked_add(1).ok_or_else(damaged)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_every_form_come_back_across_pieces() {
        let entries: Vec<(u32, u32)> = (0..500u32).map(|i| (i * i * 17, 1 + (i * 7919) % 70_000)).collect();
        for form in [Form::Int, Form::F32, Form::F64] {
            let (mut bytes, mut next) = (Vec::new(), 0);
            for &(cell, v) in &entries {
                let bits = match form {
                    Form::Int => u64::from(v),
                    Form::F32 => u64::from((v as f32).to_bits()),
                    Form::F64 => f64::from(v).to_bits(),
                };
                push_bits(&mut bytes, form, cell - next, bits);
                next = cell + 1;
            }
            for piece in [MAX_RECORD, 40, 10_000] {
                let (mut at, mut next, mut cells, mut values) = (0, 0, Vec::new(), Vec::<f64>::new());
                while at < bytes.len() {
                    let end = (at + piece).min(bytes.len());
                    at += decode(&bytes[at..end], end == bytes.len(), form, &mut next, u32::MAX, &mut cells, &mut values).unwrap().0;
                }
                assert!(cells.iter().zip(&values).map(|(c, v)| (*c, *v as u32)).eq(entries.iter().copied()), "{form:?} {piece}");
            }
        }
    }

    #[test]
    fn decoding_stops_before_the_end_cell() {
        let mut bytes = Vec::new();
        push_bits(&mut bytes, Form::Int, 3, 1);
        push_bits(&mut bytes, Form::Int, 200, 1);
        let (mut next, mut cells, mut values) = (0, Vec::new(), Vec::<u16>::new());
        let stop = decode(&bytes, true, Form::Int, &mut next, 204, &mut cells, &mut values).unwrap();
        assert_eq!((stop, next, cells), ((2, Stop::Beyond(204)), 4, vec![3]));
    }

    #[test]
    fn backward_jumps_and_repetitions_are_reported() {
        let (mut bytes, mut record) = (Vec::new(), [0; RECORD]);
        for (next, cell, back) in [(0, 4_000_000_000, false), (4_000_000_001, 0, true), (1, 0, true), (1, 1, false)] {
            let (n, told) = put(&mut record, next, cell, IntCode(300));
            assert_eq!(told, back);
            bytes.extend_from_slice(&record[..n]);
        }
        let mut out = Vec::new();
        decode_untidy(&bytes, Form::Int, &mut out).unwrap();
        assert_eq!(out, [(4_000_000_000, 300), (0, 300), (0, 300), (1, 300)]);
    }

    #[test]
    fn damage_is_an_error() {
        for bytes in [&[0x80u8][..], &[0xff; 20], &[1], &[0xff, 0xff, 0xff, 0xff, 0x7f, 1]] {
            let (mut next, mut cells, mut values) = (5, Vec::new(), Vec::<u32>::new());
            assert!(decode(bytes, true, Form::Int, &mut next, u32::MAX, &mut cells, &mut values).is_err(), "{bytes:?}");
            assert!(decode_untidy(&bytes[..1], Form::F64, &mut Vec::new()).is_err());
        }
    }
}
