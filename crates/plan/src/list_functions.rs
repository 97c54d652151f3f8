//! Functions over lists that replace DataFusion's of the same name.
//!
//! - `array_has` is true or false for a list with a NULL. DataFusion turns a constant list into `IN`, which is NULL.
//!   A list without values has none, also not NULL.
//! - `array_has_all` and `array_has_any` of a NULL list are NULL. DataFusion's answer depends on the other rows.
//! - Lengths and positions are BIGINT. DataFusion's are unsigned, and half of one is a decimal with a fraction.

use std::sync::Arc;

use datafusion::arrow::array::{Array, BooleanArray, Int64Array};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::compute::kernels::cmp::eq;
use datafusion::arrow::compute::kernels::length::length;
use datafusion::arrow::compute::kernels::zip::zip;
use datafusion::arrow::compute::{cast, nullif, prep_null_mask_filter};
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF};

use crate::function_wrapper::{Around, is_wrapped, wrap};

const REPLACED: [&str; 7] = ["array_has", "array_has_all", "array_has_any", "array_length", "array_ndims", "array_position", "cardinality"];

/// Registers them, in place of those in `registry`. A second call does no harm.
///
/// # Errors
/// Those of a registry that can't be written.
pub fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    for name in REPLACED {
        if let Some(replaced) = registry.udf(name).ok().and_then(|inner| replaced(&inner)) {
            registry.register_udf(replaced)?;
        }
    }
    Ok(())
}

/// Ours in the place of `function`; none if it needs none, or is ours.
pub(crate) fn replaced(function: &Arc<ScalarUDF>) -> Option<Arc<ScalarUDF>> {
    let replaces = REPLACED.contains(&function.name()) && !is_replaced(function);
    replaces.then(|| wrap(Arc::clone(function), Replaced))
}

pub(crate) fn is_replaced(function: &ScalarUDF) -> bool {
    is_wrapped::<Replaced>(function)
}

#[derive(Clone)]
struct Replaced;

fn signed(of: DataType) -> DataType {
    if of == DataType::UInt64 { DataType::Int64 } else { of }
}

impl Around for Replaced {
    fn return_type(&self, inner: &ScalarUDF, types: &[DataType]) -> Result<DataType> {
        inner.return_type(types).map(signed)
    }

    fn return_field(&self, inner: &ScalarUDF, args: ReturnFieldArgs) -> Result<FieldRef> {
        let field = inner.return_field_from_args(args)?;
        let of = signed(field.data_type().clone());
        Ok(Arc::new(field.as_ref().clone().with_data_type(of)))
    }

    fn simplify(&self, inner: &ScalarUDF, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        match args.first() {
            Some(Expr::Literal(list, _)) if inner.name() == "array_has" && has_values_only(list) => inner.simplify(args, info),
            _ => Ok(ExprSimplifyResult::Original(args)),
        }
    }

    fn invoke(&self, inner: &ScalarUDF, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let of = args.return_field.data_type().clone();
        if of == DataType::Int64 {
            args.return_field = Arc::new(args.return_field.as_ref().clone().with_data_type(DataType::UInt64));
        }
        let rows = args.number_rows;
        if matches!(inner.name(), "array_has_all" | "array_has_any") {
            let lists = args.args.clone();
            return null_where_null(&lists, inner.invoke_with_args(args)?, rows);
        }
        let list = args.args.first().cloned();
        let result = inner.invoke_with_args(args)?;
        match list {
            Some(list) if inner.name() == "array_has" => false_where_empty(&list, result, rows),
            _ => result.cast_to(&of, None),
        }
    }
}

/// `result` with NULL where one of the lists is.
fn null_where_null(lists: &[ColumnarValue], result: ColumnarValue, rows: usize) -> Result<ColumnarValue> {
    let of_column = |list: &ColumnarValue| match list {
        ColumnarValue::Array(list) => list.logical_nulls(),
        ColumnarValue::Scalar(_) => None,
    };
    if lists.iter().any(|list| matches!(list, ColumnarValue::Scalar(list) if list.is_null()) || list.data_type().is_null()) {
        return Ok(ColumnarValue::Scalar(ScalarValue::Boolean(None)));
    }
    let nulls = lists.iter().map(of_column).fold(None, |all, of| NullBuffer::union(all.as_ref(), of.as_ref()));
    let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0) else { return Ok(result) };
    let known = result.into_array(rows)?;
    Ok(ColumnarValue::Array(nullif(&known, &BooleanArray::new(!nulls.inner(), None))?))
}

/// `result` with false where the list has no values.
fn false_where_empty(list: &ColumnarValue, result: ColumnarValue, rows: usize) -> Result<ColumnarValue> {
    if matches!(list.data_type(), DataType::Null) {
        return Ok(result);
    }
    let one = matches!((list, &result), (ColumnarValue::Scalar(_), ColumnarValue::Scalar(_)));
    let rows = if one { 1 } else { rows };
    let known = result.to_array(rows)?;
    if known.null_count() == 0 {
        return Ok(result);
    }
    let lengths = cast(&length(&list.to_array(rows)?)?, &DataType::Int64)?;
    let empty = eq(&lengths, &Int64Array::new_scalar(0))?;
    let empty = if empty.null_count() > 0 { prep_null_mask_filter(&empty) } else { empty };
    let done = zip(&empty, &BooleanArray::new_scalar(false), &known)?;
    Ok(if one { ColumnarValue::Scalar(ScalarValue::try_from_array(&done, 0)?) } else { ColumnarValue::Array(done) })
}

/// Whether `list` is a list of one value or more, none of them NULL: `IN` means the same there.
fn has_values_only(list: &ScalarValue) -> bool {
    let values = match list {
        ScalarValue::List(list) => list.values(),
        ScalarValue::LargeList(list) => list.values(),
        _ => return false,
    };
    !list.is_null() && !values.is_empty() && values.logical_null_count() == 0
}
