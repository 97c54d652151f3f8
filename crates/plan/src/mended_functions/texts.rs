//! Texts of different types, and lengths below 0.

use std::sync::Arc;

use datafusion::arrow::array::{Array, AsArray, Int64Array};
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};

use super::arguments::all_constant;

/// `lpad` and `rpad`. DataFusion takes room for all lengths before it looks at NULLs, and takes one below 0 for a very
/// large one.
pub(super) fn padded(inner: &ScalarUDF, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
    let rows = if all_constant(&args) { 1 } else { args.number_rows };
    let others: Vec<_> = args.args.iter().enumerate().filter(|(at, _)| *at != 1).map(|(_, arg)| arg.clone()).collect();
    let null_constant = others.iter().any(|arg| matches!(arg, ColumnarValue::Scalar(value) if value.is_null()));
    let null_column = others.iter().any(|arg| matches!(arg, ColumnarValue::Array(values) if values.null_count() > 0));
    match args.args.get_mut(1) {
        Some(ColumnarValue::Scalar(ScalarValue::Int64(length))) if null_constant => *length = length.map(|_| 0),
        Some(ColumnarValue::Scalar(ScalarValue::Int64(length))) if !null_column => *length = length.map(|length| length.max(0)),
        Some(lengths) if lengths.data_type() == DataType::Int64 => {
            let given = lengths.to_array(rows)?;
            let given = given.as_primitive::<Int64Type>();
            let known = |row: usize| !null_constant && others.iter().all(|arg| !matches!(arg, ColumnarValue::Array(values) if values.is_null(row)));
            let needed = given.iter().enumerate().map(|(row, length)| length.map(|length| if known(row) { length.max(0) } else { 0 }));
            *lengths = ColumnarValue::Array(Arc::new(needed.collect::<Int64Array>()));
        }
        _ => {}
    }
    inner.invoke_with_args(args)
}

/// `levenshtein`, of texts of one type: DataFusion plans for the common type of both, and then goes by the first.
pub(super) fn of_one_type(inner: &ScalarUDF, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
    let of = args.return_field.data_type().clone();
    let mixed = args.args.windows(2).any(|pair| pair[0].data_type() != pair[1].data_type());
    if mixed {
        for text in &mut args.args {
            *text = text.cast_to(&DataType::Utf8View, None)?;
        }
    }
    inner.invoke_with_args(args)?.cast_to(&of, None)
}
