//! Ranges of a program's memory that it names by address and length.

use crate::trap::Cause;

/// The memory of a program, for the import of that name.
pub(crate) struct Memory<'a> {
    bytes: &'a mut [u8],
    import: &'static str,
}

impl<'a> Memory<'a> {
    pub(crate) fn new(bytes: &'a mut [u8], import: &'static str) -> Self {
        Self { bytes, import }
    }

    /// The indices of a range.
    fn range(&self, address: u64, length: u64) -> Result<std::ops::Range<usize>, Cause> {
        let outside = Cause::Range { import: self.import, address, length };
        match address.checked_add(length) {
            Some(end) if end <= self.bytes.len() as u64 => Ok(address as usize..end as usize),
            _ => Err(outside),
        }
    }

    pub(crate) fn read(&self, address: u64, length: u64) -> Result<&[u8], Cause> {
        let range = self.range(address, length)?;
        Ok(self.bytes.get(range).unwrap_or_default())
    }

    pub(crate) fn write(&mut self, address: u64, length: u64) -> Result<&mut [u8], Cause> {
        let range = self.range(address, length)?;
        Ok(self.bytes.get_mut(range).unwrap_or_default())
    }

    /// Copies what fits of `from`.
    pub(crate) fn put(&mut self, address: u64, room: u64, from: &[u8]) -> Result<(), Cause> {
        let fit = from.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        self.write(address, fit as u64)?.copy_from_slice(from.get(..fit).unwrap_or(from));
        Ok(())
    }

    pub(crate) fn put_words<const N: usize>(&mut self, address: u64, words: [u64; N]) -> Result<(), Cause> {
        let target = self.write(address, 8 * N as u64)?;
        target.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        Ok(())
    }

    /// Two ranges; the second one may be written. `None` if they overlap.
    pub(crate) fn read_and_write(&mut self, read: (u64, u64), write: (u64, u64)) -> Result<Option<(&[u8], &mut [u8])>, Cause> {
        let (from, to) = (self.range(read.0, read.1)?, self.range(write.0, write.1)?);
        if from.is_empty() {
            return Ok(Some((&[], self.bytes.get_mut(to).unwrap_or_default())));
        }
        if to.is_empty() {
            return Ok(Some((self.bytes.get(from).unwrap_or_default(), &mut [])));
        }
        if from.end <= to.start {
            let (low, high) = self.bytes.split_at_mut(to.start);
            return Ok(Some((low.get(from).unwrap_or_default(), high.get_mut(..to.len()).unwrap_or_default())));
        }
        if to.end <= from.start {
            let (low, high) = self.bytes.split_at_mut(from.start);
            return Ok(Some((high.get(..from.len()).unwrap_or_default(), low.get_mut(to).unwrap_or_default())));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_with_memory() {
        let mut bytes: Vec<u8> = (0..10).collect();
        let mut memory = Memory::new(&mut bytes, "x");
        assert_eq!(memory.read(2, 3).unwrap(), [2, 3, 4]);
        assert!(memory.read(10, 0).unwrap().is_empty());
        for (address, length) in [(10, 1), (0, 11), (11, 0), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(matches!(memory.read(address, length), Err(Cause::Range { import: "x", .. })));
            assert!(memory.write(address, length).is_err());
            assert!(memory.read_and_write((address, length), (0, 1)).is_err());
            assert!(memory.read_and_write((0, 1), (address, length)).is_err());
        }
        memory.put(8, 2, &[9, 9, 9]).unwrap();
        assert!(memory.put(9, 2, &[9, 9, 9]).is_err());
        assert_eq!(bytes, [0, 1, 2, 3, 4, 5, 6, 7, 9, 9]);
    }

    #[test]
    fn overlapping_ranges_are_found() {
        let mut bytes: Vec<u8> = (0..10).collect();
        let mut memory = Memory::new(&mut bytes, "x");
        let (from, to) = memory.read_and_write((2, 3), (5, 2)).unwrap().unwrap();
        assert_eq!((from, to), (&[2, 3, 4][..], &mut [5, 6][..]));
        let (from, to) = memory.read_and_write((5, 2), (2, 3)).unwrap().unwrap();
        assert_eq!((from, to), (&[5, 6][..], &mut [2, 3, 4][..]));
        assert!(memory.read_and_write((2, 3), (4, 1)).unwrap().is_none());
        assert!(memory.read_and_write((4, 1), (2, 3)).unwrap().is_none());
        assert!(memory.read_and_write((4, 0), (2, 3)).unwrap().is_some());
        assert!(memory.read_and_write((2, 3), (4, 0)).unwrap().is_some());
    }
}
