//! `||` of texts as a function whose results are bounded ([`crate::bounded_results`]).
//!
//! `x || x` in each of 30 subqueries makes a text of a gigabyte of one letter. The operator cannot be replaced by a
//! setting, so this rule replaces it by a call, of the same name and with the same result.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, ScalarUDF};

use crate::bounded_results::text_concat;
use crate::rewriting::map_typed;

pub(super) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    let concat = text_concat();
    map_typed(plan, |e, schema| called(e, schema, &concat))
}

fn called(e: Expr, schema: &DFSchema, concat: &ScalarUDF) -> Result<Transformed<Expr>> {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::StringConcat, right }) = &e else { return Ok(Transformed::no(e)) };
    let types = (left.get_type(schema), right.get_type(schema));
    if !matches!(&types, (Ok(left), Ok(right)) if left.is_string() && right.is_string()) {
        return Ok(Transformed::no(e));
    }
    Ok(Transformed::yes(concat.call(vec![left.as_ref().clone(), right.as_ref().clone()])))
}
