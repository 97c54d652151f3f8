//! Values that DataFusion's rules see nothing of.
//!
//! `__opaque(x)` is `x`. Rules that would take `x` for something else see a call, on the host and on the drives, and do
//! not compute it while they plan, even if `x` is a constant. When a query runs, it costs nothing: it returns its
//! argument. The rule `analysis::misread` puts it around what DataFusion's simplifier misreads. Pruning looks through
//! it: see [`without_opaque`].
//!
//! `__nullable(x)` is `x` too, and is taken for a value that may be NULL, even where `x` never is. The rule
//! `analysis::subqueries` puts it around the value of a subquery that may have no row.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, Result, plan_err};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::{
    Cast, ColumnarValue, Expr, ExprSchemable, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TryCast, Volatility,
};

use crate::planning::is_planning;

/// The function's name in plans.
pub const OPAQUE: &str = "__opaque";

/// The name of the function that [`nullable`] calls.
const NULLABLE: &str = "__nullable";

/// Registers `__opaque` and `__nullable`.
///
/// # Errors
/// Those of a registry that can't be written.
pub fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    registry.register_udf(udf(OPAQUE))?;
    registry.register_udf(udf(NULLABLE)).map(drop)
}

/// `e`, declared as a value that may be NULL.
pub(crate) fn nullable(e: Expr) -> Expr {
    udf(NULLABLE).call(vec![e])
}

/// `e`, which rules see nothing of.
#[must_use]
pub fn opaque(e: Expr) -> Expr {
    if within_opaque(&e).is_some() { e } else { unlike(e) }
}

/// `e`, opaque once more where it is already, so that it is written unlike `e` in any case.
pub(crate) fn unlike(e: Expr) -> Expr {
    udf(OPAQUE).call(vec![e])
}

/// `x` of [`OPAQUE`]`(x)`.
#[must_use]
pub fn within_opaque(e: &Expr) -> Option<&Expr> {
    match e {
        Expr::ScalarFunction(call) if call.name() == OPAQUE => call.args.first(),
        _ => None,
    }
}

/// What an integer is cast from, if `e` is such a cast to another type of integers, opaque or not. Where the cast
/// fails, the value is NULL or an error: a comparison that holds for the result holds for the integer as well.
#[must_use]
pub fn recast_integer<'e>(e: &'e Expr, schema: &DFSchema) -> Option<&'e Expr> {
    let (Expr::Cast(Cast { expr, field }) | Expr::TryCast(TryCast { expr, field })) = within_opaque(e).unwrap_or(e) else { return None };
    (field.data_type().is_integer() && expr.get_type(schema).is_ok_and(|of| of.is_integer())).then_some(expr.as_ref())
}

/// `e` without `__opaque`, for pruning by bounds. Casts that round stay opaque: there, DataFusion takes the value
/// before the cast for the one after it.
#[must_use]
pub fn without_opaque(e: Expr, schema: &DFSchema) -> Expr {
    if !e.exists(|e| Ok(within_opaque(e).is_some())).unwrap_or(true) {
        return e;
    }
    let given = e.clone();
    let seen = e.transform_up(|e| {
        let seen = match within_opaque(&e) {
            Some(Expr::Cast(_) | Expr::TryCast(_)) if recast_integer(&e, schema).is_none() => None,
            other => other.cloned(),
        };
        Ok(seen.map_or_else(|| Transformed::no(e), Transformed::yes))
    });
    seen.data().unwrap_or(given)
}

fn udf(name: &'static str) -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(Opaque { name, signature: Signature::any(1, Volatility::Immutable) }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Opaque {
    name: &'static str,
    signature: Signature,
}

impl ScalarUDFImpl for Opaque {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [of] => Ok(of.clone()),
            _ => plan_err!("{} takes one value", self.name),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        match args.arg_fields {
            [of] if self.name == NULLABLE => Ok(Arc::new(of.as_ref().clone().with_nullable(true))),
            [of] => Ok(Arc::clone(of)),
            _ => plan_err!("{} takes one value", self.name),
        }
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if is_planning() {
            return plan_err!("{} has no value while a query is planned", self.name);
        }
        match (args.args.pop(), args.args.is_empty()) {
            (Some(of), true) => Ok(of),
            _ => plan_err!("{} takes one value", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::{Field, Schema};
    use datafusion::common::ScalarValue;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::logical_expr::{cast, col, lit, try_cast};
    use datafusion::optimizer::Optimizer;
    use datafusion::prelude::SessionContext;

    use super::*;
    use crate::planning::limited;

    #[tokio::test]
    async fn constants_are_computed_only_when_a_query_runs() {
        let mut state = SessionStateBuilder::new().with_default_features().with_optimizer_rules(limited(Optimizer::default().rules)).build();
        register(&mut state).unwrap();
        let frame = SessionContext::new_with_state(state).sql("SELECT __opaque(1) + 1 AS x").await.unwrap();
        let plan = frame.clone().into_optimized_plan().unwrap().display_indent().to_string();
        assert!(plan.contains("__opaque(Int64(1)) + Int64(1)"), "{plan}");
        let rows = frame.collect().await.unwrap();
        assert_eq!(ScalarValue::try_from_array(rows[0].column(0), 0).unwrap(), ScalarValue::Int64(Some(2)));
    }

    #[test]
    fn bounds_are_asked_without_it_but_for_casts_that_round() {
        let fields = vec![Field::new("b", DataType::Int64, true), Field::new("d", DataType::Decimal128(10, 2), true)];
        let schema = DFSchema::try_from(Schema::new(fields)).unwrap();
        let small = try_cast(col("b"), DataType::Int8);
        let rounded = cast(col("d"), DataType::Int64);
        assert_eq!(without_opaque(opaque(small.clone()).eq(lit(1i8)), &schema), small.clone().eq(lit(1i8)));
        assert_eq!(without_opaque(opaque(rounded.clone()).eq(lit(1i64)), &schema), opaque(rounded).eq(lit(1i64)));
        assert_eq!(recast_integer(&opaque(small), &schema), Some(&col("b")));
        assert_eq!(opaque(opaque(col("b"))), opaque(col("b")));
    }
}
