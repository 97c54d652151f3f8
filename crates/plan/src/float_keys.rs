//! The value by which SQL compares a float: one NaN, one zero. The same for intervals: a day is 24 hours.
//!
//! Arrow orders floats by their bits: -0.0 is below 0.0, and a NaN whose sign is set, as processors make it, is below
//! all numbers. SQL has one zero, and one NaN above all numbers. DataFusion corrects the zero in some operators.
//! `__float_key(x)` is `x` in the one form of its value. The rule `analysis::floats` puts it around what is compared,
//! sorted or grouped, so that what is shown stays as it was stored. Pruning looks through it: see [`without_keys`].

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait, StructArray};
use datafusion::arrow::datatypes::{
    ArrowNativeTypeOp, DataType, FieldRef, Float16Type, Float32Type, Float64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit,
};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue, plan_err};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit,
};

/// The function's name in plans.
pub const FLOAT_KEY: &str = "__float_key";

/// Registers `__float_key`.
///
/// # Errors
/// Those of a registry that can't be written.
pub fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    registry.register_udf(udf()).map(drop)
}

fn udf() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(FloatKey { signature: Signature::any(1, Volatility::Immutable) }))
}

/// Whether values of type `of` are floats or intervals, or have them in them.
#[must_use]
pub fn has_floats(of: &DataType) -> bool {
    match of {
        DataType::Float16 | DataType::Float32 | DataType::Float64 | DataType::Interval(IntervalUnit::MonthDayNano) => true,
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) | DataType::Map(field, _) => has_floats(field.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_floats(field.data_type())),
        _ => false,
    }
}

/// What `e` is compared by: `e` itself where it has no floats, or is of one form already.
pub(crate) fn key(e: Expr, schema: &DFSchema) -> Result<Expr> {
    if !has_floats(&e.get_type(schema)?) {
        return Ok(e);
    }
    Ok(match e {
        Expr::Literal(value, metadata) => match plain_scalar(&value) {
            Some(plain) => Expr::Literal(plain, metadata),
            None => call(Expr::Literal(value, metadata)),
        },
        Expr::Alias(mut alias) => {
            alias.expr = Box::new(key(*alias.expr, schema)?);
            Expr::Alias(alias)
        }
        Expr::Cast(ref cast)
            if cast.field.data_type().is_floating() && !has_floats(&cast.expr.get_type(schema)?) && !cast.expr.get_type(schema)?.is_string() =>
        {
            e
        }
        Expr::ScalarFunction(ref f) if f.name() == FLOAT_KEY => e,
        e => call(e),
    })
}

fn call(e: Expr) -> Expr {
    udf().call(vec![e])
}

/// `e` without `__float_key`: for pruning by bounds, which hold for both zeros and are unknown where a NaN is.
#[must_use]
pub fn without_keys(e: Expr) -> Expr {
    let given = e.clone();
    let bare = e.transform_up(|e| match e {
        Expr::ScalarFunction(mut f) if f.name() == FLOAT_KEY && f.args.len() == 1 => {
            Ok(Transformed::yes(f.args.pop().unwrap_or_else(|| lit(ScalarValue::Null))))
        }
        other => Ok(Transformed::no(other)),
    });
    bare.data().unwrap_or(given)
}

/// `x` of [`FLOAT_KEY`]`(x)`.
#[must_use]
pub fn keyed(e: &Expr) -> Option<&Expr> {
    match e {
        Expr::ScalarFunction(f) if f.name() == FLOAT_KEY => f.args.first(),
        _ => None,
    }
}

/// A float in the one form of its value; `None` for all else.
fn plain_scalar(value: &ScalarValue) -> Option<ScalarValue> {
    let floats = matches!(value.data_type(), DataType::Float16 | DataType::Float32 | DataType::Float64);
    floats.then(|| ScalarValue::try_from_array(&plain(&value.to_array().ok()?).ok()?, 0).ok()).flatten()
}

/// `array` with one zero and one NaN. What is not a float stays as it is.
pub(crate) fn plain(array: &ArrayRef) -> Result<ArrayRef> {
    if !has_floats(array.data_type()) {
        return Ok(Arc::clone(array));
    }
    Ok(match array.data_type() {
        DataType::Float16 => floats::<Float16Type>(array, Half::NAN, |v| v.to_bits() == Half::NEG_ZERO.to_bits()),
        DataType::Float32 => floats::<Float32Type>(array, f32::NAN, |v| v.to_bits() == (-0.0f32).to_bits()),
        DataType::Float64 => floats::<Float64Type>(array, f64::NAN, |v| v.to_bits() == (-0.0f64).to_bits()),
        DataType::Interval(_) => Arc::new(array.as_primitive::<IntervalMonthDayNanoType>().unary::<_, IntervalMonthDayNanoType>(interval)),
        DataType::List(field) => Arc::new(list(array.as_list::<i32>(), field)?),
        DataType::LargeList(field) => Arc::new(list(array.as_list::<i64>(), field)?),
        DataType::FixedSizeList(field, size) => {
            let list = array.as_fixed_size_list();
            Arc::new(FixedSizeListArray::try_new(Arc::clone(field), *size, plain(list.values())?, list.nulls().cloned())?)
        }
        DataType::Map(field, sorted) => {
            let map = array.as_map();
            let entries: ArrayRef = Arc::new(map.entries().clone());
            let entries = plain(&entries)?.as_struct().clone();
            Arc::new(MapArray::try_new(Arc::clone(field), map.offsets().clone(), entries, map.nulls().cloned(), *sorted)?)
        }
        DataType::Struct(fields) => {
            let of = array.as_struct();
            let columns = of.columns().iter().map(plain).collect::<Result<Vec<_>>>()?;
            Arc::new(StructArray::try_new(fields.clone(), columns, of.nulls().cloned())?)
        }
        other => return plan_err!("{FLOAT_KEY} has no form of {other}"),
    })
}

/// An interval in the one form of its length: a month counts as 30 days and a day as 24 hours, as in PostgreSQL. Days
/// are fewer than 30 then, and nanoseconds fewer than those of a day, so that intervals compare field by field.
fn interval(of: IntervalMonthDayNano) -> IntervalMonthDayNano {
    const DAY: i128 = 86_400_000_000_000;
    let nanoseconds = (i128::from(of.months) * 30 + i128::from(of.days)) * DAY + i128::from(of.nanoseconds);
    let days = nanoseconds.div_euclid(DAY);
    // Each fits: no field is larger than all of the interval was.
    IntervalMonthDayNano::new(days.div_euclid(30) as i32, days.rem_euclid(30) as i32, nanoseconds.rem_euclid(DAY) as i64)
}

fn list<O: OffsetSizeTrait>(list: &GenericListArray<O>, field: &FieldRef) -> Result<GenericListArray<O>> {
    Ok(GenericListArray::try_new(Arc::clone(field), list.offsets().clone(), plain(list.values())?, list.nulls().cloned())?)
}

type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// The values with one zero and `nan` as the only NaN. Nothing is copied where they have no others.
fn floats<T: ArrowPrimitiveType>(array: &ArrayRef, nan: T::Native, is_negative_zero: impl Fn(T::Native) -> bool) -> ArrayRef {
    let values = array.as_primitive::<T>();
    let is_nan = |value: T::Native| value.partial_cmp(&value).is_none();
    // Without a branch, so that processors look at several values at once.
    let has_other = |some: &[T::Native]| some.iter().fold(false, |found, value| found | is_nan(*value) | is_negative_zero(*value));
    if !values.values().chunks(1024).any(has_other) {
        return Arc::clone(array);
    }
    let one = |value: T::Native| match value {
        value if is_nan(value) => nan,
        value if is_negative_zero(value) => T::Native::ZERO,
        value => value,
    };
    Arc::new(values.unary::<_, T>(one))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct FloatKey {
    signature: Signature,
}

impl ScalarUDFImpl for FloatKey {
    fn name(&self) -> &str {
        FLOAT_KEY
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, of: &[DataType]) -> Result<DataType> {
        let [of] = of else { return plan_err!("{FLOAT_KEY} takes one argument") };
        Ok(of.clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let [of] = args.arg_fields else { return plan_err!("{FLOAT_KEY} takes one argument") };
        Ok(Arc::new(of.as_ref().clone().with_name(FLOAT_KEY)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [of] = args.args.as_slice() else { return plan_err!("{FLOAT_KEY} takes one argument") };
        Ok(match of {
            ColumnarValue::Array(array) => ColumnarValue::Array(plain(array)?),
            ColumnarValue::Scalar(value) => ColumnarValue::Scalar(ScalarValue::try_from_array(&plain(&value.to_array()?)?, 0)?),
        })
    }
}

/// Whether `op` compares its operands.
pub(crate) fn compares(op: Operator) -> bool {
    matches!(
        op,
        Operator::Eq | Operator::NotEq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq | Operator::IsDistinctFrom | Operator::IsNotDistinctFrom
    )
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{Float32Array, Float64Array, ListArray};
    use datafusion::arrow::datatypes::Field;

    use super::*;

    #[test]
    fn zeros_and_nans_have_one_form() {
        let given: ArrayRef = Arc::new(Float64Array::from(vec![Some(-0.0), Some(-f64::NAN), None, Some(-1.5), Some(f64::INFINITY)]));
        let found = plain(&given).unwrap();
        let bits: Vec<_> = found.as_primitive::<Float64Type>().iter().map(|v| v.map(f64::to_bits)).collect();
        assert_eq!(bits, [Some(0.0), Some(f64::NAN), None, Some(-1.5), Some(f64::INFINITY)].map(|v| v.map(f64::to_bits)));
        let same: ArrayRef = Arc::new(Float32Array::from(vec![0.0, 1.0]));
        assert!(Arc::ptr_eq(&plain(&same).unwrap(), &same));
        assert_eq!(plain_scalar(&ScalarValue::Float32(Some(-0.0))), Some(ScalarValue::Float32(Some(0.0))));
        assert_eq!(plain_scalar(&ScalarValue::Int32(Some(0))), None);
    }

    #[test]
    fn floats_within_lists_and_structs_have_it_too() {
        let rows = ListArray::from_iter_primitive::<Float64Type, _, _>([Some(vec![Some(-0.0), None]), None, Some(vec![Some(1.0)])]);
        let field = Arc::new(Field::new("l", rows.data_type().clone(), true));
        let given: ArrayRef = Arc::new(StructArray::from(vec![(field, Arc::new(rows) as ArrayRef)]));
        let found = plain(&given).unwrap();
        let list = found.as_struct().column(0).as_list::<i32>().clone();
        assert_eq!(list.value(0).as_primitive::<Float64Type>().value(0).to_bits(), 0);
        assert!(list.is_null(1) && list.value(0).is_null(1) && found.data_type() == given.data_type());
    }

    #[test]
    fn bounds_are_asked_without_keys() {
        let schema = DFSchema::try_from(datafusion::arrow::datatypes::Schema::new(vec![Field::new("f", DataType::Float64, true)])).unwrap();
        let column = datafusion::prelude::col("f");
        let with = key(column.clone(), &schema).unwrap().gt(lit(5.0));
        assert_eq!((with.to_string(), without_keys(with)), ("__float_key(f) > Float64(5)".to_owned(), column.clone().gt(lit(5.0))));
        assert_eq!(key(lit(-0.0), &schema).unwrap(), lit(0.0));
        assert_eq!(key(key(column.clone(), &schema).unwrap(), &schema).unwrap(), key(column, &schema).unwrap());
    }
}
