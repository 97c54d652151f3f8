//! Copies batches without values that none of their rows refers to.
//!
//! Rows that are picked from many batches keep all texts behind the views and in the dictionaries of those batches.
//! Without this, a page of some thousand rows would hold the texts of millions.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, make_array};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use arrow::error::ArrowError;

/// The same rows, with a copy of just what they refer to where other values are shared.
///
/// # Errors
/// Where Arrow can't put a column together again.
pub fn lean(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    if !batch.columns().iter().any(|column| shares(column.data_type())) {
        return Ok(batch.clone());
    }
    let columns = batch.columns().iter().map(lean_array).collect::<Result<Vec<_>, _>>()?;
    RecordBatch::try_new_with_options(batch.schema(), columns, &RecordBatchOptions::new().with_row_count(Some(batch.num_rows())))
}

/// Whether values of a type may refer to others than their own, at any depth.
fn shares(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8View | DataType::BinaryView | DataType::Dictionary(..) => true,
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => shares(field.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| shares(field.data_type())),
        DataType::RunEndEncoded(_, values) => shares(values.data_type()),
        DataType::Union(fields, _) => fields.iter().any(|(_, field)| shares(field.data_type())),
        _ => false,
    }
}

fn lean_array(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match array.data_type() {
        DataType::Utf8View => Ok(Arc::new(array.as_string_view().gc())),
        DataType::BinaryView => Ok(Arc::new(array.as_binary_view().gc())),
        DataType::Dictionary(_, values) => {
            // A dictionary of values that can't be compared stays as it is.
            let anew = cast(array, values).and_then(|values| lean_array(&values)).and_then(|values| cast(&values, array.data_type()));
            Ok(anew.unwrap_or_else(|_| Arc::clone(array)))
        }
        data_type if shares(data_type) => {
            let data = array.to_data();
            let children = data.child_data().iter().map(|child| lean_array(&make_array(child.clone())).map(|array| array.to_data()));
            let children = children.collect::<Result<Vec<ArrayData>, _>>()?;
            data.into_builder().child_data(children).build().map(make_array)
        }
        _ => Ok(Arc::clone(array)),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{DictionaryArray, Int32Array, ListArray, StringArray, StringViewArray, StructArray};
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::{Field, Int32Type};

    use super::*;

    fn long(n: usize) -> String {
        format!("a text that lies behind its view {n}")
    }

    #[test]
    fn unreferenced_values_are_left_out_at_any_depth() {
        let views: ArrayRef = Arc::new((0..10_000).map(|n| (n % 7 != 0).then(|| long(n))).collect::<StringViewArray>());
        let words = StringArray::from_iter_values((0..1000).map(long));
        let keys = Int32Array::from_iter((0..10_000).map(|n| (n % 3 != 0).then_some(n % 1000)));
        let words: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::new(keys, Arc::new(words)));
        let item = Arc::new(Field::new_list_field(DataType::Utf8View, true));
        let lists: ArrayRef = Arc::new(ListArray::new(Arc::clone(&item), OffsetBuffer::from_lengths([1; 10_000]), Arc::clone(&views), None));
        let both = StructArray::from(vec![
            (Arc::new(Field::new("l", DataType::List(item), true)), lists),
            (Arc::new(Field::new("w", words.data_type().clone(), true)), Arc::clone(&words)),
        ]);
        let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(0..10_000));
        let columns = [("v", views), ("w", words), ("b", Arc::new(both) as ArrayRef), ("n", numbers)];
        let all = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap();
        let places: Vec<(usize, usize)> = (0..50).map(|n| (0, n * 191 % 10_000)).collect();
        let some = arrow::compute::interleave_record_batch(&[&all], &places).unwrap();
        let left = lean(&some).unwrap();
        assert_eq!(left.schema(), some.schema());
        let text = |batch: &RecordBatch| arrow::util::pretty::pretty_format_batches(std::slice::from_ref(batch)).unwrap().to_string();
        assert_eq!(text(&left), text(&some));
        let sizes = (some.get_array_memory_size(), left.get_array_memory_size());
        assert!(sizes.0 > 700_000 && sizes.1 < 50 * 4 * 64 + 16_000, "{sizes:?}");
        let empty = lean(&all.slice(0, 0)).unwrap();
        assert_eq!((empty.num_rows(), empty.schema()), (0, all.schema()));
    }
}
