//! Rows that are gathered before they are divided among parts, so that each part gets batches of many rows.
//!
//! See also `docs/internals/several-hosts.md`.

use std::sync::Arc;

use arrow::array::Array;
use arrow::compute::interleave;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::Result as DfResult;
use skytether_device::size::batch_bytes;

/// See the module.
pub(crate) struct Gathered {
    schema: SchemaRef,
    /// Rows of the batches that parts get, at most.
    batch_rows: usize,
    batches: Vec<RecordBatch>,
    count: usize,
    /// Bytes of the batches and of `rows`.
    bytes: usize,
    /// For each part its rows: in which batch, and where in it.
    rows: Vec<Vec<(usize, usize)>>,
}

impl Gathered {
    /// Nothing yet, for this number of parts.
    pub(crate) fn new(schema: &SchemaRef, parts: usize, batch_rows: usize) -> Self {
        Self { schema: Arc::clone(schema), batch_rows: batch_rows.max(1), batches: Vec::new(), count: 0, bytes: 0, rows: vec![Vec::new(); parts] }
    }

    /// Bytes of what was gathered.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether each part gets a whole batch, about.
    pub(crate) fn is_full(&self) -> bool {
        self.count >= self.rows.len() * self.batch_rows
    }

    /// Takes a batch with the part of each of its rows.
    pub(crate) fn add(&mut self, batch: RecordBatch, parts: impl Iterator<Item = usize>) {
        for (at, part) in parts.enumerate() {
            self.rows[part].push((self.batches.len(), at));
        }
        self.count += batch.num_rows();
        let of_rows = batch.num_rows() * size_of::<(usize, usize)>();
        self.bytes = self.bytes.saturating_add(usize::try_from(batch_bytes(&batch)).unwrap_or(usize::MAX)).saturating_add(of_rows);
        self.batches.push(batch);
    }

    /// Gives each part its rows, in as few batches as is possible.
    pub(crate) fn divide(&mut self, mut give: impl FnMut(usize, &RecordBatch) -> DfResult<()>) -> DfResult<()> {
        for (part, rows) in self.rows.iter_mut().enumerate() {
            for some in rows.chunks(self.batch_rows) {
                match picked(&self.batches, &self.schema, some) {
                    Ok(batch) => give(part, &batch)?,
                    // The dictionaries of all batches together may have more values than their keys can number.
                    Err(_) if self.batches.len() > 1 => {
                        for of_batch in some.chunk_by(|one, next| one.0 == next.0) {
                            give(part, &picked(&self.batches, &self.schema, of_batch)?)?;
                        }
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            rows.clear();
        }
        self.batches.clear();
        (self.count, self.bytes) = (0, 0);
        Ok(())
    }
}

/// These rows of `batches` as one batch.
fn picked(batches: &[RecordBatch], schema: &SchemaRef, rows: &[(usize, usize)]) -> Result<RecordBatch, ArrowError> {
    let column = |at: usize| {
        let of_batches: Vec<&dyn Array> = batches.iter().map(|batch| batch.column(at).as_ref()).collect();
        interleave(&of_batches, rows)
    };
    let columns = (0..schema.fields().len()).map(column).collect::<Result<_, _>>()?;
    // Branches of a union may say less about NULL than the schema of the whole.
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &RecordBatchOptions::new().with_row_count(Some(rows.len())))
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, AsArray, DictionaryArray, Int64Array, StringArray};
    use arrow::compute::concat_batches;
    use arrow::datatypes::{DataType, Field, Int8Type, Int64Type, Schema};

    use super::*;

    fn numbers(first: i64, rows: i64) -> RecordBatch {
        RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from_iter_values(first..first + rows)) as ArrayRef)]).unwrap()
    }

    /// What each part gets.
    fn divided(gathered: &mut Gathered, parts: usize) -> Vec<Vec<RecordBatch>> {
        let mut all = vec![Vec::new(); parts];
        gathered
            .divide(|part, batch| {
                all[part].push(batch.clone());
                Ok(())
            })
            .unwrap();
        all
    }

    #[test]
    fn parts_get_batches_of_many_rows() {
        let schema = numbers(0, 0).schema();
        let mut gathered = Gathered::new(&schema, 4, 100);
        let mut batches = 0;
        while !gathered.is_full() {
            let first = batches * 16;
            gathered.add(numbers(first, 16), (first..first + 16).map(|n| (n % 3) as usize));
            batches += 1;
        }
        assert!(batches == 25 && gathered.bytes() >= 25 * 16 * (8 + 16), "{batches}, {}", gathered.bytes());
        let all = divided(&mut gathered, 4);
        assert_eq!(
            all.iter().map(|part| part.iter().map(RecordBatch::num_rows).collect()).collect::<Vec<Vec<_>>>(),
            [vec![100, 34], vec![100, 33], vec![100, 33], vec![]]
        );
        for (part, batches) in all.iter().enumerate().take(3) {
            let found = concat_batches(&schema, batches).unwrap();
            let wanted: Vec<i64> = (0..400).filter(|n| n % 3 == part as i64).collect();
            assert_eq!(found.column(0).as_primitive::<Int64Type>().values(), wanted.as_slice());
        }
        assert!(gathered.bytes() == 0 && divided(&mut gathered, 4).iter().all(Vec::is_empty), "all was given");
    }

    /// Batches that together have more words than their keys can number are given one by one.
    #[test]
    fn dictionaries_that_do_not_fit_together_stay_apart() {
        let words = |batch: usize| -> ArrayRef {
            let words = StringArray::from_iter_values((0..100).map(|word| format!("{batch} {word}")));
            Arc::new(DictionaryArray::<Int8Type>::new((0..100i8).collect(), Arc::new(words)))
        };
        let schema = Arc::new(Schema::new(vec![Field::new_dictionary("w", DataType::Int8, DataType::Utf8, true)]));
        let mut gathered = Gathered::new(&schema, 2, 1000);
        for batch in 0..3 {
            gathered.add(RecordBatch::try_new(Arc::clone(&schema), vec![words(batch)]).unwrap(), (0..100).map(|row| row % 2));
        }
        let all = divided(&mut gathered, 2);
        for (part, batches) in all.iter().enumerate() {
            let found: Vec<String> = batches
                .iter()
                .flat_map(|batch| {
                    let words = batch.column(0).as_dictionary::<Int8Type>().downcast_dict::<StringArray>().unwrap();
                    words.into_iter().map(|word| word.unwrap().to_owned()).collect::<Vec<_>>()
                })
                .collect();
            let wanted: Vec<String> =
                (0..3).flat_map(|batch| (0..100).filter(move |word| word % 2 == part).map(move |word| format!("{batch} {word}"))).collect();
            assert_eq!(found, wanted);
        }
    }

    /// Branches of a union may have no NULL where the schema of the whole allows it.
    #[test]
    fn batches_take_the_schema_of_the_whole() {
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]));
        let mut gathered = Gathered::new(&schema, 1, 10);
        gathered.add(numbers(0, 2), [0, 0].into_iter());
        gathered.add(RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(Int64Array::from(vec![None, Some(3)]))]).unwrap(), [0, 0].into_iter());
        let all = divided(&mut gathered, 1);
        assert_eq!((all[0].len(), all[0][0].num_rows(), all[0][0].column(0).null_count()), (1, 4, 1));
    }
}
