//! Raw VPIC particle records.
//!
//! A dump is nothing but records, one after the other, 48 bytes each, all numbers little endian:
//!
//! ```text
//! at  bytes  what
//!  0      8  ID      u64
//!  8      8  -       padding, any bytes
//! 16     12  x y z   f32 each: the place
//! 28      4  i       i32: the cell that it is in
//! 32     12  u       f32 each: ux, uy, uz, the momentum
//! 44      4  ke      f32: the kinetic energy
//! ```
//!
//! The reader takes ID, x, y, z and ke ([`crate::schema`]) and ignores the rest. A dump has no header and no mark that
//! distinguishes it from other bytes. So the reader refuses what it can recognise: a length that is no multiple of 48,
//! and places and energies that are no finite numbers. Reading at a wrong offset soon meets such numbers.

use std::io::{ErrorKind, Read};

use arrow::record_batch::RecordBatch;
use skytether_common::{Error, Result};

use crate::{Columns, columns};

/// Bytes of a record.
pub const RECORD: usize = 48;

/// Offsets in a record of the numbers that the reader takes.
const ID: usize = 0;
const FLOATS: [(&str, usize); 4] = [("x", 16), ("y", 20), ("z", 24), ("ke", 44)];
const CELL: usize = 28;
const MOMENTUM: usize = 32;

/// How many records `bytes` bytes are.
///
/// # Errors
/// `Corrupt` where that is no whole number; `name` is whose bytes they are.
pub fn records(name: &str, bytes: u64) -> Result<u64> {
    let (whole, left) = (bytes / RECORD as u64, bytes % RECORD as u64);
    if left == 0 {
        return Ok(whole);
    }
    Err(Error::corrupt(format!(
        "{name} has {bytes} bytes, which are {whole} records of {RECORD} bytes and {left} bytes more: it is truncated, has a header, or is no dump of VPIC particles"
    )))
}

/// The particles of some whole records; the first one has the number `first` in its dump, from 0.
///
/// # Errors
/// `Corrupt` where the records are not whole; `Invalid` for a place or an energy that is no finite number, with the
/// record's number and where it begins.
pub fn decode(name: &str, bytes: &[u8], first: u64) -> Result<RecordBatch> {
    records(name, bytes.len() as u64)?;
    let mut all = Columns::with_capacity(bytes.len() / RECORD);
    for (record, number) in bytes.chunks_exact(RECORD).zip(first..) {
        let mut floats = [0f32; 4];
        for (value, (what, at)) in floats.iter_mut().zip(FLOATS) {
            *value = f32::from_le_bytes(part(record, at));
            if !value.is_finite() {
                return Err(Error::invalid(format!(
                    "{name}: {what} of record {number} (at byte {}) is {value}: the dump is damaged, or its records are none of {RECORD} bytes; records count from 0",
                    number.saturating_mul(RECORD as u64)
                )));
            }
        }
        let [x, y, z, ke] = floats;
        all.id.push(u64::from_le_bytes(part(record, ID)));
        all.place.iter_mut().zip([x, y, z]).for_each(|(column, value)| column.push(value));
        all.ke.push(ke);
    }
    all.finish()
}

/// The bytes at `at` of a record, which are there.
fn part<const N: usize>(record: &[u8], at: usize) -> [u8; N] {
    record.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
}

/// The records of a batch of particles; for each what the cell and the momentum are.
///
/// # Errors
/// `Invalid` where the batch is none of particles.
pub fn encode(batch: &RecordBatch, mut rest: impl FnMut(usize) -> (i32, [f32; 3])) -> Result<Vec<u8>> {
    let (ids, floats) = columns(batch)?;
    let mut bytes = vec![0u8; ids.len().saturating_mul(RECORD)];
    for ((row, record), id) in bytes.chunks_exact_mut(RECORD).enumerate().zip(ids) {
        let mut put = |at: usize, value: &[u8]| record[at..at + value.len()].copy_from_slice(value);
        put(ID, &id.to_le_bytes());
        for (values, (_, at)) in floats.iter().zip(FLOATS) {
            put(at, &values[row].to_le_bytes());
        }
        let (cell, momentum) = rest(row);
        put(CELL, &cell.to_le_bytes());
        for (n, u) in momentum.iter().enumerate() {
            put(MOMENTUM + 4 * n, &u.to_le_bytes());
        }
    }
    Ok(bytes)
}

/// Reads a dump batch by batch, in memory for one batch. After an error there are no more.
#[derive(Debug)]
pub struct Records<R> {
    name: String,
    from: Option<R>,
    buffer: Vec<u8>,
    done: u64,
}

impl<R: Read> Records<R> {
    /// Batches of at most `rows` particles of what `from` gives, which is called `name` in errors.
    pub fn new(name: impl Into<String>, from: R, rows: usize) -> Self {
        Self { name: name.into(), from: Some(from), buffer: vec![0; rows.max(1).saturating_mul(RECORD)], done: 0 }
    }

    /// Fills the buffer as far as there is something.
    fn fill(from: &mut R, buffer: &mut [u8]) -> std::io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match from.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(filled)
    }

    fn batch(&mut self) -> Result<Option<RecordBatch>> {
        let Some(from) = &mut self.from else { return Ok(None) };
        let filled = Self::fill(from, &mut self.buffer).map_err(|e| Error::io("read", &self.name, e))?;
        if filled < self.buffer.len() {
            self.from = None;
        }
        if filled == 0 {
            return Ok(None);
        }
        let before = self.done.saturating_mul(RECORD as u64);
        if filled % RECORD != 0 {
            records(&self.name, before.saturating_add(filled as u64))?;
        }
        let batch = decode(&self.name, &self.buffer[..filled], self.done)?;
        self.done += batch.num_rows() as u64;
        Ok(Some(batch))
    }
}

impl<R: Read> Iterator for Records<R> {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.batch().transpose();
        if matches!(batch, Some(Err(_))) {
            self.from = None;
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use skytether_common::Kind;

    use super::*;
    use crate::Particles;

    fn dump(rows: u64) -> Vec<u8> {
        Particles::new(rows, 7).records(0..rows).unwrap()
    }

    #[test]
    fn records_lie_as_the_text_says() {
        let mut record = [0xeeu8; RECORD];
        record[0..8].copy_from_slice(&0x0102_0304_0506_0708u64.to_le_bytes());
        for (at, value) in [(16, 1.5f32), (20, -2.5), (24, 0.25), (44, 0.625)] {
            record[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let batch = decode("d", &record, 0).unwrap();
        let (ids, floats) = columns(&batch).unwrap();
        assert_eq!(ids, [0x0102_0304_0506_0708]);
        assert_eq!(floats.map(|f| f[0]), [1.5, -2.5, 0.25, 0.625]);
        assert_eq!(
            encode(&batch, |_| (-2, [4.0, 5.0, 6.0])).unwrap()[28..44],
            [&(-2i32).to_le_bytes()[..], &4f32.to_le_bytes(), &5f32.to_le_bytes(), &6f32.to_le_bytes()].concat()
        );
    }

    #[test]
    fn a_dump_is_read_in_batches_of_any_size() {
        let bytes = dump(1000);
        let whole = decode("d", &bytes, 0).unwrap();
        for rows in [1, 7, 999, 1000, 1001] {
            let batches: Vec<_> = Records::new("d", bytes.as_slice(), rows).map(Result::unwrap).collect();
            assert_eq!(batches.len(), 1000usize.div_ceil(rows));
            assert_eq!(arrow::compute::concat_batches(&crate::schema(), &batches).unwrap(), whole);
        }
        assert_eq!(Records::new("d", &b""[..], 10).count(), 0);
    }

    #[test]
    fn truncated_dumps_are_reported_with_the_rest() {
        let bytes = dump(20);
        for cut in [1, 47, 49, 20 * RECORD - 1] {
            let mut all = Records::new("run.vpic", &bytes[..cut], 8);
            let error = all.by_ref().find_map(Result::err).unwrap();
            assert!(
                error.kind() == Kind::Corrupt && error.to_string().contains("run.vpic") && error.to_string().contains(&format!("{} bytes more", cut % RECORD)),
                "{error}"
            );
            assert!(error.to_string().contains(&format!("has {cut} bytes")), "{error}");
            assert!(all.next().is_none());
        }
    }

    #[test]
    fn invalid_numbers_are_reported_with_their_record() {
        for (what, at, value) in [("x", 16, f32::NAN), ("z", 24, f32::INFINITY), ("ke", 44, f32::NEG_INFINITY)] {
            let mut bytes = dump(30);
            bytes[17 * RECORD + at..][..4].copy_from_slice(&value.to_le_bytes());
            let error = Records::new("run.vpic", bytes.as_slice(), 4).find_map(Result::err).unwrap();
            assert!(error.kind() == Kind::Invalid && error.to_string().contains(&format!("{what} of record 17 (at byte 816) is {value}")), "{error}");
        }
        // Fields that the reader ignores may be anything.
        let mut bytes = dump(3);
        bytes[8..16].fill(0xff);
        bytes[28..44].fill(0xff);
        assert_eq!(decode("d", &bytes, 0).unwrap(), decode("d", &dump(3), 0).unwrap());
    }

    #[test]
    fn reader_errors_are_passed_on() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Err(std::io::Error::from_raw_os_error(5))
            }
        }
        let error = Records::new("run.vpic", Broken, 4).find_map(Result::err).unwrap();
        assert!(error.report().contains("run.vpic"), "{error:?}");
    }
}
