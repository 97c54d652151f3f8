//! Numbers and bytes of states.

use skytether_common::{Error, Result};

pub(super) fn bad(what: &str) -> Error {
    Error::corrupt(format!("a state of cell_sums {what}"))
}

/// A number in LEB128, at the end of `out`.
pub(super) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads a state.
#[derive(Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn number(&mut self) -> Result<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or_else(|| bad("is too short"))?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(bad("has a number of too many bytes"))
    }

    pub(super) fn bytes(&mut self, n: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(n).ok_or_else(|| bad("is too short"))?;
        self.0 = rest;
        Ok(bytes)
    }
}
