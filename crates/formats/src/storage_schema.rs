//! Storable forms of column types. Some of Arrow's types only write a value in another way: dictionaries, runs, list
//! views, narrow decimals, decimals that count hundreds. A Substrait plan can't carry them, so drives store their plain
//! forms.

use std::sync::Arc;

use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, IntervalUnit, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use skytether_common::{DatasetName, Error, Result};

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
                    DataType::Interval(_) => "to a duration, or to columns of months, days and nanoseconds, ",
                    _ => "",
                };
                Error::unsupported(format!("column {:?} of {name} has the type {}, which can't be stored: convert it {instead}first", f.name(), f.data_type()))
            })
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Schema::new(fields)))
}

/// `batch` in the storable form `schema` of its own.
///
/// # Errors
/// `Invalid` where it has other columns, or a value does not fit.
pub fn batch(schema: &SchemaRef, batch: RecordBatch) -> Result<RecordBatch> {
    if batch.schema().fields().len() != schema.fields().len()
        || batch.schema().fields().iter().zip(schema.fields()).all(|(a, b)| a.data_type() == b.data_type())
    {
        // The schemas are equal, or so different that the writer's own error says it better.
        return Ok(batch);
    }
    let wrong =
        |column: &str, e: arrow::error::ArrowError| Error::invalid(format!("column {column:?} can't be converted to the type that is stored")).with_source(e);
    let mut fields = Vec::new();
    let mut columns = Vec::new();
    for ((column, own), to) in batch.columns().iter().zip(batch.schema().fields()).zip(schema.fields()) {
        // Converts only to plain forms; the writer rejects a batch of another type.
        let plain = plain(own.data_type()).unwrap_or_else(|| own.data_type().clone());
        columns.push(if plain == *own.data_type() { Arc::clone(column) } else { cast(column, &plain).map_err(|e| wrong(own.name(), e))? });
        fields.push(Field::new(own.name(), plain, to.is_nullable() || own.is_nullable()));
    }
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)
        .map_err(|e| Error::invalid("a batch does not keep its schema").with_source(e))
}

/// The plain form of a type.
fn plain(of: &DataType) -> Option<DataType> {
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
        // Parquet's intervals have no nanoseconds.
        T::Union(_, _) | T::Interval(IntervalUnit::MonthDayNano) => return None,
        other => other.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Array, AsArray, DictionaryArray, Int32Array};
    use arrow::datatypes::{Int8Type, Int32Type};

    #[test]
    fn categories_are_stored_as_their_texts() {
        let dictionary: DictionaryArray<Int8Type> = vec!["a", "b", "a"].into_iter().collect();
        let given = RecordBatch::try_from_iter([("c", Arc::new(dictionary) as _), ("n", Arc::new(Int32Array::from(vec![1, 2, 3])) as _)]).unwrap();
        let stored = schema(&"a.b".parse().unwrap(), &given.schema()).unwrap();
        assert_eq!(stored.field(0).data_type(), &DataType::Utf8);
        let batch = batch(&stored, given).unwrap();
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
        let batch = batch(&stored, given).unwrap();
        assert_eq!((batch.column(0).data_type(), batch.column(0).null_count()), (&DataType::Utf8, 2));
    }

    #[test]
    fn types_without_a_stored_form_are_refused_by_name() {
        let given = Arc::new(Schema::new(vec![Field::new("how long", DataType::Interval(IntervalUnit::MonthDayNano), true)]));
        let error = schema(&"a.b".parse().unwrap(), &given).unwrap_err().to_string();
        assert!(error.contains("how long") && error.contains("a.b") && error.contains("duration"), "{error}");
    }
}
