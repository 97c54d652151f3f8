//! Checks batches of a drive against the columns that its sub-plan announced. A drive may differ in names and in types
//! that Arrow converts without loss, and in nothing else.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use skytether_common::{Error, Result};

/// Columns that an error names at most.
const NAMED: usize = 20;

/// Checks that batches of columns `given`, which the drive `name` announced, can become those of `wanted`, by
/// position.
///
/// # Errors
/// Internal, with both lists of columns, where they can't.
pub fn check_schema(given: &SchemaRef, wanted: &SchemaRef, name: &str) -> Result<()> {
    let fits = given.fields().len() == wanted.fields().len()
        && given
            .fields()
            .iter()
            .zip(wanted.fields())
            .all(|(g, w)| g.data_type() == w.data_type() || arrow::compute::can_cast_types(g.data_type(), w.data_type()));
    if fits {
        return Ok(());
    }
    let list = |s: &SchemaRef| s.fields().iter().take(NAMED).map(|f| format!("{} {}", f.name(), f.data_type())).collect::<Vec<_>>().join(", ");
    Err(Error::internal(format!(
        "{name} answers with columns ({}) where ({}) were asked for: do host and drive have the same version?",
        list(given),
        list(wanted)
    )))
}

/// `batch` of the drive `name` with the names and types of `schema`, by position.
///
/// # Errors
/// Internal where it has another number of columns, or a value that does not fit: a value that does not fit is no
/// NULL.
pub fn conform(batch: &RecordBatch, schema: &SchemaRef, name: &str) -> Result<RecordBatch> {
    let wrong = |e: ArrowError| Error::internal(format!("{name} sent a batch that does not fit its schema")).with_source(e);
    if batch.num_columns() != schema.fields().len() {
        return Err(Error::internal(format!("{name} sent a batch of {} columns where {} were announced", batch.num_columns(), schema.fields().len())));
    }
    let columns =
        batch.columns().iter().zip(schema.fields()).map(|(column, field)| retype(column, field.data_type())).collect::<Result<Vec<_>, _>>().map_err(wrong)?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options).map_err(wrong)
}

fn retype(column: &ArrayRef, wanted: &DataType) -> Result<ArrayRef, ArrowError> {
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    if column.data_type() == wanted { Ok(Arc::clone(column)) } else { cast_with_options(column, wanted, &strict) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::{Field, Int32Type, Schema};

    fn schema(name: &str, r#type: DataType) -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new(name, r#type, true)]))
    }

    fn batch(values: Vec<i64>) -> RecordBatch {
        RecordBatch::try_new(schema("n", DataType::Int64), vec![Arc::new(Int64Array::from(values))]).unwrap()
    }

    #[test]
    fn other_names_and_widths_are_converted() {
        let wanted = schema("id", DataType::Int32);
        check_schema(&batch(vec![]).schema(), &wanted, "drive-1").unwrap();
        let rows = conform(&batch(vec![7, -1]), &wanted, "drive-1").unwrap();
        assert_eq!(rows.schema(), wanted);
        assert_eq!(rows.column(0).as_primitive::<Int32Type>().values(), &[7, -1]);
    }

    #[test]
    fn a_value_that_does_not_fit_is_an_error() {
        let error = conform(&batch(vec![1 << 40]), &schema("id", DataType::Int32), "drive-1").unwrap_err();
        assert!(error.to_string().starts_with("drive-1 sent a batch that does not fit its schema"), "{error}");
    }

    #[test]
    fn other_columns_are_named_in_the_error() {
        let none: SchemaRef = Arc::new(Schema::empty());
        assert!(conform(&batch(vec![1]), &none, "drive-1").unwrap_err().to_string().contains("1 columns where 0 were announced"));
        let error = check_schema(&batch(vec![]).schema(), &none, "drive-1").unwrap_err().to_string();
        assert!(error.starts_with("drive-1 answers with columns (n Int64) where () were asked for"), "{error}");
    }
}
