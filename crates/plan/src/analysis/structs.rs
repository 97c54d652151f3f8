//! Structs that `CASE` and `nullif` make NULL: [`crate::masked_structs`] says why.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};

use crate::masked_structs::masked;
use crate::rewriting::map_typed;

/// The functions that choose between a value and NULL.
const CHOOSING: [&str; 4] = ["nullif", "coalesce", "nvl", "nvl2"];

pub(super) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    map_typed(plan, |e, schema| {
        let chooses = match &e {
            Expr::Case(_) => true,
            Expr::ScalarFunction(call) => CHOOSING.contains(&call.name()),
            _ => false,
        };
        let is_struct = || matches!(e.get_type(schema), Ok(DataType::Struct(_)));
        Ok(if chooses && is_struct() { Transformed::yes(masked(e)) } else { Transformed::no(e) })
    })
}
