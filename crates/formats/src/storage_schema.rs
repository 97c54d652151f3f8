//! Storable forms of column types. Some of Arrow's types only write a value in another way: dictionaries, runs, list
//! views, narrow decimals, decimals that count hundreds. A Substrait plan can't carry them, so drives store their plain
//! forms.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use skytether_common::{DatasetName, Error, Result};

use crate::convert;
use crate::pieces::pieces;
use crate::sound;

/// The storable form of `schema`.
///
/// # Errors
/// `Unsupported`, naming the column and its type, for types without a plain form.
pub fn schema(name: &DatasetName, schema: &SchemaRef) -> Result<SchemaRef> {
    let fields = schema
        .fields()
        .iter()
        .map(|f| {
            plain(f.data_type()).map(|t| Field::new(f.name(), t, f.is_nullable() || f.data_type().is_null())).ok_or_else(|| {
                let instead = match f.data_type() {
                    DataType::Interval(_) => "to a duration, or to columns of months, days and milliseconds, ",
                    _ => "",
                };
                Error::unsupported(format!("column {:?} of {name} has the type {}, which can't be stored: convert it {instead}first", f.name(), f.data_type()))
            })
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Schema::new(fields)))
}

/// Batches in the storable form of their schema, row for row equal to what they were.
#[derive(Debug)]
pub struct Storable {
    schema: SchemaRef,
    /// Rows so far.
    rows: usize,
}

impl Storable {
    /// For batches whose storable schema is `schema`.
    #[must_use]
    pub fn new(schema: SchemaRef) -> Self {
        Self { schema, rows: 0 }
    }

    /// `batch` in its storable form, in pieces of bounded size: values that a dictionary or a view shares are copies of
    /// their own there.
    ///
    /// # Errors
    /// `Invalid` where it has other columns, or a value does not fit or is none of its type, naming column and row.
    pub fn batches(&mut self, batch: RecordBatch) -> Result<Vec<RecordBatch>> {
        sound::check(&batch, self.rows)?;
        let own = batch.schema();
        let same = own.fields().iter().zip(self.schema.fields()).all(|(a, b)| a.data_type() == b.data_type());
        if own.fields().len() != self.schema.fields().len() || same {
            // The schemas are equal, or so different that the writer's own error says it better.
            self.rows += batch.num_rows();
            return Ok(vec![batch]);
        }
        pieces(batch).into_iter().map(|piece| self.piece(&piece)).collect()
    }

    fn piece(&mut self, batch: &RecordBatch) -> Result<RecordBatch> {
        let (mut fields, mut columns) = (Vec::new(), Vec::new());
        for ((column, own), to) in batch.columns().iter().zip(batch.schema().fields()).zip(self.schema.fields()) {
            // Converts only to plain forms; the writer rejects a batch of another type.
            let plain = plain(own.data_type()).unwrap_or_else(|| own.data_type().clone());
            columns.push(convert::plainly(column, &plain).map_err(|e| self.misfit(column, own.name(), &plain, e))?);
            fields.push(Field::new(own.name(), plain, to.is_nullable() || own.is_nullable()));
        }
        self.rows += batch.num_rows();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)
            .map_err(|e| Error::invalid("a batch does not keep its schema").with_source(e))
    }

    fn misfit(&self, column: &ArrayRef, name: &str, to: &DataType, e: ArrowError) -> Error {
        let row = convert::row_at_fault(column, |part| convert::plainly(part, to).is_err());
        let place = row.map(|row| format!(", row {}", self.rows + row + 1)).unwrap_or_default();
        Error::invalid(format!("column {name:?}{place} can't be converted to the type {to} that is stored")).with_source(e)
    }
}

/// The plain form of a type.
pub(crate) fn plain(of: &DataType) -> Option<DataType> {
    use DataType as T;
    let inner = |f: &FieldRef| plain(f.data_type()).map(|t| Arc::new(Field::new(f.name(), t, f.is_nullable())));
    Some(match of {
        T::Dictionary(_, values) => plain(values)?,
        T::RunEndEncoded(_, values) => plain(values.data_type())?,
        T::List(f) | T::FixedSizeList(f, _) | T::ListView(f) => T::List(inner(f)?),
        T::LargeList(f) | T::LargeListView(f) => T::LargeList(inner(f)?),
        T::Map(entries, sorted) => T::Map(inner(entries)?, *sorted),
        // Parquet has no struct without a field.
        T::Struct(fields) if fields.is_empty() => return None,
        T::Struct(fields) => T::Struct(fields.iter().map(inner).collect::<Option<_>>()?),
        // Parquet and SQL know no tens or hundreds as units.
        T::Decimal32(p, s) | T::Decimal64(p, s) | T::Decimal128(p, s) | T::Decimal256(p, s) if *s < 0 => match p.checked_add(s.unsigned_abs())? {
            digits @ ..=38 => T::Decimal128(digits, 0),
            digits @ ..=76 => T::Decimal256(digits, 0),
            _ => return None,
        },
        T::Decimal32(p, s) | T::Decimal64(p, s) => T::Decimal128(*p, *s),
        T::Float16 => T::Float32,
        // No value determined the type. Text is the type that most later values fit.
        T::Null => T::Utf8,
        // Parquet's intervals have no nanoseconds, and few readers know Arrow's of days and milliseconds.
        T::Union(_, _) | T::Interval(_) => return None,
        other => other.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Array, AsArray, DictionaryArray, Int32Array};
    use arrow::datatypes::{Int8Type, Int32Type, IntervalUnit};

    #[test]
    fn categories_are_stored_as_their_texts() {
        let dictionary: DictionaryArray<Int8Type> = vec!["a", "b", "a"].into_iter().collect();
        let given = RecordBatch::try_from_iter([("c", Arc::new(dictionary) as _), ("n", Arc::new(Int32Array::from(vec![1, 2, 3])) as _)]).unwrap();
        let stored = schema(&"a.b".parse().unwrap(), &given.schema()).unwrap();
        assert_eq!(stored.field(0).data_type(), &DataType::Utf8);
        let [batch] = &Storable::new(stored).batches(given).unwrap()[..] else { panic!() };
        assert_eq!(batch.column(0).as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["a", "b", "a"]);
        assert_eq!(batch.column(1).as_primitive::<Int32Type>().values(), &[1, 2, 3]);
    }

    #[test]
    fn lists_of_dictionaries_become_lists_of_texts() {
        let item = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        let fixed = DataType::FixedSizeList(Arc::new(Field::new("item", item, true)), 3);
        assert_eq!(plain(&fixed), Some(DataType::List(Arc::new(Field::new("item", DataType::Utf8, true)))));
    }

    #[test]
    fn a_column_without_a_value_is_text_without_a_value() {
        let given = RecordBatch::try_from_iter([("n", Arc::new(arrow::array::NullArray::new(2)) as _)]).unwrap();
        let stored = schema(&"a.b".parse().unwrap(), &given.schema()).unwrap();
        assert_eq!(stored.field(0).data_type(), &DataType::Utf8);
        let [batch] = &Storable::new(stored).batches(given).unwrap()[..] else { panic!() };
        assert_eq!((batch.column(0).data_type(), batch.column(0).null_count()), (&DataType::Utf8, 2));
    }

    #[test]
    fn types_without_a_stored_form_are_refused_by_name() {
        for unit in [IntervalUnit::MonthDayNano, IntervalUnit::DayTime, IntervalUnit::YearMonth] {
            let given = Arc::new(Schema::new(vec![Field::new("how long", DataType::Interval(unit), true)]));
            let error = schema(&"a.b".parse().unwrap(), &given).unwrap_err().to_string();
            assert!(error.contains("how long") && error.contains("a.b") && error.contains("duration"), "{error}");
        }
    }
}
