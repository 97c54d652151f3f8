//! Functions over lists that replace DataFusion's of the same name.
//!
//! - `array_has` is true or false for a list with a NULL. DataFusion turns a constant list into `IN`, which is NULL.
//!   A list without values has none, also not NULL.
//! - Lengths and positions are BIGINT. DataFusion's are unsigned, and half of one is a decimal with a fraction.

use std::sync::Arc;

use datafusion::arrow::array::{Array, BooleanArray, Int64Array};
use datafusion::arrow::compute::kernels::cmp::eq;
use datafusion::arrow::compute::kernels::length::length;
use datafusion::arrow::compute::kernels::zip::zip;
use datafusion::arrow::compute::{cast, prep_null_mask_filter};
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{ColumnarValue, Documentation, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature};

const REPLACED: [&str; 5] = ["array_has", "array_length", "array_ndims", "array_position", "cardinality"];

/// Registers them, in place of those in `registry`. A second call does no harm.
///
/// # Errors
/// Those of a registry that can't be written.
pub fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    for name in REPLACED {
        if let Ok(inner) = registry.udf(name)
            && inner.inner().downcast_ref::<Replaced>().is_none()
        {
            registry.register_udf(Arc::new(ScalarUDF::from(Replaced { inner })))?;
        }
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Replaced {
    inner: Arc<ScalarUDF>,
}

fn signed(of: DataType) -> DataType {
    if of == DataType::UInt64 { DataType::Int64 } else { of }
}

impl ScalarUDFImpl for Replaced {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types).map(signed)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let field = self.inner.return_field_from_args(args)?;
        let of = signed(field.data_type().clone());
        Ok(Arc::new(field.as_ref().clone().with_data_type(of)))
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        match args.first() {
            Some(Expr::Literal(list, _)) if self.name() == "array_has" && has_values_only(list) => self.inner.simplify(args, info),
            _ => Ok(ExprSimplifyResult::Original(args)),
        }
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let of = args.return_field.data_type().clone();
        if of == DataType::Int64 {
            args.return_field = Arc::new(args.return_field.as_ref().clone().with_data_type(DataType::UInt64));
        }
        let (list, rows) = (args.args.first().cloned(), args.number_rows);
        let result = self.inner.invoke_with_args(args)?;
        match list {
            Some(list) if self.name() == "array_has" => false_where_empty(&list, result, rows),
            _ => result.cast_to(&of, None),
        }
    }
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
