//! `array_sum` of whole numbers and of decimals, to the last digit. DataFusion adds all numbers up as floats.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, Int64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Decimal128Type, DecimalType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF};

use crate::function_wrapper::{Around, is_wrapped, wrap};

/// Registers it. A second call does no harm.
///
/// # Errors
/// Those of a registry that can't be written.
pub(crate) fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    if let Ok(inner) = registry.udf("array_sum")
        && !is_wrapped::<Sum>(&inner)
    {
        registry.register_udf(wrap(inner, Sum))?;
    }
    Ok(())
}

#[derive(Clone)]
struct Sum;

/// The elements of lists that are added up exactly, as what they are added up.
fn exact(list: &DataType) -> Option<(DataType, &FieldRef)> {
    let (DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _)) = list else { return None };
    let of = match field.data_type() {
        DataType::UInt64 => DataType::Decimal128(20, 0),
        DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale) => DataType::Decimal128(*precision, *scale),
        of @ DataType::Decimal128(..) => of.clone(),
        of if of.is_integer() => DataType::Int64,
        _ => return None,
    };
    Some((of, field))
}

impl Around for Sum {
    fn return_type(&self, inner: &ScalarUDF, types: &[DataType]) -> Result<DataType> {
        match types.first().and_then(exact) {
            Some((DataType::Decimal128(_, scale), _)) => Ok(DataType::Decimal128(38, scale)),
            Some((of, _)) => Ok(of),
            None => inner.return_type(types),
        }
    }

    fn return_field(&self, inner: &ScalarUDF, args: ReturnFieldArgs) -> Result<FieldRef> {
        let types: Vec<DataType> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        Ok(Arc::new(Field::new(inner.name(), self.return_type(inner, &types)?, true)))
    }

    fn coerce(&self, inner: &ScalarUDF, types: &[DataType]) -> Result<Vec<DataType>> {
        let [list] = types else { return inner.coerce_types(types) };
        let Some((of, field)) = exact(list) else { return inner.coerce_types(types) };
        let field = Arc::new(field.as_ref().clone().with_data_type(of));
        Ok(vec![if matches!(list, DataType::LargeList(_)) { DataType::LargeList(field) } else { DataType::List(field) }])
    }

    fn invoke(&self, inner: &ScalarUDF, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [list] = args.args.as_slice() else { return inner.invoke_with_args(args) };
        if exact(&list.data_type()).is_none() {
            return inner.invoke_with_args(args);
        }
        let constant = matches!(list, ColumnarValue::Scalar(_));
        let sums = sums(&list.to_array(if constant { 1 } else { args.number_rows })?, args.return_field.data_type())?;
        Ok(if constant { ColumnarValue::Scalar(ScalarValue::try_from_array(&sums, 0)?) } else { ColumnarValue::Array(sums) })
    }
}

/// The sums of lists of BIGINT or decimals; NULL for a list without values.
fn sums(lists: &ArrayRef, of: &DataType) -> Result<ArrayRef> {
    let (offsets, values): (Vec<usize>, &ArrayRef) = match lists.data_type() {
        DataType::LargeList(_) => (lists.as_list::<i64>().offsets().iter().map(|at| *at as usize).collect(), lists.as_list::<i64>().values()),
        _ => (lists.as_list::<i32>().offsets().iter().map(|at| *at as usize).collect(), lists.as_list::<i32>().values()),
    };
    let decimals = if values.data_type().is_integer() { cast(values, &DataType::Decimal128(19, 0))? } else { Arc::clone(values) };
    let decimals = decimals.as_primitive::<Decimal128Type>();
    let total = |row: usize| {
        let places = offsets[row]..offsets[row + 1];
        let mut known = places.filter(|at| lists.is_valid(row) && decimals.is_valid(*at)).map(|at| decimals.value(at)).peekable();
        known.peek()?;
        Some(known.try_fold(0i128, |sum, value| sum.checked_add(value)))
    };
    let large = || exec_datafusion_err!("array_sum: the total does not fit into {of}");
    let totals = (0..lists.len()).map(|row| match total(row) {
        Some(Some(total)) => Ok(Some(total)),
        Some(None) => Err(large()),
        None => Ok(None),
    });
    let totals = totals.collect::<Result<Vec<_>>>()?;
    Ok(match of {
        DataType::Decimal128(precision, scale) => {
            if totals.iter().flatten().any(|total| Decimal128Type::validate_decimal_precision(*total, *precision, *scale).is_err()) {
                return Err(large());
            }
            Arc::new(Decimal128Array::from(totals).with_precision_and_scale(*precision, *scale)?)
        }
        _ => {
            let narrow = totals.into_iter().map(|total| total.map(i64::try_from).transpose().map_err(|_| large()));
            Arc::new(narrow.collect::<Result<Int64Array>>()?)
        }
    })
}
