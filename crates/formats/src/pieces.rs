//! Batches in pieces of bounded size. A batch may be small only because values are shared: views, dictionaries, runs
//! and list views say the same bytes many times over, and their plain forms repeat them.

use arrow::array::GenericByteViewArray;
use arrow::array::{Array, ArrayRef, AsArray, GenericListArray, OffsetSizeTrait, RunArray};
use arrow::datatypes::{ArrowPrimitiveType, ByteViewType, DataType, Int16Type, Int32Type, Int64Type, RunEndIndexType};
use arrow::record_batch::RecordBatch;

/// Bytes that a piece of several rows takes in its plain form.
pub(super) const PIECE_BYTES: usize = 32 << 20;

/// The rows of `batch`, in order, in pieces whose plain form takes at most [`PIECE_BYTES`], or has a single row.
pub(super) fn pieces(batch: RecordBatch) -> Vec<RecordBatch> {
    let (mut done, mut left) = (Vec::new(), vec![batch]);
    while let Some(batch) = left.pop() {
        let rows = batch.num_rows();
        if rows <= 1 || batch.columns().iter().map(plain_bytes).fold(0, usize::saturating_add) <= PIECE_BYTES {
            done.push(batch);
        } else {
            left.push(batch.slice(rows / 2, rows - rows / 2));
            left.push(batch.slice(0, rows / 2));
        }
    }
    done
}

/// About the bytes of the plain form of `array`.
fn plain_bytes(array: &ArrayRef) -> usize {
    use DataType as T;
    match array.data_type() {
        T::Null => array.len().saturating_mul(4),
        T::Utf8View => views(array.as_string_view()),
        T::BinaryView => views(array.as_binary_view()),
        T::Dictionary(_, _) => match array.as_any_dictionary_opt() {
            Some(dictionary) if dictionary.values().is_empty() => array.len(),
            Some(dictionary) => {
                let sizes = each(dictionary.values());
                dictionary.normalized_keys().into_iter().map(|key| sizes.get(key).copied().unwrap_or(0)).fold(0, usize::saturating_add)
            }
            None => 0,
        },
        T::RunEndEncoded(ends, _) => {
            let most = match ends.data_type() {
                T::Int16 => longest(array.as_run::<Int16Type>()),
                T::Int32 => longest(array.as_run::<Int32Type>()),
                _ => longest(array.as_run::<Int64Type>()),
            };
            array.len().saturating_mul(most)
        }
        T::List(_) => list(array.as_list::<i32>()),
        T::LargeList(_) => list(array.as_list::<i64>()),
        T::ListView(_) => {
            let view = array.as_list_view::<i32>();
            shared(view.sizes().iter().map(|n| *n as usize), view.values())
        }
        T::LargeListView(_) => {
            let view = array.as_list_view::<i64>();
            shared(view.sizes().iter().map(|n| *n as usize), view.values())
        }
        T::FixedSizeList(_, _) => plain_bytes(array.as_fixed_size_list().values()),
        T::Struct(_) => array.as_struct().columns().iter().map(plain_bytes).fold(array.len() / 8, usize::saturating_add),
        T::Map(_, _) => {
            let map = array.as_map();
            let (from, to) = ends(map.value_offsets());
            let entries = map.entries().slice(from, to - from);
            entries.columns().iter().map(plain_bytes).fold(4 * array.len(), usize::saturating_add)
        }
        _ => array.to_data().get_slice_memory_size().unwrap_or_else(|_| array.get_array_memory_size()),
    }
}

fn views<T: ByteViewType>(array: &GenericByteViewArray<T>) -> usize {
    // The low half of the first word of a view is the length.
    array.views().iter().map(|view| 16 + (*view as u32) as usize).fold(0, usize::saturating_add)
}

fn ends<O: OffsetSizeTrait>(offsets: &[O]) -> (usize, usize) {
    (offsets.first().map_or(0, |o| o.as_usize()), offsets.last().map_or(0, |o| o.as_usize()))
}

fn list<O: OffsetSizeTrait>(array: &GenericListArray<O>) -> usize {
    let (from, to) = ends(array.value_offsets());
    plain_bytes(&array.values().slice(from, to - from)).saturating_add(array.len() * size_of::<O>())
}

fn shared(sizes: impl Iterator<Item = usize>, values: &ArrayRef) -> usize {
    let per_item = plain_bytes(values).div_ceil(values.len().max(1));
    sizes.fold(0usize, usize::saturating_add).saturating_mul(per_item)
}

/// The bytes of each value.
fn each(values: &ArrayRef) -> Vec<usize> {
    let by = |length: &dyn Fn(usize) -> usize| (0..values.len()).map(|at| 4 + length(at)).collect();
    match values.data_type() {
        DataType::Utf8 => by(&|at| values.as_string::<i32>().value_length(at) as usize),
        DataType::LargeUtf8 => by(&|at| values.as_string::<i64>().value_length(at) as usize),
        DataType::Binary => by(&|at| values.as_binary::<i32>().value_length(at) as usize),
        DataType::LargeBinary => by(&|at| values.as_binary::<i64>().value_length(at) as usize),
        of if of.is_primitive() => vec![of.primitive_width().unwrap_or(16); values.len()],
        _ => by(&|at| plain_bytes(&values.slice(at, 1))),
    }
}

fn longest<R: RunEndIndexType + ArrowPrimitiveType>(runs: &RunArray<R>) -> usize {
    each(runs.values()).into_iter().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{DictionaryArray, Int32Array, StringArray, StringViewArray};
    use arrow::datatypes::Int32Type;

    use super::*;

    #[test]
    fn shared_values_are_cut_into_pieces_that_fit() {
        let long = "z".repeat(1 << 20);
        let keys = Int32Array::from_iter_values((0..100).map(|i| i % 2));
        let texts: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::new(keys.clone(), Arc::new(StringArray::from(vec![long.as_str(), "b"]))));
        let one: ArrayRef = Arc::new(StringViewArray::from(vec![long.as_str(), "b"]));
        let views = arrow::compute::take(&one, &keys, None).unwrap();
        for column in [texts, views] {
            let batch = RecordBatch::try_from_iter([("c", column)]).unwrap();
            let cut = pieces(batch.clone());
            assert!(cut.len() > 1 && cut.iter().all(|piece| plain_bytes(piece.column(0)) <= PIECE_BYTES));
            assert_eq!(arrow::compute::concat_batches(&batch.schema(), &cut).unwrap().num_rows(), 100);
        }
        // A row is not cut.
        let batch = RecordBatch::try_from_iter([("c", Arc::new(StringArray::from(vec!["z".repeat(PIECE_BYTES + 1)])) as ArrayRef)]).unwrap();
        assert_eq!(pieces(batch).len(), 1);
    }
}
