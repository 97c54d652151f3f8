//! What rules that rewrite expressions share: names stay, the schema below, and conditions that are decided.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, Operator, Projection, binary_expr, cast, lit};

/// `node` with `rewrite` applied to all parts of its expressions, from the leaves up. Columns keep their names.
pub(crate) fn map_expressions(node: LogicalPlan, mut rewrite: impl FnMut(Expr) -> Result<Transformed<Expr>>) -> Result<Transformed<LogicalPlan>> {
    map_whole(node, |e| e.transform_up(&mut rewrite))
}

/// `node` with `rewrite` applied to each of its expressions as a whole. Columns keep their names. Of grouping sets each
/// key counts as an expression: the sets themselves have no name to keep.
pub(crate) fn map_whole(node: LogicalPlan, mut rewrite: impl FnMut(Expr) -> Result<Transformed<Expr>>) -> Result<Transformed<LogicalPlan>> {
    let names = NamePreserver::new(&node);
    let mut named = |e: Expr| {
        let name = names.save(&e);
        Ok(rewrite(e)?.update_data(|e| name.restore(e)))
    };
    node.map_expressions(|e| if matches!(e, Expr::GroupingSet(_)) { e.map_children(&mut named) } else { named(e) })
}

/// `plan`, subqueries included, with `rewrite` applied as [`map_expressions`] does. `rewrite` gets the columns that the
/// expression may name.
pub(crate) fn map_typed(plan: LogicalPlan, rewrite: impl Fn(Expr, &DFSchema) -> Result<Transformed<Expr>>) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| {
        let schema = input_columns(&node);
        map_expressions(node, |e| rewrite(e, &schema))
    })
    .data()
}

/// The columns that the expressions of `node` may name.
pub(crate) fn input_columns(node: &LogicalPlan) -> DFSchema {
    let mut schema = DFSchema::empty();
    for input in node.inputs() {
        schema.merge(input.schema());
    }
    if let LogicalPlan::TableScan(scan) = node {
        schema.merge(&scan.projected_schema);
    }
    schema
}

/// `plan` with its columns cast to these types, where there is one.
pub(crate) fn with_types(plan: Arc<LogicalPlan>, types: &[Option<DataType>]) -> Result<LogicalPlan> {
    let columns = plan.schema().columns();
    let each = columns.into_iter().zip(types).map(|(column, of)| match of {
        Some(of) => cast(Expr::Column(column.clone()), of.clone()).alias_qualified(column.relation, column.name),
        None => Expr::Column(column),
    });
    Ok(LogicalPlan::Projection(Projection::try_new(each.collect(), plan)?))
}

/// `value`, and NULL where `x` is.
pub(crate) fn decided(x: Expr, value: bool) -> Expr {
    let (is, op) = if value { (x.is_not_null(), Operator::Or) } else { (x.is_null(), Operator::And) };
    binary_expr(is, op, lit(ScalarValue::Boolean(None)))
}

/// All of `parts` joined in their order, as a tree of the least depth: code that works on expressions recurses as deep
/// as they are.
pub(crate) fn tree(mut parts: Vec<Expr>, join: impl Fn(Expr, Expr) -> Expr + Copy) -> Option<Expr> {
    if parts.len() < 2 {
        return parts.pop();
    }
    let right = parts.split_off(parts.len() / 2);
    Some(join(tree(parts, join)?, tree(right, join)?))
}
