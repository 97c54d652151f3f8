//! The sizes of arguments, by row.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::ColumnarValue;

pub(super) fn total(of: impl IntoIterator<Item = u64>) -> u64 {
    of.into_iter().fold(0, u64::saturating_add)
}

/// What `measure` gives for each row; a scalar has one value for all.
fn by_row(of: &ColumnarValue, rows: usize, measure: impl Fn(&ArrayRef) -> Result<Vec<u64>>) -> Result<Vec<u64>> {
    match of {
        ColumnarValue::Array(array) => measure(array),
        ColumnarValue::Scalar(ScalarValue::Null) => Ok(vec![0; rows]),
        ColumnarValue::Scalar(scalar) => Ok(vec![measure(&scalar.to_array()?)?.first().copied().unwrap_or(0); rows]),
    }
}

/// The bytes of a text, a binary or a nested value in each row; eight of everything else that is no longer.
pub(super) fn bytes(of: &ColumnarValue, rows: usize) -> Result<Vec<u64>> {
    by_row(of, rows, |array| Ok(sizes(array)))
}

/// How many elements each list has.
pub(super) fn elements(of: &ColumnarValue, rows: usize) -> Result<Vec<u64>> {
    by_row(of, rows, |array| {
        Ok(match List::of(array) {
            Some(list) => list.spans.iter().map(|(from, to)| (to - from) as u64).collect(),
            None => vec![0; array.len()],
        })
    })
}

/// How many elements each list has that are no lists.
pub(super) fn leaves(of: &ColumnarValue, rows: usize) -> Result<Vec<u64>> {
    fn counts(array: &ArrayRef) -> Vec<u64> {
        List::of(array).map_or_else(|| vec![1; array.len()], |list| list.sums(&counts(&list.elements)))
    }
    by_row(of, rows, |array| Ok(counts(array)))
}

/// The bytes of the longest character of each text, one at least.
pub(super) fn widest(of: &ColumnarValue, rows: usize) -> Result<Vec<u64>> {
    of_texts(of, rows, |text| {
        text.bytes()
            .map(|byte| match byte {
                0xF0.. => 4,
                0xE0.. => 3,
                0xC0.. => 2,
                _ => 1,
            })
            .max()
            .unwrap_or(1)
    })
}

/// How often any of `letters` is in each text.
pub(super) fn occurrences(of: &ColumnarValue, rows: usize, letters: &[u8]) -> Result<Vec<u64>> {
    of_texts(of, rows, |text| text.bytes().filter(|byte| letters.contains(byte)).count() as u64)
}

fn of_texts(of: &ColumnarValue, rows: usize, measure: impl Fn(&str) -> u64) -> Result<Vec<u64>> {
    by_row(of, rows, |array| {
        let texts = cast(array, &DataType::LargeUtf8)?;
        Ok(texts.as_string::<i64>().iter().map(|text| measure(text.unwrap_or_default())).collect())
    })
}

pub(super) fn is_list_of_texts(of: &DataType) -> bool {
    match of {
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => is_list_of_texts(field.data_type()),
        other => other.is_string(),
    }
}

fn sizes(array: &ArrayRef) -> Vec<u64> {
    let length = |bytes: usize| bytes as u64;
    let spans = |offsets: &[i32]| offsets.windows(2).map(|span| u64::try_from(span[1] - span[0]).unwrap_or(0)).collect::<Vec<_>>();
    let wide = |offsets: &[i64]| offsets.windows(2).map(|span| u64::try_from(span[1] - span[0]).unwrap_or(0)).collect::<Vec<_>>();
    match array.data_type() {
        DataType::Utf8 => spans(array.as_string::<i32>().value_offsets()),
        DataType::LargeUtf8 => wide(array.as_string::<i64>().value_offsets()),
        DataType::Binary => spans(array.as_binary::<i32>().value_offsets()),
        DataType::LargeBinary => wide(array.as_binary::<i64>().value_offsets()),
        DataType::Utf8View => array.as_string_view().iter().map(|text| length(text.map_or(0, str::len))).collect(),
        DataType::BinaryView => array.as_binary_view().iter().map(|bytes| length(bytes.map_or(0, <[u8]>::len))).collect(),
        DataType::Struct(_) => array.as_struct().columns().iter().map(sizes).fold(vec![0; array.len()], |mut sums, column| {
            sums.iter_mut().zip(column).for_each(|(sum, size)| *sum = sum.saturating_add(size));
            sums
        }),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let values = sizes(dictionary.values());
            dictionary.normalized_keys().into_iter().map(|key| values.get(key).copied().unwrap_or(0)).collect()
        }
        of => match List::of(array) {
            Some(list) => {
                // The place of an element that has no size of its own.
                let place = if list.elements.data_type().is_primitive() { 0 } else { 8 };
                let each: Vec<u64> = sizes(&list.elements).into_iter().map(|size| size.saturating_add(place)).collect();
                list.sums(&each)
            }
            None => vec![of.primitive_width().map_or(8, length).max(8); array.len()],
        },
    }
}

/// The elements of lists.
struct List {
    elements: ArrayRef,
    /// Where those of each row begin and end.
    spans: Vec<(usize, usize)>,
}

impl List {
    fn of(array: &ArrayRef) -> Option<Self> {
        let place = |offset: i64| usize::try_from(offset).unwrap_or(0);
        let (values, ends): (&ArrayRef, Vec<usize>) = match array.data_type() {
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                (list.values(), list.value_offsets().iter().map(|offset| place(i64::from(*offset))).collect())
            }
            DataType::LargeList(_) => {
                let list = array.as_list::<i64>();
                (list.values(), list.value_offsets().iter().map(|offset| place(*offset)).collect())
            }
            DataType::FixedSizeList(_, width) => {
                let width = place(i64::from(*width));
                (array.as_fixed_size_list().values(), (0..=array.len()).map(|row| row * width).collect())
            }
            DataType::Map(..) => {
                let map = array.as_map();
                let entries: ArrayRef = Arc::new(map.entries().clone());
                let ends: Vec<usize> = map.value_offsets().iter().map(|offset| place(i64::from(*offset))).collect();
                return Some(Self::between(&entries, &ends));
            }
            _ => return None,
        };
        Some(Self::between(values, &ends))
    }

    /// Rows of `values` that end at `ends`, without what is before and behind.
    fn between(values: &ArrayRef, ends: &[usize]) -> Self {
        let (first, last) = (ends.first().copied().unwrap_or(0), ends.last().copied().unwrap_or(0));
        let spans = ends.windows(2).map(|span| (span[0] - first, span[1] - first)).collect();
        Self { elements: values.slice(first, last - first), spans }
    }

    /// The sums of `each` element, by row.
    fn sums(&self, each: &[u64]) -> Vec<u64> {
        self.spans.iter().map(|(from, to)| total(each.get(*from..*to).unwrap_or_default().iter().copied())).collect()
    }
}
