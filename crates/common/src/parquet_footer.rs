//! Limits of Parquet's footer, checked before a library reads it: it recurses as deep as a schema says, and makes room
//! for as many parts as a list says.
//!
//! The footer is a Thrift struct in the compact protocol. [`check`] walks over it without keeping anything.

/// The longest footer of a file that is ingested. Its parts take some times as much memory.
pub const MAX_BYTES: u64 = 256 << 20;

/// The deepest schema. A list takes two levels, and a map three, so this is more than any table may be nested.
pub const MAX_LEVELS: usize = 128;

/// Structs within structs: Parquet needs a few.
const MAX_DEPTH: usize = 32;

/// What is wrong with a footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// Its bytes are no such struct.
    Broken,
    /// The schema is deeper than [`MAX_LEVELS`].
    Deep,
}

/// Where the footer is in a file of `len` bytes that ends with `tail`; `None` where it is no Parquet file.
#[must_use]
pub fn range(len: u64, tail: &[u8]) -> Option<std::ops::Range<u64>> {
    let (size, magic) = tail.split_first_chunk::<4>()?;
    let end = len.checked_sub(8)?;
    let start = end.checked_sub(u64::from(u32::from_le_bytes(*size)))?;
    (magic == b"PAR1").then_some(start..end)
}

/// Walks over the metadata of a file.
///
/// # Errors
/// Where a library would fail, or take more memory or stack than the bytes are worth.
pub fn check(bytes: &[u8]) -> std::result::Result<(), Wrong> {
    let mut at = Compact { bytes };
    let mut id = 0i64;
    while let Some(kind) = at.field(&mut id)? {
        // The second field is the list of the schema's elements.
        if id == 2 && kind == LIST { at.schema()? } else { at.skip(kind, 0)? }
    }
    Ok(())
}

const TRUE: u8 = 1;
const FALSE: u8 = 2;
const I8: u8 = 3;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;

/// Bytes in the compact protocol.
struct Compact<'a> {
    bytes: &'a [u8],
}

impl Compact<'_> {
    fn byte(&mut self) -> std::result::Result<u8, Wrong> {
        let (first, rest) = self.bytes.split_first().ok_or(Wrong::Broken)?;
        self.bytes = rest;
        Ok(*first)
    }

    fn pass(&mut self, n: u64) -> std::result::Result<(), Wrong> {
        let n = usize::try_from(n).map_err(|_| Wrong::Broken)?;
        self.bytes = self.bytes.get(n..).ok_or(Wrong::Broken)?;
        Ok(())
    }

    fn number(&mut self) -> std::result::Result<u64, Wrong> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Wrong::Broken)
    }

    fn signed(&mut self) -> std::result::Result<i64, Wrong> {
        let n = self.number()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    /// The kind of the next field, whose number becomes `id`; `None` at the end of the struct.
    fn field(&mut self, id: &mut i64) -> std::result::Result<Option<u8>, Wrong> {
        let head = self.byte()?;
        if head == 0 {
            return Ok(None);
        }
        *id = match head >> 4 {
            0 => self.signed()?,
            delta => id.saturating_add(i64::from(delta)),
        };
        Ok(Some(head & 0xf))
    }

    /// The kind and number of a list's elements. Each takes a byte at least.
    fn list(&mut self) -> std::result::Result<(u8, u64), Wrong> {
        let head = self.byte()?;
        let n = if head >> 4 == 15 { self.number()? } else { u64::from(head >> 4) };
        if n > self.bytes.len() as u64 { Err(Wrong::Broken) } else { Ok((head & 0xf, n)) }
    }

    fn skip(&mut self, kind: u8, depth: usize) -> std::result::Result<(), Wrong> {
        if depth > MAX_DEPTH {
            return Err(Wrong::Broken);
        }
        match kind {
            TRUE | FALSE => Ok(()),
            I8 => self.pass(1),
            DOUBLE => self.pass(8),
            // The integers of 16, 32 and 64 bits.
            4 | I32 | I64 => self.number().map(drop),
            BINARY => {
                let n = self.number()?;
                self.pass(n)
            }
            LIST | SET => {
                let (kind, n) = self.list()?;
                (0..n).try_for_each(|_| self.element(kind, depth + 1))
            }
            MAP => {
                let n = self.number()?;
                if n == 0 {
                    return Ok(());
                }
                if n > self.bytes.len() as u64 {
                    return Err(Wrong::Broken);
                }
                let kinds = self.byte()?;
                (0..n).try_for_each(|_| self.element(kinds >> 4, depth + 1).and_then(|()| self.element(kinds & 0xf, depth + 1)))
            }
            STRUCT => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.skip(kind, depth + 1)?;
                }
                Ok(())
            }
            _ => Err(Wrong::Broken),
        }
    }

    /// An element of a list: there a truth value takes a byte.
    fn element(&mut self, kind: u8, depth: usize) -> std::result::Result<(), Wrong> {
        if matches!(kind, TRUE | FALSE) { self.pass(1) } else { self.skip(kind, depth) }
    }

    /// The list of the schema's elements: a tree in the order of its nodes, each with the number of its children.
    fn schema(&mut self) -> std::result::Result<(), Wrong> {
        let (kind, elements) = self.list()?;
        if kind != STRUCT {
            return Err(Wrong::Broken);
        }
        // Children that are still due, of each node around the next one.
        let mut due: Vec<u64> = Vec::new();
        for seen in 0..elements {
            let (mut id, mut children) = (0, 0i64);
            while let Some(kind) = self.field(&mut id)? {
                // The fifth field is the number of children.
                if id == 5 && kind == I32 { children = self.signed()? } else { self.skip(kind, 0)? }
            }
            let children = u64::try_from(children).map_err(|_| Wrong::Broken)?;
            if children >= elements - seen {
                return Err(Wrong::Broken);
            }
            if let Some(last) = due.last_mut() {
                *last = last.saturating_sub(1);
            }
            if children > 0 {
                due.push(children);
                if due.len() > MAX_LEVELS {
                    return Err(Wrong::Deep);
                }
            }
            while due.last() == Some(&0) {
                due.pop();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The metadata of a file whose schema is `levels` groups around a number; each claims `children`.
    fn nested(levels: usize, children: u8) -> Vec<u8> {
        // Version 1, then the schema.
        let mut bytes = vec![0x15, 2, 0x19, 0xfc];
        let mut n = levels as u64 + 1;
        while n > 0x7f {
            bytes.push((n & 0x7f) as u8 | 0x80);
            n >>= 7;
        }
        bytes.push(n as u8);
        for _ in 0..levels {
            // Name "g" (field 4), and the number of children (field 5).
            bytes.extend([0x48, 1, b'g', 0x15, 2 * children, 0]);
        }
        bytes.extend([0x15, 2, 0x38, 1, b'x', 0]);
        // Rows (field 3), no row groups (field 4).
        bytes.extend([0x16, 0, 0x19, 0x0c, 0]);
        bytes
    }

    #[test]
    fn a_schema_is_deep_up_to_the_limit() {
        assert_eq!(check(&nested(MAX_LEVELS, 1)), Ok(()));
        assert_eq!(check(&nested(MAX_LEVELS + 1, 1)), Err(Wrong::Deep));
        assert_eq!(check(&nested(6000, 1)), Err(Wrong::Deep));
    }

    #[test]
    fn claims_beyond_the_bytes_are_broken() {
        assert_eq!(check(&nested(2, 60)), Err(Wrong::Broken));
        let whole = nested(3, 1);
        for len in 0..whole.len() {
            assert_eq!(check(&whole[..len]), Err(Wrong::Broken), "{len}");
        }
        // A list of 2^35 elements; a text of 2^35 bytes; structs within structs without an end.
        assert_eq!(check(&[0x49, 0xf5, 0x80, 0x80, 0x80, 0x80, 0x80, 1]), Err(Wrong::Broken));
        assert_eq!(check(&[0x68, 0x80, 0x80, 0x80, 0x80, 0x80, 1]), Err(Wrong::Broken));
        assert_eq!(check(&[0x7c; 100_000]), Err(Wrong::Broken));
    }
}
