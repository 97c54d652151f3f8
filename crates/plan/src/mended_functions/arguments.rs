//! Arguments of a call: constants next to columns.

use datafusion::arrow::array::ArrayRef;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs};

/// Makes a column of a constant first argument, where another one is a column.
pub(super) fn spread(args: &mut ScalarFunctionArgs) -> Result<()> {
    let columns = args.args.iter().any(|arg| matches!(arg, ColumnarValue::Array(_)));
    let rows = args.number_rows;
    match args.args.first_mut() {
        Some(first @ ColumnarValue::Scalar(_)) if columns => *first = ColumnarValue::Array(first.to_array(rows)?),
        _ => {}
    }
    Ok(())
}

/// `result` as the value of a constant, if `constant`.
pub(super) fn as_given(result: ArrayRef, constant: bool) -> Result<ColumnarValue> {
    Ok(if constant { ColumnarValue::Scalar(ScalarValue::try_from_array(&result, 0)?) } else { ColumnarValue::Array(result) })
}

/// Whether all arguments are constants.
pub(super) fn all_constant(args: &ScalarFunctionArgs) -> bool {
    args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)))
}
