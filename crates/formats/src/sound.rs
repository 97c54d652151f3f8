//! Whether arrays hold what their types say. Other libraries give arrays that nothing has checked: texts that are no
//! UTF-8, indices beyond a dictionary, decimals of more digits than their type. Stored, they could never be read.

use arrow::array::{
    Array, ArrayRef, AsArray, GenericByteArray, GenericByteViewArray, GenericListArray, GenericListViewArray, OffsetSizeTrait, PrimitiveArray, RunArray,
};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{
    ArrowNativeType, ArrowPrimitiveType, ByteArrayType, ByteViewType, DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType,
    Int16Type, Int32Type, Int64Type, RunEndIndexType,
};
use arrow::record_batch::RecordBatch;
use skytether_common::{Error, Result};

use super::convert::row_at_fault;

const NO_UTF8: &str = "its text is no UTF-8: decode its bytes first, or give the column as binary";
const BEYOND: &str = "its values lie outside of their buffers: make the array again";

/// Checks a batch that follows `before` rows of its table.
///
/// # Errors
/// `Invalid`, naming column and row, for a value that its type does not have. Null values are not looked at.
pub fn check(batch: &RecordBatch, before: usize) -> Result<()> {
    for (column, field) in batch.columns().iter().zip(batch.schema_ref().fields()) {
        let Some(why) = wrong(column) else { continue };
        let row = row_at_fault(column, |part| wrong(part).is_some()).unwrap_or(0);
        let why = wrong(&column.slice(row, 1)).unwrap_or(why);
        return Err(Error::invalid(format!("column {:?}, row {}: {why}", field.name(), before + row + 1)));
    }
    Ok(())
}

/// What is wrong with a value of `array`, for people.
fn wrong(array: &ArrayRef) -> Option<String> {
    use DataType as T;
    // Of a slice without rows, the offset may lie beyond buffers that were not given.
    if array.is_empty() {
        return None;
    }
    match array.data_type() {
        T::Utf8 => bytes(array.as_string::<i32>(), true),
        T::LargeUtf8 => bytes(array.as_string::<i64>(), true),
        T::Binary => bytes(array.as_binary::<i32>(), false),
        T::LargeBinary => bytes(array.as_binary::<i64>(), false),
        T::Utf8View => views(array.as_string_view(), true),
        T::BinaryView => views(array.as_binary_view(), false),
        T::Decimal32(p, _) => decimals(array.as_primitive::<Decimal32Type>(), *p),
        T::Decimal64(p, _) => decimals(array.as_primitive::<Decimal64Type>(), *p),
        T::Decimal128(p, _) => decimals(array.as_primitive::<Decimal128Type>(), *p),
        T::Decimal256(p, _) => decimals(array.as_primitive::<Decimal256Type>(), *p),
        T::Dictionary(_, _) => dictionary(array),
        T::RunEndEncoded(ends, _) => match ends.data_type() {
            T::Int16 => runs(array.as_run::<Int16Type>()),
            T::Int32 => runs(array.as_run::<Int32Type>()),
            _ => runs(array.as_run::<Int64Type>()),
        },
        T::List(_) => list(array.as_list::<i32>()),
        T::LargeList(_) => list(array.as_list::<i64>()),
        T::ListView(_) => list_view(array.as_list_view::<i32>()),
        T::LargeListView(_) => list_view(array.as_list_view::<i64>()),
        T::FixedSizeList(_, _) => wrong(array.as_fixed_size_list().values()),
        T::Struct(_) => array.as_struct().columns().iter().find_map(wrong),
        T::Map(_, _) => {
            let map = array.as_map();
            match ends(map.value_offsets(), map.entries().len()) {
                Some((from, to)) => map.entries().slice(from, to - from).columns().iter().find_map(wrong),
                None => Some(BEYOND.to_owned()),
            }
        }
        _ => None,
    }
}

/// The first and the last of `offsets`, if they ascend and end within `len`.
fn ends<O: OffsetSizeTrait>(offsets: &[O], len: usize) -> Option<(usize, usize)> {
    let (first, last) = (offsets.first()?, offsets.last()?);
    let ordered = *first >= O::zero() && offsets.windows(2).all(|pair| pair[0] <= pair[1]);
    (ordered && last.as_usize() <= len).then(|| (first.as_usize(), last.as_usize()))
}

fn decimals<T: DecimalType>(array: &PrimitiveArray<T>, precision: u8) -> Option<String> {
    // The array's own check takes a negative scale for one above the precision.
    let broken = array.iter().flatten().any(|value| !T::is_valid_decimal_precision(value, precision));
    broken.then(|| format!("it has more digits than its type, {}, holds: cast the column to text, or to a wider decimal, first", array.data_type()))
}

fn bytes<T: ByteArrayType>(array: &GenericByteArray<T>, text: bool) -> Option<String> {
    let (offsets, values) = (array.value_offsets(), array.value_data());
    let Some((from, to)) = ends(offsets, values.len()) else { return Some(BEYOND.to_owned()) };
    if !text {
        return None;
    }
    // All texts at once is fast; where that fails, what a null hides may be the reason.
    if let Ok(all) = std::str::from_utf8(&values[from..to])
        && offsets.iter().all(|offset| all.is_char_boundary(offset.as_usize() - from))
    {
        return None;
    }
    let broken = |row: usize| std::str::from_utf8(&values[offsets[row].as_usize()..offsets[row + 1].as_usize()]).is_err();
    (0..array.len()).any(|row| array.is_valid(row) && broken(row)).then(|| NO_UTF8.to_owned())
}

/// A view is its length, and then the bytes, of at most 12, or their start, the number of a buffer and an offset there.
fn views<T: ByteViewType>(array: &GenericByteViewArray<T>, text: bool) -> Option<String> {
    let buffers = array.data_buffers();
    array.views().iter().enumerate().filter(|(row, _)| array.is_valid(*row)).find_map(|(_, view)| {
        let len = (*view as u32) as usize;
        let short = view.to_le_bytes();
        let value = if len <= 12 {
            short.get(4..4 + len)
        } else {
            let (buffer, offset) = (((view >> 64) as u32) as usize, ((view >> 96) as u32) as usize);
            buffers.get(buffer).and_then(|buffer| buffer.get(offset..offset + len))
        };
        match value {
            None => Some(BEYOND.to_owned()),
            Some(value) => (text && std::str::from_utf8(value).is_err()).then(|| NO_UTF8.to_owned()),
        }
    })
}

fn dictionary(array: &ArrayRef) -> Option<String> {
    let dictionary = array.as_any_dictionary_opt()?;
    let values = dictionary.values();
    let keys = cast_with_options(dictionary.keys(), &DataType::Int64, &CastOptions { safe: false, ..CastOptions::default() });
    let Ok(keys) = keys else { return Some(format!("its index is beyond the {} values of its dictionary: make the array again", values.len())) };
    let keys = keys.as_primitive::<Int64Type>();
    let within = |key: i64| usize::try_from(key).ok().filter(|key| *key < values.len());
    if let Some(key) = keys.iter().flatten().find(|key| within(*key).is_none()) {
        return Some(format!("its index {key} is beyond the {} values of its dictionary: make the array again", values.len()));
    }
    // Values that no row has are not stored.
    wrong(values)?;
    keys.iter().flatten().filter_map(within).find_map(|key| wrong(&values.slice(key, 1)))
}

fn runs<R: RunEndIndexType + ArrowPrimitiveType>(array: &RunArray<R>) -> Option<String> {
    if array.to_data().validate_values().is_err() {
        return Some("its runs are out of order: make the array again".to_owned());
    }
    wrong(array.values())?;
    (0..array.len()).find_map(|row| wrong(&array.values().slice(array.get_physical_index(row), 1)))
}

fn list<O: OffsetSizeTrait>(list: &GenericListArray<O>) -> Option<String> {
    match ends(list.value_offsets(), list.values().len()) {
        Some((from, to)) => wrong(&list.values().slice(from, to - from)),
        None => Some(BEYOND.to_owned()),
    }
}

fn list_view<O: OffsetSizeTrait>(list: &GenericListViewArray<O>) -> Option<String> {
    let values = list.values();
    let part = |row: usize| {
        let (from, len) = (list.value_offsets()[row].to_usize()?, list.value_sizes()[row].to_usize()?);
        from.checked_add(len).is_some_and(|to| to <= values.len()).then_some((from, len))
    };
    let mut rows = (0..list.len()).filter(|row| list.is_valid(*row));
    if rows.clone().any(|row| part(row).is_none()) {
        return Some(BEYOND.to_owned());
    }
    wrong(values)?;
    rows.find_map(|row| part(row).and_then(|(from, len)| wrong(&values.slice(from, len))))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayData, Decimal128Array, ListArray, StructArray, make_array};
    use arrow::buffer::Buffer;
    use arrow::datatypes::Field;

    use super::*;

    fn unchecked(of: DataType, len: usize, buffers: &[&[u8]], child: Option<&ArrayRef>) -> ArrayRef {
        let data = buffers.iter().fold(ArrayData::builder(of).len(len), |data, bytes| data.add_buffer(Buffer::from(bytes.to_vec())));
        let data = child.iter().fold(data, |data, child| data.add_child_data(child.to_data()));
        // SAFETY: not safe, and only what is tested reads it.
        make_array(unsafe { data.build_unchecked() })
    }

    fn offsets(of: &[i32]) -> Vec<u8> {
        of.iter().flat_map(|n| n.to_le_bytes()).collect()
    }

    /// The rows `a`, `caf\xe9`, `b`.
    fn latin() -> ArrayRef {
        unchecked(DataType::Utf8, 3, &[&offsets(&[0, 1, 5, 6]), b"acaf\xe9b"], None)
    }

    fn told(column: ArrayRef) -> Option<String> {
        let fields = vec![Field::new("c", column.data_type().clone(), true)];
        let batch = RecordBatch::try_new(Arc::new(arrow::datatypes::Schema::new(fields)), vec![column]).unwrap();
        check(&batch, 10).err().map(|e| e.to_string())
    }

    #[test]
    fn text_that_is_no_utf8_is_refused_by_row_however_nested() {
        let item = Arc::new(Field::new("item", DataType::Utf8, true));
        let key = |keys: &[u8]| unchecked(DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8)), keys.len(), &[keys], Some(&latin()));
        let list: ArrayRef = Arc::new(ListArray::new(item.clone(), arrow::buffer::OffsetBuffer::from_lengths([0, 1, 2]), latin(), None));
        let row: ArrayRef = Arc::new(StructArray::new(vec![item].into(), vec![latin()], None));
        let runs = RunArray::<Int32Type>::try_new(&arrow::array::Int32Array::from(vec![2, 4, 5]), &latin()).unwrap();
        for (column, at) in [(latin(), 12), (list, 13), (row, 12), (key(&[0, 2, 0, 1]), 14), (Arc::new(runs), 13)] {
            let of = column.data_type().clone();
            let said = told(column).unwrap_or_default();
            assert!(said.contains(&format!("column \"c\", row {at}: its text is no UTF-8")), "{of}: {said}");
        }
        assert_eq!(told(unchecked(DataType::Utf8, 0, &[&offsets(&[5]), b""], None)), None);
        // No row has it.
        assert_eq!(told(key(&[0, 2, 0])), None);
        assert_eq!(told(latin().slice(2, 1)), None);
        // Two halves of a letter are no texts, and one letter together.
        let halves = unchecked(DataType::Utf8, 2, &[&offsets(&[0, 1, 2]), "é".as_bytes()], None);
        assert!(told(halves).unwrap().contains("row 11"));
    }

    #[test]
    fn what_lies_outside_is_refused_by_row() {
        let texts: ArrayRef = Arc::new(arrow::array::StringArray::from(vec!["a"]));
        let of = |key| DataType::Dictionary(Box::new(key), Box::new(DataType::Utf8));
        for (column, says) in [
            (unchecked(of(DataType::Int8), 2, &[&[0, 9]], Some(&texts)), "row 12: its index 9 is beyond the 1 values"),
            (unchecked(of(DataType::Int8), 2, &[&[0, 255]], Some(&texts)), "row 12: its index -1 is beyond"),
            (unchecked(of(DataType::UInt64), 1, &[&[255; 8]], Some(&texts)), "row 11: its index is beyond"),
            (unchecked(DataType::Binary, 2, &[&offsets(&[0, 2, 1]), b"ab"], None), "row 12: its values lie outside"),
        ] {
            let said = told(column).unwrap_or_default();
            assert!(said.contains(says), "{said}");
        }
    }

    #[test]
    fn decimals_of_too_many_digits_are_refused_by_row() {
        let values = vec![Some(1), None, Some(10i128.pow(38)), Some(1)];
        let column = Decimal128Array::from(values).with_data_type(DataType::Decimal128(38, 0));
        assert!(told(Arc::new(column.slice(0, 2))).is_none());
        let hundreds = |value| Arc::new(Decimal128Array::from(vec![value]).with_data_type(DataType::Decimal128(5, -2)));
        assert!(told(hundreds(99_999)).is_none() && told(hundreds(100_000)).is_some());
        assert!(told(Arc::new(column)).unwrap().contains("row 13: it has more digits than its type, Decimal128(38, 0), holds"));
    }
}
