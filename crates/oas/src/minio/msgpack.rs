//! MessagePack, as far as `xl.meta` needs it: a reader that takes what it expects and skips the rest.
//!
//! Lengths that bytes claim are never believed beyond the bytes that are there, and nesting is bounded.
//!
//! See also <https://github.com/msgpack/msgpack/blob/master/spec.md>.

use skytether_common::{Error, Result};

/// How deep values may lie in one another.
const DEEPEST: usize = 32;

/// Bytes that are read from the front.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

fn wrong(what: &str) -> Error {
    Error::corrupt(format!("no MessagePack: {what}"))
}

impl<'a> Reader<'a> {
    /// All of these bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What was not read.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or_else(|| wrong("it ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?.first().copied().unwrap_or_default())
    }

    /// A number of `length` bytes, the most significant first.
    fn big_endian(&mut self, length: usize) -> Result<u64> {
        Ok(self.take(length)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// A length of `length` bytes, of what needs at least `each` further bytes per unit.
    fn count(&mut self, length: usize, each: usize) -> Result<usize> {
        let count = usize::try_from(self.big_endian(length)?).unwrap_or(usize::MAX);
        if count > self.rest.len() / each { Err(wrong("it ends too early")) } else { Ok(count) }
    }

    /// The number of elements of an array.
    ///
    /// # Errors
    /// `Corrupt` for anything else, as in all others.
    pub fn array(&mut self) -> Result<usize> {
        match self.byte()? {
            // Nil is an empty one.
            0xC0 => Ok(0),
            byte @ 0x90..=0x9F => Ok(usize::from(byte & 0x0F)),
            0xDC => self.count(2, 1),
            0xDD => self.count(4, 1),
            _ => Err(wrong("an array is missing")),
        }
    }

    /// The number of entries of a map.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn map(&mut self) -> Result<usize> {
        match self.byte()? {
            0xC0 => Ok(0),
            byte @ 0x80..=0x8F => Ok(usize::from(byte & 0x0F)),
            0xDE => self.count(2, 2),
            0xDF => self.count(4, 2),
            _ => Err(wrong("a map is missing")),
        }
    }

    /// Bytes, or the bytes of a text.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = match self.byte()? {
            0xC0 => 0,
            byte @ 0xA0..=0xBF => usize::from(byte & 0x1F),
            0xC4 | 0xD9 => self.count(1, 1)?,
            0xC5 | 0xDA => self.count(2, 1)?,
            0xC6 | 0xDB => self.count(4, 1)?,
            _ => return Err(wrong("bytes are missing")),
        };
        self.take(length)
    }

    /// A number that is not negative.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn number(&mut self) -> Result<u64> {
        let signed = |number: u64, bits: u32| if number >> (bits - 1) == 0 { Ok(number) } else { Err(wrong("a number is negative")) };
        match self.byte()? {
            byte @ 0x00..=0x7F => Ok(byte.into()),
            0xCC => self.big_endian(1),
            0xCD => self.big_endian(2),
            0xCE => self.big_endian(4),
            0xCF => self.big_endian(8),
            0xD0 => signed(self.big_endian(1)?, 8),
            0xD1 => signed(self.big_endian(2)?, 16),
            0xD2 => signed(self.big_endian(4)?, 32),
            0xD3 => signed(self.big_endian(8)?, 64),
            _ => Err(wrong("a number is missing")),
        }
    }

    /// Skips a value of any kind.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn skip(&mut self) -> Result<()> {
        self.skip_within(DEEPEST)
    }

    fn skip_within(&mut self, depth: usize) -> Result<()> {
        let each = |this: &mut Self, count: usize| {
            let depth = depth.checked_sub(1).ok_or_else(|| wrong("it is nested too deep"))?;
            (0..count).try_for_each(|_| this.skip_within(depth))
        };
        let first = self.rest.first().copied().unwrap_or_default();
        match first {
            0x80..=0x8F | 0xDE | 0xDF => {
                let count = self.map()?;
                each(self, count.saturating_mul(2))
            }
            0x90..=0x9F | 0xDC | 0xDD => {
                let count = self.array()?;
                each(self, count)
            }
            0xA0..=0xBF | 0xC4..=0xC6 | 0xD9..=0xDB => self.bytes().map(|_| ()),
            _ => {
                let length = match self.byte()? {
                    0x00..=0x7F | 0xE0..=0xFF | 0xC0 | 0xC2 | 0xC3 => 0,
                    0xCC | 0xD0 => 1,
                    0xCD | 0xD1 => 2,
                    0xCA | 0xCE | 0xD2 => 4,
                    0xCB | 0xCF | 0xD3 => 8,
                    // Extensions: a type, and data.
                    byte @ 0xD4..=0xD8 => 1 + (1 << (byte - 0xD4)),
                    0xC7 => 1 + self.count(1, 1)?,
                    0xC8 => 1 + self.count(2, 1)?,
                    0xC9 => 1 + self.count(4, 1)?,
                    _ => return Err(wrong("an unknown byte")),
                };
                self.take(length).map(|_| ())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_all_lengths_are_read() {
        let bytes = [0x05, 0xCC, 200, 0xCD, 1, 0, 0xD2, 0, 1, 0, 0, 0xCF, 0, 0, 0, 1, 0, 0, 0, 0];
        let mut reader = Reader::new(&bytes);
        let numbers: Vec<u64> = (0..5).map(|_| reader.number().unwrap()).collect();
        assert_eq!(numbers, [5, 200, 256, 65_536, 1 << 32]);
        let bytes = [0x92, 0xA2, b'a', b'b', 0xC4, 1, b'c', 0x81, 0xA1, b'k', 0xC0];
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.array().unwrap(), 2);
        assert_eq!((reader.bytes().unwrap(), reader.bytes().unwrap()), (&b"ab"[..], &b"c"[..]));
        assert_eq!((reader.map().unwrap(), reader.bytes().unwrap(), reader.bytes().unwrap()), (1, &b"k"[..], &b""[..]));
        assert!(reader.rest().is_empty() && reader.number().is_err());
    }

    #[test]
    fn values_of_all_kinds_are_skipped() {
        let values: [&[u8]; 9] = [
            &[0xC0],
            &[0xCA, 1, 2, 3, 4],
            &[0xCB, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0xE0],
            &[0x81, 0xA1, b'a', 0x91, 0xC3],
            &[0xDC, 0, 1, 0xD0, 0xFF],
            &[0xD5, 1, 2, 3],
            &[0xC7, 2, 9, 1, 2],
            &[0xC5, 0, 1, 7],
        ];
        for value in values {
            let mut reader = Reader::new(value);
            reader.skip().unwrap();
            assert!(reader.rest().is_empty(), "{value:?}");
            for cut in 0..value.len() {
                assert!(Reader::new(&value[..cut]).skip().is_err(), "{value:?} cut to {cut}");
            }
        }
    }

    #[test]
    fn claims_beyond_the_bytes_are_refused() {
        assert!(Reader::new(&[0xDD, 0xFF, 0xFF, 0xFF, 0xFF]).array().is_err());
        assert!(Reader::new(&[0xDF, 0xFF, 0xFF, 0xFF, 0xFF]).skip().is_err());
        assert!(Reader::new(&[0xC6, 0xFF, 0xFF, 0xFF, 0xFF]).bytes().is_err());
        assert!(Reader::new(&[0x91; 100]).skip().is_err());
        assert!(Reader::new(&[0xD0, 0x80]).number().is_err() && Reader::new(&[0xFF]).number().is_err());
    }
}
