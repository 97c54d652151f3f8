//! Orders of lists, and lengths within them.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, ListArray, UInt64Array, new_null_array};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::compute::kernels::zip::zip;
use datafusion::arrow::compute::{cast, take};
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};

use super::arguments::{all_constant, as_given};

/// `array_sort`, each list in the order of its own row. DataFusion sorts all by the order of the first row.
pub(super) fn sorted(inner: &ScalarUDF, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
    let options = args.args.get(1..).unwrap_or_default();
    if options.iter().all(|option| matches!(option, ColumnarValue::Scalar(_))) {
        return inner.invoke_with_args(args);
    }
    let rows = args.number_rows;
    let options = options.iter().map(|option| Ok(cast(&option.to_array(rows)?, &DataType::Utf8)?)).collect::<Result<Vec<_>>>()?;
    let of_row = |row: usize| {
        let each = options.iter().map(|option| option.is_valid(row).then(|| option.as_string::<i32>().value(row)));
        each.collect::<Option<Vec<_>>>()
    };
    let kinds: BTreeSet<Vec<&str>> = (0..rows).filter_map(of_row).collect();
    let list = args.args.first().map_or_else(|| exec_err!("array_sort takes a list"), |list| list.to_array(rows))?;
    let mut done: ArrayRef = new_null_array(args.return_field.data_type(), rows);
    for kind in kinds {
        let constants = kind.iter().map(|option| ColumnarValue::Scalar(ScalarValue::Utf8(Some((*option).to_owned()))));
        let call = ScalarFunctionArgs { args: std::iter::once(ColumnarValue::Array(Arc::clone(&list))).chain(constants).collect(), ..args.clone() };
        let of_kind = inner.invoke_with_args(call)?.into_array(rows)?;
        let mask: BooleanArray = (0..rows).map(|row| Some(of_row(row).as_ref() == Some(&kind))).collect();
        done = zip(&mask, &of_kind, &done)?;
    }
    Ok(ColumnarValue::Array(done))
}

/// `array_resize`, whose lengths below 0 are errors of the query, and not of the engine.
pub(super) fn resized(inner: &ScalarUDF, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
    if let Some(lengths) = args.args.get(1).filter(|lengths| lengths.data_type() == DataType::Int64) {
        let lengths = lengths.to_array(if all_constant(&args) { 1 } else { args.number_rows })?;
        if let Some(length) = lengths.as_primitive::<Int64Type>().iter().flatten().find(|length| *length < 0) {
            return exec_err!("array_resize: {length} is no length: it is below 0");
        }
    }
    inner.invoke_with_args(args)
}

/// `array_repeat`, of lists whose NULLs hide nothing: `CASE` leaves values below them, which DataFusion counts.
pub(super) fn repeated(inner: &ScalarUDF, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
    if let Some(ColumnarValue::Array(list)) = args.args.first_mut() {
        let hides = match list.data_type() {
            DataType::List(_) => {
                let list = list.as_list::<i32>();
                (0..list.len()).any(|row| list.is_null(row) && list.value_length(row) > 0)
            }
            DataType::LargeList(_) => {
                let list = list.as_list::<i64>();
                (0..list.len()).any(|row| list.is_null(row) && list.value_length(row) > 0)
            }
            _ => false,
        };
        if hides {
            // Taking rows copies what is valid.
            let rows = UInt64Array::from_iter((0..list.len()).map(|row| list.is_valid(row).then_some(row as u64)));
            *list = take(list, &rows, None)?;
        }
    }
    inner.invoke_with_args(args)
}

/// `array_length`, also within lists without values, where DataFusion looks for the first one.
pub(super) fn measured(inner: &ScalarUDF, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
    let [list, dimension] = args.args.as_slice() else { return inner.invoke_with_args(args) };
    if list.data_type().is_null() {
        return inner.invoke_with_args(args);
    }
    let constant = all_constant(&args);
    let rows = if constant { 1 } else { args.number_rows };
    let (list, dimension) = (as_lists(&list.to_array(rows)?)?, cast(&dimension.to_array(rows)?, &DataType::Int64)?);
    let dimension: &Int64Array = dimension.as_primitive();
    let lengths = (0..rows).map(|row| {
        let valid = list.is_valid(row) && dimension.is_valid(row);
        valid.then(|| length_in(list.value(row), dimension.value(row))).transpose().map(Option::flatten)
    });
    let lengths: UInt64Array = lengths.collect::<Result<_>>()?;
    as_given(cast(&lengths, args.return_field.data_type())?, constant)
}

/// `array_element`, which is NULL at a place beyond all lists. DataFusion refuses such places.
pub(super) fn picked(inner: &ScalarUDF, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
    const FAR: i64 = i32::MAX as i64;
    let near = |at: i64| at.clamp(-FAR, FAR);
    match args.args.get_mut(1) {
        Some(ColumnarValue::Scalar(ScalarValue::Int64(at))) => *at = at.map(near),
        Some(ColumnarValue::Array(at)) if *at.data_type() == DataType::Int64 => {
            let places: &Int64Array = at.as_primitive();
            if places.iter().flatten().any(|at| near(at) != at) {
                *at = Arc::new(places.unary::<_, Int64Type>(near));
            }
        }
        _ => {}
    }
    inner.invoke_with_args(args)
}

/// `map_extract`: a list with the value of a key, or without one where the map has no such key. DataFusion gives a list
/// with NULL, which is what the map may have.
pub(super) fn found(inner: &ScalarUDF, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
    let [map, key] = args.args.as_slice() else { return inner.invoke_with_args(args) };
    if !matches!(map.data_type(), DataType::Map(..)) {
        return inner.invoke_with_args(args);
    }
    let constant = all_constant(&args);
    let rows = if constant { 1 } else { args.number_rows };
    let of = map.data_type();
    let (map, key) = (map.to_array(rows)?, cast(&key.to_array(rows)?, map_key(&of)?)?);
    let map = map.as_map();
    let (mut offsets, mut places) = (vec![0i32], Vec::new());
    for row in 0..rows {
        if map.is_valid(row) && key.is_valid(row) {
            let (begin, end) = (map.value_offsets()[row] as usize, map.value_offsets()[row + 1] as usize);
            let sought = key.slice(row, 1);
            places.extend((begin..end).find(|at| map.keys().slice(*at, 1).as_ref() == sought.as_ref()).map(|at| at as u64));
        }
        offsets.push(i32::try_from(places.len()).unwrap_or(i32::MAX));
    }
    let DataType::List(field) = args.return_field.data_type() else { return inner.invoke_with_args(args) };
    let values = take(map.values(), &UInt64Array::from(places), None)?;
    let lists = ListArray::try_new(Arc::clone(field), OffsetBuffer::new(offsets.into()), values, map.nulls().cloned())?;
    as_given(Arc::new(lists), constant)
}

fn map_key(of: &DataType) -> Result<&DataType> {
    match of {
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) => fields.first().map_or_else(|| exec_err!("a map without keys"), |key| Ok(key.data_type())),
            other => exec_err!("{other} are no entries of a map"),
        },
        other => exec_err!("map_extract does not take {other}"),
    }
}

/// The length of the first list that is `dimension` - 1 levels deep in the values of a list.
fn length_in(mut values: ArrayRef, dimension: i64) -> Result<Option<u64>> {
    for _ in 1..dimension {
        if !matches!(values.data_type(), DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..)) {
            return Ok(None);
        }
        let lists = as_lists(&values)?;
        if lists.is_empty() || lists.is_null(0) {
            return Ok(None);
        }
        values = lists.value(0);
    }
    Ok((dimension > 0).then_some(values.len() as u64))
}

/// Lists of any kind as lists.
fn as_lists(lists: &ArrayRef) -> Result<ListArray> {
    if let DataType::List(_) = lists.data_type() {
        return Ok(lists.as_list::<i32>().clone());
    }
    let of = match lists.data_type() {
        DataType::LargeList(field) | DataType::FixedSizeList(field, _) => DataType::List(Arc::clone(field)),
        other => return exec_err!("array_length does not take {other}"),
    };
    Ok(cast(lists, &of)?.as_list::<i32>().clone())
}
