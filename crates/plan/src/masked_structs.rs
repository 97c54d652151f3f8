//! Structs that a query makes NULL, with NULL in their fields as well.
//!
//! `CASE` and `nullif` mark a struct as NULL and keep the values of its fields below. DataFusion reads a field, and
//! unnests a struct, without a look at that mark. `__masked(x)` puts the mark on all fields. The rule
//! `analysis::structs` puts it around such expressions. Structs of tables are masked when they are read.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, StructArray};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::compute::nullif;
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, plan_err};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::{ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};

/// The function's name in plans.
pub const MASKED: &str = "__masked";

/// Registers `__masked`.
///
/// # Errors
/// Those of a registry that can't be written.
pub fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    registry.register_udf(udf()).map(drop)
}

/// `e`, whose fields are NULL where it is.
pub(crate) fn masked(e: Expr) -> Expr {
    udf().call(vec![e])
}

fn udf() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(Masked { signature: Signature::any(1, Volatility::Immutable) }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Masked {
    signature: Signature,
}

impl ScalarUDFImpl for Masked {
    fn name(&self) -> &str {
        MASKED
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [of] => Ok(of.clone()),
            _ => plan_err!("{MASKED} takes one value"),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        match args.arg_fields {
            [of] => Ok(Arc::clone(of)),
            _ => plan_err!("{MASKED} takes one value"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.as_slice() {
            [ColumnarValue::Array(array)] => Ok(ColumnarValue::Array(mask(array, None)?)),
            // The value of a NULL has no fields.
            [scalar] => Ok(scalar.clone()),
            _ => plan_err!("{MASKED} takes one value"),
        }
    }
}

/// `array` with NULL where `above` is, and so all fields of structs in it.
fn mask(array: &ArrayRef, above: Option<&NullBuffer>) -> Result<ArrayRef> {
    let Some(of) = array.as_struct_opt() else {
        return match above {
            Some(above) => Ok(nullif(array, &BooleanArray::new(!above.inner(), None))?),
            None => Ok(Arc::clone(array)),
        };
    };
    let nulls = NullBuffer::union(of.nulls(), above);
    let columns = of.columns().iter().map(|column| mask(column, nulls.as_ref())).collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(StructArray::try_new_with_length(of.fields().clone(), columns, nulls, of.len())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{Int32Array, StringArray};
    use datafusion::arrow::datatypes::{Field, Fields};

    #[test]
    fn fields_are_null_where_a_struct_is() {
        let numbers: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, Some(3)]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["x", "y", "z"]));
        let inner_fields = Fields::from(vec![Field::new("s", DataType::Utf8, true)]);
        let inner: ArrayRef = Arc::new(StructArray::new(inner_fields.clone(), vec![texts], Some(vec![true, false, true].into())));
        let fields = Fields::from(vec![Field::new("n", DataType::Int32, true), Field::new("i", DataType::Struct(inner_fields), true)]);
        let given: ArrayRef = Arc::new(StructArray::new(fields, vec![numbers, inner], Some(vec![true, true, false].into())));
        let done = mask(&given, None).unwrap();
        let nulls = |array: &ArrayRef| (0..3).map(|row| array.is_null(row)).collect::<Vec<_>>();
        let (n, i) = (done.as_struct().column(0), done.as_struct().column(1));
        assert_eq!(nulls(&done), [false, false, true]);
        assert_eq!(nulls(n), [false, true, true]);
        assert_eq!(nulls(i), [false, true, true]);
        assert_eq!(nulls(i.as_struct().column(0)), [false, true, true]);
    }
}
