//! Values for the parameters of a query.

use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use skytether_common::{Error, Result};
use skytether_slice::metadata::column_types::takes_bytes;
use skytether_slice::metadata::ipc::{self, Accepted};

/// The most bytes that the values of one statement may take.
pub const MAX_VALUES: usize = 16 << 20;

/// What may come from outside: rows of types without bytes could be as many as a list likes to claim. A null may be of
/// no type at all.
pub const ACCEPTED: Accepted = Accepted { rows: 1, column: |t| *t == DataType::Null || takes_bytes(t) };

/// One value for each parameter, in the order of their numbers: `$1` first. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Values(Option<RecordBatch>);

impl Values {
    /// The values of `row`, column by column; names count for nothing.
    ///
    /// # Errors
    /// Invalid for anything but one row.
    pub fn new(row: RecordBatch) -> Result<Self> {
        match row.num_rows() {
            1 if row.num_columns() == 0 => Ok(Self(None)),
            1 => Ok(Self(Some(row))),
            rows => Err(Error::invalid(format!("the parameters of a query get one row of values, not {rows}"))),
        }
    }

    /// Whether there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The values, each as an array of length one.
    #[must_use]
    pub fn columns(&self) -> &[ArrayRef] {
        self.0.as_ref().map_or(&[], |row| row.columns())
    }

    /// The values as an Arrow IPC stream; without values no bytes.
    ///
    /// # Errors
    /// Invalid for types that Arrow can't write; Exhausted for more than [`MAX_VALUES`] bytes.
    pub fn encode(&self) -> Result<Bytes> {
        let Some(row) = &self.0 else { return Ok(Bytes::new()) };
        let bytes = ipc::write(&row.schema(), Some(row))?;
        check_length(bytes.len())?;
        Ok(bytes.into())
    }

    /// Reads what [`Self::encode`] wrote. Nothing is made larger than the bytes that are there.
    ///
    /// # Errors
    /// Invalid for bytes that are no such stream; Exhausted for more than [`MAX_VALUES`] of them.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        check_length(bytes.len())?;
        let wrong = || Error::invalid("the values of the parameters are no valid Arrow data");
        // Arrow's reader checks what it reads. Should it miss something and panic, only this call fails.
        let read = catch_unwind(AssertUnwindSafe(|| ipc::read_accepted(bytes, ACCEPTED))).map_err(|_| wrong())?;
        let (_, row) = read.map_err(|e| wrong().with_source(e))?;
        Self::new(row.ok_or_else(wrong)?)
    }
}

/// Refuses values that take more bytes than one statement may have.
///
/// # Errors
/// Exhausted for more than [`MAX_VALUES`].
pub fn check_length(bytes: usize) -> Result<()> {
    if bytes > MAX_VALUES {
        return Err(Error::exhausted(format!("the values of a statement's parameters may take {MAX_VALUES} bytes at most")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{DictionaryArray, Int64Array, NullArray, StringArray};
    use arrow::datatypes::Int32Type;
    use skytether_common::Kind;

    use super::*;

    fn row(rows: usize) -> RecordBatch {
        let number: ArrayRef = Arc::new(Int64Array::from(vec![7; rows]));
        let text: ArrayRef = Arc::new(StringArray::from(vec![Some("é"); rows]));
        let word: ArrayRef = Arc::new(vec!["a"; rows].into_iter().collect::<DictionaryArray<Int32Type>>());
        let null: ArrayRef = Arc::new(NullArray::new(rows));
        RecordBatch::try_from_iter([("0", number), ("1", text), ("2", word), ("3", null)]).unwrap()
    }

    #[test]
    fn one_row_survives_encoding_and_other_numbers_are_invalid() {
        let values = Values::new(row(1)).unwrap();
        assert_eq!(values.columns().len(), 4);
        assert_eq!(Values::decode(&values.encode().unwrap()).unwrap(), values);
        assert_eq!(Values::decode(&Values::default().encode().unwrap()).unwrap(), Values::default());
        for rows in [0, 2] {
            assert_eq!(Values::new(row(rows)).unwrap_err().kind(), Kind::Invalid);
            let bytes = ipc::write(&row(rows).schema(), Some(&row(rows))).unwrap();
            assert_eq!(Values::decode(&bytes).unwrap_err().kind(), Kind::Invalid);
        }
    }

    #[test]
    fn values_of_too_many_bytes_are_exhausted() {
        let long: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(MAX_VALUES)]));
        let values = Values::new(RecordBatch::try_from_iter([("0", long)]).unwrap()).unwrap();
        assert_eq!(values.encode().unwrap_err().kind(), Kind::Exhausted);
        assert_eq!(Values::decode(&vec![0; MAX_VALUES + 1]).unwrap_err().kind(), Kind::Exhausted);
    }

    #[test]
    fn changed_and_cut_bytes_give_invalid_or_values() {
        let good = Values::new(row(1)).unwrap().encode().unwrap();
        for at in 0..good.len() {
            let mut changed = good.to_vec();
            changed[at] ^= 0xff;
            for bytes in [&changed[..], &good[..at]] {
                if let Err(e) = Values::decode(bytes) {
                    assert_eq!(e.kind(), Kind::Invalid, "{at}: {e}");
                }
            }
        }
    }
}
