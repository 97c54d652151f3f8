//! How many bytes a batch is.

use arrow::array::{Array, AsArray};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;

/// The bytes of `batch`'s rows as Arrow buffers: the part of shared buffers that a slice covers, and the data that
/// views refer to. This is about the cost of the batch as Arrow IPC, however large the buffers that it keeps alive in
/// memory.
#[must_use]
pub fn batch_bytes(batch: &RecordBatch) -> u64 {
    batch.columns().iter().map(|column| array_bytes(column)).sum()
}

/// As [`batch_bytes`], for one array.
#[must_use]
pub fn array_bytes(array: &dyn Array) -> u64 {
    let rows = array.len() as u64;
    let own = match array.data_type() {
        DataType::Utf8View => 16 * rows + views_behind(array.as_string_view().views(), array.as_string_view().data_buffers()),
        DataType::BinaryView => 16 * rows + views_behind(array.as_binary_view().views(), array.as_binary_view().data_buffers()),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let ends = list.value_offsets();
            let (first, last) = (ends.first().copied().unwrap_or(0) as usize, ends.last().copied().unwrap_or(0) as usize);
            4 * (rows + 1) + array_bytes(&list.values().slice(first, last - first))
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            let ends = list.value_offsets();
            let (first, last) = (ends.first().copied().unwrap_or(0) as usize, ends.last().copied().unwrap_or(0) as usize);
            8 * (rows + 1) + array_bytes(&list.values().slice(first, last - first))
        }
        DataType::Struct(_) => array.as_struct().columns().iter().map(|column| array_bytes(column)).sum(),
        DataType::Dictionary(_, _) => {
            let keys = array.as_any_dictionary();
            array_bytes(keys.keys()) + array_bytes(keys.values())
        }
        // Fixed widths, Utf8 and Binary: Arrow knows, validity included. For the rest its upper bound.
        _ => return array.to_data().get_slice_memory_size().unwrap_or_else(|_| array.get_array_memory_size()) as u64,
    };
    own + if array.nulls().is_some() { array.len().div_ceil(8) as u64 } else { 0 }
}

/// Bytes outside the views: strings of more than 12 bytes are in a data buffer. Several views of the same bytes count
/// them once, so the result never exceeds the buffers.
fn views_behind(views: &[u128], buffers: &[Buffer]) -> u64 {
    let referred: u64 = views.iter().map(|view| *view as u32).filter(|&len| len > 12).map(u64::from).sum();
    referred.min(buffers.iter().map(|buffer| buffer.len() as u64).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, Float64Array, Int32Array, ListArray, StringArray, StringViewArray};
    use arrow::datatypes::Int32Type;
    use std::sync::Arc;

    #[test]
    fn sliced_array_counts_only_its_range() {
        let numbers: ArrayRef = Arc::new(Float64Array::from_iter_values((0..1000).map(f64::from)));
        assert_eq!(array_bytes(&numbers), 8000);
        assert_eq!(array_bytes(&numbers.slice(10, 5)), 40);
        let texts = StringArray::from(vec!["abc"; 100]);
        assert_eq!(array_bytes(&texts.slice(50, 10)), 30 + 44);
    }

    #[test]
    fn views_count_the_bytes_that_they_refer_to() {
        let views = StringViewArray::from(vec!["short", "a text of more than twelve bytes", "short"]);
        assert_eq!(array_bytes(&views), 48 + 32);
        assert_eq!(array_bytes(&views.slice(2, 1)), 16);
    }

    #[test]
    fn views_of_the_same_bytes_cost_them_once() {
        let one = StringViewArray::from(vec!["a text of more than twelve bytes"]);
        let shared = StringViewArray::try_new(vec![one.views()[0]; 1000].into(), one.data_buffers().to_vec(), None).unwrap();
        assert_eq!(array_bytes(&shared), 16_000 + one.data_buffers()[0].len() as u64);
    }

    #[test]
    fn lists_count_their_own_part_of_the_values() {
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(vec![Some(vec![Some(1), Some(2)]), Some(vec![Some(3)]), Some(vec![])]);
        let values = Int32Array::from(vec![1]);
        let one = array_bytes(&lists.slice(1, 1));
        assert!(one >= 8 + array_bytes(&values) && one < array_bytes(&lists), "{one}");
    }

    #[test]
    fn validity_is_counted_once() {
        let some = Int32Array::from(vec![Some(1), None, Some(3), None, Some(5), None, Some(7), None]);
        assert_eq!(array_bytes(&some), 33);
    }
}
