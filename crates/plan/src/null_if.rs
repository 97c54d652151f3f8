//! `nullif(a, b)`: the first argument, and NULL where it equals the second.
//!
//! The arguments are compared as `=` does, floats by their keys ([`crate::float_keys`]), times of two units as
//! [instants](crate::instants). The result of numbers and times has the type of the first. DataFusion's has the type in
//! which they are compared: `nullif(i, 0.0)` of a BIGINT was DOUBLE, which loses digits beyond 2^53.

use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::compute::nullif;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, plan_err};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::type_coercion::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{ColumnarValue, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::physical_expr_common::datum::compare_with_eq;

use crate::float_keys::plain;
use crate::instants::{counted, differ};

/// Registers `nullif` in place of DataFusion's.
///
/// # Errors
/// Those of a registry that can't be written.
pub(crate) fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    let ours = NullIf { signature: Signature::user_defined(Volatility::Immutable) };
    registry.register_udf(Arc::new(ScalarUDF::from(ours))).map(drop)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct NullIf {
    signature: Signature,
}

/// Both of `all`.
fn pair<T>(all: &[T]) -> Result<[&T; 2]> {
    match all {
        [left, right] => Ok([left, right]),
        _ => plan_err!("nullif takes two arguments, not {}", all.len()),
    }
}

/// The type in which values of these types are compared.
fn common(left: &DataType, right: &DataType) -> Result<DataType> {
    match BinaryTypeCoercer::new(left, &Operator::Eq, right).get_input_types() {
        Ok((left, right)) if left == right => Ok(left),
        Ok(_) | Err(_) => plan_err!("nullif compares {left} and {right}, which have no common type: CAST one of them"),
    }
}

impl ScalarUDFImpl for NullIf {
    fn name(&self) -> &str {
        "nullif"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [left, right] = pair(types)?;
        // These are cast for the comparison only. Other casts may fail, and so are shown to the rules.
        if left.is_numeric() && right.is_numeric() || differ(left, right) {
            return Ok(types.to_vec());
        }
        common(left, right).map(|common| vec![common; 2])
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        pair(types).map(|[left, _]| left.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [left, right] = pair(&args.args)?;
        let types = (left.data_type(), right.data_type());
        let equal = if differ(&types.0, &types.1) {
            let compared = |of: &ColumnarValue| counted(&of.to_array(args.number_rows)?);
            compare_with_eq(&compared(left)?, &compared(right)?, false)?
        } else {
            let common = common(&types.0, &types.1)?;
            let compared = |of: &ColumnarValue| -> Result<ArrayRef> { plain(&of.cast_to(&common, None)?.to_array(args.number_rows)?) };
            compare_with_eq(&compared(left)?, &compared(right)?, common.is_nested())?
        };
        Ok(ColumnarValue::Array(nullif(&left.to_array(args.number_rows)?, &equal)?))
    }
}
